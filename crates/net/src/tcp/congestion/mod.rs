//! Congestion control: how much data may be in flight, and how fast it is sent.
//!
//! # Theory of operation
//!
//! The connection decides which segments are delivered and lost. It reports that to [`Congestion`],
//! which owns the [`Window`] and one controller, and reads the window, the pacing rate and the size
//! of bursts from it. [`Controller`] has a method for each report. The provided methods are those
//! of a window-based sender: NewReno growth (RFC 5681 §3.1), proportional rate reduction during
//! recovery (RFC 6937), restart after an idle period (RFC 5681 §4.1), validation of the window
//! (RFC 7661), the response to a spurious loss (RFC 4015), and a pacing rate that follows the
//! window. A controller replaces those that it does differently.
//!
//! For each ACK the order of reports is: [`Congestion::on_rtt`] if there is a round-trip sample;
//! [`Congestion::on_lost`] for each record that is now lost; [`Congestion::on_congestion`],
//! [`Congestion::on_recovered`], [`Congestion::on_spurious`] and [`Congestion::on_state`] when loss
//! recovery changes its state; [`Congestion::on_ack`]; [`Congestion::pacing_rate`].
//!
//! A controller is one file, and one line in the list of `controllers!`. Calls are dispatched
//! statically, and a controller lies in its connection: nothing is allocated.

mod bbr;
mod controller;
mod cubic;
mod cwnd;
mod hystart;
mod prr;
mod reno;
mod reports;
#[cfg(test)]
mod tests;

use super::seq::Seq;
use crate::time::{Duration, Instant};
pub use controller::Controller;
pub use cwnd::{CWND_MAX, INITIAL_SEGMENTS, SSTHRESH_INFINITE, Window};
pub use reports::{Ack, CaState, Lost, PathState, RateSample, RttSample, Start};

/// Defines [`Kind`] and the dispatch to the controllers. Each line has the name of the variant, its
/// name in `TCP_CONGESTION`, its type, and its documentation. An attribute marks the default.
macro_rules! controllers {
    ($($(#[$attribute:meta])* $kind:ident $name:literal $controller:ty, $doc:literal;)*) => {
        /// A congestion controller.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
        pub enum Kind {
            $($(#[$attribute])* #[doc = $doc] $kind,)*
        }

        impl Kind {
            /// All controllers.
            pub const ALL: &[Kind] = &[$(Kind::$kind,)*];

            /// Name of the controller, as in `TCP_CONGESTION`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Kind::$kind => $name,)*
                }
            }
        }

        #[derive(Clone, Debug)]
        #[expect(clippy::large_enum_variant, reason = "nothing is allocated")]
        enum AnyController {
            $($kind($controller),)*
        }

        impl AnyController {
            fn new(kind: Kind, start: &Start) -> Self {
                match kind {
                    $(Kind::$kind => Self::$kind(<$controller>::new(start)),)*
                }
            }

            fn kind(&self) -> Kind {
                match self {
                    $(Self::$kind(_) => Kind::$kind,)*
                }
            }
        }

        /// Calls one method of the current controller.
        macro_rules! dispatch {
            ($any:expr, $one:ident => $call:expr) => {
                match $any {
                    $(AnyController::$kind($one) => $call,)*
                }
            };
        }
    };
}

controllers! {
    Reno "reno" reno::Reno, "NewReno (RFC 5681, RFC 6582).";
    #[default] Cubic "cubic" cubic::Cubic, "CUBIC (RFC 9438) with HyStart.";
    Bbr "bbr" bbr::Bbr, "BBR (draft-ietf-ccwg-bbr), version 3.";
}

impl Kind {
    /// The controller that is called `name` in `TCP_CONGESTION`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }
}

/// Window and controller of one connection.
#[derive(Clone, Debug)]
pub struct Congestion {
    window: Window,
    controller: AnyController,
}

impl Congestion {
    /// A window of `initial` segments; `next` is the first sequence number to be sent.
    pub fn new(kind: Kind, initial: u32, next: Seq, now: Instant) -> Self {
        let window = Window::new(initial, next, now);
        Self { window, controller: AnyController::new(kind, &Start { next, now }) }
    }

    /// Switches to another controller at the same window. Setting the current one does nothing, so
    /// that a program may set its choice again and keep what was learned.
    pub fn set_kind(&mut self, kind: Kind, next: Seq, now: Instant) {
        if self.kind() != kind {
            self.controller = AnyController::new(kind, &Start { next, now });
        }
    }

    /// The controller in use.
    pub fn kind(&self) -> Kind {
        self.controller.kind()
    }

    /// The window.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// The window, for corrections of its unit and of its accounting.
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

    /// Reports a round-trip sample.
    pub fn on_rtt(&mut self, sample: &RttSample) {
        dispatch!(&mut self.controller, one => one.on_rtt(&mut self.window, sample));
    }

    /// Reports an ACK, after its losses and changes of state.
    pub fn on_ack(&mut self, ack: &Ack) {
        dispatch!(&mut self.controller, one => one.on_ack(&mut self.window, ack));
    }

    /// Reports that a record is lost.
    pub fn on_lost(&mut self, lost: &Lost) {
        dispatch!(&mut self.controller, one => one.on_lost(&mut self.window, lost));
    }

    /// Reports congestion to which the window responds once per round trip: loss, ECN marks (RFC
    /// 3168 §6.1.2), or drops of our own device.
    pub fn on_congestion(&mut self, now: Instant) {
        dispatch!(&mut self.controller, one => one.on_congestion(&mut self.window, now));
    }

    /// Reports that the reordering timer found `lost` segments (RFC 8985 §6.3), which leaves
    /// `in_flight`.
    pub fn on_late(&mut self, lost: u32, in_flight: u32) {
        dispatch!(&mut self.controller, one => one.on_late(&mut self.window, lost, in_flight));
    }

    /// Reports a retransmission timeout. `first` means that it begins an episode.
    pub fn on_timeout(&mut self, first: bool, in_flight: u32, now: Instant) {
        let window = &mut self.window;
        dispatch!(&mut self.controller, one => one.on_timeout(window, first, in_flight, now));
    }

    /// Reports the end of a reduction. `keep` means that its threshold becomes the window.
    pub fn on_recovered(&mut self, keep: bool, now: Instant) {
        dispatch!(&mut self.controller, one => one.on_recovered(&mut self.window, keep, now));
    }

    /// Reports that the last reduction was a mistake. `ssthresh` is the threshold before it, `None`
    /// if it must not be undone.
    pub fn on_spurious(&mut self, ssthresh: Option<u32>, now: Instant) {
        dispatch!(&mut self.controller, one => one.on_spurious(&mut self.window, ssthresh, now));
    }

    /// Reports that loss recovery enters `state`; `next` is the next sequence number to be sent.
    pub fn on_state(&mut self, state: CaState, next: Seq, now: Instant) {
        dispatch!(&mut self.controller, one => one.on_state(&mut self.window, state, next, now));
        self.window.set_state(state);
    }

    /// Reports that `segments` were sent, for the first time or again, except as a probe.
    pub fn on_sent(&mut self, segments: u32) {
        dispatch!(&mut self.controller, one => one.on_sent(&mut self.window, segments));
    }

    /// Reports that data is about to be sent while nothing is in flight. `idle` is the time since
    /// data was last sent; `app_limited` means that the application had no data in between.
    pub fn on_transmit_start(&mut self, idle: Duration, app_limited: bool, now: Instant) {
        let (window, limited) = (&mut self.window, app_limited);
        dispatch!(&mut self.controller, one => one.on_transmit_start(window, idle, limited, now));
    }

    /// Reports an idle period that is longer than `rto`, before new data is sent.
    pub fn on_idle(&mut self, idle: Duration, rto: Duration, now: Instant) {
        dispatch!(&mut self.controller, one => one.on_idle(&mut self.window, idle, rto, now));
    }

    /// Reports that the window was not in full use for a timeout or longer. `starved` means that
    /// the size of the send buffer prevented it.
    pub fn on_unused(&mut self, starved: bool, now: Instant) {
        dispatch!(&mut self.controller, one => one.on_unused(&mut self.window, starved, now));
    }

    /// Pacing rate in bytes per second, after an ACK or the start of a transmission.
    pub fn pacing_rate(&mut self, path: &PathState) -> u64 {
        dispatch!(&mut self.controller, one => one.pacing_rate(&self.window, path))
    }

    /// True if the controller depends on pacing.
    pub fn paces(&self) -> bool {
        dispatch!(&self.controller, one => one.paces())
    }

    /// Bytes to send as one burst, if the controller chooses that.
    pub fn send_quantum(&self) -> Option<u32> {
        dispatch!(&self.controller, one => one.send_quantum())
    }

    /// True if the controller itself keeps the path from being full: rate samples count as limited
    /// by the application.
    pub fn limits_itself(&self) -> bool {
        dispatch!(&self.controller, one => one.limits_itself())
    }
}
