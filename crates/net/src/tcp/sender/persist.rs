//! Probes of a zero window (RFC 9293 §3.8.6.1): their interval, and how many were not answered.

use crate::tcp::rtt::{RTO_MIN, RttEstimator};
use crate::time::{Duration, Instant};

/// State of the probes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Persist {
    /// Consecutive probes without an answer.
    unanswered: u8,
    /// Doublings of the interval.
    backoff: u8,
    /// When the first probe was sent.
    since: Option<Instant>,
}

impl Persist {
    /// Time to the next probe.
    pub(super) fn interval(&self, rtt: &RttEstimator) -> Duration {
        let factor = 1u32 << self.backoff.min(10);
        rtt.rto().max(RTO_MIN).saturating_mul(factor).min(rtt.most())
    }

    /// Begins probing at `now` if it has not begun. Returns when it began.
    pub(super) fn begin(&mut self, now: Instant) -> Instant {
        *self.since.get_or_insert(now)
    }

    /// Counts a probe; the interval doubles at most `most` times.
    pub(super) fn probed(&mut self, most: u8) {
        self.unanswered += 1;
        if self.backoff < most {
            self.backoff += 1;
        }
    }

    /// Takes back a doubling: the probe was not sent.
    pub(super) fn not_sent(&mut self) {
        self.backoff = self.backoff.saturating_sub(1);
    }

    /// Notes that the peer answers.
    #[inline]
    pub(super) fn answered(&mut self) {
        self.unanswered = 0;
    }

    /// Ends the back-off: the path works.
    #[inline]
    pub(super) fn restore(&mut self) {
        self.backoff = 0;
    }

    /// Ends probing: nothing is held back.
    pub(super) fn end(&mut self) {
        self.since = None;
    }

    /// Forgets everything but the number of unanswered probes.
    pub(super) fn stop(&mut self) {
        *self = Self { unanswered: self.unanswered, ..Self::default() };
    }

    /// When the first probe was sent.
    pub(super) fn since(&self) -> Option<Instant> {
        self.since
    }

    /// Consecutive probes without an answer.
    pub(super) fn unanswered(&self) -> u8 {
        self.unanswered
    }

    /// Doublings of the interval.
    pub(super) fn backoff(&self) -> u8 {
        self.backoff
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::rtt::RTO_MAX;

    /// RFC 9293 §3.8.6.1: the interval doubles; here up to `RTO_MAX`, and anew after a round trip.
    #[test]
    fn the_interval_doubles() {
        let (mut persist, rtt) = (Persist::default(), RttEstimator::default());
        let first = persist.interval(&rtt);
        persist.probed(15);
        assert_eq!(persist.interval(&rtt), first * 2);
        persist.not_sent();
        assert_eq!((persist.interval(&rtt), persist.unanswered()), (first, 1));
        for _ in 0..20 {
            persist.probed(15);
        }
        assert_eq!((persist.interval(&rtt), persist.backoff()), (RTO_MAX, 15));
        persist.restore();
        assert_eq!(persist.interval(&rtt), first);
    }
}
