//! The in-flight region: records in shared memory which chains a queue has taken and not returned.
//!
//! The front end keeps the memory when this process ends, and passes it to the next one, which
//! takes the same chains again, oldest first. The stores of each step are ordered so that the step
//! can be completed or undone, whichever of them were made when the process ended. Only the order
//! of our own stores matters, because no other process reads the region at the same time. This is
//! the only reason why the last store of each step is a Release.
//!
//! The front end can write anything into the region, at any time. So each word is read once, when a
//! queue starts: the content is copied, checked, and refused if it contradicts itself. From then on
//! the region is only written, and this process has its own copy of what it wrote. It never reads
//! what the front end changes later.
//!
//! Follows the vhost-user protocol's section on inflight I/O tracking, version 1 of the layout.

use super::CHAIN_MAX;
use super::chain::{Descriptor, Head};
use super::place::Place;
use crate::vhost_user::shared::Area;
use std::ops::Range;
use towpath_packet::sync::Ordering::{Relaxed, Release};

/// Version of the layout; zero in a region that was never used.
const VERSION: u16 = 1;
/// Fields at the start of both layouts.
const VERSION_AT: usize = 8;
const COUNT_AT: usize = 10;
/// Fields of an entry in both layouts.
const TAKEN: usize = 0;
const COUNTER: usize = 8;

/// Bytes of the region for a queue of `size` descriptors: a multiple of a cache line.
pub const fn region_bytes(packed: bool, size: u16) -> usize {
    let (first, entry) = if packed {
        (PackedRegion::ENTRIES, PackedRegion::ENTRY_BYTES)
    } else {
        (SplitRegion::ENTRIES, SplitRegion::ENTRY_BYTES)
    };
    (first + entry * size as usize).next_multiple_of(64)
}

/// True if no process has used the region; `None` if it cannot be the region of this queue.
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

/// The region of a split ring: one entry per descriptor.
pub(super) struct SplitRegion {
    area: Area,
    size: u16,
    counter: u64,
    /// The head that was returned last, to which the next batch is linked.
    last: u16,
    /// Heads returned and not published.
    batch: Vec<u16>,
}

impl SplitRegion {
    const LAST_BATCH: usize = 12;
    const USED: usize = 14;
    const ENTRIES: usize = 16;
    const ENTRY_BYTES: usize = 16;
    const NEXT: usize = 6;

    /// Takes over the region. Returns it with the heads that the previous process held, oldest
    /// first, or `None` for them if the region is new. Completes what that process began; `used` is
    /// the ring's used index. Returns `None` if the region belongs to another queue.
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
        // Heads published in the ring, and not recorded as returned.
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
        // Read once, before sorting, because the values may change meanwhile.
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
        // More heads than the ring has contain duplicates, which an honest driver never makes
        // available. The record that stays behind concerns only the driver's own chain.
        if self.batch.len() < usize::from(self.size) {
            self.batch.push(head);
        }
    }

    /// The used index of the ring is `used` now.
    pub(super) fn publish(&mut self, used: u16) {
        for &head in self.batch.iter().rev() {
            self.area.store16(entry(head) + TAKEN, 0, Release);
        }
        self.batch.clear();
        self.area.store16(Self::USED, used, Release);
    }
}

/// Offset of the entry for a split ring's descriptor.
fn entry(head: u16) -> usize {
    SplitRegion::ENTRIES + SplitRegion::ENTRY_BYTES * usize::from(head)
}

/// The chains of a packed ring that the previous process held, copied from the region, in the order
/// in which they were taken.
#[derive(Default)]
pub(super) struct Recovered {
    descriptors: Vec<Descriptor>,
    /// For each chain its first entry in the region, and the range of its descriptors above.
    chains: Vec<(u16, Range<usize>)>,
}

impl Recovered {
    pub(super) fn len(&self) -> usize {
        self.chains.len()
    }

    /// Number of descriptors of all chains.
    pub(super) fn descriptors(&self) -> u16 {
        // At most the ring's size, because no entry is in two chains.
        self.descriptors.len() as u16
    }

    /// Appends the descriptors of chain number `at`; returns its head.
    pub(super) fn chain(&self, at: usize, descriptors: &mut Vec<Descriptor>) -> Option<Head> {
        let (entry, range) = self.chains.get(at)?;
        let own = &self.descriptors[range.clone()];
        descriptors.extend_from_slice(own);
        let id = own.last()?.number;
        Some(Head { id, descriptors: own.len() as u16, entry: *entry, again: true })
    }
}

/// Links of an entry: the next entry, and for the first entry of a chain its last.
#[derive(Clone, Copy, Default)]
struct Links {
    next: u16,
    last: u16,
}

/// The region of a packed ring, whose descriptors are overwritten: lists with a copy of each
/// descriptor.
pub(super) struct PackedRegion {
    area: Area,
    size: u16,
    counter: u64,
    /// The lists, as they were written to the region. The links of entries that are taken or free
    /// stay below `size`, except the end of the free list, which is `size`.
    links: Box<[Links]>,
    free: u16,
    /// The position of the next used descriptor, and that position before the batch being
    /// published.
    used: Place,
    old: Place,
    /// First entries of the chains returned and not published.
    batch: Vec<u16>,
}

impl PackedRegion {
    const FREE: usize = 12;
    const OLD_FREE: usize = 14;
    const USED: usize = 16;
    const OLD_USED: usize = 18;
    /// Both wrap counters, one byte each: the current one first.
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

    /// Takes over the region. Returns it with the chains that the previous process held, or `None`
    /// for them if the region is new; then it starts at `used`. Completes or undoes what that
    /// process began: `is_available` returns whether the ring's descriptor at a position is still
    /// as the driver wrote it. Returns `None` if the region belongs to another queue or contradicts
    /// itself.
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

    /// The position of the next used descriptor.
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
        // Entries on the free list are free, whatever they contain: the previous process may have
        // ended before it marked them.
        let mut is_known = vec![false; usize::from(self.size)];
        while free < self.size && !std::mem::replace(&mut is_known[usize::from(free)], true) {
            self.area.store16(packed_entry(free) + TAKEN, 0, Release);
            free = self.load(free, Self::NEXT);
        }
        // Read once, before sorting, because the values may change meanwhile.
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

    /// Copies the chain whose first entry is `first`. Returns `None` if it contradicts itself, or
    /// contains an entry that `is_known` already has.
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

    /// Puts all entries that are in none of these chains on the free list, lowest first, and writes
    /// the links of the entries.
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

    /// Records a chain, which must not have more descriptors than there are free entries. Returns
    /// its first entry.
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
        // From this store on the chain counts as taken.
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

    /// The batch has been published.
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

/// Offset of an entry in a packed ring's region.
fn packed_entry(index: u16) -> usize {
    PackedRegion::ENTRIES + PackedRegion::ENTRY_BYTES * usize::from(index)
}
