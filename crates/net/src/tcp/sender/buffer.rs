//! The send buffer: what the owner may add, and when it is notified of room.
//!
//! The buffer bounds memory and not bytes: each buffer of the queue and each outstanding packet
//! counts with an overhead. The overhead is what Linux charges, so that programs get the room that
//! they know (`epoll/epoll_out_edge.pkt`). A write that
//! begins below the bound may fill one more buffer.
//!
//! An owner that passes bytes on may leave them where they are until the peer's window takes them:
//! it *waits for the peer*. A zero window is probed as if data were queued (RFC 9293 §3.8.6.1),
//! since the segment that opens it may be lost.
//!
//! Calls without a comment are described at `Connection`, which passes them on.

use super::path::bound_to_half;
use super::{Limit, Sender, Turn};
use crate::tcp::congestion::INITIAL_SEGMENTS;
use crate::tcp::segment::SUPER_BYTES;
use crate::tcp::seq::Seq;
use crate::tcp::settings::Settings;
use crate::tcp::stamps::{Stamp, Stamping};
use crate::tcp::writes::Lent;
use core::cell::Cell;
use towpath_packet::{Packet, Piece};

/// Bytes at which the queue takes no more, however large the send buffer is: half of the range in
/// which sequence numbers are ordered. The other half is for excess data of the owner.
const QUEUE_BYTES_MAX: usize = 1 << 30;
/// Memory that small pieces may hold from their lenders, as a multiple of the send buffer.
const HELD_DIVISOR: usize = 4;
/// Lent memory is held in pages of this size.
const LENT_PAGE: usize = 4096;
/// Overhead that is charged for each buffer.
const BUFFER_OVERHEAD: usize = 1280;
/// Room for headers and state in front of a packet's bytes, for sizing the buffer.
const PACKET_HEADROOM: u32 = 320;
/// State of a packet, for sizing the buffer.
const PACKET_STATE: u32 = 256;
/// Least send buffer.
const SEND_BUFFER_MIN: u32 = 4608;

/// Room for the owner's writes.
pub(super) struct SendBuffer {
    /// Size in bytes, overhead included.
    size: u32,
    /// The owner chose the size.
    fixed: bool,
    /// Unsent bytes at which there is no more room; zero for the default of the settings.
    lowat: u32,
    /// The owner found no room and waits for it. A `Cell`, as asking begins a wait.
    no_space: Cell<bool>,
    /// Room may have become free since.
    check_due: bool,
    /// The owner has more data and waits for an ACK that leaves room in the peer's window.
    awaits_peer: bool,
    /// Sequence number up to which data is marked with PSH.
    pushed: Seq,
}

impl SendBuffer {
    /// An empty buffer for bytes from `first` on.
    pub(super) fn new(settings: &Settings, first: Seq) -> Self {
        Self {
            size: settings.send_buffer,
            fixed: false,
            lowat: 0,
            no_space: Cell::new(false),
            check_due: false,
            awaits_peer: false,
            pushed: first,
        }
    }

    /// Notes that room may have become free.
    #[inline]
    pub(super) fn check_space(&mut self) {
        self.check_due = true;
    }

    /// Notes that data up to `end` goes out with PSH.
    pub(super) fn note_pushed(&mut self, end: Seq) {
        self.pushed = self.pushed.max(end);
    }

    /// Ends the wait for the peer if its window has room, `left`. Returns true if it ended.
    #[inline]
    pub(super) fn peer_took_some(&mut self, left: usize) -> bool {
        let took = self.awaits_peer && left > 0;
        self.awaits_peer &= !took;
        took
    }

    /// True if the owner waits for the peer.
    pub(super) fn awaits_peer(&self) -> bool {
        self.awaits_peer
    }

    /// True if the owner waits for room.
    pub(super) fn lacks_space(&self) -> bool {
        self.no_space.get()
    }

    /// True if the owner may have to be notified of room.
    pub(super) fn wants_check(&self) -> bool {
        self.check_due && self.no_space.get()
    }
}

impl Sender {
    pub(in crate::tcp) fn set_send_buffer(&mut self, bytes: u32) {
        self.buffer.size = bytes.max(SEND_BUFFER_MIN);
        self.buffer.fixed = true;
    }

    pub(in crate::tcp) fn send_buffer(&self) -> u32 {
        self.buffer.size
    }

    pub(in crate::tcp) fn set_notsent_lowat(&mut self, bytes: u32) {
        self.buffer.lowat = bytes;
        self.buffer.check_due = true;
    }

    /// Bytes that the send queue takes now; of `group` if they are lent memory.
    pub(in crate::tcp) fn room_for(&mut self, group: Option<u32>, settings: &Settings) -> usize {
        let goal = self.size_goal();
        let end = self.queue_end();
        let held = self.queue.held() / HELD_DIVISOR;
        let mut room = 0;
        // A partly filled buffer is filled whatever memory it takes, within reason.
        if held < self.buffer.size as usize + goal as usize {
            let next = self.unsent_start(end, goal, group);
            room = self.writes.tail_room(end, next, goal, group);
        }
        if room == 0 && self.has_space(0, settings) {
            room = goal;
        }
        self.buffer.no_space.set(self.buffer.no_space.get() || room == 0);
        room as usize
    }

    /// True if an owner that waits for room should try again: a third of the buffer is free
    /// (`epoll/epoll_out_edge.pkt`).
    pub(in crate::tcp) fn is_writable(&self, settings: &Settings) -> bool {
        let (used, buffer) = (self.memory(), self.buffer.size as usize);
        let is_writable = buffer.saturating_sub(used) >= used / 2 && self.has_space(1, settings);
        if !is_writable {
            self.buffer.no_space.set(true);
        }
        is_writable
    }

    /// Adds a piece. `begins` marks the first part of a write, `group` lent memory whose end one
    /// notice reports.
    pub(in crate::tcp) fn append(&mut self, piece: Piece, begins: bool, group: Option<u32>) {
        let lent = group.map(|group| {
            let kept = piece.len().next_multiple_of(LENT_PAGE) - piece.len();
            Lent { group, kept: kept as u32 }
        });
        let (end, len) = (self.begin_append(begins), piece.len() as u32);
        self.queue.push(piece);
        self.account_appended((end, len), begins, lent);
    }

    /// Lets `write` append part of a write to the frame of the last bytes.
    pub(in crate::tcp) fn fill_tail(
        &mut self,
        begins: bool,
        write: impl FnOnce(&mut [u8]) -> usize,
    ) -> usize {
        if self.queue.is_empty() {
            return 0;
        }
        let end = self.begin_append(begins);
        let count = self.queue.fill_tail(write);
        if count > 0 {
            self.account_appended((end, count as u32), begins, None);
        }
        count
    }

    /// Prepares to add bytes at the end of the queue. Returns that end.
    fn begin_append(&mut self, begins: bool) -> Seq {
        if begins {
            let (unsent, mss) = (self.unsent(), self.path.mss());
            self.recovery.note_gap(unsent, mss, self.congestion.cwnd());
        }
        self.path.follow_route(self.window.max());
        self.queue_end()
    }

    /// Accounts for `len` bytes that were added at `end`.
    fn account_appended(&mut self, (end, len): (Seq, u32), begins: bool, lent: Option<Lent>) {
        let (goal, group) = (self.size_goal(), lent.map(|lent| lent.group));
        let next = self.unsent_start(end, goal, group);
        if len > self.writes.tail_room(end, next, goal, group) {
            // The data to be sent at once is complete.
            self.small.push_now = false;
        }
        if self.writes.append((end, len), next, goal, begins, lent) {
            self.buffer.pushed = end;
        }
        if (end + len).after(self.buffer.pushed + self.window.max() / 2) {
            self.mark_push();
        }
    }

    /// The first byte that still counts as unsent when bytes are added at `end`. Programs expect
    /// that what the windows allow of a full buffer is sent before the rest of it is filled.
    /// Here sending happens later, but a full buffer counts as sent
    /// that far.
    fn unsent_start(&self, end: Seq, goal: u32, group: Option<u32>) -> Seq {
        let next = self.unsent_from();
        let unsent = end - next;
        if unsent < goal || self.writes.tail_room(end, next, goal, group) > 0 {
            return next;
        }
        let in_window = self.edge().max(next) - next;
        let mss = self.path.mss();
        let at_once = self.window_room().saturating_mul(mss).min(in_window).min(unsent);
        next + (at_once - at_once % mss)
    }

    pub(in crate::tcp) fn end_write(&mut self, more: bool, record: bool) {
        self.small.more_follows = more;
        if !more {
            self.mark_push();
        }
        if record {
            self.writes.end_record();
        }
    }

    /// Checks for room after data was sent or acknowledged: enlarges the buffer with the window.
    /// Returns true if an owner that waits is to be notified.
    pub(in crate::tcp) fn check_space(&mut self, turn: Turn<'_>) -> bool {
        if !core::mem::take(&mut self.buffer.check_due) || !self.buffer.no_space.get() {
            return false;
        }
        if self.window_room() > 0 {
            self.expand_buffer(turn.settings);
            self.congestion.window_mut().restamp_use(turn.now);
        }
        let is_writable = self.is_writable(turn.settings);
        if is_writable {
            self.buffer.no_space.set(false);
            let empty = self.recovery.board().is_empty() && self.unsent() == 0;
            self.chrono.stop(Limit::SendBuffer, empty, turn.now);
        }
        is_writable
    }

    /// Enlarges the buffer to two congestion windows; the second is for data that replaces the
    /// first.
    pub(super) fn expand_buffer(&mut self, settings: &Settings) {
        if self.buffer.fixed {
            return;
        }
        let packet = (self.path.mss() + 2 * PACKET_HEADROOM).next_power_of_two() + PACKET_STATE;
        let segments = self.congestion.cwnd().max(INITIAL_SEGMENTS);
        let wanted = packet.saturating_mul(segments).saturating_mul(2);
        if self.buffer.size < wanted {
            self.buffer.size = wanted.min(settings.send_buffer_max).max(self.buffer.size);
        }
    }

    pub(in crate::tcp) fn size_goal(&self) -> u32 {
        let bytes = bound_to_half(SUPER_BYTES - PACKET_HEADROOM, self.window.max());
        let mss = self.path.mss();
        (bytes - bytes % mss).max(mss)
    }

    fn mark_push(&mut self) {
        self.writes.push();
        self.buffer.pushed = self.queue_end();
    }

    /// Memory charged to the send buffer: bytes and the overhead of each buffer and packet, or a
    /// fraction of the memory held from lenders if that is more.
    fn memory(&self) -> usize {
        let buffers = self.recovery.board().len() + self.writes.unsent(self.nxt);
        let bytes = self.queue.len() + self.writes.kept() + buffers * BUFFER_OVERHEAD;
        bytes.max(self.queue.held() / HELD_DIVISOR)
    }

    /// True if there is room for another buffer. `wake` 1 allows only half of the unsent bytes.
    fn has_space(&self, wake: u32, settings: &Settings) -> bool {
        let lowat = match self.buffer.lowat {
            0 => settings.notsent_lowat,
            own => own,
        };
        let unsent = u64::from(self.unsent()) << wake;
        unsent < u64::from(lowat)
            && self.memory() < self.buffer.size as usize
            && self.queue.len() < QUEUE_BYTES_MAX
    }

    pub(in crate::tcp) fn lent_tail(&self) -> Option<u32> {
        self.writes.tail_group(self.unsent_from())
    }

    pub(in crate::tcp) fn needs_lent(&self, group: u32) -> bool {
        self.writes.has_group(group)
    }

    /// Adds payload from `seq` on to a packet: `len` bytes, or fewer if the packet can take no more
    /// pieces. Returns their number.
    #[inline]
    pub(in crate::tcp) fn attach(&mut self, seq: Seq, len: u32, packet: &mut Packet) -> u32 {
        // The data of a SYN follows the SYN's number.
        let offset = (seq.max(self.base) - self.base) as usize;
        self.queue.slice(offset, len as usize, packet) as u32
    }

    pub(in crate::tcp) fn window_left(&self) -> usize {
        self.queue_end().up_to(self.edge()) as usize
    }

    /// Notes that the owner has more to send and waits for the peer.
    pub(in crate::tcp) fn await_peer(&mut self, turn: Turn<'_>) {
        self.buffer.awaits_peer = true;
        if self.unsent() == 0 {
            self.arm_persist(turn);
        }
    }

    /// Sequence numbers that a zero window holds back. Bytes that the owner has not handed over
    /// count as one.
    pub(super) fn held_back(&self) -> u32 {
        self.unsent_numbers().max(u32::from(self.buffer.awaits_peer))
    }

    pub(in crate::tcp) fn set_stamping(&mut self, stamping: Stamping) {
        self.stamps.set_stamping(stamping);
    }

    pub(in crate::tcp) fn number_stamps(&mut self, written: bool) {
        self.stamps.number_from(if written { self.queue_end() } else { self.una });
    }

    pub(in crate::tcp) fn take_stamp(&mut self) -> Option<Stamp> {
        self.stamps.take()
    }

    pub(in crate::tcp) fn mark_written(&mut self) {
        if !self.queue.is_empty() {
            let begun = self.writes.start_of_last(self.base);
            self.stamps.mark(self.queue_end().minus(1), begun.max(self.unsent_from()));
        }
    }
}
