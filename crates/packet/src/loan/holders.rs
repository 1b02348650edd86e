//! Holders of loans that are counted together: taken for pieces that are made later, and given up
//! for pieces that are gone.
//!
//! A locked instruction waits for all stores before it, so one for a run of pieces is cheaper than
//! one for each. The thread that has a value counts; the loan itself may be held by any number.
#![allow(unsafe_code)]

use super::{Loan, Piece, end_loan};
use crate::slab::{Returning, Slot};
use crate::sync::Ordering;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;

/// Holders of a loan that no piece stands for yet, counted [together](Piece::reserve). What is left
/// of them ends with this value.
pub struct Holders {
    pub(super) loan: NonNull<Slot<Loan>>,
    pub(super) count: u32,
}

impl Holders {
    /// As [`Piece::slice`] of a piece; uses up one of these holders if there is one of its loan.
    ///
    /// # Panics
    /// If the range is not within the piece.
    pub fn slice(&mut self, piece: &Piece, from: usize, len: usize) -> Piece {
        if self.count == 0 || self.loan != piece.loan {
            return piece.slice(from, len);
        }
        self.count -= 1;
        let mut part = Piece { loan: piece.loan, offset: piece.offset, len: piece.len };
        part.narrow(from, len);
        part
    }

    /// Ends with this value, which adds a frame that is free then to `frames`.
    fn leave(mut self, frames: &mut Returning<Loan>) {
        self.end(frames);
    }

    fn end(&mut self, frames: &mut Returning<Loan>) {
        let count = core::mem::take(&mut self.count);
        if count > 0 {
            // SAFETY: these holders are ours, as no piece was made of them, and counted no more.
            unsafe { leave(self.loan, count, frames) };
        }
    }
}

impl Drop for Holders {
    fn drop(&mut self) {
        self.end(&mut Returning::new());
    }
}

/// Pieces that are dropped together: those of one loan that are added one after the other are
/// counted down at once, when another's is added or this is dropped. Frames of one pool that are
/// free then go back in one exchange.
#[derive(Default)]
pub(crate) struct Leaving {
    holders: Option<Holders>,
    frames: Returning<Loan>,
}

impl Leaving {
    pub(crate) fn add(&mut self, piece: Piece) {
        let piece = ManuallyDrop::new(piece);
        match &mut self.holders {
            Some(holders) if holders.loan == piece.loan => holders.count += 1,
            holders => {
                let before = holders.replace(Holders { loan: piece.loan, count: 1 });
                before.into_iter().for_each(|holders| holders.leave(&mut self.frames));
            }
        }
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.holders.take().into_iter().for_each(|holders| holders.leave(&mut self.frames));
    }
}

/// Takes holders away; the last one ends the loan, as [`end_loan`] does.
///
/// # Safety
/// The caller has so many holders of the loan, and does not use them afterwards.
pub(super) unsafe fn leave(slot: NonNull<Slot<Loan>>, count: u32, frames: &mut Returning<Loan>) {
    // SAFETY: a slot with a holder stays in its slab's storage.
    let holders = &unsafe { slot.as_ref() }.value().holders;
    // Relaxed: `end_loan` acquires. If there are no other holders, nobody can become one: saves the
    // locked subtraction in the common case.
    let last = holders.load(Ordering::Relaxed) == count
        // Release: our use of the bytes ends here; pairs with the Acquire of `end_loan`.
        || holders.fetch_sub(count, Ordering::Release) == count;
    if last {
        // SAFETY: we held the last share, nobody else can reach the loan.
        unsafe { end_loan(slot, frames) };
    }
}
