//! Urgent data that arrives (RFC 6093): where the mark is, and when it goes.

use super::script::Script;

/// RFC 6093 §3.1: the pointer names the byte after the urgent one; reads stop in front of it.
#[test]
fn the_mark_stops_reads() {
    let mut t = Script::plain();
    t.recv("PU. 1:101 ack 1 urg 50");
    assert_eq!((t.c.urgent_mark(), t.c.readable_len()), (Some(49), 49));
    assert_eq!((t.c.take_urgent(true), t.c.take_urgent(false)), (Some(49), Some(49)));
    assert_eq!(t.c.take_urgent(false), None, "read once");
    assert!(!t.c.skip_urgent());
    t.read(1, 49);
    assert_eq!((t.c.urgent_mark(), t.c.readable_len()), (Some(0), 0));
    assert!(t.c.skip_urgent());
    assert_eq!((t.c.urgent_mark(), t.c.readable_len()), (None, 50));
    t.read(51, 50);
    t.wait(40).expect(". 1 ack 101");
}

/// The mark may come before its byte, and a newer one takes its place;
/// an older one says nothing.
#[test]
fn the_newest_mark_counts() {
    let mut t = Script::plain();
    t.recv("PU. 1:11 ack 1 urg 20");
    assert_eq!((t.c.urgent_mark(), t.c.readable_len()), (Some(19), 10));
    assert_eq!(t.c.take_urgent(false), Some(19), "not there yet");
    t.recv("PU. 11:21 ack 1 urg 5");
    assert_eq!(t.c.urgent_mark(), Some(19));
    t.recv("PU. 21:31 ack 1 urg 10");
    assert_eq!((t.c.urgent_mark(), t.c.take_urgent(true)), (Some(29), Some(29)));
    t.read(1, 30).expect(". 1 ack 31");
    assert_eq!(t.c.urgent_mark(), None, "passed by a reader who knows nothing of it");
    t.recv("FPU. 31:41 ack 1 urg 10");
    assert_eq!((t.c.urgent_mark(), t.c.readable_len()), (Some(9), 9));
    t.expect(". 1 ack 42").read(31, 10);
}
