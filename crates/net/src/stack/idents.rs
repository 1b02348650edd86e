//! Identification fields of IPv4 packets and of IPv6 fragments.
//!
//! # Theory of operation
//!
//! *Fragments* that the stack makes are identified by a permutation of all identifications: none
//! repeats before all others were used, and none can be guessed from others (RFC 6864 §4.3, RFC
//! 7739 §5). Each pair of addresses has a permutation of its own.
//!
//! *Whole packets* of IPv4 need no identification that is unique (RFC 6864 §4.1), but receivers
//! coalesce only packets with consecutive ones. So those of a pair count from a start given by a
//! keyed hash of the pair. Counters are in a table of [`COUNTERS`], indexed by the same hash, so
//! pairs share them. To blur for one pair how much another sends, a counter skips a random number,
//! below the milliseconds since it was last used.
//!
//! A fragment that an ICMP error quotes is accepted if its identification is one of the last
//! [`RECENT`] of its pair.

use crate::random::{Permutation, Purpose, Random, Secret, keyed_hash};
use crate::time::Instant;
use alloc::boxed::Box;
use core::net::{IpAddr, Ipv4Addr};

/// Number of counters: 12 KiB. Pairs of addresses share them by hash.
const COUNTERS: usize = 1024;
/// Recent identifications that an ICMP error about a fragment may quote: one second at 4096
/// fragmented datagrams per second. A guess must hit one of 4096 in 2^32.
const RECENT: u32 = 4096;

/// Source and destination of packets.
type Pair = (IpAddr, IpAddr);

#[derive(Clone, Copy)]
struct Counter {
    /// Whole packets, and skipped numbers.
    packets: u16,
    /// Milliseconds when `packets` was last used.
    used_at: u32,
    /// Fragmented datagrams.
    fragmented: u32,
}

/// All counters of a stack.
pub(super) struct Idents {
    key: [u64; 2],
    gaps: Random,
    counters: Box<[Counter; COUNTERS]>,
    /// Address pair of the last packet and its hash; consecutive packets often share it.
    last: (Pair, u64),
}

impl Idents {
    pub(super) fn new(secret: &Secret) -> Self {
        let key = secret.key(Purpose::Identifications);
        let gaps = Random::new(secret.key(Purpose::IdentificationGaps));
        let counter = Counter { packets: 0, used_at: 0, fragmented: 0 };
        let nobody = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let pair = (nobody, nobody);
        let last = (pair, keyed_hash(key, pair));
        Self { key, gaps, counters: Box::new([counter; COUNTERS]), last }
    }

    /// Reserves `count` consecutive identifications for whole IPv4 packets; returns the first.
    pub(super) fn take(&mut self, pair: Pair, count: u16, now: Instant) -> u16 {
        let hash = self.hash(pair);
        let counter = &mut self.counters[place(hash)];
        let millis = now.millis() as u32;
        let unused = millis.wrapping_sub(counter.used_at);
        if unused > 0 {
            counter.used_at = millis;
            let skipped = self.gaps.below(unused) as u16;
            counter.packets = counter.packets.wrapping_add(skipped);
        }
        let first = counter.packets;
        counter.packets = first.wrapping_add(count);
        first.wrapping_add(hash as u16)
    }

    /// Identification of the fragments of an IPv4 datagram.
    pub(super) fn fragmented_v4(&mut self, pair: Pair) -> u16 {
        let (hash, count) = self.fragmented(pair);
        Permutation::<8>::new(hash).at(count) as u16
    }

    /// Identification of the fragments of an IPv6 datagram.
    pub(super) fn fragmented_v6(&mut self, pair: Pair) -> u32 {
        let (hash, count) = self.fragmented(pair);
        Permutation::<16>::new(hash).at(count)
    }

    /// Counts a fragmented datagram. Returns the pair's hash, and the number of the datagram.
    fn fragmented(&mut self, pair: Pair) -> (u64, u32) {
        let hash = self.hash(pair);
        let count = &mut self.counters[place(hash)].fragmented;
        let number = *count;
        *count = number.wrapping_add(1);
        (hash, number)
    }

    /// True if `ident` was used recently for IPv6 fragments between these addresses.
    pub(super) fn was_taken(&self, pair: Pair, ident: u32) -> bool {
        let hash = keyed_hash(self.key, pair);
        let count = self.counters[place(hash)].fragmented;
        let age = count.wrapping_sub(Permutation::<16>::new(hash).index_of(ident));
        // Numbers that the counter has not reached since its start were never sent.
        (1..=RECENT.min(count)).contains(&age)
    }

    fn hash(&mut self, pair: Pair) -> u64 {
        if self.last.0 != pair {
            self.last = (pair, keyed_hash(self.key, pair));
        }
        self.last.1
    }
}

/// Index of a pair's counter.
fn place(hash: u64) -> usize {
    (hash >> 32) as usize % COUNTERS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;
    use alloc::vec;
    use alloc::vec::Vec;
    use core::net::Ipv6Addr;

    fn pair(last: u16) -> Pair {
        let at = |last| IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last));
        (at(1), at(last))
    }

    fn idents(secret: u64) -> Idents {
        Idents::new(&Secret::new([3, secret]))
    }

    fn at(millis: u64) -> Instant {
        Instant::START + Duration::from_millis(millis)
    }

    /// Goal: packets of one moment are consecutive; starts differ by pair and secret.
    #[test]
    fn pairs_count_for_themselves() {
        let mut idents = idents(4);
        let first = idents.take(pair(2), 1, at(0));
        let other = idents.take(pair(3), 5, at(0));
        assert!(other.abs_diff(first) > 100, "far apart");
        assert_eq!(idents.take(pair(2), 1, at(0)), first.wrapping_add(1));
        assert_eq!(idents.take(pair(3), 1, at(0)), other.wrapping_add(5));
        assert_ne!(super::tests::idents(5).take(pair(2), 1, at(0)), first);
    }

    /// Goal: a pair that shares a counter cannot count what the other sends. Method: one that
    /// probes every second sees the same spread of steps, whether the other sends or not.
    #[test]
    fn a_shared_counter_hides_what_another_sends() {
        let place_of = |idents: &Idents, pair| place(keyed_hash(idents.key, pair));
        let mut steps = [0_u32; 2];
        for (busy, steps) in steps.iter_mut().enumerate() {
            let mut idents = idents(4);
            let mine = place_of(&idents, pair(2));
            let shares = (3..).find(|last| place_of(&idents, pair(*last)) == mine).expect("one");
            let mut before = idents.take(pair(2), 1, at(0));
            for second in 1..=500 {
                if busy == 1 {
                    idents.take(pair(shares), 1, at(second * 1000 - 500));
                }
                let ident = idents.take(pair(2), 1, at(second * 1000));
                let step = ident.wrapping_sub(before);
                assert!((1..=1001).contains(&step), "{step}");
                (*steps, before) = (*steps + u32::from(step), ident);
            }
        }
        // One more packet in 500 on average, of a standard deviation of 13.
        assert!(steps[0].abs_diff(steps[1]) / 500 < 40, "{steps:?}");
    }

    /// RFC 6864, RFC 7739: no identification of a fragment repeats before all were used, or is
    /// near the one before more often than by chance. Another pair or secret has another order.
    #[test]
    fn fragments_are_unpredictable_and_do_not_repeat() {
        let mut idents = idents(4);
        let mut seen = vec![false; 1 << 16];
        let mut all = Vec::new();
        for _ in 0..1 << 16 {
            let ident = idents.fragmented_v4(pair(2));
            assert!(!core::mem::replace(&mut seen[usize::from(ident)], true), "{ident} repeats");
            all.push(ident);
        }
        let near = all.windows(2).filter(|two| two[0].abs_diff(two[1]) < 64).count();
        assert!((64..256).contains(&near), "{near}");
        let mut steps: Vec<u16> = all.windows(2).map(|two| two[1].wrapping_sub(two[0])).collect();
        steps.sort_unstable();
        steps.dedup();
        assert!(steps.len() > 1 << 15, "{} different steps", steps.len());
        let others: Vec<u16> = (0..100).map(|_| idents.fragmented_v4(pair(3))).collect();
        assert!(others.iter().zip(&all).filter(|(other, ident)| other == ident).count() < 5);
        let six: Vec<u32> = (0..1000).map(|_| idents.fragmented_v6(pair(5))).collect();
        let near = six.windows(2).filter(|two| two[0].abs_diff(two[1]) < 1 << 20).count();
        assert!(near < 10, "{near}");
    }

    #[test]
    fn only_what_was_taken_lately_was_taken() {
        let mut idents = idents(4);
        let first = idents.fragmented_v6(pair(2));
        assert!(idents.was_taken(pair(2), first));
        for wrong in [first.wrapping_add(1), first.wrapping_sub(1), 0, u32::MAX] {
            assert!(!idents.was_taken(pair(2), wrong));
        }
        assert!(!idents.was_taken(pair(3), first));
        let next = Permutation::<16>::new(idents.hash(pair(2))).at(1);
        assert!(!idents.was_taken(pair(2), next), "not sent yet");
        (0..RECENT).for_each(|_| _ = idents.fragmented_v6(pair(2)));
        assert!(idents.was_taken(pair(2), next));
        assert!(!idents.was_taken(pair(2), first), "long ago");
    }
}
