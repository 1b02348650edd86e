//! Random loss: the part of the segments that the path loses while there is no queue. The flow does
//! not cause it, and cannot end it by sending less.
//!
//! This is not in the draft, which takes each loss for congestion: more than BBR.LossThresh in a
//! probe for the limit of the path, any loss between probes for a reason to slow down. On a path
//! that loses 3% at random it finds a third of the rate. Here both responses begin above the random
//! loss. Where there is none, it is the draft's behaviour.
//!
//! An ACK counts here, with the losses that it reveals, if the flow is not probing, none of its
//! probe is left in the network, and the round trip is near the shortest, as were those before: its
//! segment found no queue, nor did the lost one. Counts are taken in windows, each at least a round
//! trip long, and the window with the least loss decides. Loss by congestion misses one of these
//! conditions:
//!
//! - A queue that overflows delays the segments behind the lost ones.
//! - Where the queue is too short to show in the round trip, the response to loss ends the loss
//!   that the flow makes itself: random loss is zero at first, and any loss slows the flow down.
//! - Other flows, which fill the queue and back off, lose in bursts, which spare a window.
//!
//! Where the bottleneck loses segments all the time and shows no queue, the result is at most
//! `RATE_MAX`.

use crate::time::Duration;

/// The random loss of a path. Rates are in thousandths of the segments.
#[derive(Clone, Debug, Default)]
pub(super) struct Baseline {
    /// Segments delivered since a round trip showed a queue.
    since_queue: u32,
    /// Segments in the current window.
    delivered: u32,
    lost: u32,
    /// Round trip in which it began.
    begun: u32,
    /// Loss in each of the last windows.
    windows: [u32; WINDOWS],
}

impl Baseline {
    /// Notes an ACK that shows a queue.
    pub(super) fn note_queue(&mut self) {
        self.since_queue = 0;
    }

    /// Counts an ACK that shows no queue: segments that it delivered, segments that became lost
    /// with it, and the number of the round trip. Right after a queue it does not count.
    pub(super) fn count(&mut self, delivered: u32, lost: u32, round: u32) {
        self.since_queue = self.since_queue.saturating_add(delivered);
        if self.since_queue < SINCE_QUEUE_SEGMENTS {
            return;
        }
        self.delivered = self.delivered.saturating_add(delivered);
        self.lost = self.lost.saturating_add(lost);
        let sent = self.delivered.saturating_add(self.lost);
        // A round trip is whole when the next but one begins.
        if sent < WINDOW_SEGMENTS || round.wrapping_sub(self.begun) < 2 {
            return;
        }
        let rate = u64::from(self.lost) * 1000 / u64::from(sent);
        self.windows.rotate_left(1);
        self.windows[WINDOWS - 1] = rate as u32;
        (self.delivered, self.lost, self.begun) = (0, 0, round);
    }

    /// The random loss.
    pub(super) fn rate(&self) -> u32 {
        self.windows.iter().copied().min().unwrap_or(0).min(RATE_MAX)
    }

    /// True if any of the last windows had a loss.
    pub(super) fn has_loss(&self) -> bool {
        self.windows.iter().any(|&rate| rate > 0)
    }
}

/// True if a queue was in the way: `rtt` is longer than the shortest one by more than jitter and
/// the flow's own burst.
pub(super) fn shows_queue(rtt: Duration, min_rtt: Duration) -> bool {
    rtt.saturating_sub(min_rtt) > min_rtt / 8
}

/// True if `lost` of `flight` segments exceed `rate` thousandths by more than two standard
/// deviations of such a count. With a rate of zero any loss does.
pub(super) fn exceeds(lost: u32, flight: u32, rate: u32) -> bool {
    // In thousandths of a segment: the mean, whose variance is 1000 times as much.
    let mean = u64::from(flight) * u64::from(rate);
    let excess = (u64::from(lost) * 1000).saturating_sub(mean);
    excess.saturating_pow(2) > 4 * 1000 * mean
}

/// Least segments without a queue before an ACK counts. A loss is found when later segments arrive,
/// usually three, and a short queue may be empty by then.
const SINCE_QUEUE_SEGMENTS: u32 = 16;
/// Windows that must agree. Other flows may spoil all but one.
const WINDOWS: usize = 3;
/// Least segments of a window: 3% of loss are 12 of them, give or take 3.4.
const WINDOW_SEGMENTS: u32 = 400;
/// Most that counts as random, in thousandths: what a wrong measurement can cost others. Few paths
/// lose more at random. Version 1 has no such limit.
const RATE_MAX: u32 = 50;

#[cfg(test)]
mod tests {
    use super::*;

    /// The window with the least loss decides, up to the bound.
    #[test]
    fn the_least_of_the_windows_counts() {
        let mut baseline = Baseline::default();
        for (round, (lost, rate)) in
            [(12, 0), (16, 0), (20, 30), (80, 40), (90, 50), (90, 50), (0, 0)]
                .into_iter()
                .enumerate()
        {
            baseline.count(WINDOW_SEGMENTS - lost, lost, 2 * round as u32 + 2);
            assert_eq!(baseline.rate(), rate, "window {round}");
        }
    }

    /// Losses that are found just after a queue may be due to it.
    #[test]
    fn after_a_queue_an_ack_does_not_count() {
        let mut baseline = Baseline::default();
        for round in 0..200 {
            baseline.note_queue();
            baseline.count(SINCE_QUEUE_SEGMENTS - 1, 2, round);
        }
        assert_eq!(baseline.rate(), 0);
    }

    /// A window lasts a whole round trip: more segments in less time are one burst.
    #[test]
    fn a_window_is_a_round_trip() {
        let mut baseline = Baseline::default();
        for burst in 0..30 {
            baseline.count(WINDOW_SEGMENTS, 12, burst / 30);
        }
        assert_eq!(baseline.rate(), 0);
    }

    #[test]
    fn two_standard_deviations_are_chance() {
        // Of 400 segments, 12 are usual at 3%, and 18.9 are chance.
        for (lost, more) in [(12, false), (18, false), (19, true)] {
            assert_eq!(exceeds(lost, 400, 30), more, "{lost}");
        }
        assert!(exceeds(1, 400, 0));
        assert!(!exceeds(0, 0, 0));
        assert!(exceeds(u32::MAX, u32::MAX, RATE_MAX));
    }
}
