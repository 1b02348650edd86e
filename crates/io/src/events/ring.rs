//! The back end on io_uring. Contains unsafe code: the kernel uses buffers until it reports
//! completion.
//!
//! A one-shot or level-triggered file is a poll request that ends with its event. A level is polled
//! again when the caller requests it, in the same system call as the next wait. A poll reports the
//! state at its end, so one more call checks whether the state still holds, for all files of a wait
//! together. An edge-triggered file is a multishot poll, whose events are hints. Jobs are in
//! [`jobs`].
//!
//! A completion names its slot and the slot's *round*, which counts what was started in the slot:
//! completions of an earlier round are dropped. The kernel keeps completions for which the queue
//! has no room.
//!
//! # Buffers
//!
//! A job stays in its slot from before the kernel receives its buffers until the kernel reports
//! that it is done with them, and no code accesses the buffers meanwhile. Dropping the ring cancels
//! operations in progress and waits for them, at most [`DROP_WAIT_MAX`]. The memory of jobs that
//! the kernel has not completed by then is leaked.
#![allow(unsafe_code)]

mod jobs;

use super::{Interest, Readiness, SlotEvent, TURN_BYTES, Trigger, What, call, check_can_wait};
use crate::doorbell::EventDoorbell;
use crate::sys;
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, cqueue, opcode, squeue};
use jobs::Doing;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::time::Duration;

/// Entries of the submission queue: the most requests in one system call.
const SUBMISSIONS_MAX: u32 = 256;
/// Entries of the completion queue; the kernel keeps those that do not fit.
const COMPLETIONS_MAX: u32 = 4096;
/// Longest time that dropping waits for operations.
const DROP_WAIT_MAX: Duration = Duration::from_secs(1);
/// Number of waits in [`DROP_WAIT_MAX`].
const DROP_ROUNDS_MAX: u32 = 10;

/// User data of the doorbell's poll.
const BELL: u64 = u64::MAX;
/// User data of requests whose completions are ignored.
const NOBODY: u64 = u64::MAX - 1;

/// The io_uring back end; see the module documentation.
pub(super) struct Ring {
    ring: IoUring,
    doorbell: EventDoorbell,
    bell_is_polled: bool,
    /// The doorbell has rung, and no wait has returned since.
    has_rung: bool,
    slots: Vec<Slot>,
    /// Slots to poll again, and their rounds.
    again: Vec<(u32, u32)>,
    /// Events that other calls produced before the next wait.
    early: Vec<SlotEvent>,
    /// Buffer for checking levels.
    polled: Vec<libc::pollfd>,
    /// Completions taken from the queue: user data, result, flags.
    taken: Vec<(u64, i32, u32)>,
    /// The kernel has released all removed files.
    is_settled: bool,
    /// Jobs that can continue, and their rounds.
    turns: Vec<(u32, u32)>,
    /// Number of jobs in progress.
    jobs: usize,
    /// Memory of jobs that are complete, for new ones.
    #[expect(clippy::vec_box, reason = "the boxes move in and out")]
    spare: Vec<Box<Doing>>,
    /// The kernel supports multishot accepts and zero-copy sends (Linux 6.0).
    is_recent: bool,
    /// The kernel side belongs to another process.
    disowned: bool,
}

#[derive(Default)]
struct Slot {
    round: u32,
    content: Content,
}

#[derive(Default)]
enum Content {
    #[default]
    Free,
    File(Watch),
    Job(Box<Doing>),
}

/// A watched file.
#[derive(Clone, Copy)]
struct Watch {
    fd: RawFd,
    mask: u32,
    trigger: Trigger,
    /// A poll request is with the kernel or in the queue.
    is_polled: bool,
}

impl Ring {
    pub(super) fn new(doorbell: EventDoorbell) -> io::Result<Self> {
        // With this flag the kernel does pending work when this thread next enters it, instead of
        // interrupting the thread. Linux before 5.19 lacks the flag.
        let ring = Self::make(true).or_else(|error| match is(&error, Errno::INVAL) {
            true => Self::make(false),
            false => Err(error),
        })?;
        let known = ring.params();
        let enough = known.is_feature_ext_arg()
            && known.is_feature_nodrop()
            && known.is_feature_skip_cqe_on_success();
        if !enough {
            return Err(Errno::NOSYS.into());
        }
        let mut known_to = Probe::new();
        ring.submitter().register_probe(&mut known_to)?;
        Ok(Self {
            ring,
            doorbell,
            bell_is_polled: false,
            has_rung: false,
            slots: Vec::new(),
            again: Vec::new(),
            early: Vec::new(),
            polled: Vec::new(),
            taken: Vec::new(),
            is_settled: true,
            turns: Vec::new(),
            jobs: 0,
            spare: Vec::new(),
            is_recent: known_to.is_supported(opcode::SendZc::CODE),
            disowned: false,
        })
    }

    fn make(cooperates: bool) -> io::Result<IoUring> {
        let mut builder = IoUring::builder();
        builder.setup_clamp().setup_submit_all().setup_cqsize(COMPLETIONS_MAX);
        if cooperates {
            builder.setup_coop_taskrun().setup_taskrun_flag();
        }
        builder.build(SUBMISSIONS_MAX)
    }

    pub(super) fn add(
        &mut self,
        slot: u32,
        fd: BorrowedFd<'_>,
        interest: Interest,
        trigger: Trigger,
    ) -> io::Result<()> {
        check_can_wait(fd)?;
        if !matches!(self.slot(slot).content, Content::Free) {
            return Err(Errno::EXIST.into());
        }
        let (fd, mask) = (fd.as_raw_fd(), mask(interest));
        self.slot(slot).content = Content::File(Watch { fd, mask, trigger, is_polled: false });
        self.poll(slot).inspect_err(|_| self.release(slot))
    }

    pub(super) fn modify(
        &mut self,
        slot: u32,
        fd: BorrowedFd<'_>,
        interest: Interest,
        trigger: Trigger,
    ) -> io::Result<()> {
        self.end_poll(slot)?;
        let (fd, mask) = (fd.as_raw_fd(), mask(interest));
        self.slot(slot).content = Content::File(Watch { fd, mask, trigger, is_polled: false });
        self.poll(slot)
    }

    pub(super) fn remove(&mut self, slot: u32, _: BorrowedFd<'_>) -> io::Result<()> {
        self.is_settled &= !self.end_poll(slot)?;
        self.release(slot);
        Ok(())
    }

    /// Makes the kernel release removed files, so that they can be closed afterwards.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        match std::mem::replace(&mut self.is_settled, true) {
            true => Ok(()),
            false => self.submit_all(),
        }
    }

    /// Polls a level-triggered file again.
    pub(super) fn resume(&mut self, slot: u32) -> io::Result<()> {
        match self.slot(slot).content {
            Content::File(watch) if !watch.is_polled => self.poll(slot),
            _ => Ok(()),
        }
    }

    pub(super) fn disown(&mut self) {
        self.disowned = true;
    }

    pub(super) fn wait(
        &mut self,
        timeout: Option<Duration>,
        arrived: &mut Vec<SlotEvent>,
    ) -> io::Result<()> {
        // In this order, so that cancelled polls start again before the thread sleeps.
        self.take_completions()?;
        self.take_turns();
        self.prepare()?;
        let has_news = self.is_busy() || !self.taken.is_empty() || self.has_rung;
        let at_once = has_news || timeout == Some(Duration::ZERO);
        if !at_once {
            let limit = timeout.map(timespec);
            let args = SubmitArgs::new();
            let args = match &limit {
                Some(limit) => args.timespec(limit),
                None => args,
            };
            let result = self.ring.submitter().submit_with_args(1, &args);
            // Too many completions are waiting, the time is over, or a signal arrived.
            ignore(result, &[Errno::BUSY, Errno::TIME, Errno::INTR, Errno::AGAIN])?;
        } else {
            if self.ring.submission().taskrun() {
                // Only once: work that belongs to another thread, from which the queue came, may
                // take longer.
                ignore(self.ring.submit(), &[Errno::BUSY, Errno::INTR, Errno::AGAIN])?;
            }
            self.submit_all()?;
        }
        self.take_completions()?;
        self.check_levels()?;
        arrived.append(&mut self.early);
        self.has_rung = false;
        Ok(())
    }

    /// True if a wait has events to return or jobs to continue without the kernel.
    pub(super) fn is_busy(&self) -> bool {
        !self.early.is_empty() || !self.turns.is_empty()
    }

    /// Drops events whose state no longer holds, except edges, and polls for them again.
    fn check_levels(&mut self) -> io::Result<()> {
        let Self { slots, early, polled, again, .. } = self;
        polled.clear();
        let watch = |slot: u32| match slots.get(slot as usize) {
            Some(&Slot { content: Content::File(watch), round }) => Some((watch, round)),
            _ => None,
        };
        let level = |slot| watch(slot).filter(|(watch, _)| watch.trigger != Trigger::Edge);
        let levels = early.iter().filter_map(|(slot, _)| level(*slot));
        polled.extend(levels.map(|(watch, _)| libc::pollfd {
            fd: watch.fd,
            events: watch.mask as i16,
            revents: 0,
        }));
        if polled.is_empty() {
            return Ok(());
        }
        sys::poll_now(polled)?;
        let mut polled = polled.iter();
        early.retain_mut(|(slot, what)| {
            let Some((_, round)) = level(*slot) else { return true };
            let now = polled.next().map_or(0, |polled| polled.revents);
            if now == 0 {
                again.push((*slot, round));
                return false;
            }
            *what = What::Ready(readiness(now.into()));
            true
        });
        Ok(())
    }

    /// Afterwards all requested polls are active, and new completions are in the kernel's queue.
    pub(super) fn flush(&mut self, arrived: &mut Vec<SlotEvent>) -> io::Result<()> {
        loop {
            self.wait(Some(Duration::ZERO), arrived)?;
            self.prepare()?;
            if !self.ring.submission().is_empty() {
                ignore(self.ring.submit(), &[Errno::BUSY, Errno::INTR])?;
            }
            if self.taken.is_empty() && self.ring.submission().is_empty() {
                return Ok(());
            }
        }
    }

    /// Starts the polls that were requested again, and the doorbell's.
    fn prepare(&mut self) -> io::Result<()> {
        while let Some((slot, round)) = self.again.pop() {
            let content = self.slot(slot);
            if content.round == round {
                self.resume(slot)?;
            }
        }
        if !self.bell_is_polled {
            let fd = Fd(self.doorbell.as_fd().as_raw_fd());
            // Each ring of the doorbell is reported, so it need not be cleared.
            let entry = opcode::PollAdd::new(fd, libc::POLLIN as u32).multi(true).build();
            self.push(&entry.user_data(BELL))?;
            self.bell_is_polled = true;
        }
        Ok(())
    }

    /// Starts the poll of a file, in a new round.
    fn poll(&mut self, slot: u32) -> io::Result<()> {
        let entry = self.slot(slot);
        entry.round = entry.round.wrapping_add(1);
        let Content::File(watch) = &mut entry.content else { return Ok(()) };
        watch.is_polled = true;
        let Watch { fd, mask, trigger, .. } = *watch;
        let multi = trigger == Trigger::Edge;
        let poll = opcode::PollAdd::new(Fd(fd), mask).multi(multi).build();
        let name = self.name(slot);
        self.push(&poll.user_data(name))
    }

    /// Ends the poll of a file; true if there was one.
    fn end_poll(&mut self, slot: u32) -> io::Result<bool> {
        let name = self.name(slot);
        let Content::File(watch) = &mut self.slot(slot).content else {
            return Err(Errno::NOENT.into());
        };
        let was_polled = std::mem::replace(&mut watch.is_polled, false);
        if was_polled {
            // A poll cannot be removed while its completion is under way, but it can be cancelled.
            self.push(&quiet(opcode::AsyncCancel::new(name).build()))?;
        }
        Ok(was_polled)
    }

    /// Processes all completions; their events go into `early`.
    fn take_completions(&mut self) -> io::Result<()> {
        self.keep_completions();
        let mut result = Ok(());
        // Continuing an operation may take more completions.
        while !self.taken.is_empty() {
            let mut taken = std::mem::take(&mut self.taken);
            for (name, code, flags) in taken.drain(..) {
                result = self.on_completion(name, code, cqueue::more(flags)).and(result);
            }
            if self.taken.is_empty() {
                self.taken = taken;
            }
        }
        result
    }

    fn on_completion(&mut self, name: u64, code: i32, more: bool) -> io::Result<()> {
        match name {
            BELL => {
                (self.bell_is_polled, self.has_rung) = (more, true);
                if !more {
                    // A new poll reports the state that it finds.
                    self.doorbell.clear();
                }
                return Ok(());
            }
            NOBODY => return Ok(()),
            _ => {}
        }
        let (slot, round) = (name as u32, (name >> 32) as u32);
        let entry = self.slot(slot);
        match entry.content {
            Content::File(_) if entry.round == round => self.on_poll(slot, code, more),
            Content::Job(_) if entry.round == round => {
                self.on_step(slot, code, more);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn on_poll(&mut self, slot: u32, code: i32, more: bool) -> io::Result<()> {
        let entry = self.slot(slot);
        let round = entry.round;
        let Content::File(watch) = &mut entry.content else { return Ok(()) };
        watch.is_polled = more;
        let goes_on = watch.trigger == Trigger::Edge && !more;
        if code == -libc::ECANCELED {
            // Cancelled by the kernel: the thread that started it has ended.
            self.again.push((slot, round));
            return Ok(());
        }
        if goes_on {
            self.again.push((slot, round));
        }
        self.early.push((slot, What::Ready(readiness(code))));
        Ok(())
    }

    /// Puts a request into the submission queue.
    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        loop {
            // SAFETY: the memory that a request names must stay valid until the kernel is done with
            // it. Only this file and `jobs` create requests. Polls, syncs, accepts and
            // cancellations name no memory; a timeout names a static. Requests of `jobs::request`
            // name a static string and memory that the job in their slot owns: bytes of a `Vec`, a
            // `LargeBlock`, a `Memory` or an `OtherBuffer`, the `Box<Statx>`, which has the
            // kernel's layout, or the ranges of a `PieceWrite` and the bytes that these name, which
            // stay in place while the job has its `PinnedPiece`s. The job is boxed, so it does not
            // move, and no code accesses the memory while `Doing::with_kernel` says that the kernel
            // has a request. That ends in `on_step`, for the last completion of the request, when
            // the kernel is done with the memory; or in `drop`, which leaks the memory if that
            // completion did not arrive. A `Memory` and an `OtherBuffer` are boxed values of any
            // type, whose safe code returned the bytes as a reference. That reference could live
            // until the value is next used, moved or dropped, which does not happen before the
            // kernel is done. Until then the bytes are valid, and no other code can reach those of
            // an exclusive reference.
            let pushed = unsafe { self.ring.submission().push(entry) };
            if pushed.is_ok() {
                return Ok(());
            }
            self.submit_all()?;
        }
    }

    /// Submits the whole queue to the kernel, unless that fails.
    fn submit_all(&mut self) -> io::Result<()> {
        while !self.ring.submission().is_empty() || self.ring.submission().cq_overflow() {
            match self.ring.submit() {
                Ok(_) => {}
                Err(error) if is(&error, Errno::INTR) => {}
                // Completions must be taken first.
                Err(error) if is(&error, Errno::BUSY) => {}
                Err(error) => return Err(error),
            }
            self.keep_completions();
        }
        Ok(())
    }

    /// Takes completions, which makes room in the queue.
    fn keep_completions(&mut self) {
        let completions = self.ring.completion();
        self.taken.extend(completions.map(|c| (c.user_data(), c.result(), c.flags())));
    }

    fn slot(&mut self, slot: u32) -> &mut Slot {
        let index = slot as usize;
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, Slot::default);
        }
        &mut self.slots[index]
    }

    /// User data for the current round of a slot.
    fn name(&mut self, slot: u32) -> u64 {
        u64::from(self.slot(slot).round) << 32 | u64::from(slot)
    }

    fn release(&mut self, slot: u32) {
        let entry = self.slot(slot);
        entry.round = entry.round.wrapping_add(1);
        entry.content = Content::Free;
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.disowned {
            // The kernel works for the parent, with the parent's memory.
            return;
        }
        for slot in 0..self.slots.len() as u32 {
            self.cancel(slot);
        }
        let mut arrived = Vec::new();
        for _ in 0..DROP_ROUNDS_MAX {
            let round = Some(DROP_WAIT_MAX / DROP_ROUNDS_MAX);
            if self.jobs == 0 || self.wait(round, &mut arrived).is_err() {
                break;
            }
        }
        for slot in &mut self.slots {
            if let Content::Job(doing) = std::mem::take(&mut slot.content) {
                // The kernel still has the job's memory.
                doing.abandon();
            }
        }
    }
}

/// Takes ownership of a descriptor that the kernel created.
fn adopt(code: i32) -> OwnedFd {
    // SAFETY: the result of a successful accept is a new descriptor without another owner.
    unsafe { OwnedFd::from_raw_fd(code) }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("jobs", &self.jobs).finish_non_exhaustive()
    }
}

/// Makes a request whose completion is ignored.
fn quiet(entry: squeue::Entry) -> squeue::Entry {
    entry.flags(squeue::Flags::SKIP_SUCCESS).user_data(NOBODY)
}

fn mask(interest: Interest) -> u32 {
    let mut mask = 0;
    if interest.readable {
        mask |= libc::POLLIN | libc::POLLRDHUP;
    }
    if interest.writable {
        mask |= libc::POLLOUT;
    }
    mask as u32
}

fn readiness(code: i32) -> Readiness {
    if code < 0 {
        return Readiness { error: true, ..Readiness::default() };
    }
    Readiness::of(code as u32)
}

fn timespec(limit: Duration) -> Timespec {
    Timespec::from(limit)
}

fn is(error: &io::Error, errno: Errno) -> bool {
    Errno::from_io_error(error) == Some(errno)
}

/// Turns the listed errors into success.
fn ignore<T>(result: io::Result<T>, errnos: &[Errno]) -> io::Result<()> {
    match result {
        Err(error) if !errnos.iter().any(|&errno| is(&error, errno)) => Err(error),
        _ => Ok(()),
    }
}
