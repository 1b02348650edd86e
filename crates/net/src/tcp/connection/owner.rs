//! Calls of the owner about received data.
//!
//! *Holding off*: the other side takes no more data, and received data must not pile up here. While
//! it is unknown whether the other side is slow, the owner may acknowledge only what it has passed
//! on ([`Connection::ack_only_consumed`]), so that the rest can be dropped later.

use super::{Connection, State};
use crate::time::Duration;
use alloc::sync::Arc;
use core::ops::Range;
use towpath_packet::{Piece, Reader};

impl Connection {
    /// Received bytes in order, as pieces.
    pub fn received(&self) -> impl Iterator<Item = &Piece> + Clone {
        self.receive.queue().iter()
    }

    /// Number of received bytes in order.
    pub fn received_len(&self) -> usize {
        self.receive.queue().len()
    }

    /// Drops the first `count` received bytes, which the owner has used.
    pub fn consume(&mut self, count: usize) {
        self.receive.consume(count, self.state.can_receive());
    }

    /// Notes that the reader gave memory back. Sends a window update if the window grows enough.
    pub fn reader_gave_back(&mut self) {
        if self.state.can_receive() {
            self.receive.reader_gave_back();
        }
    }

    /// Drops out-of-order data, as RFC 2018 §8 allows: the sender has kept it.
    pub(crate) fn drop_ahead(&mut self) {
        self.receive.drop_ahead();
    }

    /// Takes no more data until [`Connection::resume`], advertises a zero window, and drops the
    /// received bytes that are not acknowledged: the last bytes of [`Connection::received`]. The
    /// peer retransmits them. A FIN that is not acknowledged is dropped too:
    /// [`Connection::peer_closed`] may become false again.
    pub fn hold_off(&mut self) {
        if matches!(self.state, State::Closed | State::TimeWait) {
            return;
        }
        if self.receive.hold_off() {
            self.state = match self.state {
                State::CloseWait => State::Established,
                State::Closing | State::LastAck => State::FinWait1,
                other => other,
            };
        }
    }

    /// Size of the peer's full segments, as far as known.
    pub fn arriving_segment(&self) -> usize {
        self.receive.mss() as usize
    }

    /// Memory that unread data keeps from its lenders, in bytes: in small frames, and in other
    /// memory.
    pub fn received_held(&self) -> (usize, usize) {
        self.receive.queue().held_by_size()
    }

    /// Memory that the connection keeps from its lenders, split as in
    /// [`Connection::received_held`]: for data to send, and for received data, out-of-order data
    /// included.
    pub(crate) fn held_frames(&self) -> ((usize, usize), (usize, usize)) {
        (self.send.queue().held_by_size(), self.receive.held_frames())
    }

    /// Notes that the owner has looked and has no answer yet: an ACK that waits for it goes alone,
    /// now.
    pub fn answer_is_late(&mut self) {
        self.receive.answer_is_late(self.send.rtt().rto());
    }

    /// Switches to immediate ACKs or to delayed ones (`TCP_QUICKACK`). The switch to immediate ACKs
    /// sends an ACK that waits.
    pub fn set_quickack(&mut self, quick: bool) {
        let open = matches!(self.state, State::Established | State::CloseWait);
        self.receive.set_quick_acks(quick, open);
    }

    forward! { receive:
        /// True if the peer has sent its FIN and all data before it has arrived.
        fn peer_closed(&self) -> bool;

        /// Sets the reader that received pieces are handed to. Pieces that it keeps occupy the
        /// receive buffer.
        fn set_reader(&mut self, reader: &Arc<Reader>);

        /// Most memory that received data may keep from its lenders, read or not.
        fn receive_memory_max(&self) -> usize;

        /// Received bytes that are not acknowledged: the last bytes of [`Connection::received`],
        /// which [`Connection::hold_off`] drops.
        fn received_unacknowledged(&self) -> usize;

        /// Acknowledges the first `count` of the bytes that [`Connection::hold_off`] dropped: the
        /// owner kept them and has passed them on meanwhile. A peer that has retransmitted them in
        /// vain, and would wait long before the next try, continues at once (RFC 6298 §5.2).
        fn acknowledge_kept(&mut self, count: usize);

        /// Takes data again after [`Connection::hold_off`], and sends a window update.
        fn resume(&mut self);

        /// Acknowledges only consumed data from now on, or all data again. [`Connection::hold_off`]
        /// can still drop what is not acknowledged. The peer takes unacknowledged data for lost
        /// after its timeout (RFC 6298 §2.4: one second at least, Linux: 200 ms).
        fn ack_only_consumed(&mut self, only: bool);

        /// Limits the offered windows to `bytes` from now on, but never to less than two segments.
        /// What was offered stays offered.
        fn limit_window(&mut self, bytes: u32);

        /// Limit set by [`Connection::limit_window`]; `u32::MAX` without a limit.
        fn window_limit(&self) -> u32;

        /// Announces that data is answered with data, and a FIN with a FIN, `within` a short time.
        /// The ACK of less than a full segment, and of the FIN, then goes with the answer, or alone
        /// when the time is over. After data that was not answered in time, data is acknowledged at
        /// once until some is answered.
        ///
        /// RFC 9293 §3.8.6.3 allows this: an ACK may be delayed for less than half a second if
        /// every second full segment is acknowledged.
        fn expect_answers(&mut self, within: Duration);

        /// True while the ACK of data waits for an expected answer. The peer may need the ACK to
        /// send more, unless it has sent its FIN.
        fn awaits_answer(&self) -> bool;

        /// True unless ACKs wait for an answer to carry them (`TCP_QUICKACK`).
        fn quickack(&self) -> bool;

        /// Sets the largest window to offer (`TCP_WINDOW_CLAMP`), in bytes, until the buffer grows.
        /// What was offered stays offered.
        fn set_window_clamp(&mut self, clamp: u32);

        /// Largest window that is offered (`TCP_WINDOW_CLAMP`).
        fn window_clamp(&self) -> u32;

        /// Sets the size of the receive buffer, in bytes with overhead, and ends its tuning
        /// (`SO_RCVBUF`, after the doubling).
        fn set_receive_buffer(&mut self, bytes: u32);

        /// Size of the receive buffer, in bytes with overhead (`SO_RCVBUF`).
        fn receive_buffer(&self) -> u32;

        /// Sets how many bytes wake the reader (`SO_RCVLOWAT`). Fewer unread bytes are acknowledged
        /// as if the reader kept up.
        fn set_low_water(&mut self, bytes: u32);

        /// Chooses whether marked bytes are read in line (`SO_OOBINLINE`); by default they are. If
        /// not, a new mark may remove a byte from the received data.
        fn set_urgent_inline(&mut self, inline: bool);

        /// Number of received bytes before the marked byte; `None` if no byte is marked or reads
        /// have passed it. The marked byte may not have arrived yet.
        fn urgent_mark(&self) -> Option<usize>;

        /// True if the next byte is the marked one, and reads leave it out.
        fn is_urgent_left_out(&self) -> bool;

        /// True if a marked byte can still be read separately: it was not, and is not read in line.
        fn is_urgent_unread(&self) -> bool;

        /// True if an unread urgent byte has arrived (`POLLPRI`).
        fn has_urgent(&self) -> bool;

        /// The marked byte, if it has arrived, in order or not, and reads have not passed it.
        fn urgent_byte(&self) -> Option<Piece>;

        /// Notes that the marked byte was read separately.
        fn urgent_was_read(&mut self);

        /// Received bytes up to the mark (`SIOCINQ`).
        fn readable_len(&self) -> usize;

        /// Range of received bytes that a read gets that continues at `at`. `begun` means that it
        /// has already got some: it then ends at the mark. Bytes between `at` and the start of the
        /// range are left out.
        fn next_read(&self, at: usize, begun: bool) -> Range<usize>;
    }
}
