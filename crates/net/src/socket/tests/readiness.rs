//! Events of `poll` in each state, as in Linux.

use super::bench::*;
use crate::socket::{Error, Readiness, Shutdown};

const IN: Readiness = Readiness::READABLE;
const OUT: Readiness = Readiness::WRITABLE;

#[test]
fn from_new_to_closed() {
    let mut b = Bench::new();
    let id = b.stream(CLIENT);
    assert_eq!(b.hosts[CLIENT].readiness(id), OUT | Readiness::HUP);
    let (server, client) = b.connected();
    assert_eq!(b.hosts[CLIENT].readiness(client), OUT);
    assert_eq!(b.send(SERVER, server, b"x"), Ok(1));
    b.settle();
    assert_eq!(b.hosts[CLIENT].readiness(client), IN | OUT);
    b.hosts[SERVER].shutdown(server, Shutdown::Write, b.now).expect("connected");
    b.settle();
    assert_eq!(b.hosts[CLIENT].readiness(client), IN | OUT | Readiness::READ_HUP);
    b.hosts[CLIENT].close(client, b.now).expect("open socket");
    assert_eq!(b.hosts[CLIENT].readiness(client), Readiness::NONE);
}

/// Goal: a socket that a poll found not writable reports room, though no send failed.
#[test]
fn a_socket_that_is_only_polled_reports_room() {
    let mut b = Bench::new();
    let (_, client) = b.connected();
    let mut sent = 0;
    while b.hosts[CLIENT].readiness(client).contains(OUT) {
        sent += b.send(CLIENT, client, &[0; 1000]).expect("the socket is writable");
    }
    assert_ne!(b.send(CLIENT, client, &[0; 1]), Err(Error::WouldBlock), "the queue is not full");
    b.wakes(CLIENT);
    b.settle();
    let wakes = b.wakes(CLIENT);
    let is_reported = |&(id, what): &(_, Readiness)| id == client && what.contains(OUT);
    assert!(wakes.iter().any(is_reported), "{wakes:?} after {sent} bytes");
    assert_eq!(b.hosts[CLIENT].readiness(client), OUT);
}

#[test]
fn a_handshake_is_ready_for_nothing() {
    let mut b = Bench::new();
    b.listen(80, 1);
    let id = b.connecting(80);
    assert_eq!(b.hosts[CLIENT].readiness(id), Readiness::NONE);
    b.settle();
    assert_eq!(b.hosts[CLIENT].readiness(id), OUT);
}

#[test]
fn a_refused_handshake_is_ready_for_all() {
    let mut b = Bench::new();
    let id = b.connecting(80);
    b.settle();
    let ready = b.hosts[CLIENT].readiness(id);
    assert!(ready.contains(IN | OUT | Readiness::ERR | Readiness::HUP), "{ready:?}");
    let news = b.hosts[CLIENT].next_wake().map(|(id, _)| id);
    assert_eq!(news, Some(id));
}

#[test]
fn a_listener_is_readable_while_a_connection_waits() {
    let mut b = Bench::new();
    let listener = b.listen(80, 1);
    assert_eq!(b.hosts[SERVER].readiness(listener), Readiness::NONE);
    b.connecting(80);
    b.settle();
    assert_eq!(b.hosts[SERVER].readiness(listener), IN);
    b.hosts[SERVER].accept(listener, b.now).expect("a connection");
    assert_eq!(b.hosts[SERVER].readiness(listener), Readiness::NONE);
}

#[test]
fn low_water_says_how_much_makes_readable() {
    let mut b = Bench::new();
    let (server, client) = b.connected();
    let change = |options: &mut crate::socket::Options| options.receive_low_water = 3;
    b.hosts[CLIENT].set_options(client, b.now, change).expect("open socket");
    for expected in [OUT, OUT, IN | OUT] {
        assert_eq!(b.send(SERVER, server, b"x"), Ok(1));
        b.settle();
        assert_eq!(b.hosts[CLIENT].readiness(client), expected);
    }
}
