//! Loads: reading blocks once, into memory that was found for them, and asking what files are like.
//!
//! A load is carried out by the back end of a queue: [`Load::job`] says what is to be done, and
//! [`Load::finish`] or [`Load::fail`] what became of it, of which all who wait for it hear.

use super::look::Asking;
use super::{Block, Bytes, Failure, FileCache, Place, View};
use rustix::io::Errno;
use std::fs::File;
use std::sync::Arc;
use towpath_io::events::{Action, BlockRead, Job, Operation, Parts};
use towpath_io::large_pages::LargeBlock;
use towpath_packet::{Ledger, Site};

/// The right and the duty to read a block, or to ask what a file is like. One that is dropped is
/// given up.
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
    /// Until it is begun.
    buffer: Option<Buffer>,
}

/// What a block is read into.
pub(super) enum Buffer {
    Own(Vec<u8>),
    /// From this file, past the kernel's cache.
    Large(LargeBlock, Arc<File>),
}

impl Buffer {
    /// Of `len` bytes, in `memory` if it fits.
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

    /// What is to be done; once.
    pub(crate) fn job(&mut self) -> Option<Job> {
        match &mut self.what {
            What::Block(reading) => reading.job(),
            What::Look(asking) => asking.job(),
        }
    }

    /// The device that the file is on.
    pub(crate) fn device(&self) -> u64 {
        match &self.what {
            What::Block(reading) => reading.device,
            What::Look(asking) => asking.device,
        }
    }

    /// True if somebody waits for it.
    pub(crate) fn is_wanted(&self) -> bool {
        match &self.what {
            What::Block(reading) => reading.is_wanted(),
            What::Look(asking) => asking.is_wanted(),
        }
    }

    /// It was done: so many bytes were read.
    pub(crate) fn finish(mut self, count: usize, parts: Parts) {
        self.is_over = true;
        match (&self.what, parts) {
            (What::Look(asking), Parts::Status(status)) => asking.end(Ok(status)),
            (What::Block(reading), parts) => reading.finish(count, parts),
            (What::Look(_), _) => unreachable!("it was asked what a file is like"),
        }
    }

    /// It could not be done.
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
            Buffer::Own(buffer) => Job::File(Operation { action: Action::Read(at), file, buffer }),
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
            Parts::Buffer(mut buffer) => {
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
        // Whoever comes after those who hear of the error tries again.
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
