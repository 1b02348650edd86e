//! `bench vhost`: packets between two vhost-user ports, through towpath's switch and through the
//! vhost ports of DPDK's testpmd, which forwards each packet from one port to the other without
//! inspecting it.
//!
//! For packets of 64 bytes, another testpmd with two virtio-user ports is the source and sink of
//! both. It sends a window of packets into each port, and forwards packets that arrive at one port
//! out of the other. So the number of packets in flight stays constant, and nothing is dropped.
//!
//! Super-packets come from the drivers of `bench vm`, because testpmd does not generate any.
//! testpmd's ports receive them as plain long frames: it has to move the bytes, without
//! segmentation or checksums.
//!
//! With two processors, the forwarder has one, and source and sink have the other. testpmd polls:
//! it uses all of its processor, with or without packets.
//!
//! In a virtual machine, the distance of these two changes ([`distance`]), and every forwarder has
//! about half of its rate where they are far apart. So it is measured before and after each figure,
//! and a case of a round is measured again if it changed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{bail, ensure};
use rustix::thread::CpuSet;

use super::Timed;
use super::cases::Case;
use super::distance;
use super::ping_pong::Stopwatch;
use super::process::{self, Running, pin_thread};
use super::report::{machine, reported, short};
use super::results::{Results, Series, System};
use super::scratch::Scratch;
use super::system::find_program;
use super::vm::workload::{LONG_FRAME, WHOLE};
use super::vm::{self, RECEIVER, SENDER, Serving, Traffic};
use crate::say;

/// All cases, in the order of the report.
pub(super) fn all() -> impl Iterator<Item = &'static Case> {
    CASES.iter()
}

static CASES: [Case; 3] = [
    Case::high(SMALL, "Mpps"),
    Case::high(SMALL_PACKED, "Mpps"),
    Case::high("vhost_64KiB", "Gbit/s"),
];

/// The forwarders, towpath first.
#[derive(Clone, Copy)]
enum Forwarder {
    Towpath,
    Testpmd,
}

/// A running forwarder; it ends with this value.
enum Forwarding {
    Towpath(Serving),
    Testpmd(Running),
}

/// Processors and directories of a measurement.
struct Places<'a> {
    /// Of source and sink, and of the forwarder.
    processors: [CpuSet; 2],
    /// Directory of sockets.
    scratch: &'a Path,
}

/// Measures all selected cases. This process must be the first of new namespaces, and have one
/// thread. Also returns how many measurements of towpath failed.
pub(super) fn measure(plan: &Timed, scratch: &Path) -> anyhow::Result<(Results, usize)> {
    ensure!(find_program(TESTPMD).is_some(), "{TESTPMD} is not installed: in Debian, dpdk-dev");
    process::go_first();
    let places = Places { processors: vm::places()?, scratch };
    let circumstances = vec![
        machine(),
        format!(
            "rounds: {}, seconds per measurement: {}, {WINDOW_BURSTS} bursts of 32 each way",
            plan.rounds,
            short(plan.span.as_secs_f64())
        ),
    ];
    let systems = [Forwarder::Towpath, Forwarder::Testpmd];
    let bare = |forwarder: Forwarder| System { name: forwarder.name().into(), rounds: Vec::new() };
    let series = |case| Series { case, systems: systems.map(bare).into() };
    let mut series: Vec<_> = plan.selection.cases().iter().copied().map(series).collect();
    let mut failures = 0;
    for round in 1..=plan.rounds {
        for series in &mut series {
            let measure = |forwarder| places.measure(series.case, forwarder, plan.span);
            let tries = distance::tries(plan.rounds);
            let (figures, distances) =
                distance::steadily(&places.processors, tries, systems, measure)?;
            for (index, figure) in figures.into_iter().enumerate() {
                if let Err(error) = &figure {
                    let (case, name) = (&series.case.name, systems[index].name());
                    say::error(format_args!("{case}: {name}: {error:#}"));
                    failures += usize::from(matches!(systems[index], Forwarder::Towpath));
                }
                series.systems[index].rounds.push(figure.ok());
            }
            reported(round, plan.rounds, series);
            distance::reported(distances);
        }
    }
    Ok((Results { bench: "vhost", circumstances, series }, failures))
}

impl Forwarder {
    fn name(self) -> &'static str {
        match self {
            Self::Towpath => "towpath",
            Self::Testpmd => "testpmd",
        }
    }

    /// Starts the forwarder, with its sockets in `sockets`.
    fn start(self, sockets: &Scratch, place: &CpuSet) -> anyhow::Result<Forwarding> {
        if let Self::Towpath = self {
            return Ok(Forwarding::Towpath(Serving::start(false, sockets, &WHOLE, [*place; 2])?));
        }
        let mut command = testpmd(place, &["net_vhost"]);
        for (index, name) in [SENDER, RECEIVER].into_iter().enumerate() {
            let path = sockets.path(name);
            let port = format!("net_vhost{index},iface={}", path.display());
            command.args(["--vdev", &port]);
        }
        // It forwards until its standard input ends. Packets that arrive before it begins must not
        // be lost.
        command.args(["--", "--auto-start", "--no-flush-rx"]).args(SETTINGS);
        let mut testpmd = Running::start_fed(&mut command)?;
        let are_there = || [SENDER, RECEIVER].iter().all(|name| sockets.path(name).exists());
        testpmd.until("sockets", |_| are_there())?;
        Ok(Forwarding::Testpmd(testpmd))
    }
}

impl Places<'_> {
    fn measure(&self, case: &Case, forwarder: Forwarder, span: Duration) -> anyhow::Result<f64> {
        let [ends, forwarding] = &self.processors;
        let sockets = Scratch::inside(self.scratch)?;
        let mut forwarding = forwarder.start(&sockets, forwarding)?;
        let figure = match &*case.name {
            SMALL => small(&sockets, ends, span, &mut forwarding, false),
            SMALL_PACKED => small(&sockets, ends, span, &mut forwarding, true),
            _ => large(&sockets, ends, span, &mut forwarding),
        };
        match forwarding {
            Forwarding::Towpath(serving) => {
                let report = serving.stop()?;
                let drops = report.ports.iter().flat_map(|port| port.counters.drops());
                let dropped: u64 = drops.map(|(_, count)| count).sum();
                ensure!(
                    figure.is_err() || dropped == 0,
                    "{dropped} packets were dropped: {report}"
                );
            }
            Forwarding::Testpmd(mut testpmd) => {
                ensure!(testpmd.wait(Duration::ZERO)?.is_none(), "{}", testpmd.last_words());
            }
        }
        figure
    }
}

/// Millions of packets of 64 bytes per second, in both directions together, through split or packed
/// rings.
fn small(
    sockets: &Scratch,
    place: &CpuSet,
    span: Duration,
    forwarding: &mut Forwarding,
    is_packed: bool,
) -> anyhow::Result<f64> {
    let mut command = testpmd(place, &["net_virtio"]);
    for (index, name) in [SENDER, RECEIVER].into_iter().enumerate() {
        let path = sockets.path(name);
        let (path, mac, packed) = (path.display(), MACS[index], u8::from(is_packed));
        let port = format!("virtio_user{index},path={path},mac={mac},packed_vq={packed}");
        command.args(["--vdev", &port]);
    }
    command.args(["--", "--interactive", "--txpkts=64"]).args(SETTINGS);
    for (index, peer) in [MACS[1], MACS[0]].into_iter().enumerate() {
        command.arg(format!("--eth-peer={index},{peer}"));
    }
    let mut testpmd = Running::start_fed(&mut command)?;
    let mut prompts = 1;
    let mut say = |text: &str| {
        // testpmd writes its prompts at once, and its other output when it ends.
        testpmd.until("prompt", |log| log.matches("testpmd>").count() >= prompts)?;
        prompts += 1;
        testpmd.feed(text)
    };
    say("\n")?;
    // Packets that arrive before both ports are known would be dropped.
    forwarding.until_connected()?;
    thread::sleep(WARM_UP);
    say(&format!("start tx_first {WINDOW_BURSTS}\n"))?;
    // The first query reports rates since the start, the second since the first.
    for waited in [WARM_UP, span] {
        say("\n")?;
        thread::sleep(waited);
        say("show port stats all\n")?;
    }
    say("quit\n")?;
    ensure!(testpmd.wait(END_MAX)?.is_some(), "testpmd does not stop");
    let log = testpmd.log();
    let rates: Vec<u64> = log
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Rx-pps:")?.split_whitespace().next())
        .filter_map(|rate| rate.parse().ok())
        .collect();
    let [_, _, first, second] = rates[..] else { bail!("cannot parse its figures: {log}") };
    ensure!(first > 0 && second > 0, "no packet arrives");
    Ok((first + second) as f64 * 1e-6)
}

/// Gbit/s of super-packets of nearly 64 KiB, in one direction. Source and sink are drivers in this
/// process, because testpmd's drivers send none.
fn large(
    sockets: &Scratch,
    place: &CpuSet,
    span: Duration,
    forwarding: &mut Forwarding,
) -> anyhow::Result<f64> {
    let workload = match forwarding {
        Forwarding::Towpath(_) => &WHOLE,
        Forwarding::Testpmd(_) => &LONG_FRAME,
    };
    let drive = || {
        pin_thread(place)?;
        let mut traffic = Traffic::connect(sockets, workload)?;
        forwarding.until_connected()?;
        traffic.warm_up()?;
        traffic.speed(span)
    };
    let driven = thread::scope(|scope| scope.spawn(drive).join());
    driven.unwrap_or_else(|_| bail!("the drivers panicked"))
}

impl Forwarding {
    /// Waits until it reports that both its ports are connected.
    fn until_connected(&mut self) -> anyhow::Result<()> {
        let Self::Testpmd(testpmd) = self else { return Ok(()) };
        let is_up =
            |log: &str, port| log.contains(&format!("Port {port}: link state change event"));
        testpmd.until("connected ports", |log| is_up(log, 0) && is_up(log, 1))
    }
}

/// testpmd on one processor with drivers for these kinds of ports, but without ports yet.
fn testpmd(place: &CpuSet, kinds: &[&str]) -> Command {
    let number = (0..CpuSet::MAX_CPU).find(|cpu| place.is_set(*cpu)).unwrap_or(0);
    let mut command = Command::new(TESTPMD);
    command.arg(format!("--lcores=0@{number},1@{number}"));
    command.args(["--no-pci", "--no-huge", "-m", "512", "--no-telemetry", "--no-shconf"]);
    command.arg("--log-level=*:error");
    // Loads single drivers where they are found; otherwise testpmd loads all of them.
    if let Some(drivers) = drivers() {
        for kind in ["mempool_ring"].iter().chain(kinds) {
            command.arg("-d").arg(drivers.join(format!("librte_{kind}.so")));
        }
    }
    command
}

/// The directory of DPDK's drivers in Debian.
fn drivers() -> Option<PathBuf> {
    let inside = |path: &Path| fs::read_dir(path).ok().map(|entries| entries.flatten());
    let machines = inside(Path::new("/usr/lib"))?.map(|entry| entry.path().join("dpdk"));
    let mut versions = machines.filter_map(|path| inside(&path)).flatten();
    versions.find_map(|entry| {
        let path = entry.path();
        path.join("librte_net_virtio.so").exists().then_some(path)
    })
}

impl Running {
    /// Waits until the log satisfies `is_so`.
    fn until(&mut self, what: &str, is_so: impl Fn(&str) -> bool) -> anyhow::Result<()> {
        let started = Stopwatch::start();
        while !is_so(&self.log()) {
            if self.wait(Duration::ZERO)?.is_some() {
                bail!("testpmd ended: {}", self.last_words());
            }
            ensure!(started.elapsed() < START_MAX, "no {what} of testpmd: {}", self.last_words());
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

const SMALL: &str = "vhost_64B";
const SMALL_PACKED: &str = "vhost_64B_packed";
const TESTPMD: &str = "dpdk-testpmd";
/// Options of both testpmd processes.
const SETTINGS: [&str; 6] = [
    "--forward-mode=io",
    "--nb-cores=1",
    "--txd=1024",
    "--rxd=1024",
    "--total-num-mbufs=16384",
    "--no-lsc-interrupt",
];
const MACS: [&str; 2] = ["02:00:00:00:00:0a", "02:00:00:00:00:0b"];
/// Half of a ring's capacity.
const WINDOW_BURSTS: u32 = 16;
const WARM_UP: Duration = Duration::from_millis(300);
/// Just long enough to show that it works.
pub(super) const SPAN_QUICK: Duration = Duration::from_millis(300);
/// Much longer than it takes to start, even on a busy machine.
const START_MAX: Duration = Duration::from_secs(60);
/// Much longer than it takes to end.
const END_MAX: Duration = Duration::from_secs(30);
