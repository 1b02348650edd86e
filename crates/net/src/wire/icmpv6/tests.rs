//! Tests of ICMP for IPv6 and of neighbour discovery.

extern crate std;

use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::wire::{captured, ethernet, ipv6};

const HERE: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

/// The ICMPv6 part of a captured frame without extension headers.
fn message(frame: &str) -> Vec<u8> {
    captured::bytes(frame).split_off(ethernet::HEADER_LEN + ipv6::HEADER_LEN)
}

/// Parses a captured message and checks that it is rebuilt unchanged except for the checksum.
fn read_and_write(mut bytes: Vec<u8>) -> Message {
    let parsed = Message::parse(&bytes).unwrap();
    bytes[CHECKSUM_OFFSET..][..2].fill(0);
    let mut again = [0xee; 256];
    let len = parsed.emit(&mut again);
    assert_eq!(again[..len], bytes[..len]);
    parsed
}

/// Echo, an error and solicitations from Linux.
#[test]
fn messages_from_linux() {
    let source_link_layer = Some(HERE);
    let target = "2001:db8::3".parse().unwrap();
    for (frame, expected) in [
        (captured::ECHO_REQUEST_V6, Message::EchoRequest { ident: 0x12e1, sequence: 1 }),
        (captured::UNREACHABLE_V6, Message::DestinationUnreachable { code: PORT_UNREACHABLE }),
        (captured::ROUTER_SOLICITATION, Message::RouterSolicitation { source_link_layer }),
        (
            captured::NEIGHBOR_SOLICITATION,
            Message::NeighborSolicitation { target, source_link_layer },
        ),
    ] {
        assert_eq!(read_and_write(message(frame)), expected);
    }
}

/// RFC 4861 §4.6: an unknown option, here a nonce (RFC 3971 §5.3.2), is skipped.
#[test]
fn unknown_options_are_passed_over() {
    assert_eq!(
        Message::parse(&message(captured::DUPLICATE_ADDRESS_PROBE)),
        Ok(Message::NeighborSolicitation {
            target: "fe80::ff:fe00:1".parse().unwrap(),
            source_link_layer: None
        })
    );
}

/// Another type is returned as it is.
#[test]
fn other_types() {
    let bytes = captured::bytes(captured::MULTICAST_REPORT)
        .split_off(ethernet::HEADER_LEN + ipv6::HEADER_LEN + 8);
    assert_eq!(Message::parse(&bytes), Ok(Message::Other { kind: 143, code: 0 }));
}

/// RFC 4861 §7.1.1: each check of a neighbour solicitation that concerns the message itself.
#[test]
fn bad_solicitations() {
    let good = message(captured::NEIGHBOR_SOLICITATION);
    let with = |place: usize, value: u8| {
        let mut bad = good.clone();
        bad[place] = value;
        Message::parse(&bad)
    };
    assert_eq!(with(at::CODE, 1), Err(ParseError::Unsupported));
    assert_eq!(with(at::TARGET, 0xff), Err(ParseError::BadAddress), "multicast target");
    assert_eq!(with(NEIGHBOR_LEN + 1, 0), Err(ParseError::BadOption), "option of length zero");
    assert_eq!(with(NEIGHBOR_LEN + 1, 2), Err(ParseError::BadOption), "option beyond the end");
    let long = [&good[..], &[0; 8]].concat();
    assert_eq!(Message::parse(&long), Err(ParseError::BadOption), "length zero at the end");
    for len in 0..NEIGHBOR_LEN {
        assert_eq!(Message::parse(&good[..len]), Err(ParseError::Truncated), "{len} bytes");
    }
    for len in NEIGHBOR_LEN + 1..good.len() {
        assert_eq!(Message::parse(&good[..len]), Err(ParseError::BadOption), "{len} bytes");
    }
}

/// A link-layer address of another length, in an option of 16 bytes, invalidates the message.
#[test]
fn link_layer_address_of_another_length() {
    let mut bytes = message(captured::ROUTER_SOLICITATION);
    bytes[HEADER_LEN + 1] = 2;
    bytes.extend([0; 8]);
    assert_eq!(Message::parse(&bytes), Err(ParseError::BadOption));
}

/// Errors are identified by the first bit of their type (RFC 4443 §2.1).
#[test]
fn errors() {
    assert!(Message::PacketTooBig { mtu: 1280 }.is_error());
    assert!(Message::Other { kind: 127, code: 0 }.is_error());
    assert!(!Message::Other { kind: 200, code: 0 }.is_error());
    assert!(!Message::EchoRequest { ident: 0, sequence: 0 }.is_error());
}

fn any_mac() -> impl Strategy<Value = Option<MacAddr>> {
    prop::option::of(crate::wire::tests::mac())
}

fn any_target() -> impl Strategy<Value = Ipv6Addr> {
    any::<Ipv6Addr>().prop_filter("no multicast", |target| !target.is_multicast())
}

fn any_message() -> impl Strategy<Value = Message> {
    prop_oneof![
        any::<u8>().prop_map(|code| Message::DestinationUnreachable { code }),
        any::<u32>().prop_map(|mtu| Message::PacketTooBig { mtu }),
        any::<u8>().prop_map(|code| Message::TimeExceeded { code }),
        any::<(u8, u32)>().prop_map(|(code, pointer)| Message::ParameterProblem { code, pointer }),
        any::<(u16, u16)>().prop_map(|(ident, sequence)| Message::EchoRequest { ident, sequence }),
        any::<(u16, u16)>().prop_map(|(ident, sequence)| Message::EchoReply { ident, sequence }),
        any_mac().prop_map(|source_link_layer| Message::RouterSolicitation { source_link_layer }),
        (any::<(u16, u32, u32)>(), any_mac()).prop_map(|(times, source_link_layer)| {
            let (router_lifetime_s, reachable_time_ms, retrans_timer_ms) = times;
            Message::RouterAdvertisement(RouterAdvertisement {
                router_lifetime_s,
                reachable_time_ms,
                retrans_timer_ms,
                source_link_layer,
            })
        }),
        (any_target(), any_mac()).prop_map(|(target, source_link_layer)| {
            Message::NeighborSolicitation { target, source_link_layer }
        }),
        (any_target(), any_mac(), any::<(bool, bool, bool)>()).prop_map(
            |(target, target_link_layer, (router, solicited, override_))| {
                Message::NeighborAdvertisement {
                    target,
                    target_link_layer,
                    router,
                    solicited,
                    override_,
                }
            }
        ),
        (137..=255u8, any::<u8>()).prop_map(|(kind, code)| Message::Other { kind, code }),
    ]
}

proptest! {
    /// Round trip of every kind of message; bytes behind it are not changed.
    #[test]
    fn round_trip(message in any_message()) {
        let mut bytes = [0xee; 256];
        let len = message.emit(&mut bytes);
        prop_assert_eq!(len, message.emitted_len());
        prop_assert!(bytes[len..].iter().all(|&byte| byte == 0xee));
        prop_assert_eq!(Message::parse(&bytes[..len]), Ok(message));
    }

    /// A valid message truncated anywhere causes no panic.
    #[test]
    fn cut_messages(message in any_message(), cut in any::<prop::sample::Index>()) {
        let mut bytes = [0; 256];
        let len = message.emit(&mut bytes);
        let _ = Message::parse(&bytes[..cut.index(len)]);
    }

    /// No input makes `parse` panic; options have likely kinds and lengths.
    #[test]
    fn any_bytes(
        kind in 120..=140u8,
        fixed in any::<[u8; 24]>(),
        options in prop::collection::vec((0..30u8, 0..6u8, 0..48usize), 0..6),
    ) {
        let mut bytes = [&[kind, 0], &fixed[2..]].concat();
        for (kind, units, len) in options {
            bytes.extend([kind, units]);
            bytes.resize(bytes.len() + len, 0x20);
        }
        if let Ok(message) = Message::parse(&bytes) {
            message.emit(&mut [0; 256]);
        }
    }
}
