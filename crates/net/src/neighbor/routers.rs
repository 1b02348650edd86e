//! Next hops for destinations off the link, and the choice between several (RFC 4861 §6.3.6).
//!
//! The list is configured, in order of preference. A router that does not answer is avoided until
//! it answers again. One that has stopped being a router comes last (RFC 4861 §7.3.3). If none
//! answers, the one that failed longest ago is tried, so that all are tried in turn.

use super::ROUTER_PROBE_INTERVAL;
use crate::time::Instant;
use alloc::vec::Vec;
use core::net::IpAddr;

struct Router {
    address: IpAddr,
    /// Last time at which it did not answer; `None` once it has answered since.
    failed: Option<Instant>,
    /// It has said that it is a router.
    is_announced: bool,
    /// It has said later that it is none.
    is_retired: bool,
}

/// The next hops of a stack.
pub(super) struct Routers(Vec<Router>);

impl Routers {
    pub(super) fn new(next_hops: &[IpAddr]) -> Self {
        let router =
            |&address| Router { address, failed: None, is_announced: false, is_retired: false };
        Self(next_hops.iter().map(router).collect())
    }

    /// The router to use for destinations of one family.
    #[inline]
    pub(super) fn choose(&self, v4: bool) -> Option<IpAddr> {
        let mut family = self.0.iter().filter(|one| one.address.is_ipv4() == v4);
        let first = family.next()?;
        let is_good = first.failed.is_none() && !first.is_retired;
        Some(if is_good { first.address } else { self.choose_again(v4)? })
    }

    /// The router to use if the first one is not good.
    #[cold]
    fn choose_again(&self, v4: bool) -> Option<IpAddr> {
        let family = self.0.iter().filter(|one| one.address.is_ipv4() == v4);
        let rank = |one: &&Router| (one.failed.is_some(), one.is_retired, one.failed);
        family.min_by_key(rank).map(|one| one.address)
    }

    /// Another router of the family of `failed` that is not known to be unreachable.
    pub(super) fn alternative(&self, failed: IpAddr) -> Option<IpAddr> {
        let mut others = self
            .0
            .iter()
            .filter(|one| one.address.is_ipv4() == failed.is_ipv4() && one.address != failed);
        others.find(|one| one.failed.is_none()).map(|one| one.address)
    }

    /// A router that failed, other than the `chosen` one, and that must be solicited again to find
    /// out whether it is back.
    #[inline]
    pub(super) fn next_probe(&mut self, chosen: IpAddr, now: Instant) -> Option<IpAddr> {
        let router = self.0.iter_mut().find(|one| {
            let is_due = |failed| now.since(failed) >= ROUTER_PROBE_INTERVAL;
            one.failed.is_some_and(is_due) && one.address != chosen
        })?;
        router.failed = Some(now);
        Some(router.address)
    }

    pub(super) fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|one| one.address == address)
    }

    /// Notes whether a router answers.
    pub(super) fn set_failed(&mut self, address: IpAddr, failed: Option<Instant>) {
        for router in self.0.iter_mut().filter(|one| one.address == address) {
            router.failed = failed;
        }
    }

    /// Notes whether a station says that it is a router.
    pub(super) fn announce(&mut self, address: IpAddr, is_router: bool) {
        for router in self.0.iter_mut().filter(|one| one.address == address) {
            router.is_retired = router.is_announced && !is_router;
            router.is_announced |= is_router;
        }
    }
}
