//! Timestamps of a connection (RFC 7323), and what is kept of them in TIME-WAIT.

use super::connection::Connection;
use super::seq::Seq;
use crate::time::Instant;

/// TCP timestamps (RFC 7323).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timestamps {
    pub(crate) enabled: bool,
    pub(super) offset: u32,
    pub(crate) recent: u32,
    pub(crate) recent_at: Instant,
}

impl Timestamps {
    /// Timestamp value at `now`: milliseconds plus the connection's own offset.
    pub(crate) fn value(&self, now: Instant) -> u32 {
        (now.millis() as u32).wrapping_add(self.offset)
    }
}

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
    /// Returns the state to keep in TIME-WAIT.
    pub(crate) fn time_wait_state(&self) -> TimeWaitState {
        let field = self.receive.window() >> self.receive.window_scale;
        TimeWaitState {
            snd_nxt: self.send.nxt,
            rcv_nxt: self.receive.nxt,
            window: u16::try_from(field).unwrap_or(u16::MAX),
            timestamps: self.timestamps,
        }
    }
}
