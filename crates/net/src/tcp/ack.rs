//! Processing of acknowledgments (RFC 9293 §3.10.7.4, fifth check): window, `snd_una`, SACK and
//! D-SACK (RFC 2018, RFC 2883), round-trip samples, and the congestion window. The order of the
//! steps is Linux's.

use super::chrono::Limit;
use super::congestion::{Ack, CaState, RttSample};
use super::connection::{Connection, Segment};
use super::input::Verdict;
use super::pacing::SUPER_BYTES;
use super::rate::Newest;
use super::scoreboard::Record;
use super::seq::Seq;
use super::state::{Events, State};
use crate::time::{Duration, Instant};
use crate::wire::tcp::Flags;

/// What one acknowledgment reports.
#[derive(Debug, Default)]
pub(super) struct AckSummary {
    /// `snd_una` before this ACK.
    pub(super) prior_una: Seq,
    /// End of the highest range that SACK had reported before this ACK.
    prior_sacked_end: Option<Seq>,
    /// Segments that SACK had reported before this ACK.
    prior_sacked: u32,
    prior_delivered: u32,
    prior_lost: u32,
    /// The echoed timestamp.
    echo: Option<u32>,
    /// The segment carries data or a FIN.
    data: bool,
    /// The window was taken from this segment.
    window: bool,
    /// `snd_una` advanced.
    pub(super) advanced: bool,
    /// Segments that `snd_una` passed with this ACK.
    acked: u32,
    /// `snd_una` passed data that had been retransmitted.
    resent_acked: bool,
    /// SACK reported new data.
    pub(super) sacked: bool,
    /// Data that was sent before the recovery began, and only once, has arrived.
    pub(super) original_acked: bool,
    /// D-SACK reported a duplicate.
    dsack: bool,
    /// The reported duplicate is a loss probe.
    dsack_of_probe: bool,
    /// Congestion was echoed (RFC 3168 §6.1.3).
    pub(super) ece: bool,
    /// SACK had reported the range that is now first (RFC 2018 §8).
    pub(super) reneging: bool,
    /// A retransmission was lost too.
    pub(super) lost_again: bool,
    /// Number of duplicate ACKs, without SACK.
    pub(super) duplicates: u32,
    /// The retransmission timer must be rearmed.
    pub(super) set_timer: bool,
    /// When the first and the last acknowledged record that was sent only once were sent.
    acked_sent: Option<(Instant, Instant)>,
    /// When the first and the last SACKed record that was sent only once were sent.
    sacked_sent: Option<(Instant, Instant)>,
    /// Lowest number that arrived out of order without having been retransmitted.
    reordered: Option<Seq>,
    /// The delivered record that was sent last.
    newest: Option<Newest>,
}

impl AckSummary {
    /// True if the echoed timestamp is older than `value`.
    pub(super) fn echo_is_before(&self, value: u32) -> bool {
        self.echo.is_some_and(|echo| Seq(echo).before(Seq(value)))
    }

    fn note_newest(&mut self, record: &Record) {
        if self.newest.is_none_or(|newest| record.sent_at >= newest.sent_at) {
            self.newest = Some(Newest::of(record));
        }
    }

    fn note_reordered(&mut self, at: Seq) {
        self.reordered = Some(self.reordered.map_or(at, |low| low.min(at)));
    }

    /// True if loss recovery must examine this ACK.
    fn is_dubious(&self) -> bool {
        !(self.data || self.window || self.acked > 0) || self.sacked || self.ece || self.dsack
    }

    /// True if the ACK neither acknowledges data, carries data nor updates the window.
    fn is_quiet(&self) -> bool {
        !(self.advanced || self.data || self.window || self.acked > 0)
    }
}

impl Connection {
    /// Processes the acknowledgment of an acceptable segment.
    pub(super) fn input_ack(&mut self, segment: &Segment, now: Instant) -> Verdict {
        let ack = segment.ack();
        if self.state == State::SynReceived {
            if !ack.after(self.send.iss) || ack.after(self.send.nxt) {
                return Verdict::Reset;
            }
            self.send.nxt = self.send.nxt.max(self.send.iss + 1);
            self.open(segment, now);
        }
        // RFC 5961 §5.2. An old ACK lies no further back than what was ever acknowledged.
        let known = u32::try_from(self.counters.bytes_acked).unwrap_or(u32::MAX);
        let oldest = Seq(self.send.una.0.wrapping_sub(self.send.wnd_max.min(known)));
        if ack.after(self.send.nxt) || ack.before(oldest) {
            return self.suspect(now);
        }
        let mut summary = self.summary(segment);
        self.send.more_follows = false;
        self.send.space_check_due = true;
        if ack.before(self.send.una) {
            self.input_old_ack(segment, &mut summary, now);
            return Verdict::Done;
        }
        summary.window = self.update_window(segment);
        if ack.after(self.send.una) {
            summary.advanced = true;
            self.counters.bytes_acked += u64::from(ack - self.send.una);
            self.send.una = ack;
            self.timers.unanswered = 0;
        }
        self.input_sack(segment, &mut summary, now);
        self.timers.probes = 0;
        self.counters.ack_received_at = now;
        if self.send.board.is_empty() {
            self.after_idle_ack(ack, &mut summary, now);
        } else {
            self.after_ack(ack, &mut summary, now);
        }
        self.update_pacing_rate();
        self.release_acknowledged(now);
        self.peer_took_some();
        self.end_without_fin_wait()
    }

    fn summary(&self, segment: &Segment) -> AckSummary {
        let echo = segment.options.timestamps.map(|(_, echo)| echo);
        let board = &self.send.board;
        AckSummary {
            prior_una: self.send.una,
            prior_sacked_end: board.sacked_end(),
            prior_sacked: board.totals().sacked_out,
            prior_delivered: self.recovery.delivered,
            prior_lost: board.lost(),
            echo: echo.filter(|echo| self.timestamps.enabled && *echo != 0),
            ece: self.ecn.enabled && segment.has(Flags::ECE) && !segment.has(Flags::SYN),
            data: segment.len > 0 || segment.has(Flags::FIN),
            ..AckSummary::default()
        }
    }

    /// Processes an ACK older than `snd_una`: it may still carry SACK blocks.
    fn input_old_ack(&mut self, segment: &Segment, summary: &mut AckSummary, now: Instant) {
        if segment.options.sack_count > 0 {
            self.input_sack(segment, summary, now);
            self.update_loss_state(summary, now);
        }
    }

    /// Processes an ACK that arrives while nothing is outstanding.
    fn after_idle_ack(&mut self, ack: Seq, summary: &mut AckSummary, now: Instant) {
        if summary.dsack {
            self.update_loss_state(summary, now);
        }
        self.acknowledge_probe(now);
        self.judge_loss_probe(
            ack,
            summary.dsack_of_probe,
            summary.is_quiet() && !summary.sacked,
            now,
        );
    }

    fn after_ack(&mut self, ack: Seq, summary: &mut AckSummary, now: Instant) {
        self.acknowledge(ack, summary, now);
        self.adapt_reordering_window(summary.newest.map(|newest| newest.delivered));
        self.judge_loss_probe(
            ack,
            summary.dsack_of_probe,
            summary.is_quiet() && !summary.sacked,
            now,
        );
        if summary.is_dubious() || self.recovery.state != CaState::Open {
            summary.duplicates = u32::from(summary.is_quiet() && !summary.dsack);
            self.update_loss_state(summary, now);
        }
        if summary.set_timer && !self.schedule_loss_probe(true, now) {
            self.rearm_rto(now);
        }
        let delivered = self.recovery.delivered.wrapping_sub(summary.prior_delivered);
        if summary.ece {
            self.counters.delivered_marked = self.counters.delivered_marked.wrapping_add(delivered);
        }
        let totals = (self.recovery.delivered, delivered > 0);
        let lost_total = self.send.board.lost();
        let rate =
            self.recovery.rate.sample(summary.newest, totals, lost_total, self.rtt.min(), now);
        // On a path that reorders, SACKed segments count as progress too.
        let usual = self.recovery.reordering <= self.settings.reordering;
        self.congestion.on_ack(&Ack {
            delivered,
            delivered_total: self.recovery.delivered,
            lost: lost_total.wrapping_sub(summary.prior_lost),
            in_flight: self.send.board.in_flight(),
            advanced: summary.advanced,
            progress: summary.acked > 0 || (summary.sacked && !usual),
            sack: self.sack,
            mss: self.send.mss,
            rate,
            now,
        });
        if self.congestion.limits_itself() {
            self.mark_app_limited();
        }
    }

    /// Takes the window from the latest segment (RFC 9293 §3.10.7.4). With an equal sequence number
    /// and no new acknowledgment, only a larger window or a zero window counts. Returns true if it
    /// was taken.
    fn update_window(&mut self, segment: &Segment) -> bool {
        let wnd = u32::from(segment.header.window) << self.send.window_scale;
        let newer = segment.ack().after(self.send.una)
            || segment.seq().after(self.send.wl1)
            || (segment.seq() == self.send.wl1 && (wnd > self.send.wnd || wnd == 0));
        if newer {
            self.send.wnd = wnd;
            self.send.wnd_max = self.send.wnd_max.max(wnd);
            self.send.wl1 = segment.seq();
        }
        newer
    }

    fn input_sack(&mut self, segment: &Segment, summary: &mut AckSummary, now: Instant) {
        if !self.sack {
            return;
        }
        let blocks = segment.options.sack_blocks();
        let mut twice = self.input_dsack(blocks, segment.ack(), summary);
        for &(start, end) in blocks {
            let (start, end) = (Seq(start), Seq(end));
            let dsack = core::mem::take(&mut twice);
            let valid = start.before(end)
                && start.after(self.send.una)
                && start.before(self.send.nxt)
                && end.at_or_before(self.send.nxt);
            if !valid {
                continue;
            }
            if dsack {
                let count = self.send.board.duplicated(start, end);
                if self.recovery.undo_marker.is_some_and(|marker| end.after(marker)) {
                    self.recovery.forgive(count);
                }
            }
            self.take_block(start, end, summary, now);
        }
        let lossy = self.recovery.state == CaState::Loss;
        if let Some(low) = summary.reordered
            && (!lossy || self.recovery.undo_marker.is_some())
        {
            self.note_reordering(low);
        }
    }

    /// Processes one valid SACK block.
    fn take_block(&mut self, start: Seq, end: Seq, summary: &mut AckSummary, now: Instant) {
        let min_rtt = self.rtt.min();
        let recovery = &mut self.recovery;
        let mut delivered = 0;
        self.send.board.sack(start, end, |record, highest| {
            recovery.rack.deliver(record, min_rtt, now);
            summary.note_newest(record);
            summary.sacked = true;
            delivered += record.segments;
            if record.ever_resent {
                return;
            }
            if highest.is_some_and(|highest| record.start.before(highest)) {
                summary.note_reordered(record.start);
            }
            summary.original_acked |= record.end.at_or_before(recovery.high);
            let first = summary.sacked_sent.map_or(record.sent_at, |(first, _)| first);
            summary.sacked_sent = Some((first, record.sent_at));
        });
        self.count_delivered(delivered);
    }

    /// Processes the first block if it reports a duplicate (RFC 2883). Returns true if it does, and
    /// is credible.
    fn input_dsack(&mut self, blocks: &[(u32, u32)], ack: Seq, summary: &mut AckSummary) -> bool {
        let Some(&(start, end)) = blocks.first() else { return false };
        let (start, end) = (Seq(start), Seq(end));
        let below = start.before(ack);
        let within = blocks.get(1).is_some_and(|&(first, last)| {
            end.at_or_before(Seq(last)) && start.at_or_after(Seq(first))
        });
        let len = if start.before(end) { end - start } else { 0 };
        if !(below || within) || len == 0 || len > self.send.wnd_max {
            return false;
        }
        let recovery = &mut self.recovery;
        let count = len.div_ceil(self.send.mss);
        let of_probe = count == 1 && recovery.rack.probe_high() == Some(end);
        summary.dsack_of_probe |= of_probe;
        recovery.dsack_dups = recovery.dsack_dups.saturating_add(count);
        // A peer cannot have received more duplicates than were retransmitted.
        if recovery.dsack_dups > recovery.total_retrans {
            return false;
        }
        if recovery.reord_seen > 0 && !of_probe {
            recovery.rack.note_duplicate();
        }
        summary.dsack = true;
        if end.at_or_before(summary.prior_una)
            && recovery.undo_marker.is_some_and(|marker| end.after(marker))
        {
            recovery.forgive(count);
        }
        self.count_delivered(count);
        true
    }

    /// Removes what `snd_una` passed from the scoreboard.
    fn acknowledge(&mut self, ack: Seq, summary: &mut AckSummary, now: Instant) {
        let (sack, min_rtt) = (self.sack, self.rtt.min());
        let timestamps = self.timestamps;
        let recovery = &mut self.recovery;
        let (mut delivered, mut in_flight_whole) = (0, true);
        self.send.board.acknowledge(ack, |record, segments, whole| {
            summary.acked += segments;
            if !record.sacked {
                summary.note_newest(record);
            }
            in_flight_whole &= whole;
            if record.ever_resent {
                summary.resent_acked = true;
            } else if !record.sacked {
                let first = summary.acked_sent.map_or(record.sent_at, |(first, _)| first);
                summary.acked_sent = Some((first, record.sent_at));
                summary.note_reordered(record.start);
                summary.original_acked |= record.end.at_or_before(recovery.high);
            }
            if sack && !record.sacked {
                delivered += segments;
                let spurious =
                    record.ever_resent && summary.echo_is_before(timestamps.value(record.sent_at));
                if !spurious {
                    recovery.rack.deliver(record, min_rtt, now);
                }
            }
        });
        self.count_delivered(delivered);
        let first = self.send.board.first();
        summary.reneging = first.is_some_and(|first| first.sacked);
        let head_sent = first.map(|first| first.sent_at);
        let lone = summary.acked == 1 && in_flight_whole && ack - summary.prior_una < self.send.mss;
        let rtt = self.sample_rtt(summary, lone, now);
        if summary.acked > 0 {
            summary.set_timer = true;
            if self.path.search.is_probing() {
                self.judge_mtu_probe(now);
            }
            if self.sack {
                let low = summary.reordered.unwrap_or(ack);
                if summary.prior_sacked_end.is_some_and(|highest| low.before(highest)) {
                    self.note_reordering(low);
                }
            } else {
                self.eat_duplicates(summary.acked);
                // Without SACK it is unknown whether the original or the retransmission arrived.
                summary.original_acked &= !summary.resent_acked;
            }
        } else if let (Some((sent, _)), Some(head), true) = (summary.sacked_sent, head_sent, rtt) {
            // SACKed data rearms the timer only if it was sent before the head was last sent.
            // Otherwise the timeout could be put off again and again during recovery.
            summary.set_timer |= sent < head;
        }
    }

    /// Takes a round-trip sample if the ACK gives one (RFC 6298 §3, RFC 7323 §4). `lone` means that
    /// it acknowledges a single short segment, whose ACK may have been delayed. Returns true if
    /// there was a sample.
    fn sample_rtt(&mut self, summary: &AckSummary, lone: bool, now: Instant) -> bool {
        let mut acked = summary.acked_sent.filter(|_| !summary.resent_acked);
        let delayed = lone
            && summary.prior_sacked == 0
            && self.recovery.delivered == summary.prior_delivered.wrapping_add(1)
            && !(summary.sacked || summary.dsack || summary.ece);
        let mut last = acked.map(|(_, last)| now.since(last));
        if let Some((_, sent)) = summary.sacked_sent {
            last = Some(now.since(sent));
            acked = acked.or(summary.sacked_sent);
        }
        let mut rtt = acked.map(|(first, _)| now.since(first));
        if rtt.is_none()
            && summary.acked > 0
            && let Some(echo) = summary.echo
        {
            // The echo identifies the transmission that arrived.
            let elapsed = self.timestamps.value(now).wrapping_sub(echo);
            if elapsed < u32::MAX / 2 {
                rtt = Some(Duration::from_millis(u64::from(elapsed).max(1)));
                last = rtt;
            }
        }
        let (Some(rtt), Some(last)) = (rtt, last) else { return false };
        self.rtt.sample_min(last, delayed, now);
        self.rtt.sample(rtt, self.send.una, self.send.nxt);
        self.timers.probe_backoff = 0;
        self.congestion.on_rtt(&RttSample {
            rtt: last,
            una: self.send.una,
            nxt: self.send.nxt,
            pacing_rate: self.send.pacing.rate,
            paced: self.is_paced(),
            burst_max: SUPER_BYTES,
            now,
        });
        true
    }

    /// Advances `snd_una` when the peer answers our SYN; it may acknowledge data sent with the SYN.
    pub(super) fn advance_una(&mut self, ack: Seq, now: Instant) {
        let mut delivered = 0;
        self.counters.bytes_acked += u64::from(ack - self.send.una);
        self.send.una = ack;
        self.send.board.acknowledge(ack, |_, segments, _| delivered += segments);
        self.count_delivered(delivered);
        self.release_acknowledged(now);
        self.rearm_rto(now);
    }

    /// Drops acknowledged bytes from the queue, and handles an acknowledged FIN.
    fn release_acknowledged(&mut self, now: Instant) {
        let ack = self.send.una;
        let data = if ack.after(self.send.base) { ack - self.send.base } else { 0 };
        let data = (data as usize).min(self.send.queue.len());
        if data > 0 {
            self.send.queue.advance(data);
            self.send.base += data as u32;
        }
        if self.send.board.is_empty() {
            self.send.chrono.stop(Limit::Busy, self.send.unsent() == 0, now);
        }
        self.send.writes.acknowledge(ack);
        self.acknowledge_urgent();
        self.stamp_acknowledged(now);
        if self.send.fin_sent && ack == self.send.nxt {
            self.input_ack_of_fin(now);
        }
    }

    fn input_ack_of_fin(&mut self, now: Instant) {
        match self.state {
            State::FinWait1 => {
                self.note(Events::SENT_ALL);
                self.enter_fin_wait_2(now);
            }
            State::Closing => {
                self.note(Events::SENT_ALL);
                self.enter_time_wait();
            }
            State::LastAck => {
                self.note(Events::SENT_ALL);
                self.finish(None);
            }
            _ => {}
        }
    }
}
