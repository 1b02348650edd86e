//! Memory of any type and calls, which the program provides for a job.

use super::Socket;
use crate::reactor::Interest;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::any::Any;
use std::fmt;

/// A buffer of a job, which hands it back.
#[derive(Debug)]
pub enum Buffer {
    /// A vector, all of whose bytes are used.
    Vec(Vec<u8>),
    /// A buffer of another type.
    Other(Box<dyn OtherBuffer>),
}

/// A buffer that is not a `Vec`.
///
/// The kernel reads and writes the bytes between two calls, so nothing may move or reach them
/// meanwhile. Implementations need not promise that, because it follows from what the back end
/// does: it leaves the buffer in its box, and neither calls it nor drops it before the kernel is
/// done. It could therefore keep the reference that the last call returned for all that time. The
/// reference would keep the bytes valid and, if it is exclusive, unreachable for all other code.
pub trait OtherBuffer: Any + Send {
    /// Returns the bytes to send or to write. Their number never changes.
    fn bytes(&self) -> &[u8];

    /// Returns the bytes to fill: as many as [`bytes`](Self::bytes) returns, or none for a buffer
    /// that cannot be filled.
    fn bytes_mut(&mut self) -> &mut [u8];
}

impl Buffer {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Vec(bytes) => bytes,
            Self::Other(other) => other.bytes(),
        }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Vec(bytes) => bytes,
            Self::Other(other) => other.bytes_mut(),
        }
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Vec(bytes)
    }
}

impl fmt::Debug for dyn OtherBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OtherBuffer").field("len", &self.bytes().len()).finish_non_exhaustive()
    }
}

/// Memory to send that the job drops.
pub struct Memory {
    /// The bytes, all of which are sent. Dropped when the job is complete.
    pub bytes: Box<dyn AsRef<[u8]> + Send>,
    /// True if it is [lent](super::Job::Lend) instead of copied.
    pub lends: bool,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("lends", &self.lends).finish_non_exhaustive()
    }
}

/// System calls on a socket, which are made when it is ready. Used for messages, and for memory
/// that the program does not own.
pub struct Calls {
    /// The socket.
    pub socket: Socket,
    /// The condition to wait for when a call returns `AGAIN`.
    pub interest: Interest,
    /// The job is complete after at least this many bytes, or when a call moves none. `None`: after
    /// the first call that would not block.
    pub all: Option<u64>,
    /// Makes one non-blocking call, given the bytes moved before; returns the bytes that it moved.
    pub call: Box<Call>,
}

/// See [`Calls::call`]. It is dropped when the job is complete.
pub type Call = dyn FnMut(&OwnedFd, u64) -> Result<usize, Errno> + Send;

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calls").field("socket", &self.socket).finish_non_exhaustive()
    }
}
