//! Sockets for operations: one type for those of towpath hosts and of the kernel, so that a program
//! works on either.
//!
//! A kernel socket keeps its blocking mode until an operation needs it to be non-blocking:
//! operations that move files and pipes do, and so does accepting with epoll.

use crate::host::{self, Host};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A TCP/IP stack: a towpath host or the kernel.
#[derive(Clone)]
pub enum Stack {
    /// The stack of a towpath host.
    Host(Host),
    /// The kernel's stack, in the network namespace of the calling thread.
    Kernel,
}

impl Stack {
    /// Listens at an address; port 0 picks a free port.
    pub fn listen(&self, address: SocketAddr) -> io::Result<Listener> {
        Ok(match self {
            Self::Host(host) => host::TcpListener::bind(host, address)?.into(),
            Self::Kernel => std::net::TcpListener::bind(address)?.into(),
        })
    }
}

impl From<&Stack> for Stack {
    fn from(stack: &Stack) -> Self {
        stack.clone()
    }
}

impl From<&Host> for Stack {
    fn from(host: &Host) -> Self {
        Self::Host(host.clone())
    }
}

/// A connection. Clones share the connection, which closes when the last one is dropped.
#[derive(Clone, Debug)]
pub struct Stream(pub(in crate::events) End<host::TcpStream>);

/// A listening socket. Clones share the socket, which closes when the last one is dropped.
#[derive(Clone, Debug)]
pub struct Listener(pub(in crate::events) End<host::TcpListener>);

/// A socket of a towpath host that sends and receives datagrams, IP packets or frames: a
/// [`UdpSocket`](host::UdpSocket), [`RawSocket`](host::RawSocket) or
/// [`PacketSocket`](host::PacketSocket). Clones share the socket. For sockets of the kernel use
/// [`EventQueue::call`](crate::events::EventQueue::call).
#[derive(Clone, Debug)]
pub struct DatagramSocket(pub(in crate::events) host::UdpSocket);

/// A socket of either stack.
#[derive(Clone, Debug)]
pub(in crate::events) enum End<H> {
    Host(H),
    Kernel(Arc<OwnedFd>),
}

impl<H> End<H> {
    fn kernel(&self) -> Option<&Arc<OwnedFd>> {
        match self {
            Self::Kernel(socket) => Some(socket),
            Self::Host(_) => None,
        }
    }

    fn host(&self) -> Option<&H> {
        match self {
            Self::Host(socket) => Some(socket),
            Self::Kernel(_) => None,
        }
    }
}

impl Stream {
    /// Returns the connection of the towpath host, if it is one.
    pub fn as_host(&self) -> Option<&host::TcpStream> {
        self.0.host()
    }

    /// Returns the kernel's socket, if it is one.
    pub fn as_kernel(&self) -> Option<&Arc<OwnedFd>> {
        self.0.kernel()
    }

    /// Receives available bytes, without blocking. Returns 0 at the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` if no bytes are available; otherwise the errors of reading.
    pub fn try_receive(&self, into: &mut [u8]) -> io::Result<usize> {
        match &self.0 {
            End::Host(stream) => {
                now(stream.poll_read(&mut Context::from_waker(Waker::noop()), into))
            }
            End::Kernel(socket) => {
                let (count, _) = rustix::net::recv(socket, into, RecvFlags::DONTWAIT)?;
                Ok(count)
            }
        }
    }

    /// Sends as much of the start of `bytes` as there is room for, without blocking. Returns the
    /// number of bytes.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room; otherwise the errors of writing.
    pub fn try_send(&self, bytes: &[u8]) -> io::Result<usize> {
        match &self.0 {
            End::Host(stream) => {
                now(stream.poll_write(&mut Context::from_waker(Waker::noop()), bytes))
            }
            End::Kernel(socket) => {
                Ok(rustix::net::send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
            }
        }
    }

    /// Shuts down one or both directions. Data already written is still sent.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match &self.0 {
            End::Host(stream) => stream.shutdown(how),
            End::Kernel(socket) => Ok(rustix::net::shutdown(
                socket,
                match how {
                    Shutdown::Read => rustix::net::Shutdown::Read,
                    Shutdown::Write => rustix::net::Shutdown::Write,
                    Shutdown::Both => rustix::net::Shutdown::Both,
                },
            )?),
        }
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// `EAFNOSUPPORT` for a kernel socket of another family than IP.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match &self.0 {
            End::Host(stream) => stream.local_addr(),
            End::Kernel(socket) => local_addr(socket),
        }
    }

    /// Returns the peer's address.
    ///
    /// # Errors
    /// `ENOTCONN` once the connection is gone; `EAFNOSUPPORT` for a kernel socket of another family
    /// than IP.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        match &self.0 {
            End::Host(stream) => stream.peer_addr(),
            End::Kernel(socket) => {
                let address = rustix::net::getpeername(socket)?.ok_or(Errno::AFNOSUPPORT)?;
                Ok(SocketAddr::try_from(address)?)
            }
        }
    }

    /// Sets `TCP_NODELAY`: true sends small segments at once instead of waiting for ACKs.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        match &self.0 {
            End::Host(stream) => stream.set_nodelay(nodelay),
            End::Kernel(socket) => set_nodelay(socket, nodelay),
        }
    }
}

impl Listener {
    /// Returns the socket of the towpath host, if it is one.
    pub fn as_host(&self) -> Option<&host::TcpListener> {
        self.0.host()
    }

    /// Returns the kernel's socket, if it is one.
    pub fn as_kernel(&self) -> Option<&Arc<OwnedFd>> {
        self.0.kernel()
    }

    /// Returns the address it listens at.
    ///
    /// # Errors
    /// `EAFNOSUPPORT` for a kernel socket of another family than IP.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match &self.0 {
            End::Host(listener) => listener.local_addr(),
            End::Kernel(socket) => local_addr(socket),
        }
    }

    /// Sets `TCP_NODELAY` for connections accepted from now on.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        match &self.0 {
            End::Host(listener) => listener.set_nodelay(nodelay),
            End::Kernel(socket) => set_nodelay(socket, nodelay),
        }
    }
}

fn set_nodelay(socket: impl AsFd, nodelay: bool) -> io::Result<()> {
    Ok(rustix::net::sockopt::set_tcp_nodelay(socket, nodelay)?)
}

fn local_addr(socket: impl AsFd) -> io::Result<SocketAddr> {
    Ok(SocketAddr::try_from(rustix::net::getsockname(socket)?)?)
}

fn now(result: Poll<io::Result<usize>>) -> io::Result<usize> {
    match result {
        Poll::Ready(result) => result,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

impl From<&host::UdpSocket> for DatagramSocket {
    fn from(socket: &host::UdpSocket) -> Self {
        Self(socket.clone())
    }
}

impl From<&host::RawSocket> for DatagramSocket {
    fn from(socket: &host::RawSocket) -> Self {
        Self(socket.as_datagrams().clone())
    }
}

impl From<&host::PacketSocket> for DatagramSocket {
    fn from(socket: &host::PacketSocket) -> Self {
        Self(socket.as_datagrams().clone())
    }
}

impl From<&DatagramSocket> for DatagramSocket {
    fn from(socket: &DatagramSocket) -> Self {
        socket.clone()
    }
}

macro_rules! from {
    ($socket:ty: $host:ty, $($kernel:ty),+) => {
        impl From<$host> for $socket {
            fn from(socket: $host) -> Self {
                Self(End::Host(socket))
            }
        }

        impl From<&$host> for $socket {
            fn from(socket: &$host) -> Self {
                socket.clone().into()
            }
        }

        impl From<&$socket> for $socket {
            fn from(socket: &$socket) -> Self {
                socket.clone()
            }
        }

        impl From<Arc<OwnedFd>> for $socket {
            fn from(socket: Arc<OwnedFd>) -> Self {
                Self(End::Kernel(socket))
            }
        }

        $(impl From<$kernel> for $socket {
            fn from(socket: $kernel) -> Self {
                Arc::new(OwnedFd::from(socket)).into()
            }
        })+
    };
}

from!(Stream: host::TcpStream, std::net::TcpStream, UnixStream, OwnedFd);
from!(Listener: host::TcpListener, std::net::TcpListener, UnixListener, OwnedFd);
