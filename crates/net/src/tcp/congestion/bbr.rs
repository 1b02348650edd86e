//! BBR (draft-ietf-ccwg-bbr-06), version 3: sends at the rate that the path delivers, and probes
//! now and then whether it delivers more.
//!
//! Functions and fields follow the pseudocode of the draft by name; §§ are its sections. Volumes
//! are in segments, rates in bytes per second, gains in percent. Infinity is the largest value of
//! the type.
//!
//! ECN: the draft has no response of its own but asks for one (§3.7). An echoed mark counts as a
//! loss of the round trip: the short-term model adapts.
//!
//! Random loss, which the draft does not tell from congestion, is measured, and not responded to:
//! `baseline`.
//!
//! This file has the events and the state machine (§§5.2 to 5.4), `probe_bw` its states for the
//! bandwidth (§5.3.3), `probe_rtt` that for the round-trip time (§5.3.4), `model` the model of the
//! path and the control parameters (§§5.5 and 5.6).

mod baseline;
mod model;
mod probe_bw;
mod probe_rtt;
#[cfg(test)]
mod tests;

use super::{Ack, CaState, Controller, Lost, PathState, RateSample, RttSample, Start, Window};
use crate::tcp::seq::Seq;
use crate::time::{Duration, Instant};
use baseline::Baseline;
use model::{is_loss_recovery, scale};

/// State of BBR between events (§2).
#[derive(Clone, Debug, Default)]
pub(super) struct Bbr {
    state: State,
    /// Congestion control began, and no round trip was known to derive the first rate from.
    rate_unknown: bool,
    pacing_rate: u64,
    send_quantum: u32,
    round_count: u32,
    round_start: bool,
    next_round_delivered: Option<u32>,
    idle_restart: bool,
    drain_start_round: u32,

    /// Highest bandwidth of the previous and of the current probing cycle (§5.5.3).
    max_bw_filter: [u64; 2],
    bw_shortterm: u64,
    bw: u64,
    min_rtt: Duration,
    min_rtt_stamp: Instant,
    inflight_longterm: u32,
    inflight_shortterm: u32,

    bw_latest: u64,
    inflight_latest: u32,
    loss_round_delivered: Option<u32>,
    loss_round_start: bool,
    is_loss_in_round: bool,
    /// Discontiguous ranges that were lost in this round, and the end of the last one.
    lost_ranges: u32,
    lost_end: Option<Seq>,
    /// Segments that were lost in this round; the most if it has a reason to slow down that is
    /// never chance: a mark of ECN, a drop of our own device, a timeout.
    lost_in_round: u32,
    baseline: Baseline,

    extra_acked_interval_start: Instant,
    extra_acked_delivered: u32,
    /// Most of each of the last rounds, by `round_count`.
    extra_acked_filter: [u32; EXTRA_ACKED_FILTER_LEN],

    full_bw_reached: bool,
    full_bw_now: bool,
    full_bw: u64,
    full_bw_count: u32,

    ack_phase: AckPhase,
    is_bw_probe_sample: bool,
    /// The probe for bandwidth began without a queue.
    began_without_queue: bool,
    bw_probe_up_acked: u32,
    probe_up_acked_per_inc: u32,
    bw_probe_up_rounds: u32,
    rounds_since_probe_up: u32,
    bw_probe_wait: Duration,
    /// By how much the probe after ProbeRTT is early, and the one after that late.
    bw_probe_lead: Duration,
    cycle_stamp: Instant,
    prev_probe_too_high: bool,
    prev_probe_precautionary: bool,

    prior_cwnd: u32,
    undo_state: Option<State>,
    undo_bw_shortterm: u64,
    undo_inflight_shortterm: u32,
    undo_inflight_longterm: u32,

    probe_rtt_min_delay: Duration,
    probe_rtt_min_stamp: Instant,
    probe_rtt_expired: bool,
    probe_rtt_done_stamp: Option<Instant>,
    probe_rtt_round_done: bool,

    /// The last round-trip sample since the last ACK.
    rtt: Option<Duration>,
    mss: u32,
    has_selective_acks: bool,
    /// C.InitialCwnd.
    initial: u32,
    /// C.delivered.
    delivered: u32,
    /// State of the generator of random numbers.
    random: u32,
}

/// States (§5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum State {
    #[default]
    Startup,
    Drain,
    ProbeBwDown,
    ProbeBwCruise,
    ProbeBwRefill,
    ProbeBwUp,
    ProbeRtt,
}

/// What the ACKs that arrive say about the probe for bandwidth (§2.14).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum AckPhase {
    #[default]
    Init,
    Refilling,
    ProbeStarting,
    ProbeFeedback,
    ProbeStopping,
}

/// The sample of one ACK (§2.3), and what else the ACK reports.
struct Rs {
    sample: RateSample,
    /// RS.delivery_rate; zero if the sample has no reliable interval.
    delivery_rate: u64,
    newly_acked: u32,
    newly_lost: u32,
    rtt: Option<Duration>,
    /// C.inflight.
    inflight: u32,
    now: Instant,
}

impl State {
    /// BBR.pacing_gain (§5.6.1).
    fn pacing_gain(self) -> u64 {
        match self {
            State::Startup => 277,
            State::Drain => 50,
            State::ProbeBwDown => 90,
            State::ProbeBwCruise | State::ProbeBwRefill | State::ProbeRtt => 100,
            State::ProbeBwUp => 125,
        }
    }

    /// BBR.cwnd_gain (§5.6.1).
    fn cwnd_gain(self) -> u64 {
        match self {
            State::ProbeRtt => PROBE_RTT_CWND_GAIN,
            State::ProbeBwUp => 225,
            _ => 200,
        }
    }

    /// IsInAProbeBWState (§5.3.3.9).
    fn is_probe_bw(self) -> bool {
        use State::{ProbeBwCruise, ProbeBwDown, ProbeBwRefill, ProbeBwUp};
        matches!(self, ProbeBwDown | ProbeBwCruise | ProbeBwRefill | ProbeBwUp)
    }

    /// True in the states that leave no queue of the flow, once they have drained it.
    fn is_without_queue(self) -> bool {
        matches!(self, State::ProbeBwDown | State::ProbeBwCruise | State::ProbeRtt)
    }

    /// IsProbingBW (§5.3.3.9).
    fn is_probing_bw(self) -> bool {
        matches!(self, State::Startup | State::ProbeBwRefill | State::ProbeBwUp)
    }
}

impl Controller for Bbr {
    /// OnInit (§5.2.1).
    fn new(start: &Start) -> Self {
        let now = start.now;
        Self {
            rate_unknown: true,
            bw_shortterm: u64::MAX,
            min_rtt: Duration::MAX,
            min_rtt_stamp: now,
            inflight_longterm: u32::MAX,
            inflight_shortterm: u32::MAX,
            extra_acked_interval_start: now,
            probe_up_acked_per_inc: u32::MAX,
            cycle_stamp: now,
            probe_rtt_min_delay: Duration::MAX,
            probe_rtt_min_stamp: now,
            mss: 1,
            // Initial sequence numbers are not predictable (RFC 6528). Zero would stay zero.
            random: (start.next.0 ^ now.micros() as u32) | 1,
            ..Self::default()
        }
    }

    fn on_rtt(&mut self, _: &mut Window, sample: &RttSample) {
        self.rtt = Some(sample.rtt);
    }

    /// UpdateOnACK (§5.2.3).
    fn on_ack(&mut self, window: &mut Window, ack: &Ack) {
        self.mss = ack.mss.max(1);
        self.has_selective_acks = ack.sack;
        self.delivered = ack.delivered_total;
        self.initial = window.initial();
        let rtt = self.rtt.take();
        let Some(sample) = ack.rate.filter(|_| ack.delivered > 0) else { return };
        let bytes = u64::from(sample.delivered) * u64::from(self.mss);
        let micros = sample.interval.map_or(0, |interval| interval.as_micros() as u64);
        let rs = Rs {
            sample,
            delivery_rate: bytes.saturating_mul(1_000_000).checked_div(micros).unwrap_or(0),
            newly_acked: ack.delivered,
            newly_lost: ack.lost,
            rtt,
            inflight: ack.in_flight,
            now: ack.now,
        };
        self.update_latest_delivery_signals(&rs);
        self.update_congestion_signals(window, &rs);
        self.update_ack_aggregation(window, &rs);
        self.check_full_bw_reached(&rs);
        self.check_startup_done(window, &rs);
        self.check_drain_done(&rs);
        self.update_probe_bw_cycle_phase(window, &rs);
        self.update_min_rtt(rtt, ack.now);
        self.update_baseline(&rs);
        self.check_probe_rtt(window, &rs);
        self.advance_latest_delivery_signals(&rs);
        self.bound_bw_for_model();
        self.set_pacing_rate_with_gain(self.state.pacing_gain());
        self.set_send_quantum();
        self.set_cwnd(window, &rs);
    }

    /// HandleLostPacket (§5.5.10.2).
    fn on_lost(&mut self, window: &mut Window, lost: &Lost) {
        self.delivered = lost.delivered_total;
        self.note_loss(window);
        if self.lost_end != Some(lost.start) {
            self.lost_ranges += 1;
        }
        self.lost_end = Some(lost.end);
        self.lost_in_round = self.lost_in_round.saturating_add(lost.segments);
        if !self.is_bw_probe_sample || !self.is_inflight_too_high(lost.lost, lost.in_flight) {
            return;
        }
        // HandleInflightTooHigh. A count that may be chance ends the probe and sets no bound.
        if self.exceeds_chance(lost.lost, lost.in_flight) {
            self.prev_probe_too_high = true;
            self.is_bw_probe_sample = false;
            if !lost.app_limited {
                let target = self.target_inflight(window);
                self.inflight_longterm = self.inflight_at_loss(lost).max(scale(target, BETA));
            }
        }
        if self.state == State::ProbeBwUp {
            self.undo_state = Some(State::ProbeBwUp);
            self.start_probe_bw_down(lost.now);
        }
    }

    /// A loss was noted already. A mark of ECN or a drop of our own device counts like one.
    fn on_congestion(&mut self, window: &mut Window, _: Instant) {
        self.note_loss(window);
    }

    fn on_late(&mut self, _: &mut Window, _lost: u32, _in_flight: u32) {}

    /// OnEnterRTO (§5.6.4.4).
    fn on_timeout(&mut self, window: &mut Window, first: bool, in_flight: u32, _: Instant) {
        if first {
            self.note_loss(window);
            self.lost_in_round = u32::MAX;
            self.save_cwnd(window);
        }
        window.set_cwnd(in_flight + 1);
    }

    fn on_recovered(&mut self, _: &mut Window, _keep: bool, _: Instant) {}

    /// HandleSpuriousLossDetection (§5.5.11.2).
    fn on_spurious(&mut self, window: &mut Window, ssthresh: Option<u32>, _: Instant) {
        if ssthresh.is_none() {
            return;
        }
        self.restore_cwnd(window);
        self.is_loss_in_round = false;
        self.lost_in_round = 0;
        self.reset_full_bw();
        self.bw_shortterm = self.bw_shortterm.max(self.undo_bw_shortterm);
        self.inflight_shortterm = self.inflight_shortterm.max(self.undo_inflight_shortterm);
        self.inflight_longterm = self.inflight_longterm.max(self.undo_inflight_longterm);
        match self.undo_state.take() {
            Some(State::Startup) if self.state != State::Startup => {
                self.full_bw_reached = false;
                if self.state != State::ProbeRtt {
                    self.state = State::Startup;
                }
            }
            Some(State::ProbeBwUp) if !matches!(self.state, State::ProbeBwUp | State::ProbeRtt) => {
                self.start_probe_bw_refill();
            }
            _ => {}
        }
    }

    /// Restores the window at the end of loss recovery (§5.6.4.4). What reduces it without loss is
    /// never chance.
    fn on_state(&mut self, window: &mut Window, state: CaState, _: Seq, _: Instant) {
        if is_loss_recovery(window.state()) && !is_loss_recovery(state) {
            self.restore_cwnd(window);
        }
        if state == CaState::Cwr {
            self.lost_in_round = u32::MAX;
        }
    }

    fn on_sent(&mut self, _: &mut Window, _: u32) {}

    /// HandleRestartFromIdle (§5.4.1).
    fn on_transmit_start(
        &mut self,
        window: &mut Window,
        _idle: Duration,
        app_limited: bool,
        now: Instant,
    ) {
        if !app_limited {
            return;
        }
        self.idle_restart = true;
        self.extra_acked_interval_start = now;
        if self.state.is_probe_bw() {
            self.set_pacing_rate_with_gain(100);
        } else if self.state == State::ProbeRtt {
            self.check_probe_rtt_done(window, now);
        }
    }

    /// The window stays after an idle period (§5.4.1).
    fn on_idle(&mut self, _: &mut Window, _: Duration, _: Duration, _: Instant) {}

    /// The model bounds the window, whether it is in use or not.
    fn on_unused(&mut self, _: &mut Window, _: bool, _: Instant) {}

    /// The rate; InitPacingRate (§5.6.2) until there is a round-trip time.
    fn pacing_rate(&mut self, window: &Window, path: &PathState) -> u64 {
        if self.rate_unknown {
            self.mss = path.mss.max(1);
            let micros = path.srtt.map_or(1000, |srtt| srtt.as_micros().max(1) as u64);
            let bytes = u64::from(window.cwnd()) * u64::from(self.mss);
            let nominal = bytes * 1_000_000 / micros;
            self.pacing_rate = nominal * State::Startup.pacing_gain() / 100;
            self.rate_unknown = path.srtt.is_none();
            self.set_send_quantum();
        }
        self.pacing_rate
    }

    fn paces(&self) -> bool {
        true
    }

    fn send_quantum(&self) -> Option<u32> {
        Some(self.send_quantum)
    }

    /// MarkConnectionAppLimited in HandleProbeRTT (§5.3.4.3).
    fn limits_itself(&self) -> bool {
        self.state == State::ProbeRtt
    }
}

/// State machine (§5.3), without ProbeBW and ProbeRTT.
impl Bbr {
    /// ResetFullBW (§5.3.1.2).
    fn reset_full_bw(&mut self) {
        self.full_bw = 0;
        self.full_bw_count = 0;
        self.full_bw_now = false;
    }

    /// CheckFullBWReached (§5.3.1.2).
    fn check_full_bw_reached(&mut self, rs: &Rs) {
        if self.full_bw_now || !self.round_start || rs.sample.app_limited {
            return;
        }
        if rs.delivery_rate.saturating_mul(100) >= self.full_bw.saturating_mul(125) {
            self.reset_full_bw();
            self.full_bw = rs.delivery_rate;
            return;
        }
        self.full_bw_count += 1;
        self.full_bw_now = self.full_bw_count >= 3;
        self.full_bw_reached |= self.full_bw_now;
    }

    /// CheckStartupDone (§5.3.1.1).
    fn check_startup_done(&mut self, window: &Window, rs: &Rs) {
        if self.state != State::Startup {
            return;
        }
        // CheckStartupHighLoss (§5.3.1.3). A round of losses begins with the first of them, and
        // recovery too.
        let ranges = if self.has_selective_acks { STARTUP_FULL_LOSS_COUNT } else { 1 };
        // If the peer's window stopped the sender, less was in flight at last than in the round.
        let most = rs.sample.in_flight.max(self.inflight_latest);
        let too_many = window.state() == CaState::Recovery
            && self.loss_round_start
            && self.lost_ranges >= ranges
            && self.is_inflight_too_high(rs.sample.lost, rs.sample.in_flight)
            && self.exceeds_chance(rs.sample.lost, most);
        if too_many && !self.full_bw_reached {
            self.undo_state = Some(State::Startup);
            self.full_bw_reached = true;
            self.inflight_longterm = self.bdp_multiple(self.bw, 100).max(self.inflight_latest);
        }
        if self.full_bw_reached {
            // EnterDrain (§5.3.2).
            self.state = State::Drain;
            self.drain_start_round = self.round_count;
        }
    }

    /// CheckDrainDone (§5.3.2).
    fn check_drain_done(&mut self, rs: &Rs) {
        if self.state == State::Drain
            && (rs.inflight <= self.inflight(self.bw, 100)
                || self.round_count > self.drain_start_round + 3)
        {
            self.start_probe_bw_down(rs.now);
        }
    }

    /// Next number of a xorshift generator: good enough to keep flows from probing in step.
    fn random(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        self.random
    }
}

/// BBR.LossThresh, in thousandths.
const LOSS_THRESH: u32 = 20;
/// BBR.Beta: part of the model that stays after a round trip with loss, in percent.
const BETA: u32 = 70;
/// BBR.MinPipeCwnd: least window, in segments.
const MIN_PIPE_CWND: u32 = 4;
/// Bursts that fit into the long-term bound of the inflight.
const BURSTS_IN_FLIGHT: u32 = 8;
/// BBRStartupFullLossCnt: lost ranges in a round trip that end Startup.
const STARTUP_FULL_LOSS_COUNT: u32 = 6;
/// BBR.ExtraAckedFilterLen, in round trips.
const EXTRA_ACKED_FILTER_LEN: usize = 10;
/// BBR.ProbeRTTCwndGain, in percent.
const PROBE_RTT_CWND_GAIN: u64 = 50;
