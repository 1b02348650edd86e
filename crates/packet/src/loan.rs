//! Loans and pieces: reference-counted access to lent memory.
//!
//! A *loan* describes one range of memory: its start, its length, whether others can write it, and
//! which lender gets it back. A [`Piece`] is a range of a loan. Cloning and slicing pieces copies
//! no payload. Dropping the last piece of a loan returns the memory, exactly once, on the thread
//! that drops it.
//!
//! There are three kinds of memory. *Private* memory is not written while it is lent, so a piece of
//! it can be read as `&[u8]`. *Recallable* memory is not written either, but it may go back to its
//! lender before its last piece is dropped: it can be read while it is pinned ([`Piece::view`]).
//! *Foreign* memory may go back early, too, and others (a guest, another process, a shared file)
//! may write it at any time: there is never a reference to it. It is only copied out, through
//! [`Ledger::copy`](crate::Ledger::copy), or passed to a system call by address ([`Piece::pin`]).
//!
//! # Theory of operation: watched loans
//!
//! A loan of memory that may go back early can be *watched* by one [`Watch`](crate::Watch), which
//! may recall it: the bytes are copied into memory owned by the loan, the copy is published as
//! `replacement`, and once no thread reads the old memory any more, the memory goes back to its
//! lender. One word, `state`, coordinates this. While a watch exists, `state` is changed by
//! read-modify-write operations only. So its changes have one order, and an Acquire synchronizes
//! with all Releases before it in that order:
//!
//! - A reader *pins*: it adds `PIN`, unless `SWAPPED` is set. If the addition comes before
//!   `SWAPPED` in the order of changes, the recaller sees the pin and has to be called again. If it
//!   comes after, the reader sees `SWAPPED` and reads the replacement. So once the recaller finds
//!   no pin after it set `SWAPPED`, no thread reads the old memory from then on.
//! - Only the thread that has the turn changes `owner`. The recaller has the turn from the time
//!   when it sets `RECALLING`, unless `ENDED` was set before. The thread that drops the last piece
//!   has the turn from the time when it sets `ENDED`, unless `RECALLING` was set: then the recaller
//!   finishes the loan at the end of its turn.
//! - The descriptor is freed by the later of two events: the end of the loan (sets `OVER`) and the
//!   end of the watch (clears `WATCHED`).
//!
//! The only holder of a loan makes the watch, so every later holder sees `WATCHED`. Loans without a
//! watch are read without pins and end without this protocol.
//! Loans without one are read without pins and end without any of this.
#![allow(unsafe_code)]

mod holders;
mod pin;

pub use holders::Holders;
pub(crate) use holders::Leaving;
pub use pin::{Pinned, PinnedPiece, Pins, View};

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

/// Gets memory back. `returned` runs on the thread that dropped the last piece or recalled the
/// loan, and must not block.
pub trait Lender: Send + Sync {
    /// The loan named `token` is over: the memory belongs to the lender again. `copied` is true if
    /// bytes were copied before they were used up.
    fn returned(&self, token: u64, copied: bool);
}

/// The owner of lent memory, which gets it back when the loan ends.
#[expect(dead_code, reason = "held for what their drop does")]
pub(crate) enum Owner {
    /// Nothing is lent, or the memory was given back.
    Nobody,
    /// A frame of a pool, whose memory this keeps alive. Returning the descriptor returns the
    /// frame.
    Pool(Arc<Region>),
    /// Memory of a lender, which is notified with a token.
    Lender(Arc<dyn Lender>, u64),
    /// Memory that this keeps alive until its lender is notified with a token.
    Keeper(Arc<dyn Any + Send + Sync>, Arc<dyn Lender>, u64),
    /// Memory that was moved in and is freed at the end.
    Owned(OwnedMemory),
}

/// Memory that was moved in. Pieces point into it, so it is held by address and not as a `Box`.
pub(crate) struct OwnedMemory(pub(crate) NonNull<[u8]>);

impl Drop for OwnedMemory {
    fn drop(&mut self) {
        // SAFETY: `Loans::lend_owned` made it with `Box::leak`, and the last piece is gone.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl Owner {
    /// Releases the memory and notifies its lender.
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
    /// Other memory that is not written while it is lent.
    Private,
    /// Memory that is not written while it is lent, but that may go back early.
    Recallable,
    /// Memory that others may write, and that may go back early.
    Foreign,
}

impl Kind {
    /// True if the memory stays as long as there are pieces of it.
    fn stays(self) -> bool {
        matches!(self, Kind::Frame | Kind::Private)
    }
}

/// The range of memory that is lent. Written only while one holder has the loan to itself.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    pub(crate) base: NonNull<u8>,
    pub(crate) capacity: u32,
    pub(crate) kind: Kind,
}

/// Bit of `state`: bytes were copied although they were lent.
pub(crate) const COPIED: u32 = 1;
/// Bit of `state`: a watch exists.
pub(crate) const WATCHED: u32 = 1 << 1;
/// Bit of `state`: the watch has asked for the turn.
pub(crate) const RECALLING: u32 = 1 << 2;
/// Bit of `state`: the bytes are in `replacement`, too.
pub(crate) const SWAPPED: u32 = 1 << 3;
/// Bit of `state`: the last piece is gone.
pub(crate) const ENDED: u32 = 1 << 4;
/// Bit of `state`: the loan is finished, except for the watch.
pub(crate) const OVER: u32 = 1 << 5;
/// Unit of the pin count in `state`: one reader of the old memory.
const PIN: u32 = 1 << 6;
/// Bound for pins: half of what fits, because threads add a pin before they check the bound.
const PINS_MAX: u32 = u32::MAX / PIN / 2;

/// Bound for holders of one loan: half of what fits, because threads add a holder before they
/// check.
const HOLDERS_MAX: u32 = u32::MAX / 2;

/// The descriptor of a loan. Lives in a slot of a slab.
pub(crate) struct Loan {
    /// Holders. Zero while the slot is free.
    pub(crate) holders: AtomicU32,
    /// The bits above, and the pin count.
    pub(crate) state: AtomicU32,
    /// Memory as long as the extent, made by `Watch::swap`; valid while `SWAPPED` is set.
    pub(crate) replacement: AtomicPtr<u8>,
    /// Stands, in the model, for the bytes that pieces show: those of a frame, or the replacement.
    pub(crate) shown: Shadow,
    pub(crate) extent: UnsafeCell<Extent>,
    pub(crate) owner: UnsafeCell<Owner>,
}

// SAFETY: `extent` is written only by the one holder of a slot that was just taken (`lend::begin`,
// `Pool::new`); after that it is only read. `owner` is reached by that holder, and by the thread
// that has the turn: the last holder, whose Acquire pairs with the Release decrements of all
// others, or the only watch. Read-modify-writes of `state` decide whose turn it is (module text).
unsafe impl Sync for Loan {}
// SAFETY: a loan's memory may be used on any thread: private memory is plain bytes, foreign memory
// is reached by address only, and `Lender` is `Send + Sync`.
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
        // SAFETY: `extent` is only read while the slot is out and shared; see `Sync` above.
        self.extent.with(|extent| unsafe { *extent })
    }

    /// Takes out the owner, which gets the memory back.
    ///
    /// # Safety
    /// The caller has the turn (module text).
    pub(crate) unsafe fn take_owner(&self) -> Owner {
        // SAFETY: the caller has the turn, and only the thread that has the turn reaches the owner.
        self.owner.with_mut(|owner| unsafe { owner.replace(Owner::Nobody) })
    }

    /// Address at which to read memory that may go back early, and whether this call has pinned it.
    fn pin(&self) -> (*const u8, bool) {
        let base = self.extent().base.as_ptr();
        // Acquire: pairs with the Release of `Watch::swap`, so that the replacement is visible.
        let state = self.state.load(Ordering::Acquire);
        if state & (WATCHED | SWAPPED) == 0 {
            return (base, false);
        }
        if state & SWAPPED == 0 {
            // Acquire: pairs with the Release of `Watch::swap`, if it has set `SWAPPED` in the
            // meantime.
            let before = self.state.fetch_add(PIN, Ordering::Acquire);
            let has_room = before / PIN < PINS_MAX;
            if has_room && before & SWAPPED == 0 {
                return (base, true);
            }
            // Relaxed: nothing was read.
            self.state.fetch_sub(PIN, Ordering::Relaxed);
            // The pin is taken back first: pins of callers that survive the panic would add up and
            // wrap.
            assert!(has_room, "a loan has too many pins");
        }
        self.shown.read();
        // Relaxed: one of the Acquires above orders it.
        (self.replacement.load(Ordering::Relaxed), false)
    }

    /// True if a thread may still read the old memory of a swapped loan. If false, all such reads
    /// happen before any later Acquire of `state`.
    pub(crate) fn is_pinned(&self) -> bool {
        // Relaxed: the caller acquires `state` afterwards.
        self.state.load(Ordering::Relaxed) >= PIN
    }
}

/// Most bytes that [`Piece::held`] counts for one piece: those of a super-packet.
pub const HELD_MAX: u32 = 64 << 10;

/// A range of a loan: sixteen bytes, cheap to clone and to slice.
pub struct Piece {
    loan: NonNull<Slot<Loan>>,
    offset: u32,
    len: u32,
}

const _: () = assert!(size_of::<Piece>() == 16 && size_of::<Option<Piece>>() == 16);

// SAFETY: holders are counted with atomics and `Loan` is `Send + Sync`.
unsafe impl Send for Piece {}
// SAFETY: `Loan` is `Sync`, and `&Piece` only reads.
unsafe impl Sync for Piece {}

impl Piece {
    /// Makes the first piece of a loan, which stands for its only holder.
    ///
    /// # Safety
    /// `loan` is out of its slab and has a holder count of one that no other piece stands for.
    /// `offset + len` is within its capacity.
    pub(crate) unsafe fn first(loan: NonNull<Slot<Loan>>, offset: u32, len: u32) -> Self {
        Self { loan, offset, len }
    }

    /// Bytes in this piece.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// True if the piece has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of memory that this piece keeps from its lender: all of its loan, at most
    /// [`HELD_MAX`]. Without this bound a piece of a larger loan would fill any buffer alone.
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

    /// The bytes, if they neither change nor move while this piece exists. `None` for recallable
    /// and foreign memory.
    pub fn bytes(&self) -> Option<&[u8]> {
        if self.is_recallable() {
            return None;
        }
        self.loan().shown.read();
        // SAFETY: private memory is not written while it is lent, the range is within the loan
        // (every constructor asserts it), and the loan lives at least as long as this piece.
        Some(unsafe { core::slice::from_raw_parts(self.start(), self.len()) })
    }

    /// A view of the bytes, if they cannot change. `None` for foreign memory. A recall during the
    /// view returns the memory when the view is dropped and the recall is repeated.
    pub fn view(&self) -> Option<View<'_>> {
        (!self.is_foreign()).then(|| View { pinned: self.pin(), len: self.len() })
    }

    /// Keeps the bytes in place while a system call or a device uses their address. Pins must be
    /// short: a recall cannot return the memory before they end.
    pub fn pin(&self) -> Pinned<'_> {
        let mut pinned = self.pin_loan();
        // SAFETY: `offset` is within the loan's capacity, which is the length of the memory.
        pinned.address = unsafe { pinned.address.add(self.offset as usize) };
        pinned
    }

    /// Pins the memory and returns the address of the first byte of the loan.
    fn pin_loan(&self) -> Pinned<'_> {
        let loan = self.loan();
        let Extent { base, kind, .. } = loan.extent();
        if kind.stays() {
            return Pinned::new(base.as_ptr(), None);
        }
        let (address, pinned) = loan.pin();
        Pinned::new(address, pinned.then_some(loan))
    }

    /// Prefetches the beginning, which is read soon. A hint: no byte is accessed.
    pub fn prefetch(&self) {
        foreign::prefetch_read(self.start(), self.len());
    }

    /// Prefetches `len` bytes from `at` on, from memory that most likely is in no cache.
    #[inline]
    pub fn prefetch_far(&self, at: usize, len: usize) {
        foreign::prefetch_read_far(self.start().wrapping_add(at), len);
    }

    /// Notes that bytes of this loan were copied. Its lender is notified of that at the end.
    pub fn mark_copied(&self) {
        // Relaxed: the Release decrement of this holder orders it.
        self.loan().state.fetch_or(COPIED, Ordering::Relaxed);
    }

    /// Narrows this piece to a range of itself.
    ///
    /// # Panics
    /// If the range is not within this piece.
    fn narrow(&mut self, from: usize, len: usize) {
        assert!(from <= self.len() && len <= self.len() - from);
        self.offset += from as u32;
        self.len = len as u32;
    }

    /// Reserves `count` holders at once, which become pieces later.
    ///
    /// # Panics
    /// If the loan would have too many holders. None are counted then.
    pub fn reserve(&self, count: u32) -> Holders {
        let more = |now: u32| now.checked_add(count).filter(|&sum| sum <= HOLDERS_MAX);
        // Not an addition that is taken back: that could wrap, because `count` may have any value.
        // Relaxed: a new holder is made from a holder, which publishes nothing.
        let added = self.loan().holders.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        assert!(added.is_ok(), "a loan has too many holders for {count} more");
        Holders { loan: self.loan, count }
    }

    /// Returns another piece, of the bytes `from..from + len`.
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

    /// Keeps the first `len` bytes. No effect if there are fewer.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(u32::try_from(len).unwrap_or(u32::MAX));
    }

    /// Appends `next` if it directly follows in the same loan. Returns it otherwise.
    pub fn join(&mut self, next: Piece) -> Result<(), Piece> {
        if self.loan != next.loan || self.offset + self.len != next.offset {
            return Err(next);
        }
        self.len += next.len;
        Ok(())
    }

    /// Copies the beginning into `to` and returns the number of bytes. Reads foreign memory once.
    /// Not public: payload is copied through [`Ledger::copy`](crate::Ledger).
    pub(crate) fn copy_to(&self, to: &mut [u8]) -> usize {
        let count = self.len().min(to.len());
        if let Some(bytes) = self.view() {
            foreign::copy_own(&bytes[..count], to);
            return count;
        }
        let pinned = self.pin();
        // SAFETY: the address is valid for `count <= len` bytes while the piece is pinned.
        unsafe { copy_foreign(pinned.address(), &mut to[..count]) };
        count
    }

    /// Returns the frame and the range of it that this piece is, if this piece is the only holder.
    /// Otherwise returns the piece.
    pub(crate) fn into_frame(self) -> Result<(NonNull<Slot<Loan>>, Range<usize>), Piece> {
        // Acquire: pairs with the Release decrements of the other holders, so that their reads
        // happen before the frame is written again.
        if !self.is_frame() || self.loan().holders.load(Ordering::Acquire) != 1 {
            return Err(self);
        }
        // The holder count passes to the frame, so the piece is not dropped.
        let piece = ManuallyDrop::new(self);
        let start = piece.offset as usize;
        Ok((piece.loan, start..start + piece.len()))
    }

    pub(crate) fn slot(&self) -> NonNull<Slot<Loan>> {
        self.loan
    }

    /// Address of the bytes, unless they were recalled.
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
        // Relaxed: a new holder is made from a holder, which publishes nothing.
        let holders = &self.loan().holders;
        let before = holders.fetch_add(1, Ordering::Relaxed);
        if before >= HOLDERS_MAX {
            // The holder is taken back first: holders of callers that survive the panic would add
            // up and wrap. This piece is a holder, so the count does not reach zero. Relaxed: the
            // new holder was not used.
            holders.fetch_sub(1, Ordering::Relaxed);
            panic!("a loan has too many holders");
        }
        Self { loan: self.loan, offset: self.offset, len: self.len }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // SAFETY: this piece is a holder, and it is not used afterwards.
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

/// Ends a loan: notifies the lender and frees the descriptor. A frame is added to `frames` instead.
///
/// # Safety
/// The caller was the last holder and does not use the loan afterwards.
pub(crate) unsafe fn end_loan(slot: NonNull<Slot<Loan>>, frames: &mut Returning<Loan>) {
    // SAFETY: the slot is still out of its slab, so its storage is valid.
    let loan = unsafe { slot.as_ref() }.value();
    // Acquire: pairs with the Release decrements of the other holders, so that their reads happen
    // before the memory changes hands. This `load` stands for a fence on this location.
    loan.holders.load(Ordering::Acquire);
    // Relaxed: no other thread reads the holders of a loan that has none.
    loan.holders.store(0, Ordering::Relaxed);
    if loan.extent().kind == Kind::Frame {
        // SAFETY: the slot is out, and it is given back once, here.
        unsafe { frames.add(slot) };
        return;
    }
    // Acquire: pairs with the Release of `Watch::drop`, if there was a watch.
    if loan.state.load(Ordering::Acquire) & WATCHED != 0 {
        // AcqRel: pairs with the watch's changes of `state`, which pass the turn.
        let before = loan.state.fetch_or(ENDED, Ordering::AcqRel);
        if before & RECALLING != 0 {
            return;
        }
    }
    // SAFETY: the last holder is gone, and this thread has the turn.
    unsafe { finish(slot) };
}

/// Finishes a loan whose last piece is gone.
///
/// # Safety
/// The caller has the turn (module text). It does not use the loan afterwards, unless it is the
/// watch.
pub(crate) unsafe fn finish(slot: NonNull<Slot<Loan>>) {
    // SAFETY: the slot is still out of its slab, so its storage is valid.
    let loan = unsafe { slot.as_ref() }.value();
    // SAFETY: the caller has the turn.
    let owner = unsafe { loan.take_owner() };
    // Acquire: pairs with the Release of `Watch::drop`, if the watch is gone.
    let mut state = loan.state.load(Ordering::Acquire);
    if state & SWAPPED != 0 {
        // SAFETY: no piece is left that could read the replacement, and this runs once.
        unsafe { free_replacement(loan) };
    }
    if state & WATCHED != 0 {
        // AcqRel: pairs with `Watch::drop`. The later of the two frees the descriptor.
        state = loan.state.fetch_or(OVER, Ordering::AcqRel);
    }
    if state & WATCHED == 0 {
        // SAFETY: the slot is out, and it is given back once: here, because no watch is left to do
        // it.
        unsafe { slab::give_back(slot) };
    }
    owner.tell(state & COPIED != 0);
}

/// Frees the copy that `Watch::swap` made.
///
/// # Safety
/// `SWAPPED` is set, no thread reads the replacement, and this is called once.
unsafe fn free_replacement(loan: &Loan) {
    // Relaxed: the caller's turn orders it.
    let base = loan.replacement.load(Ordering::Relaxed);
    let len = loan.extent().capacity as usize;
    loan.shown.write();
    // SAFETY: `Watch::swap` made it with `Box::into_raw` from a box of this length.
    drop(unsafe { Box::from_raw(core::ptr::slice_from_raw_parts_mut(base, len)) });
}

/// Copies memory that others may write into our own.
///
/// # Safety
/// `from` is valid for reads of `to.len()` bytes.
pub(crate) unsafe fn copy_foreign(from: *const u8, to: &mut [u8]) {
    // SAFETY: the caller guarantees that `from` is valid for as many bytes, and `to` is our own.
    unsafe { foreign::copy(from, to.as_mut_ptr(), to.len()) };
}

#[cfg(all(test, not(loom)))]
mod tests;
