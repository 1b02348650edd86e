//! Datagrams sent at full speed in one direction; counts those that arrive.
//!
//! One thread sends and one receives, each with a socket in its own network. The program's side
//! sends first, so that everything in between learns the return path. The sender ignores losses.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use towpath_io::socket::zerocopy::{coalesce_datagrams, segment_datagrams};
use towpath_packet::sync::{AtomicBool, Ordering};

use super::iperf::Direction;
use super::lab::Network;
use super::ping_pong::Stopwatch;

/// A stream of datagrams to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flood {
    /// Direction of the datagrams: [`Direction::Out`] or [`Direction::In`].
    pub(super) direction: Direction,
    /// Payload bytes of a datagram.
    pub(super) bytes: u16,
    /// Datagrams per call: more than one with `UDP_SEGMENT`.
    pub(super) per_call: usize,
}

/// The datagrams that arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Arrived {
    pub(super) bytes: u64,
    pub(super) seconds: f64,
}

/// How often a wait for a datagram checks for the end.
const STEP: Duration = Duration::from_millis(20);
/// Longest wait for the first datagram.
const PATIENCE: Duration = Duration::from_secs(5);
/// Receive buffer for a receiver that is late, if the kernel allows that much.
const BUFFER_BYTES: usize = 4 << 20;
/// Larger than a message of coalesced datagrams.
const MESSAGE_BYTES: usize = 64 << 10;

/// Sends for some seconds, and returns what arrived.
pub(super) fn flood(
    program: &Network,
    target: IpAddr,
    flood: Flood,
    seconds: u32,
) -> anyhow::Result<Arrived> {
    let host = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).context("cannot bind")?;
    let to = SocketAddr::new(target, host.local_addr()?.port());
    let is_over = AtomicBool::new(false);
    let limit = Duration::from_secs(seconds.into());
    thread::scope(|scope| {
        let host = scope.spawn(|| {
            let ended = host_side(&host, flood, limit, &is_over);
            is_over.store(true, Ordering::Relaxed);
            ended
        });
        let inside = program.inside(|| program_side(to, flood, limit, &is_over));
        is_over.store(true, Ordering::Relaxed);
        let outside = host.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        match flood.direction {
            Direction::In => outside.and(inside),
            _ => inside.and(outside),
        }
    })
}

fn host_side(
    socket: &UdpSocket,
    flood: Flood,
    limit: Duration,
    is_over: &AtomicBool,
) -> anyhow::Result<Arrived> {
    let mut hello = [0; MESSAGE_BYTES];
    socket.set_read_timeout(Some(STEP))?;
    let started = Stopwatch::start();
    let peer = loop {
        match socket.recv_from(&mut hello) {
            Ok((_, peer)) => break peer,
            Err(error) if is_late(&error) => {}
            Err(error) => return Err(error.into()),
        }
        ensure!(started.elapsed() < PATIENCE, "no datagram arrived");
    };
    socket.connect(peer)?;
    match flood.direction {
        Direction::In => send(socket, flood, limit).map(|()| Arrived::default()),
        _ => receive(socket, is_over),
    }
}

fn program_side(
    to: SocketAddr,
    flood: Flood,
    limit: Duration,
    is_over: &AtomicBool,
) -> anyhow::Result<Arrived> {
    let any = if to.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        IpAddr::from(Ipv6Addr::UNSPECIFIED)
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(to)?;
    socket.send(&[0])?;
    match flood.direction {
        Direction::In => receive(&socket, is_over),
        _ => send(&socket, flood, limit).map(|()| Arrived::default()),
    }
}

fn send(socket: &UdpSocket, flood: Flood, limit: Duration) -> anyhow::Result<()> {
    let message = vec![0x5a; usize::from(flood.bytes) * flood.per_call];
    if flood.per_call > 1 {
        segment_datagrams(socket.as_fd(), flood.bytes).context("UDP_SEGMENT")?;
    }
    let started = Stopwatch::start();
    // Reading the clock costs a small fraction of a call.
    while started.elapsed() < limit {
        for _ in 0..16 {
            match socket.send(&message) {
                Ok(_) => {}
                // The device's queue is full.
                Err(error) if error.raw_os_error() == Some(NO_BUFFERS) => thread::yield_now(),
                Err(error) => return Err(error).context("cannot send"),
            }
        }
    }
    Ok(())
}

/// Counts until the end: from the first datagram to the last.
fn receive(socket: &UdpSocket, is_over: &AtomicBool) -> anyhow::Result<Arrived> {
    coalesce_datagrams(socket.as_fd()).context("UDP_GRO")?;
    // The kernel clamps the value to its own limit.
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size(socket, BUFFER_BYTES);
    socket.set_read_timeout(Some(STEP))?;
    let mut message = vec![0; MESSAGE_BYTES];
    let mut arrived = Arrived::default();
    let mut started = Stopwatch::start();
    loop {
        match socket.recv(&mut message) {
            // The datagram that opened the path does not count.
            Ok(_) if arrived.bytes == 0 => {
                started = Stopwatch::start();
                arrived.bytes = 1;
            }
            Ok(bytes) => arrived.bytes += bytes as u64,
            Err(error) if is_late(&error) => {}
            Err(error) => return Err(error.into()),
        }
        if is_over.load(Ordering::Relaxed) {
            arrived.seconds = started.elapsed().as_secs_f64();
            return Ok(arrived);
        }
    }
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

const NO_BUFFERS: i32 = rustix::io::Errno::NOBUFS.raw_os_error();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_arrives_is_counted() {
        let receiver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        let is_over = AtomicBool::new(false);
        let arrived = thread::scope(|scope| {
            let counting = scope.spawn(|| receive(&receiver, &is_over));
            let flood = Flood { direction: Direction::Out, bytes: 1000, per_call: 4 };
            // The receiver may miss the first datagrams, but not all of them.
            while !counting.is_finished() {
                send(&sender, flood, Duration::from_millis(5)).unwrap();
                is_over.store(true, Ordering::Relaxed);
            }
            counting.join().unwrap().unwrap()
        });
        assert!(arrived.bytes > 0 && arrived.seconds > 0.0, "{arrived:?}");
    }
}
