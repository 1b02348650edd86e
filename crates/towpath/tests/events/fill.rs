//! Buffers of all kinds that a queue fills: each comes back once, with its original type and with
//! the bytes where they belong.

use super::files::{Directory, pattern};
use super::sockets::{connection, hosts};
use super::{Case, PATIENCE, config, errno, now, queue, until_over};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;
use towpath::events::{Action, Choice, Completed, Config, EventQueue, Operation, Stream, Token};
use towpath::host::{AnyBuffer, Chain, Fill, Part, UdpSocket};

pub(super) const CASES: &[Case] = &[
    ("a_buffer_of_any_kind_is_filled", received),
    ("a_part_of_a_buffer_is_filled", parts),
    ("a_buffer_of_any_kind_is_read_from_a_file", read),
    ("a_buffer_of_any_kind_is_written_to_a_file", written),
    ("a_buffer_of_any_kind_takes_a_datagram", datagrams),
    ("a_buffer_of_any_kind_comes_back_from_a_cancel", cancelled),
    ("a_buffer_to_fill_ends_with_its_queue", dropped),
    ("a_buffer_to_fill_is_handed_back", refused),
];

/// Bytes of each buffer.
const LEN: usize = 1000;

/// Takes the buffer of a complete operation, and checks that it is reported and taken once.
fn finish<B: Fill>(queue: &mut EventQueue, token: Token) -> Completed<B> {
    assert_eq!(until_over(queue, token), []);
    assert_eq!(now(queue), []);
    let completed = queue.take(token).unwrap().into_buffer().unwrap();
    assert!(queue.take(token).is_none() && queue.is_empty());
    assert_eq!(errno(queue.cancel(token)), Errno::STALE);
    completed
}

/// A stream and its peer.
struct Connection {
    stream: Stream,
    peer: Box<dyn Write>,
}

/// Returns a connection of towpath and one of the kernel. What comes with them must stay.
fn connections() -> ([Connection; 2], impl Sized) {
    let hosts = hosts();
    let (own, own_peer) = connection(&hosts);
    own_peer.set_nonblocking(false).unwrap();
    let (kernels, kernels_peer) = super::kernel_streams::tcp();
    let own = Connection { stream: own.into(), peer: Box::new(own_peer) };
    let kernels = Connection { stream: kernels.into(), peer: Box::new(kernels_peer) };
    ([own, kernels], hosts)
}

/// Fills a buffer with what the peer sends before or after the receive starts. Returns the buffer.
fn fill<B: Fill>(queue: &mut EventQueue, connection: &mut Connection, buffer: B, len: usize) -> B {
    let bytes = pattern(len);
    let (early, late) = bytes.split_at(len / 3);
    connection.peer.write_all(early).unwrap();
    let begun = queue.receive_all(&connection.stream, buffer, None, 9);
    let token = begun.map_err(|refused| refused.error).unwrap();
    assert!(late.is_empty() || now(queue).is_empty(), "it is not full");
    assert_eq!(errno(queue.remove(token)), Errno::BUSY);
    assert!(queue.take(token).is_none());
    connection.peer.write_all(late).unwrap();
    let Completed { result, buffer, .. } = finish(queue, token);
    assert_eq!(result.unwrap(), len);
    buffer
}

/// Goal: on both kinds of streams each kind of buffer is filled, up to its length.
fn received(choice: Choice) {
    let mut queue = queue(choice);
    let (connections, _hosts) = connections();
    let host = hosts().0;
    for mut connection in connections {
        let (queue, connection) = (&mut queue, &mut connection);
        let bytes = pattern(LEN);
        let mut vec = Vec::with_capacity(3 * LEN);
        vec.resize(LEN, 7);
        let place = vec.as_ptr();
        let vec = fill(queue, connection, vec, LEN);
        assert!(vec == bytes && vec.as_ptr() == place && vec.capacity() >= 3 * LEN);
        assert!(*fill(queue, connection, vec![7; LEN].into_boxed_slice(), LEN) == bytes);
        assert!(*fill(queue, connection, Box::new([7; LEN]), LEN) == *bytes);
        let recycled = host.buffer(LEN);
        let place = recycled.as_ptr();
        let recycled = fill(queue, connection, recycled, LEN);
        assert!(*recycled == *bytes && recycled.as_ptr() == place, "it is the same memory");
        let part = Part::new(vec![7; LEN], 0..LEN).unwrap();
        assert!(fill(queue, connection, part, LEN).into_buffer() == bytes);
        #[cfg(feature = "bytes")]
        {
            let mut room = bytes::BytesMut::with_capacity(3 * LEN);
            room.resize(LEN, 7);
            assert!(fill(queue, connection, room, LEN) == bytes);
        }
        #[cfg(feature = "bytemuck")]
        {
            use towpath::host::Typed;
            let words: Vec<u32> =
                bytes.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect();
            assert!(fill(queue, connection, Typed(vec![7_u32; LEN / 4]), LEN).0 == words);
            let boxed = Typed(vec![7_u32; LEN / 4].into_boxed_slice());
            assert!(*fill(queue, connection, boxed, LEN).0 == *words);
        }
    }
}

/// Goal: only the part is filled, wherever it is, and a part of a part too. Bad input: a range that
/// is empty, that goes backwards or that exceeds the buffer.
fn parts(choice: Choice) {
    let mut queue = queue(choice);
    let (connections, _hosts) = connections();
    for mut connection in connections {
        let (queue, connection) = (&mut queue, &mut connection);
        for range in [0..10, 40..60, 90..100, 99..100, 0..100] {
            let part = Part::new(vec![7; 100], range.clone()).unwrap();
            let part = fill(queue, connection, part, range.len());
            assert_eq!(part.range(), range);
            let mut expected = vec![7; 100];
            expected[range.clone()].copy_from_slice(&pattern(range.len()));
            assert_eq!(part.into_buffer(), expected, "{range:?}");
        }
        let outer = Part::new(Box::new([7; 100]), 20..80).unwrap();
        let inner = fill(queue, connection, Part::new(outer, 50..60).unwrap(), 10);
        let mut expected = [7; 100];
        expected[70..80].copy_from_slice(&pattern(10));
        assert_eq!(*inner.into_buffer().into_buffer(), expected);
        // An empty part completes without bytes, and takes none.
        connection.peer.write_all(b"next").unwrap();
        for at in [0, 50, 100] {
            let part = Part::new(vec![7; 100], at..at).unwrap();
            let token = queue.receive(&connection.stream, part, None, 9).unwrap();
            let done = finish::<Part<Vec<u8>>>(queue, token);
            assert_eq!((done.result.unwrap(), done.buffer.into_buffer()), (0, vec![7; 100]));
        }
        let token = queue.receive(&connection.stream, Box::new([7; 4]), None, 9).unwrap();
        assert_eq!(*finish::<Box<[u8; 4]>>(queue, token).buffer, *b"next");
    }
    let backwards = std::ops::Range { start: 3, end: 2 };
    for range in [0..101, 101..101, backwards] {
        assert_eq!(Part::new(Box::new([7; 100]), range), Err(Box::new([7; 100])));
    }
}

/// Reads from a file into a buffer. Returns the result.
fn read_at<B: Fill>(queue: &mut EventQueue, file: &Arc<File>, at: u64, buffer: B) -> Completed<B> {
    let operation = Operation { action: Action::Read(at), file: file.clone(), buffer };
    let begun = queue.submit(operation, None, 9);
    let token = begun.map_err(|refused| refused.error).unwrap();
    finish(queue, token)
}

/// Goal: a read fills each kind of buffer, or as much of it as the file has.
fn read(choice: Choice) {
    let (mut queue, directory) = (queue(choice), Directory::new("fill", choice));
    let (queue, file) = (&mut queue, directory.file());
    file.write_all_at(&pattern(LEN), 0).unwrap();
    let read = read_at(queue, &file, 0, Box::new([7; LEN]));
    assert!(read.result.unwrap() == LEN && *read.buffer == *pattern(LEN));
    let read = read_at(queue, &file, LEN as u64 - 10, vec![7; 100].into_boxed_slice());
    assert_eq!(read.result.unwrap(), 10);
    assert_eq!(read.buffer[..10], pattern(LEN)[LEN - 10..]);
    assert_eq!(read.buffer[10..], [7; 90]);
    let part = Part::new(vec![7; 100], 30..60).unwrap();
    let read = read_at(queue, &file, 500, part);
    assert_eq!(read.result.unwrap(), 30);
    let expected = [&[7; 30], &pattern(LEN)[500..530], &[7; 40]].concat();
    assert_eq!(read.buffer.into_buffer(), expected);
    let empty = Part::new(vec![7; 100], 100..100).unwrap();
    assert_eq!(read_at(queue, &file, 0, empty).result.unwrap(), 0);
    // A failure hands the buffer back, too.
    let write_only = Arc::new(File::options().write(true).open(directory.path("file")).unwrap());
    let failed = read_at(queue, &write_only, 0, Box::new([7; 4]));
    assert_eq!((errno(failed.result), *failed.buffer), (Errno::BADF, [7; 4]));
}

/// Goal: a write takes memory of each kind, contiguous or not, and hands it back.
fn written(choice: Choice) {
    let (mut queue, directory) = (queue(choice), Directory::new("write", choice));
    let (queue, file) = (&mut queue, directory.file());
    let token = queue.write_at(file.clone(), 0, "text", None, 9).unwrap();
    assert_eq!(until_over(queue, token), []);
    // Asking for a wrong type loses nothing.
    let other = queue.take(token).unwrap().into_buffer::<Vec<u8>>().unwrap_err();
    let other = other.into_datagram_buffer::<&'static str>().unwrap_err();
    let done = other.into_buffer::<&'static str>().unwrap();
    assert_eq!((done.result.unwrap(), done.buffer), (4, "text"));
    let chain = Chain(vec![b"of ".to_vec(), Vec::new(), b"several".to_vec()]);
    let token = queue.write_at(file.clone(), 4, chain.clone(), None, 9).unwrap();
    assert_eq!(until_over(queue, token), []);
    let done = queue.take(token).unwrap().into_buffer::<Chain<Vec<u8>>>().unwrap();
    assert_eq!((done.result.unwrap(), done.buffer), (10, chain));
    let shared: Arc<[u8]> = b" parts"[..].into();
    let token = queue.write_at(file.clone(), 14, shared.clone(), None, 9).unwrap();
    assert_eq!(until_over(queue, token), []);
    let done = queue.take(token).unwrap().into_buffer::<Arc<[u8]>>().unwrap();
    assert!(done.result.unwrap() == 6 && Arc::ptr_eq(&done.buffer, &shared));
    let part = Part::new(Box::new(*b"and the rest"), 8..12).unwrap();
    let operation = Operation { action: Action::Write(20), file: file.clone(), buffer: part };
    let token = queue.submit(operation, None, 9).unwrap();
    assert_eq!(finish::<Part<Box<[u8; 12]>>>(queue, token).result.unwrap(), 4);
    // A vector of any origin is a `Vec` at the end.
    let vec = AnyBuffer::new(b" bytes".to_vec());
    let token = queue.write_at(file.clone(), 24, vec, None, 9).unwrap();
    assert_eq!(until_over(queue, token), []);
    assert_eq!(queue.take(token).unwrap().into_bytes().unwrap().buffer, b" bytes");
    let mut text = String::new();
    File::open(directory.path("file")).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "textof several partsrest bytes");
    // Bad input: no such offset, and a file without offsets.
    let refused = queue.write_at(file, u64::MAX, shared.clone(), None, 9).unwrap_err();
    assert!(Arc::ptr_eq(&refused.buffer, &shared));
    assert_eq!(errno(Err::<(), _>(refused.error)), Errno::INVAL);
    let (_reader, writer) = rustix::pipe::pipe().unwrap();
    let pipe = Arc::new(File::from(writer));
    let refused = queue.write_at(pipe, 0, "text", None, 9).unwrap_err();
    assert_eq!((errno(Err::<(), _>(refused.error)), refused.buffer), (Errno::SPIPE, "text"));
}

/// Goal: a datagram fills the part that it is received into, and what does not fit is lost.
fn datagrams(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts());
    let (queue, to) = (&mut queue, SocketAddr::from(([10, 0, 0, 2], 53)));
    let socket = UdpSocket::bind(&hosts.0, "10.0.0.1:0").unwrap();
    let peer = UdpSocket::bind(&hosts.1, to).unwrap();
    for (range, len) in [(0..10, 5), (20..30, 10), (90..100, 50), (40..40, 5)] {
        let part = Part::new(Box::new([7; 100]), range.clone()).unwrap();
        let token = queue.receive_datagram(&peer, part, None, 9).unwrap();
        assert_eq!(now(queue), []);
        socket.send_to(&pattern(len), to).unwrap();
        assert_eq!(until_over(queue, token), []);
        let completion = queue.take(token).unwrap();
        let completion = completion.into_buffer::<Vec<u8>>().unwrap_err();
        let completion = completion.into_datagram_buffer::<Vec<u8>>().unwrap_err();
        let received = completion.into_datagram_buffer::<Part<Box<[u8; 100]>>>().unwrap();
        assert!(queue.take(token).is_none() && queue.is_empty());
        let (result, copied) = (received.result.unwrap(), len.min(range.len()));
        assert_eq!((result.len, result.copied), (len, copied));
        let mut expected = [7; 100];
        expected[range.start..][..copied].copy_from_slice(&pattern(len)[..copied]);
        assert_eq!(*received.buffer.into_buffer(), expected);
    }
    let token = queue.receive_datagram(&peer, vec![7; 4], None, 9).unwrap();
    socket.send_to(b"text", to).unwrap();
    assert_eq!(until_over(queue, token), []);
    let received = queue.take(token).unwrap().into_datagram_buffer::<Vec<u8>>().unwrap();
    assert_eq!(received.buffer, b"text");
}

/// Goal: a cancel and a deadline hand the buffer back, and take no byte of the stream.
fn cancelled(choice: Choice) {
    let mut queue = queue(choice);
    let (connections, _hosts) = connections();
    for mut connection in connections {
        let queue = &mut queue;
        for (deadline, why) in [(None, Errno::CANCELED), (Some(Instant::now()), Errno::TIMEDOUT)] {
            let buffer = Box::new([7; 4]);
            let place = buffer.as_ptr();
            let token = queue.receive(&connection.stream, buffer, deadline, 9).unwrap();
            if deadline.is_none() {
                assert_eq!(now(queue), []);
                queue.cancel(token).unwrap();
            }
            let done = finish::<Box<[u8; 4]>>(queue, token);
            assert_eq!((errno(done.result), *done.buffer), (why, [7; 4]));
            assert_eq!(done.buffer.as_ptr(), place, "it is the same memory");
        }
        assert_eq!(*fill(queue, &mut connection, Box::new([7; 4]), 4), *pattern(4));
    }
}

/// Goal: a queue that ends drops the buffers that wait for bytes, once. Method: a host uses the
/// memory of its buffers again when they are dropped, so nothing else has it then.
fn dropped(choice: Choice) {
    let (connections, hosts) = (connections(), hosts());
    for connection in connections.0 {
        let mut queue = queue(choice);
        let mut buffers = [hosts.0.buffer(LEN), hosts.0.buffer(LEN)];
        buffers.iter_mut().for_each(|buffer| buffer.fill(7));
        let mut places = buffers.each_ref().map(|buffer| buffer.as_ptr());
        for buffer in buffers {
            queue.receive_all(&connection.stream, buffer, None, 9).unwrap();
        }
        assert_eq!(now(&mut queue), []);
        drop(queue);
        let again = [hosts.0.buffer(LEN), hosts.0.buffer(LEN)];
        let mut places_again = again.each_ref().map(|buffer| buffer.as_ptr());
        places.sort();
        places_again.sort();
        assert_eq!(places, places_again);
        assert!(again.iter().all(|buffer| **buffer == [7; LEN]));
    }
}

/// Goal: a full queue hands back buffers with their original type.
fn refused(choice: Choice) {
    let config = Config { registrations: 0, ..config(choice) };
    let mut queue = EventQueue::with(&config).unwrap();
    let (connections, _hosts) = connections();
    let part = || Part::new(Box::new([7; 9]), 3..5).unwrap();
    for Connection { stream, .. } in connections {
        assert_eq!(queue.receive(&stream, part(), None, 9).unwrap_err().buffer, part());
        assert_eq!(queue.receive_all(&stream, part(), None, 9).unwrap_err().buffer, part());
        assert_eq!(queue.receive(&stream, vec![7; 9], None, 9).unwrap_err().buffer, [7; 9]);
    }
    let socket = UdpSocket::bind(&hosts().0, "10.0.0.1:0").unwrap();
    assert_eq!(queue.receive_datagram(&socket, part(), None, 9).unwrap_err().buffer, part());
    let directory = Directory::new("fill-refused", choice);
    let (action, file) = (Action::Read(3), directory.file());
    let operation = Operation { action, file: file.clone(), buffer: part() };
    let refused = queue.submit(operation, Some(Instant::now() + PATIENCE), 9).unwrap_err();
    let Operation { action: same, file: same_file, buffer } = refused.operation;
    assert!(same == action && Arc::ptr_eq(&same_file, &file) && buffer == part());
    assert_eq!(queue.write_at(file, 0, "text", None, 9).unwrap_err().buffer, "text");
}
