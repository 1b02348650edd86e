//! TCP sockets of the host: connect, listen, and streams of pieces.
//!
//! How a connection ends is told exactly: `Closed` is the peer's FIN, `ECONNRESET` its RST, and
//! [`TcpSocket::take_error`] says why a connect failed.
//!
//! A byte that the peer marks as urgent (RFC 6093) stays in its place in the stream, and reads end
//! in front of it: [`TcpSocket::is_at_mark`].

use super::{SEND_FLAGS, SEND_PIECES_MAX, bind, gather_pieces, local, open};
use crate::receive::{FRAMES_MAX, RECEIVE_BYTES_MAX, ReceiveBuffer, empty_slices};
use crate::sys::{self, Gather};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use towpath_packet::{Memory, Piece};

/// Connections that wait for [`TcpListener::accept`]; the kernel lowers it to its own limit.
const BACKLOG: i32 = 4096;

/// What a receive brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Bytes, all given away as pieces.
    Bytes {
        /// How many.
        count: usize,
        /// Fewer than were asked for: nothing is left to read at this moment.
        drained: bool,
    },
    /// The peer has shut down its side: no byte will follow.
    Closed,
    /// No frame is free: nothing was read and nothing is lost.
    NoMemory,
}

/// A TCP connection, or one being made.
#[derive(Debug)]
pub struct TcpSocket {
    pub(super) fd: OwnedFd,
}

impl TcpSocket {
    /// Begins to connect; true if the connection is made already, as with most peers on this
    /// machine. Else the socket turns writable when it is made or has failed, and
    /// [`take_error`](Self::take_error) tells which.
    pub fn connect(to: SocketAddr) -> io::Result<(Self, bool)> {
        Self::connect_by(open(&to, SocketType::STREAM, None)?, to)
    }

    fn connect_by(fd: OwnedFd, to: SocketAddr) -> io::Result<(Self, bool)> {
        sockopt::set_socket_oobinline(&fd, true)?;
        let mut result = rustix::net::connect(&fd, &to);
        if result == Err(Errno::INPROGRESS) {
            // A peer on this machine answers within the call, and only the next one is told so.
            result = rustix::net::connect(&fd, &to);
        }
        match result {
            // Systems that stand in for Linux may answer the second call in their own way.
            Ok(()) | Err(Errno::ISCONN) => Ok((Self { fd }, true)),
            Err(Errno::ALREADY | Errno::INPROGRESS) => Ok((Self { fd }, false)),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The error that waits on this socket, if any; it is told once.
    pub fn take_error(&self) -> Option<io::Error> {
        match sockopt::socket_error(&self.fd) {
            Ok(Ok(())) => None,
            Ok(Err(errno)) | Err(errno) => Some(errno.into()),
        }
    }

    /// Sends the first [`SEND_PIECES_MAX`] pieces in one call; returns the bytes taken, perhaps
    /// fewer than there are.
    pub fn send<'a>(&self, mut pieces: impl Iterator<Item = &'a Piece>) -> io::Result<usize> {
        let begin = [pieces.next(), pieces.next()];
        if let [Some(only), None] = begin
            && let Some(bytes) = only.bytes()
        {
            // A request, most likely: it costs the kernel less than a message of one part.
            let flags = SendFlags::from_bits_retain(SEND_FLAGS as u32);
            return Ok(rustix::net::send(&self.fd, bytes, flags)?);
        }
        let mut gather: Gather<'_, SEND_PIECES_MAX> = Gather::new();
        gather_pieces(&mut gather, begin.into_iter().flatten().chain(pieces));
        if gather.bytes() == 0 {
            return Ok(0);
        }
        Ok(sys::send_gather(self.fd.as_fd(), &gather, &[], &[], SEND_FLAGS)?)
    }

    /// Receives up to `bytes_max` bytes, at least one, in one call and gives them away in order.
    pub fn receive(
        &self,
        buffer: &mut ReceiveBuffer,
        memory: &mut Memory,
        bytes_max: usize,
        give: impl FnMut(Piece),
    ) -> io::Result<Received> {
        let wanted = bytes_max.clamp(1, RECEIVE_BYTES_MAX);
        let offered = buffer.prepare(memory, wanted);
        if offered == 0 {
            return Ok(Received::NoMemory);
        }
        let count = {
            let mut slices = empty_slices::<FRAMES_MAX>();
            let used = buffer.slices(&mut slices);
            rustix::io::readv(&self.fd, &mut slices[..used])?
        };
        if count == 0 {
            return Ok(Received::Closed);
        }
        buffer.take(count, give);
        Ok(Received::Bytes { count, drained: count < offered })
    }

    /// True if the next byte is the one that the peer marked as urgent.
    pub fn is_at_mark(&self) -> io::Result<bool> {
        Ok(sys::is_at_mark(self.fd.as_fd())?)
    }

    /// Receives one byte; `None` if the peer has shut down its side.
    pub fn receive_byte(&self) -> io::Result<Option<u8>> {
        let mut byte = [0];
        let (count, _) = rustix::net::recv(&self.fd, &mut byte, RecvFlags::empty())?;
        Ok((count > 0).then_some(byte[0]))
    }

    /// Sends a piece whose last byte is marked as urgent; returns the bytes taken. The mark goes
    /// with the last of them.
    pub fn send_urgent(&self, piece: &Piece) -> io::Result<usize> {
        let mut gather: Gather<'_, 1> = Gather::new();
        gather_pieces(&mut gather, std::iter::once(piece));
        Ok(sys::send_gather(self.fd.as_fd(), &gather, &[], &[], SEND_FLAGS | libc::MSG_OOB)?)
    }

    /// Ends our side of the stream: a FIN follows what was sent.
    pub fn shutdown_write(&self) -> io::Result<()> {
        Ok(rustix::net::shutdown(&self.fd, Shutdown::Write)?)
    }

    /// Closes at once: the peer gets a RST, and what was not sent is dropped.
    pub fn reset(self) {
        // Fails only on what is no socket; closing without it would be a graceful close.
        let _ = sockopt::set_socket_linger(&self.fd, Some(Duration::ZERO));
    }

    /// Sends small segments at once instead of waiting for more.
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        Ok(sockopt::set_tcp_nodelay(&self.fd, on)?)
    }

    /// Address of the peer.
    pub fn peer(&self) -> io::Result<SocketAddr> {
        match rustix::net::getpeername(&self.fd)? {
            Some(address) => Ok(address.try_into()?),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Our own address.
    pub fn local(&self) -> io::Result<SocketAddr> {
        local(self.fd.as_fd())
    }
}

impl AsFd for TcpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A socket that was opened elsewhere, to connect from there.
#[derive(Debug)]
pub struct UnconnectedTcp {
    fd: OwnedFd,
    /// An IPv6 socket that does IPv4 too, by mapped addresses (RFC 4291 §2.5.5.2).
    is_dual: bool,
}

impl UnconnectedTcp {
    /// A non-blocking socket of TCP without an address.
    pub fn new(fd: OwnedFd, is_dual: bool) -> Self {
        Self { fd, is_dual }
    }

    /// As [`TcpSocket::connect`].
    pub fn connect(self, mut to: SocketAddr) -> io::Result<(TcpSocket, bool)> {
        if let (true, SocketAddr::V4(v4)) = (self.is_dual, to) {
            to = SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port());
        }
        TcpSocket::connect_by(self.fd, to)
    }
}

/// Accepts TCP connections.
#[derive(Debug)]
pub struct TcpListener {
    fd: OwnedFd,
}

impl TcpListener {
    /// Listens on `address`, if named only on one interface. An address may be taken again while
    /// connections of an earlier listener linger.
    pub fn bind(address: SocketAddr, interface: Option<&str>) -> io::Result<Self> {
        let fd = open(&address, SocketType::STREAM, None)?;
        sockopt::set_socket_reuseaddr(&fd, true)?;
        // What it accepts is like it.
        sockopt::set_socket_oobinline(&fd, true)?;
        bind(&fd, &address, interface)?;
        rustix::net::listen(&fd, BACKLOG)?;
        Ok(Self { fd })
    }

    /// Takes the next connection and its peer's address.
    pub fn accept(&self) -> io::Result<(TcpSocket, SocketAddr)> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (fd, peer) = rustix::net::acceptfrom_with(&self.fd, flags)?;
        // No address, or of no family we know: the connection was gone before we took it.
        let peer = peer.ok_or(io::ErrorKind::ConnectionAborted)?;
        Ok((TcpSocket { fd }, peer.try_into()?))
    }

    /// The address listened on: tells the port if the kernel chose it.
    pub fn local(&self) -> io::Result<SocketAddr> {
        local(self.fd.as_fd())
    }
}

impl AsFd for TcpListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<OwnedFd> for TcpListener {
    /// A socket that listens, is non-blocking and is closed on exec.
    fn from(fd: OwnedFd) -> Self {
        // Fails only on what is no socket, which no accept succeeds on.
        let _ = sockopt::set_socket_oobinline(&fd, true);
        Self { fd }
    }
}

impl From<TcpListener> for OwnedFd {
    fn from(listener: TcpListener) -> Self {
        listener.fd
    }
}
