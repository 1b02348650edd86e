//! What our segments tell the peer: the acknowledgment number and the window, and when.

use super::acks::{AckOwed, QUICK_ACKS};
use super::window::{Held, WINDOW_FIELD_MAX};
use super::{Flow, Receiver};
use crate::tcp::egress::Pressure;
use crate::tcp::seq::Seq;
use crate::time::{Duration, Instant};

impl Receiver {
    /// Starts quick ACKs, at most `max`.
    pub(super) fn quick_acks(&mut self, max: u8) {
        self.acks.enter_quick(max, self.window.offered() / self.mss.max(1));
    }

    /// Decides when in-order data is acknowledged. More than a full segment is acknowledged at once
    /// if the window advances with it or the reader waits for more (RFC 5681 §4.2). Otherwise the
    /// ACK is delayed; reading the data may send it earlier.
    pub(super) fn owe_ack(&mut self, flow: Flow<'_>) {
        if self.acks_taken_only {
            // Consuming the data sends the ACK.
            return;
        }
        let unacknowledged = self.nxt - self.acked;
        if unacknowledged >= flow.mss {
            self.acks.expect_no_answer();
        }
        let quick = self.acks.is_quick();
        let wanting = self.queue.len() < self.window.tuning().low_water();
        let more = unacknowledged > self.mss;
        if (more && (wanting || self.window_advances())) || quick {
            self.acks.owe_now();
        } else {
            self.acks.delay(flow.rtt, flow.now);
        }
    }

    /// Acknowledges at once.
    pub(in crate::tcp) fn acknowledge(&mut self) {
        self.acks.owe_now();
    }

    /// Delays the third segment of the handshake, which waits for data.
    pub(in crate::tcp) fn delay_third_segment(&mut self, now: Instant) {
        self.quick_acks(QUICK_ACKS);
        self.acks.delay_third(now);
    }

    /// Ends the delay of an ACK if it is over.
    pub(in crate::tcp) fn on_timer(&mut self, rto: Duration, now: Instant) {
        self.acks.on_timer(rto, now);
    }

    /// Accounts for an ACK that was sent, with data or without.
    pub(in crate::tcp) fn ack_sent(&mut self, data: bool, now: Instant) {
        self.acked = self.ack_point();
        self.duplicate = None;
        self.acks.sent(data, now);
    }

    /// Returns the window field of the next segment, and remembers what it offers.
    pub(in crate::tcp) fn window_field(&mut self, pressure: Pressure) -> u16 {
        self.window.set_pressure(pressure);
        let full = self.is_full();
        let offers = self.window.stop_refusing(full);
        let window = if offers { self.window_to_offer(pressure) } else { 0 };
        // The window field counts from the acknowledgment number.
        let untaken = self.nxt - self.ack_point();
        self.window.field(window, self.nxt, untaken)
    }

    /// Returns the window field of our SYN, or of our SYN-ACK if `answers`. It is not scaled (RFC
    /// 7323 §2.2) and may be too small for the window. The next ACK offers the rest; no update is
    /// needed before.
    pub(in crate::tcp) fn syn_window(&mut self, answers: bool, pressure: Pressure) -> u16 {
        self.window.set_pressure(pressure);
        let window = self.first_window();
        if answers {
            self.promise(window);
        }
        window.min(WINDOW_FIELD_MAX) as u16
    }

    pub(super) fn first_window(&self) -> u32 {
        self.window.first(self.mss_max)
    }

    /// Records that `window` bytes are being offered.
    pub(super) fn promise(&mut self, window: u32) {
        self.window.promise(self.nxt, window);
    }

    /// Records that our SYN-ACK offered the first window.
    pub(in crate::tcp) fn promise_first(&mut self) {
        self.promise(self.window.initial());
    }

    /// Window that an ACK would offer now: never less than was offered before, in units of the
    /// scale.
    fn window_to_offer(&mut self, pressure: Pressure) -> u32 {
        let chosen = self.choose_window(pressure);
        self.window.at_least_promised(chosen, self.nxt)
    }

    /// True if an ACK sent now would offer no less than the last one.
    fn window_advances(&mut self) -> bool {
        self.choose_window(self.window.pressure()) >= self.window.offered()
    }

    fn choose_window(&mut self, pressure: Pressure) -> u32 {
        let held = Held { unread: self.queue.held(), handed_out: self.handed_out() };
        let (window, tight) = self.window.choose(self.mss, held, pressure);
        if tight {
            self.acks.end_quick();
        }
        window
    }

    /// Makes a window update due if the reader took data and the window at least doubles.
    pub(super) fn offer_window(&mut self) {
        if self.window.is_refusing() {
            if !(self.window.is_held_off() || self.is_full()) {
                self.window.owe_update();
            }
        } else if !self.window.is_wide(self.nxt) {
            let chosen = self.choose_window(self.window.pressure());
            if self.window.deserves_update(chosen, self.nxt) {
                self.window.owe_update();
            }
        }
    }

    /// True if an ACK is due now, alone if need be.
    pub(in crate::tcp) fn ack_due(&mut self, pressure: Pressure) -> bool {
        let update = self.window.take_update()
            && (self.window.is_refusing() || self.window_to_offer(pressure) > self.window_left());
        update || self.acks.owed() == AckOwed::Now
    }

    /// True if an ACK or a window update may be due; a cheap estimate.
    pub(in crate::tcp) fn may_owe_ack(&self) -> bool {
        self.acks.owed() == AckOwed::Now || self.window.is_update_due()
    }

    /// Acknowledgment number of the next segment.
    pub(in crate::tcp) fn ack_point(&self) -> Seq {
        if !self.acks_taken_only {
            return self.nxt;
        }
        let untaken = self.queue.len() as u32 + u32::from(self.fin && !self.queue.is_empty());
        self.acked.max(self.nxt.minus(untaken))
    }

    /// True if received data holds more memory than it may.
    pub(super) fn is_full(&self) -> bool {
        self.held() + self.waiting.held() > self.window.memory_max()
    }

    /// Memory that data received in order keeps from its lenders, read or not.
    pub(super) fn held(&self) -> usize {
        self.queue.held() + self.handed_out()
    }

    /// Memory handed out to the reader and not given back.
    fn handed_out(&self) -> usize {
        self.reader.as_ref().map_or(0, |reader| reader.held() as usize)
    }

    /// Bytes from the next expected number to the end of the data received out of order.
    pub(super) fn held_ahead(&self) -> u32 {
        self.waiting.end().map_or(0, |end| end.max(self.nxt) - self.nxt)
    }
}
