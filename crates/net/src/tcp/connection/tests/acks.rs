//! Acknowledgments and reassembly (RFC 9293 §3.8.6.3, RFC 5681 §4.2, RFC 2018 §4), and Nagle's
//! algorithm at the sender (RFC 9293 §3.7.4).

use super::script::{Script, plain, settings};
use crate::tcp::{Events, Settings, State, Verdict};
use crate::time::Duration;

extern crate std;

/// RFC 9293 §3.8.6.3: an ACK for at least every second full segment; others after at most 40 ms.
#[test]
fn delayed_and_every_second() {
    let mut t = Script::plain();
    t.recv(". 1:1001 ack 1").quiet();
    t.recv(". 1001:2001 ack 1").expect(". 1 ack 2001").quiet();
    t.recv("P. 2001:2101 ack 1").quiet().wait(39).quiet().wait(1).expect(". 1 ack 2101");
    t.wait(1000).quiet().read(1, 2100).quiet();
}

/// A super-packet counts as its segments.
#[test]
fn a_super_packet_is_acknowledged_at_once() {
    let mut t = Script::plain();
    t.recv(". 1:5001 ack 1").expect(". 1 ack 5001").quiet();
}

/// Data sent in time carries the ACK.
#[test]
fn data_carries_the_ack() {
    let mut t = Script::plain();
    t.recv("P. 1:101 ack 1").quiet().write(50).expect("P. 1:51 ack 101").wait(100).quiet();
    t.wait(99).quiet().wait(2).expect("P. 1:51").recv(". 101 ack 51");
}

/// As on Linux, the first ACKs of a connection, and those after a pause, are not delayed, so that
/// the sender's window opens quickly.
#[test]
fn quick_acks_at_the_start() {
    let mut t = Script::incoming(plain(), "S 0 mss 1000");
    t.expect("S. 0 ack 1").recv(". 1 ack 1");
    t.recv(". 1:101 ack 1").expect(". 1 ack 101");
    let mut t = Script::plain();
    t.recv(". 1:101 ack 1").quiet().wait(40).expect(". 1 ack 101");
    t.wait(1000).recv(". 101:201 ack 1").expect(". 1 ack 201");
}

/// A connection whose owner announces answers within a millisecond; segments of 1000 bytes.
fn answered() -> Script {
    let mut t = Script::incoming(plain(), "S 0 mss 1000");
    t.c.expect_answers(Duration::from_millis(1));
    t.expect("S. 0 ack 1").recv(". 1 ack 1");
    t
}

/// The answer to the first request carries its ACK too, and our FIN the ACK of the peer's FIN:
/// three packets instead of five.
#[test]
fn expected_answers_carry_acks() {
    let mut t = answered();
    t.recv("P. 1:101 ack 1").read(1, 100).quiet().write(50).expect("P. 1:51 ack 101");
    t.recv(". 101 ack 51").recv("F. 101 ack 51").state(State::CloseWait).quiet();
    t.close().expect("F. 51 ack 102").recv(". 102 ack 52").ended(None).quiet();
    let mut t = answered();
    t.recv("FP. 1:101 ack 1").read(1, 100).quiet();
    t.write_and_close(50).expect("FP. 1:51 ack 102").recv(". 102 ack 52").ended(None).quiet();
}

/// Data that is not answered in time is acknowledged alone. From then on all data is acknowledged
/// at once, until some is answered; so is a FIN.
#[test]
fn late_answers_are_not_waited_for() {
    let mut t = answered();
    t.recv("P. 1:101 ack 1").read(1, 100).quiet().wait(1).expect(". 1 ack 101");
    t.recv("P. 101:201 ack 1").expect(". 1 ack 201").read(101, 100).quiet();
    t.write(50).expect("P. 1:51 ack 201").recv("P. 201:301 ack 51").quiet();
    t.write(50).expect("P. 51:101 ack 301").recv("F. 301 ack 101").quiet();
    t.wait(1).expect(". 101 ack 302").wait(100).quiet();
    t.recv("F. 301 ack 101").expect(". 101 ack 302");
    t.write(50).expect("P. 101:151 ack 302").recv(". 302 ack 151");
    t.close().expect("F. 151 ack 302").recv(". 302 ack 152").ended(None);
}

/// Goal: a request in two parts whose sender waits for the ACK of the first (RFC 896) is not
/// delayed: the owner reports that it has looked for an answer in vain. Later data is treated as
/// usual.
#[test]
fn an_owner_reports_that_its_answer_is_late() {
    fn late(t: &mut Script) -> &mut Script {
        t.act(|c, _| c.answer_is_late())
    }
    let mut t = answered();
    assert!(!t.c.awaits_answer(), "there is no request");
    late(&mut t).quiet().recv("P. 1:11 ack 1").read(1, 10).quiet();
    assert!(t.c.awaits_answer());
    late(&mut t).expect(". 1 ack 11");
    assert!(!t.c.awaits_answer());
    t.recv("P. 11:21 ack 1").read(11, 10).expect(". 1 ack 21").wait(100).quiet();
    t.write(50).expect("P. 1:51 ack 21").recv("F. 21 ack 51").quiet();
    assert!(!t.c.awaits_answer(), "no sender waits for the ACK of a FIN");
    late(&mut t).quiet().close().expect("F. 51 ack 22").recv(". 22 ack 52").ended(None);
}

/// Expecting an answer does not delay ACKs that let the sender continue: for a full segment at the
/// start, a second small write, a hole and the segment that fills it, and a duplicate.
#[test]
fn expected_answers_delay_no_more_than_requests() {
    answered().recv(". 1:1001 ack 1").expect(". 1 ack 1001").quiet();
    let mut t = answered();
    t.recv("P. 1:2501 ack 1").expect(". 1 ack 2501");
    t.recv("P. 2501:2601 ack 1").expect(". 1 ack 2601").quiet();
    let mut t = answered();
    t.recv("P. 1:501 ack 1").quiet().recv("P. 501:1001 ack 1").expect(". 1 ack 1001").quiet();
    let mut t = answered();
    t.recv("P. 1:11 ack 1").recv("P. 11:21 ack 1").quiet().read(1, 20).expect(". 1 ack 21");
    let mut t = answered();
    t.recv("F. 101 ack 1").expect(". 1 ack 1").recv("P. 1:101 ack 1").expect(". 1 ack 102");
    let mut t = answered();
    t.recv("P. 1:101 ack 1").quiet().recv("P. 1:101 ack 1").expect(". 1 ack 101");
    t.recv("FP. 1:101 ack 1").state(State::CloseWait).expect(". 1 ack 102").quiet();
}

/// An owner cannot delay an ACK for longer than Linux does.
#[test]
fn expected_answers_have_a_bound() {
    let mut t = answered();
    t.c.expect_answers(Duration::from_secs(3600));
    t.recv("P. 1:101 ack 1").wait(198).quiet().wait(2).expect(". 1 ack 101");
}

/// RFC 5681 §4.2: out-of-order data is acknowledged at once, and so is the segment that fills the
/// hole.
#[test]
fn holes_are_reported_at_once() {
    let mut t = Script::plain();
    t.recv(". 1001:2001 ack 1").expect(". 1 ack 1 nosack");
    t.recv(". 2001:2101 ack 1").expect(". 1 ack 1");
    t.recv(". 1:501 ack 1").expect(". 1 ack 501");
    t.recv(". 501:1001 ack 1").expect(". 1 ack 2101").quiet().read(1, 2100);
}

/// RFC 2018 §4: the block that grew last comes first, then others: at most four, or three beside
/// timestamps.
#[test]
fn sack_blocks_in_order_of_arrival() {
    let mut t = Script::sack();
    t.recv(". 1001:2001 ack 1").expect(". 1 ack 1 sack 1001-2001");
    t.recv(". 5001:6001 ack 1").expect(". 1 ack 1 sack 5001-6001,1001-2001");
    t.recv(". 3001:4001 ack 1").expect(". 1 ack 1 sack 3001-4001,5001-6001,1001-2001");
    t.recv(". 7001:8001 ack 1").expect(". 1 ack 1 sack 7001-8001,3001-4001,5001-6001,1001-2001");
    t.recv(". 2001:3001 ack 1").expect(". 1 ack 1 sack 1001-4001,7001-8001,5001-6001");
    t.recv(". 1:1001 ack 1").expect(". 1 ack 4001 sack 7001-8001,5001-6001");
    // Part of the in-order data was already there.
    t.recv(". 4001:7001 ack 1").expect(". 1 ack 8001 sack 5001-6001").read(1, 8000);
}

/// RFC 2883 §4: the part of a segment that was already there is reported, at most one range. Partly
/// old data in order is not acknowledged at once.
#[test]
fn parts_that_came_twice_are_reported() {
    let mut t = Script::sack();
    t.recv(". 1001:2001 ack 1").expect(". 1 ack 1 sack 1001-2001");
    t.recv(". 501:1501 ack 1").expect(". 1 ack 1 sack 1001-1501,501-2001");
    t.recv(". 1501:2501 ack 1").expect(". 1 ack 1 sack 1501-2001,501-2501");
    t.recv(". 3001:4001 ack 1").expect(". 1 ack 1 sack 3001-4001,501-2501");
    t.recv(". 2001:3501 ack 1").expect(". 1 ack 1 sack 2001-2501,501-4001");
    t.recv(". 1:601 ack 1").expect(". 1 ack 4001 sack 501-601").read(1, 4000);
    let mut t = Script::sack();
    t.recv(". 1:1001 ack 1").wait(40).expect(". 1 ack 1001").wait(10);
    t.recv("P. 501:1101 ack 1").quiet().wait(200).expect(". 1 ack 1101 sack 501-1001");
    let mut t = Script::open(Settings { dsack: false, ..settings() }, "S 0 mss 1000 sackOK");
    t.recv(". 1001:2001 ack 1").expect(". 1 ack 1 sack 1001-2001");
    t.recv(". 501:1501 ack 1").expect(". 1 ack 1 sack 501-2001");
}

/// RFC 2018 §4: blocks stay in every segment until the hole is filled, also in those with data.
#[test]
fn sack_blocks_ride_on_data() {
    let mut t = Script::sack();
    t.recv(". 1001:2001 ack 1").expect(". 1 ack 1 sack 1001-2001");
    t.write(100).expect("P. 1:101 ack 1 sack 1001-2001").recv(". 1:1001 ack 101");
    t.expect(". 101 ack 2001 nosack");
}

/// RFC 9293 §3.10.7.4: overlaps are trimmed, data already held wins, and old data is answered.
#[test]
fn overlaps_are_trimmed() {
    let mut t = Script::plain();
    t.recv(". 1:1001 ack 1").quiet();
    t.recv(". 501:1501 ack 1").expect(". 1 ack 1501");
    t.recv(". 1:1001 ack 1").expect(". 1 ack 1501");
    t.recv(". 2001:3001 ack 1").expect(". 1 ack 1501");
    t.recv(". 1801:3201 ack 1").expect(". 1 ack 1501");
    t.recv(". 1401:2101 ack 1").expect(". 1 ack 3201").quiet().read(1, 3200);
    t.events(Events::READABLE);
}

/// RFC 9293 §3.10.7.4: a FIN out of order counts once the hole before it is filled.
#[test]
fn a_fin_ahead_of_its_turn() {
    let mut t = Script::sack();
    t.recv("F. 1001:2001 ack 1").expect(". 1 ack 1 sack 1001-2002").state(State::Established);
    t.recv(". 1:1001 ack 1").expect(". 1 ack 2002 nosack").state(State::CloseWait);
    t.events(Events::READABLE | Events::PEER_CLOSED).read(1, 2000);
    // A FIN alone, too.
    let mut t = Script::plain();
    t.recv("F. 1001 ack 1").expect(". 1 ack 1").recv(". 1:1001 ack 1").expect(". 1 ack 1002");
    t.state(State::CloseWait);
}

/// RFC 9293 §3.7.4 (Nagle): a short segment waits while data is unacknowledged.
#[test]
fn nagle_holds_short_segments() {
    let mut t = Script::plain();
    t.write(100).expect("P. 1:101").write(100).quiet().write(850).quiet();
    t.write(100).expect(". 101:1101").quiet();
    t.recv(". 1 ack 1101").expect("P. 1101:1151");
    t.write(10).quiet().act(|c, _| c.set_nodelay(true)).expect("P. 1151:1161");
}

/// A FIN pushes out the rest.
#[test]
fn nagle_lets_the_end_go() {
    let mut t = Script::plain();
    t.write(100).expect("P. 1:101").write(100).quiet().close().expect("FP. 101:201");
}

/// With Nagle's algorithm off each write goes out at once.
#[test]
fn nodelay_sends_each_write() {
    let mut t = Script::plain();
    t.act(|c, _| c.set_nodelay(true));
    t.write(100).expect("P. 1:101").write(100).expect("P. 101:201").write(1).expect("P. 201:202");
}

/// Large writes become super-packets of whole segments; the rest follows. As on Linux a packet
/// takes at most half of the congestion window, so that two are in flight, and each carries PSH.
#[test]
fn super_packets_are_whole_segments() {
    let mut t = Script::plain();
    t.write(10_000).expect("P. 1:5001 gso 1000").expect("P. 5001:10001 gso 1000").quiet();
    t.recv(". 1 ack 10001").write(20_500);
    t.expect("P. 10001:20001 gso 1000").expect("P. 20001:30001 gso 1000").quiet();
    t.recv(". 1 ack 30001").expect("P. 30001:30501 nogso");
}

/// RFC 7323 §3.2, §4.3: the echoed timestamp is that of the segment that caused the ACK.
#[test]
fn timestamps_are_echoed() {
    let mut t = Script::open(settings(), "S 0 mss 1000 sackOK ts 5 0");
    t.wait(7).recv(". 1:101 ack 1 ts 30 1000").quiet();
    t.wait(7).recv(". 101:1989 ack 1 ts 31 1000").expect(". 1 ack 1989 ts 1014 30");
    // Out of order: not echoed.
    t.recv(". 2989:3989 ack 1 ts 40 1000").expect(". 1 ack 1989 ts 1014 30");
    t.recv(". 1989:2989 ack 1 ts 41 1000").expect(". 1 ack 3989 ts 1014 41");
}

/// RFC 7323 §5.2: PAWS drops and answers segments with an older timestamp than the last one.
#[test]
fn paws_drops_old_segments() {
    let mut t = Script::open(settings(), "S 0 mss 1000 ts 100 0");
    t.recv("P. 1:101 ack 1 ts 200 1000").wait(40).expect(". 1 ack 101 ts 1040 200");
    t.recv("P. 101:201 ack 1 ts 199 1000").verdict(Verdict::Unacceptable);
    t.expect(". 1 ack 101 ts 1040 200");
    // RFC 7323 §5.2: PAWS does not apply to a reset.
    t.recv("R 101 ts 1 0").state(State::Closed);
}

/// RFC 7323 §5.5: after 24 days a timestamp rejects nothing, and the next one is accepted.
#[test]
fn paws_forgets_after_24_days() {
    let mut t = Script::open(settings(), "S 0 mss 1000 ts 100 0");
    t.wait(25 * 24 * 3600 * 1000).recv("P. 1:101 ack 1 ts 50 1000").verdict(Verdict::Done);
    t.expect(". 1 ack 101");
    t.recv("P. 101:201 ack 1 ts 51 1000").expect(". 1 ack 201").read(1, 200);
    assert_eq!(t.c.timestamps.recent(), 51);
}

/// Memory that small segments hold is bounded: data beyond the bound is dropped, and retransmitted
/// later.
#[test]
fn memory_held_is_bounded() {
    let settings = Settings { receive_buffer: 10_000, receive_buffer_max: 10_000, ..plain() };
    let mut t = Script::open(settings, "S 0 mss 1000");
    // Each piece holds a frame of 2 KiB. The window accounts for that, but what was offered stays
    // offered.
    for index in 0..65 {
        let (from, to) = (1 + index * 10, 11 + index * 10);
        t.recv(&std::format!(". {from}:{to} ack 1")).verdict(Verdict::Done).wait(40);
        t.expect(&std::format!(". 1 ack {to} win {}", 4380 - to + 1));
    }
    // As on Linux since 6.8: refused data makes the window zero, and reading opens it.
    t.recv(". 651:661 ack 1").verdict(Verdict::NoRoom).expect(". 1 ack 651 win 0");
    t.recv(". 651:661 ack 1").verdict(Verdict::NoRoom).expect(". 1 ack 651 win 0");
    t.read(1, 650)
        .expect(". 1 ack 651 win 3730")
        .recv(". 651:661 ack 1")
        .verdict(Verdict::Done)
        .wait(40)
        .expect(". 1 ack 661");
}

/// In-order data displaces out-of-order data; otherwise the connection would stall.
#[test]
fn data_in_order_always_has_room() {
    let settings = Settings { receive_buffer: 10_000, receive_buffer_max: 10_000, ..plain() };
    let mut t = Script::open(settings, "S 0 mss 1000");
    for index in 0..65 {
        t.recv(&std::format!(". {}:{} ack 1", 101 + index * 2, 102 + index * 2));
        t.expect(". 1 ack 1");
    }
    t.recv(". 501:502 ack 1").verdict(Verdict::NoRoom).expect(". 1 ack 1");
    t.recv(". 1:101 ack 1").verdict(Verdict::Done).wait(40).expect(". 1 ack 101").read(1, 100);
}

/// RFC 6691 §2: SACK blocks beside data make the segments smaller, never the packet larger.
#[test]
fn sack_blocks_take_from_the_segment() {
    let mut t = Script::sack();
    t.recv(". 1001:2001 ack 1").expect(". 1 ack 1 sack 1001-2001");
    t.write(3000).expect("P. 1:3001 ack 1 sack 1001-2001 gso 988").recv(". 1 ack 3001");
}

/// The window is what fits into memory if segments stay as small as they are.
#[test]
fn the_window_foresees_memory() {
    let mut t = Script::open(plain(), "S 0 mss 1000");
    for index in 0..200 {
        let (from, to) = (1 + index * 100, 101 + index * 100);
        t.recv(&std::format!(". {from}:{to} ack 1")).read(from, 100).forget_sent();
    }
    // 100 bytes in 2 KiB: little more than a tenth of the possible 64 KiB fits.
    t.c.receive.offer(0);
    t.recv(". 20001:20101 ack 1").wait(40).forget_sent();
    assert!((8000..9500).contains(&t.c.receive.offered()), "{} offered", t.c.receive.offered());
}
