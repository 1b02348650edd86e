//! What a control plane says about other hosts of the network: which stations have which addresses,
//! and which share of the pool is this host's.
//!
//! # Theory of operation
//!
//! A *binding* says which station of another host has an address. No one else gets this address,
//! and the station gets it if it asks here. If a binding is withdrawn, the address may still be in
//! use: the other host may have failed, or the station may have moved here and renews later.
//! So it stays for the lease time, in which the lease that it stands for ends.
//!
//! The *share* of a host are the addresses that it may give to new clients. It is computed, not
//! negotiated: of all hosts that are known, that one has an address whose hash with the address is
//! the highest (rendezvous hashing). All hosts that know of each other agree; if a host comes or
//! goes, only its own addresses change hands. A host that is gone counts for the lease time, so
//! that hosts that have lost each other do not lease each other's addresses.
//! [evpn.md](../../../../docs/theory/evpn.md) has the reasons and the bounds.
//!
//! # Limits
//!
//! [`BINDINGS_MAX`] and [`HOSTS_MAX`].

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::ops::Bound;

use towpath_net::time::Instant;
use towpath_net::vxlan::remotes::{ADDRESSES_MAX, REMOTES_MAX};
use towpath_net::wire::MacAddr;

/// Most bindings: as many as tunnels know of.
pub(super) const BINDINGS_MAX: usize = ADDRESSES_MAX;
/// Most other hosts, those that are gone included: all that a tunnel knows, and as many again.
pub(super) const HOSTS_MAX: usize = 2 * REMOTES_MAX;

/// Where a binding comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// Another host announces it.
    Announced,
    /// Its station has moved to this host, and has not asked for it here. It ends then.
    Moved(Instant),
    /// No host announces it any more. It ends then.
    Withdrawn(Instant),
}

/// Bindings and hosts, for one address family.
#[derive(Clone, Debug, Default)]
pub(super) struct Elsewhere {
    bindings: HashMap<IpAddr, (MacAddr, Source)>,
    /// The same by station.
    by_mac: BTreeSet<(MacAddr, IpAddr)>,
    /// Those that end, by their ends.
    ends: BTreeSet<(Instant, IpAddr)>,
    share: Option<Share>,
}

/// The hosts that share the pool.
#[derive(Clone, Debug)]
struct Share {
    own: IpAddr,
    /// The others, and until when those count that are gone.
    others: HashMap<IpAddr, Option<Instant>>,
    is_settled: bool,
}

impl Elsewhere {
    /// From now on this host, whose tunnels end at `own`, leases only its share. It leases nothing
    /// to new clients before [`Self::settle`].
    pub(super) fn share(&mut self, own: IpAddr) {
        self.share = Some(Share { own, others: HashMap::new(), is_settled: false });
    }

    /// All hosts are known that can be.
    pub(super) fn settle(&mut self) {
        if let Some(share) = &mut self.share {
            share.is_settled = true;
        }
    }

    pub(super) fn is_settled(&self) -> bool {
        self.share.as_ref().is_none_or(|share| share.is_settled)
    }

    /// Another host is known.
    pub(super) fn add_host(&mut self, host: IpAddr, now: Instant) {
        let Some(share) = &mut self.share else { return };
        share.others.retain(|_, until| until.is_none_or(|until| until > now));
        if share.others.len() < HOSTS_MAX || share.others.contains_key(&host) {
            share.others.insert(host, None);
        }
    }

    /// Another host is gone; it counts until then.
    pub(super) fn drop_host(&mut self, host: IpAddr, until: Instant) {
        if let Some(known) = self.share.as_mut().and_then(|share| share.others.get_mut(&host)) {
            *known = Some(until);
        }
    }

    /// Returns true if this host may give the address to a new client.
    ///
    /// Most addresses of others are found to be so after a few hashes, also among many hosts.
    pub(super) fn is_own(&self, address: IpAddr, now: Instant) -> bool {
        let Some(Share { own, others, .. }) = &self.share else { return true };
        let rank = |host: IpAddr| (score(host, address), host);
        let own = rank(*own);
        let counts = |until: &Option<Instant>| until.is_none_or(|until| until > now);
        others.iter().all(|(host, until)| !counts(until) || rank(*host) < own)
    }

    /// Another host announces that the station has the address. Returns false if that is known.
    pub(super) fn bind(&mut self, address: IpAddr, mac: MacAddr, now: Instant) -> bool {
        let is_known = self.bindings.get(&address) == Some(&(mac, Source::Announced));
        if !is_known {
            self.put(address, mac, Source::Announced, now);
        }
        !is_known
    }

    /// No other host announces the address any more. `is_here` says whether a station is on this
    /// host. The binding ends at `until`.
    pub(super) fn unbind(
        &mut self,
        address: IpAddr,
        is_here: impl Fn(MacAddr) -> bool,
        now: Instant,
        until: Instant,
    ) {
        let Some(mac) = self.announced(address) else { return };
        let moved = is_here(mac);
        let source = if moved { Source::Moved(until) } else { Source::Withdrawn(until) };
        self.put(address, mac, source, now);
    }

    /// Removes a binding.
    pub(super) fn forget(&mut self, address: IpAddr) {
        if let Some((mac, source)) = self.bindings.remove(&address) {
            self.by_mac.remove(&(mac, address));
            if let Some(end) = source.end() {
                self.ends.remove(&(end, address));
            }
        }
    }

    /// The station has a lease of this host: what was kept for it ends.
    pub(super) fn leased_here(&mut self, mac: MacAddr) {
        let is_kept = |address: &IpAddr| self.bindings[address].1 != Source::Announced;
        let kept: Vec<IpAddr> = self.addresses_of(mac).filter(is_kept).collect();
        kept.into_iter().for_each(|address| self.forget(address));
    }

    /// Returns the station of another host that has the address now or may still use it.
    pub(super) fn holder(&self, address: IpAddr, now: Instant) -> Option<MacAddr> {
        let (mac, source) = self.bindings.get(&address)?;
        source.end().is_none_or(|end| end > now).then_some(*mac)
    }

    /// Returns the station that another host announces with the address.
    pub(super) fn announced(&self, address: IpAddr) -> Option<MacAddr> {
        let (mac, source) = self.bindings.get(&address)?;
        (*source == Source::Announced).then_some(*mac)
    }

    /// Returns the addresses of a station, lowest first.
    pub(super) fn of(&self, mac: MacAddr, now: Instant) -> impl Iterator<Item = IpAddr> + '_ {
        self.addresses_of(mac).filter(move |address| self.holder(*address, now).is_some())
    }

    /// Returns the addresses that a station of this host brought along, lowest first: those that it
    /// had at another host, not those that it had before.
    pub(super) fn brought(&self, mac: MacAddr, now: Instant) -> impl Iterator<Item = IpAddr> + '_ {
        let is_withdrawn =
            |address: &IpAddr| matches!(self.bindings[address].1, Source::Withdrawn(_));
        self.of(mac, now).filter(move |address| !is_withdrawn(address))
    }

    /// Puts a binding in the place of another. If there is no room, the new one is not kept.
    fn put(&mut self, address: IpAddr, mac: MacAddr, source: Source, now: Instant) {
        while let Some((_, over)) = self.ends.first().copied().filter(|(end, _)| *end <= now) {
            self.forget(over);
        }
        self.forget(address);
        if self.bindings.len() < BINDINGS_MAX {
            self.bindings.insert(address, (mac, source));
            self.by_mac.insert((mac, address));
            self.ends.extend(source.end().map(|end| (end, address)));
        }
    }

    fn addresses_of(&self, mac: MacAddr) -> impl Iterator<Item = IpAddr> + '_ {
        let first = (mac, IpAddr::from([0, 0, 0, 0]));
        let from = (Bound::Included(first), Bound::Unbounded);
        self.by_mac.range(from).take_while(move |(of, _)| *of == mac).map(|(_, address)| *address)
    }
}

impl Source {
    fn end(self) -> Option<Instant> {
        match self {
            Self::Announced => None,
            Self::Moved(end) | Self::Withdrawn(end) => Some(end),
        }
    }
}

/// Returns the rank of a host for an address. All hosts must compute the same, so this must not
/// change: FNV-1a over the bytes of both, then the finisher of MurmurHash3, as the last bytes alone
/// would change the low bits only.
fn score(host: IpAddr, address: IpAddr) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for ip in [host, address] {
        let mut add = |byte: &u8| hash = (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        match ip {
            IpAddr::V4(ip) => ip.octets().iter().for_each(&mut add),
            IpAddr::V6(ip) => ip.octets().iter().for_each(&mut add),
        }
    }
    hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ hash >> 33
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::START + Duration::from_secs(seconds)
    }

    fn host(number: u8) -> IpAddr {
        [192, 0, 2, number].into()
    }

    fn mac(number: u8) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, number])
    }

    fn pool() -> impl Iterator<Item = IpAddr> {
        (0..4096u16).map(|offset| IpAddr::from([10, 1, (offset >> 8) as u8, offset as u8]))
    }

    /// The view of one of hosts 1 to `count`, which knows all others.
    fn view(own: u8, count: u8) -> Elsewhere {
        let mut view = Elsewhere::default();
        view.share(host(own));
        for other in (1..=count).filter(|other| *other != own) {
            view.add_host(host(other), at(0));
        }
        view.settle();
        view
    }

    /// Goal: each address is one host's, and hosts have about the same number.
    #[test]
    fn each_address_has_one_host() {
        for count in [1, 2, 3, 16] {
            let views: Vec<Elsewhere> = (1..=count).map(|own| view(own, count)).collect();
            let mut sizes = vec![0_usize; usize::from(count)];
            for address in pool() {
                let owners =
                    views.iter().enumerate().filter(|(_, view)| view.is_own(address, at(0)));
                let owners: Vec<usize> = owners.map(|(index, _)| index).collect();
                assert_eq!(owners.len(), 1, "{address}: {owners:?}");
                sizes[owners[0]] += 1;
            }
            let fair = 4096 / usize::from(count);
            assert!(sizes.iter().all(|size| size.abs_diff(fair) < fair / 4 + 1), "{sizes:?}");
        }
    }

    /// Goal: a host that comes takes addresses only for itself, and one that goes leaves the shares
    /// of the others as they are until it does not count any more.
    #[test]
    fn shares_change_little() {
        let mut first = view(1, 3);
        let before: Vec<bool> = pool().map(|address| first.is_own(address, at(0))).collect();
        first.drop_host(host(3), at(3600));
        let parted: Vec<bool> = pool().map(|address| first.is_own(address, at(3599))).collect();
        assert_eq!(before, parted);
        let alone: Vec<bool> = pool().map(|address| first.is_own(address, at(3600))).collect();
        let second = view(2, 2);
        for ((address, before), alone) in pool().zip(&before).zip(&alone) {
            assert!(alone | !before, "{address} was this host's");
            assert_ne!(*alone, second.is_own(address, at(3600)), "{address}");
        }
        first.add_host(host(3), at(4000));
        let again: Vec<bool> = pool().map(|address| first.is_own(address, at(9999))).collect();
        assert_eq!(before, again);
    }

    /// The hash is part of what hosts of different versions agree on.
    #[test]
    fn the_hash_stays_as_it_is() {
        let of = |host: &str, address: &str| score(host.parse().unwrap(), address.parse().unwrap());
        let known = [of("192.0.2.11", "10.0.2.16"), of("2001:db8::11", "10.0.2.16")];
        assert_eq!(known, [0x14de_2bc8_dc8e_9e3d, 0x04e6_3cff_80e0_8e7e]);
    }

    #[test]
    fn an_address_stays_with_its_station() {
        let mut elsewhere = Elsewhere::default();
        let [a, b] = [IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2])];
        assert!(elsewhere.bind(a, mac(1), at(0)) && elsewhere.bind(b, mac(1), at(0)));
        assert!(!elsewhere.bind(a, mac(1), at(0)), "it is known");
        assert_eq!(elsewhere.of(mac(1), at(0)).collect::<Vec<_>>(), [a, b]);
        // It moves to this host with one address; the host of the other has failed.
        elsewhere.unbind(a, |_| true, at(0), at(3600));
        elsewhere.unbind(b, |_| false, at(0), at(3600));
        assert_eq!(elsewhere.brought(mac(1), at(1)).collect::<Vec<_>>(), [a]);
        assert_eq!([a, b].map(|address| elsewhere.holder(address, at(3599))), [Some(mac(1)); 2]);
        assert_eq!([a, b].map(|address| elsewhere.holder(address, at(3600))), [None; 2]);
        assert_eq!([a, b].map(|address| elsewhere.announced(address)), [None; 2]);
        // Another station takes the first address over, and this one leases another.
        assert!(elsewhere.bind(a, mac(2), at(1)));
        elsewhere.leased_here(mac(1));
        assert_eq!([a, b].map(|of| elsewhere.holder(of, at(1))), [Some(mac(2)), None]);
        // What has ended makes room.
        elsewhere.unbind(a, |_| false, at(2), at(3602));
        assert!(elsewhere.bind(b, mac(3), at(3602)));
        let sizes = [elsewhere.bindings.len(), elsewhere.by_mac.len(), elsewhere.ends.len()];
        assert_eq!(sizes, [1, 1, 0]);
    }
}
