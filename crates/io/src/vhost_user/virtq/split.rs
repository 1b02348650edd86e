//! The split layout: a descriptor table, an available ring that the driver writes, and a used ring
//! that the device writes (virtio 1.2 §2.7).

use super::batch::{Batch, Found, Kind, SHAPE};
use super::chain::{Chain, Descriptor, Head, INDIRECT, NEXT, Segment};
use super::inflight::SplitRegion;
use super::{Broken, Position, QueueConfig, StartError, feature};
use crate::vhost_user::memory::{GuestMemory, LoggedArea, Lookup};
use crate::vhost_user::shared::{Cells, store_pair};
use towpath_packet::sync::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

/// Flag of the available ring: the driver wants no calls.
const NO_INTERRUPT: u16 = 1;
/// Flag of the used ring: the device wants no kicks.
const NO_NOTIFY: u16 = 1;
/// Offsets of the flags, the index and the entries in both rings.
const FLAGS: usize = 0;
const INDEX: usize = 2;
const ENTRIES: usize = 4;
/// Bytes of an entry of the used ring.
const USED_BYTES: usize = 8;

pub(super) struct Ring {
    descriptors: Cells<[AtomicU64; 2]>,
    /// Entries of the available and of the used ring: `size` each, a power of two.
    available_entries: Cells<AtomicU16>,
    used_entries: Cells<[AtomicU32; 2]>,
    /// The whole rings, for their other fields.
    driver: LoggedArea,
    device: LoggedArea,
    size: u16,
    /// `size - 1`, for positions in the rings. If the code used `size`, the compiler would load the
    /// next field together with it, and wait for the last store to that field and all stores before
    /// it.
    mask: usize,
    event_index: bool,
    indirect: bool,
    /// The next available entry to take, and the driver's index when it was last read.
    next: u16,
    seen: u16,
    /// The next used entry to write, and the first entry that is not visible yet.
    used: u16,
    published: u16,
    no_notify: bool,
    inflight: Option<SplitRegion>,
    /// Heads that the previous process held, which are taken first.
    again: Vec<u16>,
    again_at: usize,
}

impl Ring {
    pub(super) fn start(config: &QueueConfig, memory: &GuestMemory) -> Result<Self, StartError> {
        let size = config.size;
        if !size.is_power_of_two() {
            return Err(StartError::Size);
        }
        let count = usize::from(size);
        // Each ring ends with an event index, which a driver without that feature may leave out.
        let event_index = config.features & feature::EVENT_INDEX != 0;
        let event_bytes = if event_index { 2 } else { 0 };
        let area =
            |address, bytes, align| memory.area(address, bytes, align).ok_or(StartError::Address);
        let descriptors = area(config.descriptors, 16 * count, 16)?;
        let descriptors = descriptors.cells(0, count).ok_or(StartError::Address)?;
        let driver = area(config.driver, ENTRIES + 2 * count + event_bytes, 2)?;
        let mut device = area(config.device, ENTRIES + USED_BYTES * count + event_bytes, 4)?;
        if config.log {
            device = device.logged(memory);
        }
        let available_entries = driver.cells(ENTRIES, count).ok_or(StartError::Address)?;
        let used_entries = device.cells(ENTRIES, count).ok_or(StartError::Address)?;
        // Relaxed: only this side writes the field, and no other memory depends on it.
        let used = device.load16(INDEX, Ordering::Relaxed);
        let mut next = u16::try_from(config.base).map_err(|_| StartError::Base)?;
        let mut again = Vec::new();
        let mut inflight = None;
        if let Some(area) = &config.inflight {
            let (region, found) =
                SplitRegion::open(area.clone(), size, used).ok_or(StartError::Inflight)?;
            if let Some(found) = found {
                next = used.wrapping_add(found.len() as u16);
                again = found;
            }
            inflight = Some(region);
        }
        Ok(Self {
            descriptors,
            available_entries,
            used_entries,
            driver,
            device,
            size,
            mask: count - 1,
            event_index,
            indirect: config.features & feature::INDIRECT != 0,
            next,
            seen: next,
            used,
            published: used,
            no_notify: false,
            inflight,
            again,
            again_at: 0,
        })
    }

    /// Reads up to `most` chains behind the next `before` into `batch`, which it replaces: see
    /// [`batch`](super::batch). None for a ring that records chains in flight.
    #[inline]
    pub(super) fn read<'m>(
        &mut self,
        lookup: &mut Lookup<'m>,
        batch: &mut Batch<'m>,
        kind: Kind,
        (before, most): (usize, usize),
    ) {
        batch.clear();
        if self.again_at < self.again.len() || self.inflight.is_some() {
            return;
        }
        let first = self.next.wrapping_add(before as u16);
        // After an error, `take` finds it again.
        if self.seen == first && self.look().is_err() {
            return;
        }
        let available = self.seen.wrapping_sub(self.next);
        if available > self.size {
            return;
        }
        let count = usize::from(available).saturating_sub(before).min(most);
        let descriptors = self.descriptors.get();
        for entries in self.available_entries.run(usize::from(first) & self.mask, count) {
            let chains = entries.iter().map_while(|entry| {
                // Relaxed: the index of the available ring orders this load.
                let id = u16::from_le(entry.load(Ordering::Relaxed));
                let Descriptor { address, bytes, flags, .. } = Self::descriptor(descriptors, id)?;
                (flags & SHAPE == kind.flags()).then_some(Found { id, address, bytes })
            });
            if batch.append(lookup, kind, chains) < entries.len() {
                break;
            }
        }
    }

    /// Takes the first `count` chains of a batch that begins with the next one, and returns them as
    /// used.
    #[inline]
    pub(super) fn pass(&mut self, batch: &Batch<'_>, count: usize) {
        let chains = &batch.chains()[..count];
        let entries = self.used_entries.run(usize::from(self.used) & self.mask, count);
        let (before_end, after) = chains.split_at(entries[0].len());
        for (entries, chains) in entries.into_iter().zip([before_end, after]) {
            for (entry, chain) in entries.iter().zip(chains) {
                store_pair(entry, u32::from(chain.id), chain.written);
            }
        }
        self.used = self.used.wrapping_add(count as u16);
        self.next = self.next.wrapping_add(count as u16);
    }

    /// Takes the next chain if its index was already read, and it is one writable buffer of at
    /// least `bytes` bytes.
    #[inline]
    pub(super) fn take_room(
        &mut self,
        memory: &GuestMemory,
        bytes: usize,
    ) -> Option<(Head, Segment)> {
        if self.again_at < self.again.len() || self.seen == self.next {
            return None;
        }
        let id = self.entry(self.next);
        let segment = Self::descriptor(self.descriptors.get(), id)?.room(memory, bytes)?;
        self.next = self.next.wrapping_add(1);
        Some((Head { id, descriptors: 1, entry: id, again: false }, segment))
    }

    /// Reads how far the driver has come. An error if that is more than a round: then the index
    /// that was read before stays.
    #[inline]
    fn look(&mut self) -> Result<(), Broken> {
        // Acquire: pairs with the driver's barrier of §2.7.13.3.1: the entries and their
        // descriptors were written before the index.
        let seen = self.driver.load16(INDEX, Ordering::Acquire);
        if seen.wrapping_sub(self.next) > self.size {
            return Err(Broken::Index);
        }
        self.seen = seen;
        Ok(())
    }

    #[inline]
    pub(super) fn take(&mut self, memory: &GuestMemory, chain: &mut Chain) -> Result<bool, Broken> {
        if let Some(&head) = self.again.get(self.again_at) {
            self.walk(memory, head, chain)?;
            chain.head.again = true;
            self.again_at += 1;
            return Ok(true);
        }
        if self.seen == self.next {
            self.look()?;
        }
        match self.seen.wrapping_sub(self.next) {
            0 => return Ok(false),
            available if available > self.size => return Err(Broken::Index),
            _ => {}
        }
        let head = self.entry(self.next);
        self.walk(memory, head, chain)?;
        self.next = self.next.wrapping_add(1);
        Ok(true)
    }

    /// Returns the head in an available entry below the index that was read.
    #[inline]
    fn entry(&self, index: u16) -> u16 {
        // Relaxed: the index of the available ring orders this load.
        u16::from_le(
            self.available_entries.get()[usize::from(index) & self.mask].load(Ordering::Relaxed),
        )
    }

    /// Reads a descriptor that the available ring names; `None` if there is none of this number.
    #[inline]
    fn descriptor(descriptors: &[[AtomicU64; 2]], number: u16) -> Option<Descriptor> {
        let [address, rest] = descriptors.get(usize::from(number))?;
        // Relaxed: the index of the available ring orders this load.
        let address = u64::from_le(address.load(Ordering::Relaxed));
        // Relaxed: the index of the available ring orders this load.
        let rest = u64::from_le(rest.load(Ordering::Relaxed));
        Some(Descriptor::split(address, rest))
    }

    /// Prefetches the first buffer of the chain that is `ahead` chains after the next, if the index
    /// covers it.
    #[inline]
    pub(super) fn prefetch(&self, memory: &GuestMemory, ahead: u16) {
        if self.seen.wrapping_sub(self.next) <= ahead {
            return;
        }
        // It is read again when it is taken.
        let head = self.entry(self.next.wrapping_add(ahead));
        if let Some(descriptor) = Self::descriptor(self.descriptors.get(), head) {
            memory.prefetch(descriptor.address, descriptor.bytes);
        }
    }

    fn walk(&self, memory: &GuestMemory, head: u16, chain: &mut Chain) -> Result<(), Broken> {
        let descriptors = self.descriptors.get();
        let mut index = head;
        for before in 0..self.size {
            chain.head = Head { id: head, descriptors: before + 1, entry: head, again: false };
            let descriptor = Self::descriptor(descriptors, index).ok_or(Broken::Descriptor)?;
            if descriptor.flags & INDIRECT != 0 {
                // §2.7.5.3.1: only as the last of its chain, and only if negotiated.
                if !self.indirect || descriptor.flags & NEXT != 0 {
                    return Err(Broken::Indirect);
                }
                return chain.push_linked(memory, &descriptor);
            }
            chain.push(memory, &descriptor)?;
            if descriptor.flags & NEXT == 0 {
                return Ok(());
            }
            index = descriptor.number;
        }
        Err(Broken::TooLong)
    }

    #[inline]
    pub(super) fn hold(&mut self, head: Head) -> Head {
        if let Some(region) = &mut self.inflight
            && !head.again
        {
            region.take(head.id);
        }
        head
    }

    pub(super) fn position(&self) -> Position {
        Position { next: self.next, wrap: false, again: self.again_at }
    }

    pub(super) fn seek(&mut self, position: Position) {
        (self.next, self.again_at) = (position.next, position.again);
    }

    #[inline]
    pub(super) fn complete(&mut self, head: Head, written: u32) {
        let entry = &self.used_entries.get()[usize::from(self.used) & self.mask];
        store_pair(entry, u32::from(head.id), written);
        self.used = self.used.wrapping_add(1);
        if let Some(region) = &mut self.inflight {
            region.give_back(head.id);
        }
    }

    /// Returns `None` if there was nothing to publish, otherwise whether the driver wants a call.
    pub(super) fn publish(&mut self) -> Option<bool> {
        let old = self.published;
        if self.used == old {
            return None;
        }
        self.mark_used(old);
        // Release: publishes the entries; pairs with the driver's barrier of §2.7.14 after its load
        // of the index.
        self.device.store16(INDEX, self.used, Ordering::Release);
        if let Some(region) = &mut self.inflight {
            region.publish(self.used);
        }
        self.published = self.used;
        // SeqCst: between the store of our index and the load of the driver's request; its partner
        // is between the driver's store of the request and its load of the index (§2.7.7.2).
        fence(Ordering::SeqCst);
        if !self.event_index {
            // Relaxed: the fence orders this load.
            return Some(self.driver.load16(FLAGS, Ordering::Relaxed) & NO_INTERRUPT == 0);
        }
        let at = ENTRIES + 2 * usize::from(self.size);
        // Relaxed: the fence orders this load.
        let event = self.driver.load16(at, Ordering::Relaxed);
        // §2.7.7.2: the entry that the driver waits for is among those published now.
        Some(self.used.wrapping_sub(event).wrapping_sub(1) < self.used.wrapping_sub(old))
    }

    /// Marks the used entries from `first` on in the dirty log. Not per entry: most are in one
    /// page.
    fn mark_used(&self, first: u16) {
        let from = usize::from(first) & self.mask;
        let count = usize::from(self.used.wrapping_sub(first)).min(self.mask + 1);
        let before_end = count.min(self.mask + 1 - from);
        self.device.mark(ENTRIES + USED_BYTES * from, USED_BYTES * before_end);
        self.device.mark(ENTRIES, USED_BYTES * (count - before_end));
    }

    pub(super) fn enable_kicks(&mut self) -> bool {
        if self.event_index {
            let at = ENTRIES + USED_BYTES * usize::from(self.size);
            // Relaxed: the fence orders this store.
            self.device.store16(at, self.next, Ordering::Relaxed);
        } else if self.no_notify {
            self.no_notify = false;
            // Relaxed: the fence orders this store.
            self.device.store16(FLAGS, 0, Ordering::Relaxed);
        }
        // SeqCst: between the store of our request and the load of the index; its partner is the
        // barrier that §2.7.13.4.1 requires between the driver's store of the index and its load of
        // our request.
        fence(Ordering::SeqCst);
        self.has_next()
    }

    pub(super) fn has_next(&self) -> bool {
        // Relaxed: `take` reads the index again with Acquire.
        self.again_at < self.again.len()
            || self.driver.load16(INDEX, Ordering::Relaxed) != self.next
    }

    pub(super) fn disable_kicks(&mut self) {
        // With an event index, an index that has been passed already requests no kick.
        if !self.event_index && !self.no_notify {
            self.no_notify = true;
            // Relaxed: a request that the driver may see late.
            self.device.store16(FLAGS, NO_NOTIFY, Ordering::Relaxed);
        }
    }

    pub(super) fn base(&self) -> u32 {
        // Heads of the previous process that were not taken again lie before `next`.
        u32::from(self.next)
    }
}
