//! Sockets that take connections.

use crate::host::sockets::shape::Shape;
use crate::host::sockets::stream::TcpStream;
use crate::host::sockets::watch::readiness;
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

/// A TCP socket that takes connections, in the shape of [`std::net::TcpListener`].
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
    /// The owner of a socket that listens, and is in the host's table.
    pub(in crate::host) fn new(host: Host, id: SocketId) -> Self {
        Self { inner: Arc::new(Inner { host, id, shape: Shape::default() }) }
    }

    /// The next connection, and the peer's address. Waits for one.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let accepted = block(self.inner.shape.read_wait(), |cx| self.poll_accept(cx));
        accepted.unwrap_or_else(|| Err(would_block()))
    }

    /// The same for tasks.
    pub async fn accept_async(&self) -> io::Result<(TcpStream, SocketAddr)> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// The same for futures made by hand.
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
        // Outside of the lock: a socket that is dropped takes it.
        accepted.map_ok(|(queue, remote)| (TcpStream::new(host.clone(), queue), remote))
    }

    /// What holds now. `waker` is woken when there is something new.
    pub(in crate::host) fn poll_ready(&self, waker: &Waker) -> Readiness {
        let Inner { host, id, .. } = &*self.inner;
        let mut state = host.owner.core.lock();
        state.entry(*id).readers.add(waker);
        readiness(state.engine.protocols.readiness(*id))
    }

    /// The connections one after the other.
    pub fn incoming(&self) -> impl Iterator<Item = io::Result<TcpStream>> + '_ {
        std::iter::repeat_with(|| self.accept().map(|(stream, _)| stream))
    }

    /// Where it listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.host.owner.core.lock().engine.protocols.local(self.inner.id).map_err(io_error)
    }

    /// Options, as they are.
    ///
    /// # Errors
    /// Those of getsockopt(2).
    pub fn options(&self) -> io::Result<Options> {
        let state = self.inner.host.owner.core.lock();
        state.engine.protocols.options(self.inner.id).copied().map_err(io_error)
    }

    /// Changes options. Connections that are accepted from now on begin with most of them.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    pub fn set_options(&self, change: impl FnOnce(&mut Options)) -> io::Result<()> {
        let Inner { host, id, .. } = &*self.inner;
        let core = &host.owner.core;
        core.call(|state, now| state.engine.protocols.set_options(*id, now, change))
            .map_err(io_error)
    }

    /// Whether small segments of connections that are accepted from now on wait for ACKs.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.set_options(|options| options.nodelay = nodelay)
    }

    /// Whether calls fail instead of waiting.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.inner.shape.set_nonblocking(nonblocking);
        Ok(())
    }

    /// Another handle of the same socket.
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
