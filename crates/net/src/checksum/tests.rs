//! Tests of the Internet checksum against a slow sum written from its definition, packets from
//! Linux and examples of the RFCs.

extern crate std;

use core::net::{Ipv4Addr, Ipv6Addr};
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::wire::{captured, ethernet, ipv4, ipv6};

/// The sum as RFC 1071 §1 defines it, one word at a time.
fn slow_sum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap()
}

fn sum_of(bytes: &[u8]) -> Sum {
    let mut sum = Sum::new();
    sum.add(bytes);
    sum
}

/// The numerical example of RFC 1071 §3.
#[test]
fn rfc_1071_example() {
    let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
    assert_eq!(sum_of(&bytes).fold(), 0xddf2);
    assert_eq!(sum_of(&bytes).finish(), !0xddf2);
}

/// No bytes and zero bytes sum to zero, which is not a valid checksum.
#[test]
fn zeros_sum_to_zero() {
    assert_eq!(Sum::new().fold(), 0);
    assert_eq!(sum_of(&[0; 100]).fold(), 0);
    assert_eq!(sum_of(&[0; 100]).finish(), 0xffff);
}

/// Bytes of all ones produce the maximum of every carry; every length up to two blocks, and 1 MiB.
#[test]
fn ones_carry_at_every_length() {
    let ones = vec![0xff; 1 << 20];
    for len in (0..300).chain([1 << 20]) {
        assert_eq!(sum_of(&ones[..len]).fold(), slow_sum(&ones[..len]), "{len} bytes");
    }
}

/// RFC 768: a computed zero is sent as all ones; other values are unchanged.
#[test]
fn udp_never_sends_zero() {
    assert_eq!(udp_nonzero(0), 0xffff);
    assert_eq!(udp_nonzero(1), 1);
    assert_eq!(udp_nonzero(0xffff), 0xffff);
}

/// The transport checksum of every packet captured from Linux is correct, with the pseudo-header of
/// its family where there is one.
#[test]
fn packets_from_linux_verify() {
    let mut verified = 0;
    for frame in captured::COMPLETE {
        let frame = captured::bytes(frame);
        let packet = &frame[ethernet::HEADER_LEN..];
        let mut sum;
        let payload;
        match ethernet::Header::parse(&frame).unwrap().ethertype {
            ethernet::EtherType::IPV4 => {
                let header = ipv4::Header::parse(packet, packet.len()).unwrap();
                payload = &packet[ipv4::HEADER_LEN..];
                let (source, destination) = (header.source.into(), header.destination.into());
                let len = payload.len() as u32;
                sum = match header.protocol {
                    Protocol::ICMP => Sum::new(),
                    protocol => pseudo_header(source, destination, protocol, len),
                };
            }
            ethernet::EtherType::IPV6 => {
                let header = ipv6::Header::parse(packet, packet.len()).unwrap();
                let rest = &packet[ipv6::HEADER_LEN..];
                let walked = ipv6::Extensions::walk(header.next_header, rest, rest.len()).unwrap();
                payload = &rest[walked.len..];
                let (source, destination) = (header.source.into(), header.destination.into());
                sum = pseudo_header(source, destination, walked.protocol, payload.len() as u32);
            }
            _ => continue,
        }
        sum.add(payload);
        assert_eq!(sum.finish(), 0);
        assert_eq!(sum.fold(), 0xffff);
        verified += 1;
    }
    assert_eq!(verified, 16);
}

proptest! {
    /// Any bytes in any pieces (also of odd length) have the sum of the definition.
    #[test]
    fn pieces_sum_like_the_whole(
        bytes in prop::collection::vec(any::<u8>(), 0..3000),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let (mut sum, mut sum_of_sums) = (Sum::new(), Sum::new());
        for pair in cuts.windows(2) {
            let piece = &bytes[pair[0]..pair[1]];
            sum.add(piece);
            sum_of_sums.add_sum(sum_of(piece));
        }
        prop_assert_eq!(sum.fold(), slow_sum(&bytes));
        prop_assert_eq!(sum_of_sums.fold(), slow_sum(&bytes));
        prop_assert_eq!(sum.finish(), !slow_sum(&bytes));
    }

    /// Fields are added like their bytes, after an even or an odd number of other bytes.
    #[test]
    fn fields_sum_like_their_bytes(
        before in prop::collection::vec(any::<u8>(), 0..3),
        half in any::<u16>(),
        word in any::<u32>(),
    ) {
        let mut bytes = before.clone();
        bytes.extend(half.to_be_bytes());
        bytes.extend(word.to_be_bytes());
        let mut sum = sum_of(&before);
        sum.add_u16(half);
        sum.add_u32(word);
        prop_assert_eq!(sum.fold(), slow_sum(&bytes));
    }

    /// RFC 9293 §3.1, RFC 8200 §8.1: the pseudo-headers byte by byte.
    #[test]
    fn pseudo_headers_sum_like_their_bytes(
        (source4, destination4) in any::<([u8; 4], [u8; 4])>(),
        (source6, destination6) in any::<([u8; 16], [u8; 16])>(),
        protocol in any::<u8>(),
        len in any::<u16>(),
        long in any::<u32>(),
    ) {
        let mut bytes = [source4, destination4].concat();
        bytes.extend([0, protocol]);
        bytes.extend(len.to_be_bytes());
        let source = Ipv4Addr::from(source4).into();
        let destination = Ipv4Addr::from(destination4).into();
        let sum = pseudo_header(source, destination, Protocol(protocol), len.into());
        prop_assert_eq!(sum.fold(), slow_sum(&bytes));

        let mut bytes = [source6, destination6].concat();
        bytes.extend(long.to_be_bytes());
        bytes.extend([0, 0, 0, protocol]);
        let source = Ipv6Addr::from(source6).into();
        let destination = Ipv6Addr::from(destination6).into();
        let sum = pseudo_header(source, destination, Protocol(protocol), long);
        prop_assert_eq!(sum.fold(), slow_sum(&bytes));
    }
}
