//! Datagram sockets: UDP with the semantics of Linux.
//!
//! # Theory of operation
//!
//! A datagram socket is [`Phase::Datagram`]: a queue of received packets, the packets that its
//! errors quote, and an entry in the [`Table`] once it has a port. A packet goes to the socket that
//! is connected to its flow, else to the most specific bound socket. Among several sockets that
//! share a port by `SO_REUSEPORT`, the hash of the flow chooses one.
//!
//! Received packets are queued as they came, super-packets included. A socket without `UDP_GRO`
//! reads them one datagram at a time. Sent datagrams go to the stack at once. A socket is full
//! while more than its send buffer waits for the device.
//!
//! One concern per file: this one opens, binds, connects and closes; `table` (which socket gets a
//! packet), `send`, `cork` (datagrams of several calls), `lending` (sends without a copy),
//! `receive`, `multicast` (groups), `errors` (ICMP), `raw` (IP packets), `link` (frames).
//!
//! # Limits
//!
//! Each socket has its receive buffer, charged with the frames that its datagrams hold, and
//! [`DATAGRAMS_MAX`]. All sockets together have [`QUEUED_MAX`] and a quarter of the frames, so that
//! sockets without a reader leave memory to others. Packets beyond a limit are dropped and counted.

mod cork;
mod errors;
mod filling;
mod lending;
mod link;
mod multicast;
mod options;
mod raw;
mod receive;
mod send;
mod table;

pub use cork::PENDING_MAX;
pub use errors::{ErrorNotice, Origin};
pub use lending::LENT_RANGES_MAX;
pub use link::{FrameKind, FrameSource, LinkDestination, PacketOptions};
pub use multicast::{MEMBERSHIPS_MAX, MulticastOptions};
pub use options::DatagramOptions;
pub use raw::RawOptions;
pub use receive::ReceivedDatagram;
pub use send::SendTo;
pub(super) use table::Table;

use super::{
    Error, Family, Phase, Readiness, Shutdown, Socket, SocketId, Sockets, from_family, ports,
};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use cork::Pending;
use errors::Quote;
use link::PacketSocket;
use ports::{Space, unspecified};
use receive::Queued;

/// Maximum number of datagrams or super-packets queued at one socket: more than twice what the
/// default receive buffer holds of small frames.
pub const DATAGRAMS_MAX: usize = 256;
/// Maximum number queued at all sockets: a quarter of a worker's packet handles.
pub const QUEUED_MAX: usize = 1024;
/// Default receive buffer in bytes (Linux's `net.core.rmem_default`).
pub const RECEIVE_BUFFER_DEFAULT: u32 = 212_992;
/// Default send buffer in bytes (Linux's `net.core.wmem_default`).
pub const SEND_BUFFER_DEFAULT: u32 = 212_992;

/// State that only datagram sockets have.
#[derive(Default)]
pub(super) struct Datagrams {
    queue: VecDeque<Queued>,
    /// Set for a raw socket, which receives IP packets.
    raw: Option<Box<RawOptions>>,
    /// Set for a packet socket, which receives frames.
    link: Option<Box<PacketSocket>>,
    /// Packets that the errors in the error queue quote, in the same order.
    errors: VecDeque<Quote>,
    /// Datagram that waits for more data.
    pending: Option<Box<Pending>>,
    /// Multicast groups that the socket has joined.
    memberships: Vec<IpAddr>,
    /// Bytes that `queue` and `errors` hold.
    held: usize,
    /// Datagrams dropped for lack of room.
    dropped: u32,
    /// Bytes sent since the device last took everything.
    sent: usize,
    /// When that was: a value of [`crate::stack::Stack::emptied_count`].
    sent_at: u64,
    /// The socket was full and must be woken when it is not.
    full: bool,
}

impl Socket {
    /// The port space of the socket.
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
    /// Creates a UDP socket.
    pub fn datagram(&mut self, family: Family) -> Result<SocketId, Error> {
        let id = self.insert(family, self.defaults)?;
        self.socket_mut(id)?.phase = Phase::Datagram(Box::default());
        Ok(id)
    }

    /// True if the socket is a datagram socket (UDP, raw or packet).
    pub fn is_datagram(&self, id: SocketId) -> bool {
        self.socket(id).is_ok_and(|socket| matches!(socket.phase, Phase::Datagram(_)))
    }

    /// Payload bytes of each datagram of a call; zero if the payload is not segmented, which is
    /// always so for raw and packet sockets.
    pub fn segment_size(&self, id: SocketId, send: &SendTo) -> Result<u16, Error> {
        let socket = self.socket(id)?;
        let datagrams = socket.datagrams()?;
        let is_udp = datagrams.raw.is_none() && datagrams.link.is_none();
        let size = send.segment_size.unwrap_or(socket.options.datagram.segment_size);
        Ok(if is_udp { size } else { 0 })
    }

    /// Number of received datagrams dropped for lack of room.
    #[cfg(test)]
    pub(super) fn dropped_datagrams(&self, id: SocketId) -> Result<u32, Error> {
        Ok(self.socket(id)?.datagrams()?.dropped)
    }

    /// Chooses an ephemeral port if the socket has none, as sending and connecting do first.
    pub fn bind_by_itself(&mut self, id: SocketId) -> Result<(), Error> {
        let socket = self.socket(id)?;
        if socket.used.is_some() || self.is_raw(id) || self.packet_options(id).is_some() {
            return Ok(());
        }
        self.take_port(id, socket.local).map_err(|_| Error::WouldBlock)
    }

    /// Sets the socket's peer (udp(7), connect(2)).
    pub(super) fn connect_datagram(&mut self, id: SocketId, to: SocketAddr) -> Result<(), Error> {
        self.refuse_packet(id)?;
        self.bind_by_itself(id)?;
        let socket = self.socket(id)?;
        let remote = from_family(to, socket)?;
        self.check_remote(socket, remote.ip())?;
        let bound = if self.is_raw(id) { Some(socket.local.ip()) } else { None };
        let source = match bound.or(socket.used.map(|used| used.address)) {
            Some(bound) if !bound.is_unspecified() => bound,
            _ => self.unbound_source(socket, remote.ip())?,
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

    /// Checks that datagrams may go to an address; broadcast has no route.
    fn check_remote(&self, socket: &Socket, remote: IpAddr) -> Result<(), Error> {
        if remote == IpAddr::V4(Ipv4Addr::BROADCAST) && !socket.options.datagram.broadcast {
            return Err(Error::AccessDenied);
        }
        let is_broadcast = remote == IpAddr::V4(Ipv4Addr::BROADCAST);
        if is_broadcast || remote.is_unspecified() {
            Err(Error::NetworkUnreachable)
        } else {
            Ok(())
        }
    }

    /// Removes the peer, and the address and port that were chosen automatically.
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

    /// Ends directions. They end even if the result is [`Error::NotConnected`].
    pub(super) fn shutdown_datagram(&mut self, id: SocketId, how: Shutdown) -> Result<(), Error> {
        self.refuse_packet(id)?;
        let socket = self.socket_mut(id)?;
        socket.read_shut |= how != Shutdown::Write;
        socket.write_shut |= how != Shutdown::Read;
        let connected = socket.remote.is_some();
        self.wake(id, Readiness::ALL);
        if connected { Ok(()) } else { Err(Error::NotConnected) }
    }

    /// Drops what is queued at a socket that is closed.
    pub(super) fn close_datagram(&mut self, id: SocketId) {
        self.leave_table(id);
        self.close_raw(id);
        self.close_packet(id);
        // This fails only for other kinds of sockets, which have no pending datagram.
        let _ = self.take_pending(id);
        let Ok(datagrams) = self.socket(id).and_then(Socket::datagrams) else { return };
        let count = datagrams.queue.len() + datagrams.errors.len();
        let held = datagrams.held;
        self.datagrams.release(count, held);
    }

    /// Returns the readiness of a datagram socket (poll(2)).
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

/// Size of the socket's send buffer.
fn send_buffer(socket: &Socket) -> usize {
    socket.options.send_buffer.unwrap_or(SEND_BUFFER_DEFAULT) as usize
}

/// Size of the socket's receive buffer.
pub(super) fn receive_buffer(socket: &Socket) -> usize {
    socket.options.receive_buffer.unwrap_or(RECEIVE_BUFFER_DEFAULT) as usize
}
