//! Requests are compared with bytes written out by hand. The command's tests check them against the
//! kernel.

use super::message::{Reply, Request};
use super::*;

#[test]
fn a_link_request_has_the_layout_of_rtnetlink() {
    let mut request = Request::link(7, true);
    request.attribute(message::IFLA_MTU, &1500u32.to_ne_bytes());
    let bytes = request.finish(3);
    assert_eq!(bytes.len(), 16 + 16 + 8);
    assert_eq!(bytes[0..4], 40u32.to_ne_bytes());
    assert_eq!(bytes[4..6], 16u16.to_ne_bytes(), "RTM_NEWLINK");
    assert_eq!(bytes[6..8], 5u16.to_ne_bytes(), "request with acknowledgement");
    assert_eq!(bytes[8..12], 3u32.to_ne_bytes());
    assert_eq!(bytes[20..24], 7u32.to_ne_bytes());
    assert_eq!(bytes[24..28], 1u32.to_ne_bytes(), "IFF_UP");
    assert_eq!(bytes[32..34], 8u16.to_ne_bytes());
    assert_eq!(bytes[34..36], 4u16.to_ne_bytes());
    assert_eq!(bytes[36..40], 1500u32.to_ne_bytes());
}

#[test]
fn attributes_are_padded_to_four_bytes() {
    let mut request = Request::link(1, false);
    request.attribute(message::IFLA_ADDRESS, &[2, 0, 0, 0, 0, 1]);
    let bytes = request.finish(1);
    assert_eq!(bytes.len(), 32 + 12);
    assert_eq!(bytes[32..34], 10u16.to_ne_bytes(), "the length leaves the padding out");
}

/// A kernel's answer: header, error, header of the request, attributes.
fn answer(error: i32, flags: u16, sequence: u32, attributes: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let length = u32::try_from(16 + 4 + 16 + attributes.len()).unwrap();
    bytes.extend(length.to_ne_bytes());
    bytes.extend(2u16.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend(error.to_ne_bytes());
    bytes.extend(16u32.to_ne_bytes());
    bytes.extend([0; 12]);
    bytes.extend(attributes);
    bytes
}

#[test]
fn answers_are_read() {
    assert_eq!(Reply::parse(&answer(0, 0x100, 9, &[]), 9), Reply::Done);
    assert_eq!(Reply::parse(&answer(0, 0x100, 8, &[]), 9), Reply::Other, "another request's");
    let text = [&9u16.to_ne_bytes()[..], &1u16.to_ne_bytes()[..], b"gone\0", &[0; 3]].concat();
    assert_eq!(
        Reply::parse(&answer(-19, 0x300, 9, &text), 9),
        Reply::Refused { errno: Errno::NODEV, text: Some("gone".into()) }
    );
}

/// Goal: no answer, however short or wrong, makes the parser panic. Method: every prefix of a valid
/// answer, and the valid answer with each byte set to each of a few values.
#[test]
fn damaged_answers_do_no_harm() {
    let text = [&9u16.to_ne_bytes()[..], &1u16.to_ne_bytes()[..], b"gone\0", &[0; 3]].concat();
    let good = answer(-19, 0x200, 9, &text);
    for end in 0..good.len() {
        Reply::parse(&good[..end], 9);
    }
    for at in 0..good.len() {
        for value in [0, 1, 3, 0x7f, 0x80, 0xff] {
            let mut bad = good.clone();
            bad[at] = value;
            Reply::parse(&bad, 9);
        }
    }
}

#[test]
fn link_local_address_of_a_mac() {
    let expected: Ipv6Addr = "fe80::7:61ff:fe79:1".parse().unwrap();
    assert_eq!(link_local([0x02, 0x07, 0x61, 0x79, 0x00, 0x01]), expected);
}
