//! ICMP, ICMPv6 and neighbour discovery on the way in.

use super::Echo;
use crate::checksum;
use crate::counters::DropReason;
use crate::gso;
use crate::stack::ingress::{IpInfo, is_multicast};
use crate::stack::{Context, Stack};
use crate::tcp::Seq;
use crate::wire::{Protocol, icmpv4, icmpv6, ipv4, ipv6};
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
            // The pseudo-header first: what follows an odd number of bytes counts differently.
            let mut sum = checksum::pseudo_header(info.source, info.destination, protocol, len);
            sum.add_sum(gso::transport_sum(&packet, info.transport_at, cx.ledger));
            sum.finish() == 0
        };
        if !(vouched || right()) || !packet.pull_more(icmpv6::HEADER_LEN) {
            return Err(DropReason::IcmpMalformed);
        }
        let kind = packet.headers()[info.transport_at];
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
        let echo = Echo { local, remote, ident, sequence, packet: payload };
        if self.is_local(info.destination) {
            self.echo_reply(echo, cx);
        } else if self.echoes.len() >= self.config.limits.datagrams {
            return Err(DropReason::UdpQueueFull);
        } else {
            self.echoes.push_back(echo);
        }
        Ok(())
    }

    /// RFC 4861 §7.1: what came from off the link is no discovery.
    fn receive_discovery(
        &mut self,
        info: &IpInfo,
        mut packet: Packet,
        cx: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        let rest = packet.payload_len();
        if info.ttl != icmpv6::HOP_LIMIT || !packet.pull_more(rest) {
            return Err(DropReason::NeighborMalformed);
        }
        let message = icmpv6::Message::parse(&packet.headers()[info.transport_at..])
            .map_err(|_| DropReason::NeighborMalformed)?;
        match message {
            icmpv6::Message::NeighborSolicitation { target, source_link_layer } => {
                if !self.is_local(target.into()) {
                    return Ok(());
                }
                let mac = source_link_layer.unwrap_or(info.source_mac);
                self.learn_neighbor(info.source, mac, true, cx);
                let answer = icmpv6::Message::NeighborAdvertisement {
                    target,
                    target_link_layer: Some(self.config.mac),
                    router: self.config.transparent,
                    solicited: true,
                    override_: true,
                };
                self.send_icmpv6(&answer, target.into(), info.source, icmpv6::HOP_LIMIT, cx);
                Ok(())
            }
            icmpv6::Message::NeighborAdvertisement { target, target_link_layer, .. } => {
                if let Some(mac) = target_link_layer
                    && !self.is_local(target.into())
                {
                    self.learn_neighbor(target.into(), mac, false, cx);
                }
                Ok(())
            }
            _ => Err(DropReason::IcmpIgnored),
        }
    }

    /// An error about a packet of ours: acted on if it quotes a connection that exists, or a
    /// datagram whose owner wants to know.
    fn receive_error(
        &mut self,
        info: &IpInfo,
        mut packet: Packet,
        ip_len: usize,
        mtu: Option<u32>,
        cx: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        let at = packet.headers().len();
        let (source, destination, protocol) = quoted(&mut packet, ip_len)?;
        if protocol == Protocol::UDP {
            return self.receive_udp_error(info, packet, (at, ip_len), (source, destination));
        }
        if protocol != Protocol::TCP {
            return Err(DropReason::IcmpIgnored);
        }
        let quoted = &packet.headers()[at..];
        let transport = &quoted[ip_len..];
        let port = |at: usize| u16::from_be_bytes([transport[at], transport[at + 1]]);
        let sequence = u32::from_be_bytes([transport[4], transport[5], transport[6], transport[7]]);
        let (local, remote) =
            (SocketAddr::new(source, port(0)), SocketAddr::new(destination, port(2)));
        self.tcp_error(local, remote, Seq(sequence), mtu, cx)
    }

    /// An error that matters to datagrams only.
    fn receive_datagram_error(
        &mut self,
        info: &IpInfo,
        mut packet: Packet,
        ip_len: usize,
    ) -> Result<(), DropReason> {
        let at = packet.headers().len();
        match quoted(&mut packet, ip_len)? {
            (source, destination, Protocol::UDP) => {
                self.receive_udp_error(info, packet, (at, ip_len), (source, destination))
            }
            _ => Err(DropReason::IcmpIgnored),
        }
    }
}

/// Pulls the quoted IP header and what every error quotes of the next; what the former says.
fn quoted(packet: &mut Packet, ip_len: usize) -> Result<(IpAddr, IpAddr, Protocol), DropReason> {
    let at = packet.headers().len();
    if !packet.pull_more(ip_len + QUOTED_TRANSPORT) {
        return Err(DropReason::IcmpMalformed);
    }
    let bytes = &packet.headers()[at..];
    if ip_len == ipv4::HEADER_LEN {
        let ip = ipv4::Header::parse_quoted(bytes).map_err(|_| DropReason::IcmpMalformed)?;
        Ok((ip.source.into(), ip.destination.into(), ip.protocol))
    } else {
        let ip = ipv6::Header::parse(bytes, usize::MAX).map_err(|_| DropReason::IcmpMalformed)?;
        Ok((ip.source.into(), ip.destination.into(), ip.next_header))
    }
}

/// Router and neighbour solicitations and advertisements, and redirects.
const NEIGHBOR_KINDS: core::ops::RangeInclusive<u8> = 133..=137;
/// Bytes of the transport header that every error quotes (RFC 792): ports and sequence number.
const QUOTED_TRANSPORT: usize = 8;
