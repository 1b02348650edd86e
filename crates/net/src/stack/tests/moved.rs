//! Connections that move to another stack.

use super::bench::{Bench, FAR4, FAR6, PEER4, PEER6, segment};
use super::tcp::{NONE, write};
use crate::tcp::{Events, State};
use crate::time::Duration;
use crate::wire::tcp::{Flags, Options};
use core::net::SocketAddr;
use towpath_packet::Caps;

const SYN: Flags = Flags::SYN;
const ACK: Flags = Flags::ACK;
const FIN: Flags = Flags::FIN;

/// Two transparent stacks with one clock.
fn pair() -> [Bench; 2] {
    [(); 2].map(|()| Bench::transparent(Caps::plain(1500)))
}

/// Moves all connections with this peer; returns their number.
fn all(benches: &mut [Bench; 2], peer: SocketAddr) -> usize {
    let [from, to] = benches;
    let moved = from.stack.tcp_take(|_, remote| remote == peer);
    let count = moved.len();
    for one in moved {
        to.stack.tcp_put(one, to.now);
    }
    count
}

/// Goal: a connection with data in both queues, and data in flight, continues in another stack as
/// if nothing had happened, and retransmits what is lost. Another connection stays.
#[test]
fn an_open_connection_continues_elsewhere() {
    for (far, peer) in [(FAR4, PEER4), (FAR6, PEER6)] {
        let mut benches = pair();
        let (local, remote) = (SocketAddr::new(far, 80), SocketAddr::new(peer, 999));
        let other = SocketAddr::new(peer, 1000);
        let mut ack = 0;
        for remote in [other, remote] {
            let b = &mut benches[0];
            let options = Options { mss: Some(1000), ..NONE };
            b.input(&segment(remote, local, SYN, (100, 0), &options, b"")).quiet();
            let (handle, _) = b.stack.next_event().expect("a request");
            let now = b.now;
            b.stack.with_tcp(handle, now, |connection| connection.accept());
            ack = b.output()[0].tcp().0.sequence.wrapping_add(1);
            b.input(&segment(remote, local, ACK, (101, ack), &NONE, b"hello")).output();
            write(b, handle, b"in flight");
            assert_eq!(b.output()[0].data(), b"in flight");
            while b.stack.next_event().is_some() {}
        }
        assert_eq!(all(&mut benches, remote), 1);
        let [from, to] = &mut benches;
        assert_eq!((from.stack.tcp_counts().0, to.stack.tcp_counts().0), (1, 1));
        assert_eq!(from.stack.tcp_sending().0, 1, "the other one is still there");
        to.input(&segment(remote, local, ACK, (106, ack), &NONE, b" world")).output();
        let (handle, events) = to.stack.next_event().expect("data");
        assert!(events.contains(Events::READABLE));
        let connection = to.stack.tcp(handle).expect("it is there");
        assert_eq!(connection.received_len(), 11);
        // What was in flight is lost: the new stack has its timer.
        let again = (0..10).find_map(|_| {
            to.now = to.stack.next_deadline().expect("a timer");
            to.with_context(|stack, cx| stack.on_deadline(cx));
            to.output().into_iter().find(|out| !out.data().is_empty())
        });
        assert_eq!(again.expect("it is sent again").data(), b"in flight");
        let acked = ack.wrapping_add(9);
        to.input(&segment(remote, local, ACK, (112, acked), &NONE, b"")).output();
        assert_eq!(to.stack.tcp_sending(), (0, 0));
        // The former stack knows nothing of it.
        assert_eq!(
            from.input(&segment(remote, local, ACK, (106, ack), &NONE, b"x")).one().tcp().0.flags,
            Flags::RST
        );
    }
}

/// Goal: connections that wait for their owner's decision, that close without an owner, or are in
/// TIME-WAIT move too, and are counted where they are.
#[test]
fn connections_in_other_states_move() {
    let mut benches = pair();
    let (local, remote) = (SocketAddr::new(FAR4, 80), SocketAddr::new(PEER4, 999));
    let options = Options { mss: Some(1000), ..NONE };
    benches[0].input(&segment(remote, local, SYN, (100, 0), &options, b"")).quiet();
    assert!(benches[0].stack.next_event().is_some());
    assert_eq!(all(&mut benches, remote), 1);
    let [from, to] = &mut benches;
    assert_eq!(from.stack.tcp_connections().count(), 0);
    let moved = to.stack.tcp_connections().next().expect("it moved");
    assert!(moved.state().is_opening() && moved.is_owned());
    // A retransmitted SYN finds it; its owner answers.
    to.input(&segment(remote, local, SYN, (100, 0), &options, b"")).quiet();
    let taken = to.stack.tcp_take(|_, _| true);
    let now = to.now;
    let handle = taken.into_iter().find_map(|one| to.stack.tcp_put(one, now)).expect("one");
    to.stack.with_tcp(handle, now, |connection| connection.accept());
    let answer = to.output()[0].tcp().0;
    assert_eq!(answer.flags, SYN | ACK);
    let ack = answer.sequence.wrapping_add(1);
    to.input(&segment(remote, local, ACK, (101, ack), &NONE, b"")).output();

    // It closes without an owner, and moves back while it does.
    to.stack.with_tcp(handle, now, |connection| connection.close_send());
    to.stack.tcp_release(handle, now);
    assert_eq!(to.output()[0].tcp().0.flags, FIN | ACK);
    benches.swap(0, 1);
    assert_eq!(all(&mut benches, remote), 1);
    let to = &mut benches[1];
    assert_eq!(to.stack.tcp_connections().next().map(|one| one.state()), Some(State::FinWait1));
    to.input(&segment(remote, local, FIN | ACK, (101, ack + 1), &NONE, b"")).output();
    assert_eq!(to.stack.tcp_counts(), (0, 1), "in TIME-WAIT");
    benches.swap(0, 1);
    assert_eq!(all(&mut benches, remote), 1);
    assert_eq!(benches[0].stack.tcp_counts(), (0, 0));
    let to = &mut benches[1];
    to.now += Duration::from_secs(1);
    // A retransmitted FIN is answered.
    let answer = to.input(&segment(remote, local, FIN | ACK, (101, ack + 1), &NONE, b"")).one();
    assert_eq!((answer.tcp().0.flags, answer.tcp().0.acknowledgment), (ACK, 102));
}

/// Bad input: the other stack has a connection with the same addresses. The one that comes ends.
#[test]
fn a_connection_does_not_take_the_place_of_another() {
    let mut benches = pair();
    let (local, remote) = (SocketAddr::new(FAR4, 80), SocketAddr::new(PEER4, 999));
    for b in &mut benches {
        let now = b.now;
        b.stack.tcp_connect(local, remote, now).expect("room");
    }
    let [from, to] = &mut benches;
    let moved = from.stack.tcp_take(|_, _| true).pop().expect("one");
    assert_eq!(to.stack.tcp_put(moved, to.now), None);
    assert_eq!((from.stack.tcp_counts().0, to.stack.tcp_counts().0), (0, 1));
}
