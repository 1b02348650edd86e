//! The sending side of a connection: the bytes to send, and when they are sent and sent again.
//!
//! [`Sender::on_ack`] processes an acknowledgment (RFC 9293 §3.10.7.4, fifth check),
//! [`Sender::next`] chooses the next packet, [`Sender::sent`] accounts for it, and
//! [`Sender::on_timer`] handles the timer. The parts: `window` the peer's window, `path` segment
//! sizes, `mtu_probe` the search for the path MTU (RFC 4821), `buffer` the owner's writes, `next`
//! new data, `resend` retransmissions, `timer` and `persist` what happens without ACKs, `urgent`
//! the urgent mark, `refused` a device that takes nothing, `chrono` what limited the sender. Loss
//! recovery, congestion control, pacing and round trips are objects of other modules, which the
//! sender owns.

mod ack;
mod buffer;
mod chrono;
mod expiry;
mod info;
mod mtu_probe;
mod next;
mod path;
mod persist;
mod refused;
mod resend;
mod search;
mod timer;
mod urgent;
mod window;

use super::congestion::{self, CaState, Congestion};
use super::loss::{Cx, Recovery};
use super::pacing::Pacing;
use super::queue::PieceQueue;
use super::rtt::RttEstimator;
use super::segment::Segment;
use super::seq::Seq;
use super::settings::Settings;
use super::stamps::Stamps;
use super::timestamps::Timestamps;
use super::writes::Writes;
use crate::time::{Duration, Instant};
pub(super) use ack::Acked;
use buffer::SendBuffer;
use chrono::{Chrono, Limit};
pub(super) use path::Path;
pub use path::SegmentSizes;
use persist::Persist;
pub(super) use timer::Purpose;
use timer::Timer;
use window::SendWindow;

/// Settings, time and circumstances of one call.
#[derive(Clone, Copy)]
pub(super) struct Turn<'a> {
    pub(super) settings: &'a Settings,
    /// Our timestamps.
    pub(super) timestamps: &'a Timestamps,
    /// The connection has an owner.
    pub(super) owned: bool,
    /// Bytes that SACK blocks take from a segment sent now (RFC 6691 §2).
    pub(super) sack_len: u32,
    pub(super) now: Instant,
}

/// What small segments wait for (RFC 9293 §3.7.4).
#[derive(Clone, Copy, Debug)]
struct Small {
    /// Nagle's algorithm is off.
    nodelay: bool,
    /// Small segments wait until this ends (`TCP_CORK`).
    cork: bool,
    /// The last write announced more data (`MSG_MORE`). An ACK or a change of the other two clears
    /// this.
    more_follows: bool,
    /// Queued data is sent even as a small segment.
    push_now: bool,
    /// The persist timer fired: whatever fits the peer's window is sent.
    partial: bool,
    /// Sequence number after the last small segment sent (Minshall's variant of Nagle's algorithm).
    sent_end: Seq,
}

/// Counters of what was sent and acknowledged.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// Bytes of data sent, and of these retransmitted.
    pub(super) bytes: u64,
    pub(super) bytes_again: u64,
    /// Segments with data sent; wraps.
    pub(super) segments: u32,
    /// Packets retransmitted, and of these tail loss probes (RFC 8985 §7.3).
    pub(super) again: u64,
    pub(super) probes: u64,
    /// Sequence numbers acknowledged.
    pub(super) acked: u64,
    /// Segments delivered by ACKs that echo congestion; wraps.
    pub(super) marked: u32,
}

/// Sending side. Names in parentheses are those of RFC 9293 §3.3.1.
pub(super) struct Sender {
    /// Initial sequence number (ISS).
    iss: Seq,
    /// First unacknowledged number (SND.UNA).
    una: Seq,
    /// Next number to be sent (SND.NXT).
    nxt: Seq,
    window: SendWindow,
    path: Path,
    queue: PieceQueue,
    /// Sequence number of the first byte in `queue`.
    base: Seq,
    writes: Writes,
    stamps: Stamps,
    buffer: SendBuffer,
    small: Small,
    fin_queued: bool,
    fin_sent: bool,
    /// A probe of the peer is due: a segment with an old number.
    probe_due: bool,
    /// Another probe, which carries the urgent pointer, is due first.
    urgent_probe_due: bool,
    /// Sequence number after the last urgent byte; `None` once it is acknowledged.
    urgent: Option<Seq>,
    recovery: Recovery,
    congestion: Congestion,
    rtt: RttEstimator,
    pacing: Pacing,
    /// When pacing lets the next segment go, if some waits.
    paced_until: Option<Instant>,
    timer: Timer,
    persist: Persist,
    chrono: Chrono,
    counts: Counts,
    /// When data was last sent, for the first time or again.
    data_sent_at: Instant,
    /// When anything was last sent.
    transmitted_at: Instant,
    /// When data was last acknowledged.
    acked_at: Instant,
}

impl Sender {
    /// Creates a sender that has sent nothing.
    pub(super) fn new(settings: &Settings, iss: Seq, path: Path, now: Instant) -> Self {
        let kind = settings.congestion;
        Self {
            iss,
            una: iss,
            nxt: iss,
            window: SendWindow::default(),
            path,
            queue: PieceQueue::new(),
            base: iss + 1,
            writes: Writes::default(),
            stamps: Stamps::default(),
            buffer: SendBuffer::new(settings, iss + 1),
            small: Small {
                nodelay: false,
                cork: false,
                more_follows: false,
                push_now: false,
                partial: false,
                sent_end: iss,
            },
            fin_queued: false,
            fin_sent: false,
            probe_due: false,
            urgent_probe_due: false,
            urgent: None,
            recovery: Recovery::new(iss, settings.reordering),
            congestion: Congestion::new(kind, settings.initial_window, iss, now),
            rtt: RttEstimator::new(settings.rto_min, settings.rto_max),
            pacing: Pacing::new(settings),
            paced_until: None,
            timer: Timer::default(),
            persist: Persist::default(),
            chrono: Chrono::default(),
            counts: Counts::default(),
            data_sent_at: now,
            transmitted_at: now,
            acked_at: now,
        }
    }

    /// Takes the peer's SYN: its window, its MSS option, and what both sides agreed on.
    pub(super) fn take_syn(&mut self, syn: &Segment, sack: bool, scale: Option<u8>, stamps: bool) {
        self.window.begin(syn);
        self.window.set_scale(scale.unwrap_or(0));
        self.recovery.agree(sack);
        self.path.take_syn(syn.options.mss, stamps);
    }

    /// Notes that our SYN was sent, with `len` bytes of data if it is the first one and has data.
    /// `counts` if it may be a retransmission that counts.
    pub(super) fn syn_sent(&mut self, data: Option<u32>, counts: bool, now: Instant) {
        if counts && self.nxt.after(self.iss) {
            self.recovery.count_resent(1);
        }
        self.arm_retransmit(now + self.rtt.rto());
        let first = self.iss + 1;
        self.nxt = self.nxt.max(first);
        if let Some(len) = data {
            self.recovery.sent_with_syn(first, len, now);
            self.nxt = first + len;
        }
    }

    /// Takes our SYN as sent.
    pub(super) fn assume_syn_sent(&mut self) {
        self.nxt = self.nxt.max(self.iss + 1);
    }

    /// The connection is established: the peer has acknowledged our SYN in `segment`, after
    /// `round_trip` if that is known.
    pub(super) fn open(&mut self, segment: &Segment, round_trip: Option<Duration>, turn: Turn<'_>) {
        self.una = self.iss + 1;
        self.window.begin(segment);
        if let Some(rtt) = round_trip {
            self.rtt.sample_min(rtt, false, turn.now);
            self.rtt.sample(rtt, self.una, self.nxt);
        }
        self.rtt.fall_back();
        self.restart_timer(turn);
        self.recovery.open(turn.now);
    }

    /// Counts the acknowledgment of our SYN.
    pub(super) fn count_syn(&mut self) {
        self.counts.acked += 1;
    }

    /// Data may be sent although the peer has not acknowledged our SYN-ACK (RFC 7413 §4.2.2). The
    /// window in the peer's SYN counts from the number after our SYN.
    pub(super) fn open_early(&mut self) {
        self.una = self.iss + 1;
        self.nxt = self.una;
    }

    /// Starts sending, with what is known of the peer's window and the path. `active` if we opened
    /// the connection.
    pub(super) fn begin(&mut self, active: bool, turn: Turn<'_>) {
        self.begin_path(active, turn);
        self.data_sent_at = turn.now;
        self.expand_buffer(turn.settings);
        self.update_pacing_rate(turn.settings);
        if self.unsent() > 0 {
            self.chrono.start(Limit::Busy, turn.now);
        }
    }

    /// Takes the acknowledgment of our SYN, which may acknowledge data sent with it.
    pub(super) fn on_ack_of_syn(&mut self, ack: Seq, turn: Turn<'_>) -> Acked {
        self.counts.acked += u64::from(ack - self.una);
        self.una = ack;
        self.recovery.acknowledge_syn_data(ack);
        let acked = self.release_acknowledged(turn.now);
        self.restart_timer(turn);
        acked
    }

    /// Closes the sending direction: a FIN follows the queued data. Returns false if it was closed.
    pub(super) fn close(&mut self) -> bool {
        !core::mem::replace(&mut self.fin_queued, true)
    }

    /// Drops the data queued for the peer: the connection is over.
    pub(super) fn finish(&mut self) {
        self.queue.clear();
        self.writes.clear();
        self.stamps.clear_marks();
        self.recovery.clear();
        self.stop();
    }

    /// Stops the timers. The number of unanswered probes stays visible in `TCP_INFO`.
    pub(super) fn stop(&mut self) {
        self.timer.stop();
        self.paced_until = None;
        self.persist.stop();
        self.recovery.timeouts_mut().answered();
    }

    /// Makes a probe of the peer due, for keepalive.
    pub(super) fn owe_probe(&mut self) {
        self.probe_due = true;
    }

    /// Sequence number of the probe that is due: an old one, which makes the peer answer with its
    /// window (RFC 9293 §3.8.4).
    pub(super) fn next_probe(&self) -> Option<Seq> {
        self.probe_due.then(|| self.una.minus(u32::from(!self.urgent_probe_due)))
    }

    /// Accounts for a probe that was sent.
    pub(super) fn probe_sent(&mut self) {
        if !core::mem::take(&mut self.urgent_probe_due) {
            self.probe_due = false;
        }
    }

    /// Notes that a packet was sent.
    pub(super) fn transmitted(&mut self, now: Instant) {
        self.transmitted_at = now;
        self.path.note_sent();
    }

    pub(super) fn set_nodelay(&mut self, nodelay: bool) {
        self.small.nodelay = nodelay;
        self.small.more_follows = false;
        // Data that waits for an ACK or a cork goes out now.
        self.small.push_now |= nodelay;
    }

    pub(super) fn set_cork(&mut self, cork: bool) {
        self.small.cork = cork;
        self.small.more_follows = false;
        self.small.push_now |= !cork && self.small.nodelay;
    }

    /// Switches to another congestion control.
    pub(super) fn set_congestion(
        &mut self,
        kind: congestion::Kind,
        settings: &Settings,
        now: Instant,
    ) {
        self.congestion.set_kind(kind, self.nxt, now);
        if self.congestion.paces() {
            self.update_pacing_rate(settings);
        }
    }

    pub(super) fn set_max_pacing_rate(&mut self, rate: Option<u64>) {
        self.pacing.set_max(rate);
    }

    /// Recovery, and what it acts on.
    fn recovery<'a>(&'a mut self, turn: Turn<'a>) -> (&'a mut Recovery, Cx<'a>) {
        let has_new = self.recovery.state() == CaState::Loss
            && self.has_unsent_numbers()
            && self.edge().after(self.nxt);
        let cx = Cx {
            una: self.una,
            nxt: self.nxt,
            has_new,
            mss: self.path.mss(),
            mtu_probe: self.path.search().probe_start(),
            rtt: &self.rtt,
            congestion: &mut self.congestion,
            timestamps: turn.timestamps,
            settings: turn.settings,
            now: turn.now,
        };
        (&mut self.recovery, cx)
    }

    /// Right edge of the peer's window.
    fn edge(&self) -> Seq {
        self.una + self.window.size()
    }

    /// Sequence number after the last queued byte.
    fn queue_end(&self) -> Seq {
        self.base + self.queue.len() as u32
    }

    /// The first byte that was never sent.
    fn unsent_from(&self) -> Seq {
        self.nxt.max(self.base)
    }

    /// Queued bytes that were never sent.
    pub(super) fn unsent(&self) -> u32 {
        if self.fin_sent { 0 } else { self.queue_end() - self.unsent_from() }
    }

    /// True if a FIN is queued and was never sent.
    fn fin_waits(&self) -> bool {
        self.fin_queued && !self.fin_sent
    }

    /// Sequence numbers never sent, of bytes and of a FIN.
    pub(super) fn unsent_numbers(&self) -> u32 {
        self.unsent() + u32::from(self.fin_waits())
    }

    /// True if queued bytes or a FIN were never sent.
    pub(super) fn has_unsent_numbers(&self) -> bool {
        !self.fin_sent && (self.fin_queued || self.queue_end() != self.unsent_from())
    }

    /// Sequence numbers outstanding.
    pub(super) fn flight(&self) -> u32 {
        self.nxt - self.una
    }

    /// True if a segment that begins with `seq` may be in flight; `opening` if our SYN may be.
    pub(super) fn was_sent(&self, seq: Seq, opening: bool) -> bool {
        seq.at_or_after(if opening { self.iss } else { self.una }) && seq.before(self.nxt)
    }

    /// Segments that the congestion window allows.
    fn window_room(&self) -> u32 {
        let probe = u32::from(self.recovery.probe_due() == Some(super::loss::LossProbe::New));
        self.congestion.cwnd().saturating_sub(self.recovery.board().in_flight()).max(probe)
    }

    /// Payload of a full segment sent now.
    pub(super) fn segment_size(&self, turn: Turn<'_>) -> u32 {
        self.path.mss() - turn.sack_len
    }

    /// Initial sequence number.
    pub(super) fn iss(&self) -> Seq {
        self.iss
    }

    /// Next number to be sent.
    pub(super) fn nxt(&self) -> Seq {
        self.nxt
    }

    /// Bytes given by the owner and not acknowledged yet.
    pub(super) fn queue(&self) -> &PieceQueue {
        &self.queue
    }

    /// True if a FIN is queued or sent.
    pub(super) fn is_closed(&self) -> bool {
        self.fin_queued
    }

    /// Payload of a full segment.
    pub(super) fn mss(&self) -> u32 {
        self.path.mss()
    }

    /// Segment sizes.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Segment sizes, to change settings.
    pub(super) fn path_mut(&mut self) -> &mut Path {
        &mut self.path
    }

    /// Round trips and retransmission timeout.
    pub(super) fn rtt(&self) -> &RttEstimator {
        &self.rtt
    }

    /// Congestion control.
    pub(super) fn congestion(&self) -> &Congestion {
        &self.congestion
    }

    /// Loss recovery.
    pub(super) fn loss(&self) -> &Recovery {
        &self.recovery
    }

    /// Loss recovery, for counts of the handshake and CWR.
    pub(super) fn loss_mut(&mut self) -> &mut Recovery {
        &mut self.recovery
    }

    /// Counters.
    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }
}

/// Access for tests of connections.
#[cfg(test)]
impl Sender {
    pub(super) fn window(&self) -> u32 {
        self.window.size()
    }

    pub(super) fn window_scale(&self) -> u8 {
        self.window.scale()
    }

    pub(super) fn set_window(&mut self, size: u32) {
        self.window.force(size);
        if self.timer.is_for(Purpose::Persist) {
            self.timer.stop();
        }
    }

    pub(super) fn una(&self) -> Seq {
        self.una
    }

    pub(super) fn set_window_max(&mut self, size: u32) {
        self.window.force_max(size);
    }

    pub(super) fn bound_search(&mut self, high: u32) {
        self.path.search_mut().bound(high);
    }

    pub(super) fn hold_retransmissions(&mut self) {
        self.timer.stop();
        self.recovery.hold();
    }

    pub(super) fn set_cwnd(&mut self, cwnd: u32) {
        self.congestion.window_mut().set_cwnd(cwnd);
    }

    pub(super) fn set_round_trip(&mut self, rtt: Duration, now: Instant) {
        self.rtt = RttEstimator::default();
        self.rtt.sample(rtt, self.una, self.nxt);
        self.rtt.sample_min(rtt, false, now);
    }
}
