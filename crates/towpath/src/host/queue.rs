//! The send queue of a stream: what its program has sent and the stack has not taken yet.
//!
//! The program's thread appends here, under a lock of this queue alone, and the worker takes all
//! there is at once; so a send never waits for the stack. What the stack has no room for stays with
//! the worker. Bytes that were copied count with a budget of the queue until the stack takes them,
//! lent ones with those of their [`Account`] until they are returned: a program that sends faster
//! than the network waits for one of these.

use super::budget::Budget;
use super::lend::Source;
use super::sending::{Account, Share};
use super::terms::Copying;
use super::wait::Waiters;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use towpath_net::socket::{Error, LentCall, SocketId};
use towpath_net::time::Instant;
use towpath_packet::Piece;

/// Copied bytes that one queue holds: what a worker passes on in a few turns.
pub(super) const QUEUED_MAX: usize = 256 << 10;
/// Most bytes of one loan: a super-packet. A receiver who keeps a part keeps all of the loan, and a
/// recall gives back one after the other.
pub(super) const LOAN_BYTES_MAX: usize = 64 << 10;

/// One thing to do, in the order of the calls.
pub(super) enum Op {
    /// Bytes that were copied into a frame.
    Copied(Piece),
    Lent(LentOp),
    /// Nothing more is sent.
    ShutDown,
    /// The socket has no owner any more.
    Close,
}

/// A buffer that is lent, of which the stack has taken the first `done` bytes. Fields are dropped
/// in this order: what is held of the buffer goes before the share.
pub(super) struct LentOp {
    pub(super) source: Arc<dyn Source>,
    pub(super) call: LentCall,
    pub(super) done: usize,
    /// Some of the call's bytes were taken.
    pub(super) begun: bool,
    /// When the buffer is to be back.
    pub(super) due: Option<Instant>,
    /// The copy of what was left then, in the making.
    pub(super) copying: Option<Box<Copying>>,
    pub(super) ticket: Share,
}

impl Op {
    /// Bytes that it sends.
    pub(super) fn len(&self) -> usize {
        match self {
            Op::Copied(piece) => piece.len(),
            Op::Lent(lent) => lent.source.len() - lent.done,
            Op::ShutDown | Op::Close => 0,
        }
    }

    /// When its memory is to be back.
    pub(super) fn due(&self) -> Option<Instant> {
        match self {
            Op::Lent(lent) => lent.due,
            Op::Copied(_) | Op::ShutDown | Op::Close => None,
        }
    }

    /// It will not be sent.
    pub(super) fn give_up(self, queue: &SendQueue) {
        match self {
            Op::Copied(piece) => queue.room.give(piece.len()),
            Op::Lent(_) | Op::ShutDown | Op::Close => {}
        }
    }
}

impl LentOp {
    /// A buffer of which nothing was taken yet.
    pub(super) fn new(source: Arc<dyn Source>, ticket: Share, due: Option<Instant>) -> Self {
        let call = LentCall::default();
        Self { source, call, done: 0, begun: false, due, copying: None, ticket }
    }
}

/// The program's side of a send queue.
pub(super) struct SendQueue {
    pub(super) id: SocketId,
    inbox: Mutex<Inbox>,
    /// Room for bytes that are copied.
    pub(super) room: Budget,
    pub(super) account: Arc<Account>,
    /// Event queues that are to hear when there is room again after a call that found none.
    watchers: Mutex<Waiters>,
}

#[derive(Default)]
struct Inbox {
    ops: VecDeque<Op>,
    /// The worker is told, and has not looked yet.
    listed: bool,
    failed: Option<Failed>,
}

/// The stack takes nothing more.
struct Failed {
    error: Error,
    told: bool,
}

impl SendQueue {
    pub(super) fn new(id: SocketId, account: Arc<Account>) -> Self {
        let (inbox, room) = (Mutex::default(), Budget::new(QUEUED_MAX));
        Self { id, inbox, room, account, watchers: Mutex::default() }
    }

    /// `waker` is to be woken when there is room again after a call that finds none.
    pub(super) fn watch(&self, waker: &Waker) {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner).add(waker);
    }

    /// A call found no room: leaves the wakers of those who want to hear of it by `leave`.
    pub(super) fn found_none(&self, leave: impl Fn(&Waker)) {
        let watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner).take();
        watchers.iter().for_each(leave);
    }

    /// Appends. True if the worker is to be told; hands back what the stack will not take.
    pub(super) fn push(&self, op: Op) -> Result<bool, Op> {
        let mut inbox = self.lock();
        if inbox.failed.is_some() && !matches!(op, Op::Close) {
            return Err(op);
        }
        if matches!(op, Op::ShutDown) {
            inbox.failed = Some(Failed { error: Error::BrokenPipe, told: true });
        }
        inbox.ops.push_back(op);
        Ok(!std::mem::replace(&mut inbox.listed, true))
    }

    /// For the worker: moves all to `pending`.
    pub(super) fn take(&self, pending: &mut VecDeque<Op>) {
        let mut inbox = self.lock();
        inbox.listed = false;
        if pending.is_empty() {
            std::mem::swap(&mut inbox.ops, pending);
        } else {
            pending.append(&mut inbox.ops);
        }
    }

    /// For the worker: sending has failed for good. Who waits for room is told.
    pub(super) fn fail(&self, error: Error) {
        let mut inbox = self.lock();
        if inbox.failed.as_ref().is_none_or(|failed| failed.error == Error::BrokenPipe) {
            inbox.failed = Some(Failed { error, told: error == Error::BrokenPipe });
        }
        drop(inbox);
        self.room.wake();
        self.account.levels.wake();
    }

    /// Why sending fails: the reason once, then that it is over.
    pub(super) fn failure(&self) -> Option<Error> {
        let mut inbox = self.lock();
        let failed = inbox.failed.as_mut()?;
        let told = std::mem::replace(&mut failed.told, true);
        Some(if told { Error::BrokenPipe } else { failed.error })
    }

    /// The reason why sending failed, if no call has been told.
    pub(super) fn untold_failure(&self) -> Option<Error> {
        let mut inbox = self.lock();
        let failed = inbox.failed.as_mut().filter(|failed| !failed.told)?;
        failed.told = true;
        Some(failed.error)
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
