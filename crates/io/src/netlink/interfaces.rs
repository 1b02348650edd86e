//! Interfaces that can carry multicast.

use std::net::{IpAddr, Ipv4Addr};

use super::{Netlink, NetlinkError};

/// Most interfaces that [`Netlink::interfaces`] returns.
pub const INTERFACES_MAX: usize = 16;

/// An interface with an address, other than the loopback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressedInterface {
    /// Its index.
    pub index: u32,
    /// Its first IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// It has an IPv6 address.
    pub has_ipv6: bool,
}

impl AddressedInterface {
    /// Returns true if the interface has an address of this IP version.
    pub fn has(&self, is_ipv4: bool) -> bool {
        if is_ipv4 { self.ipv4.is_some() } else { self.has_ipv6 }
    }
}

impl Netlink {
    /// Returns the first [`INTERFACES_MAX`] interfaces with an address, without the loopback.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn interfaces(&mut self) -> Result<Vec<AddressedInterface>, NetlinkError> {
        let mut all: Vec<AddressedInterface> = Vec::new();
        for is_ipv4 in [true, false] {
            for found in self.addresses(is_ipv4)? {
                if found.address.is_loopback() {
                    continue;
                }
                let index = found.link;
                let at = match all.iter().position(|known| known.index == index) {
                    Some(at) => at,
                    None if all.len() == INTERFACES_MAX => continue,
                    None => {
                        all.push(AddressedInterface { index, ipv4: None, has_ipv6: false });
                        all.len() - 1
                    }
                };
                match found.address {
                    IpAddr::V4(v4) => all[at].ipv4 = all[at].ipv4.or(Some(v4)),
                    IpAddr::V6(_) => all[at].has_ipv6 = true,
                }
            }
        }
        Ok(all)
    }
}
