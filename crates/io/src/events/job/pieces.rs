//! Writes of received pieces to files: one call or request for many pieces, which the kernel reads
//! where they are.

use super::ranges::Ranges;
use super::step::Step;
use std::fs::File;
use std::sync::Arc;
use towpath_packet::PinnedPiece;

/// Most pieces of one step: `UIO_MAXIOV`.
const RANGES_MAX: usize = 1024;

/// Writes pieces to a file, one after the other.
#[derive(Debug)]
pub struct PieceWrite {
    /// The file, which stays open meanwhile.
    pub(super) file: Arc<File>,
    /// Offset of the first byte in the file.
    pub(super) at: u64,
    pieces: Vec<PinnedPiece>,
    bytes: u64,
}

impl PieceWrite {
    /// A write of these pieces at this offset. They are dropped when the job is complete.
    ///
    /// # Panics
    /// If a piece is of memory that others may write.
    pub fn new(file: Arc<File>, at: u64, pieces: Vec<PinnedPiece>) -> Self {
        let is_foreign = |pinned: &PinnedPiece| pinned.piece().is_foreign();
        assert!(!pieces.iter().any(is_foreign), "what is written does not change");
        let bytes = pieces.iter().map(|pinned| pinned.piece().len() as u64).sum();
        Self { file, at, pieces, bytes }
    }

    /// Bytes of all pieces.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The step after `done` bytes.
    pub(super) fn next<'a>(&'a self, done: u64, ranges: &'a mut Ranges) -> Step<'a> {
        let (mut first, mut skip) = (0, done as usize);
        while let Some(pinned) = self.pieces.get(first)
            && skip >= pinned.piece().len()
        {
            skip -= pinned.piece().len();
            first += 1;
        }
        let end = self.pieces.len().min(first + RANGES_MAX);
        let pieces = &self.pieces[first..end];
        ranges.fill(pieces, skip);
        Step::WritePieces { file: &self.file, pieces, skip, ranges, at: self.at + done }
    }
}
