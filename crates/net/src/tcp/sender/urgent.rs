//! Sending urgent data (RFC 9293 §3.8.5).
//!
//! The last byte of a write can be marked. Until the peer acknowledges that byte, every segment
//! that begins before its end carries the urgent pointer. Meanwhile small segments do not wait, and
//! no super-packet is built: all its segments would get the same pointer. Segments do not end at
//! the mark.

use super::Sender;
use crate::tcp::seq::Seq;

impl Sender {
    pub(in crate::tcp) fn mark_urgent(&mut self) {
        if self.unsent() > 0 {
            self.urgent = Some(self.queue_end());
        }
    }

    /// True if urgent data is queued or sent, and not acknowledged.
    pub(super) fn is_sending_urgent(&self) -> bool {
        self.urgent.is_some()
    }

    /// The urgent pointer of a segment that begins at `seq`. If the mark is out of reach, the
    /// pointer has its largest value, or is left to later segments that can say more.
    #[inline]
    pub(in crate::tcp) fn urgent_pointer(&self, seq: Seq) -> Option<u16> {
        let end = self.urgent?;
        if !seq.before(end) {
            return None;
        }
        match u16::try_from(end - seq) {
            Ok(pointer) => Some(pointer),
            Err(_) => (seq + u32::from(u16::MAX)).after(self.nxt).then_some(u16::MAX),
        }
    }

    /// True if the urgent mark is in reach of a zero-window probe. An extra probe then carries the
    /// urgent pointer; it has the number of the first byte that the window holds back, so that the
    /// peer looks at it.
    pub(super) fn is_urgent_in_reach(&self) -> bool {
        self.urgent.is_some_and(|end| end - self.una <= u32::from(u16::MAX))
    }
}
