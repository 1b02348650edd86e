//! Holders of loans that are counted together: reserved for pieces that are made later, and
//! released for pieces that are dropped.
//!
//! An atomic read-modify-write waits for all earlier stores, so one for a run of pieces is cheaper
//! than one for each piece. These values belong to one thread; the loan may be shared by any
//! number.
#![allow(unsafe_code)]

use super::{Loan, Piece, end_loan};
use crate::slab::{Returning, Slot};
use crate::sync::Ordering;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;

/// Holders of a loan that no piece stands for yet, counted [together](Piece::reserve). Dropping
/// this value releases those that are left.
pub struct Holders {
    pub(super) loan: NonNull<Slot<Loan>>,
    pub(super) count: u32,
}

impl Holders {
    /// Slices like [`Piece::slice`]; uses up one of these holders if they belong to the same loan.
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

    /// Releases the holders. A frame that becomes free is added to `frames`.
    fn leave(mut self, frames: &mut Returning<Loan>) {
        self.end(frames);
    }

    fn end(&mut self, frames: &mut Returning<Loan>) {
        let count = core::mem::take(&mut self.count);
        if count > 0 {
            // SAFETY: no pieces were made of these holders, so they are ours, and they are counted
            // no more.
            unsafe { leave(self.loan, count, frames) };
        }
    }
}

impl Drop for Holders {
    fn drop(&mut self) {
        self.end(&mut Returning::new());
    }
}

/// Pieces that are dropped together. Consecutive pieces of one loan are released in one
/// subtraction, when a piece of another loan is added or when this is dropped. Frames of one pool
/// that become free go back in one exchange.
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

    /// Releases all pieces. Returns the frames of the pool whose frames became free last; those of
    /// other pools have gone back.
    pub(crate) fn end(&mut self) -> &mut Returning<Loan> {
        self.holders.take().into_iter().for_each(|holders| holders.leave(&mut self.frames));
        &mut self.frames
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.end();
    }
}

/// Releases `count` holders. The last one ends the loan with [`end_loan`].
///
/// # Safety
/// The caller has `count` holders of the loan and does not use them afterwards.
pub(super) unsafe fn leave(slot: NonNull<Slot<Loan>>, count: u32, frames: &mut Returning<Loan>) {
    // SAFETY: a slot with a holder stays in its slab's storage.
    let holders = &unsafe { slot.as_ref() }.value().holders;
    // Relaxed: `end_loan` acquires. If there are no other holders, no thread can add one, so the
    // common case needs no read-modify-write.
    let last = holders.load(Ordering::Relaxed) == count
        // Release: our use of the bytes ends here. Pairs with the Acquire of `end_loan`.
        || holders.fetch_sub(count, Ordering::Release) == count;
    if last {
        // SAFETY: these were the last holders, so no other thread can reach the loan.
        unsafe { end_loan(slot, frames) };
    }
}
