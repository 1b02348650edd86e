//! Verdicts about flows that begin.

use super::{Admission, Decision, Enforcer, State, unix_time};
use crate::egress::pins::Guest;
use crate::egress::policy::Verdict;
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
}

impl State {
    /// Judges a flow that begins; `None` if no policy is for its guest.
    fn judge(&mut self, guest: Guest, to: FlowTo, now: Instant) -> Option<Verdict> {
        let policy = self.policies.of(guest)?;
        let is_own = self.own.ask(SocketAddr::new(to.address, to.port), now);
        let names = self.pins.names(guest, to.address, now);
        let verdict = policy.judge(to, names, is_own, unix_time());
        if let Some((learned, _)) = &mut self.learned {
            learned.note(to, self.pins.latest(guest, to.address, now));
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
}
