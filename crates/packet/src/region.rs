//! The memory of a pool: one zeroed allocation, freed after its last frame.
#![allow(unsafe_code)]

use alloc::alloc::{Layout, alloc_zeroed, dealloc};
use core::ptr::NonNull;

/// Alignment of frames, so that no two share a cache line.
pub(crate) const FRAME_ALIGN: usize = 64;

/// Memory of a pool. The pool and every loan of one of its frames keep it alive.
pub(crate) struct Region {
    memory: NonNull<u8>,
    layout: Layout,
}

// SAFETY: this is plain memory; frames and pieces decide which thread may access which part.
unsafe impl Send for Region {}
// SAFETY: shared access only reads the address and the layout, which never change.
unsafe impl Sync for Region {}

impl Region {
    /// Allocates at least `bytes` of zeroed memory, whose pages are not touched until they are
    /// used. `None` if there is not enough memory.
    pub(crate) fn try_new(bytes: usize) -> Option<Self> {
        // With a small alignment the allocator maps zero pages instead of clearing memory.
        let layout = Layout::from_size_align(bytes.max(1).checked_add(FRAME_ALIGN)?, 8).ok()?;
        // SAFETY: the size is not zero.
        let memory = unsafe { alloc_zeroed(layout) };
        Some(Self { memory: NonNull::new(memory)?, layout })
    }

    /// Address of the first frame, a multiple of [`FRAME_ALIGN`].
    pub(crate) fn first_frame(&self) -> NonNull<u8> {
        let skip = self.memory.as_ptr().align_offset(FRAME_ALIGN);
        assert!(skip < FRAME_ALIGN);
        // SAFETY: the allocation is `FRAME_ALIGN` bytes longer than the frames need.
        unsafe { self.memory.add(skip) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `try_new` allocated the memory with this layout, and the last user is gone.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}
