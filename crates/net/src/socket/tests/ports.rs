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

/// Goal: a port is skipped while its last connection to the same peer still closes. Method: all
/// ports but one are taken. The connection of that port is left in FIN-WAIT-2. Then another port
/// becomes free, the next one in the search from anywhere else.
#[test]
fn a_port_whose_connection_still_closes_is_passed_over() {
    let mut b = Bench::new();
    b.listen(80, 100);
    let range = EPHEMERAL_FIRST..=EPHEMERAL_LAST;
    let middle = EPHEMERAL_FIRST.midpoint(EPHEMERAL_LAST);
    let mut holders = Vec::new();
    for port in range.filter(|port| *port != middle) {
        let id = b.stream(CLIENT);
        b.hosts[CLIENT].bind(id, SocketAddr::new(v4(CLIENT), port)).expect("free");
        holders.push((port, id));
    }
    let begin = |b: &mut Bench| {
        let id = b.connecting(80);
        b.settle();
        (id, b.hosts[CLIENT].local(id).expect("bound").port())
    };
    let (first, port) = begin(&mut b);
    assert_eq!(port, middle);
    b.hosts[CLIENT].close(first, b.now).expect("open socket");
    b.settle();
    for other in [middle - 1, middle + 1] {
        let (_, holder) = holders.iter().find(|(port, _)| *port == other).expect("held");
        b.hosts[CLIENT].close(*holder, b.now).expect("open socket");
        assert_eq!(begin(&mut b).1, other);
    }
}
