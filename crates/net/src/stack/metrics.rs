//! Data cached about peers across connections: for Fast Open (RFC 7413 §4.1.3) the cookie, the
//! segment size and recent failures.

use crate::tcp::Settings;
use crate::tcp::fastopen::{FastOpenOutcome, FastOpenPath};
use crate::time::{Duration, Instant};
use crate::wire::tcp::FastOpenCookie;
use alloc::collections::VecDeque;
use core::net::IpAddr;
use foldhash::fast::FixedState;
use hashbrown::HashMap;

/// Maximum number of cached peers; a new one evicts the oldest entry.
pub const PEERS_MAX: usize = 1024;

/// Maximum number of times that the pause after a blackhole doubles.
const BLACKHOLE_DOUBLINGS_MAX: u32 = 6;

/// Data cached about one peer.
#[derive(Clone, Copy, Default)]
pub(super) struct Peer {
    pub(super) mss: u16,
    pub(super) cookie: Option<FastOpenCookie>,
    /// The peer sent no cookie: 1 for requests in the standard option, 2 for the experimental
    /// option too.
    pub(super) no_cookie: u8,
}

/// All cached data.
pub(super) struct Metrics {
    peers: HashMap<(IpAddr, IpAddr), Peer, FixedState>,
    order: VecDeque<(IpAddr, IpAddr)>,
    /// When Fast Open was last found to be blackholed, and how often in a row.
    blackhole: Option<(Instant, u32)>,
}

impl Metrics {
    /// Empty.
    pub(super) fn new(hasher: FixedState) -> Self {
        Self { peers: HashMap::with_hasher(hasher), order: VecDeque::new(), blackhole: None }
    }

    pub(super) fn get(&self, ends: (IpAddr, IpAddr)) -> Peer {
        self.peers.get(&ends).copied().unwrap_or_default()
    }

    /// Records what the answer to a SYN showed.
    pub(super) fn learn(&mut self, ends: (IpAddr, IpAddr), news: &FastOpenOutcome) {
        if !self.peers.contains_key(&ends) {
            if self.order.len() >= PEERS_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.peers.remove(&oldest);
            }
            self.order.push_back(ends);
        }
        let peer = self.peers.entry(ends).or_default();
        if news.mss != 0 {
            peer.mss = news.mss;
        }
        if news.cookie.is_some() {
            peer.cookie = news.cookie;
        } else if peer.cookie.is_none() {
            peer.no_cookie = peer.no_cookie.max(news.no_cookie);
        }
    }

    /// Records what a connection found out about Fast Open on the path: starts a pause, longer each
    /// time in a row, or resets it.
    pub(super) fn found(&mut self, path: FastOpenPath, now: Instant) {
        let times = self.blackhole.map_or(0, |(_, times)| times);
        self.blackhole = match path {
            FastOpenPath::Broken => Some((now, times.saturating_add(1))),
            FastOpenPath::Mended => None,
        };
    }

    /// True if a pause is over and no connection has shown yet that the path works.
    pub(super) fn is_retried(&self, settings: &Settings, now: Instant) -> bool {
        let on = settings.fastopen_blackhole_timeout_sec > 0;
        on && self.blackhole.is_some() && !self.is_paused(settings, now)
    }

    pub(super) fn is_paused(&self, settings: &Settings, now: Instant) -> bool {
        let Some((since, times)) = self.blackhole else { return false };
        let doublings = times.saturating_sub(1).min(BLACKHOLE_DOUBLINGS_MAX);
        let pause = u64::from(settings.fastopen_blackhole_timeout_sec) << doublings;
        now.since(since) < Duration::from_secs(pause)
    }

    pub(super) fn clear(&mut self) {
        self.peers.clear();
        self.order.clear();
    }
}
