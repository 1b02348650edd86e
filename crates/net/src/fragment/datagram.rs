//! One datagram in the making: which bytes are there, and how they become a packet.
//!
//! Invariant: fragments are sorted by offset and do not overlap; none reaches beyond the end, once
//! that is known. A datagram that broke a rule is *dead*: it holds nothing and takes nothing.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};

use towpath_packet::packet::{HEADER_BYTES, PIECES_MAX};
use towpath_packet::pool::{LARGE_FRAME_BYTES, SMALL_FRAME_BYTES};
use towpath_packet::{Frame, Ledger, Memory, Packet, Piece, Site};

use super::drop_reason::DropReason;
use crate::gso::{IP_BYTES_MAX, at, read_u16, write_ipv4_checksum, write_u16};
use crate::wire::{Protocol, icmpv6, ipv6, tcp, udp};

/// What the fragments of one datagram have in common. The identification comes first, because it
/// differs most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) ident: u32,
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    /// IPv4 only (RFC 791 §3.2); in IPv6 the first fragment decides (RFC 8200 §4.5).
    pub(super) protocol: Option<Protocol>,
    /// The port of a switch by which it came: guests cannot spoil each other's datagrams.
    pub(super) ingress: Option<u16>,
}

/// A received fragment, checked by itself.
pub(super) struct Fragment {
    pub(super) key: Key,
    /// Headers up to the end of the IP header or the fragment header; as many payload bytes as the
    /// IP header says.
    pub(super) packet: Packet,
    /// Where its payload belongs, a multiple of 8.
    pub(super) offset: usize,
    /// More fragments follow.
    pub(super) more: bool,
    /// What the datagram carries.
    pub(super) protocol: Protocol,
    pub(super) header: Header,
    /// ECN field of the IP header.
    pub(super) ecn: u8,
}

impl Fragment {
    /// Bytes of memory that holding this fragment keeps from others. At least a small frame, so
    /// that a bound on bytes is one on packet handles.
    pub(super) fn cost(&self) -> usize {
        cost(&self.packet)
    }

    /// Whether this is all of its datagram.
    pub(super) fn is_all(&self) -> bool {
        self.offset == 0 && !self.more
    }

    /// The datagram that this is all of.
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

    /// Whether this is a first fragment without a whole transport header (RFC 1858 §3).
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

/// Where the fields lie that reassembly changes, from the start of the frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) ip_at: usize,
    /// IPv6: place of the Next Header field that announces the fragment header.
    pub(super) next_header_at: usize,
}

/// A fragment that is held.
pub(super) struct Part {
    offset: usize,
    packet: Packet,
}

impl Part {
    fn end(&self) -> usize {
        self.offset + self.packet.payload_len()
    }
}

/// A datagram in the making, or memory for one.
pub(super) struct Datagram {
    pub(super) key: Key,
    /// What [`cost`] says of all parts.
    pub(super) held: usize,
    parts: Vec<Part>,
    /// Of the first fragment.
    header: Header,
    /// Payload bytes of the datagram, once the last fragment is there.
    total: Option<usize>,
    /// Payload bytes that are there.
    received: usize,
    /// One bit for each ECN codepoint seen.
    ecn_seen: u8,
    /// ECN field of the first fragment.
    first_ecn: u8,
    dead: bool,
}

impl Datagram {
    /// Memory for a datagram of [`FRAGMENTS_MAX`] fragments, of which nothing is there.
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

    /// An unused one becomes that of `key`.
    pub(super) fn begin(&mut self, key: Key) {
        debug_assert!(self.parts.is_empty() && self.held == 0);
        self.key = key;
        (self.total, self.received, self.ecn_seen, self.dead) = (None, 0, 0, false);
    }

    /// Drops what is held; it is unused from now on.
    pub(super) fn end(&mut self) {
        self.parts.clear();
        self.held = 0;
    }

    /// Takes a fragment in; whoever is told a reason other than a duplicate finds the datagram
    /// dead.
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

    /// Whether all bytes are there.
    pub(super) fn is_whole(&self) -> bool {
        self.total == Some(self.received)
    }

    /// Drops what is held and takes nothing more.
    pub(super) fn kill(&mut self) {
        self.end();
        self.dead = true;
    }

    /// The first fragment, if it is there.
    pub(super) fn take_first(&mut self) -> Option<Packet> {
        let is_there = self.parts.first().is_some_and(|part| part.offset == 0);
        is_there.then(|| self.parts.remove(0).packet)
    }

    /// The whole datagram as one packet.
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

    /// Where a fragment goes among the parts, or why it does not.
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

    /// How many pieces stay references: all, or as many as leave room for frames with the rest.
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

    /// Copies all pieces but the first `kept` into frames, which go to the end of `packet`.
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

    /// ECN field of the whole (RFC 3168 §5.3): congestion on one fragment is congestion on all,
    /// unless another says that its sender does not know ECN.
    fn ecn(&self) -> Result<u8, DropReason> {
        if self.ecn_seen & 1 << ECN_CE == 0 {
            return Ok(self.first_ecn);
        }
        if self.ecn_seen & 1 << ECN_NOT_ECT == 0 { Ok(ECN_CE) } else { Err(DropReason::Ecn) }
    }
}

/// Puts the headers of a first fragment before the payload of the whole, without what made them
/// those of a fragment.
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
        write_u16(ip, at::IPV4_TOTAL_LEN, total);
        let flags = read_u16(ip, at::IPV4_FRAGMENT) & IPV4_KEPT_FLAGS;
        write_u16(ip, at::IPV4_FRAGMENT, flags);
        ip[at::IPV4_TOS] = ip[at::IPV4_TOS] & !ECN_MASK | ecn;
        write_ipv4_checksum(ip);
    } else {
        let fragment_at = first.len() - ipv6::FRAGMENT_HEADER_LEN;
        let headers = packet.push_header(fragment_at);
        headers.copy_from_slice(&first[..fragment_at]);
        headers[next_header_at] = first[fragment_at];
        let total = fragment_at - ip_at - ipv6::HEADER_LEN + payload;
        let total = u16::try_from(total).map_err(|_| DropReason::TooLong)?;
        write_u16(headers, ip_at + at::IPV6_PAYLOAD_LEN, total);
        let class_at = ip_at + at::IPV6_ECN;
        headers[class_at] = headers[class_at] & !(ECN_MASK << 4) | ecn << 4;
    }
    Ok(())
}

/// See [`Fragment::cost`].
fn cost(packet: &Packet) -> usize {
    packet.pieces().map(Piece::held).sum::<usize>().max(SMALL_FRAME_BYTES)
}

/// A frame for `bytes`, or for as much as a large one holds.
fn take_frame(memory: &mut Memory, bytes: usize) -> Option<Frame> {
    let small = if bytes <= SMALL_FRAME_BYTES { memory.small.take() } else { None };
    small.or_else(|| memory.large.take())
}

/// Most fragments of a datagram. The largest datagram over the smallest link that is still met, 576
/// bytes, has 65,515 / 552 = 119.
pub const FRAGMENTS_MAX: usize = 128;

/// Most pieces of a datagram put together: one less than a packet may have, so that its headers can
/// become one, too.
pub const REASSEMBLED_PIECES_MAX: usize = PIECES_MAX - 1;

// Squeezing always succeeds: all of a datagram fits frames alone.
const _: () = assert!(IP_BYTES_MAX.div_ceil(LARGE_FRAME_BYTES) <= REASSEMBLED_PIECES_MAX);

/// The reserved flag and Don't Fragment.
const IPV4_KEPT_FLAGS: u16 = 0xc000;
const ECN_MASK: u8 = 0b11;
const ECN_NOT_ECT: u8 = 0b00;
const ECN_CE: u8 = 0b11;
