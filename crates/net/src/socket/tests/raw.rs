//! Raw sockets: received packets, sent packets, and bounds.

use super::bench::*;
use super::datagram::data;
use crate::counters::DropReason;
use crate::socket::{DATAGRAMS_MAX, Error, Family, Notice, ReadMost, SendTo, SocketId};
use crate::wire::Protocol;
use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use towpath_packet::{Loans, Site};

/// A protocol that no stack implements (RFC 3692).
const OTHER: Protocol = Protocol(253);

fn family(ip: fn(usize) -> IpAddr) -> Family {
    if ip(0).is_ipv4() { Family::V4 } else { Family::V6 }
}

/// Bytes of the IP header that a raw socket reads.
fn header_len(ip: fn(usize) -> IpAddr) -> usize {
    if ip(0).is_ipv4() { 20 } else { 0 }
}

impl Bench {
    fn raw(&mut self, host: usize, family: Family, protocol: Protocol) -> SocketId {
        self.hosts[host].raw(family, protocol).expect("room")
    }
}

/// Goal: packets of a protocol arrive whole, in fragments if needed, at each matching socket, with
/// the IP header over IPv4; receiving copies nothing.
#[test]
fn packets_of_any_protocol_go_to_all_subscribers() {
    for ip in [v4, v6] {
        let mut b = Bench::new();
        let servers = [(); 2].map(|()| b.raw(SERVER, family(ip), OTHER));
        let elsewhere = b.raw(SERVER, family(ip), Protocol(254));
        let client = b.raw(CLIENT, family(ip), OTHER);
        for len in [0, 1, 1480, 20_000] {
            let to = SocketAddr::new(ip(SERVER), 0);
            assert_eq!(b.send_to(CLIENT, client, &data(len), to), Ok(len));
            b.settle();
            for server in servers {
                let (bytes, received) = b.take(SERVER, server).expect("a packet");
                assert_eq!(bytes[header_len(ip)..], data(len), "{len}");
                assert_eq!((received.from.ip(), received.to.ip()), (ip(CLIENT), ip(SERVER)));
                assert_eq!((received.from.port(), received.ttl), (0, 64));
            }
            assert!(b.take(SERVER, elsewhere).is_err());
            assert!(b.take(CLIENT, client).is_err(), "an ICMP error");
        }
        for server in servers {
            b.hosts[SERVER].close(server, b.now).expect("open socket");
        }
        // A raw ICMP socket gets the error that the protocol is now unreachable.
        let icmp = if ip(0).is_ipv4() { Protocol::ICMP } else { Protocol::ICMPV6 };
        let errors = b.raw(CLIENT, family(ip), icmp);
        let to = SocketAddr::new(ip(SERVER), 0);
        assert_eq!(b.send_to(CLIENT, client, b"x", to), Ok(1));
        b.settle();
        let (bytes, _) = b.take(CLIENT, errors).expect("an error");
        let (kind, code) = (bytes[header_len(ip)], bytes[header_len(ip) + 1]);
        assert_eq!((kind, code), if ip(0).is_ipv4() { (3, 2) } else { (4, 1) });
        assert_eq!(b.in_use(), 0);
    }
}

/// Goal: a ping by raw sockets: the stack answers, the socket computes the ICMPv6 checksum, and
/// filters block the request and pass the answer.
#[test]
fn echo_by_hand_and_filters() {
    for ip in [v4, v6] {
        let mut b = Bench::new();
        let (protocol, request, reply) =
            if ip(0).is_ipv4() { (Protocol::ICMP, 8, 0) } else { (Protocol::ICMPV6, 128, 129) };
        let client = b.raw(CLIENT, family(ip), protocol);
        let [all, filtered] = [(); 2].map(|()| b.raw(SERVER, family(ip), protocol));
        b.hosts[SERVER]
            .set_raw_options(filtered, |raw| raw.blocked[request / 32] |= 1 << (request % 32))
            .expect("it is raw");
        let mut message = vec![request as u8, 0, 0, 0, 0, 7, 0, 1];
        message.extend(data(1000));
        if ip(0).is_ipv4() {
            let mut sum = crate::checksum::Sum::new();
            sum.add(&message);
            message[2..4].copy_from_slice(&sum.finish().to_be_bytes());
        }
        let to = SocketAddr::new(ip(SERVER), 0);
        assert_eq!(b.send_to(CLIENT, client, &message, to), Ok(1008));
        b.settle();
        // The filters read the type without counting it as payload.
        assert_eq!(b.copied_at(Site::SocketReceive), 0);
        let (bytes, received) = b.take(CLIENT, client).expect("the answer");
        let answer = &bytes[header_len(ip)..];
        assert_eq!((answer[0], &answer[4..]), (reply, &message[4..]));
        assert_eq!(received.from.ip(), ip(SERVER));
        let (bytes, _) = b.take(SERVER, all).expect("the request");
        assert_eq!(bytes[header_len(ip) + 4..], message[4..]);
        assert!(b.take(SERVER, filtered).is_err());
        assert_eq!(b.in_use(), 0);
    }
}

/// Goal: the bound and the connected address select packets.
#[test]
fn addresses_choose() {
    let mut b = Bench::new();
    let [bound, connected, foreign] = [(); 3].map(|()| b.raw(SERVER, Family::V4, OTHER));
    let now = b.now;
    b.hosts[SERVER].bind(bound, SocketAddr::new(v4(SERVER), 0)).expect("ours");
    let elsewhere = SocketAddr::new([192, 0, 2, 77].into(), 0);
    assert_eq!(b.hosts[SERVER].bind(foreign, elsewhere), Err(Error::AddressNotAvailable));
    b.hosts[SERVER].connect(connected, elsewhere, now).expect("route");
    let client = b.raw(CLIENT, Family::V4, OTHER);
    assert_eq!(b.send_to(CLIENT, client, b"x", at(0)), Ok(1));
    b.settle();
    assert!(b.take(SERVER, bound).is_ok() && b.take(SERVER, foreign).is_ok());
    assert!(b.take(SERVER, connected).is_err());
    b.hosts[SERVER].disconnect(connected, now).expect("open socket");
    assert_eq!(b.send_to(CLIENT, client, b"x", at(0)), Ok(1));
    b.settle();
    assert!(b.take(SERVER, connected).is_ok());
    let none = SendTo::default();
    let sent = b.with(CLIENT, |host, cx| host.send_datagram(client, &[b"x"], &none, cx));
    assert_eq!(sent, Err(Error::DestinationRequired));
}

/// Goal: a packet with its own header is sent as it is, completed as in Linux; an inconsistent or
/// too long one is rejected.
#[test]
fn headers_of_their_own() {
    let mut b = Bench::new();
    let server = b.raw(SERVER, Family::V4, OTHER);
    let client = b.raw(CLIENT, Family::V4, Protocol(255));
    let mut packet = vec![0; 24];
    packet[0] = 0x46;
    packet[1] = 0x10;
    packet[8] = 9;
    packet[9] = OTHER.0;
    packet[16..20].copy_from_slice(&[192, 0, 2, 1]);
    // A NOP option.
    packet[20..24].copy_from_slice(&[1, 1, 1, 0]);
    packet.extend(data(100));
    assert_eq!(b.send_to(CLIENT, client, &packet, at(0)), Ok(124));
    b.settle();
    let (bytes, received) = b.take(SERVER, server).expect("a packet");
    assert_eq!((bytes.len(), &bytes[24..]), (124, &data(100)[..]));
    assert_eq!(
        (bytes[0], &bytes[2..4], &bytes[12..16]),
        (0x46, &[0, 124][..], &[192, 0, 2, 2][..])
    );
    assert_eq!((received.ttl, received.tos, received.from.ip()), (9, 0x10, v4(CLIENT)));
    for (first, len) in [(0x44, 124), (0x46, 23), (0x4f, 59), (0x40, 124), (0x45, 0)] {
        packet[0] = first;
        let part = packet[..len].to_vec();
        assert_eq!(b.send_to(CLIENT, client, &part, at(0)), Err(Error::Invalid), "{first} {len}");
    }
    packet[0] = 0x46;
    packet.resize(1501, 0);
    assert_eq!(b.send_to(CLIENT, client, &packet, at(0)), Err(Error::MessageSize));
    assert!(b.take(SERVER, server).is_err());
    assert_eq!(b.in_use(), 0);
}

/// Goal: lent packets of raw sockets are not copied, not even for a checksum, which needs the first
/// bytes only; the call is reported.
#[test]
fn raw_packets_are_lent() {
    for ip in [v4, v6] {
        let mut b = Bench::new();
        let server = b.raw(SERVER, family(ip), OTHER);
        let client = b.raw(CLIENT, family(ip), OTHER);
        if ip(0).is_ipv6() {
            for (host, id) in [(SERVER, server), (CLIENT, client)] {
                b.hosts[host].set_raw_options(id, |raw| raw.checksum_at = Some(4)).expect("raw");
            }
        }
        let mut loans = Loans::new(4);
        for (number, len) in [100, 9000].into_iter().enumerate() {
            let to = SendTo { to: Some(SocketAddr::new(ip(SERVER), 0)), ..SendTo::default() };
            let memory = alloc::sync::Arc::new(data(len));
            let sent = b.with(CLIENT, |host, cx| {
                let lend = |room: usize, by: crate::socket::Borrower| {
                    loans.lend_shared(&memory, (0, room as u32), by.lender, by.token)
                };
                host.send_lent_datagram(client, len, &to, lend, cx)
            });
            assert_eq!(sent, Ok(len));
            b.settle();
            let (mut bytes, _) = b.take(SERVER, server).expect("a packet");
            let mut bytes = bytes.split_off(header_len(ip));
            if ip(0).is_ipv6() {
                bytes[4..6].copy_from_slice(&data(len)[4..6]);
            }
            assert_eq!(bytes, data(len));
            let number = number as u32;
            let notice = Notice::Lent { first: number, last: number, copied: false };
            assert_eq!(b.hosts[CLIENT].take_notice(client), Ok(notice));
        }
        assert_eq!((b.copied_at(Site::SocketSend), loans.out_count()), (0, 0));
    }
}

/// Goal: a socket that verifies checksums does not get packets with a wrong one; a checksum offset
/// beyond the packet is rejected, as is an odd one.
#[test]
fn checksums_over_ipv6() {
    let mut b = Bench::new();
    let [looks, takes_all] = [(); 2].map(|()| b.raw(SERVER, Family::V6, OTHER));
    b.hosts[SERVER].set_raw_options(looks, |raw| raw.checksum_at = Some(0)).expect("raw");
    let odd = b.hosts[SERVER].set_raw_options(looks, |raw| raw.checksum_at = Some(1));
    assert_eq!(odd, Err(Error::Invalid));
    let client = b.raw(CLIENT, Family::V6, OTHER);
    let to = SocketAddr::new(v6(SERVER), 0);
    assert_eq!(b.send_to(CLIENT, client, &data(99), to), Ok(99));
    b.settle();
    assert!(b.take(SERVER, looks).is_err() && b.take(SERVER, takes_all).is_ok());
    assert_eq!(b.hosts[SERVER].stack().counters().dropped(DropReason::RawChecksum), 1);
    b.hosts[CLIENT].set_raw_options(client, |raw| raw.checksum_at = Some(0)).expect("raw");
    assert_eq!(b.send_to(CLIENT, client, &data(99), to), Ok(99));
    b.settle();
    assert!(b.take(SERVER, looks).is_ok());
    assert_eq!(b.send_to(CLIENT, client, &data(1), to), Err(Error::Invalid));
    let udp = b.datagram(CLIENT, Family::V6);
    let other = b.hosts[CLIENT].set_raw_options(udp, |raw| raw.checksum_at = None);
    assert_eq!(other, Err(Error::NotSupported));
}

/// Goal: an unread socket is bounded, and its drops are counted.
#[test]
fn unread_packets_are_bounded() {
    let mut b = Bench::new();
    let server = b.raw(SERVER, Family::V4, OTHER);
    let client = b.raw(CLIENT, Family::V4, OTHER);
    for _ in 0..DATAGRAMS_MAX + 10 {
        assert_eq!(b.send_to(CLIENT, client, b"x", at(0)), Ok(1));
        b.settle();
    }
    let mut got = 0;
    while b.take(SERVER, server).is_ok() {
        got += 1;
    }
    let lost = b.hosts[SERVER].dropped_datagrams(server).expect("open socket");
    assert!(got > 50 && got <= DATAGRAMS_MAX, "{got}");
    assert_eq!(got + lost as usize, DATAGRAMS_MAX + 10);
    assert_eq!(b.in_use(), 0);
}

/// Goal: raw sockets also get datagrams that never leave the stack, with all headers.
#[test]
fn what_goes_to_the_own_stack_is_taken() {
    for ip in [v4, v6] {
        let mut b = Bench::new();
        let server = b.bound(SocketAddr::new(ip(SERVER), 53));
        let raw = b.raw(SERVER, family(ip), Protocol::UDP);
        let to = SocketAddr::new(ip(SERVER), 53);
        assert_eq!(b.send_to(SERVER, server, &data(100), to), Ok(100));
        b.settle();
        assert_eq!(b.take(SERVER, server).expect("a datagram").0, data(100));
        let (bytes, received) = b.take(SERVER, raw).expect("a packet");
        assert_eq!((bytes.len(), received.len), (header_len(ip) + 108, header_len(ip) + 108));
        let udp = &bytes[header_len(ip)..];
        assert_eq!((&udp[..6], &udp[8..]), (&[0, 53, 0, 53, 0, 108][..], &data(100)[..]));
        assert_eq!((received.from.ip(), b.in_use()), (ip(SERVER), 0));
    }
}

/// Goal: a read returns the headers first, at any buffer boundary, and a peek leaves them.
#[test]
fn headers_are_read_first() {
    let mut b = Bench::new();
    let server = b.raw(SERVER, Family::V4, OTHER);
    let client = b.raw(CLIENT, Family::V4, OTHER);
    assert_eq!(b.send_to(CLIENT, client, b"payload", at(0)), Ok(7));
    b.settle();
    for peek in [true, false] {
        let (mut first, mut second) = ([0; 3], [0; 20]);
        let received = b.with(SERVER, |host, cx| {
            host.receive_datagram(server, &mut [&mut first, &mut [], &mut second], peek, cx.ledger)
        });
        assert_eq!(received.map(|received| (received.len, received.copied)), Ok((27, 23)));
        assert_eq!((first[0], &second[17..]), (0x45, &b"pay"[..]));
    }
    assert_eq!(b.send_to(CLIENT, client, b"payload", at(0)), Ok(7));
    b.settle();
    let most = ReadMost { bytes: 100, pieces: 10, private: false };
    let lent =
        b.with(SERVER, |host, cx| host.receive_datagram_lent(server, &most, &mut Vec::new(), cx));
    assert_eq!(lent.err(), Some(Error::NotSupported), "the header is in no piece");
    let (mut headers, mut pieces) = (Vec::new(), Vec::new());
    let received = b
        .with(SERVER, |host, cx| {
            host.receive_frame_lent(server, &most, (&mut headers, &mut pieces), cx)
        })
        .expect("a packet");
    let pieces: Vec<usize> = pieces.iter().map(|piece| piece.len()).collect();
    assert_eq!((headers.len(), pieces, received.len), (20, vec![7], 27));
}
