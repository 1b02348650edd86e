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

use super::chain::{Descriptor, INDIRECT, NEXT, WRITE};
use crate::vhost_user::memory::Lookup;
use crate::vhost_user::shared::Stretch;
use towpath_packet::VirtioHeader;

/// Most chains of a batch: enough for misses to overlap, few enough that the first buffer is still
/// in the cache when the last one was looked up.
pub(crate) const BATCH_MAX: usize = 16;
/// Bytes of a buffer that are prefetched: the virtio-net header and the shortest Ethernet frame.
const FIRST_BYTES: usize = VirtioHeader::LEN + 64;

/// What a chain's buffer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The device reads it. Longer ones than this end the batch.
    Read { bytes_max: usize },
    /// The device writes it.
    Write,
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

    /// Adds a chain if `descriptor`, its head, is all of it, its buffer is for `kind` and lies in
    /// one region. False if not: then the batch ends.
    ///
    /// # Panics
    /// If the batch has [`BATCH_MAX`] chains.
    #[inline]
    pub(super) fn push(
        &mut self,
        lookup: &mut Lookup<'a>,
        id: u16,
        descriptor: &Descriptor,
        kind: Kind,
    ) -> bool {
        let &Descriptor { address, bytes, flags, .. } = descriptor;
        let (wanted, bytes_max) = match kind {
            Kind::Read { bytes_max } => (0, bytes_max),
            Kind::Write => (WRITE, usize::MAX),
        };
        let is_single = flags & (NEXT | INDIRECT | WRITE) == wanted;
        if !is_single || bytes == 0 || bytes as usize > bytes_max {
            return false;
        }
        let Some(buffer) = lookup.whole(address, bytes as usize) else { return false };
        match kind {
            Kind::Read { .. } => buffer.prefetch_start(FIRST_BYTES),
            Kind::Write => buffer.prefetch_start_for_writes(FIRST_BYTES),
        }
        self.chains[self.count] = Single { id, written: 0, address, buffer };
        self.count += 1;
        true
    }
}
