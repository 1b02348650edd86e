//! Lends contiguous parts of a buffer to the stack. [`Drained`] lists the possible results.

use crate::host::lending::lend::Source;
use crate::host::lending::ticket::Share;
use std::sync::Arc;
use towpath_net::socket::{Borrower, Error};
use towpath_packet::{Loans, Piece};

/// Most loans of a host at a time; further sends wait.
pub(in crate::host) const LOANS_MAX: usize = 65_536;

/// Result of passing an entry of a send queue to the stack.
pub(in crate::host) enum Drained {
    All,
    /// The stack has no room.
    Full,
    /// No loan or no memory is free.
    Starved,
    Failed(Error),
}

/// Lends a contiguous part that begins at `at`, of at most `most` bytes.
pub(in crate::host) fn lend(
    source: &Arc<dyn Source>,
    ticket: &Share,
    (at, most): (usize, usize),
    loans: &mut Loans,
    borrower: Borrower,
) -> Option<Piece> {
    ticket.share(Some(borrower.lender));
    let piece = source.clone().lend(loans, at, most, ticket.lender(), borrower.token);
    if piece.is_none() {
        ticket.unshare();
    }
    piece
}
