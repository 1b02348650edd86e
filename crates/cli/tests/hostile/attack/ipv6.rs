//! IPv6 headers, chains of extension headers, addresses.

use std::net::IpAddr;

use super::end;
use crate::frame::{self, GATEWAY6, IP, L4_6, PROGRAM6, UDP, on_link};
use crate::host::{HOST6, HOSTILE, TRAP};
use crate::injector::Injector;
use crate::random::Random;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION: u8 = 60;

/// Goal: an IPv6 header or extension chain with wrong fields, and impossible addresses, lead
/// nowhere. Method: a datagram that would reach a trap on the host, broken in every way.
pub(super) fn round(injector: &mut Injector, random: &mut Random) {
    let from = end(PROGRAM6, random);
    let whole = frame::udp(from, (HOST6.into(), TRAP), HOSTILE);
    for len in IP..whole.len() {
        injector.drops("ip_malformed", &whole[..len]);
    }
    for len in L4_6..whole.len() {
        let mut frame = whole[..len].to_vec();
        frame::put(&mut frame, IP + 4, (len - L4_6) as u16);
        injector.drops("udp_malformed", &frame);
    }
    for version in (0..16).filter(|version| *version != 6) {
        let mut frame = whole.clone();
        frame[IP] = version << 4;
        injector.drops("ip_malformed", &frame);
    }
    let len = (whole.len() - L4_6) as u16;
    for payload in [len + 1, len + 8, 1500, 0x7fff, 0xffff] {
        let mut frame = whole.clone();
        frame::put(&mut frame, IP + 4, payload);
        injector.drops("ip_malformed", &frame);
    }
    chains(injector, from.1, random);
    addresses(injector, from.1);
    for protocol in (0..=255).filter(|protocol| !KNOWN.contains(protocol)) {
        let payload = [&HOSTILE[..], &random.bytes(24)].concat();
        let frame = frame::ip(PROGRAM6.into(), HOST6.into(), protocol, &payload);
        injector.drops("protocol_unknown", &frame);
    }
    for limit in [0, 1] {
        let mut frame = whole.clone();
        frame[IP + 7] = limit;
        injector.drops("ttl_exceeded", &frame);
    }
}

/// Extension headers and protocols that are processed.
const KNOWN: [u8; 8] = [HOP_BY_HOP, 6, UDP, ROUTING, FRAGMENT, AUTHENTICATION, 58, DESTINATION];

/// Returns a frame whose datagram follows these headers. Each is its kind and its bytes, the first
/// of which is filled in.
fn with(port: u16, headers: &[(u8, &[u8])]) -> Vec<u8> {
    let (from, to) = ((IpAddr::from(PROGRAM6), port), (IpAddr::from(HOST6), TRAP));
    let mut payload = Vec::new();
    for (index, (_, bytes)) in headers.iter().enumerate() {
        let at = payload.len();
        payload.extend(*bytes);
        payload[at] = headers.get(index + 1).map_or(UDP, |next| next.0);
    }
    payload.extend(frame::udp_bytes(from, to, HOSTILE));
    let first = headers.first().map_or(UDP, |header| header.0);
    frame::ip(from.0, to.0, first, &payload)
}

fn chains(injector: &mut Injector, port: u16, random: &mut Random) {
    let empty: &[u8] = &[0, 0, 1, 4, 0, 0, 0, 0];
    let mut bad = |headers: &[(u8, &[u8])]| injector.drops("ip_malformed", &with(port, headers));
    // Too many headers; one that belongs first and does not come first; the same header repeated.
    bad(&[(DESTINATION, empty); 9]);
    bad(&[(DESTINATION, empty); 100]);
    bad(&[(DESTINATION, empty), (HOP_BY_HOP, empty)]);
    bad(&[(HOP_BY_HOP, empty), (HOP_BY_HOP, empty)]);
    for kind in [HOP_BY_HOP, DESTINATION, ROUTING, AUTHENTICATION] {
        // Longer than the packet, longer than what is examined.
        for len in [16, 100, 255] {
            bad(&[(kind, &[0, len, 0, 0, 0, 0, 0, 0])]);
        }
        let mut long = vec![0; 8 * 32];
        long[1] = if kind == AUTHENTICATION { 62 } else { 31 };
        bad(&[(kind, &long)]);
    }
    // Source routes, of type 0 and others.
    for kind in [0, 1, 2, 3, 4, 255] {
        let mut route = vec![0, 2, kind, 1, 0, 0, 0, 0];
        route.extend(GATEWAY6.octets());
        bad(&[(ROUTING, &route)]);
    }
    for option in [0x40, 0x80, 0xc0, 0xc2, 0xff] {
        bad(&[(HOP_BY_HOP, &[0, 0, option, 4, 0, 0, 0, 0])]);
        bad(&[(DESTINATION, &[0, 0, option, 4, 0, 0, 0, 0])]);
    }
    // Options that extend beyond their header.
    bad(&[(DESTINATION, &[0, 0, 1, 5, 0, 0, 0, 0])]);
    bad(&[(DESTINATION, &[0, 0, 5, 255, 0, 0, 0, 0])]);
    bad(&[(DESTINATION, &[0, 0, 0, 0, 0, 0, 0, 5])]);
    // A fragment of a fragment, and fragments beyond the longest packet.
    let atomic: &[u8] = &[0, 0, 0, 0, 0, 0, 0, 1];
    bad(&[(FRAGMENT, atomic), (FRAGMENT, atomic)]);
    bad(&[(FRAGMENT, atomic); 8]);
    bad(&[(FRAGMENT, &[0, 0, 0xff, 0xf8, 0, 0, 0, 2])]);
    for _ in 0..256 {
        // Random chains.
        let kinds = [HOP_BY_HOP, ROUTING, FRAGMENT, AUTHENTICATION, DESTINATION, 59, 50, 255];
        let mut headers = Vec::new();
        for _ in 0..random.below(12) {
            let words = 1 + random.below(3);
            let mut bytes = random.bytes(8 * words);
            bytes[1] %= 4;
            headers.push((kinds[random.below(kinds.len())], bytes));
        }
        let headers: Vec<(u8, &[u8])> = headers.iter().map(|(k, b)| (*k, &b[..])).collect();
        // Packets that get through arrive elsewhere.
        let mut frame = with(port, &headers);
        frame[IP + 39] = 0x77;
        injector.send(&frame);
    }
}

fn addresses(injector: &mut Injector, port: u16) {
    let impossible = ["::", "::1", "ff02::5", "ff0e::1", "::ffff:127.0.0.1", "::ffff:192.0.2.1"];
    let impossible = impossible.into_iter().map(|text| text.parse().unwrap());
    for source in impossible.clone().chain([GATEWAY6, on_link(3)]) {
        let frame = frame::udp((IpAddr::V6(source), port), (HOST6.into(), TRAP), HOSTILE);
        injector.drops("source_martian", &frame);
    }
    let not_served =
        ["fe80::1", "fe80::74:6fff:fe77:7002", "ff02::fb", "ff05::2", "ff02::1:ff00:99"];
    let not_served = not_served.into_iter().map(|text| text.parse().unwrap());
    for destination in impossible.chain(not_served).chain([on_link(0), on_link(0x99), PROGRAM6]) {
        let to = (IpAddr::V6(destination), TRAP);
        injector.drops("destination_not_served", &frame::udp((PROGRAM6.into(), port), to, HOSTILE));
    }
    for ours in [GATEWAY6, on_link(3)] {
        injector.send(&frame::udp((PROGRAM6.into(), port), (ours.into(), TRAP), HOSTILE));
    }
}
