//! State of a connection as in Linux's `struct tcp_info`, field by field.
//!
//! The names are Linux's without `tcpi_`, and times are in microseconds or milliseconds as there.
//! Each part of a connection fills in what it knows, on request.

/// State of a connection (`TCP_INFO`). Linux's fields that are missing here are zero:
/// `last_ack_sent` and `fackets`, which Linux leaves zero too; `rehash`, as nothing here chooses
/// paths; and the fields of Accurate ECN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// State, with Linux's numbers: 1 is ESTABLISHED.
    pub state: u8,
    /// State of loss recovery, see [`CaState`](crate::tcp::congestion::CaState).
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
