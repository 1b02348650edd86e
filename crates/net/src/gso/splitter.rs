//! Splits a run of pieces into packets.

use towpath_packet::{Holders, Packet, Piece};

/// Splits a run of pieces into stretches of any length. Nothing is copied. A piece that extends
/// across boundaries gets one more holder per boundary; if stretches have the expected length, all
/// holders are counted at once.
pub(crate) struct Splitter<I> {
    pieces: I,
    /// Expected bytes per stretch.
    stretch: usize,
    /// Rest of the last piece.
    rest: Option<Piece>,
    /// Reserved holders for `rest`.
    holders: Option<Holders>,
}

impl<I: Iterator<Item = Piece>> Splitter<I> {
    /// Creates a splitter that expects stretches of `stretch` bytes.
    ///
    /// # Panics
    /// If `stretch` is zero.
    pub(crate) fn new(pieces: I, stretch: usize) -> Self {
        assert!(stretch > 0, "a stretch has bytes");
        Self { pieces, stretch, rest: None, holders: None }
    }

    /// Moves the next `len` bytes into `packet`, which must have room for their pieces.
    ///
    /// # Panics
    /// If fewer bytes are left.
    pub(crate) fn split(&mut self, len: usize, packet: &mut Packet) {
        let mut left = len;
        while left > 0 {
            let piece = self.next(left);
            left -= piece.len();
            packet.push_piece(piece).expect("a part has no more pieces than the whole");
        }
    }

    /// Takes the next bytes that lie in one piece, at most `most`.
    fn next(&mut self, most: usize) -> Piece {
        let mut piece = self.rest.take().unwrap_or_else(|| self.next_piece(most));
        if piece.len() > most {
            let part = match &mut self.holders {
                Some(holders) => holders.slice(&piece, 0, most),
                None => piece.slice(0, most),
            };
            piece.advance(most);
            self.rest = Some(core::mem::replace(&mut piece, part));
        }
        piece
    }

    /// Takes the next piece, of which the current stretch needs at most `wanted` bytes.
    fn next_piece(&mut self, wanted: usize) -> Piece {
        let piece = self.pieces.next().expect("the caller cuts no more than there is");
        let borders = piece.len().saturating_sub(wanted).div_ceil(self.stretch);
        self.holders = (borders > 0).then(|| piece.reserve(borders as u32));
        piece
    }
}

/// Maximum number of packets that a packet is split into: 64 KiB by 64 bytes. The smallest MSS in
/// practice is 536 (RFC 9293 §3.7.1), and a peer that demands more work than this is rejected.
/// Fragments of 48 bytes (a link MTU of 68, RFC 791 §3.2) cover 48 KiB.
pub const PARTS_MAX: usize = 65_536 / 64;
