//! The consumer's side: taking packets out of slots, and following to another array.
//!
//! A slot is the consumer's from the moment that the tail has passed its position until the head
//! does.
#![allow(unsafe_code)]

use super::shared::{Array, Shared, Word};
use crate::sync::Ordering;
use core::ptr::NonNull;

/// What the consumer keeps to himself.
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
