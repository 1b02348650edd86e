//! The kernel side of an event queue: reports which files are ready, and carries out operations.
//!
//! Two back ends with the same results behind one type: io_uring, where the kernel allows it, and
//! epoll with a few threads for files. The caller names files and operations by small numbers,
//! *slots*. Events of a slot belong to what was last added to it: events that were under way when a
//! slot was removed are dropped here.
//!
//! A wait reports each level-triggered file at most once. One thread at a time calls. How it works:
//! `docs/theory/events.md`.

mod call;
mod epoll;
mod file_properties;
mod files;
mod job;
mod mounts;
mod ring;
#[cfg(test)]
mod tests;

use crate::doorbell::EventDoorbell;
pub use crate::reactor::{Interest, Readiness, Trigger};
use epoll::Epoll;
pub use file_properties::Known;
pub use files::THREADS_MAX;
pub use job::{
    ACCEPTED_MAX, BLOCK_BYTES, BlockRead, Buffer, COPIED_FILE_MAX, Call, Calls, Job, Look, Memory,
    OtherBuffer, Outcome, Parts, PieceWrite, Socket, broken, read_now,
};
pub use mounts::{Mounts, device, kind, status};
use ring::Ring;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Carries out a job on a file on this thread, which may block for as long as a disk takes.
///
/// # Errors
/// The job is none on a file, or cannot be started.
pub fn carry_out(job: Job) -> Result<Outcome, Errno> {
    let mut running = job::Running::new(job).map_err(|(errno, _)| errno)?;
    files::run(&mut running);
    running.stop(Errno::INVAL);
    Ok(running.finish())
}

/// An action on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Fill the buffer from this offset on, up to the end of the file.
    Read(u64),
    /// Write the buffer at this offset.
    Write(u64),
    /// Flush data and metadata to the disk.
    Sync,
    /// Flush data to the disk, and the metadata needed to find it.
    SyncData,
}

/// An operation on a file. The kernel uses the buffer until the operation completes.
#[derive(Debug)]
pub struct Operation<B = Vec<u8>> {
    /// The action.
    pub action: Action,
    /// The file, which stays open meanwhile.
    pub file: Arc<File>,
    /// The buffer, all of whose bytes are read or written.
    pub buffer: B,
}

impl<B> Operation<B> {
    /// Replaces the buffer.
    pub fn map<C>(self, map: impl FnOnce(B) -> C) -> Operation<C> {
        let Self { action, file, buffer } = self;
        Operation { action, file, buffer: map(buffer) }
    }
}

/// Data to send: a header, a range of a file, and a trailer.
#[derive(Debug)]
pub struct SendFile {
    /// Bytes before the range.
    pub header: Vec<u8>,
    /// The file, which stays open meanwhile.
    pub file: Arc<File>,
    /// The range of the file.
    pub range: Range<u64>,
    /// Bytes after the range.
    pub trailer: Vec<u8>,
}

/// An event of a slot.
#[derive(Debug)]
pub enum What {
    /// A file is ready.
    Ready(Readiness),
    /// A connection was accepted.
    Accepted(OwnedFd),
    /// All of a buffer that is [lent](Job::Lend) was sent; its length in bytes.
    Sent(u64),
    /// The job is complete. The slot is free.
    Over(Outcome),
}

/// An event and its slot.
pub type SlotEvent = (u32, What);

/// Slots are below this number.
pub const SLOTS_MAX: u32 = 1 << 24;

/// Memory of as many complete jobs is kept, so that usual jobs need no allocation.
const SPARE_MAX: usize = 4096;
/// Bytes that a job may move by system calls before other jobs have their turn.
const TURN_BYTES: usize = 8 * BLOCK_BYTES;

/// Attempts to create a ring, and the time between them: half a second in all, twenty times the
/// longest delay observed.
const RING_TRIES_MAX: u32 = 101;
const RING_TRY_INTERVAL: Duration = Duration::from_millis(5);

/// Which back end to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Choice {
    /// io_uring where the kernel allows it, otherwise epoll.
    #[default]
    Best,
    /// io_uring, or an error.
    IoUring,
    /// epoll.
    Epoll,
}

/// A back end of an event queue.
#[derive(Debug)]
pub struct BackEnd {
    kind: Kind,
    /// Files known to have offsets.
    seekable: Known<Access>,
    mounts: Mounts,
}

/// How a ring reads and writes a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Access {
    /// Through the page cache. The kernel refuses what would wait for a disk, and a worker does it.
    #[default]
    Cached,
    /// Through a file system that may block despite `IOCB_NOWAIT`.
    Waits,
    /// Between the disk and the program's memory (`O_DIRECT`): nothing is copied.
    Direct,
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
    /// Creates an empty back end, whose waits end when `doorbell` rings.
    ///
    /// # Errors
    /// With [`Choice::IoUring`] those of io_uring_setup(2): `PERM` if `kernel.io_uring_disabled` or
    /// a filter forbids it, `NOSYS` if the kernel lacks it or a required feature.
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

    /// Creates a ring. Without CAP_IPC_LOCK, the memory of rings counts against the limit on locked
    /// memory. The kernel returns it some time after the last descriptor of a ring is closed, so a
    /// process that creates one queue after the other may find none left. With [`Choice::IoUring`]
    /// this retries for a while.
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

    /// True if this is the io_uring back end.
    pub fn is_io_uring(&self) -> bool {
        matches!(self.kind, Kind::Ring(_))
    }

    /// Starts to watch a file. The caller keeps it open until it has removed the slot and called
    /// [`settle`](Self::settle).
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

    /// Changes the conditions of a file that are reported. Conditions that already hold are
    /// reported.
    ///
    /// # Errors
    /// `NOENT` if no file is in the slot.
    pub fn modify(
        &mut self,
        slot: u32,
        fd: BorrowedFd<'_>,
        interest: Interest,
        trigger: Trigger,
    ) -> io::Result<()> {
        each!(self, back => back.modify(slot, fd, interest, trigger))
    }

    /// Stops watching a file: it is not reported any more. The caller keeps it open until the back
    /// end has [settled](Self::settle).
    ///
    /// # Errors
    /// `NOENT` if no file is in the slot.
    pub fn remove(&mut self, slot: u32, fd: BorrowedFd<'_>) -> io::Result<()> {
        each!(self, back => back.remove(slot, fd))
    }

    /// Makes the kernel release removed files, so that they can be closed.
    pub fn settle(&mut self) -> io::Result<()> {
        match &mut self.kind {
            Kind::Epoll(_) => Ok(()),
            Kind::Ring(ring) => ring.settle(),
        }
    }

    /// Stops reports of a level-triggered file that was reported, until it is
    /// [resumed](Self::resume).
    pub fn pause(&mut self, slot: u32, fd: BorrowedFd<'_>, interest: Interest) -> io::Result<()> {
        match &mut self.kind {
            Kind::Epoll(epoll) => epoll.modify(slot, fd, interest, Trigger::OneShot),
            // A ring reports it only once until it is resumed.
            Kind::Ring(_) => Ok(()),
        }
    }

    /// Restarts reports of a level-triggered file that was reported.
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

    /// Starts a job. A wait reports once that it is complete. It may complete immediately.
    ///
    /// # Errors
    /// `EXIST` if the slot is in use; `SPIPE` if a file has no offsets; `INVAL` if an offset is too
    /// large or a range ends before it begins; those of making sockets non-blocking and of creating
    /// a pipe. The job is handed back.
    pub fn submit(&mut self, slot: u32, job: Job) -> Result<(), (Errno, Job)> {
        let access = match self.check(&job) {
            Ok(access) => access,
            Err(errno) => return Err((errno, job)),
        };
        match &mut self.kind {
            Kind::Epoll(epoll) => epoll.submit(slot, job),
            Kind::Ring(ring) => ring.submit(slot, job, access),
        }
    }

    /// Checks whether a job can start, and how a ring reads and writes its file.
    fn check(&mut self, job: &Job) -> Result<Access, Errno> {
        let Some(file) = job.file()? else { return Ok(Access::default()) };
        let is_ring = self.is_io_uring();
        self.seekable.check(file, |file| {
            // io_uring would read a pipe as well, and treats the offset -1 as the current position.
            rustix::fs::tell(file)?;
            Ok(match is_ring {
                false => Access::default(),
                true if self.mounts.may_wait(file, &mounts::status(file)?) => Access::Waits,
                true if fcntl_getfl(file)?.contains(OFlags::DIRECT) => Access::Direct,
                true => Access::Cached,
            })
        })
    }

    /// Reports that the caller has taken `count` connections of an [accept](Job::Accept), so that
    /// as many more may be accepted.
    pub fn give_room(&mut self, slot: u32, count: u32) {
        each!(self, back => back.give_room(slot, count));
    }

    /// Requests the cancellation of a job. A wait still reports its outcome, because the request
    /// may come too late.
    pub fn cancel(&mut self, slot: u32) {
        each!(self, back => back.cancel(slot));
    }

    /// True if a wait would return at once because of events that the descriptor does not show.
    pub fn is_busy(&self) -> bool {
        match &self.kind {
            Kind::Epoll(epoll) => epoll.is_busy(),
            Kind::Ring(ring) => ring.is_busy(),
        }
    }

    /// Waits until there are events, the doorbell rings or `timeout` has passed; `None` waits
    /// without a limit, zero does not wait. A handled signal ends the wait early. Clears the
    /// doorbell.
    pub fn wait(
        &mut self,
        timeout: Option<Duration>,
        arrived: &mut Vec<SlotEvent>,
    ) -> io::Result<()> {
        each!(self, back => back.wait(timeout, arrived))
    }

    /// Submits pending requests to the kernel. Call it before waiting for the descriptor.
    pub fn flush(&mut self, arrived: &mut Vec<SlotEvent>) -> io::Result<()> {
        match &mut self.kind {
            Kind::Epoll(_) => Ok(()),
            Kind::Ring(ring) => ring.flush(arrived),
        }
    }

    /// Leaves the kernel side alone from now on. For the child of a fork, where it belongs to the
    /// parent.
    pub fn disown(&mut self) {
        each!(self, back => back.disown());
    }
}

/// Readable while there are events or after the doorbell rang; it may also be readable without
/// either.
impl AsFd for BackEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            Kind::Epoll(epoll) => epoll.as_fd(),
            Kind::Ring(ring) => ring.as_fd(),
        }
    }
}

/// Returns the current state of a file.
pub fn look(fd: BorrowedFd<'_>, interest: Interest) -> io::Result<Readiness> {
    let mut flags = PollFlags::empty();
    flags.set(PollFlags::IN | PollFlags::RDHUP, interest.readable);
    flags.set(PollFlags::OUT, interest.writable);
    let mut files = [PollFd::from_borrowed_fd(fd, flags)];
    rustix::event::poll(&mut files, Some(&Timespec::default()))?;
    Ok(Readiness::of(files[0].revents().bits().into()))
}

/// Refuses files on disk, which are always ready.
fn check_can_wait(fd: BorrowedFd<'_>) -> io::Result<()> {
    use rustix::fs::FileType;
    match mounts::kind(&mounts::status(fd)?) {
        FileType::RegularFile | FileType::Directory => Err(Errno::PERM.into()),
        _ => Ok(()),
    }
}
