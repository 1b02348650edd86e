//! Which data goes out next (RFC 9293 §3.7.4, §3.8.6.2.1; RFC 5681 §3.1, §4.1), and accounting for
//! it.
//!
//! A packet is as large as the windows, the pacing rate and the queue allow. Waiting sometimes pays
//! more than sending: for the rest of a small segment (Nagle's algorithm in Minshall's variant,
//! draft-minshall-nagle), or for an ACK that allows a larger packet.

use super::mtu_probe::Attempt;
use super::{Limit, Purpose, Sender, Turn};
use crate::tcp::congestion::{CaState, PathState};
use crate::tcp::egress::Egress;
use crate::tcp::pacing::super_segments_max;
use crate::tcp::plan::{Kind, Plan};
use crate::tcp::seq::Seq;
use crate::tcp::settings::Settings;
use crate::tcp::state::Events;
use crate::tcp::writes::End;
use crate::time::{Duration, Instant};
use crate::wire::tcp::Flags;

/// A packet is deferred only if the last one was sent at most this long ago.
const DEFER_AFTER: Duration = Duration::from_millis(1);
/// Longest burst after a late timer; as much as a send quantum of draft-ietf-ccwg-bbr §5.6.3.
const BURST: Duration = Duration::from_millis(1);
/// Least divisor of the window once congestion has reduced it: a third of the window at once would
/// overflow a queue that is small beside the window.
const REDUCED_DIVISOR: u32 = 8;
/// Without a divisor of the window: packets of more segments than this are not deferred.
const DEFER_SEGMENTS: u32 = 3;

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

impl Sender {
    /// Plans the next packet with data: lost data before new data, except where recovery asks for
    /// new data first.
    pub(in crate::tcp) fn next(&mut self, egress: &Egress, turn: Turn<'_>) -> Option<Plan> {
        if let Some(plan) = self.next_tail(turn).or_else(|| self.next_lost(egress, turn)) {
            return Some(plan);
        }
        let plan = self.next_new(egress, turn);
        if plan.is_none() {
            self.recovery.cancel_probe();
            self.recovery.give_up_frto(self.nxt);
            return self.next_lost(egress, turn);
        }
        plan
    }

    /// True if [`Sender::next`] or [`Sender::next_probe`] may have something; a cheap estimate.
    pub(in crate::tcp) fn wants_output(&self) -> bool {
        self.probe_due
            || self.recovery.wants_to_resend()
            || self.has_unsent_numbers()
            || self.buffer.wants_check()
            || self.buffer.awaits_peer() && !self.timer.is_for(Purpose::Persist)
    }

    /// Plans the next packet of new data.
    fn next_new(&mut self, egress: &Egress, turn: Turn<'_>) -> Option<Plan> {
        if !self.has_unsent_numbers() || self.recovery.board().is_full() {
            if self.buffer.awaits_peer() {
                self.arm_persist(turn);
            }
            return None;
        }
        if self.small.partial {
            let plan = self.next_partial(turn);
            self.small.partial = plan.is_some();
            return plan;
        }
        if self.waits_for_pace(turn.now) {
            return None;
        }
        self.restart_after_idle(turn);
        if self.path.search().is_on() {
            match self.attempt_probe(turn) {
                Attempt::Send(plan) => return Some(plan),
                Attempt::Wait => return None,
                Attempt::No => {}
            }
        }
        match self.choose(egress, turn) {
            Ok((len, fin)) => {
                let segments = len.div_ceil(self.segment_size(turn));
                let flags = self.push_flag(self.nxt + len, segments);
                Some(Plan { seq: self.nxt, len, fin, flags, kind: Kind::New })
            }
            Err(hold) => {
                self.hold_back(hold, turn);
                None
            }
        }
    }

    /// Chooses how many bytes to send now, and whether the FIN goes with them.
    fn choose(&self, egress: &Egress, turn: Turn<'_>) -> Result<(u32, bool), Hold> {
        let offer = self.offer(egress, turn)?;
        let first = offer.len.min(offer.size) + u32::from(offer.fin && offer.len <= offer.size);
        if first > offer.window {
            return Err(Hold::PeerWindow);
        }
        if offer.len <= offer.size {
            let probing = self.recovery.probe_due().is_some();
            let waits = !(self.small.push_now || probing || self.is_sending_urgent());
            let may_grow = offer.last && !offer.fin && waits;
            if may_grow && self.is_held_by_nagle(offer.len < offer.size) {
                return Err(Hold::Small);
            }
            return Ok((offer.len, offer.fin));
        }
        self.defer(&offer, turn)?;
        let urgent = self.is_sending_urgent();
        let len = if urgent { offer.size } else { self.split_point(&offer).min(offer.len) };
        Ok((len, offer.fin && len == offer.len && len < offer.window))
    }

    /// Returns the next buffer to send and what the windows allow of it. The congestion window
    /// holds back a FIN alone too (docs/conformance.md, `shutdown-rdwr-write-queue-close`).
    fn offer(&self, egress: &Egress, turn: Turn<'_>) -> Result<Offer, Hold> {
        let (next, room) = (self.nxt, self.window_room());
        if room == 0 {
            return Err(Hold::Congestion);
        }
        let size = self.segment_size(turn);
        let most = self.super_segments(egress, size, turn);
        // Keep at least two super-packets in flight, so that ACKs come steadily.
        let quota = room.min((self.congestion.cwnd() / 2).max(1)).min(most);
        let queue_end = self.queue_end();
        let whole = End::of_all(queue_end);
        let mut end = self.writes.end_of(self.unsent_from()).unwrap_or(whole);
        // Buffers share a packet only if that makes one of the largest size.
        let full = quota * size;
        if quota == super_segments_max(egress, size)
            && !end.record
            && end.at.before(next + full)
            && let Some(beyond) = self.writes.end_beyond(next, full)
            && (beyond.record || beyond.at.at_or_after(next + full))
        {
            end = beyond;
        }
        let last = end.at == queue_end;
        Ok(Offer {
            size,
            quota,
            most,
            window: next.up_to(self.edge()),
            end,
            len: next.up_to(end.at),
            last,
            fin: last && self.fin_waits(),
        })
    }

    /// Nagle's algorithm in Minshall's variant: only an outstanding small segment holds back
    /// another one. A corked connection holds a small segment in any case.
    fn is_held_by_nagle(&self, small: bool) -> bool {
        let Self { small: state, una, nxt, .. } = self;
        let small_outstanding = || {
            !self.recovery.board().is_empty()
                && state.sent_end.after(*una)
                && state.sent_end.at_or_before(*nxt)
        };
        let corked = state.cork || state.more_follows;
        small && (corked || (!state.nodelay && small_outstanding()))
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

    /// Decides whether to wait for the next ACK, which is near and will allow a larger packet.
    fn defer(&self, offer: &Offer, turn: Turn<'_>) -> Result<(), Hold> {
        if self.recovery.state() >= CaState::Recovery
            || turn.now.since(self.transmitted_at) > DEFER_AFTER
        {
            return Ok(());
        }
        let mss = self.path.mss();
        let congestion = self.window_room().saturating_mul(mss);
        let limit = offer.window.min(congestion);
        if limit >= offer.most * mss || (!offer.last && limit >= offer.len) {
            return Ok(());
        }
        let enough = match turn.settings.tso_win_divisor {
            0 => DEFER_SEGMENTS * mss + 1,
            divisor => {
                let reduced = self.congestion.window().was_reduced();
                let divisor = if reduced { divisor.max(REDUCED_DIVISOR) } else { divisor };
                let window = self.congestion.cwnd().saturating_mul(mss);
                self.window.size().min(window) / divisor
            }
        };
        let Some(first) = self.recovery.board().first() else { return Ok(()) };
        let half_srtt = self.rtt.srtt().unwrap_or_default() / 2;
        if limit >= enough || turn.now.since(first.sent_at) < half_srtt {
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
    fn next_partial(&mut self, turn: Turn<'_>) -> Option<Plan> {
        let next = self.nxt;
        let window = next.up_to(self.edge());
        let Some(end) = self.writes.end_of(next) else {
            // A FIN alone.
            let fits = window > 0 && self.fin_waits();
            let plan = Plan::bare(next, Flags::ACK, Kind::New);
            return fits.then_some(Plan { fin: true, ..plan });
        };
        let len = (end.at - next).min(window).min(self.segment_size(turn));
        self.buffer.note_pushed(end.at);
        let flags = Flags::ACK | Flags::PSH;
        (len > 0).then_some(Plan { seq: next, len, fin: false, flags, kind: Kind::New })
    }

    /// Handles the decision not to send.
    fn hold_back(&mut self, hold: Hold, turn: Turn<'_>) {
        if hold == Hold::PeerWindow {
            self.chrono.start(Limit::PeerWindow, turn.now);
        } else {
            self.chrono.stop(Limit::PeerWindow, false, turn.now);
        }
        if hold == Hold::Congestion {
            self.note_window_use(true, turn);
        }
        self.arm_persist(turn);
    }

    /// Flags of a segment or super-packet. PSH marks the end of a write, and every super-packet, as
    /// its receiver gains nothing by waiting for more (RFC 9293 §3.9.1.2). A packet without data
    /// has no PSH.
    pub(super) fn push_flag(&self, end: Seq, segments: u32) -> Flags {
        let push = segments > 1 || (segments == 1 && self.writes.is_pushed(end));
        if push { Flags::ACK | Flags::PSH } else { Flags::ACK }
    }

    /// RFC 5681 §4.1: after an idle period the path may no longer carry the old window. A zero
    /// window of the peer also stops the sender; that is no idle period.
    fn restart_after_idle(&mut self, turn: Turn<'_>) {
        let idle = turn.now.since(self.data_sent_at);
        let rto = self.rtt.rto();
        let quiet = self.recovery.board().is_empty() && idle > rto;
        if turn.settings.slow_start_after_idle && quiet && !self.edge().at_or_before(self.nxt) {
            self.congestion.on_idle(idle, rto, turn.now);
            self.data_sent_at = turn.now;
        }
    }

    /// Counts a packet that is sent. Returns the number of its segments with data.
    pub(in crate::tcp) fn count_sent(&mut self, plan: &Plan, turn: Turn<'_>) -> u32 {
        let probe = plan.kind == Kind::MtuProbe;
        let size = if probe { plan.len } else { self.segment_size(turn) };
        let segments = plan.len.div_ceil(size);
        self.counts.segments = self.counts.segments.wrapping_add(segments);
        self.counts.bytes += u64::from(plan.len);
        if matches!(plan.kind, Kind::Again | Kind::Tail) {
            self.counts.bytes_again += u64::from(plan.len);
        }
        segments
    }

    /// Accounts for data or a FIN that was sent. Returns events for the owner.
    pub(in crate::tcp) fn sent(&mut self, plan: &Plan, turn: Turn<'_>) -> Events {
        self.note_transmission(turn);
        match plan.kind {
            Kind::New | Kind::MtuProbe => self.sent_new(plan, turn),
            _ => self.sent_again(plan, turn),
        }
        self.sent_payload(plan.seq, plan.len, turn.now)
    }

    /// Accounts for `len` bytes of payload that were sent from `start` on, for the first time or
    /// again.
    pub(in crate::tcp) fn sent_payload(&mut self, start: Seq, len: u32, now: Instant) -> Events {
        if len == 0 {
            return Events::default();
        }
        if self.is_paced() {
            self.pacing.sent(len, self.counts.segments, self.burst(), now);
        }
        // The data of a SYN follows the SYN's number.
        let start = start.max(self.base);
        let stamped = self.stamps.sent(start, start + len, now);
        if stamped { Events::STAMPED } else { Events::default() }
    }

    /// Accounts for new data that was sent.
    fn sent_new(&mut self, plan: &Plan, turn: Turn<'_>) {
        let probe = plan.kind == Kind::MtuProbe;
        let size = if probe { plan.len } else { self.segment_size(turn) };
        self.small.partial = false;
        let first = self.recovery.board().is_empty();
        if plan.len < plan.len.div_ceil(size).max(1) * size {
            self.small.sent_end = plan.end();
        }
        self.fin_sent |= plan.fin;
        let ends = (plan.fin, self.writes.ends_record(plan.seq + plan.len));
        let segments = self.recovery.sent((plan.seq, plan.end()), size, ends, turn.now);
        self.congestion.on_sent(segments);
        self.nxt = plan.end();
        if probe {
            self.mtu_probe_sent(plan);
        }
        if !self.probe_sent_in(false, turn) {
            if first {
                self.restart_timer(turn);
            } else if self.timer.is_for(Purpose::LossProbe) {
                self.restart_timer_from_head(turn.now);
            }
            self.schedule_loss_probe(false, turn);
        }
        self.chrono.start(Limit::Busy, turn.now);
        self.chrono.stop(Limit::PeerWindow, false, turn.now);
        self.note_window_use(false, turn);
    }

    /// Notes that data is about to be sent, new or again; called before it is accounted for.
    fn note_transmission(&mut self, turn: Turn<'_>) {
        if self.recovery.board().in_flight() == 0 {
            let idle = turn.now.since(self.data_sent_at);
            self.congestion.on_transmit_start(idle, self.recovery.is_app_limited(), turn.now);
            if self.congestion.paces() {
                self.update_pacing_rate(turn.settings);
            }
        }
        self.data_sent_at = turn.now;
    }

    /// Notes that data was sent, or that the congestion window held it back: a window that is not
    /// used must not grow (RFC 7661), and shrinks (RFC 2861).
    fn note_window_use(&mut self, limited: bool, turn: Turn<'_>) {
        let full = self.window_room() == 0;
        let outstanding = self.recovery.board().totals().outstanding;
        let numbers = (self.una, self.nxt);
        let open = self.recovery.state() == CaState::Open;
        let window = self.congestion.window_mut();
        let times = (turn.now, self.rtt.rto());
        let unused = window.note_use(limited || full, numbers, outstanding, times);
        if window.is_limited() {
            return;
        }
        let wants_space = self.buffer.lacks_space();
        if unused && turn.settings.slow_start_after_idle && open {
            self.congestion.on_unused(wants_space, turn.now);
        }
        if wants_space && self.unsent() == 0 {
            self.chrono.start(Limit::SendBuffer, turn.now);
        }
    }

    /// Segments of `size` bytes in a super-packet that suits the rate, or the controller.
    pub(super) fn super_segments(&self, egress: &Egress, size: u32, turn: Turn<'_>) -> u32 {
        match self.congestion.send_quantum() {
            Some(quantum) => (quantum / size).clamp(1, super_segments_max(egress, size)),
            None => {
                let least = turn.settings.min_tso_segs;
                self.pacing.super_segments(egress, size, self.rtt.min(), least)
            }
        }
    }

    /// Takes the pacing rate from the congestion controller, after an ACK or the start of a
    /// transmission.
    pub(super) fn update_pacing_rate(&mut self, settings: &Settings) {
        let rate = self.congestion.pacing_rate(&PathState {
            srtt: self.rtt.srtt(),
            mss: self.path.mss(),
            outstanding: self.recovery.board().totals().outstanding,
            slow_start_ratio: settings.pacing_ss_ratio,
            avoidance_ratio: settings.pacing_ca_ratio,
        });
        self.pacing.set_rate(rate);
    }

    /// True if segments are paced.
    pub(super) fn is_paced(&self) -> bool {
        self.pacing.is_on() || self.congestion.paces()
    }

    /// Time whose data may follow at once after a late timer: short beside a round trip, and only
    /// if the controller depends on the rate.
    fn burst(&self) -> Duration {
        let round_trip = self.rtt.min().unwrap_or_default();
        if self.congestion.paces() { BURST.min(round_trip / 8) } else { Duration::ZERO }
    }

    /// Finds out when pacing lets the next segment go. Returns true if it must wait.
    pub(super) fn waits_for_pace(&mut self, now: Instant) -> bool {
        self.paced_until = self.pacing.until(now).filter(|_| self.is_paced());
        self.paced_until.is_some()
    }
}
