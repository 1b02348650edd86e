//! Table of connections: lookup, timers, and the queues for output and events.

use super::Config;
use super::accounts::{Accounts, Share};
use super::challenges::Challenges;
use super::handles::{ListenerHandle, TcpHandle};
use super::listeners::{Listeners, Role};
use super::metrics::Metrics;
use super::routes::Routes;
use super::time_wait::{TimeWait, TimeWaitEntry};
use crate::random::{Purpose, Secret, keyed_hash};
use crate::slab::Slab;
use crate::tcp::syncookie::SynCookies;
use crate::tcp::{Connection, Opening, SegmentSizes, Settings, State};
use crate::time::{Duration, Instant, earliest};
use alloc::boxed::Box;
use alloc::collections::{BinaryHeap, VecDeque};
use core::cmp::Reverse;
use core::hash::BuildHasher;
use core::net::SocketAddr;
use foldhash::fast::FixedState;
use hashbrown::HashTable;

#[derive(Default)]
pub(super) struct Slot {
    pub(super) connection: Option<Box<Connection>>,
    /// The index is in `Table::output`.
    pub(super) output_queued: bool,
    /// The index is in `Table::events`.
    pub(super) event_queued: bool,
    /// Earliest live entry in `Table::timers`.
    pub(super) armed: Option<Instant>,
    /// Found by its endpoints; false once it is in TIME-WAIT or closed.
    pub(super) indexed: bool,
    /// Counted in `Table::orphans`.
    pub(super) orphan: bool,
    /// Relation to a listener.
    pub(super) role: Role,
    /// Counted as this listener's Fast Open child without a full handshake.
    pub(super) fastopen: Option<ListenerHandle>,
    /// [`super::path_mtus::Paths::version`] at the last lookup of the path.
    pub(super) path_version: u32,
    /// What the connection is charged, and to which account.
    pub(super) share: Share,
    /// When progress last confirmed the next hop.
    pub(super) confirmed: Option<Instant>,
}

/// All connections of a stack.
pub(super) struct Table {
    pub(super) slots: Slab<Slot>,
    pub(super) index: HashTable<u32>,
    pub(super) hasher: FixedState,
    /// Key of initial sequence numbers.
    sequence_key: [u64; 2],
    pub(super) settings: Settings,
    pub(super) connections_max: usize,
    pub(super) half_open_max: usize,
    /// Incoming connections in the order of their SYNs; may include some that are open by now.
    pub(super) half_open: VecDeque<TcpHandle>,
    /// Exact number of incoming connections that are not open yet.
    pub(super) half_open_count: usize,
    /// Exact number of connections without an owner that are not closed.
    pub(super) orphans: usize,
    pub(super) orphans_max: usize,
    /// When out-of-order data was last dropped to free memory.
    shed_at: Option<Instant>,
    pub(super) time_wait: TimeWait,
    pub(super) timers: BinaryHeap<Reverse<(Instant, TcpHandle)>>,
    pub(super) output: VecDeque<u32>,
    pub(super) events: VecDeque<u32>,
    pub(super) listeners: Listeners,
    pub(super) metrics: Metrics,
    pub(super) challenges: Challenges,
    pub(super) routes: Routes,
    pub(super) cookies: SynCookies,
    pub(super) transparent: bool,
    pub(super) accounts: Accounts,
}

impl Table {
    pub(super) fn new(config: &Config) -> Self {
        let secret = Secret::new(config.secret);
        Self {
            slots: Slab::default(),
            index: HashTable::new(),
            hasher: secret.table(Purpose::ConnectionTable),
            sequence_key: secret.key(Purpose::SequenceNumbers),
            settings: config.tcp,
            connections_max: config.limits.connections,
            half_open_max: config.limits.half_open,
            half_open: VecDeque::new(),
            half_open_count: 0,
            orphans: 0,
            orphans_max: config.limits.orphans,
            shed_at: None,
            time_wait: TimeWait::new(config.limits.time_wait, secret.table(Purpose::TimeWaitTable)),
            timers: BinaryHeap::new(),
            output: VecDeque::new(),
            events: VecDeque::new(),
            listeners: Listeners::new(secret.table(Purpose::ListenerTable)),
            metrics: Metrics::new(secret.table(Purpose::PeerTable)),
            routes: Routes::default(),
            challenges: Challenges::new(secret.key(Purpose::ChallengeLimit)),
            cookies: SynCookies::new(secret.key(Purpose::SynCookies)),
            transparent: config.transparent,
            accounts: Accounts::default(),
        }
    }

    pub(super) fn find(&self, local: SocketAddr, remote: SocketAddr) -> Option<u32> {
        let hash = self.hasher.hash_one((local, remote));
        self.index
            .find(hash, |&index| {
                let connection = self.slots[index as usize].connection.as_deref();
                connection.is_some_and(|c| c.local() == local && c.remote() == remote)
            })
            .copied()
    }

    pub(super) fn insert(&mut self, connection: impl Into<Box<Connection>>) -> u32 {
        let connection: Box<Connection> = connection.into();
        let hash = self.hasher.hash_one((connection.local(), connection.remote()));
        let index = self.slots.claim().index;
        let slot = &mut self.slots[index as usize];
        slot.connection = Some(connection);
        slot.indexed = true;
        self.accounts.insert(&slot.share);
        let (hasher, slots) = (&self.hasher, &self.slots);
        self.index.insert_unique(hash, index, |&other| {
            let other = slots[other as usize].connection.as_deref();
            let other = other.expect("an indexed slot holds a connection");
            hasher.hash_one((other.local(), other.remote()))
        });
        index
    }

    /// Removes the connection from the index by endpoints.
    pub(super) fn unindex(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        if !core::mem::take(&mut slot.indexed) {
            return;
        }
        let connection = slot.connection.as_deref().expect("an indexed slot holds a connection");
        let hash = self.hasher.hash_one((connection.local(), connection.remote()));
        if let Ok(entry) = self.index.find_entry(hash, |&other| other == index) {
            entry.remove();
        }
    }

    pub(super) fn remove(&mut self, index: u32) {
        self.unindex(index);
        let slot = &mut self.slots[index as usize];
        self.half_open_count -= usize::from(slot.share.is_half_open());
        self.orphans -= usize::from(core::mem::take(&mut slot.orphan));
        slot.connection = None;
        self.accounts.remove(&mut slot.share);
        slot.role = Role::Owned;
        slot.fastopen = None;
        slot.armed = None;
        slot.confirmed = None;
        self.slots.release(index);
    }

    /// Entries in the heap of timers, including stale ones.
    #[cfg(test)]
    pub(super) fn timer_count(&self) -> usize {
        self.timers.len()
    }

    pub(super) fn count(&self) -> usize {
        self.slots.count()
    }

    pub(super) fn handle(&self, index: u32) -> TcpHandle {
        TcpHandle(self.slots.key(index))
    }

    pub(super) fn get_mut(&mut self, handle: TcpHandle) -> Option<&mut Connection> {
        self.slots.place_mut(handle.0)?.connection.as_deref_mut()
    }

    /// Initial sequence number and timestamp offset (RFC 6528 §3, RFC 7323 §5.4).
    pub(super) fn opening(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
        sizes: SegmentSizes,
        now: Instant,
    ) -> Opening {
        let hash = keyed_hash(self.sequence_key, (local, remote));
        Opening {
            local,
            remote,
            iss: (hash as u32).wrapping_add((now.micros() / 4) as u32),
            timestamp_offset: (hash >> 32) as u32,
            sizes,
        }
    }

    /// Updates the table after a connection changed: queues it for output and events, arms its
    /// timer, and removes it when it is over.
    pub(super) fn settle(&mut self, index: u32, now: Instant) {
        self.settle_role(index, now);
        let handle = self.handle(index);
        let slot = &mut self.slots[index as usize];
        let Some(connection) = slot.connection.as_deref_mut() else { return };
        if self.transparent {
            // In a host, sockets limit what connections hold.
            self.accounts.update(&mut slot.share, connection);
        }
        if let Some(news) = connection.take_fast_open_outcome() {
            self.metrics.learn((connection.local().ip(), connection.remote().ip()), &news);
        }
        if let Some(path) = connection.take_fast_open_path() {
            self.metrics.found(path, now);
        }
        if slot.share.is_half_open() && !connection.state().is_opening() {
            self.accounts.set_half_open(&mut slot.share, false);
            self.half_open_count -= 1;
        }
        if connection.is_orphan() != slot.orphan {
            slot.orphan = !slot.orphan;
            self.orphans = if slot.orphan { self.orphans + 1 } else { self.orphans - 1 };
        }
        if connection.has_events() && !slot.event_queued && slot.role == Role::Owned {
            slot.event_queued = true;
            self.events.push_back(index);
        }
        if connection.wants_output() && !slot.output_queued {
            slot.output_queued = true;
            self.output.push_back(index);
        }
        if let Some(deadline) = connection.deadline()
            && slot.armed.is_none_or(|armed| deadline < armed)
        {
            slot.armed = Some(deadline);
            self.timers.push(Reverse((deadline, handle)));
        }
        if slot.indexed && connection.state() == State::TimeWait && !connection.wants_output() {
            let entry = TimeWaitEntry::new(connection, now);
            self.unindex(index);
            self.time_wait.insert(entry);
        } else if slot.indexed && connection.state() == State::Closed && !connection.wants_output()
        {
            self.unindex(index);
        }
        self.forget_old_timers();
        let over =
            self.slots[index as usize].connection.as_deref().is_some_and(Connection::is_over);
        if over && !self.slots[index as usize].output_queued {
            self.remove(index);
        }
    }

    pub(super) fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        earliest([timer, self.time_wait.deadline()])
    }

    pub(super) fn on_deadline(&mut self, now: Instant) {
        self.time_wait.on_deadline(now);
        while let Some(&Reverse((at, handle))) = self.timers.peek()
            && at <= now
        {
            self.timers.pop();
            let Some(slot) = self.slots.place_mut(handle.0).filter(|slot| slot.armed == Some(at))
            else {
                continue;
            };
            slot.armed = None;
            if let Some(connection) = slot.connection.as_deref_mut() {
                connection.on_deadline(now);
            }
            self.settle(handle.0.index, now);
        }
    }

    /// Removes stale timer entries. They normally stay until their time comes; here they are more
    /// than half of the heap.
    pub(super) fn forget_old_timers(&mut self) {
        if self.timers.len() < 2 * self.slots.places_len() + STALE_SPARE {
            return;
        }
        let slots = &self.slots;
        self.timers.retain(|Reverse((at, handle))| {
            slots.place(handle.0).is_some_and(|slot| slot.armed == Some(*at))
        });
    }

    /// Counts an incoming connection as half-open.
    pub(super) fn begin_half_open(&mut self, index: u32) {
        self.half_open.push_back(self.handle(index));
        self.accounts.set_half_open(&mut self.slots[index as usize].share, true);
        self.half_open_count += 1;
        if self.half_open.len() >= 2 * self.half_open_max.max(1) + STALE_SPARE {
            let slots = &self.slots;
            self.half_open.retain(|handle| is_half_open(slots, handle));
        }
    }

    /// Makes room for another half-open connection; returns how many were evicted. After the limit
    /// was lowered, each call brings their number one closer to it.
    pub(super) fn limit_half_open(&mut self, now: Instant) -> u64 {
        let mut evicted = 0;
        while evicted < 2 && self.half_open_count >= self.half_open_max && self.evict_half_open(now)
        {
            evicted += 1;
        }
        evicted
    }

    /// Evicts the oldest half-open connection of an account that has most of them; returns false if
    /// there is none.
    fn evict_half_open(&mut self, now: Instant) -> bool {
        let (slots, accounts) = (&self.slots, &self.accounts);
        while self.half_open.front().is_some_and(|handle| !is_half_open(slots, handle)) {
            self.half_open.pop_front();
        }
        let most = accounts.most_half_open();
        let place = self.half_open.iter().position(|handle| {
            let has_most = || accounts.half_open_of(&slots[handle.index()].share) == most;
            is_half_open(slots, handle) && has_most()
        });
        let Some(handle) = place.and_then(|place| self.half_open.remove(place)) else {
            return false;
        };
        let connection = self.slots[handle.index()].connection.as_deref_mut();
        connection.expect("a half-open slot holds a connection").give_up();
        self.settle(handle.0.index, now);
        true
    }

    /// Drops out-of-order data of all connections because memory is short, so that in-order data
    /// can be received. Peers send it again (RFC 2018 §8). As this checks every connection, it runs
    /// at most once per [`SHED_INTERVAL`].
    pub(super) fn drop_ahead(&mut self, now: Instant) {
        if self.shed_at.is_some_and(|at| now.since(at) < SHED_INTERVAL) {
            return;
        }
        self.shed_at = Some(now);
        for connection in self.slots.places_mut().filter_map(|slot| slot.connection.as_deref_mut())
        {
            connection.drop_ahead();
        }
    }
}

fn is_half_open(slots: &Slab<Slot>, handle: &TcpHandle) -> bool {
    slots.place(handle.0).is_some_and(|slot| slot.share.is_half_open())
}

/// Additional stale entries that a queue may hold before they are purged.
const STALE_SPARE: usize = 64;

/// Minimum time between two runs of [`Table::drop_ahead`].
const SHED_INTERVAL: Duration = Duration::from_millis(10);
