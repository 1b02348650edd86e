//! Recall: a loan's memory goes back to its lender while pieces of it still exist.
//!
//! The bytes are copied into memory owned by the loan, which all pieces show from then on. When no
//! thread reads the old memory any more, and not before, the lender is notified, with `copied` set.
//! The pieces keep the same bytes. [`loan`](crate::loan) describes how readers and the recaller
//! coordinate.
//!
//! No call here waits for another thread. One thread at a time uses a [`Watch`]; other threads may
//! read and drop pieces of its loan meanwhile.
#![allow(unsafe_code)]

use crate::ledger::{Ledger, Site};
use crate::loan::{
    COPIED, ENDED, Kind, Loan, OVER, Owner, Piece, RECALLING, SWAPPED, WATCHED, copy_foreign,
    finish,
};
use crate::slab::{self, Slot};
use crate::sync::Ordering;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ptr::NonNull;

/// Result of a recall. A greater value means that more is left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Recall {
    /// The lender was notified before: by the end of the loan, or by an earlier recall.
    Gone,
    /// The lender was notified: the memory belongs to it again.
    Done,
    /// The bytes are copied, but a thread may still read the old memory. Another call checks again.
    Busy,
    /// There is no memory for the copy. The loan continues.
    NoMemory,
}

/// The right to recall a loan. Keeps neither its memory nor its pieces; keeps its descriptor from
/// being reused.
pub struct Watch {
    loan: NonNull<Slot<Loan>>,
}

// SAFETY: a watch reaches its loan as a piece does, through atomics and in turns; `Loan` is `Send +
// Sync`.
unsafe impl Send for Watch {}
// SAFETY: `&Watch` reads only atomics and what is not written while a watch exists.
unsafe impl Sync for Watch {}

impl Piece {
    /// Makes a watch that can recall the loan. `None` if its memory is private, if there are other
    /// holders, or if it is watched already.
    pub fn watch(&mut self) -> Option<Watch> {
        if !self.is_recallable() {
            return None;
        }
        let slot = self.slot();
        // SAFETY: a slot with a holder stays in its slab's storage.
        let loan = unsafe { slot.as_ref() }.value();
        // Acquire: pairs with the Release decrements of the other holders, which are gone.
        if loan.holders.load(Ordering::Acquire) != 1 {
            return None;
        }
        // Acquire: pairs with the Release of an earlier watch's end. Every later holder is made
        // from this piece, so it sees `WATCHED`; until then no other thread changes `state`.
        let state = loan.state.load(Ordering::Acquire);
        if state & WATCHED != 0 {
            return None;
        }
        // Relaxed: whatever passes pieces to other threads orders this store.
        loan.state.store(state | WATCHED, Ordering::Relaxed);
        Some(Watch { loan: slot })
    }
}

impl Watch {
    /// Returns the memory to its lender, after copying the bytes unless that was done before.
    /// Pieces stay valid and keep the same bytes.
    pub fn recall(&mut self, ledger: &Ledger) -> Recall {
        let loan = self.loan();
        // Relaxed: the order of changes decides whose turn it is. All that other threads wrote and
        // that is read in this turn was visible when the watch was made.
        let before = loan.state.fetch_or(RECALLING, Ordering::Relaxed);
        if before & ENDED != 0 {
            return Recall::Gone;
        }
        let result = self.take_back(before, ledger);
        // Release: the turn ends; pairs with the Acquire of `end_loan`. Acquire: pairs with the
        // Release of each `Pinned::drop` and of `end_loan`.
        let after = loan.state.fetch_and(!RECALLING, Ordering::AcqRel);
        if after & ENDED != 0 {
            // SAFETY: the last piece was dropped during our turn, and its holder left the end to
            // us.
            unsafe { finish(self.loan) };
        }
        match result {
            Ok(owner) => {
                owner.tell(true);
                Recall::Done
            }
            // The loan has ended, so the reason for the failure does not matter.
            Err(_) if after & ENDED != 0 => Recall::Gone,
            Err(why) => why,
        }
    }

    /// Bytes of the loan.
    pub fn bytes(&self) -> usize {
        self.loan().extent().capacity as usize
    }

    /// True if the last piece was dropped.
    pub fn is_over(&self) -> bool {
        // Relaxed: the answer may be outdated.
        self.loan().state.load(Ordering::Relaxed) & ENDED != 0
    }

    /// Copies the bytes if that was not done before, and takes out the owner if no thread reads the
    /// old memory. The caller has the turn.
    fn take_back(&self, state: u32, ledger: &Ledger) -> Result<Owner, Recall> {
        let loan = self.loan();
        if state & SWAPPED == 0 {
            self.swap(ledger)?;
        }
        if loan.is_pinned() {
            return Err(Recall::Busy);
        }
        // SAFETY: the caller has the turn.
        match unsafe { loan.take_owner() } {
            Owner::Nobody => Err(Recall::Gone),
            owner => Ok(owner),
        }
    }

    /// Copies the bytes and publishes the copy to all later readers.
    fn swap(&self, ledger: &Ledger) -> Result<(), Recall> {
        let loan = self.loan();
        let (base, len) = (loan.extent().base.as_ptr(), self.bytes());
        let mut copy = Vec::new();
        copy.try_reserve_exact(len).map_err(|_| Recall::NoMemory)?;
        if loan.extent().kind == Kind::Foreign {
            copy.resize(len, 0);
            // SAFETY: the lender's memory is valid for reads until the lender is notified, which
            // only the thread that has the turn does: this one.
            unsafe { copy_foreign(base, &mut copy) };
        } else {
            // SAFETY: the memory is valid for reads until this thread notifies the lender, and it
            // is not written before.
            copy.extend_from_slice(unsafe { core::slice::from_raw_parts(base, len) });
        }
        ledger.count(Site::Recall, len);
        let copy = Box::into_raw(copy.into_boxed_slice());
        loan.shown.write();
        // Relaxed: the next line publishes it.
        loan.replacement.store(copy.cast(), Ordering::Relaxed);
        // Release: pairs with the Acquire of `Loan::pin`.
        loan.state.fetch_or(SWAPPED | COPIED, Ordering::Release);
        Ok(())
    }

    fn loan(&self) -> &Loan {
        // SAFETY: the slot of a watched loan stays out until the watch ends.
        unsafe { self.loan.as_ref() }.value()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // AcqRel: pairs with `finish`; our use of the descriptor ends before it is reused.
        let before = self.loan().state.fetch_and(!WATCHED, Ordering::AcqRel);
        if before & OVER != 0 {
            // SAFETY: the loan was finished before and left the slot to the watch.
            unsafe { slab::give_back(self.loan) };
        }
    }
}

impl core::fmt::Debug for Watch {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Watch({} bytes)", self.bytes())
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
