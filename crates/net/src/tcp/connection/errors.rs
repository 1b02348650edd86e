//! ICMP errors about segments of a connection, and changes of its route.

use super::{Connection, ConnectionError, SegmentSizes, State, Turn};
use crate::pmtu_mode::PathMtu;
use crate::tcp::seq::Seq;
use crate::time::Instant;

impl Connection {
    /// True if a segment that begins with `sequence` may be in flight. An ICMP error that quotes
    /// anything else is forged or late (RFC 5927 §4).
    pub fn was_sent(&self, sequence: Seq) -> bool {
        self.send.was_sent(sequence, self.state.is_opening())
    }

    /// Handles an ICMP error about data in flight that reports the peer as unreachable. It ends an
    /// opening connection; an open one keeps trying (RFC 1122 §4.2.3.9, RFC 5461). So does a
    /// connection that Fast Open let in and its owner has `accepted`
    /// (`fastopen/server/icmp-baseline.pkt`).
    pub fn unreachable(&mut self, accepted: bool) {
        let early = self.handshake.fast_open().is_accepted() && accepted;
        if self.state == State::SynSent || (self.state == State::SynReceived && !early) {
            self.finish(Some(ConnectionError::Unreachable));
        }
    }

    /// Handles an ICMP error about data in flight that reports a path for segments of at most `mss`
    /// bytes with options (RFC 1191, RFC 8201). Outstanding data is retransmitted; a SYN without
    /// its data. A connection that ignores such errors, or lets packets be fragmented, learns the
    /// size when it next sends ([`Connection::reroute`]).
    pub fn too_big(&mut self, mss: u32, now: Instant) {
        let before = self.send.mss();
        if self.state == State::SynReceived || !self.send.on_too_big(mss) {
            return;
        }
        if self.state == State::SynSent {
            // Advertise no more than the path takes.
            self.receive.set_mss_max(self.receive.mss_max().min(self.send.path().size()));
            if self.handshake.fast_open().has_sent_data() {
                self.handshake.owe_syn();
            }
        } else if self.send.mss() < before {
            self.send.resend_larger(turn!(self, now));
        }
    }

    /// True if ICMP errors about its segments update the path. Errors about a request do not, and
    /// over IPv6 neither do those about a connection that ignores them.
    pub fn tells_path(&self) -> bool {
        let believes = self.send.path().discovery().believes_errors();
        self.state != State::SynReceived && (self.remote.is_ipv4() || believes)
    }

    /// Sets path MTU discovery (`IP_MTU_DISCOVER`, `IPV6_MTU_DISCOVER`).
    pub fn set_path_mtu(&mut self, discovery: PathMtu) {
        self.send.path_mut().set_discovery(discovery);
    }

    /// True if packets must not be fragmented.
    pub fn forbids_fragments(&self) -> bool {
        self.send.path().forbids_fragments()
    }

    /// Path MTU: bytes of the largest packet, headers included (`IP_MTU`).
    pub fn path_mtu(&self) -> u32 {
        self.send.path().mtu()
    }

    /// Takes new sizes of the device or the route. Smaller segments are sent at once, larger ones
    /// from the next write on.
    pub fn reroute(&mut self, sizes: &SegmentSizes) {
        if self.send.reroute(sizes) && self.state.is_opening() {
            self.receive.set_mss_max(sizes.advertised.min(self.send.path().owner()));
        }
    }
}
