//! Listening TCP sockets.

use crate::host::sockets::readiness::readiness;
use crate::host::sockets::settings::Shape;
use crate::host::sockets::stream::TcpStream;
use crate::host::wait::block;
use crate::host::{Host, io_error, would_block};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use towpath_io::events::Readiness;
use towpath_net::socket::{Error, Options, SocketId};

/// A listening TCP socket, shaped like [`std::net::TcpListener`].
#[derive(Clone)]
pub struct TcpListener {
    inner: Arc<Inner>,
}

struct Inner {
    host: Host,
    id: SocketId,
    shape: Shape,
}

impl TcpListener {
    /// Wraps a listening socket that is in the host's table.
    pub(in crate::host) fn new(host: Host, id: SocketId) -> Self {
        Self { inner: Arc::new(Inner { host, id, shape: Shape::default() }) }
    }

    /// Accepts a connection and returns it with the peer's address. Blocks until there is one.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let accepted = block(self.inner.shape.read_wait(), |cx| self.poll_accept(cx));
        accepted.unwrap_or_else(|| Err(would_block()))
    }

    /// Accepts a connection like [`TcpListener::accept`], as a future.
    pub async fn accept_async(&self) -> io::Result<(TcpStream, SocketAddr)> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// Accepts a connection like [`TcpListener::accept`], for hand-written futures.
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let Inner { host, id, .. } = &*self.inner;
        let accepted =
            host.owner.core.call(|state, now| match state.engine.protocols.accept(*id, now) {
                Err(Error::WouldBlock) => {
                    state.entry(*id).readers.add(cx.waker());
                    Poll::Pending
                }
                Err(error) => Poll::Ready(Err(io_error(error))),
                Ok((id, remote)) => {
                    let queue = TcpStream::queue(host, id);
                    state.add(id, Some(queue.clone()));
                    Poll::Ready(Ok((queue, remote)))
                }
            });
        // Not under the lock, because dropping a socket takes it.
        accepted.map_ok(|(queue, remote)| (TcpStream::new(host.clone(), queue), remote))
    }

    /// Returns the current readiness. `waker` is woken when there is something new.
    pub(in crate::host) fn poll_ready(&self, waker: &Waker) -> Readiness {
        let Inner { host, id, .. } = &*self.inner;
        let mut state = host.owner.core.lock();
        state.entry(*id).readers.add(waker);
        readiness(state.engine.protocols.readiness(*id))
    }

    /// Returns an iterator that accepts connections.
    pub fn incoming(&self) -> impl Iterator<Item = io::Result<TcpStream>> + '_ {
        std::iter::repeat_with(|| self.accept().map(|(stream, _)| stream))
    }

    /// Returns the address it listens at.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.host.owner.core.lock().engine.protocols.local(self.inner.id).map_err(io_error)
    }

    /// Returns the current options.
    ///
    /// # Errors
    /// The errors of getsockopt(2).
    pub fn options(&self) -> io::Result<Options> {
        let state = self.inner.host.owner.core.lock();
        state.engine.protocols.options(self.inner.id).copied().map_err(io_error)
    }

    /// Changes options. Connections accepted from now on inherit most of them.
    ///
    /// # Errors
    /// The errors of setsockopt(2).
    pub fn set_options(&self, change: impl FnOnce(&mut Options)) -> io::Result<()> {
        let Inner { host, id, .. } = &*self.inner;
        let core = &host.owner.core;
        core.call(|state, now| state.engine.protocols.set_options(*id, now, change))
            .map_err(io_error)
    }

    /// Sets `TCP_NODELAY` for connections accepted from now on.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.set_options(|options| options.nodelay = nodelay)
    }

    /// Sets whether calls fail with `WouldBlock` instead of blocking.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.inner.shape.set_nonblocking(nonblocking);
        Ok(())
    }

    /// Returns another handle to the socket.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(self.clone())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.host.owner.core.call(|state, now| state.close(self.id, now));
    }
}

impl fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpListener").field("address", &self.local_addr().ok()).finish()
    }
}
