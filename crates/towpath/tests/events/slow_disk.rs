//! Operations on files of a disk that is slow, fails or disappears: plain ones, and those between
//! files and kernel sockets. Nothing else in the queue waits for it.

use super::disk::Disk;
use super::send_file::disk;
use super::{Case, errno, now, one, queue, wait};
use crate::taken::Taken;
use rustix::io::Errno;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath::events::{
    Action, Choice, Event, EventKind, EventQueue, Operation, SendFile, Source, Token,
};

/// Cases that need a [`Disk`].
pub(super) const DISK_CASES: &[Case] = &[
    ("a_slow_disk_holds_up_what_is_done_with_it_alone", held),
    ("what_waits_for_a_slow_disk_is_reported_once_when_it_is_stopped", stopped),
    ("a_disk_that_fails_or_is_full_says_so", failing),
    ("a_disk_that_goes_away_ends_what_waits_for_it", gone),
];

const LEN: usize = 256 << 10;
/// The operations on the disk.
const NAMES: [&str; 5] = ["read", "write", "sync", "send_file", "receive_file"];

/// One operation of each kind on one file, the ends of the sockets of the last two, and the tokens.
struct All {
    tokens: HashMap<Token, &'static str>,
    sink: UnixStream,
    _source: UnixStream,
}

fn begin(queue: &mut EventQueue, disk: &Disk, deadline: Option<Instant>) -> All {
    let file = || disk.file.clone();
    let mut tokens = HashMap::new();
    let plain = [Action::Read(0), Action::Write(4096), Action::Sync];
    for (action, name) in plain.into_iter().zip(NAMES) {
        let len = if action == Action::Sync { 0 } else { 4096 };
        let operation = Operation { action, file: file(), buffer: vec![7; len] };
        tokens.insert(queue.submit(operation, deadline, 9).unwrap(), name);
    }
    let ((stream, sink), (socket, mut source)) =
        (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
    let range = 0..LEN as u64;
    let parts = SendFile { header: Vec::new(), file: file(), range, trailer: Vec::new() };
    tokens.insert(queue.send_file(stream, parts, deadline, 9).unwrap(), NAMES[3]);
    source.write_all(&[7; 4096]).unwrap();
    let token = queue.receive_file(socket, file(), 8192..12_288, deadline, 9).unwrap();
    tokens.insert(token, NAMES[4]);
    All { tokens, sink, _source: source }
}

/// Takes the result of an operation: bytes, or its error.
fn end(queue: &mut EventQueue, token: Token, name: &str) -> Result<u64, Errno> {
    let result = match name {
        "send_file" => {
            let sent = queue.take_file(token).unwrap();
            sent.result.map(|_| sent.bytes)
        }
        "receive_file" => {
            let moved = queue.take_moved(token).unwrap();
            moved.result.map(|_| moved.bytes)
        }
        _ => queue.take_done(token).unwrap().result.map(|count| count as u64),
    };
    assert_eq!(errno(queue.cancel(token)), Errno::STALE, "{name}");
    result.map_err(|error| errno::<()>(Err(error)))
}

/// Waits until each operation has completed once. Returns the results.
fn finish(queue: &mut EventQueue, all: &mut All) -> HashMap<&'static str, Result<u64, Errno>> {
    let mut ends = HashMap::new();
    while !all.tokens.is_empty() {
        for Event { token, kind, .. } in wait(queue) {
            assert_eq!(kind, EventKind::Completed);
            let name = all.tokens.remove(&token).expect("each is reported once");
            ends.insert(name, end(queue, token, name));
        }
    }
    assert_eq!(now(queue), []);
    ends
}

/// Reads what was sent, on another thread.
fn drain(mut sink: UnixStream) -> std::thread::JoinHandle<usize> {
    std::thread::spawn(move || {
        let (mut sum, mut bytes) = (0, vec![0; LEN]);
        while let Ok(count @ 1..) = sink.read(&mut bytes) {
            sum += count;
        }
        sum
    })
}

/// Goal: while the disk answers nothing, no operation on it completes and everything else in the
/// queue continues: timers, notifications, bytes between sockets. Then all operations complete.
fn held(choice: Choice) {
    let (mut queue, disk) = (queue(choice), disk("held", choice, LEN));
    (disk.seen().is_held, disk.seen().holds_looks) = (true, true);
    let mut all = begin(&mut queue, &disk, None);
    assert_eq!(now(&mut queue), []);
    disk.until_held(3);
    let (stream, mut peer) = UnixStream::pair().unwrap();
    let (user, stream) = (queue.add(Source::user(), 0).unwrap(), Arc::new(stream));
    for round in 0..20 {
        queue.notifier(user).unwrap().notify();
        assert_eq!(one(&mut queue).token, user);
        let token = queue.receive(stream.try_clone().unwrap(), vec![0; 9], None, 9).unwrap();
        peer.write_all(&[round; 9]).unwrap();
        assert_eq!(one(&mut queue).token, token);
        assert_eq!(queue.take_done(token).unwrap().buffer, [round; 9]);
        let timer = queue.add(Source::at(Instant::now() + Duration::from_millis(1)), 0).unwrap();
        assert_eq!(one(&mut queue).token, timer);
    }
    assert!(disk.held() > 0);
    let sink = drain(all.sink.try_clone().unwrap());
    disk.let_go();
    let ends = finish(&mut queue, &mut all);
    let wanted = [4096, 4096, 0, LEN as u64, 4096];
    for (name, count) in NAMES.into_iter().zip(wanted) {
        assert_eq!(ends[name], Ok(count), "{name}");
    }
    drop((all, queue));
    assert_eq!(sink.join().unwrap(), LEN);
}

/// Goal: a cancel or a deadline while the disk answers nothing is reported once per operation, at
/// the latest when the disk answers; buffers come back.
fn stopped(choice: Choice) {
    for is_late in [false, true] {
        let (mut queue, disk) = (queue(choice), disk("stopped", choice, LEN));
        disk.seen().is_held = true;
        let deadline = is_late.then(|| Instant::now() + Duration::from_millis(200));
        let mut all = begin(&mut queue, &disk, deadline);
        assert_eq!(now(&mut queue), []);
        disk.until_held(1);
        if !is_late {
            all.tokens.keys().for_each(|token| queue.cancel(*token).unwrap());
        }
        let (until, mut reported) = (Instant::now() + Duration::from_millis(300), Vec::new());
        let many = all.tokens.len()..=all.tokens.len();
        queue.wait_many(&mut reported, many, Some(until)).unwrap();
        let mut ends = HashMap::new();
        for Event { token, .. } in reported {
            let name = all.tokens.remove(&token).expect("each is reported once");
            ends.insert(name, end(&mut queue, token, name));
        }
        disk.let_go();
        let why = if is_late { Errno::TIMEDOUT } else { Errno::CANCELED };
        ends.extend(finish(&mut queue, &mut all));
        assert_eq!(ends.len(), NAMES.len());
        for (name, end) in ends {
            // Or it completed before.
            assert!(end == Err(why) || end.is_ok(), "{name}: {end:?}");
        }
    }
}

/// Goal: each operation reports each error of the disk unchanged.
fn failing(choice: Choice) {
    for why in [Errno::IO, Errno::NOSPC] {
        let (mut queue, disk) = (queue(choice), disk("failing", choice, LEN));
        disk.seen().fails = Some((0, why.raw_os_error()));
        let mut all = begin(&mut queue, &disk, None);
        let ends = finish(&mut queue, &mut all);
        NAMES.iter().for_each(|name| assert_eq!(ends[name], Err(why), "{name}"));
    }
}

/// Goal: if the file system ends under operations, each of them reports that once.
fn gone(choice: Choice) {
    let (mut queue, disk) = (queue(choice), disk("gone", choice, LEN));
    disk.seen().is_held = true;
    let mut all = begin(&mut queue, &disk, None);
    assert_eq!(now(&mut queue), []);
    disk.until_held(3);
    disk.seen().is_gone = true;
    for (name, end) in finish(&mut queue, &mut all) {
        let is_gone = [Errno::NOTCONN, Errno::CONNABORTED].map(Err).contains(&end);
        assert!(is_gone, "{name}: {end:?}");
    }
}
