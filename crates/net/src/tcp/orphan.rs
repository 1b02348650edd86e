//! A connection that nobody owns any more: how it ends by itself, and how long its last state,
//! FIN-WAIT-2, may last (Linux's tcp_close and tcp_rcv_state_process).

use super::connection::Connection;
use super::input::Verdict;
use super::state::{ConnectionError, State};
use crate::time::{Duration, Instant};

/// How long a closed connection that nobody owns waits for the peer's FIN (`TCP_LINGER2`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinWait {
    /// So long, or three and a half timeouts if that is more.
    For(Duration),
    /// Not at all: the peer gets a reset as soon as it has acknowledged our FIN.
    Never,
}

impl Connection {
    /// The owner is gone: the connection ends by itself. Unread data means a reset
    /// (RFC 2525 §2.17), an open direction is closed.
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

    /// True if nobody owns the connection and it is not over: what it holds, it holds for the
    /// peer's sake.
    pub fn is_orphan(&self) -> bool {
        !self.owned && !matches!(self.state, State::Closed | State::TimeWait)
    }

    /// True if the peer has not acknowledged all that was given to it to send: bytes, or the end.
    pub fn is_sending(&self) -> bool {
        let ends = matches!(self.state, State::FinWait1 | State::Closing | State::LastAck);
        !matches!(self.state, State::Closed | State::TimeWait)
            && (ends || self.unacknowledged() > 0)
    }

    /// Longest time in FIN-WAIT-2 without an owner (`TCP_LINGER2`).
    pub fn set_fin_wait(&mut self, limit: FinWait) {
        self.settings.fin_wait = limit;
    }

    /// The peer has acknowledged our FIN.
    pub(super) fn enter_fin_wait_2(&mut self, now: Instant) {
        self.state = State::FinWait2;
        if !self.owned
            && let FinWait::For(time) = self.settings.fin_wait
        {
            self.limit_fin_wait(time, now);
        }
    }

    /// Linux's tcp_fin_time.
    fn limit_fin_wait(&mut self, time: Duration, now: Instant) {
        let least = self.rtt.rto() * FIN_WAIT_HALF_TIMEOUTS / 2;
        self.timers.fin_wait = Some(now + time.max(least));
    }

    /// After an ACK: a connection that is not to wait for the peer's FIN is over when its own has
    /// arrived, and the ACK is answered with a reset.
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
