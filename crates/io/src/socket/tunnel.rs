//! UDP sockets of tunnels: private headers between borrowed pieces, and the MTU of paths.
//!
//! A run of datagrams of one size leaves in one call with `UDP_SEGMENT`; each has headers of its
//! own. Of a run that arrives (`UDP_GRO`), the kernel copies the heads of the datagrams into
//! private memory and what is behind them into frames, where the payload of successive datagrams
//! is then contiguous ([`UdpSocket::receive_heads`]). The caller knows or guesses the lengths; if
//! it was wrong, all bytes are there, in other places.
//!
//! No datagram is fragmented: the kernel refuses those that are larger than the path's MTU as it
//! knows it. Sources: udp(7), ip(7), ipv6(7), RFC 7348 §4.3.

use super::message::{
    ADDRESS_BYTES, AddressBytes, Control, ControlToSend, control_messages, decode_address,
};
use super::udp::{Sent, UDP_SEGMENT, UdpSocket, gro_size, is_soft};
use super::{SEND_FLAGS, open, set_int};
use crate::gather::Gather;
use crate::process_sys::socket_option;
use crate::receive::{FRAMES_MAX, Pieces, ReceiveBuffer, empty_slices};
use crate::sys;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::{SocketType, sockopt};
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::ops::Range;
use towpath_packet::{Memory, Piece};

/// Most parts of one send: 64 datagrams, each with two headers and a payload across two frames.
pub const SEND_PARTS_MAX: usize = 256;

/// Most strides of a split read: `UDP_GRO_CNT_MAX` of the kernel.
pub const HEADS_MAX: usize = 64;
/// Bytes of the largest datagram, and of all that are coalesced.
const DATAGRAM_BYTES_MAX: usize = 65_535;

/// A part of what is sent.
#[derive(Clone, Debug)]
pub enum Part<'a> {
    /// Private bytes, such as headers.
    Bytes(&'a [u8]),
    /// Borrowed payload.
    Piece(&'a Piece),
    /// These bytes of borrowed payload.
    Range(&'a Piece, Range<usize>),
}

/// How a read is split into strides of equal length, each a head and what is behind it, as in a run
/// of coalesced datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadSplit {
    /// Bytes of each head.
    pub head: usize,
    /// Bytes of each stride, more than a head. All strides of a read have room for any datagram if
    /// this is at least 1024.
    pub size: NonZeroU16,
}

impl HeadSplit {
    /// How many of the first `len` bytes of a read are in heads.
    pub fn in_heads(&self, len: usize) -> usize {
        let size = usize::from(self.size.get());
        len / size * self.head + self.head.min(len % size)
    }
}

/// Outcome of [`UdpSocket::receive_heads`].
#[derive(Debug)]
pub enum HeadsReceived {
    /// A datagram, or several that the kernel has coalesced.
    Some(HeadsRead),
    /// Frames are short: the datagrams wait in the socket, and nothing is lost.
    NoMemory,
    /// The socket is empty.
    Empty,
    /// The socket returned the error of an earlier datagram.
    Error,
}

/// What [`UdpSocket::receive_heads`] has read.
#[derive(Debug)]
pub struct HeadsRead {
    /// The sender.
    pub from: SocketAddr,
    /// Bytes of all datagrams.
    pub len: usize,
    /// Bytes of each coalesced datagram but the last, which may be shorter. `None` for a single
    /// one.
    pub gro_size: Option<NonZeroU16>,
    /// What is behind the heads.
    pub pieces: Pieces,
    /// There was more than all strides have room for. It is lost.
    pub truncated: bool,
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

    /// Looks at the next datagram, or datagrams that the kernel has coalesced: copies the first
    /// bytes to `start`, and returns the bytes of all and, if coalesced, of each. They stay in the
    /// socket. `None` if the socket returned the error of an earlier datagram instead.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if the socket is empty, and others of recvmsg(2).
    pub fn peek(&self, start: &mut [u8]) -> io::Result<Option<(usize, Option<NonZeroU16>)>> {
        let mut control = Control::new();
        let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK | libc::MSG_TRUNC;
        let mut slices = [IoSliceMut::new(start)];
        let received =
            match sys::receive_message(self.as_fd(), &mut slices, &mut [], &mut control.0, flags) {
                Ok(received) => received,
                Err(errno) if is_soft(errno) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            };
        let mut messages = control_messages(&control.0[..received.control_len]);
        let size = messages.find_map(|message| gro_size(&message, received.bytes));
        Ok(Some((received.bytes, size)))
    }

    /// Receives a datagram, or coalesced ones, in a split read: all heads one behind the other in
    /// `heads`, [`HeadSplit::in_heads`] bytes, and the other bytes in pieces. Datagrams need not be
    /// as long as a stride.
    ///
    /// # Errors
    /// Those of recvmsg(2) that concern the socket; the datagrams stay in it.
    ///
    /// # Panics
    /// If `heads` has no room for [`HEADS_MAX`] heads, or a stride has no more bytes than a head.
    pub fn receive_heads(
        &self,
        buffer: &mut ReceiveBuffer,
        memory: &mut Memory,
        heads: &mut [u8],
        split: &HeadSplit,
    ) -> io::Result<HeadsReceived> {
        let size = usize::from(split.size.get());
        let most = DATAGRAM_BYTES_MAX.min(HEADS_MAX * size);
        let in_heads = split.in_heads(most);
        if buffer.prepare(memory, most - in_heads) < most - in_heads {
            return Ok(HeadsReceived::NoMemory);
        }
        let mut address = [0; ADDRESS_BYTES];
        let mut control = Control::new();
        let received = {
            let mut slices = empty_slices::<SLICES_MAX>();
            let layout = (split.head, size - split.head);
            let used = buffer.slices_behind(&mut heads[..in_heads], layout, &mut slices);
            let slices = &mut slices[..used];
            let flags = libc::MSG_DONTWAIT;
            let fd = self.as_fd();
            match sys::receive_message(fd, slices, &mut address, &mut control.0, flags) {
                Ok(received) => received,
                Err(Errno::AGAIN) => return Ok(HeadsReceived::Empty),
                Err(errno) if is_soft(errno) => return Ok(HeadsReceived::Error),
                Err(errno) => return Err(errno.into()),
            }
        };
        let mut messages = control_messages(&control.0[..received.control_len]);
        let gro_size = messages.find_map(|message| gro_size(&message, received.bytes));
        let truncated = received.flags & libc::MSG_TRUNC != 0;
        let Some(from) = decode_address(&address[..received.address_len]) else {
            return Ok(HeadsReceived::Error);
        };
        let len = received.bytes;
        let mut pieces = Pieces::default();
        buffer.take(len - split.in_heads(len), |piece| pieces.push(piece));
        Ok(HeadsReceived::Some(HeadsRead { from, len, gro_size, pieces, truncated }))
    }

    /// True if the socket has room for more to send, or an error to report.
    pub fn is_writable(&self) -> bool {
        let mut files = [PollFd::new(self, PollFlags::OUT)];
        // An error is reported by the send, too.
        !matches!(poll(&mut files, Some(&Timespec::default())), Ok(0))
    }

    /// Sends the parts as one datagram, or with `gso_size` as several of that many bytes each, of
    /// which the last may be shorter.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for more than [`SEND_PARTS_MAX`] parts, `EMSGSIZE` for a
    /// datagram larger than the path's MTU, and others of sendmsg(2). Nothing was sent.
    ///
    /// # Panics
    /// If a piece has not the bytes of its range.
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
                Part::Range(piece, range) => gather.push_piece_range(piece, range),
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

/// Slices of a read with heads apart: for each datagram its head and what is behind it, which may
/// go on in another frame.
const SLICES_MAX: usize = 2 * HEADS_MAX + FRAMES_MAX;

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
    fn heads_are_those_of_the_strides() {
        let split = HeadSplit { head: 4, size: NonZeroU16::new(10).expect("size") };
        for (len, in_heads) in [(0, 0), (3, 3), (4, 4), (9, 4), (10, 4), (12, 6), (25, 12)] {
            assert_eq!(split.in_heads(len), in_heads, "{len}");
        }
    }

    /// Goal: heads arrive apart from what is behind them, which is contiguous, whether
    /// strides are as long as datagrams or not; short memory does no harm. A busy system may drop
    /// datagrams, so they are sent again.
    #[test]
    fn heads_arrive_apart() {
        let mut memory =
            Memory::new(MemoryConfig { packets: 8, small_frames: 8, large_frames: 16 });
        let loopback = SocketAddr::new(IpAddr::from([127, 0, 0, 1]), 0);
        let [from, to] = [(); 2].map(|()| UdpSocket::bind(loopback, None).expect("a socket"));
        from.set_tunnel(1 << 16).expect("options");
        assert!(from.is_writable());
        let at = to.local().expect("bound");
        let empty = to.peek(&mut [0; 4]).expect_err("nothing was sent");
        assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
        let mut buffer = ReceiveBuffer::new();
        let send = |buffer: &mut ReceiveBuffer, memory: &mut Memory| {
            for _ in 0..1000 {
                let parts = [&b"abload"[..], b"cdload", b"ef"].map(Part::Bytes);
                from.send_parts(at, parts.into_iter(), NonZeroU16::new(6)).expect("sent");
                let mut start = [0; 4];
                match to.peek(&mut start) {
                    Ok(Some((14, Some(size)))) => {
                        assert_eq!((&start, size.get()), (b"ablo", 6));
                        return true;
                    }
                    // Not coalesced, by an old kernel.
                    Ok(_) => drop(to.receive(buffer, memory, (64, 1 << 16), |_| {})),
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
                }
            }
            false
        };
        let mut heads = [0; 64 * 8];
        let split = |head, size| HeadSplit { head, size: NonZeroU16::new(size).expect("size") };
        let none = to.receive_heads(&mut buffer, &mut memory, &mut heads, &split(2, 6));
        assert!(matches!(none, Ok(HeadsReceived::Empty)));
        if !send(&mut buffer, &mut memory) {
            eprintln!("skipped: this kernel coalesces no datagrams");
            return;
        }
        let mut none = Memory::new(MemoryConfig { packets: 1, small_frames: 0, large_frames: 0 });
        let short =
            to.receive_heads(&mut ReceiveBuffer::new(), &mut none, &mut heads, &split(2, 6));
        assert!(matches!(short, Ok(HeadsReceived::NoMemory)));
        for (layout, wanted) in [
            (split(2, 6), (&b"abcdef"[..], &b"loadload"[..])),
            (split(8, 1024), (b"abloadcd", b"loadef")),
            (split(1, 4), (b"aale", b"blodcdoadf")),
        ] {
            match to.receive_heads(&mut buffer, &mut memory, &mut heads, &layout).expect("received")
            {
                HeadsReceived::Some(read) => {
                    let port = from.local().expect("bound").port();
                    assert_eq!(read.from, SocketAddr::new(at.ip(), port));
                    assert_eq!((read.len, read.gro_size), (14, NonZeroU16::new(6)));
                    let bytes: Vec<&[u8]> = read.pieces.iter().filter_map(Piece::bytes).collect();
                    let in_heads = &heads[..layout.in_heads(read.len)];
                    assert_eq!((in_heads, bytes.concat().as_slice()), wanted);
                    assert!(!read.truncated);
                }
                other => panic!("{other:?}"),
            }
            assert!(send(&mut buffer, &mut memory));
        }
        drop(buffer);
        assert_eq!((memory.small.out_count(), memory.large.out_count()), (0, 0));
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
