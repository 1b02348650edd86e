//! Seeded worlds: two stacks, faulty links and applications, whose invariants are checked all the
//! time.
//!
//! `TOWPATH_SEED=<seed> cargo test -p towpath-sim` replays a seed that failed, `TOWPATH_TRACE=1`
//! prints each frame of it, `TOWPATH_SEEDS=<count>` tries that many new ones.

use towpath_sim::scenario::{Faults, Scenario};
use towpath_sim::seed;

/// Seeds of every run, for each kind of faults.
const SEEDS: u64 = 10;
/// Seeds that failed once.
const FOUND: [(Faults, u64); 1] = [(Faults::None, 0x77c9_bb69_dc8b_ac33)];

fn run_all(faults: Faults) {
    let run = |seed: u64| {
        let failed = std::panic::catch_unwind(|| {
            let mut scenario = Scenario::draw(seed, faults);
            scenario.world.seed = seed;
            scenario.run();
        });
        if failed.is_err() {
            panic!("{faults:?} failed; again with TOWPATH_SEED={seed:#x}");
        }
    };
    if let Some(seed) = seed::from_environment() {
        return run(seed);
    }
    let more = std::env::var("TOWPATH_SEEDS").ok().and_then(|count| count.parse().ok());
    match more {
        Some(count) => (0..count).for_each(|_: u64| run(seed::fresh())),
        None => (0..SEEDS).for_each(run),
    }
    FOUND.iter().filter(|found| found.0 == faults).for_each(|found| run(found.1));
    run(seed::fresh());
}

macro_rules! worlds {
    ($($name:ident: $faults:ident,)+) => {
        $(
            #[test]
            fn $name() {
                run_all(Faults::$faults);
            }
        )+
    };
}

worlds! {
    clean: None,
    loss: Loss,
    burst_loss: BurstLoss,
    reordering: Reordering,
    duplication: Duplication,
    corruption: Corruption,
    jitter: Jitter,
    narrow: Narrow,
    all_faults: All,
}
