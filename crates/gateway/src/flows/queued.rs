//! Measures how long bytes wait in a flow's queue. It follows one byte from arrival to departure,
//! and then the last byte in the queue, so no state is kept per packet.

use towpath_net::time::{Duration, Instant};

/// Memory that flows have lent: frames of the pool, read from one side and not yet taken by the
/// other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LentNow {
    /// Bytes for the program that it has not acknowledged, and bytes for hosts that they have not
    /// taken.
    pub bytes: u64,
    /// A lower bound of how long the oldest byte has waited.
    pub oldest: Option<Duration>,
}

impl LentNow {
    /// Adds a queue that holds `len` bytes.
    pub(super) fn add(&mut self, queue: &Queued, len: usize, now: Instant) {
        self.bytes += len as u64;
        self.oldest = self.oldest.max(queue.since(len).map(|since| now.since(since)));
    }
}

/// Follows the bytes of one queue.
#[derive(Debug, Default)]
pub(super) struct Queued {
    /// Bytes that arrived so far.
    came: u64,
    /// Length of the queue at the last call.
    len: usize,
    /// The followed byte, as the number of bytes that had arrived with it, and its time.
    followed: Option<(u64, Instant)>,
}

impl Queued {
    /// `count` bytes arrived; the queue now holds `len`.
    pub(super) fn came(&mut self, count: usize, len: usize, now: Instant) {
        self.came += count as u64;
        self.len = len;
        self.followed.take_if(|(at, _)| *at + len as u64 <= self.came);
        if len > 0 {
            self.followed.get_or_insert((self.came, now));
        }
    }

    /// The queue held `before` bytes, including new ones, and now holds `len`.
    pub(super) fn went(&mut self, before: usize, len: usize, now: Instant) {
        self.came(before.saturating_sub(self.len), before, now);
        self.came(0, len, now);
    }

    /// Returns the number of bytes that have arrived so far.
    pub(super) fn total(&self) -> u64 {
        self.came
    }

    /// Returns since when a byte has waited, in a queue that now holds `len` bytes.
    fn since(&self, len: usize) -> Option<Instant> {
        let (at, since) = self.followed?;
        (at + len as u64 > self.came).then_some(since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::START + Duration::from_millis(millis)
    }

    fn waited(queue: &Queued, len: usize, now: Instant) -> LentNow {
        let mut lent = LentNow::default();
        lent.add(queue, len, now);
        lent
    }

    /// Goal: the age of a queue that stands still counts from the first byte that stays. A queue
    /// that moves is as old as the time to pass it, though it is never empty.
    #[test]
    fn a_waiting_entry_ages() {
        let mut queue = Queued::default();
        assert_eq!(waited(&queue, 0, at(5)), LentNow::default());
        queue.came(100, 100, at(10));
        queue.came(50, 150, at(20));
        let oldest = |millis| Some(Duration::from_millis(millis));
        assert_eq!(waited(&queue, 150, at(30)), LentNow { bytes: 150, oldest: oldest(20) });
        // The followed byte has gone; the second call's last byte is followed from now on.
        assert_eq!(waited(&queue, 50, at(30)), LentNow { bytes: 50, oldest: None });
        queue.came(0, 50, at(30));
        assert_eq!(waited(&queue, 50, at(35)).oldest, oldest(5));
        for millis in 40..1000 {
            queue.came(50, 50, at(millis));
        }
        assert_eq!(waited(&queue, 50, at(1000)).oldest, oldest(1));
        queue.came(0, 0, at(1001));
        assert_eq!(waited(&queue, 0, at(2000)), LentNow::default());

        // In the other direction, bytes arrive between two calls.
        queue.went(300, 300, at(2000));
        queue.went(700, 600, at(2100));
        assert_eq!(waited(&queue, 600, at(2200)).oldest, oldest(200));
        queue.went(600, 0, at(2300));
        assert_eq!(waited(&queue, 0, at(2400)), LentNow::default());
    }
}
