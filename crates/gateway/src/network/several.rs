//! A network whose ports are distributed over several workers.
//!
//! The first worker owns the switch, the gateway's port, services and leases. Each port belongs to
//! one worker at a time; see `helper` for the others, and `workers` for how ports move.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use towpath_io::doorbell::EventDoorbell;
use towpath_net::counters::PortDrop;
use towpath_net::switch::{PortCounters, PortId};
use towpath_net::time::Instant;
use towpath_packet::ring::Doorbell;
use towpath_packet::{Burst, Caps, Context, Site};

use super::crew::{Crew, Terms};
use super::gateway_port::GatewayPort;
use super::helper::{Command, Helper, HelperReport, News};
use super::links::Errand;
use super::outputs::Outputs;
use super::port::{Port, Returned, Shape, is_short};
use super::{Network, PortError, PortReport};
use crate::config::Config;
use crate::report::Report;
use crate::worker::Worker;

impl Network {
    /// Distributes the ports over [`Config::workers`] workers, each of which has its share of the
    /// memory. Call it before ports are added.
    ///
    /// # Errors
    /// The error of the system call that failed, or there is not enough memory.
    ///
    /// # Panics
    /// If there are ports already.
    pub fn set_workers(&mut self, config: &Config) -> io::Result<()> {
        assert!(self.members.is_empty(), "workers come before ports");
        self.memory_bytes = Some(config.memory_bytes);
        // The confined process cannot read the quota of its control group.
        self.workers_auto = config.workers_for_this_machine();
        self.crew = self.new_crew(config.workers, config.memory_share())?;
        self.crew.iter().try_for_each(|crew| self.ports.watch(crew.bell()))
    }

    /// Makes the other ones of `workers` workers; `None` for the first alone.
    pub(super) fn new_crew(
        &mut self,
        workers: usize,
        memory_bytes: usize,
    ) -> io::Result<Option<Crew>> {
        let others = workers.saturating_sub(1);
        if others == 0 {
            return Ok(None);
        }
        self.ledgers.resize_with(others.max(self.ledgers.len()), Arc::default);
        let terms = Terms {
            ledgers: &self.ledgers[..others],
            memory_bytes,
            gateway: self.gateway.as_ref().map(|gateway| gateway.id),
            busy_poll: self.config.busy_poll,
            tells_departure: self.departed.is_some(),
        };
        Crew::new(&self.switch, &terms).map(Some)
    }

    /// Returns the number of workers.
    pub(super) fn worker_count(&self) -> usize {
        self.crew.as_ref().map_or(1, Crew::workers)
    }

    /// Runs a turn of each other worker that has no thread yet. For tests and measurements that
    /// drive all workers on one thread.
    ///
    /// # Errors
    /// The error of the system call that failed.
    pub fn step_others(&mut self, now: Instant) -> io::Result<()> {
        self.crew.iter_mut().try_for_each(|crew| crew.step(now))
    }

    /// Hands out the other workers that have no thread yet, in the order of their numbers. The
    /// caller gives them their turns, on any threads. For measurements that do more on the thread
    /// of each worker. Changes of ports and reports wait for these turns.
    pub fn take_others(&mut self) -> Vec<OtherWorker> {
        self.crew.iter_mut().flat_map(Crew::take_idle).map(OtherWorker).collect()
    }

    /// Returns the worker for a new port: the one with the fewest ports, and the first one of
    /// several. The gateway counts as a port of the first worker.
    pub(super) fn least_busy(&self) -> usize {
        let mut counts = vec![0; self.worker_count()];
        counts[0] = usize::from(self.gateway.is_some());
        self.members.iter().flatten().for_each(|member| counts[member.worker] += 1);
        (0..counts.len()).min_by_key(|worker| counts[*worker]).unwrap_or(0)
    }

    /// Gives a port to its worker.
    pub(super) fn hand_out(&mut self, port: Port, index: usize, worker: usize) -> io::Result<()> {
        let Some(crew) = &self.crew else { return self.ports.add(index, port) };
        crew.links.set_worker(index, worker, 0);
        match worker {
            0 => self.ports.add(index, port),
            _ => {
                let state = (port.state(), port.returned);
                crew.ask(worker, |answer| Command::Add(index, Box::new(port), answer))??;
                crew.note(worker, index, state);
                Ok(())
            }
        }
    }

    /// Changes the shape of a port. Returns what its device takes now.
    pub(super) fn change(&mut self, index: usize, shape: Shape) -> Result<Caps, PortError> {
        if let Some(port) = self.ports.get_mut(index) {
            port.change(shape)?;
            return Ok(port.caps());
        }
        let (crew, worker) = self.worker_of(index);
        crew.ask(worker, |answer| Command::Change(index, shape, answer))?
    }

    /// Ends the part of a port that moves packets.
    pub(super) fn end_port(&mut self, index: usize, worker: usize) -> io::Result<()> {
        match &self.crew {
            Some(crew) if worker > 0 => crew.ask(worker, |answer| Command::Remove(index, answer)),
            _ => {
                drop(self.ports.remove(index));
                Ok(())
            }
        }
    }

    /// Makes sure that no packet is under way to port `index`, which the switch does not know any
    /// more. Its packets that are under way to the first worker are dropped there; its number is
    /// free after that ([`Network::take_packets`]).
    pub(super) fn settle(&mut self, index: usize) -> Result<(), PortError> {
        if let Some(crew) = &self.crew {
            crew.settle(index)?;
            // The first worker may sleep, and must empty its ring.
            self.has_numbers_to_release = true;
            // What its worker has reported about the port is not about the next one.
            self.hear_news()?;
            self.crew.iter().for_each(|crew| crew.bell().ring());
        }
        Ok(())
    }

    pub(super) fn worker_of(&self, index: usize) -> (&Crew, usize) {
        let crew = self.crew.as_ref().expect("a port that is not here has another worker");
        (crew, crew.links.worker_of(index))
    }

    /// Forwards packets that came in by port `from`.
    pub(super) fn forward(&mut self, from: PortId, burst: &mut Burst, cx: &mut Context<'_>) {
        let Self { switch, members, ports, gateway, services, config, crew, .. } = self;
        let links = crew.as_ref().map(|crew| &crew.links);
        let is_short = is_short(cx.memory);
        let is_short = links.map_or(is_short, |links| links.share_shortage(is_short));
        let (ports, now) = (ports.places_mut(), cx.now);
        let mut outputs =
            Outputs { ports, members, gateway, services, config, now, is_short, links };
        outputs.forward(switch, from, burst, cx);
    }

    /// Does what the other workers ask for packets that are in the ring now.
    pub(super) fn take_packets(&mut self, cx: &mut Context<'_>) {
        let Some(crew) = &mut self.crew else { return };
        let generation = self.switch.oldest_generation();
        // A worker that was interrupted while it put packets into the ring may have some of a port
        // that is gone: the number waits.
        let releases = self.has_numbers_to_release && crew.is_published();
        self.has_numbers_to_release &= !releases;
        let mut left = crew.packets();
        let (mut taken, mut run) = (Burst::new(), Burst::new());
        while left > 0
            && let Some(crew) = &mut self.crew
        {
            let count = crew.take(left, &mut taken);
            left = if count == 0 { 0 } else { left - count };
            while let Some(packet) = taken.pop() {
                let errand = Errand::of(&packet);
                run.push(packet).expect("there is room for what was taken");
                if taken.first().map(Errand::of) != Some(errand) {
                    self.run_errand(errand, &mut run, cx);
                    run.clear();
                }
            }
        }
        if releases {
            self.switch.release_numbers(generation);
        }
        if let Some(crew) = &mut self.crew {
            crew.look();
        }
    }

    /// Does what another worker asks for these packets. Leaves those that are to be dropped.
    fn run_errand(&mut self, errand: Errand, burst: &mut Burst, cx: &mut Context<'_>) {
        let (Errand::Judge(port) | Errand::Deliver(port) | Errand::ToGateway(port)) = errand;
        let index = usize::from(port);
        let Some(crew) = &self.crew else { return };
        let id = self.members.get(index).and_then(|member| Some(member.as_ref()?.id));
        let count = burst.len();
        match (errand, id) {
            (Errand::Judge(_), id) => {
                let waited = GatewayPort::waiting(&self.gateway);
                if let Some(id) = id {
                    self.forward(id, burst, cx);
                }
                let to_gateway = GatewayPort::waiting(&self.gateway) - waited;
                let Some(crew) = &self.crew else { return };
                crew.links.add_judged(crew.links.worker_of(index), count);
                crew.finish(index, count - to_gateway);
            }
            (Errand::ToGateway(_), Some(_)) => {
                let Some(gateway) = &mut self.gateway else { return };
                burst.iter_mut().for_each(|packet| packet.set_ingress(Some(port)));
                gateway.queue.append(burst, usize::MAX);
                crew.finish(index, burst.len());
                let refused = Returned::of(burst);
                gateway.returned.add(&refused);
                for _ in 0..refused.packets {
                    self.switch.count_drop(gateway.id, PortDrop::QueueFull);
                }
            }
            (Errand::Deliver(_), Some(id)) => {
                if let Some(port) = self.ports.get_mut(index) {
                    let is_short = crew.links.share_shortage(is_short(cx.memory));
                    for _ in 0..port.deliver(burst, is_short, cx) {
                        self.switch.count_drop(id, PortDrop::QueueFull);
                    }
                }
            }
            // The port has been removed.
            (_, None) => {}
        }
    }

    /// Takes note of what the other workers tell.
    ///
    /// # Errors
    /// That of a worker that has ended.
    pub(super) fn hear_news(&mut self) -> io::Result<()> {
        self.crew.iter().for_each(|crew| crew.bell().clear());
        while let Some(news) = self.crew.as_ref().and_then(Crew::news) {
            self.hear(news)?;
        }
        Ok(())
    }

    /// Takes note of one of the news.
    fn hear(&mut self, news: News) -> io::Result<()> {
        match news {
            News::Turned { index, caps, events } => {
                // The port may have been removed since.
                let Some(member) = &self.members[index] else { return Ok(()) };
                let _ = self.switch.set_caps(member.id, caps);
                if let Some(tell) = &mut self.tell {
                    events.iter().for_each(|event| tell(&member.name, event));
                }
            }
            News::Departed => self.departed.take().iter().for_each(EventDoorbell::ring),
            News::Ended(result) => {
                result?;
                return Err(io::Error::other("a worker ended"));
            }
        }
        Ok(())
    }

    /// Returns the reports of all ports, and the counters of the gateway's. `others` are those of
    /// the other workers.
    pub(super) fn figures(
        &self,
        others: &[HelperReport],
    ) -> (Vec<PortReport>, Option<PortCounters>) {
        let gateway = self.gateway.as_ref();
        let counters = |id: PortId, returned: Option<&Returned>| {
            let mut counters = self.switch.counters_of(id).cloned().unwrap_or_default();
            let counted = others.iter().flat_map(|other| &other.counters);
            counted.filter(|(of, _)| *of == id).for_each(|(_, its)| counters.add(its));
            returned.iter().for_each(|returned| returned.take_from(&mut counters));
            counters
        };
        let of_others = others.iter().flat_map(|other| other.ports.iter().cloned());
        let mut states: HashMap<_, _> = self.ports.states().chain(of_others).collect();
        let reports = self.members.iter().flatten().filter_map(|member| {
            let (state, returned) = states.remove(&member.id.index())?;
            Some(member.report(state, counters(member.id, Some(&returned))))
        });
        (reports.collect(), gateway.map(|gateway| counters(gateway.id, Some(&gateway.returned))))
    }

    /// Adds the counters of the other workers, and of the ports, to a report.
    pub(super) fn add_figures(&self, report: &mut Report) {
        let others = self.other_reports();
        let (ports, _) = self.figures(&others);
        let lent = ports.iter().filter_map(|port| port.device.lent());
        report.recalled = lent.map(|(_, recalled)| recalled).sum();
        for ledger in &self.ledgers {
            report.carried += ledger.carried();
            for (counted, site) in report.copied.iter_mut().zip(Site::ALL) {
                counted.1 += ledger.copied_at(site);
            }
        }
        for other in &others {
            report.packets_taken += other.packets_taken;
            report.frames_taken.0 += other.frames_taken.0;
            report.frames_taken.1 += other.frames_taken.1;
        }
    }

    /// Returns the reports of the other workers, the last one of a worker that does not answer.
    pub(super) fn other_reports(&self) -> Vec<HelperReport> {
        let Some(crew) = &self.crew else { return Vec::new() };
        let gateway = self.gateway.iter().map(|gateway| gateway.id);
        let ids: Arc<[PortId]> =
            self.members.iter().flatten().map(|member| member.id).chain(gateway).collect();
        crew.reports(&ids)
    }
}

impl Drop for Network {
    /// Ends the other workers, and passes on what their ports reported last.
    fn drop(&mut self) {
        self.crew.iter_mut().for_each(Crew::end);
        while let Some(news) = self.crew.as_ref().and_then(Crew::news) {
            // All workers have ended.
            let _ = self.hear(news);
        }
    }
}

/// A worker beside the first one that the caller gives its turns ([`Network::take_others`]). It may
/// move between threads.
pub struct OtherWorker(Box<Helper>);

impl OtherWorker {
    /// Runs a turn at this time. It looks for work and does not wait.
    ///
    /// # Errors
    /// The error of the system call that failed.
    pub fn step(&mut self, now: Instant) -> io::Result<()> {
        self.0.step(now)
    }
}

impl Worker<Network> {
    /// Starts the threads of the other workers, if there are any ([`Network::set_workers`]). Call
    /// it once this process is confined; their ports are not served before.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn begin(&mut self) -> io::Result<()> {
        let clock = self.clock();
        let network = self.inside_mut();
        if let Some(crew) = &mut network.crew {
            crew.hire(&clock)?;
            crew.begin();
        }
        network.clock = Some(clock);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
