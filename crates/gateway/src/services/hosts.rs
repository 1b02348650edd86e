//! Other hosts of the network, as a control plane knows them: what they lease and where stations
//! are.

use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;

use towpath_net::time::Instant;
use towpath_net::vxlan::remotes::Change;
use towpath_net::wire::MacAddr;

use super::Services;
use super::config::StaticLease;
use super::leases::{Lease, Leases, State};

/// An address that guests of two hosts lease, as after hosts had lost each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The address.
    pub address: IpAddr,
    /// The number of the port of this host's guest.
    pub port: u32,
    /// The station of this host's guest.
    pub here: MacAddr,
    /// The station of the other host's guest.
    pub there: MacAddr,
    /// This host's guest loses the address when it renews its lease; otherwise the other one does.
    pub is_lost: bool,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, here, there, .. } = self;
        let outcome = match self.is_lost {
            true => "the guest here loses it when it renews its lease",
            false => "the guest here keeps it",
        };
        write!(f, "{address} is leased to {here}, and by another host to {there}; {outcome}")
    }
}

impl Services {
    /// Shares the pools of these IP versions with other hosts from now on: this host, whose tunnels
    /// end at `own`, gives new clients only the addresses that fall to it. Until [`Self::settle`]
    /// it gives new clients none.
    pub fn share(&mut self, own: IpAddr, ipv4: bool, ipv6: bool) {
        let shared =
            [self.leases_v4.as_mut().filter(|_| ipv4), self.leases_v6.as_mut().filter(|_| ipv6)];
        shared.into_iter().flatten().for_each(|leases| leases.elsewhere.share(own));
    }

    /// All other hosts are known, as far as they can be.
    pub fn settle(&mut self) {
        self.families().for_each(|leases| leases.elsewhere.settle());
    }

    /// Takes what a control plane says about other hosts. `is_here` says whether a station is on
    /// this host. Returns the conflict that this causes.
    pub fn hear(
        &mut self,
        change: Change,
        is_here: impl Fn(MacAddr) -> bool,
        now: Instant,
    ) -> Option<Conflict> {
        let until = now + self.config.lease_time;
        match change {
            Change::AddFlood(host) => {
                self.families().for_each(|leases| leases.elsewhere.add_host(host, now));
            }
            Change::DelFlood(host) => {
                self.families().for_each(|leases| leases.elsewhere.drop_host(host, until));
            }
            Change::AddAddress { address, mac } => {
                let is_new = self.leases_mut(address)?.elsewhere.bind(address, mac, now);
                let conflict = is_new.then(|| self.conflict(address, mac, now)).flatten();
                self.counters.conflicts += u64::from(conflict.is_some());
                return conflict;
            }
            Change::DelAddress(address) => {
                self.leases_mut(address)?.elsewhere.unbind(address, is_here, now, until);
            }
            Change::AddStation { .. } | Change::DelStation(_) => {}
        }
        None
    }

    /// Returns those of the stations that a lease holds at a port of this host. Walks all leases.
    pub fn leased_here(&self, stations: &HashSet<MacAddr>, now: Instant) -> Vec<MacAddr> {
        let all = [&self.leases_v4, &self.leases_v6].into_iter().flatten();
        let bound = all.flat_map(|leases| leases.bound(now)).map(|(_, lease)| lease);
        let leased = bound.filter(|lease| lease.port.is_some()).map(|lease| lease.mac);
        let held = self.configured().filter(|(.., is_held)| *is_held).map(|(mac, ..)| mac);
        leased.chain(held).filter(|mac| stations.contains(mac)).collect()
    }

    /// These stations have moved to other hosts. Their leases continue without a port, as after
    /// [`Self::forget_port`], so that nothing holds the stations here.
    pub fn moved_away(&mut self, stations: &HashSet<MacAddr>) {
        self.families().for_each(|leases| leases.forget_stations(stations));
        self.static_leases.forget_stations(stations);
        self.counters.moved_away += stations.len() as u64;
        self.changed = true;
    }

    /// Returns the addresses that a station of this host brought along from another host. If it has
    /// a lease of this host, there are none of that IP version.
    pub fn brought(&self, mac: MacAddr, now: Instant) -> Vec<IpAddr> {
        let all = [&self.leases_v4, &self.leases_v6].into_iter().flatten();
        let brought = |leases: &Leases| -> Vec<IpAddr> {
            let brought: Vec<IpAddr> = leases.elsewhere.brought(mac, now).collect();
            // Few stations have any, and only theirs are searched for.
            let has_lease = || {
                leases.bound(now).any(|(_, of)| of.mac == mac)
                    || self.configured().any(|(station, ..)| station == mac)
            };
            if !brought.is_empty() && has_lease() { Vec::new() } else { brought }
        };
        all.flat_map(brought).collect()
    }

    /// Returns the conflict of a guest of this host with the station of another one that has its
    /// address.
    fn conflict(&self, address: IpAddr, there: MacAddr, now: Instant) -> Option<Conflict> {
        let has_it =
            |(_, lease, _): &(_, &StaticLease, _)| lease.addresses().any(|own| own == address);
        if let Some((here, _, port)) = self.static_leases.configured().find(has_it) {
            let conflict = Conflict { address, port, here, there, is_lost: false };
            return (here != there).then_some(conflict);
        }
        let leases = self.leases_of(address)?;
        let is_other = |lease: &&Lease| lease.state == State::Bound && lease.mac != there;
        let lease = leases.holder(address, now).filter(is_other)?;
        let (port, is_lost) = (lease.port?, leases.is_lost(address, lease));
        Some(Conflict { address, port, here: lease.mac, there, is_lost })
    }

    fn families(&mut self) -> impl Iterator<Item = &mut Leases> {
        [&mut self.leases_v4, &mut self.leases_v6].into_iter().flatten()
    }
}

#[cfg(test)]
mod tests;
