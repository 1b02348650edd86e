//! Handles of sends that lend, through which buffers come back.

use crate::host::lending::lend::{Lend, Parcel, Source};
use crate::host::lending::ticket::Ticket;
use crate::host::wait::block;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// A send that lent its buffer, until the buffer is back. It is also a future, and outlives its
/// socket.
///
/// Dropping it gives up the buffer, which is freed when its last loan has ended; accepted bytes are
/// still sent.
#[must_use = "the buffer comes back here"]
pub struct Sending<B> {
    accepted: usize,
    /// A buffer that came back at once, and whether it was copied.
    back: Option<(B, bool)>,
    lent: Option<(Arc<Parcel<B>>, Arc<Ticket>)>,
}

/// A buffer that came back.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Returned<B> {
    /// The buffer.
    pub buffer: B,
    /// True if some or all of its bytes were copied, at the call or later.
    pub copied: bool,
}

impl<B: Lend> Sending<B> {
    pub(in crate::host) fn lent(held: Arc<Parcel<B>>, ticket: Arc<Ticket>) -> Self {
        let accepted = held.len();
        Self { accepted, back: None, lent: Some((held, ticket)) }
    }

    /// Sets the number of accepted bytes.
    pub(in crate::host) fn with_accepted(self, accepted: usize) -> Self {
        Self { accepted, ..self }
    }

    /// Creates the handle of a buffer whose first `accepted` bytes were copied.
    pub(in crate::host) fn copied(buffer: B, accepted: usize) -> Self {
        Self { accepted, back: Some((buffer, accepted > 0)), lent: None }
    }

    /// Returns the number of bytes that the socket accepted, from the start of the buffer. It is
    /// less than the length only if a non-blocking call or an error ended the send after some bytes
    /// were copied or sent as datagrams.
    pub fn accepted(&self) -> usize {
        self.accepted
    }

    /// Returns true if the buffer is back: [`Sending::returned`] will not block.
    pub fn is_returned(&self) -> bool {
        self.lent.as_ref().is_none_or(|(_, ticket)| ticket.returned().is_some())
    }

    /// Returns the ticket that reports the return, or whether the buffer that is back was copied.
    pub(in crate::host) fn ticket(&self) -> Result<Arc<Ticket>, bool> {
        match (&self.lent, &self.back) {
            (Some((_, ticket)), _) => Ok(ticket.clone()),
            (None, back) => Err(back.as_ref().is_some_and(|(_, copied)| *copied)),
        }
    }

    /// Recalls the buffer: bytes that are still held are copied, so that the buffer comes back
    /// within milliseconds, as [copied](Returned::copied), even if the peer never reads. Nothing is
    /// closed or lost, and the call does not block. No effect if the buffer is back.
    ///
    /// Other sends that share a packet with this one also come back. While a receiver in this
    /// process looks at the bytes ([`ReceivedPiece::bytes`](crate::host::ReceivedPiece::bytes)), or
    /// while there is no memory for the copy, the buffer stays lent and the recall is retried.
    pub fn recall(&self) {
        if let Some((_, ticket)) = &self.lent {
            ticket.recall();
        }
    }

    /// Returns the buffer if it is back.
    ///
    /// # Errors
    /// Returns `self` if the buffer is still lent.
    pub fn try_returned(mut self) -> Result<Returned<B>, Self> {
        let copied = match &self.lent {
            Some((_, ticket)) => ticket.returned(),
            None => Some(false),
        };
        match copied {
            Some(copied) => Ok(self.take(copied)),
            None => Err(self),
        }
    }

    /// Blocks until the buffer is back.
    ///
    /// The buffer is back when the peer has acknowledged all of it and no one else holds a part of
    /// it, or when its term is over. A peer in the same process that received without copying holds
    /// it until it drops what it received, or for the [default
    /// term](crate::host::Config::default_term).
    ///
    /// The buffer comes back once:
    ///
    /// ```compile_fail,E0382
    /// # use towpath::host::Sending;
    /// fn wait(sending: Sending<Vec<u8>>) {
    ///     let first = sending.returned();
    ///     let second = sending.returned();
    /// }
    /// ```
    pub fn returned(self) -> Returned<B> {
        match self.wait(None) {
            Ok(returned) => returned,
            Err(_) => unreachable!("waited without an end"),
        }
    }

    /// Blocks like [`Sending::returned`], but at most for `timeout`.
    ///
    /// # Errors
    /// Returns `self` if the buffer is still lent.
    pub fn returned_within(self, timeout: Duration) -> Result<Returned<B>, Self> {
        self.wait(Some(timeout))
    }

    fn wait(mut self, timeout: Option<Duration>) -> Result<Returned<B>, Self> {
        block(timeout, |cx| self.poll_returned(cx)).ok_or(self)
    }

    fn poll_returned(&mut self, cx: &mut Context<'_>) -> Poll<Returned<B>> {
        let copied = match &self.lent {
            Some((_, ticket)) => ticket.returned().or_else(|| ticket.watch(cx.waker())),
            None => Some(false),
        };
        match copied {
            Some(copied) => Poll::Ready(self.take(copied)),
            None => Poll::Pending,
        }
    }

    /// Takes the buffer, which only this handle holds now.
    fn take(&mut self, copied: bool) -> Returned<B> {
        let (buffer, copied) = match self.lent.take() {
            // A share's holder drops its hold of the buffer before it ends the share.
            Some((held, _)) => {
                (Arc::into_inner(held).expect("the last hold is ours").into_buffer(), copied)
            }
            None => self.back.take().expect("a future is done once"),
        };
        let copied = copied || buffer.is_copy();
        Returned { buffer, copied }
    }
}

impl<B: Lend> Future for Sending<B> {
    type Output = Returned<B>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Returned<B>> {
        self.get_mut().poll_returned(cx)
    }
}

// No field is pinned.
impl<B> Unpin for Sending<B> {}

impl<B> fmt::Debug for Sending<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sending").field("accepted", &self.accepted).finish_non_exhaustive()
    }
}

/// Sends whose buffers are collected in the order in which the sends were made.
#[derive(Debug)]
pub struct Completions<B>(VecDeque<Sending<B>>);

impl<B: Lend> Completions<B> {
    /// Creates an empty collection.
    pub fn new() -> Self {
        Self(VecDeque::new())
    }

    /// Adds a send, which must be the most recent one.
    pub fn push(&mut self, sending: Sending<B>) {
        self.0.push_back(sending);
    }

    /// Recalls all buffers, like [`Sending::recall`].
    pub fn recall(&self) {
        self.0.iter().for_each(Sending::recall);
    }

    /// Returns the number of sends whose buffers were not collected.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if all buffers were collected.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the buffer of the oldest send, if it is back.
    pub fn try_next(&mut self) -> Option<Returned<B>> {
        match self.0.pop_front()?.try_returned() {
            Ok(returned) => Some(returned),
            Err(sending) => {
                self.0.push_front(sending);
                None
            }
        }
    }

    /// Blocks until the buffer of the oldest send is back; returns `None` if there is no send.
    pub fn wait_next(&mut self) -> Option<Returned<B>> {
        self.0.pop_front().map(Sending::returned)
    }

    /// Waits for the buffer of the oldest send, as a future. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Returned<B>> {
        let returned = self.0.front_mut()?.await;
        self.0.pop_front();
        Some(returned)
    }
}

impl<B: Lend> Default for Completions<B> {
    fn default() -> Self {
        Self::new()
    }
}

/// A failed send that lent nothing, with its buffer.
#[non_exhaustive]
pub struct SendError<B> {
    /// Why the send failed.
    pub error: io::Error,
    /// The buffer, handed back.
    pub buffer: B,
}

impl<B> fmt::Debug for SendError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendError").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<B> fmt::Display for SendError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B> std::error::Error for SendError<B> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl<B> From<SendError<B>> for io::Error {
    fn from(error: SendError<B>) -> Self {
        error.error
    }
}
