//! `towpath-bench gateway`: the rounds.
//!
//! In every round, all gateways are started anew, each with its own program network. Then each
//! probe runs through all of them, one after the other, before the next probe starts; each round
//! starts with a different gateway. So figures that are compared are taken within seconds of each
//! other, and a gateway's memory of old connections ends with the round.

use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use super::cases::Selection;
use super::datagrams::{self, Arrived, Flood};
use super::flows;
use super::iperf::{self, Moved, Test};
use super::lab::{self, IPERF_PORT, Network};
use super::ping_pong::{self, Server, Stopwatch, percentile};
use super::process::{self, KernelThreads, Running};
use super::report::{machine, short};
use super::results::{Results, Series, System};
use super::system::{self, Setup, find_program};
use crate::say;
use towpath_gateway::flows::allow_many_files;

use probes::{Kind, Probe};

pub(super) mod probes;
mod web;

/// Settings of the benchmark.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) selection: Selection,
    /// towpath's setup first.
    pub(super) setups: Vec<Setup>,
    pub(super) rounds: u32,
    pub(super) seconds: u32,
}

/// Runs all measurements. This process must be the first of new namespaces, and have one thread.
/// Also returns how many measurements of towpath failed.
pub(super) fn measure(
    plan: &Plan,
    kernel: &KernelThreads,
    scratch: &Path,
) -> anyhow::Result<(Results, usize)> {
    let setups = installed(plan)?;
    process::go_first();
    // For many connections, here and in the systems.
    allow_many_files();
    let outside = Network::new()?;
    let both = |_| Ok([Network::new()?, Network::new()?]);
    let networks: Vec<_> = setups.iter().map(both).collect::<anyhow::Result<_>>()?;
    let algorithm = lab::prepare_host(&outside)?;
    if let Some(notice) = lab::congestion_control_notice(&algorithm) {
        say::notice(notice);
    }
    let mut systems = Vec::new();
    for ((subnet, [network, publishing]), setup) in (0..).zip(&networks).zip(&setups) {
        lab::prepare_program(network)?;
        lab::prepare_program(publishing)?;
        if setup.system == system::System::Veth {
            lab::join_by_veth(network, subnet, setup.mtu)?;
        }
        systems.push(Joined { setup: *setup, network, publishing, subnet, scratch });
    }
    let web = web::Server::start_for(&plan.selection, scratch)?;
    let series = bare_series(plan, &setups);
    let mut bench = Bench { plan, kernel, outside: &outside, series, web, failures: 0 };
    for round in 1..=plan.rounds {
        bench.round(round, &systems);
    }
    let circumstances = circumstances(plan, &algorithm, &setups);
    let results = Results { bench: "gateway", circumstances, series: bench.series };
    Ok((results, bench.failures))
}

/// The setups of the plan whose programs are installed.
fn installed(plan: &Plan) -> anyhow::Result<Vec<Setup>> {
    ensure!(find_program("ip").is_some(), "ip is not installed (package iproute2)");
    let uses_iperf = |probe: &Probe| {
        use Kind::{Both, Bulk, Loopback, Outside, Published};
        matches!(probe.kind, Bulk(_) | Outside(_) | Loopback(_) | Published(_) | Both(_))
    };
    if probes::probes(&plan.selection).any(uses_iperf) {
        ensure!(find_program("iperf3").is_some(), "iperf3 is not installed (package iperf3)");
    }
    let is_installed = |setup: &&Setup| match setup.system.program() {
        Some(program) if find_program(program).is_none() => {
            say::notice(format_args!("skipping {setup}: {program} is not installed"));
            false
        }
        _ => true,
    };
    Ok(plan.setups.iter().filter(is_installed).copied().collect())
}

fn bare_series(plan: &Plan, setups: &[Setup]) -> Vec<Series> {
    let systems = || {
        setups.iter().map(|setup| System { name: setup.to_string(), rounds: Vec::new() }).collect()
    };
    plan.selection.cases().iter().map(|case| Series { case, systems: systems() }).collect()
}

/// One line each about the machine, the measurement and the peers.
fn circumstances(plan: &Plan, algorithm: &str, setups: &[Setup]) -> Vec<String> {
    let (rounds, seconds) = (plan.rounds, plan.seconds);
    let mut lines = vec![
        machine(),
        format!("rounds: {rounds}, seconds per measurement: {seconds}, TCP with {algorithm}"),
    ];
    let mut programs: Vec<_> = setups.iter().filter_map(|setup| setup.system.program()).collect();
    programs.dedup();
    let versions: Vec<_> = programs.into_iter().filter_map(system::version).collect();
    if !versions.is_empty() {
        lines.push(versions.join(", "));
    }
    lines
}

/// Duration of the idle measurement: long enough to include periodic work.
const IDLE_SECONDS: u32 = 10;
/// Longest time until a gateway works; the slowest takes less than a second.
const READY_WAIT: Duration = Duration::from_secs(15);

/// A setup and the network that it joins to the host's.
struct Joined<'a> {
    setup: Setup,
    network: &'a Network,
    /// Network of another program with published ports. They cost memory, which must not count in
    /// the other probes.
    publishing: &'a Network,
    subnet: u8,
    scratch: &'a Path,
}

/// A system that works.
struct Live<'a> {
    joined: &'a Joined<'a>,
    /// `None` for the kernel.
    gateway: Option<Running>,
    /// Time from start to the first byte that came back.
    ready: Option<Duration>,
}

impl Live<'_> {
    fn pids(&self) -> Vec<i32> {
        self.gateway.as_ref().map(Running::tree).unwrap_or_default()
    }

    /// What the gateway logged, if anything, as the end of a message.
    fn last_words(&self) -> String {
        let words = self.gateway.as_ref().map(Running::last_words).unwrap_or_default();
        if words.is_empty() { words } else { format!(" ({words})") }
    }

    fn target(&self, ipv6: bool) -> Option<IpAddr> {
        self.joined.setup.target(ipv6, self.joined.subnet)
    }
}

impl<'a> Joined<'a> {
    /// Starts its gateway and waits until it works.
    fn start(&'a self) -> anyhow::Result<Live<'a>> {
        let server = Server::start(None)?;
        let command = self.setup.command(self.network.holder(), self.scratch)?;
        let started = Stopwatch::start();
        let mut gateway = command.map(|mut command| Running::start(&mut command)).transpose()?;
        let mut ready = None;
        for target in [false, true].into_iter().filter_map(|v6| self.setup.target(v6, self.subnet))
        {
            while !ping_pong::is_reachable(self.network, &server, target) {
                if let Some(gateway) = &mut gateway
                    && gateway.wait(Duration::ZERO)?.is_some()
                {
                    bail!("it ended: {}", gateway.last_words());
                }
                ensure!(started.elapsed() < READY_WAIT, "it does not connect to {target}");
                ping_pong::pause();
            }
            // The time until the first address works, which is IPv4. Others may take longer and
            // matter less.
            ready.get_or_insert(started.elapsed());
        }
        let ready = ready.filter(|_| gateway.is_some());
        // Its routes exist by now.
        self.network.inside(lab::name_by_routes)?;
        Ok(Live { joined: self, gateway, ready })
    }
}

fn arrived(live: &Live<'_>, flood: Flood, seconds: u32) -> anyhow::Result<Option<Arrived>> {
    let Some(target) = live.target(false) else { return Ok(None) };
    datagrams::flood(live.joined.network, target, flood, seconds).map(Some)
}

/// True if the port is published and the program has refused a connection to it, because nothing
/// listens there yet. A connection that is still in progress would become the only client of the
/// next server.
fn refuses_inside(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok_and(|mut stream| {
        let is_bounded = stream.set_read_timeout(Some(READY_WAIT)).is_ok();
        let ended = stream.read(&mut [0]);
        is_bounded && !ended.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    })
}

/// The state between rounds.
struct Bench<'a> {
    plan: &'a Plan,
    kernel: &'a KernelThreads,
    outside: &'a Network,
    series: Vec<Series>,
    /// `None` if it is not needed, or not installed.
    web: Option<web::Server>,
    /// Failed measurements of towpath.
    failures: usize,
}

/// The figures of a probe, by case; `None` where the case does not apply.
type Figures = Vec<Option<f64>>;

impl Bench<'_> {
    fn round(&mut self, round: u32, systems: &[Joined<'_>]) {
        let live: Vec<_> = systems
            .iter()
            .map(|joined| {
                joined.start().with_context(|| format!("{} does not start", joined.setup))
            })
            .collect();
        for (index, failed) in live.iter().enumerate() {
            if let Err(error) = failed {
                say::error(format_args!("{error:#}"));
                self.failures += usize::from(index == 0);
            }
        }
        for probe in probes::probes(&self.plan.selection) {
            let idle = matches!(probe.kind, Kind::Idle).then(|| self.idle(&live));
            let mut firsts = vec![String::new(); live.len()];
            // The order differs from round to round, because a measurement may affect the next.
            let mut order: Vec<_> = live.iter().enumerate().collect();
            let others = order.len().max(1);
            order.rotate_left(round.saturating_sub(1) as usize % others);
            for (index, live) in order {
                let figures = match (live, &idle) {
                    (Err(_), _) => Ok(Vec::new()),
                    (Ok(_), Some(idle)) => Ok(idle[index].clone()),
                    (Ok(live), None) => self.probe(probe.kind, live),
                };
                let figures = figures.unwrap_or_else(|error| {
                    let (case, name) = (&probe.cases[0].name, systems[index].setup);
                    let words = live.as_ref().map_or(String::new(), Live::last_words);
                    say::error(format_args!("{case}: {name}: {error:#}{words}"));
                    self.failures += usize::from(index == 0);
                    Vec::new()
                });
                let first = figures.first().copied().flatten().map_or("-".into(), short);
                firsts[index] = format!(" {} {first}", systems[index].setup);
                self.keep(probe, index, &figures);
            }
            let (name, unit, firsts) = (&probe.cases[0].name, probe.cases[0].unit, firsts.concat());
            let rounds = self.plan.rounds;
            say::notice(format_args!("round {round}/{rounds} {name}:{firsts} {unit}"));
        }
    }

    fn keep(&mut self, probe: &Probe, system: usize, figures: &[Option<f64>]) {
        for (at, case) in probe.cases.iter().enumerate() {
            if let Some(series) = self.series.iter_mut().find(|series| series.case == case) {
                let figure = figures.get(at).copied().flatten();
                series.systems[system].rounds.push(figure);
            }
        }
    }

    fn probe(&self, kind: Kind, live: &Live<'_>) -> anyhow::Result<Figures> {
        let seconds = self.plan.seconds;
        let network = live.joined.network;
        match kind {
            Kind::Ready => Ok(vec![live.ready.map(|ready| ready.as_secs_f64() * 1e3)]),
            Kind::Idle => unreachable!("all systems are idle at once"),
            Kind::Bulk(test) => self.bulk(test, live.target(test.ipv6), live),
            Kind::Outside(test) => self.outside(test, live),
            Kind::Loopback(test) => self.bulk(test, live.joined.setup.loopback(), live),
            Kind::Published(test) => self.published(test, live.joined),
            Kind::Both(test) => {
                let Some(target) = live.target(test.ipv6) else { return Ok(Vec::new()) };
                let moved = iperf::run(network, target, test, seconds)?;
                let there = moved.gbits_per_second;
                let back = moved.reverse_gbits_per_second.context("iperf3 has no reverse")?;
                let share = there.min(back) / (there + back) * 100.0;
                Ok(vec![Some(there + back), share.is_finite().then_some(share)])
            }
            Kind::RoundTrips => {
                let Some(target) = live.target(false) else { return Ok(Vec::new()) };
                let (one, pids) = (process::first_processor()?, live.pids());
                process::pin_processes(&pids, &one)?;
                let times = ping_pong::round_trips(network, target, seconds, one);
                process::pin_processes(&pids, &process::processors()?)?;
                let times = times?;
                let figure = |share| Some(percentile(&times, share).as_secs_f64() * 1e6);
                Ok(vec![figure(0.5), figure(0.99), figure(0.999)])
            }
            Kind::Bytes(flood) => {
                let arrived = arrived(live, flood, seconds)?;
                Ok(vec![arrived.map(|arrived| arrived.bytes as f64 * 8e-9 / arrived.seconds)])
            }
            Kind::Packets(flood) => {
                let arrived = arrived(live, flood, seconds)?;
                let thousands = |bytes: u64| bytes as f64 / f64::from(flood.bytes) * 1e-3;
                Ok(vec![arrived.map(|arrived| thousands(arrived.bytes) / arrived.seconds)])
            }
            Kind::Connections => {
                let Some(target) = live.target(false) else { return Ok(Vec::new()) };
                Ok(vec![Some(ping_pong::connection_rate(network, target, seconds)?)])
            }
            Kind::Http { is_kept } => {
                let Some(target) = live.target(false) else { return Ok(Vec::new()) };
                let Some(server) = &self.web else { return Ok(Vec::new()) };
                Ok(vec![Some(server.ask(network, target, is_kept, seconds)?)])
            }
            Kind::Flows => {
                let Some(target) = live.target(false) else { return Ok(Vec::new()) };
                let pids = live.pids();
                if pids.is_empty() {
                    return Ok(Vec::new());
                }
                let resident = || Some(process::resident_mib(&pids));
                let (figures, ended) = flows::open(network, target, &probes::OPEN_FLOWS, resident)?;
                match ended {
                    Err(error) if figures.is_empty() => return Err(error),
                    Err(error) => {
                        let name = live.joined.setup;
                        say::notice(format_args!("{name}: {error:#}"));
                    }
                    Ok(()) => {}
                }
                Ok(figures)
            }
        }
    }

    fn bulk(&self, test: Test, target: Option<IpAddr>, live: &Live<'_>) -> anyhow::Result<Figures> {
        let Some(target) = target else { return Ok(Vec::new()) };
        let network = live.joined.network;
        self.moving(&live.pids(), || iperf::run(network, target, test, self.plan.seconds))
    }

    /// Runs iperf3 with its server in the network outside.
    fn outside(&self, test: Test, live: &Live<'_>) -> anyhow::Result<Figures> {
        let Joined { setup, network, .. } = live.joined;
        let Some(target) = setup.outside(test.ipv6) else { return Ok(Vec::new()) };
        let run = || iperf::run_between(self.outside, network, target, test, self.plan.seconds);
        self.moving(&live.pids(), run)
    }

    /// Runs iperf3 through a published port of a separate gateway.
    fn published(&self, test: Test, joined: &Joined<'_>) -> anyhow::Result<Figures> {
        const FIRST_PORT: u16 = IPERF_PORT + 1;
        let network = joined.publishing;
        let port = FIRST_PORT + u16::from(joined.subnet);
        let command = joined.setup.publishing_command(network.holder(), port);
        let Some(mut command) = command else { return Ok(Vec::new()) };
        let mut gateway = Running::start(&mut command)?;
        let started = Stopwatch::start();
        while !refuses_inside(port) {
            if gateway.wait(Duration::ZERO)?.is_some() {
                bail!("it ended: {}", gateway.last_words());
            }
            ensure!(started.elapsed() < READY_WAIT, "it does not publish a port");
            ping_pong::pause();
        }
        // The routes that the gateway made.
        network.inside(lab::name_by_routes)?;
        let run = || iperf::run_published(network, port, test, self.plan.seconds);
        self.moving(&gateway.tree(), run)
    }

    /// Throughput, and processor time per GiB of the gateway and of all processes.
    fn moving(
        &self,
        pids: &[i32],
        run: impl FnOnce() -> anyhow::Result<Moved>,
    ) -> anyhow::Result<Figures> {
        const GIB: f64 = (1_u64 << 30) as f64;
        let used = || {
            let gateway = process::cpu_seconds(pids);
            let others = process::cpu_seconds_of_ended() + self.kernel.cpu_seconds();
            (gateway, gateway + others)
        };
        let before = used();
        let moved = run()?;
        let after = used();
        let gib = moved.bytes / GIB;
        let per_gib = |seconds: f64| (gib > 0.0).then(|| seconds / gib);
        Ok(vec![
            Some(moved.gbits_per_second),
            per_gib(after.0 - before.0).filter(|_| !pids.is_empty()),
            per_gib(after.1 - before.1),
        ])
    }

    /// Memory, and processor time in ms per s, of all systems while idle.
    fn idle(&self, systems: &[anyhow::Result<Live<'_>>]) -> Vec<Figures> {
        let pids = |live: &anyhow::Result<Live<'_>>| live.as_ref().map_or(Vec::new(), Live::pids);
        let pids: Vec<_> = systems.iter().map(pids).collect();
        // Work left over from the start does not count as idle.
        std::thread::sleep(Duration::from_millis(200));
        let used = || pids.iter().map(|pids| process::cpu_seconds_fine(pids)).collect::<Vec<_>>();
        let before = used();
        let started = Stopwatch::start();
        // One second in a quick run.
        let seconds = if self.plan.seconds > 1 { self.plan.seconds.max(IDLE_SECONDS) } else { 1 };
        std::thread::sleep(Duration::from_secs(seconds.into()));
        let elapsed = started.elapsed().as_secs_f64();
        let after = used();
        let figures = |(at, pids): (usize, &Vec<i32>)| {
            let cpu = (after[at] - before[at]) / elapsed * 1e3;
            let is_there = !pids.is_empty();
            vec![is_there.then(|| process::resident_mib(pids)), is_there.then_some(cpu)]
        };
        pids.iter().enumerate().map(figures).collect()
    }
}
