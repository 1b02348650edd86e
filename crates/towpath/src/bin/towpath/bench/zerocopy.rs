//! `bench zerocopy`: what sending costs, lending memory and copying it.
//!
//! Points go one after the other, each lending and then copying, before the next round does all of
//! them again: what is compared is taken within seconds. A sender walks through its buffers and
//! sends as fast as it can for a while; then it waits until what it has lent is back, and only then
//! looks how much processor time was used, so that returns are part of the price. The receiver
//! reads and forgets.
//!
//! Instructions are counted beside that, by a harness of two stacks without threads and devices.
//!
//! Sizes above what a datagram takes are sent as datagrams that fill packets, many to a call.

use std::time::Duration;

use super::cases::{Case, Selection};
use super::lab::{self, Network};
use super::process::{self, KernelThreads};
use super::report::{machine, short};
use super::results::{Results, Series, System};
use super::system::find_program;
use crate::messages::Messages;

use cases::{Carrier, Group, Point};
use harness::Way;
use host::OverTap;
use kernel::Kernel;
use workload::{Cost, Memory, Setting};

pub(super) mod cases;
pub(super) mod harness;
mod host;
mod instructions;
mod kernel;
pub(super) mod plot;
pub(super) mod report;
mod workload;

/// What to do.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) selection: Selection,
    pub(super) rounds: u32,
    /// Of each measurement; `None` for as little as shows that it works.
    pub(super) seconds: Option<u32>,
}

/// What becomes of the bytes that are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Lend,
    Copy,
    /// The socket chooses.
    Auto,
}

impl Plan {
    pub(super) fn new(mut selection: Selection, rounds: u32, seconds: Option<u32>) -> Self {
        // A break-even is made of the figures of all sizes.
        for group in cases::groups() {
            if selection.has(&group.break_even) {
                group.points.iter().for_each(|point| selection.add(&point.process));
            }
        }
        Self { selection, rounds, seconds }
    }
}

/// Measures; this process must be the first of new namespaces, and have one thread. Also returns
/// how many measurements failed.
pub(super) fn measure(plan: &Plan, kernel: &KernelThreads) -> anyhow::Result<(Results, usize)> {
    process::go_first();
    let (network, tapped) = (Network::new()?, Network::new()?);
    let (sockets, algorithm) = Kernel::new(&network)?;
    if let Some(notice) = lab::congestion_control_notice(&algorithm) {
        Messages::Normal.notice(notice);
    }
    let memory = Memory::new(plan.seconds.map_or(COLD_BYTES_QUICK, |_| COLD_BYTES));
    let span = plan.seconds.map_or(SPAN_QUICK, |seconds| Duration::from_secs(seconds.into()));
    let setting = Setting { memory: &memory, span, kernel };
    let tap = OverTap::new(&tapped)?;
    let series = bare_series(plan);
    let mut bench = Bench { plan, setting, tap, kernel: sockets, series, failures: 0 };
    bench.count_instructions();
    for round in 1..=plan.rounds {
        bench.round(round);
    }
    let mut circumstances = vec![
        machine(),
        format!(
            "rounds: {}, seconds per measurement: {}, cold buffers: {} MiB in all, \
             TCP of the kernel with {algorithm}",
            plan.rounds,
            short(span.as_secs_f64()),
            memory.bytes() >> 20
        ),
    ];
    if let Some(copied) = bench.kernel.copied_percent() {
        let copied = short(copied);
        circumstances.push(format!("the kernel copied {copied} % of the calls that lent to it"));
    }
    let mut results = Results { bench: "zerocopy", circumstances, series: bench.series };
    for group in cases::groups() {
        break_even(&mut results, group);
    }
    Ok((results, bench.failures))
}

fn bare_series(plan: &Plan) -> Vec<Series> {
    let system = |name: &str| System { name: name.into(), rounds: Vec::new() };
    let is_auto = |case: &Case| {
        let mut points = cases::groups().iter().flat_map(|group| &group.points);
        points.any(|point| point.auto.as_ref() == Some(case))
    };
    let series = |case| {
        let names = if is_auto(case) { ["auto", "better of both"] } else { ["lend", "copy"] };
        Series { case, systems: names.map(system).into() }
    };
    plan.selection.cases().iter().map(|case| series(*case)).collect()
}

/// The state between rounds.
struct Bench<'a> {
    plan: &'a Plan,
    setting: Setting<'a>,
    tap: OverTap<'a>,
    kernel: Kernel<'a>,
    series: Vec<Series>,
    failures: usize,
}

impl Bench<'_> {
    fn round(&mut self, round: u32) {
        let rounds = self.plan.rounds;
        for group in cases::groups() {
            let is_selected = |point: &&Point| point.is_selected(&self.plan.selection);
            let points: Vec<_> = group.points.iter().filter(is_selected).collect();
            for point in points {
                self.point(round, rounds, point);
            }
        }
    }

    fn point(&mut self, round: u32, rounds: u32, point: &Point) {
        let costs = [Mode::Lend, Mode::Copy].map(|mode| self.cost_of(point, mode));
        for (system, cost) in costs.iter().enumerate() {
            self.keep(&point.process.name, system, cost.map(|cost| cost.process));
            self.keep(&point.system.name, system, cost.map(|cost| cost.system));
        }
        let [Some(lend), Some(copy)] = costs else { return };
        let name = &point.process.name;
        let figures = (short(lend.process), short(copy.process));
        Messages::Normal.notice(format_args!(
            "round {round}/{rounds} {name}: lend {} copy {} s/GiB",
            figures.0, figures.1
        ));
        let Some(auto) = point.auto.as_ref().filter(|case| self.plan.selection.has(case)) else {
            return;
        };
        let cost = self.cost_of(point, Mode::Auto).map(|cost| cost.system);
        self.keep(&auto.name, 0, cost);
        self.keep(&auto.name, 1, Some(lend.system.min(copy.system)));
    }

    /// What a point costs; `None` after a failure, which is told.
    fn cost_of(&mut self, point: &Point, mode: Mode) -> Option<Cost> {
        let cost = self.cost(point, mode);
        if let Err(error) = &cost {
            let name = &point.process.name;
            Messages::Quiet.error(format_args!("{name}: {mode:?}: {error:#}"));
            self.failures += 1;
        }
        cost.ok()
    }

    fn cost(&self, point: &Point, mode: Mode) -> anyhow::Result<Cost> {
        match point.carrier {
            Carrier::Process => host::in_process(point, mode, &self.setting),
            Carrier::Tap => self.tap.measure(point, mode, &self.setting),
            Carrier::Kernel => self.kernel.measure(point, mode, &self.setting),
        }
    }

    /// Once: the same calls take the same instructions.
    fn count_instructions(&mut self) {
        let has = |case: &Case| self.plan.selection.has(case);
        let counts: Vec<_> =
            cases::counts().iter().filter(|count| has(&count.call) || has(&count.byte)).collect();
        let plain = has(&cases::PLAIN);
        if counts.is_empty() && !plain {
            return;
        }
        if find_program(instructions::PROGRAM).is_none() {
            let program = instructions::PROGRAM;
            Messages::Normal
                .notice(format_args!("instructions are not counted: {program} not found"));
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
                Messages::Normal
                    .notice(format_args!("instructions of a call: {way} {size} B: {count}"));
                Some(counted)
            }
            Err(error) => {
                let way = way.name();
                Messages::Quiet.error(format_args!("instructions: {way} {size} B: {error:#}"));
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

/// Finds out, by round, from which size on lending costs the sending thread less; between two sizes
/// it is taken to follow the logarithm of the size. None where it never does; where it always does,
/// the smallest size.
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
    // Never, in most rounds.
    if 2 * crossings.iter().flatten().count() < crossings.len() {
        crossings.fill(None);
    }
    let systems = &mut results.series[at].systems;
    systems.truncate(1);
    systems[0].rounds = crossings;
}

/// Where what lending costs, as a share of what copying costs, falls below 1 for good.
fn crossing(shares: &[(usize, f64)]) -> Option<f64> {
    let from = shares.iter().rposition(|(_, share)| *share > 1.0);
    let Some(from) = from else { return shares.first().map(|(size, _)| *size as f64) };
    let ((low, above), (high, below)) = (shares[from], *shares.get(from + 1)?);
    let part = (above - 1.0) / (above - below);
    let (low, high) = ((low as f64).ln(), (high as f64).ln());
    Some((low + part * (high - low)).exp())
}

/// Of all buffers together, many times what caches hold.
const COLD_BYTES: usize = 1 << 30;
const COLD_BYTES_QUICK: usize = 64 << 20;
const SPAN_QUICK: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

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
