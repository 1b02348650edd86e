//! The interface of a container, and that of the engine's host in the network of its containers.
//!
//! The device is made in the network namespace of the plugin and moved into that of the container:
//! its descriptor, which the network gets, then keeps the plugin's namespace alive and not the
//! container's. When the container's namespace ends, the device ends with it, and the port in the
//! network reports that. The host's interface stays in the namespace of the plugin, which is the
//! host's.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use rustix::io::Errno;
use towpath_io::namespace::enter::NetworkNamespace;
use towpath_io::namespace::means_no_ipv6;
use towpath_io::netlink::{LinkSettings, Netlink, NetlinkError, Route};
use towpath_io::tap::{Tap, TapError};
use towpath_net::wire::MacAddr;

/// Name of a device before it is moved; the kernel puts a number in the place of `%d`.
const NAME_BEFORE: &str = "towpath%d";

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) address: IpAddr,
    /// Bits of the network's prefix.
    pub(super) prefix_len: u8,
    pub(super) gateway: IpAddr,
}

/// How an interface is configured.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) mac: MacAddr,
    pub(super) mtu: u16,
    /// Bytes of the largest super-packet, if it is not the kernel's.
    pub(super) gso_max_size: Option<u32>,
    pub(super) addresses: Vec<Address>,
    /// It has default routes through the gateways, beside the network's own range.
    pub(super) leads_out: bool,
}

/// Makes a TAP device with the name `name` in a namespace; returns its descriptor. The device ends
/// when this is closed.
pub(super) fn make(namespace: &NetworkNamespace, name: &str) -> anyhow::Result<OwnedFd> {
    namespace.check_foreign()?;
    let tap = Tap::create(NAME_BEFORE).context("cannot make a TAP device")?;
    let mut netlink = Netlink::open()?;
    let index = netlink.link_index(&tap.name()?)?;
    let moved = netlink.link_move(index, namespace.as_fd(), name);
    moved.map_err(|error| match error.errno() {
        Some(Errno::EXIST) => anyhow!("the container has an interface {name} already"),
        _ => anyhow::Error::from(error)
            .context(format!("cannot move a TAP device into the container as {name}")),
    })?;
    Ok(tap.into_fd())
}

/// Makes a TAP device with the name `name` in the namespace of this process; returns its
/// descriptor, or `None` if the name is in use. The device ends when this is closed.
pub(super) fn make_here(name: &str) -> anyhow::Result<Option<OwnedFd>> {
    match Tap::create(name) {
        Ok(tap) => Ok(Some(tap.into_fd())),
        Err(TapError::NameInUse) => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot make the TAP device {name}")),
    }
}

/// Moves this process into a namespace and configures the interface `name` there. Also sets the
/// loopback link up. Returns the addresses that the kernel took: all, unless it has no IPv6 there.
pub(super) fn configure(
    namespace: &NetworkNamespace,
    name: &str,
    settings: &Settings,
) -> anyhow::Result<Vec<Address>> {
    namespace.enter(None)?;
    configure_here(name, settings)
}

/// Configures the interface `name` in the namespace of this process, as [`configure`] does.
pub(super) fn configure_here(name: &str, settings: &Settings) -> anyhow::Result<Vec<Address>> {
    configured(name, settings).with_context(|| format!("cannot configure interface {name}"))
}

fn configured(name: &str, settings: &Settings) -> Result<Vec<Address>, NetlinkError> {
    let mut netlink = Netlink::open()?;
    netlink.loopback_up()?;
    let index = netlink.link_index(name)?;
    // Router advertisements would add addresses that the engine does not know of. Without IPv6
    // there is no such file.
    let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{name}/accept_ra"), "0");
    let Settings { mac, mtu, gso_max_size, addresses, leads_out } = settings;
    let (mac, mtu, gso_max_size) = (Some(mac.0), Some(*mtu), *gso_max_size);
    netlink.link_set(index, &LinkSettings { mac, mtu, ..LinkSettings::default() })?;
    if gso_max_size.is_some() {
        // Without it, it is only slower.
        let _ = netlink.link_set(index, &LinkSettings { gso_max_size, ..LinkSettings::default() });
    }
    netlink.link_set(index, &LinkSettings { up: true, ..LinkSettings::default() })?;
    let mut taken = Vec::new();
    for one in addresses {
        let is_ipv4 = one.address.is_ipv4();
        match netlink.address_add(index, one.address, one.prefix_len) {
            Err(error) if !is_ipv4 && error.errno().is_some_and(means_no_ipv6) => continue,
            added => added?,
        }
        if *leads_out {
            add_default_route(&mut netlink, index, one.gateway)?;
        }
        taken.push(*one);
    }
    Ok(taken)
}

/// Adds a default route. Those through other interfaces are used before this one.
fn add_default_route(
    netlink: &mut Netlink,
    index: u32,
    gateway: IpAddr,
) -> Result<(), NetlinkError> {
    let destination = match gateway {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let others = netlink.default_routes(gateway.is_ipv4())?.into_iter();
    let metric = others.map(|other| other.metric.saturating_add(1)).max().unwrap_or(0);
    netlink.route_add(index, &Route { destination, prefix_len: 0, gateway: Some(gateway), metric })
}

/// Moves this process into a namespace and checks that the interface `name` is up there and has
/// these addresses.
pub(super) fn check(path: &Path, name: &str, addresses: &[IpAddr]) -> anyhow::Result<()> {
    NetworkNamespace::open(path)?.enter(None)?;
    let mut netlink = Netlink::open()?;
    let link = netlink.link(name)?;
    let link = link.with_context(|| format!("the container has no interface {name}"))?;
    if !link.is_up {
        bail!("the interface {name} of the container is down");
    }
    let there = [netlink.addresses(true)?, netlink.addresses(false)?].concat();
    let has = |address: &IpAddr| {
        there.iter().any(|found| found.link == link.index && found.address == *address)
    };
    match addresses.iter().find(|address| !has(address)) {
        Some(missing) => bail!("the interface {name} of the container has no address {missing}"),
        None => Ok(()),
    }
}
