//! Round trips of single bytes, over one connection or with a connection for each.
//!
//! The server is a thread in the host's network; the client is a thread in the program's. Each run
//! has its own server with its own port: ended connections block their ports for a while, and would
//! slow down the next run.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::thread::CpuSet;

use super::lab::Network;
use super::process::pin_thread;

/// A running clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "measuring time is what a benchmark does")]
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    pub(super) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}

/// A server that echoes what it receives, one connection at a time.
pub(super) struct Server {
    port: u16,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts the server in the host's network, on the processors of `pin` if given.
    pub(super) fn start(pin: Option<CpuSet>) -> anyhow::Result<Self> {
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        let listener = TcpListener::bind(any).context("cannot listen")?;
        let port = listener.local_addr().context("cannot listen")?.port();
        let thread = thread::spawn(move || {
            if let Some(pin) = pin {
                // If this fails, the client's pinning fails too, and that is reported.
                let _ = pin_thread(&pin);
            }
            while listener.accept().is_ok_and(|(client, _)| serve(client)) {}
        });
        Ok(Self { port, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let reported = TcpStream::connect((Ipv6Addr::LOCALHOST, self.port))
            .and_then(|mut stream| stream.write_all(&[QUIT]));
        if let (Ok(()), Some(thread)) = (reported, self.thread.take()) {
            // A panic has been reported, and affects a single connection only.
            let _ = thread.join();
        }
    }
}

/// Interval between checks of a start.
pub(super) fn pause() {
    thread::sleep(Duration::from_millis(1));
}

/// True once a byte that was sent to the server comes back.
pub(super) fn is_reachable(program: &Network, server: &Server, target: IpAddr) -> bool {
    let to = SocketAddr::new(target, server.port);
    program.inside(|| Ok(exchange_once(to, REACHABLE_WAIT)?)).is_ok()
}

/// Times of round trips, shortest first, with client and server on the processors of `pin`.
pub(super) fn round_trips(
    program: &Network,
    target: IpAddr,
    seconds: u32,
    pin: CpuSet,
) -> anyhow::Result<Vec<Duration>> {
    let server = Server::start(Some(pin))?;
    let to = SocketAddr::new(target, server.port);
    let limit = Duration::from_secs(seconds.into());
    let mut times = program.inside(|| {
        pin_thread(&pin)?;
        let mut stream = connect(to, EXCHANGE_WAIT)?;
        stream.set_nodelay(true)?;
        let mut times = Vec::new();
        let started = Stopwatch::start();
        while started.elapsed() < limit || times.len() <= WARM_UP {
            let sent = Stopwatch::start();
            exchange(&mut stream)?;
            times.push(sent.elapsed());
        }
        times.drain(..WARM_UP);
        Ok(times)
    })?;
    times.sort_unstable();
    Ok(times)
}

/// The time that a `share` of the sorted `times` do not exceed.
pub(super) fn percentile(times: &[Duration], share: f64) -> Duration {
    assert!((0.0..=1.0).contains(&share) && !times.is_empty(), "a share of some times");
    let rank = (times.len() as f64 * share).ceil() as usize;
    times[rank.clamp(1, times.len()) - 1]
}

/// Connections per second, each with one byte there and back.
pub(super) fn connection_rate(
    program: &Network,
    target: IpAddr,
    seconds: u32,
) -> anyhow::Result<f64> {
    let server = Server::start(None)?;
    let to = SocketAddr::new(target, server.port);
    let limit = Duration::from_secs(seconds.into()).min(CONNECTING_MAX);
    program.inside(|| {
        let (mut done, mut failed) = (0_u32, 0_u32);
        let started = Stopwatch::start();
        while started.elapsed() < limit {
            match exchange_once(to, EXCHANGE_WAIT) {
                Ok(()) => done += 1,
                Err(_) => failed += 1,
            }
        }
        ensure!(failed <= done / 100, "{failed} connections failed, {done} did not");
        Ok(f64::from(done) / started.elapsed().as_secs_f64())
    })
}

/// Longer than a round trip, and short because a SYN that is sent before the gateway is ready may
/// be lost.
const REACHABLE_WAIT: Duration = Duration::from_millis(5);
/// Longer than TCP's first retransmission timeout for a handshake.
const EXCHANGE_WAIT: Duration = Duration::from_secs(2);
/// At 20,000 connections per second, these use most local ports of a namespace. The ports stay
/// blocked for longer.
const CONNECTING_MAX: Duration = Duration::from_secs(2);
/// Round trips before those that count.
const WARM_UP: usize = 100;

const PING: u8 = b'p';
const QUIT: u8 = b'q';

fn connect(to: SocketAddr, limit: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, limit)?;
    stream.set_read_timeout(Some(limit))?;
    Ok(stream)
}

fn exchange_once(to: SocketAddr, limit: Duration) -> io::Result<()> {
    exchange(&mut connect(to, limit)?)
}

fn exchange(stream: &mut TcpStream) -> io::Result<()> {
    let mut byte = [PING];
    stream.write_all(&byte)?;
    stream.read_exact(&mut byte)
}

/// Serves a connection to its end; false if the server must end.
fn serve(mut client: TcpStream) -> bool {
    // A client that disappears silently must not block the next one forever.
    let prepared =
        client.set_nodelay(true).and_then(|()| client.set_read_timeout(Some(EXCHANGE_WAIT)));
    let mut byte = [0];
    while prepared.is_ok() && client.read_exact(&mut byte).is_ok() {
        if byte == [QUIT] {
            return false;
        }
        if client.write_all(&byte).is_err() {
            break;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles() {
        let times: Vec<_> = (1..=200).map(Duration::from_micros).collect();
        assert_eq!(percentile(&times, 0.5), Duration::from_micros(100));
        assert_eq!(percentile(&times, 0.99), Duration::from_micros(198));
        assert_eq!(percentile(&times, 1.0), Duration::from_micros(200));
        assert_eq!(percentile(&times[..1], 0.99), Duration::from_micros(1));
    }

    #[test]
    fn a_server_answers_and_ends() {
        let mut server = Server::start(None).unwrap();
        let to = SocketAddr::from((Ipv6Addr::LOCALHOST, server.port));
        exchange_once(to, EXCHANGE_WAIT).unwrap();
        exchange_once(to, EXCHANGE_WAIT).unwrap();
        let thread = server.thread.take().unwrap();
        drop(server);
        thread.join().unwrap();
    }
}
