//! How many locks of this library each thread has.
//!
//! A signal handler may interrupt a thread that has a lock, and make a call that needs it: the
//! thread would wait for itself. If the handler leaves by `longjmp(3)`, the lock is never released,
//! and so would each later call. The functions of `abi` therefore refuse calls of a thread that has
//! a lock or waits for one (`EDEADLK`).
//!
//! Cost: two changes of a word of the thread for each lock, no atomic operation.
//!
//! Limit: no thread can see that another one has left a call. It waits for the lock.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use towpath::layers::packet::sync::light_fence;

thread_local! {
    /// Needs no destructor and no memory, so signal handlers can use it.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// Counts a lock of this thread, from before it is asked for until after it is released.
#[derive(Debug)]
pub struct Held {
    /// Belongs to the thread that made it.
    _thread: PhantomData<*const ()>,
}

impl Held {
    /// Counts a lock that the caller asks for next.
    pub fn count() -> Self {
        HELD.set(HELD.get() + 1);
        // A handler that interrupts this thread with the lock sees the count.
        light_fence();
        Self { _thread: PhantomData }
    }

    /// True if this thread has a lock or waits for one: the caller is a signal handler, or a
    /// handler has left a call.
    pub fn is_any() -> bool {
        HELD.get() > 0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        light_fence();
        HELD.set(HELD.get() - 1);
    }
}

/// A lock that is counted. It is released before it is no longer counted.
#[derive(Debug)]
pub struct Counted<G> {
    guard: G,
    _held: Held,
}

impl<G> Counted<G> {
    /// Takes a lock.
    pub fn take(lock: impl FnOnce() -> G) -> Self {
        let held = Held::count();
        Self { guard: lock(), _held: held }
    }

    /// Waits with the lock, which `wait` releases and takes again.
    #[cfg(feature = "packetdrill")]
    pub(crate) fn wait<R>(self, wait: impl FnOnce(G) -> (G, R)) -> (Self, R) {
        let Self { guard, _held } = self;
        let (guard, result) = wait(guard);
        (Self { guard, _held }, result)
    }
}

impl<G: Deref> Deref for Counted<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Counted<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}
