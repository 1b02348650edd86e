//! HyStart: ends slow start before it overruns the path, when a train of ACKs is long or the delay
//! grows (Ha and Rhee, "Taming the elephants", 2011; thresholds and details are Linux's).

use super::RttSample;
use crate::tcp::seq::Seq;
use crate::time::{Duration, Instant};

/// State of one round trip.
#[derive(Clone, Copy, Debug)]
pub(super) struct HyStart {
    round_start: Instant,
    /// The round ends when everything before this has been acknowledged.
    round_end: Seq,
    /// Last ACK of the train that began with the round.
    last_ack: Instant,
    /// Least round trip of this round, in microseconds.
    rtt_us: u32,
    samples: u8,
    found: bool,
}

impl Default for HyStart {
    fn default() -> Self {
        Self::new(Seq(0), Instant::START)
    }
}

impl HyStart {
    /// Starts a round at `now`; `next` is the next sequence number to be sent.
    pub(super) fn new(next: Seq, now: Instant) -> Self {
        Self {
            round_start: now,
            round_end: next,
            last_ack: now,
            rtt_us: u32::MAX,
            samples: 0,
            found: false,
        }
    }

    /// Takes a sample in slow start. Returns true if slow start should end at this window.
    pub(super) fn ends_slow_start(
        &mut self,
        cwnd: u32,
        delay_min_us: u32,
        delay_us: u32,
        sample: &RttSample,
    ) -> bool {
        if self.found {
            return false;
        }
        if sample.una.after(self.round_end) {
            *self = Self::new(sample.nxt, sample.now);
        }
        if cwnd < LOW_WINDOW {
            return false;
        }
        let train = self.train_is_long(delay_min_us, sample);
        let delay = self.delay_grew(delay_min_us, delay_us);
        self.found = train || delay;
        self.found
    }

    /// True if ACKs arrived in close succession for half the round trip: the data in flight fills
    /// the path.
    fn train_is_long(&mut self, delay_min_us: u32, sample: &RttSample) -> bool {
        if sample.now.since(self.last_ack) > ACK_DELTA {
            return false;
        }
        self.last_ack = sample.now;
        let bursts = (u64::from(sample.burst_max) * 4 * 1_000_000)
            .checked_div(sample.pacing_rate)
            .unwrap_or(0);
        let mut threshold_us = u64::from(delay_min_us) + bursts.min(BURST_US_MAX);
        if !sample.paced {
            threshold_us /= 2;
        }
        sample.now.since(self.round_start) > Duration::from_micros(threshold_us)
    }

    /// True if the least of more than [`SAMPLES_MIN`] round trips exceeds that of the path by an
    /// eighth.
    fn delay_grew(&mut self, delay_min_us: u32, delay_us: u32) -> bool {
        self.rtt_us = self.rtt_us.min(delay_us);
        if self.samples < SAMPLES_MIN {
            self.samples += 1;
            return false;
        }
        let margin = (delay_min_us >> 3).clamp(MARGIN_US_MIN, MARGIN_US_MAX);
        self.rtt_us > delay_min_us.saturating_add(margin)
    }
}

/// Smaller windows stay in slow start.
const LOW_WINDOW: u32 = 16;
/// ACKs farther apart do not form a train.
const ACK_DELTA: Duration = Duration::from_millis(2);
/// Most that device bursts add to the threshold of a train, in microseconds.
const BURST_US_MAX: u64 = 1000;
/// Round trips to measure before the least of them counts.
const SAMPLES_MIN: u8 = 8;
/// Bounds of the margin for delay, in microseconds.
const MARGIN_US_MIN: u32 = 4000;
const MARGIN_US_MAX: u32 = 16_000;
