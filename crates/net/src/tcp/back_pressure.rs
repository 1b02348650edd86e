//! What an owner asks for that passes bytes on to a slower side.
//!
//! *Holding off*: the other side takes no more, and what was received may not pile up here. Data
//! that was not acknowledged yet is given back: its sender has kept it, and sends it again once
//! the window opens. RFC 9293 §3.8.6 discourages a receiver from taking its window back, but
//! requires senders to bear it; it is the way not to hold a byte for a reader that takes none.
//!
//! Until it is known that the other side is slow, an owner may have acknowledged only what it has
//! passed on ([`Connection::ack_only_consumed`]), so that the rest can be given back later.
//!
//! *Waiting for the peer*: the owner has more for the peer, and leaves it where it is until the
//! peer's window takes it. A shut window is probed as if something were queued (RFC 9293
//! §3.8.6.1), since the segment that opens it may be lost.

use super::connection::Connection;
use super::seq::Seq;
use super::sides::AckOwed;
use super::state::{Events, State};
use crate::time::Instant;

impl Connection {
    /// Takes no more data until [`Connection::resume`], tells the peer that the window is shut, and
    /// drops those received bytes that were not acknowledged: the last ones of
    /// [`Connection::received`]. The peer sends them again. A FIN that was not acknowledged is
    /// dropped with them: [`Connection::peer_closed`] may become false again.
    pub fn hold_off(&mut self) {
        if !matches!(self.state, State::Closed | State::TimeWait) {
            self.give_back();
            self.receive.refused = true;
            self.receive.held_off = true;
            self.receive.ack_owed = AckOwed::Now;
        }
    }

    /// Received bytes that are not acknowledged: the last ones of [`Connection::received`], and
    /// those that [`Connection::hold_off`] gives back.
    pub fn received_unacknowledged(&self) -> usize {
        let untold = self.receive.nxt - self.receive.acked;
        let bytes = untold.saturating_sub(u32::from(self.receive.fin));
        (bytes as usize).min(self.receive.queue.len())
    }

    /// Bytes of a full segment of the peer, as far as is known.
    pub fn arriving_segment(&self) -> usize {
        self.receive.mss as usize
    }

    /// While it held off, the owner kept the first `count` of the bytes that were given back, and
    /// it has passed them on: they are acknowledged. A sender that has sent them again in vain, and
    /// would wait long before its next try, goes on at once (RFC 6298 §5.2).
    pub fn acknowledge_kept(&mut self, count: usize) {
        let receive = &mut self.receive;
        if receive.held_off && receive.queue.is_empty() && !receive.fin {
            receive.nxt += count as u32;
            receive.ack_owed = AckOwed::Now;
            self.counters.bytes_received += count as u64;
        }
    }

    /// Takes data again after [`Connection::hold_off`], and tells the peer.
    pub fn resume(&mut self) {
        if core::mem::take(&mut self.receive.held_off) {
            self.receive.update_due = true;
        }
    }

    /// Acknowledges from now on only what the owner has consumed, or everything again. What was not
    /// acknowledged can still be given back by [`Connection::hold_off`]; its sender takes it for
    /// lost after a while (RFC 6298 §2.4: a second, Linux: 200 ms).
    pub fn ack_only_consumed(&mut self, only: bool) {
        if self.receive.acks_taken_only != only {
            self.receive.acks_taken_only = only;
            if self.receive.acked.before(self.receive.ack_point()) {
                self.receive.ack_owed = AckOwed::Now;
            } else {
                // An ACK would say nothing new.
                self.receive.ack_owed = AckOwed::No;
                self.timers.delayed_ack = None;
            }
        }
    }

    /// Windows offer so many bytes at most from now on, but two segments in any case. What was
    /// offered stays offered.
    pub fn limit_window(&mut self, bytes: u32) {
        self.receive.window_limit = bytes;
    }

    /// What [`Connection::limit_window`] was told; `u32::MAX` without a limit.
    pub fn window_limit(&self) -> u32 {
        self.receive.window_limit
    }

    /// Memory that unread data keeps from its lenders, in bytes: in small frames, and in others.
    pub fn received_held(&self) -> (usize, usize) {
        self.receive.queue.held_by_size()
    }

    /// Memory that the connection keeps from its lenders, as in [`Connection::received_held`]: what
    /// it sends, and what it received, data ahead of its turn included.
    pub(crate) fn held_frames(&self) -> ((usize, usize), (usize, usize)) {
        let (small, large) = self.receive.queue.held_by_size();
        (self.send.queue.held_by_size(), (small, large + self.receive.waiting.held()))
    }

    /// Bytes that the peer's window takes beyond all that was given to [`Connection::send`].
    pub fn window_left(&self) -> usize {
        let (edge, end) = (self.send.una + self.send.wnd, self.send.queue_end());
        if edge.after(end) { (edge - end) as usize } else { 0 }
    }

    /// The owner has more to send and waits: [`Events::WRITABLE`] comes with the next ACK that
    /// leaves room in the peer's window.
    pub fn await_peer(&mut self, now: Instant) {
        self.send.awaits_peer = true;
        if self.send.unsent() == 0 {
            self.arm_probe(now);
        }
    }

    /// An ACK came: tells an owner that waits for it.
    pub(super) fn peer_took_some(&mut self) {
        if self.send.awaits_peer && self.window_left() > 0 {
            self.send.awaits_peer = false;
            self.note(Events::WRITABLE);
        }
    }

    /// Sequence numbers that a shut window keeps back, or could: the owner's bytes count as one.
    pub(super) fn kept_back(&self) -> u32 {
        self.send.unsent_numbers().max(u32::from(self.send.awaits_peer))
    }

    /// Forgets what was received and not acknowledged.
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
