//! The only importer of atomics: from `core` in a normal build, from loom's model with `--cfg
//! loom`. Cells and counted references that loom checks come from here, too.

#[cfg(not(loom))]
pub use alloc::sync::Arc;
pub use core::sync::atomic::compiler_fence;
#[cfg(not(loom))]
pub use core::sync::atomic::{
    AtomicBool, AtomicIsize, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
    Ordering, fence,
};
#[cfg(loom)]
pub use loom::cell::UnsafeCell;
#[cfg(loom)]
pub use loom::sync::Arc;
#[cfg(loom)]
pub use loom::sync::atomic::{
    AtomicBool, AtomicIsize, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
    Ordering, fence,
};

/// A cell whose content is accessed by address. Loom's cell has the same calls and detects data
/// races.
#[cfg(not(loom))]
#[derive(Debug)]
pub struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    /// A cell with this content.
    pub const fn new(content: T) -> Self {
        Self(core::cell::UnsafeCell::new(content))
    }

    /// Calls `look` with the address of the content. `look` only reads it.
    #[inline(always)]
    pub fn with<R>(&self, look: impl FnOnce(*const T) -> R) -> R {
        look(self.0.get())
    }

    /// Calls `change` with the address of the content. `change` may write it.
    #[inline(always)]
    pub fn with_mut<R>(&self, change: impl FnOnce(*mut T) -> R) -> R {
        change(self.0.get())
    }
}

/// Stands, in the model, for memory behind a pointer, whose accesses loom does not see. Empty in a
/// normal build.
pub(crate) struct Shadow {
    #[cfg(loom)]
    cell: UnsafeCell<()>,
}

impl Shadow {
    pub(crate) fn new() -> Self {
        Self {
            #[cfg(loom)]
            cell: UnsafeCell::new(()),
        }
    }

    /// Tells the model that the memory is read here.
    #[inline(always)]
    pub(crate) fn read(&self) {
        #[cfg(loom)]
        self.cell.with(|_| ());
    }

    /// Tells the model that the memory is written or freed here.
    #[inline(always)]
    pub(crate) fn write(&self) {
        #[cfg(loom)]
        self.cell.with_mut(|_| ());
    }
}
