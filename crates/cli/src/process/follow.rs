//! Follows the host's own address while towpath runs, for `--map-host`.
//!
//! Sockets to hosts are opened for each flow, so the kernel chooses route and source address for
//! them, and the resolvers are read again by the gateway. What remains is the host's own address: a
//! default route through another interface, or a new lease, changes it. Addresses inside never
//! change.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use towpath_gateway::config::{Config, MappedAddress};
use towpath_io::netlink::NetlinkError;
use towpath_io::netlink::watch::Watch;

use crate::config::args::LinkArguments;
use crate::config::host;
use crate::messages::Messages;

/// The addresses that are mapped to the host's own address, and what changes that.
pub(crate) struct Follower {
    watch: Watch,
    /// The interface that an option names.
    only: Option<String>,
    mapped: Vec<MappedAddress>,
    messages: Messages,
}

impl Follower {
    /// Begins to follow, if an address is mapped. Must be called in the host's network namespace,
    /// before this process is confined.
    pub(crate) fn open(
        config: &Config,
        arguments: &LinkArguments,
        messages: Messages,
    ) -> Option<Self> {
        let mapped = config.host_addresses.clone();
        if mapped.is_empty() {
            return None;
        }
        let only = arguments.copied_interface().map(str::to_owned);
        match Watch::open() {
            Ok(watch) => Some(Self { watch, only, mapped, messages }),
            Err(error) => {
                messages.notice(lost(&error));
                None
            }
        }
    }

    /// Takes a step when the descriptor is readable; returns the mapped addresses if they change.
    ///
    /// # Errors
    /// The host's addresses cannot be read.
    pub(crate) fn step(&mut self) -> Result<Option<Vec<MappedAddress>>, NetlinkError> {
        if !self.watch.step()? {
            return Ok(None);
        }
        let mut changed = false;
        for is_ipv4 in [true, false] {
            let of_version = |mapped: &&MappedAddress| mapped.inside.is_ipv4() == is_ipv4;
            let Some(known) = self.mapped.iter().find(of_version).map(|mapped| mapped.host) else {
                continue;
            };
            let now = self.address(is_ipv4, known)?;
            if now == known {
                continue;
            }
            changed = true;
            let mapped = self.mapped.iter_mut();
            mapped.filter(|m| m.inside.is_ipv4() == is_ipv4).for_each(|m| m.host = now);
            match now {
                Some(address) => {
                    self.messages.detail(format_args!("the host's address is now {address}"));
                }
                None => {
                    let version = if is_ipv4 { "IPv4" } else { "IPv6" };
                    self.messages.detail(format_args!("the host has no {version} address now"));
                }
            }
        }
        Ok(changed.then(|| self.mapped.clone()))
    }

    /// Returns the host's own address. Without a default route it stays as long as it exists.
    fn address(
        &mut self,
        is_ipv4: bool,
        known: Option<IpAddr>,
    ) -> Result<Option<IpAddr>, NetlinkError> {
        let netlink = self.watch.netlink();
        if let Some(host) = host::find(netlink, is_ipv4, self.only.as_deref())? {
            return Ok(Some(host.first.address));
        }
        let Some(known) = known else { return Ok(None) };
        let addresses = netlink.addresses(is_ipv4)?;
        Ok(addresses.iter().any(|found| found.address == known).then_some(known))
    }
}

impl AsFd for Follower {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}

/// Returns the message about changes that cannot be followed.
pub(crate) fn lost(error: &NetlinkError) -> String {
    format!("option --map-host: changes of the host's addresses are not followed: {error}")
}
