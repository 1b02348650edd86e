//! A connection without an owner: how it ends by itself, and how long it stays in FIN-WAIT-2. It
//! behaves as on Linux.

use super::connection::Connection;
use super::input::Verdict;
use super::state::{ConnectionError, State};
use crate::time::{Duration, Instant};

/// How long a connection without an owner waits in FIN-WAIT-2 for the peer's FIN (`TCP_LINGER2`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinWait {
    /// This long, or three and a half retransmission timeouts if that is longer.
    For(Duration),
    /// Not at all: the peer gets a reset as soon as it acknowledges our FIN.
    Never,
}

impl Connection {
    /// Releases the connection from its owner; it then ends by itself. It is reset if it has unread
    /// data (RFC 2525 §2.17) or is still opening. Otherwise its sending direction is closed.
    pub fn disown(&mut self, now: Instant) {
        self.owned = false;
        if self.state == State::Closed || self.state == State::TimeWait {
            return;
        }
        let opening = self.state.is_opening() && !self.fast_open.accepted;
        if opening || !self.receive.queue.is_empty() {
            self.abort();
            return;
        }
        self.close_send();
        if self.state != State::FinWait2 {
            return;
        }
        match self.settings.fin_wait {
            FinWait::Never => self.abort(),
            FinWait::For(time) => self.limit_fin_wait(time, now),
        }
    }

    /// True until [`Connection::disown`].
    pub fn is_owned(&self) -> bool {
        self.owned
    }

    /// True if the connection has no owner and is not over. What it holds serves only the peer.
    pub fn is_orphan(&self) -> bool {
        !self.owned && !matches!(self.state, State::Closed | State::TimeWait)
    }

    /// True if queued bytes or the FIN are not acknowledged yet.
    pub fn is_sending(&self) -> bool {
        let ends = matches!(self.state, State::FinWait1 | State::Closing | State::LastAck);
        !matches!(self.state, State::Closed | State::TimeWait)
            && (ends || self.unacknowledged() > 0)
    }

    /// Sets the longest time in FIN-WAIT-2 without an owner (`TCP_LINGER2`).
    pub fn set_fin_wait(&mut self, limit: FinWait) {
        self.settings.fin_wait = limit;
    }

    /// Enters FIN-WAIT-2: the peer has acknowledged our FIN.
    pub(super) fn enter_fin_wait_2(&mut self, now: Instant) {
        self.state = State::FinWait2;
        if !self.owned
            && let FinWait::For(time) = self.settings.fin_wait
        {
            self.limit_fin_wait(time, now);
        }
    }

    /// Limits FIN-WAIT-2 to `time`, but to no less than three and a half retransmission timeouts.
    fn limit_fin_wait(&mut self, time: Duration, now: Instant) {
        let least = self.rtt.rto() * FIN_WAIT_HALF_TIMEOUTS / 2;
        self.timers.fin_wait = Some(now + time.max(least));
    }

    /// Ends a connection that does not wait for the peer's FIN once its own FIN is acknowledged.
    /// The ACK is answered with a reset.
    pub(super) fn end_without_fin_wait(&mut self) -> Verdict {
        let waits = self.owned || self.settings.fin_wait != FinWait::Never;
        if waits || self.state != State::FinWait2 {
            return Verdict::Done;
        }
        self.finish(Some(ConnectionError::Aborted));
        Verdict::Reset
    }
}

/// Least time in FIN-WAIT-2, in halves of the retransmission timeout.
const FIN_WAIT_HALF_TIMEOUTS: u32 = 7;
