//! `bench workers`: what a second worker gains, where nothing else needs the processors.
//!
//! The drivers of the virtual machines are in the workers' own threads: each thread gives its
//! worker a turn, and then those machines whose ports that worker has. So two workers need two
//! processors, and one needs one. The thread of one worker does the same for all machines.
//!
//! Four machines are two pairs. Each machine sends to the other of its pair whenever fewer than
//! [`WINDOW`] of its packets have not been received, so none is dropped. In `workers_within_64B`
//! both machines of a pair have the same worker; in `workers_across_64B` they have different ones,
//! so that each packet crosses in a ring. What was sent and what was received is compared in the
//! end.
//!
//! The drivers' part of the work needs no other worker, so it gains fully from a second one. It is
//! a part of both figures.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use rustix::thread::CpuSet;
use towpath_net::time::Instant;
use towpath_packet::sync::{AtomicU64, Ordering};

use super::Timed;
use super::cases::Case;
use super::ping_pong::Stopwatch;
use super::process::{self, pin_thread};
use super::report::{machine, reported, short};
use super::results::{Results, Series, System};
use super::vm::places;
use super::vm::workload::SMALL;
use super::work::network::{Guest, NOW, Rig};
use crate::say;

/// All cases, in the order of the report.
pub(super) fn all() -> impl Iterator<Item = &'static Case> {
    CASES.iter()
}

static CASES: [Case; 2] = [Case::high(WITHIN, "Mpps"), Case::high("workers_across_64B", "Mpps")];
const WITHIN: &str = "workers_within_64B";

/// Numbers of workers to compare.
const SYSTEMS: [(&str, usize); 2] = [("two", 2), ("one", 1)];

/// Measures all selected cases. This process must be the first of new namespaces, and have one
/// thread. Also returns how many measurements failed.
pub(super) fn measure(plan: &Timed) -> anyhow::Result<(Results, usize)> {
    process::go_first();
    let processors = places()?;
    ensure!(
        processors[0] != processors[1],
        "two workers need two processors; this process has one"
    );
    let circumstances = vec![
        machine(),
        format!(
            "rounds: {}, seconds per measurement: {}, {MACHINES} machines, {WINDOW} packets \
             of each under way",
            plan.rounds,
            short(plan.span.as_secs_f64())
        ),
    ];
    let system = |(name, _): (&str, usize)| System { name: name.into(), rounds: Vec::new() };
    let series = |case| Series { case, systems: SYSTEMS.map(system).into() };
    let mut series: Vec<_> = plan.selection.cases().iter().copied().map(series).collect();
    let mut failures = 0;
    for round in 1..=plan.rounds {
        for series in &mut series {
            let case = series.case;
            let distance = if case.name == WITHIN { MACHINES / 2 } else { 1 };
            for ((name, workers), system) in SYSTEMS.into_iter().zip(&mut series.systems) {
                let figure = mpps(distance, &processors[..workers], plan.span);
                if let Err(error) = &figure {
                    say::error(format_args!("{}: {name}: {error:#}", case.name));
                    failures += 1;
                }
                system.rounds.push(figure.ok());
            }
            reported(round, plan.rounds, series);
        }
    }
    Ok((Results { bench: "workers", circumstances, series }, failures))
}

/// Millions of packets per second with a worker on each of these processors. The numbers of the
/// machines of a pair differ by `distance`, a power of two.
fn mpps(distance: u8, processors: &[CpuSet], span: Duration) -> anyhow::Result<f64> {
    let workers = processors.len();
    let mut rig = Rig::new(workers)?;
    let counts: [AtomicU64; MACHINES as usize] = Default::default();
    let mut shares: Vec<Vec<Machine<'_>>> = (0..workers).map(|_| Vec::new()).collect();
    for (own, guest) in rig.connect(MACHINES, |own| own ^ distance)?.into_iter().enumerate() {
        let (received, of_peer) = (&counts[own], &counts[own ^ usize::from(distance)]);
        shares[own % workers].push(Machine { guest, sent: 0, received, of_peer });
    }
    let mut others = rig.take_others();
    let (begin, clock) = (Barrier::new(workers), Stopwatch::start());
    let serve = |processor: &CpuSet, machines: &mut [Machine<'_>], turn: &mut Turn<'_>| {
        begin.wait();
        pin_thread(processor)?;
        let (came, from) = (received(machines), clock.elapsed());
        let mut now = from;
        while now < from + span {
            turn(NOW + now)?;
            machines.iter_mut().try_for_each(Machine::turn)?;
            now = clock.elapsed();
        }
        anyhow::Ok((received(machines) - came) as f64 * 1e-6 / (now - from).as_secs_f64())
    };
    let (first, shares_of_others) = shares.split_first_mut().context("no worker")?;
    let rates = thread::scope(|scope| {
        let serve = &serve;
        let of_others = others.iter_mut().zip(shares_of_others).zip(&processors[1..]);
        let serving: Vec<_> = of_others
            .map(|((worker, machines), processor)| {
                scope.spawn(move || serve(processor, machines, &mut |now| Ok(worker.step(now)?)))
            })
            .collect();
        let rate = serve(&processors[0], first, &mut |now| rig.turn_of_first(now));
        let joined = serving.into_iter().map(|thread| thread.join());
        let of_others = joined.map(|rate| rate.unwrap_or_else(|_| Err(anyhow!("it panicked"))));
        [rate].into_iter().chain(of_others).collect::<anyhow::Result<Vec<_>>>()
    })?;
    let mut machines: Vec<_> = shares.into_iter().flatten().collect();
    for _ in 0..TURNS_MAX {
        rig.turn_of_first(NOW + clock.elapsed())?;
        others.iter_mut().try_for_each(|worker| worker.step(NOW + clock.elapsed()))?;
        machines.iter_mut().try_for_each(Machine::take)?;
    }
    let sent: u64 = machines.iter().map(|machine| machine.sent).sum();
    ensure!(received(&machines) == sent, "{sent} packets were sent, {} came", received(&machines));
    Ok(rates.iter().sum())
}

/// Gives a worker a turn.
type Turn<'a> = dyn FnMut(Instant) -> anyhow::Result<()> + 'a;

/// A driver that sends to another, and receives from it.
struct Machine<'a> {
    guest: Guest,
    sent: u64,
    /// Packets that it and its peer have received. Each is written by one thread.
    received: &'a AtomicU64,
    of_peer: &'a AtomicU64,
}

impl Machine<'_> {
    /// Takes what has arrived, and fills the window.
    fn turn(&mut self) -> anyhow::Result<()> {
        self.take()?;
        // Relaxed: a count, which orders nothing.
        let under_way = self.sent - self.of_peer.load(Ordering::Relaxed);
        self.sent += u64::from(self.guest.send(WINDOW.saturating_sub(under_way as u32)));
        Ok(())
    }

    fn take(&mut self) -> anyhow::Result<()> {
        let (bytes, each) = (self.guest.take()?, SMALL.bytes_received());
        ensure!(bytes.is_multiple_of(each), "{bytes} bytes are no packets of {each}");
        // Relaxed: a count, which orders nothing.
        self.received.fetch_add(bytes / each, Ordering::Relaxed);
        Ok(())
    }
}

/// Packets that these machines have received.
fn received(machines: &[Machine<'_>]) -> u64 {
    // Relaxed: a count, which orders nothing.
    machines.iter().map(|machine| machine.received.load(Ordering::Relaxed)).sum()
}

/// A power of two.
const MACHINES: u8 = 4;
/// Most packets of a machine that have not been received: half of a ring.
const WINDOW: u32 = 128;
/// Turns after which all has arrived that was sent.
const TURNS_MAX: u32 = 100;
/// Just long enough to show that it works.
pub(super) const SPAN_QUICK: Duration = Duration::from_millis(20);
