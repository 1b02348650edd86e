//! TCP through the stack: listeners, resets, offloads, coalescing, bounds, TIME-WAIT, ICMP errors
//! about connections, calls of the owner.

use super::bench::{
    Bench, FAMILIES, FAR4, FAR6, OURS4, Out, PEER4, PEER6, able, config, icmp, ip, segment,
};
use super::udp::count_idents;
use crate::counters::DropReason;
use crate::stack::{ConnectError, Limits, TcpHandle, Unreachable};
use crate::tcp::{CHALLENGES_UNLIMITED, ConnectionError, Events, State};
use crate::time::Duration;
use crate::wire::Protocol;
use crate::wire::tcp::{Flags, Options};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use towpath_packet::{Caps, Checksum};

pub(super) const NONE: Options = Options {
    mss: None,
    window_scale: None,
    sack_permitted: false,
    sack: [(0, 0); 4],
    sack_count: 0,
    timestamps: None,
    fast_open: None,
    md5: false,
};
const ACK: Flags = Flags::ACK;

/// A connection that the peer opened, seen from both sides.
struct Open {
    local: SocketAddr,
    remote: SocketAddr,
    handle: TcpHandle,
    /// Next sequence number of the peer, and ours.
    seq: u32,
    ack: u32,
}

impl Open {
    fn segment(&self, flags: Flags, data: &[u8]) -> Vec<u8> {
        segment(self.remote, self.local, flags, (self.seq, self.ack), &NONE, data)
    }
}

fn endpoints(ours: IpAddr, peer: IpAddr) -> (SocketAddr, SocketAddr) {
    (SocketAddr::new(ours, 80), SocketAddr::new(peer, 999))
}

fn syn(remote: SocketAddr, local: SocketAddr, seq: u32) -> Vec<u8> {
    let options = Options { mss: Some(1000), ..NONE };
    segment(remote, local, Flags::SYN, (seq, 0), &options, b"")
}

/// The peer opens a connection.
fn open(b: &mut Bench, local: SocketAddr, remote: SocketAddr) -> Open {
    b.stack.tcp_listen(local);
    let (answer, _) = b.input(&syn(remote, local, 100)).one().tcp();
    assert_eq!(answer.flags, Flags::SYN | ACK);
    assert_eq!(b.stack.next_event(), None, "a request is not reported");
    let ack = answer.sequence.wrapping_add(1);
    b.input(&segment(remote, local, ACK, (101, ack), &NONE, b"")).quiet();
    let (handle, events) = b.stack.next_event().expect("a connection");
    assert_eq!(events, Events::INCOMING | Events::ESTABLISHED | Events::WRITABLE);
    Open { local, remote, handle, seq: 101, ack }
}

pub(super) fn write(b: &mut Bench, handle: TcpHandle, data: &[u8]) {
    let mut packet = b.packet(data);
    let now = b.now;
    b.stack.with_tcp(handle, now, |connection| {
        packet.take_pieces().for_each(|piece| connection.send(piece));
    });
}

fn data(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 7 % 251) as u8).collect()
}

/// RFC 9293 §3.10.7.1: without a listener a SYN is reset, with the numbers that the peer expects.
#[test]
fn a_port_without_a_listener_refuses() {
    for (ours, peer) in FAMILIES {
        let mut b = Bench::host(Caps::plain(1500));
        let (local, remote) = endpoints(ours, peer);
        let out = b.input(&syn(remote, local, 100)).one();
        let (header, _) = out.tcp();
        assert!(out.is_sound());
        assert_eq!((header.flags, header.sequence), (Flags::RST | ACK, 0));
        assert_eq!(header.acknowledgment, 101);
        let (header, _) = b.input(&segment(remote, local, ACK, (7, 9), &NONE, b"x")).one().tcp();
        assert_eq!((header.flags, header.sequence), (Flags::RST, 9));
        b.input(&segment(remote, local, Flags::RST, (7, 9), &NONE, b"")).quiet();
        b.dropped(&[(DropReason::TcpNoConnection, 3)]);
        b.assert_clean();
    }
}

/// Data for a device without offloads is segmented and checksummed; for others it is left as it is.
#[test]
fn devices_get_what_they_take() {
    for (ours, peer) in FAMILIES {
        for caps in [able(), Caps::plain(1500), Caps { checksum: true, ..Caps::plain(1500) }] {
            let mut b = Bench::host(caps);
            let (local, remote) = endpoints(ours, peer);
            let open = open(&mut b, local, remote);
            write(&mut b, open.handle, &data(9500));
            let out = b.output();
            // Half of the window of ten segments per packet.
            assert_eq!(out.len(), if caps.tso4 { 2 } else { 10 });
            let whole: Vec<u8> = out.iter().flat_map(|out| out.data().to_vec()).collect();
            assert_eq!(whole, data(9500));
            let partial = |out: &Out| matches!(out.offload.checksum, Checksum::Partial { .. });
            assert!(out.iter().all(|out| partial(out) == caps.checksum));
            assert!(out.iter().all(|out| caps.checksum || out.is_sound()));
            b.dropped(&[]);
            assert_eq!(b.ledger.copied(), 0);
        }
    }
}

/// A burst of segments becomes one super-packet for the connection: one ACK, the same bytes.
#[test]
fn bursts_are_coalesced() {
    for (ours, peer) in FAMILIES {
        let (local, remote) = endpoints(ours, peer);
        let mut b = Bench::host(Caps::plain(1500));
        let mut open = open(&mut b, local, remote);
        let stream = data(20_000);
        let mut frames = Vec::new();
        for part in stream.chunks(1000) {
            frames.push(open.segment(ACK, part));
            open.seq += 1000;
        }
        if ours.is_ipv4() {
            count_idents(&mut frames);
        }
        let burst: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
        let (header, _) = b.input_burst(&burst).one().tcp();
        assert_eq!(header.acknowledgment, open.seq);
        assert_eq!(b.stack.next_event(), Some((open.handle, Events::READABLE)));
        assert_eq!(b.stack.next_event(), None);
        let connection = b.stack.tcp(open.handle).expect("there");
        let received: Vec<u8> =
            connection.received().flat_map(|p| p.bytes().expect("private").to_vec()).collect();
        assert_eq!(received, stream);
        let now = b.now;
        b.stack.with_tcp(open.handle, now, |connection| connection.abort());
        b.stack.with_tcp(open.handle, now, |connection| connection.consume(20_000));
        b.stack.tcp_release(open.handle, now);
        assert_eq!(b.one().tcp().0.flags, Flags::RST | ACK);
        b.dropped(&[]);
        b.assert_clean();
    }
}

/// An outgoing connection: SYN, answer; the endpoints are in use until it is released.
#[test]
fn connecting() {
    for (ours, peer) in FAMILIES {
        let mut b = Bench::host(able());
        let (local, remote) = endpoints(ours, peer);
        let handle = b.stack.tcp_connect(local, remote, b.now).expect("free");
        assert_eq!(b.stack.tcp_connect(local, remote, b.now), Err(ConnectError::InUse));
        let (header, options) = b.one().tcp();
        assert_eq!(header.flags, Flags::SYN);
        assert_eq!(options.mss, Some(if ours.is_ipv4() { 1460 } else { 1440 }));
        let ack = header.sequence.wrapping_add(1);
        b.input(&segment(remote, local, Flags::RST | ACK, (0, ack), &NONE, b"")).quiet();
        let (_, events) = b.stack.next_event().expect("the end");
        assert!(events.contains(Events::CLOSED));
        let error = b.stack.tcp(handle).expect("not yet released").error();
        assert_eq!(error, Some(ConnectionError::Refused));
        b.stack.tcp_release(handle, b.now);
        assert!(b.stack.tcp(handle).is_none());
        assert_eq!(b.stack.tcp_counts(), (0, 0));
        b.assert_clean();
    }
}

fn limited(limits: Limits) -> Bench {
    let mut b = Bench::with(crate::stack::Config { limits, ..config(false) }, Caps::plain(1500));
    b.stack.set_neighbor(PEER4, super::bench::PEER_MAC);
    b
}

/// A flood of SYNs evicts the oldest half-open connections and nothing else.
#[test]
fn syn_floods_are_bounded() {
    let mut b = limited(Limits { half_open: 16, ..Limits::default() });
    let (local, remote) = endpoints(OURS4, PEER4);
    let first = open(&mut b, local, remote);
    for port in 1000..6000 {
        b.input(&syn(SocketAddr::new(PEER4, port), local, 1));
        assert_eq!(b.one().tcp().0.flags, Flags::SYN | ACK, "never a reset");
        while let Some((handle, events)) = b.stack.next_event() {
            if events.contains(Events::CLOSED) {
                b.stack.tcp_release(handle, b.now);
            }
        }
        assert!(b.stack.tcp_counts().0 <= 17);
    }
    b.dropped(&[(DropReason::TcpHalfOpenEvicted, 5000 - 16)]);
    // One of the last can still complete; the first connection still works.
    let late = SocketAddr::new(PEER4, 5999);
    let (answer, _) = b.input(&syn(late, local, 1)).one().tcp();
    b.input(&segment(late, local, ACK, (2, answer.sequence.wrapping_add(1)), &NONE, b""));
    let (handle, events) = b.stack.next_event().expect("open");
    assert!(events.contains(Events::ESTABLISHED));
    assert_eq!(b.stack.tcp(handle).expect("there").state(), State::Established);
    write(&mut b, first.handle, b"hello");
    assert_eq!(b.one().data(), b"hello");
}

/// Goal: after the limit was lowered, each SYN brings the number of half-open connections one
/// closer to it; at a limit of none, each is still answered.
#[test]
fn a_lowered_limit_is_reached_step_by_step() {
    let mut b = limited(Limits { half_open: 16, ..Limits::default() });
    let (local, _) = endpoints(OURS4, PEER4);
    b.stack.tcp_listen(local);
    let come = |b: &mut Bench, ports: core::ops::Range<u16>| {
        for port in ports {
            b.input(&syn(SocketAddr::new(PEER4, port), local, 1));
            assert_eq!(b.one().tcp().0.flags, Flags::SYN | ACK);
        }
        b.stack.tcp_half_open_count()
    };
    assert_eq!(come(&mut b, 1000..1016), 16);
    b.stack.set_half_open_max(10);
    assert_eq!(come(&mut b, 1016..1019), 13);
    assert_eq!(come(&mut b, 1019..1030), 10);
    b.stack.set_half_open_max(0);
    assert_eq!(come(&mut b, 1030..1050), 1);
    b.dropped(&[(DropReason::TcpHalfOpenEvicted, 50 - 1)]);
}

/// Goal: a switch port that floods SYNs evicts its own half-open connections only.
#[test]
fn syn_floods_of_a_port_displace_its_own() {
    let limits = Limits { half_open: 16, ..Limits::default() };
    let mut b = Bench::with(crate::stack::Config { limits, ..config(true) }, Caps::plain(1500));
    let far = SocketAddr::new("198.51.100.1".parse().expect("an address"), 80);
    let quiet = SocketAddr::new(PEER4, 999);
    b.input_by(2, &syn(quiet, far, 1));
    let (waiting, events) = b.stack.next_event().expect("an event for the owner");
    assert!(events.contains(Events::INCOMING));
    for port in 1000..2000 {
        b.input_by(1, &syn(SocketAddr::new(PEER4, port), far, 1));
        while let Some((handle, events)) = b.stack.next_event() {
            if events.contains(Events::CLOSED) {
                b.stack.tcp_release(handle, b.now);
            }
        }
    }
    assert_eq!(b.stack.tcp_counts().0, 16);
    let connection = b.stack.tcp(waiting).expect("not evicted");
    assert_eq!((connection.remote(), connection.state()), (quiet, State::SynReceived));
    b.dropped(&[(DropReason::TcpHalfOpenEvicted, 1000 - 15)]);
}

/// Goal: a guest that floods segments of no connection is sent a limited number of resets. Other
/// guests get theirs, and so does the flooding one for a connection that is refused, and in the
/// next second.
#[test]
fn floods_of_stray_segments_are_answered_at_a_limited_rate() {
    const FLOOD: u64 = 10_000;
    for (peer, far) in [(PEER4, FAR4), (PEER6, FAR6)] {
        let mut b = Bench::transparent(Caps::plain(1500));
        let (far, peer) = (SocketAddr::new(far, 80), SocketAddr::new(peer, 999));
        let stray = segment(peer, far, ACK, (7, 9), &NONE, b"");
        let answer_to = |b: &mut Bench, port| b.input_by(port, &stray).one().tcp().0.flags;
        let answers = (0..FLOOD).map(|_| b.input_by(1, &stray).output().len() as u64);
        let sent: u64 = answers.sum();
        assert!((4096..8192).contains(&sent), "{sent}");
        let drops = [DropReason::TcpNoConnection, DropReason::TcpResetLimited];
        b.dropped(&[(drops[0], FLOOD), (drops[1], FLOOD - sent)]);
        assert_eq!(answer_to(&mut b, 2), Flags::RST);
        b.input_by(1, &syn(peer, far, 100)).quiet();
        let (handle, _) = b.stack.next_event().expect("an event for the owner");
        b.with_context(|stack, cx| stack.tcp_refuse(handle, cx));
        assert_eq!(b.one().tcp().0.flags, Flags::RST | ACK);
        b.wait(Duration::from_secs(1));
        assert_eq!(answer_to(&mut b, 1), Flags::RST);
        b.assert_clean();
    }
}

/// Goal: a port that opens as many connections as it can leaves places for other ports.
#[test]
fn a_port_leaves_places_to_others() {
    const PLACES: usize = 90;
    let limits = Limits { connections: PLACES, ..Limits::default() };
    let mut b = Bench::with(crate::stack::Config { limits, ..config(true) }, Caps::plain(1500));
    let far = SocketAddr::new("198.51.100.1".parse().expect("an address"), 80);
    for port in 0..PLACES as u16 {
        b.input_by(1, &syn(SocketAddr::new(PEER4, 1000 + port), far, 1));
    }
    assert_eq!(b.stack.tcp_counts().0, PLACES * 8 / 9);
    for port in 0..PLACES as u16 {
        b.input_by(2, &syn(SocketAddr::new(PEER4, 2000 + port), far, 1));
    }
    assert!((PLACES - 2..PLACES).contains(&b.stack.tcp_counts().0));
    b.input_by(3, &syn(SocketAddr::new(PEER4, 3000), far, 1));
    assert!(b.stack.tcp_counts().0 <= PLACES);
}

/// At the limit of connections a SYN is dropped without an answer, and its sender retransmits.
#[test]
fn connections_are_bounded() {
    let mut b = limited(Limits { connections: 3, ..Limits::default() });
    let (local, _) = endpoints(OURS4, PEER4);
    b.stack.tcp_listen(local);
    for port in 0..5 {
        b.input(&syn(SocketAddr::new(PEER4, 1000 + port), local, 1));
    }
    assert_eq!(b.output().len(), 3);
    b.dropped(&[(DropReason::TcpConnectionLimit, 2)]);
    let far = SocketAddr::new(PEER4, 9);
    assert_eq!(b.stack.tcp_connect(local, far, b.now), Err(ConnectError::Limit));
}

/// Closes an open connection from our side; it is then in TIME-WAIT.
fn close_first(b: &mut Bench, open: &mut Open) {
    let now = b.now;
    b.stack.with_tcp(open.handle, now, |connection| connection.close_send());
    assert_eq!(b.one().tcp().0.flags, Flags::FIN | ACK);
    open.ack += 1;
    b.input(&open.segment(Flags::FIN | ACK, b""));
    open.seq += 1;
    assert_eq!(b.one().tcp().0.acknowledgment, open.seq);
    b.stack.tcp_release(open.handle, now);
    assert_eq!(b.stack.tcp_counts(), (0, 1));
}

/// RFC 9293 §3.6.1, RFC 6191: a retransmitted FIN is answered, a new SYN reopens, and a minute ends
/// TIME-WAIT.
#[test]
fn time_wait() {
    let mut b = Bench::host(Caps::plain(1500));
    let (local, remote) = endpoints(OURS4, PEER4);
    let mut first = open(&mut b, local, remote);
    close_first(&mut b, &mut first);
    // The FIN is retransmitted.
    first.seq -= 1;
    let (header, _) = b.input(&first.segment(Flags::FIN | ACK, b"")).one().tcp();
    assert_eq!((header.acknowledgment, header.sequence), (first.seq + 1, first.ack));
    first.seq += 1;
    // A bare ACK is not answered; with wrong numbers, at most two per second are.
    b.input(&first.segment(ACK, b"")).quiet();
    first.seq += 1000;
    b.input(&first.segment(ACK, b"")).one();
    b.input(&first.segment(ACK, b"")).input(&first.segment(Flags::RST, b"")).quiet();
    b.wait(Duration::from_millis(500));
    // An old SYN is answered with an ACK, a new one reopens.
    assert_eq!(b.input(&syn(remote, local, 90)).one().tcp().0.flags, ACK);
    assert_eq!(b.stack.tcp_counts(), (0, 1));
    let (answer, _) = b.input(&syn(remote, local, 5000)).one().tcp();
    assert_eq!((answer.flags, answer.acknowledgment), (Flags::SYN | ACK, 5001));
    assert!(answer.sequence.wrapping_sub(first.ack) < 1 << 31, "numbers continue, RFC 6191");
    assert_eq!(b.stack.tcp_counts(), (1, 0));

    let mut b = Bench::host(Caps::plain(1500));
    let mut second = open(&mut b, local, remote);
    close_first(&mut b, &mut second);
    b.wait(Duration::from_secs(59));
    assert_eq!(b.stack.tcp_counts(), (0, 1));
    // The FIN is retransmitted: the minute restarts.
    second.seq -= 1;
    b.input(&second.segment(Flags::FIN | ACK, b"")).one();
    b.wait(Duration::from_secs(59));
    assert_eq!(b.stack.tcp_counts(), (0, 1));
    b.wait(Duration::from_secs(1));
    assert_eq!(b.stack.tcp_counts(), (0, 0));
    assert_eq!(b.stack.next_deadline(), None);
    b.assert_clean();
}

/// Answers to a flood of segments for a closed connection are rate-limited.
#[test]
fn time_wait_answers_at_a_limited_rate() {
    let mut b = Bench::host(Caps::plain(1500));
    let (local, remote) = endpoints(OURS4, PEER4);
    let mut first = open(&mut b, local, remote);
    close_first(&mut b, &mut first);
    assert_eq!(b.input(&syn(remote, local, 90)).output().len(), 1);
    for _ in 0..10 {
        b.input(&syn(remote, local, 90)).quiet();
    }
    // The peer's own FIN is not limited.
    first.seq -= 1;
    for _ in 0..3 {
        assert_eq!(b.input(&first.segment(Flags::FIN | ACK, b"")).output().len(), 1);
    }
    b.wait(Duration::from_millis(500));
    assert_eq!(b.input(&syn(remote, local, 90)).output().len(), 1);
}

/// RFC 5961 §7: with a limit, all connections of a stack share one budget of challenge ACKs, a
/// different number each second; without one, each connection has its own limit.
#[test]
fn challenges_share_a_budget() {
    for limit in [8, CHALLENGES_UNLIMITED] {
        let mut b = Bench::host(Caps::plain(1500));
        b.stack.tcp_settings_mut().challenge_ack_limit = limit;
        let (local, remote) = endpoints(OURS4, PEER4);
        let all: Vec<Open> = (0..40)
            .map(|index| open(&mut b, local, SocketAddr::new(remote.ip(), 1000 + index)))
            .collect();
        let mut counts = Vec::new();
        for _ in 0..8 {
            let mut count = 0;
            for open in &all {
                // A blind attacker's reset somewhere in the window.
                let guess = segment(open.remote, local, Flags::RST, (open.seq + 77, 0), &NONE, b"");
                let out = b.input(&guess).output();
                assert!(out.iter().all(|out| out.tcp().0.flags == ACK));
                count += out.len();
            }
            counts.push(count);
            b.wait(Duration::from_secs(1));
        }
        if limit == CHALLENGES_UNLIMITED {
            assert_eq!(counts, [40; 8]);
        } else {
            assert!(counts.iter().all(|count| (4..12).contains(count)), "{counts:?}");
            assert!(counts.iter().any(|count| *count != counts[0]), "{counts:?}");
        }
        // Answers to retransmitted data are not challenges.
        let old = segment(all[0].remote, local, ACK, (all[0].seq - 1, all[0].ack), &NONE, b"x");
        for _ in 0..20 {
            assert_eq!(b.input(&old).output().len(), 1);
        }
    }
}

/// RFC 1337: as on Linux, a reset with the expected number ends TIME-WAIT at once; later segments
/// belong to no connection.
#[test]
fn a_reset_ends_time_wait() {
    let mut b = Bench::host(Caps::plain(1500));
    let (local, remote) = endpoints(OURS4, PEER4);
    let mut open = open(&mut b, local, remote);
    close_first(&mut b, &mut open);
    open.seq += 1;
    b.input(&open.segment(Flags::RST, b"")).quiet();
    assert_eq!(b.stack.tcp_counts(), (0, 1));
    open.seq -= 1;
    b.input(&open.segment(Flags::RST, b"")).quiet();
    assert_eq!(b.stack.tcp_counts(), (0, 0));
    assert_eq!(b.input(&open.segment(ACK, b"")).one().tcp().0.flags, Flags::RST);
    b.assert_clean();
}

/// Connections without an owner are bounded: beyond the limit, releasing one resets it.
#[test]
fn orphans_are_bounded() {
    let mut b = limited(Limits { orphans: 2, ..Limits::default() });
    let mut open_one = |port: u16| {
        let (local, remote) = (SocketAddr::new(OURS4, 80), SocketAddr::new(PEER4, port));
        let mut one = open(&mut b, local, remote);
        let now = b.now;
        b.stack.tcp_release(one.handle, now);
        one.ack += 1;
        let flags = b.one().tcp().0.flags;
        (one, flags, b.stack.counters().orphans_reset)
    };
    let first = open_one(1);
    assert_eq!((first.1, first.2), (Flags::FIN | ACK, 0));
    assert_eq!(open_one(2).1, Flags::FIN | ACK);
    let third = open_one(3);
    assert_eq!((third.1, third.2), (Flags::RST | ACK, 1));
    // A closed connection makes room.
    b.input(&first.0.segment(Flags::FIN | ACK, b"")).one();
    let (local, remote) = (SocketAddr::new(OURS4, 80), SocketAddr::new(PEER4, 4));
    let fourth = open(&mut b, local, remote);
    let now = b.now;
    b.stack.tcp_release(fourth.handle, now);
    assert_eq!(b.one().tcp().0.flags, Flags::FIN | ACK);
    // Lowering the limit resets no connection; the next one released is reset.
    b.stack.set_orphans_max(0);
    let (local, remote) = (SocketAddr::new(OURS4, 80), SocketAddr::new(PEER4, 5));
    let fifth = open(&mut b, local, remote);
    b.stack.tcp_release(fifth.handle, now);
    assert_eq!(b.one().tcp().0.flags, Flags::RST | ACK);
}

/// TIME-WAIT is bounded: the oldest connection is evicted.
#[test]
fn time_wait_is_bounded() {
    let mut b = limited(Limits { time_wait: 4, ..Limits::default() });
    for port in 1..20 {
        let (local, remote) = (SocketAddr::new(OURS4, 80), SocketAddr::new(PEER4, port));
        let mut one = open(&mut b, local, remote);
        let now = b.now;
        b.stack.with_tcp(one.handle, now, |connection| connection.close_send());
        b.one();
        one.ack += 1;
        b.input(&one.segment(Flags::FIN | ACK, b"")).one();
        b.stack.tcp_release(one.handle, now);
        assert_eq!(b.stack.tcp_counts(), (0, usize::from(port).min(4)));
    }
    b.assert_clean();
}

/// RFC 1191 §3, RFC 8201 §4: packet too big about a sent segment makes the next segments smaller;
/// an absurd size, or a quote of no sent segment, does not.
#[test]
fn too_big_makes_segments_smaller() {
    for (ours, peer) in FAMILIES {
        let mut b = Bench::host(Caps::plain(1500));
        let (local, remote) = endpoints(ours, peer);
        b.stack.tcp_listen(local);
        let options = Options { mss: Some(1400), ..NONE };
        let first = segment(remote, local, Flags::SYN, (100, 0), &options, b"");
        let ack = b.input(&first).one().tcp().0.sequence.wrapping_add(1);
        b.input(&segment(remote, local, ACK, (101, ack), &NONE, b"")).quiet();
        let handle = b.stack.next_event().expect("a connection").0;
        write(&mut b, handle, &data(2800));
        let sent = b.output();
        assert_eq!(sent.len(), 2);
        let too_big = |mtu: u16, sent: &Out| {
            let mut message = Vec::from([3, 4, 0, 0, 0, 0]);
            if ours.is_ipv6() {
                message = Vec::from([2, 0, 0, 0, 0, 0]);
            }
            message.extend_from_slice(&mtu.to_be_bytes());
            message.extend_from_slice(&sent.bytes[14..14 + 68]);
            icmp(peer, ours, 64, &message)
        };
        let mut forged = sent[0].clone();
        let at = if ours.is_ipv4() { 38 } else { 58 };
        forged.bytes[at] ^= 0x40;
        b.input(&too_big(1300, &forged)).quiet();
        let mut sent = sent;
        if ours.is_ipv4() {
            // As in Linux, the checksum of the quoted header is not verified.
            sent[0].bytes[24] ^= 1;
        }
        let again = b.input(&too_big(1300, &sent[0])).output();
        let headers = if ours.is_ipv4() { 40 } else { 60 };
        assert!(again.iter().all(|out| out.bytes.len() - 14 <= 1300));
        assert_eq!(again[0].data().len(), 1300 - headers);
        let whole: Vec<u8> = again.iter().flat_map(|out| out.data().to_vec()).collect();
        assert_eq!(whole, data(2800));
        // IPv4: Linux's minimum path MTU, and routers must fragment; IPv6: RFC 8201 §4.
        let again = b.input(&too_big(68, &sent[0])).output();
        if ours.is_ipv4() {
            assert_eq!(again[0].data().len(), 552 - headers);
            assert!(again.iter().all(|out| out.bytes[20] & 0x40 == 0));
        } else {
            assert!(again.is_empty());
        }
    }
}

/// The device's MTU shrinks: later packets and retransmissions fit at once.
#[test]
fn a_smaller_mtu_is_kept() {
    for (ours, peer) in FAMILIES {
        let mut b = Bench::host(Caps::plain(1500));
        let (local, remote) = endpoints(ours, peer);
        let open = open(&mut b, local, remote);
        write(&mut b, open.handle, &data(5000));
        assert_eq!(b.output().len(), 5);
        b.stack.set_caps(Caps::plain(600));
        write(&mut b, open.handle, &data(3000));
        let out = b.wait(Duration::from_secs(2));
        assert!(out.len() > 2);
        assert!(out.iter().all(|out| out.bytes.len() <= 614), "a packet larger than the MTU");
        assert_eq!(b.stack.mtu(), 600);
    }
}

/// RFC 1122 §4.2.3.9: an unreachable error ends a connection attempt.
#[test]
fn unreachable_ends_connecting() {
    for (ours, peer) in FAMILIES {
        let mut b = Bench::host(Caps::plain(1500));
        let (local, remote) = endpoints(ours, peer);
        let handle = b.stack.tcp_connect(local, remote, b.now).expect("free");
        let out = b.one();
        let mut message = Vec::from([if ours.is_ipv4() { 3 } else { 1 }, 1, 0, 0, 0, 0, 0, 0]);
        message.extend_from_slice(&out.bytes[14..]);
        b.input(&icmp(peer, ours, 64, &message)).quiet();
        let error = b.stack.tcp(handle).expect("not yet released").error();
        assert_eq!(error, Some(ConnectionError::Unreachable));
    }
}

/// The owner of a transparent stack accepts a connection, refuses it or reports an error.
#[test]
fn the_owner_decides() {
    for (far, peer) in [(FAR4, PEER4), (FAR6, PEER6)] {
        let (local, remote) = endpoints(far, peer);
        let held = |b: &mut Bench| {
            b.input(&syn(remote, local, 100)).quiet();
            b.input(&syn(remote, local, 100)).quiet();
            let (handle, events) = b.stack.next_event().expect("asked");
            assert_eq!(events, Events::INCOMING);
            assert_eq!(b.stack.next_event(), None);
            handle
        };
        let mut b = Bench::transparent(Caps::plain(1500));
        let handle = held(&mut b);
        b.stack.with_tcp(handle, b.now, |connection| connection.accept());
        assert_eq!(b.one().tcp().0.flags, Flags::SYN | ACK);
        let mut b = Bench::transparent(Caps::plain(1500));
        let handle = held(&mut b);
        b.with_context(|stack, cx| stack.tcp_refuse(handle, cx));
        let (header, _) = b.one().tcp();
        assert_eq!((header.flags, header.acknowledgment), (Flags::RST | ACK, 101));
        assert_eq!(b.stack.tcp_counts(), (0, 0));
        b.assert_clean();
        let mut b = Bench::transparent(Caps::plain(1500));
        let handle = held(&mut b);
        b.with_context(|stack, cx| stack.tcp_unreachable(handle, Unreachable::Host, cx));
        assert_eq!(b.one().transport()[..2], if far.is_ipv4() { [3, 1] } else { [1, 3] });
        assert_eq!(b.stack.tcp_counts(), (0, 0));
        b.assert_clean();
    }
}

/// RFC 1122 §4.2.3.10, §3.3.6: link-layer broadcasts are ignored.
#[test]
fn broadcast_segments_are_ignored() {
    let mut b = Bench::host(Caps::plain(1500));
    let (local, remote) = endpoints(OURS4, PEER4);
    let mut frame = syn(remote, local, 100);
    frame[..6].fill(0xff);
    b.input(&frame).quiet();
    let mut frame = syn(remote, local, 100);
    frame[5] = 9;
    b.input(&frame).quiet();
    b.dropped(&[(DropReason::NotForUs, 2)]);
    b.assert_clean();
}

/// Stale timers of a busy connection do not accumulate.
#[test]
fn old_timers_are_forgotten() {
    let mut b = Bench::host(able());
    let (local, remote) = endpoints(OURS4, PEER4);
    let mut open = open(&mut b, local, remote);
    let now = b.now;
    b.stack.with_tcp(open.handle, now, |connection| connection.set_keepalive(true, now));
    for _ in 0..2000 {
        write(&mut b, open.handle, b"x");
        b.output();
        open.ack += 1;
        b.input(&open.segment(ACK, b""));
        b.wait(Duration::from_millis(300));
    }
    assert!(b.stack.tcp.timer_count() < 100, "{} timers", b.stack.tcp.timer_count());
}

/// A segment whose header claims to be longer than the segment, or shorter than the minimum.
#[test]
fn lying_header_lengths() {
    let mut b = Bench::host(Caps::plain(1500));
    for offset in [0u8, 1, 4, 6, 15] {
        let mut bytes = [0; 20];
        bytes[12] = offset << 4;
        b.input(&ip(PEER4, OURS4, Protocol::TCP, 64, &bytes)).quiet();
    }
    b.dropped(&[(DropReason::TcpMalformed, 5)]);
    b.assert_clean();
}
