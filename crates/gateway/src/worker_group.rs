//! Several workers that serve one program. All but the first help it while it is full.
//!
//! # Theory of operation
//!
//! Each worker has a thread, a stack, a gateway and memory of its own. The first worker runs on the
//! caller's thread. The other threads are parked until their workers join for the first time; only
//! then are these made (`thread`). The first worker alone reads the TAP device, and it owns the
//! listeners of published ports and everything else that is no flow. `reader` gives the packets of
//! each flow to the worker that owns it, and moves flows; `policy` decides when; `helper` is the
//! other side. All workers send by the device themselves.
//!
//! A worker that owns no flows sleeps. So a program whose traffic one worker can serve has one
//! worker and its memory, and each of the others costs the first pages of a thread's stack.
//!
//! A doorbell wakes the other workers for a command: to report, or to end. If one of them ends by
//! itself, all end with its error. Dropping [`WorkerGroup`] ends their threads.
//!
//! Memory is divided only while several workers serve (`vitals`): the first one has all of it
//! before, and again afterwards. Its bound moves; frames that are out stay where they are.
//!
//! A capture is one file. All workers write to it, one burst at a time, under a lock that serves
//! nothing else, so its packets are in order of time.
//!
//! Reports are requested between turns. All workers together get [`REPORT_PATIENCE`] to answer. For
//! a worker that has not answered by then, its last report counts, and it is not waited for again
//! until it answers. Pages of flows are requested from one worker at a time, in the same way.

mod helper;
mod policy;
mod reader;
mod thread;
mod vitals;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use towpath_io::doorbell::EventDoorbell;
use towpath_io::namespace::sockets::SocketSource;
use towpath_io::tap::Tap;
use towpath_net::time::Instant;

use crate::capture::Recording;
use crate::config::{Config, MappedAddress};
use crate::egress::enforcer::Enforcer;
use crate::flows::{
    FlowPage, FlowQuery, JoinId, JoinedDatagrams, JoinedDatagramsId, JoinedListener, NativeListen,
    Spread, StartError,
};
use crate::owners::Owners;
use crate::publish::{PortChange, Publish, PublishId};
pub use crate::report::REPORT_PATIENCE;
use crate::report::Report;
use crate::worker::Worker;
use reader::Reader;
use thread::{Command, Recipe, Running, new_bell};
use vitals::Bounds;

/// Packets that may wait for a worker: as many as a TAP device's own queue holds.
pub const HANDED_MAX: usize = 1024;

/// All workers of a program.
pub struct WorkerGroup {
    first: Box<Worker<Reader>>,
    others: Vec<Running>,
    /// Results of the workers that have ended.
    ends: Receiver<io::Result<()>>,
    /// Rings when one of the others has ended.
    ended: EventDoorbell,
}

impl WorkerGroup {
    /// Prepares the workers as [`WorkerGroup::prepare`] does, and starts their threads.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(config: &Config, tap: Tap) -> Result<Self, StartError> {
        let mut workers = Self::prepare(config, tap)?;
        workers.begin()?;
        Ok(workers)
    }

    /// Binds the published ports, takes over the device, and prepares the other threads of
    /// [`Config::workers`], which start with [`WorkerGroup::begin`].
    ///
    /// # Errors
    /// [`StartError`].
    pub fn prepare(config: &Config, mut tap: Tap) -> Result<Self, StartError> {
        tap.set_mtu(config.mtu);
        let owners = Arc::new(Owners::new());
        let bounds = Bounds::of(config);
        let reader = Reader::new(tap, owners.clone(), new_bell()?, config.workers, bounds);
        let mut first = Box::new(Worker::serving_program(config, reader)?);
        first.inside_mut().publish(&config.publish);
        first.gateway().0.spread(Spread::new(owners.clone()));
        let (say_end, ends) = channel();
        let ended = new_bell()?;
        let (mut others, mut parked) = (Vec::new(), Vec::new());
        for index in 1..config.workers {
            let (running, its) = Running::new(index, say_end.clone(), ended.clone())?;
            others.push(running);
            parked.push(its);
        }
        let (clock, capture) = (first.clock(), first.capture_file());
        let recipe = Recipe { config: config.share(), owners, clock, capture };
        first.inside_mut().park(recipe, parked);
        Ok(Self { first, others, ends, ended })
    }

    /// Starts the other threads, which wait until they are needed. Call it before this process is
    /// confined.
    ///
    /// # Errors
    /// A thread cannot be started. Those before it help nevertheless.
    pub fn begin(&mut self) -> io::Result<()> {
        let mut others = (1..).zip(&mut self.others);
        let begun = others.try_for_each(|(index, other)| other.start(index));
        if begun.is_err() {
            self.others.retain(|other| other.thread.is_some());
            self.first.inside_mut().have_at_most(self.others.len());
        }
        begun
    }

    /// Moves all flows to the second worker and back, so often, instead of what the load asks for.
    /// For tests.
    pub fn rotate_every(&mut self, period: Duration) {
        self.first.inside_mut().rotate_every(period);
    }

    /// Joins connections by the first worker; see [`Worker::join`].
    ///
    /// # Errors
    /// A socket does not listen, or cannot be watched.
    pub fn join(&mut self, listeners: Vec<JoinedListener>) -> io::Result<()> {
        self.first.join(listeners)
    }

    /// Joins connections to one more socket by the first worker; see [`Worker::join_one`].
    ///
    /// # Errors
    /// The socket does not listen, or cannot be watched.
    pub fn join_one(&mut self, listener: JoinedListener) -> io::Result<JoinId> {
        self.first.join_one(listener)
    }

    /// Closes a socket of [`WorkerGroup::join_one`]. Its flows continue.
    pub fn leave(&mut self, id: JoinId) {
        self.first.leave(id);
    }

    /// Passes datagrams of one socket on by the first worker; see [`Worker::join_datagrams`].
    ///
    /// # Errors
    /// The socket is not bound, or cannot be watched.
    pub fn join_datagrams(&mut self, joined: JoinedDatagrams) -> io::Result<JoinedDatagramsId> {
        self.first.join_datagrams(joined)
    }

    /// Closes a socket of [`WorkerGroup::join_datagrams`], and ends its flows.
    pub fn leave_datagrams(&mut self, id: JoinedDatagramsId) {
        self.first.leave_datagrams(id);
    }

    /// Joins connections to published ports by the first worker; see [`Worker::join_published`].
    ///
    /// # Errors
    /// The source cannot be watched.
    pub fn join_published(&mut self, source: SocketSource) -> io::Result<()> {
        self.first.join_published(source)
    }

    /// Sets the mapped addresses of all workers; see [`Worker::map_addresses`].
    pub fn map_addresses(&mut self, addresses: &[MappedAddress]) {
        self.first.map_addresses(addresses.to_vec());
        self.first.inside_mut().map_addresses(addresses);
        for other in &self.others {
            other.tell(Command::Map(addresses.to_vec()));
        }
    }

    /// Makes all changes of published ports, in order, or none; see [`Worker::change_ports`].
    ///
    /// # Errors
    /// The index of the first change that failed, and the reason.
    pub fn change_ports(&mut self, changes: Vec<PortChange>) -> Result<(), (usize, StartError)> {
        let ports = changes.iter().flat_map(|change| match change {
            PortChange::Publish(ports, _) => ports.as_slice(),
            PortChange::Unpublish(..) => &[],
        });
        self.first.inside_mut().publish(ports);
        self.first.change_ports(changes)
    }

    /// Publishes a port of the host.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn publish(&mut self, publish: &Publish) -> Result<PublishId, StartError> {
        self.first.inside_mut().publish([publish]);
        self.first.publish(publish)
    }

    /// Returns the current time of the clock that all workers share.
    pub fn now(&self) -> Instant {
        self.first.now()
    }

    /// Lets a socket that the program gets listen at a published port of the first worker; see
    /// [`Worker::listen_natively`].
    pub fn listen_natively(&mut self, socket: &OwnedFd, port: u16, backlog: i32) -> NativeListen {
        self.first.listen_natively(socket, port, backlog)
    }

    /// Such a socket has ended; see [`Worker::native_ended`].
    pub fn native_ended(&mut self, id: PublishId) -> bool {
        self.first.native_ended(id)
    }

    /// Returns the ports whose sockets have to stop; see [`Worker::take_revoked`].
    pub fn take_revoked(&mut self) -> Vec<PublishId> {
        self.first.take_revoked()
    }

    /// Closes a published port; see [`Worker::unpublish`].
    pub fn unpublish(&mut self, id: PublishId) -> bool {
        self.first.unpublish(id)
    }

    /// Returns what carries out the policy, if there is one.
    pub fn egress(&self) -> Option<&Arc<Enforcer>> {
        self.first.egress()
    }

    /// Returns the published ports.
    pub fn published(&self) -> impl Iterator<Item = (PublishId, &Publish)> {
        self.first.published()
    }

    /// Returns the recording of [`Config::capture`]; the first worker has it.
    pub fn recording(&mut self) -> Option<&mut Recording> {
        self.first.recording()
    }

    /// Serves until one of `fds` is readable; returns its index.
    ///
    /// # Errors
    /// A worker has failed.
    pub fn run_until(&mut self, fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
        let all = [fds, &[self.ended.as_fd()]].concat();
        let ready = self.first.run_until(&all)?;
        if ready < fds.len() {
            return Ok(ready);
        }
        let end = self.ends.try_recv().unwrap_or(Ok(()));
        Err(end.err().unwrap_or_else(|| io::Error::other("a worker ended")))
    }

    /// Continues after the program's end until everything that the program sent has been passed on,
    /// for `limit` at most, or until one of `fds` is readable. All flows return to the first worker
    /// for that. Then ends the other threads.
    ///
    /// # Errors
    /// A worker has failed.
    pub fn finish(&mut self, fds: &[BorrowedFd<'_>], limit: Duration) -> io::Result<()> {
        let all = [fds, &[self.ended.as_fd()]].concat();
        let mut result = self.first.finish(&all, limit);
        self.end_others();
        for end in self.ends.try_iter() {
            result = result.and(end);
        }
        result
    }

    /// Returns the counters so far, of all workers together and of each.
    pub fn report(&self) -> Report {
        let made = &self.others[..self.first.inside().made()];
        made.iter().for_each(Running::ask);
        let until = self.first.now() + REPORT_PATIENCE;
        let made = made.iter().map(|other| other.report(until.since(self.first.now())));
        let mut others: Vec<Option<Report>> = made.collect();
        others.resize(self.others.len(), None);
        Report::of_several(self.first.report(), &others, self.first.inside().serving())
    }

    /// Returns the number of workers.
    pub fn count(&self) -> usize {
        1 + self.others.len()
    }

    /// Returns a page of the open flows of a worker, as [`Worker::flows`] does; `None` if there is
    /// no such worker, or if it has not answered within [`REPORT_PATIENCE`].
    pub fn flows(&mut self, worker: usize, query: &FlowQuery) -> Option<FlowPage> {
        let made = self.first.inside().made();
        match worker.checked_sub(1) {
            None => Some(self.first.flows(query)),
            Some(other) => {
                let running = self.others.get_mut(other)?;
                if other < made {
                    running.flows(query, REPORT_PATIENCE)
                } else {
                    Some(FlowPage::default())
                }
            }
        }
    }

    fn end_others(&mut self) {
        let called = self.first.inside().called();
        for (index, other) in self.others.iter_mut().enumerate() {
            other.end(index < called);
        }
    }
}

impl Drop for WorkerGroup {
    fn drop(&mut self) {
        self.end_others();
    }
}

#[cfg(test)]
mod tests;
