//! ARP (RFC 826, RFC 5227) and neighbour discovery (RFC 4861): answers, requests, bounds, spoofing.

use super::bench::{
    Bench, FAMILIES, OUR_MAC, OURS4, OURS6, Out, PEER_MAC, PEER4, PEER6, arp, config, icmp, v4, v6,
};
use crate::counters::DropReason;
use crate::neighbor::{
    ALL_WAITING_BYTES_MAX, DELAY_FIRST_PROBE_TIME, ENTRIES_MAX, MULTICAST_SOLICITS, REACHABLE_TIME,
    RESOLVING_MAX, UNICAST_SOLICITS, WAITING_BYTES_MAX, WAITING_OVERHEAD,
};
use crate::stack::Config;
use crate::time::Duration;
use crate::wire::{MacAddr, Protocol, arp as wire, icmpv6};
use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use towpath_packet::Caps;

fn bench() -> Bench {
    Bench::with(config(false), Caps::plain(1500))
}

fn request(sender: Ipv4Addr, target: Ipv4Addr) -> wire::Packet {
    wire::Packet {
        operation: wire::Operation::Request,
        sender_mac: PEER_MAC,
        sender_ip: sender,
        target_mac: MacAddr::UNSPECIFIED,
        target_ip: target,
    }
}

fn arp_of(frame: &Out) -> wire::Packet {
    assert_eq!(frame.ethertype(), 0x0806);
    wire::Packet::parse(&frame.bytes[14..]).expect("valid")
}

fn solicitation(source: IpAddr, target: IpAddr, ttl: u8) -> Vec<u8> {
    let message = icmpv6::Message::NeighborSolicitation {
        target: v6(target),
        source_link_layer: Some(PEER_MAC),
    };
    let mut bytes = vec![0; message.emitted_len()];
    message.emit(&mut bytes);
    icmp(source, OURS6, ttl, &bytes)
}

fn advertisement(target: IpAddr, mac: MacAddr) -> Vec<u8> {
    let message = icmpv6::Message::NeighborAdvertisement {
        target: v6(target),
        target_link_layer: Some(mac),
        router: false,
        solicited: true,
        override_: true,
    };
    let mut bytes = vec![0; message.emitted_len()];
    message.emit(&mut bytes);
    icmp(target, OURS6, 255, &bytes)
}

fn answer(address: IpAddr, mac: MacAddr) -> Vec<u8> {
    if address.is_ipv6() {
        return advertisement(address, mac);
    }
    let reply = wire::Packet {
        operation: wire::Operation::Reply,
        sender_mac: mac,
        sender_ip: v4(address),
        target_mac: OUR_MAC,
        target_ip: v4(OURS4),
    };
    arp(&reply, OUR_MAC)
}

fn send(bench: &mut Bench, from: IpAddr, to: IpAddr, text: &[u8]) {
    let packet = bench.packet(text);
    let (local, remote) = (SocketAddr::new(from, 5), SocketAddr::new(to, 6));
    bench.with_context(|stack, cx| stack.udp_send(packet, local, remote, None, cx));
}

fn is_question(frame: &Out) -> bool {
    frame.ethertype() == 0x0806 || frame.protocol() == Protocol::ICMPV6
}

#[test]
fn requests_for_us_are_answered() {
    let mut b = bench();
    b.input(&arp(&request(v4(PEER4), v4(OURS4)), MacAddr::BROADCAST));
    let out = b.one();
    let reply = arp_of(&out);
    assert_eq!((reply.operation, reply.sender_mac), (wire::Operation::Reply, OUR_MAC));
    assert_eq!((reply.sender_ip, reply.target_mac), (v4(OURS4), PEER_MAC));
    assert_eq!(out.bytes[..6], PEER_MAC.0);
    // The sender of a request is known from then on.
    send(&mut b, OURS4, PEER4, b"hello");
    assert_eq!(b.one().bytes[..6], PEER_MAC.0);
    b.input(&arp(&request(v4(PEER4), Ipv4Addr::new(10, 0, 0, 9)), MacAddr::BROADCAST)).quiet();
    b.assert_clean();
}

/// RFC 5227 §2.1.1: a probe asks whether our address is free; nothing is learned from it.
#[test]
fn probes_are_answered() {
    let mut b = bench();
    b.input(&arp(&request(Ipv4Addr::UNSPECIFIED, v4(OURS4)), MacAddr::BROADCAST));
    assert_eq!(arp_of(&b.one()).sender_ip, v4(OURS4));
    b.dropped(&[]);
}

#[test]
fn bad_arp_is_dropped() {
    let mut b = bench();
    b.input(&arp(&request(v4(OURS4), v4(OURS4)), MacAddr::BROADCAST));
    b.input(&arp(&request(Ipv4Addr::LOCALHOST, v4(OURS4)), MacAddr::BROADCAST));
    b.input(&arp(&request(v4(PEER4), v4(OURS4)), MacAddr::BROADCAST)[..30]);
    for mac in [MacAddr::BROADCAST, MacAddr::UNSPECIFIED, MacAddr([1, 0, 0x5e, 0, 0, 1])] {
        let request = wire::Packet { sender_mac: mac, ..request(v4(PEER4), v4(OURS4)) };
        b.input(&arp(&request, MacAddr::BROADCAST));
    }
    b.quiet().dropped(&[(DropReason::ArpMalformed, 5), (DropReason::AddressConflict, 1)]);
    b.assert_clean();
}

/// RFC 4861 §7.1: link-layer options with addresses of groups, and advertisements to all that claim
/// to answer a solicitation.
#[test]
fn bad_discovery_is_dropped() {
    let mut b = bench();
    send(&mut b, OURS6, PEER6, b"hello");
    assert!(is_question(&b.one()));
    for mac in [MacAddr::BROADCAST, MacAddr::UNSPECIFIED, MacAddr([0x33, 0x33, 0, 0, 0, 1])] {
        b.input(&advertisement(PEER6, mac)).quiet();
        let message = icmpv6::Message::NeighborSolicitation {
            target: v6(OURS6),
            source_link_layer: Some(mac),
        };
        let mut bytes = vec![0; message.emitted_len()];
        message.emit(&mut bytes);
        b.input(&icmp(PEER6, OURS6, 255, &bytes)).quiet();
    }
    let all_nodes: IpAddr = "ff02::1".parse().expect("an address");
    let mut to_all = icmp(PEER6, all_nodes, 255, &advertisement(PEER6, PEER_MAC)[54..]);
    to_all[..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 1]);
    b.input(&to_all).quiet();
    b.dropped(&[(DropReason::NeighborMalformed, 7)]);
    assert_eq!(b.input(&advertisement(PEER6, PEER_MAC)).one().bytes[..6], PEER_MAC.0);
    b.assert_clean();
}

/// Goal: a stack that stands for all other stations of its link answers for their addresses, but
/// not for that of the only real station, and leaves free addresses free.
#[test]
fn the_whole_link_is_answered_for() {
    let other4 = IpAddr::from([10, 0, 0, 9]);
    let other6 = IpAddr::from(Ipv6Addr::from_bits(v6(OURS6).to_bits() | 0xabcdef));
    let config = Config { next_hops: vec![PEER4, PEER6], ..config(true) };
    let mut b = Bench::with(config, Caps::plain(1500));
    b.input(&arp(&request(v4(PEER4), v4(other4)), MacAddr::BROADCAST)).quiet();
    b.stack.answer_for_link();
    b.input(&arp(&request(v4(PEER4), v4(other4)), MacAddr::BROADCAST));
    assert_eq!(arp_of(&b.one()).sender_ip, v4(other4));
    b.input(&solicitation(PEER6, other6, 255));
    assert_eq!(b.one().bytes[..6], PEER_MAC.0);
    // The station announces its address, asks whether one is free, or looks for itself.
    b.input(&arp(&request(v4(PEER4), v4(PEER4)), MacAddr::BROADCAST)).quiet();
    b.input(&arp(&request(Ipv4Addr::UNSPECIFIED, v4(other4)), MacAddr::BROADCAST)).quiet();
    b.input(&solicitation(PEER6, PEER6, 255)).quiet();
    b.input(&solicitation(PEER6, Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 9).into(), 255)).quiet();
    b.assert_clean();
}

/// RFC 4861 §7.2.4.
#[test]
fn solicitations_are_answered() {
    let mut b = bench();
    b.input(&solicitation(PEER6, OURS6, 255));
    let out = b.one();
    let message = icmpv6::Message::parse(out.transport()).expect("valid");
    assert!(out.is_sound());
    assert_eq!(out.bytes[..6], PEER_MAC.0);
    assert!(matches!(
        message,
        icmpv6::Message::NeighborAdvertisement { target, target_link_layer, solicited: true, .. }
            if target == v6(OURS6) && target_link_layer == Some(OUR_MAC)
    ));
    // Link-local stations are neighbours too.
    b.input(&solicitation(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 7).into(), OURS6, 255));
    assert_eq!(b.one().bytes[..6], PEER_MAC.0);
    b.input(&solicitation(PEER6, PEER6, 255)).quiet();
    b.assert_clean();
}

/// RFC 4862 §5.4.3: a probe from the unspecified address for a local address is answered to all
/// nodes. No other packet may come from the unspecified address.
#[test]
fn an_address_of_ours_is_defended() {
    let nowhere = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let group: IpAddr = "ff02::1:ff00:1".parse().expect("an address");
    let ask = |to: IpAddr, target: IpAddr, source_link_layer| {
        let message =
            icmpv6::Message::NeighborSolicitation { target: v6(target), source_link_layer };
        let mut bytes = vec![0; message.emitted_len()];
        message.emit(&mut bytes);
        let mut frame = icmp(nowhere, to, 255, &bytes);
        frame[..6].copy_from_slice(&[0x33, 0x33, 0xff, 0, 0, 1]);
        frame
    };
    for transparent in [false, true] {
        let mut b = Bench::with(config(transparent), Caps::plain(1500));
        b.input(&ask(group, OURS6, None));
        let out = b.one();
        assert!(out.is_sound());
        assert_eq!(out.bytes[..6], [0x33, 0x33, 0, 0, 0, 1]);
        assert_eq!(out.bytes[38..54], [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        let message = icmpv6::Message::parse(out.transport()).expect("valid");
        let taken = icmpv6::Message::NeighborAdvertisement {
            target: v6(OURS6),
            target_link_layer: Some(OUR_MAC),
            router: transparent,
            solicited: false,
            override_: true,
        };
        assert_eq!(message, taken);
        b.dropped(&[]);
        // Another address of the same group is not local.
        b.input(&ask(group, "fd00::9:0:1".parse().expect("an address"), None)).quiet();
        b.dropped(&[]);
        // RFC 4861 §7.1.1: not to a unicast address, and not with a link-layer address.
        let mut direct = ask(OURS6, OURS6, None);
        direct[..6].copy_from_slice(&OUR_MAC.0);
        b.input(&direct).quiet();
        b.dropped(&[(DropReason::SourceMartian, 1)]);
        b.input(&ask(group, OURS6, Some(PEER_MAC))).quiet();
        let all_nodes: IpAddr = "ff02::1".parse().expect("an address");
        b.input(&ask(all_nodes, OURS6, None)).quiet();
        b.dropped(&[(DropReason::SourceMartian, 1), (DropReason::NeighborMalformed, 2)]);
        b.input(&icmp(nowhere, group, 64, &[128, 0, 0, 0, 0, 1, 0, 1])).quiet();
        assert_eq!(b.stack.counters().dropped(DropReason::SourceMartian), 2);
        b.assert_clean();
    }
}

/// RFC 4861 §7.2.5: an advertisement without the override flag does not replace another address. It
/// is accepted if none is known, and otherwise makes the neighbour stale.
#[test]
fn only_an_override_replaces_an_address() {
    let other = MacAddr([2, 0, 0, 0, 0, 9]);
    let weak = |mac| {
        let mut message = advertisement(PEER6, mac)[54..].to_vec();
        message[4] &= !0x20;
        icmp(PEER6, OURS6, 255, &message)
    };
    let mut b = bench();
    send(&mut b, OURS6, PEER6, b"1");
    assert!(is_question(&b.one()));
    assert_eq!(b.input(&weak(PEER_MAC)).one().bytes[..6], PEER_MAC.0);
    b.input(&weak(other));
    send(&mut b, OURS6, PEER6, b"2");
    assert_eq!(b.one().bytes[..6], PEER_MAC.0);
    let probes = b.wait(DELAY_FIRST_PROBE_TIME);
    assert!(probes.len() == 1 && is_question(&probes[0]), "it is probed");
    assert_eq!(probes[0].bytes[..6], PEER_MAC.0);
    b.input(&weak(other));
    send(&mut b, OURS6, PEER6, b"3");
    assert_eq!(b.one().bytes[..6], PEER_MAC.0);
    b.input(&advertisement(PEER6, other));
    send(&mut b, OURS6, PEER6, b"4");
    assert_eq!(b.one().bytes[..6], other.0);
    b.assert_clean();
}

/// RFC 4861 §7.1.1: messages from off the link or with damage are dropped.
#[test]
fn discovery_from_afar_is_dropped() {
    let mut b = bench();
    b.input(&solicitation(PEER6, OURS6, 254)).quiet();
    b.dropped(&[(DropReason::NeighborMalformed, 1)]);
    let mut damaged = solicitation(PEER6, OURS6, 255);
    damaged[60] ^= 1;
    b.input(&damaged).quiet();
    assert_eq!(b.stack.counters().dropped(DropReason::IcmpMalformed), 1);
    b.assert_clean();
}

/// RFC 826, RFC 4861 §7.2.2: packets wait, three requests are sent, then the packets are dropped.
#[test]
fn unknown_neighbours_are_asked_for() {
    for (ours, peer) in FAMILIES {
        let mut b = bench();
        send(&mut b, ours, peer, b"hello");
        assert!(is_question(&b.one()));
        let again = b.wait(Duration::from_secs(10));
        assert_eq!(again.len(), usize::from(MULTICAST_SOLICITS) - 1);
        assert!(again.iter().all(is_question));
        // The sender's error is not wanted here.
        b.dropped(&[(DropReason::IcmpIgnored, 1), (DropReason::NeighborUnreachable, 1)]);
        assert_eq!(b.stack.next_deadline(), None);
        b.assert_no_leak();
        // A new packet starts again, and the answer releases it.
        send(&mut b, ours, peer, b"hello");
        assert!(is_question(&b.one()));
        let out = b.input(&answer(peer, PEER_MAC)).one();
        assert_eq!(out.bytes[..6], PEER_MAC.0);
        assert!(out.is_sound() && out.bytes.ends_with(b"hello"));
        b.assert_no_leak();
    }
}

/// Bytes charged for a datagram that waits.
fn waiting_bytes(to: IpAddr, text: usize) -> usize {
    let ip = if to.is_ipv4() { 20 } else { 40 };
    ip + 8 + text + WAITING_OVERHEAD
}

/// As many packets wait as in Linux, the oldest are dropped, and order is kept.
#[test]
fn a_burst_waits_for_its_neighbor() {
    for (ours, peer) in FAMILIES {
        for text in [2, 1400] {
            let mut b = bench();
            let most = WAITING_BYTES_MAX / waiting_bytes(peer, text);
            let mut bytes = vec![0; text];
            for number in 0..most as u16 + 3 {
                bytes[..2].copy_from_slice(&number.to_be_bytes());
                send(&mut b, ours, peer, &bytes);
            }
            assert!(is_question(&b.one()));
            b.dropped(&[(DropReason::NeighborQueueFull, 3)]);
            let out = b.input(&answer(peer, PEER_MAC)).output();
            let number = |out: &Out| u16::from_be_bytes([out.transport()[8], out.transport()[9]]);
            let numbers: Vec<u16> = out.iter().map(number).collect();
            assert_eq!(numbers, (3..most as u16 + 3).collect::<Vec<_>>());
            b.assert_clean();
        }
    }
}

/// Packets waiting for all neighbours are bounded too; one packet per neighbour waits in any case.
#[test]
fn bursts_to_many_neighbors_share_their_room() {
    const TEXT: usize = 60_000;
    let mut b = Bench::with(config(false), Caps::plain(65_520));
    let most = ALL_WAITING_BYTES_MAX / waiting_bytes(OURS4, TEXT);
    // Two for each neighbour while there is room, then two for each of a few more.
    let (full, more) = (most / 2, 5);
    for number in 0..(full + more) as u8 {
        for _ in 0..2 {
            send(&mut b, OURS4, Ipv4Addr::new(10, 0, 0, 10 + number).into(), &[0; TEXT]);
        }
    }
    let waiting = 2 * full + more;
    let dropped = 2 * (full + more) - waiting;
    b.dropped(&[(DropReason::NeighborQueueFull, dropped as u64)]);
    assert_eq!(b.output().len(), full + more, "questions");
    assert_eq!(b.memory.packets.out_count(), waiting);
    b.wait(Duration::from_secs(5));
    b.assert_no_leak();
}

/// An old address is used while it is being confirmed: traffic does not stop. Only silence ends it.
#[test]
fn old_addresses_are_confirmed_without_a_pause() {
    let past = REACHABLE_TIME.mul_f64(1.5);
    for (ours, peer) in FAMILIES {
        let mut b = bench();
        send(&mut b, ours, peer, b"1");
        b.output();
        b.input(&answer(peer, PEER_MAC)).one();
        assert!(b.wait(past).is_empty(), "an unused neighbour is not probed");
        send(&mut b, ours, peer, b"2");
        assert!(b.one().bytes.ends_with(b"2"));
        let probes = b.wait(DELAY_FIRST_PROBE_TIME);
        assert!(probes.len() == 1 && is_question(&probes[0]));
        assert_eq!(probes[0].bytes[..6], PEER_MAC.0, "unicast");
        send(&mut b, ours, peer, b"3");
        assert!(b.one().bytes.ends_with(b"3"));
        let moved = MacAddr([2, 0, 0, 0, 0, 9]);
        b.input(&answer(peer, moved));
        send(&mut b, ours, peer, b"4");
        assert_eq!(b.one().bytes[..6], moved.0);
        assert!(b.wait(past).is_empty(), "confirmed");
        send(&mut b, ours, peer, b"5");
        let sent = b.wait(DELAY_FIRST_PROBE_TIME + Duration::from_secs(5));
        assert_eq!(sent.len(), 1 + usize::from(UNICAST_SOLICITS));
        send(&mut b, ours, peer, b"6");
        let question = b.one();
        assert!(is_question(&question) && question.bytes[0] & 1 == 1, "the address is forgotten");
        b.input(&answer(peer, PEER_MAC)).one();
        b.assert_clean();
    }
}

/// A permanent entry is not overwritten, and unsolicited answers add no entry.
#[test]
fn lies_change_nothing() {
    let liar = MacAddr([2, 0, 0, 0, 0, 66]);
    for (ours, peer) in FAMILIES {
        let mut b = Bench::host(Caps::plain(1500));
        b.input(&answer(peer, liar));
        send(&mut b, ours, peer, b"hello");
        assert_eq!(b.one().bytes[..6], PEER_MAC.0);
        let mut b = bench();
        b.input(&answer(peer, liar));
        send(&mut b, ours, peer, b"hello");
        assert!(is_question(&b.one()));
        // Link-layer addresses that no station can have.
        b.input(&answer(peer, MacAddr::BROADCAST)).quiet();
        b.input(&answer(peer, MacAddr::UNSPECIFIED)).quiet();
        b.wait(Duration::from_secs(5));
        b.assert_no_leak();
    }
}

/// Packets to absent stations do not grow the table without bound; waiting packets are dropped.
#[test]
fn the_table_is_bounded() {
    let mut b = bench();
    for number in 0..2000u16 {
        let [high, low] = number.to_be_bytes();
        send(&mut b, OURS4, Ipv4Addr::new(172, 16, high, low).into(), b"hello");
        b.output();
    }
    let waiting = b.memory.packets.out_count();
    assert_eq!(waiting, RESOLVING_MAX);
    assert_eq!(b.stack.counters().dropped(DropReason::NeighborEvicted), 2000 - waiting as u64);
    b.wait(Duration::from_secs(5));
    b.assert_no_leak();
}

/// Requests of 100,000 unknown stations are answered, but evict neither the router, nor neighbours
/// in use, nor packets that wait. Packets for absent stations evict waiting packets, but no
/// neighbour that has answered.
#[test]
fn strangers_push_out_strangers() {
    let router = Ipv4Addr::new(10, 0, 0, 254);
    let (used, waited) = (Ipv4Addr::new(10, 0, 0, 200), Ipv4Addr::new(10, 0, 0, 201));
    let far = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));
    let mut config = Config { next_hops: vec![router.into()], ..config(false) };
    config.addresses[0].prefix_len = 8;
    let mut b = Bench::with(config, Caps::plain(1500));
    for neighbor in [router, used] {
        b.input(&arp(&request(neighbor, v4(OURS4)), MacAddr::BROADCAST)).one();
    }
    send(&mut b, OURS4, used.into(), b"once");
    b.one();
    send(&mut b, OURS4, waited.into(), b"waits");
    assert!(is_question(&b.one()));
    for number in 0..100_000u32 {
        let stranger = Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(10, 16, 0, 0)) | number);
        b.input(&arp(&request(stranger, v4(OURS4)), MacAddr::BROADCAST));
        assert!(is_question(&b.one()), "answered");
    }
    b.input(&answer(waited.into(), PEER_MAC));
    assert!(b.one().bytes.ends_with(b"waits"));
    for to in [far, used.into()] {
        send(&mut b, OURS4, to, b"known");
        assert!(b.one().bytes.ends_with(b"known"), "{to} is known");
    }
    assert_eq!(b.stack.counters().drops().count(), 0);
    // Sent packets need entries too: those without an answer are evicted.
    for number in 0..300u16 {
        let [high, low] = number.to_be_bytes();
        let stranger = Ipv4Addr::new(10, 128, high, low);
        send(&mut b, OURS4, stranger.into(), b"nobody");
        b.one();
        b.wait(Duration::from_micros(1));
    }
    let waiting = b.memory.packets.out_count() as u64;
    let lost = b.stack.counters().dropped(DropReason::NeighborEvicted);
    assert_eq!(waiting + lost, 300, "counted");
    for to in [far, used.into(), waited.into()] {
        send(&mut b, OURS4, to, b"known");
        assert!(b.one().bytes.ends_with(b"known"), "{to} is known");
    }
    b.wait(Duration::from_secs(5));
    b.assert_no_leak();
}

/// Goal: a guest that answers for more addresses than the table holds evicts only its own entries.
/// Method: neighbours at other ports are used once, then those of one port more often.
#[test]
fn a_port_with_most_neighbours_displaces_its_own() {
    const GREEDY: u16 = 7;
    let mut config = config(false);
    config.addresses[0].prefix_len = 8;
    let mut b = Bench::with(config, Caps::plain(1500));
    let use_by = |b: &mut Bench, port: u16, address: Ipv4Addr| {
        b.input_by(port, &arp(&request(address, v4(OURS4)), MacAddr::BROADCAST)).one();
        send(b, OURS4, address.into(), b"known");
        let mut out = b.one();
        if is_question(&out) {
            // Everything in the table is in use: the request was not learned from.
            out = b.input_by(port, &answer(address.into(), PEER_MAC)).one();
        }
        assert!(out.bytes.ends_with(b"known"), "{address} is known");
        b.wait(Duration::from_micros(1));
    };
    let modest = |port: u16| Ipv4Addr::new(10, 18, 0, port as u8);
    (0..4).for_each(|port| use_by(&mut b, port, modest(port)));
    for number in 0..2 * ENTRIES_MAX as u16 {
        let [high, low] = number.to_be_bytes();
        use_by(&mut b, GREEDY, Ipv4Addr::new(10, 19, high, low));
    }
    for port in 0..4 {
        send(&mut b, OURS4, modest(port).into(), b"still");
        assert!(b.one().bytes.ends_with(b"still"), "{} is known", modest(port));
    }
}
