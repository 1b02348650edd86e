//! Streams of towpath hosts received into files: what arrives, what is handed back, what stays in
//! the stream; slow and failing disks, and connections that break.

use super::disk::Disk;
use super::files::Directory;
use super::kernel_streams::soon;
use super::send_file::{connections, disk, fresh, hosts, pattern};
use super::transfer::finish_moved;
use super::{Case, PATIENCE, errno, now, queue};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;
use towpath::events::{Choice, Config, EventQueue, Moved};
use towpath::host::TcpStream;
use towpath_packet::Site;

pub(super) const CASES: &[Case] = &[
    ("a_towpath_stream_is_written_to_a_file", whole),
    ("writing_a_towpath_stream_to_a_file_is_stopped", stopped),
    ("what_a_file_does_not_take_of_a_towpath_stream_is_handed_back", failed),
    ("a_file_ends_with_its_towpath_stream", reset),
    ("what_cannot_be_received_into_is_refused", refused),
    ("a_file_takes_received_pieces_where_they_are", in_place),
    ("a_file_takes_many_short_pieces", short_pieces),
];
/// Cases that need a [`Disk`].
pub(super) const DISK_CASES: &[Case] = &[
    ("a_slow_disk_closes_the_window", slow),
    ("a_slow_disk_is_waited_for_after_a_cancel", slow_stopped),
    ("a_disk_that_is_full_or_fails_loses_nothing", failing),
];

/// Most bytes that an operation may hold.
const HELD_MAX: usize = 1 << 20;

/// Sends these bytes and shuts down sending.
fn write(mut peer: TcpStream, bytes: Vec<u8>) -> JoinHandle<TcpStream> {
    std::thread::spawn(move || {
        peer.write_all(&bytes).unwrap();
        peer.shutdown(Shutdown::Write).unwrap();
        peer
    })
}

/// Checks that the file from `at` on, the bytes handed back and the bytes still in the stream are
/// together the bytes that were sent.
fn check(moved: &Moved, file: &File, at: u64, mut stream: TcpStream, sent: &[u8]) {
    let mut all = vec![0; moved.bytes as usize];
    file.read_exact_at(&mut all, at).unwrap();
    all.extend(&moved.rest);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.read_to_end(&mut all).unwrap();
    assert!(all == sent, "{} of {} bytes, or others", all.len(), sent.len());
}

fn whole(choice: Choice) {
    const LEN: usize = 5 << 20;
    let (mut queue, hosts, bytes) = (queue(choice), hosts(4 << 20), pattern(LEN));
    // Up to the end of the stream, or of the range.
    for (end, written) in [(i64::MAX as u64, LEN), (1000 + LEN as u64, LEN), (5000, 4000)] {
        let (stream, peer) = connections(&hosts, 1).remove(0);
        let file = fresh(b"");
        let writer = write(peer, bytes.clone());
        let far = Some(Instant::now() + 100 * PATIENCE);
        let token = queue.receive_file(&stream, file.clone(), 1000..end, far, 9).unwrap();
        let moved = finish_moved(&mut queue, token);
        assert!(moved.result.is_ok(), "{moved:?}");
        assert_eq!((moved.bytes, &*moved.rest), (written as u64, &[][..]));
        assert_eq!(file.metadata().unwrap().len(), 1000 + written as u64);
        check(&moved, &file, 1000, stream, &bytes);
        writer.join().unwrap();
    }
    assert!(queue.is_empty());
}

fn stopped(choice: Choice) {
    let (mut queue, hosts, file) = (queue(choice), hosts(4 << 20), fresh(b""));
    let (stream, mut peer) = connections(&hosts, 1).remove(0);
    for (deadline, why) in [(None, Errno::CANCELED), (soon(), Errno::TIMEDOUT)] {
        let token = queue.receive_file(&stream, file.clone(), 0..9, deadline, 9).unwrap();
        if deadline.is_none() {
            assert_eq!(now(&mut queue), []);
            queue.cancel(token).unwrap();
            queue.cancel(token).unwrap();
        }
        let moved = finish_moved(&mut queue, token);
        assert_eq!((errno(moved.result), moved.bytes, moved.rest), (why, 0, vec![]));
    }
    peer.write_all(b"hello").unwrap();
    let token = queue.receive_file(&stream, file.clone(), 7..7, None, 9).unwrap();
    assert_eq!(finish_moved(&mut queue, token).bytes, 0);
    let token = queue.receive_file(&stream, file, 7..12, None, 9).unwrap();
    let moved = finish_moved(&mut queue, token);
    assert!(moved.result.is_ok() && moved.bytes == 5, "{moved:?}");
}

/// Goal: what a peer has lent is written to the file from where it lent it, and the peer gets its
/// memory back. No host copies a byte, but for pieces that are so short that they are packed: where
/// a window ends, a busy system cuts a few.
fn in_place(choice: Choice) {
    const LEN: usize = 5 << 20;
    let (mut queue, hosts, bytes) = (queue(choice), hosts(4 << 20), pattern(LEN));
    let (stream, peer) = connections(&hosts, 1).remove(0);
    let file = fresh(b"");
    let sending = peer.send_zc(bytes.clone()).unwrap();
    let token = queue.receive_file(&stream, file.clone(), 7..7 + LEN as u64, None, 9).unwrap();
    let moved = finish_moved(&mut queue, token);
    moved.result.unwrap();
    assert_eq!((moved.bytes, moved.rest), (LEN as u64, vec![]));
    let mut written = vec![0; LEN];
    file.read_exact_at(&mut written, 7).unwrap();
    assert!(written == bytes && sending.returned().buffer == bytes);
    for host in [&hosts.0, &hosts.1] {
        let packed = host.ledger().copied_at(Site::Pack);
        assert_eq!(host.ledger().copied(), packed);
        assert!(packed < LEN as u64 / 1000, "{packed} bytes are packed");
    }
}

/// Goal: many short writes arrive in order.
fn short_pieces(choice: Choice) {
    const COUNT: usize = 3000;
    let (mut queue, hosts) = (queue(choice), hosts(4 << 20));
    let (stream, mut peer) = connections(&hosts, 1).remove(0);
    peer.set_nodelay(true).unwrap();
    let bytes = pattern(COUNT * 9);
    let sent = bytes.clone();
    let writer = std::thread::spawn(move || {
        sent.chunks(9).for_each(|part| peer.write_all(part).unwrap());
        peer
    });
    let file = fresh(b"");
    let token = queue.receive_file(&stream, file.clone(), 0..bytes.len() as u64, None, 9).unwrap();
    let moved = finish_moved(&mut queue, token);
    moved.result.unwrap();
    let mut written = vec![0; bytes.len()];
    file.read_exact_at(&mut written, 0).unwrap();
    assert!(written == bytes);
    writer.join().unwrap();
}

/// Bad input: a read-only file, a full device.
fn failed(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts(4 << 20));
    let directory = Directory::new("take", choice);
    drop(directory.file());
    let read_only = File::open(directory.path("file")).unwrap();
    let full = File::options().write(true).open("/dev/full").unwrap();
    for (file, why) in [(read_only, Errno::BADF), (full, Errno::NOSPC)] {
        let (stream, peer) = connections(&hosts, 1).remove(0);
        let writer = write(peer, b"hello".to_vec());
        let token = queue.receive_file(&stream, Arc::new(file), 0..100, None, 9).unwrap();
        let moved = finish_moved(&mut queue, token);
        assert_eq!((errno(moved.result), moved.bytes), (why, 0));
        assert_eq!(moved.rest, b"hello");
        writer.join().unwrap();
    }
}

fn reset(choice: Choice) {
    let (mut queue, hosts, bytes) = (queue(choice), hosts(4 << 20), pattern(1 << 20));
    let (mut stream, mut peer) = connections(&hosts, 1).remove(0);
    let file = fresh(b"");
    let token = queue.receive_file(&stream, file.clone(), 0..2 << 20, None, 9).unwrap();
    stream.write_all(b"unread").unwrap();
    peer.peek(&mut [0]).unwrap();
    let sent = bytes.clone();
    let writer = std::thread::spawn(move || {
        peer.write_all(&sent).unwrap();
        peer
    });
    let end = Instant::now() + PATIENCE;
    while file.metadata().unwrap().len() < bytes.len() as u64 {
        assert!(Instant::now() < end, "timed out without data");
        now(&mut queue);
        std::thread::yield_now();
    }
    drop(writer.join().unwrap());
    let moved = finish_moved(&mut queue, token);
    assert_eq!((errno(moved.result), moved.rest), (Errno::CONNRESET, vec![]));
    assert_eq!(moved.bytes, bytes.len() as u64);
    let mut written = vec![0; bytes.len()];
    file.read_exact_at(&mut written, 0).unwrap();
    assert!(written == bytes);
}

/// Bad input: invalid ranges, a pipe, a full queue.
fn refused(choice: Choice) {
    let hosts = hosts(4 << 20);
    let small = Config { registrations: 1, ..super::config(choice) };
    let mut queue = EventQueue::with(&small).unwrap();
    let (stream, _peer) = connections(&hosts, 1).remove(0);
    let (file, pipe) = (fresh(b""), Arc::new(File::from(rustix::pipe::pipe().unwrap().0)));
    #[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
    let wrong = [
        (file.clone(), 5..4, Errno::INVAL),
        (file.clone(), 0..u64::MAX, Errno::INVAL),
        (pipe, 0..5, Errno::SPIPE),
    ];
    for (file, range, why) in wrong {
        assert_eq!(errno(queue.receive_file(&stream, file, range, soon(), 9)), why);
    }
    assert!(queue.is_empty());
    let token = queue.receive_file(&stream, file.clone(), 0..5, None, 9).unwrap();
    assert_eq!(errno(queue.receive_file(&stream, file, 0..5, None, 9)), Errno::NOSPC);
    queue.cancel(token).unwrap();
    assert_eq!(errno(finish_moved(&mut queue, token).result), Errno::CANCELED);
}

/// Runs the queue until the disk holds a write.
fn until_held(queue: &mut EventQueue, disk: &Disk) {
    let end = Instant::now() + PATIENCE;
    while disk.held() == 0 {
        assert!(Instant::now() < end, "nothing is written");
        assert_eq!(now(queue), []);
        std::thread::yield_now();
    }
}

/// Goal: a disk that does not answer only stops its own stream, and everything arrives later.
fn slow(choice: Choice) {
    let (mut queue, hosts, bytes) = (queue(choice), hosts(4 << 20), pattern(4 << 20));
    let disk = disk("receive-slow", choice, 0);
    disk.seen().is_held = true;
    let mut pairs = connections(&hosts, 2);
    let (stream, peer) = pairs.remove(0);
    let writer = write(peer, bytes.clone());
    let range = 0..i64::MAX as u64;
    let token = queue.receive_file(&stream, disk.file.clone(), range.clone(), None, 9).unwrap();
    until_held(&mut queue, &disk);
    let (other, peer) = pairs.remove(0);
    let (file, others) = (fresh(b""), write(peer, bytes.clone()));
    let second = queue.receive_file(&other, file.clone(), range, None, 9).unwrap();
    let moved = finish_moved(&mut queue, second);
    assert!(moved.result.is_ok(), "{moved:?}");
    check(&moved, &file, 0, other, &bytes);
    disk.let_go();
    let moved = finish_moved(&mut queue, token);
    assert!(moved.result.is_ok() && moved.bytes == bytes.len() as u64, "{moved:?}");
    check(&moved, &disk.file, 0, stream, &bytes);
    writer.join().unwrap();
    others.join().unwrap();
}

/// Goal: a cancel and a deadline complete a receive as soon as the disk has answered; it holds
/// little, and nothing is lost.
fn slow_stopped(choice: Choice) {
    let (mut queue, hosts, bytes) = (queue(choice), hosts(4 << 20), pattern(16 << 20));
    for why in [Errno::CANCELED, Errno::TIMEDOUT] {
        let disk = disk(&format!("receive-{}", why.raw_os_error()), choice, 0);
        disk.seen().is_held = true;
        let (stream, peer) = connections(&hosts, 1).remove(0);
        let writer = write(peer, bytes.clone());
        let due = (why == Errno::TIMEDOUT).then(|| Instant::now() + PATIENCE / 60);
        let range = 0..bytes.len() as u64;
        let token = queue.receive_file(&stream, disk.file.clone(), range, due, 9).unwrap();
        until_held(&mut queue, &disk);
        match due {
            None => queue.cancel(token).unwrap(),
            Some(due) => {
                assert_eq!(queue.wait(&mut Vec::new(), Some(due)).unwrap(), 0);
            }
        }
        assert_eq!(now(&mut queue), [], "the disk has not answered");
        disk.let_go();
        let moved = finish_moved(&mut queue, token);
        let held = moved.bytes as usize + moved.rest.len();
        assert!((1..=HELD_MAX).contains(&held), "{held}");
        check(&moved, &disk.file, 0, stream, &bytes);
        assert_eq!(errno(moved.result), why);
        writer.join().unwrap();
    }
}

/// Goal: every error of a disk is reported once, without endless retries, and no byte is lost.
fn failing(choice: Choice) {
    let (mut queue, hosts, bytes) = (queue(choice), hosts(4 << 20), pattern(4 << 20));
    for why in [Errno::NOSPC, Errno::IO, Errno::INTR, Errno::CANCELED] {
        let disk = disk(&format!("receive-{}", why.raw_os_error()), choice, 0);
        disk.seen().fails = Some((1 << 20, why.raw_os_error()));
        let (stream, peer) = connections(&hosts, 1).remove(0);
        let writer = write(peer, bytes.clone());
        let range = 0..bytes.len() as u64;
        let token = queue.receive_file(&stream, disk.file.clone(), range, None, 9).unwrap();
        let moved = finish_moved(&mut queue, token);
        assert!(moved.bytes <= 1 << 20 && !moved.rest.is_empty(), "{}", moved.bytes);
        disk.seen().fails = None;
        check(&moved, &disk.file, 0, stream, &bytes);
        assert_eq!(errno(moved.result), why);
        writer.join().unwrap();
    }
}
