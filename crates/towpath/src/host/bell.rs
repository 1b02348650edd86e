//! Wakes a worker that sleeps, and costs nothing if it does not.

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::sync::Arc;
use std::task::Wake;
use towpath_packet::sync::{AtomicBool, Ordering};

/// An eventfd, and whether anybody waits for it.
pub(super) struct Bell {
    asleep: AtomicBool,
    alarm: OwnedFd,
}

impl Bell {
    pub(super) fn new() -> Result<Self, Errno> {
        let alarm = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { asleep: AtomicBool::new(false), alarm })
    }

    /// Wakes the worker if it sleeps or is about to. What it is to see was done before, under a
    /// lock that it takes after [`Bell::going_to_sleep`].
    pub(super) fn ring(&self) {
        // Relaxed: the lock orders it. Whoever had it before the worker is seen by the worker;
        // whoever has it after the worker sees that it sleeps.
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
    pub(super) fn going_to_sleep(&self) {
        // Relaxed: see `ring`.
        self.asleep.store(true, Ordering::Relaxed);
    }

    /// The worker is up. `rang` if the alarm is why.
    pub(super) fn is_up(&self, rang: bool) {
        // Relaxed: see `ring`.
        self.asleep.store(false, Ordering::Relaxed);
        if rang {
            // Nothing to read is as good.
            let _ = rustix::io::read(&self.alarm, &mut [0; 8]);
        }
    }
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
