//! Tests of the IPv4 header.

extern crate std;

use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::wire::{captured, ethernet};

/// A captured packet without its Ethernet header.
fn packet(frame: &str) -> Vec<u8> {
    captured::bytes(frame).split_off(ethernet::HEADER_LEN)
}

/// A header with `options`, which fill whole words, and a valid checksum.
fn with_options(options: &[u8]) -> Vec<u8> {
    let mut bytes = packet(captured::UDP_V4);
    bytes.truncate(HEADER_LEN);
    bytes.extend(options);
    let len = bytes.len();
    bytes[at::VERSION_IHL] = VERSION << 4 | (len / 4) as u8;
    write_u16(&mut bytes, at::TOTAL_LEN, len as u16);
    fix_checksum(&mut bytes);
    bytes
}

fn fix_checksum(bytes: &mut [u8]) {
    write_u16(bytes, at::CHECKSUM, 0);
    let checksum = !header_sum(bytes);
    write_u16(bytes, at::CHECKSUM, checksum);
}

/// A header from Linux: every field, rebuilt byte for byte.
#[test]
fn header_from_linux() {
    let bytes = packet(captured::UDP_V4);
    let header = Header::parse(&bytes, bytes.len()).unwrap();
    let expected = Header {
        tos: 0,
        ident: 0x625c,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        ttl: 64,
        protocol: Protocol::UDP,
        source: Ipv4Addr::new(192, 0, 2, 1),
        destination: Ipv4Addr::new(192, 0, 2, 2),
        total_len: 35,
        header_len: 20,
        has_source_route: false,
    };
    assert_eq!(header, expected);
    assert_eq!(header.payload_len(), 15);
    let mut again = [0xee; HEADER_LEN];
    assert_eq!(header.emit(&mut again), HEADER_LEN);
    assert_eq!(again[..], bytes[..HEADER_LEN]);
}

/// The last fragment of a long packet, of which only the header is given.
#[test]
fn fragment_from_linux() {
    let header = Header::parse(&packet(captured::FRAGMENT_V4), 148).unwrap();
    assert!(header.is_fragment() && !header.more_fragments && !header.dont_fragment);
    assert_eq!((header.fragment_offset, header.payload_len()), (1480, 128));
}

/// Each length is compared with the others: header, total, packet, private copy.
#[test]
fn lengths() {
    let bytes = packet(captured::UDP_V4);
    assert_eq!(Header::parse(&bytes, 34), Err(ParseError::Truncated));
    assert!(Header::parse(&bytes, 46).is_ok(), "Ethernet padding");
    for len in 0..HEADER_LEN {
        assert_eq!(Header::parse(&bytes[..len], bytes.len()), Err(ParseError::Truncated));
    }
    let options = with_options(&[OPTION_NOP; 8]);
    assert_eq!(Header::parse(&options[..24], 28), Err(ParseError::Truncated));
    let mut short = bytes.clone();
    short[at::VERSION_IHL] = 0x44;
    assert_eq!(Header::parse(&short, 35), Err(ParseError::BadLength));
    let mut short = bytes;
    write_u16(&mut short, at::TOTAL_LEN, 19);
    assert_eq!(Header::parse(&short, 35), Err(ParseError::BadLength));
}

/// Another version is distinguished from an invalid header.
#[test]
fn version() {
    let mut bytes = packet(captured::UDP_V4);
    bytes[at::VERSION_IHL] = 0x65;
    assert_eq!(Header::parse(&bytes, 35), Err(ParseError::BadVersion));
}

/// RFC 791 §3.1: a fragment may end with the longest datagram, but not beyond it.
#[test]
fn fragment_beyond_the_longest_datagram() {
    let mut bytes = packet(captured::UDP_V4);
    bytes.truncate(HEADER_LEN);
    write_u16(&mut bytes, at::FRAGMENT, FRAGMENT_OFFSET_MASK);
    write_u16(&mut bytes, at::TOTAL_LEN, 20);
    fix_checksum(&mut bytes);
    assert_eq!(Header::parse(&bytes, 20), Err(ParseError::BadLength));
    write_u16(&mut bytes, at::FRAGMENT, FRAGMENT_OFFSET_MASK - 2);
    write_u16(&mut bytes, at::TOTAL_LEN, 23);
    fix_checksum(&mut bytes);
    assert_eq!(Header::parse(&bytes, 23).map(|header| header.fragment_offset), Ok(65512));
}

/// The reserved flag is ignored.
#[test]
fn reserved_flag() {
    let mut bytes = packet(captured::UDP_V4);
    bytes[at::FRAGMENT] |= 0x80;
    fix_checksum(&mut bytes[..HEADER_LEN]);
    assert!(Header::parse(&bytes, 35).is_ok_and(|header| !header.is_fragment()));
}

/// RFC 791 §3.1: valid and invalid option lists, and source routes in them.
#[test]
fn options() {
    let source_route = |options: &[u8]| {
        let bytes = with_options(options);
        let header = Header::parse(&bytes, bytes.len())?;
        assert_eq!(usize::from(header.header_len), HEADER_LEN + options.len());
        Ok(header.has_source_route)
    };
    assert_eq!(source_route(&[OPTION_NOP; 40]), Ok(false));
    assert_eq!(source_route(&[148, 4, 0, 0]), Ok(false), "router alert");
    assert_eq!(source_route(&[OPTION_END, 131, 0, 0]), Ok(false), "behind the end");
    assert_eq!(source_route(&[131, 7, 4, 192, 0, 2, 9, 0]), Ok(true));
    assert_eq!(source_route(&[OPTION_NOP, 137, 7, 4, 192, 0, 2, 9]), Ok(true));
    assert_eq!(source_route(&[148, 0, 0, 0]), Err(ParseError::BadOption));
    assert_eq!(source_route(&[148, 1, 0, 0]), Err(ParseError::BadOption));
    assert_eq!(source_route(&[148, 5, 0, 0]), Err(ParseError::BadOption));
    assert_eq!(source_route(&[1, 1, 1, 148]), Err(ParseError::BadOption), "no length");
}

fn any_header() -> impl Strategy<Value = Header> {
    let place = (0..=0x1fff_u16).prop_flat_map(|units| {
        let offset = units.min((u16::MAX - 20) / 8) * 8;
        (Just(offset), 20..=u16::MAX - offset)
    });
    let rest = (any::<(u8, u16, bool, bool, u8, u8)>(), any::<(Ipv4Addr, Ipv4Addr)>());
    (place, rest).prop_map(|((fragment_offset, total_len), (fields, addresses))| {
        let (tos, ident, dont_fragment, more_fragments, ttl, protocol) = fields;
        let (source, destination) = addresses;
        Header {
            tos,
            ident,
            dont_fragment,
            more_fragments,
            fragment_offset,
            ttl,
            protocol: Protocol(protocol),
            source,
            destination,
            total_len,
            header_len: HEADER_LEN as u8,
            has_source_route: false,
        }
    })
}

proptest! {
    /// Round trip, and a single wrong bit is always detected.
    #[test]
    fn round_trip(header in any_header(), bit in 0..HEADER_LEN * 8) {
        let mut bytes = [0xee; HEADER_LEN];
        prop_assert_eq!(header.emit(&mut bytes), HEADER_LEN);
        prop_assert_eq!(Header::parse(&bytes, usize::from(header.total_len)), Ok(header));
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Header::parse(&bytes, usize::from(u16::MAX)).is_err());
    }

    /// No input makes `parse` panic, and accepted headers are consistent. Half of the inputs get a
    /// valid version and checksum, so that the options are reached.
    #[test]
    fn any_bytes(
        mut bytes in prop::collection::vec(any::<u8>(), 0..80),
        frame_len in 0..70000usize,
        repair in any::<bool>(),
    ) {
        if repair && bytes.len() >= HEADER_LEN_MAX {
            bytes[at::VERSION_IHL] = (VERSION << 4) | (bytes[at::VERSION_IHL] % 16);
            let len = usize::from(bytes[at::VERSION_IHL] % 16) * 4;
            if len >= HEADER_LEN {
                fix_checksum(&mut bytes[..len]);
            }
        }
        if let Ok(header) = Header::parse(&bytes, frame_len) {
            prop_assert!(usize::from(header.header_len) >= HEADER_LEN);
            prop_assert!(header.total_len >= u16::from(header.header_len));
            prop_assert!(usize::from(header.total_len) <= frame_len);
            prop_assert!(header.fragment_offset.checked_add(header.total_len).is_some());
        }
    }
}
