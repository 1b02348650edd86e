//! A packet that can grow while it is held, and its bucket.
//!
//! An [`Aggregate`] keeps the headers of its first packet unchanged until it is delivered: they are
//! the template of the next segment.

use core::num::NonZeroU16;

use towpath_packet::packet::{HEADER_BYTES, PIECES_MAX};
use towpath_packet::{Checksum, Gso, GsoKind, Ledger, Offload, Packet, Piece};

use super::{AGGREGATES_PER_BUCKET, UDP_COALESCED_MAX, is_canonical};
use crate::gso::{
    IP_BYTES_MAX, Part, Shape, TCP_SEGMENTS_MAX, Template, Walk, move_front, partial,
};
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
        let len = next.payload_len();
        let is_verified = next.offload().checksum == Checksum::Unnecessary;
        if self.packet.piece_count() + next.piece_count() > PIECES_MAX
            || !self.fits(0, len)
            || !self.expected().is_next(self, next.headers(), (0, len), is_verified)
        {
            return Err(next);
        }
        for piece in next.take_pieces() {
            self.packet.push_piece(piece).expect("the pieces were counted");
        }
        Ok(self.ends_with(next.headers(), len))
    }

    /// Merges segments of the flow that are no packets yet, as [`merge`](Self::merge) does, as many
    /// as follow. Verifies their checksums. `payload` has `size` bytes for each but the last. Moves
    /// those of the merged ones, and returns how many these are, and true if no packet may follow.
    pub(super) fn extend<'a>(
        &mut self,
        headers: impl Iterator<Item = &'a [u8]>,
        size: usize,
        payload: &mut Packet,
        ledger: &Ledger,
    ) -> (usize, bool) {
        // A few of the pieces might still have room: those segments are merged as packets.
        if self.packet.piece_count() + payload.piece_count() > PIECES_MAX {
            return (0, false);
        }
        let (count, bytes, ends) = self.follow(headers, size, payload, ledger);
        move_front(payload, bytes, &mut self.packet);
        (count, ends)
    }

    /// Counts the segments that follow, and bytes of their payload, as
    /// [`extend`](Self::extend) does.
    fn follow<'a>(
        &mut self,
        headers: impl Iterator<Item = &'a [u8]>,
        size: usize,
        payload: &Packet,
        ledger: &Ledger,
    ) -> (usize, usize, bool) {
        let expected = self.expected();
        let (mut count, mut bytes, mut ends) = (0, 0, false);
        let mut walk = Walk::of(payload.pieces());
        for headers in headers {
            let len = size.min(payload.payload_len() - bytes);
            if len == 0
                || !self.fits(bytes, len)
                || !expected.is_next(self, headers, (bytes, len), true)
                || !self.is_right(headers, len, &mut walk, ledger)
            {
                break;
            }
            (count, bytes) = (count + 1, bytes + len);
            ends = self.ends_with(headers, len);
            if ends {
                break;
            }
        }
        (count, bytes, ends)
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

    /// True if a segment of `len` bytes, `ahead` bytes behind the payload, stays within the limits
    /// of a super-packet; a full one is delivered at once. Only the last packet may be shorter than
    /// the first, and ends the super-packet.
    fn fits(&self, ahead: usize, len: usize) -> bool {
        let payload = self.packet.payload_len() + ahead + len;
        len <= usize::from(self.size.get()) && self.shape.ip_len(payload) <= IP_BYTES_MAX
    }

    /// What the headers of the next segments are compared with.
    fn expected(&self) -> Expected {
        let mut expected = Expected {
            headers: [0; HEADER_BYTES],
            template: self.shape.template(self.packet.headers()),
        };
        let headers = &mut expected.headers[..self.shape.end];
        headers.copy_from_slice(self.packet.headers());
        expected.template.prepare(headers, self.size);
        expected
    }

    /// True if the checksum of a segment is right and is the one that segmentation would write. Its
    /// payload is next in `walk`.
    fn is_right<'a>(
        &self,
        headers: &[u8],
        len: usize,
        walk: &mut Walk<'a, impl Iterator<Item = &'a Piece>>,
        ledger: &Ledger,
    ) -> bool {
        let Self { shape, .. } = self;
        let field = read_u16(headers, shape.checksum_at());
        if !is_canonical(field, shape) {
            return false;
        }
        let mut sum = shape.pseudo_header(headers, shape.transport_len(len));
        sum.add(&headers[shape.transport_at..]);
        walk.add_next(len, &mut sum, ledger);
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

/// The headers that the segments of an aggregate have in common, and what writes the others.
struct Expected {
    headers: [u8; HEADER_BYTES],
    template: Template,
}

impl Expected {
    /// True if these are the headers that segmentation would produce for the segment whose payload
    /// is `ahead` bytes behind that of `held`, and has `len` bytes, except for FIN and PSH, which
    /// the last segment may add.
    fn is_next<T>(
        &self,
        held: &Aggregate<T>,
        headers: &[u8],
        (ahead, len): (usize, usize),
        is_verified: bool,
    ) -> bool {
        let shape = &held.shape;
        if headers.len() != shape.end {
            return false;
        }
        let mut expected = self.headers;
        let expected = &mut expected[..shape.end];
        let offset = held.packet.payload_len() + ahead;
        self.template.patch(&Part { index: held.count, offset, len, last: false }, expected);
        if shape.transport == Transport::Tcp {
            let at = shape.transport_at + tcp::at::FLAGS;
            expected[at] |= headers[at] & (Flags::FIN | Flags::PSH).0;
        }
        if is_verified {
            // A checksum that is right is the one that would be computed.
            let at = shape.checksum_at();
            expected[at..at + 2].copy_from_slice(&headers[at..at + 2]);
        }
        expected == headers
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
