//! Which groups of loans are over: told by whoever drops the last piece, heard by one owner.
//!
//! A sender often lends in groups: all pieces of a call, or of several calls that share a notice.
//! [`Returns`] counts the shares of each group; a share is a loan, or a call that still adds some.
//! When the last share is gone, the group joins a list that the owner takes now and then.
//!
//! # Theory of operation
//!
//! Groups are named by small numbers that the owner hands out and takes back. The list of those
//! that ended is linked through the groups themselves, so that ending one needs no memory and
//! cannot fail. Any thread pushes, one pointer-sized exchange each; the owner takes the whole list
//! at once, so that no number can be pushed again while somebody looks at it. Groups come in the
//! order in which they ended.
//!
//! An owner who is going to sleep arms the empty list: the push that finds it armed says so, and
//! whoever pushed wakes the owner. List and mark are one word, so that either the owner sees the
//! group and stays awake or the push sees the mark.
//!
//! Any thread may end a share; all else is for the owner's thread.

use crate::loan::Lender;
use crate::sync::{AtomicBool, AtomicU32, Ordering};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// End of the list.
const NONE: u32 = u32::MAX;
/// An empty list whose owner wants to hear of the next group.
const ARMED: u32 = u32::MAX - 1;

/// Most shares of one group.
const SHARES_MAX: u32 = u32::MAX / 2;

/// One group.
struct Group {
    /// Shares. Zero while the group is nobody's, or on the list.
    shares: AtomicU32,
    /// Bytes of it were copied after all.
    copied: AtomicBool,
    /// The group that ended before this one.
    next: AtomicU32,
}

/// Groups of loans. See the module's documentation.
pub struct Returns {
    groups: Box<[Group]>,
    /// The group that ended last.
    ended: AtomicU32,
}

impl Returns {
    /// Room for `count` groups at a time, numbered from zero.
    pub fn new(count: usize) -> Arc<Self> {
        assert!(count < ARMED as usize, "groups have 32-bit numbers");
        let group = || Group {
            shares: AtomicU32::new(0),
            copied: AtomicBool::new(false),
            next: AtomicU32::new(NONE),
        };
        let groups: Vec<Group> = core::iter::repeat_with(group).take(count).collect();
        Arc::new(Self { groups: groups.into(), ended: AtomicU32::new(NONE) })
    }

    /// Begins a group with one share, which the caller [ends](Self::end).
    ///
    /// # Panics
    /// If the group has shares.
    pub fn begin(&self, group: u32) {
        let group = self.group(group);
        // Relaxed: nobody else knows the group yet; the loans that will be made order this. The
        // shares of a group that is not over stay.
        let begun = group.shares.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed);
        assert!(begun.is_ok(), "a group that is not over is not begun");
        // Relaxed: as above.
        group.copied.store(false, Ordering::Relaxed);
    }

    /// Another share of a group that has some; the caller ends it. False if the group is over, or
    /// has as many as can be counted.
    pub fn share(&self, group: u32) -> bool {
        // Relaxed: a share is made from a share, nothing is published by it.
        let more = |shares: u32| (1..SHARES_MAX).contains(&shares).then(|| shares + 1);
        self.group(group).shares.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Ends a share. `copied` says that bytes of it were copied after all. True if the owner
    /// [asked](Self::arm) to be woken for what ended now.
    ///
    /// # Panics
    /// If the group has none.
    pub fn end(&self, group: u32, copied: bool) -> bool {
        let cell = self.group(group);
        if copied {
            // Relaxed: ordered by the decrement.
            cell.copied.store(true, Ordering::Relaxed);
        }
        // Release: what the share's holder did is over; Acquire: pairs with the Release of the
        // others' decrements, for the last.
        let fewer = |shares: u32| shares.checked_sub(1);
        let before = cell.shares.fetch_update(Ordering::AcqRel, Ordering::Relaxed, fewer);
        let before = before.expect("a share ends once");
        before == 1 && self.push(group)
    }

    fn push(&self, group: u32) -> bool {
        // Relaxed: the exchange publishes it.
        let mut last = self.ended.load(Ordering::Relaxed);
        loop {
            let next = if last == ARMED { NONE } else { last };
            self.group(group).next.store(next, Ordering::Relaxed);
            // Release: the link and what the group's holders did; pairs with the Acquire of `take`,
            // through the exchanges of later pushes too.
            match self.ended.compare_exchange_weak(
                last,
                group,
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return last == ARMED,
                Err(now) => last = now,
            }
        }
    }

    /// True if [`Returns::take`] would find something.
    pub fn has_ended(&self) -> bool {
        // Relaxed: an answer that may be old.
        !matches!(self.ended.load(Ordering::Relaxed), NONE | ARMED)
    }

    /// Has the next [`Returns::end`] of a group say that the owner is to be woken, once. False if
    /// a group has ended already: the owner takes it instead of sleeping.
    pub fn arm(&self) -> bool {
        // Relaxed: nothing is read by it; what a group's holders did is acquired by `take`.
        let armed = self.ended.compare_exchange(NONE, ARMED, Ordering::Relaxed, Ordering::Relaxed);
        matches!(armed, Ok(_) | Err(ARMED))
    }

    /// Takes the groups that ended since the last call, in that order, and tells `each` whether
    /// bytes were copied. The numbers are the owner's again.
    pub fn take(&self, mut each: impl FnMut(u32, bool)) {
        // Acquire: pairs with the Release of `push`.
        let mut last = self.ended.swap(NONE, Ordering::Acquire);
        if last == ARMED {
            return;
        }
        let mut first = NONE;
        while last != NONE {
            // Relaxed: the list is ours alone now.
            let next = self.group(last).next.swap(first, Ordering::Relaxed);
            first = core::mem::replace(&mut last, next);
        }
        while first != NONE {
            let group = self.group(first);
            // Read before the owner hears of the group: he may begin it anew.
            let next = group.next.load(Ordering::Relaxed);
            each(first, group.copied.load(Ordering::Relaxed));
            first = next;
        }
    }

    fn group(&self, group: u32) -> &Group {
        &self.groups[group as usize]
    }
}

/// A loan whose token is the number of a group is a share of it.
impl Lender for Returns {
    fn returned(&self, token: u64, copied: bool) {
        self.end(token as u32, copied);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    extern crate std;

    fn taken(returns: &Returns) -> Vec<(u32, bool)> {
        let mut taken = Vec::new();
        returns.take(|group, copied| taken.push((group, copied)));
        taken
    }

    #[test]
    fn groups_end_with_their_last_share_and_come_in_order() {
        let returns = Returns::new(3);
        for group in [2, 0, 1] {
            returns.begin(group);
        }
        assert!(returns.share(2));
        returns.end(2, true);
        returns.end(1, false);
        assert!(returns.has_ended());
        returns.end(2, false);
        assert_eq!(taken(&returns), [(1, false), (2, true)]);
        assert!(!returns.has_ended() && !returns.share(2));
        returns.begin(2);
        returns.end(2, false);
        returns.end(0, false);
        assert_eq!(taken(&returns), [(2, false), (0, false)], "copied is the old group's");
        assert_eq!(taken(&returns), []);
    }

    /// Goal: an owner who goes to sleep is woken once, by the group that ends into the empty list.
    #[test]
    fn the_first_end_after_arming_wakes() {
        let returns = Returns::new(2);
        returns.begin(0);
        returns.begin(1);
        assert!(returns.share(0) && returns.arm() && returns.arm());
        assert!(!returns.has_ended());
        assert!(!returns.end(0, false), "a share, not the group");
        assert!(returns.end(0, false));
        assert!(!returns.end(1, false), "the owner is awake already");
        assert!(!returns.arm(), "there is something to take");
        assert_eq!(taken(&returns), [(0, false), (1, false)]);
        returns.begin(0);
        assert!(returns.arm());
        assert_eq!(taken(&returns), [], "taking disarms");
        assert!(!returns.end(0, false));
    }

    #[test]
    #[should_panic(expected = "a share ends once")]
    fn a_share_too_many_is_a_bug() {
        let returns = Returns::new(1);
        returns.begin(0);
        returns.end(0, false);
        returns.end(0, false);
    }

    /// Goal: what is refused changes nothing: shares that are out stay counted.
    #[test]
    fn refused_calls_leave_the_shares() {
        let returns = Returns::new(1);
        let ended = std::panic::catch_unwind(|| returns.end(0, false));
        assert!(ended.is_err(), "no share");
        assert!(!returns.share(0), "still none");
        returns.begin(0);
        assert!(returns.share(0));
        let begun = std::panic::catch_unwind(|| returns.begin(0));
        assert!(begun.is_err(), "it has shares");
        returns.end(0, false);
        assert_eq!(taken(&returns), [], "one share is left");
        returns.end(0, true);
        assert_eq!(taken(&returns), [(0, true)]);
        returns.begin(0);
        returns.group(0).shares.store(SHARES_MAX, Ordering::Relaxed);
        assert!(!returns.share(0), "as many as can be counted");
        assert_eq!(returns.group(0).shares.load(Ordering::Relaxed), SHARES_MAX);
    }
}
