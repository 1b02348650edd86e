//! Several workers that serve one program, each with a queue of its TAP device.
//!
//! # Theory of operation
//!
//! Each worker has a thread, a stack, a gateway and memory of its own: an even share of the limits.
//! The first one runs on the caller's thread, serves everything and has the listeners of published
//! ports; the others take TCP connections that the program begins, those that the kernel puts into
//! their queues, and a share of those to published ports, whose host sockets they get from the
//! first. `queue` tells why, and what is handed over.
//!
//! The others hear by a bell that something is wanted of them: a report, or to finish. One that
//! ends by itself ends all with its error. Dropped, the threads end.
//!
//! A capture is one file, to which all write: a burst at a time, with a lock that nobody takes
//! otherwise, so that its packets are in the order of time.
//!
//! Reports are asked for between turns. All together are given [`REPORT_PATIENCE`]; one that has
//! not answered by then counts with what it said last, and is not waited for again until it has
//! answered.

mod queue;

pub use queue::HANDED_MAX;

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use towpath_io::doorbell::EventDoorbell;
use towpath_io::namespace::channel::wait_readable;
use towpath_io::namespace::sockets::SocketSource;
use towpath_io::tap::Tap;
use towpath_packet::ring::Doorbell;

use crate::capture::Recording;
use crate::config::Config;
use crate::flows::{Accepted, JoinedListener, Spread, StartError};
use crate::owners::Owners;
use crate::report::Report;
use crate::worker::Worker;
use queue::Queue;

/// How long reports of other workers are waited for, all together: packets of the first wait, too.
pub const REPORT_PATIENCE: Duration = Duration::from_millis(100);

/// All workers of a program.
pub struct Workers {
    first: Worker<Queue>,
    others: Vec<Running>,
    /// Why those that have ended did.
    ends: Receiver<io::Result<()>>,
    /// Rings when one of the others has ended.
    ended: EventDoorbell,
    /// Once rung, nobody finishes what is left.
    stop: EventDoorbell,
}

impl Workers {
    /// As [`Workers::prepare`], and begins.
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

    /// Binds the published ports, takes over the queues of a device, a worker for each, and starts
    /// their threads, which wait for [`Workers::begin`].
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
            capture: config.capture.clone(),
            ..share.clone()
        };
        let mut first = Worker::serving_program(&of_first, first)?;
        let (say_end, ends) = channel();
        let (ended, stop) = (new_bell()?, new_bell()?);
        let mut others = Vec::new();
        let mut hand_over = Vec::new();
        for (index, side) in (1..).zip(queues) {
            let mut worker = Worker::serving_program(&share, side)?;
            worker.gateway().0.spread(Spread::new(owners.clone(), index, Vec::new()));
            worker.search_paths();
            worker.capture_with(first.capture_file());
            let end = End { result: None, ends: say_end.clone(), bell: ended.clone() };
            let (running, accepted) = Running::start(index, worker, end, stop.clone())?;
            hand_over.push(accepted);
            others.push(running);
        }
        first.gateway().0.spread(Spread::new(owners, 0, hand_over));
        Ok(Self { first, others, ends, ended, stop })
    }

    /// Lets the other threads begin: whoever confines this process has done so.
    pub fn begin(&self) {
        for other in &self.others {
            other.tell(Command::Begin);
        }
    }

    /// As [`Worker::join`], by the first worker.
    ///
    /// # Errors
    /// As there.
    pub fn join(&mut self, listeners: Vec<JoinedListener>) -> io::Result<()> {
        self.first.join(listeners)
    }

    /// As [`Worker::join_published`], by the first worker.
    ///
    /// # Errors
    /// As there.
    pub fn join_published(&mut self, source: SocketSource) -> io::Result<()> {
        self.first.join_published(source)
    }

    /// As [`Worker::recording`].
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

    /// Serves on after the program's end until what it sent has been passed on, at most for
    /// `limit`, or until one of `fds` is readable; then the other threads end.
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

    /// What passed so far, of all together and of each.
    pub fn report(&self) -> Report {
        self.others.iter().for_each(Running::ask);
        let until = self.first.now() + REPORT_PATIENCE;
        let others = self.others.iter();
        let others = others.map(|other| other.report(until.since(self.first.now())));
        let others: Vec<Report> = others.collect();
        Report::of_several(self.first.report(), &others)
    }

    /// Waits until all others have ended, who do that by themselves, or stops them.
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

/// What is wanted of another worker.
enum Command {
    Begin,
    Report,
    Finish(Duration),
}

/// A worker on a thread of its own.
struct Running {
    /// `None` once it has to end.
    commands: Option<Sender<Command>>,
    /// Rings when there is a command, or none will come.
    bell: EventDoorbell,
    reports: Receiver<Report>,
    last: RefCell<Report>,
    /// It was asked for a report and has not answered.
    is_late: Cell<bool>,
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
        Ok((Self { commands: Some(commands), bell, reports, last, is_late, thread }, to_it))
    }

    fn tell(&self, command: Command) {
        if let Some(commands) = &self.commands {
            // One that has ended has left its report.
            let _ = commands.send(command);
            self.bell.ring();
        }
    }

    /// Asks for a report, unless it still has to answer another time.
    fn ask(&self) {
        if !self.is_late.get() {
            self.tell(Command::Report);
        }
    }

    /// What it answers within `limit`, or said last.
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

    /// Has the thread end, and waits for that.
    fn end(&mut self) {
        self.commands = None;
        self.bell.ring();
        if let Some(thread) = self.thread.take() {
            // Its end, also by a panic, has been told.
            let _ = thread.join();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// What a thread has.
struct Other {
    worker: Worker<Queue>,
    wanted: Receiver<Command>,
    /// Connections to published ports that are this one's.
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
        // Nothing else comes first; without it, nobody begins.
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
        // Nobody is there who wants it, if this fails.
        let _ = self.tell.send(self.worker.report());
    }
}

/// Tells how a thread ended, when it is dropped.
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
        // Nobody is there who wants it, if this fails.
        let _ = self.ends.send(result);
        self.bell.ring();
    }
}

fn new_bell() -> io::Result<EventDoorbell> {
    Ok(EventDoorbell::new()?)
}

#[cfg(test)]
mod tests;
