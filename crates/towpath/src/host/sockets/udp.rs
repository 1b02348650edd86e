//! Datagram sockets.

mod going;
mod options;

use crate::host::choosing::auto::Choice;
use crate::host::choosing::mode::{Mode, SendMode};
use crate::host::core::State;
use crate::host::core::feed::Crowded;
use crate::host::lending::budget::Budget;
use crate::host::lending::lend::{Lend, stretches};
use crate::host::lending::queue::{DATAGRAMS_QUEUED_MAX, LENT_OVERHEAD, SendQueue, work_of};
use crate::host::lending::sending::{SendError, Sending};
use crate::host::lending::ticket::Ticket;
use crate::host::resolver::{Target, ToSocketAddrs, first_of, no_address};
use crate::host::sockets::shape::Shape;
use crate::host::sockets::watch::readiness;
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
use towpath_packet::Held;
use towpath_packet::packet::PIECES_MAX;

/// Bytes that a socket has lent, up to which a call hands its datagrams to the stack itself: more
/// than one of them. Beyond it the worker does: to wake it costs less than all that work, and it
/// goes on by itself as long as calls come faster.
const DIRECT_MAX: usize = 128 << 10;
/// What one buffer takes of a queue at most, to be left to the worker: beyond that a program would
/// sleep and wake for every few, and a call of its own has a small share in all the datagrams.
const QUEUED_EACH_MAX: usize = DATAGRAMS_QUEUED_MAX / 8;

/// A UDP socket, in the shape of [`std::net::UdpSocket`].
#[derive(Clone)]
pub struct UdpSocket {
    inner: Arc<Inner>,
}

struct Inner {
    host: Host,
    id: SocketId,
    shape: Shape,
    mode: Mode,
    /// Of what is lent.
    queue: Arc<SendQueue>,
}

impl UdpSocket {
    /// Binds to an address of the host, or to all of them; port 0 chooses one. Of several addresses
    /// the first is taken that can be.
    ///
    /// # Errors
    /// Those of bind(2).
    pub fn bind(host: &Host, address: impl ToSocketAddrs) -> io::Result<Self> {
        let open = |address| Self::open(host, Some(address), |own| own.datagram(family(address)));
        first_of(host.resolver(), address, open)
    }

    /// The socket that `make` makes, bound to an address if there is one.
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

    /// Does something with the socket. Datagrams that wait to be sent go by what it finds.
    pub(in crate::host) fn with_sockets<T>(
        &self,
        act: impl FnOnce(&mut Sockets, SocketId, Instant) -> T,
    ) -> T {
        let Inner { id, queue, host, .. } = &*self.inner;
        host.owner.core.call_to_send(|state, now| {
            queue.shut();
            // As far as there is room: what waits goes by the options of its call.
            let _ = state.drain_datagrams(queue, now);
            act(&mut state.engine.protocols, *id, now)
        })
    }

    /// Looks at the socket.
    pub(in crate::host) fn with_state<T>(&self, look: impl FnOnce(&Sockets, SocketId) -> T) -> T {
        look(&self.inner.host.owner.core.lock().engine.protocols, self.inner.id)
    }

    pub(crate) fn host(&self) -> &Host {
        &self.inner.host
    }

    /// Names the one peer.
    ///
    /// # Errors
    /// Those of connect(2).
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

    /// Sends a datagram to `remote`. Waits while the device takes nothing. Of several addresses the
    /// first is taken.
    ///
    /// # Errors
    /// Those of sendto(2).
    pub fn send_to(&self, bytes: &[u8], remote: impl ToSocketAddrs) -> io::Result<usize> {
        let to = match remote.to_target()? {
            Target::Address(address) => Some(address),
            target => self.inner.host.resolver().resolve(target)?.first().copied(),
        };
        let to = Some(to.ok_or_else(no_address)?);
        self.send_with(bytes, &SendTo { to, ..SendTo::default() })
    }

    /// Sends a datagram to the peer.
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.send_with(bytes, &SendTo::default())
    }

    /// Sends a datagram as `send` says.
    pub(in crate::host) fn send_with(&self, bytes: &[u8], send: &SendTo) -> io::Result<usize> {
        let wait = self.inner.shape.write_wait();
        let sent = block(wait, |cx| self.poll_copy(cx, |_| [bytes], send, false));
        sent.unwrap_or_else(|| Err(would_block()))
    }

    /// Sends a datagram to `remote`, or else to the peer, for tasks.
    ///
    /// # Errors
    /// Those of sendto(2).
    pub async fn send_to_async(
        &self,
        bytes: &[u8],
        remote: Option<SocketAddr>,
    ) -> io::Result<usize> {
        poll_fn(|cx| self.poll_send_to(cx, bytes, remote)).await
    }

    /// The same for futures: to `remote`, or else to the peer.
    pub fn poll_send_to(
        &self,
        cx: &mut Context<'_>,
        bytes: &[u8],
        remote: Option<SocketAddr>,
    ) -> Poll<io::Result<usize>> {
        self.poll_copy(cx, |_| [bytes], &SendTo { to: remote, ..SendTo::default() }, false)
    }

    /// Copies buffers, one after the other, into a datagram: those that `buffers` yields when it is
    /// told how many bytes can go together at most. A call that `continues` copies nothing if an
    /// error waits, which is for the next.
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

    /// Sends `buffer` as a datagram to the peer. If it is lent, it comes back with what this
    /// returns when the datagram has left, which says nothing about the peer, or when its term is
    /// over; this waits until the budgets of lent bytes have room. If it is copied ([`SendMode`]),
    /// it is back at once. Both wait while the device takes nothing.
    ///
    /// With a segment size ([`SendTo::segment_size`], or the socket's option) the buffer goes as
    /// datagrams of that size, and may be longer than one: any number of them cost one call, one
    /// loan or a few, and one return. Of a [`Chain`](crate::host::Chain) of buffers of that size
    /// each is a datagram. A call that cannot wait may take some of them only:
    /// [`Sending::accepted`] tells.
    ///
    /// # Errors
    /// Those of [`UdpSocket::send`]. A datagram that is lent in more than
    /// [`LENT_RANGES_MAX`](towpath_net::socket::LENT_RANGES_MAX) parts is too long, too. The buffer
    /// is handed back. An error that comes when some datagrams have been accepted is for the next
    /// call.
    ///
    /// A buffer that is on its way is out of reach:
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

    /// The same, to `remote`.
    pub fn send_zc_to<B: Lend>(
        &self,
        buffer: B,
        remote: SocketAddr,
    ) -> Result<Sending<B>, SendError<B>> {
        self.send_zc_with(buffer, &SendTo { to: Some(remote), ..SendTo::default() })
    }

    /// The same, as `send` says: as several datagrams of [`SendTo::segment_size`], for a term of
    /// its own ([`SendTo::term`]), and others.
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

    /// The same for tasks. Dropping the future before it is ready sends no more of the buffer,
    /// which is freed when nothing of it is lent.
    pub async fn send_zc_async<B: Lend>(
        &self,
        buffer: B,
        send: &SendTo,
    ) -> Result<Sending<B>, SendError<B>> {
        let mut going = Going::new(self, buffer, send);
        poll_fn(|cx| self.poll_send_zc(cx, &mut going)).await
    }

    /// Sends the buffer, which is taken when there is a result.
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

    /// Copies what is left, as datagrams of which as many as possible go together.
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

    /// Lends what is left.
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

    /// What becomes of buffers that are sent with [`UdpSocket::send_zc`].
    pub fn send_mode(&self) -> SendMode {
        self.inner.mode.get()
    }

    /// Sets what becomes of buffers, from the next call on.
    pub fn set_send_mode(&self, mode: SendMode) {
        self.inner.mode.set(mode, || self.inner.host.datagram_costs());
    }

    /// How long a buffer is lent at most, unless its call says otherwise.
    pub fn term(&self) -> Option<Duration> {
        self.inner.shape.term()
    }

    /// Sets how long a buffer is lent at most, from the next call on: then it comes back as after
    /// [`Sending::recall`]. `None`, as at first, for as long as it takes until the datagram has
    /// left, and then the [default term](crate::host::Config::default_term).
    pub fn set_term(&self, term: Option<Duration>) {
        self.inner.shape.set_term(term);
    }

    /// Receives a datagram, and tells where it came from. What `into` has no room for is lost.
    pub fn recv_from(&self, into: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receive(into, false).map(|told| (told.copied, told.from))
    }

    /// Receives a datagram of the peer. What `into` has no room for is lost.
    pub fn recv(&self, into: &mut [u8]) -> io::Result<usize> {
        self.receive(into, false).map(|told| told.copied)
    }

    /// As [`UdpSocket::recv_from`], but the datagram stays to be received.
    pub fn peek_from(&self, into: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receive(into, true).map(|told| (told.copied, told.from))
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

    /// Receives a datagram, for tasks. What `into` has no room for is lost. Dropping the future
    /// loses no datagram.
    ///
    /// # Errors
    /// Those of recvfrom(2).
    pub async fn recv_from_async(&self, into: &mut [u8]) -> io::Result<ReceivedDatagram> {
        poll_fn(|cx| self.poll_recv_from(cx, into)).await
    }

    /// As [`UdpSocket::recv_from`], for futures; tells more.
    pub fn poll_recv_from(
        &self,
        cx: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<ReceivedDatagram>> {
        self.poll_receive(cx, into, false)
    }

    /// Copies the next datagram, which stays to be received; for futures made by hand.
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

    /// Receives a datagram without copying it: as pieces added to `into`. Each piece shows its
    /// bytes ([`Held::bytes`]); what others could write is copied. The datagram is received whole.
    ///
    /// Memory goes back to whoever lent it when the pieces are dropped, on whatever thread. Until
    /// then they count with the receive buffer: datagrams that it has no room for are lost.
    ///
    /// # Errors
    /// Those of [`UdpSocket::recv_from`]; `ENOBUFS` if this socket or all of the host keep too
    /// much: the datagram stays, and receiving with a copy goes on.
    pub fn recv_lent(&self, into: &mut Vec<Held>) -> io::Result<ReceivedDatagram> {
        let received = block(self.inner.shape.read_wait(), |cx| self.poll_recv_lent(cx, into));
        received.unwrap_or_else(|| Err(would_block()))
    }

    /// The same for futures made by hand.
    pub fn poll_recv_lent(
        &self,
        cx: &mut Context<'_>,
        into: &mut Vec<Held>,
    ) -> Poll<io::Result<ReceivedDatagram>> {
        self.poll_lent(cx, Crowded::Fails, |sockets, id, cx| {
            sockets.receive_datagram_lent(id, &WHOLE, into, cx)
        })
    }

    /// The same for packets that begin with headers, which are appended to `headers`.
    pub(in crate::host) fn recv_frame_lent(
        &self,
        headers: &mut Vec<u8>,
        into: &mut Vec<Held>,
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
        into: &mut Vec<Held>,
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

    /// What holds now. `waker` is woken when there is something new.
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
        // Half of the room, as it comes back by halves: who hears of it can send more than one.
        let room = || queue.room.has_room_for(DATAGRAMS_QUEUED_MAX / 2);
        let has_room = || {
            room() || {
                queue.room.watch(waker);
                room()
            }
        };
        Readiness { writable: interest.writable && ready.writable && has_room(), ..ready }
    }

    /// Another handle of the same socket.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(self.clone())
    }
}

/// All of a datagram, whose packet has no more pieces than any.
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
