//! Sleeping with a barrier of all threads in place of the producer's fence, as `membarrier` makes
//! it; and what happens when the system refuses that barrier.
//!
//! The producer's thread stops where the barrier may take effect: before it publishes, between
//! publishing and reading the flags (in `light_fence`), and after that. See
//! [`all_threads`](towpath_packet::sync::all_threads).

use super::{Bell, Counted, bounded, consume};
use loom::sync::{Arc, Notify};
use loom::thread;
use std::sync::atomic::{AtomicUsize, Ordering};
use towpath_packet::ring::{self, Consumer, Doorbell, Producer};
use towpath_packet::sync::all_threads;

/// A doorbell that makes barriers.
#[derive(Clone)]
struct Heavy {
    bell: Bell,
    /// Barriers that are made. Later ones are refused.
    granted: usize,
    /// Barriers asked for.
    asked: std::sync::Arc<AtomicUsize>,
    /// Does nothing instead of making barriers.
    is_fake: bool,
}

impl Heavy {
    fn new(granted: usize) -> Self {
        let bell = Bell(Arc::new(Notify::new()));
        Self { bell, granted, asked: std::sync::Arc::default(), is_fake: false }
    }
}

impl Doorbell for Heavy {
    fn ring(&self) {
        self.bell.ring();
    }

    fn barrier(&self) -> bool {
        let is_granted = self.asked.fetch_add(1, Ordering::Relaxed) < self.granted;
        if is_granted && !self.is_fake {
            all_threads::make();
        }
        is_granted
    }
}

/// A producer pushes `items`, and the consumer takes as many, sleeping while there are none.
fn push_and_sleep(heavy: &Heavy, items: u32) {
    let (mut producer, mut consumer) = ring::single(2, heavy.clone()).unwrap();
    all_threads::enter();
    let filler = thread::spawn(move || {
        for item in 0..items {
            all_threads::pass();
            producer.push(item).unwrap();
        }
        all_threads::leave();
        producer
    });
    let taken = consume(&mut consumer, items as usize, &heavy.bell);
    assert!(taken.into_iter().eq(0..items));
    // The end would wake the consumer, too.
    filler.join().unwrap();
}

/// Goal: no wake-up is lost if the consumer makes the barrier and the producer does not fence.
#[test]
fn a_barrier_stands_for_the_producers_fence() {
    bounded(3, || push_and_sleep(&Heavy::new(usize::MAX), 2));
}

/// Goal: the model finds the wake-up that is lost without the barrier.
#[test]
#[should_panic(expected = "deadlock")]
fn without_a_barrier_a_wake_up_is_lost() {
    bounded(3, || {
        let fake = Heavy { is_fake: true, ..Heavy::new(usize::MAX) };
        push_and_sleep(&fake, 1);
    });
}

/// Goal: no wake-up is lost if the system refuses the barrier from the first, second or third sleep
/// on. The first barrier is the one that the ring begins with.
#[test]
fn a_refused_barrier_loses_no_wake_up() {
    for granted in 1..=3 {
        bounded(2, move || push_and_sleep(&Heavy::new(granted), 2));
    }
}

/// Goal: a consumer that ends without the barrier leaves nothing behind once the producer has
/// ended, too.
#[test]
fn nothing_stays_behind_without_the_barrier() {
    bounded(2, || {
        let ended = std::sync::Arc::new(AtomicUsize::new(0));
        let (mut producer, consumer): (Producer<Counted>, Consumer<Counted>) =
            ring::single(2, Heavy::new(1)).unwrap();
        let items = [(); 2].map(|()| Counted(ended.clone()));
        all_threads::enter();
        let filler = thread::spawn(move || {
            items.into_iter().for_each(|item| drop(producer.push(item)));
            drop(producer);
            all_threads::leave();
        });
        drop(consumer);
        filler.join().unwrap();
        assert_eq!(ended.load(Ordering::SeqCst), 2);
    });
}
