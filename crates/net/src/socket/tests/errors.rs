//! Results of calls in each state, as in Linux.

use super::bench::*;
use crate::socket::{Error, Linger, Shutdown};
use alloc::vec::Vec;

#[test]
fn a_new_socket_is_not_connected() {
    let mut b = Bench::new();
    let id = b.stream(CLIENT);
    assert_eq!(b.receive(CLIENT, id), Err(Error::NotConnected));
    assert_eq!(b.send(CLIENT, id, b"x"), Err(Error::BrokenPipe));
    assert_eq!(b.hosts[CLIENT].remote(id), Err(Error::NotConnected));
    assert_eq!(b.hosts[CLIENT].shutdown(id, Shutdown::Both, b.now), Err(Error::NotConnected));
    assert_eq!(b.hosts[CLIENT].accept(id, b.now).err(), Some(Error::Invalid));
}

#[test]
fn a_name_of_a_closed_socket_finds_nothing() {
    let mut b = Bench::new();
    let id = b.stream(CLIENT);
    assert_eq!(b.hosts[CLIENT].close(id, b.now), Ok(()));
    let next = b.stream(CLIENT);
    assert_ne!(id, next);
    assert_eq!(b.hosts[CLIENT].close(id, b.now), Err(Error::BadSocket));
    assert_eq!(b.receive(CLIENT, id), Err(Error::BadSocket));
    assert_eq!(b.hosts[CLIENT].count(), 1);
}

#[test]
fn a_listener_neither_sends_nor_connects() {
    let mut b = Bench::new();
    let id = b.listen(80, 1);
    assert_eq!(b.hosts[SERVER].accept(id, b.now).err(), Some(Error::WouldBlock));
    assert_eq!(b.receive(SERVER, id), Err(Error::NotConnected));
    assert_eq!(b.send(SERVER, id, b"x"), Err(Error::BrokenPipe));
    assert_eq!(b.hosts[SERVER].connect(id, at(81), b.now), Err(Error::IsConnected));
}

#[test]
fn the_outcome_of_connecting_is_reported_once() {
    let mut b = Bench::new();
    b.listen(80, 1);
    let id = b.connecting(80);
    assert_eq!(b.hosts[CLIENT].connect(id, at(80), b.now), Err(Error::Already));
    assert_eq!(b.receive(CLIENT, id), Err(Error::WouldBlock));
    assert_eq!(b.send(CLIENT, id, b"x"), Err(Error::WouldBlock));
    b.settle();
    assert_eq!(b.hosts[CLIENT].connect(id, at(80), b.now), Ok(()));
    assert_eq!(b.hosts[CLIENT].connect(id, at(80), b.now), Err(Error::IsConnected));
}

#[test]
fn a_refused_socket_can_connect_again() {
    let mut b = Bench::new();
    let id = b.connecting(80);
    b.settle();
    assert_eq!(b.hosts[CLIENT].connect(id, at(80), b.now), Err(Error::ConnectionRefused));
    b.listen(80, 1);
    assert_eq!(b.hosts[CLIENT].connect(id, at(80), b.now), Err(Error::InProgress));
    b.settle();
    assert_eq!(b.hosts[CLIENT].connect(id, at(80), b.now), Ok(()));
}

#[test]
fn a_reset_is_reported_once_and_then_the_stream_ends() {
    let mut b = Bench::new();
    let (server, client) = b.connected();
    let linger = |options: &mut crate::socket::Options| options.linger = Linger::Reset;
    b.hosts[SERVER].set_options(server, b.now, linger).expect("open socket");
    b.hosts[SERVER].close(server, b.now).expect("open socket");
    b.settle();
    assert_eq!(b.receive(CLIENT, client), Err(Error::ConnectionReset));
    assert_eq!(b.receive(CLIENT, client), Ok(Vec::new()));
    assert_eq!(b.send(CLIENT, client, b"x"), Err(Error::BrokenPipe));
}

#[test]
fn closing_with_bytes_unread_resets() {
    // RFC 2525 §2.17.
    let mut b = Bench::new();
    let (server, client) = b.connected();
    assert_eq!(b.send(CLIENT, client, b"unread"), Ok(6));
    b.settle();
    b.hosts[SERVER].close(server, b.now).expect("open socket");
    b.settle();
    assert_eq!(b.receive(CLIENT, client), Err(Error::ConnectionReset));
}

#[test]
fn each_direction_ends_by_itself() {
    let mut b = Bench::new();
    let (server, client) = b.connected();
    assert_eq!(b.send(CLIENT, client, b"ask"), Ok(3));
    assert_eq!(b.hosts[CLIENT].shutdown(client, Shutdown::Write, b.now), Ok(()));
    assert_eq!(b.send(CLIENT, client, b"x"), Err(Error::BrokenPipe));
    b.settle();
    assert_eq!(b.receive(SERVER, server).as_deref(), Ok(&b"ask"[..]));
    assert_eq!(b.receive(SERVER, server), Ok(Vec::new()));
    assert_eq!(b.send(SERVER, server, b"answer"), Ok(6));
    b.settle();
    assert_eq!(b.receive(CLIENT, client).as_deref(), Ok(&b"answer"[..]));
    assert_eq!(b.receive(CLIENT, client), Err(Error::WouldBlock));
}
