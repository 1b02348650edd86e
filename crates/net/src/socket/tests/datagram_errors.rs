//! Datagrams that no socket receives, and the errors that their senders get.

use super::bench::*;
use super::datagram::data;
use crate::socket::{Error, Family, Notice, Origin, Readiness, SendTo};
use crate::time::Duration;
use alloc::vec::Vec;
use core::net::SocketAddr;

/// Goal: a connected socket gets the error once, from whatever call comes next; others get none.
#[test]
fn a_connected_socket_learns_of_a_closed_port() {
    for ip in [v4, v6] {
        let mut b = Bench::new();
        let family = if ip(0).is_ipv4() { Family::V4 } else { Family::V6 };
        let there = SocketAddr::new(ip(SERVER), 9);
        let [connected, other] = [b.datagram(CLIENT, family), b.datagram(CLIENT, family)];
        b.hosts[CLIENT].connect(connected, there, b.now).expect("route");
        for _ in 0..3 {
            for id in [connected, other] {
                assert_eq!(b.send_to(CLIENT, id, b"x", there), Ok(1));
            }
            b.settle();
            assert!(b.hosts[CLIENT].readiness(connected).contains(Readiness::ERR));
            assert!(!b.hosts[CLIENT].readiness(other).contains(Readiness::ERR));
            let refused = Some(Error::ConnectionRefused);
            assert_eq!(b.take(CLIENT, connected).err(), refused);
            assert_eq!(b.take(CLIENT, connected).err(), Some(Error::WouldBlock));
            assert_eq!(b.take(CLIENT, other).err(), Some(Error::WouldBlock));
        }
        assert_eq!(b.send_to(CLIENT, connected, b"x", there), Ok(1));
        b.settle();
        let how = SendTo::default();
        let sent =
            b.with(CLIENT, |sockets, cx| sockets.send_datagram(connected, &[b"x"], &how, cx));
        assert_eq!(sent, Err(Error::ConnectionRefused));
        assert_eq!(b.in_use(), 0);
    }
}

/// Goal: a socket with the option gets each error with all details, connected or not. When all are
/// taken, none is pending.
#[test]
fn errors_wait_for_their_reader() {
    for ip in [v4, v6] {
        let mut b = Bench::new();
        let family = if ip(0).is_ipv4() { Family::V4 } else { Family::V6 };
        let id = b.datagram(CLIENT, family);
        b.hosts[CLIENT].set_receive_errors(id, family, true).expect("open socket");
        for port in [9, 10] {
            assert_eq!(b.send_to(CLIENT, id, &data(100), (ip(SERVER), port).into()), Ok(100));
            b.settle();
            // It is also pending, for the next call.
            assert_eq!(b.hosts[CLIENT].take_error(id), Ok(Some(Error::ConnectionRefused)));
        }
        for port in [9, 10] {
            assert!(b.hosts[CLIENT].readiness(id).contains(Readiness::ERR));
            let mut quoted = [0; 100];
            let received = b.with(CLIENT, |sockets, cx| {
                sockets.take_notice_into(id, &mut [&mut quoted], cx.ledger)
            });
            let (notice, copied, len) = received.expect("a notice");
            let Notice::Failed(notice) = notice else { panic!("{notice:?}") };
            assert_eq!((copied, len, &quoted[..]), (100, 100, &data(100)[..]));
            assert_eq!(notice.error, Error::ConnectionRefused);
            assert_eq!(notice.remote, SocketAddr::new(ip(SERVER), port));
            assert_eq!(notice.offender, Some(ip(SERVER)));
            let (origin, kind, code) = match family {
                Family::V4 => (Origin::Icmp, 3, 3),
                Family::V6 => (Origin::Icmpv6, 1, 4),
            };
            assert_eq!((notice.origin, notice.kind, notice.code), (origin, kind, code));
        }
        let received =
            b.with(CLIENT, |sockets, cx| sockets.take_notice_into(id, &mut [], cx.ledger));
        assert_eq!(received.err(), Some(Error::WouldBlock));
        assert_eq!(b.hosts[CLIENT].take_error(id), Ok(None));
        assert!(!b.hosts[CLIENT].readiness(id).contains(Readiness::ERR));
        assert_eq!(b.in_use(), 0);
    }
}

#[test]
fn a_socket_that_declines_errors_loses_waiting_ones() {
    let mut b = Bench::new();
    let id = b.datagram(CLIENT, Family::V4);
    b.hosts[CLIENT].set_receive_errors(id, Family::V4, true).expect("open socket");
    assert_eq!(b.send_to(CLIENT, id, b"x", at(9)), Ok(1));
    b.settle();
    assert_eq!(b.hosts[CLIENT].take_error(id), Ok(Some(Error::ConnectionRefused)));
    b.hosts[CLIENT].set_receive_errors(id, Family::V4, false).expect("open socket");
    assert!(!b.hosts[CLIENT].readiness(id).contains(Readiness::ERR));
    assert_eq!(b.in_use(), 0);
}

/// Goal: damaged datagrams and damaged errors do no harm and leak nothing. Method: every packet has
/// a byte or its length changed behind the IP header.
#[test]
fn damaged_packets_do_no_harm() {
    fn damage<const IP_END: usize>(bytes: &mut Vec<u8>, count: u64) {
        let random = count.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let at = IP_END + (random >> 8) as usize % (bytes.len() - IP_END);
        match random >> 60 {
            0..4 => bytes[at] ^= (random >> 32) as u8,
            4..8 => bytes[at] = 0xff,
            8 => bytes.truncate(at),
            _ => {}
        }
    }
    for ip in [v4, v6] {
        let mut b = Bench::new();
        let family = if ip(0).is_ipv4() { Family::V4 } else { Family::V6 };
        let open = SocketAddr::new(ip(SERVER), 53);
        let server = b.bound(open);
        let client = b.datagram(CLIENT, family);
        b.hosts[CLIENT].set_receive_errors(client, family, true).expect("open socket");
        b.damage = Some(if ip(0).is_ipv4() { damage::<34> } else { damage::<54> });
        let (mut arrived, mut errors) = (0, 0);
        for round in 0..4000 {
            let to = SocketAddr::new(ip(SERVER), if round % 2 == 0 { 53 } else { 9 });
            // Slow enough that ICMP errors are not rate-limited.
            b.now += Duration::from_millis(2);
            // A pending error is reported first.
            let _ = b.send_to(CLIENT, client, &data(round % 200), to);
            b.settle();
            arrived += usize::from(b.take(SERVER, server).is_ok());
            let received =
                b.with(CLIENT, |sockets, cx| sockets.take_notice_into(client, &mut [], cx.ledger));
            errors += usize::from(received.is_ok());
        }
        assert!(arrived > 500 && errors > 50, "{arrived} {errors}");
        while b.take(SERVER, server).is_ok() {}
        b.hosts[CLIENT].close(client, b.now).expect("open socket");
        b.hosts[SERVER].close(server, b.now).expect("open socket");
        assert_eq!(b.in_use(), 0);
    }
}
