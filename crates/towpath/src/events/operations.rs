//! Operations on files: each is submitted, may be cancelled, and is told once.

use super::queue::{RAISED, kernel_slot};
use super::source::{Kind, Source};
use super::{EventQueue, Operation, Token};
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::time::Instant;

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
        if let Err(error) = self.check_process() {
            return Err(Refused { error, operation });
        }
        let kind = Kind::Operation { outcome: None, deadline: None, is_late: false };
        let token = match self.begin_add(Source::of(kind), data) {
            Ok(token) => token,
            Err(error) => return Err(Refused { error, operation }),
        };
        if let Err((errno, operation)) = self.back.submit(kernel_slot(token), operation) {
            self.slots.remove(token);
            return Err(Refused { error: errno.into(), operation });
        }
        if let (Some(due), Some(registration)) = (deadline, self.slots.get(token))
            && let Kind::Operation { deadline, .. } = &mut registration.source
        {
            *deadline = Some(self.timers.set(due, token));
        }
        // It is under way: what cannot be shown now is shown by the next call.
        let _ = self.settle();
        Ok(token)
    }

    /// Asks for the end of an operation, which is told as ever, and may have come too late.
    ///
    /// # Errors
    /// `ESTALE` if the token's registration is over, `EINVAL` if it is of no operation.
    pub fn cancel(&mut self, token: Token) -> io::Result<()> {
        self.check_process()?;
        match &mut self.slots.get(token).ok_or(Errno::STALE)?.source {
            Kind::Operation { outcome: None, .. } => self.back.cancel(kernel_slot(token)),
            Kind::Stream { work, is_told: false, .. } => {
                work.stop(Errno::CANCELED);
                self.push(token, RAISED);
            }
            Kind::Task { task, .. } => {
                task.stop(Errno::CANCELED);
                self.push(token, RAISED);
            }
            Kind::Operation { .. } | Kind::Stream { .. } => {}
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
        let Kind::Operation { outcome, is_late, .. } = &mut registration.source else {
            return None;
        };
        let (outcome, is_late) = (outcome.take()?, *is_late);
        self.slots.remove(token);
        let result = match outcome.result {
            Err(Errno::CANCELED) if is_late => Err(Errno::TIMEDOUT.into()),
            result => result.map_err(io::Error::from),
        };
        Some(Completed { result, buffer: outcome.buffer, copied: false })
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
