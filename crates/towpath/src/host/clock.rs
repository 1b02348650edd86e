//! Where a host's time comes from.

use std::time::{self, Duration};
use towpath_net::time::Instant;

/// The system's monotonic clock.
#[expect(clippy::disallowed_methods, reason = "a host is where time comes from")]
pub(crate) fn moment() -> time::Instant {
    time::Instant::now()
}

/// The time of one host.
pub(super) struct Clock(time::Instant);

impl Clock {
    /// Begins now.
    pub(super) fn new() -> Self {
        Self(moment())
    }

    /// Now.
    pub(super) fn now(&self) -> Instant {
        Instant::START + self.elapsed()
    }

    /// Time since it began.
    pub(super) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}
