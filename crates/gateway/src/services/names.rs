//! Names of guests, and DNS answers about them (RFC 1035).
//!
//! Three kinds of names are local: names in the domain of the network, single labels that a guest
//! has, and the reverse names of the network's addresses. Queries for all others go to the
//! resolvers of the host. A name belongs to the first guest that claims it, until its last lease is
//! over. Guests cannot claim names that the configuration gives.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use super::wire::domain::DomainName;
use simple_dns::rdata::{A, AAAA, PTR, RData, SOA};
use simple_dns::{
    CLASS, Name, OPCODE, Packet, PacketFlag, QCLASS, QTYPE, RCODE, ResourceRecord, TYPE,
};
use towpath_net::time::Instant;
use towpath_net::wire::MacAddr;

use super::config::{Config, StaticLease};
use super::leases::Client;

/// Time to live of answers: a guest may be gone soon.
const TTL: Duration = Duration::from_secs(10);
/// Most names: as many as leases of both families.
const NAMES_MAX: usize = 8192;
/// Most addresses of a name.
const ADDRESSES_PER_NAME_MAX: usize = 8;

/// A time that is never reached.
const NEVER: Instant = Instant::from_micros(u64::MAX);

/// The owner of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Owner {
    /// The configuration gave it, to this guest or to none.
    Given(Option<usize>),
    /// The station at this port claimed it, for both families. Without a port the station may be at
    /// any port.
    Station(MacAddr, Option<u32>),
}

#[derive(Clone)]
struct Entry {
    owner: Owner,
    addresses: Vec<(IpAddr, Instant)>,
}

/// The names of a network's stations.
#[derive(Clone)]
pub(super) struct Names {
    domain: Option<DomainName>,
    /// Networks whose reverse names are local, with the lengths of their prefixes.
    networks: Vec<(IpAddr, u8)>,
    by_name: HashMap<DomainName, Entry>,
    by_address: HashMap<IpAddr, DomainName>,
    /// Number of claims for names of other guests.
    pub(super) conflicts: u64,
    /// Number of queries that were answered here.
    pub(super) answered: u64,
}

impl Names {
    pub(super) fn new(config: &Config) -> Self {
        let v4 = config.ipv4.as_ref().map(|v4| (v4.gateway.into(), v4.prefix_len));
        let v6 = config.ipv6.as_ref().map(|v6| (v6.gateway.into(), v6.prefix_len));
        let mut names = Self {
            domain: config.domain.clone(),
            networks: v4.into_iter().chain(v6).collect(),
            by_name: HashMap::new(),
            by_address: HashMap::new(),
            conflicts: 0,
            answered: 0,
        };
        for (name, address) in &config.hosts {
            names.give(name, None, Some(*address));
        }
        names
    }

    /// Gives a guest the name of its static lease; another guest with that name loses it.
    pub(super) fn give_guest(&mut self, number: usize, lease: &StaticLease) {
        let Some(name) = &lease.name else { return };
        self.drop_name(name);
        self.give(name, Some(number), None);
        for address in lease.addresses() {
            self.release(address);
            self.give(name, Some(number), Some(address));
        }
    }

    /// Returns true if the configuration or a static lease gave the name.
    pub(super) fn is_given(&self, name: &DomainName) -> bool {
        self.by_name.get(name).is_some_and(|entry| matches!(entry.owner, Owner::Given(_)))
    }

    /// Returns true if no guest has the name.
    pub(super) fn is_free(&self, name: &DomainName, now: Instant) -> bool {
        let is_over =
            |entry: &Entry| matches!(entry.owner, Owner::Station(..)) && entry.is_over(now);
        self.by_name.get(name).is_none_or(is_over)
    }

    /// Removes a name.
    pub(super) fn drop_name(&mut self, name: &DomainName) {
        if self.by_name.remove(name).is_some() {
            self.by_address.retain(|_, other| other != name);
        }
    }

    /// Gives a name without a time limit.
    fn give(&mut self, name: &DomainName, guest: Option<usize>, address: Option<IpAddr>) {
        let entry = self
            .by_name
            .entry(name.clone())
            .or_insert_with(|| Entry { owner: Owner::Given(guest), addresses: Vec::new() });
        if let Some(address) = address {
            entry.addresses.push((address, NEVER));
            self.by_address.insert(address, name.clone());
        }
    }

    /// Claims `name` for `address` until then; returns false if it belongs to another guest.
    pub(super) fn claim(
        &mut self,
        name: &DomainName,
        client: &Client,
        (mac, port): (MacAddr, Option<u32>),
        address: IpAddr,
        until: Instant,
        now: Instant,
    ) -> bool {
        if self.by_address.get(&address).is_some_and(|before| before != name) {
            self.release(address);
        }
        if self.by_name.len() >= NAMES_MAX {
            self.forget_old(now);
        }
        let full = self.by_name.len() >= NAMES_MAX;
        let owner = Owner::Station(mac, port);
        let entry = match self.by_name.get_mut(name) {
            None if full => return false,
            None => {
                self.by_name.entry(name.clone()).or_insert(Entry { owner, addresses: Vec::new() })
            }
            Some(entry) => {
                let given = matches!(&entry.owner, Owner::Given(Some(index))
                    if *client == Client::Static(*index));
                let over = matches!(entry.owner, Owner::Station(..)) && entry.is_over(now);
                if over || entry.owner == Owner::Station(mac, None) {
                    entry.owner = owner.clone();
                }
                if !given && entry.owner != owner {
                    self.conflicts += 1;
                    return false;
                }
                entry
            }
        };
        // An address that the configuration gives the name has no time limit.
        let given = entry.addresses.contains(&(address, NEVER));
        entry.addresses.retain(|(other, until)| *until > now && *other != address);
        if entry.addresses.len() >= ADDRESSES_PER_NAME_MAX {
            return false;
        }
        entry.addresses.push((address, if given { NEVER } else { until }));
        self.by_address.insert(address, name.clone());
        true
    }

    /// The port is gone: its stations may be at another port now.
    pub(super) fn forget_port(&mut self, port: u32) {
        for entry in self.by_name.values_mut() {
            if let Owner::Station(_, at) = &mut entry.owner {
                at.take_if(|at| *at == port);
            }
        }
    }

    /// The lease of `address` has ended early.
    pub(super) fn release(&mut self, address: IpAddr) {
        let Some(name) = self.by_address.get(&address) else { return };
        let Some(entry) = self.by_name.get_mut(name) else { return };
        if entry.addresses.iter().any(|(other, until)| *other == address && *until == NEVER) {
            return;
        }
        entry.addresses.retain(|(other, _)| *other != address);
        if entry.addresses.is_empty() && matches!(entry.owner, Owner::Station(..)) {
            self.by_name.remove(name);
        }
        self.by_address.remove(&address);
    }

    /// Returns the answer to a query about a local name, or `None` if the name is not local.
    pub(super) fn answer(&mut self, question: &[u8], now: Instant) -> Option<Vec<u8>> {
        let query = Packet::parse(question).ok()?;
        let [asked] = &query.questions[..] else { return None };
        let is_query = query.opcode() == OPCODE::StandardQuery
            && !query.has_flags(PacketFlag::RESPONSE)
            && matches!(asked.qclass, QCLASS::CLASS(CLASS::IN) | QCLASS::ANY);
        if !is_query {
            return None;
        }
        let found = self.find(&labels_of(&asked.qname)?, now)?;
        self.answered += 1;
        let mut reply = Packet::new_reply(query.id());
        reply.set_flags(PacketFlag::AUTHORITATIVE_ANSWER | PacketFlag::RECURSION_AVAILABLE);
        if query.has_flags(PacketFlag::RECURSION_DESIRED) {
            reply.set_flags(PacketFlag::RECURSION_DESIRED);
        }
        let ttl = TTL.as_secs() as u32;
        let wants = |kind: TYPE| matches!(asked.qtype, QTYPE::ANY) || asked.qtype == kind.into();
        let mut add = |data: RData<'static>| {
            let record = ResourceRecord::new(asked.qname.clone(), CLASS::IN, ttl, data);
            reply.answers.push(record);
        };
        match &found {
            Found::Addresses(addresses) => {
                for address in addresses {
                    match address {
                        IpAddr::V4(v4) if wants(TYPE::A) => {
                            add(RData::A(A { address: u32::from(*v4) }));
                        }
                        IpAddr::V6(v6) if wants(TYPE::AAAA) => {
                            add(RData::AAAA(AAAA { address: u128::from(*v6) }));
                        }
                        _ => {}
                    }
                }
            }
            Found::Name(name) if wants(TYPE::PTR) => {
                add(RData::PTR(PTR(Name::new(name.as_str()).ok()?.into_owned())));
            }
            Found::Name(_) => {}
            Found::Nothing => *reply.rcode_mut() = RCODE::NameError,
        }
        if reply.answers.is_empty() {
            reply.name_servers.push(self.authority()?);
        }
        reply.questions.push(asked.clone());
        reply.build_bytes_vec_compressed().ok()
    }

    /// Looks up a local name; `None` if it is not local.
    fn find(&self, labels: &[String], now: Instant) -> Option<Found> {
        if let Some(address) = reverse(labels) {
            let ours = self.networks.iter().any(|(net, bits)| is_within(address, *net, *bits));
            return ours.then(|| self.find_address(address, now));
        }
        let asked: Vec<&str> = labels.iter().map(String::as_str).collect();
        if let [single] = asked[..]
            && let Ok(name) = single.parse()
            && let Some(addresses) = self.addresses(&name, now)
        {
            return Some(Found::Addresses(addresses));
        }
        let domain: Vec<&str> = self.domain.as_ref()?.labels().collect();
        let before = asked.strip_suffix(&domain[..])?;
        // The domain itself exists and has no address.
        if before.is_empty() {
            return Some(Found::Addresses(Vec::new()));
        }
        let addresses = before.join(".").parse().ok().and_then(|name| self.addresses(&name, now));
        Some(addresses.map_or(Found::Nothing, Found::Addresses))
    }

    fn find_address(&self, address: IpAddr, now: Instant) -> Found {
        let name = self.by_address.get(&address).filter(|name| {
            self.addresses(name, now).is_some_and(|addresses| addresses.contains(&address))
        });
        let whole = name.map(|name| match &self.domain {
            Some(domain) => name.below(domain).unwrap_or_else(|| name.clone()),
            None => name.clone(),
        });
        whole.map_or(Found::Nothing, Found::Name)
    }

    /// Returns the current addresses of a name; `None` if there is no such name.
    pub(super) fn addresses(&self, name: &DomainName, now: Instant) -> Option<Vec<IpAddr>> {
        let entry = self.by_name.get(name)?;
        let live = entry.addresses.iter().filter(|(_, until)| *until > now);
        let addresses: Vec<IpAddr> = live.map(|(address, _)| *address).collect();
        // A given name exists even without addresses.
        (!addresses.is_empty() || matches!(entry.owner, Owner::Given(_))).then_some(addresses)
    }

    /// Returns the SOA record that limits how long a negative answer is cached (RFC 2308 §3).
    fn authority(&self) -> Option<ResourceRecord<'static>> {
        let zone = self.domain.as_ref().map_or("", DomainName::as_str);
        let zone = Name::new(zone).ok()?.into_owned();
        let seconds = TTL.as_secs() as u32;
        let data = RData::SOA(SOA {
            mname: zone.clone(),
            rname: zone.clone(),
            serial: 1,
            refresh: seconds as i32,
            retry: seconds as i32,
            expire: seconds as i32,
            minimum: seconds,
        });
        Some(ResourceRecord::new(zone, CLASS::IN, seconds, data))
    }

    /// Removes names whose leases are all over.
    fn forget_old(&mut self, now: Instant) {
        self.by_name
            .retain(|_, entry| matches!(entry.owner, Owner::Given(_)) || !entry.is_over(now));
        let by_name = &self.by_name;
        self.by_address.retain(|_, name| by_name.contains_key(name));
    }
}

impl Entry {
    fn is_over(&self, now: Instant) -> bool {
        self.addresses.iter().all(|(_, until)| *until <= now)
    }
}

/// The result for a local name.
enum Found {
    /// A name with these addresses, perhaps none of the family asked for.
    Addresses(Vec<IpAddr>),
    /// An address with this name.
    Name(DomainName),
    /// No such name.
    Nothing,
}

/// Returns the labels in lower case; `None` if one is not text.
fn labels_of(name: &Name<'_>) -> Option<Vec<String>> {
    let text = |label: &[u8]| Some(std::str::from_utf8(label).ok()?.to_ascii_lowercase());
    name.as_bytes().map(text).collect()
}

/// Returns the address of a reverse name (RFC 1035 §3.5, RFC 3596 §2.5).
fn reverse(labels: &[String]) -> Option<IpAddr> {
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    if let Some(rest) = labels.strip_suffix(&["in-addr", "arpa"]) {
        let octets: Vec<u8> = rest.iter().rev().map(|l| l.parse().ok()).collect::<Option<_>>()?;
        return Some(Ipv4Addr::from(<[u8; 4]>::try_from(octets).ok()?).into());
    }
    let rest = labels.strip_suffix(&["ip6", "arpa"])?;
    if rest.len() != 32 {
        return None;
    }
    let digit =
        |label: &&str| if label.len() == 1 { u128::from_str_radix(label, 16).ok() } else { None };
    let digits: Vec<u128> = rest.iter().map(digit).collect::<Option<_>>()?;
    let number = digits.iter().rev().fold(0, |number, digit| number << 4 | digit);
    Some(Ipv6Addr::from(number).into())
}

fn is_within(address: IpAddr, network: IpAddr, bits: u8) -> bool {
    match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            let differ = u32::from(address) ^ u32::from(network);
            differ.leading_zeros() >= u32::from(bits).min(32)
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => {
            let differ = u128::from(address) ^ u128::from(network);
            differ.leading_zeros() >= u32::from(bits).min(128)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;
