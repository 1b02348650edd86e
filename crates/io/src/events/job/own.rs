//! What is the program's own in a job: memory of any kind, and calls.

use super::Socket;
use crate::reactor::Interest;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::fmt;

/// Memory that is sent and is no `Vec`.
pub struct Memory {
    /// All of it is sent. It is dropped when the job is over.
    pub bytes: Box<dyn AsRef<[u8]> + Send>,
    /// It is [lent](super::Job::Lend), not copied.
    pub lends: bool,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("lends", &self.lends).finish_non_exhaustive()
    }
}

/// Calls on a socket, which are made when it is ready: the way of messages, and of memory that is
/// received into and is no `Vec`.
pub struct Calls {
    /// The socket.
    pub socket: Socket,
    /// What a call waits for that says `AGAIN`.
    pub interest: Interest,
    /// They are over after so many bytes or more, or when one moves none. `None` after the first
    /// that does not have to wait.
    pub all: Option<u64>,
    /// Makes a call that does not block, after so many bytes: how many more it has moved.
    pub call: Box<Call>,
}

/// See [`Calls::call`]. What it has is dropped when the job is over.
pub type Call = dyn FnMut(&OwnedFd, u64) -> Result<usize, Errno> + Send;

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calls").field("socket", &self.socket).finish_non_exhaustive()
    }
}
