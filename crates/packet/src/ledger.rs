//! The ledger: counts every copy of payload bytes by the site that made it.
//!
//! Copies of payload go through [`Ledger::copy`] or are reported with [`Ledger::count`]; header
//! bytes do not count. Bytes carried are counted, too, so that the number of copies per byte is
//! measured. Counters are relaxed: they order nothing.

use crate::loan::Piece;
use crate::sync::{AtomicU64, Ordering};

/// The sites that may copy payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Site {
    /// Payload of a packet made contiguous, because a consumer cannot take pieces.
    Linearise,
    /// The beginning of an offending packet quoted in an ICMP error.
    IcmpQuote,
    /// Bytes that a program passed to a socket, copied into frames.
    SocketSend,
    /// Received bytes, copied to a buffer of the program.
    SocketReceive,
    /// Bytes that came in many small parts, as fragments of a datagram or in a stream, copied into
    /// fewer frames because a packet has room for a bounded number of pieces.
    Squeeze,
    /// Lent memory that goes back to its lender before the last piece is dropped.
    Recall,
    /// Small received pieces packed into one frame, so that their holder keeps less memory.
    Pack,
    /// Memory that others may write, copied into frames because its checksum is computed in
    /// software.
    Checksum,
    /// Bytes copied into a guest's receive buffers.
    Guest,
    /// Frames of a guest or an uplink that are not lent: small ones, and those above the limit of
    /// loans.
    GuestSmall,
    /// Lent memory copied into frames at a switch that is configured not to share it.
    Orphan,
    /// Bytes read from files into memory that is lent.
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

    /// The name used in reports.
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

/// Counts payload copies by site, and payload bytes carried. Shared by reference; any thread may
/// use it.
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

    /// Copies the beginning of `piece` into `to` and counts it. Returns the number of bytes copied,
    /// the smaller of both lengths.
    pub fn copy(&self, site: Site, piece: &Piece, to: &mut [u8]) -> usize {
        let copied = piece.copy_to(to);
        self.count(site, copied);
        copied
    }

    /// Counts `bytes` of payload that were copied at `site` by other means.
    pub fn count(&self, site: Site, bytes: usize) {
        // Relaxed: a statistic.
        self.copied[site as usize].fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts `bytes` of payload that passed from one side to another.
    pub fn carry(&self, bytes: usize) {
        // Relaxed: a statistic.
        self.carried.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts `bytes` that a program lent and did not pass for copying.
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

    /// Lent bytes that were not copied. A lower bound: a loan is recalled as a whole, and bytes
    /// that are retransmitted may be copied for their checksum again.
    pub fn hits(&self) -> u64 {
        let copied = self.copied_at(Site::Recall) + self.copied_at(Site::Checksum);
        self.lent().saturating_sub(copied)
    }

    /// The fraction of lent bytes that were not copied, from [`Ledger::hits`]; one if nothing was
    /// lent.
    pub fn hit_rate(&self) -> f64 {
        match self.lent() {
            0 => 1.0,
            lent => self.hits() as f64 / lent as f64,
        }
    }

    /// Copies per payload byte carried; zero if nothing was carried.
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
