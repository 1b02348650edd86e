//! For how long bytes wait in a flow's queue: one byte is followed from its coming to its going,
//! then the last of those that are there, so that nothing is kept for each packet.

use towpath_net::time::{Duration, Instant};

/// What flows have lent at a moment: frames of the pool, read from one side and not taken by the
/// other yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LentNow {
    /// Bytes for the program that it has not acknowledged, and for hosts that have not taken them.
    pub bytes: u64,
    /// How long the oldest of them have waited, at least.
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
    /// Bytes that came so far.
    came: u64,
    /// How many were there when last looked at.
    len: usize,
    /// A byte, by how many had come with it, and when that was.
    followed: Option<(u64, Instant)>,
}

impl Queued {
    /// `count` more bytes came, and `len` are there.
    pub(super) fn came(&mut self, count: usize, len: usize, now: Instant) {
        self.came += count as u64;
        self.len = len;
        self.followed.take_if(|(at, _)| *at + len as u64 <= self.came);
        if len > 0 {
            self.followed.get_or_insert((self.came, now));
        }
    }

    /// `before` bytes were there, new ones among them, and `len` are left.
    pub(super) fn went(&mut self, before: usize, len: usize, now: Instant) {
        self.came(before.saturating_sub(self.len), before, now);
        self.came(0, len, now);
    }

    /// Since when a byte has waited, of `len` that are there now.
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

    /// Goal: a queue that stands still grows old from the first byte that stays; one that moves
    /// is as old as it takes to pass, though it is never empty.
    #[test]
    fn who_waits_grows_old() {
        let mut queue = Queued::default();
        assert_eq!(waited(&queue, 0, at(5)), LentNow::default());
        queue.came(100, 100, at(10));
        queue.came(50, 150, at(20));
        let oldest = |millis| Some(Duration::from_millis(millis));
        assert_eq!(waited(&queue, 150, at(30)), LentNow { bytes: 150, oldest: oldest(20) });
        // The byte that is followed has gone; what came with the second call is followed from now.
        assert_eq!(waited(&queue, 50, at(30)), LentNow { bytes: 50, oldest: None });
        queue.came(0, 50, at(30));
        assert_eq!(waited(&queue, 50, at(35)).oldest, oldest(5));
        for millis in 40..1000 {
            queue.came(50, 50, at(millis));
        }
        assert_eq!(waited(&queue, 50, at(1000)).oldest, oldest(1));
        queue.came(0, 0, at(1001));
        assert_eq!(waited(&queue, 0, at(2000)), LentNow::default());

        // The other way, where bytes come between two looks.
        queue.went(300, 300, at(2000));
        queue.went(700, 600, at(2100));
        assert_eq!(waited(&queue, 600, at(2200)).oldest, oldest(200));
        queue.went(600, 0, at(2300));
        assert_eq!(waited(&queue, 0, at(2400)), LentNow::default());
    }
}
