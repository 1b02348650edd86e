//! The threads of all workers but the first: how they start and end, and their commands.
//!
//! # Theory of operation
//!
//! A thread is made before the process is confined, as none can be made afterwards, and *parks*: it
//! waits for a command, in a futex, and holds nothing. With [`Command::Serve`] it makes its worker:
//! an event queue, a stack, a gateway and memory. The confined process may make all of these. It
//! may not make doorbells, so the thread has those from the start. Then it serves, and sleeps in
//! its event queue while it has no flows.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use towpath_io::doorbell::EventDoorbell;
use towpath_packet::ring::Doorbell;

use super::helper::{Helper, Told};
use crate::config::{Config, MappedAddress};
use crate::flows::{FlowPage, FlowQuery, Spread, StartError};
use crate::owners::Owners;
use crate::report::Report;
use crate::worker::{Capture, Clock, Worker};

/// Bytes of a thread's stack: four times what a worker was seen to use, and less than a huge page,
/// so that none is spent on it.
const STACK_BYTES: usize = 512 << 10;

/// A command to another worker.
pub(super) enum Command {
    /// To serve, with what this worker is made of.
    Serve(Box<(Recipe, Helper)>),
    Report,
    Flows(FlowQuery, Sender<FlowPage>),
    Map(Vec<MappedAddress>),
    End,
}

/// What every other worker is made from.
#[derive(Clone)]
pub(super) struct Recipe {
    pub(super) config: Config,
    pub(super) owners: Arc<Owners>,
    pub(super) clock: Clock,
    pub(super) capture: Option<Capture>,
}

impl Recipe {
    /// Makes a worker.
    ///
    /// # Errors
    /// There is no descriptor or no memory for it.
    pub(super) fn make(self, inside: Helper) -> Result<Worker<Helper>, StartError> {
        let mut worker = Worker::serving_program(&self.config, inside)?;
        worker.gateway().0.spread(Spread::new(self.owners));
        worker.tell_time_of(self.clock);
        worker.capture_with(self.capture);
        Ok(worker)
    }
}

/// A parked thread, for the first worker.
pub(super) struct Parked {
    pub(super) index: usize,
    /// The doorbell for packets and orders.
    pub(super) bell: EventDoorbell,
    pub(super) commands: Sender<Command>,
}

/// Another worker's thread, for its owner.
pub(super) struct Running {
    /// `None` once the worker has to end.
    pub(super) commands: Option<Sender<Command>>,
    /// Rings when there is a command.
    pub(super) bell: EventDoorbell,
    pub(super) reports: Receiver<Report>,
    /// `None` before the first one.
    pub(super) last: RefCell<Option<Report>>,
    /// A requested report has not arrived yet.
    pub(super) is_late: Cell<bool>,
    /// Where a requested page of flows has not arrived yet.
    pub(super) late_page: Option<Receiver<FlowPage>>,
    pub(super) thread: Option<JoinHandle<()>>,
    /// The other side, until the thread starts.
    pub(super) other: Option<Other>,
}

impl Running {
    /// Prepares the thread of worker `index`. It tells how it ended by `ends`, and rings `ended`.
    pub(super) fn new(
        index: usize,
        ends: Sender<io::Result<()>>,
        ended: EventDoorbell,
    ) -> io::Result<(Self, Parked)> {
        let (bell, packets) = (new_bell()?, new_bell()?);
        let (commands, wanted) = channel();
        let (tell, reports) = channel();
        let other = Other { wanted, bell: bell.clone(), tell, end: (ends, ended) };
        let parked = Parked { index, bell: packets, commands: commands.clone() };
        let running = Self {
            commands: Some(commands),
            bell,
            reports,
            last: RefCell::default(),
            is_late: Cell::new(false),
            late_page: None,
            thread: None,
            other: Some(other),
        };
        Ok((running, parked))
    }

    /// Starts the thread of worker `index`, which parks.
    pub(super) fn start(&mut self, index: usize) -> io::Result<()> {
        if let Some(other) = self.other.take() {
            let thread = thread::Builder::new().name(format!("worker-{index}"));
            let thread = thread.stack_size(STACK_BYTES).spawn(move || other.run())?;
            self.thread = Some(thread);
        }
        Ok(())
    }

    pub(super) fn tell(&self, command: Command) {
        if let Some(commands) = &self.commands {
            // A failure means that the worker has ended; it has left its last report.
            let _ = commands.send(command);
            self.bell.ring();
        }
    }

    /// Requests a report, unless an earlier request is still open.
    pub(super) fn ask(&self) {
        if !self.is_late.get() {
            self.tell(Command::Report);
        }
    }

    /// Returns the report that arrives within `limit`, or the last one.
    pub(super) fn report(&self, limit: Duration) -> Option<Report> {
        let newest = match self.commands {
            Some(_) if !self.is_late.get() => self.reports.recv_timeout(limit).ok(),
            _ => None,
        };
        let newest = self.reports.try_iter().last().or(newest);
        self.is_late.set(self.commands.is_some() && newest.is_none());
        let mut last = self.last.borrow_mut();
        if newest.is_some() {
            *last = newest;
        }
        last.clone()
    }

    /// Returns a page of flows that arrives within `limit`. A page that arrived too late for its
    /// request is dropped.
    pub(super) fn flows(&mut self, query: &FlowQuery, limit: Duration) -> Option<FlowPage> {
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

    /// Ends the thread, and waits for it if its worker serves. One that is parked holds nothing.
    pub(super) fn end(&mut self, serves: bool) {
        self.tell(Command::End);
        self.commands = None;
        let thread = self.thread.take();
        if let Some(thread) = thread.filter(|_| serves) {
            // `End` has reported the result already, even of a panic.
            let _ = thread.join();
        }
    }
}

/// The state of another worker's thread.
pub(super) struct Other {
    wanted: Receiver<Command>,
    bell: EventDoorbell,
    tell: Sender<Report>,
    end: (Sender<io::Result<()>>, EventDoorbell),
}

impl Other {
    fn run(self) {
        let (ends, bell) = self.end.clone();
        let mut end = End { result: None, ends, bell };
        end.result = Some(self.park());
    }

    /// Waits until a worker is to be made, and serves with it until the end.
    fn park(&self) -> io::Result<()> {
        loop {
            match self.wanted.recv() {
                Ok(Command::Serve(parts)) => {
                    if let Some(ended) = self.serve(parts) {
                        return ended;
                    }
                }
                // They came before a worker that could not be made.
                Ok(Command::Report | Command::Flows(..) | Command::Map(_)) => {}
                Ok(Command::End) | Err(_) => return Ok(()),
            }
        }
    }

    /// Makes the worker and serves until the end; returns `None` if it cannot be made. Not inlined:
    /// a parked thread would have the pages of this stack frame.
    #[inline(never)]
    fn serve(&self, parts: Box<(Recipe, Helper)>) -> Option<io::Result<()>> {
        let (recipe, helper) = *parts;
        let back = helper.back();
        let made = recipe.make(helper);
        back.tell(Told::Came(made.is_ok()));
        let mut worker = made.ok()?;
        let served = self.obey(&mut worker);
        self.say(&worker);
        Some(served)
    }

    fn obey(&self, worker: &mut Worker<Helper>) -> io::Result<()> {
        loop {
            worker.run_until(&[self.bell.as_fd()])?;
            self.bell.clear();
            loop {
                match self.wanted.try_recv() {
                    Ok(Command::Serve(_)) => {}
                    Ok(Command::Report) => self.say(worker),
                    Ok(Command::Flows(query, answer)) => {
                        // A failure means that the receiver is gone.
                        let _ = answer.send(worker.flows(&query));
                    }
                    Ok(Command::Map(addresses)) => worker.map_addresses(addresses),
                    Err(TryRecvError::Empty) => break,
                    Ok(Command::End) | Err(TryRecvError::Disconnected) => return Ok(()),
                }
            }
        }
    }

    fn say(&self, worker: &Worker<Helper>) {
        // A failure means that the receiver is gone.
        let _ = self.tell.send(worker.report());
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

/// Makes a doorbell. With an unfenced one, each sleep of a worker would be a barrier of all
/// threads.
pub(super) fn new_bell() -> io::Result<EventDoorbell> {
    Ok(EventDoorbell::fenced()?)
}
