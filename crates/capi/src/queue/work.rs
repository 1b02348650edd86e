//! What is to be done by an operation, as the program asks for it.

use crate::errno::{Errno, Outcome};
use crate::instance::Instance;
use crate::memory::pointers::{Lent, Message, Posted, TokenPlace};
use rustix::fd::BorrowedFd;
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// What is to be done with a file.
pub(crate) enum FileWork<'a> {
    /// From this offset on.
    Read(Posted, u64),
    /// To this offset.
    Write(&'a [u8], u64),
    Sync,
    SyncData,
}

/// What is to be done with a socket.
pub(crate) enum SocketWork<'a> {
    /// To this address.
    Connect(&'a [u8]),
    /// With flags for the descriptors.
    Accept(i32),
    /// With flags.
    Receive(Posted, i32),
    /// All of it; whether it is lent to the kernel, too.
    Send(Lent, bool),
    /// One message, with flags.
    ReceiveMessage(Message, i32),
    SendMessage(Message),
    /// Without a copy; where the token goes.
    ReceiveLent(Message, TokenPlace),
    /// Again and again, into buffers of this group.
    ReceiveMultishot(i32),
    /// Between a file, or another socket, and this one.
    Move(Way, Transfer<'a>),
}

/// Where bytes are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From a file.
    SendFile,
    /// To a file.
    ReceiveFile,
    /// To another socket.
    Splice,
}

/// A file, or the other socket.
pub(crate) enum Other<'a> {
    /// One of the kernel's.
    Kernel(BorrowedFd<'a>),
    /// A socket of an instance.
    Instance(ManuallyDrop<Arc<Instance>>, i32),
}

/// What is moved.
pub(crate) struct Transfer<'a> {
    pub(crate) other: Other<'a>,
    /// In the file.
    pub(crate) offset: u64,
    pub(crate) count: u64,
    pub(crate) header: &'a [u8],
    pub(crate) trailer: &'a [u8],
    /// For what was taken and has not arrived.
    pub(crate) rest: Posted,
}

/// A copy of what a program gave; `ENOMEM` if there is no memory for it.
pub(super) fn copied(bytes: &[u8]) -> Outcome<Vec<u8>> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(bytes.len()).map_err(|_| Errno(libc::ENOMEM))?;
    buffer.extend_from_slice(bytes);
    Ok(buffer)
}
