//! What a consumer may conclude from `is_published`, while another producer is interrupted between
//! reserving a place and publishing it.

use super::{bounded, pop_some, shared};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use towpath_packet::ring::Consumer;

/// One producer puts an item into the ring and then says so, as the first worker of a network
/// counts what it has handed out. Another producer puts an item at the same time. The consumer
/// looks first whether it was said, then whether all is published, if it `asks`, and then empties
/// the ring: so it has the item that it knows of.
fn hand_over(
    preemptions: usize,
    asks: bool,
    before: impl Fn(&Consumer<u32>) + Sync + Send + 'static,
) {
    bounded(preemptions, move || {
        let (producer, mut consumer) = shared(2);
        before(&consumer);
        let (other, said) = (producer.clone(), Arc::new(AtomicBool::new(false)));
        let interrupted = thread::spawn(move || other.push(1).unwrap());
        let says = said.clone();
        let teller = thread::spawn(move || {
            producer.push(2).unwrap();
            says.store(true, Ordering::Release);
        });
        let was_said = said.load(Ordering::Acquire);
        let is_there = was_said && (!asks || consumer.is_published());
        let taken = pop_some(&mut consumer, 2);
        assert!(!is_there || taken.contains(&2), "what was said is missing");
        interrupted.join().unwrap();
        teller.join().unwrap();
        // Nothing is lost, and in the end all is published.
        assert!(consumer.is_published());
        assert_eq!(taken.len() + pop_some(&mut consumer, 2).len(), 2);
    });
}

/// Goal: if all is published, the consumer can take every item that it knows of, also behind a
/// resize.
#[test]
fn what_is_published_can_be_taken() {
    hand_over(3, true, |_| ());
    hand_over(2, true, |consumer| consumer.control().resize(4).unwrap());
}

/// Goal: the model finds the item that cannot be taken yet, because a place in front of it is not
/// filled.
#[test]
#[should_panic(expected = "what was said is missing")]
fn without_asking_an_item_may_be_missing() {
    hand_over(3, false, |_| ());
}
