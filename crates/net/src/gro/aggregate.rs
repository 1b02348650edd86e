//! A packet that can grow while it is held, and its bucket.
//!
//! An [`Aggregate`] keeps the headers of its first packet unchanged until it is delivered: they are
//! the template of the next segment.

use core::num::NonZeroU16;

use towpath_packet::packet::{HEADER_BYTES, PIECES_MAX};
use towpath_packet::{Checksum, Gso, GsoKind, Ledger, Offload, Packet, Piece};

use super::{AGGREGATES_PER_BUCKET, UDP_COALESCED_MAX, is_canonical};
use crate::gso::{IP_BYTES_MAX, Part, Shape, TCP_SEGMENTS_MAX, add_stretch, partial};
use crate::wire::field::{read_u16, write_u16};
use crate::wire::headers::{Transport, Version};
use crate::wire::tcp::{self, Flags};

/// One packet, or several merged ones.
pub(super) struct Aggregate<T> {
    packet: Packet,
    shape: Shape,
    hash: u32,
    /// Payload bytes of the first packet.
    size: NonZeroU16,
    /// Number of merged packets, including the first.
    count: usize,
    known: T,
}

impl<T> Aggregate<T> {
    /// Holds a packet with payload that may be merged.
    pub(super) fn new(packet: Packet, shape: Shape, hash: u32, known: T) -> Self {
        let size = u16::try_from(packet.payload_len()).ok().and_then(NonZeroU16::new);
        let size = size.expect("a packet to be held has 1 to IP_BYTES_MAX bytes of payload");
        Self { packet, shape, hash, size, count: 1, known }
    }

    /// Merges the next packet of the flow, whose checksum has been verified. `Ok(true)` if no
    /// packet may follow it. Returns the packet if it is not the next segment or does not fit.
    pub(super) fn merge(&mut self, mut next: Packet) -> Result<bool, Packet> {
        let (len, pieces) = (next.payload_len(), next.piece_count());
        let is_verified = next.offload().checksum == Checksum::Unnecessary;
        if !self.fits(len, pieces) || !self.is_next(next.headers(), len, is_verified) {
            return Err(next);
        }
        for piece in next.take_pieces() {
            self.packet.push_piece(piece).expect("the pieces were counted");
        }
        Ok(self.ends_with(next.headers(), len))
    }

    /// Merges the next segment of the flow, which is no packet yet, as [`merge`](Self::merge) does.
    /// Verifies its checksum.
    pub(super) fn extend(
        &mut self,
        headers: &[u8],
        payload: Piece,
        ledger: &Ledger,
    ) -> Result<bool, Piece> {
        let len = payload.len();
        let is_next = self.fits(len, 1) && self.is_next(headers, len, true);
        if !is_next || !self.is_right(headers, &payload, ledger) {
            return Err(payload);
        }
        self.packet.push_piece(payload).expect("the pieces were counted");
        Ok(self.ends_with(headers, len))
    }

    /// Counts a segment that was merged. True if no packet may follow it.
    fn ends_with(&mut self, headers: &[u8], len: usize) -> bool {
        self.count += 1;
        let ends = len < usize::from(self.size.get());
        self.take_flags(headers) || ends || self.count == self.count_max()
    }

    /// Delivers the packet.
    pub(super) fn finish(mut self, out: &mut impl FnMut(Packet, T)) {
        if self.count == 1 {
            return out(self.packet, self.known);
        }
        let (shape, payload) = (self.shape, self.packet.payload_len());
        let headers = self.packet.headers_mut();
        shape.write_lengths(headers, payload);
        shape.write_ip_checksum(headers);
        let sum = shape.pseudo_header(headers, shape.transport_len(payload)).fold();
        write_u16(headers, shape.checksum_at(), sum);
        let (kind, ecn) = match (shape.transport, shape.version) {
            (Transport::Udp, _) => (GsoKind::Udp, false),
            (Transport::Tcp, Version::V4) => (GsoKind::Tcp4, self.flags().contains(Flags::CWR)),
            (Transport::Tcp, Version::V6) => (GsoKind::Tcp6, self.flags().contains(Flags::CWR)),
        };
        let gso = Gso { kind, size: self.size, ecn, tunnel: None };
        self.packet.set_offload(Offload { checksum: partial(&shape), gso: Some(gso) });
        out(self.packet, self.known);
    }

    /// True if `len` more bytes in so many pieces stay within the limits of a super-packet; a full
    /// one is delivered at once. Only the last packet may be shorter than the first, and ends the
    /// super-packet.
    fn fits(&self, len: usize, pieces: usize) -> bool {
        let payload = self.packet.payload_len() + len;
        len <= usize::from(self.size.get())
            && self.packet.piece_count() + pieces <= PIECES_MAX
            && self.shape.ip_len(payload) <= IP_BYTES_MAX
    }

    /// True if these are the headers that segmentation would produce for the next segment, which
    /// has `len` bytes, except for FIN and PSH, which the last segment may add.
    fn is_next(&self, headers: &[u8], len: usize, is_verified: bool) -> bool {
        if headers.len() != self.shape.end {
            return false;
        }
        let mut expected = [0; HEADER_BYTES];
        let expected = &mut expected[..self.shape.end];
        let part = Part { index: self.count, offset: self.packet.payload_len(), len, last: false };
        expected.copy_from_slice(self.packet.headers());
        self.shape.template(expected).patch(&part, expected);
        if self.shape.transport == Transport::Tcp {
            let at = self.shape.transport_at + tcp::at::FLAGS;
            expected[at] |= headers[at] & (Flags::FIN | Flags::PSH).0;
        }
        if is_verified {
            // A checksum that is right is the one that would be computed.
            let at = self.shape.checksum_at();
            expected[at..at + 2].copy_from_slice(&headers[at..at + 2]);
        }
        expected == headers
    }

    /// True if the checksum of a segment is right and is the one that segmentation would write.
    fn is_right(&self, headers: &[u8], payload: &Piece, ledger: &Ledger) -> bool {
        let Self { shape, .. } = self;
        let field = read_u16(headers, shape.checksum_at());
        if !is_canonical(field, shape) {
            return false;
        }
        let mut sum = shape.pseudo_header(headers, shape.transport_len(payload.len()));
        sum.add(&headers[shape.transport_at..]);
        add_stretch(&mut sum, payload, 0..payload.len(), ledger);
        sum.fold() == 0xffff
    }

    /// Merges FIN and PSH of the packet just merged; true if either is set.
    fn take_flags(&mut self, headers: &[u8]) -> bool {
        if self.shape.transport == Transport::Udp {
            return false;
        }
        let at = self.shape.transport_at + tcp::at::FLAGS;
        let flags = headers[at] & (Flags::FIN | Flags::PSH).0;
        self.packet.headers_mut()[at] |= flags;
        flags != 0
    }

    fn flags(&self) -> Flags {
        Flags(self.packet.headers()[self.shape.transport_at + tcp::at::FLAGS])
    }

    fn count_max(&self) -> usize {
        match self.shape.transport {
            Transport::Tcp => TCP_SEGMENTS_MAX,
            Transport::Udp => UDP_COALESCED_MAX,
        }
    }
}

/// Aggregate packets of flows with similar hashes, oldest first.
pub(super) struct Bucket<T> {
    /// The first `count` entries are in use.
    held: [Option<Aggregate<T>>; AGGREGATES_PER_BUCKET],
    count: usize,
}

impl<T> Bucket<T> {
    pub(super) const EMPTY: Self = Self { held: [const { None }; AGGREGATES_PER_BUCKET], count: 0 };

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Index of the held packet of a flow; there is at most one.
    pub(super) fn find(&self, hash: u32, headers: &[u8], shape: &Shape) -> Option<usize> {
        self.held[..self.count].iter().flatten().position(|held| {
            held.hash == hash
                && held.shape.version == shape.version
                && held.shape.transport == shape.transport
                && held.shape.flow(held.packet.headers()) == shape.flow(headers)
        })
    }

    pub(super) fn at(&mut self, place: usize) -> &mut Aggregate<T> {
        self.held[place].as_mut().expect("a place that was found")
    }

    pub(super) fn remove(&mut self, place: usize) -> Aggregate<T> {
        let removed = self.held[place].take().expect("a place that was found");
        self.held[place..self.count].rotate_left(1);
        self.count -= 1;
        removed
    }

    /// Adds a packet; returns the oldest if the bucket is full.
    pub(super) fn push(&mut self, held: Aggregate<T>) -> Option<Aggregate<T>> {
        let oldest = (self.count == AGGREGATES_PER_BUCKET).then(|| self.remove(0));
        self.held[self.count] = Some(held);
        self.count += 1;
        oldest
    }
}
