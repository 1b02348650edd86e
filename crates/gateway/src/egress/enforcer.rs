//! Carries out a policy: one verdict for each flow, names for addresses, counters, and the audit.
//!
//! One enforcer serves all workers of a network. They take its lock once when a flow begins, when
//! its greeting is read and when it ends, and once for each message to and from a resolver; never
//! for a packet. While the policy changes nothing but [`Enforcer::generation`] is read.

mod questions;

use crate::egress::audit::{Audit, Record};
use crate::egress::greeting::Greeting;
use crate::egress::learned::Learned;
use crate::egress::meter::{AllMeters, Meters};
use crate::egress::name::Name;
use crate::egress::own::OwnAddresses;
use crate::egress::pins::{Guest, Pins};
use crate::egress::places::{Bucket, Place, Places, Scope};
use crate::egress::policies::Policies;
use crate::egress::policy::{Policy, PolicyError, Reason, RuleNumber, Verdict};
use crate::egress::rule::{Action, FlowTo};
use crate::egress::summary::{Counters, Summary, bounds};
pub use questions::Message;
use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use towpath_net::time::Instant;
use towpath_packet::sync::{AtomicU64, Ordering};

/// Carries out a policy. See the module documentation.
pub struct Enforcer {
    generation: AtomicU64,
    state: Mutex<State>,
}

struct State {
    audit: Option<Audit>,
    /// What flows would have needed, and the file for it, if everything is allowed for that.
    learned: Option<(Learned, File)>,
    policies: Policies,
    counters: Counters,
    pins: Pins,
    own: OwnAddresses,
    places: Places,
    meters: AllMeters,
    /// How many questions each guest may ask.
    questions: HashMap<Guest, Bucket>,
}

/// The verdict about a flow.
#[derive(Debug)]
pub enum Decision {
    /// It may go on.
    Allow(Admission),
    /// Its greeting decides.
    Greeting(Admission),
    /// It is denied, and the audit has it.
    Deny,
}

/// A flow that was judged. It counts under the bounds of flows until it is dropped.
#[derive(Debug)]
pub struct Admission {
    guest: Guest,
    to: FlowTo,
    rule: RuleNumber,
    /// The name in its greeting.
    name: Option<Name>,
    generation: u64,
    begun: Instant,
    /// Its places among all flows of the guest, and among those of the rule.
    places: [Option<Place>; 2],
    /// The bounds of its bytes.
    meters: Meters,
    /// Why it is ended, if its quota ends it.
    cut: Option<Reason>,
    /// It is for a native socket: towpath sees none of its bytes.
    is_native: bool,
}

impl Enforcer {
    /// Makes an enforcer of a policy. `audit` takes a record of each flow.
    pub fn new(policy: impl Into<Arc<Policy>>, audit: Option<Audit>) -> Self {
        Self::with(Some(policy.into()), audit, None)
    }

    /// Makes an enforcer for ports that get a policy of their own; other guests may do everything.
    pub fn for_ports(audit: Option<Audit>) -> Self {
        Self::with(None, audit, None)
    }

    /// Makes an enforcer that allows everything, and notes what rules it would have needed for
    /// [`write_learned`](Self::write_learned) to write to `file`.
    ///
    /// # Errors
    /// That of [`Policy::new`].
    pub fn learning(file: File, audit: Option<Audit>) -> Result<Self, PolicyError> {
        let policy = Policy::new(Vec::new(), Action::Allow, false)?;
        Ok(Self::with(Some(policy.into()), audit, Some((Learned::default(), file))))
    }

    fn with(
        policy: Option<Arc<Policy>>,
        audit: Option<Audit>,
        learned: Option<(Learned, File)>,
    ) -> Self {
        let state = State {
            audit,
            learned,
            policies: Policies::new(policy),
            counters: Counters::default(),
            pins: Pins::default(),
            own: OwnAddresses::default(),
            places: Places::default(),
            meters: AllMeters::default(),
            questions: HashMap::new(),
        };
        Self { generation: AtomicU64::new(1), state: Mutex::new(state) }
    }

    /// Starts the thread of the audit, if there is one that does not run.
    ///
    /// # Errors
    /// The error of starting a thread.
    pub(crate) fn start(&self) -> io::Result<()> {
        self.state().audit.as_mut().map_or(Ok(()), Audit::start)
    }

    /// Writes the policy that would have allowed all flows so far, if this enforcer learns.
    ///
    /// # Errors
    /// The error of the write.
    pub fn write_learned(&self) -> io::Result<()> {
        match &mut self.state().learned {
            Some((learned, file)) => file.write_all(learned.policy().as_bytes()),
            None => Ok(()),
        }
    }

    /// Makes the audit go on in the file that has its name now, after the user has moved the one
    /// before. Returns false if there is no audit, or if it is too far behind.
    pub fn reopen_audit(&self) -> bool {
        self.state().audit.as_ref().is_some_and(Audit::reopen)
    }

    /// Returns how many policies there have been, those of ports included. Flows of an earlier one
    /// are reviewed.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Replaces the policy of all guests that have none of their own, for all flows at once. Names
    /// keep their addresses. What was used of quotas stays used, if the new policy has a quota for
    /// all flows, or in the rule of the same `id`.
    ///
    /// Returns the one before. To free thousands of rules takes about a millisecond: a thread that
    /// moves packets had better leave that to another one.
    pub fn set_policy(&self, policy: impl Into<Arc<Policy>>) -> Option<Arc<Policy>> {
        let mut state = self.state();
        let State { policies, meters, .. } = &mut *state;
        let before = policies.set(policy.into());
        meters.forget_tallies(None);
        let is_for_all = |guest| policies.owner(guest).is_none();
        meters.renew(is_for_all, before.as_deref(), policies.of(None), None);
        state.places.forget_rules();
        self.generation.fetch_add(1, Ordering::Release);
        before
    }

    /// Gives a port a policy of its own in place of the one for all guests, or none. `name` is the
    /// port's, for reports. What was used of quotas stays used, as with
    /// [`set_policy`](Self::set_policy).
    pub(crate) fn set_port_policy(&self, port: u16, name: &str, policy: Option<Arc<Policy>>) {
        let mut state = self.state();
        let State { policies, meters, .. } = &mut *state;
        let (guest, is_own) = (Some(port), policy.is_some());
        let before = policies.set_port(port, name, policy);
        if !is_own && before.is_none() {
            return;
        }
        meters.forget_tallies(guest);
        let before = before.as_deref().or(policies.of(None));
        meters.renew(|of| of == guest, before, policies.of(guest), policies.owner(guest));
        state.places.forget_rules();
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Returns true if a policy is for this guest.
    pub fn has_policy(&self, guest: Guest) -> bool {
        self.state().policies.of(guest).is_some()
    }

    /// Returns what has been done so far.
    pub fn summary(&self) -> Summary {
        let state = self.state();
        let audit_lost = state.audit.as_ref().map_or(0, Audit::lost);
        Summary {
            generation: self.generation(),
            counters: Counters { audit_lost, ..state.counters },
            by_rule: state.policies.judged(),
            by_ports: state.policies.judged_by_ports(),
            bounds: bounds(&state.policies, &state.meters),
        }
    }

    /// Judges a flow by its greeting, which is whole. Returns true if it may go on.
    pub(crate) fn greeted(
        &self,
        admission: &mut Admission,
        greeting: &Greeting,
        now: Instant,
    ) -> bool {
        let mut state = self.state();
        let verdict = match greeting {
            Greeting::Name(name) => {
                let is_first = admission.name.is_none();
                let is_same = admission.name.get_or_insert_with(|| name.clone()) == name;
                match (is_first, is_same) {
                    (true, _) => state.judge_named(admission, now),
                    (false, true) => return true,
                    (false, false) => {
                        admission.name = Some(name.clone());
                        Verdict::Deny(None, Reason::OtherName)
                    }
                }
            }
            Greeting::Hidden => Verdict::Deny(None, Reason::HiddenName),
            Greeting::Unnamed | Greeting::Partial => Verdict::Deny(None, Reason::NoName),
        };
        match state.bounded(admission, verdict, now) {
            Verdict::Allow(rule) => {
                admission.rule = rule;
                state.allow(admission);
                true
            }
            Verdict::Deny(rule, reason) => {
                admission.rule = rule;
                state.deny(admission, reason, now);
                false
            }
            Verdict::Greeting => false,
        }
    }

    /// Denies a flow whose greeting is not read to its end.
    pub fn refuse(&self, admission: &Admission, reason: Reason, now: Instant) {
        self.state().deny(admission, reason, now);
    }

    /// Judges an open flow again if the policy has changed since. Returns true if it may go on. A
    /// name keeps the address that it had when the flow began.
    pub(crate) fn review(&self, admission: &mut Admission, now: Instant) -> bool {
        let generation = self.generation();
        if admission.generation == generation {
            return true;
        }
        admission.generation = generation;
        let mut state = self.state();
        let state = &mut *state;
        let (to, time) = (admission.to, unix_time());
        let Some(policy) = state.policies.of(admission.guest) else {
            admission.rule = None;
            state.keep(admission, now);
            return true;
        };
        let is_own = state.own.ask(SocketAddr::new(to.address, to.port), now);
        let verdict = match &admission.name {
            Some(name) => policy.judge_named(to, name, [name].into_iter(), is_own, time),
            None => {
                let names = state.pins.names(admission.guest, to.address, admission.begun);
                policy.judge(to, names, is_own, time)
            }
        };
        match verdict {
            Verdict::Allow(rule) if admission.is_native && state.bound_bytes(admission, rule) => {
                admission.rule = rule;
                state.deny(admission, Reason::Uncounted, now);
                false
            }
            Verdict::Allow(rule) => {
                admission.rule = rule;
                state.keep(admission, now);
                true
            }
            Verdict::Deny(rule, reason) => {
                admission.rule = rule;
                state.deny(admission, reason, now);
                false
            }
            // It has said nothing that could be checked.
            Verdict::Greeting => {
                admission.rule = None;
                state.deny(admission, Reason::NoName, now);
                false
            }
        }
    }

    /// An admitted flow has ended. `bytes` are those from and to the guest.
    pub fn ended(&self, admission: &Admission, bytes: [u64; 2], now: Instant) {
        let took = now.since(admission.begun);
        self.state().note(admission, "end", admission.cut, Some((Some(bytes), took)));
    }

    /// Forgets the guest of a port that is gone: its names, its bounds and its policy. Another port
    /// may get the same number.
    pub fn forget(&self, port: u16) {
        let mut state = self.state();
        let guest = Some(port);
        if state.policies.forget(port) {
            self.generation.fetch_add(1, Ordering::Release);
        }
        state.pins.forget(guest);
        state.places.forget(guest);
        state.meters.forget(guest);
        state.questions.remove(&guest);
    }

    /// Nothing panics while the state is inconsistent.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Enforcer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Enforcer").field("generation", &self.generation()).finish_non_exhaustive()
    }
}

impl Admission {
    fn new(guest: Guest, to: FlowTo, generation: u64, begun: Instant) -> Self {
        let (places, meters) = ([None, None], Meters::default());
        let (rule, name, cut, is_native) = (None, None, None, false);
        Self { guest, to, rule, name, generation, begun, places, meters, cut, is_native }
    }

    /// Returns what bounds the bytes of the flow.
    #[inline]
    pub(crate) fn meters(&self) -> &Meters {
        &self.meters
    }

    /// The flow must end, as `bytes` do not fit what is left of a quota: the record of its end says
    /// so.
    pub(crate) fn exhaust(&mut self, bytes: usize) {
        self.meters.exhaust(bytes);
        self.cut = Some(Reason::QuotaUsedUp);
    }

    /// Returns the guest whose flow it is.
    pub fn guest(&self) -> Guest {
        self.guest
    }
}

impl State {
    fn allow(&mut self, admission: &Admission) {
        self.policies.count(admission.guest, admission.rule, 0);
        self.counters.allowed += 1;
        self.note(admission, "allow", None, None);
    }

    fn deny(&mut self, admission: &Admission, reason: Reason, now: Instant) {
        self.policies.count(admission.guest, admission.rule, 1);
        self.counters.denied += 1;
        let took = now.since(admission.begun);
        let end = (!took.is_zero()).then_some((Some([0; 2]), took));
        self.note(admission, "deny", Some(reason), end);
    }

    /// Hands a record over to the audit, if there is one and the guest has a policy.
    fn note(
        &self,
        admission: &Admission,
        verdict: &'static str,
        reason: Option<Reason>,
        end: Option<(Option<[u64; 2]>, Duration)>,
    ) {
        if let (Some(audit), Some(policy)) = (&self.audit, self.policies.of(admission.guest)) {
            let rule = policy.rule_id(admission.rule).to_owned();
            let Admission { guest, to, begun, .. } = admission;
            let names = self.pins.names(*guest, to.address, *begun).map(Name::to_string).collect();
            audit.put(&Record {
                guest: self.port_name(*guest),
                to: Some(*to),
                verdict,
                rule,
                reason: reason.map(|reason| reason.to_string()),
                names,
                greeting: admission.name.as_ref().map(Name::to_string),
                is_native: admission.is_native,
                end,
            });
        }
    }

    fn port_name(&self, guest: Guest) -> Option<String> {
        self.policies.name(guest).map(str::to_owned)
    }

    fn judge_named(&self, admission: &Admission, now: Instant) -> Verdict {
        let Admission { guest, to, name, .. } = admission;
        let Some(name) = name else { return Verdict::Deny(None, Reason::NoName) };
        let Some(policy) = self.policies.of(*guest) else { return Verdict::Allow(None) };
        // The names of the address when the flow began: an answer may end while it greets.
        let names = self.pins.names(*guest, to.address, admission.begun);
        let is_own = self.own.is_known(to.address, now);
        policy.judge_named(*to, name, names, is_own, unix_time())
    }

    /// Gives a flow that begins or has greeted its places, or denies it if it meets a bound. The
    /// rule is known only once the flow is allowed.
    fn bounded(&mut self, admission: &mut Admission, verdict: Verdict, now: Instant) -> Verdict {
        let rule = match verdict {
            Verdict::Deny(..) => return verdict,
            Verdict::Allow(rule) => Some(rule),
            Verdict::Greeting => None,
        };
        let guest = admission.guest;
        let places = &mut admission.places;
        let mut take = |place: &mut Option<Place>, scope, limits| {
            if place.is_none() {
                *place = self.places.take(guest, scope, limits, now)?;
            }
            Ok(())
        };
        let Some(policy) = self.policies.of(guest) else { return verdict };
        let taken = take(&mut places[0], Scope::Guest, policy.limits()).and_then(|()| match rule {
            Some(rule) => take(&mut places[1], Scope::Rule(rule), policy.rule_limits(rule)),
            None => Ok(()),
        });
        if let Err(reason) = taken {
            return Verdict::Deny(rule.flatten(), reason);
        }
        self.meter(admission, rule);
        match admission.meters.is_over() {
            false => verdict,
            true => {
                admission.meters.exhaust(0);
                Verdict::Deny(rule.flatten(), Reason::QuotaUsedUp)
            }
        }
    }

    /// Gives a flow the meters that count its bytes, as far as its rule is known.
    fn meter(&mut self, admission: &mut Admission, rule: Option<RuleNumber>) {
        let Self { meters, policies, .. } = self;
        let guest = admission.guest;
        let mut meter = |scope, limits| meters.meter(guest, policies.owner(guest), scope, limits);
        let (of_all, of_rule) = policies.of(guest).map_or((None, None), |policy| {
            let of_rule = rule.and_then(|rule| meter(Scope::Rule(rule), policy.rule_limits(rule)));
            (meter(Scope::Guest, policy.limits()), of_rule)
        });
        admission.meters.set([of_all, of_rule]);
    }

    /// Counts an open flow under the bounds of a new policy.
    fn keep(&mut self, admission: &mut Admission, now: Instant) {
        self.meter(admission, Some(admission.rule));
        let Admission { guest, rule, places: [all, by_rule], .. } = admission;
        let policy = self.policies.of(*guest);
        let (limits, of_rule) = policy
            .map_or_else(Default::default, |policy| (policy.limits(), policy.rule_limits(*rule)));
        *by_rule = self.places.keep(*guest, Scope::Rule(*rule), of_rule, now);
        if all.is_none() || !limits.bound_flows() {
            *all = self.places.keep(*guest, Scope::Guest, limits, now);
        }
    }
}

/// Returns seconds since 1970-01-01 UTC.
fn unix_time() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

mod begin;
#[cfg(test)]
mod tests;
