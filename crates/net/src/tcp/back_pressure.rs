//! Calls for an owner that passes bytes on to a slower side.
//!
//! *Holding off*: the other side takes no more data, and received data must not pile up here. Data
//! that is not acknowledged yet is dropped: the peer has kept it, and retransmits it once the
//! window opens. RFC 9293 §3.8.6 discourages a receiver from shrinking its window, but requires
//! senders to cope. This is how no byte is held for a reader that takes none.
//!
//! While it is unknown whether the other side is slow, the owner may acknowledge only what it has
//! passed on ([`Connection::ack_only_consumed`]), so that the rest can be dropped later.
//!
//! *Waiting for the peer*: the owner has more for the peer, and leaves it where it is until the
//! peer's window takes it. A zero window is probed as if data were queued (RFC 9293 §3.8.6.1),
//! since the segment that opens it may be lost.

use super::connection::Connection;
use super::receiver::AckOwed;
use super::seq::Seq;
use super::state::{Events, State};
use crate::time::Instant;

impl Connection {
    /// Takes no more data until [`Connection::resume`], advertises a zero window, and drops the
    /// received bytes that are not acknowledged: the last bytes of [`Connection::received`]. The
    /// peer retransmits them. A FIN that is not acknowledged is dropped too:
    /// [`Connection::peer_closed`] may become false again.
    pub fn hold_off(&mut self) {
        if !matches!(self.state, State::Closed | State::TimeWait) {
            self.give_back();
            self.receive.refused = true;
            self.receive.held_off = true;
            self.receive.ack_owed = AckOwed::Now;
        }
    }

    /// Received bytes that are not acknowledged: the last bytes of [`Connection::received`], which
    /// [`Connection::hold_off`] drops.
    pub fn received_unacknowledged(&self) -> usize {
        let untold = self.receive.nxt - self.receive.acked;
        let bytes = untold.saturating_sub(u32::from(self.receive.fin));
        (bytes as usize).min(self.receive.queue.len())
    }

    /// Size of the peer's full segments, as far as known.
    pub fn arriving_segment(&self) -> usize {
        self.receive.mss as usize
    }

    /// Acknowledges the first `count` of the bytes that [`Connection::hold_off`] dropped: the owner
    /// kept them and has passed them on meanwhile. A peer that has retransmitted them in vain, and
    /// would wait long before the next try, continues at once (RFC 6298 §5.2).
    pub fn acknowledge_kept(&mut self, count: usize) {
        let receive = &mut self.receive;
        if receive.held_off && receive.queue.is_empty() && !receive.fin {
            receive.nxt += count as u32;
            receive.ack_owed = AckOwed::Now;
            self.counters.bytes_received += count as u64;
        }
    }

    /// Takes data again after [`Connection::hold_off`], and sends a window update.
    pub fn resume(&mut self) {
        if core::mem::take(&mut self.receive.held_off) {
            self.receive.update_due = true;
        }
    }

    /// Acknowledges only consumed data from now on, or all data again. [`Connection::hold_off`] can
    /// still drop what is not acknowledged. The peer takes unacknowledged data for lost after its
    /// timeout (RFC 6298 §2.4: one second at least, Linux: 200 ms).
    pub fn ack_only_consumed(&mut self, only: bool) {
        if self.receive.acks_taken_only != only {
            self.receive.acks_taken_only = only;
            if self.receive.acked.before(self.receive.ack_point()) {
                self.receive.ack_owed = AckOwed::Now;
            } else {
                // An ACK would report nothing new.
                self.receive.ack_owed = AckOwed::No;
                self.timers.delayed_ack = None;
            }
        }
    }

    /// Limits the offered windows to `bytes` from now on, but never to less than two segments. What
    /// was offered stays offered.
    pub fn limit_window(&mut self, bytes: u32) {
        self.receive.window_limit = bytes;
    }

    /// Limit set by [`Connection::limit_window`]; `u32::MAX` without a limit.
    pub fn window_limit(&self) -> u32 {
        self.receive.window_limit
    }

    /// Memory that unread data keeps from its lenders, in bytes: in small frames, and in other
    /// memory.
    pub fn received_held(&self) -> (usize, usize) {
        self.receive.queue.held_by_size()
    }

    /// Memory that the connection keeps from its lenders, split as in
    /// [`Connection::received_held`]: for data to send, and for received data, out-of-order data
    /// included.
    pub(crate) fn held_frames(&self) -> ((usize, usize), (usize, usize)) {
        let (small, large) = self.receive.queue.held_by_size();
        (self.send.queue.held_by_size(), (small, large + self.receive.waiting.held()))
    }

    /// Bytes that the peer's window takes beyond the data already given to [`Connection::send`].
    pub fn window_left(&self) -> usize {
        let (edge, end) = (self.send.una + self.send.wnd, self.send.queue_end());
        if edge.after(end) { (edge - end) as usize } else { 0 }
    }

    /// Notes that the owner has more to send and waits: the next ACK that leaves room in the peer's
    /// window reports [`Events::WRITABLE`].
    pub fn await_peer(&mut self, now: Instant) {
        self.send.awaits_peer = true;
        if self.send.unsent() == 0 {
            self.arm_probe(now);
        }
    }

    /// Notifies an owner that waits, after an ACK.
    pub(super) fn peer_took_some(&mut self) {
        if self.send.awaits_peer && self.window_left() > 0 {
            self.send.awaits_peer = false;
            self.note(Events::WRITABLE);
        }
    }

    /// Sequence numbers that a zero window holds back. Bytes that the owner has not handed over
    /// count as one.
    pub(super) fn kept_back(&self) -> u32 {
        self.send.unsent_numbers().max(u32::from(self.send.awaits_peer))
    }

    /// Drops received data that is not acknowledged.
    fn give_back(&mut self) {
        let receive = &mut self.receive;
        if !receive.acked.before(receive.nxt) {
            return;
        }
        if core::mem::take(&mut receive.fin) {
            receive.nxt = before(receive.nxt, 1);
            self.state = match self.state {
                State::CloseWait => State::Established,
                State::Closing | State::LastAck => State::FinWait1,
                other => other,
            };
        }
        self.drop_ahead();
        let receive = &mut self.receive;
        let count = ((receive.nxt - receive.acked) as usize).min(receive.queue.len());
        receive.tuning.charge.consume(count, receive.queue.len());
        receive.queue.drop_back(count);
        receive.nxt = before(receive.nxt, count as u32);
        self.counters.bytes_received -= count as u64;
    }
}

fn before(seq: Seq, count: u32) -> Seq {
    Seq(seq.0.wrapping_sub(count))
}
