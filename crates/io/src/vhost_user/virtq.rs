//! Virtqueues, seen from the device: which buffers a driver offers, and giving them back.
//!
//! [`Queue`] is a ring of either layout, split or packed, without knowledge of networks; what it
//! offers are [`Chain`]s, and what it takes back are their [`Head`]s, in any order. The two
//! directions of a network device are built on it: [`TransmitQueue`] turns the driver's packets
//! into loans, [`ReceiveQueue`] copies packets into the driver's buffers. A queue, and so a pair of
//! them, belongs to one thread at a time.
//!
//! # Theory of operation
//!
//! Everything in a ring is written by a driver that may lie, at any time. Each field is read once,
//! checked, and used from the copy. What contradicts itself breaks the ring ([`Broken`]): nothing
//! more is taken from it or given back until it is started anew, since whoever wrote one lie may
//! have written others. Chains are bounded by [`CHAIN_MAX`], and every address is looked up when
//! the chain is read.
//!
//! Used entries become visible together, with [`Queue::publish`], which also decides whether the
//! driver wants to be told. Both directions of that, and of kicks, are a store of one side followed
//! by a load of what the other has stored: a fence with the strongest order stands between them,
//! whose partner is the memory barrier that virtio 1.2 §2.7.13.4, §2.7.14 and §2.8.21.3.1 ask of
//! the driver.
//!
//! With an [`inflight`] region, what was taken and not given back is written down there, so that
//! the next process offers it again.
//!
//! Limits: [`QUEUE_SIZE_MAX`], [`CHAIN_MAX`]. Follows virtio 1.2 §2.7 and §2.8. No call blocks
//! or, after the start, allocates.

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
use super::memory::GuestMemory;
use super::shared::{Area, Stretch};
use rustix::fd::OwnedFd;
use std::fmt;
use std::sync::Arc;

/// Most descriptors of a queue: four times what QEMU gives its users.
pub const QUEUE_SIZE_MAX: u16 = 4096;
/// Most buffers of a chain: what Linux's devices take (`UIO_MAXIOV`).
pub const CHAIN_MAX: usize = 1024;

/// Feature bits that these queues know (virtio 1.2 §5.1.3 and §6), as masks.
pub mod feature {
    /// The driver may leave checksums to the device.
    pub const CSUM: u64 = 1 << 0;
    /// The driver takes packets with partial or verified checksums.
    pub const GUEST_CSUM: u64 = 1 << 1;
    /// The driver takes TCP super-packets over IPv4.
    pub const GUEST_TSO4: u64 = 1 << 7;
    /// The driver takes TCP super-packets over IPv6.
    pub const GUEST_TSO6: u64 = 1 << 8;
    /// The driver takes TCP super-packets with congestion marks.
    pub const GUEST_ECN: u64 = 1 << 9;
    /// The device takes TCP super-packets over IPv4.
    pub const HOST_TSO4: u64 = 1 << 11;
    /// The device takes TCP super-packets over IPv6.
    pub const HOST_TSO6: u64 = 1 << 12;
    /// The device takes TCP super-packets with congestion marks.
    pub const HOST_ECN: u64 = 1 << 13;
    /// A packet may fill several receive buffers.
    pub const MRG_RXBUF: u64 = 1 << 15;
    /// A descriptor may point to a table of descriptors.
    pub const INDIRECT: u64 = 1 << 28;
    /// Both sides say at which entry they want to be told.
    pub const EVENT_INDEX: u64 = 1 << 29;
    /// Little endian, and a header of twelve bytes.
    pub const VERSION_1: u64 = 1 << 32;
    /// The packed layout.
    pub const PACKED: u64 = 1 << 34;
    /// The driver takes UDP super-packets over IPv4.
    pub const GUEST_USO4: u64 = 1 << 54;
    /// The driver takes UDP super-packets over IPv6.
    pub const GUEST_USO6: u64 = 1 << 55;
    /// The device takes UDP super-packets.
    pub const HOST_USO: u64 = 1 << 56;
}

/// All of them.
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

/// Where a queue is and how it is used.
pub struct QueueConfig {
    /// Descriptors.
    pub size: u16,
    /// What was agreed with the driver, of [`FEATURES`] and others.
    pub features: u64,
    /// Front-end address of the descriptor table, or of the packed ring.
    pub descriptors: u64,
    /// Front-end address of the available ring, or of the driver's event suppression.
    pub driver: u64,
    /// Front-end address of the used ring, or of the device's event suppression.
    pub device: u64,
    /// Where to begin, as `SET_VRING_BASE` says it: the next available entry; of a packed ring 15
    /// bits and the wrap counter, for the next available and above it for the next used, or zero
    /// there if both are the same. Not looked at if `inflight` tells.
    pub base: u32,
    /// Mark the ring's own pages in the log of the guest's memory.
    pub log: bool,
    /// Where to write down what is in flight: [`inflight::region_bytes`] of shared memory.
    pub inflight: Option<Area>,
    /// Written to when the driver is to be told.
    pub call: Option<Arc<OwnedFd>>,
}

/// Why a queue cannot start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartError {
    /// Zero, too large, or no power of two where the layout needs one.
    Size,
    /// An area is not in the guest's memory, crosses its regions or is not aligned.
    Address,
    /// The base points outside of the ring.
    Base,
    /// The region for what is in flight is too small, or belongs to another queue.
    Inflight,
    /// Neither side may do without [`feature::VERSION_1`].
    Legacy,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size => f.write_str("a queue has an impossible size"),
            Self::Address => {
                f.write_str("a queue lies outside of the guest's memory, or is not aligned")
            }
            Self::Base => f.write_str("a queue is to begin outside of its ring"),
            Self::Inflight => f.write_str("the inflight region does not fit its queue"),
            Self::Legacy => f.write_str("the driver is older than virtio 1.0"),
        }
    }
}

impl std::error::Error for StartError {}

/// What the driver did to break its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// More entries are available than the ring has.
    Index,
    /// A descriptor's number is not below the queue's size.
    Descriptor,
    /// A chain is a loop, or longer than [`CHAIN_MAX`] or the queue.
    TooLong,
    /// A buffer lies outside of the guest's memory.
    Address,
    /// An indirect descriptor that was not agreed upon, is nested, goes on, or has no proper table.
    Indirect,
    /// A buffer to be read behind one to be written, or of the wrong kind for its queue.
    Direction,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index => f.write_str("the available index ran away"),
            Self::Descriptor => f.write_str("a descriptor's number is out of range"),
            Self::TooLong => f.write_str("a descriptor chain is too long"),
            Self::Address => f.write_str("a descriptor points outside of the guest's memory"),
            Self::Indirect => f.write_str("an indirect descriptor is wrong"),
            Self::Direction => f.write_str("a buffer has the wrong direction"),
        }
    }
}

impl std::error::Error for Broken {}

/// What came of [`stopping`](TransmitQueue::stop) a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It has stopped: the base to begin with the next time.
    Done(u32),
    /// Somebody is reading lent memory at this moment. Try again.
    Busy,
    /// There is no memory to copy lent bytes to. Try again when some loans are over.
    NoMemory,
}

/// A ring of either layout.
enum Ring {
    Split(split::Ring),
    Packed(packed::Ring),
}

/// Where a queue is: which chain is taken next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    next: u16,
    wrap: bool,
    /// Entries of the last process offered again.
    again: usize,
}

/// A virtqueue. See the module text.
pub struct Queue {
    ring: Ring,
    memory: GuestMemory,
    call: Option<Arc<OwnedFd>>,
    chain: Chain,
    broken: Option<Broken>,
    /// The driver was not told yet since the start.
    is_new: bool,
    size: u16,
}

impl Queue {
    /// Starts a queue in a guest's memory, which it keeps.
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

    /// Takes the next available chain; false if there is none. It is [held](Queue::hold), or the
    /// queue goes back to where it was.
    ///
    /// # Errors
    /// The ring is broken, and stays so.
    #[inline]
    pub fn take(&mut self) -> Result<bool, Broken> {
        self.check()?;
        self.chain.clear();
        let result = match &mut self.ring {
            Ring::Split(ring) => {
                if let Some((head, segment, is_write)) = ring.take_single(&self.memory, |_, _| true)
                {
                    self.chain.set(head, segment, is_write);
                    return Ok(true);
                }
                ring.take(&self.memory, &mut self.chain)
            }
            Ring::Packed(ring) => ring.take(&self.memory, &mut self.chain),
        };
        self.broken = result.err();
        result
    }

    /// Takes the next chain if it is one buffer with room for `bytes`, as most are that are offered
    /// to be written. All else is left to [`Queue::take`].
    #[inline]
    pub(crate) fn take_room(&mut self, bytes: usize) -> Option<(Head, Segment)> {
        let Ring::Split(ring) = &mut self.ring else { return None };
        if self.broken.is_some() {
            return None;
        }
        let has_room = |buffer: Stretch<'_>, is_write| is_write && buffer.len() >= bytes;
        ring.take_single(&self.memory, has_room).map(|(head, segment, _)| (head, segment))
    }

    /// Takes and holds the next chain if it is one buffer to be read, and `take` takes what is in
    /// it. All else is left to [`Queue::take`], which reads it anew.
    #[inline]
    pub(crate) fn take_frame(&mut self, take: impl FnOnce(Stretch<'_>) -> bool) -> Option<Head> {
        let Ring::Split(ring) = &mut self.ring else { return None };
        if self.broken.is_some() {
            return None;
        }
        let fits = |chain: Stretch<'_>, is_write: bool| !is_write && take(chain);
        let (head, ..) = ring.take_single(&self.memory, fits)?;
        Some(ring.hold(head))
    }

    /// Has the beginning fetched of what lies so many chains `ahead` of the next. A hint.
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

    /// Keeps the chain taken last: it is given back with [`Queue::complete`].
    #[inline]
    pub fn hold(&mut self) -> Head {
        let Chain { head, descriptors, .. } = &self.chain;
        match &mut self.ring {
            Ring::Split(ring) => ring.hold(*head),
            Ring::Packed(ring) => ring.hold(*head, descriptors),
        }
    }

    /// Keeps a chain taken earlier. `descriptors` are those of the chain.
    #[inline]
    pub(crate) fn hold_earlier(&mut self, head: Head, descriptors: &[chain::Descriptor]) -> Head {
        match &mut self.ring {
            Ring::Split(ring) => ring.hold(head),
            Ring::Packed(ring) => ring.hold(head, descriptors),
        }
    }

    /// Where the queue is.
    #[inline]
    pub fn position(&self) -> Position {
        match &self.ring {
            Ring::Split(ring) => ring.position(),
            Ring::Packed(ring) => ring.position(),
        }
    }

    /// Goes to where the queue was: the chains taken since then, none of them held, are available
    /// again. Or on again, to where it was before it went back.
    #[inline]
    pub fn seek(&mut self, position: Position) {
        match &mut self.ring {
            Ring::Split(ring) => ring.seek(position),
            Ring::Packed(ring) => ring.seek(position),
        }
    }

    /// Gives a chain back, of whose buffers the first `written` bytes to be written were written.
    /// Visible after [`Queue::publish`].
    #[inline]
    pub fn complete(&mut self, head: Head, written: u32) {
        match &mut self.ring {
            Ring::Split(ring) => ring.complete(head, written),
            Ring::Packed(ring) => ring.complete(head, written),
        }
    }

    /// Makes what was given back visible, all at once, and tells the driver if it wants that. True
    /// if it was told.
    pub fn publish(&mut self) -> bool {
        let wanted = match &mut self.ring {
            Ring::Split(ring) => ring.publish(),
            Ring::Packed(ring) => ring.publish(),
        };
        // The first time in any case: who was here before may have ended between the two.
        let tell = wanted.is_some_and(|wanted| wanted || self.is_new);
        if tell {
            self.is_new = false;
            self.signal();
        }
        tell
    }

    /// Asks the driver for a kick with the next available chain. True if there is one already:
    /// then no kick may come.
    pub fn enable_kicks(&mut self) -> bool {
        self.broken.is_none()
            && match &mut self.ring {
                Ring::Split(ring) => ring.enable_kicks(),
                Ring::Packed(ring) => ring.enable_kicks(),
            }
    }

    /// True if a chain is available, or the driver says so. It may be a moment ago that none was.
    pub fn has_next(&self) -> bool {
        self.broken.is_none()
            && match &self.ring {
                Ring::Split(ring) => ring.has_next(),
                Ring::Packed(ring) => ring.has_next(),
            }
    }

    /// Asks the driver not to kick. It may all the same.
    pub fn disable_kicks(&mut self) {
        match &mut self.ring {
            Ring::Split(ring) => ring.disable_kicks(),
            Ring::Packed(ring) => ring.disable_kicks(),
        }
    }

    /// Changes the descriptor that tells the driver. Used entries may have been published before
    /// it came, so the driver is told once.
    pub fn set_call(&mut self, call: Option<Arc<OwnedFd>>) {
        self.call = call;
        self.signal();
    }

    /// Where to begin the next time, as [`QueueConfig::base`] has it, when nothing is held.
    pub fn base(&self) -> u32 {
        match &self.ring {
            Ring::Split(ring) => ring.base(),
            Ring::Packed(ring) => ring.base(),
        }
    }

    /// What broke the ring.
    pub fn broken(&self) -> Option<Broken> {
        self.broken
    }

    /// Breaks the ring for a reason that its owner found.
    pub fn break_for(&mut self, reason: Broken) -> Broken {
        *self.broken.get_or_insert(reason)
    }

    /// The guest's memory.
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// Descriptors of the ring.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// # Errors
    /// The ring is broken.
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
