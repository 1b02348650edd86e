//! A host that sends to itself: nothing reaches the device.

use super::bench::*;
use super::datagram::data;
use crate::socket::{Error, Family, Options, Readiness, Shutdown};
use crate::time::Duration;
use core::net::SocketAddr;
use towpath_packet::Burst;

impl Bench {
    /// Runs the server; it must send nothing.
    fn turn(&mut self) {
        let mut burst = Burst::new();
        self.with(SERVER, |sockets, cx| sockets.output(&mut burst, cx));
        assert!(burst.is_empty(), "nothing leaves");
        assert!(!self.hosts[SERVER].stack().has_output());
    }
}

/// Goal: datagrams of any length arrive with both addresses; a closed port is reported to a
/// connected sender.
#[test]
fn datagrams_to_oneself_arrive() {
    for ip in [v4, v6] {
        let mut b = Bench::new();
        let there = SocketAddr::new(ip(SERVER), 53);
        let server = b.bound(there);
        let family = if there.is_ipv4() { Family::V4 } else { Family::V6 };
        let client = b.datagram(SERVER, family);
        for len in [0, 1, 1400, 1473, 40_000, 65_507] {
            assert_eq!(b.send_to(SERVER, client, &data(len), there), Ok(len));
            b.turn();
            let (bytes, received) = b.take(SERVER, server).expect("it came");
            assert_eq!(
                (bytes.len(), bytes == data(len), received.from.ip()),
                (len, true, there.ip())
            );
            assert_eq!(b.send_to(SERVER, server, &data(9), received.from), Ok(9));
            b.turn();
            assert_eq!(b.take(SERVER, client).expect("an answer").0, data(9));
        }
        let closed = SocketAddr::new(ip(SERVER), 9);
        let now = b.now;
        b.hosts[SERVER].connect(client, closed, now).expect("route");
        assert_eq!(b.send_to(SERVER, client, b"x", closed), Ok(1));
        b.turn();
        assert_eq!(b.take(SERVER, client).err(), Some(Error::ConnectionRefused));
        assert_eq!(b.in_use(), 0);
    }
}

/// Goal: a super-packet stays whole, and may have larger datagrams than the device takes.
#[test]
fn super_packets_to_oneself_stay_whole() {
    let mut b = Bench::new();
    let server = b.bound(at(53));
    let client = b.datagram(SERVER, Family::V4);
    let now = b.now;
    let cut = |options: &mut Options| options.datagram.segment_size = 5000;
    b.hosts[SERVER].set_options(client, now, cut).expect("open socket");
    let whole = |options: &mut Options| options.datagram.coalesced = true;
    b.hosts[SERVER].set_options(server, now, whole).expect("open socket");
    assert_eq!(b.send_to(SERVER, client, &data(12_000), at(53)), Ok(12_000));
    b.turn();
    let (bytes, received) = b.take(SERVER, server).expect("it came");
    assert_eq!((bytes, received.segment_size.map(|size| size.get())), (data(12_000), Some(5000)));
    assert_eq!(b.in_use(), 0);
}

/// Goal: datagrams fill the send buffer until they are received; a waiting sender is woken, and
/// nothing is lost.
#[test]
fn a_send_buffer_fills_until_datagrams_are_taken_in() {
    let mut b = Bench::new();
    b.bound(at(53));
    let client = b.datagram(SERVER, Family::V4);
    let sent = (0..10_000).take_while(|_| b.send_to(SERVER, client, b"x", at(53)).is_ok()).count();
    assert!((100..1000).contains(&sent), "{sent}");
    assert_eq!(b.send_to(SERVER, client, b"x", at(53)), Err(Error::WouldBlock));
    while !b.wakes(SERVER).is_empty() {}
    b.turn();
    let reported = b.wakes(SERVER);
    assert!(
        reported.iter().any(|(id, ready)| *id == client && ready.contains(Readiness::WRITABLE))
    );
    assert_eq!(b.send_to(SERVER, client, b"x", at(53)), Ok(1));
}

/// Goal: a connection to the same host opens, carries bytes both ways and closes; a closed port
/// refuses.
#[test]
fn connections_to_oneself() {
    for ip in [v4, v6] {
        let mut b = Bench::new();
        let family = if ip(0).is_ipv4() { Family::V4 } else { Family::V6 };
        let there = SocketAddr::new(ip(SERVER), 80);
        let now = b.now;
        let listener = b.hosts[SERVER].stream(family).expect("room");
        b.hosts[SERVER].bind(listener, there).expect("free");
        b.hosts[SERVER].listen(listener, 1, now).expect("bound");
        let client = b.hosts[SERVER].stream(family).expect("room");
        let _ = b.hosts[SERVER].connect(client, there, now);
        b.turn();
        assert_eq!(b.hosts[SERVER].connect(client, there, now), Ok(()));
        let (server, from) = b.hosts[SERVER].accept(listener, now).expect("a connection");
        assert_eq!(from.ip(), there.ip());
        for (from, to) in [(client, server), (server, client)] {
            let (mut sent, mut received) = (0, 0);
            while received < 300_000 {
                sent += b.send(SERVER, from, &data(30_000)).unwrap_or(0);
                b.turn();
                while let Ok(bytes) = b.receive(SERVER, to) {
                    assert!(!bytes.is_empty() && received < sent);
                    received += bytes.len();
                }
                b.now += Duration::from_millis(1);
                b.with(SERVER, |sockets, cx| sockets.on_deadline(cx));
            }
        }
        let now = b.now;
        b.hosts[SERVER].shutdown(client, Shutdown::Write, now).expect("open");
        b.turn();
        while b.receive(SERVER, server).is_ok_and(|bytes| !bytes.is_empty()) {}
        for id in [server, client, listener] {
            b.hosts[SERVER].close(id, now).expect("open socket");
        }
        b.turn();
        let refused = b.hosts[SERVER].stream(family).expect("room");
        let _ = b.hosts[SERVER].connect(refused, there, now);
        b.turn();
        let outcome = b.hosts[SERVER].connect(refused, there, now);
        assert_eq!(outcome, Err(Error::ConnectionRefused));
        assert_eq!(b.in_use(), 0);
    }
}
