//! The device's side of virtqueues: takes available buffers and returns used ones.
//!
//! [`Queue`] is a ring of either layout, split or packed, without knowledge of networks. It takes
//! [`Chain`]s, and returns them by their [`Head`]s in any order. The two directions of a network
//! device are built on it: [`TransmitQueue`] turns the driver's packets into loans,
//! [`ReceiveQueue`] copies packets into the driver's buffers. One thread at a time owns a queue,
//! and so a pair of queues.
//!
//! # Theory of operation
//!
//! A driver may write anything into a ring, at any time. Each field is read once, checked, and used
//! from the copy. A contradiction breaks the ring ([`Broken`]): from then on nothing is taken from
//! it or returned to it until it is started again, because the driver may have written other wrong
//! values as well. [`CHAIN_MAX`] bounds chains, and every address is checked when the chain is
//! read.
//!
//! Chains of one buffer are read, and returned, in batches (`batch.rs`): their memory is looked up
//! and prefetched together, and the layout of the ring is decided once for all of them.
//!
//! [`Queue::publish`] makes used entries visible together, and decides whether the driver wants a
//! call. For calls and for kicks, one side stores and then loads what the other side has stored. A
//! sequentially consistent fence separates the two; its partner is the memory barrier that virtio
//! 1.2 §2.7.13.4, §2.7.14 and §2.8.21.3.1 require of the driver.
//!
//! With an [`inflight`] region, chains that were taken and not returned are recorded there, so that
//! the next process takes them again.
//!
//! Limits: [`QUEUE_SIZE_MAX`], [`CHAIN_MAX`]. Follows virtio 1.2 §2.7 and §2.8. No call blocks, and
//! only the start allocates.

mod batch;
pub mod chain;
pub mod inflight;
mod packed;
mod place;
pub mod receive;
mod split;
pub mod transmit;

pub use chain::{Chain, Head, Segment};
pub use receive::{ReceiveCounters, ReceiveQueue};
pub use transmit::{TransmitCounters, TransmitQueue};

use super::event;
use super::memory::{GuestMemory, Lookup};
use super::shared::Area;
use batch::{BATCH_MAX, Batch, Kind};
use rustix::fd::OwnedFd;
use std::fmt;
use std::sync::Arc;

/// Most descriptors of a queue: four times the maximum of QEMU.
pub const QUEUE_SIZE_MAX: u16 = 4096;
/// Most buffers of a chain: the maximum of Linux's devices (`UIO_MAXIOV`).
pub const CHAIN_MAX: usize = 1024;

/// Feature bits that these queues implement (virtio 1.2 §5.1.3 and §6), as masks.
pub mod feature {
    /// The device handles packets with partial checksums.
    pub const CSUM: u64 = 1 << 0;
    /// The driver handles packets with partial or verified checksums.
    pub const GUEST_CSUM: u64 = 1 << 1;
    /// The driver accepts TCP super-packets over IPv4.
    pub const GUEST_TSO4: u64 = 1 << 7;
    /// The driver accepts TCP super-packets over IPv6.
    pub const GUEST_TSO6: u64 = 1 << 8;
    /// The driver accepts TCP super-packets with ECN.
    pub const GUEST_ECN: u64 = 1 << 9;
    /// The device accepts TCP super-packets over IPv4.
    pub const HOST_TSO4: u64 = 1 << 11;
    /// The device accepts TCP super-packets over IPv6.
    pub const HOST_TSO6: u64 = 1 << 12;
    /// The device accepts TCP super-packets with ECN.
    pub const HOST_ECN: u64 = 1 << 13;
    /// A packet may use several receive buffers.
    pub const MRG_RXBUF: u64 = 1 << 15;
    /// A descriptor may refer to a table of descriptors.
    pub const INDIRECT: u64 = 1 << 28;
    /// Each side requests a notification at a certain entry.
    pub const EVENT_INDEX: u64 = 1 << 29;
    /// Little-endian rings, and a header of twelve bytes.
    pub const VERSION_1: u64 = 1 << 32;
    /// The packed layout.
    pub const PACKED: u64 = 1 << 34;
    /// The driver accepts UDP super-packets over IPv4.
    pub const GUEST_USO4: u64 = 1 << 54;
    /// The driver accepts UDP super-packets over IPv6.
    pub const GUEST_USO6: u64 = 1 << 55;
    /// The device accepts UDP super-packets.
    pub const HOST_USO: u64 = 1 << 56;
}

/// All features that these queues implement.
pub const FEATURES: u64 = feature::CSUM
    | feature::GUEST_CSUM
    | feature::GUEST_TSO4
    | feature::GUEST_TSO6
    | feature::GUEST_ECN
    | feature::HOST_TSO4
    | feature::HOST_TSO6
    | feature::HOST_ECN
    | feature::MRG_RXBUF
    | feature::INDIRECT
    | feature::EVENT_INDEX
    | feature::VERSION_1
    | feature::PACKED
    | feature::GUEST_USO4
    | feature::GUEST_USO6
    | feature::HOST_USO;

/// Configuration of a queue.
pub struct QueueConfig {
    /// Number of descriptors.
    pub size: u16,
    /// Features negotiated with the driver, of [`FEATURES`] and others.
    pub features: u64,
    /// Front-end address of the descriptor table, or of the packed ring.
    pub descriptors: u64,
    /// Front-end address of the available ring, or of the driver's event suppression.
    pub driver: u64,
    /// Front-end address of the used ring, or of the device's event suppression.
    pub device: u64,
    /// Where to begin, as in `SET_VRING_BASE`. For a split ring, the next available entry. For a
    /// packed ring, two values of 15 bits and a wrap counter: the next available descriptor, and in
    /// the upper half the next used one, or zero if both are the same. Ignored if `inflight`
    /// contains the position.
    pub base: u32,
    /// True to mark the ring's own pages in the dirty log of the guest's memory.
    pub log: bool,
    /// Where to record chains in flight: [`inflight::region_bytes`] of shared memory.
    pub inflight: Option<Area>,
    /// Event to signal when the driver wants a call.
    pub call: Option<Arc<OwnedFd>>,
}

/// Why a queue cannot start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartError {
    /// Zero, too large, or not a power of two where the layout requires one.
    Size,
    /// An area is outside the guest's memory, crosses regions or is not aligned.
    Address,
    /// The base is outside the ring.
    Base,
    /// The in-flight region is too small, or belongs to another queue.
    Inflight,
    /// [`feature::VERSION_1`] is required, and was not negotiated.
    Legacy,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size => f.write_str("the queue size is not valid"),
            Self::Address => f.write_str("the queue is outside the guest's memory or not aligned"),
            Self::Base => f.write_str("the start index is outside the ring"),
            Self::Inflight => f.write_str("the inflight region does not match the queue"),
            Self::Legacy => f.write_str("the driver does not support virtio 1.0"),
        }
    }
}

impl std::error::Error for StartError {}

/// How the driver broke its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// More entries are available than the ring has.
    Index,
    /// A descriptor's number is not below the queue's size.
    Descriptor,
    /// A chain is a loop, or longer than [`CHAIN_MAX`] or the queue.
    TooLong,
    /// A buffer is outside the guest's memory.
    Address,
    /// An indirect descriptor that was not negotiated, is nested, is not the last one, or has an
    /// invalid table.
    Indirect,
    /// A readable buffer after a writable one, or a buffer of the wrong kind for the queue.
    Direction,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index => f.write_str("the available index is ahead by more than the queue size"),
            Self::Descriptor => f.write_str("a descriptor index is out of range"),
            Self::TooLong => f.write_str("a descriptor chain is too long or a loop"),
            Self::Address => f.write_str("a descriptor points outside the guest's memory"),
            Self::Indirect => f.write_str("an indirect descriptor is not valid"),
            Self::Direction => {
                f.write_str("a buffer is readable where it must be writable, or the reverse")
            }
        }
    }
}

impl std::error::Error for Broken {}

/// Result of [`stopping`](TransmitQueue::stop) a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The queue has stopped. Carries the base with which it continues.
    Done(u32),
    /// Lent memory is being read. Try again.
    Busy,
    /// There is no memory to copy lent bytes to. Try again when some loans are over.
    NoMemory,
}

/// A ring of either layout.
enum Ring {
    Split(split::Ring),
    Packed(packed::Ring),
}

impl Ring {
    /// Reads up to `most` chains into `batch`, which it replaces: see [`batch`]. The first `before`
    /// of the next chains are skipped: they are in another batch, which was read just before.
    #[inline]
    fn read<'m>(
        &mut self,
        lookup: &mut Lookup<'m>,
        batch: &mut Batch<'m>,
        kind: Kind,
        (before, most): (usize, usize),
    ) {
        let most = most.min(BATCH_MAX);
        if most == 0 {
            return batch.clear();
        }
        match self {
            Self::Split(ring) => ring.read(lookup, batch, kind, (before, most)),
            Self::Packed(ring) => ring.read(lookup, batch, kind, (before, most)),
        }
    }

    /// Takes the first `count` chains of a batch that begins with the next chain, and returns them
    /// as used. Visible to the driver after [`Queue::publish`].
    ///
    /// # Panics
    /// If the batch has fewer.
    #[inline]
    fn pass(&mut self, batch: &Batch<'_>, count: usize) {
        match self {
            Self::Split(ring) => ring.pass(batch, count),
            Self::Packed(ring) => ring.pass(batch, count),
        }
    }
}

/// A position in a queue: the chain that is taken next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    next: u16,
    wrap: bool,
    /// Number of recovered chains that were taken again.
    again: usize,
}

/// The device's side of a virtqueue; see the module documentation.
pub struct Queue {
    ring: Ring,
    memory: GuestMemory,
    call: Option<Arc<OwnedFd>>,
    chain: Chain,
    broken: Option<Broken>,
    /// The driver was not called since the start.
    is_new: bool,
    size: u16,
}

impl Queue {
    /// Starts a queue in a guest's memory, and keeps that memory.
    pub fn start(config: QueueConfig, memory: &GuestMemory) -> Result<Self, StartError> {
        if config.features & feature::VERSION_1 == 0 {
            return Err(StartError::Legacy);
        }
        if config.size == 0 || config.size > QUEUE_SIZE_MAX {
            return Err(StartError::Size);
        }
        let ring = if config.features & feature::PACKED != 0 {
            Ring::Packed(packed::Ring::start(&config, memory)?)
        } else {
            Ring::Split(split::Ring::start(&config, memory)?)
        };
        Ok(Self {
            ring,
            memory: memory.clone(),
            call: config.call,
            chain: Chain::new(),
            broken: None,
            is_new: true,
            size: config.size,
        })
    }

    /// Takes the next available chain; false if there is none. The caller then [holds](Queue::hold)
    /// it, or [seeks](Queue::seek) back.
    ///
    /// # Errors
    /// The ring is broken, and stays broken.
    #[inline]
    pub fn take(&mut self) -> Result<bool, Broken> {
        self.check()?;
        self.chain.clear();
        let result = match &mut self.ring {
            Ring::Split(ring) => ring.take(&self.memory, &mut self.chain),
            Ring::Packed(ring) => ring.take(&self.memory, &mut self.chain),
        };
        self.broken = result.err();
        result
    }

    /// Takes the next chain if it is one writable buffer of at least `bytes` bytes, as most receive
    /// buffers are. Leaves any other chain to [`Queue::take`].
    #[inline]
    pub(crate) fn take_room(&mut self, bytes: usize) -> Option<(Head, Segment)> {
        if self.broken.is_some() {
            return None;
        }
        match &mut self.ring {
            Ring::Split(ring) => ring.take_room(&self.memory, bytes),
            Ring::Packed(ring) => ring.take_room(&self.memory, bytes),
        }
    }

    /// The ring and its memory, to move [batches](batch) of chains. `None` if the ring is broken.
    #[inline]
    fn batches(&mut self) -> Option<(&mut Ring, &GuestMemory)> {
        self.broken.is_none().then_some((&mut self.ring, &self.memory))
    }

    /// Prefetches the start of the chain that is `ahead` chains after the next one. A hint.
    #[inline]
    pub(crate) fn prefetch(&self, ahead: u16) {
        match &self.ring {
            Ring::Split(ring) => ring.prefetch(&self.memory, ahead),
            Ring::Packed(ring) => ring.prefetch(&self.memory, ahead),
        }
    }

    /// The chain that [`Queue::take`] took last.
    #[inline]
    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    /// Keeps the chain taken last. [`Queue::complete`] returns it.
    #[inline]
    pub fn hold(&mut self) -> Head {
        let Chain { head, descriptors, .. } = &self.chain;
        match &mut self.ring {
            Ring::Split(ring) => ring.hold(*head),
            Ring::Packed(ring) => ring.hold(*head, descriptors),
        }
    }

    /// Keeps a chain that was taken earlier. `descriptors` are its descriptors.
    #[inline]
    pub(crate) fn hold_earlier(&mut self, head: Head, descriptors: &[chain::Descriptor]) -> Head {
        match &mut self.ring {
            Ring::Split(ring) => ring.hold(head),
            Ring::Packed(ring) => ring.hold(head, descriptors),
        }
    }

    /// Returns the queue's position.
    #[inline]
    pub fn position(&self) -> Position {
        match &self.ring {
            Ring::Split(ring) => ring.position(),
            Ring::Packed(ring) => ring.position(),
        }
    }

    /// Seeks to an earlier position: the chains taken since then, none of which may be held, become
    /// available again. Can also seek forward again, to the position before that.
    #[inline]
    pub fn seek(&mut self, position: Position) {
        match &mut self.ring {
            Ring::Split(ring) => ring.seek(position),
            Ring::Packed(ring) => ring.seek(position),
        }
    }

    /// Returns a chain in whose writable buffers the first `written` bytes were written. Visible to
    /// the driver after [`Queue::publish`].
    #[inline]
    pub fn complete(&mut self, head: Head, written: u32) {
        match &mut self.ring {
            Ring::Split(ring) => ring.complete(head, written),
            Ring::Packed(ring) => ring.complete(head, written),
        }
    }

    /// Makes all returned chains visible to the driver at once, and calls the driver if it wants
    /// that. True if the driver was called.
    pub fn publish(&mut self) -> bool {
        let wanted = match &mut self.ring {
            Ring::Split(ring) => ring.publish(),
            Ring::Packed(ring) => ring.publish(),
        };
        // Always the first time: a previous process may have ended between publishing and calling.
        let tell = wanted.is_some_and(|wanted| wanted || self.is_new);
        if tell {
            self.is_new = false;
            self.signal();
        }
        tell
    }

    /// Requests a kick for the next available chain. True if there is one already: then a kick may
    /// not come.
    pub fn enable_kicks(&mut self) -> bool {
        self.broken.is_none()
            && match &mut self.ring {
                Ring::Split(ring) => ring.enable_kicks(),
                Ring::Packed(ring) => ring.enable_kicks(),
            }
    }

    /// True if a chain seems to be available. The result may be outdated.
    pub fn has_next(&self) -> bool {
        self.broken.is_none()
            && match &self.ring {
                Ring::Split(ring) => ring.has_next(),
                Ring::Packed(ring) => ring.has_next(),
            }
    }

    /// Asks the driver not to kick, which it may ignore.
    pub fn disable_kicks(&mut self) {
        match &mut self.ring {
            Ring::Split(ring) => ring.disable_kicks(),
            Ring::Packed(ring) => ring.disable_kicks(),
        }
    }

    /// Changes the call descriptor. Calls the driver once, because used entries may have been
    /// published before.
    pub fn set_call(&mut self, call: Option<Arc<OwnedFd>>) {
        self.call = call;
        self.signal();
    }

    /// The base to continue with, as in [`QueueConfig::base`], when no chain is held.
    pub fn base(&self) -> u32 {
        match &self.ring {
            Ring::Split(ring) => ring.base(),
            Ring::Packed(ring) => ring.base(),
        }
    }

    /// Why the ring is broken, if it is.
    pub fn broken(&self) -> Option<Broken> {
        self.broken
    }

    /// Breaks the ring for a reason that the owner found.
    pub fn break_for(&mut self, reason: Broken) -> Broken {
        *self.broken.get_or_insert(reason)
    }

    /// The guest's memory.
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// Number of descriptors of the ring.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Fails if the ring is broken.
    ///
    /// # Errors
    /// Why it is broken.
    pub(crate) fn check(&self) -> Result<(), Broken> {
        self.broken.map_or(Ok(()), Err)
    }

    fn signal(&self) {
        if let Some(call) = &self.call {
            event::signal(call);
        }
    }
}

#[cfg(test)]
mod tests;
