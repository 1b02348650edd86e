//! An enforcer, asked as a gateway asks it.

use super::*;
use crate::egress::meter::{Direction, Grant};
use crate::egress::rule::{Check, Destination, Limits, Rule};

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
    assert!(matches!(enforcer.begin(None, to, at(60)), Decision::Deny));
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

/// Goal: what a learning enforcer writes allows the flows that it has seen.
#[test]
fn what_was_learned_is_written() {
    let memory = rustix::fs::memfd_create("learned", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let mut file = File::from(memory);
    let enforcer = Enforcer::learning(file.try_clone().unwrap(), None).unwrap();
    assert_eq!(enforcer.question(None, &question("a.example"), at(0)), Message::Pass);
    let found = answer("a.example", [127, 0, 0, 1]);
    assert_eq!(enforcer.answer(None, &found, at(0)), Message::Pass);
    for to in ["tcp://127.0.0.1:443", "udp://192.0.2.7:53"] {
        assert!(matches!(enforcer.begin(None, flow(to), at(0)), Decision::Allow(_)));
    }
    enforcer.write_learned().unwrap();
    let mut text = String::new();
    std::io::Seek::rewind(&mut file).unwrap();
    std::io::Read::read_to_string(&mut file, &mut text).unwrap();
    for line in ["to = \"a.example\"", "override-floor = true", "ports = [\"udp/53\"]"] {
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
    let Summary { metered, by_rule, .. } = enforcer.summary();
    let all = Metered { over_quota: 1, ..Metered::default() };
    assert_eq!((metered, by_rule[0].1), (vec![("*".to_owned(), all)], [2, 1]));
    enforcer.set_policy(policy(100));
    assert!(begins(None).is_none());
    enforcer.set_policy(policy(150));
    assert!(begins(None).is_some());
    assert!(enforcer.review(&mut first, at(1)));
    assert_eq!(first.meters().grant(Direction::Out, at(1)), Grant::Bytes(50));
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
