//! Records of native connections.
//!
//! The program has the sockets; a record has what names one to the kernel. Bytes are known from the
//! kernel's report of a socket's end, and when a flow is *visited*: then the kernel is asked, which
//! takes some microseconds. Nothing is done while no client asks.
//!
//! Limit: flows of the configuration. At the limit connections take the interface.

use super::ticket::Ticket;
use crate::flows::{FlowKind, FlowPage, FlowQuery, LISTED_MAX, ListedFlow, VISITED_MAX};
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;
use towpath_io::native::diag::{Carried, Diag};
use towpath_io::native::holders;
use towpath_io::native::socket::{self, State};
use towpath_net::slab::{Key, Slab};
use towpath_net::time::Instant;

/// Why a TCP connection took the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// Its destination does.
    Destination,
    /// Its socket was bound to an address, a port or an interface.
    Bound,
    /// Its socket had an option that a socket of the host cannot have.
    Option,
    /// Another descriptor led to its socket, or an epoll set watched it.
    OtherWays,
    /// The program could not be looked at, so that nothing connects.
    Unseen,
    /// There was no room: too many flows, or no descriptors.
    Full,
    /// A policy decides by its bytes: by a greeting, or by bounds of them.
    Policy,
}

impl Kept {
    const COUNT: usize = 7;
    /// The reasons in reports, in order.
    const NAMES: [&'static str; Self::COUNT] =
        ["destination", "bound", "option", "other_ways", "unseen", "full", "policy"];
}

/// Counters of native connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NativeCounters {
    /// Connections whose socket the program got, and those of its listeners.
    pub begun: u64,
    /// Connections that the host refused or could not make, before the program got the socket.
    pub refused: u64,
    /// Connections that a policy denied, before the program got a socket.
    pub denied: u64,
    /// Connections that were ended on request ([`Link::end`](super::Link::end)), or because a new
    /// policy denies them.
    pub ended: u64,
    /// Open connections.
    pub open: u64,
    /// Open listeners of the program at published ports.
    pub listeners: u64,
    /// Payload bytes from the program to the host.
    pub bytes_out: u64,
    /// Payload bytes from the host to the program; the peer's FIN counts as a byte.
    pub bytes_in: u64,
    /// Connections that took the interface, by reason.
    kept: [u64; Kept::COUNT],
}

impl NativeCounters {
    /// The number of numbers.
    pub(super) const LEN: usize = 8 + Kept::COUNT;

    /// Connections that took the interface, by reason.
    pub fn interface(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Kept::NAMES.into_iter().zip(self.kept)
    }

    /// Returns all numbers.
    pub(super) fn numbers(&self) -> [u64; Self::LEN] {
        let Self { begun, refused, denied, ended, open, listeners, .. } = *self;
        let Self { bytes_out, bytes_in, kept, .. } = *self;
        let mut numbers = [0; Self::LEN];
        let (first, last) = numbers.split_at_mut(Self::LEN - Kept::COUNT);
        let all = [begun, refused, denied, ended, open, listeners, bytes_out, bytes_in];
        first.copy_from_slice(&all);
        last.copy_from_slice(&kept);
        numbers
    }

    /// The counters with these numbers.
    pub(super) fn of(numbers: [u64; Self::LEN]) -> Self {
        let [begun, refused, denied, ended, open, listeners, rest @ ..] = numbers;
        let [bytes_out, bytes_in, kept @ ..] = rest;
        Self { begun, refused, denied, ended, open, listeners, bytes_out, bytes_in, kept }
    }
}

/// What became of a request to end a native flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Its connection was reset.
    Reset,
    /// There is no such flow any more.
    Gone,
    /// No process has a descriptor of its socket: it is on its way between two of them.
    Hidden,
}

impl Ended {
    const ALL: [Self; 3] = [Self::Reset, Self::Gone, Self::Hidden];

    pub(super) fn number(self) -> u64 {
        self as u64
    }

    pub(super) fn of(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|ended| ended.number() == number)
    }
}

/// A native connection.
#[derive(Debug)]
pub(super) struct Flow {
    cookie: u64,
    /// The inode of a socket that the supervisor has made.
    inode: u32,
    /// Its own address and the peer's, on the host.
    outside: [SocketAddr; 2],
    /// Both addresses as the program sees them.
    inside: [SocketAddr; 2],
    begun: Instant,
    /// Bytes out and in, as last known.
    bytes: [u64; 2],
    state: u8,
    /// The program knows that it is connected.
    is_collected: bool,
    /// The kernel did not find it any more.
    has_gone: bool,
    /// The host began it.
    is_inbound: bool,
    /// The policy has admitted it.
    ticket: Option<Ticket>,
    /// A new policy denies it, and its socket has not been found yet.
    is_withdrawn: bool,
    /// What the last list has shown.
    listed: ([u64; 2], Instant),
}

impl Flow {
    pub(super) fn new(
        cookie: u64,
        outside: [SocketAddr; 2],
        inside: [SocketAddr; 2],
        begun: Instant,
    ) -> Self {
        Self {
            cookie,
            inode: 0,
            outside,
            inside,
            begun,
            bytes: [0; 2],
            state: 0,
            is_collected: false,
            has_gone: false,
            is_inbound: false,
            ticket: None,
            is_withdrawn: false,
            listed: ([0; 2], begun),
        }
    }

    /// The program has got the socket with this inode, whose bytes only the kernel knows from now
    /// on. Keeps what the policy has admitted until the end of the flow.
    pub(super) fn given(self, inode: u32, ticket: Option<Ticket>) -> Self {
        Self { inode, ticket: ticket.map(Ticket::uncounted), ..self }
    }

    /// The flow is over for the policy, with the bytes that are known.
    fn settle(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            ticket.end(self.bytes);
        }
    }

    /// A connection that a listener of the program has accepted, or will.
    pub(super) fn inbound(
        cookie: u64,
        outside: [SocketAddr; 2],
        inside: [SocketAddr; 2],
        begun: Instant,
    ) -> Self {
        let flow = Self::new(cookie, outside, inside, begun);
        Self { is_inbound: true, is_collected: true, ..flow }
    }
}

/// All native connections that are open.
pub(super) struct Table {
    flows: Slab<Option<Flow>>,
    by_cookie: HashMap<u64, Key>,
    flows_max: usize,
    counters: NativeCounters,
    /// Where the next visit begins.
    visited_to: usize,
    swept: Option<Instant>,
}

impl Table {
    pub(super) fn new(flows_max: usize) -> Self {
        Self {
            flows: Slab::default(),
            by_cookie: HashMap::new(),
            flows_max,
            counters: NativeCounters::default(),
            visited_to: 0,
            swept: None,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_cookie.is_empty()
    }

    /// Returns true if there is no room. Flows that the kernel does not find make room, at
    /// intervals.
    pub(super) fn is_full(&mut self, diag: &mut Diag, now: Instant) -> bool {
        if self.is_at_limit() && self.swept.is_none_or(|swept| now.since(swept) >= SWEEP_INTERVAL) {
            self.swept = Some(now);
            (0..self.flows.places_len() as u32).for_each(|index| self.visit(index, diag));
            let gone = self.flows.iter().filter(|(_, flow)| flow.has_gone);
            let mut gone: HashSet<u64> = gone.map(|(_, flow)| flow.cookie).collect();
            if !gone.is_empty() {
                // Those that the program has bound to an interface are still there.
                diag.all_connections(|open| _ = gone.remove(&open.cookie));
            }
            for cookie in gone {
                self.by_cookie.remove(&cookie).map(|key| self.flows.remove(key));
            }
        }
        self.is_at_limit()
    }

    pub(super) fn begin(&mut self, flow: Flow) {
        self.counters.begun += 1;
        let cookie = flow.cookie;
        self.by_cookie.insert(cookie, self.flows.next_key());
        self.flows.insert(flow);
    }

    pub(super) fn refused(&mut self) {
        self.counters.refused += 1;
    }

    pub(super) fn denied(&mut self) {
        self.counters.denied += 1;
    }

    pub(super) fn keep(&mut self, why: Kept) {
        self.counters.kept[why as usize] += 1;
    }

    /// Notes that the program knows that this socket is connected; returns false if it did already.
    pub(super) fn collect(&mut self, cookie: u64) -> bool {
        let flow = self.by_cookie.get(&cookie).and_then(|key| self.flows.get_mut(*key));
        flow.is_some_and(|flow| !std::mem::replace(&mut flow.is_collected, true))
    }

    /// Returns true if this socket is a native one.
    pub(super) fn has(&self, cookie: u64) -> bool {
        self.by_cookie.contains_key(&cookie)
    }

    /// Returns the addresses that the program sees of a native socket: its own and the peer's.
    pub(super) fn names(&self, cookie: u64) -> Option<[SocketAddr; 2]> {
        let flow = self.by_cookie.get(&cookie).and_then(|key| self.flows.get(*key))?;
        Some(flow.inside)
    }

    /// Returns true if there is no room now.
    pub(super) fn is_at_limit(&self) -> bool {
        self.by_cookie.len() >= self.flows_max
    }

    /// A connection has begun and ended that was not known.
    pub(super) fn passed(&mut self, ended: &Carried) {
        self.counters.begun += 1;
        self.counters.bytes_out += ended.bytes_out;
        self.counters.bytes_in += ended.bytes_in;
    }

    /// A socket of the host has ended; most are of other programs, and it returns false.
    pub(super) fn end(&mut self, ended: &Carried) -> bool {
        let Some(key) = self.by_cookie.remove(&ended.cookie) else { return false };
        if let Some(flow) = self.flows.get_mut(key) {
            count(&mut self.counters, flow, ended);
            // Zeros are what the kernel reports of a socket that the program has closed by a reset.
            if ended.bytes_out + ended.bytes_in > 0 {
                flow.settle();
            }
        }
        self.flows.remove(key).is_some()
    }

    /// Resets the connection of a flow, whichever process has its socket. It stays listed until the
    /// program closes the socket.
    pub(super) fn reset(&mut self, (index, generation): (u32, u32), diag: &mut Diag) -> Ended {
        let Some(flow) = self.flows.get_mut(Key { index, generation }) else { return Ended::Gone };
        let [local, peer] = flow.outside;
        // It is not known if it has gone, and if the program has bound it to an interface.
        let carried = diag.ask(flow.cookie, local, peer).ok();
        let inode = carried.map_or(flow.inode, |carried| carried.inode);
        let Some(socket) = holders::find(inode, flow.cookie) else {
            flow.has_gone |= carried.is_none();
            return if carried.is_none() { Ended::Gone } else { Ended::Hidden };
        };
        if socket::state(&socket) == Ok(State::Closed) {
            flow.has_gone = true;
            return Ended::Gone;
        }
        if socket::reset(&socket).is_err() {
            return Ended::Hidden;
        }
        was_reset(&mut self.counters, flow, carried.as_ref());
        Ended::Reset
    }

    /// A new policy denies the flows with these numbers of [`Ticket`]: they have to end.
    pub(super) fn withdraw(&mut self, numbers: &HashSet<u64>) {
        for flow in self.flows.places_mut().flatten() {
            let is_one = |ticket: &Ticket| numbers.contains(&ticket.number());
            flow.is_withdrawn |= flow.ticket.as_ref().is_some_and(is_one);
        }
    }

    /// Resets the connections of withdrawn flows, as [`reset`](Self::reset) does. Returns false if
    /// some were not found: their sockets are on the way between two processes, or have gone, and
    /// that has not been reported yet.
    pub(super) fn end_withdrawn(&mut self, diag: &mut Diag) -> bool {
        let (mut wanted, mut known) = (HashMap::new(), HashMap::new());
        for flow in self.flows.places_mut().flatten().filter(|flow| flow.is_withdrawn) {
            let [local, peer] = flow.outside;
            wanted.insert(flow.inode, flow.cookie);
            // Not known is one that the program has bound to an interface.
            if let Ok(carried) = diag.ask(flow.cookie, local, peer) {
                known.insert(flow.cookie, carried);
            }
        }
        holders::find_each(wanted, |cookie, socket| {
            let flow = self.by_cookie.get(&cookie).and_then(|key| self.flows.get_mut(*key));
            if let (Some(flow), Ok(())) = (flow, socket::reset(&socket)) {
                was_reset(&mut self.counters, flow, known.get(&cookie));
                flow.is_withdrawn = false;
            }
        });
        !self.flows.places().flatten().any(|flow| flow.is_withdrawn)
    }

    /// Asks the kernel for a flow, if there is one at this index. A socket that is closed on the
    /// network is not found while the program still has it.
    fn visit(&mut self, index: u32, diag: &mut Diag) {
        let Some((key, _)) = self.flows.at(index) else { return };
        let Some(flow) = self.flows.get_mut(key) else { return };
        let [local, peer] = flow.outside;
        match diag.ask(flow.cookie, local, peer) {
            Ok(carried) => count(&mut self.counters, flow, &carried),
            Err(_) => flow.has_gone = true,
        }
    }

    /// Sets the number of open listeners.
    pub(super) fn listen(&mut self, listeners: usize) {
        self.counters.listeners = listeners as u64;
    }

    /// Returns the counters. They include the bytes of open flows as of their last visit; some are
    /// visited now, in turn.
    pub(super) fn counters(&mut self, diag: &mut Diag) -> NativeCounters {
        let places = self.flows.places_len();
        for _ in 0..places.min(VISITED_MAX) {
            self.visited_to = (self.visited_to + 1) % places;
            self.visit(self.visited_to as u32, diag);
        }
        NativeCounters { open: self.by_cookie.len() as u64, ..self.counters }
    }

    /// Returns a page of flows, as the gateway's own lists: those that moved most come first.
    pub(super) fn page(&mut self, query: &FlowQuery, diag: &mut Diag, now: Instant) -> FlowPage {
        let places = self.flows.places_len();
        let from = usize::try_from(query.from).map_or(places, |from| from.min(places));
        let to = (from + VISITED_MAX).min(places);
        let mut page = FlowPage::default();
        for index in from..to {
            self.visit(index as u32, diag);
            let Some((key, _)) = self.flows.at(index as u32) else { continue };
            let Some(flow) = self.flows.get_mut(key) else { continue };
            page.visited += 1;
            let flow = describe(key, flow, now);
            if flow.moved_out + flow.moved_in >= query.moved_min {
                page.flows.push(flow);
            }
        }
        page.flows.sort_unstable_by_key(|flow| std::cmp::Reverse(flow.moved_out + flow.moved_in));
        page.flows.truncate(query.most.min(LISTED_MAX));
        page.next = (to < places).then_some(to as u64);
        page
    }
}

/// A flow was reset; afterwards the kernel does not know its bytes any more.
fn was_reset(counters: &mut NativeCounters, flow: &mut Flow, carried: Option<&Carried>) {
    if let Some(carried) = carried {
        count(counters, flow, carried);
        flow.settle();
    }
    flow.ticket = None;
    flow.has_gone = true;
    counters.ended += 1;
}

/// Counts what a flow has carried since it was last looked at.
fn count(counters: &mut NativeCounters, flow: &mut Flow, carried: &Carried) {
    let [out, into] = flow.bytes;
    counters.bytes_out += carried.bytes_out.saturating_sub(out);
    counters.bytes_in += carried.bytes_in.saturating_sub(into);
    flow.bytes = [carried.bytes_out.max(out), carried.bytes_in.max(into)];
    flow.state = carried.state;
}

fn describe(key: Key, flow: &mut Flow, now: Instant) -> ListedFlow {
    let [program, peer] = flow.inside;
    let [bytes_out, bytes_in] = flow.bytes;
    let ([out_before, in_before], since) = std::mem::replace(&mut flow.listed, (flow.bytes, now));
    ListedFlow {
        kind: FlowKind::Native,
        id: (key.index, key.generation),
        program,
        peer: Some(peer),
        is_inbound: flow.is_inbound,
        state: if flow.has_gone { "closing" } else { state_name(flow.state) },
        age: now.since(flow.begun),
        bytes_out,
        bytes_in,
        moved_out: bytes_out - out_before,
        moved_in: bytes_in - in_before,
        moved_in_time: now.since(since),
        tcp: None,
    }
}

/// Returns the word for a state of net/tcp_states.h.
pub(super) fn state_name(state: u8) -> &'static str {
    match state {
        1 => "open",
        2 | 3 => "connecting",
        _ => "closing",
    }
}

/// Interval of the looks for flows whose end was not reported, at the limit: 16,384 flows take
/// about 0.1 s.
const SWEEP_INTERVAL: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::super::ticket::Ends;
    use super::*;
    use std::io::{Read, Write};

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    fn flow(cookie: u64) -> Flow {
        let inside = [at("10.0.2.15:4000"), at("192.0.2.2:80")];
        Flow::new(cookie, [at("192.0.2.1:4000"), at("192.0.2.2:80")], inside, Instant::START)
    }

    /// Goal: bytes count once, at the end of a flow; sockets of others do not count.
    #[test]
    fn ends_are_counted() {
        let mut table = Table::new(4);
        table.begin(flow(7));
        assert!(table.collect(7) && !table.collect(7) && !table.collect(8));
        let ends = [at("192.0.2.1:4000"), at("192.0.2.2:80")];
        let ended =
            |cookie| Carried { cookie, bytes_out: 10, bytes_in: 20, state: 7, inode: 0, ends };
        for cookie in [8, 7, 7] {
            table.end(&ended(cookie));
        }
        let NativeCounters { begun, bytes_out, bytes_in, .. } = table.counters;
        assert_eq!((begun, bytes_out, bytes_in), (1, 10, 20));
        assert!(table.is_empty());
    }

    /// Goal: a flow that the kernel does not know makes room for another one.
    #[test]
    fn flows_without_an_end_make_room() {
        let mut diag = Diag::open().unwrap();
        let mut table = Table::new(1);
        table.begin(flow(u64::MAX - 1));
        let query = FlowQuery { from: 0, most: 9, moved_min: 0 };
        let page = table.page(&query, &mut diag, Instant::START + Duration::from_secs(1));
        assert_eq!((page.visited, page.flows.len(), page.next), (1, 1, None));
        assert_eq!(page.flows[0].age, Duration::from_secs(1));
        assert!(!table.is_full(&mut diag, Instant::START));
        assert_eq!(table.counters(&mut diag).open, 0);
    }

    /// Goal: a flow is ended by its ID, once, and its bytes stay counted; the ID of another one
    /// ends nothing.
    #[test]
    fn a_flow_is_ended() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut own = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut accepted = listener.accept().unwrap().0;
        own.write_all(&[1; 100]).unwrap();
        accepted.read_exact(&mut [0; 100]).unwrap();
        let cookie = rustix::net::sockopt::socket_cookie(&own).unwrap();
        let outside = [own.local_addr().unwrap(), own.peer_addr().unwrap()];
        let mut diag = Diag::open().unwrap();
        let mut table = Table::new(4);
        table.begin(Flow::new(cookie, outside, outside, Instant::START));
        assert_eq!(table.reset((1, 0), &mut diag), Ended::Gone);
        let query = FlowQuery { from: 0, most: 9, moved_min: 0 };
        let id = table.page(&query, &mut diag, Instant::START).flows[0].id;
        assert_eq!(table.reset(id, &mut diag), Ended::Reset);
        let error = accepted.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        assert_eq!(table.reset(id, &mut diag), Ended::Gone);
        let NativeCounters { ended, open, bytes_out, .. } = table.counters(&mut diag);
        assert_eq!((ended, open, bytes_out), (1, 1, 100));
        assert_eq!(Ended::ALL.map(|ended| Ended::of(ended.number())), Ended::ALL.map(Some));
    }

    /// Goal: withdrawn flows are reset, also one that the kernel does not find by its addresses.
    /// The others are not, and the end of each is reported once.
    #[test]
    fn withdrawn_flows_end() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut diag = Diag::open().unwrap();
        let mut table = Table::new(4);
        let ends = Ends::default();
        let mut pair = |number| {
            let own = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let cookie = rustix::net::sockopt::socket_cookie(&own).unwrap();
            let mut outside = [own.local_addr().unwrap(), own.peer_addr().unwrap()];
            if number == 2 {
                outside[1] = at("192.0.2.1:80");
            }
            let inode = rustix::fs::fstat(&own).unwrap().st_ino as u32;
            let flow = Flow::new(cookie, outside, outside, Instant::START);
            table.begin(flow.given(inode, Some(Ticket::new(number, &ends))));
            (own, listener.accept().unwrap().0)
        };
        let [first, bound, (mut own, mut kept)] = [1, 2, 3].map(&mut pair);
        (&first.1).write_all(&[1; 50]).unwrap();
        table.withdraw(&HashSet::from([1, 2, 7]));
        assert!(table.end_withdrawn(&mut diag) && table.end_withdrawn(&mut diag));
        for (_, mut accepted) in [first, bound] {
            let error = accepted.read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        }
        own.write_all(&[1; 10]).unwrap();
        kept.read_exact(&mut [0; 10]).unwrap();
        assert_eq!(table.counters(&mut diag).ended, 2);
        drop(table);
        let ends = ends.take().into_iter();
        let mut reported: Vec<_> = ends.map(|end| (end.number, end.bytes)).collect();
        reported.sort_unstable();
        assert_eq!(reported, [(1, Some([0, 50])), (2, None), (3, None)]);
    }

    #[test]
    fn counters_are_numbers() {
        let mut table = Table::new(1);
        table.refused();
        table.keep(Kept::Full);
        table.keep(Kept::OtherWays);
        assert_eq!(NativeCounters::of(table.counters.numbers()), table.counters);
        let kept: Vec<_> = table.counters.interface().filter(|(_, count)| *count > 0).collect();
        assert_eq!(kept, [("other_ways", 1), ("full", 1)]);
    }
}
