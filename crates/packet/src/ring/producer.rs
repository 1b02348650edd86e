//! Handles of producers.

use super::fill::{self, Single};
use super::shared::{CONSUMER_GONE, Shared};
use super::{Closed, Control, PushError};
use crate::burst::Burst;
use crate::packet::Packet;
use crate::sync::{Arc, Ordering};

/// The producers' share of a ring. Dropping it closes the ring for the consumer.
struct Sender<T>(Arc<Shared<T>>);

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl<T> Sender<T> {
    fn is_closed(&self) -> bool {
        self.0.control() & CONSUMER_GONE != 0
    }

    /// Moves items into the ring with `put`, up to the first that is missing.
    fn publish(
        &self,
        items: &mut [Option<T>],
        put: impl FnOnce(&Shared<T>, &mut [Option<T>]) -> usize,
    ) -> Result<usize, Closed> {
        if self.is_closed() {
            return Err(Closed);
        }
        Ok(put(&self.0, items))
    }
}

impl Sender<Packet> {
    fn drop_rest(&self, burst: &mut Burst) -> usize {
        let count = burst.len();
        burst.clear();
        if count > 0 {
            // Relaxed: counters order nothing.
            self.0.dropped.0[0].fetch_add(count as u64, Ordering::Relaxed);
        }
        count
    }
}

fn push_one<T>(
    item: T,
    put: impl FnOnce(&mut [Option<T>]) -> Result<usize, Closed>,
) -> Result<(), PushError<T>> {
    let mut items = [Some(item)];
    let result = put(&mut items);
    match (items, result) {
        ([None], _) => Ok(()),
        ([Some(item)], Ok(_)) => Err(PushError::Full(item)),
        ([Some(item)], Err(Closed)) => Err(PushError::Closed(item)),
    }
}

/// The one producer of a ring. Dropping it closes the ring: no more packets will come.
pub struct Producer<T: Send> {
    sender: Sender<T>,
    fill: Single<T>,
}

impl<T: Send> Producer<T> {
    pub(super) fn new(shared: Arc<Shared<T>>, fill: Single<T>) -> Self {
        Self { sender: Sender(shared), fill }
    }

    /// Moves items into the ring, from the first on up to one that is missing or has no room.
    /// Returns their number. Does not wake the consumer: the caller has to call
    /// [`wake`](Self::wake) afterwards.
    pub fn publish(&mut self, items: &mut [Option<T>]) -> Result<usize, Closed> {
        self.sender.publish(items, |shared, items| self.fill.put(shared, items))
    }

    /// Wakes the consumer, if it sleeps, for everything published before.
    pub fn wake(&self) {
        self.sender.0.wake();
    }

    /// Moves one item into the ring and wakes the consumer. Returns the item if the ring is full or
    /// closed.
    pub fn push(&mut self, item: T) -> Result<(), PushError<T>> {
        push_one(item, |items| self.publish(items))?;
        self.wake();
        Ok(())
    }

    /// Announces that the producer is going to wait for room. Returns true if it may: then
    /// [`Consumer::is_room_wanted`](super::Consumer::is_room_wanted) tells the consumer's thread
    /// once that there is room for a waiting producer. Returns false if there is room, or the
    /// consumer is gone. The end of the consumer does not wake the producer.
    pub fn needs_room(&mut self) -> bool {
        self.sender.0.want_room();
        let may_wait = !self.fill.has_room(&self.sender.0) && !self.sender.is_closed();
        if !may_wait {
            self.sender.0.want_no_room();
        }
        may_wait
    }

    /// True if the consumer is gone.
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// A handle that resizes the ring and reads its counters.
    pub fn control(&self) -> Control<T> {
        Control::new(self.sender.0.clone())
    }
}

impl Producer<Packet> {
    /// Moves packets from the front of `burst` into the ring and wakes the consumer. Packets
    /// without room stay in `burst`; all of them if the consumer is gone.
    pub fn enqueue(&mut self, burst: &mut Burst) -> Result<usize, Closed> {
        let count = self.publish(burst.packets_mut())?;
        burst.taken(count);
        self.wake();
        Ok(count)
    }

    /// Moves packets into the ring as [`enqueue`](Self::enqueue) does; drops and counts those
    /// without room. Returns how many were dropped.
    pub fn enqueue_or_drop(&mut self, burst: &mut Burst) -> usize {
        // An error leaves everything in the burst.
        let _ = self.enqueue(burst);
        self.sender.drop_rest(burst)
    }
}

/// One of any number of producers of a ring. Each thread has its own clone. Dropping the last one
/// closes the ring: no more packets will come.
pub struct SharedProducer<T: Send> {
    sender: Arc<Sender<T>>,
}

impl<T: Send> Clone for SharedProducer<T> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone() }
    }
}

impl<T: Send> SharedProducer<T> {
    pub(super) fn new(shared: Arc<Shared<T>>) -> Self {
        Self { sender: Arc::new(Sender(shared)) }
    }

    /// Moves items into the ring without waking the consumer, as [`Producer::publish`] does.
    pub fn publish(&self, items: &mut [Option<T>]) -> Result<usize, Closed> {
        self.sender.publish(items, fill::put_shared)
    }

    /// Wakes the consumer, if it sleeps, for everything published before.
    pub fn wake(&self) {
        self.sender.0.wake();
    }

    /// Moves one item into the ring and wakes the consumer. Returns the item if the ring is full or
    /// closed.
    pub fn push(&self, item: T) -> Result<(), PushError<T>> {
        push_one(item, |items| self.publish(items))?;
        self.wake();
        Ok(())
    }

    /// True if the consumer is gone.
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// A handle that resizes the ring and reads its counters.
    pub fn control(&self) -> Control<T> {
        Control::new(self.sender.0.clone())
    }
}

impl SharedProducer<Packet> {
    /// Moves packets from the front of `burst` into the ring and wakes the consumer, as
    /// [`Producer::enqueue`] does.
    pub fn enqueue(&self, burst: &mut Burst) -> Result<usize, Closed> {
        let count = self.publish(burst.packets_mut())?;
        burst.taken(count);
        self.wake();
        Ok(count)
    }

    /// Moves packets into the ring as [`enqueue`](Self::enqueue) does; drops and counts those
    /// without room. Returns how many were dropped.
    pub fn enqueue_or_drop(&self, burst: &mut Burst) -> usize {
        // An error leaves everything in the burst.
        let _ = self.enqueue(burst);
        self.sender.drop_rest(burst)
    }
}
