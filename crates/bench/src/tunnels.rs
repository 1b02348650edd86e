//! `bench tunnels`: TCP between machines on two hosts that a VXLAN tunnel joins: through two
//! towpaths, and through the kernel's own VXLAN devices, on the same veth pair with an MTU of 1500.
//!
//! Each host is a network namespace. A machine of towpath's is a namespace with a TAP device, one
//! of the kernel's a namespace behind a veth pair and a bridge. The veth pair between the hosts
//! favours the kernel: it passes tunnelled super-packets whole, which a network card would cut.
//!
//! `_cpu_all` is the processor time of everything that takes part, per GiB that arrived: towpath on
//! both hosts, iperf3 on both machines, and the kernel's softirq threads. The kernel's tunnel works
//! in softirqs, whose time counts for the process that they interrupt. What they take of a
//! processor that has nothing else to do is not counted, for either.
//!
//! All that takes part runs on any processor. The [`distance`] of the first two is measured before
//! and after each figure, and a run of a round is measured again if it changed.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{bail, ensure};

use super::Timed;
use super::cases::Case;
use super::distance;
use super::iperf::{self, Direction, Test};
use super::lab::{self, Network, ip};
use super::ping_pong::Stopwatch;
use super::process::{self, KernelThreads, Running};
use super::report::{machine, reported};
use super::results::{Results, Series, System};
use super::system::find_program;
use super::vm;
use crate::say;

/// Shortest measurement.
pub(super) const SPAN_QUICK: Duration = Duration::from_secs(1);
/// Longest wait for a network to serve.
const PATIENCE: Duration = Duration::from_secs(30);
/// MTU of a machine: what VXLAN over IPv6 leaves, so that one is right for both IP versions.
const INNER_MTU: u16 = 1430;

/// All cases, in the order of the report.
pub(super) fn all() -> impl Iterator<Item = &'static Case> {
    CASES.iter()
}

static CASES: [Case; 8] = [
    Case::high("tunnel_ipv4_1flow", "Gbit/s"),
    Case::low("tunnel_ipv4_1flow_cpu_all", "s/GiB"),
    Case::high("tunnel_ipv4_4flows", "Gbit/s"),
    Case::low("tunnel_ipv4_4flows_cpu_all", "s/GiB"),
    Case::high("tunnel_ipv6_1flow", "Gbit/s"),
    Case::low("tunnel_ipv6_1flow_cpu_all", "s/GiB"),
    Case::high("tunnel_ipv6_4flows", "Gbit/s"),
    Case::low("tunnel_ipv6_4flows_cpu_all", "s/GiB"),
];

/// The runs, with the two cases of each: throughput and processor time.
fn runs() -> impl Iterator<Item = (Traffic, &'static [Case])> {
    let traffics = [(4, 1), (4, 4), (6, 1), (6, 4)];
    traffics.map(|(version, flows)| Traffic { version, flows }).into_iter().zip(CASES.chunks(2))
}

/// The traffic of a run.
#[derive(Clone, Copy)]
struct Traffic {
    /// Of IP outside.
    version: u8,
    flows: u32,
}

/// Two hosts, and two machines on each.
struct Hosts {
    _hosts: [Network; 2],
    of_towpath: [Network; 2],
    of_kernel: [Network; 2],
    /// Networks of towpath, for each IP version outside.
    serving: Vec<Running>,
}

/// What joins the hosts.
#[derive(Clone, Copy)]
enum Tunnel {
    Towpath,
    Kernel,
}

/// Measures all selected cases. This process must be the first of new namespaces, and have one
/// thread. Also returns how many measurements of towpath failed.
pub(super) fn measure(
    plan: &Timed,
    kernel: &KernelThreads,
    scratch: &Path,
) -> anyhow::Result<(Results, usize)> {
    ensure!(find_program("iperf3").is_some(), "iperf3 is not installed");
    process::go_first();
    let (hosts, processors) = (Hosts::new(scratch)?, vm::places()?);
    let seconds = u32::try_from(plan.span.as_secs()).unwrap_or(u32::MAX).max(1);
    let rounds = plan.rounds;
    let circumstances = vec![
        machine(),
        format!("rounds: {rounds}, seconds per measurement: {seconds}, veth with MTU 1500"),
    ];
    let tunnels = [Tunnel::Towpath, Tunnel::Kernel];
    let bare = |tunnel: Tunnel| System { name: tunnel.name().into(), rounds: Vec::new() };
    let mut series: Vec<_> =
        CASES.iter().map(|case| Series { case, systems: tunnels.map(bare).into() }).collect();
    let mut failures = 0;
    for round in 1..=rounds {
        for ((traffic, cases), series) in runs().zip(series.chunks_mut(2)) {
            if !cases.iter().any(|case| plan.selection.has(case)) {
                continue;
            }
            let measure = |tunnel| hosts.measure(traffic, tunnel, seconds, kernel);
            let tries = distance::tries(rounds);
            let (of_tunnels, distances) = distance::steadily(&processors, tries, tunnels, measure)?;
            for (index, figures) in of_tunnels.into_iter().enumerate() {
                if let Err(error) = &figures {
                    let (case, name) = (&cases[0].name, tunnels[index].name());
                    say::error(format_args!("{case}: {name}: {error:#}"));
                    failures += usize::from(matches!(tunnels[index], Tunnel::Towpath));
                }
                let figures = figures.map_or([None; 2], |figures| figures.map(Some));
                for (series, figure) in series.iter_mut().zip(figures) {
                    series.systems[index].rounds.push(figure);
                }
            }
            for series in series.iter().filter(|series| plan.selection.has(series.case)) {
                reported(round, rounds, series);
            }
            distance::reported(distances);
        }
    }
    series.retain(|series| plan.selection.has(series.case));
    Ok((Results { bench: "tunnels", circumstances, series }, failures))
}

impl Tunnel {
    fn name(self) -> &'static str {
        match self {
            Self::Towpath => "towpath",
            Self::Kernel => "kernel",
        }
    }
}

impl Hosts {
    fn new(scratch: &Path) -> anyhow::Result<Self> {
        let both = || -> anyhow::Result<[Network; 2]> { Ok([Network::new()?, Network::new()?]) };
        let (hosts, of_towpath, of_kernel) = (both()?, both()?, both()?);
        for network in hosts.iter().chain(&of_towpath).chain(&of_kernel) {
            lab::prepare_program(network)?;
        }
        let peer = hosts[1].holder();
        hosts[0]
            .inside(|| ip(&format!("link add under type veth peer name under netns {peer}")))?;
        let mut serving = Vec::new();
        for (number, host) in (1..).zip(&hosts) {
            host.inside(|| {
                ip(&format!("addr add 10.9.0.{number}/24 dev under"))?;
                ip(&format!("addr add fd09::{number}/64 dev under nodad"))?;
                ip("link set under mtu 1500 up")
            })?;
        }
        for (index, host) in hosts.iter().enumerate() {
            let (own, other) = (index + 1, 2 - index);
            let outer = [
                (4, format!("10.9.0.{own}"), format!("10.9.0.{other}")),
                (6, format!("fd09::{own}"), format!("fd09::{other}")),
            ];
            for (version, near, far) in outer {
                let ready = scratch.join(format!("{version}-{own}"));
                serving.push(host.inside(|| serve(version, &near, &far, &ready))?);
                let holder = of_towpath[index].holder();
                host.inside(|| ip(&format!("link set tap{version} netns {holder}")))?;
                configure(&of_towpath[index], version, own)?;
                let machine = &of_kernel[index];
                host.inside(|| bridge(version, &near, &far, machine.holder()))?;
                configure(machine, version, own)?;
            }
        }
        Ok(Self { _hosts: hosts, of_towpath, of_kernel, serving })
    }

    /// Throughput in Gbit/s, and processor seconds per GiB.
    fn measure(
        &self,
        traffic: Traffic,
        tunnel: Tunnel,
        seconds: u32,
        kernel: &KernelThreads,
    ) -> anyhow::Result<[f64; 2]> {
        const GIB: f64 = (1_u64 << 30) as f64;
        let Traffic { version, flows } = traffic;
        let [near, far] = match tunnel {
            Tunnel::Towpath => &self.of_towpath,
            Tunnel::Kernel => &self.of_kernel,
        };
        let test = Test { ipv6: false, udp: false, direction: Direction::Out, flows };
        let target = [10, 20, version, 2].into();
        let serving: Vec<i32> = self.serving.iter().flat_map(Running::tree).collect();
        let used = || {
            let ended = process::cpu_seconds_of_ended();
            process::cpu_seconds(&serving) + ended + kernel.cpu_seconds()
        };
        let before = used();
        let moved = iperf::run_between(far, near, target, test, seconds)?;
        let used = used() - before;
        ensure!(moved.bytes > 0.0, "nothing arrived");
        Ok([moved.gbits_per_second, used / (moved.bytes / GIB)])
    }
}

/// Starts towpath on this host, with a tunnel and a TAP device for a machine. It writes the file
/// `ready` once it serves.
fn serve(version: u8, near: &str, far: &str, ready: &Path) -> anyhow::Result<Running> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(towpath_cli::NAME).args(["up", "--quiet", "--no-gateway"]);
    command.arg(format!("--tap=tap{version}"));
    command.arg(format!("--vxlan={version}:local={near},remote={far}"));
    command.arg("--pid-file").arg(ready);
    let mut serving = Running::start(&mut command)?;
    let started = Stopwatch::start();
    while fs::metadata(ready).map_or(0, |file| file.len()) == 0 {
        ensure!(started.elapsed() < PATIENCE, "towpath does not serve");
        if serving.wait(Duration::ZERO)?.is_some() {
            bail!("towpath failed: {}", serving.last_words());
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(serving)
}

/// Joins a machine to the other host by the kernel's VXLAN device and a bridge.
fn bridge(version: u8, near: &str, far: &str, machine: i32) -> anyhow::Result<()> {
    let (vxlan, bridge, port) =
        (format!("vxlan{version}"), format!("bridge{version}"), format!("port{version}"));
    let vni = 100 + u32::from(version);
    ip(&format!("link add {vxlan} type vxlan id {vni} dstport 4790 local {near} remote {far}"))?;
    ip(&format!("link add {bridge} type bridge"))?;
    ip(&format!("link add {port} type veth peer name tap{version} netns {machine}"))?;
    for name in [&vxlan, &port] {
        ip(&format!("link set {name} master {bridge} mtu {INNER_MTU} up"))?;
    }
    ip(&format!("link set {bridge} up"))
}

fn configure(machine: &Network, version: u8, number: usize) -> anyhow::Result<()> {
    machine.inside(|| {
        ip(&format!("addr add 10.20.{version}.{number}/24 dev tap{version}"))?;
        ip(&format!("link set tap{version} mtu {INNER_MTU} up"))?;
        lab::name_by_routes()
    })
}
