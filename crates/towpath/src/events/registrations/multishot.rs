//! Multishot receives: each arrival is reported with a buffer of a group, until the stream ends.
//!
//! The waits of the queue make the calls, on either stack, so bytes leave the stream only when they
//! are reported. A kernel socket is watched edge-triggered.

use crate::events::registrations::pool::{Group, Groups};
use crate::events::registrations::relay::{later, receive};
use crate::events::registrations::socket::{End, Stream};
use crate::events::{EventKind, Token};
use crate::host::AnyBuffer;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Bytes that a multishot receive has received.
#[derive(Debug)]
#[non_exhaustive]
pub struct Received<B = Vec<u8>> {
    /// The bytes are at its start; its length is unchanged. It belongs to the program, which may
    /// [give](crate::events::EventQueue::give) it back.
    pub buffer: B,
    /// Number of bytes received.
    pub len: usize,
}

/// A multishot receive. See the module documentation.
pub(in crate::events) struct Multishot {
    stream: Stream,
    group: Group,
    /// Reported, and not taken.
    filled: VecDeque<Received<AnyBuffer>>,
    /// The lack of a buffer was reported, and no bytes were received since.
    is_starved: bool,
    /// It waits for a buffer of its group.
    is_waiting: bool,
    end: Option<io::Result<()>>,
}

impl Multishot {
    pub(in crate::events) fn new(stream: Stream, group: Group) -> Self {
        let filled = VecDeque::new();
        Self { stream, group, filled, is_starved: false, is_waiting: false, end: None }
    }

    /// Returns the kernel's socket, if it is one.
    pub(in crate::events) fn fd(&self) -> Option<&dyn AsFd> {
        let socket: &Arc<OwnedFd> = self.stream.as_kernel()?;
        Some(socket)
    }

    pub(in crate::events) fn group(&self) -> Group {
        self.group
    }

    /// Continues and returns the next event. After `None`, `waker` is woken, the kernel's socket
    /// becomes ready, or a buffer is given, when it should be polled again.
    pub(in crate::events) fn poll(
        &mut self,
        waker: &Waker,
        groups: &mut Groups,
        token: Token,
    ) -> Option<EventKind> {
        let cx = &mut Context::from_waker(waker);
        let pool = groups.get(self.group)?;
        if self.end.is_none() {
            let found = match pool.take() {
                Some(mut buffer) => match receive(&self.stream, cx, buffer.bytes_mut()) {
                    Poll::Ready(Ok(len @ 1..)) => {
                        self.is_starved = false;
                        self.filled.push_back(Received { buffer, len });
                        return Some(EventKind::Received { bytes: len });
                    }
                    other => {
                        pool.put(buffer);
                        other
                    }
                },
                None => look(&self.stream, cx),
            };
            match found {
                Poll::Pending => return None,
                Poll::Ready(Ok(1..)) => {
                    if !std::mem::replace(&mut self.is_waiting, true) {
                        pool.enqueue(token);
                    }
                    let was_starved = std::mem::replace(&mut self.is_starved, true);
                    return (!was_starved).then_some(EventKind::Starved);
                }
                Poll::Ready(found) => self.end = Some(found.map(|_| ())),
            }
        }
        Some(EventKind::Completed)
    }

    /// Notes that it no longer waits for a buffer, to be polled again.
    pub(in crate::events) fn stopped_waiting(&mut self) {
        self.is_waiting = false;
    }

    /// Ends it for this reason, unless it has ended.
    pub(in crate::events) fn stop(&mut self, why: Errno) {
        self.end.get_or_insert_with(|| Err(why.into()));
    }

    /// Takes the oldest bytes; or, if the end was reported (`is_reported`), the result.
    pub(in crate::events) fn take(
        &mut self,
        is_reported: bool,
    ) -> Option<io::Result<Received<AnyBuffer>>> {
        if let Some(received) = self.filled.pop_front() {
            return Some(Ok(received));
        }
        let end = if is_reported { self.end.take() } else { None };
        Some(end?.map(|()| Received { buffer: AnyBuffer::new(Vec::new()), len: 0 }))
    }

    /// Takes the buffers that were filled and not taken.
    pub(in crate::events) fn take_all(&mut self) -> impl Iterator<Item = AnyBuffer> + '_ {
        self.filled.drain(..).map(|received| received.buffer)
    }
}

/// Checks whether there is something to receive, and leaves it in the stream.
fn look(stream: &Stream, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
    match &stream.0 {
        End::Host(stream) => stream.poll_peek(cx, &mut [0]),
        End::Kernel(socket) => {
            let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            later(|| Ok(rustix::net::recv(socket, &mut [0], flags)?.0))
        }
    }
}
