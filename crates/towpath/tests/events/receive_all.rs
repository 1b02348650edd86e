//! Receives that complete when their buffer is full, on streams of towpath and of the kernel.

use super::files::pattern;
use super::sockets::{connection, hosts};
use super::{Case, PATIENCE, errno, now, queue, until_over};
use crate::taken::{Done, Taken};
use rustix::io::Errno;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant};
use towpath::events::{Choice, EventQueue, Stream, Token};
use towpath::host::Host;

pub(super) const CASES: &[Case] = &[
    ("a_receive_of_all_is_reported_once_it_is_full", full),
    ("a_receive_of_all_ends_with_what_came", ends),
    ("a_receive_of_all_that_is_stopped_loses_nothing", stopped),
    ("a_failure_behind_bytes_is_the_next_receives", failure),
];

/// The receiving stream, and the sender.
type Ends = (Stream, Box<dyn Peer>);

trait Peer: Write + Send {
    /// Shuts down sending.
    fn end(&mut self);
}

impl Peer for std::net::TcpStream {
    fn end(&mut self) {
        self.shutdown(Shutdown::Write).unwrap();
    }
}

impl Peer for std::os::unix::net::UnixStream {
    fn end(&mut self) {
        self.shutdown(Shutdown::Write).unwrap();
    }
}

impl Peer for towpath::host::TcpStream {
    fn end(&mut self) {
        self.shutdown(Shutdown::Write).unwrap();
    }
}

/// Runs a case with each kind of stream; the hosts stay alive meanwhile.
fn each(act: impl Fn(Ends)) {
    for nonblocking in [false, true] {
        let (stream, peer) = super::kernel_streams::tcp();
        stream.set_nonblocking(nonblocking).unwrap();
        act((stream.into(), Box::new(peer)));
        let (stream, peer) = super::kernel_streams::unix();
        stream.set_nonblocking(nonblocking).unwrap();
        act((Stream::from(std::os::fd::OwnedFd::from(stream)), Box::new(peer)));
    }
    let hosts: (Host, Host) = hosts();
    let (stream, peer) = connection(&hosts);
    peer.set_nonblocking(false).unwrap();
    act(((&stream).into(), Box::new(peer)));
}

fn finish(queue: &mut EventQueue, token: Token) -> Done {
    assert_eq!(until_over(queue, token), []);
    assert_eq!(now(queue), []);
    queue.take_done(token).unwrap()
}

/// Goal: many bytes that arrive in small parts are reported once, in order; the next receive gets
/// what follows. Also tried: an empty buffer.
fn full(choice: Choice) {
    const LEN: usize = 300_000;
    each(|(stream, mut peer)| {
        let mut queue = queue(choice);
        let token = queue.receive_all(&stream, Vec::new(), None, 9).unwrap();
        assert_eq!(finish(&mut queue, token).result.unwrap(), 0);
        let sent = pattern(LEN + 5);
        let expected = sent.clone();
        let sender = thread::spawn(move || {
            // The length of the parts divides nothing.
            for part in sent.chunks(7777) {
                peer.write_all(part).unwrap();
            }
            peer
        });
        let token = queue.receive_all(&stream, vec![0; LEN], None, 9).unwrap();
        let Done { result, buffer, .. } = finish(&mut queue, token);
        assert_eq!(result.unwrap(), LEN);
        assert!(buffer == expected[..LEN]);
        let _peer = sender.join().unwrap();
        let token = queue.receive_all(&stream, vec![0; 5], None, 9).unwrap();
        assert_eq!(finish(&mut queue, token).buffer, expected[LEN..]);
    });
}

/// Goal: at the end of the stream, the bytes received so far are reported, and then the end.
fn ends(choice: Choice) {
    each(|(stream, mut peer)| {
        let mut queue = queue(choice);
        let token = queue.receive_all(&stream, vec![0; 100], None, 9).unwrap();
        assert_eq!(now(&mut queue), []);
        peer.write_all(b"hel").unwrap();
        assert_eq!(now(&mut queue), []);
        peer.write_all(b"lo").unwrap();
        peer.end();
        let Done { result, buffer, .. } = finish(&mut queue, token);
        assert_eq!((result.unwrap(), buffer.len(), &buffer[..5]), (5, 100, &b"hello"[..]));
        let token = queue.receive_all(&stream, vec![0; 100], None, 9).unwrap();
        assert_eq!(finish(&mut queue, token).result.unwrap(), 0);
    });
}

/// Goal: a cancel and a deadline complete a receive with the bytes received so far; later bytes go
/// to the next receive.
fn stopped(choice: Choice) {
    each(|(stream, mut peer)| {
        let mut queue = queue(choice);
        let token = queue.receive_all(&stream, vec![0; 9], None, 9).unwrap();
        assert_eq!(now(&mut queue), []);
        queue.cancel(token).unwrap();
        assert_eq!(errno(finish(&mut queue, token).result), Errno::CANCELED);
        let soon = Some(Instant::now() + Duration::from_millis(1));
        let token = queue.receive_all(&stream, vec![0; 9], soon, 9).unwrap();
        assert_eq!(errno(finish(&mut queue, token).result), Errno::TIMEDOUT);
        for by_deadline in [false, true] {
            let due = Instant::now() + Duration::from_millis(50);
            let due = by_deadline.then_some(due);
            let token = queue.receive_all(&stream, vec![0; 9], due, 9).unwrap();
            peer.write_all(b"hello").unwrap();
            if !by_deadline {
                // Bytes in flight may arrive too late; then the next receive gets them.
                thread::sleep(Duration::from_millis(20));
                now(&mut queue);
                queue.cancel(token).unwrap();
            }
            let result = finish(&mut queue, token).result;
            let came = result.unwrap_or_default();
            let token = queue.receive_all(&stream, vec![0; 9 - came], None, 9).unwrap();
            peer.write_all(&b"you!"[..]).unwrap();
            let Done { result, buffer, .. } = finish(&mut queue, token);
            assert_eq!(result.unwrap(), 9 - came);
            assert_eq!(buffer, b"helloyou!"[came..]);
        }
    });
}

/// Goal: if a connection is reset after some bytes, the bytes are reported, and then the reset.
fn failure(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts());
    let (mut stream, mut peer) = connection(&hosts);
    stream.write_all(b"not read").unwrap();
    let token = queue.receive_all(&stream, vec![0; 9], None, 9).unwrap();
    assert_eq!(now(&mut queue), []);
    peer.write_all(b"hello").unwrap();
    assert!(hosts.1.finish(PATIENCE));
    peer.set_nonblocking(false).unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(peer.read(&mut [0]).unwrap(), 1);
    drop(peer);
    let Done { result, buffer, .. } = finish(&mut queue, token);
    assert_eq!((result.unwrap(), &buffer[..5]), (5, &b"hello"[..]));
    let token = queue.receive_all(&stream, vec![0; 9], None, 9).unwrap();
    assert_eq!(errno(finish(&mut queue, token).result), Errno::CONNRESET);
}
