//! The consumer's handle, and how long it polls before it sleeps.

use super::shared::{Drain, Shared};
use super::{Closed, Control};
use crate::burst::Burst;
use crate::packet::Packet;
use crate::sync::Arc;
use core::hint::spin_loop;

/// The one consumer of a ring. Dropping it purges the ring, and producers find it closed.
pub struct Consumer<T: Send> {
    shared: Arc<Shared<T>>,
    /// `None` only while it is dropped.
    side: Option<Drain<T>>,
}

impl<T: Send> Consumer<T> {
    pub(super) fn new(shared: Arc<Shared<T>>, side: Drain<T>) -> Self {
        Self { shared, side: Some(side) }
    }

    /// Moves items into `places`, which are empty, from the first on; returns how many. Fewer than
    /// there are, if the ring was resized between two of them: the next call goes on.
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

    /// The next item, left in the ring.
    pub fn peek(&mut self) -> Option<&T> {
        let (side, shared) = self.parts();
        side.peek(shared)
    }

    /// True if nothing is there now.
    pub fn is_empty(&mut self) -> bool {
        let (side, shared) = self.parts();
        side.available(shared, 1) == 0
    }

    /// True if nothing is there and nothing will come: all producers are gone.
    pub fn is_closed(&mut self) -> bool {
        self.shared.are_producers_gone() && self.is_empty()
    }

    /// Announces that the consumer is going to sleep. True if he may: whatever comes from now on
    /// rings the doorbell, once. False if there is something to do first: packets, or the end.
    pub fn needs_wakeup(&mut self) -> bool {
        self.shared.go_to_sleep();
        let may_sleep = self.is_empty() && !self.shared.are_producers_gone();
        if !may_sleep {
            self.shared.stay_awake();
        }
        may_sleep
    }

    /// Drops all that is in the ring and counts it as purged; returns how many.
    pub fn purge(&mut self) -> usize {
        let (side, shared) = self.parts();
        side.purge(shared)
    }

    /// A handle to resize the ring and to read its counters.
    pub fn control(&self) -> Control<T> {
        Control::new(self.shared.clone())
    }

    fn parts(&mut self) -> (&mut Drain<T>, &Shared<T>) {
        (self.side.as_mut().expect("there until dropped"), &self.shared)
    }
}

impl Consumer<Packet> {
    /// Moves packets to the end of `burst` until it is full or the ring is empty; returns how many.
    /// See [`take`](Self::take) about resizing.
    pub fn dequeue(&mut self, burst: &mut Burst) -> usize {
        let count = self.take(burst.places_mut());
        burst.added(count);
        count
    }

    /// Bytes that the next packet will have on the wire, and as `None` that there is none. The
    /// packet stays. `extra` says what it will get in addition, such as [`VLAN_TAG_BYTES`] for a
    /// tag that is still to be put in.
    ///
    /// [`VLAN_TAG_BYTES`]: super::VLAN_TAG_BYTES
    pub fn peek_len(&mut self, extra: impl FnOnce(&Packet) -> usize) -> Option<usize> {
        self.peek().map(|packet| packet.len() + extra(packet))
    }

    /// Waits for packets: polls as long as `poll` allows, then sleeps by calling `sleep`, which
    /// returns when the doorbell has rung, or earlier. Returns how many packets were added to
    /// `burst`: none only if it was full.
    pub fn dequeue_or_sleep(
        &mut self,
        burst: &mut Burst,
        poll: &mut BusyPoll,
        mut sleep: impl FnMut(),
    ) -> Result<usize, Closed> {
        loop {
            let count = self.dequeue(burst);
            if count > 0 || burst.is_full() {
                poll.found();
                return Ok(count);
            }
            if self.is_closed() {
                return Err(Closed);
            }
            if !poll.again() && self.needs_wakeup() {
                sleep();
            }
        }
    }
}

impl<T: Send> Drop for Consumer<T> {
    fn drop(&mut self) {
        let side = self.side.take().expect("dropped once");
        self.shared.leave(side);
    }
}

/// A budget of polls: after work a consumer looks so many times more before it sleeps.
#[derive(Clone, Copy, Debug)]
pub struct BusyPoll {
    budget: u32,
    left: u32,
}

impl BusyPoll {
    /// `budget` polls after each find; none before the first. Zero never polls.
    pub const fn new(budget: u32) -> Self {
        Self { budget, left: 0 }
    }

    /// There was work.
    pub fn found(&mut self) {
        self.left = self.budget;
    }

    /// There was none. True if the caller is to look again at once; false if he is to sleep.
    pub fn again(&mut self) -> bool {
        let again = self.left > 0;
        if again {
            self.left -= 1;
            spin_loop();
        }
        again
    }
}
