//! Receiving: from a frame to a connection, a datagram or an answer.

use super::{Context, Stack};
use crate::counters::DropReason;
use crate::fragment;
use crate::gso::{self, Layout};
use crate::neighbor::{Announcement, Station};
use crate::tcp::Segment;
use crate::tcp::ecn::codepoint;
use crate::wire::arp;
use crate::wire::ethernet::{self, EtherType};
use crate::wire::ipv6::ExtensionError;
use crate::wire::{MacAddr, ParseError, Protocol, ipv4, ipv6, membership, tcp};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use towpath_packet::{Checksum, Packet};

/// Offset of the IP header in a frame.
pub(super) const IP_AT: usize = ethernet::HEADER_LEN;

/// Fields of the IP header, from its private copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct IpInfo {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) protocol: Protocol,
    pub(super) transport_at: usize,
    pub(super) ttl: u8,
    pub(super) tos: u8,
    pub(super) source_mac: MacAddr,
    pub(super) fragment: FragmentOf,
    /// The packet may not be fragmented: DF is set, or it is IPv6.
    pub(super) dont_fragment: bool,
}

/// Kind of fragment of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) enum FragmentOf {
    None,
    V4,
    V6(ipv6::Fragment),
}

/// How a frame was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Device,
    /// Sent by this stack.
    Looped,
    /// Reassembled from fragments, which came from the device or were looped.
    Reassembled {
        looped: bool,
    },
}

impl Way {
    fn is_looped(self) -> bool {
        matches!(self, Way::Looped | Way::Reassembled { looped: true })
    }

    fn is_reassembled(self) -> bool {
        matches!(self, Way::Reassembled { .. })
    }
}

impl IpInfo {
    pub(super) fn layout(&self) -> Layout {
        Layout { ip_at: IP_AT, transport_at: self.transport_at }
    }
}

impl Stack {
    pub(super) fn receive(&mut self, packet: Packet, cx: &mut Context<'_>) {
        self.counters.packets_in += 1;
        self.counters.bytes_in += packet.len() as u64;
        self.counters.super_packets_in += u64::from(packet.offload().gso.is_some());
        self.receive_frame(packet, Way::Device, cx);
    }

    /// Processes a frame.
    pub(super) fn receive_frame(&mut self, mut packet: Packet, way: Way, cx: &mut Context<'_>) {
        let Ok(frame) = ethernet::Header::parse(packet.peek_headers()) else {
            return self.counters.drop(DropReason::EthernetMalformed);
        };
        if frame.destination != self.config.mac && frame.destination.is_unicast() {
            return self.counters.drop(DropReason::NotForUs);
        }
        let parsed = match frame.ethertype {
            EtherType::IPV4 => self.parse_ipv4(&mut packet, &frame),
            EtherType::IPV6 => self.parse_ipv6(&mut packet, &frame, cx),
            EtherType::ARP => return self.receive_arp(&packet, cx),
            _ => Err(DropReason::EtherTypeUnknown),
        };
        match parsed {
            // RFC 1122 §3.3.6: a link-layer broadcast with a unicast IP destination is dropped.
            Ok(info) if frame.destination.is_multicast() && !is_multicast(info.destination) => {
                self.counters.drop(DropReason::NotForUs);
            }
            Ok(mut info) => {
                info.dont_fragment &= !way.is_reassembled();
                self.receive_ip(info, packet, way.is_looped(), cx);
            }
            Err(reason) => self.counters.drop(reason),
        }
    }

    fn parse_ipv4(
        &self,
        packet: &mut Packet,
        frame: &ethernet::Header,
    ) -> Result<IpInfo, DropReason> {
        let len = packet.len() - IP_AT;
        let ip =
            ipv4::Header::parse(&packet.headers()[IP_AT..], len).map_err(|error| match error {
                ParseError::BadChecksum => DropReason::IpChecksum,
                _ => DropReason::IpMalformed,
            })?;
        if ip.has_source_route {
            return Err(DropReason::SourceRoute);
        }
        let transport_at = IP_AT + usize::from(ip.header_len);
        // Bytes behind the packet are padding of the frame.
        packet.truncate(IP_AT + usize::from(ip.total_len));
        packet.pull(transport_at);
        Ok(IpInfo {
            source: ip.source.into(),
            destination: ip.destination.into(),
            protocol: ip.protocol,
            transport_at,
            ttl: ip.ttl,
            tos: ip.tos,
            source_mac: frame.source,
            fragment: if ip.is_fragment() { FragmentOf::V4 } else { FragmentOf::None },
            dont_fragment: ip.dont_fragment,
        })
    }

    fn parse_ipv6(
        &mut self,
        packet: &mut Packet,
        frame: &ethernet::Header,
        cx: &mut Context<'_>,
    ) -> Result<IpInfo, DropReason> {
        let len = packet.len() - IP_AT;
        let headers = &packet.headers()[IP_AT..];
        let ip = ipv6::Header::parse(headers, len).map_err(|_| DropReason::IpMalformed)?;
        let payload_len = usize::from(ip.payload_len);
        let rest = &headers[ipv6::HEADER_LEN..];
        let rest = &rest[..rest.len().min(payload_len)];
        let extensions = ipv6::Extensions::walk(ip.next_header, rest, payload_len);
        packet.truncate(IP_AT + ipv6::HEADER_LEN + payload_len);
        let mut info = IpInfo {
            source: ip.source.into(),
            destination: ip.destination.into(),
            protocol: ip.next_header,
            transport_at: IP_AT + ipv6::HEADER_LEN,
            ttl: ip.hop_limit,
            tos: ip.traffic_class,
            source_mac: frame.source,
            fragment: FragmentOf::None,
            dont_fragment: true,
        };
        let extensions = match extensions {
            Ok(extensions) => extensions,
            Err(ExtensionError::ParameterProblem { code, pointer, even_if_multicast }) => {
                packet.pull(info.transport_at);
                if even_if_multicast || !ip.destination.is_multicast() {
                    self.send_parameter_problem(&info, packet, code, pointer, cx);
                }
                return Err(DropReason::IpMalformed);
            }
            Err(_) => return Err(DropReason::IpMalformed),
        };
        info.protocol = extensions.protocol;
        if let Some(header) = extensions.fragment {
            // Headers behind the fragment header belong to the datagram, not to the fragment.
            info.transport_at += header.header_at + ipv6::FRAGMENT_HEADER_LEN;
            info.fragment = FragmentOf::V6(header);
        } else {
            info.transport_at += extensions.len;
        }
        packet.pull(info.transport_at);
        Ok(info)
    }

    fn receive_ip(&mut self, info: IpInfo, packet: Packet, looped: bool, cx: &mut Context<'_>) {
        let martian = is_martian(info.source) && !may_lack_an_address(&info);
        if !looped && (martian || self.is_local(info.source)) {
            return self.counters.drop(DropReason::SourceMartian);
        }
        if !self.serves(info.destination) {
            return self.counters.drop(DropReason::DestinationNotServed);
        }
        let evicted_before = self.reassembler.evicted_count();
        let (memory, ledger) = (&mut *cx.memory, cx.ledger);
        let outcome = match info.fragment {
            FragmentOf::None => return self.receive_whole(info, packet, cx),
            FragmentOf::V4 => self.reassembler.receive_ipv4(packet, IP_AT, cx.now, memory, ledger),
            FragmentOf::V6(header) => {
                self.reassembler.receive_ipv6(packet, IP_AT, &header, cx.now, memory, ledger)
            }
        };
        for _ in evicted_before..self.reassembler.evicted_count() {
            self.counters.drop(DropReason::Fragment);
        }
        match outcome {
            fragment::Outcome::Incomplete => {}
            fragment::Outcome::Dropped(_) => self.counters.drop(DropReason::Fragment),
            fragment::Outcome::Reassembled(whole) => {
                self.counters.reassembled += 1;
                match fragment::into_received(whole, cx.memory) {
                    Ok(received) => self.receive_frame(received, Way::Reassembled { looped }, cx),
                    Err(_) => self.counters.drop(DropReason::NoMemory),
                }
            }
        }
    }

    fn receive_whole(&mut self, info: IpInfo, mut packet: Packet, cx: &mut Context<'_>) {
        if info.ttl <= 1 && !self.is_local(info.destination) && !is_multicast(info.destination) {
            self.counters.drop(DropReason::TtlExceeded);
            return self.send_time_exceeded(&info, &packet, cx);
        }
        let wanted = self.offer_raw(&info, &packet, cx);
        let done = match info.protocol {
            Protocol::TCP => self.receive_tcp_packet(&info, packet, cx),
            Protocol::UDP => self.receive_udp(&info, packet, cx),
            Protocol::ICMP if info.source.is_ipv4() => self.receive_icmpv4(&info, packet, cx),
            Protocol::ICMPV6 if info.source.is_ipv6() => self.receive_icmpv6(&info, packet, cx),
            Protocol::IGMP if self.is_own(&info) => self.receive_igmp(&info, packet, cx),
            _ if wanted => Ok(()),
            _ => {
                self.send_protocol_unreachable(&info, &mut packet, cx);
                Err(DropReason::ProtocolUnknown)
            }
        };
        if let Err(reason) = done {
            self.counters.drop(reason);
        }
    }

    fn receive_tcp_packet(
        &mut self,
        info: &IpInfo,
        mut packet: Packet,
        cx: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        if is_multicast(info.destination) || !packet.pull_more(tcp::HEADER_LEN) {
            return Err(DropReason::TcpMalformed);
        }
        let header = &packet.headers()[info.transport_at..];
        let header_len = tcp::header_len(header).ok_or(DropReason::TcpMalformed)?;
        if !packet.pull_more(header_len - tcp::HEADER_LEN) {
            return Err(DropReason::TcpMalformed);
        }
        match self.coalesce(info, packet, cx) {
            Some(packet) => self.deliver_tcp(info, packet, cx),
            None => Ok(()),
        }
    }

    /// Processes a TCP packet whose headers end with the TCP header.
    pub(super) fn deliver_tcp(
        &mut self,
        info: &IpInfo,
        mut packet: Packet,
        cx: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        let at = info.transport_at;
        let (header, options) =
            tcp::Header::parse(&packet.headers()[at..]).map_err(|_| DropReason::TcpMalformed)?;
        self.check_checksum(&mut packet, info, DropReason::TcpChecksum, cx)?;
        if options.md5 {
            // RFC 2385 §2.0: dropped silently, as the signature cannot be verified.
            return Err(DropReason::TcpSignature);
        }
        let len = packet.payload_len() as u32;
        let segment = Segment { header, options, len, ecn: info.tos & codepoint::MASK };
        let local = SocketAddr::new(info.destination, header.destination_port);
        let remote = SocketAddr::new(info.source, header.source_port);
        self.receive_tcp(local, remote, &segment, packet, cx);
        Ok(())
    }

    /// Checks offload claims against the headers, and verifies a checksum that nothing vouches for.
    pub(super) fn check_checksum(
        &mut self,
        packet: &mut Packet,
        info: &IpInfo,
        wrong: DropReason,
        cx: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        gso::check_offload(packet, info.layout()).map_err(|_| DropReason::OffloadMalformed)?;
        let vouched = packet.offload().checksum != Checksum::None;
        if vouched || gso::verify_checksum(packet, info.layout(), cx.ledger) {
            return Ok(());
        }
        Err(wrong)
    }

    fn receive_arp(&mut self, packet: &Packet, cx: &mut Context<'_>) {
        let Ok(message) = arp::Packet::parse(&packet.headers()[IP_AT..]) else {
            return self.counters.drop(DropReason::ArpMalformed);
        };
        let sender = IpAddr::V4(message.sender_ip);
        let target = message.target_ip.into();
        if message.sender_ip.is_unspecified() {
            // RFC 5227 §2.1.1: a probe asks whether the address is free.
            if self.is_local(target) && message.operation == arp::Operation::Request {
                self.send_arp_reply(&message, cx);
            }
            return;
        }
        if self.is_local(sender) || is_martian(sender) {
            return self.counters.drop(DropReason::ArpMalformed);
        }
        // A request for the sender's own address announces it (RFC 5227 §3).
        let for_us = self.answers_for(target) && target != sender;
        let asks_us = for_us && message.operation == arp::Operation::Request;
        let announcement = if asks_us { Announcement::Request } else { Announcement::Override };
        let station = Station { mac: message.sender_mac, port: packet.ingress() };
        self.learn_neighbor(sender, station, announcement, cx);
        if asks_us {
            self.send_arp_reply(&message, cx);
        }
    }

    /// True if packets for `destination` are accepted.
    fn serves(&self, destination: IpAddr) -> bool {
        if self.is_local(destination) {
            return true;
        }
        match destination {
            _ if destination.is_multicast() => self.serves_multicast(destination),
            // Addresses on the link belong to other stations.
            IpAddr::V6(address) if address.is_unicast_link_local() => false,
            _ => {
                let is_reached = self.answers_for(destination) || !self.is_on_link(destination);
                self.config.transparent && !is_martian(destination) && is_reached
            }
        }
    }

    /// True if this stack answers when a station asks for the link-layer address of `address`: it
    /// is a local address, or one of the link that [`Stack::answer_for_link`] covers.
    pub(super) fn answers_for(&self, address: IpAddr) -> bool {
        let is_link_local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let is_covered = self.answers_for_link
            && !is_link_local
            && !is_martian(address)
            && !self.config.next_hops.contains(&address);
        is_covered || self.is_local(address)
    }

    /// True for all nodes, all routers, solicited-node groups of the addresses that this stack
    /// answers for (RFC 4291 §2.7.1), and groups with members.
    fn serves_multicast(&self, group: IpAddr) -> bool {
        let is_common = match group {
            IpAddr::V4(group) => group == membership::ALL_SYSTEMS,
            IpAddr::V6(group) => {
                group == membership::ALL_NODES
                    || group == membership::ALL_ROUTERS_V6
                    || self.answers_for_link && is_solicited_node(group)
            }
        };
        is_common || self.memberships.contains(group)
    }

    /// True if a packet is for this stack itself, over IPv4.
    fn is_own(&self, info: &IpInfo) -> bool {
        let is_ours = info.destination.is_multicast() || self.is_local(info.destination);
        info.source.is_ipv4() && is_ours
    }
}

/// Solicited-node multicast address (RFC 4291 §2.7.1).
pub(super) fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let prefix = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0).to_bits();
    Ipv6Addr::from_bits(prefix | (address.to_bits() & 0xff_ffff))
}

/// True for the solicited-node multicast address of any address.
pub(super) fn is_solicited_node(group: Ipv6Addr) -> bool {
    const ADDRESS_BITS: u32 = 24;
    let prefix = solicited_node(Ipv6Addr::UNSPECIFIED).to_bits() >> ADDRESS_BITS;
    group.to_bits() >> ADDRESS_BITS == prefix
}

/// Invalid source addresses, to which packets are not forwarded either.
pub(super) fn is_martian(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            // RFC 1122 §3.2.1.3: this network, loopback, multicast, class E and broadcast.
            v4.octets()[0] == 0
                || v4.is_loopback()
                || v4.octets()[0] >= FIRST_MULTICAST_OCTET
                || v4 == Ipv4Addr::BROADCAST
        }
        IpAddr::V6(v6) => {
            let mapped = v6.to_ipv4_mapped().is_some();
            v6.is_unspecified() || v6.is_loopback() || v6.is_multicast() || mapped
        }
    }
}

/// True if a packet may be a duplicate address detection probe (RFC 4862 §5.4.2) or a query of a
/// switch (RFC 4541 §2.1.1), which have no source address. The handler of the message checks the
/// rest.
fn may_lack_an_address(info: &IpInfo) -> bool {
    info.source.is_unspecified()
        && matches!(info.protocol, Protocol::ICMPV6 | Protocol::IGMP)
        && info.destination.is_multicast()
        && matches!(info.fragment, FragmentOf::None)
}

pub(super) fn is_multicast(address: IpAddr) -> bool {
    address.is_multicast() || address == IpAddr::V4(Ipv4Addr::BROADCAST)
}

/// 224.0.0.0/4 and above are not unicast.
const FIRST_MULTICAST_OCTET: u8 = 224;
