//! What asks for a flow that does not exist yet, and waits until the flows that do have had their
//! turn.
//!
//! # Theory of operation
//!
//! A new flow costs a host socket: ten times as much as a packet of a flow that is open. So the
//! thread could be taken by whoever begins flows. Therefore nothing begins while packets are
//! taken in: connections, datagrams and echo requests without a flow wait here, and when a turn of
//! the worker has done everything else, one of them gets its flow. As long as others wait, the next
//! turn follows at once, and if nothing else has happened, it begins [`BEGUN_PER_IDLE_TURN`] flows:
//! without other work they begin as fast as ever.
//!
//! Connections to published ports wait in the backlogs of their listeners, and take turns with what
//! waits here. A program that is sent thousands of connections at once answers each with as many
//! packets as its first window has. Begun one by one, and more slowly while packets are left
//! unread, they come no faster than they are read, and the device's queue drops few.
//!
//! Without a switch three of four are begun for the program's own addresses, if there are so many:
//! who floods with forged sources gets the fourth. Guests have their turns one after the other, and
//! whoever has most waiting loses what comes last.
//!
//! Connections begin in the order of arrival while their line is short, so that none waits for long
//! however many come all the time. In a long line the newest are first. In a flood, which is faster
//! than sockets can be opened, each then has the same chance, and one that got its turn has all the
//! time until it is displaced; in order of arrival each would be displaced just before its turn.
//! Datagrams keep their order, and those of one flow go together.

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
/// Of turns that left packets unread, one in so many begins a flow.
const CROWDED_TURNS: usize = 4;
/// Every so many, one is begun for somebody else than the program's own addresses.
const STRANGERS_EVERY: usize = 4;

/// What a turn of the worker had to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// Nothing.
    Idle,
    /// Something.
    Busy,
    /// As many packets of the program's side as a turn may read, and others were left.
    Crowded,
}

/// Whoever waits for a flow of their own.
#[derive(Default)]
pub(super) struct Newcomers {
    own: Waiting,
    strangers: Waiting,
    /// How many have had their turn.
    served: usize,
    /// Turns in a row that left packets unread.
    crowded: usize,
    /// The next flow is begun for a connection to a published port, if one waits.
    host_next: bool,
}

/// Those of one kind of address.
#[derive(Default)]
struct Waiting {
    connections: Connections<TcpHandle>,
    messages: Messages,
    /// Whose turn it is.
    message_next: bool,
}

/// One who waits.
enum Newcomer {
    Connection(TcpHandle),
    Message(Message),
}

/// What is sent on as soon as it has a flow.
pub(super) enum Message {
    Datagram(Datagram),
    Echo(Echo),
}

/// Kind, address and port or identifier of a flow.
type FlowKey = (bool, IpAddr, u16);

impl Message {
    fn packet(&self) -> &Packet {
        match self {
            Message::Datagram(datagram) => &datagram.packet,
            Message::Echo(echo) => &echo.packet,
        }
    }

    /// Who it counts for.
    fn share(&self) -> Share {
        Share::Guest(self.packet().ingress())
    }

    /// Bytes of memory that it keeps from others.
    fn held(&self) -> usize {
        self.packet().pieces().map(Piece::held).sum()
    }

    fn source(&self) -> IpAddr {
        match self {
            Message::Datagram(datagram) => datagram.remote.ip(),
            Message::Echo(echo) => echo.remote,
        }
    }

    /// What those of one flow have in common.
    fn flow(&self) -> FlowKey {
        match self {
            Message::Datagram(datagram) => (false, self.source(), datagram.remote.port()),
            Message::Echo(echo) => (true, self.source(), echo.ident),
        }
    }
}

impl Newcomers {
    /// True if nobody waits.
    pub(super) fn is_empty(&self) -> bool {
        self.own.is_empty() && self.strangers.is_empty()
    }

    /// True if messages wait, which the program has sent and forgotten.
    pub(super) fn has_messages(&self) -> bool {
        !self.own.messages.is_empty() || !self.strangers.messages.is_empty()
    }

    fn of(&mut self, own: bool) -> &mut Waiting {
        if own { &mut self.own } else { &mut self.strangers }
    }

    /// Who gets the next flow.
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

    /// Connections and messages in turn.
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
    /// A connection of the program waits for its turn. If there are too many, one gives way without
    /// an answer: the program tries again by itself, as after any lost SYN.
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

    /// A datagram or an echo request waits for its turn.
    pub(super) fn message_waits(&mut self, message: Message, io: &mut Io<'_>) {
        let own = self.is_own(message.share(), message.source());
        let waiting = &mut self.newcomers.of(own).messages;
        self.counters.messages_displaced += waiting.push(message, io.memory.capacity_bytes());
    }

    /// Begins flows for those who wait, after a turn with this load. True if any was begun.
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

    /// Sends a message by a new flow, and with it all that wait for the same one: what comes later
    /// finds the flow and must not overtake them.
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

    /// True if it is an address of the program's own; of a guest of a switch all are.
    fn is_own(&self, share: Share, address: IpAddr) -> bool {
        matches!(share, Share::Guest(Some(_)))
            || self.routes.program(address.is_ipv4()) == Some(address)
    }
}

/// True if the program still waits for an answer.
fn is_opening(handle: TcpHandle, io: &Io<'_>) -> bool {
    io.stack.tcp(handle).is_some_and(|connection| connection.state().is_opening())
}
