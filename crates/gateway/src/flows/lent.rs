//! Lending to the host's kernel: which flows lend the program's bytes instead of having them
//! copied, how much may be lent, and sockets that wait for the rest of it to return.
//!
//! # Theory of operation
//!
//! A lent frame is read by the network card, and returns when the far host has acknowledged its
//! bytes, which may take as long as the connection lasts. Nothing can call it back. So all bounds
//! are on lending, and a flow beyond a bound lets the kernel copy:
//!
//! - A call lends only large frames with few small ones among them ([`Call::of`]): pages are
//!   expensive to lend if they are not full.
//! - All flows of a worker lend at most [`LENT_SHARE`] of its memory, and each at most what is
//!   then left of that. So one flow lends half of it at most, and there is always a rest for the
//!   next one.
//! - Nothing is lent while less than [`FREE_SHARE`] of either size of frames is free.
//!
//! In [`Mode::Auto`], a flow lends one call first and waits for it to return ([`Terms`]). If
//! the kernel has copied it, neither this flow nor later ones to the same address lend. Whether
//! those that may lend do so is decided by [`Trials`].
//!
//! A socket whose flow ends is kept until everything that it lent has returned
//! ([`Lending::close`], [`Lending::reset`]): a closed socket reports no returns, though the kernel
//! goes on to read the memory. At most as many sockets are kept as calls of [`CALL_BYTES_MIN`] fit
//! what may be lent.

mod trials;

use super::{GatewayCounters, HOST_READ_SHARE, Slot, Slots, Token};
use crate::config::LendToHost as Mode;
use rustix::time::{ClockId, clock_gettime};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;
use towpath_io::reactor::{Interest, Reactor};
use towpath_io::socket::{Returns, SEND_PIECES_MAX, TcpSocket};
use towpath_net::time::Instant;
use towpath_packet::pool::{LARGE_FRAME_BYTES, SMALL_FRAME_BYTES};
use towpath_packet::{Memory, Piece};
use trials::{Gauge, Trials};

/// Share of memory, in 1/256, that may be lent to the kernel.
pub(super) const LENT_SHARE: usize = 16;
/// Share of memory, in 1/256, that must be free to lend.
const FREE_SHARE: u32 = 128;
/// Fewer bytes are copied: a call that lends costs a report, which is worth some tens of KiB of
/// copying.
const CALL_BYTES_MIN: usize = 32 << 10;
/// Large frames that a call lends for each small one, at least.
const LARGE_PER_SMALL: usize = 2;
/// Addresses to remember for which the kernel copied what was lent.
const COPIED_MAX: usize = 16;
/// How long to remember them: routes change, and captures on the host's interfaces, for which the
/// kernel copies as well, end.
const COPIED_FOR: Duration = Duration::from_secs(600);

// Large frames are three quarters of the memory. What is lent leaves enough of them to read the
// program's ACKs, beside what `fair` permits.
pub(super) const LENT_OF_LARGE: usize = LENT_SHARE * 4 / 3;
const _: () = assert!(FREE_SHARE > HOST_READ_SHARE, "lending ends before reading does");
// A small frame is an eighth of a large one, and a quarter of the memory is in small frames.
const _: () = assert!(
    LARGE_FRAME_BYTES * LARGE_PER_SMALL >= 3 * SMALL_FRAME_BYTES,
    "no larger share of small frames is lent than of large ones"
);

/// Whether a flow may lend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Terms {
    /// It has had nothing to lend.
    #[default]
    Unknown,
    /// One call, whose return decides.
    Once,
    /// Not before something returns.
    Later,
    /// As much as the bounds permit.
    Always,
    /// It never lends.
    Never,
}

/// What a call would lend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    bytes: usize,
    /// Bytes of the frames.
    held: usize,
}

impl Call {
    /// Returns what a call would lend of the first pieces; `None` if they are not worth lending, or
    /// are no frames of a pool: memory of guests may go back to them early.
    pub(super) fn of<'a>(pieces: impl Iterator<Item = &'a Piece>) -> Option<Self> {
        let (mut bytes, mut small, mut large) = (0, 0, 0);
        for piece in pieces.take(SEND_PIECES_MAX) {
            if !piece.is_frame() {
                return None;
            }
            bytes += piece.len();
            let count = if piece.held() > SMALL_FRAME_BYTES { &mut large } else { &mut small };
            *count += 1;
        }
        let held = small * SMALL_FRAME_BYTES + large * LARGE_FRAME_BYTES;
        let is_worth_it = bytes >= CALL_BYTES_MIN && large >= LARGE_PER_SMALL * small;
        is_worth_it.then_some(Self { bytes, held })
    }
}

/// What all flows of a worker have lent.
pub(super) struct Lending {
    mode: Mode,
    /// Bytes of frames that the kernel has.
    held: usize,
    trials: Trials,
    /// Addresses for which the kernel copied what was lent, and until when they are remembered.
    copied: VecDeque<(IpAddr, Instant)>,
    /// Sockets without a flow, which wait for what they have lent.
    leaving: Slots<TcpSocket>,
}

impl Lending {
    pub(super) fn new(mode: Mode) -> Self {
        let (copied, leaving) = (VecDeque::new(), Slots::default());
        Self { mode, held: 0, trials: Trials::new(), copied, leaving }
    }

    /// Returns the terms of a flow whose host answered at once: it is on this machine, where the
    /// kernel copies what it was lent.
    pub(super) fn terms_of_near(&self) -> Terms {
        if self.mode == Mode::Always { Terms::Unknown } else { Terms::Never }
    }

    /// Returns the terms of a flow that has something to lend for the first time.
    pub(super) fn terms(&mut self, socket: &TcpSocket, now: Instant) -> Terms {
        let (Ok(peer), Ok(own)) = (socket.peer(), socket.local()) else { return Terms::Never };
        if peer.ip().is_loopback() || peer.ip() == own.ip() {
            return Terms::Never;
        }
        if self.mode == Mode::Always {
            return Terms::Always;
        }
        self.copied.retain(|(_, until)| now < *until);
        let is_copied = self.copied.iter().any(|(address, _)| *address == peer.ip());
        if is_copied { Terms::Never } else { Terms::Once }
    }

    /// Returns true if flows lend at all.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.mode != Mode::Never
    }

    /// Returns true if a flow that may lend should lend this call, as far as trials go.
    pub(super) fn wants(&mut self, call: Call, counters: &GatewayCounters, now: Instant) -> bool {
        let moved = counters.bytes_in + counters.bytes_out;
        let gauge = ThisThread { now, moved, lent: counters.lent.bytes };
        self.mode == Mode::Always || self.trials.lends(call.bytes as u64, &gauge)
    }

    /// Returns true if a flow that has lent `own` bytes of frames may lend this call, too.
    pub(super) fn has_room(&self, call: Call, own: usize, memory: &mut Memory) -> bool {
        let most = memory.capacity_bytes() / 256 * LENT_SHARE;
        own + call.held <= most.saturating_sub(self.held) && memory.has_free(FREE_SHARE)
    }

    /// Counts a call of a flow that took `bytes`, and memory that went out with it.
    pub(super) fn lent(&mut self, bytes: usize, held: usize, counters: &mut LentToHost) {
        self.held += held;
        counters.calls += 1;
        counters.bytes += bytes as u64;
    }

    /// Takes back what the kernel has returned to a socket.
    pub(super) fn take_returns(
        &mut self,
        socket: &mut TcpSocket,
        counters: &mut LentToHost,
    ) -> Returns {
        take_back(&mut self.held, socket, counters)
    }

    /// Returns the terms of a flow after a return.
    pub(super) fn terms_after(
        &mut self,
        returns: Returns,
        before: Terms,
        socket: &TcpSocket,
        now: Instant,
    ) -> Terms {
        if returns.copied == 0 || self.mode == Mode::Always {
            return if before == Terms::Later { Terms::Always } else { before };
        }
        if let Ok(peer) = socket.peer() {
            self.copied.retain(|(address, _)| *address != peer.ip());
            self.copied.truncate(COPIED_MAX - 1);
            self.copied.push_front((peer.ip(), now + COPIED_FOR));
        }
        Terms::Never
    }

    /// Closes the socket of a flow that is over, once everything that it lent has returned.
    pub(super) fn close(
        &mut self,
        socket: TcpSocket,
        reactor: &Reactor,
        counters: &mut LentToHost,
    ) {
        if socket.lent_held() > 0 {
            // Fails only if the connection is over, when everything returns.
            let _ = socket.shutdown_both();
            self.keep(socket, reactor, counters);
        }
    }

    /// Resets the connection of a flow at once, and closes its socket once everything that it lent
    /// has returned.
    pub(super) fn reset(
        &mut self,
        socket: TcpSocket,
        reactor: &Reactor,
        counters: &mut LentToHost,
    ) {
        if socket.lent_held() == 0 {
            return socket.reset();
        }
        // Fails only for a descriptor that is not a socket.
        let _ = socket.disconnect();
        self.keep(socket, reactor, counters);
    }

    /// Keeps a socket until everything that it lent has returned.
    fn keep(&mut self, mut socket: TcpSocket, reactor: &Reactor, counters: &mut LentToHost) {
        self.take_returns(&mut socket, counters);
        if socket.lent_held() == 0 {
            return;
        }
        let token = Token::Lent(self.leaving.next_key()).encode();
        // Errors are reported in any case. A return since the last look triggers an event too.
        let watched = reactor.modify(&socket, token, Interest::NONE, true);
        // A socket that came from another worker is new here.
        if watched.or_else(|_| reactor.add(&socket, token, Interest::NONE, true)).is_ok() {
            self.leaving.insert(socket);
        }
        // Otherwise there is no memory to watch it: it is closed, and its frames stay taken.
    }

    /// A socket without a flow has an event.
    pub(super) fn socket_ready(&mut self, slot: Slot, counters: &mut LentToHost) {
        let Some(socket) = self.leaving.get_mut(slot) else { return };
        take_back(&mut self.held, socket, counters);
        if socket.lent_held() == 0 {
            self.leaving.remove(slot);
        }
    }

    /// A flow goes to another worker, with what it has lent.
    pub(super) fn leaves(&mut self, socket: &TcpSocket) {
        self.held -= socket.lent_held();
    }

    /// A flow comes from another worker, with what it has lent.
    pub(super) fn comes(&mut self, socket: &TcpSocket) {
        self.held += socket.lent_held();
    }

    /// Returns the bytes of frames that the kernel has.
    pub(super) fn held(&self) -> usize {
        self.held
    }
}

/// Takes back what the kernel has returned to a socket. `held` is what it has of all.
fn take_back(held: &mut usize, socket: &mut TcpSocket, counters: &mut LentToHost) -> Returns {
    let before = socket.lent_held();
    let returns = socket.take_returns();
    *held -= before - socket.lent_held();
    counters.copied += u64::from(returns.copied);
    returns
}

/// What flows have lent to the host's kernel instead of having it copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LentToHost {
    /// Payload bytes.
    pub bytes: u64,
    /// Calls that lent them.
    pub calls: u64,
    /// Calls whose bytes the kernel copied after all.
    pub copied: u64,
    /// Calls that the kernel refused to lend; their bytes were copied.
    pub refused: u64,
}

impl LentToHost {
    pub(super) fn add(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.calls += other.calls;
        self.copied += other.copied;
        self.refused += other.refused;
    }
}

/// The measurements of this thread.
struct ThisThread {
    now: Instant,
    moved: u64,
    lent: u64,
}

impl Gauge for ThisThread {
    fn now(&self) -> Instant {
        self.now
    }

    fn used(&self) -> Duration {
        let used = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(used.tv_sec.cast_unsigned(), used.tv_nsec as u32)
    }

    fn moved(&self) -> u64 {
        self.moved
    }

    fn lent(&self) -> u64 {
        self.lent
    }
}

#[cfg(test)]
mod tests;
