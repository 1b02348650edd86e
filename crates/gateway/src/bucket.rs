//! A token bucket, for limits on what guests and hosts may ask.

use std::time::Duration;
use towpath_net::time::Instant;

/// A token bucket. Each use passes the same rate and depth.
#[derive(Clone, Copy)]
pub(crate) struct Bucket {
    tokens: u32,
    filled_at: Instant,
}

impl Bucket {
    /// A bucket with `burst` tokens.
    pub(crate) fn full(burst: u32, now: Instant) -> Self {
        Self { tokens: burst, filled_at: now }
    }

    /// Takes a token and returns true, if there is one. The bucket earns `per_second` tokens, and
    /// holds at most `burst`.
    pub(crate) fn take(&mut self, per_second: u32, burst: u32, now: Instant) -> bool {
        let interval = Duration::from_secs(1) / per_second;
        let earned = now.since(self.filled_at).as_micros() / interval.as_micros();
        let earned = u32::try_from(earned).unwrap_or(u32::MAX);
        self.tokens = self.tokens.saturating_add(earned).min(burst);
        self.filled_at += interval.saturating_mul(earned);
        let may = self.tokens > 0;
        self.tokens = self.tokens.saturating_sub(1);
        may
    }
}
