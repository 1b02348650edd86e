//! What the services tell guests.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::time::Duration;

use towpath_net::wire::MacAddr;
use towpath_net::wire::domain::DomainName;

/// How long an address is lent by default: long enough that renewing is rare, short enough that a
/// pool recovers over night.
pub const LEASE_TIME_DEFAULT: Duration = Duration::from_secs(12 * 3600);
/// Leases of one port, of each family, by default: a guest and containers in it.
pub const LEASES_PER_PORT_DEFAULT: usize = 16;
/// Shortest lease: clients ask again after half of it, and some no more often than once a minute.
pub const LEASE_TIME_MIN: Duration = Duration::from_secs(120);
/// Longest lease: a year.
pub const LEASE_TIME_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
/// Most leases of one port that may be asked for: all that a pool gives out.
pub const LEASES_PER_PORT_MAX: usize = 4096;
/// Most domains to search: with names of common length they fit an option of DHCP.
pub const SEARCH_MAX: usize = 8;
/// Most DNS servers of each family that guests are told; most ask three.
pub const DNS_MAX: usize = 8;
/// Most static leases: a guest for each port of a full switch, and as many again. Beyond it
/// another is refused.
pub const STATIC_LEASES_MAX: usize = 1024;

/// What the services tell guests. Addresses of the gateway and of DNS are never lent.
#[derive(Clone, Debug)]
pub struct Config {
    /// Link-layer address of the gateway, from which all answers come.
    pub mac: MacAddr,
    /// MTU of the network.
    pub mtu: u16,
    /// Domain of the guests: the zone that is answered here.
    pub domain: Option<DomainName>,
    /// Domains to look for names in; the guests' own stands first if it is among them.
    pub search: Vec<DomainName>,
    /// IPv4.
    pub ipv4: Option<Ipv4>,
    /// IPv6.
    pub ipv6: Option<Ipv6>,
    /// Names in the domain that do not come from guests, such as the gateway's.
    pub hosts: Vec<(DomainName, IpAddr)>,
    /// How long an address is lent.
    pub lease_time: Duration,
    /// Most leases of one port, of each family.
    pub leases_per_port_max: usize,
    /// Where the jitter of advertisements comes from.
    pub seed: u64,
}

/// A configuration that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Addresses to lend that are not of the network, or end before they begin.
    #[error("{0}-{1} cannot be lent: it is no range of addresses in the network")]
    Pool(IpAddr, IpAddr),
    /// Too short or too long a time.
    #[error(
        "a lease of {0} seconds is out of range; it may be {min} to {max}",
        min = LEASE_TIME_MIN.as_secs(),
        max = LEASE_TIME_MAX.as_secs()
    )]
    LeaseTime(u64),
    /// No leases, or too many.
    #[error("{0} leases of a port are out of range; there may be 1 to {LEASES_PER_PORT_MAX}")]
    LeasesPerPort(usize),
    /// Too many domains.
    #[error("{0} domains to search are too many; there may be {SEARCH_MAX}")]
    Search(usize),
    /// Too many servers.
    #[error("{0} DNS servers are too many; there may be {DNS_MAX} of each family")]
    Dns(usize),
    /// An address that no server has.
    #[error("{0} cannot be the address of a DNS server")]
    DnsAddress(IpAddr),
}

impl Config {
    /// Checks what can be chosen.
    ///
    /// # Errors
    /// [`ConfigError`] for the first that cannot work.
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

/// IPv4 of the network.
#[derive(Clone, Debug)]
pub struct Ipv4 {
    /// Router and DHCP server.
    pub gateway: Ipv4Addr,
    /// Bits of the network.
    pub prefix_len: u8,
    /// DNS servers. Questions to them about the guests' names are answered here.
    pub dns: Vec<Ipv4Addr>,
    /// Addresses to lend.
    pub pool: RangeInclusive<Ipv4Addr>,
}

impl Ipv4 {
    /// The netmask.
    pub fn netmask(&self) -> Ipv4Addr {
        let host_bits = 32 - u32::from(self.prefix_len).min(32);
        Ipv4Addr::from(u32::MAX.checked_shl(host_bits).unwrap_or(0))
    }

    /// The address of all stations.
    pub fn broadcast(&self) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.gateway) | !u32::from(self.netmask()))
    }

    /// True if the network has the address.
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        (u32::from(address) ^ u32::from(self.gateway)) & u32::from(self.netmask()) == 0
    }
}

/// IPv6 of the network.
#[derive(Clone, Debug)]
pub struct Ipv6 {
    /// Router. It also has the address of [`super::link_local`], from which it advertises itself,
    /// and must answer for both.
    pub gateway: Ipv6Addr,
    /// Bits of the network.
    pub prefix_len: u8,
    /// DNS servers. Questions to them about the guests' names are answered here.
    pub dns: Vec<Ipv6Addr>,
    /// Guests make their own addresses (RFC 4862); only with a prefix of 64 bits.
    pub autonomous: bool,
    /// Addresses to lend, if any.
    pub pool: Option<RangeInclusive<Ipv6Addr>>,
}

impl Ipv6 {
    /// The prefix.
    pub fn prefix(&self) -> Ipv6Addr {
        let host_bits = 128 - u32::from(self.prefix_len).min(128);
        Ipv6Addr::from(u128::from(self.gateway) & u128::MAX.checked_shl(host_bits).unwrap_or(0))
    }

    /// True if the network has the address.
    pub fn contains(&self, address: Ipv6Addr) -> bool {
        let other = Self { gateway: address, ..self.clone() };
        other.prefix() == self.prefix()
    }
}

/// A guest that is known beforehand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticLease {
    /// Which guest it is.
    pub guest: Guest,
    /// Its address; without, one of the pool.
    pub ipv4: Option<Ipv4Addr>,
    /// Its address; without, one of the pool.
    pub ipv6: Option<Ipv6Addr>,
    /// Its name, whatever it calls itself.
    pub name: Option<DomainName>,
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

/// Why there is no such static lease, or is one already. Nothing was done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StaticLeaseError {
    /// Neither an address nor a name.
    #[error("a static lease wants an address or a name")]
    Empty,
    /// The guest has one.
    #[error("there is a static lease for {0} already")]
    Exists(Guest),
    /// The guest has none.
    #[error("there is no static lease for {0}")]
    Unknown(Guest),
    /// An address that guests of this network do not get.
    #[error("{0} is no address that guests of this network can have")]
    Outside(IpAddr),
    /// An address of the gateway, of DNS or of another guest.
    #[error("{0} is taken")]
    Taken(IpAddr),
    /// Somebody else has the address.
    #[error("{address} is lent to {mac} for another {seconds} seconds")]
    Lent {
        /// The address.
        address: IpAddr,
        /// Who has it.
        mac: MacAddr,
        /// For how long.
        seconds: u64,
    },
    /// A name that the network or another guest was given.
    #[error("the name '{0}' is taken")]
    Name(DomainName),
    /// As many as there may be.
    #[error("there may be {STATIC_LEASES_MAX} static leases at most")]
    TooMany,
}

/// How a guest is known. The port is certain; the others are what the guest says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guest {
    /// Whoever is at the port with this name.
    Port(String),
    /// By its link-layer address.
    Mac(MacAddr),
    /// By the client identifier of DHCP for IPv4.
    ClientId(Vec<u8>),
    /// By the identifier of DHCP for IPv6.
    Duid(Vec<u8>),
}
