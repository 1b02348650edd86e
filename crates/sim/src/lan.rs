//! Many hosts on a switch, a cable with two directions for each, and time.
//!
//! Work is done only where something is due, so that quiet hours cost nothing.

use crate::clock::Clock;
use crate::host::Host;
use crate::link::Link;
use crate::seed::Rng;
use crate::switch::Switch;
use towpath_net::time::Instant;

/// Steps without time passing before a run counts as stuck.
const STEPS_PER_MOMENT_MAX: u32 = 100_000;

/// A host and its cable.
pub struct Port {
    /// The host.
    pub host: Host,
    /// What it sends.
    pub up: Link,
    /// What it receives.
    pub down: Link,
    /// Something was done to the host from outside.
    pub awake: bool,
    /// When the host wants to act, as known when time last passed.
    next: Option<Instant>,
}

impl Port {
    /// A host with a cable of two directions.
    pub fn new(host: Host, up: Link, down: Link) -> Self {
        Self { host, up, down, awake: true, next: None }
    }
}

/// Everything there is.
pub struct Lan {
    /// The seed that is printed with failures.
    pub seed: u64,
    /// All chance.
    pub rng: Rng,
    /// The only clock.
    pub clock: Clock,
    /// Hosts with their cables.
    pub ports: Vec<Port>,
    /// What joins them.
    pub switch: Switch,
}

impl Lan {
    /// A network at its start.
    pub fn new(seed: u64, rng: Rng, ports: Vec<Port>) -> Self {
        Self { seed, rng, clock: Clock::default(), ports, switch: Switch::default() }
    }

    /// Now.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Runs to `until`.
    pub fn run(&mut self, until: Instant) {
        loop {
            self.settle();
            match self.deadline() {
                Some(next) if next <= until => self.clock.jump(next),
                _ => return self.clock.jump(until),
            }
        }
    }

    /// Does all that can be done without time passing.
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
            let Port { host, up, down, awake, next } = port;
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
        let mut any = false;
        let count = self.ports.len();
        for from in 0..count {
            while let Some(frame) = self.ports[from].up.arrive(now) {
                any = true;
                for to in self.switch.forward(&frame.bytes, from, count, now) {
                    self.ports[to].down.offer(frame.clone(), now, &mut self.rng);
                }
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

    /// What is wrong so far.
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

    /// What did not come back, and what was not accounted for. For the end of a run.
    pub fn leaks(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut complain = |text: String| problems.push(text);
        let (mut arrived, mut left) = (0, 0);
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
            arrived += up.delivered;
            left += down.offered;
        }
        let switch = self.switch.counters();
        let adds_up = switch.received + switch.copies == switch.sent + switch.filtered;
        if !adds_up || (switch.received, switch.sent) != (arrived, left) {
            complain(format!("the switch does not add up: {switch:?}, {arrived}, {left}"));
        }
        problems
    }

    /// State for a message about a failure, with the seed first.
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
        text + &format!("{:?}\n", self.switch.counters())
    }
}
