//! Frames of scripts, encoded and decoded without the stack's own wire formats, which they check.

use super::packet::{Icmp, IcmpKind, SYN, TcpOption};
use std::net::{IpAddr, SocketAddr};

/// Both ends of a script's connection. `local` is the subject, `remote` is the script.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// The subject's endpoint.
    pub local: SocketAddr,
    /// The script's endpoint.
    pub remote: SocketAddr,
    /// The subject's link-layer address.
    pub local_mac: [u8; 6],
    /// The script's link-layer address.
    pub remote_mac: [u8; 6],
}

/// A TCP segment with the numbers on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Live {
    /// ECN bits of the IP header.
    pub ecn: u8,
    /// Sender.
    pub source: SocketAddr,
    /// Receiver.
    pub destination: SocketAddr,
    /// Control bits.
    pub flags: u8,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgment number, as on the wire.
    pub ack: u32,
    /// Window, as on the wire.
    pub window: u16,
    /// Urgent pointer.
    pub urgent: u16,
    /// Options in order.
    pub options: Vec<TcpOption>,
    /// Payload.
    pub payload: Vec<u8>,
}

const ETHERNET_LEN: usize = 14;
const TCP_LEN: usize = 20;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_ICMP: u8 = 1;
const PROTOCOL_ICMPV6: u8 = 58;
/// Hop limit of a script's packets.
const HOPS: u8 = 255;

impl Live {
    /// Encodes the segment as a frame with valid checksums, from `remote` to `local`.
    pub fn frame(&self, ends: &Ends) -> Vec<u8> {
        let tcp = self.tcp_bytes();
        ip_frame(self.source.ip(), self.destination.ip(), PROTOCOL_TCP, self.ecn, &tcp, ends)
    }

    /// Encodes header, options and payload.
    fn tcp_bytes(&self) -> Vec<u8> {
        let mut options = Vec::new();
        self.options.iter().for_each(|option| emit_option(option, &mut options));
        // Options are padded to a full word with end-of-list options.
        options.resize(options.len().next_multiple_of(4), 0);
        let mut bytes = Vec::with_capacity(TCP_LEN + options.len() + self.payload.len());
        bytes.extend(self.source.port().to_be_bytes());
        bytes.extend(self.destination.port().to_be_bytes());
        bytes.extend(self.seq.to_be_bytes());
        bytes.extend(self.ack.to_be_bytes());
        bytes.push((((TCP_LEN + options.len()) / 4) << 4) as u8);
        bytes.push(self.flags);
        bytes.extend(self.window.to_be_bytes());
        bytes.extend([0; 2]);
        bytes.extend(self.urgent.to_be_bytes());
        bytes.extend(options);
        bytes.extend(&self.payload);
        let (source, destination) = (self.source.ip(), self.destination.ip());
        let sum = !sum(pseudo_sum(source, destination, PROTOCOL_TCP, bytes.len()), &bytes);
        bytes[16..18].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    /// Decodes a frame. `None` if it is not a TCP segment.
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let ip = frame.get(ETHERNET_LEN..)?;
        let (source, destination, ecn, tcp) = match frame.get(12..14)? {
            [0x08, 0x00] => parse_v4(ip)?,
            [0x86, 0xdd] => parse_v6(ip)?,
            _ => return None,
        };
        let word = |at: usize| Some(u16::from_be_bytes([*tcp.get(at)?, *tcp.get(at + 1)?]));
        let long = |at: usize| Some(u32::from(word(at)?) << 16 | u32::from(word(at + 2)?));
        let header_len = usize::from(tcp.get(12)? >> 4) * 4;
        Some(Self {
            ecn,
            source: SocketAddr::new(source, word(0)?),
            destination: SocketAddr::new(destination, word(2)?),
            flags: *tcp.get(13)?,
            seq: long(4)?,
            ack: long(8)?,
            window: word(14)?,
            urgent: word(18)?,
            options: parse_options(tcp.get(TCP_LEN..header_len)?),
            payload: tcp.get(header_len..)?.to_vec(),
        })
    }

    /// Position of the payload in the stream, counted from the SYN's sequence number.
    pub fn data_at(&self) -> u32 {
        self.seq.wrapping_add(u32::from(self.flags & SYN != 0))
    }
}

type Parsed<'a> = (IpAddr, IpAddr, u8, &'a [u8]);

fn parse_v4(ip: &[u8]) -> Option<Parsed<'_>> {
    let address = |at: usize| Some(IpAddr::from(*ip.get(at..)?.first_chunk::<4>()?));
    let header_len = usize::from(ip.first()? & 15) * 4;
    let end = usize::from(u16::from_be_bytes([*ip.get(2)?, *ip.get(3)?]));
    let tcp = ip.get(header_len..end)?;
    (ip[9] == PROTOCOL_TCP).then_some((address(12)?, address(16)?, ip[1] & 3, tcp))
}

fn parse_v6(ip: &[u8]) -> Option<Parsed<'_>> {
    let address = |at: usize| Some(IpAddr::from(*ip.get(at..)?.first_chunk::<16>()?));
    let len = usize::from(u16::from_be_bytes([*ip.get(4)?, *ip.get(5)?]));
    let tcp = ip.get(40..40 + len)?;
    (ip[6] == PROTOCOL_TCP).then_some((address(8)?, address(24)?, ip[1] >> 4 & 3, tcp))
}

/// Encodes the ICMP error as a frame. `quoted` is the subject's segment that it is about.
pub fn icmp_frame(icmp: &Icmp, quoted: &Live, ends: &Ends) -> Vec<u8> {
    let (local, remote) = (quoted.source.ip(), quoted.destination.ip());
    let tcp = quoted.tcp_bytes();
    let mut packet = ip_packet(local, remote, PROTOCOL_TCP, 0, &tcp[..TCP_LEN]);
    // The length of the whole packet, although only its beginning is quoted.
    let whole = TCP_LEN as u32 + icmp.len;
    let v4 = local.is_ipv4();
    let (at, len) = if v4 { (2, whole + 20) } else { (4, whole) };
    packet[at..at + 2].copy_from_slice(&(len as u16).to_be_bytes());
    if v4 {
        packet[10..12].fill(0);
        let header_sum = !sum(0, &packet[..20]);
        packet[10..12].copy_from_slice(&header_sum.to_be_bytes());
    }
    let (kind, code, rest) = codes(icmp.kind, v4);
    let mut message = vec![kind, code, 0, 0];
    message.extend(rest.to_be_bytes());
    message.extend(packet);
    let (protocol, start) = if v4 {
        (PROTOCOL_ICMP, 0)
    } else {
        (PROTOCOL_ICMPV6, pseudo_sum(remote, local, PROTOCOL_ICMPV6, message.len()))
    };
    let message_sum = !sum(start, &message);
    message[2..4].copy_from_slice(&message_sum.to_be_bytes());
    ip_frame(remote, local, protocol, 0, &message, ends)
}

/// Type, code and second word (RFC 792, RFC 1191 §4, RFC 4443 §3).
fn codes(kind: IcmpKind, v4: bool) -> (u8, u8, u32) {
    match (kind, v4) {
        (IcmpKind::NetUnreachable, true) => (3, 0, 0),
        (IcmpKind::HostUnreachable, true) => (3, 1, 0),
        (IcmpKind::ProtocolUnreachable, true) => (3, 2, 0),
        (IcmpKind::PortUnreachable, true) => (3, 3, 0),
        (IcmpKind::TooBig(mtu), true) => (3, 4, mtu.into()),
        (IcmpKind::TimeExceeded, true) => (11, 0, 0),
        (IcmpKind::NetUnreachable, false) => (1, 0, 0),
        (IcmpKind::HostUnreachable, false) => (1, 3, 0),
        (IcmpKind::ProtocolUnreachable, false) => (4, 1, 6),
        (IcmpKind::PortUnreachable, false) => (1, 4, 0),
        (IcmpKind::TooBig(mtu), false) => (2, 0, mtu.into()),
        (IcmpKind::TimeExceeded, false) => (3, 0, 0),
    }
}

fn ip_frame(
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    ecn: u8,
    payload: &[u8],
    ends: &Ends,
) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.extend(ends.local_mac);
    frame.extend(ends.remote_mac);
    frame.extend(if source.is_ipv4() { [0x08, 0x00] } else { [0x86, 0xdd] });
    frame.extend(ip_packet(source, destination, protocol, ecn, payload));
    frame
}

fn ip_packet(
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    ecn: u8,
    payload: &[u8],
) -> Vec<u8> {
    let mut packet = Vec::new();
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            packet.extend([0x45, ecn]);
            packet.extend((20 + payload.len() as u16).to_be_bytes());
            packet.extend([0, 0, 0x40, 0, HOPS, protocol, 0, 0]);
            packet.extend(source.octets());
            packet.extend(destination.octets());
            let header_sum = !sum(0, &packet);
            packet[10..12].copy_from_slice(&header_sum.to_be_bytes());
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            packet.extend([0x60, ecn << 4, 0, 0]);
            packet.extend((payload.len() as u16).to_be_bytes());
            packet.extend([protocol, HOPS]);
            packet.extend(source.octets());
            packet.extend(destination.octets());
        }
        _ => unreachable!("both ends of a script have the same family"),
    }
    packet.extend(payload);
    packet
}

fn emit_option(option: &TcpOption, bytes: &mut Vec<u8>) {
    match option {
        TcpOption::Eol => bytes.push(0),
        TcpOption::Nop => bytes.push(1),
        TcpOption::Mss(mss) => {
            bytes.extend([2, 4]);
            bytes.extend(mss.to_be_bytes());
        }
        TcpOption::WindowScale(scale) => bytes.extend([3, 3, *scale]),
        TcpOption::SackPermitted => bytes.extend([4, 2]),
        TcpOption::Sack(blocks) => {
            bytes.extend([5, 2 + 8 * blocks.len() as u8]);
            for (from, to) in blocks {
                bytes.extend(from.to_be_bytes());
                bytes.extend(to.to_be_bytes());
            }
        }
        TcpOption::Timestamps(value, echo) => {
            bytes.extend([8, 10]);
            bytes.extend(value.unwrap_or(0).to_be_bytes());
            bytes.extend(echo.to_be_bytes());
        }
        TcpOption::FastOpen(cookie) => {
            bytes.extend([34, 2 + cookie.len() as u8]);
            bytes.extend(cookie);
        }
        TcpOption::Raw(raw) => bytes.extend(raw),
    }
}

fn parse_options(mut bytes: &[u8]) -> Vec<TcpOption> {
    let mut options = Vec::new();
    while let Some((kind, rest)) = bytes.split_first() {
        let len = match kind {
            0 | 1 => 1,
            _ => usize::from(*rest.first().unwrap_or(&0)),
        };
        // An option with a length of 0 takes all bytes that are left.
        let len = if len == 0 { bytes.len() } else { len.min(bytes.len()) };
        let (option, behind) = bytes.split_at(len);
        options.push(parse_option(option));
        bytes = behind;
    }
    options
}

fn parse_option(option: &[u8]) -> TcpOption {
    let long = |at: usize| {
        let bytes = option.get(at..).and_then(<[u8]>::first_chunk::<4>);
        u32::from_be_bytes(*bytes.expect("the length was looked at"))
    };
    match *option {
        [0] => TcpOption::Eol,
        [1] => TcpOption::Nop,
        [2, 4, high, low] => TcpOption::Mss(u16::from_be_bytes([high, low])),
        [3, 3, scale] => TcpOption::WindowScale(scale),
        [4, 2] => TcpOption::SackPermitted,
        [5, _, ..] if option.len() > 2 && option.len() % 8 == 2 => {
            let blocks = (2..option.len()).step_by(8).map(|at| (long(at), long(at + 4)));
            TcpOption::Sack(blocks.collect())
        }
        [8, 10, ..] if option.len() == 10 => TcpOption::Timestamps(Some(long(2)), long(6)),
        [34, _, ref cookie @ ..] => TcpOption::FastOpen(cookie.to_vec()),
        _ => TcpOption::Raw(option.to_vec()),
    }
}

/// Sum of the pseudo-header (RFC 9293 §3.1, RFC 8200 §8.1).
fn pseudo_sum(source: IpAddr, destination: IpAddr, protocol: u8, len: usize) -> u32 {
    let octets = |address| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let start = u32::from(protocol) + len as u32;
    let source_sum = sum(start, &octets(source));
    u32::from(sum(source_sum.into(), &octets(destination)))
}

/// The Internet checksum sum (RFC 1071), folded, from a start value.
fn sum(start: u32, bytes: &[u8]) -> u16 {
    let mut total = u64::from(start);
    for pair in bytes.chunks(2) {
        total += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
    }
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}
