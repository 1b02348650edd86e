//! Operations on files, and changes of files.

use super::{Case, PATIENCE, now, one, queue, wait};
use crate::taken::{Done, Taken};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use towpath::events::{
    Action, Changes, Choice, Event, EventKind, EventQueue, Operation, Source, Token,
};

pub(super) const CASES: &[Case] = &[
    ("a_file_is_written_and_read", round_trip),
    ("a_file_that_ends_is_read_as_far_as_it_goes", short),
    ("what_cannot_be_done_says_why", refused),
    ("a_buffer_may_have_four_gibibytes", giant),
    ("an_operation_is_reported_once_however_it_is_cancelled", cancelled),
    ("a_deadline_ends_an_operation_or_comes_too_late", late),
    ("a_queue_may_go_before_its_operations", dropped),
    ("changes_of_files_are_reported", changes),
];

/// Goal: an operation larger than a single system call allows is done in several. Method: writes
/// memory that is never touched to /dev/null.
fn giant(choice: Choice) {
    let mut queue = queue(choice);
    let file = Arc::new(File::options().write(true).open("/dev/null").unwrap());
    let buffer = vec![0; 4 << 30];
    let operation = Operation { action: Action::Write(0), file, buffer };
    let token = queue.submit(operation, None, 9).unwrap();
    assert_eq!(one(&mut queue).kind, EventKind::Completed);
    let completed = queue.take_done(token).unwrap();
    assert_eq!((completed.result.unwrap(), completed.buffer.len()), (4 << 30, 4 << 30));
}

/// A directory, removed when this value is dropped.
pub(super) struct Directory(PathBuf);

impl Directory {
    pub(super) fn new(name: &str, choice: Choice) -> Self {
        let name = format!("towpath-events-{}-{name}-{choice:?}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(super) fn file(&self) -> Arc<File> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true);
        Arc::new(file.open(self.path("file")).unwrap())
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(super) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251) as u8).collect()
}

fn begin(queue: &mut EventQueue, file: &Arc<File>, action: Action, buffer: Vec<u8>) -> Token {
    queue.submit(Operation { action, file: file.clone(), buffer }, None, 0).unwrap()
}

/// Returns the result of the only operation in progress.
fn finish(queue: &mut EventQueue, token: Token) -> Done {
    let event = one(queue);
    assert_eq!((event.token, event.kind), (token, EventKind::Completed));
    let completed = queue.take_done(token).unwrap();
    assert!(queue.take(token).is_none() && queue.is_empty());
    completed
}

fn round_trip(choice: Choice) {
    let (mut queue, directory) = (queue(choice), Directory::new("round", choice));
    let (file, bytes) = (directory.file(), pattern(3 << 20));
    let token = begin(&mut queue, &file, Action::Write(1000), bytes.clone());
    assert!(queue.remove(token).is_err(), "the kernel has its buffer");
    let written = finish(&mut queue, token);
    assert_eq!((written.result.unwrap(), written.buffer.len()), (bytes.len(), bytes.len()));
    for action in [Action::Sync, Action::SyncData] {
        let token = begin(&mut queue, &file, action, Vec::new());
        assert_eq!(finish(&mut queue, token).result.unwrap(), 0);
    }
    // Several at a time, in any order.
    let parts: Vec<_> = bytes.chunks(300_000).enumerate().collect();
    let mut tokens: Vec<_> = parts
        .iter()
        .map(|(index, part)| {
            let offset = 1000 + *index as u64 * 300_000;
            begin(&mut queue, &file, Action::Read(offset), vec![0; part.len()])
        })
        .collect();
    let all = tokens.clone();
    while !tokens.is_empty() {
        for event in wait(&mut queue) {
            assert_eq!(event.kind, EventKind::Completed);
            let index = all.iter().position(|token| *token == event.token).unwrap();
            tokens.retain(|token| *token != event.token);
            let read = queue.take_done(event.token).unwrap();
            assert_eq!(read.result.unwrap(), parts[index].1.len());
            assert!(read.buffer == parts[index].1, "part {index}");
        }
    }
}

fn short(choice: Choice) {
    let (mut queue, directory) = (queue(choice), Directory::new("short", choice));
    let file = directory.file();
    (&*file).write_all(b"0123456789").unwrap();
    for (offset, count) in [(4, 6), (10, 0), (1 << 40, 0)] {
        let token = begin(&mut queue, &file, Action::Read(offset), vec![b'x'; 8]);
        let read = finish(&mut queue, token);
        assert_eq!(read.result.unwrap(), count);
        assert_eq!(read.buffer.len(), 8);
        assert!(read.buffer[count..].iter().all(|&byte| byte == b'x'));
    }
    // An empty buffer.
    for action in [Action::Read(0), Action::Write(0)] {
        let token = begin(&mut queue, &file, action, Vec::new());
        assert_eq!(finish(&mut queue, token).result.unwrap(), 0);
    }
}

/// Bad input: an invalid offset, files of the wrong kind and in the wrong mode, a full device.
fn refused(choice: Choice) {
    let (mut queue, directory) = (queue(choice), Directory::new("refused", choice));
    let mut errno = |file: &Arc<File>, action| {
        let token = begin(&mut queue, file, action, vec![1; 4096]);
        let failed = finish(&mut queue, token);
        assert_eq!(failed.buffer.len(), 4096);
        Errno::from_io_error(&failed.result.unwrap_err())
    };
    let file = directory.file();
    let readable = Arc::new(File::open(directory.0.join("file")).unwrap());
    assert_eq!(errno(&readable, Action::Write(0)), Some(Errno::BADF));
    let folder = Arc::new(File::open(&directory.0).unwrap());
    assert_eq!(errno(&folder, Action::Read(0)), Some(Errno::ISDIR));
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    assert_eq!(errno(&Arc::new(full), Action::Write(0)), Some(Errno::NOSPC));
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    let pipe = Arc::new(File::from(reader));
    let cases = [(pipe, 0, Errno::SPIPE), (file.clone(), u64::MAX, Errno::INVAL)];
    for (file, offset, errno) in cases {
        let operation = Operation { action: Action::Read(offset), file, buffer: vec![5; 10] };
        let refused = queue.submit(operation, None, 0).unwrap_err();
        assert_eq!(Errno::from_io_error(&refused.error), Some(errno));
        assert_eq!(refused.operation.buffer, [5; 10]);
    }
    assert!(queue.is_empty());
}

/// Goal: an operation that is cancelled at any moment is reported once and hands its buffer back;
/// it was done completely or not at all.
fn cancelled(choice: Choice) {
    let (mut queue, directory) = (queue(choice), Directory::new("cancel", choice));
    let (file, bytes) = (directory.file(), pattern(200_000));
    (&*file).write_all(&bytes).unwrap();
    let mut tokens = Vec::new();
    for round in 0..200 {
        let token = begin(&mut queue, &file, Action::Read(0), vec![0; bytes.len()]);
        tokens.push(token);
        if round % 3 != 0 {
            queue.cancel(token).unwrap();
        }
        if round % 5 == 0 {
            queue.cancel(tokens[round / 2]).ok();
        }
    }
    let mut count = 0;
    while count < tokens.len() {
        for event in wait(&mut queue) {
            let read = queue.take_done(event.token).unwrap();
            assert_eq!(read.buffer.len(), bytes.len());
            match read.result {
                Ok(done) => assert!(done == bytes.len() && read.buffer == bytes),
                Err(error) => assert_eq!(Errno::from_io_error(&error), Some(Errno::CANCELED)),
            }
            count += 1;
        }
    }
    assert!(queue.is_empty());
    assert_eq!(now(&mut queue), []);
}

fn late(choice: Choice) {
    let (mut queue, directory) = (queue(choice), Directory::new("late", choice));
    let (file, bytes) = (directory.file(), pattern(100_000));
    (&*file).write_all(&bytes).unwrap();
    for round in 0..50 {
        let deadline = Instant::now() + std::time::Duration::from_micros(round * 10);
        let buffer = vec![0; bytes.len()];
        let operation = Operation { action: Action::Read(0), file: file.clone(), buffer };
        let token = queue.submit(operation, Some(deadline), 0).unwrap();
        match finish(&mut queue, token).result {
            Ok(count) => assert_eq!(count, bytes.len()),
            Err(error) => assert_eq!(Errno::from_io_error(&error), Some(Errno::TIMEDOUT)),
        }
    }
    assert_eq!(now(&mut queue), []);
}

fn dropped(choice: Choice) {
    let directory = Directory::new("dropped", choice);
    let file = directory.file();
    for _ in 0..20 {
        let mut queue = queue(choice);
        for _ in 0..5 {
            begin(&mut queue, &file, Action::Write(0), vec![9; 1 << 18]);
        }
    }
    let mut queue = queue(choice);
    let token = begin(&mut queue, &file, Action::Read(0), vec![0; 1 << 18]);
    assert!(finish(&mut queue, token).buffer.iter().all(|&byte| byte == 9 || byte == 0));
}

fn changes(choice: Choice) {
    let (mut queue, directory) = (queue(choice), Directory::new("changes", choice));
    let path = directory.0.join("file");
    let missing = queue.add(Source::file(&path), 0).unwrap_err();
    assert_eq!(missing.kind(), std::io::ErrorKind::NotFound);
    let folder = queue.add(Source::file(&directory.0), 0).unwrap();
    let mut file = File::create(&path).unwrap();
    assert!(changed(&mut queue, &[folder], |changes| changes.created));
    queue.remove(folder).unwrap();
    let tokens = [1, 2].map(|data| queue.add(Source::file(&path), data).unwrap());
    file.write_all(b"x").unwrap();
    assert!(changed(&mut queue, &tokens, |changes| changes.modified));
    queue.remove(tokens[0]).unwrap();
    drop(file);
    assert!(changed(&mut queue, &tokens[1..], |changes| changes.written));
    fs::rename(&path, directory.0.join("other")).unwrap();
    assert!(changed(&mut queue, &tokens[1..], |changes| changes.moved));
    fs::remove_file(directory.0.join("other")).unwrap();
    assert!(changed(&mut queue, &tokens[1..], |changes| changes.removed));
    queue.remove(tokens[1]).unwrap();
    assert_eq!(now(&mut queue), []);
}

/// Waits until the change is reported for all of these files.
fn changed(queue: &mut EventQueue, tokens: &[Token], is: impl Fn(Changes) -> bool) -> bool {
    let (end, mut events) = (Instant::now() + PATIENCE, Vec::new());
    while Instant::now() < end {
        queue.wait(&mut events, Some(end)).unwrap();
        let is_reported = |token: &Token| {
            events.iter().any(|event: &Event| match event.kind {
                EventKind::Changed(changes) => event.token == *token && is(changes),
                _ => false,
            })
        };
        if tokens.iter().all(is_reported) {
            return true;
        }
    }
    false
}
