//! What is remembered of peers from one connection to the next, as Linux's tcp_metrics: for Fast
//! Open (RFC 7413 §4.1.3) the cookie, the segment size and how it went last.

use crate::tcp::Settings;
use crate::tcp::fastopen::{FastOpenNews, FastOpenPath};
use crate::time::{Duration, Instant};
use crate::wire::tcp::FastOpenCookie;
use alloc::collections::VecDeque;
use core::net::IpAddr;
use foldhash::fast::FixedState;
use hashbrown::HashMap;

/// Peers remembered; the one that has been known longest is forgotten for a new one.
pub const PEERS_MAX: usize = 1024;

/// The pause after the blackhole timer started for the n-th time doubles this often at most.
const BLACKHOLE_DOUBLINGS_MAX: u32 = 6;

/// What is remembered of one.
#[derive(Clone, Copy, Default)]
pub(super) struct Peer {
    pub(super) mss: u16,
    pub(super) cookie: Option<FastOpenCookie>,
    /// Answers without a cookie to requests in today's option (1), then in the experimental (2).
    pub(super) no_cookie: u8,
}

/// All that is remembered.
pub(super) struct Metrics {
    peers: HashMap<(IpAddr, IpAddr), Peer, FixedState>,
    order: VecDeque<(IpAddr, IpAddr)>,
    /// Since when, and for the how many-th time in a row, Fast Open is not tried.
    blackhole: Option<(Instant, u32)>,
}

impl Metrics {
    /// Nothing yet; addresses are hashed with `seed`.
    pub(super) fn new(seed: u64) -> Self {
        let hasher = FixedState::with_seed(seed);
        Self { peers: HashMap::with_hasher(hasher), order: VecDeque::new(), blackhole: None }
    }

    pub(super) fn get(&self, ends: (IpAddr, IpAddr)) -> Peer {
        self.peers.get(&ends).copied().unwrap_or_default()
    }

    /// Takes in what an answer to a SYN taught.
    pub(super) fn learn(&mut self, ends: (IpAddr, IpAddr), news: &FastOpenNews) {
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

    /// A connection found out something about paths: starts the pause, or a longer one; or ends
    /// the doubling.
    pub(super) fn found(&mut self, path: FastOpenPath, now: Instant) {
        let times = self.blackhole.map_or(0, |(_, times)| times);
        self.blackhole = match path {
            FastOpenPath::Broken => Some((now, times.saturating_add(1))),
            FastOpenPath::Mended => None,
        };
    }

    /// A pause is over, and nobody knows yet whether there was a reason to end it.
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
