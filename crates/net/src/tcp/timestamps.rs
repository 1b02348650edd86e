//! Timestamps of a connection (RFC 7323).

use super::segment::Segment;
use super::seq::Seq;
use crate::time::{Duration, Instant};

/// Age at which a remembered timestamp no longer rejects segments (RFC 7323 §5.5).
pub(crate) const PAWS_VALID: Duration = Duration::from_secs(24 * 24 * 3600);

/// TCP timestamps (RFC 7323).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timestamps {
    /// Both sides send them.
    enabled: bool,
    offset: u32,
    /// TS.Recent of RFC 7323 §4.3, and when it was taken.
    recent: u32,
    recent_at: Instant,
}

impl Timestamps {
    /// Timestamps that are not in use yet; ours will have this offset.
    pub(super) fn new(offset: u32, now: Instant) -> Self {
        Self { enabled: false, offset, recent: 0, recent_at: now }
    }

    /// Sets the offset of ours.
    pub(super) fn set_offset(&mut self, offset: u32) {
        self.offset = offset;
    }

    /// Puts timestamps in use: the peer's SYN has `value`.
    pub(super) fn agree(&mut self, value: u32, now: Instant) {
        self.enabled = true;
        self.set_recent(value, now);
    }

    /// Remembers the peer's timestamp.
    pub(crate) fn set_recent(&mut self, value: u32, now: Instant) {
        (self.recent, self.recent_at) = (value, now);
    }

    /// Remembers the timestamp of a segment that begins at or before the last ACK sent (RFC 7323
    /// §4.3).
    pub(super) fn keep(&mut self, segment: &Segment, acked: Seq, now: Instant) {
        if let Some(value) = self.of(segment)
            && segment.seq().at_or_before(acked)
            && (Seq(value).at_or_after(Seq(self.recent)) || self.age(now) >= PAWS_VALID)
        {
            self.set_recent(value, now);
        }
    }

    /// True if both sides send timestamps.
    pub(crate) fn enabled(&self) -> bool {
        self.enabled
    }

    /// Timestamp value at `now`: milliseconds plus the connection's own offset.
    pub(crate) fn value(&self, now: Instant) -> u32 {
        (now.millis() as u32).wrapping_add(self.offset)
    }

    /// The option of our SYN, or of a segment if timestamps are in use.
    pub(crate) fn option(&self, now: Instant) -> (u32, u32) {
        (self.value(now), self.recent)
    }

    /// The peer's last timestamp.
    pub(crate) fn recent(&self) -> u32 {
        self.recent
    }

    /// Time since the peer's last timestamp.
    pub(crate) fn age(&self, now: Instant) -> Duration {
        now.since(self.recent_at)
    }

    /// The timestamp of a segment, if timestamps are in use.
    pub(crate) fn of(&self, segment: &Segment) -> Option<u32> {
        segment.options.timestamps.filter(|_| self.enabled).map(|(value, _)| value)
    }

    /// The timestamp that a segment echoes, if timestamps are in use.
    pub(super) fn echo_of(&self, segment: &Segment) -> Option<u32> {
        let echo = segment.options.timestamps.filter(|_| self.enabled).map(|(_, echo)| echo);
        echo.filter(|echo| *echo != 0)
    }

    /// Time since the echoed timestamp was sent; `None` if it is in the future.
    pub(super) fn since_echo(&self, echo: u32, now: Instant) -> Option<Duration> {
        // Half of the numbers are in the future.
        let millis = self.value(now).wrapping_sub(echo);
        (millis >> 31 == 0).then(|| Duration::from_millis(millis.into()))
    }

    /// True if the segment is an old duplicate (PAWS, RFC 7323 §5.3 R1).
    pub(super) fn is_old(&self, segment: &Segment, now: Instant) -> bool {
        let old = self.of(segment).is_some_and(|value| Seq(value).before(Seq(self.recent)));
        old && self.age(now) < PAWS_VALID
    }
}
