//! Several workers that serve one program. All but the first help it while it is full.
//!
//! # Theory of operation
//!
//! Each worker has a thread, a stack, a gateway and memory of its own. The first worker runs on the
//! caller's thread. It alone reads the TAP device, and it owns the listeners of published ports and
//! everything else that is no flow. `reader` gives the packets of each flow to the worker that owns
//! it, and moves flows; `policy` decides when; `helper` is the other side. All workers send by the
//! device themselves.
//!
//! A worker that owns no flows sleeps. So a program whose traffic one worker can serve has one
//! worker, and the others cost their memory's first pages.
//!
//! A doorbell wakes the other workers for a command: to report, or to end. If one of them ends by
//! itself, all end with its error. Dropping [`WorkerGroup`] ends their threads.
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

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use towpath_io::doorbell::EventDoorbell;
use towpath_io::namespace::sockets::SocketSource;
use towpath_io::tap::Tap;
use towpath_net::time::Instant;
use towpath_packet::Burst;
use towpath_packet::ring;

use crate::capture::Recording;
use crate::config::{Config, MappedAddress};
use crate::egress::enforcer::Enforcer;
use crate::flows::{
    FlowPage, FlowQuery, JoinId, JoinedDatagrams, JoinedDatagramsId, JoinedListener, NativeListen,
    Orders, Spread, StartError,
};
use crate::owners::Owners;
use crate::publish::{PortChange, Publish, PublishId};
pub use crate::report::REPORT_PATIENCE;
use crate::report::Report;
use crate::worker::Worker;
use helper::Helper;
use reader::{Helped, Reader};
use thread::{Command, End, Running, new_bell};
use vitals::Vitals;

/// Packets that may wait for a worker: as many as a TAP device's own queue holds.
pub const HANDED_MAX: usize = 1024;

/// All workers of a program.
pub struct WorkerGroup {
    first: Worker<Reader>,
    others: Vec<Running>,
    /// Results of the workers that have ended.
    ends: Receiver<io::Result<()>>,
    /// Rings when one of the others has ended.
    ended: EventDoorbell,
}

impl WorkerGroup {
    /// Prepares the workers as [`WorkerGroup::prepare`] does, and starts serving.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(config: &Config, tap: Tap) -> Result<Self, StartError> {
        let workers = Self::prepare(config, tap)?;
        workers.begin();
        Ok(workers)
    }

    /// Binds the published ports, takes over the device, and starts the threads of
    /// [`Config::workers`], which wait for [`WorkerGroup::begin`].
    ///
    /// # Errors
    /// [`StartError`].
    pub fn prepare(config: &Config, mut tap: Tap) -> Result<Self, StartError> {
        tap.set_mtu(config.mtu);
        let Plan { first, helpers, share, owners, orders } = Plan::make(config, tap)?;
        let of_first = config.share_of_first();
        let mut first = Worker::serving_program(&of_first, first)?;
        first.inside_mut().publish(&config.publish);
        let (say_end, ends) = channel();
        let ended = new_bell()?;
        let mut others = Vec::new();
        for (index, inside) in (1..).zip(helpers) {
            let mut worker = Worker::serving_program(&share, inside)?;
            worker.gateway().0.spread(Spread::new(owners.clone(), Vec::new()));
            worker.tell_time_of(&first);
            worker.capture_with(first.capture_file());
            let end = End { result: None, ends: say_end.clone(), bell: ended.clone() };
            others.push(Running::start(index, worker, end)?);
        }
        first.gateway().0.spread(Spread::new(owners, orders));
        Ok(Self { first, others, ends, ended })
    }

    /// Moves all flows to the second worker and back, so often, instead of what the load asks for.
    /// For tests.
    pub fn rotate_every(&mut self, period: Duration) {
        self.first.inside_mut().rotate_every(period);
    }

    /// Lets the other threads begin. Call it once this process is confined.
    pub fn begin(&self) {
        for other in &self.others {
            other.tell(Command::Begin);
        }
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
        self.others.iter_mut().for_each(Running::end);
        for end in self.ends.try_iter() {
            result = result.and(end);
        }
        result
    }

    /// Returns the counters so far, of all workers together and of each.
    pub fn report(&self) -> Report {
        self.others.iter().for_each(Running::ask);
        let until = self.first.now() + REPORT_PATIENCE;
        let others = self.others.iter();
        let others = others.map(|other| other.report(until.since(self.first.now())));
        let others: Vec<Report> = others.collect();
        Report::of_several(self.first.report(), &others)
    }

    /// Returns the number of workers.
    pub fn count(&self) -> usize {
        1 + self.others.len()
    }

    /// Returns a page of the open flows of a worker, as [`Worker::flows`] does; `None` if there is
    /// no such worker, or if it has not answered within [`REPORT_PATIENCE`].
    pub fn flows(&mut self, worker: usize, query: &FlowQuery) -> Option<FlowPage> {
        match worker.checked_sub(1) {
            None => Some(self.first.flows(query)),
            Some(other) => self.others.get_mut(other)?.flows(query, REPORT_PATIENCE),
        }
    }
}

/// What the workers share, before they are made.
struct Plan {
    first: Reader,
    helpers: Vec<Helper>,
    /// The configuration of the other workers.
    share: Config,
    owners: Arc<Owners>,
    orders: Vec<Orders>,
}

impl Plan {
    fn make(config: &Config, tap: Tap) -> io::Result<Self> {
        let share = config.share();
        let owners = Arc::new(Owners::new());
        let vitals: Arc<[Vitals]> = (0..config.workers).map(|_| Vitals::default()).collect();
        let flows_max = config.flows_max;
        let (send_back, returned) = channel();
        // A fenced doorbell: with an unfenced one, each sleep of a worker would be a barrier of all
        // threads.
        let bell = EventDoorbell::fenced()?;
        let (mut helpers, mut helped) = (Vec::new(), Vec::new());
        for index in 1..config.workers {
            let its_bell = EventDoorbell::fenced()?;
            let ring = ring::single(HANDED_MAX, its_bell.clone()).map_err(io::Error::other)?;
            let (to, orders) = channel();
            helpers.push(Helper {
                tap: tap.try_clone()?,
                index,
                flows_max,
                vitals: vitals.clone(),
                ring: ring.1,
                taken: Burst::new(),
                passed_on: 0,
                orders,
                open: VecDeque::new(),
                back: (send_back.clone(), bell.clone()),
                bell: its_bell.clone(),
                has_packets: false,
                flows_taken: 0,
            });
            let orders = Orders { to, bell: its_bell };
            helped.push(Helped { orders, ring: ring.0, leaving: Burst::new(), put: 0 });
        }
        let orders = helped.iter().map(|helped: &Helped| helped.orders.clone()).collect();
        let first = Reader::new(tap, owners.clone(), helped, (bell, returned), (vitals, flows_max));
        Ok(Self { first, helpers, share, owners, orders })
    }
}

#[cfg(test)]
mod tests;
