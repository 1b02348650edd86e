//! Statistics about lending and copying, for programs.

use crate::errno::{Errno, Outcome};
use crate::instance::Instance;
use std::time::Duration;
use towpath::layers::net::counters::DropReason;
use towpath::layers::packet::Site;

/// Number of fields of `struct towpath_stats`, each of 64 bits.
const FIGURES: usize = 8 + SITES + 3 + 8 + 2;
/// Sites with a field in the first version: the first ones. The later sites belong to guests,
/// except for [`Site::File`], which has a later field.
const SITES: usize = 8;
/// Largest structure that a later version may have.
const STATS_BYTES_MAX: usize = 4096;

// The structure has a field for each of these sites, in this order. New fields go to its end.
const _: () = assert!(Site::Checksum as usize == SITES - 1);

impl Instance {
    /// The values in the order of `struct towpath_stats`.
    fn figures(&self) -> [u64; FIGURES] {
        self.call(|state| {
            let now = state.now();
            let refused = state.engine.device.refused();
            let (sending, unacknowledged) = state.sending();
            state.with(|sockets, cx| {
                let (ledger, lent) = (cx.ledger, sockets.lent_stats(now));
                let files = self.file_cache.stats();
                let oldest = lent.oldest.unwrap_or(Duration::ZERO).as_micros();
                let [a, b, c, d, e, f, g, h, ..] = Site::ALL.map(|site| ledger.copied_at(site));
                [
                    ledger.carried(),
                    ledger.copied(),
                    ledger.lent(),
                    ledger.hits(),
                    lent.calls,
                    lent.bytes,
                    u64::try_from(oldest).unwrap_or(u64::MAX),
                    lent.terms_fired,
                    a,
                    b,
                    c,
                    d,
                    e,
                    f,
                    g,
                    h,
                    lent.recalls,
                    lent.starved,
                    sockets.stack().counters().dropped(DropReason::LinkGone),
                    ledger.copied_at(Site::File),
                    files.bytes as u64,
                    files.hits,
                    files.misses,
                    files.private,
                    files.evicted,
                    files.direct,
                    refused,
                    sending as u64,
                    unacknowledged as u64,
                ]
            })
        })
    }

    /// Fills a `struct towpath_stats` of the length that the program knows. Fields that this
    /// library does not know are zero.
    ///
    /// # Errors
    /// `EINVAL` for a length that no version of the structure has, `E2BIG` for one that no version
    /// will have.
    pub(crate) fn write_stats(&self, room: &mut [u8]) -> Outcome<()> {
        if room.is_empty() || !room.len().is_multiple_of(size_of::<u64>()) {
            return Err(Errno::INVAL);
        }
        if room.len() > STATS_BYTES_MAX {
            return Err(Errno(libc::E2BIG));
        }
        room.fill(0);
        for (field, figure) in room.chunks_exact_mut(size_of::<u64>()).zip(self.figures()) {
            field.copy_from_slice(&figure.to_ne_bytes());
        }
        Ok(())
    }
}
