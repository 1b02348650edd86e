//! The offload fields of a packet are claims of its sender; here they are checked against its
//! headers.
//!
//! The rules are those of virtio 1.2 §5.1.6.2 and of Linux, which rejects the same packets.

use towpath_packet::{Checksum, Gso, GsoKind, Packet};

use super::header_layout::{IP_BYTES_MAX, Shape};
use super::splitter::PARTS_MAX;
use super::tunnel::Outer;
use crate::wire::headers::{Headers, Transport, Version};

/// Reason why the offload fields of a packet are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffloadError {
    /// The headers of a super-packet are not complete TCP or UDP headers.
    Headers,
    /// The kind of super-packet does not match the protocol of its headers.
    Kind,
    /// The checksum field is in the wrong place for the protocol, or beyond the packet.
    ChecksumPlace,
    /// A UDP super-packet, or one in a tunnel, has no partial checksum.
    ChecksumMissing,
    /// The outer headers are not those of the claimed UDP tunnel.
    Tunnel,
    /// ECN is set on a UDP super-packet.
    Ecn,
    /// More segments than [`UDP_SEGMENTS_MAX`] or [`TCP_SEGMENTS_MAX`].
    TooManySegments,
    /// Longer than [`IP_BYTES_MAX`].
    TooLong,
}

/// Checks the offload fields of a packet against its headers. A super-packet whose payload
/// fits one segment is a plain packet: its segmentation fields are cleared.
///
/// A packet that is no super-packet may have any protocol. Its partial checksum may also be behind
/// a UDP header, in the inner packet of a tunnel.
///
/// The private headers of a super-packet in a tunnel end with the inner transport header; `headers`
/// are the outer ones.
pub fn check_offload(packet: &mut Packet, headers: &Headers) -> Result<(), OffloadError> {
    check(packet, headers).map(|_| ())
}

/// A super-packet with valid claims.
pub(super) struct Whole {
    /// Headers of the packet to segment.
    pub(super) shape: Shape,
    /// Outer headers, if it is in a tunnel.
    pub(super) outer: Option<Outer>,
    pub(super) gso: Gso,
}

/// Does the work of [`check_offload`]; returns the super-packet if segmentation is needed.
pub(super) fn check(packet: &mut Packet, headers: &Headers) -> Result<Option<Whole>, OffloadError> {
    let mut offload = *packet.offload();
    let Some(gso) = offload.gso else {
        return check_plain(packet, headers).map(|()| None);
    };
    let (shape, outer) = check_super(packet, headers, gso)?;
    let payload = packet.payload_len();
    if payload <= usize::from(gso.size.get()) {
        if let Some(outer) = outer {
            outer.settle(packet.headers_mut(), payload);
        }
        offload.gso = None;
        packet.set_offload(offload);
        return Ok(None);
    }
    Ok(Some(Whole { shape, outer, gso }))
}

fn check_plain(packet: &Packet, headers: &Headers) -> Result<(), OffloadError> {
    let Checksum::Partial { start, offset } = packet.offload().checksum else { return Ok(()) };
    let (start, offset) = (usize::from(start), usize::from(offset));
    let in_packet = start + offset + 2 <= packet.len();
    let in_place = match Shape::of(headers, packet.headers().len()) {
        Some(shape) if start == shape.transport_at => offset == shape.checksum_offset(),
        Some(shape) => shape.transport == Transport::Udp && start >= shape.end,
        None => start >= headers.transport_at,
    };
    if in_packet && in_place { Ok(()) } else { Err(OffloadError::ChecksumPlace) }
}

fn check_super(
    packet: &Packet,
    headers: &Headers,
    gso: Gso,
) -> Result<(Shape, Option<Outer>), OffloadError> {
    let (shape, outer) = read_shapes(packet, headers, gso)?;
    let segments_max = match (gso.kind, shape.version, shape.transport) {
        (GsoKind::Tcp4, Version::V4, Transport::Tcp) => TCP_SEGMENTS_MAX,
        (GsoKind::Tcp6, Version::V6, Transport::Tcp) => TCP_SEGMENTS_MAX,
        (GsoKind::Udp, _, Transport::Udp) => UDP_SEGMENTS_MAX,
        _ => return Err(OffloadError::Kind),
    };
    let ip_len = match &outer {
        Some(outer) => outer.shape.ip_len(outer.payload_len(packet.payload_len())),
        None => shape.ip_len(packet.payload_len()),
    };
    if ip_len > IP_BYTES_MAX {
        return Err(OffloadError::TooLong);
    }
    match packet.offload().checksum {
        Checksum::Partial { start, offset } => {
            if usize::from(start) != shape.transport_at
                || usize::from(offset) != shape.checksum_offset()
            {
                return Err(OffloadError::ChecksumPlace);
            }
        }
        Checksum::None | Checksum::Unnecessary if shape.transport == Transport::Udp => {
            return Err(OffloadError::ChecksumMissing);
        }
        Checksum::None | Checksum::Unnecessary => {}
    }
    if gso.ecn && shape.transport == Transport::Udp {
        return Err(OffloadError::Ecn);
    }
    if packet.payload_len().div_ceil(usize::from(gso.size.get())) > segments_max {
        return Err(OffloadError::TooManySegments);
    }
    Ok((shape, outer))
}

/// Reads the headers of the packet to segment, and those of its tunnel.
fn read_shapes(
    packet: &Packet,
    headers: &Headers,
    gso: Gso,
) -> Result<(Shape, Option<Outer>), OffloadError> {
    let (bytes, whole) = (packet.headers(), OffloadError::Headers);
    let Some(tunnel) = gso.tunnel else {
        return Ok((Shape::of(headers, bytes.len()).ok_or(whole)?, None));
    };
    let Checksum::Partial { start, .. } = packet.offload().checksum else {
        return Err(OffloadError::ChecksumMissing);
    };
    let inner = Headers::read(bytes, tunnel.network_at.into()).ok_or(whole)?;
    let shape = Shape::of(&inner, bytes.len()).ok_or(whole)?;
    if shape.transport_at != usize::from(start) {
        return Err(whole);
    }
    let outer = Outer::new(headers, tunnel, shape).ok_or(OffloadError::Tunnel)?;
    Ok((shape, Some(outer)))
}

/// Maximum number of segments of a TCP super-packet.
pub const TCP_SEGMENTS_MAX: usize = PARTS_MAX;

/// Maximum number of datagrams of a UDP super-packet (`UDP_MAX_SEGMENTS`; kernel selftest
/// `net/udpgso.c`).
pub const UDP_SEGMENTS_MAX: usize = 128;

const _: () = assert!(UDP_SEGMENTS_MAX <= PARTS_MAX);
