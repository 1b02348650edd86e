//! Size of the receive buffer, and how much of it windows offer.
//!
//! Everything follows from memory with its overhead. The *buffer* bounds the memory. The *ratio* is
//! the part of it that is data, learned from segments. The *threshold* (`rcv_ssthresh` of
//! `TCP_INFO`) grows towards what fits while segments are dense. The buffer follows the reader
//! (dynamic right-sizing, Fisk and Feng 2001): it has room for twice what the reader took in one
//! round trip. A round trip is the time in which a window fills, or less if timestamps say so.
//!
//! The overhead that is charged is what Linux charges and not the real one, so that programs see
//! the windows and buffer sizes that they know (`tests/scripts/info_*.pkt`). The memory really held
//! is bounded separately, see `window`.

use crate::tcp::seq::Seq;
use crate::tcp::settings::Settings;
use crate::time::{Duration, Instant};

/// State of the receive buffer.
pub(super) struct Tuning {
    /// Memory that received data may take, with overhead.
    buffer: u32,
    /// Largest buffer that tuning sets.
    buffer_max: u32,
    /// The owner chose the size of the buffer.
    fixed: bool,
    /// How many of 256 bytes of memory are data.
    ratio: u32,
    /// Largest window that may be offered (`TCP_WINDOW_CLAMP`).
    clamp: u32,
    /// Largest window that is offered now (`rcv_ssthresh` of `TCP_INFO`).
    threshold: u32,
    /// Size of the last segment that was smaller than the largest.
    last_size: u32,
    /// Unread bytes that wake the reader (`SO_RCVLOWAT`).
    low_water: u32,
    charge: Charge,
    /// Round trip of the sender in eighths of a microsecond; zero before the first.
    rtt_eighths: u64,
    /// The number that ends the current window, and when that window began.
    window_end: Option<(Seq, Instant)>,
    /// Last timestamp echo that was measured.
    echo: u32,
    /// Data that the reader took in one round trip. The other two say from where and since when the
    /// current count runs.
    space: u32,
    counted_from: Seq,
    counted_since: Instant,
    /// When the last segment arrived.
    arrived_at: Instant,
}

impl Tuning {
    /// Creates a buffer as the settings say.
    pub(super) fn new(settings: &Settings, now: Instant) -> Self {
        let buffer = settings.receive_buffer.max(BUFFER_MIN);
        Self {
            buffer,
            buffer_max: settings.receive_buffer_max.max(buffer),
            fixed: settings.receive_buffer_fixed,
            ratio: RATIO_DEFAULT,
            clamp: settings.window_clamp.map_or(u32::MAX, |clamp| clamp.max(CLAMP_MIN)),
            threshold: 0,
            last_size: 0,
            low_water: 1,
            charge: Charge::default(),
            rtt_eighths: 0,
            window_end: None,
            echo: 0,
            space: 0,
            counted_from: Seq(0),
            counted_since: now,
            arrived_at: now,
        }
    }

    /// Memory that received data may take, with overhead.
    pub(super) fn buffer(&self) -> u32 {
        self.buffer
    }

    /// Largest window that may be offered.
    pub(super) fn clamp(&self) -> u32 {
        self.clamp
    }

    /// Bounds the largest window that may be offered.
    pub(super) fn bound_clamp(&mut self, most: u32) {
        self.clamp = self.clamp.min(most);
    }

    /// Largest window that is offered now.
    pub(super) fn threshold(&self) -> u32 {
        self.threshold
    }

    /// Data that the reader took in one round trip.
    pub(super) fn space(&self) -> u32 {
        self.space
    }

    /// Unread bytes that wake the reader.
    pub(super) fn low_water(&self) -> usize {
        self.low_water as usize
    }

    /// The charge for received data.
    pub(super) fn charge(&mut self) -> &mut Charge {
        &mut self.charge
    }

    /// Notes that a segment arrived.
    pub(super) fn arrived(&mut self, now: Instant) {
        self.arrived_at = now;
    }

    /// Sets the size of the last segment that was smaller than the largest. Returns the one before.
    pub(super) fn set_last_size(&mut self, size: u32) -> u32 {
        core::mem::replace(&mut self.last_size, size)
    }

    /// Data that fits into `memory`.
    fn data_in(&self, memory: u32) -> u32 {
        ((u64::from(memory) * u64::from(self.ratio)) >> RATIO_BITS) as u32
    }

    /// Memory that `data` bytes of data take.
    fn memory_for(&self, data: u64) -> u32 {
        u32::try_from((data << RATIO_BITS) / u64::from(self.ratio)).unwrap_or(u32::MAX)
    }

    /// Data that fits the whole buffer.
    pub(super) fn full(&self) -> u32 {
        self.data_in(self.buffer)
    }

    /// Data that fits into the free part of the buffer.
    pub(super) fn free(&self) -> u32 {
        self.data_in(self.buffer.saturating_sub(self.charge.total()))
    }

    /// Returns the window of the first segment, and the scale with which the largest buffer can be
    /// offered. Segments have `mss` bytes.
    pub(super) fn begin(&mut self, mss: u32, scaling: bool) -> (u32, u8) {
        if self.fixed {
            self.clamp = self.clamp.min(self.full());
        }
        let mut window = self.full().min(self.clamp);
        if window > mss {
            window -= window % mss;
        }
        let mut scale = 0;
        if scaling {
            let largest = self.full().max(self.buffer_max).min(self.clamp);
            scale = largest.max(1).ilog2().saturating_sub(15).min(SCALE_MAX) as u8;
        }
        self.clamp = self.clamp.min(FIELD_MAX << scale);
        self.threshold = window;
        (window, scale)
    }

    /// Starts tuning an open connection, which has offered `window` so far.
    pub(super) fn open(&mut self, window: u32, mss: u32, read: Seq, now: Instant) {
        let full = self.full();
        self.clamp = self.clamp.min(full);
        // Keep back room for one segment.
        if self.clamp > 2 * mss && self.clamp + mss > full {
            self.clamp = full.saturating_sub(mss).max(2 * mss);
        }
        self.threshold = self.threshold.min(self.clamp);
        self.space = self.threshold.min(window).min(INITIAL_SEGMENTS * mss);
        (self.counted_from, self.counted_since) = (read, now);
    }

    /// Sets the largest window; `offered` is the last window.
    pub(super) fn set_clamp(&mut self, clamp: u32, offered: u32) {
        let clamp = clamp.max(CLAMP_MIN);
        if clamp < self.clamp {
            self.threshold = self.threshold.min(clamp);
        } else if clamp > self.clamp {
            self.threshold = self.threshold.max(offered.min(clamp));
        }
        self.clamp = clamp;
    }

    /// Learns the ratio from segments of a new size: `len` bytes of data in `memory`.
    pub(super) fn learn_ratio(&mut self, len: u32, memory: u32, offered: u32) {
        let ratio =
            ((u64::from(len) << RATIO_BITS) / u64::from(memory.max(1))).clamp(1, 255) as u32;
        if ratio != self.ratio {
            self.ratio = ratio;
            self.set_clamp(self.full(), offered);
            self.space = self.space.min(self.clamp);
        }
    }

    /// Raises the threshold after `len` bytes of data arrived in `memory`, if the data is dense or
    /// there is room for more as sparse as it. Returns true if the threshold grew.
    pub(super) fn grow_threshold(
        &mut self,
        len: u32,
        memory: u32,
        full_size: u32,
        mss: u32,
    ) -> bool {
        let room = self.clamp.min(self.free()).saturating_sub(self.threshold);
        if room == 0 {
            return false;
        }
        let dense = self.data_in(memory) <= len;
        let more = if dense { 2 * full_size } else { self.growth_if_sparse(len, memory, mss) };
        if more > 0 {
            self.threshold += room.min(more.max(len.saturating_mul(2)));
        }
        more > 0
    }

    /// Growth for sparse data: the sparser it is, the smaller the window must be that still grows.
    fn growth_if_sparse(&self, len: u32, memory: u32, mss: u32) -> u32 {
        let mut memory = self.data_in(memory) >> 1;
        let mut window = self.data_in(self.buffer_max) >> 1;
        while self.threshold <= window {
            if memory <= len {
                return 2 * mss;
            }
            memory >>= 1;
            window >>= 1;
        }
        0
    }

    /// Measures the round trip by data received up to `nxt`, with `offered` in the last window. A
    /// window takes about one round trip to fill, never less.
    pub(super) fn measure_window(&mut self, nxt: Seq, offered: u32, now: Instant) {
        if let Some((end, since)) = self.window_end {
            if nxt.before(end) {
                return;
            }
            self.take_rtt(now.since(since).max(Duration::from_micros(1)), None);
        }
        self.window_end = Some((nxt + offered, now));
    }

    /// Measures the round trip by the echo of a timestamp sent `age` ago, in a full segment.
    /// `all_read` means that no data waited for the reader, so that the time is the network's.
    pub(super) fn measure_echo(&mut self, echo: u32, age: Duration, full: bool, all_read: bool) {
        if echo == self.echo {
            return;
        }
        self.echo = echo;
        if full && age > Duration::ZERO {
            self.take_rtt(age, Some(all_read));
        }
    }

    /// Takes a sample: a smaller one counts at once, a larger one in part and only if it comes from
    /// an echo.
    fn take_rtt(&mut self, sample: Duration, by_echo: Option<bool>) {
        let sample = sample.as_micros() as u64;
        if self.rtt_eighths == 0 || sample << 3 < self.rtt_eighths {
            self.rtt_eighths = sample << 3;
        } else if by_echo == Some(true) {
            self.rtt_eighths = self.rtt_eighths - (self.rtt_eighths >> 3) + sample;
        }
    }

    /// Round-trip time of the sender; zero if unknown.
    pub(super) fn rtt(&self) -> Duration {
        Duration::from_micros(self.rtt_eighths >> 3)
    }

    /// Adapts the buffer once in a round trip. The reader has taken everything before `read` and
    /// has left `unread` bytes.
    pub(super) fn follow_reader(&mut self, read: Seq, unread: u32, ahead: u32, tight: bool) {
        let since = self.arrived_at.since(self.counted_since);
        if self.rtt_eighths == 0 || since < self.rtt() {
            return;
        }
        let taken = (read - self.counted_from).saturating_sub(unread);
        if taken > self.space {
            self.grow_buffer(taken, ahead, tight);
        }
        (self.counted_from, self.counted_since) = (read, self.arrived_at);
    }

    /// Makes room for a reader that takes `taken` bytes in a round trip, and for `ahead` bytes out
    /// of order. Does nothing if memory is `tight`.
    pub(super) fn grow_buffer(&mut self, taken: u32, ahead: u32, tight: bool) {
        let before = core::mem::replace(&mut self.space, taken);
        if self.fixed || tight {
            return;
        }
        // The count is one round trip old, and the sender may double its rate in each.
        let mut window = 2 * u64::from(taken);
        let grown = u64::from(taken.saturating_sub(before));
        window += 2 * (window * grown / u64::from(before.max(1)));
        window += u64::from(ahead);
        let buffer = self.memory_for(window.min(u64::from(u32::MAX))).min(self.buffer_max);
        if buffer > self.buffer {
            self.buffer = buffer;
            self.clamp = self.full();
        }
    }

    /// Sets the size and ends the tuning (`SO_RCVBUF`).
    pub(super) fn set_buffer(&mut self, bytes: u32) {
        self.buffer = bytes.max(BUFFER_MIN);
        self.fixed = true;
    }

    /// Sets how many bytes the reader waits for; they must fit into the buffer.
    pub(super) fn set_low_water(&mut self, bytes: u32, offered: u32) {
        self.low_water = bytes.max(1);
        if self.fixed {
            return;
        }
        let buffer = self.memory_for(u64::from(bytes)).min(self.buffer_max);
        if buffer > self.buffer {
            self.buffer = buffer;
            self.set_clamp(self.full(), offered);
        }
    }
}

/// Charge for received data: the memory that Linux charges for it.
#[derive(Default)]
pub(super) struct Charge {
    /// Memory charged for in-order data.
    queued: u64,
    /// Bytes that still fit behind the last in-order segment.
    tail_room: u32,
    /// Memory charged for out-of-order data, and the bytes of that data.
    ahead: u64,
    ahead_len: u64,
}

impl Charge {
    /// Memory charged in total.
    pub(super) fn total(&self) -> u32 {
        u32::try_from(self.queued + self.ahead).unwrap_or(u32::MAX)
    }

    /// Charges `len` bytes that arrived in order, with `headers` bytes of headers.
    pub(super) fn queue(&mut self, len: u32, headers: u32) {
        if len <= self.tail_room {
            self.tail_room -= len;
        } else {
            let (memory, room) = memory_of(len + headers);
            self.queued += u64::from(memory);
            self.tail_room = room;
        }
    }

    /// Charges `len` bytes that arrived out of order, with `headers` bytes of headers.
    pub(super) fn hold(&mut self, len: u32, headers: u32) {
        self.ahead += u64::from(memory_of(len + headers).0);
        self.ahead_len += u64::from(len);
    }

    /// Moves the charge of `len` bytes that are in order now; `last` if no out-of-order data is
    /// left.
    pub(super) fn release(&mut self, len: u32, last: bool) {
        let len = u64::from(len);
        let moved = if last || len >= self.ahead_len {
            self.ahead
        } else {
            self.ahead * len / self.ahead_len
        };
        self.ahead -= moved;
        self.ahead_len = if last { 0 } else { self.ahead_len.saturating_sub(len) };
        self.queued += moved;
        self.tail_room = 0;
    }

    /// Drops the charge of out-of-order data.
    pub(super) fn forget_ahead(&mut self) {
        (self.ahead, self.ahead_len) = (0, 0);
    }

    /// Releases the charge of `count` of `len` in-order bytes, which the reader takes.
    pub(super) fn consume(&mut self, count: usize, len: usize) {
        if count >= len {
            (self.queued, self.tail_room) = (0, 0);
        } else {
            self.queued -= self.queued * count as u64 / len as u64;
        }
    }
}

/// Memory that a segment of `bytes` with headers is charged, and how many bytes more would fit:
/// blocks of powers of two, or pages.
pub(super) fn memory_of(bytes: u32) -> (u32, u32) {
    if bytes >= PAGE {
        return (bytes.next_multiple_of(PAGE) + STATE, 0);
    }
    let block = bytes.next_multiple_of(CACHE_LINE) + BLOCK_TAIL;
    let block = if block <= BLOCK_MIN { BLOCK_MIN } else { block.next_power_of_two() };
    (block + STATE, block - BLOCK_TAIL - bytes)
}

/// Least receive buffer; Linux's value.
const BUFFER_MIN: u32 = 2304;
/// Least window clamp.
pub(super) const CLAMP_MIN: u32 = BUFFER_MIN / 2;
/// Ratios are parts of a power of two.
const RATIO_BITS: u32 = 8;
/// Ratio before the first segment: half is data.
const RATIO_DEFAULT: u32 = 1 << (RATIO_BITS - 1);
/// Largest value of the window field.
const FIELD_MAX: u32 = 65_535;
/// Largest window scale (RFC 7323 §2.3).
const SCALE_MAX: u32 = 14;
/// Segments that the reader is assumed to take in the first round trip.
const INITIAL_SEGMENTS: u32 = 10;
/// From this size on memory comes in whole pages.
const PAGE: u32 = 4096;
/// Bytes of state per segment.
const STATE: u32 = 256;
/// Bytes at the end of each block, and the smallest block.
const BLOCK_TAIL: u32 = 320;
const BLOCK_MIN: u32 = 640;
/// Data in a block is rounded up to this.
const CACHE_LINE: u32 = 64;
