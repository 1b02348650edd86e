//! Services that find others by multicast, and can be passed between the network and the host's.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// A protocol of service discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MulticastService {
    /// Multicast DNS (RFC 6762): names that end in `.local`, and DNS-SD.
    Mdns,
    /// The Simple Service Discovery Protocol of UPnP (UPnP Device Architecture 2.0 §1).
    Ssdp,
}

impl MulticastService {
    /// All services.
    pub const ALL: [Self; 2] = [Self::Mdns, Self::Ssdp];

    /// Name in options and files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mdns => "mdns",
            Self::Ssdp => "ssdp",
        }
    }

    /// The service's port.
    pub const fn port(self) -> u16 {
        match self {
            Self::Mdns => 5353,
            Self::Ssdp => 1900,
        }
    }

    /// Group and port of each IP version.
    pub fn groups(self) -> [SocketAddr; 2] {
        let (v4, v6): (Ipv4Addr, u16) = match self {
            Self::Mdns => ([224, 0, 0, 251].into(), 0xfb),
            Self::Ssdp => ([239, 255, 255, 250].into(), 0xc),
        };
        let v6 = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, v6);
        [IpAddr::from(v4), v6.into()].map(|group| SocketAddr::new(group, self.port()))
    }

    /// Hop limit of messages to the group (RFC 6762 §11, UPnP Device Architecture 2.0 §1.1.2).
    pub const fn hops(self) -> u8 {
        match self {
            Self::Mdns => 255,
            Self::Ssdp => 2,
        }
    }
}

impl fmt::Display for MulticastService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for MulticastService {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|service| service.name() == text);
        found.ok_or("expected mdns or ssdp")
    }
}
