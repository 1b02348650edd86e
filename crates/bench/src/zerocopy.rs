//! `bench zerocopy`: the cost of sending, by lending memory and by copying it.
//!
//! Points are measured one after the other, each by lending and by copying; then the next round
//! measures all of them again. So figures that are compared are taken within seconds of each other,
//! and [in short slices](slices) for sockets that choose by themselves, because their allowed loss
//! is only a few per cent. A sender walks through its buffers and sends as fast as it can for a
//! while. Then it waits until all loans have returned, and only then reads its processor time, so
//! that returns are part of the cost. The receiver reads and discards.
//!
//! Instructions are counted separately, by a harness of two stacks without threads and devices.
//!
//! Sends larger than a datagram are split into datagrams that fill packets, many per call: as many
//! as an IP packet of maximum size holds, or, when lending to a host, all of a buffer.
//!
//! Each carrier is prepared if a case needs it. A carrier that is not available, for lack of a TAP
//! device or of `ip`, is reported, and its cases are left out.

use std::time::Duration;

use anyhow::{Context, ensure};

use super::cases::{Case, Selection};
use super::lab::{self, Network};
use super::process::{self, KernelThreads};
use super::report::{machine, short};
use super::results::{Results, Series, System};
use super::system::find_program;
use crate::say;

use cases::{Carrier, Group, Point};
use datagrams::Arrivals;
use harness::Way;
use host::OverTap;
use kernel::Kernel;
use workload::{Cost, Memory, Setting};

pub(super) mod cases;
mod datagrams;
pub(super) mod harness;
mod host;
mod instructions;
mod kernel;
pub(super) mod plot;
pub(super) mod report;
pub(super) mod slices;
mod workload;

/// Settings of the benchmark.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) selection: Selection,
    pub(super) rounds: u32,
    /// Seconds of each measurement; `None` for the shortest run that shows that it works.
    pub(super) seconds: Option<u32>,
}

/// How the bytes are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Lend,
    Copy,
    /// The socket chooses.
    Auto,
}

impl Mode {
    const ALL: [Self; 3] = [Self::Auto, Self::Lend, Self::Copy];

    fn name(self) -> &'static str {
        match self {
            Self::Lend => LEND,
            Self::Copy => COPY,
            Self::Auto => AUTO,
        }
    }
}

impl Plan {
    pub(super) fn new(mut selection: Selection, rounds: u32, seconds: Option<u32>) -> Self {
        // A break-even needs the figures of all sizes.
        for group in cases::groups() {
            if selection.has(&group.break_even) {
                group.points.iter().for_each(|point| selection.add(&point.process));
            }
        }
        Self { selection, rounds, seconds }
    }
}

/// Measures all selected cases. This process must be the first of new namespaces, and have one
/// thread. Also returns how many measurements failed.
pub(super) fn measure(plan: &Plan, kernel: &KernelThreads) -> anyhow::Result<(Results, usize)> {
    process::go_first();
    let (network, tapped) = (Network::new()?, Network::new()?);
    let mut selection = plan.selection.clone();
    let sockets = prepared(&mut selection, Carrier::Kernel, || Kernel::new(&network));
    let tap = prepared(&mut selection, Carrier::Tap, || OverTap::new(&tapped));
    ensure!(!selection.is_empty(), "no case is left to measure");
    let (kernel_sockets, algorithm) = sockets.unzip();
    if let Some(notice) = algorithm.as_deref().and_then(lab::congestion_control_notice) {
        say::notice(notice);
    }
    let memory = Memory::new(plan.seconds.map_or(COLD_BYTES_QUICK, |_| COLD_BYTES));
    let span = plan.seconds.map_or(SPAN_QUICK, |seconds| Duration::from_secs(seconds.into()));
    let arrivals = Arrivals::default();
    let setting = Setting { memory: &memory, span, tells: false, kernel, arrivals };
    let (series, rounds) = (bare_series(&selection), plan.rounds);
    let mut bench =
        Bench { selection, rounds, setting, tap, kernel: kernel_sockets, series, failures: 0 };
    bench.count_instructions();
    for round in 1..=rounds {
        bench.round(round);
    }
    let circumstances = bench.circumstances(algorithm.as_deref());
    let mut results = Results { bench: "zerocopy", circumstances, series: bench.series };
    for group in cases::groups() {
        break_even(&mut results, group);
    }
    results
        .series
        .iter_mut()
        .filter(|series| series.towpath().name == AUTO)
        .for_each(better_of_both);
    Ok((results, bench.failures))
}

/// Prepares a carrier if a case needs it. If it is not available, its cases are removed from the
/// selection.
fn prepared<T>(
    selection: &mut Selection,
    carrier: Carrier,
    prepare: impl FnOnce() -> anyhow::Result<T>,
) -> Option<T> {
    let groups = || cases::groups().iter().filter(|group| group.carrier == carrier);
    if !groups().flat_map(Group::cases).any(|case| selection.has(case)) {
        return None;
    }
    prepare()
        .inspect_err(|error| {
            let title = carrier.title();
            say::error(format_args!("skipped: all cases {title}: {error:#}"));
            groups().flat_map(Group::cases).for_each(|case| selection.remove(case));
        })
        .ok()
}

fn bare_series(selection: &Selection) -> Vec<Series> {
    let system = |name: &str| System { name: name.into(), rounds: Vec::new() };
    let is_auto = |case: &Case| {
        let mut points = cases::groups().iter().flat_map(|group| &group.points);
        points.any(|point| point.auto.as_ref() == Some(case))
    };
    let series = |case| {
        let names = if is_auto(case) { [AUTO, LEND, COPY].as_slice() } else { &[LEND, COPY] };
        Series { case, systems: names.iter().copied().map(system).collect() }
    };
    selection.cases().iter().map(|case| series(*case)).collect()
}

/// The state between rounds.
struct Bench<'a> {
    /// Without cases of missing carriers.
    selection: Selection,
    rounds: u32,
    setting: Setting<'a>,
    tap: Option<OverTap<'a>>,
    kernel: Option<Kernel<'a>>,
    series: Vec<Series>,
    failures: usize,
}

impl Bench<'_> {
    fn round(&mut self, round: u32) {
        for group in cases::groups() {
            let is_selected = |point: &&Point| point.is_selected(&self.selection);
            let points: Vec<_> = group.points.iter().filter(is_selected).collect();
            for point in points {
                self.point(round, point);
            }
        }
    }

    fn point(&mut self, round: u32, point: &Point) {
        if let Some(auto) = point.auto.as_ref().filter(|case| self.selection.has(case)) {
            self.choice(round, point, auto);
        }
        if ![&point.process, &point.system].into_iter().any(|case| self.selection.has(case)) {
            return;
        }
        // The order alternates by round, because a measurement affects the next one.
        let mut costs = [None; 2];
        for place in 0..costs.len() {
            let mode = (round as usize + place) % costs.len();
            costs[mode] = self.cost_of(point, [Mode::Lend, Mode::Copy][mode]);
        }
        for (system, cost) in costs.iter().enumerate() {
            self.keep(&point.process.name, system, cost.map(|cost| cost.process));
            self.keep(&point.system.name, system, cost.map(|cost| cost.system));
        }
        let [Some(lend), Some(copy)] = costs else { return };
        let name = &point.process.name;
        let (rounds, figures) = (self.rounds, (short(lend.process), short(copy.process)));
        say::notice(format_args!(
            "round {round}/{rounds} {name}: lend {} copy {} s/GiB",
            figures.0, figures.1
        ));
    }

    /// Measures a socket that chooses.
    fn choice(&mut self, round: u32, point: &Point, case: &Case) {
        let Setting { memory, span, kernel, .. } = &self.setting;
        let costs = slices::costs(point, memory.bytes().min(COLD_BYTES_SLICES), *span, kernel);
        for (system, _) in Mode::ALL.iter().enumerate() {
            self.keep(&case.name, system, costs.as_ref().ok().map(|costs| costs[system]));
        }
        match costs {
            Ok([auto, lend, copy]) => say::notice(format_args!(
                "round {round}/{} {}: auto {} lend {} copy {} s/GiB",
                self.rounds,
                case.name,
                short(auto),
                short(lend),
                short(copy)
            )),
            Err(error) => {
                say::error(format_args!("{}: {error:#}", case.name));
                self.failures += 1;
            }
        }
    }

    /// The cost of a point; `None` after a failure, which is reported.
    fn cost_of(&mut self, point: &Point, mode: Mode) -> Option<Cost> {
        let cost = self.cost(point, mode);
        if let Err(error) = &cost {
            let name = &point.process.name;
            say::error(format_args!("{name}: {mode:?}: {error:#}"));
            self.failures += 1;
        }
        cost.ok()
    }

    fn cost(&self, point: &Point, mode: Mode) -> anyhow::Result<Cost> {
        match point.carrier {
            Carrier::Process => host::in_process(point, mode, &self.setting),
            Carrier::Tap => {
                let tap = self.tap.as_ref().context(NOT_PREPARED)?;
                tap.measure(point, mode, &self.setting)
            }
            Carrier::Kernel => {
                let kernel = self.kernel.as_ref().context(NOT_PREPARED)?;
                kernel.measure(point, mode, &self.setting)
            }
        }
    }

    /// Additional information about the figures; `algorithm` is the congestion control of the
    /// kernel's TCP.
    fn circumstances(&self, algorithm: Option<&str>) -> Vec<String> {
        let Setting { memory, span, arrivals, .. } = &self.setting;
        let mut setting = format!(
            "rounds: {}, seconds per measurement: {}, cold buffers: {} MiB in all",
            self.rounds,
            short(span.as_secs_f64()),
            memory.bytes() >> 20
        );
        if let Some(algorithm) = algorithm {
            setting += ", TCP of the kernel with ";
            setting += algorithm;
        }
        let copied = self.kernel.as_ref().and_then(Kernel::copied_percent).map(|copied| {
            format!("the kernel copied {} % of the calls that lent to it", short(copied))
        });
        [Some(machine()), Some(setting), copied, arrivals.reported()]
            .into_iter()
            .flatten()
            .collect()
    }

    /// Counts once, because the same calls always take the same instructions.
    fn count_instructions(&mut self) {
        let has = |case: &Case| self.selection.has(case);
        let counts: Vec<_> =
            cases::counts().iter().filter(|count| has(&count.call) || has(&count.byte)).collect();
        let plain = has(&cases::PLAIN);
        if counts.is_empty() && !plain {
            return;
        }
        if find_program(instructions::PROGRAM).is_none() {
            let program = instructions::PROGRAM;
            say::notice(format_args!("not counting instructions: {program} is not installed"));
            return;
        }
        for count in counts {
            for (system, way) in [Way::Lend, Way::Copy].into_iter().enumerate() {
                let counted = self.instructions(way, count.size);
                self.keep(&count.call.name, system, counted);
                let per_byte = counted.map(|counted| counted / count.size as f64);
                self.keep(&count.byte.name, system, per_byte);
            }
        }
        if plain {
            let counted = self.instructions(Way::Plain, harness::PLAIN_BYTES);
            self.keep(&cases::PLAIN.name, 0, counted);
        }
    }

    fn instructions(&mut self, way: Way, size: usize) -> Option<f64> {
        match instructions::per_call(way, size) {
            Ok(counted) => {
                let (way, count) = (way.name(), short(counted));
                say::notice(format_args!("instructions of a call: {way} {size} B: {count}"));
                Some(counted)
            }
            Err(error) => {
                let way = way.name();
                say::error(format_args!("instructions: {way} {size} B: {error:#}"));
                self.failures += 1;
                None
            }
        }
    }

    fn keep(&mut self, name: &str, system: usize, figure: Option<f64>) {
        if let Some(series) = self.series.iter_mut().find(|series| series.case.name == name) {
            series.systems[system].rounds.push(figure);
        }
    }
}

/// Keeps the better of lending and copying, over all rounds, to compare with a choice. The better
/// of each round would by chance be better than both.
fn better_of_both(series: &mut Series) {
    let median = |at: usize| series.systems[at].spread().map_or(f64::MAX, |spread| spread.median);
    let worse = if median(1) <= median(2) { 2 } else { 1 };
    series.systems.remove(worse);
    series.systems[1].name = "better of both".into();
}

/// Finds for each round the size from which lending costs the sending thread less. Between two
/// sizes, the cost is interpolated over the logarithm of the size. `None` if lending never costs
/// less; the smallest size if it always does.
fn break_even(results: &mut Results, group: &Group) {
    let find = |name: &str| results.series.iter().position(|series| series.case.name == name);
    let Some(at) = find(&group.break_even.name) else { return };
    let points: Vec<_> = group
        .points
        .iter()
        .filter_map(|point| Some((point.size, find(&point.process.name)?)))
        .collect();
    let rounds = points.iter().map(|(_, at)| results.series[*at].systems[0].rounds.len()).max();
    let crossings = (0..rounds.unwrap_or(0)).map(|round| {
        let share = |(size, at): &(usize, usize)| {
            let figure = |system: usize| *results.series[*at].systems[system].rounds.get(round)?;
            Some((*size, figure(0)? / figure(1)?))
        };
        crossing(&points.iter().filter_map(share).collect::<Vec<_>>())
    });
    let mut crossings: Vec<Option<f64>> = crossings.collect();
    // Lending never costs less in most rounds.
    if 2 * crossings.iter().flatten().count() < crossings.len() {
        crossings.fill(None);
    }
    let systems = &mut results.series[at].systems;
    systems.truncate(1);
    systems[0].rounds = crossings;
}

/// The size at which the cost of lending, relative to copying, falls below 1 permanently.
fn crossing(shares: &[(usize, f64)]) -> Option<f64> {
    let from = shares.iter().rposition(|(_, share)| *share > 1.0);
    let Some(from) = from else { return shares.first().map(|(size, _)| *size as f64) };
    let ((low, above), (high, below)) = (shares[from], *shares.get(from + 1)?);
    let part = (above - 1.0) / (above - below);
    let (low, high) = ((low as f64).ln(), (high as f64).ln());
    Some((low + part * (high - low)).exp())
}

/// Name of a socket that chooses.
const AUTO: &str = "auto";
/// Name of lending.
const LEND: &str = "lend";
/// Name of copying.
const COPY: &str = "copy";
/// A case is measured only if its carrier was prepared.
const NOT_PREPARED: &str = "its carrier could not be set up";
/// Bytes of all buffers together: many times the size of caches.
const COLD_BYTES: usize = 1 << 30;
const COLD_BYTES_QUICK: usize = 64 << 20;
/// Bytes of all buffers of each of three processes.
const COLD_BYTES_SLICES: usize = 256 << 20;
const SPAN_QUICK: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_compared_with_what_is_better_over_all_rounds() {
        let system = |name: &str, rounds: [f64; 3]| System {
            name: name.into(),
            rounds: rounds.map(Some).into(),
        };
        let case = cases::groups()[0].points[0].auto.as_ref().unwrap();
        let chosen = system(AUTO, [3.0, 3.0, 3.0]);
        for (lend, copy) in [([1.0, 4.0, 4.0], [3.0, 3.0, 9.0]), ([3.0, 3.0, 9.0], [4.0; 3])] {
            let systems = vec![chosen.clone(), system(LEND, lend), system(COPY, copy)];
            let mut series = Series { case, systems };
            better_of_both(&mut series);
            assert_eq!(series.systems.len(), 2);
            assert_eq!(series.systems[1].rounds, [3.0, 3.0, 9.0].map(Some));
            assert_eq!(series.ratio(&series.systems[1]), Some(1.0));
        }
    }

    #[test]
    fn the_break_even_is_where_lending_becomes_cheaper_for_good() {
        let found = crossing(&[(512, 2.0), (1024, 1.5), (4096, 0.5), (16384, 0.1)]).unwrap();
        assert!((found - 2048.0).abs() < 1e-6, "{found}");
        assert_eq!(crossing(&[(512, 0.9), (1024, 0.5)]), Some(512.0));
        let late = crossing(&[(512, 0.9), (1024, 1.1), (4096, 0.9)]).unwrap();
        assert!(late > 1024.0 && late < 4096.0, "{late}");
        assert_eq!(crossing(&[(512, 2.0), (1024, 1.5)]), None);
        assert_eq!(crossing(&[]), None);
    }
}
