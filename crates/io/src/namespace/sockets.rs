//! Sockets that belong to a network namespace that this process is not in.
//!
//! # Theory of operation
//!
//! A socket belongs to the network namespace in which it was opened, whichever process uses it. A
//! process inside the namespace, the *opener*, only opens TCP sockets on request and hands them
//! over. towpath keeps a few of them in reserve and requests more before they run out. Each request
//! and each answer is one message, so neither side ever waits for the other to read.
//!
//! The opener ends when towpath closes its end of the channel. A program inside the namespace runs
//! as the same user and may kill or stop the opener: then there are no more sockets, and callers do
//! without. The program cannot inspect the opener or send in its name, because the opener cannot be
//! traced.
//!
//! The opener is a process with one thread; one thread owns a [`SocketSource`].
//!
//! Limit: [`KEPT_MAX`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use super::channel::{Channel, ChannelError, Message, SOCKETS_MAX};
use super::init::release_standard_streams;
use crate::socket::UnconnectedTcp;

/// Most sockets kept in reserve.
pub const KEPT_MAX: usize = 4 * SOCKETS_MAX;

/// Runs the opener: answers requests until the other end of `channel` closes.
///
/// # Errors
/// Those of the channel and of releasing standard streams. The caller ends in any case.
pub fn open_for(channel: &Channel) -> io::Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    release_standard_streams()?;
    answer(channel)
}

fn answer(channel: &Channel) -> io::Result<()> {
    loop {
        match channel.receive() {
            Ok(Message::Open) => {}
            Err(ChannelError::Closed) => return Ok(()),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
        match channel.send(&open_some()) {
            Ok(()) => {}
            Err(ChannelError::Closed) => return Ok(()),
            Err(error) => return Err(io::Error::other(error)),
        }
    }
}

/// Opens as many sockets as fit into a message, or as can be opened.
fn open_some() -> Message {
    let (kind, open): (_, fn() -> io::Result<OwnedFd>) = match open_dual() {
        Ok(_) => (DUAL, open_dual),
        Err(_) => (IPV4_ONLY, || open(AddressFamily::INET)),
    };
    Message::Sockets(kind, (0..SOCKETS_MAX).map_while(|_| open().ok()).collect())
}

/// Opens a socket for IPv6 and IPv4.
fn open_dual() -> io::Result<OwnedFd> {
    let socket = open(AddressFamily::INET6)?;
    sockopt::set_ipv6_v6only(&socket, false)?;
    Ok(socket)
}

fn open(family: AddressFamily) -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(family, SocketType::STREAM, flags, None)?)
}

/// towpath's reserve of the opener's sockets.
#[derive(Debug)]
pub struct SocketSource {
    channel: Channel,
    kept: Vec<UnconnectedTcp>,
    /// A request is outstanding.
    asked: bool,
}

impl SocketSource {
    /// Uses the opener at the other end of the channel. Waits for its first sockets.
    ///
    /// # Errors
    /// [`ChannelError`].
    pub fn new(channel: Channel) -> Result<Self, ChannelError> {
        let mut source = Self { channel, kept: Vec::new(), asked: false };
        source.ask()?;
        source.receive()?;
        Ok(source)
    }

    /// Takes a socket of the namespace, if one is in reserve, and requests more if needed.
    pub fn take(&mut self) -> Option<UnconnectedTcp> {
        let socket = self.kept.pop();
        // An error means that the opener has gone, which `receive` reports.
        let _ = self.ask();
        socket
    }

    /// Receives an answer of the opener. Call it when the channel is readable.
    ///
    /// # Errors
    /// [`ChannelError`]: there will be no more sockets. It is no error if this process had no
    /// descriptors left for them; they are requested again when one is taken.
    pub fn receive(&mut self) -> Result<(), ChannelError> {
        let received = self.channel.receive();
        self.asked = false;
        match received {
            Ok(Message::Sockets(kind @ (DUAL | IPV4_ONLY), sockets)) => {
                let came = sockets.len();
                let sockets = sockets.into_iter();
                self.kept.extend(sockets.map(|fd| UnconnectedTcp::new(fd, kind == DUAL)));
                // An opener that could open none is not asked again at once.
                if came == 0 { Ok(()) } else { self.ask() }
            }
            Err(ChannelError::NoDescriptor) => Ok(()),
            Ok(_) => Err(ChannelError::Unexpected),
            Err(error) => Err(error),
        }
    }

    /// Closes the sockets in reserve.
    pub fn release(&mut self) {
        self.kept.clear();
    }

    /// Requests sockets, if there is room and no request is outstanding.
    fn ask(&mut self) -> Result<(), ChannelError> {
        if !self.asked && self.kept.len() + SOCKETS_MAX <= KEPT_MAX {
            self.channel.send(&Message::Open)?;
            self.asked = true;
        }
        Ok(())
    }
}

impl AsFd for SocketSource {
    /// Readable when [`receive`](Self::receive) has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// Kinds of sockets: for IPv6 and IPv4, or for IPv4 only where the kernel has no IPv6.
const DUAL: u32 = 46;
const IPV4_ONLY: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::net::{Ipv4Addr, SocketAddr};
    use std::os::fd::AsRawFd;
    use std::thread;

    /// Goal: sockets are available at once, connect, and are replaced as they are used; the opener
    /// ends with its source.
    #[test]
    fn sockets_come_as_they_are_used() {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        let (ours, theirs) = Channel::pair().unwrap();
        let opener = thread::spawn(move || answer(&theirs));
        let mut source = SocketSource::new(ours).unwrap();
        let mut used = Vec::new();
        for _ in 0..2 * KEPT_MAX {
            if source.kept.is_empty() {
                assert!(source.asked, "a request is outstanding");
                source.receive().unwrap();
            }
            let socket = source.take().expect("a socket in reserve");
            let (socket, _) = socket.connect(address).unwrap();
            assert_eq!(listener.accept().unwrap().1.ip(), address.ip());
            used.push(socket);
        }
        let numbers: HashSet<_> = used.iter().map(|socket| socket.as_fd().as_raw_fd()).collect();
        assert_eq!(numbers.len(), 2 * KEPT_MAX, "each is handed out once");
        drop(source);
        opener.join().unwrap().unwrap();
    }

    /// Goal: no more than the limit are kept, and the reserve can be closed.
    #[test]
    fn few_are_kept() {
        let (ours, theirs) = Channel::pair().unwrap();
        let opener = thread::spawn(move || answer(&theirs));
        let mut source = SocketSource::new(ours).unwrap();
        while source.asked {
            source.receive().unwrap();
        }
        assert_eq!(source.kept.len(), KEPT_MAX);
        source.release();
        assert!(source.take().is_none() && source.asked);
        source.receive().unwrap();
        assert_eq!(source.kept.len(), SOCKETS_MAX);
        drop(source);
        opener.join().unwrap().unwrap();
    }

    /// Goal: an opener that misbehaves or has gone is an error; one that can open no socket is not.
    #[test]
    fn openers_may_fail() {
        let (ours, theirs) = Channel::pair().unwrap();
        theirs.send(&Message::Sockets(DUAL, Vec::new())).unwrap();
        let mut source = SocketSource::new(ours).unwrap();
        assert!(!source.asked);
        assert!(source.take().is_none());
        assert!(source.asked);
        theirs.send(&Message::Sockets(7, Vec::new())).unwrap();
        assert_eq!(source.receive().err(), Some(ChannelError::Unexpected));
        drop(theirs);
        assert_eq!(source.receive().err(), Some(ChannelError::Closed));
        assert!(source.take().is_none());

        let (ours, theirs) = Channel::pair().unwrap();
        ours.send(&Message::Go).unwrap();
        assert_eq!(answer(&theirs).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
