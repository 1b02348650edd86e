//! Which destinations of the program a native socket reaches: those of [`Routes`], as far as the
//! kernel's socket shows the program nothing else than the interface would.

use super::route::{Routes, Target, is_link_local};
use crate::config::Config;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Where native sockets lead, and which addresses they show to the program.
#[derive(Clone, Debug)]
pub struct NativeRoutes(Routes);

impl NativeRoutes {
    /// Takes the addresses of a configuration.
    pub fn new(config: &Config) -> Self {
        Self(Routes::new(config))
    }

    /// Returns the address of the host to which a TCP connection of the program to `destination`
    /// leads; `None` if it has to take the interface.
    ///
    /// These take the interface: destinations that towpath answers itself or refuses; the program's
    /// own addresses and loopback; its own link; link-local addresses, which name another host
    /// there; the host's own address ([`Config::host_addresses`]), which may change; families that
    /// the program does not have; and the host's loopback, if several addresses stand for it.
    pub fn leads_to(&self, destination: SocketAddr) -> Option<SocketAddr> {
        let address = destination.ip().to_canonical();
        let destination = SocketAddr::new(address, destination.port());
        let is_martian = match address {
            IpAddr::V4(v4) => v4.octets()[0] == 0 || v4 == Ipv4Addr::BROADCAST,
            IpAddr::V6(v6) => v6.is_unspecified(),
        };
        let stays = is_martian
            || address.is_loopback()
            || address.is_multicast()
            || is_link_local(address)
            || self.0.is_program(address)
            || self.0.program(address.is_ipv4()).is_none();
        if stays {
            return None;
        }
        match self.0.target(destination) {
            Target::Host(to) => {
                (self.0.is_link_shared() || !self.0.is_on_link(address)).then_some(to)
            }
            Target::Mapped(to) if to.ip().is_loopback() => {
                self.only_for_loopback(to.is_ipv4()).map(|_| to)
            }
            Target::Mapped(_) | Target::Dns | Target::DnsOverTls(_) | Target::Refused => None,
        }
    }

    /// Returns true for the program's loopback and its own addresses.
    pub fn is_own(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.0.is_program(address)
    }

    /// Returns the address that the program sees as its own, of a native socket that has `local`.
    pub(crate) fn local_inside(&self, local: SocketAddr) -> SocketAddr {
        self.0.program(local.is_ipv4()).map_or(local, |own| SocketAddr::new(own, local.port()))
    }

    /// Returns the address of a family that stands for the host's loopback, if it is the only one.
    fn only_for_loopback(&self, v4: bool) -> Option<IpAddr> {
        let mut all = self.0.for_loopback(v4);
        all.next().filter(|_| all.next().is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MappedAddress;

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    /// Goal: what the interface refuses, answers or maps to a changing address is not native.
    #[test]
    fn some_destinations_take_the_interface() {
        let host = MappedAddress { inside: "192.0.2.9".parse().unwrap(), host: None };
        let config = Config { host_addresses: vec![host], ..Config::default() };
        let routes = NativeRoutes::new(&config);
        for stays in [
            "127.0.0.1:80",
            "127.3.2.1:80",
            "0.0.0.0:80",
            "0.1.2.3:80",
            "224.0.0.1:80",
            "255.255.255.255:80",
            "169.254.1.1:80",
            "10.0.2.15:80",
            "10.0.2.2:80",
            "10.0.2.3:53",
            "10.0.2.3:853",
            "10.0.2.77:80",
            "192.0.2.9:80",
            "[::1]:80",
            "[::]:80",
            "[ff02::1]:80",
            "[fe80::1]:80",
            "[::ffff:127.0.0.1]:80",
            "[::ffff:10.0.2.2]:80",
            "[fd74:6f77:7061:7468::3]:53",
        ] {
            assert_eq!(routes.leads_to(at(stays)), None, "{stays}");
        }
        for leads in ["192.0.2.1:80", "[2001:db8::1]:443"] {
            assert_eq!(routes.leads_to(at(leads)), Some(at(leads)));
        }
        assert_eq!(routes.leads_to(at("[::ffff:192.0.2.1]:80")), Some(at("192.0.2.1:80")));
        let only_v4 = NativeRoutes::new(&Config { ipv6: None, ..Config::default() });
        assert_eq!(only_v4.leads_to(at("[2001:db8::1]:443")), None);
        assert_eq!(only_v4.leads_to(at("192.0.2.1:80")), Some(at("192.0.2.1:80")));
    }

    /// Goal: the host's loopback is reached by the address that stands for it.
    #[test]
    fn the_hosts_loopback_is_hidden() {
        let gateway: IpAddr = "10.0.2.2".parse().unwrap();
        let config = Config { host_loopback: vec![gateway], ..Config::default() };
        let routes = NativeRoutes::new(&config);
        assert_eq!(routes.leads_to(at("10.0.2.2:80")), Some(at("127.0.0.1:80")));
        assert_eq!(routes.local_inside(at("127.0.0.1:4000")), at("10.0.2.15:4000"));
        assert_eq!(routes.leads_to(at("10.0.2.3:80")), None);
        let host_loopback = vec![gateway, "10.9.9.9".parse().unwrap()];
        let two = NativeRoutes::new(&Config { host_loopback, ..Config::default() });
        assert_eq!(two.leads_to(at("10.0.2.2:80")), None, "which one it was would not show");
    }
}
