//! Tail loss probes (RFC 8985 §7): if no ACK arrives for two round trips, new data or the last
//! segment again provokes one.

use crate::tcp::rtt::{RTO_INITIAL, RttEstimator};
use crate::tcp::seq::Seq;
use crate::time::Duration;

/// Margin that is added to a computed timeout. RFC 8985 leaves it to the clock of the
/// implementation; `eor/no-coalesce-retrans.pkt` expects a retransmission after this time and a
/// quarter of the round trip.
pub(super) const TIMEOUT_MIN: Duration = Duration::from_millis(2);

/// A loss probe that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) enum LossProbe {
    /// A segment of new data, whatever the congestion window allows.
    New,
    /// The last segment, retransmitted.
    Tail,
}

/// What became of a loss probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// There is none, or its outcome is not known yet.
    Open,
    /// It repaired nothing.
    Needless,
    /// It repaired a loss.
    Repaired,
}

/// State of the loss probe. There is at most one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TailProbe {
    /// The probe that is due.
    due: Option<LossProbe>,
    /// The next number when a probe was sent, until its outcome is known (TLP.end_seq).
    end: Option<Seq>,
    /// The probe was a retransmission (TLP.is_retrans).
    resent: bool,
}

impl TailProbe {
    /// The probe timeout (§7.2). `alone` means that one segment is outstanding, whose ACK may be
    /// delayed. It does not exceed the retransmission timeout, `rto`.
    pub(super) fn timeout(alone: bool, rto: Duration, rtt: &RttEstimator) -> Duration {
        let timeout = match rtt.srtt() {
            Some(srtt) => 2 * srtt + if alone { rtt.least() } else { TIMEOUT_MIN },
            None => RTO_INITIAL,
        };
        if rto.is_zero() { timeout } else { timeout.min(rto) }
    }

    /// Makes a probe due (§7.3), unless one is in flight: of new data if it `fits` the windows.
    pub(super) fn on_timer(&mut self, fits: impl FnOnce() -> bool) {
        if self.end.is_none() {
            self.due = Some(if fits() { LossProbe::New } else { LossProbe::Tail });
        }
    }

    /// Accounts for the probe that is due: it was sent before `nxt`. Returns false if none was due.
    pub(super) fn sent(&mut self, resent: bool, nxt: Seq) -> bool {
        let sent = self.due.take().is_some();
        if sent {
            (self.end, self.resent) = (Some(nxt), resent);
        }
        sent
    }

    /// Decides what became of the probe (§7.4) with an ACK of everything before `ack`. `duplicate`
    /// means that it was reported as one, `quiet` that the ACK reports nothing else.
    pub(super) fn on_ack(&self, ack: Seq, duplicate: bool, quiet: bool) -> Fate {
        match self.end {
            Some(end) if ack.at_or_after(end) => {
                if !self.resent || duplicate {
                    Fate::Needless
                } else if ack.after(end) {
                    Fate::Repaired
                } else if quiet {
                    Fate::Needless
                } else {
                    Fate::Open
                }
            }
            _ => Fate::Open,
        }
    }

    /// Cancels the probe that is due.
    pub(super) fn cancel(&mut self) {
        self.due = None;
    }

    /// Forgets the probe in flight.
    pub(super) fn forget(&mut self) {
        self.end = None;
    }

    /// The probe that is due.
    pub(super) fn due(&self) -> Option<LossProbe> {
        self.due
    }

    /// True if the probe in flight is a retransmission.
    pub(super) fn is_resent(&self) -> bool {
        self.end.is_some() && self.resent
    }

    /// True if one duplicate that ends at `end` may be the probe.
    pub(super) fn ends_at(&self, end: Seq) -> bool {
        self.end == Some(end)
    }
}
