//! Timers of a connection: when something is due, and what happens then.

use super::connection::Connection;
use super::sides::{AckOwed, Recovery};
use super::state::{ConnectionError, State};
use crate::time::Instant;

/// Deadlines; `None` when a timer is off.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timers {
    /// Retransmission (RFC 6298), of data or of a SYN.
    pub(super) retransmit: Option<Instant>,
    /// Zero-window probe.
    pub(super) persist: Option<Instant>,
    /// Delayed ACK.
    pub(super) delayed_ack: Option<Instant>,
    /// Next keepalive probe.
    pub(super) keepalive: Option<Instant>,
    /// End of FIN-WAIT-2 without an owner.
    pub(super) fin_wait: Option<Instant>,
    /// Retransmissions or probes in a row without an answer.
    pub(super) unanswered: u8,
    /// Keepalive probes in a row without an answer.
    pub(super) keepalive_unanswered: u8,
}

impl Connection {
    /// When [`Connection::on_deadline`] wants to be called next.
    pub fn deadline(&self) -> Option<Instant> {
        let timers = &self.timers;
        [timers.retransmit, timers.persist, timers.delayed_ack, timers.keepalive, timers.fin_wait]
            .into_iter()
            .flatten()
            .min()
    }

    /// Acts on every timer that is due.
    pub fn on_deadline(&mut self, now: Instant) {
        let due = |timer: &mut Option<Instant>| timer.take_if(|at| *at <= now).is_some();
        if due(&mut self.timers.delayed_ack) && self.receive.ack_owed != AckOwed::No {
            self.receive.ack_owed = AckOwed::Now;
        }
        if due(&mut self.timers.retransmit) {
            self.on_retransmit(now);
        }
        if due(&mut self.timers.persist) {
            self.on_persist(now);
        }
        if due(&mut self.timers.keepalive) {
            self.on_keepalive(now);
        }
        if due(&mut self.timers.fin_wait) {
            self.finish(None);
        }
    }

    fn on_retransmit(&mut self, now: Instant) {
        let opening = self.state.is_opening();
        let limit = if opening { self.settings.syn_retries } else { self.settings.retries };
        if self.timers.unanswered >= limit {
            self.finish(Some(ConnectionError::TimedOut));
            return;
        }
        self.timers.unanswered += 1;
        self.rtt.back_off();
        if opening {
            self.send.syn_due = true;
        } else {
            let first = !self.send.recovery.is_some_and(|recovery| recovery.timeout);
            self.congestion.on_timeout(self.send.flight(), first);
            self.send.board.lose_all();
            self.send.duplicate_acks = 0;
            self.send.recovery = Some(Recovery { point: self.send.nxt, timeout: true });
        }
        // Armed again here too, in case no packet can be had to send now.
        self.timers.retransmit = Some(now + self.rtt.rto());
    }

    fn on_persist(&mut self, now: Instant) {
        if self.timers.unanswered >= self.settings.retries {
            self.finish(Some(ConnectionError::TimedOut));
            return;
        }
        self.timers.unanswered += 1;
        self.rtt.back_off();
        if self.send.wnd > 0 {
            self.send.partial_allowed = true;
        } else {
            self.send.probe_due = true;
        }
        self.timers.persist = Some(now + self.rtt.rto());
    }

    fn on_keepalive(&mut self, now: Instant) {
        let open = matches!(
            self.state,
            State::Established | State::CloseWait | State::FinWait1 | State::FinWait2
        );
        if !open {
            return;
        }
        if self.send.flight() > 0 || self.send.unsent() > 0 {
            // Data is on its way: the other timers watch the peer.
            self.timers.keepalive = Some(now + self.settings.keepalive_idle);
            return;
        }
        let idle_until = self.receive.last_at + self.settings.keepalive_idle;
        if idle_until > now {
            self.timers.keepalive_unanswered = 0;
            self.timers.keepalive = Some(idle_until);
            return;
        }
        if self.timers.keepalive_unanswered >= self.settings.keepalive_probes {
            self.finish(Some(ConnectionError::TimedOut));
            self.reset_due = true;
            return;
        }
        self.timers.keepalive_unanswered += 1;
        self.send.probe_due = true;
        self.timers.keepalive = Some(now + self.settings.keepalive_interval);
    }
}
