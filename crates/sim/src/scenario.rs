//! Complete runs drawn from a seed: hosts, links, connections, and the checks at the end.
//!
//! A run is determined by its kind of [`Faults`] and its seed, including the settings of both
//! stacks: address families, devices with and without offload, sizes of packets and buffers,
//! options, and applications that write in various sizes, pause, half-close or reset.

use crate::flow::{Ending, Plan};
use crate::host::Host;
use crate::link::{Link, LinkConfig, Medium};
use crate::seed::Rng;
use crate::world::World;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use towpath_net::counters::DropReason;
use towpath_net::stack::{Address, Config, Limits};
use towpath_net::tcp::{ConnectionError, Settings};
use towpath_net::time::{Duration, Instant};
use towpath_net::wire::MacAddr;
use towpath_packet::{Caps, MemoryConfig, Site};

/// Faults of the links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faults {
    /// No faults.
    None,
    /// Single frames are lost.
    Loss,
    /// Series of frames are lost.
    BurstLoss,
    /// Frames overtake others.
    Reordering,
    /// Frames are duplicated.
    Duplication,
    /// Frames have a damaged byte.
    Corruption,
    /// The delay varies considerably.
    Jitter,
    /// A slow link with a short queue.
    Narrow,
    /// Several of these, drawn for each direction.
    All,
}

impl Faults {
    /// All kinds.
    pub const ALL: [Faults; 9] = [
        Faults::None,
        Faults::Loss,
        Faults::BurstLoss,
        Faults::Reordering,
        Faults::Duplication,
        Faults::Corruption,
        Faults::Jitter,
        Faults::Narrow,
        Faults::All,
    ];

    /// Sets the faults of `link`.
    pub(crate) fn apply(self, link: &mut LinkConfig, rng: &mut Rng) {
        match self {
            Faults::None => {}
            Faults::Loss => link.loss = rng.between(1000, 50_000) as u32,
            Faults::BurstLoss => {
                link.burst_begin = rng.between(500, 5000) as u32;
                link.burst_max = rng.between(2, 10) as u32;
            }
            Faults::Reordering => {
                link.reorder = rng.between(1000, 100_000) as u32;
                link.reorder_by = rng.duration(2 * link.delay);
            }
            Faults::Duplication => link.duplicate = rng.between(1000, 100_000) as u32,
            Faults::Corruption if link.medium == Medium::Tap => {}
            Faults::Corruption => link.corrupt = rng.between(1000, 30_000) as u32,
            Faults::Jitter => link.jitter = rng.duration(Duration::from_millis(300)),
            Faults::Narrow => {
                link.rate = Some(rng.between(100_000, 2_000_000));
                link.queue_bytes = rng.between(8, 60) * (u64::from(link.mtu) + 14);
                if link.medium == Medium::Tap {
                    link.queue_bytes = link.queue_bytes.max(70_000);
                }
            }
            Faults::All => {
                for one in &Faults::ALL[1..7] {
                    if rng.chance(500_000) {
                        one.apply(link, rng);
                    }
                }
            }
        }
    }
}

/// Longest virtual time of a run: many timeouts in a row, at most two minutes each.
const TIME_MAX: Duration = Duration::from_secs(3600);

/// The address of host `index`.
pub fn address(index: usize, v6: bool) -> IpAddr {
    let last = index as u16 + 1;
    if v6 {
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last).into()
    } else {
        Ipv4Addr::new(10, 0, 0, last as u8).into()
    }
}

/// An endpoint of host `index`.
pub fn endpoint(index: usize, v6: bool, port: u16) -> SocketAddr {
    SocketAddr::new(address(index, v6), port)
}

/// The configuration of host `index`.
pub fn config(index: usize, tcp: Settings) -> Config {
    Config {
        mac: MacAddr([2, 0, 0, 0, 0, index as u8 + 1]),
        addresses: vec![
            Address { address: address(index, false), prefix_len: 24 },
            Address { address: address(index, true), prefix_len: 64 },
        ],
        next_hops: Vec::new(),
        transparent: false,
        secret: [index as u64 + 1, 0x5eed],
        tcp,
        limits: Limits::default(),
    }
}

/// A device with all offloads.
pub fn able(mtu: u16) -> Caps {
    Caps {
        mtu,
        checksum: true,
        tso4: true,
        tso6: true,
        uso: true,
        tunnel: false,
        gso_bytes_max: 65_549,
        segments: false,
    }
}

/// A run before it starts.
pub struct Scenario {
    /// The world.
    pub world: World,
    /// The kind of faults.
    pub faults: Faults,
    /// The address family of its connections.
    pub v6: bool,
    pairs: Vec<(usize, SocketAddr, SocketAddr)>,
    aborts: bool,
}

impl Scenario {
    /// Draws a run.
    pub fn draw(seed: u64, faults: Faults) -> Self {
        let mut rng = Rng::new(seed ^ (faults as u64) << 56);
        let medium = if rng.chance(500_000) { Medium::Wire } else { Medium::Tap };
        let v6 = rng.chance(500_000);
        let least = if v6 { 1280 } else { 576 };
        let mtus = [1500, 1500, least, 9000, 65_520];
        let mtu = rng.pick(&mtus);
        let delay = Duration::from_micros(rng.pick(&[10, 500, 5000, 40_000]));
        let make = |rng: &mut Rng| {
            let mut link = LinkConfig::clean(medium, mtu, delay);
            if rng.chance(300_000) {
                link.delay = 3 * delay;
            }
            link.rate = rng.pick(&[None, Some(125_000_000), Some(12_500_000)]);
            faults.apply(&mut link, rng);
            Link::new(link)
        };
        let links = [make(&mut rng), make(&mut rng)];
        let hosts = [0, 1].map(|index| {
            let caps = if rng.chance(500_000) { able(mtu) } else { Caps::plain(mtu) };
            let memory = MemoryConfig { packets: 4096, small_frames: 8192, large_frames: 1024 };
            Host::new(config(index, settings(&mut rng)), caps, memory)
        });
        let world = World::new(rng.draw(), hosts, links);
        let mut scenario = Self { world, faults, v6, pairs: Vec::new(), aborts: false };
        for number in 0..rng.between(1, 4) as u16 {
            scenario.pair(number, &mut rng);
        }
        scenario
    }

    fn pair(&mut self, number: u16, rng: &mut Rng) {
        let client = rng.below(2) as usize;
        let local = endpoint(client, self.v6, 1000 + number);
        let remote = endpoint(1 - client, self.v6, 80 + number);
        let mut plans = [plan(rng), plan(rng)];
        if plans.iter().all(|plan| plan.ending == Ending::CloseAfterPeer) {
            plans[0].ending = Ending::Close;
        }
        if rng.chance(50_000) {
            plans[0].ending = Ending::Abort;
            self.aborts = true;
        }
        // Half of them, without a draw, so that seeds keep their meaning.
        plans[1].answers_within = number.is_multiple_of(2).then_some(ANSWERS_WITHIN);
        plans[1].sleeps_on_answers = number % 4 == 2;
        self.world.hosts[1 - client].listen(remote, plans[1]);
        let now = self.world.now();
        let connected = self.world.hosts[client].connect(local, remote, plans[0], now);
        connected.expect("endpoints are used once");
        self.pairs.push((client, local, remote));
    }

    /// Runs to the end and checks everything.
    ///
    /// # Panics
    /// If a check fails. The message contains the seed.
    pub fn run(mut self) -> World {
        let flows = 2 * self.pairs.len();
        let end = Instant::START + TIME_MAX;
        self.world.run_while(end, |world| {
            let hosts = world.hosts.iter();
            let done = hosts.flat_map(|host| &host.flows).filter(|flow| flow.is_done()).count();
            done < flows || world.links.iter().any(|link| link.in_flight() > 0)
        });
        let mut problems = self.world.problems();
        problems.extend(self.unfinished());
        problems.extend(self.world.unaccounted());
        if !self.is_half_open() {
            problems.extend(self.world.held());
        }
        problems.extend(self.excess());
        let state = self.world.report();
        assert!(problems.is_empty(), "{:?}: {problems:#?}\n{state}", self.faults);
        self.world
    }

    /// True if a reset may have been lost, and the other end waits for its peer for good. It keeps
    /// what it has received out of order.
    fn is_half_open(&self) -> bool {
        let mut flows = self.world.hosts.iter().flat_map(|host| &host.flows);
        self.aborts && flows.any(|flow| !flow.is_done())
    }

    fn unfinished(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for &(client, local, remote) in &self.pairs {
            let find = |index: usize, local| {
                let flow = self.world.hosts[index].flow(local);
                flow.map(|flow| (flow.written, flow.read, flow.plan, flow.closed))
            };
            let flows = (find(client, local), find(1 - client, remote));
            // A reset may overtake the end of the handshake: then the peer never accepts.
            let both = [flows.0, flows.1];
            if both.iter().flatten().any(|flow| flow.2.ending == Ending::Abort) {
                continue;
            }
            if flows.0.is_some_and(|ours| self.is_excused(client, ours.3)) {
                continue;
            }
            let (Some(ours), Some(theirs)) = flows else {
                problems.push(format!("{local} never reached {remote}"));
                continue;
            };
            if (ours.0, theirs.0) != (ours.2.write, theirs.2.write) {
                problems.push(format!("{local}: wrote {} and {}", ours.0, theirs.0));
            }
            if (ours.0, theirs.0) != (theirs.1, ours.1) {
                problems.push(format!("{local}: {ours:?} against {theirs:?}"));
            }
            for flow in [ours, theirs] {
                if flow.3 != Some(None) {
                    problems.push(format!("{local}: ended with {:?}", flow.3));
                }
            }
        }
        problems
    }

    /// True if a connection of host `index` failed because the links lost all solicitations of its
    /// neighbour, three in a row (RFC 4861 §10).
    fn is_excused(&self, index: usize, closed: Option<Option<ConnectionError>>) -> bool {
        let counters = self.world.hosts[index].stack.counters();
        let lost: u64 = self.world.links.iter().map(|link| link.counters().dropped).sum();
        closed == Some(Some(ConnectionError::Unreachable))
            && counters.dropped(DropReason::NeighborUnreachable) > 0
            && lost >= 3
    }

    /// Checks that no more was sent than the faults explain.
    fn excess(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (index, host) in self.world.hosts.iter().enumerate() {
            // The peer may wait for its reader with an ACK while the tail is probed, as Linux's
            // does.
            let counters = host.stack.counters();
            let retransmitted = counters.retransmitted - counters.tail_probes;
            let peer = &self.world.hosts[1 - index];
            // A host without memory loses ACKs, too.
            let refused = peer.stack.counters().dropped(DropReason::TcpNoRoom)
                + peer.no_memory
                + host.no_memory;
            if self.faults == Faults::None && retransmitted > 0 && refused == 0 {
                problems.push(format!("host {index} sent {retransmitted} again for nothing"));
            }
            let copied = host.ledger.copied() - host.ledger.copied_at(Site::IcmpQuote);
            if copied > 0 {
                problems.push(format!("host {index} copied {copied} bytes"));
            }
            let written: u64 = host.flows.iter().map(|flow| flow.written).sum();
            let bytes = host.stack.counters().bytes_out;
            let packets = host.stack.counters().packets_out;
            if bytes > 100 * packets + 2 * written + 400_000 {
                problems.push(format!("host {index} sent {bytes} bytes for {written}"));
            }
        }
        problems
    }
}

/// The announced time for answers. Some flows keep it, others do not.
const ANSWERS_WITHIN: Duration = Duration::from_micros(500);

/// Draws the settings of a stack.
pub(crate) fn settings(rng: &mut Rng) -> Settings {
    let buffer = rng.pick(&[4000, 20_000, 128 << 10, 512 << 10, 512 << 10]);
    let send = rng.pick(&[4000, 64 << 10, 256 << 10]);
    Settings {
        receive_buffer: buffer,
        receive_buffer_max: rng.pick(&[1, 4, 16]) * buffer,
        send_buffer: send,
        send_buffer_max: rng.pick(&[1, 16]) * send,
        sack: rng.chance(750_000),
        timestamps: rng.chance(750_000),
        window_scaling: rng.chance(750_000),
        syn_retries: 10,
        ..Settings::default()
    }
}

fn plan(rng: &mut Rng) -> Plan {
    let most = rng.pick(&[0, 1, 3000, 100_000, 1_000_000]);
    Plan {
        write: rng.between(0, most),
        write_max: rng.pick(&[100, 1460, 5000, 64 << 10, 256 << 10]),
        ending: rng.pick(&[Ending::Close, Ending::CloseAfterPeer]),
        pause: rng.pick(&[0, 0, 10_000, 200_000]),
        pause_max: rng.pick(&[1, 50, 1000].map(Duration::from_millis)),
        read_after: rng.pick(&[0, 0, 0, 2000, 60_000].map(Duration::from_millis)),
        read_max: rng.pick(&[usize::MAX, 100_000, 3000]),
        nodelay: rng.chance(300_000),
        ..Plan::default()
    }
}
