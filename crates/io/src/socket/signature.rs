//! Signatures of TCP segments, which the kernel makes and checks.

use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::net::{IpAddr, SocketAddr};

use crate::sys;

/// Longest key of [`TcpSocket::connect_signed`](super::TcpSocket::connect_signed):
/// `TCP_MD5SIG_MAXKEYLEN` of Linux.
pub const TCP_KEY_BYTES_MAX: usize = 80;

/// Has the kernel sign what it sends to `peer`, and expect signed segments from there.
pub(super) fn set_key(fd: BorrowedFd<'_>, peer: SocketAddr, key: &[u8]) -> Result<(), Errno> {
    if !(1..=TCP_KEY_BYTES_MAX).contains(&key.len()) {
        return Err(Errno::INVAL);
    }
    // struct tcp_md5sig: a socket address in 128 bytes, of which the port is ignored; flags,
    // prefix, length of the key, interface; the key in 80 bytes.
    let mut option = [0; 128 + 8 + TCP_KEY_BYTES_MAX];
    match peer.ip() {
        IpAddr::V4(ip) => {
            option[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            option[4..8].copy_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            option[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
            option[8..24].copy_from_slice(&ip.octets());
        }
    }
    option[130..132].copy_from_slice(&(key.len() as u16).to_ne_bytes());
    option[136..136 + key.len()].copy_from_slice(key);
    sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_MD5SIG, &option)
}
