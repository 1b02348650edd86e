//! Stations that send router or DHCP server packets without permission.

use alloc::vec::Vec;

use towpath_packet::packet::PEEK_BYTES;

use super::harness::*;
use crate::counters::PortDrop::RouterRefused;
use crate::gso::testing::pattern;
use crate::switch::*;

/// A port whose station is no router, and an unrestricted one.
fn guarded() -> Harness {
    Harness::new([PortConfig { is_router: false, ..port() }, port()])
}

/// A frame from 1 to 2 with these tags, each an EtherType and a TCI.
fn tagged(tags: &[[u16; 2]], ethertype: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = [mac(2).0, mac(1).0].concat();
    tags.as_flattened().iter().for_each(|word| bytes.extend(word.to_be_bytes()));
    bytes.extend(ethertype.to_be_bytes());
    bytes.extend(body);
    bytes
}

fn ipv4(protocol: u8, fragment: u16, options: &[u8], body: &[u8]) -> Vec<u8> {
    let len = (20 + options.len() + body.len()) as u16;
    let mut bytes = alloc::vec![0x45 + (options.len() / 4) as u8, 0];
    bytes.extend(len.to_be_bytes());
    bytes.extend([0, 1]);
    bytes.extend(fragment.to_be_bytes());
    bytes.extend([64, protocol, 0, 0, 10, 0, 2, 66, 255, 255, 255, 255]);
    bytes.extend(options);
    bytes.extend(body);
    bytes
}

fn ipv6(next: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = alloc::vec![0x60, 0, 0, 0];
    bytes.extend((body.len() as u16).to_be_bytes());
    bytes.extend([next, 255]);
    bytes.extend([0xfe; 32]);
    bytes.extend(body);
    bytes
}

fn udp(from: u16, to: u16) -> Vec<u8> {
    let ports = [from.to_be_bytes(), to.to_be_bytes()].concat();
    [&ports[..], &[0, 16, 0, 0], &pattern(8)].concat()
}

/// An extension header of eight bytes: options, or a fragment header.
fn extension(next: u8, rest: [u8; 6]) -> Vec<u8> {
    [&[next, 0][..], &rest].concat()
}

const OPTIONS: [u8; 6] = [1, 4, 0, 0, 0, 0];
/// Fragment header of a whole packet, of the first fragment, and of the second.
const ATOMIC: [u8; 6] = [0, 0, 0, 0, 0, 7];
const FIRST: [u8; 6] = [0, 1, 0, 0, 0, 7];
const LATER: [u8; 6] = [0, 16, 0, 0, 0, 7];
const V4: u16 = 0x0800;
const V6: u16 = 0x86dd;

/// Each kind of rejected message, as an IP packet.
fn refused() -> Vec<(u16, Vec<u8>)> {
    let advertisement = [&[134, 0][..], &pattern(14)].concat();
    let redirect = [&[137, 0][..], &pattern(38)].concat();
    let behind = |next, headers: &[Vec<u8>], body: &[u8]| {
        ipv6(next, &[&headers.concat()[..], body].concat())
    };
    let mut all = alloc::vec![
        (V4, ipv4(17, 0, &[], &udp(67, 68))),
        (V4, ipv4(17, 0, &[], &udp(4000, 68))),
        (V4, ipv4(17, 0x4000, &[1; 40], &udp(67, 68))),
        (V4, ipv4(17, 0x2000, &[], &udp(67, 68))),
        (V6, ipv6(17, &udp(547, 546))),
        (V6, ipv6(17, &udp(9, 546))),
        (V6, ipv6(58, &advertisement)),
        (V6, ipv6(58, &redirect)),
        (V6, behind(0, &[extension(60, OPTIONS), extension(58, OPTIONS)], &advertisement)),
        (V6, behind(43, &[extension(17, [0; 6])], &udp(547, 546))),
        (V6, behind(44, &[extension(58, ATOMIC)], &advertisement)),
        (V6, behind(44, &[extension(58, FIRST)], &advertisement)),
        (V6, behind(44, &[extension(60, FIRST), extension(58, OPTIONS)], &advertisement)),
        (V6, behind(44, &[extension(17, FIRST)], &udp(547, 546))),
    ];
    // Packets that cannot be parsed far enough: truncated headers, fragments that end before the
    // ports, the chain in the second fragment, headers beyond the peeked bytes, of another version,
    // nested fragments.
    let head = [58, (PEEK_BYTES / 8) as u8, 1, PEEK_BYTES as u8];
    let long = [&head[..], &pattern(PEEK_BYTES + 4)].concat();
    all.extend([
        (V4, ipv4(17, 0, &[], &udp(67, 68))[..19].to_vec()),
        (V4, ipv4(17, 0, &[], &udp(67, 68)[..3])),
        (V4, ipv4(17, 0x2000, &[], &udp(67, 68)[..3])),
        (V4, [&[0x44][..], &ipv4(17, 0, &[], &udp(67, 68))[1..]].concat()),
        (V6, ipv6(58, &[])),
        (V6, ipv6(58, &advertisement)[..39].to_vec()),
        (V6, behind(44, &[extension(60, FIRST)], &[])),
        (V6, behind(60, &[long], &advertisement)),
        (V6, behind(60, &[alloc::vec![58, 5, 0, 0]], &[])),
        (V6, behind(44, &[extension(44, ATOMIC), extension(58, ATOMIC)], &advertisement)),
    ]);
    all
}

/// Goal: a station that is no router can send neither router advertisements, redirects nor packets
/// to DHCP clients; other ports can. Cases: other source ports, IP options, extension headers,
/// fragments, truncated packets, headers that are too long to parse.
#[test]
fn only_routers_announce_themselves() {
    let mut t = guarded();
    for (number, (ethertype, body)) in refused().iter().enumerate() {
        let bytes = tagged(&[], *ethertype, body);
        t.expect_drop(0, &bytes, RouterRefused);
        assert_eq!(t.leaves_by(1, &bytes), [0], "{number}");
    }
    t.end();
}

/// Goal: no number or kind of tags hides such packets. Linux skips tags for VLAN 0, also service
/// tags, and a station with VLANs removes its own tag first.
#[test]
fn tags_do_not_hide_routers() {
    let mut t = guarded();
    let trunk = PortVlans::Trunk { native: Some(vid(1)), allowed: VlanSet::ALL.into() };
    for (number, (ethertype, body)) in refused().iter().enumerate() {
        for tags in [&[[0x8100, 0]][..], &[[0x88a8, 0]], &[[0x8100, 0], [0x88a8, 0]]] {
            t.expect_drop(0, &tagged(tags, *ethertype, body), RouterRefused);
        }
        if number == 0 {
            let cut = tagged(&[[0x88a8, 0]], 0, &[])[..17].to_vec();
            t.expect_drop(0, &cut, crate::counters::PortDrop::EthernetMalformed);
        }
    }
    let config = t.switch.config_of(t.ports[0]).expect("a port").clone();
    t.switch.set_port(t.ports[0], PortConfig { vlans: trunk, ..config }).expect("may be");
    for (ethertype, body) in &refused() {
        for tags in [&[[0x8100, 5]][..], &[[0x8100, 5], [0x8100, 0]], &[[0x8100, 5]; 3]] {
            t.expect_drop(0, &tagged(tags, *ethertype, body), RouterRefused);
        }
    }
    t.end();
}

/// Packets that other stations may send, also to servers, and later fragments of any packet.
#[test]
fn others_ask_and_answer() {
    let mut t = guarded();
    let solicitation = [&[133, 0][..], &pattern(14)].concat();
    let fragment =
        |next, fragment, body: &[u8]| ipv6(44, &[&extension(next, fragment)[..], body].concat());
    for (ethertype, body) in [
        (V4, ipv4(17, 0, &[], &udp(68, 67))),
        (V4, ipv4(17, 0, &[], &udp(67, 67))),
        (V4, ipv4(17, 0x2001, &[], &udp(67, 68))),
        (V4, ipv4(6, 0, &[], &[&udp(67, 68)[..], &[0; 8]].concat())),
        (V4, ipv4(1, 0, &[], &[8, 0])),
        (V6, ipv6(17, &udp(546, 547))),
        (V6, ipv6(17, &udp(547, 547))),
        (V6, ipv6(6, &[&udp(547, 546)[..], &[0; 8]].concat())),
        (V6, ipv6(58, &solicitation)),
        (V6, ipv6(58, &[128, 0, 0, 0])),
        (V6, ipv6(59, &[134])),
        (V6, fragment(58, LATER, &[134; 16])),
        (0x0806, [&[0, 1, 8, 0][..], &[0; 24]].concat()),
        (0x1234, pattern(40)),
    ] {
        let bytes = tagged(&[], ethertype, &body);
        assert_eq!(t.send(0, &bytes).remove(&1), Some(alloc::vec![bytes.clone()]), "{body:?}");
    }
    t.end();
}

/// Fragments of full length, of which only the beginning is checked, pass.
#[test]
fn long_fragments_pass() {
    for respects_owners in [false, true] {
        let config = PortConfig { is_router: false, respects_owners, ..port() };
        let mut t = Harness::new([config, port()]);
        for offset in [FIRST, [0, 0xb1, 0, 0, 0, 7]] {
            let body = [&extension(17, offset)[..], &udp(7, 9), &pattern(1424)].concat();
            assert_eq!(t.leaves_by(0, &tagged(&[], V6, &ipv6(44, &body))), [1], "{offset:?}");
        }
        t.end();
    }
}

/// The bytes that a verdict depends on are private afterwards, and the station cannot change them.
#[test]
fn what_was_looked_at_is_private() {
    let mut t = guarded();
    let mut loans = towpath_packet::Loans::new(1);
    for (ethertype, body, private) in [
        (V4, ipv4(6, 0, &[], &pattern(40)), 34),
        (V4, ipv4(17, 0, &[], &udp(68, 67)), 38),
        (V4, ipv4(17, 1, &[], &udp(68, 67)), 34),
        (V6, ipv6(6, &pattern(40)), 54),
        (V6, ipv6(17, &udp(546, 547)), 58),
        (V6, ipv6(0, &[&extension(58, OPTIONS)[..], &[128; 8]].concat()), 63),
    ] {
        let bytes = tagged(&[], ethertype, &body).into_boxed_slice();
        let mut packet = t.memory.packet().expect("free");
        packet.push_piece(loans.lend_owned(bytes).expect("a descriptor")).expect("room");
        t.send_packet(0, packet);
        let out = t.out.packets.remove(&1).expect("sent").remove(0);
        assert_eq!(out.headers().len(), private);
    }
    t.end();
}
