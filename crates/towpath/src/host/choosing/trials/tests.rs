//! Simulated costs in simulated time: compares the cost of choosing with that of the better way.

use super::*;
use std::cell::Cell;

/// A sender that runs as far ahead as it may. It pays a part of a loan's cost with its call; the
/// rest is paid when the network gets to it: before a copy, or when no more may be lent.
struct World {
    now: Cell<f64>,
    out: Cell<f64>,
    /// Nanoseconds that lent bytes will still cost.
    owed: Cell<f64>,
    random: Cell<u64>,
    /// Error of a measured time, as a fraction of a window.
    noise: f64,
    off: Cell<f64>,
    /// Nanoseconds that the process was stopped by others, and the fraction of time for which it
    /// is.
    stopped: Cell<f64>,
    stops: f64,
    /// Nanoseconds that a switch costs, and whether the last call lent.
    change: f64,
    lent: Cell<bool>,
    /// Cost of a loan relative to its long-run cost until [`FRESH_BYTES`] were lent since the last
    /// switch, and the bytes lent since then.
    fresh: f64,
    since_change: Cell<f64>,
}

impl World {
    fn new(seed: u64, noise: f64) -> Self {
        let zero = || Cell::new(0.0);
        let (now, out, owed, off) = (zero(), zero(), zero(), zero());
        let (random, stopped) = (Cell::new(seed), zero());
        let (lent, since_change) = (Cell::new(true), zero());
        let (stops, change, fresh) = (0.0, 0.0, 1.0);
        Self {
            now,
            out,
            owed,
            random,
            noise,
            off,
            stopped,
            stops,
            change,
            lent,
            fresh,
            since_change,
        }
    }

    /// Returns a number from -1 to 1 (splitmix64).
    fn random(&self) -> f64 {
        self.random.set(self.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let mut mixed = self.random.get();
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) as f64 / (u64::MAX / 2) as f64 - 1.0
    }

    /// Makes a call that costs `nanos` sooner or later. Returns what is paid now.
    fn call(&self, size: usize, lends: bool, nanos: f64) -> f64 {
        let (out, owed) = (self.out.get() + size as f64, self.owed.get());
        let since_change = if lends { self.since_change.get() + size as f64 } else { 0.0 };
        self.since_change.set(since_change);
        let is_fresh = lends && since_change < FRESH_BYTES;
        let nanos = if is_fresh { nanos * self.fresh } else { nanos };
        let (out, owed, paid) = match lends {
            true if out <= OUT_MAX => (out, owed + nanos * LATER, nanos * (1.0 - LATER)),
            true => (self.out.get(), owed, nanos),
            false => (0.0, 0.0, nanos + owed),
        };
        self.out.set(out);
        self.owed.set(owed);
        let paid = paid + if self.lent.replace(lends) == lends { 0.0 } else { self.change };
        let turns = |now: f64| (now / TURN_NANOS).floor();
        let (before, now) = (self.now.get(), self.now.get() + paid);
        self.now.set(now);
        if turns(now) > turns(before) {
            self.stopped.set(self.stopped.get() + TURN_NANOS * self.stops / (1.0 - self.stops));
        }
        paid
    }
}

/// How long a process runs between stops by others.
const TURN_NANOS: f64 = 150e6;

/// Most bytes that may be lent.
const OUT_MAX: f64 = (16 << 20) as f64;
/// Bytes after which memory has gone round a few times; see [`World`].
const FRESH_BYTES: f64 = 3.5 * OUT_MAX;
/// Fraction of a loan's cost that is paid later.
const LATER: f64 = 0.8;

impl Gauge for World {
    fn now(&self) -> Duration {
        Duration::from_nanos((self.now.get() + self.stopped.get()) as u64)
    }

    fn used(&self) -> Duration {
        // Each measurement is off by a fraction of a window.
        self.off.set(self.random() * self.noise * WINDOW.as_nanos() as f64 / 2.0);
        Duration::from_nanos((self.now.get() + self.off.get()).max(0.0) as u64)
    }

    fn out(&self) -> u64 {
        self.out.get() as u64
    }
}

/// Sends calls of `sizes` in turn for `span` seconds. Returns their cost relative to that of the
/// better way for each.
fn loss(
    costs: &Costs,
    world: &World,
    sizes: &[usize],
    span: f64,
    cost: impl Fn(usize, bool) -> f64,
) -> f64 {
    let end = world.now.get() + span * 1e9;
    let (mut paid, mut least) = (0.0, 0.0);
    let mut since = [0; CLASSES];
    for &size in sizes.iter().cycle() {
        if world.now.get() >= end {
            break;
        }
        let lends = costs.lends(size);
        paid += world.call(size, lends, cost(size, lends));
        least += cost(size, true).min(cost(size, false));
        let class = class(size);
        since[class] += 1;
        if since[class] == 16 {
            costs.made(size, 16, 16 * size as u64, world);
            since[class] = 0;
        }
    }
    paid / least
}

const NANOS_PER_BYTE: f64 = 0.5;

/// Returns costs with lending at `ratio` of copying.
fn level(ratio: f64) -> impl Fn(usize, bool) -> f64 {
    move |size, lends| size as f64 * NANOS_PER_BYTE * if lends { ratio } else { 1.0 }
}

/// Bound that `Auto` must meet: cost relative to the better way.
const BOUND: f64 = 1.03;

/// Goal: whatever the costs of the two ways, trials and their decisions lose little; from a good
/// and a bad start, with steady and with noisy measurements.
#[test]
fn no_ratio_of_costs_loses_much() {
    for (index, ratio) in
        [0.1, 0.5, 0.8, 0.95, 0.99, 1.0, 1.01, 1.05, 1.25, 2.0, 10.0].into_iter().enumerate()
    {
        for (begin, noise) in [(0, 0.0), (usize::MAX, 0.0), (0, 0.1), (usize::MAX, 0.1)] {
            let (costs, world) = (Costs::new(begin), World::new(index as u64, noise));
            let loss = loss(&costs, &world, &[64 << 10], 60.0, level(ratio));
            assert!(loss <= BOUND, "{ratio} from {begin}, noise {noise}: {loss}");
        }
    }
}

/// Goal: if the speed of the machine changes by more than the difference of the two ways, the
/// better one is still found. Method: the mean of many processes, after some seconds.
#[test]
fn noise_is_averaged_out() {
    for ratio in [0.8, 0.87, 0.95, 1.05, 1.15, 1.25] {
        let runs = (0..NOISY_RUNS).map(|seed| after_noise(seed, ratio));
        let (losses, right): (Vec<f64>, Vec<bool>) = runs.unzip();
        let mean = losses.iter().sum::<f64>() / losses.len() as f64;
        assert!(mean <= NOISY_BOUND, "{ratio}: {mean}");
        let right = right.into_iter().filter(|is_right| *is_right).count();
        assert!(right >= RIGHT_MIN || (ratio - 1.0).abs() < 0.1, "{ratio}: {right}");
    }
}

/// Returns the loss apart from changes of speed, and whether the better way is chosen at the end.
fn after_noise(seed: u64, ratio: f64) -> (f64, bool) {
    let begin = if seed.is_multiple_of(2) { 0 } else { usize::MAX };
    let (costs, world) = (Costs::new(begin), World::new(seed, 0.0));
    let (speeds, segment, speed) = (World::new(!seed, 0.0), Cell::new(0.0), Cell::new(1.0));
    let cost = |size, lends| {
        let now = (world.now.get() / SEGMENT_NANOS).floor();
        if segment.replace(now) != now {
            speed.set((NOISE * speeds.random()).exp());
        }
        level(ratio)(size, lends) * speed.get()
    };
    loss(&costs, &world, &[64 << 10], 10.0, cost);
    let loss = loss(&costs, &world, &[64 << 10], 10.0, cost);
    (loss, costs.lends(64 << 10) == (ratio < 1.0))
}

/// Of the logarithm of the speed: a fifth either way, as measured.
const NOISE: f64 = 0.35;
const NOISY_RUNS: u64 = 40;
/// Bound of their mean loss.
const NOISY_BOUND: f64 = 1.02;
/// Of them, how many must use the better way at the end if it is better by a tenth; the others may
/// be in a trial.
const RIGHT_MIN: usize = 36;

/// Goal: the cost of a trial's switches counts as its loss, also if both ways cost the same, so
/// that nothing else is lost.
#[test]
fn changes_that_cost_come_rarely() {
    for (seed, ratio) in [0.7, 0.95, 1.0, 1.05, 1.4].into_iter().enumerate() {
        let costs = Costs::new(0);
        let world = World { change: CHANGE_NANOS, ..World::new(seed as u64, 0.0) };
        loss(&costs, &world, &[64 << 10], 20.0, level(ratio));
        let then = loss(&costs, &world, &[64 << 10], 200.0, level(ratio));
        assert!(then <= CHANGES_BOUND, "{ratio}: {then}");
    }
}

/// As much as a run of a trial.
const CHANGE_NANOS: f64 = 100e6;
/// Bound of their cost.
const CHANGES_BOUND: f64 = 1.015;

/// Goal: loans that are cheap until their memory has gone round, for longer than a window takes,
/// are not taken for cheap.
#[test]
fn cheap_beginnings_do_not_deceive() {
    let small = |ratio| move |size, lends| 8.0 * level(ratio)(size, lends);
    for (seed, begin) in [0, usize::MAX].into_iter().enumerate() {
        let costs = Costs::new(begin);
        let world = World { fresh: 0.75, ..World::new(seed as u64, 0.0) };
        loss(&costs, &world, &[64 << 10], 60.0, small(1.15));
        let then = loss(&costs, &world, &[64 << 10], 60.0, small(1.15));
        assert!(then <= BOUND, "from {begin}: {then}");
        assert!(!costs.lends(64 << 10));
    }
}

/// Goal: on a machine whose speed changes constantly, so that most trials have no result, trials
/// lose little: they are not repeated all the time.
#[test]
fn trials_in_vain_lose_little() {
    for (seed, ratio) in [0.1, 0.2, 5.0, 10.0].into_iter().enumerate() {
        let (costs, world) = (Costs::new(0), World::new(seed as u64, 0.0));
        let (speeds, segment, speed) = (World::new(1, 0.0), Cell::new(0.0), Cell::new(1.0));
        let cost = |size, lends| {
            let now = (world.now.get() / SEGMENT_NANOS).floor();
            if segment.replace(now) != now {
                speed.set(8_f64.powf(speeds.random()));
            }
            level(ratio)(size, lends) * speed.get()
        };
        loss(&costs, &world, &[64 << 10], 60.0, level(ratio));
        let then = loss(&costs, &world, &[64 << 10], 200.0, cost);
        assert!(then <= VAIN_BOUND, "{ratio}: {then}");
        assert!(costs.lends(64 << 10) == (ratio < 1.0));
    }
}

/// Bound of the loss on such a machine: twice [`LOSS_PARTS`].
const VAIN_BOUND: f64 = 1.01;
/// How long a machine keeps one speed.
const SEGMENT_NANOS: f64 = 70e6;

/// Goal: a process that others stop for two thirds of the time, in the middle of trials, learns
/// like any other.
#[test]
fn a_stopped_worker_learns_of_it() {
    for (seed, ratio) in [0.2, 0.8, 1.25, 5.0].into_iter().enumerate() {
        for begin in [0, usize::MAX] {
            let costs = Costs::new(begin);
            let world = World { stops: 2.0 / 3.0, ..World::new(seed as u64, 0.1) };
            loss(&costs, &world, &[64 << 10], 30.0, level(ratio));
            let then = loss(&costs, &world, &[64 << 10], 60.0, level(ratio));
            assert!(then <= BOUND, "{ratio} from {begin}: {then}");
            assert_eq!(costs.lends(64 << 10), ratio < 1.0);
        }
    }
}

/// Goal: changed costs are detected, within a small part of the time since they last changed.
#[test]
fn a_change_is_found() {
    for (before, after) in [(0.5, 2.0), (2.0, 0.5), (0.9, 1.2), (1.2, 0.9)] {
        let (costs, world) = (Costs::new(0), World::new(7, 0.05));
        loss(&costs, &world, &[64 << 10], 60.0, level(before));
        loss(&costs, &world, &[64 << 10], 60.0, level(after));
        let then = loss(&costs, &world, &[64 << 10], 60.0, level(after));
        assert!(then <= BOUND, "{before} to {after}: {then}");
        assert_eq!(costs.lends(64 << 10), after < 1.0);
    }
}

/// Goal: each size is decided on its own, although calls of other sizes are mixed in.
#[test]
fn sizes_that_go_together_are_decided_each() {
    let cost = |size: usize, lends: bool| if lends { 2000.0 } else { 1000.0 + size as f64 / 4.0 };
    let sizes = [1200, 64 << 10, 2048, 16 << 10];
    for begin in [0, usize::MAX] {
        let (costs, world) = (Costs::new(begin), World::new(3, 0.02));
        loss(&costs, &world, &sizes, 30.0, cost);
        let then = loss(&costs, &world, &sizes, 30.0, cost);
        assert!(then <= BOUND, "{then}");
        assert_eq!(sizes.map(|size| costs.lends(size)), [false, true, false, true]);
    }
}

/// Goal: a sender that sends too little for a trial is left alone, even after hours of silence.
#[test]
fn a_sender_of_little_is_not_tried() {
    let (costs, world) = (Costs::new(4096), World::new(1, 0.0));
    for _ in 0..10_000 {
        costs.made(4096, 1, 4096, &world);
        world.now.set(world.now.get() + 40e6);
        assert!(costs.lends(4096));
    }
    world.now.set(world.now.get() + 1e14);
    costs.made(4096, 1, 4096, &world);
    assert!(costs.lends(4096));
}

#[test]
fn sizes_have_classes() {
    let classes = [1024, 2047, 2048, 4096, 64 << 10, 128 << 10, 1 << 20, usize::MAX].map(class);
    assert_eq!(classes, [0, 0, 1, 2, 6, 7, 7, 7]);
    let costs = Costs::new(2048);
    let lends = [0, 1023, 1024, 2047, 2048].map(|size| costs.lends(size));
    assert_eq!(lends, [false, false, false, false, true]);
    assert!((0..=9).all(|shift| !Costs::new(usize::MAX).lends(SIZE_MIN << shift)));
}
