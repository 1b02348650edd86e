//! Pacing by a congestion controller.

use super::script::{Script, plain};
use crate::tcp::Settings;
use crate::tcp::congestion::Kind;

/// Bytes sent since the last call, in packets of at most two segments.
fn sent(t: &mut Script) -> u32 {
    let mut bytes = 0;
    while let Some((_, len)) = t.take_sent() {
        assert!(len <= 2000, "{len}");
        bytes += len;
    }
    bytes
}

/// BBR: the first ten segments go at once, further ones in bursts of the quantum at the rate, here
/// 2.77 windows of ten segments in a round trip of 100 ms, which is two segments in 7.2 ms. Half of
/// the first wait is credited. Another controller does not wait.
#[test]
fn bbr_sends_its_quantum_at_its_rate() {
    let mut t = Script::distant(Settings { sack: true, ..plain() });
    t.act(|c, now| c.set_congestion(Kind::Bbr, now)).write(60_000);
    assert_eq!((t.c.congestion(), t.c.info(t.now).pacing_rate), (Kind::Bbr, 277_000));
    assert_eq!(sent(&mut t), 10_000);
    t.wait(100).recv(". 1 ack 10001 win 65535");
    assert_eq!(sent(&mut t), 2000);
    for (millis, bytes) in [(3, 0), (1, 2000), (6, 0), (1, 2000), (6, 0), (2, 2000)] {
        t.wait(millis);
        assert_eq!(sent(&mut t), bytes, "{millis} ms");
    }
    t.act(|c, now| c.set_congestion(Kind::Reno, now));
    assert!(t.take_sent().is_some());
    t.forget_sent();
}

/// BBR paces retransmissions too: after a burst of losses the window has room for all of them.
#[test]
fn bbr_paces_retransmissions() {
    let mut t = Script::distant(Settings { sack: true, ..plain() });
    t.act(|c, now| c.set_congestion(Kind::Bbr, now)).write(10_000);
    assert_eq!(sent(&mut t), 10_000);
    t.wait(100).recv(". 1 ack 1 win 65535 sack 9001-10001").wait(30);
    let mut bytes = sent(&mut t);
    assert!((1000..=4000).contains(&bytes), "{bytes} at once");
    for _ in 0..50 {
        t.wait(1);
        let more = sent(&mut t);
        assert!(more <= 2000, "{more} at once");
        bytes += more;
    }
    assert_eq!(bytes, 9000);
}
