//! Receiving urgent data (RFC 9293 §3.8.5, RFC 6093).
//!
//! One byte of the stream is marked, the one before the urgent pointer's (RFC 6093 §3.1). Reads
//! stop at the mark. The marked byte is then read separately, left out, or read in line
//! (`SO_OOBINLINE`). A newer mark replaces an older one. The byte stays in the queue like any
//! other: an owner that ignores marks, such as a gateway, gets it in line.

use super::Receiver;
use crate::tcp::segment::Segment;
use crate::tcp::seq::Seq;
use crate::wire::tcp::Flags;
use core::cmp::Ordering;
use core::ops::Range;
use towpath_packet::Piece;

/// The urgent mark, and how marked bytes are read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Urgent {
    /// Sequence number of the byte that the peer last marked.
    at: Option<Seq>,
    /// The owner has read it separately.
    read: bool,
    /// Marked bytes are read in line.
    inline: bool,
}

impl Default for Urgent {
    fn default() -> Self {
        Self { at: None, read: false, inline: true }
    }
}

impl Urgent {
    /// True if the marked byte is in `start..end`.
    pub(super) fn is_within(&self, start: Seq, end: Seq) -> bool {
        self.at.is_some_and(|at| at.at_or_after(start) && at.before(end))
    }
}

impl Receiver {
    /// Takes the urgent mark of an acceptable segment, before its data (RFC 9293 §3.10.7.4, sixth
    /// check).
    pub(in crate::tcp) fn take_urgent(&mut self, segment: &Segment) {
        if !segment.has(Flags::URG) {
            return;
        }
        let at = segment.seq() + u32::from(segment.header.urgent).saturating_sub(1);
        let newer = self.urgent.at.is_none_or(|old| at.after(old));
        if !newer || at.before(self.nxt) {
            return;
        }
        if self.is_urgent_left_out() && !self.queue.is_empty() {
            // The reader is at the older mark. Once the mark moves, nothing else leaves out its
            // byte.
            self.queue.advance(1);
        }
        (self.urgent.at, self.urgent.read) = (Some(at), false);
    }

    pub(in crate::tcp) fn set_urgent_inline(&mut self, inline: bool) {
        self.urgent.inline = inline;
    }

    pub(in crate::tcp) fn urgent_mark(&self) -> Option<usize> {
        let (at, first) = (self.urgent.at?, self.first_unread());
        at.at_or_after(first).then(|| (at - first) as usize)
    }

    pub(in crate::tcp) fn is_urgent_left_out(&self) -> bool {
        self.urgent_mark() == Some(0) && !self.urgent.inline
    }

    pub(in crate::tcp) fn is_urgent_unread(&self) -> bool {
        !self.urgent.read && !self.urgent.inline && self.urgent_mark().is_some()
    }

    pub(in crate::tcp) fn has_urgent(&self) -> bool {
        !self.urgent.read && self.urgent_byte().is_some()
    }

    pub(in crate::tcp) fn urgent_byte(&self) -> Option<Piece> {
        let mut before = self.urgent_mark()?;
        if before >= self.queue.len() {
            return self.waiting.byte(self.urgent.at?);
        }
        for piece in self.queue.iter() {
            if before < piece.len() {
                return Some(piece.slice(before, 1));
            }
            before -= piece.len();
        }
        None
    }

    pub(in crate::tcp) fn urgent_was_read(&mut self) {
        self.urgent.read = true;
    }

    /// Forgets the mark if the owner's reads have passed it.
    pub(super) fn forget_urgent(&mut self) {
        let first = self.first_unread();
        self.urgent.at.take_if(|at| at.before(first));
    }

    /// Sequence number of the first byte in the queue.
    fn first_unread(&self) -> Seq {
        self.nxt.minus(self.queue.len() as u32 + u32::from(self.fin))
    }

    pub(in crate::tcp) fn readable_len(&self) -> usize {
        let len = self.queue.len();
        let mark = self.urgent_mark().filter(|_| !self.urgent.inline);
        mark.map_or(len, |mark| mark.min(len))
    }

    pub(in crate::tcp) fn next_read(&self, at: usize, begun: bool) -> Range<usize> {
        let len = self.queue.len();
        let at = at.min(len);
        let Some(mark) = self.urgent_mark() else { return at..len };
        match mark.cmp(&at) {
            Ordering::Greater => at..mark.min(len),
            Ordering::Equal if begun => at..at,
            Ordering::Equal if !self.urgent.inline => (at + 1).min(len)..len,
            _ => at..len,
        }
    }
}
