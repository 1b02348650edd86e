//! When lent memory comes back: by numbers alone, and from sockets of the kernel over the loopback.
//!
//! Over the loopback the kernel copies what it was lent when a packet reaches its receiver, and
//! reports the return like any other. Bytes that a receiver has no room for stay lent.

use super::*;
use crate::reactor::{Events, Interest, Reactor};
use crate::socket::TcpSocket;
use rustix::fd::AsFd;
use std::io::{ErrorKind, Read};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;
use towpath_packet::pool::{Frame, LARGE_FRAME_BYTES, Pool};

/// Frames of the pool of each test.
const FRAMES: usize = 2048;
/// Longer than anything here takes, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(30);

fn returned(first: u32, last: u32) -> LentReturn {
    LentReturn { first, last, copied: false }
}

/// Goal: a frame is free when its call and all calls before it have returned, and not before; also
/// for calls that return together or out of order, for a frame that two calls share, and when
/// numbers wrap.
#[test]
fn pieces_are_kept_until_their_call_returns() {
    let mut pool = Pool::new(4, 4096);
    let mut piece = |len| pool.take().expect("free").freeze(len);
    let pieces = [piece(10), piece(20), piece(30), piece(40)];
    let mut lent = Lent::default();
    lent.first = u32::MAX - 1;
    lent.add(pieces[..2].iter(), 15);
    // The rest of the second piece is sent by the next call.
    let rest = pieces[1].slice(5, 15);
    lent.add([&rest, &pieces[2]].into_iter(), 45);
    lent.add(pieces[3..].iter(), 40);
    drop((rest, pieces));
    assert_eq!((pool.out_count(), lent.held()), (4, 5 * 4096));
    lent.over(returned(0, 0));
    assert_eq!((pool.out_count(), lent.held()), (4, 5 * 4096), "the calls before it are out");
    lent.over(returned(u32::MAX - 1, u32::MAX - 1));
    assert_eq!((pool.out_count(), lent.held()), (3, 3 * 4096), "the second call shares a frame");
    // A return that was reported before changes nothing.
    lent.over(returned(u32::MAX - 1, u32::MAX - 1));
    assert_eq!(pool.out_count(), 3);
    lent.over(returned(u32::MAX, u32::MAX));
    assert_eq!((pool.out_count(), lent.held(), lent.is_empty()), (0, 0, true));
}

/// Goal: what a closed socket had lent is never handed out again.
#[test]
fn frames_of_a_closed_socket_stay_taken() {
    let mut pool = Pool::new(1, 4096);
    let piece = pool.take().expect("free").freeze(10);
    let mut lent = Lent::default();
    lent.add([&piece].into_iter(), 10);
    drop(piece);
    drop(lent);
    assert!(pool.take().is_none());
}

/// A connection over the loopback, and frames to lend.
struct Rig {
    socket: TcpSocket,
    peer: TcpStream,
    pool: Pool,
    sent: usize,
}

impl Rig {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let to = listener.local_addr().expect("bound");
        let (socket, _) = TcpSocket::connect(to).expect("connecting");
        let (peer, _) = listener.accept().expect("a connection");
        peer.set_read_timeout(Some(PATIENCE)).expect("a setting");
        Self { socket, peer, pool: Pool::new(FRAMES, LARGE_FRAME_BYTES), sent: 0 }
    }

    /// Lends frames, four to a call, until the socket is full or all frames are out.
    fn lend(&mut self) {
        loop {
            let fill = |(index, mut frame): (usize, Frame)| {
                let from = self.sent + index * LARGE_FRAME_BYTES;
                frame.iter_mut().enumerate().for_each(|(at, byte)| *byte = value(from + at));
                frame.freeze(LARGE_FRAME_BYTES)
            };
            let frames = std::iter::from_fn(|| self.pool.take()).take(4);
            let pieces: Vec<_> = frames.enumerate().map(fill).collect();
            if pieces.is_empty() {
                return;
            }
            match self.socket.send_lent(pieces.iter()) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // Users may lend only as much as they may lock.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Takes back returns until nothing is lent; returns how many calls came back.
    fn await_returns(&mut self) -> u32 {
        let mut reactor = Reactor::new().expect("epoll");
        reactor.add(&self.socket, 0, Interest::NONE, true).expect("add");
        let mut events = Events::new();
        let mut calls = 0;
        loop {
            calls += self.socket.take_returns().calls;
            if self.socket.lent_held() == 0 {
                return calls;
            }
            reactor.wait(Some(PATIENCE), &mut events).expect("wait");
            assert_eq!(events.len(), 1, "a return in time, with {:?}", self.socket);
        }
    }
}

/// The byte at a place of the stream; the period has no factor in common with the frames.
fn value(at: usize) -> u8 {
    (at % 251) as u8
}

/// Goal: lent bytes arrive in order, and all frames come back. Frames stay out while a stalled peer
/// leaves their bytes in the socket.
#[test]
fn lent_bytes_arrive_and_their_frames_return() {
    let mut rig = Rig::new();
    rig.lend();
    rig.socket.take_returns();
    assert!(rig.socket.lent_held() > 0, "the peer has no room for {} bytes", rig.sent);
    assert!(rig.pool.out_count() > 0);
    let mut all = vec![0; rig.sent];
    rig.peer.read_exact(&mut all).expect("all that was sent");
    assert!(all.iter().enumerate().all(|(at, byte)| *byte == value(at)));
    assert!(rig.await_returns() > 0);
    assert_eq!(rig.pool.out_count(), 0);
    // Once everything is back, no call reads returns.
    assert_eq!(rig.socket.take_returns(), Returns::default());
}

/// Goal: a reset by the peer returns everything, and so does the end of the connection on our side,
/// which the peer sees as a reset.
#[test]
fn the_end_of_a_connection_returns_all() {
    let mut rig = Rig::new();
    rig.lend();
    rustix::net::sockopt::set_socket_linger(rig.peer.as_fd(), Some(Duration::ZERO)).expect("set");
    drop(std::mem::replace(&mut rig.peer, Rig::new().peer));
    rig.await_returns();
    assert_eq!(rig.pool.out_count(), 0);

    let mut rig = Rig::new();
    rig.lend();
    rig.socket.disconnect().expect("it was connected");
    rig.await_returns();
    assert_eq!(rig.pool.out_count(), 0);
    let read = rig.peer.read_to_end(&mut Vec::new());
    assert_eq!(read.expect_err("a reset").kind(), ErrorKind::ConnectionReset);
}

/// Goal: a socket that ends in order while its peer takes nothing still delivers everything, and
/// everything returns.
#[test]
fn a_socket_that_closes_in_order_gets_all_back() {
    let mut rig = Rig::new();
    rig.lend();
    rig.socket.shutdown_both().expect("it was connected");
    let mut all = Vec::new();
    rig.peer.read_to_end(&mut all).expect("a FIN at the end");
    assert_eq!(all.len(), rig.sent);
    rig.await_returns();
    assert_eq!(rig.pool.out_count(), 0);
}
