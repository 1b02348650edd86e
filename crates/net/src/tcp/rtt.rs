//! Round-trip time and retransmission timeout (RFC 6298).
//!
//! SRTT and the mean deviation are scaled integers (Jacobson and Karels, "Congestion Avoidance and
//! Control", 1988, appendix A). RTTVAR is the largest deviation in the last flight rather than the
//! mean, and never less than `RTO_MIN`, so that even a steady path has that margin over its round
//! trip (`user_timeout/user_timeout.pkt`). It rises at once and falls once per flight. A falling
//! round trip hardly raises it (Ludwig and Sklower, "The Eifel retransmission timer", 2000). The
//! least round trip is that of the last five minutes.

use super::seq::Seq;
use crate::time::{Duration, Instant};

/// Timeout before the first sample (RFC 6298 §2.1).
pub const RTO_INITIAL: Duration = Duration::from_secs(1);
/// Timeout after a handshake without a sample, because the SYN was retransmitted (RFC 6298 §5.7).
pub const RTO_FALLBACK: Duration = Duration::from_secs(3);
/// Least timeout, well below the one second of RFC 6298 §2.4: hosts with Linux use it, and
/// `user_timeout/user_timeout.pkt` expects it.
pub const RTO_MIN: Duration = Duration::from_millis(200);
/// Greatest timeout, backed off or not, unless [`Settings::rto_max`] is less.
///
/// [`Settings::rto_max`]: super::Settings::rto_max
pub const RTO_MAX: Duration = Duration::from_secs(120);
/// How long the least round trip is remembered (`tcp_min_rtt_wlen`).
pub const MIN_RTT_WINDOW: Duration = Duration::from_secs(300);

/// Largest sample, in microseconds; eight times it is far from overflow.
const SAMPLE_MAX_US: u32 = u32::MAX / 32;

/// Estimator of the round-trip time and the retransmission timeout.
#[derive(Clone, Copy, Debug)]
pub struct RttEstimator {
    /// Least variance.
    least_us: u32,
    /// Greatest timeout.
    most_us: u32,
    /// The smoothed round trip (SRTT), in eighths of a microsecond; zero before the first sample.
    srtt_eighths: u32,
    /// The mean deviation, in quarters of a microsecond.
    deviation_quarters: u32,
    /// Largest deviation in the flight that ends at `flight_end`.
    flight_max_us: u32,
    /// Four times RTTVAR of RFC 6298.
    rttvar_us: u32,
    flight_end: Seq,
    rto: Duration,
    /// Doublings of `rto`.
    backoff: u8,
    min: WindowedMin,
}

impl Default for RttEstimator {
    fn default() -> Self {
        Self::new(RTO_MIN, RTO_MAX)
    }
}

impl RttEstimator {
    /// Creates an estimator without samples; timeouts will be at least `least` above the round
    /// trip, and at most `most`, which counts as [`RTO_INITIAL`] if it is less and as [`RTO_MAX`]
    /// if it is more.
    pub fn new(least: Duration, most: Duration) -> Self {
        Self {
            least_us: micros(least),
            most_us: micros(most.clamp(RTO_INITIAL, RTO_MAX)),
            srtt_eighths: 0,
            deviation_quarters: 0,
            flight_max_us: 0,
            rttvar_us: 0,
            flight_end: Seq(0),
            rto: RTO_INITIAL,
            backoff: 0,
            min: WindowedMin::default(),
        }
    }

    /// Least margin of the timeout over the round trip.
    pub fn least(&self) -> Duration {
        Duration::from_micros(self.least_us.into())
    }

    /// Greatest timeout.
    pub fn most(&self) -> Duration {
        Duration::from_micros(self.most_us.into())
    }

    /// Takes a sample of a segment that was sent once (the caller applies Karn's rule). `una` and
    /// `nxt` separate flights. Ends the back-off.
    pub fn sample(&mut self, rtt: Duration, una: Seq, nxt: Seq) {
        let rtt_us = micros(rtt);
        if self.srtt_eighths == 0 {
            self.srtt_eighths = rtt_us * 8;
            // RTO = 3 RTT at first (RFC 6298 §2.2).
            self.deviation_quarters = rtt_us * 2;
            self.rttvar_us = self.deviation_quarters.max(self.least_us);
            self.flight_max_us = self.rttvar_us;
            self.flight_end = nxt;
        } else {
            self.smooth(rtt_us);
            if una.after(self.flight_end) {
                let excess = self.rttvar_us.saturating_sub(self.flight_max_us);
                self.rttvar_us -= excess / 4;
                self.flight_end = nxt;
                self.flight_max_us = self.least_us;
            }
        }
        self.restore();
    }

    fn smooth(&mut self, rtt_us: u32) {
        let srtt_us = self.srtt_eighths / 8;
        let error = rtt_us.abs_diff(srtt_us);
        let deviation_us = self.deviation_quarters / 4;
        let mut grown = i64::from(error) - i64::from(deviation_us);
        if rtt_us < srtt_us {
            self.srtt_eighths -= error;
            grown = if grown > 0 { grown / 8 } else { grown };
        } else {
            self.srtt_eighths += error;
        }
        self.srtt_eighths = self.srtt_eighths.max(1);
        self.deviation_quarters = self.deviation_quarters.saturating_add_signed(grown as i32);
        if self.deviation_quarters > self.flight_max_us {
            self.flight_max_us = self.deviation_quarters;
            self.rttvar_us = self.rttvar_us.max(self.flight_max_us);
        }
    }

    /// Takes a round trip into the windowed minimum. A sample that `may_be_delayed` by the receiver
    /// does not raise the minimum.
    pub fn sample_min(&mut self, rtt: Duration, may_be_delayed: bool, now: Instant) {
        let rtt_us = micros(rtt);
        if !(may_be_delayed && self.min.value().is_some_and(|min| rtt_us > min)) {
            self.min.update(rtt_us, now);
        }
    }

    /// Sets the timeout after a handshake without a sample (RFC 6298 §5.7).
    pub fn fall_back(&mut self) {
        if self.srtt_eighths == 0 {
            self.rttvar_us = RTO_FALLBACK.as_micros() as u32;
            self.deviation_quarters = self.rttvar_us;
            self.flight_max_us = self.rttvar_us;
            self.rto = RTO_FALLBACK.min(self.most());
            self.backoff = 0;
        }
    }

    /// Smoothed round-trip time; `None` before the first sample.
    pub fn srtt(&self) -> Option<Duration> {
        (self.srtt_eighths > 0).then(|| Duration::from_micros((self.srtt_eighths / 8).into()))
    }

    /// Least round-trip time of the last five minutes.
    pub fn min(&self) -> Option<Duration> {
        self.min.value().map(|us| Duration::from_micros(us.into()))
    }

    /// Mean deviation of the round-trip time.
    pub fn variation(&self) -> Duration {
        Duration::from_micros((self.deviation_quarters / 4).into())
    }

    /// How often the timeout has been doubled.
    pub fn backoff(&self) -> u8 {
        self.backoff
    }

    /// Retransmission timeout, with back-off.
    pub fn rto(&self) -> Duration {
        self.rto
    }

    /// Doubles the timeout (RFC 6298 §5.5).
    pub fn back_off(&mut self) {
        self.rto = (self.rto * 2).min(self.most());
        self.backoff = self.backoff.saturating_add(1);
    }

    /// Ends the back-off: the path works again.
    pub fn restore(&mut self) {
        self.backoff = 0;
        if self.srtt_eighths > 0 {
            let us = u64::from(self.srtt_eighths / 8) + u64::from(self.rttvar_us);
            self.rto = Duration::from_micros(us).min(self.most());
        }
    }
}

fn micros(rtt: Duration) -> u32 {
    u32::try_from(rtt.as_micros()).unwrap_or(SAMPLE_MAX_US).clamp(1, SAMPLE_MAX_US)
}

/// Least value within a window of time. It keeps the best three samples of thirds of the window
/// (Kathleen Nichols' filter).
#[derive(Clone, Copy, Debug, Default)]
struct WindowedMin {
    best: [(Instant, u32); 3],
}

impl WindowedMin {
    fn value(&self) -> Option<u32> {
        (self.best[0].1 > 0).then_some(self.best[0].1)
    }

    fn update(&mut self, value: u32, now: Instant) {
        let sample = (now, value);
        let stale = now.since(self.best[2].0) > MIN_RTT_WINDOW;
        if self.best[0].1 == 0 || value <= self.best[0].1 || stale {
            self.best = [sample; 3];
            return;
        }
        if value <= self.best[1].1 {
            self.best[1] = sample;
            self.best[2] = sample;
        } else if value <= self.best[2].1 {
            self.best[2] = sample;
        }
        let age = now.since(self.best[0].0);
        if age > MIN_RTT_WINDOW {
            // The best sample has left the window: the second becomes the best.
            self.best = [self.best[1], self.best[2], sample];
            if now.since(self.best[0].0) > MIN_RTT_WINDOW {
                self.best = [self.best[1], self.best[2], sample];
            }
        } else if self.best[1].0 == self.best[0].0 && age > MIN_RTT_WINDOW / 4 {
            // A quarter of the window without a better sample: take the second from here on.
            self.best[1] = sample;
            self.best[2] = sample;
        } else if self.best[2].0 == self.best[1].0 && age > MIN_RTT_WINDOW / 2 {
            self.best[2] = sample;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const NOW: Instant = Instant::START;

    fn sampled(millis: &[u32]) -> RttEstimator {
        let mut rtt = RttEstimator::default();
        for (flight, sample) in (1..).zip(millis) {
            rtt.sample(MS * *sample, Seq(flight * 10), Seq(flight * 10 + 5));
        }
        rtt
    }

    #[test]
    fn follows_rfc_6298() {
        let mut rtt = RttEstimator::default();
        assert_eq!(rtt.rto(), RTO_INITIAL);
        rtt = sampled(&[100]);
        // SRTT = R, RTTVAR = R/2, RTO = SRTT + 4 * RTTVAR.
        assert_eq!(rtt.rto(), 300 * MS);
        rtt.back_off();
        assert_eq!(rtt.rto(), 600 * MS);
        rtt.sample(100 * MS, Seq(1), Seq(2));
        assert!(rtt.rto() < 301 * MS, "a new sample ends the back-off");
        for _ in 0..20 {
            rtt.back_off();
        }
        assert_eq!(rtt.rto(), RTO_MAX);
    }

    #[test]
    fn a_steady_path_keeps_the_least_variance() {
        let rtt = sampled(&[1; 100]);
        assert_eq!((rtt.rto(), rtt.srtt()), (201 * MS, Some(MS)));
        // One flight of deviation raises the timeout at once; a quarter of it goes per flight.
        let lifted = sampled(&[100, 100, 100, 100, 1000]);
        assert!(lifted.rto() > 900 * MS, "{:?}", lifted.rto());
    }

    #[test]
    fn no_sample_from_the_handshake() {
        let mut rtt = RttEstimator::default();
        rtt.back_off();
        rtt.fall_back();
        assert_eq!(rtt.rto(), RTO_FALLBACK);
        rtt.sample(100 * MS, Seq(1), Seq(2));
        assert_eq!(rtt.rto(), 300 * MS);
    }

    #[test]
    fn the_minimum_is_of_the_last_five_minutes() {
        let mut rtt = RttEstimator::default();
        rtt.sample_min(5 * MS, false, NOW);
        rtt.sample_min(9 * MS, false, NOW + Duration::from_secs(100));
        rtt.sample_min(8 * MS, false, NOW + Duration::from_secs(200));
        assert_eq!(rtt.min(), Some(5 * MS));
        rtt.sample_min(20 * MS, true, NOW + Duration::from_secs(301));
        assert_eq!(rtt.min(), Some(5 * MS), "a delayed ACK does not count");
        rtt.sample_min(20 * MS, false, NOW + Duration::from_secs(301));
        assert_eq!(rtt.min(), Some(8 * MS));
        rtt.sample_min(30 * MS, false, NOW + Duration::from_secs(900));
        assert_eq!(rtt.min(), Some(30 * MS));
    }
}
