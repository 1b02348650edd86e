//! Operations that the back end carries out: on files and on the kernel's sockets.

use super::ongoing::Ongoing;
use super::queue::{KERNEL, kernel_slot};
use super::socket::Stream;
use super::source::{Kind, Source};
use super::{EventQueue, Token};
use rustix::io::Errno;
use std::io;
use std::time::Instant;
use towpath_io::events::{Job, Outcome, Parts};

/// What became of a job, in the words of the queue's user.
pub(super) struct Ended {
    pub(super) bytes: u64,
    pub(super) result: io::Result<()>,
    pub(super) parts: Parts,
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

    /// What became of a job that was told to be over, if it has such parts. Its registration ends.
    pub(super) fn take_ended(
        &mut self,
        token: Token,
        is_such: impl Fn(&Parts) -> bool,
    ) -> Option<Ended> {
        let ongoing = self.ongoing(token).filter(|ongoing| ongoing.is_told)?;
        let outcome = ongoing.outcome.take_if(|outcome| is_such(&outcome.parts))?;
        let Outcome { bytes, failure, parts } = outcome;
        let result = failure.map_or(Ok(()), |errno| Err(ongoing.error(errno)));
        self.slots.remove(token);
        Some(Ended { bytes, result, parts })
    }

    /// A connection of the kernel that was accepted or made.
    pub(super) fn take_kernel_stream(&mut self, token: Token) -> Option<io::Result<Stream>> {
        let ongoing = self.ongoing(token)?;
        if let Some(connection) = ongoing.accepted.pop_front() {
            ongoing.is_offered = false;
            self.back.give_room(kernel_slot(token), 1);
            self.push(token, KERNEL);
            // The connection is there, whatever cannot be shown now.
            let _ = self.settle();
            return Some(Ok(connection.into()));
        }
        let ended = self.take_ended(token, |parts| matches!(parts, Parts::None | Parts::Socket(_)));
        let Ended { result, parts, .. } = ended?;
        Some(match (result, parts) {
            (Ok(()), Parts::Socket(socket)) => Ok(socket.into()),
            (Err(error), _) => Err(error),
            (Ok(()), _) => Err(Errno::INVAL.into()),
        })
    }

    pub(super) fn ongoing(&mut self, token: Token) -> Option<&mut Ongoing> {
        match &mut self.slots.get(token)?.source {
            Kind::Operation(ongoing) => Some(ongoing),
            _ => None,
        }
    }
}
