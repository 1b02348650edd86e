//! TCP of a stack: calls of the owner, received segments, output.

use super::egress::Marks;
use super::handles::TcpHandle;
use super::handshake::Ends;
use super::listeners::Role;
use super::time_wait::Arrival;
use super::{Context, Stack, pressure};
use crate::counters::DropReason;
use crate::tcp::{
    Connection, DATA_UNDER_PRESSURE, Egress, Events, Pressure, Segment, Seq, Verdict,
};
use crate::time::{Duration, Instant};
use crate::wire::tcp::{Flags, HEADER_LEN, Options};
use crate::wire::{Protocol, ipv4, ipv6};
use core::net::SocketAddr;
use towpath_packet::{Memory, Packet};

/// Error of [`Stack::tcp_connect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectError {
    /// The endpoints have a connection already.
    InUse,
    /// The limit of connections is reached.
    Limit,
}

/// True if memory is too short for more unread data of this connection.
fn must_drop_data(connection: &Connection, memory: &mut Memory) -> bool {
    match pressure(memory) {
        Pressure::None | Pressure::Some => false,
        Pressure::High => connection.received_len() > DATA_UNDER_PRESSURE,
        Pressure::Critical => true,
    }
}

/// True if progress of a connection may confirm its next hop: at most once per
/// [`CONFIRM_INTERVAL`].
fn is_confirmation_due(last: Option<Instant>, now: Instant) -> bool {
    last.is_none_or(|last| now.since(last) >= CONFIRM_INTERVAL)
}

/// Time between confirmations of the next hop by one connection: far less than they are valid, and
/// so long that they cost nothing.
const CONFIRM_INTERVAL: Duration = Duration::from_secs(1);

impl Stack {
    /// Takes the next events, and their connection.
    pub fn next_event(&mut self) -> Option<(TcpHandle, Events)> {
        loop {
            let index = self.tcp.events.pop_front()?;
            let handle = self.tcp.handle(index);
            let slot = &mut self.tcp.slots[index as usize];
            slot.event_queued = false;
            let Some(connection) = slot.connection.as_deref_mut() else { continue };
            if slot.role != Role::Owned {
                continue;
            }
            let events = connection.take_events();
            if connection.is_owned() && !events.is_empty() {
                return Some((handle, events));
            }
        }
    }

    /// True if [`Stack::next_event`] may have events. Calls that send can raise events too: check
    /// again before waiting.
    pub fn has_events(&self) -> bool {
        !self.tcp.events.is_empty()
    }

    /// Connection of a handle, to inspect.
    pub fn tcp(&self, handle: TcpHandle) -> Option<&Connection> {
        self.tcp.slots.place(handle.0)?.connection.as_deref()
    }

    /// Connection of a handle, for changes that cause no packet, timer or event.
    pub(crate) fn tcp_mut(&mut self, handle: TcpHandle) -> Option<&mut Connection> {
        self.tcp.get_mut(handle)
    }

    /// Runs `act` on a connection, then updates queues and timers.
    pub fn with_tcp<R>(
        &mut self,
        handle: TcpHandle,
        now: Instant,
        act: impl FnOnce(&mut Connection) -> R,
    ) -> Option<R> {
        let result = act(self.tcp.get_mut(handle)?);
        self.tcp.settle(handle.0.index, now);
        Some(result)
    }

    /// Releases a connection: it closes by itself, and the handle is no longer valid for the owner.
    pub fn tcp_release(&mut self, handle: TcpHandle, now: Instant) {
        self.with_tcp(handle, now, |connection| connection.disown(now));
        if self.tcp.orphans <= self.tcp.orphans_max {
            return;
        }
        // Orphans beyond the limit are reset so that they do not exhaust memory (tcp(7),
        // tcp_max_orphans).
        let orphan = self.tcp.get_mut(handle).is_some_and(|connection| connection.is_orphan());
        if orphan {
            self.counters.orphans_reset += 1;
            self.with_tcp(handle, now, Connection::abort);
        }
    }

    /// Changes [`Limits::orphans`](super::Limits::orphans) for later releases (Linux's
    /// `tcp_max_orphans`).
    pub fn set_orphans_max(&mut self, most: usize) {
        self.tcp.orphans_max = most;
    }

    /// Refuses an incoming connection with a reset, like a host without a listener.
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

    /// All connections except those in TIME-WAIT, with and without an owner; for reports.
    pub fn tcp_connections(&self) -> impl Iterator<Item = &Connection> {
        self.tcp.slots.places().filter_map(|slot| slot.connection.as_deref())
    }

    /// Number of connections, open or not, and number of those in TIME-WAIT.
    pub fn tcp_counts(&self) -> (usize, usize) {
        (self.tcp.count(), self.tcp.time_wait.len())
    }

    /// Number of connections, with and without an owner, that have unacknowledged data, and the
    /// bytes of that data. Checks all connections: not for the data path.
    pub fn tcp_sending(&self) -> (usize, usize) {
        let connections = self.tcp.slots.places().filter_map(|slot| slot.connection.as_deref());
        connections
            .filter(|connection| connection.is_sending())
            .fold((0, 0), |(count, bytes), one| (count + 1, bytes + one.unacknowledged()))
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
            if self.is_crowded_out(index, segment) {
                return self.crowd_out(index, cx);
            }
            if segment.len > 0 && pressure(cx.memory) >= Pressure::Some {
                self.tcp.drop_ahead(cx.now);
            }
            let slot = &mut self.tcp.slots[index as usize];
            let connection = slot.connection.as_deref_mut().expect("an index names a connection");
            let mut segment = *segment;
            if segment.len > 0 && must_drop_data(connection, cx.memory) {
                // The ACK still counts, as it may free memory. The peer retransmits the data.
                self.counters.drop(DropReason::TcpNoRoom);
                packet.truncate(0);
                segment = segment.without_data();
            }
            let (segment, ingress) = (&segment, packet.ingress());
            let unacknowledged = connection.unacknowledged();
            let verdict = connection.input(segment, &mut packet, cx.now);
            let progress = connection.unacknowledged() < unacknowledged;
            let confirms = progress && is_confirmation_due(slot.confirmed, cx.now);
            if confirms {
                slot.confirmed = Some(cx.now);
            }
            if verdict == Verdict::Done {
                self.tcp.accounts.assign(&mut slot.share, ingress);
            }
            if verdict == Verdict::Challenge
                && self.tcp.challenges.allow(&self.tcp.settings, cx.now)
            {
                connection.challenge();
            }
            self.tcp.settle(index, cx.now);
            if confirms {
                self.confirm_next_hop(remote.ip(), cx.now);
            }
            match verdict {
                Verdict::Done => {}
                Verdict::Unacceptable | Verdict::Challenge => {
                    self.counters.drop(DropReason::TcpUnacceptable);
                }
                Verdict::Deferred => self.counters.drop(DropReason::TcpDeferred),
                Verdict::NoRoom => self.counters.drop(DropReason::TcpNoRoom),
                Verdict::Reset => self.send_reset(local, remote, segment, ingress, cx),
            }
            return;
        }
        let mut past = None;
        let interval = self.tcp.settings.invalid_ratelimit;
        if let Some(entry) = self.tcp.time_wait.find_mut(local, remote) {
            let arrival = entry.arrival(segment, interval, cx.now);
            let (header, options) = entry.answer(cx.now);
            let opens = self.tcp.transparent || self.tcp.listeners.find(local).is_some();
            match arrival {
                Arrival::Reopen if opens => {
                    past = Some(entry.state.snd_nxt);
                    self.tcp.time_wait.remove(local, remote);
                }
                Arrival::End => return self.tcp.time_wait.remove(local, remote),
                Arrival::Ignore => return,
                Arrival::Reopen | Arrival::Answer => {
                    return self.send_tcp_header(local, remote, &header, &options, cx);
                }
            }
        }
        self.receive_unknown(Ends { local, remote, past }, segment, packet, cx);
    }

    /// Processes an ICMP error that quotes a sent segment; `mtu` if the path needs smaller packets.
    pub(super) fn tcp_error(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        sequence: Seq,
        mtu: Option<u32>,
        cx: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        let index = self.tcp.find(local, remote).ok_or(DropReason::IcmpIgnored)?;
        let slot = &mut self.tcp.slots[index as usize];
        let accepted = slot.role == Role::Owned;
        let connection = slot.connection.as_deref_mut().ok_or(DropReason::IcmpIgnored)?;
        if !connection.was_sent(sequence) {
            return Err(DropReason::IcmpOutOfWindow);
        }
        let tells = connection.tells_path();
        match mtu {
            None => connection.unreachable(accepted),
            Some(mtu) => {
                if tells {
                    self.learn_path_mtu(remote.ip(), mtu, cx.now);
                }
                let path = self.segment_sizes(remote.ip()).path;
                let slot = &mut self.tcp.slots[index as usize];
                if let Some(connection) = slot.connection.as_deref_mut() {
                    connection.too_big(path, cx.now);
                }
            }
        }
        self.tcp.settle(index, cx.now);
        Ok(())
    }

    /// Updates the segment sizes of a connection that is about to send, if any path has changed.
    fn follow_path(&mut self, index: u32) {
        let version = self.paths.version();
        let slot = &mut self.tcp.slots[index as usize];
        if core::mem::replace(&mut slot.path_version, version) == version {
            return;
        }
        let Some(remote) = slot.connection.as_deref().map(Connection::remote) else { return };
        let sizes = self.segment_sizes(remote.ip());
        let slot = &mut self.tcp.slots[index as usize];
        if let Some(connection) = slot.connection.as_deref_mut() {
            connection.reroute(&sizes);
        }
    }

    /// Answers a segment that entered by a port with a reset, if one is due and the port has not
    /// had all resets of this second.
    pub(super) fn send_reset(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        segment: &Segment,
        ingress: Option<u16>,
        cx: &mut Context<'_>,
    ) {
        let Some(header) = segment.reset() else { return };
        if !self.resets.allow(ingress, cx.now) {
            return self.counters.drop(DropReason::TcpResetLimited);
        }
        self.send_tcp_header(local, remote, &header, &Options::default(), cx);
    }

    pub(super) fn send_tcp_header(
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
        self.send_transport(packet, Protocol::TCP, (local.ip(), remote.ip()), 0, cx);
    }

    /// Builds one packet of the next connection. False if no connection can send.
    pub(super) fn output_tcp(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(index) = self.tcp.output.pop_front() else { return false };
        cx.memory.collect();
        let pressure = pressure(cx.memory);
        self.follow_path(index);
        let slot = &mut self.tcp.slots[index as usize];
        slot.output_queued = false;
        let Some(connection) = slot.connection.as_deref_mut() else { return true };
        let (local, remote) = (connection.local(), connection.remote());
        let ip = if local.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
        let egress = Egress { ip_header_len: ip as u32, pressure, stopped: self.stopped };
        let before = (connection.retransmitted(), connection.tail_probes());
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
        self.counters.retransmitted += connection.retransmitted() - before.0;
        self.counters.tail_probes += connection.tail_probes() - before.1;
        let marks = Marks::of_tcp(connection);
        // One packet per turn: no connection waits for another's whole window.
        self.tcp.settle(index, cx.now);
        self.send_marked(packet, Protocol::TCP, (local.ip(), remote.ip()), marks, cx);
        true
    }

    /// Updates a connection that sent nothing although it may want to: it waits for an ACK, a
    /// window or a timer.
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
