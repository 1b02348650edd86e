//! The receiving side of a connection: it turns segments into the bytes of the stream, and says
//! what is acknowledged when, and how large the window is.
//!
//! `text` takes the text and the FIN of segments, `reply` says what our segments acknowledge and
//! offer, `sack` what they report of data that arrived out of order or twice, `urgent` has the
//! urgent mark, `owner` the calls of the owner. Objects of their own are the ACK policy (`acks`),
//! the receive window (`window`), and the buffer behind it (`tuning`).

mod acks;
mod info;
mod owner;
mod reply;
mod sack;
mod text;
mod tuning;
mod urgent;
mod window;

use super::ecn::Echo;
use super::queue::PieceQueue;
use super::reassembly::Reassembly;
use super::rtt::RttEstimator;
use super::segment::{Segment, TIMESTAMPS_LEN, Verdict};
use super::seq::Seq;
use super::settings::Settings;
use super::state::Events;
use crate::time::Instant;
use crate::wire::tcp::Flags;
pub(super) use acks::AckOwed;
use acks::AckPolicy;
use alloc::sync::Arc;
use text::{SIZE_MIN, SIZE_MIN_PUSHED};
use towpath_packet::{Packet, Reader};
use urgent::Urgent;
use window::ReceiveWindow;

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
    /// The owner is gone.
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
    /// The data, or a part of it, was dropped: no memory, or no room for more out-of-order data.
    /// True if it has the urgent byte.
    NoRoom(bool),
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

    fn options_len(&self) -> u32 {
        if self.timestamps { TIMESTAMPS_LEN } else { 0 }
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

    pub(super) fn peer_closed(&self) -> bool {
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
            Text::NoRoom(false) => (Verdict::NoRoom, Events::default()),
            Text::NoRoom(true) => (Verdict::NoRoom, Events::READABLE),
            Text::Unread => (Verdict::Reset, Events::default()),
        }
    }
}
