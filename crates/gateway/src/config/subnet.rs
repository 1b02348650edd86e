//! The private networks between program and gateway, and their address plan.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use super::{Ipv4Config, Ipv6Config};

/// An IPv4 network of 6 to 16 million addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet4 {
    network: Ipv4Addr,
    prefix_len: u8,
}

/// An IPv6 network of 256 to 2^64 addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet6 {
    network: Ipv6Addr,
    prefix_len: u8,
}

/// The text is not a usable network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubnetError {
    /// Not `ADDRESS/LENGTH`.
    #[error("expected ADDRESS/LENGTH, for example {0}")]
    Form(&'static str),
    /// The prefix is too short or too long.
    #[error("prefix length {len} is out of range; expected {min} to {max}")]
    Length {
        /// The length given.
        len: u8,
        /// The least possible.
        min: u8,
        /// The greatest possible.
        max: u8,
    },
    /// Bits after the prefix are set.
    #[error("address bits beyond the prefix are set; did you mean {0}?")]
    HostBits(String),
    /// The addresses are reserved for another purpose.
    #[error("these addresses are reserved; use a private network such as {0}")]
    Reserved(&'static str),
}

impl Subnet4 {
    /// The default network.
    pub const DEFAULT: Self = Self { network: Ipv4Addr::new(10, 0, 2, 0), prefix_len: 24 };

    /// Returns the address plan: gateway 2, DNS 3, program 15, or 4 in a network too small for 15.
    pub fn config(&self) -> Ipv4Config {
        let address = |host: u32| Ipv4Addr::from(u32::from(self.network) + host);
        let broadcast = u32::MAX >> self.prefix_len;
        let program = if HOST_PROGRAM_V4 < broadcast { HOST_PROGRAM_V4 } else { HOST_NEXT_FREE };
        Ipv4Config {
            address: address(program),
            prefix_len: self.prefix_len,
            gateway: address(HOST_GATEWAY),
            dns: Some(address(HOST_DNS)),
        }
    }
}

impl Subnet6 {
    /// The default network: a unique local one (RFC 4193) that spells "towpath".
    pub const DEFAULT: Self =
        Self { network: Ipv6Addr::new(0xfd74, 0x6f77, 0x7061, 0x7468, 0, 0, 0, 0), prefix_len: 64 };

    /// Returns the address plan: gateway `::2`, DNS `::3`, program `::15`.
    pub fn config(&self) -> Ipv6Config {
        let address = |host: u128| Ipv6Addr::from(u128::from(self.network) + host);
        Ipv6Config {
            address: address(HOST_PROGRAM_V6),
            prefix_len: self.prefix_len,
            gateway: address(HOST_GATEWAY.into()),
            dns: Some(address(HOST_DNS.into())),
        }
    }
}

impl FromStr for Subnet4 {
    type Err = SubnetError;

    fn from_str(text: &str) -> Result<Self, SubnetError> {
        const EXAMPLE: &str = "10.0.2.0/24";
        let (network, prefix_len) = split::<Ipv4Addr>(text).ok_or(SubnetError::Form(EXAMPLE))?;
        in_range(prefix_len, PREFIX_LEN_V4_MIN, PREFIX_LEN_V4_MAX)?;
        let masked = Ipv4Addr::from(u32::from(network) & !(u32::MAX >> prefix_len));
        let subnet = Self { network: masked, prefix_len };
        if masked != network {
            return Err(SubnetError::HostBits(subnet.to_string()));
        }
        let first = masked.octets()[0];
        if first == 0 || first >= 224 || masked.is_loopback() || masked.is_link_local() {
            return Err(SubnetError::Reserved(EXAMPLE));
        }
        Ok(subnet)
    }
}

impl FromStr for Subnet6 {
    type Err = SubnetError;

    fn from_str(text: &str) -> Result<Self, SubnetError> {
        const EXAMPLE: &str = "fd00:1:2:3::/64";
        let (network, prefix_len) = split::<Ipv6Addr>(text).ok_or(SubnetError::Form(EXAMPLE))?;
        in_range(prefix_len, PREFIX_LEN_V6_MIN, PREFIX_LEN_V6_MAX)?;
        let masked = Ipv6Addr::from(u128::from(network) & !(u128::MAX >> prefix_len));
        let subnet = Self { network: masked, prefix_len };
        if masked != network {
            return Err(SubnetError::HostBits(subnet.to_string()));
        }
        let low = masked.segments()[0] == 0;
        if low || masked.is_multicast() || masked.is_unicast_link_local() {
            return Err(SubnetError::Reserved(EXAMPLE));
        }
        Ok(subnet)
    }
}

impl fmt::Display for Subnet4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix_len)
    }
}

impl fmt::Display for Subnet6 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix_len)
    }
}

fn split<A: FromStr>(text: &str) -> Option<(A, u8)> {
    let (network, prefix_len) = text.split_once('/')?;
    Some((network.parse().ok()?, prefix_len.parse().ok()?))
}

fn in_range(len: u8, min: u8, max: u8) -> Result<(), SubnetError> {
    if (min..=max).contains(&len) { Ok(()) } else { Err(SubnetError::Length { len, min, max }) }
}

const HOST_GATEWAY: u32 = 2;
const HOST_DNS: u32 = 3;
const HOST_NEXT_FREE: u32 = 4;
const HOST_PROGRAM_V4: u32 = 15;
const HOST_PROGRAM_V6: u128 = 0x15;
const PREFIX_LEN_V4_MIN: u8 = 8;
/// Leaves the addresses 1 to 6, of which 2, 3 and 4 are used.
const PREFIX_LEN_V4_MAX: u8 = 29;
const PREFIX_LEN_V6_MIN: u8 = 64;
const PREFIX_LEN_V6_MAX: u8 = 120;
