//! Handshakes that a listener defers until data arrives (`TCP_DEFER_ACCEPT`), as Linux does.
//!
//! Until a set number of SYN-ACK timeouts is over, an ACK without data does not complete the
//! handshake. The peer considers the connection open, so the SYN-ACK is not retransmitted before
//! the last of these timeouts. Then it is sent once more, and the peer's reply completes the
//! handshake. Without a reply the request continues like any other.

use super::connection::{Connection, Segment};
use super::state::State;
use crate::wire::tcp::Flags;

/// State of a deferred handshake.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Deferral {
    /// SYN-ACK timeouts during which an ACK without data does not count.
    timeouts: u8,
    /// An ACK without data arrived during them.
    acked: bool,
    /// Timeouts after which the SYN-ACK was not retransmitted.
    pub(super) silent: u8,
}

impl Connection {
    /// Defers a request for `timeouts` timeouts of its SYN-ACK. On an active open, a value above
    /// zero delays the third segment of the handshake.
    pub fn defer_accept(&mut self, timeouts: u8) {
        self.deferral.timeouts = timeouts;
    }

    /// True if the segment would complete the handshake, but has no data and arrives before the
    /// deferral is over.
    pub(crate) fn defers(&self, segment: &Segment) -> bool {
        self.timers.unanswered < self.deferral.timeouts
            && self.request
            && self.state == State::SynReceived
            && segment.has(Flags::ACK)
            && !segment.has(Flags::RST | Flags::SYN)
            && segment.ack() == self.send.iss + 1
            && segment.end() == self.receive.irs + 1
    }

    /// Notes that the peer acknowledged the SYN-ACK during the deferral.
    pub(crate) fn note_deferred(&mut self) {
        self.deferral.acked = true;
    }

    /// True if the third segment of the handshake waits for data.
    pub(super) fn defers_third_segment(&self) -> bool {
        self.deferral.timeouts > 0
    }

    /// Handles a timeout of the SYN-ACK, which is retransmitted at most `most` times. Returns
    /// whether the request is over, and whether the SYN-ACK is sent again.
    pub(super) fn answer_timed_out(&mut self, most: u8) -> (bool, bool) {
        let Deferral { timeouts, acked, .. } = self.deferral;
        let count = self.timers.unanswered;
        if timeouts == 0 || !self.request {
            return (count >= most, true);
        }
        let over = count >= most && (!acked || count >= timeouts);
        let again = !acked || count >= timeouts - 1;
        self.deferral.silent += u8::from(!over && !again);
        (over, again)
    }

    /// True if our SYN or SYN-ACK was retransmitted.
    pub(super) fn syn_sent_again(&self) -> bool {
        self.timers.unanswered > self.deferral.silent
    }
}
