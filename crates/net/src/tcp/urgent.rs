//! Urgent data (RFC 9293 §3.8.5, RFC 6093), as Linux has it.
//!
//! What arrives: one byte of the stream is marked, the one before that of the pointer (RFC 6093
//! §3.1). Reads stop at the mark; the byte behind it is read apart, or left out, or read in line
//! (`SO_OOBINLINE`). A newer mark takes the place of one before. The byte stays in the queue like
//! any other: an owner who knows nothing of marks, as a gateway, gets it in line.
//!
//! What is sent: the last byte of a write can be marked. Until the peer has acknowledged it, every
//! segment that begins before its end tells where that is. Meanwhile a small segment waits for
//! nothing, and no super-packet is built: its segments would all get the same pointer. Segments
//! are not cut at the mark.

use super::connection::{Connection, Segment};
use super::seq::Seq;
use super::state::Events;
use crate::wire::tcp::Flags;
use core::cmp::Ordering;
use core::ops::Range;
use towpath_packet::Piece;

/// The mark.
#[derive(Clone, Copy, Debug)]
pub(super) struct Urgent {
    /// Number of the byte.
    at: Seq,
    /// The owner has read it apart.
    read: bool,
}

/// What arrives.
impl Connection {
    /// Takes the mark of a segment that is acceptable, before its data (Linux's tcp_check_urg).
    pub(super) fn input_urgent(&mut self, segment: &Segment) {
        if !segment.has(Flags::URG) || !self.state.can_receive() {
            return;
        }
        let at = segment.seq() + u32::from(segment.header.urgent).saturating_sub(1);
        let newer = self.receive.urgent.is_none_or(|urgent| at.after(urgent.at));
        if !newer || at.before(self.receive.nxt) {
            return;
        }
        if self.urgent_mark() == Some(0) && !self.receive.urgent_inline && self.received_len() > 0 {
            // The reader stands at the mark before, whose byte nothing would leave out any more.
            self.receive.queue.advance(1);
        }
        self.receive.urgent = Some(Urgent { at, read: false });
    }

    /// Tells the owner of a marked byte that came ahead of its turn.
    pub(super) fn note_urgent_ahead(&mut self, start: Seq, end: Seq) {
        if let Some(urgent) = self.receive.urgent
            && urgent.at.at_or_after(start)
            && urgent.at.before(end)
        {
            self.note(Events::READABLE);
        }
    }

    /// Marked bytes are read in line (`SO_OOBINLINE`), as they are until the owner says otherwise:
    /// then a new mark may take a byte out of what was received.
    pub fn set_urgent_inline(&mut self, inline: bool) {
        self.receive.urgent_inline = inline;
    }

    /// Received bytes in front of the marked byte, if one is marked and not passed; it may not have
    /// arrived yet.
    pub fn urgent_mark(&self) -> Option<usize> {
        let urgent = self.receive.urgent?;
        let first = self.first_unread();
        urgent.at.at_or_after(first).then(|| (urgent.at - first) as usize)
    }

    /// A read does not get the next byte, because it is the marked one.
    pub fn is_urgent_left_out(&self) -> bool {
        self.urgent_mark() == Some(0) && !self.receive.urgent_inline
    }

    /// A byte is marked that can be read apart: not yet read so, nor to be read in line.
    pub fn is_urgent_unread(&self) -> bool {
        let unread = self.receive.urgent.is_some_and(|urgent| !urgent.read);
        unread && !self.receive.urgent_inline && self.urgent_mark().is_some()
    }

    /// There is urgent data to tell of (`POLLPRI`).
    pub fn has_urgent(&self) -> bool {
        self.receive.urgent.is_some_and(|urgent| !urgent.read) && self.urgent_byte().is_some()
    }

    /// The marked byte, if it has arrived, in its turn or ahead of it, and was not passed.
    pub fn urgent_byte(&self) -> Option<Piece> {
        let mut before = self.urgent_mark()?;
        if before >= self.received_len() {
            return self.receive.waiting.byte(self.receive.urgent?.at);
        }
        for piece in self.received() {
            if before < piece.len() {
                return Some(piece.slice(before, 1));
            }
            before -= piece.len();
        }
        None
    }

    /// The marked byte has been read apart.
    pub fn urgent_was_read(&mut self) {
        if let Some(urgent) = &mut self.receive.urgent {
            urgent.read = true;
        }
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

    /// Received bytes up to the mark (Linux's tcp_inq).
    pub fn readable_len(&self) -> usize {
        let len = self.received_len();
        if self.receive.urgent_inline {
            return len;
        }
        self.urgent_mark().map_or(len, |mark| mark.min(len))
    }

    /// Which of the received bytes a read gets that looks from `at` on (Linux's
    /// tcp_recvmsg_locked). `begun` if it has got others before: then it ends at the mark. What
    /// lies between `at` and the beginning is left out.
    pub fn next_read(&self, at: usize, begun: bool) -> Range<usize> {
        let len = self.received_len();
        let at = at.min(len);
        let Some(mark) = self.urgent_mark() else { return at..len };
        match mark.cmp(&at) {
            Ordering::Greater => at..mark.min(len),
            Ordering::Equal if begun => at..at,
            Ordering::Equal if !self.receive.urgent_inline => (at + 1).min(len)..len,
            _ => at..len,
        }
    }
}

/// What is sent.
impl Connection {
    /// The last byte given is urgent (`MSG_OOB`, Linux's tcp_mark_urg): as there, only while
    /// something was never sent.
    pub fn mark_urgent(&mut self) {
        if self.send.unsent() > 0 {
            self.send.urgent = Some(self.send.queue_end());
        }
    }

    /// Urgent data was sent, or is to be, and is not acknowledged.
    pub(super) fn is_sending_urgent(&self) -> bool {
        self.send.urgent.is_some()
    }

    /// The urgent pointer of a segment that begins at `seq` (RFC 9293 §3.8.5). One that cannot
    /// reach the end says so with the largest value, unless later segments tell more.
    pub(super) fn urgent_pointer(&self, seq: Seq) -> Option<u16> {
        let end = self.send.urgent?;
        if !seq.before(end) {
            return None;
        }
        match u16::try_from(end - seq) {
            Ok(pointer) => Some(pointer),
            Err(_) => (seq + u32::from(u16::MAX)).after(self.send.nxt).then_some(u16::MAX),
        }
    }

    /// A probe of a shut window first tells of urgent data, with the number of the first byte that
    /// the window keeps back, so that the peer looks at it (Linux's tcp_write_wakeup).
    pub(super) fn is_urgent_in_reach(&self) -> bool {
        let near = |end: Seq| end - self.send.una <= u32::from(u16::MAX);
        self.send.urgent.is_some_and(near)
    }

    /// What was acknowledged is no longer urgent.
    pub(super) fn acknowledge_urgent(&mut self) {
        self.send.urgent.take_if(|end| end.at_or_before(self.send.una));
    }
}
