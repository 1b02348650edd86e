//! Round-trip time and retransmission timeout (RFC 6298), with Linux's bounds.

use crate::time::Duration;

/// Timeout before the first sample (RFC 6298 §2.1).
pub const RTO_INITIAL: Duration = Duration::from_secs(1);
/// Least timeout; Linux's, well below the RFC's second.
pub const RTO_MIN: Duration = Duration::from_millis(200);
/// Greatest timeout, backed off or not.
pub const RTO_MAX: Duration = Duration::from_secs(120);

/// Smoothed round-trip time.
#[derive(Clone, Copy, Debug)]
pub struct RttEstimator {
    srtt_us: u32,
    rttvar_us: u32,
    min_us: u32,
    backoff: u8,
}

impl Default for RttEstimator {
    fn default() -> Self {
        Self { srtt_us: 0, rttvar_us: 0, min_us: u32::MAX, backoff: 0 }
    }
}

impl RttEstimator {
    /// Takes a sample of a segment that was sent once (Karn's rule is the caller's).
    pub fn sample(&mut self, rtt: Duration) {
        let rtt_us = u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX / 8).clamp(1, u32::MAX / 8);
        self.min_us = self.min_us.min(rtt_us);
        if self.srtt_us == 0 {
            self.srtt_us = rtt_us;
            self.rttvar_us = rtt_us / 2;
        } else {
            let delta = self.srtt_us.abs_diff(rtt_us);
            self.rttvar_us = self.rttvar_us - self.rttvar_us / 4 + delta / 4;
            self.srtt_us = self.srtt_us - self.srtt_us / 8 + rtt_us / 8;
        }
        self.backoff = 0;
    }

    /// Smoothed round-trip time; `None` before the first sample.
    pub fn srtt(&self) -> Option<Duration> {
        (self.srtt_us > 0).then(|| Duration::from_micros(self.srtt_us.into()))
    }

    /// Least round-trip time seen.
    pub fn min(&self) -> Option<Duration> {
        (self.min_us != u32::MAX).then(|| Duration::from_micros(self.min_us.into()))
    }

    /// Retransmission timeout, with back-off.
    pub fn rto(&self) -> Duration {
        let base = match self.srtt() {
            // The variance term has a floor, so that a steady path still gets RTO_MIN on top of
            // its round trip, as Linux has it.
            Some(srtt) => srtt + Duration::from_micros(u64::from(self.rttvar_us) * 4).max(RTO_MIN),
            None => RTO_INITIAL,
        };
        base.saturating_mul(1 << self.backoff.min(16)).min(RTO_MAX)
    }

    /// Doubles the timeout (RFC 6298 §5.5).
    pub fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(16);
    }

    /// Ends the back-off: the path works again.
    pub fn restore(&mut self) {
        self.backoff = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_rfc_6298() {
        let mut rtt = RttEstimator::default();
        assert_eq!(rtt.rto(), RTO_INITIAL);
        rtt.sample(Duration::from_millis(100));
        // SRTT = R, RTTVAR = R/2, RTO = SRTT + 4 * RTTVAR.
        assert_eq!(rtt.rto(), Duration::from_millis(300));
        rtt.back_off();
        assert_eq!(rtt.rto(), Duration::from_millis(600));
        rtt.sample(Duration::from_millis(100));
        assert!(rtt.rto() < Duration::from_millis(301), "a new sample ends the back-off");
        for _ in 0..20 {
            rtt.back_off();
        }
        assert_eq!(rtt.rto(), RTO_MAX);
    }

    #[test]
    fn a_steady_fast_path_keeps_the_least_timeout() {
        let mut rtt = RttEstimator::default();
        for _ in 0..100 {
            rtt.sample(Duration::from_micros(50));
        }
        assert!(rtt.rto() >= RTO_MIN && rtt.rto() < RTO_MIN + Duration::from_millis(1));
        assert_eq!(rtt.min(), Some(Duration::from_micros(50)));
    }
}
