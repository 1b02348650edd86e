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

#[cfg(test)]
mod tests {
    use super::*;

    const RECOVER: Seq = Seq(1000);

    fn seen(una: u32, nxt: u32) -> Evidence {
        let advanced = una > 0;
        Evidence { una: Seq(una), nxt: Seq(nxt), advanced, repeated: false, original: false }
    }

    fn active() -> Frto {
        let mut frto = Frto::default();
        frto.on_timeout(true);
        frto
    }

    /// RFC 5682 §2.1 step 2b: the first ACK that advances, but not beyond `recover`, lets new data
    /// out. Step 3b: data that was never retransmitted arrives.
    #[test]
    fn two_advancing_acks_mean_that_the_timeout_was_spurious() {
        let mut frto = active();
        assert_eq!(frto.on_ack(seen(100, 1000), RECOVER), Step::SendNew);
        let original = Evidence { original: true, ..seen(200, 1200) };
        assert_eq!(frto.on_ack(original, RECOVER), Step::Spurious);
    }

    /// Step 3a: a duplicate ACK for the new data means that the loss was real.
    #[test]
    fn a_duplicate_ends_the_detection() {
        let mut frto = active();
        let repeated = Evidence { repeated: true, ..seen(0, 1200) };
        assert_eq!(frto.on_ack(repeated, RECOVER), Step::Resend);
        let original = Evidence { original: true, ..seen(300, 1200) };
        assert_eq!(frto.on_ack(original, RECOVER), Step::Resend);
    }

    /// Step 2a: an ACK that does not advance, or one of everything, proves nothing.
    #[test]
    fn other_acks_retransmit() {
        assert_eq!(active().on_ack(seen(0, 1000), RECOVER), Step::Resend);
        assert_eq!(active().on_ack(seen(1000, 1000), RECOVER), Step::Resend);
        assert_eq!(Frto::default().on_ack(seen(100, 1000), RECOVER), Step::Resend);
    }
}
