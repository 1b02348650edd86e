//! Congestion control: how much data may be in flight.
//!
//! The connection reports acknowledgments, losses and timeouts; the algorithm answers with a window
//! and a threshold in segments. Other modules decide which segments are lost, and how the window is
//! reduced during recovery.
//!
//! # Theory of operation
//!
//! [`Congestion`] is a [`Window`] and one of the algorithms. The hooks of [`Algorithm`] are called
//! when Linux calls those of its congestion control modules, so that an algorithm behaves as it
//! does there: [`Congestion::on_sample`] for each ACK with a round-trip sample, then
//! [`Congestion::on_ack`] if the window may grow, [`Congestion::loss_ssthresh`] when loss recovery
//! or a congestion reduction begins, [`Congestion::undo_cwnd`] when that was a mistake, and
//! [`Congestion::on_state`] at each change.

mod cubic;
mod cwnd;
mod hystart;
mod reno;
#[cfg(test)]
mod tests;

use super::seq::Seq;
use crate::time::{Duration, Instant};
use cubic::Cubic;
pub use cwnd::{CWND_MAX, INITIAL_SEGMENTS, SSTHRESH_INFINITE, Window};
use reno::Reno;

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

/// A congestion control algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Kind {
    /// NewReno (RFC 5681, RFC 6582).
    Reno,
    /// CUBIC (RFC 9438) with HyStart.
    #[default]
    Cubic,
}

impl Kind {
    /// The algorithm that Linux calls `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "reno" => Some(Kind::Reno),
            "cubic" => Some(Kind::Cubic),
            _ => None,
        }
    }

    /// Linux's name of the algorithm.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Reno => "reno",
            Kind::Cubic => "cubic",
        }
    }
}

/// Segments newly acknowledged while the window may grow.
#[derive(Clone, Copy, Debug)]
pub struct Ack {
    /// Number of segments.
    pub acked: u32,
    /// Time of the ACK.
    pub now: Instant,
}

/// A round-trip sample, and what is needed to judge it.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
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

/// An event of the window or of the data flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The first segment is sent while nothing is outstanding.
    TransmitStart {
        /// Time since data was last sent.
        idle: Duration,
        /// The moment of sending.
        now: Instant,
    },
    /// The window was reduced after an idle period.
    WindowRestart,
    /// A reduction of the window is complete.
    CwrComplete,
    /// A retransmission timeout.
    Loss,
}

/// Hooks of an algorithm. Those with a body are optional.
pub trait Algorithm {
    /// Returns the threshold after a loss or another sign of congestion.
    fn ssthresh(&mut self, window: &Window) -> u32;

    /// Takes newly acknowledged segments; the window may grow.
    fn on_ack(&mut self, window: &mut Window, ack: &Ack);

    /// Takes a round-trip sample.
    fn on_sample(&mut self, _: &mut Window, _: &Sample) {}

    /// Handles an [`Event`].
    fn on_event(&mut self, _: &Window, _: Event) {}

    /// Notes that the connection enters `state`; `next` is the next sequence number to be sent.
    fn on_state(&mut self, _state: CaState, _next: Seq, _now: Instant) {}

    /// Returns the window to restore after a reduction that was a mistake.
    fn undo_cwnd(&self, window: &Window) -> u32 {
        window.cwnd().max(window.prior_cwnd())
    }
}

/// Window and algorithm of one connection.
#[derive(Clone, Copy, Debug)]
pub struct Congestion {
    window: Window,
    algorithm: AnyAlgorithm,
}

#[derive(Clone, Copy, Debug)]
enum AnyAlgorithm {
    Reno(Reno),
    Cubic(Cubic),
}

impl AnyAlgorithm {
    fn new(kind: Kind, next: Seq, now: Instant) -> Self {
        match kind {
            Kind::Reno => AnyAlgorithm::Reno(Reno),
            Kind::Cubic => AnyAlgorithm::Cubic(Cubic::new(next, now)),
        }
    }
}

/// Calls one hook of the current algorithm.
macro_rules! dispatch {
    ($algorithm:expr, $name:ident => $call:expr) => {
        match $algorithm {
            AnyAlgorithm::Reno($name) => $call,
            AnyAlgorithm::Cubic($name) => $call,
        }
    };
}

impl Congestion {
    /// A window of `initial` segments; `next` is the first sequence number to be sent.
    pub fn new(kind: Kind, initial: u32, next: Seq, now: Instant) -> Self {
        let window = Window::new(initial, next, now);
        Self { window, algorithm: AnyAlgorithm::new(kind, next, now) }
    }

    /// Switches to another algorithm at the same window. As on Linux, setting the current one does
    /// nothing.
    pub fn set_kind(&mut self, kind: Kind, next: Seq, now: Instant) {
        if self.kind() != kind {
            self.algorithm = AnyAlgorithm::new(kind, next, now);
        }
    }

    /// The algorithm in use.
    pub fn kind(&self) -> Kind {
        match self.algorithm {
            AnyAlgorithm::Reno(_) => Kind::Reno,
            AnyAlgorithm::Cubic(_) => Kind::Cubic,
        }
    }

    /// The window.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// The window, for loss recovery to set.
    pub fn window_mut(&mut self) -> &mut Window {
        &mut self.window
    }

    /// Congestion window in segments.
    pub fn cwnd(&self) -> u32 {
        self.window.cwnd()
    }

    /// Slow-start threshold in segments.
    pub fn ssthresh(&self) -> u32 {
        self.window.ssthresh()
    }

    /// Returns the threshold that follows from a loss now. The caller sets the window.
    pub fn loss_ssthresh(&mut self) -> u32 {
        dispatch!(&mut self.algorithm, a => a.ssthresh(&self.window))
    }

    /// Reports `acked` newly acknowledged segments, outside of any reduction. The window grows only
    /// if it has been in use.
    pub fn on_ack(&mut self, acked: u32, now: Instant) {
        if acked > 0 && self.window.is_limited() {
            let ack = Ack { acked, now };
            dispatch!(&mut self.algorithm, a => a.on_ack(&mut self.window, &ack));
        }
    }

    /// Reports a round-trip sample.
    pub fn on_sample(&mut self, sample: &Sample) {
        dispatch!(&mut self.algorithm, a => a.on_sample(&mut self.window, sample));
    }

    /// Reports an event of the window or of the data flow.
    pub fn on_event(&mut self, event: Event) {
        dispatch!(&mut self.algorithm, a => a.on_event(&self.window, event));
    }

    /// Reports that the connection enters `state`.
    pub fn on_state(&mut self, state: CaState, next: Seq, now: Instant) {
        dispatch!(&mut self.algorithm, a => a.on_state(state, next, now));
    }

    /// Returns the window to restore after a reduction that was a mistake.
    pub fn undo_cwnd(&self) -> u32 {
        dispatch!(&self.algorithm, a => a.undo_cwnd(&self.window))
    }
}
