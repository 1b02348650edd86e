//! Loans and pieces: counted references to lent memory.
//!
//! A *loan* describes one stretch of memory: where it begins, how long it is, whether others can
//! write it, and who is told when it is his again. A [`Piece`] is a range of a loan. Cloning and
//! cutting pieces copies no payload; dropping the last piece of a loan returns it, exactly once,
//! on whatever thread that happens.
//!
//! Memory comes in two kinds. *Private* memory is written by nobody while it is lent, so a piece
//! of it can be seen as `&[u8]`. *Foreign* memory may be written by others at any time (a guest,
//! another process, a shared file): it is never a reference, only copied out by volatile reads,
//! through [`Ledger::copy`](crate::Ledger::copy), or handed to a system call by address
//! ([`Piece::address`]).
#![allow(unsafe_code)]

use crate::region::Region;
use crate::slab::{self, Slab, Slot};
use crate::sync::{AtomicBool, AtomicU32, Ordering};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::any::Any;
use core::cell::UnsafeCell;
use core::fmt;
use core::ptr::NonNull;

/// Who gets memory back. `returned` runs on the thread that dropped the last piece and must not
/// block.
pub trait Lender: Send + Sync {
    /// The loan named `token` is over: the memory is the lender's again. `copied` tells that the
    /// bytes were copied after all before they were used up.
    fn returned(&self, token: u64, copied: bool);
}

/// How a loan ends.
#[expect(dead_code, reason = "held for what their drop does")]
pub(crate) enum Owner {
    /// Nothing lent.
    Nobody,
    /// A frame of a pool, whose memory this keeps: giving the descriptor back is all.
    Pool(Arc<Region>),
    /// Memory of someone who is told.
    Lender(Arc<dyn Lender>, u64),
    /// The same for memory that is kept alive meanwhile.
    Keeper(Arc<dyn Any + Send + Sync>, Arc<dyn Lender>, u64),
    /// Memory that was moved in and is freed.
    Owned(OwnedMemory),
}

/// Memory that was moved in. Held by address: pieces point into it, so it is no `Box` meanwhile.
pub(crate) struct OwnedMemory(NonNull<[u8]>);

impl Drop for OwnedMemory {
    fn drop(&mut self) {
        // SAFETY: made by `Box::leak` in `Loans::lend_owned`; the last piece is gone.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// The part of a loan that is written while it is private to one holder.
pub(crate) struct Terms {
    pub(crate) base: NonNull<u8>,
    pub(crate) capacity: u32,
    pub(crate) foreign: bool,
    pub(crate) owner: Owner,
}

/// The descriptor of a loan. Lives in a slab, next to its like.
pub(crate) struct Loan {
    /// Holders. Zero while the slot is free.
    pub(crate) holders: AtomicU32,
    /// Bytes were copied after all.
    pub(crate) copied: AtomicBool,
    pub(crate) terms: UnsafeCell<Terms>,
}

// SAFETY: `terms` is written only by the one holder of a slot just taken (`Loans::begin`,
// `Pool::new`) or by the last holder in `end_loan`, which saw all others leave (Acquire fence
// after the Release decrements). In between it is read only.
unsafe impl Sync for Loan {}
// SAFETY: a loan's memory may be used on any thread: private memory is plain bytes, foreign
// memory is reached by address only, and `Lender` is `Send + Sync`.
unsafe impl Send for Loan {}

impl Loan {
    pub(crate) fn free() -> Self {
        Self {
            holders: AtomicU32::new(0),
            copied: AtomicBool::new(false),
            terms: UnsafeCell::new(Terms {
                base: NonNull::dangling(),
                capacity: 0,
                foreign: false,
                owner: Owner::Nobody,
            }),
        }
    }

    pub(crate) fn terms(&self) -> &Terms {
        // SAFETY: shared reads are allowed while the loan has a holder; see `Sync` above.
        unsafe { &*self.terms.get() }
    }
}

/// A range of a loan: sixteen bytes, cheap to clone and to cut.
pub struct Piece {
    loan: NonNull<Slot<Loan>>,
    offset: u32,
    len: u32,
}

const _: () = assert!(size_of::<Piece>() == 16 && size_of::<Option<Piece>>() == 16);

// SAFETY: holders are counted with atomics and `Loan` is `Send + Sync`.
unsafe impl Send for Piece {}
// SAFETY: as above; `&Piece` only reads.
unsafe impl Sync for Piece {}

impl Piece {
    /// The first piece of a loan that has one holder, which becomes this piece.
    ///
    /// # Safety
    /// `loan` is out of its slab with a holder count of one that no other piece stands for, and
    /// `offset + len` is within its capacity.
    pub(crate) unsafe fn first(loan: NonNull<Slot<Loan>>, offset: u32, len: u32) -> Self {
        Self { loan, offset, len }
    }

    /// Bytes in this piece.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// True for a piece of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of memory that this piece keeps from its lender: all of its loan.
    pub fn held(&self) -> usize {
        self.terms().capacity as usize
    }

    /// True if others can write this memory.
    pub fn is_foreign(&self) -> bool {
        self.terms().foreign
    }

    /// True if `other` is a range of the same loan.
    pub fn same_loan(&self, other: &Piece) -> bool {
        self.loan == other.loan
    }

    /// The bytes, if nobody can write them; `None` for foreign memory.
    pub fn bytes(&self) -> Option<&[u8]> {
        if self.is_foreign() {
            return None;
        }
        // SAFETY: private memory is not written while lent, the range is within the loan (every
        // constructor asserts it), and the loan lives as long as this piece.
        Some(unsafe { core::slice::from_raw_parts(self.address(), self.len()) })
    }

    /// Where the bytes are, for a system call or a device that is handed addresses. Valid for
    /// [`len`](Self::len) bytes while this piece lives.
    pub fn address(&self) -> *const u8 {
        // SAFETY: `offset` is within the loan's capacity.
        unsafe { self.terms().base.as_ptr().add(self.offset as usize) }
    }

    /// Notes that bytes of this loan were copied after all, for what its lender is told.
    pub fn mark_copied(&self) {
        // Relaxed: ordered by the holder's decrement.
        self.loan().copied.store(true, Ordering::Relaxed);
    }

    /// Another holder of the bytes `from..from + len`.
    ///
    /// # Panics
    /// If the range is not within this piece.
    pub fn slice(&self, from: usize, len: usize) -> Piece {
        assert!(from <= self.len() && len <= self.len() - from);
        let mut piece = self.clone();
        piece.offset += from as u32;
        piece.len = len as u32;
        piece
    }

    /// Drops the first `count` bytes.
    ///
    /// # Panics
    /// If the piece is shorter.
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.len());
        self.offset += count as u32;
        self.len -= count as u32;
    }

    /// Keeps the first `len` bytes; no effect if there are fewer.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(u32::try_from(len).unwrap_or(u32::MAX));
    }

    /// Joins `next` to the end if it directly follows in the same loan; else hands it back.
    pub fn join(&mut self, next: Piece) -> Result<(), Piece> {
        if self.loan != next.loan || self.offset + self.len != next.offset {
            return Err(next);
        }
        self.len += next.len;
        Ok(())
    }

    /// Copies the start into `to`; returns how much. Foreign memory is read once, byte ranges in
    /// volatile words. Not public: payload is copied through [`Ledger::copy`](crate::Ledger).
    pub(crate) fn copy_to(&self, to: &mut [u8]) -> usize {
        let count = self.len().min(to.len());
        if let Some(bytes) = self.bytes() {
            to[..count].copy_from_slice(&bytes[..count]);
            return count;
        }
        // SAFETY: `address` is valid for `count <= len` bytes.
        unsafe { copy_volatile(self.address(), &mut to[..count]) };
        count
    }

    fn loan(&self) -> &Loan {
        // SAFETY: a slot with a holder stays in its slab's storage.
        unsafe { self.loan.as_ref() }.value()
    }

    fn terms(&self) -> &Terms {
        self.loan().terms()
    }
}

impl Clone for Piece {
    fn clone(&self) -> Self {
        // Relaxed: a new holder is made from a holder, nothing is published by it.
        let before = self.loan().holders.fetch_add(1, Ordering::Relaxed);
        assert!(before > 0 && before < u32::MAX / 2, "a loan has too many holders");
        Self { loan: self.loan, offset: self.offset, len: self.len }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // Acquire: pairs with the Release below; if we are the only holder, nobody can become one,
        // and all that the others did is over. Saves the locked subtraction in the common case.
        let last = self.loan().holders.load(Ordering::Acquire) == 1
            // Release: our use of the bytes ends here; pairs with the Acquire of the last holder.
            || self.loan().holders.fetch_sub(1, Ordering::Release) == 1;
        if last {
            // SAFETY: we held the last share, nobody else can reach the loan.
            unsafe { end_loan(self.loan) };
        }
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_foreign() { "foreign" } else { "private" };
        write!(f, "Piece({} {kind} bytes at {})", self.len, self.offset)
    }
}

/// Tells the lender and frees the descriptor.
///
/// # Safety
/// The caller held the last share and does not use the loan afterwards.
pub(crate) unsafe fn end_loan(slot: NonNull<Slot<Loan>>) {
    // SAFETY: still out of its slab.
    let loan = unsafe { slot.as_ref() }.value();
    // Acquire: pairs with the Release decrements of the other holders, so that their reads are
    // over before the memory changes hands. `load` stands for a fence on this location.
    loan.holders.load(Ordering::Acquire);
    // Relaxed: nobody else looks at a free slot.
    loan.holders.store(0, Ordering::Relaxed);
    // Relaxed: the Acquire above orders it.
    let copied = loan.copied.load(Ordering::Relaxed);
    // SAFETY: the last holder is alone (above).
    let terms = unsafe { &mut *loan.terms.get() };
    let ended = match &terms.owner {
        Owner::Pool(_) => None,
        _ => Some(core::mem::replace(&mut terms.owner, Owner::Nobody)),
    };
    // SAFETY: out, and given back once, here.
    unsafe { slab::give_back(slot) };
    match ended {
        Some(Owner::Lender(lender, token)) => lender.returned(token, copied),
        Some(Owner::Keeper(memory, lender, token)) => {
            drop(memory);
            lender.returned(token, copied);
        }
        _ => {}
    }
}

/// Copies from memory that others may write: each byte is read once, never through a reference.
///
/// # Safety
/// `from` is valid for reads of `to.len()` bytes.
unsafe fn copy_volatile(from: *const u8, to: &mut [u8]) {
    let mut at = 0;
    while to.len() - at >= 8 {
        // SAFETY: `at + 8 <= len`.
        let source = unsafe { from.add(at) }.cast::<[u8; 8]>();
        // SAFETY: as above; an array of bytes has no alignment.
        let word = unsafe { source.read_volatile() };
        to[at..at + 8].copy_from_slice(&word);
        at += 8;
    }
    while at < to.len() {
        // SAFETY: `at < len`.
        let source = unsafe { from.add(at) };
        // SAFETY: as above.
        to[at] = unsafe { source.read_volatile() };
        at += 1;
    }
}

/// Makes loans of memory that is not in a pool. One thread lends; any thread returns.
pub struct Loans {
    slab: Slab<Loan>,
}

impl Loans {
    /// Room for `count` loans at a time.
    pub fn new(count: usize) -> Self {
        Self { slab: Slab::new(count, |_| Loan::free()) }
    }

    /// Lends memory that was moved in; it is freed when the last piece is dropped. Hands the
    /// memory back if all descriptors are out.
    pub fn lend_owned(&mut self, memory: Box<[u8]>) -> Result<Piece, Box<[u8]>> {
        let Ok(len) = u32::try_from(memory.len()) else { return Err(memory) };
        let Some(slot) = self.slab.take() else { return Err(memory) };
        let memory = NonNull::from(Box::leak(memory));
        let owner = Owner::Owned(OwnedMemory(memory));
        let terms = Terms { base: memory.cast(), capacity: len, foreign: false, owner };
        // SAFETY: just taken, so we are alone.
        unsafe { begin(slot, terms) };
        // SAFETY: one holder, which is this piece; the whole range.
        Ok(unsafe { Piece::first(slot, 0, len) })
    }

    /// Lends the bytes `from..from + len` of `memory`, which nobody writes as long as it is shared.
    /// `lender.returned(token, …)` runs when the last piece is gone and the loan keeps `memory` no
    /// longer. `None` if all descriptors are out: nothing was lent.
    ///
    /// # Panics
    /// If the range is not within `memory`.
    pub fn lend_shared<M: AsRef<[u8]> + Send + Sync + 'static>(
        &mut self,
        memory: &Arc<M>,
        (from, len): (usize, u32),
        lender: Arc<dyn Lender>,
        token: u64,
    ) -> Option<Piece> {
        // The borrow lasts as long as `memory` is shared, as only `&mut M` could end it: so long
        // these bytes stay where they are and as they are.
        let base = NonNull::from(&memory.as_ref().as_ref()[from..][..len as usize]).cast();
        let slot = self.slab.take()?;
        let owner = Owner::Keeper(memory.clone(), lender, token);
        let terms = Terms { base, capacity: len, foreign: false, owner };
        // SAFETY: just taken, so we are alone.
        unsafe { begin(slot, terms) };
        // SAFETY: one holder, which is this piece; the whole range.
        Some(unsafe { Piece::first(slot, 0, len) })
    }

    /// Lends `len` bytes at `base` that others may write. `lender.returned(token, …)` runs when
    /// the last piece is gone. `None` if all descriptors are out: nothing was lent.
    ///
    /// # Safety
    /// The memory stays valid for reads until `lender` is told.
    pub unsafe fn lend_foreign(
        &mut self,
        base: NonNull<u8>,
        len: u32,
        lender: Arc<dyn Lender>,
        token: u64,
    ) -> Option<Piece> {
        let slot = self.slab.take()?;
        let terms =
            Terms { base, capacity: len, foreign: true, owner: Owner::Lender(lender, token) };
        // SAFETY: just taken, so we are alone.
        unsafe { begin(slot, terms) };
        // SAFETY: one holder, which is this piece; the whole range.
        Some(unsafe { Piece::first(slot, 0, len) })
    }

    /// Loans not yet returned. Walks a list: for tests and reports.
    pub fn out_count(&self) -> usize {
        self.slab.out_count()
    }
}

/// Fills in a loan and counts its first holder.
///
/// # Safety
/// `slot` was just taken from its slab: no other thread can reach it.
unsafe fn begin(slot: NonNull<Slot<Loan>>, terms: Terms) {
    // SAFETY: out of the slab.
    let loan = unsafe { slot.as_ref() }.value();
    // SAFETY: we are alone.
    unsafe { *loan.terms.get() = terms };
    // Relaxed: as below.
    loan.copied.store(false, Ordering::Relaxed);
    // Relaxed: the piece made from it reaches other threads through something that orders.
    loan.holders.store(1, Ordering::Relaxed);
}

#[cfg(all(test, not(loom)))]
mod tests;
