//! State that the sides of a ring share: arrays of slots, indices, flags.
//!
//! Fields are grouped by the side that writes them, each group on its own cache lines;
//! `docs/theory/ring.md` shows the layout. Positions alone decide which thread may access a slot;
//! the proofs are in `fill` and at [`Drain`].
#![allow(unsafe_code)]

use super::{CAPACITY_MAX, CapacityError, Counters, Doorbell};
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering, UnsafeCell, fence, light_fence};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};

/// The consumer sleeps, or is about to: a producer that publishes rings the doorbell.
pub(super) const SLEEPING: u32 = 1;
/// The consumer is gone: a producer that publishes purges the ring.
pub(super) const CONSUMER_GONE: u32 = 2;
/// All producers are gone: no more packets will come.
pub(super) const PRODUCERS_GONE: u32 = 4;
/// A new array is in `request`.
pub(super) const RESIZE: u32 = 8;
/// One of several producers is switching to another array.
const SWITCHING: u32 = 16;
/// The one producer needs no fence: the consumer makes a barrier of all threads.
const LIGHT: u32 = 32;
/// Such a barrier failed, and the producer may not have seen yet that it must fence.
const UNSEEN: u32 = 64;
/// The one producer waits for room, or is about to.
const ROOM_WANTED: u32 = 128;
/// What a producer that has published looks for.
const ATTENTION: u32 = SLEEPING | CONSUMER_GONE | UNSEEN;

/// The state of producing, in one word: the position after the last packet (32 bits), the
/// generation of its array (1 bit), and the number of calls (31 bits; used only with several
/// producers). Positions and calls wrap.
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

    /// The number of calls after one more.
    pub(super) fn next_calls(self) -> u32 {
        self.calls().wrapping_add(1) & (u32::MAX >> 1)
    }
}

/// The slots of one generation; their number is a power of two. The low bits of a position are its
/// slot, so positions may wrap with every capacity.
///
/// The slots start at a multiple of [`Line`]'s alignment. So bursts that start there have cache
/// lines of their own: one side fills them while the other empties earlier ones.
pub(super) struct Array<T> {
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
    /// Index of the first slot that is used, and the number of used slots.
    first: usize,
    count: usize,
    /// Most packets in the ring while this array is filled.
    pub(super) capacity: u32,
    /// First position in this array. Set when the array comes into use.
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
        // The size of a slot is not known here, so there may be no slot at such an address.
        let first = Some(slots.as_ptr().align_offset(align_of::<Line<T>>()));
        let first = first.filter(|first| *first <= spare).unwrap_or(0);
        Ok(Box::new(Self { slots, first, count, capacity, start: AtomicU32::new(0) }))
    }

    /// The slots of `count` positions from `position` on, as two slices.
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

/// A pair of cache lines: processors fetch lines in pairs.
#[repr(C, align(128))]
pub(super) struct Line<T>(pub(super) T);

/// Fields that change rarely and that all sides read in each call.
struct Quiet<T> {
    /// Flags: `SLEEPING` and the others.
    control: AtomicU32,
    /// By generation: capacities, and the arrays in use. One of the two arrays is null unless a
    /// resize is in progress.
    capacities: [AtomicU32; 2],
    arrays: [AtomicPtr<Array<T>>; 2],
    /// An array that was requested and is not in use yet, or null.
    request: AtomicPtr<Array<T>>,
    /// The capacity that was requested last.
    asked: AtomicU32,
    /// Calls of `reap` since the last purge was complete. 64 bits wide: calls that come while a
    /// packet is being dropped cannot wrap it and let in a second purge.
    reapers: AtomicU64,
    /// The consumer's side, after the consumer has ended.
    left: UnsafeCell<Option<Drain<T>>>,
    doorbell: Box<dyn Doorbell>,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Quiet<u64>>() <= align_of::<Line<u64>>(), "one pair of lines");

/// The state that all handles of a ring share.
pub(super) struct Shared<T> {
    /// A [`Word`]: what is published. Written by producers, read by the consumer.
    pub(super) tail: Line<AtomicU64>,
    /// A [`Word`]: what several producers have reserved, published or not. Used by producers only.
    pub(super) reserved: Line<AtomicU64>,
    /// Position of the next packet to take. Written by the consumer, read by producers.
    pub(super) head: Line<AtomicU32>,
    quiet: Line<Quiet<T>>,
    /// Packets dropped by producers, and packets purged.
    pub(super) dropped: Line<[AtomicU64; 2]>,
}

// SAFETY: packets move from the thread that writes their slot to the thread that reads it and are
// never shared. Everything else is atomic, constant, or protected by the claims that `fill`,
// `Drain` and `reap` prove.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: `&Shared` reaches slots, arrays and `left` only under the claims that `fill`, `Drain` and
// `reap` prove; everything else is atomic or constant, and the doorbell is `Sync` by its trait.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// Makes the shared state, with an array of generation 0 in use. Returns that array, too. With
    /// `is_light`, the doorbell can make barriers, and there is one producer.
    pub(super) fn new(
        capacity: usize,
        doorbell: Box<dyn Doorbell>,
        is_light: bool,
    ) -> Result<(Self, NonNull<Array<T>>), CapacityError> {
        let array = Array::new(capacity)?;
        let capacity = array.capacity;
        let array = Box::into_raw(array);
        let quiet = Quiet {
            control: AtomicU32::new(if is_light { LIGHT } else { 0 }),
            capacities: [AtomicU32::new(capacity), AtomicU32::new(0)],
            arrays: [AtomicPtr::new(array), AtomicPtr::new(ptr::null_mut())],
            request: AtomicPtr::new(ptr::null_mut()),
            asked: AtomicU32::new(capacity),
            reapers: AtomicU64::new(0),
            left: UnsafeCell::new(None),
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
        // Relaxed: a caller that acts on a flag orders its accesses by other means.
        self.quiet.0.control.load(Ordering::Relaxed)
    }

    pub(super) fn capacity(&self, generation: usize) -> u32 {
        // Relaxed: written before the switch to the generation, which the caller has acquired.
        self.quiet.0.capacities[generation].load(Ordering::Relaxed)
    }

    pub(super) fn array(&self, generation: usize) -> Option<NonNull<Array<T>>> {
        // Acquire: pairs with the Release of `set_array`, when the array came into use. For null it
        // pairs with the Release of `leave_array`: the consumer no longer uses the former array.
        NonNull::new(self.quiet.0.arrays[generation].load(Ordering::Acquire))
    }

    /// Takes the array that a resize has requested, if there is one.
    pub(super) fn take_request(&self) -> Option<Box<Array<T>>> {
        // Acquire: pairs with the Release in `ask`. The flag is cleared first: a request after the
        // swap sets it again.
        self.quiet.0.control.fetch_and(!RESIZE, Ordering::Acquire);
        // AcqRel: pairs with `ask` in both directions, because the array changes hands.
        let array = self.quiet.0.request.swap(ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: only boxes of `ask` are stored there, and the swap took this one out.
        (!array.is_null()).then(|| unsafe { Box::from_raw(array) })
    }

    /// Requests a switch to `array`. Replaces an earlier request that is not in use yet.
    pub(super) fn ask(&self, array: Box<Array<T>>) {
        // Relaxed: only for reports.
        self.quiet.0.asked.store(array.capacity, Ordering::Relaxed);
        // AcqRel: pairs with `take_request` and with other calls of `ask`.
        let before = self.quiet.0.request.swap(Box::into_raw(array), Ordering::AcqRel);
        // Release: pairs with the Acquire in `take_request`: the thread that clears the flag finds
        // the array.
        self.quiet.0.control.fetch_or(RESIZE, Ordering::Release);
        if !before.is_null() {
            // SAFETY: a box of an earlier `ask`, which only this swap took out.
            drop(unsafe { Box::from_raw(before) });
        }
    }

    /// Sets the array of `generation`, which has none. Only one producer at a time may call.
    pub(super) fn set_array(&self, generation: usize, array: Box<Array<T>>) -> NonNull<Array<T>> {
        // Relaxed: the switch that follows publishes it.
        self.quiet.0.capacities[generation].store(array.capacity, Ordering::Relaxed);
        let array = Box::into_raw(array);
        // Release: pairs with the Acquire in `array`.
        let before = self.quiet.0.arrays[generation].swap(array, Ordering::Release);
        assert!(before.is_null(), "an array is put where there is none");
        NonNull::new(array).expect("a box is not null")
    }

    /// Calls `switch`, unless another thread does so now: then a later call switches, because
    /// `RESIZE` is still set.
    pub(super) fn claim_switch(&self, switch: impl FnOnce()) {
        // Acquire: pairs with the Release below, so that an earlier switch is visible.
        if self.quiet.0.control.fetch_or(SWITCHING, Ordering::Acquire) & SWITCHING == 0 {
            switch();
            // Release: pairs with the Acquire above.
            self.quiet.0.control.fetch_and(!SWITCHING, Ordering::Release);
        }
    }

    /// Frees the array of `generation`. The consumer has emptied it and continues in the other one.
    pub(super) fn leave_array(&self, generation: usize) {
        // Release: pairs with the Acquire in `array`. No Acquire is needed: the caller has used the
        // array.
        let array = self.quiet.0.arrays[generation].swap(ptr::null_mut(), Ordering::Release);
        // SAFETY: a box of `set_array` or `new`. Producers left it before they published a tail
        // that names the other array, and the caller has acquired that tail. The caller does not
        // use it any more.
        drop(unsafe { Box::from_raw(array) });
    }

    /// Notifies the consumer of what the caller has published: rings the doorbell if the consumer
    /// sleeps, purges if the consumer is gone.
    #[inline]
    pub(super) fn wake(&self) {
        // Between publishing and reading the flags; pairs with `fence_consumer`. Either the
        // consumer sees what was published before, or the load below sees its flag.
        if self.control() & LIGHT != 0 {
            // The consumer's barrier takes effect on this thread either before the load below or
            // after the publishing above, so only the compiler must keep the order.
            light_fence();
        } else {
            fence(Ordering::SeqCst);
        }
        if self.control() & ATTENTION != 0 {
            self.wake_slowly();
        }
    }

    #[cold]
    fn wake_slowly(&self) {
        // Acquire: pairs with the Release in `leave`, for `left`, and with that in `go_to_sleep`,
        // for the doorbell. Release: pairs with the Acquire in `fence_consumer`: what was published
        // while `LIGHT` was set is visible to a consumer that finds `UNSEEN` cleared.
        let before = self.quiet.0.control.fetch_and(!(SLEEPING | UNSEEN), Ordering::AcqRel);
        if before & CONSUMER_GONE != 0 {
            self.reap();
        } else if before & SLEEPING != 0 {
            self.quiet.0.doorbell.ring();
        }
    }

    /// Announces that the last producer is gone.
    pub(super) fn close(&self) {
        self.wake();
        // Release: pairs with the Acquire in `are_producers_gone`, so that what was published is
        // visible. All flags are in one word, so one of the sides sees the other's.
        let before = self.quiet.0.control.fetch_or(PRODUCERS_GONE, Ordering::Release);
        if before & ATTENTION != 0 {
            self.wake_slowly();
        }
    }

    pub(super) fn are_producers_gone(&self) -> bool {
        // Acquire: pairs with the Release in `close`.
        self.quiet.0.control.load(Ordering::Acquire) & PRODUCERS_GONE != 0
    }

    /// Announces that the consumer is about to sleep. The consumer checks the ring once more.
    /// Returns false if it must not sleep now.
    pub(super) fn go_to_sleep(&self) -> bool {
        // Release: pairs with the Acquire in `wake_slowly`: the doorbell sees what the consumer did
        // before. The fence orders the flag itself.
        self.quiet.0.control.fetch_or(SLEEPING, Ordering::Release);
        self.fence_consumer()
    }

    /// Orders setting a flag and reading the tail; pairs with the fences of `wake`. Returns false
    /// if a producer may miss the flag, because the barrier that stood for its fence failed. That
    /// ends with the producer's next call, or with a barrier that succeeds.
    fn fence_consumer(&self) -> bool {
        fence(Ordering::SeqCst);
        let control = &self.quiet.0.control;
        // Acquire: pairs with the Release in `wake_slowly`, which clears `UNSEEN`.
        let flags = control.load(Ordering::Acquire);
        if flags & (LIGHT | UNSEEN) == 0 {
            return true;
        }
        // Pairs with the light fence of `wake`. The barrier also shows the producer that `LIGHT`
        // was cleared, if it was.
        let is_done = self.quiet.0.doorbell.barrier();
        if !is_done && flags & LIGHT != 0 {
            // Relaxed: the producer's answer orders, or the next barrier.
            control.fetch_xor(LIGHT | UNSEEN, Ordering::Relaxed);
        } else if is_done && flags & UNSEEN != 0 {
            // Relaxed: the barrier orders.
            control.fetch_and(!UNSEEN, Ordering::Relaxed);
        }
        is_done
    }

    /// Withdraws the announcement of a sleep.
    pub(super) fn stay_awake(&self) {
        // Relaxed: orders nothing; a superfluous doorbell does no harm.
        self.quiet.0.control.fetch_and(!SLEEPING, Ordering::Relaxed);
    }

    /// Ends the consumer, and leaves its side to the thread that purges.
    pub(super) fn leave(&self, side: Drain<T>) {
        // SAFETY: no thread accesses it before the flag is set.
        self.quiet.0.left.with_mut(|left| unsafe { *left = Some(side) });
        // Release: pairs with the Acquire in `wake_slowly`. Acquire: pairs with the Release in
        // `close`; if the producers are gone, this purge is the last.
        self.quiet.0.control.fetch_or(CONSUMER_GONE, Ordering::AcqRel);
        // If the producer may miss the flag, it purges at its next call.
        self.fence_consumer();
        self.reap();
    }

    /// Announces that the producer is about to wait for room. The producer checks once more.
    pub(super) fn want_room(&self) {
        // Release: pairs with the Acquire in `take_room_wish`: the thread that wakes the producer
        // sees what it did before.
        self.quiet.0.control.fetch_or(ROOM_WANTED, Ordering::Release);
        // Between setting the flag and reading the head; pairs with the fence of `fence_consumer`.
        // Either the producer sees the room, or the consumer sees the flag before it sleeps.
        fence(Ordering::SeqCst);
    }

    /// Withdraws the producer's announcement.
    pub(super) fn want_no_room(&self) {
        // Relaxed: orders nothing; waking a producer that is awake does no harm.
        self.quiet.0.control.fetch_and(!ROOM_WANTED, Ordering::Relaxed);
    }

    /// True if the producer waits for room, once for each announcement.
    pub(super) fn take_room_wish(&self) -> bool {
        // Acquire: pairs with the Release in `want_room`.
        self.control() & ROOM_WANTED != 0
            && self.quiet.0.control.fetch_and(!ROOM_WANTED, Ordering::Acquire) & ROOM_WANTED != 0
    }

    /// Purges in place of the consumer. Several threads may call: one of them purges, and repeats
    /// that for those that called meanwhile.
    fn reap(&self) {
        // AcqRel: the purging thread sees what the caller published, and what an earlier purge did
        // to `left`.
        if self.quiet.0.reapers.fetch_add(1, Ordering::AcqRel) != 0 {
            return;
        }
        let mut seen = 1;
        loop {
            self.quiet.0.left.with_mut(|left| {
                // SAFETY: the count gives one caller at a time the right to purge, until it gives
                // that up below.
                let left = unsafe { &mut *left };
                left.as_mut().expect("left before the flag was set").purge(self);
            });
            // AcqRel: the next purge sees what this one did to `left`. Acquire on failure: another
            // thread has published.
            let done =
                self.quiet.0.reapers.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Acquire);
            match done {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// True if all positions that several producers have reserved are published.
    pub(super) fn is_published(&self) -> bool {
        // Relaxed: what the caller knows of was reserved before, and later reservations only make
        // this false.
        let reserved = Word(self.reserved.0.load(Ordering::Relaxed)).position();
        // Acquire: pairs with the Release in `finish`.
        let tail = Word(self.tail.0.load(Ordering::Acquire)).position();
        tail.wrapping_sub(reserved) as i32 >= 0
    }

    /// Approximate number of packets in the ring.
    pub(super) fn len(&self) -> usize {
        // Acquire: pairs with the Release in `give_slots`. The consumer had read the tail before
        // that, so the tail loaded below is not older, and the difference is not negative.
        let head = self.head.0.load(Ordering::Acquire);
        // Relaxed: the Acquire above orders it.
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
        // No packet is left: the consumer has purged, or a producer after it.
        let Quiet { arrays: [one, other], request, .. } = &self.quiet.0;
        for place in [one, other, request] {
            // Relaxed: no other thread is left.
            let array = place.load(Ordering::Relaxed);
            if !array.is_null() {
                // SAFETY: these are boxes, and each is in one place only.
                drop(unsafe { Box::from_raw(array) });
            }
        }
    }
}

/// The consumer's side, with which it takes packets out of slots. A slot belongs to the consumer
/// from the time when the tail passes its position until the head does.
pub(super) struct Drain<T> {
    array: NonNull<Array<T>>,
    /// Next position to take.
    head: u32,
    /// End of the packets in `array`, as last seen.
    tail: u32,
    generation: usize,
}

// SAFETY: a ring has one `Drain`, and only the thread that owns it reaches the array through it, in
// slots whose position the tail has passed and the head has not. Producers do not touch those.
unsafe impl<T: Send> Send for Drain<T> {}

impl<T> Drain<T> {
    /// The side of a new ring.
    pub(super) fn new(array: NonNull<Array<T>>) -> Self {
        Self::starting_at(array, 0)
    }

    /// The side of a ring whose first packet has this position.
    pub(super) fn starting_at(array: NonNull<Array<T>>, position: u32) -> Self {
        Self { array, head: position, tail: position, generation: 0 }
    }

    /// Number of packets that can be taken. Reads the tail if fewer than `wanted` are known.
    #[inline]
    pub(super) fn available(&mut self, shared: &Shared<T>, wanted: usize) -> usize {
        if (self.tail.wrapping_sub(self.head) as usize) < wanted {
            self.refresh(shared);
        }
        self.tail.wrapping_sub(self.head) as usize
    }

    /// Reads the tail. Continues in the next array when the current one is empty for good.
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
        // SAFETY: only this side frees arrays in use, so the array is valid.
        let array = unsafe { next.as_ref() };
        // Relaxed: written before the tail that names this array, which was acquired.
        let start = array.start.load(Ordering::Relaxed);
        if self.head != start {
            self.tail = start;
            return;
        }
        shared.leave_array(self.generation);
        *self = Self { array: next, tail: word.position(), generation: word.generation(), ..*self };
    }

    /// Moves packets to `places`, as many as there are of both. Returns their number.
    #[inline]
    pub(super) fn take(&mut self, shared: &Shared<T>, places: &mut [Option<T>]) -> usize {
        let count = self.available(shared, places.len()).min(places.len());
        if count == 0 {
            return 0;
        }
        // SAFETY: only this side frees arrays, when it leaves them, so its own is valid.
        let array = unsafe { self.array.as_ref() };
        let [first, second] = array.stretches(self.head, count);
        // Advanced first, so that no slot is read twice: if a place was not empty and dropping its
        // content panics, the packets that are left are leaked.
        self.head = self.head.wrapping_add(count as u32);
        let (before, after) = places.split_at_mut(first.len());
        for (slots, places) in [(first, before), (second, after)] {
            for (slot, place) in slots.iter().zip(places) {
                // SAFETY: the tail has passed this position, so a packet was written here. The head
                // has moved on, so it is read once.
                let item = slot.with_mut(|slot| unsafe { slot.cast::<T>().read() });
                *place = Some(item);
            }
        }
        self.give_slots(shared);
        count
    }

    /// The next packet, which stays in the ring.
    #[inline]
    pub(super) fn peek(&mut self, shared: &Shared<T>) -> Option<&T> {
        if self.available(shared, 1) == 0 {
            return None;
        }
        // SAFETY: only this side frees arrays, when it leaves them, so its own is valid.
        let array = unsafe { self.array.as_ref() };
        let [slots, _] = array.stretches(self.head, 1);
        // SAFETY: the tail has passed this position and the head has not: there is a packet, and it
        // stays as long as `self` is borrowed.
        slots[0].with(|slot| Some(unsafe { &*slot.cast::<T>() }))
    }

    /// Drops all packets and counts them.
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

    /// Publishes the head: producers may fill the slots that were emptied.
    fn give_slots(&self, shared: &Shared<T>) {
        // Release: pairs with the Acquire in `Single::put` and in `reserve`.
        shared.head.0.store(self.head, Ordering::Release);
    }
}
