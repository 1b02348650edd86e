//! How the host itself reaches the world, as its routes and addresses say.

use std::net::IpAddr;

use rustix::io::Errno;
use towpath_gateway::config::ProgramAddress;
use towpath_io::netlink::dump::{DefaultRoute, LinkAddress};
use towpath_io::netlink::{Netlink, NetlinkError};

/// How the host reaches the world by one IP version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    /// Index of the interface.
    pub(crate) link: u32,
    /// The address that new connections use.
    pub(crate) first: ProgramAddress,
    /// Other addresses of the interface that connections may use.
    pub(crate) further: Vec<ProgramAddress>,
    /// The next hop of the default route, of the same IP version.
    pub(crate) gateway: Option<IpAddr>,
}

impl Host {
    /// Returns all addresses.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = ProgramAddress> {
        std::iter::once(self.first).chain(self.further.iter().copied())
    }
}

/// Returns how the host reaches the world by one IP version: by the interface `only`, or by that of
/// the default route with the least metric. Returns `None` if it does not.
///
/// # Errors
/// [`NetlinkError`].
pub(crate) fn find(
    netlink: &mut Netlink,
    is_ipv4: bool,
    only: Option<&str>,
) -> Result<Option<Host>, NetlinkError> {
    let link = match only.map(|name| netlink.link_index(name)).transpose() {
        Err(error) if error.errno() == Some(Errno::NODEV) => return Ok(None),
        link => link?,
    };
    let routes = netlink.default_routes(is_ipv4)?;
    let addresses = netlink.addresses(is_ipv4)?;
    Ok(choose(&routes, &addresses, is_ipv4, link))
}

fn choose(
    routes: &[DefaultRoute],
    addresses: &[LinkAddress],
    is_ipv4: bool,
    link: Option<u32>,
) -> Option<Host> {
    let of_link = routes.iter().filter(|route| link.is_none_or(|link| route.link == link));
    let route = of_link.min_by_key(|route| route.metric).copied();
    let on_link = |link| DefaultRoute { link, gateway: None, source: None, metric: 0 };
    let route = route.or(link.map(on_link))?;
    let usable = addresses.iter().filter(|found| found.link == route.link && found.is_global);
    let order = |found: &&LinkAddress| (Some(found.address) != route.source, found.is_passing);
    let best = usable.clone().min_by_key(order)?;
    let plain = |found: &LinkAddress| ProgramAddress {
        address: found.address,
        prefix_len: found.prefix_len,
    };
    let others = usable.filter(|found| found.address != best.address && !found.is_passing);
    let gateway = route.gateway.filter(|gateway| gateway.is_ipv4() == is_ipv4);
    let further = others.map(plain).collect();
    Some(Host { link: route.link, first: plain(best), further, gateway })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(link: u32, source: Option<[u8; 4]>, metric: u32) -> DefaultRoute {
        let gateway = Some([192, 0, 2, 1].into());
        DefaultRoute { link, gateway, source: source.map(IpAddr::from), metric }
    }

    fn address(link: u32, last: u8, is_passing: bool) -> LinkAddress {
        let address = [192, 0, 2, last].into();
        LinkAddress { link, address, prefix_len: 24, is_global: true, is_passing }
    }

    fn last(found: ProgramAddress) -> u8 {
        let IpAddr::V4(v4) = found.address else { panic!("IPv4") };
        v4.octets()[3]
    }

    /// Goal: the first address is that which connections use; temporary ones are no further ones.
    #[test]
    fn the_route_chooses_interface_and_address() {
        let addresses = [
            address(1, 9, false),
            address(2, 2, true),
            address(2, 3, false),
            address(2, 4, false),
            address(2, 5, true),
        ];
        let routes = [route(1, None, 200), route(2, None, 100)];
        let host = choose(&routes, &addresses, true, None).unwrap();
        assert_eq!((host.link, last(host.first)), (2, 3));
        assert_eq!(host.further.iter().copied().map(last).collect::<Vec<_>>(), [4]);
        let preferred = [route(2, Some([192, 0, 2, 5]), 100)];
        let host = choose(&preferred, &addresses, true, None).unwrap();
        assert_eq!(last(host.first), 5, "the route names it");
        assert_eq!(host.further.iter().copied().map(last).collect::<Vec<_>>(), [3, 4]);
        let host = choose(&routes, &addresses, true, Some(1)).unwrap();
        assert_eq!((host.link, last(host.first), host.further.len()), (1, 9, 0));
    }

    #[test]
    fn without_route_or_address_there_is_no_way() {
        let addresses = [address(1, 9, false)];
        assert_eq!(choose(&[], &addresses, true, None), None);
        assert_eq!(choose(&[route(2, None, 0)], &addresses, true, None), None);
        let named = choose(&[], &addresses, true, Some(1)).unwrap();
        assert_eq!((last(named.first), named.gateway), (9, None));
        let local = [LinkAddress { is_global: false, ..address(1, 9, false) }];
        assert_eq!(choose(&[route(1, None, 0)], &local, true, None), None);
    }
}
