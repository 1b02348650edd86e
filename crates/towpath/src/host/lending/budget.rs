//! Budgets: bound how much may be lent or queued at a time, and wake waiters.
//!
//! Any thread takes and gives back with one atomic operation; a lock is taken only while there are
//! waiters. An amount larger than the whole budget is granted when nothing else is out, because it
//! would otherwise never be.
//!
//! Waiters are woken when something comes back. For a large budget of one stream
//! ([`Budget::of_stream`]) they are woken when there is room for several sends, because they would
//! otherwise sleep again after one.

use crate::host::wait::Waiters;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use towpath_packet::sync::{AtomicBool, AtomicUsize, Ordering};

/// A budget.
pub(in crate::host) struct Budget {
    used: AtomicUsize,
    limit: usize,
    /// Waiters are woken when no more than this is out.
    wake_at: usize,
    /// There are waiters.
    wanted: AtomicBool,
    waiters: Mutex<Waiters>,
}

impl Budget {
    pub(in crate::host) fn new(limit: usize) -> Self {
        Self {
            used: AtomicUsize::new(0),
            limit,
            wake_at: usize::MAX,
            wanted: AtomicBool::new(false),
            waiters: Mutex::default(),
        }
    }

    /// Creates the budget of one stream, whose only receiver holds no more than its receive buffer.
    /// Waiters are woken when a [part](WOKEN_PART) of it is free, unless the budget is so small
    /// that the receiver could hold the rest indefinitely.
    pub(in crate::host) fn of_stream(limit: usize) -> Self {
        let is_large = limit >= WOKEN_LATE_MIN;
        let wake_at = if is_large { limit - limit / WOKEN_PART } else { usize::MAX };
        Self { wake_at, ..Self::new(limit) }
    }

    /// Returns the amount that is out.
    pub(in crate::host) fn used(&self) -> usize {
        // Relaxed: the result may be outdated.
        self.used.load(Ordering::Relaxed)
    }

    /// Returns true if there is any room.
    pub(in crate::host) fn has_room(&self) -> bool {
        self.has_room_for(1)
    }

    /// Returns true if there is room for `amount`.
    pub(in crate::host) fn has_room_for(&self, amount: usize) -> bool {
        // SeqCst: see `give`.
        self.used.load(Ordering::SeqCst).saturating_add(amount) <= self.limit
    }

    /// Takes `amount`, or nothing.
    pub(in crate::host) fn take(&self, amount: usize) -> bool {
        let more = |used: usize| {
            let fits = used == 0 || used.saturating_add(amount) <= self.limit;
            fits.then(|| used.saturating_add(amount))
        };
        // SeqCst: see `give`.
        self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }

    /// Takes `amount`, or leaves the waker and returns `Pending`.
    pub(in crate::host) fn poll_take(&self, cx: &mut Context<'_>, amount: usize) -> Poll<()> {
        if self.take(amount) {
            return Poll::Ready(());
        }
        self.watch(cx.waker());
        if self.take(amount) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Leaves a waker for a caller that wants `amount` and found no room for it.
    pub(in crate::host) fn watch_for(&self, waker: &Waker, amount: usize) {
        if self.poll_take(&mut Context::from_waker(waker), amount).is_ready() {
            self.give(amount);
            waker.wake_by_ref();
        }
    }

    /// Takes up to `amount`.
    pub(in crate::host) fn take_part(&self, amount: usize) -> Part<'_> {
        Part { budget: self, left: self.take_some(amount) }
    }

    /// Takes up to `amount` and returns how much.
    fn take_some(&self, amount: usize) -> usize {
        let mut taken = 0;
        let more = |used: usize| {
            taken = self.limit.saturating_sub(used).min(amount);
            (taken > 0).then(|| used + taken)
        };
        // SeqCst: see `give`.
        match self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more) {
            Ok(_) => taken,
            Err(_) => 0,
        }
    }

    /// Takes `amount` even if there is no room.
    fn force(&self, amount: usize) {
        // SeqCst: see `give`.
        self.used.fetch_add(amount, Ordering::SeqCst);
    }

    /// Gives `amount` back, and wakes the waiters if enough is free.
    pub(in crate::host) fn give(&self, amount: usize) {
        // SeqCst, here and in `watch`: either this thread sees `wanted`, or the waiter, which tries
        // again after setting it, sees what was given back. A waiter that is not woken now is woken
        // later: more than `wake_at` is still out, or another thread has taken the amount first and
        // will give it back.
        let left = self.used.fetch_sub(amount, Ordering::SeqCst) - amount;
        if left <= self.wake_at && self.wanted.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Wakes the waiters to try again.
    pub(in crate::host) fn wake(&self) {
        let wakers = {
            let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
            self.wanted.store(false, Ordering::SeqCst);
            waiters.take()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Leaves a waker. The caller tries once more before it waits.
    pub(in crate::host) fn watch(&self, waker: &Waker) {
        let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
        waiters.add(waker);
        self.wanted.store(true, Ordering::SeqCst);
    }
}

/// A taken part of a budget. Dropping it gives back what was not spent.
pub(in crate::host) struct Part<'a> {
    budget: &'a Budget,
    left: usize,
}

impl Part<'_> {
    pub(in crate::host) fn left(&self) -> usize {
        self.left
    }

    /// Marks an amount that is given back elsewhere.
    pub(in crate::host) fn spend(&mut self, amount: usize) {
        self.left -= amount;
    }
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        if self.left > 0 {
            self.budget.give(self.left);
        }
    }
}

/// Smallest stream budget that wakes late. What is still out by then is far more than a receiver
/// holds, which is its receive buffer and a third more.
const WOKEN_LATE_MIN: usize = 32 << 20;
/// One part in this many must be free before waiters are woken.
const WOKEN_PART: usize = 8;

/// The budgets that lent memory is charged to.
pub(in crate::host) struct Levels {
    pub(in crate::host) socket: Budget,
    /// Budget of one user of the library, if there is one.
    pub(in crate::host) group: Option<Arc<Budget>>,
    pub(in crate::host) all: Arc<Budget>,
}

impl Levels {
    /// From the narrowest to the widest.
    fn each(&self) -> impl DoubleEndedIterator<Item = &Budget> + Clone {
        [Some(&self.socket), self.group.as_deref(), Some(&*self.all)].into_iter().flatten()
    }

    /// Takes `amount` from all budgets; or takes nothing, and returns the budget that has no room.
    pub(in crate::host) fn take(&self, amount: usize) -> Result<(), &Budget> {
        for (index, level) in self.each().enumerate() {
            if !level.take(amount) {
                self.each().take(index).for_each(|taken| taken.give(amount));
                return Err(level);
            }
        }
        Ok(())
    }

    /// Takes `amount` from all budgets, or leaves the waker and returns `Pending`.
    pub(in crate::host) fn poll_take(&self, cx: &mut Context<'_>, amount: usize) -> Poll<()> {
        let mut watched: Option<&Budget> = None;
        while let Err(full) = self.take(amount) {
            if watched.is_some_and(|watched| std::ptr::eq(watched, full)) {
                return Poll::Pending;
            }
            full.watch(cx.waker());
            watched = Some(full);
        }
        Poll::Ready(())
    }

    /// Leaves a waker for a caller that wants `amount` and found no room for it.
    pub(in crate::host) fn watch(&self, waker: &Waker, amount: usize) {
        if self.poll_take(&mut Context::from_waker(waker), amount).is_ready() {
            self.give(amount);
            waker.wake_by_ref();
        }
    }

    /// Takes `amount` from all budgets even if there is no room.
    pub(in crate::host) fn force(&self, amount: usize) {
        self.each().for_each(|level| level.force(amount));
    }

    /// Wakes the waiters of all budgets to try again.
    pub(in crate::host) fn wake(&self) {
        self.each().for_each(Budget::wake);
    }

    pub(in crate::host) fn give(&self, amount: usize) {
        self.each().rev().for_each(|level| level.give(amount));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Woken(AtomicBool);

    impl std::task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[test]
    fn what_is_larger_than_all_goes_alone() {
        let budget = Budget::new(10);
        assert!(budget.take(4) && !budget.take(7) && budget.take(6));
        assert_eq!(budget.take_some(5), 0);
        budget.give(10);
        assert!(budget.take(100) && !budget.take(1));
        budget.give(100);
        assert_eq!((budget.take_some(25), budget.used()), (10, 10));
    }

    /// Goal: a partly spent part gives back only the rest.
    #[test]
    fn what_is_spent_of_a_part_is_given_by_another() {
        let budget = Budget::new(10);
        let mut part = budget.take_part(25);
        part.spend(7);
        assert_eq!((part.left(), budget.used()), (3, 10));
        drop(part);
        assert_eq!(budget.used(), 7);
        budget.give(7);
        assert_eq!((budget.used(), budget.take_part(0).left()), (0, 0));
    }

    /// Goal: a waiter for a large stream budget sleeps until a part of it is free, even if it wants
    /// more than that part; a waiter for any other budget is woken when anything comes back.
    #[test]
    fn a_stream_is_woken_when_there_is_room_for_several_sends() {
        const LIMIT: usize = WOKEN_LATE_MIN;
        const PART: usize = LIMIT / WOKEN_PART;
        for (budget, wanted, wakes_at) in [
            (Budget::of_stream(LIMIT), 1, LIMIT - PART),
            (Budget::of_stream(LIMIT), PART, LIMIT - PART),
            (Budget::of_stream(LIMIT), 2 * PART, LIMIT - PART),
            (Budget::of_stream(LIMIT), 2 * LIMIT, LIMIT - PART),
            (Budget::of_stream(LIMIT - 1), LIMIT, LIMIT - 1 - PART / 4),
            (Budget::new(LIMIT), LIMIT, LIMIT - PART / 4),
        ] {
            let woken = Arc::new(Woken(AtomicBool::new(false)));
            let waker = Waker::from(woken.clone());
            let mut cx = Context::from_waker(&waker);
            assert!(budget.take(budget.limit));
            assert!(budget.poll_take(&mut cx, wanted).is_pending());
            let (mut first, mut went) = (None, false);
            while budget.used() > 0 && !went {
                budget.give((PART / 4).min(budget.used()));
                let left = budget.used();
                if woken.0.swap(false, Ordering::SeqCst) {
                    first = first.or(Some(left));
                    went = budget.poll_take(&mut cx, wanted).is_ready();
                } else {
                    assert_eq!(first, None, "after the first wake-up, each return wakes");
                }
            }
            assert!(went);
            assert_eq!(first, Some(wakes_at));
        }
    }

    #[test]
    fn a_level_without_room_costs_the_others_nothing() {
        let (group, all) = (Arc::new(Budget::new(100)), Arc::new(Budget::new(5)));
        let levels = Levels { socket: Budget::new(50), group: Some(group.clone()), all };
        assert!(levels.take(4).is_ok());
        assert!(levels.take(4).is_err_and(|full| std::ptr::eq(full, &*levels.all)));
        assert_eq!([levels.socket.used(), group.used(), levels.all.used()], [4; 3]);
        levels.give(4);
        assert_eq!(levels.all.used(), 0);
        // Without a group: two levels.
        let levels = Levels { group: None, ..levels };
        assert!(levels.take(5).is_ok());
        assert_eq!([levels.socket.used(), group.used(), levels.all.used()], [5, 0, 5]);
        levels.give(5);
        assert_eq!([levels.socket.used(), levels.all.used()], [0, 0]);
    }

    /// Goal: a task that waits for one level and then for another is woken by the other.
    #[test]
    fn a_waiter_learns_of_the_level_that_is_full() {
        let (group, all) = (Arc::new(Budget::new(100)), Arc::new(Budget::new(100)));
        let levels = Levels { socket: Budget::new(10), group: Some(group.clone()), all };
        let woken = Arc::new(Woken(AtomicBool::new(false)));
        let waker = Waker::from(woken.clone());
        let mut cx = Context::from_waker(&waker);
        levels.force(99);
        assert!(levels.poll_take(&mut cx, 5).is_pending());
        levels.socket.give(99);
        assert!(woken.0.swap(false, Ordering::SeqCst));
        assert!(levels.poll_take(&mut cx, 5).is_pending(), "the group is full");
        group.give(99);
        assert!(woken.0.swap(false, Ordering::SeqCst));
        levels.all.give(99);
        assert!(levels.poll_take(&mut cx, 5).is_ready());
    }
}
