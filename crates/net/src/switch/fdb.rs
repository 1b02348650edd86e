//! The address table: the port of each station of a VLAN (IEEE 802.1Q §8.8).
//!
//! Entries have 16 bytes, in a [`Table`] that one thread changes and others read without locks. Its
//! hash is seeded, so that attackers cannot choose colliding addresses.
//!
//! A learned entry that was not refreshed within the ageing time is no longer found; the next
//! [`Fdb::expire`] removes it. A static entry stays until it is removed.
//!
//! [`Fdb`] is the owner's. A [`FdbReader`] changes one thing only: the time of a station's last
//! frame.

use foldhash::fast::FixedState;
use towpath_packet::table::{Found, Table, TableReader};

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

    /// One of 64 bits. Equal keys have the same bit.
    #[inline]
    pub(super) fn bit(self) -> u64 {
        // The upper bits of a product depend on all bits of its factors.
        1 << (self.0.wrapping_mul(FACTOR) >> (u64::BITS - 6))
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

    fn is_current(&self, now_ms: u64, age_ms: u64) -> bool {
        self.is_static || now_ms.saturating_sub(self.seen_ms) < age_ms
    }
}

pub(super) struct Fdb {
    table: Table<FixedState>,
    age_ms: u64,
    /// Entries of each port, learned and static.
    counts: [u32; PORTS_MAX],
    /// Earliest time at which an entry may expire.
    expires_ms: Option<u64>,
    /// Entries that were added or removed, or got another port, so far.
    changes: u64,
}

impl Fdb {
    /// A table with room for `entries_max`.
    pub(super) fn new(entries_max: usize, age: Duration, seed: u64) -> Self {
        Self {
            table: Table::new(entries_max, FixedState::with_seed(seed)),
            age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
            counts: [0; PORTS_MAX],
            expires_ms: None,
            changes: 0,
        }
    }

    /// The table for another thread.
    pub(super) fn reader(&self) -> FdbReader {
        FdbReader { table: self.table.reader(), age_ms: self.age_ms }
    }

    /// Finds the current entry of a station.
    pub(super) fn find(&self, key: Key, now: Instant) -> Option<Entry> {
        let entry = Entry::unpack(self.table.get(key.0)?);
        entry.is_current(now.millis(), self.age_ms).then_some(entry)
    }

    /// Inserts or replaces the entry of a station. The caller has checked that this is allowed, and
    /// keeps the number of entries within the size of the table.
    pub(super) fn put(&mut self, key: Key, port: u8, is_static: bool, now: Instant) {
        let seen_ms = now.millis();
        let before = self.table.insert(key.0, Entry { port, is_static, seen_ms }.pack());
        let before = before.map(|value| Entry::unpack(value).port);
        self.changes += u64::from(before != Some(port));
        if let Some(before) = before {
            self.counts[usize::from(before)] -= 1;
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
        let entries = self.table.iter().map(|(_, value)| Entry::unpack(value));
        entries.filter(|entry| entry.is_static && entry.port == port).count() as u32
    }

    /// Port of an entry, even if it has expired.
    pub(super) fn holder(&self, key: Key) -> Option<u8> {
        Some(Entry::unpack(self.table.get(key.0)?).port)
    }

    /// Removes one entry; true if it was there.
    pub(super) fn remove(&mut self, key: Key) -> bool {
        let Some(value) = self.table.remove(key.0) else { return false };
        self.counts[usize::from(Entry::unpack(value).port)] -= 1;
        self.changes += 1;
        true
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
            let current = entry.is_current(now_ms, age_ms);
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

    /// How many times an entry was added or removed, or got another port.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// All current entries; for reports.
    pub(super) fn iter(&self, now: Instant) -> impl Iterator<Item = (MacAddr, Vid, Entry)> + '_ {
        self.table.iter().filter_map(move |(key, value)| {
            let [_, _, a, b, c, d, e, f] = (key >> 16).to_be_bytes();
            let entry = Entry::unpack(value);
            let vid = Vid::new(key as u16)?;
            let station = (MacAddr([a, b, c, d, e, f]), vid, entry);
            entry.is_current(now.millis(), self.age_ms).then_some(station)
        })
    }

    fn retain(&mut self, mut keep: impl FnMut(&Entry) -> bool) {
        let Self { table, counts, changes, .. } = self;
        table.retain(|value| {
            let entry = Entry::unpack(value);
            let is_kept = keep(&entry);
            *changes += u64::from(!is_kept);
            counts[usize::from(entry.port)] -= u32::from(!is_kept);
            is_kept
        });
    }
}

/// The table as another thread reads it.
pub(super) struct FdbReader {
    table: TableReader<FixedState>,
    age_ms: u64,
}

impl FdbReader {
    /// Finds the current entry of a station. `None` also if the owner changes the table at this
    /// moment.
    pub(super) fn find(&self, key: Key, now: Instant) -> Option<Entry> {
        self.search(key, now).map(|(_, entry)| entry)
    }

    /// True if a station is found behind `port`, and has sent a frame there now.
    ///
    /// Stores the time only if the stored one is older than a share of the ageing time
    /// ([`REFRESHES_PER_AGE`]), so that a busy station's line stays in the caches of all threads. A
    /// thread may store it in the entry of another station that got the slot meanwhile, if that one
    /// is learned, behind the same port and was seen at the same time: it ages as if it had sent
    /// this frame.
    pub(super) fn refresh(&self, key: Key, port: u8, now: Instant) -> bool {
        let Some((found, entry)) = self.search(key, now) else { return false };
        if entry.port != port {
            return false;
        }
        let seen_ms = now.millis();
        let is_old = seen_ms.saturating_sub(entry.seen_ms) > self.age_ms / REFRESHES_PER_AGE;
        if is_old && !entry.is_static {
            self.table.exchange(found, Entry { seen_ms, ..entry }.pack());
        }
        true
    }

    fn search(&self, key: Key, now: Instant) -> Option<(Found, Entry)> {
        let found = self.table.find(key.0)?;
        let entry = Entry::unpack(found.value);
        entry.is_current(now.millis(), self.age_ms).then_some((found, entry))
    }
}

/// Times per ageing time that a reader stores when a station was seen.
const REFRESHES_PER_AGE: u64 = 64;

/// An odd number with irregular bits: 2⁶⁴ divided by the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Marks a static entry; the bit above the port.
const STATIC: u64 = 1 << 8;
/// Position of the time in a value: 48 bits of milliseconds are 9000 years.
const SEEN_SHIFT: u32 = 16;

#[cfg(test)]
mod tests;
