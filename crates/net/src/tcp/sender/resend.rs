//! Retransmissions: which range goes out, and what follows from it.

use super::{Purpose, SegmentSizes, Sender, Turn};
use crate::tcp::egress::Egress;
use crate::tcp::loss::LossProbe;
use crate::tcp::plan::{Kind, Plan};
use crate::tcp::seq::Seq;

impl Sender {
    /// Plans the next lost range that the windows allow.
    pub(super) fn next_lost(&mut self, egress: &Egress, turn: Turn<'_>) -> Option<Plan> {
        if !self.recovery.may_resend() {
            return None;
        }
        if self.congestion.paces() && self.waits_for_pace(turn.now) {
            return None;
        }
        let size = self.segment_size(turn);
        let most =
            if self.is_sending_urgent() { 1 } else { self.super_segments(egress, size, turn) };
        let room = self.window_room().min(most);
        let (seq, count) = self.recovery.next_lost(room, size)?;
        self.within_window(seq, count, Kind::Again, size)
    }

    /// Plans a loss probe of the last segment (RFC 8985 §7.3).
    pub(super) fn next_tail(&mut self, turn: Turn<'_>) -> Option<Plan> {
        if self.recovery.probe_due() != Some(LossProbe::Tail) {
            return None;
        }
        let (seq, count) = self.recovery.board().tail()?;
        let plan = self.within_window(seq, count, Kind::Tail, self.segment_size(turn));
        if plan.is_none() {
            self.recovery.cancel_probe();
        }
        plan
    }

    /// Limits a retransmission to the peer's window. If the peer has shrunk the window, only the
    /// first segment is retransmitted, as a probe of the window.
    fn within_window(&self, seq: Seq, count: u32, kind: Kind, size: u32) -> Option<Plan> {
        let edge = self.edge();
        let window = if edge.after(seq) {
            edge - seq
        } else if seq == self.una {
            size
        } else {
            return None;
        };
        let mut len = count.min(self.queue_end() - seq);
        let fin = count > len;
        if len > window {
            len = if window >= size { window - window % size } else { window };
        }
        let fin = fin && seq + len == self.queue_end();
        let flags = self.push_flag(seq + len, len.div_ceil(size));
        Some(Plan { seq, len, fin, flags, kind })
    }

    /// Retransmits everything outstanding at once: the peer did not take it, but not for
    /// congestion.
    pub(in crate::tcp) fn resend_all(&mut self, turn: Turn<'_>) {
        let (recovery, mut cx) = self.recovery(turn);
        recovery.resend_all(&mut cx);
    }

    /// Takes an ICMP error that reports a path for segments of at most `mss` bytes with options, if
    /// it is believed. Returns true if it is.
    pub(in crate::tcp) fn on_too_big(&mut self, mss: u32) -> bool {
        let believed = self.path.believes(mss);
        if believed {
            self.path.set_size(mss, self.window.max());
        }
        believed
    }

    /// Takes new sizes of the device or the route. Returns true if the size of the path is new.
    pub(in crate::tcp) fn reroute(&mut self, sizes: &SegmentSizes) -> bool {
        self.path.reroute(sizes, self.window.max())
    }

    /// Retransmits segments that are too large for the path at once.
    pub(in crate::tcp) fn resend_larger(&mut self, turn: Turn<'_>) {
        let (recovery, mut cx) = self.recovery(turn);
        recovery.resend_larger(&mut cx);
    }

    /// Accounts for a retransmission.
    pub(super) fn sent_again(&mut self, plan: &Plan, turn: Turn<'_>) {
        self.path.search_mut().forget_probe();
        let (size, probes) = (self.segment_size(turn), plan.kind == Kind::Tail);
        let ends = (plan.fin, probes);
        let segments = self.recovery.resent((plan.seq, plan.end()), size, ends, turn.now);
        self.counts.again += 1;
        if !probes {
            self.congestion.on_sent(segments);
        }
        if probes {
            self.probe_sent_in(true, turn);
            self.counts.probes += 1;
        } else if plan.seq == self.una && !self.timer.is_for(Purpose::Reorder) {
            self.restart_timer(turn);
        }
    }

    /// Accounts for a loss probe that is due and was sent, and restarts the retransmission timer.
    /// Returns false if none was due.
    pub(super) fn probe_sent_in(&mut self, resent: bool, turn: Turn<'_>) -> bool {
        let sent = self.recovery.probe_sent(resent, self.nxt);
        if sent {
            self.arm_retransmit(turn.now + self.rtt.rto());
        }
        sent
    }
}
