//! Where the owner's writes end in the stream to be sent.
//!
//! The bytes to be sent are one queue of pieces. Beside it this keeps *buffers*: writes, joined and
//! cut to a goal size. Their ends are visible on the wire: they decide which segments carry PSH,
//! which bytes may share a segment (`MSG_EOR`, `eor/no-coalesce-large.pkt`), and what a small
//! window leaves for later. Each end also records the group of lent memory in its buffer: a buffer
//! never has bytes of two groups, and at most `RANGES_MAX` ranges of lent memory
//! (`zerocopy/maxfrags.pkt`).
//!
//! Bounded by the send buffer: each entry stands for a write or a buffer of the goal size, and each
//! of the [`Writes::unsent`] entries is charged to the send buffer with an overhead.

use super::seq::Seq;
use alloc::collections::VecDeque;

/// The end of one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// Sequence number after its last byte.
    pub(super) at: Seq,
    /// The segment that ends here carries PSH.
    pub(super) push: bool,
    /// No segment has bytes from both sides of this end (`MSG_EOR`).
    pub(super) record: bool,
    /// Group of lent memory that the buffer has bytes of.
    group: Option<u32>,
    /// Ranges of lent memory in the buffer.
    ranges: u8,
    /// Memory that the ranges keep beyond their bytes.
    kept: u32,
}

/// Bytes that are lent and not copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lent {
    /// Group whose notice reports that the bytes are no longer needed.
    pub(super) group: u32,
    /// Memory that the loan keeps beyond the bytes: lent memory counts in whole pages.
    pub(super) kept: u32,
}

impl End {
    /// The end of all bytes, for data in no known buffer.
    pub(super) fn of_all(at: Seq) -> Self {
        Self { at, push: true, record: false, group: None, ranges: 0, kept: 0 }
    }

    /// True if the buffer may take bytes of `group`, or bytes that are not lent if that is `None`.
    fn takes(&self, group: Option<u32>) -> bool {
        let Some(group) = group else { return !self.record };
        !self.record && self.group.is_none_or(|own| own == group) && self.ranges < RANGES_MAX
    }
}

/// The ends of all buffers that are not fully acknowledged.
#[derive(Default)]
pub(super) struct Writes {
    ends: VecDeque<End>,
    /// Memory that the ranges of all buffers keep beyond their bytes.
    kept: usize,
}

impl Writes {
    /// Adds `len` bytes from `start` on; bytes from `next` on are unsent. Buffers are filled up to
    /// `goal` bytes. `begins` marks the first bytes of a write, `lent` the bytes of one range of
    /// lent memory. Returns true if lent bytes could not join the last buffer, which is pushed for
    /// that reason.
    pub(super) fn append(
        &mut self,
        (start, len): (Seq, u32),
        next: Seq,
        goal: u32,
        begins: bool,
        lent: Option<Lent>,
    ) -> bool {
        let (mut at, mut left, mut closed) = (start, len, false);
        let room = self.tail_room(start, next, goal, lent.map(|lent| lent.group)).min(left);
        let mut kept = lent.map_or(0, |lent| lent.kept);
        self.kept += kept as usize;
        if room > 0
            && let Some(tail) = self.ends.back_mut()
        {
            tail.at += room;
            tail.push &= !begins;
            at += room;
            left -= room;
            if let Some(lent) = lent {
                tail.group = Some(lent.group);
                tail.ranges += 1;
                tail.kept += core::mem::take(&mut kept);
            }
        } else if let (Some(lent), Some(tail)) = (lent, self.ends.back_mut())
            && tail.at.after(next)
            && !tail.takes(Some(lent.group))
        {
            tail.push = true;
            closed = true;
        }
        let (group, ranges) = (lent.map(|lent| lent.group), u8::from(lent.is_some()));
        while left > 0 {
            let count = left.min(goal.max(1));
            at += count;
            left -= count;
            let kept = core::mem::take(&mut kept);
            self.ends.push_back(End { at, push: false, record: false, group, ranges, kept });
        }
        closed
    }

    /// Group of the last buffer, if part of that buffer is unsent: more calls may join it.
    pub(super) fn tail_group(&self, next: Seq) -> Option<u32> {
        self.ends.back().filter(|tail| tail.at.after(next))?.group
    }

    /// True if a buffer has bytes of the group.
    pub(super) fn has_group(&self, group: u32) -> bool {
        self.ends.iter().any(|end| end.group == Some(group))
    }

    /// Memory that lent ranges keep beyond their bytes.
    pub(super) fn kept(&self) -> usize {
        self.kept
    }

    /// Bytes that still fit into the last buffer, if part of it is unsent. `end` is the end of all
    /// bytes; `group` is set for bytes of lent memory.
    pub(super) fn tail_room(&self, end: Seq, next: Seq, goal: u32, group: Option<u32>) -> u32 {
        match self.ends.back() {
            Some(tail) if tail.at.after(next) && tail.takes(group) => {
                let before = self.ends.len().checked_sub(2).map(|index| self.ends[index].at);
                let start = before.map_or(next, |before| before.max(next));
                goal.saturating_sub(end - start)
            }
            _ => 0,
        }
    }

    /// Start of the last buffer; `base` if there is only one.
    pub(super) fn start_of_last(&self, base: Seq) -> Seq {
        let before = self.ends.len().checked_sub(2).map(|index| self.ends[index].at);
        before.map_or(base, |before| before.max(base))
    }

    /// Marks the last byte so far with PSH.
    pub(super) fn push(&mut self) {
        if let Some(tail) = self.ends.back_mut() {
            tail.push = true;
        }
    }

    /// Ends a record with the last byte so far.
    pub(super) fn end_record(&mut self) {
        if let Some(tail) = self.ends.back_mut() {
            tail.record = true;
        }
    }

    /// Forgets the buffers before `una`, which are acknowledged.
    pub(super) fn acknowledge(&mut self, una: Seq) {
        while let Some(end) = self.ends.front().filter(|end| end.at.at_or_before(una)) {
            self.kept -= end.kept as usize;
            self.ends.pop_front();
        }
    }

    /// The end of the buffer that holds the byte at `seq`.
    pub(super) fn end_of(&self, seq: Seq) -> Option<End> {
        self.ends.get(self.position(seq)).copied()
    }

    /// The first end at or beyond `seq + len`, or an earlier one that ends a record. For segments
    /// that may hold bytes of several buffers.
    pub(super) fn end_beyond(&self, seq: Seq, len: u32) -> Option<End> {
        let mut from = self.ends.range(self.position(seq)..).copied();
        from.find(|end| end.record || end.at.at_or_after(seq + len)).or(self.ends.back().copied())
    }

    /// True if a segment that ends at `end` carries PSH because a pushed buffer ends there.
    pub(super) fn is_pushed(&self, end: Seq) -> bool {
        let index = self.ends.partition_point(|known| known.at.before(end));
        self.ends.get(index).is_some_and(|known| known.at == end && known.push)
    }

    /// True if a record ends at `end`.
    pub(super) fn ends_record(&self, end: Seq) -> bool {
        let index = self.ends.partition_point(|known| known.at.before(end));
        self.ends.get(index).is_some_and(|known| known.at == end && known.record)
    }

    /// Number of buffers with unsent bytes; `next` is the first unsent byte.
    pub(super) fn unsent(&self, next: Seq) -> usize {
        self.ends.len() - self.position(next)
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Index of the buffer that holds the byte at `seq`.
    fn position(&self, seq: Seq) -> usize {
        match self.ends.back() {
            // Most lookups are for the last buffer.
            Some(last) if last.at.at_or_before(seq) => self.ends.len(),
            _ => self.ends.partition_point(|end| end.at.at_or_before(seq)),
        }
    }
}

/// Largest number of lent ranges in one buffer; Linux's value. A packet has room for them and for
/// the rest of one before.
pub(super) const RANGES_MAX: u8 = 17;

const _: () = assert!((RANGES_MAX as usize) < towpath_packet::packet::PIECES_MAX);

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Seq = Seq(u32::MAX - 500);

    fn append(writes: &mut Writes, start: Seq, len: u32, next: Seq, lent: Option<Lent>) -> bool {
        writes.append((start, len), next, 1000, true, lent)
    }

    #[test]
    fn buffers_fill_up_to_the_goal() {
        let mut writes = Writes::default();
        append(&mut writes, BASE, 2500, BASE, None);
        writes.push();
        assert_eq!(writes.unsent(BASE), 3);
        // The last half-full buffer takes more, and PSH moves to its new end.
        assert_eq!(writes.tail_room(BASE + 2500, BASE, 1000, None), 500);
        append(&mut writes, BASE + 2500, 100, BASE, None);
        assert!(!writes.is_pushed(BASE + 2500) && !writes.is_pushed(BASE + 2600));
        writes.push();
        assert!(writes.is_pushed(BASE + 2600));
        // After part of a buffer was sent, only the unsent part counts.
        assert_eq!(writes.tail_room(BASE + 2600, BASE + 2200, 1000, None), 600);
        assert_eq!(writes.tail_room(BASE + 2600, BASE + 2600, 1000, None), 0, "all of it was sent");
        writes.acknowledge(BASE + 2000);
        assert_eq!(writes.unsent(BASE + 2000), 1);
        assert_eq!(writes.end_of(BASE + 2599).map(|end| end.at), Some(BASE + 2600));
        assert_eq!(writes.end_of(BASE + 2600), None);
    }

    #[test]
    fn records_stay_apart() {
        let mut writes = Writes::default();
        append(&mut writes, BASE, 400, BASE, None);
        writes.end_record();
        append(&mut writes, BASE + 400, 400, BASE, None);
        assert_eq!(writes.unsent(BASE), 2);
        assert_eq!(writes.end_beyond(BASE, 800).map(|end| end.at), Some(BASE + 400));
        assert_eq!(writes.end_beyond(BASE + 400, 800).map(|end| end.at), Some(BASE + 800));
    }

    #[test]
    fn lent_ranges_of_two_groups_never_share_a_buffer() {
        let mut writes = Writes::default();
        let lent = |group| Some(Lent { group, kept: 4000 });
        append(&mut writes, BASE, 100, BASE, None);
        assert!(!append(&mut writes, BASE + 100, 100, BASE, lent(7)), "joins what was copied");
        append(&mut writes, BASE + 200, 100, BASE, None);
        assert_eq!((writes.unsent(BASE), writes.tail_group(BASE)), (1, Some(7)));
        assert_eq!(writes.tail_room(BASE + 300, BASE, 1000, Some(8)), 0);
        assert!(append(&mut writes, BASE + 300, 100, BASE, lent(8)));
        assert!(writes.is_pushed(BASE + 300), "a buffer that takes no more is pushed");
        assert_eq!((writes.unsent(BASE), writes.tail_group(BASE)), (2, Some(8)));
        assert_eq!(writes.tail_group(BASE + 400), None, "all of it was sent");
        assert_eq!(writes.kept(), 8000);
        writes.acknowledge(BASE + 300);
        assert_eq!(writes.kept(), 4000);
    }

    #[test]
    fn a_buffer_has_so_many_lent_ranges() {
        let mut writes = Writes::default();
        let lent = Some(Lent { group: 1, kept: 0 });
        for range in 0..u32::from(RANGES_MAX) {
            assert!(!append(&mut writes, BASE + range, 1, BASE, lent));
        }
        let end = BASE + u32::from(RANGES_MAX);
        assert_eq!(writes.tail_room(end, BASE, 1000, Some(1)), 0);
        assert!(writes.tail_room(end, BASE, 1000, None) > 0, "copied bytes may still join");
        assert!(append(&mut writes, end, 1, BASE, lent) && writes.is_pushed(end));
        assert_eq!(writes.unsent(BASE), 2);
    }
}
