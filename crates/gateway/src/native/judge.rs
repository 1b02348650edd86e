//! The gateway's side of the policy for native connections: asks it, and remembers which ones it
//! has admitted.
//!
//! The supervisor gives each connection a number of its own. The bound on their number is the
//! supervisor's: flows of the configuration, and those it asks about.

use crate::egress::enforcer::{Admission, Decision, Enforcer};
use crate::egress::rule::{FlowTo, Transport};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use towpath_net::time::Instant;

/// What becomes of a connection that may be native.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NativeVerdict {
    /// It is admitted, and native.
    Native,
    /// More than its address decides: it takes the interface, where it is judged.
    Interface,
    /// It is denied.
    Denied,
}

impl NativeVerdict {
    const ALL: [Self; 3] = [Self::Native, Self::Interface, Self::Denied];

    pub(super) fn number(self) -> u64 {
        self as u64
    }

    pub(super) fn of(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|verdict| verdict.number() == number)
    }
}

/// The end of a native connection that was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlowEnd {
    pub(super) number: u64,
    /// Bytes from and to the program, if the kernel has reported them.
    pub(super) bytes: Option<[u64; 2]>,
}

/// Asks the policy.
#[derive(Debug)]
pub(super) struct Judge {
    enforcer: Arc<Enforcer>,
    /// The policy by which all admitted connections were judged.
    generation: u64,
    admitted: HashMap<u64, Admitted>,
}

/// A connection that was admitted, and is not over.
#[derive(Debug)]
struct Admitted {
    admission: Admission,
    /// A later policy denies it: the supervisor ends it.
    is_withdrawn: bool,
}

impl Judge {
    pub(super) fn new(enforcer: Arc<Enforcer>) -> Self {
        let generation = enforcer.generation();
        Self { enforcer, generation, admitted: HashMap::new() }
    }

    /// Judges a connection of the program that leads `to` the host.
    pub(super) fn judge(&mut self, number: u64, to: SocketAddr, now: Instant) -> NativeVerdict {
        let flow = FlowTo { transport: Transport::Tcp, address: to.ip(), port: to.port() };
        // The program is the only guest, which has no port of a switch.
        match self.enforcer.begin_native(None, flow, now) {
            Some(Decision::Allow(admission)) => {
                self.admitted.insert(number, Admitted { admission, is_withdrawn: false });
                NativeVerdict::Native
            }
            Some(Decision::Deny) => NativeVerdict::Denied,
            Some(Decision::Greeting(_)) | None => NativeVerdict::Interface,
        }
    }

    /// A connection is over, or was never made.
    pub(super) fn end(&mut self, end: FlowEnd, now: Instant) {
        if let Some(admitted) = self.admitted.remove(&end.number) {
            self.enforcer.native_ended(&admitted.admission, end.bytes, now);
        }
    }

    /// If there is a new policy, returns the numbers of the connections that it denies.
    pub(super) fn review(&mut self, now: Instant) -> Vec<u64> {
        let generation = self.enforcer.generation();
        if self.generation == generation {
            return Vec::new();
        }
        self.generation = generation;
        let open = self.admitted.iter_mut().filter(|(_, admitted)| !admitted.is_withdrawn);
        let denied = open.filter_map(|(number, admitted)| {
            admitted.is_withdrawn = !self.enforcer.review(&mut admitted.admission, now);
            admitted.is_withdrawn.then_some(*number)
        });
        denied.collect()
    }

    /// The program has ended, and with it all that was not reported.
    pub(super) fn finish(&mut self, now: Instant) {
        for (_, admitted) in self.admitted.drain() {
            self.enforcer.native_ended(&admitted.admission, None, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::policy::Policy;
    use crate::egress::rule::{Action, Check, Limits, Rule};

    fn rule(to: &str, limits: Limits) -> Rule {
        Rule {
            id: format!("rule-{}", to.replace(['/', ':'], "-")),
            action: Action::Allow,
            to: vec![to.parse().unwrap()],
            ports: Vec::new(),
            check: Check::Greeting,
            overrides_floor: false,
            expires: None,
            limits,
        }
    }

    fn policy(rules: Vec<Rule>) -> Policy {
        Policy::new(rules, Action::Deny, true).unwrap()
    }

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    const NOW: Instant = Instant::START;

    /// Goal: an address decides; a bound of bytes takes the interface, and counts nothing there.
    #[test]
    fn addresses_are_judged() {
        let quota = Limits { quota: Some(1000), ..Limits::default() };
        let rules = vec![rule("192.0.2.0/24", Limits::default()), rule("198.51.100.0/24", quota)];
        let enforcer = Arc::new(Enforcer::new(policy(rules), None));
        let mut judge = Judge::new(enforcer.clone());
        assert_eq!(judge.judge(1, at("192.0.2.1:80"), NOW), NativeVerdict::Native);
        assert_eq!(judge.judge(2, at("203.0.113.1:80"), NOW), NativeVerdict::Denied);
        assert_eq!(judge.judge(3, at("198.51.100.1:80"), NOW), NativeVerdict::Interface);
        for closed in ["127.0.0.1:80", "[64:ff9b::7f00:1]:80", "[::ffff:10.0.0.1]:80"] {
            assert_eq!(judge.judge(4, at(closed), NOW), NativeVerdict::Denied, "{closed}");
        }
        let counters = enforcer.summary().counters;
        assert_eq!((counters.allowed, counters.denied), (1, 4));
        assert_eq!(
            NativeVerdict::ALL.map(|one| NativeVerdict::of(one.number())),
            NativeVerdict::ALL.map(Some)
        );
    }

    /// Goal: connections count under the bound of flows until they are over.
    #[test]
    fn flows_are_bounded() {
        let one = Limits { flows: Some(1), ..Limits::default() };
        let mut judge =
            Judge::new(Arc::new(Enforcer::new(policy(vec![rule("192.0.2.0/24", one)]), None)));
        assert_eq!(judge.judge(1, at("192.0.2.1:80"), NOW), NativeVerdict::Native);
        assert_eq!(judge.judge(2, at("192.0.2.1:80"), NOW), NativeVerdict::Denied);
        judge.end(FlowEnd { number: 2, bytes: None }, NOW);
        judge.end(FlowEnd { number: 1, bytes: None }, NOW);
        assert_eq!(judge.judge(3, at("192.0.2.1:80"), NOW), NativeVerdict::Native);
    }

    /// Goal: a new policy withdraws what it denies, and what it cannot enforce, once.
    #[test]
    fn a_new_policy_withdraws() {
        let rules = ["192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24"];
        let free = |to| rule(to, Limits::default());
        let enforcer = Arc::new(Enforcer::new(policy(rules.map(free).into()), None));
        let mut judge = Judge::new(enforcer.clone());
        for (number, to) in (0..).zip(["192.0.2.1:80", "198.51.100.1:80", "203.0.113.1:80"]) {
            assert_eq!(judge.judge(number, at(to), NOW), NativeVerdict::Native);
        }
        assert!(judge.review(NOW).is_empty());
        let quota = Limits { quota: Some(1000), ..Limits::default() };
        enforcer.set_policy(policy(vec![free("192.0.2.0/24"), rule("198.51.100.0/24", quota)]));
        let mut denied = judge.review(NOW);
        denied.sort_unstable();
        assert_eq!(denied, [1, 2]);
        enforcer.set_policy(policy(Vec::new()));
        assert_eq!(judge.review(NOW), [0]);
        judge.finish(NOW);
        assert!(judge.admitted.is_empty());
    }
}
