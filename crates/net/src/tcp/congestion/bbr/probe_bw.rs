//! ProbeBW (§5.3.3): probes for bandwidth now and then, and leaves the rest of the time to others.

use super::model::scale;
use super::{AckPhase, Bbr, MIN_PIPE_CWND, Rs, State};
use crate::tcp::congestion::Window;
use crate::time::{Duration, Instant};

impl Bbr {
    /// StartProbeBW_DOWN (§5.3.3.9).
    pub(super) fn start_probe_bw_down(&mut self, now: Instant) {
        // ResetCongestionSignals (§5.5.10.3).
        self.is_loss_in_round = false;
        self.lost_in_round = 0;
        self.bw_latest = 0;
        self.inflight_latest = 0;
        self.probe_up_acked_per_inc = u32::MAX;
        // PickProbeWait (§5.3.3.8.3).
        self.rounds_since_probe_up = self.random() & 1;
        let more = Duration::from_micros(u64::from(self.random()) % 1_000_000);
        self.bw_probe_wait =
            Duration::from_secs(2) + more + core::mem::take(&mut self.bw_probe_lead);
        self.cycle_stamp = now;
        self.ack_phase = AckPhase::ProbeStopping;
        self.start_round();
        self.state = State::ProbeBwDown;
    }

    /// StartProbeBW_REFILL (§5.3.3.9).
    pub(super) fn start_probe_bw_refill(&mut self) {
        self.reset_short_term_model();
        self.bw_probe_up_rounds = 0;
        self.bw_probe_up_acked = 0;
        self.prev_probe_precautionary = false;
        self.ack_phase = AckPhase::Refilling;
        self.start_round();
        self.state = State::ProbeBwRefill;
    }

    /// StartProbeBW_UP (§5.3.3.9).
    fn start_probe_bw_up(&mut self, window: &Window, rs: &Rs) {
        self.ack_phase = AckPhase::ProbeStarting;
        self.start_round();
        self.reset_full_bw();
        self.full_bw = rs.delivery_rate;
        self.began_without_queue = self.queue(rs) == Some(false);
        self.state = State::ProbeBwUp;
        self.raise_inflight_longterm_slope(window);
    }

    /// UpdateProbeBWCyclePhase (§5.3.3.9).
    pub(super) fn update_probe_bw_cycle_phase(&mut self, window: &Window, rs: &Rs) {
        if !self.full_bw_reached || self.adapt_long_term_model(window, rs) {
            return;
        }
        let goes_down = self.state == State::ProbeBwUp && self.is_time_to_go_down(window, rs);
        match self.state {
            State::ProbeBwDown | State::ProbeBwCruise if self.is_time_to_probe_bw(window, rs) => {
                self.start_probe_bw_refill();
            }
            // IsTimeToCruise.
            State::ProbeBwDown
                if rs.inflight <= self.inflight_with_headroom()
                    && rs.inflight <= self.inflight(self.max_bw(), 100) =>
            {
                self.state = State::ProbeBwCruise;
            }
            State::ProbeBwRefill if self.round_start => {
                self.is_bw_probe_sample = true;
                self.start_probe_bw_up(window, rs);
            }
            State::ProbeBwUp if goes_down => {
                self.prev_probe_too_high = false;
                self.start_probe_bw_down(rs.now);
            }
            _ => {}
        }
    }

    /// IsTimeToProbeBW (§5.3.3.8.3).
    fn is_time_to_probe_bw(&self, window: &Window, rs: &Rs) -> bool {
        let reno_rounds = self.target_inflight(window).min(RENO_ROUNDS_MAX);
        rs.now.since(self.cycle_stamp) > self.bw_probe_wait
            || self.rounds_since_probe_up >= reno_rounds
    }

    /// IsTimeToGoDown (§5.3.3.9).
    fn is_time_to_go_down(&mut self, window: &Window, rs: &Rs) -> bool {
        if self.prev_probe_too_high && rs.inflight >= self.inflight_longterm {
            self.prev_probe_precautionary = true;
            return true;
        }
        if window.was_full() && window.cwnd() >= self.inflight_longterm {
            self.reset_full_bw();
            self.full_bw = rs.delivery_rate;
            return false;
        }
        self.full_bw_now || self.has_built_queue(rs)
    }

    /// True if the probe has built a queue where there was none: the rate is found, and more of the
    /// probe would only make the queue longer. This is not in the draft, whose probes last three
    /// round trips at least, and leave a queue of half a round trip in a deep buffer. Where probes
    /// overflow the queue, or others keep one, the draft's end of a probe stays: it decides how
    /// flows share.
    fn has_built_queue(&self, rs: &Rs) -> bool {
        self.began_without_queue
            && self.inflight_longterm == u32::MAX
            && self.queue(rs) == Some(true)
            && rs.inflight >= self.inflight(self.max_bw(), State::ProbeBwUp.pacing_gain())
    }

    /// InflightWithHeadroom (§5.3.3.9).
    pub(super) fn inflight_with_headroom(&self) -> u32 {
        if self.inflight_longterm == u32::MAX {
            return u32::MAX;
        }
        let headroom = scale(self.inflight_longterm, HEADROOM).max(1);
        self.inflight_longterm.saturating_sub(headroom).max(MIN_PIPE_CWND)
    }

    /// RaiseInflightLongtermSlope (§5.3.3.9).
    fn raise_inflight_longterm_slope(&mut self, window: &Window) {
        self.probe_up_acked_per_inc = (window.cwnd() >> self.bw_probe_up_rounds).max(1);
        self.bw_probe_up_rounds = (self.bw_probe_up_rounds + 1).min(30);
    }

    /// ProbeInflightLongtermUpward (§5.3.3.9).
    fn probe_inflight_longterm_upward(&mut self, window: &Window, rs: &Rs) {
        if !window.was_full() || window.cwnd() < self.inflight_longterm {
            return;
        }
        self.bw_probe_up_acked += rs.newly_acked;
        let delta = self.bw_probe_up_acked / self.probe_up_acked_per_inc;
        self.bw_probe_up_acked -= delta * self.probe_up_acked_per_inc;
        self.inflight_longterm = self.inflight_longterm.saturating_add(delta);
        if self.round_start {
            self.raise_inflight_longterm_slope(window);
        }
    }

    /// Makes the next probe earlier by a random time, and the one after it as much later, where the
    /// path is so long that a second does not spread the probes of several flows. This is not in
    /// the draft: all flows of a path leave ProbeRTT together, and flows that probe at the same
    /// time gain nothing on each other. Under random loss the draft's wait stays: early probes of a
    /// flow alone would only lengthen its queue.
    pub(super) fn lead_bw_probe(&mut self) {
        if self.baseline.has_loss() {
            return;
        }
        let spread = self.min_rtt.saturating_mul(SPREAD_ROUNDS).min(SPREAD_MAX);
        let most = spread.saturating_sub(Duration::from_secs(1)).as_micros() as u64;
        if most > 0 {
            self.bw_probe_lead = Duration::from_micros(u64::from(self.random()) % most);
            self.bw_probe_wait -= self.bw_probe_lead;
        }
    }

    /// True if the flow has delivered clearly less than BBR.max_bw since its last probe, as others
    /// have taken the rest.
    pub(super) fn has_lost_bandwidth(&self) -> bool {
        self.state.is_probe_bw()
            && !self.state.is_probing_bw()
            && !self.baseline.has_loss()
            && self.rounds_since_probe_up >= CRUISE_ROUNDS_MIN
            && self.max_bw_filter[1] / CRUISE_PERCENT_MIN < self.max_bw() / 100
    }

    /// AdvanceMaxBwFilter (§5.5.6). A cycle without samples does not count.
    pub(super) fn advance_max_bw_filter(&mut self) {
        if self.max_bw_filter[1] > 0 {
            self.max_bw_filter = [self.max_bw_filter[1], 0];
        }
    }

    /// AdaptLongTermModel (§5.3.3.9). Returns true if it decided the next state.
    fn adapt_long_term_model(&mut self, window: &Window, rs: &Rs) -> bool {
        if self.ack_phase == AckPhase::ProbeStarting && self.round_start {
            self.ack_phase = AckPhase::ProbeFeedback;
        }
        if self.ack_phase == AckPhase::ProbeStopping && self.round_start {
            self.is_bw_probe_sample = false;
            self.ack_phase = AckPhase::Init;
            let probes = self.state.is_probe_bw();
            if probes && !rs.sample.app_limited {
                self.advance_max_bw_filter();
            }
            if probes && self.prev_probe_precautionary && !self.prev_probe_too_high {
                self.start_probe_bw_refill();
                return true;
            }
        }
        if self.is_inflight_too_high(rs.sample.lost, rs.sample.in_flight)
            || self.inflight_longterm == u32::MAX
        {
            return false;
        }
        self.inflight_longterm = self.inflight_longterm.max(rs.sample.in_flight);
        if self.state == State::ProbeBwUp {
            self.probe_inflight_longterm_upward(window, rs);
        }
        false
    }
}

/// BBR.Headroom: part of the inflight that is left to others, in percent.
const HEADROOM: u32 = 15;
/// Round trips over which probes are spread after ProbeRTT: three times what one takes, from REFILL
/// to the ACKs of its last data.
const SPREAD_ROUNDS: u32 = 15;
/// Longest time over which probes are spread: the longest wait.
const SPREAD_MAX: Duration = Duration::from_secs(3);
/// Least part of BBR.max_bw that a flow delivers between probes if no other has taken any: it paces
/// at 99%.
const CRUISE_PERCENT_MIN: u64 = 95;
/// Round trips after a probe in which a flow that drains its queue delivers less.
const CRUISE_ROUNDS_MIN: u32 = 4;
/// Most round trips between probes for bandwidth.
const RENO_ROUNDS_MAX: u32 = 63;
