//! Looking at a packet by copying parts of it.

use super::{PEEK_BYTES, Packet};
use crate::ledger::{Ledger, Site};

impl Packet {
    /// The byte behind the headers, which belongs to the next header. Not a copy for the ledger.
    pub fn peek_byte(&self) -> Option<u8> {
        let mut byte = [0];
        let read = self.pieces().find(|piece| !piece.is_empty())?.copy_to(&mut byte);
        (read == 1).then_some(byte[0])
    }

    /// Copies the first bytes of the packet, as on the wire, for a decision that does not change
    /// the packet. Returns the number of bytes, at most [`PEEK_BYTES`]. Header bytes do not count
    /// in the ledger.
    pub fn copy_first(&self, to: &mut [u8; PEEK_BYTES]) -> usize {
        let headers = self.headers();
        let headers = &headers[..headers.len().min(PEEK_BYTES)];
        to[..headers.len()].copy_from_slice(headers);
        let mut at = headers.len();
        if self.body().peeked {
            return at;
        }
        for piece in self.pieces() {
            at += piece.copy_to(&mut to[at..]);
        }
        at
    }

    /// The bytes on the wire, if all of them are private headers: the packet has no pieces, and is
    /// one frame.
    #[inline]
    pub fn as_headers(&self) -> Option<&[u8]> {
        let body = self.body();
        let is_whole = body.piece_count == 0 && !body.peeked && !body.is_segmented;
        is_whole.then(|| &body.headers[body.start as usize..body.end as usize])
    }

    /// The private bytes that come before the pieces on the wire. None while they are only a copy
    /// of bytes that the pieces cover.
    #[inline]
    pub fn wire_headers(&self) -> &[u8] {
        if self.len() == self.payload_len() { &[] } else { self.headers() }
    }

    /// Copies the packet, as on the wire, into `to` and returns the number of bytes, which is
    /// limited by `to`. The ledger counts the payload as copied ([`Site::Linearise`]).
    pub fn copy_to(&self, to: &mut [u8], ledger: &Ledger) -> usize {
        let headers = self.wire_headers();
        let mut at = headers.len().min(to.len());
        to[..at].copy_from_slice(&headers[..at]);
        for piece in self.pieces() {
            at += ledger.copy(Site::Linearise, piece, &mut to[at..]);
        }
        at
    }
}
