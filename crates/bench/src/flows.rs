//! Many connections that are open at once.
//!
//! Both ends of all connections together exceed the descriptor limit of one process. Another
//! process, which runs this program, holds the host's ends.

use std::io::{Read, Write, stdout};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};

use super::lab::Network;
use super::ping_pong::{self, Stopwatch};
use super::process::Running;

/// Time limit for opening connections. At the pace of the slowest peers, opening all would take
/// minutes.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest wait for one connection.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
/// Name of the work of the process that holds the host's ends.
pub(super) const KEEP: &str = "keep_connections";

/// Opens connections in steps, up to each of `counts`. Calls `look` when that many are open and
/// each has moved a byte each way. Returns the results of `look`, and the reason if some are
/// missing. The connections end with a reset, which leaves no port in TIME-WAIT.
pub(super) fn open<T: Send>(
    program: &Network,
    target: IpAddr,
    counts: &[usize],
    mut look: impl FnMut() -> T + Send,
) -> anyhow::Result<(Vec<T>, anyhow::Result<()>)> {
    let most = counts.iter().max().context("no flow was counted")?;
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

/// Prints its listening port, answers the first byte of `count` connections and keeps them open
/// until the last one has ended.
pub(super) fn keep(count: u32) -> anyhow::Result<()> {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).context("cannot listen")?;
    writeln!(stdout(), "{}", listener.local_addr()?.port())?;
    let mut open = Vec::new();
    while open.len() < count as usize {
        let (mut stream, _) = listener.accept().context("cannot accept")?;
        // A client that fails reports that itself.
        stream.set_read_timeout(Some(CONNECT_WAIT))?;
        let mut byte = [0];
        if stream.read_exact(&mut byte).and_then(|()| stream.write_all(&byte)).is_ok() {
            open.push(stream);
        }
    }
    for mut stream in open {
        stream.set_read_timeout(None)?;
        // Any end of the connection will do.
        let _ = stream.read(&mut [0]);
    }
    Ok(())
}
