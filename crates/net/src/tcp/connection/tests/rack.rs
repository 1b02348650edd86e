//! RACK-TLP, F-RTO, and undoing mistaken reductions (RFC 8985, RFC 5682, RFC 3708, RFC 3522).

use super::script::{Script, plain};
use crate::tcp::Settings;
use crate::tcp::congestion::CaState;
extern crate std;

fn distant() -> Script {
    Script::distant(Settings { sack: true, ..plain() })
}

/// With timestamps; segments of 988 bytes.
fn stamped() -> Script {
    let settings = Settings { sack: true, timestamps: true, ..plain() };
    Script::distant_from(settings, "S 0 win 65535 mss 1000 sackOK ts 5 0")
}

/// RFC 8985 §6.2, §6.3: one SACK does not prove a loss; a quarter of a round trip later it does.
#[test]
fn the_reordering_timer_finds_the_hole() {
    let mut t = distant();
    t.write(10_000).expect(". 1:10001").wait(100).recv(". 1 ack 1 sack 7001-8001").quiet();
    assert_eq!(t.c.send.loss().state(), CaState::Disorder);
    t.wait(26).quiet().wait(1).expect(". 1:1001").quiet();
    assert_eq!(
        (t.c.send.loss().state(), t.c.send.loss().board().totals().lost),
        (CaState::Recovery, 7)
    );
    t.recv(". 1 ack 10001");
}

/// RFC 8985 §7.2, §7.3: the tail is probed after two round trips. §7.4: if the probe is reported as
/// a duplicate, nothing was lost.
#[test]
fn a_loss_probe_of_the_tail() {
    let mut t = distant();
    t.write(3000).expect("P. 1:3001").wait(201).quiet().wait(1).expect("P. 2001:3001").quiet();
    assert_eq!(t.c.send.loss().state(), CaState::Open);
    t.recv(". 1 ack 3001 sack 2001-3001");
    assert_eq!(t.c.send.congestion().cwnd(), 10, "not reduced, and not grown unused");
}

/// RFC 8985 §7.4.2: the probe repaired a loss, so the window is reduced.
#[test]
fn a_loss_probe_that_repairs_a_loss() {
    let mut t = distant();
    t.write(3000).expect("P. 1:3001").wait(202).expect("P. 2001:3001").quiet();
    t.recv(". 1 ack 3001").write(1000).expect("P. 3001:4001").wait(100).recv(". 1 ack 4001");
    assert!(t.c.send.congestion().ssthresh() < 10, "{}", t.c.send.congestion().ssthresh());
}

/// RFC 3708: every retransmission was a duplicate, so nothing was lost.
#[test]
fn reported_duplicates_undo_the_reduction() {
    let mut t = distant();
    t.write(10_000).expect(". 1:10001").wait(100);
    t.recv(". 1 ack 1 sack 1001-4001").expect(". 1:1001").quiet();
    assert!(t.c.send.congestion().ssthresh() < 10);
    t.wait(50).recv(". 1 ack 10001").recv(". 1 ack 10001 sack 1-1001");
    assert!(t.c.send.congestion().cwnd() >= 10, "{}", t.c.send.congestion().cwnd());
    assert_eq!(t.c.send.loss().state(), CaState::Open);
}

/// RFC 5682 §3.1: after a timeout new data goes out first. The SACK of data that was sent only once
/// proves that the timeout was spurious.
#[test]
fn a_spurious_timeout_is_undone() {
    let mut t = Script::distant(Settings { early_retrans: 0, sack: true, ..plain() });
    t.write(10_000).expect(". 1:10001").write(10_000).quiet().wait(301).expect(". 1:1001").quiet();
    assert_eq!((t.c.send.loss().state(), t.c.send.congestion().cwnd()), (CaState::Loss, 1));
    t.recv(". 1 ack 1001").expect(". 10001:12001").quiet();
    t.recv(". 1 ack 2001");
    assert_eq!(t.c.send.loss().state(), CaState::Open);
    assert!(t.c.send.congestion().cwnd() >= 10, "{}", t.c.send.congestion().cwnd());
    t.recv(". 1 ack 12001").forget_sent();
}

/// Eifel (RFC 3522): the echoed timestamp is older than the retransmission. So the original
/// arrived, and the reduction is undone at once.
#[test]
fn an_older_echo_undoes_the_reduction() {
    let mut t = stamped();
    let sent = t.c.timestamps.value(t.now);
    t.write(9880).expect("P. 1:9881").wait(100);
    t.recv(". 1 ack 1 sack 989-3953 ts 6 1000").expect(". 1:989").quiet();
    assert_eq!((t.c.send.loss().state(), t.c.send.congestion().ssthresh()), (CaState::Recovery, 5));
    t.wait(10).recv(&std::format!(". 1 ack 3953 ts 7 {sent}")).quiet();
    assert_eq!(t.c.send.loss().state(), CaState::Open);
    assert!(t.c.send.congestion().cwnd() >= 10, "{}", t.c.send.congestion().cwnd());
    t.recv(". 1 ack 9881").forget_sent();
}

/// RFC 3522 §3.2: an echo of the retransmission means that the original was lost.
#[test]
fn an_echo_of_the_retransmission_undoes_nothing() {
    let mut t = stamped();
    t.write(9880).expect("P. 1:9881").wait(100);
    t.recv(". 1 ack 1 sack 989-3953 ts 6 1000").expect(". 1:989").quiet();
    let again = t.c.timestamps.value(t.now);
    t.wait(100).recv(&std::format!(". 1 ack 3953 ts 7 {again}")).forget_sent();
    assert_eq!((t.c.send.loss().state(), t.c.send.congestion().ssthresh()), (CaState::Recovery, 5));
    t.recv(&std::format!(". 1 ack 9881 ts 8 {again}")).forget_sent();
    assert_eq!((t.c.send.loss().state(), t.c.send.congestion().ssthresh()), (CaState::Open, 5));
    assert!(t.c.send.congestion().cwnd() < 10);
}

/// Eifel after a timeout (RFC 3522, RFC 4015): the first ACK echoes the original, and the state
/// before the timeout is restored.
#[test]
fn an_older_echo_undoes_a_timeout() {
    let mut t = stamped();
    t.c.settings.frto = 0;
    t.c.settings.early_retrans = 0;
    let sent = t.c.timestamps.value(t.now);
    t.write(9880).expect("P. 1:9881").wait(301).expect(". 1:989").quiet();
    assert_eq!((t.c.send.loss().state(), t.c.send.congestion().cwnd()), (CaState::Loss, 1));
    t.recv(&std::format!(". 1 ack 989 ts 6 {sent}")).quiet();
    assert_eq!(
        (t.c.send.loss().state(), t.c.send.loss().board().totals().lost),
        (CaState::Open, 0)
    );
    assert!(t.c.send.congestion().cwnd() >= 10, "{}", t.c.send.congestion().cwnd());
    t.recv(". 1 ack 9881").forget_sent();
}

/// ACK division (RFC 3465 §2.1): ACKs of parts of a segment do not open the window.
#[test]
fn divided_acks_gain_nothing() {
    let mut t = distant();
    t.write(10_000).expect(". 1:10001").write(30_000).quiet();
    for part in 1..100 {
        t.recv(&std::format!(". 1 ack {}", 1 + part * 10));
    }
    t.quiet();
    assert_eq!(t.c.send.congestion().cwnd(), 10);
    t.recv(". 1 ack 1001").expect(". 10001:12001").quiet();
    t.recv(". 1 ack 40001").forget_sent();
}

/// A peer that reports more duplicates than were ever retransmitted is not believed.
#[test]
fn invented_duplicates_change_nothing() {
    let mut t = distant();
    t.write(10_000).expect(". 1:10001").wait(100).recv(". 1 ack 5001");
    for _ in 0..50 {
        t.recv(". 1 ack 5001 sack 1-1001");
    }
    assert_eq!(t.c.send.loss().state(), CaState::Open);
    assert_eq!(
        (t.c.send.congestion().cwnd(), t.c.send.loss().delivered()),
        (15, 6),
        "the SYN counts"
    );
    t.recv(". 1 ack 10001").forget_sent();
}
