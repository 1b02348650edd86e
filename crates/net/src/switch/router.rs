//! Rejects packets that only a router or a DHCP server may send. A spoofed packet of this kind
//! would redirect the traffic of stations that receive it.
//!
//! These are IPv6 router advertisements and redirects (RFC 6105), and packets to the ports of DHCP
//! clients (RFC 7610 §4), whatever their source port, as clients check only the destination port.
//! Packets that cannot be parsed up to there are dropped too (RFC 7113 §2.1). Fragments other than
//! the first are not checked: they are useless without the first.

use super::frame::Frame;
use crate::counters::PortDrop;
use crate::wire::ethernet::EtherType;
use crate::wire::field::read_u16;
use crate::wire::headers::Part;
use crate::wire::icmpv6::{REDIRECT, ROUTER_ADVERTISEMENT};
use crate::wire::{Protocol, ipv4, ipv6, udp};

/// Checks the first bytes of a frame; returns how many of them the verdict depends on.
#[inline]
pub(super) fn check(bytes: &[u8], frame: &Frame) -> Result<usize, PortDrop> {
    let fixed_len = match frame.ethertype {
        EtherType::IPV4 => ipv4::HEADER_LEN,
        EtherType::IPV6 => ipv6::HEADER_LEN,
        _ => return Ok(frame.network_at),
    };
    let fixed = bytes[frame.network_at..].get(..fixed_len).ok_or(PortDrop::RouterRefused)?;
    let is_harmless = match frame.ethertype {
        EtherType::IPV4 => Protocol(fixed[ipv4::at::PROTOCOL]) != Protocol::UDP,
        _ => Protocol(fixed[ipv6::at::NEXT_HEADER]) == Protocol::TCP,
    };
    if is_harmless {
        return Ok(frame.network_at + fixed_len);
    }
    // Most datagrams: their ports are found at a fixed place.
    if frame.ethertype == EtherType::IPV4 && is_plain(fixed) {
        let at = frame.network_at + fixed_len;
        bytes[at..].get(..udp::HEADER_LEN).ok_or(PortDrop::RouterRefused)?;
        return check_ports(bytes, at);
    }
    check_located(bytes, frame)
}

/// Checks a packet whose transport header has to be found.
fn check_located(bytes: &[u8], frame: &Frame) -> Result<usize, PortDrop> {
    let headers = frame.headers(bytes).ok_or(PortDrop::RouterRefused)?;
    if headers.part == Part::Later {
        return Ok(headers.end);
    }
    let at = headers.transport_at;
    let transport = &bytes[at..];
    match headers.protocol {
        Protocol::UDP => check_ports(bytes, at),
        Protocol::ICMPV6 => match transport.first() {
            Some(&(ROUTER_ADVERTISEMENT | REDIRECT)) | None => Err(PortDrop::RouterRefused),
            Some(_) => Ok(at + 1),
        },
        _ => Ok(headers.end),
    }
}

/// True if an IPv4 header is neither longer than this nor that of a fragment.
fn is_plain(fixed: &[u8]) -> bool {
    let fragment = read_u16(fixed, ipv4::at::FRAGMENT);
    ipv4::header_len(fixed) == Some(ipv4::HEADER_LEN)
        && fragment & (ipv4::FRAGMENT_OFFSET_MASK | ipv4::MORE_FRAGMENTS) == 0
}

/// Checks the ports of a datagram whose header is at `at`.
fn check_ports(bytes: &[u8], at: usize) -> Result<usize, PortDrop> {
    let ports = bytes[at..].first_chunk::<4>().ok_or(PortDrop::RouterRefused)?;
    let to = u16::from_be_bytes([ports[2], ports[3]]);
    let is_client = matches!(to, DHCPV4_CLIENT | DHCPV6_CLIENT);
    if is_client { Err(PortDrop::RouterRefused) } else { Ok(at + ports.len()) }
}

/// UDP ports of DHCP clients (RFC 2131 §4.1, RFC 8415 §7.2).
const DHCPV4_CLIENT: u16 = 68;
const DHCPV6_CLIENT: u16 = 546;
