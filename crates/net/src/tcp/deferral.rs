//! Handshakes that a listener puts off until there is data (`TCP_DEFER_ACCEPT`), as Linux does.
//!
//! While so many timeouts of the answer to the SYN are not over, an ACK without data completes
//! nothing. The peer takes the connection for open, so the answer is not sent again before the
//! last of these timeouts: then once more, and what the peer says to that completes the handshake.
//! If it says nothing the request goes on like any other.

use super::connection::{Connection, Segment};
use super::state::State;
use crate::wire::tcp::Flags;

/// What a connection knows of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Deferral {
    /// Timeouts of the answer for which an ACK without data does not count.
    timeouts: u8,
    /// Such an ACK came.
    acked: bool,
    /// Timeouts after which the answer was not sent again.
    pub(super) silent: u8,
}

impl Connection {
    /// Puts a request off for so many timeouts of its answer; a connection of ours puts off the
    /// third segment of its handshake, if there are any.
    pub fn defer_accept(&mut self, timeouts: u8) {
        self.deferral.timeouts = timeouts;
    }

    /// True if the segment would complete the handshake, but has no data and came too early
    /// (Linux's tcp_check_req).
    pub(crate) fn defers(&self, segment: &Segment) -> bool {
        self.timers.unanswered < self.deferral.timeouts
            && self.request
            && self.state == State::SynReceived
            && segment.has(Flags::ACK)
            && !segment.has(Flags::RST | Flags::SYN)
            && segment.ack() == self.send.iss + 1
            && segment.end() == self.receive.irs + 1
    }

    /// The peer has acknowledged our answer to its SYN, and it does not count yet.
    pub(crate) fn note_deferred(&mut self) {
        self.deferral.acked = true;
    }

    /// A third segment with data may be near.
    pub(super) fn defers_third_segment(&self) -> bool {
        self.deferral.timeouts > 0
    }

    /// A timeout of the answer to a SYN, after `most` of which it is not sent again: whether the
    /// request is over, and whether the answer is sent again (Linux's syn_ack_recalc).
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

    /// Our SYN or the answer to one was sent more than once.
    pub(super) fn syn_sent_again(&self) -> bool {
        self.timers.unanswered > self.deferral.silent
    }
}
