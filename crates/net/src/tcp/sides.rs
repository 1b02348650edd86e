//! The two sides of a connection: what sending and receiving keep.

use super::connection::Settings;
use super::queue::PieceQueue;
use super::reassembly::Reassembly;
use super::scoreboard::Scoreboard;
use super::seq::Seq;
use crate::time::Instant;
use towpath_packet::Packet;

/// Loss recovery under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Recovery {
    /// Ends when everything before this has been acknowledged.
    pub(super) point: Seq,
    /// Entered by the timer: the window grows again meanwhile.
    pub(super) timeout: bool,
}

/// Why and how urgently an ACK is owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AckOwed {
    No,
    Delayed,
    Now,
}

/// Sending side.
pub(super) struct Sender {
    pub(super) iss: Seq,
    pub(super) una: Seq,
    pub(super) nxt: Seq,
    pub(super) wnd: u32,
    pub(super) wnd_max: u32,
    pub(super) wl1: Seq,
    pub(super) wl2: Seq,
    pub(super) window_scale: u8,
    pub(super) mss: u32,
    pub(super) queue: PieceQueue,
    /// Sequence number of the first byte in `queue`.
    pub(super) base: Seq,
    pub(super) board: Scoreboard,
    pub(super) duplicate_acks: u32,
    pub(super) recovery: Option<Recovery>,
    pub(super) syn_due: bool,
    pub(super) syn_sent_at: Instant,
    pub(super) fin_queued: bool,
    pub(super) fin_sent: bool,
    pub(super) probe_due: bool,
    /// The persist timer fired: less than a segment may be sent.
    pub(super) partial_allowed: bool,
    pub(super) was_full: bool,
    pub(super) nodelay: bool,
}

impl Sender {
    /// Nothing sent yet.
    pub(super) fn new(iss: Seq, mss: u32, now: Instant) -> Self {
        Self {
            iss,
            una: iss,
            nxt: iss,
            wnd: 0,
            wnd_max: 0,
            wl1: Seq(0),
            wl2: Seq(0),
            window_scale: 0,
            mss,
            queue: PieceQueue::new(),
            base: iss + 1,
            board: Scoreboard::default(),
            duplicate_acks: 0,
            recovery: None,
            syn_due: false,
            syn_sent_at: now,
            fin_queued: false,
            fin_sent: false,
            probe_due: false,
            partial_allowed: false,
            was_full: false,
            nodelay: false,
        }
    }

    /// Number after the last byte that the owner gave.
    pub(super) fn queue_end(&self) -> Seq {
        self.base + self.queue.len() as u32
    }

    /// Bytes given and never sent.
    pub(super) fn unsent(&self) -> u32 {
        if self.fin_sent { 0 } else { self.queue_end() - self.nxt.max(self.base) }
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
    pub(super) buffer: u32,
    pub(super) density: Density,
    /// More than half of the window was in use when data arrived.
    pub(super) pressed: bool,
    pub(super) queue: PieceQueue,
    pub(super) waiting: Reassembly,
    pub(super) ack_owed: AckOwed,
    /// The window may have opened enough to say so.
    pub(super) update_due: bool,
    /// `nxt` in the last ACK sent.
    pub(super) acked: Seq,
    /// ACKs still to be sent at once, at the start and after a pause.
    pub(super) quick_acks: u8,
    pub(super) last_at: Instant,
    pub(super) fin: bool,
    /// Number of a FIN that came ahead of its turn.
    pub(super) fin_ahead: Option<Seq>,
    pub(super) challenge_at: Option<Instant>,
}

/// How many bytes of data come in how much memory, lately: small segments use a whole frame each.
#[derive(Clone, Copy)]
pub(super) struct Density {
    bytes: u64,
    held: u64,
}

impl Default for Density {
    fn default() -> Self {
        // Rather sparse, so that no more is promised than small segments could keep.
        Self { bytes: DENSITY_MEMORY / 16, held: DENSITY_MEMORY / 4 }
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
            window_scale: settings.window_scale(),
            mss,
            buffer: settings.receive_buffer,
            density: Density::default(),
            pressed: false,
            queue: PieceQueue::new(),
            waiting: Reassembly::default(),
            ack_owed: AckOwed::No,
            update_due: false,
            acked: Seq(0),
            quick_acks: QUICK_ACKS,
            last_at: now,
            fin: false,
            fin_ahead: None,
            challenge_at: None,
        }
    }

    /// What is left of the window last advertised.
    pub(super) fn window(&self) -> u32 {
        self.advertised.max(self.nxt) - self.nxt
    }

    /// Memory that received data may hold.
    pub(super) fn memory_max(&self) -> usize {
        (2 * self.buffer as usize).max(HELD_MIN)
    }
}

/// TCP timestamps (RFC 7323).
#[derive(Clone, Copy, Debug)]
pub(super) struct Timestamps {
    pub(super) enabled: bool,
    pub(super) offset: u32,
    pub(super) recent: u32,
    pub(super) recent_at: Instant,
}

impl Timestamps {
    /// Our clock: milliseconds, from an offset of the connection's own.
    pub(super) fn value(&self, now: Instant) -> u32 {
        (now.millis() as u32).wrapping_add(self.offset)
    }
}

/// Memory that received data may hold in any case: 64 small frames.
const HELD_MIN: usize = 64 * 2048;

/// Memory over which density is measured.
const DENSITY_MEMORY: u64 = 64 << 10;
/// ACKs sent at once at the start of a connection, so that the sender's window opens.
pub(super) const QUICK_ACKS: u8 = 16;
