//! Files to sockets, sockets to files, and sockets to sockets.

use super::files::{Directory, pattern};
use super::kernel_streams::{past, soon, tcp, unix, with_sigpipe};
use super::sockets::{connection, hosts};
use super::{Case, PATIENCE, errno, now, queue, until_over, wait};
use crate::taken::Taken;
use rustix::fs::{Advice, fadvise};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath::events::{Choice, EventKind, EventQueue, FileSent, Moved, SendFile, Stream, Token};

pub(super) const CASES: &[Case] = &[
    ("files_are_sent_with_what_is_around_them", send_file),
    ("a_file_that_is_not_in_memory_is_sent", send_cold),
    ("a_file_that_shrinks_ends_the_send", send_shrinking),
    ("sending_a_file_is_cancelled_or_ends_in_time", send_stopped),
    ("sending_a_file_fails_without_a_signal", send_failed),
    ("what_cannot_be_sent_is_handed_back", send_refused),
    ("a_stream_is_written_to_a_file", receive_file),
    ("what_a_file_does_not_take_is_handed_back", receive_failed),
    ("a_stream_is_spliced_into_another", splice),
    ("what_the_other_stream_does_not_take_is_handed_back", splice_failed),
    ("streams_of_both_kinds_are_spliced", splice_mixed),
    ("towpath_streams_are_spliced_without_a_copy", splice_pieces),
    ("a_queue_may_go_before_what_it_moves", dropped),
];

fn finish(queue: &mut EventQueue, token: Token) -> FileSent {
    assert_eq!(until_over(queue, token), []);
    assert_eq!(now(queue), []);
    queue.cancel(token).unwrap();
    let sent = queue.take_file(token).unwrap();
    assert!(queue.take_file(token).is_none());
    assert_eq!(errno(queue.cancel(token)), Errno::STALE);
    sent
}

pub(super) fn finish_moved(queue: &mut EventQueue, token: Token) -> Moved {
    assert_eq!(until_over(queue, token), []);
    assert_eq!(now(queue), []);
    queue.cancel(token).unwrap();
    let moved = queue.take_moved(token).unwrap();
    assert!(queue.take_moved(token).is_none());
    assert_eq!(errno(queue.cancel(token)), Errno::STALE);
    moved
}

fn file_of(directory: &Directory, bytes: &[u8]) -> Arc<File> {
    let file = directory.file();
    file.write_all_at(bytes, 0).unwrap();
    file
}

fn read_all(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut read = Vec::new();
        from.read_to_end(&mut read).unwrap();
        read
    })
}

/// Reads the first bytes at the peer while the queue runs.
fn read_first(queue: &mut EventQueue, peer: &mut UnixStream, count: usize) -> Vec<u8> {
    let (deadline, mut read, mut at) = (Instant::now() + PATIENCE, vec![0; count], 0);
    peer.set_nonblocking(true).unwrap();
    while at < count {
        assert!(Instant::now() < deadline, "timed out without data");
        assert_eq!(now(queue), []);
        at += peer.read(&mut read[at..]).unwrap_or(0);
    }
    peer.set_nonblocking(false).unwrap();
    read
}

/// Sends a file and returns the result with the bytes that the peer has read.
fn exchange(queue: &mut EventQueue, is_tcp: bool, parts: SendFile) -> (FileSent, Vec<u8>) {
    let (stream, reader) = if is_tcp {
        let (stream, peer) = tcp();
        (Stream::from(stream), read_all(peer))
    } else {
        let (stream, peer) = unix();
        (Stream::from(stream), read_all(peer))
    };
    let token = queue.send_file(stream, parts, None, 9).unwrap();
    let sent = finish(queue, token);
    (sent, reader.join().unwrap())
}

fn send_file(choice: Choice) {
    const LARGE: usize = 5 << 20;
    let (mut queue, directory) = (queue(choice), Directory::new("send", choice));
    let bytes = pattern(LARGE + 77);
    let file = file_of(&directory, &bytes);
    let all = LARGE as u64 + 77;
    let ranges = [0..0, 0..1, 5..4000, 4095..20_000, 1000..300_000, 0..all, all - 1..all, all..all];
    for (range, is_tcp) in
        ranges.into_iter().flat_map(|range| [(range.clone(), true), (range, false)])
    {
        for (header, trailer) in [(0, 0), (300, 0), (300, 7), (0, 70_000)] {
            let (header, trailer) = (vec![1; header], vec![2; trailer]);
            let expected =
                [&header, &bytes[range.start as usize..range.end as usize], &trailer].concat();
            let parts = SendFile { header, file: file.clone(), range: range.clone(), trailer };
            let (sent, read) = exchange(&mut queue, is_tcp, parts);
            sent.result.unwrap();
            assert_eq!(sent.bytes, expected.len() as u64);
            assert_eq!(sent.parts.range, range);
            assert!(read == expected, "{range:?}");
        }
    }
    // Beyond 32-bit offsets.
    let at = 5_u64 << 30;
    file.write_all_at(&bytes, at).unwrap();
    let range = at + 100..at + all;
    let parts = SendFile { header: vec![], file: file.clone(), range, trailer: vec![] };
    let (sent, read) = exchange(&mut queue, true, parts);
    assert_eq!(sent.bytes, all - 100);
    assert!(read == bytes[100..]);
    // The file offset does not change: sending uses no shared offset.
    assert_eq!(rustix::fs::tell(&*file).unwrap(), 0);
}

fn send_cold(choice: Choice) {
    let (mut queue, directory) = (queue(choice), Directory::new("cold", choice));
    let bytes = pattern(2 << 20);
    let file = file_of(&directory, &bytes);
    for len in [2000, 2 << 20] {
        file.sync_all().unwrap();
        fadvise(&*file, 0, None, Advice::DontNeed).unwrap();
        let range = 1000..len as u64;
        let parts =
            SendFile { header: vec![1; 10], file: file.clone(), range, trailer: vec![2; 10] };
        let (sent, read) = exchange(&mut queue, true, parts);
        sent.result.unwrap();
        assert!(read == [&[1; 10][..], &bytes[1000..len], &[2; 10]].concat());
    }
    // A file that sendfile(2) rejects, because it has no pages.
    let zero = Arc::new(File::open("/dev/zero").unwrap());
    let parts = SendFile { header: vec![1; 10], file: zero, range: 0..1 << 20, trailer: vec![] };
    let (sent, read) = exchange(&mut queue, true, parts);
    sent.result.unwrap();
    assert!(read[10..] == [0; 1 << 20]);
}

/// Goal: the send reports that the file is too short, never pads it, and does not send the trailer.
fn send_shrinking(choice: Choice) {
    const LEN: usize = 8 << 20;
    let (mut queue, directory) = (queue(choice), Directory::new("shrink", choice));
    let bytes = pattern(LEN);
    let file = file_of(&directory, &bytes);
    let parts =
        |range| SendFile { header: vec![1; 10], file: file.clone(), range, trailer: vec![2] };
    for (from, to) in [(LEN - 100, LEN + 100), (LEN - 300_000, LEN + 1), (LEN, LEN + 1)] {
        let (sent, read) = exchange(&mut queue, true, parts(from as u64..to as u64));
        assert_eq!(sent.result.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(sent.bytes, (10 + LEN - from) as u64);
        assert!(read[..10] == [1; 10] && read[10..] == bytes[from..]);
    }
    // During the send, to a peer that accepts little before it reads.
    let (stream, mut peer) = unix();
    let token = queue.send_file(stream, parts(0..LEN as u64), None, 9).unwrap();
    let mut read = read_first(&mut queue, &mut peer, 11);
    file.set_len(4 << 20).unwrap();
    let reader = read_all(peer);
    let sent = finish(&mut queue, token);
    read.extend(reader.join().unwrap());
    assert_eq!(sent.result.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(read.len() as u64, sent.bytes);
    assert!(read.len() > 4 << 20 && read[10..] == bytes[..read.len() - 10]);
}

fn send_stopped(choice: Choice) {
    let (mut queue, directory) = (queue(choice), Directory::new("stop", choice));
    let file = directory.file();
    // More than memory and sockets hold, and nothing on the disk.
    file.set_len(1 << 40).unwrap();
    let parts = || SendFile {
        header: vec![1; 10],
        file: file.clone(),
        range: 0..1 << 40,
        trailer: vec![2; 10],
    };
    for (deadline, why) in [(None, Errno::CANCELED), (soon(), Errno::TIMEDOUT)] {
        let (stream, mut peer) = unix();
        let token = queue.send_file(stream, parts(), deadline, 9).unwrap();
        let mut read = Vec::new();
        if deadline.is_none() {
            read = read_first(&mut queue, &mut peer, 11);
            queue.cancel(token).unwrap();
        }
        let sent = finish(&mut queue, token);
        assert_eq!(errno(sent.result), why);
        assert!(sent.bytes < 1 << 30, "{}", sent.bytes);
        assert_eq!((sent.parts.header, sent.parts.trailer), (vec![1; 10], vec![2; 10]));
        peer.read_to_end(&mut read).unwrap();
        assert_eq!(read.len() as u64, sent.bytes);
    }
    // At once, before anything could be waited for, and too late.
    let (stream, peer) = tcp();
    let reader = read_all(peer);
    let token = queue.send_file(stream, parts(), past(), 9).unwrap();
    assert_eq!(errno(finish(&mut queue, token).result), Errno::TIMEDOUT);
    reader.join().unwrap();
    // A send that could go on without end does not keep others waiting.
    let (stream, mut peer) = tcp();
    let token = queue.send_file(stream, parts(), None, 9).unwrap();
    let reader = std::thread::spawn(move || {
        let mut read = vec![0; 1 << 20];
        while peer.read(&mut read).unwrap() > 0 {}
    });
    let (other, mut writer) = tcp();
    let received = queue.receive(other, vec![0; 5], None, 9).unwrap();
    writer.write_all(b"hello").unwrap();
    assert_eq!(until_over(&mut queue, received), []);
    assert_eq!(queue.take_done(received).unwrap().result.unwrap(), 5);
    queue.cancel(token).unwrap();
    assert_eq!(errno(finish(&mut queue, token).result), Errno::CANCELED);
    reader.join().unwrap();
}

fn send_failed(choice: Choice) {
    let (mut queue, directory) = (queue(choice), Directory::new("fail", choice));
    let file = file_of(&directory, &pattern(8 << 20));
    let parts = |header| SendFile {
        header: vec![1; header],
        file: file.clone(),
        range: 0..8 << 20,
        trailer: vec![],
    };
    with_sigpipe(|| {
        let (stream, peer) = unix();
        let stream = Stream::from(stream);
        let token = queue.send_file(&stream, parts(0), None, 9).unwrap();
        assert_eq!(now(&mut queue), []);
        drop(peer);
        let sent = finish(&mut queue, token);
        assert!(matches!(errno(sent.result), Errno::PIPE | Errno::CONNRESET));
        assert!(sent.bytes > 0);
        for header in [0, 10] {
            let token = queue.send_file(&stream, parts(header), None, 9).unwrap();
            let sent = finish(&mut queue, token);
            assert_eq!((errno(sent.result), sent.bytes), (Errno::PIPE, 0));
        }
        let (stream, _peer) = tcp();
        let stream = Stream::from(stream);
        stream.shutdown(Shutdown::Write).unwrap();
        let token = queue.send_file(&stream, parts(0), None, 9).unwrap();
        assert_eq!(errno(finish(&mut queue, token).result), Errno::PIPE);
    });
}

fn send_refused(choice: Choice) {
    let (mut queue, directory) = (queue(choice), Directory::new("refuse", choice));
    let stream = Stream::from(tcp().0);
    let pipe = Arc::new(File::from(rustix::pipe::pipe().unwrap().0));
    #[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
    let wrong = [
        (directory.file(), 5..4, Errno::INVAL),
        (directory.file(), 0..u64::MAX, Errno::INVAL),
        (pipe, 0..5, Errno::SPIPE),
    ];
    for (file, range, why) in wrong {
        let (header, trailer) = (vec![1], vec![2]);
        let parts = SendFile { header, file: file.clone(), range: range.clone(), trailer };
        let refused = queue.send_file(&stream, parts, soon(), 9).unwrap_err();
        assert_eq!(errno::<()>(Err(refused.error)), why);
        assert_eq!((refused.operation.header, refused.operation.range), (vec![1], range.clone()));
        assert_eq!(errno(queue.receive_file(&stream, file, range, soon(), 9)), why);
    }
    assert!(queue.is_empty());
    // A write-only file.
    let written = Arc::new(File::create(directory.path("written")).unwrap());
    let parts = SendFile { header: vec![], file: written, range: 0..5, trailer: vec![] };
    let token = queue.send_file(&stream, parts, None, 9).unwrap();
    let sent = finish(&mut queue, token);
    assert_eq!((errno(sent.result), sent.bytes), (Errno::BADF, 0));
}

fn receive_file(choice: Choice) {
    const LEN: usize = 3 << 20;
    let (mut queue, directory) = (queue(choice), Directory::new("receive", choice));
    let (file, bytes) = (directory.file(), pattern(LEN));
    // Up to the end of the stream, or of the range.
    for (end, written) in [(i64::MAX as u64, LEN), (1000 + LEN as u64, LEN), (5000, 4000)] {
        file.set_len(0).unwrap();
        let (stream, mut peer) = tcp();
        let sent = bytes.clone();
        let stream = Stream::from(stream);
        let writer = std::thread::spawn(move || peer.write_all(&sent).is_ok());
        let token = queue.receive_file(&stream, file.clone(), 1000..end, None, 9).unwrap();
        let moved = finish_moved(&mut queue, token);
        moved.result.unwrap();
        assert_eq!((moved.bytes, moved.rest), (written as u64, vec![]));
        let mut read = vec![0; written + 1];
        assert_eq!(file.read_at(&mut read, 1000).unwrap(), written);
        assert!(read[..written] == bytes[..written]);
        if written < LEN {
            let mut next = [0];
            assert_eq!(stream.try_receive(&mut next).unwrap(), 1, "the rest stays");
            assert_eq!(next[0], bytes[written]);
        }
        drop(stream);
        let _ = writer.join().unwrap();
    }
    let (stream, mut peer) = tcp();
    let stream = Stream::from(stream);
    for (deadline, why) in [(None, Errno::CANCELED), (soon(), Errno::TIMEDOUT)] {
        let token = queue.receive_file(&stream, file.clone(), 0..9, deadline, 9).unwrap();
        if deadline.is_none() {
            assert_eq!(now(&mut queue), []);
            queue.cancel(token).unwrap();
        }
        let moved = finish_moved(&mut queue, token);
        assert_eq!((errno(moved.result), moved.bytes, moved.rest), (why, 0, vec![]));
    }
    peer.write_all(b"hello").unwrap();
    let token = queue.receive_file(&stream, file.clone(), 7..7, None, 9).unwrap();
    assert_eq!(finish_moved(&mut queue, token).bytes, 0);
    let token = queue.receive_file(&stream, file, 7..12, None, 9).unwrap();
    assert_eq!(finish_moved(&mut queue, token).bytes, 5);
}

fn receive_failed(choice: Choice) {
    let (mut queue, directory) = (queue(choice), Directory::new("unwritten", choice));
    drop(directory.file());
    let read_only = File::open(directory.path("file")).unwrap();
    let full = File::options().write(true).open("/dev/full").unwrap();
    for (file, why) in [(read_only, Errno::BADF), (full, Errno::NOSPC)] {
        let (stream, mut peer) = tcp();
        peer.write_all(b"hello").unwrap();
        let token = queue.receive_file(stream, Arc::new(file), 0..100, None, 9).unwrap();
        let moved = finish_moved(&mut queue, token);
        assert_eq!((errno(moved.result), moved.bytes), (why, 0));
        assert_eq!(moved.rest, b"hello");
    }
}

fn splice(choice: Choice) {
    const LEN: usize = 6 << 20;
    let (mut queue, bytes) = (queue(choice), pattern(LEN));
    for count in [0, 5, LEN as u64, u64::MAX] {
        let ((from, mut writer), (to, reader)) = (tcp(), unix());
        let reader = read_all(reader);
        let sent = bytes.clone();
        let writer = std::thread::spawn(move || writer.write_all(&sent).is_ok());
        let token = queue.splice(from, to, count, None, 9).unwrap();
        let moved = finish_moved(&mut queue, token);
        moved.result.unwrap();
        let expected = count.min(LEN as u64);
        assert_eq!((moved.bytes, moved.rest), (expected, vec![]));
        assert!(reader.join().unwrap() == bytes[..expected as usize]);
        let _ = writer.join().unwrap();
    }
    for (deadline, why) in [(None, Errno::CANCELED), (soon(), Errno::TIMEDOUT)] {
        let ((from, _writer), (to, _reader)) = (unix(), tcp());
        let token = queue.splice(from, to, 100, deadline, 9).unwrap();
        if deadline.is_none() {
            assert_eq!(now(&mut queue), []);
            queue.cancel(token).unwrap();
        }
        let moved = finish_moved(&mut queue, token);
        assert_eq!((errno(moved.result), moved.bytes, moved.rest), (why, 0, vec![]));
    }
}

fn splice_failed(choice: Choice) {
    let mut queue = queue(choice);
    with_sigpipe(|| {
        let ((from, mut writer), (to, reader)) = (tcp(), unix());
        drop(reader);
        writer.write_all(b"hello").unwrap();
        from.peek(&mut [0]).unwrap();
        let token = queue.splice(from, to, 100, None, 9).unwrap();
        let moved = finish_moved(&mut queue, token);
        assert!(matches!(errno(moved.result), Errno::PIPE | Errno::CONNRESET));
        assert_eq!((moved.bytes, &moved.rest[..]), (0, &b"hello"[..]));
    });
    // To a peer that reads nothing: bytes that were taken and have no room are handed back.
    for by_deadline in [false, true] {
        let ((from, mut writer), (to, _reader)) = (tcp(), unix());
        let (from, to) = (Stream::from(from), Stream::from(to));
        while to.try_send(&[7; 4096]).is_ok() {}
        writer.write_all(b"hello").unwrap();
        from.as_kernel().map(|from| rustix::net::recv(from, &mut [0], RecvFlags::PEEK).unwrap());
        let deadline = by_deadline.then(|| Instant::now() + Duration::from_millis(50));
        let token = queue.splice(&from, to, 100, deadline, 9).unwrap();
        let mut why = Errno::TIMEDOUT;
        if !by_deadline {
            let deadline = Instant::now() + PATIENCE;
            while rustix::io::ioctl_fionread(from.as_kernel().unwrap()).unwrap() > 0 {
                assert!(Instant::now() < deadline, "nothing is taken");
                assert_eq!(now(&mut queue), []);
            }
            queue.cancel(token).unwrap();
            why = Errno::CANCELED;
        }
        let moved = finish_moved(&mut queue, token);
        assert_eq!((errno(moved.result), moved.bytes, &moved.rest[..]), (why, 0, &b"hello"[..]));
    }
}

/// Goal: from the kernel through two hosts and back to the kernel, each byte arrives once.
fn splice_mixed(choice: Choice) {
    const LEN: usize = 6 << 20;
    let (mut queue, hosts) = (queue(choice), hosts());
    for count in [0, 5, LEN as u64, u64::MAX] {
        let ((a, mut writer), (near, far), (b, reader)) = (tcp(), connection(&hosts), unix());
        let reader = read_all(reader);
        let writer = std::thread::spawn(move || writer.write_all(&pattern(LEN)).is_ok());
        let expected = count.min(LEN as u64);
        let inwards = queue.splice(a, &near, count, None, 9).unwrap();
        let outwards = queue.splice(&far, b, u64::MAX, None, 9).unwrap();
        assert_eq!(errno(queue.remove(inwards)), Errno::BUSY);
        let mut over = 0;
        while over < 2 {
            for event in wait(&mut queue) {
                assert_eq!(event.kind, EventKind::Completed);
                over += 1;
                let moved = queue.take_moved(event.token).unwrap();
                moved.result.unwrap();
                assert_eq!((moved.bytes, moved.rest), (expected, vec![]));
                if event.token == inwards {
                    near.shutdown(Shutdown::Write).unwrap();
                }
            }
        }
        assert!(queue.take_moved(outwards).is_none() && queue.is_empty());
        assert!(reader.join().unwrap() == pattern(LEN)[..expected as usize]);
        let _ = writer.join().unwrap();
    }
    for (deadline, why) in [(None, Errno::CANCELED), (soon(), Errno::TIMEDOUT)] {
        let ((near, far), (to, _reader)) = (connection(&hosts), tcp());
        let token = queue.splice(&far, to, 100, deadline, 9).unwrap();
        if deadline.is_none() {
            assert_eq!(now(&mut queue), []);
            queue.cancel(token).unwrap();
        }
        let moved = finish_moved(&mut queue, token);
        assert_eq!((errno(moved.result), moved.bytes, moved.rest), (why, 0, vec![]));
        drop(near);
    }
    // Bytes that were taken and cannot be sent are handed back, and the queue may be dropped early.
    let ((near, far), (to, reader)) = (connection(&hosts), unix());
    drop(reader);
    assert_eq!(Stream::from(&near).try_send(b"hello").unwrap(), 5);
    far.set_nonblocking(false).unwrap();
    assert_eq!(far.peek(&mut [0; 9]).unwrap(), 5);
    let token = queue.splice(&far, to, 100, None, 9).unwrap();
    let moved = finish_moved(&mut queue, token);
    assert!(matches!(errno(moved.result), Errno::PIPE | Errno::CONNRESET));
    assert_eq!((moved.bytes, &moved.rest[..]), (0, &b"hello"[..]));
    let (to, mut reader) = tcp();
    queue.splice(&far, to, 100, soon(), 9).unwrap();
    drop(queue);
    // The end of a ring may interrupt a call; `read_to_end` repeats it.
    assert_eq!(reader.read_to_end(&mut Vec::new()).unwrap(), 0, "it is closed");
}

/// Goal: what one stream of a host receives is sent on by another one, and read by the kernel,
/// where the sender lent it: no host copies a byte, but for short pieces of large memory.
fn splice_pieces(choice: Choice) {
    const LEN: usize = 3 << 20;
    let (mut queue, hosts, bytes) = (queue(choice), hosts(), pattern(LEN));
    let copied = || hosts.0.ledger().copied() + hosts.1.ledger().copied();
    // From the first host to the second one, back to the first one, and to the kernel.
    let ((start, through), (from, end)) = (connection(&hosts), connection(&hosts));
    let (to, reader) = unix();
    let reader = read_all(reader);
    let sending = start.send_zc(bytes.clone()).unwrap();
    let back = queue.splice(&through, &end, LEN as u64, None, 9).unwrap();
    let out = queue.splice(&from, to, LEN as u64, None, 9).unwrap();
    let mut over = Vec::new();
    while over.len() < 2 {
        over.extend(wait(&mut queue).iter().map(|event| event.token));
    }
    for token in [back, out] {
        let moved = queue.take_moved(token).unwrap();
        moved.result.unwrap();
        assert_eq!((moved.bytes, moved.rest), (LEN as u64, vec![]));
    }
    assert!(reader.join().unwrap() == bytes);
    assert!(sending.returned().buffer == bytes, "the lender has its memory back");
    let before = copied();
    assert!(before < LEN as u64 / 8, "{before} bytes were copied");
    // A few bytes of a frame would keep all of it in the send queue.
    let token = queue.splice(&through, &end, 5, None, 9).unwrap();
    assert_eq!(Stream::from(&start).try_send(b"hello").unwrap(), 5);
    let moved = finish_moved(&mut queue, token);
    assert_eq!((moved.result.unwrap(), moved.bytes), ((), 5));
    from.set_nonblocking(false).unwrap();
    assert_eq!(from.peek(&mut [0; 9]).unwrap(), 5);
    assert_eq!(copied() - before, 3 * 5, "by the sender, the relay and the reader");
}

fn dropped(choice: Choice) {
    let (mut queue, directory) = (queue(choice), Directory::new("moves", choice));
    let file = file_of(&directory, &pattern(8 << 20));
    let ((stream, mut peer), (other, mut writer)) = (unix(), unix());
    let (stream, other) = (Stream::from(stream), Stream::from(other));
    let parts =
        SendFile { header: vec![1], file: file.clone(), range: 0..8 << 20, trailer: vec![] };
    queue.send_file(&stream, parts, None, 9).unwrap();
    queue.receive_file(&other, file.clone(), 0..100, None, 9).unwrap();
    queue.splice(&other, &stream, 100, None, 9).unwrap();
    assert_eq!(now(&mut queue), []);
    drop((queue, stream));
    let mut read = Vec::new();
    peer.read_to_end(&mut read).unwrap();
    assert!(read[1..] == pattern(8 << 20)[..read.len() - 1]);
    writer.write_all(b"hello").unwrap();
    assert_eq!(other.try_receive(&mut [0; 9]).unwrap(), 5);
    assert_eq!(Arc::strong_count(&file), 1);
}
