//! What became of a send that lends: the buffer on its way back.

use super::budget::Levels;
use super::calibration::Watch;
use super::core::Core;
use super::lend::{Lend, Parcel, Source};
use super::wait::{Waiters, block};
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use towpath_net::socket::SocketId;
use towpath_packet::Lender;
use towpath_packet::sync::{AtomicU32, AtomicU64, Ordering};

/// Bit of [`Ticket::word`]: somebody waits.
const WATCHED: u32 = 1 << 31;
/// Bit of [`Ticket::word`]: bytes were copied after all.
const COPIED: u32 = 1 << 30;
/// The other bits: shares.
const SHARES: u32 = COPIED - 1;

/// [`Ticket::number`] of a send of which the stack took nothing.
const NO_NUMBER: u64 = u64::MAX;

/// What the sends of a socket count with, and who is asked to give their memory back.
pub(super) struct Account {
    pub(super) levels: Levels,
    /// `None` of sends that nobody asks for.
    pub(super) socket: Option<(Weak<Core>, SocketId)>,
    /// Who else is told of each loan's end, known from the first loan on.
    group: OnceLock<Arc<dyn Lender>>,
}

impl Account {
    pub(super) fn new(levels: Levels, socket: Option<(Weak<Core>, SocketId)>) -> Self {
        Self { levels, socket, group: OnceLock::new() }
    }
}

/// Counts who still has a part in a send: its place in the send queue, and each loan of its bytes.
/// When none is left, the memory is nobody's but the sender's.
pub(super) struct Ticket {
    word: AtomicU32,
    waiters: Mutex<Waiters>,
    account: Arc<Account>,
    charge: usize,
    /// The call's number among those of its socket that lend, once it has one.
    number: AtomicU64,
    /// Who hears how it went; boxed, as few sends are watched and each has a ticket.
    watch: OnceLock<Box<Watch>>,
}

impl Ticket {
    /// With one share. `charge` was taken from the levels of `account`.
    pub(super) fn begin(account: Arc<Account>, charge: usize) -> (Arc<Self>, Share) {
        let ticket = Arc::new(Self {
            word: AtomicU32::new(1),
            waiters: Mutex::default(),
            account,
            charge,
            number: AtomicU64::new(NO_NUMBER),
            watch: OnceLock::new(),
        });
        (ticket.clone(), Share(ticket))
    }

    /// The stack took the first bytes, as the call of this number.
    pub(super) fn begun(&self, number: u32) {
        // Relaxed, here and in `number`: both are called with the lock of the core.
        self.number.store(number.into(), Ordering::Relaxed);
    }

    /// Has `watch` hear how the send goes, unless all is back already.
    pub(super) fn observe(&self, watch: Option<Watch>) {
        if let Some(watch) = watch {
            self.watch.get_or_init(|| Box::new(watch));
        }
    }

    /// The call's number, if the stack took any bytes.
    pub(super) fn number(&self) -> Option<u32> {
        u32::try_from(self.number.load(Ordering::Relaxed)).ok()
    }

    /// What the send counts with.
    pub(super) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Notes that bytes were copied after all.
    pub(super) fn mark_copied(&self) {
        // Relaxed: ordered by the decrement of the caller's share.
        self.word.fetch_or(COPIED, Ordering::Relaxed);
    }

    /// Asks for the memory, unless it is back or on its way.
    fn recall(&self) {
        let Some((core, id)) = &self.account.socket else { return };
        // A host that has ended gives back what it has by itself.
        if let Some(core) = core.upgrade().filter(|_| self.returned().is_none()) {
            core.call(|state, now| state.recall(*id, self, now.now));
        }
    }

    /// Token of a loan of which nobody else is told.
    pub(super) const ALONE: u64 = u64::MAX;

    /// Another share, for a loan; `group` is told of its end too, by the loan's token.
    pub(super) fn share(&self, group: Option<Arc<dyn Lender>>) {
        if let Some(group) = group {
            self.account.group.get_or_init(|| group);
        }
        // Relaxed: a share is made from a share, nothing is published by it.
        self.word.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes back a share of a loan that was not made; it is not the last.
    pub(super) fn unshare(&self) {
        // Relaxed: nothing was done with it.
        self.word.fetch_sub(1, Ordering::Relaxed);
    }

    /// Ends a share. What it held of the buffer has been dropped.
    fn end(&self, copied: bool) {
        if copied {
            self.mark_copied();
        }
        // AcqRel: what the share's holder did is over before the last one tells; pairs with the
        // other decrements and with the Acquire of `returned`.
        let before = self.word.fetch_sub(1, Ordering::AcqRel);
        if before & SHARES == 1 {
            self.account.levels.give(self.charge);
            if let Some(watch) = self.watch.get() {
                watch.over(before & COPIED != 0);
            }
            if before & WATCHED != 0 {
                let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
                let wakers = waiters.take();
                drop(waiters);
                wakers.into_iter().for_each(Waker::wake);
            }
        }
    }

    /// Whether all shares are gone, and if so whether bytes were copied.
    fn returned(&self) -> Option<bool> {
        // Acquire: pairs with the decrements in `end`.
        let word = self.word.load(Ordering::Acquire);
        (word & SHARES == 0).then_some(word & COPIED != 0)
    }

    /// Leaves a waker, unless there is nothing left to wait for.
    pub(super) fn watch(&self, waker: &Waker) -> Option<bool> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner).add(waker);
        // AcqRel: the last share's end sees the bit and so the waker, or this sees that it ended.
        let word = self.word.fetch_or(WATCHED, Ordering::AcqRel);
        (word & SHARES == 0).then_some(word & COPIED != 0)
    }
}

/// The share of a place in the send queue, which ends when it is dropped.
pub(super) struct Share(Arc<Ticket>);

impl Share {
    /// Who is told of loans.
    pub(super) fn lender(&self) -> Arc<Ticket> {
        self.0.clone()
    }

    /// True if it is a share of this ticket.
    pub(super) fn is(&self, ticket: &Ticket) -> bool {
        std::ptr::eq(&*self.0, ticket)
    }
}

impl Deref for Share {
    type Target = Ticket;

    fn deref(&self) -> &Ticket {
        &self.0
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.0.end(false);
    }
}

impl Lender for Ticket {
    fn returned(&self, token: u64, copied: bool) {
        if let Some(group) = self.account.group.get().filter(|_| token != Self::ALONE) {
            group.returned(token, copied);
        }
        self.end(copied);
    }
}

/// A send that lent its buffer, until the buffer is back.
///
/// Dropping it gives up the buffer, which is freed when the last loan of it has ended; what was
/// accepted is sent all the same. It is a future, too, and outlives its socket.
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
    /// Its bytes were copied, at the call or after all; all of them or some.
    pub copied: bool,
}

impl<B: Lend> Sending<B> {
    pub(super) fn lent(held: Arc<Parcel<B>>, ticket: Arc<Ticket>) -> Self {
        let accepted = held.len();
        Self { accepted, back: None, lent: Some((held, ticket)) }
    }

    /// As the socket took so many bytes only.
    pub(super) fn with_accepted(self, accepted: usize) -> Self {
        Self { accepted, ..self }
    }

    /// Of a buffer whose first `accepted` bytes were copied.
    pub(super) fn copied(buffer: B, accepted: usize) -> Self {
        Self { accepted, back: Some((buffer, accepted > 0)), lent: None }
    }

    /// Bytes that the socket took to be sent: the first of the buffer. Fewer than all only if the
    /// call could not wait, or an error came, when some were copied or sent as datagrams.
    pub fn accepted(&self) -> usize {
        self.accepted
    }

    /// True if the buffer is back: [`Sending::returned`] will not wait.
    pub fn is_returned(&self) -> bool {
        self.lent.as_ref().is_none_or(|(_, ticket)| ticket.returned().is_some())
    }

    /// Who tells of the return, or whether the buffer that is back was copied.
    pub(super) fn ticket(&self) -> Result<Arc<Ticket>, bool> {
        match (&self.lent, &self.back) {
            (Some((_, ticket)), _) => Ok(ticket.clone()),
            (None, back) => Err(back.as_ref().is_some_and(|(_, copied)| *copied)),
        }
    }

    /// Asks for the buffer: what is still held of it is copied, so that it comes back within
    /// milliseconds, as [copied](Returned::copied), though the peer may never read. Nothing is
    /// closed or lost, and nothing is waited for here. No effect if the buffer is back.
    ///
    /// Other sends that went out in one packet with this one come back, too. While a receiver in
    /// this process looks at the bytes ([`Held::bytes`](super::Held::bytes)), and without memory
    /// for the copy, the buffer stays lent, and it is tried again.
    pub fn recall(&self) {
        if let Some((_, ticket)) = &self.lent {
            ticket.recall();
        }
    }

    /// The buffer if it is back, else this again.
    ///
    /// # Errors
    /// The buffer is still lent.
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

    /// The buffer, when it is back.
    ///
    /// That is when the peer has acknowledged all of it and nobody else holds a part of it, or when
    /// its term is over. A peer in the same process that received without copying holds it until it
    /// drops what it received, or for the [default term](super::Config::default_term).
    ///
    /// It comes back once:
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

    /// The same, or this again when `timeout` has passed.
    ///
    /// # Errors
    /// The buffer is still lent.
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

    /// Takes the buffer, to which there is no other way any more.
    fn take(&mut self, copied: bool) -> Returned<B> {
        let (buffer, copied) = match self.lent.take() {
            // Whoever has a share drops his hold of the buffer before he ends it.
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

// Nothing points into it.
impl<B> Unpin for Sending<B> {}

impl<B> fmt::Debug for Sending<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sending").field("accepted", &self.accepted).finish_non_exhaustive()
    }
}

/// Sends whose buffers are collected in the order in which they were made.
#[derive(Debug)]
pub struct Completions<B>(VecDeque<Sending<B>>);

impl<B: Lend> Completions<B> {
    /// None.
    pub fn new() -> Self {
        Self(VecDeque::new())
    }

    /// Adds the send made last.
    pub fn push(&mut self, sending: Sending<B>) {
        self.0.push_back(sending);
    }

    /// Asks for all buffers, as [`Sending::recall`].
    pub fn recall(&self) {
        self.0.iter().for_each(Sending::recall);
    }

    /// Sends whose buffers were not collected.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if all were.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The buffer of the oldest send, if it is back.
    pub fn try_next(&mut self) -> Option<Returned<B>> {
        match self.0.pop_front()?.try_returned() {
            Ok(returned) => Some(returned),
            Err(sending) => {
                self.0.push_front(sending);
                None
            }
        }
    }

    /// The buffer of the oldest send, when it is back; `None` if there is no send.
    pub fn wait_next(&mut self) -> Option<Returned<B>> {
        self.0.pop_front().map(Sending::returned)
    }

    /// The same for tasks. Dropping the future loses nothing.
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

/// A send that lent nothing, with its buffer.
pub struct SendError<B> {
    /// Why.
    pub error: io::Error,
    /// The buffer.
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
