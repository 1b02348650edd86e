//! An owner that passes bytes on: holding off, and leaving data for the peer's window.

use super::script::{Script, plain};
use crate::tcp::{Connection, Events, Settings, State, Verdict};
use alloc::format;

/// Data that is not acknowledged is dropped; acknowledged data stays. The window is zero until the
/// owner resumes, and data that arrives meanwhile is refused.
#[test]
fn what_is_held_off_is_sent_again() {
    let mut t = Script::plain();
    t.recv(". 1:2001 ack 1").expect(". 1 ack 2001");
    let held = t.c.received_held();
    t.recv_and(". 2001:7001 ack 1 gso 1000", Connection::hold_off);
    t.expect(". 1 ack 2001 win 0").quiet();
    assert_eq!((t.c.received_len(), t.c.received_held()), (2000, held));
    t.recv(". 2001:3001 ack 1").verdict(Verdict::NoRoom).expect(". 1 ack 2001 win 0");
    t.read(1, 2000).quiet();
    assert_eq!(t.c.received_held(), (0, 0), "all that was kept is read");
    t.act(|c, _| c.resume()).expect(". 1 ack 2001");
    t.recv(". 2001:7001 ack 1 gso 1000").read(2001, 5000).expect(". 1 ack 7001");
}

/// Consumed data is acknowledged; the rest is dropped.
#[test]
fn what_was_used_is_acknowledged() {
    let mut t = Script::plain();
    t.recv_and(". 1:5001 ack 1 gso 1000", |connection| {
        connection.consume(2000);
        connection.hold_off();
        assert_eq!(connection.received_len(), 0);
    });
    t.expect(". 1 ack 2001 win 0").quiet();
    t.act(|c, _| c.resume()).expect(". 1 ack 2001").quiet();
    assert!(t.c.receive.offered() > 10_000, "{} bytes of window", t.c.receive.offered());
}

/// Data that the owner kept of what was dropped is acknowledged once it is passed on. So a sender
/// that waits to retry continues.
#[test]
fn what_was_kept_is_acknowledged() {
    let mut t = Script::plain();
    t.recv(". 1:1001 ack 1").wait(40).expect(". 1 ack 1001");
    t.recv_and("F. 1001:4001 ack 1 gso 1000", |c| {
        assert_eq!(c.received_unacknowledged(), 3000);
        c.hold_off();
    });
    t.expect(". 1 ack 1001 win 0").act(|c, _| c.acknowledge_kept(1000)).quiet();
    t.read(1, 1000).quiet();
    t.act(|c, _| {
        c.acknowledge_kept(1000);
        c.resume();
    });
    t.expect(". 1 ack 2001").quiet();
    t.recv("F. 2001:4001 ack 1 gso 1000").read(2001, 2000).forget_sent();
    assert!(t.c.peer_closed());
}

/// A limit applies from the first window on, whichever side opens the connection, and is at least
/// two segments.
#[test]
fn a_limit_holds_from_the_first_window() {
    for (limit, window) in [(16_384, 16_384), (1, 2920), (u32::MAX, 64_240)] {
        let mut t = Script::incoming_held(plain(), "S 0 win 65535 mss 1460");
        t.c.limit_window(limit);
        t.act(|c, _| c.accept()).expect(&format!("S. 0 ack 1 win {window}"));

        let mut t = Script::connect(plain());
        t.c.limit_window(limit);
        t.expect_first_syn("S 0").recv("S. 0 ack 1 win 65535 mss 1460").forget_sent();
        let offered = t.c.receive.offered();
        assert!(offered <= window && offered + 2920 > window, "{offered} of {window} bytes");
    }
}

/// A FIN that is not acknowledged is dropped with the data before it, in each state; an
/// acknowledged one stays.
#[test]
fn a_fin_goes_back_with_its_data() {
    for closed in [false, true] {
        let mut t = Script::plain();
        if closed {
            t.close().expect("F. 1 ack 1");
        }
        let before = t.c.state();
        t.recv_and("F. 1:1001 ack 1", Connection::hold_off).forget_sent();
        assert!(!t.c.peer_closed() && t.c.state() == before && t.c.received_len() == 0);
        t.act(|c, _| c.resume()).forget_sent();
        t.recv("F. 1:1001 ack 1").forget_sent();
        assert!(t.c.peer_closed());
        t.act(|c, _| c.hold_off());
        assert!(t.c.peer_closed() && t.c.received_len() == 1000, "it was acknowledged");
        assert_eq!(t.c.received_unacknowledged(), 0);
        t.forget_sent();
    }
}

/// Out-of-order data is dropped too.
#[test]
fn data_ahead_of_its_turn_is_not_kept() {
    let mut t = Script::sack();
    t.recv(". 2001:3001 ack 1").expect(". 1 ack 1 sack 2001-3001");
    t.recv_and(". 1:1001 ack 1", Connection::hold_off).expect(". 1 ack 1 win 0 nosack");
    t.act(|c, _| c.resume()).forget_sent();
    t.recv(". 1:1001 ack 1").wait(40).expect(". 1 ack 1001 nosack");
}

/// RFC 9293 §3.8.6.1: a zero window is probed for bytes that the owner has not handed over. The
/// answer notifies the owner as soon as there is room.
#[test]
fn a_shut_window_is_probed_for_bytes_to_come() {
    let mut t = Script::open(plain(), "S 0 win 65535 mss 1000");
    t.write(1000).expect("P. 1:1001 ack 1").recv(". 1 ack 1001 win 0");
    t.c.take_events();
    assert_eq!(t.c.window_left(), 0);
    t.act(Connection::await_peer).quiet();
    for _ in 0..3 {
        t.next_timer().expect(". 1000 ack 1");
        t.recv(". 1 ack 1001 win 0").quiet();
        assert!(!t.c.take_events().contains(Events::WRITABLE));
    }
    t.recv(". 1 ack 1001 win 3000");
    assert!(t.c.take_events().contains(Events::WRITABLE));
    assert_eq!(t.c.window_left(), 3000);
    t.wait(600_000).quiet();
}

/// Data in flight has its own timer. Its acknowledgment notifies the owner, or starts the probes.
#[test]
fn a_waiting_owner_is_woken_by_the_next_ack() {
    let mut t = Script::plain();
    t.write(1000).expect("P. 1:1001 ack 1");
    t.c.take_events();
    t.act(Connection::await_peer).quiet();
    t.recv(". 1 ack 1001 win 0");
    assert!(!t.c.take_events().contains(Events::WRITABLE));
    t.next_timer().expect(". 1000 ack 1").recv(". 1 ack 1001 win 1");
    assert!(t.c.take_events().contains(Events::WRITABLE));
}

/// A silent peer ends the wait: the connection fails after the usual number of probes.
#[test]
fn a_silent_peer_with_a_shut_window_is_given_up() {
    let settings = Settings { retries2: 3, ..plain() };
    let mut t = Script::open(settings, "S 0 win 65535 mss 1000");
    t.write(1000).expect("P. 1:1001 ack 1").recv(". 1 ack 1001 win 0");
    t.act(Connection::await_peer);
    t.wait(600_000).forget_sent();
    assert_eq!(t.c.state(), State::Closed);
}

/// Data that the owner has not consumed is not acknowledged while it says so, and can be dropped
/// later. It is acknowledged when that ends. The window field counts from the acknowledgment
/// number.
#[test]
fn what_waits_is_not_acknowledged() {
    let mut t = Script::plain();
    let edge = t.c.receive.edge();
    t.recv_and(". 1:5001 ack 1 gso 1000", |c| c.ack_only_consumed(true)).quiet();
    t.wait(300).quiet();
    t.act(|c, _| c.consume(2000)).expect(". 1 ack 2001").quiet();
    assert!(t.c.receive.edge().at_or_after(edge), "the right edge moved back");
    t.recv(". 5001:6001 ack 1").quiet();
    t.write(10).expect("P. 1:11 ack 2001");
    t.act(|c, _| c.ack_only_consumed(false)).expect(". 11 ack 6001");
    assert_eq!(t.c.received_len(), 4000);
    t.recv_and("F. 6001:7001 ack 11", |c| c.ack_only_consumed(true)).quiet();
    t.act(|c, _| c.hold_off()).expect(". 11 ack 6001 win 0");
    assert!(t.c.received_len() == 4000 && !t.c.peer_closed());
    t.act(|c, _| c.ack_only_consumed(false)).forget_sent();
}

/// A duplicate of unacknowledged data is not reported: a block beyond the acknowledgment number
/// would be taken for a SACK block.
#[test]
fn a_copy_of_what_waits_is_not_reported() {
    let mut t = Script::sack();
    t.recv_and(". 1:1001 ack 1", |c| c.ack_only_consumed(true)).quiet();
    t.recv(". 1:1001 ack 1").expect(". 1 ack 1 nosack");
    t.act(|c, _| c.ack_only_consumed(false)).expect(". 1 ack 1001 nosack");
}

/// Windows offer at most the owner's limit, but never less than two segments.
#[test]
fn an_owner_limits_windows() {
    let mut t = Script::plain();
    t.act(|c, _| c.limit_window(4000)).recv(". 1:30001 ack 1 gso 1000").read(1, 30_000);
    t.expect(". 1 ack 30001 win 4000").act(|c, _| c.limit_window(0));
    t.recv(". 30001:34001 ack 1 gso 1000").read(30_001, 4000).expect(". 1 ack 34001 win 2000");
}
