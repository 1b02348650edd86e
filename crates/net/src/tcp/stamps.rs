//! Times at which what was written was sent and acknowledged (Linux's `SO_TIMESTAMPING`).
//!
//! A mark stands for the last byte of a write. As in Linux a buffer has room for one mark: a later
//! write that joins an unsent buffer takes the place of the mark there. The mark stays until the
//! byte is acknowledged, so that each time it is sent again is told too.
//!
//! Bounded by [`MARKS_MAX`] marks and [`STAMPS_MAX`] times that nobody took; without room there is
//! no mark, or no time, and the data goes as it would.

use super::connection::Connection;
use super::seq::Seq;
use super::state::Events;
use crate::time::Instant;
use alloc::collections::VecDeque;

/// Most writes of one connection that wait to be sent and acknowledged with a mark.
pub const MARKS_MAX: usize = 1024;
/// Most times of one connection that its owner has not taken.
pub const STAMPS_MAX: usize = 1024;

/// Which times are told of what is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamping {
    /// When it was handed to the device's queue (`SOF_TIMESTAMPING_TX_SCHED`).
    pub scheduled: bool,
    /// When it was handed to the device (`SOF_TIMESTAMPING_TX_SOFTWARE`); the same time here.
    pub sent: bool,
    /// When the peer had acknowledged all of it (`SOF_TIMESTAMPING_TX_ACK`).
    pub acknowledged: bool,
}

impl Stamping {
    fn is_none(self) -> bool {
        self == Self::default()
    }
}

/// What happened at a time that is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamped {
    /// The data was handed to the device's queue.
    Scheduled,
    /// The data was handed to the device.
    Sent,
    /// The data was acknowledged.
    Acknowledged,
}

/// When something happened to the last byte of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// What.
    pub what: Stamped,
    /// When.
    pub at: Instant,
    /// The byte, as a distance from where [`Connection::number_stamps`] began to count; wraps.
    pub key: u32,
}

struct Mark {
    /// Number of the byte.
    at: Seq,
    stamping: Stamping,
}

/// Marks and times of one connection.
#[derive(Default)]
pub(super) struct Stamps {
    stamping: Stamping,
    base: Seq,
    /// In the order of their bytes.
    marks: VecDeque<Mark>,
    stamps: VecDeque<Stamp>,
}

impl Stamps {
    /// Marks the byte at `at`. Bytes from `unsent` on share their buffer with it and were never
    /// sent.
    fn mark(&mut self, at: Seq, unsent: Seq) {
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

    /// `start..end` was sent.
    fn sent(&mut self, start: Seq, end: Seq, now: Instant) {
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
    }

    /// Everything before `una` is acknowledged.
    fn acknowledge(&mut self, una: Seq, now: Instant) {
        while let Some(&Mark { at, stamping }) = self.marks.front()
            && at.before(una)
        {
            self.marks.pop_front();
            if stamping.acknowledged {
                self.stamp(Stamped::Acknowledged, at, now);
            }
        }
    }

    /// What is not acknowledged never will be.
    pub(super) fn clear_marks(&mut self) {
        self.marks = VecDeque::new();
    }
}

impl Connection {
    /// Which times are told of what is written from now on, with [`Events::STAMPED`].
    pub fn set_stamping(&mut self, stamping: Stamping) {
        self.send.stamps.stamping = stamping;
    }

    /// Counts the bytes of times from here on: from the first that is not yet acknowledged, or,
    /// if `written`, from the next that will be written.
    pub fn number_stamps(&mut self, written: bool) {
        self.send.stamps.base = if written { self.send.queue_end() } else { self.send.una };
    }

    /// The next time that was not taken yet.
    pub fn take_stamp(&mut self) -> Option<Stamp> {
        self.send.stamps.stamps.pop_front()
    }

    /// The call that wrote has ended: its last byte is the one whose times are told.
    pub fn mark_written(&mut self) {
        let end = self.send.queue_end();
        if end == self.send.base {
            return;
        }
        let last = Seq(end.0.wrapping_sub(1));
        let begun = self.send.writes.start_of_last(self.send.base);
        let unsent = begun.max(self.send.nxt.max(self.send.base));
        self.send.stamps.mark(last, unsent);
    }

    /// `len` bytes of payload from `start` on were sent, for the first time or again.
    pub(super) fn stamp_sent(&mut self, start: Seq, len: u32, now: Instant) {
        if !self.send.stamps.marks.is_empty() {
            self.send.stamps.sent(start, start + len, now);
            self.note_stamps();
        }
    }

    /// What is before `snd_una` was acknowledged.
    pub(super) fn stamp_acknowledged(&mut self, now: Instant) {
        if !self.send.stamps.marks.is_empty() {
            self.send.stamps.acknowledge(self.send.una, now);
            self.note_stamps();
        }
    }

    fn note_stamps(&mut self) {
        if !self.send.stamps.stamps.is_empty() {
            self.note(Events::STAMPED);
        }
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
    fn times_are_told_of_the_last_byte_of_each_write() {
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

    /// Linux: a buffer holds one key, that of the last write that joined it while it was unsent.
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
    fn only_the_times_that_were_asked_for_at_the_write_are_told() {
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
    fn what_nobody_takes_is_bounded() {
        let mut stamps = all();
        for index in 0..2 * MARKS_MAX as u32 {
            stamps.mark(BASE + index, BASE + index);
        }
        assert_eq!(stamps.marks.len(), MARKS_MAX);
        stamps.sent(BASE, BASE + MARKS_MAX as u32, NOW);
        assert_eq!(stamps.stamps.len(), STAMPS_MAX);
    }
}
