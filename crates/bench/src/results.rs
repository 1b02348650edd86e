//! Figures of all rounds, and their summaries.

use super::cases::{Better, Case};

/// The results of a benchmark.
#[derive(Debug)]
pub(super) struct Results {
    /// Its name on the command line.
    pub(super) bench: &'static str,
    /// Lines about the circumstances.
    pub(super) circumstances: Vec<String>,
    pub(super) series: Vec<Series>,
}

/// The figures of a case.
#[derive(Debug)]
pub(super) struct Series {
    pub(super) case: &'static Case,
    /// By system, towpath first.
    pub(super) systems: Vec<System>,
}

/// The figures of one system.
#[derive(Clone, Debug)]
pub(super) struct System {
    pub(super) name: String,
    /// By round; `None` where it could not be measured.
    pub(super) rounds: Vec<Option<f64>>,
}

/// A summary of figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
    /// The number of figures.
    pub(super) count: usize,
}

impl Spread {
    /// `None` if there are no figures.
    pub(super) fn of(figures: impl Iterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = figures.collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = |rank: usize| sorted[rank / 2];
        let median = f64::midpoint(middle(sorted.len() - 1), middle(sorted.len()));
        Some(Self { median, min, max, count: sorted.len() })
    }
}

impl System {
    pub(super) fn spread(&self) -> Option<Spread> {
        Spread::of(self.rounds.iter().copied().flatten())
    }
}

impl Series {
    pub(super) fn towpath(&self) -> &System {
        &self.systems[0]
    }

    /// The peers that have at least one figure.
    pub(super) fn peers(&self) -> impl Iterator<Item = &System> {
        self.systems[1..].iter().filter(|system| system.spread().is_some())
    }

    /// Median of the per-round ratios; above 1, towpath is better. `None` if a zero makes the ratio
    /// meaningless.
    pub(super) fn ratio(&self, peer: &System) -> Option<f64> {
        self.ratios(peer).map(|ratios| ratios.median)
    }

    /// The per-round ratios, of which [`ratio`](Self::ratio) is the median.
    pub(super) fn ratios(&self, peer: &System) -> Option<Spread> {
        let pairs = self.towpath().rounds.iter().zip(&peer.rounds);
        let ratios = pairs.filter_map(|(value, other)| match self.case.better {
            Better::High => Some((*value)? / (*other)?),
            Better::Low => Some((*other)? / (*value)?),
        });
        Spread::of(ratios.filter(|ratio| ratio.is_finite()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(better: Better, towpath: &[Option<f64>], peer: &[Option<f64>]) -> Series {
        let case = Box::leak(Box::new(Case { name: "case".into(), unit: "u", better }));
        let system =
            |name: &str, rounds: &[_]| System { name: name.into(), rounds: rounds.to_vec() };
        Series { case, systems: vec![system("towpath", towpath), system("peer", peer)] }
    }

    #[test]
    fn spreads() {
        let spread = Spread::of([3.0, 1.0, 2.0].into_iter()).unwrap();
        assert_eq!(spread, Spread { median: 2.0, min: 1.0, max: 3.0, count: 3 });
        assert_eq!(Spread::of([1.0, 2.0, 4.0, 9.0].into_iter()).unwrap().median, 3.0);
        assert_eq!(Spread::of([7.0].into_iter()).unwrap().median, 7.0);
        assert_eq!(Spread::of(std::iter::empty()), None);
    }

    #[test]
    fn a_ratio_is_the_median_of_pairs_and_above_one_when_towpath_is_better() {
        let towpath = [Some(10.0), Some(20.0), Some(30.0), None];
        let peer = [Some(5.0), Some(5.0), Some(5.0), Some(1.0)];
        let high = series(Better::High, &towpath, &peer);
        assert_eq!(high.ratio(&high.systems[1]), Some(4.0));
        let low = series(Better::Low, &towpath, &peer);
        assert_eq!(low.ratio(&low.systems[1]), Some(0.25));
    }

    #[test]
    fn zeros_and_gaps_make_no_ratio() {
        let zero = series(Better::High, &[Some(1.0)], &[Some(0.0)]);
        assert_eq!(zero.ratio(&zero.systems[1]), None);
        let gap = series(Better::High, &[Some(1.0), None], &[None, Some(1.0)]);
        assert_eq!(gap.ratio(&gap.systems[1]), None);
        assert_eq!(gap.peers().count(), 1);
        let absent = series(Better::High, &[Some(1.0)], &[None]);
        assert_eq!(absent.peers().count(), 0);
    }
}
