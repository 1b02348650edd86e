//! Sockets of hosts in the shape of tokio's: nothing of them waits in a task, and their methods
//! stand in nobody's way who imports tokio's traits.
//!
//! They work under any runtime, as wakers are all that they need; tokio's own I/O is not used. Each
//! is a handle of a socket of [`host`], which [`TcpStream::as_host`] and its like
//! show: options, sends that lend, and what else has no counterpart in tokio. Names, as opposed to
//! addresses, are resolved on a thread for what blocks, which takes tokio's runtime.
//!
//! ```
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//! use towpath::host::{Config, Host};
//! use towpath::tokio::{TcpListener, TcpStream};
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
//! # runtime.block_on(async {
//! let [a, b] = [1, 2].map(|last| Config::with_address([10, 0, 0, last], 24));
//! let (client, server) = Host::pair(&a, &b)?;
//! let listener = TcpListener::bind(&server, "10.0.0.2:7").await?;
//! let connect = TcpStream::connect(&client, "10.0.0.2:7");
//! let (stream, accepted) = futures::future::join(connect, listener.accept()).await;
//! let (mut stream, (mut peer, _)) = (stream?, accepted?);
//! stream.write_all(b"hello").await?;
//! stream.shutdown().await?;
//! let mut all = String::new();
//! peer.read_to_string(&mut all).await?;
//! assert_eq!(all, "hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Features let other crates use these sockets without code between:
//!
//! | feature | what it brings |
//! |---|---|
//! | `hyper-util` | `Connector`, by which clients of hyper-util connect through a host |
//! | `axum` | [`TcpListener`] is a listener of `axum::serve` |
//! | `tonic` | [`TcpStream`] is what servers of tonic take; its clients take the `Connector` |

#[cfg(feature = "axum")]
mod axum;
#[cfg(feature = "hyper-util")]
mod hyper;
#[cfg(feature = "tonic")]
mod tonic;

#[cfg(feature = "hyper-util")]
pub use self::hyper::{ConnectError, Connecting, Connector};

use crate::host::resolver::no_address;
use crate::host::sockets::watch::Watched;
use crate::host::{self, Host, Lend, SendError, SendTo, Sending, Target, ToSocketAddrs};
use futures_core::Stream;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use towpath_io::events::Interest;

/// A TCP connection of a host, for tasks. Dropped, it is closed: what was written is still sent.
#[derive(Debug)]
pub struct TcpStream(host::TcpStream);

impl TcpStream {
    /// Connects. Of several addresses the first that answers is taken. Dropping the future gives
    /// up.
    ///
    /// # Errors
    /// Those of connect(2), of the address that was tried last; what the host's
    /// [resolver](host::Resolver) says.
    pub async fn connect(host: &Host, remote: impl ToSocketAddrs) -> io::Result<Self> {
        let mut failure = None;
        for remote in addresses(host, remote).await? {
            match host::TcpStream::connect_async(host, remote).await {
                Ok(stream) => return Ok(Self(stream)),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(no_address))
    }

    /// The socket, with its options and all that tokio has no counterpart for. Its calls of the
    /// standard library's shape wait, which a task must not.
    pub fn as_host(&self) -> &host::TcpStream {
        &self.0
    }

    /// Sends `buffer`, lent or copied as the socket's [mode](host::TcpStream::set_send_mode) says.
    /// This waits until it is accepted; what it returns waits until the memory is back.
    ///
    /// # Errors
    /// As [`host::TcpStream::send_zc`]: the buffer is handed back.
    pub async fn send_zc<B: Lend>(&self, buffer: B) -> Result<Sending<B>, SendError<B>> {
        self.0.send_zc_async(buffer).await
    }

    /// As [`TcpStream::send_zc`], for a term of this call's own: then the memory comes back, copied
    /// if need be.
    ///
    /// # Errors
    /// As there.
    pub async fn send_zc_for<B: Lend>(
        &self,
        buffer: B,
        term: Duration,
    ) -> Result<Sending<B>, SendError<B>> {
        self.0.send_zc_for_async(buffer, term).await
    }

    /// Waits until there is something to read: bytes, the end, or an error.
    ///
    /// # Errors
    /// None so far.
    pub async fn readable(&self) -> io::Result<()> {
        ready(Watched::Stream(self.0.clone()), Interest::READ).await
    }

    /// Waits until something can be written, or writing fails.
    ///
    /// # Errors
    /// None so far.
    pub async fn writable(&self) -> io::Result<()> {
        ready(Watched::Stream(self.0.clone()), Interest::WRITE).await
    }

    /// Reads what is there.
    ///
    /// # Errors
    /// `WouldBlock` if there is nothing; those of recv(2).
    pub fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        now(|cx| self.0.poll_read(cx, into))
    }

    /// Writes what there is room for.
    ///
    /// # Errors
    /// `WouldBlock` if there is none; those of send(2).
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        now(|cx| self.0.poll_write(cx, bytes))
    }

    /// Copies received bytes, which stay to be read.
    ///
    /// # Errors
    /// Those of recv(2).
    pub async fn peek(&self, into: &mut [u8]) -> io::Result<usize> {
        poll_fn(|cx| self.0.poll_peek(cx, into)).await
    }

    /// Our address.
    ///
    /// # Errors
    /// Those of getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// The peer's address.
    ///
    /// # Errors
    /// Those of getpeername(2).
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.0.peer_addr()
    }

    /// Whether small segments wait for ACKs.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.0.set_nodelay(nodelay)
    }

    /// Whether small segments wait for ACKs.
    ///
    /// # Errors
    /// Those of getsockopt(2).
    pub fn nodelay(&self) -> io::Result<bool> {
        self.0.nodelay()
    }

    /// Two halves, for two tasks. Dropping the one that writes ends that direction.
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        let stream = Arc::new(self);
        (OwnedReadHalf(stream.clone()), OwnedWriteHalf(stream))
    }
}

impl From<host::TcpStream> for TcpStream {
    fn from(stream: host::TcpStream) -> Self {
        Self(stream)
    }
}

/// The half of a connection that reads.
#[derive(Debug)]
pub struct OwnedReadHalf(Arc<TcpStream>);

impl OwnedReadHalf {
    /// The connection.
    pub fn as_stream(&self) -> &TcpStream {
        &self.0
    }
}

/// The half of a connection that writes. Dropping it ends that direction, as `shutdown` of tokio's
/// `AsyncWriteExt` does.
#[derive(Debug)]
pub struct OwnedWriteHalf(Arc<TcpStream>);

impl OwnedWriteHalf {
    /// The connection.
    pub fn as_stream(&self) -> &TcpStream {
        &self.0
    }
}

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        // A direction that has ended ends no more.
        let _ = self.0.0.shutdown(Shutdown::Write);
    }
}

macro_rules! reads {
    ($($kind:ty: $stream:expr),+) => {$(
        impl AsyncRead for $kind {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                into: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                let stream: &host::TcpStream = $stream(&*self);
                let read = stream.poll_read(cx, into.initialize_unfilled());
                read.map_ok(|count| into.advance(count))
            }
        }
    )+};
}

macro_rules! writes {
    ($($kind:ty: $stream:expr),+) => {$(
        impl AsyncWrite for $kind {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                let stream: &host::TcpStream = $stream(&*self);
                stream.poll_write(cx, bytes)
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                slices: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                let stream: &host::TcpStream = $stream(&*self);
                stream.poll_write_vectored(cx, slices)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                let stream: &host::TcpStream = $stream(&*self);
                Poll::Ready(stream.shutdown(Shutdown::Write))
            }
        }
    )+};
}

fn of_stream(stream: &TcpStream) -> &host::TcpStream {
    &stream.0
}

fn of_reader(half: &OwnedReadHalf) -> &host::TcpStream {
    &half.0.0
}

fn of_writer(half: &OwnedWriteHalf) -> &host::TcpStream {
    &half.0.0
}

reads!(TcpStream: of_stream, OwnedReadHalf: of_reader);
writes!(TcpStream: of_stream, OwnedWriteHalf: of_writer);

/// A TCP socket of a host that takes connections, for tasks.
#[derive(Debug)]
pub struct TcpListener(host::TcpListener);

impl TcpListener {
    /// Listens at an address of the host, or at all of them; port 0 chooses one. Of several
    /// addresses the first is taken that can be. [`host::TcpSocket`] has another backlog than 128.
    ///
    /// # Errors
    /// Those of bind(2) and listen(2).
    pub async fn bind(host: &Host, address: impl ToSocketAddrs) -> io::Result<Self> {
        host::TcpListener::bind(host, addresses(host, address).await?).map(Self)
    }

    /// The next connection, and the peer's address. Dropping the future loses no connection.
    ///
    /// # Errors
    /// Those of accept(2).
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// Takes the next connection, for futures made by hand. The waker of `cx` is woken when there
    /// may be one.
    ///
    /// # Errors
    /// Those of accept(2).
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        self.0.poll_accept(cx).map_ok(|(stream, peer)| (TcpStream(stream), peer))
    }

    /// The connections one after the other, as a stream without an end.
    pub fn into_incoming(self) -> Incoming {
        Incoming(self)
    }

    /// Where it listens.
    ///
    /// # Errors
    /// Those of getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// The socket, with its options. Its calls of the standard library's shape wait, which a task
    /// must not.
    pub fn as_host(&self) -> &host::TcpListener {
        &self.0
    }
}

impl From<host::TcpListener> for TcpListener {
    fn from(listener: host::TcpListener) -> Self {
        Self(listener)
    }
}

/// Connections as they are accepted: see [`TcpListener::into_incoming`].
#[derive(Debug)]
pub struct Incoming(TcpListener);

impl Stream for Incoming {
    type Item = io::Result<TcpStream>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_accept(cx).map(|accepted| Some(accepted.map(|(stream, _)| stream)))
    }
}

/// A UDP socket of a host, for tasks.
#[derive(Debug)]
pub struct UdpSocket(host::UdpSocket);

impl UdpSocket {
    /// A socket at an address of the host, or at all of them; port 0 chooses one. Of several
    /// addresses the first is taken that can be.
    ///
    /// # Errors
    /// Those of bind(2).
    pub async fn bind(host: &Host, address: impl ToSocketAddrs) -> io::Result<Self> {
        host::UdpSocket::bind(host, addresses(host, address).await?).map(Self)
    }

    /// Names the one peer.
    ///
    /// # Errors
    /// Those of connect(2).
    pub async fn connect(&self, remote: impl ToSocketAddrs) -> io::Result<()> {
        self.0.connect(addresses(self.0.host(), remote).await?)
    }

    /// Sends a datagram to `remote`; of several addresses, to the first. Waits while the device
    /// takes nothing.
    ///
    /// # Errors
    /// Those of sendto(2).
    pub async fn send_to(&self, bytes: &[u8], remote: impl ToSocketAddrs) -> io::Result<usize> {
        let remote = match remote.to_target()? {
            Target::Address(address) => address,
            target => *resolved(self.0.host(), target).await?.first().ok_or_else(no_address)?,
        };
        poll_fn(|cx| self.0.poll_send_to(cx, bytes, Some(remote))).await
    }

    /// Sends a datagram to the peer.
    ///
    /// # Errors
    /// Those of send(2).
    pub async fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        poll_fn(|cx| self.0.poll_send_to(cx, bytes, None)).await
    }

    /// Sends `buffer` as a datagram or several, as `send` says, lent or copied as the socket's
    /// [mode](host::UdpSocket::set_send_mode) says. What it returns waits until the memory is back.
    ///
    /// # Errors
    /// As [`host::UdpSocket::send_zc`]: the buffer is handed back.
    pub async fn send_zc<B: Lend>(
        &self,
        buffer: B,
        send: &SendTo,
    ) -> Result<Sending<B>, SendError<B>> {
        self.0.send_zc_async(buffer, send).await
    }

    /// Receives a datagram, and tells where it came from. What `into` has no room for is lost.
    ///
    /// # Errors
    /// Those of recvfrom(2).
    pub async fn recv_from(&self, into: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let told = poll_fn(|cx| self.0.poll_recv_from(cx, into)).await?;
        Ok((told.copied, told.from))
    }

    /// Receives a datagram of the peer. What `into` has no room for is lost.
    ///
    /// # Errors
    /// Those of recv(2).
    pub async fn recv(&self, into: &mut [u8]) -> io::Result<usize> {
        self.recv_from(into).await.map(|(count, _)| count)
    }

    /// As [`UdpSocket::recv_from`], but the datagram stays to be received.
    ///
    /// # Errors
    /// As there.
    pub async fn peek_from(&self, into: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let told = poll_fn(|cx| self.0.poll_peek_from(cx, into)).await?;
        Ok((told.copied, told.from))
    }

    /// Waits until there is a datagram, or an error.
    ///
    /// # Errors
    /// None so far.
    pub async fn readable(&self) -> io::Result<()> {
        ready(Watched::Datagram(self.0.clone()), Interest::READ).await
    }

    /// Our address.
    ///
    /// # Errors
    /// Those of getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// The peer's address.
    ///
    /// # Errors
    /// Those of getpeername(2).
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.0.peer_addr()
    }

    /// The socket, with its options. Its calls of the standard library's shape wait, which a task
    /// must not.
    pub fn as_host(&self) -> &host::UdpSocket {
        &self.0
    }
}

impl From<host::UdpSocket> for UdpSocket {
    fn from(socket: host::UdpSocket) -> Self {
        Self(socket)
    }
}

/// The addresses of a target.
async fn addresses(host: &Host, target: impl ToSocketAddrs) -> io::Result<Vec<SocketAddr>> {
    resolved(host, target.to_target()?).await
}

/// The addresses of a target. A name is resolved on a thread for what blocks.
async fn resolved(host: &Host, target: Target) -> io::Result<Vec<SocketAddr>> {
    let resolver = host.resolver().clone();
    match target {
        Target::Name(..) => {
            let resolving = tokio::task::spawn_blocking(move || resolver.resolve(target));
            resolving.await.map_err(io::Error::other)?
        }
        _ => resolver.resolve(target),
    }
}

/// Waits until some of `interest` holds.
async fn ready(socket: Watched, interest: Interest) -> io::Result<()> {
    let look = |cx: &mut Context<'_>| match socket.poll_ready(interest, cx.waker()).is_empty() {
        true => Poll::Pending,
        false => Poll::Ready(Ok(())),
    };
    poll_fn(look).await
}

/// What a call comes to that does not wait.
fn now<T>(poll: impl FnOnce(&mut Context<'_>) -> Poll<io::Result<T>>) -> io::Result<T> {
    match poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}
