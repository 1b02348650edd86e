//! Finds the entry that has been idle longest without a search through all entries.
//!
//! Each entry is recorded with a time no later than its last use. The entry that seems to be first
//! is checked again before it is returned. So a use costs nothing, and finding an entry costs the
//! depth of a heap, even in a flood of flows that are used once.

use super::Slot;
use super::shares::Share;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use towpath_net::time::Instant;

/// The entries of one share, each recorded once.
#[derive(Default)]
struct Idle(BinaryHeap<Reverse<(Instant, Slot)>>);

impl Idle {
    /// Records a new entry.
    fn begin(&mut self, slot: Slot, now: Instant) {
        self.0.push(Reverse((now, slot)));
    }

    /// Removes and returns the entry that was idle longest. `used_at` returns the last use of an
    /// entry, or `None` if the entry is gone.
    fn end_longest(&mut self, mut used_at: impl FnMut(Slot) -> Option<Instant>) -> Option<Slot> {
        while let Some(Reverse((noted_at, slot))) = self.0.pop() {
            match used_at(slot) {
                Some(used_at) if used_at > noted_at => self.begin(slot, used_at),
                Some(_) => return Some(slot),
                None => {}
            }
        }
        None
    }

    /// Removes entries that are gone.
    fn retain(&mut self, mut is_there: impl FnMut(Slot) -> bool) {
        self.0.retain(|Reverse((_, slot))| is_there(*slot));
    }

    /// Returns true if no entry is recorded.
    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The entries that can end, by the share that they count for. The share with most entries loses
/// one first.
#[derive(Default)]
pub(super) struct IdleShares(HashMap<Share, Members>);

#[derive(Default)]
struct Members {
    idle: Idle,
    /// Number of its entries that are still there.
    count: usize,
}

impl IdleShares {
    /// Records a new entry.
    pub(super) fn begin(&mut self, share: Share, slot: Slot, now: Instant) {
        let members = self.0.entry(share).or_default();
        members.idle.begin(slot, now);
        members.count += 1;
    }

    /// An entry is gone.
    pub(super) fn ended(&mut self, share: Share) {
        if let Some(members) = self.0.get_mut(&share) {
            members.count -= 1;
            if members.count == 0 {
                self.0.remove(&share);
            }
        }
    }

    /// Removes and returns the longest-idle entry of the share with most entries; among equals, of
    /// the share of the `newcomer`. The caller reports that it is gone.
    pub(super) fn end_longest(
        &mut self,
        newcomer: Share,
        used_at: impl FnMut(Slot) -> Option<Instant>,
    ) -> Option<Slot> {
        let most =
            self.0.iter_mut().max_by_key(|(share, other)| (other.count, **share == newcomer));
        most?.1.idle.end_longest(used_at)
    }

    /// Removes entries that are gone.
    pub(super) fn retain(&mut self, mut is_there: impl FnMut(Slot) -> bool) {
        self.0.values_mut().for_each(|members| members.idle.retain(&mut is_there));
    }

    /// Returns true if no entry is recorded.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: exactly the longest-idle entry is returned, whatever was used since it was recorded,
    /// and never one that is gone. Method: entries whose order of use differs from that of their
    /// beginning.
    #[test]
    fn the_longest_idle_is_named() {
        let slot = |index| Slot { index, generation: 0 };
        let at = |index: u32| Instant::from_micros(u64::from(index));
        let mut idle = Idle::default();
        (0..6).for_each(|index| idle.begin(slot(index), at(index)));
        // 0 is used late, 1 is gone, 2 is used after 3.
        let used = [Some(90), None, Some(50), Some(3), Some(60), Some(5)];
        let used_at = |slot: Slot| used[slot.index as usize].map(at);
        let named: Vec<u32> =
            std::iter::from_fn(|| idle.end_longest(used_at)).map(|slot| slot.index).collect();
        assert_eq!(named, [3, 5, 2, 4, 0]);
        assert!(idle.is_empty());
        idle.begin(slot(1), at(1));
        idle.retain(|slot| slot.index != 1);
        assert!(idle.is_empty());
    }
}
