//! What a queue has taken and not given back, written down in shared memory.
//!
//! The front end keeps the memory when this process ends, and gives it to the next one, which
//! offers the same chains again, oldest first. Each step is ordered such that whatever was stored
//! when the process ended can be completed or taken back; only the order of our own stores matters,
//! as nobody reads it at the same time. The stores that conclude a step are Releases for that
//! reason alone.
//!
//! The front end could have written anything to it: numbers are checked, walks are bounded, and
//! what is found is read again as any chain is.
//!
//! Follows the vhost-user protocol's section on inflight I/O tracking, version 1 of the layout.

use super::chain::{Descriptor, Head};
use super::packed::Place;
use crate::vhost_user::shared::Area;
use towpath_packet::sync::Ordering::{Relaxed, Release};

/// Version of the layout; a region that nobody has used yet has zero.
const VERSION: u16 = 1;
/// Fields of both layouts' beginning.
const VERSION_AT: usize = 8;
const COUNT_AT: usize = 10;
/// Fields of an entry in both.
const TAKEN: usize = 0;
const COUNTER: usize = 8;

/// Bytes of the region of a queue of `size` descriptors: a multiple of a cache line.
pub const fn region_bytes(packed: bool, size: u16) -> usize {
    let (first, entry) = if packed {
        (PackedRegion::ENTRIES, PackedRegion::ENTRY_BYTES)
    } else {
        (SplitRegion::ENTRIES, SplitRegion::ENTRY_BYTES)
    };
    (first + entry * size as usize).next_multiple_of(64)
}

/// True if `area` can be the region of such a queue.
fn fits(area: &Area, packed: bool, size: u16) -> bool {
    area.bytes() >= region_bytes(packed, size)
        && (area.load16(VERSION_AT, Relaxed) == 0
            || (area.load16(VERSION_AT, Relaxed) == VERSION
                && area.load16(COUNT_AT, Relaxed) == size))
}

/// Of a split ring: an entry for each descriptor.
pub(super) struct SplitRegion {
    area: Area,
    size: u16,
    counter: u64,
}

impl SplitRegion {
    const LAST_BATCH: usize = 12;
    const USED: usize = 14;
    const ENTRIES: usize = 16;
    const ENTRY_BYTES: usize = 16;
    const NEXT: usize = 6;

    pub(super) fn open(area: Area, size: u16) -> Option<Self> {
        fits(&area, false, size).then_some(Self { area, size, counter: 0 })
    }

    /// True if no process has used the region.
    pub(super) fn is_new(&self) -> bool {
        self.area.load16(VERSION_AT, Relaxed) == 0
    }

    /// Notes that all before `used`, the ring's index, was given back.
    pub(super) fn begin(&mut self, used: u16) {
        self.area.store16(Self::USED, used, Relaxed);
        self.area.store16(COUNT_AT, self.size, Relaxed);
        self.area.store16(VERSION_AT, VERSION, Release);
    }

    /// Concludes what the last process began and returns the heads that it had, oldest first.
    /// `used` is the ring's index.
    pub(super) fn recover(&mut self, used: u16) -> Vec<u16> {
        let noted = self.area.load16(Self::USED, Relaxed);
        // Published, and not noted as given back.
        self.clear_batch(used.wrapping_sub(noted));
        let taken = |&head: &u16| self.area.load16(entry(head), Relaxed) & 0xff != 0;
        let counter = |head: u16| self.area.load64(entry(head) + COUNTER, Relaxed);
        let mut heads: Vec<u16> = (0..self.size).filter(taken).collect();
        heads.sort_by_key(|&head| counter(head));
        self.counter = heads.last().map_or(0, |&head| counter(head).wrapping_add(1));
        heads
    }

    pub(super) fn take(&mut self, head: u16) {
        self.area.store64(entry(head) + COUNTER, self.counter, Relaxed);
        self.counter = self.counter.wrapping_add(1);
        self.area.store16(entry(head) + TAKEN, 1, Release);
    }

    /// Adds a chain to the batch that will be published.
    pub(super) fn give_back(&mut self, head: u16) {
        let last = self.area.load16(Self::LAST_BATCH, Relaxed);
        self.area.store16(entry(head) + Self::NEXT, last, Relaxed);
        self.area.store16(Self::LAST_BATCH, head, Release);
    }

    /// The ring's index went from `old` to `used`.
    pub(super) fn publish(&mut self, old: u16, used: u16) {
        self.clear_batch(used.wrapping_sub(old));
        self.area.store16(Self::USED, used, Release);
    }

    fn clear_batch(&mut self, count: u16) {
        let mut head = self.area.load16(Self::LAST_BATCH, Relaxed);
        for _ in 0..count.min(self.size) {
            if head >= self.size {
                return;
            }
            self.area.store16(entry(head) + TAKEN, 0, Release);
            head = self.area.load16(entry(head) + Self::NEXT, Relaxed);
        }
    }
}

/// Where a split ring's descriptor has its entry.
fn entry(head: u16) -> usize {
    SplitRegion::ENTRIES + SplitRegion::ENTRY_BYTES * usize::from(head)
}

/// Of a packed ring, whose descriptors are overwritten: a copy of each, in lists.
pub(super) struct PackedRegion {
    area: Area,
    size: u16,
    counter: u64,
    /// First entries of the chains given back and not published.
    batch: Vec<u16>,
    /// The lists contradict themselves: nothing is written down any more.
    is_lost: bool,
}

impl PackedRegion {
    const FREE: usize = 12;
    const OLD_FREE: usize = 14;
    const USED: usize = 16;
    const OLD_USED: usize = 18;
    /// Both wrap counters, a byte each: the current one first.
    const WRAPS: usize = 20;
    const ENTRIES: usize = 32;
    const ENTRY_BYTES: usize = 32;
    const NEXT: usize = 2;
    const LAST: usize = 4;
    const COUNT: usize = 6;
    const ID: usize = 16;
    const FLAGS: usize = 18;
    const LENGTH: usize = 20;
    const ADDRESS: usize = 24;

    pub(super) fn open(area: Area, size: u16) -> Option<Self> {
        let batch = Vec::with_capacity(usize::from(size));
        fits(&area, true, size).then_some(Self { area, size, counter: 0, batch, is_lost: false })
    }

    /// True if no process has used the region.
    pub(super) fn is_new(&self) -> bool {
        self.area.load16(VERSION_AT, Relaxed) == 0
    }

    /// Makes the lists of a new region.
    pub(super) fn begin(&mut self, used: Place) {
        for index in 0..self.size {
            self.set(index, Self::NEXT, index + 1);
        }
        self.note_used(used);
        self.note_old();
        self.area.store16(COUNT_AT, self.size, Relaxed);
        self.area.store16(VERSION_AT, VERSION, Release);
    }

    /// Concludes or takes back what the last process began. Returns where the next used descriptor
    /// goes, the chains that it had, oldest first, and their descriptors in all. `is_available`
    /// tells whether the ring's descriptor there is still as the driver wrote it.
    pub(super) fn recover(
        &mut self,
        is_available: impl Fn(Place) -> bool,
    ) -> (Place, Vec<u16>, u32) {
        let wraps = self.area.load16(Self::WRAPS, Relaxed);
        let field = |at| self.area.load16(at, Relaxed);
        let new = Place { index: field(Self::USED), wrap: wraps & 0xff != 0 };
        let old = Place { index: field(Self::OLD_USED), wrap: wraps >> 8 != 0 };
        let mut used = old;
        if new != old && old.index < self.size && !is_available(old) {
            used = new;
        } else {
            self.area.store16(Self::FREE, field(Self::OLD_FREE), Relaxed);
        }
        self.note_used(used);
        self.note_old();
        let mut free = self.area.load16(Self::FREE, Relaxed);
        for _ in 0..self.size {
            if free >= self.size {
                break;
            }
            self.set(free, TAKEN, 0);
            free = self.get(free, Self::NEXT);
        }
        let mut taken: Vec<u16> =
            (0..self.size).filter(|&index| self.get(index, TAKEN) & 0xff != 0).collect();
        taken.sort_by_key(|&index| self.counter_of(index));
        self.counter = taken.last().map_or(0, |&index| self.counter_of(index).wrapping_add(1));
        let descriptors = taken.iter().map(|&index| u32::from(self.get(index, Self::COUNT))).sum();
        (used, taken, descriptors)
    }

    /// The chain whose first entry is `first`; `None` if it contradicts itself.
    pub(super) fn read(&self, first: u16, descriptors: &mut Vec<Descriptor>) -> Option<Head> {
        descriptors.clear();
        let count = self.get(first, Self::COUNT);
        if count == 0 || usize::from(count) > descriptors.capacity() {
            return None;
        }
        let mut index = first;
        for _ in 0..count {
            if index >= self.size {
                return None;
            }
            descriptors.push(Descriptor {
                address: self.area.load64(packed_entry(index) + Self::ADDRESS, Relaxed),
                bytes: self.area.load32(packed_entry(index) + Self::LENGTH, Relaxed),
                flags: self.get(index, Self::FLAGS),
                number: self.get(index, Self::ID),
            });
            index = self.get(index, Self::NEXT);
        }
        let id = descriptors.last()?.number;
        Some(Head { id, descriptors: count, entry: first, again: true })
    }

    /// Writes a chain down; returns its first entry.
    pub(super) fn take(&mut self, descriptors: &[Descriptor]) -> u16 {
        let first = self.area.load16(Self::FREE, Relaxed);
        self.is_lost |= first >= self.size;
        if self.is_lost {
            return 0;
        }
        self.area.store64(packed_entry(first) + COUNTER, self.counter, Relaxed);
        self.counter = self.counter.wrapping_add(1);
        self.set(first, Self::COUNT, descriptors.len() as u16);
        self.set(first, TAKEN, 1);
        let (mut index, mut last) = (first, first);
        for descriptor in descriptors {
            if index >= self.size {
                self.is_lost = true;
                self.set(first, TAKEN, 0);
                return 0;
            }
            self.set(index, Self::ID, descriptor.number);
            self.set(index, Self::FLAGS, descriptor.flags);
            self.area.store32(packed_entry(index) + Self::LENGTH, descriptor.bytes, Relaxed);
            self.area.store64(packed_entry(index) + Self::ADDRESS, descriptor.address, Relaxed);
            (last, index) = (index, self.get(index, Self::NEXT));
        }
        self.set(first, Self::LAST, last);
        self.area.store16(Self::FREE, index, Relaxed);
        // From here on it counts as taken.
        self.area.store16(Self::OLD_FREE, index, Release);
        first
    }

    /// Adds a chain to the batch that will be published.
    pub(super) fn give_back(&mut self, first: u16) {
        if !self.is_lost {
            self.batch.push(first);
        }
    }

    /// The batch is about to be published, up to `used`.
    pub(super) fn prepare(&mut self, used: Place) {
        for at in 0..self.batch.len() {
            let first = self.batch[at];
            let last = self.get(first, Self::LAST);
            if last >= self.size {
                self.is_lost = true;
                continue;
            }
            self.set(last, Self::NEXT, self.area.load16(Self::FREE, Relaxed));
            self.area.store16(Self::FREE, first, Relaxed);
        }
        self.note_used(used);
    }

    /// It is published.
    pub(super) fn publish(&mut self) {
        for at in 0..self.batch.len() {
            self.set(self.batch[at], TAKEN, 0);
        }
        self.batch.clear();
        self.note_old();
    }

    fn note_used(&mut self, used: Place) {
        self.area.store16(Self::USED, used.index, Relaxed);
        let old = self.area.load16(Self::WRAPS, Relaxed) & 0xff00;
        self.area.store16(Self::WRAPS, old | u16::from(used.wrap), Release);
    }

    fn note_old(&mut self) {
        self.area.store16(Self::OLD_FREE, self.area.load16(Self::FREE, Relaxed), Release);
        self.area.store16(Self::OLD_USED, self.area.load16(Self::USED, Relaxed), Release);
        let wrap = self.area.load16(Self::WRAPS, Relaxed) & 0xff;
        self.area.store16(Self::WRAPS, wrap | wrap << 8, Release);
    }

    fn counter_of(&self, index: u16) -> u64 {
        self.area.load64(packed_entry(index) + COUNTER, Relaxed)
    }

    fn get(&self, index: u16, field: usize) -> u16 {
        self.area.load16(packed_entry(index) + field, Relaxed)
    }

    fn set(&self, index: u16, field: usize, value: u16) {
        self.area.store16(packed_entry(index) + field, value, Release);
    }
}

/// Where an entry of a packed ring's region is.
fn packed_entry(index: u16) -> usize {
    PackedRegion::ENTRIES + PackedRegion::ENTRY_BYTES * usize::from(index)
}
