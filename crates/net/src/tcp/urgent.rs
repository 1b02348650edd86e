//! Urgent data (RFC 9293 §3.8.5, RFC 6093), as Linux implements it.
//!
//! Receiving: one byte of the stream is marked, the one before the urgent pointer's (RFC 6093
//! §3.1). Reads stop at the mark. The marked byte is then read separately, left out, or read in
//! line (`SO_OOBINLINE`). A newer mark replaces an older one. The byte stays in the queue like any
//! other: an owner that ignores marks, such as a gateway, gets it in line.
//!
//! Sending: the last byte of a write can be marked. Until the peer acknowledges that byte, every
//! segment that begins before its end carries the urgent pointer. Meanwhile small segments do not
//! wait, and no super-packet is built: all its segments would get the same pointer. Segments do not
//! end at the mark.

use super::connection::{Connection, Segment};
use super::seq::Seq;
use super::state::Events;
use crate::wire::tcp::Flags;
use core::cmp::Ordering;
use core::ops::Range;
use towpath_packet::Piece;

/// The urgent mark.
#[derive(Clone, Copy, Debug)]
pub(super) struct Urgent {
    /// Sequence number of the marked byte.
    at: Seq,
    /// The owner has read it separately.
    read: bool,
}

/// Receiving urgent data.
impl Connection {
    /// Takes the urgent mark of an acceptable segment, before its data.
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
            // The reader is at the older mark. Once the mark moves, nothing else leaves out its
            // byte.
            self.receive.queue.advance(1);
        }
        self.receive.urgent = Some(Urgent { at, read: false });
    }

    /// Notifies the owner of a marked byte that arrived out of order.
    pub(super) fn note_urgent_ahead(&mut self, start: Seq, end: Seq) {
        if let Some(urgent) = self.receive.urgent
            && urgent.at.at_or_after(start)
            && urgent.at.before(end)
        {
            self.note(Events::READABLE);
        }
    }

    /// Chooses whether marked bytes are read in line (`SO_OOBINLINE`); by default they are. If not,
    /// a new mark may remove a byte from the received data.
    pub fn set_urgent_inline(&mut self, inline: bool) {
        self.receive.urgent_inline = inline;
    }

    /// Number of received bytes before the marked byte; `None` if no byte is marked or reads have
    /// passed it. The marked byte may not have arrived yet.
    pub fn urgent_mark(&self) -> Option<usize> {
        let urgent = self.receive.urgent?;
        let first = self.first_unread();
        urgent.at.at_or_after(first).then(|| (urgent.at - first) as usize)
    }

    /// True if the next byte is the marked one, and reads leave it out.
    pub fn is_urgent_left_out(&self) -> bool {
        self.urgent_mark() == Some(0) && !self.receive.urgent_inline
    }

    /// True if a marked byte can still be read separately: it was not, and is not read in line.
    pub fn is_urgent_unread(&self) -> bool {
        let unread = self.receive.urgent.is_some_and(|urgent| !urgent.read);
        unread && !self.receive.urgent_inline && self.urgent_mark().is_some()
    }

    /// True if an unread urgent byte has arrived (`POLLPRI`).
    pub fn has_urgent(&self) -> bool {
        self.receive.urgent.is_some_and(|urgent| !urgent.read) && self.urgent_byte().is_some()
    }

    /// The marked byte, if it has arrived, in order or not, and reads have not passed it.
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

    /// Notes that the marked byte was read separately.
    pub fn urgent_was_read(&mut self) {
        if let Some(urgent) = &mut self.receive.urgent {
            urgent.read = true;
        }
    }

    /// Forgets the mark if the owner's reads have passed it.
    pub(super) fn forget_urgent(&mut self) {
        if let Some(urgent) = self.receive.urgent
            && urgent.at.before(self.first_unread())
        {
            self.receive.urgent = None;
        }
    }

    /// Sequence number of the first byte in the queue.
    fn first_unread(&self) -> Seq {
        let unread = self.receive.queue.len() as u32 + u32::from(self.receive.fin);
        Seq(self.receive.nxt.0.wrapping_sub(unread))
    }

    /// Received bytes up to the mark (`SIOCINQ`).
    pub fn readable_len(&self) -> usize {
        let len = self.received_len();
        if self.receive.urgent_inline {
            return len;
        }
        self.urgent_mark().map_or(len, |mark| mark.min(len))
    }

    /// Range of received bytes that a read gets that continues at `at`, by Linux's rules. `begun`
    /// means that it has already got some: it then ends at the mark. Bytes between `at` and the
    /// start of the range are left out.
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

/// Sending urgent data.
impl Connection {
    /// Marks the last queued byte as urgent (`MSG_OOB`). As on Linux, this has an effect only while
    /// some data was never sent.
    pub fn mark_urgent(&mut self) {
        if self.send.unsent() > 0 {
            self.send.urgent = Some(self.send.queue_end());
        }
    }

    /// True if urgent data is queued or sent, and not acknowledged.
    pub(super) fn is_sending_urgent(&self) -> bool {
        self.send.urgent.is_some()
    }

    /// The urgent pointer of a segment that begins at `seq` (RFC 9293 §3.8.5). If the mark is out
    /// of reach, the pointer has its largest value, or is left to later segments that can say more.
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

    /// True if the urgent mark is in reach of a zero-window probe. As on Linux, an extra probe then
    /// carries the urgent pointer; it has the number of the first byte that the window holds back,
    /// so that the peer looks at it.
    pub(super) fn is_urgent_in_reach(&self) -> bool {
        let near = |end: Seq| end - self.send.una <= u32::from(u16::MAX);
        self.send.urgent.is_some_and(near)
    }

    /// Forgets urgent data that is acknowledged.
    pub(super) fn acknowledge_urgent(&mut self) {
        self.send.urgent.take_if(|end| end.at_or_before(self.send.una));
    }
}
