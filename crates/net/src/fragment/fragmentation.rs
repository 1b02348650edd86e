//! Fragmentation of an outgoing datagram.
//!
//! Fragments share the pieces of the datagram; the first also has its transport header. Either all
//! fragments are made or none. A datagram that needs more than [`PARTS_MAX`] fragments is rejected.

use towpath_packet::packet::HEADER_BYTES;
use towpath_packet::{Ledger, Memory, Packet};

use crate::gso::{
    ChecksumError, IP_BYTES_MAX, PARTS_MAX, Splitter, complete_checksum, write_ipv4_checksum,
};
use crate::wire::field::{read_u16, write_u16};
use crate::wire::headers::Headers;
use crate::wire::{Protocol, ipv4, ipv6};

/// Error of [`fragment_ipv4`] and [`fragment_ipv6`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragmentError {
    /// The headers are not those of a whole IP packet, or their length field does not match it.
    Headers,
    /// The packet has DF set.
    DontFragment,
    /// The MTU is below the minimum, or leaves no room for the transport header.
    MtuTooSmall,
    /// More than [`PARTS_MAX`] fragments.
    TooManyFragments,
    /// The packet is a super-packet, which must be segmented first, or its checksum cannot be
    /// completed.
    Checksum(ChecksumError),
    /// Too few packet handles are free for all fragments.
    NoPackets,
}

/// Splits an IPv4 packet into fragments of at most `mtu` bytes and passes them to `out` in order;
/// returns how many. A packet that fits is passed on whole. A fragment is split into smaller ones.
///
/// On error the packet is returned and `out` has not been called. Its checksum may have been
/// completed.
pub fn fragment_ipv4(
    packet: Packet,
    mtu: usize,
    headers: &Headers,
    memory: &mut Memory,
    ledger: &Ledger,
    out: &mut impl FnMut(Packet),
) -> Result<usize, (FragmentError, Packet)> {
    match plan_ipv4(&packet, mtu, headers) {
        Ok(plan) => emit(packet, mtu, &plan, memory, ledger, out),
        Err(error) => Err((error, packet)),
    }
}

/// Splits an IPv6 packet of this host into fragments like [`fragment_ipv4`]; routers must not
/// fragment. `ident` must not have been used with these addresses during the lifetime of fragments.
pub fn fragment_ipv6(
    packet: Packet,
    mtu: usize,
    headers: &Headers,
    ident: u32,
    memory: &mut Memory,
    ledger: &Ledger,
    out: &mut impl FnMut(Packet),
) -> Result<usize, (FragmentError, Packet)> {
    match plan_ipv6(&packet, mtu, headers, ident) {
        Ok(plan) => emit(packet, mtu, &plan, memory, ledger, out),
        Err(error) => Err((error, packet)),
    }
}

/// How a packet is split.
struct Plan {
    ip_at: usize,
    /// End of the headers that every fragment repeats, from the start of the frame.
    repeated: usize,
    /// Bytes of the fragment header behind those.
    added: usize,
    version: VersionPlan,
}

enum VersionPlan {
    V4 {
        /// The packet's own offset in a datagram, if it is a fragment.
        offset: usize,
        more: bool,
    },
    V6 {
        ident: u32,
        /// Next header in the fragment header.
        next_header: Protocol,
        /// Offset of the Next Header field that precedes the fragment header.
        next_header_at: usize,
    },
}

fn plan_ipv4(packet: &Packet, mtu: usize, headers: &Headers) -> Result<Plan, FragmentError> {
    let Headers { ip_at, transport_at, .. } = *headers;
    let ip = packet.headers().get(ip_at..transport_at).ok_or(FragmentError::Headers)?;
    let ip_len = packet.len() - ip_at;
    let header = ipv4::Header::parse(ip, ip_len).map_err(|_| FragmentError::Headers)?;
    if usize::from(header.header_len) != ip.len() || usize::from(header.total_len) != ip_len {
        return Err(FragmentError::Headers);
    }
    if header.dont_fragment && ip_len > mtu {
        return Err(FragmentError::DontFragment);
    }
    if mtu < IPV4_MTU_MIN {
        return Err(FragmentError::MtuTooSmall);
    }
    let offset = usize::from(header.fragment_offset);
    let version = VersionPlan::V4 { offset, more: header.more_fragments };
    Ok(Plan { ip_at, repeated: transport_at, added: 0, version })
}

fn plan_ipv6(
    packet: &Packet,
    mtu: usize,
    headers: &Headers,
    ident: u32,
) -> Result<Plan, FragmentError> {
    let Headers { ip_at, transport_at, .. } = *headers;
    let ip = packet.headers().get(ip_at..transport_at).ok_or(FragmentError::Headers)?;
    let ip_len = packet.len() - ip_at;
    let header = ipv6::Header::parse(ip, ip_len).map_err(|_| FragmentError::Headers)?;
    let is_whole = ip_len == ipv6::HEADER_LEN + usize::from(header.payload_len);
    let repeated = if is_whole { find_repeated(ip) } else { None };
    let (end, next_header_at) = repeated.ok_or(FragmentError::Headers)?;
    if mtu < IPV6_MTU_MIN {
        return Err(FragmentError::MtuTooSmall);
    }
    let version = VersionPlan::V6 {
        ident,
        next_header: Protocol(ip[next_header_at]),
        next_header_at: ip_at + next_header_at,
    };
    Ok(Plan { ip_at, repeated: ip_at + end, added: ipv6::FRAGMENT_HEADER_LEN, version })
}

/// Finds the per-fragment headers (RFC 8200 §4.5) among an IPv6 header and its extension headers:
/// everything up to the routing header, else the hop-by-hop options. Returns their end and the
/// offset of their last Next Header field. `None` if the chain is invalid or has a fragment header.
fn find_repeated(ip: &[u8]) -> Option<(usize, usize)> {
    let mut found = (ipv6::HEADER_LEN, ipv6::at::NEXT_HEADER);
    let mut next_header_at = ipv6::at::NEXT_HEADER;
    let mut place = ipv6::HEADER_LEN;
    // Each iteration advances at least 8 bytes.
    loop {
        let protocol = Protocol(ip[next_header_at]);
        match protocol {
            Protocol::HOP_BY_HOP | Protocol::ROUTING | Protocol::DESTINATION_OPTIONS => {}
            Protocol::IPV6_FRAGMENT => return None,
            _ => return Some(found),
        }
        let end = place + (usize::from(*ip.get(place + 1)?) + 1) * 8;
        if end > ip.len() {
            return None;
        }
        next_header_at = place;
        place = end;
        if protocol != Protocol::DESTINATION_OPTIONS {
            found = (place, next_header_at);
        }
    }
}

fn emit(
    mut packet: Packet,
    mtu: usize,
    plan: &Plan,
    memory: &mut Memory,
    ledger: &Ledger,
    out: &mut impl FnMut(Packet),
) -> Result<usize, (FragmentError, Packet)> {
    if packet.len() - plan.ip_at <= mtu {
        out(packet);
        return Ok(1);
    }
    let (capacity, count) = match prepare(&mut packet, mtu, plan, memory, ledger) {
        Ok(found) => found,
        Err(error) => return Err((error, packet)),
    };
    let mut headers = [0; HEADER_BYTES];
    let headers = &mut headers[..packet.headers().len()];
    headers.copy_from_slice(packet.headers());
    let total = packet.len() - plan.repeated;
    let mut splitter = Splitter::new(packet.take_pieces(), capacity);
    for offset in (0..count).map(|index| index * capacity) {
        let len = capacity.min(total - offset);
        // The first fragment also has the rest of the headers.
        let own = if offset == 0 { &headers[plan.repeated..] } else { &[] };
        let mut fragment = memory.packet().expect("handles were reserved");
        splitter.split(len - own.len(), &mut fragment);
        let to = fragment.push_header(plan.repeated + plan.added + own.len());
        let (ip, rest) = to.split_at_mut(plan.repeated + plan.added);
        ip[..plan.repeated].copy_from_slice(&headers[..plan.repeated]);
        plan.write(ip, offset, len, offset + len < total);
        rest.copy_from_slice(own);
        out(fragment);
    }
    Ok(count)
}

/// Completes the checksum and checks that enough handles are free. Returns the bytes in each
/// fragment but the last, and the number of fragments.
fn prepare(
    packet: &mut Packet,
    mtu: usize,
    plan: &Plan,
    memory: &mut Memory,
    ledger: &Ledger,
) -> Result<(usize, usize), FragmentError> {
    let headers = packet.headers().len();
    let taken = plan.repeated - plan.ip_at + plan.added;
    let room = mtu.checked_sub(taken).ok_or(FragmentError::MtuTooSmall)?;
    let capacity = room - room % usize::from(ipv4::FRAGMENT_UNIT);
    let is_first_whole = headers - plan.repeated <= capacity;
    if capacity == 0 || !is_first_whole || headers + plan.added > HEADER_BYTES {
        return Err(FragmentError::MtuTooSmall);
    }
    if packet.offload().gso.is_some() {
        return Err(FragmentError::Checksum(ChecksumError::SuperPacket));
    }
    complete_checksum(packet, ledger).map_err(FragmentError::Checksum)?;
    let count = (packet.len() - plan.repeated).div_ceil(capacity);
    if count > PARTS_MAX {
        return Err(FragmentError::TooManyFragments);
    }
    if memory.packets.free_count() < count {
        return Err(FragmentError::NoPackets);
    }
    Ok((capacity, count))
}

impl Plan {
    /// Turns the packet's IP header in `headers` into that of the fragment with `len` bytes at
    /// `offset`; `more` says whether further fragments follow.
    fn write(&self, headers: &mut [u8], offset: usize, len: usize, more: bool) {
        match self.version {
            VersionPlan::V4 { offset: base, more: more_behind } => {
                let ip = &mut headers[self.ip_at..];
                write_u16(ip, ipv4::at::TOTAL_LEN, (ip.len() + len) as u16);
                let flags = read_u16(ip, ipv4::at::FRAGMENT) & IPV4_OTHER_FLAGS;
                let more = if more || more_behind { IPV4_MORE_FRAGMENTS } else { 0 };
                let units = (base + offset) as u16 / ipv4::FRAGMENT_UNIT;
                write_u16(ip, ipv4::at::FRAGMENT, flags | more | units);
                if offset > 0 {
                    blank_first_only_options(&mut ip[ipv4::HEADER_LEN..]);
                }
                write_ipv4_checksum(ip);
            }
            VersionPlan::V6 { ident, next_header, next_header_at } => {
                headers[next_header_at] = Protocol::IPV6_FRAGMENT.0;
                let payload = headers.len() - self.ip_at - ipv6::HEADER_LEN + len;
                write_u16(headers, self.ip_at + ipv6::at::PAYLOAD_LEN, payload as u16);
                let header = &mut headers[self.repeated..];
                ipv6::emit_fragment_header(header, next_header, offset as u16, more, ident);
            }
        }
    }
}

/// Options without the copied flag belong to the first fragment only (RFC 791 §3.1). They are
/// replaced by NOPs, so that the header keeps its length.
fn blank_first_only_options(options: &mut [u8]) {
    let mut place = 0;
    while let Some(&kind) = options.get(place) {
        let len = match (kind, options.get(place + 1)) {
            (OPTION_END, _) => break,
            (OPTION_NOP, _) => 1,
            (_, Some(&len)) => usize::from(len).max(1),
            (_, None) => break,
        };
        let end = options.len().min(place + len);
        if kind & OPTION_COPIED == 0 {
            options[place..end].fill(OPTION_NOP);
        }
        place = end;
    }
}

/// Minimum MTU of IPv4 (RFC 791 §3.2).
pub const IPV4_MTU_MIN: usize = 68;

/// Minimum MTU of IPv6 (RFC 8200 §5).
pub const IPV6_MTU_MIN: usize = 1280;

const IPV4_MORE_FRAGMENTS: u16 = 0x2000;
/// The reserved flag and Don't Fragment.
const IPV4_OTHER_FLAGS: u16 = 0xc000;
const OPTION_END: u8 = 0;
const OPTION_NOP: u8 = 1;
const OPTION_COPIED: u8 = 0x80;

// Lengths and offsets of fragments fit their fields, because those of the packet do.
const _: () = assert!(IP_BYTES_MAX <= u16::MAX as usize);
