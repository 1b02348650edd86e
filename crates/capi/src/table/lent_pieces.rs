//! Pieces that a program received without a copy and has not returned, by tokens.

use towpath::layers::packet::ReceivedPiece;

/// The pieces of one call that are handed out, or an unused entry.
#[derive(Default)]
struct Call {
    /// Distinguishes calls with the same entry. Never zero.
    generation: u32,
    pieces: Vec<ReceivedPiece>,
}

impl Call {
    /// True if the pieces are handed out under this token.
    fn is_named(&self, token: u64) -> bool {
        u64::from(self.generation) == token >> 32 && !self.pieces.is_empty()
    }
}

/// The pieces that a program holds, by tokens.
#[derive(Default)]
pub(crate) struct LentPieces {
    calls: Vec<Call>,
    free: Vec<u32>,
    /// Headers of the last call.
    pub(crate) headers: Vec<u8>,
}

impl LentPieces {
    /// Reserves an entry and room for the pieces of one more call.
    pub(crate) fn begin(&mut self) -> (u32, Vec<ReceivedPiece>) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.calls.push(Call::default());
            (self.calls.len() - 1) as u32
        });
        (place, std::mem::take(&mut self.calls[place as usize].pieces))
    }

    /// Stores the pieces and returns their token, or zero if there are none.
    pub(crate) fn end(&mut self, place: u32, pieces: Vec<ReceivedPiece>) -> u64 {
        let call = &mut self.calls[place as usize];
        call.pieces = pieces;
        if call.pieces.is_empty() {
            self.free.push(place);
            return 0;
        }
        call.generation = call.generation.wrapping_add(1).max(1);
        u64::from(call.generation) << 32 | u64::from(place)
    }

    /// The pieces of a call. Empty if there is no such call.
    pub(crate) fn pieces(&self, token: u64) -> &[ReceivedPiece] {
        let call = self.calls.get(token as u32 as usize);
        call.filter(|call| call.is_named(token)).map_or(&[], |call| &call.pieces)
    }

    /// Drops the pieces of a call. False if there is no such call.
    pub(crate) fn give_back(&mut self, token: u64) -> bool {
        let call = self.calls.get_mut(token as u32 as usize);
        let Some(call) = call.filter(|call| call.is_named(token)) else { return false };
        call.pieces.clear();
        self.free.push(token as u32);
        true
    }
}
