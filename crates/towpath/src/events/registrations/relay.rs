//! Moves bytes from one stream to another if at least one of them belongs to a towpath host, in the
//! waits of the queue.
//!
//! What a stream of a host receives stays where it is: the pieces are sent on to another host,
//! whose stream holds their memory until the peer has acknowledged them, or the kernel's socket
//! reads them in place. What the kernel's socket receives is read into a buffer, and copied into
//! the send queue of the host. The kernel's socket, if there is one, is watched edge-triggered.

use crate::events::registrations::socket::{End, Stream};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use towpath_io::events::broken;
use towpath_packet::{ReceivedPiece, View};

/// Bytes received at a time.
const BUFFER_BYTES: usize = 64 << 10;
/// Bytes moved before other registrations get their turn.
const MOVED_MAX: usize = 16 * BUFFER_BYTES;

/// Result of an operation that moved bytes from one place to another.
#[derive(Debug)]
#[non_exhaustive]
pub struct Moved {
    /// Bytes that have arrived, also after an error.
    pub bytes: u64,
    /// Why it ended early. An early end of the source is no error.
    ///
    /// # Errors
    /// `ECANCELED`, `ETIMEDOUT`; errors of reading and of writing.
    pub result: io::Result<()>,
    /// Bytes taken from the source that have not arrived: empty unless there is an error.
    pub rest: Vec<u8>,
}

/// A relay between two streams. See the module documentation.
pub(in crate::events) struct Relay {
    from: Stream,
    to: Stream,
    count: u64,
    moved: u64,
    held: Held,
    result: Option<io::Result<()>>,
}

/// Bytes that were received and not sent yet.
enum Held {
    /// Of the kernel's socket: this range of a buffer.
    Bytes(Vec<u8>, Range<usize>),
    /// Of a host's stream: these pieces, without the first bytes of the first one.
    Pieces(VecDeque<ReceivedPiece>, usize),
}

impl Relay {
    pub(in crate::events) fn new(from: Stream, to: Stream, count: u64) -> Self {
        let result = (count == 0).then_some(Ok(()));
        let held = match &from.0 {
            End::Host(_) => Held::Pieces(VecDeque::new(), 0),
            End::Kernel(_) => Held::Bytes(Vec::new(), 0..0),
        };
        Self { from, to, count, moved: 0, held, result }
    }

    /// Returns the kernel's socket. Two kernel sockets are spliced by the back end instead.
    pub(in crate::events) fn fd(&self) -> Option<&dyn AsFd> {
        let socket: &Arc<OwnedFd> = self.from.as_kernel().or(self.to.as_kernel())?;
        Some(socket)
    }

    /// Continues. Returns true if the relay is complete. Otherwise `waker` is woken, or the
    /// kernel's socket becomes ready, when it should be polled again.
    pub(in crate::events) fn poll(&mut self, waker: &Waker) -> bool {
        let (cx, end) = (&mut Context::from_waker(waker), self.moved + MOVED_MAX as u64);
        while self.result.is_none() {
            if self.moved >= end {
                waker.wake_by_ref();
                return false;
            }
            match self.step(cx) {
                Poll::Ready(Ok(0)) => self.result = Some(Ok(())),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => self.result = Some(Err(error)),
                Poll::Pending => match self.broken(waker) {
                    Some(error) => self.result = Some(Err(error)),
                    None => return false,
                },
            }
        }
        true
    }

    /// Receives bytes, or sends some that were received; returns 0 when there is nothing left to
    /// do.
    fn step(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.held.is_empty() {
            let wanted = (self.count - self.moved).min(BUFFER_BYTES as u64) as usize;
            return self.held.receive(&self.from, cx, wanted);
        }
        let sent = self.held.send(&self.to, cx);
        if let Poll::Ready(Ok(count)) = sent {
            self.moved += count as u64;
        }
        sent
    }

    /// Returns why waiting for more bytes is pointless: the sink no longer takes any.
    fn broken(&self, waker: &Waker) -> Option<io::Error> {
        if !self.held.is_empty() {
            return None;
        }
        match &self.to.0 {
            End::Host(stream) => stream.poll_broken(waker),
            End::Kernel(socket) => broken(socket).map(Into::into),
        }
    }

    /// Ends the relay for this reason, unless it is complete.
    pub(in crate::events) fn stop(&mut self, why: Errno) {
        self.result.get_or_insert_with(|| Err(why.into()));
    }

    /// Takes the result, once the relay is complete.
    pub(in crate::events) fn take(&mut self) -> Option<Moved> {
        let result = self.result.take()?;
        Some(Moved { bytes: self.moved, result, rest: self.held.copy() })
    }
}

impl Held {
    fn is_empty(&self) -> bool {
        match self {
            Self::Bytes(_, left) => left.is_empty(),
            Self::Pieces(pieces, _) => pieces.is_empty(),
        }
    }

    /// Receives at most `wanted` bytes, while it is empty, and returns their number; 0 at the end
    /// of the stream.
    fn receive(
        &mut self,
        from: &Stream,
        cx: &mut Context<'_>,
        wanted: usize,
    ) -> Poll<io::Result<usize>> {
        match (self, &from.0) {
            (Self::Pieces(pieces, _), End::Host(stream)) => {
                let mut received = Vec::new();
                let count = stream.poll_take(cx, wanted, &mut received);
                pieces.extend(received);
                count
            }
            (Self::Bytes(buffer, left), _) => {
                buffer.resize(buffer.len().max(wanted), 0);
                receive(from, cx, &mut buffer[..wanted]).map_ok(|count| {
                    *left = 0..count;
                    count
                })
            }
            (Self::Pieces(..), End::Kernel(_)) => unreachable!("pieces are of a host's stream"),
        }
    }

    /// Sends some of the bytes, and returns their number.
    fn send(&mut self, to: &Stream, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let (pieces, from) = match self {
            Self::Bytes(buffer, left) => {
                return send(to, cx, &buffer[left.clone()]).map_ok(|count| {
                    left.start += count;
                    count
                });
            }
            Self::Pieces(pieces, from) => (pieces, from),
        };
        let first = pieces.front().expect("there are bytes to send");
        let len = first.len();
        let sent = match &to.0 {
            End::Host(stream) => stream.poll_pass_on(cx, first, *from),
            End::Kernel(_) => send(to, cx, &bytes_of(first)[*from..]),
        };
        sent.map_ok(|count| {
            *from += count;
            if *from == len {
                *from = 0;
                pieces.pop_front();
            }
            count
        })
    }

    /// Returns a copy of the bytes.
    fn copy(&self) -> Vec<u8> {
        match self {
            Self::Bytes(buffer, left) => buffer[left.clone()].to_vec(),
            Self::Pieces(pieces, from) => {
                let mut bytes = Vec::new();
                pieces.iter().for_each(|piece| bytes.extend_from_slice(&bytes_of(piece)));
                bytes.drain(..*from);
                bytes
            }
        }
    }
}

fn bytes_of(piece: &ReceivedPiece) -> View<'_> {
    piece.bytes().expect("what a stream of a host hands out cannot change")
}

pub(in crate::events) fn receive(
    from: &Stream,
    cx: &mut Context<'_>,
    into: &mut [u8],
) -> Poll<io::Result<usize>> {
    match &from.0 {
        End::Host(stream) => stream.poll_read(cx, into),
        End::Kernel(_) => later(|| from.try_receive(into)),
    }
}

fn send(to: &Stream, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
    match &to.0 {
        End::Host(stream) => stream.poll_write(cx, bytes),
        End::Kernel(_) => later(|| to.try_send(bytes)),
    }
}

/// Makes a non-blocking call, and repeats it if a signal interrupted it.
pub(in crate::events) fn later(
    mut call: impl FnMut() -> io::Result<usize>,
) -> Poll<io::Result<usize>> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
            result => return Poll::Ready(result),
        }
    }
}
