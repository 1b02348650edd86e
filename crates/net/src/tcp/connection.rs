//! State of one connection and the calls of its owner.

use super::congestion::NewReno;
use super::rtt::RttEstimator;
use super::seq::Seq;
use super::sides::{AckOwed, Receiver, Sender, Timestamps};
use super::state::{ConnectionError, Events, State};
use super::timers::Timers;
use crate::time::{Duration, Instant};
use crate::wire::tcp::{Flags, Header, Options};
use core::net::SocketAddr;
use towpath_packet::Piece;

/// Segment size assumed when the peer names none (RFC 9293 §3.7.1), IPv4.
pub(super) const MSS_DEFAULT_V4: u32 = 536;
/// The same for IPv6: 1280 less 40 and 20.
pub(super) const MSS_DEFAULT_V6: u32 = 1220;
/// Least segment size that a peer can make us use, as Linux's tcp_min_snd_mss.
pub(super) const MSS_MIN: u32 = 48;
/// Bytes of the timestamps option with its padding.
pub(super) const TIMESTAMPS_LEN: u32 = 12;

/// What one stack's connections have in common.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Receive buffer of a new connection, in bytes of payload.
    pub receive_buffer: u32,
    /// Most that auto-tuning makes of it.
    pub receive_buffer_max: u32,
    /// Send buffer of a new connection.
    pub send_buffer: u32,
    /// Most that auto-tuning makes of it.
    pub send_buffer_max: u32,
    /// Longest an ACK may wait (RFC 9293 §3.8.6.3; Linux's value).
    pub delayed_ack: Duration,
    /// How often a SYN is sent again.
    pub syn_retries: u8,
    /// How often data is sent again before the connection fails (Linux's tcp_retries2).
    pub retries: u8,
    /// How long a closed connection nobody owns may wait for the peer's FIN.
    pub fin_wait: Duration,
    /// Idle time before the first keepalive probe.
    pub keepalive_idle: Duration,
    /// Time between keepalive probes.
    pub keepalive_interval: Duration,
    /// Probes without an answer before the connection fails.
    pub keepalive_probes: u8,
    /// Offer and take window scaling (RFC 7323 §2).
    pub window_scaling: bool,
    /// Offer and take timestamps (RFC 7323 §3).
    pub timestamps: bool,
    /// Offer and take selective acknowledgments (RFC 2018).
    pub sack: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            receive_buffer: 256 << 10,
            receive_buffer_max: 4 << 20,
            send_buffer: 256 << 10,
            send_buffer_max: 4 << 20,
            delayed_ack: Duration::from_millis(40),
            syn_retries: 6,
            retries: 15,
            fin_wait: Duration::from_secs(60),
            keepalive_idle: Duration::from_secs(7200),
            keepalive_interval: Duration::from_secs(75),
            keepalive_probes: 9,
            window_scaling: true,
            timestamps: true,
            sack: true,
        }
    }
}

impl Settings {
    /// Window scale that lets the largest receive buffer be advertised.
    pub(super) fn window_scale(&self) -> u8 {
        let mut scale = 0;
        while self.window_scaling && scale < 14 && self.receive_buffer_max >> scale > 65_535 {
            scale += 1;
        }
        scale
    }
}

/// A parsed segment; its payload comes as the pieces of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// The header.
    pub header: Header,
    /// Its options.
    pub options: Options,
    /// Bytes of payload.
    pub len: u32,
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
    pub(super) owned: bool,
    pub(super) reset_due: bool,
    pub(super) error: Option<ConnectionError>,
    pub(super) events: Events,
    /// Both sides understand SACK.
    pub(super) sack: bool,
    /// Both sides scale their windows.
    pub(super) scaled: bool,
    pub(super) mss_local: u32,
    pub(super) send: Sender,
    pub(super) receive: Receiver,
    pub(super) timestamps: Timestamps,
    pub(super) rtt: RttEstimator,
    pub(super) congestion: NewReno,
    pub(super) timers: Timers,
    pub(super) settings: Settings,
    pub(super) retransmitted: u64,
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
    /// Largest segment that we can receive.
    pub mss: u32,
}

impl Connection {
    /// Begins to connect.
    pub fn connect(opening: Opening, settings: &Settings, now: Instant) -> Self {
        let mut connection = Self::new(opening, settings, now);
        connection.state = State::SynSent;
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
        connection.note(Events::INCOMING);
        connection
    }

    fn new(opening: Opening, settings: &Settings, now: Instant) -> Self {
        let iss = Seq(opening.iss);
        let mss_default = if opening.remote.is_ipv4() { MSS_DEFAULT_V4 } else { MSS_DEFAULT_V6 };
        let mss = mss_default.min(opening.mss);
        Self {
            local: opening.local,
            remote: opening.remote,
            state: State::Closed,
            answer_held: false,
            passive: false,
            owned: true,
            reset_due: false,
            error: None,
            events: Events::default(),
            sack: false,
            scaled: false,
            mss_local: opening.mss,
            send: Sender::new(iss, mss, now),
            receive: Receiver::new(settings, mss, now),
            timestamps: Timestamps {
                enabled: false,
                offset: opening.timestamp_offset,
                recent: 0,
                recent_at: now,
            },
            rtt: RttEstimator::default(),
            congestion: NewReno::new(mss),
            timers: Timers::default(),
            settings: *settings,
            retransmitted: 0,
        }
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
    }

    /// Probes an idle peer.
    pub fn set_keepalive(&mut self, on: bool, now: Instant) {
        self.timers.keepalive = on.then(|| now + self.settings.keepalive_idle);
    }

    /// Bytes that the send queue takes now.
    pub fn send_room(&mut self) -> usize {
        if self.send.fin_queued || !(self.state.can_send() || self.state.is_opening()) {
            return 0;
        }
        let target = self.congestion.window().saturating_mul(2);
        let limit = target.clamp(self.settings.send_buffer, self.settings.send_buffer_max) as usize;
        let used = self.send.queue.len().max(self.send.queue.held() / 2);
        let room = limit.saturating_sub(used);
        self.send.was_full = room < limit / 4;
        if self.send.was_full { 0 } else { room }
    }

    /// Lends `piece` to be sent. The owner keeps to [`Connection::send_room`]; what it gives
    /// beyond is taken all the same, as a read from a socket cannot be undone. After
    /// [`Connection::close_send`] or the end of the connection the piece is dropped.
    pub fn send(&mut self, piece: Piece) {
        if !self.send.fin_queued && (self.state.can_send() || self.state.is_opening()) {
            self.send.queue.push(piece);
        }
    }

    /// Bytes given to [`Connection::send`] and not yet acknowledged.
    pub fn unacknowledged(&self) -> usize {
        self.send.queue.len()
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
    pub fn received(&self) -> impl Iterator<Item = &Piece> {
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
        self.receive.queue.advance(count);
        if self.receive.queue.is_empty() && self.receive.pressed {
            // The sender uses the whole window and the reader keeps up: the window is the limit.
            self.receive.pressed = false;
            let grown = self.receive.buffer.saturating_mul(2);
            self.receive.buffer = grown.min(self.settings.receive_buffer_max);
        }
        self.offer_window();
    }

    /// Ends the connection at once with a reset.
    pub fn abort(&mut self) {
        if self.state == State::Closed || self.state == State::TimeWait {
            return;
        }
        let answered = !(self.answer_held || self.state == State::SynSent);
        self.finish(Some(ConnectionError::Aborted));
        self.reset_due = answered;
    }

    /// Ends a half-open connection to make room for another: without a word, as its peer may
    /// never have asked for it.
    pub fn give_up(&mut self) {
        self.finish(Some(ConnectionError::TimedOut));
    }

    /// The owner is gone: the connection ends by itself. Unread data means a reset
    /// (RFC 2525 §2.17), an open direction is closed.
    pub fn disown(&mut self, now: Instant) {
        self.owned = false;
        if self.state == State::Closed || self.state == State::TimeWait {
            return;
        }
        if self.receive.queue.is_empty() && !self.state.is_opening() {
            self.close_send();
            if self.state == State::FinWait2 {
                self.timers.fin_wait = Some(now + self.settings.fin_wait);
            }
        } else {
            self.abort();
        }
    }

    /// True until [`Connection::disown`].
    pub fn is_owned(&self) -> bool {
        self.owned
    }

    /// `snd_nxt`, `rcv_nxt`, and the peer's latest timestamp with ours if there are any: what is
    /// remembered in TIME-WAIT.
    pub(crate) fn last_numbers(&self, now: Instant) -> (Seq, Seq, Option<(u32, u32)>) {
        let timestamps =
            self.timestamps.enabled.then(|| (self.timestamps.recent, self.timestamps.value(now)));
        (self.send.nxt, self.receive.nxt, timestamps)
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

    /// An ICMP error that quotes `sequence` says that the peer cannot be reached. Ends an opening
    /// connection; an open one goes on trying (RFC 1122 §4.2.3.9, RFC 5461).
    pub fn unreachable(&mut self, sequence: Seq) {
        if self.was_sent(sequence) && self.state == State::SynSent {
            self.finish(Some(ConnectionError::Unreachable));
        }
    }

    /// An ICMP error that quotes `sequence` says that the path takes segments of `mss` bytes with
    /// options at most (RFC 1191, RFC 8201). What is outstanding is sent again.
    pub fn too_big(&mut self, sequence: Seq, mss: u32) {
        if !self.was_sent(sequence) || self.state.is_opening() {
            return;
        }
        let before = self.send.mss;
        self.limit_mss(mss);
        if self.send.mss < before {
            self.send.board.lose_all();
        }
    }

    /// The device takes segments of `mss` bytes with options at most, from now on.
    pub fn limit_mss(&mut self, mss: u32) {
        self.mss_local = self.mss_local.min(mss.max(MSS_MIN));
        let options = if self.timestamps.enabled { TIMESTAMPS_LEN } else { 0 };
        let limited = mss.saturating_sub(options).max(MSS_MIN);
        if limited < self.send.mss {
            self.send.mss = limited;
            self.congestion.set_mss(limited);
        }
    }

    /// RFC 5927 §4: an error that quotes what is not outstanding is forged or late.
    fn was_sent(&self, sequence: Seq) -> bool {
        sequence.at_or_after(self.send.una) && sequence.before(self.send.nxt)
    }

    /// Enters CLOSED and drops what was queued for the peer; received data stays readable.
    pub(super) fn finish(&mut self, error: Option<ConnectionError>) {
        self.state = State::Closed;
        self.error = self.error.or(error);
        self.answer_held = false;
        self.send.syn_due = false;
        self.send.queue.clear();
        self.send.board.clear();
        self.receive.waiting.clear();
        self.receive.ack_owed = AckOwed::No;
        self.receive.update_due = false;
        self.timers = Timers::default();
        self.note(Events::CLOSED);
    }
}
