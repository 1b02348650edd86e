//! What the sides of a ring share: arrays of slots, indices, flags.
//!
//! Each group of fields has a cache line of its own, by who writes it; `docs/theory/ring.md` has
//! the picture. Which thread may touch a slot is decided by positions alone; the proofs stand in
//! `fill` and `drain`.
#![allow(unsafe_code)]

use super::{CAPACITY_MAX, CapacityError, Counters, Doorbell};
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering, UnsafeCell, compiler_fence, fence};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};

/// The consumer sleeps, or is about to: whoever publishes rings the doorbell.
pub(super) const SLEEPING: u32 = 1;
/// The consumer is gone: whoever publishes purges.
pub(super) const CONSUMER_GONE: u32 = 2;
/// All producers are gone: nothing more will come.
pub(super) const PRODUCERS_GONE: u32 = 4;
/// A new array waits in `request`.
pub(super) const RESIZE: u32 = 8;
/// One of several producers goes over to another array.
const SWITCHING: u32 = 16;

/// Where producing stands, in one word: the position after the last packet (32 bits), the
/// generation of the array that it belongs to (1 bit), and how many calls there were (31 bits; used
/// by several producers only). Positions and calls wrap.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Word(pub(super) u64);

impl Word {
    pub(super) fn new(position: u32, generation: usize, calls: u32) -> Self {
        Self(u64::from(position) | (generation as u64 & 1) << 32 | u64::from(calls) << 33)
    }

    pub(super) fn position(self) -> u32 {
        self.0 as u32
    }

    pub(super) fn generation(self) -> usize {
        (self.0 >> 32 & 1) as usize
    }

    pub(super) fn calls(self) -> u32 {
        (self.0 >> 33) as u32
    }

    /// `calls` and one more.
    pub(super) fn next_calls(self) -> u32 {
        self.calls().wrapping_add(1) & (u32::MAX >> 1)
    }
}

/// The slots of one generation, a power of two of them. A position's slot is its low bits, so that
/// positions may wrap whatever the capacity.
///
/// They begin at a border of [`Line`]: bursts that do, too, then have lines of their own, which one
/// side fills while the other empties those before.
pub(super) struct Array<T> {
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
    /// The first that is used, and how many are.
    first: usize,
    count: usize,
    /// Most packets held while this array is filled.
    pub(super) capacity: u32,
    /// First position that lies in this array; set when it comes into use.
    pub(super) start: AtomicU32,
}

impl<T> Array<T> {
    pub(super) fn new(capacity: usize) -> Result<Box<Self>, CapacityError> {
        if capacity == 0 || capacity > CAPACITY_MAX {
            return Err(CapacityError::OutOfRange);
        }
        let count = capacity.next_power_of_two();
        let spare = align_of::<Line<T>>() / size_of::<T>().max(1);
        let mut slots = Vec::new();
        slots.try_reserve_exact(count + spare).map_err(|_| CapacityError::NoMemory)?;
        slots.extend((0..count + spare).map(|_| UnsafeCell::new(MaybeUninit::uninit())));
        let (slots, capacity) = (slots.into_boxed_slice(), capacity as u32);
        // There may be no slot at a border, as their size is not known here.
        let first = Some(slots.as_ptr().align_offset(align_of::<Line<T>>()));
        let first = first.filter(|first| *first <= spare).unwrap_or(0);
        Ok(Box::new(Self { slots, first, count, capacity, start: AtomicU32::new(0) }))
    }

    /// The slots of `count` positions from `position` on, in two stretches.
    pub(super) fn stretches(
        &self,
        position: u32,
        count: usize,
    ) -> [&[UnsafeCell<MaybeUninit<T>>]; 2] {
        let slots = &self.slots[self.first..self.first + self.count];
        let (before, from) = slots.split_at(position as usize & (self.count - 1));
        match count.checked_sub(from.len()) {
            None => [&from[..count], &[]],
            Some(rest) => [from, &before[..rest]],
        }
    }
}

/// A pair of cache lines of its own: processors fetch them in pairs.
#[repr(C, align(128))]
pub(super) struct Line<T>(pub(super) T);

/// Changes seldom, read by all sides in each call.
struct Quiet<T> {
    /// `SLEEPING` and the others.
    control: AtomicU32,
    /// By generation: capacities, and the arrays in use. One of the two is null unless a resize is
    /// under way.
    capacities: [AtomicU32; 2],
    arrays: [AtomicPtr<Array<T>>; 2],
    /// An array asked for and not yet in use, or null.
    request: AtomicPtr<Array<T>>,
    /// Capacity last asked for.
    asked: AtomicU32,
    /// Calls of `reap` since the last one that did it was done; so wide that calls which come while
    /// a packet takes its time to be dropped do not wrap it and let in a second one.
    reapers: AtomicU64,
    /// The consumer's side, once he is gone.
    left: UnsafeCell<Option<Drain<T>>>,
    doorbell: Box<dyn Doorbell>,
    /// The doorbell makes barriers for producers.
    has_barrier: bool,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Quiet<u64>>() <= align_of::<Line<u64>>(), "one pair of lines");

/// All that is shared.
pub(super) struct Shared<T> {
    /// A [`Word`]: what is published. Written by producers, read by the consumer.
    pub(super) tail: Line<AtomicU64>,
    /// A [`Word`]: what several producers have reserved, published or not. Theirs alone.
    pub(super) reserved: Line<AtomicU64>,
    /// Position of the next packet to take. Written by the consumer, read by producers.
    pub(super) head: Line<AtomicU32>,
    quiet: Line<Quiet<T>>,
    /// Packets dropped by producers, and packets purged.
    pub(super) dropped: Line<[AtomicU64; 2]>,
}

// SAFETY: packets move from the thread that writes their slot to the one that reads it, never
// shared; all else is atomic, constant, or under the claims that `fill`, `drain` and `reap` prove.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above; the doorbell is `Sync` by its trait.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// Shared state with an array of generation 0 in use, and that array.
    pub(super) fn new(
        capacity: usize,
        doorbell: Box<dyn Doorbell>,
    ) -> Result<(Self, NonNull<Array<T>>), CapacityError> {
        let array = Array::new(capacity)?;
        let capacity = array.capacity;
        let array = Box::into_raw(array);
        let quiet = Quiet {
            control: AtomicU32::new(0),
            capacities: [AtomicU32::new(capacity), AtomicU32::new(0)],
            arrays: [AtomicPtr::new(array), AtomicPtr::new(ptr::null_mut())],
            request: AtomicPtr::new(ptr::null_mut()),
            asked: AtomicU32::new(capacity),
            reapers: AtomicU64::new(0),
            left: UnsafeCell::new(None),
            has_barrier: doorbell.barrier(),
            doorbell,
        };
        let shared = Self {
            tail: Line(AtomicU64::new(0)),
            reserved: Line(AtomicU64::new(0)),
            head: Line(AtomicU32::new(0)),
            quiet: Line(quiet),
            dropped: Line([AtomicU64::new(0), AtomicU64::new(0)]),
        };
        Ok((shared, NonNull::new(array).expect("a box is not null")))
    }

    /// The flags, as a hint.
    #[inline]
    pub(super) fn control(&self) -> u32 {
        // Relaxed: who acts on a flag orders what he does by other means.
        self.quiet.0.control.load(Ordering::Relaxed)
    }

    pub(super) fn capacity(&self, generation: usize) -> u32 {
        // Relaxed: written before the switch to the generation, which the caller has acquired.
        self.quiet.0.capacities[generation].load(Ordering::Relaxed)
    }

    pub(super) fn array(&self, generation: usize) -> Option<NonNull<Array<T>>> {
        // Acquire: pairs with the Release of `set_array`, made when the array came into use; and
        // for null with that of `leave_array`: the consumer has done with the one that was there.
        NonNull::new(self.quiet.0.arrays[generation].load(Ordering::Acquire))
    }

    /// Takes what a resize has asked for, if there is something.
    pub(super) fn take_request(&self) -> Option<Box<Array<T>>> {
        // Acquire: pairs with the Release in `ask`. The flag goes first: who asks after our swap
        // sets it again.
        self.quiet.0.control.fetch_and(!RESIZE, Ordering::Acquire);
        // AcqRel: pairs with `ask`, both ways: the array goes from hand to hand.
        let array = self.quiet.0.request.swap(ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: only boxes of `ask` get there, and the swap took this one out.
        (!array.is_null()).then(|| unsafe { Box::from_raw(array) })
    }

    /// Asks producers to go over to `array`, in place of an earlier one that is not in use yet.
    pub(super) fn ask(&self, array: Box<Array<T>>) {
        // Relaxed: for reports.
        self.quiet.0.asked.store(array.capacity, Ordering::Relaxed);
        // AcqRel: pairs with `take_request` and with other calls of this.
        let before = self.quiet.0.request.swap(Box::into_raw(array), Ordering::AcqRel);
        // Release: pairs with the Acquire in `take_request`; who clears the flag finds the array.
        self.quiet.0.control.fetch_or(RESIZE, Ordering::Release);
        if !before.is_null() {
            // SAFETY: a box that nobody has taken out.
            drop(unsafe { Box::from_raw(before) });
        }
    }

    /// Makes `array` that of `generation`, which has none. Only one producer at a time may.
    pub(super) fn set_array(&self, generation: usize, array: Box<Array<T>>) -> NonNull<Array<T>> {
        // Relaxed, here: published by the switch that follows.
        self.quiet.0.capacities[generation].store(array.capacity, Ordering::Relaxed);
        let array = Box::into_raw(array);
        // Release: pairs with the Acquire in `array`.
        let before = self.quiet.0.arrays[generation].swap(array, Ordering::Release);
        assert!(before.is_null(), "an array is put where there is none");
        NonNull::new(array).expect("a box is not null")
    }

    /// Calls `switch` unless another thread is at that; then it is for a later call, as `RESIZE` is
    /// still set.
    pub(super) fn claim_switch(&self, switch: impl FnOnce()) {
        // Acquire: pairs with the Release below: an earlier switch is seen.
        if self.quiet.0.control.fetch_or(SWITCHING, Ordering::Acquire) & SWITCHING == 0 {
            switch();
            // Release: see above.
            self.quiet.0.control.fetch_and(!SWITCHING, Ordering::Release);
        }
    }

    /// The consumer has taken everything out of the array of `generation` and goes on in the other.
    pub(super) fn leave_array(&self, generation: usize) {
        // Release: pairs with the Acquire in `array`. None needed to read: the caller has used it.
        let array = self.quiet.0.arrays[generation].swap(ptr::null_mut(), Ordering::Release);
        // SAFETY: a box of `set_array` or `new`. Producers left it before the tail said that there
        // is another, and the caller has acquired that; it does not use it any more.
        drop(unsafe { Box::from_raw(array) });
    }

    /// Tells the consumer of what the caller has published: rings if he sleeps, purges if he is
    /// gone.
    #[inline]
    pub(super) fn wake(&self) {
        // Between publishing and looking at the flags; pairs with `fence_consumer`. Either that
        // side sees what was published before this, or the load below sees its flag.
        if self.quiet.0.has_barrier {
            // The consumer's barrier comes to this thread, before or after what is around this.
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
        if self.control() & (SLEEPING | CONSUMER_GONE) != 0 {
            self.wake_slowly();
        }
    }

    #[cold]
    fn wake_slowly(&self) {
        // Acquire: pairs with the Release in `leave`, for `left`.
        let before = self.quiet.0.control.fetch_and(!SLEEPING, Ordering::Acquire);
        if before & CONSUMER_GONE != 0 {
            self.reap();
        } else if before & SLEEPING != 0 {
            self.quiet.0.doorbell.ring();
        }
    }

    /// The last producer is gone.
    pub(super) fn close(&self) {
        self.wake();
        // Release: pairs with the Acquire in `are_producers_gone`: what was published is seen. Both
        // this flag and `SLEEPING` are in one word: one of the sides sees the other's.
        let before = self.quiet.0.control.fetch_or(PRODUCERS_GONE, Ordering::Release);
        if before & SLEEPING != 0 {
            self.wake_slowly();
        }
    }

    pub(super) fn are_producers_gone(&self) -> bool {
        // Acquire: pairs with the Release in `close`.
        self.quiet.0.control.load(Ordering::Acquire) & PRODUCERS_GONE != 0
    }

    /// Announces that the consumer is about to sleep. He looks once more before he does.
    pub(super) fn go_to_sleep(&self) {
        // Relaxed: the fence orders.
        self.quiet.0.control.fetch_or(SLEEPING, Ordering::Relaxed);
        self.fence_consumer();
    }

    /// Between setting a flag and looking at the tail; pairs with the fence of `wake`.
    fn fence_consumer(&self) {
        fence(Ordering::SeqCst);
        if self.quiet.0.has_barrier {
            // Without it a producer may not see that the consumer sleeps, which it then does for
            // ever: better to end the first time than to stand still at some.
            let is_done = self.quiet.0.doorbell.barrier();
            assert!(is_done, "the system refuses a barrier (membarrier) that it granted before");
        }
    }

    /// Takes the announcement back.
    pub(super) fn stay_awake(&self) {
        // Relaxed: orders nothing; a doorbell that rings for nothing does no harm.
        self.quiet.0.control.fetch_and(!SLEEPING, Ordering::Relaxed);
    }

    /// The consumer goes and leaves his side to whoever purges.
    pub(super) fn leave(&self, side: Drain<T>) {
        // SAFETY: nobody looks there before the flag is set.
        self.quiet.0.left.with_mut(|left| unsafe { *left = Some(side) });
        // Release: pairs with the Acquire in `wake_slowly`.
        self.quiet.0.control.fetch_or(CONSUMER_GONE, Ordering::Release);
        self.fence_consumer();
        self.reap();
    }

    /// Purges in the place of the consumer. Several may call: one does it, and goes on for those
    /// who came meanwhile.
    fn reap(&self) {
        // AcqRel: what the caller published is seen by whoever purges; what an earlier one did to
        // `left` is seen by this one.
        if self.quiet.0.reapers.fetch_add(1, Ordering::AcqRel) != 0 {
            return;
        }
        let mut seen = 1;
        loop {
            self.quiet.0.left.with_mut(|left| {
                // SAFETY: the count gives one caller at a time the right; he gives it up below.
                let left = unsafe { &mut *left };
                left.as_mut().expect("left before the flag was set").purge(self);
            });
            // AcqRel: as above. Acquire on failure: another has published.
            let done =
                self.quiet.0.reapers.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Acquire);
            match done {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// Packets held, more or less.
    pub(super) fn len(&self) -> usize {
        // Acquire: pairs with the publishing of the tail; the tail loaded below is not older, so
        // that the difference is not negative.
        let head = self.head.0.load(Ordering::Acquire);
        // Relaxed: see above.
        let tail = Word(self.tail.0.load(Ordering::Relaxed)).position();
        tail.wrapping_sub(head) as usize
    }

    pub(super) fn counters(&self) -> Counters {
        // Relaxed: counters order nothing.
        let [dropped, purged] =
            self.dropped.0.each_ref().map(|count| count.load(Ordering::Relaxed));
        let capacity = self.quiet.0.asked.load(Ordering::Relaxed) as usize;
        Counters { dropped, purged, capacity }
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // Nothing is held: the consumer has purged, or a producer after him.
        let Quiet { arrays: [one, other], request, .. } = &self.quiet.0;
        for place in [one, other, request] {
            // Relaxed: nobody else is left.
            let array = place.load(Ordering::Relaxed);
            if !array.is_null() {
                // SAFETY: boxes, each in one place only.
                drop(unsafe { Box::from_raw(array) });
            }
        }
    }
}

/// What the consumer keeps: its side, by which packets are taken out of slots. A slot is the
/// consumer's from the moment that the tail has passed its position until the head does.
pub(super) struct Drain<T> {
    array: NonNull<Array<T>>,
    /// Next position to take.
    head: u32,
    /// End of what can be taken from `array`, as last seen.
    tail: u32,
    generation: usize,
}

// SAFETY: the array is reached as the module says, by whichever thread has the one `Drain`.
unsafe impl<T: Send> Send for Drain<T> {}

impl<T> Drain<T> {
    /// For a new ring.
    pub(super) fn new(array: NonNull<Array<T>>) -> Self {
        Self::starting_at(array, 0)
    }

    /// The first packet has this position.
    pub(super) fn starting_at(array: NonNull<Array<T>>, position: u32) -> Self {
        Self { array, head: position, tail: position, generation: 0 }
    }

    /// How many packets can be taken. Looks what has come if there are fewer than `wanted`.
    #[inline]
    pub(super) fn available(&mut self, shared: &Shared<T>, wanted: usize) -> usize {
        if (self.tail.wrapping_sub(self.head) as usize) < wanted {
            self.refresh(shared);
        }
        self.tail.wrapping_sub(self.head) as usize
    }

    /// Looks what has come; goes over to the next array when ours is empty for good.
    fn refresh(&mut self, shared: &Shared<T>) {
        // Acquire: pairs with the Release in `Single::publish` and in `finish`.
        let word = Word(shared.tail.0.load(Ordering::Acquire));
        if word.generation() == self.generation {
            self.tail = word.position();
        } else {
            self.follow(shared, word);
        }
    }

    #[cold]
    fn follow(&mut self, shared: &Shared<T>, word: Word) {
        let next = shared.array(word.generation()).expect("a tail's array is there");
        // SAFETY: arrays in use are freed by us alone.
        let array = unsafe { next.as_ref() };
        // Relaxed: written before the tail that led us here.
        let start = array.start.load(Ordering::Relaxed);
        if self.head != start {
            self.tail = start;
            return;
        }
        shared.leave_array(self.generation);
        *self = Self { array: next, tail: word.position(), generation: word.generation(), ..*self };
    }

    /// Moves packets to `places`, as many as there are of both; returns how many.
    #[inline]
    pub(super) fn take(&mut self, shared: &Shared<T>, places: &mut [Option<T>]) -> usize {
        let count = self.available(shared, places.len()).min(places.len());
        if count == 0 {
            return 0;
        }
        // SAFETY: we free arrays ourselves, when we leave them.
        let array = unsafe { self.array.as_ref() };
        let [first, second] = array.stretches(self.head, count);
        // Before all else, so that nothing is read twice: if a place was not empty after all, and
        // its end panics, what is left is lost.
        self.head = self.head.wrapping_add(count as u32);
        let (before, after) = places.split_at_mut(first.len());
        for (slots, places) in [(first, before), (second, after)] {
            for (slot, place) in slots.iter().zip(places) {
                // SAFETY: the tail passed this position, so a packet was written here; the head has
                // moved on, so that it is read once.
                let item = slot.with_mut(|slot| unsafe { slot.cast::<T>().read() });
                *place = Some(item);
            }
        }
        self.give_slots(shared);
        count
    }

    /// The next packet, left where it is.
    #[inline]
    pub(super) fn peek(&mut self, shared: &Shared<T>) -> Option<&T> {
        if self.available(shared, 1) == 0 {
            return None;
        }
        // SAFETY: as in `take`.
        let array = unsafe { self.array.as_ref() };
        let [slots, _] = array.stretches(self.head, 1);
        // SAFETY: the tail passed this position and the head did not: a packet is there, and stays
        // as long as `self` is borrowed.
        slots[0].with(|slot| Some(unsafe { &*slot.cast::<T>() }))
    }

    /// Drops all packets, counting them.
    pub(super) fn purge(&mut self, shared: &Shared<T>) -> usize {
        let mut purged = 0;
        let mut place = [None];
        while self.take(shared, &mut place) > 0 {
            purged += 1;
        }
        // Relaxed: counters order nothing.
        shared.dropped.0[1].fetch_add(purged as u64, Ordering::Relaxed);
        purged
    }

    /// Producers may fill what we have emptied.
    fn give_slots(&self, shared: &Shared<T>) {
        // Release: pairs with the Acquire in `Single::put` and in `reserve`.
        shared.head.0.store(self.head, Ordering::Release);
    }
}
