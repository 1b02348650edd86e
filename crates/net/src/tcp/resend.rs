//! Retransmissions: planning them, and their effect on recovery and timers.

use super::connection::Connection;
use super::output::{Egress, Kind, Plan};
use super::rack::LossProbe;
use super::recovery::Resend;
use super::scoreboard::Sending;
use super::seq::Seq;
use crate::time::Instant;

impl Connection {
    /// True if something may have to be retransmitted now.
    pub(super) fn wants_to_resend(&self) -> bool {
        self.send.loss_probe.is_some()
            || (self.recovery.resend != Resend::Nothing && self.send.board.has_due())
    }

    /// Plans the next lost range that the windows allow.
    pub(super) fn plan_again(&mut self, egress: &Egress, now: Instant) -> Option<Plan> {
        if self.recovery.resend != Resend::Lost || !self.send.board.has_due() {
            return None;
        }
        if self.congestion.paces() {
            self.timers.pacing = self.paced_until(now);
            if self.timers.pacing.is_some() {
                return None;
            }
        }
        let size = self.segment_size();
        let most = if self.is_sending_urgent() { 1 } else { self.super_segments(egress, size) };
        let room = self.window_room().min(most);
        let (seq, count) = self.send.board.next_due(room, size)?;
        self.resend_within_window(seq, count, Kind::Again)
    }

    /// Plans a loss probe of the last segment (RFC 8985 §7.3).
    pub(super) fn plan_tail(&mut self) -> Option<Plan> {
        if self.send.loss_probe != Some(LossProbe::Tail) {
            return None;
        }
        let (seq, count) = self.send.board.tail()?;
        let plan = self.resend_within_window(seq, count, Kind::Tail);
        if plan.is_none() {
            self.send.loss_probe = None;
        }
        plan
    }

    /// Limits a retransmission to the peer's window. If the peer has shrunk the window, only the
    /// first segment is retransmitted, as a probe of the window.
    fn resend_within_window(&self, seq: Seq, count: u32, kind: Kind) -> Option<Plan> {
        let size = self.segment_size();
        let edge = self.send.una + self.send.wnd;
        let window = if edge.after(seq) {
            edge - seq
        } else if seq == self.send.una {
            size
        } else {
            return None;
        };
        let mut len = count.min(self.send.queue_end() - seq);
        let fin = count > len;
        if len > window {
            len = if window >= size { window - window % size } else { window };
        }
        let fin = fin && seq + len == self.send.queue_end();
        let flags = self.push_flag(seq + len, len.div_ceil(size));
        Some(Plan { seq, len, fin, flags, kind })
    }

    /// What the scoreboard keeps of a segment sent now.
    pub(super) fn sending(&self, fin: bool, now: Instant) -> Sending {
        let delivered = self.recovery.delivered;
        let sent = self.recovery.rate.sent(now);
        Sending { size: self.segment_size(), fin, record_end: false, now, delivered, sent }
    }

    /// Accounts for new data that was sent; `first` if nothing was outstanding before.
    pub(super) fn after_sending(&mut self, segments: u32, first: bool, now: Instant) {
        self.congestion.on_sent(segments);
        if self.loss_probe_sent(false, now) {
            return;
        }
        if first {
            self.rearm_rto(now);
        } else if self.timers.loss_probe.is_some() {
            self.rearm_rto_from_head(now);
        }
        self.schedule_loss_probe(false, now);
    }

    /// Accounts for the retransmission of a lost range.
    pub(super) fn after_resending(&mut self, plan: &Plan, now: Instant) {
        self.path.search.forget_probe();
        let sending = self.sending(plan.fin, now);
        let segments = self.send.board.sent_again(plan.seq, plan.end(), false, &sending);
        self.recovery.note_resent(segments, now);
        self.congestion.on_sent(segments);
        if plan.seq == self.send.una && self.timers.reorder.is_none() {
            self.rearm_rto(now);
        }
    }

    /// Accounts for a loss probe of the tail.
    pub(super) fn after_tail(&mut self, plan: &Plan, now: Instant) {
        self.path.search.forget_probe();
        let sending = self.sending(plan.fin, now);
        let segments = self.send.board.sent_again(plan.seq, plan.end(), true, &sending);
        self.recovery.note_probe(segments);
        self.loss_probe_sent(true, now);
    }
}
