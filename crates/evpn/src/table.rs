//! Routes of this host and of its neighbours, and what follows from them for the data plane.
//!
//! # Theory of operation
//!
//! A *network* is a VNI. A station of it has *paths*, one for each route that a neighbour announced
//! and that has the network's route target, and possibly a place on this host. [`Table::settle`]
//! compares them after each change: a sticky station precedes one that moves, the higher sequence
//! number precedes the lower, then the lower address of the VTEP (RFC 7432 §15). If the station is
//! here, its routes are announced; otherwise the data plane gets the best path's VTEP.
//!
//! A station that appears here while another host announces it has moved: this host announces it
//! with the next sequence number, and the other host withdraws its route. After
//! [`station::MOVES_MAX`] moves within [`station::MOVES_TIME`] (RFC 7432 §15.1) the station is a
//! *duplicate*: moves to or from this host are not followed for [`DUPLICATE_TIME`].
//!
//! A station is remembered for [`station::NUMBER_TIME`] after its last route: one that comes back
//! continues with its number, and at another host with the next one.
//!
//! Paths of a neighbour whose session has ended may stay as *stale* paths, until the neighbour has
//! sent all its routes again.
//!
//! Routes without the route target of a network here are not kept. When a network is added, the
//! neighbours are asked for all routes again.
//!
//! # Limits
//!
//! [`PATHS_MAX`] paths, [`NETWORKS_MAX`] networks. Routes beyond are counted and not kept, and
//! their stations are reached as unknown ones are. One thread.

mod import;
mod report;
mod station;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};

use towpath_net::time::{Duration, Instant};
use towpath_net::vxlan::Vni;
use towpath_net::vxlan::remotes::Change;
use towpath_net::wire::MacAddr;

use crate::message::{Attributes, Mobility, Route, RouteKey, Update};
use station::{FloodPath, Local, Moves, NUMBER_TIME, NUMBERS_MAX, Path, Station};

pub use report::{Counters, RouteCounts, StationReport};

/// Most paths of all neighbours: two reflectors and 131,072 routes, of 65,536 stations with an IP
/// address each. A path takes about 100 bytes with its share of the station.
pub const PATHS_MAX: usize = 2 * 131_072;
/// Most networks: one for each of a switch's usual VLANs. Each withdrawal is looked up in all.
pub const NETWORKS_MAX: usize = 64;
/// How long moves of a duplicate are not followed. RFC 7432 §15.1 leaves it to an operator to end
/// this.
pub(crate) const DUPLICATE_TIME: Duration = Duration::from_secs(180);

/// A route of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OwnRoute {
    pub(crate) vni: Vni,
    /// The network's number in the route distinguisher.
    pub(crate) number: u16,
    /// `None`: the route for flooding.
    pub(crate) station: Option<(MacAddr, Option<IpAddr>)>,
}

/// Why a station of this host is not announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LearnError {
    /// There is no such network.
    UnknownNetwork,
    /// It is no address of one station.
    NotStation,
    /// Another host announces it as one that never moves.
    Sticky,
    /// It moves to and fro: two stations have the address.
    Duplicate,
}

/// Everything that is known about routes.
#[derive(Debug)]
pub(crate) struct Table {
    vtep: IpAddr,
    router_id: Ipv4Addr,
    as_number: u32,
    networks: BTreeMap<Vni, Network>,
    stations: HashMap<(Vni, MacAddr), Station>,
    /// The stations of other hosts that have an IP address, the lowest first. It should be one; the
    /// data plane gets the first, as do those of all other hosts.
    owners: HashMap<(Vni, IpAddr), Vec<MacAddr>>,
    own: BTreeMap<OwnRoute, Mobility>,
    /// Own routes that changed.
    touched: Vec<OwnRoute>,
    changes: Vec<(Vni, Change)>,
    /// Duplicates, and when moves are followed again; the earliest first.
    duplicates: VecDeque<(Instant, (Vni, MacAddr))>,
    /// Stations that are gone, and until when they are remembered; the earliest first.
    gone: VecDeque<(Instant, (Vni, MacAddr))>,
    paths: usize,
    /// The number of the next network. One that was used lately must not be used again, as a
    /// neighbour may not know yet that routes with it are gone.
    next_number: u16,
    counters: Counters,
}

#[derive(Debug)]
struct Network {
    number: u16,
    flood: Vec<FloodPath>,
}

impl Table {
    pub(crate) fn new(vtep: IpAddr, router_id: Ipv4Addr, as_number: u32) -> Self {
        Self {
            vtep,
            router_id,
            as_number,
            networks: BTreeMap::new(),
            stations: HashMap::new(),
            owners: HashMap::new(),
            own: BTreeMap::new(),
            touched: Vec::new(),
            changes: Vec::new(),
            duplicates: VecDeque::new(),
            gone: VecDeque::new(),
            paths: 0,
            next_number: 1,
            counters: Counters::default(),
        }
    }

    /// Adds a network; false if there are too many, or it is there.
    pub(crate) fn add_network(&mut self, vni: Vni) -> bool {
        if self.networks.len() >= NETWORKS_MAX || self.networks.contains_key(&vni) {
            return false;
        }
        let next = |number: u16| number.checked_add(1).unwrap_or(1);
        while self.networks.values().any(|network| network.number == self.next_number) {
            self.next_number = next(self.next_number);
        }
        let number = self.next_number;
        self.next_number = next(number);
        self.networks.insert(vni, Network { number, flood: Vec::new() });
        self.own_changed(OwnRoute { vni, number, station: None }, Some(Mobility::default()));
        true
    }

    /// Removes a network. Its routes are withdrawn; the data plane gets no changes, as its end of
    /// the network is gone. False if it was not there.
    pub(crate) fn remove_network(&mut self, vni: Vni) -> bool {
        let Some(network) = self.networks.remove(&vni) else { return false };
        self.paths -= network.flood.len();
        let stations = self.stations.extract_if(|(of, _), _| *of == vni);
        self.paths -= stations.map(|(_, station)| station.paths.len()).sum::<usize>();
        self.owners.retain(|(of, _), _| *of != vni);
        self.duplicates.retain(|(_, (of, _))| *of != vni);
        self.gone.retain(|(_, (of, _))| *of != vni);
        self.changes.retain(|(of, _)| *of != vni);
        let own: Vec<OwnRoute> = self.own.keys().filter(|of| of.vni == vni).copied().collect();
        own.into_iter().for_each(|route| self.own_changed(route, None));
        true
    }

    /// A station is on this host, with these IP addresses.
    pub(crate) fn learn(
        &mut self,
        vni: Vni,
        mac: MacAddr,
        addresses: &[IpAddr],
        is_sticky: bool,
        now: Instant,
    ) -> Result<(), LearnError> {
        if !self.networks.contains_key(&vni) {
            return Err(LearnError::UnknownNetwork);
        }
        if !mac.is_unicast() {
            return Err(LearnError::NotStation);
        }
        let key = (vni, mac);
        let station = self.stations.entry(key).or_default();
        if let Some(local) = &mut station.local {
            local.mobility.is_sticky = is_sticky;
            local.addresses = addresses.to_vec();
        } else {
            let mut sequence = station.highest;
            if station.was_elsewhere {
                sequence = sequence.saturating_add(1);
            }
            if let Some(best) = station.paths.iter().max_by_key(|path| path.rank()) {
                if best.mobility.is_sticky && !is_sticky {
                    self.counters.sticky += 1;
                    return Err(LearnError::Sticky);
                }
                // A move of a duplicate is not followed.
                let is_duplicate = station.moves.is_duplicate;
                if is_duplicate || station.moves.note(now) {
                    if !is_duplicate {
                        self.counters.duplicates += 1;
                        self.duplicates.push_back((now + DUPLICATE_TIME, key));
                    }
                    return Err(LearnError::Duplicate);
                }
            }
            self.counters.moved_here += u64::from(station.was_elsewhere);
            (station.highest, station.was_elsewhere) = (sequence, false);
            let mobility = Mobility { is_sticky, sequence };
            station.local = Some(Local { mobility, addresses: addresses.to_vec() });
        }
        self.announce(key);
        self.settle(key, now);
        Ok(())
    }

    /// A station is no longer on this host.
    pub(crate) fn forget(&mut self, vni: Vni, mac: MacAddr, now: Instant) {
        let key = (vni, mac);
        let Some(station) = self.stations.get_mut(&key) else { return };
        if station.local.take().is_some() {
            self.withdraw(key);
        }
        self.settle(key, now);
    }

    /// Takes routes of a neighbour.
    pub(crate) fn update(&mut self, neighbor: u8, update: &Update, now: Instant) {
        self.counters.ignored += u64::from(update.ignored);
        self.counters.malformed += u64::from(update.is_malformed);
        for key in &update.withdrawn {
            self.remove(neighbor, key, None, now);
        }
        let Some(attributes) = &update.attributes else { return };
        for (key, vni) in &update.announced {
            let network = self.import(key, *vni, attributes);
            // The route may have been in another network.
            self.remove(neighbor, key, network, now);
            if let Some(network) = network {
                self.insert(neighbor, key, network, attributes, now);
            }
        }
    }

    /// All paths of a neighbour become stale.
    pub(crate) fn mark_stale(&mut self, neighbor: u8) {
        for path in self.stations.values_mut().flat_map(|station| &mut station.paths) {
            path.is_stale |= path.neighbor == neighbor;
        }
        for path in self.networks.values_mut().flat_map(|network| &mut network.flood) {
            path.is_stale |= path.neighbor == neighbor;
        }
    }

    /// Removes paths of a neighbour, or only the stale ones.
    pub(crate) fn sweep(&mut self, neighbor: u8, only_stale: bool, now: Instant) {
        let is_gone = |of: u8, is_stale: bool| of == neighbor && (is_stale || !only_stale);
        let mut affected = Vec::new();
        for (key, station) in &mut self.stations {
            let before = station.paths.len();
            station.paths.retain(|path| !is_gone(path.neighbor, path.is_stale));
            if station.paths.len() < before {
                self.paths -= before - station.paths.len();
                affected.push(*key);
            }
        }
        // In the order of addresses, so that the same input gives the same output.
        affected.sort_unstable();
        for key in affected {
            self.settle(key, now);
        }
        for (vni, network) in &mut self.networks {
            let gone = network.flood.extract_if(.., |path| is_gone(path.neighbor, path.is_stale));
            let gone: Vec<IpAddr> = gone.map(|path| path.vtep).collect();
            self.paths -= gone.len();
            for vtep in gone {
                if !network.flood.iter().any(|path| path.vtep == vtep) {
                    self.changes.push((*vni, Change::DelFlood(vtep)));
                }
            }
        }
    }

    /// Follows moves of duplicates again whose time is over, and forgets stations that are gone.
    pub(crate) fn tick(&mut self, now: Instant) {
        self.forget_gone(now);
        while let Some((_, key)) = self.duplicates.front().copied().filter(|(at, _)| *at <= now) {
            self.duplicates.pop_front();
            if let Some(station) = self.stations.get_mut(&key) {
                station.moves = Moves::default();
                self.settle(key, now);
            }
        }
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.duplicates.front().map(|(at, _)| *at)
    }

    /// Routes of this host.
    pub(crate) fn own(&self) -> &BTreeMap<OwnRoute, Mobility> {
        &self.own
    }

    /// Routes of this host that changed since the last call.
    pub(crate) fn take_touched(&mut self) -> Vec<OwnRoute> {
        std::mem::take(&mut self.touched)
    }

    /// What the data plane must change, in this order.
    pub(crate) fn take_changes(&mut self) -> Vec<(Vni, Change)> {
        std::mem::take(&mut self.changes)
    }

    /// The key of a route of this host.
    pub(crate) fn key(&self, route: &OwnRoute) -> RouteKey {
        // RFC 4364 §4.2, type 1: the router and a number that it assigns.
        let [a, b, c, d] = self.router_id.octets();
        let [high, low] = route.number.to_be_bytes();
        RouteKey {
            distinguisher: [0, 1, a, b, c, d, high, low],
            route: match route.station {
                Some((mac, address)) => Route::Station(mac, address),
                None => Route::Flood(self.vtep),
            },
        }
    }

    /// The attributes of a route of this host.
    pub(crate) fn attributes(&self, route: &OwnRoute, mobility: Mobility) -> Attributes {
        Attributes {
            next_hop: self.vtep,
            targets: vec![self.target(route.vni)],
            mobility,
            is_vxlan: true,
            replicates: route.station.is_none(),
            flood_vni: route.vni.number(),
            originator: None,
            has_as_path: false,
        }
    }

    fn insert(
        &mut self,
        neighbor: u8,
        key: &RouteKey,
        vni: Vni,
        attributes: &Attributes,
        now: Instant,
    ) {
        let distinguisher = key.distinguisher;
        let vtep = attributes.next_hop;
        let is_full = self.paths >= PATHS_MAX;
        match key.route {
            Route::Station(mac, address) => {
                let station = self.stations.entry((vni, mac)).or_default();
                let path = Path {
                    neighbor,
                    is_stale: false,
                    distinguisher,
                    address,
                    vtep,
                    mobility: attributes.mobility,
                };
                station.highest = station.highest.max(attributes.mobility.sequence);
                station.was_elsewhere = true;
                let same = |path: &&mut Path| {
                    (path.neighbor, path.distinguisher, path.address)
                        == (neighbor, distinguisher, address)
                };
                if let Some(known) = station.paths.iter_mut().find(same) {
                    *known = path;
                } else if is_full {
                    self.counters.full += 1;
                } else {
                    // Most stations have as many paths as there are reflectors: one or two.
                    station.paths.reserve_exact(1);
                    station.paths.push(path);
                    self.paths += 1;
                }
                self.settle((vni, mac), now);
            }
            Route::Flood(originator) => {
                let Some(network) = self.networks.get_mut(&vni) else { return };
                let path = FloodPath { neighbor, is_stale: false, distinguisher, originator, vtep };
                let is_known = network.flood.iter().any(|path| path.vtep == vtep);
                let same = |path: &&mut FloodPath| {
                    (path.neighbor, path.distinguisher, path.originator)
                        == (neighbor, distinguisher, originator)
                };
                if let Some(known) = network.flood.iter_mut().find(same) {
                    let before = std::mem::replace(known, path).vtep;
                    if !network.flood.iter().any(|path| path.vtep == before) {
                        self.changes.push((vni, Change::DelFlood(before)));
                    }
                } else if is_full {
                    self.counters.full += 1;
                    return;
                } else {
                    network.flood.push(path);
                    self.paths += 1;
                }
                if !is_known {
                    self.changes.push((vni, Change::AddFlood(vtep)));
                }
            }
        }
    }

    /// Removes a neighbour's route from all networks but one.
    fn remove(&mut self, neighbor: u8, key: &RouteKey, except: Option<Vni>, now: Instant) {
        let distinguisher = key.distinguisher;
        let mut emptied = Vec::new();
        for (vni, network) in &mut self.networks {
            if Some(*vni) == except {
                continue;
            }
            match key.route {
                Route::Station(mac, address) => {
                    let Some(station) = self.stations.get_mut(&(*vni, mac)) else { continue };
                    let found = station.paths.iter().position(|path| {
                        (path.neighbor, path.distinguisher, path.address)
                            == (neighbor, distinguisher, address)
                    });
                    if let Some(index) = found {
                        station.paths.swap_remove(index);
                        self.paths -= 1;
                        emptied.push((*vni, mac));
                    }
                }
                Route::Flood(originator) => {
                    let found = network.flood.iter().position(|path| {
                        (path.neighbor, path.distinguisher, path.originator)
                            == (neighbor, distinguisher, originator)
                    });
                    if let Some(index) = found {
                        let vtep = network.flood.swap_remove(index).vtep;
                        self.paths -= 1;
                        if !network.flood.iter().any(|path| path.vtep == vtep) {
                            self.changes.push((*vni, Change::DelFlood(vtep)));
                        }
                    }
                }
            }
        }
        for key in emptied {
            self.settle(key, now);
        }
    }

    /// Decides where a station is.
    fn settle(&mut self, key: (Vni, MacAddr), now: Instant) {
        let (vni, mac) = key;
        let Some(station) = self.stations.get_mut(&key) else { return };
        let best = station.paths.iter().max_by_key(|path| path.rank());
        if let (Some(local), Some(best)) = (&station.local, best)
            && best.rank() > (local.mobility, Reverse(self.vtep))
            && !station.moves.is_duplicate
        {
            if station.moves.note(now) {
                self.counters.duplicates += 1;
                self.duplicates.push_back((now + DUPLICATE_TIME, key));
            } else {
                self.counters.moved_away += 1;
                station.local = None;
                self.withdraw(key);
            }
        }
        let Some(station) = self.stations.get_mut(&key) else { return };
        let best = station.paths.iter().max_by_key(|path| path.rank());
        let chosen = best.filter(|_| station.local.is_none()).map(|path| path.vtep);
        if chosen != station.chosen {
            let change = match chosen {
                Some(remote) => Change::AddStation { mac, remote },
                None => Change::DelStation(mac),
            };
            self.changes.push((vni, change));
            station.chosen = chosen;
        }
        let at_best = station.paths.iter().filter(|path| Some(path.vtep) == chosen);
        let mut addresses: Vec<IpAddr> = at_best.filter_map(|path| path.address).collect();
        addresses.sort_unstable();
        addresses.dedup();
        let before = std::mem::replace(&mut station.addresses, addresses);
        let after = &station.addresses;
        let gone = before.iter().filter(|address| !after.contains(address));
        let new = after.iter().filter(|address| !before.contains(address));
        for (address, has) in gone.map(|of| (*of, false)).chain(new.map(|of| (*of, true))) {
            let owners = self.owners.entry((vni, address)).or_default();
            let first = owners.first().copied();
            match owners.binary_search(&mac) {
                Err(at) if has => owners.insert(at, mac),
                Ok(at) if !has => drop(owners.remove(at)),
                _ => {}
            }
            let change = match owners.first().copied() {
                now if now == first => None,
                Some(mac) => Some(Change::AddAddress { address, mac }),
                None => Some(Change::DelAddress(address)),
            };
            if owners.is_empty() {
                self.owners.remove(&(vni, address));
            }
            self.changes.extend(change.map(|change| (vni, change)));
        }
        station.gone_until = None;
        if station.is_gone() {
            let until = now + NUMBER_TIME;
            station.gone_until = Some(until);
            self.gone.push_back((until, key));
            self.forget_gone(now);
        }
    }

    /// Forgets stations that have been gone for long, or that are too many.
    fn forget_gone(&mut self, now: Instant) {
        while let Some((until, key)) = self.gone.front().copied()
            && (until <= now || self.gone.len() > NUMBERS_MAX)
        {
            self.gone.pop_front();
            // It may have come back, and gone again later.
            if self.stations.get(&key).is_some_and(|of| of.gone_until == Some(until)) {
                self.stations.remove(&key);
            }
        }
    }

    /// Makes the routes of a station of this host what they must be.
    fn announce(&mut self, key: (Vni, MacAddr)) {
        let Some(local) = self.stations.get(&key).and_then(|station| station.local.as_ref()) else {
            return;
        };
        let (mobility, number) = (local.mobility, self.networks[&key.0].number);
        let wanted: Vec<OwnRoute> = std::iter::once(None)
            .chain(local.addresses.iter().copied().map(Some))
            .map(|address| OwnRoute { vni: key.0, number, station: Some((key.1, address)) })
            .collect();
        for route in self.own_of(key) {
            if !wanted.contains(&route) {
                self.own_changed(route, None);
            }
        }
        for route in wanted {
            self.own_changed(route, Some(mobility));
        }
    }

    fn withdraw(&mut self, key: (Vni, MacAddr)) {
        for route in self.own_of(key) {
            self.own_changed(route, None);
        }
    }

    /// Routes of a station that are announced.
    fn own_of(&self, (vni, mac): (Vni, MacAddr)) -> Vec<OwnRoute> {
        let Some(Network { number, .. }) = self.networks.get(&vni) else { return Vec::new() };
        let first = OwnRoute { vni, number: *number, station: Some((mac, None)) };
        let is_of =
            |route: &OwnRoute| route.vni == vni && route.station.is_some_and(|(of, _)| of == mac);
        self.own.range(first..).map(|(route, _)| *route).take_while(is_of).collect()
    }

    fn own_changed(&mut self, route: OwnRoute, mobility: Option<Mobility>) {
        let before = match mobility {
            Some(mobility) => self.own.insert(route, mobility),
            None => self.own.remove(&route),
        };
        if before != mobility {
            self.touched.push(route);
        }
    }
}

#[cfg(test)]
mod tests;
