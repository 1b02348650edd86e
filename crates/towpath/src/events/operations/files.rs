//! Operations on files. Each is submitted, can be cancelled, and completes once.

use crate::events::queue::{RAISED, kernel_slot};
use crate::events::registrations::source::Kind;
use crate::events::{Action, EventQueue, NotBegun, Operation, Token};
use crate::host::{AnyBuffer, Fill, Lend};
use rustix::io::Errno;
use std::fmt;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Instant;
use towpath_io::events::{Calls, Job};

/// An operation that could not be started.
#[non_exhaustive]
pub struct Refused<T = Operation> {
    /// Why it could not be started.
    pub error: io::Error,
    /// The operation, handed back.
    pub operation: T,
}

impl EventQueue {
    /// Starts an operation, which is cancelled when `deadline` has passed. A wait reports
    /// [`EventKind::Completed`](crate::events::EventKind::Completed) at the end;
    /// [`EventQueue::take`] then returns the buffer, as [`Completion::Bytes`] or
    /// [`Completion::Buffer`]. To write memory that cannot be filled, such as an `Arc<[u8]>`, use
    /// [`EventQueue::write_at`].
    ///
    /// If the program opened the file with `O_DIRECT`, the disk itself reads and writes the buffer.
    /// Address, length and offset must then have the alignment that the disk demands, usually 512
    /// or 4096 bytes; a [`Part`](crate::host::Part) is an aligned range of a larger buffer.
    ///
    /// [`Completion::Bytes`]: crate::events::Completion::Bytes
    /// [`Completion::Buffer`]: crate::events::Completion::Buffer
    ///
    /// # Errors
    /// `ENOSPC` if the queue is full, or the back end's error if it cannot start the operation. The
    /// operation is handed back.
    pub fn submit<B: Fill>(
        &mut self,
        operation: Operation<B>,
        deadline: Option<Instant>,
        data: u64,
    ) -> Result<Token, Refused<Operation<B>>> {
        let job = Job::File(operation.map(|buffer| AnyBuffer::to_fill(buffer).into_job().0));
        self.begin_job(job, deadline, data).map_err(|(error, job)| {
            let Job::File(operation) = job else { unreachable!("it is what was begun") };
            let buffer = |buffer| AnyBuffer::of_job(buffer).0.downcast();
            let operation = operation.map(|bytes| buffer(bytes).expect("it is what was given"));
            Refused { error, operation }
        })
    }

    /// Writes all of `buffer` to a file, from `offset` on, like [`EventQueue::submit`] with
    /// [`Action::Write`], but from any memory that can be lent. Memory that is not contiguous is
    /// copied.
    ///
    /// # Errors
    /// `ENOSPC` if the queue is full; `EINVAL` if the offset is too large for any file; `ESPIPE`
    /// for a file without offsets. The buffer is handed back.
    pub fn write_at<B: Lend>(
        &mut self,
        file: Arc<File>,
        offset: u64,
        buffer: B,
        deadline: Option<Instant>,
        data: u64,
    ) -> Result<Token, NotBegun<B>> {
        let (action, buffer) = (Action::Write(offset), AnyBuffer::new(buffer).into_job().0);
        let job = Job::File(Operation { action, file, buffer });
        self.begin_buffer_job(job, (deadline, data)).map_err(NotBegun::downcast)
    }

    /// Makes calls of the program's own on a kernel socket whenever it is ready, until the calls
    /// are done. Use it for datagrams with addresses and control messages, and for memory that the
    /// program does not own. The thread that starts the operation and the threads that wait make
    /// the calls, which must not block. A wait reports
    /// [`EventKind::Completed`](crate::events::EventKind::Completed) at the end; for calls that
    /// send, it reports the sent bytes as
    /// [`EventKind::Accepted`](crate::events::EventKind::Accepted) before. [`EventQueue::take`]
    /// returns the result. The values that the calls own are dropped by then.
    ///
    /// # Errors
    /// `ENOSPC` if the queue is full; no call was made.
    pub fn call(
        &mut self,
        calls: Calls,
        deadline: Option<Instant>,
        data: u64,
    ) -> io::Result<Token> {
        self.begin_job(Job::Call(calls), deadline, data).map_err(|(error, _)| error)
    }

    /// Cancels an operation. Its end is reported as usual; it may have completed before the cancel.
    ///
    /// # Errors
    /// `ESTALE` if the token's registration has ended; `EINVAL` if it is no operation.
    pub fn cancel(&mut self, token: Token) -> io::Result<()> {
        self.check_process()?;
        match &mut self.slots.get(token).ok_or(Errno::STALE)?.source {
            Kind::Operation(ongoing) if !ongoing.is_over() => self.back.cancel(kernel_slot(token)),
            Kind::Stream { work, is_reported: false, .. } => {
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
            Kind::Relay { relay, is_reported: false, .. } => {
                relay.stop(Errno::CANCELED);
                self.push(token, RAISED);
            }
            Kind::Multishot { multishot, is_reported: false, .. } => {
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
