//! The send queue of a socket: what its program has sent and the stack has not taken yet. All that
//! streams send goes through it, and of datagram sockets what they lend faster than it comes back.
//!
//! The program's thread appends here, under a lock of this queue alone, and the worker takes all
//! there is at once; so a send never waits for the stack. What the stack has no room for stays with
//! the worker. Bytes that were copied count with a budget of the queue until the stack takes them,
//! lent ones with those of their [`Account`] until they are returned: a program that sends faster
//! than the network waits for one of these. Datagrams, of which no peer says how many it takes,
//! count with the budget of the queue whether they are copied or not.
//!
//! A datagram that cannot be sent is refused by its call, so that only those are queued of which it
//! is known that they can: those that are sent in the same way as one that the stack took, and are
//! not longer. The [`Door`] says so until something happens that may change it.

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

/// What each send that lends counts with beside its bytes, so that a budget of bytes bounds the
/// number of sends, too.
pub const LENT_OVERHEAD: usize = 1024;
/// Copied bytes that one queue holds: what a worker passes on in a few turns.
pub(in crate::host) const QUEUED_MAX: usize = 256 << 10;
/// What one queue of lent datagrams holds ([`work_of`] each): a millisecond's work, so that a
/// program that waits for room sleeps and wakes seldom.
pub(in crate::host) const DATAGRAMS_QUEUED_MAX: usize = 4 << 20;
/// Bytes of a buffer that count as one of a call's share: they go in super-packets, with a loan for
/// each 64 KiB, and take a fraction of the work.
const BYTES_PER_WORK: usize = 4;
/// Most bytes of one loan: a super-packet. A receiver who keeps a part keeps all of the loan, and a
/// recall gives back one after the other.
pub(in crate::host) const LOAN_BYTES_MAX: usize = 64 << 10;

/// What a buffer of `len` bytes that is sent as datagrams takes of a queue's room, which bounds the
/// worker's time; memory is bounded by the budgets of what is lent.
pub(in crate::host) fn work_of(len: usize) -> usize {
    LENT_OVERHEAD + len / BYTES_PER_WORK
}

/// One thing to do, in the order of the calls.
pub(in crate::host) enum Op {
    /// Bytes that were copied into a frame.
    Copied(Piece),
    Lent(LentOp),
    /// The same, as a datagram or several.
    Datagrams(LentOp),
    /// Nothing more is sent.
    ShutDown,
    /// The socket has no owner any more.
    Close,
}

/// A buffer that is lent, of which the stack has taken the first `done` bytes. Fields are dropped
/// in this order: what is held of the buffer goes before the share.
pub(in crate::host) struct LentOp {
    pub(in crate::host) source: Arc<dyn Source>,
    pub(in crate::host) call: LentCall,
    pub(in crate::host) done: usize,
    /// Some of the call's bytes were taken.
    pub(in crate::host) begun: bool,
    /// When the buffer is to be back.
    pub(in crate::host) due: Option<Instant>,
    /// The copy of what was left then, in the making.
    pub(in crate::host) copying: Option<Box<Copying>>,
    /// What it counts with in the queue.
    pub(in crate::host) room: usize,
    pub(in crate::host) ticket: Share,
}

/// A copy of what was left of a buffer when its term ended.
pub(in crate::host) struct Copying {
    /// Where it begins in the buffer.
    pub(in crate::host) from: usize,
    pub(in crate::host) bytes: Vec<u8>,
}

impl Op {
    /// Bytes that it sends.
    pub(in crate::host) fn len(&self) -> usize {
        match self {
            Op::Copied(piece) => piece.len(),
            Op::Lent(lent) | Op::Datagrams(lent) => lent.source.len() - lent.done,
            Op::ShutDown | Op::Close => 0,
        }
    }

    /// When its memory is to be back.
    pub(in crate::host) fn due(&self) -> Option<Instant> {
        match self {
            Op::Lent(lent) | Op::Datagrams(lent) => lent.due,
            Op::Copied(_) | Op::ShutDown | Op::Close => None,
        }
    }

    /// A buffer that is lent.
    pub(in crate::host) fn lent_mut(&mut self) -> Option<&mut LentOp> {
        match self {
            Op::Lent(lent) | Op::Datagrams(lent) => Some(lent),
            Op::Copied(_) | Op::ShutDown | Op::Close => None,
        }
    }

    /// It will not be sent.
    pub(in crate::host) fn give_up(self, queue: &SendQueue) {
        match self {
            Op::Copied(piece) => queue.room.give(piece.len()),
            Op::Lent(_) | Op::Datagrams(_) | Op::ShutDown | Op::Close => {}
        }
    }
}

impl LentOp {
    /// A buffer of which nothing was taken yet.
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
    /// Room for bytes that are copied, or for datagrams.
    pub(in crate::host) room: Budget,
    pub(in crate::host) account: Arc<Account>,
    /// Event queues that are to hear when there is room again after a call that found none.
    watchers: Mutex<Waiters>,
}

#[derive(Default)]
struct Inbox {
    ops: VecDeque<Op>,
    /// The worker is told, and has not looked yet.
    listed: bool,
    failed: Option<Failed>,
    door: Door,
}

/// Which datagrams may be queued.
#[derive(Default)]
struct Door {
    /// Those whose calls ask for this, without a term,
    asked: SendTo,
    /// which is sent like this, and whose length is
    sent_as: SendTo,
    /// not more; `None` for no datagrams.
    most: Option<usize>,
}

/// The stack takes nothing more.
struct Failed {
    error: Error,
    told: bool,
}

impl SendQueue {
    /// That of a stream.
    pub(in crate::host) fn new(id: SocketId, account: Arc<Account>) -> Self {
        let (inbox, room) = (Mutex::default(), Budget::new(QUEUED_MAX));
        Self { id, inbox, room, account, watchers: Mutex::default() }
    }

    /// That of a datagram socket.
    pub(in crate::host) fn for_datagrams(id: SocketId, account: Arc<Account>) -> Self {
        Self { room: Budget::new(DATAGRAMS_QUEUED_MAX), ..Self::new(id, account) }
    }

    /// `waker` is to be woken when there is room again after a call that finds none.
    pub(in crate::host) fn watch(&self, waker: &Waker) {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner).add(waker);
    }

    /// A call found no room: leaves the wakers of those who want to hear of it by `leave`.
    pub(in crate::host) fn found_none(&self, leave: impl Fn(&Waker)) {
        let watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner).take();
        watchers.iter().for_each(leave);
    }

    /// Appends. True if the worker is to be told; hands back what the stack will not take.
    pub(in crate::host) fn push(&self, op: Op) -> Result<bool, Op> {
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

    /// Appends datagrams that are sent as `send` says, its term aside, and for which there is room.
    /// True if the worker is to be told; hands back what only the stack can say about whether it
    /// can be sent.
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

    /// With the lock of the core, and nothing pending: the stack took a datagram of `len` bytes
    /// that its call asked to be sent like `asked`, as `sent_as`.
    pub(in crate::host) fn open(&self, asked: &SendTo, sent_as: &SendTo, len: usize) {
        let (asked, sent_as) = (SendTo { term: None, ..*asked }, SendTo { term: None, ..*sent_as });
        let mut inbox = self.lock();
        let Inbox { door, ops, .. } = &mut *inbox;
        if door.asked == asked && door.sent_as == sent_as {
            door.most = door.most.max(Some(len));
        } else if ops.is_empty() {
            // What another thread has queued meanwhile is sent as before.
            *door = Door { asked, sent_as, most: Some(len) };
        }
    }

    /// What the stack may say about the next datagram is not known any more.
    pub(in crate::host) fn shut(&self) {
        self.lock().door.most = None;
    }

    /// How datagrams that were queued are sent.
    pub(in crate::host) fn sent_as(&self) -> SendTo {
        self.lock().door.sent_as
    }

    /// For the worker: moves all to `pending`.
    pub(in crate::host) fn take(&self, pending: &mut VecDeque<Op>) {
        let mut inbox = self.lock();
        inbox.listed = false;
        if pending.is_empty() {
            std::mem::swap(&mut inbox.ops, pending);
        } else {
            pending.append(&mut inbox.ops);
        }
    }

    /// For the worker: sending has failed for good. Who waits for room is told.
    pub(in crate::host) fn fail(&self, error: Error) {
        let mut inbox = self.lock();
        if inbox.failed.as_ref().is_none_or(|failed| failed.error == Error::BrokenPipe) {
            inbox.failed = Some(Failed { error, told: error == Error::BrokenPipe });
        }
        drop(inbox);
        self.room.wake();
        self.account.levels.wake();
    }

    /// Why sending fails: the reason once, then that it is over.
    pub(in crate::host) fn failure(&self) -> Option<Error> {
        let mut inbox = self.lock();
        let failed = inbox.failed.as_mut()?;
        let told = std::mem::replace(&mut failed.told, true);
        Some(if told { Error::BrokenPipe } else { failed.error })
    }

    /// The reason why sending failed, if no call has been told.
    pub(in crate::host) fn untold_failure(&self) -> Option<Error> {
        let mut inbox = self.lock();
        let failed = inbox.failed.as_mut().filter(|failed| !failed.told)?;
        failed.told = true;
        Some(failed.error)
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
