//! A policy: ordered rules, of which the first that matches a flow decides.
//!
//! # One verdict for each flow
//!
//! An address may have several names, and a rule may be for one of them. Which name a client means
//! is known only from its greeting: the server name of TLS or QUIC, or HTTP's Host. So the verdict
//! has two steps. [`Policy::judge`] looks at the address and the names that have resolved to it. If
//! all of them lead to the same decision, that is the verdict. Otherwise the flow must
//! [greet](Verdict::Greeting) first, and [`Policy::judge_named`] decides by the name it gives.
//!
//! # Cost
//!
//! Rules are found by name and by address in tables, and those found are compared in their order.
//! A verdict takes no memory, and is asked for once for each flow.

use crate::egress::address::{Floor, floor_of};
use crate::egress::index::{Index, first_rule};
use crate::egress::name::Name;
use crate::egress::resolvers::{is_resolver, is_resolver_name};
use crate::egress::rule::{Action, Check, FlowTo, Limits, Rule, Transport};
use std::collections::HashSet;
use std::fmt;
use std::iter::once;
use std::net::IpAddr;

/// Most rules of a policy.
pub const RULES_MAX: usize = 10_000;

/// A policy. See the module documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    rules: Vec<Rule>,
    default: Action,
    has_floors: bool,
    limits: Limits,
    index: Index,
}

/// Rules that are no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// There are too many rules.
    #[error("{0} rules are too many; at most {RULES_MAX} are allowed")]
    TooMany(usize),
    /// Two rules have one name.
    #[error("two rules have the id '{0}'; reports could not tell them apart")]
    Twice(String),
}

/// Number of a rule in its policy; `None` is the default.
pub type RuleNumber = Option<u32>;

/// What a policy decides about a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The flow is allowed.
    Allow(RuleNumber),
    /// The flow is denied.
    Deny(RuleNumber, Reason),
    /// The client's greeting decides. Nothing may leave before it has been read.
    Greeting,
}

/// Why a flow is denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A rule denies it.
    Rule,
    /// No rule matches it.
    Default,
    /// The address is closed, and the rule that allows it does not open it.
    Floor(Floor),
    /// It leads to a resolver outside, and no rule is meant for that.
    Resolver,
    /// The greeting's name has not resolved to this address.
    OtherName,
    /// The greeting has no name, or is none that is understood.
    NoName,
    /// The greeting hides its name (Encrypted Client Hello).
    HiddenName,
    /// The guest has as many flows as it may have.
    TooManyFlows,
    /// The guest has begun as many flows in this second as it may.
    TooManyNewFlows,
    /// The guest has moved as many bytes as it may.
    QuotaUsedUp,
    /// The guest's conversations over QUIC need as much memory as they may.
    TooMuchQuic,
    /// A new policy bounds its bytes, and it has a native socket, whose bytes are not counted.
    Uncounted,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule => f.write_str("denied by a rule"),
            Self::Default => f.write_str("no rule allows it"),
            Self::Floor(floor) => write!(f, "it leads to {floor}, which no rule opens"),
            Self::Resolver => f.write_str("it leads to a resolver, which no rule names"),
            Self::OtherName => f.write_str("the name in its greeting has another address"),
            Self::NoName => f.write_str("its greeting names no host"),
            Self::HiddenName => f.write_str("its greeting hides the name of the host"),
            Self::TooManyFlows => f.write_str("the guest has too many flows at once"),
            Self::TooManyNewFlows => f.write_str("the guest begins too many flows in a second"),
            Self::QuotaUsedUp => f.write_str("the quota of bytes is used up"),
            Self::TooMuchQuic => f.write_str("the guest has too many greetings over QUIC at once"),
            Self::Uncounted => f.write_str("its bytes are bounded now, and are not counted"),
        }
    }
}

/// What the first rule for one name of an address decides.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Opinion {
    action: Action,
    rule: RuleNumber,
    /// The rule is for the name, and how it wants the name checked; `None` for the address.
    check: Option<Check>,
    /// It denies because the flow leads to a resolver.
    is_resolver: bool,
}

impl Policy {
    /// Makes a policy of rules in their order. `default` is for flows that no rule matches. With
    /// `has_floors`, closed addresses need a rule that overrides their floor, and resolvers one
    /// that names them.
    ///
    /// # Errors
    /// There are too many rules, or two of them have one `id`.
    pub fn new(rules: Vec<Rule>, default: Action, has_floors: bool) -> Result<Self, PolicyError> {
        if rules.len() > RULES_MAX {
            return Err(PolicyError::TooMany(rules.len()));
        }
        let mut ids = HashSet::new();
        if let Some(rule) = rules.iter().find(|rule| !ids.insert(rule.id.as_str())) {
            return Err(PolicyError::Twice(rule.id.clone()));
        }
        let index = Index::new(&rules);
        Ok(Self { rules, default, has_floors, limits: Limits::default(), index })
    }

    /// Returns the rules, in their order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Returns what is decided about flows that no rule matches.
    pub fn default_action(&self) -> Action {
        self.default
    }

    /// Returns true if closed addresses need a rule that overrides their floor.
    pub fn has_floors(&self) -> bool {
        self.has_floors
    }

    /// Bounds all flows of each guest.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Returns the bounds of all flows of each guest.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Returns the bounds of the flows that a rule allows to each guest.
    pub fn rule_limits(&self, rule: RuleNumber) -> Limits {
        self.rule(rule).map_or_else(Limits::default, |rule| rule.limits)
    }

    /// Returns the name of a rule in reports: its `id`, or `default`.
    pub fn rule_id(&self, rule: RuleNumber) -> &str {
        self.rule(rule).map_or("default", |rule| &rule.id)
    }

    /// Judges a flow by its address and by the names that have resolved to it. `unix_time` is in
    /// seconds since 1970-01-01 UTC. `is_host` says that the address is one of this host.
    pub fn judge<'a>(
        &self,
        flow: FlowTo,
        names: impl Iterator<Item = &'a Name>,
        is_host: bool,
        unix_time: u64,
    ) -> Verdict {
        let floor = self.floor(flow.address, is_host);
        let by_address = self.rule_for_address(flow, unix_time);
        let has_greeting = flow.transport != Transport::Icmp;
        let (mut allowed, mut denied) = (None, None);
        let (mut needs_greeting, mut opens_floor) = (false, floor.is_none());
        for name in names {
            let opinion = self.opinion(flow, Some(name), by_address, unix_time);
            match (opinion.action, opinion.check) {
                (Action::Deny, _) => denied = denied.or(Some(opinion)),
                (Action::Allow, Some(Check::Dns)) => return self.verdict(opinion, floor),
                (Action::Allow, check) => {
                    allowed = allowed.or(Some(opinion));
                    needs_greeting |= check.is_some();
                    opens_floor |= self.rule(opinion.rule).is_some_and(|rule| rule.overrides_floor);
                }
            }
        }
        match (allowed, denied) {
            (None, None) => self.verdict(self.opinion(flow, None, by_address, unix_time), floor),
            (None, Some(opinion)) => self.verdict(opinion, floor),
            (Some(_), Some(_)) if has_greeting && opens_floor => Verdict::Greeting,
            (Some(_), None) if has_greeting && opens_floor && needs_greeting => Verdict::Greeting,
            (Some(opinion), _) => self.verdict(opinion, floor),
        }
    }

    /// Judges a flow whose greeting has `name`. `names` are those that have resolved to its
    /// address.
    pub fn judge_named<'a>(
        &self,
        flow: FlowTo,
        name: &Name,
        mut names: impl Iterator<Item = &'a Name>,
        is_host: bool,
        unix_time: u64,
    ) -> Verdict {
        if !names.any(|known| known == name) {
            return Verdict::Deny(None, Reason::OtherName);
        }
        let by_address = self.rule_for_address(flow, unix_time);
        let opinion = self.opinion(flow, Some(name), by_address, unix_time);
        self.verdict(opinion, self.floor(flow.address, is_host))
    }

    /// Judges a question for the addresses of a name: it may be asked if a rule allows flows to the
    /// name, on some port. Rules for networks allow no names. `unix_time` is in seconds since
    /// 1970-01-01 UTC.
    ///
    /// # Errors
    /// Why it may not be asked, and the rule that denies it; none for the default.
    pub(crate) fn judge_question(
        &self,
        name: &Name,
        unix_time: u64,
    ) -> Result<(), (RuleNumber, Reason)> {
        let is_resolver = self.has_floors && is_resolver_name(name);
        // A denying rule for some ports leaves the others to later rules.
        let decides = |number: u32| {
            let rule = &self.rules[number as usize];
            rule.expires.is_none_or(|end| unix_time < end)
                && (rule.action == Action::Allow || rule.ports.is_empty())
        };
        let first = match is_resolver {
            true => first_rule(once(self.index.for_exactly(name)), decides),
            false => first_rule(self.lists_for(name), decides),
        };
        match self.rule(first).map(|rule| rule.action) {
            Some(Action::Allow) => Ok(()),
            Some(Action::Deny) => Err((first, Reason::Rule)),
            None if is_resolver => Err((None, Reason::Resolver)),
            None if self.default == Action::Allow => Ok(()),
            None => Err((None, Reason::Default)),
        }
    }

    /// Returns true if a question for this name may be asked.
    pub fn may_resolve(&self, name: &Name, unix_time: u64) -> bool {
        self.judge_question(name, unix_time).is_ok()
    }

    /// Returns true if a rule for this name, on any port, also allows closed addresses.
    pub(crate) fn opens_floors(&self, name: &Name, unix_time: u64) -> bool {
        let is_open = |number: &u32| {
            let rule = &self.rules[*number as usize];
            rule.action == Action::Allow
                && rule.overrides_floor
                && rule.expires.is_none_or(|end| unix_time < end)
        };
        !self.has_floors || self.lists_for(name).flatten().any(is_open)
    }

    /// Returns lists of the rules for flows to this name, whatever its address is.
    fn lists_for<'a>(&'a self, name: &'a Name) -> impl Iterator<Item = &'a [u32]> {
        self.index.for_name(name).chain(once(self.index.for_anywhere()))
    }

    fn rule(&self, number: RuleNumber) -> Option<&Rule> {
        self.rules.get(number? as usize)
    }

    fn floor(&self, address: IpAddr, is_host: bool) -> Option<Floor> {
        if !self.has_floors {
            return None;
        }
        floor_of(address).or(is_host.then_some(Floor::Host))
    }

    /// Returns the first rule that matches the flow by its address.
    fn rule_for_address(&self, flow: FlowTo, unix_time: u64) -> RuleNumber {
        first_rule(self.index.for_address(flow.address), |rule| self.is_for(rule, flow, unix_time))
    }

    fn is_for(&self, rule: u32, flow: FlowTo, unix_time: u64) -> bool {
        self.rules[rule as usize].is_for(flow.transport, flow.port, unix_time)
    }

    /// Returns what the first matching rule decides, if the flow is meant for `name`. `by_address`
    /// is the first that matches by the address.
    fn opinion(
        &self,
        flow: FlowTo,
        name: Option<&Name>,
        by_address: RuleNumber,
        unix_time: u64,
    ) -> Opinion {
        let is_for = |rule| self.is_for(rule, flow, unix_time);
        let by_name = name.and_then(|name| first_rule(self.index.for_name(name), is_for));
        let is_by_name = by_name.is_some_and(|named| by_address.is_none_or(|other| named < other));
        let number = if is_by_name { by_name } else { by_address };
        let rule = self.rule(number);
        let action = rule.map_or(self.default, |rule| rule.action);
        let is_resolver = self.has_floors
            && action == Action::Allow
            && is_resolver(flow, name)
            && !rule.is_some_and(|rule| rule.names_resolver(flow, name));
        Opinion {
            action: if is_resolver { Action::Deny } else { action },
            rule: number,
            check: rule.filter(|_| is_by_name).map(|rule| rule.check),
            is_resolver,
        }
    }

    fn verdict(&self, opinion: Opinion, floor: Option<Floor>) -> Verdict {
        let rule = self.rule(opinion.rule);
        match (opinion.action, floor) {
            (Action::Deny, _) if opinion.is_resolver => {
                Verdict::Deny(opinion.rule, Reason::Resolver)
            }
            (Action::Deny, _) if rule.is_none() => Verdict::Deny(None, Reason::Default),
            (Action::Deny, _) => Verdict::Deny(opinion.rule, Reason::Rule),
            (Action::Allow, Some(floor)) if !rule.is_some_and(|rule| rule.overrides_floor) => {
                Verdict::Deny(opinion.rule, Reason::Floor(floor))
            }
            (Action::Allow, _) => Verdict::Allow(opinion.rule),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::rule::Destination;

    fn rule(action: Action, to: &[&str], ports: &[&str], check: Check) -> Rule {
        let destination = |text: &&str| match text.parse() {
            Ok(net) => Destination::Net(net),
            Err(_) if *text == "*" => Destination::Anywhere,
            Err(_) => Destination::Name(text.parse().unwrap()),
        };
        Rule {
            id: to.join(","),
            action,
            to: to.iter().map(destination).collect(),
            ports: ports.iter().map(|ports| ports.parse().unwrap()).collect(),
            check,
            overrides_floor: false,
            expires: None,
            limits: Limits::default(),
        }
    }

    fn allow(to: &[&str], ports: &[&str]) -> Rule {
        rule(Action::Allow, to, ports, Check::Greeting)
    }

    fn policy(rules: Vec<Rule>) -> Policy {
        Policy::new(rules, Action::Deny, true).unwrap()
    }

    fn tcp(address: &str, port: u16) -> FlowTo {
        FlowTo { transport: Transport::Tcp, address: address.parse().unwrap(), port }
    }

    fn names(texts: &[&str]) -> Vec<Name> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn judge(policy: &Policy, flow: FlowTo, known: &[&str]) -> Verdict {
        policy.judge(flow, names(known).iter(), false, 0)
    }

    fn named(policy: &Policy, flow: FlowTo, name: &str, known: &[&str]) -> Verdict {
        policy.judge_named(flow, &name.parse().unwrap(), names(known).iter(), false, 0)
    }

    const DEFAULT: Verdict = Verdict::Deny(None, Reason::Default);

    #[test]
    fn a_name_must_hold_twice() {
        let policy = policy(vec![allow(&["a.example", "*.b.example"], &["tcp/443"])]);
        let flow = tcp("192.0.2.1", 443);
        assert_eq!(judge(&policy, flow, &[]), DEFAULT, "an address without a name");
        assert_eq!(judge(&policy, flow, &["c.example"]), DEFAULT);
        assert_eq!(judge(&policy, flow, &["a.example"]), Verdict::Greeting);
        assert_eq!(judge(&policy, flow, &["c.example", "x.y.b.example"]), Verdict::Greeting);
        assert_eq!(judge(&policy, tcp("192.0.2.1", 80), &["a.example"]), DEFAULT, "another port");
        let known = ["a.example", "c.example"];
        assert_eq!(named(&policy, flow, "a.example", &known), Verdict::Allow(Some(0)));
        assert_eq!(named(&policy, flow, "c.example", &known), DEFAULT, "a shared address");
        let other = Verdict::Deny(None, Reason::OtherName);
        assert_eq!(named(&policy, flow, "x.b.example", &known), other);
        assert_eq!(judge(&policy, flow, &["b.example"]), DEFAULT, "not below itself");
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let policy = policy(vec![
            rule(Action::Deny, &["secret.a.example", "192.0.2.66"], &[], Check::Greeting),
            allow(&["*.a.example"], &["tcp/443"]),
            allow(&["192.0.2.0/24"], &["tcp/22", "udp"]),
            rule(Action::Allow, &["git.example"], &["tcp/22"], Check::Dns),
        ]);
        let denied = Verdict::Deny(Some(0), Reason::Rule);
        assert_eq!(judge(&policy, tcp("192.0.2.66", 22), &[]), denied);
        assert_eq!(judge(&policy, tcp("192.0.2.1", 443), &["secret.a.example"]), denied);
        assert_eq!(judge(&policy, tcp("192.0.2.1", 22), &[]), Verdict::Allow(Some(2)));
        assert_eq!(judge(&policy, tcp("192.0.2.1", 22), &["x.a.example"]), Verdict::Allow(Some(2)));
        assert_eq!(
            judge(&policy, tcp("198.51.100.1", 22), &["git.example"]),
            Verdict::Allow(Some(3))
        );
        assert_eq!(judge(&policy, tcp("198.51.100.1", 22), &[]), DEFAULT);
        let both = ["x.a.example", "secret.a.example"];
        assert_eq!(judge(&policy, tcp("192.0.2.1", 443), &both), Verdict::Greeting);
        assert_eq!(named(&policy, tcp("192.0.2.1", 443), "secret.a.example", &both), denied);
    }

    /// Goal: a rule that denies a name holds where everything else is allowed.
    #[test]
    fn a_denied_name_is_denied_at_a_shared_address() {
        let rules =
            vec![rule(Action::Deny, &["ads.example"], &[], Check::Greeting), allow(&["*"], &[])];
        let policy = policy(rules);
        let flow = tcp("192.0.2.1", 443);
        assert_eq!(judge(&policy, flow, &["a.example"]), Verdict::Allow(Some(1)));
        assert_eq!(judge(&policy, flow, &["ads.example"]), Verdict::Deny(Some(0), Reason::Rule));
        let both = ["a.example", "ads.example"];
        assert_eq!(judge(&policy, flow, &both), Verdict::Greeting);
        assert_eq!(named(&policy, flow, "a.example", &both), Verdict::Allow(Some(1)));
        assert!(policy.may_resolve(&"a.example".parse().unwrap(), 0));
        let asked = policy.judge_question(&"ads.example".parse().unwrap(), 0);
        assert_eq!(asked, Err((Some(0), Reason::Rule)));
    }

    #[test]
    fn echo_requests_have_no_greeting() {
        let policy = policy(vec![allow(&["a.example"], &[]), allow(&["192.0.2.7"], &["icmp"])]);
        let flow = FlowTo { transport: Transport::Icmp, ..tcp("192.0.2.1", 0) };
        assert_eq!(judge(&policy, flow, &["a.example", "c.example"]), Verdict::Allow(Some(0)));
        assert_eq!(judge(&policy, flow, &["c.example"]), DEFAULT);
    }

    /// Goal: closed addresses need a rule that says so, in every form, also if a name leads there.
    #[test]
    fn floors_hold_unless_a_rule_overrides_them() {
        let mut rules = vec![allow(&["a.example", "10.1.0.0/16"], &[]), allow(&["*"], &[])];
        let closed = |floor| Verdict::Deny(Some(1), Reason::Floor(floor));
        let shut = policy(rules.clone());
        for (address, floor) in [
            ("127.0.0.1", Floor::Loopback),
            ("::ffff:127.0.0.1", Floor::Loopback),
            ("169.254.169.254", Floor::Metadata),
            ("64:ff9b::a9fe:a9fe", Floor::Metadata),
            ("192.168.0.1", Floor::Private),
            ("ff02::1", Floor::Multicast),
        ] {
            assert_eq!(judge(&shut, tcp(address, 80), &[]), closed(floor), "{address}");
        }
        let rebound = Verdict::Deny(Some(0), Reason::Floor(Floor::Private));
        assert_eq!(judge(&shut, tcp("10.0.0.1", 80), &["a.example"]), rebound);
        let host = shut.judge(tcp("192.0.2.1", 80), [].into_iter(), true, 0);
        assert_eq!(host, closed(Floor::Host));
        rules[0].overrides_floor = true;
        let open = policy(rules.clone());
        assert_eq!(judge(&open, tcp("10.1.0.1", 80), &[]), Verdict::Allow(Some(0)));
        assert_eq!(judge(&open, tcp("::ffff:10.1.0.1", 80), &[]), Verdict::Allow(Some(0)));
        assert_eq!(judge(&open, tcp("10.2.0.1", 80), &["a.example"]), Verdict::Greeting);
        assert_eq!(judge(&open, tcp("10.2.0.1", 80), &[]), closed(Floor::Private));
        let none = Policy::new(rules, Action::Deny, false).unwrap();
        assert_eq!(judge(&none, tcp("127.0.0.1", 80), &[]), Verdict::Allow(Some(1)));
    }

    /// Goal: a network that is denied is denied in every form of its addresses.
    #[test]
    fn denied_networks_are_denied_inside_other_addresses() {
        let denying = rule(Action::Deny, &["198.51.100.0/24"], &[], Check::Greeting);
        let policy = policy(vec![denying, allow(&["*"], &[])]);
        for address in [
            "198.51.100.7",
            "::ffff:198.51.100.7",
            "64:ff9b::198.51.100.7",
            "64:ff9b:1::198.51.100.7",
            "2002:c633:6407::1",
        ] {
            let verdict = judge(&policy, tcp(address, 80), &[]);
            assert_eq!(verdict, Verdict::Deny(Some(0), Reason::Rule), "{address}");
        }
    }

    /// Goal: resolvers outside are closed, also where everything else is open, unless a rule names
    /// them.
    #[test]
    fn resolvers_are_closed_unless_a_rule_names_them() {
        let rules = vec![
            allow(&["192.0.2.53"], &["udp/53"]),
            allow(&["dns.quad9.net"], &["tcp/443"]),
            allow(&["8.8.8.8"], &["tcp/443"]),
            allow(&["*"], &[]),
        ];
        let policy = policy(rules);
        let udp = |address, port| FlowTo { transport: Transport::Udp, ..tcp(address, port) };
        let closed = Verdict::Deny(Some(3), Reason::Resolver);
        assert_eq!(judge(&policy, udp("192.0.2.53", 53), &[]), Verdict::Allow(Some(0)));
        assert_eq!(judge(&policy, udp("192.0.2.54", 53), &[]), closed);
        assert_eq!(judge(&policy, tcp("192.0.2.53", 853), &[]), closed);
        assert_eq!(judge(&policy, tcp("8.8.8.8", 443), &[]), Verdict::Allow(Some(2)));
        assert_eq!(judge(&policy, tcp("8.8.4.4", 443), &[]), closed);
        assert_eq!(judge(&policy, tcp("::ffff:8.8.4.4", 443), &[]), closed);
        assert_eq!(judge(&policy, tcp("192.0.2.1", 443), &["dns.google"]), closed);
        assert_eq!(judge(&policy, tcp("192.0.2.1", 443), &["dns.quad9.net"]), Verdict::Greeting);
        assert_eq!(judge(&policy, tcp("192.0.2.1", 443), &[]), Verdict::Allow(Some(3)));
        for (name, may) in [("dns.quad9.net", true), ("dns.google", false), ("a.example", true)] {
            assert_eq!(policy.may_resolve(&name.parse().unwrap(), 0), may, "{name}");
        }
    }

    #[test]
    fn rules_expire() {
        let rules = vec![Rule { expires: Some(100), ..allow(&["192.0.2.1", "a.example"], &[]) }];
        let policy = policy(rules);
        let judge = |time| policy.judge(tcp("192.0.2.1", 80), [].into_iter(), false, time);
        assert_eq!((judge(99), judge(100)), (Verdict::Allow(Some(0)), DEFAULT));
        let name = "a.example".parse().unwrap();
        assert!(policy.may_resolve(&name, 99) && !policy.may_resolve(&name, 100));
    }

    #[test]
    fn names_are_looked_up_if_a_rule_allows_some_port() {
        let policy = policy(vec![
            rule(Action::Deny, &["a.example"], &["tcp/25"], Check::Greeting),
            rule(Action::Deny, &["x.a.example"], &[], Check::Greeting),
            allow(&["a.example", "*.a.example"], &["tcp/443"]),
            allow(&["192.0.2.0/24"], &[]),
        ]);
        for (name, may) in [
            ("a.example", true),
            ("b.a.example", true),
            ("x.a.example", false),
            ("b.example", false),
            ("example", false),
        ] {
            assert_eq!(policy.may_resolve(&name.parse().unwrap(), 0), may, "{name}");
        }
    }

    #[test]
    fn rules_are_bounded() {
        let rules = vec![allow(&["*"], &[]); RULES_MAX + 1];
        let error = Policy::new(rules, Action::Deny, true).err();
        assert_eq!(error, Some(PolicyError::TooMany(RULES_MAX + 1)));
        let twins = vec![allow(&["*"], &["udp"]), allow(&["*"], &["tcp"])];
        let error = Policy::new(twins, Action::Deny, true).err();
        assert_eq!(error, Some(PolicyError::Twice("*".to_owned())));
    }
}
