//! The choice between several routers.

use crate::neighbor::ROUTER_PROBE_INTERVAL;
use crate::neighbor::routers::Routers;
use crate::time::{Duration, Instant};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const A: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const A6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1));
const B6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2));
const NOW: Instant = Instant::from_micros(1_000_000);

#[test]
fn the_first_that_answers_is_used() {
    let mut routers = Routers::new(&[A6, A, B, B6]);
    assert_eq!((routers.choose(true), routers.choose(false)), (Some(A), Some(A6)));
    routers.set_failed(A, Some(NOW));
    assert_eq!((routers.choose(true), routers.choose(false)), (Some(B), Some(A6)));
    assert_eq!(routers.alternative(A), Some(B));
    assert_eq!(routers.alternative(B), None);
    // None answers: in turn.
    routers.set_failed(B, Some(NOW + Duration::from_secs(1)));
    assert_eq!((routers.choose(true), routers.alternative(A)), (Some(A), None));
    routers.set_failed(A, Some(NOW + Duration::from_secs(2)));
    assert_eq!(routers.choose(true), Some(B));
    routers.set_failed(A, None);
    assert_eq!(routers.choose(true), Some(A));
    assert_eq!(Routers::new(&[A6]).choose(true), None);
}

#[test]
fn a_router_that_failed_is_probed() {
    let mut routers = Routers::new(&[A, B]);
    routers.set_failed(A, Some(NOW));
    assert_eq!(routers.next_probe(B, NOW), None);
    let later = NOW + ROUTER_PROBE_INTERVAL;
    assert_eq!(routers.next_probe(A, later), None, "it is in use");
    assert_eq!(routers.next_probe(B, later), Some(A));
    assert_eq!(routers.next_probe(B, later), None, "once");
}

/// RFC 4861 §7.3.3: a router that becomes a host is left.
#[test]
fn a_router_that_retires_comes_last() {
    let mut routers = Routers::new(&[A6, B6]);
    routers.announce(A6, false);
    assert_eq!(routers.choose(false), Some(A6), "it never said that it is a router");
    routers.announce(A6, true);
    routers.announce(A6, false);
    assert_eq!(routers.choose(false), Some(B6));
    routers.set_failed(B6, Some(NOW));
    assert_eq!(routers.choose(false), Some(A6), "better than one that does not answer");
    routers.set_failed(B6, None);
    routers.announce(A6, true);
    assert_eq!(routers.choose(false), Some(A6));
}
