//! What a program received without a copy and has not returned, by tokens.

use towpath::layers::packet::Held;

/// A call whose pieces are out, or none.
#[derive(Default)]
struct Call {
    /// Tells calls with the same place apart; never zero.
    generation: u32,
    pieces: Vec<Held>,
}

impl Call {
    /// True if its pieces are out under this token.
    fn is_named(&self, token: u64) -> bool {
        u64::from(self.generation) == token >> 32 && !self.pieces.is_empty()
    }
}

/// What a program holds, by tokens.
#[derive(Default)]
pub(crate) struct HandedOut {
    calls: Vec<Call>,
    free: Vec<u32>,
    /// Of the last call.
    pub(crate) headers: Vec<u8>,
}

impl HandedOut {
    /// Room for the pieces of one more call.
    pub(crate) fn begin(&mut self) -> (u32, Vec<Held>) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.calls.push(Call::default());
            (self.calls.len() - 1) as u32
        });
        (place, std::mem::take(&mut self.calls[place as usize].pieces))
    }

    /// The token of what was handed out; zero for nothing.
    pub(crate) fn end(&mut self, place: u32, pieces: Vec<Held>) -> u64 {
        let call = &mut self.calls[place as usize];
        call.pieces = pieces;
        if call.pieces.is_empty() {
            self.free.push(place);
            return 0;
        }
        call.generation = call.generation.wrapping_add(1).max(1);
        u64::from(call.generation) << 32 | u64::from(place)
    }

    /// The pieces of a call; none if there is no such call.
    pub(crate) fn pieces(&self, token: u64) -> &[Held] {
        let call = self.calls.get(token as u32 as usize);
        call.filter(|call| call.is_named(token)).map_or(&[], |call| &call.pieces)
    }

    /// Drops the pieces of a call; false if there is no such call.
    pub(crate) fn give_back(&mut self, token: u64) -> bool {
        let call = self.calls.get_mut(token as u32 as usize);
        let Some(call) = call.filter(|call| call.is_named(token)) else { return false };
        call.pieces.clear();
        self.free.push(token as u32);
        true
    }
}
