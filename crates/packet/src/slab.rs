//! A fixed set of slots: one owner takes them, any thread gives them back.
//!
//! # Theory of operation
//!
//! The owner has two sources of free slots: a private stack of recycled slots, and a mark from
//! which on slots were never used. The thread that drops the last holder of a slot pushes the
//! slot's index onto `returned`, a lock-free list that grows at its head by one slot or a run of
//! slots. The owner always takes this list *whole*. Because no thread pops single slots, there is
//! no ABA problem, and indices need no tags.
//!
//! The owner prefers recycled over returned over fresh slots: memory that is warm in the cache
//! comes first, and memory that is never needed is never touched. A slot is constructed when it is
//! first taken. So all slots below the mark are constructed, and only they can be on the list.
//!
//! Slots that come from another thread are in the cache of its processor, and each of their lines
//! takes time to transfer. Therefore the links of the list are stored together, apart from the
//! slots, and the owner moves a list that it has taken to its stack at once: it then knows which
//! slots are next and prefetches their first lines.
//!
//! The owner itself gives slots back without that list: [`Slab::put`] and [`Slab::absorb`] move
//! them to the stack directly. Both need `&mut Slab`, which only the owner has, so they use no
//! atomic read-modify-write. A thread cannot find out by itself that it is the owner: the slab may
//! move to another thread between such a check and the push.
//!
//! [`Slab::limit`] bounds how many slots may be out. No slot that is out is affected: free slots
//! beyond the bound are withheld, those used longest ago first, and further ones as they return. So
//! only collecting and fresh slots know of the bound, and taking costs nothing more.
//!
//! Dropping the owner closes the list. Slots that are still out keep the storage alive: `left`
//! counts them, and the thread that brings it to zero frees the storage. A thread that finds the
//! list closed subtracts its slots, possibly before the owner has added the number of slots out.
//! Then the intermediate value is negative, and zero is reached exactly once.
#![allow(unsafe_code)]

use crate::foreign::prefetch_line_write;
use crate::sync::{AtomicIsize, AtomicU32, Ordering};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::mem::{MaybeUninit, offset_of};
use core::ops::Range;
use core::ptr::NonNull;

/// End of a list of slots.
const NONE: u32 = u32::MAX;
/// Value of `returned` once the owner is gone.
const CLOSED: u32 = u32::MAX - 1;
/// Distance from the slot that is taken to the slot whose first line is prefetched: making a packet
/// takes a fraction of the time that a line needs.
const SLOTS_AHEAD: usize = 4;
/// Most slots in one slab. `NONE` and `CLOSED` are not indices.
pub const SLOTS_MAX: usize = (u32::MAX - 2) as usize;

/// One slot of a slab. No two share a cache line; the beginning of the value is in the first line.
#[repr(C, align(64))]
pub struct Slot<T> {
    home: NonNull<Shared<T>>,
    index: u32,
    value: T,
}

impl<T> Slot<T> {
    /// Offset of the value in the slot.
    pub const VALUE_AT: usize = offset_of!(Self, value);

    /// The value in this slot. It persists when the slot is reused.
    pub fn value(&self) -> &T {
        &self.value
    }
}

/// Memory of a slot that may not be constructed yet.
type Place<T> = MaybeUninit<UnsafeCell<Slot<T>>>;

struct Shared<T> {
    places: Box<[Place<T>]>,
    /// For each slot on the list, the slot that was returned before it.
    links: Box<[AtomicU32]>,
    /// Number of slots constructed when the owner was dropped: the first ones. Zero before.
    made: AtomicU32,
    changing: Changing,
}

/// What returning threads change, on cache lines apart from what all threads read.
#[repr(align(128))]
struct Changing {
    /// Slots returned and not taken again, newest first; or `CLOSED`.
    returned: AtomicU32,
    /// After closing: slots still out. See the module text.
    left: AtomicIsize,
}

/// The owner's side: takes slots. Used by one thread at a time.
pub struct Slab<T> {
    shared: NonNull<Shared<T>>,
    /// Makes the value of a slot.
    make: Box<dyn FnMut(usize) -> T + Send>,
    /// Slots that were collected; the last one is taken next. Has room for all.
    recycled: Vec<u32>,
    /// Slots from here on were never taken and are not constructed.
    fresh: u32,
    /// Most slots that may be out.
    limit: u32,
    /// Free slots that are not taken because of `limit`. Empty as long as fewer are in use or ready
    /// to be taken.
    withheld: Vec<u32>,
    count: u32,
}

// SAFETY: the owner's fields are plain values and a closure that is `Send`. Other threads reach
// `shared` only through `give_back`, which writes atomics only. `T: Send + Sync` because a slot
// taken on this thread may be read and given back on another.
unsafe impl<T: Send + Sync> Send for Slab<T> {}

impl<T> Slab<T> {
    /// A slab of `count` slots. `make(index)` constructs each one when it is first taken. `None` if
    /// there is not enough memory, or if `count` exceeds [`SLOTS_MAX`].
    pub fn try_new(count: usize, make: impl FnMut(usize) -> T + Send + 'static) -> Option<Self> {
        if count > SLOTS_MAX {
            return None;
        }
        let mut places = Vec::new();
        places.try_reserve_exact(count).ok()?;
        places.resize_with(count, MaybeUninit::uninit);
        let mut links = Vec::new();
        links.try_reserve_exact(count).ok()?;
        links.resize_with(count, || AtomicU32::new(NONE));
        let mut recycled = Vec::new();
        recycled.try_reserve_exact(count).ok()?;
        let shared = Box::leak(Box::new(Shared {
            places: places.into_boxed_slice(),
            links: links.into_boxed_slice(),
            made: AtomicU32::new(0),
            changing: Changing { returned: AtomicU32::new(NONE), left: AtomicIsize::new(0) },
        }));
        let (shared, make) = (NonNull::from(shared), Box::new(make));
        let (count, withheld) = (count as u32, Vec::new());
        Some(Self { shared, make, recycled, fresh: 0, limit: count, withheld, count })
    }

    /// Makes a slab as [`try_new`](Self::try_new) does, for small ones.
    ///
    /// # Panics
    /// If there is no memory, or `count` exceeds [`SLOTS_MAX`].
    pub fn new(count: usize, make: impl FnMut(usize) -> T + Send + 'static) -> Self {
        Self::try_new(count, make).expect("memory for a slab")
    }

    /// Takes a slot. `None` if all are out.
    #[inline]
    pub fn take(&mut self) -> Option<NonNull<Slot<T>>> {
        if self.recycled.is_empty() {
            self.collect();
        }
        let Some(index) = self.recycled.pop() else {
            return self.take_fresh();
        };
        if let Some(later) = self.recycled.len().checked_sub(SLOTS_AHEAD) {
            let later = self.shared().place(self.recycled[later]);
            prefetch_line_write(later.as_ptr().cast());
        }
        Some(self.shared().place(index))
    }

    /// Takes up to `count` slots, and passes each to `each`. Returns their number; all others are
    /// out.
    #[inline]
    pub fn take_all(&mut self, count: usize, mut each: impl FnMut(NonNull<Slot<T>>)) -> usize {
        if self.recycled.len() < count {
            self.collect();
        }
        let kept = self.recycled.len().saturating_sub(count);
        // SAFETY: the storage is freed only after closing, and only our own drop closes.
        let shared = unsafe { self.shared.as_ref() };
        let warm = self.recycled.len() - kept;
        self.recycled.drain(kept..).rev().for_each(|index| each(shared.place(index)));
        if kept > 0 {
            // Those that are taken next.
            for &later in &self.recycled[kept.saturating_sub(SLOTS_AHEAD)..] {
                prefetch_line_write(shared.place(later).as_ptr().cast());
            }
        }
        let fresh = core::iter::from_fn(|| self.take_fresh()).take(count - warm);
        warm + fresh.map(each).count()
    }

    /// Gives back a slot of this slab, on the owner's thread. False, without an effect, if the slot
    /// belongs to another slab.
    ///
    /// # Safety
    /// `slot` was taken from a slab. If this returns true the caller does not use it afterwards,
    /// and does not give it back again.
    #[inline]
    pub unsafe fn put(&mut self, slot: NonNull<Slot<T>>) -> bool {
        // SAFETY: the caller guarantees that the slot is out, so its storage is valid.
        let &Slot { home, index, .. } = unsafe { slot.as_ref() };
        if home != self.shared {
            return false;
        }
        self.recycled.push(index);
        true
    }

    /// Takes back slots that were added to `together`, if they belong to this slab.
    #[inline]
    pub fn absorb(&mut self, together: &mut Returning<T>) {
        let Some(run) = together.run.take_if(|run| run.home == self.shared) else { return };
        // The last one added is on top of the stack, as after `collect_returned`.
        let before = self.recycled.len();
        // SAFETY: the storage is freed only after closing, and only our own drop closes.
        let shared = unsafe { self.shared.as_ref() };
        self.recycled.extend(shared.list(run.first).take(run.count as usize));
        self.recycled[before..].reverse();
    }

    /// Sets how many slots may be out: `most`, or all if there are fewer. Slots that are out stay
    /// out; while there are more of them, none can be taken. Allocates if slots are withheld: not
    /// for each packet.
    pub fn limit(&mut self, most: usize) {
        self.limit = u32::try_from(most).map_or(self.count, |most| most.min(self.count));
        let more = self.limit.saturating_sub(self.circulating()) as usize;
        let kept = self.withheld.len().saturating_sub(more);
        self.recycled.extend(self.withheld.drain(kept..));
        self.collect();
        self.withhold();
    }

    /// Withholds slots that are free and beyond the limit.
    fn withhold(&mut self) {
        let over = self.circulating().saturating_sub(self.limit) as usize;
        let coldest = over.min(self.recycled.len());
        self.withheld.extend(self.recycled.drain(..coldest));
    }

    /// Slots that are out or can be taken without a fresh one.
    fn circulating(&self) -> u32 {
        self.fresh - self.withheld.len() as u32
    }

    /// Takes a slot that was never taken.
    #[cold]
    fn take_fresh(&mut self) -> Option<NonNull<Slot<T>>> {
        (self.fresh < self.count && self.circulating() < self.limit).then(|| {
            self.make_slot();
            self.shared().place(self.fresh - 1)
        })
    }

    /// Constructs the first slot that was never taken.
    fn make_slot(&mut self) {
        let index = self.fresh;
        let value = (self.make)(index as usize);
        let slot = Slot { home: self.shared, index, value };
        let place = self.shared().place(index);
        // SAFETY: the place is within the storage, and no other thread has this slot's address: it
        // was never taken, so it is on no list. `UnsafeCell` allows the write behind a shared
        // reference.
        unsafe { place.write(slot) };
        self.fresh += 1;
    }

    /// Slots that can still be taken, at least. Exact while no other thread gives slots back.
    #[inline]
    pub fn free_count(&mut self) -> usize {
        self.collect();
        self.free_at_least()
    }

    /// Slots that can be taken without collecting returned ones: a lower bound.
    #[inline]
    pub fn free_at_least(&self) -> usize {
        self.limit.saturating_sub(self.out()) as usize
    }

    /// Number of slots that may be out.
    pub fn capacity(&self) -> usize {
        self.limit as usize
    }

    /// Slots out, at most: those that other threads gave back count until they are collected.
    #[inline]
    pub fn out_at_most(&self) -> usize {
        self.out() as usize
    }

    /// Slots out. Exact while no other thread gives slots back. Walks the returned slots: for tests
    /// and reports, not for the data path.
    pub fn out_count(&self) -> usize {
        // Acquire: pairs with the Release in `push`; makes the links visible.
        let head = self.shared().changing.returned.load(Ordering::Acquire);
        self.out() as usize - self.shared().list(head).count()
    }

    /// Calls `each` with the runs of slots that were used and are free, in ascending order. Scans
    /// all slots that were ever used, and allocates: not for the data path.
    pub fn free_runs(&mut self, each: impl FnMut(Range<usize>)) {
        self.collect();
        self.runs(self.recycled.iter().chain(&self.withheld), each);
    }

    /// Calls `each` with the runs of slots that were used and are withheld, as
    /// [`free_runs`](Self::free_runs) does.
    pub fn withheld_runs(&mut self, each: impl FnMut(Range<usize>)) {
        self.runs(self.withheld.iter(), each);
    }

    fn runs<'a>(&self, indices: impl Iterator<Item = &'a u32>, mut each: impl FnMut(Range<usize>)) {
        let mut free = vec![false; self.fresh as usize];
        for &index in indices {
            free[index as usize] = true;
        }
        let mut start = 0;
        for run in free.chunk_by(|one, next| one == next) {
            if run[0] {
                each(start..start + run.len());
            }
            start += run.len();
        }
    }

    /// Slots taken minus slots collected; at least the number of slots out.
    fn out(&self) -> u32 {
        self.circulating() - self.recycled.len() as u32
    }

    /// Moves returned slots to the stack: they are taken next.
    #[inline]
    pub fn collect(&mut self) {
        // Relaxed: only a hint; the swap in `collect_returned` orders.
        if self.shared().changing.returned.load(Ordering::Relaxed) != NONE {
            self.collect_returned();
        }
    }

    #[inline(never)]
    fn collect_returned(&mut self) {
        // SAFETY: the storage is freed only after closing, and only our own drop closes, so it
        // outlives `self`.
        let shared = unsafe { self.shared.as_ref() };
        // Acquire: pairs with the Release in `push`. All uses of the slots by other threads happen
        // before the slots are handed out again.
        let head = shared.changing.returned.swap(NONE, Ordering::Acquire);
        let before = self.recycled.len();
        self.recycled.extend(shared.list(head));
        self.recycled[before..].reverse();
        if self.circulating() > self.limit {
            self.withhold();
        }
    }

    fn shared(&self) -> &Shared<T> {
        // SAFETY: the thread that brings `left` to zero after closing frees the storage, and only
        // our own drop closes. So the storage lives at least as long as `self`.
        unsafe { self.shared.as_ref() }
    }
}

impl<T> Shared<T> {
    /// Address of a slot, constructed or not.
    fn place(&self, index: u32) -> NonNull<Slot<T>> {
        NonNull::from(&self.places[index as usize]).cast()
    }

    /// The slots of a list, newest first. The caller has acquired its head.
    fn list(&self, head: u32) -> impl Iterator<Item = u32> {
        core::iter::successors((head != NONE).then_some(head), |&index| {
            // Relaxed: the Acquire of the head orders the links of all slots on the list.
            let next = self.links[index as usize].load(Ordering::Relaxed);
            (next != NONE).then_some(next)
        })
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // Relaxed: the thread that frees has acquired `left`, which the owner wrote after `made`.
        for index in 0..self.made.load(Ordering::Relaxed) {
            // SAFETY: the slot is constructed, because it is below the mark. No slot is out and the
            // owner is gone, so this is the last use.
            unsafe { self.place(index).drop_in_place() };
        }
    }
}

impl<T> Drop for Slab<T> {
    fn drop(&mut self) {
        // Acquire: pairs with the Release in `push`, so that freeing happens after all uses.
        let head = self.shared().changing.returned.swap(CLOSED, Ordering::Acquire);
        let out = self.out() as isize - self.shared().list(head).count() as isize;
        // Relaxed: the addition below publishes it to the thread that frees.
        self.shared().made.store(self.fresh, Ordering::Relaxed);
        // AcqRel: pairs with `fetch_sub` in `push`. All uses happen before the storage is freed.
        let before = self.shared().changing.left.fetch_add(out, Ordering::AcqRel);
        if before + out == 0 {
            // SAFETY: no user is left. Each slot that was out has been given back after closing,
            // and its thread accesses nothing after its `fetch_sub`.
            unsafe { free(self.shared) };
        }
    }
}

/// Gives a slot back. Any thread may call.
///
/// # Safety
/// `slot` was taken from a slab and is given back once. The caller does not use it afterwards.
pub unsafe fn give_back<T>(slot: NonNull<Slot<T>>) {
    let mut together = Returning::new();
    // SAFETY: the caller's contract is the same.
    unsafe { together.add(slot) };
}

/// Slots on their way back. Consecutive slots of one slab go back in one exchange, when a slot of
/// another slab is added or when this is dropped. Belongs to one thread.
pub struct Returning<T> {
    run: Option<Run<T>>,
}

/// Slots of one slab, linked from the first to the last.
struct Run<T> {
    home: NonNull<Shared<T>>,
    first: u32,
    last: u32,
    count: u32,
}

impl<T> Returning<T> {
    /// No slots yet.
    pub const fn new() -> Self {
        Self { run: None }
    }

    /// Adds a slot. The slot added last is taken first.
    ///
    /// # Safety
    /// The requirements of [`give_back`].
    #[inline]
    pub unsafe fn add(&mut self, slot: NonNull<Slot<T>>) {
        // SAFETY: the caller guarantees that the slot is out, so its storage is valid.
        let &Slot { home, index, .. } = unsafe { slot.as_ref() };
        if let Some(run) = &mut self.run {
            if run.home == home {
                // SAFETY: a slot that is out keeps its storage alive (module text).
                let links = &unsafe { home.as_ref() }.links;
                // Relaxed: published by the exchange of `push`.
                links[index as usize].store(run.first, Ordering::Relaxed);
                run.first = index;
                run.count += 1;
                return;
            }
            self.push();
        }
        self.run = Some(Run { home, first: index, last: index, count: 1 });
    }

    /// Pushes the run onto the list of its slab.
    #[inline(never)]
    fn push(&mut self) {
        if let Some(run) = self.run.take() {
            // SAFETY: the callers of `add` have guaranteed this for each slot of the run.
            unsafe { push(run) };
        }
    }
}

impl<T> Default for Returning<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for Returning<T> {
    #[inline]
    fn drop(&mut self) {
        if self.run.is_some() {
            self.push();
        }
    }
}

/// Pushes a run onto the list of its slab.
///
/// # Safety
/// Each slot of the run is out, is given back once and is not used afterwards.
unsafe fn push<T>(run: Run<T>) {
    // SAFETY: slots that are out keep their storage alive (module text).
    let Shared { changing, links, .. } = unsafe { run.home.as_ref() };
    let link = &links[run.last as usize];
    // Relaxed: the exchange below orders.
    let mut head = changing.returned.load(Ordering::Relaxed);
    loop {
        if head == CLOSED {
            let count = run.count as isize;
            // AcqRel: pairs with `Slab::drop` and with other returning threads.
            if changing.left.fetch_sub(count, Ordering::AcqRel) == count {
                // SAFETY: `left` reaches zero once, with the last slot out after closing, so no
                // user is left.
                unsafe { free(run.home) };
            }
            return;
        }
        // Relaxed: published by the exchange.
        link.store(head, Ordering::Relaxed);
        // Release: pairs with the Acquire in `collect_returned`. Our use of the slots ends before
        // the owner can hand them out again.
        match changing.returned.compare_exchange_weak(
            head,
            run.first,
            Ordering::Release,
            Ordering::Relaxed,
        ) {
            Ok(_) => return,
            Err(now) => head = now,
        }
    }
}

/// Frees the storage.
///
/// # Safety
/// This is called once, when no slot is out and the owner is gone.
unsafe fn free<T>(shared: NonNull<Shared<T>>) {
    // SAFETY: `Slab::try_new` made it with `Box::leak`, and the caller is the last user.
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

    /// Goal: slots that came back last are taken first, within a run and across runs, and before
    /// slots that came back earlier.
    #[test]
    fn what_came_back_last_is_taken_first() {
        let mut slab = Slab::new(8, |index| index);
        let taken: Vec<_> = core::iter::from_fn(|| slab.take()).collect();
        let give = |indices: &[usize]| {
            let mut together = Returning::new();
            for &index in indices {
                // SAFETY: taken above, given back once.
                unsafe { together.add(taken[index]) };
            }
        };
        give(&[6]);
        assert_eq!(slab.free_count(), 1);
        give(&[0, 1, 2]);
        give(&[5]);
        give(&[4, 3]);
        assert_eq!((slab.free_count(), slab.out_count()), (7, 1));
        let again = core::iter::from_fn(|| slab.take());
        // SAFETY: the slots are out.
        let again: Vec<_> = again.map(|slot| *unsafe { slot.as_ref() }.value()).collect();
        assert_eq!(again, [3, 4, 5, 2, 1, 0, 6]);
        for slot in taken {
            // SAFETY: out, given back once.
            unsafe { give_back(slot) };
        }
    }

    /// Goal: slots that the owner gives back itself are taken like others, the last one first;
    /// those of another slab are left to their own.
    #[test]
    fn the_owner_gives_back_without_the_list() {
        let (mut slab, mut other) = (Slab::new(4, |index| index), Slab::new(4, |index| index));
        let mut taken = Vec::new();
        assert_eq!(slab.take_all(9, |slot| taken.push(slot)), 4, "no more than there are");
        let strange = other.take().expect("free");
        // SAFETY: out, and left out by this call.
        assert!(!unsafe { slab.put(strange) });
        let mut together = Returning::new();
        for slot in [taken[0], taken[3]] {
            // SAFETY: out, given back once.
            unsafe { together.add(slot) };
        }
        other.absorb(&mut together);
        assert_eq!(slab.out_count(), 4, "not of this slab");
        slab.absorb(&mut together);
        drop(together);
        // SAFETY: out, given back once.
        assert!(unsafe { slab.put(taken[1]) });
        assert_eq!((slab.out_count(), slab.free_at_least()), (1, 3));
        let mut again = Vec::new();
        // SAFETY: the slots are out.
        let index = |slot: NonNull<Slot<usize>>| *unsafe { slot.as_ref() }.value();
        assert_eq!(slab.take_all(2, |slot| again.push(index(slot))), 2);
        assert_eq!(slab.take_all(2, |slot| again.push(index(slot))), 1);
        assert_eq!(again, [1, 3, 0]);
        for slot in taken.into_iter().chain([strange]) {
            // SAFETY: out, given back once.
            unsafe { give_back(slot) };
        }
        assert_eq!((slab.free_count(), other.free_count()), (4, 4));
    }

    /// Goal: a lower limit takes nothing away; slots beyond it are withheld as they come back, and
    /// are there again when it rises. Fresh ones are not used beyond it.
    #[test]
    fn a_limit_applies_to_free_slots() {
        let mut slab = Slab::new(6, |index| index);
        let taken: Vec<_> = (0..4).map(|_| slab.take().expect("free")).collect();
        // SAFETY: the slots are out.
        let index = |slot: NonNull<Slot<usize>>| *unsafe { slot.as_ref() }.value();
        // SAFETY: out, given back once.
        let give = |slot: NonNull<Slot<usize>>| unsafe { give_back(slot) };
        slab.limit(2);
        assert_eq!((slab.capacity(), slab.out_count(), slab.free_count()), (2, 4, 0));
        assert!(slab.take().is_none());
        give(taken[3]);
        give(taken[2]);
        assert!(slab.take().is_none(), "two are out");
        assert_eq!((slab.out_at_most(), slab.free_count()), (2, 0));
        give(taken[1]);
        assert_eq!((slab.free_count(), slab.out_count()), (1, 1));
        let again = slab.take().expect("one is free");
        assert_eq!(index(again), 1, "the last one that came back");
        assert!(slab.take().is_none());
        let mut withheld = Vec::new();
        slab.withheld_runs(|run| withheld.push(run));
        assert!(withheld.len() == 1 && withheld[0] == (2..4), "{withheld:?}");
        slab.limit(3);
        assert_eq!((slab.free_count(), slab.free_at_least()), (1, 1));
        slab.limit(100);
        assert_eq!((slab.capacity(), slab.free_count()), (6, 4));
        let all: Vec<_> = core::iter::from_fn(|| slab.take()).collect();
        assert_eq!(all.len(), 4, "with the fresh ones");
        all.into_iter().chain([taken[0], again]).for_each(give);
        slab.limit(0);
        assert!(slab.take().is_none());
        assert_eq!((slab.out_count(), slab.free_count()), (0, 0));
    }

    /// Regression: slots that came back while others were in the free list did not count.
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
