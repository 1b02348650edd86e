//! The only machine of a network whose addresses options name: what it gets by DHCP.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use anyhow::bail;
use towpath_gateway::config::Config;
use towpath_gateway::network::Operation;
use towpath_gateway::services::{self, Automatic, Disabled, Guest, StaticLease};
use towpath_net::wire::MacAddr;

use crate::config::args::{MachineArguments, UpArguments};

/// What the machine gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    ipv4: Option<Given<Ipv4Addr>>,
    ipv6: Option<Given<Ipv6Addr>>,
    prefix_len_v6: u8,
    netmask: Ipv4Addr,
}

/// What the machine gets for one IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Given<A> {
    address: A,
    router: A,
    dns: Option<A>,
}

/// Returns the only machine, if options name its address, and adds its lease to `operations` if the
/// network `lends` addresses.
///
/// # Errors
/// There is no machine, more than one, or no gateway.
pub(crate) fn only(
    arguments: &UpArguments,
    config: &Config,
    [has_gateway, lends]: [bool; 2],
    operations: &mut Vec<(String, Operation)>,
) -> anyhow::Result<Option<Machine>> {
    let link = &arguments.link;
    let option = match (&link.copy_host, link.address.first()) {
        (_, Some(address)) => format!("--address {address}"),
        (Some(_), None) => "--copy-host".to_owned(),
        (None, None) if arguments.machine.print_addresses => {
            bail!("option --print-addresses needs --copy-host or --address")
        }
        (None, None) => return Ok(None),
    };
    let names = operations.iter().filter_map(|(_, operation)| match operation {
        Operation::Add { name, .. } => Some(name.clone()),
        _ => None,
    });
    let names: Vec<String> = names.collect();
    let [name] = &names[..] else {
        bail!(
            "option {option}: the network must have exactly one port, whose machine gets the \
             address, and it has {}",
            names.len()
        );
    };
    if !has_gateway {
        bail!("option {option}: needs the gateway, which is disabled; enable it");
    }
    if lends {
        reserve(&option, name, config, operations);
    }
    Ok(Some(Machine::of(arguments, config)))
}

/// Gives the machine at the port `name` its address, whatever identifier it sends; adds to a lease
/// for it that another option has made.
fn reserve(option: &str, name: &str, config: &Config, operations: &mut Vec<(String, Operation)>) {
    let guest = Guest::Port(name.to_owned());
    let (ipv4, ipv6) = (config.ipv4.map(|v4| v4.address), config.ipv6.map(|v6| v6.address));
    let existing = operations.iter_mut().find_map(|(_, operation)| match operation {
        Operation::AddLease(lease, _) if lease.guest == guest => Some(lease),
        _ => None,
    });
    match existing {
        Some(lease) => {
            lease.ipv4 = lease.ipv4.or(ipv4);
            lease.ipv6 = lease.ipv6.or(ipv6);
        }
        None => {
            let lease = StaticLease { ipv4, ipv6, ..StaticLease::of(guest) };
            operations.push((
                format!("option {option}"),
                Operation::AddLease(lease, Automatic::default()),
            ));
        }
    }
}

/// Takes out of the services what machines are not to get.
pub(crate) fn withhold(arguments: &MachineArguments, services: &mut services::Config) {
    services.disabled = Disabled {
        dhcpv4: arguments.no_dhcpv4,
        dhcpv6: arguments.no_dhcpv6,
        advertisements: arguments.no_ra,
    };
    if arguments.no_dhcp_search {
        services.search.clear();
    }
    if arguments.no_dhcp_dns {
        services.ipv4.iter_mut().for_each(|v4| v4.dns.clear());
        services.ipv6.iter_mut().for_each(|v6| v6.dns.clear());
    }
}

impl Machine {
    fn of(arguments: &UpArguments, config: &Config) -> Self {
        let has_dns = !arguments.machine.no_dhcp_dns;
        let bits = config.ipv4.map_or(0, |v4| u32::from(v4.prefix_len).min(u32::BITS));
        let netmask = u32::MAX.checked_shl(u32::BITS - bits).unwrap_or(0);
        let router = services::link_local(MacAddr(config.gateway_mac));
        Self {
            ipv4: config.ipv4.map(|v4| Given {
                address: v4.address,
                router: v4.gateway,
                dns: v4.dns.filter(|_| has_dns),
            }),
            ipv6: config.ipv6.map(|v6| Given {
                address: v6.address,
                router,
                dns: v6.dns.filter(|_| has_dns),
            }),
            prefix_len_v6: config.ipv6.map_or(0, |v6| v6.prefix_len),
            netmask: netmask.into(),
        }
    }
}

/// The form is that of passt, which launchers of virtual machines parse.
impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(v4) = &self.ipv4 {
            let (address, netmask, router) = (v4.address, self.netmask, v4.router);
            writeln!(f, "DHCP:\n    assign: {address}\n    mask: {netmask}\n    router: {router}")?;
            if let Some(dns) = v4.dns {
                writeln!(f, "DNS:\n    {dns}")?;
            }
        }
        if let Some(v6) = &self.ipv6 {
            let (address, bits, router) = (v6.address, self.prefix_len_v6, v6.router);
            writeln!(f, "NDP/DHCPv6:\n    assign: {address}/{bits}\n    router: {router}")?;
            if let Some(dns) = v6.dns {
                writeln!(f, "DNS:\n    {dns}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_printed_as_launchers_parse_them() {
        let ipv4 = Given {
            address: [192, 0, 2, 7].into(),
            router: [192, 0, 2, 1].into(),
            dns: Some([169, 254, 1, 1].into()),
        };
        let netmask = [255, 255, 255, 0].into();
        let machine = Machine { ipv4: Some(ipv4), ipv6: None, prefix_len_v6: 0, netmask };
        assert_eq!(
            machine.to_string(),
            "DHCP:\n    assign: 192.0.2.7\n    mask: 255.255.255.0\n    router: 192.0.2.1\n\
             DNS:\n    169.254.1.1\n"
        );
    }
}
