//! Memory of any type and calls, which the program provides for a job.

use super::Socket;
use crate::reactor::Interest;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::fmt;

/// Memory to send that is not a `Vec`.
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

/// System calls on a socket, which are made when it is ready. Used for messages, and for receiving
/// into memory that is not a `Vec`.
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
