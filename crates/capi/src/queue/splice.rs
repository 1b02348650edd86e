//! Splices from a stream of an instance: received pieces stay where they are. Another instance
//! sends them on and holds their memory until its peer has acknowledged them; the kernel reads them
//! in place.
//!
//! Short pieces of large memory are copied, so that the room of the send queue also bounds the
//! memory that it keeps. While the readers of the instance hold too many bytes, bytes are received
//! by copying them.
//!
//! Ends and errors are those of [`transfer`](super::transfer).

use super::reports::Report;
use super::socket::{Place, READS, attempt};
use super::stream::End;
use super::taken::Taken;
use crate::errno::{Errno, Outcome};
use crate::memory::pointers::Posted;
use rustix::fd::AsFd;
use rustix::io::Errno as Kernel;
use std::collections::VecDeque;
use std::task::Waker;
use towpath::events::custom::{Step, Task};
use towpath::layers::net::socket::{Error, ReadMost, ReceiveFlags};

/// Bytes that are taken and not passed on. Less than `TOWPATH_REST_MAX` of `towpath.h`.
const HELD_BYTES: usize = 64 << 10;
/// Pieces that are taken at a time.
const HELD_PIECES: usize = 64;
/// Bytes that are passed on before other tasks get a turn.
const TURN_BYTES: u64 = 1 << 20;
/// A splice in progress.
pub(super) struct Splice {
    from: Place,
    to: End,
    /// Bytes that are still to be taken.
    left: u64,
    takes: bool,
    passes: bool,
    held: VecDeque<Taken>,
    /// Bytes of the first one that were passed on.
    passed: usize,
    arrived: u64,
    failed: Option<Errno>,
    /// Memory for bytes that were taken and not delivered.
    rest: Posted,
    report: Report,
}

impl Splice {
    pub(super) fn new(from: Place, to: End, count: u64, rest: Posted, report: Report) -> Self {
        Self {
            from,
            to,
            left: count,
            takes: count > 0,
            passes: true,
            held: VecDeque::new(),
            passed: 0,
            arrived: 0,
            failed: None,
            rest,
            report,
        }
    }

    /// Takes bytes, if all that were taken before are passed on. True if there were any.
    fn take(&mut self, waker: &Waker) -> bool {
        if !self.takes || !self.passes || !self.held.is_empty() {
            return false;
        }
        let wanted = self.left.min(HELD_BYTES as u64) as usize;
        match receive(&mut self.from, wanted, &mut self.held, waker) {
            Err(Errno::AGAIN) => return false,
            Err(error) => self.end_source(Some(error)),
            // The source has ended, which is not an error.
            Ok(0) => self.end_source(None),
            Ok(count) => {
                self.left -= count as u64;
                self.takes = self.left > 0;
            }
        }
        !self.held.is_empty()
    }

    /// Passes on bytes of the first piece. True if that changed anything.
    fn pass(&mut self, waker: &Waker) -> bool {
        let Some(first) = self.held.front().filter(|_| self.passes) else { return false };
        match self.to.pass_on(first, self.passed, waker) {
            Ok(count) => {
                self.arrived += count as u64;
                self.passed += count;
                if self.passed == first.len() {
                    self.held.pop_front();
                    self.passed = 0;
                }
            }
            Err(Errno::AGAIN) => return false,
            Err(error) => self.end_both(error),
        }
        true
    }

    fn end_source(&mut self, why: Option<Errno>) {
        self.takes = false;
        self.failed = self.failed.or(why);
    }

    fn end_both(&mut self, why: Errno) {
        self.end_source(Some(why));
        self.passes = false;
    }

    /// The last step, if the splice is over.
    fn end(&mut self) -> Option<Step> {
        if self.passes && (self.takes || !self.held.is_empty()) {
            return None;
        }
        // An error that came after all bytes had arrived did not end the splice.
        let error = self.failed.filter(|_| self.left > 0 || !self.held.is_empty());
        let mut bytes = Vec::new();
        self.held.drain(..).for_each(|taken| taken.with(|part| bytes.extend_from_slice(part)));
        let left_over = &bytes[self.passed.min(bytes.len())..];
        left_over.iter().zip(self.rest.rest(0)).for_each(|(&from, to)| *to = from);
        self.report.end(self.arrived, error, left_over.len() as u32);
        Some(Step::Complete(self.arrived as i64))
    }
}

impl Task for Splice {
    fn poll(&mut self, waker: &Waker) -> Option<Step> {
        let turn_end = self.arrived + TURN_BYTES;
        loop {
            // In this order: passing on makes room for taking.
            let passed = self.pass(waker);
            let took = self.take(waker);
            if let Some(step) = self.end() {
                return Some(step);
            }
            if !took && !passed {
                return None;
            }
            if self.arrived >= turn_end {
                waker.wake_by_ref();
                return None;
            }
        }
    }

    fn stop(&mut self, why: Kernel) {
        self.end_both(why.into());
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
