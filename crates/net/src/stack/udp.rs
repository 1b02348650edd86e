//! Datagrams: received for the owner, and sent by the owner.

use super::egress::{Marks, TTL_DEFAULT};
use super::icmp::Quoted;
use super::ingress::{IpInfo, is_multicast};
use super::{Context, Stack};
use crate::counters::DropReason;
use crate::wire::field::{read_u16, read_u32};
use crate::wire::udp::{self, Header};
use crate::wire::{Protocol, icmpv4, ipv4, ipv6};
use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU16;
use towpath_packet::{Checksum, Gso, GsoKind, Offload, Packet};

/// A received datagram, or a super-packet of datagrams of equal size.
pub struct Datagram {
    /// Destination address and port.
    pub local: SocketAddr,
    /// Source address and port.
    pub remote: SocketAddr,
    /// Packet whose pieces are the payload.
    pub packet: Packet,
    /// Payload bytes of each datagram of a super-packet.
    pub segment_size: Option<NonZeroU16>,
    /// Type of service or traffic class.
    pub tos: u8,
    /// Time to live or hop limit.
    pub ttl: u8,
}

/// How to send datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpSend {
    /// Payload bytes of each datagram of a super-packet.
    pub segment_size: Option<NonZeroU16>,
    /// Type of service or traffic class.
    pub tos: u8,
    /// Time to live or hop limit.
    pub ttl: u8,
    /// Routers may not fragment the datagram.
    pub dont_fragment: bool,
    /// Largest fragment; the device's MTU applies too.
    pub mtu: u16,
    /// The stack receives a multicast datagram too if it is a member of the group.
    pub multicast_loop: bool,
}

impl Default for UdpSend {
    fn default() -> Self {
        Self {
            segment_size: None,
            tos: 0,
            ttl: TTL_DEFAULT,
            dont_fragment: false,
            mtu: u16::MAX,
            multicast_loop: true,
        }
    }
}

/// An ICMP error about a datagram that was sent.
pub struct UdpError {
    /// Source of the datagram.
    pub local: SocketAddr,
    /// Destination of the datagram.
    pub remote: SocketAddr,
    /// Sender of the ICMP message.
    pub from: IpAddr,
    /// Type of the ICMP message.
    pub kind: u8,
    /// Code of the ICMP message.
    pub code: u8,
    /// The reported MTU, or zero if the message has none.
    pub mtu: u32,
    /// Packet whose pieces are the quoted part of the datagram's payload.
    pub packet: Packet,
}

impl Stack {
    /// Enables queueing of ICMP errors about datagrams for [`Stack::next_udp_error`].
    pub fn report_udp_errors(&mut self) {
        self.tells_udp_errors = true;
    }

    /// Takes the next ICMP error about a datagram.
    pub fn next_udp_error(&mut self) -> Option<UdpError> {
        self.udp_errors.pop_front()
    }

    /// Takes the next received datagram.
    pub fn next_datagram(&mut self) -> Option<Datagram> {
        self.datagrams.pop_front()
    }

    /// Sends the pieces of `packet`, which has no headers, as one datagram, or as datagrams of
    /// `segment_size` bytes each. Segments must fit the device's MTU with their headers; a
    /// super-packet with larger ones is dropped and counted.
    pub fn udp_send(
        &mut self,
        packet: Packet,
        local: SocketAddr,
        remote: SocketAddr,
        segment_size: Option<NonZeroU16>,
        cx: &mut Context<'_>,
    ) {
        let how = UdpSend { segment_size, ..UdpSend::default() };
        self.udp_send_with(packet, local, remote, &how, cx);
    }

    /// Sends datagrams like [`Stack::udp_send`], with IP header fields and a fragment size.
    pub fn udp_send_with(
        &mut self,
        mut packet: Packet,
        local: SocketAddr,
        remote: SocketAddr,
        how: &UdpSend,
        cx: &mut Context<'_>,
    ) {
        let payload_len = packet.payload_len();
        let Ok(length) = u16::try_from(payload_len + udp::HEADER_LEN) else {
            return self.counters.drop(DropReason::TooLarge);
        };
        let header = Header {
            source_port: local.port(),
            destination_port: remote.port(),
            length,
            checksum: 0,
        };
        header.emit(packet.push_header(udp::HEADER_LEN));
        let size = how.segment_size.filter(|size| payload_len > usize::from(size.get()));
        let ip_len = if local.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
        let room = usize::from(self.link_mtu(remote.ip())).saturating_sub(ip_len + udp::HEADER_LEN);
        if size.is_some_and(|size| usize::from(size.get()) > room) {
            return self.counters.drop(DropReason::TooLarge);
        }
        let gso = size.map(|size| Gso { kind: GsoKind::Udp, size, ecn: false, tunnel: None });
        packet.set_offload(Offload { gso, ..Offload::default() });
        let UdpSend { tos, ttl, dont_fragment, mtu, multicast_loop: loops, .. } = *how;
        let marks = Marks { ttl, tos, dont_fragment, mtu, loops };
        self.send_marked(packet, Protocol::UDP, (local.ip(), remote.ip()), marks, cx);
    }

    pub(super) fn receive_udp(
        &mut self,
        info: &IpInfo,
        mut packet: Packet,
        looped: bool,
        cx: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        if is_multicast(info.destination) && !self.takes_datagrams_to(info.destination) {
            return Err(DropReason::DestinationNotServed);
        }
        if info.transport.is_none() {
            return Err(DropReason::UdpMalformed);
        }
        let ip_payload = udp::HEADER_LEN + packet.payload_len();
        let header = Header::parse(&packet.headers()[info.transport_at..], ip_payload)
            .map_err(|_| DropReason::UdpMalformed)?;
        let segment_size = packet.offload().gso.map(|gso| gso.size);
        if segment_size.is_none() {
            packet.truncate(header.payload_len());
        }
        match self.coalesce(info, packet, looped, cx) {
            Some(packet) => self.deliver_udp(info, packet, cx),
            None => Ok(()),
        }
    }

    /// Processes a UDP packet whose headers end with the UDP header and whose payload is the data.
    pub(super) fn deliver_udp(
        &mut self,
        info: &IpInfo,
        mut packet: Packet,
        cx: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        let header = Header::parse(
            &packet.headers()[info.transport_at..],
            packet.payload_len() + udp::HEADER_LEN,
        )
        .map_err(|_| DropReason::UdpMalformed)?;
        let absent = header.checksum == 0 && packet.offload().checksum == Checksum::None;
        // RFC 768 allows IPv4 without a checksum, RFC 8200 §8.1 does not allow it for IPv6.
        if absent && info.source.is_ipv6() {
            return Err(DropReason::UdpChecksum);
        }
        if !absent {
            self.check_checksum(&mut packet, info, DropReason::UdpChecksum, cx)?;
        }
        if self.datagrams.len() >= self.config.limits.datagrams {
            return Err(DropReason::UdpQueueFull);
        }
        let segment_size = packet.offload().gso.map(|gso| gso.size);
        self.datagrams.push_back(Datagram {
            local: SocketAddr::new(info.destination, header.destination_port),
            remote: SocketAddr::new(info.source, header.source_port),
            packet,
            segment_size,
            tos: info.tos,
            ttl: info.ttl,
        });
        Ok(())
    }

    /// Queues an ICMP error about a datagram for the owner. The headers of `packet` continue at
    /// `quote_at` with the quoted headers, which end with the UDP header.
    pub(super) fn receive_udp_error(
        &mut self,
        info: &IpInfo,
        packet: Packet,
        quote_at: usize,
        quoted: &Quoted,
    ) -> Result<(), DropReason> {
        if !self.tells_udp_errors {
            return Err(DropReason::IcmpIgnored);
        }
        if self.udp_errors.len() >= self.config.limits.datagrams {
            return Err(DropReason::UdpQueueFull);
        }
        let headers = packet.headers();
        let number = |at| read_u16(headers, at);
        let (icmp, transport) = (info.transport_at, quote_at + quoted.transport_at);
        let [kind, code] = [headers[icmp], headers[icmp + 1]];
        let mtu = match (info.source.is_ipv4(), kind, code) {
            (true, ICMPV4_UNREACHABLE, icmpv4::FRAGMENTATION_NEEDED) => u32::from(number(icmp + 6)),
            (false, ICMPV6_TOO_BIG, _) => read_u32(headers, icmp + 4),
            _ => 0,
        };
        self.udp_errors.push_back(UdpError {
            local: SocketAddr::new(quoted.source, number(transport)),
            remote: SocketAddr::new(quoted.destination, number(transport + 2)),
            from: info.source,
            kind,
            code,
            mtu,
            packet,
        });
        Ok(())
    }
}

/// ICMP type destination unreachable (RFC 792).
const ICMPV4_UNREACHABLE: u8 = 3;
/// ICMPv6 type packet too big (RFC 4443 §3.2).
const ICMPV6_TOO_BIG: u8 = 2;
