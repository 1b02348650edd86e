//! The interface of a congestion controller, and the behaviour of a window-based sender as its
//! defaults.

use super::cwnd::Window;
use super::reports::{Ack, CaState, Lost, PathState, RttSample, Start};
use crate::tcp::seq::Seq;
use crate::time::{Duration, Instant};

/// A congestion controller: it gets reports and sets the window. The provided methods are NewReno;
/// most controllers replace [`Controller::grow`] and [`Controller::ssthresh`] only.
pub trait Controller {
    /// The controller of a new connection, or of one that switches to it.
    fn new(start: &Start) -> Self;

    /// Grows the window, which is in full use, for `acked` delivered segments. By default as RFC
    /// 5681 §3.1 says.
    fn grow(&mut self, window: &mut Window, acked: u32, _now: Instant) {
        let left = if window.in_slow_start() { window.slow_start(acked) } else { acked };
        if left > 0 {
            window.avoid(window.cwnd(), left);
        }
    }

    /// Returns the threshold after congestion. By default half of the window (RFC 5681 §3.1
    /// equation (4); the window replaces the flight, which cannot be larger).
    fn ssthresh(&mut self, window: &Window) -> u32 {
        (window.cwnd() / 2).max(2)
    }

    /// Takes a round-trip sample.
    fn on_rtt(&mut self, _: &mut Window, _: &RttSample) {}

    /// Takes an ACK. By default proportional rate reduction sets the window during a reduction (RFC
    /// 6937); otherwise it grows if it is in full use (RFC 7661).
    fn on_ack(&mut self, window: &mut Window, ack: &Ack) {
        if window.state().is_reducing() {
            window.reduce(ack.delivered, ack.lost, ack.advanced, ack.in_flight);
        } else if ack.progress && ack.delivered > 0 && window.is_limited() {
            self.grow(window, ack.delivered, ack.now);
        }
    }

    /// Takes a record that is lost.
    fn on_lost(&mut self, _: &mut Window, _: &Lost) {}

    /// Responds to congestion, at most once per round trip. By default a reduction to
    /// [`Controller::ssthresh`] begins.
    fn on_congestion(&mut self, window: &mut Window, _now: Instant) {
        let ssthresh = self.ssthresh(window);
        window.begin_reduction(ssthresh);
    }

    /// Takes losses that the reordering timer found. By default proportional rate reduction lets
    /// one segment go.
    fn on_late(&mut self, window: &mut Window, lost: u32, in_flight: u32) {
        window.reduce(1, lost, false, in_flight);
    }

    /// Responds to a retransmission timeout. By default the window restarts from one segment beyond
    /// those in flight (RFC 5681 §3.1).
    fn on_timeout(&mut self, window: &mut Window, first: bool, in_flight: u32, now: Instant) {
        if first {
            let ssthresh = self.ssthresh(window);
            window.set_prior_cwnd(window.cwnd());
            window.set_ssthresh(ssthresh);
        }
        window.set_cwnd(in_flight + 1);
        window.clear_credit();
        window.restamp(now);
    }

    /// Ends a reduction. By default the window becomes the threshold if `keep` says so.
    fn on_recovered(&mut self, window: &mut Window, keep: bool, now: Instant) {
        if keep && window.has_threshold() {
            window.set_cwnd(window.ssthresh());
            window.restamp(now);
        }
    }

    /// Undoes a reduction that was a mistake. By default the window and the threshold return to
    /// their values before it (RFC 4015).
    fn on_spurious(&mut self, window: &mut Window, ssthresh: Option<u32>, now: Instant) {
        if let Some(ssthresh) = ssthresh {
            window.set_cwnd(window.cwnd().max(window.prior_cwnd()));
            window.set_ssthresh(window.ssthresh().max(ssthresh));
        }
        window.restamp(now);
    }

    /// Notes that loss recovery enters `state`; the window still has the former state. `next` is
    /// the next sequence number to be sent.
    fn on_state(&mut self, _: &mut Window, _state: CaState, _next: Seq, _now: Instant) {}

    /// Notes that `segments` were sent. By default they count for proportional rate reduction.
    fn on_sent(&mut self, window: &mut Window, segments: u32) {
        window.note_sent(segments);
    }

    /// Notes that data is about to be sent while nothing is in flight.
    fn on_transmit_start(
        &mut self,
        _: &mut Window,
        _idle: Duration,
        _app_limited: bool,
        _now: Instant,
    ) {
    }

    /// Restarts after an idle period that is longer than `rto`. By default the window shrinks (RFC
    /// 5681 §4.1).
    fn on_idle(&mut self, window: &mut Window, idle: Duration, rto: Duration, now: Instant) {
        window.restart(idle, rto, now);
    }

    /// Responds to a window that was not in full use for a timeout. By default it shrinks (RFC
    /// 7661), unless the send buffer was too small for it.
    fn on_unused(&mut self, window: &mut Window, starved: bool, now: Instant) {
        if starved {
            window.restamp(now);
        } else {
            window.shrink_unused(now);
        }
    }

    /// Returns the pacing rate in bytes per second. By default it is, in the first half of slow
    /// start, about twice the window per round trip, and later a little more than the window, so
    /// that pacing does not slow the sender down.
    fn pacing_rate(&mut self, window: &Window, path: &PathState) -> u64 {
        let ratio = if window.cwnd() < window.ssthresh() / 2 {
            path.slow_start_ratio
        } else {
            path.avoidance_ratio
        };
        let segments = window.cwnd().max(path.outstanding);
        let bytes = u64::from(path.mss) * u64::from(segments) * u64::from(ratio) / 100;
        let srtt_us = path.srtt.map_or(1, |srtt| srtt.as_micros().max(1) as u64);
        bytes.saturating_mul(1_000_000).div_euclid(srtt_us)
    }

    /// True if the controller depends on pacing. By default segments are paced only if the owner
    /// asks for that.
    fn paces(&self) -> bool {
        false
    }

    /// Bytes to send as one burst. By default the connection chooses that.
    fn send_quantum(&self) -> Option<u32> {
        None
    }

    /// True while the controller keeps the path from being full.
    fn limits_itself(&self) -> bool {
        false
    }
}
