//! The send queue of a socket: what its program has sent and the stack has not accepted yet.
//! Everything that streams send goes through it, and what datagram sockets lend faster than it
//! comes back.
//!
//! The program's thread appends under a lock of this queue alone, and the worker takes everything
//! at once, so a send never waits for the stack. What the stack has no room for stays with the
//! worker. Copied bytes, and those passed on, are charged to a budget of the queue until the stack
//! accepts them, lent bytes to those of their [`Account`] until they come back: a program that
//! sends faster than the network waits for one of these. Datagrams have no flow control, so they
//! are charged to the budget of the queue in either case.
//!
//! A datagram that cannot be sent must fail with its call. So a datagram is queued only if it is
//! sent in the same way as one that the stack accepted, and is not longer. The [`Door`] keeps this
//! until something happens that may change it.

use crate::host::lending::budget::Budget;
use crate::host::lending::lend::Source;
use crate::host::lending::ticket::{Account, Share};
use crate::host::wait::Waiters;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use towpath_net::socket::{Error, LentCall, SendTo, SocketId};
use towpath_net::time::Instant;
use towpath_packet::Piece;

/// Bytes charged for each lending send in addition to its length, so that a budget of bytes also
/// bounds the number of sends.
pub const LENT_OVERHEAD: usize = 1024;
/// Most copied bytes in one queue: what a worker passes on in a few turns.
pub(in crate::host) const QUEUED_MAX: usize = 256 << 10;
/// Capacity of a queue of lent datagrams, in units of [`work_of`]: about a millisecond of work, so
/// that a program that waits for room rarely sleeps and wakes up.
pub(in crate::host) const DATAGRAMS_QUEUED_MAX: usize = 4 << 20;
/// Bytes of a buffer that count as one unit of work. They travel in super-packets, with a loan per
/// 64 KiB, and take a fraction of the work of a call.
const BYTES_PER_WORK: usize = 4;
/// Most bytes of one loan: a super-packet. A receiver that keeps a part of a loan keeps all of it,
/// and a recall returns one loan after the other.
pub(in crate::host) const LOAN_BYTES_MAX: usize = 64 << 10;

/// Returns how much of a queue's room a buffer of `len` bytes takes if it is sent as datagrams. The
/// room bounds the worker's time; the budgets of lent bytes bound the memory.
pub(in crate::host) fn work_of(len: usize) -> usize {
    LENT_OVERHEAD + len / BYTES_PER_WORK
}

/// An entry of a send queue, in the order of the calls.
pub(in crate::host) enum Op {
    /// Bytes that were copied into a frame, or that are passed on from another stream. Their memory
    /// goes back without a notice.
    Piece(Piece),
    Lent(LentOp),
    /// A buffer that is lent as one or several datagrams.
    Datagrams(LentOp),
    /// End of the stream's data.
    ShutDown,
    /// The socket was dropped.
    Close,
}

/// A lent buffer, of which the stack has accepted the first `done` bytes. Fields are dropped in
/// this order: the hold of the buffer before the share.
pub(in crate::host) struct LentOp {
    pub(in crate::host) source: Arc<dyn Source>,
    pub(in crate::host) call: LentCall,
    pub(in crate::host) done: usize,
    /// The stack has accepted some of the call's bytes.
    pub(in crate::host) begun: bool,
    /// When the buffer must be back.
    pub(in crate::host) due: Option<Instant>,
    /// The copy of the rest, which is made once the term is over.
    pub(in crate::host) copying: Option<Box<Copying>>,
    /// Its share of the queue's room.
    pub(in crate::host) room: usize,
    pub(in crate::host) ticket: Share,
}

/// A copy of the part of a buffer that was left when its term ended.
pub(in crate::host) struct Copying {
    /// Offset of the copy in the buffer.
    pub(in crate::host) from: usize,
    pub(in crate::host) bytes: Vec<u8>,
}

impl Op {
    /// Returns the number of bytes that it still has to send.
    pub(in crate::host) fn len(&self) -> usize {
        match self {
            Op::Piece(piece) => piece.len(),
            Op::Lent(lent) | Op::Datagrams(lent) => lent.source.len() - lent.done,
            Op::ShutDown | Op::Close => 0,
        }
    }

    /// Returns when its memory must be back.
    pub(in crate::host) fn due(&self) -> Option<Instant> {
        match self {
            Op::Lent(lent) | Op::Datagrams(lent) => lent.due,
            Op::Piece(_) | Op::ShutDown | Op::Close => None,
        }
    }

    /// Returns the lent buffer, if it has one.
    pub(in crate::host) fn lent_mut(&mut self) -> Option<&mut LentOp> {
        match self {
            Op::Lent(lent) | Op::Datagrams(lent) => Some(lent),
            Op::Piece(_) | Op::ShutDown | Op::Close => None,
        }
    }

    /// Drops an entry that will not be sent.
    pub(in crate::host) fn give_up(self, queue: &SendQueue) {
        match self {
            Op::Piece(piece) => queue.room.give(piece.len()),
            Op::Lent(_) | Op::Datagrams(_) | Op::ShutDown | Op::Close => {}
        }
    }
}

impl LentOp {
    /// Creates an entry of which the stack has accepted nothing yet.
    pub(in crate::host) fn new(
        source: Arc<dyn Source>,
        ticket: Share,
        due: Option<Instant>,
    ) -> Self {
        let call = LentCall::default();
        Self { source, call, done: 0, begun: false, due, copying: None, room: 0, ticket }
    }
}

/// The program's side of a send queue.
pub(in crate::host) struct SendQueue {
    pub(in crate::host) id: SocketId,
    inbox: Mutex<Inbox>,
    /// Room for copied bytes, or for datagrams.
    pub(in crate::host) room: Budget,
    pub(in crate::host) account: Arc<Account>,
    /// Event queues to notify when there is room again after a call that found none.
    watchers: Mutex<Waiters>,
}

#[derive(Default)]
struct Inbox {
    ops: VecDeque<Op>,
    /// The worker was notified and has not looked yet.
    listed: bool,
    failed: Option<Failed>,
    door: Door,
}

/// Datagrams that may be queued.
#[derive(Default)]
struct Door {
    /// Options of the calls that may be queued, without a term.
    asked: SendTo,
    /// The options with which such calls are sent.
    sent_as: SendTo,
    /// Largest length; `None` if no datagrams may be queued.
    most: Option<usize>,
}

/// The stack accepts nothing more.
struct Failed {
    error: Error,
    reported: bool,
}

impl SendQueue {
    /// Creates the queue of a stream.
    pub(in crate::host) fn new(id: SocketId, account: Arc<Account>) -> Self {
        let (inbox, room) = (Mutex::default(), Budget::new(QUEUED_MAX));
        Self { id, inbox, room, account, watchers: Mutex::default() }
    }

    /// Creates the queue of a datagram socket.
    pub(in crate::host) fn for_datagrams(id: SocketId, account: Arc<Account>) -> Self {
        Self { room: Budget::new(DATAGRAMS_QUEUED_MAX), ..Self::new(id, account) }
    }

    /// Leaves a waker that is woken when there is room again after a call that finds none.
    pub(in crate::host) fn watch(&self, waker: &Waker) {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner).add(waker);
    }

    /// Called when a call found no room: passes the wakers left by [`watch`](Self::watch) to
    /// `leave`.
    pub(in crate::host) fn found_none(&self, leave: impl Fn(&Waker)) {
        let watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner).take();
        watchers.iter().for_each(leave);
    }

    /// Appends an entry. Returns true if the worker must be notified, or hands the entry back if
    /// the stack will not accept it.
    pub(in crate::host) fn push(&self, op: Op) -> Result<bool, Op> {
        let mut inbox = self.lock();
        if inbox.failed.is_some() && !matches!(op, Op::Close) {
            return Err(op);
        }
        if matches!(op, Op::ShutDown) {
            inbox.failed = Some(Failed { error: Error::BrokenPipe, reported: true });
        }
        inbox.ops.push_back(op);
        Ok(!std::mem::replace(&mut inbox.listed, true))
    }

    /// Appends entries that lend, with nothing in between. Returns true if the worker must be
    /// notified, or hands the entries back if the stack will not accept them.
    pub(in crate::host) fn push_all(&self, ops: Vec<Op>) -> Result<bool, Vec<Op>> {
        let mut inbox = self.lock();
        if inbox.failed.is_some() {
            return Err(ops);
        }
        inbox.ops.extend(ops);
        Ok(!std::mem::replace(&mut inbox.listed, true))
    }

    /// Appends datagrams that are sent with `send`, its term aside, and for which the caller has
    /// taken room. Returns true if the worker must be notified, or hands them back if only the
    /// stack knows whether they can be sent.
    pub(in crate::host) fn push_datagrams(
        &self,
        lent: LentOp,
        send: &SendTo,
    ) -> Result<bool, LentOp> {
        let mut inbox = self.lock();
        let Door { asked, most, .. } = &inbox.door;
        let fits = most.is_some_and(|most| lent.source.len() <= most);
        if !fits || *asked != (SendTo { term: None, ..*send }) {
            return Err(lent);
        }
        inbox.ops.push_back(Op::Datagrams(lent));
        Ok(!std::mem::replace(&mut inbox.listed, true))
    }

    /// Allows queueing of datagrams like one of `len` bytes that the stack has just accepted. The
    /// caller holds the core's lock, and nothing is pending. `asked` are the options of its call,
    /// `sent_as` those with which it was sent.
    pub(in crate::host) fn open(&self, asked: &SendTo, sent_as: &SendTo, len: usize) {
        let (asked, sent_as) = (SendTo { term: None, ..*asked }, SendTo { term: None, ..*sent_as });
        let mut inbox = self.lock();
        let Inbox { door, ops, .. } = &mut *inbox;
        if door.asked == asked && door.sent_as == sent_as {
            door.most = door.most.max(Some(len));
        } else if ops.is_empty() {
            // Datagrams that another thread has queued meanwhile keep their options.
            *door = Door { asked, sent_as, most: Some(len) };
        }
    }

    /// Ends queueing until the stack accepts another datagram.
    pub(in crate::host) fn shut(&self) {
        self.lock().door.most = None;
    }

    /// Returns the options with which queued datagrams are sent.
    pub(in crate::host) fn sent_as(&self) -> SendTo {
        self.lock().door.sent_as
    }

    /// For the worker: moves all entries to `pending`.
    pub(in crate::host) fn take(&self, pending: &mut VecDeque<Op>) {
        let mut inbox = self.lock();
        inbox.listed = false;
        if pending.is_empty() {
            std::mem::swap(&mut inbox.ops, pending);
        } else {
            pending.append(&mut inbox.ops);
        }
    }

    /// For the worker: notes that sending has failed permanently, and wakes the waiters for room.
    pub(in crate::host) fn fail(&self, error: Error) {
        let mut inbox = self.lock();
        if inbox.failed.as_ref().is_none_or(|failed| failed.error == Error::BrokenPipe) {
            inbox.failed = Some(Failed { error, reported: error == Error::BrokenPipe });
        }
        drop(inbox);
        self.room.wake();
        self.account.levels.wake();
    }

    /// Returns why sending fails: the reason once, then `BrokenPipe`.
    pub(in crate::host) fn failure(&self) -> Option<Error> {
        let mut inbox = self.lock();
        let failed = inbox.failed.as_mut()?;
        let reported = std::mem::replace(&mut failed.reported, true);
        Some(if reported { Error::BrokenPipe } else { failed.error })
    }

    /// Returns why sending failed, if no call has returned it yet.
    pub(in crate::host) fn unreported_failure(&self) -> Option<Error> {
        let mut inbox = self.lock();
        let failed = inbox.failed.as_mut().filter(|failed| !failed.reported)?;
        failed.reported = true;
        Some(failed.error)
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
