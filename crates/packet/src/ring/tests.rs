//! Rings against a plain model, with packets whose loans must return; and long runs with two and
//! three threads.

use super::*;
use crate::burst::{BURST_MAX, Burst};
use crate::packet::Packet;
use crate::pool::{Memory, MemoryConfig};
use crate::sync::counted::{Counts, count};
use crate::sync::{AtomicBool, Ordering};
use proptest::prelude::*;
extern crate std;
use std::collections::VecDeque;
use std::sync::mpsc;
use std::thread;
use std::vec::Vec;

/// Either kind of producer.
enum AnyProducer<T: Send> {
    Single(Producer<T>),
    Shared(SharedProducer<T>),
}

impl<T: Send> AnyProducer<T> {
    fn publish(&mut self, items: &mut [Option<T>]) -> Result<usize, Closed> {
        match self {
            AnyProducer::Single(producer) => producer.publish(items),
            AnyProducer::Shared(producer) => producer.publish(items),
        }
    }
}

impl AnyProducer<Packet> {
    fn enqueue(&mut self, burst: &mut Burst) -> Result<usize, Closed> {
        match self {
            AnyProducer::Single(producer) => producer.enqueue(burst),
            AnyProducer::Shared(producer) => producer.enqueue(burst),
        }
    }

    fn enqueue_or_drop(&mut self, burst: &mut Burst) -> usize {
        match self {
            AnyProducer::Single(producer) => producer.enqueue_or_drop(burst),
            AnyProducer::Shared(producer) => producer.enqueue_or_drop(burst),
        }
    }
}

/// Both kinds of rings.
fn both<T: Send>(capacity: usize) -> [(AnyProducer<T>, Consumer<T>); 2] {
    let (one, its) = single(capacity, Silent).expect("a ring");
    let (many, theirs) = shared(capacity, Silent).expect("a ring");
    [(AnyProducer::Single(one), its), (AnyProducer::Shared(many), theirs)]
}

fn memory() -> Memory {
    Memory::new(MemoryConfig { packets: 512, small_frames: 512, large_frames: 1 })
}

/// A packet whose payload is this number, in lent memory.
fn packet(memory: &mut Memory, number: u32) -> Packet {
    let mut frame = memory.small.take().expect("free");
    frame[..4].copy_from_slice(&number.to_ne_bytes());
    let mut packet = memory.packet().expect("free");
    packet.push_piece(frame.freeze(4)).expect("room");
    packet
}

fn number(packet: &Packet) -> u32 {
    let bytes = packet.pieces().next().expect("one").bytes().expect("private");
    u32::from_ne_bytes(bytes.try_into().expect("four"))
}

fn burst(memory: &mut Memory, numbers: std::ops::Range<u32>) -> Burst {
    let mut burst = Burst::new();
    for number in numbers {
        burst.push(packet(memory, number)).expect("room");
    }
    burst
}

fn numbers(burst: &mut Burst) -> Vec<u32> {
    core::iter::from_fn(|| burst.pop()).map(|packet| number(&packet)).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Enqueue(u32),
    EnqueueOrDrop(u32),
    Dequeue(usize),
    Peek,
    Resize(usize),
    Purge,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..=BURST_MAX as u32).prop_map(Step::Enqueue),
        3 => (0..=BURST_MAX as u32).prop_map(Step::EnqueueOrDrop),
        8 => (1..=BURST_MAX).prop_map(Step::Dequeue),
        2 => Just(Step::Peek),
        3 => (1..100usize).prop_map(Step::Resize),
        1 => Just(Step::Purge),
    ];
    prop::collection::vec(step, 1..80)
}

/// A plain model of a ring: a queue and a capacity. A resize takes effect at the next enqueue, once
/// the consumer has left the previous array: when it has looked past the last packet that was in
/// the ring at the previous resize.
struct Model {
    queue: VecDeque<u32>,
    capacity: usize,
    asked: Option<usize>,
    /// Packets taken.
    passed: u64,
    /// Number of packets taken at which the consumer's current array ends.
    end: Option<u64>,
}

impl Model {
    fn enqueue(&mut self, numbers: impl ExactSizeIterator<Item = u32>) -> usize {
        if self.end.is_none()
            && let Some(capacity) = self.asked.take()
        {
            self.capacity = capacity;
            self.end = Some(self.passed + self.queue.len() as u64);
        }
        let count = self.capacity.saturating_sub(self.queue.len()).min(numbers.len());
        self.queue.extend(numbers.take(count));
        count
    }

    /// Takes at most `wanted`, up to the end of an array.
    fn dequeue(&mut self, wanted: usize) -> Vec<u32> {
        if self.end == Some(self.passed) {
            self.end = None;
        }
        let until = self.end.map_or(usize::MAX, |end| (end - self.passed) as usize);
        let count = wanted.min(until).min(self.queue.len());
        self.passed += count as u64;
        self.queue.drain(..count).collect()
    }
}

/// Goal: every sequence of calls has the result that the model has, and all loans are returned at
/// the end, even those of packets that are in the ring when it ends.
fn agrees_with_the_model(capacity: usize, steps: &[Step], kind: usize) {
    let mut memory = memory();
    let [one, many] = both::<Packet>(capacity);
    let (mut producer, mut consumer) = if kind == 0 { one } else { many };
    let control = consumer.control();
    let mut model = Model { queue: VecDeque::new(), capacity, asked: None, passed: 0, end: None };
    let (mut next, mut dropped, mut purged) = (0, 0, 0);
    for step in steps {
        match *step {
            Step::Enqueue(count) => {
                let mut burst = burst(&mut memory, next..next + count);
                let moved = producer.enqueue(&mut burst).expect("open");
                assert_eq!(moved, model.enqueue(next..next + count), "{step:?}");
                // Packets without room stay in the burst, in order.
                let rest: Vec<u32> = (next + moved as u32..next + count).collect();
                assert_eq!(numbers(&mut burst), rest);
                next += count;
            }
            Step::EnqueueOrDrop(count) => {
                let mut burst = burst(&mut memory, next..next + count);
                let lost = producer.enqueue_or_drop(&mut burst);
                assert_eq!(count as usize - lost, model.enqueue(next..next + count), "{step:?}");
                assert!(burst.is_empty());
                dropped += lost as u64;
                next += count;
            }
            Step::Dequeue(wanted) => {
                let mut burst = Burst::limited(wanted);
                let count = consumer.dequeue(&mut burst);
                let taken = numbers(&mut burst);
                assert_eq!(taken, model.dequeue(wanted), "{step:?}");
                assert_eq!(count, taken.len());
            }
            Step::Peek => {
                let first = consumer.peek().map(number);
                // A look makes the consumer follow, as taking does.
                model.dequeue(0);
                assert_eq!(first, model.queue.front().copied());
                let len = consumer.peek_len(|_| VLAN_TAG_BYTES);
                assert_eq!(len, first.map(|_| 4 + VLAN_TAG_BYTES));
            }
            Step::Resize(capacity) => {
                control.resize(capacity).expect("memory");
                model.asked = Some(capacity);
            }
            Step::Purge => {
                assert_eq!(consumer.purge(), model.queue.len());
                purged += model.queue.len() as u64;
                while !model.dequeue(usize::MAX).is_empty() {}
                model.dequeue(0);
            }
        }
        assert_eq!(control.len(), model.queue.len());
    }
    let held = model.queue.len() as u64;
    drop(consumer);
    let counted = control.counters();
    assert_eq!((counted.dropped, counted.purged), (dropped, purged + held));
    assert_eq!((memory.packets.out_count(), memory.small.out_count()), (0, 0));
    let mut burst = burst(&mut memory, 0..1);
    assert_eq!(producer.enqueue(&mut burst), Err(Closed));
    assert_eq!(producer.enqueue_or_drop(&mut burst), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn rings_agree_with_a_model(capacity in 1..100usize, steps in steps(), kind in 0..2usize) {
        agrees_with_the_model(capacity, &steps, kind);
    }
}

/// Goal: every capacity is exact: one packet more is rejected, at every position of the slots.
#[test]
fn every_capacity_is_exact() {
    for capacity in (1..=17).chain([63, 64, 65, 500]) {
        for (mut producer, mut consumer) in both::<u32>(capacity) {
            let mut next = 0;
            for round in 0..3 * capacity {
                let mut items: Vec<Option<u32>> = (next..).take(capacity + 1).map(Some).collect();
                assert_eq!(producer.publish(&mut items), Ok(capacity), "{round}");
                assert_eq!(items[capacity], Some(next + capacity as u32));
                let mut places = std::vec![None; capacity];
                assert_eq!(consumer.take(&mut places), capacity);
                assert!(places.into_iter().eq((next..).take(capacity).map(Some)));
                // An odd step, so that positions begin at every slot.
                let mut one = [Some(0)];
                assert_eq!(producer.publish(&mut one), Ok(1));
                assert_eq!(consumer.pop(), Some(0));
                next += capacity as u32;
            }
        }
    }
}

/// Invalid input: capacities of zero and above the bound, for new rings and for resizes. Nothing
/// changes.
#[test]
fn impossible_capacities_are_refused() {
    for capacity in [0, CAPACITY_MAX + 1, usize::MAX] {
        let refused = Some(CapacityError::OutOfRange);
        assert_eq!(single::<u8>(capacity, Silent).err(), refused);
        assert_eq!(shared::<u8>(capacity, Silent).err(), refused);
        let (mut producer, mut consumer) = single(1, Silent).expect("a ring");
        assert_eq!(consumer.control().resize(capacity).err(), refused);
        assert_eq!(consumer.control().counters().capacity, 1);
        assert_eq!((producer.push(1), producer.push(2)), (Ok(()), Err(PushError::Full(2))));
        assert_eq!(consumer.pop(), Some(1));
    }
}

/// Invalid input: items so large that no address space can hold the slots.
#[test]
fn what_does_not_fit_in_memory_is_an_error() {
    let array = shared::Array::<[u8; 1 << 44]>::new(CAPACITY_MAX);
    assert_eq!(array.err(), Some(CapacityError::NoMemory));
}

/// Invalid input: a slice with a gap. Items behind the gap stay in place, in both kinds.
#[test]
fn items_behind_a_gap_stay() {
    for (mut producer, mut consumer) in both::<u32>(8) {
        let mut items = [Some(1), None, Some(2)];
        assert_eq!(producer.publish(&mut items), Ok(1));
        assert_eq!(items, [None, None, Some(2)]);
        assert_eq!(producer.publish(&mut items[..1]), Ok(0));
        assert_eq!((consumer.pop(), consumer.pop()), (Some(1), None));
    }
}

/// Goal: a ring shrunk below its length keeps all packets, and accepts none until there is room by
/// the new capacity.
#[test]
fn shrinking_below_what_is_held_keeps_it() {
    for (mut producer, mut consumer) in both::<u32>(50) {
        let mut items: Vec<_> = (0..50).map(Some).collect();
        assert_eq!(producer.publish(&mut items), Ok(50));
        consumer.control().resize(10).expect("memory");
        assert_eq!(producer.publish(&mut [Some(50)]), Ok(0));
        for taken in 0..40 {
            assert_eq!(consumer.pop(), Some(taken));
            assert_eq!(producer.publish(&mut [Some(50)]), Ok(0), "{taken}");
        }
        assert_eq!(consumer.pop(), Some(40));
        assert_eq!(producer.publish(&mut [Some(50), Some(51)]), Ok(1));
        assert!(core::iter::from_fn(|| consumer.pop()).eq(41..=50));
    }
}

/// Goal: positions that wrap work like others. Method: the ring begins just below the wrap, because
/// counting 32 bits of packets would take too long.
#[test]
fn positions_wrap() {
    for capacity in [1, 3, 8] {
        let (producer, mut consumer) = near_the_wrap(capacity);
        for next in 0..100 {
            let mut items: Vec<_> = (next..next + 10).map(Some).collect();
            assert_eq!(producer.publish(&mut items), Ok(capacity));
            assert_eq!(consumer.control().len(), capacity);
            assert!(
                core::iter::from_fn(|| consumer.pop()).take(20).eq(next..next + capacity as u32)
            );
        }
    }
}

fn near_the_wrap(capacity: usize) -> (SharedProducer<u32>, Consumer<u32>) {
    let (shared, array) = shared::Shared::new(capacity, Box::new(Silent), false).expect("memory");
    let start = u32::MAX - 100;
    let word = shared::Word::new(start, 0, u32::MAX >> 1);
    shared.tail.0.store(word.0, Ordering::Relaxed);
    shared.reserved.0.store(word.0, Ordering::Relaxed);
    shared.head.0.store(start, Ordering::Relaxed);
    let shared = Arc::new(shared);
    let drain = shared::Drain::starting_at(array, start);
    (SharedProducer::new(shared.clone()), Consumer::new(shared, drain))
}

/// Goal: places that a producer has reserved and not published differ from none, also where
/// positions wrap.
#[test]
fn reserved_places_are_not_published() {
    let (shared, array) = shared::Shared::new(4, Box::new(Silent), false).expect("memory");
    let shared = Arc::new(shared);
    let consumer = Consumer::<u32>::new(shared.clone(), shared::Drain::new(array));
    let set = |tail, reserved| {
        shared.tail.0.store(shared::Word::new(tail, 0, 0).0, Ordering::Relaxed);
        shared.reserved.0.store(shared::Word::new(reserved, 0, 0).0, Ordering::Relaxed);
    };
    for position in [0, u32::MAX] {
        set(position, position);
        assert!(consumer.is_published());
        set(position, position.wrapping_add(1));
        assert!(!consumer.is_published());
    }
    set(0, 0);
}

/// Goal: a packet that crosses between threads costs no read-modify-write and no fence of its own:
/// the budget of `docs/theory/network.md`. Method: bursts of all lengths cost as much as one
/// packet. The handles return together.
#[test]
fn read_modify_writes_belong_to_bursts() {
    for (kind, changes) in [(0, 0), (1, 2)] {
        let (mut producer, mut consumer) = both(BURST_MAX).into_iter().nth(kind).expect("a ring");
        let mut memory = memory();
        for length in 1..=BURST_MAX {
            let mut burst = Burst::new();
            for _ in 0..length {
                burst.push(memory.packet().expect("free")).expect("there is room");
            }
            let put = count(|| assert_eq!(producer.enqueue(&mut burst), Ok(length)));
            assert_eq!(put, Counts { changes, fences: 1 }, "{length} packets");
            let taken = count(|| {
                assert!(consumer.is_published() || kind == 0);
                assert_eq!(consumer.len(), length);
                assert_eq!(consumer.dequeue(&mut burst), length);
                assert!(consumer.is_empty());
            });
            assert_eq!(taken, Counts::default(), "{length} packets");
            let dropped = count(|| burst.clear());
            assert_eq!(dropped, Counts { changes: 1, fences: 0 }, "{length} packets");
        }
        let refused = count(|| assert_eq!(consumer.dequeue(&mut Burst::new()), 0));
        assert_eq!(refused, Counts::default());
    }
}

/// Goal: a polling budget is spent after work and not before.
#[test]
fn polls_are_bounded() {
    let mut poll = BusyPoll::new(3);
    assert!(!poll.again());
    poll.found();
    assert_eq!((0..9).filter(|_| poll.again()).count(), 3);
    let mut none = BusyPoll::new(0);
    none.found();
    assert!(!none.again());
}

/// A doorbell that sends on a channel.
struct Channel(mpsc::Sender<()>);

impl Doorbell for Channel {
    fn ring(&self) {
        self.0.send(()).expect("the consumer is there");
    }
}

/// Goal: a sleeping consumer is woken once for several packets, and once for the end.
#[test]
fn the_doorbell_rings_once_for_each_sleep() {
    let (bell, rings) = mpsc::channel();
    let (mut producer, mut consumer) = single(8, Channel(bell)).expect("a ring");
    producer.push(1).expect("room");
    assert!(!consumer.needs_wakeup(), "there is a packet");
    assert_eq!(consumer.pop(), Some(1));
    producer.push(2).expect("room");
    assert!(rings.try_recv().is_err(), "it did not sleep");
    assert_eq!(consumer.pop(), Some(2));
    assert!(consumer.needs_wakeup());
    producer.push(3).expect("room");
    producer.push(4).expect("room");
    assert_eq!(rings.try_iter().count(), 1);
    assert_eq!((consumer.pop(), consumer.pop()), (Some(3), Some(4)));
    assert!(consumer.needs_wakeup());
    drop(producer);
    assert_eq!(rings.try_iter().count(), 1);
    assert!(!consumer.needs_wakeup() && consumer.is_closed());
}

/// A doorbell whose barriers succeed while this is true.
struct Fickle(Arc<AtomicBool>);

impl Doorbell for Fickle {
    fn ring(&self) {}

    fn barrier(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Goal: if the system refuses a barrier that it granted before, the consumer does not sleep until
/// the producer fences: from its next call on. Method: a consumer that may sleep says so.
#[test]
fn after_a_refused_barrier_the_consumer_waits_for_the_producer() {
    let grants = Arc::new(AtomicBool::new(true));
    let (mut producer, mut consumer) = single(8, Fickle(grants.clone())).expect("a ring");
    assert!(consumer.needs_wakeup());
    grants.store(false, Ordering::Relaxed);
    assert!(!consumer.needs_wakeup() && !consumer.needs_wakeup());
    producer.push(1).expect("room");
    assert_eq!(consumer.pop(), Some(1));
    assert!(consumer.needs_wakeup(), "the producer has seen it");
}

/// Goal: a barrier that is granted again stands for the producer's call.
#[test]
fn a_barrier_that_fails_once_is_made_up_for() {
    let grants = Arc::new(AtomicBool::new(true));
    let (_producer, mut consumer) = single::<u32>(8, Fickle(grants.clone())).expect("a ring");
    grants.store(false, Ordering::Relaxed);
    assert!(!consumer.needs_wakeup());
    grants.store(true, Ordering::Relaxed);
    assert!(consumer.needs_wakeup());
    grants.store(false, Ordering::Relaxed);
    assert!(consumer.needs_wakeup(), "the producer fences now");
}

/// Goal: a producer that waits for room is reported once, when there is room or not, and does not
/// wait if there is room or no consumer.
#[test]
fn a_producer_waits_for_room() {
    let (mut producer, mut consumer) = single(2, Silent).expect("a ring");
    assert!(!producer.needs_room() && !consumer.is_room_wanted());
    assert_eq!(producer.publish(&mut [Some(1), Some(2)]), Ok(2));
    assert!(producer.needs_room());
    assert_eq!(consumer.pop(), Some(1));
    assert!(consumer.is_room_wanted() && !consumer.is_room_wanted());
    producer.push(3).expect("room");
    consumer.control().resize(3).expect("memory");
    assert!(!producer.needs_room(), "the ring has grown");
    producer.push(4).expect("room");
    drop(consumer);
    assert!(!producer.needs_room());
}

/// Goal: a full burst ends a wait, even if the ring is empty.
#[test]
fn a_full_burst_does_not_wait() {
    let mut memory = memory();
    let (_producer, mut consumer) = single(8, Silent).expect("a ring");
    let mut full = Burst::limited(1);
    full.push(packet(&mut memory, 0)).expect("room");
    let mut poll = BusyPoll::new(0);
    let slept = || panic!("nothing to wait for");
    assert_eq!(consumer.dequeue_or_sleep(&mut full, &mut poll, slept), Ok(0));
}

/// Items of each producer in a long run. Threads end when all items have arrived.
const RUN_ITEMS: u64 = 100_000;

/// Goal: in a long run with real threads no item is lost, duplicated or reordered, while the ring
/// is resized repeatedly and the consumer sleeps in between. Method: each producer numbers its
/// items; another thread only resizes, a fixed number of times.
fn long_run(
    producers: Vec<AnyProducer<u64>>,
    mut consumer: Consumer<u64>,
    rings: &mpsc::Receiver<()>,
) {
    let control = consumer.control();
    let count = producers.len();
    let mut next = std::vec![0; count];
    thread::scope(|scope| {
        for (index, mut producer) in producers.into_iter().enumerate() {
            scope.spawn(move || produce(&mut producer, (index as u64) << 32));
        }
        scope.spawn(move || {
            for turn in 0..1000_usize {
                control.resize(1 + turn * 37 % 200).expect("memory");
                thread::yield_now();
            }
        });
        let (mut places, mut poll) = ([None; 32], BusyPoll::new(50));
        while !consumer.is_closed() {
            let taken = consumer.take(&mut places);
            for item in places.iter_mut().take(taken).filter_map(Option::take) {
                let producer = (item >> 32) as usize;
                assert_eq!(item & u64::from(u32::MAX), next[producer]);
                next[producer] += 1;
            }
            if taken > 0 {
                poll.found();
            } else if !poll.again() && consumer.needs_wakeup() {
                rings.recv().expect("a producer rings");
            }
        }
    });
    assert_eq!(next, std::vec![RUN_ITEMS; count]);
}

fn produce(producer: &mut AnyProducer<u64>, base: u64) {
    let mut sent = 0;
    while sent < RUN_ITEMS {
        let count = (1 + sent % 32).min(RUN_ITEMS - sent);
        let mut items: Vec<_> = (sent..sent + count).map(|item| Some(base + item)).collect();
        let mut from = 0;
        while from < items.len() {
            let moved = producer.publish(&mut items[from..]).expect("the consumer is there");
            match producer {
                AnyProducer::Single(producer) => producer.wake(),
                AnyProducer::Shared(producer) => producer.wake(),
            }
            from += moved;
            if moved == 0 {
                thread::yield_now();
            }
        }
        sent += count;
    }
}

#[test]
fn a_long_run_of_one_producer() {
    let (bell, rings) = mpsc::channel();
    let (producer, consumer) = single(7, Channel(bell)).expect("a ring");
    long_run(std::vec![AnyProducer::Single(producer)], consumer, &rings);
}

#[test]
fn a_long_run_of_three_producers() {
    let (bell, rings) = mpsc::channel();
    let (producer, consumer) = shared(7, Channel(bell)).expect("a ring");
    let producers = [(); 3].map(|()| AnyProducer::Shared(producer.clone()));
    drop(producer);
    long_run(producers.into(), consumer, &rings);
}
