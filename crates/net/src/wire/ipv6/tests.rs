//! Tests of the IPv6 header and of the walk over extension headers.

extern crate std;

use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::wire::{captured, ethernet};

/// A captured packet without its Ethernet header.
fn packet(frame: &str) -> Vec<u8> {
    captured::bytes(frame).split_off(ethernet::HEADER_LEN)
}

/// An extension header of 8 bytes: next header, then length zero and `value`.
fn short(next: Protocol, value: [u8; 6]) -> Vec<u8> {
    [&[next.0, 0][..], &value].concat()
}

/// A fragment header.
fn fragment(next: Protocol, offset: u16, more: bool) -> Vec<u8> {
    let mut bytes = vec![0; FRAGMENT_HEADER_LEN];
    emit_fragment_header(&mut bytes, next, offset, more, 7);
    bytes
}

/// Walks a packet that is completely in the private copy.
fn walk(first: Protocol, pieces: &[Vec<u8>]) -> Result<Extensions, ExtensionError> {
    let bytes = pieces.concat();
    Extensions::walk(first, &bytes, bytes.len())
}

/// The options of an options header: padding only.
const PADDING: [u8; 6] = [OPTION_PADN, 4, 0, 0, 0, 0];

/// A routing header with no segments left.
const ROUTED: [u8; 6] = [4, 0, 0, 0, 0, 0];

/// Result of a valid header chain.
fn good(protocol: Protocol, len: usize) -> Result<Extensions, ExtensionError> {
    Ok(Extensions { protocol, len, fragment: None })
}

/// A header from Linux: every field, rebuilt byte for byte.
#[test]
fn header_from_linux() {
    let bytes = packet(captured::SYN_V6);
    let header = Header::parse(&bytes, bytes.len()).unwrap();
    let expected = Header {
        traffic_class: 0,
        flow_label: 0x38c76,
        payload_len: 40,
        next_header: Protocol::TCP,
        hop_limit: 64,
        source: "2001:db8::1".parse().unwrap(),
        destination: "2001:db8::2".parse().unwrap(),
    };
    assert_eq!(header, expected);
    let mut again = [0xee; HEADER_LEN];
    assert_eq!(header.emit(&mut again), HEADER_LEN);
    assert_eq!(again[..], bytes[..HEADER_LEN]);
    assert_eq!(
        Extensions::walk(header.next_header, &bytes[HEADER_LEN..], 40),
        good(Protocol::TCP, 0)
    );
}

/// Version and lengths: private copy, payload, packet.
#[test]
fn version_and_lengths() {
    let mut bytes = packet(captured::SYN_V6);
    assert_eq!(Header::parse(&bytes, 79), Err(ParseError::Truncated));
    assert!(Header::parse(&bytes[..HEADER_LEN], 80).is_ok());
    for len in 0..HEADER_LEN {
        assert_eq!(Header::parse(&bytes[..len], 80), Err(ParseError::Truncated));
    }
    bytes[0] = 0x40;
    assert_eq!(Header::parse(&bytes, 80), Err(ParseError::BadVersion));
}

/// Hop-by-hop options from Linux: a router alert, which is skipped.
#[test]
fn hop_by_hop_from_linux() {
    let bytes = packet(captured::MULTICAST_REPORT);
    let header = Header::parse(&bytes, bytes.len()).unwrap();
    let rest = &bytes[HEADER_LEN..];
    assert_eq!(Extensions::walk(header.next_header, rest, rest.len()), good(Protocol::ICMPV6, 8));
}

/// The last fragment from Linux: the walk stops behind the fragment header.
#[test]
fn fragment_from_linux() {
    let bytes = packet(captured::FRAGMENT_V6);
    let header = Header::parse(&bytes, HEADER_LEN + 168).unwrap();
    let walked = Extensions::walk(header.next_header, &bytes[HEADER_LEN..], 168).unwrap();
    let expected = Fragment {
        offset_bytes: 1448,
        more: false,
        ident: 0xb9ee_9043,
        header_at: 0,
        previous_next_header_at: FIXED_HEADER,
    };
    assert_eq!(walked, Extensions { protocol: Protocol::ICMPV6, len: 8, fragment: Some(expected) });
    assert_eq!(fragment(Protocol::ICMPV6, 1448, false)[..4], bytes[HEADER_LEN..][..4]);
}

/// RFC 8200 §4.1: a chain with every kind in its place, and the position of its fragment header.
#[test]
fn long_chain() {
    let pieces = [
        short(Protocol::DESTINATION_OPTIONS, PADDING),
        short(Protocol::ROUTING, [0; 6]),
        short(Protocol::IPV6_FRAGMENT, ROUTED),
        fragment(Protocol::AH, 0, false),
        [&short(Protocol::DESTINATION_OPTIONS, [0; 6])[..], &[0; 4]].concat(),
        short(Protocol::UDP, PADDING),
        vec![0; 8],
    ];
    let mut pieces = pieces.to_vec();
    pieces[4][1] = 1; // an authentication header of 12 bytes
    let walked = walk(Protocol::HOP_BY_HOP, &pieces).unwrap();
    assert_eq!((walked.protocol, walked.len), (Protocol::UDP, 4 * 8 + 12 + 8));
    let fragment = walked.fragment.unwrap();
    assert_eq!((fragment.header_at, fragment.previous_next_header_at), (24, 16));
    assert!(!fragment.more && fragment.offset_bytes == 0);
}

/// Ends of the chain: no next header, ESP and unknown protocols.
#[test]
fn ends_of_the_chain() {
    for last in [Protocol::NO_NEXT_HEADER, Protocol::ESP, Protocol(135), Protocol(253)] {
        assert_eq!(walk(last, &[]), good(last, 0));
        assert_eq!(walk(Protocol::ROUTING, &[short(last, ROUTED)]), good(last, 8));
    }
}

/// RFC 8200 §4: hop-by-hop options in any but the first place, with a pointer to the Next Header
/// field.
#[test]
fn hop_by_hop_comes_first() {
    let pieces = [
        short(Protocol::ROUTING, PADDING),
        short(Protocol::HOP_BY_HOP, ROUTED),
        short(Protocol::UDP, PADDING),
        vec![0; 8],
    ];
    assert_eq!(
        walk(Protocol::DESTINATION_OPTIONS, &pieces),
        Err(parameter_problem(UNRECOGNIZED_NEXT_HEADER, 40 + 8))
    );
    assert_eq!(
        walk(Protocol::HOP_BY_HOP, &[short(Protocol::HOP_BY_HOP, PADDING), pieces[2].clone()]),
        Err(parameter_problem(UNRECOGNIZED_NEXT_HEADER, 40))
    );
}

/// RFC 5095 §3, RFC 8200 §4.4: a routing header with segments left, of type 0 or any other.
#[test]
fn routing_with_segments_left() {
    for kind in [0, 2, 3, 4, 253] {
        let pieces = [short(Protocol::UDP, [kind, 1, 0, 0, 0, 0]), vec![0; 8]];
        let expected = Err(parameter_problem(ERRONEOUS_HEADER_FIELD, 40 + 2));
        assert_eq!(walk(Protocol::ROUTING, &pieces), expected);
    }
}

/// RFC 8200 §4.2: the two high bits of an unknown option decide, in both kinds of options headers.
#[test]
fn unknown_options() {
    for first in [Protocol::HOP_BY_HOP, Protocol::DESTINATION_OPTIONS] {
        let with = |kind| {
            let options = [OPTION_PAD1, OPTION_PAD1, kind, 2, 0, 0];
            walk(first, &[short(Protocol::UDP, options), vec![0; 8]])
        };
        let answer = |even_if_multicast| ExtensionError::ParameterProblem {
            code: UNRECOGNIZED_OPTION,
            pointer: 40 + 4,
            even_if_multicast,
        };
        assert_eq!(with(0x1e), good(Protocol::UDP, 8));
        assert_eq!(with(0x5e), Err(ExtensionError::Silent));
        assert_eq!(with(0x9e), Err(answer(true)));
        assert_eq!(with(0xde), Err(answer(false)));
    }
}

/// Options that do not fit their header.
#[test]
fn malformed_options() {
    for options in
        [[0, 0, 0, 0, 0, OPTION_PADN], [OPTION_PADN, 5, 0, 0, 0, 0], [5, 255, 0, 0, 0, 0]]
    {
        let pieces = [short(Protocol::UDP, options), vec![0; 300]];
        assert_eq!(walk(Protocol::DESTINATION_OPTIONS, &pieces), Err(ExtensionError::Silent));
    }
}

/// A chain that ends behind the private copy is too long; one that ends behind the packet is
/// invalid. Padding behind the packet is ignored.
#[test]
fn cut_chains() {
    let bytes = [short(Protocol::UDP, PADDING), vec![0; 8]].concat();
    let first = Protocol::DESTINATION_OPTIONS;
    for cut in 0..8 {
        assert_eq!(Extensions::walk(first, &bytes[..cut], 16), Err(ExtensionError::TooLong));
        assert_eq!(Extensions::walk(first, &bytes, cut), Err(ExtensionError::Silent));
    }
    assert_eq!(Extensions::walk(first, &bytes[..8], 16), good(Protocol::UDP, 8));
}

/// The maximum number of headers, and one more.
#[test]
fn number_of_headers() {
    let chain = |count: usize| {
        let mut pieces = vec![short(Protocol::ROUTING, ROUTED); count - 1];
        pieces.push(short(Protocol::UDP, ROUTED));
        pieces.push(vec![0; 8]);
        walk(Protocol::ROUTING, &pieces)
    };
    assert_eq!(chain(EXTENSION_HEADERS_MAX), good(Protocol::UDP, EXTENSION_HEADERS_MAX * 8));
    assert_eq!(chain(EXTENSION_HEADERS_MAX + 1), Err(ExtensionError::TooLong));
}

/// RFC 7112 §5, RFC 8200 §4.5: a first fragment has the chain up to the end of the upper-layer
/// header; an atomic fragment may end anywhere.
#[test]
fn first_fragment_holds_the_chain() {
    let incomplete = Err(parameter_problem(FIRST_FRAGMENT_INCOMPLETE, 0));
    let with =
        |next, more, rest: Vec<u8>| walk(Protocol::IPV6_FRAGMENT, &[fragment(next, 0, more), rest]);
    assert!(with(Protocol::TCP, true, vec![0; 24]).is_ok());
    assert_eq!(with(Protocol::TCP, true, vec![0; 16]), incomplete);
    assert_eq!(with(Protocol::UDP, true, vec![]), incomplete);
    assert_eq!(with(Protocol::DESTINATION_OPTIONS, true, vec![]), incomplete);
    let long = [Protocol::UDP.0, 1, 1, 4, 0, 0, 0, 0].to_vec();
    assert_eq!(with(Protocol::DESTINATION_OPTIONS, true, long.clone()), incomplete);
    let broken = with(Protocol::DESTINATION_OPTIONS, false, long);
    assert_eq!(broken, Err(ExtensionError::Silent));
    assert!(with(Protocol::TCP, false, vec![0; 16]).is_ok());
}

/// RFC 8200 §4.5: lengths of fragments, and the maximum packet length.
#[test]
fn fragment_extents() {
    let with = |offset, more, len| {
        let pieces = [fragment(Protocol::UDP, offset, more), vec![0; len]];
        walk(Protocol::IPV6_FRAGMENT, &pieces).map(|walked| walked.fragment.unwrap().offset_bytes)
    };
    assert_eq!(with(8, true, 16), Ok(8));
    assert_eq!(with(8, true, 15), Err(parameter_problem(ERRONEOUS_HEADER_FIELD, 4)));
    assert_eq!(with(8, false, 15), Ok(8));
    assert_eq!(with(65528, false, 7), Ok(65528));
    assert_eq!(with(65528, false, 8), Err(parameter_problem(ERRONEOUS_HEADER_FIELD, 42)));
}

/// A fragment of a fragment is dropped.
#[test]
fn two_fragment_headers() {
    let pieces = [
        fragment(Protocol::IPV6_FRAGMENT, 0, false),
        fragment(Protocol::UDP, 0, false),
        vec![0; 8],
    ];
    assert_eq!(walk(Protocol::IPV6_FRAGMENT, &pieces), Err(ExtensionError::Silent));
}

prop_compose! {
    fn any_header()(
        (traffic_class, payload_len, next_header, hop_limit) in any::<(u8, u16, u8, u8)>(),
        flow_label in 0..=FLOW_LABEL_MASK,
        (source, destination) in any::<(Ipv6Addr, Ipv6Addr)>(),
    ) -> Header {
        let next_header = Protocol(next_header);
        Header {
            traffic_class, flow_label, payload_len, next_header, hop_limit, source, destination
        }
    }
}

/// Bytes that often look like a chain of extension headers: each word begins with a likely Next
/// Header value and a small length.
fn likely_chain() -> impl Strategy<Value = Vec<u8>> {
    let next = prop::sample::select(vec![0u8, 6, 17, 43, 44, 51, 58, 59, 60]);
    let word =
        (next, 0..3u8, any::<[u8; 6]>(), any::<bool>()).prop_map(|(next, len, mut value, calm)| {
            if calm {
                value = [0; 6];
            }
            short(Protocol(next), value)
                .into_iter()
                .enumerate()
                .map(move |(index, byte)| if index == 1 { len } else { byte })
        });
    prop::collection::vec(word, 0..16).prop_map(|words| words.into_iter().flatten().collect())
}

proptest! {
    /// Round trip of the fixed header.
    #[test]
    fn round_trip(header in any_header()) {
        let mut bytes = [0xee; HEADER_LEN];
        prop_assert_eq!(header.emit(&mut bytes), HEADER_LEN);
        let frame_len = HEADER_LEN + usize::from(header.payload_len);
        prop_assert_eq!(Header::parse(&bytes, frame_len), Ok(header));
    }

    /// Round trip of the fragment header.
    #[test]
    fn fragment_round_trip(units in 0..8190u16, more in any::<bool>(), ident in any::<u32>()) {
        let mut bytes = [0xee; FRAGMENT_HEADER_LEN + 8];
        let offset_bytes = units * 8;
        let len = emit_fragment_header(&mut bytes, Protocol::UDP, offset_bytes, more, ident);
        prop_assert_eq!(len, FRAGMENT_HEADER_LEN);
        let walked = Extensions::walk(Protocol::IPV6_FRAGMENT, &bytes, bytes.len()).unwrap();
        let previous_next_header_at = FIXED_HEADER;
        let header_at = 0;
        let expected = Fragment { offset_bytes, more, ident, header_at, previous_next_header_at };
        prop_assert_eq!(walked.fragment, Some(expected));
    }

    /// No input makes `parse` panic.
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..64), len in any::<usize>()) {
        let _ = Header::parse(&bytes, len);
    }

    /// No chain makes the walk panic; accepted headers are within the private copy and the packet,
    /// and every pointer points into the packet.
    #[test]
    fn any_chain(
        first in prop::sample::select(vec![0u8, 43, 44, 51, 60]),
        chain in likely_chain(),
        cut in any::<prop::sample::Index>(),
        payload_len in 0..200usize,
    ) {
        let copy = &chain[..cut.index(chain.len() + 1)];
        match Extensions::walk(Protocol(first), copy, payload_len) {
            Ok(walked) => {
                prop_assert!(walked.len <= copy.len().min(payload_len));
                if let Some(fragment) = walked.fragment {
                    prop_assert!(fragment.header_at + FRAGMENT_HEADER_LEN <= walked.len);
                    let at = fragment.previous_next_header_at;
                    let announced = if at == FIXED_HEADER { first } else { copy[at] };
                    prop_assert_eq!(Protocol(announced), Protocol::IPV6_FRAGMENT);
                }
            }
            Err(ExtensionError::ParameterProblem { pointer, .. }) => {
                prop_assert!((pointer as usize) < HEADER_LEN + payload_len);
            }
            Err(ExtensionError::TooLong | ExtensionError::Silent) => {}
        }
    }
}
