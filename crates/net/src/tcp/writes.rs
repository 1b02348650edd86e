//! Where the owner's writes end in the stream that is to be sent.
//!
//! Linux keeps the bytes to be sent in buffers of a goal size, and much that can be seen on the
//! wire follows from where these end: which segments carry PSH, which bytes may share a segment
//! (`MSG_EOR`), what a small window leaves for later. Here the bytes are one queue of pieces; the
//! ends of the buffers that Linux would have are kept beside it, from `snd_una` to the end.
//!
//! Bounded by the send buffer: each entry stands for a write or a buffer of the goal size, and
//! [`Writes::unsent`] of them are charged to the send buffer with Linux's overhead each.

use super::seq::Seq;
use alloc::collections::VecDeque;

/// The end of one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// Number after its last byte.
    pub(super) at: Seq,
    /// The segment that ends here carries PSH.
    pub(super) push: bool,
    /// No later byte shares a segment with one before (`MSG_EOR`).
    pub(super) record: bool,
}

/// The ends of all buffers that are not acknowledged.
#[derive(Default)]
pub(super) struct Writes {
    ends: VecDeque<End>,
}

impl Writes {
    /// Adds `len` bytes that begin at `start`; the bytes from `next` on are unsent. Buffers are
    /// filled up to `goal` bytes. `begins` for the first bytes of a write.
    pub(super) fn append(&mut self, start: Seq, len: u32, next: Seq, goal: u32, begins: bool) {
        let (mut at, mut left) = (start, len);
        let room = self.tail_room(start, next, goal).min(left);
        if room > 0
            && let Some(tail) = self.ends.back_mut()
        {
            tail.at += room;
            tail.push &= !begins;
            at += room;
            left -= room;
        }
        while left > 0 {
            let count = left.min(goal.max(1));
            at += count;
            left -= count;
            self.ends.push_back(End { at, push: false, record: false });
        }
    }

    /// Bytes that still fit the last buffer, if any of it is unsent. `end` is that of all bytes.
    pub(super) fn tail_room(&self, end: Seq, next: Seq, goal: u32) -> u32 {
        match self.ends.back() {
            Some(tail) if tail.at.after(next) && !tail.record => {
                let before = self.ends.len().checked_sub(2).map(|index| self.ends[index].at);
                let start = before.map_or(next, |before| before.max(next));
                goal.saturating_sub(end - start)
            }
            _ => 0,
        }
    }

    /// Where the last buffer begins; `base` if there is only one.
    pub(super) fn start_of_last(&self, base: Seq) -> Seq {
        let before = self.ends.len().checked_sub(2).map(|index| self.ends[index].at);
        before.map_or(base, |before| before.max(base))
    }

    /// The last byte so far carries PSH.
    pub(super) fn push(&mut self) {
        if let Some(tail) = self.ends.back_mut() {
            tail.push = true;
        }
    }

    /// A record ends with the last byte so far.
    pub(super) fn end_record(&mut self) {
        if let Some(tail) = self.ends.back_mut() {
            tail.record = true;
        }
    }

    /// Everything before `una` is acknowledged.
    pub(super) fn acknowledge(&mut self, una: Seq) {
        while self.ends.front().is_some_and(|end| end.at.at_or_before(una)) {
            self.ends.pop_front();
        }
    }

    /// The end of the buffer that the byte at `seq` is in.
    pub(super) fn end_of(&self, seq: Seq) -> Option<End> {
        self.ends.get(self.position(seq)).copied()
    }

    /// The first end at or beyond `seq + len`, or before it where a record ends; for segments that
    /// may hold bytes of several buffers.
    pub(super) fn end_beyond(&self, seq: Seq, len: u32) -> Option<End> {
        let mut from = self.ends.range(self.position(seq)..).copied();
        from.find(|end| end.record || end.at.at_or_after(seq + len)).or(self.ends.back().copied())
    }

    /// True if a segment that ends at `end` carries PSH because a write does.
    pub(super) fn is_pushed(&self, end: Seq) -> bool {
        let index = self.ends.partition_point(|known| known.at.before(end));
        self.ends.get(index).is_some_and(|known| known.at == end && known.push)
    }

    /// True if a record ends at `end`.
    pub(super) fn ends_record(&self, end: Seq) -> bool {
        let index = self.ends.partition_point(|known| known.at.before(end));
        self.ends.get(index).is_some_and(|known| known.at == end && known.record)
    }

    /// Buffers with unsent bytes, where `next` is the first of them.
    pub(super) fn unsent(&self, next: Seq) -> usize {
        self.ends.len() - self.position(next)
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Index of the buffer that the byte at `seq` is in.
    fn position(&self, seq: Seq) -> usize {
        match self.ends.back() {
            // Most questions are about the last one.
            Some(last) if last.at.at_or_before(seq) => self.ends.len(),
            _ => self.ends.partition_point(|end| end.at.at_or_before(seq)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Seq = Seq(u32::MAX - 500);

    #[test]
    fn buffers_fill_up_to_the_goal() {
        let mut writes = Writes::default();
        writes.append(BASE, 2500, BASE, 1000, true);
        writes.push();
        assert_eq!(writes.unsent(BASE), 3);
        // The last half-full buffer takes more, and the mark moves to its new end.
        assert_eq!(writes.tail_room(BASE + 2500, BASE, 1000), 500);
        writes.append(BASE + 2500, 100, BASE, 1000, true);
        assert!(!writes.is_pushed(BASE + 2500) && !writes.is_pushed(BASE + 2600));
        writes.push();
        assert!(writes.is_pushed(BASE + 2600));
        // What is left of a buffer after a part was sent counts anew.
        assert_eq!(writes.tail_room(BASE + 2600, BASE + 2200, 1000), 600);
        assert_eq!(writes.tail_room(BASE + 2600, BASE + 2600, 1000), 0, "all of it was sent");
        writes.acknowledge(BASE + 2000);
        assert_eq!(writes.unsent(BASE + 2000), 1);
        assert_eq!(writes.end_of(BASE + 2599).map(|end| end.at), Some(BASE + 2600));
        assert_eq!(writes.end_of(BASE + 2600), None);
    }

    #[test]
    fn records_stay_apart() {
        let mut writes = Writes::default();
        writes.append(BASE, 400, BASE, 1000, true);
        writes.end_record();
        writes.append(BASE + 400, 400, BASE, 1000, true);
        assert_eq!(writes.unsent(BASE), 2);
        assert_eq!(writes.end_beyond(BASE, 800).map(|end| end.at), Some(BASE + 400));
        assert_eq!(writes.end_beyond(BASE + 400, 800).map(|end| end.at), Some(BASE + 800));
    }
}
