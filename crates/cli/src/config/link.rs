//! The program's interface and addresses, as options name them or the host has them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{anyhow, bail};
use towpath_gateway::config::{Config, Ipv4Config, Ipv6Config, MappedAddress};
use towpath_io::netlink::dump::DefaultRoute;
use towpath_io::netlink::{Netlink, NetlinkError};

use crate::config::args::LinkArguments;
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

/// How the host itself reaches the world by one IP version.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Host {
    interface: String,
    address: IpAddr,
    prefix_len: u8,
    gateway: Option<IpAddr>,
}

/// The network of one IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    address: IpAddr,
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
    let copies = arguments.copy_host.is_some();
    let only = arguments.copy_host.as_deref().filter(|name| !name.is_empty());
    let is_needed = copies || !arguments.map_host.is_empty();
    let look = |is_ipv4| if is_needed { host(is_ipv4, only) } else { Ok(None) };
    let (host_v4, host_v6) = (look(true)?, look(false)?);
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
    let loses = |given: Option<Network>| copies && !is_alone && given.is_none();
    apply_v4(config, v4, loses(v4), arguments);
    apply_v6(config, v6, loses(v6), arguments);
    if arguments.no_dns {
        config.ipv4 = config.ipv4.map(|v4| Ipv4Config { dns: None, ..v4 });
        config.ipv6 = config.ipv6.map(|v6| Ipv6Config { dns: None, ..v6 });
    }
    let shared = [v4, v6].into_iter().flatten().filter(|network| network.is_hosts);
    config.shared_gateways = shared.map(|network| network.gateway).collect();
    map_host(config, arguments, [&host_v4, &host_v6])?;
    if arguments.map_gateway {
        let v4 = config.ipv4.map(|v4| IpAddr::V4(v4.gateway));
        let v6 = config.ipv6.map(|v6| IpAddr::V6(v6.gateway));
        config.host_loopback.extend(v4.into_iter().chain(v6));
    }
    Ok(hosts.next().filter(|_| copies).map(|host| host.interface.clone()))
}

/// Each of these options describes one network of each IP version.
fn check_families(arguments: &LinkArguments) -> anyhow::Result<()> {
    let addresses = arguments.address.iter().map(|given| given.address).collect();
    let lists: [(&str, Vec<IpAddr>); 3] = [
        ("--address", addresses),
        ("--gateway", arguments.gateway.clone()),
        ("--dns-forward", arguments.dns_forward.clone()),
    ];
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
        let address = self.arguments.address.iter().find(|given| of_family(&given.address));
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
        let Some(program) = address.map(|given| given.address).or(self.host.map(|h| h.address))
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
        let copied_len = self.host.filter(|host| host.address == program).map(|h| h.prefix_len);
        let usual_len = if self.is_ipv4 { PREFIX_LEN_V4 } else { PREFIX_LEN_V6 };
        let given_len = address.and_then(|given| given.prefix_len);
        Ok(Some(Network {
            address: program,
            prefix_len: given_len.or(copied_len).unwrap_or(usual_len),
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

fn apply_v4(config: &mut Config, given: Option<Network>, off: bool, arguments: &LinkArguments) {
    let dns = arguments.dns_forward.iter().find_map(|ip| match ip {
        IpAddr::V4(v4) => Some(*v4),
        IpAddr::V6(_) => None,
    });
    match (&mut config.ipv4, given) {
        (Some(v4), Some(network)) => {
            if let (IpAddr::V4(address), IpAddr::V4(gateway)) = (network.address, network.gateway) {
                let prefix_len = network.prefix_len;
                *v4 = Ipv4Config { address, prefix_len, gateway, dns: dns.or(Some(DNS_V4)) };
            }
        }
        (Some(v4), None) => v4.dns = dns.or(v4.dns),
        (None, _) => {}
    }
    if off {
        config.ipv4 = None;
    }
}

fn apply_v6(config: &mut Config, given: Option<Network>, off: bool, arguments: &LinkArguments) {
    let dns = arguments.dns_forward.iter().find_map(|ip| match ip {
        IpAddr::V6(v6) => Some(*v6),
        IpAddr::V4(_) => None,
    });
    match (&mut config.ipv6, given) {
        (Some(v6), Some(network)) => {
            if let (IpAddr::V6(address), IpAddr::V6(gateway)) = (network.address, network.gateway) {
                let prefix_len = network.prefix_len;
                *v6 = Ipv6Config { address, prefix_len, gateway, dns };
            }
        }
        (Some(v6), None) => v6.dns = dns.or(v6.dns),
        (None, _) => {}
    }
    if off {
        config.ipv6 = None;
    }
}

/// Maps the addresses of --map-host.
fn map_host(
    config: &mut Config,
    arguments: &LinkArguments,
    [host_v4, host_v6]: [&Option<Host>; 2],
) -> anyhow::Result<()> {
    for &inside in &arguments.map_host {
        let (host, is_on) = match inside {
            IpAddr::V4(_) => (host_v4, config.ipv4.is_some()),
            IpAddr::V6(_) => (host_v6, config.ipv6.is_some()),
        };
        match host {
            Some(host) if is_on => {
                config.host_addresses.push(MappedAddress { inside, host: host.address });
            }
            _ if arguments.copy_host.is_some() => {}
            Some(_) => bail!("option --map-host {inside}: its IP version is disabled"),
            None => bail!(
                "option --map-host {inside}: the host has no default route for this IP version, so \
                 it has no address to map to"
            ),
        }
    }
    Ok(())
}

/// Returns how the host reaches the world by one IP version: by the interface `only`, or by that of
/// the default route with the least metric.
fn host(is_ipv4: bool, only: Option<&str>) -> anyhow::Result<Option<Host>> {
    let what = |error: NetlinkError| anyhow!("cannot read the host's addresses: {error}");
    let mut netlink = Netlink::open().map_err(what)?;
    let missing = |error| anyhow!("option --copy-host: no interface of this name ({error})");
    let link = only.map(|name| netlink.link_index(name).map_err(missing)).transpose()?;
    // A kernel without IPv6 refuses the request.
    let routes = netlink.default_routes(is_ipv4).unwrap_or_default();
    let of_link = routes.iter().filter(|route| link.is_none_or(|link| route.link == link));
    let route = of_link.min_by_key(|route| route.metric).copied();
    let route =
        route.or(link.map(|link| DefaultRoute { link, gateway: None, source: None, metric: 0 }));
    let Some(route) = route else { return Ok(None) };
    let addresses = netlink.addresses(is_ipv4).unwrap_or_default();
    let usable = addresses.iter().filter(|found| found.link == route.link && found.is_global);
    let best = usable.min_by_key(|found| (Some(found.address) != route.source, found.is_passing));
    let Some(best) = best else { return Ok(None) };
    let gateway = route.gateway.filter(|gateway| gateway.is_ipv4() == is_ipv4);
    let interface = netlink.link_name(route.link).map_err(what)?;
    let (address, prefix_len) = (best.address, best.prefix_len);
    Ok(Some(Host { interface, address, prefix_len, gateway }))
}
