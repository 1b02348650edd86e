//! Timers of a connection: when something is due, and what happens then.

use super::connection::Connection;
use super::rtt::{RTO_MAX, RTO_MIN};
use super::state::{ConnectionError, State};
use crate::time::{Duration, Instant, earliest};

/// Retries of a connection that nobody owns, as long as its timeout has not reached its bound
/// (Linux's tcp_orphan_retries).
const ORPHAN_RETRIES: u8 = 8;
/// Longest that a peer which takes back its window may be silent.
const SHUT_WINDOW_SILENCE: Duration = Duration::from_secs(240);

/// Deadlines; `None` when a timer is off. Of the first four at most one is on: each of them keeps
/// the connection alive.
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
    /// The next segment may go.
    pub(super) pacing: Option<Instant>,
    /// End of FIN-WAIT-2 without an owner.
    pub(super) fin_wait: Option<Instant>,
    /// Retransmissions in a row without an answer.
    pub(super) unanswered: u8,
    /// Zero-window probes in a row without an answer.
    pub(super) probes: u8,
    /// Doublings of the time between zero-window probes.
    pub(super) probe_backoff: u8,
    /// When the first zero-window probe was sent.
    pub(super) probing_since: Option<Instant>,
    /// Keepalive probes in a row without an answer.
    pub(super) keepalive_unanswered: u8,
}

impl Timers {
    /// Turns off the timers that keep the connection alive.
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
    /// When [`Connection::on_deadline`] wants to be called next.
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

    /// Longest that data may stay unacknowledged before the connection fails (`TCP_USER_TIMEOUT`,
    /// RFC 5482); `None` for what the retries allow.
    pub fn set_user_timeout(&mut self, limit: Option<Duration>) {
        self.settings.user_timeout = limit;
    }

    /// Probes an idle peer.
    pub fn set_keepalive(&mut self, on: bool, now: Instant) {
        self.timers.keepalive = on.then(|| now + self.settings.keepalive_idle);
    }

    /// Idle time before the first keepalive probe (`TCP_KEEPIDLE`). Counts for an idle time that
    /// has begun too.
    pub fn set_keepalive_idle(&mut self, idle: Duration, now: Instant) {
        self.settings.keepalive_idle = idle;
        if self.timers.keepalive.is_some() {
            self.timers.keepalive = Some((self.receive.last_at + idle).max(now));
        }
    }

    /// Time between keepalive probes (`TCP_KEEPINTVL`), from the next probe on.
    pub fn set_keepalive_interval(&mut self, interval: Duration) {
        self.settings.keepalive_interval = interval;
    }

    /// Keepalive probes without an answer before the connection fails (`TCP_KEEPCNT`).
    pub fn set_keepalive_probes(&mut self, count: u8) {
        self.settings.keepalive_probes = count;
    }

    /// Acts on every timer that is due.
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
        // A window that was taken back: what is sent again probes it.
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

    /// How long retransmissions may stay unanswered: RFC 9293 §3.8.3 R2 as a time, the one in which
    /// the timer would fire so often on the fastest path (Linux's tcp_model_timeout).
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

    /// How long they may stay unanswered before the path is in doubt (RFC 9293 §3.8.3 R1).
    fn retries1_time(&self) -> Duration {
        time_of_retries(self.settings.retries1)
    }

    /// Sets the retransmission timer from now on, turns it off when nothing is outstanding. It
    /// does not run beyond the user's timeout.
    pub(super) fn rearm_rto(&mut self, now: Instant) {
        if self.send.board.is_empty() {
            self.timers.disarm();
            return;
        }
        let rto = self.within_user_timeout(self.rtt.rto(), self.recovery.resent_at, now);
        self.timers.arm_retransmit(now + rto);
    }

    /// When the retransmission timer of the first segment outstanding ends.
    pub(super) fn rto_from_head(&self) -> Instant {
        self.send.board.first().map_or(Instant::START, |first| first.sent_at + self.rtt.rto())
    }

    /// Sets the retransmission timer to where it would be without the timers that took its place.
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

    /// `wait`, but no longer than until the user's timeout, counted from `since`, is over.
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

    /// Nothing is outstanding and the peer's window keeps data or a FIN back: it is probed.
    pub(super) fn arm_probe(&mut self, now: Instant) {
        if self.send.board.is_empty() && self.timers.persist.is_none() {
            self.timers.arm_persist(now + self.probe_interval(now));
        }
    }

    /// An answer to a probe (Linux's tcp_ack_probe).
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
        // RFC 9293 §3.8.6.1: what is kept back may be a FIN alone.
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
            // Not the window kept the data back, or not all of it: it goes, however small.
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
            // Data or a FIN is on its way: the other timers watch the peer.
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
            // As Linux: the user's timeout takes the place of the number of probes.
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

/// The time in which a timer that begins with the least timeout has fired so often and once more.
fn time_of_retries(retries: u8) -> Duration {
    let (mut sum, mut step) = (RTO_MIN, RTO_MIN);
    for _ in 0..retries {
        step = (step * 2).min(RTO_MAX);
        sum += step;
    }
    sum
}
