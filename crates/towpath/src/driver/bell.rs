//! Wakes a worker that sleeps. A ring costs nothing if the worker is awake.
//!
//! A thread that makes many calls in a row holds back the rings of each ([`hold`]) and releases
//! them together ([`let_ring`]). Otherwise the first ring would wake the worker, which would then
//! compete for its lock while the thread still needs it, and would find the work piece by piece.

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::cell::RefCell;
use std::sync::Arc;
use std::task::Wake;
use towpath_packet::sync::{AtomicBool, Ordering};

/// An eventfd, and whether the worker waits for it.
pub struct Bell {
    asleep: AtomicBool,
    alarm: OwnedFd,
}

impl Bell {
    /// Creates the bell of a worker that is awake.
    ///
    /// # Errors
    /// `EMFILE` or `ENFILE` if no descriptor is left.
    pub fn new() -> Result<Self, Errno> {
        let alarm = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { asleep: AtomicBool::new(false), alarm })
    }

    /// Wakes the worker if it sleeps or is about to. The caller has published the work before,
    /// under the lock that the worker takes before it sleeps, or in a ring to which the worker
    /// announces its sleep.
    pub fn ring(self: &Arc<Self>) {
        let is_held = DEFERRED.try_with(|held| held.borrow_mut().add(self));
        if !is_held.unwrap_or(false) {
            self.ring_now();
        }
    }

    fn ring_now(&self) {
        // Relaxed: the driver's lock orders the accesses. If this thread held the lock before the
        // worker, the worker sees the work; if after, this thread sees `asleep`. That also covers a
        // ring that was held back: its thread held the lock before it called `ring`. A ring of
        // packets does the same by its announcements: the worker sets `asleep` before it announces
        // its sleep, and this thread has seen that.
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            // Fails only if the counter is full; then the bell rings already.
            let _ = rustix::io::write(&self.alarm, &1_u64.to_ne_bytes());
        }
    }

    /// Wakes the worker for work that it finds only when it is awake and that no lock publishes.
    fn ring_anyhow(&self) {
        // Fails only if the counter is full; then the bell rings already.
        let _ = rustix::io::write(&self.alarm, &1_u64.to_ne_bytes());
    }

    /// The worker is about to look for work a last time and then to sleep.
    pub(crate) fn going_to_sleep(&self) {
        // Relaxed: see `ring`.
        self.asleep.store(true, Ordering::Relaxed);
    }

    /// The worker is awake. `rang` is true if the alarm woke it.
    pub(crate) fn is_up(&self, rang: bool) {
        // Relaxed: see `ring`.
        self.asleep.store(false, Ordering::Relaxed);
        if rang {
            // An empty counter is no error.
            let _ = rustix::io::read(&self.alarm, &mut [0; 8]);
        }
    }
}

/// Rings that this thread holds back.
#[derive(Default)]
struct DeferredRings {
    is_on: bool,
    bells: Vec<Arc<Bell>>,
}

thread_local! {
    static DEFERRED: RefCell<DeferredRings> = RefCell::default();
}

impl DeferredRings {
    /// Keeps a ring and returns true if this thread holds rings back.
    fn add(&mut self, bell: &Arc<Bell>) -> bool {
        if self.is_on && !self.bells.iter().any(|known| Arc::ptr_eq(known, bell)) {
            self.bells.push(bell.clone());
        }
        self.is_on
    }
}

/// Runs `act` and holds back the rings that it causes. The thread must call [`let_ring`] before it
/// waits for anything.
pub(crate) fn hold<R>(act: impl FnOnce() -> R) -> R {
    /// Ends the holding, also if `act` panics.
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            let _ = DEFERRED.try_with(|held| held.borrow_mut().is_on = false);
        }
    }
    let _ = DEFERRED.try_with(|held| held.borrow_mut().is_on = true);
    let _end = End;
    act()
}

/// Wakes the workers whose rings this thread has held back.
pub(crate) fn let_ring() {
    let _ = DEFERRED.try_with(|held| {
        held.borrow_mut().bells.drain(..).for_each(|bell| bell.ring_now());
    });
}

/// For code that only knows a waker.
impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring_anyhow();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring_anyhow();
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.alarm.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_rung(bell: &Bell) -> bool {
        rustix::io::read(bell, &mut [0; 8]).is_ok()
    }

    /// Goal: rings that are held back reach all workers together, and later rings are not held
    /// back.
    #[test]
    fn rings_are_held_until_they_are_let_out() {
        let bells = [(); 2].map(|()| Arc::new(Bell::new().unwrap()));
        bells.iter().for_each(|bell| bell.going_to_sleep());
        hold(|| [0, 1, 0].map(|bell: usize| bells[bell].ring()));
        assert!(!bells.iter().any(|bell| has_rung(bell)));
        let_ring();
        assert!(bells.iter().all(|bell| has_rung(bell)));
        bells[0].going_to_sleep();
        bells[0].ring();
        assert!(has_rung(&bells[0]));
        let_ring();
        assert!(!bells.iter().any(|bell| has_rung(bell)), "each bell rings once");
    }

    /// Goal: a panic inside `hold` ends the holding, so the next ring is immediate.
    #[test]
    fn a_panic_ends_the_holding() {
        let bell = Arc::new(Bell::new().unwrap());
        bell.going_to_sleep();
        std::panic::catch_unwind(|| hold(|| panic!("as expected"))).unwrap_err();
        bell.ring();
        assert!(has_rung(&bell));
    }
}
