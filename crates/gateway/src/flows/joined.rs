//! Joined flows: connections of the program to ports of its own loopback that lead to the host's,
//! and if so configured, connections of the host's loopback to published ports.
//!
//! # Theory of operation
//!
//! The child that set up the program's network has left sockets that listen there. A connection to
//! one of them is accepted, connected to the host's loopback, and the two sockets are joined: bytes
//! go from one to the other by splice(2), past the stack, the pools and the TAP device. The kernel
//! has answered the program before the host was asked, so a refusal of the host shows as a reset.
//! The host's loopback has two addresses, and the program cannot try the other one any more: that
//! is done here, the one of the program's own choice first.
//!
//! The other way a connection was accepted by a published port's listener, and is made anew inside,
//! to the program's own address, by a socket that somebody inside has opened. Without one, or if
//! it cannot be used, it goes by the stack. What the program refuses is reset, as it is there.
//!
//! Each direction ends by itself, with the source's FIN after the last byte; a reset on one side is
//! a reset on the other at once. Sockets are watched for edges, as those of other flows.
//!
//! Limits: so many bytes of one direction (`lane`) and [`ACCEPTS_PER_TURN`] new flows before others
//! get their turn. With as many flows as there may be, and for [`PAUSE`] when no descriptor is
//! left, listeners rest: connections wait in the kernel's backlog. Directions without a pipe wait
//! as long.

use super::listen::PAUSE;
use super::slots::{Slot, Slots};
use super::{Gateway, GatewayCounters, Io, Token, is_descriptor_shortage};
use lane::{Lane, LaneError, Pipes, Progress};
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use towpath_io::namespace::sockets::SocketSource;
use towpath_io::reactor::{Interest, Reactor, Readiness};
use towpath_io::socket::{TcpListener, TcpSocket};
use towpath_net::time::Instant;

mod lane;
#[cfg(test)]
mod tests;

/// Connections accepted in a turn of the worker.
const ACCEPTS_PER_TURN: usize = 16;
/// Bytes that all flows move in a turn, each way; what lies in a pipe with the last of them goes
/// along.
const BYTES_PER_TURN: u64 = 1 << 20;

/// A socket that listens on the program's loopback.
#[derive(Debug)]
pub struct JoinedListener {
    /// The socket.
    pub socket: TcpListener,
    /// The port of the host's loopback that it leads to.
    pub host_port: u16,
}

/// Which side of a joined flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The program's.
    Inside,
    /// The host's.
    Host,
}

/// A connection that was accepted and has no way to the host yet.
struct Newcomer {
    inside: TcpSocket,
    attempt: Attempt,
}

/// Where it is led to.
#[derive(Clone, Copy)]
struct Attempt {
    host_port: u16,
    is_ipv4: bool,
    /// The host's address of the other family was tried before.
    is_second: bool,
}

/// Who has to take a connection.
#[derive(Clone, Copy)]
enum Connecting {
    Host(Attempt),
    Program,
}

struct Flow {
    inside: TcpSocket,
    host: TcpSocket,
    /// Who is asked; `None` once it has answered.
    connecting: Option<Connecting>,
    out: Lane,
    into: Lane,
    /// In `JoinedFlows::waiting`.
    queued: bool,
}

struct Listening {
    listener: JoinedListener,
    is_ipv4: bool,
    /// In `JoinedFlows::backlogs`.
    has_backlog: bool,
}

/// All of them.
pub(super) struct JoinedFlows {
    listeners: Slots<Listening>,
    /// Those that may have connections which nobody has accepted.
    backlogs: VecDeque<Slot>,
    flows: Slots<Box<Flow>>,
    flows_max: usize,
    pipes: Pipes,
    /// Flows with more to do that no event will tell.
    waiting: VecDeque<Slot>,
    /// Waits for a descriptor.
    held_back: Option<Newcomer>,
    /// No descriptor is left: nothing is accepted until then.
    paused_until: Option<Instant>,
    /// Listeners are told about connections.
    is_listening: bool,
    /// Where sockets inside come from; none: published ports are not joined.
    source: Option<SocketSource>,
}

/// What they work with during a call.
pub(super) struct Around<'a> {
    pub(super) reactor: &'a Reactor,
    pub(super) counters: &'a mut GatewayCounters,
    pub(super) now: Instant,
}

impl Around<'_> {
    /// A flow did not get what it needs of the system.
    fn count_shortage(&mut self, error: &io::Error) -> bool {
        let is_shortage = is_descriptor_shortage(error);
        self.counters.no_descriptor += u64::from(is_shortage);
        is_shortage
    }
}

impl JoinedFlows {
    pub(super) fn new(flows_max: usize) -> Self {
        Self {
            listeners: Slots::new(),
            backlogs: VecDeque::new(),
            flows: Slots::new(),
            flows_max,
            pipes: Pipes::default(),
            waiting: VecDeque::new(),
            held_back: None,
            paused_until: None,
            is_listening: true,
            source: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.flows.len()
    }

    pub(super) fn has_work(&self) -> bool {
        let may_move = !self.waiting.is_empty() && self.paused_until.is_none();
        may_move || !self.backlogs.is_empty() && self.is_listening
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.paused_until
    }

    /// True if everything that the program sent has been passed on, FINs included. It has sent
    /// nothing by connections that it has not accepted yet.
    pub(super) fn all_passed_on(&self) -> bool {
        let is_made = |flow: &Flow| !matches!(flow.connecting, Some(Connecting::Program));
        self.flows.iter().all(|(_, flow)| flow.out.is_closed() || !is_made(flow))
            && self.backlogs.is_empty()
            && self.held_back.is_none()
    }

    /// Takes a listener over.
    pub(super) fn listen(&mut self, listener: JoinedListener, reactor: &Reactor) -> io::Result<()> {
        self.pipes.prepare()?;
        let is_ipv4 = listener.socket.local()?.is_ipv4();
        let token = Token::JoinedListener(self.listeners.next_slot()).encode();
        reactor.add(&listener.socket, token, Interest::READ, false)?;
        self.listeners.insert(Listening { listener, is_ipv4, has_backlog: false });
        Ok(())
    }

    /// Joins connections to published ports by sockets of this source.
    fn join_published(&mut self, source: SocketSource, reactor: &Reactor) -> io::Result<()> {
        self.pipes.prepare()?;
        reactor.add(&source, Token::JoinedSockets.encode(), Interest::READ, false)?;
        self.source = Some(source);
        Ok(())
    }

    /// Sockets have come from inside, or none will any more: then published ports are served by
    /// the stack.
    pub(super) fn sockets_ready(&mut self) {
        // Dropping it closes the channel, and so ends the watch for it.
        self.source.take_if(|source| source.receive().is_err());
    }

    /// Takes over a connection to a published port; gives it back if the stack has to serve it.
    fn begin_published(
        &mut self,
        host: TcpSocket,
        program: SocketAddr,
        cx: &mut Around<'_>,
    ) -> Option<TcpSocket> {
        if self.flows.len() >= self.flows_max || self.paused_until.is_some() {
            return Some(host);
        }
        let Some(socket) = self.source.as_mut().and_then(SocketSource::take) else {
            return Some(host);
        };
        match socket.connect(program) {
            Ok((inside, is_connected)) => {
                cx.counters.joined += 1;
                self.begin(inside, host, Connecting::Program, is_connected, cx);
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

    /// A listener has connections, which are taken when others have had their turn.
    pub(super) fn connections_wait(&mut self, slot: Slot) {
        if let Some(listening) = self.listeners.get_mut(slot)
            && !listening.has_backlog
        {
            listening.has_backlog = true;
            self.backlogs.push_back(slot);
        }
    }

    /// Takes connections from those listeners that have some.
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
                self.listeners.get_mut(slot).expect("they stay").has_backlog = false;
            }
        }
    }

    /// Takes a connection; false if the listener has none.
    fn accept(&mut self, slot: Slot, cx: &mut Around<'_>) -> bool {
        let Some(listening) = self.listeners.get(slot) else { return false };
        let JoinedListener { socket, host_port } = &listening.listener;
        match socket.accept() {
            Ok((inside, _)) => {
                let (host_port, is_ipv4) = (*host_port, listening.is_ipv4);
                let attempt = Attempt { host_port, is_ipv4, is_second: false };
                cx.counters.joined += 1;
                self.connect(Newcomer { inside, attempt }, cx);
            }
            Err(error) if cx.count_shortage(&error) => self.pause(cx),
            // A connection that ended before it was accepted is any other error.
            Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
        }
        true
    }

    /// Connects to the host, at the other address if the first refuses.
    fn connect(&mut self, mut newcomer: Newcomer, cx: &mut Around<'_>) {
        loop {
            let Attempt { host_port, is_ipv4, is_second } = newcomer.attempt;
            match TcpSocket::connect(loopback(is_ipv4, host_port)) {
                Ok((host, is_connected)) => {
                    let connecting = Connecting::Host(newcomer.attempt);
                    return self.begin(newcomer.inside, host, connecting, is_connected, cx);
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
        inside: TcpSocket,
        host: TcpSocket,
        connecting: Connecting,
        is_connected: bool,
        cx: &mut Around<'_>,
    ) {
        for socket in [&inside, &host] {
            // Told of errors only as a loss of speed.
            let _ = socket.set_nodelay(true);
        }
        let slot = self.flows.next_slot();
        let add = |socket: &TcpSocket, end| {
            let token = Token::Joined(slot, end).encode();
            cx.reactor.add(socket, token, Interest::BOTH, true)
        };
        if add(&inside, End::Inside).and_then(|()| add(&host, End::Host)).is_err() {
            cx.counters.no_descriptor += 1;
            inside.reset();
            return host.reset();
        }
        // What was there before it was watched shows as an edge.
        self.flows.insert(Box::new(Flow {
            inside,
            host,
            connecting: Some(connecting),
            out: Lane::default(),
            into: Lane::default(),
            queued: false,
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

    /// Who was asked did not take the connection: the host's other address is tried, or who began
    /// is told.
    fn refused(&mut self, slot: Slot, connecting: Connecting, cx: &mut Around<'_>) {
        let Some(flow) = self.remove(slot, cx) else { return };
        let Flow { inside, host, .. } = *flow;
        let Connecting::Host(attempt) = connecting else {
            cx.counters.joined_refused += 1;
            return host.reset();
        };
        drop(host);
        // It is watched with the token of another flow from now on.
        let _ = cx.reactor.remove(&inside);
        if attempt.is_second {
            cx.counters.joined_refused += 1;
            return inside.reset();
        }
        self.connect(Newcomer { inside, attempt: attempt.at_other_address() }, cx);
    }

    /// A socket has news.
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

    /// Has a flow stand in line; in a pause, in which nobody is served by line, it moves at once.
    fn move_soon(&mut self, slot: Slot, cx: &mut Around<'_>) {
        if self.paused_until.is_some() {
            self.advance(slot, [BYTES_PER_TURN; 2], cx);
        } else {
            self.queue(slot);
        }
    }

    /// Moves what can be moved, out and in, at most so many bytes of each.
    fn advance(&mut self, slot: Slot, most: [u64; 2], cx: &mut Around<'_>) {
        let Some(flow) = self.flows.get_mut(slot) else { return };
        let Flow { inside, host, out, into, .. } = &mut **flow;
        let GatewayCounters { joined_bytes_out, joined_bytes_in, .. } = cx.counters;
        let pipes = &mut self.pipes;
        let moved_out = out.advance(inside, host, pipes, joined_bytes_out, most[0]);
        let moved_in = into.advance(host, inside, pipes, joined_bytes_in, most[1]);
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

    /// Moves bytes of those who stand in line, as many each way as a turn has for all, and takes
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

    /// Tries again when a pause is over.
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

    /// Has listeners tell about connections if there is room for them.
    fn watch_listeners(&mut self, reactor: &Reactor) {
        let is_listening = self.paused_until.is_none() && self.flows.len() < self.flows_max;
        if is_listening == self.is_listening {
            return;
        }
        self.is_listening = is_listening;
        let interest = if is_listening { Interest::READ } else { Interest::NONE };
        for (slot, listening) in self.listeners.iter() {
            let token = Token::JoinedListener(slot).encode();
            // Fails only for what is not in the set.
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

    /// One side broke: so do both.
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
    /// The side that has to answer.
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
    /// Joins connections to these listeners with the host's loopback from now on.
    pub(crate) fn join(
        &mut self,
        listeners: Vec<JoinedListener>,
        reactor: &Reactor,
    ) -> io::Result<()> {
        listeners.into_iter().try_for_each(|listener| self.joined.listen(listener, reactor))
    }

    /// Joins connections of the host's loopback to published ports from now on, by sockets that
    /// `source` opens inside.
    pub(crate) fn join_published(
        &mut self,
        source: SocketSource,
        reactor: &Reactor,
    ) -> io::Result<()> {
        self.joined.join_published(source, reactor)
    }

    /// Takes over a connection from `peer` to the program, if it is to be joined; otherwise gives
    /// it back.
    pub(super) fn begin_joined(
        &mut self,
        socket: TcpSocket,
        peer: SocketAddr,
        program: SocketAddr,
        io: &Io<'_>,
    ) -> Option<TcpSocket> {
        if !peer.ip().is_loopback() {
            return Some(socket);
        }
        let mut back = None;
        self.with_joined(io, |joined, cx| back = joined.begin_published(socket, program, cx));
        back
    }

    /// Does something with the joined flows.
    pub(super) fn with_joined(
        &mut self,
        io: &Io<'_>,
        act: impl FnOnce(&mut JoinedFlows, &mut Around<'_>),
    ) {
        let counters = &mut self.counters;
        act(&mut self.joined, &mut Around { reactor: io.reactor, counters, now: io.now });
    }
}
