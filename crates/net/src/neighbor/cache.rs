//! The table of entries: look-up, timers and eviction.
//!
//! A look-up compares the last entry that was used, and then hashes. The hash has a seed of the
//! stack, so that no station can choose addresses that collide.
//!
//! Eviction, in this order:
//!
//! 1. An entry to which nothing was sent for [`IDLE_TIME`]. Only such an entry makes room for a
//!    neighbour that is learned from a received message. A hand moves over the entries as in the
//!    clock algorithm; if it finds none, received messages create no entry for [`SWEEP_INTERVAL`].
//!    So a flood costs a constant number of steps per message.
//! 2. For packets that are sent: an unresolved entry, the one that was solicited longest ago. It is
//!    also evicted when [`RESOLVING_MAX`] entries are unresolved.
//! 3. The least recently used entry, preferably behind a switch port with more than half of all
//!    entries: a guest that answers for hundreds of addresses does not evict other guests.
//!
//! Permanent entries and next hops are never evicted.

use super::entry::{Entry, State};
use super::waiting::Outgoing;
use super::{
    ALL_WAITING_BYTES_MAX, ENTRIES_MAX, IDLE_TIME, RESOLVING_MAX, SWEEP_INTERVAL, WAITING_BYTES_MAX,
};
use crate::time::Instant;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::hash::BuildHasher;
use core::net::IpAddr;
use foldhash::fast::FixedState;
use hashbrown::HashTable;

/// All entries.
pub(super) struct Cache {
    slots: Vec<Option<Entry>>,
    free: Vec<u32>,
    index: HashTable<u32>,
    hasher: FixedState,
    /// Index of the last entry that was looked up.
    latest: usize,
    timers: BTreeSet<(Instant, u32)>,
    /// Number of incomplete entries.
    unresolved: usize,
    /// Bytes charged for all waiting packets.
    waiting_bytes: usize,
    /// Place from which the next idle entry is searched.
    hand: usize,
    /// Until then no idle entry is searched.
    is_full_until: Option<Instant>,
}

impl Cache {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            index: HashTable::new(),
            hasher: FixedState::with_seed(seed),
            latest: 0,
            timers: BTreeSet::new(),
            unresolved: 0,
            waiting_bytes: 0,
            hand: 0,
            is_full_until: None,
        }
    }

    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// Position of the entry of `address`; tries the last one first.
    #[inline]
    pub(super) fn position(&mut self, address: IpAddr) -> Option<usize> {
        let latest = self.slots.get(self.latest).and_then(Option::as_ref);
        if latest.is_none_or(|entry| entry.address != address) {
            self.latest = self.find(address)?;
        }
        Some(self.latest)
    }

    /// Position of the entry of `address`, for messages: the last entry used stays at hand.
    pub(super) fn find(&self, address: IpAddr) -> Option<usize> {
        let hash = self.hasher.hash_one(address);
        let found = self.index.find(hash, |&slot| self.at(slot as usize).address == address);
        found.map(|&slot| slot as usize)
    }

    pub(super) fn at(&self, position: usize) -> &Entry {
        self.slots[position].as_ref().expect(HAS_ENTRY)
    }

    /// The entry, for changes that affect neither its timer nor what waits.
    #[inline]
    pub(super) fn at_mut(&mut self, position: usize) -> &mut Entry {
        self.slots[position].as_mut().expect(HAS_ENTRY)
    }

    /// Adds an entry, whose address must have none.
    pub(super) fn insert(&mut self, entry: Entry) -> usize {
        let hash = self.hasher.hash_one(entry.address);
        self.count(&entry);
        let position = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u32
        });
        self.timers.extend(entry.timer.map(|at| (at, position)));
        self.slots[position as usize] = Some(entry);
        let (hasher, slots) = (&self.hasher, &self.slots);
        self.index.insert_unique(hash, position, |&other| {
            let other = slots[other as usize].as_ref().expect(HAS_ENTRY);
            hasher.hash_one(other.address)
        });
        position as usize
    }

    /// Removes an entry.
    pub(super) fn remove(&mut self, position: usize) -> Entry {
        let entry = self.slots[position].take().expect(HAS_ENTRY);
        self.uncount(&entry, position);
        let hash = self.hasher.hash_one(entry.address);
        if let Ok(found) = self.index.find_entry(hash, |&other| other as usize == position) {
            found.remove();
        }
        self.free.push(position as u32);
        entry
    }

    /// Changes an entry, and what is counted and sorted by its state.
    pub(super) fn change<R>(&mut self, position: usize, act: impl FnOnce(&mut Entry) -> R) -> R {
        let mut entry = self.slots[position].take().expect(HAS_ENTRY);
        self.uncount(&entry, position);
        let result = act(&mut entry);
        self.count(&entry);
        self.timers.extend(entry.timer.map(|at| (at, position as u32)));
        self.slots[position] = Some(entry);
        result
    }

    fn count(&mut self, entry: &Entry) {
        self.unresolved += usize::from(entry.is_incomplete());
        self.waiting_bytes += entry.waiting.bytes();
    }

    fn uncount(&mut self, entry: &Entry, position: usize) {
        self.unresolved -= usize::from(entry.is_incomplete());
        self.waiting_bytes -= entry.waiting.bytes();
        if let Some(at) = entry.timer {
            self.timers.remove(&(at, position as u32));
        }
    }

    /// Queues a packet for an incomplete entry; returns how many were dropped for it.
    pub(super) fn wait(&mut self, position: usize, packet: Outgoing) -> usize {
        let others = self.waiting_bytes - self.at(position).waiting.bytes();
        let most = ALL_WAITING_BYTES_MAX.saturating_sub(others).min(WAITING_BYTES_MAX);
        let waiting = &mut self.at_mut(position).waiting;
        let dropped = waiting.push(packet, most);
        self.waiting_bytes = others + waiting.bytes();
        dropped
    }

    /// When the first timer is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.timers.first().map(|&(at, _)| at)
    }

    /// Position of an entry whose timer is due.
    pub(super) fn due(&self, now: Instant) -> Option<usize> {
        let first = self.timers.first().filter(|(at, _)| *at <= now);
        first.map(|&(_, position)| position as usize)
    }

    /// Makes room for an entry that is learned from a received message. False if all are in use.
    pub(super) fn make_room_to_learn(&mut self, now: Instant) -> bool {
        if self.len() < ENTRIES_MAX {
            return true;
        }
        let idle = self.find_idle(now);
        idle.map(|position| self.remove(position)).is_some()
    }

    /// Makes room for an entry that a packet to be sent needs; returns how many waiting packets of
    /// the evicted entry were dropped, or `None` if no entry may be evicted.
    pub(super) fn make_room_to_send(&mut self, now: Instant) -> Option<usize> {
        let victim = if self.unresolved >= RESOLVING_MAX {
            self.solicited_longest_ago()
        } else if self.len() < ENTRIES_MAX {
            return Some(0);
        } else {
            let idle = self.find_idle(now);
            idle.or_else(|| self.solicited_longest_ago()).or_else(|| self.least_used())
        };
        victim.map(|position| self.remove(position).waiting.len())
    }

    /// An entry that was not used for long. The number of steps is bounded, and on average small:
    /// after a search without success there is none for some time.
    fn find_idle(&mut self, now: Instant) -> Option<usize> {
        if self.is_full_until.is_some_and(|until| now < until) {
            return None;
        }
        let is_idle = |entry: &Entry| {
            let is_fixed = entry.is_next_hop || entry.state == State::Permanent;
            let is_old = entry.used.is_none_or(|used| now.since(used) >= IDLE_TIME);
            !is_fixed && !entry.is_incomplete() && is_old
        };
        for _ in 0..self.slots.len() {
            self.hand = (self.hand + 1) % self.slots.len();
            if self.slots[self.hand].as_ref().is_some_and(is_idle) {
                return Some(self.hand);
            }
        }
        self.is_full_until = Some(now + SWEEP_INTERVAL);
        None
    }

    /// The incomplete entry that has had most time to answer its last solicitation.
    fn solicited_longest_ago(&self) -> Option<usize> {
        let positions = self.timers.iter().map(|&(_, position)| position as usize);
        positions.into_iter().find(|&position| {
            let entry = self.at(position);
            entry.is_incomplete() && !entry.is_next_hop
        })
    }

    /// The least recently used entry of a crowded switch port, or of any.
    fn least_used(&self) -> Option<usize> {
        let crowded = self.crowded_port();
        let entries = self.slots.iter().enumerate();
        let evictable = entries.filter_map(|(position, slot)| {
            let entry = slot.as_ref().filter(|entry| entry.state != State::Permanent)?;
            let is_modest = crowded.is_none() || entry.port != crowded;
            (!entry.is_next_hop).then_some((is_modest, entry.used, position))
        });
        evictable.min().map(|(.., position)| position)
    }

    /// Port with more than half of all entries, if there is one: the majority vote algorithm finds
    /// a candidate, which is then counted.
    fn crowded_port(&self) -> Option<u16> {
        let ports = || self.slots.iter().flatten().map(|entry| entry.port);
        let (left, _) = ports().fold((None, 0), |(left, count), port| match count {
            0 => (port, 1),
            count if port == left => (left, count + 1),
            count => (left, count - 1),
        });
        left.filter(|_| 2 * ports().filter(|&port| port == left).count() > self.len())
    }
}

/// Positions come from the index or the timers.
const HAS_ENTRY: &str = "a position has an entry";
