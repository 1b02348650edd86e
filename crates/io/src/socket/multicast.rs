//! UDP sockets of one multicast group on one interface of the host.
//!
//! Several programs can have such a socket at the same port: each sets `SO_REUSEADDR`, and each
//! receives what is sent to the group. The socket is bound to the group, so it takes no unicast
//! datagram from another program. Messages are short and rare: these calls copy.

use super::message::{ADDRESS_BYTES, AddressBytes, ControlToSend, decode_address};
use super::{IpFields, SEND_FLAGS, UdpSocket, open, set_int};
use crate::gather::Gather;
use crate::sys;
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::{SocketType, sockopt};
use std::io::{self, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV6};

/// `IP_MULTICAST_ALL` and `IPV6_MULTICAST_ALL` of `linux/in.h` and `linux/in6.h`.
const MULTICAST_ALL_V4: i32 = 49;
const MULTICAST_ALL_V6: i32 = 29;

impl UdpSocket {
    /// Opens a socket that is bound to a group and its port, and joins the group on the interface
    /// with this index, by which it also sends.
    ///
    /// # Errors
    /// Those of bind(2) and setsockopt(2): `EADDRINUSE` if another program does not share the port.
    pub fn join(group: SocketAddr, index: u32, hops: u8) -> io::Result<Self> {
        let fd = open(&group, SocketType::DGRAM, None)?;
        sockopt::set_socket_reuseaddr(&fd, true)?;
        let hops = i32::from(hops);
        let set = |level, name, value: &[u8]| sys::set_option(fd.as_fd(), level, name, value);
        match group {
            SocketAddr::V4(v4) => {
                rustix::net::bind(&fd, &group)?;
                // `struct ip_mreqn`.
                let any = Ipv4Addr::UNSPECIFIED.octets();
                let with = [v4.ip().octets(), any, index.to_ne_bytes()].concat();
                set(libc::IPPROTO_IP, MULTICAST_ALL_V4, &0i32.to_ne_bytes())?;
                set(libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP, &with)?;
                set(libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &with)?;
                set_int(fd.as_fd(), libc::IPPROTO_IP, libc::IP_MULTICAST_TTL, hops)?;
            }
            SocketAddr::V6(v6) => {
                sockopt::set_ipv6_v6only(&fd, true)?;
                // The scope binds the socket to the interface.
                let at = SocketAddrV6::new(*v6.ip(), v6.port(), 0, index);
                rustix::net::bind(&fd, &SocketAddr::V6(at))?;
                // `struct ipv6_mreq`.
                let with = [&v6.ip().octets()[..], &index.to_ne_bytes()].concat();
                // Kernels before 4.20 do not have this option; the binding selects enough.
                let _ = set(libc::IPPROTO_IPV6, MULTICAST_ALL_V6, &0i32.to_ne_bytes());
                set(libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP, &with)?;
                set_int(fd.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, index as i32)?;
                set_int(fd.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS, hops)?;
            }
        }
        Ok(fd.into())
    }

    /// Sends bytes as one datagram, with these fields of its IP header.
    ///
    /// # Errors
    /// Those of sendmsg(2).
    pub fn send_bytes(&self, fields: &IpFields, bytes: &[u8], to: SocketAddr) -> io::Result<()> {
        let mut gather: Gather<'_, 1> = Gather::new();
        gather.push_bytes(bytes);
        let mut control = ControlToSend::new();
        if let Some(from) = fields.from {
            control.push_source(from);
        }
        if let Some(hops) = fields.hops {
            control.push_hops(to.is_ipv6(), hops);
        }
        let (to, control) = (AddressBytes::encode(Some(to)), control.as_bytes());
        sys::send_gather(self.as_fd(), &gather, to.as_bytes(), control, SEND_FLAGS)?;
        Ok(())
    }

    /// Receives a datagram into `bytes`; returns its length and its sender. A datagram that does
    /// not fit is [`io::ErrorKind::InvalidData`], and is lost.
    ///
    /// # Errors
    /// Those of recvmsg(2); `WouldBlock` if there is none.
    pub fn receive_bytes(&self, bytes: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let mut address = [0; ADDRESS_BYTES];
        let mut into = [IoSliceMut::new(bytes)];
        let flags = libc::MSG_DONTWAIT;
        let received = sys::receive_message(self.as_fd(), &mut into, &mut address, &mut [], flags)?;
        if received.flags & libc::MSG_TRUNC != 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let from = decode_address(&address[..received.address_len]).ok_or(Errno::AFNOSUPPORT)?;
        Ok((received.bytes, from))
    }
}
