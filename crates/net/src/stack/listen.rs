//! Listeners: requests, accept queues and their limits.
//!
//! A SYN for a listener makes a *request*: a connection in SYN-RECEIVED that the owner does not
//! see. The peer's ACK makes it a *child*. The child waits in the listener's queue until
//! [`Stack::tcp_accept`] takes it; only then are its events reported to the owner. A SYN with a
//! valid Fast Open cookie makes a child at once. A queue holds one child more
//! than the backlog, and SYNs are dropped while it is full. With a backlog of requests, SYNs are
//! answered with SYN cookies, or dropped.
//!
//! An owner that takes every connection needs no queue: [`Stack::tcp_listen`].

use super::handles::{ListenerHandle, TcpHandle};
use super::listeners::{Listen, ListenError, Role};
use super::table::Table;
use super::{Context, Stack};
use crate::tcp::{Connection, Segment, State};
use crate::time::Instant;
use crate::wire::tcp::Flags;
use core::net::SocketAddr;

impl Table {
    /// Counts a new request.
    pub(super) fn begin_request(&mut self, to: ListenerHandle, index: u32) {
        if let Some(listener) = self.listeners.get_mut(to) {
            listener.requests += 1;
            self.slots[index as usize].role = Role::Request(to);
        }
        self.begin_half_open(index);
    }

    /// Counts a new Fast Open child and puts it into its listener's queue.
    pub(super) fn begin_fastopen(&mut self, to: ListenerHandle, index: u32) {
        if let Some(listener) = self.listeners.get_mut(to) {
            listener.fastopen_pending += 1;
            self.slots[index as usize].fastopen = Some(to);
        }
        if self.listeners.deliver(to, self.handle(index)) {
            let slot = &mut self.slots[index as usize];
            slot.role = Role::Child(to);
            if let Some(connection) = slot.connection.as_deref_mut() {
                connection.is_queued = true;
            }
        }
        self.begin_half_open(index);
    }

    /// Updates the role of a connection that changed: queues a request that has opened, counts one
    /// that ended, and checks whether a Fast Open child has finished its handshake.
    pub(super) fn settle_role(&mut self, index: u32, now: Instant) {
        let handle = self.handle(index);
        let slot = &mut self.slots[index as usize];
        let Some(connection) = slot.connection.as_deref_mut() else { return };
        if let Some(to) = slot.fastopen
            && connection.state() != State::SynReceived
        {
            slot.fastopen = None;
            let was_reset = connection.state() == State::Closed;
            if let Some(listener) = self.listeners.get_mut(to) {
                listener.fastopen_pending -= 1;
                if was_reset {
                    listener.remember_reset(now);
                }
            }
        }
        let Role::Request(to) = slot.role else { return };
        if connection.is_request() && connection.state() != State::Closed {
            return;
        }
        let ended = connection.is_request();
        if let Some(listener) = self.listeners.get_mut(to) {
            listener.requests -= 1;
        }
        if ended {
            slot.role = Role::Owned;
            connection.disown(now);
        } else {
            let queued = self.listeners.deliver(to, handle);
            connection.is_queued = queued;
            slot.role = if queued { Role::Child(to) } else { Role::Owned };
        }
    }
}

impl Stack {
    /// Listens at `local` for an owner that takes every connection. Each is reported by an event
    /// with `INCOMING` once the peer has acknowledged the SYN-ACK. Does nothing if the address has
    /// a listener.
    pub fn tcp_listen(&mut self, local: SocketAddr) {
        let config = Listen { backlog: None, ..Listen::new(local, 0, &self.tcp.settings) };
        let _ = self.tcp.listeners.insert(config);
    }

    /// Stops listening at `local`.
    pub fn tcp_unlisten(&mut self, local: SocketAddr, now: Instant) {
        if let Some(&listener) = self.tcp.listeners.by_address.get(&local) {
            self.tcp_close_listener(listener, now);
        }
    }

    /// Listens with a queue.
    ///
    /// # Errors
    /// If the same address already has a listener.
    pub fn tcp_listen_with(&mut self, config: Listen) -> Result<ListenerHandle, ListenError> {
        self.tcp.listeners.insert(config)
    }

    /// Runs `act` on a listener's configuration; its address cannot be changed.
    pub fn with_listener<R>(
        &mut self,
        listener: ListenerHandle,
        act: impl FnOnce(&mut Listen) -> R,
    ) -> Option<R> {
        let listener = self.tcp.listeners.get_mut(listener)?;
        let local = listener.config.local;
        let result = act(&mut listener.config);
        listener.config.local = local;
        Some(result)
    }

    /// Takes the oldest child from a listener's queue. The caller owns it from now on; its events
    /// since the SYN are reported next.
    pub fn tcp_accept(&mut self, listener: ListenerHandle, now: Instant) -> Option<TcpHandle> {
        loop {
            let handle = self.tcp.listeners.get_mut(listener)?.queue.pop_front()?;
            let Some(connection) = self.tcp.get_mut(handle) else { continue };
            connection.is_queued = false;
            self.tcp.slots[handle.index()].role = Role::Owned;
            self.tcp.settle(handle.0.index, now);
            return Some(handle);
        }
    }

    /// Number of children in a listener's queue.
    pub fn tcp_acceptable(&self, listener: ListenerHandle) -> usize {
        self.tcp.listeners.get(listener).map_or(0, |listener| listener.queue.len())
    }

    /// Takes the next listener whose queue has got children since it was last reported.
    pub fn next_acceptable(&mut self) -> Option<ListenerHandle> {
        loop {
            let handle = self.tcp.listeners.news.pop_front()?;
            let Some(listener) = self.tcp.listeners.get_mut(handle) else { continue };
            if core::mem::take(&mut listener.announced) && !listener.queue.is_empty() {
                return Some(handle);
            }
        }
    }

    /// Stops listening. Children not accepted are reset, requests dropped.
    pub fn tcp_close_listener(&mut self, listener: ListenerHandle, now: Instant) {
        let Some(closed) = self.tcp.listeners.remove(listener) else { return };
        for child in closed.queue {
            self.tcp.slots[child.index()].role = Role::Owned;
            self.with_tcp(child, now, |connection| {
                connection.abort();
                connection.disown(now);
            });
        }
        if closed.requests == 0 {
            return;
        }
        for index in 0..self.tcp.slots.places_len() as u32 {
            if self.tcp.slots[index as usize].role == Role::Request(listener) {
                self.tcp.slots[index as usize].role = Role::Owned;
                let handle = self.tcp.handle(index);
                self.with_tcp(handle, now, |connection| {
                    connection.give_up();
                    connection.disown(now);
                });
            }
        }
    }

    /// True if the segment would complete the handshake of a request whose listener has no room for
    /// another child. The segment is then dropped, and the peer retransmits.
    pub(super) fn is_crowded_out(&self, index: u32, segment: &Segment) -> bool {
        let slot = &self.tcp.slots[index as usize];
        let Role::Request(to) = slot.role else { return false };
        let completes = !segment.header.flags.intersects(Flags::RST | Flags::SYN)
            && slot.connection.as_deref().is_some_and(|request| !request.defers(segment));
        completes && self.tcp.listeners.get(to).is_some_and(|listener| !listener.has_room())
    }

    /// Handles an ACK for which the listener's queue has no room.
    pub(super) fn crowd_out(&mut self, index: u32, cx: &mut Context<'_>) {
        let reset = match self.tcp.slots[index as usize].role {
            Role::Request(to) => self
                .tcp
                .listeners
                .get(to)
                .is_some_and(|listener| listener.config.settings.abort_on_overflow),
            _ => false,
        };
        self.counters.drop(crate::counters::DropReason::TcpAcceptQueueFull);
        if let Some(request) = self.tcp.slots[index as usize].connection.as_deref_mut() {
            request.note_deferred();
        }
        if reset {
            let handle = self.tcp.handle(index);
            self.with_tcp(handle, cx.now, Connection::abort);
        }
    }
}
