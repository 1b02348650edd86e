//! State of one connection and the calls of its owner.

use super::congestion::{self, Congestion};
use super::defer_accept::Deferral;
use super::ecn::Ecn;
use super::fastopen::FastOpen;
use super::info::Counters;
use super::path::{Path, SegmentSizes};
use super::receiver::{AckOwed, Receiver};
use super::recovery::Recovery;
use super::rtt::RttEstimator;
use super::sender::Sender;
use super::seq::Seq;
use super::settings::Settings;
use super::state::{ConnectionError, Events, State};
use super::timers::Timers;
use super::timestamps::Timestamps;
use crate::time::Instant;
use crate::wire::tcp::{FastOpenCookie, Flags, Header, Options};
use alloc::sync::Arc;
use core::net::SocketAddr;
use towpath_packet::{Packet, Piece, Reader};

/// IPv4 segment size assumed if the peer sends no MSS option (RFC 9293 §3.7.1).
pub(super) const MSS_DEFAULT_V4: u32 = 536;
/// IPv6 segment size assumed if the peer sends no MSS option: 1280 bytes less 40 (IPv6 header) and
/// 20 (TCP header).
pub(super) const MSS_DEFAULT_V6: u32 = 1220;
/// Smallest segment size that a peer can impose: Linux's default of `net.ipv4.tcp_min_snd_mss`.
pub(super) const MSS_MIN: u32 = 48;
/// Bytes of the timestamps option with its padding.
pub(super) const TIMESTAMPS_LEN: u32 = 12;

/// A parsed segment. Its payload is passed separately, as the pieces of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// The header.
    pub header: Header,
    /// Options of the header.
    pub options: Options,
    /// Bytes of payload.
    pub len: u32,
    /// ECN codepoint of the IP header ([`super::ecn::codepoint`]).
    pub ecn: u8,
}

impl Segment {
    pub(super) fn seq(&self) -> Seq {
        Seq(self.header.sequence)
    }

    pub(super) fn ack(&self) -> Seq {
        Seq(self.header.acknowledgment)
    }

    pub(super) fn has(&self, flags: Flags) -> bool {
        self.header.flags.intersects(flags)
    }

    /// Returns the segment without its data and FIN.
    pub(crate) fn without_data(mut self) -> Self {
        self.len = 0;
        self.header.flags.remove(Flags::FIN | Flags::PSH);
        self
    }

    /// Sequence numbers that the segment occupies.
    pub(super) fn seq_len(&self) -> u32 {
        self.len + u32::from(self.has(Flags::SYN)) + u32::from(self.has(Flags::FIN))
    }

    /// Sequence number after the last one of the segment.
    pub(super) fn end(&self) -> Seq {
        self.seq() + self.seq_len()
    }
}

/// One connection.
pub struct Connection {
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) state: State,
    /// A SYN arrived, and the owner has not decided yet how to answer it.
    pub(super) answer_held: bool,
    pub(super) passive: bool,
    /// The stack answered a SYN for a listener. The owner learns of the connection when the peer
    /// acknowledges the answer.
    pub(super) request: bool,
    pub(super) deferral: Deferral,
    pub(super) fast_open: FastOpen,
    pub(super) ecn: Ecn,
    /// ECN codepoint of the packet built last.
    pub(super) codepoint: u8,
    /// Upper six bits of the TOS or traffic-class octet: the DSCP (RFC 2474).
    pub(super) traffic_class: u8,
    pub(super) ttl: Option<u8>,
    pub(super) path: Path,
    /// When the connection was created.
    pub(super) opened_at: Instant,
    /// MSS option of the peer's SYN; 0 if it had none.
    pub(super) peer_mss: u16,
    /// The owner will write once the connection is open.
    pub(super) write_pending: bool,
    pub(super) owned: bool,
    /// The connection waits in a listener's queue and is not accepted yet.
    pub(crate) is_queued: bool,
    pub(super) reset_due: bool,
    pub(super) error: Option<ConnectionError>,
    pub(super) events: Events,
    /// Both sides understand SACK.
    pub(super) sack: bool,
    /// Both sides scale their windows.
    pub(super) scaled: bool,
    pub(super) send: Sender,
    pub(super) receive: Receiver,
    pub(super) timestamps: Timestamps,
    pub(super) rtt: RttEstimator,
    pub(super) congestion: Congestion,
    pub(super) recovery: Recovery,
    pub(super) timers: Timers,
    pub(super) settings: Settings,
    pub(super) counters: Counters,
    pub(super) retransmitted: u64,
    /// Tail loss probes; `retransmitted` counts them too.
    pub(super) tail_probes: u64,
}

/// Parameters of a new connection.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// Our address and port.
    pub local: SocketAddr,
    /// The peer's address and port.
    pub remote: SocketAddr,
    /// Initial send sequence number (RFC 6528).
    pub iss: u32,
    /// Offset of our timestamps.
    pub timestamp_offset: u32,
    /// How large segments may be.
    pub sizes: SegmentSizes,
}

impl Connection {
    /// Creates a connection that sends a SYN.
    pub fn connect(opening: Opening, settings: &Settings, now: Instant) -> Self {
        let mut connection = Self::new(opening, settings, now);
        connection.state = State::SynSent;
        connection.begin_receiving();
        connection.send.syn_due = true;
        connection
    }

    /// Takes a SYN and holds the answer until [`Connection::accept`].
    pub fn incoming(opening: Opening, syn: &Segment, settings: &Settings, now: Instant) -> Self {
        let mut connection = Self::new(opening, settings, now);
        connection.state = State::SynReceived;
        connection.passive = true;
        connection.answer_held = true;
        connection.take_syn(syn, now);
        connection.ecn.take_syn(syn, settings.ecn);
        connection.note(Events::INCOMING);
        connection
    }

    /// Takes a SYN for a listener and answers it. The owner gets [`Events::INCOMING`] only when the
    /// peer acknowledges the answer.
    pub fn requested(opening: Opening, syn: &Segment, settings: &Settings, now: Instant) -> Self {
        let mut connection = Self::new(opening, settings, now);
        connection.state = State::SynReceived;
        connection.passive = true;
        connection.request = true;
        connection.take_syn(syn, now);
        connection.ecn.take_syn(syn, settings.ecn);
        connection.send.syn_due = true;
        connection
    }

    /// Takes a SYN with a valid Fast Open cookie for a listener and answers it (RFC 7413). The data
    /// of the SYN is taken, and the owner gets [`Events::INCOMING`] at once.
    pub fn fast_opened(
        opening: Opening,
        syn: &Segment,
        payload: &mut Packet,
        settings: &Settings,
        now: Instant,
    ) -> Self {
        let mut connection = Self::requested(opening, syn, settings, now);
        connection.request = false;
        connection.fast_open.accepted = true;
        connection.note(Events::INCOMING | Events::WRITABLE);
        connection.open_buffer(now);
        connection.take_syn_data(syn, payload);
        // As on Linux, the window in the peer's SYN counts from the number after our SYN.
        connection.send.una = connection.send.iss + 1;
        connection.send.nxt = connection.send.una;
        connection.begin_sending(now);
        connection
    }

    /// Adds this Fast Open cookie to the answer to the SYN.
    pub fn give_cookie(&mut self, cookie: FastOpenCookie) {
        self.fast_open.given = Some(cookie);
    }

    /// True while the peer has not acknowledged a listener's answer to its SYN. The owner does not
    /// know of the connection yet.
    pub fn is_request(&self) -> bool {
        self.request
    }

    fn new(opening: Opening, settings: &Settings, now: Instant) -> Self {
        let iss = Seq(opening.iss);
        let sizes = &opening.sizes;
        let mss = mss_default(opening.remote).min(sizes.path).min(sizes.owner);
        Self {
            local: opening.local,
            remote: opening.remote,
            state: State::Closed,
            answer_held: false,
            passive: false,
            request: false,
            deferral: Deferral::default(),
            fast_open: FastOpen::default(),
            ecn: Ecn { asked: settings.ecn == 1, ..Ecn::default() },
            codepoint: 0,
            traffic_class: 0,
            ttl: None,
            path: Path::new(opening.sizes, settings.path_mtu_of(opening.remote), now),
            opened_at: now,
            peer_mss: 0,
            write_pending: false,
            owned: true,
            is_queued: false,
            reset_due: false,
            error: None,
            events: Events::default(),
            sack: false,
            scaled: false,
            send: Sender::new(settings, iss, mss, now),
            receive: Receiver::new(settings, mss, now),
            timestamps: Timestamps {
                enabled: false,
                offset: opening.timestamp_offset,
                recent: 0,
                recent_at: now,
            },
            rtt: RttEstimator::new(settings.rto_min),
            congestion: Congestion::new(settings.congestion, settings.initial_window, iss, now),
            recovery: Recovery::new(iss, settings.reordering),
            timers: Timers::default(),
            settings: *settings,
            counters: Counters::new(now),
            retransmitted: 0,
            tail_probes: 0,
        }
    }

    /// Segment size to assume while the peer has sent no MSS option.
    pub(super) fn mss_default(&self) -> u32 {
        mss_default(self.remote)
    }

    /// Releases the held answer: a SYN-ACK is sent.
    pub fn accept(&mut self) {
        if self.answer_held {
            self.answer_held = false;
            self.send.syn_due = true;
        }
    }

    /// State of the connection.
    pub fn state(&self) -> State {
        self.state
    }

    /// Our address and port.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// The peer's address and port.
    pub fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// Error that ended the connection; `None` if both sides closed it.
    pub fn error(&self) -> Option<ConnectionError> {
        self.error
    }

    /// The peer's initial sequence number.
    pub fn irs(&self) -> u32 {
        self.receive.irs.0
    }

    /// Packets retransmitted; a super-packet counts as one.
    pub fn retransmitted(&self) -> u64 {
        self.retransmitted
    }

    /// Retransmitted packets that were tail loss probes (RFC 8985 §7.3).
    pub fn tail_probes(&self) -> u64 {
        self.tail_probes
    }

    /// Returns the events since the last call and clears them.
    pub fn take_events(&mut self) -> Events {
        core::mem::take(&mut self.events)
    }

    /// True if there are events to take.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    pub(super) fn note(&mut self, events: Events) {
        self.events |= events;
    }

    /// Switches Nagle's algorithm off or on (`TCP_NODELAY`). Without it small segments do not wait
    /// for ACKs.
    pub fn set_nodelay(&mut self, nodelay: bool) {
        self.send.nodelay = nodelay;
        self.send.more_follows = false;
        // Data that waits for an ACK or a cork goes out now.
        self.send.push_now |= nodelay;
    }

    /// Holds back segments that are not full (`TCP_CORK`), or releases them.
    pub fn set_cork(&mut self, cork: bool) {
        self.send.cork = cork;
        self.send.more_follows = false;
        self.send.push_now |= !cork && self.send.nodelay;
    }

    /// Switches to another congestion control (`TCP_CONGESTION`).
    pub fn set_congestion(&mut self, kind: congestion::Kind, now: Instant) {
        self.congestion.set_kind(kind, self.send.nxt, now);
        if self.congestion.paces() {
            self.update_pacing_rate();
        }
    }

    /// The congestion control in use.
    pub fn congestion(&self) -> congestion::Kind {
        self.congestion.kind()
    }

    /// Closes the sending direction: a FIN follows the queued data.
    pub fn close_send(&mut self) {
        if self.send.fin_queued {
            return;
        }
        self.send.fin_queued = true;
        self.state = match self.state {
            State::Established => State::FinWait1,
            State::CloseWait => State::LastAck,
            State::SynSent => {
                self.finish(None);
                return;
            }
            other => other,
        };
    }

    /// Received bytes in order, as pieces.
    pub fn received(&self) -> impl Iterator<Item = &Piece> + Clone {
        self.receive.queue.iter()
    }

    /// Number of received bytes in order.
    pub fn received_len(&self) -> usize {
        self.receive.queue.len()
    }

    /// True if the peer has sent its FIN and all data before it has arrived.
    pub fn peer_closed(&self) -> bool {
        self.receive.fin
    }

    /// Drops the first `count` received bytes, which the owner has used.
    pub fn consume(&mut self, count: usize) {
        self.receive.tuning.charge.consume(count, self.receive.queue.len());
        self.receive.queue.advance(count);
        self.forget_urgent();
        if self.receive.acks_taken_only && self.receive.acked.before(self.receive.ack_point()) {
            self.receive.ack_owed = AckOwed::Now;
        }
        self.follow_reader();
        self.read_some();
        self.offer_window();
    }

    /// Sets the reader that received pieces are handed to. Pieces that it keeps occupy the receive
    /// buffer.
    pub fn set_reader(&mut self, reader: &Arc<Reader>) {
        let known = self.receive.reader.as_ref().is_some_and(|known| Arc::ptr_eq(known, reader));
        if !known {
            self.receive.reader = Some(reader.clone());
        }
    }

    /// Most memory that received data may keep from its lenders, read or not.
    pub fn receive_memory_max(&self) -> usize {
        self.receive.memory_max()
    }

    /// Notes that the reader gave memory back. Sends a window update if the window grows enough.
    pub fn reader_gave_back(&mut self) {
        self.offer_window();
    }

    /// Aborts the connection with a reset.
    pub fn abort(&mut self) {
        if self.state == State::Closed || self.state == State::TimeWait {
            return;
        }
        let answered = !(self.answer_held || self.state == State::SynSent);
        // Send the handshake's last ACK before the reset: without it a listening peer never learns
        // of the connection.
        let third_due = self.receive.ack_owed == AckOwed::Now
            && !self.passive
            && self.receive.nxt == self.receive.irs + 1;
        self.finish(Some(ConnectionError::Aborted));
        self.reset_due = answered;
        if third_due && answered {
            self.receive.ack_owed = AckOwed::Now;
        }
    }

    /// Ends a half-open connection to make room for another. It sends no reset, as the SYN may be
    /// spoofed.
    pub fn give_up(&mut self) {
        self.finish(Some(ConnectionError::TimedOut));
    }

    /// True if nothing is left to send and the connection has no owner.
    pub fn is_over(&self) -> bool {
        !self.owned
            && !self.reset_due
            && match self.state {
                State::Closed => true,
                State::TimeWait => self.receive.ack_owed == AckOwed::No,
                _ => false,
            }
    }

    /// Enters CLOSED and drops the data queued for the peer. Received data stays readable.
    pub(super) fn finish(&mut self, error: Option<ConnectionError>) {
        self.fast_open_ends();
        self.state = State::Closed;
        self.error = self.error.or(error);
        self.answer_held = false;
        self.send.syn_due = false;
        self.send.queue.clear();
        self.send.writes.clear();
        self.send.stamps.clear_marks();
        self.send.board.clear();
        self.receive.waiting.clear();
        self.receive.ack_owed = AckOwed::No;
        self.receive.update_due = false;
        // The number of unanswered probes stays visible in `TCP_INFO`.
        self.timers = Timers { probes: self.timers.probes, ..Timers::default() };
        self.note(Events::CLOSED);
    }
}

fn mss_default(remote: SocketAddr) -> u32 {
    if remote.is_ipv4() { MSS_DEFAULT_V4 } else { MSS_DEFAULT_V6 }
}
