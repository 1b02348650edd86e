//! Segments of lent memory that stay alive: delayed, reordered, duplicated, dropped, captured, and
//! read by other threads.
//!
//! ```text
//!                                     ┌── wire ──> receiver that takes segments
//!  lender ── device ──> switch that ──┼── device ──> receiver that takes super-packets
//!          super-packets   floods     └── device ──> capture that keeps much, checksums partial
//! ```
//!
//! The lender overwrites memory in the moment in which it has it back. Every link carries packets
//! with their pieces, so the receivers read the lender's memory, long after the super-packet was
//! segmented. Invariants: a segment never changes before it is dropped; each loan is returned once,
//! and for lenders that lend until then exactly when the last packet with bytes of it is gone;
//! when all ends at once, with packets everywhere, each loan is returned, too.
//!
//! `TOWPATH_SEED=<seed>` replays a seed that failed, `TOWPATH_SEEDS=<count>` tries that many new
//! ones.

mod frame;
mod lenders;
mod threads;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use towpath_net::switch::{self, Egress, PortConfig, PortId, StormRates, Switch};
use towpath_net::time::{Duration, Instant};
use towpath_packet::{Burst, Caps, Context, Ledger, Memory, MemoryConfig, Packet};
use towpath_sim::link::{Freight, Link, LinkConfig, LinkCounters, Live, Medium};
use towpath_sim::scenario::able;
use towpath_sim::seed::{self, Rng};

use frame::Frame;
use lenders::{Guest, Program, Source, Token};

/// Super-packets of a run.
const FRAMES: u32 = 150;
/// Seeds of every run.
const SEEDS: u64 = 20;
/// The most packets that an end keeps.
const KEPT_MAX: usize = 1000;
const MEMORY: MemoryConfig = MemoryConfig { packets: 32_768, small_frames: 8192, large_frames: 8 };

/// A receiver or a capture, and the link to it.
struct End {
    link: Link<Live>,
    port: PortId,
    /// How often it keeps a packet, and how long.
    keeps: u32,
    keeps_for: Duration,
    kept: BTreeMap<(Instant, u64), Live>,
    taken: u64,
}

/// How much happened in a run.
#[derive(Default)]
struct Tally {
    links: Vec<LinkCounters>,
    /// Loans that ended early.
    recalled: u64,
    /// Loans that were out when everything was dropped.
    cut_off: u64,
}

struct World<S> {
    source: S,
    up: Link<Live>,
    switch: Switch,
    from: PortId,
    ends: Vec<End>,
    memory: Memory,
    ledger: Ledger,
    /// The ranges that the loans of each frame cover.
    ranges: Vec<Vec<Range<usize>>>,
    sends_at: Instant,
    /// When the source has to be called.
    turn_at: Option<Instant>,
    rng: Rng,
    now: Instant,
}

/// Takes what the switch hands out.
struct Out(Vec<(PortId, Packet)>);

impl Egress for Out {
    fn transmit(&mut self, port: PortId, burst: &mut Burst, _: &mut Context<'_>) {
        self.0.extend(std::iter::from_fn(|| burst.pop()).map(|packet| (port, packet)));
    }
}

/// A link with faults of all kinds that leave bytes alone.
fn faulty(medium: Medium, rng: &mut Rng) -> Link<Live> {
    let mut config = LinkConfig::clean(medium, 1500, rng.duration(Duration::from_millis(15)));
    config.jitter = rng.duration(Duration::from_millis(2));
    config.loss = rng.between(0, 50_000) as u32;
    config.burst_begin = rng.between(0, 3_000) as u32;
    config.burst_max = 40;
    config.duplicate = rng.between(0, 100_000) as u32;
    config.reorder = rng.between(0, 300_000) as u32;
    config.reorder_by = rng.duration(Duration::from_millis(20));
    Link::new(config)
}

impl<S: Source> World<S> {
    fn new(source: S, mut rng: Rng) -> Self {
        let mut switch = Switch::new(switch::Config { seed: rng.draw(), ..Default::default() });
        let mut port = |caps: Caps| {
            let config = PortConfig { storm: StormRates::NONE, ..PortConfig::new(caps) };
            switch.add_port(config).expect("few ports")
        };
        let from = port(able(1500));
        let checksums = Caps { checksum: true, ..Caps::plain(1500) };
        let ends = [
            (Caps::plain(1500), Medium::Wire, 50_000, 5),
            (able(1500), Medium::Tap, 50_000, 5),
            (checksums, Medium::Tap, 300_000, 60),
        ];
        let ends = ends.map(|(caps, medium, keeps, most)| End {
            link: faulty(medium, &mut rng),
            port: port(caps),
            keeps,
            keeps_for: Duration::from_millis(most),
            kept: BTreeMap::new(),
            taken: 0,
        });
        Self {
            source,
            up: faulty(Medium::Tap, &mut rng),
            switch,
            from,
            ends: ends.into(),
            memory: Memory::new(MEMORY),
            ledger: Ledger::new(),
            ranges: Vec::new(),
            sends_at: Instant::START,
            turn_at: None,
            rng,
            now: Instant::START,
        }
    }

    /// Does all work of this moment.
    fn step(&mut self) {
        while self.sends_at <= self.now && self.ranges.len() < FRAMES as usize {
            self.send();
            self.sends_at = self.now + self.rng.duration(Duration::from_millis(2));
        }
        while let Some(live) = self.up.arrive(self.now) {
            self.forward(live.into_packet());
        }
        for end in &mut self.ends {
            end.receive(&mut self.rng, self.now);
        }
        self.turn_at = self.source.turn(self.now, &self.ledger);
    }

    fn send(&mut self) {
        let frame = Frame::draw(self.ranges.len() as u32, &mut self.rng);
        let mut cx = Context { memory: &mut self.memory, ledger: &self.ledger, now: self.now };
        // Without memory the lender waits.
        if let Some((packet, ranges)) = self.source.send(&frame, &mut self.rng, &mut cx) {
            self.ranges.push(ranges);
            self.up.send(packet, self.now, &mut self.rng, &mut self.memory, &self.ledger);
        }
    }

    fn forward(&mut self, packet: Packet) {
        let (mut burst, mut out) = (Burst::new(), Out(Vec::new()));
        burst.push(packet).expect("it is empty");
        let Self { switch, from, ends, memory, ledger, now, rng, .. } = self;
        let cx = &mut switch::Context { memory, ledger, now: *now };
        switch.forward(*from, &mut burst, cx, &mut out);
        for (port, packet) in out.0 {
            let end = ends.iter_mut().find(|end| end.port == port).expect("a port has an end");
            end.link.send(packet, *now, rng, memory, ledger);
        }
    }

    /// Checks that exactly the loans are out of which a packet has bytes.
    fn compare(&self) {
        let ends = &self.ends;
        let live = ends.iter().flat_map(|end| end.link.flying().chain(end.kept.values()));
        let mut held = BTreeSet::new();
        for live in self.up.flying().chain(live) {
            let (number, bytes, _) = frame::place(live.bytes());
            let ranges = (0..).zip(&self.ranges[number as usize]);
            let ranges =
                ranges.filter(|(_, range)| range.start < bytes.end && bytes.start < range.end);
            held.extend(ranges.map(|(index, _)| Token::from((number, index))));
        }
        let out = self.source.out();
        let kept: Vec<_> = out.difference(&held).collect();
        assert!(kept.is_empty(), "no packet has bytes of these loans: {kept:?}");
        let gone: Vec<_> = held.difference(&out).collect();
        let is_early = self.source.recalled().is_none() && !gone.is_empty();
        assert!(!is_early, "packets have bytes of these loans, which were returned: {gone:?}");
    }

    fn deadline(&self) -> Option<Instant> {
        let sends = (self.ranges.len() < FRAMES as usize).then_some(self.sends_at);
        let kept = self.ends.iter().filter_map(|end| Some(end.kept.first_key_value()?.0.0));
        let links = self.ends.iter().filter_map(|end| end.link.deadline());
        links.chain(kept).chain(sends).chain(self.up.deadline()).chain(self.turn_at).min()
    }

    /// Runs to the end, or for `steps`.
    fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            self.step();
            if self.rng.chance(200_000) {
                self.compare();
            }
            match self.deadline() {
                Some(at) => self.now = self.now.max(at),
                None => break,
            }
        }
        self.compare();
    }

    /// Drops everything, in any order, and checks that all loans were returned.
    fn finish(mut self) -> Tally {
        let links = || self.ends.iter().map(|end| &end.link).chain([&self.up]);
        for link in links() {
            assert_eq!(link.problem(), None);
            let counters = link.counters();
            let there = counters.offered + counters.duplicated;
            assert_eq!(there, counters.delivered + counters.lost() + link.in_flight() as u64);
        }
        let mut tally = Tally {
            links: links().map(Link::counters).collect(),
            recalled: 0,
            cut_off: self.source.out().len() as u64,
        };
        let (mut memory, mut up) = (Some(self.memory), Some(self.up));
        for _ in 0..8 {
            match self.rng.below(4) {
                0 if self.rng.chance(300_000) => drop(memory.take()),
                1 => drop(up.take()),
                _ if self.ends.is_empty() => {}
                _ => {
                    let which = self.rng.below(self.ends.len() as u64) as usize;
                    self.ends.swap_remove(which);
                }
            }
            self.source.turn(self.now, &self.ledger);
        }
        drop((up, self.ends));
        self.source.turn(self.now, &self.ledger);
        if let Some(memory) = memory {
            assert_eq!(memory.packets.out_count(), 0);
            assert_eq!(memory.small.out_count(), 0);
        }
        let [lent, returned] = self.source.counts();
        assert_eq!((lent, self.source.out()), (returned, BTreeSet::new()), "not returned");
        tally.recalled = self.source.recalled().unwrap_or(0);
        tally
    }
}

impl End {
    /// Reads what has arrived, keeps some of it, and drops what it has kept long enough.
    fn receive(&mut self, rng: &mut Rng, now: Instant) {
        while let Some(live) = self.link.arrive(now) {
            frame::check(live.bytes());
            self.taken += 1;
            if self.kept.len() < KEPT_MAX && rng.chance(self.keeps) {
                self.kept.insert((now + rng.duration(self.keeps_for), self.taken), live);
            }
        }
        while let Some(entry) = self.kept.first_entry().filter(|entry| entry.key().0 <= now) {
            assert_eq!(entry.remove().check(), Ok(()), "what was kept has changed");
        }
    }
}

/// Runs one seed, to the end or a part of it.
fn run<S: Source>(seed: u64, source: impl Fn(&mut Rng) -> S) -> Tally {
    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut rng = Rng::new(seed);
        let steps = if rng.chance(300_000) { rng.between(1, 3000) } else { u64::MAX };
        let source = source(&mut rng);
        let mut world = World::new(source, rng);
        world.run(steps);
        world.finish()
    }));
    ran.unwrap_or_else(|_| panic!("failed; again with TOWPATH_SEED={seed:#x}"))
}

/// Runs all seeds, and checks that together they had faults of each kind.
fn run_all<S: Source>(source: impl Fn(&mut Rng) -> S) -> Vec<Tally> {
    if let Some(seed) = seed::from_environment() {
        return vec![run(seed, source)];
    }
    let more = std::env::var("TOWPATH_SEEDS").ok().and_then(|count| count.parse().ok());
    let tallies: Vec<_> = match more {
        Some(count) => (0..count).map(|_: u64| run(seed::fresh(), &source)).collect(),
        None => (0..SEEDS).chain([seed::fresh()]).map(|seed| run(seed, &source)).collect(),
    };
    for end in 0..3 {
        let sum = |count: fn(&LinkCounters) -> u64| -> u64 {
            tallies.iter().map(|tally| count(&tally.links[end])).sum()
        };
        let counts = [sum(|c| c.delivered), sum(|c| c.dropped), sum(|c| c.duplicated)];
        assert!(counts.iter().all(|&count| count > 0), "end {end}: {counts:?}");
    }
    assert!(tallies.iter().any(|tally| tally.cut_off > 0), "no loan was out when a run was ended");
    tallies
}

#[test]
fn a_program_has_its_memory_back_after_the_last_segment() {
    run_all(|_| Program::new());
}

#[test]
fn a_guest_has_its_memory_back_after_the_last_segment_or_a_recall() {
    let tallies = run_all(|rng| Guest::new(rng.chance(500_000)));
    if seed::from_environment().is_none() {
        assert!(tallies.iter().any(|tally| tally.recalled > 0), "no loan was recalled");
    }
}
