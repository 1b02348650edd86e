//! Seeded worlds: two stacks, faulty links and applications, whose invariants are checked all the
//! time.
//!
//! `TOWPATH_SEED=<seed> cargo test -p towpath-sim` replays a seed that failed, `TOWPATH_TRACE=1`
//! prints each frame of it, `TOWPATH_SEEDS=<count>` tries that many new ones, and
//! `TOWPATH_PACKETS=<count>` tries new ones until the links were given that many packets.

use std::sync::Mutex;
use std::thread;
use towpath_sim::scenario::{Faults, Scenario};
use towpath_sim::seed;

/// Seeds of every run, for each kind of faults.
const SEEDS: u64 = 10;
/// Seeds that failed once.
const FOUND: [(Faults, u64); 9] = [
    (Faults::None, 0x77c9_bb69_dc8b_ac33),
    (Faults::None, 0x81cc_a0e0_6501_35ea),
    (Faults::All, 0xd699_6612_1f7d_8658),
    (Faults::BurstLoss, 0x7b46_dd69_3a9f_39a4),
    (Faults::All, 0x06db_2c42_7e84_01a7),
    (Faults::None, 0xf80a_f387_c777_ddd0),
    (Faults::None, 0x4ca1_60a8_8d48_5101),
    (Faults::Narrow, 0x4193_4aad_d25b_34c9),
    (Faults::Narrow, 0x51a1_c541_78dc_786c),
];

/// Runs one world; returns the number of packets that its links were given: on a wire,
/// super-packets count as their segments.
fn run_one(faults: Faults, seed: u64) -> u64 {
    let packets = std::panic::catch_unwind(|| {
        let mut scenario = Scenario::draw(seed, faults);
        scenario.world.seed = seed;
        let world = scenario.run();
        world.links.iter().map(|link| link.counters().offered).sum()
    });
    packets.unwrap_or_else(|_| panic!("{faults:?} failed; again with TOWPATH_SEED={seed:#x}"))
}

fn run_all(faults: Faults) {
    let run = |seed: u64| _ = run_one(faults, seed);
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

/// Packets of the test below in every run.
const PACKETS: u64 = 20_000;

/// Goal: so many packets pass all oracles, that of liveness included. Method: a thread for each
/// processor runs worlds of new seeds, with all kinds of faults in turn.
#[test]
fn many_packets() {
    let most = std::env::var("TOWPATH_PACKETS").ok().and_then(|count| count.parse().ok());
    let (most, done) = (most.unwrap_or(PACKETS), Mutex::new((0, 0)));
    let work = || {
        for faults in Faults::ALL.into_iter().cycle() {
            let packets = run_one(faults, seed::fresh());
            let mut done = done.lock().expect("no other thread failed");
            done.0 += packets;
            done.1 += 1;
            if done.0 >= most {
                return;
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let (packets, worlds) = *done.lock().expect("no thread failed");
    println!("{packets} packets in {worlds} worlds");
}
