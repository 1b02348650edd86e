//! Cutting a run of pieces into packets.

use towpath_packet::{Packet, Piece};

/// Hands out a run of pieces in stretches of any length. Nothing is copied: a piece that lies
/// across a border gets one more holder.
pub(crate) struct Cutter<I> {
    pieces: I,
    /// What the last cut left of its piece.
    rest: Option<Piece>,
}

impl<I: Iterator<Item = Piece>> Cutter<I> {
    pub(crate) fn new(pieces: I) -> Self {
        Self { pieces, rest: None }
    }

    /// Moves the next `len` bytes to the end of `packet`, which has no pieces yet.
    ///
    /// # Panics
    /// If fewer bytes are left.
    pub(crate) fn cut(&mut self, len: usize, packet: &mut Packet) {
        let mut left = len;
        while left > 0 {
            let next = self.rest.take().or_else(|| self.pieces.next());
            let mut piece = next.expect("the caller cuts no more than there is");
            if piece.len() > left {
                self.rest = Some(piece.slice(left, piece.len() - left));
                piece.truncate(left);
            }
            left -= piece.len();
            packet.push_piece(piece).expect("a part has no more pieces than the whole");
        }
    }
}

/// Most packets that one is cut into. 64 KiB by 64 bytes: the smallest MSS that a peer can make
/// anyone use in earnest is 536 (RFC 9293 §3.7.1), and a stranger who asks for more work than this
/// is refused. Fragments of 48 bytes (a link of 68, RFC 791 §3.2) reach 48 KiB.
pub const PARTS_MAX: usize = 65_536 / 64;
