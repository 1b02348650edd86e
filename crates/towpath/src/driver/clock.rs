//! The clock of hosts and event queues.

use std::time::{self, Duration};
use towpath_net::time::Instant;

/// Returns the time of the system's monotonic clock.
#[expect(clippy::disallowed_methods, reason = "a host is where time comes from")]
pub(crate) fn moment() -> time::Instant {
    time::Instant::now()
}

/// The time of one driver: the system's monotonic clock, counted from a starting moment.
#[derive(Clone, Copy, Debug)]
pub struct Clock(time::Instant);

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock {
    /// Creates a clock that starts now.
    pub fn new() -> Self {
        Self(moment())
    }

    /// Returns the current moment.
    pub fn now(&self) -> Instant {
        Instant::START + self.elapsed()
    }

    /// Returns the time since the clock started.
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}
