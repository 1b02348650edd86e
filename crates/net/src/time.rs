//! Time as protocols see it: microseconds since a start that the driver chose.
//!
//! Nothing in this crate asks what time it is; every call that needs to know is given `now`.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};
pub use core::time::Duration;

/// A moment, in microseconds since an arbitrary start. Never goes backwards.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant {
    micros: u64,
}

impl Instant {
    /// The start.
    pub const START: Instant = Instant { micros: 0 };

    /// The moment `micros` microseconds after the start.
    pub const fn from_micros(micros: u64) -> Self {
        Self { micros }
    }

    /// Microseconds since the start.
    pub const fn micros(self) -> u64 {
        self.micros
    }

    /// Milliseconds since the start, rounded down.
    pub const fn millis(self) -> u64 {
        self.micros / 1000
    }

    /// Time since `earlier`; zero if that is later.
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_micros(self.micros.saturating_sub(earlier.micros))
    }
}

/// The earliest of some moments, if there is one.
pub fn earliest<const COUNT: usize>(moments: [Option<Instant>; COUNT]) -> Option<Instant> {
    // Not `flatten().min()`, which takes several times as long, and is asked for in each call.
    let mut earliest = None;
    for moment in moments {
        earliest = match (earliest, moment) {
            (Some(one), Some(other)) => Some(if other < one { other } else { one }),
            (one, other) => one.or(other),
        };
    }
    earliest
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, duration: Duration) -> Instant {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        Instant { micros: self.micros.saturating_add(micros) }
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Instant> for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        self.since(earlier)
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}s", self.micros / 1_000_000, self.micros % 1_000_000)
    }
}
