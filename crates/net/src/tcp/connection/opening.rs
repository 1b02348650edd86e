//! Opening a connection (RFC 9293 §3.5, §3.10.7.3), with Fast Open (RFC 7413) and SYN cookies (RFC
//! 4987 §3.6). `Handshake` decides; here its decisions reach sender and receiver.

use super::{Connection, ConnectionError, Events, Segment, State, Turn};
use crate::tcp::handshake::{Handshake, Reply, SYN_AGAIN};
use crate::tcp::segment::Verdict;
use crate::tcp::sender::SegmentSizes;
use crate::tcp::settings::Settings;
use crate::tcp::syncookie;
use crate::time::Instant;
use crate::wire::tcp::{FastOpenCookie, Flags};
use core::net::SocketAddr;
use towpath_packet::Packet;

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
        let handshake = Handshake::active(settings, now);
        let mut connection = Self::new(opening, (State::SynSent, handshake), settings, now);
        connection.receive.begin(settings.window_scaling, connection.send.mss());
        connection
    }

    /// Takes a SYN and holds the answer until [`Connection::accept`].
    pub fn incoming(opening: Opening, syn: &Segment, settings: &Settings, now: Instant) -> Self {
        let mut connection = Self::passive(Handshake::held(now), opening, syn, settings, now);
        connection.note(Events::INCOMING);
        connection
    }

    /// Takes a SYN for a listener and answers it. The owner gets [`Events::INCOMING`] only when the
    /// peer acknowledges the answer.
    pub fn requested(opening: Opening, syn: &Segment, settings: &Settings, now: Instant) -> Self {
        Self::passive(Handshake::request(now), opening, syn, settings, now)
    }

    fn passive(
        handshake: Handshake,
        opening: Opening,
        syn: &Segment,
        settings: &Settings,
        now: Instant,
    ) -> Self {
        let mut connection = Self::new(opening, (State::SynReceived, handshake), settings, now);
        connection.take_syn(syn, now);
        connection.receive.ecn_mut().agree(Handshake::grants_ecn(syn, settings.ecn));
        connection
    }

    /// Takes a SYN with a valid Fast Open cookie for a listener and answers it (RFC 7413 §4.2.2).
    /// The data of the SYN is taken, and the owner gets [`Events::INCOMING`] at once.
    pub fn fast_opened(
        opening: Opening,
        syn: &Segment,
        payload: &mut Packet,
        settings: &Settings,
        now: Instant,
    ) -> Self {
        let mut connection = Self::requested(opening, syn, settings, now);
        connection.handshake.report();
        connection.handshake.fast_open_mut().accept();
        connection.note(Events::INCOMING | Events::WRITABLE);
        connection.receive.open(false, now);
        let taken = connection.take_syn_data(syn, payload);
        connection.counters.data_segs_in += u32::from(taken > 0);
        connection.handshake.fast_open_mut().take_data(taken);
        connection.send.open_early();
        connection.send.begin(false, turn!(connection, now));
        connection
    }

    /// The SYN-ACK that carries a cookie, as a connection that is dropped once it is sent. Its
    /// timestamp carries the other options.
    pub(crate) fn answering(
        opening: Opening,
        syn: &Segment,
        settings: &Settings,
        now: Instant,
    ) -> Self {
        let syn = syncookie::reduced(syn, settings);
        let mut answer = Self::requested(opening, &syn, settings, now);
        let agreed = answer.handshake.agreed();
        let ecn = answer.receive.ecn().enabled();
        let shift = syncookie::shift(agreed.scale, agreed.sack, ecn, now);
        answer.timestamps.set_offset(opening.timestamp_offset.wrapping_add(shift));
        answer
    }

    /// Rebuilds the request from the ACK of its SYN-ACK, which had a cookie. That ACK is not
    /// processed yet.
    pub(crate) fn remembered(
        opening: Opening,
        ack: &Segment,
        mss: u16,
        settings: &Settings,
        now: Instant,
    ) -> Self {
        let syn = syncookie::rebuilt(ack, mss, opening.timestamp_offset);
        let mut connection = Self::requested(opening, &syn, settings, now);
        connection.handshake.cancel_syn();
        connection.handshake.forget_time();
        connection.send.assume_syn_sent();
        connection.receive.promise_first();
        connection
    }

    /// Processes a segment in SYN-SENT.
    pub(super) fn input_syn_sent(
        &mut self,
        segment: &Segment,
        payload: &mut Packet,
        now: Instant,
    ) -> Verdict {
        let ours = (self.send.iss(), self.send.nxt());
        match self.handshake.on_segment(segment, ours, &self.timestamps, &self.settings, now) {
            Reply::Ignore => Verdict::Unacceptable,
            Reply::Wrong { again } => {
                if again {
                    self.send.arm_retransmit(now + SYN_AGAIN);
                }
                let reset = segment.has(Flags::RST);
                if reset { Verdict::Unacceptable } else { Verdict::Reset }
            }
            Reply::Refused => {
                self.finish(Some(ConnectionError::Refused));
                Verdict::Done
            }
            Reply::Answered => {
                self.take_syn(segment, now);
                self.input_answer(segment, payload, now);
                Verdict::Done
            }
            Reply::Simultaneous => {
                self.take_syn(segment, now);
                let ecn = Handshake::grants_ecn(segment, self.settings.ecn);
                self.receive.ecn_mut().agree(ecn);
                // Our SYN is sent again, with an ACK.
                self.state = State::SynReceived;
                self.handshake.owe_syn();
                Verdict::Done
            }
        }
    }

    /// Takes sequence number, window and options from the peer's SYN.
    fn take_syn(&mut self, syn: &Segment, now: Instant) {
        let answers = self.state == State::SynSent;
        let agreed = self.handshake.take_syn(syn, &self.settings);
        if let Some((value, _)) = syn.options.timestamps
            && self.settings.timestamps
        {
            self.timestamps.agree(value, now);
        }
        let stamps = self.timestamps.enabled();
        self.send.take_syn(syn, agreed.sack, agreed.scale, stamps);
        self.receive.take_syn(syn.seq(), now);
        self.receive.agree(agreed.sack, stamps);
        if agreed.scale.is_none() {
            self.receive.unscale(answers);
        }
        let mss = self.send.mss();
        if answers {
            self.receive.answered(mss);
        } else {
            self.receive.begin(agreed.scale.is_some(), mss);
        }
    }

    /// Takes the data of the peer's SYN, up to the window that was offered. Returns the number of
    /// bytes.
    fn take_syn_data(&mut self, syn: &Segment, payload: &mut Packet) -> u32 {
        let taken = self.receive.take_syn_data(syn.len, payload);
        if taken > 0 {
            self.note(Events::READABLE);
        }
        taken
    }

    /// Processes the peer's answer to our SYN.
    fn input_answer(&mut self, segment: &Segment, payload: &mut Packet, now: Instant) {
        let ecn = self.handshake.agrees_ecn(segment);
        self.receive.ecn_mut().agree(ecn);
        let again = self.handshake.was_resent();
        self.open(segment, now);
        let acked = self.send.on_ack_of_syn(segment.ack(), turn!(self, now));
        self.note(acked.events);
        let unacknowledged = !self.send.loss().board().is_empty();
        let mss = self.send.path().peer_option();
        let fast_open = self.handshake.fast_open_mut();
        let lost = fast_open.on_answer(segment, mss, again, unacknowledged);
        if fast_open.is_used() {
            if fast_open.had_data() {
                self.send.loss_mut().discount_syn();
            }
            self.take_syn_data(segment, payload);
            self.input_fin(segment, now);
        }
        if lost {
            // Retransmit the SYN's data at once; the ACK goes with it.
            self.send.resend_all(turn!(self, now));
            return;
        }
        // The ACK waits for data that is expected to follow, also after a FIN of the peer
        // (`fastopen/client/blocking-connect-bypass.pkt`).
        if self.handshake.delays_third_segment() || self.receive.peer_closed() {
            self.receive.delay_third_segment(now);
        } else {
            self.receive.acknowledge();
        }
    }

    /// Enters ESTABLISHED: the peer has acknowledged our SYN.
    pub(super) fn open(&mut self, segment: &Segment, now: Instant) {
        let closed = self.send.is_closed();
        self.state = if closed { State::FinWait1 } else { State::Established };
        let round_trip = self.handshake.round_trip(now);
        self.send.open(segment, round_trip, turn!(self, now));
        self.handshake.done();
        self.receive.established(now);
        let active = !self.handshake.is_passive();
        if active {
            self.send.count_syn();
        }
        if self.handshake.report() {
            self.note(Events::INCOMING);
        }
        if !self.handshake.fast_open().is_accepted() {
            self.send.begin(active, turn!(self, now));
            self.receive.open(active, now);
        }
        self.note(Events::ESTABLISHED | Events::WRITABLE);
    }

    /// Accounts for our SYN, sent with `len` bytes of data.
    pub(super) fn syn_sent(&mut self, len: u32, now: Instant) {
        let data = self.handshake.syn_sent(len, now).then_some(len);
        // The SYN-ACK of a simultaneous open does not count as a retransmission.
        let counts = self.handshake.is_passive() || self.state == State::SynSent;
        self.send.syn_sent(data, counts, now);
    }

    /// Handles a timeout of our SYN or SYN-ACK.
    pub(super) fn on_syn_timeout(&mut self, now: Instant) {
        let timeout = self.handshake.on_timeout(self.state, &self.settings, now);
        if timeout.expired {
            self.finish(Some(ConnectionError::TimedOut));
            return;
        }
        self.send.loss_mut().timeouts_mut().add(timeout.first, timeout.since);
        // The timer starts here too, in case no packet is free to send now.
        self.send.retry_syn(timeout.backs_off, now);
    }

    /// Adds this Fast Open cookie to the answer to the SYN.
    pub fn give_cookie(&mut self, cookie: FastOpenCookie) {
        self.handshake.fast_open_mut().give(cookie);
    }

    /// True while the peer has not acknowledged a listener's answer to its SYN. The owner does not
    /// know of the connection yet.
    pub fn is_request(&self) -> bool {
        self.handshake.is_request()
    }

    /// Releases the held answer: a SYN-ACK is sent.
    pub fn accept(&mut self) {
        self.handshake.accept();
    }

    /// Defers a request for `timeouts` timeouts of its SYN-ACK. On an active open, a value above
    /// zero delays the third segment of the handshake.
    pub fn defer_accept(&mut self, timeouts: u8) {
        self.handshake.defer(timeouts);
    }

    /// True if the segment would complete the handshake, but has no data and arrives before the
    /// deferral is over.
    pub(crate) fn defers(&self, segment: &Segment) -> bool {
        let expected = (self.send.iss() + 1, self.receive.irs() + 1);
        self.state == State::SynReceived && self.handshake.defers(segment, expected)
    }

    /// Notes that the peer acknowledged the SYN-ACK during the deferral.
    pub(crate) fn note_deferred(&mut self) {
        self.handshake.note_deferred();
    }

    /// Sets how often a SYN-ACK is retransmitted. A SYN is retransmitted for the time that as many
    /// doublings of the first timeout take (`TCP_SYNCNT`).
    pub fn set_syn_count(&mut self, retries: u8) {
        self.settings.syn_count = Some(retries);
    }

    /// Notes that the owner waits to write: the third segment of the handshake waits briefly for
    /// its data.
    pub fn set_write_pending(&mut self, pending: bool) {
        self.handshake.set_write_pending(pending);
    }

    /// Makes the first SYN ask for a cookie or carry one, and carry up to `room` bytes of the data
    /// that the owner queues before it is sent.
    pub fn set_fast_open(&mut self, option: Option<FastOpenCookie>, room: u32) {
        self.handshake.fast_open_mut().ask(option, room);
    }

    /// Bytes of data that the first SYN may carry.
    pub fn syn_room(&self) -> usize {
        self.handshake.fast_open().room() as usize
    }

    /// Makes this connection a test of whether Fast Open works again after a pause.
    pub(crate) fn retry_fast_open(&mut self) {
        self.handshake.fast_open_mut().retry();
    }

    /// True if data in the SYN was accepted; for the client, all of it.
    pub fn had_syn_data(&self) -> bool {
        self.handshake.fast_open().had_data()
    }
}
