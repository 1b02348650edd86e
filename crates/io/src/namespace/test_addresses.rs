//! Addresses that an interface has for the duration of a self-test, because another process gives
//! it its own later.
//!
//! The networks are ones that no host has: RFC 7335 reserves the IPv4 network for a link between a
//! host and its own translator, and routers discard the IPv6 network (RFC 6666).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::netlink::{Netlink, NetlinkError};

/// Length of the prefix of the IPv4 network.
const PREFIX_LEN_V4: u8 = 29;
/// Length of the prefix of the IPv6 network: four addresses.
const PREFIX_LEN_V6: u8 = 126;
/// Smallest MTU with IPv6 (RFC 8200 §5).
const MTU_IPV6_MIN: u32 = 1280;

/// Addresses of an interface; removed when dropped.
#[derive(Debug)]
pub struct TestAddresses {
    netlink: Netlink,
    link: u32,
    has_v4: bool,
    has_v6: bool,
    /// MTU of the interface.
    pub mtu: u16,
}

impl TestAddresses {
    /// The address of the interface, and that of its peer.
    pub const V4: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 0, 2), Ipv4Addr::new(192, 0, 0, 1)];
    /// The IPv6 address of the interface, and that of its peer.
    pub const V6: [Ipv6Addr; 2] =
        [Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 2), Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 1)];

    /// Adds addresses to the interface `name`, as far as the system permits; `None` if it is down:
    /// then nothing can be tested.
    ///
    /// # Errors
    /// [`NetlinkError`]: the state of the interface cannot be read.
    pub fn add(name: &str) -> Result<Option<Self>, NetlinkError> {
        let mut netlink = Netlink::open()?;
        let link = netlink.link_index(name)?;
        let state = netlink.link_state(link)?;
        let Some(state) = state.filter(|state| state.is_up) else { return Ok(None) };
        let mut add = |address: IpAddr, len| netlink.address_add(link, address, len).is_ok();
        let has_v4 = add(Self::V4[0].into(), PREFIX_LEN_V4);
        let has_v6 = state.mtu >= MTU_IPV6_MIN && add(Self::V6[0].into(), PREFIX_LEN_V6);
        let mtu = u16::try_from(state.mtu).unwrap_or(u16::MAX);
        Ok(Some(Self { netlink, link, has_v4, has_v6, mtu }))
    }

    /// Returns the IPv4 addresses, if they were added.
    pub fn v4(&self) -> Option<[Ipv4Addr; 2]> {
        self.has_v4.then_some(Self::V4)
    }

    /// Returns the IPv6 addresses, if they were added.
    pub fn v6(&self) -> Option<[Ipv6Addr; 2]> {
        self.has_v6.then_some(Self::V6)
    }
}

impl Drop for TestAddresses {
    fn drop(&mut self) {
        // A failure means that the interface has gone.
        if self.has_v4 {
            let _ = self.netlink.address_delete(self.link, Self::V4[0].into(), PREFIX_LEN_V4);
        }
        if self.has_v6 {
            let _ = self.netlink.address_delete(self.link, Self::V6[0].into(), PREFIX_LEN_V6);
        }
    }
}
