//! Rate limit of ICMP errors (RFC 1812 §4.3.2.8, RFC 4443 §2.4 f).
//!
//! # Theory of operation
//!
//! There is one bucket of [`BURST`] errors for all destinations, and one of [`PEER_BURST`] for
//! each. A shared bucket alone is a side channel: an attacker sends packets with a spoofed source
//! to ports that may be closed, then checks with its own address whether the bucket is empty. So
//! one destination cannot empty the shared bucket, and each error takes a random amount of it, one
//! on average, which cannot be counted from outside.
//!
//! Bound: [`PEERS`] buckets of destinations; destinations that share a bucket share its rate.

use crate::random::Random;
use crate::time::{Duration, Instant};
use core::hash::Hasher;
use core::net::IpAddr;
use siphasher::sip::SipHasher13;

/// Errors that may be sent in a burst (Linux's `icmp_msgs_burst`).
const BURST: u32 = 50;
/// Errors per second in the long run (Linux's `icmp_msgs_per_sec`).
const PER_SECOND: u32 = 1000;
/// Maximum that an error takes out of the shared bucket; the minimum is zero.
const COST_MAX: u32 = 2;
/// Burst for one destination: half of the shared one, so that errors to one destination never show
/// in errors to another.
const PEER_BURST: u32 = BURST / 2;
/// Errors per second for one destination.
const PEER_PER_SECOND: u32 = PER_SECOND / 2;
/// Number of destination buckets, indexed by a keyed hash: 4 KiB.
const PEERS: usize = 256;

/// A token bucket.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: u32,
    filled_at: Instant,
}

impl Bucket {
    const fn full(burst: u32) -> Self {
        Self { tokens: burst, filled_at: Instant::START }
    }

    fn fill(&mut self, burst: u32, per_second: u32, now: Instant) {
        let interval = Duration::from_micros(1_000_000 / u64::from(per_second));
        let earned = now.since(self.filled_at).as_micros() / interval.as_micros();
        let earned = u32::try_from(earned).unwrap_or(u32::MAX);
        self.tokens = self.tokens.saturating_add(earned).min(burst);
        self.filled_at += interval.saturating_mul(earned);
    }
}

/// Rate limits of one stack.
pub(in crate::stack) struct RateLimit {
    key: [u64; 2],
    random: Random,
    all: Bucket,
    peers: [Bucket; PEERS],
}

impl RateLimit {
    pub(in crate::stack) fn new(key: [u64; 2]) -> Self {
        let peers = [Bucket::full(PEER_BURST); PEERS];
        Self { key, random: Random::new(key), all: Bucket::full(BURST), peers }
    }

    /// True if an error may be sent to this destination; it is counted.
    pub(super) fn allow(&mut self, to: IpAddr, now: Instant) -> bool {
        let mut hasher = SipHasher13::new_with_keys(self.key[0], self.key[1]);
        match to {
            IpAddr::V4(v4) => hasher.write(&v4.octets()),
            IpAddr::V6(v6) => hasher.write(&v6.octets()),
        }
        let peer = &mut self.peers[hasher.finish() as usize % PEERS];
        peer.fill(PEER_BURST, PEER_PER_SECOND, now);
        self.all.fill(BURST, PER_SECOND, now);
        if peer.tokens == 0 || self.all.tokens < COST_MAX {
            return false;
        }
        peer.tokens -= 1;
        self.all.tokens -= self.random.below(COST_MAX + 1);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn peer(number: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, number])
    }

    fn now() -> Instant {
        Instant::from_micros(1_000_000)
    }

    /// Goal: the maximum that one destination is sent leaves errors for others.
    #[test]
    fn one_destination_leaves_the_others_their_share() {
        for secret in 0..64 {
            let mut limit = RateLimit::new([secret, 7]);
            let sent = (0..200).filter(|_| limit.allow(peer(1), now())).count();
            assert_eq!(sent, PEER_BURST as usize);
            assert!(limit.allow(peer(2), now()), "secret {secret}");
        }
    }

    /// Goal: the number of errors until the shared bucket is empty is unpredictable. Method: the
    /// same flood to many destinations under several secrets.
    #[test]
    fn how_much_is_left_for_all_is_random() {
        let mut counts: Vec<usize> = (0..32)
            .map(|secret| {
                let mut limit = RateLimit::new([secret, 7]);
                (0..200).filter(|number| limit.allow(peer(*number), now())).count()
            })
            .collect();
        counts.sort_unstable();
        assert!(counts[0] > 25 && counts[31] < 100, "{counts:?}");
        counts.dedup();
        assert!(counts.len() > 5, "{counts:?}");
    }

    /// Goal: at most 1000 errors per second in the long run in total, and half of that for one
    /// destination.
    #[test]
    fn the_long_run_is_bounded() {
        let mut limit = RateLimit::new([1, 2]);
        let (mut one, mut all) = (0, 0);
        for micros in (0..10_000_000).step_by(100) {
            let now = now() + Duration::from_micros(micros);
            one += u32::from(limit.allow(peer(1), now));
            all += u32::from(limit.allow(peer((micros / 100 % 200) as u8 + 2), now));
        }
        assert!((4900..=5025).contains(&one), "{one}");
        assert!((9000..=11_000).contains(&(one + all)), "{}", one + all);
    }
}
