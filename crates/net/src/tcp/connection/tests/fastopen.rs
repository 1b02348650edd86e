//! Data in a SYN, as its sender sees it (RFC 7413 §4.1.3, §4.2.1), and how Linux reacts to the
//! answers.

use super::script::{Script, plain};
use crate::tcp::fastopen::FastOpenPath;
use crate::tcp::{ConnectionError, Events, Settings, State, Verdict};
use crate::wire::tcp::FastOpenCookie;

/// Bit of `options` in `TCP_INFO`: the peer took all data of the SYN.
const SYN_DATA: u8 = 1 << 5;

fn cookie() -> FastOpenCookie {
    FastOpenCookie::new(&[1, 2, 3, 4]).expect("a valid cookie length")
}

/// A connection that has begun with `bytes` of data in its SYN, with room for 1000.
fn begun(settings: Settings, bytes: u32) -> Script {
    let mut t = Script::connect(settings);
    t.c.set_fast_open(Some(cookie()), 1000);
    t.write(bytes);
    t
}

fn with_sack() -> Settings {
    Settings { sack: true, ..plain() }
}

/// Whether the SYN's data was taken, and how many segments were delivered.
fn counts(t: &Script) -> (bool, u32) {
    let info = t.c.info(t.now);
    (info.options & SYN_DATA != 0, info.delivered)
}

/// RFC 7413 §4.2.1: data that fits goes with the SYN, the rest after the answer. Linux counts the
/// SYN and its data as one segment.
#[test]
fn data_goes_with_the_syn() {
    let mut t = begun(with_sack(), 1500);
    t.expect("S 0:1000 mss 1460").quiet();
    t.wait(20).recv("S. 0 ack 1001 mss 1000 sackOK").state(State::Established);
    t.events(Events::ESTABLISHED | Events::WRITABLE);
    assert_eq!(counts(&t), (true, 1));
    let info = t.c.info(t.now);
    assert_eq!((info.fastopen_client_fail, info.bytes_acked, info.bytes_sent), (0, 1001, 1500));
    t.expect("P. 1001:1501 ack 1");
    t.recv(". 1 ack 1501");
    assert_eq!(counts(&t), (true, 2));
    let outcome = t.c.take_fast_open_outcome().expect("learned from the answer");
    assert_eq!(
        (outcome.mss, outcome.cookie, outcome.syn_lost, outcome.no_cookie),
        (1000, None, false, 0)
    );
}

/// RFC 7413 §4.2.1: data that the answer does not acknowledge is retransmitted at once and carries
/// the ACK. The window is not reduced.
#[test]
fn what_was_not_taken_is_sent_again_at_once() {
    let mut t = begun(with_sack(), 1000);
    t.expect("S 0:1000").wait(20).recv("S. 0 ack 1 mss 1460 sackOK");
    t.expect("P. 1:1001 ack 1").quiet();
    assert_eq!((counts(&t), t.c.send.congestion().cwnd()), ((false, 1), 10));
    assert_eq!(t.c.info(t.now).fastopen_client_fail, 2);
    t.wait(20).recv(". 1 ack 1001");
    assert_eq!(counts(&t), (false, 2));

    let mut t = begun(with_sack(), 1000);
    t.expect("S 0:1000").wait(20).recv("S. 0 ack 401 mss 1460 sackOK");
    t.expect("P. 401:1001 ack 1").quiet();
    assert_eq!(counts(&t), (false, 1), "a part is not enough");
    t.recv(". 1 ack 1001");
}

/// RFC 7413 §4.2.1: a retransmitted SYN has neither data nor cookie. After the second timeout Linux
/// suspects that the path drops such SYNs.
#[test]
fn a_second_syn_is_plain() {
    let mut t = begun(Settings { fastopen_blackhole_timeout_sec: 3600, ..plain() }, 1000);
    t.expect("S 0:1000").wait(1000).expect("S 0");
    assert_eq!(t.c.take_fast_open_path(), None, "one may be lost");
    t.wait(2000).expect("S 0").expect("S 0");
    assert_eq!(t.c.take_fast_open_path(), Some(FastOpenPath::Broken));
    assert_eq!(t.c.take_fast_open_path(), None, "reported once");
    t.wait(20).recv("S. 0 ack 1 mss 1460").expect("P. 1:1001 ack 1");
    assert!(t.c.take_fast_open_outcome().expect("learned from the answer").syn_lost);
    t.recv(". 1 ack 1001");
}

/// An answer with data and a FIN; the FIN follows the data. As on Linux, the ACK waits for the
/// owner's answer.
#[test]
fn an_answer_may_bring_data_and_a_fin() {
    let mut t = begun(plain(), 1000);
    t.expect("S 0:1000").recv("SF. 0:100 ack 1001 mss 1460").state(State::CloseWait);
    let events = Events::ESTABLISHED | Events::WRITABLE | Events::READABLE | Events::PEER_CLOSED;
    t.events(events).quiet().read(1, 100).wait(199).quiet().wait(1).expect(". 1001 ack 102");
}

/// RFC 9293 §3.5 figure 8 with data: the data of the peer's SYN is not taken, and an answer that
/// acknowledges ours opens the connection. Linux reports the SYN as a duplicate.
#[test]
fn crossing_syns_with_data_open() {
    let mut t = begun(with_sack(), 1000);
    t.expect("S 0:1000").recv("S 0:500 mss 1460 sackOK").expect("S. 0 ack 1");
    t.recv("S. 0 ack 1001 mss 1460 sackOK").state(State::Established);
    t.expect(". 1001 ack 1").quiet();
    t.recv("P. 1:501 ack 1001").expect(". 1001 ack 501").read(1, 500);
}

/// RFC 9293 §3.10.7.3: an answer that acknowledges more than was sent belongs to another
/// connection.
#[test]
fn an_answer_to_more_than_was_sent_is_reset() {
    let mut t = begun(plain(), 100);
    t.expect("S 0:100").recv("S. 0 ack 102 mss 1460").verdict(Verdict::Reset);
    assert_eq!(t.c.take_fast_open_outcome(), None, "nothing is learned");
    t.recv("R. 0 ack 101").ended(Some(ConnectionError::Refused));
}

/// RFC 1191 §3: the path takes no SYN of that size. A SYN without data is sent at once, and it asks
/// for segments that fit.
#[test]
fn a_syn_that_is_too_big_goes_again_without_data() {
    let mut t = begun(plain(), 1000);
    t.expect("S 0:1000").act(|c, now| c.too_big(800, now)).expect("S 0 mss 800");
    t.recv("S. 0 ack 1 mss 1040").expect("P. 1:1001 ack 1").recv(". 1 ack 1001");
    assert!(!counts(&t).0);
}

/// As on Linux, the third segment waits for the data of an owner that waits to write. Data is then
/// answered with data. Without data the segment waits no longer than an ACK may.
#[test]
fn the_third_segment_waits_for_data() {
    let mut t = begun(plain(), 1000);
    t.c.set_write_pending(true);
    t.expect("S 0:1000").recv("S. 0 ack 1001 mss 1460").quiet();
    t.write(500).expect("P. 1001:1501 ack 1");
    t.recv("P. 1:501 ack 1501").quiet().wait(39).quiet().wait(1).expect(". 1501 ack 501");
    t.read(1, 500);

    let mut t = begun(plain(), 1000);
    t.c.set_write_pending(true);
    t.expect("S 0:1000").recv("S. 0 ack 1001 mss 1460").wait(199).quiet().wait(1);
    t.expect(". 1001 ack 1");
}

/// Without a cookie the SYN requests one and carries no data.
#[test]
fn a_cookie_is_asked_for() {
    let mut t = Script::connect(plain());
    t.c.set_fast_open(Some(FastOpenCookie::REQUEST), 0);
    t.write(100).expect("S 0 mss 1460");
    assert_eq!(t.c.info(t.now).fastopen_client_fail, 1);
    t.recv("S. 0 ack 1 mss 1460").expect("P. 1:101 ack 1").recv(". 1 ack 101");
    let outcome = t.c.take_fast_open_outcome().expect("learned from the answer");
    assert_eq!((outcome.cookie, outcome.no_cookie), (None, 1), "the peer knows no such option");
}

/// An open connection whose SYN had data, with a pause of Fast Open configured.
fn watched() -> Script {
    let settings = Settings { fastopen_blackhole_timeout_sec: 3600, ..with_sack() };
    let mut t = begun(settings, 1000);
    t.expect("S 0:1000").wait(20).recv("S. 0 ack 1001 mss 1000 sackOK").expect(". 1001 ack 1");
    t.c.settings.early_retrans = 0;
    t
}

/// RFC 7413 §7.3.1: three timeouts after the handshake count too, as on Linux.
#[test]
fn a_path_that_breaks_after_the_handshake() {
    let mut t = watched();
    t.write(1000);
    for _ in 0..2 {
        t.next_timer();
        assert_eq!(t.c.take_fast_open_path(), None, "two losses are possible");
    }
    t.next_timer();
    assert_eq!(t.c.take_fast_open_path(), Some(FastOpenPath::Broken));
    t.next_timer().forget_sent();
    assert_eq!(t.c.take_fast_open_path(), None, "reported once");
}

/// Timeouts without Fast Open reveal nothing about it. Without a pause nothing is recorded.
#[test]
fn timeouts_of_other_connections_tell_nothing() {
    let settings = Settings { fastopen_blackhole_timeout_sec: 3600, ..with_sack() };
    let mut others = Script::open(settings, "S 0 win 65535 mss 1000 sackOK");
    let mut off = watched();
    off.c.settings.fastopen_blackhole_timeout_sec = 0;
    for t in [&mut others, &mut off] {
        t.write(1000);
        for _ in 0..5 {
            t.next_timer();
        }
        assert_eq!(t.forget_sent().c.take_fast_open_path(), None);
    }
}

/// A reset in the window with a wrong number, before any data, may come from a middlebox that
/// rejects Fast Open. Linux considers it in ESTABLISHED only.
#[test]
fn a_reset_ahead_of_all_data() {
    let mut t = watched();
    t.recv("R 100").expect(". 1001 ack 1").state(State::Established);
    assert_eq!(t.c.take_fast_open_path(), Some(FastOpenPath::Broken));

    let mut t = watched();
    t.recv("P. 1:11 ack 1001").expect(". 1001 ack 11").wait(600).recv("R 100");
    assert_eq!(t.forget_sent().c.take_fast_open_path(), None, "data came through");
    let mut t = watched();
    t.recv("R 100000");
    assert_eq!(t.c.take_fast_open_path(), None, "out of the window");
}

/// A FIN out of order and no data at all: the path dropped the data.
#[test]
fn a_fin_ahead_of_data_that_never_comes() {
    let mut t = watched();
    t.recv("F. 500 ack 1001").expect(". 1001 ack 1");
    assert_eq!(t.c.take_fast_open_path(), None, "it may still come");
    t.act(|c, _| c.abort()).forget_sent();
    assert_eq!(t.c.take_fast_open_path(), Some(FastOpenPath::Broken));

    let mut t = watched();
    t.recv("F. 1 ack 1001").expect(". 1001 ack 2").act(|c, _| c.abort()).forget_sent();
    assert_eq!(t.c.take_fast_open_path(), None, "in order");
    let mut t = watched();
    t.recv("F. 500:600 ack 1001").forget_sent().act(|c, _| c.abort()).forget_sent();
    assert_eq!(t.c.take_fast_open_path(), None, "with data");
}

/// A connection that tests the path reports at its end that data arrived.
#[test]
fn data_shows_that_the_path_works_again() {
    for retried in [true, false] {
        let mut t = watched();
        if retried {
            t.c.retry_fast_open();
        }
        t.recv("P. 1:11 ack 1001").expect(". 1001 ack 11").read(1, 10);
        assert_eq!(t.c.take_fast_open_path(), None, "not before the end");
        t.close().expect("F. 1001 ack 11").recv("F. 11 ack 1002").expect(". 1002 ack 12");
        assert_eq!(t.c.take_fast_open_path(), retried.then_some(FastOpenPath::Mended));
    }
    let mut t = watched();
    t.c.retry_fast_open();
    t.recv("R 1").ended(Some(ConnectionError::Reset));
    assert_eq!(t.c.take_fast_open_path(), None, "no data arrived");
}
