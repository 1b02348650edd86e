//! What the owner of the connection does with received data: it reads, holds off, limits.
//!
//! *Holding off*: the other side takes no more data, and received data must not pile up here. Data
//! that is not acknowledged yet is dropped: the peer has kept it, and retransmits it once the
//! window opens. RFC 9293 §3.8.6 discourages a receiver from shrinking its window, but requires
//! senders to cope. This is how no byte is held for a reader that takes none.
//!
//! Calls without a comment are described at `Connection`, which passes them on; also in `urgent`.

use super::Receiver;
use crate::tcp::egress::Pressure;
use crate::tcp::queue::PieceQueue;
use crate::time::Duration;
use alloc::sync::Arc;
use towpath_packet::Reader;

impl Receiver {
    /// Received bytes in order.
    pub(in crate::tcp) fn queue(&self) -> &PieceQueue {
        &self.queue
    }

    /// Drops the first `count` received bytes, which the owner has used. In the states that are
    /// `receiving`, the window may open.
    pub(in crate::tcp) fn consume(&mut self, count: usize, receiving: bool) {
        let len = self.queue.len();
        self.window.tuning_mut().charge().consume(count, len);
        self.queue.advance(count);
        self.forget_urgent();
        if self.acks_taken_only && self.acked.before(self.ack_point()) {
            self.acks.owe_now();
        }
        self.follow_reader();
        let more = self.nxt - self.acked > self.mss;
        self.acks.read(more, self.queue.is_empty());
        if receiving {
            self.offer_window();
        }
    }

    /// Adapts the buffer to the reader, which took data.
    fn follow_reader(&mut self) {
        let unread = self.queue.len() as u32;
        let read = self.nxt.minus(unread + u32::from(self.fin));
        let (tight, ahead) = (self.window.pressure() != Pressure::None, self.held_ahead());
        self.window.tuning_mut().follow_reader(read, unread, ahead, tight);
    }

    pub(in crate::tcp) fn set_reader(&mut self, reader: &Arc<Reader>) {
        if !self.reader.as_ref().is_some_and(|known| Arc::ptr_eq(known, reader)) {
            self.reader = Some(reader.clone());
        }
    }

    /// Notes that the reader gave memory back.
    pub(in crate::tcp) fn reader_gave_back(&mut self) {
        self.offer_window();
    }

    pub(in crate::tcp) fn receive_memory_max(&self) -> usize {
        self.window.memory_max()
    }

    /// Memory of unread data, and of data out of order, in small frames and in other memory.
    pub(in crate::tcp) fn held_frames(&self) -> (usize, usize) {
        let (small, large) = self.queue.held_by_size();
        (small, large + self.waiting.held())
    }

    /// Takes no more data until [`Receiver::resume`], and drops what is not acknowledged. Returns
    /// true if a FIN was dropped.
    pub(in crate::tcp) fn hold_off(&mut self) -> bool {
        let fin = self.acked.before(self.nxt) && self.give_back();
        self.window.hold_off(true);
        self.acks.owe_now();
        fin
    }

    /// Drops received data that is not acknowledged. Returns true if a FIN was dropped.
    fn give_back(&mut self) -> bool {
        let fin = core::mem::take(&mut self.fin);
        self.nxt = self.nxt.minus(u32::from(fin));
        self.drop_ahead();
        let len = self.queue.len();
        let count = ((self.nxt - self.acked) as usize).min(len);
        self.window.tuning_mut().charge().consume(count, len);
        self.queue.drop_back(count);
        self.nxt = self.nxt.minus(count as u32);
        self.bytes -= count as u64;
        fin
    }

    pub(in crate::tcp) fn received_unacknowledged(&self) -> usize {
        let bytes = (self.nxt - self.acked).saturating_sub(u32::from(self.fin));
        (bytes as usize).min(self.queue.len())
    }

    pub(in crate::tcp) fn acknowledge_kept(&mut self, count: usize) {
        if self.window.is_held_off() && self.queue.is_empty() && !self.fin {
            self.nxt += count as u32;
            self.acks.owe_now();
            self.bytes += count as u64;
        }
    }

    pub(in crate::tcp) fn resume(&mut self) {
        self.window.hold_off(false);
    }

    pub(in crate::tcp) fn ack_only_consumed(&mut self, only: bool) {
        if self.acks_taken_only != only {
            self.acks_taken_only = only;
            if self.acked.before(self.ack_point()) {
                self.acks.owe_now();
            } else {
                // An ACK would report nothing new.
                self.acks.forget();
            }
        }
    }

    pub(in crate::tcp) fn limit_window(&mut self, bytes: u32) {
        self.window.set_limit(bytes);
    }

    pub(in crate::tcp) fn window_limit(&self) -> u32 {
        self.window.limit()
    }

    pub(in crate::tcp) fn set_window_clamp(&mut self, clamp: u32) {
        let offered = self.window.offered();
        self.window.tuning_mut().set_clamp(clamp, offered);
    }

    pub(in crate::tcp) fn window_clamp(&self) -> u32 {
        self.window.tuning().clamp()
    }

    pub(in crate::tcp) fn set_receive_buffer(&mut self, bytes: u32) {
        self.window.tuning_mut().set_buffer(bytes);
    }

    pub(in crate::tcp) fn receive_buffer(&self) -> u32 {
        self.window.tuning().buffer()
    }

    pub(in crate::tcp) fn set_low_water(&mut self, bytes: u32) {
        let offered = self.window.offered();
        self.window.tuning_mut().set_low_water(bytes, offered);
    }

    pub(in crate::tcp) fn expect_answers(&mut self, within: Duration) {
        self.acks.expect_answers(within);
    }

    pub(in crate::tcp) fn awaits_answer(&self) -> bool {
        self.acks.awaits_answer() && !self.fin
    }

    /// Sends an ACK that waits for an answer.
    pub(in crate::tcp) fn answer_is_late(&mut self, rto: Duration) {
        if self.awaits_answer() {
            self.acks.answer_is_late(rto);
        }
    }

    /// Switches to immediate ACKs or to delayed ones, on a connection that is `open`.
    pub(in crate::tcp) fn set_quick_acks(&mut self, quick: bool, open: bool) {
        self.acks.set_quick(quick, open);
    }

    pub(in crate::tcp) fn quickack(&self) -> bool {
        self.acks.quick()
    }
}
