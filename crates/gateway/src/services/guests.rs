//! Known guests: static leases are added and removed while the services run, and lookups return who
//! has which address.

use std::net::IpAddr;
use std::time::Duration;

use super::wire::domain::DomainName;
use towpath_net::time::Instant;
use towpath_net::wire::MacAddr;

use super::Services;
use super::config::{Automatic, Guest, STATIC_LEASES_MAX, StaticLease, StaticLeaseError};
use super::leases::{Client, Leases, Refusal, State};
use super::names::Names;
use super::static_leases::StaticLeases;

/// A current lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lent {
    /// The address.
    pub address: IpAddr,
    /// The station that has it.
    pub mac: MacAddr,
    /// The name of its port, unless the port is gone.
    pub port: Option<String>,
    /// The guest's name.
    pub name: Option<DomainName>,
    /// Remaining time of the lease.
    pub left: Duration,
    /// The lease is static.
    pub is_static: bool,
}

/// A copy of all state that static leases can change.
pub(crate) struct Checkpoint {
    static_leases: StaticLeases,
    names: Names,
    leases_v4: Option<Leases>,
    leases_v6: Option<Leases>,
}

impl Services {
    /// Sets the name of a port, by which a static lease may identify its guest.
    pub(crate) fn name_port(&mut self, port: u32, name: &str) {
        self.static_leases.name_port(port, name);
    }

    /// Reserves an address for a guest, gives it a name, or both. A guest that has another address
    /// gets the reserved one when it asks again.
    ///
    /// # Errors
    /// [`StaticLeaseError`]; nothing was changed.
    pub fn add_static_lease(
        &mut self,
        lease: StaticLease,
        now: Instant,
    ) -> Result<(), StaticLeaseError> {
        if lease.addresses().next().is_none() && lease.name.is_none() {
            return Err(StaticLeaseError::Empty);
        }
        if self.static_leases.iter().count() >= STATIC_LEASES_MAX {
            return Err(StaticLeaseError::TooMany);
        }
        if self.static_leases.iter().any(|other| other.guest == lease.guest) {
            return Err(StaticLeaseError::Exists(lease.guest));
        }
        if let Some(name) = lease.name.as_ref().filter(|name| self.names.is_given(name)) {
            return Err(StaticLeaseError::Name(name.clone()));
        }
        for address in lease.addresses() {
            self.check_static(address, &lease, now)?;
        }
        for address in lease.addresses() {
            if let Some(leases) = self.leases_mut(address) {
                leases.reserve(address);
                lease.station.iter().for_each(|mac| leases.elsewhere.leased_here(*mac));
            }
        }
        let number = self.static_leases.add(lease.clone());
        self.names.give_guest(number, &lease);
        Ok(())
    }

    /// Adds a static lease after it chose what the lease leaves to the network: addresses as of
    /// clients that ask for one, so of this host's share alone. The same guest gets the same
    /// address if that is free.
    ///
    /// # Errors
    /// [`StaticLeaseError`]; nothing was changed.
    pub fn add_automatic_lease(
        &mut self,
        mut lease: StaticLease,
        auto: Automatic,
        now: Instant,
    ) -> Result<(), StaticLeaseError> {
        let versions =
            [(auto.ipv4 && lease.ipv4.is_none(), 4), (auto.ipv6 && lease.ipv6.is_none(), 6)];
        for (_, version) in versions.into_iter().filter(|(is_wanted, _)| *is_wanted) {
            match self.choose_static(&lease, version, now)? {
                IpAddr::V4(address) => lease.ipv4 = Some(address),
                IpAddr::V6(address) => lease.ipv6 = Some(address),
            }
        }
        lease.name.take_if(|name| auto.name && !self.names.is_free(name, now));
        self.add_static_lease(lease, now)
    }

    /// Ends a static lease, which frees its address and its name. A guest that has the address gets
    /// one from the pool when it asks again.
    ///
    /// # Errors
    /// [`StaticLeaseError::Unknown`].
    pub(crate) fn remove_static_lease(&mut self, guest: &Guest) -> Result<(), StaticLeaseError> {
        let removed = self.static_leases.remove(guest);
        let (number, lease) = removed.ok_or_else(|| StaticLeaseError::Unknown(guest.clone()))?;
        if let Some(leases) = &mut self.leases_v4 {
            leases.forget_static(number, lease.ipv4.map(Into::into));
        }
        if let Some(leases) = &mut self.leases_v6 {
            leases.forget_static(number, lease.ipv6.map(Into::into));
        }
        if let Some(name) = &lease.name {
            self.names.drop_name(name);
        }
        Ok(())
    }

    /// Returns the current state, for [`Services::return_to`].
    pub(crate) fn checkpoint(&self) -> Checkpoint {
        Checkpoint {
            static_leases: self.static_leases.clone(),
            names: self.names.clone(),
            leases_v4: self.leases_v4.clone(),
            leases_v6: self.leases_v6.clone(),
        }
    }

    /// Restores a former state, provided that no message has been handled since.
    pub(crate) fn return_to(&mut self, checkpoint: Checkpoint) {
        let Checkpoint { static_leases, names, leases_v4, leases_v6 } = checkpoint;
        (self.static_leases, self.names) = (static_leases, names);
        (self.leases_v4, self.leases_v6) = (leases_v4, leases_v6);
    }

    /// Returns the stations that are configured with the addresses of their static leases, and
    /// whether the lease holds its station here, also if that is silent: until it moves to another
    /// host. Stations whose ports are not there are left out.
    pub fn configured(&self) -> impl Iterator<Item = (MacAddr, &StaticLease, bool)> {
        let all = self.static_leases.configured();
        all.map(|(mac, lease, _)| (mac, lease, self.static_leases.is_here(mac)))
    }

    /// Returns numbers that change with the static leases.
    pub fn static_changes(&self) -> (usize, usize) {
        self.static_leases.changes()
    }

    /// Returns the static leases, in the order in which they were added.
    pub fn static_leases(&self) -> impl Iterator<Item = &StaticLease> {
        self.static_leases.iter()
    }

    /// Returns the current leases, lowest address first.
    pub fn lent(&self, now: Instant) -> Vec<Lent> {
        let all = [&self.leases_v4, &self.leases_v6].into_iter().flatten();
        let port_name = |port| self.static_leases.port_name(port).map(str::to_owned);
        let mut lent: Vec<_> = all
            .flat_map(|leases| leases.bound(now))
            .map(|(address, lease)| Lent {
                address,
                mac: lease.mac,
                port: lease.port.and_then(port_name),
                name: lease.name.clone(),
                left: lease.until.since(now),
                is_static: matches!(lease.client, Client::Static(_)),
            })
            .collect();
        lent.sort_unstable_by_key(|lent| lent.address);
        lent
    }

    /// Returns the port of the guest that has the address, unless the port is gone.
    pub fn holder(&self, address: IpAddr, now: Instant) -> Option<u32> {
        let leases = if address.is_ipv4() { &self.leases_v4 } else { &self.leases_v6 };
        let lease = leases.as_ref()?.holder(address, now)?;
        lease.port.filter(|_| lease.state == State::Bound)
    }

    /// Returns the port at which the station has an address, unless the port is gone. Searches all
    /// leases.
    pub(crate) fn port_of(&self, mac: MacAddr, now: Instant) -> Option<u32> {
        let mut all = [&self.leases_v4, &self.leases_v6].into_iter().flatten();
        all.find_map(|leases| leases.port_of(mac, now))
    }

    /// Records that a guest at `port` uses an address that it has not leased: one that it formed
    /// itself (RFC 4862), or that is configured there. Of each IP version the last one counts.
    /// Addresses of other networks, and those of the gateway, are ignored.
    pub(crate) fn note_unleased(&mut self, port: u32, address: IpAddr) {
        let (is_inside, leases) = match address {
            IpAddr::V4(v4) => {
                (self.config.ipv4.as_ref().is_some_and(|net| net.contains(v4)), &self.leases_v4)
            }
            IpAddr::V6(v6) => {
                (self.config.ipv6.as_ref().is_some_and(|net| net.contains(v6)), &self.leases_v6)
            }
        };
        if is_inside && !leases.as_ref().is_some_and(|leases| leases.is_reserved(address)) {
            self.unleased.insert((port, address.is_ipv4()), address);
        }
    }

    /// Returns the address of the guest at the port with this name, else of the guest with this
    /// host name. Among several guests behind a port, it prefers the one with the port's name, then
    /// the lowest address. A guest without a lease has the address that it was last seen to use.
    pub(crate) fn address_of(&self, guest: &str, is_ipv4: bool, now: Instant) -> Option<IpAddr> {
        let at_port = Guest::Port(guest.to_owned());
        if let Some(lease) = self.static_leases.iter().find(|lease| lease.guest == at_port) {
            let fixed = [lease.ipv4.map(IpAddr::from), lease.ipv6.map(IpAddr::from)];
            let fixed = fixed.into_iter().flatten().find(|address| address.is_ipv4() == is_ipv4);
            if fixed.is_some() {
                return fixed;
            }
        }
        let leases = if is_ipv4 { &self.leases_v4 } else { &self.leases_v6 };
        if let (Some(leases), Some(port)) = (leases, self.static_leases.port_named(guest)) {
            let of_port = leases.bound(now).filter(|(_, lease)| lease.port == Some(port));
            let is_other =
                |name: &Option<DomainName>| name.as_ref().is_none_or(|name| name.as_str() != guest);
            let best = of_port.min_by_key(|(address, lease)| (is_other(&lease.name), *address));
            if let Some((address, _)) = best {
                return Some(address);
            }
        }
        if let Some(port) = self.static_leases.port_named(guest)
            && let Some(address) = self.unleased.get(&(port, is_ipv4))
        {
            return Some(*address);
        }
        let addresses = self.names.addresses(&guest.parse().ok()?, now)?;
        addresses.into_iter().find(|address| address.is_ipv4() == is_ipv4)
    }

    /// Chooses an address of an IP version for the guest of a static lease.
    fn choose_static(
        &self,
        lease: &StaticLease,
        version: u8,
        now: Instant,
    ) -> Result<IpAddr, StaticLeaseError> {
        let leases = if version == 4 { &self.leases_v4 } else { &self.leases_v6 };
        let leases = leases.as_ref().ok_or(StaticLeaseError::NoPool(version))?;
        let client = Client::Identifier(lease.guest.to_string().into_bytes().into());
        leases.choose_static(&client, lease.mac(), now).map_err(|refusal| match refusal {
            Refusal::Settling => StaticLeaseError::Settling,
            _ => StaticLeaseError::Exhausted(version),
        })
    }

    fn check_static(
        &self,
        address: IpAddr,
        lease: &StaticLease,
        now: Instant,
    ) -> Result<(), StaticLeaseError> {
        let is_inside = match address {
            IpAddr::V4(v4) => self.config.ipv4.as_ref().is_some_and(|net| net.contains(v4)),
            IpAddr::V6(v6) => self.config.ipv6.as_ref().is_some_and(|net| net.contains(v6)),
        };
        let leases = if address.is_ipv4() { &self.leases_v4 } else { &self.leases_v6 };
        let Some(leases) = leases.as_ref().filter(|_| is_inside) else {
            return Err(StaticLeaseError::Outside(address));
        };
        if leases.is_reserved(address) {
            return Err(StaticLeaseError::Taken(address));
        }
        // It does not ask later, when they are known.
        if lease.station.is_some() && !leases.elsewhere.is_settled() {
            return Err(StaticLeaseError::Settling);
        }
        if let (Some(there), Some(here)) = (leases.elsewhere.announced(address), lease.mac())
            && there != here
        {
            return Err(StaticLeaseError::Announced { address, mac: there });
        }
        match leases.holder(address, now) {
            Some(lent) if !self.static_leases.is_of(&lease.guest, lent) => {
                Err(StaticLeaseError::Lent {
                    address,
                    mac: lent.mac,
                    seconds: lent.until.since(now).as_secs(),
                })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn leases_of(&self, address: IpAddr) -> Option<&Leases> {
        if address.is_ipv4() { self.leases_v4.as_ref() } else { self.leases_v6.as_ref() }
    }

    pub(super) fn leases_mut(&mut self, address: IpAddr) -> Option<&mut Leases> {
        if address.is_ipv4() { self.leases_v4.as_mut() } else { self.leases_v6.as_mut() }
    }
}
