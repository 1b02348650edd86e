//! The packed layout: one ring that both sides write, and one event suppression structure for each
//! side (virtio 1.2 §2.8).

use super::batch::{Batch, Found, Kind, SHAPE};
use super::chain::{Chain, Descriptor, Head, INDIRECT, NEXT, Segment, WRITE};
use super::inflight::{PackedRegion, Recovered};
use super::place::Place;
use super::{Broken, Position, QueueConfig, StartError, feature};
use crate::vhost_user::memory::{GuestMemory, LoggedArea, Lookup};
use crate::vhost_user::shared::{Area, Cells};
use towpath_packet::sync::{AtomicU64, Ordering, fence};

/// Equal to the driver's wrap counter if the descriptor is available.
const AVAIL: u16 = 1 << 7;
/// Also equal to the wrap counter if the descriptor is used.
const USED: u16 = 1 << 15;
/// In the second word of a descriptor, what a batch checks before the buffer.
const CHECKED: u64 = ((SHAPE | AVAIL | USED) as u64) << 48;
/// Event suppression: notify always, never, or at one descriptor.
const ENABLE: u16 = 0;
const DISABLE: u16 = 1;
const AT_DESCRIPTOR: u16 = 2;
/// Offsets of the descriptor and the flags in the event suppression structure.
const EVENT: usize = 0;
const EVENT_FLAGS: usize = 2;
const EVENT_BYTES: usize = 4;

pub(super) struct Ring {
    descriptors: Cells<[AtomicU64; 2]>,
    /// The descriptors, to mark those that were written.
    area: LoggedArea,
    driver: LoggedArea,
    device: LoggedArea,
    size: u16,
    event_index: bool,
    indirect: bool,
    /// The next descriptor to take.
    next: Place,
    /// The next descriptor to write as used.
    used: Place,
    /// The first used descriptor that is not visible yet, and the word that will make it visible.
    hidden: Option<(Place, u64)>,
    kicks: u16,
    inflight: Option<PackedRegion>,
    /// Chains that the previous process held, which are taken first.
    again: Recovered,
    again_at: usize,
}

impl Ring {
    pub(super) fn start(config: &QueueConfig, memory: &GuestMemory) -> Result<Self, StartError> {
        let size = config.size;
        let area =
            |address, bytes, align| memory.area(address, bytes, align).ok_or(StartError::Address);
        let mut ring = area(config.descriptors, 16 * usize::from(size), 16)?;
        let driver = area(config.driver, EVENT_BYTES, 4)?;
        let mut device = area(config.device, EVENT_BYTES, 4)?;
        if config.log {
            ring = ring.logged(memory);
            device = device.logged(memory);
        }
        let descriptors = ring.cells(0, usize::from(size)).ok_or(StartError::Address)?;
        // Front ends that send only the lower half mean a ring in which every chain was returned.
        let (low, high) = (config.base as u16, (config.base >> 16) as u16);
        let next = Place::from_bits(low, size).ok_or(StartError::Base)?;
        let used = if high == 0 { Some(next) } else { Place::from_bits(high, size) };
        let used = used.ok_or(StartError::Base)?;
        let mut ring = Self {
            descriptors,
            area: ring,
            driver,
            device,
            size,
            event_index: config.features & feature::EVENT_INDEX != 0,
            indirect: config.features & feature::INDIRECT != 0,
            next,
            used,
            hidden: None,
            kicks: ENABLE,
            inflight: None,
            again: Recovered::default(),
            again_at: 0,
        };
        if let Some(area) = &config.inflight {
            ring.recover(area.clone())?;
        }
        // Chains that are not returned yet count: no more can be taken than the ring has left.
        if ring.out() > u32::from(size) {
            return Err(StartError::Base);
        }
        Ok(ring)
    }

    /// Takes over what the previous process recorded, if anything.
    fn recover(&mut self, area: Area) -> Result<(), StartError> {
        let flags = |place: Place| self.flags(place.index, Ordering::Acquire);
        let is_available = |place| is_available(flags(place), place.wrap);
        let found = PackedRegion::open(area, self.size, self.used, is_available);
        let (region, again) = found.ok_or(StartError::Inflight)?;
        if let Some(again) = again {
            (self.used, self.next) = (region.used(), region.used());
            // If the first descriptor of a batch was not visible yet, the others may look used. The
            // driver does not own them any more than the first.
            for _ in 0..again.descriptors() {
                let flags = available(self.next.wrap);
                let at = 16 * usize::from(self.next.index) + 14;
                // Relaxed: published with whatever becomes visible first.
                self.area.store16(at, flags, Ordering::Relaxed);
                self.next.advance(1, self.size);
            }
            self.again = again;
        }
        self.inflight = Some(region);
        Ok(())
    }

    /// Number of descriptors that the driver does not have: those taken, and those not visible yet.
    fn out(&self) -> u32 {
        let first = self.hidden.map_or(self.used, |(first, _)| first);
        self.next.since(first, self.size)
    }

    fn flags(&self, index: u16, order: Ordering) -> u16 {
        self.area.load16(16 * usize::from(index) + 14, order)
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
        let left = (u32::from(self.size).saturating_sub(self.out()) as usize).min(before + most);
        let Some(count) = left.checked_sub(before) else { return };
        let mut place = self.next;
        place.advance(before as u16, self.size);
        let mut wrap = place.wrap;
        for descriptors in self.descriptors.run(usize::from(place.index), count) {
            let wanted = u64::from(available(wrap) | kind.flags()) << 48;
            let chains = descriptors.iter().map_while(|[address, rest]| {
                // Acquire: pairs with the driver's barrier of §2.8.21.1: the rest of the descriptor
                // was written before its flags, which are in the word that is read here.
                let rest = u64::from_le(rest.load(Ordering::Acquire));
                if rest & CHECKED != wanted {
                    return None;
                }
                // Relaxed: the Acquire above orders it.
                let address = u64::from_le(address.load(Ordering::Relaxed));
                let Descriptor { bytes, number: id, .. } = Descriptor::packed(address, rest);
                Some(Found { id, address, bytes })
            });
            if batch.append(lookup, kind, chains) < descriptors.len() {
                break;
            }
            wrap = !wrap;
        }
    }

    /// Takes the first `count` chains of a batch that begins with the next one, and returns them as
    /// used.
    #[inline]
    pub(super) fn pass(&mut self, batch: &Batch<'_>, count: usize) {
        // First, because the used position never passes the next one.
        self.next.advance(count as u16, self.size);
        let mut chains = &batch.chains()[..count];
        if self.hidden.is_none()
            && let Some((first, others)) = chains.split_first()
        {
            self.put_used(first.id, first.written, 1);
            chains = others;
        }
        let runs = self.descriptors.run(usize::from(self.used.index), chains.len());
        let (before_end, after) = chains.split_at(runs[0].len());
        let mut wrap = self.used.wrap;
        for (descriptors, chains) in runs.into_iter().zip([before_end, after]) {
            for ([_, rest], chain) in descriptors.iter().zip(chains) {
                let word = used(chain.id, chain.written, wrap);
                // Relaxed: the driver reads in order, and the first descriptor is not visible yet.
                rest.store(word.to_le(), Ordering::Relaxed);
            }
            wrap = !wrap;
        }
        self.used.advance(chains.len() as u16, self.size);
    }

    /// Takes the next chain if it is one writable buffer of at least `bytes` bytes. None for a ring
    /// that records chains in flight.
    #[inline]
    pub(super) fn take_room(
        &mut self,
        memory: &GuestMemory,
        bytes: usize,
    ) -> Option<(Head, Segment)> {
        let is_plain = self.again_at >= self.again.len() && self.inflight.is_none();
        if !is_plain || self.out() >= u32::from(self.size) {
            return None;
        }
        let [address, rest] = &self.descriptors.get()[usize::from(self.next.index)];
        // Acquire: pairs with the driver's barrier of §2.8.21.1: the rest of the descriptor was
        // written before its flags, which are in the word that is read here.
        let rest = u64::from_le(rest.load(Ordering::Acquire));
        if !is_available((rest >> 48) as u16, self.next.wrap) {
            return None;
        }
        // Relaxed: the Acquire above orders it.
        let descriptor = Descriptor::packed(u64::from_le(address.load(Ordering::Relaxed)), rest);
        let segment = descriptor.room(memory, bytes)?;
        self.next.advance(1, self.size);
        Some((Head { id: descriptor.number, descriptors: 1, ..Head::default() }, segment))
    }

    /// Writes a used descriptor for a chain of `count` descriptors.
    #[inline]
    fn put_used(&mut self, id: u16, written: u32, count: u16) {
        let word = used(id, written, self.used.wrap);
        if self.hidden.is_none() {
            self.hidden = Some((self.used, word));
        } else {
            let [_, rest] = &self.descriptors.get()[usize::from(self.used.index)];
            // Relaxed: the driver reads in order, and the first descriptor is not visible yet.
            rest.store(word.to_le(), Ordering::Relaxed);
        }
        self.used.advance(count, self.size);
    }

    pub(super) fn take(&mut self, memory: &GuestMemory, chain: &mut Chain) -> Result<bool, Broken> {
        if let Some(head) = self.again.chain(self.again_at, &mut chain.descriptors) {
            chain.head = head;
            for index in 0..chain.descriptors.len() {
                let descriptor = chain.descriptors[index];
                self.push(memory, chain, &descriptor)?;
            }
            self.again_at += 1;
            return Ok(true);
        }
        let descriptors = self.descriptors.get();
        let [_, rest] = &descriptors[usize::from(self.next.index)];
        // Acquire: pairs with the driver's barrier of §2.8.21.1: the whole chain was written before
        // the flags of its head, which are in the word that is read here.
        let mut rest = u64::from_le(rest.load(Ordering::Acquire));
        if !is_available((rest >> 48) as u16, self.next.wrap) {
            return Ok(false);
        }
        let (mut place, left) = (self.next, u32::from(self.size).saturating_sub(self.out()));
        for count in 1..=self.size {
            if u32::from(count) > left {
                return Err(Broken::Index);
            }
            let [first, second] = &descriptors[usize::from(place.index)];
            if count > 1 {
                // Relaxed: the flags of the head order this load.
                rest = u64::from_le(second.load(Ordering::Relaxed));
            }
            // Relaxed: the flags of the head order this load.
            let address = u64::from_le(first.load(Ordering::Relaxed));
            let descriptor = Descriptor::packed(address, rest);
            self.push(memory, chain, &descriptor)?;
            place.advance(1, self.size);
            if self.inflight.is_some() {
                if chain.descriptors.len() == chain.descriptors.capacity() {
                    return Err(Broken::TooLong);
                }
                chain.descriptors.push(descriptor);
            }
            if descriptor.flags & NEXT == 0 {
                chain.head = Head { id: descriptor.number, descriptors: count, ..Head::default() };
                self.next = place;
                return Ok(true);
            }
        }
        Err(Broken::TooLong)
    }

    /// Prefetches the buffer that is `ahead` descriptors after the next, if it is available.
    pub(super) fn prefetch(&self, memory: &GuestMemory, ahead: u16) {
        let mut place = self.next;
        place.advance(ahead.min(self.size - 1), self.size);
        // Relaxed: a hint; everything is read again when it is taken.
        if is_available(self.flags(place.index, Ordering::Relaxed), place.wrap) {
            let [address, rest] = &self.descriptors.get()[usize::from(place.index)];
            // Relaxed: a hint; everything is read again when it is taken.
            let address = u64::from_le(address.load(Ordering::Relaxed));
            // Relaxed: a hint; everything is read again when it is taken.
            memory.prefetch(address, u64::from_le(rest.load(Ordering::Relaxed)) as u32);
        }
    }

    fn push(
        &self,
        memory: &GuestMemory,
        chain: &mut Chain,
        descriptor: &Descriptor,
    ) -> Result<(), Broken> {
        if descriptor.flags & INDIRECT == 0 {
            return chain.push(memory, descriptor);
        }
        // §2.8.8: only as the last of its chain, and only if negotiated.
        if !self.indirect || descriptor.flags & NEXT != 0 {
            return Err(Broken::Indirect);
        }
        chain.push_all(memory, descriptor)
    }

    pub(super) fn hold(&mut self, mut head: Head, descriptors: &[Descriptor]) -> Head {
        if let Some(region) = &mut self.inflight
            && !head.again
        {
            head.entry = region.take(descriptors);
        }
        head
    }

    pub(super) fn position(&self) -> Position {
        Position { next: self.next.index, wrap: self.next.wrap, again: self.again_at }
    }

    pub(super) fn seek(&mut self, position: Position) {
        self.next = Place { index: position.next, wrap: position.wrap };
        self.again_at = position.again;
    }

    pub(super) fn complete(&mut self, head: Head, written: u32) {
        self.put_used(head.id, written, head.descriptors);
        if let Some(region) = &mut self.inflight {
            region.give_back(head.entry);
        }
    }

    /// Returns `None` if there was nothing to publish, otherwise whether the driver wants a call.
    pub(super) fn publish(&mut self) -> Option<bool> {
        let (first, word) = self.hidden.take()?;
        if let Some(region) = &mut self.inflight {
            region.prepare(self.used);
        }
        // Release: publishes all entries of the batch; pairs with the driver's barrier of §2.8.22
        // after its load of the flags.
        let [_, rest] = &self.descriptors.get()[usize::from(first.index)];
        rest.store(word.to_le(), Ordering::Release);
        self.mark_used(first);
        if let Some(region) = &mut self.inflight {
            region.publish();
        }
        // SeqCst: between the store of our flags and the load of the driver's request; its partner
        // is between the driver's store of the request and its load of the ring (§2.8.14).
        fence(Ordering::SeqCst);
        // Relaxed: the fence orders this load. It is one load, so that the flags and the descriptor
        // belong together.
        let request = self.driver.load32(EVENT, Ordering::Relaxed);
        let (event, wish) = (request as u16, (request >> 16) as u16);
        if wish != AT_DESCRIPTOR || !self.event_index {
            return Some(wish != DISABLE);
        }
        let event = Place { index: event & 0x7fff, wrap: event & 0x8000 != 0 };
        // The descriptor that the driver waits for is among those from `first` to `used`. One that
        // is outside the ring also leads to a call, because its meaning is unclear.
        let distance = event.since(first, self.size);
        Some(event.index >= self.size || distance < self.used.since(first, self.size))
    }

    /// Marks the descriptors from `first` to the next used one in the dirty log.
    fn mark_used(&self, first: Place) {
        let count = self.used.since(first, self.size).min(u32::from(self.size)) as usize;
        let from = usize::from(first.index);
        let before_end = count.min(usize::from(self.size) - from);
        self.area.mark(16 * from, 16 * before_end);
        self.area.mark(0, 16 * (count - before_end));
    }

    pub(super) fn enable_kicks(&mut self) -> bool {
        if self.event_index {
            // Relaxed: the flags order this store.
            self.device.store16(EVENT, self.next.bits(), Ordering::Relaxed);
            self.set_kicks(AT_DESCRIPTOR);
        } else {
            self.set_kicks(ENABLE);
        }
        // SeqCst: between the store of our request and the load of the ring; its partner is the
        // barrier that §2.8.21.3.1 requires between the driver's store of the flags and its load of
        // our request.
        fence(Ordering::SeqCst);
        self.has_next()
    }

    pub(super) fn has_next(&self) -> bool {
        // Relaxed: `take` reads the flags again with Acquire.
        self.again_at < self.again.len()
            || is_available(self.flags(self.next.index, Ordering::Relaxed), self.next.wrap)
    }

    pub(super) fn disable_kicks(&mut self) {
        self.set_kicks(DISABLE);
    }

    fn set_kicks(&mut self, wish: u16) {
        if self.kicks != wish {
            self.kicks = wish;
            // Release: publishes the descriptor stored before; pairs with the driver's read
            // barrier.
            self.device.store16(EVENT_FLAGS, wish, Ordering::Release);
        }
    }

    pub(super) fn base(&self) -> u32 {
        u32::from(self.next.bits()) | u32::from(self.used.bits()) << 16
    }
}

fn is_available(flags: u16, wrap: bool) -> bool {
    flags & (AVAIL | USED) == available(wrap)
}

/// State of a descriptor that is available (§2.8.1).
#[inline]
fn available(wrap: bool) -> u16 {
    if wrap { AVAIL } else { USED }
}

/// The second word of a used descriptor.
#[inline]
fn used(id: u16, written: u32, wrap: bool) -> u64 {
    let state = if wrap { AVAIL | USED } else { 0 };
    // §2.8.3: the flag says that the device wrote, and only then the length counts.
    let flags = if written > 0 { state | WRITE } else { state };
    u64::from(written) | u64::from(id) << 32 | u64::from(flags) << 48
}
