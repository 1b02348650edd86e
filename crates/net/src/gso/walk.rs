//! Walks along the payload of packets, from piece to piece.

use core::ops::Range;

use towpath_packet::Piece;

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
}
