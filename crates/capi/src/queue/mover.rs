//! The task that moves bytes from a source to a sink. What is between them, a [`Route`], differs:
//! buffers or lent pieces, a stream or a file.
//!
//! No byte is lost: bytes that were taken from the source have arrived, are handed back at the end,
//! or stay with the source. An error of the source ends the reading; bytes read before are passed
//! on. An error of the sink, a cancel and a deadline end both, when the current access is complete.

use super::reports::Report;
use crate::errno::{Errno, Outcome};
use crate::memory::pointers::Posted;
use rustix::fd::AsFd;
use rustix::io::Errno as Kernel;
use std::task::Waker;
use towpath::events::Operation;
use towpath::events::custom::{Accessed, Step, Task};

/// Bytes that are passed on before other tasks get a turn.
const TURN_BYTES: u64 = 1 << 20;

/// A source, a sink, and the bytes that were taken from the one and not passed on to the other.
pub(super) trait Route: Send {
    /// Takes at most `most` bytes from the source; 0 if it has ended. [`Errno::AGAIN`] if there are
    /// none yet, or no room for them.
    fn take(&mut self, most: u64, waker: &Waker) -> Outcome<usize>;

    /// Passes on bytes; returns how many have arrived. [`Errno::AGAIN`] if none can be passed on
    /// now.
    fn pass(&mut self, waker: &Waker) -> Outcome<usize>;

    /// Returns the bytes that were taken and not passed on.
    fn held(&self) -> Vec<u8>;

    /// Returns true if there are none.
    fn is_empty(&self) -> bool;

    /// Returns a socket of the kernel at one of the ends.
    fn fd(&self) -> Option<&dyn AsFd>;

    /// Returns true if a file access is asked for or under way.
    fn is_accessing(&self) -> bool {
        false
    }

    /// As [`Task::take_access`].
    fn take_access(&mut self) -> Option<(u64, Operation)> {
        None
    }

    /// Passes in the result of the access. Returns the bytes that have arrived, and why they are
    /// fewer than asked for.
    fn accessed(&mut self, _: Accessed) -> (u64, Option<Errno>) {
        (0, None)
    }
}

/// A transfer in progress.
pub(super) struct Mover {
    route: Box<dyn Route>,
    /// Bytes that are still to be taken from the source.
    left: u64,
    /// There may be more bytes to take.
    takes: bool,
    /// More bytes can be passed on.
    passes: bool,
    arrived: u64,
    failed: Option<Errno>,
    /// Memory for bytes that were taken and not delivered.
    rest: Posted,
    report: Report,
}

impl Mover {
    pub(super) fn new(route: Box<dyn Route>, count: u64, rest: Posted, report: Report) -> Self {
        let (takes, passes) = (count > 0, true);
        Self { route, left: count, takes, passes, arrived: 0, failed: None, rest, report }
    }

    /// Takes bytes. True if there were any.
    fn take(&mut self, waker: &Waker) -> bool {
        if !self.takes || !self.passes {
            return false;
        }
        let taken = self.route.take(self.left, waker);
        match taken {
            Err(Errno::AGAIN) => {}
            Err(error) => self.end_source(Some(error)),
            // The source has ended, which is not an error.
            Ok(0) => self.end_source(None),
            Ok(count) => {
                self.left -= count as u64;
                self.takes = self.left > 0;
            }
        }
        taken.is_ok_and(|count| count > 0)
    }

    /// Passes on bytes. True if that changed anything.
    fn pass(&mut self, waker: &Waker) -> bool {
        if !self.passes {
            return false;
        }
        match self.route.pass(waker) {
            Ok(count) => self.arrived += count as u64,
            Err(Errno::AGAIN) => return false,
            Err(error) => self.end_both(error),
        }
        true
    }

    /// Ends the source, with an error or without.
    fn end_source(&mut self, why: Option<Errno>) {
        self.takes = false;
        self.failed = self.failed.or(why);
    }

    /// Ends source and sink for this reason.
    fn end_both(&mut self, why: Errno) {
        self.end_source(Some(why));
        self.passes = false;
    }

    /// The last step, if the transfer is over.
    fn end(&mut self) -> Option<Step> {
        let is_empty = self.route.is_empty();
        let is_over = !self.passes || !self.takes && is_empty;
        if self.route.is_accessing() || !is_over {
            return None;
        }
        // An error that came after all bytes had arrived did not end the transfer.
        let error = self.failed.filter(|_| self.left > 0 || !is_empty);
        let held = self.route.held();
        held.iter().zip(self.rest.rest(0)).for_each(|(&from, to)| *to = from);
        self.report.end(self.arrived, error, held.len() as u32);
        Some(Step::Complete(self.arrived as i64))
    }
}

impl Task for Mover {
    fn poll(&mut self, waker: &Waker) -> Option<Step> {
        let turn_end = self.arrived + TURN_BYTES;
        loop {
            // In this order: passing on makes room for taking.
            let passed = self.pass(waker);
            let took = self.take(waker);
            if let Some(step) = self.end() {
                return Some(step);
            }
            if !took && !passed {
                return None;
            }
            if self.arrived >= turn_end {
                waker.wake_by_ref();
                return None;
            }
        }
    }

    fn stop(&mut self, why: Kernel) {
        self.end_both(why.into());
    }

    fn fd(&self) -> Option<&dyn AsFd> {
        self.route.fd()
    }

    fn take_access(&mut self) -> Option<(u64, Operation)> {
        self.route.take_access()
    }

    fn accessed(&mut self, accessed: Accessed) {
        let (bytes, failure) = self.route.accessed(accessed);
        self.arrived += bytes;
        failure.into_iter().for_each(|error| self.end_both(error));
    }
}
