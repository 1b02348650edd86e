//! The producers' side: writing packets into slots, and going over to another array.
//!
//! A slot is a producer's from the moment that the head has passed its former position until the
//! tail passes its next one; and of one producer only, because positions are given once.
#![allow(unsafe_code)]

use super::shared::{Array, RESIZE, Shared, Word};
use crate::sync::Ordering;
use core::ptr::NonNull;

/// Moves items, up to the first that is missing, to the positions from `position` on. Returns how
/// many.
///
/// # Safety
/// The slots of as many positions as there are places belong to the caller, and hold nothing.
unsafe fn write<T>(array: &Array<T>, position: u32, items: &mut [Option<T>]) -> usize {
    let [first, second] = array.stretches(position, items.len());
    let (before, after) = items.split_at_mut(first.len());
    let mut count = 0;
    for (slots, items) in [(first, before), (second, after)] {
        for (slot, item) in slots.iter().zip(items) {
            let Some(item) = item.take() else { return count };
            // SAFETY: by the contract of this function nobody else touches the slot.
            slot.with_mut(|slot| unsafe { (*slot).write(item) });
            count += 1;
        }
    }
    count
}

/// What the one producer keeps to himself.
pub(super) struct Single<T> {
    array: NonNull<Array<T>>,
    /// Next position to fill.
    tail: u32,
    /// The head as last seen: it may have moved on.
    head: u32,
    capacity: u32,
    generation: usize,
}

// SAFETY: the array is reached as the module says, by whichever thread has the one `Single`.
unsafe impl<T: Send> Send for Single<T> {}

impl<T> Single<T> {
    /// For a new ring.
    pub(super) fn new(array: NonNull<Array<T>>, capacity: u32) -> Self {
        Self { array, tail: 0, head: 0, capacity, generation: 0 }
    }

    /// Moves items into the ring and publishes them: those at the front, up to one that is missing
    /// or has no room. Returns how many.
    #[inline]
    pub(super) fn put(&mut self, shared: &Shared<T>, items: &mut [Option<T>]) -> usize {
        if shared.control() & RESIZE != 0 {
            self.switch(shared);
        }
        let mut room = self.room();
        if room < items.len() {
            // Acquire: pairs with the Release in `Drain::take`: the consumer has done with the
            // slots behind the head.
            self.head = shared.head.0.load(Ordering::Acquire);
            room = self.room();
        }
        let places = room.min(items.len());
        if places == 0 {
            return 0;
        }
        // SAFETY: the consumer frees an array only after the tail has told of the next one, and
        // `switch` sets ours before it publishes that.
        let array = unsafe { self.array.as_ref() };
        // SAFETY: fewer than `capacity` packets lie between head and these positions, and this is
        // the one producer.
        let count = unsafe { write(array, self.tail, &mut items[..places]) };
        self.tail = self.tail.wrapping_add(count as u32);
        self.publish(shared);
        count
    }

    /// Room by the head as last seen. None while more is held than a smaller capacity allows.
    fn room(&self) -> usize {
        self.capacity.saturating_sub(self.tail.wrapping_sub(self.head)) as usize
    }

    fn publish(&self, shared: &Shared<T>) {
        let word = Word::new(self.tail, self.generation, 0);
        // Release: pairs with the Acquire in `Drain::refresh`: slots, and arrays that came into
        // use.
        shared.tail.0.store(word.0, Ordering::Release);
    }

    /// Goes over to the array that was asked for, unless the consumer is still in the one before
    /// ours: then later.
    #[cold]
    fn switch(&mut self, shared: &Shared<T>) {
        let other = self.generation ^ 1;
        if shared.array(other).is_some() {
            return;
        }
        let Some(array) = shared.take_request() else { return };
        // Relaxed: published with the tail.
        array.start.store(self.tail, Ordering::Relaxed);
        self.capacity = array.capacity;
        self.array = shared.set_array(other, array);
        self.generation = other;
        self.publish(shared);
    }
}

/// Producing for any number of threads at once.
///
/// A call *reserves* positions by moving `reserved` on, fills their slots, and *finishes* by
/// counting itself in `tail`. Whoever finds that as many have finished as have reserved publishes
/// for all. So nobody waits for anybody; what a producer that was interrupted still has to fill
/// holds back the publishing of what others reserved meanwhile, until he finishes.
///
/// Moves items into the ring: those at the front, up to one that is missing or has no room. Returns
/// how many.
#[inline]
pub(super) fn put_shared<T>(shared: &Shared<T>, items: &mut [Option<T>]) -> usize {
    if shared.control() & RESIZE != 0 {
        shared.claim_switch(|| switch_shared(shared));
    }
    // What is reserved has to be filled.
    let there = items.iter().take_while(|item| item.is_some()).count();
    let Some((word, count)) = reserve(shared, there) else { return 0 };
    let array = shared.array(word.generation()).expect("what is reserved keeps its array");
    // SAFETY: the consumer frees an array after all positions in it were published and taken, and
    // ours are not published before we finish.
    let array = unsafe { array.as_ref() };
    // SAFETY: reserved by us alone, and `reserve` saw the head pass what was there before.
    let written = unsafe { write(array, word.position(), &mut items[..count]) };
    assert_eq!(written, count, "all are there");
    finish(shared);
    count
}

/// Reserves up to `wanted` positions: where they begin, and how many. `None` if there is no room.
fn reserve<T>(shared: &Shared<T>, wanted: usize) -> Option<(Word, usize)> {
    // Acquire, here and below: pairs with the Release in `switch_shared`: the array of the
    // generation and its capacity.
    let mut word = Word(shared.reserved.0.load(Ordering::Acquire));
    loop {
        // Acquire: pairs with the Release in `Drain::take`.
        let head = shared.head.0.load(Ordering::Acquire);
        let held = word.position().wrapping_sub(head);
        // What we know of the reservations is older than what we know of the head.
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

/// Counts a call as finished, and publishes if all are that have reserved.
fn finish<T>(shared: &Shared<T>) {
    // Acquire, here and below: pairs with the Release below of other calls. What they reserved
    // happened before, so that `reserved` as loaded next covers all that this word counts; and as
    // many finished as reserved then means that they are the same.
    let mut tail = Word(shared.tail.0.load(Ordering::Acquire));
    loop {
        // Relaxed: see above.
        let reserved = Word(shared.reserved.0.load(Ordering::Relaxed));
        let calls = tail.next_calls();
        let next = if reserved.calls() == calls {
            reserved
        } else {
            Word::new(tail.position(), tail.generation(), calls)
        };
        // Release: pairs with the Acquire in `Drain::refresh`: our slots. All changes of the tail
        // are such exchanges, so that who reads the last one has acquired all.
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

/// As `Single::switch`, by one of several who has the claim.
#[cold]
fn switch_shared<T>(shared: &Shared<T>) {
    // Relaxed: nobody else changes the generation, and the claim has acquired who did before.
    let mut word = Word(shared.reserved.0.load(Ordering::Relaxed));
    let other = word.generation() ^ 1;
    if shared.array(other).is_some() {
        return;
    }
    let Some(array) = shared.take_request() else { return };
    let array = shared.set_array(other, array);
    // SAFETY: in its place, and left alone by the consumer until a switch to it is published.
    let array = unsafe { array.as_ref() };
    loop {
        // Relaxed: published by the exchange.
        array.start.store(word.position(), Ordering::Relaxed);
        // The switch is a call without packets.
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
