//! `bench vm`: what packets between two virtual machines cost, with their payload shared and with
//! it copied out at the switch.
//!
//! The machines are drivers in this process: [`guest`] does what a guest's driver does, over a
//! vhost-user socket and memory of its own, as fast as it can. The network is the one that
//! `towpath up` serves, in a worker thread of its own. Each machine's memory is used in turn and
//! much larger than caches, so that payload comes from memory and goes there.
//!
//! One machine keeps a window of packets on the way to the other, as TCP does: nothing is dropped,
//! and that is checked. Cases have three figures: packets or bytes per second; with `_cpu` the
//! worker thread's processor time for each GiB of payload, or for each small packet; with `_copies`
//! how often towpath copied each payload byte.
//!
//! The drivers have one processor, the worker has another, where there are two.

use std::time::Duration;

use super::Timed;
use super::cases::Case;
use super::process;
use super::report::{machine, short, told};
use super::results::{Results, Series, System};
use crate::messages::Messages;

use traffic::{Figures, Rig};
pub(super) use traffic::{RECEIVER, SENDER, Serving, Sockets, places};
use workload::{WORKLOADS, Workload};

mod guest;
mod traffic;
pub(super) mod workload;

/// All cases, in the order of the report.
pub(super) fn all() -> impl Iterator<Item = &'static Case> {
    CASES.iter()
}

static CASES: [Case; 8] = [
    Case::high("vm_to_vm_segmented", "Gbit/s"),
    Case::low("vm_to_vm_segmented_cpu", "s/GiB"),
    Case::low("vm_to_vm_segmented_copies", "copies/byte"),
    Case::high("vm_to_vm_whole", "Gbit/s"),
    Case::low("vm_to_vm_whole_cpu", "s/GiB"),
    Case::low("vm_to_vm_whole_copies", "copies/byte"),
    Case::high("vm_64B", "Mpps"),
    Case::low("vm_64B_cpu", "ns/packet"),
];

/// What the switch does with payload in guests' memory, towpath's way first.
const SYSTEMS: [(&str, bool); 2] = [("shared", false), ("orphan", true)];

/// Measures; this process must be the first of new namespaces, and have one thread. Also returns
/// how many measurements failed.
pub(super) fn measure(plan: &Timed) -> anyhow::Result<(Results, usize)> {
    process::go_first();
    let circumstances = vec![
        machine(),
        format!(
            "rounds: {}, seconds per measurement: {}, memory of each guest: {} MiB, queues of {}",
            plan.rounds,
            short(plan.span.as_secs_f64()),
            guest::BUFFER_BYTES >> 20,
            guest::QUEUE_SIZE
        ),
    ];
    let rig = Rig::new(plan.span)?;
    let mut series: Vec<Series> = plan.selection.cases().iter().copied().map(bare).collect();
    let mut failures = 0;
    for round in 1..=plan.rounds {
        for workload in &WORKLOADS {
            let is_wanted = |series: &&mut Series| workload.figure_of(series.case).is_some();
            if !series.iter_mut().any(|series| is_wanted(&series)) {
                continue;
            }
            for (index, (name, orphan)) in SYSTEMS.into_iter().enumerate() {
                let figures = rig.measure(workload, orphan);
                if let Err(error) = &figures {
                    Messages::Quiet.error(format_args!("{}: {name}: {error:#}", workload.name));
                    failures += 1;
                }
                let figures = figures.ok();
                for series in series.iter_mut().filter(is_wanted) {
                    series.systems[index].rounds.push(figure(workload, series.case, figures));
                }
            }
            series.iter_mut().filter(is_wanted).for_each(|series| told(round, plan.rounds, series));
        }
    }
    Ok((Results { bench: "vm", circumstances, series }, failures))
}

fn figure(workload: &Workload, case: &Case, figures: Option<Figures>) -> Option<f64> {
    workload.figure_of(case).zip(figures).map(|(which, figures)| figures.value(which, workload))
}

fn bare(case: &'static Case) -> Series {
    let system = |(name, _): (&str, bool)| System { name: name.into(), rounds: Vec::new() };
    Series { case, systems: SYSTEMS.into_iter().map(system).collect() }
}

/// As short as shows that it works.
pub(super) const SPAN_QUICK: Duration = Duration::from_millis(20);
