//! The send window (RFC 9293 §3.3.1, §3.10.7.4): what the peer takes.

use crate::tcp::segment::Segment;
use crate::tcp::seq::Seq;
use crate::wire::tcp::Flags;

/// The peer's window; names in parentheses are those of RFC 9293.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SendWindow {
    /// Size in bytes (SND.WND).
    size: u32,
    /// The largest size so far.
    max: u32,
    /// Sequence number of the segment that it was taken from (SND.WL1).
    wl1: Seq,
    scale: u8,
}

impl SendWindow {
    /// Takes the window of the peer's SYN, or of the ACK of ours. The window of a SYN is not scaled
    /// (RFC 7323 §2.2).
    pub(super) fn begin(&mut self, segment: &Segment) {
        let scale = if segment.has(Flags::SYN) { 0 } else { self.scale };
        self.size = u32::from(segment.header.window) << scale;
        self.max = self.size;
        self.wl1 = segment.seq();
    }

    /// Sets the scale of the peer's window fields.
    pub(super) fn set_scale(&mut self, scale: u8) {
        self.scale = scale;
    }

    /// Takes the window from the latest segment (RFC 9293 §3.10.7.4, fifth check). With an equal
    /// sequence number and no new acknowledgment, only a larger window or a zero window counts.
    /// Returns true if it was taken.
    pub(super) fn update(&mut self, segment: &Segment, una: Seq) -> bool {
        let size = u32::from(segment.header.window) << self.scale;
        let seq = segment.seq();
        let newer = segment.ack().after(una)
            || seq.after(self.wl1)
            || (seq == self.wl1 && (size > self.size || size == 0));
        if newer {
            self.size = size;
            self.max = self.max.max(size);
            self.wl1 = seq;
        }
        newer
    }

    /// Takes windows of segments from `seq` on as new. The peer continues from there, as data
    /// behind it was refused.
    pub(super) fn rewind(&mut self, seq: Seq) {
        self.wl1 = self.wl1.min(seq);
    }

    /// Size in bytes.
    pub(super) fn size(&self) -> u32 {
        self.size
    }

    /// The largest size so far.
    pub(super) fn max(&self) -> u32 {
        self.max
    }

    /// Scale of the peer's window fields.
    pub(super) fn scale(&self) -> u8 {
        self.scale
    }

    /// Sets the size.
    #[cfg(test)]
    pub(super) fn force(&mut self, size: u32) {
        self.size = size;
    }

    /// Sets the largest size.
    #[cfg(test)]
    pub(super) fn force_max(&mut self, size: u32) {
        self.max = size;
    }
}
