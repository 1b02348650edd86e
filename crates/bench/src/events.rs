//! `bench events`: the event queue at work, beside other ways to wait.
//!
//! Measurements come in groups: one run of a system yields a figure for each case of its group, and
//! the systems of a group run one after the other before the next group does, in each round.
//!
//! Most of what is measured is the HTTP server of the example `httpd`: requests per second,
//! processor time of the server per request, and errors, which there must not be. Names of cases
//! are made of carrier, kind of connection, size of the file and clients; what is most asked about
//! has no word: in process, 4 KiB, 100 clients.
//!
//! - in process: on a host, whose clients are on a second host of this process;
//! - `tap`: on a host, whose client is wrk, in the kernel at the other end of a TAP device;
//! - `kernel`: on the kernel's sockets, whose client is wrk, at the other end of a veth pair.
//!
//! On a host, `completions` is the server with operations and `readiness` the one with calls that
//! do not block. On the kernel's sockets the first is there by `io_uring` and by `epoll`, and the
//! second as `plain epoll`; and there is nginx.
//!
//! In process, processor time is that of all threads, clients and both hosts included.
//!
//! Beside it, operations and calls that wait: much data through few sockets ([`transfer`]), and
//! reads of a file at several depths ([`reads`]).

use std::path::Path;
use std::time::Duration;

use anyhow::ensure;

use super::Timed;
use super::cases::{Case, Selection};
use super::lab::{self, Network};
use super::process;
use super::report::{machine, short, told};
use super::results::{Results, Series, System};
use crate::say;

use http::Http;
use reads::Reads;
pub(super) use serve::Serving;

mod http;
pub(super) mod nginx;
mod plain_ring;
mod points;
mod reads;
mod serve;
mod stack;
mod transfer;
pub(super) mod wrk;

/// All cases, in the order of the report.
pub(super) fn all() -> impl Iterator<Item = &'static Case> {
    points::all().chain(transfer::all()).chain(reads::all())
}

/// What is measured together.
struct Group<'a> {
    cases: Vec<&'static Case>,
    /// towpath's first.
    systems: Vec<&'static str>,
    measure: Box<Measure<'a>>,
}

/// Measures a system for a while; a figure for each case.
type Measure<'a> = dyn FnMut(&str, Duration) -> anyhow::Result<Vec<f64>> + 'a;

/// Measures; this process must be the first of new namespaces, and have one thread. Also returns
/// how many measurements of towpath failed.
pub(super) fn measure(plan: &Timed, scratch: &Path) -> anyhow::Result<(Results, usize)> {
    process::go_first();
    let networks = [Network::new()?, Network::new()?];
    let algorithm = lab::prepare()?;
    let circumstances = vec![
        machine(),
        format!(
            "rounds: {}, seconds per measurement: {}, congestion control: {algorithm}",
            plan.rounds,
            short(plan.span.as_secs_f64()),
        ),
    ];
    let http = Http::new(&networks, scratch, &plan.selection)?;
    let reads = Reads::new(scratch, &plan.selection, plan.span)?;
    let mut groups = http.groups(&plan.selection);
    groups.extend(transfer::groups(&plan.selection));
    groups.extend(reads.iter().flat_map(|reads| reads.groups(&plan.selection)));
    ensure!(!groups.is_empty(), "there is nothing left to measure");
    let mut series: Vec<Vec<Series>> = groups.iter().map(Group::bare).collect();
    let mut failures = 0;
    for round in 1..=plan.rounds {
        for (group, series) in groups.iter_mut().zip(&mut series) {
            failures += group.round(round, series, plan.span);
            series.iter().for_each(|series| told(round, plan.rounds, series));
        }
    }
    drop(groups);
    let is_wanted = |series: &Series| plan.selection.has(series.case);
    let series = series.into_iter().flatten().filter(is_wanted).collect();
    Ok((Results { bench: "events", circumstances, series }, failures))
}

impl Group<'_> {
    fn bare(&self) -> Vec<Series> {
        let system = |name: &&str| System { name: (*name).into(), rounds: Vec::new() };
        let series = |case: &&'static Case| Series {
            case,
            systems: self.systems.iter().map(system).collect(),
        };
        self.cases.iter().map(series).collect()
    }

    /// Measures each system once, another one first in each round; returns how many failed.
    fn round(&mut self, round: u32, series: &mut [Series], span: Duration) -> usize {
        let mut failures = 0;
        let mut order: Vec<_> = self.systems.iter().enumerate().collect();
        order.rotate_left(round.saturating_sub(1) as usize % self.systems.len().max(1));
        for (index, system) in order {
            let figures = (self.measure)(system, span);
            if let Err(error) = &figures {
                let name = &self.cases[0].name;
                say::error(format_args!("{name}: {system}: {error:#}"));
                failures += 1;
            }
            let figures = figures.ok();
            for (at, series) in series.iter_mut().enumerate() {
                series.systems[index].rounds.push(figures.as_ref().map(|figures| figures[at]));
            }
        }
        failures
    }

    /// Whether one of its cases is wanted.
    fn is_selected(&self, selection: &Selection) -> bool {
        self.cases.iter().any(|case| selection.has(case))
    }
}

/// As short as shows that it works.
pub(super) const SPAN_QUICK: Duration = Duration::from_millis(50);
