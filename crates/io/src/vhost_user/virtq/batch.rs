//! Chains of one buffer each, read together.
//!
//! Nearly all chains of short frames, and nearly all receive buffers, are a single descriptor with
//! a buffer in one region. A ring reads up to [`BATCH_MAX`] of them at once ([`Batch`]): it checks
//! and looks up each buffer, and prefetches its beginning, before any of them is used. So the cache
//! misses of a batch overlap. Then the owner passes a prefix of the batch, which returns these
//! chains as used; the ring reads the rest again.
//!
//! A ring ends a batch before the first chain that is anything else, such as a table, a list of
//! buffers, a buffer that is too long or an invalid descriptor. [`Queue::take`](super::Queue::take)
//! reads that one again, and reports what is wrong with it.
//!
//! The ring checks the flags of a descriptor against [`Kind::flags`], in one comparison with those
//! that make it available; the batch checks its buffer.

use super::chain::{INDIRECT, NEXT, WRITE};
use crate::vhost_user::memory::Lookup;
use crate::vhost_user::shared::Stretch;
use towpath_packet::VirtioHeader;

/// Most chains of a batch: enough for misses to overlap, few enough that the first buffer is still
/// in the cache when the last one was looked up.
pub(crate) const BATCH_MAX: usize = 16;
/// Bytes of a buffer that are prefetched: the virtio-net header and the shortest Ethernet frame.
const FIRST_BYTES: usize = VirtioHeader::LEN + 64;
/// Flags of a descriptor: whether it is a whole chain, and what its buffer is for.
pub(super) const SHAPE: u16 = NEXT | INDIRECT | WRITE;

/// What a chain's buffer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The device reads it. Longer ones than this end the batch.
    Read { bytes_max: usize },
    /// The device writes a short frame to it.
    Write,
    /// The device writes a long frame to it. Its beginning is not prefetched, because the
    /// processor's own prefetcher follows such writes.
    WriteLong,
}

impl Kind {
    /// Flags, of those in [`SHAPE`], of a descriptor that is a whole chain of this kind.
    #[inline]
    pub(super) fn flags(self) -> u16 {
        match self {
            Self::Read { .. } => 0,
            Self::Write | Self::WriteLong => WRITE,
        }
    }

    #[inline]
    fn bytes_max(self) -> usize {
        match self {
            Self::Read { bytes_max } => bytes_max,
            Self::Write | Self::WriteLong => usize::MAX,
        }
    }
}

/// A descriptor that is a whole chain, as a ring reads it.
pub(super) struct Found {
    pub(super) id: u16,
    pub(super) address: u64,
    pub(super) bytes: u32,
}

/// A chain of one buffer.
#[derive(Clone, Copy)]
pub(crate) struct Single<'a> {
    /// The driver's identifier of the chain.
    pub(super) id: u16,
    /// Bytes that the owner wrote to the buffer.
    pub(crate) written: u32,
    /// Guest address of the buffer.
    pub(crate) address: u64,
    pub(crate) buffer: Stretch<'a>,
}

/// Chains that were read and not passed yet; see the module documentation.
pub(crate) struct Batch<'a> {
    chains: [Single<'a>; BATCH_MAX],
    count: usize,
}

impl<'a> Batch<'a> {
    pub(crate) fn new() -> Self {
        let none = Single { id: 0, written: 0, address: 0, buffer: Stretch::empty() };
        Self { chains: [none; BATCH_MAX], count: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The chains, in the order of the ring.
    pub(crate) fn chains(&self) -> &[Single<'a>] {
        &self.chains[..self.count]
    }

    pub(crate) fn chains_mut(&mut self) -> &mut [Single<'a>] {
        &mut self.chains[..self.count]
    }

    pub(super) fn clear(&mut self) {
        self.count = 0;
    }

    /// Adds chains, of which the ring knows that they have the flags of `kind`, up to the first one
    /// whose buffer is empty, too long or not in one region. Returns the number of those added.
    #[inline]
    pub(super) fn append(
        &mut self,
        lookup: &mut Lookup<'a>,
        kind: Kind,
        chains: impl Iterator<Item = Found>,
    ) -> usize {
        let (before, bytes_max) = (self.count, kind.bytes_max());
        // Not the field: it would be written before each prefetch, which may read any memory.
        let mut added = 0;
        for (place, Found { id, address, bytes }) in self.chains[before..].iter_mut().zip(chains) {
            let bytes = bytes as usize;
            // The length before zero is longer than any.
            if bytes.wrapping_sub(1) >= bytes_max {
                break;
            }
            let Some(buffer) = lookup.whole(address, bytes) else { break };
            match kind {
                Kind::Read { .. } => buffer.prefetch_start(FIRST_BYTES),
                Kind::Write => buffer.prefetch_start_for_writes(FIRST_BYTES),
                Kind::WriteLong => {}
            }
            *place = Single { id, written: 0, address, buffer };
            added += 1;
        }
        self.count += added;
        added
    }
}
