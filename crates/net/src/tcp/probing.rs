//! Path-MTU discovery by trying (RFC 4821), as Linux does it: no router has to tell.
//!
//! # Theory of operation
//!
//! `Settings::mtu_probing` says when the path is searched: never (0), from the first sign of a
//! black hole on (1), or always (2). What the path takes lies between `low`, which is proved or
//! assumed, and `high`. While a search goes on, segments are no larger than `low`. Now and then
//! one is sent that is: a *probe*, of real data, half-way between the two, and only when so much
//! follows it that its loss is noticed without a timeout. If it arrives, `low` rises to it; if it
//! alone is lost, `high` falls below it, and the loss is none of congestion. If something else is
//! sent again before, nothing is known. When the two are close, the search rests, and begins again
//! after `Settings::probe_interval`, as paths change.
//!
//! Timeouts in a row are the sign of a black hole: the first switches a search on, each further
//! one halves `low`.

use super::congestion::CaState;
use super::connection::{Connection, MSS_MIN};
use super::output::{Kind, Plan};
use super::seq::Seq;
use crate::time::Instant;

/// Segments that the congestion window must have, so that a probe is not too much of it.
const WINDOW_MIN: u32 = 11;

/// What is known of the path; sizes as in `path`.
pub(super) struct Search {
    pub(super) enabled: bool,
    /// The path takes this, or so it is assumed.
    pub(super) low: u32,
    /// It takes no more.
    pub(super) high: u32,
    probe: Option<Probe>,
    /// When the search began.
    since: Instant,
}

/// A probe on its way.
#[derive(Clone, Copy)]
struct Probe {
    size: u32,
    start: Seq,
    end: Seq,
}

/// What to do about a probe now.
pub(super) enum Attempt {
    /// Nothing.
    No,
    /// Wait until the window has room for it.
    Wait,
    /// Send it.
    Send(Plan),
}

impl Search {
    /// None yet.
    pub(super) fn new(now: Instant) -> Self {
        Self { enabled: false, low: 0, high: u32::MAX, probe: None, since: now }
    }

    /// A probe is on its way.
    pub(super) fn is_probing(&self) -> bool {
        self.probe.is_some()
    }

    /// Something was sent again: what becomes of the probe tells nothing any more.
    pub(super) fn forget_probe(&mut self) {
        self.probe = None;
    }
}

impl Connection {
    /// The handshake is over (Linux's tcp_mtup_init). A side that began it keeps to what is
    /// assumed at once; the other from the first change of its path on.
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

    /// Whether a probe is to be sent before all else (Linux's tcp_mtu_probe).
    pub(super) fn attempt_probe(&mut self, now: Instant) -> Attempt {
        let search = &self.path.search;
        let window = self.congestion.cwnd();
        let calm = self.recovery.state == CaState::Open && self.send.loss_probe.is_none();
        // SACK blocks would make other segments smaller than they are meant to be.
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
        // As many segments behind it as show that it is lost.
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

    /// The search was over: after a while it begins anew, from what is in use.
    fn search_again(&mut self, now: Instant) {
        if now.since(self.path.search.since) >= self.settings.probe_interval {
            self.begin_search(now);
            self.path.search.enabled = true;
            self.path.search.low = self.send.mss.saturating_add(self.options_len());
        }
    }

    /// A probe goes out. It counts as two segments.
    pub(super) fn mtu_probe_sent(&mut self, plan: &Plan) {
        let size = plan.len + self.options_len();
        self.path.search.probe = Some(Probe { size, start: plan.seq, end: plan.end() });
        let window = self.congestion.window_mut();
        window.set_cwnd(window.cwnd() - 1);
    }

    /// Something was acknowledged: with the probe, the path is known to take it. The window keeps
    /// its size in bytes (Linux's tcp_mtup_probe_success).
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

    /// Recovery is about to begin. True if the first segment outstanding is the probe: the path
    /// does not take it, which is no sign of congestion (RFC 4821 §7.7).
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

    /// Timeouts in a row: a router may drop what is too large without a word (RFC 4821 §7.6.2;
    /// Linux's tcp_mtu_probing).
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
