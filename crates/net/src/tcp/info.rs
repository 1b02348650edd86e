//! State of a connection as in Linux's `struct tcp_info`, field by field.
//!
//! The names are Linux's without `tcpi_`, and times are in microseconds or milliseconds as there.
//! Everything is calculated on request, except for what `Counters` counts.

use super::connection::Connection;
use super::state::State;
use crate::time::Instant;

/// State of a connection (`TCP_INFO`). Linux's fields that are missing here are zero:
/// `last_ack_sent` and `fackets`, which Linux leaves zero too; `rehash`, as nothing here chooses
/// paths; and the fields of Accurate ECN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// State, with Linux's numbers: 1 is ESTABLISHED.
    pub state: u8,
    /// State of loss recovery, see [`CaState`](super::congestion::CaState).
    pub ca_state: u8,
    /// Consecutive retransmission timeouts.
    pub retransmits: u8,
    /// Unanswered window or keepalive probes.
    pub probes: u8,
    /// Doublings of the retransmission timeout.
    pub backoff: u8,
    /// Options in use: 1 timestamps, 2 SACK, 4 window scaling, 8 ECN; 16 an ECN-capable packet has
    /// arrived, 32 data in the SYN was accepted, 128 Fast Open accepted the connection.
    pub options: u8,
    /// Window scale of the peer.
    pub snd_wscale: u8,
    /// Window scale of ours.
    pub rcv_wscale: u8,
    /// The delivery rate was measured while the owner had no more data to send.
    pub delivery_rate_app_limited: bool,
    /// Why Fast Open failed: 1 no cookie, 2 data not acknowledged, 3 SYN retransmitted.
    pub fastopen_client_fail: u8,
    /// Retransmission timeout, in microseconds.
    pub rto: u32,
    /// Current delay of delayed ACKs, in microseconds; zero before any data.
    pub ato: u32,
    /// Payload of a full segment that is sent, in bytes.
    pub snd_mss: u32,
    /// Payload of a full segment that is received, in bytes, as far as seen.
    pub rcv_mss: u32,
    /// Segments outstanding.
    pub unacked: u32,
    /// Outstanding segments that SACK reported.
    pub sacked: u32,
    /// Outstanding segments that are thought lost.
    pub lost: u32,
    /// Retransmissions outstanding.
    pub retrans: u32,
    /// Milliseconds since data was sent.
    pub last_data_sent: u32,
    /// Milliseconds since data was received.
    pub last_data_recv: u32,
    /// Milliseconds since an ACK was received.
    pub last_ack_recv: u32,
    /// Path MTU, in bytes.
    pub pmtu: u32,
    /// Largest window that is offered now, in bytes.
    pub rcv_ssthresh: u32,
    /// Smoothed round trip, in microseconds.
    pub rtt: u32,
    /// Variation of the round trip, in microseconds.
    pub rttvar: u32,
    /// Slow-start threshold, in segments.
    pub snd_ssthresh: u32,
    /// Congestion window, in segments.
    pub snd_cwnd: u32,
    /// Largest segment that we accept, in bytes.
    pub advmss: u32,
    /// Round trip of the sender as the receiver sees it, in microseconds; zero before the first.
    pub rcv_rtt: u32,
    /// Bytes that the reader took in one round trip.
    pub rcv_space: u32,
    /// Segments retransmitted.
    pub total_retrans: u32,
    /// Degree of reordering, in segments, that is tolerated before loss is assumed.
    pub reordering: u32,
    /// Segments delivered; wraps.
    pub delivered: u32,
    /// Segments delivered by ACKs that echo congestion.
    pub delivered_ce: u32,
    /// Segments that the peer reported as duplicates.
    pub dsack_dups: u32,
    /// How often reordering was seen.
    pub reord_seen: u32,
    /// Pacing rate, in bytes per second.
    pub pacing_rate: u64,
    /// The owner's limit of the pacing rate, in bytes per second.
    pub max_pacing_rate: u64,
    /// Sequence numbers acknowledged.
    pub bytes_acked: u64,
    /// Sequence numbers received in order.
    pub bytes_received: u64,
    /// Segments sent.
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
    /// Delivery rate, in bytes per second.
    pub delivery_rate: u64,
    /// Microseconds with data to send.
    pub busy_time: u64,
    /// Microseconds in which the peer's window held back data.
    pub rwnd_limited: u64,
    /// Microseconds in which the send buffer held back data.
    pub sndbuf_limited: u64,
    /// Bytes of data sent, retransmissions included.
    pub bytes_sent: u64,
    /// Bytes of data retransmitted.
    pub bytes_retrans: u64,
    /// Segments that arrived out of order.
    pub rcv_ooopack: u32,
    /// The peer's window, in bytes.
    pub snd_wnd: u32,
    /// Our window, in bytes.
    pub rcv_wnd: u32,
    /// Retransmission timeouts, the handshake included; wraps.
    pub total_rto: u16,
    /// How often a series of timeouts began; wraps.
    pub total_rto_recoveries: u16,
    /// Milliseconds that all series lasted, each until the lost data had arrived.
    pub total_rto_time: u32,
}

/// Statistics of retransmission timeouts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timeouts {
    total: u16,
    recoveries: u16,
    time_ms: u32,
    since: Option<Instant>,
}

impl Timeouts {
    /// Counts a timeout; `first` if it begins a series. The time of the series counts from `since`.
    pub(super) fn add(&mut self, first: bool, since: Instant) {
        if first {
            self.recoveries = self.recoveries.wrapping_add(1);
            self.since = Some(since);
        }
        self.total = self.total.wrapping_add(1);
    }

    /// Ends a series: the lost data has arrived.
    pub(super) fn end(&mut self, now: Instant) {
        self.time_ms = self.time(now);
        self.since = None;
    }

    fn time(&self, now: Instant) -> u32 {
        let running = self.since.map_or(0, |since| now.since(since).as_millis() as u32);
        self.time_ms.wrapping_add(running)
    }
}

/// Counters that are updated with each segment.
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
    /// Counters at zero.
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

    /// Counts a received segment or super-packet of `len` bytes in segments of `size`.
    pub(super) fn received(&mut self, len: u32, size: u32) {
        let segments = len.div_ceil(size.max(1));
        self.segs_in = self.segs_in.wrapping_add(segments.max(1));
        self.data_segs_in = self.data_segs_in.wrapping_add(segments);
    }

    /// Counts a sent segment or super-packet of `len` bytes in segments of `size`; `again` for a
    /// retransmission.
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
    /// State of the connection at `now` (`TCP_INFO`).
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

    /// Options in use, as Linux's bits.
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
