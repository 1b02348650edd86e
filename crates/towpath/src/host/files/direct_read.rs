//! Cold blocks of a file cache: blocks that are read with direct I/O, past the kernel's page cache.
//!
//! # Theory of operation
//!
//! A block that is neither in the file cache nor in the page cache most likely belongs to a large
//! file that is read once. It is read into large pages without a copy by the processor, and leaves
//! nothing in the page cache. Cold blocks have a quarter of the cache for themselves, set aside
//! when the first one is wanted, and evict only each other. So data that is read once evicts
//! nothing else.
//!
//! A block that is wanted again after its eviction is not cold after all. A mark
//! [identifies](Cold::is_first) it; it is then read through the page cache, which keeps it for the
//! next time. If another block has overwritten the mark, one more direct read is the only cost.

use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::Arc;
use towpath_io::large_pages::{LARGE_PAGE_BYTES, LargeBlock, LargePages};

/// A cache sets aside one part in this many for cold blocks.
const COLD_PART: usize = 4;
/// Number of marks: enough for the blocks of 16 GiB, in 256 KiB of memory.
const MARKS: usize = 1 << 16;

/// The cold blocks of a file cache. See the module documentation.
pub(in crate::host) struct Cold {
    /// Bytes to set aside when first needed; zero if the cache is too small, or if the allocation
    /// failed.
    reserve: usize,
    area: Option<Arc<LargePages>>,
    /// Marks of blocks that were read directly, indexed by hash. Empty before the first one.
    marks: Vec<u32>,
    hasher: RandomState,
}

impl Cold {
    /// Creates the cold part of a cache of `limit` bytes.
    pub(in crate::host) fn new(limit: usize) -> Self {
        let part = limit / COLD_PART;
        let reserve = part - part % LARGE_PAGE_BYTES;
        Self { reserve, area: None, marks: Vec::new(), hasher: RandomState::new() }
    }

    /// Returns true if a block may be read directly: it was not read so before, and there is memory
    /// for it.
    pub(in crate::host) fn is_first(&self, key: &impl Hash) -> bool {
        let (at, mark) = self.mark(key);
        self.reserve > 0 && self.marks.get(at) != Some(&mark)
    }

    /// Returns the bytes to set aside before the first block; zero once that was done.
    pub(in crate::host) fn missing(&self) -> usize {
        if self.area.is_some() { 0 } else { self.reserve }
    }

    /// Allocates the memory to set aside. Returns false if the system has none; there is no further
    /// attempt.
    pub(in crate::host) fn fill(&mut self) -> bool {
        self.area = LargePages::new(self.reserve / LARGE_PAGE_BYTES).ok();
        if self.area.is_none() {
            self.reserve = 0;
        }
        self.area.is_some()
    }

    /// Takes the memory of a free block.
    pub(in crate::host) fn take(&self) -> Option<LargeBlock> {
        self.area.as_ref()?.take()
    }

    /// Marks a block that is read directly.
    pub(in crate::host) fn note(&mut self, key: &impl Hash) {
        if self.marks.is_empty() {
            self.marks.resize(MARKS, 0);
        }
        let (at, mark) = self.mark(key);
        self.marks[at] = mark;
    }

    /// Returns the index of a block's mark and its value.
    fn mark(&self, key: &impl Hash) -> (usize, u32) {
        let hash = self.hasher.hash_one(key);
        // The lowest bit distinguishes a mark from an empty place.
        (hash as usize % MARKS, (hash >> 32) as u32 | 1)
    }
}
