//! What `towpath up` serves: its file and its options, merged and checked.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use serde_json::json;
use towpath_gateway::config::{Config, MTU_MIN};
use towpath_gateway::control::fields::Fields;
use towpath_gateway::control::operations;
use towpath_gateway::flows::StartError;
use towpath_gateway::network::{
    Attachment, BUSY_POLL, EvpnSettings, NETWORK_PORTS_MAX, NetworkConfig, Operation,
    OperationError, PortError, VxlanSettings, check_port, gateway_addresses, services_config, vtep,
};
use towpath_gateway::publish::{Existing, PortChange, Publish, Target};
use towpath_gateway::services::wire::domain::DomainName;
use towpath_gateway::services::{self, Automatic, Services};
use towpath_io::endpoint::{self, Connection};
use towpath_net::time::Instant;
use towpath_net::wire::MacAddr;

use crate::config::args::{UpArguments, Workers};
use crate::config::machine::{self, Machine};
use crate::config::netfile::{NetFile, Pool, PortDefaults};
use crate::config::{egress, link, settings};

/// Default domain of the guests.
const DOMAIN: &str = "towpath.internal";
/// Greatest number in place of `%i`.
const NUMBERS_MAX: u32 = 1000;

/// A checked network configuration.
pub(crate) struct Plan {
    pub(crate) config: Config,
    pub(crate) network: NetworkConfig,
    pub(crate) services: Option<services::Config>,
    pub(crate) lease_file: Option<PathBuf>,
    /// The control plane of the VXLAN ports.
    pub(crate) evpn: Option<EvpnSettings>,
    /// Ports and static leases, each with the place of its setting.
    pub(crate) operations: Vec<(String, Operation)>,
    /// What the only machine of the network gets, if options name its address.
    pub(crate) machine: Option<Machine>,
}

/// Connections that the process inherited, by the numbers of their descriptors.
pub(crate) type Connections = HashMap<i32, Connection>;

/// Merges file and options. Ends the process with code 2 if they are not valid.
pub(crate) fn plan(arguments: &mut UpArguments, connections: Connections) -> Plan {
    match read(arguments, connections) {
        Ok(plan) => plan,
        Err(error) => settings::usage_error(&error),
    }
}

fn read(arguments: &mut UpArguments, connections: Connections) -> anyhow::Result<Plan> {
    let given = PortDefaults {
        queue_len: arguments.queue_len,
        queue_pairs: arguments.queue_pairs,
        isolate: arguments.isolate.then_some(true),
    };
    let mut file = match &arguments.file {
        Some(path) => NetFile::open(path, &given, settings::messages(&arguments.gateway))?,
        None => NetFile::default(),
    };
    let mut operations = std::mem::take(&mut file.operations);
    operations.extend(ports(arguments, &file, &given, connections)?);
    for lease in &arguments.lease {
        let at = format!("option --lease '{lease}'");
        let read = Fields::of_settings(lease).and_then(operations::static_lease);
        let read = read.map_err(|wrong| anyhow!("{at}: {wrong}"))?;
        operations.push((at, Operation::AddLease(read, Automatic::default())));
    }
    for (protocol, all) in [("tcp", &arguments.tcp_ports), ("udp", &arguments.udp_ports)] {
        for (guest, spec) in all {
            let at = format!("option --{protocol}-ports {guest}={spec}");
            let fields = Fields::of(json!({ protocol: spec }), "");
            let guest = Target::guest(guest);
            let read = fields.and_then(|mut fields| operations::publish(&mut fields, &guest));
            let read = read.map_err(|wrong| anyhow!("{at}: {wrong}"))?;
            let change = PortChange::Publish(read, Existing::Reject);
            operations.push((at, Operation::Ports(change)));
        }
    }
    let mtu = arguments.gateway.mtu.or(file.mtu);
    arguments.gateway.mtu = mtu.or_else(|| tunnel_mtu(&operations));
    let has_policy = |operation: &Operation| match operation {
        Operation::Add { settings, .. } => settings.egress.is_some(),
        _ => false,
    };
    let has_policies = operations.iter().any(|(_, operation)| has_policy(operation));
    let mut config = config(arguments, &file, has_policies)?;
    config.detects_duplicates = file.detect_duplicates.unwrap_or(false);
    let has_gateway = !arguments.no_gateway && file.gateway.unwrap_or(true);
    let lends = has_gateway && !arguments.no_dhcp && !file.dhcp.is_off;
    let machine = machine::only(arguments, &config, [has_gateway, lends], &mut operations)?;
    let network = NetworkConfig {
        mtu: config.mtu,
        gateway: has_gateway.then_some(MacAddr(config.gateway_mac)),
        gateway_addresses: gateway_addresses(&config),
        orphan: arguments.orphan,
        busy_poll: arguments.busy_poll.or(file.busy_poll).unwrap_or(BUSY_POLL),
        seed: RandomState::new().hash_one(0),
    };
    if has_gateway && !arguments.check {
        settings::look_for_resolvers(&config, settings::messages(&arguments.gateway));
    }
    let services = lends.then(|| services(arguments, &file, &config)).transpose()?;
    let lease_file = arguments.lease_file.take().or(file.dhcp.lease_file).filter(|_| lends);
    let mut evpn = file.evpn.take();
    if let Some(evpn) = &mut evpn {
        // Pools that are given are those of this host alone.
        let is_given = |is_ipv4| arguments.pool.iter().any(|pool| pool.first.is_ipv4() == is_ipv4);
        evpn.shares_ipv4_pool = file.ipv4.pool.is_none() && !is_given(true);
        evpn.shares_ipv6_pool = file.ipv6.pool.is_none() && !is_given(false);
        vtep(tunnels(&operations)).context("[evpn]")?;
    }
    let plan = Plan { config, network, services, lease_file, evpn, operations, machine };
    plan.check()?;
    Ok(plan)
}

/// Returns the ports that options ask for.
fn ports(
    arguments: &UpArguments,
    file: &NetFile,
    given: &PortDefaults,
    mut connections: Connections,
) -> anyhow::Result<Vec<(String, Operation)>> {
    let settings = file.ports.after(given);
    let vhost_user = arguments
        .vhost_user
        .iter()
        .map(|(name, path)| ("vhost-user", name, Attachment::VhostUser(numbered(path))));
    let client = arguments
        .vhost_user_client
        .iter()
        .map(|(name, path)| ("vhost-user-client", name, Attachment::VhostUserClient(path.clone())));
    let stream = arguments
        .stream
        .iter()
        .map(|(name, path)| ("stream", name, Attachment::Stream(numbered(path))));
    let tap = arguments.tap.iter().map(|name| ("tap", name, Attachment::Tap(name.clone())));
    let packet = arguments.uplinks.packet.iter();
    let packet =
        packet.map(|(name, interface)| ("packet", name, Attachment::Packet(interface.clone())));
    let xdp = arguments.uplinks.xdp.iter();
    let xdp = xdp.map(|(name, settings)| ("xdp", name, Attachment::Xdp(settings.clone())));
    let operation = |(option, name, attachment): (&str, &String, Attachment)| {
        let (name, settings) = (name.clone(), settings.clone().for_device(&attachment));
        let at = format!("option --{option} {name}");
        (at, Operation::Add { name, attachment, settings })
    };
    let mut given: Vec<_> =
        vhost_user.chain(client).chain(stream).chain(tap).chain(packet).chain(xdp).collect();
    let machine = &arguments.machine;
    let vhost_user = machine.vhost_user_fd.iter().map(|given| ("vhost-user-fd", given));
    let stream = machine.stream_fd.iter().map(|given| ("stream-fd", given));
    for (option, (name, number)) in vhost_user.chain(stream) {
        let connection = connections.remove(number).ok_or_else(|| {
            anyhow!("option --{option} {name}={number}: this descriptor has another use")
        })?;
        let attachment = match option {
            "stream-fd" => Attachment::StreamFd(connection),
            _ => Attachment::VhostUserFd(connection),
        };
        given.push((option, name, attachment));
    }
    let mut made: Vec<_> = given.into_iter().map(operation).collect();
    for (vxlan, vlan) in &arguments.uplinks.vxlan {
        made.push((
            format!("option --vxlan {vxlan}"),
            operations::tunnel(vxlan.clone(), *vlan, &settings),
        ));
    }
    Ok(made)
}

/// Returns the largest MTU of the network at which its packets pass to all remotes.
fn tunnel_mtu(operations: &[(String, Operation)]) -> Option<u16> {
    tunnels(operations).map(|settings| settings.inner_mtu().max(MTU_MIN)).min()
}

/// The VXLAN ports.
fn tunnels(operations: &[(String, Operation)]) -> impl Iterator<Item = &VxlanSettings> {
    operations.iter().filter_map(|(_, operation)| match operation {
        Operation::Add { attachment: Attachment::Vxlan(settings), .. } => Some(settings),
        _ => None,
    })
}

/// Returns a path with the first number from 1 on for which no process listens there, in place of
/// `%i`.
fn numbered(path: &Path) -> PathBuf {
    let Some((before, behind)) = path.to_str().and_then(|text| text.split_once("%i")) else {
        return path.to_owned();
    };
    let named = |number: u32| PathBuf::from(format!("{before}{number}{behind}"));
    let is_free = |path: &PathBuf| !endpoint::is_in_use(path);
    (1..NUMBERS_MAX).map(named).find(is_free).unwrap_or_else(|| named(NUMBERS_MAX))
}

/// `has_policies` says that ports have policies of their own.
fn config(
    arguments: &mut UpArguments,
    file: &NetFile,
    has_policies: bool,
) -> anyhow::Result<Config> {
    let gateway = &mut arguments.gateway;
    gateway.mtu = gateway.mtu.or(file.mtu);
    gateway.memory = gateway.memory.or(file.memory);
    gateway.max_flows = gateway.max_flows.or(file.max_flows);
    gateway.congestion = gateway.congestion.or(file.congestion);
    gateway.lend_to_host = gateway.lend_to_host.or(file.lend_to_host);
    gateway.subnet = gateway.subnet.or(file.ipv4.subnet);
    gateway.subnet6 = gateway.subnet6.or(file.ipv6.subnet);
    gateway.ipv4_only |= file.ipv6.is_off;
    gateway.ipv6_only |= file.ipv4.is_off;
    gateway.dns.extend(&file.resolvers);
    gateway.map_host_loopback.extend(&file.map_host_loopback);
    let mut config = settings::describe(gateway);
    let of_file = file.workers.map(|count| count.map_or(Workers::Auto, Workers::Most));
    config.workers = match arguments.workers.count.or(of_file) {
        Some(Workers::Auto) => config.workers_for_this_machine(),
        Some(Workers::Most(workers)) => workers,
        None => 1,
    };
    config.multicast.extend(&file.multicast);
    if let Some(v4) = &mut config.ipv4 {
        v4.gateway = file.ipv4.gateway.unwrap_or(v4.gateway);
        v4.dns = file.ipv4.dns.or(v4.dns);
    }
    if let Some(v6) = &mut config.ipv6 {
        v6.gateway = file.ipv6.gateway.unwrap_or(v6.gateway);
        v6.dns = file.ipv6.dns.or(v6.dns);
    }
    let addresses = arguments.link.address.iter().map(|given| given.address.is_ipv4());
    let count_v4 = addresses.clone().filter(|is_ipv4| *is_ipv4).count();
    if count_v4 > 1 || addresses.len() - count_v4 > 1 {
        bail!("option --address: a machine gets one address of each IP version; give one of each");
    }
    link::apply(&mut config, &arguments.link, settings::messages(gateway))?;
    // Those are for programs, whose interface is configured directly.
    config.further_addresses.clear();
    settings::check(&mut config, gateway);
    config.egress = egress::enforcer(&gateway.egress, file.egress.clone(), has_policies)?;
    Ok(config)
}

/// Returns the configuration of the services.
fn services(
    arguments: &UpArguments,
    file: &NetFile,
    config: &Config,
) -> anyhow::Result<services::Config> {
    let default = || DOMAIN.parse::<DomainName>().expect("it is a name");
    let domain = arguments.domain.as_ref().or(file.domain.as_ref()).cloned();
    let domain = domain.unwrap_or_else(default);
    let mut services = services_config(config, &domain, RandomState::new().hash_one(1));
    services.lease_time =
        arguments.lease_time.or(file.dhcp.lease_time).unwrap_or(services.lease_time);
    services.leases_per_port_max =
        file.dhcp.leases_per_port.unwrap_or(services.leases_per_port_max);
    let more = arguments.search.iter().chain(&file.dhcp.search).filter(|name| **name != domain);
    services.search.extend(more.cloned());
    if let Some(v4) = &mut services.ipv4 {
        let pool = file.ipv4.pool.map(|pool| pool.first..=pool.last);
        v4.pool = pool.unwrap_or(v4.pool.clone());
        let dns = file.dhcp.dns.iter().filter_map(|dns| match dns {
            IpAddr::V4(dns) => Some(*dns),
            IpAddr::V6(_) => None,
        });
        replace_if_any(&mut v4.dns, dns.collect());
    }
    if let Some(v6) = &mut services.ipv6 {
        let pool = file.ipv6.pool.map(|pool| pool.first..=pool.last);
        v6.pool = pool.or(v6.pool.take());
        v6.autonomous &= file.autonomous.unwrap_or(true);
        let dns = file.dhcp.dns.iter().filter_map(|dns| match dns {
            IpAddr::V6(dns) => Some(*dns),
            IpAddr::V4(_) => None,
        });
        replace_if_any(&mut v6.dns, dns.collect());
    }
    for pool in &arguments.pool {
        match (*pool, &mut services.ipv4, &mut services.ipv6) {
            (Pool { first: IpAddr::V4(first), last: IpAddr::V4(last) }, Some(v4), _) => {
                v4.pool = first..=last;
            }
            (Pool { first: IpAddr::V6(first), last: IpAddr::V6(last) }, _, Some(v6)) => {
                v6.pool = Some(first..=last);
            }
            (Pool { first, last }, _, _) => {
                return Err(services::ConfigError::Pool(first, last)).context("option --pool");
            }
        }
    }
    machine::withhold(&arguments.machine, &mut services);
    Ok(services)
}

fn replace_if_any<T>(old: &mut Vec<T>, new: Vec<T>) {
    if !new.is_empty() {
        *old = new;
    }
}

impl Plan {
    /// Checks everything that can be checked before the network is made.
    fn check(&self) -> anyhow::Result<()> {
        let mut services = None;
        if let Some(config) = &self.services {
            config.check().context("addresses for guests")?;
            services = Some(Services::new(config.clone()));
        }
        let (mut names, mut published) = (HashSet::new(), HashSet::new());
        let is_full = |names: &HashSet<_>| names.len() == NETWORK_PORTS_MAX;
        for (at, operation) in &self.operations {
            let wrong = |error: &dyn Display| anyhow!("{at}: {error}");
            match operation {
                Operation::Add { name, attachment, settings } => {
                    check_port(name, attachment, settings).map_err(|error| wrong(&error))?;
                    if is_full(&names) {
                        return Err(wrong(&PortError::TooMany));
                    }
                    if !names.insert(name) {
                        return Err(wrong(&format_args!(
                            "port '{name}' already exists; choose another name"
                        )));
                    }
                }
                Operation::AddLease(lease, _) => {
                    let Some(services) = &mut services else {
                        return Err(wrong(&OperationError::NoServices));
                    };
                    let added = services.add_static_lease(lease.clone(), Instant::START);
                    added.map_err(|error| wrong(&error))?;
                }
                Operation::Ports(_) if self.network.gateway.is_none() => {
                    return Err(wrong(&OperationError::NoGateway));
                }
                Operation::Ports(PortChange::Publish(all, _)) => {
                    for port in all.iter().map(Publish::host_port) {
                        if !published.insert(port.clone()) {
                            return Err(wrong(&StartError::Twice(port)));
                        }
                    }
                }
                Operation::Del(_)
                | Operation::Set(..)
                | Operation::DelLease(_)
                | Operation::Remote(..)
                | Operation::Workers(_)
                | Operation::Ports(PortChange::Unpublish(..)) => {}
            }
        }
        Ok(())
    }
}
