//! The handshake (RFC 9293 §3.5): SYNs sent and received, negotiated options, retransmissions, and
//! the data that Fast Open (RFC 7413) sends with a SYN.

use super::connection::{Connection, Segment};
use super::fastopen::{ClientSyn, FAIL_NOT_TAKEN, FAIL_SYN_LOST};
use super::input::Verdict;
use super::receiver::AckOwed;
use super::rtt::RTO_INITIAL;
use super::scoreboard::Sending;
use super::seq::Seq;
use super::state::{ConnectionError, Events, State};
use crate::time::{Duration, Instant};
use crate::wire::tcp::{Flags, OPTIONS_LEN_MAX, Options};
use towpath_packet::Packet;

/// Largest window without scaling.
const UNSCALED_MAX: u32 = 65_535;
/// Largest number of doublings of the first timeout that a SYN waits for.
const SYN_DOUBLINGS_MAX: u8 = 16;

/// Delay before the SYN is sent again after an ACK that does not match it, as on Linux.
const SYN_AGAIN: Duration = Duration::from_millis(2);

impl Connection {
    /// Processes a segment in SYN-SENT (RFC 9293 §3.10.7.3).
    pub(super) fn input_syn_sent(
        &mut self,
        segment: &Segment,
        payload: &mut Packet,
        now: Instant,
    ) -> Verdict {
        let ack = segment.ack();
        let acks_syn = ack.after(self.send.iss) && ack.at_or_before(self.send.nxt);
        if segment.has(Flags::ACK) && !(acks_syn && self.echoes_our_time(segment, now)) {
            // As on Linux, the SYN is sent again soon: our reset may have ended an old connection.
            if !acks_syn && self.timers.unanswered == 0 {
                self.timers.retransmit = Some(now + SYN_AGAIN);
            }
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
            self.input_answer(segment, payload, now);
        } else {
            // Simultaneous open: our SYN is sent again, with an ACK.
            self.ecn.take_syn(segment, self.settings.ecn);
            self.state = State::SynReceived;
            self.send.syn_due = true;
        }
        Verdict::Done
    }

    /// True unless the echoed timestamp cannot have been sent since our first SYN. Such an echo
    /// belongs to another connection (RFC 7323 §5.3).
    fn echoes_our_time(&self, segment: &Segment, now: Instant) -> bool {
        match segment.options.timestamps {
            Some((_, echo)) if self.settings.timestamps && echo != 0 => {
                let first = Seq(self.timestamps.value(self.opened_at));
                Seq(echo).at_or_after(first)
                    && Seq(echo).at_or_before(Seq(self.timestamps.value(now)))
            }
            _ => true,
        }
    }

    /// Processes the peer's answer to our SYN.
    fn input_answer(&mut self, segment: &Segment, payload: &mut Packet, now: Instant) {
        self.ecn.take_answer(segment);
        let sent_again = self.syn_sent_again();
        self.open(segment, now);
        self.advance_una(segment.ack(), now);
        let lost = self.fast_open_answered(segment, sent_again);
        if self.fast_open.asked || self.fast_open.sent > 0 {
            self.take_syn_data(segment, payload);
            self.input_fin(segment, now);
        }
        if lost {
            self.fast_open.fail = if sent_again { FAIL_SYN_LOST } else { FAIL_NOT_TAKEN };
            // Retransmit the SYN's data at once; the ACK goes with it.
            self.resend_all(now);
            return;
        }
        // As on Linux, the ACK waits for data that is expected to follow, also after a FIN of the
        // peer.
        let waits = core::mem::take(&mut self.write_pending) || self.defers_third_segment();
        if waits || self.receive.fin {
            self.delay_third_segment(now);
        } else {
            self.receive.ack_owed = AckOwed::Now;
        }
    }

    /// Takes sequence number, window and options from the peer's SYN.
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
            _ => {
                self.receive.window_scale = 0;
                if self.state == State::SynSent {
                    self.receive.tuning.clamp = self.receive.tuning.clamp.min(UNSCALED_MAX);
                }
            }
        }
        if let Some((value, _)) = syn.options.timestamps
            && self.settings.timestamps
        {
            self.timestamps.enabled = true;
            self.timestamps.recent = value;
            self.timestamps.recent_at = now;
        }
        self.peer_mss = syn.options.mss.unwrap_or(0);
        self.send.mss = self.payload_of(self.path.sizes.path);
        if self.state == State::SynSent {
            self.guess_segment_size();
            self.promise(self.first_window());
        } else {
            self.begin_receiving();
        }
    }

    /// Enters ESTABLISHED: the peer has acknowledged our SYN.
    pub(super) fn open(&mut self, segment: &Segment, now: Instant) {
        self.state = if self.send.fin_queued { State::FinWait1 } else { State::Established };
        self.send.una = self.send.iss + 1;
        let unscaled = segment.has(Flags::SYN);
        let scale = if unscaled { 0 } else { self.send.window_scale };
        self.send.wnd = u32::from(segment.header.window) << scale;
        self.send.wnd_max = self.send.wnd;
        self.send.wl1 = segment.seq();
        if !self.syn_sent_again() {
            let rtt = now.since(self.send.syn_sent_at);
            self.rtt.sample_min(rtt, false, now);
            self.rtt.sample(rtt, self.send.una, self.send.nxt);
        }
        self.rtt.fall_back();
        self.rearm_rto(now);
        self.timers.unanswered = 0;
        self.receive.data_at = now;
        // As on Linux, our SYN or SYN-ACK counts as delivered.
        self.count_delivered(1);
        self.recovery.rate.restart(now);
        self.counters.bytes_acked += u64::from(!self.passive);
        self.counters.timeouts.end(now);
        if core::mem::take(&mut self.request) {
            self.note(Events::INCOMING);
        }
        if !self.fast_open.accepted {
            self.begin_sending(now);
            self.open_buffer(now);
        }
        self.note(Events::ESTABLISHED | Events::WRITABLE);
    }

    /// Flags of our SYN, and how many bytes of data it carries. Only the first SYN carries data.
    pub(super) fn syn_to_send(&self) -> (Flags, u32) {
        if self.state == State::SynReceived {
            let ecn = if self.ecn.enabled { Flags::ECE } else { Flags::NONE };
            return (Flags::SYN | Flags::ACK | ecn, 0);
        }
        let ecn = if self.ecn.asked { Flags::ECE | Flags::CWR } else { Flags::NONE };
        let room = self.fast_open.client.as_ref().map_or(0, |client| client.room);
        (Flags::SYN | ecn, room.min(self.send.queue.len() as u32))
    }

    /// Options of our SYN. A SYN that opens offers all options, a SYN-ACK only those that were
    /// offered.
    pub(super) fn syn_options(&mut self, now: Instant) -> Options {
        let offer = self.state == State::SynSent;
        let settings = &self.settings;
        let mut options = Options {
            mss: u16::try_from(self.path.sizes.advertised).ok(),
            sack_permitted: if offer { settings.sack } else { self.sack },
            ..Options::default()
        };
        let scales = if offer { settings.window_scaling } else { self.scaled };
        options.window_scale = scales.then_some(self.receive.window_scale);
        if if offer { settings.timestamps } else { self.timestamps.enabled } {
            options.timestamps = Some((self.timestamps.value(now), self.timestamps.recent));
        }
        if !offer {
            options.fast_open = self.fast_open.given.take();
        } else if let Some(ClientSyn { option: Some(cookie), .. }) = self.fast_open.client {
            options.fast_open = Some(cookie);
            if options.emitted_len(true) > OPTIONS_LEN_MAX {
                options.fast_open = None;
            }
        }
        self.fast_open.asked |= offer && options.fast_open.is_some();
        options
    }

    /// Accounts for our SYN, sent with `len` bytes of data.
    pub(super) fn syn_sent(&mut self, len: u32, now: Instant) {
        self.send.syn_due = false;
        // As on Linux, the SYN-ACK of a simultaneous open does not count as a retransmission.
        if self.send.nxt.after(self.send.iss) && (self.passive || self.state == State::SynSent) {
            self.recovery.note_probe(1);
        }
        self.send.syn_sent_at = now;
        self.timers.arm_retransmit(now + self.rtt.rto());
        let first = self.send.iss + 1;
        self.send.nxt = self.send.nxt.max(first);
        if self.fast_open.client.take().is_some() && len > 0 {
            self.fast_open.sent = len;
            let sending = Sending { size: len, delivered: 0, ..self.sending(false, now) };
            self.send.board.sent(first, first + len, &sending);
            self.send.nxt = first + len;
        }
    }

    /// Handles a timeout of our SYN or SYN-ACK.
    pub(super) fn on_syn_timeout(&mut self, now: Instant) {
        let active = self.state == State::SynSent;
        let (expired, again) = if active {
            // The limit is the time that these doublings take, however many SYNs are sent in it.
            let retries = self.settings.syn_count.unwrap_or(self.settings.syn_retries);
            let doublings = retries.min(SYN_DOUBLINGS_MAX);
            let limit = RTO_INITIAL.saturating_mul((2 << doublings) - 1);
            (now.since(self.opened_at) >= limit, true)
        } else {
            let more = u8::from(self.fast_open.accepted);
            let most = self.settings.synack_retries.saturating_add(more);
            self.answer_timed_out(self.settings.syn_count.unwrap_or(most))
        };
        if active {
            self.fast_open_timed_out(expired);
        }
        if expired {
            self.finish(Some(ConnectionError::TimedOut));
            return;
        }
        let child = active || self.fast_open.accepted;
        let since = if child { now } else { self.opened_at };
        self.counters.timeouts.add(self.timers.unanswered == 0, since);
        self.timers.unanswered += 1;
        if !active || self.timers.unanswered > self.settings.syn_linear_timeouts {
            self.rtt.back_off();
        }
        if self.settings.ecn_fallback {
            self.ecn.asked = false;
        }
        self.send.syn_due = again;
        // Rearm here too, in case no packet is free to send now.
        self.timers.retransmit = Some(now + self.rtt.rto());
    }

    /// Sets how often a SYN-ACK is retransmitted. A SYN is retransmitted for the time that as many
    /// doublings of the first timeout take (`TCP_SYNCNT`).
    pub fn set_syn_count(&mut self, retries: u8) {
        self.settings.syn_count = Some(retries);
    }

    /// Notes that the owner waits to write: the third segment of the handshake waits briefly for
    /// its data.
    pub fn set_write_pending(&mut self, pending: bool) {
        self.write_pending = pending;
    }
}
