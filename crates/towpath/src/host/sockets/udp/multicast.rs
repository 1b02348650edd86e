//! Multicast groups of a UDP socket, shaped like those of [`std::net::UdpSocket`].
//!
//! A host has one link. An interface is the unspecified address or index 0 for any, or an address
//! of the host or index 1 for that link.

use crate::host::{UdpSocket, io_error};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use towpath_net::socket::{Error, MulticastOptions, SocketId, Sockets};
use towpath_net::time::Instant;

/// Index of the only link.
const INTERFACE: u32 = 1;

impl UdpSocket {
    /// Joins an IPv4 multicast group (`IP_ADD_MEMBERSHIP`). Routers and switches are notified.
    ///
    /// # Errors
    /// The errors of setsockopt(2): `EINVAL` if the address is not multicast, `EADDRINUSE` if the
    /// socket is a member, `ENODEV` if the host does not have the interface, and `ENOBUFS` beyond
    /// 20 groups of the socket.
    pub fn join_multicast_v4(&self, group: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
        let known = self.is_ours(interface) || !group.is_multicast();
        self.change_group((*group).into(), known, Error::NoDevice, Sockets::join_group)
    }

    /// Joins an IPv6 multicast group (`IPV6_JOIN_GROUP`). Routers and switches are notified.
    ///
    /// # Errors
    /// The errors of setsockopt(2), as of [`UdpSocket::join_multicast_v4`].
    pub fn join_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        let known = interface <= INTERFACE || !group.is_multicast();
        self.change_group((*group).into(), known, Error::NoDevice, Sockets::join_group)
    }

    /// Leaves an IPv4 multicast group (`IP_DROP_MEMBERSHIP`). Dropping the socket leaves all.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if the socket is not a member.
    pub fn leave_multicast_v4(&self, group: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
        let known = self.is_ours(interface);
        self.change_group((*group).into(), known, Error::AddressNotAvailable, Sockets::leave_group)
    }

    /// Leaves an IPv6 multicast group (`IPV6_LEAVE_GROUP`). Dropping the socket leaves all.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if the socket is not a member, `EINVAL` if the address is not multicast.
    pub fn leave_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        let known = interface <= INTERFACE || !group.is_multicast();
        self.change_group((*group).into(), known, Error::AddressNotAvailable, Sockets::leave_group)
    }

    /// Sets the time to live of datagrams to IPv4 groups (`IP_MULTICAST_TTL`); 1 by default.
    pub fn set_multicast_ttl_v4(&self, ttl: u8) -> io::Result<()> {
        self.set_options(|options| options.datagram.multicast.ttl = ttl)
    }

    /// Returns the time to live of datagrams to IPv4 groups.
    pub fn multicast_ttl_v4(&self) -> io::Result<u8> {
        Ok(self.multicast()?.ttl)
    }

    /// Sets the hop limit of datagrams to IPv6 groups (`IPV6_MULTICAST_HOPS`); 1 by default.
    pub fn set_multicast_hops_v6(&self, hops: u8) -> io::Result<()> {
        self.set_options(|options| options.datagram.multicast.hop_limit = hops)
    }

    /// Returns the hop limit of datagrams to IPv6 groups.
    pub fn multicast_hops_v6(&self) -> io::Result<u8> {
        Ok(self.multicast()?.hop_limit)
    }

    /// Sets whether the host receives datagrams that this socket sends to IPv4 groups
    /// (`IP_MULTICAST_LOOP`); on by default.
    pub fn set_multicast_loop_v4(&self, on: bool) -> io::Result<()> {
        self.set_options(|options| options.datagram.multicast.loops_v4 = on)
    }

    /// Returns whether the host receives datagrams that this socket sends to IPv4 groups.
    pub fn multicast_loop_v4(&self) -> io::Result<bool> {
        Ok(self.multicast()?.loops_v4)
    }

    /// Sets whether the host receives datagrams that this socket sends to IPv6 groups
    /// (`IPV6_MULTICAST_LOOP`); on by default.
    pub fn set_multicast_loop_v6(&self, on: bool) -> io::Result<()> {
        self.set_options(|options| options.datagram.multicast.loops_v6 = on)
    }

    /// Returns whether the host receives datagrams that this socket sends to IPv6 groups.
    pub fn multicast_loop_v6(&self) -> io::Result<bool> {
        Ok(self.multicast()?.loops_v6)
    }

    fn multicast(&self) -> io::Result<MulticastOptions> {
        Ok(self.options()?.datagram.multicast)
    }

    fn is_ours(&self, interface: &Ipv4Addr) -> bool {
        let address = IpAddr::V4(*interface);
        interface.is_unspecified() || self.with_state(|own, _| own.stack().is_local(address))
    }

    fn change_group(
        &self,
        group: IpAddr,
        known: bool,
        unknown: Error,
        change: fn(&mut Sockets, SocketId, IpAddr, Instant) -> Result<(), Error>,
    ) -> io::Result<()> {
        if !known {
            return Err(io_error(unknown));
        }
        self.with_sockets(|own, id, now| change(own, id, group, now)).map_err(io_error)
    }
}
