//! Timers of a connection: deadlines, and what happens when they pass.

use super::connection::Connection;
use super::rtt::{RTO_MAX, RTO_MIN};
use super::state::{ConnectionError, State};
use crate::time::{Duration, Instant, earliest};

/// Retries of a connection without an owner, while its timeout is below the maximum
/// (`tcp_orphan_retries`).
const ORPHAN_RETRIES: u8 = 8;
/// Longest silence of a peer that has shrunk its window to zero.
const SHUT_WINDOW_SILENCE: Duration = Duration::from_secs(240);

/// Deadlines; `None` if a timer is off. At most one of the first four is on: each of them keeps the
/// connection going.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timers {
    /// Retransmission (RFC 6298), of data or of a SYN.
    pub(super) retransmit: Option<Instant>,
    /// Zero-window probe.
    pub(super) persist: Option<Instant>,
    /// Loss probe (RFC 8985 §7.2).
    pub(super) loss_probe: Option<Instant>,
    /// Reordering timer (RFC 8985 §6.3).
    pub(super) reorder: Option<Instant>,
    /// Delayed ACK.
    pub(super) delayed_ack: Option<Instant>,
    /// Next keepalive probe.
    pub(super) keepalive: Option<Instant>,
    /// When pacing lets the next segment go.
    pub(super) pacing: Option<Instant>,
    /// End of FIN-WAIT-2 without an owner.
    pub(super) fin_wait: Option<Instant>,
    /// Consecutive retransmissions without an answer.
    pub(super) unanswered: u8,
    /// Consecutive zero-window probes without an answer.
    pub(super) probes: u8,
    /// Doublings of the interval between zero-window probes.
    pub(super) probe_backoff: u8,
    /// When the first zero-window probe was sent.
    pub(super) probing_since: Option<Instant>,
    /// Consecutive keepalive probes without an answer.
    pub(super) keepalive_unanswered: u8,
}

impl Timers {
    /// Turns off the four timers that keep the connection going.
    pub(super) fn disarm(&mut self) {
        self.retransmit = None;
        self.persist = None;
        self.loss_probe = None;
        self.reorder = None;
    }

    pub(super) fn arm_retransmit(&mut self, at: Instant) {
        self.disarm();
        self.retransmit = Some(at);
    }

    pub(super) fn arm_persist(&mut self, at: Instant) {
        self.disarm();
        self.persist = Some(at);
    }

    pub(super) fn arm_loss_probe(&mut self, at: Instant) {
        self.disarm();
        self.loss_probe = Some(at);
    }

    pub(super) fn arm_reorder(&mut self, at: Instant) {
        self.disarm();
        self.reorder = Some(at);
    }
}

impl Connection {
    /// When [`Connection::on_deadline`] must be called next.
    pub fn deadline(&self) -> Option<Instant> {
        let timers = &self.timers;
        earliest([
            timers.retransmit,
            timers.persist,
            timers.loss_probe,
            timers.reorder,
            timers.delayed_ack,
            timers.keepalive,
            timers.fin_wait,
            timers.pacing,
        ])
    }

    /// Sets the longest time that data may stay unacknowledged before the connection fails
    /// (`TCP_USER_TIMEOUT`, RFC 5482); `None` for the time that the retries allow.
    pub fn set_user_timeout(&mut self, limit: Option<Duration>) {
        self.settings.user_timeout = limit;
    }

    /// Switches keepalive probes of an idle peer on or off (`SO_KEEPALIVE`).
    pub fn set_keepalive(&mut self, on: bool, now: Instant) {
        self.timers.keepalive = on.then(|| now + self.settings.keepalive_idle);
    }

    /// Sets the idle time before the first keepalive probe (`TCP_KEEPIDLE`). It also applies to an
    /// idle period that has begun.
    pub fn set_keepalive_idle(&mut self, idle: Duration, now: Instant) {
        self.settings.keepalive_idle = idle;
        if self.timers.keepalive.is_some() {
            self.timers.keepalive = Some((self.receive.last_at + idle).max(now));
        }
    }

    /// Sets the time between keepalive probes (`TCP_KEEPINTVL`), from the next probe on.
    pub fn set_keepalive_interval(&mut self, interval: Duration) {
        self.settings.keepalive_interval = interval;
    }

    /// Sets how many unanswered keepalive probes end the connection (`TCP_KEEPCNT`).
    pub fn set_keepalive_probes(&mut self, count: u8) {
        self.settings.keepalive_probes = count;
    }

    /// Runs every timer that is due.
    pub fn on_deadline(&mut self, now: Instant) {
        let due = |timer: &mut Option<Instant>| timer.take_if(|at| *at <= now).is_some();
        if due(&mut self.timers.delayed_ack) {
            self.ack_delay_over();
        }
        if due(&mut self.timers.retransmit) {
            self.on_retransmit(now);
        }
        due(&mut self.timers.pacing);
        if due(&mut self.timers.loss_probe) {
            self.on_loss_probe(now);
        }
        if due(&mut self.timers.reorder) {
            self.on_reorder(now);
        }
        if due(&mut self.timers.persist) {
            self.on_persist(now);
        }
        if due(&mut self.timers.keepalive) {
            self.on_keepalive(now);
        }
        if due(&mut self.timers.fin_wait) {
            self.finish(None);
        }
    }

    fn on_retransmit(&mut self, now: Instant) {
        if self.state.is_opening() {
            self.on_syn_timeout(now);
            return;
        }
        let Some(first) = self.send.board.first() else { return };
        // The peer shrank its window to zero: retransmissions probe it.
        let shut = self.send.wnd == 0 && self.owned;
        let since = self.recovery.resent_at.unwrap_or(first.sent_at);
        let over = if shut {
            self.is_shut_too_long(now.since(since), now)
        } else {
            self.timers.unanswered > 0 && now.since(since) >= self.retry_time()
        };
        if !shut {
            self.fast_open_timed_out(over);
        }
        if over {
            self.finish(Some(ConnectionError::TimedOut));
            return;
        }
        if !shut && self.timers.unanswered > 0 && now.since(since) >= self.retries1_time() {
            self.suspect_black_hole(now);
        }
        self.enter_loss(now);
        if !shut {
            self.counters.timeouts.add(self.timers.unanswered == 0, now);
            self.timers.unanswered = self.timers.unanswered.saturating_add(1);
        }
        self.rtt.back_off();
        self.rearm_rto(now);
    }

    fn is_shut_too_long(&self, resending: Duration, now: Instant) -> bool {
        let mut silence_max = SHUT_WINDOW_SILENCE;
        if let Some(limit) = self.settings.user_timeout {
            if resending > limit {
                return true;
            }
            silence_max = silence_max.min(limit);
        }
        now.since(self.receive.last_at) > silence_max && resending > silence_max
    }

    /// How long retransmissions may stay unanswered: R2 of RFC 9293 §3.8.3, as a time. As on Linux
    /// it is the time that the number of retries takes at the least timeout.
    fn retry_time(&self) -> Duration {
        if let Some(limit) = self.settings.user_timeout {
            return limit;
        }
        let retries = if self.owned {
            self.settings.retries2
        } else if self.rtt.rto() < RTO_MAX {
            ORPHAN_RETRIES
        } else {
            0
        };
        time_of_retries(retries)
    }

    /// How long retransmissions may stay unanswered before the path is in doubt (R1 of RFC 9293
    /// §3.8.3).
    fn retries1_time(&self) -> Duration {
        time_of_retries(self.settings.retries1)
    }

    /// Rearms the retransmission timer from `now`, or turns it off if nothing is outstanding. The
    /// timer does not run beyond the user timeout.
    pub(super) fn rearm_rto(&mut self, now: Instant) {
        if self.send.board.is_empty() {
            self.timers.disarm();
            return;
        }
        let rto = self.within_user_timeout(self.rtt.rto(), self.recovery.resent_at, now);
        self.timers.arm_retransmit(now + rto);
    }

    /// When the retransmission timeout of the first outstanding segment is over.
    pub(super) fn rto_from_head(&self) -> Instant {
        self.send.board.first().map_or(Instant::START, |first| first.sent_at + self.rtt.rto())
    }

    /// Sets the retransmission timer to the time it would have without the timers that replaced it.
    pub(super) fn rearm_rto_from_head(&mut self, now: Instant) {
        if self.send.board.is_empty() {
            self.timers.disarm();
        } else {
            let at = self.rto_from_head().max(now + Duration::from_millis(1));
            self.timers.arm_retransmit(at);
        }
    }

    /// Time to the next zero-window probe.
    fn probe_interval(&self, now: Instant) -> Duration {
        let base = self.rtt.rto().max(RTO_MIN);
        let factor = 1u32 << self.timers.probe_backoff.min(10);
        let interval = base.saturating_mul(factor).min(RTO_MAX);
        self.within_user_timeout(interval, self.timers.probing_since, now)
    }

    /// Limits `wait` to what is left of the user timeout, which began at `since`.
    pub(super) fn within_user_timeout(
        &self,
        wait: Duration,
        since: Option<Instant>,
        now: Instant,
    ) -> Duration {
        match (self.settings.user_timeout, since) {
            (Some(limit), Some(since)) => {
                let left = limit.saturating_sub(now.since(since));
                wait.min(left.max(Duration::from_millis(1)))
            }
            _ => wait,
        }
    }

    /// Arms the persist timer if nothing is outstanding: the peer's window holds back data or a
    /// FIN.
    pub(super) fn arm_probe(&mut self, now: Instant) {
        if self.send.board.is_empty() && self.timers.persist.is_none() {
            self.timers.arm_persist(now + self.probe_interval(now));
        }
    }

    /// Processes the answer to a zero-window probe.
    pub(super) fn acknowledge_probe(&mut self, now: Instant) {
        let kept_back = self.kept_back();
        if kept_back == 0 {
            return;
        }
        if kept_back.min(self.send.mss) <= self.send.wnd {
            self.timers.probe_backoff = 0;
            self.timers.probing_since = None;
            self.timers.persist = None;
        } else {
            self.timers.arm_persist(now + self.probe_interval(now));
        }
    }

    fn on_persist(&mut self, now: Instant) {
        // RFC 9293 §3.8.6.1: a FIN alone may be held back too.
        if !self.send.board.is_empty() || self.kept_back() == 0 {
            self.timers.probes = 0;
            self.timers.probing_since = None;
            return;
        }
        let since = *self.timers.probing_since.get_or_insert(now);
        let mut limit = self.settings.retries2;
        let mut over = self.settings.user_timeout.is_some_and(|limit| now.since(since) >= limit);
        if !self.owned {
            let alive = self.probe_interval(now) < RTO_MAX;
            limit = if alive { ORPHAN_RETRIES } else { 0 };
            over |= !alive;
        }
        if over || self.timers.probes >= limit {
            self.finish(Some(ConnectionError::TimedOut));
            return;
        }
        self.timers.probes += 1;
        if self.timers.probe_backoff < self.settings.retries2 {
            self.timers.probe_backoff += 1;
        }
        if self.send.wnd > 0 {
            // The window is not zero: send what fits, however little.
            self.send.partial_allowed = true;
        } else {
            self.send.probe_due = true;
            self.send.urgent_probe_due = self.is_urgent_in_reach();
        }
        self.timers.arm_persist(now + self.probe_interval(now));
    }

    fn on_keepalive(&mut self, now: Instant) {
        let open = matches!(
            self.state,
            State::Established | State::CloseWait | State::FinWait1 | State::FinWait2
        );
        if !open {
            return;
        }
        if self.send.flight() > 0 || self.send.has_unsent_numbers() {
            // Data or a FIN is outstanding or queued: other timers watch the peer.
            self.timers.keepalive = Some(now + self.settings.keepalive_idle);
            return;
        }
        let idle_until = self.receive.last_at + self.settings.keepalive_idle;
        if idle_until > now {
            self.timers.keepalive_unanswered = 0;
            self.timers.keepalive = Some(idle_until);
            return;
        }
        let unanswered = self.timers.keepalive_unanswered;
        let over = match self.settings.user_timeout {
            // As on Linux, the user timeout replaces the number of probes.
            Some(limit) => unanswered > 0 && now.since(self.receive.last_at) >= limit,
            None => unanswered >= self.settings.keepalive_probes,
        };
        if over {
            self.finish(Some(ConnectionError::TimedOut));
            self.reset_due = true;
            return;
        }
        self.timers.keepalive_unanswered += 1;
        self.send.probe_due = true;
        self.timers.keepalive = Some(now + self.settings.keepalive_interval);
    }
}

/// Time in which a timer that starts at the least timeout and doubles fires `retries` + 1 times.
fn time_of_retries(retries: u8) -> Duration {
    let (mut sum, mut step) = (RTO_MIN, RTO_MIN);
    for _ in 0..retries {
        step = (step * 2).min(RTO_MAX);
        sum += step;
    }
    sum
}
