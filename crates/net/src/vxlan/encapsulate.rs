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
//! The datagrams of one call have one length but for the last. Of a super-packet that is longer
//! than a call takes, a few segments remain, and a call goes on from them to the segments of the
//! next super-packet: if those have the same length, and the last one so far is not shorter.
//!
//! Limits: [`PARTS_MAX`] segments and [`PIECES_MAX`] pieces at a time. One thread.

use core::ops::Range;

use alloc::boxed::Box;
use alloc::vec;

use towpath_packet::packet::HEADER_BYTES;
use towpath_packet::{Checksum, Ledger, Packet, Piece, Segmentation};

use super::HEADER_LEN;
use crate::checksum::{self, Sum};
use crate::gso::Walk;
use crate::wire::field::write_u16;
use crate::wire::udp;

/// Most segments that are cut at a time: `UDP_MAX_SEGMENTS` of kernels before 6.9.
pub const PARTS_MAX: usize = 64;
/// Most pieces of the packets that are cut together: as many as heads.
pub const PIECES_MAX: usize = 2 * PARTS_MAX;

/// The heads of the next segments of one super-packet, or of several.
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
    /// Writes the heads of the next segments of `packets`: of the first, and of those behind it
    /// that go on with datagrams of the same length. At most [`PARTS_MAX`], and as many as have at
    /// most `bytes_max` bytes together, but at least one. Returns false, and has none, if the first
    /// packet has no segmentation.
    pub fn write<'a>(
        &mut self,
        packets: impl Iterator<Item = &'a Packet>,
        header: &[u8; HEADER_LEN],
        bytes_max: usize,
        ledger: &Ledger,
    ) -> bool {
        self.count = 0;
        let (mut most, mut pieces) = (PARTS_MAX, 0);
        for packet in packets {
            let Some(segmentation) = packet.segmentation() else { break };
            let (head, size) = (HEADER_LEN + packet.headers().len(), segmentation.size());
            if self.count == 0 {
                (self.head, self.size, self.last) = (head, size, size);
                most = (bytes_max / (head + size)).clamp(1, PARTS_MAX);
            }
            pieces += packet.piece_count();
            let goes_on = (self.head, self.size, self.last) == (head, size, size);
            if !goes_on || self.count == most || pieces > PIECES_MAX {
                break;
            }
            self.write_heads(packet, segmentation, header, most, ledger);
        }
        self.count > 0
    }

    /// Writes the heads of the next segments of a packet, until there are `most`.
    fn write_heads(
        &mut self,
        packet: &Packet,
        segmentation: &Segmentation,
        header: &[u8; HEADER_LEN],
        most: usize,
        ledger: &Ledger,
    ) {
        let (headers, payload) = (packet.headers(), packet.payload_len());
        let count = segmentation.count(payload).min(most - self.count);
        let heads = self.heads.chunks_mut(self.head).skip(self.count).take(count);
        let mut payload_of = Walk::of(packet.pieces());
        for (ahead, head) in heads.enumerate() {
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
        self.count += count;
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

    /// The datagrams of these segments of `packets`, which are unchanged since [`Cut::write`].
    pub fn stretches<'a>(
        &'a self,
        packets: impl Iterator<Item = &'a Packet>,
        segments: Range<usize>,
    ) -> impl Iterator<Item = Stretch<'a>> {
        let mut walk = Walk::of(packets.flat_map(Packet::pieces));
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
fn complete<'a>(
    headers: &mut [u8],
    (start, offset): (usize, usize),
    payload: usize,
    walk: &mut Walk<'a, impl Iterator<Item = &'a Piece>>,
    ledger: &Ledger,
) {
    let mut sum = Sum::new();
    sum.add(&headers[start..]);
    walk.add_next(payload, &mut sum, ledger);
    let sum = sum.finish();
    // Only UDP has that offset. RFC 768: a computed zero is sent as all ones.
    let is_udp = offset == udp::CHECKSUM_OFFSET;
    write_u16(headers, start + offset, if is_udp { checksum::udp_nonzero(sum) } else { sum });
}

#[cfg(test)]
mod tests;
