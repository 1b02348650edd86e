//! The status of a file when a send begins.
//!
//! For a local file the kernel knows it at once. For a file on a server or another network file
//! system, the answer may take long: then a [load](super::Load) reads the status, and the send
//! waits for it as for a block.

use super::{Awaited, Failure, FileCache, View};
use rustix::fs::{FileType, Statx};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::sync::{Arc, PoisonError};
use std::task::Waker;
use towpath_io::events::{Job, Look as Question, device, kind, status};

/// The status of a file, or the way to it.
pub(in crate::host) enum Seen {
    Now(View),
    /// Known once this load was carried out.
    Later(Look, super::Load),
}

/// The status of a file that a load reads.
pub(in crate::host) struct Look {
    file: Arc<File>,
    answer: Arc<Awaited<Box<Statx>>>,
}

/// The right and the duty to read a status.
pub(super) struct Asking {
    file: Arc<File>,
    /// The status as the kernel knew it; `None` once the read has started.
    status: Option<Box<Statx>>,
    pub(super) device: u64,
    answer: Arc<Awaited<Box<Statx>>>,
}

impl FileCache {
    /// Reads the status of a file, or prepares a load that does.
    ///
    /// # Errors
    /// `INVAL` if it is no regular file; errors of statx(2).
    pub(in crate::host) fn look(&self, file: &Arc<File>) -> io::Result<Seen> {
        let known = status(file)?;
        if kind(&known) != FileType::RegularFile {
            return Err(Errno::INVAL.into());
        }
        let mut mounts = self.mounts.lock().unwrap_or_else(PoisonError::into_inner);
        if !mounts.may_wait(file, &known) {
            return Ok(Seen::Now(View::new(file, &known)));
        }
        let answer = Arc::new(Awaited::default());
        let asking = Asking {
            file: file.clone(),
            device: device(&known),
            status: Some(Box::new(known)),
            answer: answer.clone(),
        };
        Ok(Seen::Later(Look { file: file.clone(), answer }, asking.into()))
    }
}

impl Look {
    /// Returns the file with its status. Returns `None` if it is not known yet: then `waker` is
    /// woken when it is.
    ///
    /// # Errors
    /// Why the status cannot be read.
    pub(in crate::host) fn poll(&self, waker: &Waker) -> Option<Result<View, Failure>> {
        Some(self.answer.poll(waker)?.map(|status| View::new(&self.file, status)))
    }
}

impl Asking {
    /// Takes the job to carry out; only the first call returns it.
    pub(super) fn job(&mut self) -> Option<Job> {
        let (file, status) = (self.file.clone(), self.status.take()?);
        Some(Job::Look(Question { file, status }))
    }

    /// Returns true if there is a waiter.
    pub(super) fn is_wanted(&self) -> bool {
        Arc::strong_count(&self.answer) > 1
    }

    pub(super) fn end(&self, result: Result<Box<Statx>, Failure>) {
        self.answer.set(result);
    }
}
