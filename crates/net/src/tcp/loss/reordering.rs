//! How far the path reorders segments (RFC 8985 §6.2 step 3; the threshold of RFC 5681 §3.2).

use crate::tcp::seq::Seq;

/// Largest degree of reordering that is assumed (`tcp_max_reordering`).
pub(super) const REORDERING_MAX: u32 = 300;

/// The degree of reordering.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reordering {
    /// Segments that are tolerated before loss is assumed (DupThresh of RFC 6675 §2).
    degree: u32,
    /// How often reordering was seen on this connection.
    seen: u32,
}

impl Reordering {
    /// Reordering up to `degree` segments is assumed.
    pub(super) fn new(degree: u32) -> Self {
        Self { degree, seen: 0 }
    }

    /// Notes that data at `low`, which was sent once, arrived after data before `highest`.
    pub(super) fn note(&mut self, low: Seq, highest: Seq, mss: u32) {
        if low.before(highest) {
            let degree = (highest - low).div_ceil(mss).min(REORDERING_MAX);
            self.degree = self.degree.max(degree);
            self.seen += 1;
        }
    }

    /// Notes duplicate ACKs that only reordering of `degree` segments explains. Few of them show no
    /// less reordering than was assumed: the threshold stays (RFC 5681 §3.2).
    pub(super) fn note_degree(&mut self, degree: u32) {
        self.degree = self.degree.max(degree.min(REORDERING_MAX));
        self.seen += 1;
    }

    /// Lowers the degree to `usual`: it was overestimated.
    pub(super) fn lower(&mut self, usual: u32) {
        self.degree = self.degree.min(usual);
    }

    /// Segments that are tolerated before loss is assumed.
    pub(super) fn degree(&self) -> u32 {
        self.degree
    }

    /// How often reordering was seen.
    pub(super) fn seen(&self) -> u32 {
        self.seen
    }

    /// True if reordering was ever seen.
    pub(super) fn was_seen(&self) -> bool {
        self.seen > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_degree_is_the_largest_distance_in_segments() {
        let mut seen = Reordering::new(3);
        seen.note(Seq(500), Seq(500), 1000);
        assert!(!seen.was_seen(), "in order");
        seen.note(Seq(0), Seq(5500), 1000);
        seen.note(Seq(0), Seq(2000), 1000);
        assert_eq!((seen.degree(), seen.seen()), (6, 2));
        seen.note_degree(1);
        assert_eq!((seen.degree(), seen.seen()), (6, 3));
        seen.note_degree(1 << 20);
        assert_eq!(seen.degree(), REORDERING_MAX);
        seen.lower(3);
        assert_eq!(seen.degree(), 3);
    }
}
