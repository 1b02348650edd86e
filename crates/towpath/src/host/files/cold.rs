//! Cold blocks of a file cache: those that were read past the kernel's cache.
//!
//! # Theory of operation
//!
//! A block that neither the file cache nor the kernel has is most likely read once, as one of a
//! large file. It is read into memory in large pages without a copy by the processor, and the
//! kernel keeps nothing of it. These blocks have a quarter of the cache for themselves, which is
//! set aside when the first of them is wanted, and only one another to give way to, so that what is
//! read once drives out nothing else.
//!
//! One that is wanted again after it gave way was read once too often: it is
//! [known](Cold::is_first) by a mark, and read by way of the kernel, which keeps it for the next
//! time. A mark that another block has overwritten is forgotten, which costs one more such read.

use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::Arc;
use towpath_io::large_pages::{LARGE_PAGE_BYTES, LargeBlock, LargePages};

/// The part of a cache that is for cold blocks.
const COLD_PART: usize = 4;
/// Marks of blocks: those of 16 GiB, in 256 KiB of memory.
const MARKS: usize = 1 << 16;

/// See the module's documentation.
pub(in crate::host) struct Cold {
    /// What is set aside when it is first needed; zero if that is too little, or failed.
    reserve: usize,
    area: Option<Arc<LargePages>>,
    /// Of blocks that were read past the kernel's cache, where their hash says. Empty before the
    /// first.
    marks: Vec<u32>,
    hasher: RandomState,
}

impl Cold {
    /// That of a cache of `limit` bytes.
    pub(in crate::host) fn new(limit: usize) -> Self {
        let part = limit / COLD_PART;
        let reserve = part - part % LARGE_PAGE_BYTES;
        Self { reserve, area: None, marks: Vec::new(), hasher: RandomState::new() }
    }

    /// False if a block is not to be read past the kernel's cache, as it was before, or as there
    /// is no memory for that.
    pub(in crate::host) fn is_first(&self, key: &impl Hash) -> bool {
        let (at, mark) = self.mark(key);
        self.reserve > 0 && self.marks.get(at) != Some(&mark)
    }

    /// Bytes that are to be set aside before there are blocks: none if that was done.
    pub(in crate::host) fn missing(&self) -> usize {
        if self.area.is_some() { 0 } else { self.reserve }
    }

    /// What is missing was set aside. False if the system has no such memory: then there never is.
    pub(in crate::host) fn fill(&mut self) -> bool {
        self.area = LargePages::new(self.reserve / LARGE_PAGE_BYTES).ok();
        if self.area.is_none() {
            self.reserve = 0;
        }
        self.area.is_some()
    }

    /// Memory that no block has.
    pub(in crate::host) fn take(&self) -> Option<LargeBlock> {
        self.area.as_ref()?.take()
    }

    /// A block is read past the kernel's cache.
    pub(in crate::host) fn note(&mut self, key: &impl Hash) {
        if self.marks.is_empty() {
            self.marks.resize(MARKS, 0);
        }
        let (at, mark) = self.mark(key);
        self.marks[at] = mark;
    }

    /// Where the mark of a block is, and what it is.
    fn mark(&self, key: &impl Hash) -> (usize, u32) {
        let hash = self.hasher.hash_one(key);
        // The empty place has none of them.
        (hash as usize % MARKS, (hash >> 32) as u32 | 1)
    }
}
