//! The threads of all workers but the first: how they start and end, and the commands that they get.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use towpath_io::doorbell::EventDoorbell;
use towpath_packet::ring::Doorbell;

use super::helper::Helper;
use crate::config::MappedAddress;
use crate::flows::{FlowPage, FlowQuery};
use crate::report::Report;
use crate::worker::Worker;

/// A command to another worker.
pub(super) enum Command {
    Begin,
    Report,
    Flows(FlowQuery, Sender<FlowPage>),
    Map(Vec<MappedAddress>),
}

/// A worker on a thread of its own.
pub(super) struct Running {
    /// `None` once the worker has to end.
    pub(super) commands: Option<Sender<Command>>,
    /// Rings when there is a command, or when no more will come.
    pub(super) bell: EventDoorbell,
    pub(super) reports: Receiver<Report>,
    pub(super) last: RefCell<Report>,
    /// A requested report has not arrived yet.
    pub(super) is_late: Cell<bool>,
    /// Where a requested page of flows has not arrived yet.
    pub(super) late_page: Option<Receiver<FlowPage>>,
    pub(super) thread: Option<JoinHandle<()>>,
}

impl Running {
    pub(super) fn start(index: usize, worker: Worker<Helper>, end: End) -> io::Result<Self> {
        let (bell, last) = (new_bell()?, RefCell::new(worker.report()));
        let (commands, wanted) = channel();
        let (tell, reports) = channel();
        let other = Other { worker, wanted, bell: bell.clone(), tell };
        let thread = thread::Builder::new().name(format!("worker-{index}"));
        let thread = thread.spawn(move || other.run(end))?;
        let thread = Some(thread);
        let is_late = Cell::new(false);
        let late_page = None;
        let commands = Some(commands);
        Ok(Self { commands, bell, reports, last, is_late, late_page, thread })
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
    pub(super) fn report(&self, limit: Duration) -> Report {
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

    /// Ends the thread and waits for it.
    pub(super) fn end(&mut self) {
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
    worker: Worker<Helper>,
    wanted: Receiver<Command>,
    bell: EventDoorbell,
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
            loop {
                match self.wanted.try_recv() {
                    Ok(Command::Begin) => {}
                    Ok(Command::Report) => self.say(),
                    Ok(Command::Flows(query, answer)) => {
                        // A failure means that the receiver is gone.
                        let _ = answer.send(self.worker.flows(&query));
                    }
                    Ok(Command::Map(addresses)) => self.worker.map_addresses(addresses),
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
pub(super) struct End {
    /// `None` after a panic.
    pub(super) result: Option<io::Result<()>>,
    pub(super) ends: Sender<io::Result<()>>,
    pub(super) bell: EventDoorbell,
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

pub(super) fn new_bell() -> io::Result<EventDoorbell> {
    Ok(EventDoorbell::new()?)
}
