//! Copies bytes from one stream to another if at least one of them belongs to a towpath host. The
//! waits of the queue move the bytes through a buffer. The kernel's socket, if there is one, is
//! watched edge-triggered.

use crate::events::registrations::socket::{End, Stream};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use towpath_io::events::broken;

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
    buffer: Vec<u8>,
    /// Range of the buffer that is still to be sent.
    left: Range<usize>,
    result: Option<io::Result<()>>,
}

impl Relay {
    pub(in crate::events) fn new(from: Stream, to: Stream, count: u64) -> Self {
        let result = (count == 0).then_some(Ok(()));
        Self { from, to, count, moved: 0, buffer: Vec::new(), left: 0..0, result }
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
        if self.left.is_empty() {
            let wanted = (self.count - self.moved).min(BUFFER_BYTES as u64) as usize;
            self.buffer.resize(self.buffer.len().max(wanted), 0);
            let received = receive(&self.from, cx, &mut self.buffer[..wanted]);
            return received.map_ok(|count| {
                self.left = 0..count;
                count
            });
        }
        send(&self.to, cx, &self.buffer[self.left.clone()]).map_ok(|count| {
            self.left.start += count;
            self.moved += count as u64;
            count
        })
    }

    /// Returns why waiting for more bytes is pointless: the sink no longer takes any.
    fn broken(&self, waker: &Waker) -> Option<io::Error> {
        if !self.left.is_empty() {
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
        let rest = self.buffer[self.left.clone()].to_vec();
        Some(Moved { bytes: self.moved, result, rest })
    }
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
