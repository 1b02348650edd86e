//! A fixed set of slots with one owner who takes and any thread that gives back.
//!
//! # Theory of operation
//!
//! The owner keeps two sources of free slots: a private list of recycled slots, and a mark below
//! which slots have never been used. Whoever drops the last holder of a slot pushes its index on
//! `returned`, a lock-free list that grows at its front, by one slot or a run of them, and is only
//! ever taken *whole*. Since nobody pops single slots from it, the list has no ABA problem and
//! needs no tags.
//!
//! Taking prefers recycled over returned over fresh slots: memory that is warm in the cache comes
//! first and memory never needed is never touched. A slot is made when it is first taken; those
//! below the mark are, and only they are ever on a list.
//!
//! Dropping the owner closes the list. Slots still out keep the storage alive; `left` counts
//! them, and whoever brings it to zero frees the storage. A giver that saw the closed list
//! subtracts his slots, possibly before the owner has added the number of slots out, so that the
//! intermediate value is negative and zero is reached exactly once.
#![allow(unsafe_code)]

use crate::sync::{AtomicIsize, AtomicU32, Ordering};
use alloc::boxed::Box;
use alloc::vec;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ops::Range;
use core::ptr::NonNull;

/// End of a list of slots.
const NONE: u32 = u32::MAX;
/// Value of `returned` once the owner is gone.
const CLOSED: u32 = u32::MAX - 1;
/// Most slots in one slab; the two values above are not indices.
pub const SLOTS_MAX: usize = (u32::MAX - 2) as usize;

/// One place of a slab.
#[repr(C)]
pub struct Slot<T> {
    value: T,
    home: NonNull<Shared<T>>,
    next: AtomicU32,
    index: u32,
}

impl<T> Slot<T> {
    /// The value that lives in this slot; it stays across uses.
    pub fn value(&self) -> &T {
        &self.value
    }
}

/// Memory of a slot that may not be made yet.
type Place<T> = MaybeUninit<UnsafeCell<Slot<T>>>;

struct Shared<T> {
    places: Box<[Place<T>]>,
    /// Slots that were made when the owner went: the first so many. Nothing before.
    made: AtomicU32,
    /// Slots given back and not yet taken again, newest first; or `CLOSED`.
    returned: AtomicU32,
    /// After closing: slots still out. See the module text.
    left: AtomicIsize,
}

/// The owner's side: takes slots. One thread at a time.
pub struct Slab<T> {
    shared: NonNull<Shared<T>>,
    /// Makes the value of a slot.
    make: Box<dyn FnMut(usize) -> T + Send>,
    recycled: u32,
    /// Slots from here on were never taken, and are not made.
    fresh: u32,
    count: u32,
    /// Slots taken minus slots seen to have come back; at least the number of slots out.
    out: u32,
}

// SAFETY: the owner's fields are plain values and a closure that is `Send`, and `shared` is reached
// by other threads only through `give_back`, which touches atomics. `T: Send + Sync` because a slot
// taken on this thread may be read and given back on another.
unsafe impl<T: Send + Sync> Send for Slab<T> {}

impl<T> Slab<T> {
    /// A slab of `count` slots; `make(index)` fills each once, when it is first taken.
    ///
    /// # Panics
    /// If `count` exceeds [`SLOTS_MAX`].
    pub fn new(count: usize, make: impl FnMut(usize) -> T + Send + 'static) -> Self {
        assert!(count <= SLOTS_MAX);
        let shared = Box::leak(Box::new(Shared {
            places: Box::new_uninit_slice(count),
            made: AtomicU32::new(0),
            returned: AtomicU32::new(NONE),
            left: AtomicIsize::new(0),
        }));
        let (shared, make) = (NonNull::from(shared), Box::new(make));
        Self { shared, make, recycled: NONE, fresh: 0, count: count as u32, out: 0 }
    }

    /// Takes a slot, or `None` when all are out.
    pub fn take(&mut self) -> Option<NonNull<Slot<T>>> {
        if self.recycled == NONE {
            self.collect_returned();
        }
        let index = if self.recycled != NONE {
            let index = self.recycled;
            // Relaxed: the slot is ours; `collect_returned` acquired what its giver wrote.
            self.recycled = self.slot(index).next.load(Ordering::Relaxed);
            index
        } else if self.fresh < self.count {
            self.make_slot();
            self.fresh - 1
        } else {
            return None;
        };
        self.out += 1;
        Some(self.shared().place(index))
    }

    /// Makes the first slot that was never taken.
    fn make_slot(&mut self) {
        let index = self.fresh;
        let value = (self.make)(index as usize);
        let next = AtomicU32::new(NONE);
        let slot = Slot { value, home: self.shared, next, index };
        let place = self.shared().place(index);
        // SAFETY: within the storage, and nobody else has this slot's address: it was never taken,
        // so it is on no list either. `UnsafeCell` allows writing behind a shared reference.
        unsafe { place.write(slot) };
        self.fresh += 1;
    }

    /// A slot that was made.
    fn slot(&self, index: u32) -> &Slot<T> {
        assert!(index < self.fresh, "only slots that were taken are on a list");
        // SAFETY: made, as it is below the mark; from then on slots are reached by shared
        // references only, until the storage is freed, which `self` keeps from happening.
        unsafe { self.shared().place(index).as_ref() }
    }

    /// Slots that can still be taken, at least. Exact while no other thread gives back.
    pub fn free_count(&mut self) -> usize {
        self.collect_returned();
        (self.count - self.out) as usize
    }

    /// Number of slots.
    pub fn capacity(&self) -> usize {
        self.count as usize
    }

    /// Slots out, exactly, as long as no other thread gives back meanwhile. Walks the returned
    /// slots: for tests and reports, not for the data path.
    pub fn out_count(&self) -> usize {
        // Acquire: pairs with the Release in `give_back`; makes the links visible.
        let mut index = self.shared().returned.load(Ordering::Acquire);
        let mut returned = 0;
        while index != NONE {
            returned += 1;
            // Relaxed: ordered by the Acquire above for each slot on the list.
            index = self.slot(index).next.load(Ordering::Relaxed);
        }
        self.out as usize - returned
    }

    /// Tells `each` the runs of slots that were used and are free, in their order. Looks at all
    /// that were ever used, and allocates: not for the data path.
    pub fn free_runs(&mut self, mut each: impl FnMut(Range<usize>)) {
        self.collect_returned();
        let mut free = vec![false; self.fresh as usize];
        let mut index = self.recycled;
        while index != NONE {
            free[index as usize] = true;
            // Relaxed: the slot is ours; `collect_returned` acquired what its giver wrote.
            index = self.slot(index).next.load(Ordering::Relaxed);
        }
        let mut start = 0;
        for run in free.chunk_by(|one, next| one == next) {
            if run[0] {
                each(start..start + run.len());
            }
            start += run.len();
        }
    }

    fn collect_returned(&mut self) {
        // Relaxed: only a hint; the swap below orders.
        if self.shared().returned.load(Ordering::Relaxed) == NONE {
            return;
        }
        // Acquire: pairs with the Release in `give_back`; what the givers did with the slots
        // happened before we hand them out again.
        let head = self.shared().returned.swap(NONE, Ordering::Acquire);
        let mut index = head;
        let mut last = NONE;
        while index != NONE {
            self.out -= 1;
            last = index;
            // Relaxed: ordered by the Acquire above.
            index = self.slot(index).next.load(Ordering::Relaxed);
        }
        if last != NONE {
            // Relaxed: the list is private now.
            self.slot(last).next.store(self.recycled, Ordering::Relaxed);
            self.recycled = head;
        }
    }

    fn shared(&self) -> &Shared<T> {
        // SAFETY: the storage is freed by whoever brings `left` to zero after closing, and only
        // our own drop closes; so it lives at least as long as `self`.
        unsafe { self.shared.as_ref() }
    }
}

impl<T> Shared<T> {
    /// Where a slot is, made or not.
    fn place(&self, index: u32) -> NonNull<Slot<T>> {
        NonNull::from(&self.places[index as usize]).cast()
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // Relaxed: whoever frees has acquired `left`, which the owner wrote afterwards.
        for index in 0..self.made.load(Ordering::Relaxed) {
            // SAFETY: made, as it is below the mark; no slot is out and the owner is gone, so that
            // this is the last use.
            unsafe { self.place(index).drop_in_place() };
        }
    }
}

impl<T> Drop for Slab<T> {
    fn drop(&mut self) {
        // Acquire: pairs with the Release in `give_back`, so that freeing comes after all uses.
        let mut index = self.shared().returned.swap(CLOSED, Ordering::Acquire);
        while index != NONE {
            self.out -= 1;
            // Relaxed: ordered by the Acquire above.
            index = self.slot(index).next.load(Ordering::Relaxed);
        }
        // Relaxed: published by the addition below to whoever frees.
        self.shared().made.store(self.fresh, Ordering::Relaxed);
        let out = self.out as isize;
        // AcqRel: pairs with the other side's `fetch_sub`; the one who frees saw all uses end.
        let before = self.shared().left.fetch_add(out, Ordering::AcqRel);
        if before + out == 0 {
            // SAFETY: nobody is left: each slot out has been given back after closing, and its
            // giver left no further access behind its `fetch_sub`.
            unsafe { free(self.shared) };
        }
    }
}

/// Gives a slot back; any thread.
///
/// # Safety
/// `slot` was taken from a slab and is given back once; the caller does not use it afterwards.
pub unsafe fn give_back<T>(slot: NonNull<Slot<T>>) {
    let mut together = Returning::new();
    // SAFETY: the caller's promise.
    unsafe { together.add(slot) };
}

/// Slots on their way back: those of one slab that are added one after the other go back in one
/// exchange, when another's is added or this is dropped. On the thread that has it.
pub struct Returning<T> {
    run: Option<Run<T>>,
}

/// Slots of one slab, linked from the first to the last.
struct Run<T> {
    first: NonNull<Slot<T>>,
    last: NonNull<Slot<T>>,
    count: u32,
}

impl<T> Returning<T> {
    /// None yet.
    pub const fn new() -> Self {
        Self { run: None }
    }

    /// Adds a slot. The one added last is taken first.
    ///
    /// # Safety
    /// As for [`give_back`].
    pub unsafe fn add(&mut self, slot: NonNull<Slot<T>>) {
        let next = self.run.take().and_then(|run| {
            // SAFETY: a slot that is out keeps its storage alive (module text), and the first of
            // a run is out until the run is pushed.
            let first = unsafe { run.first.as_ref() };
            // SAFETY: out, by the caller.
            let slot_ref = unsafe { slot.as_ref() };
            if first.home != slot_ref.home {
                // SAFETY: promised by those who added its slots.
                unsafe { push(run) };
                return None;
            }
            // Relaxed: published by the exchange of `push`.
            slot_ref.next.store(first.index, Ordering::Relaxed);
            Some(Run { first: slot, count: run.count + 1, ..run })
        });
        self.run = Some(next.unwrap_or(Run { first: slot, last: slot, count: 1 }));
    }
}

impl<T> Default for Returning<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for Returning<T> {
    fn drop(&mut self) {
        if let Some(run) = self.run.take() {
            // SAFETY: promised by those who added its slots.
            unsafe { push(run) };
        }
    }
}

/// Puts a run on the list of its slab.
///
/// # Safety
/// Each slot of the run is out, is given back once and not used afterwards.
unsafe fn push<T>(run: Run<T>) {
    // SAFETY: a slot that is out keeps the storage alive (module text).
    let first = unsafe { run.first.as_ref() };
    // SAFETY: as above.
    let last = unsafe { run.last.as_ref() };
    let home = first.home;
    // SAFETY: `home` is the storage of this very slot.
    let shared = unsafe { home.as_ref() };
    // Relaxed: the exchange below orders.
    let mut head = shared.returned.load(Ordering::Relaxed);
    loop {
        if head == CLOSED {
            let count = run.count as isize;
            // AcqRel: pairs with `Slab::drop` and with the other givers.
            if shared.left.fetch_sub(count, Ordering::AcqRel) == count {
                // SAFETY: zero is reached once, by the last slot out after closing.
                unsafe { free(home) };
            }
            return;
        }
        // Relaxed: published by the exchange.
        last.next.store(head, Ordering::Relaxed);
        // Release: pairs with the Acquire in `collect_returned`; our use of the slots is over
        // before the owner can hand them out again.
        match shared.returned.compare_exchange_weak(
            head,
            first.index,
            Ordering::Release,
            Ordering::Relaxed,
        ) {
            Ok(_) => return,
            Err(now) => head = now,
        }
    }
}

/// # Safety
/// Called once, when no slot is out and the owner is gone.
unsafe fn free<T>(shared: NonNull<Shared<T>>) {
    // SAFETY: made by `Box::leak` in `Slab::new`; the caller is the last user.
    drop(unsafe { Box::from_raw(shared.as_ptr()) });
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    extern crate std;
    use std::sync::Arc;
    use std::vec::Vec;

    #[test]
    fn takes_each_slot_once_and_reuses_the_warmest() {
        let mut slab = Slab::new(3, |index| index);
        let taken: Vec<_> = core::iter::from_fn(|| slab.take()).collect();
        assert_eq!(taken.len(), 3);
        assert_eq!(slab.free_count(), 0);
        // SAFETY: taken above, given back once.
        unsafe { give_back(taken[1]) };
        assert_eq!(slab.out_count(), 2);
        let again = slab.take().expect("one is free");
        // SAFETY: the slot is out.
        assert_eq!(*unsafe { again.as_ref() }.value(), 1);
        for slot in [taken[0], again, taken[2]] {
            // SAFETY: out, given back once.
            unsafe { give_back(slot) };
        }
        assert_eq!(slab.free_count(), 3);
    }

    /// Regression: slots that came back while others were still in the free list did not count.
    #[test]
    fn what_came_back_counts_as_free() {
        let mut slab = Slab::new(8, |_| ());
        let taken: Vec<_> = core::iter::from_fn(|| slab.take()).collect();
        for &slot in &taken[..4] {
            // SAFETY: out, given back once.
            unsafe { give_back(slot) };
        }
        let again = slab.take().expect("four came back");
        for &slot in &taken[4..] {
            // SAFETY: out, given back once.
            unsafe { give_back(slot) };
        }
        assert_eq!(slab.free_count(), 7);
        // SAFETY: out, given back once.
        unsafe { give_back(again) };
        assert_eq!(slab.free_count(), 8);
    }

    #[test]
    fn storage_outlives_its_owner_until_the_last_slot_is_back() {
        let witness = Arc::new(());
        let model = witness.clone();
        let mut slab = Slab::new(4, move |_| model.clone());
        assert_eq!(Arc::strong_count(&witness), 2, "no slot is made before it is taken");
        let one = slab.take().expect("free");
        let two = slab.take().expect("free");
        drop(slab);
        assert_eq!(Arc::strong_count(&witness), 3);
        // SAFETY: out, given back once.
        unsafe { give_back(one) };
        assert_eq!(Arc::strong_count(&witness), 3);
        // SAFETY: out, given back once.
        unsafe { give_back(two) };
        assert_eq!(Arc::strong_count(&witness), 1);
    }
}
