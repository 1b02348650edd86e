//! Limit on the challenge ACKs of all connections per second (RFC 5961 §7).
//!
//! A budget shared by all connections is a side channel: an attacker who uses it up learns how much
//! others used, and so whether a guess about another connection was right (CVE-2016-5696). As in
//! Linux there is no limit by default. A configured limit is replaced each second by a random
//! number between half and one and a half times its value.

use crate::random::keyed_hash;
use crate::tcp::{CHALLENGES_UNLIMITED, Settings};
use crate::time::Instant;

/// Budget of the current second.
pub(super) struct Challenges {
    key: [u64; 2],
    second: Option<u64>,
    left: u64,
}

impl Challenges {
    /// Nothing used yet; `key` determines the random numbers.
    pub(super) fn new(key: [u64; 2]) -> Self {
        Self { key, second: None, left: 0 }
    }

    /// True if another challenge ACK may be sent now; if so, it is counted.
    pub(super) fn allow(&mut self, settings: &Settings, now: Instant) -> bool {
        let limit = u64::from(settings.challenge_ack_limit);
        if settings.challenge_ack_limit >= CHALLENGES_UNLIMITED {
            return true;
        }
        let second = now.micros() / 1_000_000;
        if self.second != Some(second) {
            self.second = Some(second);
            let random = keyed_hash(self.key, (second, limit)).checked_rem(limit).unwrap_or(0);
            self.left = limit.div_ceil(2) + random;
        }
        let allowed = self.left > 0;
        self.left = self.left.saturating_sub(1);
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;

    fn in_one_second(challenges: &mut Challenges, limit: u32, now: Instant) -> u32 {
        let settings = Settings { challenge_ack_limit: limit, ..Settings::default() };
        (0..1000).map(|_| u32::from(challenges.allow(&settings, now))).sum()
    }

    #[test]
    fn the_budget_of_a_second_is_unpredictable() {
        let mut counts = alloc::vec::Vec::new();
        for secret in 0..2 {
            let mut challenges = Challenges::new([secret, 0]);
            for second in 0..50 {
                let now = Instant::START + Duration::from_secs(second);
                let count = in_one_second(&mut challenges, 100, now);
                assert!((50..150).contains(&count), "{count}");
                assert_eq!(in_one_second(&mut challenges, 100, now), 0, "used up");
                counts.push(count);
            }
        }
        assert!(counts[..50] != counts[50..], "numbers depend on the secret");
        counts.sort_unstable();
        counts.dedup();
        assert!(counts.len() > 30, "{counts:?}");
    }

    #[test]
    fn nothing_and_everything_are_limits_too() {
        let mut challenges = Challenges::new([1, 0]);
        assert_eq!(in_one_second(&mut challenges, 0, Instant::START), 0);
        assert_eq!(in_one_second(&mut challenges, CHALLENGES_UNLIMITED, Instant::START), 1000);
        let next = Instant::START + Duration::from_secs(1);
        assert_eq!(in_one_second(&mut challenges, 1, next), 1);
    }
}
