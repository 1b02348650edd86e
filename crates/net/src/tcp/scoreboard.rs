//! Data sent and not yet acknowledged: one record per transmitted range.
//!
//! Records are contiguous from `snd_una` to `snd_nxt`. A super-packet is one record. SACK blocks
//! and retransmissions split records where they must, and only between segments. Each record knows
//! how many segments it holds, and loss recovery counts only segments: a peer that acknowledges in
//! small parts gains nothing by it (RFC 3465 §2.3).
//!
//! A record has three independent flags: SACK reported it, it is thought lost, and a
//! retransmission of it is in flight.
//!
//! The number of records is bounded by `RECORDS_MAX`. SACKed neighbours are merged into one record,
//! so that a repeated SACK block costs no walk. The searches for records to retransmit and for late
//! records continue where they stopped. So the work is bounded by the segments that were sent.

mod late;

use super::rate::Sent;
use super::seq::Seq;
use crate::time::{Duration, Instant};
use alloc::collections::VecDeque;
pub use late::Newest;

/// Largest number of records of one connection. At the bound no new data is sent, and SACK blocks
/// that would split a record are ignored, which costs only time and retransmissions. 56 bytes each:
/// 224 KiB for a hostile peer.
pub const RECORDS_MAX: usize = 4096;
const _: () = assert!(size_of::<Record>() <= 56, "RECORDS_MAX counts on 56 bytes a record");

/// One transmitted range.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// First sequence number.
    pub start: Seq,
    /// Sequence number after the last one.
    pub end: Seq,
    /// When it was last sent.
    pub sent_at: Instant,
    /// Segments in it that are not acknowledged as a whole.
    pub segments: u32,
    /// Segments that had been delivered when it was last sent.
    pub delivered: u32,
    /// State of the delivery rate when it was last sent.
    pub(super) sent: Sent,
    /// Payload of a full segment, in bytes.
    size: u32,
    /// The last sequence number is a FIN.
    fin: bool,
    /// One of the owner's records ends here: no later data is merged into it (`MSG_EOR`).
    record_end: bool,
    /// SACK reported it.
    pub sacked: bool,
    /// It is thought lost, also while its retransmission is in flight.
    pub lost: bool,
    /// A retransmission is in flight.
    pub resent: bool,
    /// It was ever retransmitted (Karn's rule).
    pub ever_resent: bool,
}

impl Record {
    /// Bytes of payload.
    fn len(&self) -> u32 {
        self.end - self.start - u32::from(self.fin)
    }

    /// True if it is lost and not retransmitted yet.
    fn is_due(&self) -> bool {
        self.lost && !self.resent && !self.sacked
    }

    /// True if it was retransmitted at `at` and nothing is known of it since.
    fn was_resent_at(&self, at: Instant) -> bool {
        self.ever_resent && self.sent_at == at && !self.sacked && (self.resent || !self.lost)
    }

    fn count_segments(&self) -> u32 {
        self.len().div_ceil(self.size).max(1)
    }
}

/// Properties of data that is sent.
#[derive(Clone, Copy, Debug)]
pub struct Sending {
    /// Payload of a full segment, in bytes.
    pub size: u32,
    /// The last sequence number is a FIN.
    pub fin: bool,
    /// One of the owner's records ends with it: no later data shares a segment with it.
    pub record_end: bool,
    /// Time of sending.
    pub now: Instant,
    /// Segments delivered so far.
    pub delivered: u32,
    /// State of the delivery rate.
    pub(super) sent: Sent,
}

/// Number of segments by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Outstanding segments.
    pub outstanding: u32,
    /// Outstanding segments that SACK or duplicate ACKs reported.
    pub sacked: u32,
    /// Outstanding segments that are thought lost.
    pub lost: u32,
    /// Retransmissions in flight.
    pub resent: u32,
}

/// Records of all outstanding data of a connection.
#[derive(Default)]
pub struct Scoreboard {
    records: VecDeque<Record>,
    totals: Totals,
    /// Segments that duplicate ACKs stand for, without SACK.
    duplicates: u32,
    /// Segments ever marked lost, retransmissions included; wraps.
    lost: u32,
    /// End of the highest range that SACK reported; valid while `sacked` is not zero.
    sacked_end: Seq,
    /// No record before this must be retransmitted; valid while something is lost.
    due_from: Seq,
    /// No record before this waits, after its first transmission, to be found late.
    waiting_from: Seq,
    /// Log of retransmissions in the order of sending: when, and which range. Entries may be
    /// obsolete.
    resent: VecDeque<(Instant, Seq, Seq)>,
    /// Records examined.
    #[cfg(test)]
    visits: usize,
}

impl Scoreboard {
    /// Adds data that was just sent for the first time.
    pub fn sent(&mut self, start: Seq, end: Seq, sending: &Sending) {
        debug_assert!(self.records.back().is_none_or(|last| last.end == start));
        if self.records.is_empty() {
            self.waiting_from = start;
        }
        let mut record = Record {
            start,
            end,
            sent_at: sending.now,
            segments: 0,
            delivered: sending.delivered,
            sent: sending.sent,
            size: sending.size,
            fin: sending.fin,
            record_end: sending.record_end,
            sacked: false,
            lost: false,
            resent: false,
            ever_resent: false,
        };
        record.segments = record.count_segments();
        self.totals.outstanding += record.segments;
        record.sent.note(self.in_flight(), self.lost);
        self.records.push_back(record);
    }

    /// True if no new data may be sent before some is acknowledged.
    pub fn is_full(&self) -> bool {
        self.records.len() >= RECORDS_MAX
    }

    /// Number of segments by state.
    pub fn totals(&self) -> Totals {
        Totals { sacked: self.totals.sacked + self.duplicates, ..self.totals }
    }

    /// Segments in flight: outstanding ones that are neither SACKed nor lost, and retransmissions.
    pub fn in_flight(&self) -> u32 {
        let totals = self.totals();
        totals.outstanding.saturating_sub(totals.sacked + totals.lost) + totals.resent
    }

    /// Segments ever marked lost, repeated losses included; wraps.
    pub fn lost(&self) -> u32 {
        self.lost
    }

    /// Sets the number of segments that duplicate ACKs stand for.
    pub fn set_duplicates(&mut self, duplicates: u32) {
        self.duplicates = duplicates;
    }

    /// End of the highest range that SACK reported, if any.
    pub fn sacked_end(&self) -> Option<Seq> {
        (self.totals.sacked > 0).then_some(self.sacked_end)
    }

    /// True if some range must be retransmitted.
    pub fn has_due(&self) -> bool {
        self.totals.lost > self.totals.resent
    }

    /// True if nothing is outstanding.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// The oldest outstanding record.
    pub fn first(&self) -> Option<&Record> {
        self.records.front()
    }

    /// Removes everything before `una`, which is acknowledged. A segment that is only partly before
    /// `una` does not count. `each` gets the record as it was, the number of its segments that
    /// count, and whether all of it is acknowledged.
    pub fn acknowledge(&mut self, una: Seq, mut each: impl FnMut(&Record, u32, bool)) {
        while let Some(&first) = self.records.front()
            && first.start.before(una)
        {
            let mut rest = first;
            rest.start = first.end.min(una);
            let whole = rest.start == rest.end;
            // The last segment counts when all of it has arrived.
            rest.segments = if whole { 0 } else { rest.count_segments() };
            let count = first.segments - rest.segments;
            self.discount(&first);
            if whole {
                self.records.pop_front();
            } else {
                self.records[0] = rest;
                self.count(&rest);
            }
            if count > 0 {
                each(&first, count, whole);
            }
        }
        if self.records.is_empty() {
            self.resent.clear();
            self.duplicates = 0;
        }
        // The searches never start so far back that sequence numbers wrap.
        self.waiting_from = self.waiting_from.max(una);
        self.due_from = self.due_from.max(una);
    }

    /// Processes a SACK block within the window: the receiver holds `start..end`. Only whole
    /// segments count. `each` gets every newly reported record, as it was, and the end of the
    /// highest range so far.
    pub fn sack(&mut self, start: Seq, end: Seq, mut each: impl FnMut(&Record, Option<Seq>)) {
        let mut index = self.position(start);
        while let Some(&record) = self.records.get(index)
            && record.start.before(end)
        {
            self.visit(1);
            if record.sacked || !self.isolate(index, start, end) {
                index += 1;
                continue;
            }
            let record = self.records[index];
            if record.start.before(start) {
                // The record was split: the second part is next.
                index += 1;
                continue;
            }
            each(&record, self.sacked_end());
            if self.sacked_end().is_none_or(|highest| record.end.after(highest)) {
                self.sacked_end = record.end;
            }
            self.change(index, |record| {
                // A retransmission of a record that is not lost stays in flight.
                record.resent &= !record.lost;
                record.lost = false;
                record.sacked = true;
            });
            index += 1;
        }
        self.join_sacked(start, end);
    }

    /// Processes the report that `start..end` was received twice. Returns how many of its segments
    /// were ever retransmitted.
    pub fn duplicated(&mut self, start: Seq, end: Seq) -> u32 {
        let mut count = 0;
        let mut index = self.position(start);
        while let Some(&record) = self.records.get(index)
            && record.start.before(end)
        {
            self.visit(1);
            let covered = record.end.min(end) - record.start.max(start);
            if record.ever_resent {
                count += covered.div_ceil(record.size).min(record.segments);
            }
            if record.resent && !record.lost && covered == record.end - record.start {
                self.change(index, |record| record.resent = false);
            }
            index += 1;
        }
        count
    }

    /// Marks the first outstanding segment as lost, for peers without SACK; `each` gets its record.
    pub fn lose_first(&mut self, each: &mut impl FnMut(&Record, u32)) {
        let Some(&first) = self.records.front() else { return };
        if first.lost {
            return;
        }
        if first.segments > 1 {
            self.split(0, first.size);
        }
        self.mark_lost(0, each);
    }

    /// Handles a timeout: the first segment is lost, and of the others those sent longer than
    /// `patience` ago. If the receiver seems to have dropped SACKed data (RFC 2018 §8), all SACK
    /// reports are forgotten and everything is lost; returns true then. `each` gets lost records.
    pub fn lose_all(
        &mut self,
        patience: Duration,
        now: Instant,
        each: &mut impl FnMut(&Record, u32),
    ) -> bool {
        let reneged = self.records.front().is_some_and(|first| first.sacked);
        self.duplicates = 0;
        for index in 0..self.records.len() {
            if reneged {
                self.change(index, |record| {
                    record.sacked = false;
                    record.segments = record.count_segments();
                });
            } else if index > 0 && self.records[index].sent_at + patience > now {
                continue;
            }
            self.mark_lost(index, each);
        }
        reneged
    }

    /// Clears all loss marks: loss was assumed without reason. After a timeout, all records are
    /// judged again in the order of sending.
    pub fn clear_lost(&mut self, after_timeout: bool) {
        for index in 0..self.records.len() {
            self.change(index, |record| record.lost = false);
        }
        if after_timeout && let Some(first) = self.records.front() {
            self.waiting_from = first.start;
        }
    }

    /// Marks records with segments larger than `size` as lost, unless SACK reported them.
    pub fn lose_larger(&mut self, size: u32) {
        for index in 0..self.records.len() {
            let record = self.records[index];
            if record.len().min(record.size) > size && !record.sacked {
                self.mark_lost(index, &mut |_, _| {});
            }
        }
    }

    /// The first range to retransmit, from one record: at most `max` segments of `size` bytes.
    pub fn next_due(&mut self, max: u32, size: u32) -> Option<(Seq, u32)> {
        if !self.has_due() || max == 0 {
            return None;
        }
        let from = self.position(self.due_from);
        let index = from + self.records.range(from..).position(Record::is_due)?;
        self.visit(index - from + 1);
        self.due_from = self.records[index].start;
        Some(self.range(index, max, size))
    }

    /// Range of the last outstanding segment (RFC 8985 §7.3).
    pub fn tail(&self) -> Option<(Seq, u32)> {
        let last = self.records.back()?;
        let before = last.len().saturating_sub(1) / last.size * last.size;
        let before = if last.segments > 1 { before } else { 0 };
        Some((last.start + before, last.end - last.start - before))
    }

    /// Merges small records into the one at `index`. Returns its beginning: where, and how many
    /// numbers.
    fn range(&mut self, index: usize, max: u32, size: u32) -> (Seq, u32) {
        self.collapse(index, size);
        let due = &self.records[index];
        let room = max.saturating_mul(size);
        let count = if due.len() > room { room } else { due.end - due.start };
        (due.start, count)
    }

    /// Merges the small records after this one into it as long as they fit a segment of `size`
    /// bytes and no record of the owner ends in between (`eor/no-coalesce-retrans.pkt`).
    fn collapse(&mut self, index: usize, size: u32) {
        while let Some(&next) = self.records.get(index + 1) {
            let into = self.records[index];
            let small = into.segments == 1 && next.segments == 1 && !next.sacked;
            if !small || into.record_end || into.len() + next.len() > size {
                return;
            }
            self.discount(&next);
            self.records.remove(index + 1);
            self.change(index, |into| {
                into.end = next.end;
                into.fin = next.fin;
                into.record_end = next.record_end;
                into.size = size;
                into.ever_resent |= next.ever_resent;
            });
        }
    }

    /// Accounts for the retransmission of `start..end`, within one record. A `probe` does not count
    /// as a retransmission in flight: it repairs no known loss. Returns the number of segments
    /// sent.
    pub fn sent_again(&mut self, start: Seq, end: Seq, probe: bool, sending: &Sending) -> u32 {
        let mut index = self.position(start);
        if self.records[index].start.before(start)
            && self.split(index, start - self.records[index].start)
        {
            index += 1;
        }
        if self.records[index].end.after(end) {
            // Without room for another record the rest counts as retransmitted too; the timer finds
            // out that it was not.
            self.split(index, end - self.records[index].start);
        }
        self.change(index, |record| {
            record.size = sending.size;
            record.segments = record.count_segments();
            record.resent |= !probe;
            record.ever_resent = true;
            record.sent_at = sending.now;
            record.delivered = sending.delivered;
            record.sent = sending.sent;
        });
        let (in_flight, lost) = (self.in_flight(), self.lost);
        self.records[index].sent.note(in_flight, lost);
        let record = self.records[index];
        if !probe && record.start == self.due_from {
            self.due_from = record.end;
        }
        self.log_resent(&record);
        record.segments
    }

    /// Counts examined records, to test how much work a peer can cause.
    #[cfg(test)]
    fn visit(&mut self, records: usize) {
        self.visits += records;
    }

    #[cfg(not(test))]
    fn visit(&self, _: usize) {}

    #[cfg(test)]
    pub(super) fn visits(&self) -> usize {
        self.visits
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Index of the first record that ends after `seq`.
    fn position(&self, seq: Seq) -> usize {
        self.records.partition_point(|record| record.end.at_or_before(seq))
    }

    /// Splits the record so that a part of it lies in `start..end`, in whole segments. Returns
    /// false if the range covers no whole segment, or there is no room for another record.
    fn isolate(&mut self, index: usize, start: Seq, end: Seq) -> bool {
        let record = self.records[index];
        if record.start.before(start) {
            // The segment that `start` is in is not covered as a whole.
            let before = (start - record.start).next_multiple_of(record.size);
            return before < record.len() && self.split(index, before);
        }
        if record.end.after(end) {
            let covered = (end - record.start) / record.size * record.size;
            return covered > 0 && covered < record.len() && self.split(index, covered);
        }
        true
    }

    /// Merges neighbours around `start..end` that SACK reported into one record.
    fn join_sacked(&mut self, start: Seq, end: Seq) {
        let first = self.position(start).saturating_sub(1);
        let joins = |a: &Record, b: &Record| {
            a.sacked && b.sacked && !a.resent && !b.resent && a.size == b.size
        };
        let mut into = first;
        let mut index = first + 1;
        while let Some(&record) = self.records.get(index)
            && record.start.at_or_before(end)
        {
            self.visit(1);
            if joins(&self.records[into], &record) {
                let kept = &mut self.records[into];
                kept.end = record.end;
                kept.segments += record.segments;
                kept.fin |= record.fin;
                kept.record_end = record.record_end;
                kept.ever_resent |= record.ever_resent;
            } else {
                into += 1;
                self.records[into] = record;
            }
            index += 1;
        }
        if into + 1 < index {
            self.records.drain(into + 1..index);
        }
    }

    /// Splits a record after `at` bytes. Returns false if there is no room for another record.
    fn split(&mut self, index: usize, at: u32) -> bool {
        if self.records.len() >= RECORDS_MAX {
            return false;
        }
        let mut head = self.records[index];
        let mut tail = head;
        debug_assert!(at > 0 && at < head.end - head.start);
        self.discount(&head);
        head.end = head.start + at;
        head.fin = false;
        head.record_end = false;
        head.segments = head.count_segments();
        tail.start = head.end;
        tail.segments = tail.count_segments();
        self.count(&head);
        self.count(&tail);
        self.records[index] = head;
        self.records.insert(index + 1, tail);
        true
    }

    /// Marks a record as lost; one that was retransmitted is lost again.
    fn mark_lost(&mut self, index: usize, each: &mut impl FnMut(&Record, u32)) {
        let record = self.records[index];
        if record.sacked || (record.lost && !record.resent) {
            return;
        }
        self.lost = self.lost.wrapping_add(record.segments);
        each(&record, self.lost);
        if self.totals.lost == 0 || record.start.before(self.due_from) {
            self.due_from = record.start;
        }
        self.change(index, |record| {
            record.resent = false;
            record.lost = true;
        });
    }

    fn change(&mut self, index: usize, change: impl FnOnce(&mut Record)) {
        let mut record = self.records[index];
        self.discount(&record);
        change(&mut record);
        self.count(&record);
        self.records[index] = record;
    }

    fn count(&mut self, record: &Record) {
        let totals = &mut self.totals;
        totals.outstanding += record.segments;
        totals.sacked += if record.sacked { record.segments } else { 0 };
        totals.lost += if record.lost { record.segments } else { 0 };
        totals.resent += if record.resent { record.segments } else { 0 };
    }

    fn discount(&mut self, record: &Record) {
        let totals = &mut self.totals;
        totals.outstanding -= record.segments;
        totals.sacked -= if record.sacked { record.segments } else { 0 };
        totals.lost -= if record.lost { record.segments } else { 0 };
        totals.resent -= if record.resent { record.segments } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const T: Instant = Instant::from_micros(5);

    fn at(millis: u64) -> Instant {
        Instant::from_micros(1000 * millis)
    }

    fn sending(size: u32, fin: bool, now: Instant) -> Sending {
        Sending { size, fin, record_end: false, now, delivered: 0, sent: Sent::default() }
    }

    fn sent(segments: u32) -> Scoreboard {
        let mut board = Scoreboard::default();
        board.sent(Seq(0), Seq(segments * 100), &sending(100, false, T));
        board
    }

    fn acknowledged(board: &mut Scoreboard, una: u32) -> u32 {
        let mut count = 0;
        board.acknowledge(Seq(una), |_, segments, _| count += segments);
        count
    }

    fn sacked(board: &mut Scoreboard, start: u32, end: u32) -> u32 {
        let mut count = 0;
        board.sack(Seq(start), Seq(end), |record, _| count += record.segments);
        count
    }

    /// Part of a segment does not count; its last part counts as the whole segment.
    #[test]
    fn whole_segments_count() {
        let mut board = sent(5);
        assert_eq!(acknowledged(&mut board, 99), 0);
        assert_eq!(acknowledged(&mut board, 100), 1);
        assert_eq!(acknowledged(&mut board, 310), 2);
        assert_eq!(acknowledged(&mut board, 500), 2);
        assert!(board.is_empty());
    }

    #[test]
    fn sack_covers_whole_segments() {
        let mut board = sent(5);
        assert_eq!(sacked(&mut board, 499, 500), 0);
        assert_eq!(sacked(&mut board, 150, 450), 2, "200 to 400");
        assert_eq!((board.records.len(), board.sacked_end()), (3, Some(Seq(400))));
        assert_eq!(sacked(&mut board, 400, 500), 1);
        assert_eq!(board.records.len(), 2, "joined");
        assert_eq!(sacked(&mut board, 200, 500), 0);
    }

    #[test]
    fn a_fin_is_no_segment_of_its_own_beside_data() {
        let mut board = Scoreboard::default();
        board.sent(Seq(0), Seq(201), &sending(100, true, T));
        assert_eq!(board.totals().outstanding, 2);
        assert_eq!(board.tail(), Some((Seq(100), 101)));
        assert_eq!(sacked(&mut board, 100, 201), 1);
        assert_eq!(acknowledged(&mut board, 201), 2);
        board.sent(Seq(201), Seq(202), &sending(100, true, T));
        assert_eq!((board.totals().outstanding, board.tail()), (1, Some((Seq(201), 1))));
    }

    #[test]
    fn lost_ranges_are_sent_again_record_by_record() {
        let mut board = sent(6);
        sacked(&mut board, 300, 600);
        assert!(!board.lose_all(Duration::ZERO, at(9), &mut |_, _| {}));
        assert_eq!((board.totals().lost, board.lost()), (3, 3));
        assert_eq!(board.next_due(2, 100), Some((Seq(0), 200)));
        assert_eq!(board.sent_again(Seq(0), Seq(200), false, &sending(100, false, at(9))), 2);
        assert_eq!(board.next_due(2, 100), Some((Seq(200), 100)));
        board.sent_again(Seq(200), Seq(300), false, &sending(100, false, at(9)));
        assert_eq!(board.next_due(2, 100), None);
        assert_eq!(board.in_flight(), 3);
    }

    /// RFC 8985 §6.2 step 5: records are late by the order of sending, first transmissions and
    /// retransmissions.
    #[test]
    fn what_was_sent_before_the_newest_is_late() {
        let mut board = sent(2);
        board.sent(Seq(200), Seq(300), &sending(100, false, at(10)));
        board.sent(Seq(300), Seq(400), &sending(100, false, at(20)));
        sacked(&mut board, 200, 300);
        let newest = |ms, end| Newest { sent_at: at(ms), delivered: 0, end: Seq(end) };
        let first = newest(10, 300);
        let ms = Duration::from_millis(1);
        // Both were sent together, so both still have 2 ms; records sent after the newest do not
        // count.
        assert_eq!(
            board.mark_late(first, 30 * ms, at(28), &mut |_, _| {}),
            Some(Duration::from_micros(2005))
        );
        assert_eq!(board.lost(), 0);
        assert_eq!(board.mark_late(first, 20 * ms, at(28), &mut |_, _| {}), None);
        assert_eq!((board.lost(), board.totals().lost), (2, 2));
        // Retransmitted, and overtaken again by data sent later.
        board.sent_again(Seq(0), Seq(200), false, &sending(100, false, at(30)));
        assert_eq!(board.mark_late(first, 20 * ms, at(90), &mut |_, _| {}), None);
        assert_eq!((board.lost(), board.totals().resent), (2, 2));
        board.sent(Seq(400), Seq(500), &sending(100, false, at(40)));
        sacked(&mut board, 400, 500);
        assert_eq!(board.mark_late(newest(40, 500), 20 * ms, at(55), &mut |_, _| {}), None);
        assert_eq!((board.lost(), board.totals().resent), (5, 0), "300 to 400 as well");
    }

    /// RFC 8985 §6.2 step 5 with a clock that stands still: a retransmission that an ACK triggered
    /// was sent after all data sent before that ACK, and before the data sent after it.
    #[test]
    fn what_was_delivered_orders_what_was_sent_at_once() {
        let mut board = sent(1);
        for start in [100, 200, 300] {
            board.sent(Seq(start), Seq(start + 100), &sending(100, false, at(10)));
        }
        sacked(&mut board, 200, 300);
        board.lose_first(&mut |_, _| {});
        let now = Sending { delivered: 1, ..sending(100, false, at(10)) };
        board.sent_again(Seq(0), Seq(100), false, &now);
        board.sent(Seq(400), Seq(500), &now);
        let newest = |end, delivered| Newest { sent_at: at(10), delivered, end: Seq(end) };
        let ms = Duration::from_millis(1);
        board.mark_late(newest(400, 0), ms, at(12), &mut |_, _| {});
        assert_eq!(board.totals().resent, 1, "retransmitted after 300 to 400 was sent");
        board.mark_late(newest(500, 1), ms, at(12), &mut |_, _| {});
        assert_eq!(board.totals().resent, 0, "sent before 400 to 500");
    }

    proptest! {
        /// Goal: records always stay contiguous, the totals agree with them, and the stored search
        /// positions miss nothing. Method: random sends, SACKs, ACKs, losses, probes and
        /// retransmissions around the wrap, compared with a search from the beginning.
        #[test]
        fn totals_agree_with_records(
            ops in proptest::collection::vec((0..9u8, 0..60_000u32, 0..9000u32), 1..80),
        ) {
            let base = Seq(u32::MAX - 1500);
            let mut board = Scoreboard::default();
            let (mut una, mut nxt, mut fin, mut time) = (base, base, false, 0);
            let mut found_all = false;
            for (kind, a, b) in ops {
                time += u64::from(a % 3);
                let sending = sending(1 + a % 1448, a % 99 == 0, at(time));
                match kind {
                    0 | 1 if !fin => {
                        fin = sending.fin;
                        board.sent(nxt, nxt + (b + 1), &sending);
                        nxt += b + 1;
                    }
                    2 | 3 if nxt != una => {
                        let start = una + a % (nxt - una);
                        board.duplicated(start, (start + b).min(nxt));
                        board.sack(start, (start + b).min(nxt), |_, _| {});
                    }
                    4 if nxt != una => {
                        una += a % (nxt - una + 1);
                        board.acknowledge(una, |_, _, _| {});
                    }
                    5 => {
                        let sent_at = at(time - u64::from(b % 9).min(time));
                        let newest = Newest { sent_at, delivered: 0, end: nxt };
                        let patience = Duration::from_millis(u64::from(b % 5));
                        board.mark_late(newest, patience, at(time), &mut |_, _| {});
                        for record in &board.records {
                            let live = !record.sacked && (record.resent || !record.lost);
                            let late = record.sent_at + patience <= at(time)
                                && record.sent_at < newest.sent_at
                                && !(found_all && record.ever_resent);
                            prop_assert!(!(live && late), "missed {record:?}");
                        }
                    }
                    6 if a % 4 == 0 => {
                        board.lose_all(Duration::ZERO, at(time), &mut |_, _| {});
                    }
                    6 if a % 4 == 1 => board.lose_larger(a % 1448),
                    6 if a % 4 == 2 => {
                        // Retransmissions whose loss marks are cleared are left to the timer.
                        found_all = true;
                        board.clear_lost(true);
                    }
                    7 if nxt != una => {
                        let (start, len) = board.tail().expect("something is outstanding");
                        board.sent_again(start, start + len, true, &sending);
                    }
                    _ => {
                        if let Some((start, len)) = board.next_due(b.max(1), sending.size) {
                            board.sent_again(start, start + len, false, &sending);
                        }
                    }
                }
                let mut at = una;
                let mut totals = Scoreboard::default();
                for record in &board.records {
                    prop_assert_eq!(record.start, at);
                    prop_assert!(record.end.after(record.start) && record.segments > 0);
                    prop_assert!(record.sacked || record.segments == record.count_segments());
                    prop_assert!(!(record.sacked && record.lost));
                    at = record.end;
                    totals.count(record);
                }
                prop_assert_eq!(at, nxt);
                prop_assert_eq!(totals.totals, board.totals);
                let due = board.records.iter().find(|record| record.is_due()).map(|r| r.start);
                if board.has_due() {
                    prop_assert_eq!(due, board.next_due(1, 1).map(|(start, _)| start));
                }
                prop_assert!(board.resent.len() <= 2 * board.records.len() + late::RESENT_SLACK);
            }
        }
    }
}
