//! Windows: the peer's (RFC 9293 §3.8.6.1, §3.8.6.2.1, §3.10.7.4), ours (§3.8.6.2.2), scaling (RFC
//! 7323 §2), auto-tuning and memory.

use super::script::{Script, plain, settings};
use crate::tcp::{ConnectionError, Events, Pressure, Settings, State, Verdict};
extern crate std;

/// RFC 9293 §3.8.6.1: a zero window is probed at doubling intervals until it opens.
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

/// RFC 9293 §3.8.6.1: the connection stays open as long as probes are answered, however long that
/// is.
#[test]
fn answered_probes_never_give_up() {
    let mut t = Script::open(Settings { retries2: 3, ..plain() }, "S 0 mss 1000");
    t.write(1000).expect("P. 1:1001").recv(". 1 ack 1001 win 0").write(100);
    for _ in 0..50 {
        t.next_timer().expect(". 1000 ack 1").recv(". 1 ack 1001 win 0");
    }
    t.state(State::Established);
    // RFC 9293 §3.8.3: without answers the connection ends.
    for _ in 0..3 {
        t.next_timer().expect(". 1000 ack 1");
    }
    t.next_timer().quiet().ended(Some(ConnectionError::TimedOut));
}

/// As on Linux, a segment that arrives while the window is zero postpones the next probe. Its data
/// is acknowledged as usual.
#[test]
fn a_probe_does_not_replace_an_ack() {
    let mut t = Script::plain();
    t.write(1000).expect("P. 1:1001").recv(". 1 ack 1001 win 0").write(100).quiet();
    t.wait(180).recv("P. 1:11 ack 1001 win 0").quiet().wait(39).quiet();
    t.wait(1).expect(". 1001 ack 11").quiet().wait(159).quiet().wait(2).expect(". 1000 ack 11");
}

/// The answer to a probe reveals a lost window update; a FIN waits for the data.
#[test]
fn a_fin_waits_behind_a_shut_window() {
    let mut t = Script::plain();
    t.write(1000).expect("P. 1:1001").recv(". 1 ack 1001 win 0").write(500).close().quiet();
    t.next_timer().expect(". 1000 ack 1").recv(". 1 ack 1001 win 1000").expect("FP. 1001:1501");
    t.state(State::FinWait1);
}

/// RFC 9293 §3.8.6.1: a zero window is probed for a FIN alone too; the FIN is sent when it opens.
#[test]
fn a_fin_alone_behind_a_shut_window_is_probed() {
    let mut t = Script::plain();
    t.recv(". 1 ack 1 win 0").close().quiet().state(State::FinWait1);
    t.wait(199).quiet().wait(2).expect(". 0 ack 1").recv(". 1 ack 1 win 0");
    t.wait(399).quiet().wait(3).expect(". 0 ack 1").recv(". 1 ack 1 win 0").quiet();
    t.next_timer().expect(". 0 ack 1").recv(". 1 ack 1 win 1").expect("F. 1 ack 1");
    t.recv(". 1 ack 2 win 1").state(State::FinWait2);
}

/// RFC 9293 §3.8.3: a silent peer with a zero window is given up, also for a FIN alone.
#[test]
fn a_fin_alone_behind_a_shut_window_gives_up() {
    let mut t = Script::open(Settings { retries2: 3, ..plain() }, "S 0 mss 1000");
    t.recv(". 1 ack 1 win 0").close().quiet();
    for _ in 0..3 {
        t.next_timer().expect(". 0 ack 1");
    }
    t.next_timer().quiet().ended(Some(ConnectionError::TimedOut));
}

/// A connection without an owner is given up sooner, but only after some probes.
#[test]
fn an_orphan_behind_a_shut_window_gives_up() {
    let mut t = Script::plain();
    t.recv(". 1 ack 1 win 0").act(|connection, now| connection.disown(now)).quiet();
    for _ in 0..8 {
        t.next_timer().expect(". 0 ack 1");
    }
    t.next_timer().quiet().ended(Some(ConnectionError::TimedOut));
}

/// RFC 9293 §3.8.6.2.1: less than a segment waits for the timer. If the peer's largest window is
/// small, a segment is at most half of it, as on Linux.
#[test]
fn silly_windows_are_not_used() {
    let mut t = Script::open(plain(), "S 0 win 4000 mss 1000");
    t.c.send.set_window(4000);
    t.c.send.set_window_max(4000);
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
    assert_eq!(t.c.send.window(), 4000);
    t.recv(". 1:101 ack 1 win 3000").expect(". 1 ack 201");
    assert_eq!(t.c.send.window(), 4000);
    t.recv(". 201 ack 1 win 2000");
    assert_eq!(t.c.send.window(), 2000);
}

/// A peer that shrinks its window: no new data is sent, and outstanding data is kept.
#[test]
fn a_window_may_shrink() {
    let mut t = Script::plain();
    t.write(5000).expect("P. 1:5001").recv(". 1 ack 1001 win 2000").write(1000).quiet();
    t.recv(". 1 ack 5001 win 2000").expect("P. 5001:6001");
}

/// A peer whose data was refused continues from the first refused byte. A window update from there
/// is new, although a refused segment behind it has carried a window: both sides may have a shut
/// window at the same time. Linux sends the update so.
#[test]
fn a_window_opens_after_data_was_refused() {
    let settings = Settings { receive_buffer: 10_000, receive_buffer_max: 10_000, ..plain() };
    let mut t = Script::open(settings, "S 0 mss 1000");
    for index in 0..65 {
        let (from, to) = (1 + index * 10, 11 + index * 10);
        t.recv(&std::format!(". {from}:{to} ack 1")).verdict(Verdict::Done).wait(40).forget_sent();
    }
    t.recv(". 651:661 ack 1 win 0").verdict(Verdict::NoRoom).expect(". 1 ack 651 win 0");
    t.recv(". 661:671 ack 1 win 0").verdict(Verdict::NoRoom).expect(". 1 ack 651 win 0");
    t.write(100).quiet();
    t.recv(". 651 ack 1 win 1000").expect("P. 1:101 ack 651");
}

/// A step of a test: the peer sends data, or the owner reads.
enum Step {
    /// Bytes in a super-packet, and the size of its segments.
    Data(u32, u16),
    Read(u32),
}
use Step::{Data, Read};

/// Opens a connection with a buffer of `buffer` bytes, without timestamps.
fn receiver(buffer: u32, fixed: bool, options: &str) -> Script {
    let settings = Settings {
        receive_buffer: buffer,
        receive_buffer_max: 32 << 20,
        receive_buffer_fixed: fixed,
        window_scaling: true,
        sack: true,
        ..plain()
    };
    let mut t = Script::incoming(settings, &std::format!("S 0 win 65535 {options}"));
    t.expect("S. 0 ack 1").wait(100).recv(". 1 ack 1");
    t
}

/// Plays the steps, with a pause after each; compares the threshold and the window after it.
fn play(t: &mut Script, steps: &[(Step, u32, u32)]) {
    let (mut received, mut read) = (1, 1);
    for (index, (step, threshold, window)) in steps.iter().enumerate() {
        match step {
            Data(bytes, size) => {
                let end = received + bytes;
                t.wait(1).recv(&std::format!(". {received}:{end} ack 1 gso {size}"));
                received = end;
            }
            Read(bytes) => {
                t.read(read, *bytes);
                read += bytes;
            }
        }
        t.wait(60).forget_sent();
        let now = t.c.info(t.now);
        assert_eq!((now.rcv_ssthresh, now.rcv_wnd), (*threshold, *window), "after step {index}");
    }
}

/// Small buffer, no scale: the windows of Linux 6.18, in whole segments of the received size. RFC
/// 9293 §3.8.6.2.2: they open in large steps and never shrink.
#[test]
fn windows_of_a_small_buffer() {
    let mut t = receiver(20_000, true, "mss 1000 sackOK ws 7");
    assert_eq!(t.c.receive.scale(), 0, "as much as fits the buffer");
    let data = [7760, 6760, 5760, 4760, 3760, 3760, 1760, 1760, 760, 760];
    let data = data.map(|window| (Data(1000, 1000), 8671, window));
    let read = [760, 2000, 2000, 4000, 4000, 4000, 4000, 8000];
    let read = read.map(|window| (Read(1000), 8671, window));
    play(&mut t, &data);
    let mut at = 1;
    for (index, (_, threshold, window)) in read.iter().enumerate() {
        t.read(at, 1000).wait(60).forget_sent();
        at += 1000;
        let now = t.c.info(t.now);
        assert_eq!((now.rcv_ssthresh, now.rcv_wnd), (*threshold, *window), "after read {index}");
    }
    t.read(at, t.c.received_len() as u32);
}

/// The windows of Linux 6.18 with segments of other sizes, and super-packets.
#[test]
fn windows_follow_what_segments_weigh() {
    let mut t = receiver(40_000, true, "mss 1000 sackOK ws 7");
    let read = |bytes, window| (Read(bytes), 18_906, window);
    let data = |bytes, window| (Data(bytes, 1000), 18_906, window);
    let steps = [
        data(4000, 14_980),
        data(4000, 10_980),
        read(3000, 10_980),
        read(3000, 10_980),
        read(2000, 10_980),
        data(3500, 16_000),
        data(3500, 14_000),
        data(3000, 12_000),
        data(2000, 10_000),
    ];
    play(&mut t, &steps);
    t.read(8001, 12_000);
}

/// A tuned buffer begins with half of it for data and one segment kept back. Dense segments let the
/// window grow to what fits.
#[test]
fn windows_grow_with_dense_segments() {
    let mut t = receiver(128 << 10, false, "mss 1460 sackOK ws 7");
    assert_eq!((t.c.receive.scale(), t.c.info(t.now).rcv_ssthresh), (10, 64_076));
    let steps = [
        (Data(1460, 1460), 67_160, 67_584),
        (Data(1460, 1460), 70_080, 70_656),
        (Data(2000, 1460), 74_080, 74_752),
        (Data(2920, 1460), 74_520, 74_752),
        (Data(4380, 1460), 74_520, 70_656),
        (Data(8760, 1460), 74_520, 62_464),
        (Read(20_980), 74_520, 62_464),
    ];
    play(&mut t, &steps);
}

/// The buffer follows the reader: it has room for what the reader takes in a round trip, and twice
/// as much again for growth. A reader that takes little leaves the buffer unchanged.
#[test]
fn the_buffer_follows_the_reader() {
    let mut t = receiver(128 << 10, false, "mss 1000 sackOK ws 7");
    let data = |threshold, window| (Data(60_000, 1000), threshold, window);
    let read = |threshold, window| (Read(60_000), threshold, window);
    let steps = [
        data(67_208, 67_584),
        read(67_208, 67_584),
        data(67_208, 67_584),
        read(67_208, 67_584),
        data(67_208, 67_584),
        read(67_208, 67_584),
        data(187_208, 187_392),
        read(187_208, 187_392),
        data(307_208, 308_224),
        read(307_208, 308_224),
    ];
    play(&mut t, &steps);
    let info = t.c.info(t.now);
    assert_eq!(info.rcv_space, 180_000);
    assert!((240_000..245_000).contains(&info.rcv_rtt), "{}", info.rcv_rtt);
    let mut slow = receiver(128 << 10, false, "mss 1000 sackOK ws 7");
    for index in 0..40 {
        let (from, to) = (1 + index * 1000, 1001 + index * 1000);
        slow.wait(60).recv(&std::format!(". {from}:{to} ack 1")).wait(60).forget_sent();
        slow.read(from, 1000);
    }
    assert_eq!(slow.c.receive_buffer(), 128 << 10);
}

/// SO_RCVBUF: the buffer keeps its size, whatever the reader takes.
#[test]
fn a_chosen_buffer_is_not_tuned() {
    let mut t = receiver(256 << 10, true, "mss 1000 sackOK ws 7");
    for index in 0..20 {
        let (from, to) = (1 + index * 60_000, 60_001 + index * 60_000);
        t.wait(10).recv(&std::format!(". {from}:{to} ack 1 gso 1000")).read(from, 60_000);
        t.forget_sent();
    }
    assert!(t.c.info(t.now).rcv_space > 60_000);
    assert_eq!(t.c.receive_buffer(), 256 << 10);
    let before = t.c.receive.edge();
    t.c.set_receive_buffer(5000);
    assert_eq!(t.c.receive_buffer(), 5000);
    t.recv(". 1200001:1260001 ack 1 gso 1000").wait(200).read(1_200_001, 60_000).forget_sent();
    assert_eq!(t.c.receive.edge(), before, "the old offer stays, and nothing is added");
}

/// TCP_WINDOW_CLAMP, at the start and later. As on Linux, the buffer size replaces the clamp when
/// segments take an unexpected amount of memory.
#[test]
fn clamps_bound_windows() {
    let settings = Settings { window_clamp: Some(5000), ..plain() };
    let mut t = Script::incoming(settings, "S 0 mss 1000");
    t.expect("S. 0 ack 1 win 4380").wait(100).recv(". 1 ack 1");
    t.recv(". 1:501 ack 1").expect(". 1 ack 501 win 4824");
    t.recv(". 501:1501 ack 1").expect(". 1 ack 1501 win 7000").read(1, 1500);
    assert_eq!(t.c.window_clamp(), 56_832);
    t.c.set_window_clamp(0);
    assert_eq!(t.c.window_clamp(), 1152);
    t.recv(". 1501:2501 ack 1").expect(". 1 ack 2501 win 6000").read(1501, 1000);
    t.recv(". 2501:8001 ack 1 gso 1000").expect(". 1 ack 8001 win 1000").read(2501, 5500);
    t.c.set_window_clamp(9000);
    assert_eq!(t.c.info(t.now).rcv_ssthresh, 1152);
}

/// Zero-window probes of the peer are answered with the window.
#[test]
fn probes_are_answered() {
    let mut t = receiver(2304, true, "mss 1000");
    t.recv(". 1:1001 ack 1").wait(40).forget_sent();
    assert_eq!(t.c.info(t.now).rcv_wnd, 152);
    t.recv(". 1001:1153 ack 1").wait(40).expect(". 1 ack 1153 win 0");
    // Probes as Linux sends them, and as BSD does: with a byte beyond the window.
    t.recv(". 1152 ack 1").expect(". 1 ack 1153 win 0");
    t.wait(1000).recv(". 1153:1154 ack 1").expect(". 1 ack 1153 win 0").read(1, 1152);
    t.expect(". 1 ack 1153 win 999");
}

/// Linux since 6.17: data that ends beyond the window is taken completely if no data is unread, and
/// not at all otherwise. A zero window takes a FIN but no byte.
#[test]
fn data_beyond_the_window_needs_an_empty_queue() {
    let mut t = receiver(20_000, true, "mss 1000 ws 7");
    t.recv("P. 1:4001 ack 1 gso 1000").expect(". 1 ack 4001 win 5000");
    let beyond = ["P. 4001:54001 ack 1 gso 1000", "P. 5001:55001 ack 1 gso 1000"];
    for text in beyond.into_iter().chain(["P. 70001:80001 ack 1", "FP. 4001:9003 ack 1"]) {
        t.recv(text).verdict(Verdict::Unacceptable).expect(". 1 ack 4001 win 5000");
    }
    t.read(1, 4000).recv("P. 4001:54001 ack 1 gso 1000").wait(40).expect(". 1 ack 54001 win 0");
    t.recv("P. 54001:54011 ack 1").expect(". 1 ack 54001 win 0").state(State::Established);
    t.recv("F. 54001 ack 1").expect(". 1 ack 54002 win 0").state(State::CloseWait);
    t.read(4001, 50_000).forget_sent();
}

/// As on Linux, more than a full segment is acknowledged at once only if the window advances with
/// it or the reader waits for more (`SO_RCVLOWAT`). Otherwise reading sends the ACK.
#[test]
fn acks_wait_for_the_reader_when_the_window_does_not_advance() {
    let mut t = Script::open(plain(), "S 0 mss 1000");
    t.recv(". 1:1001 ack 1").quiet().recv(". 1001:2001 ack 1").expect(". 1 ack 2001").read(1, 2000);
    t.c.receive.offer(64_000);
    t.recv(". 2001:3001 ack 1").recv(". 3001:4001 ack 1").quiet();
    t.read(2001, 1000).expect(". 1 ack 4001").read(3001, 1000);
    t.c.set_low_water(10_000);
    t.recv(". 4001:5001 ack 1").quiet().recv(". 5001:6001 ack 1").expect(". 1 ack 6001");
    t.read(4001, 2000);
}

/// The peer's segment size is guessed low and then learned: the largest one, or another one that
/// arrives twice.
#[test]
fn segment_sizes_are_learned() {
    let mut t = receiver(128 << 10, false, "mss 1300 ws 7");
    let mut at = 1;
    for (bytes, size, known) in [
        (100, 100, 536),
        (1000, 1000, 1000),
        (900, 900, 1000),
        (900, 900, 900),
        (10_000, 1300, 1300),
        (700, 700, 1300),
        (800, 800, 1300),
    ] {
        let end = at + bytes;
        t.recv(&std::format!(". {at}:{end} ack 1 gso {size}")).read(at, bytes).forget_sent();
        assert_eq!(t.c.info(t.now).rcv_mss, known, "after {bytes} bytes");
        at = end;
    }
    // Out of order, too.
    let mut t = receiver(128 << 10, false, "mss 1000 sackOK ws 7");
    t.recv(". 2001:11001 ack 1 gso 1000").expect(". 1 ack 1 win 81 sack 2001-11001");
    assert_eq!(t.c.info(t.now).rcv_mss, 1000);
    t.recv(". 11001:21001 ack 1 gso 1000").expect(". 1 ack 1 win 81 sack 2001-21001");
}

/// RFC 7323: with timestamps each echo gives a sample of the sender's round trip; a smaller one
/// counts at once.
#[test]
fn echoes_tell_the_round_trip() {
    let mut t = Script::open(settings(), "S 0 mss 1000 ts 5 0");
    t.wait(30).recv(". 1:1001 ack 1 ts 30 1001").read(1, 1000);
    assert_eq!(t.c.info(t.now).rcv_rtt, 29_000);
    t.wait(30).recv(". 1001:2001 ack 1 ts 40 1050").read(1001, 1000);
    assert_eq!(t.c.info(t.now).rcv_rtt, 10_000);
    // Larger samples count in part, and not while data waits for the reader.
    t.wait(30).recv(". 2001:3001 ack 1 ts 50 1040");
    assert_eq!(t.c.info(t.now).rcv_rtt, 15_000);
    t.wait(30).recv(". 3001:4001 ack 1 ts 60 1041").read(2001, 2000).forget_sent();
    assert_eq!(t.c.info(t.now).rcv_rtt, 15_000);
}

/// RFC 7323 §2.3: windows beyond 65,535 are scaled, and rounded so that the offer never shrinks.
#[test]
fn scaled_windows_keep_promises() {
    let mut t = receiver(1 << 20, false, "mss 1000 ws 7");
    t.recv(". 1:1002 ack 1").forget_sent();
    let mut edge = t.c.receive.edge();
    for round in 0..20u32 {
        let (from, to) = (1002 + round * 3001, 4003 + round * 3001);
        t.recv(&std::format!(". {from}:{to} ack 1")).wait(200);
        t.expect(&std::format!(". 1 ack {to}"));
        assert!(t.c.receive.edge().at_or_after(edge), "the right edge moved back");
        edge = t.c.receive.edge();
    }
}

/// Under memory pressure windows stay small, what was offered stays offered, and nothing grows.
#[test]
fn pressure_keeps_windows_small() {
    let mut t = Script::open(plain(), "S 0 win 65535 mss 1000");
    t.recv(". 1:2001 ack 1 gso 1000").expect(". 1 ack 2001 win 57000").read(1, 2000);
    t.pressure = Pressure::High;
    t.recv(". 2001:54001 ack 1 gso 1000").read(2001, 52_000).expect(". 1 ack 54001 win 5000");
    let threshold = t.c.info(t.now).rcv_ssthresh;
    // No ACK that repeats the last one: the peer would take it for a sign of loss.
    t.quiet().recv(". 54001:57001 ack 1 gso 1000").wait(40).expect(". 1 ack 57001 win 2000");
    assert_eq!(t.c.info(t.now).rcv_ssthresh, threshold);
    t.read(54_001, 3000);
    t.pressure = Pressure::None;
    t.recv(". 57001:59001 ack 1 gso 1000").wait(40).expect(". 1 ack 59001 win 57000");
    t.read(57_001, 2000);
}

/// No update if the window field cannot grow: the peer would take it for a sign of loss.
#[test]
fn no_updates_beyond_the_field() {
    let settings = Settings { receive_buffer: 1 << 20, receive_buffer_max: 1 << 20, ..plain() };
    let mut t = Script::open(settings, "S 0 win 65535 mss 1000");
    t.recv(". 1:40001 ack 1").expect(". 1 ack 40001 win 65535");
    for index in 0..40 {
        t.read(1 + 1000 * index, 1000).quiet();
    }
}

/// Room to send, as on Linux: a partly filled buffer may be filled, and another one begun while
/// memory is below the bound. `WRITABLE` follows only after there was no room, once a third is
/// free.
#[test]
fn writable_after_the_queue_was_full() {
    let settings = Settings { send_buffer: 10_000, send_buffer_max: 20_000, ..plain() };
    let mut t = Script::open(settings, "S 0 win 65535 mss 1000");
    assert_eq!(t.c.send_room(), 32_000, "half of the peer's window, in whole segments");
    t.write(32_000).expect(". 1:10001");
    assert_eq!(t.c.send_room(), 10_000, "sent data makes room in the last buffer");
    t.write(10_000);
    assert_eq!(t.c.send_room(), 0);
    t.recv(". 1 ack 10001").expect(". 10001:30001").events(Events::default());
    t.recv(". 1 ack 30001").expect("P. 30001:42001").events(Events::WRITABLE);
    t.recv(". 1 ack 42001").events(Events::default());
}

/// TCP_NOTSENT_LOWAT: more unsent bytes leave no room; room is reported when half of them are left.
#[test]
fn unsent_bytes_are_bounded() {
    let mut t = Script::open(plain(), "S 0 win 65535 mss 1000");
    t.c.set_notsent_lowat(4000);
    t.write(20_000).expect(". 1:10001");
    assert_eq!(t.c.send_room(), 22_000, "the last buffer is filled");
    t.write(22_000);
    assert_eq!(t.c.send_room(), 0);
    t.recv(". 1 ack 10001").expect(". 10001:30001").events(Events::default());
    t.recv(". 1 ack 15001").expect(". 30001:40001").events(Events::default());
    t.recv(". 1 ack 16001").expect("P. 40001:42001").events(Events::WRITABLE);
    t.recv(". 1 ack 42001").events(Events::default());
}

/// MSG_MORE and TCP_CORK hold back a segment that is not full. An ACK, the end of the cork, or
/// finally the timer releases it. PSH is set only where a write ended for good.
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

/// Minshall's variant of Nagle's algorithm: only an outstanding small segment holds back the next
/// one.
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

/// `TCP_INFO`: time limited by the peer's window and by the send buffer, and the counters.
#[test]
fn info_reports_what_limited() {
    let settings = Settings { send_buffer: 5000, send_buffer_max: 5000, ..plain() };
    let mut t = Script::open(settings, "S 0 win 65535 mss 1000");
    t.wait(50).write(1000).expect("P. 1:1001").wait(10).recv(". 1 ack 1001 win 0");
    t.wait(20).write(3000).quiet().wait(100).recv(". 1 ack 1001 win 65535").expect("P. 1001:4001");
    let info = t.c.info(t.now);
    assert_eq!((info.busy_time, info.rwnd_limited, info.sndbuf_limited), (110_000, 100_000, 0));
    assert_eq!((info.unacked, info.snd_cwnd, info.bytes_acked), (3, 10, 1000));
    assert_eq!((info.data_segs_out, info.bytes_sent, info.notsent_bytes), (4, 4000, 0));
    assert_eq!((info.last_data_sent, info.rtt > 0, info.snd_mss), (0, true, 1000));
    // The buffer is full; the window is not.
    t.write(1000).expect("P. 4001:5001");
    assert_eq!(t.c.send_room(), 0);
    t.write(1000).expect("P. 5001:6001").wait(30).recv(". 1 ack 6001").events(Events::WRITABLE);
    let info = t.c.info(t.now + crate::time::Duration::from_secs(1));
    assert_eq!(info.sndbuf_limited, 30_000);
    assert_eq!(info.last_data_sent, 1030);
    assert_eq!(info.busy_time, 140_000);
}

/// As on Linux, packets end where buffers end, unless more makes a packet of the largest size. So a
/// small window is left for a larger packet, and a large window is used in the fewest packets.
#[test]
fn packets_hold_several_buffers_only_at_full_size() {
    let mut t = Script::plain();
    t.c.send.set_window(1 << 20);
    t.c.send.set_cwnd(50);
    t.write(100_000).expect("P. 1:25001 gso 1000").expect("P. 25001:32001 gso 1000");
    t.expect("P. 32001:50001 gso 1000").quiet();
    let mut t = Script::plain();
    t.c.send.set_window(1 << 20);
    t.c.send.set_cwnd(200);
    t.write(100_000).expect("P. 1:65001 gso 1000").expect("P. 65001:96001 gso 1000");
    t.expect("P. 96001:100001 gso 1000");
}

/// MSG_EOR: as on Linux, small records stay separate when they are retransmitted.
#[test]
fn records_do_not_share_segments_when_sent_again() {
    let mut t = Script::sack();
    t.record(400).expect("P. 1:401");
    t.act(|c, _| c.set_nodelay(true)).record(400).expect("P. 401:801").write(300);
    t.expect("P. 801:1101").recv(". 1 ack 1 sack 801-1101").wait(100);
    t.expect("P. 1:401 nogso").forget_sent().recv(". 1 ack 1101");
}

/// A zero window does not shrink the congestion window. After a pause slow start begins again when
/// it opens (RFC 5681 §4.1).
#[test]
fn a_shut_window_does_not_shrink_the_congestion_window() {
    let mut t = Script::plain();
    t.write(10_000).expect(". 1:10001").recv(". 1 ack 10001 win 0");
    assert_eq!(t.c.send.congestion().cwnd(), 20);
    t.wait(10).write(20_000).quiet().next_timer().expect(". 10000 ack 1");
    t.next_timer().expect(". 10000 ack 1");
    assert_eq!(t.c.send.congestion().cwnd(), 20);
    t.wait(300).recv(". 1 ack 10001 win 65535").expect(". 10001:20001");
    assert_eq!(t.c.send.congestion().cwnd(), 10);
}

/// RFC 9293 §3.8.6.1: a window that shrinks to zero before data already sent does not end the
/// connection, as long as the peer answers.
#[test]
fn a_window_shut_in_front_of_data() {
    let mut t = Script::open(Settings { retries2: 3, ..plain() }, "S 0 mss 1000");
    t.write(1000).expect("P. 1:1001");
    for _ in 0..20 {
        t.recv(". 1 ack 1 win 0").next_timer().forget_sent();
    }
    t.state(State::Established).recv(". 1 ack 1001 win 5000").write(10).expect("P. 1001:1011");
}

/// Bytes that Linux 6.18 takes in one non-blocking call, as packetdrill shows: each full buffer
/// leaves at once, as far as the windows allow, and is filled again.
#[test]
fn calls_fill_what_leaves_at_once() {
    for (buffer, taken) in [(60_000, 75_088), (120_000, 140_296)] {
        let settings =
            Settings { timestamps: true, window_scaling: true, sack: true, ..settings() };
        let mut t = Script::open(settings, "S 0 win 32792 mss 1000 sackOK ts 300 0 ws 10");
        t.c.set_send_buffer(buffer);
        assert_eq!(t.supply(), taken, "{buffer}");
        while t.take_sent().is_some() {}
    }
}

/// As on Linux, out-of-order data makes the buffer grow, except on a connection that is not
/// accepted yet.
#[test]
fn an_unaccepted_connection_has_no_larger_buffer() {
    let settings = Settings { receive_buffer: 65_536, ..settings() };
    let mut t = Script::open(settings, "S 0 win 65535 mss 1000 sackOK");
    t.c.is_queued = true;
    let ahead = |t: &mut Script, range: core::ops::Range<u32>| {
        for index in range {
            let start = 2001 + 1000 * index;
            t.recv(&std::format!(". {start}:{} ack 1", start + 1000)).forget_sent();
        }
        t.c.receive_buffer()
    };
    assert_eq!(ahead(&mut t, 0..20), 65_536);
    t.c.is_queued = false;
    assert!(ahead(&mut t, 20..21) > 65_536);
}
