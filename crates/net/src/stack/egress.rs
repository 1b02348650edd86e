//! Sending: IP and Ethernet headers, neighbour resolution, and what the device does not offload.

use super::ingress::{IP_AT, solicited_node};
use super::raw::share;
use super::{Context, Stack};
use crate::checksum;
use crate::counters::DropReason;
use crate::fragment;
use crate::gso::{self, Checksums, Layout};
use crate::neighbor::{Announcement, Outgoing, Resolution, Station};
use crate::tcp::Connection;
use crate::wire::arp;
use crate::wire::ethernet::{self, EtherType};
use crate::wire::icmpv6;
use crate::wire::membership::{LINK_SCOPE, group_mac, scope};
use crate::wire::{MacAddr, Protocol, ipv4, ipv6, tcp, udp};
use alloc::vec::Vec;
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
        if destination.is_multicast() {
            if marks.loops && self.memberships.contains(destination) {
                match share(&packet, packet.headers(), cx) {
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
        if destination.is_multicast() {
            let kind = if destination.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
            return self.send_frame(packet, group_mac(destination), kind, cx);
        }
        let next_hop = self.next_hop(destination);
        match self.neighbors.resolve(next_hop, packet, cx.now) {
            Resolution::Known { mac, packet, ask } => {
                let kind = if destination.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
                self.send_frame(packet, mac, kind, cx);
                if ask {
                    self.ask_neighbor(next_hop, cx);
                }
            }
            Resolution::Waiting { ask, dropped } => {
                for _ in 0..dropped {
                    self.counters.drop(DropReason::NeighborQueueFull);
                }
                if ask {
                    self.ask_neighbor(next_hop, cx);
                }
            }
        }
    }

    fn next_hop(&self, destination: IpAddr) -> IpAddr {
        if self.is_on_link(destination) {
            return destination;
        }
        let same_family = |hop: &&IpAddr| hop.is_ipv4() == destination.is_ipv4();
        self.config.next_hops.iter().find(same_family).copied().unwrap_or(destination)
    }

    /// Adds an Ethernet header to a packet whose headers end with the transport header, and queues
    /// it in the form that the device takes.
    fn send_frame(
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

    pub(super) fn learn_neighbor(
        &mut self,
        address: IpAddr,
        station: Station,
        announcement: Announcement,
        cx: &mut Context<'_>,
    ) {
        let mut waited = Vec::new();
        self.neighbors.learn(address, station, announcement, cx.now, |mac, packet| {
            waited.push((mac, packet));
        });
        for (mac, packet) in waited {
            let v4 = packet.packet.headers()[0] >> 4 == 4;
            let kind = if v4 { EtherType::IPV4 } else { EtherType::IPV6 };
            self.send_frame(packet, mac, kind, cx);
        }
    }

    pub(super) fn expire_neighbors(&mut self, cx: &mut Context<'_>) {
        let mut asked = Vec::new();
        let counters = &mut self.counters;
        self.neighbors.on_deadline(
            cx.now,
            |address| asked.push(address),
            |_packet| counters.drop(DropReason::NeighborUnreachable),
        );
        for address in asked {
            self.ask_neighbor(address, cx);
        }
    }

    /// Sends a request for the link-layer address of `address` (RFC 826, RFC 4861 §7.2.2).
    fn ask_neighbor(&mut self, address: IpAddr, cx: &mut Context<'_>) {
        let ours = self.config.addresses.iter().map(|ours| ours.address);
        let Some(source) = ours.into_iter().find(|ours| ours.is_ipv4() == address.is_ipv4()) else {
            return;
        };
        match (source, address) {
            (IpAddr::V4(sender_ip), IpAddr::V4(target_ip)) => {
                let request = arp::Packet {
                    operation: arp::Operation::Request,
                    sender_mac: self.config.mac,
                    sender_ip,
                    target_mac: MacAddr::UNSPECIFIED,
                    target_ip,
                };
                self.send_arp(&request, MacAddr::BROADCAST, cx);
            }
            (IpAddr::V6(_), IpAddr::V6(target)) => {
                let message = icmpv6::Message::NeighborSolicitation {
                    target,
                    source_link_layer: Some(self.config.mac),
                };
                let group = IpAddr::V6(solicited_node(target));
                self.send_icmpv6(&message, source, group, icmpv6::HOP_LIMIT, cx);
            }
            _ => {}
        }
    }

    pub(super) fn send_arp_reply(&mut self, request: &arp::Packet, cx: &mut Context<'_>) {
        let reply = arp::Packet {
            operation: arp::Operation::Reply,
            sender_mac: self.config.mac,
            sender_ip: request.target_ip,
            target_mac: request.sender_mac,
            target_ip: request.sender_ip,
        };
        self.send_arp(&reply, request.sender_mac, cx);
    }

    fn send_arp(&mut self, message: &arp::Packet, to: MacAddr, cx: &mut Context<'_>) {
        let Some(mut packet) = cx.memory.packet() else {
            return self.counters.drop(DropReason::NoMemory);
        };
        message.emit(packet.push_header(arp::LEN));
        self.send_frame(Outgoing { packet, mtu: u16::MAX }, to, EtherType::ARP, cx);
    }
}
