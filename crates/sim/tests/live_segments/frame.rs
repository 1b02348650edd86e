//! TCP super-packets, and the part of one that a segment carries.
//!
//! The ports are the number of the super-packet, the sequence number is the offset in its payload,
//! and the payload is the stream of that number.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;
use std::ops::Range;
use towpath_net::checksum;
use towpath_net::wire::tcp::{Flags, Options};
use towpath_net::wire::{MacAddr, Protocol, ethernet, ipv4, ipv6, tcp};
use towpath_packet::{Checksum, Gso, GsoKind, Offload};
use towpath_sim::oracle;
use towpath_sim::seed::Rng;

/// The most payload of a segment on a wire of MTU 1500 with either version of IP.
const SIZE_MAX: u64 = 1440;
/// The most payload of a super-packet.
const PAYLOAD_MAX: u64 = 60_000;

/// A super-packet, or a packet that is no longer than a segment.
pub(crate) struct Frame {
    pub(crate) number: u32,
    pub(crate) bytes: Vec<u8>,
    pub(crate) header_len: usize,
    pub(crate) offload: Offload,
}

impl Frame {
    /// Draws the sizes of a packet.
    pub(crate) fn draw(number: u32, rng: &mut Rng) -> Self {
        let v6 = rng.chance(500_000);
        let size = rng.between(100, SIZE_MAX);
        // Some are shorter than a segment, and some exactly as long.
        let most = rng.pick(&[size, 5 * size, PAYLOAD_MAX, PAYLOAD_MAX]).min(PAYLOAD_MAX);
        let payload = if rng.chance(100_000) { size } else { rng.between(2, most) } as usize;
        let ip_len = if v6 { ipv6::HEADER_LEN } else { ipv4::HEADER_LEN };
        let (ip_at, tcp_at) = (ethernet::HEADER_LEN, ethernet::HEADER_LEN + ip_len);
        let header_len = tcp_at + tcp::HEADER_LEN;
        let mut bytes = vec![0; header_len + payload];
        let tcp_len = (tcp::HEADER_LEN + payload) as u16;
        let ethertype = if v6 { ethernet::EtherType::IPV6 } else { ethernet::EtherType::IPV4 };
        let source = MacAddr([2, 0, 0, 0, 0, 1]);
        ethernet::Header { destination: MacAddr::BROADCAST, source, ethertype }.emit(&mut bytes);
        let pseudo = if v6 {
            write_ipv6(tcp_len, &mut bytes[ip_at..])
        } else {
            write_ipv4(number as u16, tcp_len, &mut bytes[ip_at..])
        };
        let header = tcp::Header {
            source_port: number as u16,
            destination_port: (number >> 16) as u16,
            sequence: 0,
            acknowledgment: 1,
            flags: Flags::ACK | Flags::PSH,
            window: 1000,
            checksum: pseudo,
            urgent: 0,
            header_len: tcp::HEADER_LEN as u8,
        };
        header.emit(&Options::default(), &mut bytes[tcp_at..]);
        oracle::fill(number.into(), 0, &mut bytes[header_len..]);
        let kind = if v6 { GsoKind::Tcp6 } else { GsoKind::Tcp4 };
        let size = NonZeroU16::new(size as u16).expect("not zero");
        let is_super = payload > usize::from(size.get());
        let gso = is_super.then_some(Gso { kind, size, ecn: false, tunnel: None });
        let checksum = Checksum::Partial { start: tcp_at as u16, offset: 16 };
        Self { number, bytes, header_len, offload: Offload { checksum, gso } }
    }
}

fn write_ipv4(ident: u16, tcp_len: u16, bytes: &mut [u8]) -> u16 {
    let (source, destination) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));
    let header = ipv4::Header {
        tos: 0,
        ident,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        ttl: 64,
        protocol: Protocol::TCP,
        source,
        destination,
        total_len: ipv4::HEADER_LEN as u16 + tcp_len,
        header_len: ipv4::HEADER_LEN as u8,
        has_source_route: false,
    };
    header.emit(bytes);
    pseudo_header(source.into(), destination.into(), tcp_len)
}

fn write_ipv6(tcp_len: u16, bytes: &mut [u8]) -> u16 {
    let address = |last| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last);
    let (source, destination) = (address(1), address(2));
    let header = ipv6::Header {
        traffic_class: 0,
        flow_label: 0,
        payload_len: tcp_len,
        next_header: Protocol::TCP,
        hop_limit: 64,
        source,
        destination,
    };
    header.emit(bytes);
    pseudo_header(source.into(), destination.into(), tcp_len)
}

/// What the checksum field of a packet holds that a device completes.
fn pseudo_header(source: IpAddr, destination: IpAddr, tcp_len: u16) -> u16 {
    checksum::pseudo_header(source, destination, Protocol::TCP, tcp_len.into()).fold()
}

/// The number of the super-packet that these bytes are of, the range of its bytes behind the
/// headers, and where the payload begins.
pub(crate) fn place(bytes: &[u8]) -> (u32, Range<usize>, usize) {
    let word = |at: usize| u32::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
    let tcp_at = match word(12) {
        0x0800 => 14 + 20,
        0x86dd => 14 + 40,
        other => panic!("EtherType {other:04x}"),
    };
    let number = word(tcp_at) | word(tcp_at + 2) << 16;
    let offset = (word(tcp_at + 4) << 16 | word(tcp_at + 6)) as usize;
    let payload_at = tcp_at + 20;
    (number, payload_at + offset..bytes.len() + offset, payload_at)
}

/// Checks the payload against its stream.
pub(crate) fn check(bytes: &[u8]) {
    let (number, range, payload_at) = place(bytes);
    let offset = (range.start - payload_at) as u64;
    let is_right = oracle::matches(number.into(), offset, &bytes[payload_at..]);
    assert!(is_right, "the payload of {number} differs from {offset} on");
}
