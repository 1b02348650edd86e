//! Lends stretches of a buffer to the stack; what can come of it is [`Fed`].

use crate::host::lending::lend::Source;
use crate::host::lending::ticket::Share;
use std::sync::Arc;
use towpath_net::socket::{Borrower, Error};
use towpath_packet::{Loans, Piece};

/// Ranges of memory that a host lends at a time; what is to be lent beyond waits.
pub(in crate::host) const LOANS_MAX: usize = 65_536;

/// What became of a part of a send queue.
pub(in crate::host) enum Fed {
    All,
    /// The stack has no room.
    Full,
    /// No loan or no memory is free.
    Starved,
    Failed(Error),
}

/// Lends a stretch that begins at `at`, `most` bytes of it at most.
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
