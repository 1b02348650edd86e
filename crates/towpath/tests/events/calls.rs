//! Calls of the program's own, and kernel sockets that the program has created and connects.

use super::files::pattern;
use super::kernel_streams::{full_listener, past, soon, unix};
use super::{Case, PATIENCE, config, errno, now, queue, until_over};
use crate::taken::Taken;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use towpath::events::{Call, Calls, Choice, Config, EventKind, EventQueue, Interest, Token};

pub(super) const CASES: &[Case] = &[
    ("a_call_is_made_again_when_its_socket_is_ready", datagram),
    ("calls_receive_so_many_bytes_or_all_there_are", receive),
    ("calls_send_so_many_bytes", send),
    ("calls_are_cancelled_or_late", stopped),
    ("calls_fail_or_are_interrupted", failed),
    ("a_full_queue_makes_no_calls", full),
    ("a_queue_may_go_before_its_calls", dropped),
    ("a_socket_of_the_programs_connects", connect),
    ("a_socket_that_cannot_connect_is_as_before", connect_failed),
    ("the_connect_of_a_socket_is_cancelled_or_late", connect_stopped),
];

/// Counts how often a call is made. The call holds the counter until it is dropped.
fn counted(
    mut call: impl FnMut(&OwnedFd, u64) -> Result<usize, Errno> + Send + 'static,
) -> (Box<Call>, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let made = count.clone();
    let call = move |socket: &OwnedFd, done| {
        made.fetch_add(1, Ordering::Relaxed);
        call(socket, done)
    };
    (Box::new(call), count)
}

/// Returns a call that appends what it receives, and the destination.
fn receiving(room: usize) -> (Box<Call>, Arc<Mutex<Vec<u8>>>) {
    let place = Arc::new(Mutex::new(Vec::new()));
    let into = place.clone();
    let call = move |socket: &OwnedFd, done| {
        let mut into = into.lock().unwrap();
        assert_eq!(into.len() as u64, done, "it gets the count moved before");
        let mut part = vec![0; room];
        let (count, _) = rustix::net::recv(socket, &mut part[..], RecvFlags::DONTWAIT)?;
        into.extend_from_slice(&part[..count]);
        Ok(count)
    };
    (Box::new(call), place)
}

fn reads(socket: impl Into<OwnedFd>, all: Option<u64>, call: Box<Call>) -> Calls {
    Calls { socket: Arc::new(socket.into()), interest: Interest::READ, all, call }
}

fn writes(socket: impl Into<OwnedFd>, all: Option<u64>, call: Box<Call>) -> Calls {
    Calls { interest: Interest::WRITE, ..reads(socket, all, call) }
}

/// Takes the result of completed calls, and checks that the end is reported once.
fn take(queue: &mut EventQueue, token: Token) -> (u64, io::Result<()>) {
    assert_eq!(now(queue), []);
    let called = queue.take_called(token).unwrap();
    assert!(queue.take_called(token).is_none() && queue.is_empty());
    assert_eq!(errno(queue.cancel(token)), Errno::STALE);
    called
}

/// Waits for the end of calls without other events. Returns their result.
fn finish(queue: &mut EventQueue, token: Token) -> (u64, io::Result<()>) {
    assert_eq!(until_over(queue, token), []);
    take(queue, token)
}

fn fails(called: (u64, io::Result<()>)) -> (u64, Errno) {
    (called.0, errno(called.1))
}

/// Goal: one message takes one call that does not block, with every result that a call may return.
fn datagram(choice: Choice) {
    let mut queue = queue(choice);
    let (socket, peer) = UnixDatagram::pair().unwrap();
    for len in [5, 0] {
        let (call, place) = receiving(100);
        let calls = reads(socket.try_clone().unwrap(), None, call);
        let far = Some(Instant::now() + 100 * PATIENCE);
        let token = queue.call(calls, far, 9).unwrap();
        assert_eq!(now(&mut queue), []);
        assert_eq!(errno(queue.remove(token)), Errno::BUSY);
        assert!(queue.take_called(token).is_none());
        peer.send(&b"hello"[..len]).unwrap();
        // It stays for the next receive.
        peer.send(b"next").unwrap();
        let (bytes, result) = finish(&mut queue, token);
        result.unwrap();
        assert_eq!((bytes, &place.lock().unwrap()[..]), (len as u64, &b"hello"[..len]));
        assert_eq!(Arc::strong_count(&place), 1, "the call is dropped");
        assert_eq!(socket.recv(&mut [0; 9]).unwrap(), 4);
    }
    // Already there, and ready to send: only the end is reported.
    peer.send(b"there").unwrap();
    let (call, place) = receiving(100);
    let token = queue.call(reads(socket.try_clone().unwrap(), None, call), None, 9).unwrap();
    assert_eq!(finish(&mut queue, token).0, 5);
    assert_eq!(*place.lock().unwrap(), b"there");
    let (call, count) =
        counted(|socket, _| rustix::net::send(socket, b"back", SendFlags::DONTWAIT));
    let token = queue.call(writes(socket, None, call), None, 9).unwrap();
    assert_eq!(finish(&mut queue, token).0, 4);
    assert_eq!((peer.recv(&mut [0; 9]).unwrap(), count.load(Ordering::Relaxed)), (4, 1));
}

fn receive(choice: Choice) {
    let mut queue = queue(choice);
    let (stream, mut peer) = unix();
    let calls = |all, call| reads(stream.try_clone().unwrap(), Some(all), call);
    let (call, place) = receiving(3);
    let token = queue.call(calls(10, call), None, 9).unwrap();
    for part in [b"abcde", b"fghij"] {
        assert_eq!(now(&mut queue), []);
        peer.write_all(part).unwrap();
    }
    let (bytes, result) = finish(&mut queue, token);
    result.unwrap();
    assert_eq!((bytes, &place.lock().unwrap()[..]), (10, &b"abcdefghij"[..]));
    // A call that moves more than the remaining count is the last one.
    peer.write_all(b"klmnop").unwrap();
    let (call, place) = receiving(3);
    let token = queue.call(calls(5, call), None, 9).unwrap();
    let (bytes, result) = finish(&mut queue, token);
    result.unwrap();
    assert_eq!((bytes, &place.lock().unwrap()[..]), (6, &b"klmnop"[..]));
    peer.write_all(b"q").unwrap();
    // The stream ends early, which is no error.
    let (call, place) = receiving(3);
    let token = queue.call(calls(9, call), None, 9).unwrap();
    assert_eq!(now(&mut queue), []);
    drop(peer);
    let (bytes, result) = finish(&mut queue, token);
    result.unwrap();
    assert_eq!((bytes, &place.lock().unwrap()[..]), (1, &b"q"[..]));
    // A count of zero makes no call.
    let (call, count) = counted(|_, _| Ok(1));
    let token = queue.call(calls(0, call), None, 9).unwrap();
    let (bytes, result) = finish(&mut queue, token);
    result.unwrap();
    assert_eq!((bytes, count.load(Ordering::Relaxed)), (0, 0));
}

/// Returns a call that sends the rest of these bytes.
fn sending(bytes: Vec<u8>) -> Box<Call> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    Box::new(move |socket: &OwnedFd, done| {
        rustix::net::send(socket, &bytes[done as usize..], flags)
    })
}

/// Goal: more bytes than there is room for are sent, and reported as accepted before the end.
fn send(choice: Choice) {
    const LARGE: usize = 10 << 20;
    let mut queue = queue(choice);
    let (stream, mut peer) = unix();
    for len in [0, 1, LARGE] {
        let calls = writes(stream.try_clone().unwrap(), Some(len as u64), sending(pattern(len)));
        let token = queue.call(calls, None, 9).unwrap();
        let reader = std::thread::spawn(move || {
            let mut read = vec![0; len];
            peer.read_exact(&mut read).unwrap();
            assert!(read == pattern(len));
            peer
        });
        assert_eq!(until_over(&mut queue, token), [EventKind::Accepted { bytes: len }]);
        let (bytes, result) = take(&mut queue, token);
        result.unwrap();
        assert_eq!(bytes, len as u64);
        peer = reader.join().unwrap();
    }
    // A peer that disconnects: the bytes sent before are reported together with the reason.
    let calls = writes(stream, Some(LARGE as u64), sending(pattern(LARGE)));
    let token = queue.call(calls, None, 9).unwrap();
    assert_eq!(now(&mut queue), []);
    drop(peer);
    let reported = until_over(&mut queue, token);
    let (bytes, why) = fails(take(&mut queue, token));
    assert!(bytes > 0 && bytes < LARGE as u64, "{bytes}");
    assert!(matches!(why, Errno::PIPE | Errno::CONNRESET), "{why}");
    assert_eq!(reported, [EventKind::Accepted { bytes: bytes as usize }]);
}

/// Goal: bytes moved before are reported together with the reason, and no call is made afterwards.
fn stopped(choice: Choice) {
    let mut queue = queue(choice);
    let (stream, mut peer) = unix();
    let calls = |call| reads(stream.try_clone().unwrap(), Some(9), call);
    for (deadline, expected) in [(None, Errno::CANCELED), (soon(), Errno::TIMEDOUT)] {
        let (call, place) = receiving(9);
        let token = queue.call(calls(call), deadline, 9).unwrap();
        if deadline.is_none() {
            assert_eq!(now(&mut queue), []);
            queue.cancel(token).unwrap();
            queue.cancel(token).unwrap();
        }
        assert_eq!(fails(finish(&mut queue, token)), (0, expected));
        assert_eq!(Arc::strong_count(&place), 1);
    }
    peer.write_all(b"some").unwrap();
    let (call, place) = receiving(9);
    let token = queue.call(calls(call), None, 9).unwrap();
    assert_eq!(now(&mut queue), []);
    queue.cancel(token).unwrap();
    peer.write_all(b"kept").unwrap();
    assert_eq!(fails(finish(&mut queue, token)), (4, Errno::CANCELED));
    assert_eq!(*place.lock().unwrap(), b"some");
    let (call, place) = receiving(4);
    let token = queue.call(reads(stream, Some(4), call), None, 9).unwrap();
    assert_eq!(finish(&mut queue, token).0, 4);
    assert_eq!(*place.lock().unwrap(), b"kept");
}

fn failed(choice: Choice) {
    let mut queue = queue(choice);
    let (stream, _peer) = unix();
    let calls = |all, call| writes(stream.try_clone().unwrap(), all, call);
    // An error of the calls themselves, at once and in the middle.
    let (call, _) = counted(|_, _| Err(Errno::DQUOT));
    let token = queue.call(calls(None, call), None, 9).unwrap();
    assert_eq!(fails(finish(&mut queue, token)), (0, Errno::DQUOT));
    let (call, count) = counted(|_, done| if done < 4 { Ok(2) } else { Err(Errno::DQUOT) });
    let token = queue.call(calls(Some(9), call), None, 9).unwrap();
    assert_eq!(until_over(&mut queue, token), [EventKind::Accepted { bytes: 4 }]);
    assert_eq!(fails(take(&mut queue, token)), (4, Errno::DQUOT));
    assert_eq!(count.load(Ordering::Relaxed), 3);
    // An interruption is ignored; endless interruptions are an error.
    let mut left = 3;
    let (call, count) = counted(move |_, _| {
        left -= 1;
        if left > 0 { Err(Errno::INTR) } else { Ok(1) }
    });
    let token = queue.call(calls(None, call), None, 9).unwrap();
    finish(&mut queue, token).1.unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 3);
    let (call, _) = counted(|_, _| Err(Errno::INTR));
    let token = queue.call(calls(None, call), None, 9).unwrap();
    assert_eq!(fails(finish(&mut queue, token)), (0, Errno::INTR));
}

fn full(choice: Choice) {
    let mut queue = EventQueue::with(&Config { registrations: 1, ..config(choice) }).unwrap();
    let (stream, _peer) = unix();
    let (call, _) = receiving(9);
    let token = queue.call(reads(stream.try_clone().unwrap(), None, call), None, 9).unwrap();
    let (call, count) = counted(|_, _| Ok(1));
    let refused = queue.call(writes(stream, None, call), None, 9);
    assert_eq!(errno(refused), Errno::NOSPC);
    assert_eq!((count.load(Ordering::Relaxed), Arc::strong_count(&count)), (0, 1));
    let socket = Arc::new(tcp_socket());
    let refused = queue.connect_socket(socket.clone(), (Ipv4Addr::LOCALHOST, 1).into(), None, 9);
    assert_eq!(errno(refused), Errno::NOSPC);
    assert!(blocks(&socket) && Arc::strong_count(&socket) == 1);
    queue.cancel(token).unwrap();
    assert_eq!(fails(finish(&mut queue, token)), (0, Errno::CANCELED));
}

/// Goal: dropping the queue drops its calls and sockets.
fn dropped(choice: Choice) {
    let mut queue = queue(choice);
    let (stream, mut peer) = unix();
    let (call, count) = counted(|_, _| Err(Errno::AGAIN));
    queue.call(reads(stream, None, call), None, 9).unwrap();
    assert_eq!(now(&mut queue), []);
    let before = count.load(Ordering::Relaxed);
    assert!(before > 0);
    drop(queue);
    assert_eq!(peer.read(&mut [0]).unwrap(), 0, "the socket is closed");
    assert_eq!((count.load(Ordering::Relaxed), Arc::strong_count(&count)), (before, 1));
}

/// Creates a blocking socket.
fn tcp_socket() -> OwnedFd {
    let (family, flags) = (AddressFamily::INET, SocketFlags::CLOEXEC);
    rustix::net::socket_with(family, SocketType::STREAM, flags, None).unwrap()
}

fn blocks(socket: impl AsFd) -> bool {
    !rustix::fs::fcntl_getfl(socket).unwrap().contains(OFlags::NONBLOCK)
}

fn local(socket: impl AsFd) -> SocketAddr {
    rustix::net::getsockname(socket).unwrap().try_into().unwrap()
}

/// Goal: the program's own socket is connected, from the address to which it was bound, and its
/// blocking mode is restored.
fn connect(choice: Choice) {
    let mut queue = queue(choice);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    for nonblocking in [false, true] {
        let socket = Arc::new(tcp_socket());
        let any: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
        rustix::net::bind(&socket, &any).unwrap();
        rustix::io::ioctl_fionbio(&socket, nonblocking).unwrap();
        let bound = local(&socket);
        let far = Some(Instant::now() + 100 * PATIENCE);
        let token = queue.connect_socket(socket.clone(), address, far, 9).unwrap();
        assert!(queue.take_stream(token).is_none());
        assert_eq!(errno(queue.remove(token)), Errno::BUSY);
        assert_eq!(until_over(&mut queue, token), []);
        let (stream, remote) = queue.take_stream(token).unwrap().unwrap();
        assert!(queue.is_empty() && Arc::ptr_eq(stream.as_kernel().unwrap(), &socket));
        assert_eq!((remote, local(&socket)), (Some(address), bound));
        assert_eq!(blocks(&socket), !nonblocking);
        let (_peer, from) = listener.accept().unwrap();
        assert_eq!(from, bound);
        // A second attempt fails.
        let again = queue.connect_socket(socket.clone(), address, None, 9);
        assert_eq!(errno(again), Errno::ISCONN);
        assert_eq!(blocks(&socket), !nonblocking);
    }
}

fn connect_failed(choice: Choice) {
    let mut queue = queue(choice);
    // Bound and not listening, so nothing else can listen there.
    let nobody = tcp_socket();
    let any: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
    rustix::net::bind(&nobody, &any).unwrap();
    let other_family = (Ipv6Addr::LOCALHOST, 1).into();
    let cases = [(local(&nobody), Errno::CONNREFUSED), (other_family, Errno::AFNOSUPPORT)];
    for (address, expected) in cases {
        let socket = Arc::new(tcp_socket());
        let token = queue.connect_socket(socket.clone(), address, None, 9).unwrap();
        assert_eq!(until_over(&mut queue, token), []);
        assert_eq!(errno(queue.take_stream(token).unwrap()), expected);
        assert!(queue.is_empty() && blocks(&socket));
        assert_eq!(Arc::strong_count(&socket), 1, "the queue has released it");
    }
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    let token = queue.connect_socket(Arc::new(reader), local(&nobody), None, 9).unwrap();
    assert_eq!(until_over(&mut queue, token), []);
    assert_eq!(errno(queue.take_stream(token).unwrap()), Errno::NOTSOCK);
}

fn connect_stopped(choice: Choice) {
    let (mut queue, (_listener, address, _fillers)) = (queue(choice), full_listener());
    let cases = [(None, Errno::CANCELED), (soon(), Errno::TIMEDOUT), (past(), Errno::TIMEDOUT)];
    for (deadline, expected) in cases {
        let socket = Arc::new(tcp_socket());
        let token = queue.connect_socket(socket.clone(), address, deadline, 9).unwrap();
        assert!(!blocks(&socket), "meanwhile");
        if deadline.is_none() {
            assert_eq!(now(&mut queue), []);
            queue.cancel(token).unwrap();
        }
        assert_eq!(until_over(&mut queue, token), []);
        assert_eq!(errno(queue.take_stream(token).unwrap()), expected);
        assert!(queue.is_empty() && blocks(&socket));
        assert_eq!(Arc::strong_count(&socket), 1);
    }
}
