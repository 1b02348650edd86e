//! Non-blocking sockets above a stack.
//!
//! # Theory of operation
//!
//! [`Sockets`] owns a [`Stack`] and a table of sockets, each named by a [`SocketId`]. A call does
//! what it can do at once and returns; otherwise it returns [`Error::WouldBlock`]. Calls, states
//! and errors are those of Linux, so that a layer above (blocking calls, an event queue, a script
//! runner) needs no knowledge of TCP.
//!
//! The driver moves bursts through [`Sockets::input`] and [`Sockets::output`] as it would with the
//! stack. These calls also process the stack's events. [`Sockets::next_wake`] reports which sockets
//! changed and how (edges); [`Sockets::readiness`] reports what a socket is ready for now (levels).
//!
//! [`Sockets::send`] and [`Sockets::receive`] copy bytes between the caller's buffers and pool
//! frames, and the ledger counts the copies. There are two ways to send without a copy.
//! [`Sockets::send_lent`] and [`Sockets::send_lent_datagram`] lend the caller's memory, and a
//! notice reports when it is returned. [`Sockets::send_piece`] lends a piece, and the piece's
//! lender is notified. [`Sockets::receive_lent`] hands out received pieces without a copy.
//!
//! One concern per file: `error`, `ports` (allocation), `options`, `listen` (accept queue),
//! `connect` (opening and closing), `fastopen` (data with a SYN), `frames` (memory for sends),
//! `stream` (bytes sent and received), `lending` and `shares` (sends without a copy), `terms` and
//! `outstanding` (return of lent memory), `lent_receive` (receives without a copy), `datagram`
//! (UDP), `readiness`, `notices` (the error queue).
//!
//! Bounds: [`SOCKETS_MAX`] sockets, and the bounds of the stack.

mod connect;
mod datagram;
mod error;
mod fastopen;
mod frames;
mod lending;
mod lent_receive;
mod listen;
mod notices;
mod options;
mod outstanding;
mod ports;
mod readiness;
mod shares;
mod stream;
mod terms;

#[cfg(test)]
mod tests;

pub use datagram::{
    DATAGRAMS_MAX, DatagramOptions, ErrorNotice, FrameKind, FrameSource, LENT_RANGES_MAX,
    LinkDestination, MEMBERSHIPS_MAX, MulticastOptions, Origin, PENDING_MAX, PacketOptions,
    QUEUED_MAX, RECEIVE_BUFFER_DEFAULT, RawOptions, ReceivedDatagram, SEND_BUFFER_DEFAULT, SendTo,
};
pub use error::Error;
pub use lending::{
    CALLS_MAX, GROUP_BYTES_MAX, GROUPS_MAX, LentCall, LentLimits, LentWatch, NOTICE_CHARGE,
};
pub use lent_receive::{READERS_MAX, ReadMost};
pub use listen::BACKLOG_MAX;
pub use notices::{NOTICES_MAX, Notice, Timestamping};
pub use options::{Linger, Options};
pub use outstanding::DEFAULT_TERM;
pub use ports::{EPHEMERAL_FIRST, EPHEMERAL_LAST};
pub use readiness::Readiness;
pub use shares::Borrower;
pub use stream::{ReceiveFlags, SendFlags};
pub use terms::LentStats;

use crate::random::Purpose;
use crate::slab::{Key, Slab};
use crate::stack::{Context, ListenerHandle, Stack, TcpHandle};
use crate::tcp::Connection;
use crate::time::Instant;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::Cell;
use core::net::{IpAddr, SocketAddr};
use foldhash::fast::FixedState;
use frames::Frames;
use hashbrown::HashMap;
use lending::{Lendings, SocketLending};
use lent_receive::Reading;
use listen::Listener;
use notices::ErrorQueue;
use ports::{Ports, Space, Use, unspecified};
use towpath_packet::{Burst, Reader};

/// Maximum number of sockets of one stack.
pub const SOCKETS_MAX: usize = 1 << 20;

/// Address family of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4 only.
    V4,
    /// IPv6, and IPv4 as mapped addresses unless [`Options::v6_only`] is set.
    V6,
}

/// Names a socket. The name of a closed socket finds no socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketId(Key);

/// Directions that [`Sockets::shutdown`] ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// The receive direction.
    Read,
    /// The send direction.
    Write,
    /// Both directions.
    Both,
}

/// Kind and state of a socket.
enum Phase {
    /// Neither connected nor listening.
    Idle,
    /// Listens for connections.
    Listening(Listener),
    /// Has, or had, a connection.
    Connected(TcpHandle),
    /// Sends and receives datagrams.
    Datagram(Box<datagram::Datagrams>),
}

/// Progress of `connect`. It is kept apart from the connection's own state so that the outcome of a
/// handshake is reported once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Unconnected,
    Connecting,
    Connected,
}

struct Socket {
    family: Family,
    phase: Phase,
    progress: Progress,
    options: Options,
    /// Bound address, or local address of the connection; unspecified with port 0 before that.
    local: SocketAddr,
    /// This socket's entry in the table of ports.
    used: Option<Use>,
    /// The caller chose the port, so the socket keeps it when a connection fails.
    port_chosen: bool,
    /// Address that the caller chose, which the socket keeps too.
    bound: Option<IpAddr>,
    remote: Option<SocketAddr>,
    /// `connect` was called; the SYN waits for data.
    deferred: bool,
    /// Pending error, reported once (`SO_ERROR`).
    error: Option<Error>,
    read_shut: bool,
    write_shut: bool,
    /// The peer has closed its direction: reads return 0, even after a later reset.
    done: bool,
    /// Notices to be read with `MSG_ERRQUEUE`.
    notices: ErrorQueue,
    lending: SocketLending,
    /// Accounts for received pieces that are handed out; made by the first receive without a copy.
    reader: Option<Arc<Reader>>,
    /// A send found no frame; the socket is woken when a frame is available.
    waits_for_frame: Cell<bool>,
    /// Events since the last [`Sockets::next_wake`].
    wake: Readiness,
}

/// A stack and the sockets above it.
pub struct Sockets {
    stack: Stack,
    sockets: Slab<Option<Socket>>,
    /// Socket of each connection, indexed by its handle.
    by_connection: Vec<Option<SocketId>>,
    /// Socket of each listener.
    by_listener: HashMap<ListenerHandle, SocketId, FixedState>,
    ports: Ports,
    datagrams: datagram::Table,
    wakes: VecDeque<SocketId>,
    defaults: Options,
    lendings: Lendings,
    reading: Reading,
    frames: Frames,
}

impl Sockets {
    /// Creates the socket layer above `stack`. Ports derive from the stack's secret.
    pub fn new(mut stack: Stack) -> Self {
        stack.report_udp_errors();
        let secret = stack.secret();
        Self {
            stack,
            sockets: Slab::default(),
            by_connection: Vec::new(),
            by_listener: HashMap::with_hasher(secret.table(Purpose::SocketListenerTable)),
            ports: Ports::new(&secret),
            datagrams: datagram::Table::new(&secret),
            wakes: VecDeque::new(),
            defaults: Options::default(),
            lendings: Lendings::new(),
            reading: Reading::default(),
            frames: Frames::default(),
        }
    }

    /// Returns the stack.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// Returns the stack, so that its settings and neighbours can be changed. Only [`Sockets`] may
    /// move its bursts and take its events.
    pub fn stack_mut(&mut self) -> &mut Stack {
        &mut self.stack
    }

    /// Creates a TCP socket.
    pub fn stream(&mut self, family: Family) -> Result<SocketId, Error> {
        self.insert(family, self.defaults)
    }

    /// Number of open sockets.
    pub fn count(&self) -> usize {
        self.sockets.count()
    }

    /// Passes all received packets of `burst` to the stack, then processes the stack's events.
    pub fn input(&mut self, burst: &mut Burst, cx: &mut Context<'_>) {
        self.stack.input(burst, cx);
        self.drain();
        self.drain_datagrams(cx);
        self.report_frames(cx);
    }

    /// Fills `burst` with packets to send. Call again, after sending, until it stays empty.
    pub fn output(&mut self, burst: &mut Burst, cx: &mut Context<'_>) {
        self.drain_readers(cx.now);
        loop {
            self.stack.output(burst, cx);
            self.drain();
            self.drain_datagrams(cx);
            // The stack may have answered packets that it sent to its own addresses.
            if !burst.is_empty() || !self.stack.has_ready() {
                break;
            }
        }
        self.report_room();
        if !burst.is_empty() || self.frames.are_awaited() {
            self.report_frames(cx);
        }
    }

    /// Runs the timers that are due, then processes the stack's events.
    pub fn on_deadline(&mut self, cx: &mut Context<'_>) {
        self.stack.on_deadline(cx);
        self.run_terms(cx);
        self.drain();
        self.report_frames(cx);
    }

    /// Returns the next socket that changed since the last call, and what happened (edges). What
    /// holds now may differ; see [`Sockets::readiness`].
    pub fn next_wake(&mut self) -> Option<(SocketId, Readiness)> {
        while let Some(id) = self.wakes.pop_front() {
            if let Ok(socket) = self.socket_mut(id) {
                return Some((id, core::mem::take(&mut socket.wake)));
            }
        }
        None
    }

    /// Local address and port, in the socket's family; unspecified before the socket is bound.
    pub fn local(&self, id: SocketId) -> Result<SocketAddr, Error> {
        let socket = self.socket(id)?;
        Ok(to_family(socket.local, socket.family))
    }

    /// Address and port of the peer, in the socket's family.
    pub fn remote(&self, id: SocketId) -> Result<SocketAddr, Error> {
        let socket = self.socket(id)?;
        if self.is_datagram(id) {
            let remote = socket.remote.filter(|remote| remote.port() != 0);
            return Ok(to_family(remote.ok_or(Error::NotConnected)?, socket.family));
        }
        let gone = self.connection(socket).is_none_or(|c| c.state() == crate::tcp::State::Closed);
        let remote = socket.remote.filter(|_| !gone).ok_or(Error::NotConnected)?;
        Ok(to_family(remote, socket.family))
    }

    /// True if the socket listens.
    pub fn is_listening(&self, id: SocketId) -> bool {
        self.socket(id).is_ok_and(|socket| matches!(socket.phase, Phase::Listening(_)))
    }

    /// Takes the pending error (`SO_ERROR`).
    pub fn take_error(&mut self, id: SocketId) -> Result<Option<Error>, Error> {
        Ok(self.socket_mut(id)?.error.take())
    }

    /// True if an error is pending.
    pub fn has_error(&self, id: SocketId) -> bool {
        self.socket(id).is_ok_and(|socket| socket.error.is_some())
    }

    /// Makes `error` the pending error: a call found it and did not report it.
    pub fn keep_error(&mut self, id: SocketId, error: Error) {
        if let Ok(socket) = self.socket_mut(id) {
            socket.error = Some(error);
            self.wake(id, Readiness::ERR);
        }
    }

    /// Connection of a socket, to inspect.
    pub fn tcp(&self, id: SocketId) -> Option<&Connection> {
        self.connection(self.socket(id).ok()?)
    }

    /// Binds to an address and a port; port 0 chooses an ephemeral port.
    pub fn bind(&mut self, id: SocketId, address: SocketAddr) -> Result<(), Error> {
        let socket = self.socket(id)?;
        self.refuse_packet(id)?;
        let address = from_family(address, socket)?;
        if self.is_raw(id) {
            return self.bind_raw(id, address.ip());
        }
        let unnamed = matches!(socket.phase, Phase::Idle | Phase::Datagram(_));
        let taken = socket.used.is_some() || !unnamed;
        // Linux checks the socket's state first for IPv6, and the address first for IPv4.
        if taken && socket.family == Family::V6 {
            return Err(Error::Invalid);
        }
        let is_group = socket.space() == Space::Udp && address.ip().is_multicast();
        let wildcard = address.ip().is_unspecified() || is_group;
        if !wildcard && !socket.options.free_bind && !self.stack.is_local(address.ip()) {
            return Err(Error::AddressNotAvailable);
        }
        if taken {
            return Err(Error::Invalid);
        }
        let socket = self.socket_mut(id)?;
        socket.bound = Some(address.ip()).filter(|_| !wildcard);
        if address.port() == 0 && socket.options.bind_no_port && socket.space() == Space::Tcp {
            socket.local.set_ip(address.ip());
            return Ok(());
        }
        self.take_port(id, address)
    }

    /// Takes a port for a socket that has none; port 0 chooses an ephemeral port.
    fn take_port(&mut self, id: SocketId, address: SocketAddr) -> Result<(), Error> {
        let socket = self.socket(id)?;
        let space = socket.space();
        let used = Use {
            address: address.ip(),
            v6_only: socket.options.v6_only,
            reuse: socket.options.reuse_address,
            reuse_port: space == Space::Udp && socket.options.reuse_port,
            listens: false,
            connects: false,
        };
        let port = match address.port() {
            0 => self.ports.choose(space).ok_or(Error::AddressInUse)?,
            port if self.ports.is_free(space, port, &used) => port,
            _ => return Err(Error::AddressInUse),
        };
        self.ports.add(space, port, used);
        let socket = self.socket_mut(id)?;
        socket.used = Some(used);
        socket.port_chosen = address.port() != 0;
        socket.local = SocketAddr::new(address.ip(), port);
        if space == Space::Udp {
            self.enter_table(id);
        }
        Ok(())
    }

    fn insert(&mut self, family: Family, mut options: Options) -> Result<SocketId, Error> {
        // An IPv6 socket receives from IPv4 groups only if it has joined them: `IP_MULTICAST_ALL`
        // is an option of IPv4 sockets (ip(7)).
        options.datagram.multicast.all_v4 &= family == Family::V4;
        if self.count() >= SOCKETS_MAX {
            return Err(Error::NoMemory);
        }
        Ok(SocketId(self.sockets.insert(Socket {
            family,
            phase: Phase::Idle,
            progress: Progress::Unconnected,
            options,
            local: SocketAddr::new(unspecified(family), 0),
            used: None,
            port_chosen: false,
            bound: None,
            remote: None,
            deferred: false,
            error: None,
            read_shut: false,
            write_shut: false,
            done: false,
            notices: ErrorQueue::default(),
            lending: SocketLending::default(),
            reader: None,
            waits_for_frame: Cell::new(false),
            wake: Readiness::NONE,
        })))
    }

    /// Removes a socket and releases its port. Its connection continues without it.
    fn remove(&mut self, id: SocketId) {
        let Some(socket) = self.sockets.remove(id.0) else { return };
        if let Some(reader) = &socket.reader {
            self.reading.close(reader);
        }
        if let Some(used) = socket.used {
            self.ports.remove(socket.space(), socket.local.port(), used);
        }
    }

    fn socket(&self, id: SocketId) -> Result<&Socket, Error> {
        self.sockets.get(id.0).ok_or(Error::BadSocket)
    }

    fn socket_mut(&mut self, id: SocketId) -> Result<&mut Socket, Error> {
        self.sockets.get_mut(id.0).ok_or(Error::BadSocket)
    }

    fn connection(&self, socket: &Socket) -> Option<&Connection> {
        match socket.phase {
            Phase::Connected(handle) => self.stack.tcp(handle),
            _ => None,
        }
    }

    /// The handle of a socket's connection.
    fn handle(&self, id: SocketId) -> Result<TcpHandle, Error> {
        match self.socket(id)?.phase {
            Phase::Connected(handle) => Ok(handle),
            _ => Err(Error::NotConnected),
        }
    }

    /// Runs `act` on the socket's connection, if it has one.
    fn with_connection<R>(
        &mut self,
        id: SocketId,
        now: Instant,
        act: impl FnOnce(&mut Connection) -> R,
    ) -> Option<R> {
        let handle = self.handle(id).ok()?;
        self.stack.with_tcp(handle, now, act)
    }

    fn own(&mut self, id: SocketId, handle: TcpHandle) {
        if self.by_connection.len() <= handle.index() {
            self.by_connection.resize(handle.index() + 1, None);
        }
        self.by_connection[handle.index()] = Some(id);
    }

    fn owner(&self, handle: TcpHandle) -> Option<SocketId> {
        let id = self.by_connection.get(handle.index()).copied().flatten()?;
        let socket = self.socket(id).ok()?;
        matches!(socket.phase, Phase::Connected(owned) if owned == handle).then_some(id)
    }

    /// Records an event of a socket.
    fn wake(&mut self, id: SocketId, what: Readiness) {
        let Ok(socket) = self.socket_mut(id) else { return };
        let first = socket.wake.is_empty();
        socket.wake |= what;
        if first && !what.is_empty() {
            self.wakes.push_back(id);
        }
    }
}

/// Converts an address to the form that a socket of `family` shows (RFC 4291 §2.5.5.2).
fn to_family(address: SocketAddr, family: Family) -> SocketAddr {
    match (family, address.ip()) {
        (Family::V6, IpAddr::V4(v4)) if v4.is_unspecified() => {
            SocketAddr::new(unspecified(Family::V6), address.port())
        }
        (Family::V6, IpAddr::V4(v4)) => SocketAddr::new(v4.to_ipv6_mapped().into(), address.port()),
        _ => address,
    }
}

/// Converts an address of the socket's family to the real one: a mapped address becomes IPv4.
fn from_family(address: SocketAddr, socket: &Socket) -> Result<SocketAddr, Error> {
    match (socket.family, address.ip()) {
        (Family::V4, IpAddr::V4(_)) => Ok(address),
        (Family::V4, IpAddr::V6(_)) => Err(Error::AddressFamily),
        (Family::V6, IpAddr::V4(_)) => Err(Error::Invalid),
        (Family::V6, IpAddr::V6(v6)) => match v6.to_ipv4_mapped() {
            Some(_) if socket.options.v6_only => Err(Error::NetworkUnreachable),
            Some(v4) => Ok(SocketAddr::new(v4.into(), address.port())),
            None => Ok(address),
        },
    }
}
