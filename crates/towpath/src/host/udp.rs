//! Datagram sockets.

use super::core::{Now, State};
use super::shape::Shape;
use super::wait::block;
use super::{Host, family, io_error, would_block};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use towpath_net::socket::{Error, Options, ReceivedDatagram, SendTo, SocketId};

/// A UDP socket, in the shape of [`std::net::UdpSocket`].
pub struct UdpSocket {
    inner: Arc<Inner>,
}

struct Inner {
    host: Host,
    id: SocketId,
    shape: Shape,
}

impl UdpSocket {
    /// Binds to an address of the host, or to all of them; port 0 chooses one.
    pub fn bind(host: &Host, address: SocketAddr) -> io::Result<Self> {
        let id = host.owner.core.call(|state, now| {
            let id = state.sockets.datagram(family(address))?;
            let bound = state.sockets.bind(id, address);
            match bound {
                Ok(()) => state.add(id, None),
                Err(_) => state.close(id, now.now),
            }
            bound.map(|()| id)
        });
        let (host, id) = (host.clone(), id.map_err(io_error)?);
        Ok(Self { inner: Arc::new(Inner { host, id, shape: Shape::default() }) })
    }

    /// Names the one peer.
    pub fn connect(&self, remote: SocketAddr) -> io::Result<()> {
        let id = self.inner.id;
        let connect =
            |state: &mut State, now: &mut Now<'_>| state.sockets.connect(id, remote, now.now);
        self.inner.host.owner.core.call(connect).map_err(io_error)
    }

    /// Sends a datagram to `remote`. Waits while the device takes nothing.
    pub fn send_to(&self, bytes: &[u8], remote: SocketAddr) -> io::Result<usize> {
        let sent =
            block(self.inner.shape.write_wait(), |cx| self.poll_send_to(cx, bytes, Some(remote)));
        sent.unwrap_or_else(|| Err(would_block()))
    }

    /// Sends a datagram to the peer.
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        let wait = self.inner.shape.write_wait();
        let sent = block(wait, |cx| self.poll_send_to(cx, bytes, None));
        sent.unwrap_or_else(|| Err(would_block()))
    }

    /// The same for futures: to `remote`, or else to the peer.
    pub fn poll_send_to(
        &self,
        cx: &mut Context<'_>,
        bytes: &[u8],
        remote: Option<SocketAddr>,
    ) -> Poll<io::Result<usize>> {
        let id = self.inner.id;
        let send = SendTo { to: remote, ..SendTo::default() };
        let sent = self.inner.host.owner.core.call(|state, now| {
            let sent =
                state.with(now, |sockets, _, cx| sockets.send_datagram(id, &[bytes], &send, cx));
            if sent == Err(Error::WouldBlock) {
                state.entry(id).writers.add(cx.waker());
            }
            sent
        });
        ready(sent)
    }

    /// Receives a datagram, and tells where it came from. What `into` has no room for is lost.
    pub fn recv_from(&self, into: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receive(into, false)
    }

    /// The same of a socket with a peer.
    pub fn recv(&self, into: &mut [u8]) -> io::Result<usize> {
        Ok(self.receive(into, false)?.0)
    }

    /// As [`UdpSocket::recv_from`], but the datagram stays to be received.
    pub fn peek_from(&self, into: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receive(into, true)
    }

    fn receive(&self, into: &mut [u8], peek: bool) -> io::Result<(usize, SocketAddr)> {
        let wait = self.inner.shape.read_wait();
        let received = block(wait, |cx| self.poll_receive(cx, into, peek));
        let received = received.unwrap_or_else(|| Err(would_block()))?;
        Ok((received.copied, received.from))
    }

    /// As [`UdpSocket::recv_from`], for futures; tells more.
    pub fn poll_recv_from(
        &self,
        cx: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<ReceivedDatagram>> {
        self.poll_receive(cx, into, false)
    }

    fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        into: &mut [u8],
        peek: bool,
    ) -> Poll<io::Result<ReceivedDatagram>> {
        let id = self.inner.id;
        let core = &self.inner.host.owner.core;
        let received = core.call(|state, _| {
            let into = &mut [into];
            let received = state.sockets.receive_datagram(id, into, peek, &core.ledger);
            if received == Err(Error::WouldBlock) {
                state.entry(id).readers.add(cx.waker());
            }
            received
        });
        ready(received)
    }

    /// Our address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.host.owner.core.lock().sockets.local(self.inner.id).map_err(io_error)
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.inner.host.owner.core.lock().sockets.remote(self.inner.id).map_err(io_error)
    }

    /// The pending error.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        let error = self.inner.host.owner.core.lock().sockets.take_error(self.inner.id);
        Ok(error.map_err(io_error)?.map(io_error))
    }

    /// Options, as they are.
    pub fn options(&self) -> io::Result<Options> {
        let options = self.inner.host.owner.core.lock().sockets.options(self.inner.id).copied();
        options.map_err(io_error)
    }

    /// Changes options.
    pub fn set_options(&self, change: impl FnOnce(&mut Options)) -> io::Result<()> {
        let id = self.inner.id;
        let core = &self.inner.host.owner.core;
        core.call(|state, now| state.sockets.set_options(id, now.now, change)).map_err(io_error)
    }

    /// How long a call that receives waits; `None` for as long as it takes.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.inner.shape.set_read_timeout(timeout)
    }

    /// How long a call that sends waits; `None` for as long as it takes.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.inner.shape.set_write_timeout(timeout)
    }

    /// Whether calls fail instead of waiting.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.inner.shape.set_nonblocking(nonblocking);
        Ok(())
    }

    /// Another handle of the same socket.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { inner: self.inner.clone() })
    }
}

fn ready<T>(result: Result<T, Error>) -> Poll<io::Result<T>> {
    match result {
        Err(Error::WouldBlock) => Poll::Pending,
        result => Poll::Ready(result.map_err(io_error)),
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.host.owner.core.call(|state, now| state.close(self.id, now.now));
    }
}

impl fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UdpSocket").field("address", &self.local_addr().ok()).finish()
    }
}
