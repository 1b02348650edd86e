//! Carries out steps by system calls: non-blocking ones on sockets, possibly blocking ones on
//! files.

use super::job::Step;
use super::mounts;
use crate::process_sys::SignalSet;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags};
use rustix::pipe::SpliceFlags;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use towpath_packet::{PinnedPiece, View};

/// Carries out a step on sockets, except an accept.
///
/// # Errors
/// `AGAIN` if it would block; otherwise those of the system call.
pub(super) fn socket(step: Step<'_>) -> Result<usize, Errno> {
    match step {
        Step::Receive { socket, into, .. } => {
            rustix::net::recv(socket, into, RecvFlags::DONTWAIT).map(|(count, _)| count)
        }
        Step::Send { socket, bytes, more } => {
            let mut flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            flags.set(SendFlags::MORE, more);
            rustix::net::send(socket, bytes, flags)
        }
        Step::Connect { socket, remote } => match rustix::net::connect(socket, &remote) {
            Ok(()) | Err(Errno::ISCONN) => Ok(0),
            Err(Errno::INPROGRESS | Errno::ALREADY) => Err(Errno::AGAIN),
            Err(errno) => Err(errno),
        },
        Step::SendFile { socket, file, mut at, count } => {
            quietly(|| rustix::fs::sendfile(socket, file, Some(&mut at), count))
        }
        Step::Splice { from, to, count, sink } => {
            let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
            let result = quietly(|| rustix::pipe::splice(from, None, to, None, count, flags));
            match (result, sink) {
                (Err(Errno::AGAIN), Some(sink)) => Err(sink.look(from).unwrap_or(Errno::AGAIN)),
                (result, _) => result,
            }
        }
        Step::Call { calls, done } => (calls.call)(&calls.socket, done),
        step => unreachable!("{step:?} is no such step"),
    }
}

/// Carries out a step on a file, which may block for as long as a disk takes.
pub(super) fn file(step: Step<'_>) -> Result<usize, Errno> {
    let result = match step {
        Step::Look { file, into } => {
            return mounts::ask(file).map(|status| {
                *into = status;
                0
            });
        }
        Step::Read { file, into, at } => file.read_at(into, at),
        Step::Write { file, bytes, at } => file.write_at(bytes, at),
        Step::WritePieces { file, pieces, skip, at, .. } => {
            return write_pieces(file, pieces, skip, at);
        }
        Step::Sync { file, data_only: false } => file.sync_all().map(|()| 0),
        Step::Sync { file, data_only: true } => file.sync_data().map(|()| 0),
        step => unreachable!("{step:?} is no such step"),
    };
    result.map_err(|error| errno(&error))
}

/// Writes the bytes of pieces but the first `skip`, as many as one call takes.
fn write_pieces(file: &File, pieces: &[PinnedPiece], skip: usize, at: u64) -> Result<usize, Errno> {
    let views = pieces.iter().map(|pinned| pinned.piece().view().expect("it is not foreign"));
    let views: Vec<View<'_>> = views.collect();
    let mut slices: Vec<_> = views.iter().map(|view| IoSlice::new(view)).collect();
    if let Some(first) = slices.first_mut()
        && skip > 0
    {
        *first = IoSlice::new(&views[0][skip..]);
    }
    rustix::io::pwritev(file, &slices, at)
}

/// Accepts the next connection of a non-blocking listener. The connection is blocking, as in the
/// standard library.
pub(super) fn accept(listener: impl AsFd) -> Result<OwnedFd, Errno> {
    rustix::net::accept_with(listener, SocketFlags::CLOEXEC)
}

/// The error number of a system error.
pub(super) fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Makes a call without letting it raise SIGPIPE; these calls have no flag for that.
fn quietly(call: impl FnOnce() -> Result<usize, Errno>) -> Result<usize, Errno> {
    let pipe = SignalSet::of(&[libc::SIGPIPE]);
    let before = pipe.block().map_err(|error| errno(&error))?;
    let result = call();
    if result == Err(Errno::PIPE) && !before.has(libc::SIGPIPE) {
        pipe.take_pending();
    }
    before.restore().map_err(|error| errno(&error))?;
    result
}
