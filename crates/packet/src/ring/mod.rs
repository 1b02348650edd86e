//! Rings: bounded lock-free queues between threads.
//!
//! A ring has one consumer, and one producer ([`single`]) or any number of producers ([`shared`]).
//! The ring owns the packets in it: packets that are purged or left over are dropped, so their
//! loans return. The order is first in, first out, for each producer.
//!
//! # Theory of operation
//!
//! Positions count packets and wrap. Producers write packets into slots and publish them by
//! advancing the *tail*; the consumer takes them and advances the *head*. Each side caches the
//! other side's index and reads it again only when the cached value does not suffice. So in a busy
//! ring the cache line of an index moves once per burst.
//!
//! Any thread may request a *resize* ([`Control::resize`]). A producer carries it out in its next
//! call: from then on it fills a new array, and the tail says so. The consumer empties the old
//! array and follows. No packet is moved, so none is lost or overtaken: a ring that is shrunk below
//! its length accepts no packet until there is room. At most one array waits to be followed. A
//! resize that is requested before the consumer has followed waits, too; if several wait, the last
//! one counts.
//!
//! A producer that has published wakes a sleeping consumer with its [`Doorbell`]. The consumer
//! announces the sleep beforehand ([`Consumer::needs_wakeup`]) and then checks the ring once more.
//! A full fence on both sides ensures that the consumer finds the packet or the producer sees the
//! announcement; where the system has a barrier of all threads, the consumer makes both. The same
//! pair of fences ends the ring from the consumer's side: a packet that is published meanwhile is
//! purged by the consumer or by its producer. A single producer that waits for room announces it in
//! the same way ([`Producer::needs_room`]).
//!
//! No call waits for another thread: with several producers, calls are counted beside positions, an
//! idea of DPDK's ring (RTS mode, BSD-3-Clause). Layout, barriers, proofs: `docs/theory/ring.md`.

mod consumer;
mod control;
mod fill;
mod producer;
mod shared;

pub use consumer::{BusyPoll, Consumer};
pub use control::Control;
pub use producer::{Producer, SharedProducer};

use crate::sync::Arc;
use alloc::boxed::Box;
use core::fmt;

/// Largest capacity. At ten million packets a second, a million packets are a tenth of a second; a
/// longer queue is of no use, and 32-bit positions need a bound.
pub const CAPACITY_MAX: usize = 1 << 20;
// The difference of two positions as a signed number shows which one is newer.
const _: () = assert!(CAPACITY_MAX < i32::MAX as usize);

/// Bytes that a VLAN tag adds to an untagged packet.
pub const VLAN_TAG_BYTES: usize = 4;

/// Wakes the consumer of a ring.
pub trait Doorbell: Send + Sync {
    /// Wakes the consumer, or makes its next attempt to sleep end at once. Producers' threads call
    /// it; it must not block. It sees what the consumer's thread did before it announced its sleep.
    fn ring(&self);

    /// Makes all threads of the process pass a full memory barrier. Returns false if the system
    /// does not support that, or refuses it.
    ///
    /// Called when a ring of one producer is made and, if it returned true then, by the consumer
    /// before each sleep and when it ends: the producer then needs no fence of its own. If it fails
    /// later, the producer fences from its next call on. Until that call the consumer does not
    /// sleep but calls this again, so an implementation that fails may pause for a moment.
    fn barrier(&self) -> bool {
        false
    }
}

/// The doorbell of a consumer that never sleeps. Does nothing.
pub struct Silent;

impl Doorbell for Silent {
    fn ring(&self) {}
}

impl<D: Doorbell + ?Sized> Doorbell for alloc::sync::Arc<D> {
    fn ring(&self) {
        (**self).ring();
    }

    fn barrier(&self) -> bool {
        (**self).barrier()
    }
}

/// The other side of the ring is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the other side of the ring is gone")
    }
}

impl core::error::Error for Closed {}

/// Why a packet was returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushError<T> {
    /// The ring has no room.
    Full(T),
    /// The consumer is gone.
    Closed(T),
}

/// Why a ring of this capacity cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapacityError {
    /// The capacity is zero, or more than [`CAPACITY_MAX`].
    OutOfRange,
    /// There is not enough memory.
    NoMemory,
}

impl fmt::Display for CapacityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CapacityError::OutOfRange => {
                write!(f, "a ring holds 1 to {CAPACITY_MAX} packets")
            }
            CapacityError::NoMemory => f.write_str("no memory for a ring of this capacity"),
        }
    }
}

impl core::error::Error for CapacityError {}

/// Counters of a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets that producers dropped, because there was no room or no consumer.
    pub dropped: u64,
    /// Packets that were in the ring and were dropped, by [`Consumer::purge`] or after the consumer
    /// ended.
    pub purged: u64,
    /// The capacity that was requested last.
    pub capacity: usize,
}

/// Makes a ring for one producer.
pub fn single<T: Send>(
    capacity: usize,
    doorbell: impl Doorbell + 'static,
) -> Result<(Producer<T>, Consumer<T>), CapacityError> {
    let is_light = doorbell.barrier();
    let (shared, array) = shared::Shared::new(capacity, Box::new(doorbell), is_light)?;
    let shared = Arc::new(shared);
    let fill = fill::Single::new(array, capacity as u32);
    Ok((Producer::new(shared.clone(), fill), Consumer::new(shared, shared::Drain::new(array))))
}

/// Makes a ring for any number of producers, which are clones of the returned one. They always
/// fence: their exchanges cost as much.
pub fn shared<T: Send>(
    capacity: usize,
    doorbell: impl Doorbell + 'static,
) -> Result<(SharedProducer<T>, Consumer<T>), CapacityError> {
    let (shared, array) = shared::Shared::new(capacity, Box::new(doorbell), false)?;
    let shared = Arc::new(shared);
    Ok((SharedProducer::new(shared.clone()), Consumer::new(shared, shared::Drain::new(array))))
}

#[cfg(all(test, not(loom)))]
mod tests;
