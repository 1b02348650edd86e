//! The work of an operation, as the program has requested it.

use crate::errno::{Errno, Outcome};
use crate::instance::Instance;
use crate::memory::pointers::{Lent, Message, Posted, TokenPlace};
use rustix::fd::BorrowedFd;
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// Work on a file.
pub(crate) enum FileWork<'a> {
    /// Read from this offset on.
    Read(Posted, u64),
    /// Write from this offset on.
    Write(&'a [u8], u64),
    Sync,
    SyncData,
}

/// Work on a socket.
pub(crate) enum SocketWork<'a> {
    /// Connect to this address.
    Connect(&'a [u8]),
    /// Accept, with flags for the descriptors.
    Accept(i32),
    /// Receive, with flags.
    Receive(Posted, i32),
    /// Send all of it; true if it may be lent to the kernel, too.
    Send(Lent, bool),
    /// Receive one message, with flags.
    ReceiveMessage(Message, i32),
    SendMessage(Message),
    /// Receive without a copy, with the place for the token.
    ReceiveLent(Message, TokenPlace),
    /// Receive repeatedly into buffers of this group.
    ReceiveMultishot(i32),
    /// Move bytes between a file or another socket and this socket.
    Move(Way, Transfer<'a>),
}

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From a file.
    SendFile,
    /// To a file.
    ReceiveFile,
    /// To another socket.
    Splice,
}

/// The file or the other socket of a transfer.
pub(crate) enum Other<'a> {
    /// A file or socket of the kernel.
    Kernel(BorrowedFd<'a>),
    /// A socket of an instance.
    Instance(ManuallyDrop<Arc<Instance>>, i32),
}

/// The arguments of a transfer.
pub(crate) struct Transfer<'a> {
    pub(crate) other: Other<'a>,
    /// Offset in the file.
    pub(crate) offset: u64,
    pub(crate) count: u64,
    pub(crate) header: &'a [u8],
    pub(crate) trailer: &'a [u8],
    /// Memory for bytes that were taken and not delivered.
    pub(crate) rest: Posted,
}

/// A copy of a program's bytes. `ENOMEM` if there is no memory for it.
pub(super) fn copied(bytes: &[u8]) -> Outcome<Vec<u8>> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(bytes.len()).map_err(|_| Errno(libc::ENOMEM))?;
    buffer.extend_from_slice(bytes);
    Ok(buffer)
}
