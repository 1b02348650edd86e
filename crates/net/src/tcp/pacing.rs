//! The pacing rate, the size of super-packets that follows from it, and pacing.
//!
//! The rate is always calculated. It determines the size of super-packets, so that a slow path gets
//! a steady stream and no bursts. Segments are held back to keep to the rate only if the owner
//! limits it or asks for pacing.

use super::egress::Egress;
use super::segment::{SUPER_BYTES, TIMESTAMPS_LEN};
use super::settings::Settings;
use crate::gso::TCP_SEGMENTS_MAX;
use crate::time::{Duration, Instant};
use crate::wire::tcp::HEADER_LEN;

/// Pacing rate without a limit.
pub const RATE_UNLIMITED: u64 = u64::MAX;
/// Bytes of the option for three SACK blocks, the most that fit beside timestamps.
const SACK_LEN: u32 = 28;
/// A super-packet holds 1/2^10 s of the rate; Linux's default.
const PACING_SHIFT: u32 = 10;
/// Each 2^9 us of round trip halve the additional size (`tcp_tso_rtt_log`).
const TSO_RTT_LOG: u32 = 9;
/// The first segments of a connection are not paced
/// (`slow_start/slow-start-fq-ack-per-2pkt.pkt`).
const UNPACED_SEGMENTS: u32 = 10;

/// Rate of a connection, in bytes per second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pacing {
    /// Rate that follows from the congestion window, at most `max`.
    rate: u64,
    /// The owner's limit (`SO_MAX_PACING_RATE`); [`RATE_UNLIMITED`] if there is none.
    max: u64,
    /// Segments are paced even without a limit.
    always: bool,
    /// No new data is sent before this time.
    next_at: Instant,
}

impl Pacing {
    /// An unlimited rate.
    pub(super) fn new(settings: &Settings) -> Self {
        let always = settings.pacing;
        Self { rate: RATE_UNLIMITED, max: RATE_UNLIMITED, always, next_at: Instant::START }
    }

    /// Limits the rate; `None` removes the limit.
    pub(super) fn set_max(&mut self, rate: Option<u64>) {
        self.max = rate.unwrap_or(RATE_UNLIMITED);
        self.rate = self.rate.min(self.max);
    }

    /// Takes the rate that the congestion controller chose.
    pub(super) fn set_rate(&mut self, rate: u64) {
        self.rate = rate.min(self.max);
    }

    /// True if segments are paced, whatever the controller does.
    pub(super) fn is_on(&self) -> bool {
        self.always || self.max != RATE_UNLIMITED
    }

    /// When the rate lets the next segment go; `None` if it may go now.
    pub(super) fn until(&self, now: Instant) -> Option<Instant> {
        (self.next_at > now).then_some(self.next_at)
    }

    /// Accounts for `bytes` of payload that were sent at the rate, `segments` in total. Up to
    /// `burst` of the rate may follow at once after a late timer.
    pub(super) fn sent(&mut self, bytes: u32, segments: u32, burst: Duration, now: Instant) {
        if segments < UNPACED_SEGMENTS {
            return;
        }
        let micros = u64::from(bytes) * 1_000_000 / self.rate.max(1);
        let wait = Duration::from_micros(micros);
        // Give credit for lateness: a late timer must not lower the rate.
        let credit = now.since(self.next_at).min(burst.max(wait / 2));
        let base = now.max(self.next_at).micros() - credit.as_micros() as u64;
        self.next_at = Instant::from_micros(base) + wait;
    }

    /// Segments of `size` bytes in a super-packet: about a millisecond of the rate, at least
    /// `least`, and more on a path that is so short that bursts do no harm.
    pub(super) fn super_segments(
        &self,
        egress: &Egress,
        size: u32,
        min_rtt: Option<Duration>,
        least: u32,
    ) -> u32 {
        let min_us = min_rtt.map_or(u32::MAX, |min| min.as_micros() as u32);
        let more = SUPER_BYTES.checked_shr(min_us >> TSO_RTT_LOG).unwrap_or(0);
        let bytes = (self.rate >> PACING_SHIFT) + u64::from(more);
        let bytes = bytes.min(u64::from(SUPER_BYTES)) as u32;
        (bytes / size).max(least.max(1)).min(super_segments_max(egress, size))
    }

    /// The rate and its limit.
    pub(super) fn rates(&self) -> (u64, u64) {
        (self.rate, self.max)
    }
}

/// Segments of `size` bytes in the largest possible packet.
pub(super) fn super_segments_max(egress: &Egress, size: u32) -> u32 {
    let headers = egress.ip_header_len + HEADER_LEN as u32 + TIMESTAMPS_LEN + SACK_LEN;
    ((SUPER_BYTES - headers) / size).clamp(1, TCP_SEGMENTS_MAX as u32)
}
