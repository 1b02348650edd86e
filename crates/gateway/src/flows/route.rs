//! Maps addresses inside to host addresses, and back.

use crate::config::{Config, MappedAddress};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Port of DNS.
const DNS_PORT: u16 = 53;
/// Port of DNS over TLS (RFC 7858 §3.1).
const DNS_TLS_PORT: u16 = 853;

/// Where a destination inside leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// To this host address.
    Host(SocketAddr),
    /// To this port of the host itself; answers come from the address inside.
    Mapped(SocketAddr),
    /// To the host's resolvers.
    Dns,
    /// To this port of a resolver of the host, by TCP.
    DnsOverTls(u16),
    /// Nowhere: the gateway itself, which has no such service.
    Refused,
}

/// The addresses of the network inside.
#[derive(Clone, Debug)]
pub(super) struct Routes {
    loopback: Vec<IpAddr>,
    host: Vec<MappedAddress>,
    dns: Vec<IpAddr>,
    gateway_v4: Option<Ipv4Addr>,
    gateway_v6: Option<Ipv6Addr>,
    program_v4: Option<Ipv4Addr>,
    program_v6: Option<Ipv6Addr>,
    /// All addresses of the program.
    program: Vec<IpAddr>,
    prefix_len_v4: u8,
    prefix_len_v6: u8,
    /// Other stations of the program's link are hosts outside.
    is_link_shared: bool,
    /// So are gateways with these addresses.
    shared_gateways: Vec<IpAddr>,
}

impl Routes {
    pub(super) fn new(config: &Config) -> Self {
        let (v4, v6) = (config.ipv4, config.ipv6);
        let dns = [
            v4.and_then(|v4| v4.dns).map(IpAddr::from),
            v6.and_then(|v6| v6.dns).map(IpAddr::from),
        ];
        Self {
            loopback: config.host_loopback.clone(),
            host: config.host_addresses.clone(),
            dns: dns.into_iter().flatten().collect(),
            gateway_v4: v4.map(|v4| v4.gateway),
            gateway_v6: v6.map(|v6| v6.gateway),
            program_v4: v4.map(|v4| v4.address),
            program_v6: v6.map(|v6| v6.address),
            program: config.program_addresses().collect(),
            prefix_len_v4: v4.map_or(0, |v4| v4.prefix_len),
            prefix_len_v6: v6.map_or(0, |v6| v6.prefix_len),
            is_link_shared: config.is_link_shared,
            shared_gateways: config.shared_gateways.clone(),
        }
    }

    /// Sets which addresses inside stand for addresses of the host.
    pub(super) fn map(&mut self, addresses: Vec<MappedAddress>) {
        self.host = addresses;
    }

    /// Returns where packets for `destination` go.
    pub(super) fn target(&self, destination: SocketAddr) -> Target {
        let address = destination.ip();
        if self.dns.contains(&address) && destination.port() == DNS_PORT {
            return Target::Dns;
        }
        if self.dns.contains(&address) && destination.port() == DNS_TLS_PORT {
            return Target::DnsOverTls(DNS_TLS_PORT);
        }
        if self.loopback.contains(&address) {
            return Target::Mapped(loopback_like(destination));
        }
        if let Some(mapped) = self.host.iter().find(|mapped| mapped.inside == address) {
            let to = |host| Target::Mapped(SocketAddr::new(host, destination.port()));
            return mapped.host.map_or(Target::Refused, to);
        }
        let gateway = match address {
            IpAddr::V4(v4) => self.gateway_v4 == Some(v4),
            IpAddr::V6(v6) => self.gateway_v6 == Some(v6),
        };
        let is_shared = self.shared_gateways.contains(&address);
        if !is_shared && (gateway || self.dns.contains(&address)) {
            return Target::Refused;
        }
        Target::Host(destination)
    }

    /// Returns the address under which the program sees a peer of the host; `None` if that family
    /// is disabled. The host's own loopback, and addresses that lead elsewhere inside, appear as
    /// the gateway.
    pub(super) fn peer_inside(&self, peer: SocketAddr) -> Option<SocketAddr> {
        let gateway: IpAddr = match peer {
            SocketAddr::V4(_) => self.gateway_v4?.into(),
            SocketAddr::V6(_) => self.gateway_v6?.into(),
        };
        // Unless its link is shared, only the gateway answers for others there.
        let is_taken = match self.is_link_shared {
            true => self.is_program(peer.ip()),
            false => self.is_on_link(peer.ip()),
        };
        let hidden = peer.ip().is_loopback() || is_link_local(peer.ip()) || is_taken;
        let address = if hidden { gateway } else { peer.ip() };
        Some(SocketAddr::new(address, peer.port()))
    }

    /// Returns true for addresses of the program's own link. Unless it is shared, there is no
    /// station but the gateway.
    pub(super) fn is_on_link(&self, address: IpAddr) -> bool {
        match (address, self.program_v4, self.program_v6) {
            (IpAddr::V4(v4), Some(program), _) => {
                let bits = 32 - u32::from(self.prefix_len_v4);
                (v4.to_bits() ^ program.to_bits()).checked_shr(bits).unwrap_or(0) == 0
            }
            (IpAddr::V6(v6), _, Some(program)) => {
                let bits = 128 - u32::from(self.prefix_len_v6);
                (v6.to_bits() ^ program.to_bits()).checked_shr(bits).unwrap_or(0) == 0
            }
            _ => false,
        }
    }

    /// Returns true if stations of the program's link are hosts outside.
    pub(super) fn is_link_shared(&self) -> bool {
        self.is_link_shared
    }

    /// Returns the addresses of one family that stand for the host's loopback.
    pub(super) fn for_loopback(&self, v4: bool) -> impl Iterator<Item = IpAddr> + '_ {
        self.loopback.iter().copied().filter(move |address| address.is_ipv4() == v4)
    }

    /// Returns the gateway's address in this family.
    pub(super) fn gateway(&self, v4: bool) -> Option<IpAddr> {
        if v4 { self.gateway_v4.map(IpAddr::V4) } else { self.gateway_v6.map(IpAddr::V6) }
    }

    /// Returns true for each address of the program.
    pub(super) fn is_program(&self, address: IpAddr) -> bool {
        self.program.contains(&address)
    }

    /// Returns the program's first address in this family.
    pub(super) fn program(&self, v4: bool) -> Option<IpAddr> {
        if v4 { self.program_v4.map(IpAddr::V4) } else { self.program_v6.map(IpAddr::V6) }
    }
}

/// Returns true for link-local addresses, which name another host on each link.
pub(super) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

fn loopback_like(destination: SocketAddr) -> SocketAddr {
    let address = match destination {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    };
    SocketAddr::new(address, destination.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ProgramAddress;

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn destinations_lead_where_they_should() {
        let loopback = vec!["10.0.2.2".parse().expect("an address")];
        let plain = Routes::new(&Config::default());
        let mapped = Routes::new(&Config { host_loopback: loopback, ..Config::default() });
        assert_eq!(plain.target(at("10.0.2.2:80")), Target::Refused);
        assert_eq!(plain.target(at("10.0.2.3:53")), Target::Dns);
        assert_eq!(plain.target(at("10.0.2.3:853")), Target::DnsOverTls(853));
        assert_eq!(plain.target(at("10.0.2.2:853")), Target::Refused);
        assert_eq!(plain.target(at("10.0.2.3:80")), Target::Refused);
        assert_eq!(plain.target(at("192.0.2.1:80")), Target::Host(at("192.0.2.1:80")));
        assert_eq!(mapped.target(at("10.0.2.2:80")), Target::Mapped(at("127.0.0.1:80")));
        let v6 = "[fd74:6f77:7061:7468::3]:53";
        assert_eq!(plain.target(at(v6)), Target::Dns);
    }

    /// Goal: on a shared link every station is a host outside, except the program itself and the
    /// addresses that stand for the host.
    #[test]
    fn a_shared_link_leads_outside() {
        let mut config = Config { is_link_shared: true, ..Config::default() };
        let (inside, host) = ("10.0.2.9".parse().unwrap(), "192.0.2.1".parse().unwrap());
        config.host_addresses = vec![MappedAddress { inside, host: None }];
        let mut routes = Routes::new(&config);
        assert_eq!(routes.target(at("10.0.2.9:80")), Target::Refused);
        config.host_addresses = vec![MappedAddress { inside, host: Some(host) }];
        routes.map(config.host_addresses.clone());
        assert_eq!(routes.target(at("10.0.2.77:80")), Target::Host(at("10.0.2.77:80")));
        assert_eq!(routes.target(at("10.0.2.9:80")), Target::Mapped(at("192.0.2.1:80")));
        assert_eq!(routes.target(at("10.0.2.2:80")), Target::Refused);
        assert_eq!(routes.peer_inside(at("10.0.2.77:9")), Some(at("10.0.2.77:9")));
        assert_eq!(routes.peer_inside(at("10.0.2.15:9")), Some(at("10.0.2.2:9")));
        assert_eq!(routes.peer_inside(at("10.0.2.16:9")), Some(at("10.0.2.16:9")));
        let further = ProgramAddress { address: "10.0.2.16".parse().unwrap(), prefix_len: 24 };
        config.further_addresses = vec![further];
        let routes = Routes::new(&config);
        assert_eq!(routes.peer_inside(at("10.0.2.16:9")), Some(at("10.0.2.2:9")));
        assert_eq!(routes.program(true), Some("10.0.2.15".parse().unwrap()));
        config.shared_gateways = vec!["10.0.2.2".parse().unwrap()];
        let routes = Routes::new(&config);
        assert_eq!(routes.target(at("10.0.2.2:80")), Target::Host(at("10.0.2.2:80")));
        assert_eq!(routes.target(at("10.0.2.3:53")), Target::Dns);
        assert_eq!(routes.target(at("10.0.2.3:80")), Target::Refused);
    }

    #[test]
    fn the_hosts_loopback_appears_as_the_gateway() {
        let routes = Routes::new(&Config::default());
        assert_eq!(routes.peer_inside(at("127.0.0.1:999")), Some(at("10.0.2.2:999")));
        assert_eq!(routes.peer_inside(at("192.0.2.7:999")), Some(at("192.0.2.7:999")));
        assert_eq!(routes.peer_inside(at("10.0.2.15:999")), Some(at("10.0.2.2:999")));
        assert_eq!(routes.peer_inside(at("10.0.2.77:999")), Some(at("10.0.2.2:999")));
        assert_eq!(routes.peer_inside(at("10.0.3.77:999")), Some(at("10.0.3.77:999")));
        assert_eq!(routes.peer_inside(at("[fe80::1]:9")), Some(at("[fd74:6f77:7061:7468::2]:9")));
        let v4_only = Routes::new(&Config { ipv6: None, ..Config::default() });
        assert_eq!(v4_only.peer_inside(at("[2001:db8::1]:1")), None);
    }
}
