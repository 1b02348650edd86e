//! Joined UDP flows: datagrams of the program to ports of its own loopback that lead to the host's
//! loopback, past the stack, the packet pool and the TAP device.
//!
//! # Theory of operation
//!
//! The child that set up the program's network has left a bound datagram socket there for each port
//! and loopback address. Each address of the program that sends to such a socket gets a flow: a
//! socket that is connected to the port at the same address of the host's loopback, so that the
//! host's program can tell clients apart. Answers on it go back by the socket inside, from the
//! address that the program sent to.
//!
//! A UDP socket cannot make the kernel report an error to a peer. So the program does not learn
//! that no program of the host uses a port: the datagram is lost, and counted as refused. If a
//! client inside is gone, its flow ends with the first answer that arrives for it.
//!
//! Budget for a datagram, each way: one copy into frames of the worker and one out of them, by the
//! kernel; one call to read it and one to send it, and no allocation. Datagrams of one sender that
//! have the same size leave in one call, as a super-packet, and those that the kernel has coalesced
//! arrive in one. Where the kernel cannot segment, each leaves in a call of its own, with an
//! allocation. A new flow takes six calls more, to open its socket and to watch it.
//!
//! Bounds: a quarter of the flow limit. At the bound, the port with most flows loses the one that
//! was idle longest, as it does when no descriptor is left. Flows end after [`IDLE`]. A turn reads
//! at most [`DATAGRAMS_PER_TURN`] datagrams and `BYTES_PER_TURN` bytes. Datagrams that a socket
//! does not take are dropped, and counted as `udp_dropped`.

use super::idle::IdleShares;
use super::joined::End;
use super::list::Tally;
use super::shares::Share;
use super::udp::{IDLE, READS_PER_TURN, SWEEP, for_each_part};
use super::{BYTES_PER_TURN, Gateway, GatewayCounters, Io, Token, is_descriptor_shortage};
use super::{Slot, Slots};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use towpath_io::reactor::{Interest, Reactor, Readiness};
use towpath_io::receive::ReceiveBuffer;
use towpath_io::socket::{Datagram, DatagramsReceived, Sent, UdpSocket};
use towpath_net::time::Instant;
use towpath_packet::{Memory, Piece};

mod listed;
#[cfg(test)]
mod tests;

/// Most datagrams read in a turn of the worker; those that share a read with the last of them are
/// read as well.
const DATAGRAMS_PER_TURN: usize = 256;
/// ICMP errors read from one socket in a turn.
const ERRORS_PER_TURN: usize = 16;

/// A datagram socket that is bound on the program's loopback.
#[derive(Debug)]
pub struct JoinedDatagrams {
    /// The socket.
    pub socket: UdpSocket,
    /// The port of the host's loopback that it leads to.
    pub host_port: u16,
}

/// Identifies a datagram socket on the program's loopback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinedDatagramsId(Slot);

/// A socket inside, and where it leads.
struct Port {
    socket: UdpSocket,
    host: SocketAddr,
    /// It is in `JoinedUdp::waiting`.
    queued: bool,
}

/// The flow of one address of the program.
struct Flow {
    /// Connected to the host's port.
    socket: UdpSocket,
    port: Slot,
    program: SocketAddr,
    host: SocketAddr,
    /// When a datagram passed last.
    used_at: Instant,
    /// It is in `JoinedUdp::waiting`.
    queued: bool,
    tally: Tally,
}

/// All joined UDP flows.
pub(super) struct JoinedUdp {
    ports: Slots<Port>,
    flows: Slots<Flow>,
    /// By the port and the program's address.
    index: HashMap<(Slot, SocketAddr), Slot>,
    limit: usize,
    /// A share is a port.
    idle: IdleShares,
    sweep_at: Option<Instant>,
    /// Sockets with something to read, in line: of ports, and of flows on the host's side.
    waiting: VecDeque<(End, Slot)>,
    /// No frame was free: `waiting` is tried again after a while, not at once.
    starved: bool,
    /// Datagrams of one read; empty between reads, kept for its memory.
    read: Vec<Datagram>,
}

/// What joined UDP flows work with during a call.
pub(super) struct Around<'a> {
    pub(super) reactor: &'a Reactor,
    pub(super) memory: &'a mut Memory,
    pub(super) buffer: &'a mut ReceiveBuffer,
    pub(super) counters: &'a mut GatewayCounters,
    pub(super) now: Instant,
}

impl JoinedUdp {
    pub(super) fn new(flows_max: usize) -> Self {
        Self {
            ports: Slots::default(),
            flows: Slots::default(),
            index: HashMap::new(),
            limit: (flows_max / 4).max(16),
            idle: IdleShares::default(),
            sweep_at: None,
            waiting: VecDeque::new(),
            starved: false,
            read: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.flows.count()
    }

    pub(super) fn has_work(&self) -> bool {
        !self.waiting.is_empty() && !self.starved
    }

    /// Returns true if sockets wait for memory.
    pub(super) fn is_starved(&self) -> bool {
        self.starved && !self.waiting.is_empty()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.sweep_at
    }

    /// Returns true if everything that the program sent has been passed on.
    pub(super) fn all_passed_on(&self) -> bool {
        self.waiting.iter().all(|(end, _)| *end == End::Host)
    }

    /// Takes over a socket inside.
    fn join(&mut self, joined: JoinedDatagrams, reactor: &Reactor) -> io::Result<Slot> {
        let JoinedDatagrams { socket, host_port } = joined;
        let loopback: IpAddr = match socket.local()? {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        let host = SocketAddr::new(loopback, host_port);
        let token = Token::JoinedUdp(self.ports.next_key(), End::Inside).encode();
        reactor.add(&socket, token, Interest::READ, true)?;
        self.read.reserve(READS_PER_TURN);
        Ok(self.ports.insert(Port { socket, host, queued: false }))
    }

    /// Closes a socket inside, and ends its flows: nothing could answer for them.
    fn leave(&mut self, port: Slot) {
        // Closing the socket ends the watch for it.
        self.ports.remove(port);
        self.remove_where(|flow| flow.port == port);
    }

    /// A socket has datagrams or errors.
    pub(super) fn ready(&mut self, slot: Slot, end: End, ready: Readiness, cx: &mut Around<'_>) {
        if ready.error {
            self.read_errors(slot, end, cx);
        }
        self.queue(slot, end);
    }

    /// Puts a socket at the end of the line, unless it is in line.
    fn queue(&mut self, slot: Slot, end: End) {
        if self.queued(slot, end).is_some_and(|queued| !std::mem::replace(queued, true)) {
            self.waiting.push_back((end, slot));
        }
    }

    /// Returns the mark of a socket that is in line.
    fn queued(&mut self, slot: Slot, end: End) -> Option<&mut bool> {
        match end {
            End::Inside => self.ports.get_mut(slot).map(|port| &mut port.queued),
            End::Host => self.flows.get_mut(slot).map(|flow| &mut flow.queued),
        }
    }

    /// Passes on what the sockets in line have, once for each, until one turn's share is read.
    pub(super) fn go_on(&mut self, cx: &mut Around<'_>) {
        self.starved = false;
        let (mut bytes, mut datagrams) = (BYTES_PER_TURN, DATAGRAMS_PER_TURN);
        for _ in 0..self.waiting.len() {
            if bytes == 0 || datagrams == 0 {
                return;
            }
            let Some((end, slot)) = self.waiting.pop_front() else { return };
            let Some(queued) = self.queued(slot, end) else { continue };
            *queued = false;
            let received = self.pass_on(slot, end, bytes, cx);
            bytes = bytes.saturating_sub(received.bytes);
            datagrams = datagrams.saturating_sub(received.count);
        }
    }

    /// Reads from a socket until `most` bytes have arrived, and passes them on.
    fn pass_on(
        &mut self,
        slot: Slot,
        end: End,
        most: usize,
        cx: &mut Around<'_>,
    ) -> DatagramsReceived {
        let socket = match end {
            End::Inside => self.ports.get(slot).map(|port| &port.socket),
            End::Host => self.flows.get(slot).map(|flow| &flow.socket),
        };
        let Some(socket) = socket else { return DatagramsReceived::default() };
        let mut read = std::mem::take(&mut self.read);
        let keep = |mut datagram| {
            if !read.last_mut().is_some_and(|last: &mut Datagram| last.join(&mut datagram)) {
                read.push(datagram);
            }
        };
        let result = socket.receive(cx.buffer, cx.memory, (READS_PER_TURN, most), keep);
        for datagram in read.drain(..) {
            match end {
                End::Inside => self.send_out(slot, &datagram, cx),
                End::Host => self.send_in(slot, &datagram, cx),
            }
        }
        self.read = read;
        match result {
            Ok(received) => {
                if received.error_pending {
                    self.read_errors(slot, end, cx);
                }
                self.starved |= received.no_memory;
                if !received.drained {
                    self.queue(slot, end);
                }
                received
            }
            // An error that the error queue describes better.
            Err(_) => {
                self.read_errors(slot, end, cx);
                DatagramsReceived::default()
            }
        }
    }

    /// Sends a datagram of the program to the host.
    fn send_out(&mut self, port: Slot, datagram: &Datagram, cx: &mut Around<'_>) {
        let slot = match self.find_or_open(port, datagram.from, cx) {
            Ok(slot) => slot,
            Err(error) => {
                cx.counters.no_descriptor += u64::from(is_descriptor_shortage(&error));
                cx.counters.udp_dropped += 1;
                return;
            }
        };
        let Some(flow) = self.flows.get_mut(slot) else { return };
        flow.used_at = cx.now;
        if send(&flow.socket, None, datagram).is_ok() {
            flow.tally.bytes[0] += datagram.len as u64;
            cx.counters.joined_bytes_out += datagram.len as u64;
        } else {
            cx.counters.udp_dropped += 1;
            // The error queue may have the reason.
            self.read_errors(slot, End::Host, cx);
        }
    }

    /// Sends a datagram of the host to the program.
    fn send_in(&mut self, slot: Slot, datagram: &Datagram, cx: &mut Around<'_>) {
        let Some(flow) = self.flows.get_mut(slot) else { return };
        let Some(port) = self.ports.get(flow.port) else { return };
        flow.used_at = cx.now;
        if send(&port.socket, Some(flow.program), datagram).is_ok() {
            flow.tally.bytes[1] += datagram.len as u64;
            cx.counters.joined_bytes_in += datagram.len as u64;
        } else {
            cx.counters.udp_dropped += 1;
        }
    }

    /// Returns the flow of an address of the program, which may be new.
    fn find_or_open(
        &mut self,
        port: Slot,
        program: SocketAddr,
        cx: &mut Around<'_>,
    ) -> io::Result<Slot> {
        if let Some(&slot) = self.index.get(&(port, program)) {
            return Ok(slot);
        }
        let host = self.ports.get(port).map(|port| port.host).ok_or(io::ErrorKind::NotFound)?;
        let share = Share::Published(port.index);
        if self.flows.count() >= self.limit && self.evict(share) {
            cx.counters.evicted += 1;
        }
        let mut socket = UdpSocket::connect(host);
        if socket.as_ref().is_err_and(is_descriptor_shortage) && self.evict(share) {
            cx.counters.evicted += 1;
            socket = UdpSocket::connect(host);
        }
        let (socket, slot) = (socket?, self.flows.next_key());
        let token = Token::JoinedUdp(slot, End::Host).encode();
        cx.reactor.add(&socket, token, Interest::READ, true)?;
        self.flows.insert(Flow {
            socket,
            port,
            program,
            host,
            used_at: cx.now,
            queued: false,
            tally: Tally::new(cx.now),
        });
        self.index.insert((port, program), slot);
        self.idle.begin(share, slot, cx.now);
        self.sweep_at = self.sweep_at.or(Some(cx.now + SWEEP));
        cx.counters.joined_udp += 1;
        Ok(slot)
    }

    /// Reads the ICMP errors of a socket: the host refused a datagram, or a client inside is gone.
    fn read_errors(&mut self, slot: Slot, end: End, cx: &mut Around<'_>) {
        for _ in 0..ERRORS_PER_TURN {
            let error = match end {
                End::Inside => self.ports.get(slot).and_then(|port| port.socket.take_error_event()),
                End::Host => self.flows.get(slot).and_then(|flow| flow.socket.take_error_event()),
            };
            let Some(error) = error else { return };
            match end {
                End::Host => cx.counters.joined_udp_refused += 1,
                End::Inside => {
                    let client = error.to.map(|client| (slot, client));
                    if let Some(&flow) = client.and_then(|client| self.index.get(&client)) {
                        self.remove(flow);
                    }
                }
            }
        }
        // The remaining errors have their turn like datagrams: reading datagrams comes here again.
        self.queue(slot, end);
    }

    /// Ends flows that were idle too long.
    pub(super) fn expire(&mut self, now: Instant) {
        if self.sweep_at.is_none_or(|at| at > now) {
            return;
        }
        self.remove_where(|flow| now.since(flow.used_at) >= IDLE);
        let flows = &self.flows;
        self.idle.retain(|slot| flows.get(slot).is_some());
        self.sweep_at = (!self.idle.is_empty()).then(|| now + SWEEP);
    }

    fn remove_where(&mut self, is_over: impl Fn(&Flow) -> bool) {
        let over = self.flows.iter().filter(|(_, flow)| is_over(flow)).map(|(slot, _)| slot);
        let over: Vec<Slot> = over.collect();
        over.into_iter().for_each(|slot| self.remove(slot));
    }

    fn remove(&mut self, slot: Slot) {
        if let Some(flow) = self.flows.remove(slot) {
            self.index.remove(&(flow.port, flow.program));
            self.idle.ended(Share::Published(flow.port.index));
        }
    }

    /// Evicts the longest-idle flow of the port that has most flows.
    fn evict(&mut self, newcomer: Share) -> bool {
        let flows = &self.flows;
        let used_at = |slot| flows.get(slot).map(|flow: &Flow| flow.used_at);
        let longest = self.idle.end_longest(newcomer, used_at);
        longest.inspect(|&slot| self.remove(slot)).is_some()
    }
}

/// Sends a datagram, or each segment by itself where the kernel does not take super-packets.
fn send(socket: &UdpSocket, to: Option<SocketAddr>, datagram: &Datagram) -> io::Result<()> {
    let (pieces, size) = (|| datagram.pieces.iter(), datagram.gro_size);
    if socket.send_to(to, pieces(), size)? == Sent::Whole {
        return Ok(());
    }
    let Some(size) = size else { return Ok(()) };
    let mut result = Ok(());
    for_each_part(pieces, datagram.len, size, |parts| {
        if result.is_ok() {
            let parts: Vec<Piece> = parts.collect();
            result = socket.send_to(to, parts.iter(), None).map(|_| ());
        }
    });
    result
}

impl Gateway {
    /// Passes datagrams that arrive at this socket on to the host's loopback from now on.
    pub(crate) fn join_datagrams(
        &mut self,
        joined: JoinedDatagrams,
        reactor: &Reactor,
    ) -> io::Result<JoinedDatagramsId> {
        self.joined_udp.join(joined, reactor).map(JoinedDatagramsId)
    }

    /// Closes a socket of [`Gateway::join_datagrams`], and ends its flows.
    pub(crate) fn leave_datagrams(&mut self, id: JoinedDatagramsId) {
        self.joined_udp.leave(id.0);
    }

    /// Calls `act` with the joined UDP flows.
    pub(super) fn with_joined_udp(
        &mut self,
        io: &mut Io<'_>,
        act: impl FnOnce(&mut JoinedUdp, &mut Around<'_>),
    ) {
        let Io { memory, buffer, reactor, now, .. } = io;
        let (reactor, now, counters) = (*reactor, *now, &mut self.counters);
        act(&mut self.joined_udp, &mut Around { reactor, memory, buffer, counters, now });
    }
}
