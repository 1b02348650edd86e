//! Segment arrival (RFC 9293 §3.10.7), with PAWS (RFC 7323 §5) and protection against blind attacks
//! (RFC 5961). Module `ack` processes the acknowledgment of a segment.

use super::acking::{QUICK_ACKS, QUICK_ACKS_MARKED};
use super::connection::{Connection, Segment};
use super::receiver::AckOwed;
use super::seq::Seq;
use super::state::{ConnectionError, Events, State};
use crate::time::{Duration, Instant};
use crate::wire::tcp::Flags;
use towpath_packet::Packet;

/// Age at which a remembered timestamp no longer rejects segments (RFC 7323 §5.5).
pub(crate) const PAWS_VALID: Duration = Duration::from_secs(24 * 24 * 3600);

/// Result of processing a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Processed; [`Connection::output`] builds the answer, if there is one.
    Done,
    /// Not acceptable; possibly answered with an ACK.
    Unacceptable,
    /// Not acceptable, and possibly forged: [`Connection::challenge`] answers it as far as the
    /// stack's budget allows (RFC 5961 §7).
    Challenge,
    /// Not acceptable; answered with a reset made from the segment.
    Reset,
    /// It acknowledges a SYN-ACK, which does not count before data arrives (`TCP_DEFER_ACCEPT`).
    Deferred,
    /// Its data was dropped: no memory or no room for more out-of-order data.
    NoRoom,
}

impl Connection {
    /// Processes a segment. `payload` holds its data; pieces that are used are moved out of it.
    pub fn input(&mut self, segment: &Segment, payload: &mut Packet, now: Instant) -> Verdict {
        let size = self.arriving_size(segment.len, payload);
        self.counters.received(segment.len, size);
        self.receive.tuning.arrived_at = now;
        match self.state {
            State::Closed => Verdict::Reset,
            State::SynSent => self.input_syn_sent(segment, payload, now),
            _ => self.input_synchronized(segment, payload, now),
        }
    }

    /// Processes a segment in a state other than CLOSED and SYN-SENT (RFC 9293 §3.10.7.4).
    fn input_synchronized(
        &mut self,
        segment: &Segment,
        payload: &mut Packet,
        now: Instant,
    ) -> Verdict {
        if self.answer_held {
            return self.input_while_held(segment);
        }
        if self.is_old_by_timestamp(segment, now) && !segment.has(Flags::RST) {
            return self.answer_unacceptable(segment, now);
        }
        if segment.has(Flags::SYN)
            && self.state == State::SynReceived
            && segment.seq() == self.receive.irs
        {
            if segment.has(Flags::ACK) && segment.ack() == self.send.nxt {
                // Simultaneous open: the peer's SYN-ACK repeats the SYN that it sent before.
                self.open(segment, now);
                self.advance_una(segment.ack(), now);
                self.acknowledge_duplicate(segment.seq(), self.receive.nxt);
            } else {
                // The peer did not receive our SYN-ACK.
                self.send.syn_due |= self.may_answer(now);
            }
            return Verdict::Done;
        }
        if !self.is_in_window(segment) {
            if self.resets_after_fin(segment) {
                return self.input_reset(segment, now);
            }
            if !segment.has(Flags::RST) {
                return self.answer_unacceptable(segment, now);
            }
            return Verdict::Unacceptable;
        }
        if segment.has(Flags::RST) {
            return self.input_reset(segment, now);
        }
        if segment.has(Flags::SYN) {
            // RFC 5961 §4.2: a SYN is challenged.
            return self.suspect(now);
        }
        if !segment.has(Flags::ACK) {
            return Verdict::Unacceptable;
        }
        if self.defers(segment) {
            self.keep_timestamp(segment, now);
            self.note_deferred();
            return Verdict::Deferred;
        }
        let verdict = self.input_ack(segment, now);
        if verdict != Verdict::Done || self.state == State::Closed {
            return verdict;
        }
        self.keep_timestamp(segment, now);
        self.timers.keepalive_unanswered = 0;
        self.measure_echo(segment, now);
        self.input_urgent(segment);
        let verdict = self.input_text(segment, payload, now);
        if self.state != State::Closed {
            self.input_fin(segment, now);
        }
        self.receive.last_at = now;
        verdict
    }

    /// Processes a segment while the answer to the SYN is held: only a reset matters.
    fn input_while_held(&mut self, segment: &Segment) -> Verdict {
        if segment.has(Flags::RST) && segment.seq() == self.receive.nxt {
            self.finish(Some(ConnectionError::Reset));
        }
        Verdict::Done
    }

    fn is_old_by_timestamp(&self, segment: &Segment, now: Instant) -> bool {
        let Some((value, _)) = segment.options.timestamps else { return false };
        self.timestamps.enabled
            && Seq(value).before(Seq(self.timestamps.recent))
            && now.since(self.timestamps.recent_at) < PAWS_VALID
    }

    /// True if the segment is acceptable (RFC 9293 §3.10.7.4), by Linux's tests.
    fn is_in_window(&self, segment: &Segment) -> bool {
        let left = self.receive.acked.min(self.receive.nxt);
        let edge = self.receive.advertised.max(self.receive.nxt);
        if segment.end().before(left) {
            return false;
        }
        let fin = u32::from(segment.has(Flags::FIN));
        // A segment that begins in the window may end beyond it if no data is unread (as on Linux
        // since 6.17). A FIN may always follow the last byte of the window.
        segment.end().at_or_before(edge + fin)
            || (segment.seq().at_or_before(edge) && self.receive.queue.is_empty())
    }

    /// True for a reset whose number does not count the peer's FIN. Linux accepts it too.
    fn resets_after_fin(&self, segment: &Segment) -> bool {
        let over = matches!(self.state, State::CloseWait | State::LastAck | State::Closing);
        over && segment.has(Flags::RST) && segment.seq() + 1 == self.receive.nxt
    }

    /// True if a reset has an exact number: the next expected one (RFC 5961 §3.2) or, as on Linux,
    /// the one after all data that SACK has reported.
    fn is_exact_reset(&self, segment: &Segment) -> bool {
        segment.seq() == self.receive.nxt
            || self.resets_after_fin(segment)
            || (self.sack && self.receive.waiting.end() == Some(segment.seq()))
    }

    /// Processes a reset in the window. One with an exact number ends the connection; any other is
    /// challenged (RFC 5961 §3.2).
    fn input_reset(&mut self, segment: &Segment, now: Instant) -> Verdict {
        if !self.is_exact_reset(segment) {
            self.fast_open_reset_ahead();
            return self.suspect(now);
        }
        let refused = self.state == State::SynReceived && !self.passive;
        let error = if refused { ConnectionError::Refused } else { ConnectionError::Reset };
        match self.state {
            State::LastAck | State::Closing | State::TimeWait => self.finish(None),
            _ => self.finish(Some(error)),
        }
        Verdict::Done
    }

    fn keep_timestamp(&mut self, segment: &Segment, now: Instant) {
        // RFC 7323 §4.3: only a segment that begins at or before the last ACK sent.
        if let Some((value, _)) = segment.options.timestamps
            && self.timestamps.enabled
            && segment.seq().at_or_before(self.receive.acked)
            && (Seq(value).at_or_after(Seq(self.timestamps.recent))
                || now.since(self.timestamps.recent_at) >= PAWS_VALID)
        {
            self.timestamps.recent = value;
            self.timestamps.recent_at = now;
        }
    }

    fn input_text(&mut self, segment: &Segment, payload: &mut Packet, now: Instant) -> Verdict {
        let (mut start, nxt) = (segment.seq(), self.receive.nxt);
        let fin = segment.has(Flags::FIN);
        if start.before(nxt) && segment.end().at_or_before(nxt) {
            // A complete duplicate: the peer missed an ACK.
            self.acknowledge_duplicate(start, segment.end());
            return Verdict::Done;
        }
        if !self.state.can_receive() || !(segment.len > 0 || fin) {
            return Verdict::Done;
        }
        if start.before(nxt) {
            self.set_duplicate(start, nxt);
            payload.drop_front((nxt - start) as usize);
            start = nxt;
        }
        if payload.payload_len() == 0 {
            if fin && start.after(nxt) {
                return self.hold_text(start, payload, fin);
            }
            if !fin || segment.seq() != start {
                self.receive.ack_owed = AckOwed::Now;
            }
            return Verdict::Done;
        }
        if start.at_or_after(self.receive.advertised) {
            // Beyond the window, or a probe of a zero window.
            self.enter_quick_acks(QUICK_ACKS);
            self.receive.ack_owed = AckOwed::Now;
            return Verdict::Done;
        }
        if !self.owned {
            // RFC 2525 §2.17: the owner is gone and does not read this.
            self.finish(Some(ConnectionError::Aborted));
            return Verdict::Reset;
        }
        if !self.has_memory_for(start) {
            self.receive.ack_owed = AckOwed::Now;
            return Verdict::NoRoom;
        }
        let size = self.arriving_size(segment.len, payload);
        self.measure_size(segment, payload.payload_len() as u32, size);
        if start != nxt {
            if self.ecn.receive(segment) {
                self.enter_quick_acks(QUICK_ACKS_MARKED);
            }
            return self.hold_text(start, payload, fin);
        }
        self.process_payload(segment, payload, now);
        self.owe_ack(now);
        Verdict::Done
    }

    /// True if there is memory for data at `start`. Small segments hold whole frames, so the memory
    /// that a peer can occupy is bounded. In-order data displaces out-of-order data, or the
    /// connection would stall.
    fn has_memory_for(&mut self, start: Seq) -> bool {
        if self.receive.held_off {
            self.receive.refused = true;
            return false;
        }
        if !self.receive.is_full() {
            return true;
        }
        if start != self.receive.nxt {
            return false;
        }
        if self.receive.held() <= self.receive.memory_max() {
            self.drop_ahead();
            return true;
        }
        self.receive.refused = true;
        false
    }

    /// Drops out-of-order data, as RFC 2018 §8 allows: the sender has kept it.
    pub(crate) fn drop_ahead(&mut self) {
        self.receive.waiting.clear();
        self.receive.tuning.charge.forget_ahead();
        self.receive.fin_ahead = None;
    }

    pub(super) fn process_payload(
        &mut self,
        segment: &Segment,
        payload: &mut Packet,
        now: Instant,
    ) {
        let (before, len) = (self.receive.nxt, payload.payload_len() as u32);
        self.receive.nxt += len;
        self.receive.density.sample(payload);
        self.receive.tuning.charge.queue(len, self.arriving_headers());
        for piece in payload.take_pieces() {
            self.receive.queue.push(piece);
        }
        self.receive.tuning.measure_window(self.receive.nxt, self.receive.offered, now);
        self.measure_arrival(now);
        if self.ecn.receive(segment) {
            self.enter_quick_acks(QUICK_ACKS_MARKED);
        }
        self.grow_window(len, true);
        if !self.receive.waiting.is_empty() {
            self.find_duplicates(before, self.receive.nxt);
            let (start, queue) = (self.receive.nxt, &mut self.receive.queue);
            let waiting = &mut self.receive.waiting;
            self.receive.nxt = waiting.take_in_order(start, |piece| queue.push(piece));
            let (filled, last) = (self.receive.nxt - start, waiting.is_empty());
            if filled > 0 || last {
                self.receive.tuning.charge.release(filled, last);
            }
            // RFC 5681 §4.2: a segment that fills a hole is acknowledged at once.
            self.receive.ack_owed = AckOwed::Now;
        }
        self.counters.bytes_received += u64::from(self.receive.nxt - before);
        self.counters.data_received_at = now;
        self.note(Events::READABLE);
    }

    /// Keeps out-of-order data. A FIN is kept too, and SACK reports it like data.
    fn hold_text(&mut self, start: Seq, payload: &mut Packet, fin: bool) -> Verdict {
        self.receive.ack_owed = AckOwed::Now;
        let segments = (payload.payload_len() as u32).div_ceil(self.receive.mss.max(1)).max(1);
        self.counters.ahead_in = self.counters.ahead_in.wrapping_add(segments);
        let end = start + payload.payload_len() as u32;
        if self.receive.waiting.block_count() == 0 {
            self.receive.duplicate = None;
        } else {
            self.find_duplicates(start, end);
            if fin && self.receive.fin_ahead == Some(end) {
                self.extend_duplicate(end, end + 1);
            }
        }
        let len = payload.payload_len() as u32;
        if len > 0 {
            self.receive.tuning.charge.hold(len, self.arriving_headers());
        }
        let complete = self.receive.waiting.insert(start, payload.take_pieces(), fin);
        self.note_urgent_ahead(start, end);
        if self.sack {
            // Without SACK, duplicate ACKs must signal the loss, so the window must not change.
            self.grow_window(len, false);
        }
        if self.owned && !self.is_queued {
            self.make_room_ahead();
        }
        if complete { Verdict::Done } else { Verdict::NoRoom }
    }

    /// Processes a FIN (RFC 9293 §3.10.7.4, eighth check). A FIN out of order is remembered: it
    /// need not be retransmitted once the hole before it is filled.
    pub(super) fn input_fin(&mut self, segment: &Segment, now: Instant) {
        let owed = self.receive.ack_owed;
        if segment.has(Flags::FIN) {
            self.receive.ack_owed = AckOwed::Now;
            let at = segment.seq() + (segment.seq_len() - 1);
            let edge = self.receive.advertised.max(self.receive.nxt);
            if at.at_or_after(self.receive.nxt) && at.at_or_before(edge) {
                self.receive.fin_ahead = Some(at);
            }
        }
        if self.receive.fin || self.receive.fin_ahead != Some(self.receive.nxt) {
            return;
        }
        self.receive.fin = true;
        self.receive.nxt += 1;
        self.counters.bytes_received += 1;
        // Nothing follows a FIN, and the range that SACK reported for it is obsolete.
        self.receive.waiting.clear();
        self.receive.ack_owed = AckOwed::Now;
        self.note(Events::PEER_CLOSED | Events::READABLE);
        match self.state {
            State::Established => {
                self.state = State::CloseWait;
                // An ACK that was due at once stays so: the FIN may fill a hole (RFC 5681 §4.2).
                if segment.has(Flags::FIN) && self.expects_fin() {
                    self.receive.ack_owed = owed;
                    self.delay_ack(now);
                }
            }
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => self.enter_time_wait(),
            _ => {}
        }
    }

    pub(super) fn enter_time_wait(&mut self) {
        self.fast_open_ends();
        self.state = State::TimeWait;
        self.timers = super::timers::Timers::default();
        self.note(Events::CLOSED);
    }

    /// Answers an unacceptable segment with an ACK. Answers to segments without data are
    /// rate-limited. A SYN may be forged, whatever its number (RFC 5961 §4.2).
    fn answer_unacceptable(&mut self, segment: &Segment, now: Instant) -> Verdict {
        if segment.has(Flags::SYN) {
            return self.suspect(now);
        }
        let takes_numbers = segment.len > 0 || segment.has(Flags::FIN);
        if takes_numbers && segment.seq().before(self.receive.nxt) {
            self.acknowledge_duplicate(segment.seq(), segment.end().min(self.receive.nxt));
        } else if takes_numbers || self.may_answer(now) {
            self.receive.ack_owed = AckOwed::Now;
        }
        Verdict::Unacceptable
    }

    /// Verdict on a segment that may be forged: a challenge, unless the last answer was too recent.
    pub(super) fn suspect(&mut self, now: Instant) -> Verdict {
        if self.may_answer(now) { Verdict::Challenge } else { Verdict::Unacceptable }
    }

    /// Answers a segment that may be forged with a challenge ACK, to which an honest peer replies
    /// (RFC 5961 §3.2).
    pub fn challenge(&mut self) {
        self.receive.ack_owed = AckOwed::Now;
    }

    /// True if the last answer to an unacceptable segment was long enough ago
    /// (`invalid_ratelimit`). The caller's answer then counts as the last one.
    fn may_answer(&mut self, now: Instant) -> bool {
        let interval = self.settings.invalid_ratelimit;
        let allowed = self.receive.challenge_at.is_none_or(|at| now.since(at) >= interval);
        if allowed {
            self.receive.challenge_at = Some(now);
        }
        allowed
    }
}
