//! The two sides of a connection: what sending and receiving keep.

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
use towpath_packet::{Packet, Reader};

/// Why and how urgently an ACK is owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AckOwed {
    No,
    Delayed,
    Now,
}

/// Whether what comes is answered, so that the answer carries the ACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PingPong {
    No,
    /// The owner said so, and nothing has shown the contrary.
    Expected,
    /// It was, the last time.
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
    /// Before it another one, that tells of urgent data.
    pub(super) urgent_probe_due: bool,
    /// Number after the last urgent byte, until that is acknowledged.
    pub(super) urgent: Option<Seq>,
    /// A loss probe is due.
    pub(super) loss_probe: Option<LossProbe>,
    /// The persist timer fired: less than a segment may be sent.
    pub(super) partial_allowed: bool,
    pub(super) nodelay: bool,
    /// Small segments wait until this ends (`TCP_CORK`).
    pub(super) cork: bool,
    /// The last write said that more follows (`MSG_MORE`), and nothing happened since.
    pub(super) more_follows: bool,
    /// What is queued goes out although it is small.
    pub(super) push_now: bool,
    pub(super) writes: Writes,
    pub(super) stamps: Stamps,
    /// End of the last small segment sent (Minshall's snd_sml).
    pub(super) small_end: Seq,
    /// Last byte that was marked to be pushed.
    pub(super) pushed: Seq,
    /// When data was last sent, for the first time or again.
    pub(super) data_sent_at: Instant,
    /// When anything was last sent.
    pub(super) transmitted_at: Instant,
    /// Size of the send buffer, overhead included.
    pub(super) buffer: u32,
    /// The owner chose the size of the buffer.
    pub(super) buffer_fixed: bool,
    /// Unsent bytes that leave no room (`TCP_NOTSENT_LOWAT`), zero for the settings'.
    pub(super) notsent_lowat: u32,
    /// The owner was told that there is no room, and waits.
    pub(super) no_space: bool,
    /// Room may have come since.
    pub(super) space_check_due: bool,
    /// The owner has more, and waits for an ACK that leaves room in the peer's window.
    pub(super) awaits_peer: bool,
    pub(super) pacing: Pacing,
    pub(super) chrono: Chrono,
}

impl Sender {
    /// Nothing sent yet.
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
            no_space: false,
            space_check_due: false,
            awaits_peer: false,
            pacing: Pacing::default(),
            chrono: Chrono::default(),
        }
    }

    /// Small segments wait, whatever is outstanding.
    pub(super) fn is_corked(&self) -> bool {
        self.cork || self.more_follows
    }

    /// Number after the last byte that the owner gave.
    pub(super) fn queue_end(&self) -> Seq {
        self.base + self.queue.len() as u32
    }

    /// Bytes given and never sent.
    pub(super) fn unsent(&self) -> u32 {
        if self.fin_sent { 0 } else { self.queue_end() - self.nxt.max(self.base) }
    }

    /// A FIN was never sent and should be.
    pub(super) fn fin_waits(&self) -> bool {
        self.fin_queued && !self.fin_sent
    }

    /// Sequence numbers never sent: those of bytes and of a FIN.
    pub(super) fn unsent_numbers(&self) -> u32 {
        self.unsent() + u32::from(self.fin_waits())
    }

    /// True if there are any.
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
    /// Largest segment seen lately: what delayed ACKs and window updates are measured in.
    pub(super) mss: u32,
    pub(super) tuning: Tuning,
    /// Window of our SYN, and what was offered until the first ACK.
    pub(super) initial_window: u32,
    pub(super) density: Density,
    /// How short the stack's memory was when something was last sent.
    pub(super) pressure: Pressure,
    pub(super) queue: PieceQueue,
    /// Who keeps what was received, if not the queue.
    pub(super) reader: Option<Arc<Reader>>,
    pub(super) waiting: Reassembly,
    pub(super) ack_owed: AckOwed,
    /// The window may have opened enough to say so.
    pub(super) update_due: bool,
    /// `nxt` in the last ACK sent.
    pub(super) acked: Seq,
    /// ACKs still to be sent at once, at the start and after a pause.
    pub(super) quick_acks: u8,
    pub(super) ping_pong: PingPong,
    /// How long the ACK of little data, or of the FIN, waits for an expected answer; zero if none
    /// is.
    pub(super) answer_wait: Duration,
    /// Segments since the last ACK that may have ended a write of the sender's: none, one, more.
    pub(super) pushed: u8,
    /// How long an ACK waits; zero before any data.
    pub(super) delay: Duration,
    /// When data arrived last.
    pub(super) data_at: Instant,
    /// What came twice and has not been reported (RFC 2883).
    pub(super) duplicate: Option<(Seq, Seq)>,
    pub(super) last_at: Instant,
    pub(super) fin: bool,
    /// Number of a FIN that came ahead of its turn.
    pub(super) fin_ahead: Option<Seq>,
    pub(super) challenge_at: Option<Instant>,
    /// The byte that the peer marked as urgent last.
    pub(super) urgent: Option<Urgent>,
    /// It is read in line.
    pub(super) urgent_inline: bool,
    /// Data in order had to be refused for want of memory: the window is told to be shut.
    pub(super) refused: bool,
    /// The owner takes no more for now.
    pub(super) held_off: bool,
    /// What the owner has not taken is not acknowledged.
    pub(super) acks_taken_only: bool,
    /// Most that the owner wants windows to offer.
    pub(super) window_limit: u32,
}

/// How many bytes of data come in how much memory, lately: small segments use a whole frame each.
#[derive(Clone, Copy)]
pub(super) struct Density {
    bytes: u64,
    held: u64,
}

impl Default for Density {
    fn default() -> Self {
        // As Linux assumes before the first segment.
        Self { bytes: DENSITY_MEMORY / 8, held: DENSITY_MEMORY / 4 }
    }
}

impl Density {
    /// Takes received data into account.
    pub(super) fn sample(&mut self, payload: &Packet) {
        self.bytes += payload.payload_len() as u64;
        self.held += payload.pieces().map(|piece| piece.held() as u64).sum::<u64>();
        if self.held > DENSITY_MEMORY {
            self.bytes = (self.bytes / 2).max(1);
            self.held /= 2;
        }
    }

    /// Bytes of data that will fit `memory`.
    pub(super) fn fit(&self, memory: u64) -> u32 {
        u32::try_from(memory * self.bytes / self.held).unwrap_or(u32::MAX)
    }
}

impl Receiver {
    /// Nothing received yet.
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

    /// The number that the next segment acknowledges.
    pub(super) fn ack_point(&self) -> Seq {
        if !self.acks_taken_only {
            return self.nxt;
        }
        let untaken = self.queue.len() as u32 + u32::from(self.fin && !self.queue.is_empty());
        self.acked.max(Seq(self.nxt.0.wrapping_sub(untaken)))
    }

    /// SACK blocks of the next segment.
    pub(super) fn sack_blocks(&self, timestamps: bool) -> usize {
        let max = if timestamps { SACK_BLOCKS_MAX - 1 } else { SACK_BLOCKS_MAX };
        (usize::from(self.duplicate.is_some()) + self.waiting.block_count()).min(max)
    }

    /// Writes them, what came twice first (RFC 2883 §4). Returns how many.
    pub(super) fn write_sack(&self, blocks: &mut [(u32, u32); SACK_BLOCKS_MAX]) -> u8 {
        let mut count = self.waiting.blocks(blocks);
        if let Some((start, end)) = self.duplicate {
            blocks.rotate_right(1);
            blocks[0] = (start.0, end.0);
            count = (count + 1).min(SACK_BLOCKS_MAX as u8);
        }
        count
    }

    /// What is left of the window last advertised.
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

    /// The part of it that was handed out and not given back.
    pub(super) fn handed_out(&self) -> usize {
        self.reader.as_ref().map_or(0, |reader| reader.held() as usize)
    }

    /// Memory that received data may hold: the buffer and a third more, as frames are not cut to
    /// measure.
    pub(super) fn memory_max(&self) -> usize {
        let buffer = self.tuning.buffer as usize;
        (buffer + buffer / 3).max(HELD_MIN)
    }

    /// Bytes from the next number to the end of what came ahead of its turn.
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
    /// Our clock: milliseconds, from an offset of the connection's own.
    pub(crate) fn value(&self, now: Instant) -> u32 {
        (now.millis() as u32).wrapping_add(self.offset)
    }
}

/// What is left of a connection in TIME-WAIT.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remains {
    pub(crate) snd_nxt: Seq,
    pub(crate) rcv_nxt: Seq,
    /// The window as it stands in a header.
    pub(crate) window: u16,
    pub(crate) timestamps: Timestamps,
}

impl Connection {
    /// What is remembered in TIME-WAIT.
    pub(crate) fn remains(&self) -> Remains {
        let field = self.receive.window() >> self.receive.window_scale;
        Remains {
            snd_nxt: self.send.nxt,
            rcv_nxt: self.receive.nxt,
            window: u16::try_from(field).unwrap_or(u16::MAX),
            timestamps: self.timestamps,
        }
    }
}

/// Memory that received data may hold in any case: 64 small frames.
const HELD_MIN: usize = 64 * 2048;

/// Memory over which density is measured.
const DENSITY_MEMORY: u64 = 64 << 10;
