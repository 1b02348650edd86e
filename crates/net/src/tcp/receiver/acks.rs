//! When received data is acknowledged (RFC 5681 §4.2, RFC 9293 §3.8.6.3, RFC 1122 §4.2.3.2).
//!
//! RFC 5681 asks for an ACK of at least every second full segment, within 500 ms. On top of that:
//!
//! - *Quick ACKs.* At the start, after a pause and when something is wrong, ACKs are sent at once,
//!   half as many as the window has segments, so that the peer's window grows
//!   (`tcp_info/tcp-info-last_data_recv.pkt`).
//! - *Answers.* A connection that answers data with data waits for the answer to carry the ACK.
//! - *Delay.* It follows the time between arrivals, from 40 ms to 200 ms.
//! - *Expected answers.* An owner that answers quickly may announce it. Then the ACKs of the first
//!   request and of the peer's FIN also wait for the answer; that of the request at most until the
//!   owner gives up.

use crate::tcp::rtt::RttEstimator;
use crate::time::{Duration, Instant};

/// Largest number of quick ACKs in a row; Linux's value.
pub(super) const QUICK_ACKS: u8 = 16;
/// Quick ACKs after a congestion mark.
pub(super) const QUICK_ACKS_MARKED: u8 = 2;
/// Longest delay of an ACK; Linux's value.
const DELAY_MAX: Duration = Duration::from_millis(200);

/// How urgently an ACK is owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::tcp) enum AckOwed {
    No,
    Delayed,
    Now,
}

/// Whether the owner answers received data with data that can carry the ACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answers {
    No,
    /// The owner announced answers, and nothing has contradicted it.
    Expected,
    /// The last received data was answered.
    Yes,
}

/// The ACK policy of one connection.
pub(super) struct AckPolicy {
    owed: AckOwed,
    /// When a delayed ACK is due.
    at: Option<Instant>,
    /// Quick ACKs left to send.
    quick: u8,
    answers: Answers,
    /// How long the ACK of a small segment, or of the FIN, waits for an expected answer; zero if no
    /// answer is expected.
    answer_wait: Duration,
    /// Segments since the last ACK that may have ended a write of the sender: 0, 1, or 2 for more.
    pushed: u8,
    /// Current delay; zero before any data.
    delay: Duration,
    /// Initial and least delay.
    delay_min: Duration,
    /// Every ACK is sent at once.
    undelayed: bool,
    /// When data last arrived.
    data_at: Instant,
}

impl AckPolicy {
    /// A policy that delays ACKs for at least `delay_min`, or sends all at once if `undelayed`.
    pub(super) fn new(delay_min: Duration, undelayed: bool, now: Instant) -> Self {
        Self {
            owed: AckOwed::No,
            at: None,
            quick: 0,
            answers: Answers::No,
            answer_wait: Duration::ZERO,
            pushed: 0,
            delay: Duration::ZERO,
            delay_min,
            undelayed,
            data_at: now,
        }
    }

    /// Acknowledges at once.
    pub(super) fn owe_now(&mut self) {
        self.owed = AckOwed::Now;
    }

    /// Owes nothing more.
    pub(super) fn forget(&mut self) {
        self.owed = AckOwed::No;
        self.at = None;
    }

    /// Stops the timer.
    pub(super) fn stop(&mut self) {
        self.at = None;
    }

    /// Restores what was owed, after an arrival that changes nothing.
    pub(super) fn restore(&mut self, owed: AckOwed) {
        self.owed = owed;
    }

    /// Acknowledges the next segments at once: at most `max` of them, and half of the `window` in
    /// segments.
    fn add_quick(&mut self, max: u8, window: u32) {
        let wanted = u8::try_from(window / 2).unwrap_or(max).min(max);
        self.quick = self.quick.max(if wanted == 0 { 2 } else { wanted });
    }

    /// Starts quick ACKs, and stops waiting for an answer.
    pub(super) fn enter_quick(&mut self, max: u8, window: u32) {
        self.add_quick(max, window);
        self.answers = Answers::No;
        self.delay = self.delay_min;
    }

    /// Makes the next ACK a quick one: the window grew.
    pub(super) fn quicken(&mut self) {
        self.quick |= 1;
    }

    /// Ends quick ACKs: the window is tight.
    pub(super) fn end_quick(&mut self) {
        self.quick = 0;
    }

    /// Starts the clock of arrivals: the connection is open.
    pub(super) fn open(&mut self, now: Instant) {
        self.data_at = now;
    }

    /// Adapts the delay to the time between arrivals of data; `window` is in segments.
    pub(super) fn arrived(&mut self, window: u32, rto: Duration, now: Instant) {
        let since = now.since(self.data_at);
        self.data_at = now;
        if self.delay == Duration::ZERO {
            self.add_quick(QUICK_ACKS, window);
            self.delay = self.delay_min;
        } else if since + since <= self.delay_min {
            self.delay = halved(self.delay) + halved(self.delay_min);
        } else if since < self.delay {
            self.delay = (halved(self.delay) + since).min(rto);
        } else if since > rto {
            self.add_quick(QUICK_ACKS, window);
        }
    }

    /// Notes that more than a small request has arrived: the peer may need the ACK to send more.
    pub(super) fn expect_no_answer(&mut self) {
        if self.answers == Answers::Expected {
            self.answers = Answers::No;
        }
    }

    /// True if the next ACK is a quick one.
    pub(super) fn is_quick(&self) -> bool {
        self.undelayed || (self.quick > 0 && self.answers == Answers::No)
    }

    /// Notes a segment that may have ended a write of the sender.
    pub(super) fn note_pushed(&mut self) {
        self.pushed = (self.pushed + 1).min(2);
    }

    /// Notes a full segment that ended a write of the sender.
    pub(super) fn note_pushed_full(&mut self) {
        self.pushed = self.pushed.max(1);
    }

    /// Delays the ACK, unless one is due at once.
    pub(super) fn delay(&mut self, rtt: &RttEstimator, now: Instant) {
        if self.owed == AckOwed::Now {
            return;
        }
        self.owed = AckOwed::Delayed;
        let at = now + self.next_delay(rtt).min(delay_max(rtt.least()));
        self.at = Some(self.at.map_or(at, |earlier| earlier.min(at)));
    }

    fn next_delay(&self, rtt: &RttEstimator) -> Duration {
        if self.answers == Answers::Expected {
            return self.answer_wait;
        }
        if self.delay <= self.delay_min {
            return self.delay;
        }
        let answering = self.answers == Answers::Yes || self.pushed > 0;
        let mut max = if answering { DELAY_MAX } else { DELAY_MAX.saturating_mul(5) };
        if let Some(srtt) = rtt.srtt() {
            max = max.min(srtt.max(self.delay_min));
        }
        self.delay.min(max)
    }

    /// Delays the third segment of the handshake, which waits for data
    /// (`fastopen/client/blocking-connect-bypass.pkt`).
    pub(super) fn delay_third(&mut self, now: Instant) {
        self.owed = AckOwed::Delayed;
        self.at = Some(now + DELAY_MAX);
    }

    /// Ends the delay if it is over.
    pub(super) fn on_timer(&mut self, rto: Duration, now: Instant) {
        if self.at.take_if(|at| *at <= now).is_some() {
            self.delay_over(rto);
        }
    }

    /// Ends the delay of an ACK. The next delay is longer, unless an expected answer did not come.
    fn delay_over(&mut self, rto: Duration) {
        if self.owed == AckOwed::No {
            return;
        }
        if core::mem::replace(&mut self.answers, Answers::No) == Answers::No {
            self.delay = (self.delay + self.delay).min(rto);
        } else {
            self.delay = self.delay_min;
        }
        self.owed = AckOwed::Now;
    }

    /// Accounts for an ACK that was sent, with data or without.
    pub(super) fn sent(&mut self, data: bool, now: Instant) {
        self.forget();
        self.pushed = 0;
        if self.quick > 0 {
            self.quick -= 1;
            if self.quick == 0 {
                self.delay = self.delay_min;
            }
        }
        if data && now.since(self.data_at) < self.delay {
            self.answers = Answers::Yes;
        }
    }

    /// Notes that the reader took data, `all` of it, while an ACK is delayed; `more` than a segment
    /// is not acknowledged.
    pub(super) fn read(&mut self, more: bool, all: bool) {
        if self.owed == AckOwed::Delayed {
            let small = self.pushed > 1 || (self.pushed > 0 && self.answers == Answers::No);
            if more || (small && all) {
                self.owed = AckOwed::Now;
            }
        }
    }

    /// Announces that data is answered `within` a short time.
    pub(super) fn expect_answers(&mut self, within: Duration) {
        self.answer_wait = within.min(DELAY_MAX);
        self.answers = Answers::Expected;
    }

    /// True if the owner's FIN is expected soon after the peer's; the ACK waits for it from now on.
    pub(super) fn expects_fin(&mut self) -> bool {
        let expects = self.answer_wait > Duration::ZERO && !self.undelayed;
        if expects {
            self.answers = Answers::Expected;
        }
        expects
    }

    /// True while the ACK of data waits for an expected answer.
    pub(super) fn awaits_answer(&self) -> bool {
        self.answers == Answers::Expected && self.owed == AckOwed::Delayed
    }

    /// Sends an ACK that waits for an expected answer.
    pub(super) fn answer_is_late(&mut self, rto: Duration) {
        if self.awaits_answer() {
            self.delay_over(rto);
        }
    }

    /// Switches to immediate ACKs or to delayed ones (`TCP_QUICKACK`). The switch to immediate ACKs
    /// sends an ACK that waits if the connection is `open`.
    pub(super) fn set_quick(&mut self, quick: bool, open: bool) {
        self.answers = if quick { Answers::No } else { Answers::Yes };
        if quick && open && self.owed == AckOwed::Delayed {
            self.owed = AckOwed::Now;
        }
    }

    /// True unless ACKs wait for an answer to carry them.
    pub(super) fn quick(&self) -> bool {
        self.answers == Answers::No
    }

    /// How urgently an ACK is owed.
    pub(super) fn owed(&self) -> AckOwed {
        self.owed
    }

    /// When a delayed ACK is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.at
    }

    /// Current delay; zero before any data.
    pub(super) fn current_delay(&self) -> Duration {
        self.delay
    }

    /// Uses up the quick ACKs of the start.
    #[cfg(test)]
    pub(super) fn settle(&mut self) {
        (self.quick, self.delay) = (0, self.delay_min);
    }
}

/// Longest delay of an ACK: shorter than the `least` retransmission timeout, so that a peer with
/// the same timeout does not retransmit.
fn delay_max(least: Duration) -> Duration {
    if least >= DELAY_MAX {
        DELAY_MAX
    } else {
        least.saturating_sub(Duration::from_millis(1)).max(Duration::from_millis(1))
    }
}

fn halved(duration: Duration) -> Duration {
    Duration::from_micros(duration.as_micros() as u64 / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::seq::Seq;

    const MS: Duration = Duration::from_millis(1);

    fn at(millis: u32) -> Instant {
        Instant::START + MS * millis
    }

    fn policy() -> (AckPolicy, RttEstimator) {
        let mut rtt = RttEstimator::default();
        rtt.sample(100 * MS, Seq(0), Seq(1));
        (AckPolicy::new(40 * MS, false, at(0)), rtt)
    }

    /// RFC 1122 §4.2.3.2: an ACK may wait, but for less than half a second.
    #[test]
    fn delays_are_bounded() {
        let (mut acks, rtt) = policy();
        acks.arrived(20, rtt.rto(), at(0));
        for _ in 0..10 {
            acks.delay(&rtt, at(0));
            acks.on_timer(rtt.rto(), at(300));
            assert_eq!(acks.owed(), AckOwed::Now);
            acks.sent(false, at(300));
        }
        acks.delay(&rtt, at(300));
        let delay = acks.deadline().expect("it runs").since(at(300));
        assert!((40 * MS..=200 * MS).contains(&delay), "{delay:?}");
        acks.delay(&rtt, at(310));
        assert_eq!(acks.deadline().map(|at| at.since(Instant::START)), Some(300 * MS + delay));
    }

    #[test]
    fn quick_acks_are_half_the_window() {
        let (mut acks, rtt) = policy();
        acks.arrived(20, rtt.rto(), at(0));
        for left in (0..10).rev() {
            assert!(acks.is_quick());
            acks.sent(false, at(0));
            assert_eq!(acks.is_quick(), left > 0);
        }
        acks.enter_quick(QUICK_ACKS, 1000);
        assert_eq!(acks.quick, QUICK_ACKS);
    }

    /// An expected answer that does not come in time is not expected again.
    #[test]
    fn late_answers_end_the_expectation() {
        let (mut acks, rtt) = policy();
        acks.expect_answers(Duration::from_secs(9));
        acks.delay(&rtt, at(0));
        assert!(acks.awaits_answer() && acks.expects_fin());
        assert_eq!(acks.deadline(), Some(at(200)), "a bound");
        acks.answer_is_late(rtt.rto());
        assert_eq!((acks.owed(), acks.awaits_answer()), (AckOwed::Now, false));
    }
}
