//! When received data is acknowledged (RFC 9293 §3.8.6.3), by Linux's rules.
//!
//! At the start, after a pause and when something is wrong, ACKs are sent at once: *quick* ACKs,
//! half as many as the window has segments. A connection that answers data with data waits for the
//! answer to carry the ACK (*ping-pong*). Otherwise every second full segment is acknowledged, and
//! less data after a delay that follows the time between arrivals.
//!
//! One rule is not Linux's: an owner that answers quickly may announce it
//! ([`Connection::expect_answers`]). Then the ACKs of the first request and of the peer's FIN also
//! wait for the answer to carry them; that of the request at most until the owner gives up
//! ([`Connection::answer_is_late`]).

use super::connection::Connection;
use super::receiver::{AckOwed, PingPong, Receiver};
use super::seq::Seq;
use super::state::State;
use crate::time::{Duration, Instant};

/// Largest number of quick ACKs in a row; Linux's value.
pub(super) const QUICK_ACKS: u8 = 16;
/// Quick ACKs after a congestion mark.
pub(super) const QUICK_ACKS_MARKED: u8 = 2;
/// Longest delay of an ACK; Linux's value.
const DELAY_MAX: Duration = Duration::from_millis(200);

impl Receiver {
    /// Acknowledges the next segments at once: at most `max` of them.
    fn add_quick_acks(&mut self, max: u8) {
        let segments = self.offered / (2 * self.mss.max(1));
        let wanted = u8::try_from(segments).unwrap_or(max).min(max);
        self.quick_acks = self.quick_acks.max(if wanted == 0 { 2 } else { wanted });
    }
}

impl Connection {
    /// Starts quick ACKs, and stops waiting for an answer.
    pub(super) fn enter_quick_acks(&mut self, max: u8) {
        self.receive.add_quick_acks(max);
        self.receive.ping_pong = PingPong::No;
        self.receive.delay = self.settings.delayed_ack;
    }

    /// Announces that data is answered with data, and a FIN with a FIN, `within` a short time. The
    /// ACK of less than a full segment, and of the FIN, then goes with the answer, or alone when
    /// the time is over. After data that was not answered in time, data is acknowledged at once
    /// until some is answered.
    ///
    /// RFC 9293 §3.8.6.3 allows this: an ACK may be delayed for less than half a second if every
    /// second full segment is acknowledged.
    pub fn expect_answers(&mut self, within: Duration) {
        self.receive.answer_wait = within.min(DELAY_MAX);
        self.receive.ping_pong = PingPong::Expected;
    }

    /// True while the ACK of data waits for an expected answer. The peer may need the ACK to send
    /// more, unless it has sent its FIN.
    pub fn awaits_answer(&self) -> bool {
        let Receiver { ping_pong, ack_owed, fin, .. } = &self.receive;
        *ping_pong == PingPong::Expected && *ack_owed == AckOwed::Delayed && !fin
    }

    /// Notes that the owner has looked and has no answer yet: an ACK that waits for it goes alone,
    /// now.
    pub fn answer_is_late(&mut self) {
        if self.awaits_answer() {
            self.ack_delay_over();
        }
    }

    /// Adapts the ACK delay to the time between arrivals of data.
    pub(super) fn measure_arrival(&mut self, now: Instant) {
        let least = self.settings.delayed_ack;
        let since = now.since(self.receive.data_at);
        let rto = self.rtt.rto();
        let receive = &mut self.receive;
        receive.data_at = now;
        if receive.delay == Duration::ZERO {
            receive.add_quick_acks(QUICK_ACKS);
            receive.delay = least;
        } else if since + since <= least {
            receive.delay = halved(receive.delay) + halved(least);
        } else if since < receive.delay {
            receive.delay = (halved(receive.delay) + since).min(rto);
        } else if since > rto {
            receive.add_quick_acks(QUICK_ACKS);
        }
    }

    /// Decides when in-order data is acknowledged. More than a full segment is acknowledged at once
    /// if the window advances with it or the reader waits for more. Otherwise the ACK is delayed;
    /// reading the data may send it earlier.
    pub(super) fn owe_ack(&mut self, now: Instant) {
        let receive = &mut self.receive;
        if receive.acks_taken_only {
            // Consuming the data sends the ACK.
            return;
        }
        let small = receive.nxt - receive.acked < self.send.mss;
        if receive.ping_pong == PingPong::Expected && !small {
            // A large request, or no request: the peer may need the ACK to send more.
            receive.ping_pong = PingPong::No;
        }
        let waits = receive.ping_pong != PingPong::No;
        let quick = self.settings.quickack || (receive.quick_acks > 0 && !waits);
        let wanting = receive.queue.len() < receive.tuning.low_water as usize;
        let more = receive.nxt - receive.acked > receive.mss;
        let advances = more && (wanting || self.window_advances());
        if advances || quick {
            self.receive.ack_owed = AckOwed::Now;
        } else {
            self.delay_ack(now);
        }
    }

    /// True if the owner's FIN is expected soon after the peer's; the ACK waits for it from now on.
    /// Linux does the same and waits longer.
    pub(super) fn expects_fin(&mut self) -> bool {
        let expects = self.receive.answer_wait > Duration::ZERO && !self.settings.quickack;
        if expects {
            self.receive.ping_pong = PingPong::Expected;
        }
        expects
    }

    pub(super) fn delay_ack(&mut self, now: Instant) {
        if self.receive.ack_owed == AckOwed::Now {
            return;
        }
        self.receive.ack_owed = AckOwed::Delayed;
        let delay = self.ack_delay();
        let at = now + delay.min(self.delay_max());
        self.timers.delayed_ack =
            Some(self.timers.delayed_ack.map_or(at, |earlier| earlier.min(at)));
    }

    fn ack_delay(&self) -> Duration {
        if self.receive.ping_pong == PingPong::Expected {
            return self.receive.answer_wait;
        }
        let least = self.settings.delayed_ack;
        let mut delay = self.receive.delay;
        if delay > least {
            let waits = self.receive.ping_pong == PingPong::Yes;
            let answering = waits || self.receive.pushed > 0;
            let mut max = if answering { DELAY_MAX } else { DELAY_MAX.saturating_mul(5) };
            if let Some(srtt) = self.rtt.srtt() {
                max = max.min(srtt.max(least));
            }
            delay = delay.min(max);
        }
        delay
    }

    /// Longest delay of an ACK: shorter than the least retransmission timeout, so that a peer with
    /// the same timeout does not retransmit.
    fn delay_max(&self) -> Duration {
        let least = self.rtt.least();
        if least >= DELAY_MAX {
            DELAY_MAX
        } else {
            least.saturating_sub(Duration::from_millis(1)).max(Duration::from_millis(1))
        }
    }

    /// Ends the delay of an ACK. The next delay is longer, unless an expected answer did not come.
    pub(super) fn ack_delay_over(&mut self) {
        if self.receive.ack_owed == AckOwed::No {
            return;
        }
        let rto = self.rtt.rto();
        let before = core::mem::replace(&mut self.receive.ping_pong, PingPong::No);
        if before != PingPong::No {
            self.receive.delay = self.settings.delayed_ack;
        } else {
            self.receive.delay = (self.receive.delay + self.receive.delay).min(rto);
        }
        self.receive.ack_owed = AckOwed::Now;
    }

    /// Delays the third segment of the handshake, which waits for data.
    pub(super) fn delay_third_segment(&mut self, now: Instant) {
        self.enter_quick_acks(QUICK_ACKS);
        self.receive.ack_owed = AckOwed::Delayed;
        self.timers.delayed_ack = Some(now + DELAY_MAX);
    }

    /// Accounts for an ACK that was sent, with data or without.
    pub(super) fn ack_sent(&mut self, data: bool, now: Instant) {
        let receive = &mut self.receive;
        receive.ack_owed = AckOwed::No;
        receive.acked = receive.ack_point();
        receive.pushed = 0;
        receive.duplicate = None;
        if receive.quick_acks > 0 {
            receive.quick_acks -= 1;
            if receive.quick_acks == 0 {
                receive.delay = self.settings.delayed_ack;
            }
        }
        if data && now.since(receive.data_at) < receive.delay {
            receive.ping_pong = PingPong::Yes;
        }
        self.timers.delayed_ack = None;
    }

    /// Notes that the reader took data: a delayed ACK may now be due.
    pub(super) fn read_some(&mut self) {
        let receive = &mut self.receive;
        if receive.ack_owed != AckOwed::Delayed {
            return;
        }
        let small = receive.pushed > 1 || (receive.pushed > 0 && receive.ping_pong == PingPong::No);
        if receive.nxt - receive.acked > receive.mss || (small && receive.queue.is_empty()) {
            receive.ack_owed = AckOwed::Now;
        }
    }

    /// Switches to immediate ACKs or to delayed ones (`TCP_QUICKACK`). The switch to immediate ACKs
    /// sends an ACK that waits.
    pub fn set_quickack(&mut self, quick: bool) {
        self.receive.ping_pong = if quick { PingPong::No } else { PingPong::Yes };
        let open = matches!(self.state, State::Established | State::CloseWait);
        if quick && open && self.receive.ack_owed == AckOwed::Delayed {
            self.receive.ack_owed = AckOwed::Now;
        }
    }

    /// True unless ACKs wait for an answer to carry them (`TCP_QUICKACK`).
    pub fn quickack(&self) -> bool {
        self.receive.ping_pong == PingPong::No
    }

    /// Acknowledges a duplicate at once, as the peer may have missed an ACK. Reports the range if
    /// SACK is in use (RFC 2883).
    pub(super) fn acknowledge_duplicate(&mut self, start: Seq, end: Seq) {
        self.enter_quick_acks(QUICK_ACKS);
        self.receive.ack_owed = AckOwed::Now;
        self.set_duplicate(start, end);
    }

    /// Makes the next ACK report `start..end` as received twice, and no other range.
    pub(super) fn set_duplicate(&mut self, start: Seq, end: Seq) {
        // A range beyond the ACK would be taken for a SACK block (RFC 2883 §4), and may be given
        // back.
        let waits = self.receive.acks_taken_only && end.after(self.receive.ack_point());
        if self.sack && self.settings.dsack && start.before(end) && !waits {
            self.receive.duplicate = Some((start, end));
        }
    }

    /// Adds a duplicate range. An ACK reports only one range, so a range that does not touch the
    /// one to be reported is ignored.
    pub(super) fn extend_duplicate(&mut self, start: Seq, end: Seq) {
        match self.receive.duplicate {
            None => self.set_duplicate(start, end),
            Some((first, last)) if start.at_or_before(last) && end.at_or_after(first) => {
                self.receive.duplicate = Some((first.min(start), last.max(end)));
            }
            Some(_) => {}
        }
    }

    /// Reports which parts of the new range `start..end` were already held out of order. A part at
    /// its beginning is always reported, a later part only if it touches the range to be reported.
    pub(super) fn find_duplicates(&mut self, start: Seq, end: Seq) {
        let waiting = core::mem::take(&mut self.receive.waiting);
        for (from, to) in waiting.overlaps(start, end) {
            if from == start {
                self.set_duplicate(from, to);
            } else {
                self.extend_duplicate(from, to);
            }
        }
        self.receive.waiting = waiting;
    }
}

fn halved(duration: Duration) -> Duration {
    Duration::from_micros(duration.as_micros() as u64 / 2)
}
