//! The policies of a network: one for all guests, and those of ports that have one of their own.
//!
//! A port's own policy takes the place of the one for all: none of the latter's rules is for that
//! guest.

use crate::egress::pins::Guest;
use crate::egress::policy::{Policy, RuleNumber};
use std::collections::HashMap;
use std::sync::Arc;

/// Flows that each rule has allowed and denied, with its `id`; the default is the last.
pub type ByRule = Vec<(String, [u64; 2])>;

/// The policies of a network, with the flows that their rules have judged.
pub(super) struct Policies {
    /// The one for all guests; without it, guests without one of their own may do everything.
    all: Option<Ruled>,
    ports: HashMap<u16, Port>,
}

/// A port of the switch.
struct Port {
    name: String,
    own: Option<Ruled>,
}

/// A policy, and the flows that its rules have allowed and denied.
struct Ruled {
    policy: Arc<Policy>,
    /// The default has the last place.
    by_rule: Vec<[u64; 2]>,
}

impl Policies {
    pub(super) fn new(all: Option<Arc<Policy>>) -> Self {
        Self { all: all.map(Ruled::new), ports: HashMap::new() }
    }

    /// Replaces the policy for all guests, and returns the one before.
    pub(super) fn set(&mut self, policy: Arc<Policy>) -> Option<Arc<Policy>> {
        self.all.replace(Ruled::new(policy)).map(|before| before.policy)
    }

    /// Gives a port a name and a policy of its own, or none. Returns its own one before.
    pub(super) fn set_port(
        &mut self,
        port: u16,
        name: &str,
        policy: Option<Arc<Policy>>,
    ) -> Option<Arc<Policy>> {
        let own = policy.map(Ruled::new);
        let before = self.ports.insert(port, Port { name: name.to_owned(), own });
        before?.own.map(|own| own.policy)
    }

    /// Forgets a port. Returns true if it had a policy of its own.
    pub(super) fn forget(&mut self, port: u16) -> bool {
        self.ports.remove(&port).is_some_and(|before| before.own.is_some())
    }

    /// Returns the name of a guest's port.
    pub(super) fn name(&self, guest: Guest) -> Option<&str> {
        self.ports.get(&guest?).map(|port| port.name.as_str())
    }

    /// Returns the policy that judges a guest's flows, if there is one.
    pub(super) fn of(&self, guest: Guest) -> Option<&Policy> {
        self.ruled(guest).map(|ruled| &*ruled.policy)
    }

    /// Returns the guest if its port has a policy of its own, `None` if that of all guests judges
    /// it.
    pub(super) fn owner(&self, guest: Guest) -> Guest {
        guest.filter(|port| self.ports.get(port).is_some_and(|port| port.own.is_some()))
    }

    /// Returns all policies with the guest whose own they are: first that for all guests, then
    /// those of ports, by the port's name.
    pub(super) fn each(&self) -> Vec<(Guest, &Policy)> {
        let own = |(number, port): (&u16, &'_ Port)| port.own.is_some().then_some(*number);
        let mut ports: Vec<u16> = self.ports.iter().filter_map(own).collect();
        ports.sort_unstable_by_key(|number| &self.ports[number].name);
        let all = self.all.as_ref().map(|all| (None, &*all.policy));
        let ports = ports.into_iter().filter_map(|port| Some((Some(port), self.of(Some(port))?)));
        all.into_iter().chain(ports).collect()
    }

    /// Counts a flow of a guest by the rule that decided: in place 0 if it was allowed, else in 1.
    pub(super) fn count(&mut self, guest: Guest, rule: RuleNumber, place: usize) {
        let own = guest.and_then(|port| self.ports.get_mut(&port)?.own.as_mut());
        let ruled = own.or(self.all.as_mut());
        let Some(Ruled { by_rule, .. }) = ruled else { return };
        let default = by_rule.len() - 1;
        let at = rule.map_or(default, |number| (number as usize).min(default));
        by_rule[at][place] += 1;
    }

    /// Returns what the rules of the policy for all guests have judged.
    pub(super) fn judged(&self) -> ByRule {
        self.all.as_ref().map(Ruled::judged).unwrap_or_default()
    }

    /// Returns the same for each port that has a policy of its own, by the port's name.
    pub(super) fn judged_by_ports(&self) -> Vec<(String, ByRule)> {
        let judged = |port: &Port| Some((port.name.clone(), port.own.as_ref()?.judged()));
        let mut ports: Vec<_> = self.ports.values().filter_map(judged).collect();
        ports.sort_unstable();
        ports
    }

    fn ruled(&self, guest: Guest) -> Option<&Ruled> {
        let own = guest.and_then(|port| self.ports.get(&port)?.own.as_ref());
        own.or(self.all.as_ref())
    }
}

impl Ruled {
    fn new(policy: Arc<Policy>) -> Self {
        Self { by_rule: vec![[0; 2]; policy.rules().len() + 1], policy }
    }

    fn judged(&self) -> ByRule {
        let ids = (0..self.by_rule.len() as u32).map(|number| self.policy.rule_id(Some(number)));
        ids.map(str::to_owned).zip(self.by_rule.iter().copied()).collect()
    }
}
