//! The configuration of the services.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::time::Duration;

use super::wire::domain::DomainName;
use towpath_net::wire::MacAddr;

/// Default lease time: long enough that renewals are rare, short enough that a pool recovers
/// overnight.
pub const LEASE_TIME_DEFAULT: Duration = Duration::from_secs(12 * 3600);
/// Default for leases of one port, per family: a guest and containers in it.
pub const LEASES_PER_PORT_DEFAULT: usize = 16;
/// Shortest lease time: clients renew after half of it, and some at most once a minute.
pub const LEASE_TIME_MIN: Duration = Duration::from_secs(120);
/// Longest lease time: a year.
pub const LEASE_TIME_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
/// Greatest limit of leases of one port: as many as a pool gives out.
pub const LEASES_PER_PORT_MAX: usize = 4096;
/// Most search domains: with names of common length they fit an option of DHCP.
pub const SEARCH_MAX: usize = 8;
/// Most DNS servers of each family that guests get; most guests use three.
pub const DNS_MAX: usize = 8;
/// Most static leases: one guest for each port of a full switch, and as many again.
pub const STATIC_LEASES_MAX: usize = 1024;

/// What the services give to guests. Addresses of the gateway and of DNS are never leased.
#[derive(Clone, Debug)]
pub struct Config {
    /// Link-layer address of the gateway, the source of all answers.
    pub mac: MacAddr,
    /// MTU of the network.
    pub mtu: u16,
    /// Domain of the guests: the zone that is answered here.
    pub domain: Option<DomainName>,
    /// Search domains; the guests' own domain comes first if it is among them.
    pub search: Vec<DomainName>,
    /// IPv4.
    pub ipv4: Option<Ipv4>,
    /// IPv6.
    pub ipv6: Option<Ipv6>,
    /// Names in the domain that do not belong to guests, such as the gateway's.
    pub hosts: Vec<(DomainName, IpAddr)>,
    /// Lease time.
    pub lease_time: Duration,
    /// Most leases of one port, per family.
    pub leases_per_port_max: usize,
    /// Services that are off.
    pub disabled: Disabled,
    /// Random seed for the jitter of advertisements.
    pub seed: u64,
}

/// Services that a network does without. Static leases count all the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disabled {
    /// DHCP for IPv4.
    pub dhcpv4: bool,
    /// DHCP for IPv6.
    pub dhcpv6: bool,
    /// Router advertisements.
    pub advertisements: bool,
}

/// A configuration that is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The pool is outside of the network, or ends before it begins.
    #[error("{0}-{1} is not a range of addresses in the network")]
    Pool(IpAddr, IpAddr),
    /// The lease time is too short or too long.
    #[error(
        "a lease time of {0} s is out of range; expected {min} s to {max} s",
        min = LEASE_TIME_MIN.as_secs(),
        max = LEASE_TIME_MAX.as_secs()
    )]
    LeaseTime(u64),
    /// The limit of leases per port is zero or too large.
    #[error("{0} leases per port are out of range; expected 1 to {LEASES_PER_PORT_MAX}")]
    LeasesPerPort(usize),
    /// Too many search domains.
    #[error("{0} search domains are too many; at most {SEARCH_MAX} are allowed")]
    Search(usize),
    /// Too many DNS servers.
    #[error("{0} DNS servers are too many; at most {DNS_MAX} of each IP version are allowed")]
    Dns(usize),
    /// The address cannot be a DNS server's.
    #[error("{0} cannot be the address of a DNS server; expected a unicast address")]
    DnsAddress(IpAddr),
}

impl Config {
    /// Checks every setting.
    ///
    /// # Errors
    /// [`ConfigError`] for the first one that is not valid.
    pub fn check(&self) -> Result<(), ConfigError> {
        if let Some(v4) = &self.ipv4 {
            let (first, last) = (*v4.pool.start(), *v4.pool.end());
            if first > last || !v4.contains(first) || !v4.contains(last) {
                return Err(ConfigError::Pool(first.into(), last.into()));
            }
        }
        if let Some((v6, pool)) = self.ipv6.as_ref().and_then(|v6| Some((v6, v6.pool.as_ref()?))) {
            let (first, last) = (*pool.start(), *pool.end());
            if first > last || !v6.contains(first) || !v6.contains(last) {
                return Err(ConfigError::Pool(first.into(), last.into()));
            }
        }
        if !(LEASE_TIME_MIN..=LEASE_TIME_MAX).contains(&self.lease_time) {
            return Err(ConfigError::LeaseTime(self.lease_time.as_secs()));
        }
        if !(1..=LEASES_PER_PORT_MAX).contains(&self.leases_per_port_max) {
            return Err(ConfigError::LeasesPerPort(self.leases_per_port_max));
        }
        if self.search.len() > SEARCH_MAX {
            return Err(ConfigError::Search(self.search.len()));
        }
        let dns_v4 = self.ipv4.iter().flat_map(|v4| &v4.dns).map(|address| IpAddr::from(*address));
        let dns_v6 = self.ipv6.iter().flat_map(|v6| &v6.dns).map(|address| IpAddr::from(*address));
        for count in [dns_v4.clone().count(), dns_v6.clone().count()] {
            if count > DNS_MAX {
                return Err(ConfigError::Dns(count));
            }
        }
        let mut dns = dns_v4.chain(dns_v6);
        match dns.find(|address| address.is_unspecified() || address.is_multicast()) {
            Some(wrong) => Err(ConfigError::DnsAddress(wrong)),
            None => Ok(()),
        }
    }
}

/// The IPv4 network of the services.
#[derive(Clone, Debug)]
pub struct Ipv4 {
    /// Router and DHCP server, which need not be in the network.
    pub gateway: Ipv4Addr,
    /// Any address of the network.
    pub network: Ipv4Addr,
    /// Length of the network's prefix in bits.
    pub prefix_len: u8,
    /// DNS servers. The services answer queries to them about the guests' names.
    pub dns: Vec<Ipv4Addr>,
    /// Addresses to lease.
    pub pool: RangeInclusive<Ipv4Addr>,
}

impl Ipv4 {
    /// Returns the netmask.
    pub fn netmask(&self) -> Ipv4Addr {
        let host_bits = 32 - u32::from(self.prefix_len).min(32);
        Ipv4Addr::from(u32::MAX.checked_shl(host_bits).unwrap_or(0))
    }

    /// Returns the broadcast address.
    pub fn broadcast(&self) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.network) | !u32::from(self.netmask()))
    }

    /// Returns true if the address is in the network.
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        (u32::from(address) ^ u32::from(self.network)) & u32::from(self.netmask()) == 0
    }
}

/// The IPv6 network of the services.
#[derive(Clone, Debug)]
pub struct Ipv6 {
    /// Router, which need not be in the network. It also has the address of [`super::link_local`],
    /// from which it sends advertisements, and must answer for both.
    pub gateway: Ipv6Addr,
    /// Any address of the network.
    pub network: Ipv6Addr,
    /// Length of the network's prefix in bits.
    pub prefix_len: u8,
    /// DNS servers. The services answer queries to them about the guests' names.
    pub dns: Vec<Ipv6Addr>,
    /// Guests form their own addresses (RFC 4862); only with a prefix of 64 bits.
    pub autonomous: bool,
    /// Addresses to lease, if any.
    pub pool: Option<RangeInclusive<Ipv6Addr>>,
}

impl Ipv6 {
    /// Returns the prefix.
    pub fn prefix(&self) -> Ipv6Addr {
        let host_bits = 128 - u32::from(self.prefix_len).min(128);
        Ipv6Addr::from(u128::from(self.network) & u128::MAX.checked_shl(host_bits).unwrap_or(0))
    }

    /// Returns true if the address is in the network.
    pub fn contains(&self, address: Ipv6Addr) -> bool {
        let other = Self { network: address, ..self.clone() };
        other.prefix() == self.prefix()
    }
}

/// A guest with a reserved address or a fixed name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticLease {
    /// The guest.
    pub guest: Guest,
    /// Its IPv4 address; `None`: one from the pool.
    pub ipv4: Option<Ipv4Addr>,
    /// Its IPv6 address; `None`: one from the pool.
    pub ipv6: Option<Ipv6Addr>,
    /// Its name, which overrides the name that it sends.
    pub name: Option<DomainName>,
    /// Its link-layer address, if it is configured with the addresses and asks for none; only for
    /// the guest at a port. It is announced to other hosts with them.
    pub station: Option<MacAddr>,
}

impl StaticLease {
    /// A lease that gives the guest nothing yet.
    pub fn of(guest: Guest) -> Self {
        Self { guest, ipv4: None, ipv6: None, name: None, station: None }
    }

    /// Returns its addresses.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        [self.ipv4.map(IpAddr::from), self.ipv6.map(IpAddr::from)].into_iter().flatten()
    }

    /// Returns the link-layer address of its guest, if the lease says it.
    pub(super) fn mac(&self) -> Option<MacAddr> {
        match self.guest {
            Guest::Mac(mac) => Some(mac),
            _ => self.station,
        }
    }
}

/// What a static lease leaves to the network; by default nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Automatic {
    /// The IPv4 address is chosen, if none is given.
    pub ipv4: bool,
    /// The IPv6 address is chosen, if none is given.
    pub ipv6: bool,
    /// The name is left out if another guest has it.
    pub name: bool,
}

impl fmt::Display for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = |id: &[u8]| id.iter().fold(String::new(), |text, b| text + &format!("{b:02x}"));
        match self {
            Self::Port(name) => write!(f, "port {name}"),
            Self::Mac(mac) => write!(f, "mac {mac}"),
            Self::ClientId(id) => write!(f, "client-id {}", hex(id)),
            Self::Duid(id) => write!(f, "duid {}", hex(id)),
        }
    }
}

/// Why a static lease was not added or removed. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StaticLeaseError {
    /// It has neither an address nor a name.
    #[error("a static lease needs ipv4, ipv6 or name")]
    Empty,
    /// The guest has a static lease already.
    #[error("{0} already has a static lease; remove it first")]
    Exists(Guest),
    /// The guest has no static lease.
    #[error("{0} has no static lease")]
    Unknown(Guest),
    /// The address is not one for guests of this network.
    #[error("{0} is not an address for guests of this network")]
    Outside(IpAddr),
    /// The address belongs to the gateway, to DNS or to another guest.
    #[error("{0} is reserved for the network, or in use by another guest")]
    Taken(IpAddr),
    /// The address is leased to another guest.
    #[error("{address} is leased to {mac} for another {seconds} seconds")]
    Lent {
        /// The address.
        address: IpAddr,
        /// The station that has it.
        mac: MacAddr,
        /// Remaining time of that lease.
        seconds: u64,
    },
    /// Another host announces the address for another station.
    #[error("{address} is in use at another host, by {mac}")]
    Announced {
        /// The address.
        address: IpAddr,
        /// The station that has it.
        mac: MacAddr,
    },
    /// The network has no addresses of this IP version to choose from.
    #[error("the network leases no IPv{0} addresses; give one, or none")]
    NoPool(u8),
    /// All addresses of this IP version that may be chosen are in use.
    #[error("all IPv{0} addresses that this host may lease are in use")]
    Exhausted(u8),
    /// It is not known yet which addresses other hosts have.
    #[error("the other hosts of the network, and their addresses, are not known yet; try again")]
    Settling,
    /// The name belongs to the network or to another guest.
    #[error("the name '{0}' is in use by the network or another guest")]
    Name(DomainName),
    /// There are [`STATIC_LEASES_MAX`] already.
    #[error("the network already has {STATIC_LEASES_MAX} static leases, the maximum")]
    TooMany,
}

/// How a guest is identified. The port is certain; guests choose the other identifiers themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guest {
    /// The guest at the port with this name.
    Port(String),
    /// The guest with this link-layer address.
    Mac(MacAddr),
    /// The guest with this client identifier in DHCP for IPv4.
    ClientId(Vec<u8>),
    /// The guest with this DUID in DHCP for IPv6.
    Duid(Vec<u8>),
}
