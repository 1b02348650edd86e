//! The first worker's side of the other threads of a network: what it asks of them, and what it
//! hears.
//!
//! Before [`Crew::begin`] and after [`Crew::pause`] the state of the helpers is here, commands are
//! carried out at once, and [`Crew::step`] runs a turn of each. So ports can be made while the
//! process has one thread, ports can move between workers, and tests can drive all of them.
//!
//! A command that changes something is waited for, up to [`PATIENCE`]: a helper carries it out
//! between two turns, and never waits for the first worker. If it does not answer by then, the
//! change fails. Reports are waited for up to [`REPORT_PATIENCE`], for all helpers together; of a
//! helper that has not answered by then, the last report counts, and it is not asked again until it
//! answers.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::thread::{Builder, JoinHandle};

use towpath_io::doorbell::EventDoorbell;
use towpath_net::switch::{PortId, Switch};
use towpath_net::time::{Duration, Instant};
use towpath_packet::burst::BURST_MAX;
use towpath_packet::ring::{self, Consumer, Doorbell};
use towpath_packet::{Burst, Ledger, Memory, MemoryConfig, Packet};

use super::helper::{Command, Helper, HelperReport, News, Parts, Stopped};
use super::links::{Links, RING_LEN};
use super::port::Returned;
use super::report::PortState;
use crate::report::REPORT_PATIENCE;
use crate::worker::Clock;

/// Longest wait for a helper: turns take milliseconds, and a busy machine may delay a thread for
/// some hundred.
const PATIENCE: Duration = Duration::from_secs(10);

/// The other threads of a network.
pub(super) struct Crew {
    pub(super) links: Links,
    /// Packets for the first worker.
    ring: Consumer<Packet>,
    /// There may be packets.
    has_packets: bool,
    /// Rings for packets and news.
    bell: EventDoorbell,
    news: Receiver<News>,
    others: Vec<Other>,
}

/// What the helpers share with the network.
pub(super) struct Terms<'a> {
    /// The ledger of each helper.
    pub(super) ledgers: &'a [Arc<Ledger>],
    /// Memory of each.
    pub(super) memory_bytes: usize,
    pub(super) gateway: Option<PortId>,
    pub(super) busy_poll: Duration,
    /// The network wants to know when a machine has gone.
    pub(super) tells_departure: bool,
}

/// One of the other threads.
struct Other {
    /// Its state, while the thread does not have it.
    idle: RefCell<Option<Box<Helper>>>,
    /// `None` once it has to end.
    commands: Option<Sender<Command>>,
    bell: EventDoorbell,
    thread: Option<Thread>,
    last: RefCell<HelperReport>,
    /// Where a report that was requested arrives.
    late: RefCell<Option<Receiver<HelperReport>>>,
}

/// A thread, which serves while it has the state of a helper.
struct Thread {
    states: Sender<Box<Helper>>,
    handle: JoinHandle<()>,
}

impl Crew {
    /// Makes helpers without ports.
    ///
    /// # Errors
    /// The error of the system call that failed, or there is not enough memory.
    pub(super) fn new(switch: &Switch, terms: &Terms<'_>) -> io::Result<Self> {
        let (tell, news) = channel();
        let (mut bells, mut rings, mut consumers) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..=terms.ledgers.len() {
            let bell = EventDoorbell::fenced()?;
            let ring = ring::shared(RING_LEN, bell.clone()).map_err(io::Error::other)?;
            bells.push(bell);
            rings.push(ring.0);
            consumers.push(ring.1);
        }
        let links = Links::new(rings);
        let mut consumers = consumers.into_iter();
        let ring = consumers.next().expect("that of the first worker");
        let mut others = Vec::new();
        for (own, (ring, ledger)) in (1..).zip(consumers.zip(terms.ledgers)) {
            let (commands, wanted) = channel();
            let bell = bells[own].clone();
            let memory = Memory::try_new(MemoryConfig::within(terms.memory_bytes));
            let helper = Helper::new(Parts {
                forwarder: switch.forwarder(),
                links: links.of(own),
                ring,
                bell: bell.clone(),
                commands: wanted,
                news: (tell.clone(), bells[0].clone()),
                memory: memory.map_err(io::Error::other)?,
                ledger: ledger.clone(),
                gateway: terms.gateway,
                busy_poll: terms.busy_poll,
                tells_departure: terms.tells_departure,
            })?;
            others.push(Other {
                idle: RefCell::new(Some(Box::new(helper))),
                commands: Some(commands),
                bell,
                thread: None,
                last: RefCell::default(),
                late: RefCell::default(),
            });
        }
        Ok(Self { links, ring, has_packets: false, bell: bells.swap_remove(0), news, others })
    }

    /// Starts the threads, which tell the time of `clock`, and wait for [`Crew::begin`].
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(super) fn hire(&mut self, clock: &Clock) -> io::Result<()> {
        for (own, other) in (1..).zip(&mut self.others) {
            let (states, wanted) = channel();
            let clock = clock.clone();
            let thread = Builder::new().name(format!("worker-{own}"));
            let handle = thread.spawn(move || work(&wanted, &clock))?;
            other.thread = Some(Thread { states, handle });
        }
        Ok(())
    }

    /// Lets the threads serve, if there are any.
    pub(super) fn begin(&mut self) {
        for other in &mut self.others {
            if let Some(thread) = &other.thread
                && let Some(helper) = other.idle.take()
            {
                // A failure means that the thread has ended, which its news say.
                let _ = thread.states.send(helper);
            }
        }
    }

    /// Borrows the helpers from their threads, from each between two turns. None serves until
    /// [`Crew::begin`].
    ///
    /// # Errors
    /// As of [`Crew::ask`]; the helpers serve on.
    pub(super) fn pause(&mut self) -> io::Result<()> {
        // All are asked first, so that they stop at the same time.
        let asked: Vec<_> = self.others.iter().map(Other::ask_for_helper).collect();
        let mut result = Ok(());
        for (thread, (other, lent)) in (1..).zip(self.others.iter().zip(asked)) {
            let Some(lent) = lent else { continue };
            match lent.recv_timeout(PATIENCE) {
                Ok(helper) => *other.idle.borrow_mut() = Some(helper),
                Err(error) => {
                    result = Err(no_answer(thread, error));
                    break;
                }
            }
        }
        if result.is_err() {
            self.begin();
        }
        result
    }

    /// Returns a helper that is not serving.
    pub(super) fn idle(&mut self, worker: usize) -> &mut Helper {
        self.others[worker - 1].idle.get_mut().as_mut().expect("it is not serving")
    }

    /// Returns all helpers, none of which is serving.
    pub(super) fn all_idle(&mut self) -> impl Iterator<Item = &mut Helper> {
        self.others.iter_mut().map(|other| {
            let helper = other.idle.get_mut().as_mut();
            &mut **helper.expect("it is not serving")
        })
    }

    /// Runs a turn of each helper that has no thread.
    ///
    /// # Errors
    /// The files of a helper cannot be waited for.
    pub(super) fn step(&mut self, now: Instant) -> io::Result<()> {
        let mut idle = self.others.iter_mut().filter_map(|other| other.idle.get_mut().as_mut());
        idle.try_for_each(|helper| helper.step(now))
    }

    /// Takes out the helpers that have no thread. Commands wait for them from now on.
    pub(super) fn take_idle(&mut self) -> impl Iterator<Item = Box<Helper>> {
        self.others.iter_mut().filter_map(|other| other.idle.get_mut().take())
    }

    /// Calls `make` with the sender of an answer, and waits for what helper `thread` answers to
    /// that command.
    ///
    /// # Errors
    /// It has ended, or does not answer.
    pub(super) fn ask<T>(
        &self,
        thread: usize,
        make: impl FnOnce(Sender<T>) -> Command,
    ) -> io::Result<T> {
        let (to, answer) = channel();
        self.others[thread - 1].tell(make(to));
        answer.recv_timeout(PATIENCE).map_err(|error| no_answer(thread, error))
    }

    /// Records the state of a port that a helper has just taken over, for reports that it does not
    /// answer in time.
    pub(super) fn note(&self, worker: usize, port: usize, state: (PortState, Returned)) {
        self.others[worker - 1].note(port, state);
    }

    /// Stops a helper that serves, until the result is dropped.
    #[cfg(test)]
    pub(super) fn hold(&self, worker: usize) -> Receiver<Box<Helper>> {
        self.others[worker - 1].ask_for_helper().expect("it serves")
    }

    /// Returns when no thread but the first has packets for port `index`, which the switch does not
    /// know any more, or will send more of its packets.
    ///
    /// # Errors
    /// As of [`Crew::ask`].
    pub(super) fn settle(&self, index: usize) -> io::Result<()> {
        (1..=self.others.len()).try_for_each(|thread| self.ask(thread, Command::Settle))?;
        // Others may have sent to its thread until then.
        match self.links.worker_of(index) {
            0 => Ok(()),
            thread => self.ask(thread, Command::Settle),
        }
    }

    /// Makes the helpers tell when the machine of a port has gone.
    ///
    /// # Errors
    /// As of [`Crew::ask`].
    pub(super) fn tell_departure(&self) -> io::Result<()> {
        (1..self.workers()).try_for_each(|worker| self.ask(worker, Command::TellDeparture))
    }

    /// Makes the helpers remove captures whose readers are gone, and does not wait for that.
    pub(super) fn reap_captures(&self) {
        self.others.iter().for_each(|other| other.tell(Command::CountCaptures(channel().0)));
    }

    /// Returns the sum of what the helpers answer.
    ///
    /// # Errors
    /// As of [`Crew::ask`].
    pub(super) fn count(&self, make: impl Fn(Sender<usize>) -> Command) -> io::Result<usize> {
        (1..=self.others.len()).map(|thread| self.ask(thread, &make)).sum()
    }

    /// Returns the number of workers, with the first one.
    pub(super) fn workers(&self) -> usize {
        1 + self.others.len()
    }

    /// Returns the doorbell of the first worker.
    pub(super) fn bell(&self) -> &EventDoorbell {
        &self.bell
    }

    /// Returns the next news.
    pub(super) fn news(&self) -> Option<News> {
        self.news.try_recv().ok()
    }

    /// Returns true if packets for the first worker are in its ring.
    pub(super) fn look(&mut self) -> bool {
        self.has_packets = !self.ring.is_empty();
        self.has_packets
    }

    /// Makes the bell ring for the next packet. Returns true if there is one already.
    pub(super) fn arm(&mut self) -> bool {
        self.has_packets = !self.ring.needs_wakeup();
        self.has_packets
    }

    /// Returns true if there may be packets for the first worker.
    pub(super) fn has_packets(&self) -> bool {
        self.has_packets
    }

    /// Returns true if all packets that others have begun to put into the ring can be taken.
    pub(super) fn is_published(&self) -> bool {
        self.ring.is_published()
    }

    /// Returns the number of packets that are in the ring now.
    pub(super) fn packets(&mut self) -> usize {
        self.ring.len()
    }

    /// Takes packets from the ring, at most `most` and as many as a burst has room for.
    pub(super) fn take(&mut self, most: usize, burst: &mut Burst) -> usize {
        burst.limit(most.min(BURST_MAX));
        let count = self.ring.dequeue(burst);
        burst.prefetch();
        count
    }

    /// Records that the first worker has finished packets of a port of another thread, which it
    /// wakes if that waits for it.
    pub(super) fn finish(&self, port: usize, count: usize) {
        let thread = self.links.worker_of(port);
        if thread != 0 && self.links.under_way(port).finish(count) {
            self.others[thread - 1].bell.ring();
        }
    }

    /// Ends the threads and waits for them. All that they report is in the news then.
    pub(super) fn end(&mut self) {
        for other in &mut self.others {
            other.commands = None;
            other.bell.ring();
        }
        for other in &mut self.others {
            if let Some(Thread { states, handle }) = other.thread.take() {
                drop(states);
                // `End` has reported the result already, even of a panic.
                let _ = handle.join();
            }
        }
    }

    /// Returns the newest reports that arrive in time, with the counters of these ports.
    pub(super) fn reports(&self, ids: &Arc<[PortId]>) -> Vec<HelperReport> {
        self.others.iter().for_each(|other| other.ask_report(ids));
        let each = REPORT_PATIENCE / self.others.len().max(1) as u32;
        self.others.iter().map(|other| other.report(each)).collect()
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.end();
    }
}

impl Other {
    fn tell(&self, command: Command) {
        if let Some(helper) = &mut *self.idle.borrow_mut() {
            // Devices that fail to take a packet are tried again at once.
            return helper.obey(command, Instant::START);
        }
        if let Some(commands) = &self.commands {
            // A failure means that the thread has ended, which its news say.
            let _ = commands.send(command);
            self.bell.ring();
        }
    }

    /// Asks the thread to lend its helper; `None` if it does not have it.
    fn ask_for_helper(&self) -> Option<Receiver<Box<Helper>>> {
        if self.idle.borrow().is_some() {
            return None;
        }
        let (to, lent) = sync_channel(0);
        self.tell(Command::Lend(to));
        Some(lent)
    }

    /// Requests a report, unless an earlier request is still open.
    fn ask_report(&self, ids: &Arc<[PortId]>) {
        if self.late.borrow().is_some() {
            return;
        }
        let (to, report) = channel();
        *self.late.borrow_mut() = Some(report);
        self.tell(Command::Report(ids.clone(), to));
    }

    fn note(&self, port: usize, state: (PortState, Returned)) {
        // A report that was requested before does not have the port.
        *self.late.borrow_mut() = None;
        let ports = &mut self.last.borrow_mut().ports;
        ports.retain(|(other, _)| *other != port);
        ports.push((port, state));
    }

    /// Returns the report that arrives within `limit`, or the last one.
    fn report(&self, limit: Duration) -> HelperReport {
        let mut late = self.late.borrow_mut();
        let newest = late.as_ref().map(|report| report.recv_timeout(limit));
        match newest {
            Some(Err(RecvTimeoutError::Timeout)) => {}
            newest => {
                *late = None;
                if let Some(Ok(newest)) = newest {
                    *self.last.borrow_mut() = newest;
                }
            }
        }
        self.last.borrow().clone()
    }
}

/// Serves with each state of a helper that arrives, until no more can.
fn work(states: &Receiver<Box<Helper>>, clock: &Clock) {
    while let Ok(helper) = states.recv() {
        let mut end = End { result: None, news: Some(helper.news()) };
        match helper.run(clock) {
            Ok(Stopped::Lent) => end.news = None,
            Ok(Stopped::Over) => return end.of(Ok(())),
            Err(error) => return end.of(Err(error)),
        }
    }
}

/// Returns why a helper did not answer.
fn no_answer(thread: usize, error: RecvTimeoutError) -> io::Error {
    io::Error::other(match error {
        RecvTimeoutError::Timeout => format!(
            "worker {thread} has not answered for {} s; restart the network",
            PATIENCE.as_secs()
        ),
        RecvTimeoutError::Disconnected => format!("worker {thread} has ended"),
    })
}

/// Reports the result of a thread when it is dropped.
struct End {
    /// `None` after a panic.
    result: Option<io::Result<()>>,
    /// Where to report it, with the bell of the first worker; `None` if the thread goes on.
    news: Option<(Sender<News>, EventDoorbell)>,
}

impl End {
    fn of(mut self, result: io::Result<()>) {
        self.result = Some(result);
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let Some((news, bell)) = &self.news else { return };
        let result = self.result.take();
        let result = result.unwrap_or_else(|| Err(io::Error::other("a worker panicked")));
        // A failure means that the first worker has ended.
        let _ = news.send(News::Ended(result));
        bell.ring();
    }
}
