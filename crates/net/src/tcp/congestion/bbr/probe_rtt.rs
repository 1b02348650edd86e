//! ProbeRTT (§5.3.4): drains the queue now and then, to measure the round-trip time of the path.

use super::{AckPhase, Bbr, Rs, State};
use crate::tcp::congestion::Window;
use crate::time::{Duration, Instant};

impl Bbr {
    /// UpdateMinRTT (§5.3.4.3).
    pub(super) fn update_min_rtt(&mut self, rtt: Option<Duration>, now: Instant) {
        self.probe_rtt_expired = now.since(self.probe_rtt_min_stamp) > PROBE_RTT_INTERVAL;
        if let Some(rtt) = rtt
            && (rtt < self.probe_rtt_min_delay || self.probe_rtt_expired)
        {
            self.probe_rtt_min_delay = rtt;
            self.probe_rtt_min_stamp = now;
        }
        let min_rtt_expired = now.since(self.min_rtt_stamp) > MIN_RTT_FILTER_LEN;
        if self.probe_rtt_min_delay < self.min_rtt || min_rtt_expired {
            self.min_rtt = self.probe_rtt_min_delay;
            self.min_rtt_stamp = self.probe_rtt_min_stamp;
        }
    }

    /// CheckProbeRTT (§5.3.4.3).
    pub(super) fn check_probe_rtt(&mut self, window: &mut Window, rs: &Rs) {
        if self.state != State::ProbeRtt && self.probe_rtt_expired && !self.idle_restart {
            self.save_cwnd(window);
            // Not in the draft, where the filter forgets with the second next probe only: with a
            // round trip of 200 ms that is ten seconds later, as one probe fits in between.
            if self.has_lost_bandwidth() {
                self.advance_max_bw_filter();
            }
            self.state = State::ProbeRtt;
            self.probe_rtt_done_stamp = None;
            self.ack_phase = AckPhase::ProbeStopping;
            self.start_round();
        }
        if self.state == State::ProbeRtt {
            // HandleProbeRTT.
            if self.probe_rtt_done_stamp.is_some() {
                self.probe_rtt_round_done |= self.round_start;
                if self.probe_rtt_round_done {
                    self.check_probe_rtt_done(window, rs.now);
                }
            } else if rs.inflight <= self.probe_rtt_cwnd() {
                self.probe_rtt_done_stamp = Some(rs.now + PROBE_RTT_DURATION);
                self.probe_rtt_round_done = false;
                self.start_round();
            }
        }
        self.idle_restart &= rs.sample.delivered == 0;
    }

    /// CheckProbeRTTDone and ExitProbeRTT (§5.3.4.3, §5.3.4.4).
    pub(super) fn check_probe_rtt_done(&mut self, window: &mut Window, now: Instant) {
        if self.probe_rtt_done_stamp.is_none_or(|done| now <= done) {
            return;
        }
        self.probe_rtt_min_stamp = now;
        self.restore_cwnd(window);
        self.reset_short_term_model();
        self.state = State::Startup;
        if self.full_bw_reached {
            self.start_probe_bw_down(now);
            self.lead_bw_probe();
            self.state = State::ProbeBwCruise;
            // The next round trip delivers the flight of ProbeRTT. If it has a loss, that flight
            // must not pass for what the path delivers.
            self.bw_latest = self.max_bw();
            self.inflight_latest = self.prior_cwnd;
        }
    }
}

/// BBR.MinRTTFilterLen.
const MIN_RTT_FILTER_LEN: Duration = Duration::from_secs(10);
/// BBR.ProbeRTTDuration.
const PROBE_RTT_DURATION: Duration = Duration::from_millis(200);
/// BBR.ProbeRTTInterval.
const PROBE_RTT_INTERVAL: Duration = Duration::from_secs(5);
