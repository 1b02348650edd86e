//! Memory for sends that copy: how much a socket may take, and which sockets wait for it.
//!
//! # Theory of operation
//!
//! The pools serve received packets, the answers to them, and the data that programs send. If sends
//! could take the last frame, no ACK could be received, and no frame would ever be released. So a
//! part of each pool, and of the packet handles, is reserved ([`RESERVE_DIVISOR`]) for input, ACKs,
//! neighbour solicitations and errors.
//!
//! Sockets share the rest by a moving threshold: a socket gets another frame only while it holds
//! less than is free. So one socket gets half of the rest, and each of *n* greedy sockets gets one
//! part of *n* + 1. The last part stays free for the next socket, and shares grow again as others
//! end. A socket that holds less than [`SHARE_MIN`] gets a frame in any case, as long as one is
//! free, so that one super-packet of each socket keeps moving however many sockets there are.
//!
//! A socket that found no frame *waits*: it is not writable, and is woken when a frame is
//! available. A socket that was polled for readiness meanwhile waits too. Each burst in or out
//! checks for free frames. So does a timer, as other threads may release frames too. Sockets are
//! woken in the order in which they began to wait, as many as there are frames.

use super::{Phase, Readiness, Socket, SocketId, Sockets};
use crate::stack::Context;
use crate::time::{Duration, Instant};
use alloc::collections::VecDeque;
use core::cell::RefCell;
use towpath_packet::pool::{Frame, LARGE_FRAME_BYTES, Pool, SMALL_FRAME_BYTES};
use towpath_packet::{Memory, Packet};

/// The reserve is one part in this number of each pool and of the packet handles.
const RESERVE_DIVISOR: usize = 4;
/// Bytes of frames that a socket may hold in any case: a super-packet.
const SHARE_MIN: usize = 64 << 10;
/// Waiting sockets examined per check; cheap beside a burst of packets.
const LOOK_MAX: usize = 64;
/// First pause between two checks where nothing else happens.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// Longest pause between two checks, after many that found nothing.
const PAUSE_MAX: Duration = Duration::from_millis(128);

/// Sockets that wait for memory to send.
#[derive(Default)]
pub(super) struct Frames {
    /// The last check found no memory for sends.
    gone: bool,
    /// Sockets that wait, longest first. Each socket whose `waits_for_frame` is set is in it once,
    /// and closed sockets are purged when it is full. A `RefCell`, as asking for readiness begins a
    /// wait.
    waiting: RefCell<VecDeque<SocketId>>,
    /// Time of the next check.
    look_at: Option<Instant>,
    /// Pause before the check after that.
    pause: Duration,
}

impl Frames {
    /// True if the last check found no memory, or a socket waits for some.
    #[inline]
    pub(super) fn are_awaited(&mut self) -> bool {
        self.gone || !self.waiting.get_mut().is_empty()
    }

    /// When waiting sockets are checked next.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.look_at
    }

    /// Number of entries in the list of waiting sockets.
    #[cfg(test)]
    pub(super) fn waiting_count(&self) -> usize {
        self.waiting.borrow().len()
    }

    /// Schedules the next check unless one is scheduled.
    fn arm(&mut self, now: Instant) {
        if self.look_at.is_none_or(|at| at <= now) {
            let pause = self.pause.max(PAUSE_MIN);
            self.look_at = Some(now + pause);
            self.pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

impl Sockets {
    /// Records that a call found no frame: the socket is woken when there is one for it.
    pub(super) fn wait_for_frame(&mut self, id: SocketId, now: Instant) {
        let Ok(socket) = self.socket(id) else { return };
        self.begin_wait(id, socket);
        self.frames.arm(now);
    }

    /// True if a socket that has room cannot send because memory is short. It waits from now on.
    pub(super) fn lacks_frame(&self, id: SocketId, socket: &Socket) -> bool {
        if self.frames.gone {
            self.begin_wait(id, socket);
        }
        socket.waits_for_frame.get()
    }

    fn begin_wait(&self, id: SocketId, socket: &Socket) {
        if socket.waits_for_frame.replace(true) {
            return;
        }
        let mut waiting = self.frames.waiting.borrow_mut();
        if waiting.len() >= 2 * self.count().max(LOOK_MAX) {
            // At least half of the entries are of closed sockets: each open socket is in it once at
            // most.
            waiting.retain(|id| self.socket(*id).is_ok());
        }
        waiting.push_back(id);
    }

    /// Checks for free memory, and wakes sockets that may take some now.
    #[inline]
    pub(super) fn report_frames(&mut self, cx: &mut Context<'_>) {
        if self.frames.are_awaited() || !is_plenty(cx.memory) {
            self.look_for_frames(cx);
        }
    }

    #[cold]
    fn look_for_frames(&mut self, cx: &mut Context<'_>) {
        let mut left = spare(&mut cx.memory.small) + spare(&mut cx.memory.large);
        self.frames.gone = left == 0 || spare_packets(cx.memory) == 0;
        let mut reported = false;
        let count = self.frames.waiting.get_mut().len().min(LOOK_MAX);
        for _ in 0..count {
            if left == 0 || self.frames.gone {
                break;
            }
            let Some(id) = self.frames.waiting.get_mut().pop_front() else { break };
            let Some(held) = self.held_to_send(id) else { continue };
            if !has_frame(held, cx.memory) {
                self.frames.waiting.get_mut().push_back(id);
                continue;
            }
            (left, reported) = (left - 1, true);
            self.end_wait(id);
        }
        if reported {
            self.frames.pause = PAUSE_MIN;
        }
        if self.frames.waiting.get_mut().is_empty() {
            (self.frames.look_at, self.frames.pause) = (None, PAUSE_MIN);
        } else {
            self.frames.arm(cx.now);
        }
    }

    fn end_wait(&mut self, id: SocketId) {
        let Ok(socket) = self.socket(id) else { return };
        socket.waits_for_frame.set(false);
        let datagrams = matches!(socket.phase, Phase::Datagram(_));
        let band = if datagrams { Readiness::WRITE_BAND } else { Readiness::NONE };
        self.wake(id, Readiness::WRITABLE | band);
    }

    /// Bytes of frames that a socket's unsent data holds; `None` if the socket is closed.
    fn held_to_send(&self, id: SocketId) -> Option<usize> {
        let socket = self.socket(id).ok()?;
        Some(match &socket.phase {
            Phase::Datagram(datagrams) => self.sent_waiting(datagrams),
            _ => self.connection(socket).map_or(0, |connection| connection.send_held()),
        })
    }
}

/// True if no datagram can be sent, however small.
pub(super) fn lacks_memory(memory: &mut Memory) -> bool {
    !has_frame(0, memory) || spare_packets(memory) == 0
}

/// True if a socket that holds `held` bytes of send memory may take a frame.
fn has_frame(held: usize, memory: &mut Memory) -> bool {
    let bytes = |pool: &mut Pool| spare(pool) * pool.frame_bytes();
    let free = bytes(&mut memory.small) + bytes(&mut memory.large);
    free > 0 && held < free.max(SHARE_MIN)
}

/// Takes a frame for `len` bytes of a socket that holds `held` bytes, of the other size if needed.
pub(super) fn frame_to_send(len: usize, held: usize, memory: &mut Memory) -> Option<Frame> {
    let is_small = len <= SMALL_FRAME_BYTES;
    let first = if is_small { &mut memory.small } else { &mut memory.large };
    // Fast path: enough frames are free, without a look at the other pool or at returned frames.
    if beyond_reserve(first, first.free_at_least()) * first.frame_bytes() > held {
        return first.take();
    }
    if !has_frame(held, memory) {
        return None;
    }
    let Memory { small, large, .. } = memory;
    let (first, second) = if is_small { (small, large) } else { (large, small) };
    let take = |pool: &mut Pool| if spare(pool) > 0 { pool.take() } else { None };
    take(first).or_else(|| take(second))
}

/// Bytes of frames that a copy of `len` bytes occupies, if it fits one frame.
pub(super) fn frame_bytes(len: usize) -> usize {
    match len {
        0 => 0,
        1..=SMALL_FRAME_BYTES => SMALL_FRAME_BYTES,
        _ => LARGE_FRAME_BYTES,
    }
}

/// Takes a packet handle for a send.
pub(super) fn packet_to_send(memory: &mut Memory) -> Option<Packet> {
    let has_spare = packets_are_plenty(memory) || spare_packets(memory) > 0;
    if has_spare { memory.packet() } else { None }
}

/// True if there is certainly memory for sends.
fn is_plenty(memory: &Memory) -> bool {
    let is_plenty = |pool: &Pool| pool.free_at_least() > pool.capacity() / RESERVE_DIVISOR;
    is_plenty(&memory.small) && is_plenty(&memory.large) && packets_are_plenty(memory)
}

fn packets_are_plenty(memory: &Memory) -> bool {
    memory.packets.free_at_least() > memory.packets.capacity() / RESERVE_DIVISOR
}

/// Frames of a pool that sends may still take.
fn spare(pool: &mut Pool) -> usize {
    let free = pool.free_count();
    beyond_reserve(pool, free)
}

/// Frames that sends may still take if `free` frames are free.
fn beyond_reserve(pool: &Pool, free: usize) -> usize {
    free.saturating_sub(pool.capacity() / RESERVE_DIVISOR)
}

fn spare_packets(memory: &mut Memory) -> usize {
    let reserve = memory.packets.capacity() / RESERVE_DIVISOR;
    memory.packets.free_count().saturating_sub(reserve)
}
