//! Time that a sender spends under each limit: `busy_time`, `rwnd_limited` and `sndbuf_limited` of
//! `TCP_INFO`.

use crate::time::{Duration, Instant};

/// What keeps a sender from sending more; later ones take precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) enum Limit {
    /// Nothing to send and nothing outstanding.
    #[default]
    Idle,
    /// Data is on the way or waits for the congestion window.
    Busy,
    /// The peer's window is the limit.
    PeerWindow,
    /// The send buffer is the limit.
    SendBuffer,
}

/// A stopwatch for each limit; one of them runs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chrono {
    current: Limit,
    since: Instant,
    spent: [Duration; 3],
}

impl Chrono {
    /// Starts `limit`, unless a limit that takes precedence is running.
    pub(super) fn start(&mut self, limit: Limit, now: Instant) {
        if limit > self.current {
            self.set(limit, now);
        }
    }

    /// Stops `limit`. `empty` means that nothing is queued or outstanding.
    pub(super) fn stop(&mut self, limit: Limit, empty: bool, now: Instant) {
        if empty {
            self.set(Limit::Idle, now);
        } else if self.current == limit {
            self.set(Limit::Busy, now);
        }
    }

    /// Times spent: busy in total, limited by the peer's window, limited by the send buffer.
    pub(super) fn times(&self, now: Instant) -> (Duration, Duration, Duration) {
        let mut copy = *self;
        copy.set(Limit::Idle, now);
        let [busy, window, buffer] = copy.spent;
        (busy + window + buffer, window, buffer)
    }

    fn set(&mut self, limit: Limit, now: Instant) {
        if limit == self.current {
            return;
        }
        if let Some(index) = (self.current as usize).checked_sub(1) {
            self.spent[index] += now.since(self.since);
        }
        (self.current, self.since) = (limit, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_limit_counts() {
        let at = |millis: u64| Instant::START + Duration::from_millis(millis);
        let mut chrono = Chrono::default();
        chrono.start(Limit::Busy, at(10));
        chrono.start(Limit::PeerWindow, at(20));
        chrono.start(Limit::Busy, at(25));
        chrono.stop(Limit::SendBuffer, false, at(26));
        chrono.stop(Limit::PeerWindow, false, at(50));
        chrono.start(Limit::SendBuffer, at(60));
        chrono.stop(Limit::SendBuffer, false, at(61));
        let millis = Duration::from_millis;
        assert_eq!(chrono.times(at(70)), (millis(60), millis(30), millis(1)));
        chrono.stop(Limit::Busy, true, at(80));
        assert_eq!(chrono.times(at(1000)).0, millis(70));
    }
}
