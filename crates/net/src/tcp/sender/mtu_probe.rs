//! Search for the path MTU by probes (RFC 4821): no router has to report anything.
//!
//! # Theory of operation
//!
//! `Settings::mtu_probing` says when to search: never (0), after a suspected black hole (1), or
//! always (2). What the path takes lies between `low`, which is proven or assumed, and `high`
//! (search_low and search_high of RFC 4821 §7.2). During a search segments are no larger than
//! `low`. Now and then a larger one is sent: a *probe* of real data, half-way between the two, and
//! only if enough data follows that its loss is noticed without a timeout (§7.4). If the probe
//! arrives, `low` rises to its size. If it alone is lost, `high` falls below its size, and the loss
//! does not count as congestion (§7.6.2). A retransmission before that makes the probe void. When
//! the two are close, the search stops. It begins again after `Settings::probe_interval`, as paths
//! change.
//!
//! Consecutive timeouts suggest a black hole (§7.7): the first one starts a search, each further
//! one halves `low`.

use super::search::Search;
use super::{Sender, Turn};
use crate::tcp::congestion::CaState;
use crate::tcp::plan::{Kind, Plan};
use crate::tcp::segment::MSS_MIN;

/// Least congestion window for a probe, in segments, so that the probe is a small part of it
/// (`mtu_probe/basic-v4.pkt`).
const WINDOW_MIN: u32 = 11;

/// What to do about a probe now.
pub(super) enum Attempt {
    /// No probe.
    No,
    /// Wait until the window has room for the probe.
    Wait,
    /// Send the probe.
    Send(Plan),
}

impl Sender {
    /// Prepares the search after the handshake. The side that opened the connection uses the
    /// assumed size at once, the other side from the first change of its path on.
    pub(super) fn begin_path(&mut self, active: bool, turn: Turn<'_>) {
        if active {
            self.begin_search(turn);
        }
        self.path.set_size(self.path.size(), self.window.max());
        self.begin_search(turn);
    }

    fn begin_search(&mut self, turn: Turn<'_>) {
        let low = turn.settings.base_mss.saturating_add(self.path.options_len());
        let high = self.path.mss_clamp().min(self.path.link());
        let enabled = turn.settings.mtu_probing > 1;
        *self.path.search_mut() = Search::begin(enabled, (low, high), turn.now);
    }

    /// Decides whether to send a probe before other data (RFC 4821 §7.4).
    pub(super) fn attempt_probe(&mut self, turn: Turn<'_>) -> Attempt {
        let search = self.path.search();
        let (low, high) = search.range();
        let window = self.congestion.cwnd();
        let calm = self.recovery.state() == CaState::Open && self.recovery.probe_due().is_none();
        // SACK blocks would make other segments smaller than planned.
        if search.probe_start().is_some() || !calm || window < WINDOW_MIN || turn.sack_len > 0 {
            return Attempt::No;
        }
        let size = self.path.payload_of(u32::midpoint(low, high));
        let near = high < low.saturating_add(turn.settings.probe_threshold);
        if near || size > self.path.payload_of(high) {
            self.search_again(turn);
            return Attempt::No;
        }
        let (next, edge) = (self.nxt, self.edge());
        // Enough segments behind the probe to reveal its loss.
        let needed = size + (self.recovery.reordering() + 1) * self.path.mss();
        if self.unsent() < needed || self.window.size() < needed {
            return Attempt::No;
        }
        if (next + needed).after(edge) {
            return Attempt::Wait;
        }
        let in_flight = self.recovery.board().in_flight();
        if in_flight + 2 > window {
            return if in_flight == 0 { Attempt::No } else { Attempt::Wait };
        }
        let end = self.writes.end_beyond(next, size);
        if end.is_some_and(|end| end.record && end.at.before(next + size)) {
            return Attempt::No;
        }
        let flags = self.push_flag(next + size, 1);
        Attempt::Send(Plan { seq: next, len: size, fin: false, flags, kind: Kind::MtuProbe })
    }

    /// Restarts a search that is over, after `probe_interval`, from the size in use.
    fn search_again(&mut self, turn: Turn<'_>) {
        if turn.now.since(self.path.search().since()) >= turn.settings.probe_interval {
            self.begin_search(turn);
            let low = self.path.mss().saturating_add(self.path.options_len());
            self.path.search_mut().enable(low);
        }
    }

    /// Accounts for a probe that was sent. It counts as two segments.
    pub(super) fn mtu_probe_sent(&mut self, plan: &Plan) {
        let size = plan.len + self.path.options_len();
        self.path.search_mut().probed(size, plan.seq, plan.end());
        let window = self.congestion.window_mut();
        window.set_cwnd(window.cwnd() - 1);
    }

    /// Raises the size if the probe is acknowledged. The congestion window keeps its size in bytes.
    pub(super) fn judge_mtu_probe(&mut self, turn: Turn<'_>) {
        let (una, headers) = (self.una, self.path.headers());
        let Some(size) = self.path.search_mut().take_acknowledged(una) else { return };
        let before = u64::from(self.path.mss() + self.path.options_len() + headers);
        let (recovery, cx) = self.recovery(turn);
        let prior = recovery.threshold(&cx);
        recovery.set_prior_threshold(prior);
        let window = cx.congestion.window_mut();
        let cwnd = u64::from(window.cwnd()) * before / u64::from(size + headers);
        window.set_cwnd(u32::try_from(cwnd).unwrap_or(u32::MAX));
        window.clear_credit();
        window.restamp_use(turn.now);
        let ssthresh = recovery.threshold(&cx);
        cx.congestion.window_mut().set_ssthresh(ssthresh);
        self.path.search_mut().set_low(size);
        self.path.set_size(self.path.size(), self.window.max());
    }

    /// Lowers the bound: the probe alone was lost.
    pub(super) fn mtu_probe_lost(&mut self) {
        self.path.search_mut().take_lost();
    }

    /// Reacts to consecutive timeouts: a router may drop large packets silently (RFC 4821 §7.7).
    pub(super) fn suspect_black_hole(&mut self, turn: Turn<'_>) {
        let settings = turn.settings;
        if settings.mtu_probing == 0 {
            return;
        }
        if self.path.search().is_on() {
            let half = self.path.payload_of(self.path.search().range().0) / 2;
            let least = settings.mtu_probe_floor.max(MSS_MIN);
            let mss = half.min(settings.base_mss).max(least);
            let low = mss.saturating_add(self.path.options_len());
            self.path.search_mut().set_low(low);
        } else {
            self.path.search_mut().restart(turn.now);
        }
        self.path.set_size(self.path.size(), self.window.max());
    }
}
