//! Budgets: how much may be out at a time, and who waits for more.
//!
//! Any thread takes and gives, with one atomic operation; a lock is taken only while somebody
//! waits. Something larger than the whole budget may go when nothing else is out: it would wait
//! for ever otherwise.
//!
//! Who waits is woken when something comes back; but of a large budget of one stream
//! ([`Budget::of_stream`]) when there is room for several sends, or it would sleep again after one.

use crate::host::wait::Waiters;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use towpath_packet::sync::{AtomicBool, AtomicUsize, Ordering};

/// One budget.
pub(in crate::host) struct Budget {
    used: AtomicUsize,
    limit: usize,
    /// Those who wait are woken when no more than this is out.
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

    /// That of one stream, whose only receiver keeps no more than its receive buffer. Those who
    /// wait are woken when a [part](WOKEN_PART) of it is free, unless it is so small that the
    /// receiver might keep the rest for as long as it likes.
    pub(in crate::host) fn of_stream(limit: usize) -> Self {
        let is_large = limit >= WOKEN_LATE_MIN;
        let wake_at = if is_large { limit - limit / WOKEN_PART } else { usize::MAX };
        Self { wake_at, ..Self::new(limit) }
    }

    /// What is out.
    pub(in crate::host) fn used(&self) -> usize {
        // Relaxed: an answer that may be old.
        self.used.load(Ordering::Relaxed)
    }

    /// True if there is room for something.
    pub(in crate::host) fn has_room(&self) -> bool {
        self.has_room_for(1)
    }

    /// True if there is room for `amount`.
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

    /// The same, but pending while there is no room.
    pub(in crate::host) fn poll_take(&self, cx: &mut Context<'_>, amount: usize) -> Poll<()> {
        if self.take(amount) {
            return Poll::Ready(());
        }
        self.watch(cx.waker());
        if self.take(amount) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Leaves a waker for whoever wants `amount` and found no room for it.
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

    /// The same; returns how much.
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

    /// Takes `amount`, whether there is room or not.
    fn force(&self, amount: usize) {
        // SeqCst: see `give`.
        self.used.fetch_add(amount, Ordering::SeqCst);
    }

    /// Gives back, and wakes those who wait if it is worth it.
    pub(in crate::host) fn give(&self, amount: usize) {
        // SeqCst, here and in `watch`: either this sees that somebody wants it, or he, who looks
        // again after saying so, sees what was given back. If he is not woken, he is by a later
        // one: more than `wake_at` is still out, or another has taken it first and is to give it.
        let left = self.used.fetch_sub(amount, Ordering::SeqCst) - amount;
        if left <= self.wake_at && self.wanted.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Wakes those who wait, to look again.
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

/// A part of a budget, which goes back but for what was spent.
pub(in crate::host) struct Part<'a> {
    budget: &'a Budget,
    left: usize,
}

impl Part<'_> {
    pub(in crate::host) fn left(&self) -> usize {
        self.left
    }

    /// Somebody else gives so much back.
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

/// Least budget of a stream that wakes late: the rest beside the part that is to be free is far
/// more than a receiver keeps, which is its receive buffer and a third more.
const WOKEN_LATE_MIN: usize = 32 << 20;
/// The part of it that is free then: one of so many.
const WOKEN_PART: usize = 8;

/// The budgets that lent memory counts with.
pub(in crate::host) struct Levels {
    pub(in crate::host) socket: Budget,
    /// Of one user of the library, if he has one.
    pub(in crate::host) group: Option<Arc<Budget>>,
    pub(in crate::host) all: Arc<Budget>,
}

impl Levels {
    /// From the narrowest to the widest.
    fn each(&self) -> impl DoubleEndedIterator<Item = &Budget> + Clone {
        [Some(&self.socket), self.group.as_deref(), Some(&*self.all)].into_iter().flatten()
    }

    /// Takes `amount` from all, or nothing and the budget that has no room.
    pub(in crate::host) fn take(&self, amount: usize) -> Result<(), &Budget> {
        for (index, level) in self.each().enumerate() {
            if !level.take(amount) {
                self.each().take(index).for_each(|taken| taken.give(amount));
                return Err(level);
            }
        }
        Ok(())
    }

    /// The same, but pending while there is no room.
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

    /// Leaves a waker for whoever wants `amount` and found no room for it.
    pub(in crate::host) fn watch(&self, waker: &Waker, amount: usize) {
        if self.poll_take(&mut Context::from_waker(waker), amount).is_ready() {
            self.give(amount);
            waker.wake_by_ref();
        }
    }

    /// Takes `amount` from all, whether there is room or not.
    pub(in crate::host) fn force(&self, amount: usize) {
        self.each().for_each(|level| level.force(amount));
    }

    /// Wakes those who wait for any, to look again.
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

    /// Goal: of a part that was spent in part, no more than the rest goes back.
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

    /// Goal: who waits for a large budget of a stream sleeps until a part of it is free, also if
    /// it wants more than that part; who waits for another is woken by whatever comes back.
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
                    assert_eq!(first, None, "from then on each wakes");
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
        // Nobody's user: two levels.
        let levels = Levels { group: None, ..levels };
        assert!(levels.take(5).is_ok());
        assert_eq!([levels.socket.used(), group.used(), levels.all.used()], [5, 0, 5]);
        levels.give(5);
        assert_eq!([levels.socket.used(), levels.all.used()], [0, 0]);
    }

    /// Goal: who waits for one level and then for another is woken by the other.
    #[test]
    fn who_waits_hears_of_the_level_that_is_full() {
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
