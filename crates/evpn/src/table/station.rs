//! What the table keeps of a station and of a router that takes part in flooding.

use std::cmp::Reverse;
use std::net::IpAddr;

use towpath_net::time::{Duration, Instant};

use crate::message::Mobility;

/// Moves of a station after which it is a duplicate (RFC 7432 §15.1).
pub(super) const MOVES_MAX: u8 = 5;
/// The time within which these moves are counted (RFC 7432 §15.1).
pub(super) const MOVES_TIME: Duration = Duration::from_secs(180);
/// How long a station is remembered after its last route. A guest may be silent for as long as a
/// switch remembers it, and for some times more.
pub(super) const NUMBER_TIME: Duration = Duration::from_secs(3600);
/// Most stations without a route that are remembered: two megabytes. The one that has gone first
/// makes room.
pub(super) const NUMBERS_MAX: usize = 16_384;

#[derive(Debug)]
pub(super) struct FloodPath {
    pub(super) neighbor: u8,
    pub(super) is_stale: bool,
    pub(super) distinguisher: [u8; 8],
    pub(super) originator: IpAddr,
    pub(super) vtep: IpAddr,
}

#[derive(Debug, Default)]
pub(super) struct Station {
    pub(super) local: Option<Local>,
    pub(super) paths: Vec<Path>,
    /// What the data plane knows.
    pub(super) chosen: Option<IpAddr>,
    /// The station's IP addresses that the data plane knows.
    pub(super) addresses: Vec<IpAddr>,
    pub(super) moves: Moves,
    /// The highest sequence number so far. Other speakers ignore a route with a lower one than they
    /// last saw, also if all routes have been withdrawn since (observed: FRR 8.4).
    pub(super) highest: u32,
    /// Another host announced it last.
    pub(super) was_elsewhere: bool,
    /// Until when it is remembered, if there is no route.
    pub(super) gone_until: Option<Instant>,
}

impl Station {
    /// True if it is nowhere, and its moves are of no interest.
    pub(super) fn is_gone(&self) -> bool {
        self.local.is_none() && self.paths.is_empty() && !self.moves.is_duplicate
    }
}

/// A station of this host.
#[derive(Debug)]
pub(super) struct Local {
    pub(super) mobility: Mobility,
    pub(super) addresses: Vec<IpAddr>,
}

#[derive(Debug)]
pub(super) struct Path {
    pub(super) neighbor: u8,
    pub(super) is_stale: bool,
    pub(super) distinguisher: [u8; 8],
    pub(super) address: Option<IpAddr>,
    pub(super) vtep: IpAddr,
    pub(super) mobility: Mobility,
}

impl Path {
    pub(super) fn rank(&self) -> (Mobility, Reverse<IpAddr>) {
        (self.mobility, Reverse(self.vtep))
    }
}

/// Moves of a station to or from this host.
#[derive(Debug, Default)]
pub(super) struct Moves {
    pub(super) first: Instant,
    pub(super) count: u8,
    pub(super) is_duplicate: bool,
}

impl Moves {
    /// Counts a move; true if it makes the station a duplicate.
    pub(super) fn note(&mut self, now: Instant) -> bool {
        if self.count == 0 || now.since(self.first) > MOVES_TIME {
            (self.first, self.count) = (now, 0);
        }
        self.count += 1;
        self.is_duplicate = self.count >= MOVES_MAX;
        self.is_duplicate
    }
}
