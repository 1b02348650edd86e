//! Rate limit of ICMP errors (RFC 1812 §4.3.2.8, RFC 4443 §2.4 f).
//!
//! # Theory of operation
//!
//! A limit that all destinations share is a side channel: an attacker sends packets with a spoofed
//! source to ports that may be closed, then counts the errors that its own address still gets. So
//! there is no such limit. A destination has one of [`SHARES`] shares, and what others are sent
//! changes its errors only if they have the same share. Each second a keyed hash deals the shares
//! anew, so that no address keeps the share of another, and draws the number of errors of each, so
//! that an attacker with an address in every share cannot count what a victim got.
//!
//! Bound: the shares. Together they allow at most [`SHARES`] times [`ERRORS_MAX`] per second.

use crate::random::keyed_hash;
use crate::time::Instant;
use core::net::IpAddr;

/// Number of shares.
const SHARES: usize = 64;
/// Fewest errors per second in a share: a traceroute of 20 hops with three probes each.
const ERRORS_MIN: u8 = 64;
/// Most errors per second in a share.
const ERRORS_MAX: u8 = 2 * ERRORS_MIN - 1;

/// Rate limits of one stack.
pub(in crate::stack) struct RateLimit {
    key: [u64; 2],
    second: u64,
    /// Errors sent in this second.
    sent: [u8; SHARES],
}

impl RateLimit {
    pub(in crate::stack) fn new(key: [u64; 2]) -> Self {
        Self { key, second: 0, sent: [0; SHARES] }
    }

    /// True if an error may be sent to this destination; it is counted.
    pub(super) fn allow(&mut self, to: IpAddr, now: Instant) -> bool {
        let second = now.micros() / 1_000_000;
        if self.second != second {
            (self.second, self.sent) = (second, [0; SHARES]);
        }
        let share = keyed_hash(self.key, (second, to)) as usize % SHARES;
        let drawn = keyed_hash(self.key, (second, share)) % u64::from(ERRORS_MAX - ERRORS_MIN + 1);
        let sent = &mut self.sent[share];
        let allowed = *sent < ERRORS_MIN + drawn as u8;
        *sent += u8::from(allowed);
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;
    use alloc::vec::Vec;

    fn peer(number: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, number])
    }

    fn at(second: u64) -> Instant {
        Instant::START + Duration::from_secs(second)
    }

    fn flood(limit: &mut RateLimit, to: IpAddr, now: Instant) -> usize {
        (0..130).filter(|_| limit.allow(to, now)).count()
    }

    /// Goal: an attacker cannot learn from its own errors whether a victim was sent some. Method:
    /// the attacker floods after probes in the victim's name elicited 64 errors, or none. Its count
    /// is the same, except in the few seconds in which both have the same share, and it varies more
    /// from one second to the next.
    #[test]
    fn errors_do_not_tell_what_others_were_sent() {
        let seconds = 0..2000;
        let (attacker, victim) = (peer(1), peer(2));
        let worlds = [0, 64].map(|errors| {
            let mut limit = RateLimit::new([7, 8]);
            let counts = seconds.clone().map(|second| {
                (0..errors).for_each(|_| _ = limit.allow(victim, at(second)));
                flood(&mut limit, attacker, at(second))
            });
            counts.collect::<Vec<_>>()
        });
        let differ: Vec<_> =
            seconds.clone().filter(|&i| worlds[0][i as usize] != worlds[1][i as usize]).collect();
        assert!((5..100).contains(&differ.len()), "about 2000 / 64: {}", differ.len());
        assert!(differ.windows(2).all(|two| two[1] - two[0] < 400), "{differ:?}");
        let [quiet, busy] = worlds.map(|counts| counts.iter().sum::<usize>() / 2000);
        assert!(quiet.abs_diff(busy) <= 3 && (90..100).contains(&quiet), "{quiet} {busy}");
    }

    /// Goal: an attacker with an address in each share still cannot count what a victim got: the
    /// sum of all shares varies by more than one share's errors.
    #[test]
    fn the_sum_of_all_shares_is_random() {
        let mut limit = RateLimit::new([7, 8]);
        let sums: Vec<f64> = (0..50)
            .map(|second| {
                let count: usize =
                    (0..=255).map(|number| flood(&mut limit, peer(number), at(second))).sum();
                count as f64
            })
            .collect();
        let mean = sums.iter().sum::<f64>() / 50.0;
        let variance = sums.iter().map(|sum| (sum - mean) * (sum - mean)).sum::<f64>() / 50.0;
        assert!(variance > f64::from(ERRORS_MIN) * f64::from(ERRORS_MIN), "{variance}");
        assert!(sums.iter().all(|sum| *sum <= (SHARES * usize::from(ERRORS_MAX)) as f64));
    }

    /// Goal: each second a destination gets a number within the bounds, which another secret
    /// changes, and most destinations get theirs although one is flooded.
    #[test]
    fn one_destination_leaves_the_others_theirs() {
        let mut counts = Vec::new();
        for secret in 0..64 {
            let mut limit = RateLimit::new([secret, 7]);
            let count = flood(&mut limit, peer(1), at(5));
            assert!((usize::from(ERRORS_MIN)..=usize::from(ERRORS_MAX)).contains(&count));
            assert!(!limit.allow(peer(1), at(5)));
            assert!(limit.allow(peer(1), at(6)));
            counts.push(count);
            let others = (2..102).filter(|number| limit.allow(peer(*number), at(5))).count();
            assert!(others >= 90, "{others}");
        }
        counts.sort_unstable();
        counts.dedup();
        assert!(counts.len() > 20, "{counts:?}");
    }
}
