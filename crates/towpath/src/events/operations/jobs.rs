//! Operations that the back end carries out: on files and on the kernel's sockets.

use crate::events::queue::{KERNEL, kernel_slot};
use crate::events::registrations::ongoing::Ongoing;
use crate::events::registrations::socket::Stream;
use crate::events::registrations::source::{Kind, Source};
use crate::events::{EventQueue, Token};
use std::io;
use std::time::Instant;
use towpath_io::events::{Job, Outcome, Parts};

/// Result of a job, in the terms of the queue's API.
pub(in crate::events) struct Ended {
    pub(in crate::events) bytes: u64,
    pub(in crate::events) result: io::Result<()>,
    pub(in crate::events) parts: Parts,
}

impl EventQueue {
    /// Starts a job, which is cancelled at `due`.
    pub(in crate::events) fn begin_job(
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
        // The job has started. If updating the queue's descriptor fails now, the next call repeats
        // it.
        let _ = self.settle();
        Ok(token)
    }

    /// Takes the result of a job whose end was reported. Ends its registration.
    pub(in crate::events) fn take_ended(&mut self, token: Token) -> Option<Ended> {
        let ongoing = self.ongoing(token).filter(|ongoing| ongoing.is_reported)?;
        let outcome = ongoing.outcome.take()?;
        let Outcome { bytes, failure, parts } = outcome;
        let result = failure.map_or(Ok(()), |errno| Err(ongoing.error(errno)));
        self.slots.remove(token);
        Some(Ended { bytes, result, parts })
    }

    /// Takes the next connection that the kernel accepted.
    pub(in crate::events) fn take_accepted(&mut self, token: Token) -> Option<Stream> {
        let ongoing = self.ongoing(token)?;
        let connection = ongoing.accepted.pop_front()?;
        ongoing.is_offered = false;
        self.back.give_room(kernel_slot(token), 1);
        self.push(token, KERNEL);
        // The connection is valid. If updating the queue's descriptor fails now, the next call
        // repeats it.
        let _ = self.settle();
        Some(connection.into())
    }

    pub(in crate::events) fn ongoing(&mut self, token: Token) -> Option<&mut Ongoing> {
        match &mut self.slots.get(token)?.source {
            Kind::Operation(ongoing) => Some(ongoing),
            _ => None,
        }
    }
}
