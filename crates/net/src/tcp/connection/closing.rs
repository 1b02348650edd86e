//! How a connection ends: closed by both sides (RFC 9293 §3.6), aborted (§3.10.5), failed, or
//! without an owner, when it ends by itself.

use super::{Connection, ConnectionError, Events, State};
use crate::tcp::receiver::AckOwed;
use crate::tcp::segment::Verdict;
use crate::tcp::seq::Seq;
use crate::tcp::settings::FinWait;
use crate::tcp::timestamps::Timestamps;
use crate::time::{Duration, Instant};

/// Least time in FIN-WAIT-2, in halves of the retransmission timeout.
const FIN_WAIT_HALF_TIMEOUTS: u32 = 7;

/// State kept of a connection in TIME-WAIT.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeWaitState {
    pub(crate) snd_nxt: Seq,
    pub(crate) rcv_nxt: Seq,
    /// Window field of the header, scaled.
    pub(crate) window: u16,
    pub(crate) timestamps: Timestamps,
}

impl Connection {
    /// Closes the sending direction: a FIN follows the queued data.
    pub fn close_send(&mut self) {
        if !self.send.close() {
            return;
        }
        self.state = match self.state {
            State::Established => State::FinWait1,
            State::CloseWait => State::LastAck,
            State::SynSent => {
                self.finish(None);
                return;
            }
            other => other,
        };
    }

    /// Aborts the connection with a reset.
    pub fn abort(&mut self) {
        if self.state == State::Closed || self.state == State::TimeWait {
            return;
        }
        let answered = !(self.handshake.is_held() || self.state == State::SynSent);
        // Send the handshake's last ACK before the reset: without it a listening peer never learns
        // of the connection.
        let third_due = self.receive.ack_owed() == AckOwed::Now
            && !self.handshake.is_passive()
            && self.receive.nxt() == self.receive.irs() + 1;
        self.finish(Some(ConnectionError::Aborted));
        self.reset_due = answered;
        if third_due && answered {
            self.receive.acknowledge();
        }
    }

    /// Ends a half-open connection to make room for another. It sends no reset, as the SYN may be
    /// spoofed.
    pub fn give_up(&mut self) {
        self.finish(Some(ConnectionError::TimedOut));
    }

    /// Releases the connection from its owner; it then ends by itself. It is reset if it has unread
    /// data (RFC 2525 §2.17) or is still opening. Otherwise its sending direction is closed.
    pub fn disown(&mut self, now: Instant) {
        self.owned = false;
        if self.state == State::Closed || self.state == State::TimeWait {
            return;
        }
        let opening = self.state.is_opening() && !self.handshake.fast_open().is_accepted();
        if opening || !self.receive.queue().is_empty() {
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

    /// True if nothing is left to send and the connection has no owner.
    pub fn is_over(&self) -> bool {
        !self.owned
            && !self.reset_due
            && match self.state {
                State::Closed => true,
                State::TimeWait => self.receive.ack_owed() == AckOwed::No,
                _ => false,
            }
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
        let least = self.send.rtt().rto() * FIN_WAIT_HALF_TIMEOUTS / 2;
        self.fin_wait = Some(now + time.max(least));
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

    /// Enters TIME-WAIT: both sides have closed.
    pub(super) fn enter_time_wait(&mut self) {
        self.conclude(State::TimeWait);
    }

    /// Enters CLOSED and drops the data queued for the peer. Received data stays readable.
    pub(super) fn finish(&mut self, error: Option<ConnectionError>) {
        self.conclude(State::Closed);
        self.error = self.error.or(error);
        self.handshake.end();
        self.send.finish();
    }

    fn conclude(&mut self, state: State) {
        if self.state != State::Closed {
            let data = self.counters.data_segs_in > 0;
            self.handshake.fast_open_mut().on_end(data, self.receive.has_lone_fin_ahead());
        }
        self.state = state;
        self.receive.finish(state == State::Closed);
        self.send.stop();
        self.keepalive.stop();
        self.fin_wait = None;
        self.note(Events::CLOSED);
    }

    /// Returns the state to keep in TIME-WAIT.
    pub(crate) fn time_wait_state(&self) -> TimeWaitState {
        let field = self.receive.window_left() >> self.receive.scale();
        TimeWaitState {
            snd_nxt: self.send.nxt(),
            rcv_nxt: self.receive.nxt(),
            window: u16::try_from(field).unwrap_or(u16::MAX),
            timestamps: self.timestamps,
        }
    }
}
