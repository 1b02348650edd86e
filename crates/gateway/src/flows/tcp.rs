//! TCP flows: a connection of the stack joined with a host socket.
//!
//! Each direction moves as long as its source has bytes and its sink takes them. A FIN on one side
//! becomes a FIN on the other after the last byte; a reset becomes a reset at once. Host sockets
//! are watched edge-triggered: a flow remembers that its socket can be read or written until a call
//! returns otherwise.
//!
//! A readable event does not read from the host at once: the flow joins a line
//! ([`TcpFlows::waiting`]). Once per turn of the worker the flows in front read, until they have
//! read [`BYTES_PER_TURN`] together. A flow that has more goes to the end of the line. So a flow
//! that always has more waits for each of the others once, however many events they have, and the
//! program's own packets get their turn after the same number of bytes, however many flows there
//! are.

mod ends;
mod gate;
mod inbound;
mod lend;
mod listed;
mod metered;
mod moved;
mod questions;
mod slow;
mod urgent;

use super::Slot;
use super::lent::Terms;
use super::queued::Queued;
use super::route::Target;
use super::{Gateway, Io, Token, is_descriptor_shortage};
use crate::egress::meter::{Direction, Grant};
use gate::{Denied, Gate};
pub(super) use moved::MovedConnection;
use questions::{Dialogue, Dialogues};
use rustix::io::Errno;
use slow::Moment;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use towpath_io::reactor::{Event, Interest};
use towpath_io::socket::{Received, TcpSocket};
use towpath_net::stack::{TcpHandle, Unreachable};
use towpath_net::tcp::Events;
use towpath_net::time::Instant;
use towpath_packet::Piece;

/// Bytes read from the host in a turn of the worker, by all flows together, or by one flow that has
/// so many. They are sent at the end of the turn, while they are still in the processor's own
/// cache; this is half of that cache.
pub(crate) const BYTES_PER_TURN: usize = 512 << 10;

/// State of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The program waits for the host to answer.
    HostConnecting {
        /// Resolvers tried, if this is DNS.
        dns: Option<u8>,
    },
    /// The host waits for the program to answer.
    ProgramConnecting,
    /// Both sides are connected.
    Open,
}

struct Flow {
    handle: TcpHandle,
    socket: TcpSocket,
    phase: Phase,
    host_readable: bool,
    host_writable: bool,
    /// The host has marked a byte as urgent that has not been read yet.
    host_urgent: bool,
    /// The socket is also watched for room: it was full once, or its connect was not immediate.
    watches_room: bool,
    /// Something has been sent.
    has_sent: bool,
    /// TCP_NODELAY is set on the socket.
    nodelay: bool,
    /// Whether it may lend what it sends to the host's kernel.
    terms: Terms,
    /// The host has sent its FIN, or it follows the bytes that can be read.
    host_closing: bool,
    /// The host's FIN was read and passed on.
    host_closed: bool,
    /// The program's FIN was passed on.
    program_closed: bool,
    /// The connection to the program is over; its bytes are still being passed on.
    over: bool,
    /// It is in `TcpFlows::waiting`.
    queued: bool,
    /// The program has been asked to stop sending until the host socket has room.
    held_off: bool,
    /// A copy of the first bytes that went back to the program.
    kept: Vec<u8>,
    /// Bytes that it holds for a moment, unacknowledged; `moment` is which moment that is.
    brief: usize,
    moment: Option<Moment>,
    /// Bytes that the host has taken.
    passed: u64,
    /// When it began, and whether the host began it.
    begun: Instant,
    is_inbound: bool,
    /// What the policy knows of it, if there is one.
    gate: Option<Box<Gate>>,
    /// Its questions and answers, if the policy judges those.
    dialogue: Option<Box<Dialogue>>,
    /// Bytes for the host; `into` has the bytes for the program.
    out: Queued,
    into: Queued,
}

impl Flow {
    fn new(handle: TcpHandle, socket: TcpSocket, phase: Phase, now: Instant) -> Self {
        Self {
            handle,
            socket,
            phase,
            host_readable: false,
            host_urgent: false,
            host_writable: !matches!(phase, Phase::HostConnecting { .. }),
            watches_room: true,
            has_sent: false,
            nodelay: false,
            terms: Terms::default(),
            host_closing: false,
            host_closed: false,
            program_closed: false,
            over: false,
            queued: false,
            held_off: false,
            kept: Vec::new(),
            brief: 0,
            moment: None,
            passed: 0,
            begun: now,
            is_inbound: phase == Phase::ProgramConnecting,
            gate: None,
            dialogue: None,
            out: Queued::default(),
            into: Queued::default(),
        }
    }

    /// Sends to the host. The first data waits for no ACK, as none is outstanding. Later data would
    /// wait without `TCP_NODELAY`.
    fn send<'a>(&mut self, pieces: impl Iterator<Item = &'a Piece>) -> io::Result<usize> {
        self.sends();
        self.socket.send(pieces)
    }

    /// Prepares the socket for a send.
    fn sends(&mut self) {
        if self.has_sent && !self.nodelay {
            // An error only costs speed.
            let _ = self.socket.set_nodelay(true);
            self.nodelay = true;
        }
        self.has_sent = true;
    }
}

/// All TCP flows. A flow has the index of its connection in the stack.
pub(super) struct TcpFlows {
    flows: Vec<Option<Box<Flow>>>,
    count: usize,
    /// The line of flows that will read from the host.
    waiting: VecDeque<u32>,
    /// No frame was free: `waiting` is tried again after a while, not at once.
    starved: bool,
    /// Flows whose guest has as much in flight as it may, and which wait for no ACK of their own.
    /// Some are tried again in each turn, and after a while.
    parked: VecDeque<u32>,
    /// Bytes that flows have kept copies of after they went back.
    kept: usize,
    /// Bytes that flows hold for a moment; `moments` has when each moment ends.
    brief: usize,
    moments: VecDeque<(Instant, TcpHandle)>,
    dialogues: Dialogues,
}

impl TcpFlows {
    pub(super) fn new() -> Self {
        let (waiting, parked) = (VecDeque::new(), VecDeque::new());
        let (flows, moments, dialogues) = (Vec::new(), VecDeque::new(), Dialogues::default());
        let (count, starved, kept, brief) = (0, false, 0, 0);
        Self { flows, count, waiting, starved, parked, kept, brief, moments, dialogues }
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn has_work(&self) -> bool {
        !self.waiting.is_empty() && !self.starved
    }

    /// Returns true if flows wait for memory.
    pub(super) fn is_starved(&self) -> bool {
        self.starved && !self.waiting.is_empty() || !self.parked.is_empty()
    }

    fn insert(&mut self, flow: impl Into<Box<Flow>>) {
        let flow: Box<Flow> = flow.into();
        let index = flow.handle.index();
        if self.flows.len() <= index {
            self.flows.resize_with(index + 1, || None);
        }
        debug_assert!(self.flows[index].is_none());
        self.dialogues.insert(&flow);
        self.flows[index] = Some(flow);
        self.count += 1;
    }

    fn get_mut(&mut self, handle: TcpHandle) -> Option<&mut Flow> {
        let flow = self.flows.get_mut(handle.index())?.as_deref_mut()?;
        (flow.handle == handle).then_some(flow)
    }

    fn remove(&mut self, handle: TcpHandle) -> Option<Box<Flow>> {
        let flow = self.get_mut(handle)?;
        let (brief, kept) = (flow.brief, flow.kept.len());
        self.brief -= brief;
        self.kept -= kept;
        self.count -= 1;
        let flow = self.flows[handle.index()].take();
        flow.inspect(|flow| self.dialogues.remove(flow))
    }

    /// Puts a flow at the end of the line, unless it is in line or has nothing to read.
    fn queue(&mut self, handle: TcpHandle) {
        if let Some(flow) = self.get_mut(handle)
            && flow.host_readable
            && !flow.host_closed
            && !flow.queued
        {
            flow.queued = true;
            self.waiting.push_back(handle.index() as u32);
        }
    }
}

impl Gateway {
    pub(super) fn on_tcp_events(&mut self, handle: TcpHandle, events: Events, io: &mut Io<'_>) {
        if events.contains(Events::CLOSED) {
            return self.on_closed(handle, io);
        }
        if events.contains(Events::INCOMING) {
            return self.connection_waits(handle, io);
        }
        let Some(flow) = self.tcp.get_mut(handle) else {
            return io.stack.tcp_release(handle, io.now);
        };
        if events.contains(Events::ESTABLISHED) && flow.phase == Phase::ProgramConnecting {
            flow.phase = Phase::Open;
            io.stack.with_tcp(handle, io.now, |connection| connection.set_nodelay(true));
        }
        if flow.phase != Phase::Open {
            return;
        }
        let has_questions = flow.dialogue.is_some();
        if events.contains(Events::READABLE) || events.contains(Events::PEER_CLOSED) {
            self.move_out(handle, io);
            self.note_awaited(handle, io);
        }
        if events.contains(Events::WRITABLE) {
            match has_questions {
                true => self.converse(handle, io),
                false => self.tcp.queue(handle),
            }
        }
    }

    /// Begins a connection of the program to a host.
    pub(super) fn begin_outbound(&mut self, handle: TcpHandle, io: &mut Io<'_>) {
        let Some(destination) = io.stack.tcp(handle).map(|connection| connection.local()) else {
            return;
        };
        self.counters.tcp_out += 1;
        let target = self.routes.target(destination);
        let gate = match self.judge_connection(handle, target, io) {
            Ok(gate) => gate,
            Err(Denied) => return self.prohibit(handle, io),
        };
        let (to, dns) = match target {
            Target::Host(to) | Target::Mapped(to) => (to, None),
            Target::Dns if !self.has_room_for_dialogue(handle, io) => {
                self.counters.tcp_refused += 1;
                return self.refuse(handle, io);
            }
            Target::Dns => match self.resolvers.after(0, io.now) {
                Some(to) => (to, Some(0)),
                None => return self.refuse(handle, io),
            },
            Target::DnsOverTls(port) => match self.resolvers.first_at(port, io.now) {
                Some(to) => (to, None),
                None => return self.refuse(handle, io),
            },
            Target::Refused => return self.refuse(handle, io),
        };
        self.connect_host(handle, to, (dns, gate), io);
    }

    fn connect_host(
        &mut self,
        handle: TcpHandle,
        to: SocketAddr,
        (dns, gate): (Option<u8>, Option<Box<Gate>>),
        io: &mut Io<'_>,
    ) {
        let (socket, connected) = match TcpSocket::connect(to) {
            Ok(begun) => begun,
            Err(error) => return self.connect_failed(handle, dns, &error, io),
        };
        let token = Token::Tcp(handle.key()).encode();
        // A connected socket reports room at once; that event is not needed while there is room.
        let interest = if connected { Interest::READ } else { Interest::BOTH };
        if let Err(error) = io.reactor.add(&socket, token, interest.and_urgent(), true) {
            return self.connect_failed(handle, dns, &error, io);
        }
        let mut flow = Flow::new(handle, socket, Phase::HostConnecting { dns }, io.now);
        flow.watches_room = !connected;
        flow.gate = gate;
        let has_questions = dns.is_some() && self.egress.is_some();
        flow.dialogue = has_questions.then(|| Box::new(Dialogue::new(io.now)));
        self.tcp.insert(flow);
        if connected {
            self.host_connected(handle, io);
            // It connected at once, so the host is this machine.
            self.expect_answers(handle, io);
            self.limit_lending(handle);
        }
    }

    fn host_connected(&mut self, handle: TcpHandle, io: &mut Io<'_>) {
        let Some(flow) = self.tcp.get_mut(handle) else { return };
        flow.phase = Phase::Open;
        flow.host_writable = true;
        self.limit_first_window(handle, io);
        io.stack.with_tcp(handle, io.now, |connection| {
            connection.accept();
            connection.set_nodelay(true);
        });
    }

    /// The host refused, is unreachable, or there is no socket for the connection. Reports to the
    /// program the error that it would get without a gateway.
    fn connect_failed(
        &mut self,
        handle: TcpHandle,
        dns: Option<u8>,
        error: &io::Error,
        io: &mut Io<'_>,
    ) {
        if let Some(tried) = dns
            && let Some(to) = self.resolvers.after(usize::from(tried) + 1, io.now)
        {
            return self.connect_host(handle, to, (Some(tried + 1), None), io);
        }
        self.counters.tcp_refused += 1;
        if is_descriptor_shortage(error) {
            self.counters.no_descriptor += 1;
        }
        let why = match Errno::from_io_error(error) {
            Some(Errno::NETUNREACH | Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => {
                Unreachable::Network
            }
            Some(Errno::HOSTUNREACH | Errno::HOSTDOWN) => Unreachable::Host,
            Some(Errno::ACCESS | Errno::PERM) => Unreachable::Prohibited,
            // The program has waited as long as the host did; it gets the error now.
            Some(Errno::TIMEDOUT) => Unreachable::Host,
            _ => return self.refuse(handle, io),
        };
        let (stack, mut context) = io.stack_and_context();
        stack.tcp_unreachable(handle, why, &mut context);
    }

    fn refuse(&mut self, handle: TcpHandle, io: &mut Io<'_>) {
        let (stack, mut context) = io.stack_and_context();
        stack.tcp_refuse(handle, &mut context);
    }

    /// The host socket has an event.
    pub(super) fn tcp_ready(&mut self, slot: Slot, event: Event, io: &mut Io<'_>) {
        let Some(Some(flow)) = self.tcp.flows.get_mut(slot.index as usize) else { return };
        if flow.handle.key() != slot {
            return;
        }
        let (handle, mut ready) = (flow.handle, event.ready);
        if ready.error && flow.takes_returns(&mut self.lending, &mut self.counters.lent, io.now) {
            // An error of the connection comes with a hang-up.
            ready.error = false;
        }
        flow.host_readable |= ready.readable || ready.hangup || ready.error;
        flow.host_writable |= ready.writable || ready.hangup || ready.error;
        flow.host_urgent |= event.urgent;
        flow.host_closing |= ready.peer_closed || ready.hangup;
        if let Phase::HostConnecting { dns } = flow.phase {
            // A failed connect reports an error event; without one, no call asks for the error.
            let is_failed = ready.error || ready.hangup;
            match is_failed.then(|| flow.socket.take_error()).flatten() {
                None if ready.writable => self.host_connected(handle, io),
                None => {}
                Some(error) => {
                    self.tcp.remove(handle);
                    self.connect_failed(handle, dns, &error, io);
                }
            }
            return;
        }
        if flow.phase != Phase::Open {
            return;
        }
        if ready.readable || ready.hangup || ready.error {
            self.tcp.queue(handle);
        }
        if ready.writable {
            self.move_out(handle, io);
        }
    }

    /// Sends bytes of the program to the host: one `sendmsg` over up to 64 pieces. Returns how many
    /// the host has taken, and whether a bound stops the flow; `None` if the flow ended.
    fn send_out(&mut self, handle: TcpHandle, io: &mut Io<'_>) -> Option<(usize, Option<Grant>)> {
        let flow = self.tcp.get_mut(handle)?;
        let (mut sent, mut kept, mut failed, mut stopped) = (0, 0, None, None);
        while flow.host_writable {
            let connection = io.stack.tcp(handle)?;
            // Kept bytes follow those that did not go back.
            let is_kept = connection.received_len() == 0;
            if is_kept && flow.kept.is_empty() {
                break;
            }
            let most = match flow.grant(Direction::Out, io.now) {
                Grant::Bytes(most) => most,
                stop => {
                    stopped = Some(stop);
                    break;
                }
            };
            let lending = (&mut self.lending, &mut self.counters);
            let result = match is_kept {
                true => flow.send_kept(),
                false if most < connection.received_len() => flow.send_first(connection, most),
                false => flow.pass_on(connection, lending, io.memory, io.now),
            };
            match result {
                Ok(count) => {
                    sent += count;
                    flow.has_moved(Direction::Out, count, io.now);
                    kept += if is_kept { count } else { 0 };
                    io.stack.with_tcp(handle, io.now, |connection| match is_kept {
                        true => connection.acknowledge_kept(count),
                        false => connection.consume(count),
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    flow.host_writable = false;
                    failed = flow.watch_room(io.reactor).err();
                }
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        self.tcp.kept -= kept;
        self.counters.bytes_out += sent as u64;
        io.ledger.carry(sent);
        if failed.is_some() {
            self.abort(handle, io);
            return None;
        }
        Some((sent, stopped))
    }

    /// Moves bytes from the program to the host.
    fn move_out(&mut self, handle: TcpHandle, io: &mut Io<'_>) {
        let Some(flow) = self.tcp.get_mut(handle) else { return };
        if flow.dialogue.is_some() {
            return self.converse(handle, io);
        }
        let is_shut = flow.gate.as_ref().is_some_and(|gate| !gate.is_open());
        if is_shut && !self.pass_gate(handle, io) {
            return;
        }
        let Some((sent, stopped)) = self.send_out(handle, io) else { return };
        if let Some(stopped) = stopped {
            self.stop(handle, Direction::Out, stopped, io);
        }
        self.hold_off_or_resume(handle, sent, io);
        if io.stack.tcp(handle).is_some_and(|connection| connection.received_len() == 0) {
            self.end_out(handle, io);
        }
    }

    /// Moves bytes from the host to the program: reads them into frames, which the send queue
    /// borrows.
    fn move_in(&mut self, handle: TcpHandle, io: &mut Io<'_>) {
        let flows = self.tcp.count;
        let Some(flow) = self.tcp.get_mut(handle) else { return };
        if flow.dialogue.is_some() {
            return self.converse(handle, io);
        }
        let (mut moved, mut more, mut parks, mut failed) = (0, false, false, None);
        let mut stopped = None;
        while flow.host_readable && !flow.host_closed {
            if moved >= BYTES_PER_TURN {
                more = true;
                break;
            }
            if io.memory_is_short() {
                self.tcp.starved = true;
                more = true;
                break;
            }
            let most = match flow.grant(Direction::In, io.now) {
                Grant::Bytes(most) => most,
                stop => {
                    stopped = Some(stop);
                    break;
                }
            };
            let ahead = io.read_ahead(handle, flows);
            let received = io.stack.with_tcp(handle, io.now, |connection| {
                let room = slow::room_for_program(connection, ahead, io.now);
                parks = room.is_none();
                let room = room.filter(|room| *room > 0)?.min(most);
                Some(flow.receive(connection, room, io.buffer, io.memory))
            });
            match received.flatten() {
                // An event reports when there is room.
                None => break,
                Some(Ok(Received::Bytes { count, drained })) => {
                    moved += count;
                    flow.has_moved(Direction::In, count, io.now);
                    // After a FIN no further edge comes: read until the FIN shows.
                    flow.host_readable = !drained || flow.host_closing || flow.host_urgent;
                }
                Some(Ok(Received::Closed)) => {
                    flow.host_closed = true;
                    io.stack.with_tcp(handle, io.now, |connection| connection.close_send());
                }
                Some(Ok(Received::NoMemory)) => {
                    self.tcp.starved = true;
                    more = true;
                    break;
                }
                Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                    flow.host_readable = false;
                }
                Some(Err(error)) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        if let (Some(flow), Some(connection)) = (self.tcp.get_mut(handle), io.stack.tcp(handle)) {
            flow.into.came(moved, connection.unacknowledged(), io.now);
        }
        self.counters.bytes_in += moved as u64;
        io.ledger.carry(moved);
        if failed.is_some() {
            self.abort(handle, io);
        } else if let Some(stopped) = stopped {
            self.stop(handle, Direction::In, stopped, io);
        } else if more {
            self.tcp.queue(handle);
        } else if parks {
            self.tcp.park(handle);
        }
    }

    /// Reads for the flows in line, once for each.
    pub(super) fn continue_tcp(&mut self, io: &mut Io<'_>) {
        self.tcp.starved = false;
        self.tcp.unpark();
        let enough = self.counters.bytes_in + BYTES_PER_TURN as u64;
        for _ in 0..self.tcp.waiting.len() {
            if self.counters.bytes_in >= enough {
                return;
            }
            let Some(index) = self.tcp.waiting.pop_front() else { return };
            let Some(Some(flow)) = self.tcp.flows.get_mut(index as usize) else { continue };
            flow.queued = false;
            let handle = flow.handle;
            self.move_in(handle, io);
            if self.tcp.starved {
                return;
            }
        }
    }
}
