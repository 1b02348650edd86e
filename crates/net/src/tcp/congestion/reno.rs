//! NewReno (RFC 5681, RFC 6582), as Linux's `reno`.

use super::{Ack, Algorithm, Window};

/// NewReno keeps no state beyond the window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reno;

impl Algorithm for Reno {
    fn ssthresh(&mut self, window: &Window) -> u32 {
        // RFC 5681 §3.1 equation (4); the window replaces the flight, which cannot be larger.
        (window.cwnd() / 2).max(2)
    }

    fn on_ack(&mut self, window: &mut Window, ack: &Ack) {
        let left = if window.in_slow_start() { window.slow_start(ack.acked) } else { ack.acked };
        if left > 0 {
            window.avoid(window.cwnd(), left);
        }
    }
}
