//! Meters with simulated time.

use super::*;
use crate::egress::rule::{Action, Check, Destination, Rule};

fn at(millis: u64) -> Instant {
    Instant::from_micros(millis * 1000)
}

fn limits(bandwidth_out: Option<u64>, quota: Option<u64>) -> Limits {
    Limits { bandwidth_out, quota, ..Limits::default() }
}

fn policy(all: Limits, rules: &[(&str, Limits)]) -> Policy {
    let rule = |(id, limits): &(&str, Limits)| Rule {
        id: (*id).to_owned(),
        action: Action::Allow,
        to: vec![Destination::Anywhere],
        ports: Vec::new(),
        check: Check::Dns,
        overrides_floor: false,
        expires: None,
        limits: *limits,
    };
    let rules = rules.iter().map(rule).collect();
    Policy::new(rules, Action::Deny, true).unwrap().with_limits(all)
}

/// The meters of flows of one guest, under a bound of its own and under that of a rule.
fn meters(all: &mut AllMeters, of_guest: Limits, of_rule: Limits) -> Meters {
    let guest = all.meter(None, Scope::Guest, of_guest);
    Meters([guest, all.meter(None, Scope::Rule(Some(0)), of_rule)])
}

/// Goal: streams get the bandwidth that their bounds share, and no more; the smallest bound counts,
/// and the other direction is free.
#[test]
fn streams_share_a_bandwidth() {
    let mut all = AllMeters::default();
    let guest = limits(Some(8_000_000), None);
    let slow = meters(&mut all, guest, limits(Some(800_000), None));
    let fast = Meters([all.meter(None, Scope::Guest, guest), None]);
    let mut moved = [0, 0];
    for millis in 0..10_000 {
        for (meters, moved) in [&slow, &fast].into_iter().zip(&mut moved) {
            if let Grant::Bytes(bytes) = meters.grant(Direction::Out, at(millis)) {
                assert!(bytes as u64 >= GRANT_MIN);
                meters.take(Direction::Out, bytes, true, at(millis));
                *moved += bytes as u64;
            }
        }
    }
    let slack = 2 * DEPTH_MIN + 20_000;
    assert!(moved[0] <= 1_000_000 + slack && moved[0] > 900_000, "{moved:?}");
    let sum = moved[0] + moved[1];
    assert!(sum <= 10_000_000 + slack && sum > 9_900_000, "{moved:?}");
    assert_eq!(slow.grant(Direction::In, at(0)), Grant::Bytes(usize::MAX));
    let delayed = [Scope::Guest, Scope::Rule(Some(0))].map(|scope| all.metered(scope));
    assert_eq!(delayed[0].delayed_bytes + delayed[1].delayed_bytes, sum);
    assert!(delayed[1].delayed_bytes > 0);
}

/// Goal: a stream that waits goes on when its slowest bound has half a depth, and the bound says
/// when that is.
#[test]
fn a_stream_that_waits_goes_on() {
    let mut all = AllMeters::default();
    let meters = meters(&mut all, limits(Some(1 << 40), None), limits(Some(80_000), None));
    meters.take(Direction::Out, DEPTH_MIN as usize, false, at(0));
    assert_eq!(meters.grant(Direction::Out, at(0)), Grant::Wait);
    let slowest = meters.slowest(Direction::Out).unwrap();
    let resumes_at = slowest.resumes_at(Direction::Out);
    assert_eq!(resumes_at, Instant::from_micros(DEPTH_MIN / 2 * 100));
    let before = Instant::from_micros(resumes_at.micros() - 100);
    assert_eq!(slowest.resumes(Direction::Out, before), 0);
    assert_eq!(slowest.resumes(Direction::Out, resumes_at), DEPTH_MIN / 2);
    assert_eq!(meters.window() as u64, DEPTH_MIN * DEPTHS_PER_WINDOW);
}

/// Goal: datagrams pass while there is a token, however large they are, and what they overdraw is
/// earned before the next one passes. What is dropped is counted.
#[test]
fn datagrams_beyond_a_bandwidth_are_dropped() {
    let mut all = AllMeters::default();
    let meters = meters(&mut all, Limits::default(), limits(Some(8_000), None));
    let pass = |bytes, millis| meters.pass(Direction::Out, bytes, at(millis));
    assert_eq!(pass(DEPTH_MIN as usize + 500, 0), Pass::Passes);
    assert_eq!((pass(1, 0), pass(1, 500)), (Pass::TooFast, Pass::TooFast));
    assert_eq!((pass(1, 501), pass(1, 501)), (Pass::Passes, Pass::TooFast));
    assert_eq!(all.metered(Scope::Rule(Some(0))).dropped, 3);
}

/// Goal: no more than the quota passes, both ways together, and then flows must end.
#[test]
fn a_quota_is_used_up() {
    let mut all = AllMeters::default();
    let quota = limits(None, Some(1000));
    let meters = meters(&mut all, quota, limits(None, Some(5000)));
    assert_eq!(meters.grant(Direction::Out, at(0)), Grant::Bytes(1000));
    meters.take(Direction::Out, 600, false, at(0));
    assert_eq!(meters.pass(Direction::In, 300, at(0)), Pass::Passes);
    assert_eq!(meters.grant(Direction::In, at(0)), Grant::Bytes(100));
    assert!(!meters.is_over());
    // A datagram that does not fit uses the rest up: later ones would fit by chance.
    assert_eq!(meters.pass(Direction::Out, 101, at(0)), Pass::Over);
    meters.exhaust(101);
    assert_eq!(meters.grant(Direction::Out, at(9999)), Grant::Over);
    assert_eq!(meters.pass(Direction::Out, 0, at(9999)), Pass::Over);
    assert!(meters.is_over());
    assert_eq!(all.metered(Scope::Guest).over_quota, 1);
    assert_eq!(all.metered(Scope::Rule(Some(0))).over_quota, 0);
    // Another guest has its own.
    assert!(!Meters([all.meter(Some(1), Scope::Guest, quota), None]).is_over());
}

/// Goal: with another policy, what was used stays used, by guest and by the id of the rule; also
/// what flows use that have not been reviewed yet.
#[test]
fn another_policy_keeps_what_was_used() {
    let quota = |bytes| limits(None, Some(bytes));
    let first = policy(quota(1000), &[("a", quota(100)), ("b", quota(100))]);
    let second = policy(quota(2000), &[("new", quota(100)), ("b", quota(50))]);
    let mut all = AllMeters::default();
    let of_rule = |all: &mut AllMeters, policy: &Policy, number| {
        let limits = policy.rule_limits(Some(number));
        Meters([None, all.meter(None, Scope::Rule(Some(number)), limits)])
    };
    let guest = Meters([all.meter(None, Scope::Guest, first.limits()), None]);
    let [a, b] = [0, 1].map(|number| of_rule(&mut all, &first, number));
    for (meters, bytes) in [(&guest, 900), (&a, 70), (&b, 30)] {
        meters.take(Direction::Out, bytes, false, at(0));
    }
    all.renew(&first, &second);
    guest.take(Direction::In, 50, false, at(0));
    let left = |meters: &Meters| meters.grant(Direction::Out, at(0));
    let guest = Meters([all.meter(None, Scope::Guest, second.limits()), None]);
    assert_eq!(left(&guest), Grant::Bytes(1050));
    let [new, b] = [0, 1].map(|number| of_rule(&mut all, &second, number));
    assert_eq!((left(&new), left(&b)), (Grant::Bytes(100), Grant::Bytes(20)));
    all.forget(None);
    let guest = Meters([all.meter(None, Scope::Guest, second.limits()), None]);
    assert_eq!(left(&guest), Grant::Bytes(2000));
}
