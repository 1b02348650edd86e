//! Time for protocols: microseconds since a start that the driver chose.
//!
//! Neither this crate nor the protocols read a clock: calls that depend on the time take `now`.

use core::fmt;
use core::num::NonZeroU64;
use core::ops::{Add, AddAssign, Sub};
pub use core::time::Duration;

/// A point in time, in microseconds since an arbitrary start. Never goes backwards.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant {
    /// Stored plus one, so that `Option<Instant>` needs no extra space.
    micros: NonZeroU64,
}

impl Instant {
    /// The start.
    pub const START: Instant = Instant { micros: NonZeroU64::MIN };

    /// The time `micros` microseconds after the start.
    pub const fn from_micros(micros: u64) -> Self {
        Self { micros: NonZeroU64::MIN.saturating_add(micros) }
    }

    /// Microseconds since the start.
    pub const fn micros(self) -> u64 {
        self.micros.get() - 1
    }

    /// Milliseconds since the start, rounded down.
    pub const fn millis(self) -> u64 {
        self.micros() / 1000
    }

    /// Time since `earlier`, or zero if `earlier` is later.
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_micros(self.micros.get().saturating_sub(earlier.micros.get()))
    }
}

/// The earliest of some times, or `None` if all are `None`.
pub fn earliest<const COUNT: usize>(moments: [Option<Instant>; COUNT]) -> Option<Instant> {
    // Not `flatten().min()`: this runs in each call and must not branch. Zero stands for `None`,
    // and subtracting one wraps it to the largest number.
    let mut first = u64::MAX;
    for moment in moments {
        first = first.min(moment.map_or(0, |at| at.micros.get()).wrapping_sub(1));
    }
    NonZeroU64::new(first.wrapping_add(1)).map(|micros| Instant { micros })
}

impl Default for Instant {
    fn default() -> Self {
        Self::START
    }
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
        write!(f, "{}.{:06}s", self.micros() / 1_000_000, self.micros() % 1_000_000)
    }
}
