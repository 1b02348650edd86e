//! How much queued data goes out next: windows, Nagle's algorithm in Minshall's variant,
//! super-packets, and when to wait for a larger one. The decisions are Linux's, taken packet by
//! packet.

use super::chrono::Limit;
use super::congestion::CaState;
use super::connection::Connection;
use super::mtu_probe::Attempt;
use super::output::{Egress, Kind, Plan};
use super::rack::LossProbe;
use super::scoreboard::Sending;
use super::seq::Seq;
use super::writes::End;
use crate::time::{Duration, Instant};
use crate::wire::tcp::Flags;

/// Why no new data is sent now although some is queued.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hold {
    /// The congestion window.
    Congestion,
    /// The peer's window.
    PeerWindow,
    /// The segment is small, or may soon become larger.
    Small,
}

/// Inputs of one decision.
struct Offer {
    /// Bytes of a full segment.
    size: u32,
    /// Segments that the congestion window and the size of super-packets allow.
    quota: u32,
    /// Segments of the largest super-packet that suits the rate.
    most: u32,
    /// Bytes that the peer's window allows.
    window: u32,
    /// End of the buffer to be sent.
    end: End,
    /// Unsent bytes up to that end.
    len: u32,
    /// Nothing is queued behind that end.
    last: bool,
    /// A FIN follows that end.
    fin: bool,
}

impl Connection {
    /// Plans the next packet of new data.
    pub(super) fn plan_new(&mut self, egress: &Egress, now: Instant) -> Option<Plan> {
        if !self.send.has_unsent_numbers() || self.send.board.is_full() {
            if self.send.awaits_peer {
                self.arm_probe(now);
            }
            return None;
        }
        if self.send.partial_allowed {
            let plan = self.plan_partial();
            self.send.partial_allowed = plan.is_some();
            return plan;
        }
        self.timers.pacing = self.paced_until(now);
        if self.timers.pacing.is_some() {
            return None;
        }
        self.restart_after_idle(now);
        if self.path.search.enabled {
            match self.attempt_probe(now) {
                Attempt::Send(plan) => return Some(plan),
                Attempt::Wait => return None,
                Attempt::No => {}
            }
        }
        match self.choose(egress, now) {
            Ok((len, fin)) => {
                let segments = len.div_ceil(self.segment_size());
                let flags = self.push_flag(self.send.nxt + len, segments);
                Some(Plan { seq: self.send.nxt, len, fin, flags, kind: Kind::New })
            }
            Err(hold) => {
                self.hold_back(hold, now);
                None
            }
        }
    }

    /// Chooses how many bytes to send now, and whether the FIN goes with them.
    fn choose(&self, egress: &Egress, now: Instant) -> Result<(u32, bool), Hold> {
        let offer = self.offer(egress)?;
        let first = offer.len.min(offer.size) + u32::from(offer.fin && offer.len <= offer.size);
        if first > offer.window {
            return Err(Hold::PeerWindow);
        }
        if offer.len <= offer.size {
            let probing = self.send.loss_probe.is_some();
            let waits = !(self.send.push_now || probing || self.is_sending_urgent());
            let may_grow = offer.last && !offer.fin && waits;
            if may_grow && self.is_held_by_nagle(offer.len < offer.size) {
                return Err(Hold::Small);
            }
            return Ok((offer.len, offer.fin));
        }
        self.defer(&offer, now)?;
        let urgent = self.is_sending_urgent();
        let len = if urgent { offer.size } else { self.split_point(&offer).min(offer.len) };
        Ok((len, offer.fin && len == offer.len && len < offer.window))
    }

    /// Returns the next buffer to send and what the windows allow of it.
    fn offer(&self, egress: &Egress) -> Result<Offer, Hold> {
        // As on Linux 6.18, the congestion window holds back a FIN alone too.
        let (next, room) = (self.send.nxt, self.window_room());
        if room == 0 {
            return Err(Hold::Congestion);
        }
        let size = self.segment_size();
        let most = self.super_segments(egress, size);
        // Keep at least two super-packets in flight, so that ACKs come steadily.
        let quota = room.min((self.congestion.cwnd() / 2).max(1)).min(most);
        let queue_end = self.send.queue_end();
        let whole = End::of_all(queue_end);
        let mut end = self.send.writes.end_of(next.max(self.send.base)).unwrap_or(whole);
        // Buffers share a packet only if that makes one of the largest size.
        let full = quota * size;
        if quota == self.super_segments_max(egress, size)
            && !end.record
            && end.at.before(next + full)
            && let Some(beyond) = self.send.writes.end_beyond(next, full)
            && (beyond.record || beyond.at.at_or_after(next + full))
        {
            end = beyond;
        }
        let last = end.at == queue_end;
        let edge = self.send.una + self.send.wnd;
        Ok(Offer {
            size,
            quota,
            most,
            window: if edge.after(next) { edge - next } else { 0 },
            end,
            len: if end.at.after(next) { end.at - next } else { 0 },
            last,
            fin: last && self.send.fin_waits(),
        })
    }

    /// Nagle's algorithm (RFC 9293 §3.7.4) in Minshall's variant: only an outstanding small segment
    /// holds back another one. A corked connection holds a small segment in any case.
    fn is_held_by_nagle(&self, small: bool) -> bool {
        let sender = &self.send;
        let small_outstanding = || {
            !sender.board.is_empty()
                && sender.small_end.after(sender.una)
                && sender.small_end.at_or_before(sender.nxt)
        };
        small && (sender.is_corked() || (!sender.nodelay && small_outstanding()))
    }

    /// Bytes of the next packet: as many whole segments as the windows allow, and the last small
    /// segment if it may go.
    fn split_point(&self, offer: &Offer) -> u32 {
        let most = offer.quota * offer.size;
        if most <= offer.window && !offer.last {
            return most;
        }
        let needed = offer.len.min(offer.window);
        if most <= needed {
            return most;
        }
        let partial = needed % offer.size;
        if self.is_held_by_nagle(partial != 0) { needed - partial } else { needed }
    }

    /// Decides whether to wait for the next ACK, which is near and will allow a larger packet. The
    /// rules are Linux's.
    fn defer(&self, offer: &Offer, now: Instant) -> Result<(), Hold> {
        if self.recovery.state >= CaState::Recovery
            || now.since(self.send.transmitted_at) > DEFER_AFTER
        {
            return Ok(());
        }
        let congestion = self.window_room().saturating_mul(self.send.mss);
        let limit = offer.window.min(congestion);
        if limit >= offer.most * self.send.mss || (!offer.last && limit >= offer.len) {
            return Ok(());
        }
        let mss = self.send.mss;
        let enough = match self.settings.tso_win_divisor {
            0 => DEFER_SEGMENTS * mss + 1,
            divisor => {
                let window = self.congestion.cwnd().saturating_mul(mss);
                self.send.wnd.min(window) / divisor
            }
        };
        let Some(first) = self.send.board.first() else { return Ok(()) };
        let half_srtt = self.rtt.srtt().unwrap_or_default() / 2;
        if limit >= enough || now.since(first.sent_at) < half_srtt {
            return Ok(());
        }
        if congestion < offer.window {
            if congestion <= offer.len {
                return Err(Hold::Congestion);
            }
        } else if offer.window <= offer.len {
            return Err(Hold::PeerWindow);
        }
        // Nothing will be added to this packet: do not wait.
        if offer.fin || offer.end.record { Ok(()) } else { Err(Hold::Small) }
    }

    /// Plans a packet after the persist timer fired: whatever fits the peer's window, however
    /// little.
    fn plan_partial(&mut self) -> Option<Plan> {
        let next = self.send.nxt;
        let edge = self.send.una + self.send.wnd;
        let window = if edge.after(next) { edge - next } else { 0 };
        let Some(end) = self.send.writes.end_of(next) else {
            // A FIN alone.
            let fits = window > 0 && self.send.fin_waits();
            let plan = Plan::bare(next, Flags::ACK, Kind::New);
            return fits.then_some(Plan { fin: true, ..plan });
        };
        let len = (end.at - next).min(window).min(self.segment_size());
        self.send.pushed = self.send.pushed.max(end.at);
        let flags = Flags::ACK | Flags::PSH;
        (len > 0).then_some(Plan { seq: next, len, fin: false, flags, kind: Kind::New })
    }

    /// Handles the decision not to send.
    fn hold_back(&mut self, hold: Hold, now: Instant) {
        if hold == Hold::PeerWindow {
            self.send.chrono.start(Limit::PeerWindow, now);
        } else {
            self.send.chrono.stop(Limit::PeerWindow, false, now);
        }
        if hold == Hold::Congestion {
            self.note_window_use(true, now);
        }
        self.arm_probe(now);
    }

    /// Starts the sending side after the handshake, with what is known of the peer's window and the
    /// path.
    pub(super) fn begin_sending(&mut self, now: Instant) {
        self.begin_path(now);
        self.send.data_sent_at = now;
        self.counters.data_received_at = now;
        self.expand_send_buffer();
        self.update_pacing_rate();
        if self.send.unsent() > 0 {
            self.send.chrono.start(Limit::Busy, now);
        }
    }

    /// Segments that the congestion window allows.
    pub(super) fn window_room(&self) -> u32 {
        let probe = u32::from(self.send.loss_probe == Some(LossProbe::New));
        self.congestion.cwnd().saturating_sub(self.send.board.in_flight()).max(probe)
    }

    /// Flags of a segment or super-packet. PSH marks the end of a write, and every super-packet, as
    /// its receiver gains nothing by waiting for more (RFC 9293 §3.9.1.2). A packet without data
    /// has no PSH.
    pub(super) fn push_flag(&self, end: Seq, segments: u32) -> Flags {
        let push = segments > 1 || (segments == 1 && self.send.writes.is_pushed(end));
        if push { Flags::ACK | Flags::PSH } else { Flags::ACK }
    }

    /// RFC 5681 §4.1: after an idle period the path may no longer carry the old window.
    fn restart_after_idle(&mut self, now: Instant) {
        let idle = now.since(self.send.data_sent_at);
        let rto = self.rtt.rto();
        // A zero window of the peer also stops the sender; that is no idle period.
        let shut = (self.send.una + self.send.wnd).at_or_before(self.send.nxt);
        let quiet = self.send.board.is_empty() && idle > rto;
        if self.settings.slow_start_after_idle && quiet && !shut {
            self.congestion.on_idle(idle, rto, now);
            self.send.data_sent_at = now;
        }
    }

    /// Accounts for new data that was sent.
    pub(super) fn account_new(&mut self, plan: &Plan, now: Instant) {
        let probe = plan.kind == Kind::MtuProbe;
        let size = if probe { plan.len } else { self.segment_size() };
        self.send.partial_allowed = false;
        let (first, before) = (self.send.board.is_empty(), self.send.board.totals().packets_out);
        if plan.len < plan.len.div_ceil(size).max(1) * size {
            self.send.small_end = plan.end();
        }
        self.send.fin_sent |= plan.fin;
        if first {
            self.recovery.rate.restart(now);
        }
        let record_end = self.send.writes.ends_record(plan.seq + plan.len);
        let sending = Sending { size, record_end, ..self.sending(plan.fin, now) };
        self.send.board.sent(plan.seq, plan.end(), &sending);
        self.send.nxt = plan.end();
        if probe {
            self.mtu_probe_sent(plan);
        }
        self.after_sending(self.send.board.totals().packets_out - before, first, now);
        self.send.chrono.start(Limit::Busy, now);
        self.send.chrono.stop(Limit::PeerWindow, false, now);
        self.note_window_use(false, now);
    }

    /// Notes that data is about to be sent, new or again; called before it is accounted for.
    pub(super) fn note_transmission(&mut self, now: Instant) {
        if self.send.board.in_flight() == 0 {
            let idle = now.since(self.send.data_sent_at);
            let app_limited = self.recovery.rate.is_app_limited();
            self.congestion.on_transmit_start(idle, app_limited, now);
            if self.congestion.paces() {
                self.update_pacing_rate();
            }
        }
        self.send.data_sent_at = now;
    }

    /// Notes that data was sent, or that the congestion window held it back, as Linux does.
    fn note_window_use(&mut self, limited: bool, now: Instant) {
        let full = self.window_room() == 0;
        let outstanding = self.send.board.totals().packets_out;
        let numbers = (self.send.una, self.send.nxt);
        let open = self.recovery.state == CaState::Open;
        let window = self.congestion.window_mut();
        let unused = window.note_use(limited || full, numbers, outstanding, (now, self.rtt.rto()));
        if window.is_limited() {
            return;
        }
        let wants_space = self.send.no_space.get();
        if unused && self.settings.slow_start_after_idle && open {
            self.congestion.on_unused(wants_space, now);
        }
        if wants_space && self.send.unsent() == 0 {
            self.send.chrono.start(Limit::SendBuffer, now);
        }
    }
}

/// A packet is deferred only if the last one was sent at most this long ago.
const DEFER_AFTER: Duration = Duration::from_millis(1);
/// Without a divisor of the window: packets of more segments than this are not deferred.
const DEFER_SEGMENTS: u32 = 3;
