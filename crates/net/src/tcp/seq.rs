//! Sequence numbers and their arithmetic modulo 2^32 (RFC 9293 §3.4). No other module does it.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

/// A sequence number. Ordered only against others less than 2^31 away.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Seq(pub u32);

impl Seq {
    /// True if `self` comes before `other`.
    pub fn before(self, other: Seq) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// True if `self` comes after `other`.
    pub fn after(self, other: Seq) -> bool {
        other.before(self)
    }

    /// True if `self` is at or before `other`.
    pub fn at_or_before(self, other: Seq) -> bool {
        !self.after(other)
    }

    /// True if `self` is at or after `other`.
    pub fn at_or_after(self, other: Seq) -> bool {
        !self.before(other)
    }

    /// The number `count` before this one.
    pub fn minus(self, count: u32) -> Seq {
        Seq(self.0.wrapping_sub(count))
    }

    /// Distance to `end`; zero if that is not later.
    pub fn up_to(self, end: Seq) -> u32 {
        if end.after(self) { end - self } else { 0 }
    }

    /// The earlier of two.
    pub fn min(self, other: Seq) -> Seq {
        if self.before(other) { self } else { other }
    }

    /// The later of two.
    pub fn max(self, other: Seq) -> Seq {
        if self.after(other) { self } else { other }
    }
}

impl Add<u32> for Seq {
    type Output = Seq;

    fn add(self, count: u32) -> Seq {
        Seq(self.0.wrapping_add(count))
    }
}

impl AddAssign<u32> for Seq {
    fn add_assign(&mut self, count: u32) {
        *self = *self + count;
    }
}

/// Distance from `earlier`, which must not be later.
impl Sub<Seq> for Seq {
    type Output = u32;

    fn sub(self, earlier: Seq) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }
}

impl fmt::Debug for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_survives_the_wrap() {
        let high = Seq(u32::MAX - 5);
        let low = high + 10;
        assert_eq!(low, Seq(4));
        assert!(high.before(low) && low.after(high) && !low.before(high));
        assert_eq!(low - high, 10);
        assert_eq!((high.min(low), high.max(low)), (high, low));
        assert!(high.at_or_before(high) && high.at_or_after(high));
    }
}
