//! Blocks of memory in large pages, for reads that bypass the page cache.
//!
//! A disk takes a list of memory ranges, so a read reaches its full speed only where the ranges are
//! long. An area is one mapping. It takes memory when its blocks are first used, in large pages if
//! the system has some, and keeps it until the area and all of its blocks are dropped.
//!
//! Any thread takes and drops blocks. A lock protects the free list and is held briefly.
#![allow(unsafe_code)]

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of a block.
pub const LARGE_BLOCK_BYTES: usize = 256 << 10;
/// Bytes of a large page. An area has at least this size.
pub const LARGE_PAGE_BYTES: usize = 2 << 20;
const BLOCKS_PER_PAGE: usize = LARGE_PAGE_BYTES / LARGE_BLOCK_BYTES;

/// An area: memory for blocks.
///
/// Invariants: `map` is our private mapping of `map_len` bytes, readable and writable. The blocks
/// lie in it from `first` on. Each block is either in `free` or in exactly one [`LargeBlock`].
pub struct LargePages {
    map: NonNull<u8>,
    map_len: usize,
    /// Offset of the first block in the mapping.
    first: usize,
    /// Blocks not in use, as a stack.
    free: Mutex<Vec<u32>>,
}

// SAFETY: the memory does not belong to a thread. It is reached only through blocks, each of which
// has one owner, and the free list is behind a lock.
unsafe impl Send for LargePages {}
// SAFETY: a shared area only hands out blocks, each to one owner, and the free list is behind a
// lock.
unsafe impl Sync for LargePages {}

/// A block of an area. Its owner has exclusive access to its bytes. They are zeros at first, and
/// later what the previous owner left.
pub struct LargeBlock {
    area: Arc<LargePages>,
    number: u32,
}

impl LargePages {
    /// Maps an area of `pages` large pages, at least one.
    ///
    /// # Errors
    /// Those of mmap(2); `NOMEM` if the size overflows.
    pub fn new(pages: usize) -> Result<Arc<Self>, Errno> {
        let pages = pages.max(1);
        let blocks = pages.checked_mul(BLOCKS_PER_PAGE).and_then(|count| u32::try_from(count).ok());
        let blocks = blocks.ok_or(Errno::NOMEM)?;
        // One more, so that the blocks can start at a multiple of a large page.
        let map_len = (pages + 1).checked_mul(LARGE_PAGE_BYTES).ok_or(Errno::NOMEM)?;
        let (hint, access) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: without an address hint and `MAP_FIXED`, the kernel places the new mapping where
        // no memory is in use.
        let map = unsafe { mmap_anonymous(hint, map_len, access, flags) }?;
        let map = NonNull::new(map.cast::<u8>()).ok_or(Errno::FAULT)?;
        let first = map.addr().get().next_multiple_of(LARGE_PAGE_BYTES) - map.addr().get();
        // The first block is taken first, so that few pages are in use.
        let free = Mutex::new((0..blocks).rev().collect());
        let area = Self { map, map_len, first, free };
        // Without large pages, the mapping uses small ones.
        // SAFETY: the range is the mapping made above, and this advice changes only how it is
        // paged.
        let _ = unsafe { madvise(map.as_ptr().cast(), map_len, Advice::LinuxHugepage) };
        Ok(Arc::new(area))
    }

    /// Takes a free block, if there is one.
    pub fn take(self: &Arc<Self>) -> Option<LargeBlock> {
        let number = self.lock().pop()?;
        Some(LargeBlock { area: self.clone(), number })
    }

    /// Address of a block.
    fn start(&self, number: u32) -> NonNull<u8> {
        let at = self.first + number as usize * LARGE_BLOCK_BYTES;
        // SAFETY: `first` is less than the size of a large page, and the mapping has one large page
        // more than the blocks take. So every block lies in the mapping.
        unsafe { self.map.add(at) }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u32>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for LargePages {
    fn drop(&mut self) {
        // SAFETY: this is our own mapping, and no reference into it is left, because every block
        // keeps the area alive. Unmapping a whole mapping cannot fail.
        let _ = unsafe { munmap(self.map.as_ptr().cast(), self.map_len) };
    }
}

impl Deref for LargeBlock {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let start = self.area.start(self.number);
        // SAFETY: the block stays mapped while the area lives, and `self` keeps it alive. A block
        // that is taken is not in the free list, so no other `LargeBlock` has its bytes; `self` is
        // borrowed. The bytes are initialised, because the mapping starts as zeros.
        unsafe { NonNull::slice_from_raw_parts(start, LARGE_BLOCK_BYTES).as_ref() }
    }
}

impl DerefMut for LargeBlock {
    fn deref_mut(&mut self) -> &mut [u8] {
        let start = self.area.start(self.number);
        // SAFETY: the block stays mapped while the area lives, and `self` keeps it alive. No other
        // `LargeBlock` has its bytes, and `self` is borrowed exclusively. The mapping started as
        // zeros.
        unsafe { NonNull::slice_from_raw_parts(start, LARGE_BLOCK_BYTES).as_mut() }
    }
}

impl Drop for LargeBlock {
    fn drop(&mut self) {
        // Never allocates: the list was made for all blocks.
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

    /// Goal: blocks are aligned as a disk requires, have one owner each, and are used again; the
    /// memory lives as long as the last block.
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

    /// Goal: an area larger than the address space is refused.
    #[test]
    fn more_than_all_memory_is_refused() {
        for pages in [usize::MAX, usize::MAX / LARGE_PAGE_BYTES, 1 << 40] {
            assert_eq!(LargePages::new(pages).map(drop), Err(Errno::NOMEM), "{pages}");
        }
        assert!(LargePages::new(0).expect("one page").take().is_some());
    }
}
