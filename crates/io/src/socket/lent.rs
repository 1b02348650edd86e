//! What a TCP socket has lent to the kernel (`MSG_ZEROCOPY`): the pieces of each call, kept until
//! the kernel reports the return of that call.
//!
//! # Why no lent memory is reused too early
//!
//! - A piece keeps its frame: the pool hands a frame out again only after the last piece of it was
//!   dropped.
//! - Pieces of a call are dropped in one place only, [`Lent::over`], for a return that the kernel
//!   has reported. It reports a call after the last packet that refers to the call's pages is gone,
//!   from the retransmission queue as well as from the queues of network cards
//!   (Documentation/networking/msg_zerocopy.rst).
//! - Closing a socket does not end the kernel's use of the pages: it goes on to send and retransmit
//!   what was queued, and reports nothing more. So an owner waits for the returns before it closes
//!   a socket. If a socket is closed all the same, at the end of a process for example, the pieces
//!   are never dropped: their frames stay taken until the process ends.
//!
//! Follows Documentation/networking/msg_zerocopy.rst. One thread at a time.

use super::zerocopy::LentReturn;
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use towpath_packet::Piece;

/// What the kernel has returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Returns {
    /// Calls whose memory came back.
    pub calls: u32,
    /// Of these, calls whose bytes the kernel copied after all. A hint: returns that the kernel
    /// reports together have the mark of the first of them.
    pub copied: u32,
}

/// One call that lent memory.
#[derive(Debug)]
struct Call {
    /// Pieces of the call, in `Lent::pieces`.
    pieces: usize,
    /// Bytes of memory that these keep from their lender.
    held: usize,
    /// The kernel has returned it. It waits for calls before it.
    is_over: bool,
}

/// The calls that the kernel has not returned, in order, and the pieces of all of them.
#[derive(Default)]
pub(super) struct Lent {
    calls: VecDeque<Call>,
    pieces: VecDeque<Piece>,
    /// Number of the first of `calls`. The kernel numbers the calls of a socket from zero.
    first: u32,
    held: usize,
}

impl Lent {
    /// Keeps the memory of a call that took the first `count` bytes of `pieces`.
    pub(super) fn add<'a>(&mut self, pieces: impl Iterator<Item = &'a Piece>, mut count: usize) {
        let mut call = Call { pieces: 0, held: 0, is_over: false };
        for piece in pieces {
            if count == 0 {
                break;
            }
            count -= piece.len().min(count);
            call.pieces += 1;
            call.held += piece.held();
            self.pieces.push_back(piece.clone());
        }
        assert_eq!(count, 0, "the kernel took no more than it was given");
        self.held += call.held;
        self.calls.push_back(call);
    }

    /// Drops the pieces of calls that the kernel has returned. Calls mostly return in order; the
    /// pieces of one that returns early are kept until those before it have returned.
    pub(super) fn over(&mut self, returned: LentReturn) {
        let ahead = returned.first.wrapping_sub(self.first) as usize;
        let calls = returned.calls() as usize;
        self.calls.iter_mut().skip(ahead).take(calls).for_each(|call| call.is_over = true);
        while let Some(call) = self.calls.pop_front_if(|call| call.is_over) {
            self.first = self.first.wrapping_add(1);
            self.held -= call.held;
            self.pieces.drain(..call.pieces);
        }
    }

    /// Bytes of memory that lent pieces keep from their lenders.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// True if the kernel has returned everything.
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // The socket is closed and will report nothing more, but the kernel may still read these
        // (module text). Nothing drops them, so their frames are never reused.
        let _ = ManuallyDrop::new(std::mem::take(&mut self.pieces));
    }
}

impl std::fmt::Debug for Lent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lent({} bytes, {:?} from {})", self.held, self.calls, self.first)
    }
}

#[cfg(test)]
mod tests;
