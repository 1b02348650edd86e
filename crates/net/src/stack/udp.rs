//! Datagrams: handed to the owner as they come, sent as he gives them.

use super::egress::{Marks, TTL_DEFAULT};
use super::icmp::Quoted;
use super::ingress::{IpInfo, is_multicast};
use super::{Context, Stack};
use crate::counters::DropReason;
use crate::wire::udp::{self, Header};
use crate::wire::{Protocol, icmpv4, ipv4, ipv6};
use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU16;
use towpath_packet::{Checksum, Gso, GsoKind, Offload, Packet};

/// A received datagram, or a super-packet of equal ones.
pub struct Datagram {
    /// Where it was sent to.
    pub local: SocketAddr,
    /// Where it came from.
    pub remote: SocketAddr,
    /// Its pieces are the payload.
    pub packet: Packet,
    /// Payload bytes of each datagram of a super-packet.
    pub segment_size: Option<NonZeroU16>,
    /// Type of service or traffic class.
    pub tos: u8,
    /// Time to live or hop limit.
    pub ttl: u8,
}

/// How datagrams are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpSend {
    /// Payload bytes of each datagram of a super-packet.
    pub segment_size: Option<NonZeroU16>,
    /// Type of service or traffic class.
    pub tos: u8,
    /// Time to live or hop limit.
    pub ttl: u8,
    /// Routers may not fragment it.
    pub dont_fragment: bool,
    /// Goes out in fragments of so many bytes at most; the device's MTU is never exceeded.
    pub mtu: u16,
}

impl Default for UdpSend {
    fn default() -> Self {
        Self { segment_size: None, tos: 0, ttl: TTL_DEFAULT, dont_fragment: false, mtu: u16::MAX }
    }
}

/// An ICMP error about a datagram that was sent.
pub struct UdpError {
    /// Where the datagram came from.
    pub local: SocketAddr,
    /// Where it was going.
    pub remote: SocketAddr,
    /// Who tells of the error.
    pub from: IpAddr,
    /// Type of the ICMP message.
    pub kind: u8,
    /// Its code.
    pub code: u8,
    /// The MTU that was too small, in errors that tell one.
    pub mtu: u32,
    /// Its pieces are what the error quotes of the datagram's payload.
    pub packet: Packet,
}

impl Stack {
    /// From now on ICMP errors about datagrams wait to be taken with [`Stack::next_udp_error`].
    pub fn tell_udp_errors(&mut self) {
        self.tells_udp_errors = true;
    }

    /// The next ICMP error about a datagram.
    pub fn next_udp_error(&mut self) -> Option<UdpError> {
        self.udp_errors.pop_front()
    }

    /// The next received datagram.
    pub fn next_datagram(&mut self) -> Option<Datagram> {
        self.datagrams.pop_front()
    }

    /// Sends the pieces of `packet`, which has no headers, as one datagram, or as datagrams of
    /// `segment_size` bytes each. Those must fit the device's MTU with their headers: what would
    /// need fragments is sent one by one, or is dropped here and counted.
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

    /// The same, told more.
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
        let UdpSend { tos, ttl, dont_fragment, mtu, .. } = *how;
        let marks = Marks { ttl, tos, dont_fragment, mtu };
        self.send_marked(packet, Protocol::UDP, (local.ip(), remote.ip()), marks, cx);
    }

    pub(super) fn receive_udp(
        &mut self,
        info: &IpInfo,
        mut packet: Packet,
        cx: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        let ip_payload = packet.payload_len();
        if is_multicast(info.destination) {
            return Err(DropReason::DestinationNotServed);
        }
        if !packet.pull_more(udp::HEADER_LEN) {
            return Err(DropReason::UdpMalformed);
        }
        let header = Header::parse(&packet.headers()[info.transport_at..], ip_payload)
            .map_err(|_| DropReason::UdpMalformed)?;
        let segment_size = packet.offload().gso.map(|gso| gso.size);
        if segment_size.is_none() {
            packet.truncate(header.payload_len());
        }
        match self.coalesce(info, packet, cx) {
            Some(packet) => self.deliver_udp(info, packet, cx),
            None => Ok(()),
        }
    }

    /// Takes a UDP packet whose headers end with the UDP header and whose payload with its data.
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
        // RFC 768 lets IPv4 do without, RFC 8200 §8.1 does not.
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

    /// Keeps an ICMP error about a datagram for the owner. The headers of `packet` go on from
    /// `quote_at` with the quoted headers, the last of them UDP's.
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
        let number = |at: usize| u16::from_be_bytes([headers[at], headers[at + 1]]);
        let (icmp, transport) = (info.transport_at, quote_at + quoted.transport_at);
        let [kind, code] = [headers[icmp], headers[icmp + 1]];
        let mtu = match (info.source.is_ipv4(), kind, code) {
            (true, ICMPV4_UNREACHABLE, icmpv4::FRAGMENTATION_NEEDED) => u32::from(number(icmp + 6)),
            (false, ICMPV6_TOO_BIG, _) => {
                u32::from(number(icmp + 4)) << 16 | u32::from(number(icmp + 6))
            }
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

/// Type of an ICMP destination unreachable (RFC 792).
const ICMPV4_UNREACHABLE: u8 = 3;
/// Type of an ICMPv6 packet too big (RFC 4443 §3.2).
const ICMPV6_TOO_BIG: u8 = 2;
