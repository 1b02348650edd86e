//! Timestamps of when written data was sent and acknowledged (`SO_TIMESTAMPING`).
//!
//! A mark stands for the last byte of a write. A buffer has room for one mark: a later write that
//! joins an unsent buffer replaces the mark there (`timestamping/client-only-last-byte.pkt`). The
//! mark stays until the byte is acknowledged, so that each retransmission is reported too.
//!
//! Bounded by [`MARKS_MAX`] marks and [`STAMPS_MAX`] timestamps that were not taken. Without room
//! there is no mark or no timestamp; the data is sent as usual.

use super::seq::Seq;
use crate::time::Instant;
use alloc::collections::VecDeque;

/// Largest number of marks of one connection, for writes that are not acknowledged yet.
pub const MARKS_MAX: usize = 1024;
/// Largest number of timestamps of one connection that its owner has not taken.
pub const STAMPS_MAX: usize = 1024;

/// Which timestamps are reported for written data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamping {
    /// When the data was handed to the device's queue (`SOF_TIMESTAMPING_TX_SCHED`).
    pub scheduled: bool,
    /// When the data was handed to the device (`SOF_TIMESTAMPING_TX_SOFTWARE`); the same time here.
    pub sent: bool,
    /// When the peer had acknowledged all of the data (`SOF_TIMESTAMPING_TX_ACK`).
    pub acknowledged: bool,
}

impl Stamping {
    fn is_none(self) -> bool {
        self == Self::default()
    }
}

/// The event that a timestamp stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamped {
    /// The data was handed to the device's queue.
    Scheduled,
    /// The data was handed to the device.
    Sent,
    /// The data was acknowledged.
    Acknowledged,
}

/// Timestamp of an event of the last byte of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The event.
    pub what: Stamped,
    /// Time of the event.
    pub at: Instant,
    /// The byte, as an offset from where [`super::Connection::number_stamps`] began to count;
    /// wraps.
    pub key: u32,
}

struct Mark {
    /// Sequence number of the byte.
    at: Seq,
    stamping: Stamping,
}

/// Marks and timestamps of one connection.
#[derive(Default)]
pub(super) struct Stamps {
    stamping: Stamping,
    base: Seq,
    /// In the order of their bytes.
    marks: VecDeque<Mark>,
    stamps: VecDeque<Stamp>,
}

impl Stamps {
    /// Sets which timestamps are reported of data written from now on.
    pub(super) fn set_stamping(&mut self, stamping: Stamping) {
        self.stamping = stamping;
    }

    /// Counts bytes from `base` on.
    pub(super) fn number_from(&mut self, base: Seq) {
        self.base = base;
    }

    /// Takes the next timestamp.
    pub(super) fn take(&mut self) -> Option<Stamp> {
        self.stamps.pop_front()
    }

    /// Marks the byte at `at`. Bytes from `unsent` on are in the same buffer and were never sent.
    pub(super) fn mark(&mut self, at: Seq, unsent: Seq) {
        if self.stamping.is_none() {
            return;
        }
        if self.marks.back().is_some_and(|last| last.at.at_or_after(unsent)) {
            self.marks.pop_back();
        }
        if self.marks.len() < MARKS_MAX {
            self.marks.push_back(Mark { at, stamping: self.stamping });
        }
    }

    fn stamp(&mut self, what: Stamped, at: Seq, now: Instant) {
        if self.stamps.len() < STAMPS_MAX {
            self.stamps.push_back(Stamp { what, at: now, key: at.0.wrapping_sub(self.base.0) });
        }
    }

    /// Records timestamps for `start..end`, which was sent, for the first time or again. Returns
    /// true if there are timestamps to take.
    #[inline]
    pub(super) fn sent(&mut self, start: Seq, end: Seq, now: Instant) -> bool {
        if self.marks.is_empty() {
            return false;
        }
        let mut index = self.marks.partition_point(|mark| mark.at.before(start));
        while let Some(mark) = self.marks.get(index)
            && mark.at.before(end)
        {
            let (at, stamping) = (mark.at, mark.stamping);
            if stamping.scheduled {
                self.stamp(Stamped::Scheduled, at, now);
            }
            if stamping.sent {
                self.stamp(Stamped::Sent, at, now);
            }
            index += 1;
        }
        !self.stamps.is_empty()
    }

    /// Records timestamps for everything before `una`, which is acknowledged. Returns true if there
    /// are timestamps to take.
    #[inline]
    pub(super) fn acknowledge(&mut self, una: Seq, now: Instant) -> bool {
        if self.marks.is_empty() {
            return false;
        }
        while let Some(&Mark { at, stamping }) = self.marks.front()
            && at.before(una)
        {
            self.marks.pop_front();
            if stamping.acknowledged {
                self.stamp(Stamped::Acknowledged, at, now);
            }
        }
        !self.stamps.is_empty()
    }

    /// Drops the marks of data that will never be acknowledged.
    pub(super) fn clear_marks(&mut self) {
        self.marks = VecDeque::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::vec::Vec;

    const BASE: Seq = Seq(u32::MAX - 20);
    const NOW: Instant = Instant::from_micros(7);

    fn taken(stamps: &mut Stamps) -> Vec<(Stamped, u32)> {
        stamps.stamps.drain(..).map(|stamp| (stamp.what, stamp.key)).collect()
    }

    fn all() -> Stamps {
        let stamping = Stamping { scheduled: true, sent: true, acknowledged: true };
        Stamps { stamping, base: BASE, ..Stamps::default() }
    }

    #[test]
    fn times_are_those_of_the_last_byte_of_each_write() {
        let mut stamps = all();
        stamps.mark(BASE + 9, BASE);
        stamps.mark(BASE + 29, BASE + 10);
        stamps.sent(BASE, BASE + 9, NOW);
        assert_eq!(taken(&mut stamps), [], "the last byte was not among them");
        stamps.sent(BASE + 9, BASE + 30, NOW);
        let (scheduled, sent) = (Stamped::Scheduled, Stamped::Sent);
        assert_eq!(taken(&mut stamps), [(scheduled, 9), (sent, 9), (scheduled, 29), (sent, 29)]);
        stamps.acknowledge(BASE + 29, NOW);
        assert_eq!(taken(&mut stamps), [(Stamped::Acknowledged, 9)]);
        stamps.sent(BASE + 10, BASE + 30, NOW);
        assert_eq!(taken(&mut stamps), [(scheduled, 29), (sent, 29)], "sent again");
        stamps.acknowledge(BASE + 30, NOW);
        assert_eq!(taken(&mut stamps), [(Stamped::Acknowledged, 29)]);
    }

    /// A buffer has one key: that of the last write that joined it while it was unsent (kernel
    /// documentation, `timestamping.rst`, "Bytestream Timestamps").
    #[test]
    fn a_write_that_joins_an_unsent_buffer_takes_over_its_mark() {
        let mut stamps = all();
        stamps.mark(BASE + 4, BASE);
        stamps.mark(BASE + 9, BASE);
        stamps.mark(BASE + 14, BASE + 10);
        stamps.acknowledge(BASE + 15, NOW);
        let acknowledged = Stamped::Acknowledged;
        assert_eq!(taken(&mut stamps), [(acknowledged, 9), (acknowledged, 14)]);
    }

    #[test]
    fn only_the_times_requested_at_the_write_are_reported() {
        let mut stamps = all();
        stamps.stamping = Stamping { sent: true, ..Stamping::default() };
        stamps.mark(BASE + 4, BASE);
        stamps.stamping = Stamping::default();
        stamps.mark(BASE + 9, BASE + 5);
        stamps.sent(BASE, BASE + 10, NOW);
        stamps.acknowledge(BASE + 10, NOW);
        assert_eq!(taken(&mut stamps), [(Stamped::Sent, 4)]);
    }

    #[test]
    fn what_no_reader_takes_is_bounded() {
        let mut stamps = all();
        for index in 0..2 * MARKS_MAX as u32 {
            stamps.mark(BASE + index, BASE + index);
        }
        assert_eq!(stamps.marks.len(), MARKS_MAX);
        stamps.sent(BASE, BASE + MARKS_MAX as u32, NOW);
        assert_eq!(stamps.stamps.len(), STAMPS_MAX);
    }
}
