//! Operations on files and sockets of the kernel, which the back end of a queue carries out.
//!
//! The queue has duplicates of descriptors. Bytes of streams and messages move between the kernel
//! and the program's memory directly, by calls made when the socket is ready. Bytes of files are
//! copied, because a thread or the kernel may use the memory longer than the queue exists.

use super::pending::Pending;
use super::stream::{End, duplicate, is_stream};
use super::transfer;
use super::work::{FileWork, Other, SocketWork, Transfer, Way, copied};
use crate::errno::{Errno, Outcome};
use crate::memory::address::{self, Given};
use crate::memory::pointers::Posted;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::FileType;
use rustix::io::Errno as Kernel;
use rustix::net::{AddressFamily, sockopt};
use std::fs::File;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use towpath::events::{
    self, Action as FileAction, Calls, EventQueue, Interest, Memory, SendFile, Token,
};
use towpath::layers::net::socket::Family;

/// Most bytes that a read may request without a check of the file's size. The check bounds the
/// memory that the read allocates.
const READ_MAX: usize = 1 << 20;

/// Starts an operation on a file.
pub(super) fn begin_on_file(
    events: &mut EventQueue,
    file: BorrowedFd<'_>,
    work: FileWork<'_>,
    (deadline, data): (Option<Instant>, u64),
) -> Outcome<(Token, Pending)> {
    let file = duplicate(file)?;
    let (action, buffer, into) = match work {
        FileWork::Read(into, from) => {
            let len = match into.len() {
                len @ ..=READ_MAX => len,
                len => len.min(rest(&file, from)?),
            };
            (FileAction::Read(from), zeros(len)?, Some(into))
        }
        FileWork::Write(bytes, to) => (FileAction::Write(to), copied(bytes)?, None),
        FileWork::Sync => (FileAction::Sync, Vec::new(), None),
        FileWork::SyncData => (FileAction::SyncData, Vec::new(), None),
    };
    let operation = events::Operation { action, file: Arc::new(file.into()), buffer };
    let begun = events.submit(operation, deadline, data);
    Ok((begun.map_err(|refused| refused.error)?, Pending::File(into)))
}

/// Starts an operation on a socket.
pub(super) fn begin_on_socket(
    events: &mut EventQueue,
    socket: BorrowedFd<'_>,
    work: SocketWork<'_>,
    (deadline, data): (Option<Instant>, u64),
) -> Outcome<(Token, Pending)> {
    if let SocketWork::ReceiveLent(..) = work {
        // The kernel cannot lend received bytes.
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let is_stream = is_stream(socket)?;
    let is_message = matches!(work, SocketWork::ReceiveMessage(..) | SocketWork::SendMessage(_));
    if is_stream == is_message {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let socket = duplicate(socket)?;
    let when = (deadline, data);
    if let SocketWork::Move(way, transfer @ Transfer { other: Other::Instance(..), .. }) = work {
        return transfer::begin(events, End::Kernel(socket), (way, transfer), when);
    }
    let socket = Arc::new(socket);
    match work {
        SocketWork::Connect(to) => {
            let remote = remote(&socket, to)?;
            let begun = events.connect_socket(socket, remote, deadline, data);
            Ok((begun?, Pending::Connect))
        }
        SocketWork::Accept(flags) => {
            let begun = events.accept(socket, deadline, data);
            Ok((begun?, Pending::Accept(flags)))
        }
        SocketWork::Receive(into, flags) => {
            let (len, waits_for_all) = (into.len() as u64, flags & libc::MSG_WAITALL != 0);
            let all = (waits_for_all || len == 0).then_some(len);
            let call = receive_into(into);
            begin_calls(events, Calls { socket, interest: Interest::READ, all, call }, when)
        }
        SocketWork::Send(bytes, lends) => {
            let memory = Memory { bytes: Box::new(bytes), lends };
            let begun = events.send_memory(socket, memory, deadline, data);
            Ok((begun?, Pending::Sent))
        }
        SocketWork::ReceiveMessage(mut message, flags) => {
            let call = Box::new(move |socket: &OwnedFd, _| {
                kernel(message.receive_on(socket.as_fd(), flags))
            });
            begin_calls(events, Calls { socket, interest: Interest::READ, all: None, call }, when)
        }
        SocketWork::SendMessage(message) => {
            let call = Box::new(move |socket: &OwnedFd, _| kernel(message.send_on(socket.as_fd())));
            begin_calls(events, Calls { socket, interest: Interest::WRITE, all: None, call }, when)
        }
        SocketWork::Move(way, transfer) => begin_move(events, socket, (way, transfer), when),
        // The queue itself starts multishot receives; lent receives were rejected above.
        SocketWork::ReceiveMultishot(_) | SocketWork::ReceiveLent(..) => Err(Errno::INVAL),
    }
}

fn begin_calls(
    events: &mut EventQueue,
    calls: Calls,
    (deadline, data): (Option<Instant>, u64),
) -> Outcome<(Token, Pending)> {
    Ok((events.call(calls, deadline, data)?, Pending::Calls))
}

fn begin_move(
    events: &mut EventQueue,
    socket: Arc<OwnedFd>,
    (way, transfer): (Way, Transfer<'_>),
    (deadline, data): (Option<Instant>, u64),
) -> Outcome<(Token, Pending)> {
    let Transfer { other, offset, count, header, trailer, rest } = transfer;
    let other = duplicate(match other {
        Other::Kernel(fd) => fd,
        Other::Instance(..) => return Err(Errno::INVAL),
    })?;
    let end = offset.checked_add(count).ok_or(Errno::INVAL)?;
    if way == Way::Splice {
        if !is_stream(other.as_fd())? {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let begun = events.splice(socket, Arc::new(other), count, deadline, data);
        return Ok((begun?, Pending::Moved(rest)));
    }
    let file = Arc::new(File::from(other));
    if way == Way::ReceiveFile {
        let begun = events.receive_file(socket, file, offset..end, deadline, data);
        return Ok((begun?, Pending::Moved(rest)));
    }
    let (header, trailer) = (copied(header)?, copied(trailer)?);
    let parts = SendFile { header, file, range: offset..end, trailer };
    let begun = events.send_file(socket, parts, deadline, data);
    Ok((begun.map_err(|refused| refused.error)?, Pending::SentFile))
}

/// A call that fills the program's memory.
fn receive_into(mut into: Posted) -> Box<events::Call> {
    Box::new(move |socket: &OwnedFd, done| {
        let rest = into.rest(done as usize);
        let flags = rustix::net::RecvFlags::DONTWAIT;
        rustix::net::recv(socket, rest, flags).map(|(count, _)| count)
    })
}

/// The address to which a socket should connect.
fn remote(socket: &OwnedFd, to: &[u8]) -> Outcome<SocketAddr> {
    let family = match sockopt::socket_domain(socket)? {
        AddressFamily::INET => Family::V4,
        AddressFamily::INET6 => Family::V6,
        _ => return Err(Errno(libc::EAFNOSUPPORT)),
    };
    match address::parse(to, family)? {
        Given::Address(remote) => Ok(remote),
        Given::Unspecified => Err(Errno::INVAL),
    }
}

/// The result of a call as the kernel's.
fn kernel(outcome: Outcome<usize>) -> Result<usize, Kernel> {
    outcome.map_err(|Errno(number)| Kernel::from_raw_os_error(number))
}

/// Bytes of a file after an offset. Unlimited for a file that is not regular, which has no size.
fn rest(file: &OwnedFd, from: u64) -> Outcome<usize> {
    let stat = rustix::fs::fstat(file)?;
    let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let len = u64::try_from(stat.st_size).unwrap_or(0).saturating_sub(from);
    Ok(if is_regular { usize::try_from(len).unwrap_or(usize::MAX) } else { usize::MAX })
}

/// A buffer of zeros. `ENOMEM` if there is no memory for it.
fn zeros(len: usize) -> Outcome<Vec<u8>> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(len).map_err(|_| Errno(libc::ENOMEM))?;
    buffer.resize(len, 0);
    Ok(buffer)
}
