//! The speaker: sessions with all neighbours around one table of routes.
//!
//! # Theory of operation
//!
//! Each neighbour has a list of this host's routes that it must get. A change adds the
//! route to all lists; [`Speaker::output`] writes them while the session has room. So a neighbour
//! that reads slowly gets the last state of each route, not each change, and costs no memory beyond
//! its list. A neighbour whose session is new gets all routes, and then the mark that they are
//! complete (RFC 4724 §2). Routes of neighbours are never passed on: that is what reflectors do.
//!
//! The owner does this for each neighbour, in one thread: connect if
//! [`Speaker::wants_connection`]; then [`Speaker::connected`], [`Speaker::receive`],
//! [`Speaker::output`] with [`Speaker::sent`], and [`Speaker::closed`] at the end. When
//! [`Speaker::is_connected`] has become false, it sends the rest of the output and closes.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use towpath_net::time::{Duration, Instant, earliest};
use towpath_net::vxlan::Vni;
use towpath_net::vxlan::remotes::Change;
use towpath_net::wire::MacAddr;

use crate::message::{self, Mobility, ROUTES_PER_UPDATE, RouteKey};
use crate::session::{self, Event, RETRY, Reason, Session, Settings, State};
use crate::table::{Counters, LearnError, OwnRoute, RouteCounts, StationReport, Table};

/// Most neighbours: reflectors of two sites, or a small full mesh.
pub const NEIGHBORS_MAX: usize = 16;
/// How long stale routes of a neighbour stay after it has sent all its routes: a reflector that has
/// just started has those of the hosts that are back, which takes the others up to [`RETRY`].
pub(crate) const SETTLE: Duration = Duration::from_secs(10);
const _: () = assert!(SETTLE.as_secs() >= 2 * RETRY.as_secs());

/// What a speaker needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Number of the autonomous system, and the times of sessions.
    pub settings: Settings,
    /// Address of this host's VTEP.
    pub vtep: IpAddr,
    /// Number of neighbours, at most [`NEIGHBORS_MAX`].
    pub neighbors: usize,
}

/// A BGP speaker.
#[derive(Debug)]
pub struct Speaker {
    neighbors: Vec<Neighbor>,
    table: Table,
}

#[derive(Debug)]
struct Neighbor {
    session: Session,
    /// Routes of this host that the neighbour must get.
    pending: BTreeSet<OwnRoute>,
    /// The mark of the end follows the pending routes.
    owes_end: bool,
    /// When stale routes of the neighbour are removed.
    stale_until: Option<Instant>,
}

/// A neighbour, for reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeighborReport {
    /// State of the session.
    pub state: State,
    /// When it changed.
    pub since: Instant,
    /// BGP identifier of the neighbour, once it is known.
    pub router_id: Option<Ipv4Addr>,
    /// Why the last session ended.
    pub reason: Option<String>,
    /// Its routes that are in use here.
    pub routes: usize,
    /// Those of them that a former session left.
    pub stale: usize,
    /// Messages.
    pub messages: session::Counters,
}

impl Speaker {
    /// A speaker without networks and stations.
    ///
    /// # Panics
    ///
    /// There are more than [`NEIGHBORS_MAX`] neighbours.
    pub fn new(config: Config, now: Instant) -> Self {
        assert!(config.neighbors <= NEIGHBORS_MAX, "the configuration was checked");
        let Settings { router_id, as_number, .. } = config.settings;
        let neighbor = || Neighbor {
            session: Session::new(config.settings, now),
            pending: BTreeSet::new(),
            owes_end: false,
            stale_until: None,
        };
        Self {
            neighbors: (0..config.neighbors).map(|_| neighbor()).collect(),
            table: Table::new(config.vtep, router_id, as_number),
        }
    }

    /// Adds a network. False: it is there, or there are
    /// [`NETWORKS_MAX`](crate::NETWORKS_MAX) networks.
    pub fn add_network(&mut self, vni: Vni, now: Instant) -> bool {
        let is_added = self.table.add_network(vni);
        if is_added {
            self.spread();
            for neighbor in &mut self.neighbors {
                // Routes of the network that came before were not kept. A neighbour that cannot
                // resend them tells the new ones.
                let _ = neighbor.session.request_refresh(now);
            }
        }
        is_added
    }

    /// Removes a network: its routes are withdrawn. The data plane gets no changes of it any more.
    pub fn remove_network(&mut self, vni: Vni) {
        if self.table.remove_network(vni) {
            self.spread();
        }
    }

    /// A station of a network is on this host, and has these IP addresses and no other. A sticky
    /// station never moves.
    ///
    /// # Errors
    ///
    /// The station is not announced; [`LearnError`] says why.
    pub fn learn(
        &mut self,
        vni: Vni,
        mac: MacAddr,
        addresses: &[IpAddr],
        is_sticky: bool,
        now: Instant,
    ) -> Result<(), LearnError> {
        self.table.learn(vni, mac, addresses, is_sticky, now)?;
        self.spread();
        Ok(())
    }

    /// A station is no longer on this host.
    pub fn forget(&mut self, vni: Vni, mac: MacAddr, now: Instant) {
        self.table.forget(vni, mac, now);
        self.spread();
    }

    /// State of the session with a neighbour.
    pub fn state(&self, neighbor: usize) -> State {
        self.neighbors[neighbor].session.state()
    }

    /// Why the last session with a neighbour ended.
    pub fn reason(&self, neighbor: usize) -> Option<&Reason> {
        self.neighbors[neighbor].session.reason()
    }

    /// True while the owner should have, or open, a TCP connection to this neighbour.
    pub fn wants_connection(&self, neighbor: usize) -> bool {
        self.neighbors[neighbor].session.state() != State::Idle
    }

    /// True while the connection to this neighbour is in use.
    pub fn is_connected(&self, neighbor: usize) -> bool {
        self.neighbors[neighbor].session.is_connected()
    }

    /// The connection to a neighbour is open.
    pub fn connected(&mut self, neighbor: usize, now: Instant) {
        self.neighbors[neighbor].session.connected(now);
    }

    /// The connection to a neighbour has failed or ended.
    pub fn closed(&mut self, neighbor: usize, now: Instant) {
        self.neighbors[neighbor].session.closed(now);
        self.handle_events(neighbor, now);
    }

    /// Takes bytes of a neighbour.
    pub fn receive(&mut self, neighbor: usize, bytes: &[u8], now: Instant) {
        self.neighbors[neighbor].session.receive(bytes, now);
        self.handle_events(neighbor, now);
    }

    /// Bytes for a neighbour.
    pub fn output(&mut self, neighbor: usize, now: Instant) -> &[u8] {
        let neighbor = &mut self.neighbors[neighbor];
        neighbor.write_routes(&self.table, now);
        neighbor.session.output()
    }

    /// The first `len` bytes of a neighbour's output were sent.
    pub fn sent(&mut self, neighbor: usize, len: usize, now: Instant) {
        self.neighbors[neighbor].session.sent(len, now);
    }

    /// Ends all sessions. The owner sends what output is left.
    pub fn shut_down(&mut self, now: Instant) {
        for neighbor in &mut self.neighbors {
            neighbor.session.shut_down(now);
        }
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Instant) {
        self.table.tick(now);
        for index in 0..self.neighbors.len() {
            let neighbor = &mut self.neighbors[index];
            neighbor.session.tick(now);
            if neighbor.stale_until.is_some_and(|until| until <= now) {
                neighbor.stale_until = None;
                self.table.sweep(index as u8, true, now);
            }
            self.handle_events(index, now);
        }
        self.spread();
    }

    /// When [`tick`](Self::tick) has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        let of =
            |neighbor: &Neighbor| earliest([neighbor.session.deadline(), neighbor.stale_until]);
        let sessions = self.neighbors.iter().filter_map(of).min();
        earliest([sessions, self.table.deadline()])
    }

    /// What the data plane must change since the last call, in this order.
    pub fn take_changes(&mut self) -> Vec<(Vni, Change)> {
        self.table.take_changes()
    }

    /// What happened to routes.
    pub fn counters(&self) -> Counters {
        self.table.counters()
    }

    /// How many routes there are now.
    pub fn route_counts(&self) -> RouteCounts {
        self.table.route_counts()
    }

    /// Messages of the session with a neighbour.
    pub fn messages(&self, neighbor: usize) -> session::Counters {
        self.neighbors[neighbor].session.counters()
    }

    /// A neighbour, for reports. Walks all routes.
    pub fn neighbor(&self, neighbor: usize) -> NeighborReport {
        let session = &self.neighbors[neighbor].session;
        let (routes, stale) = self.table.paths_of(neighbor as u8);
        NeighborReport {
            state: session.state(),
            since: session.since(),
            router_id: session.peer().map(|peer| peer.router_id),
            reason: session.reason().map(ToString::to_string),
            routes,
            stale,
            messages: session.counters(),
        }
    }

    /// All stations, here and elsewhere, in no order; for reports.
    pub fn stations(&self) -> impl Iterator<Item = StationReport> + '_ {
        self.table.stations()
    }

    fn handle_events(&mut self, index: usize, now: Instant) {
        while let Some(event) = self.neighbors[index].session.next_event() {
            let neighbor = &mut self.neighbors[index];
            match event {
                Event::Established => neighbor.start_over(&self.table),
                Event::Refresh => neighbor.pending.extend(self.table.own().keys()),
                Event::Update(update) => {
                    self.table.update(index as u8, &update, now);
                    let stale_until = &mut self.neighbors[index].stale_until;
                    if update.is_end_of_rib && stale_until.is_some() {
                        *stale_until = earliest([*stale_until, Some(now + SETTLE)]);
                    }
                }
                Event::Down(keep) => {
                    neighbor.pending.clear();
                    neighbor.stale_until = keep.map(|keep| now + keep);
                    match keep {
                        // RFC 4724 §4.2: paths that are stale already are removed.
                        Some(_) => {
                            self.table.sweep(index as u8, true, now);
                            self.table.mark_stale(index as u8);
                        }
                        None => self.table.sweep(index as u8, false, now),
                    }
                }
            }
        }
        self.spread();
    }

    /// Tells all neighbours about routes that changed.
    fn spread(&mut self) {
        let touched = self.table.take_touched();
        for neighbor in &mut self.neighbors {
            if neighbor.session.state() == State::Established {
                neighbor.pending.extend(&touched);
            }
        }
    }
}

impl Neighbor {
    fn start_over(&mut self, table: &Table) {
        self.pending = table.own().keys().copied().collect();
        self.owes_end = true;
    }

    /// Writes pending routes while there is room.
    fn write_routes(&mut self, table: &Table, now: Instant) {
        if self.session.state() != State::Established {
            return;
        }
        while !self.session.is_output_full() {
            let Some(first) = self.pending.first().copied() else { break };
            let mobility = table.own().get(&first).copied();
            let batch = self.take_batch(&first, mobility, table);
            let Some(mobility) = mobility else {
                self.session.send_update(now, |out| message::withdraw(&batch, out));
                continue;
            };
            let attributes = table.attributes(&first, mobility);
            let vni = first.vni.number();
            let routes: Vec<_> = batch.into_iter().map(|key| (key, vni)).collect();
            self.session.send_update(now, |out| message::announce(&attributes, &routes, out));
        }
        if self.pending.is_empty() && std::mem::take(&mut self.owes_end) {
            self.session.send_update(now, |out| message::withdraw(&[], out));
        }
    }

    /// Takes pending routes that go into one message with the first one: those that follow it and
    /// have the same attributes, or are withdrawn as it is.
    fn take_batch(
        &mut self,
        first: &OwnRoute,
        mobility: Option<Mobility>,
        table: &Table,
    ) -> Vec<RouteKey> {
        let goes_along = |route: &OwnRoute| {
            let same_attributes =
                route.vni == first.vni && route.station.is_some() == first.station.is_some();
            table.own().get(route).copied() == mobility && (mobility.is_none() || same_attributes)
        };
        let mut batch = Vec::new();
        while let Some(route) = self.pending.first()
            && goes_along(route)
            && batch.len() < ROUTES_PER_UPDATE
        {
            batch.push(table.key(route));
            self.pending.pop_first();
        }
        batch
    }
}

#[cfg(test)]
mod tests;
