//! A file server: HTTP/1.1 on the event queue.
//!
//! One part handles requests and files. The part that moves bytes exists twice: with the queue's
//! operations ([`Completions`]), and for comparison in the usual way of servers, with non-blocking
//! calls and readiness events ([`Readiness`]). One thread serves; no client can make it block.

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
pub(crate) mod readiness;
mod request;
mod talk;

pub(crate) use completions::Completions;
pub(crate) use polled::{Kernel, Stack};
pub(crate) use readiness::Readiness;

/// Limits of connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Most connections at a time; others wait until one ends.
    pub(crate) connections: usize,
    /// How long a request may take to arrive, from the end of the one before; and how long a client
    /// may take to receive [`PART_BYTES`].
    pub(crate) idle: Duration,
    /// How long answers in progress continue after the server was asked to end.
    pub(crate) grace: Duration,
}

/// Bytes of a file that are sent at a time.
pub(crate) const PART_BYTES: u64 = 256 << 10;
/// A file of at most this size is sent together with its head.
const SMALL_BYTES: u64 = 16 << 10;
/// Bytes received at a time.
const RECEIVE_BYTES: usize = 4 << 10;
/// How long a client may keep sending unread data, so that it gets the answer.
const LINGER: Duration = Duration::from_secs(1);
/// Most bytes of unread data that a client may send meanwhile.
const LINGER_BYTES_MAX: usize = 256 << 10;
/// How often collected lines are written to the log.
const LOG_PERIOD: Duration = Duration::from_secs(1);

/// Statistics of the server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Report {
    pub(crate) connections: u64,
    pub(crate) answers: u64,
    /// Bytes of heads and bodies.
    pub(crate) bytes: u64,
    /// Answers that were not sent completely.
    pub(crate) failures: u64,
}

/// Files, limits and statistics: everything that does not depend on how bytes move.
pub(crate) struct Service {
    site: Site,
    log: Option<Log>,
    limits: Limits,
    report: Report,
}

impl Service {
    /// Creates a service for the files under `root`, with an access log at `log`.
    pub(crate) fn new(root: &Path, log: Option<&Path>, limits: Limits) -> io::Result<Self> {
        let log = log.map(Log::open).transpose()?;
        let root = Root::open(root)?;
        let is_logged = log.is_some();
        let site = Site { root, clock: Clock::new(), is_ending: false, is_logged };
        Ok(Self { site, log, limits, report: Report::default() })
    }

    /// Notes an answer that is complete or has failed.
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

/// A server that runs until it is asked to end.
pub(crate) trait Serve {
    fn run(self) -> io::Result<Report>;
}

/// How a server is asked to end; a second request ends it at once.
#[derive(Clone)]
pub(crate) enum EndBy {
    /// SIGINT or SIGTERM.
    Signals,
    /// This descriptor, an eventfd, becomes readable.
    Readable(Arc<OwnedFd>),
}

impl EndBy {
    fn sources(&self) -> Vec<Source> {
        match self {
            Self::Signals => SIGNALS.map(|signal| Source::signal(signal.as_raw())).into(),
            Self::Readable(fd) => vec![Source::fd(fd.clone(), Interest::READ, Trigger::Edge)],
        }
    }

    /// Blocks the signals in this thread and in threads that it starts later.
    pub(crate) fn block(&self) -> io::Result<()> {
        self.descriptor().map(drop)
    }

    /// Returns a descriptor that becomes readable when the server is asked to end.
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
