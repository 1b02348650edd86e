//! Jobs on io_uring. A step is a request. It is a system call instead where the kernel would use a
//! thread for the request (moving files and pipes to sockets) or a request gains nothing
//! (connecting).
//!
//! A call that would block is made again after a poll of its socket. So is a request on a
//! non-blocking socket, which the kernel refuses if it would block. Where entries of the socket's
//! error queue make such a poll return at once, a pause of a millisecond takes its place. An accept
//! is one multishot request, where the kernel supports it.

use super::super::job::{Job, Running, Step};
use super::super::{Access, SPARE_MAX};
use super::{Content, Ring, TURN_BYTES, What, adopt, call, mask, quiet};
use io_uring::types::{Fd, FsyncFlags, Timespec};
use io_uring::{opcode, squeue};
use rustix::fd::AsRawFd;
use rustix::fs::StatxFlags;
use rustix::io::{Errno, ioctl_fionbio};
use std::ptr;

/// Most bytes of one request; a longer step takes several.
const STEP_BYTES_MAX: usize = 1 << 30;
/// Reads and writes from this size on go to the kernel's worker threads: copying them takes longer
/// than handing them over.
const WORKER_BYTES_MIN: usize = 128 << 10;

/// `IORING_SEND_ZC_REPORT_USAGE` and `IORING_NOTIF_USAGE_ZC_COPIED` of `linux/io_uring.h`.
const REPORT_USAGE: u16 = 1 << 3;
const COPIED: i32 = i32::MIN;

/// A job.
pub(super) struct Doing {
    running: Running,
    with_kernel: Option<Request>,
    cancelled: bool,
    access: Access,
    /// The last poll reported an error queue with entries, as it does until the program has read
    /// them.
    is_noisy: bool,
    /// Result of a zero-copy send whose bytes the kernel still uses.
    lent: Option<i32>,
}

impl Doing {
    /// Leaks the memory of a job that the kernel has not completed.
    pub(super) fn abandon(self) {
        self.running.abandon();
    }
}

/// Pause of a job while entries of its socket's error queue make a poll return at once.
static LOOK_AGAIN_AFTER: Timespec = Timespec::new().nsec(1_000_000);

/// The request that the kernel has of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    /// A poll, or a pause in its place.
    Poll,
    Accept,
    /// An accept that is being cancelled, because there is no room for more connections.
    LastAccept,
    Step,
    Lend {
        /// Bytes of the buffer not sent before this request.
        rest: usize,
        all: u64,
    },
}

impl Ring {
    /// Starts a job, whose file is read and written as `access` says.
    pub(in super::super) fn submit(
        &mut self,
        slot: u32,
        job: Job,
        access: Access,
    ) -> Result<(), (Errno, Job)> {
        if !matches!(self.slot(slot).content, Content::Free) {
            return Err((Errno::EXIST, job));
        }
        if let Job::Accept(listener) = &job
            && !self.is_recent
            && let Err(errno) = ioctl_fionbio(listener, true)
        {
            return Err((errno, job));
        }
        let mut running = Running::new(job)?;
        if !self.is_recent {
            running.copies();
        }
        let doing = Doing {
            running,
            with_kernel: None,
            cancelled: false,
            access,
            is_noisy: false,
            lent: None,
        };
        let doing = match self.spare.pop() {
            Some(mut spare) => {
                *spare = doing;
                spare
            }
            None => Box::new(doing),
        };
        self.slot(slot).content = Content::Job(doing);
        self.jobs += 1;
        self.go_on(slot);
        Ok(())
    }

    pub(in super::super) fn give_room(&mut self, slot: u32, count: u32) {
        let entry = self.slot(slot);
        let round = entry.round;
        if let Content::Job(doing) = &mut entry.content
            && doing.running.give_room(count)
            && doing.with_kernel.is_none()
        {
            self.turns.push((slot, round));
        }
    }

    pub(in super::super) fn cancel(&mut self, slot: u32) {
        let name = self.name(slot);
        let Content::Job(doing) = &mut self.slot(slot).content else { return };
        doing.cancelled = true;
        if doing.with_kernel.is_none() {
            doing.running.stop(Errno::CANCELED);
            return self.go_on(slot);
        }
        let entry = quiet(opcode::AsyncCancel::new(name).build());
        // If the cancellation cannot be submitted now, the job continues and reports its outcome
        // later.
        let _ = self.push(&entry).and_then(|()| self.submit_all());
    }

    /// Continues jobs whose turn was over.
    pub(super) fn take_turns(&mut self) {
        for (slot, round) in std::mem::take(&mut self.turns) {
            if self.slot(slot).round == round {
                self.go_on(slot);
            }
        }
    }

    /// Makes the calls of a job for one turn, or submits its next request.
    fn go_on(&mut self, slot: u32) {
        let accepts_many = self.is_recent;
        let mut moved = 0;
        while moved < TURN_BYTES {
            let entry = self.slot(slot);
            entry.round = entry.round.wrapping_add(1);
            let name = u64::from(entry.round) << 32 | u64::from(slot);
            let Content::Job(doing) = &mut entry.content else { return };
            let worker_min = match (doing.running.is_direct(), doing.access) {
                // The queue's thread only begins them, as the disk has them from then on.
                (true, _) | (_, Access::Direct) => usize::MAX,
                // They would block the queue's thread.
                (_, Access::Waits) => 0,
                (_, Access::Cached) => WORKER_BYTES_MIN,
            };
            let (request, kind) = match doing.running.next() {
                Step::Over => return self.finish(slot),
                Step::Idle => return,
                Step::Accept { listener } if accepts_many => {
                    let flags = libc::SOCK_CLOEXEC;
                    let request = opcode::AcceptMulti::new(fd(listener)).flags(flags).build();
                    (request, Request::Accept)
                }
                Step::Accept { listener } => match call::accept(listener) {
                    Ok(connection) => {
                        doing.running.done(Ok(1));
                        moved += 1;
                        self.early.push((slot, What::Accepted(connection)));
                        continue;
                    }
                    Err(errno) => match doing.after(Err(errno)) {
                        Some(poll) => (poll, Request::Poll),
                        None => continue,
                    },
                },
                step if is_request(&step) => {
                    let kind = kind(&step);
                    (request(step, worker_min), kind)
                }
                step => {
                    let result = call::socket(step);
                    moved += result.unwrap_or(0);
                    match doing.after(result) {
                        Some(poll) => (poll, Request::Poll),
                        None => continue,
                    }
                }
            };
            doing.with_kernel = Some(kind);
            let Err(error) = self.push(&request.user_data(name)) else { return };
            if let Content::Job(doing) = &mut self.slot(slot).content {
                doing.with_kernel = None;
                doing.running.stop(call::errno(&error));
            }
        }
        let round = self.slot(slot).round;
        self.turns.push((slot, round));
    }

    /// Handles the completion of a request; `more` means that a multishot request continues.
    pub(super) fn on_step(&mut self, slot: u32, code: i32, more: bool) {
        let name = self.name(slot);
        let Content::Job(doing) = &mut self.slot(slot).content else { return };
        let request = doing.with_kernel;
        if !more {
            doing.with_kernel = None;
        }
        let code = match request {
            Some(Request::Lend { rest, all }) => {
                let (is_sent, code) = doing.on_lent(code, more, rest);
                if is_sent {
                    self.early.push((slot, What::Sent(all)));
                }
                let Some(code) = code else { return };
                code
            }
            _ => code,
        };
        let Content::Job(doing) = &mut self.slot(slot).content else { return };
        let result = match code {
            0.. => Ok(code as usize),
            _ => Err(Errno::from_raw_os_error(-code)),
        };
        match (request, result) {
            // The call is made again.
            (Some(Request::Poll), result) => {
                doing.is_noisy = result.is_ok_and(|mask| mask & libc::POLLERR as usize != 0);
            }
            // The thread that started it has ended, a signal arrived, or it was cancelled.
            (_, Err(why @ (Errno::CANCELED | Errno::INTR))) => doing.running.interrupted(why),
            (Some(Request::Accept | Request::LastAccept), Ok(_)) => {
                doing.running.done(Ok(1));
                let is_last = matches!(doing.running.next(), Step::Idle);
                let asks = is_last && more && request == Some(Request::Accept);
                if asks {
                    doing.with_kernel = Some(Request::LastAccept);
                }
                self.early.push((slot, What::Accepted(adopt(code))));
                if asks {
                    let entry = quiet(opcode::AsyncCancel::new(name).build());
                    // If this fails, a few more connections are accepted.
                    let _ = self.push(&entry);
                }
            }
            (_, Err(Errno::AGAIN)) => {
                if !doing.cancelled
                    && let Some(poll) = doing.after(result)
                {
                    doing.with_kernel = Some(Request::Poll);
                    let Err(error) = self.push(&poll.user_data(name)) else { return };
                    if let Content::Job(doing) = &mut self.slot(slot).content {
                        doing.with_kernel = None;
                        doing.running.stop(call::errno(&error));
                    }
                }
            }
            (_, result) => doing.running.done(result),
        }
        if more {
            return;
        }
        if let Content::Job(doing) = &mut self.slot(slot).content
            && doing.cancelled
        {
            doing.running.stop(Errno::CANCELED);
        }
        self.go_on(slot);
    }

    fn finish(&mut self, slot: u32) {
        let content = std::mem::take(&mut self.slot(slot).content);
        self.release(slot);
        let Content::Job(mut doing) = content else { return };
        self.jobs -= 1;
        self.early.push((slot, What::Over(doing.running.finish())));
        if self.spare.len() < SPARE_MAX {
            self.spare.push(doing);
        }
    }
}

impl Doing {
    /// Handles a completion of a zero-copy send. The first has the result, and `more` is set if a
    /// second follows, which reports that the kernel is done with the bytes and whether it copied
    /// them. Returns whether all of the `rest` bytes were sent, and the result of the send once it
    /// is complete.
    fn on_lent(&mut self, code: i32, more: bool, rest: usize) -> (bool, Option<i32>) {
        match self.lent.take() {
            None if more => {
                self.lent = Some(code);
                (usize::try_from(code) == Ok(rest), None)
            }
            None => (false, Some(code)),
            Some(first) => {
                if first > 0 && code & COPIED != 0 {
                    self.running.was_copied();
                }
                (false, Some(first))
            }
        }
    }

    /// Processes the result of a call. If it would block, returns the poll to wait for, or a
    /// timeout where a poll would return at once.
    fn after(&mut self, result: Result<usize, Errno>) -> Option<squeue::Entry> {
        match (result, self.running.waits_for()) {
            (Err(Errno::INTR), _) => {
                self.running.interrupted(Errno::INTR);
                None
            }
            (Err(Errno::AGAIN), Some(_)) if self.is_noisy => {
                Some(opcode::Timeout::new(&raw const LOOK_AGAIN_AFTER).build())
            }
            (Err(Errno::AGAIN), Some((socket, interest))) => {
                Some(opcode::PollAdd::new(fd(socket), mask(interest)).build())
            }
            _ => {
                self.running.done(result);
                None
            }
        }
    }
}

fn fd(file: &impl AsRawFd) -> Fd {
    Fd(file.as_raw_fd())
}

/// The kind of request that a step becomes.
fn kind(step: &Step<'_>) -> Request {
    match step {
        Step::Lend { bytes, all, .. } => Request::Lend { rest: bytes.len(), all: *all },
        _ => Request::Step,
    }
}

/// True if a step is a request to the kernel.
fn is_request(step: &Step<'_>) -> bool {
    step.is_on_file()
        || matches!(step, Step::Receive { .. } | Step::Send { .. } | Step::Lend { .. })
}

/// Builds the request for a step, which names the step's bytes. One on a file goes to the kernel's
/// workers if it has at least `worker_min` bytes.
fn request(step: Step<'_>, worker_min: usize) -> squeue::Entry {
    let length = |bytes: &[u8]| bytes.len().min(STEP_BYTES_MAX) as u32;
    let of_len = |len| match len >= worker_min {
        true => squeue::Flags::ASYNC,
        false => squeue::Flags::empty(),
    };
    let by = |bytes: &[u8]| of_len(bytes.len());
    match step {
        Step::Look { file, into } => {
            // The kernel's workers do it in any case.
            let look = opcode::Statx::new(fd(file), c"".as_ptr(), ptr::from_mut(into).cast());
            look.flags(libc::AT_EMPTY_PATH).mask(StatxFlags::BASIC_STATS.bits()).build()
        }
        Step::Read { file, into, at } => {
            let read = opcode::Read::new(fd(file), into.as_mut_ptr(), length(into));
            read.offset(at).build().flags(by(into))
        }
        Step::Write { file, bytes, at } => {
            let write = opcode::Write::new(fd(file), bytes.as_ptr(), length(bytes));
            write.offset(at).build().flags(by(bytes))
        }
        Step::WritePieces { file, ranges, at, .. } => {
            let write = opcode::Writev::new(fd(file), ranges.as_ptr(), ranges.count() as u32);
            write.offset(at).build().flags(of_len(ranges.bytes()))
        }
        Step::Sync { file, data_only: false } => opcode::Fsync::new(fd(file)).build(),
        Step::Sync { file, data_only: true } => {
            opcode::Fsync::new(fd(file)).flags(FsyncFlags::DATASYNC).build()
        }
        Step::Receive { socket, into, all } => {
            let flags = if all { libc::MSG_WAITALL } else { 0 };
            opcode::Recv::new(fd(socket), into.as_mut_ptr(), length(into)).flags(flags).build()
        }
        Step::Send { socket, bytes, more } => {
            // Sends all of it, so that one request is enough.
            let more = if more { libc::MSG_MORE } else { 0 };
            let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL | more;
            opcode::Send::new(fd(socket), bytes.as_ptr(), length(bytes)).flags(flags).build()
        }
        Step::Lend { socket, bytes, .. } => {
            let lend = opcode::SendZc::new(fd(socket), bytes.as_ptr(), length(bytes));
            lend.flags(libc::MSG_WAITALL).zc_flags(REPORT_USAGE).build()
        }
        step => unreachable!("{step:?} is no request"),
    }
}
