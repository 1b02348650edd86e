//! Sockets inside a network namespace for the ports on which the host's loopback listens.
//!
//! # Theory of operation
//!
//! A process inside the namespace, the *mirror*, reads the host's tables of TCP and UDP sockets
//! every [`INTERVAL`]; they were opened outside, and show the host wherever they are read. For each
//! port that begins to listen, the mirror asks towpath, which answers unless the port is its own: a
//! connection there would come back inside. After the answer the mirror reads the table again, as
//! the port may have been towpath's until then. Then it listens on that port of both loopback
//! addresses, and hands the sockets over. It reports when the port of the host closes. A port that
//! a program inside uses is tried again at the next look.
//!
//! At most [`ASKED_MAX`] questions are open at a time, so towpath never waits for the mirror to
//! read an answer. A program inside that runs as the same user may kill the mirror: then ports stay
//! as they are. It cannot trace it or send in its name.
//!
//! Limits: [`MIRRORED_MAX`], [`ASKED_MAX`].

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use super::channel::{Channel, ChannelError, Message, wait_readable};
use super::init::release_standard_streams;
use super::listening::{INTERVAL, Ports, Reach, Tables, Wanted};
use crate::process_sys::{Forked, end_with_only, fork_into};
use crate::socket::{TcpListener, UdpSocket};

/// Most ports that are listened on.
pub const MIRRORED_MAX: usize = 256;
/// Most ports that are asked about at a look: the socket of the channel holds more messages.
pub const ASKED_MAX: usize = 64;

/// The host's tables of sockets.
pub struct HostTables {
    tables: Tables,
    wanted: Wanted,
}

impl HostTables {
    /// Opens the tables of the current network namespace, of one protocol or both. The ports of
    /// each do not count.
    ///
    /// # Errors
    /// Those of opening files in /proc; [`io::ErrorKind::InvalidInput`] without a protocol.
    pub fn open(except: Option<Vec<u16>>, except_udp: Option<Vec<u16>>) -> io::Result<Self> {
        let (tcp, udp) = (except.is_some(), except_udp.is_some());
        if !(tcp || udp) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (except, except_udp) = (except.unwrap_or_default(), except_udp.unwrap_or_default());
        let wanted = Wanted { tcp, udp, reach: Reach::Loopback, except, except_udp };
        Ok(Self { tables: Tables::open(&wanted)?, wanted })
    }

    /// Returns the ports of TCP and of UDP.
    fn read(&self) -> Result<[Ports; 2], ChannelError> {
        self.tables.read(&self.wanted).map_err(|_| ChannelError::Unexpected)
    }
}

/// Starts the mirror in the current network namespace, with the host's tables. The process must
/// have one thread.
///
/// # Errors
/// Those of fork.
pub fn start(channel: &Channel, host: &HostTables) -> io::Result<()> {
    const NO_NAMESPACES: i32 = 0;
    if let Forked::Child = fork_into(NO_NAMESPACES)? {
        let [a, b, c, d] = host.tables.files();
        end_with_only([channel.as_fd(), a, b, c, d], || {
            i32::from(Mirror::new(channel, host).run().is_err())
        });
    }
    Ok(())
}

/// The state of the mirror.
struct Mirror<'a> {
    channel: &'a Channel,
    host: &'a HostTables,
    /// Ports of TCP and of UDP that were asked about, until the host's port closes.
    asked: [Ports; 2],
    /// Ports whose sockets were handed over.
    held: [Ports; 2],
    held_count: usize,
}

impl<'a> Mirror<'a> {
    fn new(channel: &'a Channel, host: &'a HostTables) -> Self {
        let none = || [Ports::none(), Ports::none()];
        Self { channel, host, asked: none(), held: none(), held_count: 0 }
    }

    /// Runs until towpath closes its end of the channel.
    fn run(mut self) -> Result<(), ChannelError> {
        let failed = |_| ChannelError::Unexpected;
        release_standard_streams().map_err(failed)?;
        set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(ChannelError::Socket)?;
        loop {
            match self.look().and_then(|()| self.answers()) {
                Err(ChannelError::Closed) => return Ok(()),
                result => result?,
            }
        }
    }

    /// Reports ports of the host that have closed, and asks about new ones.
    fn look(&mut self) -> Result<(), ChannelError> {
        let now = self.host.read()?;
        for (is_udp, now) in [false, true].into_iter().zip(&now) {
            let protocol = usize::from(is_udp);
            let before = self.asked[protocol].clone();
            for (port, _) in before.changes(now).filter(|(_, is_open)| !is_open) {
                self.asked[protocol].remove(port);
                if self.held[protocol].has(port) {
                    self.held[protocol].remove(port);
                    self.held_count -= 1;
                    self.tell(port, is_udp, false)?;
                }
            }
        }
        let mut room = (MIRRORED_MAX - self.held_count).min(ASKED_MAX);
        for (is_udp, now) in [false, true].into_iter().zip(&now) {
            let protocol = usize::from(is_udp);
            let before = self.asked[protocol].clone();
            for (port, _) in before.changes(now).filter(|(_, is_open)| *is_open).take(room) {
                self.asked[protocol].add(port);
                self.tell(port, is_udp, true)?;
                room -= 1;
            }
        }
        Ok(())
    }

    /// Listens on ports for which an answer comes, until the next look is due.
    fn answers(&mut self) -> Result<(), ChannelError> {
        for _ in 0..=ASKED_MAX {
            let ready = wait_readable(&[self.channel.as_fd()], Some(INTERVAL));
            if ready.map_err(|_| ChannelError::Unexpected)?.is_none() {
                break;
            }
            match self.channel.receive()? {
                Message::Port { port, is_udp, is_open: true } => self.listen(port, is_udp)?,
                _ => return Err(ChannelError::Unexpected),
            }
        }
        Ok(())
    }

    /// Listens on a port, unless the host's has closed or a program inside uses it.
    fn listen(&mut self, port: u16, is_udp: bool) -> Result<(), ChannelError> {
        let (now, protocol) = (self.host.read()?, usize::from(is_udp));
        let sockets = match now[protocol].has(port) && self.held_count < MIRRORED_MAX {
            true => listen_on(port, is_udp),
            false => Vec::new(),
        };
        if sockets.is_empty() {
            // It is asked about again at the next look, if the host still listens.
            self.asked[protocol].remove(port);
            return Ok(());
        }
        for socket in sockets {
            self.channel.send(&socket)?;
        }
        self.held[protocol].add(port);
        self.held_count += 1;
        Ok(())
    }

    fn tell(&self, port: u16, is_udp: bool, is_open: bool) -> Result<(), ChannelError> {
        self.channel.send(&Message::Port { port, is_udp, is_open })
    }
}

/// Listens on a port of both loopback addresses; returns the messages with the sockets. There is
/// none if the port is in use at one of them, and one if there is only one IP version.
fn listen_on(port: u16, is_udp: bool) -> Vec<Message> {
    let mut sockets = Vec::new();
    for address in [IpAddr::V4(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
        let at = SocketAddr::new(address, port);
        let socket = match is_udp {
            true => UdpSocket::bind(at, None).map(|bound| Message::Datagrams(port, bound.into())),
            false => TcpListener::bind(at, None).map(|bound| Message::Listener(port, bound.into())),
        };
        match socket {
            Ok(socket) => sockets.push(socket),
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {}
            Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => {}
            Err(_) => return Vec::new(),
        }
    }
    sockets
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: nothing is listened on where a program uses the port, or where the host's port has
    /// closed since the question; the end of a port that was handed over is reported.
    ///
    /// Method: the host and the inside are the same namespace, so a port of the host is in use
    /// inside.
    #[test]
    fn ports_that_are_in_use_or_closed() {
        let open = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let open = (open.local_addr().unwrap().port(), open);
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
        let closed = closed.unwrap().port();
        let (ours, theirs) = Channel::pair().unwrap();
        let tables = HostTables::open(Some(Vec::new()), None).unwrap();
        assert!(tables.read().unwrap()[0].has(open.0));
        let mut mirror = Mirror::new(&theirs, &tables);
        for port in [open.0, closed] {
            mirror.asked[0].add(port);
            mirror.listen(port, false).unwrap();
            assert!(!mirror.asked[0].has(port) && mirror.held_count == 0);
        }
        mirror.asked[0].add(closed);
        mirror.held[0].add(closed);
        mirror.held_count = 1;
        mirror.look().unwrap();
        let told = ours.receive().unwrap();
        let is_end = matches!(told, Message::Port { port, is_open: false, .. } if port == closed);
        assert!(is_end && mirror.held_count == 0, "{told:?}");
        let messages = listen_on(closed, true);
        assert!(matches!(messages[0], Message::Datagrams(port, _) if port == closed));
        assert!(listen_on(closed, true).is_empty(), "the port is in use");
        let except = HostTables::open(Some(vec![open.0]), Some(Vec::new())).unwrap();
        assert!(!except.read().unwrap()[0].has(open.0));
        assert!(HostTables::open(None, None).is_err());
    }
}
