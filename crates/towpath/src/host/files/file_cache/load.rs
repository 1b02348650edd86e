//! Loads: each reads a block once into memory reserved for it, or reads the status of a file.
//!
//! The back end of a queue carries out a load: [`Load::job`] returns what to do, and
//! [`Load::finish`] or [`Load::fail`] pass the result to all waiters. [`Load::carry_out`] does all
//! of that on the caller's thread.

use super::look::Asking;
use super::{Block, Bytes, Failure, FileCache, Place, View};
use rustix::io::Errno;
use std::fs::File;
use std::sync::Arc;
use towpath_io::events::{
    Action, BlockRead, Buffer as JobBuffer, Job, Operation, Outcome, Parts, carry_out,
};
use towpath_io::large_pages::LargeBlock;
use towpath_packet::{Ledger, Site};

/// The right and the duty to read a block or the status of a file. Dropping it gives it up.
pub struct Load {
    what: What,
    is_over: bool,
}

enum What {
    Block(Reading),
    Look(Asking),
}

/// The right and the duty to read a block.
struct Reading {
    ledger: Arc<Ledger>,
    block: Block,
    file: Arc<File>,
    device: u64,
    /// `None` once the read has started.
    buffer: Option<Buffer>,
}

/// Memory that a block is read into.
pub(super) enum Buffer {
    Own(Vec<u8>),
    /// Large pages, and the file opened for direct I/O.
    Large(LargeBlock, Arc<File>),
}

impl Buffer {
    /// Creates a buffer of `len` bytes, in `memory` if it fits.
    pub(super) fn new(memory: Option<Vec<u8>>, len: usize) -> Self {
        let fits = |memory: &Vec<u8>| (len..=2 * len).contains(&memory.capacity());
        let mut buffer = memory.filter(fits).unwrap_or_else(|| vec![0; len]);
        buffer.resize(len, 0);
        Self::Own(buffer)
    }
}

impl Load {
    pub(super) fn new(cache: &FileCache, file: &View, block: Block, buffer: Buffer) -> Self {
        let device = file.version.device;
        let (ledger, file) = (cache.ledger.clone(), file.file.clone());
        let reading = Reading { ledger, block, file, device, buffer: Some(buffer) };
        Self { what: What::Block(reading), is_over: false }
    }

    /// Takes the job to carry out; only the first call returns it.
    pub(crate) fn job(&mut self) -> Option<Job> {
        match &mut self.what {
            What::Block(reading) => reading.job(),
            What::Look(asking) => asking.job(),
        }
    }

    /// Carries the load out on this thread, which may block for as long as the disk takes, and
    /// passes the result to all waiters.
    pub fn carry_out(mut self) {
        let Some(job) = self.job() else { return };
        match carry_out(job) {
            Ok(Outcome { bytes, failure, parts }) => match failure.filter(|_| bytes == 0) {
                None => self.finish(bytes as usize, parts),
                Some(why) => self.fail(why),
            },
            Err(why) => self.fail(why),
        }
    }

    /// Returns the device of the file.
    pub(crate) fn device(&self) -> u64 {
        match &self.what {
            What::Block(reading) => reading.device,
            What::Look(asking) => asking.device,
        }
    }

    /// Returns true if there is a waiter.
    pub(crate) fn is_wanted(&self) -> bool {
        match &self.what {
            What::Block(reading) => reading.is_wanted(),
            What::Look(asking) => asking.is_wanted(),
        }
    }

    /// Completes the load: `count` bytes were read.
    pub(crate) fn finish(mut self, count: usize, parts: Parts) {
        self.is_over = true;
        match (&self.what, parts) {
            (What::Look(asking), Parts::Status(status)) => asking.end(Ok(status)),
            (What::Block(reading), parts) => reading.finish(count, parts),
            (What::Look(_), _) => unreachable!("it was asked what a file is like"),
        }
    }

    /// Completes the load with an error.
    pub(crate) fn fail(mut self, why: Errno) {
        self.end(Failure::Error(why));
    }

    fn end(&mut self, why: Failure) {
        self.is_over = true;
        match &self.what {
            What::Block(reading) => reading.end(Err(why)),
            What::Look(asking) => asking.end(Err(why)),
        }
    }
}

impl From<Asking> for Load {
    fn from(asking: Asking) -> Self {
        Self { what: What::Look(asking), is_over: false }
    }
}

impl Reading {
    fn job(&mut self) -> Option<Job> {
        let (file, at) = (self.file.clone(), self.block.at);
        Some(match self.buffer.take()? {
            Buffer::Own(buffer) => {
                let (action, buffer) = (Action::Read(at), buffer.into());
                Job::File(Operation { action, file, buffer })
            }
            Buffer::Large(block, direct) => {
                Job::ReadBlock(BlockRead { file, direct: Some(direct), at, block })
            }
        })
    }

    fn is_wanted(&self) -> bool {
        let own = 1 + usize::from(self.block.place.is_some());
        Arc::strong_count(&self.block.content) > own
    }

    fn finish(&self, count: usize, parts: Parts) {
        let (bytes, is_direct) = match parts {
            Parts::Buffer(JobBuffer::Vec(mut buffer)) => {
                buffer.truncate(count);
                (Bytes::Own(buffer), false)
            }
            Parts::Block(block, is_direct) => (Bytes::Large(block, count), is_direct),
            _ => unreachable!("a read has a buffer or a block"),
        };
        match &self.block.place {
            Some(place) if is_direct => place.cache.lock().stats.direct += 1,
            _ => self.ledger.count(Site::File, count),
        }
        self.end(Ok(bytes));
    }

    fn end(&self, result: Result<Bytes, Failure>) {
        // Later requests do not find the failed block, so they try again.
        if let (Err(_), Some(Place { cache, key, number })) = (&result, &self.block.place) {
            cache.forget(key, *number);
        }
        self.block.content.bytes.set(result);
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        if !self.is_over {
            self.end(Failure::GivenUp);
        }
    }
}
