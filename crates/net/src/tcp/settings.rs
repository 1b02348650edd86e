//! What one stack's connections have in common: Linux's sysctls, with its defaults.

use super::congestion;
use super::fastopen::FastOpenKeys;
use super::orphan::FinWait;
use crate::path_mtu::PathMtu;
use crate::time::Duration;
use core::net::SocketAddr;

/// Value of [`Settings::challenge_ack_limit`] that stands for no limit, Linux's default since
/// version 6.7.
pub const CHALLENGES_UNLIMITED: u32 = i32::MAX as u32;

/// What one stack's connections have in common.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Receive buffer of a new connection, in bytes with overhead (Linux's tcp_rmem).
    pub receive_buffer: u32,
    /// Most that auto-tuning makes of it.
    pub receive_buffer_max: u32,
    /// The owner chose the buffer (`SO_RCVBUF`): it is not tuned.
    pub receive_buffer_fixed: bool,
    /// Most that the windows of a new connection offer, in bytes (`TCP_WINDOW_CLAMP`).
    pub window_clamp: Option<u32>,
    /// Send buffer of a new connection.
    pub send_buffer: u32,
    /// Most that auto-tuning makes of it.
    pub send_buffer_max: u32,
    /// Longest an ACK may wait (RFC 9293 §3.8.6.3; Linux's value).
    pub delayed_ack: Duration,
    /// How often a SYN is sent again.
    pub syn_retries: u8,
    /// How long data is sent again before the path is in doubt, in the same way (Linux's
    /// tcp_retries1).
    pub retries1: u8,
    /// How long data is sent again before the connection fails: as long as so many retries take on
    /// the fastest path (Linux's tcp_retries2).
    pub retries2: u8,
    /// Longest that data may stay unacknowledged (RFC 5482), instead of the retries.
    pub user_timeout: Option<Duration>,
    /// Segments by which order may be disturbed before loss is assumed (Linux's tcp_reordering).
    pub reordering: u32,
    /// A timeout may prove to be spurious (RFC 5682): 0 never, 1 or 2 it is looked for.
    pub frto: u8,
    /// Loss probes (RFC 8985 §7): 3 or 4 for yes (Linux's tcp_early_retrans).
    pub early_retrans: u8,
    /// Bits of Linux's tcp_recovery: 2 for a reordering window that does not adapt, 4 to wait for
    /// it even after many duplicates.
    pub recovery: u8,
    /// How long a closed connection nobody owns may wait for the peer's FIN.
    pub fin_wait: FinWait,
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
    /// Congestion control of a new connection.
    pub congestion: congestion::Kind,
    /// Segments that a connection sends at its start (RFC 6928).
    pub initial_window: u32,
    /// Least retransmission timeout beyond the round trip (tcp_rto_min_us).
    pub rto_min: Duration,
    /// What is done about the MTU of paths over IPv4.
    pub path_mtu: PathMtu,
    /// The same over IPv6.
    pub path_mtu_v6: PathMtu,
    /// Every ACK goes at once.
    pub quickack: bool,
    /// Take the congestion window down after a pause (RFC 5681 §4.1).
    pub slow_start_after_idle: bool,
    /// Report what came twice (RFC 2883).
    pub dsack: bool,
    /// How often the answer to a SYN is sent again.
    pub synack_retries: u8,
    /// How often either is, if the socket says so (`TCP_SYNCNT`).
    pub syn_count: Option<u8>,
    /// How many SYNs are sent again without backing off, beyond `syn_retries`.
    pub syn_linear_timeouts: u8,
    /// Answer SYNs without keeping state (RFC 4987 §3.6): 0 never, 1 when a listener's requests
    /// are too many, 2 always.
    pub syncookies: u8,
    /// Reset instead of dropping an ACK for which a listener's queue has no room.
    pub abort_on_overflow: bool,
    /// Explicit congestion notification (RFC 3168): 0 none, 1 asked for and answered, 2 answered.
    /// Larger numbers, which stand for AccECN (RFC 9768) on Linux, count as 2.
    pub ecn: u8,
    /// Ask without ECN when a SYN that asked for it was lost (RFC 3168 §6.1.1.1).
    pub ecn_fallback: bool,
    /// Fast Open (RFC 7413), the bits of [`super::fastopen`].
    pub fastopen: u32,
    /// Keys of the cookies that listeners give; a listener may have its own.
    pub fastopen_key: FastOpenKeys,
    /// How long Fast Open is not tried after a path swallowed it, in seconds; doubles each time.
    /// 0 switches that off.
    pub fastopen_blackhole_timeout_sec: u32,
    /// Least time between answers to unacceptable segments without data, on one connection
    /// (tcp_invalid_ratelimit).
    pub invalid_ratelimit: Duration,
    /// Challenge ACKs (RFC 5961 §7) of all connections in a second, about
    /// (tcp_challenge_ack_limit); [`CHALLENGES_UNLIMITED`] for any number.
    pub challenge_ack_limit: u32,
    /// Search for the path's MTU (RFC 4821): 0 never, 1 where it seems to be a black hole, 2
    /// always (tcp_mtu_probing).
    pub mtu_probing: u8,
    /// Segment size at which the search begins (tcp_base_mss).
    pub base_mss: u32,
    /// Segment size below which no black hole makes it go (tcp_mtu_probe_floor).
    pub mtu_probe_floor: u32,
    /// Range in bytes in which the search rests (tcp_probe_threshold).
    pub probe_threshold: u32,
    /// Time after which it begins again (tcp_probe_interval).
    pub probe_interval: Duration,
    /// Segments that a super-packet may have on however slow a path (tcp_min_tso_segs).
    pub min_tso_segs: u32,
    /// Part of the window, as a divisor, that is worth sending at once; zero for three segments
    /// (tcp_tso_win_divisor).
    pub tso_win_divisor: u32,
    /// Unsent bytes that leave no room to send more (tcp_notsent_lowat).
    pub notsent_lowat: u32,
    /// Pacing rate in the first half of slow start, in percent of window per round trip.
    pub pacing_ss_ratio: u32,
    /// The same later.
    pub pacing_ca_ratio: u32,
    /// Spread segments over time on every connection, as Linux does with the `fq` discipline.
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
            ecn: 2,
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
    /// What is done about the MTU of the path to `remote`.
    pub(super) fn path_mtu_of(&self, remote: SocketAddr) -> PathMtu {
        if remote.is_ipv4() { self.path_mtu } else { self.path_mtu_v6 }
    }
}
