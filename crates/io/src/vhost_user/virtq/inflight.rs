//! What a queue has taken and not given back, written down in shared memory.
//!
//! The front end keeps the memory when this process ends, and gives it to the next one, which
//! offers the same chains again, oldest first. Each step is ordered such that whatever was stored
//! when the process ended can be completed or taken back; only the order of our own stores matters,
//! as nobody reads it at the same time. The stores that conclude a step are Releases for that
//! reason alone.
//!
//! The front end can write anything to it, at any time. So each word is read once, when a queue
//! starts: what is found is copied, checked, and refused if it contradicts itself. From then on the
//! region is only written to, and what was written is kept here as well: nothing that the front end
//! changes later is ever looked at.
//!
//! Follows the vhost-user protocol's section on inflight I/O tracking, version 1 of the layout.

use super::CHAIN_MAX;
use super::chain::{Descriptor, Head};
use super::place::Place;
use crate::vhost_user::shared::Area;
use std::ops::Range;
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

/// Whether a process has used the region; `None` if it cannot be the region of such a queue.
fn is_new(area: &Area, packed: bool, size: u16) -> Option<bool> {
    if area.bytes() < region_bytes(packed, size) {
        return None;
    }
    match area.load16(VERSION_AT, Relaxed) {
        0 => Some(true),
        VERSION if area.load16(COUNT_AT, Relaxed) == size => Some(false),
        _ => None,
    }
}

/// Of a split ring: an entry for each descriptor.
pub(super) struct SplitRegion {
    area: Area,
    size: u16,
    counter: u64,
    /// The head that was given back last: what the next batch is linked to.
    last: u16,
    /// Heads given back and not published.
    batch: Vec<u16>,
}

impl SplitRegion {
    const LAST_BATCH: usize = 12;
    const USED: usize = 14;
    const ENTRIES: usize = 16;
    const ENTRY_BYTES: usize = 16;
    const NEXT: usize = 6;

    /// Takes the region over, and with it the heads that the last process had, oldest first; none
    /// of a new region. What that process began is concluded; `used` is the ring's index. `None` if
    /// it belongs to another queue.
    pub(super) fn open(area: Area, size: u16, used: u16) -> Option<(Self, Option<Vec<u16>>)> {
        let is_new = is_new(&area, false, size)?;
        let batch = Vec::with_capacity(usize::from(size));
        let last = area.load16(Self::LAST_BATCH, Relaxed);
        let mut region = Self { area, size, counter: 0, last, batch };
        let again = (!is_new).then(|| region.recover(used));
        region.area.store16(Self::USED, used, Relaxed);
        region.area.store16(COUNT_AT, size, Relaxed);
        region.area.store16(VERSION_AT, VERSION, Release);
        Some((region, again))
    }

    fn recover(&mut self, used: u16) -> Vec<u16> {
        // Published, and not noted as given back.
        let count = used.wrapping_sub(self.area.load16(Self::USED, Relaxed)).min(self.size);
        let mut given_back = vec![false; usize::from(self.size)];
        let mut head = self.last;
        for _ in 0..count {
            if head >= self.size {
                break;
            }
            given_back[usize::from(head)] = true;
            self.area.store16(entry(head), 0, Release);
            head = self.area.load16(entry(head) + Self::NEXT, Relaxed);
        }
        // Read before they are sorted: they may change meanwhile.
        let mut taken: Vec<(u64, u16)> = (0..self.size)
            .filter(|&head| !given_back[usize::from(head)])
            .filter(|&head| self.area.load16(entry(head) + TAKEN, Relaxed) & 0xff != 0)
            .map(|head| (self.area.load64(entry(head) + COUNTER, Relaxed), head))
            .collect();
        taken.sort_unstable();
        self.counter = taken.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        taken.into_iter().map(|(_, head)| head).collect()
    }

    pub(super) fn take(&mut self, head: u16) {
        self.area.store64(entry(head) + COUNTER, self.counter, Relaxed);
        self.counter = self.counter.wrapping_add(1);
        self.area.store16(entry(head) + TAKEN, 1, Release);
    }

    /// Adds a chain to the batch that will be published.
    pub(super) fn give_back(&mut self, head: u16) {
        self.area.store16(entry(head) + Self::NEXT, self.last, Relaxed);
        self.area.store16(Self::LAST_BATCH, head, Release);
        self.last = head;
        // More than the ring has are some of them twice, which an honest driver does not offer. The
        // note that stays is of its own chain.
        if self.batch.len() < usize::from(self.size) {
            self.batch.push(head);
        }
    }

    /// The ring's index is `used` now.
    pub(super) fn publish(&mut self, used: u16) {
        for &head in self.batch.iter().rev() {
            self.area.store16(entry(head) + TAKEN, 0, Release);
        }
        self.batch.clear();
        self.area.store16(Self::USED, used, Release);
    }
}

/// Where a split ring's descriptor has its entry.
fn entry(head: u16) -> usize {
    SplitRegion::ENTRIES + SplitRegion::ENTRY_BYTES * usize::from(head)
}

/// What the last process had of a packed ring, as it was found: chains in the order in which they
/// were taken.
#[derive(Default)]
pub(super) struct Recovered {
    descriptors: Vec<Descriptor>,
    /// Of each chain its first entry in the region, and where its descriptors are above.
    chains: Vec<(u16, Range<usize>)>,
}

impl Recovered {
    pub(super) fn len(&self) -> usize {
        self.chains.len()
    }

    /// Descriptors of all chains.
    pub(super) fn descriptors(&self) -> u16 {
        // No more than the ring has: no entry is in two chains.
        self.descriptors.len() as u16
    }

    /// The chain `at`, whose descriptors are added.
    pub(super) fn chain(&self, at: usize, descriptors: &mut Vec<Descriptor>) -> Option<Head> {
        let (entry, range) = self.chains.get(at)?;
        let own = &self.descriptors[range.clone()];
        descriptors.extend_from_slice(own);
        let id = own.last()?.number;
        Some(Head { id, descriptors: own.len() as u16, entry: *entry, again: true })
    }
}

/// An entry of the lists: where they go on, and of a chain's first its last.
#[derive(Clone, Copy, Default)]
struct Links {
    next: u16,
    last: u16,
}

/// Of a packed ring, whose descriptors are overwritten: a copy of each, in lists.
pub(super) struct PackedRegion {
    area: Area,
    size: u16,
    counter: u64,
    /// The lists, as they were written down. Those of entries that are taken or free stay below
    /// `size`, but for the end of the free ones, which is `size`.
    links: Box<[Links]>,
    free: u16,
    /// Where the next used descriptor goes, and where it went before the batch that is published.
    used: Place,
    old: Place,
    /// First entries of the chains given back and not published.
    batch: Vec<u16>,
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

    /// Takes the region over, and with it what the last process had, unless it is new: then it
    /// begins at `used`. What that process began is concluded or taken back: `is_available` tells
    /// whether the ring's descriptor there is still as the driver wrote it. `None` if the region
    /// belongs to another queue or contradicts itself.
    pub(super) fn open(
        area: Area,
        size: u16,
        used: Place,
        is_available: impl Fn(Place) -> bool,
    ) -> Option<(Self, Option<Recovered>)> {
        let is_new = is_new(&area, true, size)?;
        let batch = Vec::with_capacity(usize::from(size));
        let links = vec![Links::default(); usize::from(size)].into_boxed_slice();
        let mut region = Self { area, size, counter: 0, links, free: 0, used, old: used, batch };
        let again = if is_new { None } else { Some(region.recover(is_available)?) };
        region.relink(again.as_ref().map_or(&[], |again| &again.chains));
        region.note_used(region.used);
        region.note_old();
        region.area.store16(COUNT_AT, size, Relaxed);
        region.area.store16(VERSION_AT, VERSION, Release);
        Some((region, again))
    }

    /// Where the next used descriptor goes.
    pub(super) fn used(&self) -> Place {
        self.used
    }

    fn recover(&mut self, is_available: impl Fn(Place) -> bool) -> Option<Recovered> {
        let field = |at| self.area.load16(at, Relaxed);
        let wraps = field(Self::WRAPS);
        let new = Place { index: field(Self::USED), wrap: wraps & 0xff != 0 };
        let old = Place { index: field(Self::OLD_USED), wrap: wraps >> 8 != 0 };
        let mut free = field(Self::OLD_FREE);
        (self.used, self.old) = (old, old);
        if new != old && old.index < self.size && !is_available(old) {
            (self.used, free) = (new, field(Self::FREE));
        }
        if self.used.index >= self.size {
            return None;
        }
        // Entries that are free count as such whatever they say: the last process may have ended
        // before it marked them.
        let mut is_known = vec![false; usize::from(self.size)];
        while free < self.size && !std::mem::replace(&mut is_known[usize::from(free)], true) {
            self.area.store16(packed_entry(free) + TAKEN, 0, Release);
            free = self.load(free, Self::NEXT);
        }
        // Read before they are sorted: they may change meanwhile.
        let mut taken: Vec<(u64, u16)> = (0..self.size)
            .filter(|&first| !is_known[usize::from(first)])
            .filter(|&first| self.load(first, TAKEN) & 0xff != 0)
            .map(|first| (self.area.load64(packed_entry(first) + COUNTER, Relaxed), first))
            .collect();
        taken.sort_unstable();
        self.counter = taken.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        let mut again = Recovered::default();
        for (_, first) in taken {
            self.read(first, &mut is_known, &mut again)?;
        }
        Some(again)
    }

    /// Copies the chain whose first entry is `first`; `None` if it contradicts itself, or has an
    /// entry that `is_known` already.
    fn read(&mut self, first: u16, is_known: &mut [bool], again: &mut Recovered) -> Option<()> {
        let count = self.load(first, Self::COUNT);
        if count == 0 || usize::from(count) > CHAIN_MAX {
            return None;
        }
        let from = again.descriptors.len();
        let (mut index, mut last) = (first, first);
        for _ in 0..count {
            if std::mem::replace(is_known.get_mut(usize::from(index))?, true) {
                return None;
            }
            again.descriptors.push(Descriptor {
                address: self.area.load64(packed_entry(index) + Self::ADDRESS, Relaxed),
                bytes: self.area.load32(packed_entry(index) + Self::LENGTH, Relaxed),
                flags: self.load(index, Self::FLAGS),
                number: self.load(index, Self::ID),
            });
            let next = self.load(index, Self::NEXT);
            self.links[usize::from(index)].next = next;
            (last, index) = (index, next);
        }
        self.links[usize::from(first)].last = last;
        again.chains.push((first, from..again.descriptors.len()));
        Some(())
    }

    /// Puts all entries that are in none of these chains on the list of free ones, lowest first,
    /// and writes down how entries are linked.
    fn relink(&mut self, chains: &[(u16, Range<usize>)]) {
        let mut is_taken = vec![false; usize::from(self.size)];
        for (first, range) in chains {
            let mut index = *first;
            for _ in range.clone() {
                is_taken[usize::from(index)] = true;
                index = self.links[usize::from(index)].next;
            }
            self.store(*first, Self::LAST, self.links[usize::from(*first)].last);
        }
        self.free = self.size;
        for index in (0..self.size).rev().filter(|&index| !is_taken[usize::from(index)]) {
            self.link(index, self.free);
            self.free = index;
        }
        self.area.store16(Self::FREE, self.free, Relaxed);
    }

    /// Writes a chain down, of no more descriptors than there are free entries; returns its first
    /// entry.
    pub(super) fn take(&mut self, descriptors: &[Descriptor]) -> u16 {
        let first = self.free;
        self.area.store64(packed_entry(first) + COUNTER, self.counter, Relaxed);
        self.counter = self.counter.wrapping_add(1);
        self.store(first, Self::COUNT, descriptors.len() as u16);
        self.store(first, TAKEN, 1);
        let (mut index, mut last) = (first, first);
        for descriptor in descriptors {
            self.store(index, Self::ID, descriptor.number);
            self.store(index, Self::FLAGS, descriptor.flags);
            self.area.store32(packed_entry(index) + Self::LENGTH, descriptor.bytes, Relaxed);
            self.area.store64(packed_entry(index) + Self::ADDRESS, descriptor.address, Relaxed);
            (last, index) = (index, self.links[usize::from(index)].next);
        }
        self.links[usize::from(first)].last = last;
        self.store(first, Self::LAST, last);
        self.free = index;
        self.area.store16(Self::FREE, index, Relaxed);
        // From here on it counts as taken.
        self.area.store16(Self::OLD_FREE, index, Release);
        first
    }

    /// Adds a chain to the batch that will be published.
    pub(super) fn give_back(&mut self, first: u16) {
        self.batch.push(first);
    }

    /// The batch is about to be published, up to `used`.
    pub(super) fn prepare(&mut self, used: Place) {
        for at in 0..self.batch.len() {
            let first = self.batch[at];
            self.link(self.links[usize::from(first)].last, self.free);
            self.free = first;
            self.area.store16(Self::FREE, first, Relaxed);
        }
        self.note_used(used);
    }

    /// It is published.
    pub(super) fn publish(&mut self) {
        for at in 0..self.batch.len() {
            self.store(self.batch[at], TAKEN, 0);
        }
        self.batch.clear();
        self.note_old();
    }

    fn note_used(&mut self, used: Place) {
        self.used = used;
        self.area.store16(Self::USED, used.index, Relaxed);
        self.store_wraps();
    }

    fn note_old(&mut self) {
        self.old = self.used;
        self.area.store16(Self::OLD_FREE, self.free, Release);
        self.area.store16(Self::OLD_USED, self.old.index, Release);
        self.store_wraps();
    }

    fn store_wraps(&self) {
        let wraps = u16::from(self.old.wrap) << 8 | u16::from(self.used.wrap);
        self.area.store16(Self::WRAPS, wraps, Release);
    }

    fn link(&mut self, index: u16, next: u16) {
        self.links[usize::from(index)].next = next;
        self.store(index, Self::NEXT, next);
    }

    fn load(&self, index: u16, field: usize) -> u16 {
        self.area.load16(packed_entry(index) + field, Relaxed)
    }

    fn store(&self, index: u16, field: usize, value: u16) {
        self.area.store16(packed_entry(index) + field, value, Release);
    }
}

/// Where an entry of a packed ring's region is.
fn packed_entry(index: u16) -> usize {
    PackedRegion::ENTRIES + PackedRegion::ENTRY_BYTES * usize::from(index)
}
