//! Two hosts, a link in each direction, and a clock.

use crate::clock::Clock;
use crate::host::Host;
use crate::link::Link;
use crate::liveness::Silences;
use crate::seed::Rng;
use towpath_net::time::Instant;

/// Steps without time passing after which a run counts as stuck.
const STEPS_PER_MOMENT_MAX: u32 = 10_000;

/// The simulated world.
pub struct World {
    /// The seed that is printed with failures.
    pub seed: u64,
    /// The source of all random numbers.
    pub rng: Rng,
    /// The only clock.
    pub clock: Clock,
    /// Both hosts.
    pub hosts: [Host; 2],
    /// `links[n]` carries the packets that `hosts[n]` sends.
    pub links: [Link; 2],
    silences: [Silences; 2],
}

impl World {
    /// Makes a world at its start.
    pub fn new(seed: u64, hosts: [Host; 2], links: [Link; 2]) -> Self {
        let silences = Default::default();
        Self { seed, rng: Rng::new(seed), clock: Clock::default(), hosts, links, silences }
    }

    /// The current time.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Runs until `until` or the end of all activity, whichever comes first.
    pub fn run(&mut self, until: Instant) {
        self.run_while(until, |_| true);
    }

    /// Runs while `going` returns true and there is work, but not beyond `until`.
    pub fn run_while(&mut self, until: Instant, mut going: impl FnMut(&World) -> bool) {
        loop {
            self.settle();
            self.judge();
            if !going(self) {
                return;
            }
            match self.deadline() {
                Some(next) if next <= until => self.clock.jump(next),
                _ => {
                    self.clock.jump(until);
                    return;
                }
            }
        }
    }

    /// Does all work that is possible without time passing.
    pub fn settle(&mut self) {
        let now = self.clock.now();
        let mut steps = 0;
        while self.step() {
            steps += 1;
            assert!(steps < STEPS_PER_MOMENT_MAX, "stuck at {now:?}, seed {}", self.seed);
        }
    }

    /// Checks that connections with work make progress.
    fn judge(&mut self) {
        let now = self.clock.now();
        for (host, silences) in self.hosts.iter().zip(&mut self.silences) {
            let problem = silences.look(&host.stack, now);
            assert_eq!(problem, None, "at {now:?}, seed {:#x}", self.seed);
        }
    }

    fn step(&mut self) -> bool {
        let now = self.clock.now();
        let mut any = false;
        for index in 0..2 {
            let host = &mut self.hosts[index];
            any |= host.receive(&mut self.links[1 - index], now);
            host.on_deadline(now);
            any |= host.act(&mut self.rng, now);
            any |= host.transmit(&mut self.links[index], &mut self.rng, now);
        }
        any
    }

    fn deadline(&self) -> Option<Instant> {
        let now = self.clock.now();
        let hosts = self.hosts.iter().filter_map(|host| host.deadline(now));
        let links = self.links.iter().filter_map(Link::deadline);
        hosts.chain(links).min()
    }

    /// Memory that did not come back, and packets that are not accounted for. For the end of a run.
    pub fn leaks(&self) -> Vec<String> {
        [self.held(), self.unaccounted()].concat()
    }

    /// Memory that did not come back.
    pub fn held(&self) -> Vec<String> {
        let counts = self.hosts.iter().map(Host::out_counts).enumerate();
        counts
            .filter(|(_, out)| *out != [0; 4])
            .map(|(index, out)| {
                format!("host {index} keeps {out:?} packets, frames, frames, loans")
            })
            .collect()
    }

    /// Packets that are not accounted for.
    pub fn unaccounted(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (index, host) in self.hosts.iter().enumerate() {
            let (there, back) = (self.links[index].counters(), self.links[1 - index].counters());
            let flying = self.links[index].in_flight() as u64;
            if there.offered + there.duplicated != there.delivered + there.lost() + flying {
                problems.push(format!("link {index} does not add up: {there:?}"));
            }
            let counters = host.stack.counters();
            if counters.packets_out != there.packets {
                problems.push(format!("host {index} sent {}: {there:?}", counters.packets_out));
            }
            if counters.packets_in + host.no_memory != back.delivered {
                problems.push(format!("host {index} got {}: {back:?}", counters.packets_in));
            }
        }
        problems
    }

    /// The state for a failure message, starting with the seed.
    pub fn report(&self) -> String {
        let mut text = format!("seed {:#x} at {:?}\n", self.seed, self.now());
        for (index, host) in self.hosts.iter().enumerate() {
            text += &format!("host {index}: {:?}\n", host.stack.counters());
            for (reason, count) in host.stack.counters().drops() {
                text += &format!("  dropped {count} {}\n", reason.name());
            }
            for flow in &host.flows {
                let state = flow.handle.and_then(|handle| host.stack.tcp(handle));
                let state = state.map(|connection| connection.state());
                text += &format!(
                    "  flow wrote {} of {}, read {}, peer closed {}, {state:?}, closed {:?}\n",
                    flow.written, flow.plan.write, flow.read, flow.peer_closed, flow.closed,
                );
            }
            text += &format!("link {index}: {:?}\n", self.links[index].config);
            text += &format!("  {:?}\n", self.links[index].counters());
        }
        text
    }

    /// Errors found so far.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (index, (host, link)) in self.hosts.iter().zip(&self.links).enumerate() {
            problems.extend(link.problem().map(|text| format!("link {index}: {text}")));
            for (number, flow) in host.flows.iter().enumerate() {
                let text = flow.problem.as_deref();
                problems.extend(text.map(|text| format!("host {index} flow {number}: {text}")));
            }
        }
        problems
    }
}
