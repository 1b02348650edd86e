//! Operations on files: each is submitted, may be cancelled, and is told once.

use super::jobs::Ended;
use super::queue::{RAISED, kernel_slot};
use super::source::Kind;
use super::{EventQueue, Operation, Token};
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::time::Instant;
use towpath_io::events::{Calls, Job, Parts};

/// An operation with a buffer that is over.
#[derive(Debug)]
#[non_exhaustive]
pub struct Completed {
    /// Bytes read or written: all, or fewer where the file ended or an error came after some; bytes
    /// received, or accepted to be sent.
    ///
    /// # Errors
    /// Those of reading and writing; `ECANCELED` if it was cancelled before it did anything,
    /// `ETIMEDOUT` if its deadline did that.
    pub result: io::Result<usize>,
    /// The buffer, of the same length as before.
    pub buffer: Vec<u8>,
    /// Bytes of a buffer that was sent were copied, at the call or after all; all of them or some.
    pub copied: bool,
}

/// An operation that was not begun.
pub struct Refused<T = Operation> {
    /// Why.
    pub error: io::Error,
    /// The operation.
    pub operation: T,
}

impl EventQueue {
    /// Begins an operation. A wait tells [`News::Completed`](super::News::Completed) when it is
    /// over; [`EventQueue::take`] then has the buffer. When `deadline` has passed it is cancelled.
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
    /// [`News::Completed`](super::News::Completed), of those that send so many bytes
    /// [`News::Sent`](super::News::Sent) before, and [`EventQueue::take_called`] has what became of
    /// them. What they have is dropped by then.
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

    /// What became of calls, which ends the registration: bytes that they have moved, and why not
    /// all. `None` before a wait has told that it is over, or of another operation.
    pub fn take_called(&mut self, token: Token) -> Option<(u64, io::Result<()>)> {
        let ended = self.take_ended(token, |parts| matches!(parts, Parts::Called { .. }))?;
        Some((ended.bytes, ended.result))
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

    /// What became of an operation, which ends its registration. `None` before a wait has told that
    /// it is over, and after it was taken.
    pub fn take(&mut self, token: Token) -> Option<Completed> {
        let registration = self.slots.get(token)?;
        if let Kind::Stream { work, is_told: true, .. } = &mut registration.source {
            let (result, buffer, copied) = work.take_bytes()?;
            self.end(token);
            return Some(Completed { result, buffer, copied });
        }
        let is_such = |parts: &Parts| matches!(parts, Parts::Buffer(_) | Parts::Sent(..));
        let Ended { bytes, result, parts } = self.take_ended(token, is_such)?;
        let (buffer, copied) = match parts {
            Parts::Buffer(buffer) => (buffer, false),
            Parts::Sent(buffer, copied) => (buffer, copied),
            _ => return None,
        };
        let result = if bytes > 0 { Ok(bytes as usize) } else { result.map(|()| 0) };
        Some(Completed { result, buffer, copied })
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
