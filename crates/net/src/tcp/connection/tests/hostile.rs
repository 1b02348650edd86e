//! Blind attacks and impossible segments (RFC 5961, RFC 9293 §3.10.7.4, RFC 5927).

use super::script::{Script, plain};
use crate::tcp::congestion::CaState;
use crate::tcp::scoreboard::RECORDS_MAX;
use crate::tcp::{ConnectionError, Settings, State, Verdict};
use crate::time::Duration;
extern crate std;

/// RFC 5961 §3.2: a reset counts only with exactly the next number; one in the window is
/// challenged.
#[test]
fn resets_must_match() {
    let mut t = Script::plain();
    t.recv("R 0").verdict(Verdict::Unacceptable).quiet();
    t.recv("R 70000").verdict(Verdict::Unacceptable).quiet();
    t.recv("R 2").verdict(Verdict::Unacceptable).expect(". 1 ack 1").state(State::Established);
    t.recv("R. 1 ack 1").verdict(Verdict::Done).ended(Some(ConnectionError::Reset));
}

/// As on Linux, a reset also counts right after the highest data that SACK has reported, and with
/// the number of a FIN that has been taken.
#[test]
fn resets_of_a_peer_that_sends_more() {
    let mut t = Script::sack();
    t.recv("P. 101:201 ack 1").expect(". 1 ack 1 sack 101-201");
    t.recv("P. 301:401 ack 1").expect(". 1 ack 1 sack 301-401,101-201");
    t.recv("R 201").verdict(Verdict::Unacceptable).expect(". 1 ack 1");
    t.recv("R 402").verdict(Verdict::Unacceptable);
    t.recv("R 401").verdict(Verdict::Done).ended(Some(ConnectionError::Reset));
    let mut t = Script::plain();
    t.recv("P. 101:201 ack 1").expect(". 1 ack 1");
    t.recv("R 201").verdict(Verdict::Unacceptable).expect(". 1 ack 1").state(State::Established);
    let mut t = Script::plain();
    t.recv("F. 1 ack 1").expect(". 1 ack 2");
    t.recv("R 0").verdict(Verdict::Unacceptable).state(State::CloseWait);
    t.recv("R 1").verdict(Verdict::Done).ended(Some(ConnectionError::Reset));
}

/// RFC 5961 §4.2: a SYN is answered with an ACK, whatever its number.
#[test]
fn syns_are_challenged() {
    let mut t = Script::plain();
    t.recv("S 5").verdict(Verdict::Unacceptable).expect(". 1 ack 1");
    t.wait(500).recv("S 1000000").expect(". 1 ack 1").wait(500);
    t.recv("S. 0 ack 1").expect(". 1 ack 1").state(State::Established);
}

/// RFC 5961 §7: challenges are limited; as on Linux to one in 500 ms per connection.
#[test]
fn challenges_are_limited() {
    let mut t = Script::plain();
    t.recv("S 5").expect(". 1 ack 1");
    for _ in 0..100 {
        t.recv("S 5").recv("R 2").recv(". 70000 ack 1").quiet();
    }
    t.wait(499).recv("R 2").quiet().wait(1).recv("R 2").expect(". 1 ack 1");
}

/// The interval is a setting (`tcp_invalid_ratelimit`); zero means no limit.
#[test]
fn the_interval_of_challenges_may_be_none() {
    let settings = Settings { invalid_ratelimit: Duration::ZERO, ..plain() };
    let mut t = Script::open(settings, "S 0 win 65535 mss 1000");
    for _ in 0..5 {
        t.recv("S 5").expect(". 1 ack 1").recv("R 2").expect(". 1 ack 1");
        t.recv(". 70000 ack 1").expect(". 1 ack 1");
    }
}

/// A repeated SYN is answered again, but not at the rate of forged SYNs.
#[test]
fn syns_of_a_flood_are_not_all_answered() {
    let mut t = Script::incoming(plain(), "S 0 mss 1000");
    t.expect("S. 0 ack 1").recv("S 0 mss 1000").expect("S. 0 ack 1");
    for _ in 0..100 {
        t.recv("S 0 mss 1000").quiet();
    }
    t.wait(500).recv("S 0 mss 1000").expect("S. 0 ack 1").recv(". 1 ack 1");
    t.state(State::Established);
}

/// RFC 5961 §5.2 accepts ACKs that are older by up to the peer's window. If less than that was ever
/// acknowledged, such an ACK cannot exist: data with it is a blind guess. Linux rejects it too.
#[test]
fn old_acks_of_what_never_was() {
    let mut t = Script::plain();
    t.recv("P. 1:11 ack 0").verdict(Verdict::Unacceptable).expect(". 1 ack 1");
    assert_eq!(t.c.received_len(), 0);
    t.write(2000).expect("P. 1:2001").recv(". 1 ack 2001").wait(500);
    t.recv("P. 1:11 ack 0").verdict(Verdict::Unacceptable).expect(". 2001 ack 1");
    t.recv("P. 1:11 ack 1").verdict(Verdict::Done).read(1, 10).forget_sent();
}

/// RFC 5961 §5.2: ACKs of unsent data, and ACKs that are too old, are rejected.
#[test]
fn impossible_acks() {
    let mut t = Script::plain();
    t.write(100).expect("P. 1:101");
    t.recv("P. 1:11 ack 102").verdict(Verdict::Unacceptable).expect(". 101 ack 1");
    assert_eq!(t.c.received_len(), 0, "their data is dropped too");
    t.wait(100);
    t.recv("P. 1:11 ack 4294900000").verdict(Verdict::Unacceptable).quiet();
    t.recv("P. 1:11 ack 101").verdict(Verdict::Done).read(1, 10).wait(40).expect(". 101 ack 11");
}

/// RFC 9293 §3.10.7.4, first check: data outside the window is not taken, and is answered at once.
#[test]
fn outside_the_window() {
    let mut t = Script::plain();
    t.recv("P. 65537:65547 ack 1").verdict(Verdict::Unacceptable).expect(". 1 ack 1");
    t.recv("P. 100000:100010 ack 1").verdict(Verdict::Unacceptable).expect(". 1 ack 1");
    t.recv("P. 0:1 ack 1").expect(". 1 ack 1");
    t.recv("F. 70000 ack 1").verdict(Verdict::Unacceptable).expect(". 1 ack 1");
    t.recv("- 1:11").verdict(Verdict::Unacceptable).quiet();
    assert_eq!(t.c.received_len(), 0);
    t.state(State::Established);
}

/// Impossible SACK blocks are ignored: unsent, acknowledged, empty, reversed, or everything.
#[test]
fn impossible_sack_blocks() {
    let mut t = Script::sack();
    t.write(5000).expect("P. 1:5001");
    for blocks in ["6000-7000", "4000-6000", "1000-1000", "3000-2000", "1-2000", "0-4294967295"] {
        for _ in 0..4 {
            t.recv(&std::format!(". 1 ack 1 sack {blocks}")).quiet();
        }
    }
    assert_eq!(
        (t.c.send.loss().board().totals().sacked, t.c.send.loss().board().in_flight()),
        (0, 5)
    );
    t.recv(". 1 ack 5001");
}

/// SACK blocks that split the sent data into tiny records reach a bound; the connection still
/// works.
#[test]
fn sack_blocks_cannot_fill_memory() {
    let mut t = Script::sack();
    t.c.send.set_window(1 << 20);
    t.c.send.set_cwnd(600);
    t.write(60_000).expect("P. 1:60001");
    for index in 0..RECORDS_MAX as u32 {
        let at = 2 + 14 * index % 59_990;
        t.recv(&std::format!(". 1 ack 1 sack {}-{}", at, at + 1));
        t.forget_sent();
    }
    t.forget_sent();
    t.recv(". 1 ack 60001").write(10).forget_sent();
    assert_eq!(t.c.send.loss().board().in_flight(), 1);
}

/// A peer that acknowledges during recovery what it cannot have received (optimistic ACKs). ACKs of
/// unsent data are rejected (RFC 5961 §5.2). ACKs of sent data never let the window grow beyond the
/// threshold (RFC 6937 §3).
#[test]
fn optimistic_acks_during_recovery() {
    let mut t = Script::distant(Settings { sack: true, ..plain() });
    t.write(40_000).expect(". 1:10001").wait(100);
    t.recv(". 1 ack 1 sack 1001-4001").expect(". 1:1001").expect(". 10001:11001").quiet();
    assert_eq!((t.c.send.loss().state(), t.c.send.congestion().ssthresh()), (CaState::Recovery, 5));
    let before = (t.c.send.congestion().cwnd(), t.c.send.loss().delivered());
    t.recv(". 1 ack 11002").verdict(Verdict::Unacceptable).expect(". 11001 ack 1");
    t.recv(". 1 ack 40001").verdict(Verdict::Unacceptable).quiet();
    assert_eq!(before, (t.c.send.congestion().cwnd(), t.c.send.loss().delivered()));
    let mut window = t.c.send.congestion().cwnd();
    for acked in [1001, 5001, 6001, 7001, 8001, 9001] {
        t.recv(&std::format!(". 1 ack {acked}")).forget_sent();
        assert_eq!(t.c.send.loss().state(), CaState::Recovery, "at {acked}");
        assert!(
            t.c.send.congestion().cwnd() <= window.max(5),
            "{} at {acked}",
            t.c.send.congestion().cwnd()
        );
        window = t.c.send.congestion().cwnd();
    }
    t.recv(". 1 ack 10001").forget_sent();
    assert_eq!((t.c.send.loss().state(), t.c.send.congestion().cwnd()), (CaState::Open, 5));
    let rest = t.c.send.nxt() - t.c.send.una();
    t.recv(&std::format!(". 1 ack {}", 10_001 + rest)).forget_sent();
}

/// A storm of SACK blocks (as in CVE-2019-11477 and similar attacks): 600 segments, of which every
/// second is reported, in thousands of blocks, in ascending and descending order and repeatedly.
/// The work is counted in examined records: a few for each block, and the waiting records once for
/// each ACK.
#[test]
fn sack_storms_cost_little() {
    let settings = Settings { sack: true, ..plain() };
    let mut t = Script::open(settings, "S 0 win 65535 mss 100 sackOK");
    t.c.send.set_cwnd(600);
    t.write(60_000).forget_sent();
    assert_eq!(t.c.send.loss().board().totals().outstanding, 600);
    let block = |index: u32| std::format!("{}-{}", index * 200 + 101, index * 200 + 201);
    let (mut acks, mut most) = (0, 0);
    for round in 0..20 {
        for step in 0..100 {
            let step = if round % 2 == 0 { step } else { 99 - step };
            let blocks = [3 * step, 3 * step + 1, 3 * step + 2].map(block);
            let before = t.c.send.loss().board().visits();
            t.recv(&std::format!(". 1 ack 1 sack {}", blocks.join(","))).forget_sent();
            most = most.max(t.c.send.loss().board().visits() - before);
            acks += 1;
        }
    }
    let visits = t.c.send.loss().board().visits();
    assert!(visits < 12 * acks + 10 * 600, "{visits} visits for {acks} ACKs");
    assert!(most < 2 * 600, "{most} visits for one ACK");
    t.recv(". 1 ack 60001").forget_sent();
}

/// Old ACKs change nothing.
#[test]
fn old_acks() {
    let mut t = Script::plain();
    t.write(2000).expect("P. 1:2001").recv(". 1 ack 2001").recv(". 1 ack 1001").quiet();
    t.recv(". 1 ack 1").verdict(Verdict::Done).quiet();
    assert_eq!(t.c.send.flight(), 0);
}

/// Goal: the connection survives any segment at any time, and all memory comes back. Method: random
/// segments around the window and random calls of the owner, from a fixed seed.
#[test]
fn random_segments() {
    let mut state = 1u64;
    let mut random = move |limit: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % limit
    };
    let flags = [".", "P.", "F.", "R", "R.", "S", "S.", "-", "F", "FP."];
    for round in 0..300 {
        let mut t = if round % 2 == 0 { Script::plain() } else { Script::sack() };
        for _ in 0..60 {
            match random(8) {
                0 => t.write(random(3000) as u32),
                1 if random(20) == 0 => t.close(),
                2 => t.wait(random(500)),
                3 => t.act(|c, _| c.consume(c.received_len())),
                _ => {
                    let flags = flags[(random(30) as usize).min(29) % (1 + random(10) as usize)];
                    let (start, len) = (random(9000), random(3000));
                    let (ack, a, b) = (random(20_000), random(20_000), random(20_000));
                    t.recv(&std::format!(
                        "{flags} {start}:{} ack {ack} win {} sack {a}-{b}",
                        start + len,
                        random(65_536),
                    ))
                }
            };
            t.forget_sent();
        }
    }
}
