//! Sockets of hosts for tokio tasks, shaped like tokio's. They never block a task, and their
//! methods do not conflict with tokio's traits.
//!
//! They work under any runtime, because they only need wakers; tokio's own I/O driver is not used.
//! Each is a handle of a socket of [`host`], which [`TcpStream::as_host`] and similar methods
//! return: use it for options, sends that lend, and everything that tokio has no counterpart for.
//! Names, unlike addresses, are resolved on tokio's thread pool for blocking work, which needs a
//! tokio runtime.
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
//! Features let other crates use these sockets directly:
//!
//! | feature | effect |
//! |---|---|
//! | `hyper-util` | adds `Connector`, which connects clients of hyper-util through a host |
//! | `axum` | [`TcpListener`] is a listener of `axum::serve` |
//! | `tonic` | servers of tonic accept [`TcpStream`]; its clients accept the `Connector` |

#[cfg(feature = "axum")]
mod axum;
#[cfg(feature = "hyper-util")]
mod hyper;
#[cfg(feature = "tonic")]
mod tonic;

#[cfg(feature = "hyper-util")]
pub use self::hyper::{ConnectError, Connecting, Connector};

use crate::host::resolver::no_address;
use crate::host::sockets::readiness::Watched;
use crate::host::{
    self, Chain, Completions, Host, Lend, SendError, SendTo, Sending, Target, ToSocketAddrs,
};
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

/// A TCP connection of a host, for tasks. Dropping it closes it: data already written is still
/// sent.
#[derive(Debug)]
pub struct TcpStream(host::TcpStream);

impl TcpStream {
    /// Connects. Several addresses are tried in order. Dropping the future aborts the attempt.
    ///
    /// # Errors
    /// The errors of connect(2) for the address tried last; errors of the host's
    /// [resolver](host::Resolver).
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

    /// Returns the underlying socket, for options and everything that tokio has no counterpart for.
    /// Its methods shaped like the standard library's block, so a task must not call them.
    pub fn as_host(&self) -> &host::TcpStream {
        &self.0
    }

    /// Sends `buffer`, lent or copied according to the socket's
    /// [mode](host::TcpStream::set_send_mode). The future is ready when the buffer is accepted; the
    /// returned [`Sending`] is ready when its memory is back.
    ///
    /// # Errors
    /// The errors of [`host::TcpStream::send_zc`]. The buffer is handed back.
    pub async fn send_zc<B: Lend>(&self, buffer: B) -> Result<Sending<B>, SendError<B>> {
        self.0.send_zc_async(buffer).await
    }

    /// Sends `buffer` like [`TcpStream::send_zc`], with a term for this call, after which the
    /// memory comes back, if necessary copied.
    ///
    /// # Errors
    /// The errors of [`host::TcpStream::send_zc`]. The buffer is handed back.
    pub async fn send_zc_for<B: Lend>(
        &self,
        buffer: B,
        term: Duration,
    ) -> Result<Sending<B>, SendError<B>> {
        self.0.send_zc_for_async(buffer, term).await
    }

    /// Sends the buffers of `chain`, one after the other, in one call; each comes back on its own:
    /// [`host::TcpStream::send_zc_each`]. The future is ready when the chain is accepted.
    ///
    /// # Errors
    /// The errors of [`host::TcpStream::send_zc`]. The chain is handed back.
    pub async fn send_zc_each<B: Lend>(
        &self,
        chain: Chain<B>,
    ) -> Result<Completions<B>, SendError<Chain<B>>> {
        self.0.send_zc_each_async(chain).await
    }

    /// Waits until the stream is readable: there are bytes, the end, or an error.
    ///
    /// # Errors
    /// None at present.
    pub async fn readable(&self) -> io::Result<()> {
        ready(Watched::Stream(self.0.clone()), Interest::READ).await
    }

    /// Waits until the stream is writable, or writing would fail.
    ///
    /// # Errors
    /// None at present.
    pub async fn writable(&self) -> io::Result<()> {
        ready(Watched::Stream(self.0.clone()), Interest::WRITE).await
    }

    /// Reads available bytes, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if there are none; errors of recv(2).
    pub fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        now(|cx| self.0.poll_read(cx, into))
    }

    /// Writes as much as there is room for, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room; errors of send(2).
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        now(|cx| self.0.poll_write(cx, bytes))
    }

    /// Copies received bytes into `into` and leaves them in the stream.
    ///
    /// # Errors
    /// The errors of recv(2).
    pub async fn peek(&self, into: &mut [u8]) -> io::Result<usize> {
        poll_fn(|cx| self.0.poll_peek(cx, into)).await
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// The errors of getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Returns the peer's address.
    ///
    /// # Errors
    /// The errors of getpeername(2).
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.0.peer_addr()
    }

    /// Sets `TCP_NODELAY`: true sends small segments at once instead of waiting for ACKs.
    ///
    /// # Errors
    /// The errors of setsockopt(2).
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.0.set_nodelay(nodelay)
    }

    /// Returns `TCP_NODELAY`.
    ///
    /// # Errors
    /// The errors of getsockopt(2).
    pub fn nodelay(&self) -> io::Result<bool> {
        self.0.nodelay()
    }

    /// Splits the connection into two halves, for two tasks. Dropping the write half shuts down
    /// writing.
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

/// The read half of a connection.
#[derive(Debug)]
pub struct OwnedReadHalf(Arc<TcpStream>);

impl OwnedReadHalf {
    /// Returns the connection.
    pub fn as_stream(&self) -> &TcpStream {
        &self.0
    }
}

/// The write half of a connection. Dropping it shuts down writing, like `shutdown` of tokio's
/// `AsyncWriteExt`.
#[derive(Debug)]
pub struct OwnedWriteHalf(Arc<TcpStream>);

impl OwnedWriteHalf {
    /// Returns the connection.
    pub fn as_stream(&self) -> &TcpStream {
        &self.0
    }
}

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        // Fails only if the direction is already shut down.
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

/// A listening TCP socket of a host, for tasks.
#[derive(Debug)]
pub struct TcpListener(host::TcpListener);

impl TcpListener {
    /// Listens at an address of the host, or at all of them; port 0 picks a free port. Of several
    /// addresses, the first that can be bound is used. Use [`host::TcpSocket`] for another backlog
    /// than 128.
    ///
    /// # Errors
    /// The errors of bind(2) and listen(2).
    pub async fn bind(host: &Host, address: impl ToSocketAddrs) -> io::Result<Self> {
        host::TcpListener::bind(host, addresses(host, address).await?).map(Self)
    }

    /// Accepts a connection and returns it with the peer's address. Dropping the future loses no
    /// connection.
    ///
    /// # Errors
    /// The errors of accept(2).
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// Accepts a connection, for hand-written futures. The waker of `cx` is woken when there may be
    /// one.
    ///
    /// # Errors
    /// The errors of accept(2).
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        self.0.poll_accept(cx).map_ok(|(stream, peer)| (TcpStream(stream), peer))
    }

    /// Returns an endless stream of accepted connections.
    pub fn into_incoming(self) -> Incoming {
        Incoming(self)
    }

    /// Returns the address it listens at.
    ///
    /// # Errors
    /// The errors of getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Returns the underlying socket, for options. Its methods shaped like the standard library's
    /// block, so a task must not call them.
    pub fn as_host(&self) -> &host::TcpListener {
        &self.0
    }
}

impl From<host::TcpListener> for TcpListener {
    fn from(listener: host::TcpListener) -> Self {
        Self(listener)
    }
}

/// Stream of accepted connections: see [`TcpListener::into_incoming`].
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
    /// Binds to an address of the host, or to all of them; port 0 picks a free port. Of several
    /// addresses, the first that can be bound is used.
    ///
    /// # Errors
    /// The errors of bind(2).
    pub async fn bind(host: &Host, address: impl ToSocketAddrs) -> io::Result<Self> {
        host::UdpSocket::bind(host, addresses(host, address).await?).map(Self)
    }

    /// Connects the socket to one peer.
    ///
    /// # Errors
    /// The errors of connect(2).
    pub async fn connect(&self, remote: impl ToSocketAddrs) -> io::Result<()> {
        self.0.connect(addresses(self.0.host(), remote).await?)
    }

    /// Sends a datagram to `remote`; of several addresses, to the first. Waits while the device
    /// accepts nothing.
    ///
    /// # Errors
    /// The errors of sendto(2).
    pub async fn send_to(&self, bytes: &[u8], remote: impl ToSocketAddrs) -> io::Result<usize> {
        let remote = match remote.to_target()? {
            Target::Address(address) => address,
            target => *resolved(self.0.host(), target).await?.first().ok_or_else(no_address)?,
        };
        poll_fn(|cx| self.0.poll_send_to(cx, bytes, Some(remote))).await
    }

    /// Sends a datagram to the connected peer.
    ///
    /// # Errors
    /// The errors of send(2).
    pub async fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        poll_fn(|cx| self.0.poll_send_to(cx, bytes, None)).await
    }

    /// Sends `buffer` as one or several datagrams with the options of `send`, lent or copied
    /// according to the socket's [mode](host::UdpSocket::set_send_mode). The returned [`Sending`]
    /// is ready when the memory is back.
    ///
    /// # Errors
    /// The errors of [`host::UdpSocket::send_zc`]. The buffer is handed back.
    pub async fn send_zc<B: Lend>(
        &self,
        buffer: B,
        send: &SendTo,
    ) -> Result<Sending<B>, SendError<B>> {
        self.0.send_zc_async(buffer, send).await
    }

    /// Receives a datagram and returns its source address. Bytes that do not fit into `into` are
    /// lost.
    ///
    /// # Errors
    /// The errors of recvfrom(2).
    pub async fn recv_from(&self, into: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let reported = poll_fn(|cx| self.0.poll_recv_from(cx, into)).await?;
        Ok((reported.copied, reported.from))
    }

    /// Receives a datagram from the connected peer. Bytes that do not fit into `into` are lost.
    ///
    /// # Errors
    /// The errors of recv(2).
    pub async fn recv(&self, into: &mut [u8]) -> io::Result<usize> {
        self.recv_from(into).await.map(|(count, _)| count)
    }

    /// Copies the next datagram like [`UdpSocket::recv_from`], and leaves it in the queue.
    ///
    /// # Errors
    /// The errors of [`UdpSocket::recv_from`].
    pub async fn peek_from(&self, into: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let reported = poll_fn(|cx| self.0.poll_peek_from(cx, into)).await?;
        Ok((reported.copied, reported.from))
    }

    /// Waits until there is a datagram or an error.
    ///
    /// # Errors
    /// None at present.
    pub async fn readable(&self) -> io::Result<()> {
        ready(Watched::Datagram(self.0.clone()), Interest::READ).await
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// The errors of getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Returns the address of the connected peer.
    ///
    /// # Errors
    /// The errors of getpeername(2).
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.0.peer_addr()
    }

    /// Returns the underlying socket, for options. Its methods shaped like the standard library's
    /// block, so a task must not call them.
    pub fn as_host(&self) -> &host::UdpSocket {
        &self.0
    }
}

impl From<host::UdpSocket> for UdpSocket {
    fn from(socket: host::UdpSocket) -> Self {
        Self(socket)
    }
}

/// Returns the addresses of a target.
async fn addresses(host: &Host, target: impl ToSocketAddrs) -> io::Result<Vec<SocketAddr>> {
    resolved(host, target.to_target()?).await
}

/// Returns the addresses of a target. Names are resolved on tokio's thread pool for blocking work.
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

/// Waits until any condition of `interest` holds.
async fn ready(socket: Watched, interest: Interest) -> io::Result<()> {
    let look = |cx: &mut Context<'_>| match socket.poll_ready(interest, cx.waker()).is_empty() {
        true => Poll::Pending,
        false => Poll::Ready(Ok(())),
    };
    poll_fn(look).await
}

/// Polls once and returns `WouldBlock` instead of waiting.
fn now<T>(poll: impl FnOnce(&mut Context<'_>) -> Poll<io::Result<T>>) -> io::Result<T> {
    match poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}
