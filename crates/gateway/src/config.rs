//! What a towpath serves and with which limits, in plain values that have been checked once.
//!
//! Start from [`Config::default`], change fields, and call [`Config::check`] before use. Nothing
//! here does I/O.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::Arc;

use towpath_io::namespace::channel::QUEUES_MAX;
use towpath_io::namespace::{Addresses, Interface};

use crate::publish::{JOINED_PORTS_MAX, JoinedPort, PUBLISH_MAX, Publish, is_interface_name};

pub use size::{SizeError, parse_size};
pub use subnet::{Subnet4, Subnet6, SubnetError};

mod size;
mod subnet;

/// Smallest MTU: what every IPv4 host must take (RFC 791 §3.1).
pub const MTU_MIN: u16 = 576;
/// Largest MTU: the largest multiple of 8 with room for 14 bytes of Ethernet header in 65,535.
pub const MTU_MAX: u16 = 65_520;
/// Smallest MTU with IPv6 (RFC 8200 §5).
pub const MTU_IPV6_MIN: u16 = 1280;
/// Default memory ceiling.
pub const MEMORY_BYTES_DEFAULT: usize = 256 << 20;
/// Least memory: one full TCP window each way (2 × 4 MiB) and as much again for everything else.
pub const MEMORY_BYTES_MIN: usize = 16 << 20;
/// Default for flows at once: half of the host sockets that a common file limit of 32,768 allows.
pub const FLOWS_DEFAULT: usize = 16_384;
/// Most flows that may be asked for: the ports of 16 addresses.
pub const FLOWS_MAX: usize = 16 * 65_536;
/// Most resolvers that may be named.
pub const RESOLVERS_MAX: usize = 8;
/// Most addresses that may mean the host's loopback.
pub const HOST_LOOPBACK_MAX: usize = 8;

/// Most workers: as many queues as are handed over at once.
pub const WORKERS_MAX: usize = QUEUES_MAX;

/// Everything that can be chosen.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the program's network interface.
    pub interface: String,
    /// Largest IP packet that the program sees, in bytes.
    pub mtu: u16,
    /// The IPv4 network; `None` switches IPv4 off.
    pub ipv4: Option<Ipv4Config>,
    /// The IPv6 network; `None` switches IPv6 off.
    pub ipv6: Option<Ipv6Config>,
    /// Ethernet address of the program's interface.
    pub program_mac: [u8; 6],
    /// Ethernet address of the gateway.
    pub gateway_mac: [u8; 6],
    /// Addresses inside that mean the host's loopback.
    pub host_loopback: Vec<IpAddr>,
    /// Resolvers that DNS is relayed to; `None`: those of the host's /etc/resolv.conf.
    pub resolvers: Option<Vec<IpAddr>>,
    /// Ports of the host that lead to the program.
    pub publish: Vec<Publish>,
    /// Ports of the program's loopback that lead to the host's.
    pub joined: Vec<JoinedPort>,
    /// Connections of the host's loopback to published TCP ports go past the stack.
    pub join_published: bool,
    /// Where captured traffic is written.
    pub capture: Option<CaptureFile>,
    /// Most memory that packets may take, in bytes.
    pub memory_bytes: usize,
    /// Most flows at once.
    pub flows_max: usize,
    /// Threads that serve a program; see [`Workers`](crate::workers::Workers).
    pub workers: usize,
}

/// A file for a capture, empty and open.
#[derive(Clone, Debug)]
pub struct CaptureFile {
    /// The file, on a disk, or a pipe or terminal.
    pub file: Arc<File>,
    /// What it is called when something is wrong with it.
    pub path: PathBuf,
}

/// Addresses of the IPv4 network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Config {
    /// The program's.
    pub address: Ipv4Addr,
    /// Bits of the network's prefix.
    pub prefix_len: u8,
    /// The gateway's.
    pub gateway: Ipv4Addr,
    /// Where the program finds DNS.
    pub dns: Ipv4Addr,
}

/// Addresses of the IPv6 network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Config {
    /// The program's.
    pub address: Ipv6Addr,
    /// Bits of the network's prefix.
    pub prefix_len: u8,
    /// The gateway's.
    pub gateway: Ipv6Addr,
    /// Where the program finds DNS.
    pub dns: Ipv6Addr,
}

/// A configuration that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The MTU is out of range.
    #[error("an MTU of {0} is out of range; it may be {MTU_MIN} to {MTU_MAX}")]
    Mtu(u16),
    /// The MTU is too small for IPv6, and there is no IPv4.
    #[error("IPv6 needs an MTU of at least {MTU_IPV6_MIN}, not {0}")]
    MtuIpv6(u16),
    /// Neither IPv4 nor IPv6.
    #[error("IPv4 and IPv6 are both switched off; leave one on")]
    NoFamily,
    /// An impossible interface name.
    #[error(
        "'{0}' is not a name for a network interface; it has 1 to 15 bytes without '/', ':' \
             and spaces"
    )]
    Interface(String),
    /// An address that neither the gateway nor DNS can have.
    #[error("{0} cannot be the gateway's address or that of DNS: {1}")]
    Gateway(IpAddr, &'static str),
    /// An address that cannot mean the host's loopback.
    #[error("{0} cannot stand for the host's loopback: {1}")]
    HostLoopback(IpAddr, &'static str),
    /// An address that no resolver can have.
    #[error("{0} cannot be a resolver's address")]
    Resolver(IpAddr),
    /// A list that is too long.
    #[error("too many {what}: {count}, at most {max} are possible")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many there may be.
        max: usize,
    },
    /// Too little memory to work with.
    #[error(
        "{0} bytes of memory are too few; at least {min} MiB are needed for each worker",
        min = MEMORY_BYTES_MIN >> 20
    )]
    Memory(usize),
    /// No flow, or too many.
    #[error("{0} flows at once are out of range; it may be 1 to {FLOWS_MAX}")]
    Flows(usize),
    /// No worker, or too many.
    #[error("{0} workers are out of range; it may be 1 to {WORKERS_MAX}")]
    Workers(usize),
}

/// Something that was changed to make a configuration work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Notice {
    /// IPv6 needs a larger MTU.
    #[error("IPv6 is off: it needs an MTU of at least {MTU_IPV6_MIN}, not {0}")]
    Ipv6Off(u16),
}

impl Default for Config {
    fn default() -> Self {
        Self {
            interface: "tap0".into(),
            mtu: 1500,
            ipv4: Some(Ipv4Config::default()),
            ipv6: Some(Ipv6Config::default()),
            program_mac: [0x02, 0x74, 0x6f, 0x77, 0x70, 0x15],
            gateway_mac: [0x02, 0x74, 0x6f, 0x77, 0x70, 0x02],
            host_loopback: Vec::new(),
            resolvers: None,
            publish: Vec::new(),
            joined: Vec::new(),
            join_published: false,
            capture: None,
            memory_bytes: MEMORY_BYTES_DEFAULT,
            flows_max: FLOWS_DEFAULT,
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

impl Config {
    /// Checks every field, and switches IPv6 off if the MTU is too small for it and IPv4 is there.
    ///
    /// # Errors
    /// [`ConfigError`] for the first field that cannot work.
    pub fn check(&mut self) -> Result<Option<Notice>, ConfigError> {
        if !(MTU_MIN..=MTU_MAX).contains(&self.mtu) {
            return Err(ConfigError::Mtu(self.mtu));
        }
        let notice = self.check_ipv6_mtu()?;
        if self.ipv4.is_none() && self.ipv6.is_none() {
            return Err(ConfigError::NoFamily);
        }
        self.check_gateway()?;
        if !is_interface_name(&self.interface) {
            return Err(ConfigError::Interface(self.interface.clone()));
        }
        at_most(HOST_LOOPBACK_MAX, "addresses for the host's loopback", self.host_loopback.len())?;
        self.host_loopback.iter().try_for_each(|address| self.check_host_loopback(address))?;
        let resolvers = self.resolvers.as_deref().unwrap_or_default();
        at_most(RESOLVERS_MAX, "resolvers", resolvers.len())?;
        if let Some(bad) = resolvers.iter().find(|ip| ip.is_unspecified() || ip.is_multicast()) {
            return Err(ConfigError::Resolver(*bad));
        }
        at_most(PUBLISH_MAX, "published ports", self.publish.len())?;
        at_most(JOINED_PORTS_MAX, "ports that lead to the host's loopback", self.joined.len())?;
        if !(1..=WORKERS_MAX).contains(&self.workers) {
            return Err(ConfigError::Workers(self.workers));
        }
        if self.memory_bytes / self.workers < MEMORY_BYTES_MIN {
            return Err(ConfigError::Memory(self.memory_bytes));
        }
        if !(1..=FLOWS_MAX).contains(&self.flows_max) {
            return Err(ConfigError::Flows(self.flows_max));
        }
        Ok(notice)
    }

    /// What each of the workers has of this: an even share of the limits. Ports are published by
    /// one of them, which also begins the capture.
    pub(crate) fn share(&self) -> Self {
        Self {
            publish: Vec::new(),
            capture: None,
            memory_bytes: self.memory_bytes / self.workers,
            flows_max: self.flows_max.div_ceil(self.workers),
            workers: 1,
            ..self.clone()
        }
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
        }
    }

    /// The address at which the program finds DNS: IPv4 if there is any.
    pub fn dns(&self) -> Option<IpAddr> {
        let ipv4 = self.ipv4.map(|ipv4| IpAddr::V4(ipv4.dns));
        ipv4.or(self.ipv6.map(|ipv6| IpAddr::V6(ipv6.dns)))
    }

    fn check_ipv6_mtu(&mut self) -> Result<Option<Notice>, ConfigError> {
        if self.mtu >= MTU_IPV6_MIN || self.ipv6.is_none() {
            return Ok(None);
        }
        if self.ipv4.is_none() {
            return Err(ConfigError::MtuIpv6(self.mtu));
        }
        self.ipv6 = None;
        Ok(Some(Notice::Ipv6Off(self.mtu)))
    }

    fn check_gateway(&self) -> Result<(), ConfigError> {
        let v4 = self.ipv4.map(|v4| {
            let bits = 32 - u32::from(v4.prefix_len);
            let is_inside = |address: Ipv4Addr| {
                let differ = u32::from(address) ^ u32::from(v4.address);
                let host = u32::from(address) & !u32::MAX.checked_shl(bits).unwrap_or(0);
                let last = !u32::MAX.checked_shl(bits).unwrap_or(0);
                differ.checked_shr(bits).unwrap_or(0) == 0 && host != 0 && host != last
            };
            let (gateway, dns) = (v4.gateway.into(), v4.dns.into());
            [(gateway, is_inside(v4.gateway)), (dns, is_inside(v4.dns))]
        });
        let v6 = self.ipv6.map(|v6| {
            let bits = 128 - u32::from(v6.prefix_len);
            let is_inside = |address: Ipv6Addr| {
                let differ = u128::from(address) ^ u128::from(v6.address);
                let host = u128::from(address) & !u128::MAX.checked_shl(bits).unwrap_or(0);
                differ.checked_shr(bits).unwrap_or(0) == 0 && host != 0
            };
            let (gateway, dns) = (v6.gateway.into(), v6.dns.into());
            [(gateway, is_inside(v6.gateway)), (dns, is_inside(v6.dns))]
        });
        for [gateway, dns] in v4.into_iter().chain(v6) {
            if let Some((address, _)) = [gateway, dns].into_iter().find(|(_, inside)| !inside) {
                return Err(ConfigError::Gateway(address, "it is no host's in the network"));
            }
            if gateway.0 == dns.0 {
                return Err(ConfigError::Gateway(dns.0, "each has its own"));
            }
        }
        Ok(())
    }

    fn check_host_loopback(&self, address: &IpAddr) -> Result<(), ConfigError> {
        let (family_on, program, dns) = match address {
            IpAddr::V4(_) => (
                self.ipv4.is_some(),
                self.ipv4.map(|ipv4| ipv4.address.into()),
                self.ipv4.map(|ipv4| ipv4.dns.into()),
            ),
            IpAddr::V6(_) => (
                self.ipv6.is_some(),
                self.ipv6.map(|ipv6| ipv6.address.into()),
                self.ipv6.map(|ipv6| ipv6.dns.into()),
            ),
        };
        let problem = if !family_on {
            "its IP version is switched off"
        } else if address.is_loopback() {
            "inside, that is the program's own loopback"
        } else if address.is_unspecified() || address.is_multicast() {
            "it is no host's address"
        } else if program == Some(*address) {
            "it is the program's own address"
        } else if dns == Some(*address) {
            "it is the address of DNS"
        } else {
            return Ok(());
        };
        Err(ConfigError::HostLoopback(*address, problem))
    }
}

/// Packets that the program's interface must be able to queue, so that full windows of several
/// TCP flows fit even when nothing is segmented late: a queue of the kernel's usual 1,000 packets
/// drops them at MTU 1500, and every drop costs a round of recovery.
pub fn tx_queue_len(mtu: u16) -> u32 {
    const FLOWS: u32 = 8;
    /// `net.ipv4.tcp_wmem`'s usual maximum.
    const WINDOW_BYTES: u32 = 4 << 20;
    /// The kernel's own default; small packets need it at any MTU.
    const PACKETS_MIN: u32 = 1000;
    /// Reached at [`MTU_MIN`]; the kernel allocates one pointer for each.
    const PACKETS_MAX: u32 = 65_536;
    const _: () = assert!(FLOWS * WINDOW_BYTES / (MTU_MIN as u32) < PACKETS_MAX);
    (FLOWS * WINDOW_BYTES / u32::from(mtu.max(1))).clamp(PACKETS_MIN, PACKETS_MAX)
}

fn at_most(max: usize, what: &'static str, count: usize) -> Result<(), ConfigError> {
    if count > max { Err(ConfigError::TooMany { what, count, max }) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
