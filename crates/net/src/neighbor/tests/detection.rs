//! Claims of addresses, and conflicts.

use crate::neighbor::detection::{
    ANNOUNCEMENTS_V4, ANNOUNCEMENTS_V6, DEFEND_INTERVAL, PROBES_V4, PROBES_V6,
};
use crate::neighbor::{Conflict, Detection, OnConflict, Reaction, Step};
use crate::time::{Duration, Instant};
use crate::wire::MacAddr;
use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const OURS4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const OURS6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1));
const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);
const NOW: Instant = Instant::from_micros(1_000_000);

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Runs all steps; returns them with their times.
fn run(detection: &mut Detection) -> Vec<(Instant, Step)> {
    let mut steps = Vec::new();
    while let Some(at) = detection.deadline() {
        let step = detection.next_step(at).expect("due");
        assert!(detection.deadline().is_none_or(|next| next > at), "time passes");
        steps.push((at, step));
    }
    steps
}

/// RFC 5227 §2.1.1, RFC 4862 §5.4: the messages and the times between them.
#[test]
fn a_claim_probes_and_announces() {
    let cases = [
        (OURS4, PROBES_V4, ANNOUNCEMENTS_V4, seconds(2), seconds(1)..seconds(2)),
        (OURS6, PROBES_V6, ANNOUNCEMENTS_V6, seconds(1), seconds(1)..seconds(1)),
    ];
    for (address, probes, announcements, pause, spread) in cases {
        let mut detection = Detection::new([5, 6]);
        detection.claim([address], OnConflict::Withdraw, NOW);
        assert!(detection.is_tentative(address));
        assert_eq!(detection.next_step(NOW), None, "after a random delay");
        let steps = run(&mut detection);
        assert!(steps[0].0 - NOW < seconds(1));
        let mut expected = vec![Step::Probe(address); probes.into()];
        expected.extend(vec![Step::Announce(address); announcements.into()]);
        assert_eq!(steps.iter().map(|(_, step)| *step).collect::<Vec<_>>(), expected);
        for (number, pair) in steps.windows(2).enumerate() {
            let time = pair[1].0 - pair[0].0;
            if number + 1 < usize::from(probes) {
                assert!(spread.contains(&time), "{time:?}");
            } else {
                assert_eq!(time, pause);
            }
        }
        assert!(!detection.is_tentative(address));
    }
}

#[test]
fn a_tentative_address_is_withdrawn() {
    for address in [OURS4, OURS6] {
        let mut detection = Detection::new([5, 6]);
        detection.claim([OURS4, OURS6], OnConflict::Withdraw, NOW);
        assert_eq!(detection.conflict(address, MAC, NOW), Reaction::Withdraw);
        let conflict = Conflict { address, mac: MAC, count: 1, is_withdrawn: true };
        assert_eq!(detection.next_conflict(), Some(conflict));
        assert_eq!(detection.next_conflict(), None);
        let steps = run(&mut detection);
        let is_of_other = |step: &Step| {
            let (Step::Probe(of) | Step::Announce(of)) = *step;
            of != address
        };
        assert!(!steps.is_empty() && steps.iter().all(|(_, step)| is_of_other(step)));
    }
}

/// An address that others depend on, or that was free, is kept and defended at intervals.
#[test]
fn an_address_in_use_is_defended() {
    for policy in [OnConflict::Keep, OnConflict::Withdraw] {
        let mut detection = Detection::new([5, 6]);
        detection.claim([OURS4], policy, NOW);
        let mut now = NOW;
        if policy == OnConflict::Withdraw {
            now = run(&mut detection).last().expect("steps").0;
        }
        assert_eq!(detection.conflict(OURS4, MAC, now), Reaction::Defend);
        assert_eq!(detection.next_conflict().expect("a report").count, 1);
        for _ in 0..1000 {
            assert_eq!(detection.conflict(OURS4, MAC, now), Reaction::None);
            assert_eq!(detection.next_conflict(), None, "a flood is one report");
        }
        now += DEFEND_INTERVAL;
        assert_eq!(detection.conflict(OURS4, MAC, now), Reaction::Defend);
        let conflict = Conflict { address: OURS4, mac: MAC, count: 1002, is_withdrawn: false };
        assert_eq!(detection.next_conflict(), Some(conflict));
        assert_eq!(detection.conflicts().collect::<Vec<_>>(), [&conflict]);
    }
}

/// Without a claim a conflict is reported, and nothing is sent.
#[test]
fn an_unclaimed_address_is_only_reported() {
    let mut detection = Detection::new([5, 6]);
    assert_eq!(detection.conflict(OURS6, MAC, NOW), Reaction::None);
    assert_eq!(detection.next_conflict().expect("a report").address, OURS6);
    assert_eq!(detection.deadline(), None);
}
