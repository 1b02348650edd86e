//! Listening sockets. The stack keeps their requests and queues; `accept` makes a socket for a
//! connection.

use super::ports::{Space, Use, unspecified};
use super::{Error, Family, Options, Phase, Progress, Readiness, SocketId, Sockets, to_family};
use crate::stack::{Listen, ListenerHandle, TcpHandle};
use crate::time::Instant;
use alloc::vec::Vec;
use core::net::SocketAddr;

/// Most connections that may wait to be accepted at one socket (Linux's `net.core.somaxconn`).
pub const BACKLOG_MAX: u32 = 4096;

/// The stack's listeners of one socket.
pub(super) struct Listener {
    /// Two for an IPv6 socket that accepts IPv4 too; the backlog applies to each.
    handles: Vec<ListenerHandle>,
}

impl Sockets {
    /// Listens for connections. At most `backlog` plus one connections wait to be accepted, and
    /// `backlog` is at most [`BACKLOG_MAX`]; SYNs beyond are not answered. May be called again to
    /// change the backlog.
    pub fn listen(&mut self, id: SocketId, backlog: i32, now: Instant) -> Result<(), Error> {
        // A negative backlog is taken as unsigned: it means the maximum, `somaxconn` (listen(2)).
        let backlog = u32::try_from(backlog).unwrap_or(BACKLOG_MAX).min(BACKLOG_MAX);
        match self.socket(id)?.phase {
            Phase::Listening(_) => {
                return self.with_listeners(id, |listen| listen.backlog = Some(backlog));
            }
            Phase::Connected(_) => return Err(Error::Invalid),
            Phase::Datagram(_) => return Err(Error::NotSupported),
            Phase::Idle => {}
        }
        let socket = self.socket(id)?;
        if socket.used.is_none() {
            self.take_port(id, socket.local)?;
        }
        let socket = self.socket(id)?;
        let (local, options) = (socket.local, socket.options);
        let before = socket.used.ok_or(Error::Invalid)?;
        let wanted = Use { listens: true, ..before };
        self.ports.remove(Space::Tcp, local.port(), before);
        if !self.ports.is_free(Space::Tcp, local.port(), &wanted) {
            self.ports.add(Space::Tcp, local.port(), before);
            return Err(Error::AddressInUse);
        }
        self.ports.add(Space::Tcp, local.port(), wanted);
        let mut handles = Vec::new();
        for place in places(local, before.v6_only) {
            let settings = *self.stack.tcp_settings();
            let mut listen = Listen::new(place, backlog, &settings);
            options.apply_listen(&mut listen);
            match self.stack.tcp_listen_with(listen) {
                Ok(handle) => handles.push(handle),
                Err(_) => {
                    handles.iter().for_each(|&handle| self.stack.tcp_close_listener(handle, now));
                    self.ports.remove(Space::Tcp, local.port(), wanted);
                    self.ports.add(Space::Tcp, local.port(), before);
                    return Err(Error::AddressInUse);
                }
            }
        }
        for &handle in &handles {
            self.by_listener.insert(handle, id);
        }
        let socket = self.socket_mut(id)?;
        socket.used = Some(wanted);
        socket.phase = Phase::Listening(Listener { handles });
        Ok(())
    }

    /// Applies `change` to all of the socket's listeners.
    pub(super) fn with_listeners(
        &mut self,
        id: SocketId,
        mut change: impl FnMut(&mut Listen),
    ) -> Result<(), Error> {
        let Phase::Listening(listener) = &self.socket(id)?.phase else { return Ok(()) };
        for handle in listener.handles.clone() {
            self.stack.with_listener(handle, &mut change);
        }
        Ok(())
    }

    /// True if a connection waits to be accepted.
    pub(super) fn is_acceptable(&self, listener: &Listener) -> bool {
        listener.handles.iter().any(|&handle| self.stack.tcp_acceptable(handle) > 0)
    }

    /// Accepts the next connection; returns its socket and the peer's address.
    pub fn accept(&mut self, id: SocketId, now: Instant) -> Result<(SocketId, SocketAddr), Error> {
        let socket = self.socket(id)?;
        let listener = match &socket.phase {
            Phase::Listening(listener) => listener,
            Phase::Datagram(_) => return Err(Error::NotSupported),
            _ => return Err(Error::Invalid),
        };
        let (family, options) = (socket.family, socket.options);
        let used = socket.used.ok_or(Error::Invalid)?;
        let handles = listener.handles.clone();
        let accepted = handles.into_iter().find_map(|handle| self.stack.tcp_accept(handle, now));
        let handle = accepted.ok_or(Error::WouldBlock)?;
        let child = self.insert(family, options).inspect_err(|_| self.reset(handle, now))?;
        let ends = self.stack.tcp(handle).map(|child| (child.local(), child.remote()));
        let (local, remote) = ends.ok_or(Error::ConnectionAborted)?;
        let used = Use { listens: false, ..used };
        self.ports.add(Space::Tcp, local.port(), used);
        self.own(child, handle);
        let socket = self.socket_mut(child)?;
        socket.phase = Phase::Connected(handle);
        socket.progress = Progress::Connected;
        socket.used = Some(used);
        socket.local = local;
        socket.remote = Some(remote);
        self.stack.with_tcp(handle, now, |connection| {
            options.apply(&Options::default(), connection, now)
        });
        self.drain();
        Ok((child, to_family(remote, family)))
    }

    fn reset(&mut self, handle: TcpHandle, now: Instant) {
        self.stack.with_tcp(handle, now, |connection| connection.abort());
        self.stack.tcp_release(handle, now);
    }

    /// Stops listening and resets the connections that wait to be accepted.
    pub(super) fn stop_listening(&mut self, id: SocketId, now: Instant) {
        let Ok(socket) = self.socket_mut(id) else { return };
        if !matches!(socket.phase, Phase::Listening(_)) {
            return;
        }
        let phase = core::mem::replace(&mut socket.phase, Phase::Idle);
        let Phase::Listening(listener) = phase else { return };
        // The socket keeps its port until it is closed, which others that allow it may now share.
        let port = socket.local.port();
        if let Some(before) = socket.used {
            let used = Use { listens: false, ..before };
            socket.used = Some(used);
            self.ports.remove(Space::Tcp, port, before);
            self.ports.add(Space::Tcp, port, used);
        }
        for handle in listener.handles {
            self.by_listener.remove(&handle);
            self.stack.tcp_close_listener(handle, now);
        }
    }

    /// Wakes listening sockets whose accept queues have grown.
    pub(super) fn drain_listeners(&mut self) {
        while let Some(handle) = self.stack.next_acceptable() {
            if let Some(&id) = self.by_listener.get(&handle) {
                self.wake(id, Readiness::READABLE);
            }
        }
    }
}

/// Addresses at which a socket bound to `local` listens: a socket bound to the unspecified IPv6
/// address accepts IPv4 too, unless `v6_only`.
fn places(local: SocketAddr, v6_only: bool) -> impl Iterator<Item = SocketAddr> {
    let dual = local.is_ipv6() && local.ip().is_unspecified() && !v6_only;
    let v4 = dual.then(|| SocketAddr::new(unspecified(Family::V4), local.port()));
    core::iter::once(local).chain(v4)
}
