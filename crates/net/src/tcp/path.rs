//! What a connection knows of its path: ICMP errors about its segments, and segment sizes.
//!
//! All sizes here are payload plus options of one segment: a packet less its IP header and the
//! fixed part of the TCP header. The payload of a segment follows from the path, the peer's MSS
//! option, half of the peer's largest window and, during a search for the path MTU, what is proven
//! of the path.

use super::connection::{Connection, MSS_MIN, TIMESTAMPS_LEN};
use super::mtu_probe::Search;
use super::seq::Seq;
use super::state::{ConnectionError, State};
use crate::pmtu_mode::PathMtu;
use crate::time::Instant;

/// Limits of segment sizes when a connection begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSizes {
    /// Size that is advertised to the peer.
    pub advertised: u32,
    /// Size that the path takes.
    pub path: u32,
    /// Size that the device takes: no probe of the path is larger.
    pub link: u32,
    /// The owner's bound (`TCP_MAXSEG`).
    pub owner: u32,
    /// The size that the path takes is fixed: no error changes it, and larger packets are
    /// fragmented.
    pub locked: bool,
}

impl SegmentSizes {
    /// Sizes for a path that takes what the device takes.
    pub fn of_link(mss: u32) -> Self {
        Self { advertised: mss, path: mss, link: mss, owner: u32::MAX, locked: false }
    }

    /// Adds the owner's bound.
    pub fn with_owner(self, max: Option<u16>) -> Self {
        let owner = max.map_or(u32::MAX, u32::from);
        Self { advertised: self.advertised.min(owner), owner, ..self }
    }
}

/// State of the path of a connection.
pub(super) struct Path {
    pub(super) sizes: SegmentSizes,
    /// Size of the path that the route reported last.
    reported: u32,
    reroute: Reroute,
    discovery: PathMtu,
    pub(super) search: Search,
}

/// A route that takes larger segments than before and is not in use yet. As on Linux the next
/// packet finds the route, and the next write takes its sizes.
#[derive(Clone, Copy)]
enum Reroute {
    No,
    Announced(u32),
    Found(u32),
}

impl Path {
    /// State before anything is learned.
    pub(super) fn new(sizes: SegmentSizes, discovery: PathMtu, now: Instant) -> Self {
        let (reported, reroute) = (sizes.path, Reroute::No);
        Self { sizes, reported, reroute, discovery, search: Search::new(now) }
    }

    /// Notes that a packet was sent.
    pub(super) fn note_sent(&mut self) {
        if let Reroute::Announced(mss) = self.reroute {
            self.reroute = Reroute::Found(mss);
        }
    }
}

impl Connection {
    /// True if a segment that begins with `sequence` may be in flight. An ICMP error that quotes
    /// anything else is forged or late (RFC 5927 §4).
    pub fn was_sent(&self, sequence: Seq) -> bool {
        let first = if self.state.is_opening() { self.send.iss } else { self.send.una };
        sequence.at_or_after(first) && sequence.before(self.send.nxt)
    }

    /// Handles an ICMP error about data in flight that reports the peer as unreachable. It ends an
    /// opening connection; an open one keeps trying (RFC 1122 §4.2.3.9, RFC 5461). As on Linux, so
    /// does a connection that Fast Open let in and its owner has `accepted`.
    pub fn unreachable(&mut self, accepted: bool) {
        let passive = self.state == State::SynReceived && !(self.fast_open.accepted && accepted);
        if passive || self.state == State::SynSent {
            self.finish(Some(ConnectionError::Unreachable));
        }
    }

    /// Handles an ICMP error about data in flight that reports a path for segments of at most `mss`
    /// bytes with options (RFC 1191, RFC 8201). Outstanding data is retransmitted; a SYN without
    /// its data. A connection that ignores such errors, or lets packets be fragmented, learns the
    /// size when it next sends ([`Connection::reroute`]).
    pub fn too_big(&mut self, mss: u32, now: Instant) {
        let cut = self.remote.is_ipv4() && self.path.discovery == PathMtu::Dont;
        let ignored = cut || !self.path.discovery.believes_errors() || self.path.sizes.locked;
        if self.state == State::SynReceived || ignored || mss >= self.path.sizes.path {
            return;
        }
        let before = self.send.mss;
        self.sync_mss(mss);
        if self.state == State::SynSent {
            self.advertise_path();
            self.send.syn_due |= self.fast_open.sent > 0;
        } else if self.send.mss < before {
            self.resend_larger(now);
        }
    }

    /// True if ICMP errors about its segments update the path. As on Linux, errors about a request
    /// do not, and over IPv6 neither do those about a connection that ignores them.
    pub fn tells_path(&self) -> bool {
        let believes = self.remote.is_ipv4() || self.path.discovery.believes_errors();
        self.state != State::SynReceived && believes
    }

    /// Sets path MTU discovery (`IP_MTU_DISCOVER`, `IPV6_MTU_DISCOVER`).
    pub fn set_path_mtu(&mut self, discovery: PathMtu) {
        self.path.discovery = discovery;
    }

    /// True if packets must not be fragmented.
    pub fn forbids_fragments(&self) -> bool {
        self.path.discovery.forbids_fragments(self.path.sizes.locked)
    }

    /// Path MTU: bytes of the largest packet, headers included (`IP_MTU`).
    pub fn path_mtu(&self) -> u32 {
        let ip_header = if self.remote.is_ipv4() { 20 } else { 40 };
        self.path.sizes.path + ip_header + 20
    }

    /// Takes new sizes of the device or the route. Smaller segments are sent at once, larger ones
    /// from the next write on.
    pub fn reroute(&mut self, sizes: &SegmentSizes) {
        let known = &mut self.path.sizes;
        known.link = sizes.link;
        known.locked = sizes.locked;
        let search = &mut self.path.search;
        search.high = search.high.min(sizes.link);
        if core::mem::replace(&mut self.path.reported, sizes.path) == sizes.path {
            return;
        }
        self.path.reroute = Reroute::No;
        if sizes.path > self.path.sizes.path {
            self.path.reroute = Reroute::Announced(sizes.path);
        } else {
            self.sync_mss(sizes.path);
        }
        if self.state.is_opening() {
            self.path.sizes.advertised = sizes.advertised.min(self.path.sizes.owner);
        }
    }

    /// Takes the sizes of a new route when the owner writes.
    pub(super) fn follow_route(&mut self) {
        if let Reroute::Found(mss) = self.path.reroute {
            self.path.reroute = Reroute::No;
            self.sync_mss(mss);
        }
    }

    /// Sets the size that the path takes, with options, and derives the payload of a segment.
    pub(super) fn sync_mss(&mut self, path: u32) {
        let path = path.max(MSS_MIN);
        self.path.sizes.path = path;
        let search = &mut self.path.search;
        search.high = search.high.min(path);
        let proved = if search.enabled { search.low } else { u32::MAX };
        let mss = self.bound_to_half_window(self.payload_of(path));
        self.send.mss = mss.min(self.payload_of(proved));
    }

    /// Payload of a segment of `mss` bytes with options, as far as the peer and the owner allow it.
    pub(super) fn payload_of(&self, mss: u32) -> u32 {
        mss.min(self.mss_clamp()).saturating_sub(self.options_len()).max(MSS_MIN)
    }

    /// Largest segment that the peer and the owner allow.
    pub(super) fn mss_clamp(&self) -> u32 {
        let peer = match self.peer_mss {
            0 => self.mss_default(),
            mss => mss.into(),
        };
        peer.min(self.path.sizes.owner)
    }

    /// Bytes of options in every segment.
    pub(super) fn options_len(&self) -> u32 {
        if self.timestamps.enabled { TIMESTAMPS_LEN } else { 0 }
    }

    /// Advertises no more than the path takes.
    fn advertise_path(&mut self) {
        let sizes = &mut self.path.sizes;
        sizes.advertised = sizes.advertised.min(sizes.path);
    }
}
