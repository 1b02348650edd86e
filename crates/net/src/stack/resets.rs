//! Limit on the resets that answer segments, for each port of a switch (`Packet::ingress`).
//!
//! A reset costs more than the segment that it answers: a packet is built, and over a TAP device
//! written by a system call of its own. So without a limit, a guest that sends segments of no
//! connection takes time from other guests of the same stack. RFC 9293 §3.10.7.1 knows no limit;
//! BSD systems have one for the whole host, Linux has none. A peer whose segment was not answered
//! sends it again, and learns then that the connection is gone.
//!
//! A budget that all share would be a side channel, as of challenge ACKs
//! ([`challenges`](super::challenges)). Here each port has its own, which is a different number
//! each second, so that a station cannot count what another one behind the same port was sent.
//! Without a switch there is no other guest, and no limit.

use crate::random::keyed_hash;
use crate::time::Instant;
use alloc::vec::Vec;

/// Fewest resets per second to a port: what a guest needs at once whose gateway has lost 4,096 of
/// its connections.
const PORT_RESETS_MIN: u16 = 4096;
/// Most resets per second to a port: over TAP, 1.7 % of a thread.
const PORT_RESETS_MAX: u16 = 2 * PORT_RESETS_MIN - 1;

/// The budgets of all ports.
pub(super) struct Resets {
    key: [u64; 2],
    /// By the numbers of the ports.
    budgets: Vec<Budget>,
}

/// What is left to a port in a second.
#[derive(Clone, Copy, Default)]
struct Budget {
    second: Option<u64>,
    left: u16,
}

impl Resets {
    /// Nothing used yet; `key` determines the random numbers.
    pub(super) fn new(key: [u64; 2]) -> Self {
        Self { key, budgets: Vec::new() }
    }

    /// True if a segment that entered by this port may be answered with a reset now; if so, it is
    /// counted.
    pub(super) fn allow(&mut self, port: Option<u16>, now: Instant) -> bool {
        let Some(port) = port else { return true };
        let index = usize::from(port);
        if self.budgets.len() <= index {
            self.budgets.resize(index + 1, Budget::default());
        }
        let budget = &mut self.budgets[index];
        let second = now.micros() / 1_000_000;
        if budget.second != Some(second) {
            let drawn = keyed_hash(self.key, (second, port))
                % u64::from(PORT_RESETS_MAX - PORT_RESETS_MIN + 1);
            *budget = Budget { second: Some(second), left: PORT_RESETS_MIN + drawn as u16 };
        }
        let allowed = budget.left > 0;
        budget.left = budget.left.saturating_sub(1);
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;

    fn flood(resets: &mut Resets, port: Option<u16>, second: u64) -> u16 {
        let now = Instant::START + Duration::from_secs(second);
        (0..2 * PORT_RESETS_MAX).map(|_| u16::from(resets.allow(port, now))).sum()
    }

    /// Goal: a port that uses up its budget takes nothing from another, and has a new one in the
    /// next second. Budgets differ, and depend on the secret.
    #[test]
    fn each_port_has_a_budget_of_its_own() {
        let mut resets = Resets::new([1, 2]);
        let mut counts = Vec::new();
        for second in 0..10 {
            for port in [0, 3, 1] {
                let count = flood(&mut resets, Some(port), second);
                assert!((PORT_RESETS_MIN..=PORT_RESETS_MAX).contains(&count), "{count}");
                assert_eq!(flood(&mut resets, Some(port), second), 0, "used up");
                counts.push(count);
            }
        }
        counts.sort_unstable();
        counts.dedup();
        assert!(counts.len() > 20, "{counts:?}");
        assert_ne!(
            flood(&mut Resets::new([3, 2]), Some(0), 0),
            flood(&mut Resets::new([1, 2]), Some(0), 0)
        );
    }

    #[test]
    fn without_a_switch_there_is_no_limit() {
        let mut resets = Resets::new([1, 2]);
        assert_eq!(flood(&mut resets, None, 0), 2 * PORT_RESETS_MAX);
    }
}
