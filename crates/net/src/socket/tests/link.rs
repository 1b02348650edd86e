//! Packet sockets: received frames, sent frames, and bounds.

use super::bench::*;
use super::datagram::data;
use crate::bpf::{Instruction, Program};
use crate::counters::DropReason;
use crate::socket::{
    Borrower, DATAGRAMS_MAX, Error, Family, FrameKind, LinkDestination, Notice, PacketOptions,
    ReadMost, SendTo, SocketId,
};
use crate::wire::MacAddr;
use crate::wire::ethernet::EtherType;
use alloc::vec::Vec;
use core::net::SocketAddr;
use towpath_packet::{Loans, Site};

/// EtherType for experiments (IEEE 802 local experimental).
const OTHER: EtherType = EtherType(0x88b5);

fn mac(host: usize) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, host as u8 + 1])
}

/// A frame from the client with its header.
fn frame(to: MacAddr, protocol: EtherType, payload: &[u8]) -> Vec<u8> {
    [&to.0[..], &mac(CLIENT).0, &protocol.0.to_be_bytes(), payload].concat()
}

impl Bench {
    fn packets(&mut self, host: usize, protocol: EtherType, payload_only: bool) -> SocketId {
        self.hosts[host].packet_socket(protocol, payload_only).expect("room")
    }

    fn send_frame(&mut self, id: SocketId, bytes: &[u8], to: SendTo) -> Result<usize, Error> {
        self.with(CLIENT, |host, cx| host.send_datagram(id, &[bytes], &to, cx))
    }
}

/// Sends to the link, without a destination address.
fn whole() -> SendTo {
    to(None, PacketOptions::NONE)
}

fn to(address: Option<MacAddr>, protocol: EtherType) -> SendTo {
    SendTo { link: Some(LinkDestination { address, protocol }), ..SendTo::default() }
}

/// Goal: whole frames and payloads arrive at each socket with a matching protocol, with their
/// metadata; receiving copies nothing.
#[test]
fn frames_go_to_all_subscribers() {
    let mut b = Bench::new();
    let all = b.packets(SERVER, PacketOptions::ALL, false);
    let payload = b.packets(SERVER, OTHER, true);
    let elsewhere = b.packets(SERVER, EtherType(0x88b6), false);
    let silent = b.packets(SERVER, PacketOptions::NONE, false);
    let client = b.packets(CLIENT, PacketOptions::ALL, false);
    let watcher = b.packets(CLIENT, PacketOptions::ALL, false);
    let kinds = [
        (mac(SERVER), FrameKind::Host),
        (MacAddr::BROADCAST, FrameKind::Broadcast),
        (MacAddr([1, 0, 0x5e, 0, 0, 1]), FrameKind::Multicast),
        (MacAddr([2, 9, 9, 9, 9, 9]), FrameKind::OtherHost),
    ];
    for (address, kind) in kinds {
        for len in [0, 1, 400, 1500] {
            let sent = frame(address, OTHER, &data(len));
            assert_eq!(b.send_frame(client, &sent, whole()), Ok(sent.len()));
            b.settle();
            let (bytes, received) = b.take(SERVER, all).expect("a frame");
            let source = received.link.expect("a source");
            assert_eq!((bytes, source.kind, source.protocol), (sent.clone(), kind, OTHER));
            assert_eq!((source.address, received.len), (mac(CLIENT), 14 + len));
            assert_eq!(b.take(SERVER, payload).expect("a payload").0, data(len));
            // Other sockets see what a socket sends; the socket itself does not.
            let (bytes, received) = b.take(CLIENT, watcher).expect("it left");
            let kind = received.link.map(|source| source.kind);
            assert_eq!((bytes, kind), (sent, Some(FrameKind::Outgoing)));
        }
    }
    for (host, id) in [(SERVER, elsewhere), (SERVER, silent), (CLIENT, client)] {
        assert!(b.take(host, id).is_err());
    }
    assert_eq!(b.hosts[SERVER].take_packet_statistics(all), Ok((16, 0)));
    assert_eq!(b.hosts[SERVER].take_packet_statistics(all), Ok((0, 0)));
    assert_eq!(b.in_use(), 0);
}

/// Goal: packets that the stack sends go to sockets for all protocols, unless they ignore outgoing
/// frames, and not to sockets for one protocol. When the last socket is closed, no frames are kept.
#[test]
fn what_leaves_is_seen() {
    let mut b = Bench::new();
    let server = b.bound(at(53));
    let client = b.datagram(CLIENT, Family::V4);
    let all = b.packets(CLIENT, PacketOptions::ALL, true);
    let one = b.packets(CLIENT, EtherType::IPV4, false);
    let ignores = b.packets(CLIENT, PacketOptions::ALL, false);
    b.hosts[CLIENT].set_packet_options(ignores, |own| own.ignore_outgoing = true).expect("own");
    assert_eq!(b.send_to(CLIENT, client, b"query", at(53)), Ok(5));
    b.settle();
    let (bytes, received) = b.take(CLIENT, all).expect("it left");
    let source = received.link.expect("a source");
    assert_eq!((bytes[0], &bytes[28..], bytes.len()), (0x45, &b"query"[..], 33));
    assert_eq!((source.kind, source.protocol), (FrameKind::Outgoing, EtherType::IPV4));
    assert_eq!(source.address, mac(CLIENT));
    assert!(b.take(CLIENT, one).is_err() && b.take(CLIENT, ignores).is_err());
    let (_, received) = b.take(SERVER, server).expect("a datagram");
    assert_eq!(b.send_to(SERVER, server, b"answer", received.from), Ok(6));
    b.settle();
    for (id, len) in [(all, 34), (one, 48), (ignores, 48)] {
        let (bytes, received) = b.take(CLIENT, id).expect("it came");
        assert_eq!((bytes.len(), received.link.map(|s| s.kind)), (len, Some(FrameKind::Host)));
    }
    assert!(b.take(CLIENT, client).is_ok(), "the stack took it too");
    for id in [all, one, ignores] {
        b.hosts[CLIENT].close(id, b.now).expect("open socket");
    }
    assert_eq!(b.send_to(CLIENT, client, b"query", at(53)), Ok(5));
    b.settle();
    assert!(b.take(SERVER, server).is_ok());
    assert_eq!(b.in_use(), 0);
}

/// Goal: the header is made of the destination and the local address. Data that is too short, too
/// long or has no destination is rejected and nothing is sent.
#[test]
fn frames_are_made_and_checked() {
    let mut b = Bench::new();
    let server = b.packets(SERVER, PacketOptions::ALL, false);
    let payload = b.packets(CLIENT, OTHER, true);
    let raw = b.packets(CLIENT, OTHER, false);
    assert_eq!(b.send_frame(payload, &data(100), to(Some(mac(SERVER)), OTHER)), Ok(100));
    b.settle();
    let (bytes, _) = b.take(SERVER, server).expect("a frame");
    assert_eq!(bytes, frame(mac(SERVER), OTHER, &data(100)));
    let tagged = frame(mac(SERVER), EtherType::VLAN, &data(1504));
    assert_eq!(b.send_frame(raw, &tagged, whole()), Ok(1518));
    let wrong = [
        (raw, 13, whole(), Error::Invalid),
        (raw, 0, whole(), Error::Invalid),
        (raw, 1515, whole(), Error::MessageSize),
        (raw, 1519, whole(), Error::MessageSize),
        (raw, 70_000, whole(), Error::MessageSize),
        (raw, 60, SendTo::default(), Error::DestinationRequired),
        (payload, 1501, to(Some(mac(SERVER)), OTHER), Error::MessageSize),
        (payload, 10, to(None, OTHER), Error::Invalid),
    ];
    b.settle();
    assert!(b.take(SERVER, server).is_ok());
    for (id, len, to, error) in wrong {
        assert_eq!(b.send_frame(id, &data(len), to), Err(error), "{len}");
    }
    b.hosts[CLIENT].set_packet_options(raw, |own| own.bound = true).expect("own");
    let bound = frame(mac(SERVER), OTHER, b"x");
    assert_eq!(b.send_frame(raw, &bound, SendTo::default()), Ok(15));
    b.settle();
    assert_eq!(b.take(SERVER, server).expect("a frame").0, bound);
    assert!(b.take(SERVER, server).is_err());
    let now = b.now;
    let host = &mut b.hosts[CLIENT];
    assert_eq!(host.bind(raw, at(0)), Err(Error::NotSupported));
    assert_eq!(host.connect(raw, at(1), now), Err(Error::NotSupported));
    assert_eq!(host.disconnect(raw, now), Err(Error::NotSupported));
    let udp = b.datagram(CLIENT, Family::V4);
    let none = b.hosts[CLIENT].set_packet_options(udp, |_| ());
    assert_eq!((none, b.in_use()), (Err(Error::NotSupported), 0));
}

/// Goal: lent frames are not copied, except the header of a whole frame. The call is reported when
/// the sockets that watch have read the frame too.
#[test]
fn frames_are_lent() {
    for payload_only in [false, true] {
        let mut b = Bench::new();
        let server = b.packets(SERVER, OTHER, true);
        let client = b.packets(CLIENT, OTHER, payload_only);
        let watcher = b.packets(CLIENT, PacketOptions::ALL, payload_only);
        let mut loans = Loans::new(4);
        let bytes = if payload_only { data(900) } else { frame(mac(SERVER), OTHER, &data(900)) };
        let memory = alloc::sync::Arc::new(bytes.clone());
        let to = if payload_only { to(Some(mac(SERVER)), OTHER) } else { whole() };
        let sent = b.with(CLIENT, |host, cx| {
            let lend = |room: usize, by: Borrower| {
                loans.lend_shared(&memory, (0, room as u32), by.lender, by.token)
            };
            host.send_lent_datagram(client, bytes.len(), &to, lend, cx)
        });
        assert_eq!(sent, Ok(bytes.len()));
        b.settle();
        assert_eq!(b.take(SERVER, server).expect("a frame").0, data(900));
        assert_eq!(b.hosts[CLIENT].take_notice(client), Err(Error::WouldBlock));
        assert_eq!(b.take(CLIENT, watcher).expect("it left").0, bytes);
        b.settle();
        let notice = Notice::Lent { first: 0, last: 0, copied: false };
        assert_eq!(b.hosts[CLIENT].take_notice(client), Ok(notice));
        assert_eq!((b.copied_at(Site::SocketSend), loans.out_count()), (0, 0));
    }
}

/// Goal: an unread socket is bounded, its drops are counted, and the stack drops nothing because of
/// it.
#[test]
fn unread_frames_are_bounded() {
    let mut b = Bench::new();
    let server = b.bound(SocketAddr::new(v4(SERVER), 53));
    let watcher = b.packets(SERVER, PacketOptions::ALL, false);
    let client = b.datagram(CLIENT, Family::V4);
    for _ in 0..DATAGRAMS_MAX + 10 {
        assert_eq!(b.send_to(CLIENT, client, b"x", at(53)), Ok(1));
        b.settle();
        assert!(b.take(SERVER, server).is_ok());
    }
    let mut got = 0;
    while b.take(SERVER, watcher).is_ok() {
        got += 1;
    }
    let all = DATAGRAMS_MAX as u32 + 10;
    let received = b.hosts[SERVER].take_packet_statistics(watcher);
    assert!(got > 50 && got <= DATAGRAMS_MAX as u32, "{got}");
    assert_eq!(received, Ok((all, all - got)));
    assert_eq!(b.in_use(), 0);
}

/// Goal: the send buffer fills until the device takes the frames, and frames too short for a header
/// are dropped.
#[test]
fn what_is_made_is_bounded_and_runts_are_dropped() {
    let mut b = Bench::new();
    let client = b.packets(CLIENT, PacketOptions::NONE, false);
    let bytes = frame(mac(SERVER), OTHER, &data(1000));
    let mut sent = 0;
    while b.send_frame(client, &bytes, whole()).is_ok() {
        sent += 1;
        assert!(sent < 1000, "no bound");
    }
    assert_eq!(b.send_frame(client, &bytes, whole()), Err(Error::WouldBlock));
    let server = b.packets(SERVER, PacketOptions::ALL, false);
    b.settle();
    let lost = b.hosts[SERVER].dropped_datagrams(server).expect("open socket");
    let mut got = 0;
    while b.take(SERVER, server).is_ok() {
        got += 1;
    }
    assert_eq!((got + lost, b.in_use()), (sent, 0));
    b.damage = Some(|bytes, _| bytes.truncate(13));
    assert_eq!(b.send_frame(client, &bytes, whole()), Ok(bytes.len()));
    b.settle();
    assert!(b.take(SERVER, server).is_err());
    let dropped = b.hosts[SERVER].stack().counters().dropped(DropReason::EthernetMalformed);
    assert_eq!((dropped, b.in_use()), (1, 0));
}

/// Goal: a filter sees what the socket would read, and truncates it. Rejected frames are neither
/// kept nor counted. Whole frames are received without a copy, with separate headers. Also: other
/// kinds of sockets, and reading from an empty queue.
#[test]
fn filters_say_how_much_of_a_frame_is_wanted() {
    let mut b = Bench::new();
    let client = b.packets(CLIENT, OTHER, false);
    let payload = b.packets(SERVER, OTHER, true);
    let whole_frames = b.packets(SERVER, PacketOptions::ALL, false);
    // Accepts one byte if the first byte is 1.
    let load = |code: u16, jt: u8, jf: u8, k: u32| Instruction { code, jt, jf, k };
    let first = [load(0x30, 0, 0, 0), load(0x15, 0, 1, 1), load(6, 0, 0, 1), load(6, 0, 0, 0)];
    let first = Program::new(first.to_vec()).expect("a program");
    // Accepts all of a frame that is longer than 499 bytes.
    let greater = [load(0x80, 0, 0, 0), load(0x25, 0, 1, 499), load(6, 0, 0, !0), load(6, 0, 0, 0)];
    let greater = Program::new(greater.to_vec()).expect("a program");
    b.hosts[SERVER].set_packet_filter(payload, Some(first)).expect("its own");
    b.hosts[SERVER].set_packet_filter(whole_frames, Some(greater)).expect("its own");
    for (begin, len, is_first, is_greater) in
        [(1, 400, true, false), (2, 1500, false, true), (1, 1500, true, true), (1, 1, true, false)]
    {
        let mut bytes = data(len);
        bytes[0] = begin;
        let sent = frame(mac(SERVER), OTHER, &bytes);
        assert_eq!(b.send_frame(client, &sent, whole()), Ok(sent.len()));
        b.settle();
        let got = b.take(SERVER, payload).map(|(bytes, _)| bytes);
        assert_eq!(got, if is_first { Ok(alloc::vec![1]) } else { Err(Error::WouldBlock) });
        let (mut headers, mut pieces) = (Vec::new(), Vec::new());
        let most = ReadMost { bytes: usize::MAX, pieces: 18, private: true };
        let received = b.with(SERVER, |host, cx| {
            host.receive_frame_lent(whole_frames, &most, (&mut headers, &mut pieces), cx)
        });
        if !is_greater {
            assert_eq!((received, headers.len()), (Err(Error::WouldBlock), 0));
            continue;
        }
        for piece in &pieces {
            headers.extend_from_slice(&piece.bytes().expect("private"));
        }
        assert_eq!((received.expect("a frame").len, headers), (sent.len(), sent));
    }
    assert_eq!(b.hosts[SERVER].take_packet_statistics(payload), Ok((3, 0)));
    assert_eq!(b.hosts[SERVER].take_packet_statistics(whole_frames), Ok((2, 0)));
    assert_eq!(b.copied_at(Site::SocketReceive), 3, "one byte of each payload");
    let udp = b.datagram(CLIENT, Family::V4);
    let refused = b.hosts[CLIENT].set_packet_filter(udp, None);
    assert_eq!((refused, b.in_use()), (Err(Error::NotSupported), 0));
}
