//! Static leases: guests that are known beforehand, and how they are told apart.

use std::collections::HashMap;

use towpath_net::wire::MacAddr;
use towpath_net::wire::domain::DomainName;

use super::config::{Guest, StaticLease};
use super::leases::{Client, Lease};

/// The static leases of a network, and the names of its ports, by which some are known.
#[derive(Clone, Debug, Default)]
pub(super) struct StaticLeases {
    /// With numbers that are not used again.
    leases: Vec<(usize, StaticLease)>,
    next_number: usize,
    ports: HashMap<u32, String>,
}

impl StaticLeases {
    /// Adds one; its number.
    pub(super) fn add(&mut self, lease: StaticLease) -> usize {
        let number = self.next_number;
        self.next_number += 1;
        self.leases.push((number, lease));
        number
    }

    /// Removes that of a guest.
    pub(super) fn remove(&mut self, guest: &Guest) -> Option<(usize, StaticLease)> {
        let at = self.leases.iter().position(|(_, lease)| lease.guest == *guest)?;
        Some(self.leases.remove(at))
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

    /// The name that a guest was given, whatever it calls itself.
    pub(super) fn name_of(&self, client: &Client) -> Option<DomainName> {
        let Client::Static(number) = client else { return None };
        let lease = self.leases.iter().find(|(other, _)| other == number);
        lease.and_then(|(_, lease)| lease.name.clone())
    }

    /// The static lease of who asks at `port` by DHCP for IPv4.
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

    /// The same for IPv6.
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

    /// True if `lease` is the guest's already, under whatever it called itself.
    pub(super) fn is_of(&self, guest: &Guest, lease: &Lease) -> bool {
        match (guest, &lease.client) {
            (Guest::Port(name), _) => {
                lease.port.and_then(|port| self.port_name(port)) == Some(name)
            }
            (Guest::Mac(mac), _) => lease.mac == *mac,
            (Guest::ClientId(known), Client::Identifier(id)) => known[..] == **id,
            // Behind the DUID is the association.
            (Guest::Duid(known), Client::Identifier(id)) => id.starts_with(known),
            _ => false,
        }
    }

    fn find(&self, is: impl Fn(&Guest) -> bool) -> Option<(usize, &StaticLease)> {
        let found = self.leases.iter().find(|(_, lease)| is(&lease.guest));
        found.map(|(number, lease)| (*number, lease))
    }
}
