//! Lending memory that is not in a pool.
//!
//! One thread lends; pieces go anywhere. How many loans there can be at a time is fixed when the
//! descriptors are made: at the bound nothing is lent, and the caller keeps what he has.
#![allow(unsafe_code)]

use crate::loan::{Extent, Kind, Lender, Loan, OwnedMemory, Owner, Piece};
use crate::slab::{Slab, Slot};
use crate::sync::Ordering;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ptr::NonNull;

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
        let extent = Extent { base: memory.cast(), capacity: len, kind: Kind::Private };
        // SAFETY: just taken, so we are alone.
        Ok(unsafe { begin(slot, extent, owner) })
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
        range: (usize, u32),
        lender: Arc<dyn Lender>,
        token: u64,
    ) -> Option<Piece> {
        self.lend_kept(memory, range, Kind::Private, (lender, token))
    }

    /// As [`Loans::lend_shared`], but so that the loan can be [watched](Piece::watch) and the
    /// memory given back early.
    pub fn lend_recallable<M: AsRef<[u8]> + Send + Sync + 'static>(
        &mut self,
        memory: &Arc<M>,
        range: (usize, u32),
        lender: Arc<dyn Lender>,
        token: u64,
    ) -> Option<Piece> {
        self.lend_kept(memory, range, Kind::Recallable, (lender, token))
    }

    /// As [`Loans::lend_recallable`], but as if others could write the memory: for tests of what
    /// is done with [foreign memory](Loans::lend_foreign).
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
        // The borrow lasts as long as `memory` is shared, as only `&mut M` could end it: so long
        // these bytes stay where they are and as they are.
        let base = NonNull::from(&memory.as_ref().as_ref()[from..][..capacity as usize]).cast();
        let slot = self.slab.take()?;
        let owner = Owner::Keeper(memory.clone(), lender, token);
        // SAFETY: just taken, so we are alone.
        Some(unsafe { begin(slot, Extent { base, capacity, kind }, owner) })
    }

    /// Lends `len` bytes at `base` that others may write. `lender.returned(token, …)` runs when
    /// the last piece is gone, or when the loan was recalled. `None` if all descriptors are out:
    /// nothing was lent.
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
        let extent = Extent { base, capacity: len, kind: Kind::Foreign };
        // SAFETY: just taken, so we are alone.
        Some(unsafe { begin(slot, extent, Owner::Lender(lender, token)) })
    }

    /// Loans not yet returned. Walks a list: for tests and reports.
    pub fn out_count(&self) -> usize {
        self.slab.out_count()
    }
}

/// Fills in a loan; its first holder is the piece of all of it.
///
/// # Safety
/// `slot` was just taken from its slab: no other thread can reach it.
unsafe fn begin(slot: NonNull<Slot<Loan>>, extent: Extent, owner: Owner) -> Piece {
    // SAFETY: out of the slab.
    let loan = unsafe { slot.as_ref() }.value();
    // SAFETY: we are alone.
    loan.extent.with_mut(|place| unsafe { *place = extent });
    // SAFETY: as above.
    loan.owner.with_mut(|place| unsafe { *place = owner });
    // Relaxed: as below.
    loan.state.store(0, Ordering::Relaxed);
    // Relaxed: the piece made from it reaches other threads through something that orders.
    loan.holders.store(1, Ordering::Relaxed);
    // SAFETY: one holder, which is this piece; the whole range.
    unsafe { Piece::first(slot, 0, extent.capacity) }
}
