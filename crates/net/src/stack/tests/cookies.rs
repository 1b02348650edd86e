//! SYN cookies (RFC 4987 §3.6): floods, legitimate clients during a flood, forged ACKs.

use super::bench::*;
use crate::counters::DropReason;
use crate::stack::{Listen, ListenerHandle, TcpHandle};
use crate::tcp::{Settings, State};
use crate::time::Duration;
use crate::wire::tcp::{Flags, Header, Options};
use alloc::vec::Vec;
use core::net::SocketAddr;
use towpath_packet::Caps;

const ACK: Flags = Flags::ACK;

struct Server {
    b: Bench,
    at: SocketAddr,
    listener: ListenerHandle,
}

impl Server {
    /// A listener with this value of `Settings::syncookies`.
    fn new(syncookies: u8) -> Self {
        let mut b = Bench::host(Caps::plain(1500));
        let at = SocketAddr::new(OURS4, 80);
        let settings = Settings { syncookies, ..Settings::default() };
        let listener = b.stack.tcp_listen_with(Listen::new(at, 4, &settings)).expect("free");
        Self { b, at, listener }
    }

    fn send(&mut self, port: u16, flags: Flags, at: (u32, u32), o: &Options) -> Vec<Out> {
        let bytes = segment(SocketAddr::new(PEER4, port), self.at, flags, at, o, b"");
        self.b.input(&bytes).output()
    }

    fn syn(&mut self, port: u16, flags: Flags, options: &Options) -> (Header, Options) {
        let out = self.send(port, Flags::SYN | flags, (100, 0), options);
        out.first().expect("answered").tcp()
    }

    fn accept(&mut self) -> Option<TcpHandle> {
        let now = self.b.now;
        self.b.stack.tcp_accept(self.listener, now)
    }

    fn counts(&self) -> (u64, u64, u64) {
        let c = self.b.stack.counters();
        (c.syn_cookies_sent, c.syn_cookies_received, c.syn_cookies_failed)
    }
}

fn all_options() -> Options {
    Options {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some((5000, 0)),
        ..Options::default()
    }
}

/// A flood of SYNs makes no more connections than the backlog allows requests, and a legitimate
/// client connects during it.
#[test]
fn an_honest_client_connects_through_a_flood() {
    let mut s = Server::new(1);
    for port in 1..=2000 {
        s.syn(port, Flags::NONE, &all_options());
    }
    assert_eq!((s.b.stack.tcp_counts(), s.counts()), ((4, 0), (1996, 0, 0)));
    let (answer, options) = s.syn(4000, Flags::NONE, &all_options());
    let (value, _) = options.timestamps.expect("agreed");
    let reply = Options { timestamps: Some((5001, value)), ..Options::default() };
    let ack = answer.sequence.wrapping_add(1);
    assert!(s.send(4000, ACK, (101, ack), &reply).is_empty());
    let child = s.accept().expect("a child");
    let now = s.b.now;
    assert_eq!(s.b.stack.tcp(child).expect("there").state(), State::Established);
    assert_eq!((s.b.stack.tcp_counts(), s.counts()), ((5, 0), (1997, 1, 0)));
    // Data flows both ways.
    let bytes = segment(SocketAddr::new(PEER4, 4000), s.at, ACK, (101, ack), &reply, b"hello");
    s.b.input(&bytes).output();
    assert_eq!(s.b.stack.tcp(child).expect("there").received_len(), 5);
    let mut packet = s.b.packet(b"world");
    s.b.stack.with_tcp(child, now, |connection| {
        packet.take_pieces().for_each(|piece| connection.send(piece));
    });
    let out = s.b.output();
    let (header, _) = out.last().expect("sent").tcp();
    assert_eq!((header.sequence, header.acknowledgment), (ack, 106));
    assert_eq!(out.last().expect("sent").data(), b"world");
}

/// As in Linux, the timestamp carries the negotiated options; without a timestamp only the segment
/// size is kept.
#[test]
fn the_timestamp_carries_the_options() {
    for scale in [None, Some(0), Some(14)] {
        for (sack, ecn) in [(false, false), (true, false), (false, true), (true, true)] {
            let mut s = Server::new(2);
            s.b.wait(Duration::from_micros(1_234_567));
            let asked = Options { sack_permitted: sack, window_scale: scale, ..all_options() };
            let flags = if ecn { Flags::ECE | Flags::CWR } else { Flags::NONE };
            let (answer, options) = s.syn(7, flags, &asked);
            assert_eq!(answer.flags.contains(Flags::ECE), ecn);
            assert_eq!(options.window_scale.is_some(), scale.is_some());
            assert_eq!(options.sack_permitted, sack);
            let value = options.timestamps.expect("agreed").0;
            let reply = Options { timestamps: Some((5001, value)), ..Options::default() };
            s.send(7, ACK, (101, answer.sequence.wrapping_add(1)), &reply);
            let child = s.accept().expect("a child");
            let info = s.b.stack.tcp(child).expect("there").info(s.b.now);
            let agreed =
                1 | u8::from(sack) << 1 | u8::from(scale.is_some()) << 2 | u8::from(ecn) << 3;
            assert_eq!((info.options, info.snd_wscale), (agreed, scale.unwrap_or(0)));
            assert_eq!(info.snd_mss, 1448);
        }
    }
    let mut s = Server::new(2);
    let (answer, options) = s.syn(7, Flags::NONE, &Options { timestamps: None, ..all_options() });
    assert_eq!(options, Options { mss: Some(1460), ..Options::default() });
    s.send(7, ACK, (101, answer.sequence.wrapping_add(1)), &Options::default());
    let child = s.accept().expect("a child");
    assert_eq!(s.b.stack.tcp(child).expect("there").info(s.b.now).options, 0);
}

/// Forged and late ACKs are reset like any segment without a connection, and counted; a listener
/// that sent no cookie recently does not check.
#[test]
fn forged_cookies_are_reset() {
    let mut s = Server::new(1);
    assert_eq!(s.send(9, ACK, (101, 77), &Options::default())[0].tcp().0.flags, Flags::RST);
    assert_eq!(s.counts(), (0, 0, 0));
    for port in 1..=4 {
        s.syn(port, Flags::NONE, &Options::default());
    }
    let (answer, _) = s.syn(9, Flags::NONE, &Options::default());
    let ack = answer.sequence.wrapping_add(1);
    for (port, numbers) in [(9, (101, ack ^ 1 << 20)), (9, (102, ack)), (10, (101, ack))] {
        let out = s.send(port, ACK, numbers, &Options::default());
        assert_eq!(out[0].tcp().0.flags, Flags::RST);
    }
    assert_eq!((s.counts(), s.accept()), ((1, 0, 3), None));
    s.b.wait(Duration::from_secs(121));
    s.b.output();
    let out = s.send(9, ACK, (101, ack), &Options::default());
    assert_eq!((out[0].tcp().0.flags, s.accept()), (Flags::RST, None));
}

/// As in Linux, a full queue takes no child from a cookie either, and the ACK is retransmitted.
#[test]
fn a_full_queue_takes_no_cookie() {
    let mut s = Server::new(2);
    let mut acks = Vec::new();
    for port in 1..=6 {
        acks.push(s.syn(port, Flags::NONE, &Options::default()).0.sequence.wrapping_add(1));
    }
    for port in 1..=6 {
        s.send(port, ACK, (101, acks[usize::from(port) - 1]), &Options::default());
    }
    assert_eq!((s.b.stack.tcp_acceptable(s.listener), s.counts()), (5, (6, 6, 0)));
    s.b.dropped(&[(DropReason::TcpAcceptQueueFull, 1)]);
    s.accept().expect("a child");
    assert!(s.send(6, ACK, (101, acks[5]), &Options::default()).is_empty());
    assert_eq!(s.b.stack.tcp_acceptable(s.listener), 5);
}
