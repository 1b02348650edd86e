//! Datagram sockets: UDP as Linux has it (`net/ipv4/udp.c`, `net/ipv6/udp.c`).
//!
//! # Theory of operation
//!
//! A socket of this kind is [`Phase::Datagram`]: a queue of received packets, what its errors
//! quote, and a place in the [`Table`] from the moment it has a port. A packet goes to the socket
//! that is connected to its flow, else to the one that is bound most closely; of several that share
//! a port by `SO_REUSEPORT` the hash of the flow chooses one.
//!
//! Received packets wait as they came, super-packets too: who did not ask for them (`UDP_GRO`)
//! reads them one datagram at a time. What is sent goes to the stack at once; a socket is full
//! while more than its send buffer waits for the device.
//!
//! One concern per file: this one opening, naming and ending, `table` who gets what, `send`,
//! `cork` of several calls, `lending` without copying, `receive`, `errors` ICMP, `raw` packets of
//! IP, `link` frames.
//!
//! # Limits
//!
//! Of one socket: its receive buffer, counted in the frames that its datagrams hold, and
//! [`DATAGRAMS_MAX`]. Of all: [`QUEUED_MAX`], and a quarter of the frames, so that sockets that
//! nobody reads leave memory to the others. What comes beyond is dropped and counted.

mod cork;
mod errors;
mod lending;
mod link;
mod options;
mod raw;
mod receive;
mod send;
mod table;

pub use cork::PENDING_MAX;
pub use errors::{ErrorNotice, Origin};
pub use lending::LENT_RANGES_MAX;
pub use link::{FrameKind, FrameSource, LinkDestination, PacketOptions};
pub use options::DatagramOptions;
pub use raw::RawOptions;
pub use receive::ReceivedDatagram;
pub use send::SendTo;
pub(super) use table::Table;

use super::{
    Error, Family, Phase, Readiness, Shutdown, Socket, SocketId, Sockets, from_family, ports,
    to_family,
};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use cork::Pending;
use errors::Quote;
use link::PacketSocket;
use ports::{Space, unspecified};
use receive::Queued;

/// Most datagrams or super-packets that wait at one socket: as many as the default receive buffer
/// holds of small frames, and as many again.
pub const DATAGRAMS_MAX: usize = 256;
/// Most that wait at all sockets: a quarter of the packet handles of a worker.
pub const QUEUED_MAX: usize = 1024;
/// Receive buffer in bytes unless set (Linux's `net.core.rmem_default`).
pub const RECEIVE_BUFFER_DEFAULT: u32 = 212_992;
/// Send buffer in bytes unless set (Linux's `net.core.wmem_default`).
pub const SEND_BUFFER_DEFAULT: u32 = 212_992;

/// What a datagram socket has beside what every socket has.
#[derive(Default)]
pub(super) struct Datagrams {
    queue: VecDeque<Queued>,
    /// It takes packets of IP, not of UDP.
    raw: Option<Box<RawOptions>>,
    /// It takes frames.
    link: Option<Box<PacketSocket>>,
    /// What the errors in the error queue quote, in their order.
    errors: VecDeque<Quote>,
    /// A datagram that waits for more.
    pending: Option<Box<Pending>>,
    /// Bytes that both queues hold.
    held: usize,
    /// Datagrams for which there was no room.
    dropped: u32,
    /// Bytes sent since the device last took all.
    sent: usize,
    /// When that was, by [`crate::stack::Stack::emptied_count`].
    sent_at: u64,
    /// Somebody found it full, and is to be told when it is not.
    full: bool,
}

impl Socket {
    /// The protocol whose ports it uses.
    pub(super) fn space(&self) -> Space {
        if matches!(self.phase, Phase::Datagram(_)) { Space::Udp } else { Space::Tcp }
    }

    pub(super) fn datagrams(&self) -> Result<&Datagrams, Error> {
        match &self.phase {
            Phase::Datagram(datagrams) => Ok(datagrams),
            _ => Err(Error::NotSupported),
        }
    }

    fn datagrams_mut(&mut self) -> Result<&mut Datagrams, Error> {
        match &mut self.phase {
            Phase::Datagram(datagrams) => Ok(datagrams),
            _ => Err(Error::NotSupported),
        }
    }
}

impl Sockets {
    /// A UDP socket.
    pub fn datagram(&mut self, family: Family) -> Result<SocketId, Error> {
        let id = self.insert(family, self.defaults)?;
        self.socket_mut(id)?.phase = Phase::Datagram(Box::default());
        Ok(id)
    }

    /// True if the socket is one of datagrams.
    pub fn is_datagram(&self, id: SocketId) -> bool {
        self.socket(id).is_ok_and(|socket| matches!(socket.phase, Phase::Datagram(_)))
    }

    /// Payload bytes of each datagram of a call; zero if what it sends is not cut, as packets of
    /// raw and packet sockets never are.
    pub fn segment_size(&self, id: SocketId, send: &SendTo) -> Result<u16, Error> {
        let socket = self.socket(id)?;
        let datagrams = socket.datagrams()?;
        let is_udp = datagrams.raw.is_none() && datagrams.link.is_none();
        let size = send.segment_size.unwrap_or(socket.options.datagram.segment_size);
        Ok(if is_udp { size } else { 0 })
    }

    /// Datagrams that came and found no room.
    pub fn dropped_datagrams(&self, id: SocketId) -> Result<u32, Error> {
        Ok(self.socket(id)?.datagrams()?.dropped)
    }

    /// Chooses a port if there is none yet (Linux's inet_autobind), as sending and connecting do
    /// before all else.
    pub fn bind_by_itself(&mut self, id: SocketId) -> Result<(), Error> {
        let socket = self.socket(id)?;
        if socket.used.is_some() || self.is_raw(id) || self.packet_options(id).is_some() {
            return Ok(());
        }
        let address = to_family(socket.local, socket.family);
        self.bind(id, address).map_err(|_| Error::WouldBlock)
    }

    /// Names the one peer (Linux's ip4_datagram_connect and ip6_datagram_connect).
    pub(super) fn connect_datagram(&mut self, id: SocketId, to: SocketAddr) -> Result<(), Error> {
        self.refuse_packet(id)?;
        self.bind_by_itself(id)?;
        let socket = self.socket(id)?;
        let remote = from_family(to, socket)?;
        self.check_remote(socket, remote.ip())?;
        let bound = if self.is_raw(id) { Some(socket.local.ip()) } else { None };
        let source = match bound.or(socket.used.map(|used| used.address)) {
            Some(bound) if !bound.is_unspecified() => bound,
            _ => self.stack.source_for(remote.ip()).ok_or(Error::NetworkUnreachable)?,
        };
        if source.is_ipv4() != remote.is_ipv4() {
            return Err(Error::NetworkUnreachable);
        }
        self.leave_table(id);
        let socket = self.socket_mut(id)?;
        socket.local.set_ip(source);
        socket.remote = Some(remote);
        self.enter_table(id);
        Ok(())
    }

    /// Whether datagrams may go to an address: not to several hosts, which there is no way to.
    fn check_remote(&self, socket: &Socket, remote: IpAddr) -> Result<(), Error> {
        if remote == IpAddr::V4(Ipv4Addr::BROADCAST) && !socket.options.datagram.broadcast {
            return Err(Error::AccessDenied);
        }
        let several = remote.is_multicast() || remote == IpAddr::V4(Ipv4Addr::BROADCAST);
        if several || remote.is_unspecified() { Err(Error::NetworkUnreachable) } else { Ok(()) }
    }

    /// Forgets the peer, and what was chosen because of it (Linux's __udp_disconnect).
    pub(super) fn disconnect_datagram(&mut self, id: SocketId) -> Result<(), Error> {
        self.refuse_packet(id)?;
        self.leave_table(id);
        let socket = self.socket_mut(id)?;
        socket.remote = None;
        let Some(used) = socket.used else {
            if !socket.port_chosen {
                socket.local.set_ip(unspecified(socket.family));
            }
            return Ok(());
        };
        if socket.port_chosen {
            socket.local.set_ip(used.address);
            self.enter_table(id);
            return Ok(());
        }
        socket.used = None;
        let port = socket.local.port();
        let kept =
            if used.address.is_unspecified() { unspecified(socket.family) } else { used.address };
        socket.local = SocketAddr::new(kept, 0);
        self.ports.remove(Space::Udp, port, used);
        Ok(())
    }

    /// Ends directions. As in Linux they end even if the answer is that there is no peer.
    pub(super) fn shutdown_datagram(&mut self, id: SocketId, how: Shutdown) -> Result<(), Error> {
        self.refuse_packet(id)?;
        let socket = self.socket_mut(id)?;
        socket.read_shut |= how != Shutdown::Write;
        socket.write_shut |= how != Shutdown::Read;
        let connected = socket.remote.is_some();
        self.wake(id, Readiness::ALL);
        if connected { Ok(()) } else { Err(Error::NotConnected) }
    }

    /// Forgets what waits at a socket that ends.
    pub(super) fn close_datagram(&mut self, id: SocketId) {
        self.leave_table(id);
        self.close_raw(id);
        self.close_packet(id);
        // Only datagram sockets have one.
        let _ = self.take_pending(id);
        let Ok(datagrams) = self.socket(id).and_then(Socket::datagrams) else { return };
        let count = datagrams.queue.len() + datagrams.errors.len();
        let held = datagrams.held;
        self.datagrams.release(count, held);
    }

    /// What holds for a socket now (Linux's datagram_poll).
    pub(super) fn datagram_readiness(
        &self,
        id: SocketId,
        socket: &Socket,
        datagrams: &Datagrams,
    ) -> Readiness {
        let mut ready = Readiness::NONE;
        let error = socket.error.is_some() || !socket.notices.is_empty();
        ready.set(Readiness::ERR, error);
        ready.set(Readiness::READABLE | Readiness::READ_HUP, socket.read_shut);
        ready.set(Readiness::HUP, socket.read_shut && socket.write_shut);
        ready.set(Readiness::READABLE, !datagrams.queue.is_empty());
        let room = self.sent_waiting(datagrams) < send_buffer(socket) / 2;
        let sends = room && !self.lacks_frame(id, socket);
        ready.set(Readiness::WRITABLE | Readiness::WRITE_BAND, sends);
        ready
    }
}

/// The size of a socket's send buffer.
fn send_buffer(socket: &Socket) -> usize {
    socket.options.send_buffer.unwrap_or(SEND_BUFFER_DEFAULT) as usize
}

/// The size of a socket's receive buffer.
pub(super) fn receive_buffer(socket: &Socket) -> usize {
    socket.options.receive_buffer.unwrap_or(RECEIVE_BUFFER_DEFAULT) as usize
}
