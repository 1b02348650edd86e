//! io_uring without towpath, the baseline for operations on files. Unsafe zone: the kernel writes
//! to a buffer until it reports the read as complete.
//!
//! One file, reads of one size, and a buffer for each read in flight. The number of the buffer
//! identifies the read. Each buffer is a separate allocation, which nothing touches from
//! [`PlainRing::read`] until its completion was taken. Dropping the ring waits for reads in flight.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use anyhow::{Context, ensure};
use io_uring::types::Fd;
use io_uring::{IoUring, opcode};

/// A ring that reads one file. See the module documentation.
pub(super) struct PlainRing {
    ring: IoUring,
    file: Arc<File>,
    buffers: Vec<Vec<u8>>,
    /// Buffers without a read in flight.
    free: Vec<usize>,
}

impl PlainRing {
    /// A ring for at most `depth` concurrent reads of `bytes` bytes each.
    pub(super) fn new(file: Arc<File>, bytes: usize, depth: usize) -> anyhow::Result<Self> {
        let ring = IoUring::new(depth as u32).context("io_uring")?;
        let buffers = vec![vec![0; bytes]; depth];
        Ok(Self { ring, file, buffers, free: (0..depth).collect() })
    }

    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// True if no read is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.free.len() == self.buffers.len()
    }

    /// Queues a read, which starts with the next [wait](Self::wait). There must be
    /// [room](Self::has_room).
    pub(super) fn read(&mut self, at: u64) {
        let number = self.free.pop().expect("there is room");
        let buffer = &mut self.buffers[number];
        let fd = Fd(self.file.as_raw_fd());
        let read = opcode::Read::new(fd, buffer.as_mut_ptr(), buffer.len() as u32);
        let entry = read.offset(at).build().user_data(number as u64);
        // SAFETY: the descriptor is that of `file`, which stays open as long as the ring exists.
        // The buffer is in `free` only after the completion of this read was taken, and code
        // touches only buffers in `free`. `drop` waits for the read, or leaks the buffer.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("as many entries as buffers");
    }

    /// Waits for completed reads; returns how many.
    pub(super) fn wait(&mut self) -> anyhow::Result<usize> {
        self.ring.submit_and_wait(1).context("io_uring_enter")?;
        let (before, mut all) = (self.free.len(), true);
        for completion in self.ring.completion() {
            let number = completion.user_data() as usize;
            all &= usize::try_from(completion.result()) == Ok(self.buffers[number].len());
            self.free.push(number);
        }
        ensure!(all, "a read failed, or the file is truncated");
        Ok(self.free.len() - before)
    }
}

impl Drop for PlainRing {
    fn drop(&mut self) {
        while !self.is_idle() {
            if self.ring.submit_and_wait(1).is_err() {
                // The kernel may still write to the buffers.
                std::mem::take(&mut self.buffers).leak();
                return;
            }
            self.free.extend(self.ring.completion().map(|done| done.user_data() as usize));
        }
    }
}
