//! `bench events`: the event queue compared with other ways to wait.
//!
//! Measurements form groups: one run of a system yields a figure for each case of its group. In
//! each round, the systems of a group run one after the other before the next group starts.
//!
//! Most measurements use the HTTP server of the example `httpd`: requests per second, the server's
//! processor time per request, and errors, which must be zero. A case name consists of carrier,
//! kind of connection, file size and number of clients. The defaults are left out of the name: in
//! process, 4 KiB, 100 clients.
//!
//! - in process: on a host; the clients are on a second host in this process;
//! - `tap`: on a host; the client is wrk, in the kernel at the other end of a TAP device;
//! - `kernel`: on kernel sockets; the client is wrk, at the other end of a veth pair.
//!
//! On a host, `completions` is the server that uses operations, and `readiness` the server that
//! uses non-blocking calls. On kernel sockets, the first runs over `io_uring` and over `epoll`, and
//! the second is `plain epoll`; nginx is measured, too.
//!
//! In process, the processor time is that of all threads, including the clients and both hosts.
//!
//! Own servers and clients show what happens when more is asked than can be done ([`overload`]).
//!
//! Two more benchmarks compare operations with blocking calls: bulk data over few sockets
//! ([`transfer`]), and file reads at several depths ([`reads`]). Another compares answers that are
//! lent with answers that are copied ([`answers`]), one receives by remapping pages ([`mapped`]),
//! and the last measures what a capture costs ([`capture`]).

use std::path::Path;
use std::time::Duration;

use anyhow::ensure;

use super::Timed;
use super::cases::{Case, Selection};
use super::lab::{self, Network};
use super::process;
use super::report::{machine, reported, short};
use super::results::{Results, Series, System};
use crate::say;

use http::Http;
use reads::Reads;
pub(super) use serve::Serving;

mod answers;
mod capture;
mod http;
mod mapped;
pub(super) mod nginx;
mod overload;
mod plain_ring;
mod points;
mod reads;
mod serve;
mod stack;
mod transfer;
pub(super) mod wrk;

/// All cases, in the order of the report.
pub(super) fn all() -> impl Iterator<Item = &'static Case> {
    let servers = points::all().chain(overload::all());
    let moving = transfer::all().chain(answers::all()).chain(capture::all());
    servers.chain(moving).chain(mapped::all()).chain(reads::all())
}

/// Cases that one run of a system measures together.
struct Group<'a> {
    cases: Vec<&'static Case>,
    /// towpath's system first.
    systems: Vec<&'static str>,
    measure: Box<Measure<'a>>,
}

/// Measures a system for a while, and returns a figure for each case.
type Measure<'a> = dyn FnMut(&str, Duration) -> anyhow::Result<Vec<f64>> + 'a;

/// Measures all selected cases. This process must be the first of new namespaces, and have one
/// thread. Also returns how many measurements of towpath failed.
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
    groups.extend(overload::groups(&plan.selection));
    groups.extend(transfer::groups(&plan.selection));
    groups.extend(mapped::group(&plan.selection));
    groups.extend(answers::groups(&networks[1], &plan.selection));
    groups.extend(capture::group(&networks[1], &plan.selection));
    groups.extend(reads.iter().flat_map(|reads| reads.groups(&plan.selection)));
    ensure!(!groups.is_empty(), "no case is left to measure");
    let mut series: Vec<Vec<Series>> = groups.iter().map(Group::bare).collect();
    let mut failures = 0;
    for round in 1..=plan.rounds {
        for (group, series) in groups.iter_mut().zip(&mut series) {
            failures += group.round(round, series, plan.span);
            series.iter().for_each(|series| reported(round, plan.rounds, series));
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

    /// Measures each system once, starting with a different one in each round. Returns how many
    /// failed.
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

    /// Whether one of its cases is selected.
    fn is_selected(&self, selection: &Selection) -> bool {
        self.cases.iter().any(|case| selection.has(case))
    }
}

/// Just long enough to show that it works.
pub(super) const SPAN_QUICK: Duration = Duration::from_millis(50);
