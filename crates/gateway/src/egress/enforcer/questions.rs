//! Judges messages to and from resolvers: which names a guest may ask for, how often, and which
//! answers it gets.

use super::{Enforcer, State, unix_time};
use crate::egress::address::floor_of;
use crate::egress::audit::Record;
use crate::egress::dns::{self, Refusal, Response};
use crate::egress::name::Name;
use crate::egress::pins::Guest;
use crate::egress::places::Bucket;
use crate::egress::policy::Reason;
use std::net::IpAddr;
use towpath_net::time::Instant;

/// Questions that a guest may ask at once, and in a second. A package manager asks a few hundred.
const QUESTIONS_BURST: u32 = 500;
const QUESTIONS_PER_SECOND: u32 = 100;

/// What becomes of a message to or from a resolver.
#[derive(Debug, PartialEq, Eq)]
pub enum Message {
    /// It is passed on as it is.
    Pass,
    /// The guest gets this answer instead.
    Answer(Vec<u8>),
    /// It is dropped.
    Drop,
}

impl Enforcer {
    /// Judges a question of a guest to a resolver.
    pub fn question(&self, guest: Guest, question: &[u8], now: Instant) -> Message {
        let mut state = self.state();
        if state.policies.of(guest).is_none() {
            return Message::Pass;
        }
        let Some(asked) = dns::question(question) else {
            return state.count_refused(Message::Drop);
        };
        let refusal = if !state.may_ask(guest, now) {
            Refusal::Rate
        } else if !state.judge_question(guest, asked.name.as_ref()) {
            Refusal::Policy
        } else if dns::is_answered_empty(&asked) {
            return Message::Answer(dns::empty(question, &asked));
        } else {
            return Message::Pass;
        };
        state.count_refused(Message::Answer(dns::refuse(question, &asked, refusal)))
    }

    /// Judges the answer of a resolver to a guest, and remembers the addresses in it.
    pub fn answer(&self, guest: Guest, answer: &[u8], now: Instant) -> Message {
        let mut state = self.state();
        if state.policies.of(guest).is_none() {
            return Message::Pass;
        }
        if let Some(asked) = dns::about_services(answer) {
            let may = asked.name.as_ref().is_some_and(|name| state.may_resolve(guest, name));
            return match may {
                true => Message::Answer(dns::without_keys(answer, &asked)),
                false => state.count_refused_answer(),
            };
        }
        let response = dns::response(answer);
        let response = response.filter(|response| state.may_resolve(guest, &response.name));
        let Some(Response { asked, name, addresses }) = response else {
            return state.count_refused_answer();
        };
        let policy = state.policies.of(guest);
        let opens_floors = policy.is_some_and(|policy| policy.opens_floors(&name, unix_time()));
        let is_closed = |address: &IpAddr| floor_of(*address).is_some();
        if !opens_floors && addresses.iter().any(|(address, _)| is_closed(address)) {
            state.counters.answers_refused += 1;
            return Message::Answer(dns::refuse(answer, &asked, Refusal::Closed));
        }
        for (address, ttl) in addresses {
            state.pins.pin(guest, &name, address, ttl, now);
        }
        Message::Pass
    }
}

impl State {
    /// Returns true if a guest may ask for the name.
    fn may_resolve(&self, guest: Guest, name: &Name) -> bool {
        self.policies.of(guest).is_some_and(|policy| policy.may_resolve(name, unix_time()))
    }

    /// Returns true if a guest may ask for the name, which is `None` if it is none of a host. A
    /// refusal is recorded.
    fn judge_question(&self, guest: Guest, name: Option<&Name>) -> bool {
        let Some(policy) = self.policies.of(guest) else { return true };
        let no_host = (None, Reason::Default);
        let judged = name.ok_or(no_host).and_then(|name| policy.judge_question(name, unix_time()));
        if let (Err((rule, reason)), Some(audit)) = (judged, &self.audit) {
            let rule = policy.rule_id(rule);
            audit.put(&Record::question(self.port_name(guest), name, rule, reason));
        }
        judged.is_ok()
    }

    fn count_refused(&mut self, message: Message) -> Message {
        self.counters.questions_refused += 1;
        message
    }

    fn count_refused_answer(&mut self) -> Message {
        self.counters.answers_refused += 1;
        Message::Drop
    }

    /// Returns true if a guest may ask another question now.
    fn may_ask(&mut self, guest: Guest, now: Instant) -> bool {
        let bucket = self.questions.entry(guest);
        let bucket = bucket.or_insert_with(|| Bucket::full(QUESTIONS_BURST, now));
        bucket.take(QUESTIONS_PER_SECOND, QUESTIONS_BURST, now)
    }
}
