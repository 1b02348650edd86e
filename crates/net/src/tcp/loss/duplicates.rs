//! Duplicate ACKs of a peer without SACK (RFC 5681 §3.2, RFC 6582): each stands for a segment that
//! left the network.

use super::Recovery;

impl Recovery {
    /// Counts duplicate ACKs if there is no SACK.
    pub(super) fn add_duplicates(&mut self, count: u32) {
        if self.sack || count == 0 {
            return;
        }
        let before = self.board.totals().sacked;
        self.board.set_duplicates(before + count);
        self.limit_duplicates(0);
        let after = self.board.totals().sacked;
        self.count_delivered(after.saturating_sub(before));
    }

    /// Removes the duplicate ACKs of `acked` segments: one of these filled the hole, each other one
    /// had caused a duplicate ACK.
    pub(super) fn remove_duplicates(&mut self, acked: u32) {
        let duplicates = self.board.totals().sacked;
        if acked > 0 {
            self.count_delivered(acked.saturating_sub(duplicates).max(1));
            self.board.set_duplicates(duplicates.saturating_sub(acked - 1));
        }
        self.limit_duplicates(acked);
    }

    /// Limits the duplicates to what the outstanding segments can cause. More of them mean that the
    /// network reorders or duplicates.
    fn limit_duplicates(&mut self, acked: u32) {
        let totals = self.board.totals();
        let holes = totals.lost.max(1).min(totals.outstanding);
        if totals.sacked + holes > totals.outstanding {
            self.board.set_duplicates(totals.outstanding - holes);
            self.reordering.note_degree(totals.outstanding + acked);
        }
    }
}
