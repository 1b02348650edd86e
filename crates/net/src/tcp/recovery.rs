//! Loss recovery: Linux's recovery states, NewReno without SACK (RFC 6582), F-RTO (RFC 5682), and
//! undoing a reduction that was a mistake (RFC 3522, RFC 3708, RFC 4015).
//!
//! # Theory of operation
//!
//! The first sign of disorder turns `Open` into `Disorder`. A known loss leads to `Recovery`, a
//! timeout to `Loss`, and congestion without loss to `Cwr`. These three end when everything before
//! `high`, the next number at their beginning, is acknowledged. What they mean for the window is up
//! to the congestion controller.
//!
//! Records that are marked lost are retransmitted; `Resend` says whether the last ACK allows it.
//! With SACK, `rack` sets the marks. Without SACK, the count of duplicate ACKs does.

use super::ack::AckSummary;
use super::congestion::CaState;
use super::connection::Connection;
use super::rack::Rack;
use super::rate::{Rate, lost_record};
use super::seq::Seq;
use crate::time::{Duration, Instant};

/// Largest degree of reordering that is assumed (`tcp_max_reordering`).
pub(super) const REORDERING_MAX: u32 = 300;
/// Least time to wait for more ACKs of a receiver that seems to have dropped SACKed data; Linux's
/// value.
const RENEGING_WAIT_MIN: Duration = Duration::from_millis(10);

/// What the last ACK allows to be retransmitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Resend {
    /// Nothing.
    #[default]
    Nothing,
    /// New data first; lost data only if there is no new data (RFC 5682 §3.1 step 2b).
    NewFirst,
    /// Lost data.
    Lost,
}

/// State of loss recovery.
pub(super) struct Recovery {
    pub(super) state: CaState,
    /// The state ends when everything before this is acknowledged.
    pub(super) high: Seq,
    /// `snd_una` at the beginning of a reduction that may still be undone.
    pub(super) undo_marker: Option<Seq>,
    /// Segments retransmitted since then and not reported as duplicates; `None` before any.
    pub(super) undo_retrans: Option<u32>,
    /// Slow-start threshold to restore when the reduction is undone.
    pub(super) prior_ssthresh: Option<u32>,
    /// When the first retransmission of this episode was sent.
    pub(super) resent_at: Option<Instant>,
    /// F-RTO checks whether the timeout was spurious.
    frto: bool,
    pub(super) resend: Resend,
    /// Degree of reordering, in segments, that is tolerated before loss is assumed.
    pub(super) reordering: u32,
    /// How often reordering was seen on this connection.
    pub(super) reord_seen: u32,
    /// Segments delivered, as far as known; wraps.
    pub(super) delivered: u32,
    /// Segments that were reported as duplicates.
    pub(super) dsack_dups: u32,
    /// Segments retransmitted.
    pub(super) total_retrans: u32,
    pub(super) rack: Rack,
    pub(super) rate: Rate,
}

impl Recovery {
    /// State of a connection that has sent nothing.
    pub(super) fn new(iss: Seq, reordering: u32) -> Self {
        Self {
            state: CaState::Open,
            high: iss,
            undo_marker: None,
            undo_retrans: None,
            prior_ssthresh: None,
            resent_at: None,
            frto: false,
            resend: Resend::Nothing,
            reordering,
            reord_seen: 0,
            delivered: 0,
            dsack_dups: 0,
            total_retrans: 0,
            rack: Rack::default(),
            rate: Rate::default(),
        }
    }

    /// Counts `segments` retransmitted as a loss probe.
    pub(super) fn note_probe(&mut self, segments: u32) {
        self.total_retrans = self.total_retrans.wrapping_add(segments);
    }

    /// Counts `segments` that were lost and retransmitted.
    pub(super) fn note_resent(&mut self, segments: u32, now: Instant) {
        self.note_probe(segments);
        self.resent_at.get_or_insert(now);
        self.undo_retrans = Some(self.undo_retrans.unwrap_or(0).saturating_add(segments));
    }

    /// Counts `count` retransmitted segments that were reported as duplicates.
    pub(super) fn forgive(&mut self, count: u32) {
        if self.undo_marker.is_some() {
            self.undo_retrans = self.undo_retrans.map(|left| left.saturating_sub(count));
        }
    }
}

impl Connection {
    /// Processes an ACK that is unusual, or that arrives in an unusual state.
    pub(super) fn update_loss_state(&mut self, summary: &mut AckSummary, now: Instant) {
        self.recovery.resend = Resend::Nothing;
        if summary.ece {
            // RFC 3168 §6.1.2: this reduction must not be undone.
            self.recovery.prior_ssthresh = None;
        }
        if self.wait_for_reneging(summary, now) || self.leave_state(summary, now) {
            return;
        }
        match self.recovery.state {
            CaState::Recovery => {
                if !summary.advanced {
                    self.add_duplicates(summary.duplicates);
                } else if self.undo_partly(summary, now) {
                    return;
                }
                if self.undo_by_dsack(now) {
                    self.try_to_open(summary, now);
                }
                self.find_losses(summary, now);
                if self.recovery.state != CaState::Recovery {
                    if self.send.board.totals().lost_out == 0 {
                        return;
                    }
                    self.enter_recovery(summary.ece, now);
                }
            }
            CaState::Loss => {
                self.process_loss(summary, now);
                if self.recovery.state != CaState::Loss {
                    self.counters.timeouts.end(now);
                }
                self.find_losses(summary, now);
                if self.recovery.state == CaState::Open || summary.lost_again {
                    // The timeout was spurious, or what it sent was lost too.
                    if !self.judge_disorder(summary, now) {
                        return;
                    }
                } else {
                    return;
                }
            }
            _ => {
                if !self.judge_disorder(summary, now) {
                    return;
                }
            }
        }
        self.recovery.resend = Resend::Lost;
    }

    /// Decides outside of recovery whether recovery begins; true if it does.
    fn judge_disorder(&mut self, summary: &mut AckSummary, now: Instant) -> bool {
        if !self.sack {
            if summary.advanced {
                self.send.board.set_duplicates(0);
            }
            self.add_duplicates(summary.duplicates);
        }
        if self.recovery.state <= CaState::Disorder {
            self.undo_by_dsack(now);
        }
        self.find_losses(summary, now);
        if self.send.board.totals().lost_out == 0 {
            self.try_to_open(summary, now);
            return false;
        }
        if self.loses_mtu_probe(now) {
            return false;
        }
        self.enter_recovery(summary.ece, now);
        true
    }

    /// Handles a receiver that seems to have dropped SACKed data (RFC 2018 §8). ACKs may be out of
    /// order, so the timer decides a moment later.
    fn wait_for_reneging(&mut self, summary: &mut AckSummary, now: Instant) -> bool {
        if !(summary.reneging && summary.advanced) {
            return false;
        }
        let wait = self.rtt.srtt().map_or(Duration::ZERO, |srtt| srtt / 2);
        self.timers.arm_retransmit(now + wait.max(RENEGING_WAIT_MIN));
        summary.set_timer = false;
        true
    }

    /// Ends a state whose data is all acknowledged. Returns true if the ACK needs no more
    /// processing.
    fn leave_state(&mut self, summary: &AckSummary, now: Instant) -> bool {
        let una = self.send.una;
        if self.recovery.state == CaState::Open {
            self.recovery.resent_at = None;
        } else if una.at_or_after(self.recovery.high) {
            match self.recovery.state {
                // Stay until something above `high` is acknowledged: it carries CWR to the peer.
                CaState::Cwr if una != self.recovery.high => {
                    self.end_reduction(now);
                    self.set_state(CaState::Open, now);
                }
                CaState::Recovery => {
                    if !self.sack {
                        self.send.board.set_duplicates(0);
                    }
                    if self.undo_at_end(summary, now) {
                        return true;
                    }
                    self.end_reduction(now);
                }
                _ => {}
            }
        }
        false
    }

    pub(super) fn set_state(&mut self, state: CaState, now: Instant) {
        self.recovery.state = state;
        self.congestion.on_state(state, self.send.nxt, now);
    }

    /// Marks lost records.
    fn find_losses(&mut self, summary: &mut AckSummary, now: Instant) {
        let totals = self.send.board.totals();
        if totals.packets_out == 0 {
            return;
        }
        if self.sack {
            if self.mark_late(now) {
                summary.set_timer = false;
            }
            summary.lost_again |= self.send.board.totals().retrans_out < totals.retrans_out;
            return;
        }
        let recovering = self.recovery.state == CaState::Recovery;
        let begins = self.recovery.state < CaState::Recovery
            && totals.sacked_out >= self.recovery.reordering;
        if begins || (recovering && summary.advanced) {
            let delivered = self.recovery.delivered;
            self.send.board.lose_first(&mut lost_record(&mut self.congestion, delivered, now));
        }
    }

    pub(super) fn any_resent(&self) -> bool {
        self.send.board.totals().retrans_out > 0
            || self.send.board.first().is_some_and(|first| first.ever_resent)
    }

    /// Returns to `Open`, or to `Disorder` if something is still unusual.
    fn try_to_open(&mut self, summary: &AckSummary, now: Instant) {
        if !self.any_resent() {
            self.recovery.resent_at = None;
        }
        if summary.ece {
            self.enter_cwr(now);
        }
        if self.recovery.state != CaState::Cwr {
            self.keep_open(now);
        }
    }

    pub(super) fn keep_open(&mut self, now: Instant) {
        let totals = self.send.board.totals();
        let odd = totals.sacked_out + totals.lost_out > 0 || self.any_resent();
        let state = if odd { CaState::Disorder } else { CaState::Open };
        if self.recovery.state != state {
            self.set_state(state, now);
            self.recovery.high = self.send.nxt;
        }
    }

    /// Begins fast recovery.
    pub(super) fn enter_recovery(&mut self, ece: bool, now: Instant) {
        self.recovery.resent_at.get_or_insert(now);
        self.recovery.prior_ssthresh = None;
        self.prepare_undo();
        if !self.recovery.state.is_reducing() {
            if !ece {
                self.recovery.prior_ssthresh = Some(self.current_ssthresh());
            }
            self.begin_reduction(now);
        }
        self.set_state(CaState::Recovery, now);
    }

    /// Reduces the window over a round trip: the network or the peer reported congestion without
    /// loss (RFC 3168 §6.1.2).
    pub(super) fn enter_cwr(&mut self, now: Instant) {
        self.recovery.prior_ssthresh = None;
        if self.recovery.state < CaState::Cwr {
            self.recovery.undo_marker = None;
            self.begin_reduction(now);
            self.set_state(CaState::Cwr, now);
        }
    }

    pub(super) fn current_ssthresh(&self) -> u32 {
        let window = self.congestion.window();
        if window.state().is_reducing() { window.ssthresh() } else { window.current_ssthresh() }
    }

    fn prepare_undo(&mut self) {
        let recovery = &mut self.recovery;
        recovery.undo_marker = Some(self.send.una);
        // Retransmissions in flight may be reported as duplicates later.
        let probe = u32::from(recovery.rack.probe_resent());
        let out = self.send.board.totals().retrans_out + probe;
        recovery.undo_retrans = (out > 0).then_some(out);
    }

    pub(super) fn begin_reduction(&mut self, now: Instant) {
        self.recovery.high = self.send.nxt;
        self.recovery.rack.forget_probe();
        self.congestion.on_congestion(now);
        // RFC 3168 §6.1.2: CWR informs the peer.
        self.ecn.reduced = true;
    }

    pub(super) fn end_reduction(&mut self, now: Instant) {
        let keep = self.recovery.state == CaState::Cwr || self.recovery.undo_marker.is_some();
        self.congestion.on_recovered(keep, now);
    }

    /// Enters `Loss` after the retransmission timer fired (RFC 5681 §3.1, RFC 5682).
    pub(super) fn enter_loss(&mut self, now: Instant) {
        let state = self.recovery.state;
        let duplicates = self.send.board.totals().sacked_out;
        let patience = self.recovery.rack.rtt();
        let delivered = self.recovery.delivered;
        let congestion = &mut self.congestion;
        self.send.board.lose_all(patience, now, &mut lost_record(congestion, delivered, now));
        let again = state == CaState::Loss && self.timers.unanswered == 0;
        let first =
            state <= CaState::Disorder || self.recovery.high.at_or_before(self.send.una) || again;
        if first {
            self.recovery.prior_ssthresh = Some(self.current_ssthresh());
            self.prepare_undo();
        }
        self.congestion.on_timeout(first, self.send.board.in_flight(), now);
        let usual = self.settings.reordering;
        if state <= CaState::Disorder && duplicates >= usual {
            // A timeout despite these duplicates: reordering was overestimated.
            self.recovery.reordering = self.recovery.reordering.min(usual);
        }
        self.set_state(CaState::Loss, now);
        self.recovery.high = self.send.nxt;
        self.recovery.rack.forget_probe();
        self.ecn.reduced = true;
        let begins = state < CaState::Recovery || self.timers.unanswered > 0;
        self.recovery.frto = self.settings.frto > 0 && begins && !self.path.search.is_probing();
        self.recovery.resend = Resend::Lost;
    }

    /// Processes an ACK after a timeout.
    fn process_loss(&mut self, summary: &AckSummary, now: Instant) {
        let recovered = self.send.una.at_or_after(self.recovery.high);
        if summary.advanced && self.undo_loss(false, summary, now) {
            return;
        }
        if self.recovery.frto {
            // RFC 5682 §3.1 step 3b: data that was never retransmitted has arrived.
            if summary.original_acked && self.undo_loss(true, summary, now) {
                return;
            }
            if self.send.nxt.after(self.recovery.high) {
                if summary.sacked || summary.duplicates > 0 {
                    self.recovery.frto = false;
                }
            } else if summary.advanced && !recovered {
                self.recovery.high = self.send.nxt;
                // Step 2b: the ACK of new data shows more than that of a retransmission.
                let edge = self.send.una + self.send.wnd;
                if self.send.has_unsent_numbers() && edge.after(self.send.nxt) {
                    self.recovery.resend = Resend::NewFirst;
                    return;
                }
                self.recovery.frto = false;
            }
        }
        if recovered {
            self.undo_at_end(summary, now);
            return;
        }
        if !self.sack {
            if self.send.nxt.after(self.recovery.high) && summary.duplicates > 0 {
                self.add_duplicates(summary.duplicates);
            } else if summary.advanced {
                self.send.board.set_duplicates(0);
            }
        }
        self.recovery.resend = Resend::Lost;
    }

    /// Ends F-RTO if no new data could be sent for it: lost data is retransmitted instead.
    pub(super) fn give_up_frto(&mut self) {
        if self.recovery.resend == Resend::NewFirst
            && self.send.nxt.at_or_before(self.recovery.high)
        {
            self.recovery.frto = false;
            self.recovery.resend = Resend::Lost;
        }
    }

    /// Notes reordering: data at `low`, which was sent once, arrived after later data.
    pub(super) fn note_reordering(&mut self, low: Seq) {
        let highest = self.send.board.sacked_end().unwrap_or(self.send.una);
        if low.before(highest) {
            let degree = (highest - low).div_ceil(self.send.mss).min(REORDERING_MAX);
            self.recovery.reordering = self.recovery.reordering.max(degree);
            self.recovery.reord_seen += 1;
        }
    }

    /// Counts duplicate ACKs if there is no SACK: each stands for a segment that left the network.
    fn add_duplicates(&mut self, count: u32) {
        if self.sack || count == 0 {
            return;
        }
        let before = self.send.board.totals().sacked_out;
        self.send.board.set_duplicates(before + count);
        self.limit_duplicates(0);
        let after = self.send.board.totals().sacked_out;
        self.count_delivered(after.saturating_sub(before));
    }

    /// Removes the duplicate ACKs of `acked` segments: one of these filled the hole, each other one
    /// had caused a duplicate ACK.
    pub(super) fn eat_duplicates(&mut self, acked: u32) {
        let duplicates = self.send.board.totals().sacked_out;
        if acked > 0 {
            self.count_delivered(acked.saturating_sub(duplicates).max(1));
            self.send.board.set_duplicates(duplicates.saturating_sub(acked - 1));
        }
        self.limit_duplicates(acked);
    }

    /// Limits the duplicates to what the outstanding segments can cause. More of them mean that the
    /// network reorders or duplicates.
    fn limit_duplicates(&mut self, acked: u32) {
        let totals = self.send.board.totals();
        let holes = totals.lost_out.max(1).min(totals.packets_out);
        if totals.sacked_out + holes > totals.packets_out {
            self.send.board.set_duplicates(totals.packets_out - holes);
            self.recovery.reordering = (totals.packets_out + acked).min(REORDERING_MAX);
            self.recovery.reord_seen += 1;
        }
    }

    pub(super) fn count_delivered(&mut self, segments: u32) {
        self.recovery.delivered = self.recovery.delivered.wrapping_add(segments);
    }

    /// Retransmits segments that are too large for the path at once, without a reduction of the
    /// window.
    pub(super) fn resend_larger(&mut self, now: Instant) {
        self.send.board.lose_larger(self.send.mss);
        self.resend_without_congestion(now);
    }

    /// Retransmits everything outstanding at once: the peer did not take it, but not for
    /// congestion.
    pub(super) fn resend_all(&mut self, now: Instant) {
        self.send.board.lose_all(Duration::ZERO, now, &mut |_, _| {});
        self.resend_without_congestion(now);
    }

    fn resend_without_congestion(&mut self, now: Instant) {
        if self.send.board.totals().lost_out == 0 {
            return;
        }
        if self.recovery.state != CaState::Loss {
            self.recovery.high = self.send.nxt;
            let ssthresh = self.current_ssthresh();
            self.congestion.window_mut().set_ssthresh(ssthresh);
            self.recovery.prior_ssthresh = None;
            self.recovery.undo_marker = None;
            self.set_state(CaState::Loss, now);
        }
        self.recovery.resend = Resend::Lost;
    }
}
