//! Which addresses are this host's own.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use towpath_io::socket::UdpSocket;
use towpath_net::time::Instant;

/// How long an answer of the kernel is used.
const KNOWN: Duration = Duration::from_secs(1);
/// Most answers that are kept.
const ANSWERS_MAX: usize = 1024;

/// Answers of the kernel, and until when they are used.
#[derive(Default)]
pub(super) struct OwnAddresses(HashMap<IpAddr, (bool, Instant)>);

impl OwnAddresses {
    /// Returns true if an address is one of this host: a socket that is connected to it has the
    /// same address. Connecting a datagram socket sends nothing.
    pub(super) fn ask(&mut self, address: SocketAddr, now: Instant) -> bool {
        if let Some((is_own, until)) = self.0.get(&address.ip())
            && *until > now
        {
            return *is_own;
        }
        if self.0.len() >= ANSWERS_MAX {
            self.0.clear();
        }
        // Any port serves; echo requests have none.
        let to = SocketAddr::new(address.ip(), address.port().max(1));
        let local = UdpSocket::connect(to).and_then(|socket| socket.local());
        let is_own = local.is_ok_and(|local| local.ip() == address.ip());
        self.0.insert(address.ip(), (is_own, now + KNOWN));
        is_own
    }

    /// Returns true if an answer that is still used says so.
    pub(super) fn is_known(&self, address: IpAddr, now: Instant) -> bool {
        self.0.get(&address).is_some_and(|(is_own, until)| *is_own && *until > now)
    }
}
