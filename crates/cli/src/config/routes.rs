//! Routes of the host's interface that the program's interface gets as well.

use std::net::IpAddr;

use anyhow::anyhow;
use towpath_gateway::config::{Config, ROUTES_MAX};
use towpath_io::netlink::{Netlink, NetlinkError, Route};

use crate::config::args::LinkArguments;
use crate::config::host;
use crate::messages::Messages;

/// Adds the routes of the interface whose addresses are copied, for each IP version without
/// `--gateway`. Called after [`link::apply`](super::link::apply).
///
/// # Errors
/// The host's routes cannot be read.
pub(crate) fn copy(
    config: &mut Config,
    arguments: &LinkArguments,
    messages: Messages,
) -> anyhow::Result<()> {
    if arguments.copy_host.is_none() || arguments.single_route {
        return Ok(());
    }
    let what = |error: NetlinkError| {
        anyhow!(
            "cannot read the host's routes: {error}; add --single-route, or permit netlink sockets"
        )
    };
    let mut netlink = Netlink::open().map_err(what)?;
    let gateways = [
        config.ipv4.map(|v4| IpAddr::from(v4.gateway)),
        config.ipv6.map(|v6| IpAddr::from(v6.gateway)),
    ];
    let mut left_out = 0;
    for gateway in gateways.into_iter().flatten() {
        let is_ipv4 = gateway.is_ipv4();
        if arguments.gateway.iter().any(|given| given.is_ipv4() == is_ipv4) {
            continue;
        }
        let only = arguments.copied_interface();
        let Some(found) = host::find(&mut netlink, is_ipv4, only).map_err(what)? else { continue };
        let room = ROUTES_MAX - config.routes.len();
        let (routes, more) = netlink.routes(found.link, is_ipv4, room).map_err(what)?;
        left_out += more;
        config.routes.extend(routes.into_iter().map(|route| inside(route, gateway)));
    }
    if left_out > 0 {
        messages.notice(format_args!(
            "option --copy-host: the host's interface has too many routes; {left_out} are not \
             copied, and their networks are reached by the default route"
        ));
    }
    Ok(())
}

/// Returns a route of the host as it is inside. There, of addresses that are valid on one link
/// only, the gateway answers for its own alone.
fn inside(route: Route, gateway: IpAddr) -> Route {
    let is_local = |hop: &IpAddr| match hop {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    match route.gateway {
        Some(hop) if is_local(&hop) => Route { gateway: Some(gateway), ..route },
        _ => route,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routers_with_addresses_of_the_link_become_the_gateway() {
        let route = |hop: Option<&str>| Route {
            destination: "2001:db8:7::".parse().unwrap(),
            prefix_len: 48,
            gateway: hop.map(|hop| hop.parse().unwrap()),
            metric: 1024,
        };
        let gateway = "fe80::1".parse().unwrap();
        assert_eq!(inside(route(Some("fe80::9")), gateway), route(Some("fe80::1")));
        for same in [Some("2001:db8::9"), None] {
            assert_eq!(inside(route(same), gateway), route(same));
        }
    }
}
