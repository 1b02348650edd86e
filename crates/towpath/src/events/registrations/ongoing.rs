//! State of an operation that the back end carries out, and the events that report it.

use crate::events::EventKind;
use crate::events::registrations::timers::Setting;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use towpath_io::events::{Outcome, Parts};

/// State of an operation that the back end carries out.
#[derive(Default)]
pub(in crate::events) struct Ongoing {
    /// Connections that were accepted and not taken.
    pub(in crate::events) accepted: VecDeque<OwnedFd>,
    /// They were reported, and none was taken since.
    pub(in crate::events) is_offered: bool,
    /// Bytes accepted of a lent buffer that is not back; not reported yet.
    lent: Option<u64>,
    pub(in crate::events) outcome: Option<Outcome>,
    /// The accepted bytes were reported.
    is_sent: bool,
    /// The end was reported.
    pub(in crate::events) is_reported: bool,
    pub(in crate::events) deadline: Option<Setting>,
    /// The deadline has passed.
    pub(in crate::events) is_late: bool,
}

impl Ongoing {
    /// Returns the next event to report.
    pub(in crate::events) fn next_event(&mut self) -> Option<EventKind> {
        if !self.accepted.is_empty() {
            return (!std::mem::replace(&mut self.is_offered, true))
                .then_some(EventKind::Connection);
        }
        if let Some(bytes) = self.lent.take() {
            self.is_sent = true;
            return Some(EventKind::Accepted { bytes: bytes as usize });
        }
        let outcome = self.outcome.as_ref()?;
        let Outcome { bytes, failure, parts } = outcome;
        if let (Parts::Sent(..) | Parts::Called { sent: true }, false) = (parts, self.is_sent) {
            self.is_sent = true;
            if *bytes > 0 || failure.is_none() {
                return Some(EventKind::Accepted { bytes: *bytes as usize });
            }
        }
        (!std::mem::replace(&mut self.is_reported, true)).then_some(EventKind::Completed)
    }

    pub(in crate::events) fn accepted(&mut self, connection: OwnedFd) {
        self.accepted.push_back(connection);
    }

    pub(in crate::events) fn sent(&mut self, bytes: u64) {
        self.lent = Some(bytes);
    }

    pub(in crate::events) fn over(&mut self, outcome: Outcome) {
        self.outcome = Some(outcome);
    }

    pub(in crate::events) fn is_over(&self) -> bool {
        self.outcome.is_some()
    }

    /// Converts the reason of an early end.
    pub(in crate::events) fn error(&self, errno: Errno) -> io::Error {
        match errno {
            Errno::CANCELED if self.is_late => Errno::TIMEDOUT.into(),
            Errno::NODATA => io::ErrorKind::UnexpectedEof.into(),
            errno => errno.into(),
        }
    }
}
