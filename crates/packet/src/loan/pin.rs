//! Memory that stays where it is for a while: pins of one piece, of several, and views of bytes.
//!
//! A pin is counted in the state of a watched loan, and is nothing for others; how that agrees with
//! a recall is told in [`loan`](crate::loan). Pins are short: what is recalled meanwhile goes back
//! to its lender afterwards. On the thread that has them.
#![allow(unsafe_code)]

use super::{Loan, PIN, Piece};
use crate::slab::Slot;
use crate::sync::Ordering;
use core::fmt;
use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr::NonNull;

/// The bytes of a piece, which stay where they are meanwhile.
pub struct Pinned<'a> {
    pub(super) address: *const u8,
    /// The loan that counts this.
    loan: Option<&'a Loan>,
    lent: PhantomData<&'a Piece>,
}

impl<'a> Pinned<'a> {
    /// Of memory that is pinned by this value if there is a loan, and stays without it otherwise.
    pub(super) fn new(address: *const u8, loan: Option<&'a Loan>) -> Self {
        Self { address, loan, lent: PhantomData }
    }

    /// Where the bytes begin; valid for reads of as many bytes as the piece had, while this lives.
    /// Unless they are private they may change at any time.
    pub fn address(&self) -> *const u8 {
        self.address
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        if let Some(loan) = self.loan {
            // Release: our reads are over; pairs with the Acquire at the end of a recall, and of
            // `end_loan`.
            loan.state.fetch_sub(PIN, Ordering::Release);
        }
    }
}

/// Pins pieces one after the other. Those of one loan that follow each other are pinned once, so
/// that copying many short pieces does not wait for memory at each of them.
#[derive(Default)]
pub struct Pins<'a> {
    /// The loan at hand, and its first byte.
    last: Option<(NonNull<Slot<Loan>>, Pinned<'a>)>,
}

impl<'a> Pins<'a> {
    /// None yet.
    pub const fn new() -> Self {
        Self { last: None }
    }

    /// Where the bytes of `piece` begin: as [`Pinned::address`], until the next call or until this
    /// is dropped.
    pub fn address(&mut self, piece: &'a Piece) -> *const u8 {
        if self.last.as_ref().is_none_or(|(loan, _)| *loan != piece.loan) {
            // The one before is over before another is pinned: one at a time.
            self.last = None;
            self.last = Some((piece.loan, piece.pin_loan()));
        }
        let (_, base) = self.last.as_ref().expect("just pinned");
        // SAFETY: `offset` is within the loan's capacity, and so long is the memory at `base`.
        unsafe { base.address.add(piece.offset as usize) }
    }
}

/// The bytes of a piece, seen for a while. Dereferences to them.
pub struct View<'a> {
    pub(super) pinned: Pinned<'a>,
    pub(super) len: usize,
}

impl Deref for View<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: while it is pinned, which is as long as this reference, the address is valid for
        // reads of as many bytes as the piece has. Memory that is not foreign is written by nobody
        // before its lender is told, which is after the last pin; a replacement is never written.
        unsafe { core::slice::from_raw_parts(self.pinned.address, self.len) }
    }
}

impl fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
