//! RACK (RFC 8985 §6): a segment counts as lost once one that was sent later, by more than the
//! reordering window, is delivered. Names in parentheses are those of RFC 8985 §5.3.

use super::reordering::Reordering;
use crate::tcp::rtt::RttEstimator;
use crate::tcp::scoreboard::{Newest, Record, Scoreboard};
use crate::time::{Duration, Instant};

/// Number of recoveries for which a widened reordering window stays (RFC 8985 §6.2 step 4).
const REO_WND_PERSIST: u8 = 16;

/// State of RACK.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rack {
    /// The segment sent last of those known to be delivered (RACK.segment, RACK.xmit_ts,
    /// RACK.end_seq).
    newest: Option<Newest>,
    /// Round trip of the last delivered segment (RACK.rtt).
    rtt: Duration,
    /// Something was delivered since the last search for losses.
    advanced: bool,
    /// Width of the reordering window, in quarters of the least round trip (RACK.reo_wnd_mult).
    steps: u8,
    /// RACK.reo_wnd_persist.
    persist: u8,
    /// A duplicate was reported that has not widened the window yet.
    duplicate: bool,
    /// Segments delivered when the window was last widened (RACK.dsack_round).
    widened_at: u32,
}

impl Default for Rack {
    fn default() -> Self {
        Self {
            newest: None,
            rtt: Duration::ZERO,
            advanced: false,
            steps: 1,
            persist: 0,
            duplicate: false,
            widened_at: 0,
        }
    }
}

impl Rack {
    /// Steps 1 and 2: `record` was delivered.
    #[inline]
    pub(super) fn deliver(&mut self, record: &Record, min_rtt: Option<Duration>, now: Instant) {
        let rtt = now.since(record.sent_at);
        if record.ever_resent && min_rtt.is_none_or(|min| rtt < min) {
            // Too early for the retransmission: the original arrived.
            return;
        }
        self.advanced = true;
        self.rtt = rtt;
        let newest = Newest::of(record);
        if self.newest.is_none_or(|last| newest.is_after(&last)) {
            self.newest = Some(newest);
        }
    }

    /// Notes a reported duplicate that no loss probe explains.
    pub(super) fn note_duplicate(&mut self) {
        self.duplicate = true;
    }

    /// Step 4, first part: widens the reordering window by one step for each round trip with a
    /// duplicate. `sent_after` is the number of segments that had been delivered when the newest
    /// segment that this ACK acknowledges was sent.
    pub(super) fn update_window(&mut self, sent_after: u32, delivered: u32) {
        if (sent_after.wrapping_sub(self.widened_at) as i32) < 0 {
            self.duplicate = false;
        }
        if self.duplicate {
            self.steps = self.steps.saturating_add(1);
            self.duplicate = false;
            self.widened_at = delivered;
            self.persist = REO_WND_PERSIST;
        } else if self.persist == 0 {
            self.steps = 1;
        }
    }

    /// Step 4, second part: the reordering window. As long as reordering was never seen, it is zero
    /// if `enough` is SACKed or during recovery.
    pub(super) fn window(
        &self,
        reordering: &Reordering,
        enough: bool,
        rtt: &RttEstimator,
    ) -> Duration {
        if !reordering.was_seen() && enough {
            return Duration::ZERO;
        }
        let srtt = rtt.srtt().unwrap_or(Duration::ZERO);
        let min = rtt.min().unwrap_or(srtt);
        (min / 4 * u32::from(self.steps)).min(srtt)
    }

    /// True, once, if something was delivered since the last search for losses.
    pub(super) fn take_advanced(&mut self) -> bool {
        core::mem::take(&mut self.advanced)
    }

    /// Step 5: marks late segments as lost. Returns how long the last of the others that were sent
    /// before the newest delivered one still has. `lost` gets each lost record.
    pub(super) fn detect(
        &self,
        board: &mut Scoreboard,
        window: Duration,
        now: Instant,
        lost: &mut impl FnMut(&Record, u32),
    ) -> Option<Duration> {
        board.mark_late(self.newest?, self.rtt + window, now, lost)
    }

    /// Keeps a widened window longer, after a recovery without reason.
    pub(super) fn persist_more(&mut self) {
        self.persist = (self.persist + 1).min(REO_WND_PERSIST);
    }

    /// Counts one more recovery with the widened window.
    pub(super) fn recovery_over(&mut self) {
        self.persist = self.persist.saturating_sub(1);
    }

    /// Repeats the search for losses although nothing was delivered.
    pub(super) fn look_again(&mut self) {
        self.advanced = true;
    }

    /// Round trip of the last delivered segment.
    pub(super) fn rtt(&self) -> Duration {
        self.rtt
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::seq::Seq;

    const MS: Duration = Duration::from_millis(1);

    fn rtt() -> RttEstimator {
        let mut rtt = RttEstimator::default();
        rtt.sample(100 * MS, Seq(0), Seq(1));
        rtt.sample_min(80 * MS, false, Instant::START);
        rtt
    }

    /// RFC 8985 §6.2 step 4: a quarter of the least round trip, and one more for each round trip
    /// with a duplicate, up to the smoothed round trip; for 16 recoveries.
    #[test]
    fn the_window_widens_with_duplicates() {
        let (mut rack, mut seen) = (Rack::default(), Reordering::new(3));
        assert_eq!(rack.window(&seen, false, &rtt()), 20 * MS);
        assert_eq!(rack.window(&seen, true, &rtt()), Duration::ZERO);
        seen.note(Seq(0), Seq(5000), 1000);
        assert_eq!(rack.window(&seen, true, &rtt()), 20 * MS);
        rack.note_duplicate();
        rack.update_window(0, 10);
        assert_eq!(rack.window(&seen, true, &rtt()), 40 * MS);
        rack.note_duplicate();
        rack.update_window(9, 12);
        assert_eq!(rack.window(&seen, true, &rtt()), 40 * MS, "the same round trip");
        for round in 1..9 {
            rack.note_duplicate();
            rack.update_window(round * 10, round * 10 + 9);
        }
        assert_eq!(rack.window(&seen, true, &rtt()), 100 * MS);
        for _ in 0..REO_WND_PERSIST {
            rack.recovery_over();
        }
        rack.update_window(200, 210);
        assert_eq!(rack.window(&seen, true, &rtt()), 20 * MS);
    }
}
