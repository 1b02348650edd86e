//! Rings: bounded queues between threads, without a lock.
//!
//! A ring has one consumer and one producer ([`single`]) or any number of them ([`shared`]). What
//! is in it is owned by it: packets that are purged or left over are dropped, so that their loans
//! return. Order is kept: first in, first out, for each producer.
//!
//! # Theory of operation
//!
//! Positions count packets and wrap. Producers write packets into slots and publish them by moving
//! the *tail*; the consumer takes them and moves the *head*. Each side keeps what it last saw of
//! the other's index and looks again only when that is too little, so that in a busy ring a cache
//! line moves once per burst.
//!
//! A *resize* is asked for by any thread ([`Control::resize`]) and done by a producer at his next
//! call: from there on he fills a new array, and the tail says so. The consumer empties the old one
//! and follows. No packet is moved, so none is lost or overtaken: who shrinks a ring below what it
//! holds makes it take nothing more until there is room. No more than one array waits to be
//! followed; a resize that comes earlier waits too, and of several that wait the last one counts.
//!
//! Whoever publishes wakes a consumer that sleeps, by its [`Doorbell`]. The consumer says so
//! beforehand ([`Consumer::needs_wakeup`]) and looks once more; a fence on both sides sees to it
//! that he finds the packet or the producer finds him asleep. The same pair ends the ring from the
//! consumer's side: either he purges what was published, or who published it does.
//!
//! No call waits for another thread. Layout, barriers and proofs: `docs/theory/ring.md`.

mod consumer;
mod control;
mod fill;
mod producer;
mod shared;

pub use consumer::{BusyPoll, Consumer};
pub use control::{Control, resize_all};
pub use producer::{Producer, SharedProducer};

use crate::sync::Arc;
use alloc::boxed::Box;
use core::fmt;

/// Largest capacity. A million small packets are a tenth of a second at ten million a second; a
/// longer queue helps nobody, and 32-bit positions need a bound.
pub const CAPACITY_MAX: usize = 1 << 20;
// Positions tell what is held from what was passed by their difference as a signed number.
const _: () = assert!(CAPACITY_MAX < i32::MAX as usize);

/// Bytes that a VLAN tag adds to a packet that does not have it yet.
pub const VLAN_TAG_BYTES: usize = 4;

/// Wakes a consumer.
pub trait Doorbell: Send + Sync {
    /// Wakes the consumer, or lets his next attempt to sleep end at once. Called by producers'
    /// threads; must not block.
    fn ring(&self);

    /// Lets all threads of the process pass a full memory barrier, if the system can do that; false
    /// if not. Called when a ring is made, and if it could then, by the consumer each time before
    /// it sleeps and when it goes. Producers then need no fence of their own. What could be done
    /// once must not fail later.
    fn barrier(&self) -> bool {
        false
    }
}

/// The doorbell of a consumer that never sleeps.
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

/// The other side is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the other side of the ring is gone")
    }
}

impl core::error::Error for Closed {}

/// Why a packet was handed back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushError<T> {
    /// There is no room.
    Full(T),
    /// The consumer is gone.
    Closed(T),
}

/// Why there is no ring of such a capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapacityError {
    /// Zero, or more than [`CAPACITY_MAX`].
    OutOfRange,
    /// There is no memory for it.
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

/// What a ring has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets that producers dropped: there was no room, or no consumer.
    pub dropped: u64,
    /// Packets that were in the ring and were dropped, by [`Consumer::purge`] or after the consumer
    /// went.
    pub purged: u64,
    /// Capacity last asked for.
    pub capacity: usize,
}

/// A ring for one producer.
pub fn single<T: Send>(
    capacity: usize,
    doorbell: impl Doorbell + 'static,
) -> Result<(Producer<T>, Consumer<T>), CapacityError> {
    let (shared, array) = shared::Shared::new(capacity, Box::new(doorbell))?;
    let shared = Arc::new(shared);
    let fill = fill::Single::new(array, capacity as u32);
    Ok((Producer::new(shared.clone(), fill), Consumer::new(shared, shared::Drain::new(array))))
}

/// A ring for any number of producers: clones of the one that is returned.
pub fn shared<T: Send>(
    capacity: usize,
    doorbell: impl Doorbell + 'static,
) -> Result<(SharedProducer<T>, Consumer<T>), CapacityError> {
    let (shared, array) = shared::Shared::new(capacity, Box::new(doorbell))?;
    let shared = Arc::new(shared);
    Ok((SharedProducer::new(shared.clone()), Consumer::new(shared, shared::Drain::new(array))))
}

#[cfg(all(test, not(loom)))]
mod tests;
