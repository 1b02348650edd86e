//! The listeners of a stack and their queues.

use super::handles::{ListenerHandle, TcpHandle};
use crate::slab::Slab;
use crate::tcp::Settings;
use crate::tcp::fastopen::{self, FastOpenKeys};
use crate::time::{Duration, Instant};
use alloc::collections::VecDeque;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use foldhash::fast::FixedState;
use hashbrown::HashMap;

/// Configuration of a listener. All but `local` may be changed later:
/// [`Stack::with_listener`](super::Stack::with_listener).
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
    pub(super) queue: VecDeque<TcpHandle>,
    /// Number of requests whose handshake is unfinished.
    pub(super) requests: u32,
    /// Number of Fast Open children whose handshake is unfinished.
    pub(super) fastopen_pending: u32,
    /// When each Fast Open child that was reset stops counting, in order.
    fastopen_resets: VecDeque<Instant>,
    /// When the last SYN cookie was sent.
    pub(super) cookie_at: Option<Instant>,
    /// The listener is in `Listeners::news`.
    pub(super) announced: bool,
}

impl Listener {
    /// True if the queue has room: one child more than the backlog, whose exact meaning
    /// listen(2) leaves open (`socket/tests/ports.rs`, `a_backlog_of_one_holds_two`).
    pub(super) fn has_room(&self) -> bool {
        self.config.backlog.is_none_or(|backlog| self.queue.len() <= backlog as usize)
    }

    /// True if there is room for a request.
    pub(super) fn has_request_room(&self) -> bool {
        self.config.backlog.is_none_or(|backlog| self.requests < backlog.max(1))
    }

    /// Counts a Fast Open child that was reset.
    pub(super) fn remember_reset(&mut self, now: Instant) {
        if self.fastopen_resets.len() < RESETS_MAX {
            self.fastopen_resets.push_back(now + RESET_MEMORY);
        }
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

/// All listeners of a stack.
pub(super) struct Listeners {
    slab: Slab<Option<Listener>>,
    pub(super) by_address: HashMap<SocketAddr, ListenerHandle, FixedState>,
    pub(super) news: VecDeque<ListenerHandle>,
}

impl Listeners {
    /// No listeners.
    pub(super) fn new(hasher: FixedState) -> Self {
        Self {
            slab: Slab::default(),
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
        self.by_address.get(&local).or_else(|| self.by_address.get(&any)).copied()
    }

    pub(super) fn get(&self, handle: ListenerHandle) -> Option<&Listener> {
        self.slab.get(handle.0)
    }

    pub(super) fn get_mut(&mut self, handle: ListenerHandle) -> Option<&mut Listener> {
        self.slab.get_mut(handle.0)
    }

    pub(super) fn insert(&mut self, config: Listen) -> Result<ListenerHandle, ListenError> {
        if self.by_address.contains_key(&config.local) {
            return Err(ListenError);
        }
        let local = config.local;
        let handle = ListenerHandle(self.slab.insert(Listener {
            config,
            queue: VecDeque::new(),
            requests: 0,
            fastopen_pending: 0,
            fastopen_resets: VecDeque::new(),
            cookie_at: None,
            announced: false,
        }));
        self.by_address.insert(local, handle);
        Ok(handle)
    }

    pub(super) fn remove(&mut self, handle: ListenerHandle) -> Option<Listener> {
        let listener = self.slab.remove(handle.0)?;
        self.by_address.remove(&listener.config.local);
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
            self.news.push_back(to);
        }
        true
    }
}

/// Relation of a connection in the table to a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Role {
    /// Not a listener's, or already accepted.
    #[default]
    Owned,
    /// A request: the SYN has been answered.
    Request(ListenerHandle),
    /// A child in the queue.
    Child(ListenerHandle),
}
