//! Who has been idle longest, without looking at everyone.
//!
//! Each entry is noted with a time not after its last use; whoever seems to be first is looked at
//! again before he is named. A use thus costs nothing, and naming one the depth of a heap, also in
//! a flood of flows that are used once.

use super::shares::Share;
use super::slots::Slot;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use towpath_net::time::Instant;

/// The entries of one, each once.
#[derive(Default)]
struct Idle(BinaryHeap<Reverse<(Instant, Slot)>>);

impl Idle {
    /// Notes a new entry.
    fn begin(&mut self, slot: Slot, now: Instant) {
        self.0.push(Reverse((now, slot)));
    }

    /// Parts with the entry that was idle longest. `used_at` tells when one was used last, or
    /// that it is gone.
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

    /// Forgets entries that are gone.
    fn retain(&mut self, mut is_there: impl FnMut(Slot) -> bool) {
        self.0.retain(|Reverse((_, slot))| is_there(*slot));
    }

    /// True if nothing is noted.
    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The entries that can end, by who they count for: whoever has most gives way.
#[derive(Default)]
pub(super) struct IdleShares(HashMap<Share, Members>);

#[derive(Default)]
struct Members {
    idle: Idle,
    /// Those of them that are there.
    count: usize,
}

impl IdleShares {
    /// Notes a new entry.
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

    /// Parts with the entry that was idle longest of those of whoever has most; of those who have
    /// as many, of the newcomer's. The caller says that it is gone.
    pub(super) fn end_longest(
        &mut self,
        newcomer: Share,
        used_at: impl FnMut(Slot) -> Option<Instant>,
    ) -> Option<Slot> {
        let most =
            self.0.iter_mut().max_by_key(|(share, other)| (other.count, **share == newcomer));
        most?.1.idle.end_longest(used_at)
    }

    /// Forgets entries that are gone.
    pub(super) fn retain(&mut self, mut is_there: impl FnMut(Slot) -> bool) {
        self.0.values_mut().for_each(|members| members.idle.retain(&mut is_there));
    }

    /// True if nothing is noted.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: exactly the longest idle is named, whatever was used since it was noted, and what is
    /// gone never. Method: entries whose order of use is not that of their beginning.
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
