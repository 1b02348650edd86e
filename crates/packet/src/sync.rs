//! The only importer of atomics: from `core` in a normal build, from loom's model with `--cfg
//! loom`. Cells, counted references and mutexes that loom checks come from here, too. In the unit
//! tests of this package, the atomics count what is done with them (`counted`).

#[cfg(loom)]
pub use all_threads::pass as light_fence;
#[cfg(not(loom))]
pub use alloc::sync::Arc;
#[cfg(not(loom))]
pub use core::sync::atomic::Ordering;
#[cfg(not(loom))]
use core::sync::atomic::compiler_fence;
#[cfg(not(any(loom, test)))]
pub use core::sync::atomic::{
    AtomicBool, AtomicIsize, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
    fence,
};
#[cfg(all(test, not(loom)))]
pub use counted::{
    AtomicBool, AtomicIsize, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
    fence,
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

/// Atomics that count the read-modify-writes and full fences of each thread, so that tests can
/// check what a call costs. They have only the methods that this package uses: none goes uncounted.
#[cfg(all(test, not(loom)))]
pub(crate) mod counted {
    use super::Ordering;
    use core::cell::Cell;
    use core::sync::atomic;

    /// What a thread did.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Counts {
        /// Read-modify-writes, also those that fail to exchange.
        pub(crate) changes: u32,
        /// Full fences.
        pub(crate) fences: u32,
    }

    std::thread_local! {
        static COUNTS: Cell<Counts> = const { Cell::new(Counts { changes: 0, fences: 0 }) };
    }

    /// Returns what this thread does in `work`.
    pub(crate) fn count(work: impl FnOnce()) -> Counts {
        COUNTS.set(Counts::default());
        work();
        COUNTS.get()
    }

    fn count_change() {
        let counts = COUNTS.get();
        COUNTS.set(Counts { changes: counts.changes + 1, ..counts });
    }

    /// As `core`'s.
    pub fn fence(order: Ordering) {
        if order == Ordering::SeqCst {
            let counts = COUNTS.get();
            COUNTS.set(Counts { fences: counts.fences + 1, ..counts });
        }
        atomic::fence(order);
    }

    macro_rules! counted {
        ($($name:ident $(<$T:ident>)?: $value:ty { $($change:ident)* })*) => {$(
            /// As `core`'s.
            #[derive(Debug, Default)]
            pub struct $name $(<$T>)? (atomic::$name $(<$T>)?);

            impl $(<$T>)? $name $(<$T>)? {
                /// As `core`'s.
                pub const fn new(value: $value) -> Self {
                    Self(atomic::$name::new(value))
                }

                /// As `core`'s.
                pub fn load(&self, order: Ordering) -> $value {
                    self.0.load(order)
                }

                /// As `core`'s. With the strictest order, it is an exchange.
                pub fn store(&self, value: $value, order: Ordering) {
                    if order == Ordering::SeqCst {
                        count_change();
                    }
                    self.0.store(value, order);
                }

                $(
                    /// As `core`'s.
                    pub fn $change(&self, value: $value, order: Ordering) -> $value {
                        count_change();
                        self.0.$change(value, order)
                    }
                )*

                /// As `core`'s.
                pub fn compare_exchange(
                    &self,
                    current: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    count_change();
                    self.0.compare_exchange(current, new, success, failure)
                }

                /// As `core`'s.
                pub fn compare_exchange_weak(
                    &self,
                    current: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    count_change();
                    self.0.compare_exchange_weak(current, new, success, failure)
                }

                /// As `core`'s.
                pub fn fetch_update(
                    &self,
                    success: Ordering,
                    failure: Ordering,
                    mut change: impl FnMut($value) -> Option<$value>,
                ) -> Result<$value, $value> {
                    self.0.fetch_update(success, failure, |value| {
                        change(value).inspect(|_| count_change())
                    })
                }
            }
        )*};
    }

    counted! {
        AtomicBool: bool { swap fetch_and fetch_or }
        AtomicU8: u8 { swap fetch_add fetch_sub fetch_and fetch_or fetch_xor }
        AtomicU16: u16 { swap fetch_add fetch_sub fetch_and fetch_or fetch_xor }
        AtomicU32: u32 { swap fetch_add fetch_sub fetch_and fetch_or fetch_xor }
        AtomicU64: u64 { swap fetch_add fetch_sub fetch_and fetch_or fetch_xor }
        AtomicUsize: usize { swap fetch_add fetch_sub fetch_and fetch_or fetch_xor }
        AtomicIsize: isize { swap fetch_add fetch_sub fetch_and fetch_or fetch_xor }
        AtomicPtr<T>: *mut T { swap }
    }
}
