//! What the sender reports of itself.

use super::Sender;
use crate::tcp::info::Info;
use crate::time::{Duration, Instant};

impl Sender {
    /// Fills in the sender's part.
    pub(in crate::tcp) fn fill(&self, info: &mut Info, now: Instant) {
        let (rtt, window, counts) = (&self.rtt, self.congestion.window(), &self.counts);
        let (busy, peer_window, buffer) = self.chrono.times(now);
        let millis = |at: Instant| now.since(at).as_millis() as u32;
        let micros = |duration: Duration| duration.as_micros() as u32;
        self.recovery.fill(info, self.path.mss(), now);
        info.probes = info.probes.max(self.persist.unanswered());
        info.backoff = rtt.backoff().max(self.persist.backoff());
        info.snd_wscale = self.window.scale();
        info.rto = micros(rtt.rto());
        info.snd_mss = self.path.mss();
        info.last_data_sent = millis(self.data_sent_at);
        info.last_ack_recv = millis(self.acked_at);
        info.rtt = rtt.srtt().map_or(0, micros);
        info.rttvar = micros(rtt.variation());
        info.snd_ssthresh = window.ssthresh();
        info.snd_cwnd = window.cwnd();
        info.delivered_ce = counts.marked;
        (info.pacing_rate, info.max_pacing_rate) = self.pacing.rates();
        info.bytes_acked = counts.acked;
        info.notsent_bytes = self.unsent_numbers();
        info.min_rtt = rtt.min().map_or(u32::MAX, micros);
        info.data_segs_out = counts.segments;
        info.busy_time = busy.as_micros() as u64;
        info.rwnd_limited = peer_window.as_micros() as u64;
        info.sndbuf_limited = buffer.as_micros() as u64;
        info.bytes_sent = counts.bytes;
        info.bytes_retrans = counts.bytes_again;
        info.snd_wnd = self.window.size();
    }
}
