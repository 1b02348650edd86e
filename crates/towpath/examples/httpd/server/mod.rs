//! A server of files: HTTP/1.1 on the event queue.
//!
//! One part knows requests and files; what brings bytes and takes them away
//! stands beside that, twice: with the queue's operations ([`Completions`]), and for comparison as
//! servers usually are, with calls that do not block and news of when to try again
//! ([`Readiness`]). One thread serves; nothing that a client does makes it wait.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use answer::{Answer, Clock, Site};
use files::Root;
use log::Log;
use rustix::fd::OwnedFd;
use rustix::process::Signal;
use towpath::events::{Interest, Source, Trigger};
use towpath_io::process_sys::SignalSet;

mod answer;
mod completions;
mod files;
mod log;
mod polled;
mod readiness;
mod request;
mod talk;

pub(crate) use completions::Completions;
pub(crate) use polled::{Kernel, Stack};
pub(crate) use readiness::Readiness;

/// What connections may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Connections at a time; others wait until one ends.
    pub(crate) connections: usize,
    /// How long a request may take to come, from the end of the one before, and how long a client
    /// may take to receive [`PART_BYTES`].
    pub(crate) idle: Duration,
    /// How long answers under way go on after the server was asked to end.
    pub(crate) grace: Duration,
}

/// Bytes of a file that are sent in one piece.
pub(crate) const PART_BYTES: u64 = 256 << 10;
/// A file that is no larger is sent together with what goes before.
const SMALL_BYTES: u64 = 16 << 10;
/// Bytes that are received at a time.
const RECEIVE_BYTES: usize = 4 << 10;
/// How long a client may go on sending what nobody reads, so that it sees why.
const LINGER: Duration = Duration::from_secs(1);
/// The same in bytes.
const LINGER_BYTES_MAX: usize = 256 << 10;
/// What has gathered is written to the log so often.
const LOG_PERIOD: Duration = Duration::from_secs(1);

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Report {
    pub(crate) connections: u64,
    pub(crate) answers: u64,
    /// Of heads and bodies.
    pub(crate) bytes: u64,
    /// Answers that were not sent to their end.
    pub(crate) failures: u64,
}

/// Files, limits and what was done: what does not depend on how bytes move.
pub(crate) struct Service {
    site: Site,
    log: Option<Log>,
    limits: Limits,
    report: Report,
}

impl Service {
    /// Of the files under `root`, with the access log at `log`.
    pub(crate) fn new(root: &Path, log: Option<&Path>, limits: Limits) -> io::Result<Self> {
        let log = log.map(Log::open).transpose()?;
        let root = Root::open(root)?;
        let is_logged = log.is_some();
        let site = Site { root, clock: Clock::new(), is_ending: false, is_logged };
        Ok(Self { site, log, limits, report: Report::default() })
    }

    /// Notes an answer that is over, of which so many bytes were sent.
    fn note(&mut self, peer: Option<IpAddr>, under_way: &UnderWay) {
        self.report.answers += 1;
        self.report.bytes += under_way.sent;
        if let Some(log) = &mut self.log {
            let (date, line) = (&self.site.clock.date, &under_way.line);
            log.add(peer, date, (line, under_way.status, under_way.sent));
        }
    }
}

/// An answer that is being sent.
struct UnderWay {
    status: u16,
    line: String,
    is_kept: bool,
    sent: u64,
}

impl UnderWay {
    fn of(answer: &mut Answer) -> Self {
        let line = std::mem::take(&mut answer.line);
        Self { status: answer.status, line, is_kept: answer.is_kept, sent: 0 }
    }
}

/// A server that runs until it is told to end.
pub(crate) trait Serve {
    fn run(self) -> io::Result<Report>;
}

/// What tells a server to end; told twice, it ends at once.
#[derive(Clone)]
pub(crate) enum EndBy {
    /// SIGINT or SIGTERM.
    Signals,
    /// This becomes readable: an eventfd.
    Readable(Arc<OwnedFd>),
}

impl EndBy {
    fn sources(&self) -> Vec<Source> {
        match self {
            Self::Signals => SIGNALS.map(|signal| Source::signal(signal.as_raw())).into(),
            Self::Readable(fd) => vec![Source::fd(fd.clone(), Interest::READ, Trigger::Edge)],
        }
    }

    /// Keeps the signals from this thread, and from those that it starts from now on.
    pub(crate) fn block(&self) -> io::Result<()> {
        self.descriptor().map(drop)
    }

    /// The same as a descriptor.
    fn descriptor(&self) -> io::Result<Arc<OwnedFd>> {
        match self {
            Self::Signals => {
                let signals = SignalSet::of(&SIGNALS.map(Signal::as_raw));
                signals.block()?;
                Ok(Arc::new(signals.descriptor()?))
            }
            Self::Readable(fd) => Ok(fd.clone()),
        }
    }
}

const SIGNALS: [Signal; 2] = [Signal::INT, Signal::TERM];
