//! Blind attacks and impossible segments (RFC 5961, RFC 9293 §3.10.7.4, RFC 5927).

use super::script::Script;
use crate::tcp::scoreboard::RECORDS_MAX;
use crate::tcp::{ConnectionError, State, Verdict};
extern crate std;

/// RFC 5961 §3.2: a reset counts only at exactly the next number; one in the window is asked back.
#[test]
fn resets_must_match() {
    let mut t = Script::plain();
    t.recv("R 0").verdict(Verdict::Unacceptable).quiet();
    t.recv("R 70000").verdict(Verdict::Unacceptable).quiet();
    t.recv("R 2").verdict(Verdict::Unacceptable).expect(". 1 ack 1").state(State::Established);
    t.recv("R. 1 ack 1").verdict(Verdict::Done).ended(Some(ConnectionError::Reset));
}

/// RFC 5961 §4.2: a SYN is answered with an ACK, whatever its number.
#[test]
fn syns_are_challenged() {
    let mut t = Script::plain();
    t.recv("S 5").verdict(Verdict::Unacceptable).expect(". 1 ack 1");
    t.wait(500).recv("S 1000000").expect(". 1 ack 1").wait(500);
    t.recv("S. 0 ack 1").expect(". 1 ack 1").state(State::Established);
}

/// RFC 5961 §7: challenges are limited; Linux: one in 500 ms for each connection.
#[test]
fn challenges_are_limited() {
    let mut t = Script::plain();
    t.recv("S 5").expect(". 1 ack 1");
    for _ in 0..100 {
        t.recv("S 5").recv("R 2").recv(". 70000 ack 1").quiet();
    }
    t.wait(499).recv("R 2").quiet().wait(1).recv("R 2").expect(". 1 ack 1");
}

/// RFC 5961 §5.2: ACKs of what was never sent, or of what is long past, are not believed.
#[test]
fn impossible_acks() {
    let mut t = Script::plain();
    t.write(100).expect("P. 1:101");
    t.recv("P. 1:11 ack 102").verdict(Verdict::Unacceptable).expect(". 101 ack 1");
    assert_eq!(t.c.received_len(), 0, "nor is their data");
    t.wait(100);
    t.recv("P. 1:11 ack 4294900000").verdict(Verdict::Unacceptable).quiet();
    t.recv("P. 1:11 ack 101").verdict(Verdict::Done).read(1, 10).wait(40).expect(". 101 ack 11");
}

/// RFC 9293 §3.10.7.4 first: outside the window nothing is taken; data is answered at once.
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

/// SACK blocks that cannot be are ignored: unsent, acknowledged, empty, reversed, everything.
#[test]
fn impossible_sack_blocks() {
    let mut t = Script::sack();
    t.write(5000).expect("P. 1:5001");
    for blocks in ["6000-7000", "4000-6000", "1000-1000", "3000-2000", "1-2000", "0-4294967295"] {
        for _ in 0..4 {
            t.recv(&std::format!(". 1 ack 1 sack {blocks}")).quiet();
        }
    }
    assert_eq!((t.c.send.board.sacked(), t.c.send.board.pipe()), (0, 5000));
    t.recv(". 1 ack 5001");
}

/// SACK blocks that cut what was sent to bits meet a bound, and the connection still works.
#[test]
fn sack_blocks_cannot_fill_memory() {
    let mut t = Script::sack();
    t.c.send.wnd = 1 << 20;
    t.c.congestion = crate::tcp::congestion::NewReno::new(60_000);
    t.write(60_000).expect("P. 1:60001");
    for index in 0..RECORDS_MAX as u32 {
        let at = 2 + 14 * index % 59_990;
        t.recv(&std::format!(". 1 ack 1 sack {}-{}", at, at + 1));
        t.forget_sent();
    }
    t.forget_sent();
    t.recv(". 1 ack 60001").write(10).forget_sent();
    assert_eq!(t.c.send.board.pipe(), 10);
}

/// Old ACKs change nothing.
#[test]
fn old_acks() {
    let mut t = Script::plain();
    t.write(2000).expect("P. 1:2001").recv(". 1 ack 2001").recv(". 1 ack 1001").quiet();
    t.recv(". 1 ack 1").verdict(Verdict::Done).quiet();
    assert_eq!(t.c.send.flight(), 0);
}

/// Any segment at any time is survived, and memory comes back. Method: random segments around
/// the window against random calls of the owner, from a fixed seed.
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
