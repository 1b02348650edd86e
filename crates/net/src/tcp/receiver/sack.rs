//! Selective acknowledgments: which ranges the next ACK reports (RFC 2018 §4), and which range it
//! reports as received twice (RFC 2883).

use super::Receiver;
use super::acks::QUICK_ACKS;
use crate::tcp::reassembly::SACK_BLOCKS_MAX;
use crate::tcp::seq::Seq;

impl Receiver {
    /// Bytes that the SACK blocks of the next segment take (RFC 2018 §3).
    #[inline]
    pub(in crate::tcp) fn sack_len(&self) -> u32 {
        let blocks = usize::from(self.duplicate.is_some()) + self.waiting.block_count();
        if blocks == 0 || !self.sack {
            return 0;
        }
        let max = if self.timestamps { SACK_BLOCKS_MAX - 1 } else { SACK_BLOCKS_MAX };
        4 + 8 * blocks.min(max) as u32
    }

    /// Writes the SACK blocks of the next segment, a duplicate range first (RFC 2883 §4). Returns
    /// their number.
    pub(in crate::tcp) fn write_sack(&self, blocks: &mut [(u32, u32); SACK_BLOCKS_MAX]) -> u8 {
        if !self.sack {
            return 0;
        }
        let mut count = self.waiting.blocks(blocks);
        if let Some((start, end)) = self.duplicate {
            blocks.rotate_right(1);
            blocks[0] = (start.0, end.0);
            count = (count + 1).min(SACK_BLOCKS_MAX as u8);
        }
        count
    }

    /// Acknowledges a duplicate at once, as the peer may have missed an ACK. Reports the range if
    /// SACK is in use (RFC 2883).
    pub(in crate::tcp) fn acknowledge_duplicate(&mut self, start: Seq, end: Seq) {
        self.quick_acks(QUICK_ACKS);
        self.acks.owe_now();
        self.set_duplicate(start, end);
    }

    /// Makes the next ACK report `start..end` as received twice, and no other range.
    pub(super) fn set_duplicate(&mut self, start: Seq, end: Seq) {
        // A range beyond the ACK would be taken for a SACK block (RFC 2883 §4), and may be given
        // back.
        let waits = self.acks_taken_only && end.after(self.ack_point());
        if self.sack && self.dsack && start.before(end) && !waits {
            self.duplicate = Some((start, end));
        }
    }

    /// Adds a duplicate range. An ACK reports only one range, so a range that does not touch the
    /// one to be reported is ignored.
    pub(super) fn extend_duplicate(&mut self, start: Seq, end: Seq) {
        match self.duplicate {
            None => self.set_duplicate(start, end),
            Some((first, last)) if start.at_or_before(last) && end.at_or_after(first) => {
                self.duplicate = Some((first.min(start), last.max(end)));
            }
            Some(_) => {}
        }
    }

    /// Reports which parts of the new range `start..end` were already held out of order. A part at
    /// its beginning is always reported, a later part only if it touches the range to be reported.
    pub(super) fn find_duplicates(&mut self, start: Seq, end: Seq) {
        let waiting = core::mem::take(&mut self.waiting);
        for (from, to) in waiting.overlaps(start, end) {
            if from == start {
                self.set_duplicate(from, to);
            } else {
                self.extend_duplicate(from, to);
            }
        }
        self.waiting = waiting;
    }
}
