//! Host sockets: non-blocking, close-on-exec, with payload passed by address.
//!
//! [`TcpSocket`], [`UdpSocket`] and [`PingSocket`] send what a program inside sends. What comes
//! back lands in pool frames that a [`ReceiveBuffer`](crate::receive::ReceiveBuffer) offers.
//! [`Pipe`] joins two sockets without moving the bytes through user memory. No call blocks and none
//! copies payload.
//!
//! `WouldBlock` means only that the call would block. Every other error is the kernel's own,
//! unchanged, because the gateway answers a reset with a reset and an ICMP error with the same ICMP
//! error.
//!
//! The kernel chooses the buffer sizes. One thread at a time per socket.
//!
//! Limit: [`SEND_PIECES_MAX`].

mod error_queue;
pub(crate) mod fuzz;
mod lent;
mod message;
mod multicast;
mod ping;
mod shared;
mod signature;
mod splice;
mod tcp;
mod tunnel;
mod udp;
pub mod zerocopy;

pub use error_queue::{ErrorKind, Quote, SocketErrorEvent};
pub use lent::Returns;
pub use ping::{Echo, PingError, PingKind, PingSocket};
pub use shared::{SHARING_MAX, SharedPort, SharedSocket};
pub use signature::{
    AO_KEYS_MAX, AoAlgorithm, AoKey, KeyChain, KeyError, Secret, Signature, SignatureError,
    TCP_KEY_BYTES_MAX,
};
pub use splice::{PIPE_BYTES, Pipe};
pub use tcp::{Received, TcpListener, TcpSocket, UnconnectedTcp};
pub use tunnel::{HEADS_MAX, HeadSplit, HeadsRead, HeadsReceived, Part, SEND_PARTS_MAX, path_mtu};
pub use udp::{Datagram, DatagramsReceived, IpFields, Sent, UdpSocket};

use crate::gather::Gather;
use crate::outside;
use crate::sys;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType};
use std::io;
use std::net::{IpAddr, SocketAddr};
use towpath_packet::Piece;

/// Most pieces that one send takes.
pub const SEND_PIECES_MAX: usize = 64;

/// Flags of each send.
pub(crate) const SEND_FLAGS: i32 = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
/// Longest interface name.
const INTERFACE_NAME_MAX: usize = 15;

fn open(address: &SocketAddr, kind: SocketType, protocol: Option<Protocol>) -> io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(family, kind, flags, protocol)?)
}

/// Binds to an address and, if one is named, to an interface. An IPv6 socket does not accept IPv4,
/// so that both families can be bound to the same port.
fn bind(fd: &OwnedFd, address: &SocketAddr, interface: Option<&str>) -> io::Result<()> {
    if address.is_ipv6() {
        rustix::net::sockopt::set_ipv6_v6only(fd, true)?;
    }
    bind_as_is(fd, address, interface)
}

/// Binds to an address and, if one is named, to an interface.
pub(crate) fn bind_as_is(
    fd: &OwnedFd,
    address: &SocketAddr,
    interface: Option<&str>,
) -> io::Result<()> {
    if let Some(name) = interface {
        if name.is_empty() || name.len() > INTERFACE_NAME_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        sys::set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_BINDTODEVICE, name.as_bytes())?;
    }
    match rustix::net::bind(fd, address) {
        // A low port: a confined process may not bind it, but its broker may.
        Err(Errno::ACCESS) => Ok(outside::bind(fd.as_fd(), address).unwrap_or(Err(Errno::ACCESS))?),
        result => Ok(result?),
    }
}

fn local(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    Ok(rustix::net::getsockname(fd)?.try_into()?)
}

/// Returns an IPv4 address as such that a socket for both families reports as mapped to IPv6
/// (RFC 4291 §2.5.5.2).
fn unmapped(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(v4) => SocketAddr::new(v4.into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

fn set_int(fd: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    Ok(sys::set_option(fd, level, name, &value.to_ne_bytes())?)
}

/// Adds pieces until all are added or the parts are full; false in the latter case.
fn gather_pieces<'a, 'p: 'a, const N: usize>(
    gather: &mut Gather<'a, N>,
    mut pieces: impl Iterator<Item = &'p Piece>,
) -> bool {
    pieces.all(|piece| gather.push_piece(piece))
}

#[cfg(test)]
mod tests;
