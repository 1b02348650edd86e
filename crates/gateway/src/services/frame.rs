//! Frames of the services: messages are parsed from one private copy, and answers are built.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use towpath_net::checksum;
use towpath_net::stack::Context;
use towpath_net::wire::ethernet::{self, EtherType};
use towpath_net::wire::{MacAddr, Protocol, ipv4, ipv6, udp};
use towpath_packet::pool::SMALL_FRAME_BYTES;
use towpath_packet::{Burst, Checksum, Packet};

use super::wire::{dhcpv4, dhcpv6};
use crate::resolv::DNS_PORT;

/// Longest frame that is handled: messages to servers are small, and an answer fits the same size.
const FRAME_BYTES_MAX: usize = SMALL_FRAME_BYTES;

/// Hop limit that neighbour discovery requires (RFC 4861 §6.1.1).
const DISCOVERY_HOP_LIMIT: u8 = 255;
const TTL: u8 = 64;
const ROUTER_SOLICITATION: u8 = 133;

/// Returns true if a frame with these headers may be for the services: IPv4, or IPv6 without
/// extension headers, with UDP to one of their ports or a router solicitation. For TCP this takes
/// two comparisons.
pub fn concerns(headers: &[u8]) -> bool {
    is_for_services(headers, |port| port == DNS_PORT)
}

/// Returns true if a frame with these headers may ask for addresses or a router: DHCP, or a router
/// solicitation.
pub fn asks_for_configuration(headers: &[u8]) -> bool {
    is_for_services(headers, |_| false)
}

/// `is_more`: a further UDP port is meant, too.
fn is_for_services(headers: &[u8], is_more: impl Fn(u16) -> bool) -> bool {
    let byte = |at: usize| headers.get(at).copied().unwrap_or_default();
    let port = |at: usize| u16::from_be_bytes([byte(at), byte(at + 1)]);
    match EtherType(port(at::ETHERTYPE)) {
        EtherType::IPV4 if byte(at::V4_PROTOCOL) == Protocol::UDP.0 => {
            let udp_at = at::IP + usize::from(byte(at::IP) & 0x0f) * 4;
            let to = port(udp_at + 2);
            to == dhcpv4::SERVER_PORT || is_more(to)
        }
        EtherType::IPV6 => match Protocol(byte(at::V6_NEXT_HEADER)) {
            Protocol::UDP => {
                let to = port(at::IP + ipv6::HEADER_LEN + 2);
                to == dhcpv6::SERVER_PORT || is_more(to)
            }
            Protocol::ICMPV6 => byte(at::IP + ipv6::HEADER_LEN) == ROUTER_SOLICITATION,
            _ => false,
        },
        _ => false,
    }
}

/// Copies a received frame into `to`, once; returns false if it is too long.
pub(super) fn copy(packet: &Packet, cx: &Context<'_>, to: &mut Vec<u8>) -> bool {
    to.clear();
    if packet.len() > FRAME_BYTES_MAX {
        return false;
    }
    to.resize(packet.len(), 0);
    packet.copy_to(to, cx.ledger);
    true
}

/// A message to the services.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub(super) mac: MacAddr,
    pub(super) destination_mac: MacAddr,
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) source_port: u16,
    /// Zero for a router solicitation.
    pub(super) destination_port: u16,
    pub(super) payload: &'a [u8],
}

impl<'a> Request<'a> {
    /// Parses a copied frame. `offload` says whether its checksum is still to be completed.
    /// Returns `None` if the frame is malformed or a fragment.
    pub(super) fn parse(frame: &'a [u8], offload: Checksum) -> Option<Self> {
        let ethernet = ethernet::Header::parse(frame).ok()?;
        let ip = &frame[at::IP..];
        let (source, destination, protocol, hop_limit, payload): (IpAddr, IpAddr, _, _, _) =
            match ethernet.ethertype {
                EtherType::IPV4 => {
                    let header = ipv4::Header::parse(ip, ip.len()).ok()?;
                    let payload =
                        ip.get(usize::from(header.header_len)..usize::from(header.total_len))?;
                    if header.is_fragment() || header.has_source_route {
                        return None;
                    }
                    let (from, to) = (header.source.into(), header.destination.into());
                    (from, to, header.protocol, header.ttl, payload)
                }
                EtherType::IPV6 => {
                    let header = ipv6::Header::parse(ip, ip.len()).ok()?;
                    let end = ipv6::HEADER_LEN + usize::from(header.payload_len);
                    let payload = ip.get(ipv6::HEADER_LEN..end)?;
                    let (from, to) = (header.source.into(), header.destination.into());
                    (from, to, header.next_header, header.hop_limit, payload)
                }
                _ => return None,
            };
        let (source_port, destination_port, transport, payload) = match protocol {
            Protocol::UDP => {
                let header = udp::Header::parse(payload, payload.len()).ok()?;
                let datagram = payload.get(..usize::from(header.length))?;
                let no_sum = header.checksum == 0 && source.is_ipv4();
                let to_check = if no_sum { &[][..] } else { datagram };
                let ports = (header.source_port, header.destination_port);
                (ports.0, ports.1, to_check, &datagram[udp::HEADER_LEN..])
            }
            Protocol::ICMPV6 if hop_limit == DISCOVERY_HOP_LIMIT => (0, 0, payload, payload),
            _ => return None,
        };
        if offload == Checksum::None && !transport.is_empty() {
            let mut sum =
                checksum::pseudo_header(source, destination, protocol, transport.len() as u32);
            sum.add(transport);
            if sum.finish() != 0 {
                return None;
            }
        }
        let (mac, destination_mac) = (ethernet.source, ethernet.destination);
        Some(Self {
            mac,
            destination_mac,
            source,
            destination,
            source_port,
            destination_port,
            payload,
        })
    }
}

/// Source and destination of an answer.
pub(super) struct Envelope {
    pub(super) mac: MacAddr,
    pub(super) to_mac: MacAddr,
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    /// Ports of a datagram; `None`: the payload is an ICMPv6 message whose checksum is zero.
    pub(super) ports: Option<(u16, u16)>,
}

/// Adds a frame with `payload` to `burst`. Returns false without room or memory; the client asks
/// again.
pub(super) fn send(
    envelope: &Envelope,
    payload: &mut [u8],
    cx: &mut Context<'_>,
    burst: &mut Burst,
) -> bool {
    if burst.is_full() || payload.len() > FRAME_BYTES_MAX {
        return false;
    }
    let (source, destination) = (envelope.source, envelope.destination);
    let udp = envelope.ports.map(|ports| udp_header(ports, source, destination, payload));
    if udp.is_none() {
        let len = payload.len() as u32;
        let mut sum = checksum::pseudo_header(source, destination, Protocol::ICMPV6, len);
        sum.add(payload);
        payload[ICMPV6_CHECKSUM_AT..][..2].copy_from_slice(&sum.finish().to_be_bytes());
    }
    let (Some(mut packet), Some(mut frame)) = (cx.memory.packet(), cx.memory.small.take()) else {
        return false;
    };
    frame[..payload.len()].copy_from_slice(payload);
    if packet.push_piece(frame.freeze(payload.len())).is_err() {
        return false;
    }
    if let Some(header) = udp {
        header.emit(packet.push_header(udp::HEADER_LEN));
    }
    push_ip(&mut packet, source, destination, udp.is_some());
    let ethertype = if source.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
    let header = ethernet::Header { destination: envelope.to_mac, source: envelope.mac, ethertype };
    header.emit(packet.push_header(ethernet::HEADER_LEN));
    burst.push(packet).is_ok()
}

fn push_ip(packet: &mut Packet, source: IpAddr, destination: IpAddr, is_udp: bool) {
    let payload_len = packet.len() as u16;
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let header = ipv4::Header {
                tos: 0,
                ident: 0,
                dont_fragment: true,
                more_fragments: false,
                fragment_offset: 0,
                ttl: TTL,
                protocol: Protocol::UDP,
                source,
                destination,
                total_len: payload_len + ipv4::HEADER_LEN as u16,
                header_len: ipv4::HEADER_LEN as u8,
                has_source_route: false,
            };
            header.emit(packet.push_header(ipv4::HEADER_LEN));
        }
        (source, destination) => {
            let header = ipv6::Header {
                traffic_class: 0,
                flow_label: 0,
                payload_len,
                next_header: if is_udp { Protocol::UDP } else { Protocol::ICMPV6 },
                hop_limit: if is_udp { TTL } else { DISCOVERY_HOP_LIMIT },
                source: v6(source),
                destination: v6(destination),
            };
            header.emit(packet.push_header(ipv6::HEADER_LEN));
        }
    }
}

fn udp_header(
    (source_port, destination_port): (u16, u16),
    source: IpAddr,
    destination: IpAddr,
    payload: &[u8],
) -> udp::Header {
    let length = (udp::HEADER_LEN + payload.len()) as u16;
    let mut header = udp::Header { source_port, destination_port, length, checksum: 0 };
    let mut bytes = [0; udp::HEADER_LEN];
    header.emit(&mut bytes);
    let mut sum = checksum::pseudo_header(source, destination, Protocol::UDP, length.into());
    sum.add(&bytes);
    sum.add(payload);
    header.checksum = checksum::udp_nonzero(sum.finish());
    header
}

fn v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// Returns the link-layer address of an IPv6 multicast group (RFC 2464 §7).
pub(super) fn group_mac(group: Ipv6Addr) -> MacAddr {
    let [.., a, b, c, d] = group.octets();
    MacAddr([0x33, 0x33, a, b, c, d])
}

/// Returns true if a datagram to this address is for a DHCP server at `gateway`.
pub(super) fn is_for_server(to: Ipv4Addr, gateway: Ipv4Addr, broadcast: Ipv4Addr) -> bool {
    to == Ipv4Addr::BROADCAST || to == gateway || to == broadcast
}

const ICMPV6_CHECKSUM_AT: usize = 2;

/// Offsets in a frame.
mod at {
    pub(super) const ETHERTYPE: usize = 12;
    pub(super) const IP: usize = 14;
    pub(super) const V4_PROTOCOL: usize = IP + 9;
    pub(super) const V6_NEXT_HEADER: usize = IP + 6;
}
