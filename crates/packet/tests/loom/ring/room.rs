//! Waiting for room, and doorbells of threads that say themselves whether they sleep.

use super::{Bell, bounded};
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Arc, Notify};
use loom::thread;
use towpath_packet::ring::{self, Consumer, Doorbell, Producer};

/// A doorbell that does nothing while its thread is awake, as `towpath`'s worker has.
#[derive(Clone)]
struct Drowsy {
    bell: Bell,
    is_asleep: Arc<AtomicBool>,
}

unsafe impl Send for Drowsy {}
unsafe impl Sync for Drowsy {}

impl Drowsy {
    fn new() -> Self {
        let (bell, is_asleep) = (Bell(Arc::new(Notify::new())), Arc::new(AtomicBool::new(false)));
        Self { bell, is_asleep }
    }

    /// Sleeps unless `is_awake` finds work.
    fn sleep_unless(&self, is_awake: impl FnOnce() -> bool) {
        // Relaxed: the ring orders it.
        self.is_asleep.store(true, Ordering::Relaxed);
        if !is_awake() {
            self.bell.0.wait();
        }
        self.is_asleep.store(false, Ordering::Relaxed);
    }
}

impl Doorbell for Drowsy {
    fn ring(&self) {
        if self.is_asleep.load(Ordering::Relaxed) {
            self.bell.0.notify();
        }
    }
}

/// Pushes items, and sleeps while the ring is full.
fn push(producer: &mut Producer<u32>, items: std::ops::Range<u32>, bell: &Drowsy) {
    for item in items {
        while producer.push(item).is_err() {
            bell.sleep_unless(|| !producer.needs_room());
        }
    }
}

/// Takes items, sleeps while there are none, and wakes a producer that waits for room.
fn take(consumer: &mut Consumer<u32>, items: std::ops::Range<u32>, bell: &Drowsy, peer: &Drowsy) {
    for item in items {
        loop {
            let taken = consumer.pop();
            if consumer.is_room_wanted() {
                peer.ring();
            }
            if let Some(taken) = taken {
                assert_eq!(taken, item);
                break;
            }
            bell.sleep_unless(|| {
                let is_awake = !consumer.needs_wakeup();
                if consumer.is_room_wanted() {
                    peer.ring();
                }
                is_awake
            });
        }
    }
}

/// Goal: neither a producer that waits for room nor a consumer that waits for packets sleeps
/// without end. The producer stays until the consumer has all, because its end is a wake-up.
#[test]
fn both_sides_sleep_and_wake_each_other() {
    bounded(2, || {
        let bells = [Drowsy::new(), Drowsy::new()];
        let (mut producer, mut consumer) = ring::single(1, bells[1].clone()).unwrap();
        let own = bells[0].clone();
        let filler = thread::spawn(move || {
            push(&mut producer, 0..2, &own);
            producer
        });
        take(&mut consumer, 0..2, &bells[1], &bells[0]);
        filler.join().unwrap();
    });
}
