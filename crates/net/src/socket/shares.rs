//! What a call lends to the send queue of a stream or to a datagram: loans that are shares of the
//! call's group, and so is the call while it runs.
//!
//! Some calls copy instead: what they lend is over within the call.

use super::stream::copy_piece_in;
use crate::stack::Context;
use crate::tcp::Connection;
use alloc::sync::Arc;
use towpath_packet::{Lender, Piece, Returns, Site};

/// Groups for which memory is allocated at a time.
pub(super) const GROUPS_PER_PART: usize = 16_384;

/// A call's share of its group: the group does not end before the call.
pub(super) struct Share {
    /// The part of the table that the group is in.
    pub(super) returns: Arc<Returns>,
    pub(super) group: u32,
    /// The call copies.
    pub(super) copies: bool,
}

/// The part of the table that a group is in, and its number there.
pub(super) fn place_of(group: u32) -> (usize, u32) {
    let per_part = GROUPS_PER_PART as u32;
    ((group / per_part) as usize, group % per_part)
}

/// The group for whose loans a token is.
pub(super) fn group_of(token: u64) -> u32 {
    (token >> 32) as u32 * GROUPS_PER_PART as u32 + token as u32
}

impl Share {
    /// Lends at most `most` bytes; `None` if no descriptor is free.
    pub(super) fn lend(
        &self,
        most: usize,
        lend: &mut impl FnMut(usize, Borrower) -> Option<Piece>,
    ) -> Option<Piece> {
        // The loan needs its own share, or its memory would be returned too early. This fails only
        // if the group has the maximum number of shares, as the call itself has one.
        let (part, place) = place_of(self.group);
        if !self.returns.share(place) {
            return None;
        }
        // [`Returns`] uses the lower half, [`group_of`] both.
        let token = (part as u64) << 32 | u64::from(place);
        let borrower = Borrower { lender: self.returns.clone(), token };
        let piece = lend(most, borrower);
        match &piece {
            Some(piece) => assert!((1..=most).contains(&piece.len()), "some, and not too much"),
            None => {
                self.returns.end(place, false);
            }
        }
        piece
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.returns.end(place_of(self.group).1, false);
    }
}

/// What `lend` needs to make a loan.
pub struct Borrower {
    /// Notified when the loan is over.
    pub lender: Arc<dyn Lender>,
    /// Token of the lender.
    pub token: u64,
}

/// The next bytes of a call.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) most: usize,
    /// Takes `most` bytes whatever room there is.
    pub(super) all: bool,
    /// They are the first of a write.
    pub(super) begins: bool,
    pub(super) copies: Copies,
}

/// Which bytes of a call are copied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Copies {
    Nothing,
    /// Those that others may write, so that they can be summed.
    Foreign,
    /// All, because no more may be lent.
    All,
}

impl Copies {
    /// For a call with this share. `sums` if the stack computes its checksums.
    pub(super) fn of(share: &Share, sums: bool) -> Self {
        match (share.copies, sums) {
            (true, _) => Copies::All,
            (false, true) => Copies::Foreign,
            (false, false) => Copies::Nothing,
        }
    }

    /// Where a piece is copied; `None` if it stays lent.
    fn site(self, piece: &Piece) -> Option<Site> {
        match self {
            Copies::Foreign if piece.is_foreign() => Some(Site::Checksum),
            Copies::All => Some(Site::SocketSend),
            Copies::Nothing | Copies::Foreign => None,
        }
    }
}

/// Why fewer bytes were appended than there was room for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lack {
    /// No descriptor is free for a loan.
    Descriptor,
    /// No frame is free for a copy.
    Frame,
}

/// Appends bytes of loans. Returns how many, and what was missing for more.
pub(super) fn append_lent(
    connection: &mut Connection,
    share: &Share,
    part: Part,
    lend: &mut impl FnMut(usize, Borrower) -> Option<Piece>,
    cx: &mut Context<'_>,
) -> (usize, Option<Lack>) {
    let group = share.group;
    let mut sent = 0;
    while sent < part.most {
        // If a buffer can take no more ranges, another one follows.
        let room = match part.all {
            true => part.most - sent,
            false => connection.send_room_lent(group).min(part.most - sent),
        };
        if room == 0 {
            break;
        }
        let Some(piece) = share.lend(room, lend) else { return (sent, Some(Lack::Descriptor)) };
        let (len, begins) = (piece.len(), part.begins && sent == 0);
        if let Some(site) = part.copies.site(&piece) {
            piece.mark_copied();
            let copied = copy_piece_in(connection, piece, (site, begins), cx);
            sent += copied;
            if copied < len {
                return (sent, Some(Lack::Frame));
            }
        } else {
            sent += len;
            connection.append_lent(piece, begins, group);
        }
    }
    (sent, None)
}
