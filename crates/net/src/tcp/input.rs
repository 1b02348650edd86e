//! Segment arrival (RFC 9293 §3.10.7), with PAWS (RFC 7323 §5), blind-attack defence (RFC 5961),
//! SACK (RFC 2018, 6675) and NewReno recovery (RFC 6582).

use super::connection::{Connection, MSS_MIN, Segment, TIMESTAMPS_LEN};
use super::scoreboard::{Acked, DUP_THRESHOLD};
use super::seq::Seq;
use super::sides::{AckOwed, QUICK_ACKS, Recovery};
use super::state::{ConnectionError, Events, State};
use crate::time::{Duration, Instant};
use crate::wire::tcp::Flags;
use towpath_packet::Packet;

/// Least time between answers to unacceptable segments (Linux's tcp_invalid_ratelimit).
const CHALLENGE_INTERVAL: Duration = Duration::from_millis(500);
/// Timestamps older than this prove nothing (RFC 7323 §5.5).
const PAWS_VALID: Duration = Duration::from_secs(24 * 24 * 3600);
/// A pause after which ACKs are sent at once again.
const QUICK_ACK_PAUSE: Duration = Duration::from_millis(200);

/// What became of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Used, or answered by what [`Connection::output`] builds.
    Done,
    /// Not acceptable; possibly answered with an ACK.
    Unacceptable,
    /// Not acceptable and to be answered with a reset made from the segment.
    Reset,
    /// Its data was dropped: no memory or no room for more out-of-order data.
    NoRoom,
}

impl Connection {
    /// Takes a segment. `payload`'s pieces hold its data; what is used is moved out of it.
    pub fn input(&mut self, segment: &Segment, payload: &mut Packet, now: Instant) -> Verdict {
        match self.state {
            State::Closed => Verdict::Reset,
            State::SynSent => self.input_syn_sent(segment, now),
            _ => self.input_synchronized(segment, payload, now),
        }
    }

    /// RFC 9293 §3.10.7.3.
    fn input_syn_sent(&mut self, segment: &Segment, now: Instant) -> Verdict {
        let acks_syn = segment.ack() == self.send.iss + 1;
        if segment.has(Flags::ACK) && !acks_syn {
            let reset = segment.has(Flags::RST);
            return if reset { Verdict::Unacceptable } else { Verdict::Reset };
        }
        if segment.has(Flags::RST) {
            if segment.has(Flags::ACK) {
                self.finish(Some(ConnectionError::Refused));
                return Verdict::Done;
            }
            return Verdict::Unacceptable;
        }
        if !segment.has(Flags::SYN) {
            return Verdict::Unacceptable;
        }
        self.take_syn(segment, now);
        if segment.has(Flags::ACK) {
            self.send.nxt = self.send.iss + 1;
            self.open(segment, now);
            self.receive.ack_owed = AckOwed::Now;
        } else {
            // Simultaneous open: our SYN is sent again, with an ACK.
            self.state = State::SynReceived;
            self.send.syn_due = true;
        }
        Verdict::Done
    }

    /// Learns from the peer's SYN.
    pub(super) fn take_syn(&mut self, syn: &Segment, now: Instant) {
        self.receive.irs = syn.seq();
        self.receive.nxt = syn.seq() + 1;
        self.receive.advertised = self.receive.nxt;
        self.receive.acked = self.receive.nxt;
        self.receive.last_at = now;
        self.send.wnd = u32::from(syn.header.window);
        self.send.wnd_max = self.send.wnd;
        self.send.wl1 = syn.seq();
        self.sack = self.settings.sack && syn.options.sack_permitted;
        match syn.options.window_scale {
            Some(scale) if self.settings.window_scaling => {
                self.scaled = true;
                self.send.window_scale = scale;
            }
            _ => self.receive.window_scale = 0,
        }
        if let Some((value, _)) = syn.options.timestamps
            && self.settings.timestamps
        {
            self.timestamps.enabled = true;
            self.timestamps.recent = value;
            self.timestamps.recent_at = now;
        }
        let mut mss = self.send.mss;
        if let Some(theirs) = syn.options.mss {
            mss = u32::from(theirs).min(self.mss_local);
        }
        if self.timestamps.enabled {
            mss = mss.saturating_sub(TIMESTAMPS_LEN);
        }
        self.send.mss = mss.max(MSS_MIN);
        self.receive.mss = self.send.mss;
        self.congestion = super::congestion::NewReno::new(self.send.mss);
    }

    /// RFC 9293 §3.10.7.4.
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
            self.challenge(segment, now);
            return Verdict::Unacceptable;
        }
        if segment.has(Flags::SYN)
            && self.state == State::SynReceived
            && segment.seq() == self.receive.irs
        {
            if segment.has(Flags::ACK) && segment.ack() == self.send.iss + 1 {
                // Simultaneous open: both sides answered the other's SYN.
                self.open(segment, now);
                self.receive.ack_owed = AckOwed::Now;
            } else {
                // The peer missed our answer.
                self.send.syn_due = true;
            }
            return Verdict::Done;
        }
        if !self.is_in_window(segment) {
            if !segment.has(Flags::RST) {
                self.challenge(segment, now);
            }
            return Verdict::Unacceptable;
        }
        if segment.has(Flags::RST) {
            return self.input_reset(segment, now);
        }
        if segment.has(Flags::SYN) {
            // RFC 5961 §4.2.
            self.challenge_limited(now);
            return Verdict::Unacceptable;
        }
        if !segment.has(Flags::ACK) {
            return Verdict::Unacceptable;
        }
        let verdict = self.input_ack(segment, now);
        if verdict != Verdict::Done || self.state == State::Closed {
            return verdict;
        }
        self.keep_timestamp(segment, now);
        self.timers.keepalive_unanswered = 0;
        let verdict = self.input_text(segment, payload, now);
        if self.state != State::Closed {
            self.input_fin(segment);
        }
        self.receive.last_at = now;
        verdict
    }

    /// The owner has not answered yet: only the end of the attempt matters.
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

    /// RFC 9293 §3.4 table 6, with Linux's leniency: any overlap with the window counts.
    fn is_in_window(&self, segment: &Segment) -> bool {
        let left = self.receive.acked.min(self.receive.nxt);
        segment.end().at_or_after(left) && segment.seq().at_or_before(self.receive.advertised)
    }

    /// RFC 5961 §3.2: only an exact match resets; others in the window are asked back.
    fn input_reset(&mut self, segment: &Segment, now: Instant) -> Verdict {
        if segment.seq() != self.receive.nxt {
            self.challenge_limited(now);
            return Verdict::Unacceptable;
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
        // RFC 7323 §4.3: only a segment that spans the last ACK sent.
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

    fn input_ack(&mut self, segment: &Segment, now: Instant) -> Verdict {
        let ack = segment.ack();
        if self.state == State::SynReceived {
            if ack != self.send.iss + 1 {
                return Verdict::Reset;
            }
            self.send.nxt = self.send.nxt.max(self.send.iss + 1);
            self.open(segment, now);
        }
        // RFC 5961 §5.2.
        let oldest = Seq(self.send.una.0.wrapping_sub(self.send.wnd_max));
        if ack.after(self.send.nxt) || ack.before(oldest) {
            self.challenge_limited(now);
            return Verdict::Unacceptable;
        }
        if ack.before(self.send.una) {
            return Verdict::Done;
        }
        let window_before = self.send.wnd;
        self.update_window(segment);
        let flight = self.send.flight();
        let pipe = self.send.board.pipe();
        let mut acked = Acked::default();
        let advanced = ack.after(self.send.una);
        if advanced {
            acked = self.advance_una(ack, now);
        }
        let sacked = self.input_sack(segment);
        // RFC 9293 §3.8.6.1: a peer that answers probes is alive, however long its window is shut.
        if acked.bytes > 0 || sacked.bytes > 0 || self.send.board.is_empty() {
            self.timers.unanswered = 0;
        }
        self.sample_rtt(acked.sample.max(sacked.sample), segment, advanced, now);
        let plain = segment.len == 0
            && !segment.has(Flags::FIN)
            && self.send.wnd == window_before
            && !advanced;
        self.recover(&acked, plain && flight > 0, flight, pipe);
        self.after_ack(advanced, now);
        Verdict::Done
    }

    /// Enters ESTABLISHED: the peer has acknowledged our SYN.
    fn open(&mut self, segment: &Segment, now: Instant) {
        self.state = if self.send.fin_queued { State::FinWait1 } else { State::Established };
        self.send.una = self.send.iss + 1;
        let unscaled = segment.has(Flags::SYN);
        let scale = if unscaled { 0 } else { self.send.window_scale };
        self.send.wnd = u32::from(segment.header.window) << scale;
        self.send.wnd_max = self.send.wnd_max.max(self.send.wnd);
        self.send.wl1 = segment.seq();
        self.send.wl2 = segment.ack();
        if self.timers.unanswered == 0 {
            self.rtt.sample(now.since(self.send.syn_sent_at));
        }
        self.rtt.restore();
        self.timers.retransmit = None;
        self.timers.unanswered = 0;
        self.note(Events::ESTABLISHED | Events::WRITABLE);
    }

    /// RFC 9293 §3.10.7.4: the window of the latest segment counts.
    fn update_window(&mut self, segment: &Segment) {
        let wnd = u32::from(segment.header.window) << self.send.window_scale;
        let newer = self.send.wl1.before(segment.seq())
            || (self.send.wl1 == segment.seq() && self.send.wl2.at_or_before(segment.ack()));
        if newer || (segment.ack() == self.send.una && wnd > self.send.wnd) {
            if self.send.wnd == 0 && wnd > 0 {
                self.timers.unanswered = 0;
                self.rtt.restore();
            }
            self.send.wnd = wnd;
            self.send.wnd_max = self.send.wnd_max.max(wnd);
            self.send.wl1 = segment.seq();
            self.send.wl2 = segment.ack();
        }
    }

    fn advance_una(&mut self, ack: Seq, now: Instant) -> Acked {
        let acked = self.send.board.acknowledge(ack);
        self.send.una = ack;
        self.send.duplicate_acks = 0;
        let fin_acked = self.send.fin_sent && ack == self.send.nxt;
        let data = if ack.after(self.send.base) { ack - self.send.base } else { 0 };
        let data = (data as usize).min(self.send.queue.len());
        self.send.queue.advance(data);
        self.send.base += data as u32;
        if self.send.was_full && self.send_room() > 0 {
            self.note(Events::WRITABLE);
        }
        if fin_acked {
            self.input_ack_of_fin(now);
        }
        acked
    }

    fn input_ack_of_fin(&mut self, now: Instant) {
        self.note(Events::SENT_ALL);
        match self.state {
            State::FinWait1 => {
                self.state = State::FinWait2;
                if !self.owned {
                    self.timers.fin_wait = Some(now + self.settings.fin_wait);
                }
            }
            State::Closing => self.enter_time_wait(),
            State::LastAck => self.finish(None),
            _ => {}
        }
    }

    pub(super) fn enter_time_wait(&mut self) {
        self.state = State::TimeWait;
        self.timers = super::timers::Timers::default();
        self.note(Events::CLOSED);
    }

    fn input_sack(&mut self, segment: &Segment) -> Acked {
        let mut news = Acked::default();
        if !self.sack {
            return news;
        }
        for &(start, end) in &segment.options.sack[..segment.options.sack_count as usize] {
            let (start, end) = (Seq(start), Seq(end));
            let valid = start.before(end)
                && start.after(self.send.una)
                && end.at_or_before(self.send.nxt)
                && self.send.una.before(end);
            if valid {
                let block = self.send.board.sack(start, end);
                news.bytes += block.bytes;
                news.sample = news.sample.max(block.sample);
            }
        }
        news
    }

    fn sample_rtt(
        &mut self,
        sample: Option<Instant>,
        segment: &Segment,
        advanced: bool,
        now: Instant,
    ) {
        if let Some(sent_at) = sample {
            self.rtt.sample(now.since(sent_at));
        } else if advanced && let Some((_, echo)) = segment.options.timestamps {
            // A retransmitted range: the echo tells which transmission arrived (RFC 7323 §4.1).
            let elapsed = self.timestamps.value(now).wrapping_sub(echo);
            if self.timestamps.enabled && echo != 0 && elapsed < u32::MAX / 2 {
                self.rtt.sample(Duration::from_millis(u64::from(elapsed).max(1)));
            }
        }
    }

    fn recover(&mut self, acked: &Acked, duplicate: bool, flight: u32, pipe: u32) {
        let mss = self.send.mss;
        if let Some(recovery) = self.send.recovery {
            if self.send.una.at_or_after(recovery.point) {
                self.send.recovery = None;
            } else if acked.bytes > 0 && !self.sack && !recovery.timeout {
                // RFC 6582 §3.2: a partial ACK names the next hole. After a timeout all that was
                // outstanding is marked already.
                self.send.board.lose_first(mss);
            }
        }
        let mut found = self.sack && self.send.board.find_losses(mss);
        if duplicate && !self.sack {
            self.send.duplicate_acks += 1;
            if self.send.duplicate_acks == DUP_THRESHOLD && self.send.recovery.is_none() {
                self.send.board.lose_first(mss);
                found = true;
            }
        }
        if found && self.send.recovery.is_none() {
            self.congestion.on_loss(flight);
            self.send.recovery = Some(Recovery { point: self.send.nxt, timeout: false });
        }
        let growing = self.send.recovery.is_none_or(|recovery| recovery.timeout);
        // RFC 7661: a window that is not used does not grow.
        let window = self.congestion.window();
        let slow_start = window < self.congestion.threshold();
        let used = if slow_start { pipe.saturating_mul(2) } else { pipe.saturating_add(mss) };
        let timeout = self.send.recovery.is_some();
        if growing && acked.bytes > 0 && (used >= window || timeout) {
            self.congestion.on_ack(acked.bytes);
        }
    }

    fn after_ack(&mut self, advanced: bool, now: Instant) {
        if self.state == State::Closed || self.state == State::TimeWait {
            return;
        }
        if self.send.board.is_empty() {
            self.timers.retransmit = None;
        } else if advanced || self.timers.retransmit.is_none() {
            self.timers.retransmit = Some(now + self.rtt.rto());
        }
        if self.send.wnd > 0 && self.timers.persist.is_some() && advanced {
            self.timers.persist = None;
        }
    }

    fn input_text(&mut self, segment: &Segment, payload: &mut Packet, now: Instant) -> Verdict {
        if segment.len == 0 {
            return Verdict::Done;
        }
        if !self.state.can_receive() {
            return Verdict::Done;
        }
        let mut start = segment.seq();
        let nxt = self.receive.nxt;
        if start.before(nxt) {
            // Partly or wholly old: the peer missed an ACK.
            self.receive.ack_owed = AckOwed::Now;
            let old = (nxt - start).min(segment.len);
            payload.drop_front(old as usize);
            start += old;
        }
        let edge = self.receive.advertised;
        if (start + payload.payload_len() as u32).after(edge) {
            payload.truncate(if edge.after(start) { (edge - start) as usize } else { 0 });
        }
        if payload.payload_len() == 0 {
            self.receive.ack_owed = AckOwed::Now;
            return Verdict::Done;
        }
        if !self.owned {
            // RFC 2525 §2.17: nobody will read this.
            self.abort();
            return Verdict::Done;
        }
        if !self.has_memory_for(start) {
            self.receive.ack_owed = AckOwed::Now;
            return Verdict::NoRoom;
        }
        self.receive.mss = self.receive.mss.max(segment.len.min(self.mss_local));
        if now.since(self.receive.last_at) > QUICK_ACK_PAUSE {
            self.receive.quick_acks = QUICK_ACKS;
        }
        if start == nxt { self.take_text(payload, now) } else { self.hold_text(start, payload) }
    }

    /// Bounds the memory that a peer can make us hold with small segments. What is next in order
    /// displaces what came ahead of its turn, or nothing would ever move.
    fn has_memory_for(&mut self, start: Seq) -> bool {
        let limit = self.receive.memory_max();
        let queued = self.receive.queue.held();
        if queued + self.receive.waiting.held() <= limit {
            return true;
        }
        if start == self.receive.nxt && queued <= limit {
            self.drop_ahead();
            return true;
        }
        false
    }

    /// Drops what came ahead of its turn, as RFC 2018 §8 allows: its sender has kept it.
    pub(crate) fn drop_ahead(&mut self) {
        self.receive.waiting.clear();
        self.receive.fin_ahead = None;
    }

    fn take_text(&mut self, payload: &mut Packet, now: Instant) -> Verdict {
        self.receive.nxt += payload.payload_len() as u32;
        self.receive.density.sample(payload);
        let left = self.receive.advertised - self.receive.nxt;
        self.receive.pressed |= left < self.receive.offered / 2;
        for piece in payload.take_pieces() {
            self.receive.queue.push(piece);
        }
        if !self.receive.waiting.is_empty() {
            let queue = &mut self.receive.queue;
            self.receive.nxt =
                self.receive.waiting.take_in_order(self.receive.nxt, |piece| queue.push(piece));
            // RFC 5681 §4.2: filling a hole is acknowledged at once.
            self.receive.ack_owed = AckOwed::Now;
        }
        self.owe_ack(now);
        self.note(Events::READABLE);
        Verdict::Done
    }

    fn hold_text(&mut self, start: Seq, payload: &mut Packet) -> Verdict {
        self.receive.ack_owed = AckOwed::Now;
        let complete = self.receive.waiting.insert(start, payload.take_pieces());
        if complete { Verdict::Done } else { Verdict::NoRoom }
    }

    /// RFC 9293 §3.8.6.3: at least every second full segment, others after a delay.
    fn owe_ack(&mut self, now: Instant) {
        let pending = self.receive.nxt - self.receive.acked;
        if self.receive.quick_acks > 0 || pending > self.receive.mss {
            self.receive.ack_owed = AckOwed::Now;
        } else if self.receive.ack_owed == AckOwed::No {
            self.receive.ack_owed = AckOwed::Delayed;
            self.timers.delayed_ack = Some(now + self.settings.delayed_ack);
        }
    }

    /// RFC 9293 §3.10.7.4 eighth. A FIN ahead of its turn is remembered, so that it needs not be
    /// sent again once the hole before it is filled.
    fn input_fin(&mut self, segment: &Segment) {
        if segment.has(Flags::FIN) {
            self.receive.ack_owed = AckOwed::Now;
            let at = segment.seq() + segment.len;
            if at.at_or_after(self.receive.nxt) && at.at_or_before(self.receive.advertised) {
                self.receive.fin_ahead = Some(at);
            }
        }
        if self.receive.fin || self.receive.fin_ahead != Some(self.receive.nxt) {
            return;
        }
        self.receive.fin = true;
        self.receive.nxt += 1;
        self.receive.ack_owed = AckOwed::Now;
        self.note(Events::PEER_CLOSED | Events::READABLE);
        match self.state {
            State::Established => self.state = State::CloseWait,
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => self.enter_time_wait(),
            _ => {}
        }
    }

    /// Answers an unacceptable segment with an ACK; those without data are rate-limited.
    fn challenge(&mut self, segment: &Segment, now: Instant) {
        if segment.len > 0 || segment.has(Flags::FIN) {
            self.receive.ack_owed = AckOwed::Now;
        } else {
            self.challenge_limited(now);
        }
    }

    fn challenge_limited(&mut self, now: Instant) {
        let allowed =
            self.receive.challenge_at.is_none_or(|at| now.since(at) >= CHALLENGE_INTERVAL);
        if allowed {
            self.receive.challenge_at = Some(now);
            self.receive.ack_owed = AckOwed::Now;
        }
    }
}
