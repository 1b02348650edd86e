//! Many connections that are open at once.
//!
//! Both ends of all of them are more than one process may have open: the host's ends are kept by
//! a process of their own, this very program.

use std::io::{Read, Write, stdout};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};

use super::lab::Network;
use super::ping_pong::{self, Stopwatch};
use super::process::Running;

/// Longest time that opening may take: at the pace of the slowest peers, all of them would take
/// minutes.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest wait for one of them.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
/// The work of the process that keeps the host's ends.
pub(super) const KEEP: &str = "keep_connections";

/// Opens connections in steps, up to each of `counts`, and has `look` called when so many are open
/// and each has moved a byte each way. Returns what was looked at, and why that is not all. They
/// end with a reset, which leaves no port blocked.
pub(super) fn open<T: Send>(
    program: &Network,
    target: IpAddr,
    counts: &[usize],
    mut look: impl FnMut() -> T + Send,
) -> anyhow::Result<(Vec<T>, anyhow::Result<()>)> {
    let most = counts.iter().max().context("there is a count")?;
    let mut command = Command::new("/proc/self/exe");
    command.args(["gateway", "--harness", &format!("{KEEP},{most}")]);
    let keeper = Running::start(&mut command)?;
    let started = Stopwatch::start();
    let port = loop {
        if let Some((port, _)) = keeper.log().split_once('\n') {
            break port.parse().with_context(|| keeper.last_words())?;
        }
        ensure!(started.elapsed() < PATIENCE, "the server does not start");
        ping_pong::pause();
    };
    let to = SocketAddr::new(target, port);
    let mut looked = Vec::new();
    let ended = program.inside(|| {
        let started = Stopwatch::start();
        let mut open = Vec::new();
        for count in counts {
            while open.len() < *count {
                let late = started.elapsed() > PATIENCE;
                ensure!(!late, "only {} connections were opened in time", open.len());
                let next = connect(to);
                open.push(next.with_context(|| format!("{} are open", open.len()))?);
            }
            looked.push(look());
        }
        Ok(())
    });
    Ok((looked, ended))
}

fn connect(to: SocketAddr) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&to, CONNECT_WAIT)?;
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
    stream.set_read_timeout(Some(CONNECT_WAIT))?;
    let mut byte = [1];
    stream.write_all(&byte)?;
    stream.read_exact(&mut byte)?;
    Ok(stream)
}

/// Says where it listens, answers the first byte of `count` connections and keeps them open until
/// the last has ended.
pub(super) fn keep(count: u32) -> anyhow::Result<()> {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).context("cannot listen")?;
    writeln!(stdout(), "{}", listener.local_addr()?.port())?;
    let mut open = Vec::new();
    while open.len() < count as usize {
        let (mut stream, _) = listener.accept().context("cannot accept")?;
        // A client that fails tells it itself.
        stream.set_read_timeout(Some(CONNECT_WAIT))?;
        let mut byte = [0];
        if stream.read_exact(&mut byte).and_then(|()| stream.write_all(&byte)).is_ok() {
            open.push(stream);
        }
    }
    for mut stream in open {
        stream.set_read_timeout(None)?;
        // Whatever ends it.
        let _ = stream.read(&mut [0]);
    }
    Ok(())
}
