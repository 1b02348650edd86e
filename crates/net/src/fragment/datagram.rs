//! One datagram in reassembly: its received fragments, and how they become a packet.
//!
//! Invariant: fragments are sorted by offset and do not overlap; none extends beyond the end, once
//! that is known. A datagram that violated a rule is *dead*: it holds nothing and accepts nothing.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};

use towpath_packet::packet::{HEADER_BYTES, PIECES_MAX};
use towpath_packet::pool::{LARGE_FRAME_BYTES, SMALL_FRAME_BYTES};
use towpath_packet::{Frame, Ledger, Memory, Packet, Piece, Site};

use super::drop_reason::DropReason;
use crate::gso::{IP_BYTES_MAX, write_ipv4_checksum};
use crate::wire::field::{read_u16, write_u16};
use crate::wire::{Protocol, icmpv6, ipv4, ipv6, tcp, udp};

/// Common properties of the fragments of one datagram. The identification is first, as it differs
/// most often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) ident: u32,
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    /// IPv4 only (RFC 791 §3.2); in IPv6 the first fragment determines it (RFC 8200 §4.5).
    pub(super) protocol: Option<Protocol>,
    /// Switch port at which it was received, so that guests cannot interfere with each other's
    /// datagrams.
    pub(super) ingress: Option<u16>,
}

/// A received fragment that is valid by itself.
pub(super) struct Fragment {
    pub(super) key: Key,
    /// Its headers end with the IP header or the fragment header; the payload has the length that
    /// the IP header states.
    pub(super) packet: Packet,
    /// Offset of its payload in the datagram, a multiple of 8.
    pub(super) offset: usize,
    /// More fragments follow.
    pub(super) more: bool,
    /// Protocol of the datagram.
    pub(super) protocol: Protocol,
    pub(super) header: Header,
    /// ECN field of the IP header.
    pub(super) ecn: u8,
}

impl Fragment {
    /// Bytes of memory that holding this fragment keeps from others. At least a small frame, so
    /// that a limit on bytes also limits packet handles.
    pub(super) fn cost(&self) -> usize {
        cost(&self.packet)
    }

    /// True if the fragment is the whole datagram.
    pub(super) fn is_all(&self) -> bool {
        self.offset == 0 && !self.more
    }

    /// The datagram of a fragment that is the whole datagram.
    pub(super) fn into_whole(self) -> Result<Packet, DropReason> {
        assert!(self.is_all());
        if self.is_tiny() {
            return Err(DropReason::Tiny);
        }
        let mut packet = self.packet;
        let mut headers = [0; HEADER_BYTES];
        let headers = &mut headers[..packet.headers().len()];
        headers.copy_from_slice(packet.headers());
        packet.pop_header(headers.len());
        write_headers(&mut packet, headers, self.header, self.ecn)?;
        Ok(packet)
    }

    fn len(&self) -> usize {
        self.packet.payload_len()
    }

    fn end(&self) -> usize {
        self.offset + self.len()
    }

    /// True if this is a first fragment without a complete transport header (RFC 1858 §3).
    fn is_tiny(&self) -> bool {
        let header_len_min = match self.protocol {
            Protocol::TCP => tcp::HEADER_LEN,
            Protocol::UDP => udp::HEADER_LEN,
            Protocol::ICMPV6 | Protocol::ICMP => icmpv6::HEADER_LEN,
            _ => 0,
        };
        self.offset == 0 && self.len() < header_len_min
    }
}

/// Offsets of the fields that reassembly changes, from the start of the frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) ip_at: usize,
    /// IPv6: offset of the Next Header field that precedes the fragment header.
    pub(super) next_header_at: usize,
}

/// A held fragment.
pub(super) struct Part {
    offset: usize,
    packet: Packet,
}

impl Part {
    fn end(&self) -> usize {
        self.offset + self.packet.payload_len()
    }
}

/// A datagram in reassembly, or an unused entry.
pub(super) struct Datagram {
    pub(super) key: Key,
    /// Sum of the [`cost`] of all parts.
    pub(super) held: usize,
    parts: Vec<Part>,
    /// Offsets in the first fragment.
    header: Header,
    /// Payload bytes of the datagram; known once the last fragment was received.
    total: Option<usize>,
    /// Payload bytes received.
    received: usize,
    /// Bit set of the ECN codepoints received.
    ecn_seen: u8,
    /// ECN field of the first fragment.
    first_ecn: u8,
    dead: bool,
}

impl Datagram {
    /// An unused entry with memory for [`FRAGMENTS_MAX`] fragments.
    pub(super) fn unused() -> Self {
        Self {
            key: Key {
                ident: 0,
                source: Ipv4Addr::UNSPECIFIED.into(),
                destination: Ipv4Addr::UNSPECIFIED.into(),
                protocol: None,
                ingress: None,
            },
            held: 0,
            parts: Vec::with_capacity(FRAGMENTS_MAX),
            header: Header { ip_at: 0, next_header_at: 0 },
            total: None,
            received: 0,
            ecn_seen: 0,
            first_ecn: 0,
            dead: false,
        }
    }

    /// Assigns an unused entry to `key`.
    pub(super) fn begin(&mut self, key: Key) {
        debug_assert!(self.parts.is_empty() && self.held == 0);
        self.key = key;
        (self.total, self.received, self.ecn_seen, self.dead) = (None, 0, 0, false);
    }

    /// Drops all held fragments; the entry is then unused.
    pub(super) fn end(&mut self) {
        self.parts.clear();
        self.held = 0;
    }

    /// Adds a fragment. After an error other than a duplicate the datagram is dead.
    pub(super) fn insert(&mut self, fragment: Fragment) -> Result<(), DropReason> {
        if self.dead {
            return Err(DropReason::Dead);
        }
        match self.place_of(&fragment) {
            Ok(place) => {
                if !fragment.more {
                    self.total = Some(fragment.end());
                }
                if fragment.offset == 0 {
                    self.header = fragment.header;
                    self.first_ecn = fragment.ecn;
                }
                self.held += fragment.cost();
                self.received += fragment.len();
                self.ecn_seen |= 1 << fragment.ecn;
                let part = Part { offset: fragment.offset, packet: fragment.packet };
                self.parts.insert(place, part);
                Ok(())
            }
            Err(DropReason::Duplicate) => Err(DropReason::Duplicate),
            Err(reason) => {
                self.kill();
                Err(reason)
            }
        }
    }

    /// True if all bytes were received.
    pub(super) fn is_whole(&self) -> bool {
        self.total == Some(self.received)
    }

    /// Drops all held fragments and makes the datagram dead.
    pub(super) fn kill(&mut self) {
        self.end();
        self.dead = true;
    }

    /// Takes the first fragment, if it was received.
    pub(super) fn take_first(&mut self) -> Option<Packet> {
        let is_there = self.parts.first().is_some_and(|part| part.offset == 0);
        is_there.then(|| self.parts.remove(0).packet)
    }

    /// Builds the whole datagram as one packet.
    pub(super) fn assemble(
        &self,
        memory: &mut Memory,
        ledger: &Ledger,
    ) -> Result<Packet, DropReason> {
        assert!(self.is_whole());
        let mut packet = memory.packet().ok_or(DropReason::NoMemory)?;
        let kept = self.count_kept();
        for piece in self.pieces().take(kept) {
            packet.push_piece(piece.clone()).expect("fewer than a packet may have");
        }
        self.squeeze(kept, &mut packet, memory, ledger).ok_or(DropReason::NoMemory)?;
        assert_eq!(packet.payload_len(), self.received);
        let first = &self.parts[0].packet;
        packet.set_ingress(first.ingress());
        let first = first.headers();
        write_headers(&mut packet, first, self.header, self.ecn()?)?;
        Ok(packet)
    }

    /// Index of a fragment among the parts, or the reason to drop it.
    fn place_of(&self, fragment: &Fragment) -> Result<usize, DropReason> {
        if fragment.is_tiny() {
            return Err(DropReason::Tiny);
        }
        let (offset, end) = (fragment.offset, fragment.end());
        let end_agrees = match (fragment.more, self.total) {
            (true, Some(total)) => end < total,
            (true, None) => true,
            (false, Some(total)) => end == total,
            (false, None) => self.parts.last().is_none_or(|last| last.end() < end),
        };
        if !end_agrees {
            return Err(DropReason::EndConflict);
        }
        let place = self.parts.partition_point(|part| part.offset < offset);
        let next = self.parts.get(place);
        if next.is_some_and(|next| next.offset == offset && next.end() == end) {
            return Err(DropReason::Duplicate);
        }
        let before = place.checked_sub(1).map(|place| &self.parts[place]);
        if before.is_some_and(|before| before.end() > offset)
            || next.is_some_and(|next| next.offset < end)
        {
            return Err(DropReason::Overlap);
        }
        if self.parts.len() == FRAGMENTS_MAX {
            return Err(DropReason::TooManyFragments);
        }
        Ok(place)
    }

    fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.parts.iter().flat_map(|part| part.packet.pieces())
    }

    /// Number of pieces to keep as references: all, or as many as leave room for frames with the
    /// rest.
    fn count_kept(&self) -> usize {
        let (mut kept_bytes, mut best) = (0, 0);
        for (index, piece) in self.pieces().enumerate() {
            if index == REASSEMBLED_PIECES_MAX {
                return best;
            }
            kept_bytes += piece.len();
            let frames = (self.received - kept_bytes).div_ceil(LARGE_FRAME_BYTES);
            if index + 1 + frames <= REASSEMBLED_PIECES_MAX {
                best = index + 1;
            }
        }
        self.pieces().count()
    }

    /// Copies all pieces but the first `kept` into frames and appends these to `packet`.
    fn squeeze(
        &self,
        kept: usize,
        packet: &mut Packet,
        memory: &mut Memory,
        ledger: &Ledger,
    ) -> Option<()> {
        let mut left = self.received - packet.payload_len();
        let mut filling: Option<(Frame, usize)> = None;
        for piece in self.pieces().skip(kept) {
            let mut piece = piece.clone();
            while !piece.is_empty() {
                let (mut frame, filled) = match filling.take() {
                    Some(filling) => filling,
                    None => (take_frame(memory, left)?, 0),
                };
                let copied = ledger.copy(Site::Squeeze, &piece, &mut frame[filled..]);
                piece.advance(copied);
                left -= copied;
                let filled = filled + copied;
                if left == 0 || filled == frame.len() {
                    packet.push_piece(frame.freeze(filled)).expect("frames were counted");
                } else {
                    filling = Some((frame, filled));
                }
            }
        }
        Some(())
    }

    /// ECN field of the whole datagram (RFC 3168 §5.3): CE on one fragment applies to all, unless
    /// another fragment is not ECN-capable.
    fn ecn(&self) -> Result<u8, DropReason> {
        if self.ecn_seen & 1 << ECN_CE == 0 {
            return Ok(self.first_ecn);
        }
        if self.ecn_seen & 1 << ECN_NOT_ECT == 0 { Ok(ECN_CE) } else { Err(DropReason::Ecn) }
    }
}

/// Writes the first fragment's headers in front of the payload of the whole datagram, without
/// fragmentation fields.
fn write_headers(
    packet: &mut Packet,
    first: &[u8],
    header: Header,
    ecn: u8,
) -> Result<(), DropReason> {
    let Header { ip_at, next_header_at } = header;
    let payload = packet.payload_len();
    if first[ip_at] >> 4 == 4 {
        let headers = packet.push_header(first.len());
        headers.copy_from_slice(first);
        let ip = &mut headers[ip_at..];
        let total = u16::try_from(ip.len() + payload).map_err(|_| DropReason::TooLong)?;
        write_u16(ip, ipv4::at::TOTAL_LEN, total);
        let flags = read_u16(ip, ipv4::at::FRAGMENT) & IPV4_KEPT_FLAGS;
        write_u16(ip, ipv4::at::FRAGMENT, flags);
        ip[ipv4::at::TOS] = ip[ipv4::at::TOS] & !ECN_MASK | ecn;
        write_ipv4_checksum(ip);
    } else {
        let fragment_at = first.len() - ipv6::FRAGMENT_HEADER_LEN;
        let headers = packet.push_header(fragment_at);
        headers.copy_from_slice(&first[..fragment_at]);
        headers[next_header_at] = first[fragment_at];
        let total = fragment_at - ip_at - ipv6::HEADER_LEN + payload;
        let total = u16::try_from(total).map_err(|_| DropReason::TooLong)?;
        write_u16(headers, ip_at + ipv6::at::PAYLOAD_LEN, total);
        let class_at = ip_at + ipv6::at::ECN;
        headers[class_at] = headers[class_at] & !(ECN_MASK << 4) | ecn << 4;
    }
    Ok(())
}

/// Cost of holding a packet: see [`Fragment::cost`].
fn cost(packet: &Packet) -> usize {
    packet.pieces().map(Piece::held).sum::<usize>().max(SMALL_FRAME_BYTES)
}

/// Takes a frame for `bytes`, or a large frame if they do not fit.
fn take_frame(memory: &mut Memory, bytes: usize) -> Option<Frame> {
    let small = if bytes <= SMALL_FRAME_BYTES { memory.small.take() } else { None };
    small.or_else(|| memory.large.take())
}

/// Maximum number of fragments of a datagram. The largest datagram over the smallest MTU in
/// practice, 576 bytes, has 65,515 / 552 = 119.
pub const FRAGMENTS_MAX: usize = 128;

/// Maximum number of pieces of a reassembled datagram: one less than a packet may have, so that its
/// headers can become a piece too.
pub const REASSEMBLED_PIECES_MAX: usize = PIECES_MAX - 1;

// Squeezing always succeeds: a whole datagram fits these frames.
const _: () = assert!(IP_BYTES_MAX.div_ceil(LARGE_FRAME_BYTES) <= REASSEMBLED_PIECES_MAX);

/// The reserved flag and Don't Fragment.
const IPV4_KEPT_FLAGS: u16 = 0xc000;
const ECN_MASK: u8 = 0b11;
const ECN_NOT_ECT: u8 = 0b00;
const ECN_CE: u8 = 0b11;
