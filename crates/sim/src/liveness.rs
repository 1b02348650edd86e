//! Judges of standing still: what can go on does, and what does not arrive is accounted for.
//!
//! Three rules, each checked from outside, by what a host shows to anybody:
//!
//! - **Timers.** A connection with something to do has a timer that is armed, and the timer does
//!   something: within [`SILENCE_MAX`] the connection sends a segment, changes its state or is gone
//!   ([`Silences`]).
//! - **Calls.** A call that was told to wait is told of the end of the wait: nothing becomes ready
//!   without a word, and no wait is longer than [`WAIT_MAX`] where the other side does its part
//!   ([`Calls`]).
//! - **Books.** A datagram that a host took is received, lost on a link that says so, or dropped
//!   for a reason that is counted ([`missing`]).
//!
//! Who waits for a send is not asked whether it is ready: to be asked is reason enough for a socket
//! to be told, and would hide that it had been forgotten.

use std::collections::HashMap;
use std::net::SocketAddr;
use towpath_net::counters::DropReason;
use towpath_net::socket::{Readiness, SocketId, Sockets};
use towpath_net::stack::Stack;
use towpath_net::tcp::{Connection, State};
use towpath_net::time::{Duration, Instant};

/// Longest that a connection with something to do may be silent: the longest timeout (RFC 6298
/// §2.4) twice, and some.
pub const SILENCE_MAX: Duration = Duration::from_secs(300);
/// Longest wait of a call where nobody else stands still.
pub const WAIT_MAX: Duration = Duration::from_secs(120);
/// Time between two looks at all connections.
const LOOK: Duration = Duration::from_secs(1);

/// When each connection of a host last did something.
#[derive(Default)]
pub struct Silences {
    seen: HashMap<(SocketAddr, SocketAddr), Seen>,
    next: Option<Instant>,
}

struct Seen {
    segments: u32,
    state: State,
    since: Instant,
}

impl Silences {
    /// Looks at all connections of a host that has nothing to do at this moment, now and then; what
    /// is wrong with one of them.
    pub fn look(&mut self, stack: &Stack, now: Instant) -> Option<String> {
        if self.next.is_some_and(|next| now < next) {
            return None;
        }
        self.next = Some(now + LOOK);
        let before = std::mem::take(&mut self.seen);
        for connection in stack.tcp_connections().filter(|connection| has_to_do(connection)) {
            let ends = (connection.local(), connection.remote());
            let what = || {
                let (state, owned) = (connection.state(), connection.is_owned());
                let bytes = connection.unacknowledged();
                format!("{} to {}: {state:?}, {bytes} bytes, owned {owned}", ends.0, ends.1)
            };
            if connection.deadline().is_none() {
                return Some(format!("no timer is armed, {}", what()));
            }
            let (segments, state) = (connection.info(now).segs_out, connection.state());
            let same = |seen: &&Seen| (seen.segments, seen.state) == (segments, state);
            let since = before.get(&ends).filter(same).map_or(now, |seen| seen.since);
            if now.since(since) > SILENCE_MAX {
                return Some(format!("silent since {since:?}, {}", what()));
            }
            self.seen.insert(ends, Seen { segments, state, since });
        }
        None
    }
}

/// Whether a connection has to send, or to end by itself.
fn has_to_do(connection: &Connection) -> bool {
    match connection.state() {
        State::Closed | State::TimeWait => false,
        State::Established | State::CloseWait => connection.unacknowledged() > 0,
        State::FinWait2 => !connection.is_owned(),
        _ => true,
    }
}

/// Calls of a host that wait, and since when.
#[derive(Default)]
pub struct Calls {
    waiting: HashMap<(SocketId, u32), Instant>,
}

impl Calls {
    /// A call was told to wait until the socket is ready for `what`: reading or writing.
    pub fn blocked(&mut self, id: SocketId, what: Readiness, now: Instant) {
        self.waiting.entry((id, what.bits())).or_insert(now);
    }

    /// A socket's waiters were told.
    pub fn woken(&mut self, id: SocketId, what: Readiness) {
        self.waiting.retain(|(waits, bits), _| *waits != id || what.bits() & bits == 0);
    }

    /// Looks when all that was told has been taken up; what is wrong.
    pub fn look(&self, sockets: &Sockets, now: Instant) -> Option<String> {
        for (&(id, bits), &since) in &self.waiting {
            let reads = bits == Readiness::IN.bits();
            if reads && sockets.readiness(id).contains(Readiness::IN) {
                return Some(format!("{id:?} may be read, and nobody was told"));
            }
            if !reads && now.since(since) > WAIT_MAX {
                return Some(format!("{id:?} waits since {since:?} to send"));
            }
        }
        None
    }
}

/// Datagrams of which nobody knows what became: of `sent` ones, when nothing is on its way any
/// more. `lost` were by links. The hosts may have dropped others, but for frames that were for
/// other stations.
pub fn missing(sent: u64, received: u64, lost: u64, hosts: &[&Stack]) -> i64 {
    let drops = hosts.iter().flat_map(|stack| stack.counters().drops());
    let dropped: u64 = drops.filter(|drop| drop.0 != DropReason::NotForUs).map(|drop| drop.1).sum();
    sent as i64 - (received + lost + dropped) as i64
}
