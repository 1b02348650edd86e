//! Streams for operations: of an instance or of the kernel.

use super::socket::{Place, READS, WRITES, attempt};
use super::taken::Taken;
use super::work::Other;
use crate::errno::{Errno, Outcome};
use crate::instance::Instance;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno as Kernel;
use rustix::net::{RecvFlags, SendFlags, SocketType, sockopt};
use std::sync::Arc;
use std::task::Waker;
use towpath::layers::net::socket::{ReceiveFlags, SendFlags as Sends};

/// A stream.
pub(super) enum End {
    Instance(Place),
    Kernel(OwnedFd),
}

impl End {
    /// The stream `fd` of an instance.
    ///
    /// # Errors
    /// `EBADF`, `ENOTSOCK`; `EOPNOTSUPP` if it is not a stream.
    pub(super) fn of_instance(instance: &Arc<Instance>, fd: i32) -> Outcome<Self> {
        let place = Place::new(instance, fd)?;
        let is_datagram = instance.is_datagram(fd);
        if is_datagram { Err(Errno(libc::EOPNOTSUPP)) } else { Ok(Self::Instance(place)) }
    }

    /// A stream of an instance or of the kernel, of which this gets a duplicate. Fails like
    /// [`End::of_instance`].
    pub(super) fn of(other: Other<'_>) -> Outcome<Self> {
        match other {
            Other::Instance(instance, fd) => Self::of_instance(&instance, fd),
            Other::Kernel(fd) if is_stream(fd)? => Ok(Self::Kernel(duplicate(fd)?)),
            Other::Kernel(_) => Err(Errno(libc::EOPNOTSUPP)),
        }
    }

    /// The kernel's socket, if it is one.
    pub(super) fn kernel(&self) -> Option<&OwnedFd> {
        match self {
            Self::Kernel(socket) => Some(socket),
            Self::Instance(_) => None,
        }
    }

    /// Receives available bytes. [`Errno::AGAIN`] if there are none yet.
    pub(super) fn receive(&mut self, into: &mut [u8], waker: &Waker) -> Outcome<usize> {
        self.read(into, false, waker)
    }

    /// Checks for bytes to receive, and leaves them in place. Returns 0 at the end of the stream.
    pub(super) fn look(&mut self, waker: &Waker) -> Outcome<usize> {
        self.read(&mut [0], true, waker)
    }

    fn read(&mut self, into: &mut [u8], peek: bool, waker: &Waker) -> Outcome<usize> {
        let how = ReceiveFlags { peek, offset: 0 };
        let flags = if peek { RecvFlags::PEEK } else { RecvFlags::empty() } | RecvFlags::DONTWAIT;
        match self {
            Self::Instance(place) => attempt(place, (READS, waker), |state, id| {
                Ok(state.with(|sockets, cx| sockets.receive(id, into, how, cx))?)
            }),
            Self::Kernel(socket) => {
                uninterrupted(|| rustix::net::recv(&*socket, &mut *into, flags).map(|(len, _)| len))
            }
        }
    }

    /// Sends the beginning of `bytes`. [`Errno::AGAIN`] if there is no room.
    pub(super) fn send(&mut self, bytes: &[u8], waker: &Waker) -> Outcome<usize> {
        let how = Sends::default();
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match self {
            Self::Instance(place) => attempt(place, (WRITES, waker), |state, id| {
                Ok(state.with(|sockets, cx| sockets.send(id, &[bytes], how, cx))?)
            }),
            Self::Kernel(socket) => uninterrupted(|| rustix::net::send(&*socket, bytes, flags)),
        }
    }
}

impl End {
    /// Sends the beginning of what was taken from a stream, without its first `from` bytes.
    /// [`Errno::AGAIN`] if there is no room.
    pub(super) fn pass_on(&mut self, taken: &Taken, from: usize, waker: &Waker) -> Outcome<usize> {
        let (Self::Instance(place), Some(piece)) = (&mut *self, taken.piece()) else {
            return taken.with(|bytes| self.send(&bytes[from..], waker));
        };
        attempt(place, (WRITES, waker), |state, id| {
            let room = state.with(|sockets, cx| sockets.send_room(id, cx.now))?;
            let len = room.min(piece.len() - from);
            if len == 0 {
                return Err(Errno::AGAIN);
            }
            let part = piece.piece().slice(from, len);
            state.with(|sockets, cx| sockets.send_piece(id, part, cx))?;
            Ok(len)
        })
    }
}

/// Repeats a system call while signals interrupt it.
fn uninterrupted(mut call: impl FnMut() -> rustix::io::Result<usize>) -> Outcome<usize> {
    loop {
        match call() {
            Err(Kernel::INTR) => {}
            outcome => return Ok(outcome?),
        }
    }
}

/// True if a socket is a stream, false for datagrams.
pub(super) fn is_stream(socket: BorrowedFd<'_>) -> Outcome<bool> {
    Ok(sockopt::socket_type(socket)? == SocketType::STREAM)
}

pub(super) fn duplicate(fd: BorrowedFd<'_>) -> Outcome<OwnedFd> {
    Ok(rustix::io::fcntl_dupfd_cloexec(fd, 0)?)
}
