//! Static leases: guests with a reserved address or name, and how they are identified.

use std::collections::{HashMap, HashSet};

use super::wire::domain::DomainName;
use towpath_net::wire::MacAddr;

use super::config::{Guest, StaticLease};
use super::leases::{Client, Lease};

/// The static leases of a network, and the names of its ports, which identify some guests.
#[derive(Clone, Debug, Default)]
pub(super) struct StaticLeases {
    /// Each with a number that is not used again.
    leases: Vec<(usize, StaticLease)>,
    next_number: usize,
    ports: HashMap<u32, String>,
    /// Configured stations that have moved to another host.
    moved_away: HashSet<MacAddr>,
}

impl StaticLeases {
    /// Adds a static lease; returns its number.
    pub(super) fn add(&mut self, lease: StaticLease) -> usize {
        let number = self.next_number;
        self.next_number += 1;
        self.moved_away.retain(|mac| lease.station != Some(*mac));
        self.leases.push((number, lease));
        number
    }

    /// Removes the static lease of a guest.
    pub(super) fn remove(&mut self, guest: &Guest) -> Option<(usize, StaticLease)> {
        let at = self.leases.iter().position(|(_, lease)| lease.guest == *guest)?;
        let (number, lease) = self.leases.remove(at);
        self.moved_away.retain(|mac| lease.station != Some(*mac));
        Some((number, lease))
    }

    pub(super) fn name_port(&mut self, port: u32, name: &str) {
        self.ports.insert(port, name.to_owned());
    }

    pub(super) fn forget_port(&mut self, port: u32) {
        self.ports.remove(&port);
    }

    pub(super) fn port_name(&self, port: u32) -> Option<&str> {
        self.ports.get(&port).map(String::as_str)
    }

    pub(super) fn port_named(&self, name: &str) -> Option<u32> {
        self.ports.iter().find(|(_, other)| *other == name).map(|(port, _)| *port)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &StaticLease> {
        self.leases.iter().map(|(_, lease)| lease)
    }

    /// Returns the stations that are configured with the addresses of their leases, and the port of
    /// each. Those whose ports are not there are left out.
    pub(super) fn configured(&self) -> impl Iterator<Item = (MacAddr, &StaticLease, u32)> {
        let ports: HashMap<&str, u32> =
            self.ports.iter().map(|(port, name)| (name.as_str(), *port)).collect();
        self.iter().filter_map(move |lease| match &lease.guest {
            Guest::Port(name) => Some((lease.station?, lease, *ports.get(name.as_str())?)),
            _ => None,
        })
    }

    /// Returns true unless the station has moved to another host.
    pub(super) fn is_here(&self, station: MacAddr) -> bool {
        !self.moved_away.contains(&station)
    }

    /// These stations have moved to other hosts: their leases do not hold them here.
    pub(super) fn forget_stations(&mut self, stations: &HashSet<MacAddr>) {
        let configured = self.configured().map(|(mac, ..)| mac);
        let moved: Vec<_> = configured.filter(|mac| stations.contains(mac)).collect();
        self.moved_away.extend(moved);
    }

    /// Returns numbers that change when a lease is added or removed.
    pub(super) fn changes(&self) -> (usize, usize) {
        (self.next_number, self.leases.len())
    }

    /// Returns the name that a guest was given, whatever name it sends.
    pub(super) fn name_of(&self, client: &Client) -> Option<DomainName> {
        let Client::Static(number) = client else { return None };
        let lease = self.leases.iter().find(|(other, _)| other == number);
        lease.and_then(|(_, lease)| lease.name.clone())
    }

    /// Returns the static lease of the client that asks at `port` by DHCP for IPv4.
    pub(super) fn of_ipv4(
        &self,
        port: u32,
        mac: MacAddr,
        id: Option<&[u8]>,
    ) -> Option<(usize, &StaticLease)> {
        self.find(|guest| match guest {
            Guest::Port(name) => self.port_name(port) == Some(name),
            Guest::Mac(known) => *known == mac,
            Guest::ClientId(known) => Some(&known[..]) == id,
            Guest::Duid(_) => false,
        })
    }

    /// Returns the static lease of the client that asks at `port` by DHCP for IPv6.
    pub(super) fn of_ipv6(
        &self,
        port: u32,
        mac: MacAddr,
        duid: &[u8],
    ) -> Option<(usize, &StaticLease)> {
        self.find(|guest| match guest {
            Guest::Port(name) => self.port_name(port) == Some(name),
            Guest::Mac(known) => *known == mac,
            Guest::ClientId(_) => false,
            Guest::Duid(known) => known == duid,
        })
    }

    /// Returns true if `lease` already belongs to the guest, whatever identifier it used.
    pub(super) fn is_of(&self, guest: &Guest, lease: &Lease) -> bool {
        match (guest, &lease.client) {
            (Guest::Port(name), _) => {
                lease.port.and_then(|port| self.port_name(port)) == Some(name)
            }
            (Guest::Mac(mac), _) => lease.mac == *mac,
            (Guest::ClientId(known), Client::Identifier(id)) => known[..] == **id,
            // The DUID is followed by the association.
            (Guest::Duid(known), Client::Identifier(id)) => id.starts_with(known),
            _ => false,
        }
    }

    fn find(&self, is: impl Fn(&Guest) -> bool) -> Option<(usize, &StaticLease)> {
        let found = self.leases.iter().find(|(_, lease)| is(&lease.guest));
        found.map(|(number, lease)| (*number, lease))
    }
}
