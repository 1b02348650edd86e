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
    /// What came in many bits, as fragments of a datagram or in a stream, put into fewer frames,
    /// because a packet has room for a bounded number of pieces.
    Squeeze,
    /// Lent memory whose lender gets it back before the last piece is gone.
    Recall,
    /// Small received pieces put into one frame, so that who keeps them keeps less memory.
    Pack,
    /// Memory that others may write, put into frames because its checksum is made in software.
    Checksum,
    /// What goes into a guest's receive buffers.
    Guest,
    /// Frames of a guest that are not lent: small ones, and those beyond what may be out at once.
    GuestSmall,
    /// Lent memory put into frames at a switch that is told not to share it.
    Orphan,
    /// What is read of files into memory that is lent.
    File,
}

impl Site {
    /// All sites, in the order of their counters.
    pub const ALL: [Site; 12] = [
        Site::Linearise,
        Site::IcmpQuote,
        Site::SocketSend,
        Site::SocketReceive,
        Site::Squeeze,
        Site::Recall,
        Site::Pack,
        Site::Checksum,
        Site::Guest,
        Site::GuestSmall,
        Site::Orphan,
        Site::File,
    ];

    /// Name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Site::Linearise => "linearise",
            Site::IcmpQuote => "icmp_quote",
            Site::SocketSend => "socket_send",
            Site::SocketReceive => "socket_receive",
            Site::Squeeze => "squeeze",
            Site::Recall => "recall",
            Site::Pack => "pack",
            Site::Checksum => "checksum",
            Site::Guest => "guest",
            Site::GuestSmall => "guest_small",
            Site::Orphan => "orphan",
            Site::File => "file",
        }
    }
}

/// Counts payload copies by site and payload bytes carried. Shared by reference; any thread.
#[derive(Default, Debug)]
pub struct Ledger {
    copied: [AtomicU64; Site::ALL.len()],
    carried: AtomicU64,
    lent: AtomicU64,
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

    /// Counts `bytes` that a program lent instead of having them copied.
    pub fn lend(&self, bytes: usize) {
        // Relaxed: a statistic.
        self.lent.fetch_add(bytes as u64, Ordering::Relaxed);
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

    /// Payload bytes that programs lent.
    pub fn lent(&self) -> u64 {
        // Relaxed: a statistic.
        self.lent.load(Ordering::Relaxed)
    }

    /// Lent bytes that were not copied after all. A loan is recalled whole, and what is sent again
    /// may be copied for its checksum again, so this is a lower bound.
    pub fn hits(&self) -> u64 {
        let copied = self.copied_at(Site::Recall) + self.copied_at(Site::Checksum);
        self.lent().saturating_sub(copied)
    }

    /// The part of the lent bytes that was not copied after all, as [`Ledger::hits`] has it; one
    /// before the first byte.
    pub fn hit_rate(&self) -> f64 {
        match self.lent() {
            0 => 1.0,
            lent => self.hits() as f64 / lent as f64,
        }
    }

    /// Copies per payload byte carried; zero before the first byte.
    pub fn copies_per_byte(&self) -> f64 {
        match self.carried() {
            0 => 0.0,
            carried => self.copied() as f64 / carried as f64,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_was_lent_and_copied_after_all_is_no_hit() {
        let ledger = Ledger::new();
        assert_eq!((ledger.hit_rate(), ledger.copies_per_byte()), (1.0, 0.0));
        ledger.lend(1000);
        ledger.carry(2000);
        ledger.count(Site::SocketReceive, 1000);
        assert_eq!((ledger.hit_rate(), ledger.copies_per_byte()), (1.0, 0.5));
        ledger.count(Site::Recall, 250);
        assert_eq!((ledger.hit_rate(), ledger.hits()), (0.75, 750));
        ledger.count(Site::Checksum, 250);
        assert_eq!(ledger.hit_rate(), 0.5);
        ledger.count(Site::Recall, 4096);
        assert_eq!((ledger.hit_rate(), ledger.lent()), (0.0, 1000), "whole loans are copied");
    }
}
