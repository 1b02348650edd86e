//! The search for the path MTU (RFC 4821), with Linux's numbers.

use super::script::{Script, plain};
use crate::tcp::congestion::CaState;
use crate::tcp::{SegmentSizes, Settings};
use crate::time::Duration;
extern crate std;

fn searching(mtu_probing: u8) -> Settings {
    Settings { mtu_probing, base_mss: 512, sack: true, ..plain() }
}

/// A connection that we opened, with a round trip of 100 ms and a window of 40 segments.
fn opened(settings: Settings) -> Script {
    let mut t = Script::connect(settings);
    t.act(|_, _| ())
        .expect("S 0")
        .wait(100)
        .recv("S. 0 ack 1 win 65535 mss 1460 sackOK")
        .expect(". 1 ack 1");
    t.c.send.set_cwnd(40);
    t
}

/// Whether the sent data begins with a probe.
fn probes(t: &mut Script) -> bool {
    t.take_sent().expect("something was sent");
    t.forget_sent();
    t.c.send.path().search().probe_start().is_some()
}

/// The side that connects uses the assumed size. Each probe that arrives halves the remaining
/// range, until the range is small.
#[test]
fn probes_that_arrive_raise_the_size() {
    let mut t = opened(searching(2));
    assert_eq!(t.c.send.mss(), 512);
    let (mut at, mut size) = (1, 512);
    for probe in [986, 1223, 1341, 1400, 1430, 1445, 1452, 1456] {
        t.c.send.set_cwnd(40);
        t.write(9000);
        t.expect(&std::format!(". {at}:{} nogso", at + probe));
        assert_eq!(t.c.send.congestion().cwnd(), 39, "it counts as two");
        t.forget_sent();
        at += 9000;
        t.recv(&std::format!(". 1 ack {at}")).quiet();
        assert_eq!(t.c.info(t.now).snd_mss, probe);
        let kept = (39 * (size + 40) / (probe + 40), 39 + 40);
        assert!(
            (kept.0..kept.1).contains(&t.c.send.congestion().cwnd()),
            "the window in bytes stays"
        );
        size = probe;
    }
    assert!(!probes(t.write(9000)), "the search rests");
    assert_eq!(t.c.send.loss().state(), CaState::Open);
}

/// The passive side uses the configured size of the path until a probe arrives. As on Linux,
/// the size of the probe may be smaller.
#[test]
fn the_passive_side_begins_with_its_first_probe() {
    let mut t = Script::open(searching(2), "S 0 win 65535 mss 1460 sackOK");
    t.c.send.set_cwnd(40);
    assert_eq!(t.c.send.mss(), 1460);
    t.write(9000).expect(". 1:987 nogso").forget_sent();
    t.recv(". 1 ack 9001");
    assert_eq!(t.c.send.mss(), 986);
}

/// The loss of the probe alone limits the path and is no congestion: its data is retransmitted in
/// segments of the proven size.
#[test]
fn a_lost_probe_is_no_congestion() {
    let mut t = opened(searching(2));
    t.write(6000).expect(". 1:987 nogso").forget_sent().wait(100);
    t.recv(". 1 ack 1 sack 987-1499").forget_sent();
    t.recv(". 1 ack 1 sack 987-2011").forget_sent();
    t.recv(". 1 ack 1 sack 987-2523").expect(". 1:987 gso 512").forget_sent();
    assert_eq!(
        (t.c.send.congestion().cwnd(), t.c.send.congestion().window().has_threshold()),
        (40, false)
    );
    t.wait(100).recv(". 1 ack 6001").quiet().write(100).expect("P. 6001:6101");
    t.recv(". 1 ack 6101");
    assert_eq!(t.c.send.loss().state(), CaState::Open);
    t.write(6000).expect(&std::format!(". 6101:{} nogso", 6101 + (512 + 985) / 2)).forget_sent();
}

/// A retransmission before the outcome of the probe is known makes the probe void.
#[test]
fn a_timeout_leaves_the_probe_unknown() {
    let mut t = opened(Settings { early_retrans: 0, ..searching(2) });
    t.write(6000).expect(". 1:987 nogso").forget_sent();
    t.next_timer().expect(". 1:513").recv(". 1 ack 6001").forget_sent();
    assert_eq!(t.c.send.mss(), 512);
    assert!(t.c.send.path().search().probe_start().is_none());
}

/// A probe needs data and windows beyond it. It does not cross the end of one of the owner's
/// records.
#[test]
fn when_there_is_no_probe() {
    // 986 and four segments of 512.
    let mut t = opened(searching(2));
    assert!(!probes(t.write(986 + 4 * 512 - 1)));
    let mut t = opened(searching(2));
    t.write(986 + 4 * 512).expect(". 1:987 nogso").forget_sent();
    let mut t = opened(searching(2));
    t.c.send.set_cwnd(10);
    assert!(!probes(t.write(6000)));
    let mut t = opened(searching(2));
    t.c.send.set_window(3000);
    assert!(!probes(t.write(6000)));
    let mut t = opened(searching(2));
    t.c.set_cork(true);
    t.record(600).c.set_cork(false);
    t.write(6000).expect("P. 1:601").expect(". 601:1587 nogso").forget_sent();
    let mut t = opened(searching(2));
    t.recv("P. 101:201 ack 1").forget_sent();
    assert!(!probes(t.write(6000)), "SACK blocks take room");
    for off in [0, 1] {
        let mut t = opened(searching(off));
        assert!(!probes(t.write(9000)));
    }
}

/// A finished search begins again after a while, up to what the peer takes.
#[test]
fn the_search_begins_again() {
    let settings = Settings { slow_start_after_idle: false, ..searching(2) };
    let mut t = opened(settings);
    t.c.send.bound_search(519);
    assert!(!probes(t.write(6000)));
    t.recv(". 1 ack 6001").wait(599_000);
    assert!(!probes(t.write(6000)));
    t.recv(". 1 ack 12001").wait(1000);
    assert!(!probes(t.write(6000)), "it begins at the next opportunity");
    t.recv(". 1 ack 18001");
    t.write(6000).expect(". 18001:18987 nogso").forget_sent();
}

/// RFC 4821 §7.7: consecutive timeouts make segments smaller, first to the assumed size, then by
/// half each time, down to a floor.
#[test]
fn a_black_hole_makes_segments_smaller() {
    let sizes = |settings: Settings, count: usize| {
        let mut t = opened(Settings { early_retrans: 0, ..settings });
        t.write(1460).expect("P. 1:1461");
        let mut sizes = std::vec::Vec::new();
        for _ in 0..count {
            t.next_timer();
            sizes.push(t.take_sent().expect("sent again").1);
            t.quiet();
        }
        t.recv(". 1 ack 1461");
        sizes
    };
    // The timer fires after 0.3, 0.9, 2.1 and 4.5 s. From the first to the fourth time it is more
    // than the three seconds that three retries take.
    let on = Settings { base_mss: 1024, ..searching(1) };
    assert_eq!(sizes(on, 10), [1460, 1460, 1460, 1024, 512, 256, 128, 64, 48, 48]);
    let floor = Settings { mtu_probe_floor: 200, ..on };
    assert_eq!(sizes(floor, 8)[3..], [1024, 512, 256, 200, 200]);
    assert_eq!(sizes(Settings { mtu_probing: 0, ..on }, 8), [1460; 8]);
    let always = sizes(Settings { base_mss: 1000, ..searching(2) }, 6);
    assert_eq!(always, [1000, 1000, 1000, 500, 250, 125]);
}

/// A route with a larger size is used from the write after the next packet on, one with a smaller
/// size at once. What an ICMP error reported stays valid as long as the route does not change.
#[test]
fn routes_change() {
    let of = SegmentSizes::of_link;
    let mut t = Script::open(plain(), "S 0 win 65535 mss 1460");
    t.act(|c, _| c.reroute(&of(1000))).write(1000).expect("P. 1:1001").recv(". 1 ack 1001");
    t.act(|c, _| c.reroute(&of(1400))).write(2000).expect("P. 1001:3001 gso 1000");
    t.recv(". 1 ack 3001").write(1400).expect("P. 3001:4401 nogso").recv(". 1 ack 4401");
    t.write(1400).expect("P. 4401:5801");
    t.act(|c, now| c.too_big(600, now)).expect("P. 4401:5801 gso 600");
    t.recv(". 1 ack 5801").act(|c, _| c.reroute(&of(1400)));
    t.write(1200).expect("P. 5801:7001 gso 600").recv(". 1 ack 7001");
    let locked = SegmentSizes { locked: true, ..of(900) };
    t.act(|c, _| c.reroute(&locked)).write(600).expect("P. 7001:7601 nogso");
    t.act(|c, now| c.too_big(500, now)).quiet().recv(". 1 ack 7601");
    t.write(900).expect("P. 7601:8501 nogso").recv(". 1 ack 8501");
    assert_eq!(t.c.path_mtu(), 940);
}

/// Senseless settings do no harm.
#[test]
fn senseless_settings() {
    for (base_mss, floor, threshold) in [(0, 0, 0), (u32::MAX, u32::MAX, u32::MAX), (9000, 0, 0)] {
        let mut t = opened(Settings {
            base_mss,
            mtu_probe_floor: floor,
            probe_threshold: threshold,
            probe_interval: Duration::ZERO,
            early_retrans: 0,
            ..searching(2)
        });
        t.write(9000).forget_sent();
        for _ in 0..8 {
            t.next_timer().forget_sent();
        }
        assert!((48..=1460).contains(&t.c.send.mss()), "{}", t.c.send.mss());
        t.recv(". 1 ack 9001").write(9000).forget_sent();
    }
}
