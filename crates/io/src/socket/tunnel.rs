//! UDP sockets of tunnels: private headers between borrowed pieces, and the MTU of paths.
//!
//! A run of datagrams of one size leaves in one call with `UDP_SEGMENT`; each has headers of its
//! own. No datagram is fragmented: the kernel refuses those that are larger than the path's MTU as
//! it knows it. Sources: udp(7), ip(7), ipv6(7), RFC 7348 §4.3.

use super::message::{AddressBytes, ControlToSend};
use super::udp::{Sent, UDP_SEGMENT, UdpSocket, is_soft};
use super::{SEND_FLAGS, open, set_int};
use crate::process_sys::socket_option;
use crate::sys::{self, Gather};
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::{SocketType, sockopt};
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use towpath_packet::Piece;

/// Most parts of one send: 64 datagrams, each with two headers and a payload across two frames.
pub const SEND_PARTS_MAX: usize = 256;

/// A part of what is sent.
#[derive(Clone, Copy, Debug)]
pub enum Part<'a> {
    /// Private bytes, such as headers.
    Bytes(&'a [u8]),
    /// Borrowed payload.
    Piece(&'a Piece),
}

impl UdpSocket {
    /// Prepares the socket for a tunnel: its datagrams are not fragmented, and the kernel keeps up
    /// to `receive_bytes` for it, as far as the system allows that.
    ///
    /// # Errors
    /// The error of the system call that failed.
    pub fn set_tunnel(&self, receive_bytes: usize) -> io::Result<()> {
        let (level, name) = match self.local()? {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
        };
        // The same number for both versions.
        const _: () = assert!(libc::IP_PMTUDISC_DO == libc::IPV6_PMTUDISC_DO);
        set_int(self.as_fd(), level, name, libc::IP_PMTUDISC_DO)?;
        let bytes = i32::try_from(receive_bytes).unwrap_or(i32::MAX);
        // Beyond the system's limit only with a privilege.
        if set_int(self.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes).is_err() {
            sockopt::set_socket_recv_buffer_size(self, receive_bytes)?;
        }
        Ok(())
    }

    /// Sends the parts as one datagram, or with `gso_size` as several of that many bytes each, of
    /// which the last may be shorter.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for more than [`SEND_PARTS_MAX`] parts, `EMSGSIZE` for a
    /// datagram larger than the path's MTU, and others of sendmsg(2). Nothing was sent.
    pub fn send_parts<'a>(
        &self,
        to: SocketAddr,
        parts: impl Iterator<Item = Part<'a>>,
        gso_size: Option<NonZeroU16>,
    ) -> io::Result<Sent> {
        let mut gather: Gather<'_, SEND_PARTS_MAX> = Gather::new();
        for part in parts {
            let fits = match part {
                Part::Bytes(bytes) => gather.push_bytes(bytes),
                Part::Piece(piece) => gather.push_piece(piece),
            };
            if !fits {
                return Err(io::ErrorKind::InvalidInput.into());
            }
        }
        let to = AddressBytes::encode(Some(to));
        let segments = gso_size.filter(|size| usize::from(size.get()) < gather.bytes());
        let mut control = ControlToSend::new();
        if let Some(size) = segments {
            control.push(libc::IPPROTO_UDP, UDP_SEGMENT, &size.get().to_ne_bytes());
        }
        let (to, control) = (to.as_bytes(), control.as_bytes());
        let send = || sys::send_gather(self.as_fd(), &gather, to, control, SEND_FLAGS);
        let result = match send() {
            // The error of an earlier datagram; this one was not sent.
            Err(errno) if is_soft(errno) => {
                while self.take_error_event().is_some() {}
                send()
            }
            result => result,
        };
        match result {
            Ok(_) => Ok(Sent::Whole),
            Err(Errno::INVAL | Errno::IO | Errno::MSGSIZE | Errno::OPNOTSUPP)
                if segments.is_some() =>
            {
                Ok(Sent::NotSegmentable)
            }
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Returns the MTU of the path from `from` to `to` in bytes, as the kernel knows it now: that of
/// the route, or a smaller one that routers have reported. `from` may be unspecified.
///
/// # Errors
/// Those of socket(2), bind(2), connect(2) and getsockopt(2): for example, there is no route.
pub fn path_mtu(from: SocketAddr, to: SocketAddr) -> io::Result<u32> {
    let socket = open(&to, SocketType::DGRAM, None)?;
    if !from.ip().is_unspecified() {
        rustix::net::bind(&socket, &SocketAddr::new(from.ip(), 0))?;
    }
    rustix::net::connect(&socket, &to)?;
    let (level, name) = match to {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    let mut value = [0; 4];
    socket_option(socket.as_fd(), level, name, &mut value)?;
    Ok(u32::from_ne_bytes(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receive::ReceiveBuffer;
    use std::net::IpAddr;
    use towpath_packet::{Memory, MemoryConfig};

    /// Goal: headers and pieces leave as datagrams of the given size, in order.
    #[test]
    fn a_run_leaves_in_one_call() {
        let mut memory =
            Memory::new(MemoryConfig { packets: 8, small_frames: 8, large_frames: 16 });
        let loopback = SocketAddr::new(IpAddr::from([127, 0, 0, 1]), 0);
        let [from, to] = [(); 2].map(|()| UdpSocket::bind(loopback, None).expect("a socket"));
        from.set_tunnel(1 << 16).expect("options");
        let mut frame = memory.small.take().expect("free");
        frame[..4].copy_from_slice(b"load");
        let payload = frame.freeze(4);
        let parts =
            [b"ab", b"cd"].iter().flat_map(|header| [Part::Bytes(*header), Part::Piece(&payload)]);
        let sent = from.send_parts(to.local().expect("bound"), parts, NonZeroU16::new(6));
        assert_eq!(sent.expect("sent"), Sent::Whole);
        let mut bytes: Vec<u8> = Vec::new();
        // Coalesced or not.
        for _ in 0..2 {
            let mut give = |datagram: crate::socket::Datagram| {
                datagram.pieces.iter().for_each(|piece| bytes.extend(piece.bytes().expect("own")));
            };
            to.receive(&mut ReceiveBuffer::new(), &mut memory, (1, 1 << 16), &mut give)
                .expect("received");
        }
        assert_eq!(bytes, b"abloadcdload");
    }

    #[test]
    fn the_mtu_of_loopback_is_known() {
        let mtu_of = |address: &str| {
            let to: SocketAddr = address.parse().expect("an address");
            path_mtu(SocketAddr::new(to.ip(), 0), to).expect("a route")
        };
        assert!(mtu_of("127.0.0.1:4789") >= 1280);
    }
}
