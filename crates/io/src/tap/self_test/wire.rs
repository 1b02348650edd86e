//! Our side of the device during a self-test: reads and writes whole frames within a time limit.
//!
//! The limit is on time spent waiting without success. On a busy machine the thread may be
//! suspended for longer than that; packets that arrived meanwhile are in time.

use super::{Reason, SETTLE_STEP, SETTLE_TIME_MAX, STEP_TIME_MAX, TIME_MAX};
use crate::gather::Gather;
use crate::receive::READS_MAX;
use crate::sys;
use crate::tap::FRAME_BYTES_MAX;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;
use std::cell::Cell;
use std::time::{Duration, Instant};
use towpath_packet::{Offload, VirtioHeader};

pub(super) struct Wire<'a> {
    fd: BorrowedFd<'a>,
    buffer: Vec<u8>,
    begin: Instant,
    /// Remaining time for waiting without success.
    left: Cell<Duration>,
    step: Duration,
    settle: Duration,
}

impl<'a> Wire<'a> {
    /// Each limit is `patience` times its default.
    pub(super) fn new(fd: BorrowedFd<'a>, patience: u32) -> Self {
        let begin = now();
        let buffer = vec![0; VirtioHeader::LEN + FRAME_BYTES_MAX];
        let [left, step, settle] =
            [TIME_MAX, STEP_TIME_MAX, SETTLE_TIME_MAX].map(|limit| limit * patience);
        Self { fd, buffer, begin, left: Cell::new(left), step, settle }
    }

    pub(super) fn elapsed(&self) -> Duration {
        now() - self.begin
    }

    /// Reads frames until `accept` returns a value for one; drops the others.
    pub(super) fn read<T>(
        &mut self,
        mut accept: impl FnMut(&Offload, &[u8]) -> Option<T>,
    ) -> Result<T, Reason> {
        // The kernel sends a few frames of its own.
        for _ in 0..READS_MAX {
            if !self.wait(self.fd, self.step) {
                break;
            }
            let bytes = rustix::io::read(self.fd, &mut self.buffer[..])
                .map_err(|errno| Reason::Failed("read from device", errno))?;
            let Some((header, frame)) = self.buffer[..bytes].split_first_chunk() else { continue };
            let Ok(offload) = VirtioHeader(*header).decode() else { continue };
            if let Some(found) = accept(&offload, frame) {
                return Ok(found);
            }
        }
        Err(Reason::Silent)
    }

    pub(super) fn write(&self, frame: &[u8], offload: &Offload) -> Result<(), Reason> {
        let header = VirtioHeader::encode(offload, header_bytes(offload, frame));
        let mut gather: Gather<'_, 2> = Gather::new();
        gather.push_bytes(&header.0);
        gather.push_bytes(frame);
        sys::write_gather(self.fd, &gather)
            .map(drop)
            .map_err(|errno| Reason::Failed("write to device", errno))
    }

    /// Waits until a written packet reaches the socket `fd`.
    pub(super) fn wait_taken(&self, fd: BorrowedFd<'_>) -> Result<(), Reason> {
        if self.wait(fd, self.step) { Ok(()) } else { Err(Reason::NotTaken) }
    }

    /// Writes a frame repeatedly until it reaches the socket `fd`.
    pub(super) fn settle(
        &self,
        frame: &[u8],
        offload: &Offload,
        fd: BorrowedFd<'_>,
    ) -> Result<(), Reason> {
        let mut waited = Duration::ZERO;
        while waited < self.settle && !self.left.get().is_zero() {
            self.write(frame, offload)?;
            if self.wait(fd, SETTLE_STEP) {
                return Ok(());
            }
            waited += SETTLE_STEP;
        }
        Err(Reason::NotTaken)
    }

    /// Reads and drops the packets left in the device.
    pub(super) fn drain(&mut self) {
        for _ in 0..READS_MAX {
            if !self.wait(self.fd, Duration::ZERO)
                || rustix::io::read(self.fd, &mut self.buffer[..]).is_err()
            {
                return;
            }
        }
    }

    /// True if `fd` became readable within `limit` and the remaining time.
    fn wait(&self, fd: BorrowedFd<'_>, limit: Duration) -> bool {
        let limit = limit.min(self.left.get());
        let timeout =
            Timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos().into() };
        let mut files = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        let ready = poll(&mut files, Some(&timeout)).is_ok_and(|ready| ready > 0)
            && files[0].revents().contains(PollFlags::IN);
        if !ready {
            self.left.set(self.left.get() - limit);
        }
        ready
    }
}

/// Length of the headers up to the payload, for UDP and for TCP without options.
fn header_bytes(offload: &Offload, frame: &[u8]) -> usize {
    use towpath_packet::Checksum;
    let Checksum::Partial { start, offset } = offload.checksum else { return 0 };
    (usize::from(start) + if offset == 6 { 8 } else { 20 }).min(frame.len())
}

#[expect(clippy::disallowed_methods, reason = "runs once, before there is a worker")]
fn now() -> Instant {
    Instant::now()
}
