//! BBR against the example test cases of the draft (its appendix), on a path that the tests play:
//! segments of 1000 bytes, a round trip of 100 ms, and one ACK for each.

use super::*;
use crate::tcp::congestion::SSTHRESH_INFINITE;

const RTT: Duration = Duration::from_millis(100);
const MSS: u32 = 1000;
/// Segments per round trip that the path delivers: 1 MB/s.
const FULL: u32 = 100;

struct Path {
    bbr: Bbr,
    window: Window,
    now: Instant,
    delivered: u32,
}

impl Path {
    fn new() -> Self {
        let now = Instant::from_micros(7_000_000);
        let bbr = Bbr::new(&Start { next: Seq(77), now });
        let mut path = Self { bbr, window: Window::new(10, Seq(77), now), now, delivered: 1 };
        path.bbr.pacing_rate(&path.window, &path.state());
        path
    }

    fn state(&self) -> PathState {
        PathState {
            srtt: Some(RTT),
            mss: MSS,
            outstanding: 0,
            slow_start_ratio: 200,
            avoidance_ratio: 120,
        }
    }

    /// One round trip that delivers `count` segments and leaves `in_flight`.
    fn round(&mut self, count: u32, in_flight: u32) -> &mut Self {
        self.round_with(count, in_flight, |_| {})
    }

    fn round_with(
        &mut self,
        count: u32,
        in_flight: u32,
        change: impl FnOnce(&mut RateSample),
    ) -> &mut Self {
        self.round_of(count, in_flight, (RTT, 0), change)
    }

    /// A round trip that takes `rtt`, at whose end `lost` segments became lost.
    fn round_of(
        &mut self,
        count: u32,
        in_flight: u32,
        (rtt, lost): (Duration, u32),
        change: impl FnOnce(&mut RateSample),
    ) -> &mut Self {
        self.now += RTT;
        let mut sample = RateSample {
            delivered: count,
            prior_delivered: self.delivered,
            interval: Some(RTT),
            in_flight: count,
            lost: 0,
            app_limited: false,
        };
        change(&mut sample);
        self.delivered += count;
        let rtt = RttSample {
            rtt,
            una: Seq(0),
            nxt: Seq(0),
            pacing_rate: 0,
            paced: true,
            burst_max: 0,
            now: self.now,
        };
        self.bbr.on_rtt(&mut self.window, &rtt);
        let ack = Ack {
            delivered: count,
            delivered_total: self.delivered,
            lost,
            in_flight,
            advanced: true,
            progress: true,
            sack: true,
            mss: MSS,
            rate: Some(sample),
            now: self.now,
        };
        self.bbr.on_ack(&mut self.window, &ack);
        self
    }

    /// A lost record of `segments` at the end of `in_flight`, when `lost` were lost in all.
    fn lose(&mut self, start: u32, segments: u32, in_flight: u32, lost: u32) {
        let lost = Lost {
            start: Seq(start),
            end: Seq(start) + segments * MSS,
            segments,
            in_flight,
            lost,
            app_limited: false,
            delivered_total: self.delivered,
            now: self.now,
        };
        self.bbr.on_lost(&mut self.window, &lost);
    }

    fn enter(&mut self, state: CaState) {
        self.bbr.on_state(&mut self.window, state, Seq(0), self.now);
        self.window.set_state(state);
    }

    /// Rounds at the full rate until `state`; at most `most`. Returns their number.
    fn until(&mut self, state: State, in_flight: u32, most: u32) -> u32 {
        for count in 0..most {
            if self.bbr.state == state {
                return count;
            }
            self.round(FULL, in_flight);
        }
        assert_eq!(self.bbr.state, state, "not within {most} rounds");
        most
    }

    fn cruising() -> Self {
        let mut path = Self::new();
        path.until(State::Drain, 2 * FULL, 10);
        path.until(State::ProbeBwCruise, FULL - 10, 5);
        path
    }

    fn probing() -> Self {
        let mut path = Self::cruising();
        path.until(State::ProbeBwUp, FULL - 10, 40);
        path
    }
}

/// Pacing starts at 2.77 initial windows per round trip, and never slows down in Startup.
#[test]
fn the_first_rate_follows_from_the_initial_window() {
    let mut path = Path::new();
    assert_eq!(path.bbr.pacing_rate, 10 * 1000 * 10 * 277 / 100);
    assert_eq!(path.bbr.send_quantum, 2 * MSS);
    path.round(1, 9);
    assert_eq!(path.bbr.pacing_rate, 277_000);
    path.round(FULL, 50);
    assert_eq!(path.bbr.pacing_rate, 1_000_000 * 277 / 100 * 99 / 100);
    assert_eq!(path.bbr.state, State::Startup);
}

/// "Exiting STARTUP on Bandwidth Plateau", "Exiting DRAIN Based on Inflight".
#[test]
fn startup_ends_after_three_rounds_without_growth() {
    let mut path = Path::new();
    for count in [10, 20, 40, 80] {
        path.round(count, 2 * count);
        assert_eq!(path.bbr.state, State::Startup);
    }
    // 100 is a growth of exactly 25%.
    path.round(FULL, 2 * FULL).round(FULL + 20, 2 * FULL).round(FULL, 2 * FULL);
    assert_eq!((path.bbr.state, path.bbr.full_bw_count), (State::Startup, 2));
    path.round(FULL, 2 * FULL);
    assert_eq!(path.bbr.state, State::Drain);
    assert_eq!(path.bbr.pacing_rate, 1_200_000 * 50 / 100 * 99 / 100);
    path.round(FULL, 2 * FULL);
    assert_eq!(path.bbr.state, State::Drain, "above the product of 120 segments");
    // DOWN has nothing left to drain.
    path.round(FULL, FULL);
    assert_eq!(path.bbr.state, State::ProbeBwCruise);
}

/// "Exiting DRAIN Based on Time".
#[test]
fn drain_ends_after_three_rounds() {
    let mut path = Path::new();
    path.until(State::Drain, 2 * FULL, 10);
    assert_eq!(path.until(State::ProbeBwDown, 2 * FULL, 9), 4);
}

/// "Never Exiting PROBE_UP (or STARTUP) When Application-Limited With No Loss".
#[test]
fn app_limited_rounds_end_nothing() {
    let mut path = Path::new();
    for _ in 0..20 {
        path.round_with(10, 0, |sample| sample.app_limited = true);
    }
    assert_eq!(path.bbr.state, State::Startup);
    let mut path = Path::probing();
    let max = path.bbr.max_bw();
    for _ in 0..10 {
        path.round_with(10, 0, |sample| sample.app_limited = true);
        assert_eq!((path.bbr.state, path.bbr.max_bw()), (State::ProbeBwUp, max));
    }
    // A sample that is faster counts in any case.
    path.round_with(3 * FULL, 0, |sample| sample.app_limited = true);
    assert_eq!(path.bbr.max_bw(), 3_000_000);
}

/// §5.3.1.3: Startup ends with six lost ranges and more than 2% loss in a round of recovery. With
/// fewer ranges it does not.
#[test]
fn startup_ends_on_loss() {
    for (ranges, lost, ends) in [(6, 6, true), (5, 6, false), (6, 1, false)] {
        let mut path = Path::new();
        path.round(10, 20).round(20, 40).round(40, 80);
        for range in 0..ranges {
            path.lose(range * 2000, 1, 80, range + 1);
        }
        path.bbr.on_congestion(&mut path.window, path.now);
        path.enter(CaState::Recovery);
        path.round_with(70, 100, |sample| sample.lost = lost);
        assert_eq!(path.bbr.state == State::Drain, ends, "{ranges} ranges, {lost} lost");
        assert_eq!(path.bbr.inflight_longterm != u32::MAX, ends);
        if ends {
            // "Handling Spurious Fast Recovery".
            path.bbr.on_spurious(&mut path.window, Some(SSTHRESH_INFINITE), path.now);
            assert_eq!((path.bbr.state, path.bbr.full_bw_reached), (State::Startup, false));
            assert_eq!(path.bbr.inflight_longterm, u32::MAX);
        }
    }
}

/// §5.3.3: DOWN drains below the product, CRUISE lasts 2 to 3 seconds, REFILL a round trip, and UP
/// until the rate is flat for three rounds. Gains are those of §5.6.1.
#[test]
fn probe_bw_cycles() {
    let mut path = Path::cruising();
    assert_eq!(path.bbr.pacing_rate, 990_000);
    let since = path.bbr.cycle_stamp;
    path.until(State::ProbeBwRefill, FULL - 10, 40);
    let waited = path.now.since(since).as_millis();
    assert!((2000..3200).contains(&waited), "{waited} ms");
    assert_eq!(path.bbr.pacing_rate, 990_000);
    path.round(FULL, FULL);
    assert_eq!((path.bbr.state, path.bbr.pacing_rate), (State::ProbeBwUp, 1_237_500));
    assert_eq!(path.window.cwnd(), 2 * FULL + 25 + 2 + path.bbr_extra());
    assert_eq!(path.until(State::ProbeBwDown, FULL + 20, 9), 3);
    assert_eq!(path.bbr.pacing_rate, 891_000);
}

impl Path {
    /// Extra data that the burst of each round looks like.
    fn bbr_extra(&self) -> u32 {
        self.bbr.extra_acked_filter.iter().copied().max().unwrap_or(0)
    }
}

/// "Increasing Bandwidth 10x", and §5.5.3: the filter covers two cycles.
#[test]
fn max_bw_follows_up_at_once_and_down_in_two_cycles() {
    let mut path = Path::probing();
    path.round(10 * FULL, 10 * FULL);
    assert_eq!(path.bbr.max_bw(), 10_000_000);
    let mut cycles = 0;
    for _ in 0..400 {
        let before = path.bbr.state;
        path.round(FULL, FULL - 10);
        cycles += u32::from(before == State::ProbeBwUp && path.bbr.state != before);
        if path.bbr.max_bw() == 1_000_000 {
            break;
        }
        assert!(cycles <= 2, "still {}", path.bbr.max_bw());
    }
    assert_eq!(path.bbr.max_bw(), 1_000_000);
}

/// §5.5.10.3: a round with loss outside of probes takes the model down to what was delivered, at
/// most by 30%; REFILL forgets it.
#[test]
fn loss_in_cruise_adapts_the_short_term_model() {
    for (delivered, bw, inflight) in [(90, 900_000, 90), (20, 700_000, 0)] {
        let mut path = Path::cruising();
        let cwnd = path.window.cwnd();
        path.lose(0, 1, FULL, 1);
        path.round(delivered, 50);
        path.lose(2000, 1, FULL, 2);
        path.round(delivered, 50);
        let least = if inflight == 0 { cwnd * 7 / 10 * 7 / 10 } else { inflight };
        assert!(path.bbr.bw <= 1_000_000 && path.bbr.bw >= bw * 7 / 10, "{}", path.bbr.bw);
        assert!(path.bbr.inflight_shortterm >= least);
        path.until(State::ProbeBwRefill, 50, 40);
        assert_eq!(path.bbr.bw_shortterm, u64::MAX);
        assert_eq!(path.bbr.inflight_shortterm, u32::MAX);
    }
}

/// "Handling Loss During PROBE_UP": more than 2% lost in a probe limits the inflight to what it was
/// then, and ends the probe. §5.5.10.2: the exact place in the lost burst is calculated.
#[test]
fn a_probe_that_goes_too_far_sets_the_long_term_bound() {
    let mut path = Path::probing();
    path.lose(0, 2, 120, 2);
    assert_eq!((path.bbr.state, path.bbr.inflight_longterm), (State::ProbeBwUp, u32::MAX));
    path.lose(9000, 6, 132, 8);
    assert_eq!(path.bbr.state, State::ProbeBwDown);
    // (0.02 * 126 - 2) / 0.98 = 0.53 segments of the six.
    assert_eq!(path.bbr.inflight_longterm, 126);
    assert!(path.bbr.prev_probe_too_high);
    path.lose(20_000, 9, 50, 20);
    assert_eq!(path.bbr.inflight_longterm, 126, "one reaction per probe");
    path.until(State::ProbeBwCruise, 100, 9);
    assert!(path.window.cwnd() <= 126 - 18, "headroom: {}", path.window.cwnd());
    // "Precautionary Bandwidth Probing": the next probe ends where this one went too far, and
    // without loss another follows at once.
    path.bbr.probe_rtt_min_stamp = path.now;
    path.until(State::ProbeBwUp, 100, 40);
    path.round(FULL, 128);
    assert_eq!((path.bbr.state, path.bbr.prev_probe_precautionary), (State::ProbeBwDown, true));
    path.round(FULL, 128);
    assert_eq!(path.bbr.state, State::ProbeBwRefill);
    path.round(FULL, 110).round(FULL, 120);
    assert_eq!(path.bbr.state, State::ProbeBwUp);
}

/// A probe that builds a queue ends, unless the queue was there before, or is known to be short.
#[test]
fn a_probe_ends_with_a_queue_of_its_own() {
    let longer = RTT * 6 / 5;
    for (before, bound, ends) in
        [(RTT, u32::MAX, true), (longer, u32::MAX, false), (RTT, 500, false)]
    {
        let mut path = Path::cruising();
        path.bbr.inflight_longterm = bound;
        path.until(State::ProbeBwRefill, FULL - 10, 40);
        path.round_of(FULL, FULL, (before, 0), |_| {});
        assert_eq!(path.bbr.state, State::ProbeBwUp);
        path.round_of(FULL, 2 * FULL, (RTT, 0), |_| {});
        assert_eq!(path.bbr.state, State::ProbeBwUp, "no queue yet");
        path.round_of(FULL, 2 * FULL, (longer, 0), |_| {});
        assert_eq!(path.bbr.state == State::ProbeBwDown, ends, "{before:?}, {bound}");
    }
}

/// §5.3.3.8.3: "tolerating 1% loss per round trip", in which more than 2% may be lost by chance.
/// That ends a probe and bounds nothing.
#[test]
fn a_few_losses_end_a_probe_without_a_bound() {
    let mut path = Path::probing();
    path.lose(0, 1, 160, 4);
    assert_eq!((path.bbr.state, path.bbr.inflight_longterm), (State::ProbeBwDown, u32::MAX));
    // Two standard deviations above 3.2 segments are 6.8.
    for (lost, exceeds) in [(6, false), (7, true)] {
        assert_eq!(path.bbr.exceeds_chance(lost, 160), exceeds, "{lost}");
    }
}

/// §5.3.1.3: it is the loss of a round that ends Startup, also if its last segments were sent when
/// little was in flight.
#[test]
fn startup_survives_a_few_losses_in_a_large_round() {
    let mut path = Path::new();
    path.round(10, 20).round(20, 40).round(40, 80);
    for range in 0..6 {
        path.lose(range * 2000, 1, 80, range + 1);
    }
    path.enter(CaState::Recovery);
    path.round_with(180, 100, |sample| (sample.in_flight, sample.lost) = (60, 6));
    assert_eq!((path.bbr.state, path.bbr.inflight_longterm), (State::Startup, u32::MAX));
}

/// §5.3.3.8.3: with X% of loss the rate shrinks by X% in a round trip, and not by the margin of
/// §5.6.2 in addition.
#[test]
fn cruise_slows_down_by_the_loss_alone() {
    let mut path = Path::cruising();
    for _ in 0..5 {
        path.lose(0, 1, FULL, 1);
        path.round(FULL - 1, 90);
    }
    assert_eq!(path.bbr.bw, 990_000);
    assert_eq!(path.bbr.pacing_rate, 990_000);
}

impl Path {
    /// Enters CRUISE, however long the last probe is ago.
    fn cruise(&mut self) {
        self.bbr.state = State::ProbeBwCruise;
        self.bbr.cycle_stamp = self.now;
        self.bbr.probe_rtt_min_stamp = self.now;
        self.bbr.rounds_since_probe_up = 0;
    }

    /// Rounds of CRUISE with a round trip of `rtt`, in each of which 97 segments arrive and 3 do
    /// not.
    fn cruise_with_loss(&mut self, rounds: u32, rtt: Duration) -> &mut Self {
        for _ in 0..rounds {
            self.cruise();
            for lost in 1..=3 {
                self.lose(0, 1, FULL, lost);
            }
            self.round_of(97, 90, (rtt, 3), |_| {});
        }
        self
    }
}

/// Loss in round trips that find no queue is random once it has lasted. It slows the flow down no
/// longer, nor does it bound the inflight of a probe; more of it does.
#[test]
fn random_loss_is_no_congestion() {
    let mut path = Path::cruising();
    path.cruise_with_loss(8, RTT);
    assert_eq!(path.bbr.baseline.rate(), 0, "two windows");
    assert!(path.bbr.bw < 980_000);
    path.cruise_with_loss(10, RTT);
    assert_eq!(path.bbr.baseline.rate(), 30);
    path.bbr.reset_short_term_model();
    path.cruise_with_loss(6, RTT);
    assert_eq!((path.bbr.bw, path.bbr.inflight_shortterm), (1_000_000, u32::MAX));
    assert!(!path.bbr.is_inflight_too_high(5, FULL));
    assert!(path.bbr.is_inflight_too_high(6, FULL));
    // Twice the usual is 6, two standard deviations more are 11, and one begins the round.
    for (lost, slows) in [(10, false), (14, true)] {
        path.cruise();
        for count in 1..=lost {
            path.lose(0, 1, FULL, count);
        }
        path.round(FULL - lost, 90).round(FULL - lost, 90);
        assert_eq!(path.bbr.bw_shortterm < u64::MAX, slows, "{lost} lost");
    }
}

/// A mark of ECN is not random, whatever else is.
#[test]
fn ecn_marks_slow_down_beside_random_loss() {
    let mut path = Path::cruising();
    path.cruise_with_loss(18, RTT);
    path.bbr.reset_short_term_model();
    path.cruise();
    path.round(80, 80);
    path.lose(0, 1, FULL, 1);
    path.bbr.on_congestion(&mut path.window, path.now);
    path.enter(CaState::Cwr);
    path.round(80, 80).round(80, 80);
    assert_eq!(path.bbr.bw, 800_000);
}

/// Loss with a queue, in a probe, or in a few round trips only may be congestion.
#[test]
fn loss_by_congestion_is_not_random() {
    let mut path = Path::cruising();
    path.cruise_with_loss(30, RTT * 5 / 4);
    assert_eq!(path.bbr.baseline.rate(), 0, "a queue of a quarter");
    let mut path = Path::cruising();
    path.until(State::ProbeBwRefill, FULL - 10, 40);
    for _ in 0..30 {
        path.bbr.state = State::ProbeBwUp;
        path.lose(0, 9, FULL, 1);
        path.round_of(91, 120, (RTT, 9), |_| {});
    }
    assert_eq!(path.bbr.baseline.rate(), 0, "a probe");
    let mut path = Path::cruising();
    path.cruise_with_loss(12, RTT);
    for _ in 0..8 {
        path.round(FULL, 90);
    }
    path.cruise_with_loss(8, RTT);
    assert_eq!(path.bbr.baseline.rate(), 0, "a window without loss");
}

/// §5.6.3: "the smallest feasible quanta", where the inflight has a bound.
#[test]
fn bursts_are_small_beside_a_bounded_inflight() {
    let mut bbr = Path::cruising().bbr;
    for (inflight, burst) in [(u32::MAX, 50_000), (160, 20_000), (9, 2000)] {
        (bbr.pacing_rate, bbr.inflight_longterm) = (50_000_000, inflight);
        bbr.set_send_quantum();
        assert_eq!(bbr.send_quantum, burst);
    }
}

/// §5.3.4.4: congestion around ProbeRTT does not pull the model down to the flight of ProbeRTT.
#[test]
fn a_loss_just_after_probe_rtt_changes_nothing() {
    let mut path = Path::cruising();
    path.until(State::ProbeRtt, FULL - 10, 60);
    path.until(State::ProbeBwCruise, FULL / 2, 9);
    path.lose(0, 1, FULL, 1);
    path.round_with(FULL / 2, 90, |sample| sample.app_limited = true);
    assert_eq!(path.bbr.bw, 1_000_000);
    assert!(path.bbr.inflight_shortterm >= 2 * FULL, "{}", path.bbr.inflight_shortterm);
}

/// "Entering and Exiting PROBE_RTT": after 5 s without a shorter round trip the window is half of
/// the product, for at least 200 ms and a round trip.
#[test]
fn probe_rtt_comes_every_five_seconds() {
    let mut path = Path::cruising();
    let rounds = path.until(State::ProbeRtt, FULL - 10, 60);
    assert!(path.now.since(Instant::from_micros(7_000_000)).as_secs() >= 5, "{rounds}");
    assert_eq!(path.window.cwnd(), FULL / 2);
    assert!(path.bbr.limits_itself());
    path.round(FULL, FULL);
    assert_eq!(path.bbr.probe_rtt_done_stamp, None, "still too much in flight");
    let begun = path.now;
    path.until(State::ProbeBwCruise, FULL / 2, 9);
    assert!(path.now.since(begun) > Duration::from_millis(200));
    assert!(path.window.cwnd() >= 2 * FULL, "{}", path.window.cwnd());
}

/// On a long path the probe after ProbeRTT is early by up to two seconds, and the next one as much
/// later. On a short one it is not.
#[test]
fn probes_after_probe_rtt_are_spread() {
    let usual = Duration::from_secs(2)..Duration::from_secs(3);
    for (rtt, most) in [(66, 0), (100, 500), (200, 2000), (600, 2000)] {
        let mut bbr = Path::cruising().bbr;
        bbr.min_rtt = Duration::from_millis(rtt);
        for _ in 0..20 {
            bbr.start_probe_bw_down(Instant::START);
            bbr.lead_bw_probe();
            let lead = bbr.bw_probe_lead;
            assert!(lead <= Duration::from_millis(most) && (most == 0 || lead > Duration::ZERO));
            assert!(usual.contains(&(bbr.bw_probe_wait + lead)));
            bbr.start_probe_bw_down(Instant::START);
            assert!(usual.contains(&(bbr.bw_probe_wait - lead)));
            assert_eq!(bbr.bw_probe_lead, Duration::ZERO);
        }
    }
}

/// ProbeRTT forgets a bandwidth that the flow had only before its last probe; what pacing leaves
/// unused is not lost.
#[test]
fn probe_rtt_forgets_lost_bandwidth() {
    for (count, max_bw) in [(80, 800_000), (96, 1_000_000)] {
        let mut path = Path::cruising();
        path.round(FULL, FULL - 10).cruise();
        path.bbr.max_bw_filter = [1_000_000, 0];
        for _ in 0..6 {
            path.round(count, count - 10);
        }
        assert_eq!((path.bbr.state, path.bbr.max_bw()), (State::ProbeBwCruise, 1_000_000));
        path.now += Duration::from_secs(5);
        path.bbr.cycle_stamp = path.now;
        path.round(count, count - 10);
        assert_eq!(path.bbr.state, State::ProbeRtt);
        assert_eq!(path.bbr.max_bw(), max_bw, "{count} in a round trip");
    }
}

/// "Skipping PROBE_RTT Due to Application-Limited Sending".
#[test]
fn a_pause_replaces_probe_rtt() {
    let mut path = Path::cruising();
    path.now += Duration::from_secs(8);
    let (bbr, window) = (&mut path.bbr, &mut path.window);
    bbr.on_transmit_start(window, Duration::from_secs(8), true, path.now);
    assert_eq!(path.bbr.pacing_rate, 990_000, "exactly the bandwidth");
    path.round(5, 0);
    assert_ne!(path.bbr.state, State::ProbeRtt);
    assert!(path.window.cwnd() >= FULL, "the window stays");
}

/// "Entering and Exiting PROBE_RTT During STARTUP".
#[test]
fn probe_rtt_in_startup_returns_to_startup() {
    let mut path = Path::new();
    for _ in 0..60 {
        path.round_with(10, 4, |sample| sample.app_limited = true);
        if path.bbr.state == State::ProbeRtt {
            break;
        }
    }
    assert_eq!(path.bbr.state, State::ProbeRtt);
    for _ in 0..5 {
        path.round_with(4, 4, |sample| sample.app_limited = true);
    }
    assert_eq!(path.bbr.state, State::Startup);
}

/// §5.6.4.4: a timeout leaves one segment, and the window returns when the loss is repaired.
#[test]
fn a_timeout_is_conservative_and_ends() {
    let mut path = Path::cruising();
    let before = path.window.cwnd();
    path.lose(0, 1, FULL, 1);
    path.bbr.on_timeout(&mut path.window, true, 3, path.now);
    assert_eq!(path.window.cwnd(), 4);
    path.enter(CaState::Loss);
    path.round(1, 3);
    assert_eq!(path.window.cwnd(), 5);
    path.enter(CaState::Open);
    assert_eq!(path.window.cwnd(), before);
}

/// An echoed mark counts as loss in its round trip (§3.7).
#[test]
fn ecn_marks_slow_down() {
    let mut path = Path::cruising();
    for _ in 0..2 {
        path.bbr.on_congestion(&mut path.window, path.now);
        path.enter(CaState::Cwr);
        path.round(80, 80);
    }
    assert_eq!(path.bbr.bw, 800_000);
}

/// "Correctly Managing Sub-Packet BDPs": four segments are the least.
#[test]
fn four_segments_are_the_least() {
    let mut path = Path::new();
    for _ in 0..40 {
        path.round(1, 1);
        assert!(path.window.cwnd() >= 4);
    }
    assert!(path.bbr.full_bw_reached);
    assert!(path.bbr.pacing_rate <= 12_500, "{}", path.bbr.pacing_rate);
}

/// No report makes the arithmetic overflow.
#[test]
fn extremes_are_survived() {
    let mut path = Path::cruising();
    for (count, micros) in [(u32::MAX / 2, 1), (1, u64::from(u32::MAX)), (0, 1), (7, 1)] {
        path.round_with(1, u32::MAX, |sample| {
            sample.delivered = count;
            sample.interval = Some(Duration::from_micros(micros));
            sample.in_flight = 0;
            sample.lost = u32::MAX;
        });
        path.lose(u32::MAX - 500, 1, 0, u32::MAX);
        path.bbr.on_timeout(&mut path.window, true, 0, path.now);
        assert!((1..=crate::tcp::congestion::CWND_MAX).contains(&path.window.cwnd()));
    }
}
