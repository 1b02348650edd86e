//! The address table: the port of each station of a VLAN (IEEE 802.1Q §8.8).
//!
//! Entries have 16 bytes, in one array with linear probing. At most half of the slots are in use,
//! so that most searches end in the cache line where they begin. Removal closes the gap instead of
//! leaving a tombstone, so the table does not slow down with use. The hash is seeded, so that
//! attackers cannot choose colliding addresses.
//!
//! A learned entry that was not refreshed within the ageing time is no longer found; the next
//! [`Fdb::expire`] removes it. A static entry stays until it is removed.

use alloc::boxed::Box;
use core::hash::BuildHasher;

use foldhash::fast::FixedState;

use super::PORTS_MAX;
use super::vlan::Vid;
use crate::time::{Duration, Instant};
use crate::wire::MacAddr;

/// A station in a VLAN; never zero, as VLAN 0 does not exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Key(u64);

impl Key {
    #[inline]
    pub(super) fn new(mac: MacAddr, vid: Vid) -> Self {
        let [a, b, c, d, e, f] = mac.0;
        Self(u64::from_be_bytes([0, 0, a, b, c, d, e, f]) << 16 | u64::from(vid.number()))
    }
}

/// Entry of a station.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) port: u8,
    pub(super) is_static: bool,
    /// Time of its last frame in milliseconds.
    seen_ms: u64,
}

impl Entry {
    fn unpack(value: u64) -> Self {
        Self { port: value as u8, is_static: value & STATIC != 0, seen_ms: value >> SEEN_SHIFT }
    }

    fn pack(self) -> u64 {
        let kind = if self.is_static { STATIC } else { 0 };
        self.seen_ms << SEEN_SHIFT | kind | u64::from(self.port)
    }
}

/// A slot of the table: empty if the key is zero.
#[derive(Clone, Copy)]
struct Slot {
    key: u64,
    value: u64,
}

const EMPTY: Slot = Slot { key: 0, value: 0 };
const _: () = assert!(size_of::<Slot>() == 16, "four entries in a cache line");

pub(super) struct Fdb {
    slots: Box<[Slot]>,
    mask: usize,
    hash: FixedState,
    age_ms: u64,
    /// Entries of each port, learned and static.
    counts: [u32; PORTS_MAX],
    /// Earliest time at which an entry may expire.
    expires_ms: Option<u64>,
}

impl Fdb {
    /// A table with room for `entries_max`.
    pub(super) fn new(entries_max: usize, age: Duration, seed: u64) -> Self {
        let places = (entries_max.max(1) * PLACES_PER_ENTRY).next_power_of_two();
        Self {
            slots: alloc::vec![EMPTY; places].into_boxed_slice(),
            mask: places - 1,
            hash: FixedState::with_seed(seed),
            age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
            counts: [0; PORTS_MAX],
            expires_ms: None,
        }
    }

    /// Finds the current entry of a station.
    pub(super) fn find(&self, key: Key, now: Instant) -> Option<Entry> {
        let slot = self.slots[self.place_of(key.0).ok()?];
        let entry = Entry::unpack(slot.value);
        self.is_current(&entry, now.millis()).then_some(entry)
    }

    /// Inserts or replaces the entry of a station. The caller has checked that this is allowed, and
    /// keeps the number of entries within the size of the table.
    pub(super) fn put(&mut self, key: Key, port: u8, is_static: bool, now: Instant) {
        let seen_ms = now.millis();
        let value = Entry { port, is_static, seen_ms }.pack();
        match self.place_of(key.0) {
            Ok(place) => {
                let before = Entry::unpack(self.slots[place].value);
                self.counts[usize::from(before.port)] -= 1;
                self.slots[place].value = value;
            }
            Err(place) => self.slots[place] = Slot { key: key.0, value },
        }
        self.counts[usize::from(port)] += 1;
        if !is_static && self.expires_ms.is_none() {
            self.expires_ms = Some(seen_ms.saturating_add(self.age_ms));
        }
    }

    /// Number of a port's entries, including expired ones that are not removed yet.
    pub(super) fn count(&self, port: u8) -> u32 {
        self.counts[usize::from(port)]
    }

    /// Number of a port's static entries. Walks the table.
    pub(super) fn static_count(&self, port: u8) -> u32 {
        let taken = self.slots.iter().filter(|slot| slot.key != 0);
        let entries = taken.map(|slot| Entry::unpack(slot.value));
        entries.filter(|entry| entry.is_static && entry.port == port).count() as u32
    }

    /// Port of an entry, even if it has expired.
    pub(super) fn holder(&self, key: Key) -> Option<u8> {
        let place = self.place_of(key.0).ok()?;
        Some(Entry::unpack(self.slots[place].value).port)
    }

    /// Removes one entry; true if it was there.
    pub(super) fn remove(&mut self, key: Key) -> bool {
        let place = self.place_of(key.0);
        place.map(|place| self.clear(place)).is_ok()
    }

    /// Removes the entries of `port`; static ones only if `statics`.
    pub(super) fn remove_port(&mut self, port: u8, statics: bool) {
        self.retain(|entry| entry.port != port || (entry.is_static && !statics));
    }

    /// Removes expired entries, if there can be any.
    pub(super) fn expire(&mut self, now: Instant) {
        let now_ms = now.millis();
        if self.expires_ms.is_none_or(|at| now_ms < at) {
            return;
        }
        let age_ms = self.age_ms;
        let mut oldest_ms = None;
        self.retain(|entry| {
            let current = entry.is_static || now_ms.saturating_sub(entry.seen_ms) < age_ms;
            if current && !entry.is_static {
                let oldest = oldest_ms.get_or_insert(entry.seen_ms);
                *oldest = entry.seen_ms.min(*oldest);
            }
            current
        });
        self.expires_ms = oldest_ms.map(|oldest| oldest.saturating_add(age_ms));
    }

    /// When [`Fdb::expire`] must be called next.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.expires_ms.map(|ms| Instant::from_micros(ms.saturating_mul(1000)))
    }

    /// All current entries; for reports.
    pub(super) fn iter(&self, now: Instant) -> impl Iterator<Item = (MacAddr, Vid, Entry)> + '_ {
        let taken = self.slots.iter().filter(|slot| slot.key != 0);
        taken.filter_map(move |slot| {
            let [_, _, a, b, c, d, e, f] = (slot.key >> 16).to_be_bytes();
            let entry = Entry::unpack(slot.value);
            let vid = Vid::new(slot.key as u16)?;
            self.is_current(&entry, now.millis()).then_some((
                MacAddr([a, b, c, d, e, f]),
                vid,
                entry,
            ))
        })
    }

    fn is_current(&self, entry: &Entry, now_ms: u64) -> bool {
        entry.is_static || now_ms.saturating_sub(entry.seen_ms) < self.age_ms
    }

    /// Slot of a key, or the free slot where it would be inserted.
    fn place_of(&self, key: u64) -> Result<usize, usize> {
        let mut place = self.home(key);
        loop {
            match self.slots[place].key {
                0 => return Err(place),
                found if found == key => return Ok(place),
                _ => place = (place + 1) & self.mask,
            }
        }
    }

    fn home(&self, key: u64) -> usize {
        self.hash.hash_one(key) as usize & self.mask
    }

    fn retain(&mut self, mut keep: impl FnMut(&Entry) -> bool) {
        for place in 0..self.slots.len() {
            // Closing a gap may move another entry here.
            while self.slots[place].key != 0 && !keep(&Entry::unpack(self.slots[place].value)) {
                self.clear(place);
            }
        }
    }

    /// Empties a slot and moves later entries up that could no longer be found across the gap.
    fn clear(&mut self, place: usize) {
        let port = Entry::unpack(self.slots[place].value).port;
        self.counts[usize::from(port)] -= 1;
        let distance = |from: usize, to: usize| to.wrapping_sub(from) & self.mask;
        let (mut gap, mut next) = (place, place);
        loop {
            next = (next + 1) & self.mask;
            let slot = self.slots[next];
            if slot.key == 0 {
                break;
            }
            if distance(self.home(slot.key), next) >= distance(gap, next) {
                self.slots[gap] = slot;
                gap = next;
            }
        }
        self.slots[gap] = EMPTY;
    }
}

/// Slots of the table per possible entry.
const PLACES_PER_ENTRY: usize = 2;

/// Marks a static entry; the bit above the port.
const STATIC: u64 = 1 << 8;
/// Position of the time in a value: 48 bits of milliseconds are 9000 years.
const SEEN_SHIFT: u32 = 16;

#[cfg(test)]
mod tests;
