//! The only importer of atomics: from `core` in a normal build, from loom's model with `--cfg
//! loom`. Cells, counted references and mutexes that loom checks come from here, too.

#[cfg(loom)]
pub use all_threads::pass as light_fence;
#[cfg(not(loom))]
pub use alloc::sync::Arc;
#[cfg(not(loom))]
use core::sync::atomic::compiler_fence;
#[cfg(not(loom))]
pub use core::sync::atomic::{
    AtomicBool, AtomicIsize, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
    Ordering, fence,
};
#[cfg(loom)]
pub use loom::cell::UnsafeCell;
#[cfg(loom)]
pub use loom::sync::atomic::{
    AtomicBool, AtomicIsize, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
    Ordering, fence,
};
#[cfg(loom)]
pub use loom::sync::{Arc, Mutex};
#[cfg(not(loom))]
pub use std::sync::Mutex;

/// The light side of a barrier that another thread makes for all threads: prevents the compiler
/// from reordering this thread's accesses, and costs nothing else.
#[cfg(not(loom))]
#[inline(always)]
pub fn light_fence() {
    compiler_fence(Ordering::SeqCst);
}

/// A model of the barrier of all threads (`membarrier`), which loom does not have.
///
/// Between the begin and the end of such a barrier, every other thread executes a full fence at one
/// point of its program. The model has one other thread. It [`pass`]es the points where the place
/// of the fence makes a difference, and executes the fence there if a barrier has begun. Only these
/// fences order anything: the words that announce them are relaxed.
#[cfg(loom)]
pub mod all_threads {
    use super::{AtomicU32, Ordering, fence};

    loom::lazy_static! {
        /// Barriers begun.
        static ref BEGUN: AtomicU32 = AtomicU32::new(0);
        /// Barriers for which the other thread has executed its fence; all while it does not run.
        static ref PASSED: AtomicU32 = AtomicU32::new(u32::MAX);
    }

    /// The other thread is about to be started.
    pub fn enter() {
        PASSED.store(BEGUN.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// A point at which a barrier may take effect on the other thread, which calls this.
    pub fn pass() {
        let begun = BEGUN.load(Ordering::Relaxed);
        if PASSED.load(Ordering::Relaxed) < begun {
            fence(Ordering::SeqCst);
            PASSED.store(begun, Ordering::Relaxed);
        }
    }

    /// The other thread, which calls this, has done its last access.
    pub fn leave() {
        fence(Ordering::SeqCst);
        PASSED.store(u32::MAX, Ordering::Relaxed);
    }

    /// Makes a barrier.
    pub fn make() {
        fence(Ordering::SeqCst);
        let wanted = BEGUN.fetch_add(1, Ordering::Relaxed) + 1;
        while PASSED.load(Ordering::Relaxed) < wanted {
            loom::thread::yield_now();
        }
        fence(Ordering::SeqCst);
    }
}

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
