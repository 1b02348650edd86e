//! What one acknowledgment reports: the cumulative part (RFC 9293 §3.10.7.4), SACK blocks (RFC
//! 2018) and duplicates (RFC 2883), as far as recovery, round trips and the delivery rate need it.

use super::{CaState, Cx, Fate, Recovery, Resend, STATIC_REO_WND, TimerRequest};
use crate::tcp::congestion::Ack;
use crate::tcp::rate::Newest;
use crate::tcp::scoreboard::Record;
use crate::tcp::seq::Seq;
use crate::tcp::timestamps::Timestamps;
use crate::time::{Duration, Instant};

/// The report of one ACK, collected step by step.
#[derive(Debug, Default)]
pub(in crate::tcp) struct Report {
    /// The first unacknowledged number before this ACK.
    pub(super) prior_una: Seq,
    /// End of the highest range that SACK had reported before this ACK.
    prior_sacked_end: Option<Seq>,
    /// Segments that SACK had reported before this ACK.
    prior_sacked: u32,
    prior_delivered: u32,
    prior_lost: u32,
    /// The echoed timestamp.
    echo: Option<u32>,
    /// The segment carries data, a FIN or a new window.
    pub(in crate::tcp) news: bool,
    /// Congestion was echoed (RFC 3168 §6.1.3).
    pub(super) ece: bool,
    /// The first unacknowledged number advanced.
    pub(in crate::tcp) advanced: bool,
    /// Segments that it passed.
    acked: u32,
    /// It passed data that had been retransmitted.
    resent_acked: bool,
    /// SACK reported new data.
    pub(super) sacked: bool,
    /// Data that was sent before the recovery began, and only once, has arrived.
    pub(super) original: bool,
    /// A duplicate was reported.
    duplicate: bool,
    /// The reported duplicate is a loss probe.
    duplicate_probe: bool,
    /// SACK had reported the range that is now first (RFC 2018 §8).
    pub(super) reneging: bool,
    /// A retransmission was lost too.
    pub(super) lost_again: bool,
    /// The lost segment is a probe of the path MTU.
    pub(in crate::tcp) lost_mtu_probe: bool,
    /// Number of duplicate ACKs, without SACK.
    pub(super) repeats: u32,
    /// What is to be done with the sender's timer.
    pub(in crate::tcp) timer: TimerRequest,
    /// When the first and the last acknowledged record that was sent only once were sent.
    acked_sent: Option<(Instant, Instant)>,
    /// When the first and the last SACKed record that was sent only once were sent.
    sacked_sent: Option<(Instant, Instant)>,
    /// Lowest number that arrived out of order without having been retransmitted.
    reordered: Option<Seq>,
    /// The delivered record that was sent last.
    newest: Option<Newest>,
}

/// A round-trip sample.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct RoundTrip {
    /// Of the first segment that the ACK acknowledges: the time that a sender must wait.
    pub(in crate::tcp) first: Duration,
    /// Of the last one: closest to the path's round trip.
    pub(in crate::tcp) last: Duration,
    /// The receiver may have delayed the ACK.
    pub(in crate::tcp) delayed: bool,
}

impl Report {
    /// True if the echoed timestamp is older than `value`.
    pub(super) fn echo_is_before(&self, value: u32) -> bool {
        self.echo.is_some_and(|echo| Seq(echo).before(Seq(value)))
    }

    fn note_newest(&mut self, record: &Record) {
        if self.newest.is_none_or(|newest| record.sent_at >= newest.sent_at) {
            let Record { sent_at, delivered, sent, .. } = *record;
            self.newest = Some(Newest { sent_at, delivered, sent });
        }
    }

    fn note_reordered(&mut self, at: Seq) {
        self.reordered = Some(self.reordered.map_or(at, |low| low.min(at)));
    }

    /// True if recovery must examine this ACK.
    fn is_dubious(&self) -> bool {
        !(self.news || self.acked > 0) || self.sacked || self.ece || self.duplicate
    }

    /// True if the ACK neither acknowledges nor carries anything new.
    fn is_quiet(&self) -> bool {
        !(self.advanced || self.news || self.acked > 0)
    }

    /// The round trip that the ACK shows (RFC 6298 §3, RFC 7323 §4). `lone` means that it
    /// acknowledges a single short segment, and nothing else was delivered.
    fn round_trip(&self, lone: bool, ours: &Timestamps, now: Instant) -> Option<RoundTrip> {
        let special = self.sacked || self.duplicate || self.ece || self.prior_sacked > 0;
        let delayed = lone && !special;
        let acked = self.acked_sent.filter(|_| !self.resent_acked);
        let seen = acked.or(self.sacked_sent);
        if let (Some((first, _)), Some((_, last))) = (seen, self.sacked_sent.or(acked)) {
            return Some(RoundTrip { first: now.since(first), last: now.since(last), delayed });
        }
        // The echo identifies the transmission that arrived.
        let echo = self.echo.filter(|_| self.acked > 0)?;
        let rtt = ours.since_echo(echo, now)?.max(Duration::from_millis(1));
        Some(RoundTrip { first: rtt, last: rtt, delayed })
    }
}

impl Recovery {
    /// Begins the report of an ACK.
    pub(in crate::tcp) fn report(&self, una: Seq, echo: Option<u32>, ece: bool) -> Report {
        Report {
            prior_una: una,
            prior_sacked_end: self.board.sacked_end(),
            prior_sacked: self.board.totals().sacked,
            prior_delivered: self.delivered,
            prior_lost: self.board.lost(),
            echo,
            ece,
            ..Report::default()
        }
    }

    /// Processes the SACK blocks of an ACK of everything before `ack`. `window_max` is the peer's
    /// largest window.
    pub(in crate::tcp) fn take_sack(
        &mut self,
        blocks: &[(u32, u32)],
        ack: Seq,
        window_max: u32,
        report: &mut Report,
        cx: &Cx<'_>,
    ) {
        if !self.sack {
            return;
        }
        let mut twice = self.take_duplicate(blocks, ack, window_max, report, cx);
        for &(start, end) in blocks {
            let (start, end) = (Seq(start), Seq(end));
            let duplicate = core::mem::take(&mut twice);
            let valid = start.before(end)
                && start.after(cx.una)
                && start.before(cx.nxt)
                && end.at_or_before(cx.nxt);
            if !valid {
                continue;
            }
            if duplicate {
                let count = self.board.duplicated(start, end);
                self.undo.note_duplicates(count, end);
            }
            self.take_block(start, end, report, cx);
        }
        // RFC 8985 §6.2 step 3.
        if let Some(low) = report.reordered
            && (self.state != CaState::Loss || self.undo.is_open())
        {
            self.note_reordering(low, cx);
        }
    }

    /// Processes one valid SACK block.
    fn take_block(&mut self, start: Seq, end: Seq, report: &mut Report, cx: &Cx<'_>) {
        let min_rtt = cx.rtt.min();
        let (rack, recover) = (&mut self.rack, self.recover);
        let mut delivered = 0;
        self.board.sack(start, end, |record, highest| {
            rack.deliver(record, min_rtt, cx.now);
            report.note_newest(record);
            report.sacked = true;
            delivered += record.segments;
            if record.ever_resent {
                return;
            }
            if highest.is_some_and(|highest| record.start.before(highest)) {
                report.note_reordered(record.start);
            }
            report.original |= record.end.at_or_before(recover);
            let first = report.sacked_sent.map_or(record.sent_at, |(first, _)| first);
            report.sacked_sent = Some((first, record.sent_at));
        });
        self.count_delivered(delivered);
    }

    /// Processes the first block if it reports a duplicate (RFC 2883 §4). Returns true if it does,
    /// and is credible.
    fn take_duplicate(
        &mut self,
        blocks: &[(u32, u32)],
        ack: Seq,
        window_max: u32,
        report: &mut Report,
        cx: &Cx<'_>,
    ) -> bool {
        let Some(&(start, end)) = blocks.first() else { return false };
        let (start, end) = (Seq(start), Seq(end));
        let below = start.before(ack);
        let within = blocks.get(1).is_some_and(|&(first, last)| {
            end.at_or_before(Seq(last)) && start.at_or_after(Seq(first))
        });
        let len = start.up_to(end);
        if !(below || within) || len == 0 || len > window_max {
            return false;
        }
        let count = len.div_ceil(cx.mss);
        let of_probe = count == 1 && self.probe.ends_at(end);
        report.duplicate_probe |= of_probe;
        self.duplicates = self.duplicates.saturating_add(count);
        // A peer cannot have received more duplicates than were retransmitted.
        if self.duplicates > self.resent {
            return false;
        }
        if self.reordering.was_seen() && !of_probe {
            self.rack.note_duplicate();
        }
        report.duplicate = true;
        if end.at_or_before(report.prior_una) {
            self.undo.note_duplicates(count, end);
        }
        self.count_delivered(count);
        true
    }

    /// Removes everything before `ack` from the scoreboard, which is not empty. Returns the round
    /// trip that the ACK shows.
    pub(in crate::tcp) fn acknowledge(
        &mut self,
        ack: Seq,
        report: &mut Report,
        cx: &Cx<'_>,
    ) -> Option<RoundTrip> {
        let (sack, min_rtt) = (self.sack, cx.rtt.min());
        let (rack, recover) = (&mut self.rack, self.recover);
        let (mut delivered, mut in_flight_whole) = (0, true);
        self.board.acknowledge(ack, |record, segments, whole| {
            report.acked += segments;
            in_flight_whole &= whole;
            if !record.sacked {
                report.note_newest(record);
            }
            if record.ever_resent {
                report.resent_acked = true;
            } else if !record.sacked {
                let first = report.acked_sent.map_or(record.sent_at, |(first, _)| first);
                report.acked_sent = Some((first, record.sent_at));
                report.note_reordered(record.start);
                report.original |= record.end.at_or_before(recover);
            }
            if sack && !record.sacked {
                delivered += segments;
                let spurious = record.ever_resent
                    && report.echo_is_before(cx.timestamps.value(record.sent_at));
                if !spurious {
                    rack.deliver(record, min_rtt, cx.now);
                }
            }
        });
        self.count_delivered(delivered);
        let first = self.board.first();
        report.reneging = first.is_some_and(|first| first.sacked);
        let head_sent = first.map(|first| first.sent_at);
        let lone = report.acked == 1
            && in_flight_whole
            && ack - report.prior_una < cx.mss
            && self.delivered == report.prior_delivered.wrapping_add(1);
        let round_trip = report.round_trip(lone, cx.timestamps, cx.now);
        if report.acked > 0 {
            report.timer = TimerRequest::Restart;
            if self.sack {
                let low = report.reordered.unwrap_or(ack);
                if report.prior_sacked_end.is_some_and(|highest| low.before(highest)) {
                    self.note_reordering(low, cx);
                }
            } else {
                self.remove_duplicates(report.acked);
                // Without SACK it is unknown whether the original or the retransmission arrived.
                report.original &= !report.resent_acked;
            }
        } else if let (Some((sent, _)), Some(head), Some(_)) =
            (report.sacked_sent, head_sent, round_trip)
            && sent < head
        {
            // SACKed data restarts the timer only if it was sent before the head was last sent.
            // Otherwise the timeout could be put off again and again during recovery.
            report.timer = TimerRequest::Restart;
        }
        round_trip
    }

    /// Notes reordering: data at `low`, which was sent once, arrived after later data.
    pub(super) fn note_reordering(&mut self, low: Seq, cx: &Cx<'_>) {
        let highest = self.board.sacked_end().unwrap_or(cx.una);
        self.reordering.note(low, highest, cx.mss);
    }

    /// Draws conclusions from an ACK of everything before `ack`.
    pub(in crate::tcp) fn react(&mut self, ack: Seq, report: &mut Report, cx: &mut Cx<'_>) {
        if let Some(newest) = report.newest
            && cx.settings.recovery & STATIC_REO_WND == 0
        {
            self.rack.update_window(newest.delivered, self.delivered);
        }
        self.judge_probe(ack, report, cx);
        if report.is_dubious() || self.state != CaState::Open {
            report.repeats = u32::from(report.is_quiet() && !report.duplicate);
            self.update_state(report, cx);
        }
    }

    /// Draws conclusions from an ACK that arrives while nothing is outstanding.
    pub(in crate::tcp) fn react_idle(&mut self, ack: Seq, report: &mut Report, cx: &mut Cx<'_>) {
        if report.duplicate {
            self.update_state(report, cx);
        }
        self.judge_probe(ack, report, cx);
    }

    /// Decides what became of the loss probe (RFC 8985 §7.4).
    fn judge_probe(&mut self, ack: Seq, report: &Report, cx: &mut Cx<'_>) {
        let quiet = report.is_quiet() && !report.sacked;
        match self.probe.on_ack(ack, report.duplicate_probe, quiet) {
            Fate::Open => {}
            Fate::Needless => self.probe.forget(),
            Fate::Repaired => self.respond_to_repaired_loss(cx),
        }
    }

    /// Reports the ACK to the congestion controller. Returns the number of segments that the ACK
    /// delivered.
    pub(in crate::tcp) fn report_to_controller(&mut self, report: &Report, cx: &mut Cx<'_>) -> u32 {
        let delivered = self.delivered.wrapping_sub(report.prior_delivered);
        let totals = (self.delivered, delivered > 0);
        let lost = self.board.lost();
        let rate = self.rate.sample(report.newest, totals, lost, cx.rtt.min(), cx.now);
        // On a path that reorders, SACKed segments count as progress too.
        let usual = self.reordering.degree() <= cx.settings.reordering;
        cx.congestion.on_ack(&Ack {
            delivered,
            delivered_total: self.delivered,
            lost: lost.wrapping_sub(report.prior_lost),
            in_flight: self.board.in_flight(),
            advanced: report.advanced,
            progress: report.acked > 0 || (report.sacked && !usual),
            sack: self.sack,
            mss: cx.mss,
            rate,
            now: cx.now,
        });
        if cx.congestion.limits_itself() {
            self.limit_samples();
        }
        delivered
    }

    /// Ends F-RTO if no new data could be sent for it: lost data is retransmitted instead.
    pub(in crate::tcp) fn give_up_frto(&mut self, nxt: Seq) {
        if self.resend == Resend::NewFirst && nxt.at_or_before(self.recover) {
            self.frto.stop();
            self.resend = Resend::Lost;
        }
    }
}
