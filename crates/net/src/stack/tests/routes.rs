//! Route metrics apply to connections, incoming and outgoing.

use super::bench::*;
use crate::stack::{Connect, ROUTES_MAX, Route, RouteError, RouteMetrics, TcpHandle};
use crate::tcp::Events;
use crate::tcp::congestion::Kind;
use crate::time::Duration;
use crate::wire::tcp::{self, Flags, Options};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use towpath_packet::Caps;

const MSS: Options = Options { mss: Some(1460), ..super::tcp::NONE };

fn route(destination: IpAddr, prefix_len: u8, metrics: RouteMetrics) -> Route {
    Route { destination, prefix_len, metrics }
}

fn with(metrics: RouteMetrics) -> Bench {
    let mut b = Bench::host(Caps::plain(1500));
    let routes = [route(PEER4, 32, metrics), route(PEER6, 128, metrics)];
    b.stack.set_routes(&routes).expect("two are few");
    b
}

/// Connects; the answer has an MSS of 1460. Returns the connection and the SYN's fields.
fn connect(
    b: &mut Bench,
    ours: IpAddr,
    peer: IpAddr,
    port: u16,
) -> (TcpHandle, Options, tcp::Header) {
    let (local, remote) = (SocketAddr::new(ours, port), SocketAddr::new(peer, 80));
    let settings = *b.stack.tcp_settings();
    let now = b.now;
    let connect = Connect::new(local, remote, &settings);
    let handle = b.stack.tcp_connect_with(&connect, now).expect("free");
    let (header, options) = b.one().tcp();
    let numbers = (7, header.sequence.wrapping_add(1));
    let answer = segment(remote, local, Flags::SYN | Flags::ACK, numbers, &MSS, b"");
    b.input(&answer).output();
    while b.stack.next_event().is_some() {}
    (handle, options, header)
}

/// The peer connects; returns the connection and the SYN-ACK's fields.
fn accept(
    b: &mut Bench,
    ours: IpAddr,
    peer: IpAddr,
    port: u16,
) -> (TcpHandle, Options, tcp::Header) {
    let (local, remote) = (SocketAddr::new(ours, 80), SocketAddr::new(peer, port));
    b.stack.tcp_listen(local);
    let syn = segment(remote, local, Flags::SYN, (7, 0), &MSS, b"");
    let (header, options) = b.input(&syn).one().tcp();
    let ack = header.sequence.wrapping_add(1);
    b.input(&segment(remote, local, Flags::ACK, (8, ack), &Options::default(), b"")).quiet();
    let (handle, events) = b.stack.next_event().expect("a connection");
    assert!(events.contains(Events::INCOMING));
    (handle, options, header)
}

fn info(b: &Bench, handle: TcpHandle) -> crate::tcp::Info {
    b.stack.tcp(handle).expect("it is open").info(b.now)
}

#[test]
fn sizes_of_segments() {
    for (ours, peer) in FAMILIES {
        let headers = if ours.is_ipv4() { 40 } else { 60 };
        let mut b =
            with(RouteMetrics { mtu: Some(1300), advmss: Some(600), ..RouteMetrics::default() });
        let (handle, syn, _) = connect(&mut b, ours, peer, 1000);
        assert_eq!(syn.mss, Some(600));
        let known = info(&b, handle);
        assert_eq!((known.snd_mss, known.pmtu, known.advmss), (1300 - headers, 1300, 600));
        let (handle, answer, _) = accept(&mut b, ours, peer, 1001);
        assert_eq!((answer.mss, info(&b, handle).snd_mss), (Some(600), 1300 - headers));
        // Without `advmss`, the MSS follows the MTU, but never exceeds the device's.
        let mut b = with(RouteMetrics { mtu: Some(9000), ..RouteMetrics::default() });
        let (handle, syn, _) = connect(&mut b, ours, peer, 1000);
        assert_eq!(u32::from(syn.mss.expect("an MSS")), 1500 - headers);
        assert_eq!(info(&b, handle).pmtu, 1500);
        let mut b = with(RouteMetrics { mtu: Some(100), ..RouteMetrics::default() });
        let least = if ours.is_ipv4() { 256 } else { 1220 };
        assert_eq!(connect(&mut b, ours, peer, 1000).1.mss, Some(least));
    }
}

#[test]
fn open_connections_follow_the_size_of_packets() {
    let mut b = Bench::host(Caps::plain(1500));
    let (handle, ..) = connect(&mut b, OURS4, PEER4, 1000);
    let other = FAMILIES[1];
    let (far, ..) = connect(&mut b, other.0, other.1, 1000);
    let metrics = RouteMetrics { mtu: Some(1000), ..RouteMetrics::default() };
    b.stack.set_routes(&[route(PEER4, 24, metrics)]).expect("one is few");
    // Connections look up their path when they send.
    let send = |b: &mut Bench| {
        for handle in [handle, far] {
            super::tcp::write(b, handle, b"x");
        }
        b.output();
    };
    send(&mut b);
    assert_eq!((info(&b, handle).snd_mss, info(&b, far).snd_mss), (960, 1440));
    b.stack.set_caps(Caps { mtu: 800, ..Caps::plain(1500) });
    send(&mut b);
    assert_eq!((info(&b, handle).snd_mss, info(&b, far).snd_mss), (760, 740));
}

#[test]
fn windows_timeouts_and_the_rest() {
    let metrics = RouteMetrics {
        initcwnd: Some(25),
        initrwnd: Some(3),
        rto_min: Some(Duration::from_millis(20)),
        quickack: true,
        congestion: Some(Kind::Reno),
        ecn: true,
        ..RouteMetrics::default()
    };
    for (metrics, plain) in [(metrics, false), (RouteMetrics::default(), true)] {
        let mut b = with(metrics);
        let (handle, _, syn) = connect(&mut b, OURS4, PEER4, 1000);
        assert_eq!(syn.flags.contains(Flags::ECE | Flags::CWR), !plain);
        let (accepted, _, answer) = accept(&mut b, OURS4, PEER4, 1001);
        for (handle, header) in [(handle, syn), (accepted, answer)] {
            let known = info(&b, handle);
            assert_eq!(known.snd_cwnd, if plain { 10 } else { 25 });
            assert_eq!(known.rcv_wnd <= 3 * 1460, !plain, "{}", known.rcv_wnd);
            assert_eq!(known.rto < 100_000, !plain, "{}", known.rto);
            let kind = b.stack.tcp(handle).map(|connection| connection.congestion());
            assert_eq!(kind == Some(Kind::Reno), !plain);
            // Long after the first ACKs, which are quick in any case.
            let local = SocketAddr::new(OURS4, header.source_port);
            let remote = SocketAddr::new(PEER4, header.destination_port);
            let ack = header.sequence.wrapping_add(1);
            let mut quick = Vec::new();
            for seq in 8..48 {
                let flags = Flags::ACK | Flags::PSH;
                let data = segment(remote, local, flags, (seq, ack), &Options::default(), b"x");
                quick.push(!b.input(&data).output().is_empty());
                let now = b.now;
                b.stack.with_tcp(handle, now, |connection| connection.consume(1));
                b.wait(Duration::from_millis(1));
            }
            assert_eq!(quick.iter().all(|at_once| *at_once), !plain);
        }
    }
}

/// The longest prefix applies; invalid routes change nothing.
#[test]
fn the_longest_prefix_counts() {
    let mut b = Bench::host(Caps::plain(1500));
    let mtu = |mtu| RouteMetrics { mtu: Some(mtu), ..RouteMetrics::default() };
    let all = [
        route(IpAddr::from([0, 0, 0, 0]), 0, mtu(1000)),
        route(IpAddr::from([10, 0, 0, 7]), 24, mtu(900)),
        route(IpAddr::from([10, 0, 0, 2]), 32, mtu(800)),
    ];
    b.stack.set_routes(&all).expect("few");
    let found = |b: &Bench, address: IpAddr| b.stack.route_metrics(address).mtu;
    assert_eq!(found(&b, IpAddr::from([10, 0, 0, 2])), Some(800));
    assert_eq!(found(&b, IpAddr::from([10, 0, 0, 3])), Some(900));
    assert_eq!(found(&b, IpAddr::from([9, 9, 9, 9])), Some(1000));
    assert_eq!(found(&b, PEER6), None);
    let wrong = [route(PEER4, 33, mtu(700))];
    assert_eq!(b.stack.set_routes(&wrong), Err(RouteError::Prefix));
    let wrong = [route(PEER6, 129, mtu(700))];
    assert_eq!(b.stack.set_routes(&wrong), Err(RouteError::Prefix));
    let many = [all[0]; ROUTES_MAX + 1];
    assert_eq!(b.stack.set_routes(&many), Err(RouteError::TooMany));
    assert_eq!(found(&b, PEER4), Some(800), "the old routes stay");
    b.stack.set_routes(&[]).expect("none");
    assert_eq!(found(&b, PEER4), None);
}
