//! The leases of one address family: which client has which address until when.
//!
//! # Theory of operation
//!
//! A lease ends when its time is over; no timer runs for that. Expired leases stay in the table, so
//! that a client that comes back gets its address again, until another client needs it. A client
//! without a lease gets the address that its identifier hashes to, or the next free one, so it gets
//! the same address after a restart without a lease file.
//!
//! A lease belongs to the port that it was requested from. The same client identifier at another
//! port is another client, with an address of its own, as a guest may have learned the identifiers
//! of others. When a port is gone, or the client's station has moved to another host, the first
//! client with the identifier may continue its leases.
//! All leases of a port together are bounded, including the addresses that it declined, so that a
//! guest that invents clients takes addresses only from itself.
//!
//! With other hosts in the network, [`Elsewhere`] says which addresses are not this host's to give.
//! A lease that conflicts with one of another host continues if its station has the lower address;
//! otherwise it is not renewed. All hosts see both and agree.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::elsewhere::Elsewhere;
use super::wire::domain::DomainName;
use towpath_net::time::Instant;
use towpath_net::wire::MacAddr;

/// Most addresses of a pool that are given out: a search through all of them takes microseconds,
/// and the table of a full pool takes a megabyte.
const POOL_ADDRESSES_MAX: u32 = 4096;
const _: () = assert!(super::config::LEASES_PER_PORT_MAX == POOL_ADDRESSES_MAX as usize);
/// How long a declined address is not given out.
const QUARANTINE: Duration = Duration::from_secs(600);

/// Identity of a client for its leases.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Client {
    /// The guest of a static lease, whatever identifier it sends.
    Static(usize),
    /// The identifier that it sent, or one of its associations.
    Identifier(Box<[u8]>),
    /// Its hardware address.
    Mac(MacAddr),
}

/// A client and its port.
#[derive(Clone, Debug)]
pub(super) struct Asker {
    pub(super) client: Client,
    pub(super) mac: MacAddr,
    pub(super) port: u32,
    /// The only address that it may have.
    pub(super) fixed: Option<IpAddr>,
}

/// Why a client gets no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// All addresses are leased.
    Exhausted,
    /// The port has the greatest number of leases.
    PortFull,
    /// The only address that the client may have is leased to another port or at another host.
    Elsewhere,
    /// It is not known yet which addresses are this host's to give.
    Settling,
}

/// State of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Held for a client that has not requested it yet.
    Offered,
    /// The client has requested it.
    Bound,
    /// A client reports that another station uses the address.
    Declined,
}

/// One lease.
#[derive(Clone, Debug)]
pub(super) struct Lease {
    pub(super) client: Client,
    pub(super) mac: MacAddr,
    /// `None` once the port is gone, and after a restart.
    pub(super) port: Option<u32>,
    pub(super) state: State,
    pub(super) until: Instant,
    pub(super) name: Option<DomainName>,
}

/// All leases of a family.
#[derive(Clone)]
pub(super) struct Leases {
    by_address: HashMap<IpAddr, Lease>,
    /// By port, or `None` once the port is gone, and client.
    by_client: HashMap<(Option<u32>, Client), IpAddr>,
    first: IpAddr,
    count: u32,
    /// Addresses that the pool never gives out.
    reserved: HashSet<IpAddr>,
    per_port_max: usize,
    /// What other hosts have.
    pub(super) elsewhere: Elsewhere,
}

impl Leases {
    /// Makes leases for at most [`POOL_ADDRESSES_MAX`] addresses of `pool`.
    pub(super) fn new(
        pool: RangeInclusive<IpAddr>,
        reserved: HashSet<IpAddr>,
        per_port_max: usize,
    ) -> Self {
        let (first, last) = (number(*pool.start()), number(*pool.end()));
        let count = last.checked_sub(first).map_or(0, |more| more.saturating_add(1));
        let count = u32::try_from(count).unwrap_or(u32::MAX).min(POOL_ADDRESSES_MAX);
        let (by_address, by_client) = (HashMap::new(), HashMap::new());
        let (first, elsewhere) = (*pool.start(), Elsewhere::default());
        Self { by_address, by_client, first, count, reserved, per_port_max, elsewhere }
    }

    /// Returns the address that `asker` may have: the one it has, else the one its station had at
    /// another host, else the one it had here, else `wanted`, else any.
    pub(super) fn choose(
        &mut self,
        asker: &Asker,
        wanted: Option<IpAddr>,
        now: Instant,
    ) -> Result<IpAddr, Refusal> {
        let mut had = None;
        if let Some((address, lease)) = self.of(asker)
            && asker.fixed.is_none_or(|fixed| fixed == address)
        {
            let is_here = lease.until > now && lease.port == Some(asker.port);
            if is_here && !self.is_lost(address, lease) {
                return Ok(address);
            }
            had = Some((address, lease.until > now));
        }
        if let Some(fixed) = asker.fixed {
            let lease = self.by_address.get(&fixed);
            let other = self.elsewhere.announced(fixed);
            let is_elsewhere = lease.is_some_and(|lease| lease.is_elsewhere(asker, now))
                || other.is_some_and(|mac| mac != asker.mac);
            return if is_elsewhere { Err(Refusal::Elsewhere) } else { Ok(fixed) };
        }
        self.make_room(asker.port, now)?;
        if let Some(brought) = self.brought(asker.mac, wanted, now) {
            return Ok(brought);
        }
        let is_held = |address| self.elsewhere.holder(address, now).is_some();
        if let Some((had, is_current)) = had
            && !is_held(had)
            && (is_current || self.elsewhere.is_own(had, now))
        {
            return Ok(had);
        }
        self.choose_new(&asker.client, wanted, now)
    }

    /// Returns an address to reserve for `client`, whose station may be known: the one that its
    /// station had at a host that does not announce it any more, else any.
    pub(super) fn choose_static(
        &self,
        client: &Client,
        station: Option<MacAddr>,
        now: Instant,
    ) -> Result<IpAddr, Refusal> {
        let brought = station.and_then(|mac| self.brought(mac, None, now));
        match brought.filter(|address| self.elsewhere.announced(*address).is_none()) {
            Some(brought) => Ok(brought),
            None => self.choose_new(client, None, now),
        }
    }

    /// Returns true if `asker` has `address`, or may have it although there is no record: the table
    /// may be younger than the lease. `None`: that is not known yet.
    pub(super) fn allows(&mut self, asker: &Asker, address: IpAddr, now: Instant) -> Option<bool> {
        match self.choose(asker, Some(address), now) {
            Ok(chosen) => Some(chosen == address),
            Err(Refusal::Settling) => None,
            Err(_) => Some(false),
        }
    }

    /// Returns an address for a client that has none: `wanted`, else any.
    fn choose_new(
        &self,
        client: &Client,
        wanted: Option<IpAddr>,
        now: Instant,
    ) -> Result<IpAddr, Refusal> {
        if !self.elsewhere.is_settled() {
            return Err(Refusal::Settling);
        }
        if let Some(wanted) = wanted.filter(|wanted| self.may_give(*wanted, now)) {
            return Ok(wanted);
        }
        self.any(client, now).ok_or(Refusal::Exhausted)
    }

    /// Returns the address that a station had at another host, `wanted` if it is one of several. It
    /// need not be in the pool, which hosts may have divided.
    fn brought(&self, mac: MacAddr, wanted: Option<IpAddr>, now: Instant) -> Option<IpAddr> {
        let may_have = |address: &IpAddr| {
            let lease = self.by_address.get(address).filter(|lease| lease.until > now);
            address.is_ipv4() == self.first.is_ipv4()
                && !self.reserved.contains(address)
                && lease.is_none_or(|lease| lease.mac == mac && lease.port.is_none())
        };
        let of_station = || self.elsewhere.of(mac, now).filter(may_have);
        of_station().find(|address| Some(*address) == wanted).or_else(|| of_station().next())
    }

    /// Records that `asker` has `address`, which [`Leases::choose`] returned.
    pub(super) fn hold(
        &mut self,
        asker: &Asker,
        address: IpAddr,
        state: State,
        until: Instant,
        name: Option<DomainName>,
    ) {
        let known = [asker.known_as(Some(asker.port)), asker.known_as(None)];
        let before = known.iter().find_map(|known| self.by_client.remove(known));
        if let Some(before) = before.filter(|before| *before != address) {
            self.by_address.remove(&before);
        }
        if state == State::Bound {
            self.elsewhere.leased_here(asker.mac);
        }
        let [known, _] = known;
        self.by_client.insert(known, address);
        let (client, mac, port) = (asker.client.clone(), asker.mac, Some(asker.port));
        let lease = Lease { client, mac, port, state, until, name };
        if let Some(before) = self.by_address.insert(address, lease) {
            let known = (before.port, before.client);
            let is_asker = known.0 == Some(asker.port) && known.1 == asker.client;
            if !is_asker && self.by_client.get(&known) == Some(&address) {
                self.by_client.remove(&known);
            }
        }
    }

    /// Ends the lease of `address` that `asker` has, or brought along from another host; returns
    /// false if it has none.
    pub(super) fn release(&mut self, asker: &Asker, address: IpAddr, now: Instant) -> bool {
        if let Some(lease) = self.held_mut(asker, address) {
            lease.until = now;
            return true;
        }
        let is_brought = self.elsewhere.brought(asker.mac, now).any(|brought| brought == address)
            && self.elsewhere.announced(address).is_none();
        if is_brought {
            self.elsewhere.forget(address);
        }
        is_brought
    }

    /// Quarantines the address: its client reports that another station uses it. Returns false if
    /// `asker` does not have it, or may only have this one.
    pub(super) fn decline(&mut self, asker: &Asker, address: IpAddr, now: Instant) -> bool {
        if asker.fixed.is_some() {
            return false;
        }
        let Some(lease) = self.held_mut(asker, address) else { return false };
        (lease.state, lease.until, lease.name) = (State::Declined, now + QUARANTINE, None);
        let known = asker.known_as(lease.port);
        self.by_client.remove(&known);
        true
    }

    /// The client has chosen another server: frees the address that it was offered.
    pub(super) fn withdraw(&mut self, asker: &Asker, now: Instant) {
        if let Some(address) = self.by_client.get(&asker.known_as(Some(asker.port)))
            && let Some(lease) = self.by_address.get_mut(address)
            && lease.state == State::Offered
        {
            lease.until = now;
        }
    }

    /// Reserves the address for the guest of a static lease. It need not be in the pool.
    pub(super) fn reserve(&mut self, address: IpAddr) {
        self.reserved.insert(address);
    }

    /// Returns true if the pool never gives out the address.
    pub(super) fn is_reserved(&self, address: IpAddr) -> bool {
        self.reserved.contains(&address)
    }

    /// Removes the leases of a static lease, and frees its address.
    pub(super) fn forget_static(&mut self, number: usize, fixed: Option<IpAddr>) {
        let Self { by_client, by_address, .. } = self;
        by_client.retain(|(_, client), address| {
            let stays = *client != Client::Static(number);
            if !stays {
                by_address.remove(address);
            }
            stays
        });
        if let Some(fixed) = fixed {
            self.reserved.remove(&fixed);
        }
    }

    /// Returns the lease or offer that is current for the address.
    pub(super) fn holder(&self, address: IpAddr, now: Instant) -> Option<&Lease> {
        self.by_address.get(&address).filter(|lease| lease.until > now)
    }

    /// The port is gone: the first client that asks from another port may continue its leases.
    pub(super) fn forget_port(&mut self, port: u32) {
        self.free(|lease| lease.port == Some(port));
    }

    /// These stations have moved to other hosts, as after [`Self::forget_port`].
    pub(super) fn forget_stations(&mut self, stations: &HashSet<MacAddr>) {
        self.free(|lease| lease.port.is_some() && stations.contains(&lease.mac));
    }

    fn free(&mut self, is_free: impl Fn(&Lease) -> bool) {
        for (address, lease) in self.by_address.iter_mut().filter(|(_, lease)| is_free(lease)) {
            let port = lease.port.take();
            if self.by_client.remove(&(port, lease.client.clone())).is_some() {
                self.by_client.insert((None, lease.client.clone()), *address);
            }
        }
    }

    /// Restores a lease from before a restart.
    pub(super) fn restore(&mut self, address: IpAddr, lease: Lease) {
        if self.contains(address) && !self.by_address.contains_key(&address) {
            self.by_client.insert((lease.port, lease.client.clone()), address);
            self.by_address.insert(address, lease);
        }
    }

    /// Returns true if the address is in the pool.
    pub(super) fn contains(&self, address: IpAddr) -> bool {
        let offset = number(address).wrapping_sub(number(self.first));
        address.is_ipv4() == self.first.is_ipv4()
            && offset < u128::from(self.count)
            && !self.reserved.contains(&address)
    }

    /// Returns true if `asker` has requested `address` and may still use it.
    pub(super) fn is_bound_to(&self, asker: &Asker, address: IpAddr, now: Instant) -> bool {
        self.by_address.get(&address).is_some_and(|lease| {
            lease.client == asker.client && lease.state == State::Bound && lease.until > now
        })
    }

    /// Returns the leases that are bound now.
    pub(super) fn bound(&self, now: Instant) -> impl Iterator<Item = (IpAddr, &Lease)> {
        let bound = move |lease: &Lease| lease.state == State::Bound && lease.until > now;
        self.by_address
            .iter()
            .filter(move |(_, lease)| bound(lease))
            .map(|(&at, lease)| (at, lease))
    }

    /// Returns the port at which a station has an address now.
    pub(super) fn port_of(&self, mac: MacAddr, now: Instant) -> Option<u32> {
        self.bound(now).find(|(_, lease)| lease.mac == mac).and_then(|(_, lease)| lease.port)
    }

    /// Returns true if another host has leased the address, too, and this host's lease yields: it
    /// is an offer, or the station there has the lower address. Static leases stay.
    pub(super) fn is_lost(&self, address: IpAddr, lease: &Lease) -> bool {
        let yields = |mac: MacAddr| match lease.state {
            State::Bound => mac < lease.mac,
            State::Offered | State::Declined => mac != lease.mac,
        };
        !matches!(lease.client, Client::Static(_))
            && self.elsewhere.announced(address).is_some_and(yields)
    }

    /// Returns the lease of a client, current or expired: at its port, or one whose port is gone.
    fn of(&self, asker: &Asker) -> Option<(IpAddr, &Lease)> {
        let mut ports = [Some(asker.port), None].into_iter();
        let address = ports.find_map(|port| self.by_client.get(&asker.known_as(port)))?;
        Some((*address, self.by_address.get(address)?))
    }

    fn held_mut(&mut self, asker: &Asker, address: IpAddr) -> Option<&mut Lease> {
        let lease = self.by_address.get_mut(&address)?;
        (lease.client == asker.client && lease.port.is_none_or(|port| port == asker.port))
            .then_some(lease)
    }

    fn may_give(&self, address: IpAddr, now: Instant) -> bool {
        self.contains(address)
            && self.is_free_elsewhere(address, now)
            && self.by_address.get(&address).is_none_or(|lease| lease.until <= now)
    }

    /// Returns true if no other host has the address, and it is this host's to give.
    fn is_free_elsewhere(&self, address: IpAddr, now: Instant) -> bool {
        self.elsewhere.holder(address, now).is_none() && self.elsewhere.is_own(address, now)
    }

    /// Returns the first address from the client's own place on that was never leased; else the one
    /// whose lease expired first.
    fn any(&self, client: &Client, now: Instant) -> Option<IpAddr> {
        // The hash is the same in each run; a guest's address needs no secrecy.
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let start = hasher.hash_one(client) % u64::from(self.count.max(1));
        let mut oldest: Option<(Instant, IpAddr)> = None;
        for step in 0..u64::from(self.count) {
            let address = self.nth(((start + step) % u64::from(self.count)) as u32);
            if self.reserved.contains(&address) || !self.is_free_elsewhere(address, now) {
                continue;
            }
            match self.by_address.get(&address) {
                None => return Some(address),
                Some(lease) if lease.until <= now => {
                    if oldest.is_none_or(|(until, _)| lease.until < until) {
                        oldest = Some((lease.until, address));
                    }
                }
                Some(_) => {}
            }
        }
        oldest.map(|(_, address)| address)
    }

    /// Makes room for one more lease of the port, if necessary by withdrawing its oldest offer.
    fn make_room(&mut self, port: u32, now: Instant) -> Result<(), Refusal> {
        let mine = |lease: &&mut Lease| lease.port == Some(port) && lease.until > now;
        if self.by_address.values_mut().filter(mine).count() < self.per_port_max {
            return Ok(());
        }
        let offers = self.by_address.values_mut().filter(mine);
        let oldest = offers.filter(|lease| lease.state == State::Offered).min_by_key(|l| l.until);
        oldest.ok_or(Refusal::PortFull)?.until = now;
        Ok(())
    }

    fn nth(&self, offset: u32) -> IpAddr {
        match self.first {
            IpAddr::V4(first) => (u32::from(first).wrapping_add(offset)).to_be_bytes().into(),
            IpAddr::V6(first) => {
                (u128::from(first).wrapping_add(offset.into())).to_be_bytes().into()
            }
        }
    }
}

impl Asker {
    /// Returns the key of its lease at this port.
    fn known_as(&self, port: Option<u32>) -> (Option<u32>, Client) {
        (port, self.client.clone())
    }
}

impl Lease {
    /// Returns true if a client at another port has it.
    fn is_elsewhere(&self, asker: &Asker, now: Instant) -> bool {
        self.until > now && self.port.is_some_and(|port| port != asker.port)
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: u32 = 3;

    fn ip(last: u8) -> IpAddr {
        [10, 0, 2, last].into()
    }

    fn at(seconds: u64) -> Instant {
        Instant::START + Duration::from_secs(seconds)
    }

    fn asker(name: u8, port: u32) -> Asker {
        let mac = MacAddr([2, 0, 0, 0, 0, name]);
        Asker { client: Client::Mac(mac), mac, port, fixed: None }
    }

    fn take(leases: &mut Leases, asker: &Asker, now: Instant, until: Instant) -> Option<IpAddr> {
        let address = leases.choose(asker, None, now).ok()?;
        leases.hold(asker, address, State::Bound, until, None);
        Some(address)
    }

    /// Goal: compared with a plain model, no address has two clients and none is outside the pool.
    #[test]
    fn an_address_has_one_client() {
        let mut leases = Leases::new(ip(10)..=ip(29), HashSet::from([ip(12)]), 64);
        let mut seed = 7u32;
        let mut model: HashMap<IpAddr, (u8, Instant)> = HashMap::new();
        for step in 0..5000 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (name, now) = ((seed >> 24) as u8 % 40, at(step));
            let who = asker(name, PORT);
            if (seed >> 16).is_multiple_of(5) {
                if let Some((&address, _)) = model.iter().find(|(_, (n, _))| *n == name) {
                    leases.release(&who, address, now);
                    model.remove(&address);
                }
                continue;
            }
            model.retain(|_, (_, until)| *until > now);
            let until = at(step + 30);
            match take(&mut leases, &who, now, until) {
                Some(address) => {
                    assert!(leases.contains(address) && address != ip(12));
                    let before = model.insert(address, (name, until));
                    assert!(before.is_none_or(|(n, _)| n == name), "step {step}: {address}");
                    model.retain(|at, (n, _)| *n != name || *at == address);
                }
                None => assert_eq!(model.len(), 19, "step {step}: all are lent"),
            }
        }
    }

    /// Goal: a client that comes back gets the address it had, even with an empty table.
    #[test]
    fn addresses_stick() {
        let mut leases = Leases::new(ip(10)..=ip(250), HashSet::new(), 64);
        let first = take(&mut leases, &asker(1, PORT), at(0), at(10)).unwrap();
        take(&mut leases, &asker(2, PORT), at(20), at(30)).unwrap();
        assert_eq!(take(&mut leases, &asker(1, PORT), at(50), at(60)), Some(first));
        let mut others = Leases::new(ip(10)..=ip(250), HashSet::new(), 64);
        assert_eq!(take(&mut others, &asker(1, PORT), at(0), at(10)), Some(first));
    }

    /// Starvation: one port gets its share, and the other still gets an address. New offers
    /// displace old ones, but not requested or declined addresses.
    #[test]
    fn a_port_takes_from_itself() {
        let mut leases = Leases::new(ip(10)..=ip(20), HashSet::new(), 4);
        for name in 0..100 {
            let address = leases.choose(&asker(name, PORT), None, at(0)).expect("makes room");
            leases.hold(&asker(name, PORT), address, State::Offered, at(60), None);
        }
        let live = leases.by_address.values().filter(|lease| lease.until > at(0)).count();
        assert_eq!(live, 4);
        for name in 100..104 {
            take(&mut leases, &asker(name, PORT), at(0), at(60)).unwrap();
        }
        assert_eq!(leases.choose(&asker(104, PORT), None, at(0)), Err(Refusal::PortFull));
        // Clients whose offers were displaced do not come back through their expired leases.
        for name in 0..100 {
            assert_eq!(leases.choose(&asker(name, PORT), None, at(1)), Err(Refusal::PortFull));
        }
        let declined = leases.of(&asker(100, PORT)).unwrap().0;
        assert!(leases.decline(&asker(100, PORT), declined, at(0)));
        assert_eq!(leases.choose(&asker(104, PORT), None, at(0)), Err(Refusal::PortFull));
        let other = take(&mut leases, &asker(1, PORT + 1), at(0), at(60));
        assert!(other.is_some_and(|address| address != declined));
    }

    /// Goal: a client identifier at another port is another client, until the first port is gone.
    /// An address that only one client may have is leased to one port.
    #[test]
    fn a_lease_belongs_to_its_port() {
        let mut leases = Leases::new(ip(10)..=ip(20), HashSet::new(), 4);
        let address = take(&mut leases, &asker(1, PORT), at(0), at(60)).unwrap();
        let thief = asker(1, PORT + 1);
        let other = take(&mut leases, &thief, at(1), at(60)).unwrap();
        assert_ne!(other, address);
        assert_eq!(leases.choose(&asker(1, PORT), None, at(2)), Ok(address));
        assert_eq!(leases.choose(&thief, Some(address), at(2)), Ok(other));
        assert!(!leases.release(&thief, address, at(2)) && !leases.decline(&thief, address, at(2)));
        leases.forget_port(PORT);
        assert_eq!(leases.choose(&asker(1, PORT + 2), None, at(3)), Ok(address));
        assert_eq!(leases.choose(&thief, None, at(3)), Ok(other), "it has an address already");

        let fixed = |port| Asker { fixed: Some(ip(30)), ..asker(7, port) };
        assert_eq!(take(&mut leases, &fixed(PORT), at(4), at(60)), Some(ip(30)));
        assert_eq!(leases.choose(&fixed(PORT + 1), None, at(5)), Err(Refusal::Elsewhere));
        leases.forget_port(PORT);
        assert_eq!(leases.choose(&fixed(PORT + 1), None, at(6)), Ok(ip(30)));
    }

    /// Goal: a pool that ends before it begins, and one with more addresses than are given out.
    #[test]
    fn pools_without_and_with_too_many_addresses() {
        let mut none = Leases::new(ip(20)..=ip(10), HashSet::new(), 4);
        assert_eq!(none.choose(&asker(1, PORT), None, at(0)), Err(Refusal::Exhausted));
        let (first, last): (IpAddr, IpAddr) =
            ("fd00::1000".parse().unwrap(), "fd00::ffff:ffff:ffff:ffff".parse().unwrap());
        let many = Leases::new(first..=last, HashSet::new(), 4);
        assert_eq!(many.count, POOL_ADDRESSES_MAX);
        assert!(many.contains("fd00::1fff".parse().unwrap()) && !many.contains(last));
        assert!(!many.contains(ip(1)));
    }
}
