//! The deadlines of a connection, and who is asked when one passes: the receiver (a delayed ACK),
//! the sender (retransmission, loss probes, reordering, zero-window probes, pacing), the handshake
//! (a SYN), keepalive, and the connection itself (FIN-WAIT-2 without an owner).

use super::{Connection, ConnectionError, State, Turn};
use crate::tcp::keepalive::Keep;
use crate::tcp::sender::Purpose;
use crate::time::{Duration, Instant, earliest};

impl Connection {
    /// When [`Connection::on_deadline`] must be called next.
    pub fn deadline(&self) -> Option<Instant> {
        let [timer, pacing] = self.send.deadlines();
        let (acks, keepalive) = (self.receive.deadline(), self.keepalive.deadline());
        earliest([timer, pacing, acks, keepalive, self.fin_wait])
    }

    /// Runs every timer that is due.
    pub fn on_deadline(&mut self, now: Instant) {
        self.receive.on_timer(self.send.rtt().rto(), now);
        if let Some(purpose) = self.send.take_due(now) {
            self.on_sender_timer(purpose, now);
        }
        if self.keepalive.take_due(now) {
            self.on_keepalive(now);
        }
        if self.fin_wait.take_if(|at| *at <= now).is_some() {
            self.finish(None);
        }
    }

    fn on_sender_timer(&mut self, purpose: Purpose, now: Instant) {
        if purpose == Purpose::Retransmit && self.state.is_opening() {
            self.on_syn_timeout(now);
            return;
        }
        let fired = self.send.on_timer(purpose, self.receive.last_at(), turn!(self, now));
        if let Some(timeouts) = fired.timeouts {
            self.handshake.fast_open_mut().on_timeout(timeouts, fired.over);
        }
        if fired.over {
            self.finish(Some(ConnectionError::TimedOut));
        }
    }

    fn on_keepalive(&mut self, now: Instant) {
        let open = matches!(
            self.state,
            State::Established | State::CloseWait | State::FinWait1 | State::FinWait2
        );
        if !open {
            return;
        }
        let busy = self.send.flight() > 0 || self.send.has_unsent_numbers();
        let (last, limit) = (self.receive.last_at(), self.settings.user_timeout);
        match self.keepalive.on_timer(busy, last, limit, now) {
            Keep::Waiting => {}
            Keep::Probe => self.send.owe_probe(),
            Keep::Over => {
                self.finish(Some(ConnectionError::TimedOut));
                self.reset_due = true;
            }
        }
    }

    /// Sets the longest time that data may stay unacknowledged before the connection fails
    /// (`TCP_USER_TIMEOUT`, RFC 5482); `None` for the time that the retries allow.
    pub fn set_user_timeout(&mut self, limit: Option<Duration>) {
        self.settings.user_timeout = limit;
    }

    /// Sets the idle time before the first keepalive probe (`TCP_KEEPIDLE`). It also applies to an
    /// idle period that has begun.
    pub fn set_keepalive_idle(&mut self, idle: Duration, now: Instant) {
        self.keepalive.set_idle(idle, self.receive.last_at(), now);
    }

    forward! { keepalive:
        /// Switches keepalive probes of an idle peer on or off (`SO_KEEPALIVE`).
        fn set_keepalive(&mut self, on: bool, now: Instant);

        /// Sets the time between keepalive probes (`TCP_KEEPINTVL`), from the next probe on.
        fn set_keepalive_interval(&mut self, interval: Duration);

        /// Sets how many unanswered keepalive probes end the connection (`TCP_KEEPCNT`).
        fn set_keepalive_probes(&mut self, count: u8);
    }
}
