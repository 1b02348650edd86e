//! The congestion window, its threshold, and how much of the window is in use; all in segments.

use crate::tcp::seq::Seq;
use crate::time::{Duration, Instant};

/// Segments that a connection may send at its start (RFC 6928).
pub const INITIAL_SEGMENTS: u32 = 10;

/// Threshold of a connection that has not seen loss (Linux's TCP_INFINITE_SSTHRESH).
pub const SSTHRESH_INFINITE: u32 = 0x7fff_ffff;

/// Greatest window; keeps sums far from overflow and memory bounded.
pub const CWND_MAX: u32 = 1 << 20;

/// Window and threshold of one connection.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    cwnd: u32,
    ssthresh: u32,
    /// Segments acknowledged in congestion avoidance and not yet turned into window.
    credit: u32,
    /// Window before the last reduction, for undoing it.
    prior_cwnd: u32,
    /// Segments that the path's route or the default lets a connection begin with.
    initial: u32,
    usage: Usage,
}

/// How far the window was used: a window that is not needed must not grow (RFC 7661; the way of
/// keeping book is Linux's).
#[derive(Clone, Copy, Debug)]
struct Usage {
    /// The window kept data back in the flight that ends at `until`.
    limited: bool,
    /// Most segments outstanding in that flight.
    packets_max: u32,
    until: Seq,
    /// Most segments outstanding since the window was last in full use.
    used: u32,
    /// When it was last in full use, or last taken down for not being so.
    stamp: Instant,
}

impl Window {
    /// A window of `initial` segments; `next` is the first sequence number to be sent.
    pub fn new(initial: u32, next: Seq, now: Instant) -> Self {
        let initial = initial.clamp(1, CWND_MAX);
        Self {
            cwnd: initial,
            ssthresh: SSTHRESH_INFINITE,
            credit: 0,
            prior_cwnd: 0,
            initial,
            usage: Usage { limited: false, packets_max: 0, until: next, used: 0, stamp: now },
        }
    }

    /// Sets the window.
    pub fn set_cwnd(&mut self, cwnd: u32) {
        self.cwnd = cwnd.clamp(1, CWND_MAX);
    }

    /// Sets the threshold.
    pub fn set_ssthresh(&mut self, ssthresh: u32) {
        self.ssthresh = ssthresh;
    }

    /// Forgets the credit gathered in congestion avoidance, as every reduction does.
    pub fn clear_credit(&mut self) {
        self.credit = 0;
    }

    /// Remembers the window before a reduction.
    pub fn set_prior_cwnd(&mut self, cwnd: u32) {
        self.prior_cwnd = cwnd;
    }

    /// Slow start for `acked` segments up to the threshold (RFC 5681 §3.1, with RFC 3465's L
    /// unbounded as in Linux: stretched ACKs must not slow the start). Returns those that are left
    /// for congestion avoidance.
    pub fn slow_start(&mut self, acked: u32) -> u32 {
        let cwnd = self.cwnd.saturating_add(acked).min(self.ssthresh);
        let left = acked - (cwnd - self.cwnd);
        self.set_cwnd(cwnd);
        left
    }

    /// Grows by one segment for each `per_segment` segments acknowledged (RFC 5681 §3.1
    /// equation (3), counted in segments as RFC 3465 does).
    pub fn avoid(&mut self, per_segment: u32, acked: u32) {
        let per_segment = per_segment.max(1);
        if self.credit >= per_segment {
            // Gathered while a segment cost more: worth one, not many.
            self.credit = 0;
            self.set_cwnd(self.cwnd + 1);
        }
        self.credit = self.credit.saturating_add(acked);
        let grown = self.credit / per_segment;
        self.credit -= grown * per_segment;
        self.set_cwnd(self.cwnd.saturating_add(grown));
    }

    /// Segments were sent or the window kept them back. `una` and `nxt` are those of the
    /// connection, `outstanding` its unacknowledged segments. Returns true if the window was not
    /// in full use, and has not been for `idle_after` or longer.
    pub fn note_use(
        &mut self,
        limited: bool,
        (una, nxt): (Seq, Seq),
        outstanding: u32,
        (now, idle_after): (Instant, Duration),
    ) -> bool {
        let usage = &mut self.usage;
        if limited
            || una.at_or_after(usage.until)
            || (!usage.limited && outstanding > usage.packets_max)
        {
            usage.limited = limited;
            usage.packets_max = outstanding;
            usage.until = nxt;
        }
        if self.is_limited() {
            self.usage.used = 0;
            self.usage.stamp = now;
            return false;
        }
        self.usage.used = self.usage.used.max(outstanding);
        now.since(self.usage.stamp) >= idle_after
    }

    /// The window was long larger than what was used of it: takes half of the difference away
    /// (RFC 2861 §3.1). `current_ssthresh` as [`Window::current_ssthresh`].
    pub fn shrink_unused(&mut self, now: Instant) {
        let used = self.usage.used.max(self.initial);
        if used < self.cwnd {
            self.ssthresh = self.current_ssthresh();
            self.set_cwnd(u32::midpoint(self.cwnd, used));
        }
        self.usage.used = 0;
        self.usage.stamp = now;
    }

    /// Nothing was sent for `idle`: halves the window for each `rto` of it, not below the initial
    /// one (RFC 2861 §3.1, RFC 5681 §4.1).
    pub fn restart(&mut self, idle: Duration, rto: Duration, now: Instant) {
        self.ssthresh = self.current_ssthresh();
        let floor = self.initial.min(self.cwnd);
        let (mut idle, mut cwnd) = (idle.saturating_sub(rto), self.cwnd);
        while !idle.is_zero() && cwnd > floor {
            cwnd /= 2;
            idle = idle.saturating_sub(rto);
        }
        self.set_cwnd(cwnd.max(floor));
        self.restamp(now);
    }

    /// The window counts as in use at `now`.
    pub fn restamp_use(&mut self, now: Instant) {
        self.usage.stamp = now;
    }

    /// The window is as it should be at `now`, whatever was used of it before.
    pub fn restamp(&mut self, now: Instant) {
        self.usage.stamp = now;
        self.usage.used = 0;
    }

    /// Window.
    pub fn cwnd(&self) -> u32 {
        self.cwnd
    }

    /// Threshold between slow start and congestion avoidance.
    pub fn ssthresh(&self) -> u32 {
        self.ssthresh
    }

    /// Window before the last reduction.
    pub fn prior_cwnd(&self) -> u32 {
        self.prior_cwnd
    }

    /// Window that a connection on this path begins with, and begins again with after a pause.
    pub fn initial(&self) -> u32 {
        self.initial
    }

    /// Loss was seen: there is a threshold.
    pub fn has_threshold(&self) -> bool {
        self.ssthresh < SSTHRESH_INFINITE
    }

    /// The window is below its threshold.
    pub fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// The window may grow: it kept data back, or in slow start half of it was in use, so that it
    /// can become twice what the path has proved to carry.
    pub fn is_limited(&self) -> bool {
        self.usage.limited
            || (self.in_slow_start() && self.cwnd < self.usage.packets_max.saturating_mul(2))
    }

    /// Threshold that remembers most of a window that is given up without loss.
    pub fn current_ssthresh(&self) -> u32 {
        self.ssthresh.max(self.cwnd / 2 + self.cwnd / 4)
    }
}
