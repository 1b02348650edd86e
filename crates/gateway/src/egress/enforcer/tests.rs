//! An enforcer, asked as a gateway asks it.

use super::*;
use crate::egress::meter::{Direction, Grant, Metered};
use crate::egress::rule::{Check, Destination, Limits, Rule};
use crate::egress::summary::Bound;

fn rule(id: &str, to: &str, check: Check) -> Rule {
    Rule {
        id: id.to_owned(),
        action: Action::Allow,
        to: vec![to.parse::<Destination>().unwrap()],
        ports: Vec::new(),
        check,
        overrides_floor: false,
        expires: None,
        limits: Limits::default(),
    }
}

fn enforcer(rules: Vec<Rule>) -> Enforcer {
    Enforcer::new(Policy::new(rules, Action::Deny, true).unwrap(), None)
}

/// Returns a policy for a port.
fn own(rules: Vec<Rule>) -> Option<Arc<Policy>> {
    Some(Arc::new(Policy::new(rules, Action::Deny, true).unwrap()))
}

fn at(secs: u64) -> Instant {
    Instant::from_micros(secs * 1_000_000)
}

fn flow(text: &str) -> FlowTo {
    text.parse().unwrap()
}

fn question(name: &str) -> Vec<u8> {
    let mut bytes = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        bytes.push(label.len() as u8);
        bytes.extend(label.as_bytes());
    }
    bytes.extend([0, 0, 1, 0, 1]);
    bytes
}

/// The answer with one address, valid for a minute.
fn answer(name: &str, address: [u8; 4]) -> Vec<u8> {
    let mut bytes = question(name);
    (bytes[2], bytes[3], bytes[7]) = (0x81, 0x80, 1);
    bytes.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
    bytes.extend(address);
    bytes
}

fn named(name: &str) -> Greeting {
    Greeting::Name(name.parse().unwrap())
}

/// Goal: a flow passes if its address came from an answer and its greeting has that name; counters
/// show what was decided, and by which rule.
#[test]
fn a_name_opens_its_address_for_its_greeting() {
    let enforcer = enforcer(vec![rule("web", "a.example", Check::Greeting)]);
    let to = flow("tcp://192.0.2.1:443");
    assert!(matches!(enforcer.begin(None, to, at(0)), Decision::Deny));
    assert_eq!(enforcer.question(None, &question("a.example"), at(0)), Message::Pass);
    assert!(matches!(
        enforcer.question(None, &question("b.example"), at(0)),
        Message::Answer(refused) if refused[3] & 15 == 5
    ));
    let found = answer("a.example", [192, 0, 2, 1]);
    assert_eq!(enforcer.answer(None, &found, at(0)), Message::Pass);
    for (greeting, passes) in [
        (named("a.example"), true),
        (named("b.example"), false),
        (Greeting::Unnamed, false),
        (Greeting::Hidden, false),
        (Greeting::Partial, false),
    ] {
        let Decision::Greeting(mut admission) = enforcer.begin(None, to, at(1)) else {
            panic!("its greeting decides")
        };
        assert_eq!(enforcer.greeted(&mut admission, &greeting, at(1)), passes, "{greeting:?}");
        if passes {
            assert!(enforcer.greeted(&mut admission, &greeting, at(1)), "a second hello");
            assert!(!enforcer.greeted(&mut admission, &named("b.example"), at(1)));
        }
    }
    // The answer was for another guest, and has ended.
    assert!(matches!(enforcer.begin(Some(1), to, at(1)), Decision::Deny));
    assert!(matches!(enforcer.begin(None, to, at(360)), Decision::Deny));
    let Summary { counters, by_rule, generation, .. } = enforcer.summary();
    assert_eq!((counters.allowed, counters.denied, counters.questions_refused), (1, 8, 1));
    assert_eq!(by_rule, [("web".to_owned(), [1, 0]), ("default".to_owned(), [0, 8])]);
    assert_eq!(generation, 1);
}

/// Goal: an answer with a closed address is refused whole, unless the rule opens it, and answers to
/// other questions make no pins.
#[test]
fn answers_are_judged() {
    let mut private = rule("private", "c.example", Check::Dns);
    private.overrides_floor = true;
    let enforcer = enforcer(vec![rule("web", "a.example", Check::Greeting), private]);
    for address in [[10, 0, 0, 1], [127, 0, 0, 1], [169, 254, 169, 254]] {
        let rebound = enforcer.answer(None, &answer("a.example", address), at(0));
        assert!(matches!(rebound, Message::Answer(refused) if refused[3] & 15 == 5));
        let to = FlowTo { address: address.into(), ..flow("tcp://192.0.2.1:443") };
        assert!(matches!(enforcer.begin(None, to, at(0)), Decision::Deny));
    }
    let opened = answer("c.example", [10, 0, 0, 1]);
    assert_eq!(enforcer.answer(None, &opened, at(0)), Message::Pass);
    assert!(matches!(enforcer.begin(None, flow("tcp://10.0.0.1:22"), at(0)), Decision::Allow(_)));
    for wrong in [answer("b.example", [192, 0, 2, 9]), question("a.example"), vec![], vec![0; 12]] {
        assert_eq!(enforcer.answer(None, &wrong, at(0)), Message::Drop);
    }
    assert_eq!(enforcer.summary().counters.answers_refused, 7);
}

#[test]
fn questions_are_limited_for_each_guest() {
    let enforcer = enforcer(vec![rule("web", "a.example", Check::Greeting)]);
    let asks = |guest, secs| {
        let asked = question("a.example");
        (0..1000).filter(|_| enforcer.question(guest, &asked, at(secs)) == Message::Pass).count()
    };
    assert_eq!(asks(None, 1), 500);
    assert_eq!(asks(None, 2), 100);
    assert_eq!(asks(Some(1), 2), 500);
    assert_eq!(asks(None, 100), 500);
}

/// Goal: a new policy applies to open flows, whose names keep their addresses.
#[test]
fn open_flows_are_reviewed() {
    let both = || vec![rule("a", "a.example", Check::Greeting), rule("b", "192.0.2.9", Check::Dns)];
    let enforcer = enforcer(both());
    enforcer.answer(None, &answer("a.example", [192, 0, 2, 1]), at(0));
    let Decision::Greeting(mut web) = enforcer.begin(None, flow("tcp://192.0.2.1:443"), at(0))
    else {
        panic!("its greeting decides")
    };
    assert!(enforcer.greeted(&mut web, &named("a.example"), at(0)));
    let Decision::Allow(mut plain) = enforcer.begin(None, flow("tcp://192.0.2.9:22"), at(0)) else {
        panic!("it is allowed")
    };
    // Long after the answer has ended.
    assert!(enforcer.review(&mut web, at(900)) && enforcer.review(&mut plain, at(900)));
    let of = |rules| Policy::new(rules, Action::Deny, true).unwrap();
    enforcer.set_policy(of(both().split_off(1)));
    assert_eq!(enforcer.generation(), 2);
    assert!(!enforcer.review(&mut web, at(900)) && enforcer.review(&mut plain, at(900)));
    enforcer.set_policy(of(both()));
    assert!(enforcer.review(&mut plain, at(900)));
    let by_rule = enforcer.summary().by_rule;
    assert_eq!(by_rule[0], ("a".to_owned(), [0, 0]), "counters begin anew");
}

/// Goal: what a learning enforcer writes allows the flows that it has seen, whichever name of their
/// address they meant.
#[test]
fn what_was_learned_is_written() {
    let memory = rustix::fs::memfd_create("learned", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let mut file = File::from(memory);
    let enforcer = Enforcer::learning(file.try_clone().unwrap(), None).unwrap();
    assert_eq!(enforcer.question(None, &question("a.example"), at(0)), Message::Pass);
    for (name, secs) in [("a.example", 0), ("b.example", 1)] {
        let found = answer(name, [127, 0, 0, 1]);
        assert_eq!(enforcer.answer(None, &found, at(secs)), Message::Pass);
    }
    for to in ["tcp://127.0.0.1:443", "udp://192.0.2.7:53"] {
        assert!(matches!(enforcer.begin(None, flow(to), at(1)), Decision::Allow(_)));
    }
    enforcer.write_learned().unwrap();
    let mut text = String::new();
    std::io::Seek::rewind(&mut file).unwrap();
    std::io::Read::read_to_string(&mut file, &mut text).unwrap();
    for line in [
        "to = \"a.example\"",
        "to = \"b.example\"",
        "override-floor = true",
        "ports = [\"udp/53\"]",
    ] {
        assert!(text.contains(line), "{text}");
    }
}

/// Goal: a guest whose quota is used up begins no flow, and another guest does. Another policy
/// keeps what was used; flows go on if its quota is larger.
#[test]
fn a_quota_that_is_used_up_denies_flows() {
    let policy = |quota| {
        let net = rule("net", "192.0.2.0/24", Check::Greeting);
        let policy = Policy::new(vec![net], Action::Deny, true).unwrap();
        policy.with_limits(Limits { quota: Some(quota), ..Limits::default() })
    };
    let enforcer = Enforcer::new(policy(100), None);
    let begins = |guest| match enforcer.begin(guest, flow("tcp://192.0.2.1:443"), at(0)) {
        Decision::Allow(admission) => Some(admission),
        Decision::Greeting(_) | Decision::Deny => None,
    };
    let mut first = begins(None).unwrap();
    first.meters().take(Direction::Out, 100, false, at(0));
    assert!(begins(None).is_none() && begins(Some(1)).is_some());
    let Summary { bounds, by_rule, .. } = enforcer.summary();
    let done = Metered { over_quota: 1, ..Metered::default() };
    let all = Bound { port: None, id: "*".to_owned(), done };
    assert_eq!((bounds, by_rule[0].1), (vec![all], [2, 1]));
    enforcer.set_policy(policy(100));
    assert!(begins(None).is_none());
    enforcer.set_policy(policy(150));
    assert!(begins(None).is_some());
    assert!(enforcer.review(&mut first, at(1)));
    assert_eq!(first.meters().grant(Direction::Out, at(1)), Grant::Bytes(50));
}

/// Goal: a port's own policy bounds its guest alone. What the guest has used stays used when the
/// port gets its policy, gets another one and loses it; reports tell the policies apart.
#[test]
fn a_port_has_a_quota_of_its_own() {
    let policy = |quota| {
        let net = rule("net", "192.0.2.0/24", Check::Greeting);
        let policy = Policy::new(vec![net], Action::Deny, true).unwrap();
        policy.with_limits(Limits { quota: Some(quota), ..Limits::default() })
    };
    let enforcer = Enforcer::new(policy(100), None);
    let left = |guest| match enforcer.begin(guest, flow("tcp://192.0.2.1:443"), at(0)) {
        Decision::Allow(admission) => match admission.meters().grant(Direction::Out, at(0)) {
            Grant::Bytes(bytes) => bytes,
            Grant::Wait | Grant::Over => 0,
        },
        Decision::Greeting(_) | Decision::Deny => 0,
    };
    let uses = |guest, bytes| match enforcer.begin(guest, flow("tcp://192.0.2.1:443"), at(0)) {
        Decision::Allow(admission) => admission.meters().take(Direction::Out, bytes, false, at(0)),
        Decision::Greeting(_) | Decision::Deny => panic!("it may begin"),
    };
    uses(Some(1), 60);
    uses(Some(2), 10);
    enforcer.set_port_policy(1, "one", Some(policy(70).into()));
    assert_eq!([1, 2].map(|guest| left(Some(guest))), [10, 90]);
    enforcer.set_port_policy(1, "one", Some(policy(50).into()));
    assert_eq!([1, 2].map(|guest| left(Some(guest))), [0, 90]);
    let over = |bound: &Bound| (bound.port.clone(), bound.done.over_quota);
    let bounds: Vec<_> = enforcer.summary().bounds.iter().map(over).collect();
    assert_eq!(bounds, [(None, 0), (Some("one".to_owned()), 1)]);
    enforcer.set_policy(policy(1000));
    assert_eq!([1, 2].map(|guest| left(Some(guest))), [0, 990]);
    enforcer.set_port_policy(1, "one", None);
    assert_eq!([1, 2].map(|guest| left(Some(guest))), [940, 990]);
    enforcer.forget(1);
    assert_eq!(left(Some(1)), 1000);
}

/// Goal: a flow beyond a bound is denied with its reason, also after its greeting; flows that end
/// make room; a new policy keeps the open ones and counts them.
#[test]
fn flows_are_bounded_for_each_guest_and_rule() {
    let limits = |flows, new_flows| Limits { flows, new_flows, ..Limits::default() };
    let policy = |most| {
        let mut net = rule("net", "192.0.2.0/24", Check::Greeting);
        net.limits = limits(Some(most), None);
        let mut name = rule("name", "a.example", Check::Greeting);
        name.limits = limits(None, Some(1));
        let policy = Policy::new(vec![net, name], Action::Deny, true).unwrap();
        policy.with_limits(limits(Some(4), None))
    };
    let enforcer = Enforcer::new(policy(2), None);
    let to = flow("tcp://192.0.2.1:443");
    let begin = |guest, to| match enforcer.begin(guest, to, at(0)) {
        Decision::Allow(admission) | Decision::Greeting(admission) => Some(admission),
        Decision::Deny => None,
    };
    let first = begin(None, to).unwrap();
    let mut second = begin(None, to).unwrap();
    assert!(begin(None, to).is_none());
    assert!(begin(Some(3), to).is_some(), "another guest has its own flows");
    drop(first);
    let third = begin(None, to).unwrap();
    // A rule for a name counts once the greeting has the name.
    assert_eq!(enforcer.answer(None, &answer("a.example", [203, 0, 113, 1]), at(0)), Message::Pass);
    let named_to = flow("tcp://203.0.113.1:443");
    let mut greeting = begin(None, named_to).unwrap();
    assert!(enforcer.greeted(&mut greeting, &named("a.example"), at(0)));
    let mut another = begin(None, named_to).unwrap();
    assert!(begin(None, named_to).is_none(), "the guest has four flows");
    assert!(!enforcer.greeted(&mut another, &named("a.example"), at(0)), "the second in a second");
    drop(another);
    let mut another = begin(None, named_to).unwrap();
    assert!(enforcer.greeted(&mut another, &named("a.example"), at(2)));
    drop((greeting, another));
    // Two open flows exceed the bound of a new policy, and stay.
    enforcer.set_policy(policy(1));
    let mut third = third;
    assert!(enforcer.review(&mut second, at(3)) && enforcer.review(&mut third, at(3)));
    drop(second);
    assert!(begin(None, to).is_none());
    drop(third);
    assert!(begin(None, to).is_some());
    let denied = enforcer.summary().by_rule;
    assert_eq!(denied[0], ("net".to_owned(), [1, 1]), "{denied:?}");
    assert_eq!(enforcer.summary().counters.denied, 4);
}

/// Goal: a port's own policy takes the place of the one for all, for its flows, its questions and
/// its counters; when it is taken away, or the port is gone, the one for all is back, and another
/// port with the number has no names of the one before.
#[test]
fn a_port_has_a_policy_of_its_own() {
    let enforcer = enforcer(vec![rule("all", "192.0.2.1", Check::Greeting)]);
    let to = |last| flow(&format!("tcp://192.0.2.{last}:443"));
    let admits = |guest, last| !matches!(enforcer.begin(guest, to(last), at(0)), Decision::Deny);
    let asks = |guest| enforcer.question(guest, &question("a.example"), at(0)) == Message::Pass;
    let [mine, other] = [Some(3), Some(4)];
    enforcer.set_port_policy(4, "other", None);
    assert_eq!(enforcer.generation(), 1, "nothing has changed");
    let Decision::Allow(mut open) = enforcer.begin(mine, to(1), at(0)) else { panic!("allowed") };
    enforcer.set_port_policy(3, "mine", own(vec![rule("own", "a.example", Check::Dns)]));
    assert!(!enforcer.review(&mut open, at(0)), "an open flow that the own policy denies");
    assert!(!admits(mine, 1) && admits(other, 1) && admits(None, 1));
    assert!(asks(mine) && !asks(other));
    let found = answer("a.example", [192, 0, 2, 9]);
    assert_eq!(enforcer.answer(mine, &found, at(0)), Message::Pass);
    assert_eq!(enforcer.answer(other, &found, at(0)), Message::Drop);
    assert!(admits(mine, 9) && !admits(other, 9));
    let Summary { by_rule, by_ports, .. } = enforcer.summary();
    assert_eq!(by_rule, [("all".to_owned(), [3, 0]), ("default".to_owned(), [0, 1])]);
    let own_rules = vec![("own".to_owned(), [1, 0]), ("default".to_owned(), [0, 2])];
    assert_eq!(by_ports, [("mine".to_owned(), own_rules)]);
    enforcer.set_policy(own(vec![]).unwrap());
    assert!(admits(mine, 9) && !admits(other, 1), "the own policy stays");
    enforcer.forget(3);
    enforcer.set_port_policy(3, "next", own(vec![rule("own", "a.example", Check::Dns)]));
    assert!(!admits(mine, 9), "the name was the former guest's");
    enforcer.set_port_policy(3, "next", None);
    assert!(enforcer.summary().by_ports.is_empty() && !asks(mine));
}

/// Goal: where ports alone have policies, the other guests may do everything, and nothing of theirs
/// is counted.
#[test]
fn guests_without_a_policy_are_not_judged() {
    let enforcer = Enforcer::for_ports(None);
    enforcer.set_port_policy(3, "mine", own(vec![]));
    let to = flow("tcp://127.0.0.1:53");
    let Decision::Allow(mut open) = enforcer.begin(Some(4), to, at(0)) else { panic!("allowed") };
    assert!(matches!(enforcer.begin(Some(3), to, at(0)), Decision::Deny));
    assert_eq!([3, 4].map(|port| enforcer.has_policy(Some(port))), [true, false]);
    let asked = question("a.example");
    assert!((0..1000).all(|_| enforcer.question(Some(4), &asked, at(0)) == Message::Pass));
    let found = answer("a.example", [127, 0, 0, 1]);
    assert_eq!(enforcer.answer(Some(4), &found, at(0)), Message::Pass);
    assert_eq!((enforcer.summary().counters.allowed, enforcer.summary().by_rule.len()), (0, 0));
    // It gets one while its flow is open.
    enforcer.set_port_policy(4, "other", own(vec![]));
    assert!(!enforcer.review(&mut open, at(0)));
}

/// Goal: a flow to an address that had a name when it began stays allowed, also long after the
/// answer has ended.
#[test]
fn names_of_open_flows_outlast_their_answers() {
    let rules = || vec![rule("git", "a.example", Check::Dns)];
    let enforcer = enforcer(rules());
    enforcer.answer(None, &answer("a.example", [192, 0, 2, 1]), at(0));
    let to = flow("tcp://192.0.2.1:22");
    let Decision::Allow(mut open) = enforcer.begin(None, to, at(1)) else { panic!("allowed") };
    enforcer.set_policy(Policy::new(rules(), Action::Deny, true).unwrap());
    assert!(enforcer.review(&mut open, at(900)));
    assert!(matches!(enforcer.begin(None, to, at(900)), Decision::Deny));
}

/// Goal: the caller decides which thread frees a policy that was replaced: the enforcer keeps
/// nothing of it.
#[test]
fn a_replaced_policy_is_handed_back() {
    let [first, second] =
        [(); 2].map(|()| own(vec![rule("all", "a.example", Check::Dns)]).unwrap());
    let enforcer = Enforcer::for_ports(None);
    assert_eq!(enforcer.set_policy(first.clone()), None);
    let before = enforcer.set_policy(second).unwrap();
    assert!(Arc::ptr_eq(&before, &first) && Arc::strong_count(&first) == 2);
}
