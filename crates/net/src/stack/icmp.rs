//! ICMP (RFC 792, RFC 1122 §3.2.2) and ICMPv6 (RFC 4443).
//!
//! Echo requests to local addresses are answered here without a copy of the payload; requests to
//! other addresses go to the owner. ICMP errors are sent for packets that cannot be delivered, at a
//! limited rate, but never about errors, multicast packets or fragments other than the first.

mod limit;
mod receive;

use super::egress::{Marks, TTL_DEFAULT};
use super::ingress::{IP_AT, IpInfo, is_martian, is_multicast};
use super::{Context, Datagram, Stack};
use crate::checksum;
use crate::counters::DropReason;
use crate::gso;
use crate::wire::{Protocol, icmpv4, icmpv6, ipv4, ipv6, tcp, udp};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use towpath_packet::{Packet, Site};

pub(super) use limit::RateLimit;
pub(super) use receive::Quoted;

/// Maximum size of an IPv4 error message, headers included (RFC 1812 §4.3.2.3).
const ERROR_BYTES_V4: usize = 576;
/// Maximum size of an IPv6 error message, headers included (RFC 4443 §2.4 c).
const ERROR_BYTES_V6: usize = 1280;

/// An echo request for an address that is not local.
pub struct Echo {
    /// Destination of the request.
    pub local: IpAddr,
    /// Source of the request.
    pub remote: IpAddr,
    /// Identifier.
    pub ident: u16,
    /// Sequence number.
    pub sequence: u16,
    /// Time to live or hop limit.
    pub ttl: u8,
    /// The request may not be fragmented: DF was set, or over IPv6 it was not fragmented by its
    /// sender.
    pub dont_fragment: bool,
    /// Packet whose pieces are the payload.
    pub packet: Packet,
}

/// The answer to an echo request.
pub struct EchoReply {
    /// Destination of the request, and source of the reply.
    pub local: IpAddr,
    /// Source of the request, and destination of the reply.
    pub remote: IpAddr,
    /// Identifier.
    pub ident: u16,
    /// Sequence number.
    pub sequence: u16,
    /// Packet whose pieces are the payload.
    pub packet: Packet,
}

impl From<Echo> for EchoReply {
    fn from(echo: Echo) -> Self {
        let Echo { local, remote, ident, sequence, packet, .. } = echo;
        Self { local, remote, ident, sequence, packet }
    }
}

/// Reason of an ICMP error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// No route to the network.
    Network,
    /// The host does not answer.
    Host,
    /// No socket has the port.
    Port,
    /// Prohibited by policy.
    Prohibited,
    /// The datagram is larger than this MTU and may not be fragmented.
    TooBig(u16),
    /// Another destination unreachable code of the family.
    Because(u8),
    /// Time exceeded with this code: in transit, or during reassembly.
    Expired(u8),
}

/// An ICMP error received for a packet that was forwarded.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// Reason of the error.
    pub why: Unreachable,
    /// Sender of the error. If `None`, martian, on the link or the packet's own source, the error
    /// is sent from a local address, or for [`Unreachable::Port`] from the packet's destination.
    pub from: Option<IpAddr>,
    /// Quoted part of the packet's payload.
    pub data: &'a [u8],
}

impl From<Unreachable> for Report<'_> {
    fn from(why: Unreachable) -> Self {
        Self { why, from: None, data: &[] }
    }
}

impl Unreachable {
    fn v4(self) -> icmpv4::Message {
        let (code, next_hop_mtu) = match self {
            Unreachable::Network => (icmpv4::NETWORK_UNREACHABLE, 0),
            Unreachable::Host => (icmpv4::HOST_UNREACHABLE, 0),
            Unreachable::Port => (icmpv4::PORT_UNREACHABLE, 0),
            Unreachable::Prohibited => (icmpv4::ADMINISTRATIVELY_PROHIBITED, 0),
            Unreachable::TooBig(mtu) => (icmpv4::FRAGMENTATION_NEEDED, mtu),
            Unreachable::Because(code) => (code, 0),
            Unreachable::Expired(code) => return icmpv4::Message::TimeExceeded { code },
        };
        icmpv4::Message::DestinationUnreachable { code, next_hop_mtu }
    }

    fn v6(self) -> icmpv6::Message {
        let code = match self {
            Unreachable::Network => icmpv6::NO_ROUTE,
            Unreachable::Host => icmpv6::ADDRESS_UNREACHABLE,
            Unreachable::Port => icmpv6::PORT_UNREACHABLE,
            Unreachable::Prohibited => icmpv6::ADMINISTRATIVELY_PROHIBITED,
            Unreachable::TooBig(mtu) => {
                return icmpv6::Message::PacketTooBig { mtu: u32::from(mtu) };
            }
            Unreachable::Because(code) => code,
            Unreachable::Expired(code) => return icmpv6::Message::TimeExceeded { code },
        };
        icmpv6::Message::DestinationUnreachable { code }
    }
}

/// Beginning of the packet that an error is about.
struct Quote {
    source: IpAddr,
    destination: IpAddr,
    bytes: Vec<u8>,
}

impl Stack {
    /// Takes the next echo request for an address that is not local.
    pub fn next_echo(&mut self) -> Option<Echo> {
        self.echoes.pop_front()
    }

    /// Sends an echo reply from the address that was asked.
    pub fn echo_reply(&mut self, echo: EchoReply, cx: &mut Context<'_>) {
        let EchoReply { local, remote, ident, sequence, mut packet } = echo;
        let header = packet.push_header(icmpv4::HEADER_LEN);
        let protocol = if local.is_ipv4() {
            icmpv4::Message::EchoReply { ident, sequence }.emit(header);
            Protocol::ICMP
        } else {
            icmpv6::Message::EchoReply { ident, sequence }.emit(header);
            Protocol::ICMPV6
        };
        self.finish_icmp(packet, protocol, local, remote, TTL_DEFAULT, cx);
    }

    /// Sends an ICMP error about an echo request from `remote` to `local`.
    pub fn echo_unreachable(
        &mut self,
        local: IpAddr,
        remote: IpAddr,
        (ident, sequence): (u16, u16),
        why: Unreachable,
        cx: &mut Context<'_>,
    ) {
        self.report_echo(local, remote, (ident, sequence), &why.into(), cx);
    }

    /// Forwards an ICMP error about an echo request from `remote` to `local`.
    pub fn report_echo(
        &mut self,
        local: IpAddr,
        remote: IpAddr,
        (ident, sequence): (u16, u16),
        report: &Report<'_>,
        cx: &mut Context<'_>,
    ) {
        let mut transport = [0; icmpv4::HEADER_LEN];
        let protocol = if local.is_ipv4() {
            icmpv4::Message::EchoRequest { ident, sequence }.emit(&mut transport);
            Protocol::ICMP
        } else {
            icmpv6::Message::EchoRequest { ident, sequence }.emit(&mut transport);
            Protocol::ICMPV6
        };
        let quote = rebuilt((local, remote), protocol, &transport, report);
        self.send_unreachable(quote, report, cx);
    }

    /// Sends an ICMP error about datagrams from `remote` to `local`.
    pub fn udp_unreachable(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        why: Unreachable,
        cx: &mut Context<'_>,
    ) {
        self.report_udp(local, remote, &why.into(), cx);
    }

    /// Forwards an ICMP error about a datagram from `remote` to `local`.
    pub fn report_udp(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        report: &Report<'_>,
        cx: &mut Context<'_>,
    ) {
        let mut transport = [0; udp::HEADER_LEN];
        let header = udp::Header {
            source_port: remote.port(),
            destination_port: local.port(),
            length: (udp::HEADER_LEN + report.data.len()) as u16,
            checksum: 0,
        };
        header.emit(&mut transport);
        let quote = rebuilt((local.ip(), remote.ip()), Protocol::UDP, &transport, report);
        self.send_unreachable(quote, report, cx);
    }

    /// Sends a port unreachable error that quotes the datagram.
    pub(crate) fn refuse_datagram(&mut self, datagram: &Datagram, cx: &mut Context<'_>) {
        let (source, destination) = (datagram.remote.ip(), datagram.local.ip());
        if let Some(quote) = self.quote(source, destination, &datagram.packet, cx) {
            self.send_unreachable(quote, &Unreachable::Port.into(), cx);
        }
    }

    /// Sends a host unreachable error that quotes the packet.
    pub(super) fn host_unreachable(
        &mut self,
        source: IpAddr,
        destination: IpAddr,
        packet: &Packet,
        cx: &mut Context<'_>,
    ) {
        if let Some(quote) = self.quote(source, destination, packet, cx) {
            self.send_unreachable(quote, &Unreachable::Host.into(), cx);
        }
    }

    /// Refuses an incoming connection with an ICMP error and releases it.
    pub fn tcp_unreachable(
        &mut self,
        handle: super::TcpHandle,
        why: Unreachable,
        cx: &mut Context<'_>,
    ) {
        let Some(connection) = self.tcp(handle) else { return };
        let (local, remote) = (connection.local(), connection.remote());
        let header = tcp::Header {
            source_port: remote.port(),
            destination_port: local.port(),
            sequence: connection.irs(),
            acknowledgment: 0,
            flags: tcp::Flags::SYN,
            window: 0,
            checksum: 0,
            urgent: 0,
            header_len: 0,
        };
        let mut transport = [0; tcp::HEADER_LEN];
        header.emit(&tcp::Options::default(), &mut transport);
        let report = Report::from(why);
        let quote = rebuilt((local.ip(), remote.ip()), Protocol::TCP, &transport, &report);
        self.with_tcp(handle, cx.now, |connection| connection.abort());
        self.tcp_release(handle, cx.now);
        self.send_unreachable(quote, &report, cx);
    }

    fn send_unreachable(&mut self, quote: Quote, report: &Report<'_>, cx: &mut Context<'_>) {
        let why = report.why;
        // A forged error from outside must not appear to come from a station of the link.
        let from = report.from.filter(|from| {
            let family = from.is_ipv4() == quote.source.is_ipv4();
            family && !is_martian(*from) && !self.is_on_link(*from) && *from != quote.source
        });
        // A port unreachable comes from the destination host, other errors from a router.
        let from = match why {
            Unreachable::Port => from.or(Some(quote.destination)),
            _ => from.or_else(|| self.our_address(quote.source)),
        };
        let Some(from) = from else { return };
        if quote.source.is_ipv4() {
            self.send_error_v4(&why.v4(), quote, from, cx);
        } else {
            self.send_error_v6(&why.v6(), quote, from, cx);
        }
    }

    pub(super) fn send_time_exceeded(
        &mut self,
        info: &IpInfo,
        packet: &Packet,
        cx: &mut Context<'_>,
    ) {
        let Some(from) = self.our_address(info.source) else { return };
        let Some(quote) = self.quote(info.source, info.destination, packet, cx) else { return };
        if info.source.is_ipv4() {
            let message = icmpv4::Message::TimeExceeded { code: icmpv4::TTL_EXCEEDED };
            self.send_error_v4(&message, quote, from, cx);
        } else {
            let message = icmpv6::Message::TimeExceeded { code: icmpv6::HOP_LIMIT_EXCEEDED };
            self.send_error_v6(&message, quote, from, cx);
        }
    }

    pub(super) fn send_protocol_unreachable(
        &mut self,
        info: &IpInfo,
        packet: &mut Packet,
        cx: &mut Context<'_>,
    ) {
        if is_multicast(info.destination) {
            return;
        }
        let Some(from) = self.our_address(info.source) else { return };
        let Some(quote) = self.quote(info.source, info.destination, packet, cx) else { return };
        if info.source.is_ipv4() {
            let code = icmpv4::PROTOCOL_UNREACHABLE;
            let message = icmpv4::Message::DestinationUnreachable { code, next_hop_mtu: 0 };
            self.send_error_v4(&message, quote, from, cx);
        } else {
            let pointer = IPV6_NEXT_HEADER_AT;
            let code = icmpv6::UNRECOGNIZED_NEXT_HEADER;
            let message = icmpv6::Message::ParameterProblem { code, pointer };
            self.send_error_v6(&message, quote, from, cx);
        }
    }

    pub(super) fn send_parameter_problem(
        &mut self,
        info: &IpInfo,
        packet: &Packet,
        code: u8,
        pointer: u32,
        cx: &mut Context<'_>,
    ) {
        if is_martian(info.source) {
            return;
        }
        let Some(from) = self.our_address(info.source) else { return };
        let Some(quote) = self.quote(info.source, info.destination, packet, cx) else { return };
        let message = icmpv6::Message::ParameterProblem { code, pointer };
        self.send_error_v6(&message, quote, from, cx);
    }

    /// Drops incomplete datagrams whose time is over, and sends an error about those whose first
    /// fragment was received (RFC 792, RFC 8200 §4.5).
    pub(super) fn expire_fragments(&mut self, cx: &mut Context<'_>) {
        let mut firsts = Vec::new();
        let expired = self.reassembler.expire(cx.now, &mut |packet| firsts.push(packet));
        for _ in 0..expired {
            self.counters.drop(DropReason::Fragment);
        }
        for packet in firsts {
            let ip = &packet.headers()[IP_AT..];
            let (source, destination) = if ip[0] >> 4 == 4 {
                let Ok(ip) = ipv4::Header::parse(ip, usize::from(u16::MAX)) else { continue };
                (ip.source.into(), ip.destination.into())
            } else {
                let Ok(ip) = ipv6::Header::parse(ip, usize::from(u16::MAX)) else { continue };
                (ip.source.into(), ip.destination.into())
            };
            let Some(from) = self.our_address(source) else { continue };
            let Some(quote) = self.quote(source, destination, &packet, cx) else { continue };
            if source.is_ipv4() {
                let code = icmpv4::REASSEMBLY_TIME_EXCEEDED;
                let message = icmpv4::Message::TimeExceeded { code };
                self.send_error_v4(&message, quote, from, cx);
            } else {
                let code = icmpv6::REASSEMBLY_TIME_EXCEEDED;
                let message = icmpv6::Message::TimeExceeded { code };
                self.send_error_v6(&message, quote, from, cx);
            }
        }
    }

    fn our_address(&self, like: IpAddr) -> Option<IpAddr> {
        let mut ours = self.config.addresses.iter().map(|ours| ours.address);
        ours.find(|address| address.is_ipv4() == like.is_ipv4())
    }

    /// Quotes a received packet: its IP header, and as much as an error may carry.
    fn quote(
        &self,
        source: IpAddr,
        destination: IpAddr,
        packet: &Packet,
        cx: &mut Context<'_>,
    ) -> Option<Quote> {
        if is_multicast(destination) {
            return None;
        }
        let max = match source {
            IpAddr::V4(_) => ERROR_BYTES_V4 - ipv4::HEADER_LEN - icmpv4::HEADER_LEN,
            IpAddr::V6(_) => ERROR_BYTES_V6 - ipv6::HEADER_LEN - icmpv6::HEADER_LEN,
        };
        let mut bytes = packet.headers()[IP_AT..].to_vec();
        bytes.truncate(max);
        for piece in packet.pieces() {
            let at = bytes.len();
            bytes.resize((at + piece.len()).min(max), 0);
            cx.ledger.copy(Site::IcmpQuote, piece, &mut bytes[at..]);
        }
        if is_icmp_error(&bytes) {
            return None;
        }
        Some(Quote { source, destination, bytes })
    }

    fn send_error_v4(
        &mut self,
        message: &icmpv4::Message,
        quote: Quote,
        from: IpAddr,
        cx: &mut Context<'_>,
    ) {
        if let Some(mut packet) = self.error_packet(&quote, cx) {
            message.emit(packet.push_header(icmpv4::HEADER_LEN));
            self.finish_icmp(packet, Protocol::ICMP, from, quote.source, TTL_DEFAULT, cx);
        }
    }

    fn send_error_v6(
        &mut self,
        message: &icmpv6::Message,
        quote: Quote,
        from: IpAddr,
        cx: &mut Context<'_>,
    ) {
        if let Some(mut packet) = self.error_packet(&quote, cx) {
            message.emit(packet.push_header(icmpv6::HEADER_LEN));
            self.finish_icmp(packet, Protocol::ICMPV6, from, quote.source, TTL_DEFAULT, cx);
        }
    }

    fn error_packet(&mut self, quote: &Quote, cx: &mut Context<'_>) -> Option<Packet> {
        // Errors to this stack itself reach no network: they are not limited.
        if !self.is_local(quote.source) && !self.icmp_limit.allow(quote.source, cx.now) {
            self.counters.drop(DropReason::IcmpRateLimited);
            return None;
        }
        let (Some(mut packet), Some(mut frame)) = (cx.memory.packet(), cx.memory.small.take())
        else {
            self.counters.drop(DropReason::NoMemory);
            return None;
        };
        frame[..quote.bytes.len()].copy_from_slice(&quote.bytes);
        packet.push_piece(frame.freeze(quote.bytes.len())).ok()?;
        Some(packet)
    }

    pub(super) fn send_icmpv6(
        &mut self,
        message: &icmpv6::Message,
        from: IpAddr,
        to: IpAddr,
        ttl: u8,
        cx: &mut Context<'_>,
    ) {
        let Some(mut packet) = cx.memory.packet() else {
            return self.counters.drop(DropReason::NoMemory);
        };
        message.emit(packet.push_header(message.emitted_len()));
        self.finish_icmp(packet, Protocol::ICMPV6, from, to, ttl, cx);
    }

    /// Computes and stores the checksum of header and payload, and sends the packet.
    fn finish_icmp(
        &mut self,
        mut packet: Packet,
        protocol: Protocol,
        from: IpAddr,
        to: IpAddr,
        ttl: u8,
        cx: &mut Context<'_>,
    ) {
        if !gso::own_payload(&mut packet, cx.memory, cx.ledger) {
            return self.counters.drop(DropReason::NoMemory);
        }
        let mut sum = match protocol {
            Protocol::ICMPV6 => checksum::pseudo_header(from, to, protocol, packet.len() as u32),
            _ => checksum::Sum::new(),
        };
        sum.add_sum(gso::transport_sum(&packet, 0, cx.ledger));
        let at = icmpv4::CHECKSUM_OFFSET;
        packet.headers_mut()[at..at + 2].copy_from_slice(&sum.finish().to_be_bytes());
        let mtu = self.path(to).mtu;
        let marks = Marks { ttl, tos: 0, dont_fragment: false, mtu, loops: false };
        self.send_ip(packet, protocol, (from, to), marks, cx);
    }
}

/// True if a packet is an ICMP error, about which none is sent (RFC 1122 §3.2.2, RFC 4443 §2.4 e).
fn is_icmp_error(packet: &[u8]) -> bool {
    if packet[0] >> 4 == 4 {
        let kind = packet.get(usize::from(packet[0] & 15) * 4).copied();
        return packet[IPV4_PROTOCOL_AT] == Protocol::ICMP.0
            && kind.is_none_or(|kind| ICMPV4_ERRORS.contains(&kind));
    }
    let next_header = Protocol(packet[IPV6_NEXT_HEADER_AT as usize]);
    let rest = &packet[ipv6::HEADER_LEN..];
    ipv6::Extensions::walk(next_header, rest, rest.len()).is_ok_and(|walked| {
        let kind = rest.get(walked.len).copied();
        walked.protocol == Protocol::ICMPV6 && kind.is_none_or(|kind| kind & 0x80 == 0)
    })
}

/// Rebuilds a packet that the owner no longer has, as far as its sender needs it to match the
/// error.
fn rebuilt(
    (local, remote): (IpAddr, IpAddr),
    protocol: Protocol,
    transport: &[u8],
    report: &Report<'_>,
) -> Quote {
    let len = transport.len() + report.data.len();
    // The router that reports an expired packet has decremented its TTL.
    let ttl = if matches!(report.why, Unreachable::Expired(_)) { 1 } else { TTL_DEFAULT };
    let mut bytes = alloc::vec![0; ipv6::HEADER_LEN];
    match (remote, local) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let header = ipv4::Header {
                tos: 0,
                ident: 0,
                dont_fragment: true,
                more_fragments: false,
                fragment_offset: 0,
                ttl,
                protocol,
                source,
                destination,
                total_len: (ipv4::HEADER_LEN + len) as u16,
                header_len: ipv4::HEADER_LEN as u8,
                has_source_route: false,
            };
            header.emit(&mut bytes);
            bytes.truncate(ipv4::HEADER_LEN);
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let header = ipv6::Header {
                traffic_class: 0,
                flow_label: 0,
                payload_len: len as u16,
                next_header: protocol,
                hop_limit: ttl,
                source,
                destination,
            };
            header.emit(&mut bytes);
        }
        _ => unreachable!("both ends of a flow have one family"),
    }
    bytes.extend_from_slice(transport);
    bytes.extend_from_slice(report.data);
    bytes.truncate(ERROR_BYTES_V4 - ipv4::HEADER_LEN - icmpv4::HEADER_LEN);
    Quote { source: remote, destination: local, bytes }
}

/// ICMP types of destination unreachable, source quench, redirect, time exceeded, parameter
/// problem.
const ICMPV4_ERRORS: [u8; 5] = [3, 4, 5, 11, 12];
/// Offset of the protocol in an IPv4 header.
const IPV4_PROTOCOL_AT: usize = 9;
/// Offset of the next header in an IPv6 header.
const IPV6_NEXT_HEADER_AT: u32 = 6;
