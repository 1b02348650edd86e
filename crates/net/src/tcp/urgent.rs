//! Urgent data that arrives (RFC 9293 §3.8.5, RFC 6093), as Linux takes it: one byte of the stream
//! is marked, the one before that of the pointer (RFC 6093 §3.1). Reads stop at the mark; the byte
//! behind it is read apart, or left out. A newer mark takes the place of one before.
//!
//! The byte stays in the queue like any other: an owner who knows nothing of marks gets it in line.

use super::connection::{Connection, Segment};
use super::seq::Seq;
use crate::wire::tcp::Flags;

/// The mark.
#[derive(Clone, Copy, Debug)]
pub(super) struct Urgent {
    /// Number of the byte.
    at: Seq,
    /// The owner has read it apart.
    read: bool,
}

impl Connection {
    /// Takes the mark of a segment that is acceptable, before its data (Linux's tcp_check_urg).
    pub(super) fn input_urgent(&mut self, segment: &Segment) {
        if !segment.has(Flags::URG) || !self.state.can_receive() {
            return;
        }
        let at = segment.seq() + u32::from(segment.header.urgent).saturating_sub(1);
        let newer = self.receive.urgent.is_none_or(|urgent| at.after(urgent.at));
        if newer && at.at_or_after(self.receive.nxt) {
            self.receive.urgent = Some(Urgent { at, read: false });
        }
    }

    /// Received bytes in front of the marked byte, if one is marked and not passed; it may not have
    /// arrived yet.
    pub fn urgent_mark(&self) -> Option<usize> {
        let urgent = self.receive.urgent?;
        let first = self.first_unread();
        urgent.at.at_or_after(first).then(|| (urgent.at - first) as usize)
    }

    /// The owner took data: a mark that it passed is no more.
    pub(super) fn forget_urgent(&mut self) {
        if let Some(urgent) = self.receive.urgent
            && urgent.at.before(self.first_unread())
        {
            self.receive.urgent = None;
        }
    }

    /// Number of the first byte in the queue.
    fn first_unread(&self) -> Seq {
        let unread = self.receive.queue.len() as u32 + u32::from(self.receive.fin);
        Seq(self.receive.nxt.0.wrapping_sub(unread))
    }

    /// Received bytes that may be read in one go (Linux's tcp_inq): up to the mark, and from it on
    /// nothing before [`Connection::skip_urgent`].
    pub fn readable_len(&self) -> usize {
        let len = self.received_len();
        self.urgent_mark().map_or(len, |mark| mark.min(len))
    }

    /// Leaves out the marked byte if it is next. True if it was.
    pub fn skip_urgent(&mut self) -> bool {
        let skips = self.urgent_mark() == Some(0) && self.received_len() > 0;
        if skips {
            self.consume(1);
        }
        skips
    }

    /// Position of the marked byte among those received, once: `None` if it has been read apart or
    /// nothing is marked. `keep` leaves it to be read again.
    pub fn take_urgent(&mut self, keep: bool) -> Option<usize> {
        let mark = self.urgent_mark()?;
        let urgent = self.receive.urgent.as_mut()?;
        if urgent.read {
            return None;
        }
        urgent.read = !keep && mark < self.receive.queue.len();
        Some(mark)
    }
}
