//! Network links, addresses and routes of the current network namespace (rtnetlink(7)).
//!
//! A [`Netlink`] sends one request at a time and waits for the kernel's acknowledgement, so that an
//! error names the request that failed. The error contains the kernel's own explanation (extended
//! acknowledgement) if there is one. The socket belongs to the namespace in which it was opened.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::set_socket_timeout;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

use crate::sys::set_option;
use message::{Reply, Request};
#[cfg(feature = "confine")]
pub(crate) use super_packets::limit_for;
pub use super_packets::limit_super_packets;

pub mod dump;
pub(crate) mod fuzz;
pub mod interfaces;
pub mod links;
mod message;
mod super_packets;
pub mod watch;

/// Why a request failed.
#[derive(Debug)]
pub enum NetlinkError {
    /// The kernel refused the request.
    Refused {
        /// The request.
        what: &'static str,
        /// The kernel's error.
        errno: Errno,
        /// The kernel's explanation, if it gave one.
        text: Option<String>,
    },
    /// The netlink socket failed.
    Socket(Errno),
    /// The network namespace already has a default route.
    DefaultRouteExists,
    /// The kernel's answer was not understood.
    Answer {
        /// The request.
        what: &'static str,
    },
}

impl fmt::Display for NetlinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { what, text, .. } => write!(
                f,
                "{what}{}",
                text.as_ref().map(|text| format!(" ({text})")).unwrap_or_default()
            ),
            Self::Socket(..) => f.write_str("the netlink socket failed"),
            Self::DefaultRouteExists => f.write_str(
                "the network namespace already has a default route; towpath serves only \
                 namespaces without one",
            ),
            Self::Answer { what } => write!(f, "{what}: unexpected answer from the kernel"),
        }
    }
}

impl std::error::Error for NetlinkError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Refused { errno, .. } => Some(errno),
            Self::Socket(error) => Some(error),
            _ => None,
        }
    }
}

impl From<Errno> for NetlinkError {
    fn from(error: Errno) -> Self {
        Self::Socket(error)
    }
}

impl NetlinkError {
    /// The kernel's error number, if it gave one.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            NetlinkError::Refused { errno, .. } | NetlinkError::Socket(errno) => Some(*errno),
            NetlinkError::DefaultRouteExists => Some(Errno::EXIST),
            NetlinkError::Answer { .. } => None,
        }
    }
}

/// Changes to a link; `None` and `false` change nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkSettings {
    /// Set the link up.
    pub up: bool,
    /// Largest IP packet in bytes.
    pub mtu: Option<u16>,
    /// Packets that may wait in the link's transmit queue.
    pub tx_queue_len: Option<u32>,
    /// Bytes of the largest super-packet that the kernel gives to the link.
    pub gso_max_size: Option<u32>,
    /// Ethernet address.
    pub mac: Option<[u8; 6]>,
    /// Keep the kernel from adding an IPv6 link-local address.
    pub address_gen_mode_none: bool,
}

/// A route through a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The network that it leads to.
    pub destination: IpAddr,
    /// Bits of that network's prefix.
    pub prefix_len: u8,
    /// The next hop; `None` if the network is on the link.
    pub gateway: Option<IpAddr>,
    /// Its metric, 0 for the kernel's default.
    pub metric: u32,
}

/// An open rtnetlink socket.
#[derive(Debug)]
pub struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

impl Netlink {
    /// Opens a socket in the current network namespace.
    ///
    /// # Errors
    /// [`NetlinkError::Socket`].
    pub fn open() -> Result<Self, NetlinkError> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None, // NETLINK_ROUTE
        )?;
        set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, Some(REPLY_TIMEOUT))?;
        // Extended acknowledgements exist since Linux 4.12; without them errors have no
        // explanation.
        let on = 1i32.to_ne_bytes();
        let _ = set_option(socket.as_fd(), libc::SOL_NETLINK, libc::NETLINK_EXT_ACK, &on);
        Ok(Self { socket, sequence: 0 })
    }

    /// Returns the index of the link called `name`.
    ///
    /// # Errors
    /// ENODEV if there is no such link.
    pub fn link_index(&mut self, name: &str) -> Result<u32, NetlinkError> {
        let index = rustix::net::netdevice::name_to_index(&self.socket, name);
        index.map_err(|errno| NetlinkError::Refused { what: "find link", errno, text: None })
    }

    /// Changes a link.
    ///
    /// # Errors
    /// [`NetlinkError`]. The kernel applies the settings together or not at all, as far as it can.
    pub fn link_set(&mut self, index: u32, settings: &LinkSettings) -> Result<(), NetlinkError> {
        if settings.address_gen_mode_none {
            self.no_generated_address(index)?;
        }
        let mut request = Request::link(index, settings.up);
        if let Some(mtu) = settings.mtu {
            request.attribute(message::IFLA_MTU, &u32::from(mtu).to_ne_bytes());
        }
        if let Some(length) = settings.tx_queue_len {
            request.attribute(message::IFLA_TXQLEN, &length.to_ne_bytes());
        }
        if let Some(bytes) = settings.gso_max_size {
            request.attribute(message::IFLA_GSO_MAX_SIZE, &bytes.to_ne_bytes());
        }
        if let Some(mac) = settings.mac {
            request.attribute(message::IFLA_ADDRESS, &mac);
        }
        self.ask("set up link", request)
    }

    /// Sets the loopback link up.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn loopback_up(&mut self) -> Result<(), NetlinkError> {
        let index = self.link_index("lo")?;
        self.ask("set up loopback", Request::link(index, true))
    }

    /// Adds an address that is usable at once, without duplicate address detection.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn address_add(
        &mut self,
        index: u32,
        address: IpAddr,
        prefix_len: u8,
    ) -> Result<(), NetlinkError> {
        let mut request = Request::address(index, &address, prefix_len);
        match address {
            IpAddr::V4(v4) => {
                request.attribute(message::IFA_LOCAL, &v4.octets());
                request.attribute(message::IFA_ADDRESS, &v4.octets());
                let host_bits = u32::MAX.checked_shr(prefix_len.into()).unwrap_or(0);
                let broadcast = u32::from(v4) | host_bits;
                request.attribute(message::IFA_BROADCAST, &broadcast.to_be_bytes());
            }
            IpAddr::V6(v6) => request.attribute(message::IFA_ADDRESS, &v6.octets()),
        }
        self.ask("add address", request)
    }

    /// Adds a default route through `gateway`, of its address family. With `on_link`, the gateway
    /// need not be in a network of the link.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn route_add_default(
        &mut self,
        index: u32,
        gateway: IpAddr,
        on_link: bool,
    ) -> Result<(), NetlinkError> {
        let destination = match gateway {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let route = Route { destination, prefix_len: 0, gateway: Some(gateway), metric: 0 };
        let request = Self::route_request(index, &route, on_link);
        match self.ask("add default route", request) {
            Err(NetlinkError::Refused { errno: Errno::EXIST, .. }) => {
                Err(NetlinkError::DefaultRouteExists)
            }
            answer => answer,
        }
    }

    /// Adds a route through the link `index`, also if its gateway is in no network of the link.
    ///
    /// # Errors
    /// [`NetlinkError`]; EEXIST if there is such a route already.
    pub fn route_add(&mut self, index: u32, route: &Route) -> Result<(), NetlinkError> {
        let add = |netlink: &mut Self, on_link| {
            netlink.ask("add route", Self::route_request(index, route, on_link))
        };
        match add(self, false) {
            Err(NetlinkError::Refused { errno, .. })
                if route.gateway.is_some() && errno != Errno::EXIST =>
            {
                add(self, true)
            }
            answer => answer,
        }
    }

    fn route_request(index: u32, route: &Route, on_link: bool) -> Request {
        let mut request = Request::route(route, on_link);
        let mut address = |kind, address| match address {
            IpAddr::V4(v4) => request.attribute(kind, &v4.octets()),
            IpAddr::V6(v6) => request.attribute(kind, &v6.octets()),
        };
        if route.prefix_len > 0 {
            address(message::RTA_DST, route.destination);
        }
        if let Some(gateway) = route.gateway {
            address(message::RTA_GATEWAY, gateway);
        }
        request.attribute(message::RTA_OIF, &index.to_ne_bytes());
        if route.metric > 0 {
            request.attribute(message::RTA_PRIORITY, &route.metric.to_ne_bytes());
        }
        request
    }

    fn no_generated_address(&mut self, index: u32) -> Result<(), NetlinkError> {
        let mut request = Request::link(index, false);
        request.nested(message::IFLA_AF_SPEC, |spec| {
            spec.nested(message::AF_INET6, |inet6| {
                inet6.attribute(
                    message::IFLA_INET6_ADDR_GEN_MODE,
                    &[message::IN6_ADDR_GEN_MODE_NONE],
                );
            });
        });
        self.ask("disable address generation", request)
    }

    fn ask(&mut self, what: &'static str, request: Request) -> Result<(), NetlinkError> {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = request.finish(self.sequence);
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&self.socket, &bytes, SendFlags::empty(), &kernel)?;
        let mut buffer = [0; REPLY_BYTES_MAX];
        for _ in 0..STALE_REPLIES_MAX {
            let (length, _) = rustix::io::retry_on_intr(|| {
                recv(&self.socket, &mut buffer[..], RecvFlags::empty())
            })?;
            match Reply::parse(&buffer[..length], self.sequence) {
                Reply::Done => return Ok(()),
                Reply::Refused { errno, text } => {
                    return Err(NetlinkError::Refused { what, errno, text });
                }
                Reply::Other => {}
            }
        }
        Err(NetlinkError::Answer { what })
    }
}

/// The link-local address that is derived from an Ethernet address (RFC 4291 appendix A).
pub fn link_local(mac: [u8; 6]) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac;
    let universal_bit_flipped = a ^ 0x02;
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, universal_bit_flipped, b, c, 0xff, 0xfe, d, e, f])
}

impl From<NetlinkError> for io::Error {
    fn from(error: NetlinkError) -> Self {
        match error.errno() {
            Some(errno) => io::Error::new(io::Error::from(errno).kind(), error),
            None => io::Error::other(error),
        }
    }
}

/// The kernel answers such requests before `sendto` returns; the timeout is for the unexpected.
const REPLY_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);
/// An acknowledgement repeats the request (below 256 bytes) and may contain one line of text.
const REPLY_BYTES_MAX: usize = 4096;
/// The socket receives only answers to its own requests. More unrelated messages than this are an
/// error.
const STALE_REPLIES_MAX: usize = 16;

#[cfg(test)]
mod tests;
