//! TCP connections.

mod each;
mod lent;
mod options;

use crate::host::choosing::auto::Choice;
use crate::host::choosing::calibration::Watch;
use crate::host::choosing::mode::{Mode, SendMode};
use crate::host::core::State;
use crate::host::lending::budget::{Budget, Part};
use crate::host::lending::gather::Gather;
use crate::host::lending::lend::sealed::Mark;
use crate::host::lending::lend::{Lend, Parcel};
use crate::host::lending::queue::{LENT_OVERHEAD, LentOp, Op, SendQueue};
use crate::host::lending::sending::{SendError, Sending};
use crate::host::lending::ticket::Ticket;
use crate::host::sockets::settings::Shape;
use crate::host::wait::block;
use crate::host::{Host, io_error, would_block};
use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use towpath_net::socket::{self, Error, ReceiveFlags, SocketId};
use towpath_net::tcp::Info;
use towpath_net::time::Instant;

/// Most bytes that one call of `write` copies.
const WRITE_MAX: usize = 64 << 10;

/// A TCP connection, shaped like [`std::net::TcpStream`], with sends that lend.
///
/// A lent buffer has been moved, so using it does not compile:
///
/// ```compile_fail,E0382
/// # use towpath::host::TcpStream;
/// fn send(stream: &TcpStream) {
///     let mut buffer = vec![0; 4096];
///     let sending = stream.send_zc(buffer);
///     buffer[0] = 1;
/// }
/// ```
#[derive(Clone)]
pub struct TcpStream {
    inner: Arc<Inner>,
}

struct Inner {
    host: Host,
    queue: Arc<SendQueue>,
    shape: Shape,
    mode: Mode,
}

/// A send in progress of one buffer.
pub(crate) struct Going<B> {
    buffer: Option<B>,
    /// Number of its bytes that were copied, and the position where they end.
    copied: usize,
    mark: Mark,
    /// Whether to lend or to copy, chosen when the call began.
    choice: Choice,
    /// How long the buffer may be lent.
    term: Option<Duration>,
}

impl<B: Lend> Going<B> {
    pub(in crate::host) fn new(stream: &TcpStream, buffer: B, term: Option<Duration>) -> Self {
        let choice = stream.inner.mode.choose(buffer.len(), &stream.inner.host.owner.core);
        Self { buffer: Some(buffer), copied: 0, mark: None, choice, term }
    }

    /// Creates a send that copies, whatever the mode.
    pub(in crate::host) fn copying(buffer: B) -> Self {
        Self { buffer: Some(buffer), copied: 0, mark: None, choice: Choice::Copy, term: None }
    }

    /// Ends the call: reports what was accepted, or the error if nothing was.
    pub(in crate::host) fn stop(&mut self, error: io::Error) -> Result<Sending<B>, SendError<B>> {
        let buffer = self.buffer.take().expect("a future is done once");
        match self.copied {
            0 => Err(SendError { error, buffer }),
            copied => Ok(Sending::copied(buffer, copied)),
        }
    }
}

/// Returns what the budgets are charged for a lent buffer of `len` bytes.
fn charge_of(len: usize) -> usize {
    len.saturating_add(LENT_OVERHEAD)
}

impl TcpStream {
    /// Returns `Ready` once the connection is established or has failed; until then it leaves
    /// `cx`'s waker.
    pub(in crate::host) fn poll_connect(
        &self,
        cx: &mut Context<'_>,
        remote: SocketAddr,
    ) -> Poll<io::Result<()>> {
        let id = self.id();
        self.inner.host.owner.core.call(|state, now| {
            match state.engine.protocols.connect(id, remote, now) {
                Err(Error::Already | Error::InProgress) => {
                    state.entry(id).writers.add(cx.waker());
                    Poll::Pending
                }
                Ok(()) | Err(Error::IsConnected) => Poll::Ready(Ok(())),
                Err(error) => Poll::Ready(Err(io_error(error))),
            }
        })
    }

    /// Creates the send queue of a new socket.
    pub(in crate::host) fn queue(host: &Host, id: SocketId) -> Arc<SendQueue> {
        Arc::new(SendQueue::new(id, host.account(id, Budget::of_stream)))
    }

    /// Returns the host and the send queue.
    pub(in crate::host) fn parts(&self) -> (&Host, &SendQueue) {
        (&self.inner.host, &self.inner.queue)
    }

    /// Wraps a socket that is in the host's table.
    pub(in crate::host) fn new(host: Host, queue: Arc<SendQueue>) -> Self {
        let (shape, mode) = (Shape::default(), Mode::new());
        Self { inner: Arc::new(Inner { host, queue, shape, mode }) }
    }

    fn id(&self) -> SocketId {
        self.inner.queue.id
    }

    /// Sends `buffer`, which comes back through the returned [`Sending`]. To lend it, the call
    /// blocks until the budgets of lent bytes have room; the buffer is then accepted as a whole and
    /// sent as the connection allows. To copy it ([`SendMode`]), the call blocks until all bytes
    /// are copied; the buffer is then back at once.
    ///
    /// # Errors
    /// Fails if the connection can no longer send, or with `WouldBlock` if the socket is
    /// non-blocking or the timeout has passed, and if nothing was accepted. The buffer is handed
    /// back.
    pub fn send_zc<B: Lend>(&self, buffer: B) -> Result<Sending<B>, SendError<B>> {
        self.wait_send_zc(Going::new(self, buffer, self.term()))
    }

    /// Sends `buffer` like [`TcpStream::send_zc`], with a term for this call: when it is over, the
    /// buffer comes back as after [`Sending::recall`]. The term begins when the buffer is accepted.
    pub fn send_zc_for<B: Lend>(
        &self,
        buffer: B,
        term: Duration,
    ) -> Result<Sending<B>, SendError<B>> {
        self.wait_send_zc(Going::new(self, buffer, Some(term)))
    }

    fn wait_send_zc<B: Lend>(&self, mut going: Going<B>) -> Result<Sending<B>, SendError<B>> {
        let sent = block(self.inner.shape.write_wait(), |cx| self.poll_send_zc(cx, &mut going));
        sent.unwrap_or_else(|| going.stop(would_block()))
    }

    /// Sends `buffer` like [`TcpStream::send_zc`], as a future. Dropping the future before it is
    /// ready frees the buffer, which is not lent by then.
    pub async fn send_zc_async<B: Lend>(&self, buffer: B) -> Result<Sending<B>, SendError<B>> {
        let mut going = Going::new(self, buffer, self.term());
        poll_fn(|cx| self.poll_send_zc(cx, &mut going)).await
    }

    /// Sends `buffer` like [`TcpStream::send_zc_for`], as a future.
    pub async fn send_zc_for_async<B: Lend>(
        &self,
        buffer: B,
        term: Duration,
    ) -> Result<Sending<B>, SendError<B>> {
        let mut going = Going::new(self, buffer, Some(term));
        poll_fn(|cx| self.poll_send_zc(cx, &mut going)).await
    }

    /// Sends the buffer, which is moved out when there is a result.
    pub(in crate::host) fn poll_send_zc<B: Lend>(
        &self,
        cx: &mut Context<'_>,
        going: &mut Going<B>,
    ) -> Poll<Result<Sending<B>, SendError<B>>> {
        let len = going.buffer.as_ref().map_or(0, B::len);
        if going.choice == Choice::Copy {
            return self.poll_copy(cx, going, len);
        }
        match self.poll_charge(cx, charge_of(len)) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => return Poll::Ready(going.stop(error)),
            Poll::Pending => return Poll::Pending,
        }
        let buffer = going.buffer.take().expect("a future is done once");
        let watch = self.inner.mode.watch(going.choice, len);
        Poll::Ready(self.lend(buffer, going.term, watch))
    }

    /// Takes `charge` from the budgets of lent bytes.
    fn poll_charge(&self, cx: &mut Context<'_>, charge: usize) -> Poll<io::Result<()>> {
        let queue = &self.inner.queue;
        if queue.account.levels.poll_take(cx, charge).is_ready() {
            return Poll::Ready(Ok(()));
        }
        queue.found_none(|waker| queue.account.levels.watch(waker, charge));
        let failure = queue.failure().map(io_error);
        failure.map_or(Poll::Pending, |error| Poll::Ready(Err(error)))
    }

    /// Copies the buffer into the send queue.
    fn poll_copy<B: Lend>(
        &self,
        cx: &mut Context<'_>,
        going: &mut Going<B>,
        len: usize,
    ) -> Poll<Result<Sending<B>, SendError<B>>> {
        while let Some(buffer) = going.buffer.as_ref().filter(|_| going.copied < len) {
            match self.poll_write(cx, buffer.rest(going.copied, &mut going.mark)) {
                Poll::Ready(Ok(count)) => going.copied += count,
                Poll::Ready(Err(error)) => return Poll::Ready(going.stop(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        let buffer = going.buffer.take().expect("a future is done once");
        Poll::Ready(Ok(Sending::copied(buffer, len)))
    }

    /// Returns the term for buffers whose call sets none.
    pub fn term(&self) -> Option<Duration> {
        self.inner.shape.term()
    }

    /// Sets how long a buffer is lent at most, from the next call on. When the term is over, the
    /// buffer comes back as after [`Sending::recall`]. `None`, the default, means until the peer
    /// acknowledges it, plus the [default term](crate::host::Config::default_term).
    pub fn set_term(&self, term: Option<Duration>) {
        self.inner.shape.set_term(term);
    }

    /// Returns whether sent buffers are lent or copied.
    pub fn send_mode(&self) -> SendMode {
        self.inner.mode.get()
    }

    /// Sets whether buffers are lent or copied, from the next call on.
    pub fn set_send_mode(&self, mode: SendMode) {
        self.inner.mode.set(mode, || self.inner.host.stream_costs());
    }

    /// Lends a buffer for which the budgets were charged.
    fn lend<B: Lend>(
        &self,
        buffer: B,
        term: Option<Duration>,
        watch: Option<Watch>,
    ) -> Result<Sending<B>, SendError<B>> {
        let (queue, core) = (&self.inner.queue, &self.inner.host.owner.core);
        let (lent, sending) = self.loan(buffer, self.due(term));
        lent.ticket.observe(watch);
        match core.send(queue, Op::Lent(lent)) {
            Ok(()) => Ok(sending),
            Err(op) => {
                op.give_up(queue);
                let buffer = sending.returned().buffer;
                Err(SendError { error: self.failure(), buffer })
            }
        }
    }

    /// Returns when the memory of a call that is made now must be back.
    fn due(&self, term: Option<Duration>) -> Option<Instant> {
        term.map(|term| self.inner.host.owner.core.clock.now() + term)
    }

    /// Creates the queue's entry of a buffer, and its handle.
    fn loan<B: Lend>(&self, buffer: B, due: Option<Instant>) -> (LentOp, Sending<B>) {
        let account = self.inner.queue.account.clone();
        let (ticket, share) = Ticket::begin(account, charge_of(buffer.len()));
        let held = Arc::new(Parcel::new(buffer));
        (LentOp::new(held.clone(), share, due), Sending::lent(held, ticket))
    }

    /// Returns why nothing more can be sent.
    pub(in crate::host) fn failure(&self) -> io::Error {
        io_error(self.inner.queue.failure().unwrap_or(Error::BrokenPipe))
    }

    /// Copies the start of `bytes` into the send queue and returns the number of bytes.
    pub fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    /// Copies the start of the concatenated `slices` into the send queue and returns the number of
    /// bytes. Short slices go out together in one segment.
    pub fn poll_write_vectored(
        &self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut bytes = Gather::new(slices);
        let wanted = bytes.len_within(WRITE_MAX);
        if wanted == 0 {
            return Poll::Ready(Ok(0));
        }
        let (queue, core) = (&self.inner.queue, &self.inner.host.owner.core);
        let Poll::Ready(mut room) = self.poll_room(cx, wanted)? else { return Poll::Pending };
        let mut sent = 0;
        while room.left() > 0 {
            let Some(piece) = core.copy_in(&mut bytes, room.left(), cx.waker()) else {
                queue.found_none(|waker| {
                    // Leaves the waker, unless a frame has become free.
                    if core.copy_in(&mut Gather::new(&[]), 0, waker).is_some() {
                        waker.wake_by_ref();
                    }
                });
                break;
            };
            let count = piece.len();
            if core.send(queue, Op::Piece(piece)).is_err() {
                return Poll::Ready(Err(self.failure()));
            }
            room.spend(count);
            sent += count;
        }
        if sent == 0 { Poll::Pending } else { Poll::Ready(Ok(sent)) }
    }

    /// Takes room for up to `wanted` bytes of copied data.
    pub(in crate::host) fn poll_room(
        &self,
        cx: &mut Context<'_>,
        wanted: usize,
    ) -> Poll<io::Result<Part<'_>>> {
        let queue = &self.inner.queue;
        let mut room = queue.room.take_part(wanted);
        if room.left() == 0 {
            queue.room.watch(cx.waker());
            queue.found_none(|waker| queue.room.watch(waker));
            if let Some(error) = queue.failure() {
                return Poll::Ready(Err(io_error(error)));
            }
            room = queue.room.take_part(wanted);
        }
        if room.left() == 0 { Poll::Pending } else { Poll::Ready(Ok(room)) }
    }

    /// Sends one frame of `len` bytes, which `fill` fills. Returns `None` if there is no room or no
    /// frame, or if `fill` returns `None`: then nothing is sent and no waker is left.
    pub(in crate::host) fn send_frame(
        &self,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Option<()>,
    ) -> Option<io::Result<()>> {
        let (queue, core) = (&self.inner.queue, &self.inner.host.owner.core);
        if !queue.room.take(len) {
            return None;
        }
        let sent = core.fill_frame(len, fill).map(|piece| core.send(queue, Op::Piece(piece)));
        if !matches!(sent, Some(Ok(()))) {
            queue.room.give(len);
        }
        Some(sent?.map_err(|_| self.failure()))
    }

    /// Copies received bytes into `into` and returns their number; 0 at the end of the stream.
    pub fn poll_read(&self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll_receive(cx, |state, id, now| {
            state
                .engine
                .with(now, |sockets, cx| sockets.receive(id, into, ReceiveFlags::default(), cx))
        })
    }

    fn poll_receive(
        &self,
        cx: &Context<'_>,
        receive: impl FnOnce(&mut State, SocketId, Instant) -> Result<usize, Error>,
    ) -> Poll<io::Result<usize>> {
        let id = self.id();
        let received = self.inner.host.owner.core.call(|state, now| {
            let received = receive(state, id, now);
            if received == Err(Error::WouldBlock) {
                state.entry(id).readers.add(cx.waker());
            }
            received
        });
        match received {
            Err(Error::WouldBlock) => Poll::Pending,
            received => Poll::Ready(self.outcome(received)),
        }
    }

    /// Returns the result of a completed receive.
    pub(in crate::host) fn outcome(&self, received: Result<usize, Error>) -> io::Result<usize> {
        let failure = match received {
            // An error that the worker got when it sent is returned once, to the first call that
            // asks.
            Ok(0) | Err(Error::NotConnected) => self.inner.queue.unreported_failure(),
            _ => None,
        };
        failure.map_or(received, Err).map_err(io_error)
    }

    /// Calls `act` with the host's stack.
    pub(in crate::host) fn with_core<R>(
        &self,
        act: impl FnOnce(SocketId, &mut State, Instant) -> R,
    ) -> R {
        let id = self.id();
        self.inner.host.owner.core.call(|state, now| act(id, state, now))
    }

    /// Copies received bytes into `into` and leaves them in the stream.
    pub fn peek(&self, into: &mut [u8]) -> io::Result<usize> {
        let peeked = block(self.inner.shape.read_wait(), |cx| self.poll_peek(cx, into));
        peeked.unwrap_or_else(|| Err(would_block()))
    }

    /// Copies received bytes like [`TcpStream::peek`], for hand-written futures.
    pub fn poll_peek(&self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let flags = ReceiveFlags { peek: true, ..ReceiveFlags::default() };
        self.poll_receive(cx, |state, id, now| {
            state.engine.with(now, |sockets, cx| sockets.receive(id, into, flags, cx))
        })
    }

    /// Shuts down one or both directions. Data already written is still sent.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let id = self.id();
        let core = &self.inner.host.owner.core;
        if how != Shutdown::Write {
            let read = socket::Shutdown::Read;
            core.call(|state, now| state.engine.protocols.shutdown(id, read, now))
                .map_err(io_error)?;
        }
        if how != Shutdown::Read {
            // Fails only if the direction is already shut down.
            let _ = core.send(&self.inner.queue, Op::ShutDown);
        }
        Ok(())
    }

    /// Returns the local address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.host.owner.core.lock().engine.protocols.local(self.id()).map_err(io_error)
    }

    /// Returns the peer's address.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.inner.host.owner.core.lock().engine.protocols.remote(self.id()).map_err(io_error)
    }

    /// Returns what Linux reports as `TCP_INFO`; `None` without a connection.
    pub fn info(&self) -> Option<Info> {
        let core = &self.inner.host.owner.core;
        let state = core.lock();
        state.engine.protocols.tcp(self.id()).map(|connection| connection.info(core.clock.now()))
    }

    /// Takes the pending error.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        let error = self.inner.host.owner.core.lock().engine.protocols.take_error(self.id());
        let error = error.map_err(io_error)?.or_else(|| self.inner.queue.unreported_failure());
        Ok(error.map(io_error))
    }

    /// Sets how long a reading call blocks; `None` for no limit.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.inner.shape.set_read_timeout(timeout)
    }

    /// Sets how long a writing call blocks; `None` for no limit.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.inner.shape.set_write_timeout(timeout)
    }

    /// Returns how long a reading call blocks.
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.inner.shape.read_timeout())
    }

    /// Returns how long a writing call blocks.
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.inner.shape.write_timeout())
    }

    /// Sets whether calls fail with `WouldBlock` instead of blocking.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.inner.shape.set_nonblocking(nonblocking);
        Ok(())
    }

    /// Returns another handle to the connection.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(self.clone())
    }
}

impl Read for &TcpStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = block(self.inner.shape.read_wait(), |cx| self.poll_read(cx, into));
        read.unwrap_or_else(|| Err(would_block()))
    }
}

impl Read for TcpStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        (&*self).read(into)
    }
}

impl Write for &TcpStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let wait = self.inner.shape.write_wait();
        let written = block(wait, |cx| self.poll_write_vectored(cx, slices));
        written.unwrap_or_else(|| Err(would_block()))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Write for TcpStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A queue always accepts `Close`.
        let _ = self.host.owner.core.send(&self.queue, Op::Close);
    }
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (local, remote) = (self.local_addr().ok(), self.peer_addr().ok());
        f.debug_struct("TcpStream").field("local", &local).field("remote", &remote).finish()
    }
}
