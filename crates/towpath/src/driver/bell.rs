//! Wakes a worker that sleeps, and costs nothing if it does not.
//!
//! A thread that does many things one after the other holds the rings of each ([`hold`]), and lets
//! them out together ([`let_ring`]): a worker that is woken by the first would come for its lock
//! while the thread still wants it, and see the others one by one.

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::cell::RefCell;
use std::sync::Arc;
use std::task::Wake;
use towpath_packet::sync::{AtomicBool, Ordering};

/// An eventfd, and whether anybody waits for it.
pub struct Bell {
    asleep: AtomicBool,
    alarm: OwnedFd,
}

impl Bell {
    /// A bell of a worker that is up.
    ///
    /// # Errors
    /// The process or the system has no descriptor left.
    pub fn new() -> Result<Self, Errno> {
        let alarm = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { asleep: AtomicBool::new(false), alarm })
    }

    /// Wakes the worker if it sleeps or is about to. What it is to see was done before, under a
    /// lock that it takes once it has said that it goes to sleep.
    pub fn ring(self: &Arc<Self>) {
        let is_held = HELD.try_with(|held| held.borrow_mut().add(self));
        if !is_held.unwrap_or(false) {
            self.ring_now();
        }
    }

    fn ring_now(&self) {
        // Relaxed: the lock orders it. Whoever had it before the worker is seen by the worker;
        // whoever has it after the worker sees that it sleeps. That is so for a ring that was held,
        // too: it was had before.
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            // Fails only if the counter is full: then it rings already.
            let _ = rustix::io::write(&self.alarm, &1_u64.to_ne_bytes());
        }
    }

    /// Wakes the worker for what it sees only when it is up: under no lock of its own.
    fn ring_anyhow(&self) {
        // Fails only if the counter is full: then it rings already.
        let _ = rustix::io::write(&self.alarm, &1_u64.to_ne_bytes());
    }

    /// The worker looks once more for work, and then sleeps.
    pub(crate) fn going_to_sleep(&self) {
        // Relaxed: see `ring`.
        self.asleep.store(true, Ordering::Relaxed);
    }

    /// The worker is up. `rang` if the alarm is why.
    pub(crate) fn is_up(&self, rang: bool) {
        // Relaxed: see `ring`.
        self.asleep.store(false, Ordering::Relaxed);
        if rang {
            // Nothing to read is as good.
            let _ = rustix::io::read(&self.alarm, &mut [0; 8]);
        }
    }
}

/// Rings that this thread holds.
#[derive(Default)]
struct Held {
    is_on: bool,
    bells: Vec<Arc<Bell>>,
}

thread_local! {
    static HELD: RefCell<Held> = RefCell::default();
}

impl Held {
    /// Keeps a ring, if they are held now.
    fn add(&mut self, bell: &Arc<Bell>) -> bool {
        if self.is_on && !self.bells.iter().any(|known| Arc::ptr_eq(known, bell)) {
            self.bells.push(bell.clone());
        }
        self.is_on
    }
}

/// Does something of which workers hear by [`let_ring`], which must follow before this thread waits
/// for anything.
pub(crate) fn hold<R>(act: impl FnOnce() -> R) -> R {
    /// Also if `act` panics.
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            let _ = HELD.try_with(|held| held.borrow_mut().is_on = false);
        }
    }
    let _ = HELD.try_with(|held| held.borrow_mut().is_on = true);
    let _end = End;
    act()
}

/// Wakes the workers of which rings are held.
pub(crate) fn let_ring() {
    let _ = HELD.try_with(|held| {
        held.borrow_mut().bells.drain(..).for_each(|bell| bell.ring_now());
    });
}

/// For those who know a waker only.
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

    /// Goal: rings that are held are let out together, to everybody, and others are not held.
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
        assert!(!bells.iter().any(|bell| has_rung(bell)), "each once");
    }

    /// Goal: who panics meanwhile holds no rings of others.
    #[test]
    fn a_panic_ends_the_holding() {
        let bell = Arc::new(Bell::new().unwrap());
        bell.going_to_sleep();
        std::panic::catch_unwind(|| hold(|| panic!("as expected"))).unwrap_err();
        bell.ring();
        assert!(has_rung(&bell));
    }
}
