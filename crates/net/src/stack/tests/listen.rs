//! Listeners: when a child exists, queue limits, and Fast Open (RFC 7413).

use super::bench::*;
use crate::counters::DropReason;
use crate::stack::{Listen, ListenerHandle};
use crate::tcp::fastopen::{FastOpenKeys, SERVER, SERVER_ALL, SERVER_NO_COOKIE};
use crate::tcp::{Events, Settings, State};
use crate::time::Duration;
use crate::wire::tcp::{FastOpenCookie, Flags, Options};
use alloc::vec::Vec;
use core::net::SocketAddr;
use towpath_packet::Caps;

const ACK: Flags = Flags::ACK;

fn settings() -> Settings {
    let fastopen_key = FastOpenKeys { primary: [7; 16], backup: None };
    Settings { fastopen: SERVER | SERVER_ALL, fastopen_key, ..Settings::default() }
}

struct Server {
    b: Bench,
    at: SocketAddr,
    listener: ListenerHandle,
}

impl Server {
    fn new(listen: impl FnOnce(&mut Listen)) -> Self {
        let mut b = Bench::host(Caps::plain(1500));
        let at = SocketAddr::new(OURS4, 80);
        let mut config = Listen::new(at, 1, &settings());
        listen(&mut config);
        let listener = b.stack.tcp_listen_with(config).expect("free");
        Self { b, at, listener }
    }

    fn peer(port: u16) -> SocketAddr {
        SocketAddr::new(PEER4, port)
    }

    fn send(
        &mut self,
        port: u16,
        flags: Flags,
        at: (u32, u32),
        o: &Options,
        data: &[u8],
    ) -> Vec<Out> {
        let bytes = segment(Self::peer(port), self.at, flags, at, o, data);
        self.b.input(&bytes).output()
    }

    /// Sends a SYN; returns the acknowledgment number for the SYN-ACK, if there is one.
    fn syn(&mut self, port: u16) -> Option<u32> {
        let out = self.send(port, Flags::SYN, (100, 0), &Options::default(), b"");
        let (header, _) = out.first()?.tcp();
        assert_eq!((header.flags, header.acknowledgment), (Flags::SYN | ACK, 101));
        Some(header.sequence.wrapping_add(1))
    }

    /// Sends the third segment of the handshake.
    fn ack(&mut self, port: u16, ack: u32) {
        assert!(self.send(port, ACK, (101, ack), &Options::default(), b"").is_empty());
    }

    fn cookie(&self) -> FastOpenCookie {
        settings().fastopen_key.cookie(PEER4, OURS4)
    }

    fn fast(&mut self, port: u16, cookie: Option<FastOpenCookie>, data: &[u8]) -> Out {
        let options = Options { fast_open: cookie, ..Options::default() };
        let out = self.send(port, Flags::SYN, (100, 0), &options, data);
        assert_eq!(out.len(), 1);
        out.into_iter().next().expect("one")
    }
}

/// A child exists once the peer has acknowledged the SYN-ACK, and its events are reported once it
/// has been accepted.
#[test]
fn a_child_waits_to_be_accepted() {
    let mut s = Server::new(|_| ());
    let ack = s.syn(1).expect("answered");
    assert_eq!((s.b.stack.tcp_acceptable(s.listener), s.b.stack.next_acceptable()), (0, None));
    s.ack(1, ack);
    assert_eq!(s.b.stack.next_acceptable(), Some(s.listener));
    assert_eq!((s.b.stack.next_acceptable(), s.b.stack.next_event()), (None, None));
    let now = s.b.now;
    let queued = s.b.stack.tcp.slots.places().filter_map(|slot| slot.connection.as_deref());
    assert_eq!(queued.filter(|connection| connection.is_queued).count(), 1);
    let child = s.b.stack.tcp_accept(s.listener, now).expect("ready");
    assert!(s.b.stack.tcp(child).is_some_and(|connection| !connection.is_queued));
    let events = Events::INCOMING | Events::ESTABLISHED | Events::WRITABLE;
    assert_eq!(s.b.stack.next_event(), Some((child, events)));
    assert_eq!(s.b.stack.tcp_accept(s.listener, now), None);
}

/// As in Linux: one request per unit of backlog, one child more than the backlog; an ACK beyond
/// that is dropped and accepted when it is retransmitted after an accept.
#[test]
fn queues_are_bounded() {
    let mut s = Server::new(|listen| listen.settings.syncookies = 0);
    let first = s.syn(1).expect("answered");
    assert_eq!(s.syn(2), None, "one request at a time");
    s.ack(1, first);
    let second = s.syn(2).expect("room again");
    s.ack(2, second);
    assert_eq!(s.b.stack.tcp_acceptable(s.listener), 2);
    assert_eq!(s.syn(3), None, "the queue is full");
    s.b.dropped(&[(DropReason::TcpAcceptQueueFull, 1), (DropReason::TcpRequestLimit, 1)]);
}

/// An ACK without room leaves the request unchanged.
#[test]
fn an_ack_without_room_comes_again() {
    let mut s = Server::new(|listen| listen.backlog = Some(3));
    let acks: Vec<u32> = (1..=3).map(|port| s.syn(port).expect("answered")).collect();
    s.b.stack.with_listener(s.listener, |listen| listen.backlog = Some(0));
    s.ack(1, acks[0]);
    s.ack(2, acks[1]);
    assert_eq!(s.b.stack.tcp_acceptable(s.listener), 1);
    s.b.dropped(&[(DropReason::TcpAcceptQueueFull, 1)]);
    let now = s.b.now;
    assert!(s.b.stack.tcp_accept(s.listener, now).is_some());
    s.ack(2, acks[1]);
    assert_eq!(s.b.stack.tcp_acceptable(s.listener), 1);
}

/// Closing a listener resets children and drops requests, whose ACK is then reset.
#[test]
fn a_closed_listener_leaves_nothing() {
    let mut s = Server::new(|listen| listen.backlog = Some(2));
    let (first, second) = (s.syn(1).expect("answered"), s.syn(2).expect("answered"));
    s.ack(1, first);
    let now = s.b.now;
    s.b.stack.tcp_close_listener(s.listener, now);
    let (header, _) = s.b.one().tcp();
    assert_eq!((header.flags, header.destination_port), (Flags::RST | ACK, 1));
    let out = s.send(2, ACK, (101, second), &Options::default(), b"");
    assert_eq!(out[0].tcp().0.flags, Flags::RST);
    assert_eq!(s.b.stack.tcp_counts(), (0, 0));
    assert_eq!(s.b.stack.tcp_accept(s.listener, now), None);
}

/// A reset in its window ends a request and makes room for another.
#[test]
fn a_reset_ends_a_request() {
    let mut s = Server::new(|_| ());
    s.syn(1).expect("answered");
    assert!(s.send(1, Flags::RST, (101, 0), &Options::default(), b"").is_empty());
    assert_eq!(s.b.stack.tcp_counts(), (0, 0));
    assert!(s.syn(2).is_some());
}

/// RFC 7413 §4.1.2: a request gets a cookie in the option that it used, and a SYN with a valid
/// cookie opens the connection with its data before the handshake completes.
#[test]
fn fast_open_takes_data_with_a_cookie() {
    let mut s = Server::new(|_| ());
    for experimental in [false, true] {
        let asked = FastOpenCookie::REQUEST.in_option(experimental);
        let (header, options) = s.fast(1, Some(asked), b"x").tcp();
        assert_eq!(header.acknowledgment, 101, "the data is not acknowledged");
        assert_eq!(options.fast_open, Some(s.cookie().in_option(experimental)));
        s.send(1, Flags::RST, (101, 0), &Options::default(), b"");
    }
    let cookie = s.cookie();
    let (header, options) = s.fast(2, Some(cookie), b"hello").tcp();
    assert_eq!((header.acknowledgment, options.fast_open), (106, None));
    let now = s.b.now;
    let child = s.b.stack.tcp_accept(s.listener, now).expect("at once");
    let connection = s.b.stack.tcp(child).expect("there");
    assert_eq!((connection.state(), connection.received_len()), (State::SynReceived, 5));
    assert!(connection.had_syn_data());
    let info = connection.info(now);
    assert_eq!((info.options & 0xa0, info.bytes_received, info.data_segs_in), (0xa0, 5, 1));
    // Data is sent before the handshake completes.
    let mut packet = s.b.packet(b"world");
    s.b.stack.with_tcp(child, now, |connection| {
        assert!(connection.send_room() > 0);
        packet.take_pieces().for_each(|piece| connection.send(piece));
    });
    assert_eq!(s.b.one().data(), b"world");
}

/// RFC 7413 §4.1.2: a wrong cookie is answered with the right one, and the data is not
/// acknowledged.
#[test]
fn fast_open_refuses_a_wrong_cookie() {
    let mut s = Server::new(|_| ());
    let (header, options) = s.fast(1, FastOpenCookie::new(&[0xaa; 8]), b"hello").tcp();
    assert_eq!((header.acknowledgment, options.fast_open), (101, Some(s.cookie())));
    let mut s = Server::new(|listen| listen.settings.fastopen = SERVER);
    let cookie = s.cookie();
    let (header, options) = s.fast(1, Some(cookie), b"hello").tcp();
    assert_eq!((header.acknowledgment, options.fast_open), (101, None), "not this listener");
    let mut s = Server::new(|listen| {
        listen.settings.fastopen = SERVER | SERVER_NO_COOKIE;
        listen.fastopen_queue = 2;
    });
    let (header, options) = s.fast(1, None, b"hello").tcp();
    assert_eq!((header.acknowledgment, options.fast_open), (106, None), "no cookie needed");
}

/// RFC 7413 §5.1: unfinished children are limited, and one that was reset counts for another
/// minute.
#[test]
fn fast_open_children_are_bounded() {
    let mut s = Server::new(|listen| listen.backlog = Some(8));
    s.b.stack.with_listener(s.listener, |listen| listen.fastopen_queue = 1);
    let cookie = s.cookie();
    assert_eq!(s.fast(1, Some(cookie), b"a").tcp().0.acknowledgment, 102);
    assert_eq!(s.fast(2, Some(cookie), b"b").tcp().0.acknowledgment, 101, "one at a time");
    s.send(1, Flags::RST, (102, 0), &Options::default(), b"");
    assert_eq!(s.fast(3, Some(cookie), b"c").tcp().0.acknowledgment, 101, "it still counts");
    s.b.wait(Duration::from_secs(61));
    s.b.output();
    assert_eq!(s.fast(4, Some(cookie), b"d").tcp().0.acknowledgment, 102);
}

/// Out-of-order data enlarges the receive buffer of no child that waits to be accepted, also of one
/// that Fast Open made.
#[test]
fn a_waiting_fast_open_child_has_no_larger_buffer() {
    let mut s = Server::new(|listen| listen.settings.receive_buffer = 65_536);
    let cookie = s.cookie();
    let (header, _) = s.fast(1, Some(cookie), b"hello").tcp();
    let ack = header.sequence.wrapping_add(1);
    assert!(s.send(1, ACK, (106, ack), &Options::default(), b"").is_empty());
    let buffer = |s: &Server| {
        let mut children =
            s.b.stack.tcp.slots.places().filter_map(|slot| slot.connection.as_deref());
        children.next().map(|child| child.receive_buffer())
    };
    for index in 1..=20 {
        s.send(1, ACK, (106 + 1000 * index, ack), &Options::default(), &[1; 900]);
    }
    assert_eq!(buffer(&s), Some(65_536));
    let now = s.b.now;
    s.b.stack.tcp_accept(s.listener, now).expect("a child");
    s.send(1, ACK, (106 + 21_000, ack), &Options::default(), &[1; 900]);
    assert!(buffer(&s) > Some(65_536));
}

/// As in Linux, an ICMP error about a SYN-ACK ends the request, and its ACK is then reset.
#[test]
fn an_icmp_error_ends_a_request() {
    let mut s = Server::new(|_| ());
    let out = s.send(1, Flags::SYN, (100, 0), &Options::default(), b"");
    let mut message = Vec::from([3, 1, 0, 0, 0, 0, 0, 0]);
    message.extend_from_slice(&out[0].bytes[14..14 + 28]);
    s.b.input(&icmp(PEER4, OURS4, 64, &message)).quiet();
    assert_eq!(s.b.stack.tcp_counts(), (0, 0));
    let ack = out[0].tcp().0.sequence.wrapping_add(1);
    let out = s.send(1, ACK, (101, ack), &Options::default(), b"");
    assert_eq!(out[0].tcp().0.flags, Flags::RST);
}

/// As in Linux, while a listener defers accepting, an ACK without data makes no child, and the
/// SYN-ACK is not retransmitted except for the last time.
#[test]
fn a_child_without_data_is_put_off() {
    let mut s = Server::new(|listen| {
        listen.defer_accept = 2;
        listen.backlog = Some(4);
    });
    let acks = [1, 2, 3].map(|port| s.syn(port).expect("answered"));
    for (port, ack) in (1..).zip(acks) {
        s.ack(port, ack);
    }
    s.b.dropped(&[(DropReason::TcpDeferred, 3)]);
    assert_eq!(s.b.stack.tcp_acceptable(s.listener), 0);
    // Data completes the handshake, and so does a FIN.
    assert!(s.send(1, ACK, (101, acks[0]), &Options::default(), b"hello").len() <= 1);
    s.send(2, ACK | Flags::FIN, (101, acks[1]), &Options::default(), b"");
    assert_eq!(s.b.stack.tcp_acceptable(s.listener), 2);
    let now = s.b.now;
    let child = s.b.stack.tcp_accept(s.listener, now).expect("ready");
    assert_eq!(s.b.stack.tcp(child).expect("there").received_len(), 5);
    // After one second nothing is sent; after three the SYN-ACK, and then an ACK is enough.
    assert!(s.b.wait(Duration::from_millis(2900)).is_empty());
    s.ack(3, acks[2]);
    assert_eq!(s.b.stack.tcp_acceptable(s.listener), 1);
    let (header, _) = s.b.wait(Duration::from_millis(200))[0].tcp();
    assert_eq!((header.flags, header.destination_port), (Flags::SYN | ACK, 3));
    s.ack(3, acks[2]);
    assert_eq!(s.b.stack.tcp_acceptable(s.listener), 2);
}

/// A request whose peer sends no data lasts until its SYN-ACKs are used up; one without an ACK gets
/// retransmissions as usual.
#[test]
fn putting_off_ends() {
    let mut s = Server::new(|listen| {
        listen.defer_accept = 3;
        listen.backlog = Some(4);
        listen.settings.synack_retries = 1;
    });
    let first = s.syn(1).expect("answered");
    s.syn(2).expect("answered");
    s.ack(1, first);
    let out = s.b.wait(Duration::from_millis(1100));
    assert_eq!((out.len(), out[0].tcp().0.destination_port), (1, 2));
    assert!(s.b.wait(Duration::from_secs(4)).is_empty());
    assert_eq!(s.b.stack.tcp_counts().0, 1, "the second was given up");
    let out = s.b.wait(Duration::from_secs(4));
    assert_eq!((out.len(), out[0].tcp().0.destination_port), (1, 1));
    assert!(s.b.wait(Duration::from_secs(30)).is_empty());
    assert_eq!(s.b.stack.tcp_counts().0, 0);
}

/// A deferred ACK needs no room: a full queue resets no deferred request (`tcp_abort_on_overflow`).
#[test]
fn what_is_put_off_is_not_crowded_out() {
    let mut s = Server::new(|listen| {
        listen.defer_accept = 1;
        listen.settings.abort_on_overflow = true;
    });
    let ack = s.syn(1).expect("answered");
    s.b.stack.with_listener(s.listener, |listen| listen.backlog = Some(0));
    s.send(2, Flags::SYN, (100, 0), &Options::default(), b"");
    s.ack(1, ack);
    s.b.dropped(&[(DropReason::TcpDeferred, 1)]);
}
