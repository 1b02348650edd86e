//! Errors of calls to a station of the link that does not exist.

use super::bench::*;
use crate::counters::DropReason;
use crate::socket::{Error, Family, Notice, Origin, Readiness};
use crate::time::Duration;
use core::net::{IpAddr, SocketAddr};

/// An address of the link that no station has, in the family of `ip`.
fn absent(ip: fn(usize) -> IpAddr) -> SocketAddr {
    SocketAddr::new(ip(40), 9)
}

/// As in Linux, `connect` fails with EHOSTUNREACH three seconds after it began.
#[test]
fn connecting_to_an_absent_station_fails() {
    for ip in [v4, v6] {
        let mut b = Bench::new();
        let family = if ip(0).is_ipv4() { Family::V4 } else { Family::V6 };
        let id = b.hosts[CLIENT].stream(family).expect("room");
        let there = absent(ip);
        assert_eq!(b.hosts[CLIENT].connect(id, there, b.now), Err(Error::InProgress));
        b.settle();
        for second in 1..=3 {
            assert!(b.wakes(CLIENT).is_empty(), "not before {second} seconds");
            b.pass(Duration::from_secs(1));
        }
        assert!(b.hosts[CLIENT].readiness(id).contains(Readiness::ERR));
        assert_eq!(b.hosts[CLIENT].connect(id, there, b.now), Err(Error::HostUnreachable));
        let counters = b.hosts[CLIENT].stack().counters();
        assert!(counters.dropped(DropReason::NeighborUnreachable) > 0);
        b.hosts[CLIENT].close(id, b.now).expect("open");
        b.pass(Duration::from_secs(10));
        assert_eq!(b.in_use(), 0);
    }
}

/// A datagram socket that asks for errors gets EHOSTUNREACH; another one gets none, as in Linux.
#[test]
fn datagrams_to_an_absent_station_are_reported() {
    for ip in [v4, v6] {
        let mut b = Bench::new();
        let family = if ip(0).is_ipv4() { Family::V4 } else { Family::V6 };
        let [asking, other] = [b.datagram(CLIENT, family), b.datagram(CLIENT, family)];
        b.hosts[CLIENT].set_receive_errors(asking, family, true).expect("open socket");
        for id in [asking, other] {
            assert_eq!(b.send_to(CLIENT, id, b"hello", absent(ip)), Ok(5));
        }
        b.settle();
        (0..3).for_each(|_| b.pass(Duration::from_secs(1)));
        assert_eq!(b.hosts[CLIENT].take_error(asking), Ok(Some(Error::HostUnreachable)));
        assert_eq!(b.hosts[CLIENT].take_error(other), Ok(None));
        let mut quoted = [0; 10];
        let received = b.with(CLIENT, |sockets, cx| {
            sockets.take_notice_into(asking, &mut [&mut quoted], cx.ledger)
        });
        let (notice, copied, _) = received.expect("a notice");
        let Notice::Failed(notice) = notice else { panic!("{notice:?}") };
        assert_eq!((notice.error, &quoted[..copied]), (Error::HostUnreachable, &b"hello"[..]));
        assert_eq!((notice.remote, notice.offender), (absent(ip), Some(ip(CLIENT))));
        let expected = match family {
            Family::V4 => (Origin::Icmp, 3, 1),
            Family::V6 => (Origin::Icmpv6, 1, 3),
        };
        assert_eq!((notice.origin, notice.kind, notice.code), expected);
        assert_eq!(b.in_use(), 0);
    }
}
