//! The limit for the super-packets that the kernel gives to an interface.

use rustix::io::Errno;

use super::{LinkSettings, Netlink, NetlinkError};
use crate::outside::{self, Wanted};

/// Keeps the super-packets of the interface `name` in this network namespace from being longer than
/// `bytes` (`gso_max_size`). A confined process may do so for a TAP device that it has opened.
///
/// # Errors
/// [`NetlinkError`]; EPERM without `CAP_NET_ADMIN`.
pub fn limit_super_packets(name: &str, bytes: u32) -> Result<(), NetlinkError> {
    match outside::ask(Wanted::SuperPackets, bytes.into(), name.as_bytes(), None) {
        Some(Ok(_)) => Ok(()),
        Some(Err(errno)) => {
            Err(NetlinkError::Refused { what: "limit super-packets", errno, text: None })
        }
        None => limit_here(name, bytes),
    }
}

/// The broker's part of [`limit_super_packets`], for a confined process.
pub(crate) fn limit_for(name: &str, bytes: u64) -> Result<(), Errno> {
    let bytes = u32::try_from(bytes).map_err(|_| Errno::INVAL)?;
    limit_here(name, bytes).map_err(|error| error.errno().unwrap_or(Errno::IO))
}

fn limit_here(name: &str, bytes: u32) -> Result<(), NetlinkError> {
    let mut netlink = Netlink::open()?;
    let index = netlink.link_index(name)?;
    netlink.link_set(index, &LinkSettings { gso_max_size: Some(bytes), ..Default::default() })
}
