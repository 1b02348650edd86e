//! The timer that keeps the sender going. There is one, with the purpose that fits what is
//! outstanding.

use crate::time::Instant;

/// What the timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) enum Purpose {
    /// Retransmission (RFC 6298), of data or of a SYN.
    Retransmit,
    /// A zero-window probe (RFC 9293 §3.8.6.1).
    Persist,
    /// A loss probe (RFC 8985 §7.2).
    LossProbe,
    /// Reordering (RFC 8985 §6.3).
    Reorder,
}

/// The timer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timer(Option<(Purpose, Instant)>);

impl Timer {
    /// Starts the timer, for this purpose only.
    pub(super) fn arm(&mut self, purpose: Purpose, at: Instant) {
        self.0 = Some((purpose, at));
    }

    /// Stops the timer.
    pub(super) fn stop(&mut self) {
        self.0 = None;
    }

    /// True if the timer runs for this purpose.
    pub(super) fn is_for(&self, purpose: Purpose) -> bool {
        self.0.is_some_and(|(own, _)| own == purpose)
    }

    /// Returns the purpose of a timer that is due, and stops it.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Purpose> {
        self.0.take_if(|(_, at)| *at <= now).map(|(purpose, _)| purpose)
    }

    /// When the timer is due.
    pub(super) fn at(&self) -> Option<Instant> {
        self.0.map(|(_, at)| at)
    }
}
