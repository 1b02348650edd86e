//! The time of a queue: the system's, or one that jumps to whatever is waited for.

use crate::driver::clock::moment;
use std::time::{Duration, Instant};

/// See the module's documentation.
#[derive(Debug)]
pub(super) enum Clock {
    System,
    /// Where it stands.
    Simulated(Instant),
}

impl Clock {
    pub(super) fn new(simulated: bool) -> Self {
        if simulated { Self::Simulated(moment()) } else { Self::System }
    }

    pub(super) fn now(&self) -> Instant {
        match self {
            Self::System => moment(),
            Self::Simulated(now) => *now,
        }
    }

    /// How long to wait in the kernel until `due`.
    pub(super) fn until(&self, due: Option<Instant>) -> Option<Duration> {
        match self {
            Self::System => due.map(|due| due.saturating_duration_since(moment())),
            Self::Simulated(_) => Some(Duration::ZERO),
        }
    }

    /// Nothing happened until `due`. False if a simulated clock has nothing to jump to.
    pub(super) fn pass(&mut self, due: Option<Instant>) -> bool {
        match (self, due) {
            (Self::System, _) => true,
            (Self::Simulated(now), Some(due)) => {
                *now = due.max(*now);
                true
            }
            (Self::Simulated(_), None) => false,
        }
    }
}
