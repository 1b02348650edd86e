//! Stations that use addresses of others.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use towpath_packet::Loans;

use super::harness::*;
use crate::counters::PortDrop::{AddressSpoofed, MacLocked, MacSpoofed, NobodyElse};
use crate::gso::testing::{Spec, bytes_of, pattern};
use crate::switch::*;
use crate::wire::{MacAddr, arp};

const OWN: [u8; 4] = [10, 10, 10, 1];

fn own_v6() -> Ipv6Addr {
    let mut octets = [10; 16];
    octets[15] = 1;
    octets.into()
}

/// A port restricted to station 1, and an unrestricted one.
fn guarded() -> Harness {
    let link_local = Prefix { address: "fe80::".parse().expect("an address"), len: 10 };
    let addresses =
        alloc::vec![Prefix::one(IpAddr::from(OWN)), Prefix::one(own_v6().into()), link_local];
    let guard = Guard { macs: alloc::vec![mac(1), mac(11)], addresses };
    Harness::new([PortConfig { guard, ..port() }, port()])
}

fn arp(sender_mac: MacAddr, sender_ip: [u8; 4]) -> Vec<u8> {
    let packet = arp::Packet {
        operation: arp::Operation::Reply,
        sender_mac,
        sender_ip: Ipv4Addr::from(sender_ip),
        target_mac: mac(2),
        target_ip: Ipv4Addr::new(10, 10, 10, 2),
    };
    let mut body = alloc::vec![0; arp::LEN];
    packet.emit(&mut body);
    [&mac(2).0[..], &mac(1).0, &[8, 6], &body].concat()
}

fn ipv4(source: [u8; 4]) -> Vec<u8> {
    let mut bytes = Spec::plain(false, false, pattern(40)).frame();
    bytes[26..30].copy_from_slice(&source);
    readdressed(&bytes, mac(2), mac(1), None)
}

fn ipv6(source: Ipv6Addr, next: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = [&mac(2).0[..], &mac(1).0, &[0x86, 0xdd, 0x60, 0, 0, 0]].concat();
    bytes.extend((body.len() as u16).to_be_bytes());
    bytes.extend([next, 255]);
    bytes.extend(source.octets());
    bytes.extend([10; 16]);
    bytes.extend(body);
    bytes
}

/// A neighbour discovery message with one option.
fn discovery(kind: u8, target: Ipv6Addr, option: u8, link_layer: MacAddr) -> Vec<u8> {
    let mut body = alloc::vec![kind, 0, 0, 0, 0, 0, 0, 0];
    body.extend(target.octets());
    body.extend([option, 1]);
    body.extend(link_layer.0);
    body
}

#[test]
fn a_station_is_itself() {
    let mut t = guarded();
    let passes: [Vec<u8>; 9] = [
        frame(mac(2), mac(11), &[], &[]),
        arp(mac(1), OWN),
        arp(mac(11), [0; 4]),
        ipv4(OWN),
        ipv4([0; 4]),
        ipv6(own_v6(), 17, &pattern(20)),
        ipv6("fe80::1".parse().expect("an address"), 58, &[128; 20]),
        ipv6(own_v6(), 58, &discovery(136, own_v6(), 2, mac(1))),
        ipv6(Ipv6Addr::UNSPECIFIED, 58, &discovery(135, own_v6(), 1, mac(1))),
    ];
    for (number, bytes) in passes.iter().enumerate() {
        assert_eq!(t.send(0, bytes).remove(&1), Some(alloc::vec![bytes.clone()]), "{number}");
    }
    t.end();
}

/// Cases: other senders in the header and in ARP and neighbour discovery; a second option after a
/// valid one; options of length zero; truncated messages, options and extension headers; router
/// advertisements and redirects; everything behind a tag.
#[test]
fn a_station_cannot_take_over_another() {
    let mut t = guarded();
    let other: Ipv6Addr = "2001:db8::7".parse().expect("an address");
    let two_options = |second: MacAddr| {
        let mut body = discovery(135, other, 1, mac(1));
        body.extend([1, 1]);
        body.extend(second.0);
        body
    };
    let dropped = [
        (frame(mac(2), mac(3), &[], &[]), MacSpoofed),
        (arp(mac(3), OWN), MacSpoofed),
        (arp(mac(1), [10, 10, 10, 2]), AddressSpoofed),
        (arp(mac(1), OWN)[..41].to_vec(), AddressSpoofed),
        (ipv4([10, 10, 10, 2]), AddressSpoofed),
        (ipv4(OWN)[..33].to_vec(), AddressSpoofed),
        (ipv6(other, 17, &pattern(20)), AddressSpoofed),
        (ipv6(own_v6(), 58, &discovery(136, other, 2, mac(1))), AddressSpoofed),
        (ipv6(own_v6(), 58, &discovery(136, own_v6(), 2, mac(3))), MacSpoofed),
        (ipv6(own_v6(), 58, &discovery(135, other, 1, mac(3))), MacSpoofed),
        (ipv6(own_v6(), 58, &two_options(mac(3))), MacSpoofed),
        (ipv6(own_v6(), 58, &two_options(mac(3))[..34]), AddressSpoofed),
        (ipv6(own_v6(), 58, &discovery(136, own_v6(), 2, mac(1))[..20]), AddressSpoofed),
        (
            ipv6(own_v6(), 58, &[&discovery(135, other, 1, mac(1))[..], &[5, 0]].concat()),
            AddressSpoofed,
        ),
        (ipv6(own_v6(), 58, &[]), AddressSpoofed),
        (ipv6(own_v6(), 58, &discovery(134, other, 1, mac(1))), AddressSpoofed),
        (ipv6(own_v6(), 58, &discovery(137, other, 1, mac(1))), AddressSpoofed),
        (ipv6(own_v6(), 60, &[58, 5, 0, 0]), AddressSpoofed),
    ];
    for (bytes, reason) in &dropped {
        t.expect_drop(0, bytes, *reason);
    }
    assert!(t.switch.stations(t.now).next().is_none(), "nothing is learned from what is dropped");
    let both = PortVlans::Trunk { native: Some(vid(1)), allowed: VlanSet::ALL.into() };
    let config = t.switch.config_of(t.ports[0]).expect("a port").clone();
    t.switch.set_port(t.ports[0], PortConfig { vlans: both, ..config }).expect("may be");
    let spoofed = readdressed(&ipv4([10, 10, 10, 2]), mac(2), mac(1), Some(1));
    t.expect_drop(0, &spoofed, AddressSpoofed);
    t.expect_drop(0, &frame(mac(2), mac(1), &[1, 2], &[]), AddressSpoofed);
    t.end();
}

/// A station without a list of addresses may be a router.
#[test]
fn a_router_is_a_station_without_addresses() {
    let guard = Guard { macs: alloc::vec![mac(1)], addresses: Vec::new() };
    let mut t = Harness::new([PortConfig { guard, ..port() }, port()]);
    let other: Ipv6Addr = "2001:db8::7".parse().expect("an address");
    let advertisement = ipv6(other, 58, &discovery(134, other, 1, mac(1)));
    assert_eq!(t.leaves_by(0, &advertisement), [1]);
    assert_eq!(t.leaves_by(0, &ipv4([9, 9, 9, 9])), [1]);
    t.expect_drop(0, &ipv6(other, 58, &discovery(136, other, 2, mac(3))), MacSpoofed);
    t.expect_drop(0, &arp(mac(3), OWN), MacSpoofed);
    t.end();
}

/// Memory that the station changes after the check does not affect the checked headers. Method:
/// afterwards everything that was read is in private headers, and none of it in the pieces.
#[test]
fn what_was_judged_is_private() {
    let mut loans = Loans::new(1);
    let respects = PortConfig { respects_owners: true, ..port() };
    let (mut listed, mut respecting) = (guarded(), Harness::new([respects, port()]));
    for (is_listed, bytes, private) in [
        (true, arp(mac(1), OWN), 42),
        (true, ipv4(OWN), 42),
        (true, ipv6(own_v6(), 58, &discovery(136, own_v6(), 2, mac(1))), 86),
        (true, ipv6(own_v6(), 58, &[128; 20]), 55),
        (true, frame(mac(2), mac(1), &[], &pattern(30)), 14),
        (false, arp(mac(1), OWN), 42),
        (false, ipv4(OWN), 14),
        (false, ipv6(own_v6(), 58, &discovery(136, own_v6(), 2, mac(1))), 86),
        (false, ipv6(own_v6(), 17, &pattern(20)), 54),
    ] {
        let t = if is_listed { &mut listed } else { &mut respecting };
        let boxed = bytes.clone().into_boxed_slice();
        let mut packet = t.memory.packet().expect("free");
        packet.push_piece(loans.lend_owned(boxed).expect("a descriptor")).expect("room");
        t.send_packet(0, packet);
        let out = t.out.packets.remove(&1).expect("sent").remove(0);
        assert_eq!((out.headers().len(), bytes_of(&out)), (private, bytes));
    }
    listed.end();
    respecting.end();
}

/// Goal: a station with a home port is accepted at no other port, whether it is known there, new or
/// forgotten, unless the other port's guard lists it; each packet records its ingress port.
#[test]
fn a_station_is_learned_at_home_alone() {
    let vlan = |number| PortVlans::Access(vlan::Vid::new(number).expect("a number"));
    let guard = Guard { macs: alloc::vec![mac(1)], ..Guard::default() };
    let listed = PortConfig { guard, ..port() };
    let other = PortConfig { vlans: vlan(10), ..port() };
    // Above that rate a frame is forwarded without learning.
    let quick = PortConfig { moves_per_second: 1000, ..port() };
    let mut t = Harness::new([port(), quick, listed, other]);
    t.out.homes = alloc::vec![(mac(1), t.ports[0])];
    let (own, to_it) = (frame(mac(9), mac(1), &[], b""), frame(mac(1), mac(2), &[], b""));
    t.expect_drop(1, &own, MacLocked);
    assert_eq!(t.leaves_by(0, &own), [1, 2]);
    t.expect_drop(1, &own, MacLocked);
    assert_eq!(t.leaves_by(1, &to_it), [0]);
    t.now += Config::default().age;
    t.expect_drop(1, &own, MacLocked);
    // In another VLAN it is another station.
    t.expect_drop(3, &own, NobodyElse);
    assert_eq!(t.leaves_by(0, &own), [1, 2]);
    assert_eq!(t.leaves_by(1, &to_it), [0]);
    let packet = t.packet(&to_it, true);
    t.send_packet(1, packet);
    let came_by: Vec<_> = t.out.packets.values().flatten().map(Packet::ingress).collect();
    assert_eq!(came_by, [Some(1)]);
    t.out.packets.clear();
    assert_eq!(t.leaves_by(2, &own), [0, 1]);
    assert_eq!(t.leaves_by(1, &to_it), [2], "the list decides");
    t.end();
}

/// Goal: a port that respects owners may claim its own and unowned addresses, by ARP and by
/// neighbour discovery, also behind extension headers; other packets are not affected. A list of
/// addresses decides alone.
#[test]
fn what_is_another_ports_is_not_claimed() {
    let respects = || PortConfig { respects_owners: true, ..port() };
    let addresses = alloc::vec![Prefix::one([10, 10, 10, 8].into())];
    let guard = Guard { addresses, ..Guard::default() };
    let mut t = Harness::new([respects(), port(), PortConfig { guard, ..respects() }]);
    let [free, of_other] = ["fd00::9", "fd00::8"].map(|text| text.parse().expect("an address"));
    t.out.owners = BTreeMap::from([
        (IpAddr::from(OWN), t.ports[0]),
        (own_v6().into(), t.ports[0]),
        ([10, 10, 10, 8].into(), t.ports[1]),
        (IpAddr::V6(of_other), t.ports[1]),
    ]);
    let behind = |body: &[u8]| [&[58, 0, 1, 4, 0, 0, 0, 0][..], body].concat();
    let passes = [
        arp(mac(1), OWN),
        arp(mac(1), [10, 10, 10, 9]),
        arp(mac(1), [0; 4]),
        ipv4([10, 10, 10, 8]),
        ipv6(of_other, 17, &pattern(20)),
        ipv6(of_other, 58, &[128; 20]),
        ipv6(free, 58, &discovery(136, own_v6(), 2, mac(1))),
        ipv6(free, 58, &discovery(134, free, 1, mac(1))),
        ipv6(Ipv6Addr::UNSPECIFIED, 58, &discovery(135, of_other, 1, mac(1))),
    ];
    for (number, bytes) in passes.iter().enumerate() {
        assert_eq!(t.leaves_by(0, bytes), [1, 2], "{number}");
    }
    for bytes in [
        arp(mac(1), [10, 10, 10, 8]),
        arp(mac(1), OWN)[..41].to_vec(),
        ipv6(free, 58, &discovery(136, of_other, 2, mac(1))),
        ipv6(free, 0, &behind(&discovery(136, of_other, 2, mac(1)))),
        ipv6(of_other, 58, &discovery(135, free, 1, mac(1))),
        ipv6(of_other, 58, &discovery(134, free, 1, mac(1))),
        ipv6(free, 58, &[]),
        ipv6(free, 60, &[58, 5, 0, 0]),
    ] {
        t.expect_drop(0, &bytes, AddressSpoofed);
    }
    assert_eq!(t.leaves_by(2, &arp(mac(1), [10, 10, 10, 8])), [0, 1], "on the list");
    t.expect_drop(2, &arp(mac(1), OWN), AddressSpoofed);
    t.end();
}
