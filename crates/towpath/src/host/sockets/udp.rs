//! Datagram sockets.

mod going;
mod multicast;
mod options;

use crate::host::choosing::auto::Choice;
use crate::host::choosing::mode::{Mode, SendMode};
use crate::host::core::State;
use crate::host::core::send_queue::Crowded;
use crate::host::lending::budget::Budget;
use crate::host::lending::lend::{Lend, stretches};
use crate::host::lending::queue::{DATAGRAMS_QUEUED_MAX, LENT_OVERHEAD, SendQueue, work_of};
use crate::host::lending::sending::{SendError, Sending};
use crate::host::lending::ticket::Ticket;
use crate::host::resolver::{Target, ToSocketAddrs, first_of, no_address};
use crate::host::sockets::readiness::readiness;
use crate::host::sockets::settings::Shape;
use crate::host::wait::block;
use crate::host::{Host, family, io_error, would_block};
pub(crate) use going::Going;
use going::Progress;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use towpath_io::events::{Interest, Readiness};
use towpath_net::socket::{Error, ReadMost, ReceivedDatagram, SendTo, SocketId, Sockets};
use towpath_net::stack;
use towpath_net::time::Instant;
use towpath_packet::ReceivedPiece;
use towpath_packet::packet::PIECES_MAX;

/// While a socket has lent at most this many bytes, enough for several datagrams, a call hands its
/// datagrams to the stack itself. Beyond that the worker does: waking it costs less than doing all
/// that work, and it needs no wake-up while calls come faster than it works.
const DIRECT_MAX: usize = 128 << 10;
/// Largest part of a queue that one buffer may take to be left to the worker. Larger buffers would
/// make a program sleep and wake up every few calls, and the cost of a direct call is small
/// compared with that of its many datagrams.
const QUEUED_EACH_MAX: usize = DATAGRAMS_QUEUED_MAX / 8;

/// A UDP socket, shaped like [`std::net::UdpSocket`].
#[derive(Clone)]
pub struct UdpSocket {
    inner: Arc<Inner>,
}

struct Inner {
    host: Host,
    id: SocketId,
    shape: Shape,
    mode: Mode,
    /// Holds lent buffers on their way to the worker.
    queue: Arc<SendQueue>,
}

impl UdpSocket {
    /// Binds to an address of the host, or to all of them; port 0 picks a free port. Of several
    /// addresses, the first that can be bound is used.
    ///
    /// # Errors
    /// The errors of bind(2).
    pub fn bind(host: &Host, address: impl ToSocketAddrs) -> io::Result<Self> {
        let open = |address| Self::open(host, Some(address), |own| own.datagram(family(address)));
        first_of(host.resolver(), address, open)
    }

    /// Opens a socket with `make` and binds it if there is an address.
    pub(in crate::host) fn open(
        host: &Host,
        address: Option<SocketAddr>,
        make: impl FnOnce(&mut Sockets) -> Result<SocketId, Error>,
    ) -> io::Result<Self> {
        let queue = host.owner.core.call(|state, now| {
            let id = make(&mut state.engine.protocols)?;
            if let Some(Err(error)) =
                address.map(|address| state.engine.protocols.bind(id, address))
            {
                state.close(id, now);
                return Err(error);
            }
            let queue = Arc::new(SendQueue::for_datagrams(id, host.account(id, Budget::new)));
            state.add(id, Some(queue.clone()));
            Ok(queue)
        });
        let (host, queue) = (host.clone(), queue.map_err(io_error)?);
        let (id, shape, mode) = (queue.id, Shape::default(), Mode::new());
        Ok(Self { inner: Arc::new(Inner { host, id, shape, mode, queue }) })
    }

    /// Calls `act` with the socket. Queued datagrams are sent first, with the options of their
    /// calls.
    pub(in crate::host) fn with_sockets<T>(
        &self,
        act: impl FnOnce(&mut Sockets, SocketId, Instant) -> T,
    ) -> T {
        let Inner { id, queue, host, .. } = &*self.inner;
        host.owner.core.call_to_send(|state, now| {
            queue.shut();
            // Only as far as there is room: the rest keeps the options of its call.
            let _ = state.drain_datagrams(queue, now);
            act(&mut state.engine.protocols, *id, now)
        })
    }

    /// Calls `look` with the socket.
    pub(in crate::host) fn with_state<T>(&self, look: impl FnOnce(&Sockets, SocketId) -> T) -> T {
        look(&self.inner.host.owner.core.lock().engine.protocols, self.inner.id)
    }

    pub(crate) fn host(&self) -> &Host {
        &self.inner.host
    }

    /// Connects the socket to one peer.
    ///
    /// # Errors
    /// The errors of connect(2).
    pub fn connect(&self, remote: impl ToSocketAddrs) -> io::Result<()> {
        let Inner { id, queue, host, .. } = &*self.inner;
        first_of(host.resolver(), remote, |remote| {
            let connect = |state: &mut State, now: Instant| {
                queue.shut();
                state.engine.protocols.connect(*id, remote, now)
            };
            host.owner.core.call(connect).map_err(io_error)
        })
    }

    /// Sends a datagram to `remote`. Blocks while the device accepts nothing. Of several addresses,
    /// the first is used.
    ///
    /// # Errors
    /// The errors of sendto(2).
    pub fn send_to(&self, bytes: &[u8], remote: impl ToSocketAddrs) -> io::Result<usize> {
        let to = match remote.to_target()? {
            Target::Address(address) => Some(address),
            target => self.inner.host.resolver().resolve(target)?.first().copied(),
        };
        let to = Some(to.ok_or_else(no_address)?);
        self.send_with(bytes, &SendTo { to, ..SendTo::default() })
    }

    /// Sends a datagram to the connected peer.
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.send_with(bytes, &SendTo::default())
    }

    /// Sends a datagram with the options of `send`.
    pub(in crate::host) fn send_with(&self, bytes: &[u8], send: &SendTo) -> io::Result<usize> {
        let wait = self.inner.shape.write_wait();
        let sent = block(wait, |cx| self.poll_copy(cx, |_| [bytes], send, false));
        sent.unwrap_or_else(|| Err(would_block()))
    }

    /// Sends a datagram to `remote`, or to the connected peer if it is `None`, as a future.
    ///
    /// # Errors
    /// The errors of sendto(2).
    pub async fn send_to_async(
        &self,
        bytes: &[u8],
        remote: Option<SocketAddr>,
    ) -> io::Result<usize> {
        poll_fn(|cx| self.poll_send_to(cx, bytes, remote)).await
    }

    /// Sends a datagram to `remote`, or to the connected peer if it is `None`, for hand-written
    /// futures.
    pub fn poll_send_to(
        &self,
        cx: &mut Context<'_>,
        bytes: &[u8],
        remote: Option<SocketAddr>,
    ) -> Poll<io::Result<usize>> {
        self.poll_copy(cx, |_| [bytes], &SendTo { to: remote, ..SendTo::default() }, false)
    }

    /// Copies buffers into one datagram. `buffers` is called with the largest number of bytes that
    /// can go together and returns the buffers. If `continues` and an error is pending, nothing is
    /// copied: the next call returns the error.
    fn poll_copy<'a, T: AsRef<[&'a [u8]]>>(
        &self,
        cx: &mut Context<'_>,
        buffers: impl FnOnce(usize) -> T,
        send: &SendTo,
        continues: bool,
    ) -> Poll<io::Result<usize>> {
        let Inner { id, queue, host, .. } = &*self.inner;
        let sent = host.owner.core.call_to_send(|state, now| {
            if continues && state.engine.protocols.has_error(*id) {
                return Ok(0);
            }
            let most = state.engine.protocols.datagrams_max(*id, send)?;
            let sent = state.drain_datagrams(queue, now).and_then(|()| {
                let buffers = buffers(most);
                let buffers = buffers.as_ref();
                state.engine.with(now, |sockets, cx| sockets.send_datagram(*id, buffers, send, cx))
            });
            if sent == Err(Error::WouldBlock) {
                state.entry(*id).writers.add(cx.waker());
            }
            sent
        });
        ready(sent)
    }

    /// Sends `buffer` as a datagram to the connected peer. A lent buffer comes back through the
    /// returned [`Sending`] when the datagram has left the host, which says nothing about its
    /// delivery, or when its term is over; the call blocks until the budgets of lent bytes have
    /// room. A copied buffer ([`SendMode`]) is back at once. Either way the call blocks while the
    /// device accepts nothing.
    ///
    /// With a segment size ([`SendTo::segment_size`], or the socket's option) the buffer is sent as
    /// datagrams of that size, and may be longer than one datagram: any number of datagrams cost
    /// one call, one or a few loans, and one return. In a [`Chain`](crate::host::Chain) of buffers
    /// of that size, each buffer is a datagram. A non-blocking call may accept only the first
    /// datagrams: see [`Sending::accepted`].
    ///
    /// # Errors
    /// The errors of [`UdpSocket::send`]. A datagram that is lent in more than
    /// [`LENT_RANGES_MAX`](towpath_net::socket::LENT_RANGES_MAX) parts is also too long. The buffer
    /// is handed back. If some datagrams have been accepted before the error, the next call returns
    /// it.
    ///
    /// A buffer that is being sent cannot be used:
    ///
    /// ```compile_fail,E0382
    /// # use towpath::host::UdpSocket;
    /// fn send(socket: &UdpSocket) {
    ///     let mut buffer = vec![0; 1000];
    ///     let sending = socket.send_zc(buffer);
    ///     buffer[0] = 1;
    /// }
    /// ```
    pub fn send_zc<B: Lend>(&self, buffer: B) -> Result<Sending<B>, SendError<B>> {
        self.send_zc_with(buffer, &SendTo::default())
    }

    /// Sends `buffer` to `remote`, like [`UdpSocket::send_zc`].
    pub fn send_zc_to<B: Lend>(
        &self,
        buffer: B,
        remote: SocketAddr,
    ) -> Result<Sending<B>, SendError<B>> {
        self.send_zc_with(buffer, &SendTo { to: Some(remote), ..SendTo::default() })
    }

    /// Sends `buffer` like [`UdpSocket::send_zc`], with the options of `send`, such as the size of
    /// datagrams ([`SendTo::segment_size`]) and a term of its own ([`SendTo::term`]).
    pub fn send_zc_with<B: Lend>(
        &self,
        buffer: B,
        send: &SendTo,
    ) -> Result<Sending<B>, SendError<B>> {
        let mut going = Going::new(self, buffer, send);
        let wait = self.inner.shape.write_wait();
        let sent = block(wait, |cx| self.poll_send_zc(cx, &mut going));
        sent.unwrap_or_else(|| going.stop(would_block()))
    }

    /// Sends `buffer` like [`UdpSocket::send_zc_with`], as a future. Dropping the future before it
    /// is ready stops the send; the buffer is freed once no part of it is lent.
    pub async fn send_zc_async<B: Lend>(
        &self,
        buffer: B,
        send: &SendTo,
    ) -> Result<Sending<B>, SendError<B>> {
        let mut going = Going::new(self, buffer, send);
        poll_fn(|cx| self.poll_send_zc(cx, &mut going)).await
    }

    /// Sends the buffer, which is moved out when there is a result.
    pub(in crate::host) fn poll_send_zc<B: Lend>(
        &self,
        cx: &mut Context<'_>,
        going: &mut Going<B>,
    ) -> Poll<Result<Sending<B>, SendError<B>>> {
        let sent = match going.choice {
            Choice::Copy => self.poll_copy_parts(cx, going),
            Choice::Lend | Choice::LendWatched(_) => self.poll_lend(cx, going),
        };
        let Poll::Ready(sent) = sent else { return Poll::Pending };
        Poll::Ready(match (sent, mem::replace(&mut going.progress, Progress::Gone)) {
            (Ok(()), Progress::Copied(buffer, count)) => Ok(Sending::copied(buffer, count)),
            (Ok(()), Progress::Lent(sending, lent)) => Ok(sending.with_accepted(lent.done)),
            (Ok(()), Progress::Queued(sending)) => Ok(sending),
            (sent, progress) => {
                going.progress = progress;
                going.stop(sent.err().unwrap_or_else(would_block))
            }
        })
    }

    /// Copies the rest, as many datagrams at a time as possible.
    fn poll_copy_parts<B: Lend>(
        &self,
        cx: &mut Context<'_>,
        going: &mut Going<B>,
    ) -> Poll<io::Result<()>> {
        let Progress::Copied(buffer, copied) = &mut going.progress else {
            return Poll::Ready(Ok(()));
        };
        let len = buffer.len();
        loop {
            let part = |most| stretches(buffer, *copied, most);
            let count = match self.poll_copy(cx, part, &going.send, *copied > 0) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(count)) => count,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            };
            *copied += count;
            if count == 0 || *copied == len {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Lends the rest.
    fn poll_lend<B: Lend>(
        &self,
        cx: &mut Context<'_>,
        going: &mut Going<B>,
    ) -> Poll<io::Result<()>> {
        let Inner { id, queue, mode, host, .. } = &*self.inner;
        let core = &host.owner.core;
        if let Progress::Copied(buffer, _) = &going.progress {
            let levels = &queue.account.levels;
            let charge = buffer.len().saturating_add(LENT_OVERHEAD);
            let room = work_of(buffer.len());
            let queues = buffer.is_one()
                && room <= QUEUED_EACH_MAX
                && levels.socket.used().saturating_add(charge) > DIRECT_MAX;
            if queues && queue.room.poll_take(cx, room).is_pending() {
                queue.found_none(|waker| queue.room.watch_for(waker, room));
                return Poll::Pending;
            }
            if levels.poll_take(cx, charge).is_pending() {
                if queues {
                    queue.room.give(room);
                }
                queue.found_none(|waker| levels.watch(waker, charge));
                return Poll::Pending;
            }
            let (ticket, share) = Ticket::begin(queue.account.clone(), charge);
            going.lend(ticket, share);
            if queues {
                going.queue(&self.inner, room);
            }
        }
        let Progress::Lent(_, lent) = &mut going.progress else { return Poll::Ready(Ok(())) };
        let sent = core.call_to_send(|state, now| {
            let sent = match state.drain_datagrams(queue, now) {
                Ok(()) => state.send_lent_datagrams(*id, lent, &going.send, now),
                full => full,
            };
            match sent {
                Err(Error::WouldBlock) => state.entry(*id).writers.add(cx.waker()),
                Err(_) => queue.shut(),
                Ok(()) => {
                    lent.ticket.observe(mode.watch(going.choice, lent.done));
                    state.open(queue, &going.send, lent.done);
                }
            }
            sent
        });
        ready(sent)
    }

    /// Returns whether [`UdpSocket::send_zc`] lends or copies.
    pub fn send_mode(&self) -> SendMode {
        self.inner.mode.get()
    }

    /// Sets whether buffers are lent or copied, from the next call on.
    pub fn set_send_mode(&self, mode: SendMode) {
        self.inner.mode.set(mode, || self.inner.host.datagram_costs());
    }

    /// Returns the term for buffers whose call sets none.
    pub fn term(&self) -> Option<Duration> {
        self.inner.shape.term()
    }

    /// Sets how long a buffer is lent at most, from the next call on. Then it comes back as after
    /// [`Sending::recall`]. `None`, the default, means until the datagram has left, plus the
    /// [default term](crate::host::Config::default_term).
    pub fn set_term(&self, term: Option<Duration>) {
        self.inner.shape.set_term(term);
    }

    /// Receives a datagram and returns its source address. Bytes that do not fit into `into` are
    /// lost.
    pub fn recv_from(&self, into: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receive(into, false).map(|reported| (reported.copied, reported.from))
    }

    /// Receives a datagram from the connected peer. Bytes that do not fit into `into` are lost.
    pub fn recv(&self, into: &mut [u8]) -> io::Result<usize> {
        self.receive(into, false).map(|reported| reported.copied)
    }

    /// Copies the next datagram like [`UdpSocket::recv_from`], and leaves it in the queue.
    pub fn peek_from(&self, into: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receive(into, true).map(|reported| (reported.copied, reported.from))
    }

    pub(in crate::host) fn receive(
        &self,
        into: &mut [u8],
        peek: bool,
    ) -> io::Result<ReceivedDatagram> {
        let wait = self.inner.shape.read_wait();
        let received = block(wait, |cx| self.poll_receive(cx, into, peek));
        received.unwrap_or_else(|| Err(would_block()))
    }

    /// Receives a datagram, as a future. Bytes that do not fit into `into` are lost. Dropping the
    /// future loses no datagram.
    ///
    /// # Errors
    /// The errors of recvfrom(2).
    pub async fn recv_from_async(&self, into: &mut [u8]) -> io::Result<ReceivedDatagram> {
        poll_fn(|cx| self.poll_recv_from(cx, into)).await
    }

    /// Receives a datagram like [`UdpSocket::recv_from`], for hand-written futures, and returns
    /// more about it.
    pub fn poll_recv_from(
        &self,
        cx: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<ReceivedDatagram>> {
        self.poll_receive(cx, into, false)
    }

    /// Copies the next datagram and leaves it in the queue, for hand-written futures.
    pub fn poll_peek_from(
        &self,
        cx: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<ReceivedDatagram>> {
        self.poll_receive(cx, into, true)
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
            let received = state.engine.protocols.receive_datagram(id, into, peek, &core.ledger);
            if received == Err(Error::WouldBlock) {
                state.entry(id).readers.add(cx.waker());
            }
            received
        });
        ready(received)
    }

    /// Receives a datagram without copying it, as pieces appended to `into`. Each piece shows its
    /// bytes ([`ReceivedPiece::bytes`]); bytes that others could still write are copied. The
    /// datagram is always received whole.
    ///
    /// The memory goes back to its lender when the pieces are dropped, on any thread. Until then
    /// they count against the receive buffer: datagrams that do not fit into it are lost.
    ///
    /// # Errors
    /// The errors of [`UdpSocket::recv_from`]; `ENOBUFS` if the readers of this socket or of its
    /// host hold too many bytes. The datagram stays in the queue, and receiving with a copy still
    /// works.
    pub fn recv_lent(&self, into: &mut Vec<ReceivedPiece>) -> io::Result<ReceivedDatagram> {
        let received = block(self.inner.shape.read_wait(), |cx| self.poll_recv_lent(cx, into));
        received.unwrap_or_else(|| Err(would_block()))
    }

    /// Receives a datagram like [`UdpSocket::recv_lent`], for hand-written futures.
    pub fn poll_recv_lent(
        &self,
        cx: &mut Context<'_>,
        into: &mut Vec<ReceivedPiece>,
    ) -> Poll<io::Result<ReceivedDatagram>> {
        self.poll_lent(cx, Crowded::Fails, |sockets, id, cx| {
            sockets.receive_datagram_lent(id, &WHOLE, into, cx)
        })
    }

    /// Receives a packet that begins with headers, which are appended to `headers`.
    pub(in crate::host) fn recv_frame_lent(
        &self,
        headers: &mut Vec<u8>,
        into: &mut Vec<ReceivedPiece>,
    ) -> io::Result<ReceivedDatagram> {
        let wait = self.inner.shape.read_wait();
        let received =
            block(wait, |cx| self.poll_recv_frame_lent(cx, Crowded::Fails, headers, into));
        received.unwrap_or_else(|| Err(would_block()))
    }

    pub(in crate::host) fn poll_recv_frame_lent(
        &self,
        cx: &mut Context<'_>,
        crowded: Crowded,
        headers: &mut Vec<u8>,
        into: &mut Vec<ReceivedPiece>,
    ) -> Poll<io::Result<ReceivedDatagram>> {
        self.poll_lent(cx, crowded, |sockets, id, cx| {
            sockets.receive_frame_lent(id, &WHOLE, (headers, into), cx)
        })
    }

    fn poll_lent(
        &self,
        cx: &mut Context<'_>,
        crowded: Crowded,
        receive: impl FnOnce(
            &mut Sockets,
            SocketId,
            &mut stack::Context<'_>,
        ) -> Result<ReceivedDatagram, Error>,
    ) -> Poll<io::Result<ReceivedDatagram>> {
        let id = self.inner.id;
        let received = self.inner.host.owner.core.call(|state, now| {
            let received = state.engine.with(now, |sockets, cx| receive(sockets, id, cx));
            if matches!(received, Err(Error::WouldBlock)) {
                state.entry(id).readers.add(cx.waker());
            }
            state.or_wait_for_room(received, (crowded, cx.waker()), now)
        });
        ready(received)
    }

    /// Returns the current readiness. `waker` is woken when there is something new.
    pub(in crate::host) fn poll_ready(&self, interest: Interest, waker: &Waker) -> Readiness {
        let Inner { host, id, queue, .. } = &*self.inner;
        if interest.writable {
            queue.watch(waker);
        }
        let mut state = host.owner.core.lock();
        let entry = state.entry(*id);
        entry.readers.add(waker);
        if interest.writable {
            entry.writers.add(waker);
        }
        let ready = readiness(state.engine.protocols.readiness(*id));
        drop(state);
        // Writable from half of the room on, because room is returned in halves: the program can
        // then send several datagrams.
        let room = || queue.room.has_room_for(DATAGRAMS_QUEUED_MAX / 2);
        let has_room = || {
            room() || {
                queue.room.watch(waker);
                room()
            }
        };
        Readiness { writable: interest.writable && ready.writable && has_room(), ..ready }
    }

    /// Returns another handle to the socket.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(self.clone())
    }
}

/// Reads a whole datagram: no packet has more pieces than this.
const WHOLE: ReadMost = ReadMost { bytes: usize::MAX, pieces: PIECES_MAX, private: true };

fn ready<T>(result: Result<T, Error>) -> Poll<io::Result<T>> {
    match result {
        Err(Error::WouldBlock) => Poll::Pending,
        result => Poll::Ready(result.map_err(io_error)),
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.host.owner.core.call_to_send(|state, now| state.close_datagrams(&self.queue, now));
    }
}

impl fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UdpSocket").field("address", &self.local_addr().ok()).finish()
    }
}
