//! Properties of a link.

use std::os::fd::{AsRawFd, BorrowedFd};

use super::message::{
    IFF_UP, IFINFOMSG_LEN, IFLA_IFNAME, IFLA_MTU, IFLA_NET_NS_FD, Request, attributes, read_u16,
    read_u32,
};
use super::{Netlink, NetlinkError};

/// A link, as the kernel describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its index.
    pub index: u32,
    /// Largest IP packet in bytes.
    pub mtu: u32,
    /// It is set up. Its carrier may still be down.
    pub is_up: bool,
    /// Its frames have Ethernet headers.
    pub is_ethernet: bool,
}

impl Netlink {
    /// Returns the link called `name`; `None` if there is none.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn link(&mut self, name: &str) -> Result<Option<Link>, NetlinkError> {
        let mut found = None;
        self.dump("list links", Request::dump_links(), |body| {
            found = found.or(parse_link(body, name));
        })?;
        Ok(found)
    }

    /// Moves the link `index` into another network namespace, where its name is `name`. It is down
    /// there and has no addresses.
    ///
    /// # Errors
    /// [`NetlinkError`]; EEXIST if that namespace has a link of this name.
    pub fn link_move(
        &mut self,
        index: u32,
        namespace: BorrowedFd<'_>,
        name: &str,
    ) -> Result<(), NetlinkError> {
        let mut request = Request::link(index, false);
        request.attribute(IFLA_NET_NS_FD, &namespace.as_raw_fd().to_ne_bytes());
        request.attribute(IFLA_IFNAME, &[name.as_bytes(), &[0]].concat());
        self.ask("move link", request)
    }
}

/// Parses `struct ifinfomsg` and its attributes; `None` if it is not the link called `name`.
fn parse_link(body: &[u8], name: &str) -> Option<Link> {
    let kind = read_u16(body, 2)?;
    let (index, flags) = (read_u32(body, 4)?, read_u32(body, 8)?);
    let (mut mtu, mut is_it) = (None, false);
    for (kind, value) in attributes(body.get(IFINFOMSG_LEN..)?) {
        match kind {
            IFLA_IFNAME => is_it = value.strip_suffix(&[0]) == Some(name.as_bytes()),
            IFLA_MTU => mtu = read_u32(value, 0),
            _ => {}
        }
    }
    let is_ethernet = kind == ARPHRD_ETHER;
    is_it.then_some(Link { index, mtu: mtu?, is_up: flags & IFF_UP != 0, is_ethernet })
}

/// Hardware type of Ethernet (linux/if_arp.h).
const ARPHRD_ETHER: u16 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::message::attribute;

    #[test]
    fn a_link_is_found_by_its_whole_name() {
        let mut body = vec![0, 0];
        body.extend(ARPHRD_ETHER.to_ne_bytes());
        body.extend(7u32.to_ne_bytes());
        body.extend((IFF_UP | 0x1000).to_ne_bytes());
        body.extend([0; 4]);
        body.extend(attribute(IFLA_IFNAME, b"eth1\0"));
        body.extend(attribute(IFLA_MTU, &9000u32.to_ne_bytes()));
        let link = Link { index: 7, mtu: 9000, is_up: true, is_ethernet: true };
        assert_eq!(parse_link(&body, "eth1"), Some(link));
        for other in ["eth", "eth11", ""] {
            assert_eq!(parse_link(&body, other), None, "{other}");
        }
        for end in 0..body.len() {
            assert_eq!(parse_link(&body[..end], "eth1"), None, "cut at {end}");
        }
    }

    /// Goal: the kernel's own list is understood. Every namespace has a loopback link.
    #[test]
    fn the_kernel_lists_the_loopback() {
        let mut netlink = Netlink::open().unwrap();
        let link = netlink.link("lo").unwrap().expect("there is one");
        assert_eq!((link.index, link.is_ethernet), (1, false));
        assert_eq!(netlink.link("none-such").unwrap(), None);
    }
}
