//! Datagrams: handed to the owner as they come, sent as he gives them.

use super::ingress::{IpInfo, is_multicast};
use super::{Context, Stack};
use crate::counters::DropReason;
use crate::wire::udp::{self, Header};
use crate::wire::{Protocol, ipv4, ipv6};
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
}

impl Stack {
    /// The next received datagram.
    pub fn next_datagram(&mut self) -> Option<Datagram> {
        self.datagrams.pop_front()
    }

    /// Sends the pieces of `packet`, which has no headers, as one datagram, or as datagrams of
    /// `segment_size` bytes each. Those must fit the device's MTU with their headers: what would
    /// need fragments is sent one by one, or is dropped here and counted.
    pub fn udp_send(
        &mut self,
        mut packet: Packet,
        local: SocketAddr,
        remote: SocketAddr,
        segment_size: Option<NonZeroU16>,
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
        let size = segment_size.filter(|size| payload_len > usize::from(size.get()));
        let ip_len = if local.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
        let room = usize::from(self.caps.mtu).saturating_sub(ip_len + udp::HEADER_LEN);
        if size.is_some_and(|size| usize::from(size.get()) > room) {
            return self.counters.drop(DropReason::TooLarge);
        }
        let gso = size.map(|size| Gso { kind: GsoKind::Udp, size, ecn: false });
        packet.set_offload(Offload { gso, ..Offload::default() });
        self.send_transport(packet, Protocol::UDP, (local.ip(), remote.ip()), 0, cx);
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
        });
        Ok(())
    }

    /// True if `address` could be reached over this stack's family.
    pub fn has_family(&self, address: IpAddr) -> bool {
        self.config.addresses.iter().any(|ours| ours.address.is_ipv4() == address.is_ipv4())
    }
}
