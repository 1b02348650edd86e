//! What can be known about a connection: Linux's `struct tcp_info`, field by field.
//!
//! Names are those of Linux without `tcpi_`; times are in microseconds or milliseconds as there.
//! Everything is calculated when it is asked for; what must be counted is in `Counters`.

use super::connection::Connection;
use super::state::State;
use crate::time::Instant;

/// State of a connection (`TCP_INFO`). What is not here is zero: `last_ack_sent` and `fackets`,
/// which Linux leaves so too, `rehash`, as nothing here chooses paths, and what belongs to Accurate
/// ECN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// State, by Linux's numbers: 1 is ESTABLISHED.
    pub state: u8,
    /// What is done about loss, see [`CaState`](super::congestion::CaState).
    pub ca_state: u8,
    /// Retransmission timeouts in a row.
    pub retransmits: u8,
    /// Window or keepalive probes without an answer.
    pub probes: u8,
    /// Doublings of the retransmission timeout.
    pub backoff: u8,
    /// What both sides agreed on: 1 timestamps, 2 SACK, 4 window scaling, 8 ECN; 16 marks can be
    /// seen, 32 data went with the SYN, 128 the SYN opened the connection (Fast Open).
    pub options: u8,
    /// Scale of the peer's window.
    pub snd_wscale: u8,
    /// Scale of ours.
    pub rcv_wscale: u8,
    /// The rate of delivery was measured while there was nothing more to send.
    pub delivery_rate_app_limited: bool,
    /// What became of Fast Open: 1 no cookie, 2 data not acknowledged, 3 the SYN was sent again.
    pub fastopen_client_fail: u8,
    /// Retransmission timeout, in microseconds.
    pub rto: u32,
    /// How long an ACK waits now, in microseconds; zero before any data.
    pub ato: u32,
    /// Bytes of a segment sent.
    pub snd_mss: u32,
    /// Bytes of a segment received, as far as seen.
    pub rcv_mss: u32,
    /// Segments outstanding.
    pub unacked: u32,
    /// Of them, reported by SACK.
    pub sacked: u32,
    /// Of them, thought lost.
    pub lost: u32,
    /// Retransmissions outstanding.
    pub retrans: u32,
    /// Milliseconds since data was sent.
    pub last_data_sent: u32,
    /// Milliseconds since data was received.
    pub last_data_recv: u32,
    /// Milliseconds since an ACK was received.
    pub last_ack_recv: u32,
    /// Bytes of a packet on the path.
    pub pmtu: u32,
    /// Most that our window offers now, in bytes.
    pub rcv_ssthresh: u32,
    /// Smoothed round trip, in microseconds.
    pub rtt: u32,
    /// Its variation, in microseconds.
    pub rttvar: u32,
    /// Slow-start threshold, in segments.
    pub snd_ssthresh: u32,
    /// Congestion window, in segments.
    pub snd_cwnd: u32,
    /// Bytes of the largest segment that we take.
    pub advmss: u32,
    /// Round trip of the sender as the receiver sees it, in microseconds; zero before the first.
    pub rcv_rtt: u32,
    /// Bytes that the reader took in one round trip.
    pub rcv_space: u32,
    /// Segments sent again.
    pub total_retrans: u32,
    /// Segments by which order may be disturbed before loss is assumed.
    pub reordering: u32,
    /// Segments delivered; wraps.
    pub delivered: u32,
    /// Of them, by ACKs that echo congestion.
    pub delivered_ce: u32,
    /// Segments that the peer reported twice.
    pub dsack_dups: u32,
    /// How often order was seen to be disturbed.
    pub reord_seen: u32,
    /// What the window amounts to, in bytes per second.
    pub pacing_rate: u64,
    /// The owner's limit of it.
    pub max_pacing_rate: u64,
    /// Numbers acknowledged.
    pub bytes_acked: u64,
    /// Numbers received in order.
    pub bytes_received: u64,
    /// Segments sent, and received.
    pub segs_out: u32,
    /// Segments received.
    pub segs_in: u32,
    /// Bytes queued and not yet sent.
    pub notsent_bytes: u32,
    /// Least round trip, in microseconds; all bits set before the first.
    pub min_rtt: u32,
    /// Segments with data received.
    pub data_segs_in: u32,
    /// Segments with data sent.
    pub data_segs_out: u32,
    /// Rate of delivery, in bytes per second.
    pub delivery_rate: u64,
    /// Microseconds with something to send.
    pub busy_time: u64,
    /// Of them, kept back by the peer's window.
    pub rwnd_limited: u64,
    /// Of them, kept back by the send buffer.
    pub sndbuf_limited: u64,
    /// Bytes of data sent, for the first time or again.
    pub bytes_sent: u64,
    /// Bytes of data sent again.
    pub bytes_retrans: u64,
    /// Segments that arrived out of order.
    pub rcv_ooopack: u32,
    /// The peer's window, in bytes.
    pub snd_wnd: u32,
    /// Ours, in bytes.
    pub rcv_wnd: u32,
    /// Retransmission timeouts, those of the handshake included; wraps.
    pub total_rto: u16,
    /// How often they began anew; wraps.
    pub total_rto_recoveries: u16,
    /// Milliseconds from there until what was lost had arrived.
    pub total_rto_time: u32,
}

/// Retransmission timeouts of a connection (Linux's tcp_update_rto_stats).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timeouts {
    total: u16,
    recoveries: u16,
    time_ms: u32,
    since: Option<Instant>,
}

impl Timeouts {
    /// The timer fired; `first` if it had not before without an answer. The time counts from
    /// `since`.
    pub(super) fn add(&mut self, first: bool, since: Instant) {
        if first {
            self.recoveries = self.recoveries.wrapping_add(1);
            self.since = Some(since);
        }
        self.total = self.total.wrapping_add(1);
    }

    /// What was lost has arrived.
    pub(super) fn end(&mut self, now: Instant) {
        self.time_ms = self.time(now);
        self.since = None;
    }

    fn time(&self, now: Instant) -> u32 {
        let running = self.since.map_or(0, |since| now.since(since).as_millis() as u32);
        self.time_ms.wrapping_add(running)
    }
}

/// What is counted segment by segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counters {
    pub(super) bytes_sent: u64,
    pub(super) bytes_retrans: u64,
    pub(super) bytes_acked: u64,
    pub(super) bytes_received: u64,
    pub(super) segs_out: u32,
    pub(super) segs_in: u32,
    pub(super) data_segs_in: u32,
    pub(super) data_segs_out: u32,
    pub(super) ahead_in: u32,
    pub(super) delivered_marked: u32,
    pub(super) timeouts: Timeouts,
    pub(super) data_received_at: Instant,
    pub(super) ack_received_at: Instant,
}

impl Counters {
    /// Nothing counted yet.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            bytes_sent: 0,
            bytes_retrans: 0,
            bytes_acked: 0,
            bytes_received: 0,
            segs_out: 0,
            segs_in: 0,
            data_segs_in: 0,
            data_segs_out: 0,
            ahead_in: 0,
            delivered_marked: 0,
            timeouts: Timeouts::default(),
            data_received_at: now,
            ack_received_at: now,
        }
    }

    /// A segment or super-packet arrived with `len` bytes in segments of `size`.
    pub(super) fn received(&mut self, len: u32, size: u32) {
        let segments = len.div_ceil(size.max(1));
        self.segs_in = self.segs_in.wrapping_add(segments.max(1));
        self.data_segs_in = self.data_segs_in.wrapping_add(segments);
    }

    /// A segment or super-packet was sent with `len` bytes in segments of `size`.
    pub(super) fn sent(&mut self, len: u32, size: u32, again: bool) {
        let segments = len.div_ceil(size);
        self.segs_out = self.segs_out.wrapping_add(segments.max(1));
        self.data_segs_out = self.data_segs_out.wrapping_add(segments);
        self.bytes_sent += u64::from(len);
        if again {
            self.bytes_retrans += u64::from(len);
        }
    }
}

impl Connection {
    /// What can be known about the connection at `now` (`TCP_INFO`).
    pub fn info(&self, now: Instant) -> Info {
        let (totals, window) = (self.send.board.totals(), self.congestion.window());
        let (busy, peer_window, buffer) = self.send.chrono.times(now);
        let (counters, tuning) = (&self.counters, &self.receive.tuning);
        let millis = |at: Instant| now.since(at).as_millis() as u32;
        Info {
            state: state_number(self.state),
            ca_state: self.recovery.state as u8,
            retransmits: self.timers.unanswered,
            probes: self.timers.probes.max(self.timers.keepalive_unanswered),
            backoff: self.rtt.backoff().max(self.timers.probe_backoff),
            options: self.agreed(),
            snd_wscale: if self.scaled { self.send.window_scale } else { 0 },
            rcv_wscale: if self.scaled { self.receive.window_scale } else { 0 },
            delivery_rate_app_limited: self.recovery.rate.is_limited(),
            fastopen_client_fail: self.fast_open.fail,
            rto: self.rtt.rto().as_micros() as u32,
            ato: self.receive.delay.as_micros() as u32,
            snd_mss: self.send.mss,
            rcv_mss: self.receive.mss,
            unacked: totals.packets_out,
            sacked: totals.sacked_out,
            lost: totals.lost_out,
            retrans: totals.retrans_out,
            last_data_sent: millis(self.send.data_sent_at),
            last_data_recv: millis(counters.data_received_at),
            last_ack_recv: millis(counters.ack_received_at),
            pmtu: self.path_mtu(),
            rcv_ssthresh: tuning.threshold,
            rtt: self.rtt.srtt().map_or(0, |rtt| rtt.as_micros() as u32),
            rttvar: self.rtt.variation().as_micros() as u32,
            snd_ssthresh: window.ssthresh(),
            snd_cwnd: window.cwnd(),
            advmss: self.path.sizes.advertised.saturating_sub(self.options_len()),
            rcv_rtt: tuning.rtt().as_micros() as u32,
            rcv_space: tuning.space,
            total_retrans: self.recovery.total_retrans,
            reordering: self.recovery.reordering,
            delivered: self.recovery.delivered,
            delivered_ce: counters.delivered_marked,
            dsack_dups: self.recovery.dsack_dups,
            reord_seen: self.recovery.reord_seen,
            pacing_rate: self.send.pacing.rate,
            max_pacing_rate: self.send.pacing.max,
            bytes_acked: counters.bytes_acked,
            bytes_received: counters.bytes_received,
            segs_out: counters.segs_out,
            segs_in: counters.segs_in.wrapping_add(u32::from(self.passive)),
            notsent_bytes: self.send.unsent_numbers(),
            min_rtt: self.rtt.min().map_or(u32::MAX, |rtt| rtt.as_micros() as u32),
            data_segs_in: counters.data_segs_in,
            data_segs_out: counters.data_segs_out,
            delivery_rate: self.recovery.rate.bytes_per_second(self.send.mss),
            busy_time: busy.as_micros() as u64,
            rwnd_limited: peer_window.as_micros() as u64,
            sndbuf_limited: buffer.as_micros() as u64,
            bytes_sent: counters.bytes_sent,
            bytes_retrans: counters.bytes_retrans,
            rcv_ooopack: counters.ahead_in,
            snd_wnd: self.send.wnd,
            rcv_wnd: self.receive.offered,
            total_rto: counters.timeouts.total,
            total_rto_recoveries: counters.timeouts.recoveries,
            total_rto_time: counters.timeouts.time(now),
        }
    }

    /// What both sides agreed on, in Linux's bits.
    fn agreed(&self) -> u8 {
        u8::from(self.timestamps.enabled)
            | u8::from(self.sack) << 1
            | u8::from(self.scaled) << 2
            | u8::from(self.ecn.enabled) << 3
            | u8::from(self.ecn.seen) << 4
            | u8::from(self.fast_open.syn_data) << 5
            | u8::from(self.fast_open.accepted) << 7
    }
}

/// Linux's number of a state.
fn state_number(state: State) -> u8 {
    match state {
        State::Established => 1,
        State::SynSent => 2,
        State::SynReceived => 3,
        State::FinWait1 => 4,
        State::FinWait2 => 5,
        State::TimeWait => 6,
        State::Closed => 7,
        State::CloseWait => 8,
        State::LastAck => 9,
        State::Closing => 11,
    }
}
