//! The ledger: every copy of payload bytes, counted by the place that made it.
//!
//! Copies of payload go through [`Ledger::copy`] or are reported with [`Ledger::count`]; header
//! bytes do not count. What passed through is counted too, so that copies per byte is a number
//! and not a claim. Counters are relaxed: they order nothing.

use crate::loan::Piece;
use crate::sync::{AtomicU64, Ordering};

/// The places that may copy payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Site {
    /// A packet's payload put into one stretch because a consumer cannot take pieces.
    Linearise,
    /// The beginning of an offending packet quoted in an ICMP error.
    IcmpQuote,
    /// Bytes that a program gave to a socket, put into frames.
    SocketSend,
    /// Received bytes put where a program wants them.
    SocketReceive,
    /// The end of a datagram in many fragments put into fewer frames, because a packet has room
    /// for a bounded number of pieces.
    Squeeze,
}

impl Site {
    /// All sites, in the order of their counters.
    pub const ALL: [Site; 5] =
        [Site::Linearise, Site::IcmpQuote, Site::SocketSend, Site::SocketReceive, Site::Squeeze];

    /// Name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Site::Linearise => "linearise",
            Site::IcmpQuote => "icmp_quote",
            Site::SocketSend => "socket_send",
            Site::SocketReceive => "socket_receive",
            Site::Squeeze => "squeeze",
        }
    }
}

/// Counts payload copies by site and payload bytes carried. Shared by reference; any thread.
#[derive(Default, Debug)]
pub struct Ledger {
    copied: [AtomicU64; Site::ALL.len()],
    carried: AtomicU64,
}

impl Ledger {
    /// A ledger with all counters at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Copies the start of `piece` into `to` and counts it; returns the bytes copied, the lesser
    /// of both lengths.
    pub fn copy(&self, site: Site, piece: &Piece, to: &mut [u8]) -> usize {
        let copied = piece.copy_to(to);
        self.count(site, copied);
        copied
    }

    /// Counts `bytes` of payload copied at `site` by other means.
    pub fn count(&self, site: Site, bytes: usize) {
        // Relaxed: a statistic.
        self.copied[site as usize].fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts `bytes` of payload that passed from one side to another.
    pub fn carry(&self, bytes: usize) {
        // Relaxed: a statistic.
        self.carried.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes copied at `site`.
    pub fn copied_at(&self, site: Site) -> u64 {
        // Relaxed: a statistic.
        self.copied[site as usize].load(Ordering::Relaxed)
    }

    /// Bytes copied at all sites.
    pub fn copied(&self) -> u64 {
        Site::ALL.iter().map(|&site| self.copied_at(site)).sum()
    }

    /// Payload bytes carried.
    pub fn carried(&self) -> u64 {
        // Relaxed: a statistic.
        self.carried.load(Ordering::Relaxed)
    }

    /// Copies per payload byte carried; zero before the first byte.
    pub fn copies_per_byte(&self) -> f64 {
        match self.carried() {
            0 => 0.0,
            carried => self.copied() as f64 / carried as f64,
        }
    }
}
