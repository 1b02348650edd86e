//! Listeners: requests, accept queues and their limits.
//!
//! A SYN for a listener makes a *request*: a connection in SYN-RECEIVED that the owner does not
//! see. The peer's ACK makes it a *child*. The child waits in the listener's queue until
//! [`Stack::tcp_accept`] takes it; only then are its events reported to the owner. A SYN with a
//! valid Fast Open cookie makes a child at once. Limits are Linux's: a queue holds one child more
//! than the backlog, and SYNs are dropped while it is full. With a backlog of requests, SYNs are
//! answered with SYN cookies, or dropped.
//!
//! An owner that takes every connection needs no queue: [`Stack::tcp_listen`].

use super::table::Table;
use super::{Context, Stack, TcpHandle};
use crate::tcp::fastopen::{self, FastOpenKeys};
use crate::tcp::{Connection, Segment, Settings, State};
use crate::time::{Duration, Instant};
use crate::wire::tcp::Flags;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use foldhash::fast::FixedState;
use hashbrown::HashMap;

/// Names a listener of one stack. The handle of a closed listener finds no listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerHandle {
    index: u32,
    generation: u32,
}

/// Configuration of a listener. All but `local` may be changed later: [`Stack::with_listener`].
#[derive(Clone, Copy, Debug)]
pub struct Listen {
    /// Address and port. An unspecified address means all local addresses of its family.
    pub local: SocketAddr,
    /// Backlog of `listen(2)`: the maximum number of requests, and of children less one. `None` for
    /// an owner that takes each child from its event with `INCOMING` and needs no queue.
    pub backlog: Option<u32>,
    /// Settings of the connections.
    pub settings: Settings,
    /// Largest segment to send and to advertise (`TCP_MAXSEG`), in bytes of payload and options.
    pub max_segment: Option<u16>,
    /// Maximum number of Fast Open children with an unfinished handshake (`TCP_FASTOPEN`). Zero
    /// disables them, unless [`fastopen::SERVER_ALL`] is set: then the backlog is the limit.
    pub fastopen_queue: u32,
    /// Keys of this listener's cookies instead of those in the settings (`TCP_FASTOPEN_KEY`).
    pub fastopen_key: Option<FastOpenKeys>,
    /// Accepts data with a SYN without a cookie (`TCP_FASTOPEN_NO_COOKIE`).
    pub fastopen_no_cookie: bool,
    /// SYN-ACK timeouts during which an ACK without data makes no child (`TCP_DEFER_ACCEPT`, in
    /// Linux's unit).
    pub defer_accept: u8,
}

impl Listen {
    /// Listens at `local` with a queue of this backlog.
    pub fn new(local: SocketAddr, backlog: u32, settings: &Settings) -> Self {
        Self {
            local,
            backlog: Some(backlog),
            settings: *settings,
            max_segment: None,
            fastopen_queue: 0,
            fastopen_key: None,
            fastopen_no_cookie: false,
            defer_accept: 0,
        }
    }

    /// Maximum number of Fast Open children with an unfinished handshake.
    fn fastopen_limit(&self) -> u32 {
        let all = fastopen::SERVER | fastopen::SERVER_ALL;
        match self.fastopen_queue {
            0 if self.settings.fastopen & all == all => self.backlog.unwrap_or(0),
            limit => limit,
        }
    }

    /// True if data with a SYN is accepted without a cookie.
    pub(super) fn takes_no_cookie(&self) -> bool {
        self.fastopen_no_cookie || self.settings.fastopen & fastopen::SERVER_NO_COOKIE != 0
    }

    /// Keys of this listener's cookies.
    pub(super) fn keys(&self) -> &FastOpenKeys {
        self.fastopen_key.as_ref().unwrap_or(&self.settings.fastopen_key)
    }
}

/// The address already has a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenError;

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the address is in use by a listener")
    }
}

impl core::error::Error for ListenError {}

/// Maximum number of remembered Fast Open children that were reset before their handshake
/// completed. Each counts for [`RESET_MEMORY`], so that spoofed sources cannot use up a listener
/// (RFC 7413 §5.1).
const RESETS_MAX: usize = 1024;
/// How long a reset Fast Open child counts against the limit.
const RESET_MEMORY: Duration = Duration::from_secs(60);

/// One listener.
pub(super) struct Listener {
    pub(super) config: Listen,
    /// Children that wait to be accepted, oldest first.
    queue: VecDeque<TcpHandle>,
    /// Number of requests whose handshake is unfinished.
    pub(super) requests: u32,
    /// Number of Fast Open children whose handshake is unfinished.
    fastopen_pending: u32,
    /// When each Fast Open child that was reset stops counting, in order.
    fastopen_resets: VecDeque<Instant>,
    /// When the last SYN cookie was sent.
    pub(super) cookie_at: Option<Instant>,
    /// The listener is in `Listeners::news`.
    announced: bool,
}

impl Listener {
    /// True if the queue has room: one child more than the backlog, as in Linux.
    pub(super) fn has_room(&self) -> bool {
        self.config.backlog.is_none_or(|backlog| self.queue.len() <= backlog as usize)
    }

    /// True if there is room for a request.
    pub(super) fn has_request_room(&self) -> bool {
        self.config.backlog.is_none_or(|backlog| self.requests < backlog.max(1))
    }

    /// True if there is room for a Fast Open child at `now`.
    pub(super) fn has_fastopen_room(&mut self, now: Instant) -> bool {
        let limit = self.config.fastopen_limit();
        while self.fastopen_resets.front().is_some_and(|until| *until <= now) {
            self.fastopen_resets.pop_front();
        }
        u64::from(self.fastopen_pending) + (self.fastopen_resets.len() as u64) < u64::from(limit)
    }
}

#[derive(Default)]
struct Place {
    generation: u32,
    listener: Option<Listener>,
}

/// All listeners of a stack.
pub(super) struct Listeners {
    places: Vec<Place>,
    free: Vec<u32>,
    by_address: HashMap<SocketAddr, u32, FixedState>,
    news: VecDeque<u32>,
}

impl Listeners {
    /// No listeners.
    pub(super) fn new(hasher: FixedState) -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
            by_address: HashMap::with_hasher(hasher),
            news: VecDeque::new(),
        }
    }

    /// Finds the listener for a SYN to `local`.
    pub(super) fn find(&self, local: SocketAddr) -> Option<ListenerHandle> {
        if self.by_address.is_empty() {
            return None;
        }
        let any = match local.ip() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let any = SocketAddr::new(any, local.port());
        let &index = self.by_address.get(&local).or_else(|| self.by_address.get(&any))?;
        Some(self.handle(index))
    }

    fn handle(&self, index: u32) -> ListenerHandle {
        ListenerHandle { index, generation: self.places[index as usize].generation }
    }

    pub(super) fn get(&self, handle: ListenerHandle) -> Option<&Listener> {
        let place = self.places.get(handle.index as usize)?;
        (place.generation == handle.generation).then_some(place.listener.as_ref()?)
    }

    pub(super) fn get_mut(&mut self, handle: ListenerHandle) -> Option<&mut Listener> {
        let place = self.places.get_mut(handle.index as usize)?;
        (place.generation == handle.generation).then_some(place.listener.as_mut()?)
    }

    fn insert(&mut self, config: Listen) -> Result<ListenerHandle, ListenError> {
        if self.by_address.contains_key(&config.local) {
            return Err(ListenError);
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            (self.places.len() - 1) as u32
        });
        self.by_address.insert(config.local, index);
        self.places[index as usize].listener = Some(Listener {
            config,
            queue: VecDeque::new(),
            requests: 0,
            fastopen_pending: 0,
            fastopen_resets: VecDeque::new(),
            cookie_at: None,
            announced: false,
        });
        Ok(self.handle(index))
    }

    fn remove(&mut self, handle: ListenerHandle) -> Option<Listener> {
        self.get(handle)?;
        let place = &mut self.places[handle.index as usize];
        place.generation = place.generation.wrapping_add(1);
        let listener = place.listener.take()?;
        self.by_address.remove(&listener.config.local);
        self.free.push(handle.index);
        Some(listener)
    }

    /// Puts a child into its listener's queue; false if the listener is gone or has no queue.
    pub(super) fn deliver(&mut self, to: ListenerHandle, child: TcpHandle) -> bool {
        let Some(listener) = self.get_mut(to) else { return false };
        if listener.config.backlog.is_none() {
            return false;
        }
        listener.queue.push_back(child);
        if !core::mem::replace(&mut listener.announced, true) {
            self.news.push_back(to.index);
        }
        true
    }
}

/// Relation of a connection in the table to a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Not a listener's, or already accepted.
    Owned,
    /// A request: the SYN has been answered.
    Request(ListenerHandle),
    /// A child in the queue.
    Child(ListenerHandle),
}

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
            self.slots[index as usize].role = Role::Child(to);
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
                if was_reset && listener.fastopen_resets.len() < RESETS_MAX {
                    listener.fastopen_resets.push_back(now + RESET_MEMORY);
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
        if let Some(&index) = self.tcp.listeners.by_address.get(&local) {
            self.tcp_close_listener(self.tcp.listeners.handle(index), now);
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
            self.tcp.settle(handle.index, now);
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
            let index = self.tcp.listeners.news.pop_front()?;
            let handle = self.tcp.listeners.handle(index);
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
        for index in 0..self.tcp.slots.len() as u32 {
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
