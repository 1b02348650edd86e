//! Keepalive probes (RFC 9293 §3.8.4): they are off by default and begin after an idle time.

use super::settings::Settings;
use crate::time::{Duration, Instant};

/// What to do when the timer fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// Nothing: the peer is not idle.
    Waiting,
    /// Send a probe.
    Probe,
    /// The peer has not answered: the connection is over.
    Over,
}

/// Keepalive state of one connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keepalive {
    /// When the next probe is due; `None` if probes are off.
    at: Option<Instant>,
    /// Consecutive probes without an answer.
    unanswered: u8,
    idle: Duration,
    interval: Duration,
    probes: u8,
}

impl Keepalive {
    /// Probes that are off.
    pub(super) fn new(settings: &Settings) -> Self {
        let Settings { keepalive_idle, keepalive_interval, keepalive_probes, .. } = *settings;
        Self {
            at: None,
            unanswered: 0,
            idle: keepalive_idle,
            interval: keepalive_interval,
            probes: keepalive_probes,
        }
    }

    pub(super) fn set_keepalive(&mut self, on: bool, now: Instant) {
        self.at = on.then(|| now + self.idle);
    }

    /// Sets the idle time before the first probe. It also applies to an idle period that began at
    /// `last`, when a segment arrived.
    pub(super) fn set_idle(&mut self, idle: Duration, last: Instant, now: Instant) {
        self.idle = idle;
        if self.at.is_some() {
            self.at = Some((last + idle).max(now));
        }
    }

    pub(super) fn set_keepalive_interval(&mut self, interval: Duration) {
        self.interval = interval;
    }

    pub(super) fn set_keepalive_probes(&mut self, count: u8) {
        self.probes = count;
    }

    /// Notes that an acceptable segment arrived.
    pub(super) fn answered(&mut self) {
        self.unanswered = 0;
    }

    /// Takes the timer if it is due.
    pub(super) fn take_due(&mut self, now: Instant) -> bool {
        self.at.take_if(|at| *at <= now).is_some()
    }

    /// Handles the timer. `busy` means that data or a FIN is outstanding or queued: other timers
    /// watch the peer then. A segment last arrived at `last`. `limit` is the user timeout (RFC
    /// 5482); programs rely on it replacing the number of probes (`TCP_USER_TIMEOUT` in tcp(7)).
    pub(super) fn on_timer(
        &mut self,
        busy: bool,
        last: Instant,
        limit: Option<Duration>,
        now: Instant,
    ) -> Keep {
        if busy {
            self.at = Some(now + self.idle);
            return Keep::Waiting;
        }
        if last + self.idle > now {
            self.unanswered = 0;
            self.at = Some(last + self.idle);
            return Keep::Waiting;
        }
        let over = match limit {
            Some(limit) => self.unanswered > 0 && now.since(last) >= limit,
            None => self.unanswered >= self.probes,
        };
        if over {
            return Keep::Over;
        }
        self.unanswered += 1;
        self.at = Some(now + self.interval);
        Keep::Probe
    }

    /// Ends the probes.
    pub(super) fn stop(&mut self) {
        (self.at, self.unanswered) = (None, 0);
    }

    /// When the timer fires.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.at
    }

    /// Consecutive probes without an answer.
    pub(super) fn unanswered(&self) -> u8 {
        self.unanswered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u32) -> Instant {
        Instant::START + SECOND * seconds
    }

    /// RFC 9293 §3.8.4: off by default, only after an idle time, and over after some probes.
    #[test]
    fn idle_peers_are_probed() {
        let mut keepalive = Keepalive::new(&Settings::default());
        assert_eq!(keepalive.deadline(), None);
        keepalive.set_idle(10 * SECOND, at(0), at(0));
        keepalive.set_keepalive_interval(SECOND);
        keepalive.set_keepalive_probes(2);
        keepalive.set_keepalive(true, at(0));
        assert!(!keepalive.take_due(at(9)) && keepalive.take_due(at(10)));
        assert_eq!(keepalive.on_timer(false, at(5), None, at(10)), Keep::Waiting);
        assert_eq!(keepalive.deadline(), Some(at(15)));
        assert_eq!(keepalive.on_timer(true, at(5), None, at(15)), Keep::Waiting, "busy");
        for time in [25, 26] {
            assert_eq!(keepalive.on_timer(false, at(5), None, at(time)), Keep::Probe);
        }
        assert_eq!(keepalive.on_timer(false, at(5), None, at(27)), Keep::Over);
        keepalive.answered();
        assert_eq!(keepalive.on_timer(false, at(5), None, at(27)), Keep::Probe);
        let limit = Some(22 * SECOND);
        assert_eq!(keepalive.on_timer(false, at(5), limit, at(27)), Keep::Over, "user timeout");
    }
}
