//! Congestion control: NewReno (RFC 5681, RFC 6582), in bytes.
//!
//! The connection tells what was acknowledged, that loss was found or that the timer fired; this
//! module answers with a window. Which segments are lost is not decided here.

/// Initial window in segments (RFC 6928).
pub const INITIAL_SEGMENTS: u32 = 10;
/// Greatest window; keeps sums far from overflow and memory bounded.
pub const CWND_MAX: u32 = 1 << 28;

/// State of the controller.
#[derive(Clone, Copy, Debug)]
pub struct NewReno {
    cwnd: u32,
    ssthresh: u32,
    mss: u32,
    /// Bytes acknowledged in congestion avoidance and not yet turned into window.
    credit: u32,
}

impl NewReno {
    /// A controller at its initial window.
    pub fn new(mss: u32) -> Self {
        Self { cwnd: INITIAL_SEGMENTS * mss, ssthresh: CWND_MAX, mss, credit: 0 }
    }

    /// Congestion window in bytes.
    pub fn window(&self) -> u32 {
        self.cwnd
    }

    /// Slow-start threshold in bytes.
    pub fn threshold(&self) -> u32 {
        self.ssthresh
    }

    /// The segment size changed, by path-MTU discovery or at the handshake.
    pub fn set_mss(&mut self, mss: u32) {
        self.mss = mss;
        self.cwnd = self.cwnd.max(mss);
    }

    /// `acked` bytes were newly acknowledged outside recovery while the window was in full use.
    pub fn on_ack(&mut self, acked: u32) {
        if self.cwnd < self.ssthresh {
            // RFC 3465 with L unbounded, as Linux: stretched ACKs must not slow the start.
            self.cwnd = (self.cwnd.saturating_add(acked)).min(self.ssthresh.max(self.cwnd));
        } else {
            self.credit = self.credit.saturating_add(acked);
            while self.credit >= self.cwnd {
                self.credit -= self.cwnd;
                self.cwnd = self.cwnd.saturating_add(self.mss);
            }
        }
        self.cwnd = self.cwnd.min(CWND_MAX);
    }

    /// Loss was found by duplicate ACKs or SACK with `flight` bytes outstanding.
    pub fn on_loss(&mut self, flight: u32) {
        // RFC 5681 §3.1 equation (4).
        self.ssthresh = (flight / 2).max(2 * self.mss);
        self.cwnd = self.ssthresh;
        self.credit = 0;
    }

    /// The retransmission timer fired with `flight` bytes outstanding. `first` for the first time
    /// in a row: later ones leave the threshold alone.
    pub fn on_timeout(&mut self, flight: u32, first: bool) {
        if first {
            self.ssthresh = (flight / 2).max(2 * self.mss);
        }
        self.cwnd = self.mss;
        self.credit = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_then_grows_by_a_segment_per_window() {
        let mut reno = NewReno::new(1000);
        reno.on_ack(10_000);
        assert_eq!(reno.window(), 20_000);
        reno.on_loss(20_000);
        assert_eq!((reno.window(), reno.threshold()), (10_000, 10_000));
        reno.on_ack(9_999);
        assert_eq!(reno.window(), 10_000);
        reno.on_ack(1);
        assert_eq!(reno.window(), 11_000);
    }

    #[test]
    fn a_timeout_starts_over_towards_half_the_flight() {
        let mut reno = NewReno::new(1000);
        reno.on_timeout(10_000, true);
        assert_eq!((reno.window(), reno.threshold()), (1000, 5000));
        reno.on_timeout(1000, false);
        assert_eq!(reno.threshold(), 5000);
        reno.on_ack(1000);
        assert_eq!(reno.window(), 2000);
    }
}
