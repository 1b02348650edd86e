//! What has been sent and not yet acknowledged: one record per transmitted range.
//!
//! Records are contiguous from `snd_una` to `snd_nxt`. A super-packet is one record; SACK blocks
//! and retransmissions cut records where they must. Each record carries when it was last sent, so
//! that loss detection by time can be added next to the counting of RFC 6675 used here.
//!
//! Bounded by what the send window allows: a record covers at least one sequence number, and in
//! practice one segment. `RECORDS_MAX` stops a peer that sends SACK blocks to cut records to bits.

use super::seq::Seq;
use crate::time::Instant;
use alloc::collections::VecDeque;

/// Most records of one connection. At the bound nothing new is sent, and SACK blocks that would cut
/// a record are ignored, which costs time and retransmissions and nothing else. 64 bytes each:
/// 256 KiB for a hostile peer.
pub const RECORDS_MAX: usize = 4096;

/// Segments reported above a hole before it counts as lost (RFC 6675 DupThresh).
pub const DUP_THRESHOLD: u32 = 3;

/// Where the bytes of a record are thought to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// On the way.
    InFlight,
    /// At the receiver, out of order.
    Sacked,
    /// Lost and to be sent again.
    Lost,
    /// Lost, sent again, on the way.
    Resent,
}

/// One transmitted range.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// First sequence number.
    pub start: Seq,
    /// Number after the last.
    pub end: Seq,
    /// When it was last sent.
    pub sent_at: Instant,
    /// Whether it was ever sent again (Karn's rule).
    pub resent: bool,
    /// Where it is.
    pub mark: Mark,
}

impl Record {
    fn len(&self) -> u32 {
        self.end - self.start
    }

    fn in_pipe(&self) -> bool {
        matches!(self.mark, Mark::InFlight | Mark::Resent)
    }
}

/// What an acknowledgment told.
#[derive(Clone, Copy, Debug, Default)]
pub struct Acked {
    /// Sequence numbers acknowledged that were not reported by SACK before.
    pub bytes: u32,
    /// When the latest of them that was sent only once was sent: an RTT sample.
    pub sample: Option<Instant>,
}

/// The records of a connection.
#[derive(Default)]
pub struct Scoreboard {
    records: VecDeque<Record>,
    pipe: u32,
    sacked: u32,
    lost: u32,
}

impl Scoreboard {
    /// Adds what was just sent for the first time.
    pub fn sent(&mut self, start: Seq, end: Seq, now: Instant) {
        debug_assert!(self.records.back().is_none_or(|last| last.end == start));
        self.pipe += end - start;
        let record = Record { start, end, sent_at: now, resent: false, mark: Mark::InFlight };
        self.records.push_back(record);
    }

    /// True if nothing new may be sent before some of it is acknowledged.
    pub fn is_full(&self) -> bool {
        self.records.len() >= RECORDS_MAX
    }

    /// Sequence numbers on the way (RFC 6675 "pipe").
    pub fn pipe(&self) -> u32 {
        self.pipe
    }

    /// Sequence numbers that SACK reported.
    pub fn sacked(&self) -> u32 {
        self.sacked
    }

    /// True if some range is to be sent again.
    pub fn has_lost(&self) -> bool {
        self.lost > 0
    }

    /// True if nothing is outstanding.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The oldest outstanding record.
    pub fn first(&self) -> Option<&Record> {
        self.records.front()
    }

    /// Everything before `una` has arrived in order.
    pub fn acknowledge(&mut self, una: Seq) -> Acked {
        let mut acked = Acked::default();
        while let Some(first) = self.records.front_mut()
            && first.start.before(una)
        {
            let upto = first.end.min(una);
            let count = upto - first.start;
            if first.mark != Mark::Sacked {
                acked.bytes += count;
                if !first.resent {
                    acked.sample = Some(first.sent_at);
                }
            }
            let (mark, whole) = (first.mark, upto == first.end);
            first.start = upto;
            self.account(mark, count, false);
            if whole {
                self.records.pop_front();
            }
        }
        acked
    }

    /// The receiver holds `start..end` (a SACK block within the window). Returns what was news.
    pub fn sack(&mut self, start: Seq, end: Seq) -> Acked {
        let mut news = Acked::default();
        let mut index = self.position(start);
        while let Some(&record) = self.records.get(index)
            && record.start.before(end)
        {
            if record.mark == Mark::Sacked {
                index += 1;
                continue;
            }
            if record.start.before(start) {
                if !self.split(index, start) {
                    return news;
                }
                index += 1;
                continue;
            }
            if record.end.after(end) && !self.split(index, end) {
                return news;
            }
            let record = self.records[index];
            news.bytes += record.len();
            if !record.resent {
                news.sample = news.sample.max(Some(record.sent_at));
            }
            self.mark(index, Mark::Sacked);
            index += 1;
        }
        news
    }

    /// Marks as lost what has enough SACKed above it (RFC 6675 IsLost). True if any was.
    pub fn find_losses(&mut self, mss: u32) -> bool {
        let threshold = (DUP_THRESHOLD - 1) * mss;
        let (mut above_bytes, mut above_runs) = (0u32, 0u32);
        let mut run_above = false;
        let mut found = false;
        for index in (0..self.records.len()).rev() {
            if self.sacked == 0 {
                break;
            }
            let record = self.records[index];
            if record.mark == Mark::Sacked {
                above_bytes += record.len();
                above_runs += u32::from(!run_above);
                run_above = true;
                continue;
            }
            run_above = false;
            let lost = above_bytes > threshold || above_runs >= DUP_THRESHOLD;
            if lost && record.mark == Mark::InFlight {
                self.mark(index, Mark::Lost);
                found = true;
            }
        }
        found
    }

    /// Marks the first `count` outstanding numbers as lost, for peers without SACK.
    pub fn lose_first(&mut self, count: u32) {
        let Some(&first) = self.records.front() else { return };
        if first.len() > count {
            self.split(0, first.start + count);
        }
        if self.records[0].in_pipe() {
            self.mark(0, Mark::Lost);
        }
    }

    /// The timer fired: nothing that was not reported is on the way any more. What SACK reported
    /// is forgotten too if the receiver seems to have dropped it (RFC 2018 §8).
    pub fn lose_all(&mut self) {
        let reneged = self.records.front().is_some_and(|first| first.mark == Mark::Sacked);
        for index in 0..self.records.len() {
            if reneged || self.records[index].mark != Mark::Sacked {
                self.mark(index, Mark::Lost);
            }
        }
    }

    /// The first range to send again, at most `max` numbers of it. May span several records.
    pub fn next_lost(&self, max: u32) -> Option<(Seq, u32)> {
        if self.lost == 0 {
            return None;
        }
        let mut lost = self.records.iter().skip_while(|record| record.mark != Mark::Lost);
        let first = lost.next()?;
        let more = lost.take_while(|record| record.mark == Mark::Lost);
        let mut len = first.len();
        for record in more {
            if len >= max {
                break;
            }
            len += record.len();
        }
        Some((first.start, len.min(max)))
    }

    /// `start..end`, the beginning of a run of lost records, was sent again.
    pub fn sent_again(&mut self, start: Seq, end: Seq, now: Instant) {
        let mut index = self.position(start);
        debug_assert_eq!(self.records[index].start, start);
        while let Some(&record) = self.records.get(index)
            && record.start.before(end)
        {
            if record.end.after(end) {
                // Without room for another record the rest counts as sent again too; the timer
                // finds out that it was not.
                self.split(index, end);
            }
            self.mark(index, Mark::Resent);
            let record = &mut self.records[index];
            record.sent_at = now;
            record.resent = true;
            index += 1;
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Index of the first record that ends after `seq`.
    fn position(&self, seq: Seq) -> usize {
        self.records.partition_point(|record| record.end.at_or_before(seq))
    }

    fn split(&mut self, index: usize, at: Seq) -> bool {
        if self.records.len() >= RECORDS_MAX {
            return false;
        }
        let mut tail = self.records[index];
        debug_assert!(at.after(tail.start) && at.before(tail.end));
        tail.start = at;
        self.records[index].end = at;
        self.records.insert(index + 1, tail);
        true
    }

    fn mark(&mut self, index: usize, mark: Mark) {
        let record = self.records[index];
        self.account(record.mark, record.len(), false);
        self.account(mark, record.len(), true);
        self.records[index].mark = mark;
    }

    fn account(&mut self, mark: Mark, count: u32, add: bool) {
        let total = match mark {
            Mark::InFlight | Mark::Resent => &mut self.pipe,
            Mark::Sacked => &mut self.sacked,
            Mark::Lost => &mut self.lost,
        };
        if add {
            *total += count;
        } else {
            *total -= count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    extern crate std;

    const T: Instant = Instant::from_micros(1000);

    fn board(sizes: &[u32]) -> Scoreboard {
        let mut board = Scoreboard::default();
        let mut seq = Seq(u32::MAX - 1500);
        for &size in sizes {
            board.sent(seq, seq + size, T);
            seq += size;
        }
        board
    }

    #[test]
    fn sack_above_a_hole_loses_it_after_three_segments() {
        let base = Seq(u32::MAX - 1500);
        let mut board = board(&[5000]);
        assert_eq!(board.sack(base + 1000, base + 3000).bytes, 2000);
        assert!(!board.find_losses(1000));
        assert_eq!(board.sack(base + 1000, base + 4000).bytes, 1000);
        assert!(board.find_losses(1000));
        assert_eq!(board.next_lost(u32::MAX), Some((base, 1000)));
        assert_eq!(board.pipe(), 1000);
        board.sent_again(base, base + 1000, T);
        assert_eq!((board.pipe(), board.has_lost()), (2000, false));
        let acked = board.acknowledge(base + 4000);
        assert_eq!((acked.bytes, acked.sample), (1000, None));
        assert_eq!((board.pipe(), board.sacked()), (1000, 0));
        assert_eq!(board.acknowledge(base + 5000).sample, Some(T));
        assert!(board.is_empty());
    }

    #[test]
    fn a_timeout_keeps_what_was_reported_unless_the_front_was() {
        let base = Seq(u32::MAX - 1500);
        let mut one = board(&[1000, 1000]);
        one.sack(base + 1000, base + 2000);
        one.lose_all();
        assert_eq!((one.sacked(), one.next_lost(9999)), (1000, Some((base, 1000))));
        let mut two = board(&[1000, 1000]);
        two.sack(base, base + 1000);
        two.lose_all();
        assert_eq!((two.sacked(), two.pipe()), (0, 0));
    }

    proptest! {
        /// Goal: totals always equal what the records say and records stay contiguous.
        /// Method: random SACKs, ACKs, losses and retransmissions.
        #[test]
        fn totals_equal_the_records(
            ops in proptest::collection::vec((0..6u8, 0..60_000u32, 0..9000u32), 1..80),
        ) {
            let base = Seq(u32::MAX - 1500);
            let mut board = Scoreboard::default();
            let (mut una, mut nxt) = (base, base);
            for (kind, a, b) in ops {
                match kind {
                    0 => {
                        board.sent(nxt, nxt + (b + 1), T);
                        nxt += b + 1;
                    }
                    1 if nxt != una => {
                        let start = una + a % (nxt - una);
                        board.sack(start, (start + b).min(nxt));
                    }
                    2 if nxt != una => {
                        una += a % (nxt - una + 1);
                        board.acknowledge(una);
                    }
                    3 => {
                        board.find_losses(1448);
                    }
                    4 => board.lose_all(),
                    _ => {
                        if let Some((start, len)) = board.next_lost(b.max(1)) {
                            board.sent_again(start, start + len, T);
                        }
                    }
                }
                let mut at = una;
                let (mut pipe, mut sacked, mut lost) = (0, 0, 0);
                for record in &board.records {
                    prop_assert_eq!(record.start, at);
                    prop_assert!(record.end.after(record.start));
                    at = record.end;
                    match record.mark {
                        Mark::Sacked => sacked += record.len(),
                        Mark::Lost => lost += record.len(),
                        _ => pipe += record.len(),
                    }
                }
                prop_assert_eq!(at, nxt);
                prop_assert_eq!((pipe, sacked, lost), (board.pipe, board.sacked, board.lost));
            }
        }
    }
}
