//! Loss detection and recovery: what is lost, what may be retransmitted, and how the congestion
//! window follows.
//!
//! # Theory of operation
//!
//! [`Recovery`] owns the scoreboard and one object for each mechanism: `rack` (RFC 8985 §6),
//! `probe` (RFC 8985 §7), `reordering`, `frto` (RFC 5682) and `undo` (RFC 3522, 3708, 4015). The
//! other files act on all of them: `report` takes the ranges that an ACK acknowledges or reports
//! (RFC 2018, 2883), `episode` begins and ends recovery (RFC 5681 §3.2, RFC 6675 §5, RFC 3168
//! §6.1.2), `duplicates` counts duplicate ACKs for peers without SACK (RFC 5681 §3.2, RFC 6582),
//! and `timeout` handles the retransmission timer (RFC 6298 §5, RFC 5682). What the states mean for
//! the window is up to the congestion controller.
//!
//! The first sign of disorder turns `Open` into `Disorder`. A known loss leads to `Recovery`, a
//! timeout to `Loss`, and congestion without loss to `Cwr`. These three end when everything before
//! `recover` (RecoveryPoint of RFC 6675 §2), the next number at their beginning, is acknowledged.
//!
//! Records that are marked lost are retransmitted; `Resend` says whether the last ACK allows it.
//! With SACK, RACK sets the marks. Without SACK, the count of duplicate ACKs does.
//!
//! The caller passes each ACK in three steps: [`Recovery::take_sack`] and [`Recovery::acknowledge`]
//! update the scoreboard, [`Recovery::react`] draws conclusions.

mod duplicates;
mod episode;
mod frto;
mod probe;
mod rack;
mod reordering;
mod report;
mod timeout;
mod undo;

use super::congestion::{CaState, Congestion, Lost};
use super::info::Info;
use super::rate::Rate;
use super::rtt::RttEstimator;
use super::scoreboard::{Record, Scoreboard, Sending};
use super::seq::Seq;
use super::settings::Settings;
use super::timestamps::Timestamps;
use crate::time::{Duration, Instant};
use frto::Frto;
pub(super) use probe::LossProbe;
use probe::{Fate, TIMEOUT_MIN, TailProbe};
use rack::Rack;
use reordering::Reordering;
pub(super) use report::{Report, RoundTrip};
pub(super) use timeout::Timeouts;
use undo::Undo;

/// `recovery` setting: the reordering window does not adapt.
const STATIC_REO_WND: u8 = 2;
/// `recovery` setting: without reordering so far, even many duplicates do not close the reordering
/// window.
const NO_DUPTHRESH: u8 = 4;

/// What recovery acts on, and what it needs to know of the sender.
pub(super) struct Cx<'a> {
    /// First unacknowledged number (SND.UNA).
    pub(super) una: Seq,
    /// Next number to be sent (SND.NXT).
    pub(super) nxt: Seq,
    /// After a timeout: new data may be sent, as there is some and the peer's window takes it.
    pub(super) has_new: bool,
    /// Payload of a full segment.
    pub(super) mss: u32,
    /// The probe of the path MTU in flight begins here.
    pub(super) mtu_probe: Option<Seq>,
    pub(super) rtt: &'a RttEstimator,
    pub(super) congestion: &'a mut Congestion,
    /// Our timestamps, for comparison with echoed ones.
    pub(super) timestamps: &'a Timestamps,
    pub(super) settings: &'a Settings,
    pub(super) now: Instant,
}

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

/// What is to be done with the sender's timer after an ACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum TimerRequest {
    /// It runs on.
    #[default]
    Keep,
    /// It restarts for the data that is outstanding (RFC 6298 §5.3), or a loss probe replaces it.
    Restart,
    /// The retransmission timer fires at this time.
    Retransmit(Instant),
    /// The reordering timer (RFC 8985 §6.3) fires at this time.
    Reorder(Instant),
}

/// State of loss recovery.
pub(super) struct Recovery {
    board: Scoreboard,
    state: CaState,
    /// The state ends when everything before this is acknowledged.
    recover: Seq,
    resend: Resend,
    /// The peer understands SACK.
    sack: bool,
    /// We reduced the window and have not sent CWR yet (RFC 3168 §6.1.2).
    cwr_due: bool,
    reordering: Reordering,
    rack: Rack,
    probe: TailProbe,
    frto: Frto,
    undo: Undo,
    rate: Rate,
    timeouts: Timeouts,
    /// Segments delivered, as far as known; wraps.
    delivered: u32,
    /// Segments that were reported as duplicates.
    duplicates: u32,
    /// Segments retransmitted; wraps.
    resent: u32,
}

impl Recovery {
    /// State of a connection that has sent nothing.
    pub(super) fn new(iss: Seq, reordering: u32) -> Self {
        Self {
            board: Scoreboard::default(),
            state: CaState::Open,
            recover: iss,
            resend: Resend::Nothing,
            sack: false,
            cwr_due: false,
            reordering: Reordering::new(reordering),
            rack: Rack::default(),
            probe: TailProbe::default(),
            frto: Frto::default(),
            undo: Undo::default(),
            rate: Rate::default(),
            timeouts: Timeouts::default(),
            delivered: 0,
            duplicates: 0,
            resent: 0,
        }
    }

    /// Sets whether the peer understands SACK.
    pub(super) fn agree(&mut self, sack: bool) {
        self.sack = sack;
    }

    /// Notes that the handshake is over: our SYN counts as delivered
    /// (`tests/scripts/info_*.pkt`).
    pub(super) fn open(&mut self, now: Instant) {
        self.count_delivered(1);
        self.rate.restart(now);
        self.timeouts.end(now);
    }

    /// Accounts for new data that was sent in segments of `size` bytes. `ends` says whether it ends
    /// with a FIN, and with a record of the owner.
    pub(super) fn sent(
        &mut self,
        (start, end): (Seq, Seq),
        size: u32,
        ends: (bool, bool),
        now: Instant,
    ) -> u32 {
        if self.board.is_empty() {
            self.rate.restart(now);
        }
        let before = self.board.totals().outstanding;
        let sending = Sending { record_end: ends.1, ..self.sending(size, ends.0, now) };
        self.board.sent(start, end, &sending);
        self.board.totals().outstanding - before
    }

    /// Accounts for data that was sent with our SYN.
    pub(super) fn sent_with_syn(&mut self, start: Seq, len: u32, now: Instant) {
        let sending = Sending { delivered: 0, ..self.sending(len, false, now) };
        self.board.sent(start, start + len, &sending);
    }

    /// Accounts for the retransmission of a range in segments of `size` bytes: a lost range or, if
    /// it `probes`, the tail.
    pub(super) fn resent(
        &mut self,
        (start, end): (Seq, Seq),
        size: u32,
        (fin, probes): (bool, bool),
        now: Instant,
    ) -> u32 {
        let sending = self.sending(size, fin, now);
        let segments = self.board.sent_again(start, end, probes, &sending);
        self.count_resent(segments);
        if !probes {
            self.undo.note_resent(segments, now);
        }
        segments
    }

    /// Counts `segments` that were retransmitted.
    pub(super) fn count_resent(&mut self, segments: u32) {
        self.resent = self.resent.wrapping_add(segments);
    }

    /// What the scoreboard keeps of a segment of `size` bytes that is sent now.
    fn sending(&self, size: u32, fin: bool, now: Instant) -> Sending {
        let (delivered, sent) = (self.delivered, self.rate.sent(now));
        Sending { size, fin, record_end: false, now, delivered, sent }
    }

    /// Notes, before the owner adds data, whether nothing was left to send: `unsent` bytes wait,
    /// and the window allows `cwnd` segments in flight.
    pub(super) fn note_gap(&mut self, unsent: u32, mss: u32, cwnd: u32) {
        let in_flight = self.board.in_flight();
        if unsent < mss && in_flight < cwnd && !self.board.has_due() {
            self.limit_samples();
        }
    }

    /// Marks the samples of everything in flight as limited by the owner.
    fn limit_samples(&mut self) {
        let until = self.delivered.wrapping_add(self.board.in_flight()).max(1);
        self.rate.limit(until);
    }

    /// Takes everything before `ack` as delivered: the peer answered our SYN and acknowledges data
    /// sent with it.
    pub(super) fn acknowledge_syn_data(&mut self, ack: Seq) {
        let mut delivered = 0;
        self.board.acknowledge(ack, |_, segments, _| delivered += segments);
        self.count_delivered(delivered);
    }

    /// Counts the SYN and its data as one segment (`tests/scripts/info_*.pkt`).
    pub(super) fn discount_syn(&mut self) {
        self.delivered = self.delivered.wrapping_sub(1);
    }

    fn count_delivered(&mut self, segments: u32) {
        self.delivered = self.delivered.wrapping_add(segments);
    }

    /// The reordering window (RFC 8985 §6.2 step 4).
    fn reordering_window(&self, cx: &Cx<'_>) -> Duration {
        let many = self.board.totals().sacked >= self.reordering.degree();
        let enough =
            self.state >= CaState::Recovery || (many && cx.settings.recovery & NO_DUPTHRESH == 0);
        self.rack.window(&self.reordering, enough, cx.rtt)
    }

    /// Marks late segments as lost (RFC 8985 §6.2 step 5). Returns how long the last of the others
    /// that were sent before the newest delivered one still has.
    fn detect_late(&mut self, cx: &mut Cx<'_>) -> Option<Duration> {
        let window = self.reordering_window(cx);
        let mut lost = lost_to(cx.congestion, self.delivered, cx.now);
        self.rack.detect(&mut self.board, window, cx.now, &mut lost)
    }

    /// Handles the reordering timer (RFC 8985 §6.3).
    pub(super) fn on_reorder_timer(&mut self, cx: &mut Cx<'_>) {
        let (in_flight, lost) = (self.board.in_flight(), self.board.lost());
        self.detect_late(cx);
        if self.board.in_flight() != in_flight {
            if self.state != CaState::Recovery {
                self.enter_recovery(false, cx);
                let lost = self.board.lost().wrapping_sub(lost);
                cx.congestion.on_late(lost, self.board.in_flight());
            }
            self.resend = Resend::Lost;
        }
    }

    /// Time to a loss probe (RFC 8985 §7.2) that replaces a retransmission timer of `rto`; `None`
    /// if none is scheduled: it needs SACK, data in flight, and no recovery.
    pub(super) fn probe_timeout(
        &self,
        rto: Duration,
        rtt: &RttEstimator,
        settings: &Settings,
    ) -> Option<Duration> {
        let outstanding = self.board.totals().outstanding;
        let calm = matches!(self.state, CaState::Open | CaState::Cwr);
        let on = matches!(settings.early_retrans, 3 | 4);
        let probes = on && outstanding > 0 && self.sack && calm;
        probes.then(|| TailProbe::timeout(outstanding == 1, rto, rtt))
    }

    /// Handles the timer of the loss probe: a probe is due, of new data if it `fits` the windows.
    pub(super) fn on_probe_timer(&mut self, fits: impl FnOnce() -> bool) {
        if !self.board.is_empty() {
            self.probe.on_timer(fits);
        }
    }

    /// The loss probe that is due.
    pub(super) fn probe_due(&self) -> Option<LossProbe> {
        self.probe.due()
    }

    /// Cancels the loss probe that is due.
    pub(super) fn cancel_probe(&mut self) {
        self.probe.cancel();
    }

    /// Accounts for a loss probe that was sent, new data or `resent`. Returns false if none was
    /// due.
    pub(super) fn probe_sent(&mut self, resent: bool, nxt: Seq) -> bool {
        self.probe.sent(resent, nxt)
    }

    /// Takes the note that the peer is to be informed of a reduction (RFC 3168 §6.1.2).
    pub(super) fn take_cwr(&mut self) -> bool {
        core::mem::take(&mut self.cwr_due)
    }

    /// Forgets everything outstanding: the connection is over.
    pub(super) fn clear(&mut self) {
        self.board.clear();
    }

    /// Ranges outstanding.
    pub(super) fn board(&self) -> &Scoreboard {
        &self.board
    }

    /// True if lost data may be retransmitted now.
    pub(super) fn may_resend(&self) -> bool {
        self.resend == Resend::Lost && self.board.has_due()
    }

    /// The first lost range: at most `max` segments of `size` bytes.
    pub(super) fn next_lost(&mut self, max: u32, size: u32) -> Option<(Seq, u32)> {
        self.board.next_due(max, size)
    }

    /// True while rate samples show what the owner sends, and not what the path can do.
    pub(super) fn is_app_limited(&self) -> bool {
        self.rate.is_app_limited()
    }

    /// True if something may have to be retransmitted now.
    pub(super) fn wants_to_resend(&self) -> bool {
        self.probe.due().is_some() || (self.resend != Resend::Nothing && self.board.has_due())
    }

    /// The state.
    pub(super) fn state(&self) -> CaState {
        self.state
    }

    /// When the first retransmission of this episode was sent.
    pub(super) fn resent_at(&self) -> Option<Instant> {
        self.undo.resent_at()
    }

    /// Degree of reordering, in segments.
    pub(super) fn reordering(&self) -> u32 {
        self.reordering.degree()
    }

    /// Fills in what recovery reports of itself; segments have `mss` bytes.
    pub(super) fn fill(&self, info: &mut Info, mss: u32, now: Instant) {
        let totals = self.board.totals();
        info.ca_state = self.state as u8;
        (info.unacked, info.sacked) = (totals.outstanding, totals.sacked);
        (info.lost, info.retrans) = (totals.lost, totals.resent);
        info.total_retrans = self.resent;
        (info.reordering, info.reord_seen) = (self.reordering.degree(), self.reordering.seen());
        info.delivered = self.delivered;
        info.dsack_dups = self.duplicates;
        info.delivery_rate = self.rate.bytes_per_second(mss);
        info.delivery_rate_app_limited = self.rate.is_limited();
        self.timeouts.fill(info, now);
    }

    /// Retransmission timeouts.
    pub(super) fn timeouts(&self) -> &Timeouts {
        &self.timeouts
    }

    /// Retransmission timeouts, to count those of the handshake.
    pub(super) fn timeouts_mut(&mut self) -> &mut Timeouts {
        &mut self.timeouts
    }

    /// Segments delivered.
    #[cfg(test)]
    pub(super) fn delivered(&self) -> u32 {
        self.delivered
    }

    /// Retransmits nothing until the next ACK or timeout.
    #[cfg(test)]
    pub(super) fn hold(&mut self) {
        self.resend = Resend::Nothing;
    }
}

/// Reports lost records to the congestion controller; `delivered` is the number of segments
/// delivered so far.
fn lost_to(congestion: &mut Congestion, delivered: u32, now: Instant) -> impl FnMut(&Record, u32) {
    move |record, lost| {
        let (in_flight, lost_before, app_limited) = record.sent.noted();
        congestion.on_lost(&Lost {
            start: record.start,
            end: record.end,
            segments: record.segments,
            in_flight,
            lost: lost.wrapping_sub(lost_before),
            app_limited,
            delivered_total: delivered,
            now,
        });
    }
}
