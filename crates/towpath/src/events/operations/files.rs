//! Operations on files: each is submitted, may be cancelled, and is told once.

use crate::events::queue::{RAISED, kernel_slot};
use crate::events::registrations::source::Kind;
use crate::events::{EventQueue, Operation, Token};
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::time::Instant;
use towpath_io::events::{Calls, Job};

/// An operation that was not begun.
pub struct Refused<T = Operation> {
    /// Why.
    pub error: io::Error,
    /// The operation.
    pub operation: T,
}

impl EventQueue {
    /// Begins an operation. A wait tells [`News::Completed`](crate::events::News::Completed) when
    /// it is over; [`EventQueue::take`] then has the buffer. When `deadline` has passed it is
    /// cancelled.
    ///
    /// # Errors
    /// `ENOSPC` if the queue is full, and what keeps the back end from beginning it. The operation
    /// is handed back.
    pub fn submit(
        &mut self,
        operation: Operation,
        deadline: Option<Instant>,
        data: u64,
    ) -> Result<Token, Refused> {
        self.begin_job(Job::File(operation), deadline, data).map_err(|(error, job)| {
            let Job::File(operation) = job else { unreachable!("it is what was begun") };
            Refused { error, operation }
        })
    }

    /// Makes calls of the program's own on a socket of the kernel, when it is ready, until they are
    /// over: so datagrams are sent and received, with addresses and control messages, and streams
    /// received into memory that is no `Vec`. The calls are made by the thread that begins them and
    /// those that wait, and must not block. A wait tells
    /// [`News::Completed`](crate::events::News::Completed), of those that send so many bytes
    /// [`News::Accepted`](crate::events::News::Accepted) before, and [`EventQueue::take`] has what
    /// became of them. What they have is dropped by then.
    ///
    /// # Errors
    /// `ENOSPC` if the queue is full: nothing was called.
    pub fn call(
        &mut self,
        calls: Calls,
        deadline: Option<Instant>,
        data: u64,
    ) -> io::Result<Token> {
        self.begin_job(Job::Call(calls), deadline, data).map_err(|(error, _)| error)
    }

    /// Asks for the end of an operation, which is told as ever, and may have come too late.
    ///
    /// # Errors
    /// `ESTALE` if the token's registration is over, `EINVAL` if it is of no operation.
    pub fn cancel(&mut self, token: Token) -> io::Result<()> {
        self.check_process()?;
        match &mut self.slots.get(token).ok_or(Errno::STALE)?.source {
            Kind::Operation(ongoing) if !ongoing.is_over() => self.back.cancel(kernel_slot(token)),
            Kind::Stream { work, is_told: false, .. } => {
                work.stop(Errno::CANCELED);
                self.loads.withdraw(token, &mut self.back);
                self.note_accessed();
                self.push(token, RAISED);
            }
            Kind::Task { task, .. } => {
                task.stop(Errno::CANCELED);
                self.loads.withdraw(token, &mut self.back);
                self.note_accessed();
                self.push(token, RAISED);
            }
            Kind::Relay { relay, is_told: false, .. } => {
                relay.stop(Errno::CANCELED);
                self.push(token, RAISED);
            }
            Kind::Multishot { multishot, is_told: false, .. } => {
                multishot.stop(Errno::CANCELED);
                self.push(token, RAISED);
            }
            Kind::Operation(_)
            | Kind::Stream { .. }
            | Kind::Relay { .. }
            | Kind::Multishot { .. } => {}
            _ => return Err(Errno::INVAL.into()),
        }
        self.settle()
    }
}

impl<T> fmt::Debug for Refused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<T> fmt::Display for Refused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> std::error::Error for Refused<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
