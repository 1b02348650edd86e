//! Outgoing connections: their settings, and the data of their SYN (RFC 7413).

use super::Stack;
use super::handles::TcpHandle;
use super::handshake::continued;
use super::tcp::ConnectError;
use crate::tcp::fastopen::{CLIENT, CLIENT_NO_COOKIE};
use crate::tcp::{Connection, SegmentSizes, Settings};
use crate::time::Instant;
use crate::wire::tcp::{FastOpenCookie, OPTIONS_LEN_MAX};
use core::net::{IpAddr, SocketAddr};

/// How to connect.
#[derive(Clone, Copy, Debug)]
pub struct Connect {
    /// Local address and port.
    pub local: SocketAddr,
    /// Address and port of the peer.
    pub remote: SocketAddr,
    /// Settings of the connection.
    pub settings: Settings,
    /// Largest segment to send and to advertise (`TCP_MAXSEG`), in bytes of payload and options.
    pub max_segment: Option<u16>,
    /// Requests a Fast Open cookie, or sends data with the SYN if a cookie is known (RFC 7413).
    pub fast_open: bool,
    /// Sends data with the SYN without a cookie (`TCP_FASTOPEN_NO_COOKIE`).
    pub fast_open_no_cookie: bool,
}

impl Connect {
    /// A connection without Fast Open.
    pub fn new(local: SocketAddr, remote: SocketAddr, settings: &Settings) -> Self {
        let settings = *settings;
        let (fast_open, fast_open_no_cookie) = (false, false);
        Self { local, remote, settings, max_segment: None, fast_open, fast_open_no_cookie }
    }

    fn ends(&self) -> (IpAddr, IpAddr) {
        (self.local.ip(), self.remote.ip())
    }
}

impl Stack {
    /// Starts to connect, with the stack's settings.
    ///
    /// # Errors
    /// If the endpoints are in use, or at the limit of connections.
    pub fn tcp_connect(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        now: Instant,
    ) -> Result<TcpHandle, ConnectError> {
        let settings = self.tcp.settings;
        self.tcp_connect_with(&Connect::new(local, remote, &settings), now)
    }

    /// Starts to connect. With Fast Open, data that the owner passes to [`Connection::send`] before
    /// the next [`Stack::output`] goes with the SYN, up to [`Connection::syn_room`] bytes.
    ///
    /// # Errors
    /// If the endpoints are in use, or at the limit of connections.
    pub fn tcp_connect_with(
        &mut self,
        connect: &Connect,
        now: Instant,
    ) -> Result<TcpHandle, ConnectError> {
        let (local, remote) = (connect.local, connect.remote);
        if self.tcp_is_used(local, remote) {
            return Err(ConnectError::InUse);
        }
        if self.tcp.count() >= self.tcp.connections_max {
            return Err(ConnectError::Limit);
        }
        let past = self.tcp.time_wait.find(local, remote).map(|entry| entry.state.snd_nxt);
        self.tcp.time_wait.remove(local, remote);
        let sizes = self.connect_sizes(connect);
        let opening = continued(self.tcp.opening(local, remote, sizes, now), past);
        let settings = self.routed(remote.ip(), connect.settings);
        let mut connection = Connection::connect(opening, &settings, now);
        if connect.fast_open && connect.settings.fastopen & CLIENT != 0 {
            let (option, room) = self.syn_extras(connect, now);
            connection.set_fast_open(option, room);
            if self.tcp.metrics.is_retried(&connect.settings, now) {
                connection.retry_fast_open();
            }
        }
        let index = self.tcp.insert(connection);
        self.counters.connections += 1;
        self.tcp.settle(index, now);
        Ok(self.tcp.handle(index))
    }

    /// True if there is a connection with these endpoints that is not in TIME-WAIT.
    pub(crate) fn tcp_is_used(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        self.tcp.find(local, remote).is_some()
    }

    /// True if the last connection with these endpoints is in TIME-WAIT.
    pub(crate) fn tcp_in_time_wait(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        self.tcp.time_wait.find(local, remote).is_some()
    }

    /// Bytes of data that the SYN of this connection can carry. `None` without a cookie: then
    /// connecting cannot wait for data (`TCP_FASTOPEN_CONNECT`).
    pub fn tcp_syn_room(&self, connect: &Connect, now: Instant) -> Option<u32> {
        let allowed = connect.settings.fastopen & CLIENT != 0;
        let peer = self.tcp.metrics.get(connect.ends());
        let paused = self.tcp.metrics.is_paused(&connect.settings, now);
        let open = !paused && (peer.cookie.is_some() || needs_no_cookie(connect));
        (allowed && open).then(|| self.syn_extras(connect, now).1)
    }

    /// Removes all cached data about peers.
    pub fn forget_peers(&mut self) {
        self.tcp.metrics.clear();
    }

    fn connect_sizes(&self, connect: &Connect) -> SegmentSizes {
        self.segment_sizes(connect.remote.ip()).with_owner(connect.max_segment)
    }

    /// Fast Open option and data room of a first SYN (RFC 7413 §4.1.3, §4.2.1).
    fn syn_extras(&self, connect: &Connect, now: Instant) -> (Option<FastOpenCookie>, u32) {
        let peer = self.tcp.metrics.get(connect.ends());
        let sizes = self.connect_sizes(connect);
        let mss = sizes.path.min(sizes.owner);
        let mss = if peer.mss == 0 { mss } else { mss.min(peer.mss.into()) };
        // Leaves room for any options, so that a middlebox that adds some does not drop the SYN.
        let room = mss.saturating_sub(OPTIONS_LEN_MAX as u32);
        if self.tcp.metrics.is_paused(&connect.settings, now) {
            return (None, 0);
        }
        if needs_no_cookie(connect) {
            return (None, room);
        }
        match peer.cookie {
            Some(cookie) => (Some(cookie), room),
            None => (Some(FastOpenCookie::REQUEST.in_option(peer.no_cookie == 1)), 0),
        }
    }
}

fn needs_no_cookie(connect: &Connect) -> bool {
    connect.fast_open_no_cookie || connect.settings.fastopen & CLIENT_NO_COOKIE != 0
}
