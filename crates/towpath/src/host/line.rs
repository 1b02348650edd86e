//! Buffers that wait for bytes of a socket, in the order in which they are filled.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use towpath_net::socket::Error;

/// Where a buffer is found when it is filled.
pub(super) struct Slot(pub(super) Mutex<Filled>);

pub(super) struct Filled {
    pub(super) waker: Waker,
    pub(super) done: Option<(Result<usize, Error>, Vec<u8>)>,
}

/// Buffers that wait for bytes of one socket, the first to be filled in front.
#[derive(Default)]
pub(super) struct Line {
    pub(super) buffers: VecDeque<(Waiting, Arc<Slot>)>,
    /// The slot of the one that was posted last.
    pub(super) last: Weak<Slot>,
    /// What ended one that had bytes, for the next.
    pub(super) failure: Option<Error>,
}

/// A buffer that waits for bytes.
pub(super) struct Waiting {
    pub(super) buffer: Vec<u8>,
    pub(super) filled: usize,
    /// Until it is full.
    pub(super) all: bool,
}

impl Waiting {
    /// Receives what is there, with `receive`; what came of it if nothing more is to be waited for.
    pub(super) fn fill(
        &mut self,
        failure: &mut Option<Error>,
        mut receive: impl FnMut(&mut [u8]) -> Result<usize, Error>,
    ) -> Option<Result<usize, Error>> {
        if let Some(error) = failure.take() {
            return Some(Err(error));
        }
        // Each turn but the last receives some bytes.
        loop {
            match receive(&mut self.buffer[self.filled..]) {
                Ok(0) => return Some(Ok(self.filled)),
                Ok(count) => self.filled += count,
                Err(Error::WouldBlock) => return None,
                Err(error) if self.filled > 0 => {
                    *failure = Some(error);
                    return Some(Ok(self.filled));
                }
                Err(error) => return Some(Err(error)),
            }
            if !self.all || self.filled == self.buffer.len() {
                return Some(Ok(self.filled));
            }
        }
    }
}

impl Slot {
    pub(super) fn lock(&self) -> MutexGuard<'_, Filled> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    /// True if buffers wait for bytes.
    pub(super) fn waits(&self) -> bool {
        !self.buffers.is_empty()
    }

    /// True if all buffers were taken.
    pub(super) fn is_empty(&self) -> bool {
        self.last.strong_count() == 0
    }
}
