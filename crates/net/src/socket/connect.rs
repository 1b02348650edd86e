//! How connections begin and end: `connect`, `shutdown`, `close`, and the stack's events.

use super::options::{Linger, Options};
use super::ports::{Occupied, Space, Use, unspecified};
use super::{Error, Phase, Progress, Readiness, Shutdown, SocketId, Sockets, from_family};
use crate::stack::{Connect, ConnectError, TcpHandle};
use crate::tcp::{ConnectionError, Events, State};
use crate::time::Instant;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};

impl Sockets {
    /// Starts to connect, or reports the outcome: [`Error::InProgress`] when the handshake has
    /// begun, [`Error::Already`] while it is in progress, then once `Ok` or the reason why it
    /// failed.
    pub fn connect(&mut self, id: SocketId, remote: SocketAddr, now: Instant) -> Result<(), Error> {
        let socket = self.socket(id)?;
        match (&socket.phase, socket.progress) {
            (Phase::Datagram(_), _) => self.connect_datagram(id, remote),
            (Phase::Listening(_), _) | (_, Progress::Connected) => Err(Error::IsConnected),
            (_, Progress::Connecting) if socket.deferred => Err(Error::IsConnected),
            (_, Progress::Connecting) => self.outcome(id, now),
            (Phase::Connected(_), Progress::Unconnected) => Err(Error::IsConnected),
            (Phase::Idle, Progress::Unconnected) => {
                let fast_open = socket.options.fastopen_connect;
                let connect = self.prepare(id, remote, fast_open)?;
                if fast_open && self.stack.tcp_syn_room(&connect, now).is_some() {
                    return self.defer(id, connect.remote);
                }
                self.begin(id, &connect, now)?;
                Err(Error::InProgress)
            }
        }
    }

    /// True while a handshake that this socket began is in progress.
    pub fn is_connecting(&self, id: SocketId) -> bool {
        let begun = self.socket(id).is_ok_and(|socket| socket.progress == Progress::Connecting);
        begun && self.tcp(id).is_some_and(|connection| connection.state().is_opening())
    }

    /// Returns the outcome of the handshake: [`Error::Already`] while it is in progress, then once
    /// the reason if it failed.
    pub fn outcome(&mut self, id: SocketId, now: Instant) -> Result<(), Error> {
        if self.is_connecting(id) {
            return Err(Error::Already);
        }
        let closed = self.tcp(id).is_none_or(|connection| connection.state() == State::Closed);
        let socket = self.socket_mut(id)?;
        if !closed {
            socket.progress = Progress::Connected;
            return Ok(());
        }
        socket.progress = Progress::Unconnected;
        let error = socket.error.take().unwrap_or(Error::ConnectionAborted);
        self.detach(id, now);
        Err(error)
    }

    /// Prepares a connection to `remote`: chooses the source address, and the port if none is
    /// bound.
    pub(super) fn prepare(
        &mut self,
        id: SocketId,
        remote: SocketAddr,
        fast_open: bool,
    ) -> Result<Connect, Error> {
        let socket = self.socket(id)?;
        let remote = from_family(remote, socket)?;
        if remote.ip().is_multicast() || remote.ip() == IpAddr::V4(Ipv4Addr::BROADCAST) {
            return Err(Error::NetworkUnreachable);
        }
        let bound = socket.local.ip();
        let source = if bound.is_unspecified() {
            self.stack.source_for(remote.ip()).ok_or(Error::NetworkUnreachable)?
        } else if bound.is_ipv4() == remote.is_ipv4() {
            bound
        } else {
            return Err(Error::NetworkUnreachable);
        };
        let port = match socket.used {
            Some(_) => socket.local.port(),
            None => self.choose_port(id, source, remote)?,
        };
        let options = &self.socket(id)?.options;
        let mut settings = *self.stack.tcp_settings();
        options.change_settings(&mut settings);
        let mut connect = Connect::new(SocketAddr::new(source, port), remote, &settings);
        connect.max_segment = options.max_segment;
        connect.fast_open = fast_open;
        connect.fast_open_no_cookie = options.fastopen_no_cookie;
        Ok(connect)
    }

    /// Sends the SYN and makes the connection the socket's own.
    pub(super) fn begin(
        &mut self,
        id: SocketId,
        connect: &Connect,
        now: Instant,
    ) -> Result<TcpHandle, Error> {
        let handle = match self.stack.tcp_connect_with(connect, now) {
            Ok(handle) => handle,
            Err(error) => {
                self.give_back_port(id);
                return Err(match error {
                    ConnectError::InUse => Error::AddressNotAvailable,
                    ConnectError::Limit => Error::NoBuffers,
                });
            }
        };
        self.own(id, handle);
        let socket = self.socket_mut(id)?;
        let options = socket.options;
        socket.phase = Phase::Connected(handle);
        socket.progress = Progress::Connecting;
        socket.error = None;
        (socket.read_shut, socket.write_shut, socket.done) = (false, false, false);
        socket.deferred = false;
        socket.local = connect.local;
        socket.remote = Some(connect.remote);
        self.stack.with_tcp(handle, now, |connection| {
            options.apply(&Options::default(), connection, now);
        });
        Ok(handle)
    }

    /// Chooses a port that has no connection to `remote`, including connections that closed sockets
    /// left behind, and those in TIME-WAIT.
    fn choose_port(
        &mut self,
        id: SocketId,
        source: IpAddr,
        remote: SocketAddr,
    ) -> Result<u16, Error> {
        let options = self.socket(id)?.options;
        let occupied = |port| {
            let local = SocketAddr::new(source, port);
            if self.stack.tcp_is_used(local, remote) {
                Occupied::Connected
            } else if self.stack.tcp_in_time_wait(local, remote) {
                Occupied::TimeWait
            } else {
                Occupied::Free
            }
        };
        let port = self.ports.choose_to(source, remote, occupied);
        let port = port.ok_or(Error::AddressNotAvailable)?;
        let used = Use {
            address: source,
            v6_only: options.v6_only,
            reuse: options.reuse_address,
            reuse_port: false,
            listens: false,
            connects: true,
        };
        self.ports.add(Space::Tcp, port, used);
        let socket = self.socket_mut(id)?;
        socket.used = Some(used);
        socket.local.set_port(port);
        Ok(port)
    }

    /// Releases a connection that is over, so that the socket can connect again.
    fn detach(&mut self, id: SocketId, now: Instant) {
        if let Ok(handle) = self.handle(id) {
            self.stack.tcp_release(handle, now);
        }
        if let Ok(socket) = self.socket_mut(id) {
            socket.phase = Phase::Idle;
            socket.progress = Progress::Unconnected;
            socket.remote = None;
            socket.deferred = false;
        }
        self.give_back_port(id);
    }

    /// Releases a port that was chosen automatically; what the caller chose stays.
    fn give_back_port(&mut self, id: SocketId) {
        let Ok(socket) = self.socket_mut(id) else { return };
        if socket.port_chosen {
            if let Some(used) = socket.used {
                socket.local.set_ip(used.address);
            }
            return;
        }
        let (port, used) = (socket.local.port(), socket.used.take());
        let kept = socket.bound.unwrap_or(unspecified(socket.family));
        socket.local = SocketAddr::new(kept, 0);
        if let Some(used) = used {
            self.ports.remove(Space::Tcp, port, used);
        }
    }

    /// Aborts the connection, or stops listening; the socket is then as new (`connect` to
    /// `AF_UNSPEC`).
    pub fn disconnect(&mut self, id: SocketId, now: Instant) -> Result<(), Error> {
        if self.is_datagram(id) {
            return self.disconnect_datagram(id);
        }
        self.stop_listening(id, now);
        let opening = self.is_connecting(id) || self.is_deferred(id);
        let socket = self.socket_mut(id)?;
        // A call that waits in `connect` returns this error.
        socket.error = opening.then_some(Error::ConnectionReset).or(socket.error);
        self.with_connection(id, now, |connection| connection.abort());
        self.detach(id, now);
        let socket = self.socket_mut(id)?;
        (socket.read_shut, socket.write_shut, socket.done) = (false, false, false);
        Ok(())
    }

    /// Ends one or both directions. A listener that ends reading stops listening.
    pub fn shutdown(&mut self, id: SocketId, how: Shutdown, now: Instant) -> Result<(), Error> {
        if self.is_datagram(id) {
            return self.shutdown_datagram(id, how);
        }
        let (read, write) = (how != Shutdown::Write, how != Shutdown::Read);
        if matches!(self.socket(id)?.phase, Phase::Listening(_)) {
            if read {
                self.stop_listening(id, now);
                self.wake(id, Readiness::ALL);
            }
            return Ok(());
        }
        let state = self.state(id);
        if state == State::Closed {
            return Err(Error::NotConnected);
        }
        if state == State::SynSent {
            self.with_connection(id, now, |connection| connection.abort());
            self.take_error(id)?;
            self.detach(id, now);
            self.wake(id, Readiness::ALL);
            return Ok(());
        }
        let socket = self.socket_mut(id)?;
        socket.read_shut |= read;
        socket.write_shut |= write;
        if write {
            self.with_connection(id, now, |connection| connection.close_send());
        }
        self.wake(id, Readiness::ALL);
        Ok(())
    }

    /// Closes a socket: its name becomes invalid. Queued data is still sent, unless the socket
    /// lingers for zero time or received data is unread: then the connection is reset.
    pub fn close(&mut self, id: SocketId, now: Instant) -> Result<(), Error> {
        let socket = self.socket(id)?;
        let reset = socket.options.linger == Linger::Reset;
        self.stop_listening(id, now);
        self.leave_groups(id, now);
        self.close_datagram(id);
        if reset {
            self.with_connection(id, now, |connection| connection.abort());
        }
        self.dispose(id, now);
        Ok(())
    }

    /// True while `close` of a lingering socket has to wait: sent data is not yet acknowledged.
    pub fn is_sending(&self, id: SocketId) -> bool {
        self.tcp(id).is_some_and(|connection| {
            connection.state() != State::SynSent && connection.is_sending()
        })
    }

    /// Removes a socket; its connection closes by itself.
    pub(super) fn dispose(&mut self, id: SocketId, now: Instant) {
        if let Ok(handle) = self.handle(id) {
            self.stack.tcp_release(handle, now);
        }
        self.remove(id);
    }

    /// Processes the stack's events.
    pub(super) fn drain(&mut self) {
        while let Some((handle, events)) = self.stack.next_event() {
            if let Some(id) = self.owner(handle) {
                self.on_events(id, handle, events);
            }
        }
        self.drain_listeners();
        self.drain_returns();
    }

    fn on_events(&mut self, id: SocketId, handle: TcpHandle, events: Events) {
        let mut news = Readiness::NONE;
        if events.contains(Events::ESTABLISHED) {
            news |= Readiness::WRITABLE;
        }
        if events.contains(Events::READABLE) {
            // Received data may contain the mark: waiters for urgent data look again.
            news |= Readiness::READABLE | Readiness::PRI;
        }
        if events.contains(Events::WRITABLE) {
            news |= Readiness::WRITABLE;
        }
        if events.contains(Events::PEER_CLOSED) {
            news |= Readiness::READABLE | Readiness::READ_HUP;
            if let Ok(socket) = self.socket_mut(id) {
                socket.done = true;
            }
        }
        if events.contains(Events::STAMPED) {
            news |= Readiness::ERR;
            self.take_stamps(id, handle);
        }
        if events.contains(Events::CLOSED) {
            news |= Readiness::ALL;
            let error = self.stack.tcp(handle).and_then(|connection| connection.error());
            self.on_closed(id, error);
        }
        self.wake(id, news);
    }

    fn on_closed(&mut self, id: SocketId, error: Option<ConnectionError>) {
        let Ok(socket) = self.socket_mut(id) else { return };
        if socket.error.is_none() {
            // A reset after the peer's FIN is reported as `EPIPE`
            // (`tests/scripts/reset_in_close_wait.pkt`).
            let reset = error == Some(ConnectionError::Reset);
            let error = error.filter(|error| *error != ConnectionError::Aborted);
            socket.error = match error {
                Some(_) if reset && socket.done => Some(Error::BrokenPipe),
                error => error.map(Error::from),
            };
        }
    }
}
