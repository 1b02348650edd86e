//! `TCP_INFO`: the values of Linux's fields that count something.

use super::script::{Script, settings};
use crate::tcp::Settings;
use crate::tcp::ecn::EcnUse;

/// As on Linux, the passive side counts the SYN and the ACK after it, but not the SYN-ACK, and
/// numbers without the SYN. A FIN counts as a number in both directions.
#[test]
fn numbers_and_segments_of_a_passive_side() {
    let mut t = Script::incoming(settings(), "S 0 mss 1000 sackOK");
    t.expect("S. 0 ack 1").recv(". 1 ack 1");
    let info = t.c.info(t.now);
    assert_eq!((info.segs_in, info.segs_out, info.delivered), (2, 0, 1));
    assert_eq!((info.bytes_acked, info.bytes_received, info.bytes_sent), (0, 0, 0));
    assert_eq!((info.advmss, info.pmtu), (1460, 1500));
    t.write(1500).expect("P. 1:1501").close();
    t.recv("F. 1:101 ack 1501").forget_sent();
    let info = t.c.info(t.now);
    assert_eq!((info.bytes_sent, info.bytes_acked, info.bytes_received), (1500, 1500, 101));
    assert_eq!((info.data_segs_out, info.data_segs_in, info.notsent_bytes), (2, 1, 0));
    assert_eq!(info.delivery_rate, 0, "no time passed");
}

/// Timestamps reduce the announced size. An ICMP error changes the path but not that size.
#[test]
fn sizes() {
    let mut t = Script::open(settings(), "S 0 mss 1460 sackOK ts 5 0");
    let info = t.c.info(t.now);
    assert_eq!((info.advmss, info.pmtu, info.snd_mss), (1448, 1500, 1448));
    t.write(3000).forget_sent();
    t.act(|c, now| c.too_big(960, now)).forget_sent();
    let info = t.c.info(t.now);
    assert_eq!((info.advmss, info.pmtu, info.snd_mss), (1448, 1000, 948));
}

/// A FIN that waits counts as an unsent byte.
#[test]
fn what_waits() {
    let mut t = Script::distant(settings());
    t.write(20_000).forget_sent().close();
    let info = t.c.info(t.now);
    assert_eq!((info.unacked, info.notsent_bytes), (10, 10_001));
}

/// The loss probe and each timeout retransmit. A series of timeouts lasts from the first one to the
/// ACK.
#[test]
fn timeouts_are_counted() {
    let mut t = Script::distant(settings());
    t.write(1000).forget_sent();
    let begin = t.now;
    while t.c.info(t.now).total_rto < 2 {
        t.next_timer().forget_sent();
        assert!(t.now.since(begin).as_secs() < 10);
    }
    let info = t.c.info(t.now);
    assert_eq!((info.total_rto, info.total_rto_recoveries), (2, 1));
    assert_eq!(u64::from(info.total_retrans) * 1000, info.bytes_retrans);
    assert!(info.total_rto_time > 0, "it runs");
    t.wait(50).recv(". 1 ack 1001");
    let end = t.c.info(t.now).total_rto_time;
    assert_eq!(end, info.total_rto_time + 50);
    t.wait(1000);
    assert_eq!(t.c.info(t.now).total_rto_time, end, "it is over");
    t.write(1000).forget_sent();
    while t.c.info(t.now).total_rto < 3 {
        t.next_timer().forget_sent();
    }
    assert_eq!(t.c.info(t.now).total_rto_recoveries, 2);
}

/// A repeated SYN counts as a retransmission. Our SYN is acknowledged like a byte.
#[test]
fn handshakes_of_clients() {
    let mut t = Script::connect(settings());
    t.expect_first_syn("S 0").wait(1000).expect("S 0").wait(100);
    t.recv("S. 0 ack 1 mss 1000 sackOK").expect(". 1 ack 1");
    let info = t.c.info(t.now);
    assert_eq!((info.total_retrans, info.total_rto, info.total_rto_recoveries), (1, 1, 1));
    assert_eq!((info.total_rto_time, info.bytes_acked, info.segs_out), (100, 1, 3));
}

/// Segments delivered by ACKs that echo congestion.
#[test]
fn marked_deliveries() {
    let settings = Settings { ecn: EcnUse::Request, ..settings() };
    let mut t = Script::incoming(settings, "SEW 0 mss 1000 sackOK");
    t.expect("SE. 0 ack 1").recv(". 1 ack 1").write(4000).forget_sent();
    t.recv(". 1 ack 1001").recv("E. 1 ack 4001");
    let info = t.c.info(t.now);
    assert_eq!((info.delivered, info.delivered_ce), (5, 3));
}

/// A hundred milliseconds for one segment, then for ten; the limit by the owner is reported.
#[test]
fn delivery_rate() {
    let mut t = Script::distant(settings());
    assert!(t.c.info(t.now).delivery_rate_app_limited);
    t.write(1000).forget_sent().wait(100).recv(". 1 ack 1001");
    let info = t.c.info(t.now);
    assert_eq!((info.delivery_rate, info.delivery_rate_app_limited), (10_000, true));
    t.write(9000).forget_sent().wait(100).recv(". 1 ack 10001");
    let info = t.c.info(t.now);
    assert_eq!((info.delivery_rate, info.delivery_rate_app_limited), (90_000, true));
    // More data than the window holds: the owner is not the limit.
    t.write(60_000).forget_sent().wait(100).recv(". 1 ack 20001").forget_sent();
    t.wait(100).recv(". 1 ack 30001").forget_sent();
    let info = t.c.info(t.now);
    assert!(!info.delivery_rate_app_limited);
    assert!((50_000..=200_000).contains(&info.delivery_rate), "{}", info.delivery_rate);
}
