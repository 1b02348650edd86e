//! Datagram, raw and packet sockets of towpath hosts: readiness events and operations.

use super::sockets::hosts;
use super::{Case, PATIENCE, config, errno, now, one, queue, ready, until_over, wait};
use crate::taken::{Done, Taken};
use rustix::io::Errno;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use towpath::events::{
    Choice, Config, DatagramSocket, EventKind, EventQueue, Interest, ReceivedInto, ReceivedLent,
    Source, Token, Trigger,
};
use towpath::host::{
    Config as HostConfig, EtherType, FrameKind, FramePart, Host, LinkDestination, PacketSocket,
    RawSocket, ReceivedPiece, SendMode, SendTo, UdpSocket, bpf,
};

pub(super) const CASES: &[Case] = &[
    ("raw_and_packet_sockets_are_reported", reported),
    ("a_sniffer_tells_of_frames", sniffer),
    ("a_datagram_is_received_into_a_posted_buffer", receive),
    ("a_receive_of_a_datagram_is_cancelled_or_late", receive_stopped),
    ("a_datagram_is_received_where_it_lies", receive_lent),
    ("a_datagram_is_received_where_it_lies_when_there_is_room", receive_lent_crowded),
    ("datagrams_are_accepted_and_returned", send),
    ("a_lent_datagram_comes_back_when_it_is_asked_for", send_stopped),
    ("a_datagram_that_waits_for_room_is_sent_later_or_never", send_waits),
    ("operations_of_raw_and_packet_sockets", raw_and_packet),
    ("datagrams_that_cannot_be_sent_come_back", send_fails),
    ("a_full_queue_hands_datagrams_back", full),
    ("a_queue_may_go_before_operations_on_datagrams", dropped),
];

/// A protocol number for experiments (RFC 3692).
const PROTOCOL: u8 = 253;
const ETHERTYPE: EtherType = EtherType(0x88b5);

fn ip(last: u8) -> IpAddr {
    [10, 0, 0, last].into()
}

fn to() -> SocketAddr {
    SocketAddr::new(ip(2), 53)
}

fn to_peer() -> SendTo {
    SendTo { to: Some(to()), ..SendTo::default() }
}

/// Creates a socket of the first host, and its peer on the second.
fn udp((a, b): &(Host, Host)) -> (UdpSocket, UdpSocket) {
    let socket = UdpSocket::bind(a, SocketAddr::new(ip(1), 0)).unwrap();
    socket.set_send_mode(SendMode::Lend);
    (socket, UdpSocket::bind(b, to()).unwrap())
}

/// Creates a socket for frames to the second host, and one of that host.
fn packets((a, b): &(Host, Host)) -> (PacketSocket, PacketSocket, SendTo) {
    let [socket, peer] =
        [a, b].map(|host| PacketSocket::new(host, ETHERTYPE, FramePart::Payload).unwrap());
    let link = LinkDestination { address: Some(peer.local_addr()), protocol: ETHERTYPE };
    (socket, peer, SendTo { link: Some(link), ..SendTo::default() })
}

/// Returns the result of a receive, and checks that it is reported once.
fn finish(queue: &mut EventQueue, token: Token) -> ReceivedInto {
    assert_eq!(until_over(queue, token), []);
    assert_eq!(now(queue), []);
    let received = queue.take_datagram(token).unwrap();
    assert!(queue.take_datagram(token).is_none() && queue.is_empty());
    assert_eq!(errno(queue.cancel(token)), Errno::STALE);
    received
}

/// Returns the result of a receive without a copy, and checks that it is reported once.
fn finish_lent(queue: &mut EventQueue, token: Token) -> ReceivedLent {
    assert_eq!(until_over(queue, token), []);
    assert_eq!(now(queue), []);
    let received = queue.take_datagram_lent(token).unwrap();
    assert!(queue.take_datagram_lent(token).is_none() && queue.is_empty());
    received
}

fn bytes(pieces: &[ReceivedPiece]) -> Vec<u8> {
    pieces.iter().flat_map(|piece| piece.bytes().unwrap().to_vec()).collect()
}

/// Returns the events and the result of a send, and checks that its end is reported once.
fn finish_send(queue: &mut EventQueue, token: Token) -> (Vec<EventKind>, Done) {
    let reported = until_over(queue, token);
    assert_eq!(now(queue), []);
    let completed = queue.take_done(token).unwrap();
    assert!(queue.take(token).is_none() && queue.is_empty());
    (reported, completed)
}

fn reported(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts());
    let sender = RawSocket::bind(&hosts.0, ip(1), PROTOCOL).unwrap();
    let raw = RawSocket::bind(&hosts.1, ip(2), PROTOCOL).unwrap();
    let (packet_sender, packet, send) = packets(&hosts);
    for (socket, source) in [
        (None, Source::datagram(&raw, Interest::READ, Trigger::Level)),
        (Some(&packet), Source::datagram(&packet, Interest::READ, Trigger::Level)),
    ] {
        let token = queue.add(source, 0).unwrap();
        assert_eq!(now(&mut queue), []);
        match socket {
            None => sender.send_to(b"one", ip(2)).unwrap(),
            Some(_) => packet_sender.send_to(b"one", send.link.unwrap()).unwrap(),
        };
        for _ in 0..2 {
            assert!(ready(&mut queue, token).readable, "still ready, so reported again");
        }
        match socket {
            None => assert_eq!(raw.recv_from(&mut [0; 99]).unwrap(), (23, ip(1))),
            Some(packet) => assert_eq!(packet.recv_from(&mut [0; 99]).unwrap().len, 3),
        }
        assert_eq!(now(&mut queue), []);
        queue.modify(token, Interest::WRITE, Trigger::OneShot).unwrap();
        assert!(ready(&mut queue, token).writable);
        queue.remove(token).unwrap();
    }
}

/// Goal: frames that pass the filter are reported, and received in place.
fn sniffer(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts());
    let sniffer = hosts.1.sniffer(Some(bpf::compile("udp").unwrap())).unwrap();
    sniffer.set_nonblocking(true).unwrap();
    let token = queue.add(Source::sniffer(&sniffer, Trigger::Level), 0).unwrap();
    assert_eq!(now(&mut queue), []);
    let (socket, peer) = udp(&hosts);
    for len in [1000, 2000] {
        let sending = socket.send_zc_to(vec![5; len], to()).unwrap();
        assert_eq!(peer.recv(&mut [0; 3000]).unwrap(), len);
        let (mut headers, mut pieces) = (Vec::new(), Vec::new());
        let mut left = len + 28;
        while left > 0 {
            assert!(ready(&mut queue, token).readable);
            let reported = sniffer.recv_lent(&mut headers, &mut pieces).unwrap();
            // Later fragments have an IP header of their own.
            left = left.saturating_sub(reported.len - 14 - if left == len + 28 { 0 } else { 20 });
        }
        assert_eq!(now(&mut queue), []);
        assert!(!sending.is_returned(), "it is looked at");
        drop(pieces);
        assert!(!sending.returned_within(PATIENCE).unwrap().copied);
    }
    queue.remove(token).unwrap();
}

fn receive(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts());
    let (socket, peer) = udp(&hosts);
    let from = socket.local_addr().unwrap();
    // Including bad input: no bytes, no room, and more bytes than room.
    for (len, room) in [(5, 100), (0, 100), (5, 0), (100, 10)] {
        let token = queue.receive_datagram(&peer, vec![7; room], None, 9).unwrap();
        assert_eq!(now(&mut queue), []);
        assert_eq!(errno(queue.remove(token)), Errno::BUSY);
        assert!(queue.take_datagram(token).is_none());
        socket.send_to(&vec![1; len], to()).unwrap();
        let ReceivedInto { result, buffer, .. } = finish(&mut queue, token);
        let reported = result.unwrap();
        assert_eq!((reported.len, reported.copied, reported.from), (len, len.min(room), from));
        let expected = [vec![1; len.min(room)], vec![7; room - len.min(room)]].concat();
        assert_eq!(buffer, expected);
    }
    // A datagram that is already there.
    socket.send_to(b"there", to()).unwrap();
    let token = queue.receive_datagram(&peer, vec![0; 5], None, 9).unwrap();
    assert_eq!(finish(&mut queue, token).buffer, b"there");
}

fn receive_stopped(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts());
    let (socket, peer) = udp(&hosts);
    let token = queue.receive_datagram(&peer, vec![7; 10], None, 9).unwrap();
    assert_eq!(now(&mut queue), []);
    queue.cancel(token).unwrap();
    let cancelled = finish(&mut queue, token);
    assert_eq!((errno(cancelled.result), cancelled.buffer), (Errno::CANCELED, vec![7; 10]));
    let soon = Instant::now() + Duration::from_millis(5);
    let token = queue.receive_datagram(&peer, vec![7; 10], Some(soon), 9).unwrap();
    let late = finish(&mut queue, token);
    assert_eq!((errno(late.result), late.buffer), (Errno::TIMEDOUT, vec![7; 10]));
    assert!(Instant::now() >= soon);
    let token = queue.receive_datagram_lent(&peer, None, 9).unwrap();
    assert_eq!(now(&mut queue), []);
    queue.cancel(token).unwrap();
    assert_eq!(errno(finish_lent(&mut queue, token).result), Errno::CANCELED);
    let soon = Instant::now() + Duration::from_millis(5);
    let token = queue.receive_datagram_lent(&peer, Some(soon), 9).unwrap();
    assert_eq!(errno(finish_lent(&mut queue, token).result), Errno::TIMEDOUT);
    // None of these took a datagram.
    socket.send_to(b"here", to()).unwrap();
    assert_eq!(peer.recv(&mut [0; 9]).unwrap(), 4);
}

/// Goal: a datagram is received whole and in place, whatever number of fragments it arrived in, and
/// its memory goes back with the pieces. Including bad input: no bytes.
fn receive_lent(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts());
    let (socket, peer) = udp(&hosts);
    for len in [1200, 0, 4000] {
        let token = queue.receive_datagram_lent(&peer, None, 9).unwrap();
        assert_eq!(now(&mut queue), []);
        assert_eq!(errno(queue.remove(token)), Errno::BUSY);
        assert!(queue.take_datagram_lent(token).is_none());
        let sending = socket.send_zc_to(vec![5; len], to()).unwrap();
        let received = finish_lent(&mut queue, token);
        let reported = received.result.unwrap();
        assert_eq!((reported.len, reported.from), (len, socket.local_addr().unwrap()));
        assert_eq!((received.headers, bytes(&received.pieces)), (vec![], vec![5; len]));
        assert!(len == 0 || !sending.is_returned(), "it is looked at");
        drop(received.pieces);
        assert!(!sending.returned_within(PATIENCE).unwrap().copied);
    }
    // A packet begins with headers, not all of which are in pieces.
    let sender = RawSocket::bind(&hosts.0, ip(1), PROTOCOL).unwrap();
    let raw = RawSocket::bind(&hosts.1, ip(2), PROTOCOL).unwrap();
    let token = queue.receive_datagram_lent(&raw, None, 9).unwrap();
    assert_eq!(now(&mut queue), []);
    sender.send_to(&[5; 900], ip(2)).unwrap();
    let received = finish_lent(&mut queue, token);
    assert_eq!(received.result.unwrap().len, 920);
    let all = [received.headers, bytes(&received.pieces)].concat();
    assert_eq!((all[0], &all[20..]), (0x45, &[5; 900][..]));
}

/// Goal: if a call would fail because readers hold too many bytes, an operation waits until they
/// hold fewer, and nothing is lost; a cancel and a deadline still end it.
fn receive_lent_crowded(choice: Choice) {
    let config = |last| HostConfig {
        memory: 1 << 20,
        default_term: None,
        ..HostConfig::with_address([10, 0, 0, last], 24)
    };
    let hosts = Host::pair(&config(1), &config(2)).unwrap();
    let (mut queue, (socket, peer)) = (queue(choice), udp(&hosts));
    peer.set_options(|options| options.receive_buffer = Some(16 << 20)).unwrap();
    peer.set_nonblocking(true).unwrap();
    let (mut kept, mut sendings) = (Vec::new(), Vec::new());
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < deadline, "no ENOBUFS before the deadline");
        sendings.push(socket.send_zc_to(vec![7; 1400], to()).unwrap());
        match peer.recv_lent(&mut kept) {
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => break,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            Ok(reported) => assert_eq!(reported.len, 1400),
        }
    }
    let token = queue.receive_datagram_lent(&peer, None, 9).unwrap();
    assert_eq!(now(&mut queue), []);
    queue.cancel(token).unwrap();
    assert_eq!(errno(finish_lent(&mut queue, token).result), Errno::CANCELED);
    let due = Instant::now() + Duration::from_millis(20);
    let token = queue.receive_datagram_lent(&peer, Some(due), 9).unwrap();
    assert_eq!(errno(finish_lent(&mut queue, token).result), Errno::TIMEDOUT);
    let token = queue.receive_datagram_lent(&peer, None, 9).unwrap();
    assert_eq!(now(&mut queue), []);
    kept.clear();
    let received = finish_lent(&mut queue, token);
    assert_eq!(bytes(&received.pieces), [7; 1400]);
    drop(received);
    // Datagrams in a socket that is dropped are released.
    drop(peer);
    for sending in sendings {
        assert!(!sending.returned_within(PATIENCE).unwrap().copied);
    }
}

/// Goal: one datagram, and many datagrams in one buffer, are lent and come back.
fn send(choice: Choice) {
    const PART: usize = 1000;
    let (mut queue, hosts) = (queue(choice), hosts());
    let (socket, peer) = udp(&hosts);
    peer.set_options(|options| options.receive_buffer = Some(16 << 20)).unwrap();
    for parts in [1, 200] {
        let bytes: Vec<u8> = (0..parts * PART).map(|at| (at / PART + at) as u8).collect();
        let send = SendTo { segment_size: Some(PART as u16), ..to_peer() };
        let token = queue.send_datagrams(&socket, bytes.clone(), &send, None, 9).unwrap();
        let mut received = Vec::new();
        // Waits do the sending; their events are checked below.
        let mut reported = Vec::new();
        let end = Instant::now() + PATIENCE;
        while received.len() < bytes.len() {
            assert!(Instant::now() < end, "{} bytes", received.len());
            reported.extend(now(&mut queue).into_iter().map(|event| event.kind));
            let mut into = [0; PART + 1];
            peer.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
            if let Ok(count) = peer.recv(&mut into) {
                assert_eq!(count, PART);
                received.extend_from_slice(&into[..count]);
            }
        }
        assert!(received == bytes);
        while reported.last() != Some(&EventKind::Completed) {
            reported.push(one(&mut queue).kind);
        }
        assert_eq!(reported, [EventKind::Accepted { bytes: bytes.len() }, EventKind::Completed]);
        let completed = queue.take_done(token).unwrap();
        assert_eq!(completed.result.unwrap(), bytes.len());
        assert!(completed.buffer == bytes && !completed.copied);
    }
    assert!(queue.is_empty());
}

/// Goal: a peer that does not read cannot keep a buffer that is recalled or past its deadline.
fn send_stopped(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts());
    let (socket, peer) = udp(&hosts);
    let back = |queue: &mut EventQueue, token| {
        let (reported, completed) = finish_send(queue, token);
        assert_eq!((reported, completed.result.unwrap()), (vec![], 9000));
        assert!(completed.copied && completed.buffer == [5; 9000]);
        let mut into = vec![0; 9001];
        assert_eq!(peer.recv(&mut into).unwrap(), 9000);
        assert_eq!(into[..9000], [5; 9000]);
    };
    let sent = EventKind::Accepted { bytes: 9000 };
    let token = queue.send_datagrams(&socket, vec![5; 9000], &to_peer(), None, 9).unwrap();
    assert_eq!(one(&mut queue).kind, sent);
    assert_eq!(now(&mut queue), [], "the peer has it");
    queue.cancel(token).unwrap();
    back(&mut queue, token);
    // Repeated until a wait begins before the deadline, which cannot be guaranteed.
    for exponent in 4..15 {
        let due = Some(Instant::now() + Duration::from_millis(1 << exponent));
        let token = queue.send_datagrams(&socket, vec![5; 9000], &to_peer(), due, 9).unwrap();
        if one(&mut queue).kind == sent {
            return back(&mut queue, token);
        }
        assert_eq!(errno(queue.take_done(token).unwrap().result), Errno::TIMEDOUT);
    }
    panic!("each deadline has passed");
}

/// Goal: a send that finds no room to lend waits for it, and sends nothing once it was cancelled or
/// timed out.
fn send_waits(choice: Choice) {
    let config = |last| HostConfig {
        lent_by_all: 4096,
        default_term: None,
        ..HostConfig::with_address([10, 0, 0, last], 24)
    };
    let hosts = Host::pair(&config(1), &config(2)).unwrap();
    let mut queue = queue(choice);
    let (socket, peer) = udp(&hosts);
    let held = socket.send_zc_to(vec![4; 3000], to()).unwrap();
    for ask in [true, false] {
        let due = (!ask).then(|| Instant::now() + Duration::from_millis(5));
        let token = queue.send_datagrams(&socket, vec![6; 3000], &to_peer(), due, 9).unwrap();
        if ask {
            assert_eq!(now(&mut queue), []);
            queue.cancel(token).unwrap();
        }
        let (reported, completed) = finish_send(&mut queue, token);
        let why = if ask { Errno::CANCELED } else { Errno::TIMEDOUT };
        assert_eq!((reported, errno(completed.result)), (vec![], why));
        assert_eq!(completed.buffer, [6; 3000]);
    }
    let token = queue.send_datagrams(&socket, vec![5; 3000], &to_peer(), None, 9).unwrap();
    assert_eq!(now(&mut queue), []);
    let mut into = vec![0; 9000];
    assert_eq!((peer.recv(&mut into).unwrap(), into[0]), (3000, 4));
    held.returned_within(PATIENCE).unwrap();
    assert_eq!(one(&mut queue).kind, EventKind::Accepted { bytes: 3000 });
    assert_eq!((peer.recv(&mut into).unwrap(), into[0]), (3000, 5));
    let (reported, completed) = finish_send(&mut queue, token);
    assert_eq!((reported, completed.result.unwrap(), completed.copied), (vec![], 3000, false));
}

fn raw_and_packet(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts());
    let socket = RawSocket::bind(&hosts.0, ip(1), PROTOCOL).unwrap();
    let peer = RawSocket::bind(&hosts.1, ip(2), PROTOCOL).unwrap();
    let (packet_socket, packet_peer, frame) = packets(&hosts);
    let packet = SendTo { to: Some(SocketAddr::new(ip(2), 0)), ..SendTo::default() };
    let pairs: [(DatagramSocket, DatagramSocket, SendTo, usize); 2] = [
        ((&socket).into(), (&peer).into(), packet, 20),
        ((&packet_socket).into(), (&packet_peer).into(), frame, 0),
    ];
    socket.set_send_mode(SendMode::Lend);
    packet_socket.set_send_mode(SendMode::Lend);
    for (socket, peer, send, header) in pairs {
        let sent = queue.send_datagrams(&socket, vec![3; 1200], &send, None, 9).unwrap();
        assert_eq!(one(&mut queue).kind, EventKind::Accepted { bytes: 1200 });
        let token = queue.receive_datagram(&peer, vec![0; 2000], None, 8).unwrap();
        // Both may be reported together.
        let mut over = Vec::new();
        while over.len() < 2 {
            for event in wait(&mut queue) {
                assert_eq!(event.kind, EventKind::Completed);
                over.push(event.token);
            }
        }
        assert!(over.contains(&sent) && over.contains(&token));
        let received = queue.take_datagram(token).unwrap();
        let reported = received.result.unwrap();
        assert_eq!(reported.len, header + 1200);
        assert_eq!(reported.link.map(|link| link.kind), (header == 0).then_some(FrameKind::Host));
        assert!(received.buffer[header..header + 1200] == [3; 1200]);
        let completed = queue.take_done(sent).unwrap();
        assert!(!completed.copied && completed.buffer == [3; 1200]);
        assert!(queue.is_empty());
    }
}

/// Bad input: too long, no destination, and a destination of an unsupported family.
fn send_fails(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts());
    let (socket, _peer) = udp(&hosts);
    let v6 = SendTo { to: Some("[fd00::2]:53".parse().unwrap()), ..SendTo::default() };
    for (len, send) in [(70_000, to_peer()), (100, SendTo::default()), (100, v6)] {
        let expected = socket.send_zc_with(vec![1; len], &send).unwrap_err().error;
        let token = queue.send_datagrams(&socket, vec![1; len], &send, None, 9).unwrap();
        let (reported, completed) = finish_send(&mut queue, token);
        assert_eq!(reported, []);
        assert_eq!(completed.result.unwrap_err().raw_os_error(), expected.raw_os_error());
        assert_eq!(completed.buffer, vec![1; len]);
    }
}

fn full(choice: Choice) {
    let mut queue = EventQueue::with(&Config { registrations: 1, ..config(choice) }).unwrap();
    let hosts = hosts();
    let (socket, peer) = udp(&hosts);
    queue.add(Source::user(), 0).unwrap();
    let refused = queue.receive_datagram(&peer, vec![7; 10], None, 9).unwrap_err();
    assert_eq!((errno::<()>(Err(refused.error)), refused.buffer), (Errno::NOSPC, vec![7; 10]));
    assert_eq!(errno(queue.receive_datagram_lent(&peer, None, 9)), Errno::NOSPC);
    let refused = queue.send_datagrams(&socket, vec![7; 10], &to_peer(), None, 9).unwrap_err();
    assert_eq!((errno::<()>(Err(refused.error)), refused.buffer), (Errno::NOSPC, vec![7; 10]));
    socket.send_to(b"first", to()).unwrap();
    assert_eq!(peer.recv(&mut [0; 99]).unwrap(), 5, "nothing was sent before");
}

/// Goal: a dropped queue sends nothing more, and what it has sent arrives.
fn dropped(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts());
    let (socket, peer) = udp(&hosts);
    queue.receive_datagram(&peer, vec![0; 100], None, 9).unwrap();
    queue.receive_datagram_lent(&peer, None, 9).unwrap();
    queue.send_datagrams(&socket, vec![1; 100], &to_peer(), None, 9).unwrap();
    drop(queue);
    let mut queue = self::queue(choice);
    let token = queue.send_datagrams(&socket, vec![2; 900], &to_peer(), None, 9).unwrap();
    let event = one(&mut queue);
    assert_eq!((event.token, event.kind), (token, EventKind::Accepted { bytes: 900 }));
    drop(queue);
    let mut into = [0; 999];
    assert_eq!((peer.recv(&mut into).unwrap(), into[0]), (900, 2), "no wait has begun the first");
}
