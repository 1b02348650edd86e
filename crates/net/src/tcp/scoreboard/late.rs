//! Finding late records: sent before one that was delivered, and longer ago than reordering
//! explains (RFC 8985 §6.2 step 5).

use core::cmp::Ordering;

use super::{Record, Scoreboard};
use crate::tcp::seq::Seq;
use crate::time::{Duration, Instant};

/// Waiting records that are examined one by one to set a timer for the last of them. If there are
/// more, the time is an upper bound.
const WAITING_MAX: u32 = 128;

/// Entries that the log of retransmissions may have beyond twice the number of records.
pub(super) const RESENT_SLACK: usize = 64;

/// The segment sent last of those known to be delivered (RFC 8985 §5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Newest {
    /// When it was sent.
    pub sent_at: Instant,
    /// Number of segments that had been delivered by then.
    pub delivered: u32,
    /// Sequence number after the segment.
    pub end: Seq,
}

impl Newest {
    /// Takes the values of `record`.
    pub fn of(record: &Record) -> Self {
        Self { sent_at: record.sent_at, delivered: record.delivered, end: record.end }
    }

    /// True if `other` was sent before. The clock may stand still between a segment and the
    /// retransmission that its ACK triggers; then the number of delivered segments differs.
    pub fn is_after(&self, other: &Self) -> bool {
        let ahead = self.delivered.wrapping_sub(other.delivered) as i32;
        match self.sent_at.cmp(&other.sent_at).then(ahead.cmp(&0)) {
            Ordering::Equal => self.end.after(other.end),
            order => order == Ordering::Greater,
        }
    }
}

impl Scoreboard {
    /// Marks as lost what was sent before `newest` and longer than `patience` ago (RFC 8985 §6.2
    /// step 5). Returns how long the last of the others sent before `newest` still has. `each` gets
    /// every record that is now lost, and the number of segments ever marked lost.
    pub fn mark_late(
        &mut self,
        newest: Newest,
        patience: Duration,
        now: Instant,
        each: &mut impl FnMut(&Record, u32),
    ) -> Option<Duration> {
        let mut late = Late { newest, patience, now, wait: None, waiting: 0 };
        self.mark_late_first(&mut late, each);
        self.mark_late_resent(&mut late, each);
        late.wait
    }

    /// Adds to the log of retransmissions. Obsolete entries are dropped when there are many.
    pub(super) fn log_resent(&mut self, record: &Record) {
        self.resent.push_back((record.sent_at, record.start, record.end));
        if self.resent.len() > 2 * self.records.len() + RESENT_SLACK {
            let mut resent = core::mem::take(&mut self.resent);
            self.visit(resent.len());
            resent.retain(|&(at, start, end)| {
                let records = self.records.range(self.position(start)..);
                let mut within = records.take_while(|record| record.start.before(end));
                within.any(|record| record.was_resent_at(at))
            });
            self.resent = resent;
        }
    }

    /// Searches the records that were sent once; they are in the order of sending.
    fn mark_late_first(&mut self, late: &mut Late, each: &mut impl FnMut(&Record, u32)) {
        let mut index = self.position(self.waiting_from);
        while let Some(&record) = self.records.get(index) {
            self.visit(1);
            if !(record.ever_resent || record.sacked || record.lost) {
                if !late.newest.is_after(&Newest::of(&record)) {
                    break;
                }
                if late.is_late(record.sent_at) {
                    self.mark_lost(index, each);
                } else if late.waits(record.sent_at) {
                    break;
                }
            }
            index += 1;
            if late.wait.is_none() {
                self.waiting_from = record.end;
            }
        }
    }

    /// Searches the retransmitted records, in the order of the log.
    fn mark_late_resent(&mut self, late: &mut Late, each: &mut impl FnMut(&Record, u32)) {
        let mut next = 0;
        while let Some(&(at, start, end)) = self.resent.get(next) {
            let mut index = self.position(start);
            let mut live = false;
            self.visit(1);
            while let Some(&record) = self.records.get(index)
                && record.start.before(end)
            {
                self.visit(1);
                if record.was_resent_at(at) {
                    if !late.newest.is_after(&Newest::of(&record)) {
                        return;
                    }
                    if late.is_late(at) {
                        self.mark_lost(index, each);
                    } else {
                        live = true;
                    }
                }
                index += 1;
            }
            if live && late.waits(at) {
                return;
            }
            if !live && next == 0 {
                self.resent.pop_front();
            } else {
                next += 1;
            }
        }
    }
}

/// A search for late records.
struct Late {
    newest: Newest,
    patience: Duration,
    now: Instant,
    /// Longest remaining time of a record that waits.
    wait: Option<Duration>,
    waiting: u32,
}

impl Late {
    fn is_late(&self, sent_at: Instant) -> bool {
        sent_at + self.patience <= self.now
    }

    /// Notes a record that waits. Returns true if enough records were examined.
    fn waits(&mut self, sent_at: Instant) -> bool {
        self.waiting += 1;
        let enough = self.waiting >= WAITING_MAX;
        let until = if enough { self.newest.sent_at } else { sent_at } + self.patience;
        self.wait = self.wait.max(Some(until.since(self.now)));
        enough
    }
}
