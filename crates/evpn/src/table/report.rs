//! What reports show of the table.

use std::net::IpAddr;

use towpath_net::vxlan::Vni;
use towpath_net::wire::MacAddr;

use super::{Station, Table};
use crate::message::Mobility;

/// What happened to routes. Plain numbers since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Routes of types that are not used here, or with an Ethernet tag.
    pub ignored: u64,
    /// UPDATE messages with invalid attributes.
    pub malformed: u64,
    /// This host's own routes, sent back by a reflector.
    pub own: u64,
    /// Routes of networks that are not on this host.
    pub foreign: u64,
    /// Routes of a network on this host that its data plane cannot use: another VNI, encapsulation,
    /// way of flooding, IP version or autonomous system.
    pub unusable: u64,
    /// Routes not kept because of [`PATHS_MAX`](super::PATHS_MAX).
    pub full: u64,
    /// Stations that moved from another host to this one.
    pub moved_here: u64,
    /// Stations that moved from this host to another.
    pub moved_away: u64,
    /// Stations found to be duplicates.
    pub duplicates: u64,
    /// Stations seen here that another host announces as sticky.
    pub sticky: u64,
    /// Connections that were not accepted: from no neighbour, or from one that has one.
    pub refused: u64,
}

/// A station, for reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StationReport {
    /// Its network.
    pub vni: Vni,
    /// Its link-layer address.
    pub mac: MacAddr,
    /// Its VTEP; `None`: this host.
    pub vtep: Option<IpAddr>,
    /// Its IP addresses, as far as they are announced.
    pub addresses: Vec<IpAddr>,
    /// Its moves and whether it may move.
    pub mobility: Mobility,
    /// Moves to and from this host are not followed.
    pub is_duplicate: bool,
}

/// How many routes there are now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteCounts {
    /// Routes of stations (type 2) that neighbours announce and that are in use here.
    pub stations_received: usize,
    /// Routes for flooding (type 3) that neighbours announce and that are in use here.
    pub floods_received: usize,
    /// Routes of stations of this host.
    pub stations_announced: usize,
    /// Routes for flooding to this host.
    pub floods_announced: usize,
    /// Stations whose moves are not followed now, as they are duplicates.
    pub frozen: usize,
}

impl Table {
    pub(crate) fn counters(&self) -> Counters {
        self.counters
    }

    /// Walks the networks, not the stations.
    pub(crate) fn route_counts(&self) -> RouteCounts {
        let floods_received = self.networks.values().map(|network| network.flood.len()).sum();
        let floods_announced = self.networks.len();
        RouteCounts {
            stations_received: self.paths - floods_received,
            floods_received,
            stations_announced: self.own.len() - floods_announced,
            floods_announced,
            frozen: self.duplicates.len(),
        }
    }

    /// All stations, in no order.
    pub(crate) fn stations(&self) -> impl Iterator<Item = StationReport> + '_ {
        self.stations.iter().filter_map(|((vni, mac), station)| station.report(*vni, *mac))
    }

    /// Paths of a neighbour: all, and those that are stale.
    pub(crate) fn paths_of(&self, neighbor: u8) -> (usize, usize) {
        let stations = self.stations.values().flat_map(|station| &station.paths);
        let stations = stations.map(|path| (path.neighbor, path.is_stale));
        let flood = self.networks.values().flat_map(|network| &network.flood);
        let flood = flood.map(|path| (path.neighbor, path.is_stale));
        let of = stations.chain(flood).filter(|(of, _)| *of == neighbor);
        of.fold((0, 0), |(all, stale), (_, is_stale)| (all + 1, stale + usize::from(is_stale)))
    }
}

impl Station {
    fn report(&self, vni: Vni, mac: MacAddr) -> Option<StationReport> {
        let (mobility, addresses) = match &self.local {
            Some(local) => (local.mobility, &local.addresses),
            None => {
                let best = self.paths.iter().max_by_key(|path| path.rank())?;
                (best.mobility, &self.addresses)
            }
        };
        Some(StationReport {
            vni,
            mac,
            vtep: self.chosen,
            addresses: addresses.clone(),
            mobility,
            is_duplicate: self.moves.is_duplicate,
        })
    }
}
