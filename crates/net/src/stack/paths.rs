//! MTUs of paths: what the device takes, what routes say, and what ICMP errors told of, by
//! destination (Linux's route exceptions). TCP and datagrams share what is known.
//!
//! # Theory of operation
//!
//! Who takes an error has seen that it quotes something of ours, and tells the MTU here. It counts
//! for [`LIFETIME`] from then on, or until a still smaller one is told. Connections do not hear it:
//! each compares [`Paths::version`] before it sends, and looks here again when something changed.
//!
//! Bound: [`PATHS_MAX`].

use super::Stack;
use crate::time::{Duration, Instant};
use alloc::collections::VecDeque;
use core::net::IpAddr;
use foldhash::fast::FixedState;
use hashbrown::HashMap;

/// Destinations whose MTU was told; the one that has been known longest is forgotten for a new one.
pub const PATHS_MAX: usize = 1024;
/// How long an MTU that was told counts (Linux's route/mtu_expires and ip6_rt_mtu_expires).
const LIFETIME: Duration = Duration::from_secs(600);
/// Least MTU that is believed over IPv4 (Linux's route/min_pmtu): 68 bytes would cripple a
/// connection. Below it packets are left to be cut on the way.
const MTU_MIN_V4: u32 = 552;
/// What every path of IPv6 takes; who tells of less is not believed (RFC 8201 §4).
const MTU_MIN_V6: u32 = 1280;

/// What is known of the way to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathInfo {
    /// Largest packet.
    pub mtu: u16,
    /// It is not what the path takes, but the least that we send: larger packets than the path's
    /// are cut on the way.
    pub locked: bool,
}

struct Told {
    info: PathInfo,
    until: Instant,
}

/// All that was told.
pub(super) struct Paths {
    told: HashMap<IpAddr, Told, FixedState>,
    order: VecDeque<IpAddr>,
    /// No later than the first end of a lifetime.
    expires: Option<Instant>,
    /// Counts changes of what is known about any path, by routes and the device too.
    version: u32,
}

impl Paths {
    /// Nothing yet; addresses are hashed with `seed`.
    pub(super) fn new(seed: u64) -> Self {
        let told = HashMap::with_hasher(FixedState::with_seed(seed));
        Self { told, order: VecDeque::new(), expires: None, version: 0 }
    }

    /// Something about a path changed.
    pub(super) fn change(&mut self) {
        self.version = self.version.wrapping_add(1);
    }

    /// What changes with every change.
    pub(super) fn version(&self) -> u32 {
        self.version
    }

    fn get(&self, destination: IpAddr) -> Option<PathInfo> {
        if self.told.is_empty() {
            return None;
        }
        self.told.get(&destination).map(|told| told.info)
    }

    fn learn(&mut self, destination: IpAddr, info: PathInfo, now: Instant) {
        if !self.told.contains_key(&destination) {
            if self.order.len() >= PATHS_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.told.remove(&oldest);
            }
            self.order.push_back(destination);
        }
        let until = now + LIFETIME;
        self.told.insert(destination, Told { info, until });
        self.expires = Some(self.expires.map_or(until, |first| first.min(until)));
    }

    /// When [`Paths::on_deadline`] wants to be called next.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.expires
    }

    /// Forgets what is too old.
    pub(super) fn on_deadline(&mut self, now: Instant) {
        if self.expires.is_none_or(|first| now < first) {
            return;
        }
        self.told.retain(|_, told| now < told.until);
        self.order.retain(|destination| self.told.contains_key(destination));
        self.expires = self.told.values().map(|told| told.until).min();
        self.change();
    }
}

impl Stack {
    /// What is known of the way to `destination`.
    pub fn path(&self, destination: IpAddr) -> PathInfo {
        let device = self.link_mtu(destination);
        let metrics = self.route_metrics(destination);
        let routed = metrics.mtu.map_or(device, |mtu| device.min(mtu.min(u16::MAX.into()) as u16));
        // As in Linux only routes of IPv4 can be locked: those of IPv6 have no other to cut.
        let locked = destination.is_ipv4() && metrics.mtu.is_some() && metrics.mtu_locked;
        match self.paths.get(destination) {
            Some(told) if !locked && told.mtu <= routed => told,
            _ => PathInfo { mtu: routed, locked },
        }
    }

    /// An error that quotes something of ours tells of a path's MTU (Linux's ip_rt_update_pmtu and
    /// ip6_rt_update_pmtu).
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
