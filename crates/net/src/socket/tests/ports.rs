//! Allocation of addresses and ports.

use super::bench::*;
use crate::socket::{EPHEMERAL_FIRST, EPHEMERAL_LAST, Error, Family, Shutdown};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const ANY4: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const ANY6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

#[test]
fn an_address_must_be_ours_and_free() {
    let mut b = Bench::new();
    let [first, second] = [b.stream(SERVER), b.stream(SERVER)];
    let host = &mut b.hosts[SERVER];
    let foreign = SocketAddr::new(v4(CLIENT), 80);
    assert_eq!(host.bind(first, foreign), Err(Error::AddressNotAvailable));
    assert_eq!(host.bind(first, SocketAddr::new(v6(SERVER), 80)), Err(Error::AddressFamily));
    assert_eq!(host.bind(first, at(80)), Ok(()));
    assert_eq!(host.bind(first, at(81)), Err(Error::Invalid));
    assert_eq!(host.bind(second, SocketAddr::new(ANY4, 80)), Err(Error::AddressInUse));
    assert_eq!(host.bind(second, at(0)), Ok(()));
    let port = host.local(second).expect("bound").port();
    assert!((EPHEMERAL_FIRST..=EPHEMERAL_LAST).contains(&port));
}

#[test]
fn a_port_is_shared_by_those_that_allow_it_until_one_listens() {
    let mut b = Bench::new();
    let [first, second] = [b.stream(SERVER), b.stream(SERVER)];
    let host = &mut b.hosts[SERVER];
    for id in [first, second] {
        host.set_options(id, b.now, |options| options.reuse_address = true).expect("open socket");
        assert_eq!(host.bind(id, at(80)), Ok(()));
    }
    assert_eq!(host.listen(first, 1, b.now), Ok(()));
    assert_eq!(host.listen(second, 1, b.now), Err(Error::AddressInUse));
    assert_eq!(host.close(first, b.now), Ok(()));
    assert_eq!(host.listen(second, 1, b.now), Ok(()));
}

/// A listener that is shut down keeps its port and no longer excludes others from it.
#[test]
fn a_port_is_shared_again_once_its_listener_is_shut_down() {
    let mut b = Bench::new();
    let [first, second] = [b.stream(SERVER), b.stream(SERVER)];
    let host = &mut b.hosts[SERVER];
    host.set_options(first, b.now, |options| options.reuse_address = true).expect("open socket");
    host.set_options(second, b.now, |options| options.reuse_address = true).expect("open socket");
    assert_eq!(host.bind(first, at(80)), Ok(()));
    assert_eq!(host.listen(first, 1, b.now), Ok(()));
    assert_eq!(host.bind(second, at(80)), Err(Error::AddressInUse));
    assert_eq!(host.shutdown(first, Shutdown::Read, b.now), Ok(()));
    assert_eq!(host.bind(second, at(80)), Ok(()));
    assert_eq!(host.listen(second, 1, b.now), Ok(()));
    assert_eq!(host.listen(first, 1, b.now), Err(Error::AddressInUse));
    assert_eq!(host.local(first), Ok(at(80)));
    for id in [first, second] {
        assert_eq!(host.close(id, b.now), Ok(()));
    }
    let third = b.stream(SERVER);
    assert_eq!(b.hosts[SERVER].bind(third, at(80)), Ok(()));
}

#[test]
fn a_listener_of_ipv6_takes_ipv4_as_mapped() {
    let mut b = Bench::new();
    let listener = b.hosts[SERVER].stream(Family::V6).expect("room");
    b.hosts[SERVER].bind(listener, SocketAddr::new(ANY6, 80)).expect("free");
    b.hosts[SERVER].listen(listener, 1, b.now).expect("free");
    b.connecting(80);
    b.settle();
    let (server, peer) = b.hosts[SERVER].accept(listener, b.now).expect("a connection");
    let IpAddr::V4(client) = v4(CLIENT) else { panic!("an address of IPv4") };
    assert_eq!(peer.ip(), IpAddr::V6(client.to_ipv6_mapped()));
    assert_eq!(b.hosts[SERVER].remote(server), Ok(peer));
}

#[test]
fn a_socket_of_ipv6_only_leaves_ipv4_alone() {
    let mut b = Bench::new();
    let six = b.hosts[SERVER].stream(Family::V6).expect("room");
    let four = b.stream(SERVER);
    let host = &mut b.hosts[SERVER];
    host.set_options(six, b.now, |options| options.v6_only = true).expect("open socket");
    assert_eq!(host.bind(six, SocketAddr::new(ANY6, 80)), Ok(()));
    assert_eq!(host.bind(four, SocketAddr::new(ANY4, 80)), Ok(()));
}

#[test]
fn a_backlog_of_one_holds_two() {
    let mut b = Bench::new();
    let listener = b.listen(80, 1);
    for _ in 0..4 {
        b.connecting(80);
    }
    b.settle();
    let accepted = (0..4).filter(|_| b.hosts[SERVER].accept(listener, b.now).is_ok()).count();
    assert_eq!(accepted, 2);
}

/// RFC 6056: one port does not predict the next.
#[test]
fn ports_are_unpredictable() {
    let mut b = Bench::new();
    let ports: Vec<u16> = (0..64)
        .map(|_| {
            let id = b.stream(SERVER);
            b.hosts[SERVER].bind(id, at(0)).expect("free");
            b.hosts[SERVER].local(id).expect("bound").port()
        })
        .collect();
    let near = ports.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) < 64).count();
    assert!(near < 8, "{ports:?}");
    let (low, high) = (ports.iter().min().expect("some"), ports.iter().max().expect("some"));
    assert!(high - low > (EPHEMERAL_LAST - EPHEMERAL_FIRST) / 2, "{ports:?}");
}

/// Goal: a port is skipped while its last connection to the same peer still closes, and in
/// TIME-WAIT if another is free. Method: all ports but one are taken. The connection of that port
/// is left in FIN-WAIT-2; then other ports become free.
#[test]
fn a_port_whose_connection_still_closes_is_passed_over() {
    let mut b = Bench::new();
    let listener = b.listen(80, 100);
    let middle = EPHEMERAL_FIRST.midpoint(EPHEMERAL_LAST);
    let mut holders = Vec::new();
    for port in (EPHEMERAL_FIRST..=EPHEMERAL_LAST).filter(|port| *port != middle) {
        let id = b.stream(CLIENT);
        b.hosts[CLIENT].bind(id, SocketAddr::new(v4(CLIENT), port)).expect("free");
        holders.push((port, id));
    }
    let begin = |b: &mut Bench| {
        let id = b.stream(CLIENT);
        let begun = b.hosts[CLIENT].connect(id, at(80), b.now);
        b.settle();
        (begun, id, b.hosts[CLIENT].local(id).expect("open socket").port())
    };
    let (_, first, port) = begin(&mut b);
    assert_eq!(port, middle);
    b.hosts[CLIENT].close(first, b.now).expect("open socket");
    b.settle();
    for index in [5, 20_000] {
        assert_eq!(begin(&mut b).0, Err(Error::AddressNotAvailable), "none is free");
        let (other, holder) = holders[index];
        b.hosts[CLIENT].close(holder, b.now).expect("open socket");
        assert_eq!(begin(&mut b).2, other);
    }
    // The first connection enters TIME-WAIT: its port is used if no other is free.
    let (server, _) = b.hosts[SERVER].accept(listener, b.now).expect("the first");
    b.hosts[SERVER].close(server, b.now).expect("open socket");
    b.settle();
    let (other, holder) = holders[7];
    b.hosts[CLIENT].close(holder, b.now).expect("open socket");
    assert_eq!(begin(&mut b).2, other);
    let (begun, last, port) = begin(&mut b);
    assert_eq!((begun, port), (Err(Error::InProgress), middle));
    assert_eq!(b.hosts[CLIENT].connect(last, at(80), b.now), Ok(()));
}

/// Goal: 28,232 ports limit the connections to one remote end, not those to all. Method: 60,000
/// connections to three.
#[test]
fn each_remote_end_has_all_ports() {
    let mut b = Bench::new();
    let remote = |last: u8, port| SocketAddr::from(([192, 0, 2, last], port));
    let connect = |b: &mut Bench, to| {
        let id = b.stream(CLIENT);
        let begun = b.hosts[CLIENT].connect(id, to, b.now);
        (begun, b.hosts[CLIENT].local(id).expect("open socket").port())
    };
    let count = usize::from(EPHEMERAL_LAST - EPHEMERAL_FIRST) + 1;
    for (to, connections) in [
        (remote(10, 80), count),
        (remote(10, 81), 16_000),
        (remote(11, 80), 60_000 - 16_000 - count),
    ] {
        let mut ports = Vec::new();
        for _ in 0..connections {
            let (begun, port) = connect(&mut b, to);
            assert_eq!(begun, Err(Error::InProgress));
            ports.push(port);
        }
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), connections, "each four-tuple once");
    }
    assert_eq!(connect(&mut b, remote(10, 80)).0, Err(Error::AddressNotAvailable));
    assert_eq!(connect(&mut b, remote(12, 80)).0, Err(Error::InProgress));
    // A socket that binds to such a port is refused, as in Linux.
    let id = b.stream(CLIENT);
    let (_, taken) = connect(&mut b, remote(11, 80));
    let address = SocketAddr::new(v4(CLIENT), taken);
    assert_eq!(b.hosts[CLIENT].bind(id, address), Err(Error::AddressInUse));
}

/// Goal: a port is not used for the same remote end again as long as others are free. Method: 1,000
/// connections that end in TIME-WAIT, to one server.
#[test]
fn ports_in_time_wait_do_not_repeat() {
    let mut b = Bench::new();
    let listener = b.listen(80, 1);
    let mut ports = Vec::new();
    for _ in 0..1000 {
        let client = b.connecting(80);
        b.settle();
        ports.push(b.hosts[CLIENT].local(client).expect("open socket").port());
        let (server, _) = b.hosts[SERVER].accept(listener, b.now).expect("a connection");
        b.hosts[CLIENT].close(client, b.now).expect("open socket");
        b.settle();
        b.hosts[SERVER].close(server, b.now).expect("open socket");
        b.settle();
    }
    assert_eq!(b.hosts[CLIENT].stack().tcp_counts(), (0, 1000));
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 1000);
}

/// Goal: a server that sees 1,000 connections learns neither the ports of connections to another
/// one, nor its own next (RFC 6056 §3.3.4). Method: connections to two servers in turns. A guess is
/// the last distance between two ports, either to the same server or between both.
#[test]
fn ports_to_one_server_predict_none_to_another() {
    let mut b = Bench::new();
    let listeners = [80, 81].map(|port| (port, b.listen(port, 1)));
    let mut ports: [Vec<i32>; 2] = Default::default();
    for _ in 0..1000 {
        for (seen, (port, listener)) in ports.iter_mut().zip(listeners) {
            let client = b.connecting(port);
            b.settle();
            seen.push(b.hosts[CLIENT].local(client).expect("open socket").port().into());
            let (server, _) = b.hosts[SERVER].accept(listener, b.now).expect("a connection");
            b.hosts[CLIENT].close(client, b.now).expect("open socket");
            b.settle();
            b.hosts[SERVER].close(server, b.now).expect("open socket");
            b.settle();
        }
    }
    let right = |distances: &[i32]| distances.windows(2).filter(|pair| pair[0] == pair[1]).count();
    let between: Vec<i32> = ports[0].iter().zip(&ports[1]).map(|(a, b)| b - a).collect();
    let near = between.iter().filter(|distance| distance.abs() < 64).count();
    assert!(right(&between) < 5 && near < 30, "{} {near}: {between:?}", right(&between));
    for own in &ports {
        let steps: Vec<i32> = own.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(right(&steps) < 5, "{}: {own:?}", right(&steps));
    }
}

/// Goal: with `IP_BIND_ADDRESS_NO_PORT` the port is chosen by `connect` and shared with others, or
/// by `listen`. A bound address stays after a connection failed; a chosen port does not.
#[test]
fn a_port_may_be_chosen_after_the_address() {
    let mut b = Bench::new();
    let address = SocketAddr::new(v4(CLIENT), 0);
    let unported = |b: &mut Bench| {
        let id = b.stream(CLIENT);
        let host = &mut b.hosts[CLIENT];
        host.set_options(id, b.now, |options| options.bind_no_port = true).expect("open socket");
        assert_eq!(host.bind(id, address), Ok(()));
        assert_eq!(host.local(id), Ok(address), "no port");
        id
    };
    let id = unported(&mut b);
    let foreign = SocketAddr::new(v4(SERVER), 0);
    assert_eq!(b.hosts[CLIENT].bind(id, foreign), Err(Error::AddressNotAvailable));
    // As in Linux, a socket without a port can be bound again.
    assert_eq!(b.hosts[CLIENT].bind(id, address), Ok(()));
    assert_eq!(b.hosts[CLIENT].connect(id, at(80), b.now), Err(Error::InProgress));
    let local = b.hosts[CLIENT].local(id).expect("open socket");
    assert!(local.ip() == v4(CLIENT) && local.port() >= EPHEMERAL_FIRST);
    assert_eq!(b.hosts[CLIENT].bind(id, address), Err(Error::Invalid));
    b.settle();
    assert_eq!(b.hosts[CLIENT].outcome(id, b.now), Err(Error::ConnectionRefused));
    assert_eq!(b.hosts[CLIENT].local(id), Ok(address));
    let id = unported(&mut b);
    assert_eq!(b.hosts[CLIENT].listen(id, 1, b.now), Ok(()));
    assert_ne!(b.hosts[CLIENT].local(id).expect("open socket").port(), 0);
    let datagram = b.datagram(CLIENT, Family::V4);
    let change = |options: &mut crate::socket::Options| options.bind_no_port = true;
    b.hosts[CLIENT].set_options(datagram, b.now, change).expect("open socket");
    assert_eq!(b.hosts[CLIENT].bind(datagram, address), Ok(()));
    assert_ne!(b.hosts[CLIENT].local(datagram).expect("open socket").port(), 0);
}
