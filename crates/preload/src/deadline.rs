//! The end of a wait, on the kernel's monotonic clock.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// When a wait ends; `None` for never.
#[derive(Clone, Copy)]
pub(crate) struct Deadline(Option<Duration>);

impl Deadline {
    /// The end of a wait that begins now. `None` is a wait without a limit.
    pub(crate) fn after(timeout: Option<Duration>) -> Self {
        // A wait beyond the end of the clock has no limit.
        Self(timeout.and_then(|timeout| now().checked_add(timeout)))
    }

    /// The time that is left; `None` without a limit.
    pub(crate) fn left(self) -> Option<Duration> {
        self.0.map(|at| at.saturating_sub(now()))
    }

    /// True if no time is left.
    pub(crate) fn is_over(self) -> bool {
        self.left() == Some(Duration::ZERO)
    }
}

fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    // The clock begins at 0, and the fraction is below a second.
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_end() {
        assert!(Deadline::after(Some(Duration::ZERO)).is_over());
        assert!(!Deadline::after(Some(Duration::from_secs(3600))).is_over());
        for endless in [None, Some(Duration::MAX)] {
            assert_eq!(Deadline::after(endless).left(), None);
        }
    }
}
