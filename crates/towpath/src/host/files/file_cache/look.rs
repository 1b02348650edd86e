//! What a file is like when a send begins.
//!
//! Of a file that is kept here the kernel knows that, and it is asked at once. Whoever keeps
//! another, a server or a network, may take his time to answer: that is a [load](super::Load), for
//! which the send waits as it does for blocks.

use super::{Awaited, Failure, FileCache, View};
use rustix::fs::{FileType, Statx};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::sync::{Arc, PoisonError};
use std::task::Waker;
use towpath_io::events::{Job, Look as Question, device, kind, status};

/// A file that is looked at.
pub(in crate::host) enum Seen {
    Now(View),
    /// It is told when this load was carried out.
    Later(Look, super::Load),
}

/// What is told of a file when a load was carried out.
pub(in crate::host) struct Look {
    file: Arc<File>,
    answer: Arc<Awaited<Box<Statx>>>,
}

/// The right and the duty to ask.
pub(super) struct Asking {
    file: Arc<File>,
    /// What the kernel knew, until it is asked.
    status: Option<Box<Statx>>,
    pub(super) device: u64,
    answer: Arc<Awaited<Box<Statx>>>,
}

impl FileCache {
    /// Looks at a file.
    ///
    /// # Errors
    /// `INVAL` if it is no regular file; those of statx(2).
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
    /// What was found. `None` if that is not told yet: then `waker` is woken when it is.
    ///
    /// # Errors
    /// Why it is not known.
    pub(in crate::host) fn poll(&self, waker: &Waker) -> Option<Result<View, Failure>> {
        Some(self.answer.poll(waker)?.map(|status| View::new(&self.file, status)))
    }
}

impl Asking {
    /// What is to be done; once.
    pub(super) fn job(&mut self) -> Option<Job> {
        let (file, status) = (self.file.clone(), self.status.take()?);
        Some(Job::Look(Question { file, status }))
    }

    /// True if somebody waits for it.
    pub(super) fn is_wanted(&self) -> bool {
        Arc::strong_count(&self.answer) > 1
    }

    pub(super) fn end(&self, result: Result<Box<Statx>, Failure>) {
        self.answer.set(result);
    }
}
