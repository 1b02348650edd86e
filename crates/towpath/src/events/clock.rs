//! The clock of a queue: the system's, or a simulated one that jumps to the next deadline.

use crate::driver::clock::moment;
use std::time::{Duration, Instant};

/// Longest real time in which a simulated clock stands still. A lent buffer comes back later than
/// that if the peer does not read.
const ENDING_MAX: Duration = Duration::from_secs(1);

/// A queue's clock. See the module documentation.
#[derive(Debug)]
pub(super) enum Clock {
    System,
    /// Simulated, and its current time.
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

    /// Returns how long to wait in the kernel until `due`. If `is_ending`, the kernel is ending
    /// operations whose deadline has passed. It needs a moment of real time for that, in which a
    /// simulated clock stands still.
    pub(super) fn until(&self, due: Option<Instant>, is_ending: bool) -> Option<Duration> {
        match self {
            Self::System => due.map(|due| due.saturating_duration_since(moment())),
            Self::Simulated(_) => Some(if is_ending { ENDING_MAX } else { Duration::ZERO }),
        }
    }

    /// Called when nothing happened until `due`. Returns false if a simulated clock has no deadline
    /// to jump to.
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
