//! Newcomers: connections and messages that need a new flow, and wait until the open flows have had
//! their turn.
//!
//! # Theory of operation
//!
//! A new flow costs a host socket: ten times as much as a packet of an open flow. So a program that
//! begins many flows could take the whole thread. Therefore no flow begins while packets are taken
//! in: connections, datagrams and echo requests without a flow wait here. When a turn of the worker
//! has done everything else, one of them gets its flow. As long as others wait, the next turn
//! follows at once. If that turn has nothing else to do, it begins [`BEGUN_PER_IDLE_TURN`] flows:
//! without other work, flows begin without delay.
//!
//! Connections to published ports wait in the backlogs of their listeners, and alternate with the
//! newcomers here. A program that receives thousands of connections at once answers each with a
//! full first window. As they begin one by one, and more slowly while packets are left unread,
//! these answers come no faster than they are read, and the device's queue drops few.
//!
//! Without a switch, three of four flows are begun for the program's own addresses, if enough wait.
//! A flood with forged source addresses gets the fourth. Guests have their turns one after the
//! other, and the guest with most newcomers loses the last of them.
//!
//! Connections begin in order of arrival while their line is short, so that none waits for long in
//! a steady stream. In a long line the newest begins first. A flood arrives faster than sockets can
//! be opened. Newest first, each connection of a flood has the same chance, and one that got its
//! turn has all the time until it would be displaced. In order of arrival each would be displaced
//! just before its turn. Datagrams keep their order, and those of one flow begin together.

mod connections;
mod messages;

use super::shares::Share;
use super::{Gateway, Io};
use connections::Connections;
use messages::Messages;
use std::net::IpAddr;
use towpath_net::stack::{Datagram, Echo, TcpHandle};
use towpath_packet::{Packet, Piece};

/// Flows begun in a turn of the worker that had nothing else to do.
const BEGUN_PER_IDLE_TURN: usize = 8;
/// Of the turns that left packets unread, one in this many begins a flow.
const CROWDED_TURNS: usize = 4;
/// One flow in this many is begun for an address that is not the program's own.
const STRANGERS_EVERY: usize = 4;

/// What a turn of the worker had to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// Nothing.
    Idle,
    /// Some work.
    Busy,
    /// It read as many packets of the inside as a turn may, and left others.
    Crowded,
}

/// All newcomers.
#[derive(Default)]
pub(super) struct Newcomers {
    own: Waiting,
    strangers: Waiting,
    /// Number of newcomers that have had their turn.
    served: usize,
    /// Turns in a row that left packets unread.
    crowded: usize,
    /// The next flow is begun for a connection to a published port, if one waits.
    host_next: bool,
}

/// The newcomers of one kind of address.
#[derive(Default)]
struct Waiting {
    connections: Connections<TcpHandle>,
    messages: Messages,
    /// The next turn is a message's.
    message_next: bool,
}

/// A connection or message that waits.
enum Newcomer {
    Connection(TcpHandle),
    Message(Message),
}

/// A message that is sent as soon as it has a flow.
pub(super) enum Message {
    Datagram(Datagram),
    Echo(Echo),
}

/// Of a flow: whether it is an echo flow, its address, and its port or identifier.
pub(super) type FlowKey = (bool, IpAddr, u16);

impl Message {
    fn packet(&self) -> &Packet {
        match self {
            Message::Datagram(datagram) => &datagram.packet,
            Message::Echo(echo) => &echo.packet,
        }
    }

    /// Returns the share that it counts for.
    fn share(&self) -> Share {
        Share::Guest(self.packet().ingress())
    }

    /// Returns the bytes of memory that it keeps from others.
    fn held(&self) -> usize {
        self.packet().pieces().map(Piece::held).sum()
    }

    fn source(&self) -> IpAddr {
        match self {
            Message::Datagram(datagram) => datagram.remote.ip(),
            Message::Echo(echo) => echo.remote,
        }
    }

    /// Returns the key that messages of one flow have in common.
    pub(super) fn flow(&self) -> FlowKey {
        match self {
            Message::Datagram(datagram) => (false, self.source(), datagram.remote.port()),
            Message::Echo(echo) => (true, self.source(), echo.ident),
        }
    }
}

impl Newcomers {
    /// Returns true if there is no newcomer.
    pub(super) fn is_empty(&self) -> bool {
        self.own.is_empty() && self.strangers.is_empty()
    }

    /// Returns true if messages wait. The program does not retransmit them.
    pub(super) fn has_messages(&self) -> bool {
        !self.own.messages.is_empty() || !self.strangers.messages.is_empty()
    }

    /// Takes out the messages that `is_wanted` selects, in their order.
    pub(super) fn take_messages(&mut self, is_wanted: impl Fn(&Message) -> bool) -> Vec<Message> {
        let mut taken = self.own.messages.take_all(&is_wanted);
        taken.append(&mut self.strangers.messages.take_all(&is_wanted));
        taken
    }

    fn of(&mut self, own: bool) -> &mut Waiting {
        if own { &mut self.own } else { &mut self.strangers }
    }

    /// Removes and returns the next newcomer.
    fn next(&mut self) -> Option<Newcomer> {
        if self.is_empty() {
            return None;
        }
        self.served = self.served.wrapping_add(1);
        if self.served.is_multiple_of(STRANGERS_EVERY) {
            self.strangers.next().or_else(|| self.own.next())
        } else {
            self.own.next().or_else(|| self.strangers.next())
        }
    }
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.connections.is_empty() && self.messages.is_empty()
    }

    /// Removes and returns the next newcomer; connections and messages alternate.
    fn next(&mut self) -> Option<Newcomer> {
        self.message_next =
            !self.message_next && !self.messages.is_empty() || self.connections.is_empty();
        if self.message_next {
            self.messages.pop().map(Newcomer::Message)
        } else {
            self.connections.pop().map(Newcomer::Connection)
        }
    }
}

impl Gateway {
    /// Queues a connection of the program for its turn. If too many wait, one is dropped without an
    /// answer: the program retransmits its SYN, as after any loss.
    pub(super) fn connection_waits(&mut self, handle: TcpHandle, io: &mut Io<'_>) {
        let Some(connection) = io.stack.tcp(handle) else { return };
        let share = Share::Guest(io.stack.tcp_account(handle).0);
        let own = self.is_own(share, connection.remote().ip());
        if let Some(displaced) = self.newcomers.of(own).connections.push(share, handle)
            && is_opening(displaced, io)
        {
            self.counters.connections_displaced += 1;
            io.stack.with_tcp(displaced, io.now, |connection| connection.give_up());
            io.stack.tcp_release(displaced, io.now);
        }
    }

    /// Queues a datagram or an echo request for its turn.
    pub(super) fn message_waits(&mut self, message: Message, io: &mut Io<'_>) {
        let own = self.is_own(message.share(), message.source());
        let waiting = &mut self.newcomers.of(own).messages;
        self.counters.messages_displaced += waiting.push(message, io.memory.capacity_bytes());
    }

    /// Begins flows for newcomers, after a turn with this load. Returns true if any was begun.
    pub(crate) fn begin_flows(&mut self, load: Load, io: &mut Io<'_>) -> bool {
        let is_idle = load == Load::Idle;
        let newcomers = &mut self.newcomers;
        newcomers.crowded = if load == Load::Crowded { newcomers.crowded + 1 } else { 0 };
        let is_due = newcomers.crowded.is_multiple_of(CROWDED_TURNS);
        let most = if is_idle { BEGUN_PER_IDLE_TURN } else { usize::from(is_due) };
        let mut begun = 0;
        while begun < most {
            self.newcomers.host_next ^= true;
            let host_first = self.newcomers.host_next;
            let is_begun = host_first && self.accept_one(is_idle, io)
                || self.begin_newcomer(io)
                || !host_first && self.accept_one(is_idle, io);
            if !is_begun {
                break;
            }
            begun += 1;
        }
        begun > 0
    }

    /// Begins a flow of the program's side, if one waits.
    fn begin_newcomer(&mut self, io: &mut Io<'_>) -> bool {
        while let Some(newcomer) = self.newcomers.next() {
            match newcomer {
                Newcomer::Connection(handle) if !is_opening(handle, io) => continue,
                Newcomer::Connection(handle) => self.begin_outbound(handle, io),
                Newcomer::Message(message) => self.send_messages(message, io),
            }
            return true;
        }
        false
    }

    /// Sends a message by a new flow, and with it all messages that wait for the same flow: later
    /// messages find the flow and must not overtake them.
    fn send_messages(&mut self, first: Message, io: &mut Io<'_>) {
        let (share, flow) = (first.share(), first.flow());
        let own = self.is_own(share, first.source());
        self.send_message(first, io);
        while let Some(message) = self.newcomers.of(own).messages.pop_of(share, flow) {
            self.send_message(message, io);
        }
    }

    fn send_message(&mut self, message: Message, io: &mut Io<'_>) {
        match message {
            Message::Datagram(datagram) => self.begin_datagram(datagram, io),
            Message::Echo(echo) => self.send_echo(echo, io),
        }
    }

    /// Returns true if it is one of the program's own addresses. For a guest of a switch, every
    /// address is.
    fn is_own(&self, share: Share, address: IpAddr) -> bool {
        matches!(share, Share::Guest(Some(_))) || self.routes.is_program(address)
    }
}

/// Returns true if the program still waits for an answer.
fn is_opening(handle: TcpHandle, io: &Io<'_>) -> bool {
    io.stack.tcp(handle).is_some_and(|connection| connection.state().is_opening())
}
