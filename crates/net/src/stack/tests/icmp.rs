//! ICMP (RFC 792, RFC 1122 §3.2.2) and ICMPv6 (RFC 4443): echo, sent and received errors, limits.

use super::bench::{
    Bench, FAMILIES, FAR4, FAR6, OURS4, OURS6, Out, PEER4, PEER6, able, icmp, ip, udp,
};
use crate::counters::DropReason;
use crate::stack::{Report, Unreachable};
use crate::time::Duration;
use crate::wire::Protocol;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use towpath_packet::{Caps, Site};

fn echo(from: IpAddr, to: IpAddr, data: &[u8]) -> Vec<u8> {
    let kind = if from.is_ipv4() { 8 } else { 128 };
    let mut bytes = Vec::from([kind, 0, 0, 0, 0x12, 0x34, 0, 9]);
    bytes.extend_from_slice(data);
    icmp(from, to, 64, &bytes)
}

/// Type and code of an ICMP message, and the packet that it quotes.
fn error(out: &Out) -> (u8, u8, &[u8]) {
    assert!(out.is_sound());
    let message = out.transport();
    (message[0], message[1], &message[8..])
}

/// RFC 1122 §3.2.2.6, RFC 4443 §4.2: local addresses answer with the same data, without a copy.
#[test]
fn echo_is_answered_by_reference() {
    for (ours, peer) in FAMILIES {
        for len in [0, 1, 56, 1400] {
            let mut b = Bench::host(Caps::plain(1500));
            let data: Vec<u8> = (0..len).map(|index| index as u8).collect();
            b.input(&echo(peer, ours, &data)).dropped(&[]);
            let out = b.one();
            let message = out.transport();
            assert!(out.is_sound());
            assert_eq!(message[0], if ours.is_ipv4() { 0 } else { 129 });
            assert_eq!(message[4..8], [0x12, 0x34, 0, 9]);
            assert_eq!(message[8..], data);
            b.dropped(&[]);
            b.assert_clean();
        }
    }
}

/// A large echo request arrives in a packet above the MTU, and the reply is fragmented.
#[test]
fn large_echoes_are_fragmented() {
    let mut b = Bench::host(Caps::plain(1500));
    let out = b.input(&echo(PEER4, OURS4, &[7; 5000])).output();
    assert_eq!(out.len(), 4);
    assert!(out.iter().all(|out| out.bytes.len() <= 1514));
    b.assert_clean();
}

/// A transparent stack passes echo requests for other addresses to its owner, and answers from
/// those.
#[test]
fn echoes_for_others_go_to_the_owner() {
    for (far, peer) in [(FAR4, PEER4), (FAR6, PEER6)] {
        let mut b = Bench::transparent(Caps::plain(1500));
        b.input(&echo(peer, far, b"data")).quiet();
        let echo = b.stack.next_echo().expect("there");
        assert_eq!((echo.local, echo.remote, echo.ident, echo.sequence), (far, peer, 0x1234, 9));
        b.with_context(|stack, cx| stack.echo_reply(echo.into(), cx));
        let out = b.one();
        assert!(out.is_sound() && out.bytes.ends_with(b"data"));
        b.assert_clean();
        // A host does not accept them.
        let mut b = Bench::host(Caps::plain(1500));
        b.input(&super::icmp::echo(peer, far, b"data")).quiet();
        b.dropped(&[(DropReason::DestinationNotServed, 1)]);
    }
}

/// Echo requests that the owner does not take are bounded.
#[test]
fn echoes_not_taken_are_bounded() {
    let mut b = Bench::transparent(Caps::plain(1500));
    for _ in 0..300 {
        b.input(&echo(PEER4, FAR4, b"data"));
    }
    b.dropped(&[(DropReason::EchoQueueFull, 300 - 256)]);
    while b.stack.next_echo().is_some() {}
    b.assert_clean();
}

/// RFC 1122 §3.2.2.1, RFC 8200 §4: a protocol without a handler.
#[test]
fn unknown_protocols_are_reported() {
    for (ours, peer) in FAMILIES {
        let mut b = Bench::host(Caps::plain(1500));
        let packet = ip(peer, ours, Protocol(200), 64, &[5; 64]);
        let out = b.input(&packet).one();
        let (kind, code, quote) = error(&out);
        assert_eq!((kind, code), if ours.is_ipv4() { (3, 2) } else { (4, 1) });
        assert_eq!(quote, &packet[14..]);
        b.dropped(&[(DropReason::ProtocolUnknown, 1)]);
        assert_eq!(b.ledger.copied(), b.ledger.copied_at(Site::IcmpQuote));
        b.assert_no_leak();
    }
}

/// RFC 1812 §4.3.2.3, RFC 4443 §2.4 c: quotes are truncated.
#[test]
fn quotes_are_bounded() {
    for (ours, peer) in FAMILIES {
        let mut b = Bench::host(Caps::plain(9000));
        let out = b.input(&ip(peer, ours, Protocol(200), 64, &[5; 3000])).one();
        assert_eq!(out.bytes.len() - 14, if ours.is_ipv4() { 576 } else { 1280 });
        b.assert_no_leak();
    }
}

/// RFC 1812 §5.3.1, RFC 4443 §3.3: a transparent stack acts as a router for its peers.
#[test]
fn expired_packets_are_reported() {
    for (far, peer, ours) in [(FAR4, PEER4, OURS4), (FAR6, PEER6, OURS6)] {
        let mut b = Bench::transparent(Caps::plain(1500));
        let out = b.input(&ip(peer, far, Protocol::UDP, 1, &[0; 16])).one();
        let (kind, code, _) = error(&out);
        assert_eq!((kind, code), if ours.is_ipv4() { (11, 0) } else { (3, 0) });
        b.dropped(&[(DropReason::TtlExceeded, 1)]);
        b.assert_no_leak();
    }
}

/// RFC 1122 §3.2.2, RFC 4443 §2.4 e: no errors about errors, multicasts or invalid sources.
#[test]
fn no_errors_about_errors() {
    for (far, peer, kind) in [(FAR4, PEER4, 3), (FAR6, PEER6, 1)] {
        let mut b = Bench::transparent(Caps::plain(1500));
        let mut message = [0; 48];
        message[0] = kind;
        b.input(&icmp(peer, far, 1, &message)).quiet();
        // But an error about an echo request is sent.
        message[0] = if far.is_ipv4() { 8 } else { 128 };
        assert_eq!(b.input(&icmp(peer, far, 1, &message)).output().len(), 1);
        b.assert_no_leak();
    }
    let mut b = Bench::host(Caps::plain(1500));
    let group = IpAddr::V6(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1));
    b.input(&ip(PEER6, group, Protocol(200), 64, &[0; 16])).quiet();
    b.assert_no_leak();
}

/// RFC 1812 §4.3.2.8, RFC 4443 §2.4 f: each second a destination gets a random number of errors,
/// whatever others get.
#[test]
fn errors_are_rate_limited() {
    let mut b = Bench::host(Caps::plain(1500));
    let packet = ip(PEER4, OURS4, Protocol(200), 64, &[5; 64]);
    let mut counts = Vec::new();
    for _ in 0..20 {
        let count: usize = (0..150).map(|_| b.input(&packet).output().len()).sum();
        assert!((64..128).contains(&count), "{count}");
        counts.push(count);
        b.now += Duration::from_secs(1);
    }
    let sent: usize = counts.iter().sum();
    let limited = b.stack.counters().dropped(DropReason::IcmpRateLimited);
    assert_eq!(limited as usize, 20 * 150 - sent);
    counts.dedup();
    assert!(counts.len() > 15, "{counts:?}");
    b.assert_no_leak();
}

/// Goal: spoofed probes do not show which ports are open ("SAD DNS"). Method: in each of 100
/// seconds, an attacker sends 100 datagrams in another host's name to a port that is open or not,
/// then counts the errors about its own datagrams to closed ports. The counts of both cases are the
/// same in nearly every second.
#[test]
fn errors_are_no_oracle_of_open_ports() {
    let victim = Ipv4Addr::new(10, 0, 0, 7).into();
    let probe =
        |from: IpAddr, port| udp(SocketAddr::new(from, 53), SocketAddr::new(OURS4, port), b"probe");
    let [open, closed] = [true, false].map(|is_open| {
        let mut b = Bench::host(Caps::plain(1500));
        b.stack.set_neighbor(victim, super::bench::PEER_MAC);
        let try_port = |b: &mut Bench, from, port, is_open: bool| {
            b.input(&probe(from, port));
            let datagram = b.stack.next_datagram().expect("for the sockets to judge");
            if !is_open {
                b.with_context(|stack, cx| stack.refuse_datagram(&datagram, cx));
            }
            drop(datagram);
            b.output().len()
        };
        let mut counts = Vec::new();
        for _ in 0..100 {
            let spoofed: usize = (0..100).map(|_| try_port(&mut b, victim, 40_000, is_open)).sum();
            assert_eq!(spoofed > 0, !is_open);
            counts.push((0..150).map(|_| try_port(&mut b, PEER4, 9, false)).sum::<usize>());
            b.now += Duration::from_secs(1);
        }
        counts
    });
    let differ = open.iter().zip(&closed).filter(|(open, closed)| open != closed).count();
    assert!(differ < 8, "{differ} of 100 seconds: both had the same share");
}

/// Errors that the owner of a transparent stack sends about a datagram.
#[test]
fn the_owner_reports_unreachable() {
    let whys = [
        (Unreachable::Network, (3, 0), (1, 0)),
        (Unreachable::Host, (3, 1), (1, 3)),
        (Unreachable::Port, (3, 3), (1, 4)),
        (Unreachable::Prohibited, (3, 13), (1, 1)),
        (Unreachable::TooBig(1280), (3, 4), (2, 0)),
    ];
    for (why, expected4, expected6) in whys {
        for (far, peer, ours) in [(FAR4, PEER4, OURS4), (FAR6, PEER6, OURS6)] {
            let mut b = Bench::transparent(Caps::plain(1500));
            let (local, remote) = (SocketAddr::new(far, 53), SocketAddr::new(peer, 999));
            b.with_context(|stack, cx| stack.udp_unreachable(local, remote, why, cx));
            let out = b.one();
            let (kind, code, quote) = error(&out);
            assert_eq!((kind, code), if far.is_ipv4() { expected4 } else { expected6 });
            // The quote has the datagram's own headers.
            let sent = udp(remote, local, b"");
            let ports = if far.is_ipv4() { 20 } else { 40 };
            assert_eq!(quote[ports..ports + 4], sent[14 + ports..14 + ports + 4]);
            let from = if why == Unreachable::Port { far } else { ours };
            let source = if far.is_ipv4() { &out.bytes[26..30] } else { &out.bytes[22..38] };
            match from {
                IpAddr::V4(v4) => assert_eq!(source, v4.octets()),
                IpAddr::V6(v6) => assert_eq!(source, v6.octets()),
            }
            b.assert_clean();
        }
    }
}

/// An ICMP error about a forwarded packet is forwarded from its sender's address, about the packet
/// as it was. A sender that must not be spoofed is replaced by a local address.
#[test]
fn reports_of_others_are_passed_on() {
    for (far, peer, ours) in [(FAR4, PEER4, OURS4), (FAR6, PEER6, OURS6)] {
        let router: IpAddr =
            if far.is_ipv4() { [198, 51, 100, 7].into() } else { "2001:db8::7".parse().expect("") };
        let source_of = |out: &Out| -> IpAddr {
            let bytes = &out.bytes;
            match far {
                IpAddr::V4(_) => <[u8; 4]>::try_from(&bytes[26..30]).expect("four").into(),
                IpAddr::V6(_) => <[u8; 16]>::try_from(&bytes[22..38]).expect("sixteen").into(),
            }
        };
        let ip_len = if far.is_ipv4() { 20 } else { 40 };
        let whys = [
            (Unreachable::Expired(0), (11, 0), (3, 0)),
            (Unreachable::Because(5), (3, 5), (1, 5)),
            (Unreachable::Port, (3, 3), (1, 4)),
        ];
        for (why, expected4, expected6) in whys {
            let mut b = Bench::transparent(Caps::plain(1500));
            let report = Report { why, from: Some(router), data: b"probe" };
            let (local, remote) = (SocketAddr::new(far, 53), SocketAddr::new(peer, 999));
            b.with_context(|stack, cx| stack.report_udp(local, remote, &report, cx));
            let out = b.one();
            assert_eq!(source_of(&out), router);
            let (kind, code, quote) = error(&out);
            assert_eq!((kind, code), if far.is_ipv4() { expected4 } else { expected6 });
            assert_eq!(quote[ip_len..], [3, 231, 0, 53, 0, 13, 0, 0, b'p', b'r', b'o', b'b', b'e']);
            b.with_context(|stack, cx| stack.report_echo(far, peer, (7, 9), &report, cx));
            let (out, request) = (b.one(), if far.is_ipv4() { 8 } else { 128 });
            let (_, _, quote) = error(&out);
            assert_eq!(
                (quote[ip_len], &quote[ip_len + 4..ip_len + 8]),
                (request, &[0, 7, 0, 9][..])
            );
            assert!(quote.ends_with(b"probe"));
            let near = if far.is_ipv4() { "10.0.0.77" } else { "fd00::77" };
            let near: IpAddr = near.parse().expect("an address");
            for nobody in [peer, near, Ipv4Addr::LOCALHOST.into(), Ipv6Addr::UNSPECIFIED.into()] {
                let report = Report { from: Some(nobody), ..report };
                b.with_context(|stack, cx| stack.report_udp(local, remote, &report, cx));
                assert_eq!(source_of(&b.one()), if why == Unreachable::Port { far } else { ours });
            }
            b.assert_clean();
        }
    }
}

/// An echo request reports whether it may be fragmented; over IPv6, one that came in fragments may
/// be.
#[test]
fn echoes_tell_of_their_headers() {
    let mut b = Bench::transparent(Caps::plain(1500));
    let mut frame = echo(PEER4, FAR4, b"data");
    for flag in [0, 0x40] {
        frame[20] = flag;
        frame[22] = 5;
        frame[24..26].fill(0);
        let mut sum = crate::checksum::Sum::new();
        sum.add(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.finish().to_be_bytes());
        b.input(&frame);
        let echo = b.stack.next_echo().expect("there");
        assert_eq!((echo.ttl, echo.dont_fragment), (5, flag != 0));
    }
    b.input(&echo(PEER6, FAR6, b"data"));
    assert!(b.stack.next_echo().expect("there").dont_fragment);
    let whole = echo(PEER6, FAR6, &[7; 64])[54..].to_vec();
    for (from, to) in [(0, 40), (40, whole.len())] {
        let [high, low] = (from as u16 | u16::from(to < whole.len())).to_be_bytes();
        let mut body = Vec::from([58, 0, high, low, 0, 0, 0, 9]);
        body.extend_from_slice(&whole[from..to]);
        b.input(&ip(PEER6, FAR6, Protocol::IPV6_FRAGMENT, 64, &body));
    }
    assert!(!b.stack.next_echo().expect("reassembled").dont_fragment);
    b.quiet().assert_no_leak();
}

/// Invalid sources, and destinations that are not local.
#[test]
fn martians_are_dropped() {
    let sources4 =
        [[0, 0, 0, 0], [127, 0, 0, 1], [224, 0, 0, 1], [255, 255, 255, 255], [10, 0, 0, 1]];
    for source in sources4 {
        let mut b = Bench::host(able());
        b.input(&echo(Ipv4Addr::from(source).into(), OURS4, b"")).quiet();
        b.dropped(&[(DropReason::SourceMartian, 1)]);
    }
    let sources6 = ["::", "::1", "ff02::1", "::ffff:10.0.0.2", "fd00::1"];
    for source in sources6 {
        let mut b = Bench::host(able());
        let source: Ipv6Addr = source.parse().expect("an address");
        b.input(&echo(source.into(), OURS6, b"")).quiet();
        b.dropped(&[(DropReason::SourceMartian, 1)]);
    }
    for destination in [[10, 0, 0, 3], [127, 0, 0, 1], [255, 255, 255, 255], [239, 1, 1, 1]] {
        let mut b = Bench::transparent(able());
        b.input(&echo(PEER4, Ipv4Addr::from(destination).into(), b"")).quiet();
        b.dropped(&[(DropReason::DestinationNotServed, 1)]);
        b.assert_clean();
    }
}
