//! Sockets that take connections.

use crate::host::sockets::shape::Shape;
use crate::host::sockets::stream::TcpStream;
use crate::host::sockets::watch::readiness;
use crate::host::wait::block;
use crate::host::{Host, family, io_error, would_block};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use towpath_io::events::Readiness;
use towpath_net::socket::{Error, SocketId};

/// Connections that may wait to be accepted, as in the standard library.
const BACKLOG: i32 = 128;

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
    /// Listens at an address of the host, or at all of them; port 0 chooses one.
    pub fn bind(host: &Host, address: SocketAddr) -> io::Result<Self> {
        let core = &host.owner.core;
        let id = core.call(|state, now| {
            let id = state.engine.protocols.stream(family(address))?;
            let reuse = |options: &mut towpath_net::socket::Options| options.reuse_address = true;
            let listens = state
                .engine
                .protocols
                .set_options(id, now, reuse)
                .and_then(|()| state.engine.protocols.bind(id, address))
                .and_then(|()| state.engine.protocols.listen(id, BACKLOG, now));
            match listens {
                Ok(()) => state.add(id, None),
                Err(_) => state.close(id, now),
            }
            listens.map(|()| id)
        });
        let (host, id) = (host.clone(), id.map_err(io_error)?);
        Ok(Self { inner: Arc::new(Inner { host, id, shape: Shape::default() }) })
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

    /// Whether small segments of connections that are accepted from now on wait for ACKs.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        let Inner { host, id, .. } = &*self.inner;
        let change = |options: &mut towpath_net::socket::Options| options.nodelay = nodelay;
        let core = &host.owner.core;
        core.call(|state, now| state.engine.protocols.set_options(*id, now, change))
            .map_err(io_error)
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
