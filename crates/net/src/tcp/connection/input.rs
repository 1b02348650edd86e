//! Segment arrival (RFC 9293 §3.10.7.4), with PAWS (RFC 7323 §5.3) and protection against blind
//! attacks (RFC 5961). The checks come in the RFC's order.

use super::{Connection, ConnectionError, Events, Segment, State, Turn, flow};
use crate::tcp::receiver::Audience;
use crate::tcp::segment::Verdict;
use crate::tcp::sender::Acked;
use crate::time::Instant;
use crate::wire::tcp::Flags;
use towpath_packet::Packet;

impl Connection {
    /// Processes a segment. `payload` holds its data; pieces that are used are moved out of it.
    pub fn input(&mut self, segment: &Segment, payload: &mut Packet, now: Instant) -> Verdict {
        let size = self.receive.arriving_size(segment.len, payload, self.send.mss());
        self.counters.received(segment.len, size);
        self.receive.arrived(now);
        match self.state {
            State::Closed => Verdict::Reset,
            State::SynSent => self.input_syn_sent(segment, payload, now),
            _ => self.input_synchronized(segment, payload, now),
        }
    }

    /// Processes a segment in a state other than CLOSED and SYN-SENT.
    fn input_synchronized(
        &mut self,
        segment: &Segment,
        payload: &mut Packet,
        now: Instant,
    ) -> Verdict {
        if self.handshake.is_held() {
            return self.input_while_held(segment);
        }
        // First, the sequence number; PAWS comes before it (RFC 7323 §5.3 R1).
        let reset = segment.has(Flags::RST);
        if !reset && self.timestamps.is_old(segment, now) {
            return self.answer_unacceptable(segment, now);
        }
        if self.state == State::SynReceived && self.repeats_syn(segment) {
            return self.input_repeated_syn(segment, now);
        }
        if !self.receive.accepts(segment) {
            if self.resets_after_fin(segment) {
                return self.input_reset(segment, now);
            }
            if !reset {
                return self.answer_unacceptable(segment, now);
            }
            return Verdict::Unacceptable;
        }
        // Second, the RST bit.
        if reset {
            return self.input_reset(segment, now);
        }
        // Fourth, the SYN bit: it is challenged (RFC 5961 §4.2).
        if segment.has(Flags::SYN) {
            return self.suspect(now);
        }
        // Fifth, the ACK field.
        if !segment.has(Flags::ACK) {
            return Verdict::Unacceptable;
        }
        if self.defers(segment) {
            self.timestamps.keep(segment, self.receive.acked(), now);
            self.note_deferred();
            return Verdict::Deferred;
        }
        let verdict = self.input_ack(segment, now);
        if verdict != Verdict::Done || self.state == State::Closed {
            return verdict;
        }
        self.timestamps.keep(segment, self.receive.acked(), now);
        self.keepalive.answered();
        self.receive.measure_echo(segment, &self.timestamps, now);
        // Sixth, the URG bit.
        if self.state.can_receive() {
            self.receive.take_urgent(segment);
        }
        // Seventh, the segment text.
        let verdict = self.input_text(segment, payload, now);
        // Eighth, the FIN bit.
        if self.state != State::Closed {
            self.input_fin(segment, now);
        }
        self.receive.accepted(now);
        verdict
    }

    /// Processes a segment while the answer to the SYN is held: only a reset matters.
    fn input_while_held(&mut self, segment: &Segment) -> Verdict {
        if segment.has(Flags::RST) && segment.seq() == self.receive.nxt() {
            self.finish(Some(ConnectionError::Reset));
        }
        Verdict::Done
    }

    /// True if the segment repeats the SYN that the connection knows.
    fn repeats_syn(&self, segment: &Segment) -> bool {
        segment.has(Flags::SYN) && segment.seq() == self.receive.irs()
    }

    fn input_repeated_syn(&mut self, segment: &Segment, now: Instant) -> Verdict {
        if segment.has(Flags::ACK) && segment.ack() == self.send.nxt() {
            // Simultaneous open: the peer's SYN-ACK repeats the SYN that it sent before.
            self.open(segment, now);
            let acked = self.send.on_ack_of_syn(segment.ack(), turn!(self, now));
            self.note(acked.events);
            self.receive.acknowledge_duplicate(segment.seq(), self.receive.nxt());
        } else if self.may_answer(now) {
            // The peer did not receive our SYN-ACK.
            self.handshake.owe_syn();
        }
        Verdict::Done
    }

    /// True for a reset whose number does not count the peer's FIN: a peer that closes without
    /// reading may send it after its FIN.
    fn resets_after_fin(&self, segment: &Segment) -> bool {
        let over = matches!(self.state, State::CloseWait | State::LastAck | State::Closing);
        over && segment.has(Flags::RST) && segment.seq() + 1 == self.receive.nxt()
    }

    /// True if a reset has an exact number: the next expected one (RFC 5961 §3.2), or the one after
    /// all data that SACK has reported.
    fn is_exact_reset(&self, segment: &Segment) -> bool {
        let sack = self.handshake.agreed().sack;
        segment.seq() == self.receive.nxt()
            || self.resets_after_fin(segment)
            || (sack && self.receive.end_ahead() == Some(segment.seq()))
    }

    /// Processes a reset in the window. One with an exact number ends the connection; any other is
    /// challenged (RFC 5961 §3.2).
    fn input_reset(&mut self, segment: &Segment, now: Instant) -> Verdict {
        if !self.is_exact_reset(segment) {
            if self.counters.data_segs_in == 0 && self.state == State::Established {
                self.handshake.fast_open_mut().on_wrong_reset();
            }
            return self.suspect(now);
        }
        let refused = self.state == State::SynReceived && !self.handshake.is_passive();
        let error = if refused { ConnectionError::Refused } else { ConnectionError::Reset };
        match self.state {
            State::LastAck | State::Closing | State::TimeWait => self.finish(None),
            _ => self.finish(Some(error)),
        }
        Verdict::Done
    }

    fn input_ack(&mut self, segment: &Segment, now: Instant) -> Verdict {
        let ack = segment.ack();
        if self.state == State::SynReceived {
            if !ack.after(self.send.iss()) || ack.after(self.send.nxt()) {
                return Verdict::Reset;
            }
            self.send.assume_syn_sent();
            self.open(segment, now);
        }
        if !self.send.accepts_ack(ack) {
            return self.suspect(now);
        }
        let ece =
            self.receive.ecn().enabled() && segment.has(Flags::ECE) && !segment.has(Flags::SYN);
        let acked = self.send.on_ack(segment, ece, turn!(self, now));
        self.take_acked(acked, now);
        self.end_without_fin_wait()
    }

    /// Takes the result of an acknowledgment.
    pub(super) fn take_acked(&mut self, acked: Acked, now: Instant) {
        self.note(acked.events);
        if !acked.fin {
            return;
        }
        match self.state {
            State::FinWait1 => {
                self.note(Events::SENT_ALL);
                self.enter_fin_wait_2(now);
            }
            State::Closing => {
                self.note(Events::SENT_ALL);
                self.enter_time_wait();
            }
            State::LastAck => {
                self.note(Events::SENT_ALL);
                self.finish(None);
            }
            _ => {}
        }
    }

    fn input_text(&mut self, segment: &Segment, payload: &mut Packet, now: Instant) -> Verdict {
        let audience = match (self.owned, self.is_queued) {
            (false, _) => Audience::None,
            (true, true) => Audience::Queue,
            (true, false) => Audience::Owner,
        };
        let receiving = self.state.can_receive();
        let flow = flow(&self.send, now);
        let text = self.receive.on_segment(segment, payload, (receiving, audience), flow);
        let (verdict, events) = text.outcome();
        self.note(events);
        if verdict == Verdict::NoRoom {
            self.send.peer_continues_at(self.receive.nxt());
        }
        if verdict == Verdict::Reset {
            // RFC 2525 §2.17: the owner is gone and does not read this.
            self.finish(Some(ConnectionError::Aborted));
        }
        verdict
    }

    pub(super) fn input_fin(&mut self, segment: &Segment, now: Instant) {
        let open = self.state == State::Established;
        if !self.receive.on_fin(segment, open, flow(&self.send, now)) {
            return;
        }
        self.note(Events::PEER_CLOSED | Events::READABLE);
        match self.state {
            State::Established => self.state = State::CloseWait,
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => self.enter_time_wait(),
            _ => {}
        }
    }

    /// Answers an unacceptable segment with an ACK. Answers to segments without data are
    /// rate-limited. A SYN may be forged, whatever its number (RFC 5961 §4.2).
    fn answer_unacceptable(&mut self, segment: &Segment, now: Instant) -> Verdict {
        if segment.has(Flags::SYN) {
            return self.suspect(now);
        }
        let nxt = self.receive.nxt();
        if segment.takes_numbers() && segment.seq().before(nxt) {
            self.receive.acknowledge_duplicate(segment.seq(), segment.end().min(nxt));
        } else if segment.takes_numbers() || self.may_answer(now) {
            self.receive.acknowledge();
        }
        Verdict::Unacceptable
    }

    /// Verdict on a segment that may be forged: a challenge, unless the last answer was too recent.
    fn suspect(&mut self, now: Instant) -> Verdict {
        if self.may_answer(now) { Verdict::Challenge } else { Verdict::Unacceptable }
    }

    /// Answers a segment that may be forged with a challenge ACK, to which an honest peer replies
    /// (RFC 5961 §3.2).
    pub fn challenge(&mut self) {
        self.receive.acknowledge();
    }

    /// True if the last answer to an unacceptable segment was long enough ago
    /// (`invalid_ratelimit`). The caller's answer then counts as the last one.
    fn may_answer(&mut self, now: Instant) -> bool {
        let interval = self.settings.invalid_ratelimit;
        let allowed = self.answered_at.is_none_or(|at| now.since(at) >= interval);
        if allowed {
            self.answered_at = Some(now);
        }
        allowed
    }
}
