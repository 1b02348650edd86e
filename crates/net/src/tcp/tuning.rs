//! How large the receive buffer is and may become, and how much of it windows offer.
//!
//! As in Linux everything follows from memory with its overhead: the *buffer* bounds it, the
//! *ratio* says which part of it is data, learned from segments, and the *threshold* (Linux's
//! rcv_ssthresh) grows towards what fits as long as segments are dense. The buffer follows the
//! reader (dynamic right-sizing): as much as twice what he took in one round trip, which is the
//! time in which a window fills, or less if timestamps say so.
//!
//! The overhead is Linux's, not ours, so that windows are the same; what really is held is bounded
//! beside it, see `window`.

use super::seq::Seq;
use super::settings::Settings;
use crate::time::{Duration, Instant};

/// State of the receive buffer.
pub(super) struct Tuning {
    /// Memory that received data may take, with overhead (Linux's sk_rcvbuf).
    pub(super) buffer: u32,
    /// Most that tuning makes of it.
    buffer_max: u32,
    /// The owner chose it.
    pub(super) fixed: bool,
    /// How many of 256 bytes of memory are data.
    ratio: u32,
    /// Most that windows offer (Linux's window_clamp).
    pub(super) clamp: u32,
    /// Most that they offer now (Linux's rcv_ssthresh).
    pub(super) threshold: u32,
    /// Size of the last segment that was smaller than the largest.
    pub(super) last_size: u32,
    /// Unread bytes that wake the reader (`SO_RCVLOWAT`).
    pub(super) low_water: u32,
    pub(super) charge: Charge,
    /// Round trip of the sender in eighths of a microsecond; zero before the first.
    rtt_eighths: u64,
    /// A window is over when this number is received, and when it began.
    window_end: Option<(Seq, Instant)>,
    /// Echo of the last timestamp that was measured.
    echo: u32,
    /// Data that the reader took in one round trip, and since when and where it is counted.
    pub(super) space: u32,
    counted_from: Seq,
    counted_since: Instant,
    /// When the last segment arrived.
    pub(super) arrived_at: Instant,
}

impl Tuning {
    /// A buffer as settings say.
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

    /// Data that fits so much memory.
    fn data_in(&self, memory: u32) -> u32 {
        ((u64::from(memory) * u64::from(self.ratio)) >> RATIO_BITS) as u32
    }

    /// Memory that so much data takes.
    fn memory_for(&self, data: u64) -> u32 {
        u32::try_from((data << RATIO_BITS) / u64::from(self.ratio)).unwrap_or(u32::MAX)
    }

    /// Data that fits the whole buffer.
    pub(super) fn full(&self) -> u32 {
        self.data_in(self.buffer)
    }

    /// Data that fits what is free of it.
    pub(super) fn free(&self) -> u32 {
        self.data_in(self.buffer.saturating_sub(self.charge.total()))
    }

    /// Window of the first segment and the scale that lets the largest buffer be offered, in
    /// segments of `mss` (Linux's tcp_select_initial_window).
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

    /// The connection is open: `window` was offered so far (Linux's tcp_init_buffer_space).
    pub(super) fn open(&mut self, window: u32, mss: u32, read: Seq, now: Instant) {
        let full = self.full();
        self.clamp = self.clamp.min(full);
        // Room for one segment is kept back.
        if self.clamp > 2 * mss && self.clamp + mss > full {
            self.clamp = full.saturating_sub(mss).max(2 * mss);
        }
        self.threshold = self.threshold.min(self.clamp);
        self.space = self.threshold.min(window).min(INITIAL_SEGMENTS * mss);
        (self.counted_from, self.counted_since) = (read, now);
    }

    /// Sets the most that windows offer; `offered` is what the last one did (Linux's
    /// tcp_set_window_clamp).
    pub(super) fn set_clamp(&mut self, clamp: u32, offered: u32) {
        let clamp = clamp.max(CLAMP_MIN);
        if clamp < self.clamp {
            self.threshold = self.threshold.min(clamp);
        } else if clamp > self.clamp {
            self.threshold = self.threshold.max(offered.min(clamp));
        }
        self.clamp = clamp;
    }

    /// Segments of another size came: `len` bytes of data in so much memory.
    pub(super) fn learn_ratio(&mut self, len: u32, memory: u32, offered: u32) {
        let ratio =
            ((u64::from(len) << RATIO_BITS) / u64::from(memory.max(1))).clamp(1, 255) as u32;
        if ratio != self.ratio {
            self.ratio = ratio;
            self.set_clamp(self.full(), offered);
            self.space = self.space.min(self.clamp);
        }
    }

    /// Data came as `len` bytes in so much memory: more may come at once if it is dense, or if
    /// there is room for the like of it (Linux's tcp_grow_window). True if the threshold grew.
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

    /// The sparser data is, the less of the largest window may be in use for more.
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

    /// Received up to `nxt`, with `offered` in the last window: a window's time is about a round
    /// trip, never less.
    pub(super) fn measure_window(&mut self, nxt: Seq, offered: u32, now: Instant) {
        if let Some((end, since)) = self.window_end {
            if nxt.before(end) {
                return;
            }
            self.take_rtt(now.since(since).max(Duration::from_micros(1)), None);
        }
        self.window_end = Some((nxt + offered, now));
    }

    /// A full segment echoed our timestamp, which was sent so long ago. `all_read` if nothing
    /// waited for the reader, so that the time is the network's.
    pub(super) fn measure_echo(&mut self, echo: u32, age: Duration, full: bool, all_read: bool) {
        if echo == self.echo {
            return;
        }
        self.echo = echo;
        if full && age > Duration::ZERO {
            self.take_rtt(age, Some(all_read));
        }
    }

    /// Less than known counts at once, more in part, and only if timestamps say it.
    fn take_rtt(&mut self, sample: Duration, by_echo: Option<bool>) {
        let sample = sample.as_micros() as u64;
        if self.rtt_eighths == 0 || sample << 3 < self.rtt_eighths {
            self.rtt_eighths = sample << 3;
        } else if by_echo == Some(true) {
            self.rtt_eighths = self.rtt_eighths - (self.rtt_eighths >> 3) + sample;
        }
    }

    /// Round trip of the sender; zero if unknown.
    pub(super) fn rtt(&self) -> Duration {
        Duration::from_micros(self.rtt_eighths >> 3)
    }

    /// The reader has taken everything before `read` and left `unread` bytes: once in a round
    /// trip the buffer follows what he took (Linux's tcp_rcv_space_adjust).
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

    /// Makes room for a reader who takes `taken` bytes in a round trip, and for `ahead` more that
    /// came out of order (Linux's tcp_rcvbuf_grow). Not if memory is `tight`.
    pub(super) fn grow_buffer(&mut self, taken: u32, ahead: u32, tight: bool) {
        let before = core::mem::replace(&mut self.space, taken);
        if self.fixed || tight {
            return;
        }
        // What is seen is a round trip old, and its sender may double his rate in each.
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

    /// Sets the size for good (`SO_RCVBUF`).
    pub(super) fn set_buffer(&mut self, bytes: u32) {
        self.buffer = bytes.max(BUFFER_MIN);
        self.fixed = true;
    }

    /// The reader waits for so many bytes, which must fit (Linux's tcp_set_rcvlowat).
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

/// What received data counts with: the memory that Linux would take for it.
#[derive(Default)]
pub(super) struct Charge {
    /// For what is in order.
    queued: u64,
    /// Bytes that fit behind the last segment in order.
    tail_room: u32,
    /// For what is ahead of its turn, and how many bytes that is.
    ahead: u64,
    ahead_len: u64,
}

impl Charge {
    /// Memory for everything.
    pub(super) fn total(&self) -> u32 {
        u32::try_from(self.queued + self.ahead).unwrap_or(u32::MAX)
    }

    /// `len` bytes of data came in order, with so many bytes of headers.
    pub(super) fn queue(&mut self, len: u32, headers: u32) {
        if len <= self.tail_room {
            self.tail_room -= len;
        } else {
            let (memory, room) = memory_of(len + headers);
            self.queued += u64::from(memory);
            self.tail_room = room;
        }
    }

    /// The same ahead of its turn.
    pub(super) fn hold(&mut self, len: u32, headers: u32) {
        self.ahead += u64::from(memory_of(len + headers).0);
        self.ahead_len += u64::from(len);
    }

    /// Of what was ahead `len` bytes are in order now; `last` if that is all.
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

    /// What was ahead is dropped.
    pub(super) fn forget_ahead(&mut self) {
        (self.ahead, self.ahead_len) = (0, 0);
    }

    /// The reader takes `count` of `len` bytes in order.
    pub(super) fn consume(&mut self, count: usize, len: usize) {
        if count >= len {
            (self.queued, self.tail_room) = (0, 0);
        } else {
            self.queued -= self.queued * count as u64 / len as u64;
        }
    }
}

/// Memory of a segment of so many bytes with its headers, and how much more would fit: blocks of
/// powers of two, or pages.
pub(super) fn memory_of(bytes: u32) -> (u32, u32) {
    if bytes >= PAGE {
        return (bytes.next_multiple_of(PAGE) + STATE, 0);
    }
    let block = bytes.next_multiple_of(CACHE_LINE) + BLOCK_TAIL;
    let block = if block <= BLOCK_MIN { BLOCK_MIN } else { block.next_power_of_two() };
    (block + STATE, block - BLOCK_TAIL - bytes)
}

/// Least buffer (Linux's SOCK_MIN_RCVBUF).
const BUFFER_MIN: u32 = 2304;
/// Least clamp.
pub(super) const CLAMP_MIN: u32 = BUFFER_MIN / 2;
/// Ratios are parts of a power of two.
const RATIO_BITS: u32 = 8;
/// Before the first segment: half is data.
const RATIO_DEFAULT: u32 = 1 << (RATIO_BITS - 1);
/// Most a window's field can say.
const FIELD_MAX: u32 = 65_535;
/// Largest window scale (RFC 7323 §2.3).
const SCALE_MAX: u32 = 14;
/// Segments in which the first round trip is reckoned.
const INITIAL_SEGMENTS: u32 = 10;
/// From this size on memory is whole pages.
const PAGE: u32 = 4096;
/// State of a segment.
const STATE: u32 = 256;
/// What a block ends with, and the least one.
const BLOCK_TAIL: u32 = 320;
const BLOCK_MIN: u32 = 640;
/// Blocks are filled in these.
const CACHE_LINE: u32 = 64;
