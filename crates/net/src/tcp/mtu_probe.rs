//! Search for the path MTU by probes (RFC 4821), as on Linux: no router has to report anything.
//!
//! # Theory of operation
//!
//! `Settings::mtu_probing` says when to search: never (0), after a suspected black hole (1), or
//! always (2). What the path takes lies between `low`, which is proven or assumed, and `high`.
//! During a search segments are no larger than `low`. Now and then a larger one is sent: a *probe*
//! of real data, half-way between the two, and only if enough data follows that its loss is noticed
//! without a timeout. If the probe arrives, `low` rises to its size. If it alone is lost, `high`
//! falls below its size, and the loss does not count as congestion. A retransmission before that
//! makes the probe void. When the two are close, the search stops. It begins again after
//! `Settings::probe_interval`, as paths change.
//!
//! Consecutive timeouts suggest a black hole: the first one starts a search, each further one
//! halves `low`.

use super::congestion::CaState;
use super::connection::{Connection, MSS_MIN};
use super::output::{Kind, Plan};
use super::seq::Seq;
use crate::time::Instant;

/// Least congestion window for a probe, in segments, so that the probe is a small part of it.
const WINDOW_MIN: u32 = 11;

/// State of the search; sizes as in `path`.
pub(super) struct Search {
    pub(super) enabled: bool,
    /// Size that the path takes, proven or assumed.
    pub(super) low: u32,
    /// Size beyond which the path takes nothing.
    pub(super) high: u32,
    probe: Option<Probe>,
    /// When the search began.
    since: Instant,
}

/// A probe in flight.
#[derive(Clone, Copy)]
struct Probe {
    size: u32,
    start: Seq,
    end: Seq,
}

/// What to do about a probe now.
pub(super) enum Attempt {
    /// No probe.
    No,
    /// Wait until the window has room for the probe.
    Wait,
    /// Send the probe.
    Send(Plan),
}

impl Search {
    /// State before any search.
    pub(super) fn new(now: Instant) -> Self {
        Self { enabled: false, low: 0, high: u32::MAX, probe: None, since: now }
    }

    /// True if a probe is in flight.
    pub(super) fn is_probing(&self) -> bool {
        self.probe.is_some()
    }

    /// Makes the probe void: after a retransmission its outcome proves nothing.
    pub(super) fn forget_probe(&mut self) {
        self.probe = None;
    }
}

impl Connection {
    /// Prepares the search after the handshake, as on Linux. The side that opened the connection
    /// uses the assumed size at once, the other side from the first change of its path on.
    pub(super) fn begin_path(&mut self, now: Instant) {
        if !self.passive {
            self.begin_search(now);
        }
        self.sync_mss(self.path.sizes.path);
        self.begin_search(now);
    }

    fn begin_search(&mut self, now: Instant) {
        self.path.search = Search {
            enabled: self.settings.mtu_probing > 1,
            low: self.settings.base_mss.saturating_add(self.options_len()),
            high: self.mss_clamp().min(self.path.sizes.link),
            probe: None,
            since: now,
        };
    }

    /// Decides whether to send a probe before other data, by Linux's rules.
    pub(super) fn attempt_probe(&mut self, now: Instant) -> Attempt {
        let search = &self.path.search;
        let window = self.congestion.cwnd();
        let calm = self.recovery.state == CaState::Open && self.send.loss_probe.is_none();
        // SACK blocks would make other segments smaller than planned.
        let blocks = self.receive.sack_blocks(self.timestamps.enabled);
        if search.is_probing() || !calm || window < WINDOW_MIN || blocks > 0 {
            return Attempt::No;
        }
        let size = self.payload_of(u32::midpoint(search.low, search.high));
        let near = search.high < search.low.saturating_add(self.settings.probe_threshold);
        if near || size > self.payload_of(search.high) {
            self.search_again(now);
            return Attempt::No;
        }
        let (next, edge) = (self.send.nxt, self.send.una + self.send.wnd);
        // Enough segments behind the probe to reveal its loss.
        let needed = size + (self.recovery.reordering + 1) * self.send.mss;
        if self.send.unsent() < needed || self.send.wnd < needed {
            return Attempt::No;
        }
        if (next + needed).after(edge) {
            return Attempt::Wait;
        }
        let in_flight = self.send.board.in_flight();
        if in_flight + 2 > window {
            return if in_flight == 0 { Attempt::No } else { Attempt::Wait };
        }
        let end = self.send.writes.end_beyond(next, size);
        if end.is_some_and(|end| end.record && end.at.before(next + size)) {
            return Attempt::No;
        }
        let flags = self.push_flag(next + size, 1);
        Attempt::Send(Plan { seq: next, len: size, fin: false, flags, kind: Kind::MtuProbe })
    }

    /// Restarts a search that is over, after `probe_interval`, from the size in use.
    fn search_again(&mut self, now: Instant) {
        if now.since(self.path.search.since) >= self.settings.probe_interval {
            self.begin_search(now);
            self.path.search.enabled = true;
            self.path.search.low = self.send.mss.saturating_add(self.options_len());
        }
    }

    /// Accounts for a probe that was sent. It counts as two segments.
    pub(super) fn mtu_probe_sent(&mut self, plan: &Plan) {
        let size = plan.len + self.options_len();
        self.path.search.probe = Some(Probe { size, start: plan.seq, end: plan.end() });
        let window = self.congestion.window_mut();
        window.set_cwnd(window.cwnd() - 1);
    }

    /// Raises the size if the probe is acknowledged. The congestion window keeps its size in bytes.
    pub(super) fn judge_mtu_probe(&mut self, now: Instant) {
        let una = self.send.una;
        let Some(probe) = self.path.search.probe.take_if(|probe| una.at_or_after(probe.end)) else {
            return;
        };
        let headers = self.path_mtu() - self.path.sizes.path;
        let before = u64::from(self.send.mss + self.options_len() + headers);
        self.recovery.prior_ssthresh = Some(self.current_ssthresh());
        let window = self.congestion.window_mut();
        let cwnd = u64::from(window.cwnd()) * before / u64::from(probe.size + headers);
        window.set_cwnd(u32::try_from(cwnd).unwrap_or(u32::MAX));
        window.clear_credit();
        window.restamp_use(now);
        let ssthresh = self.current_ssthresh();
        self.congestion.window_mut().set_ssthresh(ssthresh);
        self.path.search.low = probe.size;
        self.sync_mss(self.path.sizes.path);
    }

    /// Called before recovery begins. Returns true if the first outstanding segment is the probe:
    /// the path does not take it, which is no sign of congestion (RFC 4821 §7.6.2).
    pub(super) fn loses_mtu_probe(&mut self, now: Instant) -> bool {
        let una = self.send.una;
        let calm = self.recovery.state < CaState::Cwr;
        let lost = self.path.search.probe.take_if(|probe| calm && probe.start == una);
        let Some(probe) = lost else { return false };
        self.path.search.high = probe.size - 1;
        let window = self.congestion.window_mut();
        window.set_cwnd(window.cwnd() + 1);
        self.resend_larger(now);
        true
    }

    /// Reacts to consecutive timeouts: a router may drop large packets silently (RFC 4821 §7.7).
    pub(super) fn suspect_black_hole(&mut self, now: Instant) {
        if self.settings.mtu_probing == 0 {
            return;
        }
        if self.path.search.enabled {
            let half = self.payload_of(self.path.search.low) / 2;
            let least = self.settings.mtu_probe_floor.max(MSS_MIN);
            let mss = half.min(self.settings.base_mss).max(least);
            self.path.search.low = mss.saturating_add(self.options_len());
        } else {
            self.path.search.enabled = true;
            self.path.search.since = now;
        }
        self.sync_mss(self.path.sizes.path);
    }
}
