//! Memory that stays in place for a short time: pins of one piece or of several, pieces that stay
//! pinned, and views of bytes.
//!
//! A pin is counted in the state of a watched loan; for other loans it does nothing.
//! [`loan`](crate::loan) describes how pins and recalls work together. Pins must be short: a recall
//! cannot return the memory before they end. They belong to one thread, except those of
//! [`PinnedPiece`].
#![allow(unsafe_code)]

use super::{Loan, PIN, Piece};
use crate::slab::Slot;
use crate::sync::Ordering;
use core::fmt;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::Deref;
use core::ptr::NonNull;

/// The bytes of a piece, which stay in place while this exists.
pub struct Pinned<'a> {
    pub(super) address: *const u8,
    /// The loan that counts this pin.
    loan: Option<&'a Loan>,
    lent: PhantomData<&'a Piece>,
}

impl<'a> Pinned<'a> {
    /// A pin that `loan` counts, or an address of memory that stays in place without a pin.
    pub(super) fn new(address: *const u8, loan: Option<&'a Loan>) -> Self {
        Self { address, loan, lent: PhantomData }
    }

    /// Address of the first byte, valid for reads of as many bytes as the piece has while this
    /// exists. Bytes of foreign memory may change at any time.
    pub fn address(&self) -> *const u8 {
        self.address
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        if let Some(loan) = self.loan {
            // Release: our reads are over. Pairs with the Acquire at the end of a recall, and with
            // the one in `end_loan`.
            loan.state.fetch_sub(PIN, Ordering::Release);
        }
    }
}

/// Pins pieces one after the other. Consecutive pieces of one loan are pinned once, so that copying
/// many short pieces does not need an atomic operation for each.
#[derive(Default)]
pub struct Pins<'a> {
    /// The loan that is pinned now, and its first byte.
    last: Option<(NonNull<Slot<Loan>>, Pinned<'a>)>,
}

impl<'a> Pins<'a> {
    /// No pins yet.
    pub const fn new() -> Self {
        Self { last: None }
    }

    /// Address of the first byte of `piece`, as [`Pinned::address`], valid until the next call or
    /// until this is dropped.
    pub fn address(&mut self, piece: &'a Piece) -> *const u8 {
        if self.last.as_ref().is_none_or(|(loan, _)| *loan != piece.loan) {
            // The previous pin ends before the next one begins: there is one at a time.
            self.last = None;
            self.last = Some((piece.loan, piece.pin_loan()));
        }
        let (_, base) = self.last.as_ref().expect("just pinned");
        // SAFETY: `offset` is within the loan's capacity, which is the length of the memory at
        // `base`.
        unsafe { base.address.add(piece.offset as usize) }
    }
}

/// A piece with its pin, for a request that the kernel carries out later. Any thread may drop it.
///
/// A recall cannot return the memory before it is dropped.
pub struct PinnedPiece {
    address: *const u8,
    /// The loan counts the pin.
    is_counted: bool,
    piece: Piece,
}

// SAFETY: `Piece` is `Send`. The pin is counted in an atomic word of the loan, which does not know
// threads, and keeps the address valid for reads on all of them.
unsafe impl Send for PinnedPiece {}

impl PinnedPiece {
    /// Pins a piece.
    pub fn new(piece: Piece) -> Self {
        // The drop of this value ends it.
        let pinned = ManuallyDrop::new(piece.pin());
        let (address, is_counted) = (pinned.address, pinned.loan.is_some());
        Self { address, is_counted, piece }
    }

    /// Address of the first byte, as [`Pinned::address`].
    pub fn address(&self) -> *const u8 {
        self.address
    }

    /// The piece.
    pub fn piece(&self) -> &Piece {
        &self.piece
    }
}

impl Drop for PinnedPiece {
    fn drop(&mut self) {
        if self.is_counted {
            // Release: as in the drop of `Pinned`.
            self.piece.loan().state.fetch_sub(PIN, Ordering::Release);
        }
    }
}

impl fmt::Debug for PinnedPiece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedPiece").field("len", &self.piece.len()).finish_non_exhaustive()
    }
}

/// A view of the bytes of a piece. Dereferences to them.
pub struct View<'a> {
    pub(super) pinned: Pinned<'a>,
    pub(super) len: usize,
}

impl Deref for View<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the pin exists as long as this reference, so the address is valid for reads of as
        // many bytes as the piece has. Memory that is not foreign is not written before its lender
        // is notified, which is after the last pin. A replacement is never written.
        unsafe { core::slice::from_raw_parts(self.pinned.address, self.len) }
    }
}

impl fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
