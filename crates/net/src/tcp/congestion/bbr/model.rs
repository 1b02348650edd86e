//! The model of the path (§5.5), and the window, the pacing rate and the size of bursts that follow
//! from it (§5.6).

use super::baseline::{exceeds, shows_queue};
use super::{
    AckPhase, BETA, BURSTS_IN_FLIGHT, Bbr, EXTRA_ACKED_FILTER_LEN, LOSS_THRESH, MIN_PIPE_CWND,
    PROBE_RTT_CWND_GAIN, Rs, State,
};
use crate::tcp::congestion::{CaState, Lost, Window};
use crate::time::Duration;

/// Model of the path.
impl Bbr {
    /// StartRound (§5.5.1).
    pub(super) fn start_round(&mut self) {
        self.next_round_delivered = Some(self.delivered);
    }

    /// BBR.max_bw (§5.5.2).
    pub(super) fn max_bw(&self) -> u64 {
        self.max_bw_filter[0].max(self.max_bw_filter[1])
    }

    /// UpdateMaxBw and UpdateRound (§5.5.5, §5.5.1).
    fn update_max_bw(&mut self, rs: &Rs) {
        self.round_start = has_reached(rs.sample.prior_delivered, self.next_round_delivered);
        if self.round_start {
            self.start_round();
            self.round_count = self.round_count.wrapping_add(1);
            self.rounds_since_probe_up += 1;
            let slot = self.extra_acked_slot(0);
            self.extra_acked_filter[slot] = 0;
        }
        if rs.delivery_rate > 0 && (rs.delivery_rate >= self.max_bw() || !rs.sample.app_limited) {
            self.max_bw_filter[1] = self.max_bw_filter[1].max(rs.delivery_rate);
        }
    }

    /// UpdateACKAggregation (§5.5.9).
    pub(super) fn update_ack_aggregation(&mut self, window: &Window, rs: &Rs) {
        let interval = rs.now.since(self.extra_acked_interval_start);
        let mut expected = self.segments(product(self.bw, interval));
        if self.extra_acked_delivered <= expected {
            self.extra_acked_delivered = 0;
            self.extra_acked_interval_start = rs.now;
            expected = 0;
        }
        self.extra_acked_delivered = self.extra_acked_delivered.saturating_add(rs.newly_acked);
        let extra = (self.extra_acked_delivered - expected).min(window.cwnd());
        let slot = self.extra_acked_slot(0);
        self.extra_acked_filter[slot] = self.extra_acked_filter[slot].max(extra);
    }

    /// Index of the round trip that is `ago` before this one.
    fn extra_acked_slot(&self, ago: u32) -> usize {
        self.round_count.wrapping_sub(ago) as usize % EXTRA_ACKED_FILTER_LEN
    }

    /// BBR.extra_acked: the most of the last rounds; of this one and the last one in Startup.
    fn extra_acked(&self) -> u32 {
        if self.full_bw_reached {
            return self.extra_acked_filter.iter().copied().max().unwrap_or(0);
        }
        let of = |ago| self.extra_acked_filter[self.extra_acked_slot(ago)];
        of(0).max(of(1))
    }

    /// Whether the round trip of this ACK shows a queue, if it has a sample of one.
    pub(super) fn queue(&self, rs: &Rs) -> Option<bool> {
        rs.rtt.map(|rtt| shows_queue(rtt, self.min_rtt))
    }

    /// Measures the random loss, while no segment of a probe is in the network.
    pub(super) fn update_baseline(&mut self, rs: &Rs) {
        let counts = self.has_selective_acks
            && self.ack_phase == AckPhase::Init
            && self.state.is_without_queue();
        match self.queue(rs) {
            Some(true) => self.baseline.note_queue(),
            Some(false) if counts => {
                self.baseline.count(rs.newly_acked, rs.newly_lost, self.round_count);
            }
            _ => {}
        }
    }

    /// BBR.LossThresh above the random loss, in thousandths.
    fn loss_thresh(&self) -> u32 {
        LOSS_THRESH + self.baseline.rate()
    }

    /// IsInflightTooHigh (§5.5.10.2).
    pub(super) fn is_inflight_too_high(&self, lost: u32, tx_in_flight: u32) -> bool {
        u64::from(lost) * 1000 > u64::from(tx_in_flight) * u64::from(self.loss_thresh())
            || (lost > 0 && !self.has_selective_acks)
    }

    /// True if `lost` of `flight` segments exceed the threshold by more than chance. A path that
    /// loses 1% at random exceeds 2% in many round trips, as a round trip has few losses; the draft
    /// wants to tolerate that (§5.3.3.8.3).
    pub(super) fn exceeds_chance(&self, lost: u32, flight: u32) -> bool {
        exceeds(lost, flight, self.loss_thresh()) || !self.has_selective_acks
    }

    /// True if the round trip that ends lost more than twice the random loss, beyond chance: the
    /// least of some windows is below the mean, and a phase between probes has 60 round trips in
    /// which chance may strike. The first loss does not count, as the round begins with it. Without
    /// random loss each loss is congestion.
    fn is_loss_congestion(&self) -> bool {
        let rate = self.baseline.rate();
        let flight = self.inflight_latest.saturating_add(self.lost_in_round);
        rate == 0 || exceeds(self.lost_in_round.saturating_sub(1), flight, 2 * rate)
    }

    /// InflightAtLoss (§5.5.10.2): the inflight at which the losses exceeded the threshold, which
    /// may be within the lost burst.
    pub(super) fn inflight_at_loss(&self, lost: &Lost) -> u32 {
        let (size, thresh) = (lost.segments, i64::from(self.loss_thresh()));
        let before = i64::from(lost.in_flight.saturating_sub(size));
        let lost_before = i64::from(lost.lost.saturating_sub(size));
        let prefix = (thresh * before - 1000 * lost_before) / (1000 - thresh);
        u32::try_from(before + prefix).unwrap_or(0)
    }

    /// NoteLoss, and SaveStateUponLoss (§5.5.10.2, §5.5.11.1).
    pub(super) fn note_loss(&mut self, window: &Window) {
        if core::mem::replace(&mut self.is_loss_in_round, true) {
            return;
        }
        self.loss_round_delivered = Some(self.delivered);
        self.save_cwnd(window);
        self.undo_state = None;
        self.undo_bw_shortterm = self.bw_shortterm;
        self.undo_inflight_shortterm = self.inflight_shortterm;
        self.undo_inflight_longterm = self.inflight_longterm;
    }

    /// UpdateLatestDeliverySignals (§5.5.10.3).
    pub(super) fn update_latest_delivery_signals(&mut self, rs: &Rs) {
        self.bw_latest = self.bw_latest.max(rs.delivery_rate);
        self.inflight_latest = self.inflight_latest.max(rs.sample.delivered);
        self.loss_round_start = has_reached(rs.sample.prior_delivered, self.loss_round_delivered);
        if self.loss_round_start {
            self.loss_round_delivered = Some(self.delivered);
        }
    }

    /// AdvanceLatestDeliverySignals (§5.5.10.3).
    pub(super) fn advance_latest_delivery_signals(&mut self, rs: &Rs) {
        if self.loss_round_start {
            self.bw_latest = rs.delivery_rate;
            self.inflight_latest = rs.sample.delivered;
            self.lost_ranges = 0;
            self.lost_end = None;
            self.lost_in_round = 0;
        }
    }

    /// UpdateCongestionSignals (§5.5.10.3).
    pub(super) fn update_congestion_signals(&mut self, window: &Window, rs: &Rs) {
        self.update_max_bw(rs);
        if !self.loss_round_start {
            return;
        }
        // AdaptLowerBoundsFromCongestion.
        let is_loss_in_round = core::mem::take(&mut self.is_loss_in_round);
        if is_loss_in_round && self.is_loss_congestion() && !self.state.is_probing_bw() {
            if self.bw_shortterm == u64::MAX {
                self.bw_shortterm = self.max_bw();
            }
            if self.inflight_shortterm == u32::MAX {
                self.inflight_shortterm = window.cwnd();
            }
            self.bw_shortterm =
                self.bw_latest.max(self.bw_shortterm.saturating_mul(u64::from(BETA)) / 100);
            self.inflight_shortterm =
                self.inflight_latest.max(scale(self.inflight_shortterm, BETA));
        }
    }

    /// ResetShortTermModel (§5.5.10.3).
    pub(super) fn reset_short_term_model(&mut self) {
        self.bw_shortterm = u64::MAX;
        self.inflight_shortterm = u32::MAX;
    }

    /// BoundBWForModel (§5.5.10.3).
    pub(super) fn bound_bw_for_model(&mut self) {
        self.bw = self.max_bw().min(self.bw_shortterm);
    }
}

/// Control parameters.
impl Bbr {
    /// SetPacingRateWithGain (§5.6.2). The margin of 1% is below the long-term bandwidth: what was
    /// delivered in a round trip with loss was sent with the margin already, and would shrink by it
    /// in each round trip.
    pub(super) fn set_pacing_rate_with_gain(&mut self, gain: u64) {
        let bw = (self.max_bw() / 100 * 99).min(self.bw_shortterm);
        let rate = bw.saturating_mul(gain) / 100;
        if rate > 0 && (self.full_bw_reached || rate > self.pacing_rate) {
            self.pacing_rate = rate;
        }
    }

    /// SetSendQuantum (§5.6.3). Where probes lose data, a burst must fit into a queue that is small
    /// beside the inflight.
    pub(super) fn set_send_quantum(&mut self) {
        let millisecond = (self.pacing_rate / 1000).min(64 << 10) as u32;
        let part = (self.inflight_longterm / BURSTS_IN_FLIGHT).saturating_mul(self.mss);
        self.send_quantum = millisecond.min(part).max(2 * self.mss);
    }

    /// Whole segments that hold `bytes`.
    fn segments(&self, bytes: u64) -> u32 {
        u32::try_from(bytes.div_ceil(self.mss.into())).unwrap_or(u32::MAX)
    }

    /// BDPMultiple (§5.6.4.2), for the bandwidth `bw`.
    pub(super) fn bdp_multiple(&self, bw: u64, gain: u64) -> u32 {
        if self.min_rtt == Duration::MAX {
            return self.initial;
        }
        self.segments(product(bw, self.min_rtt).saturating_mul(gain) / 100)
    }

    /// QuantizationBudget (§5.6.4.2), with UpdateOffloadBudget (§5.5.8).
    fn quantization_budget(&self, inflight_cap: u32) -> u32 {
        let offload_budget = self.segments(3 * u64::from(self.send_quantum));
        let cap = inflight_cap.max(offload_budget).max(MIN_PIPE_CWND);
        if self.state == State::ProbeBwUp { cap.saturating_add(2) } else { cap }
    }

    /// Inflight (§5.6.4.2), for the bandwidth `bw`.
    pub(super) fn inflight(&self, bw: u64, gain: u64) -> u32 {
        self.quantization_budget(self.bdp_multiple(bw, gain))
    }

    /// TargetInflight (§5.3.3.8.3).
    pub(super) fn target_inflight(&self, window: &Window) -> u32 {
        self.bdp_multiple(self.bw, 100).min(window.cwnd())
    }

    /// SaveCwnd (§5.6.4.4).
    pub(super) fn save_cwnd(&mut self, window: &Window) {
        self.prior_cwnd = if is_loss_recovery(window.state()) || self.state == State::ProbeRtt {
            self.prior_cwnd.max(window.cwnd())
        } else {
            window.cwnd()
        };
    }

    /// RestoreCwnd (§5.6.4.4).
    pub(super) fn restore_cwnd(&self, window: &mut Window) {
        window.set_cwnd(window.cwnd().max(self.prior_cwnd));
    }

    /// ProbeRTTCwnd (§5.6.4.5).
    pub(super) fn probe_rtt_cwnd(&self) -> u32 {
        self.bdp_multiple(self.bw, PROBE_RTT_CWND_GAIN).max(MIN_PIPE_CWND)
    }

    /// SetCwnd (§5.6.4.6), with UpdateMaxInflight (§5.6.4.2).
    pub(super) fn set_cwnd(&self, window: &mut Window, rs: &Rs) {
        let inflight_cap = self.bdp_multiple(self.bw, self.state.cwnd_gain());
        let max_inflight =
            self.quantization_budget(inflight_cap.saturating_add(self.extra_acked()));
        let mut cwnd = window.cwnd();
        if self.full_bw_reached {
            cwnd = cwnd.saturating_add(rs.newly_acked).min(max_inflight);
        } else if cwnd < max_inflight || self.delivered < self.initial {
            cwnd = cwnd.saturating_add(rs.newly_acked);
        }
        cwnd = cwnd.max(MIN_PIPE_CWND);
        if self.state == State::ProbeRtt {
            // BoundCwndForProbeRTT.
            cwnd = cwnd.min(self.probe_rtt_cwnd());
        }
        window.set_cwnd(cwnd.min(self.model_cap()));
    }

    /// Bound of BoundCwndForModel (§5.6.4.7).
    fn model_cap(&self) -> u32 {
        let cap = match self.state {
            State::ProbeRtt | State::ProbeBwCruise => self.inflight_with_headroom(),
            state if state.is_probe_bw() => self.inflight_longterm,
            _ => u32::MAX,
        };
        cap.min(self.inflight_shortterm).max(MIN_PIPE_CWND)
    }
}

/// True while losses are being repaired.
pub(super) fn is_loss_recovery(state: CaState) -> bool {
    state >= CaState::Recovery
}

/// `percent` of `volume`.
pub(super) fn scale(volume: u32, percent: u32) -> u32 {
    (u64::from(volume) * u64::from(percent) / 100) as u32
}

/// Bytes that `rate` bytes per second give in `time`.
fn product(rate: u64, time: Duration) -> u64 {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    (u128::from(rate) * u128::from(micros) / 1_000_000) as u64
}

/// True if `delivered` segments are at or after `mark`; both wrap.
fn has_reached(delivered: u32, mark: Option<u32>) -> bool {
    mark.is_none_or(|mark| delivered.wrapping_sub(mark) as i32 >= 0)
}
