//! Explicit congestion notification, at the sender (RFC 3168).

use super::script::{Script, plain};
use crate::tcp::Settings;
use crate::tcp::congestion::CaState;
use crate::tcp::ecn::{EcnUse, UnknownEcnUse};
use alloc::string::ToString;
extern crate std;

fn marked() -> Script {
    let settings = Settings { sack: true, ecn: EcnUse::Request, early_retrans: 0, ..plain() };
    let mut t = Script::incoming(settings, "SEW 0 win 65535 mss 1000 sackOK");
    t.expect("SE. 0 ack 1").recv(". 1 ack 1").quiet();
    t
}

/// RFC 3168 §6.1.2: an echo reduces the window as a loss would, once per round trip. The next new
/// data carries CWR, once, and nothing is retransmitted.
#[test]
fn an_echo_reduces_the_window_once_and_is_answered() {
    let mut t = marked();
    t.write(40_000).expect(". 1:10001").quiet();
    t.recv("E. 1 ack 1001");
    assert_eq!((t.c.send.loss().state(), t.c.send.congestion().ssthresh()), (CaState::Cwr, 5));
    for acked in 2..=10 {
        t.recv(&std::format!("E. 1 ack {acked}001"));
        assert!(t.c.send.congestion().ssthresh() == 5, "one reduction for one round trip");
    }
    assert_eq!((t.c.send.loss().state(), t.c.send.congestion().cwnd()), (CaState::Cwr, 5));
    // Proportional rate reduction: half a segment for each that arrived. The first one carries CWR.
    t.expect("W. 10001:11001").expect(". 11001:15001").quiet();
    t.recv(". 1 ack 11001");
    assert_eq!(t.c.send.loss().state(), CaState::Open);
    assert_eq!(t.c.send.loss().board().lost(), 0);
    t.forget_sent();
}

/// RFC 3168 §6.1.2: an echo in the next round trip is new congestion.
#[test]
fn an_echo_of_the_next_round_trip_counts() {
    let mut t = marked();
    t.write(60_000).expect(". 1:10001").recv("E. 1 ack 10001").forget_sent();
    assert_eq!(t.c.send.congestion().ssthresh(), 5);
    let next = t.c.send.nxt() - t.c.send.una();
    t.recv(&std::format!(". 1 ack {}", 10_001 + next)).forget_sent();
    let threshold = t.c.send.congestion().ssthresh();
    let next = 10_001 + next + (t.c.send.nxt() - t.c.send.una());
    t.recv(&std::format!("E. 1 ack {next}")).forget_sent();
    assert_eq!(t.c.send.loss().state(), CaState::Cwr);
    assert!(t.c.send.congestion().ssthresh() < threshold);
}

/// If the handshake did not agree on ECN, the flag is ignored (RFC 3168 §6.1.1).
#[test]
fn an_echo_without_agreement_is_ignored() {
    let mut t = Script::sack();
    t.write(20_000).expect(". 1:10001").recv("E. 1 ack 1001").forget_sent();
    assert_eq!((t.c.send.loss().state(), t.c.send.congestion().cwnd()), (CaState::Open, 11));
    t.recv(". 1 ack 12001").forget_sent();
}

/// RFC 9768 is not supported: settings that select it are rejected.
#[test]
fn accurate_ecn_is_no_setting() {
    let uses = [EcnUse::Off, EcnUse::Request, EcnUse::Accept].map(Ok);
    assert_eq!([0, 1, 2].map(EcnUse::from_setting), uses);
    for value in [-1, 3, 4, 5, 256] {
        assert_eq!(EcnUse::from_setting(value), Err(UnknownEcnUse(value)));
    }
    let text = UnknownEcnUse(3).to_string();
    assert!(text.starts_with("tcp_ecn is 3, but must be 0 (off), 1 "), "{text}");
    assert!(text.ends_with("Accurate ECN (RFC 9768) is not implemented"), "{text}");
}
