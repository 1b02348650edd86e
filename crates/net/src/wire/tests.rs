//! Tests of the small formats: addresses, Ethernet, ARP, UDP, ICMP for IPv4.

extern crate std;

use core::net::Ipv4Addr;
use std::string::ToString;
use std::vec;

use proptest::prelude::*;

use super::ethernet::EtherType;
use super::*;

const HERE: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const THERE: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

/// Bytes of the captured frame behind its Ethernet and IPv4 headers.
fn ipv4_payload(frame: &str) -> std::vec::Vec<u8> {
    captured::bytes(frame).split_off(ethernet::HEADER_LEN + ipv4::HEADER_LEN)
}

/// Unicast, multicast and broadcast addresses are classified correctly.
#[test]
fn mac_kinds() {
    let kinds = |mac: MacAddr| (mac.is_unicast(), mac.is_multicast(), mac.is_broadcast());
    assert_eq!(kinds(HERE), (true, false, false));
    assert_eq!(kinds(MacAddr([0x33, 0x33, 0, 0, 0, 1])), (false, true, false));
    assert_eq!(kinds(MacAddr::BROADCAST), (false, true, true));
    assert_eq!(kinds(MacAddr::UNSPECIFIED), (false, false, false));
}

/// Text that is not exactly six pairs of digits is rejected.
#[test]
fn mac_text_is_strict() {
    assert_eq!("02:00:00:00:00:01".parse(), Ok(HERE));
    assert_eq!("FF:ff:FF:ff:FF:ff".parse(), Ok(MacAddr::BROADCAST));
    for text in [
        "",
        "02",
        "02:00:00:00:00",
        "02:00:00:00:00:01:",
        "02:00:00:00:00:001",
        "+2:00:00:00:00:01",
        "2:0:0:0:0:1",
        "02-00-00-00-00-01",
        "0é:00:00:00:00:01",
    ] {
        assert_eq!(text.parse::<MacAddr>(), Err(InvalidMacAddr), "{text}");
    }
}

/// Linux's ARP packets with their Ethernet headers, parsed and rebuilt byte for byte.
#[test]
fn arp_from_linux() {
    for (frame, operation, target_mac, destination) in [
        (captured::ARP_REQUEST, arp::Operation::Request, MacAddr::UNSPECIFIED, MacAddr::BROADCAST),
        (captured::ARP_REPLY, arp::Operation::Reply, THERE, THERE),
    ] {
        let frame = captured::bytes(frame);
        let ethernet = ethernet::Header::parse(&frame).unwrap();
        assert_eq!(
            ethernet,
            ethernet::Header { destination, source: HERE, ethertype: EtherType::ARP }
        );
        let packet = arp::Packet::parse(&frame[ethernet::HEADER_LEN..]).unwrap();
        assert_eq!(packet.operation, operation);
        assert_eq!((packet.sender_mac, packet.target_mac), (HERE, target_mac));
        assert_eq!(packet.sender_ip, Ipv4Addr::new(192, 0, 2, 1));
        assert_eq!(packet.target_ip, Ipv4Addr::new(192, 0, 2, 2));
        let mut again = vec![0xee; frame.len()];
        let len = ethernet.emit(&mut again);
        assert_eq!(len + packet.emit(&mut again[len..]), frame.len());
        assert_eq!(again, frame);
    }
}

/// RFC 826: each field that identifies ARP for IPv4 over Ethernet is checked.
#[test]
fn arp_of_other_kinds_is_unsupported() {
    let packet = captured::bytes(captured::ARP_REQUEST).split_off(ethernet::HEADER_LEN);
    for place in 0..8 {
        let mut other = packet.clone();
        other[place] ^= 0x40;
        assert_eq!(arp::Packet::parse(&other), Err(ParseError::Unsupported), "byte {place}");
    }
}

/// A UDP datagram from Linux.
#[test]
fn udp_from_linux() {
    let bytes = ipv4_payload(captured::UDP_V4);
    let header = udp::Header::parse(&bytes, bytes.len()).unwrap();
    let expected =
        udp::Header { source_port: 43348, destination_port: 9, length: 15, checksum: 0x1d1a };
    assert_eq!(header, expected);
    assert_eq!(header.payload_len(), b"towpath".len());
    assert_eq!(udp::CHECKSUM_OFFSET, 6);
}

/// RFC 768: a length below the header's is invalid, one beyond the packet means truncation, and
/// padding behind the datagram is ignored.
#[test]
fn udp_lengths() {
    let mut bytes = ipv4_payload(captured::UDP_V4);
    assert!(udp::Header::parse(&bytes, 15 + 20).is_ok());
    assert!(udp::Header::parse(&bytes[..udp::HEADER_LEN], 15).is_ok());
    assert_eq!(udp::Header::parse(&bytes, 14), Err(ParseError::Truncated));
    bytes[5] = 7;
    assert_eq!(udp::Header::parse(&bytes, 15), Err(ParseError::BadLength));
}

/// An echo request and an error from Linux, rebuilt except for the checksum.
#[test]
fn icmpv4_from_linux() {
    use icmpv4::Message;
    for (frame, expected) in [
        (captured::ECHO_REQUEST_V4, Message::EchoRequest { ident: 0x12db, sequence: 1 }),
        (
            captured::UNREACHABLE_V4,
            Message::DestinationUnreachable { code: icmpv4::PORT_UNREACHABLE, next_hop_mtu: 0 },
        ),
    ] {
        let mut bytes = ipv4_payload(frame);
        assert_eq!(Message::parse(&bytes), Ok(expected));
        bytes.truncate(icmpv4::HEADER_LEN);
        bytes[icmpv4::CHECKSUM_OFFSET..][..2].fill(0);
        let mut again = [0xee; icmpv4::HEADER_LEN];
        assert_eq!(expected.emit(&mut again), icmpv4::HEADER_LEN);
        assert_eq!(again[..], bytes);
    }
}

/// RFC 1122 §3.2.2: messages that must not be answered with an error. Timestamp requests may be
/// answered, unknown types not.
#[test]
fn icmpv4_errors() {
    use icmpv4::Message;
    assert!(Message::TimeExceeded { code: icmpv4::TTL_EXCEEDED }.is_error());
    assert!(Message::Other { kind: 4, code: 0 }.is_error());
    assert!(Message::Other { kind: 200, code: 0 }.is_error());
    assert!(!Message::Other { kind: 13, code: 0 }.is_error());
    assert!(!Message::EchoReply { ident: 0, sequence: 0 }.is_error());
}

/// `emit` panics on a slice that is too short.
#[test]
#[should_panic(expected = "emit: 13 bytes of room for a header of 14")]
fn emit_asks_for_room() {
    let header = ethernet::Header { destination: THERE, source: HERE, ethertype: EtherType::IPV4 };
    header.emit(&mut [0; ethernet::HEADER_LEN - 1]);
}

/// Input shorter than the header is truncated, for every length and format.
#[test]
fn truncation() {
    let frame = captured::bytes(captured::ARP_REQUEST);
    for len in 0..ethernet::HEADER_LEN {
        assert_eq!(ethernet::Header::parse(&frame[..len]), Err(ParseError::Truncated));
    }
    let packet = &frame[ethernet::HEADER_LEN..];
    for len in 0..arp::LEN {
        assert_eq!(arp::Packet::parse(&packet[..len]), Err(ParseError::Truncated));
    }
    let datagram = ipv4_payload(captured::UDP_V4);
    let echo = ipv4_payload(captured::ECHO_REQUEST_V4);
    for len in 0..8 {
        let udp = udp::Header::parse(&datagram[..len], datagram.len());
        assert_eq!(udp, Err(ParseError::Truncated));
        assert_eq!(icmpv4::Message::parse(&echo[..len]), Err(ParseError::Truncated));
    }
}

pub(super) fn mac() -> impl Strategy<Value = MacAddr> {
    any::<[u8; 6]>().prop_map(MacAddr)
}

fn arp_packet() -> impl Strategy<Value = arp::Packet> {
    use arp::Operation::{Reply, Request};
    let addresses = (mac(), any::<Ipv4Addr>(), mac(), any::<Ipv4Addr>());
    (prop_oneof![Just(Request), Just(Reply)], addresses).prop_map(
        |(operation, (sender_mac, sender_ip, target_mac, target_ip))| arp::Packet {
            operation,
            sender_mac,
            sender_ip,
            target_mac,
            target_ip,
        },
    )
}

fn icmpv4_message() -> impl Strategy<Value = icmpv4::Message> {
    use icmpv4::Message;
    prop_oneof![
        any::<(u16, u16)>().prop_map(|(ident, sequence)| Message::EchoRequest { ident, sequence }),
        any::<(u16, u16)>().prop_map(|(ident, sequence)| Message::EchoReply { ident, sequence }),
        any::<(u8, u16)>().prop_map(|(code, next_hop_mtu)| Message::DestinationUnreachable {
            code,
            next_hop_mtu
        }),
        any::<(u8, Ipv4Addr)>().prop_map(|(code, gateway)| Message::Redirect { code, gateway }),
        any::<u8>().prop_map(|code| Message::TimeExceeded { code }),
        any::<u8>().prop_map(|pointer| Message::ParameterProblem { pointer }),
        (13..=255u8, any::<u8>()).prop_map(|(kind, code)| Message::Other { kind, code }),
        (1..=255u8).prop_map(|code| Message::Other { kind: 12, code }),
    ]
}

proptest! {
    /// The text of an address parses to the same address.
    #[test]
    fn mac_text_round_trip(mac in mac()) {
        prop_assert_eq!(mac.to_string().parse(), Ok(mac));
    }

    /// Round trip: Ethernet.
    #[test]
    fn ethernet_round_trip(destination in mac(), source in mac(), ethertype in any::<u16>()) {
        let ethertype = EtherType(ethertype);
        let header = ethernet::Header { destination, source, ethertype };
        let mut bytes = [0xee; ethernet::HEADER_LEN];
        prop_assert_eq!(header.emit(&mut bytes), bytes.len());
        prop_assert_eq!(ethernet::Header::parse(&bytes), Ok(header));
    }

    /// Round trip: ARP.
    #[test]
    fn arp_round_trip(packet in arp_packet()) {
        let mut bytes = [0xee; arp::LEN];
        prop_assert_eq!(packet.emit(&mut bytes), bytes.len());
        prop_assert_eq!(arp::Packet::parse(&bytes), Ok(packet));
    }

    /// Round trip: UDP.
    #[test]
    fn udp_round_trip(
        (source_port, destination_port, checksum) in any::<(u16, u16, u16)>(),
        length in 8..=u16::MAX,
    ) {
        let header = udp::Header { source_port, destination_port, length, checksum };
        let mut bytes = [0xee; udp::HEADER_LEN];
        prop_assert_eq!(header.emit(&mut bytes), bytes.len());
        prop_assert_eq!(udp::Header::parse(&bytes, usize::from(length)), Ok(header));
    }

    /// Round trip: ICMP.
    #[test]
    fn icmpv4_round_trip(message in icmpv4_message()) {
        let mut bytes = [0xee; icmpv4::HEADER_LEN];
        prop_assert_eq!(message.emit(&mut bytes), bytes.len());
        prop_assert_eq!(&bytes[icmpv4::CHECKSUM_OFFSET..][..2], &[0, 0]);
        prop_assert_eq!(icmpv4::Message::parse(&bytes), Ok(message));
    }

    /// No input makes a parser panic; accepted ARP packets are rebuilt unchanged.
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..64), len in any::<usize>()) {
        let _ = ethernet::Header::parse(&bytes);
        let _ = udp::Header::parse(&bytes, len);
        let _ = icmpv4::Message::parse(&bytes);
        if let Ok(packet) = arp::Packet::parse(&bytes) {
            let mut again = [0; arp::LEN];
            packet.emit(&mut again);
            prop_assert_eq!(&again, &bytes[..arp::LEN]);
        }
    }
}
