//! Settings that all connections of a stack share: Linux's sysctls, with Linux's defaults.

use super::congestion;
use super::ecn::EcnUse;
use super::fastopen::FastOpenKeys;
use crate::pmtu_mode::PathMtu;
use crate::time::Duration;
use core::net::SocketAddr;

/// Value of [`Settings::challenge_ack_limit`] that means no limit: Linux's default since version
/// 6.7.
pub const CHALLENGES_UNLIMITED: u32 = i32::MAX as u32;

/// How long a connection without an owner waits in FIN-WAIT-2 for the peer's FIN (`TCP_LINGER2`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinWait {
    /// This long, or three and a half retransmission timeouts if that is longer.
    For(Duration),
    /// Not at all: the peer gets a reset as soon as it acknowledges our FIN.
    Never,
}

/// Settings that all connections of a stack share.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Receive buffer of a new connection, in bytes with overhead (`tcp_rmem`).
    pub receive_buffer: u32,
    /// Largest receive buffer that auto-tuning sets.
    pub receive_buffer_max: u32,
    /// The owner chose the buffer (`SO_RCVBUF`): it is not tuned.
    pub receive_buffer_fixed: bool,
    /// Largest window that a new connection offers, in bytes (`TCP_WINDOW_CLAMP`).
    pub window_clamp: Option<u32>,
    /// Send buffer of a new connection, in bytes with overhead (`tcp_wmem`).
    pub send_buffer: u32,
    /// Largest send buffer that auto-tuning sets.
    pub send_buffer_max: u32,
    /// Initial and least delay of a delayed ACK (RFC 9293 §3.8.6.3); Linux's value. The delay
    /// adapts, up to 200 ms.
    pub delayed_ack: Duration,
    /// How often a SYN is retransmitted (`tcp_syn_retries`), as the time that this many doublings
    /// take.
    pub syn_retries: u8,
    /// How long data is retransmitted before the path is in doubt (`tcp_retries1`): the time that
    /// this many retries take at the least timeout.
    pub retries1: u8,
    /// How long data is retransmitted before the connection fails (`tcp_retries2`): the time that
    /// this many retries take at the least timeout.
    pub retries2: u8,
    /// Longest time that data may stay unacknowledged (RFC 5482); replaces the retries.
    pub user_timeout: Option<Duration>,
    /// Initial degree of reordering, in segments, that is tolerated before loss is assumed
    /// (`tcp_reordering`).
    pub reordering: u32,
    /// Detection of spurious timeouts (F-RTO, RFC 5682): 0 off, 1 or 2 on.
    pub frto: u8,
    /// Tail loss probes (RFC 8985 §7; `tcp_early_retrans`): 3 or 4 on, other values off.
    pub early_retrans: u8,
    /// Bits of `tcp_recovery`: 2 for a reordering window that does not adapt, 4 for one that
    /// applies even after many duplicates.
    pub recovery: u8,
    /// How long a connection without an owner waits in FIN-WAIT-2 for the peer's FIN.
    pub fin_wait: FinWait,
    /// Idle time before the first keepalive probe.
    pub keepalive_idle: Duration,
    /// Time between keepalive probes.
    pub keepalive_interval: Duration,
    /// Unanswered keepalive probes after which the connection fails.
    pub keepalive_probes: u8,
    /// Offer and accept window scaling (RFC 7323 §2).
    pub window_scaling: bool,
    /// Offer and accept timestamps (RFC 7323 §3).
    pub timestamps: bool,
    /// Offer and accept selective acknowledgments (RFC 2018).
    pub sack: bool,
    /// Congestion control of a new connection.
    pub congestion: congestion::Kind,
    /// Initial congestion window in segments (RFC 6928).
    pub initial_window: u32,
    /// Least margin of the retransmission timeout over the round-trip time (`tcp_rto_min_us`).
    pub rto_min: Duration,
    /// Greatest timeout of SYNs, SYN-ACKs, data and zero-window probes, between one second and
    /// [`RTO_MAX`](super::rtt::RTO_MAX) (`tcp_rto_max_ms`).
    pub rto_max: Duration,
    /// Path MTU discovery over IPv4.
    pub path_mtu: PathMtu,
    /// Path MTU discovery over IPv6.
    pub path_mtu_v6: PathMtu,
    /// Send every ACK at once.
    pub quickack: bool,
    /// Reduce the congestion window after an idle period (RFC 5681 §4.1).
    pub slow_start_after_idle: bool,
    /// Report duplicate segments (RFC 2883).
    pub dsack: bool,
    /// How often a SYN-ACK is retransmitted (`tcp_synack_retries`).
    pub synack_retries: u8,
    /// How often a SYN or SYN-ACK is retransmitted if the socket sets it (`TCP_SYNCNT`).
    pub syn_count: Option<u8>,
    /// How many SYN timeouts pass before exponential back-off begins (`tcp_syn_linear_timeouts`).
    pub syn_linear_timeouts: u8,
    /// SYN cookies (RFC 4987 §3.6; `tcp_syncookies`): 0 never, 1 when a listener has too many
    /// requests, 2 always.
    pub syncookies: u8,
    /// Reset the connection, instead of dropping the ACK, if the listener's queue is full
    /// (`tcp_abort_on_overflow`).
    pub abort_on_overflow: bool,
    /// Explicit congestion notification (RFC 3168; `tcp_ecn`).
    pub ecn: EcnUse,
    /// Retransmit a lost SYN without the request for ECN (RFC 3168 §6.1.1.1).
    pub ecn_fallback: bool,
    /// Fast Open (RFC 7413): bits of [`super::fastopen`].
    pub fastopen: u32,
    /// Keys of the Fast Open cookies of listeners. A listener may have its own.
    pub fastopen_key: FastOpenKeys,
    /// Seconds without Fast Open after a path broke it; doubles each time. 0 disables the pause.
    pub fastopen_blackhole_timeout_sec: u32,
    /// Least time between answers to unacceptable segments without data, per connection
    /// (`tcp_invalid_ratelimit`).
    pub invalid_ratelimit: Duration,
    /// Challenge ACKs of all connections per second, approximately (RFC 5961 §7;
    /// `tcp_challenge_ack_limit`); [`CHALLENGES_UNLIMITED`] for no limit.
    pub challenge_ack_limit: u32,
    /// Search for the path MTU (RFC 4821; `tcp_mtu_probing`): 0 never, 1 after a suspected black
    /// hole, 2 always.
    pub mtu_probing: u8,
    /// Segment size at which the search begins (`tcp_base_mss`).
    pub base_mss: u32,
    /// Smallest segment size that a suspected black hole can cause (`tcp_mtu_probe_floor`).
    pub mtu_probe_floor: u32,
    /// Size of the remaining range, in bytes, at which the search stops (`tcp_probe_threshold`).
    pub probe_threshold: u32,
    /// Time after which a finished search begins again (`tcp_probe_interval`).
    pub probe_interval: Duration,
    /// Segments that a super-packet may have even on the slowest path (`tcp_min_tso_segs`).
    pub min_tso_segs: u32,
    /// Fraction of the window, as a divisor, that is sent at once rather than deferred; zero for
    /// three segments (`tcp_tso_win_divisor`).
    pub tso_win_divisor: u32,
    /// Unsent bytes at which there is no more room to send (`tcp_notsent_lowat`).
    pub notsent_lowat: u32,
    /// Pacing rate in the first half of slow start, in percent of the window per round-trip time.
    pub pacing_ss_ratio: u32,
    /// Pacing rate after that, in percent of the window per round-trip time.
    pub pacing_ca_ratio: u32,
    /// Pace the segments of every connection, as Linux does with the `fq` queueing discipline.
    pub pacing: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            receive_buffer: 512 << 10,
            receive_buffer_max: 6 << 20,
            receive_buffer_fixed: false,
            window_clamp: None,
            send_buffer: 256 << 10,
            send_buffer_max: 4 << 20,
            delayed_ack: Duration::from_millis(40),
            syn_retries: 6,
            retries1: 3,
            retries2: 15,
            user_timeout: None,
            reordering: 3,
            frto: 2,
            early_retrans: 3,
            recovery: 1,
            fin_wait: FinWait::For(Duration::from_secs(60)),
            keepalive_idle: Duration::from_secs(7200),
            keepalive_interval: Duration::from_secs(75),
            keepalive_probes: 9,
            window_scaling: true,
            timestamps: true,
            sack: true,
            congestion: congestion::Kind::default(),
            initial_window: congestion::INITIAL_SEGMENTS,
            rto_min: super::rtt::RTO_MIN,
            rto_max: super::rtt::RTO_MAX,
            path_mtu: PathMtu::Want,
            path_mtu_v6: PathMtu::Want,
            quickack: false,
            slow_start_after_idle: true,
            dsack: true,
            synack_retries: 5,
            syn_count: None,
            syn_linear_timeouts: 4,
            syncookies: 1,
            abort_on_overflow: false,
            ecn: EcnUse::default(),
            ecn_fallback: true,
            fastopen: super::fastopen::CLIENT,
            fastopen_key: FastOpenKeys::default(),
            fastopen_blackhole_timeout_sec: 0,
            invalid_ratelimit: Duration::from_millis(500),
            challenge_ack_limit: CHALLENGES_UNLIMITED,
            mtu_probing: 0,
            base_mss: 1024,
            mtu_probe_floor: 48,
            probe_threshold: 8,
            probe_interval: Duration::from_secs(600),
            min_tso_segs: 2,
            tso_win_divisor: 3,
            notsent_lowat: u32::MAX,
            pacing_ss_ratio: 200,
            pacing_ca_ratio: 120,
            pacing: false,
        }
    }
}

impl Settings {
    /// Path MTU discovery for the path to `remote`.
    pub(super) fn path_mtu_of(&self, remote: SocketAddr) -> PathMtu {
        if remote.is_ipv4() { self.path_mtu } else { self.path_mtu_v6 }
    }
}
