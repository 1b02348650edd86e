//! IPv4 headers and addresses.

use std::net::{IpAddr, Ipv4Addr};

use super::end;
use crate::frame::{self, DNS, GATEWAY, IP, L4, PROGRAM, UDP};
use crate::host::{HOST, HOSTILE, NOBODY, TRAP};
use crate::injector::Injector;
use crate::random::Random;

/// Goal: an IPv4 header with wrong fields or impossible addresses leads nowhere. Method: a datagram
/// that would reach a trap on the host, broken in every way.
pub(super) fn round(injector: &mut Injector, random: &mut Random) {
    let from = end(PROGRAM, random);
    let whole = frame::udp(from, (HOST.into(), TRAP), HOSTILE);
    for len in IP..whole.len() {
        injector.drops("ip_malformed", &whole[..len]);
    }
    for len in L4..whole.len() {
        // The IP header has the truncated length.
        let mut frame = whole[..len].to_vec();
        frame::put(&mut frame, IP + 2, (len - IP) as u16);
        frame::fix_ipv4(&mut frame);
        injector.drops("udp_malformed", &frame);
    }
    lengths(injector, &whole);
    for bit in 0..16 {
        let mut frame = whole.clone();
        frame[IP + 10 + bit / 8] ^= 1 << (bit % 8);
        injector.drops("ip_checksum", &frame);
    }
    options(injector, from.1, random);
    addresses(injector, from.1);
    others(injector, random);
}

fn lengths(injector: &mut Injector, whole: &[u8]) {
    for first in (0..=0xff).filter(|first| first >> 4 != 4 || !(5..10).contains(&(first & 15))) {
        let mut frame = whole.to_vec();
        frame[IP] = first;
        if first & 15 >= 5 {
            frame::fix_ipv4(&mut frame);
        }
        injector.drops("ip_malformed", &frame);
    }
    let len = (whole.len() - IP) as u16;
    for total in [0, 1, 8, 19, len + 1, len + 8, 1500, 0x7fff, 0xffff] {
        let mut frame = whole.to_vec();
        frame::put(&mut frame, IP + 2, total);
        frame::fix_ipv4(&mut frame);
        injector.drops("ip_malformed", &frame);
    }
    // Fragments that end beyond the longest packet.
    for offset in [0x1fff, 0x1ffd, 0x3fff] {
        let mut frame = whole.to_vec();
        frame::put(&mut frame, IP + 6, offset);
        frame::fix_ipv4(&mut frame);
        injector.drops("ip_malformed", &frame);
    }
}

fn options(injector: &mut Injector, port: u16, random: &mut Random) {
    let (from, to) = ((IpAddr::from(PROGRAM), port), (IpAddr::from(HOST), TRAP));
    let payload = frame::udp_bytes(from, to, HOSTILE);
    let with = |options: &[u8]| frame::ipv4_with(PROGRAM, HOST, UDP, options, &payload);
    let gateway = GATEWAY.octets();
    for kind in [131, 137] {
        let route = [&[kind, 7, 4], &gateway[..]].concat();
        injector.drops("source_route", &with(&route));
        injector.drops("source_route", &with(&[&[1, 1], &route[..]].concat()));
        // Already at its end, and too short to hold an address.
        injector.drops("source_route", &with(&[&[kind, 7, 8], &gateway[..]].concat()));
        injector.drops("source_route", &with(&[kind, 2]));
    }
    for kind in [7, 68, 130, 131, 148, 255] {
        for len in [0, 1, 9, 40, 255] {
            injector.drops("ip_malformed", &with(&[kind, len, 4, 0]));
        }
        injector.drops("ip_malformed", &with(&[1, 1, 1, kind]));
    }
    for _ in 0..64 {
        // Unknown options, each with a length of zero somewhere.
        let mut garbage = random.bytes(40);
        garbage[0] |= 0x80;
        garbage[1] = 0;
        injector.drops("ip_malformed", &with(&garbage));
    }
}

/// Sends from impossible sources, and to destinations that are not served.
fn addresses(injector: &mut Injector, port: u16) {
    let nobody = ["0.0.0.0", "0.1.2.3", "127.0.0.1", "127.255.255.254"];
    let groups = ["224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"];
    let ours = [GATEWAY, DNS];
    let impossible = nobody.into_iter().chain(groups).map(|text| text.parse().unwrap());
    for source in impossible.clone().chain(ours) {
        let frame = frame::udp((IpAddr::V4(source), port), (HOST.into(), TRAP), HOSTILE);
        injector.drops("source_martian", &frame);
    }
    let on_link = ["10.0.2.0", "10.0.2.16", "10.0.2.99", "10.0.2.255", "10.0.2.15"];
    let on_link = on_link.into_iter().map(|text| text.parse().unwrap());
    for destination in impossible.chain(on_link) {
        let to = (IpAddr::V4(destination), TRAP);
        let frame = frame::udp((PROGRAM.into(), port), to, HOSTILE);
        injector.drops("destination_not_served", &frame);
    }
    // The gateway has no such service: it answers, and never passes the datagram on.
    for ours in ours {
        injector.send(&frame::udp((PROGRAM.into(), port), (ours.into(), TRAP), HOSTILE));
        let syn = frame::Segment::new((PROGRAM.into(), port), (ours.into(), TRAP), frame::SYN);
        injector.send(&syn.frame());
    }
}

fn others(injector: &mut Injector, random: &mut Random) {
    for protocol in (0..=255).filter(|protocol| ![1, 6, 17].contains(protocol)) {
        let payload = [&HOSTILE[..], &random.bytes(24)].concat();
        let frame = frame::ip(PROGRAM.into(), HOST.into(), protocol, &payload);
        injector.drops("protocol_unknown", &frame);
    }
    for ttl in [0, 1] {
        for destination in [NOBODY, HOST, Ipv4Addr::new(8, 8, 8, 8)] {
            let mut frame = frame::udp(end(PROGRAM, random), (destination.into(), TRAP), HOSTILE);
            frame[IP + 8] = ttl;
            frame::fix_ipv4(&mut frame);
            injector.drops("ttl_exceeded", &frame);
        }
    }
}
