//! `bench vm`: the cost of packets between two virtual machines, with their payload shared and with
//! it copied out at the switch.
//!
//! Most machines are drivers in this process: [`guest`] does the work of a guest's driver, over a
//! vhost-user socket and with its own memory, as fast as it can. The network is the one that
//! `towpath up` serves, in its own worker thread. Each machine's memory is used in turn and is much
//! larger than the caches, so that payload is read from memory and written to memory.
//!
//! One machine keeps a window of packets in flight to the other, as TCP does. Nothing is dropped,
//! and the measurement checks that. A case without suffix is packets or bytes per second. `_cpu` is
//! the worker thread's processor time per GiB of payload, or per small packet. `_copies` is how
//! often towpath copied each payload byte.
//!
//! With two processors, the drivers have one and the worker has the other.
//!
//! With more guests there are more such pairs of machines, on the same switch. With two workers,
//! the second one has the next processor, if there are three, or else that of the drivers: there,
//! the drivers take its time.
//!
//! `vm_copies_segmented` measures [`copies`] alone: the bound for what `vm_to_vm_segmented` can
//! gain.
//!
//! The cases of `vm_guests` use real machines: see [`machines`]. They are measured first, so that
//! the machines take no time from the other cases, and left out if there is nothing to boot.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::ensure;

use super::Timed;
use super::cases::Case;
use super::process::{self, KernelThreads};
use super::report::{machine, reported, short};
use super::results::{Results, Series, System};
use crate::say;

use copies::Copies;
use machines::{Accelerator, Booting, Kind};
use traffic::{Figures, Rig};
pub(super) use traffic::{RECEIVER, SENDER, Serving, Traffic, places};
use workload::{WORKLOADS, Workload};

mod copies;
mod guest;
mod machine;
mod machines;
mod traffic;
pub(super) mod workload;

/// All cases, in the order of the report.
pub(super) fn all() -> impl Iterator<Item = &'static Case> {
    CASES.iter().chain(machines::cases())
}

static CASES: [Case; 21] = [
    Case::high("vm_to_vm_segmented", "Gbit/s"),
    Case::low("vm_to_vm_segmented_cpu", "s/GiB"),
    Case::low("vm_to_vm_segmented_copies", "copies/byte"),
    Case::high("vm_to_vm_segmented_4guests", "Gbit/s"),
    Case::low("vm_to_vm_segmented_4guests_cpu", "s/GiB"),
    Case::low("vm_to_vm_segmented_4guests_copies", "copies/byte"),
    Case::high("vm_to_vm_segmented_8guests", "Gbit/s"),
    Case::low("vm_to_vm_segmented_8guests_cpu", "s/GiB"),
    Case::low("vm_to_vm_segmented_8guests_copies", "copies/byte"),
    Case::high("vm_to_vm_segmented_16guests", "Gbit/s"),
    Case::low("vm_to_vm_segmented_16guests_cpu", "s/GiB"),
    Case::low("vm_to_vm_segmented_16guests_copies", "copies/byte"),
    Case::high("vm_to_vm_whole", "Gbit/s"),
    Case::low("vm_to_vm_whole_cpu", "s/GiB"),
    Case::low("vm_to_vm_whole_copies", "copies/byte"),
    Case::high("vm_64B", "Mpps"),
    Case::low("vm_64B_cpu", "ns/packet"),
    Case::high("vm_to_vm_segmented_4guests_2workers", "Gbit/s"),
    Case::high("vm_64B_4guests", "Mpps"),
    Case::high("vm_64B_4guests_2workers", "Mpps"),
    Case::high(COPIES, "Gbit/s"),
];
const COPIES: &str = "vm_copies_segmented";

/// How the switch treats payload in guests' memory, towpath's default first.
const SYSTEMS: [(&str, bool); 2] = [("shared", false), ("orphan", true)];

/// Settings of the benchmark.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) timed: Timed,
    /// Directory with the images that real machines boot.
    pub(super) images: PathBuf,
}

/// Measures all selected cases. This process must be the first of new namespaces, and have one
/// thread. Sockets are in `scratch`. Also returns how many measurements failed.
pub(super) fn measure(
    Plan { timed, images }: &Plan,
    kernel: &KernelThreads,
    scratch: &Path,
) -> anyhow::Result<(Results, usize)> {
    process::go_first();
    let mut selection = timed.selection.clone();
    let is_real = |case: &Case| machines::cases().any(|other| other == case);
    if selection.cases().iter().any(|case| is_real(case))
        && let Some(why) = machines::missing(images)
    {
        say::error(format_args!("skipped: all cases with real machines: {why}"));
        machines::cases().for_each(|case| selection.remove(case));
    }
    ensure!(!selection.is_empty(), "no case is left to measure");
    let mut circumstances = vec![
        machine(),
        format!(
            "rounds: {}, seconds per measurement: {}",
            timed.rounds,
            short(timed.span.as_secs_f64())
        ),
        format!(
            "drivers: memory of {} MiB each, queues of {}",
            guest::BUFFER_BYTES >> 20,
            guest::QUEUE_SIZE
        ),
    ];
    let (real, drivers): (Vec<_>, Vec<_>) =
        selection.cases().iter().copied().partition(|case| is_real(case));
    let (mut of_real, mut failures) = (Vec::new(), 0);
    if !real.is_empty() {
        let accelerator = Accelerator::find(images);
        let booting = Booting { images, scratch, kernel, accelerator };
        for kind in &machines::KINDS {
            let cases: Vec<_> =
                real.iter().copied().filter(|case| kind.cases.contains(case)).collect();
            let (series, failed) =
                between_machines(timed, &cases, kind, &booting, &mut circumstances)?;
            of_real.extend(series);
            failures += failed;
        }
    }
    let (mut series, more) = between_drivers(timed, &drivers, scratch)?;
    series.extend(of_real);
    Ok((Results { bench: "vm", circumstances, series }, failures + more))
}

fn between_drivers(
    timed: &Timed,
    cases: &[&'static Case],
    scratch: &Path,
) -> anyhow::Result<(Vec<Series>, usize)> {
    let rig = Rig::new(timed.span, scratch)?;
    let names = SYSTEMS.map(|(name, _)| name);
    let mut series: Vec<Series> = cases.iter().map(|case| bare(case, &names)).collect();
    let (mut failures, mut copies) = (0, None);
    for round in 1..=timed.rounds {
        for workload in &WORKLOADS {
            let is_wanted = |series: &&mut Series| workload.figure_of(series.case).is_some();
            if !series.iter_mut().any(|series| is_wanted(&series)) {
                continue;
            }
            for (index, (name, orphan)) in SYSTEMS.into_iter().enumerate() {
                let figures = rig.measure(workload, orphan);
                if let Err(error) = &figures {
                    say::error(format_args!("{}: {name}: {error:#}", workload.name));
                    failures += 1;
                }
                let figures = figures.ok();
                for series in series.iter_mut().filter(is_wanted) {
                    series.systems[index].rounds.push(figure(workload, series.case, figures));
                }
            }
            series
                .iter_mut()
                .filter(is_wanted)
                .for_each(|series| reported(round, timed.rounds, series));
        }
        if let Some(series) = series.iter_mut().find(|series| series.case.name == COPIES) {
            let copies = match &mut copies {
                Some(copies) => copies,
                none => none.insert(Copies::new()?),
            };
            for (system, (_, twice)) in series.systems.iter_mut().zip(SYSTEMS) {
                system.rounds.push(Some(copies.rate(twice, timed.span)?));
            }
            reported(round, timed.rounds, series);
        }
    }
    Ok((series, failures))
}

/// A failed measurement is the last one: afterwards, the machines may be in any state.
fn between_machines(
    timed: &Timed,
    cases: &[&'static Case],
    kind: &'static Kind,
    booting: &Booting<'_>,
    circumstances: &mut Vec<String>,
) -> anyhow::Result<(Vec<Series>, usize)> {
    if cases.is_empty() {
        return Ok((Vec::new(), 0));
    }
    let mut machines = booting.boot(kind)?;
    circumstances.extend(machines.circumstances());
    let mut series: Vec<Series> =
        cases.iter().map(|case| bare(case, machines.systems(case))).collect();
    for round in 1..=timed.rounds {
        for (index, name) in machines.ways().iter().enumerate() {
            let figures = match machines.measure(index, timed.span) {
                Ok(figures) => figures,
                Err(error) => {
                    say::error(format_args!("real machines: {name}: {error:#}"));
                    return Ok((series, 1));
                }
            };
            for series in &mut series {
                if let Some(system) = series.systems.get_mut(index) {
                    system.rounds.push(kind.figure(series.case, &figures));
                }
            }
        }
        series.iter().for_each(|series| reported(round, timed.rounds, series));
    }
    machines.finish()?;
    Ok((series, 0))
}

fn figure(workload: &Workload, case: &Case, figures: Option<Figures>) -> Option<f64> {
    workload.figure_of(case).zip(figures).map(|(which, figures)| figures.value(which, workload))
}

fn bare(case: &'static Case, systems: &[&str]) -> Series {
    let system = |name: &&str| System { name: (*name).into(), rounds: Vec::new() };
    Series { case, systems: systems.iter().map(system).collect() }
}

/// Just long enough to show that it works.
pub(super) const SPAN_QUICK: Duration = Duration::from_millis(20);
