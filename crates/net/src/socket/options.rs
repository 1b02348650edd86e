//! Options of sockets. They are kept here so that they can be set before a connection exists, and
//! accepted sockets inherit them.

use super::{DatagramOptions, Error, SocketId, Sockets, Timestamping};
use crate::pmtu_mode::PathMtu;
use crate::stack::Listen;
use crate::tcp::congestion::Kind;
use crate::tcp::fastopen::FastOpenKeys;
use crate::tcp::{Connection, FinWait, Settings};
use crate::time::{Duration, Instant};

/// Longest timeout of a SYN-ACK in seconds: `RTO_MAX` of `tcp::rtt`.
const SYN_TIMEOUT_MAX: i32 = 120;

/// What `close` does with unsent data (`SO_LINGER`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Linger {
    /// Sends it in the background.
    #[default]
    Off,
    /// Resets the connection at once.
    Reset,
    /// A blocking caller waits for this time until the data is acknowledged.
    Wait(Duration),
}

/// Options of one socket.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// May share its port with others that set this too (`SO_REUSEADDR`).
    pub reuse_address: bool,
    /// Datagram sockets that set this share the port, and received datagrams are distributed among
    /// them (`SO_REUSEPORT`). Of stream sockets it can be set and read only.
    pub reuse_port: bool,
    /// IPv6 only (`IPV6_V6ONLY`).
    pub v6_only: bool,
    /// What `close` does (`SO_LINGER`).
    pub linger: Linger,
    /// Urgent data is read in line (`SO_OOBINLINE`).
    pub urgent_inline: bool,
    /// Received bytes from which on the socket is readable (`SO_RCVLOWAT`).
    pub receive_low_water: usize,
    /// Sends probes to an idle peer (`SO_KEEPALIVE`).
    pub keepalive: bool,
    /// Idle time before the first keepalive probe (`TCP_KEEPIDLE`).
    pub keepalive_idle: Option<Duration>,
    /// Time between keepalive probes (`TCP_KEEPINTVL`).
    pub keepalive_interval: Option<Duration>,
    /// Unanswered keepalive probes before the connection fails (`TCP_KEEPCNT`).
    pub keepalive_probes: Option<u8>,
    /// How long data may stay unacknowledged (`TCP_USER_TIMEOUT`).
    pub user_timeout: Option<Duration>,
    /// Longest time in FIN-WAIT-2 after `close` (`TCP_LINGER2`).
    pub fin_wait: Option<FinWait>,
    /// Largest window to advertise in bytes (`TCP_WINDOW_CLAMP`).
    pub window_clamp: Option<u32>,
    /// Type of service of IPv4 packets, without the ECN bits (`IP_TOS`).
    pub tos: u8,
    /// Traffic class of IPv6 packets, without the ECN bits (`IPV6_TCLASS`).
    pub traffic_class: u8,
    /// Time to live of IPv4 packets (`IP_TTL`).
    pub ttl: Option<u8>,
    /// Hop limit of IPv6 packets (`IPV6_UNICAST_HOPS`).
    pub hop_limit: Option<u8>,
    /// Path MTU discovery over IPv4 (`IP_MTU_DISCOVER`).
    pub path_mtu: PathMtu,
    /// Path MTU discovery over IPv6 (`IPV6_MTU_DISCOVER`).
    pub path_mtu_v6: PathMtu,
    /// Can be set and read (`SO_MARK`); no rules use it.
    pub mark: u32,
    /// Can be set and read (`SO_PRIORITY`); there is one queue.
    pub priority: i32,
    /// Small segments do not wait for ACKs (Nagle is off; `TCP_NODELAY`).
    pub nodelay: bool,
    /// Holds back segments that are not full (`TCP_CORK`).
    pub cork: bool,
    /// Unsent bytes from which on the socket is not writable (`TCP_NOTSENT_LOWAT`); zero for the
    /// default.
    pub notsent_lowat: u32,
    /// Most bytes per second (`SO_MAX_PACING_RATE`).
    pub max_pacing_rate: Option<u64>,
    /// Send buffer in bytes with overhead (`SO_SNDBUF`, doubled); tuned automatically if `None`.
    pub send_buffer: Option<u32>,
    /// Receive buffer in bytes with overhead (`SO_RCVBUF`, doubled); tuned automatically if `None`.
    pub receive_buffer: Option<u32>,
    /// Largest segment (`TCP_MAXSEG`).
    pub max_segment: Option<u16>,
    /// May bind to an address that is not local (`IP_FREEBIND`).
    pub free_bind: bool,
    /// Binding to port 0 leaves the choice of the port to `connect` or `listen`
    /// (`IP_BIND_ADDRESS_NO_PORT`). Stream sockets only.
    pub bind_no_port: bool,
    /// Maximum number of pending Fast Open requests of a listener (`TCP_FASTOPEN`).
    pub fastopen_queue: u32,
    /// Keys of a listener's Fast Open cookies (`TCP_FASTOPEN_KEY`).
    pub fastopen_key: Option<FastOpenKeys>,
    /// Accepts data with a SYN without a cookie (`TCP_FASTOPEN_NO_COOKIE`).
    pub fastopen_no_cookie: bool,
    /// `connect` delays the SYN until there is data, if a cookie is known (`TCP_FASTOPEN_CONNECT`).
    pub fastopen_connect: bool,
    /// Sends every ACK at once (`TCP_QUICKACK`); not kept for new connections.
    pub quickack: bool,
    /// SYN-ACK timeouts before a connection without data is accepted (`TCP_DEFER_ACCEPT`); see
    /// [`Options::set_defer_accept`].
    pub defer_accept: u8,
    /// Retransmissions of a SYN or SYN-ACK (`TCP_SYNCNT`).
    pub syn_count: Option<u8>,
    /// Congestion control algorithm (`TCP_CONGESTION`).
    pub congestion: Option<Kind>,
    /// Options of datagram sockets only.
    pub datagram: DatagramOptions,
    /// Timestamps of sent data; set with [`Sockets::set_timestamping`] (`SO_TIMESTAMPING`).
    pub timestamping: Timestamping,
    /// Calls may lend what they send (`SO_ZEROCOPY`).
    pub zerocopy: bool,
    /// Time after which memory lent by calls of this socket is returned at the latest.
    pub lent_term: Option<Duration>,
    /// Bytes after which a call that lends on a stream goes on as the next call, with its own
    /// number and notice. The owner of the sockets divides its calls.
    pub lent_part: Option<u32>,
    /// Calls that lend on a stream may copy instead, as the owner of the sockets chooses.
    pub lent_auto: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            reuse_address: false,
            reuse_port: false,
            v6_only: false,
            linger: Linger::Off,
            urgent_inline: false,
            receive_low_water: 1,
            keepalive: false,
            keepalive_idle: None,
            keepalive_interval: None,
            keepalive_probes: None,
            user_timeout: None,
            fin_wait: None,
            window_clamp: None,
            tos: 0,
            traffic_class: 0,
            ttl: None,
            hop_limit: None,
            path_mtu: PathMtu::Want,
            path_mtu_v6: PathMtu::Want,
            mark: 0,
            priority: 0,
            nodelay: false,
            cork: false,
            notsent_lowat: 0,
            max_pacing_rate: None,
            send_buffer: None,
            receive_buffer: None,
            max_segment: None,
            free_bind: false,
            bind_no_port: false,
            fastopen_queue: 0,
            fastopen_key: None,
            fastopen_no_cookie: false,
            fastopen_connect: false,
            quickack: true,
            defer_accept: 0,
            syn_count: None,
            congestion: None,
            datagram: DatagramOptions::default(),
            timestamping: Timestamping::default(),
            zerocopy: false,
            lent_term: None,
            lent_part: None,
            lent_auto: false,
        }
    }
}

impl Options {
    /// Defers accepting connections without data for `seconds` (`TCP_DEFER_ACCEPT`). The
    /// value kept is the number of SYN-ACK timeouts that take that long
    /// (`tests/scripts/defer_accept.pkt`).
    pub fn set_defer_accept(&mut self, seconds: i32) {
        let (mut timeouts, mut time, mut timeout) = (u8::from(seconds > 0), 1, 1);
        while seconds > time && timeouts < u8::MAX {
            timeout = (timeout * 2).min(SYN_TIMEOUT_MAX);
            time += timeout;
            timeouts += 1;
        }
        self.defer_accept = timeouts;
    }

    /// Returns the seconds that the SYN-ACK timeouts of [`Options::defer_accept`] take.
    pub fn defer_accept_seconds(&self) -> i32 {
        let (mut time, mut timeout) = (i32::from(self.defer_accept > 0), 1);
        for _ in 1..self.defer_accept {
            timeout = (timeout * 2).min(SYN_TIMEOUT_MAX);
            time += timeout;
        }
        time
    }

    /// Applies these options to a new listener.
    pub(super) fn apply_listen(&self, listen: &mut Listen) {
        self.change_settings(&mut listen.settings);
        listen.max_segment = self.max_segment;
        listen.fastopen_queue = self.fastopen_queue;
        listen.fastopen_key = self.fastopen_key;
        listen.fastopen_no_cookie = self.fastopen_no_cookie;
        listen.defer_accept = self.defer_accept;
    }

    /// Applies these options to the settings of a connection that is to be made.
    pub(super) fn change_settings(&self, settings: &mut Settings) {
        if let Some(bytes) = self.receive_buffer {
            settings.receive_buffer = bytes;
            settings.receive_buffer_fixed = true;
        }
        if let Some(bytes) = self.send_buffer {
            settings.send_buffer = bytes;
            settings.send_buffer_max = bytes;
        }
        settings.window_clamp = self.window_clamp.or(settings.window_clamp);
        settings.path_mtu = self.path_mtu;
        settings.path_mtu_v6 = self.path_mtu_v6;
        settings.syn_count = self.syn_count.or(settings.syn_count);
        settings.congestion = self.congestion.unwrap_or(settings.congestion);
        settings.user_timeout = self.user_timeout.or(settings.user_timeout);
        settings.keepalive_idle = self.keepalive_idle.unwrap_or(settings.keepalive_idle);
        settings.keepalive_interval =
            self.keepalive_interval.unwrap_or(settings.keepalive_interval);
        settings.keepalive_probes = self.keepalive_probes.unwrap_or(settings.keepalive_probes);
        settings.fin_wait = self.fin_wait.unwrap_or(settings.fin_wait);
    }

    /// Applies the receive buffer and window clamp to an existing connection that had the options
    /// `before`. A new connection begins with them.
    fn apply_window(&self, before: &Options, connection: &mut Connection) {
        if let Some(clamp) = self.window_clamp.filter(|_| self.window_clamp != before.window_clamp)
        {
            connection.set_window_clamp(clamp);
        }
        if let Some(bytes) =
            self.receive_buffer.filter(|_| self.receive_buffer != before.receive_buffer)
        {
            connection.set_receive_buffer(bytes);
        }
    }

    /// Applies these options to a connection that had the options `before`.
    pub(super) fn apply(&self, before: &Options, connection: &mut Connection, now: Instant) {
        if self.nodelay != before.nodelay {
            connection.set_nodelay(self.nodelay);
        }
        if self.quickack != before.quickack {
            connection.set_quickack(self.quickack);
        }
        if self.cork != before.cork {
            connection.set_cork(self.cork);
        }
        connection.set_urgent_inline(self.urgent_inline);
        connection.defer_accept(self.defer_accept);
        self.apply_timers(before, connection, now);
        let (class, ttl, path_mtu) = match connection.local().is_ipv4() {
            true => (self.tos, self.ttl, self.path_mtu),
            false => (self.traffic_class, self.hop_limit, self.path_mtu_v6),
        };
        connection.set_traffic_class(class);
        connection.set_ttl(ttl);
        connection.set_path_mtu(path_mtu);
        if self.receive_low_water != before.receive_low_water {
            connection.set_low_water(u32::try_from(self.receive_low_water).unwrap_or(u32::MAX));
        }
        if self.notsent_lowat != before.notsent_lowat {
            connection.set_notsent_lowat(self.notsent_lowat);
        }
        if self.max_pacing_rate != before.max_pacing_rate {
            connection.set_max_pacing_rate(self.max_pacing_rate);
        }
        connection.set_stamping(self.timestamping.stamping());
        if let Some(bytes) = self.send_buffer.filter(|_| self.send_buffer != before.send_buffer) {
            connection.set_send_buffer(bytes);
        }
        if let Some(retries) = self.syn_count {
            connection.set_syn_count(retries);
        }
        if let Some(kind) = self.congestion.filter(|_| self.congestion != before.congestion) {
            connection.set_congestion(kind, now);
        }
    }

    fn apply_timers(&self, before: &Options, connection: &mut Connection, now: Instant) {
        if self.user_timeout != before.user_timeout {
            connection.set_user_timeout(self.user_timeout);
        }
        if let Some(idle) = self.keepalive_idle
            && self.keepalive_idle != before.keepalive_idle
        {
            connection.set_keepalive_idle(idle, now);
        }
        if let Some(interval) = self.keepalive_interval {
            connection.set_keepalive_interval(interval);
        }
        if let Some(probes) = self.keepalive_probes {
            connection.set_keepalive_probes(probes);
        }
        if let Some(limit) = self.fin_wait {
            connection.set_fin_wait(limit);
        }
        if self.keepalive != before.keepalive {
            connection.set_keepalive(self.keepalive, now);
        }
    }
}

impl Sockets {
    /// The options of a socket.
    pub fn options(&self, id: SocketId) -> Result<&Options, Error> {
        Ok(&self.socket(id)?.options)
    }

    /// Sets `TCP_NODELAY`. Switching it on sends unsent data, even if it was on already.
    pub fn set_nodelay(&mut self, id: SocketId, on: bool, now: Instant) -> Result<(), Error> {
        self.socket_mut(id)?.options.nodelay = on;
        self.with_connection(id, now, |connection| connection.set_nodelay(on));
        Ok(())
    }

    /// Changes options of the socket and of its connection or listener.
    pub fn set_options(
        &mut self,
        id: SocketId,
        now: Instant,
        change: impl FnOnce(&mut Options),
    ) -> Result<(), Error> {
        let options = &mut self.socket_mut(id)?.options;
        let before = *options;
        change(options);
        let after = *options;
        self.with_listeners(id, |listen| after.apply_listen(listen))?;
        self.with_connection(id, now, |connection| {
            after.apply(&before, connection, now);
            after.apply_window(&before, connection);
        });
        Ok(())
    }
}
