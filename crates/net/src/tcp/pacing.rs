//! The pacing rate, the size of super-packets that follows from it, and pacing.
//!
//! The rate is always calculated, as on Linux. It determines the size of super-packets, so that a
//! slow path gets a steady stream and no bursts. Segments are held back to keep to the rate only if
//! the owner limits it or asks for pacing. Linux, too, paces only with the `fq` queueing discipline
//! or such a limit.

use super::congestion::PathState;
use super::connection::{Connection, TIMESTAMPS_LEN};
use super::output::Egress;
use crate::gso::TCP_SEGMENTS_MAX;
use crate::time::{Duration, Instant};
use crate::wire::tcp::HEADER_LEN;

/// Rate of a connection, in bytes per second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pacing {
    /// Rate that follows from the congestion window, at most `max`.
    pub(super) rate: u64,
    /// The owner's limit (`SO_MAX_PACING_RATE`); [`RATE_UNLIMITED`] if there is none.
    pub(super) max: u64,
    /// No new data is sent before this time.
    next_at: Instant,
}

impl Default for Pacing {
    fn default() -> Self {
        Self { rate: RATE_UNLIMITED, max: RATE_UNLIMITED, next_at: Instant::START }
    }
}

impl Connection {
    /// Limits the rate at which this connection sends to `rate` bytes per second
    /// (`SO_MAX_PACING_RATE`); `None` removes the limit.
    pub fn set_max_pacing_rate(&mut self, rate: Option<u64>) {
        let pacing = &mut self.send.pacing;
        pacing.max = rate.unwrap_or(RATE_UNLIMITED);
        pacing.rate = pacing.rate.min(pacing.max);
    }

    /// Takes the rate from the congestion controller, after an ACK or the start of a transmission.
    pub(super) fn update_pacing_rate(&mut self) {
        let rate = self.congestion.pacing_rate(&PathState {
            srtt: self.rtt.srtt(),
            mss: self.send.mss,
            outstanding: self.send.board.totals().packets_out,
            slow_start_ratio: self.settings.pacing_ss_ratio,
            avoidance_ratio: self.settings.pacing_ca_ratio,
        });
        let pacing = &mut self.send.pacing;
        pacing.rate = rate.min(pacing.max);
    }

    /// True if segments are paced.
    pub(super) fn is_paced(&self) -> bool {
        self.settings.pacing || self.send.pacing.max != RATE_UNLIMITED || self.congestion.paces()
    }

    /// When pacing lets the next segment go; `None` if it may go now.
    pub(super) fn paced_until(&self, now: Instant) -> Option<Instant> {
        let at = self.send.pacing.next_at;
        (self.is_paced() && at > now).then_some(at)
    }

    /// Accounts for `bytes` of payload that were sent.
    pub(super) fn pace(&mut self, bytes: u32, now: Instant) {
        if !self.is_paced() || self.counters.data_segs_out < UNPACED_SEGMENTS {
            return;
        }
        let pacing = &mut self.send.pacing;
        let micros = u64::from(bytes) * 1_000_000 / pacing.rate.max(1);
        let wait = Duration::from_micros(micros);
        // Give credit for lateness: a late timer must not lower the rate. If the controller depends
        // on the rate, the segments of a burst follow at once, if it is short beside a round trip.
        let mut credit_max = wait / 2;
        if self.congestion.paces() {
            credit_max = credit_max.max(BURST.min(self.rtt.min().unwrap_or_default() / 8));
        }
        let credit = now.since(pacing.next_at).min(credit_max);
        let base = now.max(pacing.next_at).micros() - credit.as_micros() as u64;
        pacing.next_at = Instant::from_micros(base) + wait;
    }

    /// Segments of `size` bytes in a super-packet: about a millisecond of the rate, and more on a
    /// path that is so short that bursts do no harm.
    pub(super) fn super_segments(&self, egress: &Egress, size: u32) -> u32 {
        if let Some(quantum) = self.congestion.send_quantum() {
            return (quantum / size).clamp(1, self.super_segments_max(egress, size));
        }
        let mut bytes = self.send.pacing.rate >> PACING_SHIFT;
        let min_us = self.rtt.min().map_or(u32::MAX, |min| min.as_micros() as u32);
        bytes += u64::from(SUPER_BYTES.checked_shr(min_us >> TSO_RTT_LOG).unwrap_or(0));
        let bytes = bytes.min(u64::from(SUPER_BYTES)) as u32;
        let segments = (bytes / size).max(self.settings.min_tso_segs.max(1));
        segments.min(self.super_segments_max(egress, size))
    }

    /// Segments of `size` bytes in the largest possible packet.
    pub(super) fn super_segments_max(&self, egress: &Egress, size: u32) -> u32 {
        let headers = egress.ip_header_len + HEADER_LEN as u32 + TIMESTAMPS_LEN + SACK_LEN;
        ((SUPER_BYTES - headers) / size).clamp(1, TCP_SEGMENTS_MAX as u32)
    }
}

/// Pacing rate without a limit.
pub const RATE_UNLIMITED: u64 = u64::MAX;
/// Largest packet: the length field of IP has 16 bits.
pub(super) const SUPER_BYTES: u32 = 65_535;
/// Bytes of the option for three SACK blocks, the most that fit beside timestamps.
const SACK_LEN: u32 = 28;
/// Time whose data may follow at once after a late timer; as much as a send quantum of
/// draft-ietf-ccwg-bbr §5.6.3.
const BURST: Duration = Duration::from_millis(1);
/// A super-packet holds 1/2^10 s of the rate; Linux's default.
const PACING_SHIFT: u32 = 10;
/// Each 2^9 us of round trip halve the additional size (`tcp_tso_rtt_log`).
const TSO_RTT_LOG: u32 = 9;
/// The first segments of a connection are not paced, as on Linux without `fq`.
const UNPACED_SEGMENTS: u32 = 10;
