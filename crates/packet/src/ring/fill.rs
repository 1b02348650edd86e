//! The producers' side: writing packets into slots, and switching to another array.
//!
//! A slot belongs to a producer from the time when the head passes its former position until the
//! tail passes its next position. It belongs to one producer only, because each position is
//! assigned once.
#![allow(unsafe_code)]

use super::shared::{Array, RESIZE, Shared, Word};
use crate::sync::Ordering;
use core::ptr::NonNull;

/// Moves items, up to the first that is missing, to the positions from `position` on. Returns their
/// number.
///
/// # Safety
/// The slots of `items.len()` positions from `position` on belong to the caller and are empty.
unsafe fn write<T>(array: &Array<T>, position: u32, items: &mut [Option<T>]) -> usize {
    let [first, second] = array.stretches(position, items.len());
    let (before, after) = items.split_at_mut(first.len());
    let mut count = 0;
    for (slots, items) in [(first, before), (second, after)] {
        for (slot, item) in slots.iter().zip(items) {
            let Some(item) = item.take() else { return count };
            // SAFETY: by this function's contract no other thread accesses the slot.
            slot.with_mut(|slot| unsafe { (*slot).write(item) });
            count += 1;
        }
    }
    count
}

/// The state of the one producer.
pub(super) struct Single<T> {
    array: NonNull<Array<T>>,
    /// Next position to fill.
    tail: u32,
    /// The head as last seen. It may have moved on.
    head: u32,
    capacity: u32,
    generation: usize,
}

// SAFETY: only the thread that owns the one `Single` reaches the array through it, in slots that
// belong to the producer at that time (module text).
unsafe impl<T: Send> Send for Single<T> {}

impl<T> Single<T> {
    /// The state for a new ring.
    pub(super) fn new(array: NonNull<Array<T>>, capacity: u32) -> Self {
        Self { array, tail: 0, head: 0, capacity, generation: 0 }
    }

    /// Moves items into the ring and publishes them: from the front, up to one that is missing or
    /// has no room. Returns their number.
    #[inline]
    pub(super) fn put(&mut self, shared: &Shared<T>, items: &mut [Option<T>]) -> usize {
        if shared.control() & RESIZE != 0 {
            self.switch(shared);
        }
        let mut room = self.room();
        if room < items.len() {
            // Acquire: pairs with the Release in `Drain::take`: the consumer no longer uses the
            // slots behind the head.
            self.head = shared.head.0.load(Ordering::Acquire);
            room = self.room();
        }
        let places = room.min(items.len());
        if places == 0 {
            return 0;
        }
        // SAFETY: the consumer frees an array only after the tail has named the next one, and
        // `switch` replaces ours before it publishes that.
        let array = unsafe { self.array.as_ref() };
        // SAFETY: the head and the end of these positions are at most `capacity` apart, which is no
        // more than the slots of the array, so the consumer has emptied these slots. This is the
        // one producer.
        let count = unsafe { write(array, self.tail, &mut items[..places]) };
        self.tail = self.tail.wrapping_add(count as u32);
        self.publish(shared);
        count
    }

    /// True if the ring has room for an item.
    pub(super) fn has_room(&mut self, shared: &Shared<T>) -> bool {
        if shared.control() & RESIZE != 0 {
            self.switch(shared);
        }
        // Acquire: pairs with the Release in `Drain::take`, as in `put`.
        self.head = shared.head.0.load(Ordering::Acquire);
        self.room() > 0
    }

    /// Room, by the head as last seen. Zero while the ring holds more than a smaller capacity
    /// allows.
    fn room(&self) -> usize {
        self.capacity.saturating_sub(self.tail.wrapping_sub(self.head)) as usize
    }

    fn publish(&self, shared: &Shared<T>) {
        let word = Word::new(self.tail, self.generation, 0);
        // Release: pairs with the Acquire in `Drain::refresh`, for slots and for arrays that came
        // into use.
        shared.tail.0.store(word.0, Ordering::Release);
    }

    /// Switches to the array that was requested. Does nothing while the consumer is still in the
    /// previous array: a later call switches then.
    #[cold]
    fn switch(&mut self, shared: &Shared<T>) {
        let other = self.generation ^ 1;
        if shared.array(other).is_some() {
            return;
        }
        let Some(array) = shared.take_request() else { return };
        // Relaxed: the tail publishes it.
        array.start.store(self.tail, Ordering::Relaxed);
        self.capacity = array.capacity;
        self.array = shared.set_array(other, array);
        self.generation = other;
        self.publish(shared);
    }
}

/// Moves items into the ring, for any number of producers at once: from the front, up to one that
/// is missing or has no room. Returns their number.
///
/// A call *reserves* positions by advancing `reserved`, fills their slots, and *finishes* by
/// counting itself in `tail`. The call that finds as many calls finished as reserved publishes for
/// all of them. So no call waits for another. A producer that is interrupted before it finishes
/// delays the publishing of later reservations until it continues.
#[inline]
pub(super) fn put_shared<T>(shared: &Shared<T>, items: &mut [Option<T>]) -> usize {
    if shared.control() & RESIZE != 0 {
        shared.claim_switch(|| switch_shared(shared));
    }
    // Reserved positions must be filled, so only items that exist are counted.
    let there = items.iter().take_while(|item| item.is_some()).count();
    let Some((word, count)) = reserve(shared, there) else { return 0 };
    let array = shared.array(word.generation()).expect("what is reserved keeps its array");
    // SAFETY: the consumer frees an array only after all its positions were published and taken,
    // and ours are not published before `finish`.
    let array = unsafe { array.as_ref() };
    // SAFETY: this call alone has reserved these positions, and `reserve` saw the head pass the
    // packets that were in their slots before.
    let written = unsafe { write(array, word.position(), &mut items[..count]) };
    assert_eq!(written, count, "all are there");
    finish(shared);
    count
}

/// Reserves up to `wanted` positions. Returns the first one and their number; `None` if there is no
/// room.
fn reserve<T>(shared: &Shared<T>, wanted: usize) -> Option<(Word, usize)> {
    // Acquire, here and below: pairs with the Release in `switch_shared`, for the array of the
    // generation and its capacity.
    let mut word = Word(shared.reserved.0.load(Ordering::Acquire));
    loop {
        // Acquire: pairs with the Release in `Drain::take`.
        let head = shared.head.0.load(Ordering::Acquire);
        let held = word.position().wrapping_sub(head);
        // The loaded `reserved` is older than the loaded head.
        let is_stale = held.cast_signed() < 0;
        let room = shared.capacity(word.generation()).saturating_sub(held) as usize;
        let count = room.min(wanted);
        let next = Word::new(
            word.position().wrapping_add(count as u32),
            word.generation(),
            word.next_calls(),
        );
        let current = if is_stale {
            Err(shared.reserved.0.load(Ordering::Acquire))
        } else if count == 0 {
            return None;
        } else {
            shared.reserved.0.compare_exchange_weak(
                word.0,
                next.0,
                Ordering::Acquire,
                Ordering::Acquire,
            )
        };
        match current {
            Ok(_) => return Some((word, count)),
            Err(now) => word = Word(now),
        }
    }
}

/// Counts a call as finished, and publishes if all calls that have reserved are finished.
fn finish<T>(shared: &Shared<T>) {
    // Acquire, here and below: pairs with the Release below of other calls, which had reserved
    // before. So the `reserved` loaded next covers all calls that this word counts, and if the
    // counts are equal, they count the same calls.
    let mut tail = Word(shared.tail.0.load(Ordering::Acquire));
    loop {
        // Relaxed: the Acquire above orders it.
        let reserved = Word(shared.reserved.0.load(Ordering::Relaxed));
        let calls = tail.next_calls();
        let next = if reserved.calls() == calls {
            reserved
        } else {
            Word::new(tail.position(), tail.generation(), calls)
        };
        // Release: pairs with the Acquire in `Drain::refresh`, for our slots. All changes of the
        // tail are exchanges like this one, so a thread that acquires the last one has acquired
        // all.
        match shared.tail.0.compare_exchange_weak(
            tail.0,
            next.0,
            Ordering::Release,
            Ordering::Acquire,
        ) {
            Ok(_) => return,
            Err(now) => tail = Word(now),
        }
    }
}

/// Switches to the array that was requested. The caller has the claim.
#[cold]
fn switch_shared<T>(shared: &Shared<T>) {
    // Relaxed: only the holder of the claim changes the generation, and the claim has acquired the
    // previous change.
    let mut word = Word(shared.reserved.0.load(Ordering::Relaxed));
    let other = word.generation() ^ 1;
    if shared.array(other).is_some() {
        return;
    }
    let Some(array) = shared.take_request() else { return };
    let array = shared.set_array(other, array);
    // SAFETY: the array is in its place, and the consumer does not free it before a switch to it is
    // published.
    let array = unsafe { array.as_ref() };
    loop {
        // Relaxed: the exchange publishes it.
        array.start.store(word.position(), Ordering::Relaxed);
        // The switch counts as a call without packets.
        let next = Word::new(word.position(), other, word.next_calls());
        // Release: pairs with the Acquire in `reserve`.
        match shared.reserved.0.compare_exchange_weak(
            word.0,
            next.0,
            Ordering::Release,
            Ordering::Relaxed,
        ) {
            Ok(_) => break,
            Err(now) => word = Word(now),
        }
    }
    finish(shared);
}
