//! When what was received is acknowledged (RFC 9293 §3.8.6.3), as Linux decides it.
//!
//! At the start, after a pause and when something is wrong, ACKs go at once (*quick* ACKs, so many
//! as half the window has segments). A connection that answers data with data waits for the answer
//! to carry the ACK (*ping-pong*). Otherwise every second full segment is acknowledged, and less
//! after a delay that follows the time between arrivals.
//!
//! What Linux does not have: an owner that answers within a moment may say so
//! ([`Connection::expect_answers`]). Then the first request and the peer's FIN, too, wait that
//! moment for the answer to carry their ACKs, the request until its owner gives up
//! ([`Connection::answer_is_late`]).

use super::connection::Connection;
use super::seq::Seq;
use super::sides::{AckOwed, PingPong, Receiver};
use super::state::State;
use crate::time::{Duration, Instant};

/// Most quick ACKs in a row (Linux's TCP_MAX_QUICKACKS).
pub(super) const QUICK_ACKS: u8 = 16;
/// Quick ACKs after a mark of congestion.
pub(super) const QUICK_ACKS_MARKED: u8 = 2;
/// Longest delay (Linux's TCP_DELACK_MAX).
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
    /// Quick ACKs, and no waiting for an answer.
    pub(super) fn enter_quick_acks(&mut self, max: u8) {
        self.receive.add_quick_acks(max);
        self.receive.ping_pong = PingPong::No;
        self.receive.delay = self.settings.delayed_ack;
    }

    /// Data will be answered, and a FIN with a FIN, `within` so short a time that it is worth
    /// waiting for: the ACK of less than a full segment, and that of the FIN, go with the answer,
    /// or alone when the time is over. Data that was not answered in time is acknowledged at once
    /// from then on, until some is.
    ///
    /// RFC 9293 §3.8.6.3 allows it: an ACK may be delayed for less than half a second if every
    /// second full segment is acknowledged.
    pub fn expect_answers(&mut self, within: Duration) {
        self.receive.answer_wait = within.min(DELAY_MAX);
        self.receive.ping_pong = PingPong::Expected;
    }

    /// True while the ACK of data waits for an expected answer. Its sender may wait for it to send
    /// more, unless he has sent his FIN.
    pub fn awaits_answer(&self) -> bool {
        let Receiver { ping_pong, ack_owed, fin, .. } = &self.receive;
        *ping_pong == PingPong::Expected && *ack_owed == AckOwed::Delayed && !fin
    }

    /// The owner has looked and has no answer yet: an ACK that waits for it goes alone, now.
    pub fn answer_is_late(&mut self) {
        if self.awaits_answer() {
            self.ack_delay_over();
        }
    }

    /// Data arrived: follows the time between arrivals.
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

    /// Data in order arrived: more than a full segment is acknowledged at once if the window goes
    /// on with it, or the reader waits for more (Linux's __tcp_ack_snd_check). Else reading will.
    pub(super) fn owe_ack(&mut self, now: Instant) {
        let receive = &mut self.receive;
        if receive.acks_taken_only {
            // Taking it will.
            return;
        }
        let small = receive.nxt - receive.acked < self.send.mss;
        if receive.ping_pong == PingPong::Expected && !small {
            // A large request, or none: its sender may wait for the ACK to go on.
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

    /// True if the owner's own FIN is expected to follow the peer's in a moment, as in Linux's
    /// tcp_fin, which waits longer for it. It is waited for from now on.
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

    /// Longest delay: a peer with as short a timeout as ours is not to send again (Linux's
    /// tcp_delack_max).
    fn delay_max(&self) -> Duration {
        let least = self.rtt.least();
        if least >= DELAY_MAX {
            DELAY_MAX
        } else {
            least.saturating_sub(Duration::from_millis(1)).max(Duration::from_millis(1))
        }
    }

    /// The delay is over: the next may be longer, unless the answer did not come.
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

    /// The third segment waits for data that is to come.
    pub(super) fn delay_third_segment(&mut self, now: Instant) {
        self.enter_quick_acks(QUICK_ACKS);
        self.receive.ack_owed = AckOwed::Delayed;
        self.timers.delayed_ack = Some(now + DELAY_MAX);
    }

    /// A segment with an ACK went out, with data or without.
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

    /// The reader took data: an ACK that waited for its answer may go.
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

    /// Acknowledges at once from now on, or delays (TCP_QUICKACK). An ACK that waits goes now.
    pub fn set_quickack(&mut self, quick: bool) {
        self.receive.ping_pong = if quick { PingPong::No } else { PingPong::Yes };
        let open = matches!(self.state, State::Established | State::CloseWait);
        if quick && open && self.receive.ack_owed == AckOwed::Delayed {
            self.receive.ack_owed = AckOwed::Now;
        }
    }

    /// True unless ACKs wait for an answer to carry them (TCP_QUICKACK).
    pub fn quickack(&self) -> bool {
        self.receive.ping_pong == PingPong::No
    }

    /// Something came twice: its sender may have missed an ACK. Reports it if the peer understands
    /// (RFC 2883).
    pub(super) fn came_twice(&mut self, start: Seq, end: Seq) {
        self.enter_quick_acks(QUICK_ACKS);
        self.receive.ack_owed = AckOwed::Now;
        self.set_duplicate(start, end);
    }

    /// The next ACK reports that this came twice, and nothing else (Linux's tcp_dsack_set).
    pub(super) fn set_duplicate(&mut self, start: Seq, end: Seq) {
        // What waits unacknowledged would be taken for a SACK (RFC 2883 §4), and may be given back.
        let waits = self.receive.acks_taken_only && end.after(self.receive.ack_point());
        if self.sack && self.settings.dsack && start.before(end) && !waits {
            self.receive.duplicate = Some((start, end));
        }
    }

    /// This came twice too: one range is reported, so it counts only if it touches what is to be
    /// reported already (Linux's tcp_dsack_extend).
    pub(super) fn extend_duplicate(&mut self, start: Seq, end: Seq) {
        match self.receive.duplicate {
            None => self.set_duplicate(start, end),
            Some((first, last)) if start.at_or_before(last) && end.at_or_after(first) => {
                self.receive.duplicate = Some((first.min(start), last.max(end)));
            }
            Some(_) => {}
        }
    }

    /// `start..end` came, and some of it may wait already: what is at its beginning is reported in
    /// any case, what comes later only if it touches that (Linux's tcp_data_queue_ofo and
    /// tcp_ofo_queue).
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
