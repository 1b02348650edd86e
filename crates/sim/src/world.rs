//! Two hosts, a link each way, and time.

use crate::clock::Clock;
use crate::host::Host;
use crate::link::Link;
use crate::seed::Rng;
use towpath_net::time::Instant;

/// Steps without time passing before a run counts as stuck.
const STEPS_PER_MOMENT_MAX: u32 = 10_000;

/// Everything there is.
pub struct World {
    /// The seed it came from.
    pub seed: u64,
    /// All chance.
    pub rng: Rng,
    /// The only clock.
    pub clock: Clock,
    /// Both hosts.
    pub hosts: [Host; 2],
    /// `links[n]` carries what `hosts[n]` sends.
    pub links: [Link; 2],
}

impl World {
    /// A world at its start.
    pub fn new(seed: u64, hosts: [Host; 2], links: [Link; 2]) -> Self {
        Self { seed, rng: Rng::new(seed), clock: Clock::default(), hosts, links }
    }

    /// Now.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Runs to `until` or to the end of all activity, whichever comes first.
    pub fn run(&mut self, until: Instant) {
        self.run_while(until, |_| true);
    }

    /// Runs as long as `going` says and there is something to do, but not beyond `until`.
    pub fn run_while(&mut self, until: Instant, mut going: impl FnMut(&World) -> bool) {
        loop {
            self.settle();
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

    /// Does all that can be done without time passing.
    pub fn settle(&mut self) {
        let now = self.clock.now();
        let mut steps = 0;
        while self.step() {
            steps += 1;
            assert!(steps < STEPS_PER_MOMENT_MAX, "stuck at {now:?}, seed {}", self.seed);
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

    /// What is wrong so far, with the seed.
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
