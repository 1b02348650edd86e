//! Buffers that wait for bytes of a socket, in the order in which they are filled.

use crate::host::lending::any::AnyBuffer;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use towpath_net::socket::Error;

/// Where a buffer is put when it is filled.
pub(in crate::host) struct Slot(pub(in crate::host) Mutex<Filled>);

pub(in crate::host) struct Filled {
    pub(in crate::host) waker: Waker,
    pub(in crate::host) done: Option<(Result<usize, Error>, AnyBuffer)>,
}

/// Buffers that wait for bytes of one socket; the first to be filled is in front.
#[derive(Default)]
pub(in crate::host) struct PostedBuffers {
    pub(in crate::host) buffers: VecDeque<(Waiting, Arc<Slot>)>,
    /// The slot of the most recently posted buffer.
    pub(in crate::host) last: Weak<Slot>,
    /// An error that ended a partly filled buffer, for the next one.
    pub(in crate::host) failure: Option<Error>,
}

/// A buffer that waits for bytes.
pub(in crate::host) struct Waiting {
    pub(in crate::host) buffer: AnyBuffer,
    pub(in crate::host) filled: usize,
    /// It waits until it is full.
    pub(in crate::host) all: bool,
}

impl Waiting {
    /// Receives available bytes with `receive`. Returns the result once the buffer no longer waits.
    pub(in crate::host) fn fill(
        &mut self,
        failure: &mut Option<Error>,
        mut receive: impl FnMut(&mut [u8]) -> Result<usize, Error>,
    ) -> Option<Result<usize, Error>> {
        if let Some(error) = failure.take() {
            return Some(Err(error));
        }
        // Each turn but the last receives some bytes.
        loop {
            match receive(&mut self.buffer.bytes_mut()[self.filled..]) {
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
    pub(in crate::host) fn lock(&self) -> MutexGuard<'_, Filled> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PostedBuffers {
    /// Returns true if buffers wait for bytes.
    pub(in crate::host) fn waits(&self) -> bool {
        !self.buffers.is_empty()
    }

    /// Returns true if all buffers were taken.
    pub(in crate::host) fn is_empty(&self) -> bool {
        self.last.strong_count() == 0
    }
}
