//! Closing (RFC 9293 §3.6, §3.10.4, §3.10.7.4, eighth check), our resets, TIME-WAIT, keepalive.

use super::script::{Script, plain};
use crate::tcp::{ConnectionError, Events, FinWait, Settings, State, Verdict};
use crate::time::Duration;

/// RFC 9293 §3.6 figure 12: we close first.
#[test]
fn active_close() {
    let mut t = Script::plain();
    t.close().state(State::FinWait1).expect("F. 1 ack 1");
    t.recv(". 1 ack 2").state(State::FinWait2).events(Events::SENT_ALL);
    t.recv("F. 1 ack 2").state(State::TimeWait).expect(". 2 ack 2");
    t.events(Events::PEER_CLOSED | Events::READABLE | Events::CLOSED);
    assert_eq!(t.c.error(), None);
}

/// FIN and its ACK in one segment.
#[test]
fn active_close_in_one_answer() {
    let mut t = Script::plain();
    t.close().expect("F. 1 ack 1").recv("F. 1 ack 2").state(State::TimeWait).expect(". 2 ack 2");
}

/// RFC 9293 §3.6: the peer closes first; we keep sending, then close.
#[test]
fn passive_close() {
    let mut t = Script::plain();
    t.recv("F. 1 ack 1").state(State::CloseWait).expect(". 1 ack 2");
    t.write(100).expect("P. 1:101").recv(". 2 ack 101").close().state(State::LastAck);
    t.expect("F. 101 ack 2").recv(". 2 ack 102").state(State::Closed).ended(None);
}

/// RFC 9293 §3.6 figure 13: both sides close at once.
#[test]
fn simultaneous_close() {
    let mut t = Script::plain();
    t.close().expect("F. 1 ack 1").recv("F. 1 ack 1").state(State::Closing).expect(". 2 ack 2");
    t.recv(". 2 ack 2").state(State::TimeWait).ended(None).quiet();
}

/// RFC 1122 §4.2.2.13: a half-closed connection still receives data.
#[test]
fn half_close() {
    let mut t = Script::plain();
    t.write_and_close(10).expect("FP. 1:11").recv(". 1 ack 12").state(State::FinWait2);
    t.recv(". 1:2001 ack 12").read(1, 2000).expect(". 12 ack 2001");
    t.wait(1_000_000).quiet().state(State::FinWait2);
    t.recv("F. 2001 ack 12").state(State::TimeWait).expect(". 12 ack 2002");
}

/// RFC 6298: a FIN is retransmitted like data, alone or with data.
#[test]
fn a_fin_is_sent_again() {
    let mut t = Script::plain();
    t.close().expect("F. 1 ack 1").wait(210).expect("F. 1 ack 1").recv(". 1 ack 2");
    let mut t = Script::plain();
    t.write_and_close(100).expect("FP. 1:101").wait(210).expect("FP. 1:101");
    t.recv(". 1 ack 101").state(State::FinWait1).next_timer().expect("F. 101 ack 1");
    t.recv(". 1 ack 102").state(State::FinWait2);
    // Two segments are retransmitted as one.
    let mut t = Script::plain();
    t.write(100).expect("P. 1:101").close().expect("F. 101").wait(210).expect("FP. 1:101");
}

/// RFC 9293 §3.10.7.4, eighth check: a repeated FIN is acknowledged again, in every later state.
#[test]
fn a_repeated_fin_is_answered() {
    let mut t = Script::plain();
    t.recv("F. 1 ack 1").expect(". 1 ack 2").recv("F. 1 ack 1").expect(". 1 ack 2");
    t.close().expect("F. 1 ack 2").recv("F. 1 ack 1").expect(". 2 ack 2").state(State::LastAck);
    let mut t = Script::plain();
    t.close().expect("F. 1 ack 1").recv("F. 1 ack 1").expect(". 2 ack 2");
    t.recv("F. 1 ack 1").expect(". 2 ack 2").state(State::Closing);
    t.recv("F. 1 ack 2").expect(". 2 ack 2").state(State::TimeWait);
}

/// Data after the peer's FIN is ignored.
#[test]
fn data_after_a_fin() {
    let mut t = Script::plain();
    t.recv("F. 1 ack 1").expect(". 1 ack 2").recv(". 2:102 ack 1").state(State::CloseWait);
    assert_eq!(t.c.received_len(), 0);
}

/// RFC 9293 §3.10.5: an abort sends a reset and reports the end; nothing follows.
#[test]
fn abort_resets() {
    let mut t = Script::plain();
    t.write(4990).expect("P. 1:4991").write(10).quiet();
    t.act(|c, _| c.abort()).expect("R. 4991 ack 1").ended(Some(ConnectionError::Aborted));
    t.state(State::Closed).act(|c, _| c.abort()).close().write(10).quiet().wait(100_000).quiet();
    t.recv(". 1 ack 1").verdict(Verdict::Reset);
    // A connection that was never answered is not reset.
    let mut t = Script::connect(plain());
    t.act(|_, _| ()).expect("S 0").act(|c, _| c.abort()).quiet().state(State::Closed);
    let mut t = Script::incoming(plain(), "S 0");
    t.expect("S. 0 ack 1").act(|c, _| c.abort()).expect("R. 1 ack 1");
}

/// RFC 2525 §2.17: an owner that leaves unread data causes a reset; otherwise queued data is sent
/// first.
#[test]
fn disown_closes_or_resets() {
    let mut t = Script::plain();
    t.recv("P. 1:101 ack 1").act(|c, now| c.disown(now)).expect("R. 1 ack 101");
    assert!(t.c.is_over());
    let mut t = Script::plain();
    t.write(100).expect("P. 1:101").act(|c, now| c.disown(now)).expect("F. 101 ack 1");
    t.recv(". 1 ack 102").recv("F. 1 ack 102").expect(". 102 ack 2").state(State::TimeWait);
    assert!(t.c.is_over());
}

/// RFC 1122 §4.2.2.13: data after the owner has closed is answered with a reset; the ACK of a FIN
/// is not.
#[test]
fn data_without_a_receiver_causes_a_reset() {
    let mut t = Script::plain();
    t.act(|c, now| c.disown(now)).expect("F. 1 ack 1").recv(". 1 ack 2").quiet();
    t.recv("FP. 1:101 ack 2").verdict(Verdict::Reset).quiet().state(State::Closed);
    assert_eq!(t.c.error(), Some(ConnectionError::Aborted));
    assert!(!t.c.take_events().contains(Events::PEER_CLOSED), "no event after the end");
}

/// FIN-WAIT-2 without an owner ends after a minute, counted from its start (`tcp_fin_timeout`).
#[test]
fn fin_wait_without_owner_ends() {
    let mut t = Script::plain();
    t.wait(200_000).act(|c, now| c.disown(now)).expect("F. 1 ack 1").wait(50);
    t.recv(". 1 ack 2").state(State::FinWait2);
    t.wait(59_000).state(State::FinWait2).wait(1001).state(State::Closed).quiet();
    let mut t = Script::plain();
    t.close().expect("F. 1 ack 1").recv(". 1 ack 2").wait(100_000).state(State::FinWait2);
    t.act(|c, now| c.disown(now)).wait(59_999).state(State::FinWait2).wait(2).state(State::Closed);
}

/// As on Linux, a connection that does not wait in FIN-WAIT-2 resets the peer: with the number of
/// the peer's ACK when that arrives, with its own number if the owner leaves later.
#[test]
fn fin_wait_may_be_left_out() {
    let mut t = Script::plain();
    t.c.set_fin_wait(FinWait::Never);
    t.act(|c, now| c.disown(now)).expect("F. 1 ack 1");
    t.recv(". 1 ack 2").verdict(Verdict::Reset).quiet().state(State::Closed);
    let mut t = Script::plain();
    t.c.set_fin_wait(FinWait::Never);
    t.close().expect("F. 1 ack 1").recv(". 1 ack 2").wait(100_000).state(State::FinWait2);
    t.act(|c, now| c.disown(now)).expect("R. 2 ack 1").state(State::Closed);
    // The peer closes as well: nothing is left to wait for.
    let mut t = Script::plain();
    t.c.set_fin_wait(FinWait::Never);
    t.recv("F. 1 ack 1").expect(". 1 ack 2").act(|c, now| c.disown(now)).expect("F. 1 ack 2");
    t.recv(". 2 ack 2").verdict(Verdict::Done).state(State::Closed);
}

/// As on Linux, FIN-WAIT-2 lasts at least three and a half retransmission timeouts.
#[test]
fn fin_wait_lasts_some_timeouts() {
    let mut t = Script::plain();
    t.c.set_fin_wait(FinWait::For(Duration::from_millis(1)));
    let least = t.c.send.rtt().rto().as_millis() as u64 * 7 / 2;
    t.act(|c, now| c.disown(now)).expect("F. 1 ack 1").recv(". 1 ack 2").state(State::FinWait2);
    t.wait(least - 1).state(State::FinWait2).wait(2).state(State::Closed).quiet();
}

/// RFC 9293 §3.10.7.4, second check: a reset in the closing states ends the connection without an
/// error.
#[test]
fn resets_while_closing() {
    let mut t = Script::plain();
    t.recv("F. 1 ack 1").expect(". 1 ack 2").close().expect("F. 1 ack 2").recv("R 2");
    t.state(State::Closed).ended(None);
    let mut t = Script::plain();
    t.close()
        .expect("F. 1 ack 1")
        .recv(". 1 ack 2")
        .recv("R 1")
        .ended(Some(ConnectionError::Reset));
}

fn watched() -> Script {
    let settings = Settings {
        keepalive_idle: Duration::from_secs(100),
        keepalive_interval: Duration::from_secs(10),
        keepalive_probes: 3,
        ..plain()
    };
    let mut t = Script::open(settings, "S 0 mss 1000");
    t.act(|c, now| c.set_keepalive(true, now));
    t
}

/// RFC 9293 §3.8.4: an idle peer is probed with an old number; any answer proves that it is alive.
#[test]
fn keepalive_probes_the_idle() {
    let mut t = watched();
    t.wait(99_999).quiet().wait(1).expect(". 0 ack 1").wait(500).recv(". 1 ack 1");
    t.wait(99_999).quiet().wait(1).expect(". 0 ack 1").recv(". 1 ack 1");
    t.wait(50_000).recv("P. 1:11 ack 1").read(1, 10).expect(". 1 ack 11");
    t.wait(99_999).quiet().wait(1).expect(". 0 ack 11");
}

/// Unanswered probes end the connection.
#[test]
fn keepalive_gives_up() {
    let mut t = watched();
    t.wait(100_000).expect(". 0 ack 1").wait(10_000).expect(". 0 ack 1");
    t.wait(10_000).expect(". 0 ack 1").wait(10_000).expect("R. 1 ack 1");
    t.ended(Some(ConnectionError::TimedOut)).wait(1_000_000).quiet();
}

/// A late answer resets the count of probes.
#[test]
fn keepalive_counts_anew() {
    let mut t = watched();
    t.wait(100_000).expect(". 0 ack 1").wait(10_000).expect(". 0 ack 1").recv(". 1 ack 1");
    t.wait(99_999).quiet().wait(1).expect(". 0 ack 1").wait(10_000).expect(". 0 ack 1");
    t.wait(10_000).expect(". 0 ack 1").recv(". 1 ack 1").state(State::Established);
}

/// A connection that has ended reports no further events, whatever the peer sends.
#[test]
fn nothing_follows_the_end() {
    let mut t = Script::plain();
    t.recv("F. 1 ack 1").expect(". 1 ack 2").close().expect("F. 1 ack 2");
    t.recv("F. 1 ack 2").state(State::Closed).ended(None).quiet();
    t.events(Events::default());
}

/// As on Linux, the user timeout ends a silent connection, not the number of probes.
#[test]
fn the_user_timeout_bounds_keepalive() {
    let mut t = Script::plain();
    let seconds = Duration::from_secs;
    t.act(|c, now| {
        c.set_keepalive(true, now);
        c.set_keepalive_idle(seconds(2), now);
        c.set_keepalive_interval(seconds(1));
        c.set_keepalive_probes(1);
        c.set_user_timeout(Some(seconds(5)));
    });
    t.wait(1_999).quiet();
    for _ in 0..3 {
        t.wait(1_000).forget_sent();
        assert_eq!(t.c.error(), None, "the user timeout replaces TCP_KEEPCNT");
    }
    t.wait(1_000).forget_sent();
    assert_eq!(t.c.error(), Some(ConnectionError::TimedOut));
}

/// A FIN alone waits for the congestion window like data, as on Linux 6.18.
#[test]
fn a_fin_alone_waits_for_the_congestion_window() {
    let mut t = Script::plain();
    let cwnd = t.c.info(t.now).snd_cwnd;
    let mss = t.c.info(t.now).snd_mss;
    t.write(cwnd * mss).forget_sent();
    assert_eq!(t.c.info(t.now).unacked, cwnd);
    let end = 1 + cwnd * mss;
    t.close().quiet().recv(". 1 ack 1001").expect(&alloc::format!("F. {end} ack 1"));
}
