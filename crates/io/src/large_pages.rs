//! Blocks of memory in large pages, for reads past the kernel's cache.
//!
//! A disk takes a list of stretches of memory, so reads are as fast as it only where the stretches
//! are long. An area is one mapping; it takes memory when blocks are first used, in large pages if
//! the system has some, and keeps it until the area and all of its blocks are gone.
//!
//! Any thread takes blocks and drops them; a lock is held for a step.
#![allow(unsafe_code)]

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of a block.
pub const LARGE_BLOCK_BYTES: usize = 256 << 10;
/// Bytes of a large page; areas are so many at least.
pub const LARGE_PAGE_BYTES: usize = 2 << 20;
const BLOCKS_PER_PAGE: usize = LARGE_PAGE_BYTES / LARGE_BLOCK_BYTES;

/// Memory for blocks.
///
/// Invariants: `map` is a mapping of `map_len` bytes of ours, to be read and written; the blocks
/// are within it from `first` on, and each is either in `free` or somebody's [`LargeBlock`].
pub struct LargePages {
    map: NonNull<u8>,
    map_len: usize,
    /// Where the first block is.
    first: usize,
    /// Blocks that are nobody's; the next is the last of them.
    free: Mutex<Vec<u32>>,
}

// SAFETY: the memory is the same on any thread, and is reached through blocks only, which are
// exclusive; the list is behind a lock.
unsafe impl Send for LargePages {}
// SAFETY: as above.
unsafe impl Sync for LargePages {}

/// A block of an area: its bytes, which nobody else has. Zeros at first, and later what they were
/// when the block was last dropped.
pub struct LargeBlock {
    area: Arc<LargePages>,
    number: u32,
}

impl LargePages {
    /// An area of so many large pages, or one.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn new(pages: usize) -> Result<Arc<Self>, Errno> {
        let pages = pages.max(1);
        let blocks = pages.checked_mul(BLOCKS_PER_PAGE).and_then(|count| u32::try_from(count).ok());
        let blocks = blocks.ok_or(Errno::NOMEM)?;
        // One more, so that whole ones begin somewhere.
        let map_len = (pages + 1).checked_mul(LARGE_PAGE_BYTES).ok_or(Errno::NOMEM)?;
        let (hint, access) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping where the system likes, which touches no other memory.
        let map = unsafe { mmap_anonymous(hint, map_len, access, flags) }?;
        let map = NonNull::new(map.cast::<u8>()).ok_or(Errno::FAULT)?;
        let first = map.addr().get().next_multiple_of(LARGE_PAGE_BYTES) - map.addr().get();
        // The next one taken is the first of all, so that few pages are used.
        let free = Mutex::new((0..blocks).rev().collect());
        let area = Self { map, map_len, first, free };
        // Without large pages small ones do.
        // SAFETY: it is our own mapping, and the advice changes nothing but how it is paged.
        let _ = unsafe { madvise(map.as_ptr().cast(), map_len, Advice::LinuxHugepage) };
        Ok(Arc::new(area))
    }

    /// A block that is nobody's, if there is one.
    pub fn take(self: &Arc<Self>) -> Option<LargeBlock> {
        let number = self.lock().pop()?;
        Some(LargeBlock { area: self.clone(), number })
    }

    /// Where a block begins.
    fn start(&self, number: u32) -> NonNull<u8> {
        let at = self.first + number as usize * LARGE_BLOCK_BYTES;
        // SAFETY: `first` is less than a large page, of which the mapping has one more than the
        // blocks take, so that each of them is within it.
        unsafe { self.map.add(at) }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u32>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for LargePages {
    fn drop(&mut self) {
        // SAFETY: our own mapping, to which there is no reference any more: blocks keep the area.
        // What is mapped can be unmapped.
        let _ = unsafe { munmap(self.map.as_ptr().cast(), self.map_len) };
    }
}

impl Deref for LargeBlock {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let start = self.area.start(self.number);
        // SAFETY: mapped as long as the area, which `self` keeps; a block that is somebody's is
        // in no list, so that no other has its bytes, and `self` is borrowed. They have been zeros
        // from the beginning.
        unsafe { NonNull::slice_from_raw_parts(start, LARGE_BLOCK_BYTES).as_ref() }
    }
}

impl DerefMut for LargeBlock {
    fn deref_mut(&mut self) -> &mut [u8] {
        let start = self.area.start(self.number);
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { NonNull::slice_from_raw_parts(start, LARGE_BLOCK_BYTES).as_mut() }
    }
}

impl Drop for LargeBlock {
    fn drop(&mut self) {
        // There was room for it.
        self.area.lock().push(self.number);
    }
}

impl fmt::Debug for LargeBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LargeBlock").field(&self.number).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: blocks are where a disk wants them, nobody's but their owner's, and used again; the
    /// memory lives as long as the last of them.
    #[test]
    fn blocks_are_their_owners() {
        let area = LargePages::new(2).expect("memory");
        let mut blocks: Vec<_> = std::iter::from_fn(|| area.take()).collect();
        assert_eq!(blocks.len(), 2 * BLOCKS_PER_PAGE);
        assert!(blocks[0].as_ptr().addr().is_multiple_of(LARGE_PAGE_BYTES));
        for (index, block) in blocks.iter_mut().enumerate() {
            assert!(block.iter().all(|byte| *byte == 0));
            block.fill(index as u8 + 1);
        }
        for (index, block) in blocks.iter().enumerate() {
            assert_eq!(block.len(), LARGE_BLOCK_BYTES);
            assert!(block.iter().all(|byte| *byte == index as u8 + 1));
        }
        let again = blocks.remove(5).as_ptr();
        let block = area.take().expect("one came back");
        assert_eq!((block.as_ptr(), block[0]), (again, 6));
        assert!(area.take().is_none());
        drop((area, blocks));
        let user = std::thread::spawn(move || block[LARGE_BLOCK_BYTES - 1]);
        assert_eq!(user.join().expect("no panic"), 6);
    }

    /// Goal: more than there can be is an error.
    #[test]
    fn more_than_all_memory_is_refused() {
        for pages in [usize::MAX, usize::MAX / LARGE_PAGE_BYTES, 1 << 40] {
            assert_eq!(LargePages::new(pages).map(drop), Err(Errno::NOMEM), "{pages}");
        }
        assert!(LargePages::new(0).expect("one page").take().is_some());
    }
}
