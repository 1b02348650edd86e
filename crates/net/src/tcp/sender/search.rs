//! State of the search for the path MTU (RFC 4821 §7.2).

use crate::tcp::seq::Seq;
use crate::time::Instant;

/// State of the search; sizes as in `path`.
pub(in crate::tcp) struct Search {
    enabled: bool,
    /// Size that the path takes, proven or assumed (search_low).
    low: u32,
    /// Size beyond which the path takes nothing (search_high).
    high: u32,
    probe: Option<Probe>,
    /// When the search began.
    since: Instant,
}

/// A probe in flight.
#[derive(Clone, Copy)]
struct Probe {
    size: u32,
    start: Seq,
    end: Seq,
}

impl Search {
    /// Begins a search between two sizes.
    pub(super) fn begin(enabled: bool, (low, high): (u32, u32), now: Instant) -> Self {
        Self { enabled, low, high, probe: None, since: now }
    }

    /// Bounds what the path takes.
    pub(super) fn bound(&mut self, high: u32) {
        self.high = self.high.min(high);
    }

    /// Raises or lowers what the path is known to take.
    pub(super) fn set_low(&mut self, low: u32) {
        self.low = low;
    }

    /// Switches the search on, from a size that the path takes.
    pub(super) fn enable(&mut self, low: u32) {
        (self.enabled, self.low) = (true, low);
    }

    /// Switches the search on again, from where it was.
    pub(super) fn restart(&mut self, now: Instant) {
        (self.enabled, self.since) = (true, now);
    }

    /// Notes that a probe was sent.
    pub(super) fn probed(&mut self, size: u32, start: Seq, end: Seq) {
        self.probe = Some(Probe { size, start, end });
    }

    /// Returns the size of the probe if everything before `una` includes it.
    pub(super) fn take_acknowledged(&mut self, una: Seq) -> Option<u32> {
        self.probe.take_if(|probe| una.at_or_after(probe.end)).map(|probe| probe.size)
    }

    /// Notes that the path does not take the probe.
    pub(super) fn take_lost(&mut self) {
        if let Some(probe) = self.probe.take() {
            self.high = probe.size - 1;
        }
    }

    /// Makes the probe void: after a retransmission its outcome proves nothing.
    pub(super) fn forget_probe(&mut self) {
        self.probe = None;
    }

    /// Where the probe in flight begins.
    #[inline]
    pub(in crate::tcp) fn probe_start(&self) -> Option<Seq> {
        self.probe.map(|probe| probe.start)
    }

    /// Size that the path is known to take; unbounded without a search.
    pub(super) fn proven(&self) -> u32 {
        if self.enabled { self.low } else { u32::MAX }
    }

    /// Size that the path takes, and size beyond which it takes nothing.
    pub(super) fn range(&self) -> (u32, u32) {
        (self.low, self.high)
    }

    /// True if a search is on.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.enabled
    }

    /// When the search began.
    pub(super) fn since(&self) -> Instant {
        self.since
    }
}
