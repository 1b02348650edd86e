//! Hours of small networks in virtual time; see [`towpath_sim::hours`].
//!
//! `TOWPATH_SEED=<seed> cargo test -p towpath-sim --test hours` replays a seed that failed,
//! `TOWPATH_SEEDS=<count>` tries that many new ones.

use towpath_net::time::Instant;
use towpath_sim::hours::{BUSY, Hours};
use towpath_sim::seed;

/// Seeds of every run: the first numbers, and one that found a request whose client has no address.
const SEEDS: u64 = 10;
const FOUND: [u64; 1] = [0x32f3_13dd_d488_b232];

fn run(seed: u64) {
    println!("seed {seed:#x}");
    let lan = Hours::draw(seed).run();
    assert!(lan.now() >= Instant::START + BUSY, "hours pass");
    let frames: u64 = lan.ports.iter().map(|port| port.up.counters().offered).sum();
    assert!(frames > 10_000, "{frames} frames are no traffic");
}

fn replay_or(run_seeds: impl FnOnce()) {
    match seed::from_environment() {
        Some(seed) => run(seed),
        None => run_seeds(),
    }
}

#[test]
fn fixed_seeds() {
    replay_or(|| (0..SEEDS).chain(FOUND).for_each(run));
}

/// One new seed, or as many as requested.
#[test]
fn fresh_seeds() {
    let count = std::env::var("TOWPATH_SEEDS").ok().and_then(|count| count.parse().ok());
    replay_or(|| (0..count.unwrap_or(1)).for_each(|_: u64| run(seed::fresh())));
}
