//! Common mistakes of implementations of lent sends: the numbered list of docs/theory/lending.md,
//! as far as other tests do not cover it.

use super::bench::*;
use super::lending::{Lent, lent};
use crate::socket::{
    CALLS_MAX, GROUP_BYTES_MAX, Notice, Options, Readiness, SendFlags, Timestamping,
};
use alloc::vec;

const CORK: SendFlags =
    SendFlags { more: true, end_of_record: false, continues: false, urgent: false };
/// A timestamp for each ACK, so that the queue has other entries than notices of loans.
const STAMPS: Timestamping =
    Timestamping(Timestamping::TX_ACK.0 | Timestamping::SOFTWARE.0 | Timestamping::OPT_TSONLY.0);

/// Goal: only the last entry of the error queue is extended, and an entry of another kind separates
/// two consecutive notices.
#[test]
fn gotcha_02_only_the_last_entry_counts() {
    let mut l = Lent::new();
    l.b.hosts[CLIENT].set_timestamping(l.client, STAMPS).expect("known bits");
    assert_eq!(l.send(1000), Ok(1000));
    l.b.settle();
    assert_eq!(l.send(1000), Ok(1000));
    l.b.settle();
    let mut reported = vec![];
    while let Ok(notice) = l.notice() {
        reported.push(matches!(notice, Notice::Lent { .. }));
    }
    assert_eq!(
        reported.iter().filter(|lent| **lent).count(),
        2,
        "a stamp is between them: {reported:?}"
    );
}

/// Goal: taking one of several entries raises an event, as the socket is still ready.
#[test]
fn gotcha_05_the_rest_is_an_event() {
    let mut l = Lent::new();
    l.b.hosts[CLIENT].set_timestamping(l.client, STAMPS).expect("known bits");
    assert_eq!(l.send(1000), Ok(1000));
    l.b.settle();
    l.b.wakes(CLIENT);
    l.notice().expect("two entries");
    assert!(l.b.wakes(CLIENT).contains(&(l.client, Readiness::ERR)), "one is left");
    l.notice().expect("the other entry");
    assert_eq!(l.b.wakes(CLIENT), [], "none is left");
}

/// Goal: `copied` applies to all calls that share a notice, and to no other. It does not change
/// behaviour: the next call lends as before.
#[test]
fn gotchas_13_14_copied_is_of_the_group() {
    let mut l = Lent::new();
    assert_eq!((l.call(&[100], CORK), l.send(100)), (Ok(100), Ok(100)));
    l.b.marks_copied = true;
    l.b.settle();
    assert_eq!(l.notice(), Ok(Notice::Lent { first: 0, last: 1, copied: true }));
    assert_eq!(l.send(100), Ok(100));
    l.b.settle();
    assert_eq!(l.notice(), lent(2, 2));
    assert_eq!(l.received(), 300);
}

/// Goal: no segment has bytes of two groups, however small: the first group ends when its own bytes
/// are acknowledged.
#[test]
fn gotcha_18_two_groups_share_no_segment() {
    let mut l = Lent::new();
    assert_eq!(l.call(&[100], CORK), Ok(100));
    l.b.hosts[CLIENT].set_tail_calls(l.client, CALLS_MAX);
    assert_eq!(l.send(100), Ok(100));
    l.b.settle();
    assert_eq!(l.b.segments, vec![(CLIENT, 100, true), (CLIENT, 100, true)]);
}

/// Goal: a group may reach its limit of bytes and of calls exactly; the next call begins another
/// group.
#[test]
fn gotcha_19_limits_are_inclusive_each_in_its_own_way() {
    let mut l = Lent::new();
    let (client, now) = (l.client, l.b.now);
    let enlarge = |options: &mut Options| options.send_buffer = Some(4 << 20);
    l.b.hosts[CLIENT].set_options(client, now, enlarge).expect("open");
    for _ in 0..10 {
        l.whole_call(64 << 10, CORK);
    }
    assert_eq!(GROUP_BYTES_MAX, 8 * (64 << 10));
    let mut reported = vec![];
    l.b.settle();
    while l.b.receive(SERVER, l.server).is_ok() {
        l.b.settle();
        reported.extend(l.notice());
    }
    assert_eq!(reported.first(), Some(&lent(0, 7).expect("made")));

    let mut l = Lent::new();
    assert_eq!(l.call(&[1], CORK), Ok(1));
    l.b.hosts[CLIENT].set_tail_calls(l.client, CALLS_MAX - 1);
    assert_eq!(l.call(&[1], CORK), Ok(1), "the last that the group takes");
    assert_eq!(l.call(&[1], CORK), Ok(1), "in a group of its own");
    l.b.settle();
    assert_eq!(l.b.segments.first(), Some(&(CLIENT, 2, true)));
}
