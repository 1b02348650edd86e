//! Threads that carry out steps on files. They start when they are needed.
//!
//! The threads and the owner share two lists behind a lock. A thread carries out the steps of a job
//! that are on files, and then rings the owner's doorbell. A job that no thread has begun can be
//! withdrawn. Dropping the owner does not wait: each thread ends after its job and frees its
//! buffers.

use super::call;
use super::job::Running;
use crate::doorbell::EventDoorbell;
use crate::thread;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use towpath_packet::ring::Doorbell;

/// Most threads of one back end: twice the number of operations that a disk typically works on at a
/// time, so that one unresponsive disk leaves some threads free.
pub const THREADS_MAX: usize = 8;

/// The owner's side.
#[derive(Debug)]
pub(super) struct Files {
    shared: Arc<Shared>,
    /// Jobs that are with the threads.
    jobs: usize,
    threads: usize,
    /// The threads belong to another process.
    disowned: bool,
}

#[derive(Debug)]
struct Shared {
    lists: Mutex<Lists>,
    /// Notified when a job waits, and at the end.
    work: Condvar,
    doorbell: EventDoorbell,
}

type Numbered = (u32, Box<Running>);

#[derive(Debug, Default)]
struct Lists {
    waiting: VecDeque<Numbered>,
    done: Vec<Numbered>,
    /// Threads that wait for a job.
    idle: usize,
    ended: bool,
}

impl Files {
    pub(super) fn new(doorbell: EventDoorbell) -> Self {
        let shared = Shared { lists: Mutex::default(), work: Condvar::new(), doorbell };
        Self { shared: Arc::new(shared), jobs: 0, threads: 0, disowned: false }
    }

    /// Hands a job, whose next step is on a file, to the threads.
    ///
    /// # Errors
    /// There is no thread, and none can be started.
    pub(super) fn submit(
        &mut self,
        slot: u32,
        running: Box<Running>,
    ) -> Result<(), (Errno, Box<Running>)> {
        let mut lists = self.shared.lock();
        if lists.idle <= lists.waiting.len() && self.threads < THREADS_MAX {
            let shared = self.shared.clone();
            match thread::spawn(move || work(&shared)) {
                Ok(_) => self.threads += 1,
                // The existing threads will do it.
                Err(_) if self.threads > 0 => {}
                Err(error) => return Err((call::errno(&error), running)),
            }
        }
        self.jobs += 1;
        lists.waiting.push_back((slot, running));
        self.shared.work.notify_one();
        Ok(())
    }

    /// Withdraws a job that no thread has begun.
    pub(super) fn cancel(&mut self, slot: u32) -> Option<Box<Running>> {
        let mut lists = self.shared.lock();
        let at = lists.waiting.iter().position(|(waiting, _)| *waiting == slot)?;
        let (_, running) = lists.waiting.remove(at)?;
        self.jobs -= 1;
        Some(running)
    }

    /// Leaves the threads alone, because they belong to another process.
    pub(super) fn disown(&mut self) {
        self.disowned = true;
    }

    /// Takes the jobs that the threads are done with.
    pub(super) fn take(&mut self, into: &mut Vec<Numbered>) {
        if self.jobs == 0 {
            return;
        }
        let before = into.len();
        into.append(&mut self.shared.lock().done);
        self.jobs -= into.len() - before;
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        if self.disowned {
            // In this process, the lock may be held by a thread that does not exist here.
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

/// The main function of a thread.
fn work(shared: &Shared) {
    let mut lists = shared.lock();
    while !lists.ended {
        let Some((slot, mut running)) = lists.waiting.pop_front() else {
            lists.idle += 1;
            lists = shared.work.wait(lists).unwrap_or_else(PoisonError::into_inner);
            lists.idle -= 1;
            continue;
        };
        drop(lists);
        run(&mut running);
        lists = shared.lock();
        lists.done.push((slot, running));
        shared.doorbell.ring();
    }
}

/// Carries out the next steps of a job that are on files.
pub(super) fn run(running: &mut Running) {
    loop {
        let step = running.next();
        if !step.is_on_file() {
            return;
        }
        match call::file(step) {
            Err(Errno::INTR) => running.interrupted(Errno::INTR),
            result => running.done(result),
        }
    }
}
