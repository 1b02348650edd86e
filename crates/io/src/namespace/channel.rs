//! Messages between towpath and the process it forked.
//!
//! The channel is a pair of connected sockets that keep message boundaries. A message is a tag, a
//! number and at most [`SOCKETS_MAX`] descriptors. When the other process ends, calls return
//! [`ChannelError::Closed`].

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::slice;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};

/// Why a message could not be exchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelError {
    /// The other process has ended or closed its end.
    Closed,
    /// A message that is not part of the protocol.
    Unexpected,
    /// This process has no descriptor left for the one that came with a message.
    NoDescriptor,
    /// The socket failed.
    Socket(Errno),
}

impl fmt::Display for ChannelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("another process of towpath has ended"),
            Self::Unexpected => f.write_str("unexpected message from another process of towpath"),
            Self::NoDescriptor => f.write_str(
                "too few file descriptors are left; raise the limit of the process (`ulimit -n`)",
            ),
            Self::Socket(..) => f.write_str("the socket between the processes of towpath failed"),
        }
    }
}

impl std::error::Error for ChannelError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Socket(error) => Some(error),
            _ => None,
        }
    }
}

/// A message.
#[derive(Debug)]
pub enum Message {
    /// To towpath: a socket that listens inside, and the host's port to which it leads.
    Listener(u16, OwnedFd),
    /// To towpath: a datagram socket that is bound inside, and the host's port to which it leads.
    Datagrams(u16, OwnedFd),
    /// To towpath: the channel to the process inside that opens sockets; see
    /// [`sockets`](super::sockets).
    Opener(OwnedFd),
    /// To towpath: the network is set up. Carries its TAP device, and a number that describes the
    /// device.
    Ready(u32, OwnedFd),
    /// To the child: towpath is ready to serve, begin.
    Go,
    /// To towpath: the program has started. Carries its pidfd.
    Started(OwnedFd),
    /// To towpath: the program has ended with this status of wait(2).
    Ended(i32),
    /// To towpath: the channel from the process inside that watches ports; see
    /// [`listening`](super::listening).
    Watcher(OwnedFd),
    /// From the watcher: programs inside listen on this port from now on, or no longer.
    Port {
        /// The port.
        port: u16,
        /// It is a UDP port, not a TCP port.
        is_udp: bool,
        /// Programs listen on it.
        is_open: bool,
    },
    /// To towpath: the channel to the process inside that listens on ports of the host; see
    /// [`mirror`](super::mirror).
    Mirror(OwnedFd),
    /// To towpath: the listener of the filter that reports the program's calls, and samples of
    /// sockets inside, for its module `native`.
    Native([OwnedFd; 3]),
    /// To the opener: open more sockets.
    Open,
    /// To towpath: at most [`SOCKETS_MAX`] sockets of the namespace, and their kind.
    Sockets(u32, Vec<OwnedFd>),
}

/// One end of a channel.
#[derive(Debug)]
pub struct Channel(OwnedFd);

impl Channel {
    /// Creates the two ends of a channel. Programs executed later inherit neither.
    ///
    /// # Errors
    /// [`ChannelError::Socket`].
    pub fn pair() -> Result<(Channel, Channel), ChannelError> {
        let (one, other) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(ChannelError::Socket)?;
        Ok((Channel(one), Channel(other)))
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`ChannelError::Closed`] or [`ChannelError::Socket`].
    ///
    /// # Panics
    /// If there are more than [`SOCKETS_MAX`] descriptors.
    pub fn send(&self, message: &Message) -> Result<(), ChannelError> {
        let (tag, number, descriptors) = match message {
            Message::Listener(port, socket) => {
                (TAG_LISTENER, u32::from(*port), slice::from_ref(socket))
            }
            Message::Datagrams(port, socket) => {
                (TAG_DATAGRAMS, u32::from(*port), slice::from_ref(socket))
            }
            Message::Opener(channel) => (TAG_OPENER, 0, slice::from_ref(channel)),
            Message::Watcher(channel) => (TAG_WATCHER, 0, slice::from_ref(channel)),
            Message::Mirror(channel) => (TAG_MIRROR, 0, slice::from_ref(channel)),
            Message::Port { port, is_udp, is_open } => {
                let flags = u32::from(*is_udp) << UDP_BIT | u32::from(*is_open) << OPEN_BIT;
                (TAG_PORT, u32::from(*port) | flags, [].as_slice())
            }
            Message::Ready(number, tap) => (TAG_READY, *number, slice::from_ref(tap)),
            Message::Go => (TAG_GO, 0, [].as_slice()),
            Message::Started(pidfd) => (TAG_STARTED, 0, slice::from_ref(pidfd)),
            Message::Ended(status) => (TAG_ENDED, status.cast_unsigned(), [].as_slice()),
            Message::Native(files) => (TAG_NATIVE, 0, files.as_slice()),
            Message::Open => (TAG_OPEN, 0, [].as_slice()),
            Message::Sockets(kind, sockets) => (TAG_SOCKETS, *kind, sockets.as_slice()),
        };
        let mut bytes = [tag; MESSAGE_LEN];
        bytes[1..].copy_from_slice(&number.to_ne_bytes());
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            let fits = ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
            assert!(fits, "there is room for {SOCKETS_MAX} descriptors");
        }
        let slices = [IoSlice::new(&bytes)];
        let sent = retry_on_intr(|| sendmsg(&self.0, &slices, &mut ancillary, SendFlags::NOSIGNAL));
        match sent {
            Ok(_) => Ok(()),
            Err(Errno::PIPE | Errno::CONNRESET) => Err(ChannelError::Closed),
            Err(errno) => Err(ChannelError::Socket(errno)),
        }
    }

    /// Waits for the next message.
    ///
    /// # Errors
    /// [`ChannelError`].
    pub fn receive(&self) -> Result<Message, ChannelError> {
        let mut bytes = [0; MESSAGE_LEN];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let (length, flags) = loop {
            let mut slices = [IoSliceMut::new(&mut bytes)];
            match recvmsg(&self.0, &mut slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                Ok(received) => break (received.bytes, received.flags),
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Err(ChannelError::Closed),
                Err(errno) => return Err(ChannelError::Socket(errno)),
            }
        };
        if length == 0 {
            return Err(ChannelError::Closed);
        }
        let mut descriptors: Vec<OwnedFd> = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        let [tag, number @ ..] = bytes;
        let number = u32::from_ne_bytes(number);
        if flags.contains(ReturnFlags::CTRUNC) {
            return Err(ChannelError::NoDescriptor);
        }
        match (length == MESSAGE_LEN, tag, descriptors.len()) {
            (true, TAG_LISTENER | TAG_DATAGRAMS, 1) => match u16::try_from(number) {
                Ok(port) if tag == TAG_DATAGRAMS => {
                    Ok(Message::Datagrams(port, descriptors.remove(0)))
                }
                Ok(port) => Ok(Message::Listener(port, descriptors.remove(0))),
                Err(_) => Err(ChannelError::Unexpected),
            },
            (true, TAG_OPENER, 1) => Ok(Message::Opener(descriptors.remove(0))),
            (true, TAG_WATCHER, 1) => Ok(Message::Watcher(descriptors.remove(0))),
            (true, TAG_MIRROR, 1) => Ok(Message::Mirror(descriptors.remove(0))),
            (true, TAG_PORT, 0) => Ok(Message::Port {
                port: number as u16,
                is_udp: number & 1 << UDP_BIT != 0,
                is_open: number & 1 << OPEN_BIT != 0,
            }),
            (true, TAG_READY, 1) => Ok(Message::Ready(number, descriptors.remove(0))),
            (true, TAG_GO, 0) => Ok(Message::Go),
            (true, TAG_STARTED, 1) => Ok(Message::Started(descriptors.remove(0))),
            (true, TAG_ENDED, 0) => Ok(Message::Ended(number.cast_signed())),
            (true, TAG_NATIVE, 3) => {
                let files = descriptors.try_into().map_err(|_| ChannelError::Unexpected)?;
                Ok(Message::Native(files))
            }
            (true, TAG_OPEN, 0) => Ok(Message::Open),
            (true, TAG_SOCKETS, _) => Ok(Message::Sockets(number, descriptors)),
            _ => Err(ChannelError::Unexpected),
        }
    }
}

impl From<OwnedFd> for Channel {
    /// Wraps an end of a pair that another process has handed over.
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> Self {
        channel.0
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until one of `descriptors` is readable or at its end; returns the index of the first such
/// descriptor, or `None` when `timeout` has passed.
///
/// # Errors
/// Those of poll(2).
pub fn wait_readable(
    descriptors: &[BorrowedFd<'_>],
    timeout: Option<Duration>,
) -> io::Result<Option<usize>> {
    let mut polled: Vec<PollFd<'_>> =
        descriptors.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let timeout = timeout.map(Timespec::try_from).transpose();
    let timeout = timeout.map_err(|_| io::ErrorKind::InvalidInput)?;
    retry_on_intr(|| poll(&mut polled, timeout.as_ref()))?;
    Ok(polled.iter().position(|fd| !fd.revents().is_empty()))
}

/// Most sockets in a message.
pub const SOCKETS_MAX: usize = 8;

const TAG_LISTENER: u8 = b'l';
const TAG_DATAGRAMS: u8 = b'd';
const TAG_OPENER: u8 = b'o';
const TAG_WATCHER: u8 = b'w';
const TAG_MIRROR: u8 = b'i';
const TAG_PORT: u8 = b'p';
const TAG_READY: u8 = b'r';
const TAG_GO: u8 = b'g';
const TAG_STARTED: u8 = b's';
const TAG_ENDED: u8 = b'e';
const TAG_NATIVE: u8 = b'n';
const TAG_OPEN: u8 = b'm';
const TAG_SOCKETS: u8 = b'k';
/// Bits of the number of a port, behind the port itself.
const UDP_BIT: u32 = 16;
const OPEN_BIT: u32 = 17;
/// Bytes of the tag and the number.
const MESSAGE_LEN: usize = 1 + 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_as_sent() {
        let (one, other) = Channel::pair().unwrap();
        let file = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        one.send(&Message::Listener(u16::MAX, file())).unwrap();
        one.send(&Message::Datagrams(53, file())).unwrap();
        one.send(&Message::Ready(7, file())).unwrap();
        let all = (0..SOCKETS_MAX).map(|_| file()).collect();
        one.send(&Message::Sockets(8, all)).unwrap();
        one.send(&Message::Go).unwrap();
        one.send(&Message::Started(file())).unwrap();
        one.send(&Message::Ended(-3)).unwrap();
        one.send(&Message::Opener(file())).unwrap();
        one.send(&Message::Watcher(file())).unwrap();
        let port = |is_udp, is_open| Message::Port { port: 65_534, is_udp, is_open };
        one.send(&port(true, false)).unwrap();
        one.send(&port(false, true)).unwrap();
        one.send(&Message::Native([file(), file(), file()])).unwrap();
        one.send(&Message::Open).unwrap();
        one.send(&Message::Sockets(4, vec![file(), file()])).unwrap();
        one.send(&Message::Sockets(6, Vec::new())).unwrap();
        assert!(matches!(other.receive(), Ok(Message::Listener(u16::MAX, _))));
        assert!(matches!(other.receive(), Ok(Message::Datagrams(53, _))));
        assert!(matches!(other.receive(), Ok(Message::Ready(7, _))));
        let all = other.receive();
        assert!(matches!(all, Ok(Message::Sockets(8, all)) if all.len() == SOCKETS_MAX));
        assert!(matches!(other.receive(), Ok(Message::Go)));
        assert!(matches!(other.receive(), Ok(Message::Started(_))));
        assert!(matches!(other.receive(), Ok(Message::Ended(-3))));
        assert!(matches!(other.receive(), Ok(Message::Opener(_))));
        assert!(matches!(other.receive(), Ok(Message::Watcher(_))));
        for (udp, open) in [(true, false), (false, true)] {
            let received = other.receive();
            let Ok(Message::Port { port: 65_534, is_udp, is_open }) = received else {
                panic!("{received:?}")
            };
            assert_eq!((is_udp, is_open), (udp, open));
        }
        assert!(matches!(other.receive(), Ok(Message::Native(_))));
        assert!(matches!(other.receive(), Ok(Message::Open)));
        assert!(matches!(other.receive(), Ok(Message::Sockets(4, sockets)) if sockets.len() == 2));
        assert!(matches!(other.receive(), Ok(Message::Sockets(6, sockets)) if sockets.is_empty()));
    }

    #[test]
    fn the_end_of_the_other_side_shows() {
        let (one, other) = Channel::pair().unwrap();
        drop(one);
        assert_eq!(other.receive().err(), Some(ChannelError::Closed));
        assert_eq!(other.send(&Message::Go).err(), Some(ChannelError::Closed));
    }

    #[test]
    fn other_messages_are_refused() {
        let (one, other) = Channel::pair().unwrap();
        rustix::net::send(&one, b"g", SendFlags::empty()).unwrap();
        assert_eq!(other.receive().err(), Some(ChannelError::Unexpected));
        rustix::net::send(&one, b"r\0\0\0\0", SendFlags::empty()).unwrap();
        assert_eq!(other.receive().err(), Some(ChannelError::Unexpected), "no descriptor");
    }
}
