//! Cutting a run of pieces into packets.

use towpath_packet::{Holders, Packet, Piece};

/// Hands out a run of pieces in stretches of any length. Nothing is copied: a piece that lies
/// across a border gets one more holder for each border, all of them counted at once if stretches
/// are as long as was expected.
pub(crate) struct Cutter<I> {
    pieces: I,
    /// Bytes of a stretch, as far as is known.
    stretch: usize,
    /// What the last cut left of its piece.
    rest: Option<Piece>,
    /// For what will be cut from it.
    holders: Option<Holders>,
}

impl<I: Iterator<Item = Piece>> Cutter<I> {
    /// Stretches will have `stretch` bytes, most of them.
    ///
    /// # Panics
    /// If that is none.
    pub(crate) fn new(pieces: I, stretch: usize) -> Self {
        assert!(stretch > 0, "a stretch has bytes");
        Self { pieces, stretch, rest: None, holders: None }
    }

    /// Moves the next `len` bytes to the end of `packet`, which has no pieces yet.
    ///
    /// # Panics
    /// If fewer bytes are left.
    pub(crate) fn cut(&mut self, len: usize, packet: &mut Packet) {
        let mut left = len;
        while left > 0 {
            let mut piece = self.rest.take().unwrap_or_else(|| self.next_piece(left));
            if piece.len() > left {
                let part = match &mut self.holders {
                    Some(holders) => holders.slice(&piece, 0, left),
                    None => piece.slice(0, left),
                };
                piece.advance(left);
                self.rest = Some(core::mem::replace(&mut piece, part));
            }
            left -= piece.len();
            packet.push_piece(piece).expect("a part has no more pieces than the whole");
        }
    }

    /// The next piece, of which the stretch at hand wants `wanted` bytes at most.
    fn next_piece(&mut self, wanted: usize) -> Piece {
        let piece = self.pieces.next().expect("the caller cuts no more than there is");
        let borders = piece.len().saturating_sub(wanted).div_ceil(self.stretch);
        self.holders = (borders > 0).then(|| piece.reserve(borders as u32));
        piece
    }
}

/// Most packets that one is cut into. 64 KiB by 64 bytes: the smallest MSS that a peer can make
/// anyone use in earnest is 536 (RFC 9293 §3.7.1), and a stranger who asks for more work than this
/// is refused. Fragments of 48 bytes (a link of 68, RFC 791 §3.2) reach 48 KiB.
pub const PARTS_MAX: usize = 65_536 / 64;
