//! Lending memory that is not in a pool.
//!
//! One thread lends; pieces may move to any thread. The number of simultaneous loans is fixed when
//! the descriptors are made. At that bound nothing is lent, and the caller keeps its memory.
#![allow(unsafe_code)]

use crate::loan::{Extent, Kind, Lender, Loan, OwnedMemory, Owner, Piece};
use crate::slab::{Slab, Slot};
use crate::sync::Ordering;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ptr::NonNull;

/// Makes loans of memory outside pools. One thread lends; any thread returns.
pub struct Loans {
    slab: Slab<Loan>,
}

impl Loans {
    /// Room for `count` simultaneous loans.
    pub fn new(count: usize) -> Self {
        Self { slab: Slab::new(count, |_| Loan::free()) }
    }

    /// Lends memory that the caller moves in. It is freed when the last piece is dropped. Returns
    /// the memory if no descriptor is free.
    pub fn lend_owned(&mut self, memory: Box<[u8]>) -> Result<Piece, Box<[u8]>> {
        let Ok(len) = u32::try_from(memory.len()) else { return Err(memory) };
        let Some(slot) = self.slab.take() else { return Err(memory) };
        let memory = NonNull::from(Box::leak(memory));
        let owner = Owner::Owned(OwnedMemory(memory));
        let extent = Extent { base: memory.cast(), capacity: len, kind: Kind::Private };
        // SAFETY: the slot was just taken, so no other thread can reach it.
        Ok(unsafe { begin(slot, extent, owner) })
    }

    /// Lends the bytes `from..from + len` of `memory`. Nothing can change them while `memory` is
    /// shared. `lender.returned(token, …)` runs after the last piece was dropped and the loan has
    /// released `memory`. `None` if no descriptor is free: nothing was lent.
    ///
    /// # Panics
    /// If the range is not within `memory`.
    pub fn lend_shared<M: AsRef<[u8]> + Send + Sync + 'static>(
        &mut self,
        memory: &Arc<M>,
        range: (usize, u32),
        lender: Arc<dyn Lender>,
        token: u64,
    ) -> Option<Piece> {
        self.lend_kept(memory, range, Kind::Private, (lender, token))
    }

    /// Lends like [`Loans::lend_shared`], but the loan can be [watched](Piece::watch) and recalled,
    /// which returns the memory early.
    pub fn lend_recallable<M: AsRef<[u8]> + Send + Sync + 'static>(
        &mut self,
        memory: &Arc<M>,
        range: (usize, u32),
        lender: Arc<dyn Lender>,
        token: u64,
    ) -> Option<Piece> {
        self.lend_kept(memory, range, Kind::Recallable, (lender, token))
    }

    /// Lends like [`Loans::lend_recallable`], but marks the memory as if others could write it. For
    /// tests of code that handles [foreign memory](Loans::lend_foreign).
    pub fn lend_as_foreign<M: AsRef<[u8]> + Send + Sync + 'static>(
        &mut self,
        memory: &Arc<M>,
        range: (usize, u32),
        lender: Arc<dyn Lender>,
        token: u64,
    ) -> Option<Piece> {
        self.lend_kept(memory, range, Kind::Foreign, (lender, token))
    }

    fn lend_kept<M: AsRef<[u8]> + Send + Sync + 'static>(
        &mut self,
        memory: &Arc<M>,
        (from, capacity): (usize, u32),
        kind: Kind,
        (lender, token): (Arc<dyn Lender>, u64),
    ) -> Option<Piece> {
        // The loan keeps a reference to `memory`. Only `&mut M` could invalidate the borrow, and
        // there is none while `memory` is shared: until then these bytes neither move nor change.
        let base = NonNull::from(&memory.as_ref().as_ref()[from..][..capacity as usize]).cast();
        let slot = self.slab.take()?;
        let owner = Owner::Keeper(memory.clone(), lender, token);
        // SAFETY: the slot was just taken, so no other thread can reach it.
        Some(unsafe { begin(slot, Extent { base, capacity, kind }, owner) })
    }

    /// Lends `len` bytes at `base` that others may write. `lender.returned(token, …)` runs when the
    /// last piece was dropped, or when the loan was recalled. `None` if no descriptor is free:
    /// nothing was lent.
    ///
    /// # Safety
    /// The memory stays valid for reads until `lender.returned` is called.
    pub unsafe fn lend_foreign(
        &mut self,
        base: NonNull<u8>,
        len: u32,
        lender: Arc<dyn Lender>,
        token: u64,
    ) -> Option<Piece> {
        let slot = self.slab.take()?;
        let extent = Extent { base, capacity: len, kind: Kind::Foreign };
        // SAFETY: the slot was just taken, so no other thread can reach it.
        Some(unsafe { begin(slot, extent, Owner::Lender(lender, token)) })
    }

    /// Loans that were not returned yet. Walks a list: for tests and reports.
    pub fn out_count(&self) -> usize {
        self.slab.out_count()
    }
}

/// Fills in a loan. Its first holder is a piece that covers all of it.
///
/// # Safety
/// `slot` was just taken from its slab: no other thread can reach it.
unsafe fn begin(slot: NonNull<Slot<Loan>>, extent: Extent, owner: Owner) -> Piece {
    // SAFETY: the slot is out of the slab, so its storage is valid.
    let loan = unsafe { slot.as_ref() }.value();
    // SAFETY: no other thread can reach the slot, by this function's contract.
    loan.extent.with_mut(|place| unsafe { *place = extent });
    // SAFETY: no other thread can reach the slot, by this function's contract.
    loan.owner.with_mut(|place| unsafe { *place = owner });
    // Relaxed: whatever passes the piece to another thread orders this store.
    loan.state.store(0, Ordering::Relaxed);
    // Relaxed: whatever passes the piece to another thread orders this store.
    loan.holders.store(1, Ordering::Relaxed);
    // SAFETY: the holder count is one, for this piece, which covers the whole range.
    unsafe { Piece::first(slot, 0, extent.capacity) }
}
