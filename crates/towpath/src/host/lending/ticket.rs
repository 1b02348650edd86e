//! Tickets: count the shares of a send that lends, and the budgets that it is charged to.

use crate::host::lending::budget::Levels;
use crate::host::wait::Waiters;
use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::task::Waker;
use towpath_net::socket::SocketId;
use towpath_packet::Lender;
use towpath_packet::sync::{AtomicU32, AtomicU64, Ordering};

/// Bit of [`Ticket::word`]: there is a waiter.
const WATCHED: u32 = 1 << 31;
/// Bit of [`Ticket::word`]: bytes were copied after the call.
const COPIED: u32 = 1 << 30;
/// The other bits: the number of shares.
const SHARES: u32 = COPIED - 1;

/// [`Ticket::number`] of a send of which the stack accepted nothing.
const NO_NUMBER: u64 = u64::MAX;

/// Returns lent memory before the peer has acknowledged it.
pub(in crate::host) trait Recall: Send + Sync {
    /// Copies what is still held of the send with this ticket, and returns its memory.
    fn recall(&self, id: SocketId, ticket: &Ticket);
}

/// Is notified when all loans of a send are back, and whether bytes were copied.
pub(in crate::host) trait Observer: Send + Sync {
    fn over(&self, copied: bool);
}

/// The budgets of a socket's sends, and the host that can recall their memory.
pub(in crate::host) struct Account {
    pub(in crate::host) levels: Levels,
    /// `None` for sends that are never recalled.
    socket: Option<(Weak<dyn Recall>, SocketId)>,
}

impl Account {
    pub(in crate::host) fn new(
        levels: Levels,
        socket: Option<(Weak<dyn Recall>, SocketId)>,
    ) -> Self {
        Self { levels, socket }
    }
}

/// Counts the shares of a send: its place in the send queue, and each loan of its bytes. When no
/// share is left, only the sender holds the memory.
pub(in crate::host) struct Ticket {
    word: AtomicU32,
    waiters: Mutex<Waiters>,
    account: Arc<Account>,
    charge: usize,
    /// A further lender to notify of each loan's end, known from the first loan on. Calls of one
    /// socket may have different ones.
    group: OnceLock<Arc<dyn Lender>>,
    /// Number of the call among the lending calls of its socket, once it has one.
    number: AtomicU64,
    /// Observer of the send's result; boxed, because every send has a ticket but few are watched.
    watch: OnceLock<Box<dyn Observer>>,
}

impl Ticket {
    /// Creates a ticket with one share. `charge` was taken from the levels of `account`.
    pub(in crate::host) fn begin(account: Arc<Account>, charge: usize) -> (Arc<Self>, Share) {
        let ticket = Arc::new(Self {
            word: AtomicU32::new(1),
            waiters: Mutex::default(),
            account,
            charge,
            group: OnceLock::new(),
            number: AtomicU64::new(NO_NUMBER),
            watch: OnceLock::new(),
        });
        (ticket.clone(), Share(ticket))
    }

    /// Notes that the stack accepted the first bytes, as the call of this number.
    pub(in crate::host) fn begun(&self, number: u32) {
        // Relaxed, here and in `number`: both are called under the core's lock.
        self.number.store(number.into(), Ordering::Relaxed);
    }

    /// Registers an observer of the send, unless the memory is back already.
    pub(in crate::host) fn observe(&self, watch: Option<impl Observer + 'static>) {
        if let Some(watch) = watch {
            self.watch.get_or_init(|| Box::new(watch));
        }
    }

    /// Returns the call's number, if the stack accepted any bytes.
    pub(in crate::host) fn number(&self) -> Option<u32> {
        u32::try_from(self.number.load(Ordering::Relaxed)).ok()
    }

    /// Returns the account that the send is charged to.
    pub(in crate::host) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Notes that bytes were copied after the call.
    pub(in crate::host) fn mark_copied(&self) {
        // Relaxed: ordered by the decrement of the caller's share.
        self.word.fetch_or(COPIED, Ordering::Relaxed);
    }

    /// Recalls the memory, unless it is back or on its way.
    pub(in crate::host) fn recall(&self) {
        let Some((host, id)) = &self.account.socket else { return };
        // A host that has ended returns its memory by itself.
        if let Some(host) = host.upgrade().filter(|_| self.returned().is_none()) {
            host.recall(*id, self);
        }
    }

    /// Token of a loan whose end is reported to the ticket only.
    pub(in crate::host) const ALONE: u64 = u64::MAX;

    /// Adds a share for a loan. `group` is also notified of the loan's end, by its token.
    pub(in crate::host) fn share(&self, group: Option<Arc<dyn Lender>>) {
        if let Some(group) = group {
            self.group.get_or_init(|| group);
        }
        // Relaxed: a share is made from an existing share, and publishes nothing.
        self.word.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes the share of a loan that was not made. It is not the last share.
    pub(in crate::host) fn unshare(&self) {
        // Relaxed: the share was not used.
        self.word.fetch_sub(1, Ordering::Relaxed);
    }

    /// Ends a share. Its hold of the buffer has been dropped.
    fn end(&self, copied: bool) {
        if copied {
            self.mark_copied();
        }
        // AcqRel: the actions of every share's holder happen before the last end reports the
        // return. Pairs with the other decrements and with the Acquire of `returned`.
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

    /// Returns `None` while there are shares, then whether bytes were copied.
    pub(in crate::host) fn returned(&self) -> Option<bool> {
        // Acquire: pairs with the decrements in `end`.
        let word = self.word.load(Ordering::Acquire);
        (word & SHARES == 0).then_some(word & COPIED != 0)
    }

    /// Leaves a waker. Returns whether bytes were copied if no share is left.
    pub(in crate::host) fn watch(&self, waker: &Waker) -> Option<bool> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner).add(waker);
        // AcqRel: either the end of the last share sees the bit and thus the waker, or this call
        // sees that it ended.
        let word = self.word.fetch_or(WATCHED, Ordering::AcqRel);
        (word & SHARES == 0).then_some(word & COPIED != 0)
    }
}

/// The share of a place in the send queue. Dropping it ends the share.
pub(in crate::host) struct Share(Arc<Ticket>);

impl Share {
    /// Returns the lender of the send's loans.
    pub(in crate::host) fn lender(&self) -> Arc<Ticket> {
        self.0.clone()
    }

    /// Returns true if it is a share of this ticket.
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
        if let Some(group) = self.group.get().filter(|_| token != Self::ALONE) {
            group.returned(token, copied);
        }
        self.end(copied);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::lending::budget::Budget;

    /// Counts the loans that end.
    #[derive(Default)]
    struct Group(AtomicU32);

    impl Lender for Group {
        fn returned(&self, _: u64, _: bool) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Goal: the loans of each send end at the group of their own call, also if another send of the
    /// socket has another group.
    #[test]
    fn each_send_has_its_own_group() {
        let budget = || Budget::new(usize::MAX);
        let levels = Levels { socket: budget(), group: None, all: budget().into() };
        let account = Arc::new(Account::new(levels, None));
        let groups = [(); 2].map(|()| Arc::new(Group::default()));
        for (sends, group) in (1..).zip(&groups) {
            assert!(account.levels.take(1).is_ok());
            let (ticket, share) = Ticket::begin(account.clone(), 1);
            ticket.share(Some(group.clone()));
            Lender::returned(&*share.lender(), 0, false);
            drop(share);
            assert_eq!(ticket.returned(), Some(false));
            let ended = groups.iter().map(|group| group.0.load(Ordering::Relaxed)).sum::<u32>();
            assert_eq!((group.0.load(Ordering::Relaxed), ended), (1, sends));
        }
    }
}
