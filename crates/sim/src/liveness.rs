//! Liveness checks: whatever can make progress does, and packets that do not arrive are accounted
//! for.
//!
//! There are three rules, checked from outside through public interfaces:
//!
//! - **Timers.** A connection with work has an armed timer, and the timer has an effect: within
//!   [`SILENCE_MAX`] the connection sends a segment, changes its state or is gone ([`Silences`]).
//! - **Calls.** A call that has to wait is notified of the end of the wait: nothing becomes ready
//!   without a notification, and no wait is longer than [`WAIT_MAX`] if the peer does its part
//!   ([`Calls`]).
//! - **Books.** A datagram that a host accepted is received, lost on a link that counts it, or
//!   dropped with a counted reason ([`missing`]).
//!
//! Calls that wait for a send are not checked with a query of readiness: the query itself would
//! make the socket notify, and would hide a missing notification.

use std::collections::HashMap;
use std::net::SocketAddr;
use towpath_net::counters::DropReason;
use towpath_net::socket::{Readiness, SocketId, Sockets};
use towpath_net::stack::Stack;
use towpath_net::tcp::{Connection, State};
use towpath_net::time::{Duration, Instant};

/// Longest time that a connection with work may be silent: twice the longest timeout (RFC 6298
/// §2.4), and some margin.
pub const SILENCE_MAX: Duration = Duration::from_secs(300);
/// Longest wait of a call if the peer makes progress.
pub const WAIT_MAX: Duration = Duration::from_secs(120);
/// Time between two checks of all connections.
const LOOK: Duration = Duration::from_secs(1);

/// When each connection of a host last made progress.
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
    /// Checks all connections of a host that is idle at this moment, once per interval. Returns an
    /// error, if there is one.
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

/// True if a connection has to send, or has to end without its owner.
fn has_to_do(connection: &Connection) -> bool {
    match connection.state() {
        State::Closed | State::TimeWait => false,
        State::Established | State::CloseWait => connection.unacknowledged() > 0,
        State::FinWait2 => !connection.is_owned(),
        _ => true,
    }
}

/// Calls of a host that wait, and the start of each wait.
#[derive(Default)]
pub struct Calls {
    waiting: HashMap<(SocketId, u32), Instant>,
}

impl Calls {
    /// Records that a call waits until the socket is ready for `what`: reading or writing.
    pub fn blocked(&mut self, id: SocketId, what: Readiness, now: Instant) {
        self.waiting.entry((id, what.bits())).or_insert(now);
    }

    /// Records that the waiters of a socket were notified.
    pub fn woken(&mut self, id: SocketId, what: Readiness) {
        self.waiting.retain(|(waits, bits), _| *waits != id || what.bits() & bits == 0);
    }

    /// Checks all waiting calls after all notifications were handled. Returns an error, if there is
    /// one.
    pub fn look(&self, sockets: &Sockets, now: Instant) -> Option<String> {
        for (&(id, bits), &since) in &self.waiting {
            let reads = bits == Readiness::IN.bits();
            if reads && sockets.readiness(id).contains(Readiness::IN) {
                return Some(format!("{id:?} is readable, and there was no notification"));
            }
            if !reads && now.since(since) > WAIT_MAX {
                return Some(format!("{id:?} waits since {since:?} to send"));
            }
        }
        None
    }
}

/// Number of datagrams that are unaccounted for, of `sent` ones, when none is in flight any more.
/// Links have lost `lost` of them. Drops by the hosts are accounted for, except those of frames for
/// other stations.
pub fn missing(sent: u64, received: u64, lost: u64, hosts: &[&Stack]) -> i64 {
    let drops = hosts.iter().flat_map(|stack| stack.counters().drops());
    let dropped: u64 = drops.filter(|drop| drop.0 != DropReason::NotForUs).map(|drop| drop.1).sum();
    sent as i64 - (received + lost + dropped) as i64
}
