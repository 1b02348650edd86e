//! The retransmission timeout (RFC 6298 §5, RFC 5681 §3.1), and the ACKs after it (RFC 5682, RFC
//! 6582).

use super::frto::{Evidence, Step};
use super::{CaState, Cx, Recovery, Report, Resend, lost_to};
use crate::tcp::info::Info;
use crate::time::Instant;

/// Retransmission timeouts: how many in a row, and statistics of them.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::tcp) struct Timeouts {
    /// Consecutive timeouts without an answer.
    unanswered: u8,
    total: u16,
    series: u16,
    time_ms: u32,
    since: Option<Instant>,
}

impl Timeouts {
    /// Counts a timeout of the handshake; `first` if it begins a series. The time of the series
    /// counts from `since`.
    pub(in crate::tcp) fn add(&mut self, first: bool, since: Instant) {
        if first {
            self.series = self.series.wrapping_add(1);
            self.since = Some(since);
        }
        self.total = self.total.wrapping_add(1);
    }

    /// Counts a timeout of data.
    pub(in crate::tcp) fn count(&mut self, now: Instant) {
        self.add(self.unanswered == 0, now);
        self.unanswered = self.unanswered.saturating_add(1);
    }

    /// Notes that the peer answers.
    #[inline]
    pub(in crate::tcp) fn answered(&mut self) {
        self.unanswered = 0;
    }

    /// Ends a series: the lost data has arrived.
    pub(super) fn end(&mut self, now: Instant) {
        self.time_ms = self.time_ms(now);
        self.since = None;
    }

    /// Consecutive timeouts without an answer.
    pub(in crate::tcp) fn unanswered(&self) -> u8 {
        self.unanswered
    }

    /// Fills in the statistics.
    pub(super) fn fill(&self, info: &mut Info, now: Instant) {
        info.retransmits = info.retransmits.max(self.unanswered);
        (info.total_rto, info.total_rto_recoveries) = (self.total, self.series);
        info.total_rto_time = self.time_ms(now);
    }

    /// Milliseconds that all series lasted.
    fn time_ms(&self, now: Instant) -> u32 {
        let running = self.since.map_or(0, |since| now.since(since).as_millis() as u32);
        self.time_ms.wrapping_add(running)
    }
}

impl Recovery {
    /// Handles the retransmission timer: the loss window is one segment (RFC 5681 §3.1), and what
    /// is marked lost is retransmitted (RFC 6298 §5.4).
    pub(in crate::tcp) fn on_timeout(&mut self, cx: &mut Cx<'_>) {
        let (state, unanswered) = (self.state, self.timeouts.unanswered);
        let duplicates = self.board.totals().sacked;
        let mut lost = lost_to(cx.congestion, self.delivered, cx.now);
        self.board.lose_all(self.rack.rtt(), cx.now, &mut lost);
        drop(lost);
        let again = state == CaState::Loss && unanswered == 0;
        // RFC 5681 §3.1: the threshold is reduced once for the data of one flight.
        let first = state <= CaState::Disorder || self.recover.at_or_before(cx.una) || again;
        if first {
            self.undo.set_ssthresh(Some(self.threshold(cx)));
            self.prepare_undo(cx);
        }
        cx.congestion.on_timeout(first, self.board.in_flight(), cx.now);
        if state <= CaState::Disorder && duplicates >= cx.settings.reordering {
            // A timeout despite these duplicates: reordering was overestimated.
            self.reordering.lower(cx.settings.reordering);
        }
        self.set_state(CaState::Loss, cx);
        self.recover = cx.nxt;
        self.probe.forget();
        self.cwr_due = true;
        let begins = state < CaState::Recovery || unanswered > 0;
        self.frto.on_timeout(cx.settings.frto > 0 && begins && cx.mtu_probe.is_none());
        self.resend = Resend::Lost;
    }

    /// Processes an ACK after a timeout.
    pub(super) fn continue_after_timeout(&mut self, report: &Report, cx: &mut Cx<'_>) {
        if report.advanced && self.undo_timeout(false, report, cx) {
            return;
        }
        let repeated = report.sacked || report.repeats > 0;
        let Report { advanced, original, .. } = *report;
        let seen = Evidence { una: cx.una, nxt: cx.nxt, advanced, repeated, original };
        match self.frto.on_ack(seen, self.recover) {
            Step::Spurious => {
                self.undo_timeout(true, report, cx);
                return;
            }
            Step::SendNew => {
                self.recover = cx.nxt;
                if cx.has_new {
                    self.resend = Resend::NewFirst;
                    return;
                }
                self.frto.stop();
            }
            Step::Resend => {}
        }
        if cx.una.at_or_after(self.recover) {
            self.undo_at_end(report, cx);
            return;
        }
        if !self.sack {
            if cx.nxt.after(self.recover) && report.repeats > 0 {
                self.add_duplicates(report.repeats);
            } else if report.advanced {
                self.board.set_duplicates(0);
            }
        }
        self.resend = Resend::Lost;
    }
}
