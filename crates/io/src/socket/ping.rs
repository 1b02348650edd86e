//! ICMP echo with a host: over datagram sockets where they are permitted, otherwise over raw
//! sockets.
//!
//! One socket serves one pair of address and identifier. The kernel chooses the identifier of a
//! datagram socket, so replies are given the identifier that was requested. A raw socket sends the
//! identifier unchanged and drops replies to others.

use super::message::array;
use super::set_int;
use super::udp::is_soft;
use super::{SEND_FLAGS, SEND_PIECES_MAX, SocketErrorEvent, error_queue, gather_pieces, open};
use crate::gather::Gather;
use crate::outside;
use crate::receive::{FRAMES_MAX, Pieces, ReceiveBuffer, empty_slices};
use crate::sys;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SocketType, ipproto};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU8;
use towpath_packet::{Memory, Piece};

/// Bytes of an echo header.
const ECHO_BYTES: usize = 8;
/// Largest message: that of a full IP packet.
const MESSAGE_BYTES_MAX: usize = 65_535;
/// Most replies to others that one receive drops.
const DROPS_MAX: usize = 32;

/// ICMP types, RFC 792 and RFC 4443.
const ECHO_REQUEST_V4: u8 = 8;
const ECHO_REPLY_V4: u8 = 0;
const ECHO_REQUEST_V6: u8 = 128;
const ECHO_REPLY_V6: u8 = 129;

/// `SOL_RAW` with `ICMP_FILTER`, of `linux/icmp.h`.
const SOL_RAW: i32 = 255;
const ICMP_FILTER: i32 = 1;
/// `ICMPV6_FILTER` of `linux/icmpv6.h`.
const ICMPV6_FILTER: i32 = 1;

/// Kind of a ping socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PingKind {
    /// A datagram socket: the kernel chooses the identifier.
    Datagram,
    /// A raw socket.
    Raw,
}

/// Why no ping socket could be opened.
#[derive(Debug)]
pub enum PingError {
    /// Neither kind of socket is permitted.
    NotPermitted,
    /// Any other error.
    Os(io::Error),
}

impl fmt::Display for PingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPermitted => f.write_str(
                "ping sockets are not permitted; add this group to the sysctl \
                 net.ipv4.ping_group_range, for example \"0 2147483647\", or grant \
                 CAP_NET_RAW",
            ),
            Self::Os(error) => write!(f, "the ping socket failed: {error}"),
        }
    }
}

impl std::error::Error for PingError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Os(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for PingError {
    fn from(error: io::Error) -> Self {
        Self::Os(error)
    }
}

/// An echo reply.
#[derive(Debug)]
pub struct Echo {
    /// The identifier for which the socket was opened.
    pub ident: u16,
    /// Sequence number.
    pub sequence: u16,
    /// Payload.
    pub pieces: Pieces,
    /// Bytes of payload.
    pub len: usize,
}

/// Sends echo requests to one address and receives the replies.
#[derive(Debug)]
pub struct PingSocket {
    fd: OwnedFd,
    kind: PingKind,
    v6: bool,
    ident: u16,
}

impl PingSocket {
    /// Opens a socket for echo requests to this address with this identifier.
    pub fn connect(to: IpAddr, ident: u16) -> Result<Self, PingError> {
        let (fd, kind) = match Self::open(to, SocketType::DGRAM) {
            Ok(fd) => (fd, PingKind::Datagram),
            Err(_) => match Self::open_raw(to) {
                Ok(fd) => (fd, PingKind::Raw),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(PingError::NotPermitted);
                }
                Err(error) => return Err(error.into()),
            },
        };
        let socket = Self { fd, kind, v6: to.is_ipv6(), ident };
        if kind == PingKind::Raw {
            socket.filter()?;
        }
        error_queue::enable(socket.as_fd(), socket.v6)?;
        rustix::net::connect(&socket.fd, &SocketAddr::new(to, 0)).map_err(io::Error::from)?;
        Ok(socket)
    }

    /// Sends an echo request. The payload must be private memory, because its checksum may be
    /// computed.
    pub fn send<'a>(
        &self,
        sequence: u16,
        payload: impl Iterator<Item = &'a Piece> + Clone,
    ) -> io::Result<()> {
        let request = if self.v6 { ECHO_REQUEST_V6 } else { ECHO_REQUEST_V4 };
        let mut header = [0; ECHO_BYTES];
        header[0] = request;
        header[4..6].copy_from_slice(&self.ident.to_be_bytes());
        header[6..8].copy_from_slice(&sequence.to_be_bytes());
        // The kernel computes the checksum for datagram sockets and for all of ICMPv6.
        if self.kind == PingKind::Raw && !self.v6 {
            let mut sum = Sum::default();
            sum.add(&header);
            for piece in payload.clone() {
                sum.add(piece.bytes().ok_or(io::ErrorKind::Unsupported)?);
            }
            header[2..4].copy_from_slice(&sum.finish().to_be_bytes());
        }
        let mut gather: Gather<'_, { 1 + SEND_PIECES_MAX }> = Gather::new();
        if !(gather.push_bytes(&header) && gather_pieces(&mut gather, payload)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let send = || sys::send_gather(self.fd.as_fd(), &gather, &[], &[], SEND_FLAGS);
        match send() {
            // The error of an earlier request, which is also in the error queue.
            Err(errno) if is_soft(errno) => send()?,
            result => result?,
        };
        Ok(())
    }

    /// Sets the hop limit of the following requests; `None` for the kernel's default.
    pub fn set_hops(&self, hops: Option<NonZeroU8>) -> io::Result<()> {
        let (level, name) = if self.v6 {
            (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS)
        } else {
            (libc::IPPROTO_IP, libc::IP_TTL)
        };
        set_int(self.as_fd(), level, name, hops.map_or(-1, |hops| hops.get().into()))
    }

    /// Forbids or permits to fragment the following requests, here or on the path. Requests that
    /// are too large then fail with `EMSGSIZE`, and the error queue reports the MTU.
    pub fn set_dont_fragment(&self, on: bool) -> io::Result<()> {
        let (level, name, how) = match (self.v6, on) {
            (false, true) => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO),
            (false, false) => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT),
            (true, true) => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO),
            // IPv6 routers do not fragment: the kernel must track the path MTU.
            (true, false) => {
                (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_WANT)
            }
        };
        set_int(self.as_fd(), level, name, how)
    }

    /// Receives one reply; `None` if there is no memory for it.
    pub fn receive(
        &self,
        buffer: &mut ReceiveBuffer,
        memory: &mut Memory,
    ) -> io::Result<Option<Echo>> {
        for _ in 0..DROPS_MAX {
            if buffer.prepare(memory, MESSAGE_BYTES_MAX) < MESSAGE_BYTES_MAX {
                return Ok(None);
            }
            let received = {
                let mut slices = empty_slices::<FRAMES_MAX>();
                let used = buffer.slices(&mut slices);
                let (slices, flags) = (&mut slices[..used], libc::MSG_DONTWAIT);
                sys::receive_message(self.fd.as_fd(), slices, &mut [], &mut [], flags)
            };
            let bytes = match received {
                Ok(received) => received.bytes,
                Err(errno) if is_soft(errno) => continue,
                Err(errno) => return Err(errno.into()),
            };
            let mut pieces = Pieces::default();
            buffer.take(bytes, |piece| pieces.push(piece));
            if let Some(echo) = self.accept(pieces, bytes) {
                return Ok(Some(echo));
            }
        }
        Err(Errno::AGAIN.into())
    }

    /// Takes the oldest entry of the error queue.
    pub fn take_error_event(&self) -> Option<SocketErrorEvent> {
        error_queue::take(self.fd.as_fd())
    }

    /// Returns the sequence number and the start of the payload of the request that caused an
    /// error. `None` if it was not a request of this socket, or if the error does not quote it.
    pub fn request_of<'a>(&self, error: &'a SocketErrorEvent) -> Option<(u16, &'a [u8])> {
        let quote = error.quote.bytes();
        let [kind, _, _, _, ident @ .., sequence_high, sequence_low] =
            array::<ECHO_BYTES>(quote, 0)?;
        let request = if self.v6 { ECHO_REQUEST_V6 } else { ECHO_REQUEST_V4 };
        // The kernel delivers errors for datagram sockets by their own identifiers.
        let ours = self.kind == PingKind::Datagram || ident == self.ident.to_be_bytes();
        let sequence = u16::from_be_bytes([sequence_high, sequence_low]);
        (kind == request && ours).then(|| (sequence, &quote[ECHO_BYTES..]))
    }

    /// Kind of the socket.
    pub fn kind(&self) -> PingKind {
        self.kind
    }

    fn open_raw(to: IpAddr) -> io::Result<OwnedFd> {
        match outside::ping(to) {
            Some(answer) => Ok(answer?),
            None => Self::open(to, SocketType::RAW),
        }
    }

    fn open(to: IpAddr, kind: SocketType) -> io::Result<OwnedFd> {
        let protocol = if to.is_ipv6() { ipproto::ICMPV6 } else { ipproto::ICMP };
        open(&SocketAddr::new(to, 0), kind, Some(protocol))
    }

    /// Lets only echo replies in: a bit that is set blocks its type.
    fn filter(&self) -> io::Result<()> {
        if !self.v6 {
            let blocked = !(1u32 << ECHO_REPLY_V4);
            let value = blocked.to_ne_bytes();
            return Ok(sys::set_option(self.fd.as_fd(), SOL_RAW, ICMP_FILTER, &value)?);
        }
        let mut value = [0xff; 32];
        let (word, bit) = (usize::from(ECHO_REPLY_V6) / 32, ECHO_REPLY_V6 % 32);
        value[word * 4..word * 4 + 4].copy_from_slice(&(!(1u32 << bit)).to_ne_bytes());
        Ok(sys::set_option(self.fd.as_fd(), libc::IPPROTO_ICMPV6, ICMPV6_FILTER, &value)?)
    }

    /// Removes the headers from a reply, if it is for this socket.
    fn accept(&self, mut pieces: Pieces, bytes: usize) -> Option<Echo> {
        let start = pieces.iter().next()?.bytes()?;
        let reply = parse_reply(start, self.kind, self.v6)?;
        // The kernel delivers the replies to datagram sockets by identifier.
        if self.kind == PingKind::Raw && reply.ident != self.ident {
            return None;
        }
        let sequence = reply.sequence;
        let len = bytes.checked_sub(reply.header_bytes)?;
        pieces.drop_front(reply.header_bytes);
        Some(Echo { ident: self.ident, sequence, pieces, len })
    }
}

/// Headers of an echo reply.
pub(super) struct ReplyHeaders {
    pub(super) ident: u16,
    pub(super) sequence: u16,
    /// Bytes before the payload.
    pub(super) header_bytes: usize,
}

/// Parses the headers of an echo reply; `None` for other messages and for too few bytes. Raw IPv4
/// sockets deliver the IP header, too (raw(7)); others start with the ICMP message.
pub(super) fn parse_reply(start: &[u8], kind: PingKind, v6: bool) -> Option<ReplyHeaders> {
    let ip_bytes = if kind == PingKind::Raw && !v6 {
        // RFC 791: the low four bits count 32-bit words.
        usize::from(start.first()? & 0x0f) * 4
    } else {
        0
    };
    let [icmp_type, _, _, _, ident_high, ident_low, sequence_high, sequence_low] =
        array::<ECHO_BYTES>(start, ip_bytes)?;
    let expected = if v6 { ECHO_REPLY_V6 } else { ECHO_REPLY_V4 };
    (icmp_type == expected).then_some(ReplyHeaders {
        ident: u16::from_be_bytes([ident_high, ident_low]),
        sequence: u16::from_be_bytes([sequence_high, sequence_low]),
        header_bytes: ip_bytes + ECHO_BYTES,
    })
}

impl AsFd for PingSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The Internet checksum (RFC 1071) of bytes that are added in parts of any length.
#[derive(Default)]
struct Sum {
    total: u64,
    odd: bool,
}

impl Sum {
    fn add(&mut self, bytes: &[u8]) {
        let mut bytes = bytes;
        if self.odd
            && let Some((&first, rest)) = bytes.split_first()
        {
            self.total += u64::from(first);
            self.odd = false;
            bytes = rest;
        }
        let (words, rest) = bytes.as_chunks::<2>();
        self.total += words.iter().map(|&word| u64::from(u16::from_be_bytes(word))).sum::<u64>();
        if let [last] = rest {
            self.total += u64::from(*last) << 8;
            self.odd = true;
        }
    }

    fn finish(self) -> u16 {
        let mut sum = self.total;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the checksum does not depend on how the payload is split.
    #[test]
    fn a_sum_in_stretches_is_the_sum() {
        let bytes: Vec<u8> = (0..=255).cycle().take(1001).collect();
        let sum = |parts: &[&[u8]]| {
            let mut sum = Sum::default();
            parts.iter().for_each(|part| sum.add(part));
            sum.finish()
        };
        let whole = sum(&[&bytes]);
        for (first, second) in [(0, 1), (1, 2), (3, 500), (500, 1001), (7, 7)] {
            let parts = [&bytes[..first], &bytes[first..second], &bytes[second..]];
            assert_eq!(sum(&parts), whole);
        }
        // RFC 1071 §3.
        assert_eq!(sum(&[&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]]), !0xddf2);
    }
}
