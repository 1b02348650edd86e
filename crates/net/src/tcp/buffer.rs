//! The send buffer: what the owner may add, and when it is notified of room.
//!
//! As in Linux, the buffer bounds memory and not bytes: each buffer of the queue and each
//! outstanding packet counts with an overhead. A write that begins below the bound may fill one
//! more buffer.

use super::chrono::Limit;
use super::congestion::INITIAL_SEGMENTS;
use super::connection::{Connection, MSS_DEFAULT_V4};
use super::pacing::SUPER_BYTES;
use super::seq::Seq;
use super::state::Events;
use super::writes::Lent;
use crate::time::Instant;
use towpath_packet::Piece;

impl Connection {
    /// Sets the size of the send buffer, in bytes with overhead, and ends its tuning (`SO_SNDBUF`,
    /// after the doubling).
    pub fn set_send_buffer(&mut self, bytes: u32) {
        self.send.buffer = bytes.max(SEND_BUFFER_MIN);
        self.send.buffer_fixed = true;
    }

    /// Size of the send buffer, in bytes with overhead (`SO_SNDBUF`).
    pub fn send_buffer(&self) -> u32 {
        self.send.buffer
    }

    /// Sets how many unsent bytes leave no more room and no [`Events::WRITABLE`]
    /// (`TCP_NOTSENT_LOWAT`); zero for the default of the settings.
    pub fn set_notsent_lowat(&mut self, bytes: u32) {
        self.send.notsent_lowat = bytes;
        self.send.space_check_due = true;
    }

    /// Bytes that the send queue takes now: the rest of a partly filled buffer, or a whole one. Ask
    /// again after adding them. After zero, [`Events::WRITABLE`] reports room.
    pub fn send_room(&mut self) -> usize {
        self.room_for(None)
    }

    /// Bytes that the send queue takes now of lent memory; `group` as in
    /// [`Connection::append_lent`]. After zero, [`Events::WRITABLE`] reports room.
    pub fn send_room_lent(&mut self, group: u32) -> usize {
        self.room_for(Some(group))
    }

    fn room_for(&mut self, group: Option<u32>) -> usize {
        if !self.takes_bytes() {
            return 0;
        }
        let goal = self.size_goal();
        let end = self.send.queue_end();
        let held = self.send.queue.held() / HELD_DIVISOR;
        let mut room = 0;
        // A partly filled buffer is filled whatever memory it takes, within reason.
        if held < self.send.buffer as usize + goal as usize {
            let next = self.unsent_start(end, goal, group);
            room = self.send.writes.tail_room(end, next, goal, group);
        }
        if room == 0 && self.has_space(0) {
            room = goal;
        }
        self.send.no_space.set(self.send.no_space.get() || room == 0);
        room as usize
    }

    /// True if an owner that waits for room should try again: a third of the buffer is free, as on
    /// Linux. After false, [`Events::WRITABLE`] reports room.
    pub fn is_writable(&self) -> bool {
        let (used, buffer) = (self.send_memory(), self.send.buffer as usize);
        let is_writable = buffer.saturating_sub(used) >= used / 2 && self.has_space(1);
        if !is_writable {
            self.send.no_space.set(true);
        }
        is_writable
    }

    /// Lends `piece` to be sent, as a write of its own. The owner respects
    /// [`Connection::send_room`]; excess data is taken too, as a read from a socket cannot be
    /// undone. The piece is dropped after [`Connection::close_send`] or the end of the connection.
    pub fn send(&mut self, piece: Piece) {
        self.append(piece, true);
        self.end_write(false, false);
    }

    /// Lends part of a write; `begins` marks its first part. [`Connection::end_write`] follows the
    /// last.
    pub fn append(&mut self, piece: Piece, begins: bool) {
        self.append_some(piece, begins, None);
    }

    /// Lends part of a write from a group of lent memory, whose end one notice reports. A buffer,
    /// and so nearly every segment, holds bytes of one group only. `piece` is one range of memory;
    /// it keeps all pages of that range.
    pub fn append_lent(&mut self, piece: Piece, begins: bool, group: u32) {
        let kept = piece.len().next_multiple_of(LENT_PAGE) - piece.len();
        self.append_some(piece, begins, Some(Lent { group, kept: kept as u32 }));
    }

    /// Group of lent memory that the next bytes would share a packet with.
    pub fn lent_tail(&self) -> Option<u32> {
        self.send.writes.tail_group(self.send.nxt.max(self.send.base))
    }

    /// True if bytes of `group` wait to be sent or acknowledged.
    pub fn needs_lent(&self, group: u32) -> bool {
        self.send.writes.has_group(group)
    }

    /// Lets `write` append part of a write to the frame of the last bytes, if the frame has room
    /// and no other holder. `write` and this call return the number of bytes. The owner respects
    /// [`Connection::send_room`].
    pub fn fill_tail(&mut self, begins: bool, write: impl FnOnce(&mut [u8]) -> usize) -> usize {
        if self.send.queue.is_empty() || !self.takes_bytes() {
            return 0;
        }
        let end = self.begin_append(begins);
        let count = self.send.queue.fill_tail(write);
        if count > 0 {
            self.account_appended((end, count as u32), begins, None);
        }
        count
    }

    /// Memory that the send queue keeps from pools and other lenders.
    pub fn send_held(&self) -> usize {
        self.send.queue.held()
    }

    fn append_some(&mut self, piece: Piece, begins: bool, lent: Option<Lent>) {
        if !self.takes_bytes() {
            return;
        }
        let (end, len) = (self.begin_append(begins), piece.len() as u32);
        self.send.queue.push(piece);
        self.account_appended((end, len), begins, lent);
    }

    fn takes_bytes(&self) -> bool {
        !self.send.fin_queued && (self.state.can_send() || self.state.is_opening())
    }

    /// Prepares to add bytes at the end of the queue. Returns that end.
    fn begin_append(&mut self, begins: bool) -> Seq {
        if begins {
            self.note_gap();
        }
        self.follow_route();
        self.send.queue_end()
    }

    /// Accounts for `len` bytes that were added at `end`.
    fn account_appended(&mut self, (end, len): (Seq, u32), begins: bool, lent: Option<Lent>) {
        let (goal, group) = (self.size_goal(), lent.map(|lent| lent.group));
        let next = self.unsent_start(end, goal, group);
        if len > self.send.writes.tail_room(end, next, goal, group) {
            // The data to be sent at once is complete.
            self.send.push_now = false;
        }
        if self.send.writes.append((end, len), next, goal, begins, lent) {
            self.send.pushed = end;
        }
        if (end + len).after(self.send.pushed + self.send.wnd_max / 2) {
            self.mark_push();
        }
    }

    /// The first byte that still counts as unsent when bytes are added at `end`. Linux sends what
    /// the windows allow of a buffer as soon as the buffer is full, and then fills the rest of it.
    /// Here sending happens later, but a full buffer counts as sent that far.
    fn unsent_start(&self, end: Seq, goal: u32, group: Option<u32>) -> Seq {
        let next = self.send.nxt.max(self.send.base);
        let unsent = end - next;
        if unsent < goal || self.send.writes.tail_room(end, next, goal, group) > 0 {
            return next;
        }
        let in_window = (self.send.una + self.send.wnd).max(next) - next;
        let at_once = self.window_room().saturating_mul(self.send.mss).min(in_window).min(unsent);
        next + (at_once - at_once % self.send.mss)
    }

    /// Ends a write. `more` announces that more follows: a segment that is not full waits for it,
    /// or for an ACK (`MSG_MORE`). `record` keeps later bytes out of segments with earlier ones
    /// (`MSG_EOR`).
    pub fn end_write(&mut self, more: bool, record: bool) {
        self.send.more_follows = more;
        if !more {
            self.mark_push();
        }
        if record {
            self.send.writes.end_record();
        }
    }

    /// Bytes given to [`Connection::send`] and not acknowledged yet.
    pub fn unacknowledged(&self) -> usize {
        self.send.queue.len()
    }

    /// Bytes given to [`Connection::send`] and never sent.
    pub fn unsent(&self) -> usize {
        self.send.unsent() as usize
    }

    /// Checks for room after data was sent or acknowledged, as Linux does: enlarges the buffer with
    /// the window, and notifies an owner that waits.
    pub(super) fn check_space(&mut self, now: Instant) {
        if !core::mem::take(&mut self.send.space_check_due) || !self.send.no_space.get() {
            return;
        }
        if self.window_room() > 0 {
            self.expand_send_buffer();
            self.congestion.window_mut().restamp_use(now);
        }
        if self.is_writable() {
            self.send.no_space.set(false);
            let empty = self.send.board.is_empty() && self.send.unsent() == 0;
            self.send.chrono.stop(Limit::SendBuffer, empty, now);
            self.note(Events::WRITABLE);
        }
    }

    /// Enlarges the buffer to two congestion windows; the second is for data that replaces the
    /// first.
    pub(super) fn expand_send_buffer(&mut self) {
        if self.send.buffer_fixed {
            return;
        }
        let per_segment = (self.send.mss + 2 * PACKET_HEADROOM).next_power_of_two() + PACKET_STATE;
        let segments = self.congestion.cwnd().max(INITIAL_SEGMENTS);
        let wanted = per_segment.saturating_mul(segments).saturating_mul(2);
        if self.send.buffer < wanted {
            self.send.buffer = wanted.min(self.settings.send_buffer_max).max(self.send.buffer);
        }
    }

    /// Bytes of payload that are put into one buffer: the largest super-packet, but at most half of
    /// the peer's largest window, as more would leave the peer waiting. At least one segment.
    pub fn size_goal(&self) -> u32 {
        let bytes = self.bound_to_half_window(SUPER_BYTES - PACKET_HEADROOM);
        (bytes - bytes % self.send.mss).max(self.send.mss)
    }

    /// Limits `bytes` to half of the peer's largest window (RFC 9293 §3.8.6.2.1), or to all of a
    /// window that is no larger than a small segment.
    pub(super) fn bound_to_half_window(&self, bytes: u32) -> u32 {
        let window = self.send.wnd_max;
        let most = if window > MSS_DEFAULT_V4 { window / 2 } else { window };
        if most > 0 && bytes > most { most.max(MSS_BOUND) } else { bytes }
    }

    fn mark_push(&mut self) {
        self.send.writes.push();
        self.send.pushed = self.send.queue_end();
    }

    /// Memory charged to the send buffer: bytes and the overhead of each buffer and packet, or a
    /// fraction of the memory held from lenders if that is more.
    fn send_memory(&self) -> usize {
        let sender = &self.send;
        let buffers = sender.board.len() + sender.writes.unsent(sender.nxt);
        let bytes = sender.queue.len() + sender.writes.kept() + buffers * BUFFER_OVERHEAD;
        bytes.max(sender.queue.held() / HELD_DIVISOR)
    }

    /// True if there is room for another buffer. `wake` 1 allows only half of the unsent bytes.
    fn has_space(&self, wake: u32) -> bool {
        let lowat = match self.send.notsent_lowat {
            0 => self.settings.notsent_lowat,
            own => own,
        };
        let unsent = u64::from(self.send.unsent()) << wake;
        let memory = self.send_memory();
        unsent < u64::from(lowat)
            && memory < self.send.buffer as usize
            && self.send.queue.len() < QUEUE_BYTES_MAX
    }
}

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
/// Least segment size that a small window leads to.
const MSS_BOUND: u32 = 48;
