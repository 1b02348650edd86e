//! The sender's state: what is queued, sent, acknowledged and offered by the peer.

use super::chrono::Chrono;
use super::pacing::Pacing;
use super::queue::PieceQueue;
use super::rack::LossProbe;
use super::scoreboard::Scoreboard;
use super::seq::Seq;
use super::settings::Settings;
use super::stamps::Stamps;
use super::writes::Writes;
use crate::time::Instant;
use core::cell::Cell;

/// Sending side.
pub(super) struct Sender {
    pub(super) iss: Seq,
    pub(super) una: Seq,
    pub(super) nxt: Seq,
    pub(super) wnd: u32,
    pub(super) wnd_max: u32,
    pub(super) wl1: Seq,
    pub(super) window_scale: u8,
    pub(super) mss: u32,
    pub(super) queue: PieceQueue,
    /// Sequence number of the first byte in `queue`.
    pub(super) base: Seq,
    pub(super) board: Scoreboard,
    pub(super) syn_due: bool,
    pub(super) syn_sent_at: Instant,
    pub(super) fin_queued: bool,
    pub(super) fin_sent: bool,
    pub(super) probe_due: bool,
    /// Another probe, which carries the urgent pointer, is due first.
    pub(super) urgent_probe_due: bool,
    /// Sequence number after the last urgent byte; `None` once it is acknowledged.
    pub(super) urgent: Option<Seq>,
    /// The loss probe that is due.
    pub(super) loss_probe: Option<LossProbe>,
    /// The persist timer fired: a segment that is not full may be sent.
    pub(super) partial_allowed: bool,
    pub(super) nodelay: bool,
    /// Small segments wait until this ends (`TCP_CORK`).
    pub(super) cork: bool,
    /// The last write announced more data (`MSG_MORE`). An ACK or a change of `TCP_NODELAY` or
    /// `TCP_CORK` clears this.
    pub(super) more_follows: bool,
    /// Queued data is sent even as a small segment.
    pub(super) push_now: bool,
    pub(super) writes: Writes,
    pub(super) stamps: Stamps,
    /// Sequence number after the last small segment sent (Minshall's variant of Nagle's algorithm).
    pub(super) small_end: Seq,
    /// Sequence number up to which data is marked with PSH.
    pub(super) pushed: Seq,
    /// When data was last sent, for the first time or again.
    pub(super) data_sent_at: Instant,
    /// When anything was last sent.
    pub(super) transmitted_at: Instant,
    /// Size of the send buffer in bytes, overhead included.
    pub(super) buffer: u32,
    /// The owner chose the size of the buffer.
    pub(super) buffer_fixed: bool,
    /// Unsent bytes at which there is no more room (`TCP_NOTSENT_LOWAT`); zero for the default of
    /// the settings.
    pub(super) notsent_lowat: u32,
    /// The owner found no room and waits for `Events::WRITABLE`. A `Cell`, as asking begins a wait.
    pub(super) no_space: Cell<bool>,
    /// Room may have become free since.
    pub(super) space_check_due: bool,
    /// The owner has more data and waits for an ACK that leaves room in the peer's window.
    pub(super) awaits_peer: bool,
    pub(super) pacing: Pacing,
    pub(super) chrono: Chrono,
}

impl Sender {
    /// Creates a sender that has sent nothing.
    pub(super) fn new(settings: &Settings, iss: Seq, mss: u32, now: Instant) -> Self {
        Self {
            iss,
            una: iss,
            nxt: iss,
            wnd: 0,
            wnd_max: 0,
            wl1: Seq(0),
            window_scale: 0,
            mss,
            queue: PieceQueue::new(),
            base: iss + 1,
            board: Scoreboard::default(),
            syn_due: false,
            syn_sent_at: now,
            fin_queued: false,
            fin_sent: false,
            probe_due: false,
            urgent_probe_due: false,
            urgent: None,
            loss_probe: None,
            partial_allowed: false,
            nodelay: false,
            cork: false,
            more_follows: false,
            push_now: false,
            writes: Writes::default(),
            stamps: Stamps::default(),
            small_end: iss,
            pushed: iss + 1,
            data_sent_at: now,
            transmitted_at: now,
            buffer: settings.send_buffer,
            buffer_fixed: false,
            notsent_lowat: 0,
            no_space: Cell::new(false),
            space_check_due: false,
            awaits_peer: false,
            pacing: Pacing::default(),
            chrono: Chrono::default(),
        }
    }

    /// True if small segments wait even if nothing is outstanding.
    pub(super) fn is_corked(&self) -> bool {
        self.cork || self.more_follows
    }

    /// Sequence number after the last queued byte.
    pub(super) fn queue_end(&self) -> Seq {
        self.base + self.queue.len() as u32
    }

    /// Queued bytes that were never sent.
    pub(super) fn unsent(&self) -> u32 {
        if self.fin_sent { 0 } else { self.queue_end() - self.nxt.max(self.base) }
    }

    /// True if a FIN is queued and was never sent.
    pub(super) fn fin_waits(&self) -> bool {
        self.fin_queued && !self.fin_sent
    }

    /// Sequence numbers never sent, of bytes and of a FIN.
    pub(super) fn unsent_numbers(&self) -> u32 {
        self.unsent() + u32::from(self.fin_waits())
    }

    /// True if queued bytes or a FIN were never sent.
    pub(super) fn has_unsent_numbers(&self) -> bool {
        !self.fin_sent && (self.fin_queued || self.queue_end() != self.nxt.max(self.base))
    }

    /// Sequence numbers outstanding.
    pub(super) fn flight(&self) -> u32 {
        self.nxt - self.una
    }
}
