//! Many hosts on a switch, each with a cable of two directions, and a clock.
//!
//! Work is done only where it is due, so quiet hours cost nothing.

use crate::clock::Clock;
use crate::host::Host;
use crate::link::{Frame, Link, Medium};
use crate::liveness::Silences;
use crate::oracle;
use crate::seed::Rng;
use towpath_net::switch::{self, Context, Egress, PortConfig, PortId, Switch};
use towpath_net::time::Instant;
use towpath_packet::{Burst, Caps, Ledger, Memory, MemoryConfig, Packet};

/// Steps without time passing after which a run counts as stuck.
const STEPS_PER_MOMENT_MAX: u32 = 100_000;

/// A host and its cable.
pub struct Port {
    /// The host.
    pub host: Host,
    /// The direction from the host to the switch.
    pub up: Link,
    /// The direction from the switch to the host.
    pub down: Link,
    /// The host was changed from outside.
    pub awake: bool,
    /// When the host has work next, computed when time last passed.
    next: Option<Instant>,
    silences: Silences,
}

impl Port {
    /// A host with a cable of two directions.
    pub fn new(host: Host, up: Link, down: Link) -> Self {
        Self { host, up, down, awake: true, next: None, silences: Silences::default() }
    }
}

/// The simulated network.
pub struct Lan {
    /// The seed that is printed with failures.
    pub seed: u64,
    /// The source of all random numbers.
    pub rng: Rng,
    /// The only clock.
    pub clock: Clock,
    /// The hosts and their cables.
    pub ports: Vec<Port>,
    /// The switch that connects them.
    pub switch: Switch,
    /// The port of the switch for each cable.
    ids: Vec<PortId>,
    /// Packets and frames of the switch.
    memory: Memory,
    /// Copies made by the switch.
    ledger: Ledger,
}

impl Lan {
    /// Makes a network at its start. A port of the switch has the capabilities `caps` if there is a
    /// device between it and its host, and takes whole frames if there is a wire.
    pub fn new(seed: u64, rng: Rng, ports: Vec<Port>, caps: &[Caps]) -> Self {
        let mut switch = Switch::new(switch::Config { seed, ..switch::Config::default() });
        let configs = ports.iter().zip(caps);
        let configs = configs.map(|(port, &caps)| PortConfig::new(caps_of(port, caps)));
        let ids = configs.map(|config| switch.add_port(config).expect("few ports")).collect();
        let memory = Memory::new(MEMORY);
        let ledger = Ledger::new();
        Self { seed, rng, clock: Clock::default(), ports, switch, ids, memory, ledger }
    }

    /// Sets the capabilities of a host's device in the switch.
    pub fn set_caps(&mut self, index: usize, caps: Caps) {
        let caps = caps_of(&self.ports[index], caps);
        self.switch.set_caps(self.ids[index], caps).expect("each cable has a port");
    }

    /// The current time.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Runs to `until`.
    pub fn run(&mut self, until: Instant) {
        loop {
            self.settle();
            self.judge();
            match self.deadline() {
                Some(next) if next <= until => self.clock.jump(next),
                _ => return self.clock.jump(until),
            }
        }
    }

    /// Checks that connections with work make progress.
    fn judge(&mut self) {
        let now = self.now();
        for (index, Port { host, silences, .. }) in self.ports.iter_mut().enumerate() {
            let problem = silences.look(&host.stack, now);
            assert_eq!(problem, None, "host {index} at {now:?}, seed {:#x}", self.seed);
        }
    }

    /// Does all work that is possible without time passing.
    fn settle(&mut self) {
        let now = self.now();
        let mut steps = 0;
        while self.step(now) {
            steps += 1;
            assert!(steps < STEPS_PER_MOMENT_MAX, "stuck at {now:?}, seed {:#x}", self.seed);
        }
    }

    fn step(&mut self, now: Instant) -> bool {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let mut any = false;
        for port in &mut self.ports {
            let Port { host, up, down, awake, next, .. } = port;
            let woken = std::mem::take(awake) | next.take_if(|at| *at <= now).is_some();
            if !(woken || due(down.deadline())) {
                continue;
            }
            host.receive(down, now);
            host.on_deadline(now);
            let mut busy = host.act(&mut self.rng, now);
            busy |= host.transmit(up, &mut self.rng, now);
            *awake = busy;
            any = true;
        }
        any | self.forward(now)
    }

    fn forward(&mut self, now: Instant) -> bool {
        let Self { rng, ports, switch, ids, memory, ledger, .. } = self;
        let mut any = false;
        switch.expire(now);
        for (from, id) in ids.iter().enumerate() {
            let mut burst = Burst::new();
            while let Some(frame) = ports[from].up.arrive(now) {
                burst.push(packet_of(&frame, memory)).expect("an empty burst");
                let mut cables = Cables { ports, ids, rng, now };
                switch.forward(*id, &mut burst, &mut Context { memory, ledger, now }, &mut cables);
                any = true;
            }
        }
        any
    }

    fn deadline(&mut self) -> Option<Instant> {
        let now = self.now();
        let deadlines = self.ports.iter_mut().flat_map(|port| {
            port.next = port.host.deadline(now);
            [port.next, port.up.deadline(), port.down.deadline()]
        });
        deadlines.flatten().min()
    }

    /// Errors found so far.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (index, port) in self.ports.iter().enumerate() {
            for (link, name) in [(&port.up, "up"), (&port.down, "down")] {
                problems.extend(link.problem().map(|text| format!("cable {index} {name}: {text}")));
            }
            for (number, flow) in port.host.flows.iter().enumerate() {
                let text = flow.problem.as_deref();
                problems.extend(text.map(|text| format!("host {index} flow {number}: {text}")));
            }
        }
        problems
    }

    /// Memory that did not come back, and packets that are not accounted for. For the end of a run.
    pub fn leaks(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut complain = |text: String| problems.push(text);
        for (index, port) in self.ports.iter().enumerate() {
            let (up, down) = (port.up.counters(), port.down.counters());
            for (link, counters) in [(&port.up, up), (&port.down, down)] {
                let flying = link.in_flight() as u64;
                if counters.offered + counters.duplicated
                    != counters.delivered + counters.lost() + flying
                {
                    complain(format!("cable {index} does not add up: {counters:?}"));
                }
            }
            let out = port.host.out_counts();
            if out != [0; 4] {
                complain(format!("host {index} keeps {out:?} packets, frames, frames, loans"));
            }
            let connections = port.host.stack.tcp_counts();
            if connections != (0, 0) {
                complain(format!("host {index} has {connections:?} connections left"));
            }
            let counters = port.host.stack.counters();
            if counters.packets_out != up.packets {
                complain(format!("host {index} sent {}: {up:?}", counters.packets_out));
            }
            if counters.packets_in + port.host.no_memory != down.delivered {
                complain(format!("host {index} got {}: {down:?}", counters.packets_in));
            }
            let switch = self.switch.counters_of(self.ids[index]).expect("each cable has a port");
            if (switch.packets_in, switch.packets_out) != (up.delivered, down.offered) {
                complain(format!("port {index} got {up:?}, gave {down:?}: {switch:?}"));
            }
        }
        let Memory { packets, small, large } = &self.memory;
        let out = [packets.out_count(), small.out_count(), large.out_count()];
        if out != [0; 3] || self.ledger.copied() > 0 {
            complain(format!("the switch keeps {out:?}, copied {}", self.ledger.copied()));
        }
        problems
    }

    /// The state for a failure message, starting with the seed.
    pub fn report(&self) -> String {
        let mut text = format!("seed {:#x} at {:?}\n", self.seed, self.now());
        for (index, port) in self.ports.iter().enumerate() {
            let counters = port.host.stack.counters();
            text += &format!("host {index}: {counters:?}\n");
            for (reason, count) in counters.drops() {
                text += &format!("  dropped {count} {}\n", reason.name());
            }
            text += &format!("  up {:?}\n  down {:?}\n", port.up.counters(), port.down.counters());
        }
        let counters = self.ids.iter().map(|&id| self.switch.counters_of(id));
        text + &format!("{:?}\n", counters.collect::<Vec<_>>())
    }
}

/// The cables from the switch to the hosts.
struct Cables<'a> {
    ports: &'a mut [Port],
    ids: &'a [PortId],
    rng: &'a mut Rng,
    now: Instant,
}

impl Egress for Cables<'_> {
    fn transmit(&mut self, port: PortId, burst: &mut Burst, _: &mut Context<'_>) {
        let index = self.ids.iter().position(|&id| id == port).expect("each port has a cable");
        while let Some(packet) = burst.pop() {
            let frame = Frame { bytes: oracle::flatten(&packet), offload: *packet.offload() };
            self.ports[index].down.offer(frame, self.now, self.rng);
        }
    }
}

/// Capabilities of the switch's port to a host whose device has `caps`.
fn caps_of(port: &Port, caps: Caps) -> Caps {
    match port.down.config.medium {
        Medium::Wire => Caps::plain(caps.mtu),
        Medium::Tap => caps,
    }
}

/// Converts a frame to a packet, as a device of the switch receives it.
fn packet_of(frame: &Frame, memory: &mut Memory) -> Packet {
    let mut packet = memory.packet().expect("enough for one packet and what becomes of it");
    let mut rest = &frame.bytes[..];
    let mut pool = &mut memory.small;
    while !rest.is_empty() {
        let mut place = pool.take().expect("enough for one packet");
        let count = rest.len().min(place.len());
        place[..count].copy_from_slice(&rest[..count]);
        packet.push_piece(place.freeze(count)).expect("five pieces have room");
        rest = &rest[count..];
        pool = &mut memory.large;
    }
    packet.set_offload(frame.offload);
    packet
}

/// The switch handles one packet at a time: segmented for each of some ports, and flooded.
const MEMORY: MemoryConfig = MemoryConfig { packets: 4096, small_frames: 8, large_frames: 8 };
