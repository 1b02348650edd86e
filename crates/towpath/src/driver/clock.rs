//! Where time comes from.

use std::time::{self, Duration};
use towpath_net::time::Instant;

/// The system's monotonic clock.
#[expect(clippy::disallowed_methods, reason = "a host is where time comes from")]
pub(crate) fn moment() -> time::Instant {
    time::Instant::now()
}

/// The time of one driver: that of the system, from a moment on.
#[derive(Clone, Copy, Debug)]
pub struct Clock(time::Instant);

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock {
    /// Begins now.
    pub fn new() -> Self {
        Self(moment())
    }

    /// Now.
    pub fn now(&self) -> Instant {
        Instant::START + self.elapsed()
    }

    /// Time since it began.
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}
