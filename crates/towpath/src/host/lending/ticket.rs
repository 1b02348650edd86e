//! Who has a part in a send that lends, and what that send counts with.

use crate::host::lending::budget::Levels;
use crate::host::wait::Waiters;
use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::task::Waker;
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

/// Gives memory that was lent back before the peer has acknowledged it.
pub(in crate::host) trait Recall: Send + Sync {
    /// Has what is still held of the send with this ticket copied, and given back.
    fn recall(&self, id: SocketId, ticket: &Ticket);
}

/// Hears that all of a loan is back, and whether bytes were copied.
pub(in crate::host) trait Observer: Send + Sync {
    fn over(&self, copied: bool);
}

/// What the sends of a socket count with, and who is asked to give their memory back.
pub(in crate::host) struct Account {
    pub(in crate::host) levels: Levels,
    /// `None` of sends that nobody asks for.
    socket: Option<(Weak<dyn Recall>, SocketId)>,
    /// Who else is told of each loan's end, known from the first loan on.
    group: OnceLock<Arc<dyn Lender>>,
}

impl Account {
    pub(in crate::host) fn new(
        levels: Levels,
        socket: Option<(Weak<dyn Recall>, SocketId)>,
    ) -> Self {
        Self { levels, socket, group: OnceLock::new() }
    }
}

/// Counts who still has a part in a send: its place in the send queue, and each loan of its bytes.
/// When none is left, the memory is nobody's but the sender's.
pub(in crate::host) struct Ticket {
    word: AtomicU32,
    waiters: Mutex<Waiters>,
    account: Arc<Account>,
    charge: usize,
    /// The call's number among those of its socket that lend, once it has one.
    number: AtomicU64,
    /// Who hears how it went; boxed, as few sends are watched and each has a ticket.
    watch: OnceLock<Box<dyn Observer>>,
}

impl Ticket {
    /// With one share. `charge` was taken from the levels of `account`.
    pub(in crate::host) fn begin(account: Arc<Account>, charge: usize) -> (Arc<Self>, Share) {
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
    pub(in crate::host) fn begun(&self, number: u32) {
        // Relaxed, here and in `number`: both are called with the lock of the core.
        self.number.store(number.into(), Ordering::Relaxed);
    }

    /// Has `watch` hear how the send goes, unless all is back already.
    pub(in crate::host) fn observe(&self, watch: Option<impl Observer + 'static>) {
        if let Some(watch) = watch {
            self.watch.get_or_init(|| Box::new(watch));
        }
    }

    /// The call's number, if the stack took any bytes.
    pub(in crate::host) fn number(&self) -> Option<u32> {
        u32::try_from(self.number.load(Ordering::Relaxed)).ok()
    }

    /// What the send counts with.
    pub(in crate::host) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Notes that bytes were copied after all.
    pub(in crate::host) fn mark_copied(&self) {
        // Relaxed: ordered by the decrement of the caller's share.
        self.word.fetch_or(COPIED, Ordering::Relaxed);
    }

    /// Asks for the memory, unless it is back or on its way.
    pub(in crate::host) fn recall(&self) {
        let Some((host, id)) = &self.account.socket else { return };
        // A host that has ended gives back what it has by itself.
        if let Some(host) = host.upgrade().filter(|_| self.returned().is_none()) {
            host.recall(*id, self);
        }
    }

    /// Token of a loan of which nobody else is told.
    pub(in crate::host) const ALONE: u64 = u64::MAX;

    /// Another share, for a loan; `group` is told of its end too, by the loan's token.
    pub(in crate::host) fn share(&self, group: Option<Arc<dyn Lender>>) {
        if let Some(group) = group {
            self.account.group.get_or_init(|| group);
        }
        // Relaxed: a share is made from a share, nothing is published by it.
        self.word.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes back a share of a loan that was not made; it is not the last.
    pub(in crate::host) fn unshare(&self) {
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
    pub(in crate::host) fn returned(&self) -> Option<bool> {
        // Acquire: pairs with the decrements in `end`.
        let word = self.word.load(Ordering::Acquire);
        (word & SHARES == 0).then_some(word & COPIED != 0)
    }

    /// Leaves a waker, unless there is nothing left to wait for.
    pub(in crate::host) fn watch(&self, waker: &Waker) -> Option<bool> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner).add(waker);
        // AcqRel: the last share's end sees the bit and so the waker, or this sees that it ended.
        let word = self.word.fetch_or(WATCHED, Ordering::AcqRel);
        (word & SHARES == 0).then_some(word & COPIED != 0)
    }
}

/// The share of a place in the send queue, which ends when it is dropped.
pub(in crate::host) struct Share(Arc<Ticket>);

impl Share {
    /// Who is told of loans.
    pub(in crate::host) fn lender(&self) -> Arc<Ticket> {
        self.0.clone()
    }

    /// True if it is a share of this ticket.
    pub(in crate::host) fn is(&self, ticket: &Ticket) -> bool {
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
