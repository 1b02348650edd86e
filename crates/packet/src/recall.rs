//! Recall: a loan's memory goes back to its lender while pieces of it are still held.
//!
//! The bytes are copied into memory of the loan's own, which all pieces show from then on. When
//! nobody reads the old memory any more, its lender is told, with `copied`, and only then; the
//! pieces never notice. How readers and the recaller agree is described in [`loan`](crate::loan).
//!
//! No call here waits for another thread. One thread at a time has a [`Watch`]; pieces of its loan
//! may be read and dropped on any thread meanwhile.
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

/// What came of a recall; the more is left to do, the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Recall {
    /// The lender was told before: by the end of the loan, or by an earlier recall.
    Gone,
    /// The lender was told: the memory is his.
    Done,
    /// The bytes are copied, but somebody may be reading the old memory at this moment. Another
    /// call finds out whether he still does.
    Busy,
    /// There is no memory to copy the bytes to. The loan goes on.
    NoMemory,
}

/// The one who may recall a loan. Keeps neither its memory nor its pieces; keeps its descriptor
/// from being used again.
pub struct Watch {
    loan: NonNull<Slot<Loan>>,
}

// SAFETY: a watch reaches its loan as a piece does, through atomics and in turns; `Loan` is
// `Send + Sync`.
unsafe impl Send for Watch {}
// SAFETY: as above; `&Watch` reads only what is not written while a watch exists.
unsafe impl Sync for Watch {}

impl Piece {
    /// Lets somebody recall the loan. `None` if its memory is private, if there are other holders
    /// already, or if it is watched.
    pub fn watch(&mut self) -> Option<Watch> {
        if !self.is_recallable() {
            return None;
        }
        let slot = self.slot();
        // SAFETY: a slot with a holder stays in its slab's storage.
        let loan = unsafe { slot.as_ref() }.value();
        // Acquire: pairs with the Release of the other holders' ends: they are over.
        if loan.holders.load(Ordering::Acquire) != 1 {
            return None;
        }
        // Acquire: pairs with the Release of an earlier watch's end. Whoever holds the loan from
        // now on got it from us, so that he reads with `WATCHED` set, and nobody else changes
        // `state` meanwhile.
        let state = loan.state.load(Ordering::Acquire);
        if state & WATCHED != 0 {
            return None;
        }
        // Relaxed: pieces reach other threads through something that orders.
        loan.state.store(state | WATCHED, Ordering::Relaxed);
        Some(Watch { loan: slot })
    }
}

impl Watch {
    /// Gives the memory back to its lender, after copying the bytes if that was not done yet.
    /// Pieces stay valid and keep the same bytes.
    pub fn recall(&mut self, ledger: &Ledger) -> Recall {
        let loan = self.loan();
        // Relaxed: the order of changes settles whose turn it is. All that others wrote and we look
        // at in ours was there when the watch was made.
        let before = loan.state.fetch_or(RECALLING, Ordering::Relaxed);
        if before & ENDED != 0 {
            return Recall::Gone;
        }
        let result = self.take_back(before, ledger);
        // Release: the turn ends; pairs with the Acquire of `end_loan`. Acquire: pairs with the
        // Release of each `Pinned::drop` and of `end_loan`.
        let after = loan.state.fetch_and(!RECALLING, Ordering::AcqRel);
        if after & ENDED != 0 {
            // SAFETY: the last piece was dropped during our turn, and its end was left to us.
            unsafe { finish(self.loan) };
        }
        match result {
            Ok(owner) => {
                owner.tell(true);
                Recall::Done
            }
            // What was missing does not matter any more.
            Err(_) if after & ENDED != 0 => Recall::Gone,
            Err(why) => why,
        }
    }

    /// Bytes of the loan.
    pub fn bytes(&self) -> usize {
        self.loan().extent().capacity as usize
    }

    /// True if the lender was told.
    pub fn is_over(&self) -> bool {
        // Relaxed: an answer that may be old.
        self.loan().state.load(Ordering::Relaxed) & ENDED != 0
    }

    /// Copies, if that is still to be done, and takes the memory's owner out if it is not read any
    /// more. We have the turn.
    fn take_back(&self, state: u32, ledger: &Ledger) -> Result<Owner, Recall> {
        let loan = self.loan();
        if state & SWAPPED == 0 {
            self.swap(ledger)?;
        }
        if loan.is_pinned() {
            return Err(Recall::Busy);
        }
        // SAFETY: we have the turn.
        match unsafe { loan.take_owner() } {
            Owner::Nobody => Err(Recall::Gone),
            owner => Ok(owner),
        }
    }

    /// Copies the bytes and lets all readers that come after use the copy.
    fn swap(&self, ledger: &Ledger) -> Result<(), Recall> {
        let loan = self.loan();
        let (base, len) = (loan.extent().base.as_ptr(), self.bytes());
        let mut copy = Vec::new();
        copy.try_reserve_exact(len).map_err(|_| Recall::NoMemory)?;
        if loan.extent().kind == Kind::Foreign {
            copy.resize(len, 0);
            // SAFETY: the lender's memory is valid for reads until he is told, which whoever has
            // the turn does.
            unsafe { copy_foreign(base, &mut copy) };
        } else {
            // SAFETY: as above, and nobody writes it before.
            copy.extend_from_slice(unsafe { core::slice::from_raw_parts(base, len) });
        }
        ledger.count(Site::Recall, len);
        let copy = Box::into_raw(copy.into_boxed_slice());
        loan.shown.write();
        // Relaxed: published by the next line.
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
        // AcqRel: what we did is over before the descriptor is used again; pairs with `finish`.
        let before = self.loan().state.fetch_and(!WATCHED, Ordering::AcqRel);
        if before & OVER != 0 {
            // SAFETY: the loan ended before and left the slot to us.
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
