//! Streams that end under each operation: by the program's own shutdown, and by a peer that resets.

use super::kernel_streams::{tcp, unix};
use super::send_file::{fresh, parts, pattern};
use super::sockets::{address, connection, hosts};
use super::{Case, PATIENCE, now, queue, wait};
use crate::taken::Taken;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;
use towpath::events::{Choice, EventKind, EventQueue, Stream, Token};
use towpath::host::TcpListener;
use towpath_io::socket::zerocopy::{enable_lending, send_lent};

pub(super) const CASES: &[Case] = &[
    ("a_stream_of_towpath_ends_under_each_operation", of_towpath),
    ("a_stream_of_the_kernel_ends_under_each_operation", of_kernel),
    ("a_listener_or_its_host_goes_under_an_operation", listeners),
    ("a_splice_ends_with_its_sink_and_with_nothing_else", sinks),
];

/// More than all buffers on the way hold.
const LEN: usize = 64 << 20;

/// An operation that does not complete while its peer does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Receive,
    ReceiveAll,
    /// On streams of towpath only.
    ReceiveLent,
    ReceiveMultishot,
    ReceiveFile,
    SpliceFrom,
    Send,
    SendFile,
    SpliceInto,
    /// Nothing arrives for the stream.
    SpliceIdle,
}

use Kind::{
    Receive, ReceiveAll, ReceiveFile, ReceiveLent, ReceiveMultishot, Send, SendFile, SpliceFrom,
    SpliceIdle, SpliceInto,
};

const KINDS: [Kind; 10] = [
    Receive,
    ReceiveAll,
    ReceiveLent,
    ReceiveMultishot,
    ReceiveFile,
    SpliceFrom,
    Send,
    SendFile,
    SpliceInto,
    SpliceIdle,
];

impl Kind {
    fn sends(self) -> bool {
        matches!(self, Send | SendFile | SpliceInto | SpliceIdle)
    }

    /// Starts the operation. Also returns the far end of the other stream, which must stay open.
    fn begin(
        self,
        queue: &mut EventQueue,
        stream: &Stream,
        file: &Arc<File>,
    ) -> (Token, UnixStream) {
        let (range, (other, far)) = (0..LEN as u64, unix());
        let begun = match self {
            Receive => queue.receive(stream, vec![7; 100], None, 9).map_err(|error| error.error),
            ReceiveAll => {
                queue.receive_all(stream, vec![7; 100], None, 9).map_err(|error| error.error)
            }
            ReceiveLent => queue.receive_lent(stream, 100, None, 9),
            ReceiveMultishot => {
                let group = queue.add_group(vec![vec![0; 100]]).unwrap();
                queue.receive_multishot(stream, group, None, 9)
            }
            ReceiveFile => queue.receive_file(stream, file.clone(), range, None, 9),
            // Spliced bytes are not read.
            SpliceFrom => queue.splice(stream, other, LEN as u64, None, 9),
            SpliceIdle => queue.splice(other, stream, LEN as u64, None, 9),
            Send => queue.send(stream, pattern(LEN), None, 9).map_err(|error| error.error),
            SendFile => {
                queue.send_file(stream, parts(file, range), None, 9).map_err(|error| error.error)
            }
            SpliceInto => {
                let mut writer = far.try_clone().unwrap();
                std::thread::spawn(move || writer.write_all(&pattern(LEN)));
                queue.splice(other, stream, LEN as u64, None, 9)
            }
        };
        (begun.unwrap(), far)
    }

    /// Takes the result of the operation, and checks what it handed back.
    fn take(self, queue: &mut EventQueue, token: Token) -> io::Result<u64> {
        match self {
            Receive | ReceiveAll | Send => {
                let completed = queue.take_done(token).unwrap();
                let len = if self == Send { LEN } else { 100 };
                assert_eq!(completed.buffer.len(), len, "{self:?}");
                completed.result.map(|count| count as u64)
            }
            ReceiveLent => queue.take_pieces(token).unwrap().map(|pieces| pieces.len() as u64),
            ReceiveMultishot => {
                queue.take_received(token).unwrap().map(|reported| reported.len as u64)
            }
            ReceiveFile | SpliceFrom | SpliceInto | SpliceIdle => {
                let moved = queue.take_moved(token).unwrap();
                moved.result.map(|()| moved.bytes)
            }
            SendFile => {
                let sent = queue.take_file(token).unwrap();
                assert_eq!(sent.parts.header, b"header");
                sent.result.map(|()| sent.bytes)
            }
        }
    }
}

/// Waits until the operation is complete, without other events, and the queue is empty.
fn finish(queue: &mut EventQueue, token: Token, kind: Kind) -> io::Result<u64> {
    let mut is_over = false;
    while !is_over {
        for event in wait(queue) {
            assert_eq!((event.token, is_over), (token, false), "{kind:?}: {event:?}");
            is_over = event.kind == EventKind::Completed;
        }
    }
    let taken = kind.take(queue, token);
    assert!(now(queue).is_empty() && queue.is_empty(), "{kind:?} is reported once");
    taken
}

/// Waits until an operation has done what it can for now.
fn rest(queue: &mut EventQueue, token: Token, kind: Kind) {
    for _ in 0..20 {
        for event in now(queue) {
            assert_eq!(event.token, token);
            assert!(matches!(event.kind, EventKind::Accepted { .. }), "{kind:?}: {event:?}");
        }
        std::thread::yield_now();
    }
}

/// Ends a stream under an operation in both ways. `pair` creates a stream whose peer resets when it
/// is dropped with unread bytes.
fn ends<P>(choice: Choice, kind: Kind, pair: &dyn Fn() -> (Stream, P)) {
    let file = fresh(&[]);
    file.set_len(if kind == SendFile { LEN as u64 } else { 0 }).unwrap();
    // Ended by the program itself.
    let mut queue = queue(choice);
    let (stream, peer) = pair();
    let sent = if stream.as_host().is_some() { LEN..=LEN } else { 1..=LEN - 1 };
    let is_as_reported = |result: io::Result<u64>| match result {
        Ok(count) => kind == Send && sent.contains(&(count as usize)),
        Err(error) => {
            let why = Errno::from_io_error(&error);
            matches!(why, Some(Errno::PIPE | Errno::CONNRESET))
        }
    };
    let (token, _far) = kind.begin(&mut queue, &stream, &file);
    rest(&mut queue, token, kind);
    stream.shutdown(Shutdown::Both).unwrap();
    if !kind.sends() {
        assert_eq!(finish(&mut queue, token, kind).unwrap(), 0, "{kind:?}: the end");
        drop(peer);
    } else {
        // Accepted bytes are reported instead of the error: all bytes of a lent buffer.
        drop(peer);
        let result = finish(&mut queue, token, kind);
        assert!(is_as_reported(result), "{kind:?}");
    }
    // Ended by the peer, which has not read everything.
    let (stream, peer) = pair();
    let (token, _far) = kind.begin(&mut queue, &stream, &file);
    if !kind.sends() || kind == SpliceIdle {
        assert_eq!(stream.try_send(b"unread").unwrap(), 6);
    }
    rest(&mut queue, token, kind);
    // Bytes that have not arrived yet would not cause a reset.
    std::thread::sleep(std::time::Duration::from_millis(20));
    drop(peer);
    let result = finish(&mut queue, token, kind);
    assert!(is_as_reported(result), "{kind:?}");
}

/// Goal: on streams of towpath each operation completes once, hands back what it holds, and reports
/// why it ended.
fn of_towpath(choice: Choice) {
    let hosts = hosts();
    for kind in KINDS {
        ends(choice, kind, &|| {
            let (stream, peer) = connection(&hosts);
            (Stream::from(&stream), peer)
        });
    }
}

/// Goal: on kernel streams each operation completes once, hands back what it holds, and reports why
/// it ended.
fn of_kernel(choice: Choice) {
    for kind in KINDS.into_iter().filter(|kind| *kind != ReceiveLent) {
        ends(choice, kind, &|| {
            let (stream, peer) = tcp();
            (Stream::from(stream), peer)
        });
    }
}

/// Goal: a kernel sink is also watched while the source is a stream of towpath. Later bytes stay in
/// the source. Other events of the sink, such as notices of returned buffers, end nothing.
fn sinks(choice: Choice) {
    let (mut queue, (near, far)) = (queue(choice), connection(&hosts()));
    let (to, peer) = unix();
    let token = queue.splice(&near, to, LEN as u64, None, 9).unwrap();
    rest(&mut queue, token, SpliceIdle);
    drop(peer);
    let why = finish(&mut queue, token, SpliceIdle).unwrap_err();
    assert_eq!(Errno::from_io_error(&why), Some(Errno::PIPE));
    let (far, near) = (Stream::from(&far), Stream::from(&near));
    assert_eq!(far.try_send(b"later").unwrap(), 5);
    let end = Instant::now() + PATIENCE;
    while near.try_receive(&mut [0; 9]).ok() != Some(5) {
        assert!(Instant::now() < end);
    }

    let ((from, mut writer), (to, mut reader)) = (tcp(), tcp());
    enable_lending(to.as_fd()).unwrap();
    assert_eq!(send_lent(to.as_fd(), b"lent").unwrap(), 4);
    reader.read_exact(&mut [0; 4]).unwrap();
    // A notice is an error condition for poll(2).
    let mut polled = [PollFd::new(&to, PollFlags::empty())];
    assert_eq!(poll(&mut polled, None).unwrap(), 1);
    let token = queue.splice(from, to, 5, None, 9).unwrap();
    rest(&mut queue, token, SpliceIdle);
    writer.write_all(b"hello").unwrap();
    assert_eq!(finish(&mut queue, token, SpliceIdle).unwrap(), 5);
    let mut read = [0; 5];
    reader.read_exact(&mut read).unwrap();
    assert_eq!(&read, b"hello");
}

/// Goal: an accept and a connect end, or stay silent, when what they wait for disappears; dropping
/// handles of hosts ends no operation.
fn listeners(choice: Choice) {
    let (mut queue, (a, b)) = (queue(choice), hosts());
    let listener = TcpListener::bind(&b, address()).unwrap();
    let accepts = queue.accept(&listener, None, 9).unwrap();
    let connects = queue.connect(&a, "10.0.0.9:80".parse().unwrap(), None, 9).unwrap();
    drop((a, b, listener));
    assert_eq!(now(&mut queue), []);
    for token in [accepts, connects] {
        queue.cancel(token).unwrap();
    }
    let (mut over, end) = (0, Instant::now() + PATIENCE);
    while over < 2 {
        assert!(Instant::now() < end);
        for event in wait(&mut queue) {
            assert_eq!(event.kind, EventKind::Completed);
            let why = queue.take_stream(event.token).unwrap().unwrap_err();
            assert_eq!(Errno::from_io_error(&why), Some(Errno::CANCELED));
            over += 1;
        }
    }
    assert!(queue.is_empty());
}
