//! Where the time of a worker comes from.

use towpath_net::time::Instant;

/// The only reader of the system clock.
#[derive(Clone)]
pub(crate) struct Clock {
    start: std::time::Instant,
}

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "the worker is where time comes from")]
    pub(super) fn new() -> Self {
        Self { start: std::time::Instant::now() }
    }

    pub(crate) fn now(&self) -> Instant {
        let elapsed = self.start.elapsed();
        Instant::from_micros(u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX))
    }
}
