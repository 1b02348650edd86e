//! Windows: the peer's (RFC 9293 §3.8.6.1, §3.8.6.2.1, §3.10.7.4), ours (§3.8.6.2.2), scaling
//! (RFC 7323 §2), auto-tuning and memory.

use super::script::{Script, plain, settings};
use crate::tcp::{ConnectionError, Events, Pressure, Settings, State};
extern crate std;

/// RFC 9293 §3.8.6.1: a shut window is probed, again and again, doubling, and opens.
#[test]
fn a_shut_window_is_probed() {
    let mut t = Script::plain();
    t.write(1000).expect("P. 1:1001").recv(". 1 ack 1001 win 0");
    t.write(3000).quiet().wait(199).quiet().wait(2).expect(". 1000 ack 1");
    t.recv(". 1 ack 1001 win 0").wait(399).quiet().wait(3).expect(". 1000 ack 1");
    t.recv(". 1 ack 1001 win 0").wait(790).quiet().wait(20).expect(". 1000 ack 1");
    t.recv(". 1 ack 1001 win 5000").expect("P. 1001:4001").quiet();
    // The back-off of the probes is over.
    t.wait(199).quiet().wait(60).expect(". 1001:2001");
    t.recv(". 1 ack 4001").quiet().wait(100_000).quiet();
}

/// RFC 9293 §3.8.6.1: the connection stays open as long as probes are answered, however long.
#[test]
fn answered_probes_never_give_up() {
    let mut t = Script::open(Settings { retries: 3, ..plain() }, "S 0 mss 1000");
    t.write(1000).expect("P. 1:1001").recv(". 1 ack 1001 win 0").write(100);
    for _ in 0..50 {
        t.next_timer().expect(". 1000 ack 1").recv(". 1 ack 1001 win 0");
    }
    t.state(State::Established);
    // RFC 9293 §3.8.3: without answers it ends.
    for _ in 0..3 {
        t.next_timer().expect(". 1000 ack 1");
    }
    t.next_timer().quiet().ended(Some(ConnectionError::TimedOut));
}

/// A probe is not an ACK: its receiver does not look at it that far.
#[test]
fn a_probe_does_not_replace_an_ack() {
    let mut t = Script::plain();
    t.write(1000).expect("P. 1:1001").recv(". 1 ack 1001 win 0").write(100).quiet();
    t.wait(180).recv("P. 1:11 ack 1001 win 0").quiet();
    t.wait(21).expect(". 1000 ack 11").quiet().wait(19).expect(". 1001 ack 11");
}

/// A window update that is lost is found out by the probe's answer; a FIN waits for the data.
#[test]
fn a_fin_waits_behind_a_shut_window() {
    let mut t = Script::plain();
    t.write(1000).expect("P. 1:1001").recv(". 1 ack 1001 win 0").write(500).close().quiet();
    t.next_timer().expect(". 1000 ack 1").recv(". 1 ack 1001 win 1000").expect("FP. 1001:1501");
    t.state(State::FinWait1);
}

/// RFC 9293 §3.8.6.2.1: half of the largest window may be sent at once, less waits for the timer.
#[test]
fn silly_windows_are_not_used() {
    let mut t = Script::open(plain(), "S 0 win 4000 mss 1000");
    t.recv(". 1 ack 1 win 4000").write(10_000).expect(". 1:4001").quiet();
    t.recv(". 1 ack 4001 win 300").quiet().wait(200).quiet();
    t.wait(10).expect(". 4001:4301").recv(". 1 ack 4301 win 999").quiet();
    t.recv(". 1 ack 4301 win 1000").expect(". 4301:5301");
    let mut t = Script::open(plain(), "S 0 win 600 mss 1000");
    t.recv(". 1 ack 1 win 600");
    t.c.send.wnd_max = 600;
    t.write(1000).expect(". 1:601").quiet().recv(". 1 ack 601 win 400").expect("P. 601:1001");
}

/// RFC 9293 §3.10.7.4: an old segment does not change the window.
#[test]
fn old_segments_do_not_change_the_window() {
    let mut t = Script::plain();
    t.recv(". 1:101 ack 1 win 5000")
        .recv(". 101:201 ack 1 win 4000")
        .wait(40)
        .expect(". 1 ack 201");
    assert_eq!(t.c.send.wnd, 4000);
    t.recv(". 1:101 ack 1 win 3000").expect(". 1 ack 201");
    assert_eq!(t.c.send.wnd, 4000);
    t.recv(". 201 ack 1 win 2000");
    assert_eq!(t.c.send.wnd, 2000);
}

/// A peer that takes back what it promised: nothing new is sent, what is outstanding is kept.
#[test]
fn a_window_may_shrink() {
    let mut t = Script::plain();
    t.write(5000).expect("P. 1:5001").recv(". 1 ack 1001 win 2000").write(1000).quiet();
    t.recv(". 1 ack 5001 win 2000").expect("P. 5001:6001");
}

/// RFC 9293 §3.8.6.2.2: our window opens in steps of a segment; its right edge never moves back.
#[test]
fn our_window_opens_in_steps() {
    let settings = Settings { receive_buffer: 8000, receive_buffer_max: 8000, ..plain() };
    let mut t = Script::open(settings, "S 0 win 65535 mss 1000");
    t.recv(". 1:4001 ack 1").expect(". 1 ack 4001 win 4000");
    t.recv(". 4001:8001 ack 1").expect(". 1 ack 8001 win 0");
    t.read(1, 500).quiet().read(501, 959).quiet();
    t.read(1460, 1).expect(". 1 ack 8001 win 1460").read(1461, 1459).quiet();
    t.read(2920, 1).expect(". 1 ack 8001 win 2920").quiet();
    t.read(2921, 5080).expect(". 1 ack 8001 win 8000");
}

/// Zero-window probes of the peer are answered with the window.
#[test]
fn probes_are_answered() {
    let settings = Settings { receive_buffer: 2000, receive_buffer_max: 2000, ..plain() };
    let mut t = Script::open(settings, "S 0 win 65535 mss 1000");
    t.recv(". 1:2001 ack 1").expect(". 1 ack 2001 win 0");
    // As Linux probes, and as BSD does: with a byte beyond the window.
    t.recv(". 2000 ack 1").expect(". 1 ack 2001 win 0");
    t.wait(1000).recv(". 2001:2002 ack 1").expect(". 1 ack 2001 win 0").read(1, 2000);
    t.expect(". 1 ack 2001 win 2000");
}

/// Data beyond the window is cut off and not acknowledged.
#[test]
fn data_beyond_the_window_is_cut() {
    let settings = Settings { receive_buffer: 2000, receive_buffer_max: 2000, ..plain() };
    let mut t = Script::open(settings, "S 0 win 65535 mss 1000");
    t.recv("F. 1:3001 ack 1").expect(". 1 ack 2001 win 0").state(State::Established);
    t.read(1, 2000).expect(". 1 ack 2001 win 2000");
    t.recv("F. 2001:3001 ack 1").expect(". 1 ack 3002").state(State::CloseWait).read(2001, 1000);
}

/// The buffer grows while the sender uses the window and the reader keeps up; not for a slow
/// reader, and not beyond its bound.
#[test]
fn the_buffer_grows_for_a_fast_reader() {
    let settings = Settings {
        receive_buffer: 10_000,
        receive_buffer_max: 40_000,
        sack: false,
        timestamps: false,
        ..settings()
    };
    let mut t = Script::open(settings, "S 0 win 65535 mss 1000 ws 0");
    t.recv(". 1:8001 ack 1").expect(". 1 ack 8001 win 2000");
    t.read(1, 8000).expect(". 1 ack 8001 win 20000");
    t.recv(". 8001:10001 ack 1").expect(". 1 ack 10001 win 18000").read(8001, 2000).quiet();
    t.recv(". 10001:26001 ack 1").expect(". 1 ack 26001").read(10_001, 16_000);
    t.expect(". 1 ack 26001 win 40000");
    t.recv(". 26001:62001 ack 1").expect(". 1 ack 62001").read(26_001, 36_000);
    t.expect(". 1 ack 62001 win 40000");
}

/// RFC 7323 §2.3: windows beyond 65,535 are scaled and rounded so that promises are kept.
#[test]
fn scaled_windows_keep_promises() {
    let settings = Settings { receive_buffer: 1 << 20, receive_buffer_max: 1 << 20, ..settings() };
    let mut t = Script::open(settings, "S 0 win 65535 mss 1000 ws 7");
    t.recv(". 1:1002 ack 1").wait(40).expect(". 1 ack 1002");
    let mut edge = t.c.receive.advertised;
    for round in 0..20u32 {
        let (from, to) = (1002 + round * 3001, 4003 + round * 3001);
        let text = std::format!(". {from}:{to} ack 1");
        t.recv(&text).expect(&std::format!(". 1 ack {to}"));
        assert!(t.c.receive.advertised.at_or_after(edge), "the right edge moved back");
        edge = t.c.receive.advertised;
    }
}

/// Under pressure windows stay small, but what was promised stays promised.
#[test]
fn pressure_keeps_windows_small() {
    let settings = Settings { receive_buffer: 1 << 18, receive_buffer_max: 1 << 18, ..plain() };
    let mut t = Script::open(settings, "S 0 win 65535 mss 1000");
    t.recv(". 1:2001 ack 1").expect(". 1 ack 2001 win 65535").read(1, 2000);
    t.pressure = Pressure::High;
    t.recv(". 2001:64001 ack 1").expect(". 1 ack 64001 win 3535").read(2001, 62_000);
    // No ACK that only says the same again: the peer would take it for a sign of loss.
    t.quiet().recv(". 64001:67001 ack 1").expect(". 1 ack 67001 win 2920");
    t.pressure = Pressure::None;
    t.recv(". 67001:69001 ack 1").expect(". 1 ack 69001 win 65535");
}

/// No update when the window field cannot say more: the peer would take it for a sign of loss.
#[test]
fn no_updates_beyond_the_field() {
    let settings = Settings { receive_buffer: 1 << 20, receive_buffer_max: 1 << 20, ..plain() };
    let mut t = Script::open(settings, "S 0 win 65535 mss 1000");
    t.recv(". 1:40001 ack 1").expect(". 1 ack 40001 win 65535");
    for index in 0..40 {
        t.read(1 + 1000 * index, 1000).quiet();
    }
}

/// Room to send: `WRITABLE` comes only after there was none, and when a good part is free.
#[test]
fn writable_after_the_queue_was_full() {
    let settings = Settings { send_buffer: 10_000, send_buffer_max: 20_000, ..plain() };
    let mut t = Script::open(settings, "S 0 win 65535 mss 1000");
    assert_eq!(t.c.send_room(), 20_000);
    t.write(20_000).expect(". 1:10001");
    assert_eq!(t.c.send_room(), 0);
    t.recv(". 1 ack 2001").expect(". 10001:14001").events(Events::default());
    t.recv(". 1 ack 8001").expect("P. 14001:20001").events(Events::WRITABLE);
    t.recv(". 1 ack 20001").events(Events::default());
}
