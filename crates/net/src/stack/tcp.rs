//! The connections of a stack: finding them, their timers, and who wants to send.

use super::time_wait::{Arrival, Remembered, TimeWait};
use super::{Config, Context, Label, Stack, derive, pressure};
use crate::counters::DropReason;
use crate::tcp::{
    Connection, DATA_UNDER_PRESSURE, Egress, Events, Opening, Pressure, Segment, Seq, Settings,
    State, Verdict,
};
use crate::time::Instant;
use crate::wire::tcp::{Flags, HEADER_LEN, Options};
use crate::wire::{Protocol, ipv4, ipv6};
use alloc::boxed::Box;
use alloc::collections::{BinaryHeap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::fmt;
use core::hash::{BuildHasher, Hasher};
use core::net::SocketAddr;
use foldhash::fast::FixedState;
use hashbrown::{HashSet, HashTable};
use siphasher::sip::SipHasher13;
use towpath_packet::{Memory, Packet};

/// Names a connection of one stack. A handle of a connection that is gone finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TcpHandle {
    index: u32,
    generation: u32,
}

impl TcpHandle {
    /// Place of the connection in the stack's table: small and reused, for tables beside it.
    pub fn index(self) -> usize {
        self.index as usize
    }

    /// Tells connections that used the same place one after the other apart.
    pub fn generation(self) -> u32 {
        self.generation
    }
}

/// Why a connection could not be begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectError {
    /// There is a connection between these endpoints.
    InUse,
    /// The limit of connections is reached.
    Limit,
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ConnectError::InUse => "the endpoints are in use by a connection",
            ConnectError::Limit => "the limit of connections is reached",
        })
    }
}

impl core::error::Error for ConnectError {}

#[derive(Default)]
struct Slot {
    generation: u32,
    connection: Option<Box<Connection>>,
    /// In `Table::output`.
    output_queued: bool,
    /// In `Table::events`.
    event_queued: bool,
    /// Earliest live entry in `Table::timers`.
    armed: Option<Instant>,
    /// Found by its endpoints: false once it is in TIME-WAIT or over.
    indexed: bool,
    /// Counted in `Table::half_open_count`.
    half_open: bool,
}

/// All connections of a stack.
pub(super) struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
    index: HashTable<u32>,
    hasher: FixedState,
    secret: [u64; 2],
    settings: Settings,
    connections_max: usize,
    half_open_max: usize,
    /// Incoming connections in the order of their SYN; names some that are open by now.
    half_open: VecDeque<TcpHandle>,
    /// Incoming connections that are not open yet, exactly.
    half_open_count: usize,
    time_wait: TimeWait,
    timers: BinaryHeap<Reverse<(Instant, TcpHandle)>>,
    output: VecDeque<u32>,
    events: VecDeque<u32>,
    listeners: HashSet<SocketAddr, FixedState>,
    transparent: bool,
}

impl Table {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            index: HashTable::new(),
            hasher: FixedState::with_seed(derive(config.secret, Label::ConnectionIndex)),
            secret: config.secret,
            settings: config.tcp,
            connections_max: config.limits.connections,
            half_open_max: config.limits.half_open,
            half_open: VecDeque::new(),
            half_open_count: 0,
            time_wait: TimeWait::new(
                config.limits.time_wait,
                derive(config.secret, Label::TimeWaitIndex),
            ),
            timers: BinaryHeap::new(),
            output: VecDeque::new(),
            events: VecDeque::new(),
            listeners: HashSet::with_hasher(FixedState::with_seed(derive(
                config.secret,
                Label::ConnectionIndex,
            ))),
            transparent: config.transparent,
        }
    }

    fn find(&self, local: SocketAddr, remote: SocketAddr) -> Option<u32> {
        let hash = self.hasher.hash_one((local, remote));
        self.index
            .find(hash, |&index| {
                let connection = self.slots[index as usize].connection.as_deref();
                connection.is_some_and(|c| c.local() == local && c.remote() == remote)
            })
            .copied()
    }

    fn insert(&mut self, connection: Connection) -> u32 {
        let hash = self.hasher.hash_one((connection.local(), connection.remote()));
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.connection = Some(Box::new(connection));
        slot.indexed = true;
        let (hasher, slots) = (&self.hasher, &self.slots);
        self.index.insert_unique(hash, index, |&other| {
            let other = slots[other as usize].connection.as_deref();
            let other = other.expect("an indexed slot holds a connection");
            hasher.hash_one((other.local(), other.remote()))
        });
        index
    }

    /// Stops finding the connection by its endpoints.
    fn unindex(&mut self, index: u32) {
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

    fn remove(&mut self, index: u32) {
        self.unindex(index);
        let slot = &mut self.slots[index as usize];
        self.half_open_count -= usize::from(core::mem::take(&mut slot.half_open));
        slot.connection = None;
        slot.generation = slot.generation.wrapping_add(1);
        slot.armed = None;
        self.free.push(index);
    }

    /// Entries in the heap of timers, those that no longer count included.
    #[cfg(test)]
    pub(super) fn timer_count(&self) -> usize {
        self.timers.len()
    }

    fn count(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn handle(&self, index: u32) -> TcpHandle {
        TcpHandle { index, generation: self.slots[index as usize].generation }
    }

    fn get_mut(&mut self, handle: TcpHandle) -> Option<&mut Connection> {
        let slot = self.slots.get_mut(handle.index())?;
        if slot.generation != handle.generation {
            return None;
        }
        slot.connection.as_deref_mut()
    }

    /// Initial sequence number and timestamp offset (RFC 6528 §3, RFC 7323 §5.4).
    fn opening(&self, local: SocketAddr, remote: SocketAddr, mss: u32, now: Instant) -> Opening {
        let mut hasher = SipHasher13::new_with_keys(self.secret[0], self.secret[1]);
        core::hash::Hash::hash(&(local, remote), &mut hasher);
        let hash = hasher.finish();
        Opening {
            local,
            remote,
            iss: (hash as u32).wrapping_add((now.micros() / 4) as u32),
            timestamp_offset: (hash >> 32) as u32,
            mss,
        }
    }

    /// After a connection changed: queues it for output and events, arms its timer, and parts with
    /// it when it is over.
    fn settle(&mut self, index: u32, now: Instant) {
        let slot = &mut self.slots[index as usize];
        let Some(connection) = slot.connection.as_deref_mut() else { return };
        if slot.half_open && !connection.state().is_opening() {
            slot.half_open = false;
            self.half_open_count -= 1;
        }
        if connection.has_events() && !slot.event_queued {
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
            let handle = TcpHandle { index, generation: slot.generation };
            self.timers.push(Reverse((deadline, handle)));
        }
        if slot.indexed && connection.state() == State::TimeWait && !connection.wants_output() {
            let remembered = remembered(connection, now);
            self.unindex(index);
            self.time_wait.insert(remembered, now);
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
        [timer, self.time_wait.deadline()].into_iter().flatten().min()
    }

    pub(super) fn on_deadline(&mut self, now: Instant) {
        self.time_wait.on_deadline(now);
        while let Some(&Reverse((at, handle))) = self.timers.peek()
            && at <= now
        {
            self.timers.pop();
            let slot = &mut self.slots[handle.index()];
            if slot.generation != handle.generation || slot.armed != Some(at) {
                continue;
            }
            slot.armed = None;
            if let Some(connection) = slot.connection.as_deref_mut() {
                connection.on_deadline(now);
            }
            self.settle(handle.index, now);
        }
    }

    /// Entries that a later call replaced stay in the heap until their time comes, unless they are
    /// more than those that count.
    fn forget_old_timers(&mut self) {
        if self.timers.len() < 2 * self.slots.len() + STALE_SPARE {
            return;
        }
        let slots = &self.slots;
        self.timers.retain(|Reverse((at, handle))| {
            let slot = &slots[handle.index()];
            slot.generation == handle.generation && slot.armed == Some(*at)
        });
    }

    /// Counts an incoming connection as half-open.
    fn begin_half_open(&mut self, index: u32) {
        self.half_open.push_back(self.handle(index));
        self.slots[index as usize].half_open = true;
        self.half_open_count += 1;
        if self.half_open.len() >= 2 * self.half_open_max.max(1) + STALE_SPARE {
            let slots = &self.slots;
            self.half_open.retain(|handle| is_half_open(slots, handle));
        }
    }

    /// Gives up the oldest half-open connection if there are too many. True if one was.
    fn limit_half_open(&mut self, now: Instant) -> bool {
        if self.half_open_count < self.half_open_max {
            return false;
        }
        while let Some(oldest) = self.half_open.pop_front() {
            if is_half_open(&self.slots, &oldest) {
                let connection = self.slots[oldest.index()].connection.as_deref_mut();
                connection.expect("a half-open slot holds a connection").give_up();
                self.settle(oldest.index, now);
                return true;
            }
        }
        false
    }

    /// The device takes smaller packets now.
    pub(super) fn limit_mss(&mut self, v4: u32, v6: u32) {
        for connection in self.slots.iter_mut().filter_map(|slot| slot.connection.as_deref_mut()) {
            connection.limit_mss(if connection.local().is_ipv4() { v4 } else { v6 });
        }
    }
}

fn is_half_open(slots: &[Slot], handle: &TcpHandle) -> bool {
    let slot = &slots[handle.index()];
    slot.generation == handle.generation && slot.half_open
}

/// Entries of no use that a queue may hold beside those that count.
const STALE_SPARE: usize = 64;

/// True if memory is too short for what this connection's reader has left unread.
fn must_drop_data(connection: &Connection, memory: &mut Memory) -> bool {
    match pressure(memory) {
        Pressure::None | Pressure::Some => false,
        Pressure::High => connection.received_len() > DATA_UNDER_PRESSURE,
        Pressure::Critical => true,
    }
}

/// Begins after the numbers of the connection between the same endpoints before (RFC 6191 §2), so
/// that nothing of it can be taken for the new one's; as far after as Linux.
fn continued(opening: Opening, past: Option<Seq>) -> Opening {
    match past {
        Some(past) if Seq(opening.iss).at_or_before(past + REOPEN_GAP) => {
            Opening { iss: (past + REOPEN_GAP).0, ..opening }
        }
        _ => opening,
    }
}

/// An unscaled window and the two numbers of SYN and FIN.
const REOPEN_GAP: u32 = 65_535 + 2;

fn remembered(connection: &Connection, now: Instant) -> Remembered {
    let (snd_nxt, rcv_nxt, timestamps) = connection.last_numbers(now);
    let (local, remote) = (connection.local(), connection.remote());
    Remembered { local, remote, snd_nxt, rcv_nxt, timestamps }
}

impl Stack {
    /// Largest TCP payload of one segment on this device.
    pub(super) fn tcp_mss(&self, v4: bool) -> u32 {
        let ip = if v4 { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
        u32::from(self.caps.mtu).saturating_sub((ip + HEADER_LEN) as u32)
    }

    /// Accepts connections to `local`, as a host does. They appear as events with
    /// [`Events::INCOMING`] and are answered by themselves.
    pub fn tcp_listen(&mut self, local: SocketAddr) {
        self.tcp.listeners.insert(local);
    }

    /// Stops accepting connections to `local`.
    pub fn tcp_unlisten(&mut self, local: SocketAddr) {
        self.tcp.listeners.remove(&local);
    }

    /// Begins to connect.
    pub fn tcp_connect(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        now: Instant,
    ) -> Result<TcpHandle, ConnectError> {
        if self.tcp.find(local, remote).is_some() {
            return Err(ConnectError::InUse);
        }
        if self.tcp.count() >= self.tcp.connections_max {
            return Err(ConnectError::Limit);
        }
        let past = self.tcp.time_wait.find(local, remote).map(|remembered| remembered.snd_nxt);
        self.tcp.time_wait.remove(local, remote);
        let mss = self.tcp_mss(local.is_ipv4());
        let opening = continued(self.tcp.opening(local, remote, mss, now), past);
        let connection = Connection::connect(opening, &self.tcp.settings, now);
        let index = self.tcp.insert(connection);
        self.counters.connections += 1;
        self.tcp.settle(index, now);
        Ok(self.tcp.handle(index))
    }

    /// What happened next, to which connection.
    pub fn next_event(&mut self) -> Option<(TcpHandle, Events)> {
        loop {
            let index = self.tcp.events.pop_front()?;
            let handle = self.tcp.handle(index);
            let slot = &mut self.tcp.slots[index as usize];
            slot.event_queued = false;
            let Some(connection) = slot.connection.as_deref_mut() else { continue };
            let events = connection.take_events();
            if connection.is_owned() && !events.is_empty() {
                return Some((handle, events));
            }
        }
    }

    /// The connection, to look at.
    pub fn tcp(&self, handle: TcpHandle) -> Option<&Connection> {
        let slot = self.tcp.slots.get(handle.index())?;
        (slot.generation == handle.generation).then_some(slot.connection.as_deref()?)
    }

    /// Lets `act` use the connection, then sees to what follows from it.
    pub fn with_tcp<R>(
        &mut self,
        handle: TcpHandle,
        now: Instant,
        act: impl FnOnce(&mut Connection) -> R,
    ) -> Option<R> {
        let result = act(self.tcp.get_mut(handle)?);
        self.tcp.settle(handle.index, now);
        Some(result)
    }

    /// The owner is done: the connection closes by itself and the handle finds nothing any more.
    pub fn tcp_release(&mut self, handle: TcpHandle, now: Instant) {
        self.with_tcp(handle, now, |connection| connection.disown(now));
    }

    /// Refuses an incoming connection with a reset, as a host without a listener does.
    pub fn tcp_refuse(&mut self, handle: TcpHandle, cx: &mut Context<'_>) {
        let Some(connection) = self.tcp.get_mut(handle) else { return };
        let (local, remote, irs) = (connection.local(), connection.remote(), connection.irs());
        connection.abort();
        self.tcp_release(handle, cx.now);
        let header = crate::wire::tcp::Header {
            source_port: local.port(),
            destination_port: remote.port(),
            sequence: 0,
            acknowledgment: irs.wrapping_add(1),
            flags: Flags::RST | Flags::ACK,
            window: 0,
            checksum: 0,
            urgent: 0,
            header_len: 0,
        };
        self.send_tcp_header(local, remote, &header, &Options::default(), cx);
    }

    /// Connections, open or not; and how many are remembered in TIME-WAIT.
    pub fn tcp_counts(&self) -> (usize, usize) {
        (self.tcp.count(), self.tcp.time_wait.len())
    }

    pub(super) fn receive_tcp(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        segment: &Segment,
        mut packet: Packet,
        cx: &mut Context<'_>,
    ) {
        if let Some(index) = self.tcp.find(local, remote) {
            let slot = &mut self.tcp.slots[index as usize];
            let connection = slot.connection.as_deref_mut().expect("an index names a connection");
            let mut segment = *segment;
            if segment.len > 0 && must_drop_data(connection, cx.memory) {
                // The ACK still counts: it is what gives memory back. The data is sent again.
                self.counters.drop(DropReason::TcpNoRoom);
                packet.truncate(0);
                segment = segment.without_data();
            }
            let segment = &segment;
            let verdict = connection.input(segment, &mut packet, cx.now);
            self.tcp.settle(index, cx.now);
            match verdict {
                Verdict::Done => {}
                Verdict::Unacceptable => self.counters.drop(DropReason::TcpUnacceptable),
                Verdict::NoRoom => self.counters.drop(DropReason::TcpNoRoom),
                Verdict::Reset => self.send_reset(local, remote, segment, cx),
            }
            return;
        }
        let mut past = None;
        if let Some(remembered) = self.tcp.time_wait.find(local, remote) {
            match remembered.arrival(segment) {
                Arrival::Reopen => {
                    past = Some(remembered.snd_nxt);
                    self.tcp.time_wait.remove(local, remote);
                }
                Arrival::Ignore => return,
                Arrival::Answer(header) => {
                    let timestamps = remembered.timestamps.map(|(recent, ours)| (ours, recent));
                    let options = Options { timestamps, ..Options::default() };
                    self.send_tcp_header(local, remote, &header, &options, cx);
                    return;
                }
            }
        }
        let opens = segment.header.flags.contains(Flags::SYN)
            && !segment.header.flags.intersects(Flags::ACK | Flags::RST | Flags::FIN);
        let listening = self.tcp.transparent || self.tcp.listeners.contains(&local);
        if opens && listening {
            self.receive_syn(local, remote, segment, past, cx);
        } else {
            self.counters.drop(DropReason::TcpNoConnection);
            self.send_reset(local, remote, segment, cx);
        }
    }

    fn receive_syn(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        syn: &Segment,
        past: Option<Seq>,
        cx: &mut Context<'_>,
    ) {
        if self.tcp.limit_half_open(cx.now) {
            self.counters.drop(DropReason::TcpHalfOpenEvicted);
        }
        if self.tcp.count() >= self.tcp.connections_max {
            self.counters.drop(DropReason::TcpConnectionLimit);
            return;
        }
        let mss = self.tcp_mss(local.is_ipv4());
        let opening = continued(self.tcp.opening(local, remote, mss, cx.now), past);
        let mut connection = Connection::incoming(opening, syn, &self.tcp.settings, cx.now);
        if !self.tcp.transparent {
            connection.accept();
        }
        let index = self.tcp.insert(connection);
        self.tcp.begin_half_open(index);
        self.counters.connections += 1;
        self.tcp.settle(index, cx.now);
    }

    /// An ICMP error quotes a segment of ours. `mss` if the path needs smaller ones.
    pub(super) fn tcp_error(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        sequence: Seq,
        mss: Option<u32>,
        cx: &mut Context<'_>,
    ) -> Option<()> {
        let index = self.tcp.find(local, remote)?;
        let connection = self.tcp.slots[index as usize].connection.as_deref_mut()?;
        match mss {
            Some(mss) => connection.too_big(sequence, mss),
            None => connection.unreachable(sequence),
        }
        self.tcp.settle(index, cx.now);
        Some(())
    }

    fn send_reset(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        segment: &Segment,
        cx: &mut Context<'_>,
    ) {
        if let Some(header) = segment.reset() {
            self.send_tcp_header(local, remote, &header, &Options::default(), cx);
        }
    }

    fn send_tcp_header(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        header: &crate::wire::tcp::Header,
        options: &Options,
        cx: &mut Context<'_>,
    ) {
        let Some(mut packet) = cx.memory.packet() else {
            self.counters.drop(DropReason::NoMemory);
            return;
        };
        let syn = header.flags.contains(Flags::SYN);
        header.emit(options, packet.push_header(HEADER_LEN + options.emitted_len(syn)));
        self.send_transport(packet, Protocol::TCP, local.ip(), remote.ip(), cx);
    }

    /// Builds packets of one connection. False if no connection wants to send.
    pub(super) fn output_tcp(&mut self, cx: &mut Context<'_>) -> bool {
        let pressure = pressure(cx.memory);
        let Some(index) = self.tcp.output.pop_front() else { return false };
        let slot = &mut self.tcp.slots[index as usize];
        slot.output_queued = false;
        let Some(connection) = slot.connection.as_deref_mut() else { return true };
        let (local, remote) = (connection.local(), connection.remote());
        let ip = if local.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
        let egress = Egress { ip_header_len: ip as u32, pressure };
        let before = connection.retransmitted();
        let Some(packet) = connection.output(&egress, cx.memory, cx.now) else {
            let starved = connection.wants_output() && cx.memory.packets.free_count() == 0;
            if starved {
                slot.output_queued = true;
                self.tcp.output.push_front(index);
            } else {
                self.settle_quiet(index, cx.now);
            }
            return !starved;
        };
        self.counters.retransmitted += connection.retransmitted() - before;
        // One packet each, in turn: no connection waits for another's whole window.
        self.tcp.settle(index, cx.now);
        self.send_transport(packet, Protocol::TCP, local.ip(), remote.ip(), cx);
        true
    }

    /// Settles a connection that had nothing to send although it may want to: it waits for an
    /// ACK, a window or a timer.
    fn settle_quiet(&mut self, index: u32, now: Instant) {
        let slot = &mut self.tcp.slots[index as usize];
        slot.output_queued = true;
        self.tcp.settle(index, now);
        self.tcp.slots[index as usize].output_queued = false;
        let over =
            self.tcp.slots[index as usize].connection.as_deref().is_some_and(Connection::is_over);
        if over {
            self.tcp.remove(index);
        }
    }
}
