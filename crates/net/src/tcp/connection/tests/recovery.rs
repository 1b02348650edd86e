//! Loss: duplicate ACKs, SACK, NewReno and the timer (RFC 5681, RFC 6582, RFC 6675, RFC 6298).

use super::script::{ISS, Script, plain, settings};
use crate::tcp::congestion::CaState;
use crate::tcp::{ConnectionError, Seq, Settings, State};
use crate::time::Duration;
extern crate std;

fn ten_segments(t: &mut Script) {
    t.write(10_000).expect(". 1:10001").quiet();
}

/// RFC 5681 §3.2: the third duplicate ACK retransmits the first segment, once.
#[test]
fn third_duplicate_ack() {
    let mut t = Script::plain();
    ten_segments(&mut t);
    t.recv(". 1 ack 1").recv(". 1 ack 1").quiet();
    t.recv(". 1 ack 1").expect(". 1:1001").quiet();
    assert_eq!(t.c.send.congestion().ssthresh(), 5, "RFC 5681 equation (4)");
    t.recv(". 1 ack 1").recv(". 1 ack 1").quiet();
    t.recv(". 1 ack 10001").quiet();
    // RFC 6582 §4.1: only an ACK of more data ends the state.
    assert_eq!(t.c.send.loss().state(), CaState::Recovery);
    t.write(100).expect("P. 10001:10101").recv(". 1 ack 10101");
    assert_eq!(t.c.send.loss().state(), CaState::Open);
}

/// RFC 5681 §2: ACKs with data, with another window, or with nothing in flight are no duplicates.
#[test]
fn what_is_no_duplicate() {
    let mut t = Script::plain();
    t.recv(". 1 ack 1").recv(". 1 ack 1").recv(". 1 ack 1").quiet();
    ten_segments(&mut t);
    t.c.send.set_window(60_000);
    t.recv(". 1 ack 1 win 61000").recv(". 1 ack 1 win 62000").recv(". 1 ack 1 win 63000").quiet();
    t.recv(". 1:11 ack 1").recv(". 11:21 ack 1").recv(". 21:31 ack 1").wait(40);
    t.expect(". 10001 ack 31").quiet();
}

/// RFC 5681 §3.2: a duplicate ACK that nothing in flight explains, such as the answer to a
/// zero-window probe that crosses the window update, does not lower the threshold of three.
#[test]
fn a_stray_duplicate_keeps_the_threshold() {
    let mut t = Script::plain();
    t.write(1000).expect("P. 1:1001").recv(". 1 ack 1001 win 0");
    t.write(1000).next_timer().expect(". 1000 ack 1");
    t.recv(". 1 ack 1001 win 60000").expect("P. 1001:2001");
    t.recv(". 1 ack 1001 win 60000").quiet().recv(". 1 ack 2001 win 60000").quiet();
    t.write(10_000).expect(". 2001:12001").quiet();
    t.recv(". 1 ack 2001 win 60000").recv(". 1 ack 2001 win 60000").quiet();
    t.recv(". 1 ack 2001 win 60000").expect(". 2001:3001").quiet();
}

/// RFC 6582 §3.2 step 3: each partial ACK retransmits the next hole, without a timeout.
#[test]
fn newreno_partial_acks() {
    let mut t = Script::plain();
    ten_segments(&mut t);
    t.recv(". 1 ack 1").recv(". 1 ack 1").recv(". 1 ack 1").expect(". 1:1001");
    t.recv(". 1 ack 1").recv(". 1 ack 1").recv(". 1 ack 1").recv(". 1 ack 1").quiet();
    t.recv(". 1 ack 3001").expect(". 3001:4001").quiet();
    t.recv(". 1 ack 6001").expect(". 6001:7001").quiet();
    assert!(t.c.send.congestion().cwnd() <= 5, "no growth in recovery");
    t.recv(". 1 ack 10001").quiet().write(100).expect("P. 10001:10101").recv(". 1 ack 10101");
    assert_eq!(t.c.send.loss().state(), CaState::Open);
}

/// RFC 3042, limited transmit: the first two duplicate ACKs release one new segment each. RFC 6937:
/// during recovery, one for every segment beyond half of the flight.
#[test]
fn duplicates_let_data_out() {
    let mut t = Script::plain();
    t.write(20_000).expect(". 1:10001").quiet();
    t.recv(". 1 ack 1").expect(". 10001:11001").recv(". 1 ack 1").expect(". 11001:12001");
    t.recv(". 1 ack 1").expect(". 1:1001").quiet();
    t.recv(". 1 ack 1").quiet().recv(". 1 ack 1").expect(". 12001:13001").quiet();
    t.recv(". 1 ack 1").quiet().recv(". 1 ack 1").expect(". 13001:14001").quiet();
}

/// RFC 8985 §6.2: three segments above a hole. Only lost data is retransmitted.
#[test]
fn sack_finds_the_hole() {
    let mut t = Script::distant(Settings { sack: true, ..plain() });
    ten_segments(&mut t);
    t.wait(100).recv(". 1 ack 1001 sack 2001-3001").quiet();
    t.recv(". 1 ack 1001 sack 2001-4001").quiet();
    t.recv(". 1 ack 1001 sack 2001-5001").expect(". 1001:2001").quiet();
    t.recv(". 1 ack 1001 sack 2001-10001").quiet();
    t.recv(". 1 ack 10001").quiet();
    assert_eq!(t.c.send.loss().state(), CaState::Open);
}

/// Two holes are both filled in one recovery, as proportional rate reduction allows.
#[test]
fn sack_fills_two_holes() {
    let mut t = Script::distant(Settings { sack: true, ..plain() });
    ten_segments(&mut t);
    t.wait(100).recv(". 1 ack 1 sack 1001-2001").quiet();
    t.recv(". 1 ack 1 sack 1001-2001,3001-4001").quiet();
    t.recv(". 1 ack 1 sack 1001-2001,3001-5001").expect(". 1:1001").quiet();
    t.recv(". 1 ack 1 sack 1001-2001,3001-7001").expect(". 2001:3001").quiet();
    t.wait(100).recv(". 1 ack 10001").quiet();
}

/// RFC 6298 §5.4 to 5.6: the timer retransmits the first segment and doubles.
#[test]
fn timeout_and_back_off() {
    let mut t = Script::plain();
    t.write(500).expect("P. 1:501");
    // The handshake took no time: the least timeout applies.
    t.wait(199).quiet().wait(2).expect("P. 1:501");
    t.wait(398).quiet().wait(4).expect("P. 1:501");
    t.wait(796).quiet().wait(8).expect("P. 1:501");
    t.recv(". 1 ack 501").quiet().wait(100_000).quiet();
    // RFC 6298 §5.7, Karn: no sample from it. As on Linux, the next sample ends the back-off.
    t.write(500).expect("P. 501:1001").wait(10).recv(". 1 ack 1001");
    assert!(t.c.send.rtt().rto() < Duration::from_millis(250));
}

/// RFC 5681 §3.1: after a timeout one segment, then slow start to half of the data that was in
/// flight. RFC 5681 §3.2 applies to holes, not to what the timer has marked: nothing is
/// retransmitted twice.
#[test]
fn slow_start_after_a_timeout() {
    for sack in [false, true] {
        let mut t = if sack { Script::sack() } else { Script::plain() };
        t.c.settings.early_retrans = 0;
        ten_segments(&mut t);
        t.wait(210).expect(". 1:1001").quiet();
        assert_eq!((t.c.send.congestion().cwnd(), t.c.send.congestion().ssthresh()), (1, 5));
        t.recv(". 1 ack 1001").expect(". 1001:3001").quiet();
        t.recv(". 1 ack 2001").expect(". 3001:5001").quiet();
        t.recv(". 1 ack 5001").expect(". 5001:10001").quiet();
        t.recv(". 1 ack 10001").quiet().write(9).forget_sent().recv(". 1 ack 10010");
        assert_eq!(t.c.send.loss().state(), CaState::Open);
    }
}

/// A timeout whose original segments arrive after all: the ACK covers everything.
#[test]
fn spurious_timeout() {
    let mut t = Script::plain();
    ten_segments(&mut t);
    t.wait(210).expect(". 1:1001").recv(". 1 ack 10001").quiet();
    t.write(100).expect("P. 10001:10101");
}

/// RFC 2018 §8, RFC 6675 §5.1: after a timeout SACKed data is not retransmitted.
#[test]
fn timeout_respects_sack() {
    let mut t = Script::distant(Settings { early_retrans: 0, sack: true, ..plain() });
    t.write(3000).expect("P. 1:3001").recv(". 1 ack 1 sack 1001-2001");
    t.c.send.hold_retransmissions();
    t.forget_sent();
    t.wait(450).forget_sent().recv(". 1 ack 2001").expect("P. 2001:3001").quiet();
}

/// RFC 2018 §8: a receiver may drop SACKed data; then everything is retransmitted. As on Linux it
/// first gets a moment, as its ACKs may be out of order.
#[test]
fn reneging() {
    let mut t = Script::distant(Settings { sack: true, ..plain() });
    t.write(4000).expect("P. 1:4001").wait(100).recv(". 1 ack 1001 sack 2001-4001").quiet();
    // The hole is acknowledged, but the data reported above it no longer is.
    t.recv(". 1 ack 2001").quiet().wait(49).quiet();
    t.wait(1).expect(". 2001:3001").quiet().recv(". 1 ack 3001").expect("P. 3001:4001");
}

/// RFC 2018 §8: if the timer finds that SACK had reported the first segment, no report counts any
/// longer, and everything is retransmitted.
#[test]
fn reneging_forgets_all_reports() {
    let mut t = Script::distant(Settings { sack: true, ..plain() });
    t.write(6000).expect("P. 1:6001").wait(100);
    t.recv(". 1 ack 1001 sack 2001-4001").recv(". 1 ack 2001 sack 2001-4001").forget_sent();
    assert_eq!(t.c.send.loss().board().totals().sacked, 2);
    t.wait(50).expect(". 2001:3001").quiet();
    let totals = t.c.send.loss().board().totals();
    assert_eq!((totals.sacked, totals.lost, totals.resent), (0, 4, 1));
    assert_eq!(t.c.send.loss().state(), CaState::Loss);
    t.recv(". 1 ack 3001").expect(". 3001:5001").quiet();
    t.recv(". 1 ack 5001").expect("P. 5001:6001").recv(". 1 ack 6001").quiet();
    assert_eq!(t.c.send.loss().state(), CaState::Open);
}

/// A receiver that acknowledges the data before that moment is over has dropped nothing: its ACKs
/// were out of order.
#[test]
fn acks_in_another_order_are_no_reneging() {
    let mut t = Script::distant(Settings { sack: true, ..plain() });
    t.write(4000).expect("P. 1:4001").wait(100);
    t.recv(". 1 ack 1001 sack 2001-4001").recv(". 1 ack 2001").quiet();
    t.wait(20).recv(". 1 ack 4001").quiet().wait(1000).quiet();
    assert_ne!(t.c.send.loss().state(), CaState::Loss);
}

/// RFC 9293 §3.8.3 R2: given up after the time that the retries take at the least timeout.
#[test]
fn data_is_given_up() {
    let mut t = Script::open(Settings { retries2: 3, ..plain() }, "S 0 mss 1000");
    t.write(10).expect("P. 1:11");
    for _ in 0..4 {
        t.next_timer().expect("P. 1:11");
    }
    assert!(t.now.micros() < 1_000_000 + 3_100_000);
    t.quiet().wait(3500).quiet().ended(Some(ConnectionError::TimedOut)).state(State::Closed);
}

/// `tcp_retries2` of 15 means 924.6 seconds, whatever the path.
#[test]
fn retries_are_a_time() {
    let mut t = Script::plain();
    t.write(10).expect("P. 1:11").next_timer().expect("P. 1:11");
    let begin = t.now;
    while t.c.state() == State::Established {
        t.next_timer().forget_sent();
    }
    let seconds = t.now.since(begin).as_secs();
    assert!((924..1050).contains(&seconds), "{seconds} s");
    t.ended(Some(ConnectionError::TimedOut));
}

/// An answer resets the count of retries.
#[test]
fn progress_resets_the_retries() {
    let mut t = Script::open(Settings { retries2: 2, ..plain() }, "S 0 mss 1000");
    t.write(20).expect("P. 1:21");
    for part in 0..4 {
        t.next_timer().expect(&std::format!("P. {}:21", 1 + part));
        t.recv(&std::format!(". 1 ack {}", 2 + part));
    }
    t.next_timer().expect("P. 5:21").state(State::Established);
}

/// RFC 6298 §5.3: an ACK of new data restarts the timer.
#[test]
fn acks_restart_the_timer() {
    let mut t = Script::plain();
    t.write(2000).expect("P. 1:2001").wait(150).recv(". 1 ack 1001");
    t.wait(199).quiet().wait(300).expect("P. 1001:2001");
}

/// RFC 7323 §4.1: with timestamps a retransmission can give a sample.
#[test]
fn samples_from_timestamps() {
    let mut t = Script::open(settings(), "S 0 mss 1000 sackOK ts 5 0");
    t.write(100).expect("P. 1:101").wait(210).expect("P. 1:101 ts 1200 5");
    t.recv(". 1 ack 101 ts 6 1200");
    assert!(t.c.send.rtt().rto() < Duration::from_millis(300), "the back-off ended");
}

/// RFC 3465 §2.3, as on Linux: the window grows by what was acknowledged.
#[test]
fn slow_start_doubles() {
    let mut t = Script::plain();
    t.write(45_000).expect(". 1:10001").quiet();
    t.recv(". 1 ack 10001").expect(". 10001:30001").quiet();
    t.recv(". 1 ack 20001").expect(". 30001:45001").quiet();
}

/// RFC 7661 §4: an unused window does not grow.
#[test]
fn an_unused_window_does_not_grow() {
    let mut t = Script::plain();
    for round in 0..30 {
        let (from, to) = (1 + round * 100, 101 + round * 100);
        t.write(100).expect(&std::format!("P. {from}:{to}")).recv(&std::format!(". 1 ack {to}"));
    }
    assert_eq!(t.c.send.congestion().cwnd(), 10);
}

/// RFC 1191, RFC 8201: a packet that is too big is retransmitted at once in smaller segments,
/// without a reduction of the window.
#[test]
fn smaller_path_mtu() {
    let mut t = Script::plain();
    t.write(3000).expect("P. 1:3001 gso 1000");
    t.act(|c, now| c.too_big(600, now)).expect("P. 1:3001 gso 600");
    assert_eq!(t.c.send.congestion().cwnd(), 10);
    t.recv(". 1 ack 3001").write(1200).expect("P. 3001:4201 gso 600");
    // RFC 5927 §4.1: not for data that was never sent, nor for data that has arrived.
    let sent = [3000, 3001, 4200, 4201].map(|at| t.c.was_sent(Seq(ISS.wrapping_add(at))));
    assert_eq!(sent, [false, true, true, false]);
    // It never makes segments larger.
    t.act(|c, now| c.too_big(1400, now)).quiet();
    assert_eq!(t.c.send.mss(), 600);
}
