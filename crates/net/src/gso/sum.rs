//! Transport checksums in software, over private headers and pieces.
//!
//! Bytes of foreign memory are summed from a private copy of [`CHUNK_BYTES`] at a time, counted at
//! [`Site::Linearise`]. The owner of that memory can change it afterwards, which makes the sum
//! wrong. So before a packet is sent with a checksum computed here, its foreign bytes are copied
//! (`own_payload`).

use core::ops::Range;

use towpath_packet::{Checksum, Ledger, Packet, Piece, Site};

use super::header_layout::Shape;
use crate::checksum::{self, Sum};
use crate::wire::field::{read_u16, write_u16};
use crate::wire::headers::{Headers, Transport, Version};
use crate::wire::udp;

/// Error of [`complete_checksum`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumError {
    /// The packet is a super-packet; only its segments have checksums.
    SuperPacket,
    /// The checksum field is outside the packet.
    BeyondPacket,
    /// The checksum field is in the payload, which is not writable, and too far for it to be pulled
    /// into the private headers.
    InPayload,
}

/// Completes a partial checksum and marks it as [`Checksum::Unnecessary`]. A packet without a
/// partial checksum is not changed.
///
/// This uses the packet's offsets, whatever its protocols are, after checking them against its
/// length. A field in the payload, such as that of a packet in a tunnel, is pulled into the headers
/// with all bytes before it. On error nothing has changed.
pub fn complete_checksum(packet: &mut Packet, ledger: &Ledger) -> Result<(), ChecksumError> {
    let mut offload = *packet.offload();
    let Checksum::Partial { start, offset } = offload.checksum else { return Ok(()) };
    if offload.gso.is_some() {
        return Err(ChecksumError::SuperPacket);
    }
    let (start, offset) = (usize::from(start), usize::from(offset));
    let field = start + offset;
    if field + FIELD_BYTES > packet.len() {
        return Err(ChecksumError::BeyondPacket);
    }
    let missing = (field + FIELD_BYTES).saturating_sub(packet.headers().len());
    if missing > 0 && !packet.pull_more(missing) {
        return Err(ChecksumError::InPayload);
    }
    // The field holds the pseudo-header's sum and is included in the sum.
    let sum = transport_sum(packet, start, ledger).finish();
    // Only UDP has that offset. RFC 768: a computed zero is sent as all ones.
    let is_udp = offset == udp::CHECKSUM_OFFSET;
    let sum = if is_udp { checksum::udp_nonzero(sum) } else { sum };
    write_u16(packet.headers_mut(), field, sum);
    offload.checksum = Checksum::Unnecessary;
    packet.set_offload(offload);
    Ok(())
}

/// Verifies the TCP or UDP checksum of a received packet. The packet must end where its IP header
/// says, without padding.
///
/// An IPv4 packet whose UDP sender computed no checksum passes (RFC 768), an IPv6 packet does not
/// (RFC 8200 §8.1). The packet's [`Checksum`] is ignored. Fragments and other protocols fail.
pub fn verify_checksum(packet: &Packet, headers: &Headers, ledger: &Ledger) -> bool {
    let Some(shape) = Shape::of(headers, packet.headers().len()) else { return false };
    if shape.transport == Transport::Udp && read_u16(packet.headers(), shape.checksum_at()) == 0 {
        return shape.version == Version::V4;
    }
    sum_is_right(packet, &shape, ledger)
}

/// Sum over all bytes from `start`, which must be within the headers, to the end of the packet.
/// Together with a pseudo-header's sum it verifies the checksum of any protocol.
pub fn transport_sum(packet: &Packet, start: usize, ledger: &Ledger) -> Sum {
    let headers = packet.headers();
    assert_eq!(packet.len(), headers.len() + packet.payload_len(), "the headers were pulled");
    let mut sum = Sum::new();
    sum.add(&headers[start..]);
    for piece in packet.pieces() {
        add_stretch(&mut sum, piece, 0..piece.len(), ledger);
    }
    sum
}

/// True if headers and payload have a correct checksum; no exceptions for UDP.
pub(crate) fn sum_is_right(packet: &Packet, shape: &Shape, ledger: &Ledger) -> bool {
    let len = shape.transport_len(packet.payload_len());
    let mut sum = shape.pseudo_header(packet.headers(), len);
    sum.add_sum(transport_sum(packet, shape.transport_at, ledger));
    sum.fold() == 0xffff
}

/// Adds a range of the bytes of a piece.
pub(crate) fn add_stretch(sum: &mut Sum, piece: &Piece, range: Range<usize>, ledger: &Ledger) {
    if let Some(bytes) = piece.view() {
        sum.add(&bytes[range]);
        return;
    }
    let mut chunk = [0; CHUNK_BYTES];
    let mut rest = piece.slice(range.start, range.len());
    while !rest.is_empty() {
        let copied = ledger.copy(Site::Linearise, &rest, &mut chunk);
        sum.add(&chunk[..copied]);
        rest.advance(copied);
    }
}

/// Bytes of foreign memory copied at a time; they stay in the first-level cache.
const CHUNK_BYTES: usize = 512;

/// Bytes of a checksum field.
const FIELD_BYTES: usize = 2;
