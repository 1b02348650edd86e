//! Verdicts about flows that begin: on the interface, or over a native socket.
//!
//! The host's kernel carries native connections. towpath sees none of their bytes: it reads no
//! greeting, delays nothing, and learns at the end how much there was.

use super::{Admission, Decision, Enforcer, State, unix_time};
use crate::egress::pins::Guest;
use crate::egress::policy::{RuleNumber, Verdict};
use crate::egress::rule::FlowTo;
use std::net::SocketAddr;
use towpath_net::time::Instant;

impl Enforcer {
    /// Judges a flow that begins.
    pub fn begin(&self, guest: Guest, to: FlowTo, now: Instant) -> Decision {
        let mut state = self.state();
        let admission = Admission::new(guest, to, self.generation(), now);
        match state.judge(guest, to, now) {
            Some(verdict) => state.admit(admission, verdict, now),
            None => Decision::Allow(admission),
        }
    }

    /// Judges a connection that a native socket is to make, as [`begin`](Self::begin) does. Returns
    /// `None`, and counts nothing, if more than its address decides: its greeting, or bounds of its
    /// bytes. It must begin where towpath sees its bytes, and is judged there.
    pub(crate) fn begin_native(&self, guest: Guest, to: FlowTo, now: Instant) -> Option<Decision> {
        let mut state = self.state();
        let mut admission = Admission::new(guest, to, self.generation(), now);
        admission.is_native = true;
        let Some(verdict) = state.judge(guest, to, now) else {
            return Some(Decision::Allow(admission));
        };
        let is_decided = match verdict {
            Verdict::Greeting => false,
            Verdict::Allow(rule) => !state.bound_bytes(&admission, rule),
            Verdict::Deny(..) => true,
        };
        is_decided.then(|| state.admit(admission, verdict, now))
    }

    /// A native connection has ended. `bytes` are those from and to the guest, if the kernel has
    /// reported them.
    pub(crate) fn native_ended(
        &self,
        admission: &Admission,
        bytes: Option<[u64; 2]>,
        now: Instant,
    ) {
        let took = now.since(admission.begun);
        self.state().note(admission, "end", None, Some((bytes, took)));
    }
}

impl State {
    /// Judges a flow that begins; `None` if no policy is for its guest.
    fn judge(&mut self, guest: Guest, to: FlowTo, now: Instant) -> Option<Verdict> {
        let policy = self.policies.of(guest)?;
        let is_own = self.own.ask(SocketAddr::new(to.address, to.port), now);
        let names = self.pins.names(guest, to.address, now);
        let verdict = policy.judge(to, names, is_own, unix_time());
        if let Some((learned, _)) = &mut self.learned {
            learned.note(to, self.pins.names(guest, to.address, now));
        }
        Some(verdict)
    }

    /// Carries out the verdict about a flow that begins.
    fn admit(&mut self, mut admission: Admission, verdict: Verdict, now: Instant) -> Decision {
        match self.bounded(&mut admission, verdict, now) {
            Verdict::Greeting => Decision::Greeting(admission),
            Verdict::Allow(rule) => {
                admission.rule = rule;
                self.allow(&admission);
                Decision::Allow(admission)
            }
            Verdict::Deny(rule, reason) => {
                admission.rule = rule;
                self.deny(&admission, reason, now);
                Decision::Deny
            }
        }
    }

    /// Returns true if the policy bounds the bytes of a flow that `rule` allows.
    pub(super) fn bound_bytes(&self, admission: &Admission, rule: RuleNumber) -> bool {
        let policy = self.policies.of(admission.guest);
        policy.is_some_and(|policy| {
            policy.limits().bound_bytes() || policy.rule_limits(rule).bound_bytes()
        })
    }
}
