//! State of operations that the queue keeps until it reports their end, and the final reports.

use super::numbers::COPIED;
use super::reports::{Report, TowpathEvent, over};
use super::sending::Loaned;
use crate::errno::{Errno, Outcome};
use crate::memory::pointers::Posted;
use rustix::fd::OwnedFd;
use rustix::io::{Errno as Kernel, FdFlags};
use std::io;
use std::sync::Arc;
use towpath::events::{Completion, EventQueue, Token};

/// State of an operation until its end is reported.
pub(super) enum Pending {
    /// None: its steps contain all results.
    Task,
    /// A file operation, with the destination of a read.
    File(Option<Posted>),
    Connect,
    /// An accept, with flags for the descriptors of connections.
    Accept(i32),
    Calls,
    Sent,
    /// A send of an instance, with its loans.
    Lent(Arc<Loaned>),
    SentFile,
    /// A transfer, with the memory for undelivered bytes.
    Moved(Posted),
    /// A transfer of an instance, with its result.
    Transfer(Report),
    /// None: each step contains its results.
    Multishot,
}

/// Takes the result of an operation that has ended, and completes its last event with it.
pub(super) fn finish(
    events: &mut EventQueue,
    token: Token,
    pending: &mut Pending,
    event: TowpathEvent,
) -> TowpathEvent {
    let code = |result: io::Result<usize>| match result {
        Ok(count) => count as i64,
        Err(error) => -i64::from(Errno::from(error).0),
    };
    // Moved bytes take precedence over a later error, except where bytes are left over.
    let moved = |bytes: u64, result: io::Result<()>| TowpathEvent {
        error: result.map_or_else(|error| Errno::from(error).0, |()| 0),
        ..over(event, bytes as i64)
    };
    if let Pending::Task | Pending::Lent(_) | Pending::Transfer(_) | Pending::Multishot = pending {
        return event;
    }
    match (pending, events.take(token)) {
        (Pending::File(into), Some(Completion::Bytes(completed))) => {
            if let (Some(into), Ok(count)) = (into, &completed.result) {
                into.rest(0)[..*count].copy_from_slice(&completed.buffer[..*count]);
            }
            over(event, code(completed.result))
        }
        (_, Some(Completion::Connected(result))) => over(event, code(result.map(|_| 0))),
        (_, Some(Completion::Called(bytes, result))) => {
            over(event, if bytes > 0 { bytes as i64 } else { code(result.map(|()| 0)) })
        }
        (_, Some(Completion::Sent(sent))) => {
            let event = over(event, code(sent.result));
            TowpathEvent { flags: event.flags | if sent.copied { COPIED } else { 0 }, ..event }
        }
        (_, Some(Completion::FileSent(sent))) => moved(sent.bytes, sent.result),
        (Pending::Moved(into), Some(Completion::Moved(done))) => {
            let room = into.rest(0);
            let count = done.rest.len().min(room.len());
            room[..count].copy_from_slice(&done.rest[..count]);
            TowpathEvent { detail: done.rest.len() as u32, ..moved(done.bytes, done.result) }
        }
        // An accept with connections that were not taken.
        _ => over(event, code(Err(Kernel::CANCELED.into()))),
    }
}

/// Takes the next connection that a wait has reported, as a descriptor for C.
pub(super) fn take_connection(
    events: &mut EventQueue,
    token: Token,
    flags: i32,
) -> Option<OwnedFd> {
    let stream = events.take(token)?.into_connected().ok()?.ok()?.stream;
    let socket = stream.as_kernel().cloned();
    drop(stream);
    let socket = Arc::into_inner(socket?)?;
    // The descriptor is open, so this cannot fail.
    let _ = describe(&socket, flags);
    Some(socket)
}

/// Sets the flags of `accept4` on a descriptor.
fn describe(socket: &OwnedFd, flags: i32) -> Outcome<()> {
    if flags & libc::SOCK_CLOEXEC == 0 {
        rustix::io::fcntl_setfd(socket, FdFlags::empty())?;
    }
    if flags & libc::SOCK_NONBLOCK != 0 {
        rustix::io::ioctl_fionbio(socket, true)?;
    }
    Ok(())
}
