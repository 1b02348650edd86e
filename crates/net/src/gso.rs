//! Segmentation in software, and checksums for devices that make none.
//!
//! # Theory of operation
//!
//! [`segment`] cuts a super-packet into the packets that a device with TSO or USO would have sent.
//! Each gets a private copy of the headers, with lengths, sequence number, identification and flags
//! of its own, and pieces of the same loans: no payload byte is copied, and each lender is told
//! once, after the last segment that holds a piece of his is gone.
//!
//! The fields of a stranger's super-packet are checked first ([`check_offload`]) and then written
//! anew, not adjusted: lengths and pseudo-headers come from the bytes that are there.
//!
//! What is cut may be the packet in a UDP tunnel (`Gso::tunnel`). Then each segment gets the outer
//! headers as well, with lengths, identification and checksums of its own.
//!
//! # Limits
//!
//! [`IP_BYTES_MAX`] bytes of IP packet, [`TCP_SEGMENTS_MAX`] or [`UDP_SEGMENTS_MAX`] segments; what
//! exceeds them is refused and handed back. Handles are reserved before the first segment leaves:
//! either all segments come out, or none and the packet is handed back.
//!
//! RFC 9293 §3.1 (TCP), RFC 768 (UDP), RFC 791, RFC 8200, RFC 3168 §6.1.2 (CWR), RFC 6864
//! (identification); the behaviour of Linux's GSO.

mod claims;
mod cut;
mod own;
mod shape;
mod sum;
mod tunnel;

use core::fmt;

use towpath_packet::packet::HEADER_BYTES;
use towpath_packet::{Checksum, Ledger, Memory, Offload, Packet};

use crate::checksum::Sum;
use crate::wire::tcp::Flags;
use crate::wire::{ipv4, tcp};
use claims::Whole;

pub use claims::{OffloadError, TCP_SEGMENTS_MAX, UDP_SEGMENTS_MAX, check_offload};
pub(crate) use cut::Cutter;
pub use cut::PARTS_MAX;
pub(crate) use own::{orphan_payload, own_payload};
pub use shape::{IP_BYTES_MAX, Layout};
pub(crate) use shape::{
    Shape, Transport, Version, at, read, read_u16, write_ipv4_checksum, write_u16,
};
pub(crate) use sum::sum_is_right;
pub use sum::{ChecksumError, complete_checksum, transport_sum, verify_checksum};
pub(crate) use tunnel::headers_end;

/// What becomes of the transport checksum of each segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksums {
    /// Made here, over the pieces.
    Complete,
    /// Left to a device: the field holds the pseudo-header's sum.
    LeavePartial,
}

/// Why a packet was not segmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentError {
    /// Its offload fields are wrong.
    Offload(OffloadError),
    /// It is plain, and its checksum cannot be completed.
    Checksum(ChecksumError),
    /// There are not enough packet handles for all segments.
    NoPackets,
}

impl fmt::Display for SegmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Offload(error) => error.fmt(f),
            Self::Checksum(error) => error.fmt(f),
            Self::NoPackets => f.write_str("not enough packets for all segments"),
        }
    }
}

impl core::error::Error for SegmentError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Offload(error) => Some(error),
            Self::Checksum(error) => Some(error),
            Self::NoPackets => None,
        }
    }
}

/// Cuts a super-packet into segments, handed to `out` in order; returns how many. A packet that is
/// no super-packet goes to `out` as it is, with its partial checksum completed if that was asked.
///
/// On error the packet comes back and `out` has seen nothing. Its offload fields may have lost a
/// segmentation that one packet had no need of.
pub fn segment(
    mut packet: Packet,
    memory: &mut Memory,
    ledger: &Ledger,
    layout: Layout,
    checksums: Checksums,
    out: &mut impl FnMut(Packet),
) -> Result<usize, (SegmentError, Packet)> {
    let Whole { shape, outer, gso } = match claims::check(&mut packet, layout) {
        Ok(Some(found)) => found,
        Ok(None) => return pass(packet, ledger, checksums, out),
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
    let mut template = Template::new(headers, shape);
    template.prepare(headers, size);
    let outer = outer.map(|outer| (outer, Template::new(headers, outer.shape)));
    let mut cutter = Cutter::new(packet.take_pieces(), size);
    for index in 0..count {
        let offset = index * size;
        let part =
            Part { index, offset, len: size.min(payload - offset), last: index + 1 == count };
        let mut segment = memory.packet().expect("handles were reserved");
        cutter.cut(part.len, &mut segment);
        let headers = segment.push_header_of(headers);
        template.patch(&part, headers);
        if let Some((outer, template)) = &outer {
            outer.patch(template, &part, headers);
        }
        segment.set_offload(Offload { checksum: partial(&shape), gso: None });
        if checksums == Checksums::Complete {
            complete_checksum(&mut segment, ledger).expect("the field is in the headers");
        }
        out(segment);
    }
    Ok(count)
}

/// [`segment`] for a packet that is one segment.
fn pass(
    mut packet: Packet,
    ledger: &Ledger,
    checksums: Checksums,
    out: &mut impl FnMut(Packet),
) -> Result<usize, (SegmentError, Packet)> {
    if checksums == Checksums::Complete
        && let Err(error) = complete_checksum(&mut packet, ledger)
    {
        return Err((SegmentError::Checksum(error), packet));
    }
    out(packet);
    Ok(1)
}

/// One segment of a super-packet.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    /// Which one, from zero.
    pub(crate) index: usize,
    /// Where its payload begins in the whole.
    pub(crate) offset: usize,
    /// Bytes of its payload.
    pub(crate) len: usize,
    /// None follows.
    pub(crate) last: bool,
}

/// Writes the headers of segments after those of the whole. Coalescing uses it too, to tell whether
/// a packet is what segmentation would make of the whole.
pub(crate) struct Template {
    shape: Shape,
    /// The pseudo-header's sum without the length.
    pseudo_header: Sum,
    /// The sum of an IPv4 header without length, identification and checksum.
    ip_header: Sum,
    /// The whole's headers are those of a segment with so much payload already.
    prepared: Option<usize>,
}

impl Template {
    /// For the super-packet with these headers.
    pub(crate) fn new(headers: &[u8], shape: Shape) -> Self {
        let pseudo_header = shape.pseudo_header(headers, 0);
        Self { shape, pseudo_header, ip_header: shape.ipv4_sum(headers), prepared: None }
    }

    /// Writes to the whole's headers what segments with `payload` bytes have in common, as most
    /// have that many: each of them then gets the rest only.
    fn prepare(&mut self, headers: &mut [u8], payload: usize) {
        self.fit(payload, headers);
        self.prepared = Some(payload);
    }

    /// Makes `to`, a copy of the whole's headers, those of `part`; the transport checksum is
    /// partial.
    pub(crate) fn patch(&self, part: &Part, to: &mut [u8]) {
        if self.prepared != Some(part.len) {
            self.fit(part.len, to);
        }
        let shape = &self.shape;
        if shape.version == Version::V4 {
            // Identifications count on from the first; they are 16 bits wide and wrap.
            let ip = &mut to[shape.ip_at..][..ipv4::HEADER_LEN];
            let ident = read_u16(ip, at::IPV4_IDENT).wrapping_add(part.index as u16);
            write_u16(ip, at::IPV4_IDENT, ident);
            let mut sum = self.ip_header;
            sum.add_u16(shape.ip_len(part.len) as u16);
            sum.add_u16(ident);
            write_u16(ip, at::IPV4_CHECKSUM, sum.finish());
        }
        if shape.transport == Transport::Tcp {
            write_tcp(&mut to[shape.transport_at..][..tcp::HEADER_LEN], part);
        }
    }

    /// Writes lengths and the partial checksum of a segment with `payload` bytes.
    fn fit(&self, payload: usize, to: &mut [u8]) {
        self.shape.write_lengths(to, payload);
        let mut sum = self.pseudo_header;
        sum.add_u32(self.shape.transport_len(payload) as u32);
        write_u16(to, self.shape.checksum_at(), sum.fold());
    }
}

/// A partial checksum in its own place. Both numbers are offsets into [`HEADER_BYTES`].
pub(crate) fn partial(shape: &Shape) -> Checksum {
    Checksum::Partial { start: shape.transport_at as u16, offset: shape.checksum_offset() as u16 }
}

/// Sequence number and flags of one segment.
fn write_tcp(header: &mut [u8], part: &Part) {
    let sequence = u32::from_be_bytes(read(header, at::TCP_SEQUENCE));
    let sequence = sequence.wrapping_add(part.offset as u32);
    header[at::TCP_SEQUENCE..at::TCP_SEQUENCE + 4].copy_from_slice(&sequence.to_be_bytes());
    let mut flags = Flags(header[at::TCP_FLAGS]);
    if part.index > 0 {
        // RFC 3168 §6.1.2: CWR is said once.
        flags.remove(Flags::CWR);
    }
    if !part.last {
        flags.remove(Flags::FIN | Flags::PSH);
    }
    header[at::TCP_FLAGS] = flags.0;
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
