//! Operations that the back end carries out: on files and on the kernel's sockets.

use super::ongoing::Ongoing;
use super::queue::{KERNEL, kernel_slot};
use super::socket::Stream;
use super::source::{Kind, Source};
use super::{EventQueue, Token};
use crate::host::lending::any::Held;
use std::io;
use std::time::Instant;
use towpath_io::events::{Job, Outcome, Parts};

/// What became of a job, in the words of the queue's user.
pub(super) struct Ended {
    pub(super) bytes: u64,
    pub(super) result: io::Result<()>,
    pub(super) parts: Parts,
    /// A buffer of which the kernel had the bytes; whether they were a copy.
    pub(super) held: Option<(Held, bool)>,
}

impl EventQueue {
    /// Begins a job, which is cancelled when `due` has passed.
    pub(super) fn begin_job(
        &mut self,
        job: Job,
        due: Option<Instant>,
        data: u64,
    ) -> Result<Token, (io::Error, Job)> {
        if let Err(error) = self.check_process() {
            return Err((error, job));
        }
        let kind = Kind::Operation(Ongoing::default());
        let token = match self.begin_add(Source::of(kind), data) {
            Ok(token) => token,
            Err(error) => return Err((error, job)),
        };
        if let Err((errno, job)) = self.back.submit(kernel_slot(token), job) {
            self.slots.remove(token);
            return Err((errno.into(), job));
        }
        if let Some(due) = due {
            let setting = self.timers.set(due, token);
            let ongoing = self.ongoing(token).expect("it was just added");
            ongoing.deadline = Some(setting);
        }
        // It is under way: what cannot be shown now is shown by the next call.
        let _ = self.settle();
        Ok(token)
    }

    /// What became of a job that was told to be over. Its registration ends.
    pub(super) fn take_ended(&mut self, token: Token) -> Option<Ended> {
        let ongoing = self.ongoing(token).filter(|ongoing| ongoing.is_told)?;
        let outcome = ongoing.outcome.take()?;
        let Outcome { bytes, failure, parts } = outcome;
        let result = failure.map_or(Ok(()), |errno| Err(ongoing.error(errno)));
        let held = ongoing.held.take();
        self.slots.remove(token);
        Some(Ended { bytes, result, parts, held })
    }

    /// The next connection of the kernel that was accepted.
    pub(super) fn take_accepted(&mut self, token: Token) -> Option<Stream> {
        let ongoing = self.ongoing(token)?;
        let connection = ongoing.accepted.pop_front()?;
        ongoing.is_offered = false;
        self.back.give_room(kernel_slot(token), 1);
        self.push(token, KERNEL);
        // The connection is there, whatever cannot be shown now.
        let _ = self.settle();
        Some(connection.into())
    }

    pub(super) fn ongoing(&mut self, token: Token) -> Option<&mut Ongoing> {
        match &mut self.slots.get(token)?.source {
            Kind::Operation(ongoing) => Some(ongoing),
            _ => None,
        }
    }
}
