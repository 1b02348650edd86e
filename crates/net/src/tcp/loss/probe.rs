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

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn sent(fits: bool) -> TailProbe {
        let mut probe = TailProbe::default();
        probe.on_timer(|| fits);
        assert_eq!(probe.due(), Some(if fits { LossProbe::New } else { LossProbe::Tail }));
        assert!(probe.sent(!fits, Seq(1000)) && !probe.sent(!fits, Seq(1000)));
        probe
    }

    /// RFC 8985 §7.2: two round trips, longer for a segment whose ACK may be delayed, and never
    /// longer than the retransmission timeout.
    #[test]
    fn the_timeout_is_two_round_trips() {
        let mut rtt = RttEstimator::default();
        assert_eq!(TailProbe::timeout(false, 900 * MS, &rtt), 900 * MS);
        rtt.sample(100 * MS, Seq(0), Seq(1));
        assert_eq!(TailProbe::timeout(false, 900 * MS, &rtt), 202 * MS);
        assert_eq!(TailProbe::timeout(true, 900 * MS, &rtt), 400 * MS);
        assert_eq!(TailProbe::timeout(true, 300 * MS, &rtt), 300 * MS);
        assert_eq!(TailProbe::timeout(false, Duration::ZERO, &rtt), 202 * MS);
    }

    /// §7.3: one probe at a time.
    #[test]
    fn a_second_probe_waits_for_the_first() {
        let mut probe = sent(false);
        probe.on_timer(|| true);
        assert_eq!(probe.due(), None);
        probe.forget();
        probe.on_timer(|| true);
        assert_eq!(probe.due(), Some(LossProbe::New));
    }

    /// §7.4: a retransmission that was no duplicate repaired a loss.
    #[test]
    fn the_outcome_of_a_probe() {
        let probe = sent(false);
        assert_eq!(probe.on_ack(Seq(999), false, false), Fate::Open);
        assert_eq!(probe.on_ack(Seq(1000), false, false), Fate::Open);
        assert_eq!(probe.on_ack(Seq(1000), false, true), Fate::Needless);
        assert_eq!(probe.on_ack(Seq(1000), true, false), Fate::Needless);
        assert_eq!(probe.on_ack(Seq(1001), false, false), Fate::Repaired);
        assert_eq!(sent(true).on_ack(Seq(1001), false, false), Fate::Needless);
    }
}
