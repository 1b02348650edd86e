//! The gateway: maps the program's flows onto host sockets.
//!
//! # Theory of operation
//!
//! The stack is transparent: whatever address the program connects to, the stack plays that peer
//! and reports the connection to the gateway. The gateway connects a host socket, and answers the
//! program only when the host has answered. So a refused connection stays refused, and an
//! unreachable host stays unreachable. Ports published on the host work the other way round.
//!
//! Payload is never copied here. Data of the program leaves in one `sendmsg` over the packets' own
//! pieces. Data of the host is read into pool frames, which TCP's send queue then lends to packets.
//! Neither side is read while the other cannot take more, so nothing piles up.
//!
//! There is one file per protocol: `tcp`, `udp` and `ping`. The others: `newcomers` holds messages
//! and connections that wait for a new flow; `listen` has the published ports, and `changes` makes
//! transactions of them; `joined` and `joined_udp` have flows that bypass the stack from loopback
//! to loopback; `lent` decides what is lent to the host's kernel; `resolver` chooses the DNS
//! server; `hops` maps hop limits and ICMP errors; `shares` and `idle` choose what to evict at a
//! bound; `egress` asks the policy about messages of resolvers, and `tcp` about those over TCP;
//! `destinations` remembers its verdicts about datagrams, and `bandwidth` has streams that wait for
//! one; `expected` has packets that are near and ACKs that wait; `multicast` has service discovery;
//! `route` maps destinations, and `native` those of native sockets; `fair` limits the memory of
//! slow readers; `list` describes flows for people; `moved` takes flows to other workers, and
//! `spread` connections to published ports. All run on the worker's thread, except for `native`.

mod accepted;
mod bandwidth;
mod changes;
mod destinations;
mod egress;
mod expected;
mod fair;
mod hops;
mod idle;
mod joined;
mod joined_udp;
mod lent;
mod list;
mod listen;
mod moved;
mod multicast;
mod native;
mod newcomers;
mod ping;
mod queued;
mod resolver;
mod route;
mod shares;
mod spread;
mod tcp;
mod udp;

use crate::config::{Config, MappedAddress};
use crate::egress::enforcer::Enforcer;
use bandwidth::Lines;
use destinations::Egress;
use expected::Expected;
use joined::{End, JoinedFlows};
use joined_udp::JoinedUdp;
use lent::Lending;
use list::Visits;
use listen::Listeners;
use multicast::Groups;
use newcomers::Newcomers;
use ping::Pings;
use resolver::Resolvers;
use route::Routes;

pub(crate) use moved::{MovedFlows, Order};
pub(crate) use spread::{Orders, Spread};
use std::net::IpAddr;
use std::sync::Arc;
use tcp::TcpFlows;
use towpath_io::reactor::{Event, Reactor};
use towpath_io::receive::ReceiveBuffer;
use towpath_net::slab::{GENERATION_MASK, Key as Slot, Slab};
use towpath_net::stack::{Context, Stack, TcpHandle};
use towpath_net::time::{Instant, earliest};
use towpath_packet::{Ledger, Memory};
use udp::UdpFlows;

pub(crate) use changes::UndoPort;
pub use joined::{JoinId, JoinedListener};
pub use joined_udp::{JoinedDatagrams, JoinedDatagramsId};
pub use lent::LentToHost;
pub use list::{Cursor, FlowKind, FlowPage, FlowQuery, LISTED_MAX, ListedFlow, VISITED_MAX};
pub use listen::{NativeListen, StartError, allow_many_files, allow_ports};
pub use native::NativeRoutes;
pub(crate) use newcomers::Load;
pub use queued::LentNow;
pub(crate) use tcp::BYTES_PER_TURN;
pub(crate) use udp::mappings_max;

/// Entries whose keys fit a [`Token`].
type Slots<T> = Slab<Option<T>>;

/// What the gateway works with during a call.
pub(crate) struct Io<'a> {
    pub(crate) stack: &'a mut Stack,
    pub(crate) memory: &'a mut Memory,
    pub(crate) ledger: &'a Ledger,
    pub(crate) reactor: &'a Reactor,
    pub(crate) buffer: &'a mut ReceiveBuffer,
    pub(crate) guests: &'a dyn Guests,
    pub(crate) now: Instant,
}

/// Looks up guests of a network by name.
pub(crate) trait Guests {
    /// Returns the address of a guest in one family, if it has one now.
    fn address_of(&self, name: &str, is_ipv4: bool, now: Instant) -> Option<IpAddr>;
}

/// Share of memory, in 1/256, below which nothing is read from the host: the TAP needs the rest to
/// take the program's ACKs, which free memory.
const HOST_READ_SHARE: u32 = 32;

impl Io<'_> {
    /// Returns true if reading from the host must wait.
    fn memory_is_short(&mut self) -> bool {
        !self.memory.has_free(HOST_READ_SHARE)
    }

    fn stack_and_context(&mut self) -> (&mut Stack, Context<'_>) {
        (self.stack, Context { memory: self.memory, ledger: self.ledger, now: self.now })
    }
}

/// Counters of the gateway. Their names are those of reports.
#[derive(Clone, Copy, Debug, Default)]
pub struct GatewayCounters {
    /// TCP flows begun by the program.
    pub tcp_out: u64,
    /// TCP flows begun from the host.
    pub tcp_in: u64,
    /// TCP flows that the host refused or could not reach.
    pub tcp_refused: u64,
    /// UDP flows.
    pub udp: u64,
    /// Echo requests passed on.
    pub echo: u64,
    /// Echo requests not passed on for lack of permission.
    pub echo_forbidden: u64,
    /// Flows that failed because no file descriptor was left.
    pub no_descriptor: u64,
    /// Flows evicted to make room for others.
    pub evicted: u64,
    /// Connections of the program dropped before their turn because too many waited.
    pub connections_displaced: u64,
    /// Datagrams and echo requests dropped because too many waited for a flow.
    pub messages_displaced: u64,
    /// Datagrams that the host did not take, or for whose flow there was no room.
    pub udp_dropped: u64,
    /// Datagrams of the program that lead nowhere; an ICMP error reports each to the program.
    pub udp_refused: u64,
    /// Datagrams from hosts that the mapping has not sent to.
    pub udp_filtered: u64,
    /// Datagrams to published ports whose guest has no address.
    pub udp_nobody: u64,
    /// Datagrams from hosts dropped for lack of memory.
    pub udp_no_memory: u64,
    /// Datagrams and echoes, either way, beyond a bandwidth of the policy.
    pub over_bandwidth: u64,
    /// Datagrams and echoes of hosts that a quota of the policy ended.
    pub over_quota: u64,
    /// Messages to groups that are not passed on: no queries of a chosen service, or too long.
    pub multicast_filtered: u64,
    /// Messages to groups that a rate limit dropped, and queries that came back in a loop.
    pub multicast_limited: u64,
    /// Peers of UDP flows evicted to make room for others.
    pub peers_evicted: u64,
    /// Resolver queries that are not repeated if the resolver fails: they were too large, or too
    /// many were in flight.
    pub questions_not_kept: u64,
    /// Connections that bypass the stack: of the program to joined ports of its loopback, and of
    /// the host's loopback to published ports.
    pub joined: u64,
    /// Joined connections that the other side refused.
    pub joined_refused: u64,
    /// UDP flows that bypass the stack: of the program to joined ports of its loopback.
    pub joined_udp: u64,
    /// Datagrams of those flows that the host refused: no program uses the port.
    pub joined_udp_refused: u64,
    /// Bytes of joined flows from the program to the host, which no other counter includes.
    pub joined_bytes_out: u64,
    /// Bytes of joined flows from the host to the program, which no other counter includes.
    pub joined_bytes_in: u64,
    /// Payload bytes from the program to the host.
    pub bytes_out: u64,
    /// Payload bytes from the host to the program.
    pub bytes_in: u64,
    /// What flows lent to the host's kernel, of the bytes from the program to the host.
    pub lent: LentToHost,
}

impl GatewayCounters {
    /// Adds the counters of another gateway.
    pub(crate) fn add(&mut self, other: &Self) {
        self.tcp_out += other.tcp_out;
        self.tcp_in += other.tcp_in;
        self.tcp_refused += other.tcp_refused;
        self.udp += other.udp;
        self.echo += other.echo;
        self.echo_forbidden += other.echo_forbidden;
        self.no_descriptor += other.no_descriptor;
        self.evicted += other.evicted;
        self.connections_displaced += other.connections_displaced;
        self.messages_displaced += other.messages_displaced;
        self.udp_dropped += other.udp_dropped;
        self.udp_refused += other.udp_refused;
        self.udp_filtered += other.udp_filtered;
        self.udp_nobody += other.udp_nobody;
        self.udp_no_memory += other.udp_no_memory;
        self.over_bandwidth += other.over_bandwidth;
        self.over_quota += other.over_quota;
        self.multicast_filtered += other.multicast_filtered;
        self.multicast_limited += other.multicast_limited;
        self.peers_evicted += other.peers_evicted;
        self.questions_not_kept += other.questions_not_kept;
        self.bytes_out += other.bytes_out;
        self.bytes_in += other.bytes_in;
        self.joined += other.joined;
        self.joined_refused += other.joined_refused;
        self.joined_udp += other.joined_udp;
        self.joined_udp_refused += other.joined_udp_refused;
        self.joined_bytes_out += other.joined_bytes_out;
        self.joined_bytes_in += other.joined_bytes_in;
        self.lent.add(&other.lent);
    }
}

/// The gateway: all flows, and where they lead.
pub struct Gateway {
    routes: Routes,
    resolvers: Resolvers,
    tcp: TcpFlows,
    udp: UdpFlows,
    pings: Pings,
    listeners: Listeners,
    groups: Groups,
    joined: JoinedFlows,
    joined_udp: JoinedUdp,
    newcomers: Newcomers,
    /// Judges flows, if there is a policy.
    egress: Option<Box<Egress>>,
    /// TCP flows that wait for a bandwidth.
    lines: Lines<TcpHandle>,
    expected: Expected,
    spread: Spread,
    lending: Lending,
    visits: Visits,
    counters: GatewayCounters,
}

/// What an epoll token names: 4 bits of kind, 28 bits of generation, 32 bits of index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    Inside,
    Bell,
    Watch(u32),
    Tcp(Slot),
    Udp(Slot),
    Ping(Slot),
    TcpListener(Slot),
    Joined(Slot, End),
    JoinedListener(Slot),
    JoinedSockets,
    JoinedUdp(Slot, End),
    Group(u32),
    Lent(Slot),
}

impl Token {
    pub(crate) fn encode(self) -> u64 {
        let (kind, slot) = match self {
            Token::Inside => (0, Slot { index: 0, generation: 0 }),
            Token::Watch(index) => (1, Slot { index, generation: 0 }),
            Token::Tcp(slot) => (2, slot),
            Token::Udp(slot) => (3, slot),
            Token::Ping(slot) => (4, slot),
            Token::TcpListener(slot) => (5, slot),
            Token::Joined(slot, End::Inside) => (6, slot),
            Token::Joined(slot, End::Host) => (7, slot),
            Token::JoinedListener(slot) => (8, slot),
            Token::JoinedSockets => (9, Slot { index: 0, generation: 0 }),
            Token::Bell => (10, Slot { index: 0, generation: 0 }),
            Token::JoinedUdp(slot, End::Inside) => (11, slot),
            Token::JoinedUdp(slot, End::Host) => (12, slot),
            Token::Group(index) => (13, Slot { index, generation: 0 }),
            Token::Lent(slot) => (14, slot),
        };
        kind << 60 | u64::from(slot.generation) << 32 | u64::from(slot.index)
    }

    pub(crate) fn decode(token: u64) -> Option<Self> {
        let index = token as u32;
        let slot = Slot { index, generation: (token >> 32) as u32 & GENERATION_MASK };
        Some(match token >> 60 {
            0 => Token::Inside,
            1 => Token::Watch(index),
            2 => Token::Tcp(slot),
            3 => Token::Udp(slot),
            4 => Token::Ping(slot),
            5 => Token::TcpListener(slot),
            6 => Token::Joined(slot, End::Inside),
            7 => Token::Joined(slot, End::Host),
            8 => Token::JoinedListener(slot),
            9 => Token::JoinedSockets,
            10 => Token::Bell,
            11 => Token::JoinedUdp(slot, End::Inside),
            12 => Token::JoinedUdp(slot, End::Host),
            13 => Token::Group(index),
            14 => Token::Lent(slot),
            _ => return None,
        })
    }
}

impl Gateway {
    /// Makes a gateway and binds the published ports.
    pub(crate) fn new(config: &Config, reactor: &Reactor) -> Result<Self, StartError> {
        if let Some(egress) = &config.egress {
            egress.start().map_err(StartError::Audit)?;
        }
        let families = [config.ipv4.is_some(), config.ipv6.is_some()];
        let mut gateway = Self {
            routes: Routes::new(config),
            resolvers: Resolvers::new(config.resolvers.clone()),
            tcp: TcpFlows::new(),
            udp: UdpFlows::new(config.flows_max),
            pings: Pings::new(),
            listeners: Listeners::new(),
            groups: Groups::open(&config.multicast, families, reactor)?,
            joined: JoinedFlows::new(config.flows_max, config.join_loopback),
            joined_udp: JoinedUdp::new(config.flows_max),
            newcomers: Newcomers::default(),
            egress: config.egress.clone().map(|enforcer| Box::new(Egress::new(enforcer))),
            lines: Lines::default(),
            expected: Expected::new(),
            spread: Spread::default(),
            lending: Lending::new(config.lend_to_host),
            visits: Visits::default(),
            counters: GatewayCounters::default(),
        };
        gateway.check_room(config.publish.iter())?;
        gateway.publish_at_start(&config.publish, reactor)?;
        Ok(gateway)
    }

    /// Sets which addresses inside stand for addresses of the host, from the next flow or datagram
    /// on.
    pub(crate) fn map_addresses(&mut self, addresses: Vec<MappedAddress>) {
        self.routes.map(addresses);
    }

    /// Sets which connections belong to which of several workers.
    pub(crate) fn spread(&mut self, spread: Spread) {
        self.spread = spread;
    }

    /// Another worker can own connections, the one with the next index.
    pub(crate) fn spread_to(&mut self, orders: Orders) {
        self.spread.add(orders);
    }

    /// Sets the number of UDP mappings at which one is evicted for a new one.
    pub(crate) fn limit_mappings(&mut self, most: usize) {
        self.udp.limit(most);
    }

    /// Returns the counters.
    pub fn counters(&self) -> &GatewayCounters {
        &self.counters
    }

    /// Returns what carries out the policy, if there is one.
    pub fn egress(&self) -> Option<&Arc<Enforcer>> {
        self.egress.as_ref().map(|egress| &egress.enforcer)
    }

    /// Returns the number of flows: TCP, UDP, echo.
    pub(crate) fn flow_counts(&self) -> (usize, usize, usize) {
        (self.tcp.len(), self.udp.len(), self.pings.len())
    }

    /// Returns the number of joined flows: TCP, UDP.
    pub(crate) fn joined_counts(&self) -> (usize, usize) {
        (self.joined.len(), self.joined_udp.len())
    }

    /// Returns what flows have lent. Datagrams are passed on at once, so only TCP flows count.
    pub fn lent(&self, stack: &Stack, now: Instant) -> LentNow {
        self.tcp.lent(stack, now)
    }

    /// A host socket has an event.
    pub(crate) fn on_event(&mut self, token: Token, event: Event, io: &mut Io<'_>) {
        match token {
            Token::Tcp(slot) => self.tcp_ready(slot, event, io),
            Token::Udp(slot) => self.udp_ready(slot, event, io),
            Token::Ping(slot) => self.ping_ready(slot, io),
            Token::TcpListener(slot) => self.listeners.connections_wait(slot),
            Token::Joined(slot, end) => {
                self.with_joined(io, |joined, cx| joined.ready(slot, end, event.ready, cx));
            }
            Token::JoinedListener(slot) => self.joined.connections_wait(slot),
            Token::JoinedSockets => self.joined.sockets_ready(),
            Token::JoinedUdp(slot, end) => {
                self.with_joined_udp(io, |joined, cx| joined.ready(slot, end, event.ready, cx));
            }
            Token::Group(index) => self.group_ready(index, io),
            Token::Lent(slot) => self.lending.socket_ready(slot, &mut self.counters.lent),
            Token::Inside | Token::Bell | Token::Watch(_) => {}
        }
    }

    /// Returns the bytes of frames that the host's kernel has on loan.
    pub fn held_by_host(&self) -> usize {
        self.lending.held()
    }

    /// Handles all events and messages that the stack has for the gateway.
    pub(crate) fn drain(&mut self, io: &mut Io<'_>) {
        while let Some((handle, events)) = io.stack.next_event() {
            self.on_tcp_events(handle, events, io);
        }
        while let Some(datagram) = io.stack.next_datagram() {
            if datagram.local.ip().is_multicast() {
                self.on_group_datagram(datagram, io);
            } else {
                self.on_datagram(datagram, io);
            }
        }
        while let Some(echo) = io.stack.next_echo() {
            self.on_echo(echo, io);
        }
    }

    /// Continues flows that stopped for fairness or lack of memory, not because a side was not
    /// ready.
    pub(crate) fn continue_flows(&mut self, io: &mut Io<'_>) {
        self.continue_tcp(io);
        self.continue_udp(io);
        self.with_joined(io, JoinedFlows::go_on);
        self.with_joined_udp(io, JoinedUdp::go_on);
        self.end_long_waits(io);
        self.review_flows(io);
    }

    /// Returns true if [`Gateway::continue_flows`] or [`Gateway::begin_flows`] has work without an
    /// event.
    pub(crate) fn has_work(&self) -> bool {
        self.tcp.has_work()
            || self.udp.has_work()
            || self.joined.has_work()
            || self.joined_udp.has_work()
            || !self.newcomers.is_empty()
            || self.listeners.has_handed_over()
    }

    /// Returns true if flows wait for frames.
    pub(crate) fn is_starved(&self) -> bool {
        self.tcp.is_starved() || self.udp.is_starved() || self.joined_udp.is_starved()
    }

    /// Returns when [`Gateway::on_deadline`] is next due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        earliest([
            self.tcp.deadline(),
            self.tcp.dialogues_due(),
            self.udp.deadline(),
            self.pings.deadline(),
            self.listeners.deadline(),
            self.joined.deadline(),
            self.joined_udp.deadline(),
            self.egress.as_ref().and_then(|egress| egress.deadline()),
            self.lines.deadline(),
        ])
    }

    /// Ends flows that have been idle too long.
    pub(crate) fn on_deadline(&mut self, io: &mut Io<'_>) {
        self.end_moments(io);
        self.end_silent_dialogues(io);
        self.resume_streams(io);
        self.udp.expire(io.now);
        if let Some(egress) = &mut self.egress {
            egress.expire(io.now);
        }
        self.pings.expire(io.now);
        self.joined_udp.expire(io.now);
        self.listeners.resume(io);
        self.with_joined(io, JoinedFlows::resume);
    }
}

/// Returns true if the error means that this process, or the machine, has no file descriptor left.
fn is_descriptor_shortage(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_epoll() {
        let slot = Slot { index: u32::MAX, generation: GENERATION_MASK };
        let tokens = [
            Token::Inside,
            Token::Watch(7),
            Token::Tcp(slot),
            Token::Udp(Slot { index: 0, generation: 1 }),
            Token::Ping(slot),
            Token::TcpListener(slot),
            Token::Joined(slot, End::Inside),
            Token::Joined(slot, End::Host),
            Token::JoinedListener(slot),
            Token::JoinedSockets,
            Token::JoinedUdp(slot, End::Inside),
            Token::JoinedUdp(slot, End::Host),
            Token::Group(3),
            Token::Lent(slot),
        ];
        for token in tokens {
            assert_eq!(Token::decode(token.encode()), Some(token));
        }
        assert_eq!(Token::decode(u64::MAX), None);
    }
}
