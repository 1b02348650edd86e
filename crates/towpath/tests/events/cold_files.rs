//! Files that are neither in a host's cache nor in the page cache: read once, with direct I/O.

use super::send_file::{
    BLOCK, connections, framed, fresh, hosts, parts, pattern, read, settled, until_over,
};
use super::{Case, PATIENCE, queue};
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use towpath::events::{Choice, EventQueue};
use towpath::host::Host;
use towpath_io::direct;
use towpath_packet::Site;

pub(super) const CASES: &[Case] = &[
    ("a_cold_file_is_read_past_the_kernels_cache", once),
    ("what_is_read_again_is_left_to_the_kernel", again),
    ("a_cold_file_drives_out_no_hot_one", beside),
    ("a_cold_file_that_is_cut_short_ends_the_send", cut),
];

/// Of a cache's 16 MiB, 4 MiB are for cold blocks.
const CACHE: usize = 16 << 20;
const COLD_BLOCKS: usize = CACHE / 4 / BLOCK;
/// Blocks of the file.
const BLOCKS: usize = 3 * COLD_BLOCKS;

/// Returns a file of [`BLOCKS`] that is only on the disk. Returns `None` if this disk or this
/// kernel does not support it.
fn cold(settle: bool) -> Option<Arc<File>> {
    /// Written once, because it must be some seconds old.
    static SETTLED: OnceLock<Arc<File>> = OnceLock::new();
    let written = || {
        let file = fresh(&pattern(BLOCKS * BLOCK));
        file.sync_all().unwrap();
        file
    };
    let file = if settle { SETTLED.get_or_init(written).clone() } else { written() };
    let end = Instant::now() + PATIENCE;
    let modified = file.metadata().unwrap().modified().unwrap();
    while modified.elapsed().is_ok_and(|age| age < Duration::from_secs(3)) {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(10));
    }
    fadvise(&*file, 0, None, Advice::DontNeed).unwrap();
    let can = direct::reopen(&file).is_some() && is_cold(&file);
    if !can {
        println!("skipped: nothing is read past the kernel's cache here");
    }
    can.then_some(file)
}

fn is_cold(file: &File) -> bool {
    direct::is_cold(file, 0, (BLOCKS * BLOCK) as u64)
}

/// Sends the first blocks of a file and checks that they arrive.
fn send(queue: &mut EventQueue, hosts: &(Host, Host), file: &Arc<File>, blocks: usize) {
    let (stream, peer) = connections(hosts, 1).remove(0);
    let len = blocks * BLOCK;
    let token = queue.send_file(&stream, parts(file, 0..len as u64), None, 9).unwrap();
    let reader = read(peer, len + 13);
    until_over(queue, token).result.unwrap();
    assert!(reader.join().unwrap().1 == framed(&pattern(len)));
}

/// Goal: the disk reads each block into the memory that is lent, and nothing stays in the page
/// cache.
fn once(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts(CACHE));
    let Some(file) = cold(true) else { return };
    send(&mut queue, &hosts, &file, BLOCKS);
    let (cache, ledger) = (hosts.0.file_cache(), hosts.0.ledger());
    assert_eq!((cache.direct, cache.misses, cache.private), (BLOCKS as u64, BLOCKS as u64, 0));
    assert_eq!((ledger.copied_at(Site::File), ledger.copied()), (0, 13), "header and trailer");
    assert_eq!(cache.bytes, CACHE / 4, "the memory set aside");
    assert!(is_cold(&file));
}

/// Goal: a block that was evicted and is wanted again is left to the page cache. If the marks of
/// two blocks share a place, one of them is read directly twice, which happens in one of 60 runs.
fn again(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts(CACHE));
    let Some(file) = cold(true) else { return };
    for _ in 0..2 {
        send(&mut queue, &hosts, &file, BLOCKS);
    }
    let cache = hosts.0.file_cache();
    let once = BLOCKS as u64;
    assert!((once..=once + 3).contains(&cache.direct), "once, except shared marks: {cache:?}");
    assert!(cache.misses > cache.direct, "some were evicted: {cache:?}");
    assert!(!is_cold(&file));
    // Everything fits now, including the memory set aside.
    let before = cache.misses;
    send(&mut queue, &hosts, &file, BLOCKS);
    assert_eq!(hosts.0.file_cache().misses, before);
}

/// Goal: blocks in use by others stay, however much is read once.
fn beside(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts(CACHE));
    let Some(file) = cold(true) else { return };
    let (hot, bytes) = settled(8 * BLOCK);
    let send_hot = |hosts: &(Host, Host), queue: &mut EventQueue| {
        let (stream, peer) = connections(hosts, 1).remove(0);
        let len = bytes.len();
        let token = queue.send_file(&stream, parts(&hot, 0..len as u64), None, 9).unwrap();
        let reader = read(peer, len + 13);
        until_over(queue, token).result.unwrap();
        assert!(reader.join().unwrap().1 == framed(&bytes));
        hosts.0.file_cache().misses
    };
    let first = send_hot(&hosts, &mut queue);
    send(&mut queue, &hosts, &file, BLOCKS);
    assert_eq!(send_hot(&hosts, &mut queue), first + BLOCKS as u64);
    assert_eq!(hosts.0.file_cache().direct, BLOCKS as u64);
}

/// Goal: the file ends where it does when a block is read, also with direct I/O.
fn cut(choice: Choice) {
    const LEFT: usize = (BLOCKS - 1) * BLOCK + 12_345;
    let (mut queue, hosts) = (queue(choice), hosts(CACHE));
    let Some(file) = cold(false) else { return };
    let (stream, peer) = connections(&hosts, 1).remove(0);
    let range = 0..(BLOCKS * BLOCK) as u64;
    // The send looks up the file when it begins, long before the last block is read.
    let token = queue.send_file(&stream, parts(&file, range), None, 9).unwrap();
    file.set_len(LEFT as u64).unwrap();
    let reader = read(peer, LEFT + 6);
    let sent = until_over(&mut queue, token);
    assert_eq!(sent.bytes, (LEFT + 6) as u64, "{sent:?}");
    assert_eq!(sent.result.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
    assert!(reader.join().unwrap().1 == framed(&pattern(LEFT))[..LEFT + 6]);
}
