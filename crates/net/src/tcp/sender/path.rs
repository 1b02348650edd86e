//! Segment sizes (RFC 9293 §3.7.1, RFC 6691), and what reports of the path change about them.
//!
//! All sizes here are payload plus options of one segment: a packet less its IP header and the
//! fixed part of the TCP header. The payload of a segment follows from the path, the peer's MSS
//! option, half of the peer's largest window and, during a search for the path MTU, what is proven
//! of the path.

use super::search::Search;
use crate::pmtu_mode::PathMtu;
use crate::tcp::segment::{MSS_DEFAULT_V4, MSS_MIN, TIMESTAMPS_LEN};
use crate::time::Instant;

/// Least segment size that a small window leads to.
const MSS_BOUND: u32 = 48;

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
pub(in crate::tcp) struct Path {
    sizes: SegmentSizes,
    /// Payload of a full segment.
    mss: u32,
    /// Largest segment that the peer takes: its MSS option, or the default.
    peer_mss: u32,
    /// The peer's MSS option; 0 if it had none.
    peer_option: u16,
    /// Bytes of options in every segment.
    options_len: u32,
    /// Bytes of headers: IP header and fixed part of the TCP header.
    headers: u32,
    /// Size of the path that the route reported last.
    reported: u32,
    reroute: Reroute,
    discovery: PathMtu,
    search: Search,
}

/// A route that takes larger segments than before and is not in use yet. The next packet finds the
/// route, and the next write takes its sizes: segments of one write have one size.
#[derive(Clone, Copy)]
enum Reroute {
    No,
    Announced(u32),
    Found(u32),
}

impl Path {
    /// State before anything is learned of a peer that takes `mss` bytes by default.
    pub(in crate::tcp) fn new(
        sizes: SegmentSizes,
        (v4, mss): (bool, u32),
        discovery: PathMtu,
        now: Instant,
    ) -> Self {
        Self {
            sizes,
            mss: mss.min(sizes.path).min(sizes.owner),
            peer_mss: mss,
            peer_option: 0,
            options_len: 0,
            headers: if v4 { 40 } else { 60 },
            reported: sizes.path,
            reroute: Reroute::No,
            discovery,
            search: Search::begin(false, (0, u32::MAX), now),
        }
    }

    /// Takes the MSS option of the peer's SYN. `timestamps` if both sides send them.
    pub(super) fn take_syn(&mut self, mss: Option<u16>, timestamps: bool) {
        self.peer_option = mss.unwrap_or(0);
        if self.peer_option > 0 {
            self.peer_mss = self.peer_option.into();
        }
        self.options_len = if timestamps { TIMESTAMPS_LEN } else { 0 };
        self.mss = self.payload_of(self.sizes.path);
    }

    /// Notes that a packet was sent.
    #[inline]
    pub(super) fn note_sent(&mut self) {
        if let Reroute::Announced(mss) = self.reroute {
            self.reroute = Reroute::Found(mss);
        }
    }

    /// Takes new sizes of the device or the route. Smaller segments are sent at once, larger ones
    /// from the next write on. `window` is the peer's largest. Returns true if the size of the path
    /// is new.
    pub(super) fn reroute(&mut self, sizes: &SegmentSizes, window: u32) -> bool {
        self.sizes.link = sizes.link;
        self.sizes.locked = sizes.locked;
        self.search.bound(sizes.link);
        if core::mem::replace(&mut self.reported, sizes.path) == sizes.path {
            return false;
        }
        self.reroute = Reroute::No;
        if sizes.path > self.sizes.path {
            self.reroute = Reroute::Announced(sizes.path);
        } else {
            self.set_size(sizes.path, window);
        }
        true
    }

    /// Takes the sizes of a new route when the owner writes.
    #[inline]
    pub(super) fn follow_route(&mut self, window: u32) {
        if let Reroute::Found(mss) = self.reroute {
            self.reroute = Reroute::No;
            self.set_size(mss, window);
        }
    }

    /// Sets the size that the path takes, and derives the payload of a segment.
    pub(super) fn set_size(&mut self, path: u32, window: u32) {
        self.sizes.path = path.max(MSS_MIN);
        self.search.bound(self.sizes.path);
        self.derive(window);
    }

    /// Takes a window that is larger than all before. The first one has no scale: half of it is
    /// less than a segment of 64 KiB.
    pub(super) fn widen(&mut self, window: u32) {
        if self.mss < self.payload_of(self.sizes.path) {
            self.derive(window);
        }
    }

    /// Derives the payload of a segment.
    pub(super) fn derive(&mut self, window: u32) {
        let mss = bound_to_half(self.payload_of(self.sizes.path), window);
        self.mss = mss.min(self.payload_of(self.search.proven()));
    }

    /// Payload of a segment of `mss` bytes with options, as far as the peer and the owner allow it.
    pub(super) fn payload_of(&self, mss: u32) -> u32 {
        mss.min(self.mss_clamp()).saturating_sub(self.options_len).max(MSS_MIN)
    }

    /// Largest segment that the peer and the owner allow.
    pub(super) fn mss_clamp(&self) -> u32 {
        self.peer_mss.min(self.sizes.owner)
    }

    /// True if an ICMP error that reports a path for segments of `mss` bytes changes the size.
    pub(super) fn believes(&self, mss: u32) -> bool {
        let cut = self.headers == 40 && self.discovery == PathMtu::Dont;
        let ignored = cut || !self.discovery.believes_errors() || self.sizes.locked;
        !ignored && mss < self.sizes.path
    }

    /// Payload of a full segment.
    #[inline]
    pub(in crate::tcp) fn mss(&self) -> u32 {
        self.mss
    }

    /// The peer's MSS option; 0 if it had none.
    pub(in crate::tcp) fn peer_option(&self) -> u16 {
        self.peer_option
    }

    /// Bytes of options in every segment.
    pub(in crate::tcp) fn options_len(&self) -> u32 {
        self.options_len
    }

    /// Size that the path takes, with options.
    pub(in crate::tcp) fn size(&self) -> u32 {
        self.sizes.path
    }

    /// Size that the device takes, with options.
    pub(super) fn link(&self) -> u32 {
        self.sizes.link
    }

    /// The owner's bound.
    pub(in crate::tcp) fn owner(&self) -> u32 {
        self.sizes.owner
    }

    /// Bytes of headers: IP header and fixed part of the TCP header.
    pub(super) fn headers(&self) -> u32 {
        self.headers
    }

    /// Bytes of the largest packet, headers included.
    pub(in crate::tcp) fn mtu(&self) -> u32 {
        self.sizes.path + self.headers
    }

    /// Path MTU discovery.
    pub(in crate::tcp) fn discovery(&self) -> PathMtu {
        self.discovery
    }

    /// Sets path MTU discovery.
    pub(in crate::tcp) fn set_discovery(&mut self, discovery: PathMtu) {
        self.discovery = discovery;
    }

    /// True if packets must not be fragmented.
    pub(in crate::tcp) fn forbids_fragments(&self) -> bool {
        self.discovery.forbids_fragments(self.sizes.locked)
    }

    /// The search for the path MTU.
    pub(in crate::tcp) fn search(&self) -> &Search {
        &self.search
    }

    /// The search for the path MTU, to change it.
    pub(super) fn search_mut(&mut self) -> &mut Search {
        &mut self.search
    }
}

/// Limits `bytes` to half of the peer's largest window (RFC 9293 §3.8.6.2.1), or to all of a window
/// that is no larger than a small segment.
pub(super) fn bound_to_half(bytes: u32, window: u32) -> u32 {
    let most = if window > MSS_DEFAULT_V4 { window / 2 } else { window };
    if most > 0 && bytes > most { most.max(MSS_BOUND) } else { bytes }
}
