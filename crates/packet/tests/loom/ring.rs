//! Rings: order, ownership, resizing, sleeping and ending, with two or three threads. Slots are
//! cells that loom checks: an access that nothing orders fails the model.

#[path = "ring/barrier.rs"]
mod barrier;
#[path = "ring/published.rs"]
mod published;
#[path = "ring/room.rs"]
mod room;

use loom::sync::{Arc, Notify};
use loom::thread;
use std::sync::atomic::{AtomicUsize, Ordering};
use towpath_packet::ring::{
    self, Consumer, Counters, Doorbell, Producer, PushError, SharedProducer, Silent,
};

/// Explores all interleavings with up to `preemptions` preemptions: with three threads and more,
/// each further preemption takes several times as long.
pub(crate) fn bounded(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

fn single(capacity: usize) -> (Producer<u32>, Consumer<u32>) {
    ring::single(capacity, Silent).unwrap()
}

/// Tries to take an item `tries` times.
fn pop_some(consumer: &mut Consumer<u32>, tries: usize) -> Vec<u32> {
    (0..tries).filter_map(|_| consumer.pop()).collect()
}

/// Goal: packets arrive once and in order, and a slot is filled again only after it was emptied.
#[test]
fn one_producer_and_the_consumer() {
    loom::model(|| {
        let (mut producer, mut consumer) = single(1);
        let filler = thread::spawn(move || {
            let pushed = [1, 2, 3].map(|item| producer.push(item).is_ok().then_some(item));
            (producer, pushed)
        });
        let mut taken = pop_some(&mut consumer, 2);
        let (_producer, pushed) = filler.join().unwrap();
        taken.extend(pop_some(&mut consumer, 3));
        assert_eq!(taken, pushed.into_iter().flatten().collect::<Vec<_>>());
        assert_eq!(pushed[0], Some(1));
    });
}

/// Goal: a peeked item stays until it is taken, while its neighbour is filled.
#[test]
fn peeking_beside_a_producer() {
    loom::model(|| {
        let (mut producer, mut consumer) = single(2);
        let filler = thread::spawn(move || {
            let _ = [1, 2, 3].map(|item| producer.push(item));
        });
        if let Some(&seen) = consumer.peek() {
            assert_eq!((seen, consumer.pop()), (1, Some(1)));
        }
        filler.join().unwrap();
    });
}

/// Goal: a resize requested by a third thread at any time neither loses nor reorders items, whether
/// the ring grows or shrinks below its length.
#[test]
fn resizing_while_both_run() {
    for (from, to) in [(2, 1), (1, 2)] {
        bounded(3, move || {
            let (mut producer, mut consumer) = single(from);
            let control = consumer.control();
            let asker = thread::spawn(move || control.resize(to).unwrap());
            let filler = thread::spawn(move || {
                let pushed = [1, 2, 3].map(|item| producer.push(item).is_ok().then_some(item));
                (producer, pushed)
            });
            let mut taken = pop_some(&mut consumer, 2);
            asker.join().unwrap();
            let (mut producer, pushed) = filler.join().unwrap();
            taken.extend(pop_some(&mut consumer, 4));
            assert_eq!(taken, pushed.into_iter().flatten().collect::<Vec<_>>());
            // The new capacity is in effect.
            let room = (0..3).filter(|item| producer.push(*item).is_ok()).count();
            assert_eq!(room, to);
            assert_eq!(pop_some(&mut consumer, 4).len(), to);
        });
    }
}

/// Goal: a second resize waits until the consumer has followed the first; none is lost.
#[test]
fn resizing_again_before_the_consumer_follows() {
    bounded(3, || {
        let (mut producer, mut consumer) = single(1);
        let control = consumer.control();
        producer.push(1).unwrap();
        control.resize(2).unwrap();
        let filler = thread::spawn(move || {
            let mut pushed = vec![1];
            pushed.extend((2..4).filter(|item| producer.push(*item).is_ok()));
            (producer, pushed)
        });
        control.resize(3).unwrap();
        let mut taken = pop_some(&mut consumer, 2);
        let (mut producer, pushed) = filler.join().unwrap();
        taken.extend(pop_some(&mut consumer, 4));
        assert_eq!(taken, pushed);
        // The consumer follows when it looks at the ring; the next call of the producer switches
        // after that.
        for item in 0..2 {
            let _ = producer.push(item);
            assert_eq!(consumer.pop(), Some(item));
        }
        assert_eq!((0..4).filter(|item| producer.push(*item).is_ok()).count(), 3);
    });
}

fn shared(capacity: usize) -> (SharedProducer<u32>, Consumer<u32>) {
    ring::shared(capacity, Silent).unwrap()
}

/// Two threads push two items each, while the ring is emptied. Runs `before` first. At least
/// `least` items arrive.
fn two_producers(capacity: usize, least: usize, before: impl Fn(&Consumer<u32>)) {
    let (producer, mut consumer) = shared(capacity);
    before(&consumer);
    let fillers = [10, 20].map(|base| {
        let producer = producer.clone();
        thread::spawn(move || {
            let mut items = [Some(base), Some(base + 1)];
            producer.publish(&mut items).unwrap();
            items
        })
    });
    let mut taken = pop_some(&mut consumer, 2);
    let left = fillers.map(|filler| filler.join().unwrap());
    taken.extend(pop_some(&mut consumer, 5));
    for (base, left) in [10, 20].into_iter().zip(left) {
        let own: Vec<u32> = taken.iter().copied().filter(|item| item / 10 == base / 10).collect();
        let pushed: Vec<u32> =
            (base..base + 2).filter(|item| !left.contains(&Some(*item))).collect();
        assert_eq!(own, pushed, "of {taken:?}");
    }
    assert!(taken.len() >= least, "{taken:?}");
    assert_eq!(consumer.pop(), None);
}

/// Goal: with two producers at once no item is lost, each producer's items stay in order, no slot
/// is read before it is filled, and none is filled before it is empty.
#[test]
fn two_producers_and_the_consumer() {
    for capacity in [1, 2, 4] {
        bounded(2, move || two_producers(capacity, capacity, |_| ()));
    }
}

/// Goal: if two producers find the same resize request, one of them carries it out.
#[test]
fn two_producers_resize() {
    for (from, to) in [(1, 4), (4, 1)] {
        bounded(2, move || {
            two_producers(from, 1, |consumer| consumer.control().resize(to).unwrap());
        });
    }
}

/// Goal: a resize requested while two producers carry out an earlier one is not lost.
#[test]
fn two_producers_resize_twice() {
    bounded(2, || {
        let (producer, mut consumer) = shared(1);
        let control = consumer.control();
        control.resize(2).unwrap();
        let other = producer.clone();
        let filler = thread::spawn(move || other.push(1).unwrap());
        let asker = thread::spawn(move || control.resize(3).unwrap());
        let _ = producer.push(2);
        filler.join().unwrap();
        asker.join().unwrap();
        while consumer.pop().is_some() {}
        for item in 0..2 {
            let _ = producer.push(item);
            assert_eq!(consumer.pop(), Some(item));
        }
        assert_eq!((0..4).filter(|item| producer.push(*item).is_ok()).count(), 3);
        assert_eq!(pop_some(&mut consumer, 4), [0, 1, 2]);
    });
}

/// A doorbell that a thread of the model can wait for.
#[derive(Clone)]
pub(crate) struct Bell(pub(crate) Arc<Notify>);

unsafe impl Send for Bell {}
unsafe impl Sync for Bell {}

impl Doorbell for Bell {
    fn ring(&self) {
        self.0.notify();
    }
}

/// Takes until `wanted` items have arrived or the producers are gone. Sleeps while there are none.
/// A lost wake-up leaves this thread waiting forever, which loom reports.
fn consume(consumer: &mut Consumer<u32>, wanted: usize, bell: &Bell) -> Vec<u32> {
    let mut taken = Vec::new();
    while taken.len() < wanted {
        match consumer.pop() {
            Some(item) => taken.push(item),
            None if consumer.is_closed() => break,
            None if consumer.needs_wakeup() => bell.0.wait(),
            // It polls until the producer has seen that a barrier failed.
            None => thread::yield_now(),
        }
    }
    taken
}

/// Goal: no wake-up is lost. The producer is not dropped, because that would wake the consumer,
/// too.
#[test]
fn a_sleeping_consumer_is_woken() {
    bounded(3, || {
        let bell = Bell(Arc::new(Notify::new()));
        let (mut producer, mut consumer) = ring::single(2, bell.clone()).unwrap();
        let filler = thread::spawn(move || {
            producer.push(1).unwrap();
            producer.push(2).unwrap();
            producer
        });
        assert_eq!(consume(&mut consumer, 2, &bell), [1, 2]);
        filler.join().unwrap();
    });
}

/// Goal: no wake-up is lost with two producers, either of which may publish for both.
#[test]
fn two_producers_wake_a_sleeping_consumer() {
    bounded(1, || {
        let bell = Bell(Arc::new(Notify::new()));
        let (producer, mut consumer) = ring::shared(2, bell.clone()).unwrap();
        let fillers = [1, 2].map(|item| {
            let producer = producer.clone();
            thread::spawn(move || producer.push(item).unwrap())
        });
        let mut taken = consume(&mut consumer, 2, &bell);
        taken.sort_unstable();
        assert_eq!(taken, [1, 2]);
        for filler in fillers {
            filler.join().unwrap();
        }
    });
}

/// Goal: a sleeping consumer is woken for the end, after the last packet.
#[test]
fn a_sleeping_consumer_wakes_at_the_end() {
    bounded(2, || {
        let bell = Bell(Arc::new(Notify::new()));
        let (mut producer, mut consumer) = ring::single(2, bell.clone()).unwrap();
        let filler = thread::spawn(move || producer.push(1).unwrap());
        assert_eq!(consume(&mut consumer, 2, &bell), [1]);
        filler.join().unwrap();
    });
}

/// An item that counts its drop.
struct Counted(std::sync::Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Goal: an item published while the consumer ends is dropped by one of the two at once, not when
/// the producer is dropped. Each packet is counted.
#[test]
fn nothing_stays_behind_a_consumer_that_goes() {
    loom::model(|| {
        let ended = std::sync::Arc::new(AtomicUsize::new(0));
        let (mut producer, consumer) = ring::single(2, Silent).unwrap();
        let control = producer.control();
        let items = [(); 2].map(|()| Counted(ended.clone()));
        let filler = thread::spawn(move || {
            let refused = items.into_iter().filter_map(|item| producer.push(item).err()).count();
            (producer, refused)
        });
        drop(consumer);
        let (mut producer, refused) = filler.join().unwrap();
        assert_eq!(ended.load(Ordering::SeqCst), 2);
        assert_eq!(
            control.counters(),
            Counters { dropped: 0, purged: 2 - refused as u64, capacity: 2 }
        );
        assert!(matches!(producer.push(Counted(ended.clone())), Err(PushError::Closed(_))));
    });
}

/// Goal: an item published while the consumer ends is dropped at once with two producers, both of
/// which may have to purge.
#[test]
fn nothing_stays_behind_when_two_producers_go_on() {
    bounded(2, || {
        let ended = std::sync::Arc::new(AtomicUsize::new(0));
        let (producer, consumer) = ring::shared(2, Silent).unwrap();
        let fillers = [(); 2].map(|()| {
            let (producer, item) = (producer.clone(), Counted(ended.clone()));
            thread::spawn(move || drop(producer.push(item)))
        });
        drop(consumer);
        for filler in fillers {
            filler.join().unwrap();
        }
        assert_eq!(ended.load(Ordering::SeqCst), 2);
    });
}
