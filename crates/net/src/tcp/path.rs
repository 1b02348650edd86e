//! What is learnt of the path: ICMP errors about segments of ours, and how large those may be.
//!
//! All sizes here are payload and options of one segment: a packet's less its IP header and the
//! fixed part of the TCP header. What a segment carries follows from the path, from the peer's
//! word, from half of its largest window, and, while the path is searched, from what is proved of
//! it (Linux's tcp_sync_mss).

use super::connection::{Connection, MSS_MIN, TIMESTAMPS_LEN};
use super::probing::Search;
use super::seq::Seq;
use super::state::{ConnectionError, State};
use crate::path_mtu::PathMtu;
use crate::time::Instant;

/// How large segments may be, as far as is known when a connection begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSizes {
    /// What the peer is asked to keep to.
    pub advertised: u32,
    /// What the path takes.
    pub path: u32,
    /// What the device takes: no probe of the path is larger.
    pub link: u32,
    /// The owner's bound (`TCP_MAXSEG`).
    pub owner: u32,
    /// What the path takes is fixed: no error changes it, and somebody must cut the rest.
    pub locked: bool,
}

impl SegmentSizes {
    /// A path that takes what the device takes.
    pub fn of_link(mss: u32) -> Self {
        Self { advertised: mss, path: mss, link: mss, owner: u32::MAX, locked: false }
    }

    /// With a bound of the owner's.
    pub fn with_owner(self, max: Option<u16>) -> Self {
        let owner = max.map_or(u32::MAX, u32::from);
        Self { advertised: self.advertised.min(owner), owner, ..self }
    }
}

/// What a connection knows of its path.
pub(super) struct Path {
    pub(super) sizes: SegmentSizes,
    /// What the route said last about the path.
    told: u32,
    reroute: Reroute,
    discovery: PathMtu,
    pub(super) search: Search,
}

/// A route that takes larger segments than before, until they are sent. As in Linux the next
/// packet finds the route, and the next write its sizes.
#[derive(Clone, Copy)]
enum Reroute {
    No,
    Announced(u32),
    Found(u32),
}

impl Path {
    /// Nothing learnt yet.
    pub(super) fn new(sizes: SegmentSizes, discovery: PathMtu, now: Instant) -> Self {
        let (told, reroute) = (sizes.path, Reroute::No);
        Self { sizes, told, reroute, discovery, search: Search::new(now) }
    }

    /// A packet was sent.
    pub(super) fn note_sent(&mut self) {
        if let Reroute::Announced(mss) = self.reroute {
            self.reroute = Reroute::Found(mss);
        }
    }
}

impl Connection {
    /// True if what begins with `sequence` may be on its way: an error that quotes anything else is
    /// forged or late (RFC 5927 §4).
    pub fn was_sent(&self, sequence: Seq) -> bool {
        let first = if self.state.is_opening() { self.send.iss } else { self.send.una };
        sequence.at_or_after(first) && sequence.before(self.send.nxt)
    }

    /// An ICMP error about what was sent says that the peer cannot be reached. Ends an opening
    /// connection; an open one goes on trying (RFC 1122 §4.2.3.9, RFC 5461), and so does one that
    /// Fast Open let in and its owner has `accepted`, as on Linux.
    pub fn unreachable(&mut self, accepted: bool) {
        let passive = self.state == State::SynReceived && !(self.fast_open.accepted && accepted);
        if passive || self.state == State::SynSent {
            self.finish(Some(ConnectionError::Unreachable));
        }
    }

    /// An ICMP error about what was sent says that the path takes segments of `mss` bytes with
    /// options at most (RFC 1191, RFC 8201). What is outstanding is sent again: a SYN without the
    /// data that was too much. Who does not believe it, or lets packets be cut, learns it when it
    /// next sends ([`Connection::reroute`]).
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

    /// True if errors about its segments tell of the path. As on Linux those about a request do
    /// not, and over IPv6 those about a connection that does not believe them.
    pub fn tells_path(&self) -> bool {
        let believes = self.remote.is_ipv4() || self.path.discovery.believes_errors();
        self.state != State::SynReceived && believes
    }

    /// What is done about the MTU of the path (`IP_MTU_DISCOVER`, `IPV6_MTU_DISCOVER`).
    pub fn set_path_mtu(&mut self, discovery: PathMtu) {
        self.path.discovery = discovery;
    }

    /// Segments may not be cut on the way.
    pub fn forbids_fragments(&self) -> bool {
        self.path.discovery.forbids_fragments(self.path.sizes.locked)
    }

    /// Bytes of the largest packet on the path, headers included (`IP_MTU`).
    pub fn path_mtu(&self) -> u32 {
        let ip_header = if self.remote.is_ipv4() { 20 } else { 40 };
        self.path.sizes.path + ip_header + 20
    }

    /// The device or the route takes other sizes from now on. Smaller segments are sent at once,
    /// larger ones from the next write on.
    pub fn reroute(&mut self, sizes: &SegmentSizes) {
        let known = &mut self.path.sizes;
        known.link = sizes.link;
        known.locked = sizes.locked;
        let search = &mut self.path.search;
        search.high = search.high.min(sizes.link);
        if core::mem::replace(&mut self.path.told, sizes.path) == sizes.path {
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

    /// The owner writes: what is known of a new route counts from now on.
    pub(super) fn follow_route(&mut self) {
        if let Reroute::Found(mss) = self.path.reroute {
            self.path.reroute = Reroute::No;
            self.sync_mss(mss);
        }
    }

    /// The path takes segments of `path` bytes with options (Linux's tcp_sync_mss).
    pub(super) fn sync_mss(&mut self, path: u32) {
        let path = path.max(MSS_MIN);
        self.path.sizes.path = path;
        let search = &mut self.path.search;
        search.high = search.high.min(path);
        let proved = if search.enabled { search.low } else { u32::MAX };
        let mss = self.bound_to_half_window(self.payload_of(path));
        self.send.mss = mss.min(self.payload_of(proved));
    }

    /// Payload of a segment of `mss` bytes with options, as far as the peer and the owner allow it
    /// (Linux's tcp_mtu_to_mss).
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

    /// Bytes of options that every segment has.
    pub(super) fn options_len(&self) -> u32 {
        if self.timestamps.enabled { TIMESTAMPS_LEN } else { 0 }
    }

    /// A SYN asks for no more than its path takes.
    fn advertise_path(&mut self) {
        let sizes = &mut self.path.sizes;
        sizes.advertised = sizes.advertised.min(sizes.path);
    }
}
