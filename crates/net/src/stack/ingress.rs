//! Receiving: from a frame to a connection, a datagram or an answer.

use super::{Context, Stack};
use crate::counters::DropReason;
use crate::fragment;
use crate::gso;
use crate::tcp::Segment;
use crate::tcp::ecn::codepoint;
use crate::wire::ethernet::{self, EtherType};
use crate::wire::headers::{Headers, Part, Version};
use crate::wire::ipv6::ExtensionError;
use crate::wire::{MacAddr, ParseError, Protocol, ipv4, ipv6, membership, tcp};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::ops::Deref;
use towpath_packet::{Checksum, Packet};

/// Offset of the IP header in a frame.
pub(super) const IP_AT: usize = ethernet::HEADER_LEN;

/// Headers of a received packet, and fields of its IP header, from their private copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct IpInfo {
    pub(super) headers: Headers,
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) ttl: u8,
    pub(super) tos: u8,
    pub(super) source_mac: MacAddr,
    /// The packet may not be fragmented: DF is set, or it is IPv6.
    pub(super) dont_fragment: bool,
}

/// Result of [`parse`].
pub(super) struct Parsed {
    pub(super) info: IpInfo,
    /// Bytes of the frame, without padding.
    len: usize,
    extensions: Extensions,
}

/// What IPv6 extension headers ask for.
enum Extensions {
    Nothing,
    Fragment(ipv6::Fragment),
    /// The packet is dropped and answered with an ICMPv6 Parameter Problem.
    Problem {
        code: u8,
        pointer: u32,
    },
}

impl Deref for IpInfo {
    type Target = Headers;

    fn deref(&self) -> &Headers {
        &self.headers
    }
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

impl Stack {
    pub(super) fn receive(&mut self, packet: Packet, cx: &mut Context<'_>) {
        self.counters.packets_in += 1;
        self.counters.bytes_in += packet.len() as u64;
        self.counters.super_packets_in += u64::from(packet.offload().gso.is_some());
        self.receive_frame(packet, Way::Device, cx);
    }

    /// Processes a frame without headers of its own.
    pub(super) fn receive_frame(&mut self, mut packet: Packet, way: Way, cx: &mut Context<'_>) {
        let Ok(frame) = ethernet::Header::parse(packet.peek_headers()) else {
            return self.counters.drop(DropReason::EthernetMalformed);
        };
        if frame.destination != self.config.mac && frame.destination.is_unicast() {
            return self.counters.drop(DropReason::NotForUs);
        }
        let parsed = match frame.ethertype {
            EtherType::IPV4 | EtherType::IPV6 => parse(&packet, &frame),
            EtherType::ARP => return self.receive_arp(&packet, frame.destination, cx),
            _ => Err(DropReason::EtherTypeUnknown),
        };
        let Parsed { mut info, len, extensions } = match parsed {
            Ok(parsed) => parsed,
            Err(reason) => return self.counters.drop(reason),
        };
        // Bytes behind the packet are padding of the frame.
        packet.truncate(len);
        // A raw socket takes the transport header in pieces.
        packet.pull(if self.wants_raw() { info.transport_at } else { info.end });
        let fragment = match extensions {
            Extensions::Nothing => None,
            Extensions::Fragment(fragment) => Some(fragment),
            Extensions::Problem { code, pointer } => {
                self.send_parameter_problem(&info, &packet, code, pointer, cx);
                return self.counters.drop(DropReason::IpMalformed);
            }
        };
        // RFC 1122 §3.3.6: a link-layer broadcast with a unicast IP destination is dropped.
        if frame.destination.is_multicast() && !is_multicast(info.destination) {
            return self.counters.drop(DropReason::NotForUs);
        }
        info.dont_fragment &= !way.is_reassembled();
        self.receive_ip(info, fragment, packet, way, cx);
    }

    /// Input: every received IP packet, of the device or looped, passes here with its headers
    /// pulled. Fragments wait for the others of their packet.
    pub(super) fn receive_ip(
        &mut self,
        info: IpInfo,
        fragment: Option<ipv6::Fragment>,
        packet: Packet,
        way: Way,
        cx: &mut Context<'_>,
    ) {
        let looped = way.is_looped();
        let martian = is_martian(info.source) && !may_lack_an_address(&info);
        if !looped && (martian || self.is_local(info.source)) {
            return self.counters.drop(DropReason::SourceMartian);
        }
        if !self.serves(info.destination) {
            return self.counters.drop(DropReason::DestinationNotServed);
        }
        if info.part == Part::Whole {
            return self.deliver(&info, packet, looped, cx);
        }
        let evicted_before = self.reassembler.evicted_count();
        let (memory, ledger) = (&mut *cx.memory, cx.ledger);
        let outcome = match fragment {
            None => self.reassembler.receive_ipv4(packet, IP_AT, cx.now, memory, ledger),
            Some(header) => {
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

    /// Local delivery: every whole packet that this stack takes passes here on its way to its
    /// protocol.
    fn deliver(&mut self, info: &IpInfo, mut packet: Packet, looped: bool, cx: &mut Context<'_>) {
        if info.ttl <= 1 && !self.is_local(info.destination) && !is_multicast(info.destination) {
            self.counters.drop(DropReason::TtlExceeded);
            return self.send_time_exceeded(info, &packet, cx);
        }
        let wanted = self.offer_raw(info, &packet, cx);
        let pulled = packet.headers().len();
        if pulled < info.end {
            packet.pull_more(info.end - pulled);
        }
        let done = match info.protocol {
            Protocol::TCP => self.receive_tcp_packet(info, packet, looped, cx),
            Protocol::UDP => self.receive_udp(info, packet, looped, cx),
            Protocol::ICMP if info.source.is_ipv4() => self.receive_icmpv4(info, packet, cx),
            Protocol::ICMPV6 if info.source.is_ipv6() => self.receive_icmpv6(info, packet, cx),
            Protocol::IGMP if self.is_own(info) => self.receive_igmp(info, packet, cx),
            _ if wanted => Ok(()),
            _ => {
                self.send_protocol_unreachable(info, &mut packet, cx);
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
        packet: Packet,
        looped: bool,
        cx: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        if is_multicast(info.destination) || info.transport.is_none() {
            return Err(DropReason::TcpMalformed);
        }
        match self.coalesce(info, packet, looped, cx) {
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
        gso::check_offload(packet, info).map_err(|_| DropReason::OffloadMalformed)?;
        let vouched = packet.offload().checksum != Checksum::None;
        if vouched || gso::verify_checksum(packet, info, cx.ledger) {
            return Ok(());
        }
        Err(wrong)
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

/// Checks the IP header of a frame, and finds the headers behind it.
pub(super) fn parse(packet: &Packet, frame: &ethernet::Header) -> Result<Parsed, DropReason> {
    let bytes = packet.headers();
    let mut parsed = match frame.ethertype {
        EtherType::IPV4 => parse_ipv4(&bytes[IP_AT..], packet.len() - IP_AT)?,
        _ => parse_ipv6(&bytes[IP_AT..], packet.len() - IP_AT)?,
    };
    let Parsed { info, len, .. } = &mut parsed;
    info.source_mac = frame.source;
    let bytes = &bytes[..bytes.len().min(*len)];
    // Without a whole transport header, its protocol drops the packet.
    info.headers = info.headers.with_transport(bytes).unwrap_or(info.headers);
    Ok(parsed)
}

fn parse_ipv4(bytes: &[u8], len: usize) -> Result<Parsed, DropReason> {
    let ip = ipv4::Header::parse(bytes, len).map_err(|error| match error {
        ParseError::BadChecksum => DropReason::IpChecksum,
        _ => DropReason::IpMalformed,
    })?;
    if ip.has_source_route {
        return Err(DropReason::SourceRoute);
    }
    let part = Part::of(ip.fragment_offset, ip.more_fragments);
    let info = IpInfo {
        headers: Headers::new(Version::V4, IP_AT, ip.header_len.into(), ip.protocol, part),
        source: ip.source.into(),
        destination: ip.destination.into(),
        ttl: ip.ttl,
        tos: ip.tos,
        source_mac: MacAddr::UNSPECIFIED,
        dont_fragment: ip.dont_fragment,
    };
    let len = IP_AT + usize::from(ip.total_len);
    Ok(Parsed { info, len, extensions: Extensions::Nothing })
}

fn parse_ipv6(bytes: &[u8], len: usize) -> Result<Parsed, DropReason> {
    let ip = ipv6::Header::parse(bytes, len).map_err(|_| DropReason::IpMalformed)?;
    let payload_len = usize::from(ip.payload_len);
    let rest = &bytes[ipv6::HEADER_LEN..];
    let rest = &rest[..rest.len().min(payload_len)];
    let headers = |len, protocol, part| {
        Headers::new(Version::V6, IP_AT, ipv6::HEADER_LEN + len, protocol, part)
    };
    let mut info = IpInfo {
        headers: headers(0, ip.next_header, Part::Whole),
        source: ip.source.into(),
        destination: ip.destination.into(),
        ttl: ip.hop_limit,
        tos: ip.traffic_class,
        source_mac: MacAddr::UNSPECIFIED,
        dont_fragment: true,
    };
    let len = IP_AT + ipv6::HEADER_LEN + payload_len;
    let extensions = match ipv6::Extensions::walk(ip.next_header, rest, payload_len) {
        Ok(extensions) => extensions,
        Err(ExtensionError::ParameterProblem { code, pointer, even_if_multicast })
            if even_if_multicast || !ip.destination.is_multicast() =>
        {
            return Ok(Parsed { info, len, extensions: Extensions::Problem { code, pointer } });
        }
        Err(_) => return Err(DropReason::IpMalformed),
    };
    let Some(fragment) = extensions.fragment else {
        info.headers = headers(extensions.len, extensions.protocol, Part::Whole);
        return Ok(Parsed { info, len, extensions: Extensions::Nothing });
    };
    // Headers behind the fragment header belong to the datagram, not to the fragment.
    let fragment_end = fragment.header_at + ipv6::FRAGMENT_HEADER_LEN;
    let part = Part::of(fragment.offset_bytes, true);
    info.headers = headers(fragment_end, extensions.protocol, part);
    Ok(Parsed { info, len, extensions: Extensions::Fragment(fragment) })
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
        && info.part == Part::Whole
}

pub(super) fn is_multicast(address: IpAddr) -> bool {
    address.is_multicast() || address == IpAddr::V4(Ipv4Addr::BROADCAST)
}

/// 224.0.0.0/4 and above are not unicast.
const FIRST_MULTICAST_OCTET: u8 = 224;
