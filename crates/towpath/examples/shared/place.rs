//! The environment of examples that need a network: a network namespace that ends with the process,
//! and a towpath host at the other end of a TAP device. There is no name to choose and nothing to
//! clean up.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::ensure;
use towpath::host::{Config, Host};
use towpath_io::namespace::{Isolation, reap};
use towpath_io::netlink::{LinkSettings, Netlink};
use towpath_io::process_sys::Forked;

/// Runs `work` as process 1 of a network namespace.
pub(crate) fn isolated(work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let isolation = Isolation::detect(true)?;
    match isolation.fork()? {
        Forked::Child => {
            let done = isolation.adopt().map_err(anyhow::Error::from).and_then(|()| work());
            if let Err(error) = &done {
                eprintln!("error: {error:#}");
            }
            std::process::exit(done.is_err().into())
        }
        Forked::Parent(child) => {
            let status = reap(child.pid)?;
            ensure!(status.success(), "the namespace's process has failed");
            Ok(())
        }
    }
}

/// Starts a host on a TAP device whose kernel end has the address `kernel`.
pub(crate) fn on_tap(config: &Config, kernel: Ipv4Addr) -> anyhow::Result<Host> {
    let host = Host::on_tap_named(config, DEVICE)?;
    let mut netlink = Netlink::open()?;
    let index = netlink.link_index(DEVICE)?;
    netlink.address_add(index, IpAddr::V4(kernel), PREFIX_LEN)?;
    netlink.link_set(index, &LinkSettings { up: true, ..LinkSettings::default() })?;
    Ok(host)
}

/// Prefix length of the network between host and kernel.
pub(crate) const PREFIX_LEN: u8 = 24;
const DEVICE: &str = "example0";
