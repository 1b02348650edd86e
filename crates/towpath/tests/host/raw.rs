//! Raw and packet sockets that lend their buffers.

use super::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use towpath::host::{
    EtherType, FrameKind, FramePart, LinkDestination, MacAddr, PacketOptions, PacketSocket,
    RawSocket, ReceivedPiece, SendTo,
};

/// A protocol number for experiments (RFC 3692).
const PROTOCOL: u8 = 253;
const ETHERTYPE: EtherType = EtherType(0x88b5);

/// Returns the address of a host, over IPv4 or IPv6.
pub(super) fn at(v6: bool, last: u8) -> IpAddr {
    match v6 {
        false => Ipv4Addr::new(10, 0, 0, last).into(),
        true => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into()).into(),
    }
}

/// Creates two hosts with IPv4 and IPv6 addresses.
pub(super) fn hosts() -> (Host, Host) {
    let [one, two] = [1, 2].map(|last| Config {
        addresses: vec![(at(false, last), 24), (at(true, last), 64)],
        mac: Some(mac(last).0),
        ..config(last)
    });
    Host::pair(&one, &two).expect("two hosts")
}

fn mac(last: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, last])
}

/// Creates two hosts with a raw socket each.
fn raw_sockets(v6: bool) -> (Host, Host, RawSocket, RawSocket) {
    let (a, b) = hosts();
    let socket = RawSocket::bind(&a, at(v6, 1), PROTOCOL).expect("bound");
    let peer = RawSocket::bind(&b, at(v6, 2), PROTOCOL).expect("bound");
    peer.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    (a, b, socket, peer)
}

fn bytes(pieces: &[ReceivedPiece]) -> Vec<u8> {
    pieces.iter().flat_map(|piece| piece.bytes().expect("ours").to_vec()).collect()
}

/// Goal: IP packets are sent without a copy, whole and in fragments, and their buffers come back.
/// They are received with the header over IPv4 and without it over IPv6, copied or lent.
#[test]
fn packets_are_lent_and_come_back() {
    for v6 in [false, true] {
        let (a, b, socket, peer) = raw_sockets(v6);
        let header = if v6 { 0 } else { 20 };
        let mut into = vec![0; 70_000];
        for len in [1, 1400, 9000] {
            let sending = socket.send_zc_to(pattern(len, len), at(v6, 2)).expect("sends");
            assert_eq!(sending.accepted(), len);
            let (count, from) = peer.recv_from(&mut into).expect("receives");
            assert_eq!(from, at(v6, 1));
            assert_same(&into[header..count], &pattern(len, len));
            let returned = sending.returned_within(PATIENCE).expect("back");
            assert!(!returned.copied && returned.buffer == pattern(len, len));
        }
        socket.connect(at(v6, 2)).expect("connected");
        let sending = socket.send_zc(Chain(vec![pattern(10, 1), pattern(600, 2)])).expect("sends");
        let (mut headers, mut pieces) = (Vec::new(), Vec::new());
        let reported = peer.recv_lent(&mut headers, &mut pieces).expect("receives");
        assert_eq!((reported.len, headers.len()), (header + 610, header));
        assert_same(&bytes(&pieces), &[pattern(10, 1), pattern(600, 2)].concat());
        assert!(!sending.is_returned(), "the reader keeps it");
        pieces.clear();
        assert!(!sending.returned_within(PATIENCE).expect("back").copied);
        assert_eq!(a.ledger().copied(), 0, "by the sender");
        drop((socket, peer));
        assert_all_back(&[&a, &b]);
    }
}

/// Goal: many packets lent at once are sent in order by the worker, and all buffers come back.
/// Segment sizes, which are for UDP, have no effect.
#[test]
fn many_packets_are_lent() {
    /// Fewer than a socket queues, more than a socket hands on itself.
    const COUNT: usize = 200;
    let (a, b, socket, peer) = raw_sockets(false);
    peer.set_options(|options| options.receive_buffer = Some(16 << 20)).expect("a size");
    let send = SendTo {
        to: Some(SocketAddr::new(at(false, 2), 0)),
        segment_size: Some(100),
        ..SendTo::default()
    };
    // Resolves the link-layer addresses of both hosts.
    let mut into = vec![0; 2000];
    socket.send_to(&[0], at(false, 2)).expect("sends");
    assert_eq!(peer.recv_from(&mut into).expect("receives").0, 21);
    let mut sends = Completions::new();
    for number in 0..COUNT {
        sends.push(socket.send_zc_with(pattern(1000, number), &send).expect("sends"));
    }
    for number in 0..COUNT {
        let (count, _) = peer.recv_from(&mut into).expect("receives");
        assert_same(&into[20..count], &pattern(1000, number));
    }
    let mut back = 0;
    while let Some(returned) = sends.wait_next() {
        assert!(!returned.copied);
        back += 1;
    }
    assert_eq!(back, COUNT);
    drop((socket, peer));
    assert_all_back(&[&a, &b]);
}

/// Goal: packets that begin with a header are sent with it, as far as Linux allows.
#[test]
fn packets_with_their_own_headers() {
    let (a, b, socket, peer) = raw_sockets(false);
    socket.set_raw_options(|options| options.header_included = true).expect("a raw socket");
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 9, PROTOCOL, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    packet.extend(pattern(500, 1));
    let sending = socket.send_zc_to(packet.clone(), at(false, 2)).expect("sends");
    let mut into = vec![0; 2000];
    let (count, _) = peer.recv_from(&mut into).expect("receives");
    assert_eq!((into[8], count), (9, packet.len()), "the time to live is ours");
    assert_same(&into[20..count], &packet[20..]);
    assert!(sending.returned_within(PATIENCE).expect("back").buffer == packet);

    // Tried: an incomplete header, and more than the MTU.
    for (buffer, errno) in [(vec![0x45; 19], libc::EINVAL), (vec![0x45; 1501], libc::EMSGSIZE)] {
        let len = buffer.len();
        let failed = socket.send_zc_to(buffer, at(false, 2)).expect_err("no such packet");
        assert_eq!((failed.error.raw_os_error(), failed.buffer.len()), (Some(errno), len));
    }
    assert_eq!(a.lent(), 0);
    drop((socket, peer));
    assert_all_back(&[&a, &b]);
}

/// Tried: protocol zero, an address that is not the host's, no destination, one of the other
/// family, a packet that is too long, an odd checksum offset, too small a budget.
#[test]
fn what_raw_sockets_cannot_do_is_refused() {
    let (a, b) = hosts();
    let errno = |error: io::Error| error.raw_os_error().expect("a number");
    let none = RawSocket::bind(&a, at(false, 1), 0).expect_err("no protocol");
    assert_eq!(errno(none), libc::EPROTONOSUPPORT);
    let other = RawSocket::bind(&a, at(false, 7), PROTOCOL).expect_err("not ours");
    assert_eq!(errno(other), libc::EADDRNOTAVAIL);
    for v6 in [false, true] {
        let socket = RawSocket::bind(&a, at(v6, 1), PROTOCOL).expect("bound");
        let nowhere = socket.send_zc(vec![1; 100]).expect_err("no destination");
        assert_eq!(errno(nowhere.error), libc::EDESTADDRREQ);
        let odd = socket.set_raw_options(|options| options.checksum_at = Some(3));
        assert_eq!(errno(odd.expect_err("odd")), libc::EINVAL);
        socket.send_zc_to(nowhere.buffer, at(!v6, 2)).expect_err("of the other family");
        let long = socket.send_zc_to(vec![1; 65_536], at(v6, 2)).expect_err("too long");
        assert_eq!((errno(long.error), long.buffer.len()), (libc::EMSGSIZE, 65_536));
    }
    assert_all_back(&[&a, &b]);
}

/// Goal: a socket that is closed with loans out loses none: each comes back once, when its reader
/// releases it.
#[test]
fn what_closed_sockets_lent_comes_back() {
    let (a, b, socket, peer) = raw_sockets(false);
    let frames = PacketSocket::new(&a, ETHERTYPE, FramePart::Payload).expect("a socket");
    let (own, to) = (SocketAddr::new(at(false, 1), 7), SocketAddr::new(at(false, 2), 7));
    let datagrams = UdpSocket::bind(&a, own).expect("bound");
    let frames_peer = PacketSocket::new(&b, ETHERTYPE, FramePart::Payload).expect("a socket");
    let datagrams_peer = UdpSocket::bind(&b, to).expect("bound");
    let station = LinkDestination { address: Some(mac(2)), protocol: ETHERTYPE };
    let mut sends = Completions::new();
    sends.push(socket.send_zc_to(pattern(900, 1), at(false, 2)).expect("sends"));
    sends.push(datagrams.send_zc_to(pattern(900, 2), to).expect("sends"));
    sends.push(frames.send_zc_to(pattern(900, 3), station).expect("sends"));
    drop((socket, datagrams, frames));
    // The packets wait in the peers' queues.
    let lent = 3 * (900 + towpath::host::LENT_OVERHEAD);
    assert!(sends.try_next().is_none() && a.lent() == lent);
    let mut into = [0; 1000];
    let count = peer.recv_from(&mut into).expect("receives").0;
    assert_same(&into[20..count], &pattern(900, 1));
    datagrams_peer.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let count = datagrams_peer.recv(&mut into).expect("receives");
    assert_same(&into[..count], &pattern(900, 2));
    frames_peer.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let count = frames_peer.recv_from(&mut into).expect("receives").copied;
    assert_same(&into[..count], &pattern(900, 3));
    for seed in 1..=3 {
        let returned = sends.wait_next().expect("in the order of the sends");
        assert!(returned.buffer == pattern(900, seed) && !returned.copied);
    }
    assert!(sends.wait_next().is_none(), "once each");
    drop((peer, datagrams_peer, frames_peer));
    assert_all_back(&[&a, &b]);
}

/// Goal: frames are sent without a copy, with their own headers or with generated ones, and come
/// back; a socket for all protocols also sees outgoing frames.
#[test]
fn frames_are_lent_and_come_back() {
    let (a, b) = hosts();
    let whole = PacketSocket::new(&a, ETHERTYPE, FramePart::Whole).expect("a socket");
    let payload = PacketSocket::new(&a, ETHERTYPE, FramePart::Payload).expect("a socket");
    let peer = PacketSocket::new(&b, ETHERTYPE, FramePart::Payload).expect("a socket");
    let all = PacketSocket::new(&a, PacketOptions::ALL, FramePart::Whole).expect("a socket");
    for socket in [&whole, &payload, &peer, &all] {
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    }
    let mut frame = [mac(2).0, mac(1).0].concat();
    frame.extend([0x88, 0xb5]);
    frame.extend(pattern(1000, 1));
    let sending = whole.send_zc(frame.clone()).expect("sends");
    let mut into = vec![0; 2000];
    let reported = peer.recv_from(&mut into).expect("receives");
    assert_same(&into[..reported.copied], &frame[14..]);
    let source = reported.link.expect("of a frame");
    assert_eq!((source.address, source.kind), (mac(1), FrameKind::Host));
    let reported = all.recv_from(&mut into).expect("sees it");
    assert_eq!(reported.link.expect("of a frame").kind, FrameKind::Outgoing);
    assert_same(&into[..reported.copied], &frame);
    assert!(!sending.returned_within(PATIENCE).expect("back").copied);

    let to = LinkDestination { address: Some(mac(2)), protocol: ETHERTYPE };
    let sending = payload.send_zc_to(pattern(1500, 2), to).expect("sends");
    let (mut headers, mut pieces) = (Vec::new(), Vec::new());
    assert_eq!(peer.recv_lent(&mut headers, &mut pieces).expect("receives").len, 1500);
    assert_same(&[headers, bytes(&pieces)].concat(), &pattern(1500, 2));
    // Both sockets that received it hold it.
    assert!(!sending.is_returned());
    drop(pieces);
    assert_eq!(all.recv_from(&mut into).expect("sees it").len, 1514);
    assert!(!sending.returned_within(PATIENCE).expect("back").copied);
    let (seen, lost) = all.take_statistics().expect("a packet socket");
    assert!(seen >= 2 && lost == 0, "{seen} {lost}");
    assert_eq!(payload.send_to(&[7; 60], to).expect("sends"), 60);
    assert_eq!(peer.recv_from(&mut into).expect("receives").len, 60);
    drop((whole, payload, peer, all));
    assert_all_back(&[&a, &b]);
}

/// Tried: less than a header, more than the MTU, no destination where a header must be generated,
/// and connecting to a peer.
#[test]
fn frames_that_cannot_be_are_handed_back() {
    let (a, b) = hosts();
    let whole = PacketSocket::new(&a, ETHERTYPE, FramePart::Whole).expect("a socket");
    let payload = PacketSocket::new(&a, ETHERTYPE, FramePart::Payload).expect("a socket");
    let to = LinkDestination { address: Some(mac(2)), protocol: ETHERTYPE };
    let nobody = LinkDestination { address: None, ..to };
    let failed = [
        (whole.send_zc(vec![0; 13]), libc::EINVAL, 13),
        (whole.send_zc(vec![0; 1519]), libc::EMSGSIZE, 1519),
        (payload.send_zc_to(vec![0; 1501], to), libc::EMSGSIZE, 1501),
        (payload.send_zc_to(vec![0; 100], nobody), libc::EINVAL, 100),
        (payload.send_zc(vec![0; 100]), libc::EINVAL, 100),
    ];
    for (sent, errno, len) in failed {
        let failed = sent.expect_err("no such frame");
        assert_eq!((failed.error.raw_os_error(), failed.buffer.len()), (Some(errno), len));
    }
    assert_eq!(a.lent(), 0);
    drop((whole, payload));
    assert_all_back(&[&a, &b]);
}

/// Goal: raw and packet sockets report their addresses. Bad input: the peer of an unconnected
/// socket, and a peer of the other family.
#[test]
fn sockets_tell_their_addresses() {
    for v6 in [false, true] {
        let (a, b, socket, _peer) = raw_sockets(v6);
        assert_eq!(socket.local_addr().expect("bound"), at(v6, 1));
        let none = socket.peer_addr().expect_err("no peer");
        assert_eq!(none.kind(), std::io::ErrorKind::NotConnected);
        socket.connect(at(!v6, 2)).expect_err("of the other family");
        socket.peer_addr().expect_err("still none");
        socket.connect(at(v6, 2)).expect("connected");
        assert_eq!(socket.peer_addr().expect("a peer"), at(v6, 2));
        let all = if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        let free = RawSocket::bind(&b, all, PROTOCOL).expect("bound");
        assert_eq!(free.local_addr().expect("to all"), all);
        free.connect(at(v6, 1)).expect("connected");
        assert_eq!(free.local_addr().expect("of the way"), at(v6, 2));
        assert!(free.take_error().expect("a socket").is_none());
        let frames = PacketSocket::new(&a, ETHERTYPE, FramePart::Whole).expect("a socket");
        assert_eq!(frames.local_addr(), mac(1));
        assert!(frames.take_error().expect("a socket").is_none());
    }
}
