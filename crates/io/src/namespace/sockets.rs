//! Sockets of a namespace that this process is not in.
//!
//! # Theory of operation
//!
//! A socket belongs to the network namespace in which it was opened, whoever uses it. A process
//! inside, the *opener*, does nothing but open TCP sockets when it is asked for some, and hand them
//! over. Towpath keeps a few of them, and asks for more before they run out. One message asks and
//! one answers, so neither side ever waits for the other to read.
//!
//! The opener ends when towpath's end of the channel closes. A program inside runs as the same user
//! and may kill or stop it: then there are no more sockets, and whoever wanted one does without. It
//! cannot look into it or send in its name: the kernel does not let it be traced.
//!
//! The opener is a process with one thread; [`SocketSource`] belongs to one thread.
//!
//! Limits: [`KEPT_MAX`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use super::channel::{Channel, ChannelError, Message, QUEUES_MAX};
use super::init::release_standard_streams;
use crate::socket::UnconnectedTcp;

/// Most sockets that wait for a use.
pub const KEPT_MAX: usize = 4 * QUEUES_MAX;

/// The opener: serves until the other end of `channel` closes.
///
/// # Errors
/// Those of the channel and of giving up standard streams. The caller ends in any case.
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

/// As many as a message takes, or as can be opened.
fn open_some() -> Message {
    let (kind, open): (_, fn() -> io::Result<OwnedFd>) = match open_dual() {
        Ok(_) => (DUAL, open_dual),
        Err(_) => (IPV4_ONLY, || open(AddressFamily::INET)),
    };
    Message::Sockets(kind, (0..QUEUES_MAX).map_while(|_| open().ok()).collect())
}

/// A socket for both families.
fn open_dual() -> io::Result<OwnedFd> {
    let socket = open(AddressFamily::INET6)?;
    sockopt::set_ipv6_v6only(&socket, false)?;
    Ok(socket)
}

fn open(family: AddressFamily) -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(family, SocketType::STREAM, flags, None)?)
}

/// Where towpath has them from.
#[derive(Debug)]
pub struct SocketSource {
    channel: Channel,
    kept: Vec<UnconnectedTcp>,
    /// An answer is due.
    asked: bool,
}

impl SocketSource {
    /// Has sockets from the opener at the other end. Waits for the first of them.
    ///
    /// # Errors
    /// [`ChannelError`].
    pub fn new(channel: Channel) -> Result<Self, ChannelError> {
        let mut source = Self { channel, kept: Vec::new(), asked: false };
        source.ask()?;
        source.receive()?;
        Ok(source)
    }

    /// A socket of the namespace, if one is there; sees to it that more come.
    pub fn take(&mut self) -> Option<UnconnectedTcp> {
        let socket = self.kept.pop();
        // Without an opener there are none, which `receive` tells.
        let _ = self.ask();
        socket
    }

    /// Takes what has come. Call it when the channel is readable.
    ///
    /// # Errors
    /// [`ChannelError`]: no more will come. That there was no descriptor for them is no error; they
    /// are asked for again when one is taken.
    pub fn receive(&mut self) -> Result<(), ChannelError> {
        let received = self.channel.receive();
        self.asked = false;
        match received {
            Ok(Message::Sockets(kind @ (DUAL | IPV4_ONLY), sockets)) => {
                let came = sockets.len();
                let sockets = sockets.into_iter();
                self.kept.extend(sockets.map(|fd| UnconnectedTcp::new(fd, kind == DUAL)));
                // Who could open none is not asked again at once.
                if came == 0 { Ok(()) } else { self.ask() }
            }
            Err(ChannelError::NoDescriptor) => Ok(()),
            Ok(_) => Err(ChannelError::Unexpected),
            Err(error) => Err(error),
        }
    }

    /// Closes the sockets that wait for a use.
    pub fn release(&mut self) {
        self.kept.clear();
    }

    /// Asks for more, if there is room and none are due.
    fn ask(&mut self) -> Result<(), ChannelError> {
        if !self.asked && self.kept.len() + QUEUES_MAX <= KEPT_MAX {
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

/// Kinds of sockets: for both families, or for IPv4 where the kernel has no IPv6.
const DUAL: u32 = 46;
const IPV4_ONLY: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::net::{Ipv4Addr, SocketAddr};
    use std::os::fd::AsRawFd;
    use std::thread;

    /// Goal: sockets are there at once, connect, and come again as they are used; the opener ends
    /// with its source.
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
                assert!(source.asked, "else no more would come");
                source.receive().unwrap();
            }
            let socket = source.take().expect("one of a message");
            let (socket, _) = socket.connect(address).unwrap();
            assert_eq!(listener.accept().unwrap().1.ip(), address.ip());
            used.push(socket);
        }
        let numbers: HashSet<_> = used.iter().map(|socket| socket.as_fd().as_raw_fd()).collect();
        assert_eq!(numbers.len(), 2 * KEPT_MAX, "each is given once");
        drop(source);
        opener.join().unwrap().unwrap();
    }

    /// Goal: no more are kept than there may be, and those that wait can be given up.
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
        assert_eq!(source.kept.len(), QUEUES_MAX);
        drop(source);
        opener.join().unwrap().unwrap();
    }

    /// Goal: an opener that misbehaves or has gone is an error, one that can open nothing is not.
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
