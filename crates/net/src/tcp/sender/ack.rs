//! Processing of acknowledgments (RFC 9293 §3.10.7.4, fifth check).

use super::{Limit, Purpose, Sender, Turn};
use crate::tcp::congestion::RttSample;
use crate::tcp::loss::{Report, RoundTrip, TimerRequest};
use crate::tcp::segment::{SUPER_BYTES, Segment};
use crate::tcp::seq::Seq;
use crate::tcp::state::Events;
use crate::time::Instant;

/// Result of an acknowledgment.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::tcp) struct Acked {
    /// What the owner should learn.
    pub(in crate::tcp) events: Events,
    /// Our FIN is acknowledged.
    pub(in crate::tcp) fin: bool,
}

impl Sender {
    /// True if `ack` acknowledges data that was sent, and is no older than what the peer may have
    /// missed (RFC 5961 §5.2). An old ACK lies no further back than what was ever acknowledged.
    pub(in crate::tcp) fn accepts_ack(&self, ack: Seq) -> bool {
        let known = u32::try_from(self.counts.acked).unwrap_or(u32::MAX);
        let oldest = self.una.minus(self.window.max().min(known));
        !(ack.after(self.nxt) || ack.before(oldest))
    }

    /// Processes the acknowledgment of an acceptable segment. `ece` means that it echoes
    /// congestion.
    pub(in crate::tcp) fn on_ack(&mut self, segment: &Segment, ece: bool, turn: Turn<'_>) -> Acked {
        let (ack, now) = (segment.ack(), turn.now);
        let echo = turn.timestamps.echo_of(segment);
        let mut report = self.recovery.report(self.una, echo, ece);
        self.small.more_follows = false;
        self.buffer.check_space();
        if ack.before(self.una) {
            self.on_old_ack(segment, &mut report, turn);
            return Acked::default();
        }
        let largest = self.window.max();
        let is_new = self.window.update(segment, self.una);
        report.news = is_new || segment.takes_numbers();
        if is_new && self.window.max() > largest {
            self.path.widen(self.window.max());
        }
        if ack.after(self.una) {
            report.advanced = true;
            self.counts.acked += u64::from(ack - self.una);
            self.una = ack;
            self.recovery.timeouts_mut().answered();
        }
        self.take_sack(segment, &mut report, turn);
        self.persist.answered();
        self.acked_at = now;
        if self.recovery.board().is_empty() {
            let (recovery, mut cx) = self.recovery(turn);
            recovery.react_idle(ack, &mut report, &mut cx);
            self.probe_answered(turn);
        } else {
            self.on_ack_of_data(ack, &mut report, ece, turn);
        }
        self.update_pacing_rate(turn.settings);
        let mut acked = self.release_acknowledged(now);
        if self.buffer.peer_took_some(self.window_left()) {
            acked.events |= Events::WRITABLE;
        }
        acked
    }

    /// Data from `nxt` on was refused, so the peer's window updates come from there, although a
    /// refused segment with a later sequence number has carried a window. Otherwise these updates
    /// would be taken for old ones, and a window that opens would stay shut.
    pub(in crate::tcp) fn peer_continues_at(&mut self, nxt: Seq) {
        self.window.rewind(nxt);
    }

    fn take_sack(&mut self, segment: &Segment, report: &mut Report, turn: Turn<'_>) {
        let blocks = segment.options.sack_blocks();
        if !blocks.is_empty() {
            let window_max = self.window.max();
            let (recovery, cx) = self.recovery(turn);
            recovery.take_sack(blocks, segment.ack(), window_max, report, &cx);
        }
    }

    /// Processes an ACK of less than what is acknowledged: it may still carry SACK blocks.
    fn on_old_ack(&mut self, segment: &Segment, report: &mut Report, turn: Turn<'_>) {
        if segment.options.sack_count > 0 {
            report.news = segment.takes_numbers();
            self.take_sack(segment, report, turn);
            let (recovery, mut cx) = self.recovery(turn);
            recovery.update_state(report, &mut cx);
            self.obey(report, turn);
        }
    }

    /// Processes an ACK while data is outstanding.
    fn on_ack_of_data(&mut self, ack: Seq, report: &mut Report, ece: bool, turn: Turn<'_>) {
        let (recovery, cx) = self.recovery(turn);
        if let Some(round_trip) = recovery.acknowledge(ack, report, &cx) {
            self.take_round_trip(round_trip, turn.now);
        }
        if self.path.search().probe_start().is_some() {
            self.judge_mtu_probe(turn);
        }
        let (recovery, mut cx) = self.recovery(turn);
        recovery.react(ack, report, &mut cx);
        let delivered = recovery.report_to_controller(report, &mut cx);
        self.obey(report, turn);
        if ece {
            self.counts.marked = self.counts.marked.wrapping_add(delivered);
        }
    }

    /// Does what recovery asks for.
    fn obey(&mut self, report: &Report, turn: Turn<'_>) {
        if report.lost_mtu_probe {
            self.mtu_probe_lost();
        }
        match report.timer {
            TimerRequest::Keep => {}
            TimerRequest::Restart => {
                if !self.schedule_loss_probe(true, turn) {
                    self.restart_timer(turn);
                }
            }
            TimerRequest::Retransmit(at) => self.timer.arm(Purpose::Retransmit, at),
            TimerRequest::Reorder(at) => self.timer.arm(Purpose::Reorder, at),
        }
    }

    /// Takes a round-trip sample.
    fn take_round_trip(&mut self, round_trip: RoundTrip, now: Instant) {
        self.rtt.sample_min(round_trip.last, round_trip.delayed, now);
        self.rtt.sample(round_trip.first, self.una, self.nxt);
        self.persist.restore();
        self.congestion.on_rtt(&RttSample {
            rtt: round_trip.last,
            una: self.una,
            nxt: self.nxt,
            pacing_rate: self.pacing.rates().0,
            paced: self.is_paced(),
            burst_max: SUPER_BYTES,
            now,
        });
    }

    /// Drops acknowledged bytes from the queue.
    pub(super) fn release_acknowledged(&mut self, now: Instant) -> Acked {
        let ack = self.una;
        let data = (self.base.up_to(ack) as usize).min(self.queue.len());
        if data > 0 {
            self.queue.advance(data);
            self.base += data as u32;
        }
        if self.recovery.board().is_empty() {
            self.chrono.stop(Limit::Busy, self.unsent() == 0, now);
        }
        self.writes.acknowledge(ack);
        self.urgent.take_if(|end| end.at_or_before(ack));
        let stamped = self.stamps.acknowledge(ack, now);
        Acked {
            events: if stamped { Events::STAMPED } else { Events::default() },
            fin: self.fin_sent && ack == self.nxt,
        }
    }
}
