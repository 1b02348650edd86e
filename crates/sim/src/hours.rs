//! Hours of a small network, drawn from a seed: hosts on a switch, connections of all kinds, and
//! faults that come and go.
//!
//! # Theory of operation
//!
//! [`Hours::draw`] makes hosts with individual settings, each on a wire or on a virtual device that
//! accepts super-packets, which the switch segments for the others. [`Hours::run`] starts
//! connections for [`BUSY`] of virtual time, one or many at once, each of a [`Kind`]. Meanwhile the
//! *weather* changes: one cable gets other faults, is cut for a while, or becomes clean; from time
//! to time the MTU of the whole network changes. Then all cables become clean, and everything must
//! end.
//!
//! Invariants beside those of [`crate::lan`] and [`crate::flow`]: a connection makes progress
//! within [`PROGRESS_MAX`], plus the pauses of its own plans; each stream arrives completely unless
//! one side aborts; at the end no connection, packet, frame or loan is left.

use crate::flow::{Ending, Flow, Plan, Turns};
use crate::host::Host;
use crate::lan::{Lan, Port};
use crate::link::{Link, LinkConfig, Medium};
use crate::scenario::{Faults, able, config, endpoint, settings};
use crate::seed::Rng;
use std::net::SocketAddr;
use towpath_net::counters::DropReason;
use towpath_net::tcp::{ConnectionError, Settings};
use towpath_net::time::{Duration, Instant};
use towpath_packet::{Caps, MemoryConfig};

/// Time in which connections are started.
pub const BUSY: Duration = Duration::from_secs(2 * 3600);
/// Time after that in which everything must end.
pub const CALM: Duration = Duration::from_secs(2 * 3600);
/// Longest time without progress for no reason of the connection itself: a cable that is cut, then
/// the longest timeout (RFC 6298 §2.4), and as much again for frames lost meanwhile.
pub const PROGRESS_MAX: Duration = Duration::from_secs(600);
/// Longest time for which a cable is cut.
const CUT_MAX: Duration = Duration::from_secs(60);
/// Longest pause of a stalled reader and of an idle connection. If a window is closed in front of
/// data for longer, a few lost answers end the connection, as in Linux.
const STALL_MAX: Duration = Duration::from_secs(120);
/// Longest time between the starts of two connections.
const GAP_MAX: Duration = Duration::from_secs(60);
/// Longest time between two changes of the weather.
const WEATHER_MAX: Duration = Duration::from_secs(120);
/// Interval of progress checks.
const LOOK: Duration = Duration::from_secs(60);
/// Most short connections that start at once.
const CROWD_MAX: u64 = 30;
/// First port numbers of clients and of servers.
const PORTS: [u16; 2] = [10_000, 30_000];

/// How two applications use a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Much data in both directions at once.
    Bulk,
    /// Requests and answers in turns.
    Requests,
    /// One side closes and continues to read.
    HalfClose,
    /// One side aborts in the middle.
    Abort,
    /// A reader pauses for minutes.
    Stalled,
    /// Little data; many connections at once.
    Short,
    /// Little data, then minutes without data, then the end.
    Idle,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 7] = [
        Kind::Bulk,
        Kind::Requests,
        Kind::HalfClose,
        Kind::Abort,
        Kind::Stalled,
        Kind::Short,
        Kind::Idle,
    ];

    /// The plans of both sides; the connecting side is first.
    fn plans(self, rng: &mut Rng) -> [Plan; 2] {
        let mut bytes = |most: u64| rng.between(1, most);
        let base = Plan { keepalive: true, ..Plan::default() };
        let writes = |write| Plan { write, ..base };
        match self {
            Kind::Bulk => [writes(bytes(500_000)), writes(bytes(500_000))],
            Kind::Requests => {
                let (rounds, ask, answer) = (bytes(30), bytes(2000), bytes(20_000));
                let turns = |first, ours, theirs| {
                    let turns = Some(Turns { first, ours, theirs });
                    Plan { write: rounds * ours, turns, nodelay: true, ..base }
                };
                [turns(true, ask, answer), turns(false, answer, ask)]
            }
            Kind::HalfClose => {
                let answer = Plan { ending: Ending::CloseAfterPeer, ..writes(bytes(200_000)) };
                [writes(bytes(20_000)), answer]
            }
            Kind::Abort => {
                let aborts = Plan { ending: Ending::Abort, ..writes(bytes(100_000)) };
                [aborts, writes(bytes(300_000))]
            }
            Kind::Stalled => {
                let read_after = rng.duration(STALL_MAX);
                [writes(rng.between(1, 400_000)), Plan { read_after, ..base }]
            }
            Kind::Short => [writes(bytes(3000)), writes(bytes(3000))],
            Kind::Idle => {
                let idle = rng.duration(STALL_MAX);
                [Plan { idle, ..writes(rng.between(1, 3000)) }, writes(rng.between(1, 3000))]
            }
        }
    }
}

/// A connection of the run.
struct Pair {
    kind: Kind,
    client: usize,
    server: usize,
    local: SocketAddr,
    remote: SocketAddr,
    /// Intended pauses of both plans.
    pauses: Duration,
}

/// A run before it starts.
pub struct Hours {
    /// The network.
    pub lan: Lan,
    caps: Vec<Caps>,
    clean: LinkConfig,
    pairs: Vec<Pair>,
    /// Pairs that were open at the last check.
    open: Vec<usize>,
    /// When cut cables are restored.
    cuts: Vec<(Instant, usize)>,
}

impl Hours {
    /// Draws a network from `seed`.
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let delay = Duration::from_micros(rng.pick(&[50, 1000, 10_000, 40_000]));
        let mut clean = LinkConfig::clean(Medium::Wire, 1500, delay);
        clean.rate = Some(rng.pick(&[1_000_000, 10_000_000]));
        clean.queue_bytes = rng.between(20, 200) * 1514;
        let count = rng.between(3, 8) as usize;
        let mut caps = Vec::new();
        let ports = (0..count).map(|index| {
            let device = if rng.chance(500_000) { able(1500) } else { Caps::plain(1500) };
            caps.push(device);
            let is_virtual = device.checksum && rng.chance(500_000);
            let medium = if is_virtual { Medium::Tap } else { Medium::Wire };
            let cable = cable(clean, medium);
            let memory = MemoryConfig { packets: 4096, small_frames: 8192, large_frames: 1024 };
            let host = Host::new(config(index, host_settings(&mut rng)), device, memory);
            Port::new(host, Link::new(cable), Link::new(cable))
        });
        let ports = ports.collect();
        let lan = Lan::new(seed, rng, ports, &caps);
        Self { lan, caps, clean, pairs: Vec::new(), open: Vec::new(), cuts: Vec::new() }
    }

    /// Runs to the end and checks everything.
    ///
    /// # Panics
    /// If an invariant is violated. The message contains the seed.
    pub fn run(mut self) -> Lan {
        let end = Instant::START + BUSY;
        let (mut next_pair, mut next_weather) = (self.lan.now(), self.lan.now());
        let mut next_look = self.lan.now() + LOOK;
        while self.lan.now() < end {
            let cut = self.cuts.iter().map(|(at, _)| *at).min();
            let next = next_pair.min(next_weather).min(next_look).min(cut.unwrap_or(end)).min(end);
            self.lan.run(next);
            self.mend();
            if next >= next_pair {
                self.begin();
                next_pair = next + self.lan.rng.duration(GAP_MAX);
            }
            if next >= next_weather {
                self.change_weather();
                next_weather = next + self.lan.rng.duration(WEATHER_MAX);
            }
            if next >= next_look {
                self.look();
                next_look = next + LOOK;
            }
        }
        self.calm();
        self.judge();
        self.lan
    }

    /// Starts one connection or several.
    fn begin(&mut self) {
        let kind = self.lan.rng.pick(&Kind::ALL);
        let count = if kind == Kind::Short { self.lan.rng.between(1, CROWD_MAX) } else { 1 };
        let hosts = self.lan.ports.len() as u64;
        let client = self.lan.rng.below(hosts) as usize;
        let server = (client + self.lan.rng.between(1, hosts - 1) as usize) % hosts as usize;
        let v6 = self.lan.rng.chance(500_000);
        for _ in 0..count {
            let mut plans = kind.plans(&mut self.lan.rng);
            if self.lan.rng.chance(300_000) {
                plans.swap(0, 1);
            }
            let number = self.pairs.len() as u16;
            let [local, remote] = [(client, PORTS[0]), (server, PORTS[1])]
                .map(|(host, base)| endpoint(host, v6, base + number));
            let now = self.lan.now();
            self.lan.ports[server].host.listen(remote, plans[1]);
            let connected = self.lan.ports[client].host.connect(local, remote, plans[0], now);
            connected.expect("endpoints are used once");
            self.lan.ports[client].awake = true;
            let pauses = plans.iter().map(|plan| plan.read_after + plan.idle);
            let pauses = pauses.fold(Duration::ZERO, |sum, pause| sum + pause);
            self.open.push(self.pairs.len());
            self.pairs.push(Pair { kind, client, server, local, remote, pauses });
        }
    }

    /// Gives one cable other faults, or the whole network another MTU.
    fn change_weather(&mut self) {
        let rng = &mut self.lan.rng;
        let index = rng.below(self.caps.len() as u64) as usize;
        if rng.chance(50_000) {
            let mtu = rng.pick(&[1280, 1500, 9000]);
            return self.set_mtu(mtu);
        }
        let faults = rng.pick(&Faults::ALL);
        let cut = rng.chance(150_000).then(|| rng.duration(CUT_MAX));
        let medium = self.lan.ports[index].up.config.medium;
        let mut configs = [cable(self.clean, medium); 2];
        for config in &mut configs {
            faults.apply(config, rng);
            if medium == Medium::Tap {
                config.corrupt = 0;
            }
        }
        let now = self.lan.now();
        let port = &mut self.lan.ports[index];
        for (link, config) in [&mut port.up, &mut port.down].into_iter().zip(configs) {
            link.config = config;
            link.cut |= cut.is_some();
        }
        if let Some(cut) = cut {
            self.cuts.push((now + cut, index));
        }
    }

    fn set_mtu(&mut self, mtu: u16) {
        self.clean.mtu = mtu;
        for (port, caps) in self.lan.ports.iter_mut().zip(&mut self.caps) {
            caps.mtu = mtu;
            port.host.stack.set_caps(*caps);
            port.up.config.mtu = mtu;
            port.down.config.mtu = mtu;
            port.awake = true;
        }
        for (index, caps) in self.caps.iter().enumerate() {
            self.lan.set_caps(index, *caps);
        }
    }

    /// Restores cables that were cut long enough.
    fn mend(&mut self) {
        let now = self.lan.now();
        self.cuts.retain(|(at, _)| *at > now);
        for (index, port) in self.lan.ports.iter_mut().enumerate() {
            let cut = self.cuts.iter().any(|(_, other)| *other == index);
            port.up.cut = cut;
            port.down.cut = cut;
        }
    }

    /// Makes all cables clean and waits until everything has ended.
    fn calm(&mut self) {
        self.cuts.clear();
        self.mend();
        for port in &mut self.lan.ports {
            let clean = cable(self.clean, port.up.config.medium);
            port.up.config = clean;
            port.down.config = clean;
        }
        let end = self.lan.now() + CALM;
        while self.lan.now() < end && !self.is_over() {
            let next = self.lan.now() + LOOK;
            self.lan.run(next);
            self.look();
        }
    }

    fn is_over(&self) -> bool {
        self.open.is_empty()
            && self.lan.ports.iter().all(|port| {
                let flying = port.up.in_flight() + port.down.in_flight();
                port.host.stack.tcp_counts() == (0, 0) && flying == 0
            })
    }

    fn flows<'a>(lan: &'a Lan, pair: &Pair) -> [Option<&'a Flow>; 2] {
        let find = |host: usize, local| lan.ports[host].host.flow(local);
        [find(pair.client, pair.local), find(pair.server, pair.remote)]
    }

    /// Checks that every open connection has made progress recently.
    fn look(&mut self) {
        let now = self.lan.now();
        let mut problems = self.lan.problems();
        let (lan, pairs) = (&mut self.lan, &self.pairs);
        self.open.retain(|index| {
            let pair = &pairs[*index];
            let flows = Self::flows(lan, pair);
            // A connection that is aborted at once, or fails, may never reach the server.
            let begins = pair.kind != Kind::Abort && !is_unresolved(lan, pair);
            let open = flows.iter().any(|flow| flow.map_or(begins, |flow| !flow.is_done()));
            let latest = flows.into_iter().flatten().map(|flow| flow.progress).max();
            let patience = PROGRESS_MAX + pair.pauses;
            if open && latest.is_some_and(|at| now.since(at) > patience) {
                problems.push(format!(
                    "{:?} {} stands still: {}",
                    pair.kind,
                    pair.local,
                    show(flows)
                ));
            }
            if !open {
                lan.ports[pair.server].host.unlisten(pair.remote, now);
            }
            open
        });
        assert!(problems.is_empty(), "{problems:#?}\n{}", self.lan.report());
    }

    fn judge(&self) {
        let mut problems = self.lan.problems();
        problems.extend(self.lan.leaks());
        let mut unresolved = 0;
        for pair in &self.pairs {
            let flows = Self::flows(&self.lan, pair);
            if is_unresolved(&self.lan, pair) {
                unresolved += 1;
                continue;
            }
            let aborts = pair.kind == Kind::Abort;
            if !aborts && !flows.iter().all(|flow| flow.is_some_and(ended_well)) {
                problems.push(format!("{:?} {}: {}", pair.kind, pair.local, show(flows)));
            }
            let [Some(ours), Some(theirs)] = flows else { continue };
            if !aborts && (ours.written, theirs.written) != (theirs.read, ours.read) {
                problems.push(format!("{:?} {}: {}", pair.kind, pair.local, show(flows)));
            }
        }
        if unresolved > self.pairs.len() / 4 {
            problems.push(format!("{unresolved} of {} found no server", self.pairs.len()));
        }
        for (index, port) in self.lan.ports.iter().enumerate() {
            let counters = port.host.stack.counters();
            if counters.dropped(DropReason::TcpConnectionLimit) > 0 {
                problems.push(format!("host {index} had too many connections"));
            }
        }
        assert!(problems.is_empty(), "{problems:#?}\n{}", self.lan.report());
    }
}

/// The configuration of a cable for a medium. A super-packet fits into each queue.
fn cable(clean: LinkConfig, medium: Medium) -> LinkConfig {
    let more = if medium == Medium::Tap { u64::from(able(0).gso_bytes_max) } else { 0 };
    LinkConfig { medium, queue_bytes: clean.queue_bytes + more, ..clean }
}

fn ended_well(flow: &Flow) -> bool {
    flow.written == flow.plan.write && flow.closed == Some(None)
}

/// True if the attempt to connect failed because an address was not resolved: a cable was cut for
/// longer than solicitations are sent. Without the address of the client, the server gives up the
/// request, as in Linux, and resets the connection that the client has opened meanwhile.
fn is_unresolved(lan: &Lan, pair: &Pair) -> bool {
    let [ours, theirs] = Hours::flows(lan, pair);
    let server = lan.ports[pair.server].host.stack.counters();
    match ours.and_then(|flow| flow.closed) {
        Some(Some(ConnectionError::Unreachable)) => true,
        Some(Some(ConnectionError::Reset)) => {
            theirs.is_none() && server.dropped(DropReason::NeighborUnreachable) > 0
        }
        _ => false,
    }
}

fn show(flows: [Option<&Flow>; 2]) -> String {
    let side = |flow: Option<&Flow>| match flow {
        None => "never began".into(),
        Some(flow) => format!(
            "wrote {} of {}, read {}, closed {:?}, last at {:?}, plan {:?}",
            flow.written, flow.plan.write, flow.read, flow.closed, flow.progress, flow.plan,
        ),
    };
    format!("{}; {}", side(flows[0]), side(flows[1]))
}

/// Settings of a host: SYNs outlast a cable that is cut, and a host detects that its peer has
/// vanished.
fn host_settings(rng: &mut Rng) -> Settings {
    Settings {
        keepalive_idle: Duration::from_secs(120),
        keepalive_interval: Duration::from_secs(30),
        ..settings(rng)
    }
}
