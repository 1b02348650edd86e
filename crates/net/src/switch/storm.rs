//! Rate limits: storm control, and station moves.

use crate::time::Instant;

/// A token bucket with the tokens of [`DEPTH_US`]. A request passes if any tokens are left,
/// whatever its size; the debt delays later requests.
#[derive(Clone, Copy)]
pub(super) struct Bucket {
    per_second: u32,
    /// Level in millionths of a token.
    level: i64,
    filled: Instant,
}

impl Bucket {
    /// A full bucket.
    pub(super) fn new(per_second: u32) -> Self {
        Self { per_second, level: depth(per_second), filled: Instant::START }
    }

    /// Takes `count` tokens, if any are left.
    pub(super) fn take(&mut self, count: usize, now: Instant) -> bool {
        let elapsed = now.since(self.filled).as_micros().min(REFILL_US_MAX) as i64;
        self.filled = now;
        let filled = self.level.saturating_add(elapsed * i64::from(self.per_second));
        self.level = filled.min(depth(self.per_second));
        if self.level <= 0 {
            return false;
        }
        self.level = self.level.saturating_sub(count as i64 * TOKEN);
        true
    }
}

fn depth(per_second: u32) -> i64 {
    // At least one token, unless the rate is zero.
    (i64::from(per_second) * DEPTH_US).max(if per_second == 0 { 0 } else { TOKEN })
}

/// The depth is the tokens of a tenth of a second.
const DEPTH_US: i64 = 100_000;
/// Longer pauses add no more tokens: an hour pays any debt of one packet.
const REFILL_US_MAX: u128 = 3_600_000_000;
/// One token in units of the level.
const TOKEN: i64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;

    /// Over any period, no more passes than depth plus rate, plus one request whose debt is paid
    /// later, and no less than the rate once the depth is used up.
    #[test]
    fn a_rate_is_kept() {
        for (per_second, size) in [(1, 1), (10, 1), (1000, 1), (1000, 45), (100_000, 128)] {
            let mut bucket = Bucket::new(per_second);
            let (mut now, mut passed) = (Instant::START, 0u64);
            for _ in 0..200_000 {
                now += Duration::from_micros(50);
                passed += if bucket.take(size, now) { size as u64 } else { 0 };
            }
            let due = u64::from(per_second) * 10;
            let depth = (u64::from(per_second) / 10).max(1);
            let offered = 200_000 * size as u64;
            assert!(passed <= due + depth + size as u64, "{per_second}: {passed}");
            assert!(passed >= due.min(offered), "{per_second}: {passed}");
        }
        assert!(!Bucket::new(0).take(1, Instant::from_micros(1_000_000)), "nothing may pass");
    }
}
