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
    let mut t = Script::open(Settings { retries2: 3, ..plain() }, "S 0 mss 1000");
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

/// What arrives while the window is shut puts the next probe off (Linux's tcp_ack_probe), and is
/// acknowledged in its own time.
#[test]
fn a_probe_does_not_replace_an_ack() {
    let mut t = Script::plain();
    t.write(1000).expect("P. 1:1001").recv(". 1 ack 1001 win 0").write(100).quiet();
    t.wait(180).recv("P. 1:11 ack 1001 win 0").quiet().wait(39).quiet();
    t.wait(1).expect(". 1001 ack 11").quiet().wait(159).quiet().wait(2).expect(". 1000 ack 11");
}

/// A window update that is lost is found out by the probe's answer; a FIN waits for the data.
#[test]
fn a_fin_waits_behind_a_shut_window() {
    let mut t = Script::plain();
    t.write(1000).expect("P. 1:1001").recv(". 1 ack 1001 win 0").write(500).close().quiet();
    t.next_timer().expect(". 1000 ack 1").recv(". 1 ack 1001 win 1000").expect("FP. 1001:1501");
    t.state(State::FinWait1);
}

/// RFC 9293 §3.8.6.2.1: less than a segment waits for the timer; where the peer's largest window
/// is small a segment is half of it, as in Linux.
#[test]
fn silly_windows_are_not_used() {
    let mut t = Script::open(plain(), "S 0 win 4000 mss 1000");
    t.c.send.wnd = 4000;
    t.c.send.wnd_max = 4000;
    t.write(10_000).expect(". 1:4001").quiet();
    t.recv(". 1 ack 4001 win 300").quiet().wait(200).quiet();
    t.wait(10).expect(". 4001:4301").recv(". 1 ack 4301 win 999").quiet();
    t.recv(". 1 ack 4301 win 1000").expect(". 4301:5301");
    let mut t = Script::incoming(plain(), "S 0 win 600 mss 1000");
    t.expect("S. 0 ack 1").recv(". 1 ack 1 win 600");
    t.write(1000).expect(". 1:301 nogso").expect(". 301:601 nogso").quiet();
    t.recv(". 1 ack 601 win 400").expect("P. 601:1001");
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

/// Room to send, as in Linux: a buffer begun may be filled, another one begun while memory is below
/// the bound. `WRITABLE` comes only after there was no room, and when a third is free.
#[test]
fn writable_after_the_queue_was_full() {
    let settings = Settings { send_buffer: 10_000, send_buffer_max: 20_000, ..plain() };
    let mut t = Script::open(settings, "S 0 win 65535 mss 1000");
    assert_eq!(t.c.send_room(), 32_000, "half of the peer's window, in whole segments");
    t.write(32_000).expect(". 1:10001");
    assert_eq!(t.c.send_room(), 10_000, "what was sent makes room in the buffer begun");
    t.write(10_000);
    assert_eq!(t.c.send_room(), 0);
    t.recv(". 1 ack 10001").expect(". 10001:30001").events(Events::default());
    t.recv(". 1 ack 30001").expect("P. 30001:42001").events(Events::WRITABLE);
    t.recv(". 1 ack 42001").events(Events::default());
}

/// TCP_NOTSENT_LOWAT: unsent bytes beyond it leave no room, and room is told when they are half.
#[test]
fn unsent_bytes_are_bounded() {
    let mut t = Script::open(plain(), "S 0 win 65535 mss 1000");
    t.c.set_notsent_lowat(4000);
    t.write(20_000).expect(". 1:10001");
    assert_eq!(t.c.send_room(), 22_000, "the buffer begun is filled");
    t.write(22_000);
    assert_eq!(t.c.send_room(), 0);
    t.recv(". 1 ack 10001").expect(". 10001:30001").events(Events::default());
    t.recv(". 1 ack 15001").expect(". 30001:40001").events(Events::default());
    t.recv(". 1 ack 16001").expect("P. 40001:42001").events(Events::WRITABLE);
    t.recv(". 1 ack 42001").events(Events::default());
}

/// MSG_MORE and TCP_CORK hold what is not a full segment; an ACK or the end of the cork lets go,
/// and so does the timer in the end. PSH only where a write ended for good.
#[test]
fn corks_hold_small_segments() {
    let mut t = Script::plain();
    t.more(40).quiet().wait(199).quiet().wait(12).expect("P. 1:41").recv(". 1 ack 41");
    t.more(100).more(160).quiet().write(5).expect("P. 41:306").recv(". 1 ack 306");
    t.more(3100).expect(". 306:3306").more(50).quiet();
    t.recv(". 1 ack 2306").expect(". 3306:3456").recv(". 1 ack 3456");
    t.act(|c, _| c.set_cork(true)).write(40).write(40).quiet();
    t.act(|c, _| c.set_cork(false)).expect("P. 3456:3536").recv(". 1 ack 3536");
    t.act(|c, _| c.set_cork(true)).write(40).quiet();
    t.act(|c, _| c.set_nodelay(true)).expect("P. 3536:3576").write(7).quiet();
}

/// Minshall's change to Nagle's algorithm: only a small segment that is outstanding holds the next.
#[test]
fn small_segments_hold_small_segments() {
    let mut t = Script::plain();
    t.write(2000).expect("P. 1:2001").write(10).expect("P. 2001:2011").write(10).quiet();
    t.recv(". 1 ack 2001").quiet().recv(". 1 ack 2011").expect("P. 2011:2021");
}

/// MSG_EOR: bytes after a record never share a segment with it.
#[test]
fn records_do_not_share_segments() {
    let mut t = Script::plain();
    t.write(9600).expect("P. 1:9601").record(300).record(400).write(2000).quiet();
    t.recv(". 1 ack 9601").expect("P. 9601:9901 nogso").expect("P. 9901:10301 nogso");
    t.expect("P. 10301:12301 gso 1000").recv(". 1 ack 12301");
}

/// tcp_info: time limited by the peer's window and by the send buffer, and what was counted.
#[test]
fn info_tells_what_limited() {
    let settings = Settings { send_buffer: 5000, send_buffer_max: 5000, ..plain() };
    let mut t = Script::open(settings, "S 0 win 65535 mss 1000");
    t.wait(50).write(1000).expect("P. 1:1001").wait(10).recv(". 1 ack 1001 win 0");
    t.wait(20).write(3000).quiet().wait(100).recv(". 1 ack 1001 win 65535").expect("P. 1001:4001");
    let info = t.c.info(t.now);
    assert_eq!((info.busy_time, info.rwnd_limited, info.sndbuf_limited), (110_000, 100_000, 0));
    assert_eq!((info.unacked, info.snd_cwnd, info.bytes_acked), (3, 10, 1000));
    assert_eq!((info.data_segs_out, info.bytes_sent, info.notsent_bytes), (4, 4000, 0));
    assert_eq!((info.last_data_sent, info.rtt > 0, info.snd_mss), (0, true, 1000));
    // The buffer is full and the window is not.
    t.write(1000).expect("P. 4001:5001");
    assert_eq!(t.c.send_room(), 0);
    t.write(1000).expect("P. 5001:6001").wait(30).recv(". 1 ack 6001").events(Events::WRITABLE);
    let info = t.c.info(t.now + crate::time::Duration::from_secs(1));
    assert_eq!(info.sndbuf_limited, 30_000);
    assert_eq!(info.last_data_sent, 1030);
    assert_eq!(info.busy_time, 140_000);
}

/// Packets end where buffers end, as in Linux, unless more makes one of the largest size: a small
/// window is then left for a larger packet, and a large one is used in the fewest packets.
#[test]
fn packets_hold_several_buffers_only_at_full_size() {
    let mut t = Script::plain();
    t.c.send.wnd = 1 << 20;
    t.c.congestion.window_mut().set_cwnd(50);
    t.write(100_000).expect("P. 1:25001 gso 1000").expect("P. 25001:32001 gso 1000");
    t.expect("P. 32001:50001 gso 1000").quiet();
    let mut t = Script::plain();
    t.c.send.wnd = 1 << 20;
    t.c.congestion.window_mut().set_cwnd(200);
    t.write(100_000).expect("P. 1:65001 gso 1000").expect("P. 65001:96001 gso 1000");
    t.expect("P. 96001:100001 gso 1000");
}

/// MSG_EOR: small records that are sent again stay apart too (Linux's tcp_skb_can_collapse).
#[test]
fn records_do_not_share_segments_when_sent_again() {
    let mut t = Script::sack();
    t.record(400).expect("P. 1:401");
    t.act(|c, _| c.set_nodelay(true)).record(400).expect("P. 401:801").write(300);
    t.expect("P. 801:1101").recv(". 1 ack 1 sack 801-1101").wait(100);
    t.expect("P. 1:401 nogso").forget_sent().recv(". 1 ack 1101");
}

/// A shut window leaves the congestion window alone; when it opens after a pause, data starts
/// slowly again (RFC 5681 §4.1).
#[test]
fn a_shut_window_does_not_shrink_the_congestion_window() {
    let mut t = Script::plain();
    t.write(10_000).expect(". 1:10001").recv(". 1 ack 10001 win 0");
    assert_eq!(t.c.congestion.cwnd(), 20);
    t.wait(10).write(20_000).quiet().next_timer().expect(". 10000 ack 1");
    t.next_timer().expect(". 10000 ack 1");
    assert_eq!(t.c.congestion.cwnd(), 20);
    t.wait(300).recv(". 1 ack 10001 win 65535").expect(". 10001:20001");
    assert_eq!(t.c.congestion.cwnd(), 10);
}

/// RFC 9293 §3.8.6.1: a window that is shut in front of what was sent is no reason to give up, as
/// long as the peer answers.
#[test]
fn a_window_shut_in_front_of_data() {
    let mut t = Script::open(Settings { retries2: 3, ..plain() }, "S 0 mss 1000");
    t.write(1000).expect("P. 1:1001");
    for _ in 0..20 {
        t.recv(". 1 ack 1 win 0").next_timer().forget_sent();
    }
    t.state(State::Established).recv(". 1 ack 1001 win 5000").write(10).expect("P. 1001:1011");
}
