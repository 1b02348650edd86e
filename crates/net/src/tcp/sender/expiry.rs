//! What happens when no ACK arrives: retransmission (RFC 6298), loss probes and reordering (RFC
//! 8985), and zero-window probes (RFC 9293 §3.8.6.1).

use super::{Purpose, Sender, Turn};
use crate::tcp::rtt::RTO_MIN;
use crate::time::{Duration, Instant};

/// Retries of a connection without an owner, while its timeout is below the maximum
/// (`tcp_orphan_retries`).
const ORPHAN_RETRIES: u8 = 8;
/// Longest silence of a peer that has shrunk its window to zero.
const SHUT_WINDOW_SILENCE: Duration = Duration::from_secs(240);

/// What the timer did.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::tcp) struct Fired {
    /// The peer does not answer: the connection is over.
    pub(in crate::tcp) over: bool,
    /// It was a retransmission timeout of data that the peer takes, after this many others.
    pub(in crate::tcp) timeouts: Option<u8>,
}

impl Sender {
    /// When the timer is due.
    pub(in crate::tcp) fn deadlines(&self) -> [Option<Instant>; 2] {
        [self.timer.at(), self.paced_until]
    }

    /// Returns what a timer that is due is for, and stops it.
    pub(in crate::tcp) fn take_due(&mut self, now: Instant) -> Option<Purpose> {
        self.paced_until.take_if(|at| *at <= now);
        self.timer.take_due(now)
    }

    /// Handles the timer. The peer was last heard `last`.
    pub(in crate::tcp) fn on_timer(
        &mut self,
        purpose: Purpose,
        last: Instant,
        turn: Turn<'_>,
    ) -> Fired {
        match purpose {
            Purpose::Retransmit => return self.on_retransmit(last, turn),
            Purpose::Persist => return Fired { over: self.on_persist(turn), timeouts: None },
            Purpose::LossProbe => self.on_loss_probe(turn.now),
            Purpose::Reorder => {
                let (recovery, mut cx) = self.recovery(turn);
                recovery.on_reorder_timer(&mut cx);
                self.restart_timer_from_head(turn.now);
            }
        }
        Fired::default()
    }

    /// Handles the retransmission timer (RFC 6298 §5.4 to §5.6).
    fn on_retransmit(&mut self, last: Instant, turn: Turn<'_>) -> Fired {
        let Some(first) = self.recovery.board().first() else { return Fired::default() };
        let (sent_at, now) = (first.sent_at, turn.now);
        // The peer shrank its window to zero: retransmissions probe it.
        let shut = self.window.size() == 0 && turn.owned;
        let since = now.since(self.recovery.resent_at().unwrap_or(sent_at));
        let timeouts = self.recovery.timeouts().unanswered();
        let over = if shut {
            is_shut_too_long(since, now.since(last), turn.settings.user_timeout)
        } else {
            timeouts > 0 && since >= self.retry_time(turn)
        };
        let fired = Fired { over, timeouts: (!shut).then_some(timeouts) };
        if over {
            return fired;
        }
        // R1 of RFC 9293 §3.8.3: the path is in doubt.
        if !shut
            && timeouts > 0
            && since >= time_of_retries(turn.settings.retries1, self.rtt.most())
        {
            self.suspect_black_hole(turn);
        }
        let (recovery, mut cx) = self.recovery(turn);
        recovery.on_timeout(&mut cx);
        if !shut {
            recovery.timeouts_mut().count(now);
        }
        self.rtt.back_off();
        self.restart_timer(turn);
        fired
    }

    /// How long retransmissions may stay unanswered: R2 of RFC 9293 §3.8.3, as the time that the
    /// number of retries takes at the least timeout.
    fn retry_time(&self, turn: Turn<'_>) -> Duration {
        if let Some(limit) = turn.settings.user_timeout {
            return limit;
        }
        let retries = if turn.owned {
            turn.settings.retries2
        } else if self.rtt.rto() < self.rtt.most() {
            ORPHAN_RETRIES
        } else {
            0
        };
        time_of_retries(retries, self.rtt.most())
    }

    /// Restarts the retransmission timer, or stops it if nothing is outstanding (RFC 6298 §5.1 to
    /// §5.3). The timer does not run beyond the user timeout (RFC 5482).
    pub(super) fn restart_timer(&mut self, turn: Turn<'_>) {
        if self.recovery.board().is_empty() {
            self.timer.stop();
            return;
        }
        let rto = within_user_timeout(self.rtt.rto(), self.recovery.resent_at(), turn);
        self.arm_retransmit(turn.now + rto);
    }

    /// Starts the retransmission timer.
    pub(in crate::tcp) fn arm_retransmit(&mut self, at: Instant) {
        self.timer.arm(Purpose::Retransmit, at);
    }

    /// Doubles the retransmission timeout of the handshake (RFC 6298 §5.5) if it `backs_off`, and
    /// starts the timer.
    pub(in crate::tcp) fn retry_syn(&mut self, backs_off: bool, now: Instant) {
        if backs_off {
            self.rtt.back_off();
        }
        self.arm_retransmit(now + self.rtt.rto());
    }

    /// When the retransmission timeout of the first outstanding segment is over.
    fn rto_from_head(&self) -> Instant {
        let first = self.recovery.board().first();
        first.map_or(Instant::START, |first| first.sent_at + self.rtt.rto())
    }

    /// Sets the retransmission timer to the time it would have without the timers that replaced it.
    pub(super) fn restart_timer_from_head(&mut self, now: Instant) {
        if self.recovery.board().is_empty() {
            self.timer.stop();
        } else {
            self.arm_retransmit(self.rto_from_head().max(now + Duration::from_millis(1)));
        }
    }

    /// Schedules a loss probe (RFC 8985 §7.2). `advancing` means that the retransmission timer is
    /// due to be restarted. Returns true if a probe is scheduled; its timer replaces the
    /// retransmission timer.
    pub(super) fn schedule_loss_probe(&mut self, advancing: bool, turn: Turn<'_>) -> bool {
        let now = turn.now;
        let rto = if advancing { self.rtt.rto() } else { self.rto_from_head().since(now) };
        let timeout = self.recovery.probe_timeout(rto, &self.rtt, turn.settings);
        if let Some(timeout) = timeout {
            self.timer.arm(Purpose::LossProbe, now + timeout);
        }
        timeout.is_some()
    }

    /// Handles the timer of the loss probe (RFC 8985 §7.3).
    fn on_loss_probe(&mut self, now: Instant) {
        self.restart_timer_from_head(now);
        let next = self.unsent().max(u32::from(self.fin_waits())).min(self.path.mss());
        let fits = next > 0 && (self.nxt + next).at_or_before(self.edge());
        self.recovery.on_probe_timer(|| fits);
    }

    /// Time to the next zero-window probe.
    fn probe_interval(&self, turn: Turn<'_>) -> Duration {
        within_user_timeout(self.persist.interval(&self.rtt), self.persist.since(), turn)
    }

    /// Starts the persist timer if nothing is outstanding: the peer's window holds back data or a
    /// FIN.
    pub(super) fn arm_persist(&mut self, turn: Turn<'_>) {
        if self.recovery.board().is_empty() && !self.timer.is_for(Purpose::Persist) {
            self.timer.arm(Purpose::Persist, turn.now + self.probe_interval(turn));
        }
    }

    /// Starts the persist timer after a time that the user timeout may shorten.
    pub(super) fn arm_persist_after(&mut self, wait: Duration, turn: Turn<'_>) {
        let wait = within_user_timeout(wait, self.persist.since(), turn);
        self.timer.arm(Purpose::Persist, turn.now + wait);
    }

    /// Processes the answer to a zero-window probe.
    pub(super) fn probe_answered(&mut self, turn: Turn<'_>) {
        let held_back = self.held_back();
        if held_back == 0 {
            return;
        }
        if held_back.min(self.path.mss()) <= self.window.size() {
            self.persist.restore();
            self.persist.end();
            if self.timer.is_for(Purpose::Persist) {
                self.timer.stop();
            }
        } else {
            self.timer.arm(Purpose::Persist, turn.now + self.probe_interval(turn));
        }
    }

    /// Handles the persist timer. Returns true if the connection is over.
    fn on_persist(&mut self, turn: Turn<'_>) -> bool {
        // A FIN alone may be held back too.
        if !self.recovery.board().is_empty() || self.held_back() == 0 {
            self.persist.answered();
            self.persist.end();
            return false;
        }
        let since = turn.now.since(self.persist.begin(turn.now));
        let mut limit = turn.settings.retries2;
        let mut over = turn.settings.user_timeout.is_some_and(|limit| since >= limit);
        if !turn.owned {
            let alive = self.probe_interval(turn) < self.rtt.most();
            limit = if alive { ORPHAN_RETRIES } else { 0 };
            over |= !alive;
        }
        if over || self.persist.unanswered() >= limit {
            return true;
        }
        self.persist.probed(turn.settings.retries2);
        if self.window.size() > 0 {
            // The window is not zero: send what fits, however little.
            self.small.partial = true;
        } else {
            self.probe_due = true;
            self.urgent_probe_due = self.is_urgent_in_reach();
        }
        self.timer.arm(Purpose::Persist, turn.now + self.probe_interval(turn));
        false
    }
}

/// True if a peer with a shut window has been silent for too long, `silent`, although it was
/// retransmitted to for `resending`.
fn is_shut_too_long(resending: Duration, silent: Duration, user: Option<Duration>) -> bool {
    let most = user.map_or(SHUT_WINDOW_SILENCE, |limit| limit.min(SHUT_WINDOW_SILENCE));
    user.is_some_and(|limit| resending > limit) || (silent > most && resending > most)
}

/// Limits `wait` to what is left of the user timeout, which began at `since`.
fn within_user_timeout(wait: Duration, since: Option<Instant>, turn: Turn<'_>) -> Duration {
    match (turn.settings.user_timeout, since) {
        (Some(limit), Some(since)) => {
            let left = limit.saturating_sub(turn.now.since(since));
            wait.min(left.max(Duration::from_millis(1)))
        }
        _ => wait,
    }
}

/// Time in which a timer that starts at the least timeout, and doubles up to `most`, fires
/// `retries` + 1 times.
fn time_of_retries(retries: u8, most: Duration) -> Duration {
    let (mut sum, mut step) = (RTO_MIN, RTO_MIN);
    for _ in 0..retries {
        step = (step * 2).min(most);
        sum += step;
    }
    sum
}
