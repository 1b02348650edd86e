//! RACK-TLP (RFC 8985), as Linux has it: what was sent longer before something delivered than the
//! reordering window is lost; and when nothing more is heard, a probe of the tail asks.

use super::congestion::CaState;
use super::connection::Connection;
use super::recovery::Resend;
use super::rtt::RTO_INITIAL;
use super::scoreboard::{Newest, Record};
use super::seq::Seq;
use crate::time::{Duration, Instant};

/// Recoveries for which a widened reordering window stays (RFC 8985 §6.2 step 4).
const REO_WND_PERSIST: u8 = 16;
/// Least time that a timer is given beyond what is computed (Linux's TCP_TIMEOUT_MIN).
const TIMEOUT_MIN: Duration = Duration::from_millis(2);

/// `recovery` setting: the reordering window does not adapt.
const STATIC_REO_WND: u8 = 2;
/// `recovery` setting: no reordering window is waited for only because order is not disturbed.
const NO_DUPTHRESH: u8 = 4;

/// A loss probe that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LossProbe {
    /// A segment of new data, whatever the congestion window says.
    New,
    /// The last segment again.
    Tail,
}

/// What RACK and the loss probe remember.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rack {
    newest: Option<Newest>,
    /// Round trip of the last delivered segment.
    rtt: Duration,
    /// Something was delivered since losses were last looked for.
    advanced: bool,
    /// Widening of the reordering window, in quarters of the least round trip.
    steps: u8,
    persist: u8,
    /// A duplicate was reported that is not yet answered with a wider window.
    dsack_seen: bool,
    /// Segments delivered when the window was last widened.
    widened_at: u32,
    /// `snd_nxt` when a loss probe was sent, until it is known what became of it.
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
    /// `record` was delivered (RFC 8985 §6.2 steps 1 and 2).
    pub(super) fn deliver(&mut self, record: &Record, min_rtt: Option<Duration>, now: Instant) {
        let rtt = now.since(record.sent_at);
        if record.ever_resent && min_rtt.is_none_or(|min| rtt < min) {
            // Too soon: it was the original that arrived.
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

    /// A duplicate was reported that no loss probe explains.
    pub(super) fn note_duplicate(&mut self) {
        self.dsack_seen = true;
    }

    /// RFC 8985 §6.2 step 4: widens the reordering window by a step for each round trip with a
    /// duplicate. `sent_after` is what had been delivered when the newest segment that this ACK
    /// acknowledges was sent.
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

    /// A recovery without reason: the wide window stays longer.
    pub(super) fn persist_more(&mut self) {
        self.persist = (self.persist + 1).min(REO_WND_PERSIST);
    }

    /// One more recovery with the wide window.
    pub(super) fn recovery_over(&mut self) {
        self.persist = self.persist.saturating_sub(1);
    }

    /// Losses are looked for again although nothing was delivered.
    pub(super) fn look_again(&mut self) {
        self.advanced = true;
    }

    pub(super) fn forget_probe(&mut self) {
        self.probe_high = None;
    }

    /// A loss probe that was a retransmission is on the way.
    pub(super) fn probe_resent(&self) -> bool {
        self.probe_high.is_some() && self.probe_resent
    }

    /// `snd_nxt` when the loss probe on the way was sent.
    pub(super) fn probe_high(&self) -> Option<Seq> {
        self.probe_high
    }
}

impl Connection {
    /// RFC 8985 §6.2 step 4: how long order may be disturbed.
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

    fn find_late(&mut self, now: Instant) -> Option<Duration> {
        let newest = self.recovery.rack.newest?;
        let patience = self.recovery.rack.rtt + self.reordering_window();
        self.send.board.find_late(newest, patience, now)
    }

    /// RFC 8985 §6.2 step 5. True if the reordering timer now runs.
    pub(super) fn mark_late(&mut self, now: Instant) -> bool {
        if !core::mem::take(&mut self.recovery.rack.advanced) {
            return false;
        }
        let wait = self.find_late(now);
        if let Some(wait) = wait {
            self.timers.arm_reorder(now + wait + TIMEOUT_MIN);
        }
        wait.is_some()
    }

    /// The reordering timer fired (RFC 8985 §6.3).
    pub(super) fn on_reorder(&mut self, now: Instant) {
        let (in_flight, lost) = (self.send.board.in_flight(), self.send.board.lost());
        self.find_late(now);
        if self.send.board.in_flight() != in_flight {
            if self.recovery.state != CaState::Recovery {
                self.enter_recovery(false, now);
                let lost = self.send.board.lost().wrapping_sub(lost);
                self.reduce_window(1, lost, false);
            }
            self.recovery.resend = Resend::Lost;
        }
        self.rearm_rto_from_head(now);
    }

    /// RFC 8985 §7.2. `advancing` if the retransmission timer is to be set anew. True if a probe
    /// is scheduled; it takes the place of the timer.
    pub(super) fn schedule_loss_probe(&mut self, advancing: bool, now: Instant) -> bool {
        let outstanding = self.send.board.totals().packets_out;
        let calm = matches!(self.recovery.state, CaState::Open | CaState::Cwr);
        let on = matches!(self.settings.early_retrans, 3 | 4);
        if !on || outstanding == 0 || !self.sack || !calm {
            return false;
        }
        let mut timeout = match self.rtt.srtt() {
            // A lone segment may be acknowledged late.
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

    /// The probe timer fired (RFC 8985 §7.3).
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

    /// The probe that was due was sent; the retransmission timer begins anew. False if none was.
    pub(super) fn loss_probe_sent(&mut self, resent: bool, now: Instant) -> bool {
        let sent = self.send.loss_probe.take().is_some();
        if sent {
            self.recovery.rack.probe_high = Some(self.send.nxt);
            self.recovery.rack.probe_resent = resent;
            self.timers.arm_retransmit(now + self.rtt.rto());
        }
        sent
    }

    /// RFC 8985 §7.4: what became of the probe. `dsack` if it was reported as a duplicate,
    /// `quiet` if the ACK says nothing else.
    pub(super) fn judge_loss_probe(&mut self, ack: Seq, dsack: bool, quiet: bool, now: Instant) {
        let Some(high) = self.recovery.rack.probe_high else { return };
        if ack.before(high) {
            return;
        }
        if !self.recovery.rack.probe_resent || dsack {
            self.recovery.rack.forget_probe();
        } else if ack.after(high) {
            // The probe repaired a loss: the window goes down as if recovery had.
            self.begin_reduction();
            self.set_state(CaState::Cwr, now);
            self.end_reduction(now);
            self.keep_open(now);
        } else if quiet {
            self.recovery.rack.forget_probe();
        }
    }
}
