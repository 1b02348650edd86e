//! Handshakes (RFC 9293 §3.5, §3.10.7.2 to §3.10.7.4) and the options that they negotiate.

use super::script::{ISS, Script, plain, settings};
use crate::tcp::{ConnectionError, Events, Settings, State, Verdict};
use crate::time::Duration;

/// RFC 9293 §3.5 figure 6, with all options offered and accepted.
#[test]
fn active_open_with_options() {
    let mut t = Script::connect(Settings {
        receive_buffer: 1 << 20,
        receive_buffer_max: 4 << 20,
        ..settings()
    });
    t.expect_first_syn("S 0 win 65535 mss 1460 ws 7 sackOK ts 1000 0");
    t.wait(20).recv("S. 0 ack 1 win 1000 mss 1200 ws 3 sackOK ts 77 1000");
    t.state(State::Established).events(Events::ESTABLISHED | Events::WRITABLE);
    t.expect(". 1 ack 1 ts 1020 77 nomss nows nosackOK");
    // RFC 7323 §2.2: the window of a SYN is not scaled.
    assert_eq!(t.c.send.window(), 1000);
    // 1200 less the timestamps (RFC 6691), and at most half of the window at once (RFC 9293
    // §3.8.6.2.1).
    t.write(1000).expect(". 1:501 nogso").expect("P. 501:1001 nogso");
    t.recv(". 1 ack 1001 win 1000 ts 80 1020");
    // Linux keeps that bound. Here it follows the window, which has its scale now.
    assert_eq!((t.c.send.window(), t.c.send.mss()), (8000, 1188));
    t.write(1188).expect("P. 1001:2189 nogso");
}

/// RFC 9293 §3.5: a passive open answers only the options offered (RFC 7323 §2.2, §3.2, RFC 2018
/// §2).
#[test]
fn passive_open_offers_what_was_offered() {
    let mut t = Script::incoming(settings(), "S 0 win 500 mss 1300 ws 2 sackOK ts 5 0");
    t.expect("S. 0 ack 1 mss 1460 ws 2 sackOK ts 1000 5");
    t.recv(". 1 ack 1 win 500 ts 6 1000").state(State::Established);
    assert_eq!((t.c.send.window(), t.c.send.mss()), (2000, 1000), "half of the window, not 1288");

    let mut t = Script::incoming(settings(), "S 0 win 500 mss 1300");
    t.expect("S. 0 ack 1 mss 1460 nows nosackOK nots");
    t.recv(". 1 ack 1 win 500").state(State::Established);
    assert_eq!((t.c.send.window(), t.c.send.mss()), (500, 500), "the whole of a very small window");
}

/// Disabled options are neither offered nor accepted.
#[test]
fn switched_off_options_stay_off() {
    let mut t = Script::connect(plain());
    t.expect_first_syn("S 0 mss 1460 nows nosackOK nots");
    t.recv("S. 0 ack 1 win 1000 mss 1000 ws 3 sackOK ts 77 1000");
    t.expect(". 1 ack 1 nots");
    assert_eq!(
        (t.c.send.window_scale(), t.c.handshake.agreed().sack, t.c.timestamps.enabled()),
        (0, false, false)
    );
    let mut t = Script::incoming(plain(), "S 0 win 500 mss 1300 ws 2 sackOK ts 5 0");
    t.expect("S. 0 ack 1 mss 1460 nows nosackOK nots");
}

/// RFC 9293 §3.7.1: without the option the default applies; the minimum is Linux's
/// `tcp_min_snd_mss`.
#[test]
fn segment_size_is_bounded() {
    let mut t = Script::incoming(plain(), "S 0");
    t.expect("S. 0 ack 1").recv(". 1 ack 1");
    assert_eq!(t.c.send.mss(), 536);
    let mut t = Script::incoming(plain(), "S 0 mss 1");
    t.expect("S. 0 ack 1").recv(". 1 ack 1");
    assert_eq!(t.c.send.mss(), 48);
    let mut t = Script::incoming(plain(), "S 0 mss 9000");
    t.expect("S. 0 ack 1").recv(". 1 ack 1");
    assert_eq!(t.c.send.mss(), 1460, "ours is less");
}

/// RFC 7323 §2.3: windows are not scaled if only one side offers it.
#[test]
fn no_scaling_unless_both_offer() {
    let mut t = Script::connect(Settings {
        receive_buffer: 1 << 20,
        receive_buffer_max: 4 << 20,
        ..settings()
    });
    t.expect_first_syn("S 0 ws 7");
    t.recv("S. 0 ack 1 win 1000 mss 1460");
    t.expect(". 1 ack 1 win 65535 nots");
}

/// RFC 6298 §5.5, RFC 9293 §3.8.3 R2 for SYN: a SYN is retransmitted each second at first, then at
/// doubling times (`tcp_syn_linear_timeouts`). It is given up after the time of the configured
/// doublings.
#[test]
fn a_syn_is_sent_again_and_given_up() {
    let mut t = Script::connect(Settings { syn_retries: 2, ..plain() });
    t.expect_first_syn("S 0");
    for _ in 0..5 {
        t.wait(999).quiet().wait(1).expect("S 0");
    }
    t.wait(1999).quiet().wait(1).quiet().ended(Some(ConnectionError::TimedOut));
    t.state(State::Closed);
    let mut t = Script::connect(Settings { syn_retries: 2, syn_linear_timeouts: 0, ..plain() });
    t.expect_first_syn("S 0");
    t.wait(999).quiet().wait(1).expect("S 0");
    t.wait(1999).quiet().wait(1).expect("S 0");
    t.wait(3999).quiet().wait(1).quiet().ended(Some(ConnectionError::TimedOut));
}

/// A SYN-ACK is retransmitted too, after a timeout and when the SYN arrives again.
#[test]
fn a_syn_ack_is_sent_again() {
    let mut t = Script::incoming(Settings { synack_retries: 1, ..plain() }, "S 0 mss 1000");
    t.expect("S. 0 ack 1");
    t.recv("S 0 mss 1000").expect("S. 0 ack 1").quiet();
    t.wait(1000).expect("S. 0 ack 1");
    t.wait(2000).quiet().ended(Some(ConnectionError::TimedOut));
}

/// `tcp_rto_max_ms` bounds the timeouts of SYN-ACKs and SYNs.
#[test]
fn the_greatest_timeout_is_a_setting() {
    let settings = Settings {
        synack_retries: 3,
        syn_retries: 4,
        syn_linear_timeouts: 0,
        rto_max: Duration::from_secs(2),
        ..plain()
    };
    let mut t = Script::incoming(settings, "S 0 mss 1000");
    t.expect("S. 0 ack 1").wait(1000).expect("S. 0 ack 1");
    for _ in 0..2 {
        t.wait(1999).quiet().wait(1).expect("S. 0 ack 1");
    }
    t.wait(2000).quiet().ended(Some(ConnectionError::TimedOut));
    let mut t = Script::connect(settings);
    t.expect_first_syn("S 0").wait(1000).expect("S 0");
    t.wait(1999).quiet().wait(1).expect("S 0").wait(1999).quiet().wait(1).expect("S 0");
}

/// Karn: no RTT sample from a SYN that was sent twice (RFC 6298 §3); the timeout is then three
/// seconds (RFC 6298 §5.7).
#[test]
fn no_sample_from_a_repeated_syn() {
    let mut t = Script::connect(plain());
    t.expect_first_syn("S 0").wait(1000).expect("S 0");
    t.wait(10).recv("S. 0 ack 1 mss 1000").expect(". 1 ack 1");
    assert_eq!((t.c.send.rtt().srtt(), t.c.send.rtt().rto()), (None, Duration::from_secs(3)));
}

/// RFC 9293 §3.10.7.3: segments that do not answer our SYN.
#[test]
fn wrong_answers_to_a_syn() {
    let mut t = Script::connect(plain());
    t.expect_first_syn("S 0");
    t.recv("S. 0 ack 2").verdict(Verdict::Reset);
    t.recv("S. 0 ack 0").verdict(Verdict::Reset);
    t.recv(". 1 ack 5").verdict(Verdict::Reset);
    t.recv("R. 1 ack 5").verdict(Verdict::Unacceptable);
    t.recv("R 1").verdict(Verdict::Unacceptable);
    t.recv(". 1 ack 1").verdict(Verdict::Unacceptable);
    t.recv("F. 1 ack 1").verdict(Verdict::Unacceptable);
    t.quiet().state(State::SynSent);
    t.recv("R. 0 ack 1").verdict(Verdict::Done).ended(Some(ConnectionError::Refused));
    t.state(State::Closed).quiet();
}

/// RFC 9293 §3.5 figure 7: both sides connect.
#[test]
fn simultaneous_open() {
    let mut t = Script::connect(settings());
    t.expect_first_syn("S 0 sackOK");
    t.recv("S 0 win 3000 mss 1000 sackOK ws 2").state(State::SynReceived);
    t.expect("S. 0 ack 1 mss 1460 ws 2 sackOK").quiet();
    t.recv("S. 0 ack 1 win 3000 mss 1000 sackOK ws 2").state(State::Established);
    t.expect(". 1 ack 1").quiet();
    assert_eq!(t.c.send.window(), 3000, "not scaled in a SYN");
    t.write(500).expect("P. 1:501").recv(". 1 ack 501 win 1000");
    assert_eq!(t.c.send.window(), 4000);
}

/// A simultaneous open in which the peer's SYN-ACK is lost and its plain ACK arrives.
#[test]
fn simultaneous_open_ends_with_an_ack() {
    let mut t = Script::connect(plain());
    t.expect_first_syn("S 0").recv("S 0 mss 1000").expect("S. 0 ack 1");
    t.recv(". 1 ack 1").state(State::Established).quiet();
    t.recv("P. 1:101 ack 1").read(1, 100).expect(". 1 ack 101");
}

/// RFC 9293 §3.10.7.4, fifth check: an ACK that does not match our SYN is answered with a reset.
#[test]
fn wrong_ack_of_a_syn_ack() {
    let mut t = Script::incoming(plain(), "S 0 mss 1000");
    t.expect("S. 0 ack 1");
    t.recv(". 1 ack 0").verdict(Verdict::Reset).recv(". 1 ack 2").verdict(Verdict::Reset);
    t.state(State::SynReceived).quiet();
    t.recv(". 1 ack 1").state(State::Established);
}

/// RFC 9293 §3.10.7.4, second check: a reset ends an incoming connection.
#[test]
fn reset_of_a_half_open_connection() {
    let mut t = Script::incoming(plain(), "S 0 mss 1000");
    t.expect("S. 0 ack 1").recv("R 1").ended(Some(ConnectionError::Reset)).quiet();
    let mut t = Script::connect(plain());
    t.expect_first_syn("S 0").recv("S 0 mss 1000").expect("S. 0 ack 1");
    t.recv("R 1").ended(Some(ConnectionError::Refused));
}

/// A held SYN is not answered before the owner says so. The SYN again changes nothing; a reset ends
/// it.
#[test]
fn an_unanswered_connection_waits() {
    let mut t = Script::incoming_held(plain(), "S 0 mss 1000");
    t.events(Events::INCOMING).recv("S 0 mss 1000").quiet().wait(60_000).quiet();
    t.act(|c, _| c.accept()).expect("S. 0 ack 1");
    let mut t = Script::incoming_held(plain(), "S 0 mss 1000");
    t.recv("R 1").ended(Some(ConnectionError::Reset)).quiet();
    let mut t = Script::incoming_held(plain(), "S 0 mss 1000");
    t.act(|c, _| c.abort()).ended(Some(ConnectionError::Aborted)).quiet();
}

/// RFC 9293 §3.10.7.4: data and FIN with the ACK of our SYN-ACK are accepted.
#[test]
fn data_and_fin_complete_the_handshake() {
    let mut t = Script::incoming(plain(), "S 0 mss 1000");
    t.expect("S. 0 ack 1").recv("FP. 1:101 ack 1").state(State::CloseWait);
    t.read(1, 100).expect(". 1 ack 102");
}

/// Data written before the connection is open is sent once it opens; so is a FIN.
#[test]
fn early_writes_wait_for_the_handshake() {
    let mut t = Script::incoming(plain(), "S 0 mss 1000");
    t.expect("S. 0 ack 1").write(100).close().quiet();
    t.recv(". 1 ack 1 win 5000").state(State::FinWait1).expect("FP. 1:101");
}

/// RFC 9293 §3.10.4: closing before the peer has answered just ends the connection.
#[test]
fn close_before_the_answer() {
    let mut t = Script::connect(plain());
    t.expect_first_syn("S 0").close().state(State::Closed).ended(None).quiet();
    t.recv("S. 0 ack 1").verdict(Verdict::Reset);
}

/// RFC 1122 §4.2.3.9, RFC 5927 §4: an ICMP error ends an opening connection if it quotes our SYN.
#[test]
fn unreachable_ends_only_an_opening_connection() {
    let mut t = Script::connect(plain());
    t.expect_first_syn("S 0");
    assert_eq!([0, 1, 9].map(|at| t.c.was_sent(crate::tcp::Seq(ISS + at))), [true, false, false]);
    t.act(|c, _| c.unreachable(true)).ended(Some(ConnectionError::Unreachable));
    let mut t = Script::plain();
    t.write(500).expect("P. 1:501");
    t.act(|c, _| c.unreachable(true)).state(State::Established);
}

impl Script {
    /// Expects the SYN of a new connection.
    #[track_caller]
    pub(super) fn expect_first_syn(&mut self, text: &str) -> &mut Self {
        self.act(|_, _| ()).expect(text).quiet()
    }
}
