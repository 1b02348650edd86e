//! Segmentation in software, and checksums for devices without checksum offload.
//!
//! # Theory of operation
//!
//! [`segment`] splits a super-packet into the packets that a device with TSO or USO would send.
//! Each segment gets a private copy of the headers, with its own lengths, sequence number,
//! identification and flags, and pieces of the same loans. No payload byte is copied, and each
//! lender is notified once, after the last segment that holds one of its pieces is dropped.
//!
//! The offload fields of an untrusted super-packet are first checked ([`check_offload`]). The
//! fields of the segments are then written anew, not adjusted: lengths and pseudo-headers are
//! computed from the actual bytes.
//!
//! The super-packet may be in a UDP tunnel (`Gso::tunnel`). Each segment then also gets the outer
//! headers, with their own lengths, identification and checksums.
//!
//! # Limits
//!
//! [`IP_BYTES_MAX`] bytes of IP packet, [`TCP_SEGMENTS_MAX`] or [`UDP_SEGMENTS_MAX`] segments;
//! packets beyond these are rejected and returned. Handles are reserved before the first segment is
//! passed on: either all segments are made, or none, and the packet is returned.
//!
//! RFC 9293 §3.1 (TCP), RFC 768 (UDP), RFC 791, RFC 8200, RFC 3168 §6.1.2 (CWR), RFC 6864
//! (identification); the behaviour of Linux's GSO.

mod copy_foreign;
mod header_layout;
mod offload_fields;
mod splitter;
mod sum;
mod tunnel;
mod walk;

use towpath_packet::packet::HEADER_BYTES;
pub(crate) use towpath_packet::segmentation::{Part, Template};
use towpath_packet::{Checksum, Ledger, Memory, Offload, Packet, Segmentation};

use crate::wire::headers::Headers;
use offload_fields::Whole;

pub(crate) use copy_foreign::{orphan_payload, own_payload};
pub use header_layout::IP_BYTES_MAX;
pub(crate) use header_layout::{Shape, write_ipv4_checksum};
pub use offload_fields::{OffloadError, TCP_SEGMENTS_MAX, UDP_SEGMENTS_MAX, check_offload};
pub use splitter::PARTS_MAX;
pub(crate) use splitter::Splitter;
pub(crate) use sum::sum_is_right;
pub use sum::{ChecksumError, complete_checksum, transport_sum, verify_checksum};
pub(crate) use tunnel::headers_end;
pub(crate) use walk::{Walk, move_front};

/// How to handle the transport checksum of each segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksums {
    /// Computed here over the pieces.
    Complete,
    /// Left to a device: the field holds the pseudo-header's sum.
    LeavePartial,
}

/// Error of [`segment`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentError {
    /// The offload fields are invalid.
    Offload(OffloadError),
    /// The packet is no super-packet, and its checksum cannot be completed.
    Checksum(ChecksumError),
    /// Too few packet handles are free for all segments.
    NoPackets,
}

/// Splits a super-packet into segments and passes them to `out` in order; returns how many. A
/// packet that is no super-packet is passed on as it is, with its partial checksum completed if
/// requested.
///
/// `out` may use the memory, but must take no packets of it: they are reserved for the segments.
///
/// On error the packet is returned and `out` has not been called. Segmentation fields that the
/// packet did not need may have been cleared.
pub fn segment(
    mut packet: Packet,
    memory: &mut Memory,
    ledger: &Ledger,
    headers: &Headers,
    checksums: Checksums,
    out: &mut impl FnMut(Packet, &mut Memory),
) -> Result<usize, (SegmentError, Packet)> {
    let Whole { shape, outer, gso } = match offload_fields::check(&mut packet, headers) {
        Ok(Some(found)) => found,
        Ok(None) => return pass(packet, memory, ledger, checksums, out),
        Err(error) => return Err((SegmentError::Offload(error), packet)),
    };
    let (payload, size) = (packet.payload_len(), usize::from(gso.size.get()));
    let count = payload.div_ceil(size);
    if memory.packets.free_count() < count {
        return Err((SegmentError::NoPackets, packet));
    }
    let mut headers = [0; HEADER_BYTES];
    let headers = &mut headers[..shape.end];
    headers.copy_from_slice(packet.headers());
    let mut template = shape.template(headers);
    template.prepare(headers, gso.size);
    let outer = outer.map(|outer| (outer, outer.shape.template(headers)));
    let mut splitter = Splitter::new(packet.take_pieces(), size);
    for index in 0..count {
        let offset = index * size;
        let part =
            Part { index, offset, len: size.min(payload - offset), last: index + 1 == count };
        let mut segment = memory.packet().expect("handles were reserved");
        splitter.split(part.len, &mut segment);
        let headers = segment.push_header_of(headers);
        template.patch(&part, headers);
        if let Some((outer, template)) = &outer {
            outer.patch(template, &part, headers);
        }
        segment.set_offload(Offload { checksum: partial(&shape), gso: None });
        if checksums == Checksums::Complete {
            complete_checksum(&mut segment, ledger).expect("the field is in the headers");
        }
        out(segment, memory);
    }
    Ok(count)
}

/// Prepares a super-packet for segmentation by a device, with the result of [`segment`] with
/// partial checksums. False for a packet in a tunnel, which must be segmented in software. A packet
/// that is no super-packet is not changed.
///
/// On error the packet is as [`segment`] returns it.
pub fn leave_to_device(packet: &mut Packet, headers: &Headers) -> Result<bool, OffloadError> {
    let Some(Whole { shape, outer, gso }) = offload_fields::check(packet, headers)? else {
        return Ok(true);
    };
    if outer.is_some() {
        return Ok(false);
    }
    let template = shape.template(packet.headers());
    let cut = Segmentation::new(template, packet.headers_mut(), gso.size);
    packet.set_segmentation(cut);
    packet.set_offload(Offload { checksum: partial(&shape), gso: None });
    Ok(true)
}

/// [`segment`] for a packet that is no super-packet.
fn pass(
    mut packet: Packet,
    memory: &mut Memory,
    ledger: &Ledger,
    checksums: Checksums,
    out: &mut impl FnMut(Packet, &mut Memory),
) -> Result<usize, (SegmentError, Packet)> {
    if checksums == Checksums::Complete
        && let Err(error) = complete_checksum(&mut packet, ledger)
    {
        return Err((SegmentError::Checksum(error), packet));
    }
    out(packet, memory);
    Ok(1)
}

/// A partial checksum in its regular field. Both numbers are offsets below [`HEADER_BYTES`].
pub(crate) fn partial(shape: &Shape) -> Checksum {
    Checksum::Partial { start: shape.transport_at as u16, offset: shape.checksum_offset() as u16 }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
