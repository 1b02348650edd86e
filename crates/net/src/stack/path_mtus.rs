//! Path MTUs by destination: from the device, from routes and from ICMP errors. TCP and datagrams
//! share them.
//!
//! # Theory of operation
//!
//! The handler of an ICMP error first checks that it quotes a packet of ours, then records the MTU
//! here. It is valid for [`LIFETIME`], or until a smaller one is recorded. Connections are not
//! notified: each compares [`Paths::version`] before it sends, and looks up its path again after a
//! change.
//!
//! Bound: [`PATHS_MAX`].

use super::Stack;
use crate::time::{Duration, Instant};
use alloc::collections::VecDeque;
use core::net::IpAddr;
use foldhash::fast::FixedState;
use hashbrown::HashMap;

/// Maximum number of destinations with a recorded MTU; a new one evicts the oldest entry.
pub const PATHS_MAX: usize = 1024;
/// Lifetime of a recorded MTU (Linux's `route/mtu_expires`).
const LIFETIME: Duration = Duration::from_secs(600);
/// Minimum path MTU over IPv4 (Linux's `route/min_pmtu`): 68 bytes would cripple a connection.
/// Below it, routers must fragment.
const MTU_MIN_V4: u32 = 552;
/// Minimum MTU over IPv6; errors that report less are ignored (RFC 8201 §4).
const MTU_MIN_V6: u32 = 1280;

/// Properties of the path to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathInfo {
    /// Largest packet.
    pub mtu: u16,
    /// ICMP errors do not lower `mtu` further (a locked route, or the minimum for IPv4): routers
    /// may have to fragment.
    pub locked: bool,
}

struct Learned {
    info: PathInfo,
    until: Instant,
}

/// All recorded MTUs.
pub(super) struct Paths {
    learned: HashMap<IpAddr, Learned, FixedState>,
    order: VecDeque<IpAddr>,
    /// At or before the end of the first lifetime.
    expires: Option<Instant>,
    /// Counts changes of any path, also by routes and the device.
    version: u32,
}

impl Paths {
    /// Empty.
    pub(super) fn new(hasher: FixedState) -> Self {
        let learned = HashMap::with_hasher(hasher);
        Self { learned, order: VecDeque::new(), expires: None, version: 0 }
    }

    /// Records that a path has changed.
    pub(super) fn change(&mut self) {
        self.version = self.version.wrapping_add(1);
    }

    /// Changes whenever a path changes.
    pub(super) fn version(&self) -> u32 {
        self.version
    }

    fn get(&self, destination: IpAddr) -> Option<PathInfo> {
        if self.learned.is_empty() {
            return None;
        }
        self.learned.get(&destination).map(|learned| learned.info)
    }

    fn learn(&mut self, destination: IpAddr, info: PathInfo, now: Instant) {
        if !self.learned.contains_key(&destination) {
            if self.order.len() >= PATHS_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.learned.remove(&oldest);
            }
            self.order.push_back(destination);
        }
        let until = now + LIFETIME;
        self.learned.insert(destination, Learned { info, until });
        self.expires = Some(self.expires.map_or(until, |first| first.min(until)));
    }

    /// When [`Paths::on_deadline`] must be called next.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.expires
    }

    /// Removes expired entries.
    pub(super) fn on_deadline(&mut self, now: Instant) {
        if self.expires.is_none_or(|first| now < first) {
            return;
        }
        self.learned.retain(|_, learned| now < learned.until);
        self.order.retain(|destination| self.learned.contains_key(destination));
        self.expires = self.learned.values().map(|learned| learned.until).min();
        self.change();
    }
}

impl Stack {
    /// Properties of the path to `destination`.
    pub fn path(&self, destination: IpAddr) -> PathInfo {
        let device = self.link_mtu(destination);
        let metrics = self.route_metrics(destination);
        let routed = metrics.mtu.map_or(device, |mtu| device.min(mtu.min(u16::MAX.into()) as u16));
        // Only IPv4 routes can be locked: routers do not fragment IPv6 (RFC 8200 §4.5).
        let locked = destination.is_ipv4() && metrics.mtu.is_some() && metrics.mtu_locked;
        match self.paths.get(destination) {
            Some(learned) if !locked && learned.mtu <= routed => learned,
            _ => PathInfo { mtu: routed, locked },
        }
    }

    /// Records a path MTU from an ICMP error that quotes a packet of ours (RFC 1191 §6.3,
    /// RFC 8201 §4; ip-sysctl, `min_pmtu`).
    pub(crate) fn learn_path_mtu(&mut self, destination: IpAddr, mtu: u32, now: Instant) {
        let known = self.path(destination);
        let least = if destination.is_ipv4() { MTU_MIN_V4 } else { MTU_MIN_V6 };
        if known.locked || mtu > known.mtu.into() || destination.is_ipv6() && mtu < least {
            return;
        }
        let info = PathInfo { mtu: known.mtu.min(mtu.max(least) as u16), locked: mtu < least };
        self.paths.learn(destination, info, now);
        if info != known {
            self.paths.change();
        }
    }
}
