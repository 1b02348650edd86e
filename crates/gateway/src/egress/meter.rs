//! Meters bytes under bounds: bandwidths, and quotas of bytes.
//!
//! A policy bounds the bytes of each guest, and a rule those of the flows that it allows to each
//! guest. All flows under one bound share its `Meter`, on whichever worker they are. A flow looks
//! at its meters before it moves bytes, and counts afterwards: a load and an atomic change for each
//! call of a socket, no lock. Workers that look at the same time may move more than is left; see
//! [`Tokens`] for bandwidths. A quota is exceeded by at most one call for each worker beyond the
//! first.
//!
//! Bytes are those of payload.

use crate::egress::pins::Guest;
use crate::egress::places::Scope;
use crate::egress::policy::Policy;
use crate::egress::rule::Limits;
use std::collections::HashMap;
use std::sync::Arc;
use towpath_net::time::Instant;
use towpath_packet::sync::{AtomicU64, Ordering};
use towpath_packet::tokens::Tokens;

/// Fewest bytes that a stream gets at once, unless fewer are left of a quota. Less would be sent in
/// segments that are not full.
const GRANT_MIN: u64 = 4 << 10;
/// Smallest depth of a bucket, in bytes: a large frame, four times what a stream gets at least.
const DEPTH_MIN: u64 = 16 << 10;
/// Time whose bytes a bucket holds. Longer, the rate would be exceeded for longer after a pause;
/// shorter, a worker would wake up more often than a hundred times a second.
const DEPTH_MILLIS: u64 = 20;
/// Divisor of the depth: the part that must be there before a stream that waits goes on.
const RESUME_DIVISOR: u64 = 2;
/// Depths of its bucket that a stream may have received of the program: what it moves at once, and
/// as much that arrives meanwhile.
const DEPTHS_PER_WINDOW: u64 = 2;

/// Which way bytes move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Direction {
    /// From the guest.
    Out,
    /// To the guest.
    In,
}

/// What the flows under one bound share.
#[derive(Debug)]
pub(crate) struct Meter {
    /// Bandwidths from and to the guest.
    paces: [Option<Tokens>; 2],
    quota: Option<u64>,
    /// Bytes both ways, which outlast the policy.
    used: Arc<AtomicU64>,
    tally: Arc<Tally>,
}

/// What a bound has done, to all guests.
#[derive(Debug, Default)]
struct Tally {
    delayed: AtomicU64,
    dropped: AtomicU64,
    over_quota: AtomicU64,
}

/// What a bound has done, to all guests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metered {
    /// Bytes of streams that waited for the bandwidth.
    pub delayed_bytes: u64,
    /// Datagrams and echoes beyond the bandwidth, which were dropped.
    pub dropped: u64,
    /// Flows that were ended or denied as the quota was used up.
    pub over_quota: u64,
}

impl Meter {
    fn new(limits: Limits, used: Arc<AtomicU64>, tally: Arc<Tally>) -> Self {
        let paces = [limits.bandwidth_out, limits.bandwidth_in].map(|bits| bits.map(bucket));
        Self { paces, quota: limits.quota, used, tally }
    }

    /// Returns the bucket of this direction, if its bandwidth is bounded.
    fn pace(&self, way: Direction) -> Option<&Tokens> {
        self.paces[way as usize].as_ref()
    }

    /// Returns how many bytes are left of the quota.
    fn left(&self) -> u64 {
        // The sum orders nothing else, here and below.
        let used = |quota: u64| quota.saturating_sub(self.used.load(Ordering::Relaxed));
        self.quota.map_or(u64::MAX, used)
    }

    /// Returns how many bytes a stream that has waited may move now; 0 if it must wait longer.
    pub(crate) fn resumes(&self, way: Direction, now: Instant) -> u64 {
        let Some(pace) = self.pace(way) else { return u64::MAX };
        let left = pace.left(now);
        if left >= pace.depth() / RESUME_DIVISOR { left } else { 0 }
    }

    /// Returns when streams that wait may go on, if none moves before.
    pub(crate) fn resumes_at(&self, way: Direction) -> Instant {
        let at = |pace: &Tokens| pace.ready_at(pace.depth() / RESUME_DIVISOR);
        self.pace(way).map_or(Instant::START, at)
    }

    fn take(&self, way: Direction, bytes: u64, now: Instant) {
        if let Some(pace) = self.pace(way) {
            pace.take(bytes, now);
        }
        if self.quota.is_some() {
            self.used.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Counts a flow that meets the used-up quota. What is left of it is too little for that flow,
    /// so the quota is used up for others, too.
    fn exhaust(&self) {
        if let Some(quota) = self.quota {
            self.used.fetch_max(quota, Ordering::Relaxed);
            self.tally.over_quota.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Makes the bucket of a bandwidth in bits per second.
fn bucket(bits: u64) -> Tokens {
    let bytes = (bits / 8).max(1);
    Tokens::new(bytes, (bytes * DEPTH_MILLIS / 1000).max(DEPTH_MIN))
}

/// What a stream may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grant {
    /// It may move so many bytes.
    Bytes(usize),
    /// It must wait: a bandwidth has no tokens.
    Wait,
    /// It must end: a quota is used up.
    Over,
}

/// What becomes of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    /// It passes, and is counted.
    Passes,
    /// It is dropped, and counted: a bandwidth has no tokens.
    TooFast,
    /// Its flow must end: it does not fit what is left of a quota.
    Over,
}

/// The meters of a flow: that of all flows of its guest, and that of its rule.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meters([Option<Arc<Meter>>; 2]);

impl Meters {
    /// Returns true if nothing is bounded.
    #[inline]
    pub(crate) fn is_none(&self) -> bool {
        self.0[0].is_none() && self.0[1].is_none()
    }

    /// Returns the meters of a flow with one bound.
    #[cfg(test)]
    pub(crate) fn of(limits: Limits) -> Self {
        Self([AllMeters::default().meter(None, None, Scope::Guest, limits), None])
    }

    /// Replaces the meters: that of all flows of the guest, and that of the rule.
    pub(super) fn set(&mut self, meters: [Option<Arc<Meter>>; 2]) {
        self.0 = meters;
    }

    /// Returns true if a quota is used up.
    pub(super) fn is_over(&self) -> bool {
        self.all().any(|meter| meter.left() == 0)
    }

    /// Returns how many bytes a stream may move.
    pub(crate) fn grant(&self, way: Direction, now: Instant) -> Grant {
        let quota = self.all().map(Meter::left).min().unwrap_or(u64::MAX);
        let paces = self.all().filter_map(|meter| meter.pace(way));
        let tokens = paces.map(|pace| pace.left(now)).min().unwrap_or(u64::MAX);
        match (quota, tokens) {
            (0, _) => Grant::Over,
            (_, ..GRANT_MIN) => Grant::Wait,
            _ => Grant::Bytes(usize::try_from(quota.min(tokens)).unwrap_or(usize::MAX)),
        }
    }

    /// Counts bytes that a stream has moved. `has_waited` says that they waited for the bandwidth.
    pub(crate) fn take(&self, way: Direction, bytes: usize, has_waited: bool, now: Instant) {
        if has_waited && let Some(slowest) = self.slowest(way) {
            slowest.tally.delayed.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        self.all().for_each(|meter| meter.take(way, bytes as u64, now));
    }

    /// Judges a datagram. It passes if there is any token, so that the largest one passes sometime.
    pub(crate) fn pass(&self, way: Direction, bytes: usize, now: Instant) -> Pass {
        let has_none = |meter: &&Meter| meter.pace(way).is_some_and(|pace| pace.left(now) == 0);
        if self.all().any(|meter| meter.left() < (bytes as u64).max(1)) {
            return Pass::Over;
        }
        if let Some(slowest) = self.all().find(has_none) {
            slowest.tally.dropped.fetch_add(1, Ordering::Relaxed);
            return Pass::TooFast;
        }
        self.take(way, bytes, false, now);
        Pass::Passes
    }

    /// Counts a flow that a quota ends or denies. `bytes` did not fit.
    pub(crate) fn exhaust(&self, bytes: usize) {
        let is_over = |meter: &&Meter| meter.left() < (bytes as u64).max(1);
        self.all().filter(is_over).for_each(Meter::exhaust);
    }

    /// Returns the meter whose bandwidth a stream must wait for longest.
    pub(crate) fn slowest(&self, way: Direction) -> Option<&Arc<Meter>> {
        let meters = self.0.iter().flatten().filter(|meter| meter.pace(way).is_some());
        meters.max_by_key(|meter| meter.resumes_at(way))
    }

    /// Returns the most bytes that a stream should receive of the program ahead of the bandwidth.
    pub(crate) fn window(&self) -> usize {
        let paces = self.all().filter_map(|meter| meter.pace(Direction::Out));
        let window = paces.map(|pace| pace.depth() * DEPTHS_PER_WINDOW).min();
        window.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(usize::MAX)
    }

    fn all(&self) -> impl Iterator<Item = &Meter> {
        self.0.iter().flatten().map(|meter| &**meter)
    }
}

/// All meters.
#[derive(Default)]
pub(super) struct AllMeters {
    meters: HashMap<(Guest, Scope), Arc<Meter>>,
    /// By the owner of the policy: the guest whose own it is, or `None` if it is for all.
    tallies: HashMap<(Guest, Scope), Arc<Tally>>,
}

impl AllMeters {
    /// Returns the meter of a flow under a bound of the policy of `owner`; `None` if it bounds no
    /// bytes.
    pub(super) fn meter(
        &mut self,
        guest: Guest,
        owner: Guest,
        scope: Scope,
        limits: Limits,
    ) -> Option<Arc<Meter>> {
        if !limits.bound_bytes() {
            return None;
        }
        let tally = self.tallies.entry((owner, scope)).or_default();
        let new = || Arc::new(Meter::new(limits, Arc::default(), tally.clone()));
        Some(self.meters.entry((guest, scope)).or_insert_with(new).clone())
    }

    /// Goes over to another policy for some guests, that of `owner`. What was used of quotas stays
    /// used: that of a guest, and that of a rule whose `id` the new policy has as well.
    pub(super) fn renew(
        &mut self,
        guests: impl Fn(Guest) -> bool,
        before: Option<&Policy>,
        after: Option<&Policy>,
        owner: Guest,
    ) {
        let old: Vec<_> = self.meters.extract_if(|(guest, _), _| guests(*guest)).collect();
        let (Some(before), Some(after)) = (before, after) else { return };
        if old.is_empty() {
            return;
        }
        let numbers = after.rules().iter().zip(0..).map(|(rule, number)| (&rule.id, number));
        let numbers: HashMap<_, u32> = numbers.collect();
        for ((guest, scope), meter) in old {
            let (scope, limits) = match scope {
                Scope::Guest => (scope, after.limits()),
                Scope::Rule(number) => {
                    let rule = number.and_then(|number| before.rules().get(number as usize));
                    let number = rule.and_then(|rule| numbers.get(&rule.id)).copied();
                    (Scope::Rule(number), after.rule_limits(number))
                }
            };
            if limits.bound_bytes() {
                let tally = self.tallies.entry((owner, scope)).or_default().clone();
                let meter = Meter::new(limits, meter.used.clone(), tally);
                self.meters.insert((guest, scope), Arc::new(meter));
            }
        }
    }

    /// Forgets what the bounds of the policy of `owner` have done, as it is replaced.
    pub(super) fn forget_tallies(&mut self, owner: Guest) {
        self.tallies.retain(|(of, _), _| *of != owner);
    }

    /// Forgets a guest that is gone.
    pub(super) fn forget(&mut self, guest: Guest) {
        self.meters.retain(|(of, _), _| *of != guest);
        if guest.is_some() {
            self.forget_tallies(guest);
        }
    }

    /// Returns what a bound of the policy of `owner` has done.
    pub(super) fn metered(&self, owner: Guest, scope: Scope) -> Metered {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        self.tallies.get(&(owner, scope)).map_or_else(Metered::default, |tally| Metered {
            delayed_bytes: read(&tally.delayed),
            dropped: read(&tally.dropped),
            over_quota: read(&tally.over_quota),
        })
    }
}

#[cfg(test)]
mod tests;
