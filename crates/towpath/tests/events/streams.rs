//! Operations on streams of towpath hosts.

use super::sockets::{address, connection, hosts};
use super::{Case, PATIENCE, config, errno, now, one, queue, until_over, wait};
use crate::taken::{Done, Taken};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};
use towpath::events::{Choice, Config, EventKind, EventQueue, Token};
use towpath::host::{Config as HostConfig, Host, ReceivedPiece, SendMode, TcpListener, TcpStream};

pub(super) const CASES: &[Case] = &[
    ("a_connection_is_made_or_refused", connect),
    ("connecting_is_cancelled_or_ends_in_time", connect_stopped),
    ("one_accept_takes_many_connections", accept),
    ("an_accept_that_is_cancelled_loses_no_connection", accept_stopped),
    ("a_posted_buffer_comes_back_with_bytes", receive),
    ("an_operation_is_not_reported_for_another", receive_elsewhere),
    ("a_posted_buffer_comes_back_at_the_end", receive_end),
    ("a_posted_buffer_comes_back_when_it_is_asked_for", receive_stopped),
    ("posted_buffers_are_filled_while_nobody_waits", receive_placed),
    ("posted_buffers_are_filled_and_reported_in_turn", receive_in_turn),
    ("a_posted_buffer_that_is_withdrawn_takes_no_byte", receive_withdrawn),
    ("pieces_are_received", receive_lent),
    ("pieces_are_received_when_there_is_room", receive_lent_crowded),
    ("a_large_buffer_is_accepted_and_returned", send),
    ("a_buffer_comes_back_when_it_is_asked_for", send_stopped),
    ("a_buffer_comes_back_when_the_peer_is_gone", send_reset),
    ("a_full_queue_hands_buffers_back", full),
    ("a_queue_may_go_before_operations_on_streams", dropped),
];

/// Returns the result of an operation with a buffer, and checks that it is reported once.
fn finish(queue: &mut EventQueue, token: Token) -> Done {
    until_over(queue, token);
    take(queue, token)
}

fn take(queue: &mut EventQueue, token: Token) -> Done {
    assert_eq!(now(queue), []);
    queue.cancel(token).unwrap();
    assert_eq!(now(queue), [], "too late");
    let completed = queue.take_done(token).unwrap();
    assert!(queue.take(token).is_none() && queue.is_empty());
    assert_eq!(errno(queue.cancel(token)), Errno::STALE);
    completed
}

/// Waits until the peer has something to read.
fn until_received(peer: &TcpStream, mut meanwhile: impl FnMut()) {
    let deadline = Instant::now() + PATIENCE;
    peer.set_nonblocking(true).unwrap();
    while peer.peek(&mut [0]).is_err() {
        assert!(Instant::now() < deadline, "timed out without data");
        meanwhile();
        std::thread::yield_now();
    }
}

fn past() -> Option<Instant> {
    Some(Instant::now())
}

fn connect(choice: Choice) {
    let (mut queue, (a, b)) = (queue(choice), hosts());
    let listener = TcpListener::bind(&b, address()).unwrap();
    let far = Some(Instant::now() + 100 * PATIENCE);
    let token = queue.connect(&a, address(), far, 9).unwrap();
    assert_eq!(errno(queue.remove(token)), Errno::BUSY);
    assert!(queue.take_stream(token).is_none());
    assert_eq!(until_over(&mut queue, token), []);
    let (stream, remote) = queue.take_stream(token).unwrap().unwrap();
    assert_eq!((remote, queue.len()), (Some(address()), 0));
    stream.as_host().unwrap().write_all(b"hello").unwrap();
    let mut read = [0; 5];
    listener.accept().unwrap().0.read_exact(&mut read).unwrap();
    assert_eq!(&read, b"hello");
    // There is no listener.
    let token = queue.connect(&a, "10.0.0.2:81".parse().unwrap(), None, 9).unwrap();
    assert_eq!(until_over(&mut queue, token), []);
    assert_eq!(errno(queue.take_stream(token).unwrap()), Errno::CONNREFUSED);
    assert_eq!(errno(queue.cancel(token)), Errno::STALE);
}

fn connect_stopped(choice: Choice) {
    let (mut queue, (a, _b)) = (queue(choice), hosts());
    // The address does not exist.
    let nobody = "10.0.0.9:80".parse().unwrap();
    let token = queue.connect(&a, nobody, None, 9).unwrap();
    queue.cancel(token).unwrap();
    queue.cancel(token).unwrap();
    assert_eq!(until_over(&mut queue, token), []);
    assert_eq!(errno(queue.take_stream(token).unwrap()), Errno::CANCELED);
    let soon = Some(Instant::now() + Duration::from_millis(1));
    let token = queue.connect(&a, nobody, soon, 9).unwrap();
    assert_eq!(until_over(&mut queue, token), []);
    assert_eq!(errno(queue.take_stream(token).unwrap()), Errno::TIMEDOUT);
    assert!(queue.is_empty());
}

fn accept(choice: Choice) {
    let (mut queue, (a, b)) = (queue(choice), hosts());
    let listener = TcpListener::bind(&b, address()).unwrap();
    let token = queue.accept(&listener, None, 9).unwrap();
    listener.set_nodelay(true).unwrap();
    drop(listener);
    assert_eq!(now(&mut queue), []);
    let clients: Vec<_> = (0..3).map(|_| TcpStream::connect(&a, address()).unwrap()).collect();
    // Their packets arrive before those of this connection.
    let other = "10.0.0.2:81";
    let last = TcpListener::bind(&b, other).unwrap();
    let _client = TcpStream::connect(&a, other).unwrap();
    last.accept().unwrap();
    assert_eq!(one(&mut queue).kind, EventKind::Connection);
    assert_eq!(now(&mut queue), [], "it is reported once");
    for _ in &clients {
        let (stream, from) = queue.take_stream(token).unwrap().unwrap();
        assert!(stream.as_host().unwrap().nodelay().unwrap());
        assert!(clients.iter().any(|client| client.local_addr().ok() == from));
    }
    assert!(queue.take_stream(token).is_none());
    // Connections that are left are reported again.
    let _clients = [0; 2].map(|_| TcpStream::connect(&a, address()).unwrap());
    for _ in 0..2 {
        assert_eq!(one(&mut queue).kind, EventKind::Connection);
        queue.take_stream(token).unwrap().unwrap();
    }
    assert_eq!(now(&mut queue), []);
    let client = TcpStream::connect(&a, address()).unwrap();
    assert_eq!(one(&mut queue).kind, EventKind::Connection);
    drop(client);
    queue.take_stream(token).unwrap().unwrap();
    queue.cancel(token).unwrap();
    assert_eq!(until_over(&mut queue, token), []);
    assert_eq!(errno(queue.take_stream(token).unwrap()), Errno::CANCELED);
    assert!(queue.is_empty());
    assert!(TcpStream::connect(&a, address()).is_err(), "no listener any more");
}

/// Goal: a connection that was reported can be taken after a cancel; the others stay.
fn accept_stopped(choice: Choice) {
    let (mut queue, (a, b)) = (queue(choice), hosts());
    let listener = TcpListener::bind(&b, address()).unwrap();
    let token = queue.accept(&listener, None, 9).unwrap();
    let _clients = [0; 2].map(|_| TcpStream::connect(&a, address()).unwrap());
    assert_eq!(one(&mut queue).kind, EventKind::Connection);
    queue.cancel(token).unwrap();
    assert_eq!(now(&mut queue), [], "the connection comes first");
    queue.take_stream(token).unwrap().unwrap();
    assert_eq!(until_over(&mut queue, token), []);
    assert_eq!(errno(queue.take_stream(token).unwrap()), Errno::CANCELED);
    listener.accept().unwrap();
    let token = queue.accept(&listener, past(), 9).unwrap();
    assert_eq!(until_over(&mut queue, token), []);
    assert_eq!(errno(queue.take_stream(token).unwrap()), Errno::TIMEDOUT);
}

/// Goal: an operation that reuses the waker of one that left it with a socket only completes for
/// its own socket. Method: the first is cancelled, and its socket then receives bytes.
fn receive_elsewhere(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts());
    let (first, mut one_peer) = connection(&hosts);
    let (second, mut other_peer) = connection(&hosts);
    for _ in 0..3 {
        let token = queue.receive(&first, vec![0; 100], None, 9).unwrap();
        assert_eq!(now(&mut queue), []);
        queue.cancel(token).unwrap();
        assert_eq!(errno(finish(&mut queue, token).result), Errno::CANCELED);
        let token = queue.receive(&second, vec![0; 100], None, 9).unwrap();
        assert_eq!(now(&mut queue), []);
        one_peer.write_all(b"not yours").unwrap();
        let end = Instant::now() + PATIENCE;
        while (&mut &first).read(&mut [0; 9]).is_err() {
            assert!(Instant::now() < end, "timed out without data");
            assert_eq!(now(&mut queue), []);
        }
        assert_eq!(now(&mut queue), []);
        other_peer.write_all(b"hello").unwrap();
        assert_eq!(finish(&mut queue, token).result.unwrap(), 5);
    }
}

fn receive(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts());
    let (stream, mut peer) = connection(&hosts);
    let far = Some(Instant::now() + 100 * PATIENCE);
    let token = queue.receive(&stream, vec![0; 100], far, 9).unwrap();
    assert_eq!(now(&mut queue), []);
    assert_eq!(errno(queue.remove(token)), Errno::BUSY);
    peer.write_all(b"hello").unwrap();
    let Done { result, buffer, .. } = finish(&mut queue, token);
    assert_eq!((result.unwrap(), buffer.len(), &buffer[..5]), (5, 100, &b"hello"[..]));
    // More bytes than room, and no room.
    peer.write_all(b"hello").unwrap();
    let token = queue.receive(&stream, vec![0; 2], None, 9).unwrap();
    let Done { result, buffer, .. } = finish(&mut queue, token);
    assert_eq!((result.unwrap(), &buffer[..]), (2, &b"he"[..]));
    let token = queue.receive(&stream, Vec::new(), None, 9).unwrap();
    assert_eq!(finish(&mut queue, token).result.unwrap(), 0);
    let mut rest = Vec::new();
    while rest.len() < 3 {
        let token = queue.receive(&stream, vec![0; 9], None, 9).unwrap();
        let Done { result, buffer, .. } = finish(&mut queue, token);
        rest.extend_from_slice(&buffer[..result.unwrap()]);
    }
    assert_eq!(rest, b"llo");
}

fn receive_end(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts());
    let (stream, peer) = connection(&hosts);
    let token = queue.receive(&stream, vec![0; 9], None, 9).unwrap();
    assert_eq!(now(&mut queue), []);
    peer.shutdown(Shutdown::Write).unwrap();
    let Done { result, buffer, .. } = finish(&mut queue, token);
    assert_eq!((result.unwrap(), buffer.len()), (0, 9));
    // A peer that closes with unread bytes resets.
    let (mut stream, peer) = connection(&hosts);
    stream.write_all(b"hello").unwrap();
    until_received(&peer, || {});
    let token = queue.receive(&stream, vec![0; 9], None, 9).unwrap();
    assert_eq!(now(&mut queue), []);
    drop(peer);
    let Done { result, buffer, .. } = finish(&mut queue, token);
    assert_eq!((errno(result), buffer.len()), (Errno::CONNRESET, 9));
}

/// Goal: bytes that arrive too late for a cancelled operation stay in the stream.
fn receive_stopped(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts());
    let (stream, mut peer) = connection(&hosts);
    let token = queue.receive(&stream, vec![3; 9], None, 9).unwrap();
    assert_eq!(now(&mut queue), []);
    queue.cancel(token).unwrap();
    peer.write_all(b"hello").unwrap();
    let Done { result, buffer, .. } = finish(&mut queue, token);
    assert_eq!((errno(result), buffer), (Errno::CANCELED, vec![3; 9]));
    let token = queue.receive(&stream, vec![3; 9], None, 9).unwrap();
    assert_eq!(finish(&mut queue, token).result.unwrap(), 5);
    let token = queue.receive(&stream, vec![3; 9], past(), 9).unwrap();
    let Done { result, buffer, .. } = finish(&mut queue, token);
    assert_eq!((errno(result), buffer), (Errno::TIMEDOUT, vec![3; 9]));
}

/// Goal: the worker places bytes as they arrive. Method: once the peer knows that the bytes have
/// arrived, a cancel comes too late, although there was no wait.
fn receive_placed(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts());
    let (stream, mut peer) = connection(&hosts);
    let token = queue.receive(&stream, vec![0; 9], None, 9).unwrap();
    assert_eq!(now(&mut queue), []);
    peer.write_all(b"hello").unwrap();
    assert!(hosts.1.finish(PATIENCE));
    queue.cancel(token).unwrap();
    let Done { result, buffer, .. } = finish(&mut queue, token);
    assert_eq!((result.unwrap(), &buffer[..5]), (5, &b"hello"[..]));
}

/// Goal: several buffers are filled and reported in order, whether bytes arrive before, between or
/// after them; the end is reported to each that is left.
fn receive_in_turn(choice: Choice) {
    const ROUNDS: usize = 30;
    let (mut queue, hosts) = (queue(choice), hosts());
    let (stream, mut peer) = connection(&hosts);
    let post = |queue: &mut EventQueue| queue.receive(&stream, vec![0; 2], None, 9).unwrap();
    let mut posted = VecDeque::new();
    let mut received = Vec::new();
    let mut take_one = |queue: &mut EventQueue, posted: &mut VecDeque<Token>| {
        for event in wait(queue) {
            assert_eq!((Some(event.token), event.kind), (posted.pop_front(), EventKind::Completed));
            let Done { result, buffer, .. } = queue.take_done(event.token).unwrap();
            received.extend_from_slice(&buffer[..result.unwrap()]);
        }
        received.len()
    };
    for round in 0..ROUNDS {
        posted.extend((0..round % 4).map(|_| post(&mut queue)));
        if round % 3 == 0 {
            assert!(now(&mut queue).is_empty());
        }
        peer.write_all(&[round as u8; 6]).unwrap();
        if round % 2 == 0 {
            assert!(hosts.1.finish(PATIENCE));
        }
        let mut count = 6 * round;
        while count < 6 * (round + 1) {
            while posted.len() < 3 {
                posted.push_back(post(&mut queue));
            }
            count = take_one(&mut queue, &mut posted);
        }
        for left in posted.drain(..) {
            queue.cancel(left).unwrap();
            let result = finish_of(&mut queue, left).result;
            assert_eq!(errno(result), Errno::CANCELED);
        }
    }
    posted.extend((0..3).map(|_| post(&mut queue)));
    peer.shutdown(Shutdown::Write).unwrap();
    while !posted.is_empty() {
        assert_eq!(take_one(&mut queue, &mut posted), 6 * ROUNDS);
    }
    let sent = (0..ROUNDS).flat_map(|round| [round as u8; 6]);
    assert!(sent.eq(received));
}

/// Returns the result of one of several operations.
fn finish_of(queue: &mut EventQueue, token: Token) -> Done {
    let event = one(queue);
    assert_eq!((event.token, event.kind), (token, EventKind::Completed));
    queue.take_done(token).unwrap()
}

/// Goal: bytes for a cancelled buffer go to the next one, and bytes for buffers of a dropped queue
/// stay in the stream.
fn receive_withdrawn(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts());
    let (mut stream, mut peer) = connection(&hosts);
    let [first, second, third] =
        [3; 3].map(|byte| queue.receive(&stream, vec![byte; 2], None, 9).unwrap());
    assert_eq!(now(&mut queue), []);
    queue.cancel(second).unwrap();
    let Done { result, buffer, .. } = finish_of(&mut queue, second);
    assert_eq!((errno(result), buffer), (Errno::CANCELED, vec![3; 2]));
    peer.write_all(b"abcd").unwrap();
    let mut reported = Vec::new();
    while reported.len() < 2 {
        reported.extend(wait(&mut queue).iter().map(|event| event.token));
    }
    assert_eq!(reported, [first, third]);
    assert_eq!(queue.take_done(first).unwrap().buffer, b"ab");
    assert_eq!(queue.take_done(third).unwrap().buffer, b"cd");
    let _posted = [4; 2].map(|byte| queue.receive(&stream, vec![byte; 2], None, 9).unwrap());
    assert_eq!(now(&mut queue), []);
    drop(queue);
    peer.write_all(b"rest").unwrap();
    let mut read = [0; 4];
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.read_exact(&mut read).unwrap();
    assert_eq!(&read, b"rest");
}

fn receive_lent(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts());
    let (stream, mut peer) = connection(&hosts);
    let token = queue.receive_lent(&stream, 1000, None, 9).unwrap();
    assert_eq!(now(&mut queue), []);
    peer.write_all(b"hello").unwrap();
    assert_eq!(until_over(&mut queue, token), []);
    let pieces = queue.take_pieces(token).unwrap().unwrap();
    assert_eq!(pieces.iter().map(|piece| piece.bytes().unwrap().len()).sum::<usize>(), 5);
    assert!(queue.is_empty() && queue.take_pieces(token).is_none());
    for (max, ends) in [(0, false), (10, true)] {
        if ends {
            peer.shutdown(Shutdown::Write).unwrap();
        }
        let token = queue.receive_lent(&stream, max, None, 9).unwrap();
        until_over(&mut queue, token);
        assert!(queue.take_pieces(token).unwrap().unwrap().is_empty());
    }
    let (stream, _peer) = {
        let other = TcpListener::bind(&hosts.1, "10.0.0.2:81").unwrap();
        let stream = TcpStream::connect(&hosts.0, "10.0.0.2:81").unwrap();
        (stream, other.accept().unwrap())
    };
    let token = queue.receive_lent(&stream, 10, None, 9).unwrap();
    queue.cancel(token).unwrap();
    until_over(&mut queue, token);
    assert_eq!(errno(queue.take_pieces(token).unwrap()), Errno::CANCELED);
}

/// Goal: if a call would fail because readers hold too many bytes, an operation waits until they
/// hold fewer, and nothing is lost; a cancel and a deadline still end it.
fn receive_lent_crowded(choice: Choice) {
    const CONNECTIONS: usize = 16;
    const MOST: usize = 64 << 10;
    let config = |last| HostConfig {
        memory: 1 << 20,
        default_term: None,
        ..HostConfig::with_address([10, 0, 0, last], 24)
    };
    let hosts = Host::pair(&config(1), &config(2)).unwrap();
    let mut queue = queue(choice);
    let mut connections = super::send_file::connections(&hosts, CONNECTIONS);
    for (stream, peer) in &mut connections {
        stream.set_nonblocking(true).unwrap();
        peer.set_nonblocking(true).unwrap();
    }
    let bytes = vec![7; 64 << 10];
    let (mut kept, mut sent, mut received) = (Vec::new(), 0, 0);
    let deadline = Instant::now() + PATIENCE;
    let full = 'full: loop {
        assert!(Instant::now() < deadline, "no ENOBUFS before the deadline");
        for (number, (stream, peer)) in connections.iter_mut().enumerate() {
            sent += peer.write(&bytes).unwrap_or(0);
            match stream.recv_lent(MOST, &mut kept) {
                Ok(count) => received += count,
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => break 'full number,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
    };
    let stream = &connections[full].0;
    let token = queue.receive_lent(stream, MOST, None, 9).unwrap();
    assert_eq!(now(&mut queue), []);
    queue.cancel(token).unwrap();
    until_over(&mut queue, token);
    assert_eq!(errno(queue.take_pieces(token).unwrap()), Errno::CANCELED);
    let due = Instant::now() + Duration::from_millis(20);
    let token = queue.receive_lent(stream, MOST, Some(due), 9).unwrap();
    until_over(&mut queue, token);
    assert_eq!(errno(queue.take_pieces(token).unwrap()), Errno::TIMEDOUT);
    let token = queue.receive_lent(stream, MOST, None, 9).unwrap();
    assert_eq!(now(&mut queue), []);
    kept.clear();
    until_over(&mut queue, token);
    let pieces = queue.take_pieces(token).unwrap().unwrap();
    received += pieces.iter().map(|piece| piece.bytes().unwrap().len()).sum::<usize>();
    drop(pieces);
    // Everything that was sent arrives unchanged.
    while received < sent {
        assert!(Instant::now() < deadline, "{received} of {sent} bytes");
        for (stream, _) in &connections {
            let mut pieces = Vec::new();
            if let Ok(count) = stream.recv_lent(MOST, &mut pieces) {
                received += count;
            }
            let is_sevens =
                |piece: &ReceivedPiece| piece.bytes().unwrap().iter().all(|&byte| byte == 7);
            assert!(pieces.iter().all(is_sevens));
        }
    }
    assert_eq!(received, sent);
}

/// Reads `count` bytes, which must be 7.
fn read_sevens(peer: &mut TcpStream, count: usize) {
    peer.set_nonblocking(false).unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut read = vec![0; count];
    peer.read_exact(&mut read).unwrap();
    assert!(read.iter().all(|byte| *byte == 7));
}

fn send(choice: Choice) {
    const LARGE: usize = 40 << 20;
    let (mut queue, hosts) = (queue(choice), hosts());
    for mode in [SendMode::Lend, SendMode::Copy] {
        let (stream, mut peer) = connection(&hosts);
        stream.set_send_mode(mode);
        for len in [0, 1, LARGE] {
            let token = queue.send(&stream, vec![7; len], None, 9).unwrap();
            if mode == SendMode::Lend && len == LARGE {
                let event = one(&mut queue);
                assert_eq!((event.token, event.kind), (token, EventKind::Accepted { bytes: len }));
                assert_eq!(now(&mut queue), [], "the peer has not read");
                assert!(queue.take(token).is_none());
            }
            let reader = std::thread::spawn(move || {
                read_sevens(&mut peer, len);
                peer
            });
            let reported = until_over(&mut queue, token);
            let told_before = mode == SendMode::Lend && len == LARGE;
            assert_eq!(reported.len(), usize::from(!told_before), "{reported:?}");
            let Done { result, buffer, .. } = take(&mut queue, token);
            assert_eq!((result.unwrap(), buffer.len()), (len, len));
            peer = reader.join().unwrap();
        }
    }
}

/// Goal: accepted bytes are sent even if their buffer is recalled; bytes that were not accepted are
/// not.
fn send_stopped(choice: Choice) {
    const LEN: usize = 1 << 20;
    let (mut queue, hosts) = (queue(choice), hosts());
    let (stream, mut peer) = connection(&hosts);
    stream.set_send_mode(SendMode::Lend);
    let token = queue.send(&stream, vec![7; LEN], None, 9).unwrap();
    queue.cancel(token).unwrap();
    let Done { result, buffer, .. } = finish(&mut queue, token);
    assert_eq!((errno(result), buffer.len()), (Errno::CANCELED, LEN));
    let token = queue.send(&stream, vec![7; LEN], None, 9).unwrap();
    assert_eq!(one(&mut queue).kind, EventKind::Accepted { bytes: LEN });
    queue.cancel(token).unwrap();
    let Done { result, buffer, .. } = finish(&mut queue, token);
    assert_eq!((result.unwrap(), buffer.len()), (LEN, LEN));
    read_sevens(&mut peer, LEN);
    let soon = Some(Instant::now() + Duration::from_millis(50));
    let token = queue.send(&stream, vec![7; LEN], soon, 9).unwrap();
    let Done { result, buffer, .. } = finish(&mut queue, token);
    let accepted = result.unwrap_or(0);
    assert_eq!(buffer.len(), LEN);
    read_sevens(&mut peer, accepted);
    // A copy stops in the middle.
    stream.set_send_mode(SendMode::Copy);
    let token = queue.send(&stream, vec![7; 64 * LEN], None, 9).unwrap();
    until_received(&peer, || assert_eq!(now(&mut queue), []));
    queue.cancel(token).unwrap();
    let Done { result, buffer, .. } = finish(&mut queue, token);
    let count = result.unwrap();
    assert!(count > 0 && count < 64 * LEN && buffer.len() == 64 * LEN, "{count}");
    stream.shutdown(Shutdown::Write).unwrap();
    read_sevens(&mut peer, count);
    assert_eq!(peer.read(&mut [0]).unwrap(), 0);
}

fn send_reset(choice: Choice) {
    const LEN: usize = 20 << 20;
    let (mut queue, hosts) = (queue(choice), hosts());
    let (stream, peer) = connection(&hosts);
    stream.set_send_mode(SendMode::Lend);
    let token = queue.send(&stream, vec![7; LEN], None, 9).unwrap();
    assert_eq!(one(&mut queue).kind, EventKind::Accepted { bytes: LEN });
    until_received(&peer, || {});
    drop(peer);
    assert_eq!(finish(&mut queue, token).buffer.len(), LEN);
    for mode in [SendMode::Lend, SendMode::Copy] {
        stream.set_send_mode(mode);
        let token = queue.send(&stream, vec![7; 100], None, 9).unwrap();
        let Done { result, buffer, .. } = finish(&mut queue, token);
        assert!(matches!(errno(result), Errno::CONNRESET | Errno::PIPE));
        assert_eq!(buffer, [7; 100]);
    }
}

fn full(choice: Choice) {
    let small = Config { registrations: 1, ..config(choice) };
    let (mut queue, hosts) = (EventQueue::with(&small).unwrap(), hosts());
    let (stream, mut peer) = connection(&hosts);
    let far = Some(Instant::now() + PATIENCE);
    let token = queue.receive(&stream, vec![0; 5], far, 9).unwrap();
    for deadline in [None, far] {
        let refused = queue.receive(&stream, vec![7; 5], deadline, 9).unwrap_err();
        assert_eq!((errno::<()>(Err(refused.error)), refused.buffer), (Errno::NOSPC, vec![7; 5]));
        let refused = queue.send(&stream, vec![7; 5], deadline, 9).unwrap_err();
        assert_eq!((errno::<()>(Err(refused.error)), refused.buffer), (Errno::NOSPC, vec![7; 5]));
        assert_eq!(errno(queue.receive_lent(&stream, 5, deadline, 9)), Errno::NOSPC);
        assert_eq!(errno(queue.connect(&hosts.0, address(), deadline, 9)), Errno::NOSPC);
    }
    peer.write_all(b"hello").unwrap();
    assert_eq!(finish(&mut queue, token).result.unwrap(), 5);
}

/// Goal: accepted bytes are sent, and nothing else is taken from the streams.
fn dropped(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts());
    let (mut stream, mut peer) = connection(&hosts);
    stream.set_send_mode(SendMode::Lend);
    let listener = TcpListener::bind(&hosts.1, "10.0.0.2:81").unwrap();
    queue.receive(&stream, vec![0; 5], Some(Instant::now() + PATIENCE), 9).unwrap();
    queue.receive_lent(&stream, 5, None, 9).unwrap();
    queue.accept(&listener, None, 9).unwrap();
    let sent = queue.send(&stream, vec![7; 1 << 20], None, 9).unwrap();
    let event = one(&mut queue);
    assert_eq!((event.token, event.kind), (sent, EventKind::Accepted { bytes: 1 << 20 }));
    queue.connect(&hosts.0, "10.0.0.2:82".parse().unwrap(), None, 9).unwrap();
    drop(queue);
    peer.write_all(b"hello").unwrap();
    read_sevens(&mut peer, 1 << 20);
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut read = [0; 5];
    stream.read_exact(&mut read).unwrap();
    assert_eq!(&read, b"hello");
    let _client = TcpStream::connect(&hosts.0, "10.0.0.2:81").unwrap();
    listener.accept().unwrap();
}
