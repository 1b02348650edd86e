//! Sending: IP and Ethernet headers, and what the device does not offload.

use super::ingress::IP_AT;
use super::{Context, Stack};
use crate::checksum;
use crate::counters::DropReason;
use crate::fragment;
use crate::gso::{self, Checksums, Layout};
use crate::neighbor::{Outgoing, Resolution};
use crate::tcp::Connection;
use crate::wire::ethernet::{self, EtherType};
use crate::wire::{MacAddr, Protocol, ipv4, ipv6, tcp, udp};
use core::net::IpAddr;
use towpath_packet::{Checksum, GsoKind, Offload, Packet};

/// Default TTL and hop limit of sent packets (RFC 1700, as in Linux).
pub const TTL_DEFAULT: u8 = 64;

/// Fields of the IP header, and limits for fragmentation.
#[derive(Clone, Copy)]
pub(super) struct Marks {
    pub(super) ttl: u8,
    /// Type of service or traffic class.
    pub(super) tos: u8,
    /// Routers may not fragment the packet; ignored for packets that are fragmented here.
    pub(super) dont_fragment: bool,
    /// Larger packets are sent in fragments of at most this size.
    pub(super) mtu: u16,
}

impl Marks {
    /// Marks of the segment that a connection built last.
    pub(super) fn of_tcp(connection: &Connection) -> Self {
        let (tos, ttl) = (connection.codepoint(), connection.ttl().unwrap_or(TTL_DEFAULT));
        Self { ttl, tos, dont_fragment: connection.forbids_fragments(), mtu: u16::MAX }
    }
}

impl Stack {
    /// Sends a packet that begins with its TCP header, whose checksum field is zero.
    pub(super) fn send_transport(
        &mut self,
        packet: Packet,
        protocol: Protocol,
        addresses: (IpAddr, IpAddr),
        tos: u8,
        cx: &mut Context<'_>,
    ) {
        let marks = Marks { ttl: TTL_DEFAULT, tos, dont_fragment: true, mtu: u16::MAX };
        self.send_marked(packet, protocol, addresses, marks, cx);
    }

    /// Sends a packet that begins with its TCP or UDP header, whose checksum field is zero.
    pub(super) fn send_marked(
        &mut self,
        mut packet: Packet,
        protocol: Protocol,
        (source, destination): (IpAddr, IpAddr),
        marks: Marks,
        cx: &mut Context<'_>,
    ) {
        if self.stopped && !self.is_local(destination) {
            return self.counters.drop(DropReason::DeviceFull);
        }
        let len = packet.len() as u32;
        let sum = checksum::pseudo_header(source, destination, protocol, len).fold();
        let offset = match protocol {
            Protocol::TCP => tcp::CHECKSUM_OFFSET,
            _ => udp::CHECKSUM_OFFSET,
        };
        packet.headers_mut()[offset..offset + 2].copy_from_slice(&sum.to_be_bytes());
        let ip_len = if source.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
        let start = (IP_AT + ip_len) as u16;
        let checksum = Checksum::Partial { start, offset: offset as u16 };
        packet.set_offload(Offload { checksum, ..*packet.offload() });
        self.send_ip(packet, protocol, (source, destination), marks, cx);
    }

    /// Adds an IP header and sends the packet to the next hop.
    pub(super) fn send_ip(
        &mut self,
        mut packet: Packet,
        protocol: Protocol,
        (source, destination): (IpAddr, IpAddr),
        marks: Marks,
        cx: &mut Context<'_>,
    ) {
        let payload_len = packet.len();
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let Ok(total_len) = u16::try_from(payload_len + ipv4::HEADER_LEN) else {
                    return self.counters.drop(DropReason::TooLarge);
                };
                let header = ipv4::Header {
                    tos: marks.tos,
                    ident: self.next_ident(&packet, (source.into(), destination.into())),
                    dont_fragment: marks.dont_fragment,
                    more_fragments: false,
                    fragment_offset: 0,
                    ttl: marks.ttl,
                    protocol,
                    source,
                    destination,
                    total_len,
                    header_len: ipv4::HEADER_LEN as u8,
                    has_source_route: false,
                };
                header.emit(packet.push_header(ipv4::HEADER_LEN));
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let Ok(payload_len) = u16::try_from(payload_len) else {
                    return self.counters.drop(DropReason::TooLarge);
                };
                let header = ipv6::Header {
                    traffic_class: marks.tos,
                    flow_label: 0,
                    payload_len,
                    next_header: protocol,
                    hop_limit: marks.ttl,
                    source,
                    destination,
                };
                header.emit(packet.push_header(ipv6::HEADER_LEN));
            }
            _ => return self.counters.drop(DropReason::IpMalformed),
        }
        self.send_to_next_hop(Outgoing { packet, mtu: marks.mtu }, destination, cx);
    }

    /// IPv4 identification: reserves one for each segment of a super-packet (RFC 6864).
    fn next_ident(&mut self, packet: &Packet, pair: (IpAddr, IpAddr)) -> u16 {
        let segments = match packet.offload().gso {
            Some(gso) => packet.payload_len().div_ceil(usize::from(gso.size.get())),
            None => 1,
        };
        self.idents.take(pair, segments as u32) as u16
    }

    pub(super) fn send_to_next_hop(
        &mut self,
        packet: Outgoing,
        destination: IpAddr,
        cx: &mut Context<'_>,
    ) {
        if self.is_local(destination) {
            return self.keep_looped(packet.packet, destination);
        }
        if let IpAddr::V6(group) = destination
            && group.is_multicast()
        {
            // RFC 2464 §7.
            let o = group.octets();
            let mac = MacAddr([0x33, 0x33, o[12], o[13], o[14], o[15]]);
            return self.send_frame(packet, mac, EtherType::IPV6, cx);
        }
        let next_hop = self.next_hop(destination, cx);
        match self.neighbors.resolve(next_hop, packet, cx.now) {
            Resolution::Known { mac, packet } => {
                let kind = if destination.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
                self.send_frame(packet, mac, kind, cx);
            }
            Resolution::Waiting { solicit, dropped, evicted } => {
                self.note_waiting(next_hop, solicit, (dropped, evicted), cx);
            }
        }
    }

    /// Adds an Ethernet header to a packet whose headers end with the transport header, and queues
    /// it in the form that the device takes.
    pub(super) fn send_frame(
        &mut self,
        packet: Outgoing,
        destination: MacAddr,
        ethertype: EtherType,
        cx: &mut Context<'_>,
    ) {
        let Outgoing { mut packet, mtu } = packet;
        let header = ethernet::Header { destination, source: self.config.mac, ethertype };
        header.emit(packet.push_header(ethernet::HEADER_LEN));
        let ip_len = if ethertype == EtherType::IPV4 { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
        let layout = Layout { ip_at: IP_AT, transport_at: IP_AT + ip_len };
        let mtu = usize::from(mtu.min(self.caps.mtu));
        let is_cut = packet.offload().gso.is_none() && packet.len() > mtu + ethernet::HEADER_LEN;
        let is_partial = matches!(packet.offload().checksum, Checksum::Partial { .. });
        if is_partial
            && (is_cut || !self.caps.checksum)
            && !gso::own_payload(&mut packet, cx.memory, cx.ledger)
        {
            return self.counters.drop(DropReason::NoMemory);
        }
        match packet.offload().gso {
            Some(gso) if !self.device_cuts(gso.kind, packet.len()) => {
                self.send_segments(packet, layout, cx);
            }
            None if is_cut && ethertype != EtherType::ARP => {
                self.send_fragments(packet, mtu, layout, cx);
            }
            _ => self.send_ready(packet, cx),
        }
    }

    fn device_cuts(&self, kind: GsoKind, len: usize) -> bool {
        let able = match kind {
            GsoKind::Tcp4 => self.caps.tso4,
            GsoKind::Tcp6 => self.caps.tso6,
            GsoKind::Udp => self.caps.uso,
        };
        able && self.caps.checksum && len <= self.caps.gso_bytes_max as usize
    }

    fn send_ready(&mut self, mut packet: Packet, cx: &mut Context<'_>) {
        let partial = matches!(packet.offload().checksum, Checksum::Partial { .. });
        let finish = partial && !self.caps.checksum;
        if finish && gso::complete_checksum(&mut packet, cx.ledger).is_err() {
            return self.counters.drop(DropReason::OffloadMalformed);
        }
        self.ready.push_back(packet);
    }

    fn send_segments(&mut self, packet: Packet, layout: Layout, cx: &mut Context<'_>) {
        let checksums =
            if self.caps.checksum { Checksums::LeavePartial } else { Checksums::Complete };
        let ready = &mut self.ready;
        let mut out = |segment| ready.push_back(segment);
        let cut = gso::segment(packet, cx.memory, cx.ledger, layout, checksums, &mut out);
        if cut.is_err() {
            self.counters.drop(DropReason::NoMemory);
        }
    }

    fn send_fragments(&mut self, packet: Packet, mtu: usize, layout: Layout, cx: &mut Context<'_>) {
        let ready = &mut self.ready;
        let mut out = |fragment| ready.push_back(fragment);
        let cut = if packet.headers()[layout.ip_at] >> 4 == 4 {
            fragment::fragment_ipv4(packet, mtu, layout, cx.memory, cx.ledger, &mut out)
        } else {
            let Ok(ip) = ipv6::Header::parse(&packet.headers()[layout.ip_at..], usize::MAX) else {
                return self.counters.drop(DropReason::IpMalformed);
            };
            let ident = self.idents.take((ip.source.into(), ip.destination.into()), 1);
            fragment::fragment_ipv6(packet, mtu, layout, ident, cx.memory, cx.ledger, &mut out)
        };
        if cut.is_err() {
            self.counters.drop(DropReason::TooLarge);
        }
    }
}
