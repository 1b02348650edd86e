//! Cuts super-packets into the datagrams of a tunnel.
//!
//! # Theory of operation
//!
//! A super-packet whose segmentation is left to the device leaves as segments, but none of them
//! becomes a packet: [`Cut`] writes a head for each, which is the VXLAN header and the headers of
//! the segment with a complete checksum, and the caller sends head and borrowed payload in turn.
//! So a segment costs its head, a look at its payload for the checksum, and no packet handle and no
//! holder of a loan.
//!
//! Limit: [`PARTS_MAX`] segments at a time. One thread.

use core::ops::Range;

use alloc::boxed::Box;
use alloc::vec;

use towpath_packet::packet::HEADER_BYTES;
use towpath_packet::{Checksum, Ledger, Packet, Piece};

use super::HEADER_LEN;
use crate::checksum::{self, Sum};
use crate::gso::add_stretch;
use crate::wire::field::write_u16;
use crate::wire::udp;

/// Most segments that are cut at a time: `UDP_MAX_SEGMENTS` of kernels before 6.9.
pub const PARTS_MAX: usize = 64;

/// The heads of the next segments of a super-packet.
pub struct Cut {
    heads: Box<[u8]>,
    /// Bytes of a head.
    head: usize,
    /// Payload of each segment but the last, and of the last.
    size: usize,
    last: usize,
    count: usize,
}

/// What a datagram consists of, in order.
#[derive(Clone, Debug)]
pub enum Stretch<'a> {
    /// Headers.
    Head(&'a [u8]),
    /// These bytes of a piece.
    Payload(&'a Piece, Range<usize>),
}

impl Default for Cut {
    fn default() -> Self {
        let heads = vec![0; PARTS_MAX * (HEADER_LEN + HEADER_BYTES)].into();
        Self { heads, head: 0, size: 0, last: 0, count: 0 }
    }
}

impl Cut {
    /// Writes the heads of the next segments of a packet, as many as there are, up to
    /// [`PARTS_MAX`] and as long as their datagrams have at most `bytes_max` bytes together, but at
    /// least one. Returns false, and has none, if the packet has no segmentation.
    pub fn write(
        &mut self,
        packet: &Packet,
        header: &[u8; HEADER_LEN],
        bytes_max: usize,
        ledger: &Ledger,
    ) -> bool {
        self.count = 0;
        let Some(segmentation) = packet.segmentation() else { return false };
        let (headers, payload) = (packet.headers(), packet.payload_len());
        self.head = HEADER_LEN + headers.len();
        self.size = segmentation.size();
        let most = (bytes_max / (self.head + self.size)).clamp(1, PARTS_MAX);
        self.count = segmentation.count(payload).min(most);
        let mut payload_of = Walk::of(packet);
        for (ahead, head) in self.heads.chunks_mut(self.head).take(self.count).enumerate() {
            let part = segmentation.part(ahead, payload);
            self.last = part.len;
            let (vxlan, inner) = head.split_at_mut(HEADER_LEN);
            vxlan.copy_from_slice(header);
            inner.copy_from_slice(headers);
            segmentation.template().patch(&part, inner);
            if let Checksum::Partial { start, offset } = packet.offload().checksum {
                complete(inner, (start.into(), offset.into()), part.len, &mut payload_of, ledger);
            }
        }
        true
    }

    /// Number of segments.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes of a segment, with its Ethernet header.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn len_of(&self, segment: usize) -> usize {
        assert!(segment < self.count);
        let payload = if segment + 1 == self.count { self.last } else { self.size };
        self.head - HEADER_LEN + payload
    }

    /// The datagrams of these segments of `packet`, which is unchanged since [`Cut::write`].
    pub fn stretches<'a>(
        &'a self,
        packet: &'a Packet,
        segments: Range<usize>,
    ) -> impl Iterator<Item = Stretch<'a>> {
        let mut walk = Walk::of(packet);
        let mut skipped = segments.start * self.size;
        while skipped > 0
            && let Some((_, range)) = walk.next(skipped)
        {
            skipped -= range.len();
        }
        let mut segments = segments.take(self.count);
        let mut left = 0;
        core::iter::from_fn(move || {
            if left > 0
                && let Some((piece, range)) = walk.next(left)
            {
                left -= range.len();
                return Some(Stretch::Payload(piece, range));
            }
            let segment = segments.next()?;
            left = self.len_of(segment) + HEADER_LEN - self.head;
            Some(Stretch::Head(&self.heads[segment * self.head..][..self.head]))
        })
    }
}

/// Completes the checksum of a segment, whose field holds the sum of the pseudo-header.
fn complete(
    headers: &mut [u8],
    (start, offset): (usize, usize),
    payload: usize,
    walk: &mut Walk<'_>,
    ledger: &Ledger,
) {
    let mut sum = Sum::new();
    sum.add(&headers[start..]);
    let mut left = payload;
    while left > 0
        && let Some((piece, range)) = walk.next(left)
    {
        left -= range.len();
        add_stretch(&mut sum, piece, range, ledger);
    }
    let sum = sum.finish();
    // Only UDP has that offset. RFC 768: a computed zero is sent as all ones.
    let is_udp = offset == udp::CHECKSUM_OFFSET;
    write_u16(headers, start + offset, if is_udp { checksum::udp_nonzero(sum) } else { sum });
}

/// A walk along the payload of a packet.
struct Walk<'a> {
    packet: &'a Packet,
    /// The piece that is next, and where in it.
    piece: usize,
    at: usize,
}

impl<'a> Walk<'a> {
    fn of(packet: &'a Packet) -> Self {
        Self { packet, piece: 0, at: 0 }
    }

    /// The next bytes in one piece, at most `most`. `None` at the end.
    fn next(&mut self, most: usize) -> Option<(&'a Piece, Range<usize>)> {
        let piece = self.packet.pieces().nth(self.piece)?;
        let range = self.at..piece.len().min(self.at + most);
        self.at = range.end;
        if self.at == piece.len() {
            (self.piece, self.at) = (self.piece + 1, 0);
        }
        Some((piece, range))
    }
}

#[cfg(test)]
mod tests;
