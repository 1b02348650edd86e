//! Delivery rate of the path (draft-ietf-ccwg-bbr §4.1, before that
//! draft-cheng-iccrg-delivery-rate-estimation).
//!
//! A *sample* is the data delivered between the sending of a segment and its acknowledgment, over
//! the time in which the data was sent or that in which it was acknowledged. The longer time
//! counts, so that a bunch of ACKs does not exaggerate the rate. Samples from times when the owner
//! had no more data to send show less than the path can do, and are marked.
//!
//! Each record keeps what was known when it was last sent ([`Sent`]), as offsets from that time.

use super::congestion::RateSample;
use crate::time::{Duration, Instant};

/// What was known when a record was last sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    /// Time from the sending of the newest segment in the latest sample to that of this record, in
    /// microseconds.
    first_before_us: u32,
    /// Time from the last delivery to the sending of this record, in microseconds.
    delivered_before_us: u32,
    /// Segments in flight just after this record was sent, itself included.
    in_flight: u32,
    /// Segments that had been marked lost by then.
    lost: u32,
    /// The owner had no more data to send.
    limited: bool,
}

impl Sent {
    /// Notes what is in flight and lost now.
    pub(super) fn note(&mut self, in_flight: u32, lost: u32) {
        self.in_flight = in_flight;
        self.lost = lost;
    }

    /// Segments in flight and marked lost then, and whether the owner had no more data to send.
    pub(super) fn noted(&self) -> (u32, u32, bool) {
        (self.in_flight, self.lost, self.limited)
    }
}

/// The segment sent last of those that an ACK reports as delivered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Newest {
    pub(super) sent_at: Instant,
    /// Segments that had been delivered by then.
    pub(super) delivered: u32,
    pub(super) sent: Sent,
}

/// Delivery rate of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    /// When the newest segment of the latest sample was sent.
    first_at: Instant,
    /// When something was last delivered.
    delivered_at: Instant,
    /// The owner had no more data to send, until this many segments are delivered.
    limited_until: Option<u32>,
    /// The sample that counts: segments, their time in microseconds, and whether the owner had no
    /// more data to send.
    segments: u32,
    interval_us: u32,
    limited: bool,
}

impl Default for Rate {
    fn default() -> Self {
        Self {
            first_at: Instant::START,
            delivered_at: Instant::START,
            limited_until: Some(u32::MAX),
            segments: 0,
            interval_us: 0,
            limited: true,
        }
    }
}

impl Rate {
    /// Starts anew, as nothing is outstanding.
    pub(super) fn restart(&mut self, now: Instant) {
        self.first_at = now;
        self.delivered_at = now;
    }

    /// Marks samples until `until` segments are delivered: the owner has no more data to send.
    pub(super) fn limit(&mut self, until: u32) {
        self.limited_until = Some(until);
    }

    /// State to keep in a record that is sent now.
    pub(super) fn sent(&self, now: Instant) -> Sent {
        Sent {
            first_before_us: micros(now.since(self.first_at)),
            delivered_before_us: micros(now.since(self.delivered_at)),
            in_flight: 0,
            lost: 0,
            limited: self.limited_until.is_some(),
        }
    }

    /// Takes a sample from an ACK; `newest` is the segment sent last that it reports as delivered.
    /// `delivered` and `lost` are the numbers of segments delivered and lost so far; `has_new`
    /// means that this ACK reported some as delivered. Returns the sample; without a reliable
    /// interval it does not count here.
    pub(super) fn sample(
        &mut self,
        newest: Option<Newest>,
        (delivered, has_new): (u32, bool),
        lost: u32,
        min_rtt: Option<Duration>,
        now: Instant,
    ) -> Option<RateSample> {
        if self.limited_until.is_some_and(|until| (delivered.wrapping_sub(until) as i32) > 0) {
            self.limited_until = None;
        }
        if let Some(newest) = newest {
            self.first_at = newest.sent_at;
        }
        if has_new {
            self.delivered_at = now;
        }
        let newest = newest?;
        let sent = newest.sent;
        let acknowledged_in =
            micros(now.since(newest.sent_at)).saturating_add(sent.delivered_before_us);
        let interval_us = sent.first_before_us.max(acknowledged_in);
        let segments = delivered.wrapping_sub(newest.delivered);
        // A shorter interval is most likely a retransmission whose original was acknowledged.
        let reliable = min_rtt.is_some_and(|min_rtt| interval_us >= micros(min_rtt));
        if reliable {
            self.keep(segments, interval_us, sent.limited);
        }
        Some(RateSample {
            delivered: segments,
            prior_delivered: newest.delivered,
            interval: (reliable && interval_us > 0)
                .then(|| Duration::from_micros(interval_us.into())),
            in_flight: sent.in_flight,
            lost: lost.wrapping_sub(sent.lost),
            app_limited: sent.limited,
        })
    }

    /// Keeps a sample, unless it is slower and the owner had no more data to send.
    fn keep(&mut self, segments: u32, interval_us: u32, limited: bool) {
        let product = |count: u32, time: u32| u64::from(count) * u64::from(time);
        if !limited || product(segments, self.interval_us) >= product(self.segments, interval_us) {
            self.segments = segments;
            self.interval_us = interval_us;
            self.limited = limited;
        }
    }

    /// Rate in bytes per second, for segments of `mss` bytes.
    pub(super) fn bytes_per_second(&self, mss: u32) -> u64 {
        let bytes = u64::from(self.segments) * u64::from(mss);
        bytes.saturating_mul(1_000_000).checked_div(self.interval_us.into()).unwrap_or(0)
    }

    /// True if the owner had no more data to send during the sample: the path may be faster.
    pub(super) fn is_limited(&self) -> bool {
        self.limited
    }

    /// True while samples show what the owner sends, and not what the path can do.
    pub(super) fn is_app_limited(&self) -> bool {
        self.limited_until.is_some()
    }
}

fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN_RTT: Option<Duration> = Some(Duration::from_millis(10));

    fn at(millis: u64) -> Instant {
        Instant::START + Duration::from_millis(millis)
    }

    fn newest(rate: &Rate, delivered: u32, sent_at: Instant) -> Option<Newest> {
        Some(Newest { sent_at, delivered, sent: rate.sent(sent_at) })
    }

    /// The longer of the two times counts.
    #[test]
    fn the_slower_way_counts() {
        let mut rate = Rate::default();
        rate.restart(at(100));
        rate.limited_until = None;
        let first = newest(&rate, 0, at(100));
        let last = newest(&rate, 0, at(140));
        rate.sample(first, (1, true), 3, MIN_RTT, at(110));
        assert_eq!(rate.bytes_per_second(1000), 100_000);
        // Sent over 40 ms, acknowledged within 50 ms.
        rate.sample(last, (10, true), 3, MIN_RTT, at(150));
        assert_eq!(rate.bytes_per_second(1000), 200_000);
        assert!(!rate.is_limited());
        // Sent over 30 ms and acknowledged at once.
        let late = newest(&rate, 10, at(170));
        rate.sample(late, (20, true), 3, MIN_RTT, at(181));
        assert_eq!(rate.bytes_per_second(1000), 10_000 * 1000 / 31);
    }

    /// A sample from a time without data to send counts only if it is no slower.
    #[test]
    fn limited_samples_only_raise() {
        let mut rate = Rate::default();
        assert_eq!((rate.bytes_per_second(1000), rate.is_limited()), (0, true));
        rate.restart(at(0));
        let sent = newest(&rate, 0, at(0));
        rate.sample(sent, (10, true), 3, MIN_RTT, at(10));
        assert_eq!((rate.bytes_per_second(1000), rate.is_limited()), (1_000_000, true));
        rate.limited_until = Some(11);
        rate.restart(at(20));
        let sent = newest(&rate, 10, at(20));
        rate.sample(sent, (11, true), 3, MIN_RTT, at(30));
        assert_eq!(rate.bytes_per_second(1000), 1_000_000);
        assert!(rate.limited_until.is_some());
        rate.restart(at(40));
        rate.limited_until = None;
        let sent = newest(&rate, 11, at(40));
        rate.sample(sent, (12, true), 3, MIN_RTT, at(50));
        assert_eq!((rate.bytes_per_second(1000), rate.is_limited()), (100_000, false));
        // Shorter than the least round trip: not believed.
        let sent = newest(&rate, 12, at(60));
        rate.delivered_at = at(60);
        rate.first_at = at(60);
        let again = Newest { sent: rate.sent(at(60)), ..sent.expect("a record") };
        rate.sample(Some(again), (13, true), 3, MIN_RTT, at(61));
        assert_eq!(rate.bytes_per_second(1000), 100_000);
    }
}
