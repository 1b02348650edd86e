//! The congestion window, its threshold, and how much of the window is used; all in segments.

use super::prr::Prr;
use super::reports::CaState;
use crate::tcp::seq::Seq;
use crate::time::{Duration, Instant};

/// Initial congestion window (RFC 6928).
pub const INITIAL_SEGMENTS: u32 = 10;

/// Threshold of a connection that has not seen loss; Linux's value.
pub const SSTHRESH_INFINITE: u32 = 0x7fff_ffff;

/// Largest window; keeps sums far from overflow and memory bounded.
pub const CWND_MAX: u32 = 1 << 20;

/// Window and threshold of one connection.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    cwnd: u32,
    ssthresh: u32,
    /// Segments acknowledged in congestion avoidance that have not grown the window yet.
    credit: u32,
    /// Window before the last reduction, to undo it.
    prior_cwnd: u32,
    /// Initial window: that of the route, or the default.
    initial: u32,
    usage: Usage,
    /// State of loss recovery.
    state: CaState,
    prr: Prr,
}

/// How far the window is used. A window that is not needed must not grow (RFC 7661); the accounting
/// is Linux's.
#[derive(Clone, Copy, Debug)]
struct Usage {
    /// The window held back data in the flight that ends at `until`.
    limited: bool,
    /// Most segments outstanding in that flight.
    packets_max: u32,
    until: Seq,
    /// Most segments outstanding since the window was last in full use.
    used: u32,
    /// When the window was last in full use, or last reduced for lack of use.
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
            state: CaState::Open,
            prr: Prr::default(),
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

    /// Sets the window before a reduction.
    pub fn set_prior_cwnd(&mut self, cwnd: u32) {
        self.prior_cwnd = cwnd;
    }

    /// Begins a reduction to `ssthresh`, which proportional rate reduction spreads over a round
    /// trip (RFC 6937).
    pub fn begin_reduction(&mut self, ssthresh: u32) {
        self.prr = Prr::default();
        self.credit = 0;
        self.prior_cwnd = self.cwnd;
        self.ssthresh = ssthresh;
    }

    /// Sets the window during a reduction, for an ACK that delivers `delivered` segments, reports
    /// `lost`, and leaves `in_flight`. `advanced` means that it acknowledges data cumulatively.
    pub fn reduce(&mut self, delivered: u32, lost: u32, advanced: bool, in_flight: u32) {
        if delivered == 0 {
            return;
        }
        let bounds = (self.ssthresh, self.prior_cwnd);
        let send = self.prr.allow(bounds, delivered, advanced && lost == 0, in_flight);
        self.set_cwnd(in_flight.saturating_add(send));
    }

    /// Counts `segments` that were sent, if a reduction is going on.
    pub fn note_sent(&mut self, segments: u32) {
        if self.state.is_reducing() {
            self.prr.note_sent(segments);
        }
    }

    /// Sets the state of loss recovery.
    pub(super) fn set_state(&mut self, state: CaState) {
        self.state = state;
    }

    /// State of loss recovery.
    pub fn state(&self) -> CaState {
        self.state
    }

    /// Grows the window in slow start by `acked` segments, up to the threshold (RFC 5681 §3.1). As
    /// on Linux, L of RFC 3465 is unbounded: stretched ACKs must not slow it down. Returns the
    /// segments that are left for congestion avoidance.
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
            // Gathered while growth cost more: worth one segment, not many.
            self.credit = 0;
            self.set_cwnd(self.cwnd + 1);
        }
        self.credit = self.credit.saturating_add(acked);
        let grown = self.credit / per_segment;
        self.credit -= grown * per_segment;
        self.set_cwnd(self.cwnd.saturating_add(grown));
    }

    /// Notes that segments were sent, or that the window held them back. `una` and `nxt` are the
    /// connection's, `outstanding` is its number of unacknowledged segments. Returns true if the
    /// window has not been in full use for `idle_after` or longer.
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

    /// Reduces a window that was long larger than its use, by half of the difference (RFC 2861
    /// §3.1). Keeps the threshold of [`Window::current_ssthresh`].
    pub fn shrink_unused(&mut self, now: Instant) {
        let used = self.usage.used.max(self.initial);
        if used < self.cwnd {
            self.ssthresh = self.current_ssthresh();
            self.set_cwnd(u32::midpoint(self.cwnd, used));
        }
        self.usage.used = 0;
        self.usage.stamp = now;
    }

    /// Reduces the window after an idle time: halves it for each `rto` of that time, but not below
    /// the initial window (RFC 2861 §3.1, RFC 5681 §4.1).
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

    /// Counts the window as in use at `now`.
    pub fn restamp_use(&mut self, now: Instant) {
        self.usage.stamp = now;
    }

    /// Restarts the accounting of use at `now`.
    pub fn restamp(&mut self, now: Instant) {
        self.usage.stamp = now;
        self.usage.used = 0;
    }

    /// Congestion window.
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

    /// True if congestion has reduced the window.
    pub fn was_reduced(&self) -> bool {
        self.prior_cwnd > 0
    }

    /// Window that a connection on this path starts with, and restarts with after an idle period.
    pub fn initial(&self) -> u32 {
        self.initial
    }

    /// True if a loss has set a threshold.
    pub fn has_threshold(&self) -> bool {
        self.ssthresh < SSTHRESH_INFINITE
    }

    /// True if the window is below its threshold.
    pub fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// True if the window may grow: it held back data, or in slow start more than half of it was in
    /// use. So it can reach twice what the path has carried.
    pub fn is_limited(&self) -> bool {
        self.usage.limited
            || (self.in_slow_start() && self.cwnd < self.usage.packets_max.saturating_mul(2))
    }

    /// True if the window held back data in the last round trip.
    pub fn was_full(&self) -> bool {
        self.usage.limited
    }

    /// Threshold that keeps three quarters of a window that is given up without loss.
    pub fn current_ssthresh(&self) -> u32 {
        self.ssthresh.max(self.cwnd / 2 + self.cwnd / 4)
    }
}
