//! Calls of the owner about data to send.

use super::{Connection, Turn};
use crate::tcp::congestion;
use crate::tcp::fastopen::{FastOpenOutcome, FastOpenPath};
use crate::tcp::stamps::{Stamp, Stamping};
use crate::time::Instant;
use towpath_packet::Piece;

impl Connection {
    /// True if the owner may add bytes.
    fn takes_bytes(&self) -> bool {
        !self.send.is_closed() && (self.state.can_send() || self.state.is_opening())
    }

    /// Bytes that the send queue takes now: the rest of a partly filled buffer, or a whole one. Ask
    /// again after adding them. After zero, [`super::Events::WRITABLE`] reports room.
    pub fn send_room(&mut self) -> usize {
        self.room_for(None)
    }

    /// Bytes that the send queue takes now of lent memory; `group` as in
    /// [`Connection::append_lent`]. After zero, [`super::Events::WRITABLE`] reports room.
    pub fn send_room_lent(&mut self, group: u32) -> usize {
        self.room_for(Some(group))
    }

    fn room_for(&mut self, group: Option<u32>) -> usize {
        if self.takes_bytes() { self.send.room_for(group, &self.settings) } else { 0 }
    }

    /// True if an owner that waits for room should try again. After false,
    /// [`super::Events::WRITABLE`] reports room.
    pub fn is_writable(&self) -> bool {
        self.send.is_writable(&self.settings)
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
        if self.takes_bytes() {
            self.send.append(piece, begins, None);
        }
    }

    /// Lends part of a write from a group of lent memory, whose end one notice reports. A buffer,
    /// and so nearly every segment, holds bytes of one group only. `piece` is one range of memory;
    /// it keeps all pages of that range.
    pub fn append_lent(&mut self, piece: Piece, begins: bool, group: u32) {
        if self.takes_bytes() {
            self.send.append(piece, begins, Some(group));
        }
    }

    /// Lets `write` append part of a write to the frame of the last bytes, if the frame has room
    /// and no other holder. `write` and this call return the number of bytes. The owner respects
    /// [`Connection::send_room`].
    pub fn fill_tail(&mut self, begins: bool, write: impl FnOnce(&mut [u8]) -> usize) -> usize {
        if self.takes_bytes() { self.send.fill_tail(begins, write) } else { 0 }
    }

    /// Memory that the send queue keeps from pools and other lenders.
    pub fn send_held(&self) -> usize {
        self.send.queue().held()
    }

    /// Bytes given to [`Connection::send`] and not acknowledged yet.
    pub fn unacknowledged(&self) -> usize {
        self.send.queue().len()
    }

    /// Bytes given to [`Connection::send`] and never sent.
    pub fn unsent(&self) -> usize {
        self.send.unsent() as usize
    }

    /// Notes that the owner has more to send and waits: the next ACK that leaves room in the peer's
    /// window reports [`super::Events::WRITABLE`].
    pub fn await_peer(&mut self, now: Instant) {
        self.send.await_peer(turn!(self, now));
    }

    /// Switches to another congestion control (`TCP_CONGESTION`).
    pub fn set_congestion(&mut self, kind: congestion::Kind, now: Instant) {
        self.send.set_congestion(kind, &self.settings, now);
    }

    /// The congestion control in use.
    pub fn congestion(&self) -> congestion::Kind {
        self.send.congestion().kind()
    }

    /// Packets retransmitted; a super-packet counts as one.
    pub fn retransmitted(&self) -> u64 {
        self.send.counts().again
    }

    /// Retransmitted packets that were tail loss probes (RFC 8985 §7.3).
    pub fn tail_probes(&self) -> u64 {
        self.send.counts().probes
    }

    /// Returns what the answer to our SYN revealed, once.
    pub(crate) fn take_fast_open_outcome(&mut self) -> Option<FastOpenOutcome> {
        self.handshake.fast_open_mut().take_outcome()
    }

    /// Returns what was learned about the path, once.
    pub(crate) fn take_fast_open_path(&mut self) -> Option<FastOpenPath> {
        let believed = self.settings.fastopen_blackhole_timeout_sec > 0;
        self.handshake.fast_open_mut().take_path(believed)
    }

    forward! { send:
        /// Ends a write. `more` announces that more follows: a segment that is not full waits for
        /// it, or for an ACK (`MSG_MORE`). `record` keeps later bytes out of segments with earlier
        /// ones (`MSG_EOR`).
        fn end_write(&mut self, more: bool, record: bool);

        /// Group of lent memory that the next bytes would share a packet with.
        fn lent_tail(&self) -> Option<u32>;

        /// True if bytes of `group` wait to be sent or acknowledged.
        fn needs_lent(&self, group: u32) -> bool;

        /// Bytes of payload that are put into one buffer: the largest super-packet, but at most
        /// half of the peer's largest window, as more would leave the peer waiting. At least one
        /// segment.
        fn size_goal(&self) -> u32;

        /// Sets the size of the send buffer, in bytes with overhead, and ends its tuning
        /// (`SO_SNDBUF`, after the doubling).
        fn set_send_buffer(&mut self, bytes: u32);

        /// Size of the send buffer, in bytes with overhead (`SO_SNDBUF`).
        fn send_buffer(&self) -> u32;

        /// Sets how many unsent bytes leave no more room and no [`super::Events::WRITABLE`]
        /// (`TCP_NOTSENT_LOWAT`); zero for the default of the settings.
        fn set_notsent_lowat(&mut self, bytes: u32);

        /// Bytes that the peer's window takes beyond the data already given to
        /// [`Connection::send`].
        fn window_left(&self) -> usize;

        /// Marks the last queued byte as urgent (`MSG_OOB`). This has an effect only while some
        /// data was never sent.
        fn mark_urgent(&mut self);

        /// Switches Nagle's algorithm off or on (`TCP_NODELAY`). Without it small segments do not
        /// wait for ACKs.
        fn set_nodelay(&mut self, nodelay: bool);

        /// Holds back segments that are not full (`TCP_CORK`), or releases them.
        fn set_cork(&mut self, cork: bool);

        /// Limits the rate at which this connection sends to `rate` bytes per second
        /// (`SO_MAX_PACING_RATE`); `None` removes the limit.
        fn set_max_pacing_rate(&mut self, rate: Option<u64>);

        /// Sets which timestamps are reported of data written from now on, with
        /// [`super::Events::STAMPED`].
        fn set_stamping(&mut self, stamping: Stamping);

        /// Starts counting bytes for timestamps here: at the first unacknowledged byte or, if
        /// `written`, at the next byte to be written.
        fn number_stamps(&mut self, written: bool);

        /// Takes the next timestamp.
        fn take_stamp(&mut self) -> Option<Stamp>;

        /// Ends a call that wrote: timestamps are reported for its last byte.
        fn mark_written(&mut self);
    }
}
