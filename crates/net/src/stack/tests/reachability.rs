//! Neighbours that do not answer, routers that fail, progress of connections, and stations that
//! have the stack's own addresses.

use super::bench::{
    Bench, FAMILIES, OUR_MAC, OURS4, OURS6, Out, PEER_MAC, PEER4, PEER6, arp, config, icmp,
    segment, v4, v6,
};
use super::tcp::{NONE, write};
use crate::counters::DropReason;
use crate::neighbor::{DELAY_FIRST_PROBE_TIME, MULTICAST_SOLICITS, REACHABLE_TIME};
use crate::stack::{Config, OnConflict};
use crate::tcp::{ConnectionError, State};
use crate::time::Duration;
use crate::wire::tcp::{Flags, Options};
use crate::wire::{MacAddr, Protocol, arp as wire, icmpv6};
use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use towpath_packet::Caps;

const OTHER: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);
const SECOND: Duration = Duration::from_secs(1);

fn bench() -> Bench {
    Bench::with(config(false), Caps::plain(1500))
}

fn is_question(frame: &Out) -> bool {
    frame.ethertype() == 0x0806 || frame.protocol() == Protocol::ICMPV6
}

fn arp_message(reply: bool, mac: MacAddr, sender: IpAddr, target: IpAddr) -> Vec<u8> {
    let operation = if reply { wire::Operation::Reply } else { wire::Operation::Request };
    let message = wire::Packet {
        operation,
        sender_mac: mac,
        sender_ip: v4(sender),
        target_mac: if reply { OUR_MAC } else { MacAddr::UNSPECIFIED },
        target_ip: v4(target),
    };
    arp(&message, if reply { OUR_MAC } else { MacAddr::BROADCAST })
}

fn discovery(from: IpAddr, to: IpAddr, message: &icmpv6::Message) -> Vec<u8> {
    let mut bytes = vec![0; message.emitted_len()];
    message.emit(&mut bytes);
    let mut frame = icmp(from, to, 255, &bytes);
    if to.is_multicast() {
        let [.., a, b, c, d] = v6(to).octets();
        frame[..6].copy_from_slice(&[0x33, 0x33, a, b, c, d]);
    }
    frame
}

fn advertisement(target: IpAddr, mac: MacAddr, router: bool) -> Vec<u8> {
    let message = icmpv6::Message::NeighborAdvertisement {
        target: v6(target),
        target_link_layer: Some(mac),
        router,
        solicited: true,
        override_: true,
    };
    discovery(target, OURS6, &message)
}

/// The neighbour answers a solicitation.
fn answer(address: IpAddr, mac: MacAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(_) => arp_message(true, mac, address, OURS4),
        IpAddr::V6(_) => advertisement(address, mac, true),
    }
}

fn send(b: &mut Bench, from: IpAddr, to: IpAddr, text: &[u8]) {
    let packet = b.packet(text);
    let (local, remote) = (SocketAddr::new(from, 5), SocketAddr::new(to, 6));
    b.with_context(|stack, cx| stack.udp_send(packet, local, remote, None, cx));
}

/// As in Linux, a connection to an absent station ends when its address cannot be resolved.
#[test]
fn connecting_to_an_absent_station_fails() {
    for (ours, peer) in FAMILIES {
        for transparent in [false, true] {
            let mut b = Bench::with(config(transparent), Caps::plain(1500));
            let (local, remote) = (SocketAddr::new(ours, 80), SocketAddr::new(peer, 999));
            let handle = b.stack.tcp_connect(local, remote, b.now).expect("free");
            let sent = b.wait(Duration::from_millis(2999));
            assert_eq!(sent.len(), usize::from(MULTICAST_SOLICITS));
            assert!(sent.iter().all(is_question));
            assert_eq!(b.stack.tcp(handle).expect("a connection").state(), State::SynSent);
            b.wait(Duration::from_millis(1));
            let error = b.stack.tcp(handle).expect("not yet released").error();
            assert_eq!(error, Some(ConnectionError::Unreachable));
            assert!(b.stack.counters().dropped(DropReason::NeighborUnreachable) > 0);
            b.assert_no_leak();
        }
    }
}

/// The sender of a datagram gets the error of an unreachable host; large payloads are not kept.
#[test]
fn the_sender_of_a_datagram_learns_of_an_absent_station() {
    for (ours, peer) in FAMILIES {
        let mut b = bench();
        b.stack.report_udp_errors();
        for text in [&b"hello"[..], &[7; 1400]] {
            send(&mut b, ours, peer, text);
            b.wait(3 * SECOND);
            let error = b.stack.next_udp_error().expect("an error");
            let meaning = if ours.is_ipv4() { (3, 1) } else { (1, 3) };
            assert_eq!((error.kind, error.code), meaning);
            assert_eq!((error.local.ip(), error.remote.ip(), error.from), (ours, peer, ours));
            assert!(error.packet.payload_len() <= text.len());
        }
        b.dropped(&[(DropReason::NeighborUnreachable, 2)]);
        b.assert_no_leak();
    }
}

/// Opens a connection to the peer, which answers solicitations.
fn connect(b: &mut Bench, ours: IpAddr, peer: IpAddr) -> (crate::stack::TcpHandle, u32) {
    let (local, remote) = (SocketAddr::new(ours, 80), SocketAddr::new(peer, 999));
    let handle = b.stack.tcp_connect(local, remote, b.now).expect("free");
    assert!(is_question(&b.one()));
    let (syn, _) = b.input(&answer(peer, PEER_MAC)).one().tcp();
    let next = syn.sequence.wrapping_add(1);
    let options = Options { mss: Some(1000), ..NONE };
    let flags = Flags::SYN | Flags::ACK;
    b.input(&segment(remote, local, flags, (100, next), &options, b""));
    b.output();
    (handle, next)
}

/// RFC 4861 §7.3.1: while a connection makes progress, its next hop is not probed. Without
/// progress it is.
#[test]
fn progress_confirms_the_next_hop() {
    for (ours, peer) in FAMILIES {
        let mut b = bench();
        let (handle, mut next) = connect(&mut b, ours, peer);
        let (local, remote) = (SocketAddr::new(ours, 80), SocketAddr::new(peer, 999));
        for _ in 0..100 {
            write(&mut b, handle, b"data");
            let (header, _) = b.one().tcp();
            assert_eq!(header.sequence, next);
            next = next.wrapping_add(4);
            b.input(&segment(remote, local, Flags::ACK, (101, next), &NONE, b""));
            let sent = b.wait(2 * SECOND);
            assert!(sent.is_empty(), "{sent:?}");
        }
        let idle = b.wait(2 * REACHABLE_TIME);
        assert!(idle.is_empty(), "{idle:?}");
        write(&mut b, handle, b"data");
        let sent = b.wait(DELAY_FIRST_PROBE_TIME + SECOND / 2);
        let probes: Vec<_> = sent.iter().filter(|out| is_question(out)).collect();
        assert_eq!(probes.len(), 1);
        assert_eq!(probes[0].bytes[..6], PEER_MAC.0);
    }
}

fn two_routers() -> (Bench, [[IpAddr; 2]; 2], [IpAddr; 2]) {
    let v4s = [254, 253].map(|last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)));
    let v6s = [254, 253].map(|last| IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last)));
    let next_hops = [v4s, v6s].concat();
    let b = Bench::with(Config { next_hops, ..config(false) }, Caps::plain(1500));
    (b, [v4s, v6s], [super::bench::FAR4, super::bench::FAR6])
}

/// Packets that wait for a router that does not answer go to the next one, which is used until the
/// first answers again.
#[test]
fn another_router_replaces_one_that_fails() {
    for (family, (ours, _)) in FAMILIES.into_iter().enumerate() {
        let (mut b, routers, far) = two_routers();
        let ([first, second], far) = (routers[family], far[family]);
        send(&mut b, ours, far, b"waits");
        assert!(is_question(&b.one()));
        let sent = b.wait(3 * SECOND);
        assert!(sent.iter().all(is_question));
        let out = b.input(&answer(second, OTHER)).one();
        assert!(out.bytes.ends_with(b"waits") && out.bytes[..6] == OTHER.0);
        b.dropped(&[]);
        send(&mut b, ours, far, b"next");
        assert_eq!(b.one().bytes[..6], OTHER.0);
        // Later the first one is asked again, beside the traffic.
        b.wait(60 * SECOND);
        send(&mut b, ours, far, b"next");
        let sent = b.output();
        let (questions, rest): (Vec<_>, Vec<_>) = sent.iter().partition(|out| is_question(out));
        assert_eq!((questions.len(), rest.len()), (1, 1));
        assert_eq!(rest[0].bytes[..6], OTHER.0);
        b.input(&answer(first, PEER_MAC)).quiet();
        send(&mut b, ours, far, b"back");
        assert_eq!(b.one().bytes[..6], PEER_MAC.0);
        b.dropped(&[]);
        b.assert_clean();
    }
}

/// If no router answers, the sender gets an error, and all are tried in turn.
#[test]
fn without_a_router_the_sender_gets_an_error() {
    for (family, (ours, _)) in FAMILIES.into_iter().enumerate() {
        let (mut b, routers, far) = two_routers();
        b.stack.report_udp_errors();
        send(&mut b, ours, far[family], b"waits");
        b.wait(10 * SECOND);
        assert!(b.stack.next_udp_error().is_some());
        b.dropped(&[(DropReason::NeighborUnreachable, 1)]);
        send(&mut b, ours, far[family], b"again");
        b.output();
        let out = b.input(&answer(routers[family][0], PEER_MAC)).one();
        assert_eq!(out.bytes[..6], PEER_MAC.0, "the one that failed first is tried first");
        b.assert_no_leak();
    }
}

/// RFC 4861 §7.2.5, §6.3.4: a router that says that it is none any more is left.
#[test]
fn a_router_that_becomes_a_host_is_left() {
    let (mut b, [_, [first, second]], [_, far]) = two_routers();
    send(&mut b, OURS6, far, b"1");
    b.one();
    b.input(&advertisement(first, PEER_MAC, true)).one();
    b.input(&advertisement(first, PEER_MAC, false)).quiet();
    send(&mut b, OURS6, far, b"2");
    assert!(is_question(&b.one()));
    assert_eq!(b.input(&advertisement(second, OTHER, true)).one().bytes[..6], OTHER.0);
    b.assert_clean();
    // Router advertisements say the same by their lifetime.
    for (lifetime, expected) in [(1800, PEER_MAC), (0, OTHER)] {
        let [high, low] = u16::to_be_bytes(lifetime);
        let message = [134, 0, 0, 0, 0, 0, high, low, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut frame = icmp(first, "ff02::1".parse().expect("an address"), 255, &message);
        frame[..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 1]);
        b.input(&frame).quiet();
        send(&mut b, OURS6, far, b"3");
        assert_eq!(b.one().bytes[..6], expected.0);
    }
    b.dropped(&[(DropReason::IcmpIgnored, 2)]);
}

/// RFC 4861 §6.3.4: a host takes the times of the link from a router on the link. Hostile values
/// count as the bound, and routers follow no other router.
#[test]
fn times_of_the_link_come_from_routers() {
    let router: IpAddr = "fe80::1".parse().expect("an address");
    let usual = (15_000, 45_000, 1000);
    for (from, transparent, (reachable, retransmit), (least, most, pause)) in [
        (router, false, (0, 0), usual),
        (router, false, (4000, 2500), (2000, 6000, 2500)),
        (router, false, (1, 1), (500, 1500, 100)),
        (router, false, (u32::MAX, u32::MAX), (1_800_000, 5_400_000, 10_000)),
        (PEER6, false, (4000, 2500), usual),
        (router, true, (4000, 2500), usual),
    ] {
        let [least, most, pause] = [least, most, pause].map(Duration::from_millis);
        let mut b = Bench::with(config(transparent), Caps::plain(1500));
        let mut message = [134, 0, 0, 0, 0, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
        message[8..12].copy_from_slice(&u32::to_be_bytes(reachable));
        message[12..].copy_from_slice(&u32::to_be_bytes(retransmit));
        let mut frame = icmp(from, "ff02::1".parse().expect("an address"), 255, &message);
        frame[..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 1]);
        b.input(&frame).quiet();
        // An absent neighbour is solicited at that interval.
        send(&mut b, OURS6, PEER6, b"1");
        assert!(is_question(&b.one()));
        assert!(b.wait(pause - Duration::from_micros(1)).is_empty());
        assert!(is_question(&b.wait(Duration::from_micros(1))[0]));
        b.input(&advertisement(PEER6, PEER_MAC, false)).one();
        // A neighbour in use is probed only if its confirmation was over.
        for (wait, is_over) in [(least - Duration::from_millis(1), false), (most, true)] {
            b.wait(wait);
            send(&mut b, OURS6, PEER6, b"2");
            assert!(!is_question(&b.one()));
            let probed = b.wait(DELAY_FIRST_PROBE_TIME).iter().any(is_question);
            assert_eq!(probed, is_over, "{reachable}");
        }
    }
}

/// A probe for the address `target`, as another station sends it.
fn probe(target: IpAddr) -> Vec<u8> {
    match target {
        IpAddr::V4(_) => arp_message(false, OTHER, Ipv4Addr::UNSPECIFIED.into(), target),
        IpAddr::V6(target) => {
            let message = icmpv6::Message::NeighborSolicitation { target, source_link_layer: None };
            let group = crate::stack::ingress::solicited_node(target);
            discovery(Ipv6Addr::UNSPECIFIED.into(), group.into(), &message)
        }
    }
}

/// A message of another station that has the address.
fn claim(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(_) => arp_message(false, OTHER, address, address),
        IpAddr::V6(_) => {
            let message = icmpv6::Message::NeighborAdvertisement {
                target: v6(address),
                target_link_layer: Some(OTHER),
                router: false,
                solicited: false,
                override_: true,
            };
            discovery(PEER6, "ff02::1".parse().expect("an address"), &message)
        }
    }
}

/// RFC 5227, RFC 4862 §5.4: a host probes for its addresses, then announces them.
#[test]
fn addresses_are_probed_and_announced() {
    let mut b = bench();
    b.stack.claim_addresses(OnConflict::Withdraw, b.now);
    // They are used meanwhile.
    b.input(&arp_message(false, PEER_MAC, PEER4, OURS4)).one();
    let sent = b.wait(10 * SECOND);
    let (v4s, v6s): (Vec<_>, Vec<_>) = sent.iter().partition(|out| out.ethertype() == 0x0806);
    let senders: Vec<IpAddr> = v4s
        .iter()
        .map(|out| {
            let message = wire::Packet::parse(&out.bytes[14..]).expect("valid");
            assert_eq!(
                (message.operation, message.target_ip),
                (wire::Operation::Request, v4(OURS4))
            );
            assert_eq!((message.sender_mac, &out.bytes[..6]), (OUR_MAC, &[0xff; 6][..]));
            message.sender_ip.into()
        })
        .collect();
    let nobody = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    assert_eq!(senders, [nobody, nobody, nobody, OURS4, OURS4]);
    assert_eq!(v6s.len(), 4);
    let messages = v6s.iter().map(|out| icmpv6::Message::parse(out.transport()).expect("valid"));
    for (number, message) in messages.enumerate() {
        assert!(v6s[number].is_sound());
        match message {
            icmpv6::Message::NeighborSolicitation { target, source_link_layer: None } => {
                assert_eq!((target, number), (v6(OURS6), 0));
                assert_eq!(v6s[number].bytes[22..38], [0; 16], "from the unspecified address");
            }
            icmpv6::Message::NeighborAdvertisement { target, solicited: false, .. } => {
                assert!(target == v6(OURS6) && number > 0);
                assert_eq!(v6s[number].bytes[..6], [0x33, 0x33, 0, 0, 0, 1]);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(b.stack.next_deadline(), None);
    assert!(b.stack.next_conflict().is_none());
    b.dropped(&[]);
    b.assert_clean();
}

/// Another station has, or wants, a tentative address: it is withdrawn, or kept and defended.
#[test]
fn a_conflict_about_a_tentative_address() {
    for (ours, _) in FAMILIES {
        for message in [probe(ours), claim(ours)] {
            for policy in [OnConflict::Withdraw, OnConflict::Keep] {
                let mut b = bench();
                b.stack.claim_addresses(policy, b.now);
                b.input(&message);
                let is_withdrawn = policy == OnConflict::Withdraw;
                assert_eq!(b.output().is_empty(), is_withdrawn);
                let conflict = b.stack.next_conflict().expect("a conflict");
                assert_eq!((conflict.address, conflict.mac), (ours, sender_of(&message)));
                assert_eq!((conflict.count, conflict.is_withdrawn), (1, is_withdrawn));
                assert_eq!(b.stack.is_local(ours), !is_withdrawn);
                assert!(b.stack.source_for(ours).is_some() != is_withdrawn);
                b.dropped(&[(DropReason::AddressConflict, 1)]);
                b.wait(10 * SECOND);
                b.assert_clean();
            }
        }
    }
}

/// Link-layer address that a conflict reports: a probe of IPv6 has only that of its frame.
fn sender_of(message: &[u8]) -> MacAddr {
    let is_probe6 = message[12..14] == [0x86, 0xdd] && message[54] == 135;
    if is_probe6 { PEER_MAC } else { OTHER }
}

/// An address that is in use is kept: a station that probes for it gets the answer that it is
/// taken, one that claims it is answered at intervals.
#[test]
fn an_address_in_use_is_defended() {
    for (ours, _) in FAMILIES {
        let mut b = bench();
        b.stack.claim_addresses(OnConflict::Withdraw, b.now);
        b.wait(10 * SECOND);
        b.input(&probe(ours)).one();
        assert!(b.stack.next_conflict().is_none(), "the other station gives way");
        for _ in 0..1000 {
            b.input(&claim(ours));
        }
        assert_eq!(b.output().len(), 1);
        b.wait(10 * SECOND);
        b.input(&claim(ours)).one();
        assert_eq!(b.stack.conflicts().map(|conflict| conflict.count).sum::<u64>(), 1001);
        assert!(b.stack.is_local(ours));
        b.dropped(&[(DropReason::AddressConflict, 1001)]);
        b.assert_clean();
    }
}

/// What a stack sent itself, and a switch or a bridge returned, is no conflict.
#[test]
fn own_messages_are_no_conflict() {
    let mut b = bench();
    b.stack.claim_addresses(OnConflict::Withdraw, b.now);
    for out in b.wait(10 * SECOND) {
        b.input(&out.bytes);
    }
    b.quiet();
    assert!(b.stack.conflicts().next().is_none());
    assert!(b.stack.is_local(OURS4) && b.stack.is_local(OURS6));
}

/// The anycast address of a network's routers is neither probed for nor announced.
#[test]
fn anycast_addresses_are_not_claimed() {
    let mut config = config(true);
    config.addresses.remove(0);
    config.addresses[0].address = "fd00::".parse().expect("an address");
    let mut b = Bench::with(config, Caps::plain(1500));
    b.stack.claim_addresses(OnConflict::Keep, b.now);
    assert!(b.wait(10 * SECOND).is_empty());
}

/// Announcements of other stations update entries, and create none.
#[test]
fn announcements_of_others_update_entries() {
    for (ours, peer) in FAMILIES {
        let announce = |mac| match peer {
            IpAddr::V4(_) => arp_message(false, mac, peer, peer),
            IpAddr::V6(_) => {
                let message = icmpv6::Message::NeighborAdvertisement {
                    target: v6(peer),
                    target_link_layer: Some(mac),
                    router: false,
                    solicited: false,
                    override_: true,
                };
                discovery(peer, "ff02::1".parse().expect("an address"), &message)
            }
        };
        let mut b = bench();
        b.input(&announce(OTHER)).quiet();
        send(&mut b, ours, peer, b"1");
        assert!(is_question(&b.one()), "no entry was created");
        b.input(&answer(peer, PEER_MAC)).one();
        b.input(&announce(OTHER)).quiet();
        send(&mut b, ours, peer, b"2");
        assert_eq!(b.one().bytes[..6], OTHER.0);
        // It has moved, but is not confirmed.
        let probes = b.wait(DELAY_FIRST_PROBE_TIME);
        assert!(probes.len() == 1 && is_question(&probes[0]));
        b.assert_clean();
    }
}
