//! TCP sockets of the host: they connect, listen, and carry streams of pieces.
//!
//! The end of a connection is reported exactly: `Closed` is the peer's FIN, `ECONNRESET` its RST,
//! and [`TcpSocket::take_error`] returns why a connect failed.
//!
//! A byte that the peer marks as urgent (RFC 6093) keeps its place in the stream, and a read ends
//! before it: [`TcpSocket::is_at_mark`].
//!
//! Pieces may be lent to the kernel instead of copied ([`TcpSocket::send_lent`]). The lender
//! keeps the socket until everything has returned, and then closes it.

use super::lent::{Lent, Returns};
use super::signature::{Signature, requires_ao};
use super::zerocopy::{enable_lending, take_return};
use super::{SEND_FLAGS, SEND_PIECES_MAX, bind, bind_as_is, gather_pieces, local, open, unmapped};
use crate::gather::Gather;
use crate::receive::{FRAMES_MAX, RECEIVE_BYTES_MAX, ReceiveBuffer, empty_slices};
use crate::sys;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use towpath_packet::{Memory, Piece};

/// Connections that may wait for [`TcpListener::accept`]; the kernel may lower it to its own limit.
const BACKLOG: i32 = 4096;

/// Result of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Bytes, all passed on as pieces.
    Bytes {
        /// Number of bytes.
        count: usize,
        /// Fewer bytes than requested: the socket is empty now.
        drained: bool,
    },
    /// The peer has shut down its side: no more bytes will follow.
    Closed,
    /// No frame is free: nothing was read, and nothing is lost.
    NoMemory,
}

/// A TCP connection, established or in progress.
#[derive(Debug)]
pub struct TcpSocket {
    pub(super) fd: OwnedFd,
    /// What it has lent to the kernel; `None` before the first time.
    lent: Option<Box<Lent>>,
}

impl TcpSocket {
    /// Starts to connect. Returns true if the connection is established at once, as with most peers
    /// on this machine. Otherwise the socket becomes writable when it is established or has failed,
    /// and [`take_error`](Self::take_error) returns which.
    pub fn connect(to: SocketAddr) -> io::Result<(Self, bool)> {
        Self::connect_by(open(&to, SocketType::STREAM, None)?, to)
    }

    /// Starts to connect as [`connect`](Self::connect) does. Segments of both sides are signed. A
    /// peer without the key is silent.
    ///
    /// # Errors
    /// `ENOPROTOOPT` if the kernel signs nothing, `ENOENT` if it does not have the algorithm, and
    /// those of [`connect`](Self::connect).
    pub fn connect_signed(to: SocketAddr, signature: &Signature) -> io::Result<(Self, bool)> {
        let fd = open(&to, SocketType::STREAM, None)?;
        signature.for_connection(fd.as_fd(), to.ip())?;
        Self::connect_by(fd, to)
    }

    fn connect_by(fd: OwnedFd, to: SocketAddr) -> io::Result<(Self, bool)> {
        sockopt::set_socket_oobinline(&fd, true)?;
        let mut result = rustix::net::connect(&fd, &to);
        if result == Err(Errno::INPROGRESS) {
            // A peer on this machine answers during the call, but only the next call returns that.
            result = rustix::net::connect(&fd, &to);
        }
        match result {
            // Systems that emulate Linux may answer the second call differently.
            Ok(()) | Err(Errno::ISCONN) => Ok((Self { fd, lent: None }, true)),
            Err(Errno::ALREADY | Errno::INPROGRESS) => Ok((Self { fd, lent: None }, false)),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Returns the pending error of this socket, if any, and clears it.
    pub fn take_error(&self) -> Option<io::Error> {
        match sockopt::socket_error(&self.fd) {
            Ok(Ok(())) => None,
            Ok(Err(errno)) | Err(errno) => Some(errno.into()),
        }
    }

    /// Sends the first [`SEND_PIECES_MAX`] pieces in one call; returns the number of bytes that the
    /// socket accepted, which may be fewer than there are.
    pub fn send<'a>(&self, mut pieces: impl Iterator<Item = &'a Piece>) -> io::Result<usize> {
        let begin = [pieces.next(), pieces.next()];
        if let [Some(only), None] = begin
            && let Some(bytes) = only.bytes()
        {
            // Most likely a request: send(2) costs the kernel less than a message of one part.
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

    /// Lends the first [`SEND_PIECES_MAX`] pieces to the kernel in one call, without a copy;
    /// returns the number of bytes that the socket accepted. The socket keeps pieces of this memory
    /// until [`take_returns`](Self::take_returns) finds that the kernel has returned it: after the
    /// peer has acknowledged the bytes, or the connection has ended.
    ///
    /// # Errors
    /// Those of `sendmsg(2)`. `ENOBUFS` if too many returns are unread, or the user has lent as
    /// much as `RLIMIT_MEMLOCK` permits; nothing is sent then.
    ///
    /// # Panics
    /// If a piece is of memory that may go back to its lender early.
    pub fn send_lent<'a>(
        &mut self,
        pieces: impl Iterator<Item = &'a Piece> + Clone,
    ) -> io::Result<usize> {
        if self.lent.is_none() {
            enable_lending(self.fd.as_fd())?;
        }
        let lent = self.lent.get_or_insert_default();
        let pieces = pieces.take(SEND_PIECES_MAX);
        let mut early = pieces.clone().filter(|piece| piece.is_recallable());
        assert!(early.next().is_none(), "the kernel gives memory back when it likes");
        let mut gather: Gather<'_, SEND_PIECES_MAX> = Gather::new();
        gather_pieces(&mut gather, pieces.clone());
        if gather.bytes() == 0 {
            return Ok(0);
        }
        let flags = SEND_FLAGS | libc::MSG_ZEROCOPY;
        let count = sys::send_gather(self.fd.as_fd(), &gather, &[], &[], flags)?;
        lent.add(pieces, count);
        Ok(count)
    }

    /// Takes back what the kernel has returned so far, and drops those pieces. Never waits. The
    /// socket reports an error event for each return.
    pub fn take_returns(&mut self) -> Returns {
        let mut returns = Returns::default();
        let Some(lent) = &mut self.lent else { return returns };
        // Without a call that is out there is no return, so most of the time nothing is read in
        // vain.
        while !lent.is_empty()
            && let Ok(Some(returned)) = take_return(self.fd.as_fd())
        {
            returns.calls += returned.calls();
            returns.copied += if returned.copied { returned.calls() } else { 0 };
            lent.over(returned);
        }
        returns
    }

    /// Bytes of memory that lent pieces keep from their lenders; 0 if everything has returned.
    pub fn lent_held(&self) -> usize {
        self.lent.as_ref().map_or(0, |lent| lent.held())
    }

    /// Receives 1 to `bytes_max` bytes in one call, and passes them to `give` in order.
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

    /// Sends a piece whose last byte is marked as urgent; returns the number of bytes that the
    /// socket accepted. The mark is on the last accepted byte.
    pub fn send_urgent(&self, piece: &Piece) -> io::Result<usize> {
        let mut gather: Gather<'_, 1> = Gather::new();
        gather_pieces(&mut gather, std::iter::once(piece));
        Ok(sys::send_gather(self.fd.as_fd(), &gather, &[], &[], SEND_FLAGS | libc::MSG_OOB)?)
    }

    /// Shuts down our side of the stream: a FIN follows the bytes sent.
    pub fn shutdown_write(&self) -> io::Result<()> {
        Ok(rustix::net::shutdown(&self.fd, Shutdown::Write)?)
    }

    /// Shuts down both sides: a FIN follows the bytes sent, and the peer receives a RST if it sends
    /// more. For a socket that is kept only until what it has lent returns.
    pub fn shutdown_both(&self) -> io::Result<()> {
        Ok(rustix::net::shutdown(&self.fd, Shutdown::Both)?)
    }

    /// Ends the connection at once, but keeps the socket: the peer receives a RST, and unsent bytes
    /// are dropped. So the kernel returns what was lent, except for packets that a network card is
    /// about to send; these return when it has sent them.
    pub fn disconnect(&self) -> io::Result<()> {
        Ok(rustix::net::connect_unspec(&self.fd)?)
    }

    /// Closes at once: the peer receives a RST, and unsent bytes are dropped.
    pub fn reset(self) {
        // Fails only for a descriptor that is not a socket. If it fails, the close is graceful.
        let _ = sockopt::set_socket_linger(&self.fd, Some(Duration::ZERO));
    }

    /// Sends small segments at once, without waiting for more data (`TCP_NODELAY`).
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        Ok(sockopt::set_tcp_nodelay(&self.fd, on)?)
    }

    /// Returns true if TCP-AO signs all segments of this connection, which a listener for
    /// [`Signature::Ao`] has accepted.
    pub fn requires_ao(&self) -> bool {
        requires_ao(self.fd.as_fd())
    }

    /// Address of the peer.
    pub fn peer(&self) -> io::Result<SocketAddr> {
        match rustix::net::getpeername(&self.fd)? {
            Some(address) => Ok(unmapped(address.try_into()?)),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// The local address.
    pub fn local(&self) -> io::Result<SocketAddr> {
        local(self.fd.as_fd()).map(unmapped)
    }
}

impl AsFd for TcpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A TCP socket that was opened in another place, for connections from there.
#[derive(Debug)]
pub struct UnconnectedTcp {
    fd: OwnedFd,
    /// True for an IPv6 socket that also connects to IPv4, by mapped addresses (RFC 4291 §2.5.5.2).
    is_dual: bool,
}

impl UnconnectedTcp {
    /// Takes a non-blocking TCP socket without an address.
    pub fn new(fd: OwnedFd, is_dual: bool) -> Self {
        Self { fd, is_dual }
    }

    /// Starts to connect; the results are those of [`TcpSocket::connect`].
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
    /// Listens on `address`, on one interface only if it is named. An address can be bound again
    /// while connections of an earlier listener linger.
    pub fn bind(address: SocketAddr, interface: Option<&str>) -> io::Result<Self> {
        Self::listen(address, |fd| bind(fd, &address, interface))
    }

    /// Listens on `address`. Segments of these peers are signed, as
    /// [`TcpSocket::connect_signed`] does it; unsigned ones are not heard. Others can connect
    /// without a signature, unless one is [`Signature::Ao`]: all are of one kind.
    ///
    /// # Errors
    /// `ENOPROTOOPT` if the kernel signs nothing, `ENOENT` if it does not have the algorithm, and
    /// those of bind(2).
    pub fn bind_signed<'a>(
        address: SocketAddr,
        peers: impl IntoIterator<Item = (&'a IpAddr, &'a Signature)>,
    ) -> io::Result<Self> {
        Self::listen(address, |fd| {
            let peers = peers.into_iter().filter(|(peer, _)| peer.is_ipv4() == address.is_ipv4());
            for (peer, signature) in peers {
                signature.for_listener(fd.as_fd(), *peer)?;
            }
            bind(fd, &address, None)
        })
    }

    /// Listens on a port of all addresses of both IP versions, on one interface only if it is
    /// named. IPv4 peers are reported with their IPv4 addresses.
    ///
    /// # Errors
    /// Those of the system. If one family is missing or in use, the whole call fails;
    /// [`bind`](Self::bind) for each family tells which.
    pub fn bind_all(port: u16, interface: Option<&str>) -> io::Result<Self> {
        let address = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
        Self::listen(address, |fd| {
            sockopt::set_ipv6_v6only(fd, false)?;
            bind_as_is(fd, &address, interface)
        })
    }

    fn listen(
        address: SocketAddr,
        bind: impl FnOnce(&OwnedFd) -> io::Result<()>,
    ) -> io::Result<Self> {
        let fd = open(&address, SocketType::STREAM, None)?;
        sockopt::set_socket_reuseaddr(&fd, true)?;
        // Accepted connections inherit the option.
        sockopt::set_socket_oobinline(&fd, true)?;
        bind(&fd)?;
        rustix::net::listen(&fd, BACKLOG)?;
        Ok(Self { fd })
    }

    /// Accepts the next connection; returns it with its peer's address.
    pub fn accept(&self) -> io::Result<(TcpSocket, SocketAddr)> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (fd, peer) = rustix::net::acceptfrom_with(&self.fd, flags)?;
        // No address or an unknown family means that the connection was gone before it was
        // accepted.
        let peer = peer.ok_or(io::ErrorKind::ConnectionAborted)?;
        Ok((TcpSocket { fd, lent: None }, unmapped(peer.try_into()?)))
    }

    /// Stops listening, but keeps the port. Connections that wait to be accepted are reset.
    pub fn rest(&self) -> io::Result<()> {
        Ok(rustix::net::shutdown(&self.fd, Shutdown::Read)?)
    }

    /// Listens again after [`rest`](Self::rest).
    ///
    /// # Errors
    /// `AddrInUse` if another socket listens at the port by now.
    pub fn resume(&self) -> io::Result<()> {
        Ok(rustix::net::listen(&self.fd, BACKLOG)?)
    }

    /// The address on which it listens, with the port if the kernel chose it.
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
    /// Takes a listening, non-blocking, close-on-exec socket.
    fn from(fd: OwnedFd) -> Self {
        // Fails only for a descriptor that is not a socket, on which accept fails, too.
        let _ = sockopt::set_socket_oobinline(&fd, true);
        Self { fd }
    }
}

impl From<TcpListener> for OwnedFd {
    fn from(listener: TcpListener) -> Self {
        listener.fd
    }
}
