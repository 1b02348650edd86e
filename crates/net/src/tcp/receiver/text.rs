//! The text and the FIN of segments (RFC 9293 §3.10.7.4, seventh and eighth check), and what is
//! learned from their sizes.

use super::acks::{QUICK_ACKS, QUICK_ACKS_MARKED};
use super::tuning::memory_of;
use super::{Audience, Flow, Receiver, Text};
use crate::tcp::egress::Pressure;
use crate::tcp::segment::Segment;
use crate::tcp::seq::Seq;
use crate::tcp::timestamps::Timestamps;
use crate::time::{Duration, Instant};
use crate::wire::tcp::{Flags, HEADER_LEN};
use towpath_packet::Packet;

/// Segments of at least this many bytes let the window grow.
const GROWTH_MIN: u32 = 128;
/// A segment without PSH that is larger than this counts as full; one with PSH, if it is larger
/// than `SIZE_MIN_PUSHED`.
pub(super) const SIZE_MIN: u32 = 88;
pub(super) const SIZE_MIN_PUSHED: u32 = 536;

impl Receiver {
    /// Processes the text of an acceptable segment (RFC 9293 §3.10.7.4, seventh check).
    /// `receiving` is true in the states in which data may still arrive.
    pub(in crate::tcp) fn on_segment(
        &mut self,
        segment: &Segment,
        payload: &mut Packet,
        (receiving, audience): (bool, Audience),
        flow: Flow<'_>,
    ) -> Text {
        let (mut start, nxt) = (segment.seq(), self.nxt);
        let fin = segment.has(Flags::FIN);
        if start.before(nxt) && segment.end().at_or_before(nxt) {
            // A complete duplicate: the peer missed an ACK.
            self.acknowledge_duplicate(start, segment.end());
            return Text::Nothing;
        }
        if !receiving || !segment.takes_numbers() {
            return Text::Nothing;
        }
        if start.before(nxt) {
            self.set_duplicate(start, nxt);
            payload.drop_front((nxt - start) as usize);
            start = nxt;
        }
        if payload.payload_len() == 0 {
            if fin && start.after(nxt) {
                return self.keep_ahead(start, payload, fin, audience);
            }
            if !fin || segment.seq() != start {
                self.acks.owe_now();
            }
            return Text::Nothing;
        }
        if start.at_or_after(self.window.edge()) {
            // Beyond the window, or a probe of a zero window.
            self.quick_acks(QUICK_ACKS);
            self.acks.owe_now();
            return Text::Nothing;
        }
        if audience == Audience::None {
            return Text::Unread;
        }
        if !self.has_memory_for(start) {
            self.acks.owe_now();
            return Text::NoRoom(false);
        }
        let size = self.arriving_size(segment.len, payload, flow.mss);
        self.measure_size(segment, payload.payload_len() as u32, size);
        if start != nxt {
            if self.ecn.receive(segment) {
                self.quick_acks(QUICK_ACKS_MARKED);
            }
            return self.keep_ahead(start, payload, fin, audience);
        }
        self.take_in_order(segment, payload, flow);
        self.owe_ack(flow);
        Text::Readable
    }

    /// Moves data in order to the queue, with what waited for it.
    fn take_in_order(&mut self, segment: &Segment, payload: &mut Packet, flow: Flow<'_>) {
        let (before, len, now) = (self.nxt, payload.payload_len() as u32, flow.now);
        self.nxt += len;
        self.window.sample_density(payload);
        let headers = self.headers();
        let offered = self.window.offered();
        let tuning = self.window.tuning_mut();
        tuning.charge().queue(len, headers);
        for piece in payload.take_pieces() {
            self.queue.push(piece);
        }
        tuning.measure_window(self.nxt, offered, now);
        self.acks.arrived(offered / self.mss.max(1), flow.rtt.rto(), now);
        if self.ecn.receive(segment) {
            self.quick_acks(QUICK_ACKS_MARKED);
        }
        self.grow_window(len, true);
        if !self.waiting.is_empty() {
            self.find_duplicates(before, self.nxt);
            let (start, queue) = (self.nxt, &mut self.queue);
            self.nxt = self.waiting.take_in_order(start, |piece| queue.push(piece));
            let (filled, last) = (self.nxt - start, self.waiting.is_empty());
            if filled > 0 || last {
                self.window.tuning_mut().charge().release(filled, last);
            }
            // RFC 5681 §4.2: a segment that fills a hole is acknowledged at once.
            self.acks.owe_now();
        }
        self.bytes += u64::from(self.nxt - before);
        self.data_at = now;
    }

    /// Keeps out-of-order data. A FIN is kept too, and SACK reports it like data.
    fn keep_ahead(
        &mut self,
        start: Seq,
        payload: &mut Packet,
        fin: bool,
        audience: Audience,
    ) -> Text {
        // RFC 5681 §4.2: an out-of-order segment is acknowledged at once.
        self.acks.owe_now();
        let len = payload.payload_len() as u32;
        self.ahead = self.ahead.wrapping_add(len.div_ceil(self.mss.max(1)).max(1));
        let end = start + len;
        if self.waiting.block_count() == 0 {
            self.duplicate = None;
        } else {
            self.find_duplicates(start, end);
            if fin && self.fin_ahead == Some(end) {
                self.extend_duplicate(end, end + 1);
            }
        }
        if len > 0 {
            let headers = self.headers();
            self.window.tuning_mut().charge().hold(len, headers);
        }
        let complete = self.waiting.insert(start, payload.take_pieces(), fin);
        let urgent = self.urgent.is_within(start, end);
        if self.sack {
            // Without SACK, duplicate ACKs must signal the loss, so the window must not change.
            self.grow_window(len, false);
        }
        if audience == Audience::Owner {
            self.make_room_ahead();
        }
        if complete { Text::Kept(urgent) } else { Text::NoRoom(urgent) }
    }

    /// Processes a FIN (RFC 9293 §3.10.7.4, eighth check). A FIN out of order is remembered: it
    /// need not be retransmitted once the hole before it is filled. Returns true if the stream is
    /// complete now. `open` is true in ESTABLISHED, where an expected FIN of ours may carry the
    /// ACK.
    pub(in crate::tcp) fn on_fin(&mut self, segment: &Segment, open: bool, flow: Flow<'_>) -> bool {
        let owed = self.acks.owed();
        let has_fin = segment.has(Flags::FIN);
        if has_fin {
            self.acks.owe_now();
            let at = segment.seq() + (segment.seq_len() - 1);
            let edge = self.window.edge().max(self.nxt);
            if at.at_or_after(self.nxt) && at.at_or_before(edge) {
                self.fin_ahead = Some(at);
            }
        }
        if self.fin || self.fin_ahead != Some(self.nxt) {
            return false;
        }
        self.fin = true;
        self.nxt += 1;
        self.bytes += 1;
        // Nothing follows a FIN, and the range that SACK reported for it is obsolete.
        self.waiting.clear();
        self.acks.owe_now();
        // An ACK that was due at once stays so: the FIN may fill a hole (RFC 5681 §4.2).
        if open && has_fin && self.acks.expects_fin() {
            self.acks.restore(owed);
            self.acks.delay(flow.rtt, flow.now);
        }
        true
    }

    /// True if there is memory for data at `start`. Small segments hold whole frames, so the memory
    /// that a peer can occupy is bounded. In-order data displaces out-of-order data, or the
    /// connection would stall.
    fn has_memory_for(&mut self, start: Seq) -> bool {
        if self.window.is_held_off() {
            self.window.refuse();
            return false;
        }
        if !self.is_full() {
            return true;
        }
        if start != self.nxt {
            return false;
        }
        if self.held() <= self.window.memory_max() {
            self.drop_ahead();
            return true;
        }
        self.window.refuse();
        false
    }

    /// Drops out-of-order data, as RFC 2018 §8 allows: the sender has kept it.
    pub(in crate::tcp) fn drop_ahead(&mut self) {
        self.waiting.clear();
        self.window.tuning_mut().charge().forget_ahead();
        self.fin_ahead = None;
    }

    /// Learns from `len` bytes of data in segments of `size`: how large full segments are, what
    /// memory they take, and which of them end a write.
    fn measure_size(&mut self, segment: &Segment, len: u32, size: u32) {
        let headers = self.headers();
        if size >= self.mss {
            let offered = self.window.offered();
            let tuning = self.window.tuning_mut();
            tuning.set_last_size(0);
            if size != self.mss {
                tuning.learn_ratio(len, memory_of(len + headers).0, offered);
            }
            self.mss = size.min(self.mss_max);
            if segment.has(Flags::PSH) {
                self.acks.note_pushed_full();
            }
            return;
        }
        // SACK blocks make the payload vary: compare sizes with all options included.
        let whole = size + segment.header.header_len as u32;
        let ends = segment.has(Flags::PSH | Flags::FIN | Flags::URG | Flags::SYN);
        let least = if ends { SIZE_MIN_PUSHED } else { SIZE_MIN } + HEADER_LEN as u32;
        let size = if whole >= least { whole.saturating_sub(headers - self.ip_header) } else { 0 };
        if self.window.tuning_mut().set_last_size(size) == size && size > 0 {
            self.mss = size;
            return;
        }
        self.acks.note_pushed();
    }

    /// Lets the window grow if data arrived densely.
    fn grow_window(&mut self, len: u32, in_order: bool) {
        if (in_order && len < GROWTH_MIN) || self.window.pressure() != Pressure::None {
            return;
        }
        let memory = memory_of(len + self.headers()).0;
        if self.window.tuning_mut().grow_threshold(len, memory, self.mss_max, self.mss) {
            self.acks.quicken();
        }
    }

    /// Enlarges the buffer if out-of-order data needs it.
    fn make_room_ahead(&mut self) {
        let (tight, ahead) = (self.window.pressure() != Pressure::None, self.held_ahead());
        let tuning = self.window.tuning_mut();
        tuning.grow_buffer(tuning.space(), ahead, tight);
    }

    /// Measures the sender's round-trip time from the echo of our timestamp.
    pub(in crate::tcp) fn measure_echo(
        &mut self,
        segment: &Segment,
        ours: &Timestamps,
        now: Instant,
    ) {
        let Some(echo) = ours.echo_of(segment) else { return };
        let age = ours.since_echo(echo, now).unwrap_or(Duration::ZERO);
        let full = segment.seq_len() >= self.mss;
        let all_read = self.queue.is_empty();
        self.window.tuning_mut().measure_echo(echo, age, full, all_read);
    }

    /// Segment size of arriving data. A super-packet names it. Other large data is assumed to
    /// consist of segments as large as ours may be.
    pub(in crate::tcp) fn arriving_size(&self, len: u32, payload: &Packet, send_mss: u32) -> u32 {
        match payload.offload().gso {
            Some(gso) => len.min(u32::from(gso.size.get())),
            None if len <= self.mss_max => len,
            None => send_mss.min(self.mss_max),
        }
    }

    /// Bytes of headers in front of arriving data.
    pub(super) fn headers(&self) -> u32 {
        self.ip_header + HEADER_LEN as u32 + self.options_len()
    }
}
