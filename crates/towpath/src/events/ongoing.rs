//! What is known of an operation that the back end carries out, and what is to be told of it.

use super::News;
use super::timers::Setting;
use crate::host::lending::any::Held;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use towpath_io::events::{Outcome, Parts};

/// What is known of an operation that the back end carries out.
#[derive(Default)]
pub(super) struct Ongoing {
    /// Connections that were accepted.
    pub(super) accepted: VecDeque<OwnedFd>,
    /// They were told of, and none was taken since.
    pub(super) is_offered: bool,
    /// Bytes that were sent of a buffer that is not back.
    lent: Option<u64>,
    pub(super) outcome: Option<Outcome>,
    /// A buffer of which the kernel has the bytes; whether they are a copy.
    pub(super) held: Option<(Held, bool)>,
    /// Bytes that were sent were told of.
    is_sent: bool,
    /// The end was told of.
    pub(super) is_told: bool,
    pub(super) deadline: Option<Setting>,
    /// Its deadline has passed.
    pub(super) is_late: bool,
}

impl Ongoing {
    /// What is to be told.
    pub(super) fn look(&mut self) -> Option<News> {
        if !self.accepted.is_empty() {
            return (!std::mem::replace(&mut self.is_offered, true)).then_some(News::Connection);
        }
        if let Some(bytes) = self.lent.take() {
            self.is_sent = true;
            return Some(News::Accepted { bytes: bytes as usize });
        }
        let outcome = self.outcome.as_ref()?;
        let Outcome { bytes, failure, parts } = outcome;
        if let (Parts::Sent(..) | Parts::Called { sent: true }, false) = (parts, self.is_sent) {
            self.is_sent = true;
            if *bytes > 0 || failure.is_none() {
                return Some(News::Accepted { bytes: *bytes as usize });
            }
        }
        (!std::mem::replace(&mut self.is_told, true)).then_some(News::Completed)
    }

    pub(super) fn accepted(&mut self, connection: OwnedFd) {
        self.accepted.push_back(connection);
    }

    pub(super) fn sent(&mut self, bytes: u64) {
        self.lent = Some(bytes);
    }

    pub(super) fn over(&mut self, outcome: Outcome) {
        self.outcome = Some(outcome);
    }

    pub(super) fn is_over(&self) -> bool {
        self.outcome.is_some()
    }

    /// Why it ended early.
    pub(super) fn error(&self, errno: Errno) -> io::Error {
        match errno {
            Errno::CANCELED if self.is_late => Errno::TIMEDOUT.into(),
            Errno::NODATA => io::ErrorKind::UnexpectedEof.into(),
            errno => errno.into(),
        }
    }
}
