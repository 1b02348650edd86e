//! The consumer's handle, and how long it polls before it sleeps.

use super::shared::{Drain, Shared};
use super::{Closed, Control};
use crate::burst::Burst;
use crate::packet::Packet;
use crate::sync::Arc;
use core::hint::spin_loop;

/// The one consumer of a ring. Dropping it purges the ring and closes it for producers.
pub struct Consumer<T: Send> {
    shared: Arc<Shared<T>>,
    /// `None` only during the drop.
    side: Option<Drain<T>>,
}

impl<T: Send> Consumer<T> {
    pub(super) fn new(shared: Arc<Shared<T>>, side: Drain<T>) -> Self {
        Self { shared, side: Some(side) }
    }

    /// Moves items into `places`, which are empty, from the first on. Returns their number, which
    /// is less than the number of items if the ring was resized between two of them: the next call
    /// continues.
    #[inline]
    pub fn take(&mut self, places: &mut [Option<T>]) -> usize {
        let (side, shared) = self.parts();
        side.take(shared, places)
    }

    /// Takes the next item.
    pub fn pop(&mut self) -> Option<T> {
        let mut places = [None];
        self.take(&mut places);
        let [item] = places;
        item
    }

    /// The next item, which stays in the ring.
    pub fn peek(&mut self) -> Option<&T> {
        let (side, shared) = self.parts();
        side.peek(shared)
    }

    /// Number of items that can be taken now. Those behind a resize do not count yet.
    pub fn len(&mut self) -> usize {
        let (side, shared) = self.parts();
        side.available(shared, usize::MAX)
    }

    /// True if there is no item now.
    pub fn is_empty(&mut self) -> bool {
        let (side, shared) = self.parts();
        side.available(shared, 1) == 0
    }

    /// True if all items that producers have begun to put into the ring can be taken, for a ring of
    /// several producers. False means that one of them is about to publish, perhaps after an
    /// interruption. Orders nothing: the caller knows by other means of the items that it means.
    pub fn is_published(&self) -> bool {
        self.shared.is_published()
    }

    /// True if there is no item and none will come, because all producers are gone.
    pub fn is_closed(&mut self) -> bool {
        self.shared.are_producers_gone() && self.is_empty()
    }

    /// Waits for an item: polls as long as `poll` allows, then calls `sleep`, which returns after
    /// the doorbell has rung, or earlier. Fails if there is none and all producers are gone.
    pub fn wait(&mut self, poll: &mut BusyPoll, mut sleep: impl FnMut()) -> Result<(), Closed> {
        loop {
            if !self.is_empty() {
                poll.found();
                return Ok(());
            }
            if self.is_closed() {
                return Err(Closed);
            }
            if !poll.again() && self.needs_wakeup() {
                sleep();
            }
        }
    }

    /// Announces that the consumer is going to sleep. Returns true if it may: then the next packet,
    /// or the end of the producers, rings the doorbell, once. Returns false if there is a packet,
    /// or all producers are gone.
    ///
    /// Also returns false if a [barrier](super::Doorbell::barrier) that stands for the producer's
    /// fence fails, until the producer's next call.
    pub fn needs_wakeup(&mut self) -> bool {
        let is_announced = self.shared.go_to_sleep();
        let may_sleep = is_announced && self.is_empty() && !self.shared.are_producers_gone();
        if !may_sleep {
            self.shared.stay_awake();
        }
        may_sleep
    }

    /// True if the producer waits for room ([`Producer::needs_room`](super::Producer::needs_room)),
    /// once for each wait: then the caller wakes it. Call it after items were taken, and again
    /// before a sleep, after [`needs_wakeup`](Self::needs_wakeup) returned true. The first call may
    /// miss a wait that has just begun; the second one cannot.
    pub fn is_room_wanted(&self) -> bool {
        self.shared.take_room_wish()
    }

    /// True if all producers are gone: items that are in the ring are the last.
    pub fn are_producers_gone(&self) -> bool {
        self.shared.are_producers_gone()
    }

    /// Drops all items in the ring and counts them as purged. Returns their number.
    pub fn purge(&mut self) -> usize {
        let (side, shared) = self.parts();
        side.purge(shared)
    }

    /// A handle that resizes the ring and reads its counters.
    pub fn control(&self) -> Control<T> {
        Control::new(self.shared.clone())
    }

    fn parts(&mut self) -> (&mut Drain<T>, &Shared<T>) {
        (self.side.as_mut().expect("there until dropped"), &self.shared)
    }
}

impl Consumer<Packet> {
    /// Moves packets to the end of `burst` until it is full or the ring is empty. Returns their
    /// number, which a resize can reduce: see [`take`](Self::take).
    pub fn dequeue(&mut self, burst: &mut Burst) -> usize {
        let count = self.take(burst.places_mut());
        burst.added(count);
        count
    }

    /// Bytes that the next packet will have on the wire, or `None` if there is no packet. The
    /// packet stays in the ring. `extra` returns the bytes that will be added, such as
    /// [`VLAN_TAG_BYTES`] for a tag that is still to be inserted.
    ///
    /// [`VLAN_TAG_BYTES`]: super::VLAN_TAG_BYTES
    pub fn peek_len(&mut self, extra: impl FnOnce(&Packet) -> usize) -> Option<usize> {
        self.peek().map(|packet| packet.len() + extra(packet))
    }

    /// Waits for packets as [`wait`](Self::wait) does, and moves them to the end of `burst`.
    /// Returns their number: zero only if the burst was full, which ends the call at once.
    pub fn dequeue_or_sleep(
        &mut self,
        burst: &mut Burst,
        poll: &mut BusyPoll,
        sleep: impl FnMut(),
    ) -> Result<usize, Closed> {
        if burst.is_full() {
            return Ok(0);
        }
        self.wait(poll, sleep)?;
        Ok(self.dequeue(burst))
    }
}

impl<T: Send> Drop for Consumer<T> {
    fn drop(&mut self) {
        let side = self.side.take().expect("dropped once");
        self.shared.leave(side);
    }
}

/// A polling budget: after work, a consumer checks this many more times before it sleeps.
#[derive(Clone, Copy, Debug)]
pub struct BusyPoll {
    budget: u32,
    left: u32,
}

impl BusyPoll {
    /// Allows `budget` checks after each find, and none before the first. Zero never polls.
    pub const fn new(budget: u32) -> Self {
        Self { budget, left: 0 }
    }

    /// Reports that there was work.
    pub fn found(&mut self) {
        self.left = self.budget;
    }

    /// Reports that there was no work. True if the caller should check again at once, false if it
    /// should sleep.
    pub fn again(&mut self) -> bool {
        let again = self.left > 0;
        if again {
            self.left -= 1;
            spin_loop();
        }
        again
    }
}
