//! A device whose queue is full drops packets and reports it.

use super::script::*;
use crate::tcp::ConnectionError;
use crate::time::Duration;

/// As on Linux, data that the queueing discipline drops stays unsent and is retried every half
/// second. The user timeout counts from the first attempt.
#[test]
fn a_full_queue_is_tried_again_until_the_user_timeout() {
    let mut t = Script::plain();
    t.act(|c, _| c.set_user_timeout(Some(Duration::from_secs(3))));
    t.stopped = true;
    t.write(24).quiet();
    let mut probes = 0;
    for _ in 0..60 {
        t.wait(50);
        probes = probes.max(t.c.info(t.now).probes);
        assert_eq!(t.c.info(t.now).backoff, 0, "the peer is not to blame");
    }
    assert_eq!((probes, t.c.error()), (6, None));
    t.wait(500);
    assert_eq!(t.c.error(), Some(ConnectionError::TimedOut));
    assert_eq!(t.c.info(t.now).probes, 6, "the count stays visible");
}

#[test]
fn what_a_full_queue_dropped_goes_when_it_has_room() {
    let mut t = Script::plain();
    t.stopped = true;
    t.write(24).quiet();
    t.stopped = false;
    t.wait(250).expect("P. 1:25 ack 1").recv(". 1 ack 25").quiet();
}
