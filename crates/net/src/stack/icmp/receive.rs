//! Received ICMP and ICMPv6 messages.

use super::{Echo, EchoReply};
use crate::checksum;
use crate::counters::DropReason;
use crate::gso;
use crate::stack::ingress::{IpInfo, is_martian, is_multicast};
use crate::stack::{Context, Stack};
use crate::tcp::Seq;
use crate::wire::{Protocol, icmpv4, icmpv6, ipv4, ipv6, membership};
use core::net::{IpAddr, SocketAddr};
use towpath_packet::{Checksum, Packet};

impl Stack {
    pub(in crate::stack) fn receive_icmpv4(
        &mut self,
        info: &IpInfo,
        mut packet: Packet,
        cx: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        let vouched = packet.offload().checksum != Checksum::None;
        let right = || gso::transport_sum(&packet, info.transport_at, cx.ledger).finish() == 0;
        if !(vouched || right()) || !packet.pull_more(icmpv4::HEADER_LEN) {
            return Err(DropReason::IcmpMalformed);
        }
        let message = icmpv4::Message::parse(&packet.headers()[info.transport_at..])
            .map_err(|_| DropReason::IcmpMalformed)?;
        match message {
            icmpv4::Message::EchoRequest { ident, sequence } => {
                self.receive_echo(info, ident, sequence, packet, cx)
            }
            icmpv4::Message::DestinationUnreachable { code, next_hop_mtu } => {
                let mtu = (code == icmpv4::FRAGMENTATION_NEEDED).then_some(next_hop_mtu);
                self.receive_error(info, packet, ipv4::HEADER_LEN, mtu.map(u32::from), cx)
            }
            icmpv4::Message::TimeExceeded { .. } | icmpv4::Message::ParameterProblem { .. } => {
                self.receive_datagram_error(info, packet, ipv4::HEADER_LEN)
            }
            _ => Err(DropReason::IcmpIgnored),
        }
    }

    pub(in crate::stack) fn receive_icmpv6(
        &mut self,
        info: &IpInfo,
        mut packet: Packet,
        cx: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        let vouched = packet.offload().checksum != Checksum::None;
        let right = || {
            let (len, protocol) = (packet.payload_len() as u32, Protocol::ICMPV6);
            // The pseudo-header comes first: bytes behind an odd length would be summed with the
            // wrong parity.
            let mut sum = checksum::pseudo_header(info.source, info.destination, protocol, len);
            sum.add_sum(gso::transport_sum(&packet, info.transport_at, cx.ledger));
            sum.finish() == 0
        };
        if !(vouched || right()) || !packet.pull_more(icmpv6::HEADER_LEN) {
            return Err(DropReason::IcmpMalformed);
        }
        let kind = packet.headers()[info.transport_at];
        if is_martian(info.source) && kind != NEIGHBOR_SOLICITATION {
            return Err(DropReason::SourceMartian);
        }
        if kind == membership::MLD_QUERY || kind == membership::MLD_REPORT {
            return self.receive_membership(info, packet, cx);
        }
        if NEIGHBOR_KINDS.contains(&kind) {
            return self.receive_discovery(info, packet, cx);
        }
        let message = icmpv6::Message::parse(&packet.headers()[info.transport_at..])
            .map_err(|_| DropReason::IcmpMalformed)?;
        match message {
            icmpv6::Message::EchoRequest { ident, sequence } => {
                self.receive_echo(info, ident, sequence, packet, cx)
            }
            icmpv6::Message::PacketTooBig { mtu } => {
                self.receive_error(info, packet, ipv6::HEADER_LEN, Some(mtu), cx)
            }
            icmpv6::Message::DestinationUnreachable { .. } => {
                self.receive_error(info, packet, ipv6::HEADER_LEN, None, cx)
            }
            icmpv6::Message::TimeExceeded { .. } | icmpv6::Message::ParameterProblem { .. } => {
                self.receive_datagram_error(info, packet, ipv6::HEADER_LEN)
            }
            _ => Err(DropReason::IcmpIgnored),
        }
    }

    fn receive_echo(
        &mut self,
        info: &IpInfo,
        ident: u16,
        sequence: u16,
        packet: Packet,
        cx: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        if is_multicast(info.destination) {
            return Err(DropReason::IcmpIgnored);
        }
        let mut packet = packet;
        let Some(mut payload) = cx.memory.packet() else { return Err(DropReason::NoMemory) };
        payload.set_ingress(packet.ingress());
        for piece in packet.take_pieces() {
            payload.push_piece(piece).map_err(|_| DropReason::TooLarge)?;
        }
        let (local, remote) = (info.destination, info.source);
        if self.is_local(info.destination) {
            let reply = EchoReply { local, remote, ident, sequence, packet: payload };
            self.echo_reply(reply, cx);
        } else if self.echoes.len() >= self.config.limits.datagrams {
            return Err(DropReason::EchoQueueFull);
        } else {
            let (ttl, dont_fragment) = (info.ttl, info.dont_fragment);
            let packet = payload;
            self.echoes.push_back(Echo {
                local,
                remote,
                ident,
                sequence,
                ttl,
                dont_fragment,
                packet,
            });
        }
        Ok(())
    }

    /// Processes an error about a sent packet, if it quotes an existing connection, a fragment that
    /// was sent lately, or a datagram whose owner wants errors.
    fn receive_error(
        &mut self,
        info: &IpInfo,
        mut packet: Packet,
        ip_len: usize,
        mtu: Option<u32>,
        cx: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        let at = packet.headers().len();
        let quoted = Quoted::pull(&mut packet, ip_len, info)?;
        let mut learnt = false;
        if let Some(ident) = quoted.fragment {
            // Ports may be missing, but the identification cannot be guessed off the path.
            if !self.idents.was_taken((quoted.source, quoted.destination), ident) {
                return Err(DropReason::IcmpOutOfWindow);
            }
            if let Some(mtu) = mtu {
                self.learn_path_mtu(quoted.destination, mtu, cx.now);
                learnt = true;
            }
        }
        let reported = match quoted.protocol {
            Some(Protocol::UDP) => self.receive_udp_error(info, packet, at, &quoted),
            Some(Protocol::TCP) => self.receive_tcp_error(&packet, at, &quoted, mtu, cx),
            _ => Err(DropReason::IcmpIgnored),
        };
        if learnt { Ok(()) } else { reported }
    }

    fn receive_tcp_error(
        &mut self,
        packet: &Packet,
        at: usize,
        quoted: &Quoted,
        mtu: Option<u32>,
        cx: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        let transport = &packet.headers()[at + quoted.transport_at..];
        let port = |at: usize| u16::from_be_bytes([transport[at], transport[at + 1]]);
        let sequence = u32::from_be_bytes([transport[4], transport[5], transport[6], transport[7]]);
        let local = SocketAddr::new(quoted.source, port(0));
        let remote = SocketAddr::new(quoted.destination, port(2));
        self.tcp_error(local, remote, Seq(sequence), mtu, cx)
    }

    /// Processes an error that matters only for datagrams.
    fn receive_datagram_error(
        &mut self,
        info: &IpInfo,
        mut packet: Packet,
        ip_len: usize,
    ) -> Result<(), DropReason> {
        let at = packet.headers().len();
        let quoted = Quoted::pull(&mut packet, ip_len, info)?;
        match quoted.protocol {
            Some(Protocol::UDP) => self.receive_udp_error(info, packet, at, &quoted),
            _ => Err(DropReason::IcmpIgnored),
        }
    }
}

/// Headers of a sent packet as an error quotes them.
pub(in crate::stack) struct Quoted {
    pub(in crate::stack) source: IpAddr,
    pub(in crate::stack) destination: IpAddr,
    /// Protocol of the quoted transport header; `None` for a fragment other than the first.
    protocol: Option<Protocol>,
    /// Offset of the transport header from the quoted IP header. Its first [`QUOTED_TRANSPORT`]
    /// bytes are present.
    pub(in crate::stack) transport_at: usize,
    /// Identification of an IPv6 fragment.
    fragment: Option<u32>,
}

impl Quoted {
    /// Pulls the quoted IP header, an IPv6 fragment header behind it, and the first bytes of the
    /// transport header. An error goes to the source of the packet that it quotes (RFC 792).
    fn pull(packet: &mut Packet, ip_len: usize, info: &IpInfo) -> Result<Self, DropReason> {
        let quoted = Self::pull_any(packet, ip_len)?;
        if quoted.source == info.destination {
            Ok(quoted)
        } else {
            Err(DropReason::IcmpOutOfWindow)
        }
    }

    fn pull_any(packet: &mut Packet, ip_len: usize) -> Result<Self, DropReason> {
        let at = packet.headers().len();
        if !packet.pull_more(ip_len + QUOTED_TRANSPORT) {
            return Err(DropReason::IcmpMalformed);
        }
        let bytes = &packet.headers()[at..];
        if ip_len == ipv4::HEADER_LEN {
            let ip = ipv4::Header::parse_quoted(bytes).map_err(|_| DropReason::IcmpMalformed)?;
            return Ok(Self {
                source: ip.source.into(),
                destination: ip.destination.into(),
                protocol: (ip.fragment_offset == 0).then_some(ip.protocol),
                transport_at: ip_len,
                fragment: None,
            });
        }
        let ip = ipv6::Header::parse(bytes, usize::MAX).map_err(|_| DropReason::IcmpMalformed)?;
        let mut quoted = Self {
            source: ip.source.into(),
            destination: ip.destination.into(),
            protocol: Some(ip.next_header),
            transport_at: ip_len,
            fragment: None,
        };
        if ip.next_header == Protocol::IPV6_FRAGMENT {
            // RFC 8200 §4.5: next header, reserved, offset and flag, identification. Sent packets
            // have no other extension header before it.
            let [next, _, high, low, a, b, c, d] = bytes[ip_len..][..QUOTED_TRANSPORT] else {
                return Err(DropReason::IcmpMalformed);
            };
            let is_first = u16::from_be_bytes([high, low]) >> 3 == 0;
            quoted.fragment = Some(u32::from_be_bytes([a, b, c, d]));
            quoted.transport_at += ipv6::FRAGMENT_HEADER_LEN;
            quoted.protocol = is_first.then_some(Protocol(next));
            if is_first && !packet.pull_more(QUOTED_TRANSPORT) {
                return Err(DropReason::IcmpMalformed);
            }
        }
        Ok(quoted)
    }
}

/// ICMPv6 type of a neighbour solicitation (RFC 4861 §4.3).
const NEIGHBOR_SOLICITATION: u8 = 135;
/// ICMPv6 types of router and neighbour solicitations and advertisements, and redirects.
const NEIGHBOR_KINDS: core::ops::RangeInclusive<u8> = 133..=137;
/// Bytes of the transport header in every error (RFC 792): ports and sequence number.
const QUOTED_TRANSPORT: usize = 8;
