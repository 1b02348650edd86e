//! Sending: IP and Ethernet headers, and what the device does not offload.

use super::ingress::IP_AT;
use super::{Context, Stack};
use crate::checksum;
use crate::counters::DropReason;
use crate::fragment;
use crate::gso::{self, Checksums};
use crate::neighbor::{Outgoing, Resolution};
use crate::tcp::Connection;
use crate::wire::ethernet::{self, EtherType};
use crate::wire::headers::{Headers, Version};
use crate::wire::membership::{LINK_SCOPE, group_mac, scope};
use crate::wire::{MacAddr, Protocol, ipv4, ipv6, tcp, udp};
use core::hash::BuildHasher;
use core::net::{IpAddr, Ipv6Addr};
use towpath_packet::{Checksum, GsoKind, Offload, Packet};

/// Default TTL and hop limit of sent packets (RFC 1700).
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
    /// This stack receives the packet too if it is a member of the destination.
    pub(super) loops: bool,
}

impl Marks {
    /// Marks of the segment that a connection built last.
    pub(super) fn of_tcp(connection: &Connection) -> Self {
        let (tos, ttl) = (connection.codepoint(), connection.ttl().unwrap_or(TTL_DEFAULT));
        let dont_fragment = connection.forbids_fragments();
        Self { ttl, tos, dont_fragment, mtu: u16::MAX, loops: false }
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
        let marks =
            Marks { ttl: TTL_DEFAULT, tos, dont_fragment: true, mtu: u16::MAX, loops: false };
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
                    ident: self.next_ident(
                        &packet,
                        (source.into(), destination.into()),
                        marks.mtu,
                        cx,
                    ),
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
                    flow_label: self.flow_label(&packet, protocol, (source, destination)),
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
        if destination.is_multicast() {
            if marks.loops && self.memberships.contains(destination) {
                match packet.share(&mut cx.memory.packets) {
                    Some(copy) => self.keep_looped(copy, destination),
                    None => self.counters.drop(DropReason::NoMemory),
                }
            }
            let leaves = !matches!(destination, IpAddr::V6(group) if scope(group) < LINK_SCOPE);
            if marks.ttl == 0 || !leaves {
                return;
            }
        }
        self.send_to_next_hop(Outgoing { packet, mtu: marks.mtu }, destination, cx);
    }

    /// IPv4 identification: reserves one for each segment of a super-packet (RFC 6864).
    fn next_ident(
        &mut self,
        packet: &Packet,
        pair: (IpAddr, IpAddr),
        mtu: u16,
        cx: &Context<'_>,
    ) -> u16 {
        let len = packet.len() + ipv4::HEADER_LEN;
        match packet.offload().gso {
            Some(gso) => {
                let segments = packet.payload_len().div_ceil(usize::from(gso.size.get()));
                self.idents.take(pair, segments as u16, cx.now)
            }
            None if len > usize::from(mtu.min(self.caps.mtu)) => self.idents.fragmented_v4(pair),
            None => self.idents.take(pair, 1, cx.now),
        }
    }

    /// Flow label of a TCP or UDP packet: the same for all packets of a flow (RFC 6437 §3). Other
    /// packets have none.
    fn flow_label(
        &self,
        packet: &Packet,
        protocol: Protocol,
        addresses: (Ipv6Addr, Ipv6Addr),
    ) -> u32 {
        match packet.headers() {
            [a, b, c, d, ..] if matches!(protocol, Protocol::TCP | Protocol::UDP) => {
                let flow = (addresses, protocol, [*a, *b, *c, *d]);
                self.flow_labels.hash_one(flow) as u32 & ipv6::FLOW_LABEL_MASK
            }
            _ => 0,
        }
    }

    /// Output: every IP packet that this stack sends passes here, once, with its IP header first.
    pub(super) fn send_to_next_hop(
        &mut self,
        packet: Outgoing,
        destination: IpAddr,
        cx: &mut Context<'_>,
    ) {
        if self.is_local(destination) {
            return self.keep_looped(packet.packet, destination);
        }
        if self.stopped {
            return self.counters.drop(DropReason::DeviceFull);
        }
        if destination.is_multicast() {
            let kind = if destination.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
            return self.send_frame(packet, group_mac(destination), kind, cx);
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
                self.send_segments(packet, cx);
            }
            None if is_cut && ethertype != EtherType::ARP => {
                self.send_fragments(packet, mtu, cx);
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

    fn send_segments(&mut self, packet: Packet, cx: &mut Context<'_>) {
        let Some(headers) = Headers::read(packet.headers(), IP_AT) else {
            return self.counters.drop(DropReason::OffloadMalformed);
        };
        let checksums =
            if self.caps.checksum { Checksums::LeavePartial } else { Checksums::Complete };
        let ready = &mut self.ready;
        let mut out = |segment, _: &mut _| ready.push_back(segment);
        let cut = gso::segment(packet, cx.memory, cx.ledger, &headers, checksums, &mut out);
        if cut.is_err() {
            self.counters.drop(DropReason::NoMemory);
        }
    }

    fn send_fragments(&mut self, packet: Packet, mtu: usize, cx: &mut Context<'_>) {
        let Some(headers) = Headers::read_ip(packet.headers(), IP_AT) else {
            return self.counters.drop(DropReason::IpMalformed);
        };
        let pair = headers.version.addresses(&packet.headers()[IP_AT..]);
        let (memory, ledger, ready) = (&mut *cx.memory, cx.ledger, &mut self.ready);
        let out = &mut |fragment| ready.push_back(fragment);
        let cut = match headers.version {
            Version::V4 => fragment::fragment_ipv4(packet, mtu, &headers, memory, ledger, out),
            Version::V6 => {
                let ident = self.idents.fragmented_v6(pair);
                fragment::fragment_ipv6(packet, mtu, &headers, ident, memory, ledger, out)
            }
        };
        if cut.is_err() {
            self.counters.drop(DropReason::TooLarge);
        }
    }
}
