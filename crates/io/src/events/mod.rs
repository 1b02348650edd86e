//! The kernel's side of an event queue: which files are ready, and operations on files.
//!
//! Two back ends with the same results behind one type: io_uring, where the kernel allows it, and
//! epoll with a few threads for files. The caller names files and operations by small numbers,
//! *slots*, and hears of a slot only what was asked for since it was last added: what was on its
//! way when a slot was removed is dropped here.
//!
//! Level-triggered news come at most once in a wait. One thread at a time calls. How it works:
//! `docs/theory/events.md`.

mod call;
mod epoll;
mod files;
mod job;
mod known;
mod mounts;
mod ring;
#[cfg(test)]
mod tests;

use crate::doorbell::EventDoorbell;
pub use crate::reactor::{Interest, Readiness, Trigger};
use epoll::Epoll;
pub use files::THREADS_MAX;
pub use job::{
    ACCEPTED_MAX, BLOCK_BYTES, BlockRead, COPIED_FILE_MAX, Call, Calls, Job, Look, Memory, Outcome,
    Parts, Socket, broken, read_now,
};
pub use known::Known;
pub use mounts::{Mounts, device, kind, status};
use ring::Ring;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// What to do with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Fill the buffer from this offset on, as far as the file goes.
    Read(u64),
    /// Write the buffer to this offset.
    Write(u64),
    /// Bring data and attributes to the disk.
    Sync,
    /// Bring data to the disk, and what is needed to find it.
    SyncData,
}

/// An operation on a file. The buffer is the kernel's until the operation is over.
#[derive(Debug)]
pub struct Operation {
    /// What to do.
    pub action: Action,
    /// With which file, which stays open meanwhile.
    pub file: Arc<File>,
    /// All of its bytes take part.
    pub buffer: Vec<u8>,
}

/// What is to be sent: a header, a range of a file, and a trailer.
#[derive(Debug)]
pub struct SendFile {
    /// What goes before.
    pub header: Vec<u8>,
    /// The file, which stays open meanwhile.
    pub file: Arc<File>,
    /// Where in it.
    pub range: Range<u64>,
    /// What comes behind.
    pub trailer: Vec<u8>,
}

/// News of a slot.
#[derive(Debug)]
pub enum What {
    /// A file is ready.
    Ready(Readiness),
    /// A connection was accepted.
    Accepted(OwnedFd),
    /// All of a buffer that is [lent](Job::Lend) was sent: so many bytes.
    Sent(u64),
    /// The job is over. The slot is free.
    Over(Outcome),
}

/// News and their slot.
pub type News = (u32, What);

/// Slots are smaller than this.
pub const SLOTS_MAX: u32 = 1 << 24;

/// Bytes that a job moves by calls before others have their turn.
const TURN_BYTES: usize = 8 * BLOCK_BYTES;

/// Tries to make a ring, and the time between them: half a second in all, twenty times what was
/// seen.
const RING_TRIES_MAX: u32 = 101;
const RING_TRY_INTERVAL: Duration = Duration::from_millis(5);

/// Which back end to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Choice {
    /// io_uring where the kernel allows it, else epoll.
    #[default]
    Best,
    /// io_uring, or an error.
    IoUring,
    /// epoll.
    Epoll,
}

/// A back end.
#[derive(Debug)]
pub struct BackEnd {
    kind: Kind,
    /// Files that have offsets, and whether they may wait although they are told not to.
    seekable: Known<bool>,
    mounts: Mounts,
}

#[derive(Debug)]
enum Kind {
    Epoll(Box<Epoll>),
    Ring(Box<Ring>),
}

macro_rules! each {
    ($own:expr, $back:ident => $call:expr) => {
        match &mut $own.kind {
            Kind::Epoll($back) => $call,
            Kind::Ring($back) => $call,
        }
    };
}

impl BackEnd {
    /// An empty one, which `doorbell` wakes from a wait.
    ///
    /// # Errors
    /// With [`Choice::IoUring`] those of io_uring_setup(2): `PERM` where `kernel.io_uring_disabled`
    /// or a filter forbids it, `NOSYS` where the kernel does not have it or not enough of it.
    pub fn new(choice: Choice, doorbell: &EventDoorbell) -> io::Result<Self> {
        if choice != Choice::Epoll {
            match Self::ring(choice, doorbell) {
                Ok(ring) => return Ok(Self::of(Kind::Ring(Box::new(ring)))),
                Err(error) if choice == Choice::IoUring => return Err(error),
                Err(_) => {}
            }
        }
        Ok(Self::of(Kind::Epoll(Box::new(Epoll::new(doorbell.clone())?))))
    }

    fn of(kind: Kind) -> Self {
        Self { kind, seekable: Known::default(), mounts: Mounts::default() }
    }

    /// A ring. Without CAP_IPC_LOCK the memory of rings counts with what a user may lock, and the
    /// kernel gives that back some time after the last descriptor of a ring was closed: who makes
    /// one queue after the other finds none left, and waits a little if nothing else will do.
    fn ring(choice: Choice, doorbell: &EventDoorbell) -> io::Result<Ring> {
        let mut tries = if choice == Choice::IoUring { RING_TRIES_MAX } else { 1 };
        loop {
            tries -= 1;
            match Ring::new(doorbell.clone()) {
                Err(error) if tries > 0 && Errno::from_io_error(&error) == Some(Errno::NOMEM) => {
                    std::thread::sleep(RING_TRY_INTERVAL);
                }
                made => return made,
            }
        }
    }

    /// What it is.
    pub fn is_io_uring(&self) -> bool {
        matches!(self.kind, Kind::Ring(_))
    }

    /// Begins to watch a file. The caller keeps it open until it removes the slot.
    ///
    /// # Errors
    /// `PERM` for a file on disk, which is always ready; `EXIST` if the slot is in use.
    pub fn add(
        &mut self,
        slot: u32,
        fd: BorrowedFd<'_>,
        interest: Interest,
        trigger: Trigger,
    ) -> io::Result<()> {
        each!(self, back => back.add(slot, fd, interest, trigger))
    }

    /// Changes what is told of a file, and tells what holds already.
    ///
    /// # Errors
    /// `NOENT` if the slot is of no file.
    pub fn modify(
        &mut self,
        slot: u32,
        fd: BorrowedFd<'_>,
        interest: Interest,
        trigger: Trigger,
    ) -> io::Result<()> {
        each!(self, back => back.modify(slot, fd, interest, trigger))
    }

    /// Ends watching a file: nothing is told of it any more. The caller keeps it open until this is
    /// [settled](Self::settle).
    ///
    /// # Errors
    /// `NOENT` if the slot is of no file.
    pub fn remove(&mut self, slot: u32, fd: BorrowedFd<'_>) -> io::Result<()> {
        each!(self, back => back.remove(slot, fd))
    }

    /// Lets the kernel let go of files that were removed.
    pub fn settle(&mut self) -> io::Result<()> {
        match &mut self.kind {
            Kind::Epoll(_) => Ok(()),
            Kind::Ring(ring) => ring.settle(),
        }
    }

    /// A level-triggered file was told of and is not to be, until it is [resumed](Self::resume).
    pub fn pause(&mut self, slot: u32, fd: BorrowedFd<'_>, interest: Interest) -> io::Result<()> {
        match &mut self.kind {
            Kind::Epoll(epoll) => epoll.modify(slot, fd, interest, Trigger::OneShot),
            // It is told once in a wait by itself.
            Kind::Ring(_) => Ok(()),
        }
    }

    /// A level-triggered file that was told of is to be told of again.
    pub fn resume(
        &mut self,
        slot: u32,
        fd: BorrowedFd<'_>,
        (interest, was_paused): (Interest, bool),
    ) -> io::Result<()> {
        match &mut self.kind {
            Kind::Epoll(epoll) if was_paused => epoll.modify(slot, fd, interest, Trigger::Level),
            Kind::Epoll(_) => Ok(()),
            Kind::Ring(ring) => ring.resume(slot),
        }
    }

    /// Begins a job, of which a wait tells once that it is over. It may be over at once.
    ///
    /// # Errors
    /// The slot is in use; `SPIPE` if what is to be read or written has no offsets, `INVAL` if it
    /// has none so large, or if a range ends before it begins; those of making sockets not to
    /// block, and of making a pipe. The job is handed back.
    pub fn submit(&mut self, slot: u32, job: Job) -> Result<(), (Errno, Job)> {
        let waits = match self.check(&job) {
            Ok(waits) => waits,
            Err(errno) => return Err((errno, job)),
        };
        match &mut self.kind {
            Kind::Epoll(epoll) => epoll.submit(slot, job),
            Kind::Ring(ring) => ring.submit(slot, job, waits),
        }
    }

    /// Whether a job can be begun, and its file may wait although it is told not to, which matters
    /// to a ring.
    fn check(&mut self, job: &Job) -> Result<bool, Errno> {
        let Some(file) = job.file()? else { return Ok(false) };
        let is_ring = self.is_io_uring();
        self.seekable.check(file, |file| {
            // io_uring would read a pipe all the same, and knows an offset that means another.
            rustix::fs::tell(file)?;
            Ok(is_ring && self.mounts.may_wait(file, &mounts::status(file)?))
        })
    }

    /// So many connections of an [accept](Job::Accept) were taken, and as many more may come.
    pub fn give_room(&mut self, slot: u32, count: u32) {
        each!(self, back => back.give_room(slot, count));
    }

    /// Asks for the end of a job, which tells what became of it as ever: it may have been too late.
    pub fn cancel(&mut self, slot: u32) {
        each!(self, back => back.cancel(slot));
    }

    /// Whether a wait would not sleep: there is something to tell that the descriptor does not
    /// show.
    pub fn is_busy(&self) -> bool {
        match &self.kind {
            Kind::Epoll(epoll) => epoll.is_busy(),
            Kind::Ring(ring) => ring.is_busy(),
        }
    }

    /// Waits for news until the doorbell rings or `timeout` has passed; `None` waits for ever, zero
    /// not at all. Signals that are handled end it early. The doorbell is cleared.
    pub fn wait(&mut self, timeout: Option<Duration>, news: &mut Vec<News>) -> io::Result<()> {
        each!(self, back => back.wait(timeout, news))
    }

    /// Hands over what the caller asked for and the kernel was not told yet: before somebody waits
    /// for the descriptor.
    pub fn flush(&mut self, news: &mut Vec<News>) -> io::Result<()> {
        match &mut self.kind {
            Kind::Epoll(_) => Ok(()),
            Kind::Ring(ring) => ring.flush(news),
        }
    }

    /// Leaves the kernel's side alone from now on: in the child of a fork, where it is the
    /// parent's.
    pub fn disown(&mut self) {
        each!(self, back => back.disown());
    }
}

/// Readable while there are news or the doorbell has rung; it may be readable without.
impl AsFd for BackEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            Kind::Epoll(epoll) => epoll.as_fd(),
            Kind::Ring(ring) => ring.as_fd(),
        }
    }
}

/// What holds of a file now.
pub fn look(fd: BorrowedFd<'_>, interest: Interest) -> io::Result<Readiness> {
    let mut flags = PollFlags::empty();
    flags.set(PollFlags::IN | PollFlags::RDHUP, interest.readable);
    flags.set(PollFlags::OUT, interest.writable);
    let mut files = [PollFd::from_borrowed_fd(fd, flags)];
    rustix::event::poll(&mut files, Some(&Timespec::default()))?;
    Ok(Readiness::of(files[0].revents().bits().into()))
}

/// Who may watch it: a file on disk is always ready.
fn check_can_wait(fd: BorrowedFd<'_>) -> io::Result<()> {
    use rustix::fs::FileType;
    match mounts::kind(&mounts::status(fd)?) {
        FileType::RegularFile | FileType::Directory => Err(Errno::PERM.into()),
        _ => Ok(()),
    }
}
