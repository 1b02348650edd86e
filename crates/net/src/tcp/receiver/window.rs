//! The window that is offered to the peer (RFC 9293 §3.8.6.2).
//!
//! It is the free part of the buffer (see `tuning`), at most the threshold, never less than was
//! offered before, and zero if too little is free (silly window syndrome, §3.8.6.2.2). Two more
//! bounds protect memory: the offered data must fit into memory if segments keep holding as much as
//! lately, and less is offered when the stack's memory is short.

use super::tuning::Tuning;
use crate::tcp::egress::Pressure;
use crate::tcp::seq::Seq;
use crate::tcp::settings::Settings;
use crate::time::Instant;
use towpath_packet::Packet;

/// Largest value of the window field.
pub(super) const WINDOW_FIELD_MAX: u32 = 65_535;
/// Largest window offered when memory is short.
const WINDOW_UNDER_PRESSURE: u32 = 64 << 10;
/// Memory that received data may always hold: 64 small frames.
const HELD_MIN: usize = 64 * 2048;
/// Bytes of memory over which density is averaged.
const DENSITY_MEMORY: u64 = 64 << 10;

/// Recent ratio of received bytes to the memory that holds them. Each small segment uses a whole
/// frame.
#[derive(Clone, Copy)]
struct Density {
    bytes: u64,
    held: u64,
}

impl Density {
    /// Before the first segment, half of the memory is assumed to be data.
    const HALF: Self = Self { bytes: DENSITY_MEMORY / 8, held: DENSITY_MEMORY / 4 };

    fn sample(&mut self, payload: &Packet) {
        self.bytes += payload.payload_len() as u64;
        self.held += payload.pieces().map(|piece| piece.held() as u64).sum::<u64>();
        if self.held > DENSITY_MEMORY {
            self.bytes = (self.bytes / 2).max(1);
            self.held /= 2;
        }
    }

    /// Bytes of data expected to fit into `memory` bytes.
    fn fit(&self, memory: usize) -> u32 {
        u32::try_from(memory as u64 * self.bytes / self.held).unwrap_or(u32::MAX)
    }
}

/// Memory that received data keeps from its lenders.
#[derive(Clone, Copy)]
pub(super) struct Held {
    /// Data in order that was not read.
    pub(super) unread: usize,
    /// Data that was read and not given back.
    pub(super) handed_out: usize,
}

/// The receive window, and the buffer that it comes from.
pub(super) struct ReceiveWindow {
    /// Right edge of the advertised window.
    edge: Seq,
    /// Window in the last ACK sent.
    offered: u32,
    scale: u8,
    /// Window of our SYN, also offered until the first ACK.
    initial: u32,
    /// Largest window that the owner allows.
    limit: u32,
    density: Density,
    /// Memory pressure of the stack when a segment was last sent.
    pressure: Pressure,
    /// In-order data was refused for lack of memory: a zero window is advertised.
    refused: bool,
    /// The owner takes no more data for now.
    held_off: bool,
    /// The window may have opened enough for a window update.
    update_due: bool,
    tuning: Tuning,
}

impl ReceiveWindow {
    /// Creates the window of a connection that has received nothing.
    pub(super) fn new(settings: &Settings, now: Instant) -> Self {
        Self {
            edge: Seq(0),
            offered: 0,
            scale: 0,
            initial: 0,
            limit: u32::MAX,
            density: Density::HALF,
            pressure: Pressure::None,
            refused: false,
            held_off: false,
            update_due: false,
            tuning: Tuning::new(settings, now),
        }
    }

    /// Starts with the buffer of the settings: first window, and scale if `scaling`. Segments have
    /// `mss` bytes.
    pub(super) fn begin(&mut self, mss: u32, scaling: bool) {
        (self.initial, self.scale) = self.tuning.begin(mss, scaling);
    }

    /// Moves the edge to the first number to be received.
    pub(super) fn start_at(&mut self, nxt: Seq) {
        self.edge = nxt;
    }

    /// Gives up scaling: the peer does not scale. `unscaled` bounds the window if we offered
    /// scaling.
    pub(super) fn unscale(&mut self, offered: bool) {
        self.scale = 0;
        if offered {
            self.tuning.bound_clamp(WINDOW_FIELD_MAX);
        }
    }

    /// Starts tuning the buffer: the connection is open. `read` is the first number to be read.
    pub(super) fn open(&mut self, mss: u32, read: Seq, now: Instant) {
        self.tuning.open(self.initial, mss, read, now);
    }

    /// Window offered before any data has arrived, to a peer with segments of `mss` bytes.
    pub(super) fn first(&self, mss: u32) -> u32 {
        self.initial.min(self.limit.max(2 * mss))
    }

    /// Records that `window` bytes from `nxt` on are being offered.
    pub(super) fn promise(&mut self, nxt: Seq, window: u32) {
        self.edge = self.edge.max(nxt + window);
        self.offered = self.edge - nxt;
    }

    /// Chooses the window to offer to a peer with segments of `mss` bytes. Also returns true if
    /// less than half of the buffer is free.
    pub(super) fn choose(&self, mss: u32, held: Held, pressure: Pressure) -> (u32, bool) {
        let buffer = self.tuning.full();
        let full = self.tuning.clamp().min(buffer);
        let segment = mss.min(full);
        if segment == 0 {
            return (0, false);
        }
        // Data that was read but is still held takes room as if it were unread.
        let handed_out = self.density.fit(held.handed_out);
        let mut free = self.tuning.free().saturating_sub(handed_out);
        let unit = 1u32 << self.scale;
        let tight = free < full / 2;
        if tight {
            free -= free % unit;
            // RFC 9293 §3.8.6.2.2: offer no window rather than a silly one.
            if free < buffer / 16 || free < segment {
                return (0, tight);
            }
        }
        // The offered data must fit into memory; room for two segments is always offered.
        let unheld = self.memory_max().saturating_sub(held.unread + held.handed_out);
        let two = 2 * mss;
        free = free.min(self.tuning.threshold()).min(self.density.fit(unheld).max(two));
        free = free.min(self.limit.max(two));
        match pressure {
            Pressure::None => {}
            Pressure::Some => free = free.min(WINDOW_UNDER_PRESSURE),
            Pressure::High | Pressure::Critical => free = free.min(two),
        }
        if self.scale > 0 {
            return (free.next_multiple_of(unit), tight);
        }
        // Offer whole segments; a step of less than a segment changes nothing.
        let offered = self.offered;
        let window = if offered + segment <= free || offered > free {
            free - free % segment
        } else if segment == full && free > offered + full / 2 {
            free
        } else {
            offered
        };
        (window, tight)
    }

    /// Raises a `chosen` window to what was promised beyond `nxt`, in units of the scale.
    pub(super) fn at_least_promised(&self, chosen: u32, nxt: Seq) -> u32 {
        let promised = self.left(nxt);
        let unit = 1u32 << self.scale;
        if chosen < promised { promised.next_multiple_of(unit) } else { chosen }
    }

    /// Value of the window field for a `window` beyond `nxt`, `untaken` bytes after the
    /// acknowledgment number. Records the window.
    pub(super) fn field(&mut self, window: u32, nxt: Seq, untaken: u32) -> u16 {
        let window = window.min(WINDOW_FIELD_MAX << self.scale);
        self.promise(nxt, window);
        let field = if window == 0 { 0 } else { (window + untaken) >> self.scale };
        field.min(WINDOW_FIELD_MAX) as u16
    }

    /// True if a `chosen` window deserves a window update: it at least doubles what was promised
    /// beyond `nxt`.
    pub(super) fn deserves_update(&self, chosen: u32, nxt: Seq) -> bool {
        let promised = self.left(nxt);
        let most = WINDOW_FIELD_MAX << self.scale;
        chosen > 0 && chosen >= promised.saturating_mul(2) && promised < most
    }

    /// True if no window could deserve an update.
    pub(super) fn is_wide(&self, nxt: Seq) -> bool {
        self.left(nxt).saturating_mul(2) > self.tuning.clamp()
    }

    /// Bytes left of the window last advertised.
    pub(super) fn left(&self, nxt: Seq) -> u32 {
        self.edge.max(nxt) - nxt
    }

    /// Right edge of the advertised window.
    pub(super) fn edge(&self) -> Seq {
        self.edge
    }

    /// Window in the last ACK sent.
    pub(super) fn offered(&self) -> u32 {
        self.offered
    }

    /// Scale of our window fields.
    pub(super) fn scale(&self) -> u8 {
        self.scale
    }

    /// Window of our SYN.
    pub(super) fn initial(&self) -> u32 {
        self.initial
    }

    /// The owner's limit.
    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// Sets the largest window that the owner allows.
    pub(super) fn set_limit(&mut self, bytes: u32) {
        self.limit = bytes;
    }

    /// Memory pressure when a segment was last sent.
    pub(super) fn pressure(&self) -> Pressure {
        self.pressure
    }

    /// Notes the memory pressure.
    pub(super) fn set_pressure(&mut self, pressure: Pressure) {
        self.pressure = pressure;
    }

    /// Learns from data how much of the memory that holds it is data.
    pub(super) fn sample_density(&mut self, payload: &Packet) {
        self.density.sample(payload);
    }

    /// Most memory that received data may hold: the buffer and a third more, as frames have fixed
    /// sizes.
    pub(super) fn memory_max(&self) -> usize {
        let buffer = self.tuning.buffer() as usize;
        (buffer + buffer / 3).max(HELD_MIN)
    }

    /// Refuses data: a zero window is advertised. The peer would otherwise retransmit refused data
    /// again and again, and give up in the end.
    pub(super) fn refuse(&mut self) {
        self.refused = true;
    }

    /// Takes data again if there is memory: `full` if there is none.
    pub(super) fn stop_refusing(&mut self, full: bool) -> bool {
        self.refused &= self.held_off || full;
        !self.refused
    }

    /// Starts or ends a time in which the owner takes no data; ending it makes an update due.
    pub(super) fn hold_off(&mut self, held_off: bool) {
        self.refused |= held_off;
        self.update_due |= self.held_off && !held_off;
        self.held_off = held_off;
    }

    /// True while the owner takes no data.
    pub(super) fn is_held_off(&self) -> bool {
        self.held_off
    }

    /// True while data is refused.
    pub(super) fn is_refusing(&self) -> bool {
        self.refused
    }

    /// Makes a window update due.
    pub(super) fn owe_update(&mut self) {
        self.update_due = true;
    }

    /// True if a window update may be due.
    pub(super) fn is_update_due(&self) -> bool {
        self.update_due
    }

    /// Takes the note that a window update may be due.
    pub(super) fn take_update(&mut self) -> bool {
        core::mem::take(&mut self.update_due)
    }

    /// The buffer.
    pub(super) fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// The buffer, to change it.
    pub(super) fn tuning_mut(&mut self) -> &mut Tuning {
        &mut self.tuning
    }

    /// Offers `window` bytes from `nxt` on, whatever was offered before.
    #[cfg(test)]
    pub(super) fn force(&mut self, nxt: Seq, window: u32) {
        self.edge = nxt + window;
        self.offered = window;
    }
}
