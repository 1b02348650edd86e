//! What the connection reports to a congestion controller. Volumes are in segments.

use crate::tcp::seq::Seq;
use crate::time::{Duration, Instant};

/// State of loss recovery, with the values of `tcpi_ca_state` in `TCP_INFO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum CaState {
    /// Nothing unusual.
    #[default]
    Open = 0,
    /// Duplicate ACKs or SACKs, too few to mean a loss.
    Disorder = 1,
    /// The window is being reduced without loss, for ECN or local congestion.
    Cwr = 2,
    /// Fast recovery.
    Recovery = 3,
    /// Recovery after a retransmission timeout.
    Loss = 4,
}

impl CaState {
    /// True while the window is being reduced.
    pub fn is_reducing(self) -> bool {
        matches!(self, CaState::Cwr | CaState::Recovery)
    }
}

/// The beginning of a controller.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// Next sequence number to be sent.
    pub next: Seq,
    /// The current time.
    pub now: Instant,
}

/// A round-trip sample, and what is needed to judge it.
#[derive(Clone, Copy, Debug)]
pub struct RttSample {
    /// Round trip of the last segment that the ACK acknowledged.
    pub rtt: Duration,
    /// First unacknowledged sequence number.
    pub una: Seq,
    /// Next sequence number to be sent.
    pub nxt: Seq,
    /// Pacing rate in bytes per second; zero if unknown.
    pub pacing_rate: u64,
    /// True if segments are paced.
    pub paced: bool,
    /// Bytes of the largest super-packet.
    pub burst_max: u32,
    /// When the ACK arrived.
    pub now: Instant,
}

/// One ACK.
#[derive(Clone, Copy, Debug)]
pub struct Ack {
    /// Segments that it reports as delivered, by cumulative or selective acknowledgment.
    pub delivered: u32,
    /// Segments delivered so far; wraps.
    pub delivered_total: u32,
    /// Segments that became lost with it.
    pub lost: u32,
    /// Segments in flight after it.
    pub in_flight: u32,
    /// It acknowledges data cumulatively.
    pub advanced: bool,
    /// It is progress for which a window may grow.
    pub progress: bool,
    /// The peer reports SACK.
    pub sack: bool,
    /// Payload of a full segment, in bytes.
    pub mss: u32,
    /// The delivery-rate sample, if data was delivered.
    pub rate: Option<RateSample>,
    /// When it arrived.
    pub now: Instant,
}

/// A delivery-rate sample (draft-ietf-ccwg-bbr §4.1): what happened between the sending of the
/// segment sent last of those just delivered, and now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateSample {
    /// Segments delivered in between.
    pub delivered: u32,
    /// Segments that had been delivered when that segment was sent; wraps.
    pub prior_delivered: u32,
    /// Time in which they were sent or acknowledged, the longer of both; `None` if it is shorter
    /// than a round trip can be.
    pub interval: Option<Duration>,
    /// Segments in flight just after that segment was sent, itself included.
    pub in_flight: u32,
    /// Segments that became lost in between.
    pub lost: u32,
    /// The application had no more data to send: the path may be faster.
    pub app_limited: bool,
}

/// A record that is now lost.
#[derive(Clone, Copy, Debug)]
pub struct Lost {
    /// First sequence number.
    pub start: Seq,
    /// Sequence number after the last one.
    pub end: Seq,
    /// Segments in it.
    pub segments: u32,
    /// Segments in flight just after it was sent, itself included.
    pub in_flight: u32,
    /// Segments that became lost since it was sent, itself included.
    pub lost: u32,
    /// The application had no more data to send when it was sent.
    pub app_limited: bool,
    /// Segments delivered so far; wraps.
    pub delivered_total: u32,
    /// When it was found lost.
    pub now: Instant,
}

/// What a pacing rate follows from.
#[derive(Clone, Copy, Debug)]
pub struct PathState {
    /// Smoothed round-trip time, if it is known.
    pub srtt: Option<Duration>,
    /// Payload of a full segment, in bytes.
    pub mss: u32,
    /// Outstanding segments.
    pub outstanding: u32,
    /// Pacing rate in percent of a window per round trip, in the first half of slow start.
    pub slow_start_ratio: u32,
    /// Pacing rate in percent of a window per round trip, later.
    pub avoidance_ratio: u32,
}
