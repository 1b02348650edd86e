//! The receiving side of a connection: it turns segments into the bytes of the stream, and says
//! what is acknowledged when, and how large the window is.
//!
//! [`Receiver::on_segment`] and [`Receiver::on_fin`] are the seventh and eighth steps of RFC 9293
//! §3.10.7.4, "process the segment text" and "check the FIN bit". Each part is an object of its
//! own: `acks` the ACK policy, `window` the receive window, `tuning` the buffer behind it, `sack`
//! the reports of data that arrived out of order or twice, `urgent` the urgent mark, `owner` the
//! calls of the owner.

mod acks;
mod info;
mod owner;
mod sack;
mod tuning;
mod urgent;
mod window;

use super::ecn::Echo;
use super::egress::Pressure;
use super::queue::PieceQueue;
use super::reassembly::Reassembly;
use super::rtt::RttEstimator;
use super::segment::{Segment, TIMESTAMPS_LEN, Verdict};
use super::seq::Seq;
use super::settings::Settings;
use super::state::Events;
use super::timestamps::Timestamps;
use crate::time::{Duration, Instant};
use crate::wire::tcp::{Flags, HEADER_LEN};
pub(super) use acks::AckOwed;
use acks::{AckPolicy, QUICK_ACKS, QUICK_ACKS_MARKED};
use alloc::sync::Arc;
use towpath_packet::{Packet, Reader};
use tuning::memory_of;
use urgent::Urgent;
use window::{Held, ReceiveWindow, WINDOW_FIELD_MAX};

/// Segments of at least this many bytes let the window grow.
const GROWTH_MIN: u32 = 128;
/// A segment without PSH that is larger than this counts as full; one with PSH, if it is larger
/// than `SIZE_MIN_PUSHED`.
const SIZE_MIN: u32 = 88;
const SIZE_MIN_PUSHED: u32 = 536;

/// What the receiver needs to know of the sending side.
#[derive(Clone, Copy)]
pub(super) struct Flow<'a> {
    /// Round trips and retransmission timeout.
    pub(super) rtt: &'a RttEstimator,
    /// Payload of a full segment of ours.
    pub(super) mss: u32,
    /// The present.
    pub(super) now: Instant,
}

/// Who reads the received data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Audience {
    /// The owner.
    Owner,
    /// A future owner: the connection waits in a listener's queue.
    Queue,
    /// Nobody: the owner is gone.
    None,
}

/// Result of processing the text of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Text {
    /// Nothing new for the owner.
    Nothing,
    /// The owner may read more.
    Readable,
    /// Data out of order was kept; true if it has the urgent byte.
    Kept(bool),
    /// The data was dropped: no memory, or no room for more out-of-order data.
    NoRoom,
    /// There is data and no owner to read it.
    Unread,
}

/// Receiving side. Names in parentheses are those of RFC 9293 §3.3.1.
pub(super) struct Receiver {
    /// Initial sequence number of the peer (IRS).
    irs: Seq,
    /// Next number expected (RCV.NXT).
    nxt: Seq,
    /// Acknowledgment number of the last ACK sent.
    acked: Seq,
    queue: PieceQueue,
    /// Reader that received pieces are handed out to.
    reader: Option<Arc<Reader>>,
    waiting: Reassembly,
    /// Range received twice and not reported yet (RFC 2883).
    duplicate: Option<(Seq, Seq)>,
    fin: bool,
    /// Sequence number of a FIN that arrived out of order.
    fin_ahead: Option<Seq>,
    window: ReceiveWindow,
    acks: AckPolicy,
    ecn: Echo,
    urgent: Urgent,
    /// Recent size of a full segment: the unit of delayed ACKs and window updates.
    mss: u32,
    /// Largest segment that we accept: the MSS option of our SYN (RFC 9293 §3.7.1).
    mss_max: u32,
    /// Bytes of IP header in front of arriving segments.
    ip_header: u32,
    /// Both sides understand SACK.
    sack: bool,
    /// SACK reports data that arrived twice.
    dsack: bool,
    /// Both sides send timestamps.
    timestamps: bool,
    /// Only data that the owner has consumed is acknowledged.
    acks_taken_only: bool,
    /// When a segment was last accepted.
    last_at: Instant,
    data_at: Instant,
    /// Sequence numbers received in order.
    bytes: u64,
    /// Segments received out of order; wraps.
    ahead: u32,
}

impl Receiver {
    /// Creates a receiver that has received nothing. The first segments are assumed to have `mss`
    /// bytes; the peer may send `mss_max`.
    pub(super) fn new(settings: &Settings, mss: u32, mss_max: u32, v4: bool, now: Instant) -> Self {
        Self {
            irs: Seq(0),
            nxt: Seq(0),
            acked: Seq(0),
            queue: PieceQueue::new(),
            reader: None,
            waiting: Reassembly::default(),
            duplicate: None,
            fin: false,
            fin_ahead: None,
            window: ReceiveWindow::new(settings, now),
            acks: AckPolicy::new(settings.delayed_ack, settings.quickack, now),
            ecn: Echo::default(),
            urgent: Urgent::default(),
            mss,
            mss_max,
            ip_header: if v4 { 20 } else { 40 },
            sack: false,
            dsack: settings.dsack,
            timestamps: false,
            acks_taken_only: false,
            last_at: now,
            data_at: now,
            bytes: 0,
            ahead: 0,
        }
    }

    /// Chooses the first window, before our SYN is sent. `scaling` is true if windows are, or may
    /// be, scaled.
    pub(super) fn begin(&mut self, scaling: bool, send_mss: u32) {
        let mss = self.mss_max.saturating_sub(self.options_len()).max(1);
        self.window.begin(mss, scaling);
        self.guess_segment_size(send_mss);
    }

    /// Takes the number of the peer's SYN.
    pub(super) fn take_syn(&mut self, seq: Seq, now: Instant) {
        self.irs = seq;
        self.nxt = seq + 1;
        self.acked = self.nxt;
        self.window.start_at(self.nxt);
        self.last_at = now;
    }

    /// Sets what both sides agreed on: SACK, timestamps, ECN.
    pub(super) fn agree(&mut self, sack: bool, timestamps: bool) {
        (self.sack, self.timestamps) = (sack, timestamps);
    }

    /// Gives up window scaling; `offered` if we had offered it.
    pub(super) fn unscale(&mut self, offered: bool) {
        self.window.unscale(offered);
    }

    /// Takes the peer's answer to our SYN, which had offered the first window.
    pub(super) fn answered(&mut self, send_mss: u32) {
        self.guess_segment_size(send_mss);
        self.promise(self.first_window());
    }

    /// Takes up to `len` bytes of data of the peer's SYN, within the window that was offered.
    /// Returns their number.
    pub(super) fn take_syn_data(&mut self, len: u32, payload: &mut Packet) -> u32 {
        payload.truncate(self.window.initial().min(len) as usize);
        let taken = payload.payload_len() as u32;
        if taken > 0 {
            self.nxt += taken;
            self.window.start_at(self.nxt);
            let headers = self.headers();
            self.window.tuning_mut().charge().queue(taken, headers);
            for piece in payload.take_pieces() {
                self.queue.push(piece);
            }
            self.bytes += u64::from(taken);
        }
        taken
    }

    /// Starts tuning the buffer: data may be received. `active` if we opened the connection.
    pub(super) fn open(&mut self, active: bool, now: Instant) {
        let less = if active { self.options_len() } else { 0 };
        let mss = self.mss_max.saturating_sub(less).max(1);
        self.window.open(mss, self.irs + 1, now);
        self.data_at = now;
    }

    /// Notes that the handshake is over.
    pub(super) fn established(&mut self, now: Instant) {
        self.acks.open(now);
    }

    /// Guesses the peer's segment size, rather too small than too large: arriving segments correct
    /// it.
    fn guess_segment_size(&mut self, send_mss: u32) {
        let size = send_mss.min(self.mss_max).min(self.window.initial() / 2);
        self.mss = size.clamp(SIZE_MIN, SIZE_MIN_PUSHED);
    }

    /// True if the segment is acceptable (RFC 9293 §3.10.7.4, first check).
    pub(super) fn accepts(&self, segment: &Segment) -> bool {
        let left = self.acked.min(self.nxt);
        let edge = self.window.edge().max(self.nxt);
        if segment.end().before(left) {
            return false;
        }
        let fin = u32::from(segment.has(Flags::FIN));
        // A segment that begins in the window may end beyond it if no data is unread: a sender
        // whose window was shrunk makes progress. A FIN may always follow the last byte.
        segment.end().at_or_before(edge + fin)
            || (segment.seq().at_or_before(edge) && self.queue.is_empty())
    }

    /// Notes that a segment arrived.
    pub(super) fn arrived(&mut self, now: Instant) {
        self.window.tuning_mut().arrived(now);
    }

    /// Notes that a segment was accepted.
    pub(super) fn accepted(&mut self, now: Instant) {
        self.last_at = now;
    }

    /// Processes the text of an acceptable segment (RFC 9293 §3.10.7.4, seventh check).
    /// `receiving` is true in the states in which data may still arrive.
    pub(super) fn on_segment(
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
            return Text::NoRoom;
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
        if complete { Text::Kept(urgent) } else { Text::NoRoom }
    }

    /// Processes a FIN (RFC 9293 §3.10.7.4, eighth check). A FIN out of order is remembered: it
    /// need not be retransmitted once the hole before it is filled. Returns true if the stream is
    /// complete now. `open` is true in ESTABLISHED, where an expected FIN of ours may carry the
    /// ACK.
    pub(super) fn on_fin(&mut self, segment: &Segment, open: bool, flow: Flow<'_>) -> bool {
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
    pub(super) fn drop_ahead(&mut self) {
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
    pub(super) fn measure_echo(&mut self, segment: &Segment, ours: &Timestamps, now: Instant) {
        let Some(echo) = ours.echo_of(segment) else { return };
        let age = ours.since_echo(echo, now).unwrap_or(Duration::ZERO);
        let full = segment.seq_len() >= self.mss;
        let all_read = self.queue.is_empty();
        self.window.tuning_mut().measure_echo(echo, age, full, all_read);
    }

    /// Segment size of arriving data. A super-packet names it. Other large data is assumed to
    /// consist of segments as large as ours may be.
    pub(super) fn arriving_size(&self, len: u32, payload: &Packet, send_mss: u32) -> u32 {
        match payload.offload().gso {
            Some(gso) => len.min(u32::from(gso.size.get())),
            None if len <= self.mss_max => len,
            None => send_mss.min(self.mss_max),
        }
    }

    /// Bytes of headers in front of arriving data.
    fn headers(&self) -> u32 {
        self.ip_header + HEADER_LEN as u32 + self.options_len()
    }

    fn options_len(&self) -> u32 {
        if self.timestamps { TIMESTAMPS_LEN } else { 0 }
    }

    /// Starts quick ACKs, at most `max`.
    fn quick_acks(&mut self, max: u8) {
        self.acks.enter_quick(max, self.window.offered() / self.mss.max(1));
    }

    /// Decides when in-order data is acknowledged. More than a full segment is acknowledged at once
    /// if the window advances with it or the reader waits for more (RFC 5681 §4.2). Otherwise the
    /// ACK is delayed; reading the data may send it earlier.
    fn owe_ack(&mut self, flow: Flow<'_>) {
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
    pub(super) fn acknowledge(&mut self) {
        self.acks.owe_now();
    }

    /// Delays the third segment of the handshake, which waits for data.
    pub(super) fn delay_third_segment(&mut self, now: Instant) {
        self.quick_acks(QUICK_ACKS);
        self.acks.delay_third(now);
    }

    /// Ends the delay of an ACK if it is over.
    pub(super) fn on_timer(&mut self, rto: Duration, now: Instant) {
        self.acks.on_timer(rto, now);
    }

    /// Accounts for an ACK that was sent, with data or without.
    pub(super) fn ack_sent(&mut self, data: bool, now: Instant) {
        self.acked = self.ack_point();
        self.duplicate = None;
        self.acks.sent(data, now);
    }

    /// Returns the window field of the next segment, and remembers what it offers.
    pub(super) fn window_field(&mut self, pressure: Pressure) -> u16 {
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
    pub(super) fn syn_window(&mut self, answers: bool, pressure: Pressure) -> u16 {
        self.window.set_pressure(pressure);
        let window = self.first_window();
        if answers {
            self.promise(window);
        }
        window.min(WINDOW_FIELD_MAX) as u16
    }

    fn first_window(&self) -> u32 {
        self.window.first(self.mss_max)
    }

    /// Records that `window` bytes are being offered.
    fn promise(&mut self, window: u32) {
        self.window.promise(self.nxt, window);
    }

    /// Records that our SYN-ACK offered the first window.
    pub(super) fn promise_first(&mut self) {
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
    fn offer_window(&mut self) {
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
    pub(super) fn ack_due(&mut self, pressure: Pressure) -> bool {
        let update = self.window.take_update()
            && (self.window.is_refusing() || self.window_to_offer(pressure) > self.window_left());
        update || self.acks.owed() == AckOwed::Now
    }

    /// True if an ACK or a window update may be due; a cheap estimate.
    pub(super) fn may_owe_ack(&self) -> bool {
        self.acks.owed() == AckOwed::Now || self.window.is_update_due()
    }

    /// How urgently an ACK is owed.
    pub(super) fn ack_owed(&self) -> AckOwed {
        self.acks.owed()
    }

    /// When [`Receiver::on_timer`] must be called.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.acks.deadline()
    }

    /// Ends receiving; received data stays readable. `closed` if not even an ACK is owed.
    pub(super) fn finish(&mut self, closed: bool) {
        if closed {
            self.waiting.clear();
            self.acks.forget();
            self.window.take_update();
        }
        self.acks.stop();
    }

    /// Acknowledgment number of the next segment.
    pub(super) fn ack_point(&self) -> Seq {
        if !self.acks_taken_only {
            return self.nxt;
        }
        let untaken = self.queue.len() as u32 + u32::from(self.fin && !self.queue.is_empty());
        self.acked.max(self.nxt.minus(untaken))
    }

    /// True if received data holds more memory than it may.
    fn is_full(&self) -> bool {
        self.held() + self.waiting.held() > self.window.memory_max()
    }

    /// Memory that data received in order keeps from its lenders, read or not.
    fn held(&self) -> usize {
        self.queue.held() + self.handed_out()
    }

    /// Memory handed out to the reader and not given back.
    fn handed_out(&self) -> usize {
        self.reader.as_ref().map_or(0, |reader| reader.held() as usize)
    }

    /// Bytes from the next expected number to the end of the data received out of order.
    fn held_ahead(&self) -> u32 {
        self.waiting.end().map_or(0, |end| end.max(self.nxt) - self.nxt)
    }

    /// Initial sequence number of the peer.
    pub(super) fn irs(&self) -> Seq {
        self.irs
    }

    /// Next number expected.
    pub(super) fn nxt(&self) -> Seq {
        self.nxt
    }

    /// Acknowledgment number of the last ACK sent.
    pub(super) fn acked(&self) -> Seq {
        self.acked
    }

    /// Bytes left of the window last advertised.
    pub(super) fn window_left(&self) -> u32 {
        self.window.left(self.nxt)
    }

    /// Scale of our window fields.
    pub(super) fn scale(&self) -> u8 {
        self.window.scale()
    }

    /// Largest segment that we accept.
    pub(super) fn mss_max(&self) -> u32 {
        self.mss_max
    }

    /// Sets the largest segment that we accept: our SYN is not answered yet.
    pub(super) fn set_mss_max(&mut self, mss: u32) {
        self.mss_max = mss;
    }

    /// Recent size of a full segment.
    pub(super) fn mss(&self) -> u32 {
        self.mss
    }

    /// True if the peer has sent its FIN and all data before it has arrived.
    pub(super) fn has_fin(&self) -> bool {
        self.fin
    }

    /// True if a FIN arrived out of order, and no data with it.
    pub(super) fn has_lone_fin_ahead(&self) -> bool {
        self.fin_ahead.is_some() && !self.fin && self.waiting.is_empty()
    }

    /// End of the data received out of order.
    pub(super) fn end_ahead(&self) -> Option<Seq> {
        self.waiting.end()
    }

    /// When a segment was last accepted.
    pub(super) fn last_at(&self) -> Instant {
        self.last_at
    }

    /// The receiver's part of ECN.
    pub(super) fn ecn(&self) -> &Echo {
        &self.ecn
    }

    /// The receiver's part of ECN, to agree on it.
    pub(super) fn ecn_mut(&mut self) -> &mut Echo {
        &mut self.ecn
    }
}

/// Access for tests of connections.
#[cfg(test)]
impl Receiver {
    pub(super) fn settle(&mut self) {
        self.acks.settle();
    }

    pub(super) fn offer(&mut self, window: u32) {
        self.window.force(self.nxt, window);
    }

    pub(super) fn edge(&self) -> Seq {
        self.window.edge()
    }

    pub(super) fn offered(&self) -> u32 {
        self.window.offered()
    }
}

impl Text {
    /// The verdict on the segment, and the events for the owner.
    pub(super) fn outcome(self) -> (Verdict, Events) {
        match self {
            Text::Nothing | Text::Kept(false) => (Verdict::Done, Events::default()),
            Text::Readable | Text::Kept(true) => (Verdict::Done, Events::READABLE),
            Text::NoRoom => (Verdict::NoRoom, Events::default()),
            Text::Unread => (Verdict::Reset, Events::default()),
        }
    }
}
