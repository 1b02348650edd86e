//! A web server on the host and clients in a program's network: nginx and wrk.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{bail, ensure};

use super::probes::{self, Kind};
use crate::cases::Selection;
use crate::events::nginx::{self, NGINX};
use crate::events::wrk::{self, Clients, WRK};
use crate::lab::Network;
use crate::ping_pong::{self, Stopwatch};
use crate::process::Running;
use crate::say;
use crate::scratch::Scratch;
use crate::system::find_program;

/// Below the ephemeral ports of clients.
const PORT: u16 = 8080;
/// Concurrent clients.
const CLIENTS: u32 = 32;
/// Name and contents of its file: small, so that the number of requests matters and not their size.
const FILE: (&str, [u8; 64]) = ("/answer", [b'.'; 64]);
/// Longest time of a start.
const PATIENCE: Duration = Duration::from_secs(15);

/// nginx with one file.
pub(super) struct Server {
    _process: Running,
    _files: Scratch,
}

impl Server {
    /// Starts nginx, with its files in `scratch`, if the selection needs it and all required
    /// programs are installed.
    pub(super) fn start_for(selection: &Selection, scratch: &Path) -> anyhow::Result<Option<Self>> {
        let asks = |probe: &probes::Probe| matches!(probe.kind, Kind::Http { .. });
        if !probes::probes(selection).any(asks) {
            return Ok(None);
        }
        if let Some(missing) = [NGINX, WRK].into_iter().find(|name| find_program(name).is_none()) {
            say::notice(format_args!("skipping HTTP: {missing} is not installed"));
            return Ok(None);
        }
        Self::start(scratch).map(Some)
    }

    fn start(scratch: &Path) -> anyhow::Result<Self> {
        let files = Scratch::inside(scratch)?;
        let (name, bytes) = FILE;
        fs::write(files.path(&name[1..]), bytes)?;
        let listen = SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT));
        let mut process = Running::start(&mut nginx::command(&files, listen, files.directory())?)?;
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
        let started = Stopwatch::start();
        while TcpStream::connect(local).is_err() {
            if process.wait(Duration::ZERO)?.is_some() {
                bail!("{NGINX} ended: {}", process.last_words());
            }
            ensure!(started.elapsed() < PATIENCE, "{NGINX} does not start");
            ping_pong::pause();
        }
        Ok(Self { _process: process, _files: files })
    }

    /// Measures requests per second; `target` is the host's address in the network of `program`.
    pub(super) fn ask(
        &self,
        program: &Network,
        target: IpAddr,
        is_kept: bool,
        seconds: u32,
    ) -> anyhow::Result<f64> {
        let clients = Clients { count: CLIENTS, is_kept, path: FILE.0 };
        let span = Duration::from_secs(seconds.into());
        let made = program.inside(|| wrk::ask(SocketAddr::new(target, PORT), clients, span))?;
        let few = made.errors <= made.requests / 100.0;
        ensure!(few, "{} of {} requests failed", made.errors, made.requests);
        Ok(made.per_second)
    }
}
