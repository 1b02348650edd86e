//! Files sent on streams of towpath hosts: what arrives, what is read and copied for it, slow and
//! failing disks, and files that change.

use super::disk::Disk;
use super::sockets::address;
use super::{Case, PATIENCE, now, queue, wait};
use crate::taken::Taken;
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use towpath::events::{Choice, EventKind, EventQueue, FileSent, SendFile, Token};
use towpath::host::{Config as HostConfig, Host, SendMode, TcpListener, TcpStream};
use towpath_packet::Site;

pub(super) const CASES: &[Case] = &[
    ("a_file_arrives_between_header_and_trailer", round_trip),
    ("many_sockets_send_what_was_read_once", hot),
    ("a_file_is_larger_than_the_memory_for_files", large),
    ("who_does_not_read_keeps_nobody_waiting", full),
    ("a_file_that_changes_is_read_anew", changed),
    ("a_file_that_is_cut_short_ends_the_send", cut),
    ("a_file_that_is_removed_is_sent", removed),
    ("a_file_ends_with_its_connection", reset),
    ("a_file_is_copied_where_that_is_asked_for", copied),
    ("a_little_file_goes_out_by_one_copy", little),
    ("what_cannot_be_sent_is_handed_back", refused),
];

/// Cases that need a [`Disk`].
pub(super) const DISK_CASES: &[Case] = &[
    ("one_of_those_who_want_a_block_reads_it", together),
    ("a_disk_that_fails_ends_the_send", failing),
    ("a_slow_disk_stalls_nobody_else", slow),
    ("what_a_slow_disk_has_is_asked_without_waiting", looked),
    ("a_disk_that_does_not_tell_what_it_has_ends_the_send", unlooked),
    ("a_slow_disk_with_a_small_file_stalls_nobody_else", slow_and_small),
    ("a_send_is_stopped_though_the_disk_is_slow", stopped),
    ("a_block_that_is_given_up_is_read_by_another", given_up),
    ("a_file_that_changes_on_its_disk_is_read_anew", changed_on_disk),
];

pub(super) const BLOCK: usize = 256 << 10;

pub(super) fn hosts(file_cache: usize) -> (Host, Host) {
    let config = |last| HostConfig {
        file_cache,
        default_term: None,
        ..HostConfig::with_address([10, 0, 0, last], 24)
    };
    Host::pair(&config(1), &config(2)).unwrap()
}

pub(super) fn connections((a, b): &(Host, Host), count: usize) -> Vec<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind(b, address()).unwrap();
    let connect = |_| {
        let stream = TcpStream::connect(a, address()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        (stream, peer)
    };
    (0..count).map(connect).collect()
}

pub(super) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251) as u8).collect()
}

/// Creates an unlinked file that has just been written.
pub(super) fn fresh(bytes: &[u8]) -> Arc<File> {
    let name = format!("towpath-send-file-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    fs::remove_file(path).unwrap();
    file.write_all_at(bytes, 0).unwrap();
    Arc::new(file)
}

/// Returns a file that has not changed recently, and its first bytes.
pub(super) fn settled(len: usize) -> (Arc<File>, Vec<u8>) {
    let file = File::open(std::env::current_exe().unwrap()).unwrap();
    let (end, mut bytes) = (Instant::now() + PATIENCE, vec![0; len]);
    // It may just have been linked.
    while file.metadata().unwrap().modified().unwrap().elapsed().is_ok_and(|age| age.as_secs() < 5)
    {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(10));
    }
    file.read_exact_at(&mut bytes, 0).unwrap();
    (Arc::new(file), bytes)
}

pub(super) fn parts(file: &Arc<File>, range: Range<u64>) -> SendFile {
    let (header, trailer) = (b"header".to_vec(), b"trailer".to_vec());
    SendFile { header, file: file.clone(), range, trailer }
}

/// Goal: less than a block is not read on the queue's thread either, although this file system
/// blocks even non-blocking reads.
fn slow_and_small(choice: Choice) {
    const LEN: usize = 70_000;
    let disk = disk("small", choice, LEN);
    let (mut queue, hosts) = (queue(choice), hosts(64 << 20));
    let mut pairs = connections(&hosts, 2);
    disk.seen().is_held = true;
    let slow = queue.send_file(&pairs[0].0, parts(&disk.file, 0..LEN as u64), None, 9).unwrap();
    until_held(&mut queue, &disk, 1);
    let (bytes, (stream, peer)) = (pattern(LEN), pairs.pop().unwrap());
    let token = queue.send_file(&stream, parts(&fresh(&bytes), 0..LEN as u64), None, 9).unwrap();
    let reader = read(peer, LEN + 13);
    until_over(&mut queue, token).result.unwrap();
    assert!(reader.join().unwrap().1 == framed(&bytes));
    disk.let_go();
    let reader = read(pairs.pop().unwrap().1, LEN + 13);
    until_over(&mut queue, slow).result.unwrap();
    assert!(reader.join().unwrap().1 == framed(&pattern(LEN)));
}

/// Creates a disk with `len` bytes.
pub(super) fn disk(name: &str, choice: Choice, len: usize) -> Disk {
    Disk::new(&format!("{name}-{choice:?}"), pattern(len)).expect("one was mounted before")
}

/// Runs the queue until the disk holds `count` requests.
pub(super) fn until_held(queue: &mut EventQueue, disk: &Disk, count: usize) {
    let end = Instant::now() + PATIENCE;
    while disk.held() < count {
        assert!(Instant::now() < end, "{} of {count} held", disk.held());
        now(queue);
        std::thread::yield_now();
    }
}

/// Reads `count` bytes, and later checks that no more arrive.
pub(super) fn read(mut peer: TcpStream, count: usize) -> JoinHandle<(TcpStream, Vec<u8>)> {
    std::thread::spawn(move || {
        let mut bytes = vec![0; count];
        peer.read_exact(&mut bytes).unwrap();
        (peer, bytes)
    })
}

/// Waits until a send is complete; other events may only report accepted bytes.
pub(super) fn until_over(queue: &mut EventQueue, token: Token) -> FileSent {
    loop {
        for event in wait(queue) {
            if event.kind == EventKind::Completed {
                assert_eq!(event.token, token);
                return queue.take_file(token).unwrap();
            }
        }
    }
}

/// Runs the queue until the peer has `count` bytes to read.
fn until_received(queue: &mut EventQueue, peer: &TcpStream, count: usize) {
    let end = Instant::now() + PATIENCE;
    peer.set_nonblocking(true).unwrap();
    while peer.peek(&mut vec![0; count]).unwrap_or(0) < count {
        assert!(Instant::now() < end, "timed out without data");
        now(queue);
        std::thread::yield_now();
    }
    peer.set_nonblocking(false).unwrap();
}

fn errno(sent: &FileSent) -> Option<Errno> {
    sent.result.as_ref().err().and_then(Errno::from_io_error)
}

fn is_short(sent: &FileSent) -> bool {
    sent.result.as_ref().is_err_and(|error| error.kind() == ErrorKind::UnexpectedEof)
}

pub(super) fn framed(bytes: &[u8]) -> Vec<u8> {
    [b"header", bytes, b"trailer"].concat()
}

fn round_trip(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts(64 << 20));
    let bytes = pattern(5 * BLOCK + 7);
    let file = fresh(&bytes);
    let (stream, mut peer) = connections(&hosts, 1).remove(0);
    let end = bytes.len();
    let (block, middle) = (BLOCK, BLOCK / 2);
    for range in [
        0..end,
        0..0,
        0..1,
        end..end,
        middle..middle + 1,
        middle..3 * block + middle,
        block - 1..block + 1,
        block..2 * block,
        end - 1..end,
    ] {
        let asked = range.start as u64..range.end as u64;
        let far = Some(Instant::now() + 100 * PATIENCE);
        let token = queue.send_file(&stream, parts(&file, asked.clone()), far, 9).unwrap();
        assert_eq!(queue.remove(token).unwrap_err().kind(), ErrorKind::ResourceBusy);
        let expected = framed(&bytes[range]);
        let reader = read(peer, expected.len());
        let mut reported = Vec::new();
        while reported.last() != Some(&EventKind::Completed) {
            reported.extend(wait(&mut queue).into_iter().map(|event| event.kind));
        }
        assert_eq!(reported, [EventKind::Accepted { bytes: expected.len() }, EventKind::Completed]);
        let sent = queue.take_file(token).unwrap();
        sent.result.unwrap();
        assert_eq!(sent.bytes, expected.len() as u64);
        assert_eq!((&*sent.parts.header, &*sent.parts.trailer), (&b"header"[..], &b"trailer"[..]));
        assert_eq!(sent.parts.range, asked);
        let read;
        (peer, read) = reader.join().unwrap();
        assert!(read == expected, "{asked:?}");
        assert!(queue.take_file(token).is_none() && queue.is_empty());
    }
    // Nothing at all, and more than there is.
    let nothing = SendFile { header: vec![], trailer: vec![], ..parts(&file, 3..3) };
    let token = queue.send_file(&stream, nothing, None, 9).unwrap();
    assert_eq!(until_over(&mut queue, token).bytes, 0);
    let token = queue.send_file(&stream, parts(&file, 10..1 << 62), None, 9).unwrap();
    let reader = read(peer, 6 + end - 10);
    let sent = until_over(&mut queue, token);
    assert!(is_short(&sent) && sent.bytes == (6 + end - 10) as u64, "{sent:?}");
    (peer, _) = reader.join().unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(peer.read(&mut [0]).unwrap(), 0, "there is no trailer");
    drop((stream, peer, file));
    let end = Instant::now() + PATIENCE;
    while hosts.0.file_cache().bytes > 0 {
        assert!(Instant::now() < end, "a recent write is not cached");
        std::thread::yield_now();
    }
}

/// Goal: no byte of a file is copied for a second socket.
fn hot(choice: Choice) {
    const LEN: usize = 3 * BLOCK;
    let (mut queue, hosts) = (queue(choice), hosts(64 << 20));
    let (file, bytes) = settled(LEN);
    let mut readers = Vec::new();
    for (stream, peer) in connections(&hosts, 20) {
        let parts = SendFile { header: vec![], trailer: vec![], ..parts(&file, 0..LEN as u64) };
        queue.send_file(&stream, parts, None, 9).unwrap();
        readers.push(read(peer, LEN));
    }
    while !queue.is_empty() {
        for event in wait(&mut queue) {
            if event.kind == EventKind::Completed {
                queue.take_file(event.token).unwrap().result.unwrap();
            }
        }
    }
    for reader in readers {
        assert!(reader.join().unwrap().1 == bytes);
    }
    let (cache, ledger) = (hosts.0.file_cache(), hosts.0.ledger());
    assert_eq!((cache.misses, cache.hits, cache.bytes), (3, 57, LEN));
    assert_eq!((cache.private, cache.evicted), (0, 0));
    assert_eq!(ledger.copied_at(Site::File), LEN as u64);
    assert_eq!(ledger.copied(), LEN as u64, "and that is all");
}

/// Goal: a cold block that several sends want is read once, also from different queues.
fn together(choice: Choice) {
    let disk = disk("together", choice, BLOCK);
    let (mut first, mut second, hosts) = (queue(choice), queue(choice), hosts(64 << 20));
    disk.seen().is_held = true;
    let mut pairs = connections(&hosts, 3);
    for (index, (stream, _)) in pairs.iter().enumerate() {
        let queue = if index == 1 { &mut second } else { &mut first };
        queue.send_file(stream, parts(&disk.file, 0..BLOCK as u64), None, 9).unwrap();
        now(queue);
    }
    // The first send has started to read before the others begin.
    until_held(&mut first, &disk, 1);
    disk.let_go();
    let readers: Vec<_> = pairs.drain(..).map(|(_, peer)| read(peer, BLOCK + 13)).collect();
    for (queue, count) in [(&mut first, 2), (&mut second, 1)] {
        let mut over = 0;
        while over < count {
            over += wait(queue).iter().filter(|event| event.kind == EventKind::Completed).count();
        }
    }
    for reader in readers {
        assert!(reader.join().unwrap().1 == framed(&pattern(BLOCK)));
    }
    let mut reads = disk.seen().reads.clone();
    let all = reads.len();
    reads.sort_unstable();
    reads.dedup();
    assert_eq!((reads.len(), hosts.0.file_cache().misses), (all, 1));
}

/// Goal: a file of any size is sent with little memory, from any offset.
fn large(choice: Choice) {
    const LEN: usize = 24 << 20;
    const FROM: u64 = (7 << 30) + 12_345;
    let (mut queue, hosts) = (queue(choice), hosts(1 << 20));
    let (file, bytes) = (fresh(&[]), pattern(LEN));
    file.set_len(8 << 30).unwrap();
    file.write_all_at(&bytes, FROM).unwrap();
    let (stream, peer) = connections(&hosts, 1).remove(0);
    let range = FROM..FROM + LEN as u64;
    let token = queue.send_file(&stream, parts(&file, range), None, 9).unwrap();
    let reader = read(peer, LEN + 13);
    let mut most = 0;
    let mut is_over = false;
    while !is_over {
        is_over = wait(&mut queue).iter().any(|event| event.kind == EventKind::Completed);
        most = most.max(hosts.0.file_cache().bytes);
    }
    queue.take_file(token).unwrap().result.unwrap();
    assert!(reader.join().unwrap().1 == framed(&bytes));
    assert!(most <= 1 << 20, "{most} bytes");
}

/// Goal: peers that do not read keep the memory that they hold, and others continue without it.
fn full(choice: Choice) {
    const LEN: usize = 4 << 20;
    let (mut queue, hosts) = (queue(choice), hosts(1 << 20));
    let (file, bytes) = settled(LEN);
    let pairs = connections(&hosts, 4);
    let mut tokens = Vec::new();
    for (index, (stream, _)) in pairs.iter().enumerate() {
        // Different blocks.
        let range = (index * LEN / 4) as u64..LEN as u64;
        tokens.push(queue.send_file(stream, parts(&file, range), None, 9).unwrap());
    }
    let (streams, mut peers): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    // The last peer reads, the others do not yet.
    let reader = read(peers.pop().unwrap(), LEN / 4 + 13);
    let sent = until_over(&mut queue, tokens[3]);
    sent.result.unwrap();
    assert!(reader.join().unwrap().1 == framed(&bytes[LEN / 4 * 3..]));
    assert!(hosts.0.file_cache().bytes <= 1 << 20);
    assert_eq!(queue.len(), 3);
    let readers: Vec<_> = peers
        .into_iter()
        .enumerate()
        .map(|(index, peer)| read(peer, LEN - index * LEN / 4 + 13))
        .collect();
    while !queue.is_empty() {
        for event in wait(&mut queue) {
            if event.kind == EventKind::Completed {
                queue.take_file(event.token).unwrap().result.unwrap();
            }
        }
    }
    for (index, reader) in readers.into_iter().enumerate() {
        assert!(reader.join().unwrap().1 == framed(&bytes[index * LEN / 4..]));
    }
    assert!(hosts.0.file_cache().private > 0);
    drop(streams);
}

/// Goal: the contents at the start of the send are sent, however soon after the last change.
fn changed(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts(64 << 20));
    let mut pair = connections(&hosts, 1).remove(0);
    let file = fresh(&[0; 1000]);
    for round in 0..20 {
        file.write_all_at(&[round; 1000], 0).unwrap();
        send_framed(&mut queue, &mut pair, &file, &[round; 1000]);
    }
    pair.1.set_nonblocking(true).unwrap();
    assert_eq!(pair.1.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
}

fn changed_on_disk(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts(64 << 20));
    let mut pair = connections(&hosts, 1).remove(0);
    let (disk, bytes) = (disk("changed", choice, BLOCK + 1000), pattern(BLOCK + 1000));
    send_framed(&mut queue, &mut pair, &disk.file, &bytes);
    let reads = disk.seen().reads.len();
    send_framed(&mut queue, &mut pair, &disk.file, &bytes);
    assert_eq!(disk.seen().reads.len(), reads, "it is in memory");
    {
        let mut reported = disk.seen();
        reported.bytes.fill(7);
        reported.changed += 1;
    }
    send_framed(&mut queue, &mut pair, &disk.file, &[7; BLOCK + 1000]);
    assert!(disk.seen().reads.len() > reads);
}

/// Sends a file that is smaller than a window.
fn send_framed(
    queue: &mut EventQueue,
    (stream, peer): &mut (TcpStream, TcpStream),
    file: &Arc<File>,
    expected: &[u8],
) {
    let range = 0..expected.len() as u64;
    let token = queue.send_file(&*stream, parts(file, range), None, 9).unwrap();
    let reader = read(peer.try_clone().unwrap(), expected.len() + 13);
    until_over(queue, token).result.unwrap();
    assert!(reader.join().unwrap().1 == framed(expected));
}

fn cut(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts(64 << 20));
    let bytes = pattern(32 << 20);
    let file = fresh(&bytes);
    let (stream, mut peer) = connections(&hosts, 1).remove(0);
    let range = 0..bytes.len() as u64;
    let token = queue.send_file(&stream, parts(&file, range), None, 9).unwrap();
    let mut first = vec![0; 6 + (1 << 20)];
    until_received(&mut queue, &peer, 100);
    file.set_len(2 << 20).unwrap();
    let reader = std::thread::spawn(move || {
        peer.read_exact(&mut first).unwrap();
        let mut rest = Vec::new();
        peer.read_to_end(&mut rest).unwrap();
        [first, rest].concat()
    });
    let sent = until_over(&mut queue, token);
    assert!(is_short(&sent), "{sent:?}");
    stream.shutdown(Shutdown::Write).unwrap();
    let read = reader.join().unwrap();
    assert_eq!(read.len() as u64, sent.bytes);
    assert!(read[6..] == bytes[..read.len() - 6], "bytes read before the cut are unchanged");
}

fn read_all(mut peer: TcpStream) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut read = Vec::new();
        peer.read_to_end(&mut read).unwrap();
        read
    })
}

fn removed(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts(64 << 20));
    let bytes = pattern(8 << 20);
    // The file has been unlinked.
    let file = fresh(&bytes);
    let (stream, peer) = connections(&hosts, 1).remove(0);
    let parts = parts(&file, 0..bytes.len() as u64);
    drop(file);
    let token = queue.send_file(&stream, parts, None, 9).unwrap();
    let reader = read(peer, bytes.len() + 13);
    until_over(&mut queue, token).result.unwrap();
    assert!(reader.join().unwrap().1 == framed(&bytes));
}

/// Goal: bytes read before an error are sent, every send that wanted the block gets the error, and
/// later sends try again.
fn failing(choice: Choice) {
    let disk = disk("failing", choice, 3 * BLOCK);
    let (mut queue, hosts) = (queue(choice), hosts(64 << 20));
    for code in [libc::EIO, libc::ETIMEDOUT, libc::EINTR, libc::ECANCELED] {
        disk.seen().fails = Some((BLOCK as u64, code));
        let mut readers = Vec::new();
        for (stream, peer) in connections(&hosts, 3) {
            let parts = parts(&disk.file, 0..3 * BLOCK as u64);
            queue.send_file(&stream, parts, None, 9).unwrap();
            readers.push(read_all(peer));
        }
        let mut over = 0;
        while over < 3 {
            for event in wait(&mut queue) {
                if event.kind == EventKind::Completed {
                    let sent = queue.take_file(event.token).unwrap();
                    assert_eq!(sent.bytes, BLOCK as u64 + 6);
                    assert!(errno(&sent).is_some(), "{sent:?}");
                    over += 1;
                }
            }
        }
        for reader in readers {
            assert!(reader.join().unwrap()[6..] == pattern(BLOCK));
        }
    }
    disk.seen().fails = None;
    // Reads in progress still fail.
    let end = Instant::now() + PATIENCE;
    let arrived = loop {
        let (stream, peer) = connections(&hosts, 1).remove(0);
        let range = 0..3 * BLOCK as u64;
        let token = queue.send_file(&stream, parts(&disk.file, range), None, 9).unwrap();
        let reader = read_all(peer);
        let sent = until_over(&mut queue, token);
        drop(stream);
        let arrived = reader.join().unwrap();
        if sent.result.is_ok() || Instant::now() > end {
            break arrived;
        }
    };
    assert!(arrived == framed(&pattern(3 * BLOCK)));
}

/// Goal: while a disk does not answer at all, other files are sent completely, including cold ones.
fn slow(choice: Choice) {
    const LEN: usize = 16 << 20;
    let disk = disk("slow", choice, 64 * BLOCK);
    let (mut queue, hosts) = (queue(choice), hosts(64 << 20));
    disk.seen().is_held = true;
    let mut pairs = connections(&hosts, 6);
    let mut slow = Vec::new();
    for (index, (stream, _)) in pairs.iter().enumerate().take(5) {
        let range = (index * 8 * BLOCK) as u64..((index + 1) * 8 * BLOCK) as u64;
        slow.push(queue.send_file(stream, parts(&disk.file, range), None, 9).unwrap());
    }
    until_held(&mut queue, &disk, 4);
    let bytes = pattern(LEN);
    let file = fresh(&bytes);
    let (stream, peer) = pairs.pop().unwrap();
    for _ in 0..2 {
        let range = 0..LEN as u64;
        let token = queue.send_file(&stream, parts(&file, range), None, 9).unwrap();
        let reader = read(peer.try_clone().unwrap(), LEN + 13);
        until_over(&mut queue, token).result.unwrap();
        assert!(reader.join().unwrap().1 == framed(&bytes));
    }
    assert_eq!(queue.len(), 5);
    disk.let_go();
    let readers: Vec<_> = pairs.into_iter().map(|(_, peer)| read(peer, 8 * BLOCK + 13)).collect();
    let mut over = 0;
    while over < 5 {
        for event in wait(&mut queue) {
            if event.kind == EventKind::Completed {
                assert!(slow.contains(&event.token));
                queue.take_file(event.token).unwrap().result.unwrap();
                over += 1;
            }
        }
    }
    for (index, reader) in readers.into_iter().enumerate() {
        let range = index * 8 * BLOCK..(index + 1) * 8 * BLOCK;
        assert!(reader.join().unwrap().1 == framed(&pattern(64 * BLOCK)[range]));
    }
}

/// Goal: the queue does not block for a file's size and modification time; the contents at the time
/// of the disk's answer are sent, and each send asks again. Method: the file grows before the disk
/// answers, and later changes once more.
fn looked(choice: Choice) {
    const LEN: usize = 4 * BLOCK;
    let disk = disk("looked", choice, BLOCK);
    let (mut queue, hosts) = (queue(choice), hosts(64 << 20));
    let mut pairs = connections(&hosts, 3);
    for seconds in [2, 3] {
        disk.seen().holds_looks = true;
        let (stream, peer) = pairs.pop().unwrap();
        let began = Instant::now();
        let slow = queue.send_file(&stream, parts(&disk.file, 0..LEN as u64), None, 9).unwrap();
        until_held(&mut queue, &disk, 1);
        let (bytes, (other, its_peer)) = (pattern(LEN), pairs.first().unwrap());
        let token = queue.send_file(other, parts(&fresh(&bytes), 0..LEN as u64), None, 9).unwrap();
        let reader = read(its_peer.try_clone().unwrap(), LEN + 13);
        until_over(&mut queue, token).result.unwrap();
        assert!(reader.join().unwrap().1 == framed(&bytes) && began.elapsed() < PATIENCE);
        let grown: Vec<u8> = pattern(LEN).iter().map(|byte| byte ^ seconds as u8).collect();
        let mut reported = disk.seen();
        (reported.size, reported.bytes, reported.changed) = (LEN as u64, grown.clone(), seconds);
        reported.holds_looks = false;
        drop(reported);
        let reader = read(peer, LEN + 13);
        until_over(&mut queue, slow).result.unwrap();
        assert!(reader.join().unwrap().1 == framed(&grown));
    }
}

/// Goal: a failed status request is reported as the send's error; a slow one is ended at once by
/// cancel and deadline, any number of times, and the disk serves others afterwards.
fn unlooked(choice: Choice) {
    const LEN: u64 = 4 * BLOCK as u64;
    let disk = disk("unlooked", choice, 4 * BLOCK);
    let (mut queue, hosts) = (queue(choice), hosts(64 << 20));
    let (stream, peer) = connections(&hosts, 1).remove(0);
    disk.seen().fails = Some((u64::MAX, libc::EIO));
    let token = queue.send_file(&stream, parts(&disk.file, 0..LEN), None, 9).unwrap();
    let sent = until_over(&mut queue, token);
    assert_eq!(errno(&sent), Some(Errno::IO));
    assert!(sent.bytes <= 6 && sent.parts.header == b"header", "{sent:?}");
    disk.seen().fails = None;
    disk.seen().holds_looks = true;
    for round in 0..20 {
        send_in_vain(&mut queue, &stream, parts(&disk.file, 0..LEN), round % 2 == 0);
    }
    disk.seen().holds_looks = false;
    drop(stream);
    read_all(peer).join().unwrap();
    let (stream, peer) = connections(&hosts, 1).remove(0);
    let token = queue.send_file(&stream, parts(&disk.file, 0..LEN), None, 9).unwrap();
    let reader = read(peer, 4 * BLOCK + 13);
    until_over(&mut queue, token).result.unwrap();
    assert!(reader.join().unwrap().1 == framed(&pattern(4 * BLOCK)));
}

/// Starts a send whose disk does not answer, and ends it by its deadline or by a cancel.
fn send_in_vain(queue: &mut EventQueue, stream: &TcpStream, parts: SendFile, by_deadline: bool) {
    let soon = by_deadline.then(|| Instant::now() + Duration::from_millis(1));
    let token = queue.send_file(stream, parts, soon, 9).unwrap();
    let is_over = now(queue).iter().any(|event| event.kind == EventKind::Completed);
    if !by_deadline {
        queue.cancel(token).unwrap();
        queue.cancel(token).unwrap();
    }
    let sent = match is_over {
        true => queue.take_file(token).unwrap(),
        false => until_over(queue, token),
    };
    let expected = if by_deadline { Errno::TIMEDOUT } else { Errno::CANCELED };
    assert_eq!(errno(&sent), Some(expected));
    assert!(sent.bytes <= 6 && sent.parts.header == b"header", "{sent:?}");
    assert_eq!(queue.cancel(token).unwrap_err().raw_os_error(), Some(libc::ESTALE));
}

/// Goal: cancel and deadline end a send at once even if its disk does not answer, and repeating
/// that leaves little behind.
fn stopped(choice: Choice) {
    let disk = disk("stopped", choice, 16 * BLOCK);
    let (mut queue, hosts) = (queue(choice), hosts(2 << 20));
    disk.seen().is_held = true;
    let (stream, peer) = connections(&hosts, 1).remove(0);
    for round in 0..60 {
        let parts = parts(&disk.file, 0..16 * BLOCK as u64);
        send_in_vain(&mut queue, &stream, parts, round % 2 == 0);
    }
    assert!(hosts.0.file_cache().bytes <= 2 << 20);
    disk.let_go();
    // Accepted parts of the headers have arrived.
    drop(stream);
    read_all(peer).join().unwrap();
    let (stream, peer) = connections(&hosts, 1).remove(0);
    let range = 0..16 * BLOCK as u64;
    let token = queue.send_file(&stream, parts(&disk.file, range), None, 9).unwrap();
    let reader = read(peer, 16 * BLOCK + 13);
    until_over(&mut queue, token).result.unwrap();
    assert!(reader.join().unwrap().1 == framed(&pattern(16 * BLOCK)));
    // In the middle, with a peer that does not read.
    let (stream, peer) = connections(&hosts, 1).remove(0);
    let token = queue.send_file(&stream, parts(&disk.file, 0..16 * BLOCK as u64), None, 9).unwrap();
    until_received(&mut queue, &peer, 100);
    queue.cancel(token).unwrap();
    let sent = until_over(&mut queue, token);
    if sent.result.is_err() {
        assert_eq!(errno(&sent), Some(Errno::CANCELED));
    }
    drop(stream);
    let read = read_all(peer).join().unwrap();
    assert_eq!(read.len() as u64, sent.bytes);
    assert!(framed(&pattern(16 * BLOCK)).starts_with(&read));
}

/// Goal: a queue that is dropped while it reads does not keep other queues waiting.
fn given_up(choice: Choice) {
    let disk = disk("given-up", choice, 2 * BLOCK);
    let (mut first, mut second, hosts) = (queue(choice), queue(choice), hosts(64 << 20));
    disk.seen().is_held = true;
    let mut pairs = connections(&hosts, 2);
    let range = 0..2 * BLOCK as u64;
    first.send_file(&pairs[0].0, parts(&disk.file, range.clone()), None, 9).unwrap();
    until_held(&mut first, &disk, 1);
    let token = second.send_file(&pairs[1].0, parts(&disk.file, range), None, 9).unwrap();
    let before = Instant::now();
    while hosts.0.file_cache().hits < 2 && before.elapsed() < PATIENCE {
        now(&mut second);
    }
    assert_eq!(hosts.0.file_cache().hits, 2);
    // The drop may wait for the disk for a while.
    drop(first);
    let reader = read(pairs.pop().unwrap().1, 2 * BLOCK + 13);
    let before = Instant::now();
    while hosts.0.file_cache().misses < 4 && before.elapsed() < PATIENCE {
        now(&mut second);
    }
    disk.let_go();
    until_over(&mut second, token).result.unwrap();
    assert!(reader.join().unwrap().1 == framed(&pattern(2 * BLOCK)));
}

fn reset(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts(4 << 20));
    let (file, _) = settled(1);
    for mode in [SendMode::Lend, SendMode::Copy] {
        let (stream, peer) = connections(&hosts, 1).remove(0);
        stream.set_send_mode(mode);
        let range = 0..file.metadata().unwrap().len();
        let token = queue.send_file(&stream, parts(&file, range.clone()), None, 9).unwrap();
        until_received(&mut queue, &peer, 100);
        // With unread bytes.
        drop(peer);
        let sent = until_over(&mut queue, token);
        assert!(matches!(errno(&sent), Some(Errno::CONNRESET | Errno::PIPE)), "{sent:?}");
        assert!(sent.bytes < range.end);
        assert_eq!((&*sent.parts.header, &*sent.parts.trailer), (&b"header"[..], &b"trailer"[..]));
        let token = queue.send_file(&stream, parts(&file, range), None, 9).unwrap();
        let sent = until_over(&mut queue, token);
        assert_eq!((sent.bytes, errno(&sent)), (0, Some(Errno::PIPE)));
    }
    // The blocks in memory are unused: the next send evicts them.
    let (stream, peer) = connections(&hosts, 1).remove(0);
    let bytes = pattern(4 << 20);
    let range = 0..bytes.len() as u64;
    let token = queue.send_file(&stream, parts(&fresh(&bytes), range), None, 9).unwrap();
    let reader = read(peer, bytes.len() + 13);
    until_over(&mut queue, token).result.unwrap();
    assert!(reader.join().unwrap().1 == framed(&bytes));
    assert_eq!(hosts.0.file_cache().private, 0);
}

fn copied(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts(64 << 20));
    let (file, bytes) = settled(2 * BLOCK);
    let (stream, peer) = connections(&hosts, 1).remove(0);
    stream.set_send_mode(SendMode::Copy);
    let range = 0..bytes.len() as u64;
    let token = queue.send_file(&stream, parts(&file, range), None, 9).unwrap();
    let reader = read(peer, bytes.len() + 13);
    until_over(&mut queue, token).result.unwrap();
    assert!(reader.join().unwrap().1 == framed(&bytes));
    let count = bytes.len() as u64 + 13;
    assert_eq!(hosts.0.ledger().copied_at(Site::SocketSend), count);
}

/// Goal: a small file is read directly into the frame that is sent, whether or not it was just
/// written, and uses no cache memory. Bad input: a file that is shorter than its range.
fn little(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts(64 << 20));
    let (stream, peer) = connections(&hosts, 1).remove(0);
    let bytes = pattern(5000);
    let file = fresh(&bytes);
    let mut send = |range: Range<u64>| {
        let token = queue.send_file(&stream, parts(&file, range), None, 9).unwrap();
        until_over(&mut queue, token)
    };
    let mut peer = peer;
    for range in [0..5000, 100..5000, 700..700, 4999..5000] {
        let sent = send(range.clone());
        sent.result.unwrap();
        assert_eq!((&*sent.parts.header, &*sent.parts.trailer), (&b"header"[..], &b"trailer"[..]));
        assert_eq!(sent.bytes, range.end - range.start + 13);
        let reader = read(peer, sent.bytes as usize);
        let (back, read) = reader.join().unwrap();
        assert!(read == framed(&bytes[range.start as usize..range.end as usize]));
        peer = back;
    }
    let ledger = hosts.0.ledger();
    assert_eq!(ledger.copied_at(Site::File), 5000 + 4900 + 1);
    assert_eq!(ledger.copied_at(Site::SocketSend), 4 * 13);
    assert_eq!((hosts.0.file_cache().misses, hosts.0.file_cache().private), (0, 0));
    file.write_all_at(b"changed", 0).unwrap();
    let sent = send(0..7);
    assert_eq!(sent.bytes, 20);
    let (peer, bytes) = read(peer, 20).join().unwrap();
    assert_eq!(bytes, framed(b"changed"), "written bytes are sent at once");
    let sent = send(4000..6000);
    let failed = sent.result.unwrap_err();
    assert_eq!((sent.bytes, failed.kind()), (1006, std::io::ErrorKind::UnexpectedEof));
    let (_, bytes) = read(peer, 1006).join().unwrap();
    assert!(bytes == [b"header", &pattern(5000)[4000..]].concat());
}

/// Bad input: invalid ranges, files that are not regular, an unreadable file, a full queue.
fn refused(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts(64 << 20));
    let (stream, peer) = connections(&hosts, 1).remove(0);
    let file = fresh(b"0123456789");
    let folder = Arc::new(File::open(std::env::temp_dir()).unwrap());
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    let pipe = Arc::new(File::from(reader));
    let zero = Arc::new(File::open("/dev/zero").unwrap());
    #[expect(clippy::reversed_empty_ranges, reason = "that is refused")]
    let ranges = [5..4, 0..u64::MAX, 1 << 63..1 << 63];
    let files = [(folder, 0..1), (pipe, 0..1), (zero, 0..1)];
    for (file, range) in ranges.map(|range| (file.clone(), range)).into_iter().chain(files) {
        let refused = queue.send_file(&stream, parts(&file, range.clone()), None, 9).unwrap_err();
        assert_eq!(refused.error.raw_os_error(), Some(libc::EINVAL), "{range:?}");
        assert_eq!(
            (refused.operation.header, refused.operation.range),
            (b"header".to_vec(), range)
        );
    }
    assert!(queue.is_empty());
    // Detected when it is read.
    let name = format!("towpath-send-file-wo-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let mut options = OpenOptions::new();
    let mut writable = options.write(true).create(true).truncate(true).open(&path).unwrap();
    fs::remove_file(path).unwrap();
    writable.write_all(b"0123456789").unwrap();
    let token = queue.send_file(&stream, parts(&Arc::new(writable), 0..10), None, 9).unwrap();
    let reader = read(peer, 6);
    let sent = until_over(&mut queue, token);
    assert_eq!((errno(&sent), sent.bytes), (Some(Errno::BADF), 6));
    let _peer = reader.join().unwrap();
    let small = towpath::events::Config { registrations: 1, ..super::config(choice) };
    let mut queue = EventQueue::with(&small).unwrap();
    let token = queue.send_file(&stream, parts(&file, 0..10), None, 9).unwrap();
    let refused = queue.send_file(&stream, parts(&file, 0..10), None, 9).unwrap_err();
    assert_eq!(refused.error.raw_os_error(), Some(libc::ENOSPC));
    assert_eq!((refused.operation.range, refused.operation.trailer), (0..10, b"trailer".to_vec()));
    // The send's own reads need no registrations.
    let sent = until_over(&mut queue, token);
    assert!(sent.result.is_ok() && sent.bytes == 23);
}
