//! The algorithms against the equations of their RFCs, calculated here in floating point.

use super::*;
extern crate std;
use std::vec::Vec;

const START: Instant = Instant::from_micros(10_000_000);

fn at(millis: u64) -> Instant {
    START + Duration::from_millis(millis)
}

fn congestion(kind: Kind, cwnd: u32) -> Congestion {
    let mut congestion = Congestion::new(kind, cwnd, Seq(0), START);
    limit(&mut congestion);
    congestion
}

/// Marks all of the window as in use.
fn limit(congestion: &mut Congestion) {
    let cwnd = congestion.cwnd();
    let clock = (START, Duration::from_secs(1));
    congestion.window_mut().note_use(true, (Seq(0), Seq(1 << 30)), cwnd, clock);
}

/// Delivers `acked` segments outside of recovery.
fn ack(congestion: &mut Congestion, acked: u32, now: Instant) {
    congestion.on_ack(&Ack {
        delivered: acked,
        delivered_total: 0,
        lost: 0,
        in_flight: 0,
        advanced: true,
        progress: true,
        sack: true,
        mss: 1448,
        rate: None,
        now,
    });
}

/// Reduces the window at once.
fn lose(congestion: &mut Congestion) {
    congestion.on_congestion(START);
    congestion.on_recovered(true, START);
}

/// The threshold after congestion now.
fn threshold(congestion: &mut Congestion) -> u32 {
    congestion.on_congestion(START);
    congestion.ssthresh()
}

fn sample(now: Instant, rtt_us: u64, (una, nxt): (u32, u32)) -> RttSample {
    RttSample {
        rtt: Duration::from_micros(rtt_us),
        una: Seq(una),
        nxt: Seq(nxt),
        pacing_rate: 1_000_000_000,
        paced: false,
        burst_max: 65_536,
        now,
    }
}

/// RFC 5681 §3.1: one segment per segment below the threshold, one per window above it; half the
/// window after loss, never less than two segments.
#[test]
fn reno_doubles_then_grows_by_a_segment_per_window() {
    let mut reno = congestion(Kind::Reno, 10);
    ack(&mut reno, 10, at(100));
    assert_eq!(reno.cwnd(), 20);
    lose(&mut reno);
    assert_eq!((reno.cwnd(), reno.ssthresh()), (10, 10));
    ack(&mut reno, 9, at(200));
    assert_eq!(reno.cwnd(), 10);
    ack(&mut reno, 1, at(200));
    assert_eq!(reno.cwnd(), 11);
    reno.window_mut().set_cwnd(3);
    assert_eq!(threshold(&mut reno), 2);
}

/// One ACK that crosses the threshold grows the window by slow start up to it and not beyond.
#[test]
fn slow_start_ends_at_the_threshold() {
    let mut reno = congestion(Kind::Reno, 10);
    reno.window_mut().set_ssthresh(14);
    ack(&mut reno, 10, at(0));
    assert_eq!(reno.cwnd(), 14);
    // Six segments are left for congestion avoidance: eight more make a window.
    ack(&mut reno, 7, at(0));
    assert_eq!(reno.cwnd(), 14);
    ack(&mut reno, 1, at(0));
    assert_eq!(reno.cwnd(), 15);
}

/// RFC 7661: an unused window does not grow. In slow start it must be more than half used: 5 of 10
/// segments leave it unchanged, 6 let it grow to 12.
#[test]
fn an_unused_window_does_not_grow() {
    for (outstanding, then) in [(5, 10), (6, 12), (9, 12)] {
        let mut reno = Congestion::new(Kind::Reno, 10, Seq(0), START);
        let clock = (START, Duration::from_secs(1));
        reno.window_mut().note_use(false, (Seq(0), Seq(9000)), outstanding, clock);
        ack(&mut reno, 2, at(0));
        assert_eq!(reno.cwnd(), then, "{outstanding} segments outstanding");
    }
    let mut reno = Congestion::new(Kind::Reno, 10, Seq(0), START);
    let clock = (START, Duration::from_secs(1));
    reno.window_mut().note_use(false, (Seq(0), Seq(6000)), 6, clock);
    for _ in 0..3 {
        ack(&mut reno, 2, at(0));
    }
    assert_eq!(reno.cwnd(), 12, "grows to twice what was used");
    let window = reno.window_mut();
    window.set_ssthresh(5);
    window.note_use(false, (Seq(6000), Seq(18_000)), 11, clock);
    ack(&mut reno, 12, at(0));
    assert_eq!(reno.cwnd(), 12, "congestion avoidance needs the whole window used");
}

/// RFC 2861 §3.1, by Linux's rules: a pause halves the window for each timeout in it, down to the
/// initial window, and the threshold keeps three quarters of it.
#[test]
fn a_pause_takes_the_window_down() {
    let rto = Duration::from_millis(200);
    for (idle, then) in [(200, 40), (201, 20), (401, 10), (2000, 10)] {
        let mut window = Window::new(10, Seq(0), START);
        window.set_cwnd(40);
        window.set_ssthresh(20);
        window.restart(Duration::from_millis(idle), rto, at(idle));
        assert_eq!((window.cwnd(), window.ssthresh()), (then, 30), "{idle} ms");
    }
    let mut window = Window::new(10, Seq(0), START);
    window.set_cwnd(40);
    window.set_ssthresh(8);
    assert!(!window.note_use(false, (Seq(0), Seq(1)), 21, (at(199), rto)), "too early");
    assert!(window.note_use(false, (Seq(1), Seq(2)), 14, (at(200), rto)));
    window.shrink_unused(at(200));
    assert_eq!((window.cwnd(), window.ssthresh()), (30, 30), "midway to 21, the most used");
}

/// RFC 9438 §4.6, §4.7: 0.7 of the window stays after a loss. A second loss below the window of the
/// first one remembers 0.85 of it.
#[test]
fn cubic_reduces_by_its_beta() {
    let mut cubic = congestion(Kind::Cubic, 100);
    lose(&mut cubic);
    assert_eq!((cubic.cwnd(), cubic.ssthresh()), (70, 70));
    lose(&mut cubic);
    assert_eq!(cubic.cwnd(), 49);
    let peak = plateau(&mut cubic, 100);
    assert!((57..=61).contains(&peak), "flat around 0.85 * 70, was {peak}");
    let mut small = congestion(Kind::Cubic, 2);
    assert_eq!(threshold(&mut small), 2);
}

/// The window at which growth is slowest, over ten seconds of full use.
fn plateau(cubic: &mut Congestion, rtt_ms: u64) -> u32 {
    let windows = run(cubic, rtt_ms, 10_000);
    let steps = windows.windows(4).map(|w| (w[3] - w[0], w[1]));
    steps.min().expect("many round trips").1
}

/// Sends a window in each round trip. Returns the window after each.
fn run(cubic: &mut Congestion, rtt_ms: u64, millis: u64) -> Vec<u32> {
    let mut windows = Vec::new();
    let mut now = 0;
    while now < millis {
        limit(cubic);
        let cwnd = cubic.cwnd();
        for index in 0..u64::from(cwnd) {
            ack(cubic, 1, at(now + index * rtt_ms / u64::from(cwnd)));
        }
        now += rtt_ms;
        windows.push(cubic.cwnd());
    }
    windows
}

/// Goal: on a long path the window follows `W(t) = C (t - K)^3 + W_max` (RFC 9438 §4.2). Method: a
/// round trip of 500 ms, at which NewReno is far slower; three windows.
#[test]
fn cubic_follows_the_cubic_function() {
    for w_max in [200u32, 1000, 8000] {
        let rtt_ms = 500;
        let mut cubic = congestion(Kind::Cubic, w_max);
        cubic.on_rtt(&sample(at(0), rtt_ms * 1000, (0, 0)));
        lose(&mut cubic);
        let begin = cubic.cwnd();
        let k = (f64::from(w_max - begin) / 0.4).cbrt();
        for (round, window) in run(&mut cubic, rtt_ms, 2 * (k * 1000.0) as u64).iter().enumerate() {
            // The window aims one round trip ahead.
            let t = (round as f64 + 1.0) * rtt_ms as f64 / 1000.0;
            let curve = 0.4 * (t - k).powi(3) + f64::from(w_max);
            let (next, off) = (0.4 * (t + 0.5 - k).powi(3) + f64::from(w_max), f64::from(*window));
            let slack = 3.0 + 0.02 * f64::from(w_max);
            assert!(
                off > curve - slack && off < curve.max(next) + slack,
                "W_max {w_max}, {t} s: window {window}, curve {curve:.1}"
            );
        }
    }
}

/// RFC 9438 §4.3: on a short path the window follows a NewReno with the same average rate, which
/// grows by `3 (1 - b) / (1 + b)` segments per round trip, 0.53.
#[test]
fn cubic_is_as_fast_as_reno_on_short_paths() {
    let rtt_ms = 10;
    let mut cubic = congestion(Kind::Cubic, 40);
    cubic.on_rtt(&sample(at(0), rtt_ms * 1000, (0, 0)));
    lose(&mut cubic);
    let begin = f64::from(cubic.cwnd());
    for (round, window) in run(&mut cubic, rtt_ms, 300).iter().enumerate() {
        let reno = begin + 0.53 * (round as f64 + 1.0);
        assert!((f64::from(*window) - reno).abs() < 3.0, "round {round}: {window}, {reno:.1}");
    }
}

/// The window grows by at most half of itself per round trip, however far ahead the curve is;
/// before the first loss by at least 5%.
#[test]
fn cubic_keeps_between_its_speed_limits() {
    let mut cubic = congestion(Kind::Cubic, 100);
    lose(&mut cubic);
    ack(&mut cubic, 1, at(0));
    let before = cubic.cwnd();
    // A minute later the curve is thousands of segments ahead.
    for index in 0..40 {
        limit(&mut cubic);
        ack(&mut cubic, 2, at(60_000 + index));
    }
    assert_eq!(cubic.cwnd(), before + 40);
    let mut unknown = congestion(Kind::Cubic, 100);
    unknown.window_mut().set_ssthresh(100);
    ack(&mut unknown, 20, at(0));
    assert_eq!(unknown.cwnd(), 101);
}

/// As on Linux, the curve is evaluated once in a tick of 4 ms. Until the next tick the cost of a
/// segment stays, even for a window that is far above the curve by then.
#[test]
fn cubic_looks_at_the_curve_once_in_a_tick() {
    let mut cubic = congestion(Kind::Cubic, 100);
    lose(&mut cubic);
    ack(&mut cubic, 1, at(0));
    ack(&mut cubic, 2, at(60_000));
    cubic.window_mut().set_cwnd(500_000);
    cubic.window_mut().clear_credit();
    ack(&mut cubic, 4, at(60_003));
    assert_eq!(cubic.cwnd(), 500_002);
    ack(&mut cubic, 4, at(60_004));
    ack(&mut cubic, 4, at(60_008));
    assert_eq!(cubic.cwnd(), 500_002);
}

/// RFC 9438 §5.8: time in which the application sends nothing does not make the window jump.
#[test]
fn cubic_does_not_grow_by_pauses() {
    let grown = |pause: bool| {
        let mut cubic = congestion(Kind::Cubic, 100);
        lose(&mut cubic);
        run(&mut cubic, 100, 1000);
        if pause {
            let (idle, now) = (Duration::from_secs(20), at(21_000));
            cubic.on_transmit_start(idle, true, now);
        }
        limit(&mut cubic);
        ack(&mut cubic, 10, at(21_000));
        ack(&mut cubic, 10, at(21_001));
        cubic.cwnd()
    };
    assert!(grown(true) + 5 < grown(false), "paused {}, else {}", grown(true), grown(false));
}

/// A timeout resets what CUBIC knows of the path.
#[test]
fn a_timeout_resets_cubic() {
    let mut cubic = congestion(Kind::Cubic, 100);
    lose(&mut cubic);
    cubic.on_state(CaState::Loss, Seq(0), at(10));
    cubic.window_mut().set_cwnd(50);
    cubic.window_mut().set_ssthresh(50);
    ack(&mut cubic, 20, at(20));
    assert_eq!(cubic.cwnd(), 51, "5%, as on an unknown path");
}

/// HyStart by delay: nine round trips of at least 225 ms, where the least is 200 ms, end slow
/// start. They do not if the ninth is the least of all.
#[test]
fn hystart_ends_slow_start_when_the_delay_grows() {
    for (last_ms, ends) in [(240, true), (29, false)] {
        let mut cubic = congestion(Kind::Cubic, 10);
        cubic.on_rtt(&sample(at(200), 200_000, (1, 1)));
        cubic.on_rtt(&sample(at(400), 200_000, (10_001, 30_001)));
        cubic.window_mut().set_cwnd(20);
        for index in 0..9u32 {
            assert_eq!(cubic.ssthresh(), SSTHRESH_INFINITE, "sample {index}");
            let rtt_ms = if index == 8 { last_ms } else { 240 + u64::from(index) };
            // Too far apart to form a train.
            let now = at(640 + 10 * u64::from(index));
            cubic.on_rtt(&sample(now, rtt_ms * 1000, (12_001 + 2000 * index, 30_001)));
        }
        assert_eq!(cubic.ssthresh() == 20, ends, "last sample {last_ms} ms");
    }
}

/// HyStart by ACK train: ACKs at most 2 ms apart, for more than half of the least round trip,
/// counted from the first ACK.
#[test]
fn hystart_ends_slow_start_after_a_long_train() {
    for (cwnd, gap_ms, end_ms) in [(20, 2, Some(54)), (20, 3, None), (15, 2, None)] {
        let mut cubic = congestion(Kind::Cubic, cwnd);
        cubic.on_rtt(&sample(at(0), 100_000, (1, 1)));
        let mut ended = None;
        for millis in (1..100u64).filter(|millis| millis % gap_ms == 0) {
            let una = 2 + millis as u32;
            cubic.on_rtt(&sample(at(millis), 100_000 + 10 * millis, (una, 5000)));
            if ended.is_none() && cubic.ssthresh() == cwnd {
                ended = Some(millis);
            }
        }
        assert_eq!(ended, end_ms, "window {cwnd}, gap {gap_ms} ms");
    }
}

/// Algorithms have Linux's names.
#[test]
fn algorithms_have_names() {
    for &kind in Kind::ALL {
        assert_eq!(Kind::from_name(kind.name()), Some(kind));
    }
    assert_eq!(Kind::from_name("vegas"), None);
    let mut congestion = congestion(Kind::Cubic, 30);
    congestion.set_kind(Kind::Reno, Seq(0), at(0));
    assert_eq!((congestion.kind(), congestion.cwnd()), (Kind::Reno, 30));
}

/// Undoing a reduction restores the window before it.
#[test]
fn a_reduction_can_be_undone() {
    let mut cubic = congestion(Kind::Cubic, 100);
    let before = cubic.ssthresh();
    lose(&mut cubic);
    cubic.on_spurious(None, START);
    assert_eq!((cubic.cwnd(), cubic.ssthresh()), (70, 70), "must not be undone");
    cubic.on_spurious(Some(before), START);
    assert_eq!((cubic.cwnd(), cubic.ssthresh()), (100, before));
}
