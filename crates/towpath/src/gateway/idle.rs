//! Who has been idle longest, without looking at everyone.
//!
//! Each entry is noted with a time not after its last use; whoever seems to be first is looked at
//! again before he is named. A use thus costs nothing, and naming one the depth of a heap, also in
//! a flood of flows that are used once.

use super::slots::Slot;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use towpath_net::time::Instant;

/// The entries that can end, each once.
#[derive(Default)]
pub(super) struct Idle(BinaryHeap<Reverse<(Instant, Slot)>>);

impl Idle {
    /// Notes a new entry.
    pub(super) fn begin(&mut self, slot: Slot, now: Instant) {
        self.0.push(Reverse((now, slot)));
    }

    /// Parts with the entry that was idle longest. `used_at` tells when one was used last, or
    /// that it is gone.
    pub(super) fn end_longest(
        &mut self,
        mut used_at: impl FnMut(Slot) -> Option<Instant>,
    ) -> Option<Slot> {
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
    pub(super) fn retain(&mut self, mut is_there: impl FnMut(Slot) -> bool) {
        self.0.retain(|Reverse((_, slot))| is_there(*slot));
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
