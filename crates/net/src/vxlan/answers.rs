//! Frames that a VXLAN port answers itself instead of sending them to a remote: requests for the
//! link-layer address of a known remote station, and packets that are too big for the path.
//!
//! An answer is a whole frame to the sender, short enough to be received inline. It comes from the
//! station that was asked for, or to which the packet was sent, as a switch has no address of its
//! own: so do Linux's tunnels. Nothing is answered that a router must not answer (RFC 1812
//! §4.3.2.7, RFC 4443 §2.4): no errors about errors, later fragments, or packets from or to groups.

use core::net::IpAddr;

use towpath_packet::packet::PEEK_BYTES;

use crate::checksum::{Sum, pseudo_header};
use crate::wire::ethernet::{self, EtherType};
use crate::wire::headers::{Headers, Part, Version};
use crate::wire::{MacAddr, Protocol, arp, icmpv4, icmpv6, ipv4, ipv6};

/// An answer: a frame without payload in pieces.
#[derive(Clone, Copy)]
pub struct Answer {
    bytes: [u8; PEEK_BYTES],
    len: usize,
}

impl Answer {
    /// The frame.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// An Ethernet frame with `fill` behind its header, which returns its length.
    fn new(
        destination: MacAddr,
        source: MacAddr,
        ethertype: EtherType,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Self {
        let mut bytes = [0; PEEK_BYTES];
        let header = ethernet::Header { destination, source, ethertype };
        let at = header.emit(&mut bytes);
        let len = at + fill(&mut bytes[at..]);
        Self { bytes, len }
    }

    /// The same with an IP packet of `protocol` behind it. `fill` leaves the checksum of ICMP zero.
    fn of_ip(
        ethernet: &ethernet::Header,
        (source, destination): (IpAddr, IpAddr),
        protocol: Protocol,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Self {
        let (to, from) = (ethernet.destination, ethernet.source);
        Self::new(to, from, ethernet.ethertype, |bytes| match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let len = fill(&mut bytes[ipv4::HEADER_LEN..]);
                let message = &mut bytes[ipv4::HEADER_LEN..][..len];
                write_checksum(message, Sum::new());
                let header = ipv4::Header {
                    tos: 0,
                    ident: 0,
                    dont_fragment: true,
                    more_fragments: false,
                    fragment_offset: 0,
                    ttl: TTL,
                    protocol,
                    source,
                    destination,
                    total_len: (ipv4::HEADER_LEN + len) as u16,
                    header_len: ipv4::HEADER_LEN as u8,
                    has_source_route: false,
                };
                header.emit(bytes) + len
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let len = fill(&mut bytes[ipv6::HEADER_LEN..]);
                let message = &mut bytes[ipv6::HEADER_LEN..][..len];
                let addresses = (source.into(), destination.into());
                write_checksum(
                    message,
                    pseudo_header(addresses.0, addresses.1, protocol, len as u32),
                );
                let header = ipv6::Header {
                    traffic_class: 0,
                    flow_label: 0,
                    payload_len: len as u16,
                    next_header: protocol,
                    hop_limit: icmpv6::HOP_LIMIT,
                    source,
                    destination,
                };
                header.emit(bytes) + len
            }
            // The caller takes both from one header.
            _ => 0,
        })
    }
}

/// Answers an ARP request or a neighbour solicitation in the first bytes of `frame`, if
/// `station_of` knows the target.
pub fn resolve(frame: &[u8], station_of: impl Fn(IpAddr) -> Option<MacAddr>) -> Option<Answer> {
    let ethernet = ethernet::Header::parse(frame).ok()?;
    match ethernet.ethertype {
        EtherType::ARP => {
            let asked = arp::Packet::parse(&frame[ethernet::HEADER_LEN..]).ok()?;
            // A probe (RFC 5227) must reach its station, which defends the address itself.
            if asked.operation != arp::Operation::Request || asked.sender_ip.is_unspecified() {
                return None;
            }
            let target = station_of(asked.target_ip.into()).filter(|_| {
                // An announcement asks for its own address.
                asked.target_ip != asked.sender_ip
            })?;
            let reply = arp::Packet {
                operation: arp::Operation::Reply,
                sender_mac: target,
                sender_ip: asked.target_ip,
                target_mac: asked.sender_mac,
                target_ip: asked.sender_ip,
            };
            Some(Answer::new(ethernet.source, target, EtherType::ARP, |bytes| reply.emit(bytes)))
        }
        EtherType::IPV6 => {
            let headers = Headers::read(frame, ethernet::HEADER_LEN)?;
            if headers.version != Version::V6 || headers.protocol != Protocol::ICMPV6 {
                return None;
            }
            let (asker, _) = headers.version.addresses(&frame[headers.ip_at..]);
            let message = icmpv6::Message::parse(frame.get(headers.transport_at..)?).ok()?;
            let icmpv6::Message::NeighborSolicitation { target, .. } = message else { return None };
            // Duplicate address detection has no sender (RFC 4862 §5.4).
            if asker.is_unspecified() {
                return None;
            }
            let station = station_of(target.into())?;
            let reply = icmpv6::Message::NeighborAdvertisement {
                target,
                target_link_layer: Some(station),
                router: false,
                solicited: true,
                override_: false,
            };
            let ethernet = ethernet::Header {
                destination: ethernet.source,
                source: station,
                ethertype: EtherType::IPV6,
            };
            let addresses = (target.into(), asker);
            Some(Answer::of_ip(&ethernet, addresses, Protocol::ICMPV6, |bytes| reply.emit(bytes)))
        }
        _ => None,
    }
}

/// Answers a packet in the first bytes of `frame` that is larger than `mtu`: ICMP fragmentation
/// needed, if the sender forbids fragments, or ICMPv6 packet too big.
pub fn too_big(frame: &[u8], mtu: u16) -> Option<Answer> {
    let ethernet = ethernet::Header::parse(frame).ok()?;
    if !ethernet.source.is_unicast() || !ethernet.destination.is_unicast() {
        return None;
    }
    let back = ethernet::Header {
        destination: ethernet.source,
        source: ethernet.destination,
        ethertype: ethernet.ethertype,
    };
    let headers = Headers::read_ip(frame, ethernet::HEADER_LEN)?;
    let packet = &frame[headers.ip_at..];
    let (source, destination) = headers.version.addresses(packet);
    let is_group = |address: IpAddr| address.is_multicast() || address.is_unspecified();
    if is_group(source) || is_group(destination) || headers.part == Part::Later {
        return None;
    }
    let behind = frame.get(headers.transport_at..)?;
    match (ethernet.ethertype, headers.version) {
        (EtherType::IPV4, Version::V4) => {
            let header = ipv4::Header::parse_quoted(packet).ok()?;
            let is_error = headers.protocol == Protocol::ICMP
                && icmpv4::Message::parse(behind).is_ok_and(|message| message.is_error());
            if !header.dont_fragment || is_error {
                return None;
            }
            let message = icmpv4::Message::DestinationUnreachable {
                code: icmpv4::FRAGMENTATION_NEEDED,
                next_hop_mtu: mtu,
            };
            Some(Answer::of_ip(&back, (destination, source), Protocol::ICMP, |bytes| {
                message.emit(bytes) + quote(packet, &mut bytes[icmpv4::HEADER_LEN..])
            }))
        }
        (EtherType::IPV6, Version::V6) => {
            let is_error = headers.protocol == Protocol::ICMPV6
                && behind.first().is_none_or(|kind| *kind < ICMPV6_INFORMATIONAL);
            if is_error {
                return None;
            }
            // RFC 8200 §5: no packet is larger than a smaller MTU.
            let mtu = u32::from(mtu.max(IPV6_MTU_MIN));
            let message = icmpv6::Message::PacketTooBig { mtu };
            Some(Answer::of_ip(&back, (destination, source), Protocol::ICMPV6, |bytes| {
                message.emit(bytes) + quote(packet, &mut bytes[icmpv6::HEADER_LEN..])
            }))
        }
        _ => None,
    }
}

/// Copies the beginning of a packet; returns its bytes.
fn quote(packet: &[u8], to: &mut [u8]) -> usize {
    let len = packet.len().min(to.len());
    to[..len].copy_from_slice(&packet[..len]);
    len
}

/// Stores the checksum of an ICMP message, whose pseudo-header has this sum.
fn write_checksum(message: &mut [u8], mut sum: Sum) {
    sum.add(message);
    let at = icmpv4::CHECKSUM_OFFSET;
    message[at..at + 2].copy_from_slice(&sum.finish().to_be_bytes());
}

/// Time to live of an answer (RFC 1122 §3.2.1.7: the default).
const TTL: u8 = 64;
/// Types of ICMPv6 from this on are no errors (RFC 4443 §2.1).
const ICMPV6_INFORMATIONAL: u8 = 128;
/// Least MTU of IPv6 (RFC 8200 §5).
const IPV6_MTU_MIN: u16 = 1280;

const _: () = assert!(icmpv4::CHECKSUM_OFFSET == icmpv6::CHECKSUM_OFFSET);
// What is quoted has room for the longest header and eight bytes behind it.
const _: () = assert!(
    PEEK_BYTES >= ethernet::HEADER_LEN + 2 * ipv6::HEADER_LEN + icmpv6::HEADER_LEN + 8
        && PEEK_BYTES >= ethernet::HEADER_LEN + ipv4::HEADER_LEN + 8 + ipv4::HEADER_LEN_MAX + 8
);

#[cfg(test)]
mod tests;
