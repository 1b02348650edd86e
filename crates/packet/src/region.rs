//! The memory of a pool: one zeroed allocation, or memory of the pool's maker. Freed after its last
//! frame.
#![allow(unsafe_code)]

use alloc::alloc::{Layout, alloc_zeroed, dealloc};
use alloc::boxed::Box;
use core::ptr::NonNull;

/// Alignment of frames, so that no two share a cache line.
pub(crate) const FRAME_ALIGN: usize = 64;

/// Memory of a pool. The pool and every loan of one of its frames keep it alive.
pub(crate) struct Region {
    memory: NonNull<u8>,
    origin: Origin,
}

/// What happens to the memory after the last user.
enum Origin {
    /// It is freed.
    Allocated(Layout),
    /// Its keeper is dropped.
    Kept { _keeper: Box<dyn Send + Sync> },
}

// SAFETY: this is plain memory; frames and pieces decide which thread may access which part.
unsafe impl Send for Region {}
// SAFETY: shared access only reads the address, which never changes.
unsafe impl Sync for Region {}

impl Region {
    /// Allocates at least `bytes` of zeroed memory, whose pages are not touched until they are
    /// used. `None` if there is not enough memory.
    pub(crate) fn try_new(bytes: usize) -> Option<Self> {
        // With a small alignment the allocator maps zero pages instead of clearing memory.
        let layout = Layout::from_size_align(bytes.max(1).checked_add(FRAME_ALIGN)?, 8).ok()?;
        // SAFETY: the size is not zero.
        let memory = unsafe { alloc_zeroed(layout) };
        Some(Self { memory: NonNull::new(memory)?, origin: Origin::Allocated(layout) })
    }

    /// Takes over memory that starts at `memory`, a multiple of [`FRAME_ALIGN`], and stays valid
    /// while `keeper` lives.
    pub(crate) fn kept(memory: NonNull<u8>, keeper: Box<dyn Send + Sync>) -> Self {
        Self { memory, origin: Origin::Kept { _keeper: keeper } }
    }

    /// Address of the first frame, a multiple of [`FRAME_ALIGN`].
    pub(crate) fn first_frame(&self) -> NonNull<u8> {
        let skip = self.memory.as_ptr().align_offset(FRAME_ALIGN);
        assert!(skip < FRAME_ALIGN);
        // SAFETY: an allocation is `FRAME_ALIGN` bytes longer than the frames need, and nothing is
        // skipped in other memory, because it starts at a multiple of that.
        unsafe { self.memory.add(skip) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Origin::Allocated(layout) = self.origin {
            // SAFETY: `try_new` allocated the memory with this layout, and the last user is gone.
            unsafe { dealloc(self.memory.as_ptr(), layout) };
        }
    }
}
