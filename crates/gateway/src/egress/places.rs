//! Counts flows under their bounds: how many a guest has at once, and begins in a second.
//!
//! A policy bounds all flows of each guest, and a rule those that it allows to each guest. A flow
//! takes a place under each bound that applies to it, and gives it back when it is dropped.

use crate::egress::pins::Guest;
use crate::egress::policy::{Reason, RuleNumber};
use crate::egress::rule::Limits;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use towpath_net::time::Instant;
use towpath_packet::sync::{AtomicU32, Ordering};

/// Which flows of a guest a bound is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Scope {
    /// All of them.
    Guest,
    /// Those that this rule allows.
    Rule(RuleNumber),
}

/// A flow's place under a bound. Dropping it makes room for another flow.
#[derive(Debug)]
pub(super) struct Place(Arc<AtomicU32>);

impl Drop for Place {
    fn drop(&mut self) {
        // The count orders nothing else.
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The flows that count under bounds.
#[derive(Default)]
pub(super) struct Places(HashMap<(Guest, Scope), Use>);

/// What a guest uses of a bound.
struct Use {
    flows: Arc<AtomicU32>,
    begins: Bucket,
}

impl Places {
    /// Gives a flow that begins a place, or says which bound it meets. `None` if nothing is
    /// bounded.
    pub(super) fn take(
        &mut self,
        guest: Guest,
        scope: Scope,
        limits: Limits,
        now: Instant,
    ) -> Result<Option<Place>, Reason> {
        if !limits.bound_flows() {
            return Ok(None);
        }
        let used = self.used(guest, scope, limits, now);
        if limits.flows.is_some_and(|most| used.flows.load(Ordering::Relaxed) >= most) {
            return Err(Reason::TooManyFlows);
        }
        if limits.new_flows.is_some_and(|rate| !used.begins.take(rate, rate, now)) {
            return Err(Reason::TooManyNewFlows);
        }
        Ok(Some(used.place()))
    }

    /// Gives an open flow a place under the bound of a new policy, which it may exceed.
    pub(super) fn keep(
        &mut self,
        guest: Guest,
        scope: Scope,
        limits: Limits,
        now: Instant,
    ) -> Option<Place> {
        limits.bound_flows().then(|| self.used(guest, scope, limits, now).place())
    }

    /// Forgets what was used under the rules of a policy that is replaced.
    pub(super) fn forget_rules(&mut self) {
        self.0.retain(|(_, scope), _| *scope == Scope::Guest);
    }

    /// Forgets a guest that is gone.
    pub(super) fn forget(&mut self, guest: Guest) {
        self.0.retain(|(of, _), _| *of != guest);
    }

    fn used(&mut self, guest: Guest, scope: Scope, limits: Limits, now: Instant) -> &mut Use {
        self.0.entry((guest, scope)).or_insert_with(|| Use {
            flows: Arc::default(),
            begins: Bucket::full(limits.new_flows.unwrap_or(0), now),
        })
    }
}

impl Use {
    fn place(&self) -> Place {
        self.flows.fetch_add(1, Ordering::Relaxed);
        Place(self.flows.clone())
    }
}

/// A token bucket: `rate` tokens a second, and `burst` at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    left: u32,
    /// Tokens are earned from then on.
    at: Instant,
}

impl Bucket {
    pub(super) fn full(burst: u32, now: Instant) -> Self {
        Self { left: burst, at: now }
    }

    /// Takes a token; returns false if there is none.
    pub(super) fn take(&mut self, rate: u32, burst: u32, now: Instant) -> bool {
        let rate = u128::from(rate.max(1));
        let earned = now.since(self.at).as_micros() * rate / 1_000_000;
        let missing = burst.saturating_sub(self.left);
        if earned >= u128::from(missing) {
            self.left = burst;
            self.at = now;
        } else {
            // Less than `missing`, which is a u32. The part of a token stays earned.
            let (earned, micros) = (earned as u32, earned * 1_000_000 / rate);
            self.left += earned;
            self.at += Duration::from_micros(micros as u64);
        }
        let has_one = self.left > 0;
        self.left -= u32::from(has_one);
        has_one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_micros(millis * 1000)
    }

    /// Goal: a bucket gives its burst at once and its rate in the long run, also to one that asks
    /// more often than tokens are earned, and no more after a long pause.
    #[test]
    fn a_bucket_gives_its_rate() {
        let mut bucket = Bucket::full(5, at(0));
        let mut taken = |from: u64, to: u64| {
            (from..to).step_by(7).filter(|millis| bucket.take(5, 5, at(*millis))).count()
        };
        assert_eq!(taken(0, 10), 2);
        assert_eq!(taken(14, 10_000), 3 + 49);
        assert_eq!(taken(1_000_000, 1_000_007), 1);
        assert_eq!(taken(1_000_007, 1_000_100), 4);
    }

    /// Goal: places are counted for each guest and scope, come back when they are dropped, and a
    /// flow that is kept may exceed the bound.
    #[test]
    fn places_come_back() {
        let mut places = Places::default();
        let limits = Limits { flows: Some(2), ..Limits::default() };
        let rule = Scope::Rule(Some(1));
        let first = places.take(None, rule, limits, at(0)).unwrap();
        let _second = places.take(None, rule, limits, at(0)).unwrap();
        assert_eq!(places.take(None, rule, limits, at(0)).unwrap_err(), Reason::TooManyFlows);
        assert!(places.take(Some(1), rule, limits, at(0)).is_ok());
        assert!(places.take(None, Scope::Guest, limits, at(0)).is_ok());
        drop(first);
        let third = places.take(None, rule, limits, at(0)).unwrap();
        let fourth = places.keep(None, rule, limits, at(0));
        drop(third);
        assert!(places.take(None, rule, limits, at(0)).is_err());
        drop(fourth);
        assert!(places.take(None, rule, limits, at(0)).is_ok());
        // Places of a policy that is gone count no more.
        places.forget_rules();
        let again = [(); 2].map(|()| places.take(None, rule, limits, at(0)).unwrap());
        assert!(again.iter().all(Option::is_some));
        assert!(places.take(None, Scope::Guest, Limits::default(), at(0)).unwrap().is_none());
    }
}
