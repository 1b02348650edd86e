//! Operations on files by a few threads, which are started when they are needed.
//!
//! Threads and owner share two lists behind a lock. A thread that has finished an operation rings
//! the owner's doorbell. An operation that no thread has begun can be cancelled. Dropping the owner
//! waits for nobody: a thread ends after its operation, and frees the buffer.

use super::{Action, News, Operation, Outcome, What};
use crate::doorbell::EventDoorbell;
use crate::thread;
use rustix::io::Errno;
use std::collections::{HashSet, VecDeque};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use towpath_packet::ring::Doorbell;

/// Threads of one back end: as many operations as a disk works on at a time, while few processors
/// are asked to do more than start them.
pub const THREADS_MAX: usize = 4;

/// The owner's side.
#[derive(Debug)]
pub(super) struct Files {
    shared: Arc<Shared>,
    /// Slots of operations that are not over.
    slots: HashSet<u32>,
    threads: usize,
    /// The threads are those of another process.
    disowned: bool,
}

#[derive(Debug)]
struct Shared {
    lists: Mutex<Lists>,
    /// There is something to do, or the end.
    work: Condvar,
    doorbell: EventDoorbell,
}

#[derive(Debug, Default)]
struct Lists {
    waiting: VecDeque<(u32, Operation)>,
    over: Vec<(u32, Outcome)>,
    /// Threads that wait for work.
    idle: usize,
    ended: bool,
}

impl Files {
    pub(super) fn new(doorbell: EventDoorbell) -> Self {
        let shared = Shared { lists: Mutex::default(), work: Condvar::new(), doorbell };
        let slots = HashSet::new();
        Self { shared: Arc::new(shared), slots, threads: 0, disowned: false }
    }

    pub(super) fn submit(
        &mut self,
        slot: u32,
        operation: Operation,
    ) -> Result<(), (Errno, Operation)> {
        if self.slots.contains(&slot) {
            return Err((Errno::EXIST, operation));
        }
        let mut lists = self.shared.lock();
        if lists.idle <= lists.waiting.len() && self.threads < THREADS_MAX {
            let shared = self.shared.clone();
            match thread::spawn(move || work(&shared)) {
                Ok(_) => self.threads += 1,
                // The others will do it.
                Err(_) if self.threads > 0 => {}
                Err(error) => {
                    let errno = Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
                    return Err((errno, operation));
                }
            }
        }
        self.slots.insert(slot);
        lists.waiting.push_back((slot, operation));
        self.shared.work.notify_one();
        Ok(())
    }

    pub(super) fn cancel(&mut self, slot: u32) {
        let mut lists = self.shared.lock();
        let at = lists.waiting.iter().position(|(waiting, _)| *waiting == slot);
        if let Some((_, operation)) = at.and_then(|at| lists.waiting.remove(at)) {
            let outcome = Outcome { result: Err(Errno::CANCELED), buffer: operation.buffer };
            lists.over.push((slot, outcome));
            self.shared.doorbell.ring();
        }
    }

    /// Leaves the threads alone: they are another process's.
    pub(super) fn disown(&mut self) {
        self.disowned = true;
    }

    /// Takes what is over.
    pub(super) fn take(&mut self, news: &mut Vec<News>) {
        if self.slots.is_empty() {
            return;
        }
        for (slot, outcome) in self.shared.lock().over.drain(..) {
            self.slots.remove(&slot);
            news.push((slot, What::Over(outcome)));
        }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        if self.disowned {
            // A thread that this process does not have may have held the lock.
            return;
        }
        let mut lists = self.shared.lock();
        lists.ended = true;
        lists.waiting.clear();
        self.shared.work.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a thread does.
fn work(shared: &Shared) {
    let mut lists = shared.lock();
    while !lists.ended {
        let Some((slot, mut operation)) = lists.waiting.pop_front() else {
            lists.idle += 1;
            lists = shared.work.wait(lists).unwrap_or_else(PoisonError::into_inner);
            lists.idle -= 1;
            continue;
        };
        drop(lists);
        let result = run(&mut operation);
        lists = shared.lock();
        lists.over.push((slot, Outcome { result, buffer: operation.buffer }));
        shared.doorbell.ring();
    }
}

/// Where to go on. What is beyond the largest offset the kernel refuses.
pub(super) fn at(offset: u64, done: usize) -> u64 {
    offset.saturating_add(done as u64)
}

/// Does an operation.
fn run(operation: &mut Operation) -> Result<usize, Errno> {
    let Operation { action, file, buffer } = operation;
    let mut done = 0;
    loop {
        let step = match *action {
            Action::Read(offset) => file.read_at(&mut buffer[done..], at(offset, done)),
            Action::Write(offset) => file.write_at(&buffer[done..], at(offset, done)),
            Action::Sync => file.sync_all().map(|()| 0),
            Action::SyncData => file.sync_data().map(|()| 0),
        };
        match step {
            Ok(0) => return Ok(done),
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) if done > 0 => return Ok(done),
            Err(error) => return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        }
        if done == buffer.len() {
            return Ok(done);
        }
    }
}
