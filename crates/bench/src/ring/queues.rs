//! The queues: towpath's ring and others, behind the same calls.
//!
//! `spin_queue` is what a kernel without a ring has: a list under a lock that spins, taken for each
//! packet. The lock is a test-and-test-and-set with a pause. Unlike a kernel's, its holder can be
//! preempted. The consumer's sleep is a flag under the same lock, as is that of `locked_queue`,
//! whose lock is the library's. The other queues know no sleep. Between ports, a flag beside them
//! and a full fence on both sides make it.
//!
//! `null_slots` is a ring like the kernel's `ptr_ring`. A slot that is not empty is occupied. The
//! sides do not share their indices, and the consumer clears slots one or two cache lines at a
//! time, from the last to the first. Several producers share it under a lock. It passes only words,
//! because slots of pointers need unsafe code.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::bail;
use crossbeam_queue::ArrayQueue;
use towpath_io::doorbell::EventDoorbell;
use towpath_packet::Packet;
use towpath_packet::ring::{self, CapacityError, Consumer, Doorbell, Producer, SharedProducer};
use towpath_packet::sync::{AtomicBool, AtomicU64, Ordering, fence};

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

    /// Sleeps until a producer moves an item into the queue, unless there is one. Does nothing if
    /// the queue knows no sleep.
    fn sleep(&mut self) {}
}

/// The producers' ends and the consumer's.
pub(super) struct Ends<T> {
    pub(super) fills: Vec<Box<dyn Fill<T>>>,
    pub(super) drain: Box<dyn Drain<T>>,
}

/// A kind of queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// With a doorbell that makes the barrier for the producer, as captures use it.
    Ring,
    /// With a doorbell that makes none, as workers and links between hosts use it. Ports whose two
    /// sides are one thread pay the same fence.
    RingFenced,
    /// A lock that spins, for each item.
    Spin,
    /// A lock for each item.
    Locked,
    /// A lock for each burst.
    LockedBursts,
    ArrayQueue,
    Rtrb,
    NullSlots,
}

impl Kind {
    pub(super) const ALL: [Self; 8] = [
        Self::Ring,
        Self::RingFenced,
        Self::Spin,
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
            Self::Spin => "spin_queue",
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

    /// Opens a queue of packets, whose consumer can sleep.
    pub(super) fn of_packets(self, producers: usize) -> anyhow::Result<Ends<Packet>> {
        let ends = self.open(producers)?;
        match self {
            Self::ArrayQueue | Self::Rtrb => Alarm::between(ends),
            _ => Ok(ends),
        }
    }

    /// Opens a queue of items of any type.
    fn open<T: Send + 'static>(self, producers: usize) -> anyhow::Result<Ends<T>> {
        let copies = |fill: &dyn Fn() -> Box<dyn Fill<T>>| (0..producers).map(|_| fill()).collect();
        Ok(match self {
            Self::Ring => ring_of(producers, EventDoorbell::new()?)?,
            Self::RingFenced => ring_of(producers, EventDoorbell::fenced()?)?,
            Self::Spin => {
                let queue = Locked::<T, spin::Mutex<_>>::new()?;
                let fills = copies(&|| Box::new(queue.clone()));
                Ends { fills, drain: Box::new(queue) }
            }
            Self::Locked => {
                let queue = Locked::<T, Mutex<_>>::new()?;
                let fills = copies(&|| Box::new(queue.clone()));
                Ends { fills, drain: Box::new(queue) }
            }
            Self::LockedBursts => {
                let queue = LockedBursts(Locked::new()?);
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
    bell: EventDoorbell,
) -> Result<Ends<T>, CapacityError> {
    if producers == 1 {
        let (producer, consumer) = ring::single(CAPACITY, bell.clone())?;
        let drain = Box::new(RingEnd { consumer, bell });
        return Ok(Ends { fills: vec![Box::new(producer)], drain });
    }
    let (producer, consumer) = ring::shared(CAPACITY, bell.clone())?;
    let fills = (0..producers).map(|_| Box::new(producer.clone()) as _).collect();
    Ok(Ends { fills, drain: Box::new(RingEnd { consumer, bell }) })
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

/// The consumer of a ring, and the bell that it waits for.
struct RingEnd<T: Send> {
    consumer: Consumer<T>,
    bell: EventDoorbell,
}

impl<T: Send> Drain<T> for RingEnd<T> {
    fn drain(&mut self, places: &mut [Option<T>]) -> usize {
        self.consumer.take(places)
    }

    fn sleep(&mut self) {
        if self.consumer.needs_wakeup() {
            self.bell.wait();
        }
    }
}

/// A lock.
trait Lock<T>: Send + Sync {
    fn new(content: T) -> Self;

    fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R;
}

impl<T: Send> Lock<T> for Mutex<T> {
    fn new(content: T) -> Self {
        Self::new(content)
    }

    fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        work(&mut self.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<T: Send> Lock<T> for spin::Mutex<T> {
    fn new(content: T) -> Self {
        Self::new(content)
    }

    fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        work(&mut self.lock())
    }
}

/// What a lock guards.
struct Guarded<T> {
    items: VecDeque<T>,
    is_asleep: bool,
}

/// A queue that is locked for each item.
struct Locked<T, L> {
    lock: Arc<L>,
    bell: EventDoorbell,
    item: PhantomData<fn() -> T>,
}

impl<T, L> Clone for Locked<T, L> {
    fn clone(&self) -> Self {
        Self { lock: self.lock.clone(), bell: self.bell.clone(), item: PhantomData }
    }
}

impl<T: Send, L: Lock<Guarded<T>>> Locked<T, L> {
    fn new() -> anyhow::Result<Self> {
        let guarded = Guarded { items: VecDeque::with_capacity(CAPACITY), is_asleep: false };
        let (lock, bell) = (Arc::new(L::new(guarded)), EventDoorbell::fenced()?);
        Ok(Self { lock, bell, item: PhantomData })
    }

    /// Runs `work` on the items under the lock. Wakes the consumer if it slept.
    fn change<R>(&self, work: impl FnOnce(&mut VecDeque<T>) -> R) -> R {
        let (result, was_asleep) = self.lock.with(|guarded| {
            let result = work(&mut guarded.items);
            let is_work = !guarded.items.is_empty();
            (result, is_work && std::mem::take(&mut guarded.is_asleep))
        });
        if was_asleep {
            self.bell.ring();
        }
        result
    }

    fn pop(&self) -> Option<T> {
        self.lock.with(|guarded| guarded.items.pop_front())
    }

    fn wait(&self) {
        let may_sleep = self.lock.with(|guarded| {
            guarded.is_asleep = guarded.items.is_empty();
            guarded.is_asleep
        });
        if may_sleep {
            self.bell.wait();
        }
    }
}

impl<T: Send, L: Lock<Guarded<T>>> Fill<T> for Locked<T, L> {
    fn fill(&mut self, items: &mut [Option<T>]) -> usize {
        one_by_one(items, |item| {
            self.change(|queue| match queue.len() < CAPACITY {
                true => {
                    queue.push_back(item);
                    Ok(())
                }
                false => Err(item),
            })
        })
    }
}

impl<T: Send, L: Lock<Guarded<T>>> Drain<T> for Locked<T, L> {
    fn drain(&mut self, places: &mut [Option<T>]) -> usize {
        each(places, || self.pop())
    }

    fn sleep(&mut self) {
        self.wait();
    }
}

/// A queue that is locked for each burst.
struct LockedBursts<T>(Locked<T, Mutex<Guarded<T>>>);

impl<T> Clone for LockedBursts<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Send> Fill<T> for LockedBursts<T> {
    fn fill(&mut self, items: &mut [Option<T>]) -> usize {
        self.0.change(|queue| {
            let count = items.len().min(CAPACITY - queue.len());
            queue.extend(items[..count].iter_mut().filter_map(Option::take));
            count
        })
    }
}

impl<T: Send> Drain<T> for LockedBursts<T> {
    fn drain(&mut self, places: &mut [Option<T>]) -> usize {
        self.0.lock.with(|guarded| each(places, || guarded.items.pop_front()))
    }

    fn sleep(&mut self) {
        self.0.wait();
    }
}

/// Lets the consumer of a queue sleep that knows no sleep.
struct Alarm {
    is_asleep: AtomicBool,
    bell: EventDoorbell,
}

/// An end of a queue with an alarm, and an item that the consumer found before it slept.
struct Alarmed<E, T> {
    end: E,
    alarm: Arc<Alarm>,
    found: Option<T>,
}

impl Alarm {
    fn between<T: Send + 'static>(ends: Ends<T>) -> anyhow::Result<Ends<T>> {
        let alarm = Alarm { is_asleep: AtomicBool::new(false), bell: EventDoorbell::fenced()? };
        let alarm = Arc::new(alarm);
        let with = |end| Box::new(Alarmed { end, alarm: alarm.clone(), found: None::<T> }) as _;
        let fills = ends.fills.into_iter().map(with).collect();
        Ok(Ends { fills, drain: Box::new(Alarmed { end: ends.drain, alarm, found: None }) })
    }
}

impl<T: Send> Fill<T> for Alarmed<Box<dyn Fill<T>>, T> {
    fn fill(&mut self, items: &mut [Option<T>]) -> usize {
        let count = self.end.fill(items);
        // Pairs with the fence in `sleep`.
        fence(Ordering::SeqCst);
        // Relaxed: the fence orders it.
        if self.alarm.is_asleep.load(Ordering::Relaxed)
            && self.alarm.is_asleep.swap(false, Ordering::Relaxed)
        {
            self.alarm.bell.ring();
        }
        count
    }
}

impl<T: Send> Drain<T> for Alarmed<Box<dyn Drain<T>>, T> {
    fn drain(&mut self, places: &mut [Option<T>]) -> usize {
        let (mut from, end) = (0, &mut self.end);
        if let Some(found) = self.found.take() {
            (places[0], from) = (Some(found), 1);
        }
        from + end.drain(&mut places[from..])
    }

    fn sleep(&mut self) {
        // Relaxed: the fence orders it.
        self.alarm.is_asleep.store(true, Ordering::Relaxed);
        // Pairs with the fence in `fill`.
        fence(Ordering::SeqCst);
        let mut place = [None];
        if self.end.drain(&mut place) == 0 {
            self.alarm.bell.wait();
        }
        // Relaxed: ringing once more does no harm.
        self.alarm.is_asleep.store(false, Ordering::Relaxed);
        [self.found] = place;
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
