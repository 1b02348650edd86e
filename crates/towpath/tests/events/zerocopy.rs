//! Sends that lend their buffer to the kernel. All traffic stays on this machine, where the kernel
//! copies in the end.

use super::kernel_streams::{past, tcp, unix};
use super::{Case, PATIENCE, config, errno, now, queue, until_over};
use crate::taken::{Done, Taken};
use rustix::io::Errno;
use rustix::net::sockopt;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;
use towpath::events::{Choice, Config, EventKind, EventQueue, Memory, Stream, Token};

pub(super) const CASES: &[Case] = &[
    ("a_buffer_that_is_lent_to_the_kernel_comes_back", comes_back),
    ("a_lent_buffer_is_accepted_before_it_is_back", accepted),
    ("what_cannot_be_lent_is_copied", copied),
    ("memory_that_is_no_vec_is_sent_and_let_go", of_others),
    ("a_lending_send_is_cancelled_in_the_middle", stopped),
    ("a_lending_send_fails_without_a_signal", failed),
    ("a_queue_may_go_before_what_it_has_lent", dropped),
];

const LARGE: usize = 30 << 20;
/// More than the window of [`narrow`], and less than a socket sends ahead.
const AHEAD: usize = 200 << 10;

/// Returns the events and the result of a send, and checks that its end is reported once.
fn finish(queue: &mut EventQueue, token: Token) -> (Vec<EventKind>, Done) {
    let reported = until_over(queue, token);
    assert_eq!(now(queue), []);
    queue.cancel(token).unwrap();
    assert_eq!(now(queue), [], "too late");
    (reported, queue.take_done(token).unwrap())
}

/// Creates a connection whose peer has a small window.
fn narrow() -> (Stream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    sockopt::set_socket_recv_buffer_size(&listener, 32 << 10).unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    sockopt::set_socket_send_buffer_size(&stream, 2 * AHEAD).unwrap();
    let (peer, _) = listener.accept().unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    (stream.into(), peer)
}

/// Reads `count` bytes, which must be 7.
fn read_sevens(peer: &mut impl Read, count: usize) {
    let mut read = vec![0; count];
    peer.read_exact(&mut read).unwrap();
    assert!(read.iter().all(|byte| *byte == 7));
}

/// Returns true if the kernel lends and reports copies: io_uring on Linux 6.2 or later.
fn lends(queue: &EventQueue) -> bool {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>());
    let mut number = || numbers.next().and_then(Result::ok).unwrap_or(0);
    queue.is_io_uring() && (number(), number()) >= (6, 2)
}

fn comes_back(choice: Choice) {
    let mut queue = queue(choice);
    for nonblocking in [false, true] {
        let (stream, mut peer) = tcp();
        stream.set_nonblocking(nonblocking).unwrap();
        let stream = Stream::from(stream);
        for len in [0, 1, LARGE] {
            let far = Some(Instant::now() + 100 * PATIENCE);
            let token = queue.send_zerocopy(&stream, vec![7; len], far, 9).unwrap();
            assert!(queue.take(token).is_none());
            assert_eq!(errno(queue.remove(token)), Errno::BUSY);
            let reader = std::thread::spawn(move || {
                read_sevens(&mut peer, len);
                peer
            });
            let (reported, Done { result, buffer, copied, .. }) = finish(&mut queue, token);
            assert_eq!(reported, [EventKind::Accepted { bytes: len }]);
            assert_eq!((result.unwrap(), buffer), (len, vec![7; len]));
            assert_eq!(copied, len > 0, "the kernel copies local traffic");
            peer = reader.join().unwrap();
        }
    }
}

/// Goal: accepting and returning are separate: the buffer stays lent while the peer does not
/// receive.
fn accepted(choice: Choice) {
    let mut queue = queue(choice);
    let (stream, mut peer) = narrow();
    let token = queue.send_zerocopy(&stream, vec![7; AHEAD], None, 9).unwrap();
    let event = one_at_a_time(&mut queue);
    assert_eq!((event.0, event.1), (token, EventKind::Accepted { bytes: AHEAD }));
    let is_out = lends(&queue);
    if is_out {
        assert_eq!(now(&mut queue), [], "the peer has not taken it");
        queue.cancel(token).unwrap();
        assert_eq!(now(&mut queue), [], "it cannot be recalled");
        assert!(queue.take(token).is_none());
        // Sends are accepted in order.
        let next = queue.send(&stream, vec![7; 10], None, 9).unwrap();
        assert_eq!(one_at_a_time(&mut queue), (next, EventKind::Accepted { bytes: 10 }));
        assert_eq!(until_over(&mut queue, next), []);
        queue.take_done(next).unwrap().result.unwrap();
        read_sevens(&mut peer, AHEAD + 10);
    }
    let (reported, Done { result, buffer, copied, .. }) = finish(&mut queue, token);
    assert_eq!((reported, result.unwrap(), buffer.len(), copied), (vec![], AHEAD, AHEAD, true));
    if !is_out {
        read_sevens(&mut peer, AHEAD);
    }
}

/// Waits for the next event, and no other.
fn one_at_a_time(queue: &mut EventQueue) -> (Token, EventKind) {
    let mut events = Vec::new();
    queue.wait_many(&mut events, 1..=1, Some(Instant::now() + PATIENCE)).unwrap();
    (events[0].token, events[0].kind)
}

fn copied(choice: Choice) {
    let mut queue = queue(choice);
    let (stream, mut peer) = unix();
    let token = queue.send_zerocopy(stream, vec![7; 1000], None, 9).unwrap();
    let (reported, Done { result, copied, .. }) = finish(&mut queue, token);
    assert_eq!(
        (reported, result.unwrap(), copied),
        (vec![EventKind::Accepted { bytes: 1000 }], 1000, true)
    );
    read_sevens(&mut peer, 1000);
    // A full queue hands the buffer back.
    let mut full = EventQueue::with(&Config { registrations: 0, ..config(choice) }).unwrap();
    let refused = full.send_zerocopy(tcp().0, vec![7; 9], None, 9).unwrap_err();
    assert_eq!((errno::<()>(Err(refused.error)), refused.buffer), (Errno::NOSPC, vec![7; 9]));
}

/// Goal: memory of any kind is held as long as it is being sent, and no longer, lent or not.
fn of_others(choice: Choice) {
    let mut queue = queue(choice);
    for (lends, len) in [(false, LARGE), (true, LARGE), (true, AHEAD), (true, 0)] {
        let shared: Arc<[u8]> = vec![7; len].into();
        let (stream, mut peer) = tcp();
        let socket = Arc::new(OwnedFd::from(stream));
        let memory = Memory { bytes: Box::new(shared.clone()), lends };
        let token = queue.send_memory(socket, memory, None, 9).unwrap();
        let reader = std::thread::spawn(move || read_sevens(&mut peer, len));
        let reported = until_over(&mut queue, token);
        assert_eq!(
            (reported, Arc::strong_count(&shared)),
            (vec![EventKind::Accepted { bytes: len }], 1)
        );
        let Done { result, buffer, copied } = queue.take_done(token).unwrap();
        assert_eq!((result.unwrap(), buffer, copied), (len, vec![], len > 0));
        reader.join().unwrap();
    }
    // If the send is refused, the memory is dropped; dropping a queue waits for memory that the
    // kernel has.
    let shared: Arc<[u8]> = vec![7; AHEAD].into();
    let send = |queue: &mut EventQueue, socket| {
        let memory = Memory { bytes: Box::new(shared.clone()), lends: true };
        queue.send_memory(socket, memory, None, 9)
    };
    let (stream, mut peer) = tcp();
    let socket = Arc::new(OwnedFd::from(stream));
    let mut full = EventQueue::with(&Config { registrations: 0, ..config(choice) }).unwrap();
    assert_eq!(errno(send(&mut full, socket.clone())), Errno::NOSPC);
    assert_eq!(Arc::strong_count(&shared), 1);
    send(&mut queue, socket).unwrap();
    let reader = std::thread::spawn(move || {
        let mut read = Vec::new();
        peer.read_to_end(&mut read).unwrap();
        read
    });
    drop(queue);
    assert!(reader.join().unwrap().iter().all(|byte| *byte == 7));
}

fn stopped(choice: Choice) {
    let mut queue = queue(choice);
    let (stream, mut peer) = narrow();
    let token = queue.send_zerocopy(&stream, vec![7; LARGE], None, 9).unwrap();
    assert_eq!(now(&mut queue), []);
    queue.cancel(token).unwrap();
    // The peer receives what was accepted, and then the buffer is back.
    let reader = std::thread::spawn(move || {
        let mut read = Vec::new();
        peer.read_to_end(&mut read).unwrap();
        read
    });
    let (reported, Done { result, buffer, .. }) = finish(&mut queue, token);
    let bytes = result.unwrap();
    assert_eq!((reported, buffer.len()), (vec![EventKind::Accepted { bytes }], LARGE));
    assert!(bytes > 0);
    drop(stream);
    let read = reader.join().unwrap();
    assert!(read.len() == bytes && read.iter().all(|byte| *byte == 7));
    // Timed out before it was started, or all of it was accepted at once.
    let (stream, _peer) = tcp();
    let token = queue.send_zerocopy(stream, vec![7; 9], past(), 9).unwrap();
    let (reported, Done { result, buffer, .. }) = finish(&mut queue, token);
    assert_eq!(buffer, [7; 9]);
    match result {
        Ok(bytes) => assert_eq!((reported, bytes), (vec![EventKind::Accepted { bytes: 9 }], 9)),
        Err(error) => assert_eq!((errno::<()>(Err(error)), reported), (Errno::TIMEDOUT, vec![])),
    }
}

fn failed(choice: Choice) {
    let mut queue = queue(choice);
    let (stream, mut peer) = tcp();
    stream.shutdown(Shutdown::Write).unwrap();
    let token = queue.send_zerocopy(stream, vec![7; AHEAD], None, 9).unwrap();
    let (reported, Done { result, buffer, copied, .. }) = finish(&mut queue, token);
    assert_eq!(
        (reported, errno(result), buffer.len(), copied),
        (vec![], Errno::PIPE, AHEAD, false)
    );
    assert_eq!(peer.read(&mut [0]).unwrap(), 0);
    // A peer that closes during the send: bytes and buffer are reported, whatever arrived.
    let (stream, mut peer) = narrow();
    let token = queue.send_zerocopy(&stream, vec![7; LARGE], None, 9).unwrap();
    assert_eq!(now(&mut queue), []);
    peer.write_all(b"unread").unwrap();
    drop(peer);
    let (_, Done { result, buffer, .. }) = finish(&mut queue, token);
    assert!(result.is_ok_and(|bytes| bytes < LARGE) && buffer.len() == LARGE);
}

/// Goal: memory that the kernel has is not reused, even if queue and operation are gone.
fn dropped(choice: Choice) {
    let (stream, mut peer) = narrow();
    let mut queue = queue(choice);
    queue.send_zerocopy(&stream, vec![7; AHEAD], None, 9).unwrap();
    assert_eq!(one_at_a_time(&mut queue).1, EventKind::Accepted { bytes: AHEAD });
    drop(queue);
    let others: Vec<_> = (0..50).map(|_| vec![8_u8; AHEAD]).collect();
    read_sevens(&mut peer, AHEAD);
    drop(others);
}
