//! Random numbers from a seed. Each world has one generator; the order of draws is part of the
//! meaning of a seed.

use std::panic::{RefUnwindSafe, catch_unwind};

use towpath_net::time::Duration;

/// Parts per million.
pub type Ppm = u32;

/// SplitMix64 (Steele, Lea, Flood 2014): small, fast and good enough for simulated faults.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// The generator for `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Draws the next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, which must not be zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        assert!(limit > 0);
        // The bias is below 2^-32 for every limit used here.
        self.draw() % limit
    }

    /// A number from `low` to `high`, inclusive.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high);
        low + self.below(high - low + 1)
    }

    /// True with a probability of `chance` parts per million.
    pub fn chance(&mut self, chance: Ppm) -> bool {
        chance > 0 && self.below(1_000_000) < u64::from(chance)
    }

    /// One of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// A duration from zero to `most`.
    pub fn duration(&mut self, most: Duration) -> Duration {
        Duration::from_micros(self.between(0, most.as_micros() as u64))
    }
}

/// The seed in `TOWPATH_SEED`, in decimal or with `0x`.
///
/// # Panics
/// If it is set and not a number: a run meant as a replay must not do something else.
pub fn from_environment() -> Option<u64> {
    from_variable("TOWPATH_SEED")
}

/// A seed that differs in each run, unless `TOWPATH_FRESH_SEED` sets it.
///
/// # Panics
/// If the variable is not a number.
pub fn fresh() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    from_variable("TOWPATH_FRESH_SEED")
        .unwrap_or_else(|| std::collections::hash_map::RandomState::new().build_hasher().finish())
}

/// Calls `run` with the seeds from 0 to `count` and a fresh one, or with that of the environment
/// alone. A failure names its seed.
///
/// # Panics
/// If `run` returns 0 for all seeds from 0 on: what it counts has never happened.
pub fn each(count: u64, run: impl Fn(u64) -> u64 + RefUnwindSafe) {
    let one = |seed| {
        let ran = catch_unwind(|| run(seed));
        ran.unwrap_or_else(|_| panic!("failed; again with TOWPATH_SEED={seed:#x}"))
    };
    if let Some(seed) = from_environment() {
        one(seed);
        return;
    }
    let counted: u64 = (0..count).map(one).sum();
    assert!(counted > 0, "it never happened");
    one(fresh());
}

fn from_variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let seed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    Some(seed.unwrap_or_else(|error| panic!("{name} is '{text}': {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_again() {
        let (mut one, mut two) = (Rng::new(7), Rng::new(7));
        assert!((0..1000).all(|_| one.draw() == two.draw()));
        assert_ne!(Rng::new(7).draw(), Rng::new(8).draw());
    }

    #[test]
    fn chances_come_out_about_right() {
        let mut rng = Rng::new(1);
        let hits = (0..100_000).filter(|_| rng.chance(250_000)).count();
        assert!((24_000..26_000).contains(&hits), "{hits} of 25,000");
    }
}
