//! Joined flows: connections of the program to ports of its own loopback that lead to the host's
//! loopback, and optionally connections of the host's loopback to published ports.
//!
//! # Theory of operation
//!
//! The child that set up the program's network has left listening sockets there. A connection to
//! one of them is accepted, and another one is made to the host's loopback. The two sockets are
//! joined: splice(2) moves bytes between them, past the stack, the pools and the TAP device. The
//! kernel has answered the program before the host is asked, so a refusal by the host becomes a
//! reset. The host's loopback has two addresses, and the program can no longer try the other one.
//! So the gateway does, beginning with the family that the program chose.
//!
//! In the other direction, the listener of a published port has accepted the connection. A second
//! one is made to the program's address or loopback, by a socket that a process inside has opened.
//! Without such a socket, or if it cannot be used, the connection goes through the stack. A refusal
//! by the program becomes a reset, as it does through the stack.
//!
//! Each direction ends by itself, with the source's FIN after the last byte. A reset on one side
//! resets the other at once. Sockets are watched edge-triggered, like those of other flows.
//!
//! Limits: a number of bytes per direction (`lane`) and [`ACCEPTS_PER_TURN`] new flows per turn. At
//! the maximum number of flows, and for [`PAUSE`] when no descriptor is left, listeners pause, and
//! connections wait in the kernel's backlog. Directions without a pipe wait for the same time.

use super::list::Tally;
use super::listen::PAUSE;
use super::{Gateway, GatewayCounters, Io, Token, is_descriptor_shortage};
use super::{Slot, Slots};
pub use listeners::JoinId;

use lane::{Lane, LaneError, Pipes, Progress};
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use towpath_io::namespace::sockets::SocketSource;
use towpath_io::reactor::{Interest, Reactor, Readiness};
use towpath_io::socket::{TcpListener, TcpSocket};
use towpath_net::time::Instant;

mod lane;
mod listed;
mod listeners;
#[cfg(test)]
mod tests;

/// Most connections accepted in a turn of the worker.
const ACCEPTS_PER_TURN: usize = 16;
/// Bytes that all flows together move in a turn, each way. Bytes that share a pipe with the last of
/// them move as well.
const BYTES_PER_TURN: u64 = 1 << 20;

/// A socket that listens on the program's loopback.
#[derive(Debug)]
pub struct JoinedListener {
    /// The socket.
    pub socket: TcpListener,
    /// The port of the host's loopback that it leads to.
    pub host_port: u16,
}

/// A side of a joined flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The program's.
    Inside,
    /// The host's.
    Host,
}

/// An accepted connection that has no connection to the host yet.
struct Newcomer {
    inside: TcpSocket,
    attempt: Attempt,
}

/// Where it connects to.
#[derive(Clone, Copy)]
struct Attempt {
    program: SocketAddr,
    host_port: u16,
    is_ipv4: bool,
    /// The host's address of the other family has been tried.
    is_second: bool,
}

/// The side that has to accept a connection.
#[derive(Clone, Copy)]
enum Connecting {
    Host(Attempt),
    Program,
}

struct Flow {
    inside: TcpSocket,
    host: TcpSocket,
    /// The side that was asked; `None` once it has answered.
    connecting: Option<Connecting>,
    out: Lane,
    into: Lane,
    /// It is in `JoinedFlows::waiting`.
    queued: bool,
    /// The program, and the other end as the host has it.
    ends: [SocketAddr; 2],
    /// The host began it.
    is_published: bool,
    /// Counts the bytes that the sinks took.
    tally: Tally,
}

struct Listening {
    listener: JoinedListener,
    is_ipv4: bool,
    /// It is in `JoinedFlows::backlogs`.
    has_backlog: bool,
}

/// All joined flows.
pub(super) struct JoinedFlows {
    listeners: Slots<Listening>,
    /// Listeners that may have connections to accept.
    backlogs: VecDeque<Slot>,
    flows: Slots<Box<Flow>>,
    flows_max: usize,
    pipes: Pipes,
    /// Flows with work that no event will report.
    waiting: VecDeque<Slot>,
    /// A newcomer that waits for a descriptor.
    held_back: Option<Newcomer>,
    /// No descriptor is left: nothing is accepted until then.
    paused_until: Option<Instant>,
    /// Listeners are watched for connections.
    is_listening: bool,
    /// Source of sockets inside; without one, published ports are not joined.
    source: Option<SocketSource>,
    /// Connections to published ports reach the program's loopback, not its address.
    to_loopback: bool,
}

/// What joined flows work with during a call.
pub(super) struct Around<'a> {
    pub(super) reactor: &'a Reactor,
    pub(super) counters: &'a mut GatewayCounters,
    pub(super) now: Instant,
}

impl Around<'_> {
    /// Counts an error if it is a shortage of descriptors; returns whether it is.
    fn count_shortage(&mut self, error: &io::Error) -> bool {
        let is_shortage = is_descriptor_shortage(error);
        self.counters.no_descriptor += u64::from(is_shortage);
        is_shortage
    }
}

impl JoinedFlows {
    pub(super) fn new(flows_max: usize, to_loopback: bool) -> Self {
        Self {
            listeners: Slots::default(),
            backlogs: VecDeque::new(),
            flows: Slots::default(),
            flows_max,
            pipes: Pipes::default(),
            waiting: VecDeque::new(),
            held_back: None,
            paused_until: None,
            is_listening: true,
            source: None,
            to_loopback,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.flows.count()
    }

    pub(super) fn has_work(&self) -> bool {
        let may_move = !self.waiting.is_empty() && self.paused_until.is_none();
        may_move || !self.backlogs.is_empty() && self.is_listening
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.paused_until
    }

    /// Returns true if everything that the program sent has been passed on, FINs included. The
    /// program has sent nothing on connections that it has not accepted yet.
    pub(super) fn all_passed_on(&self) -> bool {
        let is_made = |flow: &Flow| !matches!(flow.connecting, Some(Connecting::Program));
        self.flows.iter().all(|(_, flow)| flow.out.is_closed() || !is_made(flow))
            && self.backlogs.is_empty()
            && self.held_back.is_none()
    }

    /// Joins connections to published ports over sockets of this source.
    fn join_published(&mut self, source: SocketSource, reactor: &Reactor) -> io::Result<()> {
        self.pipes.prepare()?;
        reactor.add(&source, Token::JoinedSockets.encode(), Interest::READ, false)?;
        self.source = Some(source);
        Ok(())
    }

    /// Receives sockets from inside. If no more will come, the stack serves published ports from
    /// now on.
    pub(super) fn sockets_ready(&mut self) {
        // Dropping the source closes the channel, which ends the watch for it.
        self.source.take_if(|source| source.receive().is_err());
    }

    /// Takes over a connection to a published port; gives it back if the stack has to serve it.
    fn begin_published(
        &mut self,
        host: TcpSocket,
        [program, peer]: [SocketAddr; 2],
        cx: &mut Around<'_>,
    ) -> Option<TcpSocket> {
        if self.flows.count() >= self.flows_max || self.paused_until.is_some() {
            return Some(host);
        }
        let Some(socket) = self.source.as_mut().and_then(SocketSource::take) else {
            return Some(host);
        };
        let to_loopback = loopback(program.is_ipv4(), program.port());
        match socket.connect(if self.to_loopback { to_loopback } else { program }) {
            Ok((inside, is_connected)) => {
                cx.counters.joined += 1;
                let (sockets, ends) = ((inside, host), [program, peer]);
                self.begin(sockets, ends, Connecting::Program, is_connected, cx);
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                cx.counters.joined += 1;
                cx.counters.joined_refused += 1;
                host.reset();
            }
            Err(_) => return Some(host),
        }
        None
    }

    /// A listener has connections. They are accepted after other flows have had their turn.
    pub(super) fn connections_wait(&mut self, slot: Slot) {
        if let Some(listening) = self.listeners.get_mut(slot)
            && !listening.has_backlog
        {
            listening.has_backlog = true;
            self.backlogs.push_back(slot);
        }
    }

    /// Accepts connections from the listeners that have some.
    fn accept_all(&mut self, cx: &mut Around<'_>) {
        let mut left = ACCEPTS_PER_TURN;
        while self.is_listening
            && left > 0
            && let Some(&slot) = self.backlogs.front()
        {
            left -= 1;
            if self.accept(slot, cx) {
                self.backlogs.rotate_left(1);
            } else {
                self.backlogs.pop_front();
                if let Some(listening) = self.listeners.get_mut(slot) {
                    listening.has_backlog = false;
                }
            }
        }
    }

    /// Accepts a connection; returns false if the listener has none.
    fn accept(&mut self, slot: Slot, cx: &mut Around<'_>) -> bool {
        let Some(listening) = self.listeners.get(slot) else { return false };
        let JoinedListener { socket, host_port } = &listening.listener;
        match socket.accept() {
            Ok((inside, program)) => {
                let (host_port, is_ipv4) = (*host_port, listening.is_ipv4);
                let attempt = Attempt { program, host_port, is_ipv4, is_second: false };
                cx.counters.joined += 1;
                self.connect(Newcomer { inside, attempt }, cx);
            }
            Err(error) if cx.count_shortage(&error) => self.pause(cx),
            // Other errors: the connection ended before it was accepted.
            Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
        }
        true
    }

    /// Connects to the host; tries the other address if the first refuses.
    fn connect(&mut self, mut newcomer: Newcomer, cx: &mut Around<'_>) {
        loop {
            let Attempt { program, host_port, is_ipv4, is_second } = newcomer.attempt;
            let to = loopback(is_ipv4, host_port);
            match TcpSocket::connect(to) {
                Ok((host, is_connected)) => {
                    let connecting = Connecting::Host(newcomer.attempt);
                    let sockets = (newcomer.inside, host);
                    return self.begin(sockets, [program, to], connecting, is_connected, cx);
                }
                Err(error) if cx.count_shortage(&error) => {
                    self.held_back = Some(newcomer);
                    return self.pause(cx);
                }
                Err(_) if !is_second => newcomer.attempt = newcomer.attempt.at_other_address(),
                Err(_) => {
                    cx.counters.joined_refused += 1;
                    return newcomer.inside.reset();
                }
            }
        }
    }

    fn begin(
        &mut self,
        (inside, host): (TcpSocket, TcpSocket),
        ends: [SocketAddr; 2],
        connecting: Connecting,
        is_connected: bool,
        cx: &mut Around<'_>,
    ) {
        for socket in [&inside, &host] {
            // An error only costs speed.
            let _ = socket.set_nodelay(true);
        }
        let slot = self.flows.next_key();
        let add = |socket: &TcpSocket, end| {
            let token = Token::Joined(slot, end).encode();
            cx.reactor.add(socket, token, Interest::BOTH, true)
        };
        if add(&inside, End::Inside).and_then(|()| add(&host, End::Host)).is_err() {
            cx.counters.no_descriptor += 1;
            inside.reset();
            return host.reset();
        }
        // Data from before the socket was watched still triggers an edge.
        self.flows.insert(Box::new(Flow {
            inside,
            host,
            connecting: Some(connecting),
            out: Lane::default(),
            into: Lane::default(),
            queued: false,
            ends,
            is_published: matches!(connecting, Connecting::Program),
            tally: Tally::new(cx.now),
        }));
        if is_connected {
            self.connected(slot, cx);
        }
        self.watch_listeners(cx.reactor);
    }

    fn connected(&mut self, slot: Slot, cx: &mut Around<'_>) {
        let Some(flow) = self.flows.get_mut(slot) else { return };
        flow.connecting = None;
        (flow.out.readable, flow.out.writable) = (true, true);
        (flow.into.readable, flow.into.writable) = (true, true);
        self.move_soon(slot, cx);
    }

    /// The side that was asked refused the connection. Tries the host's other address, or resets
    /// the side that began.
    fn refused(&mut self, slot: Slot, connecting: Connecting, cx: &mut Around<'_>) {
        let Some(flow) = self.remove(slot, cx) else { return };
        let Flow { inside, host, .. } = *flow;
        let Connecting::Host(attempt) = connecting else {
            cx.counters.joined_refused += 1;
            return host.reset();
        };
        drop(host);
        // It will be watched with the token of another flow.
        let _ = cx.reactor.remove(&inside);
        if attempt.is_second {
            cx.counters.joined_refused += 1;
            return inside.reset();
        }
        self.connect(Newcomer { inside, attempt: attempt.at_other_address() }, cx);
    }

    /// A socket has an event.
    pub(super) fn ready(&mut self, slot: Slot, end: End, ready: Readiness, cx: &mut Around<'_>) {
        let Some(flow) = self.flows.get_mut(slot) else { return };
        if let Some(connecting) = flow.connecting
            && end == connecting.end()
        {
            let asked = if end == End::Host { &flow.host } else { &flow.inside };
            return match asked.take_error() {
                None if ready.writable => self.connected(slot, cx),
                None => {}
                Some(_) => self.refused(slot, connecting, cx),
            };
        }
        if ready.error {
            return self.abort(slot, cx);
        }
        let may_read = ready.readable || ready.peer_closed || ready.hangup;
        let may_write = ready.writable || ready.hangup;
        let (from_here, to_here) = match end {
            End::Inside => (&mut flow.out, &mut flow.into),
            End::Host => (&mut flow.into, &mut flow.out),
        };
        from_here.readable |= may_read;
        to_here.writable |= may_write;
        if flow.connecting.is_none() {
            self.move_soon(slot, cx);
        }
    }

    /// Queues a flow for its turn. During a pause the queue is not served, so the flow moves at
    /// once.
    fn move_soon(&mut self, slot: Slot, cx: &mut Around<'_>) {
        if self.paused_until.is_some() {
            self.advance(slot, [BYTES_PER_TURN; 2], cx);
        } else {
            self.queue(slot);
        }
    }

    /// Moves bytes out and in, at most `most` of each.
    fn advance(&mut self, slot: Slot, most: [u64; 2], cx: &mut Around<'_>) {
        let Some(flow) = self.flows.get_mut(slot) else { return };
        let Flow { inside, host, out, into, tally: Tally { bytes: moved, .. }, .. } = &mut **flow;
        let (pipes, before) = (&mut self.pipes, *moved);
        let moved_out = out.advance(inside, host, pipes, &mut moved[0], most[0]);
        let moved_in = into.advance(host, inside, pipes, &mut moved[1], most[1]);
        cx.counters.joined_bytes_out += moved[0] - before[0];
        cx.counters.joined_bytes_in += moved[1] - before[1];
        let is_over = out.is_closed() && into.is_closed();
        let mut more = false;
        for moved in [moved_out, moved_in] {
            match moved {
                Ok(progress) => more |= progress == Progress::More,
                Err(LaneError::Broken) => return self.abort(slot, cx),
                Err(LaneError::NoPipe) => {
                    cx.counters.no_descriptor += 1;
                    more = true;
                    self.pause(cx);
                }
            }
        }
        if is_over {
            self.remove(slot, cx);
        } else if more {
            self.queue(slot);
        }
    }

    /// Moves bytes of the queued flows, each way as many as one turn allows in total, and accepts
    /// new flows.
    pub(super) fn go_on(&mut self, cx: &mut Around<'_>) {
        if self.paused_until.is_some() {
            return;
        }
        let moved = |cx: &Around<'_>| [cx.counters.joined_bytes_out, cx.counters.joined_bytes_in];
        let until = moved(cx).map(|bytes| bytes + BYTES_PER_TURN);
        for _ in 0..self.waiting.len() {
            let now = moved(cx);
            let most = [0, 1].map(|way| until[way].saturating_sub(now[way]));
            if most == [0; 2] {
                break;
            }
            let Some(slot) = self.waiting.pop_front() else { break };
            let Some(flow) = self.flows.get_mut(slot) else { continue };
            flow.queued = false;
            self.advance(slot, most, cx);
        }
        self.accept_all(cx);
    }

    /// Resumes after a pause.
    pub(super) fn resume(&mut self, cx: &mut Around<'_>) {
        if self.paused_until.take_if(|until| *until <= cx.now).is_none() {
            return;
        }
        if let Some(newcomer) = self.held_back.take() {
            self.connect(newcomer, cx);
        }
        self.watch_listeners(cx.reactor);
    }

    fn pause(&mut self, cx: &mut Around<'_>) {
        self.paused_until.get_or_insert(cx.now + PAUSE);
        if let Some(source) = &mut self.source {
            source.release();
        }
        self.watch_listeners(cx.reactor);
    }

    /// Watches listeners for connections, if there is room for more flows.
    fn watch_listeners(&mut self, reactor: &Reactor) {
        let is_listening = self.paused_until.is_none() && self.flows.count() < self.flows_max;
        if is_listening == self.is_listening {
            return;
        }
        self.is_listening = is_listening;
        let interest = if is_listening { Interest::READ } else { Interest::NONE };
        for (slot, listening) in self.listeners.iter() {
            let token = Token::JoinedListener(slot).encode();
            // Fails only for a file that is not registered.
            let _ = reactor.modify(&listening.listener.socket, token, interest, false);
        }
    }

    fn queue(&mut self, slot: Slot) {
        if let Some(flow) = self.flows.get_mut(slot)
            && !flow.queued
        {
            flow.queued = true;
            self.waiting.push_back(slot);
        }
    }

    /// One side broke: resets both sides.
    fn abort(&mut self, slot: Slot, cx: &mut Around<'_>) {
        if let Some(flow) = self.remove(slot, cx) {
            flow.inside.reset();
            flow.host.reset();
        }
    }

    fn remove(&mut self, slot: Slot, cx: &mut Around<'_>) -> Option<Box<Flow>> {
        let flow = self.flows.remove(slot);
        self.watch_listeners(cx.reactor);
        flow
    }
}

impl Connecting {
    /// Returns the side that has to answer.
    fn end(self) -> End {
        match self {
            Connecting::Host(_) => End::Host,
            Connecting::Program => End::Inside,
        }
    }
}

impl Attempt {
    fn at_other_address(self) -> Self {
        Self { is_ipv4: !self.is_ipv4, is_second: true, ..self }
    }
}

fn loopback(is_ipv4: bool, port: u16) -> SocketAddr {
    let address: IpAddr =
        if is_ipv4 { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    SocketAddr::new(address, port)
}

impl Gateway {
    /// Joins connections of the host's loopback to published ports from now on, over sockets that
    /// `source` opens inside.
    pub(crate) fn join_published(
        &mut self,
        source: SocketSource,
        reactor: &Reactor,
    ) -> io::Result<()> {
        self.joined.join_published(source, reactor)
    }

    /// Takes over a connection from `peer` to the program's own address if it is to be joined;
    /// gives it back otherwise.
    pub(super) fn begin_joined(
        &mut self,
        socket: TcpSocket,
        peer: SocketAddr,
        program: SocketAddr,
        io: &Io<'_>,
    ) -> Option<TcpSocket> {
        if !peer.ip().is_loopback() || !self.routes.is_program(program.ip()) {
            return Some(socket);
        }
        let mut back = None;
        let ends = [program, peer];
        self.with_joined(io, |joined, cx| back = joined.begin_published(socket, ends, cx));
        back
    }

    /// Calls `act` with the joined flows.
    pub(super) fn with_joined(
        &mut self,
        io: &Io<'_>,
        act: impl FnOnce(&mut JoinedFlows, &mut Around<'_>),
    ) {
        let counters = &mut self.counters;
        act(&mut self.joined, &mut Around { reactor: io.reactor, counters, now: io.now });
    }
}
