//! The memory under a pool: one zeroed stretch, freed after its last frame.
#![allow(unsafe_code)]

use alloc::alloc::{Layout, alloc_zeroed, dealloc};
use core::ptr::NonNull;

/// Frames begin at multiples of this, so that none shares a cache line.
pub(crate) const FRAME_ALIGN: usize = 64;

/// Memory of a pool. Kept alive by the pool and by every loan of one of its frames.
pub(crate) struct Region {
    memory: NonNull<u8>,
    layout: Layout,
}

// SAFETY: plain memory; who may touch which part is decided by frames and pieces.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// At least `bytes` of zeroed memory, untouched until used; `None` if the system has not so
    /// much.
    pub(crate) fn try_new(bytes: usize) -> Option<Self> {
        // A small alignment lets the allocator map zero pages instead of clearing memory.
        let layout = Layout::from_size_align(bytes.max(1).checked_add(FRAME_ALIGN)?, 8).ok()?;
        // SAFETY: the size is not zero.
        let memory = unsafe { alloc_zeroed(layout) };
        Some(Self { memory: NonNull::new(memory)?, layout })
    }

    /// Where the first frame begins, at a multiple of [`FRAME_ALIGN`].
    pub(crate) fn first_frame(&self) -> NonNull<u8> {
        let skip = self.memory.as_ptr().align_offset(FRAME_ALIGN);
        assert!(skip < FRAME_ALIGN);
        // SAFETY: the allocation is `FRAME_ALIGN` bytes longer than the frames need.
        unsafe { self.memory.add(skip) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: allocated in `try_new` with this layout; the last user is gone.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}
