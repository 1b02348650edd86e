//! What a policy has done so far.

use crate::egress::meter::{AllMeters, Metered};
use crate::egress::pins::Guest;
use crate::egress::places::Scope;
use crate::egress::policies::{ByRule, Policies};
use crate::egress::policy::Policy;

/// Counters of an enforcer. Their names are those of reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Flows that were allowed.
    pub allowed: u64,
    /// Flows that were denied.
    pub denied: u64,
    /// Questions to resolvers that were refused.
    pub questions_refused: u64,
    /// Answers of resolvers that were not passed on: they lead to a closed address, or are no
    /// answers.
    pub answers_refused: u64,
    /// Records that are missing from the audit.
    pub audit_lost: u64,
}

/// What an enforcer has done so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// How many policies there have been, those of ports included.
    pub generation: u64,
    /// Counters since the start.
    pub counters: Counters,
    /// Flows that the rules of the present policy for all guests have judged.
    pub by_rule: ByRule,
    /// Flows that the rules of each port's own policy have judged, by the port's name.
    pub by_ports: Vec<(String, ByRule)>,
    /// What bounds of bytes have done: those of the present policy for all guests, then those of
    /// ports with a policy of their own.
    pub bounds: Vec<Bound>,
}

/// What a bound of bytes has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The port whose own policy has it; `None` for that of all guests.
    pub port: Option<String>,
    /// The `id` of its rule; `*` for that of all flows of a guest.
    pub id: String,
    /// What it has done.
    pub done: Metered,
}

/// Returns what the bounds of bytes of all policies have done.
pub(super) fn bounds(policies: &Policies, meters: &AllMeters) -> Vec<Bound> {
    let of_policy = |(owner, policy): (Guest, &Policy)| {
        let port = policies.name(owner).map(str::to_owned);
        let rules = policy.rules().iter().zip(0..);
        let bounded = rules.filter(|(rule, _)| rule.limits.bound_bytes());
        let rules = bounded.map(|(rule, number)| (rule.id.clone(), Scope::Rule(Some(number))));
        let all = policy.limits().bound_bytes().then(|| ("*".to_owned(), Scope::Guest));
        let bound = |(id, scope)| {
            let done = meters.metered(owner, scope);
            Bound { port: port.clone(), id, done }
        };
        all.into_iter().chain(rules).map(bound).collect::<Vec<_>>()
    };
    policies.each().into_iter().flat_map(of_policy).collect()
}
