//! Loans and pieces: counted references to lent memory.
//!
//! A *loan* describes one stretch of memory: where it begins, how long it is, whether others can
//! write it, and who is told when it is his again. A [`Piece`] is a range of a loan. Cloning and
//! cutting pieces copies no payload; dropping the last piece of a loan returns it, exactly once,
//! on whatever thread that happens.
//!
//! Memory comes in three kinds. *Private* memory is written by nobody while it is lent, so a piece
//! of it can be seen as `&[u8]`. Nor is *recallable* memory, but it may go back to its lender
//! before its last piece is gone: it can be seen as long as it is pinned ([`Piece::view`]).
//! *Foreign* memory may besides be written by others at any time (a guest, another process, a
//! shared file): it is never a reference, only copied out, through
//! [`Ledger::copy`](crate::Ledger::copy), or handed to a system call by address ([`Piece::pin`]).
//!
//! # Theory of operation: watched loans
//!
//! A loan of memory that may go back early can be *watched* by one [`Watch`](crate::Watch), which
//! may recall it: the bytes are copied to memory of the loan's own, the copy is published as
//! `replacement`, and when nobody reads the old memory any more it goes back to its lender. All
//! that is agreed upon in one word, `state`, which while a watch exists is changed by
//! read-modify-writes only, so that each change is ordered with each other and an Acquire pairs
//! with all Releases before it:
//!
//! - Who reads *pins* (adds `PIN`) unless `SWAPPED` is set. If the addition came before
//!   `SWAPPED`, the recaller sees the pin and comes again; if after, the reader sees `SWAPPED` and
//!   reads the replacement. So when no pin is seen after `SWAPPED`, the old memory is unread from
//!   then on.
//! - `owner` is changed by whoever has the turn. The recaller has it from `RECALLING` on, unless
//!   `ENDED` was there before it; who drops the last piece has it from `ENDED` on, unless
//!   `RECALLING` was there: then the recaller does at the end of its turn what is left to do.
//! - The descriptor is freed by the later of two: the end of the loan (`OVER`) and the end of the
//!   watch (`WATCHED` cleared).
//!
//! A watch is made by the only holder of a loan, so that whoever holds it later knows of the watch.
//! Loans without one are read without pins and end without any of this.
#![allow(unsafe_code)]

mod holders;
mod pin;

pub use holders::Holders;
pub(crate) use holders::Leaving;
pub use pin::{Pinned, Pins, View};

use crate::foreign;
use crate::region::Region;
use crate::slab::{self, Returning, Slot};
use crate::sync::{AtomicPtr, AtomicU32, Ordering, Shadow, UnsafeCell};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::any::Any;
use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::Range;
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
    /// Nothing lent, or given back already.
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
pub(crate) struct OwnedMemory(pub(crate) NonNull<[u8]>);

impl Drop for OwnedMemory {
    fn drop(&mut self) {
        // SAFETY: made by `Box::leak` in `Loans::lend_owned`; the last piece is gone.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl Owner {
    /// Lets memory go, and tells its lender.
    pub(crate) fn tell(self, copied: bool) {
        match self {
            Owner::Lender(lender, token) => lender.returned(token, copied),
            Owner::Keeper(memory, lender, token) => {
                drop(memory);
                lender.returned(token, copied);
            }
            Owner::Nobody | Owner::Pool(_) | Owner::Owned(_) => {}
        }
    }
}

/// What kind of memory is lent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A frame of a pool.
    Frame,
    /// Other memory that nobody writes while it is lent.
    Private,
    /// The same, but it may go back early.
    Recallable,
    /// Memory that others may write, and that may go back early.
    Foreign,
}

impl Kind {
    /// True if the memory stays as long as there are pieces.
    fn stays(self) -> bool {
        matches!(self, Kind::Frame | Kind::Private)
    }
}

/// The stretch of memory that is lent. Written while the loan is private to one holder.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    pub(crate) base: NonNull<u8>,
    pub(crate) capacity: u32,
    pub(crate) kind: Kind,
}

/// Bytes were copied after all.
pub(crate) const COPIED: u32 = 1;
/// A watch exists.
pub(crate) const WATCHED: u32 = 1 << 1;
/// The watch has its turn.
pub(crate) const RECALLING: u32 = 1 << 2;
/// The bytes are in `replacement`, too.
pub(crate) const SWAPPED: u32 = 1 << 3;
/// The last piece is gone.
pub(crate) const ENDED: u32 = 1 << 4;
/// Whoever ended the loan is done with it.
pub(crate) const OVER: u32 = 1 << 5;
/// One reader of the old memory.
const PIN: u32 = 1 << 6;
/// Most pins: so few that many threads can each add one too many before they notice.
const PINS_MAX: u32 = u32::MAX / PIN / 2;

/// Most holders of one loan: so few that many threads can each add one too many before they notice.
const HOLDERS_MAX: u32 = u32::MAX / 2;

/// The descriptor of a loan. Lives in a slab, next to its like.
pub(crate) struct Loan {
    /// Holders. Zero while the slot is free.
    pub(crate) holders: AtomicU32,
    /// The bits above, and pins.
    pub(crate) state: AtomicU32,
    /// Memory as long as the extent, made by `Watch::swap`; valid while `SWAPPED` is set.
    pub(crate) replacement: AtomicPtr<u8>,
    /// What pieces show, in the model: the bytes of a frame, or the replacement.
    pub(crate) shown: Shadow,
    pub(crate) extent: UnsafeCell<Extent>,
    pub(crate) owner: UnsafeCell<Owner>,
}

// SAFETY: `extent` is written only by the one holder of a slot just taken (`lend::begin`,
// `Pool::new`); in between it is read only. `owner` is reached by that one, and by whoever has the
// turn: the last holder, which saw all others leave (Acquire after the Release decrements), or the
// one watch; the turn is settled by read-modify-writes of `state` (module text).
unsafe impl Sync for Loan {}
// SAFETY: a loan's memory may be used on any thread: private memory is plain bytes, foreign
// memory is reached by address only, and `Lender` is `Send + Sync`.
unsafe impl Send for Loan {}

impl Loan {
    pub(crate) fn free() -> Self {
        Self {
            holders: AtomicU32::new(0),
            state: AtomicU32::new(0),
            replacement: AtomicPtr::new(core::ptr::null_mut()),
            shown: Shadow::new(),
            extent: UnsafeCell::new(Extent {
                base: NonNull::dangling(),
                capacity: 0,
                kind: Kind::Private,
            }),
            owner: UnsafeCell::new(Owner::Nobody),
        }
    }

    pub(crate) fn extent(&self) -> Extent {
        // SAFETY: shared reads are allowed while the slot is out; see `Sync` above.
        self.extent.with(|extent| unsafe { *extent })
    }

    /// Takes out who gets the memory back.
    ///
    /// # Safety
    /// The caller has the turn (module text).
    pub(crate) unsafe fn take_owner(&self) -> Owner {
        // SAFETY: only who has the turn reaches the owner.
        self.owner.with_mut(|owner| unsafe { owner.replace(Owner::Nobody) })
    }

    /// Where the bytes of memory that may go back are to be read, and whether that was pinned.
    fn pin(&self) -> (*const u8, bool) {
        let base = self.extent().base.as_ptr();
        // Acquire: pairs with the Release of `Watch::swap`, as below.
        let state = self.state.load(Ordering::Acquire);
        if state & (WATCHED | SWAPPED) == 0 {
            return (base, false);
        }
        if state & SWAPPED == 0 {
            // Acquire: pairs with the Release of `Watch::swap`, if it was swapped meanwhile.
            let before = self.state.fetch_add(PIN, Ordering::Acquire);
            let has_room = before / PIN < PINS_MAX;
            if has_room && before & SWAPPED == 0 {
                return (base, true);
            }
            // Relaxed: nothing was read.
            self.state.fetch_sub(PIN, Ordering::Relaxed);
            // Not counted before this: pins of callers who survive it would add up and wrap.
            assert!(has_room, "a loan has too many pins");
        }
        self.shown.read();
        // Relaxed: one of the Acquires above orders it.
        (self.replacement.load(Ordering::Relaxed), false)
    }

    /// True if somebody may still be reading the old memory of a loan that was swapped. If not, the
    /// reads are over for who acquires `state` afterwards.
    pub(crate) fn is_pinned(&self) -> bool {
        // Relaxed: as said.
        self.state.load(Ordering::Relaxed) >= PIN
    }
}

/// Most that a piece of a loan counts for with [`Piece::held`]: a super-packet.
pub const HELD_MAX: u32 = 64 << 10;

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

    /// Bytes of memory that this piece keeps from its lender: all of its loan, but no more than
    /// [`HELD_MAX`]. A part of a larger loan would fill any buffer by itself otherwise.
    pub fn held(&self) -> usize {
        self.extent().capacity.min(HELD_MAX) as usize
    }

    /// True if others can write this memory.
    pub fn is_foreign(&self) -> bool {
        self.extent().kind == Kind::Foreign
    }

    /// True if the memory is a frame of a pool.
    pub fn is_frame(&self) -> bool {
        self.extent().kind == Kind::Frame
    }

    /// True if `other` is a range of the same loan.
    pub fn same_loan(&self, other: &Piece) -> bool {
        self.loan == other.loan
    }

    /// True if the memory may go back to its lender before this piece is dropped.
    pub fn is_recallable(&self) -> bool {
        !self.extent().kind.stays()
    }

    /// The bytes, if nobody can write them and they stay where they are as long as this piece;
    /// `None` for recallable and foreign memory.
    pub fn bytes(&self) -> Option<&[u8]> {
        if self.is_recallable() {
            return None;
        }
        self.loan().shown.read();
        // SAFETY: private memory is not written while lent, the range is within the loan (every
        // constructor asserts it), and the loan lives as long as this piece.
        Some(unsafe { core::slice::from_raw_parts(self.start(), self.len()) })
    }

    /// The bytes, if nobody can write them, for a while; `None` for foreign memory. Memory that is
    /// recalled meanwhile goes back to its lender when the view is dropped.
    pub fn view(&self) -> Option<View<'_>> {
        (!self.is_foreign()).then(|| View { pinned: self.pin(), len: self.len() })
    }

    /// Keeps the bytes where they are while a system call or a device is handed their address.
    /// A short matter: memory that is recalled meanwhile goes back to its lender afterwards.
    pub fn pin(&self) -> Pinned<'_> {
        let mut pinned = self.pin_loan();
        // SAFETY: `offset` is within the loan's capacity, and so long is the memory.
        pinned.address = unsafe { pinned.address.add(self.offset as usize) };
        pinned
    }

    /// As [`Piece::pin`], for the first byte of the loan.
    fn pin_loan(&self) -> Pinned<'_> {
        let loan = self.loan();
        let Extent { base, kind, .. } = loan.extent();
        if kind.stays() {
            return Pinned::new(base.as_ptr(), None);
        }
        let (address, pinned) = loan.pin();
        Pinned::new(address, pinned.then_some(loan))
    }

    /// Has the beginning fetched, as it is read soon. A hint: nothing is read.
    pub fn prefetch(&self) {
        foreign::prefetch_read(self.start(), self.len());
    }

    /// The same of `len` bytes from `at` on, from memory that most likely no cache has.
    #[inline]
    pub fn prefetch_far(&self, at: usize, len: usize) {
        foreign::prefetch_read_far(self.start().wrapping_add(at), len);
    }

    /// Notes that bytes of this loan were copied after all, for what its lender is told.
    pub fn mark_copied(&self) {
        // Relaxed: ordered by the holder's decrement.
        self.loan().state.fetch_or(COPIED, Ordering::Relaxed);
    }

    /// Makes this piece a range of itself.
    ///
    /// # Panics
    /// If the range is not within this piece.
    fn narrow(&mut self, from: usize, len: usize) {
        assert!(from <= self.len() && len <= self.len() - from);
        self.offset += from as u32;
        self.len = len as u32;
    }

    /// Counts `count` holders that become pieces later, together.
    ///
    /// # Panics
    /// If the loan would have too many holders then. None are counted.
    pub fn reserve(&self, count: u32) -> Holders {
        let more = |now: u32| now.checked_add(count).filter(|&sum| sum <= HOLDERS_MAX);
        // An addition that is taken back could wrap, as `count` may be anything. Relaxed: as for a
        // clone.
        let added = self.loan().holders.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        assert!(added.is_ok(), "a loan has too many holders for {count} more");
        Holders { loan: self.loan, count }
    }

    /// Another holder of the bytes `from..from + len`.
    ///
    /// # Panics
    /// If the range is not within this piece.
    pub fn slice(&self, from: usize, len: usize) -> Piece {
        let mut piece = self.clone();
        piece.narrow(from, len);
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

    /// Copies the start into `to`; returns how much. Foreign memory is read once. Not
    /// public: payload is copied through [`Ledger::copy`](crate::Ledger).
    pub(crate) fn copy_to(&self, to: &mut [u8]) -> usize {
        let count = self.len().min(to.len());
        if let Some(bytes) = self.view() {
            foreign::copy_own(&bytes[..count], to);
            return count;
        }
        let pinned = self.pin();
        // SAFETY: the address is valid for `count <= len` bytes while it is pinned.
        unsafe { copy_foreign(pinned.address(), &mut to[..count]) };
        count
    }

    /// The frame that this is a range of, and the range, if this is its only holder; the piece
    /// comes back otherwise.
    pub(crate) fn into_frame(self) -> Result<(NonNull<Slot<Loan>>, Range<usize>), Piece> {
        // Acquire: pairs with the Release decrements of the other holders, so that their reads are
        // over before the frame is written again.
        if !self.is_frame() || self.loan().holders.load(Ordering::Acquire) != 1 {
            return Err(self);
        }
        // Its share passes on.
        let piece = ManuallyDrop::new(self);
        let start = piece.offset as usize;
        Ok((piece.loan, start..start + piece.len()))
    }

    pub(crate) fn slot(&self) -> NonNull<Slot<Loan>> {
        self.loan
    }

    /// Where the bytes are, unless they were recalled.
    fn start(&self) -> *const u8 {
        // SAFETY: `offset` is within the loan's capacity.
        unsafe { self.extent().base.as_ptr().add(self.offset as usize) }
    }

    fn loan(&self) -> &Loan {
        // SAFETY: a slot with a holder stays in its slab's storage.
        unsafe { self.loan.as_ref() }.value()
    }

    fn extent(&self) -> Extent {
        self.loan().extent()
    }
}

impl Clone for Piece {
    fn clone(&self) -> Self {
        // Relaxed: a new holder is made from a holder, nothing is published by it.
        let holders = &self.loan().holders;
        let before = holders.fetch_add(1, Ordering::Relaxed);
        if before >= HOLDERS_MAX {
            // Holders of callers who survive this would add up and wrap. This piece is a holder, so
            // that the count does not come to zero. Relaxed: nothing was done with it.
            holders.fetch_sub(1, Ordering::Relaxed);
            panic!("a loan has too many holders");
        }
        Self { loan: self.loan, offset: self.offset, len: self.len }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // SAFETY: this piece is a holder, and gone afterwards.
        unsafe { holders::leave(self.loan, 1, &mut Returning::new()) };
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.extent().kind {
            Kind::Frame | Kind::Private => "private",
            Kind::Recallable => "recallable",
            Kind::Foreign => "foreign",
        };
        write!(f, "Piece({} {kind} bytes at {})", self.len, self.offset)
    }
}

/// Tells the lender and frees the descriptor; that of a frame is added to `frames`.
///
/// # Safety
/// The caller held the last share and does not use the loan afterwards.
pub(crate) unsafe fn end_loan(slot: NonNull<Slot<Loan>>, frames: &mut Returning<Loan>) {
    // SAFETY: still out of its slab.
    let loan = unsafe { slot.as_ref() }.value();
    // Acquire: pairs with the Release decrements of the other holders, so that their reads are
    // over before the memory changes hands. `load` stands for a fence on this location.
    loan.holders.load(Ordering::Acquire);
    // Relaxed: nobody else looks at a free slot.
    loan.holders.store(0, Ordering::Relaxed);
    if loan.extent().kind == Kind::Frame {
        // SAFETY: out, and given back once, here.
        unsafe { frames.add(slot) };
        return;
    }
    // Acquire: pairs with the Release of `Watch::drop`, if there was a watch.
    if loan.state.load(Ordering::Acquire) & WATCHED != 0 {
        // AcqRel: pairs with the watch's changes of `state`: the turn passes on.
        let before = loan.state.fetch_or(ENDED, Ordering::AcqRel);
        if before & RECALLING != 0 {
            return;
        }
    }
    // SAFETY: the last holder is gone, and the turn is ours.
    unsafe { finish(slot) };
}

/// Ends a loan whose last piece is gone.
///
/// # Safety
/// The caller has the turn (module text) and does not use the loan afterwards, unless it is the
/// watch.
pub(crate) unsafe fn finish(slot: NonNull<Slot<Loan>>) {
    // SAFETY: still out of its slab.
    let loan = unsafe { slot.as_ref() }.value();
    // SAFETY: the caller has the turn.
    let owner = unsafe { loan.take_owner() };
    // Acquire: pairs with `Watch::drop`, if there is no watch any more.
    let mut state = loan.state.load(Ordering::Acquire);
    if state & SWAPPED != 0 {
        // SAFETY: no piece is left that could be read from it, and this is done once.
        unsafe { free_replacement(loan) };
    }
    if state & WATCHED != 0 {
        // AcqRel: pairs with `Watch::drop`; the later of both frees the descriptor.
        state = loan.state.fetch_or(OVER, Ordering::AcqRel);
    }
    if state & WATCHED == 0 {
        // SAFETY: out, and given back once: here, as no watch is left that could.
        unsafe { slab::give_back(slot) };
    }
    owner.tell(state & COPIED != 0);
}

/// Frees what `Watch::swap` made.
///
/// # Safety
/// `SWAPPED` is set, nobody reads the replacement, and this is called once.
unsafe fn free_replacement(loan: &Loan) {
    // Relaxed: the caller's turn orders it.
    let base = loan.replacement.load(Ordering::Relaxed);
    let len = loan.extent().capacity as usize;
    loan.shown.write();
    // SAFETY: made by `Box::into_raw` of a box of this length.
    drop(unsafe { Box::from_raw(core::ptr::slice_from_raw_parts_mut(base, len)) });
}

/// Copies memory that others may write into ours.
///
/// # Safety
/// `from` is valid for reads of `to.len()` bytes.
pub(crate) unsafe fn copy_foreign(from: *const u8, to: &mut [u8]) {
    // SAFETY: the caller's, and `to` is ours.
    unsafe { foreign::copy(from, to.as_mut_ptr(), to.len()) };
}

#[cfg(all(test, not(loom)))]
mod tests;
