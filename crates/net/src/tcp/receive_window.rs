//! The window that is offered to the peer (RFC 9293 §3.8.6.2), by Linux's rules.
//!
//! It is the free part of the buffer (see `tuning`), at most the threshold, never less than was
//! offered before, and zero if too little is free. Two bounds come on top of Linux's rules. The
//! offered data must fit into memory if segments keep holding as much as lately. And less is
//! offered when the stack's memory is short.

use super::connection::{Connection, Segment, TIMESTAMPS_LEN};
use super::output::{Egress, Pressure, WINDOW_UNDER_PRESSURE};
use super::receiver::Receiver;
use super::seq::Seq;
use super::state::State;
use super::tuning::{CLAMP_MIN, memory_of};
use crate::time::{Duration, Instant};
use crate::wire::tcp::{Flags, HEADER_LEN};
use towpath_packet::Packet;

/// Largest value of the window field.
const WINDOW_FIELD_MAX: u32 = 65_535;
/// Segments of at least this many bytes let the window grow.
const GROWTH_MIN: u32 = 128;
/// A segment without PSH that is larger than this counts as full; one with PSH, if it is larger
/// than `SIZE_MIN_PUSHED`.
const SIZE_MIN: u32 = 88;
const SIZE_MIN_PUSHED: u32 = 536;

impl Receiver {
    /// Window to offer now: Linux's choice, limited by the two bounds on memory.
    fn choose_window(&mut self, pressure: Pressure) -> u32 {
        let full = self.tuning.clamp.min(self.tuning.full());
        let mss = self.mss.min(full);
        if mss == 0 {
            return 0;
        }
        // Data that was read but is still held takes room as if it were unread.
        let handed_out = self.density.fit(self.handed_out() as u64);
        let mut free = self.tuning.free().saturating_sub(handed_out);
        let unit = 1u32 << self.window_scale;
        if free < full / 2 {
            self.quick_acks = 0;
            free -= free % unit;
            // RFC 9293 §3.8.6.2.2: offer no window rather than a silly one.
            if free < self.tuning.full() / 16 || free < mss {
                return 0;
            }
        }
        // The offered data must fit into memory; room for two segments is always offered.
        let unheld = self.memory_max().saturating_sub(self.held());
        let fitting = self.density.fit(unheld as u64).max(2 * self.mss);
        free =
            free.min(self.tuning.threshold).min(fitting).min(self.window_limit.max(2 * self.mss));
        match pressure {
            Pressure::None => {}
            Pressure::Some => free = free.min(WINDOW_UNDER_PRESSURE),
            Pressure::High | Pressure::Critical => free = free.min(2 * self.mss),
        }
        if self.window_scale > 0 {
            return free.next_multiple_of(unit);
        }
        // Offer whole segments; a step of less than a segment changes nothing.
        let offered = self.offered;
        if offered + mss <= free || offered > free {
            free - free % mss
        } else if mss == full && free > offered + full / 2 {
            free
        } else {
            offered
        }
    }
}

impl Connection {
    /// Returns the window field of the next segment, and remembers what it offers.
    pub(super) fn window_field(&mut self, syn: bool, egress: &Egress) -> u16 {
        self.receive.pressure = egress.pressure;
        if syn {
            // The field of a SYN is not scaled (RFC 7323 §2.2) and may be too small for the window.
            // The next ACK offers the rest; no update is needed before.
            let window = self.first_window();
            if self.state != State::SynSent {
                self.promise(window);
            }
            return window.min(WINDOW_FIELD_MAX) as u16;
        }
        // The peer would retransmit refused data again and again, and give up in the end. A zero
        // window makes it wait. Linux shrinks the window too.
        self.receive.refused &= self.receive.held_off || self.receive.is_full();
        let scale = self.receive.window_scale;
        let window = if self.receive.refused { 0 } else { self.window_to_offer(egress.pressure) };
        let window = window.min(WINDOW_FIELD_MAX << scale);
        self.promise(window);
        // The window field counts from the acknowledgment number.
        let untaken = self.receive.nxt - self.receive.ack_point();
        let field = if window == 0 { 0 } else { (window + untaken) >> scale };
        field.min(WINDOW_FIELD_MAX) as u16
    }

    /// Window offered before any data has arrived.
    pub(super) fn first_window(&self) -> u32 {
        let limit = self.receive.window_limit.max(2 * self.path.sizes.advertised);
        self.receive.initial_window.min(limit)
    }

    /// Records that `window` bytes are being offered.
    pub(super) fn promise(&mut self, window: u32) {
        let receive = &mut self.receive;
        receive.advertised = receive.advertised.max(receive.nxt + window);
        receive.offered = receive.advertised - receive.nxt;
    }

    /// Window that an ACK would offer now: never less than was offered before, in units of the
    /// scale.
    pub(super) fn window_to_offer(&mut self, pressure: Pressure) -> u32 {
        let promised = self.receive.window();
        let unit = 1u32 << self.receive.window_scale;
        let chosen = self.receive.choose_window(pressure);
        if chosen < promised { promised.next_multiple_of(unit) } else { chosen }
    }

    /// True if an ACK sent now would offer no less than the last one.
    pub(super) fn window_advances(&mut self) -> bool {
        let pressure = self.receive.pressure;
        self.receive.choose_window(pressure) >= self.receive.offered
    }

    /// Sends a window update if the reader took data and the window at least doubles, as Linux
    /// does.
    pub(super) fn offer_window(&mut self) {
        if !self.state.can_receive() {
            return;
        }
        if self.receive.refused {
            self.receive.update_due |= !(self.receive.held_off || self.receive.is_full());
            return;
        }
        let promised = self.receive.window();
        if promised.saturating_mul(2) > self.receive.tuning.clamp {
            return;
        }
        let pressure = self.receive.pressure;
        let window = self.receive.choose_window(pressure);
        let most = WINDOW_FIELD_MAX << self.receive.window_scale;
        if window > 0 && window >= promised.saturating_mul(2) && promised < most {
            self.receive.update_due = true;
        }
    }

    /// Starts with the buffer of the settings: first window, scale and segment size.
    pub(super) fn begin_receiving(&mut self) {
        let options = if self.timestamps.enabled { TIMESTAMPS_LEN } else { 0 };
        let mss = self.path.sizes.advertised.saturating_sub(options).max(1);
        let scaling = self.scaled || self.state == State::SynSent && self.settings.window_scaling;
        let (window, scale) = self.receive.tuning.begin(mss, scaling);
        self.receive.initial_window = window;
        self.receive.window_scale = scale;
        self.guess_segment_size();
    }

    /// Guesses the peer's segment size, rather too small than too large: arriving segments correct
    /// it.
    pub(super) fn guess_segment_size(&mut self) {
        let size =
            self.send.mss.min(self.path.sizes.advertised).min(self.receive.initial_window / 2);
        self.receive.mss = size.clamp(SIZE_MIN, SIZE_MIN_PUSHED);
    }

    /// Starts tuning the buffer: the connection is open.
    pub(super) fn open_buffer(&mut self, now: Instant) {
        let less = if self.timestamps.enabled && !self.passive { TIMESTAMPS_LEN } else { 0 };
        let receive = &mut self.receive;
        let (window, mss) =
            (receive.initial_window, self.path.sizes.advertised.saturating_sub(less).max(1));
        receive.tuning.open(window, mss, receive.irs + 1, now);
    }

    /// Segment size of arriving data. A super-packet names it. Other large data is assumed to
    /// consist of segments as large as ours may be.
    pub(super) fn arriving_size(&self, len: u32, payload: &Packet) -> u32 {
        match payload.offload().gso {
            Some(gso) => len.min(u32::from(gso.size.get())),
            None if len <= self.path.sizes.advertised => len,
            None => self.send.mss.min(self.path.sizes.advertised),
        }
    }

    /// Bytes of headers in front of arriving data.
    pub(super) fn arriving_headers(&self) -> u32 {
        let ip = if self.remote.is_ipv4() { 20 } else { 40 };
        ip + HEADER_LEN as u32 + if self.timestamps.enabled { TIMESTAMPS_LEN } else { 0 }
    }

    /// Learns from `len` bytes of data in segments of `size`: how large full segments are, what
    /// memory they take, and which of them end a write.
    pub(super) fn measure_size(&mut self, segment: &Segment, len: u32, size: u32) {
        let (headers, mss_local) = (self.arriving_headers(), self.path.sizes.advertised);
        let fixed = headers - if self.remote.is_ipv4() { 20 } else { 40 };
        let receive = &mut self.receive;
        let last = core::mem::take(&mut receive.tuning.last_size);
        if size >= receive.mss {
            if size != receive.mss {
                receive.tuning.learn_ratio(len, memory_of(len + headers).0, receive.offered);
            }
            receive.mss = size.min(mss_local);
            if segment.has(Flags::PSH) {
                receive.pushed = receive.pushed.max(1);
            }
            return;
        }
        // SACK blocks make the payload vary: compare sizes with all options included.
        let whole = size + segment.header.header_len as u32;
        let ends = segment.has(Flags::PSH | Flags::FIN | Flags::URG | Flags::SYN);
        let least = if ends { SIZE_MIN_PUSHED } else { SIZE_MIN } + HEADER_LEN as u32;
        if whole >= least {
            let size = whole.saturating_sub(fixed);
            receive.tuning.last_size = size;
            if size == last {
                receive.mss = size;
                return;
            }
        }
        receive.pushed = (receive.pushed + 1).min(2);
    }

    /// Lets the window grow if data arrived densely, by Linux's rules.
    pub(super) fn grow_window(&mut self, len: u32, in_order: bool) {
        if (in_order && len < GROWTH_MIN) || self.receive.pressure != Pressure::None {
            return;
        }
        let memory = memory_of(len + self.arriving_headers()).0;
        let receive = &mut self.receive;
        if receive.tuning.grow_threshold(len, memory, self.path.sizes.advertised, receive.mss) {
            receive.quick_acks |= 1;
        }
    }

    /// Measures the sender's round-trip time from the echo of our timestamp.
    pub(super) fn measure_echo(&mut self, segment: &Segment, now: Instant) {
        let Some((_, echo)) = segment.options.timestamps else { return };
        if !self.timestamps.enabled || echo == 0 {
            return;
        }
        let millis = self.timestamps.value(now).wrapping_sub(echo);
        // Half of the numbers are in the future.
        let age = if millis >> 31 == 0 { u64::from(millis) } else { 0 };
        let full = segment.seq_len() >= self.receive.mss;
        let all_read = self.receive.queue.is_empty();
        self.receive.tuning.measure_echo(echo, Duration::from_millis(age), full, all_read);
    }

    /// Enlarges the buffer if out-of-order data needs it.
    pub(super) fn make_room_ahead(&mut self) {
        let tight = self.receive.pressure != Pressure::None;
        let (space, ahead) = (self.receive.tuning.space, self.receive.ahead());
        self.receive.tuning.grow_buffer(space, ahead, tight);
    }

    /// Adapts the buffer to the reader, which took data.
    pub(super) fn follow_reader(&mut self) {
        let receive = &mut self.receive;
        let unread = receive.queue.len() as u32;
        let read = Seq(receive.nxt.0.wrapping_sub(unread + u32::from(receive.fin)));
        let tight = receive.pressure != Pressure::None;
        let ahead = receive.ahead();
        receive.tuning.follow_reader(read, unread, ahead, tight);
    }

    /// Sets the largest window to offer (`TCP_WINDOW_CLAMP`), in bytes, until the buffer grows.
    /// What was offered stays offered.
    pub fn set_window_clamp(&mut self, clamp: u32) {
        let offered = self.receive.offered;
        self.receive.tuning.set_clamp(clamp.max(CLAMP_MIN), offered);
    }

    /// Largest window that is offered (`TCP_WINDOW_CLAMP`).
    pub fn window_clamp(&self) -> u32 {
        self.receive.tuning.clamp
    }

    /// Sets the size of the receive buffer, in bytes with overhead, and ends its tuning
    /// (`SO_RCVBUF`, after the doubling).
    pub fn set_receive_buffer(&mut self, bytes: u32) {
        self.receive.tuning.set_buffer(bytes);
    }

    /// Size of the receive buffer, in bytes with overhead (`SO_RCVBUF`).
    pub fn receive_buffer(&self) -> u32 {
        self.receive.tuning.buffer
    }

    /// Sets how many bytes wake the reader (`SO_RCVLOWAT`). Fewer unread bytes are acknowledged as
    /// if the reader kept up.
    pub fn set_low_water(&mut self, bytes: u32) {
        let offered = self.receive.offered;
        self.receive.tuning.set_low_water(bytes, offered);
    }
}
