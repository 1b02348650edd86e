//! The receiver's state: received and out-of-order data, its memory, and ACKs that are owed.

use super::output::Pressure;
use super::queue::PieceQueue;
use super::reassembly::{Reassembly, SACK_BLOCKS_MAX};
use super::seq::Seq;
use super::settings::Settings;
use super::tuning::Tuning;
use super::urgent::Urgent;
use crate::time::{Duration, Instant};
use alloc::sync::Arc;
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

/// Memory that received data may always hold: 64 small frames.
const HELD_MIN: usize = 64 * 2048;

/// Bytes of memory over which density is averaged.
const DENSITY_MEMORY: u64 = 64 << 10;
