//! What the receiver reports of itself.

use super::Receiver;
use crate::tcp::info::Info;
use crate::time::Instant;

impl Receiver {
    /// Fills in the receiver's part.
    pub(in crate::tcp) fn fill(&self, info: &mut Info, now: Instant) {
        let tuning = self.window.tuning();
        info.rcv_wscale = self.window.scale();
        info.ato = self.acks.current_delay().as_micros() as u32;
        info.rcv_mss = self.mss;
        info.last_data_recv = now.since(self.data_at).as_millis() as u32;
        info.rcv_ssthresh = tuning.threshold();
        info.advmss = self.mss_max.saturating_sub(self.options_len());
        info.rcv_rtt = tuning.rtt().as_micros() as u32;
        info.rcv_space = tuning.space();
        info.bytes_received = self.bytes;
        info.rcv_ooopack = self.ahead;
        info.rcv_wnd = self.window.offered();
    }
}
