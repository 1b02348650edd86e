//! `bench ring`: the cost of passing packets between threads, through a ring and other queues.
//!
//! `ring_1_producer` and `ring_2_producers` pass items of one word, the size of a packet handle, in
//! bursts, as fast as both sides can. A side that finds the queue full or empty polls again, and
//! yields now and then. Queues without burst calls are called once per item. Locks are taken once
//! per burst, or, in the queues that are the reference for `port_pps`, once per item.
//!
//! `port_pps` measures a whole port, as two workers of a network would share it. One thread makes
//! bursts of packets of the smallest size and queues them; it drops packets for which there is no
//! room, and wakes the other thread if that sleeps. The other thread takes bursts and writes them
//! to a TAP device; when the queue is empty, it looks again for a while and then sleeps. Packets
//! that were written count. `port_guest_pps` does this with a guest's port, whose receive queue is
//! in memory; the writing thread also acts as the guest. `port_guest_2_producers` has two threads
//! that queue, as when two guests of different workers send to a third.
//!
//! Each thread has its own processor if there are enough. With two processors, the second producer
//! shares one with the consumer.

use std::time::Duration;

use super::Timed;
use super::cases::Case;
use super::lab::Network;
use super::process;
use super::report::{machine, reported, short};
use super::results::{Results, Series, System};
use crate::say;

use drive::Setting;
use port::Port;
use queues::Kind;

mod drive;
mod port;
mod queues;

/// All cases, in the order of the report.
pub(super) fn all() -> impl Iterator<Item = &'static Case> {
    CASES.iter()
}

const ONE: &str = "ring_1_producer";
const TWO: &str = "ring_2_producers";
const PORT: &str = "port_pps";
const GUEST: &str = "port_guest_pps";
const GUEST_TWO: &str = "port_guest_2_producers";

static CASES: [Case; 5] = [
    Case::low(ONE, "ns/packet"),
    Case::low(TWO, "ns/packet"),
    Case::high(PORT, "Mpps"),
    Case::high(GUEST, "Mpps"),
    Case::high(GUEST_TWO, "Mpps"),
];

/// Measures all selected cases. This process must be the first of new namespaces, and have one
/// thread. Also returns how many measurements failed.
pub(super) fn measure(plan: &Timed) -> anyhow::Result<(Results, usize)> {
    process::go_first();
    // Before the threads are pinned to processors.
    let circumstances = vec![
        machine(),
        format!(
            "rounds: {}, seconds per measurement: {}, capacity: {}, bursts of {}",
            plan.rounds,
            short(plan.span.as_secs_f64()),
            queues::CAPACITY,
            drive::BURST
        ),
    ];
    let network = Network::new()?;
    let mut port = None;
    if plan.selection.cases().iter().any(|case| case.name == PORT) {
        port = Some(Port::tap(&network)?);
    }
    let mut guest = Port::guest()?;
    let setting = Setting::new(plan.span)?;
    let mut series: Vec<Series> = plan.selection.cases().iter().copied().map(bare).collect();
    let mut failures = 0;
    for round in 1..=plan.rounds {
        for series in &mut series {
            let case = series.case;
            for (kind, system) in kinds(case).zip(&mut series.systems) {
                let (producers, _) = shape(case);
                let figure = match &*case.name {
                    ONE | TWO => setting.ns_per_item(kind, producers),
                    GUEST | GUEST_TWO => guest.mpps(kind, producers, &setting),
                    _ => {
                        let port = port.as_mut().expect("made for this case");
                        port.mpps(kind, producers, &setting)
                    }
                };
                if let Err(error) = &figure {
                    say::error(format_args!("{}: {}: {error:#}", case.name, system.name));
                    failures += 1;
                }
                system.rounds.push(figure.ok());
            }
            reported(round, plan.rounds, series);
        }
    }
    Ok((Results { bench: "ring", circumstances, series }, failures))
}

/// The queues that a case can measure, towpath's ring first.
fn kinds(case: &Case) -> impl Iterator<Item = Kind> + use<> {
    let (producers, packets) = shape(case);
    Kind::ALL.into_iter().filter(move |kind| kind.can(producers, packets))
}

/// How many producers a case has, and whether they produce packets.
fn shape(case: &Case) -> (usize, bool) {
    match &*case.name {
        ONE => (1, false),
        TWO => (2, false),
        PORT | GUEST => (1, true),
        _ => (2, true),
    }
}

fn bare(case: &'static Case) -> Series {
    let system = |kind: Kind| System { name: kind.name().into(), rounds: Vec::new() };
    Series { case, systems: kinds(case).map(system).collect() }
}

/// Just long enough to show that it works.
pub(super) const SPAN_QUICK: Duration = Duration::from_millis(20);
