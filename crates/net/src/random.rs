//! Unpredictable values. All of a stack come from one secret, each kind under a key of its own, so
//! that values an attacker sees say nothing about values of another kind. A simulation with a fixed
//! secret is repeatable.

use core::hash::{Hash, Hasher};
use foldhash::fast::FixedState;
use siphasher::sip::{SipHasher13, SipHasher24};

/// What a key is for. Each purpose has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Link-layer address of a host that has none configured.
    StationAddress,
    /// Initial sequence numbers and timestamp offsets (RFC 6528 §3, RFC 7323 §5.4).
    SequenceNumbers,
    /// Numbers of SYN-ACKs whose request is not kept (RFC 4987 §3.6).
    SynCookies,
    /// Limit of challenge ACKs (RFC 5961 §7).
    ChallengeLimit,
    /// Ports of sockets that connect (RFC 6056 §3.3.4).
    ConnectPorts,
    /// Ports of sockets that bind to port 0 (RFC 6056 §3.3.1).
    BindPorts,
    /// Identifications of IPv4 packets and of fragments (RFC 6864, RFC 7739).
    Identifications,
    /// Gaps between identifications.
    IdentificationGaps,
    /// Flow labels of IPv6 packets (RFC 6437).
    FlowLabels,
    /// Limits of ICMP errors.
    IcmpErrors,
    /// Delays of reports of group membership (RFC 3376 §5, RFC 3810 §6).
    ReportDelays,
    /// Places in the neighbour cache, and times for which neighbours are reachable.
    Neighbors,
    /// Delays of probes for local addresses (RFC 4862, RFC 5227).
    AddressDetection,
    /// Sockets of a `SO_REUSEPORT` group.
    ReusePort,
    /// Hash tables.
    ConnectionTable,
    TimeWaitTable,
    ListenerTable,
    PeerTable,
    PathTable,
    SocketListenerTable,
    PortTable,
    DatagramPortTable,
    DatagramFlowTable,
    CoalescerTable,
    /// Limits of resets.
    ResetLimit,
}

/// The secret of a stack. It is never used itself, only keys derived from it.
#[derive(Clone, Copy)]
pub(crate) struct Secret([u64; 2]);

impl Secret {
    pub(crate) fn new(secret: [u64; 2]) -> Self {
        Self(secret)
    }

    /// The key for a purpose.
    pub(crate) fn key(&self, purpose: Purpose) -> [u64; 2] {
        let half = |index: u8| {
            let mut hasher = SipHasher24::new_with_keys(self.0[0], self.0[1]);
            hasher.write(&[purpose as u8, index]);
            hasher.finish()
        };
        [half(0), half(1)]
    }

    /// The hasher of a table.
    pub(crate) fn table(&self, table: Purpose) -> FixedState {
        FixedState::with_seed(self.key(table)[0])
    }
}

/// Hash of a value, unpredictable without the key.
pub(crate) fn keyed_hash(key: [u64; 2], value: impl Hash) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(key[0], key[1]);
    value.hash(&mut hasher);
    hasher.finish()
}

/// A sequence of unpredictable numbers: the keyed hash of a counter.
#[derive(Clone)]
pub(crate) struct Random {
    key: [u64; 2],
    count: u64,
}

impl Random {
    /// The sequence with this key.
    pub(crate) fn new(key: [u64; 2]) -> Self {
        Self { key, count: 0 }
    }

    /// The next number.
    pub(crate) fn number(&mut self) -> u64 {
        self.count = self.count.wrapping_add(1);
        keyed_hash(self.key, self.count)
    }

    /// The next number below `bound`, which must not be zero. Its bias is less than `bound` in
    /// 2^32.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        let number = self.number() & u64::from(u32::MAX);
        ((number * u64::from(bound)) >> 32) as u32
    }
}

/// A permutation of all numbers of 2 * `HALF` bits: counting through it visits each number once, in
/// an order that cannot be guessed without the key. A Feistel network of four rounds.
///
/// It is no strong cipher, and need not be: give each peer that sees its numbers a key of its own.
#[derive(Clone, Copy)]
pub(crate) struct Permutation<const HALF: u32> {
    key: u64,
}

impl<const HALF: u32> Permutation<HALF> {
    const MASK: u32 = (1 << HALF) - 1;

    pub(crate) fn new(key: u64) -> Self {
        Self { key }
    }

    /// The number at this index. Bits of the index above the width are ignored.
    pub(crate) fn at(&self, index: u32) -> u32 {
        let (mut left, mut right) = (index >> HALF & Self::MASK, index & Self::MASK);
        for round in 0..ROUNDS {
            (left, right) = (right, left ^ self.mix(right, round));
        }
        left << HALF | right
    }

    /// The index of a number.
    pub(crate) fn index_of(&self, number: u32) -> u32 {
        let (mut left, mut right) = (number >> HALF & Self::MASK, number & Self::MASK);
        for round in (0..ROUNDS).rev() {
            (left, right) = (right ^ self.mix(left, round), left);
        }
        left << HALF | right
    }

    /// The round function: any function of its arguments makes a permutation.
    fn mix(&self, half: u32, round: u32) -> u32 {
        let key = self.key.rotate_right(round * 16);
        let mut mixed = (u64::from(half) ^ key).wrapping_mul(GOLDEN);
        mixed ^= mixed >> 29;
        (mixed.wrapping_mul(GOLDEN) >> 32) as u32 & Self::MASK
    }
}

/// Rounds of a [`Permutation`]: four make a strong pseudo-random permutation from a pseudo-random
/// function.
const ROUNDS: u32 = 4;
/// An odd multiplier with irregular bits: 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    /// Goal: no two purposes share a key, and keys depend on the whole secret.
    #[test]
    fn each_purpose_has_its_own_key() {
        let mut keys = Vec::new();
        for secret in [[1, 2], [1, 3], [2, 2]] {
            for purpose in 0..=Purpose::CoalescerTable as u8 {
                // Purposes are numbered without gaps.
                let mut hasher = SipHasher24::new_with_keys(secret[0], secret[1]);
                hasher.write(&[purpose, 0]);
                keys.push(hasher.finish());
            }
        }
        let key = Secret::new([1, 2]).key(Purpose::StationAddress);
        assert_eq!(key[0], keys[0]);
        assert_ne!(key[0], key[1]);
        let count = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), count);
    }

    #[test]
    fn numbers_are_below_their_bound_and_spread() {
        let mut random = Random::new(Secret::new([1, 2]).key(Purpose::IcmpErrors));
        let mut counts = [0; 10];
        for _ in 0..10_000 {
            counts[random.below(10) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
        assert_eq!(random.below(1), 0);
    }

    /// Goal: every number appears once, its index is found again, and neighbours are far apart as
    /// often as in a random order.
    #[test]
    fn permutations_visit_each_number_once() {
        for key in 0..8 {
            let permutation = Permutation::<8>::new(Random::keyed(key));
            let mut seen = vec![false; 1 << 16];
            let mut near = 0;
            for index in 0..1 << 16 {
                let number = permutation.at(index);
                assert!(!core::mem::replace(&mut seen[number as usize], true), "{number}");
                assert_eq!(permutation.index_of(number), index);
                near += u32::from(number.abs_diff(permutation.at(index + 1)) < 64);
            }
            // 127 in 65,536 pairs are that near by chance.
            assert!((64..256).contains(&near), "{near}");
        }
        let wide = Permutation::<16>::new(Random::keyed(1));
        for index in [0, 1, 2, 0xffff, 0x1_0000, u32::MAX] {
            assert_eq!(wide.index_of(wide.at(index)), index);
        }
        assert_ne!(wide.at(0), Permutation::<16>::new(Random::keyed(2)).at(0));
    }

    impl Random {
        fn keyed(secret: u64) -> u64 {
            Self::new(Secret::new([secret, 0]).key(Purpose::ConnectPorts)).number()
        }
    }
}
