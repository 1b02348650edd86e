//! Undoing a reduction of the window that was a mistake. Echoed timestamps (RFC 3522), reported
//! duplicates (RFC 3708) or F-RTO (RFC 5682) reveal it. The response is that of RFC 4015, as on
//! Linux.

use super::ack::AckSummary;
use super::congestion::CaState;
use super::connection::Connection;
use crate::time::Instant;

impl Connection {
    /// True if the original arrived rather than its retransmission: the echoed timestamp is older
    /// (RFC 3522), or nothing was retransmitted.
    fn was_delayed(&self, summary: &AckSummary) -> bool {
        match self.recovery.resent_at {
            Some(at) => summary.echo_is_before(self.timestamps.value(at)),
            None => self.sack || self.send.una.before(self.recovery.high),
        }
    }

    fn may_undo(&self, summary: &AckSummary) -> bool {
        self.recovery.undo_marker.is_some()
            && (self.recovery.undo_retrans == Some(0) || self.was_delayed(summary))
    }

    fn undo(&mut self, clear_lost: bool, now: Instant) {
        if clear_lost {
            self.send.board.clear_lost(self.recovery.state == CaState::Loss);
        }
        let prior = self.recovery.prior_ssthresh;
        if prior.is_some_and(|prior| prior > self.congestion.ssthresh()) {
            self.ecn.reduced = false;
        }
        self.congestion.on_spurious(prior, now);
        self.recovery.undo_marker = None;
        self.recovery.rack.look_again();
    }

    /// True if the state must last until something above `high` is acknowledged: without SACK,
    /// duplicates of data acknowledged just now must not start another recovery (RFC 6582 §4.1).
    pub(super) fn must_wait_above(&mut self) -> bool {
        if self.sack || self.send.una != self.recovery.high {
            return false;
        }
        if !self.any_resent() {
            self.recovery.resent_at = None;
        }
        true
    }

    /// Ends a state whose data is all acknowledged, and undoes its reduction if that was a mistake.
    /// Returns true if the state must last.
    pub(super) fn undo_at_end(&mut self, summary: &AckSummary, now: Instant) -> bool {
        if self.may_undo(summary) {
            self.undo(false, now);
        } else {
            self.recovery.rack.recovery_over();
        }
        if self.must_wait_above() {
            return true;
        }
        self.set_state(CaState::Open, now);
        false
    }

    /// Undoes the reduction if every retransmission was reported as a duplicate (RFC 3708). Returns
    /// true if it did.
    pub(super) fn undo_by_dsack(&mut self, now: Instant) -> bool {
        let all = self.recovery.undo_marker.is_some() && self.recovery.undo_retrans == Some(0);
        if all {
            self.recovery.rack.persist_more();
            self.undo(false, now);
        }
        all
    }

    pub(super) fn undo_loss(&mut self, by_frto: bool, summary: &AckSummary, now: Instant) -> bool {
        if !by_frto && !self.may_undo(summary) {
            return false;
        }
        self.undo(true, now);
        self.timers.unanswered = 0;
        if !self.must_wait_above() && (by_frto || self.sack) {
            self.set_state(CaState::Open, now);
        }
        true
    }

    /// Undoes the reduction if the original of a part was acknowledged. Returns true if the ACK
    /// needs no more processing: retransmissions are in flight, and new data keeps the ACK clock
    /// running.
    pub(super) fn undo_partly(&mut self, summary: &AckSummary, now: Instant) -> bool {
        if self.recovery.undo_marker.is_some() && self.was_delayed(summary) {
            self.note_reordering(summary.prior_una);
            if self.send.board.totals().retrans_out > 0 {
                return true;
            }
            if !self.any_resent() {
                self.recovery.resent_at = None;
            }
            self.undo(true, now);
            self.keep_open(now);
        }
        false
    }
}
