//! Echo flows: requests of the program leave by a ping socket of the host, and replies come back.
//!
//! Bounds: [`PINGS_MAX`] flows; at the bound the guest with most flows loses the one that was idle
//! longest. Idle flows end after [`IDLE`] (RFC 5508 REQ-1).

use super::hops::{hops_left, report};
use super::list::{Described, Visited};
use super::newcomers::Message;
use super::route::Target;
use super::shares::Share;
use super::{Gateway, Io, Token, is_descriptor_shortage};
use super::{Slot, Slots};
use crate::egress::meter::{Direction, Meters, Pass};
use crate::owners::{Buckets, of_echo};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU8;
use std::time::Duration;
use towpath_io::reactor::Interest;
use towpath_io::socket::{PingError, PingSocket};
use towpath_net::stack::{Echo, EchoReply, Report, Unreachable};
use towpath_net::time::Instant;

/// Most echo flows.
const PINGS_MAX: usize = 256;
/// How long an idle echo flow lives.
const IDLE: Duration = Duration::from_secs(60);
/// ICMP errors read from one socket in a turn; remaining errors make the socket ready again.
const ERRORS_PER_TURN: usize = 16;
/// Replies read from one socket in a turn.
const READS_PER_TURN: usize = 64;

/// Program's address, destination, identifier.
type Key = (IpAddr, IpAddr, u16);

struct Flow {
    socket: PingSocket,
    key: Key,
    /// The share that it counts for.
    share: Share,
    /// Sequence number of the last request, for errors that quote no request.
    sequence: u16,
    /// The header fields set on the socket; `None` before the first request.
    header: Option<Header>,
    used_at: Instant,
    /// When it began, and the payload bytes that it has moved.
    begun: Instant,
    bytes_out: u64,
    bytes_in: u64,
    /// Bounds of its bytes.
    meters: Meters,
}

/// Fields of a request's IP header that its socket passes on.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Header {
    hops: Option<NonZeroU8>,
    dont_fragment: bool,
}

impl Flow {
    /// Judges an echo by the bounds of its bytes.
    fn pass(&self, way: Direction, bytes: usize, now: Instant) -> Pass {
        if self.meters.is_none() { Pass::Passes } else { self.meters.pass(way, bytes, now) }
    }

    /// Sets the socket's header fields, with one call for each change.
    fn set_header(&mut self, header: Header) -> io::Result<()> {
        let old = self.header;
        if old == Some(header) {
            return Ok(());
        }
        self.header = None;
        if old.is_none_or(|old| old.hops != header.hops) {
            self.socket.set_hops(header.hops)?;
        }
        if old.is_none_or(|old| old.dont_fragment != header.dont_fragment) {
            self.socket.set_dont_fragment(header.dont_fragment)?;
        }
        self.header = Some(header);
        Ok(())
    }
}

/// An echo flow between two workers.
pub(super) struct MovedPing(Flow);

/// All echo flows.
pub(super) struct Pings {
    slots: Slots<Flow>,
    index: HashMap<Key, Slot>,
    forbidden: bool,
}

impl Pings {
    pub(super) fn new() -> Self {
        Self { slots: Slots::default(), index: HashMap::new(), forbidden: false }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.count()
    }

    pub(super) fn table_len(&self) -> usize {
        self.slots.places_len()
    }

    /// Returns the bytes that a flow has moved.
    pub(super) fn visited(&self, index: u32) -> Option<Visited> {
        let (slot, flow) = self.slots.at(index)?;
        let Flow { begun, bytes_out, bytes_in, .. } = *flow;
        Some(Visited { generation: slot.generation, begun, bytes_out, bytes_in })
    }

    pub(super) fn describe(&self, index: u32) -> Option<Described> {
        let (program, peer, _) = self.slots.at(index)?.1.key;
        Some(Described {
            program: SocketAddr::new(program, 0),
            peer: Some(SocketAddr::new(peer, 0)),
            is_inbound: false,
            state: "open",
            tcp: None,
        })
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.slots.iter().map(|(_, flow)| flow.used_at + IDLE).min()
    }

    /// Ends all flows: the next requests begin new ones.
    pub(super) fn forget_flows(&mut self) {
        let all: Vec<Slot> = self.slots.iter().map(|(slot, _)| slot).collect();
        all.into_iter().for_each(|slot| self.remove(slot));
    }

    pub(super) fn expire(&mut self, now: Instant) {
        let over: Vec<Slot> = self
            .slots
            .iter()
            .filter(|(_, flow)| now.since(flow.used_at) >= IDLE)
            .map(|(slot, _)| slot)
            .collect();
        for slot in over {
            self.remove(slot);
        }
    }

    fn remove(&mut self, slot: Slot) {
        if let Some(flow) = self.slots.remove(slot) {
            self.index.remove(&flow.key);
        }
    }

    /// Evicts the longest-idle flow of the guest that has most flows.
    fn evict(&mut self, newcomer: Share) {
        let mut counts: HashMap<Share, usize> = HashMap::new();
        self.slots.iter().for_each(|(_, flow)| *counts.entry(flow.share).or_default() += 1);
        let most = counts.iter().max_by_key(|(share, count)| (**count, **share == newcomer));
        let Some((&most, _)) = most else { return };
        let flows = self.slots.iter().filter(|(_, flow)| flow.share == most);
        let oldest = flows.min_by_key(|(_, flow)| flow.used_at).map(|(slot, _)| slot);
        if let Some(slot) = oldest {
            self.remove(slot);
        }
    }
}

impl Gateway {
    /// Returns true once the host has refused a ping socket.
    pub(crate) fn ping_is_forbidden(&self) -> bool {
        self.pings.forbidden
    }

    /// The program sent an echo request. A request that needs a new flow waits.
    pub(super) fn on_echo(&mut self, echo: Echo, io: &mut Io<'_>) {
        if self.pings.index.contains_key(&(echo.remote, echo.local, echo.ident)) {
            self.send_echo(echo, io);
        } else {
            self.message_waits(Message::Echo(echo), io);
        }
    }

    pub(super) fn send_echo(&mut self, echo: Echo, io: &mut Io<'_>) {
        let Target::Host(to) = self.routes.target(SocketAddr::new(echo.local, 0)) else { return };
        let key = (echo.remote, echo.local, echo.ident);
        let slot = match self.pings.index.get(&key) {
            Some(&slot) => Ok(slot),
            None => {
                let Some(meters) = self.admits_echo(&echo, to.ip(), io) else { return };
                let share = Share::Guest(echo.packet.ingress());
                self.open_ping(key, to.ip(), (share, meters), io)
            }
        };
        let slot = match slot {
            Ok(slot) => slot,
            Err(error) => return Self::ping_failed(key, echo.sequence, error.as_ref(), io),
        };
        let Some(flow) = self.pings.slots.get_mut(slot) else { return };
        flow.used_at = io.now;
        flow.sequence = echo.sequence;
        let bytes = echo.packet.payload_len();
        match flow.pass(Direction::Out, bytes, io.now) {
            Pass::Passes => self.counters.echo += 1,
            Pass::TooFast => return self.counters.over_bandwidth += 1,
            Pass::Over => {
                flow.meters.exhaust(bytes);
                self.pings.remove(slot);
                return Self::prohibit_echo(&echo, io);
            }
        }
        let pieces: Vec<_> = echo.packet.pieces().cloned().collect();
        let header = Header { hops: hops_left(echo.ttl), dont_fragment: echo.dont_fragment };
        let sent = flow.set_header(header);
        match sent.and_then(|()| flow.socket.send(echo.sequence, pieces.iter())) {
            Ok(()) => {
                flow.bytes_out += bytes as u64;
                io.ledger.carry(bytes);
            }
            // The error queue has the MTU.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::MSGSIZE) => {
                Self::read_ping_errors(flow, io);
            }
            Err(error) => Self::ping_failed(key, echo.sequence, Some(&error), io),
        }
    }

    /// Asks the policy about a new flow, and returns what bounds it. Returns `None` if it is
    /// denied, which is reported to the program.
    fn admits_echo(&self, echo: &Echo, to: IpAddr, io: &mut Io<'_>) -> Option<Meters> {
        let Some(egress) = &self.egress else { return Some(Meters::default()) };
        let admitted = egress.admits_echo(echo.packet.ingress(), to, io.now);
        if admitted.is_none() {
            Self::prohibit_echo(echo, io);
        }
        admitted
    }

    fn prohibit_echo(echo: &Echo, io: &mut Io<'_>) {
        let (stack, mut context) = io.stack_and_context();
        let request = (echo.ident, echo.sequence);
        let why = Unreachable::Prohibited;
        stack.echo_unreachable(echo.local, echo.remote, request, why, &mut context);
    }

    /// A request could not be sent: reports to the program the error that the host's own ping would
    /// get.
    fn ping_failed(key: Key, sequence: u16, error: Option<&io::Error>, io: &mut Io<'_>) {
        let why = match error.and_then(Errno::from_io_error) {
            Some(Errno::NETUNREACH) => Unreachable::Network,
            Some(Errno::HOSTUNREACH) => Unreachable::Host,
            Some(Errno::ACCESS | Errno::PERM) => Unreachable::Prohibited,
            _ => return,
        };
        let (remote, local, ident) = key;
        let (stack, mut context) = io.stack_and_context();
        stack.echo_unreachable(local, remote, (ident, sequence), why, &mut context);
    }

    /// Reports errors that came back for requests to the program.
    fn read_ping_errors(flow: &Flow, io: &mut Io<'_>) {
        let mut own = false;
        for _ in 0..ERRORS_PER_TURN {
            let Some(error) = flow.socket.take_error_event() else { return };
            let Some(report) = report(&error) else { continue };
            let (sequence, data) = match flow.socket.request_of(&error) {
                Some(request) => request,
                // Errors of this host are about the request just tried; a second attempt queues a
                // second error.
                None if error.icmp_type == 0 && !std::mem::replace(&mut own, true) => {
                    (flow.sequence, &[][..])
                }
                None => continue,
            };
            let (remote, local, ident) = flow.key;
            let (stack, mut context) = io.stack_and_context();
            let report = Report { data, ..report };
            stack.report_echo(local, remote, (ident, sequence), &report, &mut context);
        }
    }

    /// Opens a flow for echo requests; the error holds the reason, if there is one to report.
    fn open_ping(
        &mut self,
        key: Key,
        to: IpAddr,
        (share, meters): (Share, Meters),
        io: &mut Io<'_>,
    ) -> Result<Slot, Option<io::Error>> {
        if self.pings.slots.count() >= PINGS_MAX {
            self.pings.evict(share);
            self.counters.evicted += 1;
        }
        let socket = match PingSocket::connect(to, key.2) {
            Ok(socket) => socket,
            Err(PingError::NotPermitted) => {
                self.pings.forbidden = true;
                self.counters.echo_forbidden += 1;
                return Err(None);
            }
            Err(PingError::Os(error)) => {
                self.counters.no_descriptor += u64::from(is_descriptor_shortage(&error));
                return Err(Some(error));
            }
        };
        let slot = self.pings.slots.next_key();
        io.reactor.add(&socket, Token::Ping(slot).encode(), Interest::READ, false).map_err(Some)?;
        let flow = Flow {
            socket,
            key,
            share,
            sequence: 0,
            header: None,
            used_at: io.now,
            begun: io.now,
            bytes_out: 0,
            bytes_in: 0,
            meters,
        };
        self.pings.slots.insert(flow);
        self.pings.index.insert(key, slot);
        Ok(slot)
    }

    /// Takes out the echo flows of these buckets.
    pub(super) fn take_pings(&mut self, buckets: &Buckets, io: &mut Io<'_>) -> Vec<MovedPing> {
        let is_wanted = |flow: &Flow| buckets.contains(of_echo(flow.key.2));
        let wanted = self.pings.slots.iter().filter(|(_, flow)| is_wanted(flow));
        let wanted: Vec<Slot> = wanted.map(|(slot, _)| slot).collect();
        let moved = wanted.into_iter().filter_map(|slot| {
            let flow = self.pings.slots.remove(slot)?;
            self.pings.index.remove(&flow.key);
            // It was added when the flow began; removing it cannot fail.
            let _ = io.reactor.remove(&flow.socket);
            Some(MovedPing(flow))
        });
        moved.collect()
    }

    /// Continues an echo flow.
    pub(super) fn put_ping(&mut self, MovedPing(flow): MovedPing, io: &mut Io<'_>) {
        let slot = self.pings.slots.next_key();
        let token = Token::Ping(slot).encode();
        if io.reactor.add(&flow.socket, token, Interest::READ, false).is_err() {
            self.counters.no_descriptor += 1;
            return;
        }
        self.pings.index.insert(flow.key, slot);
        self.pings.slots.insert(flow);
    }

    /// A ping socket has replies.
    pub(super) fn ping_ready(&mut self, slot: Slot, io: &mut Io<'_>) {
        for _ in 0..READS_PER_TURN {
            let Some(flow) = self.pings.slots.get_mut(slot) else { return };
            let (remote, local, ident) = flow.key;
            let reply = match flow.socket.receive(io.buffer, io.memory) {
                Ok(Some(reply)) => reply,
                // Without memory the replies are lost, and the flow ends.
                Ok(None) => return self.pings.remove(slot),
                Err(_) => return Self::read_ping_errors(flow, io),
            };
            flow.used_at = io.now;
            match flow.pass(Direction::In, reply.len, io.now) {
                Pass::Passes => {}
                Pass::TooFast => {
                    self.counters.over_bandwidth += 1;
                    continue;
                }
                Pass::Over => {
                    self.counters.over_quota += 1;
                    continue;
                }
            }
            let Some(mut packet) = io.memory.packet() else { return };
            for piece in reply.pieces {
                if packet.push_piece(piece).is_err() {
                    return;
                }
            }
            flow.bytes_in += reply.len as u64;
            io.ledger.carry(reply.len);
            let echo = EchoReply { local, remote, ident, sequence: reply.sequence, packet };
            let (stack, mut context) = io.stack_and_context();
            stack.echo_reply(echo, &mut context);
        }
    }
}
