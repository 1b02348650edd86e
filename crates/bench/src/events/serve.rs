//! A server in its own process, so that its processor time can be measured separately.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use towpath::events::{Choice, Config, EventQueue, Listener};
use towpath::host::{self, Host};

use server::{Completions, EndBy, Kernel, Limits, Readiness, Report, Serve, Service, Stack};

#[path = "../../../towpath/examples/httpd/server/mod.rs"]
#[expect(dead_code, reason = "signals and reports are for a program")]
pub(super) mod server;

/// How the server moves bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    /// By operations, with this back end.
    Completions(Choice),
    Readiness,
}

/// The value of `--serve`: name of a system, address to listen on, directory.
#[derive(Clone, Debug)]
pub(crate) struct Serving {
    system: System,
    listen: SocketAddr,
    root: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct System {
    engine: Engine,
    is_tap: bool,
}

/// The systems by their names in results. The figures of the first one are towpath's.
pub(super) const KERNEL: [&str; 3] = ["io_uring", "epoll", "plain epoll"];
pub(super) const STACK: [&str; 2] = ["completions", "readiness"];
/// The host's device.
pub(super) const DEVICE: &str = "httpd0";

impl FromStr for Serving {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let mut parts = text.splitn(3, ',');
        let mut next = || parts.next().context("SYSTEM,ADDRESS:PORT,DIR");
        let (name, listen, root) = (next()?, next()?, next()?);
        let system = match name {
            "io_uring" => System { engine: Engine::Completions(Choice::IoUring), is_tap: false },
            "epoll" => System { engine: Engine::Completions(Choice::Epoll), is_tap: false },
            "plain epoll" => System { engine: Engine::Readiness, is_tap: false },
            "completions" => System { engine: Engine::Completions(Choice::Best), is_tap: true },
            "readiness" => System { engine: Engine::Readiness, is_tap: true },
            _ => bail!("unknown system"),
        };
        Ok(Self { system, listen: listen.parse()?, root: root.into() })
    }
}

impl Serving {
    /// Serves until it is killed.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
        if self.system.is_tap {
            let IpAddr::V4(address) = self.listen.ip() else { bail!("expected an IPv4 address") };
            let host = Host::on_tap_named(&host::Config::with_address(address, 24), DEVICE)?;
            let listener = host::TcpListener::bind(&host, self.listen)?;
            eprintln!("{LISTENING}");
            return stack(self.system.engine, listener, EndBy::Signals, &self.root).map(drop);
        }
        let listener = TcpListener::bind(self.listen)?;
        eprintln!("{LISTENING}");
        let service = service(&self.root)?;
        match self.system.engine {
            Engine::Completions(choice) => completions(choice, listener.into(), service)?,
            Engine::Readiness => {
                Readiness::new(Kernel::new(listener, EndBy::Signals)?, service).run()?
            }
        };
        Ok(())
    }
}

/// Printed by a server when clients can connect.
pub(super) const LISTENING: &str = "listening";

fn service(root: &Path) -> anyhow::Result<Service> {
    let limits =
        Limits { connections: 1 << 14, idle: Duration::from_secs(30), grace: Duration::ZERO };
    Service::new(root, None, limits).with_context(|| format!("cannot serve {}", root.display()))
}

fn completions(choice: Choice, listener: Listener, service: Service) -> anyhow::Result<Report> {
    let queue = EventQueue::with(&Config { back_end: choice, ..Config::default() })?;
    Ok(Completions::new(queue, listener, service, &EndBy::Signals)?.run()?)
}

/// Serves on a towpath host until `end` says so.
pub(super) fn stack(
    engine: Engine,
    listener: host::TcpListener,
    end: EndBy,
    root: &Path,
) -> anyhow::Result<Report> {
    let (queue, service) = (EventQueue::new()?, service(root)?);
    Ok(match engine {
        Engine::Completions(_) => Completions::new(queue, listener.into(), service, &end)?.run()?,
        Engine::Readiness => Readiness::new(Stack::new(queue, listener, end)?, service).run()?,
    })
}

/// Addresses of the server on a towpath host and of its clients.
pub(super) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 1);
pub(super) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 2);
pub(super) const PORT: u16 = 80;
