//! The two sides of a connection: state of the sender and of the receiver.

use super::chrono::Chrono;
use super::connection::Connection;
use super::output::Pressure;
use super::pacing::Pacing;
use super::queue::PieceQueue;
use super::rack::LossProbe;
use super::reassembly::{Reassembly, SACK_BLOCKS_MAX};
use super::scoreboard::Scoreboard;
use super::seq::Seq;
use super::settings::Settings;
use super::stamps::Stamps;
use super::tuning::Tuning;
use super::urgent::Urgent;
use super::writes::Writes;
use crate::time::{Duration, Instant};
use alloc::sync::Arc;
use core::cell::Cell;
use towpath_packet::{Packet, Reader};

/// How urgently an ACK is owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AckOwed {
    No,
    Delayed,
    Now,
}

/// Whether the owner answers received data with data that can carry the ACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PingPong {
    No,
    /// The owner announced answers, and nothing has contradicted it.
    Expected,
    /// The last received data was answered.
    Yes,
}

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

/// Receiving side.
pub(super) struct Receiver {
    pub(super) irs: Seq,
    pub(super) nxt: Seq,
    /// Right edge of the advertised window.
    pub(super) advertised: Seq,
    /// Window in the last ACK sent.
    pub(super) offered: u32,
    pub(super) window_scale: u8,
    /// Recent size of a full segment: the unit of delayed ACKs and window updates.
    pub(super) mss: u32,
    pub(super) tuning: Tuning,
    /// Window of our SYN, also offered until the first ACK.
    pub(super) initial_window: u32,
    pub(super) density: Density,
    /// Memory pressure of the stack when a segment was last sent.
    pub(super) pressure: Pressure,
    pub(super) queue: PieceQueue,
    /// Reader that received pieces are handed out to.
    pub(super) reader: Option<Arc<Reader>>,
    pub(super) waiting: Reassembly,
    pub(super) ack_owed: AckOwed,
    /// The window may have opened enough for a window update.
    pub(super) update_due: bool,
    /// Acknowledgment number of the last ACK sent.
    pub(super) acked: Seq,
    /// Quick ACKs left to send, at the start and after a pause.
    pub(super) quick_acks: u8,
    pub(super) ping_pong: PingPong,
    /// How long the ACK of a small segment, or of the FIN, waits for an expected answer; zero if no
    /// answer is expected.
    pub(super) answer_wait: Duration,
    /// Segments since the last ACK that may have ended a write of the sender: 0, 1, or 2 for more.
    pub(super) pushed: u8,
    /// Current delay of delayed ACKs; zero before any data.
    pub(super) delay: Duration,
    /// When data last arrived.
    pub(super) data_at: Instant,
    /// Range received twice and not reported yet (RFC 2883).
    pub(super) duplicate: Option<(Seq, Seq)>,
    pub(super) last_at: Instant,
    pub(super) fin: bool,
    /// Sequence number of a FIN that arrived out of order.
    pub(super) fin_ahead: Option<Seq>,
    pub(super) challenge_at: Option<Instant>,
    /// Byte that the peer last marked as urgent.
    pub(super) urgent: Option<Urgent>,
    /// Urgent bytes are read in line (`SO_OOBINLINE`).
    pub(super) urgent_inline: bool,
    /// In-order data was refused for lack of memory: a zero window is advertised.
    pub(super) refused: bool,
    /// The owner takes no more data for now.
    pub(super) held_off: bool,
    /// Only data that the owner has consumed is acknowledged.
    pub(super) acks_taken_only: bool,
    /// Largest window that the owner allows.
    pub(super) window_limit: u32,
}

/// Recent ratio of received bytes to the memory that holds them. Each small segment uses a whole
/// frame.
#[derive(Clone, Copy)]
pub(super) struct Density {
    bytes: u64,
    held: u64,
}

impl Default for Density {
    fn default() -> Self {
        // Linux's assumption before the first segment: half of the memory is data.
        Self { bytes: DENSITY_MEMORY / 8, held: DENSITY_MEMORY / 4 }
    }
}

impl Density {
    /// Adds received data to the ratio.
    pub(super) fn sample(&mut self, payload: &Packet) {
        self.bytes += payload.payload_len() as u64;
        self.held += payload.pieces().map(|piece| piece.held() as u64).sum::<u64>();
        if self.held > DENSITY_MEMORY {
            self.bytes = (self.bytes / 2).max(1);
            self.held /= 2;
        }
    }

    /// Bytes of data expected to fit into `memory` bytes.
    pub(super) fn fit(&self, memory: u64) -> u32 {
        u32::try_from(memory * self.bytes / self.held).unwrap_or(u32::MAX)
    }
}

impl Receiver {
    /// Creates a receiver that has received nothing.
    pub(super) fn new(settings: &Settings, mss: u32, now: Instant) -> Self {
        Self {
            irs: Seq(0),
            nxt: Seq(0),
            advertised: Seq(0),
            offered: 0,
            window_scale: 0,
            mss,
            tuning: Tuning::new(settings, now),
            initial_window: 0,
            density: Density::default(),
            pressure: Pressure::None,
            queue: PieceQueue::new(),
            reader: None,
            waiting: Reassembly::default(),
            ack_owed: AckOwed::No,
            update_due: false,
            acked: Seq(0),
            quick_acks: 0,
            ping_pong: PingPong::No,
            answer_wait: Duration::ZERO,
            pushed: 0,
            delay: Duration::ZERO,
            data_at: now,
            duplicate: None,
            last_at: now,
            fin: false,
            fin_ahead: None,
            challenge_at: None,
            urgent: None,
            urgent_inline: true,
            refused: false,
            held_off: false,
            acks_taken_only: false,
            window_limit: u32::MAX,
        }
    }

    /// Acknowledgment number of the next segment.
    pub(super) fn ack_point(&self) -> Seq {
        if !self.acks_taken_only {
            return self.nxt;
        }
        let untaken = self.queue.len() as u32 + u32::from(self.fin && !self.queue.is_empty());
        self.acked.max(Seq(self.nxt.0.wrapping_sub(untaken)))
    }

    /// Number of SACK blocks in the next segment.
    pub(super) fn sack_blocks(&self, timestamps: bool) -> usize {
        let max = if timestamps { SACK_BLOCKS_MAX - 1 } else { SACK_BLOCKS_MAX };
        (usize::from(self.duplicate.is_some()) + self.waiting.block_count()).min(max)
    }

    /// Writes the SACK blocks of the next segment, a duplicate range first (RFC 2883 §4). Returns
    /// their number.
    pub(super) fn write_sack(&self, blocks: &mut [(u32, u32); SACK_BLOCKS_MAX]) -> u8 {
        let mut count = self.waiting.blocks(blocks);
        if let Some((start, end)) = self.duplicate {
            blocks.rotate_right(1);
            blocks[0] = (start.0, end.0);
            count = (count + 1).min(SACK_BLOCKS_MAX as u8);
        }
        count
    }

    /// Bytes left of the window last advertised.
    pub(super) fn window(&self) -> u32 {
        self.advertised.max(self.nxt) - self.nxt
    }

    /// True if received data holds more memory than it may.
    pub(super) fn is_full(&self) -> bool {
        self.held() + self.waiting.held() > self.memory_max()
    }

    /// Memory that data received in order keeps from its lenders, read or not.
    pub(super) fn held(&self) -> usize {
        self.queue.held() + self.handed_out()
    }

    /// Memory handed out to the reader and not given back.
    pub(super) fn handed_out(&self) -> usize {
        self.reader.as_ref().map_or(0, |reader| reader.held() as usize)
    }

    /// Most memory that received data may hold: the buffer and a third more, as frames have fixed
    /// sizes.
    pub(super) fn memory_max(&self) -> usize {
        let buffer = self.tuning.buffer as usize;
        (buffer + buffer / 3).max(HELD_MIN)
    }

    /// Bytes from the next expected number to the end of the data received out of order.
    pub(super) fn ahead(&self) -> u32 {
        self.waiting.end().map_or(0, |end| end.max(self.nxt) - self.nxt)
    }
}

/// TCP timestamps (RFC 7323).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timestamps {
    pub(crate) enabled: bool,
    pub(super) offset: u32,
    pub(crate) recent: u32,
    pub(crate) recent_at: Instant,
}

impl Timestamps {
    /// Timestamp value at `now`: milliseconds plus the connection's own offset.
    pub(crate) fn value(&self, now: Instant) -> u32 {
        (now.millis() as u32).wrapping_add(self.offset)
    }
}

/// State kept of a connection in TIME-WAIT.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeWaitState {
    pub(crate) snd_nxt: Seq,
    pub(crate) rcv_nxt: Seq,
    /// Window field of the header, scaled.
    pub(crate) window: u16,
    pub(crate) timestamps: Timestamps,
}

impl Connection {
    /// Returns the state to keep in TIME-WAIT.
    pub(crate) fn time_wait_state(&self) -> TimeWaitState {
        let field = self.receive.window() >> self.receive.window_scale;
        TimeWaitState {
            snd_nxt: self.send.nxt,
            rcv_nxt: self.receive.nxt,
            window: u16::try_from(field).unwrap_or(u16::MAX),
            timestamps: self.timestamps,
        }
    }
}

/// Memory that received data may always hold: 64 small frames.
const HELD_MIN: usize = 64 * 2048;

/// Bytes of memory over which density is averaged.
const DENSITY_MEMORY: u64 = 64 << 10;
