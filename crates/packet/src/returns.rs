//! Groups of loans that are over: any thread ends a share, one owner collects the groups.
//!
//! A sender often lends in groups: all pieces of a call, or of several calls that share a notice.
//! [`Returns`] counts the shares of each group. A share is a loan, or a call that still adds loans.
//! When the last share ends, the group joins a list that the owner takes from time to time.
//!
//! # Theory of operation
//!
//! Groups are named by small numbers that the owner assigns and reuses. The list of ended groups is
//! linked through the groups themselves, so ending a group allocates no memory and cannot fail. Any
//! thread pushes, with one 32-bit exchange; the owner takes the whole list at once, so no number
//! can be pushed again while another thread reads it. Groups are reported in the order in which
//! they ended.
//!
//! Before the owner sleeps it arms the empty list by setting its head to a mark. The push that
//! finds the mark reports that, and its caller wakes the owner. Head and mark are one word, so
//! either the owner sees the group and stays awake or the push sees the mark.
//!
//! Any thread may end a share. All other calls belong to the owner's thread.

use crate::loan::Lender;
use crate::sync::{AtomicBool, AtomicU32, Ordering};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// End of the list.
const NONE: u32 = u32::MAX;
/// An empty list whose owner wants to be woken for the next group.
const ARMED: u32 = u32::MAX - 1;

/// Most shares of one group.
const SHARES_MAX: u32 = u32::MAX / 2;

/// One group.
struct Group {
    /// Number of shares. Zero while the group is unused or on the list.
    shares: AtomicU32,
    /// Bytes of the group were copied.
    copied: AtomicBool,
    /// The group that ended before this one.
    next: AtomicU32,
}

/// Groups of loans. See the module text.
pub struct Returns {
    groups: Box<[Group]>,
    /// The group that ended last.
    ended: AtomicU32,
}

impl Returns {
    /// Room for `count` simultaneous groups, numbered from zero.
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

    /// Begins a group with one share, which the caller has to [end](Self::end).
    ///
    /// # Panics
    /// If the group still has shares.
    pub fn begin(&self, group: u32) {
        let group = self.group(group);
        // Relaxed: no other thread knows the group yet, and the loans made later order this. The
        // shares of a group that is not over stay.
        let begun = group.shares.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed);
        assert!(begun.is_ok(), "a group that is not over is not begun");
        // Relaxed: no other thread knows the group yet.
        group.copied.store(false, Ordering::Relaxed);
    }

    /// Adds a share to a group that has some; the caller has to end it. False if the group is over,
    /// or if it has the largest number of shares.
    pub fn share(&self, group: u32) -> bool {
        // Relaxed: a share is made from a share, which publishes nothing.
        let more = |shares: u32| (1..SHARES_MAX).contains(&shares).then(|| shares + 1);
        self.group(group).shares.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Ends a share. `copied` says that bytes of it were copied. True if the owner
    /// [asked](Self::arm) to be woken and this has ended a group.
    ///
    /// # Panics
    /// If the group has no shares.
    pub fn end(&self, group: u32, copied: bool) -> bool {
        let cell = self.group(group);
        if copied {
            // Relaxed: the decrement orders it.
            cell.copied.store(true, Ordering::Relaxed);
        }
        // Release: the work of the share's holder is over. Acquire: pairs with the Release of the
        // other decrements, for the last one.
        let fewer = |shares: u32| shares.checked_sub(1);
        let before = cell.shares.fetch_update(Ordering::AcqRel, Ordering::Relaxed, fewer);
        let before = before.expect("a share ends once");
        before == 1 && self.push(group)
    }

    fn push(&self, group: u32) -> bool {
        // Relaxed: the exchange checks the value.
        let mut last = self.ended.load(Ordering::Relaxed);
        loop {
            let next = if last == ARMED { NONE } else { last };
            self.group(group).next.store(next, Ordering::Relaxed);
            // Release: publishes the link and the work of the group's holders. Pairs with the
            // Acquire of `take`, also through the exchanges of later pushes.
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

    /// True if [`Returns::take`] would report a group.
    pub fn has_ended(&self) -> bool {
        // Relaxed: the answer may be outdated.
        !matches!(self.ended.load(Ordering::Relaxed), NONE | ARMED)
    }

    /// Asks that the next [`Returns::end`] of a group reports, once, that the owner has to be
    /// woken. False if a group has ended already: then the owner has to take it instead of
    /// sleeping.
    pub fn arm(&self) -> bool {
        // Relaxed: this publishes and reads nothing; `take` acquires what a group's holders did.
        let armed = self.ended.compare_exchange(NONE, ARMED, Ordering::Relaxed, Ordering::Relaxed);
        matches!(armed, Ok(_) | Err(ARMED))
    }

    /// Takes the groups that ended since the last call, in that order, and passes to `each` whether
    /// bytes were copied. The owner may use the numbers again.
    pub fn take(&self, mut each: impl FnMut(u32, bool)) {
        // Acquire: pairs with the Release of `push`.
        let mut last = self.ended.swap(NONE, Ordering::Acquire);
        if last == ARMED {
            return;
        }
        let mut first = NONE;
        while last != NONE {
            // Relaxed: the list belongs to this thread alone now.
            let next = self.group(last).next.swap(first, Ordering::Relaxed);
            first = core::mem::replace(&mut last, next);
        }
        while first != NONE {
            let group = self.group(first);
            // Read before the call: the owner may begin the group again in it.
            let next = group.next.load(Ordering::Relaxed);
            each(first, group.copied.load(Ordering::Relaxed));
            first = next;
        }
    }

    fn group(&self, group: u32) -> &Group {
        &self.groups[group as usize]
    }
}

/// A loan whose token is the number of a group is a share of that group.
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

    /// Goal: an owner that sleeps is woken once, by the group that ends while the list is empty.
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

    /// Goal: a rejected call changes nothing; the shares that are out stay counted.
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
