//! Transport checksums in software, over private headers and pieces.
//!
//! Bytes of foreign memory are summed from a private copy of [`CHUNK_BYTES`] at a time, counted at
//! [`Site::Linearise`]. Whoever can write that memory can make the sum wrong afterwards; so before
//! a packet is sent with a checksum made here, such bytes become our own (`own_payload`).

use core::fmt;

use towpath_packet::{Checksum, Ledger, Packet, Piece, Site};

use super::shape::{Layout, Shape, Transport, Version, read_u16, write_u16};
use crate::checksum::{self, Sum};
use crate::wire::udp;

/// Why a partial checksum cannot be completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumError {
    /// The packet is a super-packet: each segment has a checksum of its own.
    SuperPacket,
    /// The field lies outside the packet.
    BeyondPacket,
    /// The field lies so far in the payload, which is somebody else's and is not written, that the
    /// private headers have no room up to there.
    InPayload,
}

impl fmt::Display for ChecksumError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SuperPacket => "a super-packet has no checksum of its own",
            Self::BeyondPacket => "the checksum field is beyond the packet",
            Self::InPayload => "the checksum field is far in the payload",
        })
    }
}

impl core::error::Error for ChecksumError {}

/// Turns a partial checksum into a finished one, which is [`Checksum::Unnecessary`] to verify. A
/// packet whose checksum is not partial stays as it is.
///
/// Works by the packet's own offsets, whatever its protocols are, after checking them against the
/// packet. A field in the payload, such as that of a packet in a tunnel, is pulled into the headers
/// with all that is before it. On error nothing has changed.
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
    // The field holds the pseudo-header's sum and is summed with the rest.
    let sum = transport_sum(packet, start, ledger).finish();
    // Only UDP has that offset; RFC 768: a computed zero is sent as all ones.
    let is_udp = offset == udp::CHECKSUM_OFFSET;
    let sum = if is_udp { checksum::udp_nonzero(sum) } else { sum };
    write_u16(packet.headers_mut(), field, sum);
    offload.checksum = Checksum::Unnecessary;
    packet.set_offload(offload);
    Ok(())
}

/// Whether the TCP or UDP checksum of a received packet is right. The packet ends where its IP
/// header says: padding has been cut off.
///
/// A packet over IPv4 whose UDP sender made no checksum passes (RFC 768); over IPv6 it does not
/// (RFC 8200 §8.1). What [`Checksum`] says is not asked. Fragments and other protocols fail.
pub fn verify_checksum(packet: &Packet, layout: Layout, ledger: &Ledger) -> bool {
    let Some(shape) = Shape::read(packet.headers(), layout) else { return false };
    if shape.transport == Transport::Udp && read_u16(packet.headers(), shape.checksum_at()) == 0 {
        return shape.version == Version::V4;
    }
    sum_is_right(packet, &shape, ledger)
}

/// The sum over everything from `start`, which is not beyond the headers, to the end of the
/// packet. With the sum of a pseudo-header it verifies any protocol's checksum.
pub fn transport_sum(packet: &Packet, start: usize, ledger: &Ledger) -> Sum {
    let headers = packet.headers();
    assert_eq!(packet.len(), headers.len() + packet.payload_len(), "the headers were pulled");
    let mut sum = Sum::new();
    sum.add(&headers[start..]);
    for piece in packet.pieces() {
        add_piece(&mut sum, piece, ledger);
    }
    sum
}

/// Whether headers and payload add up to a right checksum, without exceptions.
pub(crate) fn sum_is_right(packet: &Packet, shape: &Shape, ledger: &Ledger) -> bool {
    let len = shape.transport_len(packet.payload_len());
    let mut sum = shape.pseudo_header(packet.headers(), len);
    sum.add_sum(transport_sum(packet, shape.transport_at, ledger));
    sum.fold() == 0xffff
}

fn add_piece(sum: &mut Sum, piece: &Piece, ledger: &Ledger) {
    if let Some(bytes) = piece.view() {
        sum.add(&bytes);
        return;
    }
    let mut chunk = [0; CHUNK_BYTES];
    let mut rest = piece.clone();
    while !rest.is_empty() {
        let copied = ledger.copy(Site::Linearise, &rest, &mut chunk);
        sum.add(&chunk[..copied]);
        rest.advance(copied);
    }
}

/// Bytes of foreign memory that are copied at a time: stays in the first-level cache.
const CHUNK_BYTES: usize = 512;

/// Bytes of a checksum field.
const FIELD_BYTES: usize = 2;
