//! A count of items that one thread has handed over to another, which has not finished them.
//!
//! # Theory of operation
//!
//! The *sender* counts items before it hands them over, and the *finisher* when they are finished.
//! A sender of too many [announces](UnderWay::wait) that it waits until few enough are left, and
//! sleeps; the finisher wakes it. The number and the announcement are one word: either the sender
//! sees the lower number and stays awake, or the finisher sees the announcement.
//!
//! Nothing else is ordered: the items themselves pass through a ring. One thread sends and waits;
//! any thread may finish, and query the number.

use crate::sync::{AtomicUsize, Ordering};

/// Items under way, and whether their sender waits until fewer are left. See the module text.
#[derive(Default)]
pub struct UnderWay {
    /// Twice their number, plus [`WAITED`].
    state: AtomicUsize,
    /// The sender waits until at most this many are left.
    mark: AtomicUsize,
}

const WAITED: usize = 1;

impl UnderWay {
    /// Begins again with so many items. No other thread uses it now.
    pub fn set(&self, count: usize) {
        // Relaxed: no other thread uses it.
        self.state.store(count << 1, Ordering::Relaxed);
    }

    /// Counts items that are about to be handed over.
    pub fn add(&self, count: usize) {
        // Relaxed: an increase orders nothing.
        self.state.fetch_add(count << 1, Ordering::Relaxed);
    }

    /// Number of items under way. It may be outdated.
    pub fn count(&self) -> usize {
        // Relaxed: the number may be outdated.
        self.state.load(Ordering::Relaxed) >> 1
    }

    /// Announces that the sender waits until at most `mark` items are left. Returns false if that
    /// is so already.
    pub fn wait(&self, mark: usize) -> bool {
        // Relaxed: the bit publishes it.
        self.mark.store(mark, Ordering::Relaxed);
        // AcqRel: pairs with `finish`, for the mark. The number and the bit are one word: either
        // this sees the lower number, or `finish` sees the bit.
        let before = self.state.fetch_or(WAITED, Ordering::AcqRel);
        let waits = before >> 1 > mark;
        if !waits {
            // Relaxed: orders nothing; a superfluous wakeup does no harm.
            self.state.fetch_and(!WAITED, Ordering::Relaxed);
        }
        waits
    }

    /// Records that items are finished, at most as many as are under way. Returns true, once for
    /// each wait, if the sender waits for this: then the caller wakes it.
    pub fn finish(&self, count: usize) -> bool {
        // AcqRel: pairs with `wait`, for the mark.
        let before = self.state.fetch_sub(count << 1, Ordering::AcqRel);
        // Relaxed: the bit was published after it.
        before & WAITED != 0
            && (before >> 1) - count <= self.mark.load(Ordering::Relaxed)
            // AcqRel: orders this clearing between two settings of the bit.
            && self.state.fetch_and(!WAITED, Ordering::AcqRel) & WAITED != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Goal: a sender that waits is woken once, when few enough items are left, and not at all if
    /// that was so before.
    #[test]
    fn one_wakeup_for_each_wait() {
        let under_way = UnderWay::default();
        under_way.add(10);
        assert!(!under_way.finish(1), "nobody waits");
        assert!(under_way.wait(4));
        assert!(!under_way.finish(4));
        assert!(under_way.finish(1));
        assert!(!under_way.finish(1), "once");
        assert!(!under_way.wait(4), "few enough are left");
        assert!(!under_way.finish(3));
        assert_eq!(under_way.count(), 0);
    }
}
