//! Receives without a copy: held bytes are accounted for, and returned.

use super::bench::*;
use crate::counters::DropReason;
use crate::socket::{
    Error, Family, Options, ReadMost, Readiness, ReceivedDatagram, SendTo, SocketId,
};
use crate::time::Duration;
use alloc::sync::Arc;
use alloc::task::Wake;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};
use towpath_packet::pool::SMALL_FRAME_BYTES;
use towpath_packet::{Loans, ReceivedPiece, Site};

const MOST: ReadMost = ReadMost { bytes: 1 << 20, pieces: 1024, private: false };

fn receive(b: &mut Bench, id: SocketId, most: &ReadMost) -> Result<Vec<ReceivedPiece>, Error> {
    let mut out = Vec::new();
    let count = b.with(SERVER, |host, cx| host.receive_lent(id, most, &mut out, cx))?;
    assert_eq!(count, out.iter().map(ReceivedPiece::len).sum());
    Ok(out)
}

fn receive_datagram(
    b: &mut Bench,
    id: SocketId,
    most: &ReadMost,
) -> Result<(Vec<ReceivedPiece>, ReceivedDatagram), Error> {
    let mut out = Vec::new();
    let received = b.with(SERVER, |host, cx| host.receive_datagram_lent(id, most, &mut out, cx))?;
    Ok((out, received))
}

fn bytes(held: &[ReceivedPiece]) -> Vec<u8> {
    held.iter().flat_map(|held| held.bytes().expect("private").to_vec()).collect()
}

/// Bytes of a stream in which neighbouring bytes differ.
fn stream(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(|at| (at % 251) as u8).collect()
}

/// Goal: all bytes in order, none copied by the receiver, and frames stay as long as they are held.
#[test]
fn received_pieces_are_handed_out_and_come_back() {
    let mut b = Bench::new();
    let (server, client) = b.connected();
    assert_eq!(receive(&mut b, server, &MOST).unwrap_err(), Error::WouldBlock);
    b.send(CLIENT, client, &stream(0, 6000)).expect("room");
    b.settle();
    let idle = b.in_use();
    let most = ReadMost { bytes: 1000, ..MOST };
    let first = receive(&mut b, server, &most).expect("there");
    let rest = receive(&mut b, server, &MOST).expect("there");
    assert_eq!(bytes(&first), stream(0, 1000));
    assert_eq!(bytes(&rest), stream(1000, 5000));
    assert_eq!((b.copied_at(Site::SocketReceive), b.copied_at(Site::Pack)), (0, 0));
    assert_eq!(b.in_use(), idle, "the frames are held");
    let pieces = (first.len() + rest.len()) * SMALL_FRAME_BYTES;
    assert_eq!(b.hosts[SERVER].handed_out(), pieces as u64);
    drop((first, rest));
    assert_eq!((b.hosts[SERVER].handed_out(), b.in_use()), (0, 0));
    let now = b.now;
    b.hosts[CLIENT].close(client, now).expect("open");
    b.settle();
    assert_eq!(receive(&mut b, server, &MOST).map(|held| held.len()), Ok(0), "the end");
}

struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Goal: a reader that keeps everything makes its peer stop, with no more memory than the buffer
/// allows. When it returns memory, the transfer continues without a probe, and the driver is woken.
#[test]
fn what_is_held_keeps_the_window_shut() {
    let mut b = Bench::new();
    let woken = Arc::new(Count(AtomicUsize::new(0)));
    b.hosts[SERVER].set_return_waker(woken.clone().into());
    let (server, client) = b.connected();
    let now = b.now;
    let fixed = |options: &mut Options| options.receive_buffer = Some(256 << 10);
    b.hosts[SERVER].set_options(server, now, fixed).expect("open");
    let bytes_all = stream(0, 4 << 20);
    let (mut sent, mut read, mut stops, mut idle) = (0, 0, 0, 0);
    let mut held = Vec::new();
    while read < bytes_all.len() {
        let mut moved = false;
        if let Ok(more) = b.send(CLIENT, client, &bytes_all[sent..]) {
            (sent, moved) = (sent + more, more > 0);
        }
        b.settle();
        if let Ok(more) = receive(&mut b, server, &MOST) {
            let got = bytes(&more);
            assert_eq!(got, stream(read, got.len()));
            (read, moved) = (read + got.len(), true);
            held.extend(more);
        }
        let most = b.hosts[SERVER].tcp(server).expect("open").receive_memory_max() as u64;
        assert!(b.hosts[SERVER].handed_out() <= most + SMALL_FRAME_BYTES as u64);
        idle = if moved { 0 } else { idle + 1 };
        if (1..=2).contains(&idle) {
            // Longer than a delayed ACK, shorter than a window probe.
            b.pass(Duration::from_millis(40));
        } else if idle > 2 {
            (stops, idle) = (stops + 1, 0);
            assert!(!held.is_empty(), "nothing is held and nothing moves");
            let before = woken.0.load(Ordering::SeqCst);
            held.truncate(held.len() / 2);
            assert_eq!(woken.0.load(Ordering::SeqCst), before + 1);
        }
    }
    assert!(stops > 3, "{stops} stops");
    drop(held);
    b.pass(Duration::from_millis(40));
    assert_eq!(b.in_use(), 0);
    assert_eq!(b.copied_at(Site::SocketReceive), 0);
}

/// Goal: a loan much larger than the buffers is sent and received in parts. A part does not close
/// the window, and a reader that keeps the last parts still gets more. Method: over loopback, where
/// pieces are passed unchanged.
#[test]
fn a_loan_larger_than_the_buffers_is_received_in_parts() {
    const LOAN: usize = 8 << 20;
    let mut b = Bench::new();
    let (listener, client, now) = (b.listen(80, 1), b.stream(SERVER), b.now);
    assert_eq!(b.hosts[SERVER].connect(client, at(80), now), Err(Error::InProgress));
    b.settle();
    let (server, _) = b.hosts[SERVER].accept(listener, now).expect("a connection");
    let fixed = |options: &mut Options| options.receive_buffer = Some(512 << 10);
    b.hosts[SERVER].set_options(server, now, fixed).expect("open");
    let mut loans = Loans::new(1);
    let mut left = loans.lend_owned(stream(0, LOAN).into()).expect("a descriptor");
    let (mut read, mut rounds, mut kept) = (0, 0, Vec::new());
    while read < LOAN {
        rounds += 1;
        assert!(rounds < 200, "{read} bytes in {rounds} rounds");
        while let Ok(room @ 1..) = b.with(SERVER, |host, cx| host.send_room(client, cx.now))
            && !left.is_empty()
        {
            let part = left.slice(0, room.min(left.len()));
            left.advance(part.len());
            b.with(SERVER, |host, cx| host.send_piece(client, part, cx)).expect("open");
        }
        b.settle();
        let Ok(more) = receive(&mut b, server, &MOST) else {
            // Longer than a delayed ACK, shorter than a window probe.
            b.pass(Duration::from_millis(40));
            continue;
        };
        let got = bytes(&more);
        assert!(got == stream(read, got.len()), "from {read} on");
        read += got.len();
        // The pieces of the call before were kept until now.
        kept = more;
        let most = b.hosts[SERVER].tcp(server).expect("open").receive_memory_max() as u64;
        assert!(b.hosts[SERVER].handed_out() <= most);
    }
    assert_eq!((b.copied_at(Site::SocketReceive), b.copied_at(Site::Pack)), (0, 0));
    drop(kept);
    b.pass(Duration::from_millis(40));
    assert_eq!((b.hosts[SERVER].handed_out(), loans.out_count()), (0, 1), "ours is the last");
}

/// Goal: small segments, each in its own frame, are packed, so that a reader that keeps them keeps
/// one frame.
#[test]
fn small_pieces_are_packed() {
    let mut b = Bench::new();
    let (server, client) = b.connected();
    let now = b.now;
    b.hosts[CLIENT].set_nodelay(client, true, now).expect("open");
    for at in 0..20 {
        b.send(CLIENT, client, &stream(at * 10, 10)).expect("room");
        b.settle();
    }
    let held = receive(&mut b, server, &MOST).expect("there");
    assert_eq!((bytes(&held), held.len()), (stream(0, 200), 1));
    assert_eq!(b.hosts[SERVER].handed_out(), SMALL_FRAME_BYTES as u64);
    assert_eq!(b.copied_at(Site::Pack), 200);
    b.send(CLIENT, client, &stream(0, 10)).expect("room");
    b.settle();
    let one = receive(&mut b, server, &MOST).expect("there");
    assert_eq!((bytes(&one), b.copied_at(Site::Pack)), (stream(0, 10), 200), "nothing to gain");
}

/// Goal: at the limit of all readers a call fails, nothing is lost, and a read with a copy
/// succeeds.
#[test]
fn all_readers_together_have_a_bound() {
    let mut b = Bench::new();
    let listener = b.listen(80, 100);
    let mut held = Vec::new();
    let refused = loop {
        let client = b.connecting(80);
        b.settle();
        let now = b.now;
        let (server, _) = b.hosts[SERVER].accept(listener, now).expect("a connection");
        let mut sent = 0;
        for _ in 0..20 {
            sent += b.send(CLIENT, client, &stream(sent, 40_000 - sent)).unwrap_or(0);
            b.pass(Duration::from_millis(40));
        }
        assert_eq!(b.hosts[SERVER].available(server), Ok(40_000));
        match receive(&mut b, server, &MOST) {
            Ok(more) if bytes(&more).len() == 40_000 => held.push(more),
            Ok(more) => {
                held.push(more);
                break server;
            }
            Err(error) => {
                assert_eq!(error, Error::NoBuffers);
                break server;
            }
        }
        assert!(held.len() < 1000, "no bound");
    };
    assert_eq!(receive(&mut b, refused, &MOST).unwrap_err(), Error::NoBuffers);
    let most = b.memory_bytes() as u64 / 8;
    let all = b.hosts[SERVER].handed_out();
    assert!(all <= most && all + SMALL_FRAME_BYTES as u64 > most, "{all} of {most}");
    let there = b.hosts[SERVER].available(refused).expect("open");
    assert!(there > 0);
    assert_eq!(b.receive(SERVER, refused).expect("a copy").len(), 100);
    held.clear();
    let rest = receive(&mut b, refused, &MOST).expect("there is room again");
    assert_eq!(bytes(&rest), stream(40_000 - there + 100, there - 100));
}

/// Goal: a socket may be closed while pieces are held: the pieces stay valid and count until they
/// are dropped. The reader's number is reused.
#[test]
fn what_is_held_outlives_its_socket() {
    let mut b = Bench::new();
    let (server, client) = b.connected();
    b.send(CLIENT, client, &stream(0, 1000)).expect("room");
    b.settle();
    let held = receive(&mut b, server, &MOST).expect("there");
    let now = b.now;
    b.hosts[SERVER].close(server, now).expect("open");
    b.hosts[CLIENT].close(client, now).expect("open");
    b.settle();
    assert_eq!(bytes(&held), stream(0, 1000));
    let (other, _) = b.connected();
    assert_eq!(receive(&mut b, other, &MOST).unwrap_err(), Error::WouldBlock);
    assert_eq!(b.hosts[SERVER].handed_out(), SMALL_FRAME_BYTES as u64);
    drop(held);
    assert_eq!(b.hosts[SERVER].handed_out(), 0);
}

fn datagrams(b: &mut Bench, port: u16) -> (SocketId, SocketId) {
    let server = b.hosts[SERVER].datagram(Family::V4).expect("room");
    b.hosts[SERVER].bind(server, at(port)).expect("free");
    (server, b.hosts[CLIENT].datagram(Family::V4).expect("room"))
}

fn send_datagram(b: &mut Bench, client: SocketId, port: u16, payload: &[u8]) {
    let to = SendTo { to: Some(at(port)), ..SendTo::default() };
    let sent = b.with(CLIENT, |host, cx| host.send_datagram(client, &[payload], &to, cx));
    assert_eq!(sent, Ok(payload.len()));
    b.settle();
}

/// Goal: a datagram is handed out whole, in its received pieces, or stays queued.
#[test]
fn datagrams_are_lent_whole() {
    let mut b = Bench::new();
    let (server, client) = datagrams(&mut b, 53);
    assert_eq!(receive_datagram(&mut b, server, &MOST).unwrap_err(), Error::WouldBlock);
    send_datagram(&mut b, client, 53, &stream(0, 5000));
    send_datagram(&mut b, client, 53, &[]);
    let few = ReadMost { pieces: 2, ..MOST };
    assert_eq!(receive_datagram(&mut b, server, &few).unwrap_err(), Error::MessageSize);
    let (held, received) = receive_datagram(&mut b, server, &MOST).expect("it is queued");
    assert_eq!((bytes(&held), received.len, held.len()), (stream(0, 5000), 5000, 4));
    assert_eq!(b.copied_at(Site::SocketReceive), 0);
    let (empty, received) = receive_datagram(&mut b, server, &MOST).expect("there");
    assert_eq!((empty.len(), received.len), (0, 0));
    assert_eq!(b.hosts[SERVER].handed_out(), 4 * SMALL_FRAME_BYTES as u64);
    drop(held);
    assert_eq!((b.hosts[SERVER].handed_out(), b.in_use()), (0, 0));
}

/// Goal: held datagrams leave less room for others, which are dropped and counted. Queued datagrams
/// can be read with a copy. When enough is returned the socket is woken.
#[test]
fn datagrams_that_are_held_take_room() {
    let mut b = Bench::new();
    let (server, client) = datagrams(&mut b, 53);
    let mut held = Vec::new();
    loop {
        send_datagram(&mut b, client, 53, &stream(0, 1000));
        match receive_datagram(&mut b, server, &MOST) {
            Ok((more, _)) => held.extend(more),
            Err(error) => {
                assert_eq!(error, Error::NoBuffers);
                break;
            }
        }
        assert!(held.len() < 1000, "no bound");
    }
    assert_eq!(b.hosts[SERVER].dropped_datagrams(server), Ok(0));
    send_datagram(&mut b, client, 53, &stream(0, 1000));
    assert_eq!(b.hosts[SERVER].dropped_datagrams(server), Ok(1));
    assert_eq!(b.hosts[SERVER].stack().counters().dropped(DropReason::UdpNoRoom), 1);
    b.wakes(SERVER);
    held.truncate(held.len() / 2);
    b.settle();
    assert_eq!(b.wakes(SERVER), vec![(server, Readiness::READABLE)]);
    assert_eq!(bytes(&receive_datagram(&mut b, server, &MOST).expect("room").0), stream(0, 1000));
}
