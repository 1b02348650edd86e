//! F-RTO (RFC 5682): after a timeout, the ACKs of data that was not retransmitted show whether the
//! timeout was spurious.

use crate::tcp::seq::Seq;

/// What an ACK after a timeout shows; `advanced`, `repeated` and `original` say what it reports.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evidence {
    /// Everything before this is acknowledged.
    pub(super) una: Seq,
    /// The next number to be sent.
    pub(super) nxt: Seq,
    /// New data is acknowledged.
    pub(super) advanced: bool,
    /// A duplicate ACK, or SACK of new data.
    pub(super) repeated: bool,
    /// Data that was never retransmitted has arrived.
    pub(super) original: bool,
}

/// What to do after an ACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Retransmit what is lost.
    Resend,
    /// Step 2b: send new data, if there is some.
    SendNew,
    /// Step 3b: the timeout was spurious.
    Spurious,
}

/// State of the detection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Frto {
    active: bool,
}

impl Frto {
    /// Step 1: the retransmission timer fired. The detection begins if it is `enabled`.
    pub(super) fn on_timeout(&mut self, enabled: bool) {
        self.active = enabled;
    }

    /// Steps 2 and 3, with the SACK variant (§3). `recover` is the next number at the timeout, or
    /// at step 2b.
    pub(super) fn on_ack(&mut self, seen: Evidence, recover: Seq) -> Step {
        if !self.active {
            return Step::Resend;
        }
        if seen.original {
            return Step::Spurious;
        }
        if seen.nxt.after(recover) {
            // Step 3a: a duplicate ACK for the new data means that the loss was real.
            self.active &= !seen.repeated;
        } else if seen.advanced && seen.una.before(recover) {
            return Step::SendNew;
        }
        Step::Resend
    }

    /// Ends the detection: retransmission continues.
    pub(super) fn stop(&mut self) {
        self.active = false;
    }
}
