//! Splices from a stream of an instance: received pieces stay where they are. Another instance
//! sends them on and holds their memory until its peer has acknowledged them; the kernel reads them
//! in place.
//!
//! Short pieces of large memory are copied, so that the room of the send queue also bounds the
//! memory that it keeps. While the readers of the instance hold too many bytes, bytes are received
//! by copying them.

use super::mover::Route;
use super::socket::{Place, READS, attempt};
use super::stream::End;
use super::taken::Taken;
use crate::errno::{Errno, Outcome};
use rustix::fd::AsFd;
use std::collections::VecDeque;
use std::task::Waker;
use towpath::layers::net::socket::{Error, ReadMost, ReceiveFlags};

/// Bytes that are taken and not passed on. Less than `TOWPATH_REST_MAX` of `towpath.h`.
const HELD_BYTES: usize = 64 << 10;
/// Pieces that are taken at a time.
const HELD_PIECES: usize = 64;

/// A splice in progress.
pub(super) struct Splice {
    from: Place,
    to: End,
    held: VecDeque<Taken>,
    /// Bytes of the first one that were passed on.
    passed: usize,
}

impl Splice {
    pub(super) fn new(from: Place, to: End) -> Self {
        Self { from, to, held: VecDeque::new(), passed: 0 }
    }
}

impl Route for Splice {
    /// Takes bytes once all that were taken before are passed on.
    fn take(&mut self, most: u64, waker: &Waker) -> Outcome<usize> {
        match self.is_empty() {
            true => {
                receive(&mut self.from, most.min(HELD_BYTES as u64) as usize, &mut self.held, waker)
            }
            false => Err(Errno::AGAIN),
        }
    }

    /// Passes on bytes of the first piece.
    fn pass(&mut self, waker: &Waker) -> Outcome<usize> {
        let first = self.held.front().ok_or(Errno::AGAIN)?;
        let count = self.to.pass_on(first, self.passed, waker)?;
        self.passed += count;
        if self.passed == first.len() {
            self.held.pop_front();
            self.passed = 0;
        }
        Ok(count)
    }

    fn held(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.held.iter().for_each(|taken| taken.with(|part| bytes.extend_from_slice(part)));
        bytes.split_off(self.passed)
    }

    fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    fn fd(&self) -> Option<&dyn AsFd> {
        self.to.kernel().map(|socket| socket as _)
    }
}

/// Takes at most `wanted` bytes.
fn receive(
    from: &mut Place,
    wanted: usize,
    held: &mut VecDeque<Taken>,
    waker: &Waker,
) -> Outcome<usize> {
    attempt(from, (READS, waker), |state, id| {
        let most = ReadMost { bytes: wanted, pieces: HELD_PIECES, private: true };
        let mut pieces = Vec::new();
        let taken = state.with(|sockets, cx| sockets.receive_lent(id, &most, &mut pieces, cx));
        held.extend(pieces.into_iter().map(Taken::Piece));
        if taken != Err(Error::NoBuffers) {
            return Ok(taken?);
        }
        let mut bytes = vec![0; wanted];
        let how = ReceiveFlags::default();
        let count = state.with(|sockets, cx| sockets.receive(id, &mut bytes, how, cx))?;
        bytes.truncate(count);
        if count > 0 {
            held.push_back(Taken::Copy(bytes));
        }
        Ok(count)
    })
}
