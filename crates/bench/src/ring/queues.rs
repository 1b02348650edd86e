//! The queues: towpath's ring and others, behind the same two calls.
//!
//! `null_slots` is a ring like the kernel's `ptr_ring`. A slot that is not empty is occupied. The
//! sides do not share their indices, and the consumer clears slots one or two cache lines at a
//! time, from the last to the first. Several producers share it under a lock. It passes only words,
//! because slots of pointers need unsafe code.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::bail;
use crossbeam_queue::ArrayQueue;
use towpath_io::doorbell::EventDoorbell;
use towpath_packet::ring::{
    self, CapacityError, Consumer, Doorbell, Producer, SharedProducer, Silent,
};
use towpath_packet::sync::{AtomicU64, Ordering};

/// Default queue length of a TAP device in Linux; not a power of two.
pub(super) const CAPACITY: usize = 500;

/// A producer's end.
pub(super) trait Fill<T>: Send {
    /// Moves items into the queue in order; all places hold an item. Returns how many were moved.
    fn fill(&mut self, items: &mut [Option<T>]) -> usize;
}

/// The consumer's end.
pub(super) trait Drain<T>: Send {
    /// Moves items into `places`, which are empty, in order. Returns how many were moved.
    fn drain(&mut self, places: &mut [Option<T>]) -> usize;
}

/// The producers' ends and the consumer's.
pub(super) struct Ends<T> {
    pub(super) fills: Vec<Box<dyn Fill<T>>>,
    pub(super) drain: Box<dyn Drain<T>>,
}

/// A kind of queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// With a doorbell as ports use it.
    Ring,
    /// With a doorbell that makes no barriers for producers.
    RingFenced,
    /// A lock for each item.
    Locked,
    /// A lock for each burst.
    LockedBursts,
    ArrayQueue,
    Rtrb,
    NullSlots,
}

impl Kind {
    pub(super) const ALL: [Self; 7] = [
        Self::Ring,
        Self::RingFenced,
        Self::Locked,
        Self::LockedBursts,
        Self::ArrayQueue,
        Self::Rtrb,
        Self::NullSlots,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::RingFenced => "ring_fenced",
            Self::Locked => "locked_queue",
            Self::LockedBursts => "locked_queue_bursts",
            Self::ArrayQueue => "array_queue",
            Self::Rtrb => "rtrb",
            Self::NullSlots => "null_slots",
        }
    }

    /// Whether it supports this number of producers, and packets.
    pub(super) fn can(self, producers: usize, packets: bool) -> bool {
        match self {
            Self::Rtrb => producers == 1,
            Self::NullSlots => !packets,
            _ => true,
        }
    }

    /// Opens a queue of words.
    pub(super) fn of_words(self, producers: usize) -> anyhow::Result<Ends<NonZeroU64>> {
        if self != Self::NullSlots {
            return self.open(producers);
        }
        let slots: Arc<[AtomicU64]> = (0..CAPACITY).map(|_| AtomicU64::new(0)).collect();
        let producer = NullProducer { slots: slots.clone(), next: 0 };
        let fills: Vec<Box<dyn Fill<_>>> = if producers == 1 {
            vec![Box::new(producer)]
        } else {
            let producer = Arc::new(Mutex::new(producer));
            (0..producers).map(|_| Box::new(producer.clone()) as _).collect()
        };
        Ok(Ends { fills, drain: Box::new(NullConsumer { slots, head: 0, tail: 0 }) })
    }

    /// Opens a queue of items of any type.
    pub(super) fn open<T: Send + 'static>(self, producers: usize) -> anyhow::Result<Ends<T>> {
        let copies = |fill: &dyn Fn() -> Box<dyn Fill<T>>| (0..producers).map(|_| fill()).collect();
        Ok(match self {
            Self::Ring => ring_of(producers, EventDoorbell::new()?)?,
            Self::RingFenced => ring_of(producers, Silent)?,
            Self::Locked => {
                let queue = Locked::new();
                let fills = copies(&|| Box::new(queue.clone()));
                Ends { fills, drain: Box::new(queue) }
            }
            Self::LockedBursts => {
                let queue = LockedBursts(Locked::new());
                let fills = copies(&|| Box::new(queue.clone()));
                Ends { fills, drain: Box::new(queue) }
            }
            Self::ArrayQueue => {
                let queue = Arc::new(ArrayQueue::new(CAPACITY));
                let fills = copies(&|| Box::new(queue.clone()));
                Ends { fills, drain: Box::new(queue) }
            }
            Self::Rtrb => {
                let (producer, consumer) = rtrb::RingBuffer::new(CAPACITY);
                Ends { fills: vec![Box::new(producer)], drain: Box::new(consumer) }
            }
            Self::NullSlots => bail!("this queue passes words only"),
        })
    }
}

fn ring_of<T: Send + 'static>(
    producers: usize,
    doorbell: impl Doorbell + 'static,
) -> Result<Ends<T>, CapacityError> {
    if producers == 1 {
        let (producer, consumer) = ring::single(CAPACITY, doorbell)?;
        return Ok(Ends { fills: vec![Box::new(producer)], drain: Box::new(consumer) });
    }
    let (producer, consumer) = ring::shared(CAPACITY, doorbell)?;
    let fills = (0..producers).map(|_| Box::new(producer.clone()) as _).collect();
    Ok(Ends { fills, drain: Box::new(consumer) })
}

impl<T: Send> Fill<T> for Producer<T> {
    fn fill(&mut self, items: &mut [Option<T>]) -> usize {
        let count = self.publish(items).expect("the consumer is there");
        self.wake();
        count
    }
}

impl<T: Send> Fill<T> for SharedProducer<T> {
    fn fill(&mut self, items: &mut [Option<T>]) -> usize {
        let count = self.publish(items).expect("the consumer is there");
        self.wake();
        count
    }
}

impl<T: Send> Drain<T> for Consumer<T> {
    fn drain(&mut self, places: &mut [Option<T>]) -> usize {
        self.take(places)
    }
}

/// A queue that is locked for each item.
struct Locked<T>(Arc<Mutex<VecDeque<T>>>);

impl<T> Clone for Locked<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Locked<T> {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(VecDeque::with_capacity(CAPACITY))))
    }

    fn with<R>(&self, work: impl FnOnce(&mut VecDeque<T>) -> R) -> R {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<T: Send> Fill<T> for Locked<T> {
    fn fill(&mut self, items: &mut [Option<T>]) -> usize {
        one_by_one(items, |item| {
            self.with(|queue| match queue.len() < CAPACITY {
                true => {
                    queue.push_back(item);
                    Ok(())
                }
                false => Err(item),
            })
        })
    }
}

impl<T: Send> Drain<T> for Locked<T> {
    fn drain(&mut self, places: &mut [Option<T>]) -> usize {
        each(places, || self.with(VecDeque::pop_front))
    }
}

/// A queue that is locked for each burst.
struct LockedBursts<T>(Locked<T>);

impl<T> Clone for LockedBursts<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Send> Fill<T> for LockedBursts<T> {
    fn fill(&mut self, items: &mut [Option<T>]) -> usize {
        self.0.with(|queue| {
            let count = items.len().min(CAPACITY - queue.len());
            queue.extend(items[..count].iter_mut().filter_map(Option::take));
            count
        })
    }
}

impl<T: Send> Drain<T> for LockedBursts<T> {
    fn drain(&mut self, places: &mut [Option<T>]) -> usize {
        self.0.with(|queue| each(places, || queue.pop_front()))
    }
}

impl<T: Send> Fill<T> for Arc<ArrayQueue<T>> {
    fn fill(&mut self, items: &mut [Option<T>]) -> usize {
        one_by_one(items, |item| self.push(item))
    }
}

impl<T: Send> Drain<T> for Arc<ArrayQueue<T>> {
    fn drain(&mut self, places: &mut [Option<T>]) -> usize {
        each(places, || self.pop())
    }
}

impl<T: Send> Fill<T> for rtrb::Producer<T> {
    fn fill(&mut self, items: &mut [Option<T>]) -> usize {
        // Asks for the number of free slots only if the cached number is too small.
        let chunk = match self.write_chunk_uninit(items.len()) {
            Ok(chunk) => chunk,
            Err(rtrb::chunks::ChunkError::TooFewSlots(count)) => {
                self.write_chunk_uninit(count).expect("so many were free")
            }
        };
        chunk.fill_from_iter(items.iter_mut().filter_map(Option::take))
    }
}

impl<T: Send> Drain<T> for rtrb::Consumer<T> {
    fn drain(&mut self, places: &mut [Option<T>]) -> usize {
        let chunk = match self.read_chunk(places.len()) {
            Ok(chunk) => chunk,
            Err(rtrb::chunks::ChunkError::TooFewSlots(count)) => {
                self.read_chunk(count).expect("so many were there")
            }
        };
        let count = chunk.len();
        for (place, item) in places.iter_mut().zip(chunk) {
            *place = Some(item);
        }
        count
    }
}

struct NullProducer {
    slots: Arc<[AtomicU64]>,
    next: usize,
}

impl Fill<NonZeroU64> for NullProducer {
    fn fill(&mut self, items: &mut [Option<NonZeroU64>]) -> usize {
        one_by_one(items, |item| {
            let slot = &self.slots[self.next];
            // Acquire: pairs with the Release in `NullConsumer::drain`.
            if slot.load(Ordering::Acquire) != 0 {
                return Err(item);
            }
            // Release: pairs with the Acquire in `NullConsumer::drain`.
            slot.store(item.get(), Ordering::Release);
            self.next = if self.next + 1 == self.slots.len() { 0 } else { self.next + 1 };
            Ok(())
        })
    }
}

/// Several producers, under a lock for each item, as in the kernel. The consumer does not take the
/// lock.
impl Fill<NonZeroU64> for Arc<Mutex<NullProducer>> {
    fn fill(&mut self, items: &mut [Option<NonZeroU64>]) -> usize {
        let mut count = 0;
        while count < items.len() {
            let mut producer = self.lock().unwrap_or_else(PoisonError::into_inner);
            if producer.fill(&mut items[count..=count]) == 0 {
                break;
            }
            count += 1;
        }
        count
    }
}

struct NullConsumer {
    slots: Arc<[AtomicU64]>,
    /// Next slot to take.
    head: usize,
    /// First slot that was taken and not cleared yet.
    tail: usize,
}

/// Slots cleared at a time: two cache lines.
const EMPTIED: usize = 16;

impl Drain<NonZeroU64> for NullConsumer {
    fn drain(&mut self, places: &mut [Option<NonZeroU64>]) -> usize {
        each(places, || {
            // Acquire: pairs with the Release in `NullProducer::fill`.
            let item = NonZeroU64::new(self.slots[self.head].load(Ordering::Acquire))?;
            self.head += 1;
            let is_end = self.head == self.slots.len();
            if is_end || self.head - self.tail >= EMPTIED {
                // From the last slot, because the producer waits for the first.
                for slot in self.slots[self.tail..self.head].iter().rev() {
                    // Release: pairs with the Acquire in `NullProducer::fill`.
                    slot.store(0, Ordering::Release);
                }
                self.head = if is_end { 0 } else { self.head };
                self.tail = self.head;
            }
            Some(item)
        })
    }
}

/// Moves items with `push` until it hands one back; returns how many.
fn one_by_one<T>(items: &mut [Option<T>], mut push: impl FnMut(T) -> Result<(), T>) -> usize {
    for (count, place) in items.iter_mut().enumerate() {
        let item = place.take().expect("all are there");
        if let Err(item) = push(item) {
            *place = Some(item);
            return count;
        }
    }
    items.len()
}

/// Fills places with `pop` until it returns none; returns how many.
fn each<T>(places: &mut [Option<T>], mut pop: impl FnMut() -> Option<T>) -> usize {
    for (count, place) in places.iter_mut().enumerate() {
        let Some(item) = pop() else { return count };
        *place = Some(item);
    }
    places.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every queue passes each item once, in order, and is full at its capacity.
    #[test]
    fn all_queues_keep_items_in_order() {
        for producers in [1, 2] {
            for kind in Kind::ALL.into_iter().filter(|kind| kind.can(producers, false)) {
                let mut ends = kind.of_words(producers).unwrap();
                let (mut sent, mut taken) = (0, 0);
                for round in 0..100 {
                    let fill = &mut ends.fills[round % producers];
                    let mut items: Vec<_> = (sent + 1..sent + 33).map(NonZeroU64::new).collect();
                    sent += fill.fill(&mut items) as u64;
                    let mut places = [None; 20];
                    let count = ends.drain.drain(&mut places);
                    for item in places.into_iter().take(count) {
                        taken += 1;
                        assert_eq!(item.map(NonZeroU64::get), Some(taken), "{kind:?}");
                    }
                }
                assert!(
                    sent - taken > CAPACITY as u64 - 32,
                    "{kind:?} was full at {}",
                    sent - taken
                );
                assert!(sent - taken <= CAPACITY as u64, "{kind:?}");
            }
        }
    }
}
