//! Episodes of recovery: how they begin and end, and how the window is reduced and restored (RFC
//! 5681 §3.2, RFC 6582 §3.2, RFC 6675 §5, RFC 3168 §6.1.2, RFC 4015 §3.2).

use super::{CaState, Cx, Recovery, Report, Resend, TIMEOUT_MIN, TimerRequest, lost_to};
use crate::time::Duration;

/// Least time to wait for more ACKs of a receiver that seems to have dropped SACKed data.
const RENEGING_WAIT_MIN: Duration = Duration::from_millis(10);

impl Recovery {
    /// Processes an ACK that is unusual, or that arrives in an unusual state, or the SACK blocks of
    /// an old ACK.
    pub(in crate::tcp) fn update_state(&mut self, report: &mut Report, cx: &mut Cx<'_>) {
        self.resend = Resend::Nothing;
        if report.ece {
            // RFC 3168 §6.1.2: this reduction must not be undone.
            self.undo.set_ssthresh(None);
        }
        if self.suspect_reneging(report, cx) || self.end_episode(report, cx) {
            return;
        }
        let resends = match self.state {
            CaState::Recovery => self.continue_recovery(report, cx),
            CaState::Loss => {
                self.continue_after_timeout(report, cx);
                if self.state != CaState::Loss {
                    self.timeouts.end(cx.now);
                }
                self.detect_losses(report, cx);
                // The timeout was spurious, or what it sent was lost too.
                let again = self.state == CaState::Open || report.lost_again;
                again && self.look_for_loss(report, cx)
            }
            _ => self.look_for_loss(report, cx),
        };
        if resends {
            self.resend = Resend::Lost;
        }
    }

    /// Processes an ACK in recovery (RFC 6675 §5 (B) and (C), RFC 6582 §3.2 step 3). Returns true
    /// if lost data may be retransmitted.
    fn continue_recovery(&mut self, report: &mut Report, cx: &mut Cx<'_>) -> bool {
        if !report.advanced {
            self.add_duplicates(report.repeats);
        } else if self.undo_partly(report, cx) {
            return false;
        }
        if self.undo_by_duplicates(cx) {
            self.calm_down(report, cx);
        }
        self.detect_losses(report, cx);
        if self.state != CaState::Recovery {
            if self.board.totals().lost == 0 {
                return false;
            }
            self.enter_recovery(report.ece, cx);
        }
        true
    }

    /// Decides outside of recovery whether recovery begins (RFC 6675 §5 (A)); true if it does.
    fn look_for_loss(&mut self, report: &mut Report, cx: &mut Cx<'_>) -> bool {
        if !self.sack {
            if report.advanced {
                self.board.set_duplicates(0);
            }
            self.add_duplicates(report.repeats);
        }
        if self.state <= CaState::Disorder {
            self.undo_by_duplicates(cx);
        }
        self.detect_losses(report, cx);
        if self.board.totals().lost == 0 {
            self.calm_down(report, cx);
            return false;
        }
        if self.loses_mtu_probe(report, cx) {
            return false;
        }
        self.enter_recovery(report.ece, cx);
        true
    }

    /// Handles a receiver that seems to have dropped SACKed data (RFC 2018 §8). ACKs may be out of
    /// order, so the timer decides a moment later.
    fn suspect_reneging(&self, report: &mut Report, cx: &Cx<'_>) -> bool {
        let suspicious = report.reneging && report.advanced;
        if suspicious {
            let wait = cx.rtt.srtt().map_or(Duration::ZERO, |srtt| srtt / 2);
            report.timer = TimerRequest::Retransmit(cx.now + wait.max(RENEGING_WAIT_MIN));
        }
        suspicious
    }

    /// Ends an episode whose data is all acknowledged. Returns true if the ACK needs no more
    /// processing.
    fn end_episode(&mut self, report: &Report, cx: &mut Cx<'_>) -> bool {
        if self.state == CaState::Open {
            self.undo.stop_clock();
        } else if cx.una.at_or_after(self.recover) {
            match self.state {
                // Stay until something above `recover` is acknowledged: it carries CWR to the peer.
                CaState::Cwr if cx.una != self.recover => {
                    self.end_reduction(cx);
                    self.set_state(CaState::Open, cx);
                }
                CaState::Recovery => {
                    if !self.sack {
                        self.board.set_duplicates(0);
                    }
                    if self.undo_at_end(report, cx) {
                        return true;
                    }
                    self.end_reduction(cx);
                }
                _ => {}
            }
        }
        false
    }

    pub(super) fn set_state(&mut self, state: CaState, cx: &mut Cx<'_>) {
        self.state = state;
        cx.congestion.on_state(state, cx.nxt, cx.now);
    }

    /// Marks lost records: by RACK (RFC 8985 §6.2 step 5) or, without SACK, by the count of
    /// duplicate ACKs (RFC 5681 §3.2) and by partial ACKs (RFC 6582 §3.2).
    fn detect_losses(&mut self, report: &mut Report, cx: &mut Cx<'_>) {
        let totals = self.board.totals();
        if totals.outstanding == 0 {
            return;
        }
        if self.sack {
            if self.rack.take_advanced()
                && let Some(wait) = self.detect_late(cx)
            {
                report.timer = TimerRequest::Reorder(cx.now + wait + TIMEOUT_MIN);
            }
            report.lost_again |= self.board.totals().resent < totals.resent;
            return;
        }
        let recovering = self.state == CaState::Recovery;
        let begins = self.state < CaState::Recovery && totals.sacked >= self.reordering.degree();
        if begins || (recovering && report.advanced) {
            self.board.lose_first(&mut lost_to(cx.congestion, self.delivered, cx.now));
        }
    }

    fn any_resent(&self) -> bool {
        self.board.totals().resent > 0 || self.board.first().is_some_and(|first| first.ever_resent)
    }

    fn stop_clock_unless_resent(&mut self) {
        if !self.any_resent() {
            self.undo.stop_clock();
        }
    }

    /// Returns to `Open`, or to `Disorder` if something is still unusual; echoed congestion begins
    /// a reduction.
    fn calm_down(&mut self, report: &Report, cx: &mut Cx<'_>) {
        self.stop_clock_unless_resent();
        if report.ece {
            self.enter_cwr(cx);
        }
        if self.state != CaState::Cwr {
            self.settle(cx);
        }
    }

    fn settle(&mut self, cx: &mut Cx<'_>) {
        let totals = self.board.totals();
        let odd = totals.sacked + totals.lost > 0 || self.any_resent();
        let state = if odd { CaState::Disorder } else { CaState::Open };
        if self.state != state {
            self.set_state(state, cx);
            self.recover = cx.nxt;
        }
    }

    /// Begins fast recovery. `ece` means that the ACK echoes congestion too.
    pub(super) fn enter_recovery(&mut self, ece: bool, cx: &mut Cx<'_>) {
        self.undo.start_clock(cx.now);
        self.undo.set_ssthresh(None);
        self.prepare_undo(cx);
        if !self.state.is_reducing() {
            if !ece {
                self.undo.set_ssthresh(Some(self.threshold(cx)));
            }
            self.begin_reduction(cx);
        }
        self.set_state(CaState::Recovery, cx);
    }

    /// Reduces the window over a round trip: the network or the peer reported congestion without
    /// loss (RFC 3168 §6.1.2).
    fn enter_cwr(&mut self, cx: &mut Cx<'_>) {
        self.undo.set_ssthresh(None);
        if self.state < CaState::Cwr {
            self.undo.forget();
            self.begin_reduction(cx);
            self.set_state(CaState::Cwr, cx);
        }
    }

    /// Reduces the window as recovery would: the loss probe repaired a loss (RFC 8985 §7.4.2).
    pub(super) fn respond_to_repaired_loss(&mut self, cx: &mut Cx<'_>) {
        self.begin_reduction(cx);
        self.set_state(CaState::Cwr, cx);
        self.end_reduction(cx);
        self.settle(cx);
    }

    /// The threshold that a reduction may return to.
    pub(in crate::tcp) fn threshold(&self, cx: &Cx<'_>) -> u32 {
        let window = cx.congestion.window();
        if window.state().is_reducing() { window.ssthresh() } else { window.current_ssthresh() }
    }

    /// Sets the threshold that a reduction returns to.
    pub(in crate::tcp) fn set_prior_threshold(&mut self, ssthresh: u32) {
        self.undo.set_ssthresh(Some(ssthresh));
    }

    pub(super) fn prepare_undo(&mut self, cx: &Cx<'_>) {
        let probe = u32::from(self.probe.is_resent());
        self.undo.begin(cx.una, self.board.totals().resent + probe);
    }

    fn begin_reduction(&mut self, cx: &mut Cx<'_>) {
        self.recover = cx.nxt;
        self.probe.forget();
        cx.congestion.on_congestion(cx.now);
        // RFC 3168 §6.1.2: CWR informs the peer.
        self.cwr_due = true;
    }

    fn end_reduction(&mut self, cx: &mut Cx<'_>) {
        let keep = self.state == CaState::Cwr || self.undo.is_open();
        cx.congestion.on_recovered(keep, cx.now);
    }

    /// True if the original arrived rather than its retransmission: the echoed timestamp is older
    /// (RFC 3522 §3.2 step 5), or nothing was retransmitted.
    fn was_delayed(&self, report: &Report, cx: &Cx<'_>) -> bool {
        match self.undo.resent_at() {
            Some(at) => report.echo_is_before(cx.timestamps.value(at)),
            None => self.sack || cx.una.before(self.recover),
        }
    }

    fn may_undo(&self, report: &Report, cx: &Cx<'_>) -> bool {
        self.undo.all_duplicates() || (self.undo.is_open() && self.was_delayed(report, cx))
    }

    /// Restores window and threshold (RFC 4015 §3.2). `all_arrives` means that nothing is lost.
    fn restore(&mut self, all_arrives: bool, cx: &mut Cx<'_>) {
        if all_arrives {
            self.board.clear_lost(self.state == CaState::Loss);
        }
        let prior = self.undo.ssthresh();
        if prior.is_some_and(|prior| prior > cx.congestion.ssthresh()) {
            self.cwr_due = false;
        }
        cx.congestion.on_spurious(prior, cx.now);
        self.undo.forget();
        self.rack.look_again();
    }

    /// True if the state must last until something above `recover` is acknowledged: without SACK,
    /// duplicates of data acknowledged just now must not start another recovery (RFC 6582 §4.1).
    fn must_wait_above(&mut self, cx: &Cx<'_>) -> bool {
        let waits = !self.sack && cx.una == self.recover;
        if waits {
            self.stop_clock_unless_resent();
        }
        waits
    }

    /// Ends a state whose data is all acknowledged, and undoes its reduction if that was a mistake.
    /// Returns true if the state must last.
    pub(super) fn undo_at_end(&mut self, report: &Report, cx: &mut Cx<'_>) -> bool {
        if self.may_undo(report, cx) {
            self.restore(false, cx);
        } else {
            self.rack.recovery_over();
        }
        let lasts = self.must_wait_above(cx);
        if !lasts {
            self.set_state(CaState::Open, cx);
        }
        lasts
    }

    /// Undoes the reduction if every retransmission was reported as a duplicate (RFC 3708). Returns
    /// true if it did.
    fn undo_by_duplicates(&mut self, cx: &mut Cx<'_>) -> bool {
        let all = self.undo.all_duplicates();
        if all {
            self.rack.persist_more();
            self.restore(false, cx);
        }
        all
    }

    /// Undoes a timeout that F-RTO found spurious, if `by_frto`, or that the ACK shows to be.
    pub(super) fn undo_timeout(&mut self, by_frto: bool, report: &Report, cx: &mut Cx<'_>) -> bool {
        if !by_frto && !self.may_undo(report, cx) {
            return false;
        }
        self.restore(true, cx);
        self.timeouts.answered();
        if !self.must_wait_above(cx) && (by_frto || self.sack) {
            self.set_state(CaState::Open, cx);
        }
        true
    }

    /// Undoes the reduction if the original of a part was acknowledged. Returns true if the ACK
    /// needs no more processing: retransmissions are in flight, and new data keeps the ACK clock
    /// running.
    fn undo_partly(&mut self, report: &Report, cx: &mut Cx<'_>) -> bool {
        if self.undo.is_open() && self.was_delayed(report, cx) {
            self.note_reordering(report.prior_una, cx);
            if self.board.totals().resent > 0 {
                return true;
            }
            self.stop_clock_unless_resent();
            self.restore(true, cx);
            self.settle(cx);
        }
        false
    }

    /// Returns true if the first outstanding segment is a lost probe of the path MTU: the path does
    /// not take it, which is no sign of congestion (RFC 4821 §7.6.2). It is sent again in smaller
    /// segments.
    fn loses_mtu_probe(&mut self, report: &mut Report, cx: &mut Cx<'_>) -> bool {
        let lost = self.state < CaState::Cwr && cx.mtu_probe == Some(cx.una);
        if lost {
            report.lost_mtu_probe = true;
            let window = cx.congestion.window_mut();
            window.set_cwnd(window.cwnd() + 1);
            self.resend_larger(cx);
        }
        lost
    }

    /// Retransmits segments that are too large for the path at once, without a reduction of the
    /// window.
    pub(in crate::tcp) fn resend_larger(&mut self, cx: &mut Cx<'_>) {
        self.board.lose_larger(cx.mss);
        self.resend_without_congestion(cx);
    }

    /// Retransmits everything outstanding at once: the peer did not take it, but not for
    /// congestion.
    pub(in crate::tcp) fn resend_all(&mut self, cx: &mut Cx<'_>) {
        self.board.lose_all(Duration::ZERO, cx.now, &mut |_, _| {});
        self.resend_without_congestion(cx);
    }

    fn resend_without_congestion(&mut self, cx: &mut Cx<'_>) {
        if self.board.totals().lost == 0 {
            return;
        }
        if self.state != CaState::Loss {
            self.recover = cx.nxt;
            let ssthresh = self.threshold(cx);
            cx.congestion.window_mut().set_ssthresh(ssthresh);
            self.undo.set_ssthresh(None);
            self.undo.forget();
            self.set_state(CaState::Loss, cx);
        }
        self.resend = Resend::Lost;
    }
}
