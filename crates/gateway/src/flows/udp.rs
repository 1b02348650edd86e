//! UDP flows: one host socket for each port of the program (RFC 4787).
//!
//! Mapping is endpoint-independent (REQ-1): all datagrams from one port of the program leave by one
//! host socket, whatever their destination. Filtering is address-dependent (REQ-8): only addresses
//! that the program has sent to may send to it, except on published ports, where any address may.
//! Mappings to addresses that stand for the host and to the resolvers are separate from those to
//! the world, so that neither can be reached from the other.
//!
//! Super-packets pass whole: USO from the program becomes `UDP_SEGMENT`, `UDP_GRO` from the host
//! becomes USO. A datagram larger than the MTU is fragmented towards the program.
//!
//! Bounds: [`UdpFlows`] keeps at most a quarter of the flow limit. At the bound the guest with most
//! mappings loses the one that was idle longest. `peers` bounds the senders, `questions` the
//! queries that are kept to be repeated if a resolver fails. Refused packets from outside do not
//! keep a mapping alive (RFC 4787 REQ-6).

mod deliver;
mod errors;
mod host;
mod listed;
mod moved;
mod peers;
mod published;
mod questions;

use super::hops::hops_left;
use super::idle::IdleShares;
use super::list::Tally;
use super::newcomers::Message;
use super::route::Target;
use super::shares::Share;
use super::{BYTES_PER_TURN, Gateway, Io, Token, is_descriptor_shortage};
use super::{Slot, Slots};
pub(super) use host::for_each_part;
use host::{open, send};
pub(super) use moved::MovedMapping;
pub(crate) use moved::mappings_max;
use peers::{Latest, Peers, Way};
use published::NOBODY;
pub(super) use published::PublishedBy;
use questions::{Question, Questions};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use towpath_io::reactor::{Event, Interest};
use towpath_io::socket::{Datagram as HostDatagram, IpFields, UdpSocket};
use towpath_net::stack::{Datagram, Unreachable};
use towpath_net::time::Instant;

/// How long an idle mapping lives (RFC 4787 REQ-5 recommends five minutes).
pub(super) const IDLE: Duration = Duration::from_secs(300);
/// How long an idle mapping for DNS lives (REQ-5 allows shorter times for well-known ports).
const IDLE_DNS: Duration = Duration::from_secs(20);
/// How long hosts may answer a query to a group by unicast: longer than the longest delay of SSDP
/// (`MX`, 5 s).
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// Interval of the search for idle mappings.
pub(super) const SWEEP: Duration = Duration::from_secs(5);
/// Datagrams read from one socket before others get their turn; fewer if they are large
/// ([`BYTES_PER_TURN`]).
pub(super) const READS_PER_TURN: usize = 64;

/// What a mapping reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Realm {
    World,
    /// The host's loopback, or another address of the host, which the program sees as this address.
    Mapped(IpAddr),
    /// The resolvers, which the program sees as this address and port.
    Dns(SocketAddr),
    /// The hosts that may answer a query to this group.
    Group(SocketAddr),
}

struct Flow {
    socket: UdpSocket,
    program: SocketAddr,
    realm: Realm,
    /// The share that it counts for.
    share: Share,
    latest: Latest,
    /// When it last sent, or received from a peer.
    used_at: Instant,
    /// The published port that it belongs to: it never expires, and takes datagrams from any
    /// address.
    published: Option<PublishedBy>,
    /// When the target of its published port is looked up again.
    led_until: Instant,
    dns: Dns,
    /// It is in `UdpFlows::waiting`.
    queued: bool,
    tally: Tally,
}

/// The query in flight on a DNS mapping.
#[derive(Default)]
struct Dns {
    /// The resolver asked now; `None` before the first query.
    resolver: Option<SocketAddr>,
    /// Resolvers to which this query could not be sent.
    tried: usize,
    question: Question,
}

/// All UDP flows.
pub(super) struct UdpFlows {
    slots: Slots<Flow>,
    index: HashMap<(SocketAddr, Realm), Slot>,
    limit: usize,
    /// Flows that can expire.
    idle: IdleShares,
    /// Number of flows that never expire, which do not count for the limit.
    published: usize,
    /// Two sockets of published ports may lead to the same port of the program.
    has_rivals: bool,
    peers: Peers,
    questions: Questions,
    sweep_at: Option<Instant>,
    /// Flows with something to read, in line.
    waiting: VecDeque<Slot>,
    /// No frame was free: `waiting` is tried again after a while, not at once.
    starved: bool,
    /// Datagrams of one read; empty between reads, kept for its memory.
    read: Vec<HostDatagram>,
}

impl UdpFlows {
    pub(super) fn new(flows_max: usize) -> Self {
        Self {
            slots: Slots::default(),
            index: HashMap::new(),
            limit: mappings_max(flows_max),
            idle: IdleShares::default(),
            published: 0,
            has_rivals: false,
            peers: Peers::new(),
            questions: Questions::default(),
            sweep_at: None,
            waiting: VecDeque::new(),
            starved: false,
            read: Vec::with_capacity(READS_PER_TURN),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.count()
    }

    /// Puts a flow at the end of the line, unless it is in line.
    fn queue(&mut self, slot: Slot) {
        if let Some(flow) = self.slots.get_mut(slot)
            && !std::mem::replace(&mut flow.queued, true)
        {
            self.waiting.push_back(slot);
        }
    }

    pub(super) fn has_work(&self) -> bool {
        !self.waiting.is_empty() && !self.starved
    }

    /// Returns true if flows wait for memory.
    pub(super) fn is_starved(&self) -> bool {
        self.starved && !self.waiting.is_empty()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.sweep_at
    }

    /// Ends mappings that were idle too long.
    pub(super) fn expire(&mut self, now: Instant) {
        if self.sweep_at.is_none_or(|at| at > now) {
            return;
        }
        let idle = |flow: &Flow| {
            let is_short = matches!(flow.realm, Realm::Dns(_) | Realm::Group(_));
            let limit = if is_short { IDLE_DNS } else { IDLE };
            flow.published.is_none() && now.since(flow.used_at) >= limit
        };
        let over: Vec<Slot> =
            self.slots.iter().filter(|(_, flow)| idle(flow)).map(|(slot, _)| slot).collect();
        for slot in over {
            self.remove(slot);
        }
        let slots = &mut self.slots;
        self.idle.retain(|slot| slots.get_mut(slot).is_some());
        self.peers.forget_gone(|slot| slots.get(slot).is_some());
        self.sweep_at = (!self.idle.is_empty()).then(|| now + SWEEP);
    }

    /// Returns how the program answers a peer that used a published port which is still there, and
    /// that the program sees as `inside`.
    fn way(&self, program: SocketAddr, inside: SocketAddr) -> Option<Way> {
        self.peers.way(program, inside).filter(|way| self.slots.get(way.slot).is_some())
    }

    fn remove(&mut self, slot: Slot) {
        self.take(slot);
    }

    /// Evicts the longest-idle mapping of the guest that has most mappings.
    fn evict(&mut self, newcomer: Share) -> bool {
        let slots = &mut self.slots;
        let used_at = |slot| slots.get_mut(slot).map(|flow| flow.used_at);
        let longest = self.idle.end_longest(newcomer, used_at);
        longest.inspect(|&slot| self.remove(slot)).is_some()
    }
}

impl Flow {
    fn new(
        socket: UdpSocket,
        program: SocketAddr,
        realm: Realm,
        now: Instant,
        share: Share,
        published: Option<PublishedBy>,
    ) -> Self {
        Self {
            socket,
            program,
            realm,
            share,
            latest: None,
            used_at: now,
            published,
            led_until: Instant::START,
            dns: Dns::default(),
            queued: false,
            tally: Tally::new(now),
        }
    }

    /// True for a mapping to the host's loopback, which has sent something.
    fn is_of_loopback(&self) -> bool {
        self.latest.is_some_and(|peer| peer.ip().is_loopback())
    }

    /// Returns the peer that may answer from this address: in the world from any port; on the host,
    /// where all peers share one address, only from the port that was sent to.
    fn peer(&self, address: SocketAddr) -> SocketAddr {
        match self.realm {
            Realm::World => SocketAddr::new(address.ip(), 0),
            Realm::Mapped(_) | Realm::Dns(_) | Realm::Group(_) => address,
        }
    }
}

impl Gateway {
    /// The program sent a datagram. One that needs a new flow waits.
    pub(super) fn on_datagram(&mut self, datagram: Datagram, io: &mut Io<'_>) {
        let Some((realm, to)) = self.route_or_refuse(&datagram, io) else { return };
        let is_answer = self.udp.way(datagram.remote, datagram.local).is_some();
        let datagram = match realm {
            Realm::Dns(_) if self.egress.is_some() && datagram.segment_size.is_some() => {
                return self.on_each_question(&datagram, io);
            }
            Realm::Dns(_) if !self.admits_question(&datagram, io) => return,
            Realm::World | Realm::Mapped(_) if !is_answer => {
                match self.admit_datagram(datagram, to, io) {
                    Some(admitted) => admitted,
                    None => return,
                }
            }
            _ => datagram,
        };
        self.send_or_wait(datagram, realm, to, io);
    }

    /// Sends a datagram that is admitted. One that needs a new flow waits.
    fn send_or_wait(&mut self, datagram: Datagram, realm: Realm, to: SocketAddr, io: &mut Io<'_>) {
        if self.udp.index.contains_key(&(datagram.remote, realm)) {
            self.send_datagram(datagram, realm, to, io);
        } else {
            self.message_waits(Message::Datagram(datagram), io);
        }
    }

    /// Sends a datagram that has waited for the rest of its greeting.
    pub(super) fn forward_datagram(&mut self, datagram: Datagram, io: &mut Io<'_>) {
        if let Some((realm, to)) = self.route_or_refuse(&datagram, io) {
            self.send_or_wait(datagram, realm, to, io);
        }
    }

    /// Sends a datagram that has waited for its flow.
    pub(super) fn begin_datagram(&mut self, datagram: Datagram, io: &mut Io<'_>) {
        if let Some((realm, to)) = self.route_or_refuse(&datagram, io) {
            self.send_datagram(datagram, realm, to, io);
        }
    }

    fn send_datagram(&mut self, datagram: Datagram, realm: Realm, to: SocketAddr, io: &mut Io<'_>) {
        let (program, inside) = (datagram.remote, datagram.local);
        let share = Share::Guest(datagram.packet.ingress());
        let slot = match self.find_or_open(program, realm, to, share, io) {
            Ok(slot) => slot,
            Err(error) => {
                self.counters.udp_dropped += 1;
                if is_descriptor_shortage(&error) {
                    self.counters.no_descriptor += 1;
                    return;
                }
                let (stack, mut context) = io.stack_and_context();
                return stack.udp_unreachable(inside, program, Unreachable::Network, &mut context);
            }
        };
        let way = if realm == Realm::World { self.udp.way(program, inside) } else { None };
        let (slot, source) = way.map_or((slot, None), |way| (way.slot, way.at));
        let Some(flow) = self.udp.slots.get_mut(slot) else { return };
        flow.used_at = io.now;
        let to = if let Realm::Dns(_) = realm {
            let Dns { question, tried, resolver } = &mut flow.dns;
            let questions = &mut self.udp.questions;
            if !questions.keep(question, flow.share, &datagram.packet, io.ledger) {
                self.counters.questions_not_kept += 1;
            }
            *tried = 0;
            self.resolvers.asked(resolver.unwrap_or(to), io.now);
            None
        } else {
            if flow.published.is_none() {
                let peer = flow.peer(to);
                let evicts = self.udp.peers.sent_to(slot, &mut flow.latest, flow.share, peer);
                self.counters.peers_evicted += u64::from(evicts);
            }
            Some(to)
        };
        let hops = if realm == Realm::World { hops_left(datagram.ttl) } else { None };
        let fields = IpFields { from: source, hops };
        let bytes = datagram.packet.payload_len();
        match send(&flow.socket, &fields, to, &datagram.packet, datagram.segment_size) {
            Ok(()) => {
                self.counters.bytes_out += bytes as u64;
                flow.tally.bytes[0] += bytes as u64;
                io.ledger.carry(bytes);
            }
            Err(error) => {
                self.counters.udp_dropped += 1;
                self.send_failed(&error, inside, program, io);
                // The kernel may report why. A later error makes the socket ready.
                self.read_errors(slot, io);
            }
        }
    }

    /// Returns where a datagram goes; if it leads nowhere, reports that to the program.
    fn route_or_refuse(
        &mut self,
        datagram: &Datagram,
        io: &mut Io<'_>,
    ) -> Option<(Realm, SocketAddr)> {
        let (program, inside) = (datagram.remote, datagram.local);
        let route = self.route_datagram(program, inside, io.now);
        if let Err(why) = route {
            self.counters.udp_refused += 1;
            let (stack, mut context) = io.stack_and_context();
            stack.udp_unreachable(inside, program, why, &mut context);
        }
        route.ok()
    }

    /// Returns realm and host address of a datagram from `program` to `inside`.
    fn route_datagram(
        &mut self,
        program: SocketAddr,
        inside: SocketAddr,
        now: Instant,
    ) -> Result<(Realm, SocketAddr), Unreachable> {
        // An answer to a peer that used a published port.
        if let Some(way) = self.udp.way(program, inside) {
            return Ok((Realm::World, way.peer));
        }
        match self.routes.target(inside) {
            Target::Host(to) => Ok((Realm::World, to)),
            Target::Mapped(to) => Ok((Realm::Mapped(inside.ip()), to)),
            Target::Dns => {
                let to = self.resolvers.after(0, now);
                to.map(|to| (Realm::Dns(inside), to)).ok_or(Unreachable::Port)
            }
            Target::DnsOverTls(_) | Target::Refused => Err(Unreachable::Port),
        }
    }

    /// Sends a query to a group of the host's networks, whose hosts answer by unicast.
    pub(super) fn send_one_shot(
        &mut self,
        query: &[u8],
        program: SocketAddr,
        group: SocketAddr,
        ingress: Option<u16>,
        io: &mut Io<'_>,
    ) -> io::Result<()> {
        let realm = Realm::Group(group);
        let slot = self.find_or_open(program, realm, group, Share::Guest(ingress), io)?;
        let Some(flow) = self.udp.slots.get_mut(slot) else { return Ok(()) };
        flow.used_at = io.now;
        flow.tally.bytes[0] += query.len() as u64;
        self.groups
            .send_by(&flow.socket, group, |socket, fields, to| socket.send_bytes(fields, query, to))
    }

    fn find_or_open(
        &mut self,
        program: SocketAddr,
        realm: Realm,
        to: SocketAddr,
        share: Share,
        io: &mut Io<'_>,
    ) -> io::Result<Slot> {
        if let Some(&slot) = self.udp.index.get(&(program, realm)) {
            if let Realm::Dns(_) = realm {
                self.use_resolver(slot, to, io)?;
            }
            return Ok(slot);
        }
        if self.udp.slots.count() - self.udp.published >= self.udp.limit && self.udp.evict(share) {
            self.counters.evicted += 1;
        }
        let mut socket = open(realm, to);
        if socket.as_ref().is_err_and(is_descriptor_shortage) && self.udp.evict(share) {
            self.counters.evicted += 1;
            socket = open(realm, to);
        }
        let socket = socket?;
        let slot = self.udp.slots.next_key();
        io.reactor.add(&socket, Token::Udp(slot).encode(), Interest::READ, true)?;
        let mut flow = Flow::new(socket, program, realm, io.now, share, None);
        flow.dns.resolver = matches!(realm, Realm::Dns(_)).then_some(to);
        self.udp.slots.insert(flow);
        self.udp.idle.begin(share, slot, io.now);
        self.udp.index.insert((program, realm), slot);
        self.udp.sweep_at = self.udp.sweep_at.or(Some(io.now + SWEEP));
        self.counters.udp += 1;
        Ok(slot)
    }

    /// Moves a DNS mapping to a resolver, unless it uses that resolver already.
    fn use_resolver(&mut self, slot: Slot, to: SocketAddr, io: &mut Io<'_>) -> io::Result<()> {
        let Some(flow) = self.udp.slots.get_mut(slot) else { return Ok(()) };
        if flow.dns.resolver == Some(to) {
            return Ok(());
        }
        let socket = UdpSocket::connect(to)?;
        io.reactor.add(&socket, Token::Udp(slot).encode(), Interest::READ, true)?;
        flow.socket = socket;
        flow.dns.resolver = Some(to);
        Ok(())
    }

    /// A host socket has datagrams or errors.
    pub(super) fn udp_ready(&mut self, slot: Slot, event: Event, io: &mut Io<'_>) {
        if event.ready.error {
            self.read_errors(slot, io);
        }
        self.udp.queue(slot);
    }

    /// Reads for the flows in line, once for each, until one turn's bytes are read.
    pub(super) fn continue_udp(&mut self, io: &mut Io<'_>) {
        self.udp.starved = false;
        let mut left = BYTES_PER_TURN;
        for _ in 0..self.udp.waiting.len() {
            if left == 0 {
                return;
            }
            let Some(slot) = self.udp.waiting.pop_front() else { return };
            let Some(flow) = self.udp.slots.get_mut(slot) else { continue };
            flow.queued = false;
            left = left.saturating_sub(self.read_datagrams(slot, left, io));
        }
    }

    /// Reads from a socket until `most` bytes have arrived; returns how many did.
    fn read_datagrams(&mut self, slot: Slot, most: usize, io: &mut Io<'_>) -> usize {
        self.lead_datagrams(slot, io);
        let Some(flow) = self.udp.slots.get_mut(slot) else { return 0 };
        let mut read = std::mem::take(&mut self.udp.read);
        // If the device cannot segment, joined datagrams would be segmented again here.
        let joins = io.stack.caps().uso;
        let keep = |mut datagram| {
            if !(joins && read.last_mut().is_some_and(|last| last.join(&mut datagram))) {
                read.push(datagram);
            }
        };
        let result = flow.socket.receive(io.buffer, io.memory, (READS_PER_TURN, most), keep);
        for datagram in read.drain(..) {
            self.deliver(slot, datagram, io);
        }
        self.udp.read = read;
        match result {
            Ok(received) => {
                if received.error_pending {
                    self.read_errors(slot, io);
                }
                self.udp.starved |= received.no_memory;
                if !received.drained {
                    self.udp.queue(slot);
                }
                received.bytes
            }
            // Nothing to read, or an error that the error queue describes better.
            Err(_) => {
                self.read_errors(slot, io);
                0
            }
        }
    }

    /// Returns the address from which the program sees a datagram of the host, if the flow accepts
    /// it.
    fn accept_datagram(
        &mut self,
        slot: Slot,
        datagram: &HostDatagram,
        now: Instant,
    ) -> Option<SocketAddr> {
        let UdpFlows { slots, peers, questions, .. } = &mut self.udp;
        let flow = slots.get_mut(slot)?;
        let from = match flow.realm {
            Realm::Dns(inside) => {
                questions.forget(&mut flow.dns.question, flow.share);
                self.resolvers.answered(datagram.from);
                inside
            }
            Realm::World if flow.published.is_some() => {
                // A disabled family counts as having no guest.
                let inside = self.routes.peer_inside(datagram.from);
                let Some(inside) = inside.filter(|_| flow.program != NOBODY) else {
                    self.counters.udp_nobody += 1;
                    return None;
                };
                let way = Way { slot, at: datagram.to, peer: datagram.from };
                let evicts = peers.asked(flow.program, inside, way);
                self.counters.peers_evicted += u64::from(evicts);
                inside
            }
            Realm::Group(_) => {
                // The last query counts, not the last answer.
                let inside = self.routes.peer_inside(datagram.from);
                let is_late = now.since(flow.used_at) >= ANSWERS_WITHIN;
                if is_late || !self.groups.admits_answer(now) {
                    self.counters.multicast_limited += 1;
                    return None;
                }
                return inside;
            }
            Realm::World | Realm::Mapped(_) => {
                if !peers.may_send(slot, flow.latest, flow.peer(datagram.from)) {
                    self.counters.udp_filtered += 1;
                    return None;
                }
                match flow.realm {
                    Realm::Mapped(inside) => SocketAddr::new(inside, datagram.from.port()),
                    _ => datagram.from,
                }
            }
        };
        flow.used_at = now;
        Some(from)
    }
}

#[cfg(test)]
mod tests;
