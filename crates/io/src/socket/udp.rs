//! UDP sockets of the host: datagrams in pieces, segmented and coalesced by the kernel.
//!
//! A super-packet is sent in one call with `UDP_SEGMENT`, and several datagrams of one sender are
//! received as one with `UDP_GRO`. ICMP errors go to the error queue and do not disturb the data
//! path: a send or receive that returns one is repeated.

use super::message::{
    ADDRESS_BYTES, AddressBytes, Control, ControlMessage, ControlToSend, array, control_messages,
    decode_address, destination,
};
use super::{SEND_FLAGS, SEND_PIECES_MAX, SocketErrorEvent, bind, error_queue, gather_pieces};
use super::{local, open, set_int};
use crate::gather::Gather;
use crate::receive::{FRAMES_MAX, Pieces, ReceiveBuffer, empty_slices};
use crate::sys;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SocketType, sockopt};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::{NonZeroU8, NonZeroU16};
use towpath_packet::{Memory, Piece};

/// Largest payload of a datagram, and of coalesced datagrams.
const PAYLOAD_BYTES_MAX: usize = 65_535;
/// Most header bytes of a super-packet.
const HEADERS_BYTES_MAX: usize = 48;
/// `UDP_SEGMENT` and `UDP_GRO` of `linux/udp.h`.
pub(super) const UDP_SEGMENT: i32 = 103;
const UDP_GRO: i32 = 104;

/// Result of sending a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It was sent.
    Whole,
    /// The kernel cannot segment on this path. Nothing was sent; the caller sends each segment by
    /// itself.
    NotSegmentable,
}

/// A datagram, or several of one sender that the kernel coalesced.
#[derive(Debug)]
pub struct Datagram {
    /// Its sender.
    pub from: SocketAddr,
    /// Payload.
    pub pieces: Pieces,
    /// Bytes of payload.
    pub len: usize,
    /// Set for coalesced datagrams: payload bytes of each but the last, which may be shorter.
    pub gro_size: Option<NonZeroU16>,
    /// True if bytes at the end are missing.
    pub truncated: bool,
    /// Traffic class: DSCP and ECN.
    pub tos: Option<u8>,
    /// The local address at which it arrived, after [`UdpSocket::report_destinations`].
    pub to: Option<IpAddr>,
}

/// Fields of a datagram's IP header; the kernel chooses those that are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpFields {
    /// The source address: one of this host, of the socket's family.
    pub from: Option<IpAddr>,
    /// Hop limit; only on unconnected sockets.
    pub hops: Option<NonZeroU8>,
}

/// Result of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DatagramsReceived {
    /// Datagrams passed on; coalesced ones count once.
    pub count: usize,
    /// Bytes of their payload.
    pub bytes: usize,
    /// The socket is empty now.
    pub drained: bool,
    /// Frames are short: a datagram waits in the socket, and nothing is lost.
    pub no_memory: bool,
    /// The error queue has an entry.
    pub error_pending: bool,
}

/// A UDP socket.
#[derive(Debug)]
pub struct UdpSocket {
    fd: OwnedFd,
}

impl UdpSocket {
    /// Opens a socket that exchanges datagrams with one peer only.
    pub fn connect(to: SocketAddr) -> io::Result<Self> {
        let socket = Self::open(&to)?;
        rustix::net::connect(&socket.fd, &to)?;
        Ok(socket)
    }

    /// Opens a socket on a local address, for any peer, on one interface only if it is named.
    pub fn bind(address: SocketAddr, interface: Option<&str>) -> io::Result<Self> {
        let socket = Self::open(&address)?;
        bind(&socket.fd, &address, interface)?;
        Ok(socket)
    }

    /// Opens a socket on a local address that sockets of this user share (`SO_REUSEPORT`).
    pub(super) fn bind_shared(address: SocketAddr) -> io::Result<Self> {
        let socket = Self::open(&address)?;
        sockopt::set_socket_reuseport(&socket, true)?;
        bind(&socket.fd, &address, None)?;
        Ok(socket)
    }

    /// Reports the local address at which each datagram arrives from now on, for sockets that are
    /// bound to all addresses and answer.
    pub fn report_destinations(&self) -> io::Result<()> {
        let (level, name) = if self.local()?.is_ipv6() {
            (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO)
        } else {
            (libc::IPPROTO_IP, libc::IP_PKTINFO)
        };
        set_int(self.fd.as_fd(), level, name, 1)
    }

    /// Sends one datagram, or with `gso_size` a super-packet with segments of that many payload
    /// bytes. `to` is required unless the socket is connected.
    pub fn send_to<'a>(
        &self,
        to: Option<SocketAddr>,
        pieces: impl Iterator<Item = &'a Piece>,
        gso_size: Option<NonZeroU16>,
    ) -> io::Result<Sent> {
        self.send_from(&IpFields::default(), to, pieces, gso_size)
    }

    /// Sends as [`UdpSocket::send_to`] does, and sets these fields of the datagram's header in the
    /// same call.
    pub fn send_from<'a>(
        &self,
        fields: &IpFields,
        to: Option<SocketAddr>,
        pieces: impl Iterator<Item = &'a Piece>,
        gso_size: Option<NonZeroU16>,
    ) -> io::Result<Sent> {
        let mut gather: Gather<'_, SEND_PIECES_MAX> = Gather::new();
        if !gather_pieces(&mut gather, pieces) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let is_v6 = to.is_some_and(|to| to.is_ipv6());
        let to = AddressBytes::encode(to);
        let segments = gso_size.filter(|size| usize::from(size.get()) < gather.bytes());
        let mut control = ControlToSend::new();
        if let Some(size) = segments {
            control.push(libc::IPPROTO_UDP, UDP_SEGMENT, &size.get().to_ne_bytes());
        }
        if let Some(from) = fields.from {
            control.push_source(from);
        }
        if let Some(hops) = fields.hops {
            control.push_hops(is_v6, hops);
        }
        let (to, control) = (to.as_bytes(), control.as_bytes());
        let send = || sys::send_gather(self.fd.as_fd(), &gather, to, control, SEND_FLAGS);
        let result = match send() {
            // The error of an earlier datagram, also in the error queue; this one was not sent.
            Err(errno) if is_soft(errno) => send(),
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

    /// Receives up to `max` datagrams, one per call, until their payload reaches `bytes_max` bytes.
    pub fn receive(
        &self,
        buffer: &mut ReceiveBuffer,
        memory: &mut Memory,
        (max, bytes_max): (usize, usize),
        mut give: impl FnMut(Datagram),
    ) -> io::Result<DatagramsReceived> {
        let mut outcome = DatagramsReceived::default();
        for _ in 0..max {
            if outcome.bytes >= bytes_max {
                break;
            }
            match self.receive_one(buffer, memory) {
                Ok(Some(datagram)) => {
                    outcome.count += 1;
                    outcome.bytes += datagram.len;
                    give(datagram);
                }
                Ok(None) => {
                    outcome.no_memory = true;
                    break;
                }
                Err(Errno::AGAIN) => {
                    outcome.drained = true;
                    break;
                }
                Err(errno) if is_soft(errno) => outcome.error_pending = true,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(outcome)
    }

    /// Takes the oldest entry of the error queue.
    pub fn take_error_event(&self) -> Option<SocketErrorEvent> {
        error_queue::take(self.fd.as_fd())
    }

    /// The local address.
    pub fn local(&self) -> io::Result<SocketAddr> {
        local(self.fd.as_fd())
    }

    fn open(address: &SocketAddr) -> io::Result<Self> {
        let fd = open(address, SocketType::DGRAM, None)?;
        error_queue::enable(fd.as_fd(), address.is_ipv6())?;
        if address.is_ipv6() {
            sockopt::set_ipv6_recvtclass(&fd, true)?;
        } else {
            sockopt::set_ip_recvtos(&fd, true)?;
        }
        // Kernels before 5.0 deliver each datagram by itself, which works as well.
        let _ = set_int(fd.as_fd(), libc::IPPROTO_UDP, UDP_GRO, 1);
        Ok(Self { fd })
    }

    /// Receives one datagram; `None` if there is no memory for it.
    fn receive_one(
        &self,
        buffer: &mut ReceiveBuffer,
        memory: &mut Memory,
    ) -> Result<Option<Datagram>, Errno> {
        let offered = buffer.prepare(memory, PAYLOAD_BYTES_MAX);
        if offered < PAYLOAD_BYTES_MAX && self.next_len()? > offered || offered == 0 {
            return Ok(None);
        }
        let mut address = [0; ADDRESS_BYTES];
        let mut control = Control::new();
        let received = {
            let mut slices = empty_slices::<FRAMES_MAX>();
            let used = buffer.slices(&mut slices);
            let flags = libc::MSG_DONTWAIT;
            let slices = &mut slices[..used];
            sys::receive_message(self.fd.as_fd(), slices, &mut address, &mut control.0, flags)?
        };
        let from = decode_address(&address[..received.address_len]).ok_or(Errno::AFNOSUPPORT)?;
        let mut datagram = Datagram {
            from,
            pieces: Pieces::default(),
            len: received.bytes,
            gro_size: None,
            truncated: received.flags & libc::MSG_TRUNC != 0,
            tos: None,
            to: None,
        };
        for message in control_messages(&control.0[..received.control_len]) {
            datagram.note(&message);
        }
        buffer.take(received.bytes, |piece| datagram.pieces.push(piece));
        Ok(Some(datagram))
    }

    /// Length of the next datagram, which stays in the socket.
    fn next_len(&self) -> Result<usize, Errno> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK | libc::MSG_TRUNC;
        Ok(sys::receive_message(self.fd.as_fd(), &mut [], &mut [], &mut [], flags)?.bytes)
    }
}

impl Datagram {
    /// Appends the next datagram of the same sender, if the kernel could have coalesced the two:
    /// all of the same size but the last, which may be shorter. Otherwise returns false and leaves
    /// `next` unchanged.
    pub fn join(&mut self, next: &mut Self) -> bool {
        let size = self.gro_size.map_or(self.len, |size| usize::from(size.get()));
        let gro_size = u16::try_from(size).ok().and_then(NonZeroU16::new);
        let alike = (self.from, self.to, self.tos) == (next.from, next.to, next.tos)
            && !(self.truncated || next.truncated);
        let fits = gro_size.is_some()
            && next.gro_size.is_none()
            && (1..=size).contains(&next.len)
            && self.len.is_multiple_of(size)
            && self.len + next.len <= PAYLOAD_BYTES_MAX - HEADERS_BYTES_MAX
            && self.pieces.has_room_for(&next.pieces);
        if !(alike && fits) {
            return false;
        }
        for piece in std::mem::take(&mut next.pieces) {
            self.pieces.push(piece);
        }
        self.len += next.len;
        self.gro_size = gro_size;
        true
    }

    pub(super) fn note(&mut self, message: &ControlMessage<'_>) -> Option<()> {
        match (message.level, message.kind) {
            (libc::IPPROTO_UDP, UDP_GRO) => self.gro_size = gro_size(message, self.len),
            (libc::IPPROTO_IP, libc::IP_TOS) => self.tos = message.data.first().copied(),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                self.tos = Some(i32::from_ne_bytes(array(message.data, 0)?) as u8);
            }
            _ => self.to = destination(message).or(self.to),
        }
        Some(())
    }
}

impl From<OwnedFd> for UdpSocket {
    /// Takes a socket that another process has opened as a `UdpSocket`.
    fn from(fd: OwnedFd) -> Self {
        Self { fd }
    }
}

impl From<UdpSocket> for OwnedFd {
    fn from(socket: UdpSocket) -> Self {
        socket.fd
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The size of each of the coalesced datagrams, which together have `len` bytes. `None` if this
/// message does not say it, or there is only one.
pub(super) fn gro_size(message: &ControlMessage<'_>, len: usize) -> Option<NonZeroU16> {
    if (message.level, message.kind) != (libc::IPPROTO_UDP, UDP_GRO) {
        return None;
    }
    let size = u16::try_from(i32::from_ne_bytes(array(message.data, 0)?)).ok()?;
    NonZeroU16::new(size).filter(|size| usize::from(size.get()) < len)
}

/// True for errors that concern an earlier datagram and are also in the error queue.
pub(super) fn is_soft(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::CONNREFUSED
            | Errno::HOSTUNREACH
            | Errno::NETUNREACH
            | Errno::HOSTDOWN
            | Errno::NOPROTOOPT
            | Errno::PROTO
            | Errno::ACCESS
            | Errno::MSGSIZE
            | Errno::INTR
    )
}
