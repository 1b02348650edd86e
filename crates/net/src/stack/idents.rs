//! Identification fields: of all IPv4 packets, and of fragmented IPv6 packets.
//!
//! # Theory of operation
//!
//! Each pair of addresses has its own counter, which starts at a number given by a keyed hash of
//! the pair (RFC 7739 §5.3, RFC 6864 §4). So one destination learns nothing about traffic with
//! another, and an attacker off the path cannot guess the next number. The counters are in a table
//! of [`COUNTERS`], indexed by the same hash; pairs that share a counter only skip numbers.
//!
//! A fragment that an ICMP error quotes is accepted if its identification is one of the last
//! [`RECENT`] of its pair.

use alloc::boxed::Box;
use core::hash::Hasher;
use core::net::{IpAddr, Ipv4Addr};
use siphasher::sip::SipHasher13;

/// Number of counters: 4 KiB. Pairs of addresses share them by hash.
const COUNTERS: usize = 1024;
/// Recent identifications that an ICMP error about a fragment may quote: one second at 4096
/// fragmented datagrams per second. A guess must hit one of 4096 in 2^32.
const RECENT: u32 = 4096;

/// All counters of a stack.
pub(super) struct Idents {
    key: [u64; 2],
    counters: Box<[u32; COUNTERS]>,
    /// Address pair of the last packet and its hash; consecutive packets often share it.
    last: ((IpAddr, IpAddr), u64),
}

impl Idents {
    pub(super) fn new(key: [u64; 2]) -> Self {
        let nobody = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let pair = (nobody, nobody);
        let counters = Box::new([0; COUNTERS]);
        Self { key, counters, last: (pair, hash(key, pair)) }
    }

    /// Reserves `count` identifications for packets between these addresses; returns the first.
    pub(super) fn take(&mut self, pair: (IpAddr, IpAddr), count: u32) -> u32 {
        if self.last.0 != pair {
            self.last = (pair, hash(self.key, pair));
        }
        let (index, offset) = place(self.last.1);
        let counter = &mut self.counters[index];
        let first = offset.wrapping_add(*counter);
        *counter = counter.wrapping_add(count);
        first
    }

    /// True if `ident` was used recently for packets between these addresses.
    pub(super) fn was_taken(&self, pair: (IpAddr, IpAddr), ident: u32) -> bool {
        let (index, offset) = place(hash(self.key, pair));
        let used = self.counters[index];
        let age = offset.wrapping_add(used).wrapping_sub(ident);
        // Numbers that the counter has not reached since its start were never sent.
        (1..=RECENT.min(used)).contains(&age)
    }
}

fn hash(key: [u64; 2], pair: (IpAddr, IpAddr)) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(key[0], key[1]);
    for address in [pair.0, pair.1] {
        match address {
            IpAddr::V4(v4) => hasher.write_u32(v4.to_bits()),
            IpAddr::V6(v6) => hasher.write(&v6.octets()),
        }
    }
    hasher.finish()
}

/// Index of the counter, and the pair's start number.
fn place(hash: u64) -> (usize, u32) {
    ((hash >> 32) as usize % COUNTERS, hash as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv6Addr;

    fn pair(last: u16) -> (IpAddr, IpAddr) {
        let at = |last| IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last));
        (at(1), at(last))
    }

    #[test]
    fn pairs_count_for_themselves() {
        let mut idents = Idents::new([3, 4]);
        let first = idents.take(pair(2), 1);
        let other = idents.take(pair(3), 5);
        assert_ne!(first, 0);
        assert!(other.abs_diff(first) > 1000, "far apart");
        assert_eq!(idents.take(pair(2), 1), first.wrapping_add(1));
        assert_eq!(idents.take(pair(3), 1), other.wrapping_add(5));
        assert_ne!(Idents::new([3, 5]).take(pair(2), 1), first, "start depends on the secret");
    }

    #[test]
    fn only_what_was_taken_lately_was_taken() {
        let mut idents = Idents::new([3, 4]);
        let first = idents.take(pair(2), 1);
        assert!(idents.was_taken(pair(2), first));
        for wrong in [first.wrapping_add(1), first.wrapping_sub(1), 0] {
            assert!(!idents.was_taken(pair(2), wrong));
        }
        assert!(!idents.was_taken(pair(3), first));
        idents.take(pair(2), RECENT);
        assert!(!idents.was_taken(pair(2), first), "long ago");
    }
}
