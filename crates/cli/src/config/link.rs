//! The program's interface and addresses, as options name them or the host has them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{anyhow, bail};
use towpath_gateway::config::{
    Config, FURTHER_ADDRESSES_MAX, Ipv4Config, Ipv6Config, MappedAddress, ProgramAddress,
};
use towpath_io::netlink::{Netlink, NetlinkError};

use crate::config::args::{Address, LinkArguments};
use crate::config::host::{self, Host};
use crate::messages::Messages;

/// DNS inside if the network is not one of towpath's own.
const DNS_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
/// The gateway inside if the host's default route has none.
const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 3);
/// The gateway inside if the host's default IPv6 route has none.
const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
/// Length of the prefix of an address that is given without one.
const PREFIX_LEN_V4: u8 = 24;
/// Length of the prefix of an IPv6 address that is given without one.
const PREFIX_LEN_V6: u8 = 64;

/// The network of one IP version.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Network {
    address: IpAddr,
    /// Addresses besides the first.
    further: Vec<ProgramAddress>,
    /// Those are the host's.
    copies_further: bool,
    prefix_len: u8,
    gateway: IpAddr,
    /// The gateway is the host's, so that it can be reached at its address.
    is_hosts: bool,
}

/// What the options say about the addresses of one IP version.
struct Wanted<'a> {
    arguments: &'a LinkArguments,
    is_ipv4: bool,
    host: Option<&'a Host>,
}

/// Changes `config` as the options say. Returns the name of the interface whose addresses are
/// copied.
///
/// # Errors
/// The options contradict each other, or the host lacks what they name.
pub(crate) fn apply(
    config: &mut Config,
    arguments: &LinkArguments,
    messages: Messages,
) -> anyhow::Result<Option<String>> {
    check_families(arguments)?;
    config.multicast.extend(&arguments.multicast);
    config.multicast.sort_unstable();
    config.multicast.dedup();
    let copies = arguments.copy_host.is_some();
    let only = arguments.copied_interface();
    let is_needed = copies || !arguments.map_host.is_empty();
    let [host_v4, host_v6] = if is_needed { hosts(only)? } else { [None, None] };
    let mut hosts = [&host_v4, &host_v6].into_iter().flatten();
    if let Some(name) = only.filter(|_| hosts.clone().next().is_none()) {
        bail!(
            "option --copy-host: interface '{name}' has no address that programs outside of it \
             could use; see 'ip address'"
        );
    }
    let is_alone = copies && hosts.clone().next().is_none();
    if is_alone && arguments.address.is_empty() {
        messages.notice("the host has no default route; the addresses inside are private ones");
    }
    let wanted = |is_ipv4, host: &'_ Option<Host>| {
        let host = host.clone().filter(|_| copies);
        let wanted = Wanted { arguments, is_ipv4, host: host.as_ref() };
        wanted.network()
    };
    let (v4, v6) = (wanted(true, &host_v4)?, wanted(false, &host_v6)?);
    config.is_link_shared = v4.is_some() || v6.is_some();
    apply_network(config, true, v4.as_ref(), arguments);
    apply_network(config, false, v6.as_ref(), arguments);
    if copies && !is_alone {
        config.ipv4 = config.ipv4.filter(|_| v4.is_some());
        config.ipv6 = config.ipv6.filter(|_| v6.is_some());
    }
    if arguments.no_dns {
        config.ipv4 = config.ipv4.map(|v4| Ipv4Config { dns: None, ..v4 });
        config.ipv6 = config.ipv6.map(|v6| Ipv6Config { dns: None, ..v6 });
    }
    let given: Vec<Network> = [v4, v6].into_iter().flatten().collect();
    let shared = given.iter().filter(|network| network.is_hosts);
    config.shared_gateways = shared.map(|network| network.gateway).collect();
    map_host(config, arguments, [&host_v4, &host_v6], messages)?;
    if arguments.map_gateway {
        let v4 = config.ipv4.map(|v4| IpAddr::V4(v4.gateway));
        let v6 = config.ipv6.map(|v6| IpAddr::V6(v6.gateway));
        config.host_loopback.extend(v4.into_iter().chain(v6));
    }
    add_further(config, &given, messages);
    hosts.next().filter(|_| copies).map(|host| name_of(host.link)).transpose()
}

/// Each of these options describes one network of each IP version.
fn check_families(arguments: &LinkArguments) -> anyhow::Result<()> {
    let lists = [("--gateway", &arguments.gateway), ("--dns-forward", &arguments.dns_forward)];
    for (option, list) in lists {
        for is_ipv4 in [true, false] {
            let mut of_family = list.iter().filter(|ip| ip.is_ipv4() == is_ipv4);
            if let (Some(first), Some(second)) = (of_family.next(), of_family.next()) {
                bail!("option {option}: {first} and {second} have the same IP version; give one");
            }
        }
    }
    Ok(())
}

impl Wanted<'_> {
    /// Returns the network, if options or the host describe it.
    fn network(&self) -> anyhow::Result<Option<Network>> {
        let of_family = |ip: &IpAddr| ip.is_ipv4() == self.is_ipv4;
        let mut addresses = self.arguments.address.iter().filter(|given| of_family(&given.address));
        let address = addresses.next();
        let gateway = self.arguments.gateway.iter().copied().find(of_family);
        if let (Some(gateway), None, None) = (gateway, address, self.host) {
            // A family that the host lacks is off.
            return match self.arguments.copy_host {
                Some(_) => Ok(None),
                None => Err(anyhow!(
                    "option --gateway {gateway}: the program's address is missing; add --address \
                     or --copy-host"
                )),
            };
        }
        let Some(program) =
            address.map(|given| given.address).or(self.host.map(|h| h.first.address))
        else {
            return Ok(None);
        };
        let missing = || {
            anyhow!(
                "option --address {program}: the gateway is missing; add --gateway or --copy-host"
            )
        };
        let default = if self.is_ipv4 { GATEWAY_V4.into() } else { GATEWAY_V6.into() };
        let of_host = self.host.map(|host| host.gateway.unwrap_or(default));
        let further = match (address, self.host) {
            (None, Some(host)) if !self.arguments.single_address => host.further.clone(),
            _ => addresses.map(|given| self.with_prefix(given)).collect(),
        };
        Ok(Some(Network {
            address: program,
            prefix_len: match (address, self.host) {
                (Some(given), _) => self.with_prefix(given).prefix_len,
                (None, host) => host.map_or(0, |host| host.first.prefix_len),
            },
            further,
            copies_further: address.is_none(),
            gateway: gateway.or(of_host).ok_or_else(missing)?,
            is_hosts: self.host.is_some_and(|host| match host.gateway {
                // A link-local address means another host on each link.
                Some(IpAddr::V6(v6)) if v6.is_unicast_link_local() => false,
                Some(real) => gateway.is_none_or(|gateway| gateway == real),
                None => false,
            }),
        }))
    }
}

impl Wanted<'_> {
    /// Returns a given address with its prefix: that of the option, or of the host if the address
    /// is the host's, or the usual one.
    fn with_prefix(&self, given: &Address) -> ProgramAddress {
        let of_host = self.host.into_iter().flat_map(Host::addresses);
        let mut same = of_host.filter(|of_host| of_host.address == given.address);
        let copied_len = same.next().map(|of_host| of_host.prefix_len);
        let usual_len = if self.is_ipv4 { PREFIX_LEN_V4 } else { PREFIX_LEN_V6 };
        let prefix_len = given.prefix_len.or(copied_len).unwrap_or(usual_len);
        ProgramAddress { address: given.address, prefix_len }
    }
}

/// Applies the network of one IP version, or the DNS address alone.
fn apply_network(
    config: &mut Config,
    is_ipv4: bool,
    given: Option<&Network>,
    arguments: &LinkArguments,
) {
    let dns = arguments.dns_forward.iter().copied().find(|ip| ip.is_ipv4() == is_ipv4);
    let (address, gateway) = given.map(|given| (given.address, given.gateway)).unzip();
    let prefix_len = given.map_or(0, |given| given.prefix_len);
    let Config { ipv4, ipv6, .. } = config;
    match (ipv4, ipv6) {
        (Some(v4), _) if is_ipv4 => {
            let dns = v4_of(dns);
            match (v4_of(address), v4_of(gateway)) {
                (Some(address), Some(gateway)) => {
                    *v4 = Ipv4Config { address, prefix_len, gateway, dns: dns.or(Some(DNS_V4)) };
                }
                _ => v4.dns = dns.or(v4.dns),
            }
        }
        (_, Some(v6)) if !is_ipv4 => {
            let dns = v6_of(dns);
            match (v6_of(address), v6_of(gateway)) {
                (Some(address), Some(gateway)) => {
                    *v6 = Ipv6Config { address, prefix_len, gateway, dns };
                }
                _ => v6.dns = dns.or(v6.dns),
            }
        }
        _ => {}
    }
}

fn v4_of(address: Option<IpAddr>) -> Option<Ipv4Addr> {
    address.and_then(|address| match address {
        IpAddr::V4(v4) => Some(v4),
        IpAddr::V6(_) => None,
    })
}

fn v6_of(address: Option<IpAddr>) -> Option<Ipv6Addr> {
    address.and_then(|address| match address {
        IpAddr::V6(v6) => Some(v6),
        IpAddr::V4(_) => None,
    })
}

/// Adds further addresses: those that options name, or as many of the host's as there is room for.
fn add_further(config: &mut Config, given: &[Network], messages: Messages) {
    let is_off = |ip: IpAddr| match ip {
        IpAddr::V4(_) => config.ipv4.is_none(),
        IpAddr::V6(_) => config.ipv6.is_none(),
    };
    let inside: Vec<IpAddr> = config.inside_addresses().collect();
    let mut left_out = 0;
    for Network { address, further, copies_further, .. } in given {
        for &added in further.iter().filter(|_| !is_off(*address)) {
            let is_full = config.further_addresses.len() == FURTHER_ADDRESSES_MAX;
            match copies_further {
                // The host's address is of no use if it means something else inside.
                true if inside.contains(&added.address) => {}
                true if is_full => left_out += 1,
                _ => config.further_addresses.push(added),
            }
        }
    }
    if left_out > 0 {
        messages.notice(format_args!(
            "option --copy-host: the host's interface has too many addresses; {left_out} are not \
             copied"
        ));
    }
}

/// Maps the addresses of --map-host.
fn map_host(
    config: &mut Config,
    arguments: &LinkArguments,
    [host_v4, host_v6]: [&Option<Host>; 2],
    messages: Messages,
) -> anyhow::Result<()> {
    for &inside in &arguments.map_host {
        let (host, is_on) = match inside {
            IpAddr::V4(_) => (host_v4, config.ipv4.is_some()),
            IpAddr::V6(_) => (host_v6, config.ipv6.is_some()),
        };
        if !is_on {
            match arguments.copy_host {
                Some(_) => continue,
                None => bail!("option --map-host {inside}: its IP version is disabled"),
            }
        }
        let host = host.as_ref().map(|host| host.first.address);
        if host.is_none() && arguments.copy_host.is_none() {
            messages.notice(format_args!(
                "option --map-host {inside}: the host has no default route for this IP version; \
                 until it has one, connections to {inside} are refused"
            ));
        }
        config.host_addresses.push(MappedAddress { inside, host });
    }
    Ok(())
}

/// Returns how the host reaches the world by IPv4 and by IPv6.
fn hosts(only: Option<&str>) -> anyhow::Result<[Option<Host>; 2]> {
    let what = |error: NetlinkError| {
        anyhow!(
            "cannot read the host's addresses and routes: {error}; leave out --copy-host and \
             --map-host, or permit netlink sockets"
        )
    };
    let mut netlink = Netlink::open().map_err(what)?;
    if let Some(name) = only {
        netlink
            .link_index(name)
            .map_err(|error| anyhow!("option --copy-host: no interface of this name ({error})"))?;
    }
    let v4 = host::find(&mut netlink, true, only).map_err(what)?;
    Ok([v4, host::find(&mut netlink, false, only).map_err(what)?])
}

/// Returns the name of an interface of the host.
fn name_of(link: u32) -> anyhow::Result<String> {
    let name = Netlink::open().and_then(|mut netlink| netlink.link_name(link));
    name.map_err(|error| anyhow!("cannot read the name of the host's interface: {error}"))
}
