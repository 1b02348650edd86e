//! A token bucket that threads share.
//!
//! # Theory of operation
//!
//! The bucket is one word: the time at which it is full again, in nanoseconds, as in the generic
//! cell rate algorithm (ITU-T I.371, annex A). Taking tokens moves that time on by what they take
//! to earn. How many tokens there are follows from that time, the present and the rate.
//!
//! A thread looks first, and takes afterwards what it has used. Threads that look at the same time
//! may use more than there is: the bucket is then in debt, and has no tokens until the debt is
//! earned. So the rate holds in the long run, and the debt is at most the depth for each thread
//! beyond the first.
//!
//! Looking costs a load. Taking costs a compare-and-exchange, and another one for each thread that
//! took meanwhile. There is no lock, and no thread waits.

use crate::sync::{AtomicU64, Ordering};
use crate::time::Instant;

/// Most tokens that a bucket earns in a second.
pub const PER_SECOND_MAX: u64 = 1 << 40;
/// Most tokens that a bucket holds.
pub const DEPTH_MAX: u64 = 1 << 40;

const NANOS: u64 = 1_000_000_000;

/// A token bucket. See the module documentation.
#[derive(Debug)]
pub struct Tokens {
    /// When the bucket is full again, in nanoseconds since [`Instant::START`].
    full_at: AtomicU64,
    per_second: u64,
    depth: u64,
}

impl Tokens {
    /// Makes a full bucket that earns `per_second` tokens, at least one, and holds `depth` at most.
    ///
    /// # Panics
    /// A number is zero or above its bound.
    pub fn new(per_second: u64, depth: u64) -> Self {
        assert!((1..=PER_SECOND_MAX).contains(&per_second), "a rate within its bounds");
        assert!((1..=DEPTH_MAX).contains(&depth), "a depth within its bounds");
        Self { full_at: AtomicU64::new(0), per_second, depth }
    }

    /// Returns the most tokens that the bucket holds.
    pub fn depth(&self) -> u64 {
        self.depth
    }

    /// Returns how many tokens there are; 0 while the bucket is in debt.
    pub fn left(&self, now: Instant) -> u64 {
        // Relaxed, like all accesses: the word is all that threads share here.
        let missing_ns = self.full_at.load(Ordering::Relaxed).saturating_sub(nanos(now));
        let missing = u128::from(missing_ns) * u128::from(self.per_second);
        let missing = u64::try_from(missing.div_ceil(u128::from(NANOS))).unwrap_or(u64::MAX);
        self.depth.saturating_sub(missing)
    }

    /// Takes tokens, also those that are not there.
    pub fn take(&self, count: u64, now: Instant) {
        let (now, takes) = (nanos(now), self.earned_in(count));
        let change = |full_at: u64| Some(full_at.max(now).saturating_add(takes));
        // It never fails, as `change` never returns `None`.
        let _ = self.full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
    }

    /// Returns when there are at least `count` tokens, or a full bucket, if none is taken before.
    pub fn ready_at(&self, count: u64) -> Instant {
        let spare = self.depth.saturating_sub(count);
        let full_at = self.full_at.load(Ordering::Relaxed);
        // The time that earns fewer tokens than may be missing.
        let spare_ns = u128::from(spare) * u128::from(NANOS) / u128::from(self.per_second);
        let spare_ns = u64::try_from(spare_ns).unwrap_or(u64::MAX);
        Instant::from_micros(full_at.saturating_sub(spare_ns).div_ceil(1000))
    }

    /// Returns the nanoseconds that earn so many tokens.
    fn earned_in(&self, count: u64) -> u64 {
        let nanos = u128::from(count) * u128::from(NANOS);
        u64::try_from(nanos.div_ceil(u128::from(self.per_second))).unwrap_or(u64::MAX)
    }
}

fn nanos(at: Instant) -> u64 {
    at.micros().saturating_mul(1000)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::counted;

    fn at(millis: u64) -> Instant {
        Instant::from_micros(millis * 1000)
    }

    /// Goal: the bucket gives its depth at once and its rate in the long run, whatever a taker
    /// asks, and no more than its depth after a pause.
    #[test]
    fn a_bucket_gives_its_rate() {
        for (per_second, depth) in
            [(1000, 16), (1, 1), (125_000, 16_384), (PER_SECOND_MAX, 1 << 34)]
        {
            let tokens = Tokens::new(per_second, depth);
            assert_eq!(tokens.left(at(0)), depth);
            let mut taken = 0;
            for millis in 0..10_000 {
                let left = tokens.left(at(millis));
                tokens.take(left, at(millis));
                assert_eq!(tokens.left(at(millis)), 0, "{per_second}");
                taken += left;
            }
            let fair = depth + 10 * per_second;
            assert!(taken <= fair && taken >= fair - fair / 500 - 2, "{taken} of {fair}");
            assert_eq!(tokens.left(at(1_000_000)), depth);
        }
    }

    /// Goal: what is taken beyond what is there is earned before there are tokens again, and the
    /// bucket says when.
    #[test]
    fn debts_are_earned() {
        let tokens = Tokens::new(1000, 100);
        tokens.take(150, at(0));
        assert_eq!((tokens.left(at(0)), tokens.left(at(50))), (0, 0));
        assert_eq!((tokens.left(at(51)), tokens.left(at(100))), (1, 50));
        assert_eq!(tokens.ready_at(1), at(51));
        assert_eq!(tokens.ready_at(50), at(100));
        assert_eq!(tokens.ready_at(1000), at(150), "a full bucket is all there is");
        tokens.take(0, at(1000));
        assert_eq!(tokens.left(at(1000)), 100);
    }

    /// Goal: a look and a taking cost one atomic operation each.
    #[test]
    fn it_costs_one_operation() {
        let tokens = Tokens::new(1000, 100);
        let look = counted::count(|| assert_eq!(tokens.left(at(5)), 100));
        let take = counted::count(|| tokens.take(7, at(5)));
        assert_eq!((look.changes, take.changes), (0, 1));
    }
}
