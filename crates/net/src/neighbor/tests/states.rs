//! The table of RFC 4861 appendix C, a test for each of its rows.

use crate::neighbor::entry::{Entry, State, Timeout};
use crate::neighbor::{
    Advertisement, DELAY_FIRST_PROBE_TIME, MULTICAST_SOLICITS, RETRANSMIT_TIMER, UNICAST_SOLICITS,
};
use crate::time::{Duration, Instant};
use crate::wire::MacAddr;
use core::net::{IpAddr, Ipv4Addr};

const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const OLD: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const NEW: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);
const NOW: Instant = Instant::from_micros(1_000_000);
/// Until then a neighbour that is reachable now stays reachable.
const BEFORE: Instant = Instant::from_micros(20_000_000);
/// Until then a confirmed neighbour is reachable.
const UNTIL: Instant = Instant::from_micros(31_000_000);

const INCOMPLETE: State = State::Incomplete { solicits: 1 };
const REACHABLE: State = State::Reachable { until: BEFORE };
const CONFIRMED: State = State::Reachable { until: UNTIL };
const PROBE: State = State::Probe { solicits: 2 };
/// All states with a link-layer address.
const KNOWN: [State; 4] = [REACHABLE, State::Stale, State::Delay, PROBE];

fn entry(state: State) -> Entry {
    let mut entry = Entry::incomplete(ADDRESS, RETRANSMIT_TIMER, NOW);
    if state != INCOMPLETE {
        entry.mac = OLD;
    }
    let has_timer = matches!(state, INCOMPLETE | State::Delay | State::Probe { .. });
    entry.timer = has_timer.then(|| NOW + RETRANSMIT_TIMER);
    entry.state = state;
    entry
}

/// An advertisement, and the state and address that it leads to, and whether it is believed.
#[track_caller]
fn advertised(
    state: State,
    (solicited, overrides): (bool, bool),
    mac: Option<MacAddr>,
    expected: (State, MacAddr, bool),
) {
    let mut entry = entry(state);
    let before = entry.timer;
    let message = Advertisement { solicited, overrides, router: Some(false) };
    let believed = entry.on_advertisement(mac, &message, UNTIL);
    assert_eq!((entry.state, entry.mac, believed), expected, "{state:?}");
    let timer = if entry.state == state { before } else { None };
    assert_eq!(entry.timer, timer, "{state:?}: a timer only in its state");
}

#[test]
fn incomplete_and_an_advertisement() {
    for overrides in [false, true] {
        advertised(INCOMPLETE, (true, overrides), Some(NEW), (CONFIRMED, NEW, true));
        advertised(INCOMPLETE, (false, overrides), Some(NEW), (State::Stale, NEW, true));
        for solicited in [false, true] {
            let ignored = (INCOMPLETE, MacAddr::UNSPECIFIED, false);
            advertised(INCOMPLETE, (solicited, overrides), None, ignored);
        }
    }
}

#[test]
fn solicited_with_the_same_or_no_address() {
    for state in KNOWN {
        for overrides in [false, true] {
            advertised(state, (true, overrides), Some(OLD), (CONFIRMED, OLD, true));
            advertised(state, (true, overrides), None, (CONFIRMED, OLD, true));
        }
    }
}

#[test]
fn another_address_without_override() {
    for solicited in [false, true] {
        advertised(REACHABLE, (solicited, false), Some(NEW), (State::Stale, OLD, false));
        for state in [State::Stale, State::Delay, PROBE] {
            advertised(state, (solicited, false), Some(NEW), (state, OLD, false));
        }
    }
}

#[test]
fn another_address_with_override() {
    for state in KNOWN {
        advertised(state, (true, true), Some(NEW), (CONFIRMED, NEW, true));
        advertised(state, (false, true), Some(NEW), (State::Stale, NEW, true));
    }
}

#[test]
fn unsolicited_with_the_same_or_no_address() {
    for state in KNOWN {
        for overrides in [false, true] {
            advertised(state, (false, overrides), Some(OLD), (state, OLD, true));
            advertised(state, (false, overrides), None, (state, OLD, true));
        }
    }
}

/// Solicitations, redirects and router messages, whose sender is known to be there, but not to
/// receive.
#[test]
fn another_message_with_an_address() {
    let solicited = |state, mac| {
        let mut entry = entry(state);
        entry.on_solicitation(mac);
        (entry.state, entry.mac, entry.timer.is_some())
    };
    assert_eq!(solicited(INCOMPLETE, NEW), (State::Stale, NEW, false));
    for state in KNOWN {
        let has_timer = matches!(state, State::Delay | State::Probe { .. });
        assert_eq!(solicited(state, OLD), (state, OLD, has_timer));
        assert_eq!(solicited(state, NEW), (State::Stale, NEW, false));
    }
    let entry = Entry::stale(ADDRESS, NEW);
    assert_eq!((entry.state, entry.mac, entry.timer), (State::Stale, NEW, None));
}

#[test]
fn progress_of_an_upper_layer() {
    for state in KNOWN {
        let mut entry = entry(state);
        entry.on_progress(UNTIL);
        assert_eq!((entry.state, entry.timer), (CONFIRMED, None));
    }
    let mut entry = entry(INCOMPLETE);
    entry.on_progress(UNTIL);
    assert_eq!(entry.state, INCOMPLETE);
}

#[test]
fn use_delays_then_probes() {
    let mut entry = entry(State::Stale);
    entry.on_use(NOW);
    assert_eq!((entry.state, entry.timer), (State::Delay, Some(NOW + DELAY_FIRST_PROBE_TIME)));
    entry.on_use(NOW + Duration::from_secs(1));
    assert_eq!(entry.timer, Some(NOW + DELAY_FIRST_PROBE_TIME), "use does not restart it");
    let mut now = NOW + DELAY_FIRST_PROBE_TIME;
    for solicits in 1..=UNICAST_SOLICITS {
        assert_eq!(entry.on_timer(RETRANSMIT_TIMER, now), Timeout::Solicit(Some(OLD)));
        assert_eq!(entry.state, State::Probe { solicits });
        assert_eq!(entry.timer, Some(now + RETRANSMIT_TIMER));
        entry.on_use(now);
        now += RETRANSMIT_TIMER;
    }
    assert_eq!(entry.on_timer(RETRANSMIT_TIMER, now), Timeout::Failed);
}

/// A confirmation is valid until its time, and the next use finds that it is over.
#[test]
fn a_confirmation_expires() {
    let mut reachable = entry(REACHABLE);
    reachable.on_use(BEFORE);
    assert_eq!(reachable.state, State::Delay);
    let mut reachable = entry(REACHABLE);
    reachable.on_use(NOW);
    assert_eq!(reachable.state, REACHABLE);
}

#[test]
fn an_incomplete_entry_gives_up() {
    let mut entry = Entry::incomplete(ADDRESS, RETRANSMIT_TIMER, NOW);
    assert_eq!(entry.timer, Some(NOW + RETRANSMIT_TIMER));
    for solicits in 2..=MULTICAST_SOLICITS {
        assert_eq!(entry.on_timer(RETRANSMIT_TIMER, NOW), Timeout::Solicit(None));
        assert_eq!(entry.state, State::Incomplete { solicits });
    }
    assert_eq!(entry.on_timer(RETRANSMIT_TIMER, NOW), Timeout::Failed);
}
