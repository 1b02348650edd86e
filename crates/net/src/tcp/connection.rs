//! State of one connection and the calls of its owner.

use super::congestion::{self, Congestion};
use super::deferral::Deferral;
use super::ecn::Ecn;
use super::fastopen::FastOpen;
use super::info::Counters;
use super::path::{Path, SegmentSizes};
use super::recovery::Recovery;
use super::rtt::RttEstimator;
use super::seq::Seq;
use super::settings::Settings;
use super::sides::{AckOwed, Receiver, Sender, Timestamps};
use super::state::{ConnectionError, Events, State};
use super::timers::Timers;
use crate::time::Instant;
use crate::wire::tcp::{FastOpenCookie, Flags, Header, Options};
use alloc::sync::Arc;
use core::net::SocketAddr;
use towpath_packet::{Packet, Piece, Reader};

/// Segment size assumed when the peer names none (RFC 9293 §3.7.1), IPv4.
pub(super) const MSS_DEFAULT_V4: u32 = 536;
/// The same for IPv6: 1280 less 40 and 20.
pub(super) const MSS_DEFAULT_V6: u32 = 1220;
/// Least segment size that a peer can make us use, as Linux's tcp_min_snd_mss.
pub(super) const MSS_MIN: u32 = 48;
/// Bytes of the timestamps option with its padding.
pub(super) const TIMESTAMPS_LEN: u32 = 12;

/// A parsed segment; its payload comes as the pieces of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// The header.
    pub header: Header,
    /// Its options.
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

    /// The segment as if its sender had had no data and no FIN to send.
    pub(crate) fn without_data(mut self) -> Self {
        self.len = 0;
        self.header.flags.remove(Flags::FIN | Flags::PSH);
        self
    }

    /// Sequence numbers that the segment takes.
    pub(super) fn seq_len(&self) -> u32 {
        self.len + u32::from(self.has(Flags::SYN)) + u32::from(self.has(Flags::FIN))
    }

    /// Number after the last.
    pub(super) fn end(&self) -> Seq {
        self.seq() + self.seq_len()
    }
}

/// One connection.
pub struct Connection {
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) state: State,
    /// A SYN came and the owner has not said yet what to answer.
    pub(super) answer_held: bool,
    pub(super) passive: bool,
    /// A listener's answer to a SYN: its owner learns of it when the peer has acknowledged.
    pub(super) request: bool,
    pub(super) deferral: Deferral,
    pub(super) fast_open: FastOpen,
    pub(super) ecn: Ecn,
    /// ECN codepoint of the packet built last.
    pub(super) codepoint: u8,
    /// All but those two bits of the IP header's octet (RFC 2474).
    pub(super) traffic_class: u8,
    pub(super) ttl: Option<u8>,
    pub(super) path: Path,
    /// When it began.
    pub(super) opened_at: Instant,
    /// Largest segment that the peer's SYN named; 0 if none.
    pub(super) peer_mss: u16,
    /// The owner will write once the connection is open.
    pub(super) write_pending: bool,
    pub(super) owned: bool,
    /// Nobody has accepted it yet: it waits in a listener's queue.
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
    /// Of them loss probes.
    pub(super) tail_probes: u64,
}

/// How a connection begins.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// Our address and port.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
    /// Initial send sequence number (RFC 6528).
    pub iss: u32,
    /// Offset of our timestamps.
    pub timestamp_offset: u32,
    /// How large segments may be.
    pub sizes: SegmentSizes,
}

impl Connection {
    /// Begins to connect.
    pub fn connect(opening: Opening, settings: &Settings, now: Instant) -> Self {
        let mut connection = Self::new(opening, settings, now);
        connection.state = State::SynSent;
        connection.begin_receiving();
        connection.send.syn_due = true;
        connection
    }

    /// Takes a SYN. Nothing is answered before [`Connection::accept`].
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

    /// Takes and answers a SYN for a listener. The owner is told with [`Events::INCOMING`] when the
    /// peer acknowledges the answer, not before.
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

    /// As [`Connection::requested`], for a SYN with a valid Fast Open cookie: its data is taken,
    /// and the owner is told at once.
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
        // The window that the SYN offers counts from what follows ours, as on Linux.
        connection.send.una = connection.send.iss + 1;
        connection.send.nxt = connection.send.una;
        connection.begin_sending(now);
        connection
    }

    /// Answers a SYN with this Fast Open cookie.
    pub fn give_cookie(&mut self, cookie: FastOpenCookie) {
        self.fast_open.given = Some(cookie);
    }

    /// True while the peer of a listener has not acknowledged the answer to its SYN, and nobody has
    /// been told of the connection.
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

    /// Segment size while the peer has named none.
    pub(super) fn mss_default(&self) -> u32 {
        mss_default(self.remote)
    }

    /// Answers the peer's SYN with ours.
    pub fn accept(&mut self) {
        if self.answer_held {
            self.answer_held = false;
            self.send.syn_due = true;
        }
    }

    /// State.
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

    /// Why the connection ended, if not by both sides closing it.
    pub fn error(&self) -> Option<ConnectionError> {
        self.error
    }

    /// The peer's initial sequence number.
    pub fn irs(&self) -> u32 {
        self.receive.irs.0
    }

    /// Segments sent again.
    pub fn retransmitted(&self) -> u64 {
        self.retransmitted
    }

    /// Of them loss probes: nothing was heard of the tail (RFC 8985 §7.3).
    pub fn tail_probes(&self) -> u64 {
        self.tail_probes
    }

    /// Takes the events since the last call.
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

    /// Small segments are sent without waiting for ACKs (Nagle's algorithm off).
    pub fn set_nodelay(&mut self, nodelay: bool) {
        self.send.nodelay = nodelay;
        self.send.more_follows = false;
        // What waits for an ACK or a cork waits no longer.
        self.send.push_now |= nodelay;
    }

    /// Holds segments that are not full (`TCP_CORK`), or lets them go.
    pub fn set_cork(&mut self, cork: bool) {
        self.send.cork = cork;
        self.send.more_follows = false;
        self.send.push_now |= !cork && self.send.nodelay;
    }

    /// Goes on with another congestion control (`TCP_CONGESTION`).
    pub fn set_congestion(&mut self, kind: congestion::Kind, now: Instant) {
        self.congestion.set_kind(kind, self.send.nxt, now);
    }

    /// The congestion control in use.
    pub fn congestion(&self) -> congestion::Kind {
        self.congestion.kind()
    }

    /// Ends our direction: a FIN follows what was given.
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

    /// True if the peer has closed its direction and everything before that is in `received`.
    pub fn peer_closed(&self) -> bool {
        self.receive.fin
    }

    /// The first `count` received bytes have been used: their pieces are dropped.
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

    /// Pieces of what is received are handed to `reader`: as long as he keeps them they take room
    /// of the receive buffer.
    pub fn set_reader(&mut self, reader: &Arc<Reader>) {
        let known = self.receive.reader.as_ref().is_some_and(|known| Arc::ptr_eq(known, reader));
        if !known {
            self.receive.reader = Some(reader.clone());
        }
    }

    /// Memory that received data may keep from its lenders, read or not.
    pub fn receive_memory_max(&self) -> usize {
        self.receive.memory_max()
    }

    /// The reader gave something back: tell the peer if that changes its window much.
    pub fn reader_gave_back(&mut self) {
        self.offer_window();
    }

    /// Ends the connection at once with a reset.
    pub fn abort(&mut self) {
        if self.state == State::Closed || self.state == State::TimeWait {
            return;
        }
        let answered = !(self.answer_held || self.state == State::SynSent);
        // Without the third segment a listener's side would never hear of the connection.
        let third_due = self.receive.ack_owed == AckOwed::Now
            && !self.passive
            && self.receive.nxt == self.receive.irs + 1;
        self.finish(Some(ConnectionError::Aborted));
        self.reset_due = answered;
        if third_due && answered {
            self.receive.ack_owed = AckOwed::Now;
        }
    }

    /// Ends a half-open connection to make room for another: without a word, as its peer may
    /// never have asked for it.
    pub fn give_up(&mut self) {
        self.finish(Some(ConnectionError::TimedOut));
    }

    /// True if nothing is left to do and nobody owns the connection.
    pub fn is_over(&self) -> bool {
        !self.owned
            && !self.reset_due
            && match self.state {
                State::Closed => true,
                State::TimeWait => self.receive.ack_owed == AckOwed::No,
                _ => false,
            }
    }

    /// Enters CLOSED and drops what was queued for the peer; received data stays readable.
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
        // How often it was probed in vain stays to be seen.
        self.timers = Timers { probes: self.timers.probes, ..Timers::default() };
        self.note(Events::CLOSED);
    }
}

fn mss_default(remote: SocketAddr) -> u32 {
    if remote.is_ipv4() { MSS_DEFAULT_V4 } else { MSS_DEFAULT_V6 }
}
