//! Receives that go on: each arrival is told with a buffer of a group, until the stream ends.
//!
//! The waits of the queue make the calls, on either stack: so bytes are taken from the stream when
//! they are told, and not before. A socket of the kernel is watched by edge meanwhile.

use crate::events::registrations::pool::{Group, Groups};
use crate::events::registrations::relay::{later, receive};
use crate::events::registrations::socket::{End, Stream};
use crate::events::{News, Token};
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
pub struct Received {
    /// They are at its beginning; its length is as before. It is the program's, to be
    /// [given](crate::events::EventQueue::give) back or not.
    pub buffer: Vec<u8>,
    /// How many.
    pub len: usize,
}

/// See the module's documentation.
pub(in crate::events) struct Multishot {
    stream: Stream,
    group: Group,
    /// Told, and not taken.
    filled: VecDeque<Received>,
    /// That there is no buffer was told, and none was found since.
    is_starved: bool,
    /// It stands in the line of its group.
    is_in_line: bool,
    end: Option<io::Result<()>>,
}

impl Multishot {
    pub(in crate::events) fn new(stream: Stream, group: Group) -> Self {
        let filled = VecDeque::new();
        Self { stream, group, filled, is_starved: false, is_in_line: false, end: None }
    }

    /// The kernel's socket, if it is one.
    pub(in crate::events) fn fd(&self) -> Option<&dyn AsFd> {
        let socket: &Arc<OwnedFd> = self.stream.as_kernel()?;
        Some(socket)
    }

    pub(in crate::events) fn group(&self) -> Group {
        self.group
    }

    /// Goes on; what there is to tell. If nothing, `waker` is woken, the kernel's socket is ready,
    /// or a buffer is given, when it is worth trying again.
    pub(in crate::events) fn poll(
        &mut self,
        waker: &Waker,
        groups: &mut Groups,
        token: Token,
    ) -> Option<News> {
        let cx = &mut Context::from_waker(waker);
        let pool = groups.get(self.group)?;
        if self.end.is_none() {
            let found = match pool.take() {
                Some(mut buffer) => match receive(&self.stream, cx, &mut buffer) {
                    Poll::Ready(Ok(len @ 1..)) => {
                        self.is_starved = false;
                        self.filled.push_back(Received { buffer, len });
                        return Some(News::Received { bytes: len });
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
                    if !std::mem::replace(&mut self.is_in_line, true) {
                        pool.stand_in_line(token);
                    }
                    let was_starved = std::mem::replace(&mut self.is_starved, true);
                    return (!was_starved).then_some(News::Starved);
                }
                Poll::Ready(found) => self.end = Some(found.map(|_| ())),
            }
        }
        Some(News::Completed)
    }

    /// It is to be tried again, and stands in the line no more.
    pub(in crate::events) fn left_line(&mut self) {
        self.is_in_line = false;
    }

    /// Ends it for this reason, unless it is over.
    pub(in crate::events) fn stop(&mut self, why: Errno) {
        self.end.get_or_insert_with(|| Err(why.into()));
    }

    /// The oldest bytes; or what became of it, if that `is_told`.
    pub(in crate::events) fn take(&mut self, is_told: bool) -> Option<io::Result<Received>> {
        if let Some(received) = self.filled.pop_front() {
            return Some(Ok(received));
        }
        let end = if is_told { self.end.take() } else { None };
        Some(end?.map(|()| Received { buffer: Vec::new(), len: 0 }))
    }

    /// Buffers that were filled and not taken.
    pub(in crate::events) fn take_all(&mut self) -> impl Iterator<Item = Vec<u8>> + '_ {
        self.filled.drain(..).map(|received| received.buffer)
    }
}

/// Whether there is something to receive, which stays.
fn look(stream: &Stream, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
    match &stream.0 {
        End::Host(stream) => stream.poll_peek(cx, &mut [0]),
        End::Kernel(socket) => {
            let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            later(|| Ok(rustix::net::recv(socket, &mut [0], flags)?.0))
        }
    }
}
