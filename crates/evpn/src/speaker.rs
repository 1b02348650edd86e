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
//!
//! **Collisions (RFC 4271 §6.8).** A neighbour may connect, too ([`Speaker::accept`]). So it may
//! have two connections, of which at most one was opened by this host and one by the neighbour
//! ([`Link`]). The second one is the *rival*. Once the neighbour has introduced itself on both, one
//! ends: a rival of an established session, and otherwise the one that the host with the lower
//! BGP identifier has opened. A rival whose neighbour has introduced itself, while it has not on
//! the other one, takes its place.
//!
//! **Restarts (RFC 4724 §4.2).** A neighbour that has crashed and is back knows nothing of the
//! connection that it had opened before, which looks alive here until the hold time is over. So it
//! may open another one. Once it has introduced itself there, this one takes the place of the first
//! one, also of an established session if the neighbour has the capability for graceful restart.
//! Its routes stay as after any other end of such a session. RFC 4724 §5 ends the first session
//! when the TCP connection is there; here this takes a valid OPEN message as well, so that it takes
//! more than the neighbour's address to end it.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use towpath_net::time::{Duration, Instant, earliest};
use towpath_net::vxlan::Vni;
use towpath_net::vxlan::remotes::Change;
use towpath_net::wire::MacAddr;

use crate::message::{self, Mobility, ROUTES_PER_UPDATE, RouteKey};
use crate::session::{self, Event, Link, RETRY, Reason, Session, Settings, State};
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
    settings: Settings,
    neighbors: Vec<Neighbor>,
    table: Table,
    /// Connections that were not accepted.
    refused: u64,
}

#[derive(Debug)]
struct Neighbor {
    session: Session,
    /// A second connection, with the other [`Link`]; or what is left to send of one.
    rival: Option<Session>,
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
            rival: None,
            pending: BTreeSet::new(),
            owes_end: false,
            stale_until: None,
        };
        Self {
            settings: config.settings,
            neighbors: (0..config.neighbors).map(|_| neighbor()).collect(),
            table: Table::new(config.vtep, router_id, as_number),
            refused: 0,
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

    /// True while the owner should have a TCP connection of this kind to this neighbour, or open
    /// one.
    pub fn wants_connection(&self, neighbor: usize, link: Link) -> bool {
        let session = self.neighbors[neighbor].on(link);
        session.is_some_and(|session| !matches!(session.state(), State::Idle | State::Active))
    }

    /// True while the connection to this neighbour is in use.
    pub fn is_connected(&self, neighbor: usize, link: Link) -> bool {
        self.neighbors[neighbor].on(link).is_some_and(Session::is_connected)
    }

    /// The connection that this host opened to a neighbour is open.
    pub fn connected(&mut self, neighbor: usize, now: Instant) {
        if let Some(session) = self.neighbors[neighbor].on_mut(Link::Opened) {
            session.connected(now);
        }
    }

    /// A neighbour has connected. Returns which of its connections this is, from now on; it takes
    /// the place of an earlier one on which the neighbour has said nothing. `None`: it has a
    /// session already, and this connection is to be closed.
    pub fn accept(&mut self, neighbor: usize, now: Instant) -> Option<Link> {
        let neighbor = &mut self.neighbors[neighbor];
        if neighbor.session.link().is_accepted() {
            if !neighbor.session.is_connected() {
                neighbor.session.let_go();
            } else if !neighbor.may_be_replaced() {
                self.refuse();
                return None;
            }
        }
        let link = match neighbor.session.link() {
            Link::Accepted => Link::AcceptedAgain,
            Link::Opened | Link::AcceptedAgain => Link::Accepted,
        };
        neighbor.rival = Some(Session::accepted(self.settings, link, now));
        Some(link)
    }

    /// Counts a connection that was not accepted.
    pub fn refuse(&mut self) {
        self.refused += 1;
    }

    /// A connection to a neighbour has failed or ended.
    pub fn closed(&mut self, neighbor: usize, link: Link, now: Instant) {
        if let Some(session) = self.neighbors[neighbor].on_mut(link) {
            session.closed(now);
        }
        self.handle_events(neighbor, now);
    }

    /// Takes bytes of a neighbour.
    pub fn receive(&mut self, neighbor: usize, link: Link, bytes: &[u8], now: Instant) {
        if let Some(session) = self.neighbors[neighbor].on_mut(link) {
            session.receive(bytes, now);
        }
        self.handle_events(neighbor, now);
    }

    /// Bytes for a neighbour on one of its connections.
    pub fn output(&mut self, neighbor: usize, link: Link, now: Instant) -> &[u8] {
        let neighbor = &mut self.neighbors[neighbor];
        neighbor.write_routes(&self.table, now);
        neighbor.on(link).map_or(&[], Session::output)
    }

    /// The first `len` bytes of a connection's output were sent.
    pub fn sent(&mut self, neighbor: usize, link: Link, len: usize, now: Instant) {
        if let Some(session) = self.neighbors[neighbor].on_mut(link) {
            session.sent(len, now);
        }
    }

    /// Ends all sessions. The owner sends what output is left.
    pub fn shut_down(&mut self, now: Instant) {
        for neighbor in &mut self.neighbors {
            neighbor.session.shut_down(now);
            if let Some(rival) = &mut neighbor.rival {
                rival.shut_down(now);
            }
        }
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Instant) {
        self.table.tick(now);
        for index in 0..self.neighbors.len() {
            let neighbor = &mut self.neighbors[index];
            neighbor.session.tick(now);
            if let Some(rival) = &mut neighbor.rival {
                rival.tick(now);
            }
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
        let of = |neighbor: &Neighbor| {
            let rival = neighbor.rival.as_ref().and_then(Session::deadline);
            earliest([neighbor.session.deadline(), rival, neighbor.stale_until])
        };
        let sessions = self.neighbors.iter().filter_map(of).min();
        earliest([sessions, self.table.deadline()])
    }

    /// What the data plane must change since the last call, in this order.
    pub fn take_changes(&mut self) -> Vec<(Vni, Change)> {
        self.table.take_changes()
    }

    /// What happened to routes.
    pub fn counters(&self) -> Counters {
        Counters { refused: self.refused, ..self.table.counters() }
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
        self.neighbors[index].give_way(now);
        self.drain_events(index, now);
        if self.neighbors[index].settle(self.settings.router_id, now) {
            self.drain_events(index, now);
        }
        self.spread();
    }

    fn drain_events(&mut self, index: usize, now: Instant) {
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
    /// The session over this connection.
    fn on(&self, link: Link) -> Option<&Session> {
        let rival = self.rival.as_ref();
        [Some(&self.session), rival].into_iter().flatten().find(|session| session.link() == link)
    }

    fn on_mut(&mut self, link: Link) -> Option<&mut Session> {
        let rival = self.rival.as_mut();
        let mut both = [Some(&mut self.session), rival].into_iter().flatten();
        both.find(|session| session.link() == link)
    }

    /// True if another connection that the neighbour opens may take the place of the session: that
    /// is not established, or the neighbour restarts gracefully.
    fn may_be_replaced(&self) -> bool {
        self.session.state() != State::Established
            || self.session.peer().is_some_and(|peer| peer.restart.is_some())
    }

    /// True if the neighbour has opened both connections, the rival later: it has forgotten the
    /// session.
    fn has_connected_twice(&self) -> bool {
        let is_accepted = |session: &Session| session.link().is_accepted();
        is_accepted(&self.session) && self.rival.as_ref().is_some_and(is_accepted)
    }

    /// Ends an established session if its neighbour has introduced itself on a later connection.
    fn give_way(&mut self, now: Instant) {
        if self.session.state() == State::Established
            && self.has_connected_twice()
            && self.rival.as_ref().is_some_and(Session::has_heard)
            && self.may_be_replaced()
        {
            self.session.give_way(now);
        }
    }

    /// Decides between two connections, if there are two. True: the rival has taken the session's
    /// place. `own_id` is this host's BGP identifier.
    fn settle(&mut self, own_id: Ipv4Addr, now: Instant) -> bool {
        let is_twice = self.has_connected_twice();
        let Some(rival) = &mut self.rival else { return false };
        let wins = match (self.session.state(), rival.peer().filter(|_| rival.has_heard())) {
            // Nothing else is left.
            (State::Idle | State::Connect | State::Active, None) => {
                self.session.link().is_accepted() && rival.is_connected()
            }
            (_, None) => false,
            (State::Established, Some(_)) => false,
            (State::OpenConfirm, Some(peer)) => {
                is_twice || rival.link().is_accepted() == (own_id < peer.router_id)
            }
            (_, Some(_)) => true,
        };
        if wins {
            std::mem::swap(&mut self.session, rival);
            self.session.succeed(rival);
            if is_twice && rival.is_connected() {
                rival.give_way(now);
            }
        }
        if rival.has_heard() && self.session.has_heard() {
            rival.yield_to_other(now);
        }
        if !rival.is_connected() {
            match rival.state() == State::Idle && !rival.output().is_empty() {
                true => rival.retire(),
                false => self.rival = None,
            }
        }
        wins
    }

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
