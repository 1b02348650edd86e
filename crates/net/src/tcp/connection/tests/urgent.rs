//! Urgent data (RFC 6093): the position and end of the peer's mark, and how ours is signaled.

use super::script::{Script, plain};
use crate::tcp::Settings;
use alloc::format;

/// An open connection whose owner reads marked bytes separately.
fn apart() -> Script {
    let mut t = Script::plain();
    t.c.set_urgent_inline(false);
    t
}

/// RFC 6093 §3.1: the pointer names the byte after the urgent one; reads stop before the urgent
/// byte.
#[test]
fn the_mark_stops_reads() {
    let mut t = apart();
    t.recv("PU. 1:101 ack 1 urg 50");
    assert_eq!(
        (t.c.urgent_mark(), t.c.readable_len(), t.c.next_read(0, false)),
        (Some(49), 49, 0..49)
    );
    assert!(t.c.has_urgent() && t.c.is_urgent_unread());
    t.c.urgent_was_read();
    assert!(!t.c.has_urgent() && !t.c.is_urgent_unread(), "read once");
    t.read(1, 49);
    assert_eq!((t.c.urgent_mark(), t.c.readable_len()), (Some(0), 0));
    assert_eq!((t.c.next_read(0, false), t.c.next_read(0, true)), (1..51, 0..0));
    t.read(50, 1);
    assert_eq!((t.c.urgent_mark(), t.c.readable_len()), (None, 50));
    t.read(51, 50);
    t.wait(40).expect(". 1 ack 101");
}

/// In line the byte is like any other, but a read still stops before it.
#[test]
fn in_line_a_read_begins_at_the_mark() {
    let mut t = Script::plain();
    t.recv("PU. 1:101 ack 1 urg 50");
    assert_eq!((t.c.readable_len(), t.c.next_read(0, false)), (100, 0..49));
    assert!(t.c.has_urgent() && !t.c.is_urgent_unread());
    t.read(1, 49);
    assert_eq!((t.c.next_read(0, false), t.c.next_read(0, true)), (0..51, 0..0));
    t.read(50, 51).wait(40).expect(". 1 ack 101");
    assert!(!t.c.has_urgent());
}

/// The mark may arrive before its byte. A newer mark replaces it, an older one is ignored.
#[test]
fn the_newest_mark_counts() {
    let mut t = apart();
    t.recv("PU. 1:11 ack 1 urg 20");
    assert_eq!((t.c.urgent_mark(), t.c.readable_len()), (Some(19), 10));
    assert!(t.c.is_urgent_unread() && !t.c.has_urgent(), "not there yet");
    t.recv("PU. 11:21 ack 1 urg 5");
    assert_eq!(t.c.urgent_mark(), Some(19));
    t.recv("PU. 21:31 ack 1 urg 10");
    assert!(t.c.urgent_mark() == Some(29) && t.c.has_urgent());
    t.read(1, 30).expect(". 1 ack 31");
    assert_eq!(t.c.urgent_mark(), None, "passed by a reader that ignores it");
    t.recv("FPU. 31:41 ack 1 urg 10");
    assert_eq!((t.c.urgent_mark(), t.c.readable_len()), (Some(9), 9));
    t.expect(". 1 ack 42").read(31, 10);
}

/// As on Linux, a reader at the mark gets neither that byte nor the next marked one.
#[test]
fn a_new_mark_takes_the_byte_of_the_old_one_away() {
    let mut t = apart();
    t.recv("PU. 1:2 ack 1 urg 1").recv("PU. 2:3 ack 1 urg 1").recv("P. 3:13 ack 1");
    assert_eq!(
        (t.c.received_len(), t.c.urgent_mark(), t.c.next_read(0, false)),
        (11, Some(0), 1..11)
    );
    t.read(2, 11).forget_sent();
}

/// An owner that ignores marks gets every byte, however many are marked.
#[test]
fn in_line_no_byte_is_lost() {
    let mut t = Script::plain();
    t.recv("PU. 1:2 ack 1 urg 1").recv("PU. 2:3 ack 1 urg 1").recv("P. 3:13 ack 1");
    t.read(1, 12).forget_sent();
}

/// The byte can be read although data before it is missing.
#[test]
fn urgent_data_ahead_of_its_turn() {
    let mut t = apart();
    t.recv("PU. 11:21 ack 1 urg 10").expect(". 1 ack 1");
    assert!(t.c.has_events(), "it is reported");
    assert!(t.c.has_urgent() && t.c.urgent_byte().is_some_and(|piece| piece.len() == 1));
    t.c.urgent_was_read();
    t.recv("P. 1:11 ack 1").expect(". 1 ack 21");
    assert!(!t.c.has_urgent());
    t.read(1, 20);
}

/// As on Linux, a mark at data that was already received is ignored, however often it arrives.
#[test]
fn a_mark_in_the_past_says_nothing() {
    let mut t = Script::plain();
    t.recv("P. 1:11 ack 1").recv("U. 1:11 ack 1 urg 5").forget_sent();
    assert_eq!(t.c.urgent_mark(), None);
    t.recv("U. 11 ack 1 urg 0");
    assert_eq!(t.c.urgent_mark(), Some(10), "a pointer of zero names the first byte");
    t.read(1, 10);
}

/// RFC 9293 §3.8.5: every segment that begins before the end of urgent data points to that end,
/// until it is acknowledged. Segments do not end there.
#[test]
fn the_pointer_is_sent() {
    let mut t = Script::plain();
    t.urgent(10).expect("PU. 1:11 ack 1 urg 10");
    t.write(5).expect("P. 11:16 ack 1 urg 0").recv(". 1 ack 11").quiet();
    t.recv(". 1 ack 16").urgent(1).expect("PU. 16:17 urg 1");
    t.wait(210).expect("PU. 16:17 urg 1").recv(". 1 ack 17").write(5).expect("P. 17:22 urg 0");
    t.recv(". 1 ack 22");
}

/// As on Linux, small segments do not wait while data is urgent.
#[test]
fn urgent_data_waits_for_nothing() {
    let mut t = Script::plain();
    t.write(10).expect("P. 1:11").write(10).quiet();
    t.urgent(1).expect("PU. 11:22 ack 1 urg 11").write(1).expect("P. 22:23 urg 0");
    t.recv(". 1 ack 23").c.set_cork(true);
    t.write(10).quiet().urgent(1).expect("PU. 23:34 urg 11").recv(". 1 ack 34");
}

/// No super-packet is built: all its segments would get the same pointer.
#[test]
fn urgent_data_goes_in_single_segments() {
    let mut t = Script::plain();
    t.urgent(3500).expect("U. 1:1001 urg 3500 nogso").expect("U. 1001:2001 urg 2500 nogso");
    t.expect("U. 2001:3001 urg 1500 nogso").expect("PU. 3001:3501 urg 500 nogso");
    t.recv(". 1 ack 3001").wait(250).expect("PU. 3001:3501 urg 500").recv(". 1 ack 3501");
}

/// Pure ACKs point to urgent data that the window holds back. So does the first of two probes, with
/// a number that the peer looks at, as on Linux.
#[test]
fn a_shut_window_does_not_keep_the_pointer_back() {
    let mut t = Script::plain();
    t.write(10).expect("P. 1:11").recv(". 1 ack 11 win 0").urgent(10).quiet();
    t.recv("P. 1:11 ack 11 win 0").wait(40).expect("U. 11 ack 11 urg 10");
    t.next_timer().expect("U. 11 ack 11 urg 10").expect("U. 10 ack 11 urg 11");
    t.recv(". 11 ack 11 win 1000").expect("PU. 11:21 urg 10").recv(". 11 ack 21");
    t.read(1, 10);
}

/// A pointer that does not reach the end has its largest value, and only in the newest data.
#[test]
fn a_pointer_that_does_not_reach() {
    let wide = "S 0 win 65535 mss 1000 ws 4";
    let settings = Settings { window_scaling: true, ..plain() };
    let mut t = Script::open(settings, wide);
    t.c.set_send_buffer(1 << 20);
    t.urgent(70_000);
    for at in (1..=9001).step_by(1000) {
        let pointer = (70_001 - at).min(65_535);
        let end = at + 1000;
        t.expect(&format!("U. {at}:{end} urg {pointer}"));
    }
    t.act(|c, _| c.abort()).expect("UR. 10001 urg 60000");
}
