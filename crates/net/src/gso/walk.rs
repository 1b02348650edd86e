//! Walks along the payload of packets, from piece to piece.

use core::ops::Range;

use towpath_packet::{Ledger, Packet, Piece};

use super::sum::add_stretch;
use crate::checksum::Sum;

/// A walk along payload.
pub(crate) struct Walk<'a, I> {
    pieces: I,
    /// The piece that is next, and where in it.
    piece: Option<&'a Piece>,
    at: usize,
}

impl<'a, I: Iterator<Item = &'a Piece>> Walk<'a, I> {
    pub(crate) fn of(mut pieces: I) -> Self {
        Self { piece: pieces.next(), at: 0, pieces }
    }

    /// The next bytes in one piece, at most `most`. `None` at the end.
    pub(crate) fn next(&mut self, most: usize) -> Option<(&'a Piece, Range<usize>)> {
        let piece = self.piece?;
        let range = self.at..piece.len().min(self.at + most);
        self.at = range.end;
        if self.at == piece.len() {
            (self.piece, self.at) = (self.pieces.next(), 0);
        }
        Some((piece, range))
    }

    /// Adds the next `len` bytes to a sum, or as many as there are.
    pub(crate) fn add_next(&mut self, len: usize, sum: &mut Sum, ledger: &Ledger) {
        let mut left = len;
        while left > 0
            && let Some((piece, range)) = self.next(left)
        {
            left -= range.len();
            add_stretch(sum, piece, range, ledger);
        }
    }
}

/// Moves the first `len` bytes of the payload of a packet behind the payload of another.
///
/// # Panics
/// If `from` has fewer bytes, or `to` no room for their pieces.
pub(crate) fn move_front(from: &mut Packet, len: usize, to: &mut Packet) {
    let mut left = len;
    while left > 0 {
        let piece = from.pieces().next().expect("there are so many bytes");
        let piece = piece.slice(0, left.min(piece.len()));
        left -= piece.len();
        from.drop_front(piece.len());
        to.push_piece(piece).expect("there is room for the pieces");
    }
}
