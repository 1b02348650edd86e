//! Lists flows for people, a page at a time.
//!
//! # Theory of operation
//!
//! Nothing here runs per packet: flows count their bytes where they move them, and a page is built
//! when it is requested, by the worker that owns the flows. A page visits at most [`VISITED_MAX`]
//! entries of the flow tables, from a [`Cursor`] on, and describes at most [`LISTED_MAX`] of the
//! flows found there: those that have moved most bytes since they were last visited. A visit reads
//! one or two cache lines of a flow; only a described flow costs a look at its connection.
//!
//! The budget is one pass over 16,384 flows in a second at less than one percent of a processor,
//! and 1 ms for a page, in which no packet moves: the queues of the inside and of host sockets hold
//! more than that. Measured: 0.4 ms for a page, as JSON, of which 200 flows are described, and less
//! than 2 ms for all pages.
//!
//! For each visited entry a record of [`Seen`] is kept, from the first request on. Several clients
//! share the records: each of them shortens the periods that the others see.

use super::Gateway;
use std::net::SocketAddr;
use std::time::Duration;
use towpath_net::stack::Stack;
use towpath_net::tcp::Info;
use towpath_net::time::Instant;

/// Most table entries that a page visits: a quarter of the default number of TCP flows. At 100 ns
/// for an entry that is in no cache, a page visits them in 0.4 ms.
pub const VISITED_MAX: usize = 4096;
/// Most flows that a page describes: more than fit a screen.
pub const LISTED_MAX: usize = 200;

/// Protocol of a listed flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowKind {
    /// TCP through the stack.
    Tcp,
    /// A UDP mapping.
    Udp,
    /// Echo requests.
    Echo,
    /// TCP past the stack, from loopback to loopback.
    Joined,
    /// UDP past the stack, from loopback to loopback.
    JoinedUdp,
    /// TCP over a socket of the host that the program has itself; see [`native`](crate::native).
    Native,
}

impl FlowKind {
    /// All kinds that have a table here, in the order in which a [`Cursor`] passes them.
    pub const ALL: [Self; 5] = [Self::Tcp, Self::Udp, Self::Echo, Self::Joined, Self::JoinedUdp];

    /// Returns the name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Echo => "echo",
            Self::Joined => "joined",
            Self::JoinedUdp => "joined-udp",
            Self::Native => "native",
        }
    }

    /// Returns the name of the path that payload takes: `interface` is that of the program, and the
    /// stack; `joined` passes by both, through a pipe; `native` is a socket of the host, which
    /// the program has itself.
    pub fn path(self) -> &'static str {
        match self {
            Self::Tcp | Self::Udp | Self::Echo => "interface",
            Self::Joined | Self::JoinedUdp => "joined",
            Self::Native => "native",
        }
    }
}

/// A place in the flow tables: 3 bits of kind, 32 bits of index. Zero is the first place.
pub type Cursor = u64;

/// A request for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowQuery {
    /// Where to begin: 0, or [`FlowPage::next`] of the page before.
    pub from: Cursor,
    /// Most flows to describe; at most [`LISTED_MAX`] are.
    pub most: usize,
    /// Least number of bytes that a described flow has moved since it was last visited.
    pub moved_min: u64,
}

/// A page of flows.
#[derive(Clone, Debug, Default)]
pub struct FlowPage {
    /// The flows, those that moved most bytes first.
    pub flows: Vec<ListedFlow>,
    /// Flows that were visited, described or not.
    pub visited: usize,
    /// Where the next page begins; `None` after the last one.
    pub next: Option<Cursor>,
}

/// A flow at one moment.
#[derive(Clone, Debug)]
pub struct ListedFlow {
    /// Its protocol.
    pub kind: FlowKind,
    /// Index and generation, which name it among the flows of its kind and worker.
    pub id: (u32, u32),
    /// Address and port of the program or guest; port 0 for echo.
    pub program: SocketAddr,
    /// The peer as the program sees it, if there is one; port 0 if it may be any. For joined flows,
    /// the peer as the host has it.
    pub peer: Option<SocketAddr>,
    /// The host began it.
    pub is_inbound: bool,
    /// Its state, as a word.
    pub state: &'static str,
    /// Time since it began.
    pub age: Duration,
    /// Payload bytes from the program to the host.
    pub bytes_out: u64,
    /// Payload bytes from the host to the program.
    pub bytes_in: u64,
    /// The part of `bytes_out` that has moved since it was last visited, or since it began.
    pub moved_out: u64,
    /// The part of `bytes_in` that has moved since it was last visited, or since it began.
    pub moved_in: u64,
    /// Time since it was last visited, or since it began.
    pub moved_in_time: Duration,
    /// State of the connection between the stack and the program, for TCP through the stack.
    pub tcp: Option<Box<Info>>,
}

/// When a flow began, and the payload bytes out and in that it has moved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tally {
    begun: Instant,
    pub(super) bytes: [u64; 2],
}

impl Tally {
    pub(super) fn new(begun: Instant) -> Self {
        Self { begun, bytes: [0; 2] }
    }

    /// Returns what a visit reads of the flow.
    pub(super) fn visited(&self, generation: u32) -> Visited {
        let Self { begun, bytes: [bytes_out, bytes_in] } = *self;
        Visited { generation, begun, bytes_out, bytes_in }
    }
}

/// What a visit reads of a flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Visited {
    pub(super) generation: u32,
    pub(super) begun: Instant,
    pub(super) bytes_out: u64,
    pub(super) bytes_in: u64,
}

/// What the description of a flow adds to a visit.
#[derive(Debug)]
pub(super) struct Described {
    pub(super) program: SocketAddr,
    pub(super) peer: Option<SocketAddr>,
    pub(super) is_inbound: bool,
    pub(super) state: &'static str,
    pub(super) tcp: Option<Box<Info>>,
}

/// What the last visit found.
#[derive(Clone, Copy, Debug)]
struct Seen {
    generation: u32,
    at: Instant,
    bytes_out: u64,
    bytes_in: u64,
}

/// Records of the last visits, by table and index. Empty until flows are first listed; at most as
/// long as the tables, with 32 bytes per entry.
#[derive(Debug, Default)]
pub(super) struct Visits([Vec<Seen>; FlowKind::ALL.len()]);

/// A flow that may be described: what it has moved, and since when.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    kind: FlowKind,
    index: u32,
    visited: Visited,
    moved_out: u64,
    moved_in: u64,
    since: Instant,
}

impl Candidate {
    fn moved(&self) -> u64 {
        self.moved_out + self.moved_in
    }
}

impl Visits {
    /// Records a visit; returns what the flow has moved out and in since the last one, and the time
    /// of that one.
    fn visit(
        &mut self,
        kind: FlowKind,
        index: u32,
        visited: &Visited,
        now: Instant,
    ) -> (u64, u64, Instant) {
        let Visited { generation, begun, bytes_out, bytes_in } = *visited;
        let none = Seen { generation, at: begun, bytes_out: 0, bytes_in: 0 };
        let records = &mut self.0[kind as usize];
        if records.len() <= index as usize {
            // Entries between are of flows that have not been visited: of no generation of theirs.
            let unseen = Seen { generation: u32::MAX, ..none };
            records.resize(index as usize + 1, unseen);
        }
        let record = &mut records[index as usize];
        let seen = Seen { generation, at: now, bytes_out, bytes_in };
        let before = std::mem::replace(record, seen);
        let before = if before.generation == generation { before } else { none };
        let moved = |now: u64, before: u64| now.saturating_sub(before);
        (moved(bytes_out, before.bytes_out), moved(bytes_in, before.bytes_in), before.at)
    }
}

impl Gateway {
    /// Returns a page of flows; see the [module](self) for what it costs.
    pub(crate) fn list(&mut self, query: &FlowQuery, stack: &Stack, now: Instant) -> FlowPage {
        let mut candidates = Vec::new();
        let (visited, next) = self.visit_flows(query, now, &mut candidates);
        let most = query.most.min(LISTED_MAX);
        let by_moved = |one: &Candidate, other: &Candidate| other.moved().cmp(&one.moved());
        if candidates.len() > most {
            candidates.select_nth_unstable_by(most, by_moved);
            candidates.truncate(most);
        }
        candidates.sort_unstable_by(by_moved);
        let flows = candidates.iter().filter_map(|candidate| {
            let Candidate { kind, index, visited, .. } = *candidate;
            let Described { program, peer, is_inbound, state, tcp } =
                self.describe(kind, index, stack, now)?;
            Some(ListedFlow {
                kind,
                id: (index, visited.generation),
                program,
                peer,
                is_inbound,
                state,
                age: now.since(visited.begun),
                bytes_out: visited.bytes_out,
                bytes_in: visited.bytes_in,
                moved_out: candidate.moved_out,
                moved_in: candidate.moved_in,
                moved_in_time: now.since(candidate.since),
                tcp,
            })
        });
        FlowPage { flows: flows.collect(), visited, next }
    }

    /// Visits the entries of a page. Returns the number of flows, and where the next page begins.
    fn visit_flows(
        &mut self,
        query: &FlowQuery,
        now: Instant,
        candidates: &mut Vec<Candidate>,
    ) -> (usize, Option<Cursor>) {
        let (mut left, mut flows) = (VISITED_MAX, 0);
        let (first, mut index) = ((query.from >> 32) as usize, query.from as u32);
        for kind in FlowKind::ALL.into_iter().skip(first) {
            let len = self.table_len(kind) as u32;
            while index < len {
                if left == 0 {
                    return (flows, Some((kind as u64) << 32 | u64::from(index)));
                }
                left -= 1;
                if let Some(visited) = self.visited(kind, index) {
                    flows += 1;
                    let visit = self.visits.visit(kind, index, &visited, now);
                    let (moved_out, moved_in, since) = visit;
                    let one = Candidate { kind, index, visited, moved_out, moved_in, since };
                    if one.moved() >= query.moved_min {
                        candidates.push(one);
                    }
                }
                index += 1;
            }
            index = 0;
        }
        (flows, None)
    }

    fn table_len(&self, kind: FlowKind) -> usize {
        match kind {
            FlowKind::Tcp => self.tcp.table_len(),
            FlowKind::Udp => self.udp.table_len(),
            FlowKind::Echo => self.pings.table_len(),
            FlowKind::Joined => self.joined.table_len(),
            FlowKind::JoinedUdp => self.joined_udp.table_len(),
            FlowKind::Native => 0,
        }
    }

    fn visited(&self, kind: FlowKind, index: u32) -> Option<Visited> {
        match kind {
            FlowKind::Tcp => self.tcp.visited(index),
            FlowKind::Udp => self.udp.visited(index),
            FlowKind::Echo => self.pings.visited(index),
            FlowKind::Joined => self.joined.visited(index),
            FlowKind::JoinedUdp => self.joined_udp.visited(index),
            FlowKind::Native => None,
        }
    }

    fn describe(
        &self,
        kind: FlowKind,
        index: u32,
        stack: &Stack,
        now: Instant,
    ) -> Option<Described> {
        match kind {
            FlowKind::Tcp => self.tcp.describe(index, stack, now),
            FlowKind::Udp => self.udp.describe(index),
            FlowKind::Echo => self.pings.describe(index),
            FlowKind::Joined => self.joined.describe(index),
            FlowKind::JoinedUdp => self.joined_udp.describe(index),
            FlowKind::Native => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::START + Duration::from_millis(millis)
    }

    /// Goal: bytes count from the last visit of the same flow; a flow that took the place of
    /// another counts from its beginning.
    #[test]
    fn what_a_flow_has_moved_since_the_last_visit() {
        let mut visits = Visits::default();
        let flow = |generation, bytes_out, bytes_in| Visited {
            generation,
            begun: at(5),
            bytes_out,
            bytes_in,
        };
        let mut visit = |index, visited: Visited, millis| {
            visits.visit(FlowKind::Udp, index, &visited, at(millis))
        };
        assert_eq!(visit(3, flow(0, 10, 20), 30), (10, 20, at(5)));
        assert_eq!(visit(3, flow(0, 15, 20), 40), (5, 0, at(30)));
        assert_eq!(visit(3, flow(1, 1, 0), 50), (1, 0, at(5)), "another flow");
        assert_eq!(visit(2, flow(0, 7, 7), 60), (7, 7, at(5)), "a lower index is new as well");
        assert_eq!(visit(9, flow(0, 0, 0), 60), (0, 0, at(5)));
        assert_eq!(visits.0[FlowKind::Udp as usize].len(), 10);
        assert!(visits.0[FlowKind::Tcp as usize].is_empty());
    }
}
