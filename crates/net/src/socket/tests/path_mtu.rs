//! What `IP_MTU_DISCOVER` means for sent packets, and what ICMP errors about packet size change for
//! all sockets.

use super::bench::*;
use super::datagram::data;
use crate::checksum;
use crate::pmtu_mode::PathMtu;
use crate::socket::{Error, Family, Notice, Options, Origin, SocketId};
use crate::stack::{PATHS_MAX, Route, RouteMetrics};
use crate::time::Duration;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use towpath_packet::Burst;

const ALL: [PathMtu; 6] =
    [PathMtu::Dont, PathMtu::Want, PathMtu::Do, PathMtu::Probe, PathMtu::Interface, PathMtu::Omit];

impl Bench {
    /// Packets that the client sends; they are not delivered.
    fn sent(&mut self) -> Vec<Vec<u8>> {
        let mut burst = Burst::new();
        let mut frames = Vec::new();
        loop {
            self.with(CLIENT, |sockets, cx| sockets.output(&mut burst, cx));
            if burst.is_empty() {
                return frames;
            }
            while let Some(packet) = burst.pop() {
                let mut bytes = packet.headers().to_vec();
                let pieces = packet.pieces().flat_map(|piece| piece.bytes().expect("private"));
                bytes.extend(pieces);
                frames.push(bytes);
            }
        }
    }

    /// The client receives an ICMP error from the server's address: `frame` was too large.
    fn too_big(&mut self, frame: &[u8], mtu: u16) {
        let is_v4 = frame[12..14] == [8, 0];
        let quote = &frame[14..frame.len().min(14 + 64)];
        let kind = if is_v4 { [3, 4] } else { [2, 0] };
        let [high, low] = mtu.to_be_bytes();
        let mut message = Vec::from([kind[0], kind[1], 0, 0, 0, 0, high, low]);
        message.extend_from_slice(quote);
        let (from, to) =
            if is_v4 { (v4_of(14 + 16, frame), v4(CLIENT)) } else { (v6(SERVER), v6(CLIENT)) };
        let mut sum = checksum::Sum::new();
        let mut ip = match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let mut ip = Vec::from([0x45, 0, 0, 20 + message.len() as u8, 0, 0, 0, 0, 64, 1]);
                ip.extend([0, 0]);
                ip.extend(from.octets().into_iter().chain(to.octets()));
                let mut header = checksum::Sum::new();
                header.add(&ip);
                ip[10..12].copy_from_slice(&header.finish().to_be_bytes());
                ip
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let len = message.len() as u8;
                sum = checksum::pseudo_header(
                    from.into(),
                    to.into(),
                    crate::wire::Protocol::ICMPV6,
                    len.into(),
                );
                let mut ip = Vec::from([0x60, 0, 0, 0, 0, len, 58, 64]);
                ip.extend(from.octets().into_iter().chain(to.octets()));
                ip
            }
            _ => panic!("two families"),
        };
        sum.add(&message);
        message[2..4].copy_from_slice(&sum.finish().to_be_bytes());
        let mut bytes = Vec::from([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
        bytes.extend_from_slice(&frame[12..14]);
        bytes.append(&mut ip);
        bytes.append(&mut message);
        self.with(CLIENT, |sockets, cx| {
            let mut frame = cx.memory.small.take().expect("memory");
            frame[..bytes.len()].copy_from_slice(&bytes);
            let mut packet = cx.memory.packet().expect("memory");
            packet.push_piece(frame.freeze(bytes.len())).expect("room");
            let mut burst = Burst::new();
            burst.push(packet).expect("room");
            sockets.input(&mut burst, cx);
        });
    }

    fn discover(&mut self, id: SocketId, how: PathMtu) {
        let change = |options: &mut Options| (options.path_mtu, options.path_mtu_v6) = (how, how);
        let now = self.now;
        self.hosts[CLIENT].set_options(id, now, change).expect("open socket");
    }

    fn path(&self, to: IpAddr) -> (u16, bool) {
        let path = self.hosts[CLIENT].stack().path(to);
        (path.mtu, path.locked)
    }

    fn route(&mut self, metrics: RouteMetrics) {
        let routes = [v4(SERVER), v6(SERVER)].map(|destination| Route {
            destination,
            prefix_len: 32,
            metrics,
        });
        let stack = self.hosts[CLIENT].stack_mut();
        stack.set_routes(&routes).expect("two are few");
    }
}

/// The IPv4 address at an offset of a frame.
fn v4_of(at: usize, frame: &[u8]) -> IpAddr {
    Ipv4Addr::from(<[u8; 4]>::try_from(&frame[at..at + 4]).expect("four")).into()
}

fn family(ip: IpAddr) -> Family {
    if ip.is_ipv4() { Family::V4 } else { Family::V6 }
}

/// True if routers must not fragment an IPv4 frame.
fn is_whole(frame: &[u8]) -> bool {
    frame[20] & 0x40 != 0
}

/// Goal: for each setting, sends behave as in Linux with packets that fit, packets above the path
/// MTU, and packets above the device's MTU. Method: a route of 1400 bytes, with and without a lock.
#[test]
fn datagrams_are_cut_or_refused_as_each_kind_says() {
    for (ip, headers) in [(v4 as fn(usize) -> IpAddr, 28), (v6, 48)] {
        for (how, locked) in ALL.into_iter().flat_map(|how| [(how, false), (how, true)]) {
            let mut b = Bench::new();
            b.route(RouteMetrics { mtu: Some(1400), mtu_locked: locked, ..Default::default() });
            let id = b.datagram(CLIENT, family(ip(0)));
            b.discover(id, how);
            let to = SocketAddr::new(ip(SERVER), 53);
            let mtu = if how.follows_path() { 1400 } else { 1500 };
            for len in [1400 - headers, 1401 - headers, 1500 - headers, 1501 - headers, 4000] {
                let fits = len + headers <= mtu;
                let sent = b.send_to(CLIENT, id, &data(len), to);
                if !(fits || how.fragments()) {
                    assert_eq!(sent, Err(Error::MessageSize), "{how:?} {len}");
                    continue;
                }
                assert_eq!(sent, Ok(len), "{how:?} {len}");
                let frames = b.sent();
                assert!(frames.iter().all(|frame| frame.len() <= 14 + mtu));
                assert_eq!(frames.len() == 1, fits, "{how:?} {len}");
                let want = how == PathMtu::Want && !locked && len + headers <= 1400;
                let whole = want || how == PathMtu::Do || how == PathMtu::Probe;
                if ip(0).is_ipv4() {
                    assert!(frames.iter().all(|frame| is_whole(frame) == whole), "{how:?} {len}");
                }
            }
            assert_eq!(b.in_use(), 0);
        }
    }
}

/// Goal: TCP segments allow fragmentation as each setting says, also those of connections that a
/// listener with that setting accepts.
#[test]
fn segments_may_be_cut_as_each_kind_says() {
    for (how, locked) in ALL.into_iter().flat_map(|how| [(how, false), (how, true)]) {
        let mut b = Bench::new();
        b.route(RouteMetrics { mtu: Some(1400), mtu_locked: locked, ..Default::default() });
        let whole = how == PathMtu::Do || how == PathMtu::Want && !locked;
        let id = b.stream(CLIENT);
        b.discover(id, how);
        let now = b.now;
        // Connecting does not complete at once.
        let _ = b.hosts[CLIENT].connect(id, at(80), now);
        let frames = b.sent();
        assert_eq!(frames.iter().map(|frame| is_whole(frame)).collect::<Vec<_>>(), [whole]);
    }
    let mut b = Bench::new();
    let listener = b.stream(CLIENT);
    b.discover(listener, PathMtu::Omit);
    let now = b.now;
    b.hosts[CLIENT].bind(listener, SocketAddr::new(v4(CLIENT), 80)).expect("free");
    b.hosts[CLIENT].listen(listener, 1, now).expect("bound");
    let peer = b.stream(SERVER);
    let _ = b.hosts[SERVER].connect(peer, SocketAddr::new(v4(CLIENT), 80), now);
    b.damage = Some(|frame, _| assert_eq!(is_whole(frame), frame[29] == 1));
    b.settle();
}

/// Goal: what one socket learns of a path holds for all sockets, for ten minutes: a datagram's
/// error for connections, open and new, and the reverse.
#[test]
fn what_is_learnt_of_a_path_is_shared_and_ages() {
    for ip in [v4, v6] {
        let mut b = Bench::new();
        let headers = if ip(0).is_ipv4() { 20 } else { 40 };
        let there = SocketAddr::new(ip(SERVER), 53);
        let id = b.datagram(CLIENT, family(there.ip()));
        assert_eq!(b.send_to(CLIENT, id, &data(1400), there), Ok(1400));
        let frame = b.sent().remove(0);
        b.too_big(&frame, 1300);
        assert_eq!(b.path(there.ip()), (1300, false));
        assert_eq!(b.path(ip(7)), (1500, false), "nothing is known of others");
        // Errors with larger sizes, or about packets that were never sent, are ignored.
        b.too_big(&frame, 1400);
        let mut forged = frame.clone();
        forged[14 + headers] ^= 0xff;
        b.too_big(&forged, 1290);
        assert_eq!(b.path(there.ip()), (1300, false));
        // The packet is now fragmented here.
        assert_eq!(b.send_to(CLIENT, id, &data(1400), there), Ok(1400));
        assert!(b.sent().iter().all(|frame| frame.len() <= 14 + 1300));
        // A new connection advertises an MSS that fits, and sends no more than that.
        let stream = b.hosts[CLIENT].stream(family(there.ip())).expect("room");
        let now = b.now;
        let _ = b.hosts[CLIENT].connect(stream, there, now);
        let syn = b.sent().remove(0);
        let mss_at = 14 + headers + 20 + 2;
        let mss = u16::from_be_bytes([syn[mss_at], syn[mss_at + 1]]);
        assert_eq!(usize::from(mss), 1300 - headers - 20);
        b.now += Duration::from_secs(601);
        b.with(CLIENT, |sockets, cx| sockets.on_deadline(cx));
        assert_eq!(b.path(there.ip()), (1500, false));
    }
}

/// Goal: a connection that did not get the error itself uses smaller segments from its next segment
/// on, and larger ones again after the timeout.
#[test]
fn connections_follow_what_others_learnt() {
    let mut b = Bench::new();
    let (server, client) = b.connected();
    let mss = |b: &Bench| {
        b.hosts[CLIENT].tcp(client).map(|c| c.info(b.now)).map(|info| (info.pmtu, info.snd_mss))
    };
    let transfer = |b: &mut Bench| {
        b.send(CLIENT, client, &data(3000)).expect("room");
        b.settle();
        b.receive(SERVER, server).expect("data");
        b.settle();
    };
    let id = b.datagram(CLIENT, Family::V4);
    b.send_to(CLIENT, id, &data(1400), at(9)).expect("route");
    let frame = b.sent().remove(0);
    b.too_big(&frame, 1000);
    transfer(&mut b);
    assert_eq!(mss(&b).expect("open").0, 1000);
    let small = mss(&b);
    b.now += Duration::from_secs(601);
    b.with(CLIENT, |sockets, cx| sockets.on_deadline(cx));
    transfer(&mut b);
    transfer(&mut b);
    assert_eq!(mss(&b).expect("open").0, 1500);
    assert!(mss(&b) > small);
}

/// Goal: an error about any sent fragment updates the path MTU, also about one without ports; an
/// error about a fragment that was never sent does not.
#[test]
fn errors_about_fragments_teach_the_path() {
    let there = SocketAddr::new(v6(SERVER), 53);
    for index in [0, 1] {
        let mut b = Bench::new();
        let id = b.datagram(CLIENT, Family::V6);
        assert_eq!(b.send_to(CLIENT, id, &data(4000), there), Ok(4000));
        let frames = b.sent();
        assert_eq!((frames.len(), frames[index][20]), (3, 44));
        let mut forged = frames[index].clone();
        forged[14 + 44 + 3] ^= 1;
        b.too_big(&forged, 1300);
        assert_eq!(b.path(there.ip()).0, 1500);
        b.too_big(&frames[index], 1300);
        assert_eq!(b.path(there.ip()).0, 1300, "fragment {index}");
        assert_eq!(b.send_to(CLIENT, id, &data(4000), there), Ok(4000));
        assert!(b.sent().iter().all(|frame| frame.len() <= 14 + 1300));
    }
}

/// Goal: a middle fragment of an IPv4 datagram has no ports: its first bytes identify no socket.
#[test]
fn the_middle_of_a_datagram_names_no_socket() {
    let mut b = Bench::new();
    let there = SocketAddr::new(v4(SERVER), 53);
    let id = b.datagram(CLIENT, Family::V4);
    b.discover(id, PathMtu::Want);
    b.hosts[CLIENT].connect(id, there, b.now).expect("route");
    assert_eq!(b.send_to(CLIENT, id, &data(1400), there), Ok(1400));
    let mut frame = b.sent().remove(0);
    frame[14 + 7] = 100;
    b.too_big(&frame, 1300);
    assert_eq!(b.path(there.ip()).0, 1500);
}

/// Goal: sockets get errors as each setting says: over IPv4 not with `Dont`, over IPv6 not with
/// `Interface` and `Omit`; the latter two never update the path MTU.
#[test]
fn errors_are_trusted_and_reported_by_kind() {
    for ip in [v4, v6] {
        for how in ALL {
            let mut b = Bench::new();
            let there = SocketAddr::new(ip(SERVER), 53);
            let id = b.datagram(CLIENT, family(there.ip()));
            b.hosts[CLIENT].set_receive_errors(id, family(there.ip()), true).expect("there");
            b.discover(id, how);
            b.send_to(CLIENT, id, &data(1400), there).expect("route");
            let frame = b.sent().remove(0);
            b.too_big(&frame, 1300);
            let believes = how.believes_errors();
            assert_eq!(b.path(there.ip()).0, if believes { 1300 } else { 1500 }, "{how:?}");
            let received = if ip(0).is_ipv4() { how != PathMtu::Dont } else { believes };
            let notice =
                b.with(CLIENT, |sockets, cx| sockets.take_notice_into(id, &mut [], cx.ledger));
            assert_eq!(notice.is_ok(), received, "{how:?}");
            if let Ok((notice, ..)) = notice {
                let Notice::Failed(notice) = notice else { panic!("{notice:?}") };
                assert_eq!((notice.error, notice.info), (Error::MessageSize, 1300));
                assert_ne!(notice.origin, Origin::Local);
            }
        }
    }
}

/// Goal: absurd sizes: over IPv4, 552 bytes is the minimum and routers must fragment larger
/// packets; over IPv6 such errors are ignored. A locked route of IPv4 is not changed, one of IPv6
/// is.
#[test]
fn absurd_sizes_and_locks() {
    for ip in [v4, v6] {
        let mut b = Bench::new();
        let there = SocketAddr::new(ip(SERVER), 53);
        let id = b.datagram(CLIENT, family(there.ip()));
        b.send_to(CLIENT, id, &data(1400), there).expect("route");
        let frame = b.sent().remove(0);
        b.route(RouteMetrics { mtu: Some(1450), mtu_locked: true, ..Default::default() });
        b.too_big(&frame, 1300);
        let is_v4 = ip(0).is_ipv4();
        assert_eq!(b.path(there.ip()), if is_v4 { (1450, true) } else { (1300, false) });
        b.route(RouteMetrics::default());
        for mtu in [0, 68, 551] {
            b.too_big(&frame, mtu);
            assert_eq!(b.path(there.ip()), if is_v4 { (552, true) } else { (1300, false) });
        }
        b.send_to(CLIENT, id, &data(500), there).expect("route");
        assert!(!is_v4 || !is_whole(&b.sent()[0]), "it may be cut");
        // A route may have a smaller MTU than that.
        b.route(RouteMetrics { mtu: Some(500), ..Default::default() });
        assert_eq!(b.path(there.ip()), (500, false));
    }
}

/// Goal: the number of known paths is bounded; the oldest entry is evicted.
#[test]
fn few_paths_are_remembered() {
    let mut b = Bench::new();
    let id = b.datagram(CLIENT, Family::V4);
    b.hosts[CLIENT].bind(id, SocketAddr::new(v4(CLIENT), 5000)).expect("free");
    let host = |index: usize| IpAddr::from(Ipv4Addr::from_bits(0xc000_0200 + index as u32 + 256));
    for index in 0..=PATHS_MAX {
        let mut frame = Vec::from([0; 12]);
        frame.extend([8, 0, 0x45, 0, 0, 100, 0, 0, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 2]);
        let IpAddr::V4(to) = host(index) else { panic!("of IPv4") };
        frame.extend(to.octets());
        frame.extend([0x13, 0x88, 0, 53, 0, 80, 0, 0]);
        b.too_big(&frame, 1300);
    }
    let known = |index| b.path(host(index)).0 == 1300;
    assert!(!known(0) && (1..=PATHS_MAX).all(known));
    assert_eq!(b.in_use(), 0);
}

/// Goal: an error about a packet that this host did not send, or not lately, changes no path.
/// Method: a connection and a datagram socket to one server; each forgery changes one field of a
/// quoted packet: ports, addresses, sequence number, protocol, identification.
#[test]
fn forged_errors_about_other_flows_teach_nothing() {
    for ip in [v4, v6] {
        let mut b = Bench::new();
        let is_v4 = ip(0).is_ipv4();
        let transport = 14 + if is_v4 { 20 } else { 40 };
        let (source, destination) = if is_v4 { (26, 30) } else { (22, 38) };
        let there = SocketAddr::new(ip(SERVER), 53);
        let id = b.datagram(CLIENT, family(there.ip()));
        b.send_to(CLIENT, id, &data(1400), there).expect("route");
        let datagram = b.sent().remove(0);
        let stream = b.hosts[CLIENT].stream(family(there.ip())).expect("room");
        let _ = b.hosts[CLIENT].connect(stream, there, b.now);
        let syn = b.sent().remove(0);
        let drops = |b: &Bench| {
            b.hosts[CLIENT].stack().counters().drops().map(|(_, count)| count).sum::<u64>()
        };
        let before = drops(&b);
        let mut forgeries = 0;
        let mut forge = |b: &mut Bench, frame: &[u8], at: usize| {
            for bit in [0x01, 0x80] {
                let mut frame = frame.to_vec();
                frame[at] ^= bit;
                b.too_big(&frame, 1280);
                forgeries += 1;
            }
        };
        // The destination of a datagram of an unconnected socket is not checked, as in Linux.
        for at in [source, transport, transport + 1] {
            forge(&mut b, &datagram, at);
        }
        for at in [source, destination, transport, transport + 2, transport + 4, transport + 6] {
            forge(&mut b, &syn, at);
        }
        let protocol = if is_v4 { 23 } else { 20 };
        forge(&mut b, &syn, protocol);
        if !is_v4 {
            // Guesses of identifications, for a fragment without ports.
            let mut guess = datagram.clone();
            guess[20] = 44;
            for ident in 0..1000_u32 {
                guess[54..58].copy_from_slice(&[17, 0, 5, 0xa8]);
                guess[58..62].copy_from_slice(&ident.wrapping_mul(0x0101_0101).to_be_bytes());
                b.too_big(&guess, 1280);
            }
            forgeries += 1000;
        }
        for host in (0..8).filter(|host| *host != CLIENT) {
            assert_eq!(b.path(ip(host)), (1500, false));
        }
        assert_eq!(drops(&b) - before, forgeries, "all are counted");
        // The truth is believed.
        b.too_big(&syn, 1400);
        assert_eq!(b.path(there.ip()), (1400, false));
        b.too_big(&datagram, 1300);
        assert_eq!(b.path(there.ip()), (1300, false));
    }
}

/// Goal: identifications of IPv4 fragments do not follow from one another, and each is used once.
#[test]
fn fragments_of_ipv4_have_random_identifications() {
    let mut b = Bench::new();
    let there = SocketAddr::new(v4(SERVER), 53);
    let id = b.datagram(CLIENT, Family::V4);
    let mut idents = Vec::new();
    for _ in 0..200 {
        b.send_to(CLIENT, id, &data(4000), there).expect("route");
        let frames = b.sent();
        let of = |frame: &Vec<u8>| u16::from_be_bytes([frame[18], frame[19]]);
        assert_eq!(frames.len(), 3);
        assert!(frames.iter().all(|frame| of(frame) == of(&frames[0])));
        idents.push(of(&frames[0]));
    }
    let near = idents.windows(2).filter(|two| two[0].abs_diff(two[1]) < 64).count();
    assert!(near < 5, "{idents:?}");
    idents.sort_unstable();
    idents.dedup();
    assert_eq!(idents.len(), 200);
}
