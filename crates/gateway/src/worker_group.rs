//! Several workers that serve one program, each with its own queue of the TAP device.
//!
//! # Theory of operation
//!
//! Each worker has a thread, a stack, a gateway and memory of its own: an even share of the limits.
//! The first worker runs on the caller's thread, serves every protocol and owns the listeners of
//! published ports. The others serve TCP connections that the program begins and that the kernel
//! steers to their queues, and a share of the connections to published ports, whose host sockets
//! they get from the first worker. `queue` explains why, and what is handed over.
//!
//! A doorbell wakes the other workers for a command: to report, or to finish. If one of them ends
//! by itself, all end with its error. Dropping [`WorkerGroup`] ends their threads.
//!
//! A capture is one file. All workers write to it, one burst at a time, under a lock that serves
//! nothing else, so its packets are in order of time.
//!
//! Reports are requested between turns. All workers together get [`REPORT_PATIENCE`] to answer. For
//! a worker that has not answered by then, its last report counts, and it is not waited for again
//! until it answers. Pages of flows are requested from one worker at a time, in the same way.

mod queue;

pub use queue::HANDED_MAX;

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use towpath_io::doorbell::EventDoorbell;
use towpath_io::namespace::channel::wait_readable;
use towpath_io::namespace::sockets::SocketSource;
use towpath_io::tap::Tap;
use towpath_packet::ring::Doorbell;

use crate::capture::Recording;
use crate::config::{Config, MappedAddress};
use crate::flows::{
    Accepted, FlowPage, FlowQuery, JoinId, JoinedDatagrams, JoinedDatagramsId, JoinedListener,
    Spread, StartError,
};
use crate::owners::Owners;
use crate::publish::{PortChange, Publish, PublishId};
use crate::report::Report;
use crate::worker::Worker;
use queue::Queue;

/// How long to wait for the reports of all other workers; packets of the first worker wait as well.
pub const REPORT_PATIENCE: Duration = Duration::from_millis(100);

/// All workers of a program.
pub struct WorkerGroup {
    first: Worker<Queue>,
    others: Vec<Running>,
    owners: Arc<Owners>,
    /// Results of the workers that have ended.
    ends: Receiver<io::Result<()>>,
    /// Rings when one of the others has ended.
    ended: EventDoorbell,
    /// Once rung, the other workers stop finishing.
    stop: EventDoorbell,
}

impl WorkerGroup {
    /// Prepares the workers as [`WorkerGroup::prepare`] does, and starts serving.
    ///
    /// # Errors
    /// [`StartError`].
    ///
    /// # Panics
    /// If there is no queue.
    pub fn start(config: &Config, queues: Vec<Tap>) -> Result<Self, StartError> {
        let workers = Self::prepare(config, queues)?;
        workers.begin();
        Ok(workers)
    }

    /// Binds the published ports, takes over the queues of a device, one worker for each, and
    /// starts their threads, which wait for [`WorkerGroup::begin`].
    ///
    /// # Errors
    /// [`StartError`].
    ///
    /// # Panics
    /// If there is no queue.
    pub fn prepare(config: &Config, queues: Vec<Tap>) -> Result<Self, StartError> {
        let share = Config { workers: queues.len(), ..config.clone() }.share();
        let mut queues = queues;
        queues.iter_mut().for_each(|tap| tap.set_mtu(config.mtu));
        let owners = Arc::new(Owners::new(&config.publish, queues.len()));
        let mut queues = Queue::all(queues, &owners)?.into_iter();
        let first = queues.next().expect("a device has a queue");
        let of_first = Config {
            publish: config.publish.clone(),
            multicast: config.multicast.clone(),
            capture: config.capture.clone(),
            ..share.clone()
        };
        let mut first = Worker::serving_program(&of_first, first)?;
        let (say_end, ends) = channel();
        let (ended, stop) = (new_bell()?, new_bell()?);
        let mut others = Vec::new();
        let mut hand_over = Vec::new();
        for (index, inside) in (1..).zip(queues) {
            let mut worker = Worker::serving_program(&share, inside)?;
            worker.gateway().0.spread(Spread::new(owners.clone(), index, Vec::new()));
            worker.search_paths();
            worker.capture_with(first.capture_file());
            let end = End { result: None, ends: say_end.clone(), bell: ended.clone() };
            let (running, accepted) = Running::start(index, worker, end, stop.clone())?;
            hand_over.push(accepted);
            others.push(running);
        }
        first.gateway().0.spread(Spread::new(owners.clone(), 0, hand_over));
        Ok(Self { first, others, owners, ends, ended, stop })
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
    /// A connection that the program began from a port that is published now for the first time
    /// may end.
    ///
    /// # Errors
    /// The index of the first change that failed, and the reason.
    pub fn change_ports(&mut self, changes: Vec<PortChange>) -> Result<(), (usize, StartError)> {
        let ports = changes.iter().flat_map(|change| match change {
            PortChange::Publish(ports, _) => ports.as_slice(),
            PortChange::Unpublish(..) => &[],
        });
        // Before the first connection, all workers have to know to whom it belongs. A port stays
        // marked when it is closed, as its connections continue.
        self.owners.add(ports);
        self.first.change_ports(changes)
    }

    /// Publishes a port of the host.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn publish(&mut self, publish: &Publish) -> Result<PublishId, StartError> {
        self.owners.add([publish]);
        self.first.publish(publish)
    }

    /// Closes a published port; see [`Worker::unpublish`].
    pub fn unpublish(&mut self, id: PublishId) -> bool {
        self.first.unpublish(id)
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
    /// for `limit` at most, or until one of `fds` is readable. Then ends the other threads.
    ///
    /// # Errors
    /// A worker has failed.
    pub fn finish(&mut self, fds: &[BorrowedFd<'_>], limit: Duration) -> io::Result<()> {
        for other in &self.others {
            other.tell(Command::Finish(limit));
        }
        let result = self.first.finish(fds, limit);
        let result = result.and(self.wait_for_others(fds));
        for other in &mut self.others {
            other.end();
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

    /// Waits until all other workers have ended, or stops them when one of `fds` is readable.
    fn wait_for_others(&self, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut result = Ok(());
        let mut fds = fds;
        let mut left = self.others.len();
        while left > 0 {
            let all = [fds, &[self.ended.as_fd()]].concat();
            if wait_readable(&all, None)? != Some(fds.len()) {
                self.stop.ring();
                fds = &[];
                continue;
            }
            self.ended.clear();
            while let Ok(end) = self.ends.try_recv() {
                left -= 1;
                result = result.and(end);
            }
        }
        result
    }
}

/// A command to another worker.
enum Command {
    Begin,
    Report,
    Flows(FlowQuery, Sender<FlowPage>),
    Map(Vec<MappedAddress>),
    Finish(Duration),
}

/// A worker on a thread of its own.
struct Running {
    /// `None` once the worker has to end.
    commands: Option<Sender<Command>>,
    /// Rings when there is a command, or when no more will come.
    bell: EventDoorbell,
    reports: Receiver<Report>,
    last: RefCell<Report>,
    /// A requested report has not arrived yet.
    is_late: Cell<bool>,
    /// Where a requested page of flows has not arrived yet.
    late_page: Option<Receiver<FlowPage>>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(
        index: usize,
        worker: Worker<Queue>,
        end: End,
        stop: EventDoorbell,
    ) -> io::Result<(Self, (Sender<Accepted>, EventDoorbell))> {
        let (bell, last) = (new_bell()?, RefCell::new(worker.report()));
        let (commands, wanted) = channel();
        let (tell, reports) = channel();
        let (hand_over, accepted) = channel();
        let other = Other { worker, wanted, accepted, bell: bell.clone(), stop, tell };
        let thread = thread::Builder::new().name(format!("worker-{index}"));
        let thread = thread.spawn(move || other.run(end))?;
        let to_it = (hand_over, bell.clone());
        let thread = Some(thread);
        let is_late = Cell::new(false);
        let late_page = None;
        let commands = Some(commands);
        Ok((Self { commands, bell, reports, last, is_late, late_page, thread }, to_it))
    }

    fn tell(&self, command: Command) {
        if let Some(commands) = &self.commands {
            // A failure means that the worker has ended; it has left its last report.
            let _ = commands.send(command);
            self.bell.ring();
        }
    }

    /// Requests a report, unless an earlier request is still open.
    fn ask(&self) {
        if !self.is_late.get() {
            self.tell(Command::Report);
        }
    }

    /// Returns the report that arrives within `limit`, or the last one.
    fn report(&self, limit: Duration) -> Report {
        let newest = match self.commands {
            Some(_) if !self.is_late.get() => self.reports.recv_timeout(limit).ok(),
            _ => None,
        };
        let newest = self.reports.try_iter().last().or(newest);
        self.is_late.set(self.commands.is_some() && newest.is_none());
        let mut last = self.last.borrow_mut();
        if let Some(newest) = newest {
            *last = newest;
        }
        last.clone()
    }

    /// Returns a page of flows that arrives within `limit`. A page that arrived too late for its
    /// request is dropped.
    fn flows(&mut self, query: &FlowQuery, limit: Duration) -> Option<FlowPage> {
        if let Some(late) = &self.late_page
            && matches!(late.try_recv(), Err(TryRecvError::Empty))
        {
            return None;
        }
        self.late_page = None;
        let (answer, page) = channel();
        self.tell(Command::Flows(*query, answer));
        let answered = page.recv_timeout(limit);
        if matches!(answered, Err(RecvTimeoutError::Timeout)) {
            self.late_page = Some(page);
        }
        answered.ok()
    }

    /// Ends the thread and waits for it.
    fn end(&mut self) {
        self.commands = None;
        self.bell.ring();
        if let Some(thread) = self.thread.take() {
            // `End` has reported the result already, even of a panic.
            let _ = thread.join();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// The state of another worker's thread.
struct Other {
    worker: Worker<Queue>,
    wanted: Receiver<Command>,
    /// Connections to published ports that belong to this worker.
    accepted: Receiver<Accepted>,
    bell: EventDoorbell,
    stop: EventDoorbell,
    tell: Sender<Report>,
}

impl Other {
    fn run(mut self, mut end: End) {
        end.result = Some(self.serve());
        self.say();
    }

    fn serve(&mut self) -> io::Result<()> {
        // The first command is to begin; a closed channel means that it never comes.
        if self.wanted.recv().is_err() {
            return Ok(());
        }
        loop {
            self.worker.run_until(&[self.bell.as_fd()])?;
            self.bell.clear();
            self.worker.gateway().0.take_over(self.accepted.try_iter());
            loop {
                match self.wanted.try_recv() {
                    Ok(Command::Begin) => {}
                    Ok(Command::Report) => self.say(),
                    Ok(Command::Flows(query, answer)) => {
                        // A failure means that the receiver is gone.
                        let _ = answer.send(self.worker.flows(&query));
                    }
                    Ok(Command::Map(addresses)) => self.worker.map_addresses(addresses),
                    Ok(Command::Finish(limit)) => {
                        return self.worker.finish(&[self.stop.as_fd()], limit);
                    }
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return Ok(()),
                }
            }
        }
    }

    fn say(&self) {
        // A failure means that the receiver is gone.
        let _ = self.tell.send(self.worker.report());
    }
}

/// Reports the result of a thread when it is dropped.
struct End {
    /// `None` after a panic.
    result: Option<io::Result<()>>,
    ends: Sender<io::Result<()>>,
    bell: EventDoorbell,
}

impl Drop for End {
    fn drop(&mut self) {
        let result = self.result.take();
        let result = result.unwrap_or_else(|| Err(io::Error::other("a worker panicked")));
        // A failure means that the receiver is gone.
        let _ = self.ends.send(result);
        self.bell.ring();
    }
}

fn new_bell() -> io::Result<EventDoorbell> {
    Ok(EventDoorbell::new()?)
}

#[cfg(test)]
mod tests;
