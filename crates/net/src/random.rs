//! Unpredictable numbers: a keyed hash of a counter.
//!
//! The key is derived from a secret of the owner, so that a simulation with a fixed secret is
//! repeatable.

use core::hash::Hasher;
use siphasher::sip::SipHasher13;

/// A sequence of unpredictable numbers.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    key: [u64; 2],
    count: u64,
}

impl Random {
    /// The sequence with this key.
    pub(crate) fn new(key: [u64; 2]) -> Self {
        Self { key, count: 0 }
    }

    /// The next number below `bound`, which must not be zero. Its bias is less than `bound` in
    /// 2^32.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        self.count = self.count.wrapping_add(1);
        let mut hasher = SipHasher13::new_with_keys(self.key[0], self.key[1]);
        hasher.write_u64(self.count);
        let number = hasher.finish() & u64::from(u32::MAX);
        ((number * u64::from(bound)) >> 32) as u32
    }
}
