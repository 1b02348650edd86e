//! TCP sockets before they connect or listen, and the calls that connect or listen.

use crate::host::resolver::{ToSocketAddrs, first_of};
use crate::host::sockets::listener::TcpListener;
use crate::host::sockets::stream::TcpStream;
use crate::host::wait::block;
use crate::host::{Host, family, io_error};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use towpath_net::socket::{Error, Family, Options, SocketId};

/// Connections that may wait to be accepted, as in the standard library.
const BACKLOG: u32 = 128;

/// A TCP socket that neither connects nor listens yet. Use it to set a local address, options or a
/// backlog.
///
/// ```
/// use towpath::host::{Config, Host, TcpSocket};
///
/// let a = Config::with_address([10, 0, 0, 1], 24);
/// let b = Config::with_address([10, 0, 0, 2], 24);
/// let (a, b) = Host::pair(&a, &b)?;
/// let server = TcpSocket::v4(&b)?;
/// server.bind(([10, 0, 0, 2], 80).into())?;
/// let listener = server.listen(1024)?;
///
/// let client = TcpSocket::v4(&a)?;
/// client.bind(([10, 0, 0, 1], 40_000).into())?;
/// client.set_options(|options| options.nodelay = true)?;
/// let stream = client.connect(listener.local_addr()?)?;
/// assert_eq!(listener.accept()?.1, stream.local_addr()?);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct TcpSocket {
    host: Host,
    id: SocketId,
    /// The socket now belongs to a stream or a listener.
    is_taken: bool,
}

impl TcpSocket {
    /// Creates a socket for IPv4 addresses.
    ///
    /// # Errors
    /// The errors of socket(2).
    pub fn v4(host: &Host) -> io::Result<Self> {
        Self::new(host, Family::V4).map_err(io_error)
    }

    /// Creates a socket for IPv6 addresses.
    ///
    /// # Errors
    /// The errors of socket(2).
    pub fn v6(host: &Host) -> io::Result<Self> {
        Self::new(host, Family::V6).map_err(io_error)
    }

    pub(in crate::host) fn new(host: &Host, family: Family) -> Result<Self, Error> {
        let id = host.owner.core.call(|state, _| state.engine.protocols.stream(family))?;
        Ok(Self { host: host.clone(), id, is_taken: false })
    }

    /// Binds to an address of the host, or to all of them; port 0 picks a free port.
    ///
    /// # Errors
    /// The errors of bind(2).
    pub fn bind(&self, address: SocketAddr) -> io::Result<()> {
        let core = &self.host.owner.core;
        core.call(|state, _| state.engine.protocols.bind(self.id, address)).map_err(io_error)
    }

    /// Returns the bound address.
    ///
    /// # Errors
    /// The errors of getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.host.owner.core.lock().engine.protocols.local(self.id).map_err(io_error)
    }

    /// Returns the current options.
    ///
    /// # Errors
    /// The errors of getsockopt(2).
    pub fn options(&self) -> io::Result<Options> {
        let state = self.host.owner.core.lock();
        state.engine.protocols.options(self.id).copied().map_err(io_error)
    }

    /// Changes options. Connections that a listener accepts inherit them.
    ///
    /// # Errors
    /// The errors of setsockopt(2).
    pub fn set_options(&self, change: impl FnOnce(&mut Options)) -> io::Result<()> {
        let core = &self.host.owner.core;
        let set = core.call(|state, now| state.engine.protocols.set_options(self.id, now, change));
        set.map_err(io_error)
    }

    /// Listens. At most `backlog` connections wait to be accepted.
    ///
    /// # Errors
    /// The errors of listen(2).
    pub fn listen(self, backlog: u32) -> io::Result<TcpListener> {
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        let listens = self.host.owner.core.call(|state, now| {
            state.engine.protocols.listen(self.id, backlog, now)?;
            state.add(self.id, None);
            Ok(())
        });
        listens.map_err(io_error)?;
        let (host, id) = self.into_parts();
        Ok(TcpListener::new(host, id))
    }

    /// Connects, and blocks until the connection is established.
    ///
    /// # Errors
    /// The errors of connect(2).
    pub fn connect(self, remote: SocketAddr) -> io::Result<TcpStream> {
        self.connect_within(remote, None)
    }

    /// Connects, and blocks for at most `timeout`.
    ///
    /// # Errors
    /// `TimedOut`; errors of connect(2).
    pub fn connect_timeout(self, remote: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
        self.connect_within(remote, Some(timeout))
    }

    /// Connects like [`TcpSocket::connect`], as a future. Dropping the future aborts the attempt.
    ///
    /// # Errors
    /// The errors of connect(2).
    pub async fn connect_async(self, remote: SocketAddr) -> io::Result<TcpStream> {
        let stream = self.begin(remote)?;
        poll_fn(|cx| stream.poll_connect(cx, remote)).await?;
        Ok(stream)
    }

    pub(in crate::host) fn connect_within(
        self,
        remote: SocketAddr,
        timeout: Option<Duration>,
    ) -> io::Result<TcpStream> {
        let stream = self.begin(remote)?;
        let connected = block(timeout, |cx| stream.poll_connect(cx, remote));
        connected.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))?;
        Ok(stream)
    }

    /// Starts to connect.
    pub(in crate::host) fn begin(self, remote: SocketAddr) -> io::Result<TcpStream> {
        let queue = TcpStream::queue(&self.host, self.id);
        let begun = self.host.owner.core.call(|state, now| {
            match state.engine.protocols.connect(self.id, remote, now) {
                Ok(()) | Err(Error::InProgress) => state.add(self.id, Some(queue.clone())),
                Err(error) => return Err(error),
            }
            Ok(())
        });
        begun.map_err(io_error)?;
        let (host, _) = self.into_parts();
        Ok(TcpStream::new(host, queue))
    }

    /// Returns the host and the socket, whose ownership moves to the caller.
    fn into_parts(mut self) -> (Host, SocketId) {
        self.is_taken = true;
        (self.host.clone(), self.id)
    }
}

impl TcpStream {
    /// Connects, and blocks until the connection is established. Several addresses are tried in
    /// order.
    ///
    /// # Errors
    /// The errors of connect(2) for the address tried last; errors of the host's
    /// [resolver](crate::host::Resolver).
    pub fn connect(host: &Host, remote: impl ToSocketAddrs) -> io::Result<Self> {
        first_of(host.resolver(), remote, |remote| Self::begin_at(host, remote)?.connect(remote))
    }

    /// Connects, and blocks for at most `timeout`.
    ///
    /// # Errors
    /// `TimedOut`; errors of connect(2).
    pub fn connect_timeout(host: &Host, remote: SocketAddr, timeout: Duration) -> io::Result<Self> {
        Self::begin_at(host, remote)?.connect_timeout(remote, timeout)
    }

    /// Connects like [`TcpStream::connect`] to one address, as a future. Dropping the future aborts
    /// the attempt.
    ///
    /// # Errors
    /// The errors of connect(2).
    pub async fn connect_async(host: &Host, remote: SocketAddr) -> io::Result<Self> {
        Self::begin_at(host, remote)?.connect_async(remote).await
    }

    /// Creates a socket of the address family of `remote`.
    fn begin_at(host: &Host, remote: SocketAddr) -> io::Result<TcpSocket> {
        TcpSocket::new(host, family(remote)).map_err(io_error)
    }

    /// Starts to connect.
    pub(in crate::host) fn begin(host: &Host, remote: SocketAddr) -> io::Result<Self> {
        Self::begin_at(host, remote)?.begin(remote)
    }
}

impl TcpListener {
    /// Listens at an address of the host, or at all of them; port 0 picks a free port. Of several
    /// addresses, the first that can be bound is used. Use [`TcpSocket`] for options or another
    /// backlog than 128.
    ///
    /// # Errors
    /// The errors of bind(2) and listen(2).
    pub fn bind(host: &Host, address: impl ToSocketAddrs) -> io::Result<Self> {
        first_of(host.resolver(), address, |address| {
            let socket = TcpSocket::new(host, family(address)).map_err(io_error)?;
            socket.set_options(|options| options.reuse_address = true)?;
            socket.bind(address)?;
            socket.listen(BACKLOG)
        })
    }
}

impl Drop for TcpSocket {
    fn drop(&mut self) {
        if !self.is_taken {
            self.host.owner.core.call(|state, now| state.close(self.id, now));
        }
    }
}

impl fmt::Debug for TcpSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpSocket").field("address", &self.local_addr().ok()).finish()
    }
}
