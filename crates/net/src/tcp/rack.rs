//! RACK-TLP (RFC 8985), as Linux implements it. A segment counts as lost once one that was sent
//! later, by more than the reordering window, is delivered. If no ACKs arrive, a probe of the tail
//! provokes one.

use super::congestion::CaState;
use super::connection::Connection;
use super::rate::lost_record;
use super::recovery::Resend;
use super::rtt::RTO_INITIAL;
use super::scoreboard::{Newest, Record};
use super::seq::Seq;
use crate::time::{Duration, Instant};

/// Number of recoveries for which a widened reordering window stays (RFC 8985 §6.2 step 4).
const REO_WND_PERSIST: u8 = 16;
/// Margin that is added to a computed timeout; Linux's value.
const TIMEOUT_MIN: Duration = Duration::from_millis(2);

/// `recovery` setting: the reordering window does not adapt.
const STATIC_REO_WND: u8 = 2;
/// `recovery` setting: without reordering so far, even many duplicates do not close the reordering
/// window.
const NO_DUPTHRESH: u8 = 4;

/// A loss probe that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LossProbe {
    /// A segment of new data, whatever the congestion window allows.
    New,
    /// The last segment, retransmitted.
    Tail,
}

/// State of RACK and of the loss probe.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rack {
    newest: Option<Newest>,
    /// Round trip of the last delivered segment.
    rtt: Duration,
    /// Something was delivered since the last search for losses.
    advanced: bool,
    /// Width of the reordering window, in quarters of the least round trip.
    steps: u8,
    persist: u8,
    /// A duplicate was reported that has not widened the window yet.
    dsack_seen: bool,
    /// Segments delivered when the window was last widened.
    widened_at: u32,
    /// `snd_nxt` when a loss probe was sent, until its outcome is known.
    probe_high: Option<Seq>,
    /// The probe was a retransmission.
    probe_resent: bool,
}

impl Default for Rack {
    fn default() -> Self {
        Self {
            newest: None,
            rtt: Duration::ZERO,
            advanced: false,
            steps: 1,
            persist: 0,
            dsack_seen: false,
            widened_at: 0,
            probe_high: None,
            probe_resent: false,
        }
    }
}

impl Rack {
    /// Notes that `record` was delivered (RFC 8985 §6.2 steps 1 and 2).
    pub(super) fn deliver(&mut self, record: &Record, min_rtt: Option<Duration>, now: Instant) {
        let rtt = now.since(record.sent_at);
        if record.ever_resent && min_rtt.is_none_or(|min| rtt < min) {
            // Too early for the retransmission: the original arrived.
            return;
        }
        self.advanced = true;
        self.rtt = rtt;
        let newest = Newest::of(record);
        if self.newest.is_none_or(|last| newest.is_after(&last)) {
            self.newest = Some(newest);
        }
    }

    /// Round trip of the last delivered segment.
    pub(super) fn rtt(&self) -> Duration {
        self.rtt
    }

    /// Notes a reported duplicate that no loss probe explains.
    pub(super) fn note_duplicate(&mut self) {
        self.dsack_seen = true;
    }

    /// Widens the reordering window by one step for each round trip with a duplicate (RFC 8985 §6.2
    /// step 4). `sent_after` is the number of segments that had been delivered when the newest
    /// segment that this ACK acknowledges was sent.
    fn adapt(&mut self, sent_after: u32, delivered: u32) {
        if (sent_after.wrapping_sub(self.widened_at) as i32) < 0 {
            self.dsack_seen = false;
        }
        if self.dsack_seen {
            self.steps = self.steps.saturating_add(1);
            self.dsack_seen = false;
            self.widened_at = delivered;
            self.persist = REO_WND_PERSIST;
        } else if self.persist == 0 {
            self.steps = 1;
        }
    }

    /// Keeps a widened window longer, after a recovery without reason.
    pub(super) fn persist_more(&mut self) {
        self.persist = (self.persist + 1).min(REO_WND_PERSIST);
    }

    /// Counts one more recovery with the widened window.
    pub(super) fn recovery_over(&mut self) {
        self.persist = self.persist.saturating_sub(1);
    }

    /// Repeats the search for losses although nothing was delivered.
    pub(super) fn look_again(&mut self) {
        self.advanced = true;
    }

    pub(super) fn forget_probe(&mut self) {
        self.probe_high = None;
    }

    /// True if the loss probe in flight is a retransmission.
    pub(super) fn probe_resent(&self) -> bool {
        self.probe_high.is_some() && self.probe_resent
    }

    /// `snd_nxt` when the loss probe in flight was sent.
    pub(super) fn probe_high(&self) -> Option<Seq> {
        self.probe_high
    }
}

impl Connection {
    /// How far delivery may be out of order, as a time (RFC 8985 §6.2 step 4).
    fn reordering_window(&self) -> Duration {
        let recovery = &self.recovery;
        let no_dupthresh = self.settings.recovery & NO_DUPTHRESH != 0;
        if recovery.reord_seen == 0 {
            let enough = self.send.board.totals().sacked_out >= recovery.reordering;
            if recovery.state >= CaState::Recovery || (enough && !no_dupthresh) {
                return Duration::ZERO;
            }
        }
        let srtt = self.rtt.srtt().unwrap_or(Duration::ZERO);
        let min = self.rtt.min().unwrap_or(srtt);
        (min / 4 * u32::from(recovery.rack.steps)).min(srtt)
    }

    pub(super) fn adapt_reordering_window(&mut self, sent_after: Option<u32>) {
        if let Some(sent_after) = sent_after
            && self.settings.recovery & STATIC_REO_WND == 0
        {
            self.recovery.rack.adapt(sent_after, self.recovery.delivered);
        }
    }

    fn detect_losses(&mut self, now: Instant) -> Option<Duration> {
        let newest = self.recovery.rack.newest?;
        let patience = self.recovery.rack.rtt + self.reordering_window();
        let each = &mut lost_record(&mut self.congestion, self.recovery.delivered, now);
        self.send.board.mark_late(newest, patience, now, each)
    }

    /// Marks late records as lost (RFC 8985 §6.2 step 5). Returns true if the reordering timer now
    /// runs.
    pub(super) fn mark_late(&mut self, now: Instant) -> bool {
        if !core::mem::take(&mut self.recovery.rack.advanced) {
            return false;
        }
        let wait = self.detect_losses(now);
        if let Some(wait) = wait {
            self.timers.arm_reorder(now + wait + TIMEOUT_MIN);
        }
        wait.is_some()
    }

    /// Handles the reordering timer (RFC 8985 §6.3).
    pub(super) fn on_reorder(&mut self, now: Instant) {
        let (in_flight, lost) = (self.send.board.in_flight(), self.send.board.lost());
        self.detect_losses(now);
        if self.send.board.in_flight() != in_flight {
            if self.recovery.state != CaState::Recovery {
                self.enter_recovery(false, now);
                let lost = self.send.board.lost().wrapping_sub(lost);
                self.congestion.on_late(lost, self.send.board.in_flight());
            }
            self.recovery.resend = Resend::Lost;
        }
        self.rearm_rto_from_head(now);
    }

    /// Schedules a loss probe (RFC 8985 §7.2). `advancing` means that the retransmission timer is
    /// due to be rearmed. Returns true if a probe is scheduled; its timer replaces the
    /// retransmission timer.
    pub(super) fn schedule_loss_probe(&mut self, advancing: bool, now: Instant) -> bool {
        let outstanding = self.send.board.totals().packets_out;
        let calm = matches!(self.recovery.state, CaState::Open | CaState::Cwr);
        let on = matches!(self.settings.early_retrans, 3 | 4);
        if !on || outstanding == 0 || !self.sack || !calm {
            return false;
        }
        let mut timeout = match self.rtt.srtt() {
            // The ACK of a lone segment may be delayed.
            Some(srtt) => 2 * srtt + if outstanding == 1 { self.rtt.least() } else { TIMEOUT_MIN },
            None => RTO_INITIAL,
        };
        let rto = if advancing { self.rtt.rto() } else { self.rto_from_head().since(now) };
        if !rto.is_zero() {
            timeout = timeout.min(rto);
        }
        self.timers.arm_loss_probe(now + timeout);
        true
    }

    /// Handles the timer of the loss probe (RFC 8985 §7.3).
    pub(super) fn on_loss_probe(&mut self, now: Instant) {
        self.rearm_rto_from_head(now);
        if self.recovery.rack.probe_high.is_some() || self.send.board.is_empty() {
            return;
        }
        let edge = self.send.una + self.send.wnd;
        let next = self.send.unsent().max(u32::from(self.send.fin_waits())).min(self.send.mss);
        let fits = next > 0 && (self.send.nxt + next).at_or_before(edge);
        self.send.loss_probe = Some(if fits { LossProbe::New } else { LossProbe::Tail });
    }

    /// Accounts for a loss probe that was sent, and restarts the retransmission timer. Returns
    /// false if no probe was due.
    pub(super) fn loss_probe_sent(&mut self, resent: bool, now: Instant) -> bool {
        let sent = self.send.loss_probe.take().is_some();
        if sent {
            self.recovery.rack.probe_high = Some(self.send.nxt);
            self.recovery.rack.probe_resent = resent;
            self.timers.arm_retransmit(now + self.rtt.rto());
        }
        sent
    }

    /// Decides what became of the loss probe (RFC 8985 §7.4). `dsack` means that it was reported as
    /// a duplicate, `quiet` that the ACK reports nothing else.
    pub(super) fn judge_loss_probe(&mut self, ack: Seq, dsack: bool, quiet: bool, now: Instant) {
        let Some(high) = self.recovery.rack.probe_high else { return };
        if ack.before(high) {
            return;
        }
        if !self.recovery.rack.probe_resent || dsack {
            self.recovery.rack.forget_probe();
        } else if ack.after(high) {
            // The probe repaired a loss: reduce the window as recovery would.
            self.begin_reduction(now);
            self.set_state(CaState::Cwr, now);
            self.end_reduction(now);
            self.keep_open(now);
        } else if quiet {
            self.recovery.rack.forget_probe();
        }
    }
}
