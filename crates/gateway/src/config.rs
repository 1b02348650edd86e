//! The configuration: what towpath serves and with which limits, in plain validated values.
//!
//! Start from [`Config::default`], change fields, and call [`Config::check`] before use. Nothing
//! here does I/O.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::Arc;

use towpath_io::namespace::{Addresses, Interface};
use towpath_io::netlink::Route;
use towpath_net::tcp::congestion::Kind;

use crate::egress::enforcer::Enforcer;
use crate::publish::{
    JOINED_PORTS_MAX, JoinedPort, PUBLISH_MAX, Protocol, Publish, Target, is_interface_name,
};

pub use lend::LendToHost;
pub use multicast::MulticastService;
pub use size::{SizeError, parse_size};
pub use subnet::{Subnet4, Subnet6, SubnetError};

mod lend;
mod multicast;
pub(crate) mod shares;
mod size;
mod subnet;

/// Smallest MTU: the size that every IPv4 host must accept (RFC 791 §3.1).
pub const MTU_MIN: u16 = 576;
/// Largest MTU: the largest multiple of 8 with room for 14 bytes of Ethernet header in 65,535.
pub const MTU_MAX: u16 = 65_520;
/// Smallest MTU with IPv6 (RFC 8200 §5).
pub const MTU_IPV6_MIN: u16 = 1280;
/// Default memory ceiling.
pub const MEMORY_BYTES_DEFAULT: usize = 256 << 20;
/// Least memory: one full TCP window each way (2 × 4 MiB), and the same again for everything else.
pub const MEMORY_BYTES_MIN: usize = 16 << 20;
/// Default for concurrent flows: half of the host sockets that a common file limit of 32,768
/// allows.
pub const FLOWS_DEFAULT: usize = 16_384;
/// Upper bound of [`Config::flows_max`]: the ports of 16 addresses.
pub const FLOWS_MAX: usize = 16 * 65_536;
/// Most resolvers that a configuration may list.
pub const RESOLVERS_MAX: usize = 8;
/// Most addresses that may stand for the host's loopback or another address of the host.
pub const HOST_LOOPBACK_MAX: usize = 8;

/// Most addresses of the program besides the first of each IP version.
pub const FURTHER_ADDRESSES_MAX: usize = 16;
/// Most routes of the program besides the default ones: more than hosts have without a routing
/// protocol. Each is a request to the kernel at the start.
pub const ROUTES_MAX: usize = 256;

/// Most workers: the first reads the device for all, a third of the work of bulk transfers.
pub const WORKERS_MAX: usize = 8;
/// Most workers of [`Config::workers_for_this_machine`], among which ports are distributed.
pub const WORKERS_AUTO_MAX: usize = 4;
/// Most workers of [`Config::workers_for_a_program`]: each costs a thread from the start.
pub const WORKERS_PROGRAM_AUTO_MAX: usize = 2;

/// Everything that can be configured.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the program's network interface.
    pub interface: String,
    /// The interface gets its addresses and routes here. Otherwise another process configures it.
    pub configures_interface: bool,
    /// IPv6 is configured here even if another process configures the rest.
    pub configures_ipv6: bool,
    /// Largest IP packet of the program's interface, in bytes.
    pub mtu: u16,
    /// The IPv4 network; `None` disables IPv4.
    pub ipv4: Option<Ipv4Config>,
    /// The IPv6 network; `None` disables IPv6.
    pub ipv6: Option<Ipv6Config>,
    /// Further addresses of the program. It may use them as the source of what it sends; published
    /// ports lead to the first address of each IP version.
    pub further_addresses: Vec<ProgramAddress>,
    /// Routes of the program's interface besides the default ones. They lead to the gateway, too.
    pub routes: Vec<Route>,
    /// Ethernet address of the program's interface.
    pub program_mac: [u8; 6],
    /// Ethernet address of the gateway.
    pub gateway_mac: [u8; 6],
    /// Addresses inside that stand for the host's loopback.
    pub host_loopback: Vec<IpAddr>,
    /// Addresses inside that stand for addresses of the host.
    pub host_addresses: Vec<MappedAddress>,
    /// The program's link is a part of a network outside: the program reaches the other stations of
    /// its prefix there, and gateway and DNS need not be in the prefix.
    pub is_link_shared: bool,
    /// The gateway of a network probes for other stations with its addresses (RFC 5227, RFC 4862)
    /// and announces them. It keeps them in any case.
    pub detects_duplicates: bool,
    /// Gateways whose addresses belong to stations outside, too, so that the program reaches those.
    pub shared_gateways: Vec<IpAddr>,
    /// Resolvers that DNS is relayed to; `None`: the resolvers in the host's /etc/resolv.conf.
    pub resolvers: Option<Vec<IpAddr>>,
    /// Ports of the host that lead to the program.
    pub publish: Vec<Publish>,
    /// TCP ports of the program's loopback that lead to the host's.
    pub joined: Vec<JoinedPort>,
    /// UDP ports of the program's loopback that lead to the host's.
    pub joined_udp: Vec<JoinedPort>,
    /// TCP ports of the program's loopback lead to the host's while programs listen there.
    pub mirrors_host: bool,
    /// UDP ports of the program's loopback lead to the host's while programs use them there.
    pub mirrors_host_udp: bool,
    /// Connections from the host's loopback to published TCP ports bypass the stack.
    pub join_published: bool,
    /// Those connections reach the program's loopback, not its address.
    pub join_loopback: bool,
    /// Protocols whose ports are published while programs inside listen on them.
    pub followed: Vec<Protocol>,
    /// Services whose queries by multicast are passed to the host's networks, and their answers
    /// back.
    pub multicast: Vec<MulticastService>,
    /// Judges each flow to a host outside; `None` allows all.
    pub egress: Option<Arc<Enforcer>>,
    /// Where captured traffic is written.
    pub capture: Option<CaptureFile>,
    /// Most bytes of memory for packets.
    pub memory_bytes: usize,
    /// Most concurrent flows.
    pub flows_max: usize,
    /// Congestion control of connections into the network.
    pub congestion: Kind,
    /// Whether bytes for hosts are lent to the host's kernel.
    pub lend_to_host: LendToHost,
    /// Most threads that serve a program; see [`WorkerGroup`](crate::worker_group::WorkerGroup).
    pub workers: usize,
}

/// A capture file, empty and open for writing.
#[derive(Clone, Debug)]
pub struct CaptureFile {
    /// A regular file, pipe or terminal.
    pub file: Arc<File>,
    /// The path that error messages show.
    pub path: PathBuf,
}

/// An address of the program's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramAddress {
    /// The address.
    pub address: IpAddr,
    /// Bits of its network's prefix.
    pub prefix_len: u8,
}

/// An address inside that stands for an address of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedAddress {
    /// The address inside.
    pub inside: IpAddr,
    /// The address of the host, of the same IP version. While the host has none, what the program
    /// sends there is refused.
    pub host: Option<IpAddr>,
}

/// Addresses of the IPv4 network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Config {
    /// Address of the program.
    pub address: Ipv4Addr,
    /// Bits of the network's prefix.
    pub prefix_len: u8,
    /// Address of the gateway.
    pub gateway: Ipv4Addr,
    /// Address of the DNS server that the program uses, which the gateway plays.
    pub dns: Option<Ipv4Addr>,
}

/// Addresses of the IPv6 network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Config {
    /// Address of the program.
    pub address: Ipv6Addr,
    /// Bits of the network's prefix.
    pub prefix_len: u8,
    /// Address of the gateway.
    pub gateway: Ipv6Addr,
    /// Address of the DNS server that the program uses, which the gateway plays.
    pub dns: Option<Ipv6Addr>,
}

/// A configuration that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The MTU is out of range.
    #[error("MTU {0} is out of range; expected {MTU_MIN} to {MTU_MAX}")]
    Mtu(u16),
    /// The MTU is too small for IPv6, and there is no IPv4.
    #[error("MTU {0} is too small for IPv6; expected at least {MTU_IPV6_MIN}")]
    MtuIpv6(u16),
    /// IPv4 and IPv6 are both disabled.
    #[error("IPv4 and IPv6 are both disabled; enable at least one")]
    NoFamily,
    /// The interface name is not valid.
    #[error(
        "'{0}' is not a valid name for a network interface; expected 1 to 15 bytes without '/', \
         ':' and spaces"
    )]
    Interface(String),
    /// The address cannot be used for the gateway or DNS.
    #[error("{0} cannot be the address of the gateway or of DNS: {1}")]
    Gateway(IpAddr, &'static str),
    /// The address cannot be a further one of the program.
    #[error("{0} cannot be a further address of the program: {1}")]
    Further(IpAddr, &'static str),
    /// The address cannot stand for the host's loopback or another address of the host.
    #[error("cannot map {0} to the host's addresses: {1}")]
    HostLoopback(IpAddr, &'static str),
    /// The address cannot be a resolver's.
    #[error("{0} cannot be the address of a resolver; expected a unicast address")]
    Resolver(IpAddr),
    /// A published port leads to an address of a disabled IP version.
    #[error("published ports cannot lead to {0}: its IP version is disabled")]
    Target(IpAddr),
    /// A list is too long.
    #[error("too many {what}: {count}; at most {max} are allowed")]
    TooMany {
        /// What the list contains.
        what: &'static str,
        /// Its length.
        count: usize,
        /// Its greatest length.
        max: usize,
    },
    /// The memory limit is too small.
    #[error(
        "{0} bytes of memory are too few; expected at least {min} MiB for each worker, and as much \
         again for the first of several",
        min = MEMORY_BYTES_MIN >> 20
    )]
    Memory(usize),
    /// The flow limit is zero or too large.
    #[error("{0} concurrent flows are out of range; expected 1 to {FLOWS_MAX}")]
    Flows(usize),
    /// The number of workers is zero or too large.
    #[error("{0} workers are out of range; expected 1 to {WORKERS_MAX}")]
    Workers(usize),
}

/// A change that [`Config::check`] made so that a configuration works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Notice {
    /// IPv6 was disabled: it needs a larger MTU.
    #[error("IPv6 is disabled: it needs an MTU of at least {MTU_IPV6_MIN}, and the MTU is {0}")]
    Ipv6Off(u16),
}

impl Default for Config {
    fn default() -> Self {
        Self {
            interface: "tap0".into(),
            configures_interface: true,
            configures_ipv6: true,
            mtu: 1500,
            ipv4: Some(Ipv4Config::default()),
            ipv6: Some(Ipv6Config::default()),
            further_addresses: Vec::new(),
            routes: Vec::new(),
            program_mac: [0x02, 0x74, 0x6f, 0x77, 0x70, 0x15],
            gateway_mac: [0x02, 0x74, 0x6f, 0x77, 0x70, 0x02],
            host_loopback: Vec::new(),
            host_addresses: Vec::new(),
            is_link_shared: false,
            detects_duplicates: false,
            shared_gateways: Vec::new(),
            resolvers: None,
            publish: Vec::new(),
            joined: Vec::new(),
            joined_udp: Vec::new(),
            mirrors_host: false,
            mirrors_host_udp: false,
            join_published: false,
            join_loopback: false,
            followed: Vec::new(),
            multicast: Vec::new(),
            egress: None,
            capture: None,
            memory_bytes: MEMORY_BYTES_DEFAULT,
            flows_max: FLOWS_DEFAULT,
            congestion: Kind::default(),
            lend_to_host: LendToHost::default(),
            workers: 1,
        }
    }
}

impl Default for Ipv4Config {
    fn default() -> Self {
        Subnet4::DEFAULT.config()
    }
}

impl Default for Ipv6Config {
    fn default() -> Self {
        Subnet6::DEFAULT.config()
    }
}

impl Ipv4Config {
    /// True if `address` is in the network.
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix_len)).unwrap_or(0);
        (u32::from(address) ^ u32::from(self.address)) & mask == 0
    }

    /// True if `address` is in the network, and neither its first nor its last address.
    fn has_host(&self, address: Ipv4Addr) -> bool {
        let hosts = u32::MAX.checked_shr(u32::from(self.prefix_len)).unwrap_or(0);
        let host = u32::from(address) & hosts;
        self.contains(address) && host != 0 && host != hosts
    }
}

impl Ipv6Config {
    /// True if `address` is in the network.
    pub fn contains(&self, address: Ipv6Addr) -> bool {
        let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix_len)).unwrap_or(0);
        (u128::from(address) ^ u128::from(self.address)) & mask == 0
    }

    /// True if `address` is in the network, and not its first address (RFC 4291 §2.6.1).
    fn has_host(&self, address: Ipv6Addr) -> bool {
        let hosts = u128::MAX.checked_shr(u32::from(self.prefix_len)).unwrap_or(0);
        self.contains(address) && u128::from(address) & hosts != 0
    }
}

impl Config {
    /// Checks every field. Disables IPv6 if the MTU is too small for it and IPv4 is enabled.
    ///
    /// # Errors
    /// [`ConfigError`] for the first field that is not valid.
    pub fn check(&mut self) -> Result<Option<Notice>, ConfigError> {
        if !(MTU_MIN..=MTU_MAX).contains(&self.mtu) {
            return Err(ConfigError::Mtu(self.mtu));
        }
        let notice = self.check_ipv6_mtu()?;
        if self.ipv4.is_none() && self.ipv6.is_none() {
            return Err(ConfigError::NoFamily);
        }
        self.check_gateway()?;
        self.check_further()?;
        at_most(ROUTES_MAX, "routes of the program", self.routes.len())?;
        if !is_interface_name(&self.interface) {
            return Err(ConfigError::Interface(self.interface.clone()));
        }
        let mapped = self.host_addresses.iter().map(|mapped| &mapped.inside);
        let count = self.host_loopback.len() + self.host_addresses.len();
        at_most(HOST_LOOPBACK_MAX, "addresses for the host", count)?;
        self.host_loopback.iter().chain(mapped).try_for_each(|ip| self.check_host_address(ip))?;
        let resolvers = self.resolvers.as_deref().unwrap_or_default();
        at_most(RESOLVERS_MAX, "resolvers", resolvers.len())?;
        if let Some(bad) = resolvers.iter().find(|ip| ip.is_unspecified() || ip.is_multicast()) {
            return Err(ConfigError::Resolver(*bad));
        }
        at_most(PUBLISH_MAX, "published ports", self.publish.len())?;
        self.check_targets()?;
        let joined = self.joined.len() + self.joined_udp.len();
        at_most(JOINED_PORTS_MAX, "ports that lead to the host's loopback", joined)?;
        shares::check(self.memory_bytes, self.workers)?;
        if !(1..=FLOWS_MAX).contains(&self.flows_max) {
            return Err(ConfigError::Flows(self.flows_max));
        }
        Ok(notice)
    }

    /// Returns a number of workers of a network: as many as processors that this process may use,
    /// by its affinity and the quota of its control group, at most [`WORKERS_AUTO_MAX`], and as the
    /// memory is enough for. Reads files; call it before the process is confined.
    pub fn workers_for_this_machine(&self) -> usize {
        shares::auto(self.memory_bytes, shares::processors(), WORKERS_AUTO_MAX)
    }

    /// Returns a number of workers of a program, as
    /// [`workers_for_this_machine`](Self::workers_for_this_machine) does, at most
    /// [`WORKERS_PROGRAM_AUTO_MAX`].
    pub fn workers_for_a_program(&self) -> usize {
        shares::auto(self.memory_bytes, shares::processors(), WORKERS_PROGRAM_AUTO_MAX)
    }

    /// Returns the configuration of a worker after the first. Published ports, multicast and the
    /// capture are left out; the first worker has them. The workers divide the limit of flows while
    /// they run.
    pub(crate) fn share(&self) -> Self {
        Self {
            publish: Vec::new(),
            multicast: Vec::new(),
            capture: None,
            memory_bytes: self.memory_share(),
            workers: 1,
            ..self.clone()
        }
    }

    /// Returns the configuration of the first of several workers.
    pub(crate) fn share_of_first(&self) -> Self {
        let memory_bytes = shares::of_first(self.memory_bytes, self.workers);
        Self { memory_bytes, workers: 1, ..self.clone() }
    }

    /// Returns the memory of each worker after the first.
    pub(crate) fn memory_share(&self) -> usize {
        shares::of_other(self.memory_bytes, self.workers)
    }

    /// The program's network interface.
    pub fn interface(&self) -> Interface {
        Interface {
            name: self.interface.clone(),
            mtu: self.mtu,
            tx_queue_len: tx_queue_len(self.mtu),
            mac: self.program_mac,
            ipv4: self.ipv4.map(|ipv4| Addresses {
                address: ipv4.address.into(),
                prefix_len: ipv4.prefix_len,
                gateway: ipv4.gateway.into(),
            }),
            ipv6: self.ipv6.map(|ipv6| Addresses {
                address: ipv6.address.into(),
                prefix_len: ipv6.prefix_len,
                gateway: ipv6.gateway.into(),
            }),
            further: self.further_addresses.iter().map(|ip| (ip.address, ip.prefix_len)).collect(),
            routes: self.routes.clone(),
        }
    }

    /// Returns the addresses of the program: the first ones, then further ones.
    pub(crate) fn program_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let v4 = self.ipv4.map(|v4| IpAddr::V4(v4.address));
        let v6 = self.ipv6.map(|v6| IpAddr::V6(v6.address));
        let further = self.further_addresses.iter().map(|further| further.address);
        v4.into_iter().chain(v6).chain(further)
    }

    /// Returns the address at which the program reaches DNS: the IPv4 one if IPv4 is enabled.
    pub fn dns(&self) -> Option<IpAddr> {
        let ipv4 = self.ipv4.and_then(|ipv4| ipv4.dns).map(IpAddr::V4);
        ipv4.or(self.ipv6.and_then(|ipv6| ipv6.dns).map(IpAddr::V6))
    }

    /// Returns the addresses that the gateway has inside, some perhaps twice, with the prefixes of
    /// their networks: gateway, DNS, and the addresses that stand for the host.
    pub(crate) fn own_addresses(&self) -> impl Iterator<Item = (IpAddr, u8)> {
        let ipv4 = self.ipv4.into_iter().flat_map(|v4| {
            let own = [Some(v4.gateway), v4.dns].into_iter().flatten();
            own.map(move |ip| (ip.into(), if v4.contains(ip) { v4.prefix_len } else { 32 }))
        });
        let ipv6 = self.ipv6.into_iter().flat_map(|v6| {
            let own = [Some(v6.gateway), v6.dns].into_iter().flatten();
            own.map(move |ip| (ip.into(), if v6.contains(ip) { v6.prefix_len } else { 128 }))
        });
        let mapped = self.host_addresses.iter().map(|mapped| mapped.inside);
        let mapped = self.host_loopback.iter().copied().chain(mapped);
        let mapped = mapped.map(|ip: IpAddr| (ip, if ip.is_ipv4() { 32 } else { 128 }));
        ipv4.chain(ipv6).chain(mapped)
    }

    /// Returns all addresses that mean something inside: those of the program and of the gateway.
    pub fn inside_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.program_addresses().chain(self.own_addresses().map(|(address, _)| address))
    }

    fn check_ipv6_mtu(&mut self) -> Result<Option<Notice>, ConfigError> {
        if self.mtu >= MTU_IPV6_MIN || self.ipv6.is_none() {
            return Ok(None);
        }
        if self.ipv4.is_none() {
            return Err(ConfigError::MtuIpv6(self.mtu));
        }
        self.ipv6 = None;
        self.further_addresses.retain(|further| further.address.is_ipv4());
        Ok(Some(Notice::Ipv6Off(self.mtu)))
    }

    fn check_targets(&self) -> Result<(), ConfigError> {
        let is_off = |publish: &Publish| match publish.target {
            Target::Address(IpAddr::V4(v4)) if self.ipv4.is_none() => Some(v4.into()),
            Target::Address(IpAddr::V6(v6)) if self.ipv6.is_none() => Some(v6.into()),
            _ => None,
        };
        self.publish.iter().find_map(is_off).map_or(Ok(()), |ip| Err(ConfigError::Target(ip)))
    }

    fn check_further(&self) -> Result<(), ConfigError> {
        let count = self.further_addresses.len();
        at_most(FURTHER_ADDRESSES_MAX, "further addresses of the program", count)?;
        for &ProgramAddress { address, .. } in &self.further_addresses {
            let is_on = if address.is_ipv4() { self.ipv4.is_some() } else { self.ipv6.is_some() };
            let problem = if !is_on {
                "its IP version is disabled"
            } else if address.is_unspecified() || address.is_multicast() || address.is_loopback() {
                "it is not a unicast address of a network"
            } else if self.own_addresses().any(|(own, _)| own == address) {
                "it is the gateway's or that of DNS, or stands for the host"
            } else if self.program_addresses().filter(|ip| *ip == address).count() > 1 {
                "the program has it already"
            } else {
                continue;
            };
            return Err(ConfigError::Further(address, problem));
        }
        Ok(())
    }

    fn check_gateway(&self) -> Result<(), ConfigError> {
        let v4 = self.ipv4.map(|v4| {
            let place = |ip: Ipv4Addr| (IpAddr::V4(ip), v4.has_host(ip));
            (IpAddr::V4(v4.address), place(v4.gateway), v4.dns.map(place))
        });
        let v6 = self.ipv6.map(|v6| {
            let place = |ip: Ipv6Addr| (IpAddr::V6(ip), v6.has_host(ip));
            (IpAddr::V6(v6.address), place(v6.gateway), v6.dns.map(place))
        });
        for (program, gateway, dns) in v4.into_iter().chain(v6) {
            for (address, is_inside) in [Some(gateway), dns].into_iter().flatten() {
                let problem = if !self.is_link_shared && !is_inside {
                    "it is not a host address of the network"
                } else if address.is_unspecified() || address.is_multicast() {
                    "it is not a unicast address"
                } else if address.is_loopback() {
                    "it is the program's own loopback"
                } else if address == program {
                    "it is the program's own address"
                } else {
                    continue;
                };
                return Err(ConfigError::Gateway(address, problem));
            }
            if let Some((dns, _)) = dns.filter(|dns| !self.is_link_shared && *dns == gateway) {
                return Err(ConfigError::Gateway(dns, "gateway and DNS need different addresses"));
            }
        }
        Ok(())
    }

    fn check_host_address(&self, address: &IpAddr) -> Result<(), ConfigError> {
        let (family_on, program, dns) = match address {
            IpAddr::V4(_) => (
                self.ipv4.is_some(),
                self.ipv4.map(|ipv4| ipv4.address.into()),
                self.ipv4.and_then(|ipv4| ipv4.dns).map(IpAddr::from),
            ),
            IpAddr::V6(_) => (
                self.ipv6.is_some(),
                self.ipv6.map(|ipv6| ipv6.address.into()),
                self.ipv6.and_then(|ipv6| ipv6.dns).map(IpAddr::from),
            ),
        };
        let problem = if !family_on {
            "its IP version is disabled"
        } else if address.is_loopback() {
            "it is the program's own loopback"
        } else if address.is_unspecified() || address.is_multicast() {
            "it is not a unicast address"
        } else if program == Some(*address) {
            "it is the program's own address"
        } else if dns == Some(*address) && !self.is_link_shared {
            "it is the address of DNS"
        } else {
            return Ok(());
        };
        Err(ConfigError::HostLoopback(*address, problem))
    }
}

/// Packets that the program's interface must be able to queue so that full windows of several TCP
/// flows fit even without late segmentation. The kernel's usual queue of 1,000 packets would drop
/// them at MTU 1500, and every drop costs a round of recovery.
pub fn tx_queue_len(mtu: u16) -> u32 {
    const FLOWS: u32 = 8;
    /// The usual maximum of `net.ipv4.tcp_wmem`.
    const WINDOW_BYTES: u32 = 4 << 20;
    /// The kernel's default; small packets need it at any MTU.
    const PACKETS_MIN: u32 = 1000;
    /// Reached at [`MTU_MIN`]; the kernel allocates one pointer for each packet.
    const PACKETS_MAX: u32 = 65_536;
    const _: () = assert!(FLOWS * WINDOW_BYTES / (MTU_MIN as u32) < PACKETS_MAX);
    (FLOWS * WINDOW_BYTES / u32::from(mtu.max(1))).clamp(PACKETS_MIN, PACKETS_MAX)
}

fn at_most(max: usize, what: &'static str, count: usize) -> Result<(), ConfigError> {
    if count > max { Err(ConfigError::TooMany { what, count, max }) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
