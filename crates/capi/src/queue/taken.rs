//! Bytes that were taken from a stream of an instance and are passed on.

use std::ops::Deref;
use towpath::layers::packet::ReceivedPiece;

/// Memory that a piece which is passed on may keep, as a multiple of its bytes.
const KEPT_TIMES_MAX: usize = 16;

/// Bytes that were taken.
pub(super) enum Taken {
    Piece(ReceivedPiece),
    Copy(Vec<u8>),
}

impl Taken {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Piece(piece) => piece.len(),
            Self::Copy(bytes) => bytes.len(),
        }
    }

    /// Calls `act` with the bytes.
    pub(super) fn with<R>(&self, act: impl FnOnce(&[u8]) -> R) -> R {
        match self {
            Self::Piece(piece) => {
                act(piece.bytes().expect("others cannot write what was taken").deref())
            }
            Self::Copy(bytes) => act(bytes),
        }
    }

    /// The piece, if it is passed on without a copy.
    pub(super) fn piece(&self) -> Option<&ReceivedPiece> {
        match self {
            Self::Piece(piece) if piece.piece().held() <= KEPT_TIMES_MAX * piece.len() => {
                Some(piece)
            }
            _ => None,
        }
    }
}
