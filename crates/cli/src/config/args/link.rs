//! Options about the program's interface and its addresses.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use clap::Args;
use towpath_gateway::config::MulticastService;

/// An address, perhaps with the length of its network's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) address: IpAddr,
    pub(crate) prefix_len: Option<u8>,
}

/// Options of `run` and `attach` about the interface inside.
#[derive(Debug, Args)]
pub(crate) struct InterfaceArguments {
    /// Name of the network interface [default: tap0; with --copy-host that of the host's]
    #[arg(long, value_name = "NAME", help_heading = "Network")]
    pub(crate) ifname: Option<String>,

    /// Ethernet address of the network interface, for example 02:00:00:00:00:01
    #[arg(long, value_name = "MAC", value_parser = parse_mac, help_heading = "Network")]
    pub(crate) mac: Option<[u8; 6]>,
}

/// Options about the addresses inside.
#[derive(Debug, Args)]
pub(crate) struct LinkArguments {
    /// Use the host's own addresses, prefixes and gateway inside: those of IFACE, or of the
    /// interface of the host's default route.
    ///
    /// The program or machine then reaches the hosts of that network, and the gateway, at their
    /// addresses. With `up` the network has exactly one port, whose machine gets them by DHCP. An
    /// IP version for which the host has no default route is disabled; if it has none at all, the
    /// addresses are those of --subnet. Of several addresses, the first of each IP version is that
    /// which the host itself uses; a program gets up to 16 more, without temporary ones. It also
    /// gets up to 256 other routes of the interface, for an IP version without --gateway.
    #[arg(long, value_name = "IFACE", num_args = 0..=1, require_equals = true,
          default_missing_value = "", conflicts_with_all = ["subnet", "subnet6"],
          help_heading = "Network")]
    pub(crate) copy_host: Option<String>,

    /// With --copy-host, copy one address of each IP version.
    #[arg(long, requires = "copy_host", help_heading = "Network")]
    pub(crate) single_address: bool,

    /// With --copy-host, copy the default routes only.
    #[arg(long, requires = "copy_host", help_heading = "Network")]
    pub(crate) single_route: bool,

    /// Address of the program or machine, and the length of its prefix [default: 24 or 64]; may be
    /// repeated for a program. Published ports lead to the first of each IP version. Needs
    /// --gateway or --copy-host.
    #[arg(long, value_name = "ADDR[/LEN]", conflicts_with_all = ["subnet", "subnet6"],
          help_heading = "Network")]
    pub(crate) address: Vec<Address>,

    /// Address of the gateway, which need not be in the program's network; once for IPv4 and once
    /// for IPv6. Needs --address or --copy-host.
    #[arg(long, value_name = "ADDR", conflicts_with_all = ["subnet", "subnet6"],
          help_heading = "Network")]
    pub(crate) gateway: Vec<IpAddr>,

    /// Relay DNS at this address inside [default: the third of --subnet; with --copy-host or
    /// --address 169.254.1.1]; once for IPv4 and once for IPv6
    #[arg(long, value_name = "ADDR", help_heading = "Network")]
    pub(crate) dns_forward: Vec<IpAddr>,

    /// Do not relay DNS.
    #[arg(long, conflicts_with_all = ["dns_forward", "dns"], help_heading = "Network")]
    pub(crate) no_dns: bool,

    /// Map the inside address ADDR to the host's own address, that of the interface of its default
    /// route, also when that changes; may be repeated. With --copy-host, an ADDR of a disabled IP
    /// version has no effect.
    #[arg(long, value_name = "ADDR", help_heading = "Network")]
    pub(crate) map_host: Vec<IpAddr>,

    /// Map the gateway's address to the host's loopback, as --map-host-loopback does.
    #[arg(long, help_heading = "Network")]
    pub(crate) map_gateway: bool,

    /// Find services of the host's networks by multicast: pass queries of `mdns` (.local names,
    /// DNS-SD) or `ssdp` (UPnP) to them, and answers back. LIST is separated by commas.
    ///
    /// Queries leave by every interface that the host has when towpath starts, at a limited rate.
    /// What the program itself announces stays inside. Other programs of the host that use these
    /// ports must share them, as such programs do.
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "Network")]
    pub(crate) multicast: Vec<MulticastService>,
}

impl LinkArguments {
    /// The interface of the host that --copy-host names.
    pub(crate) fn copied_interface(&self) -> Option<&str> {
        self.copy_host.as_deref().filter(|name| !name.is_empty())
    }
}

pub(super) fn parse_mac(text: &str) -> Result<[u8; 6], &'static str> {
    const WANTED: &str = "expected a unicast Ethernet address such as 02:00:00:00:00:01";
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        let part = parts.next().filter(|part| (1..=2).contains(&part.len()));
        let part = part.filter(|part| part.bytes().all(|digit| digit.is_ascii_hexdigit()));
        *byte = part.and_then(|part| u8::from_str_radix(part, 16).ok()).ok_or(WANTED)?;
    }
    let is_unicast = mac[0] & 1 == 0 && mac != [0; 6];
    if parts.next().is_none() && is_unicast { Ok(mac) } else { Err(WANTED) }
}

impl FromStr for Address {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WANTED: &str = "expected ADDRESS or ADDRESS/LENGTH, for example 10.9.8.2/24";
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| WANTED)?;
        let max = if address.is_ipv4() { 32 } else { 128 };
        let length =
            length.map(|length| length.parse().ok().filter(|bits| (1..=max).contains(bits)));
        match length {
            Some(None) => Err(WANTED),
            Some(prefix_len) => Ok(Self { address, prefix_len }),
            None => Ok(Self { address, prefix_len: None }),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)?;
        self.prefix_len.map_or(Ok(()), |bits| write!(f, "/{bits}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let read = |text: &str| text.parse::<Address>();
        let address = [10, 9, 8, 2].into();
        assert_eq!(read("10.9.8.2/24"), Ok(Address { address, prefix_len: Some(24) }));
        assert_eq!(read("10.9.8.2"), Ok(Address { address, prefix_len: None }));
        assert_eq!(read("fd00::1/128").map(|read| read.prefix_len), Ok(Some(128)));
        for wrong in ["", "10.9.8", "10.9.8.2/", "10.9.8.2/33", "10.9.8.2/0", "fd00::1/129", "x/8"]
        {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ethernet_addresses() {
        assert_eq!(parse_mac("9a:dd:31:ea:92:98"), Ok([0x9a, 0xdd, 0x31, 0xea, 0x92, 0x98]));
        assert_eq!(parse_mac("2:0:0:0:0:a"), Ok([2, 0, 0, 0, 0, 10]));
        for wrong in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:01:02",
            "01:00:00:00:00:00",
            "0:0:0:0:0:0",
            "02:00:00:00:00:+1",
            "002:0:0:0:0:0",
        ] {
            assert!(parse_mac(wrong).is_err(), "{wrong}");
        }
    }
}
